//! A proxy between clients and an S3 server. It adds a delay to each request, and counts requests, bytes and the time
//! that requests took.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of bytes that the proxy passes on at once.
const PIECE: usize = 64 << 10;
/// The largest number of bytes in a line of a request's head. The next constant is the largest number of lines. No
/// client of these measurements comes near either limit.
const LINE: u64 = 64 << 10;
const LINES: usize = 1000;

/// The traffic that has passed the proxy.
#[derive(Debug, Clone, Default)]
pub(super) struct Traffic {
    /// The number of requests that upload.
    pub(super) uploads: u64,
    /// The number of bytes in the bodies of those requests.
    pub(super) uploaded: u64,
    /// The number of all other requests.
    pub(super) others: u64,
    /// The duration in milliseconds of each upload of newly committed transactions (level 0). The next field has the
    /// durations of the requests that ask whether somebody has claimed a later generation. A duration runs from the
    /// request's head to the beginning of the answer that the client gets.
    pub(super) put_ms: Vec<f64>,
    pub(super) look_ms: Vec<f64>,
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The upload of transactions.
    Put,
    Look,
    Other,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    added: Duration,
    has_ended: AtomicBool,
    traffic: Mutex<Traffic>,
}

impl Shared {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy on loopback. A connection lasts until its client or the server ends it.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(super) fn start(server: SocketAddr, added: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let traffic = Mutex::default();
        let shared = Arc::new(Shared { server, added, has_ended: AtomicBool::new(false), traffic });
        let of_thread = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            for client in listener.incoming() {
                if of_thread.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&of_thread);
                // If a connection fails, its client has to try again.
                std::thread::spawn(move || client.and_then(|client| serve(client, &shared)));
            }
        });
        Ok(Self { address, shared, accepting: Some(accepting) })
    }

    /// Returns the traffic since the last call.
    pub(super) fn take(&self) -> Traffic {
        std::mem::take(&mut self.shared.traffic())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        let is_woken = TcpStream::connect(self.address).is_ok();
        if let Some(accepting) = self.accepting.take().filter(|_| is_woken) {
            let _ = accepting.join();
        }
    }
}

/// The request whose answer has not begun yet.
type Asked = Mutex<Option<(Kind, Instant)>>;

fn serve(client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let server = TcpStream::connect(shared.server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let asked = Arc::new(Asked::default());
    let (from, to, of_answers, answered) =
        (server.try_clone()?, client.try_clone()?, Arc::clone(shared), Arc::clone(&asked));
    let answers = std::thread::spawn(move || pass_answers(from, to, &of_answers, &answered));
    let done = pass_requests(&client, &server, shared, &asked);
    let _ = server.shutdown(Shutdown::Write);
    let _ = answers.join();
    done
}

fn pass_requests(
    client: &TcpStream,
    mut server: &TcpStream,
    shared: &Shared,
    asked: &Asked,
) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(PIECE, client);
    while let Some(head) = Head::read(&mut reader)? {
        *asked.lock().unwrap_or_else(PoisonError::into_inner) = Some((head.kind, Instant::now()));
        let mut traffic = shared.traffic();
        *if head.is_upload { &mut traffic.uploads } else { &mut traffic.others } += 1;
        drop(traffic);
        std::thread::sleep(shared.added);
        server.write_all(&head.bytes)?;
        // When a client has its answer, the proxy has already counted the request's bytes.
        let count = |bytes| {
            if head.is_upload {
                shared.traffic().uploaded += bytes;
            }
        };
        match head.body {
            Body::Bytes(bytes) => {
                count(bytes);
                pass(&mut reader, &mut server, bytes)?;
            }
            Body::Chunks => pass_chunks(&mut reader, &mut server, count)?,
        }
    }
    Ok(())
}

fn pass_answers(mut server: TcpStream, mut client: TcpStream, shared: &Shared, asked: &Asked) {
    let mut piece = vec![0; PIECE];
    while let Ok(len @ 1..) = server.read(&mut piece) {
        // This answer only tells the client to send its body.
        let is_interim = piece.starts_with(b"HTTP/1.1 100");
        let answered =
            if is_interim { None } else { asked.lock().unwrap_or_else(PoisonError::into_inner).take() };
        if let Some((kind, since)) = answered {
            let ms = since.elapsed().as_secs_f64() * 1e3;
            let mut traffic = shared.traffic();
            match kind {
                Kind::Put => traffic.put_ms.push(ms),
                Kind::Look => traffic.look_ms.push(ms),
                Kind::Other => {}
            }
        }
        if client.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Write);
}

/// The way in which the proxy finds the end of a request's body.
#[derive(Debug, PartialEq, Eq)]
enum Body {
    Bytes(u64),
    Chunks,
}

/// The head of a request.
#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    kind: Kind,
    is_upload: bool,
    body: Body,
}

