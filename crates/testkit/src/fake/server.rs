//! The HTTP side of a fake: reads requests, and sends replies chunk by chunk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::Shared;
use crate::proxy::wire::{Body, Framing, Head, Reader, write_end, write_piece};

/// How much of a request's body is kept for rules, in bytes. The rest is only counted.
const BODY_KEPT_BYTES: usize = 16 << 20;

/// A request as the fake receives it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method, in upper case.
    pub method: String,
    /// The path without the database: `/_changes`, or empty for the database itself.
    pub path: String,
    /// The parameters, decoded.
    pub query: Vec<(String, String)>,
    /// The target of the request line, as sent.
    pub target: String,
    /// Header fields, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The start of the body, up to 16 MiB.
    pub body: Bytes,
    /// The full length of the body, in bytes.
    pub body_bytes: u64,
}

impl Asked {
    /// A parameter's value.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON, or `Null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    fn new(head: &Head) -> Self {
        // Not by a URL, which would fold `.` and `..`. CouchDB does not.
        let (path, query) = head.path.split_once('?').unwrap_or((&head.path, ""));
        let url = reqwest::Url::parse(&format!("http://fake/?{query}")).expect("a query makes a URL");
        let path = path.trim_start_matches('/');
        let path = path.split_once('/').map(|(_, rest)| format!("/{rest}")).unwrap_or_default();
        Self {
            method: head.method.clone(),
            path: if path == "/" { String::new() } else { path },
            query: url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect(),
            target: head.path.clone(),
            headers: head.headers.clone(),
            body: Bytes::new(),
            body_bytes: 0,
        }
    }
}

/// A step of a reply.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends more of the body.
    Send(Bytes),
    /// Sends nothing for this long.
    Pause(Duration),
    /// Sends nothing more, and keeps the connection open.
    Hang,
    /// Closes the connection in the middle of the body.
    Break,
}

/// The response to a request: a head, and a body whose steps may take time.
pub struct Reply {
    status: u16,
    content_type: String,
    steps: BoxStream<'static, Step>,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Reply {
    /// A complete JSON response.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::steps(status, [Step::Send(body.to_string().into())])
    }

    /// An error in CouchDB's form.
    pub fn error(status: u16, error: &str) -> Self {
        Self::json(status, &serde_json::json!({ "error": error, "reason": "as the test wants it" }))
    }

    /// A JSON body in steps.
    pub fn steps<I>(status: u16, steps: I) -> Self
    where
        I: IntoIterator<Item = Step>,
        I::IntoIter: Send + 'static,
    {
        Self::stream(status, stream::iter(steps).boxed())
    }

    /// A JSON body in steps that come from a stream.
    pub fn stream(status: u16, steps: BoxStream<'static, Step>) -> Self {
        Self { status, content_type: "application/json".to_owned(), steps }
    }

    /// The same reply, but the connection ends after this many bytes.
    pub fn cut(mut self, bytes: usize) -> Self {
        let steps = self.steps.scan(Some(bytes), |left, step| {
            let next = match (*left, step) {
                (None, _) => None,
                (Some(0), _) => {
                    *left = None;
                    Some(Step::Break)
                }
                (Some(room), Step::Send(piece)) => {
                    *left = Some(room.saturating_sub(piece.len()));
                    Some(Step::Send(piece.slice(..piece.len().min(room))))
                }
                (_, step) => Some(step),
            };
            std::future::ready(next)
        });
        self.steps = steps.boxed();
        self
    }

    /// The same reply after a pause.
    pub fn after(mut self, pause: Duration) -> Self {
        self.steps = stream::once(std::future::ready(Step::Pause(pause))).chain(self.steps).boxed();
        self
    }

    /// The same reply with another content type.
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.content_type = content_type.to_owned();
        self
    }
}

/// Accepts connections forever. Open connections end with this future.
pub(super) async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((connection, _)) = accepted else { continue };
                let _ = connection.set_nodelay(true);
                connections.spawn(serve(connection, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection. An error means that the client has disconnected.
async fn serve(connection: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let (reader, mut writer) = connection.into_split();
    let mut reader = Reader::new(reader);
    while let Some(head) = reader.head(true).await? {
        let mut asked = Asked::new(&head);
        if head.header("expect").is_some() {
            writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let mut kept = Vec::new();
        let mut body = Body::new(head.request_framing()?);
        while let Some(piece) = body.next(&mut reader).await? {
            asked.body_bytes += piece.len() as u64;
            let room = BODY_KEPT_BYTES.saturating_sub(kept.len());
            kept.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        asked.body = kept.into();
        let mut reply = shared.reply(asked);
        let head = format!(
            "HTTP/1.1 {} Fake\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
            reply.status, reply.content_type
        );
        let mut head_is_due = Some(head);
        let answer = async {
            while let Some(step) = reply.steps.next().await {
                match step {
                    Step::Send(piece) => {
                        if let Some(head) = head_is_due.take() {
                            writer.write_all(head.as_bytes()).await?;
                        }
                        write_piece(&mut writer, Framing::Chunked, &piece).await?;
                    }
                    Step::Pause(pause) => tokio::time::sleep(pause).await,
                    Step::Hang => std::future::pending::<()>().await,
                    Step::Break => return Ok(false),
                }
            }
            if let Some(head) = head_is_due.take() {
                writer.write_all(head.as_bytes()).await?;
            }
            write_end(&mut writer, Framing::Chunked).await?;
            Ok::<_, io::Error>(true)
        };
        tokio::select! {
            biased;
            goes_on = answer => if !goes_on? { return Ok(()) },
            gone = reader.closed() => return gone,
        }
    }
    Ok(())
}
