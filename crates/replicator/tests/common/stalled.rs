//! A target that responds to every request, and then stops reading in the middle of an upload.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

/// The target; it ends when it is dropped.
pub struct Stalled {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Stalled {
    /// Starts to listen.
    pub fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // Data in the kernel's buffers is not held by the replicator, so these buffers are small.
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(64).unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection));
            }
        });
        Self { address, accepting }
    }

    /// A database on it.
    pub fn url(&self) -> String {
        format!("http://{}/db", self.address)
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Responds to requests until one is an upload of attachments, of which it reads only the head.
async fn serve(connection: TcpStream) {
    let mut connection = BufReader::new(connection);
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while connection.read_line(&mut line).await.unwrap() > 2 {
            head.push_str(&std::mem::take(&mut line).to_lowercase());
        }
        if head.is_empty() {
            return;
        }
        if head.contains("multipart/related") {
            std::future::pending::<()>().await;
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let mut body = vec![0; length.trim().parse().unwrap()];
        connection.read_exact(&mut body).await.unwrap();
        let (status, answer) = if head.starts_with("get /db/_local/") {
            (404, json!({"error": "not_found", "reason": "missing"}))
        } else if head.starts_with("post /db/_revs_diff") {
            (200, all_missing(&body))
        } else {
            (200, json!({"update_seq": "0"}))
        };
        let answer = answer.to_string();
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        connection.write_all(answer.as_bytes()).await.unwrap();
    }
}

fn all_missing(body: &[u8]) -> Value {
    let asked: serde_json::Map<String, Value> = serde_json::from_slice(body).unwrap();
    asked.into_iter().map(|(id, revs)| (id, json!({"missing": revs}))).collect()
}
