//! A fake server whose answers the test chooses.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use turnwise_client::Client;

/// Far more than anything here takes: only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Value,
    reply: oneshot::Sender<Option<String>>,
}

impl Request {
    pub fn answer(self, status: u16, body: &Value) {
        self.raw(status, "application/json", &body.to_string());
    }

    pub fn refuse(self, status: u16, code: &str) {
        self.answer(status, &json!({ "error": code, "reason": "because", "hint": "do otherwise" }));
    }

    pub fn raw(self, status: u16, content_type: &str, body: &str) {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
        );
        let _ = self.reply.send(Some(format!("{head}{body}")));
    }

    /// Closes the connection without an answer.
    pub fn lose(self) {
        let _ = self.reply.send(None);
    }

    /// Waits until the client has given up on the request.
    pub async fn given_up(mut self) {
        tokio::time::timeout(PATIENCE, self.reply.closed()).await.expect("the client still waits");
    }
}

pub struct Fake {
    pub url: String,
    requests: mpsc::UnboundedReceiver<Request>,
}

impl Fake {
    pub async fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let sender = sender.clone();
                tokio::spawn(async move { serve(stream, sender).await });
            }
        });
        Fake { url, requests }
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url).unwrap()
    }

    /// The next request, to any path.
    pub async fn next(&mut self) -> Request {
        tokio::time::timeout(PATIENCE, self.requests.recv()).await.expect("no request comes").unwrap()
    }

    /// The next request to a path with this suffix. Answers pings that come before it.
    pub async fn expect(&mut self, end: &str) -> Request {
        loop {
            let request = self.next().await;
            if request.path.ends_with(end) {
                return request;
            }
            assert!(request.path.ends_with("/ping"), "not {end}: {request:?}");
            request.answer(200, &json!({ "cancel": [] }));
        }
    }

    /// Whether no request is waiting to be read.
    pub fn is_idle(&mut self) -> bool {
        self.requests.try_recv().is_err()
    }
}

async fn serve(stream: TcpStream, sender: mpsc::UnboundedSender<Request>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
        let (method, rest) = line.split_once(' ')?;
        let (method, path) = (method.to_owned(), rest.split_once(' ')?.0.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.ok()?;
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let (reply, mut replied) = oneshot::channel();
        sender.send(Request { method, path, headers, body, reply }).ok()?;
        let answer = tokio::select! {
            answer = &mut replied => answer.ok()?,
            // The client sends nothing more before the answer: if a read returns, the client has closed the connection.
            _ = stream.read_u8() => return None,
        };
        stream.write_all(answer?.as_bytes()).await.ok()?;
    }
}
