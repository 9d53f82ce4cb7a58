//! A server that responds to every request with the same document, and counts its connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// How long a test waits for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// A design document with the filter function `d/f`.
const ANSWER: &str = r#"{"_id":"_design/d","_rev":"1-a","filters":{"f":"function(doc) { return true; }"}}"#;

/// The behaviour of the server.
#[derive(Clone, Default)]
pub struct Manner {
    /// Uses TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// Accepts connections but never responds, not even with a handshake.
    pub mute: bool,
    /// Sends only half of a response's body.
    pub half: bool,
    /// Closes the connection after a response without an announcement.
    pub closes: bool,
    /// The pause between a response's bytes.
    pub pause: Option<Duration>,
}

/// The connections of a server so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Count {
    pub accepted: usize,
    pub open: usize,
    pub requests: usize,
}

/// The server; it ends when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    count: watch::Receiver<Count>,
    heads: Arc<Mutex<Vec<String>>>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(Manner::default()).await
    }

    pub async fn with(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (counted, count) = watch::channel(Count::default());
        let counted = Arc::new(counted);
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&heads);
        let accepting = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (manner, counted, seen) = (manner.clone(), Arc::clone(&counted), Arc::clone(&seen));
                counted
                    .send_modify(|count| (count.accepted, count.open) = (count.accepted + 1, count.open + 1));
                tokio::spawn(async move {
                    if manner.mute {
                        // Until the other end closes the connection.
                        let mut connection = BufReader::new(connection);
                        while connection.read_until(b'\n', &mut Vec::new()).await.is_ok_and(|read| read > 0) {
                        }
                    } else if let Some(tls) = &manner.tls {
                        if let Ok(secured) = TlsAcceptor::from(Arc::clone(tls)).accept(connection).await {
                            serve(secured, &manner, &counted, &seen).await;
                        }
                    } else {
                        serve(connection, &manner, &counted, &seen).await;
                    }
                    counted.send_modify(|count| count.open -= 1);
                });
            }
        });
        Self { address, count, heads, accepting }
    }

    /// A database on it.
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}/db", self.address.port())
    }

    pub fn count(&self) -> Count {
        *self.count.borrow()
    }

    /// The heads of all requests so far.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// Waits until the connections meet the condition.
    pub async fn wait(&self, like: impl FnMut(&Count) -> bool) -> Count {
        let mut count = self.count.clone();
        let waited = tokio::time::timeout(PATIENCE, count.wait_for(like)).await;
        *waited.unwrap_or_else(|_| panic!("the connections stay {:?}", self.count())).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    manner: &Manner,
    counted: &watch::Sender<Count>,
    heads: &Mutex<Vec<String>>,
) {
    let mut connection = BufReader::new(connection);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if connection.read_line(&mut head).await.unwrap_or_default() == 0 {
                return;
            }
        }
        heads.lock().unwrap().push(head);
        counted.send_modify(|count| count.requests += 1);
        let length = ANSWER.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{ANSWER}");
        let sent = if manner.half { &answer.as_bytes()[..answer.len() - 20] } else { answer.as_bytes() };
        let pieces = sent.chunks(if manner.pause.is_some() { 1 } else { sent.len() });
        for piece in pieces {
            if connection.write_all(piece).await.is_err() || connection.flush().await.is_err() {
                return;
            }
            if let Some(pause) = manner.pause {
                tokio::time::sleep(pause).await;
            }
        }
        if manner.closes {
            return;
        }
    }
}
