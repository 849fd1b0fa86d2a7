//! Serves the Prometheus page over HTTP, one request at a time. For each request the server reads the shared memory
//! again.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use duralite_cli::output::print_text;

use super::prometheus;
use super::source::Source;

/// How long a client may take to send its request, or to read the answer, before the server hangs up.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many bytes of a request the server reads at most.
const LONGEST_REQUEST: u64 = 16 << 10;

/// Answers requests until the program is ended.
pub(crate) fn serve(source: &mut Source, address: SocketAddr) -> Result<ExitCode> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    if let Some(warning) = warning(address) {
        eprintln!("duralite: {warning}");
    }
    print_text(&format!("http://{}/metrics\n", listener.local_addr()?))?;
    loop {
        // A failed connection does not end the server.
        if let Ok((stream, _)) = listener.accept() {
            let _ = answer(source, stream);
        }
    }
}

/// Returns the warning to print when other machines may reach the port.
fn warning(address: SocketAddr) -> Option<String> {
    let why = "is not on the loopback interface: everybody who reaches it can read the metrics, without a \
               password and unencrypted";
    (!address.ip().is_loopback()).then(|| format!("{address} {why}"))
}

/// The connection of a client. All reads together must finish within `PATIENCE`.
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
        (Some("GET"), _) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "this server answers only GET\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Reads a whole request, and returns its first line. The rest is read too, because if the server closed the connection
/// before it had read everything, the kernel would reset the connection, and the client would lose the answer.
fn read_request(mut request: impl BufRead) -> std::io::Result<String> {
    let (mut first, mut line) = (String::new(), String::new());
    request.read_line(&mut first)?;
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    Ok(first)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
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