impl Head {
    /// Reads the next head; `None` at the end of the connection.
    fn read(reader: &mut impl io::BufRead) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut body = Body::Bytes(0);
        let mut of_first = (Kind::Other, false);
        for nth in 0..LINES {
            let mut line = Vec::new();
            let len = reader.by_ref().take(LINE).read_until(b'\n', &mut line)?;
            bytes.extend_from_slice(&line);
            let text = String::from_utf8_lossy(&line);
            match text.trim_end() {
                _ if len == 0 && nth == 0 => return Ok(None),
                "" if len > 0 && nth > 0 => {
                    let (kind, is_upload) = of_first;
                    return Ok(Some(Self { bytes, kind, is_upload, body }));
                }
                first if nth == 0 => of_first = purpose(first),
                field => match field.split_once(':') {
                    Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                        body =
                            Body::Bytes(value.trim().parse().map_err(|_| wrong("its length is no number"))?);
                    }
                    Some((name, value)) if name.eq_ignore_ascii_case("transfer-encoding") => {
                        let is_chunked = value.trim().eq_ignore_ascii_case("chunked");
                        body = if is_chunked {
                            Body::Chunks
                        } else {
                            return Err(wrong("an encoding that is not known"));
                        };
                    }
                    _ => {}
                },
            }
        }
        Err(wrong("its head does not end"))
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a request: {what}"))
}

/// Returns the purpose of a request, and whether the request uploads. `first` is the request's first line.
fn purpose(first: &str) -> (Kind, bool) {
    let (method, path) = first.split_once(' ').unwrap_or((first, ""));
    match method {
        "PUT" if path.contains("/0000/") => (Kind::Put, true),
        "PUT" | "POST" => (Kind::Other, true),
        "HEAD" if path.contains("/generations/") => (Kind::Look, false),
        _ => (Kind::Other, false),
    }
}

/// Passes on a number of bytes.
fn pass(reader: &mut impl Read, writer: &mut impl Write, bytes: u64) -> io::Result<()> {
    let passed = io::copy(&mut reader.take(bytes), writer)?;
    if passed < bytes { Err(wrong("its body ends early")) } else { Ok(()) }
}

/// Passes on a body that consists of chunks, and its trailer. Calls `count` with the bytes of each chunk.
fn pass_chunks(
    reader: &mut impl io::BufRead,
    writer: &mut impl Write,
    count: impl Fn(u64),
) -> io::Result<()> {
    loop {
        let line = pass_line(reader, writer)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let bytes =
            u64::from_str_radix(digits, 16).map_err(|_| wrong("the length of a chunk is no number"))?;
        if bytes == 0 {
            while !pass_line(reader, writer)?.trim().is_empty() {}
            return Ok(());
        }
        count(bytes);
        pass(reader, writer, bytes)?;
        pass_line(reader, writer)?;
    }
}

fn pass_line(reader: &mut impl io::BufRead, writer: &mut impl Write) -> io::Result<String> {
    let mut line = Vec::new();
    reader.by_ref().take(LINE).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\n") {
        return Err(wrong("it ends early"));
    }
    writer.write_all(&line)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server that reads the requests of one connection, with their bodies, and answers each. The thread
    /// returns what the server got.
    fn echo(requests: usize) -> (SocketAddr, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut got, mut reader) = (Vec::new(), BufReader::new(stream.try_clone().unwrap()));
            for _ in 0..requests {
                let head = Head::read(&mut reader).unwrap().unwrap();
                got.extend_from_slice(&head.bytes);
                match head.body {
                    Body::Bytes(bytes) => pass(&mut reader, &mut got, bytes).unwrap(),
                    Body::Chunks => pass_chunks(&mut reader, &mut got, |_| ()).unwrap(),
                };
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
            got
        });
        (address, serving)
    }

    #[test]
    fn requests_pass_as_they_are_and_are_counted() {
        let requests = [
            "PUT /bucket/p/0000/1-1.ltx HTTP/1.1\r\nHost: a\r\ncontent-length: 5\r\n\r\nhello",
            "PUT /bucket/p/0001/1-2.ltx HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nt: 1\r\n\r\n",
            "HEAD /bucket/p/generations/2.claim HTTP/1.1\r\n\r\n",
            "GET /bucket?list-type=2 HTTP/1.1\r\n\r\n",
        ];
        let (server, serving) = echo(requests.len());
        let added = Duration::from_millis(5);
        let proxy = Proxy::start(server, added).unwrap();
        let mut client = TcpStream::connect(proxy.address).unwrap();
        for request in requests {
            let since = Instant::now();
            client.write_all(request.as_bytes()).unwrap();
            assert!(client.read(&mut [0; 1000]).unwrap() > 0);
            assert!(since.elapsed() >= added);
        }
        assert_eq!(String::from_utf8(serving.join().unwrap()).unwrap(), requests.concat());
        let traffic = proxy.take();
        assert_eq!((traffic.uploads, traffic.uploaded, traffic.others), (2, 5 + 19, 2));
        assert_eq!((traffic.put_ms.len(), traffic.look_ms.len()), (1, 1));
        assert!(traffic.put_ms[0] >= 5.0 && traffic.look_ms[0] >= 5.0, "{traffic:?}");
        assert_eq!(proxy.take().uploads, 0);
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for text in [
            "GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
            "GET /",
        ] {
            assert!(Head::read(&mut text.as_bytes()).is_err(), "{text}");
        }
        assert!(pass_chunks(&mut &b"zz\r\n"[..], &mut Vec::new(), |_| ()).is_err());
        assert!(pass(&mut &b"abc"[..], &mut Vec::new(), 4).is_err());
        assert!(Head::read(&mut &b""[..]).unwrap().is_none());
    }
}
