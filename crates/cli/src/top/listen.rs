//! The page for Prometheus by HTTP, one request at a time, each answered by a look of its own.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use duralite_cli::output::print_text;

use super::prometheus;
use super::source::Source;

/// Who takes longer to ask, or to read the answer, is hung up on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who asks for more than this too.
const LONGEST_REQUEST: u64 = 16 << 10;

/// Serves until the program is ended.
pub(crate) fn serve(source: &mut Source, address: SocketAddr) -> Result<ExitCode> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    if let Some(warning) = warning(address) {
        eprintln!("duralite: {warning}");
    }
    print_text(&format!("http://{}/metrics\n", listener.local_addr()?))?;
    loop {
        // What is wrong with one connection is its own affair.
        if let Ok((stream, _)) = listener.accept() {
            let _ = answer(source, stream);
        }
    }
}

/// What to say where others than this machine's processes reach the port.
fn warning(address: SocketAddr) -> Option<String> {
    let why = "is not on the loopback interface: whoever reaches it sees the figures, without a password and unencrypted";
    (!address.ip().is_loopback()).then(|| format!("{address} {why}"))
}

/// What somebody asks, as long as there is patience for all of it.
struct Patient<'a> {
    stream: &'a TcpStream,
    started: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let left = PATIENCE.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buf)
    }
}

fn answer(source: &mut Source, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let asked = read_request(BufReader::new(
        Patient { stream: &stream, started: Instant::now() }.take(LONGEST_REQUEST),
    ))?;
    let mut words = asked.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics" | "/")) => {
            let state = source.look_on();
            ("200 OK", prometheus::page(source.database(), &state))
        }
        (Some("GET"), _) => ("404 Not Found", "the figures are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// The first line of a request. All of it is read: a connection that is closed with something unread is reset, and the answer
/// lost with it.
fn read_request(mut request: impl BufRead) -> std::io::Result<String> {
    let (mut first, mut line) = (String::new(), String::new());
    request.read_line(&mut first)?;
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    Ok(first)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_reach_is_warned_of() {
        let of = |text: &str| warning(text.parse().unwrap());
        assert!(
            of("0.0.0.0:9187").is_some_and(|text| text.starts_with("0.0.0.0:9187 is not on the loopback"))
        );
        assert!(of("[::]:9187").is_some());
        assert_eq!((of("127.0.0.1:9187"), of("[::1]:9187")), (None, None));
    }
}
