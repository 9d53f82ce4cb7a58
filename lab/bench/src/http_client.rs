//! A minimal HTTP client: JSON over one persistent connection, so that the benchmark measures the server and not the client.

use std::ops::Range;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The largest head of a response, in bytes.
const HEAD_BYTES: usize = 16 << 10;

/// The variable with the token to send, if one is needed.
pub const TOKEN: &str = "BENCH_TOKEN";
/// The variable with the file of the server's certificate, if it speaks TLS.
pub const CERTIFICATE: &str = "BENCH_CERTIFICATE";

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection to a server on this machine.
pub struct Connection {
    stream: Box<dyn Io>,
    /// The header with the token, as a line.
    authorization: String,
    buffer: Vec<u8>,
}

/// TLS with the one certificate that is trusted.
fn tls(file: &str) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(file).expect("the benchmark has written it");
    roots.add(certificate).expect("the benchmark has made it");
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config =
        config.expect("the provider has these versions").with_root_certificates(roots).with_no_client_auth();
    Arc::new(config).into()
}

impl Connection {
    /// Connects to this loopback port.
    pub async fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server accepts connections");
        stream.set_nodelay(true).expect("a connected socket can be set");
        let stream: Box<dyn Io> = match std::env::var(CERTIFICATE) {
            Ok(file) => {
                let name = ServerName::try_from("localhost").expect("it is a name");
                Box::new(tls(&file).connect(name, stream).await.expect("the certificate is the server's"))
            }
            Err(_) => Box::new(stream),
        };
        let authorization = std::env::var(TOKEN).map(|token| format!("Authorization: Bearer {token}\r\n"));
        Connection { stream, authorization: authorization.unwrap_or_default(), buffer: Vec::new() }
    }

    /// Posts JSON, and returns what is read of the response. Panics if the response is no success.
    pub async fn post<T: DeserializeOwned>(&mut self, path: &str, body: &str) -> T {
        self.send("POST", path, body).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sends a request, and returns what is read of the response.
    ///
    /// # Errors
    /// The response, if it is no success or not what is expected.
    pub async fn send<T: DeserializeOwned>(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<T, String> {
        let (length, authorization) = (body.len(), &self.authorization);
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{authorization}Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).await.expect("the server reads");
        let (status, body) = self.answer().await;
        let body = &self.buffer[body];
        let wrong = |why: &str| format!("{method} {path}: {status}{why}: {}", String::from_utf8_lossy(body));
        if !(200..300).contains(&status) {
            return Err(wrong(""));
        }
        serde_json::from_slice(body).map_err(|error| wrong(&format!(", {error}")))
    }

    /// The status of the next response, and where its body is in the buffer.
    async fn answer(&mut self) -> (u16, Range<usize>) {
        self.buffer.clear();
        let (status, head, length) = loop {
            assert!(self.buffer.len() < HEAD_BYTES, "the head of an answer is small");
            self.read().await;
            if let Some(found) = parse(&self.buffer) {
                break found;
            }
        };
        while self.buffer.len() < head + length {
            self.read().await;
        }
        (status, head..head + length)
    }

    async fn read(&mut self) {
        let read = self.stream.read_buf(&mut self.buffer).await.expect("the server answers");
        assert!(read > 0, "the server keeps its connections");
    }
}

/// The status, the length of the head, and the length of the body. `None` while the head is incomplete.
fn parse(bytes: &[u8]) -> Option<(u16, usize, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes).expect("the server speaks HTTP") else {
        return None;
    };
    let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
    Some((response.code?, head, length.expect("answers here have a length")))
}
