//! Limits how long a request to an object store may take. A request that carries more bytes may take longer.
//!
//! The store's own client would end every request after the same time. So a large object would never get through a slow
//! network. Here the store must begin its answer within a time that grows with the number of bytes that the request
//! carries. Once an answer has begun, it may take any time, as long as its bytes keep coming.

use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

/// How long a store may take to begin its answer to a request without content. The pause between two bytes of an answer
/// has the same limit.
const LEAST: Duration = Duration::from_secs(30);
/// The speed, in bytes per second, of the slowest network that the limits allow for.
const SLOWEST: u64 = 128 << 10;

/// Makes HTTP clients that limit the time of each request.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    least: Duration,
    slowest: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { least: LEAST, slowest: SLOWEST }
    }
}

impl Limits {
    /// Returns how long the store may take to begin its answer to a request that carries `bytes` bytes.
    fn of(self, bytes: usize) -> Duration {
        self.least + Duration::from_secs(bytes as u64 / self.slowest.max(1))
    }
}

impl HttpConnector for Limits {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let options = options.clone().with_timeout_disabled();
        // A client's read timeout starts when the request starts. So the client for large requests has no read timeout,
        // because sending such a request may itself take longer.
        let small = ReqwestConnector::default().connect(&options.clone().with_read_timeout(self.least))?;
        let large = ReqwestConnector::default().connect(&options)?;
        Ok(HttpClient::new(Limited { limits: *self, small, large }))
    }
}

#[derive(Debug)]
struct Limited {
    limits: Limits,
    /// The client for requests that carry so few bytes that they get the shortest time limit.
    small: HttpClient,
    large: HttpClient,
}

#[async_trait]
impl HttpService for Limited {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let limit = self.limits.of(request.body().content_length());
        if limit == self.limits.least {
            return self.small.execute(request).await;
        }
        let answer = tokio::time::timeout(limit, self.large.execute(request)).await;
        answer.unwrap_or_else(|late| Err(HttpError::new(HttpErrorKind::Timeout, late)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use object_store::aws::AmazonS3Builder;
    use object_store::path::Path;
    use object_store::{ObjectStore as _, PutMode, PutOptions, RetryConfig};

    use super::*;

    #[test]
    fn a_request_may_take_longer_the_more_it_carries() {
        let limits = Limits::default();
        assert_eq!(limits.of(0), LEAST);
        assert_eq!(limits.of(16 << 20), LEAST + Duration::from_secs(128));
        assert_eq!(limits.of(256 << 20), LEAST + Duration::from_secs(2048));
    }

    /// Starts a server that takes half a second for each answer. Returns its address.
    fn slow_server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let (mut request, mut piece) = (Vec::new(), vec![0; 1 << 16]);
                let is_whole = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
                    let (head, _) = text.split_once("\r\n\r\n")?;
                    let length = head.split("content-length: ").nth(1)?.lines().next()?.trim();
                    Some(request.len() >= head.len() + 4 + length.parse::<usize>().ok()?)
                };
                while is_whole(&request) != Some(true) {
                    match client.read(&mut piece) {
                        Ok(bytes) if bytes > 0 => request.extend_from_slice(&piece[..bytes]),
                        _ => break,
                    }
                }
                std::thread::sleep(Duration::from_millis(500));
                let _ = client.write_all(
                    b"HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                );
            }
        });
        address
    }

    #[tokio::test]
    async fn a_large_object_is_created_through_a_slow_line() {
        // If the program has already chosen a library for TLS, this call fails and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let limits = Limits { least: Duration::from_millis(100), slowest: 1 << 10 };
        let store = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_endpoint(format!("http://{}", slow_server()))
            .with_allow_http(true)
            .with_skip_signature(true)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_http_connector(limits)
            .build()
            .unwrap();
        let create = async |bytes: usize| {
            let options = PutOptions::from(PutMode::Create);
            store.put_opts(&Path::from("key"), vec![7; bytes].into(), options).await
        };
        create(10).await.unwrap_err();
        create(200 << 10).await.unwrap();
    }
}
