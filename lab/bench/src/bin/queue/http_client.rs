//! A minimal HTTP client: JSON over one persistent connection, so that the benchmark measures the server and not the client.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest head of a response, in bytes.
const HEAD_BYTES: usize = 16 << 10;

/// A connection to a server on this machine.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server accepts connections");
        stream.set_nodelay(true).expect("a connected socket can be set");
        Connection { stream, buffer: Vec::new() }
    }

    /// Posts JSON, and returns the JSON of the response. Panics if the response is no success.
    pub async fn post(&mut self, path: &str, body: &str) -> Value {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).await.expect("the server reads");
        let (status, body) = self.answer().await;
        assert!((200..300).contains(&status), "POST {path} {status}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).expect("answers are JSON")
    }

    async fn answer(&mut self) -> (u16, Vec<u8>) {
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
        (status, self.buffer[head..head + length].to_vec())
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
