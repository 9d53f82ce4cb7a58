//! The targets of webhooks: healthy, late, slow, silent, dead and flaky ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use turnwise_testkit::Random;

/// The largest delivery, with its head, in bytes.
const DELIVERY_MAX_BYTES: usize = 4 << 20;
const BACKLOG: u32 = 1024;
/// How long a flaky receiver takes at most.
const LATE: Duration = Duration::from_secs(3);

/// What a receiver does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// It answers at once.
    Healthy,
    /// It answers with 200 after this many seconds.
    After(u64),
    /// It accepts connections and never answers.
    Silent,
    /// Its port is closed.
    Dead,
    /// It answers, refuses, or closes the connection, as chance will have it.
    Flaky,
}

/// A delivery that arrived.
pub(super) struct Arrived {
    pub body: Value,
    /// When the server says that it has signed it, in s since the Unix epoch.
    pub signed_s: Option<i64>,
}

/// A receiver that has its port, and does not listen yet.
pub(super) struct Receiver {
    pub manner: Manner,
    address: SocketAddr,
    socket: TcpSocket,
}

impl Receiver {
    /// Each host is an address of the loopback network of its own.
    pub fn bind(manner: Manner, host: u8, of: u8) -> Receiver {
        let socket = TcpSocket::new_v4().expect("a socket can be made");
        let address = SocketAddr::from(([127, 1, of, host], 0));
        socket.bind(address).expect("the loopback network has a free port");
        let address = socket.local_addr().expect("a bound socket has an address");
        Receiver { manner, address, socket }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Receives until the runtime ends. `take` gets each delivery that was answered with 200. From the time when `healed` is true, the
    /// receiver is healthy.
    pub fn start(
        self,
        seed: u64,
        healed: watch::Receiver<bool>,
        take: impl Fn(Arrived) + Send + Sync + 'static,
    ) {
        let Receiver { manner, socket, .. } = self;
        let (take, connections) = (Arc::new(take), AtomicU64::new(0));
        tokio::spawn(async move {
            if manner == Manner::Dead {
                let _ = healed.clone().wait_for(|healed| *healed).await;
            }
            let listener: TcpListener = socket.listen(BACKLOG).expect("a bound socket can listen");
            loop {
                let Ok((connection, _)) = listener.accept().await else { continue };
                let random = Random::new(seed ^ connections.fetch_add(1, Ordering::Relaxed));
                let (healed, take) = (healed.clone(), Arc::clone(&take));
                tokio::spawn(async move {
                    let serve = Connection { connection, manner, healed, random };
                    // A connection that ends is no event of its own.
                    let _ = serve.run(take.as_ref()).await;
                });
            }
        });
    }
}

struct Connection {
    connection: TcpStream,
    manner: Manner,
    healed: watch::Receiver<bool>,
    random: Random,
}

impl Connection {
    /// Takes one delivery after the other. `None` when the connection ends.
    async fn run(mut self, take: &(dyn Fn(Arrived) + Send + Sync)) -> Option<()> {
        let mut buffer = Vec::new();
        loop {
            let arrived = read(&mut self.connection, &mut buffer).await?;
            let manner = if *self.healed.borrow() { Manner::Healthy } else { self.manner };
            match manner {
                Manner::Healthy => take(arrived),
                Manner::After(seconds) => {
                    let healed = self.healed.wait_for(|healed| *healed);
                    let _ = tokio::time::timeout(Duration::from_secs(seconds), healed).await;
                    self.answer(StatusCode::OK).await?;
                    take(arrived);
                    continue;
                }
                Manner::Silent | Manner::Dead => {
                    let _ = self.healed.wait_for(|healed| *healed).await;
                    return None;
                }
                Manner::Flaky => match self.random.below(10) {
                    0..4 => take(arrived),
                    4 => {
                        self.answer(StatusCode::INTERNAL_SERVER_ERROR).await?;
                        continue;
                    }
                    5 => {
                        self.answer(StatusCode::SERVICE_UNAVAILABLE).await?;
                        continue;
                    }
                    6 => {
                        self.answer(StatusCode::TOO_MANY_REQUESTS).await?;
                        continue;
                    }
                    7 => return None,
                    8 => {
                        self.connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Le").await.ok()?;
                        return None;
                    }
                    _ => {
                        tokio::time::sleep(LATE).await;
                        take(arrived);
                    }
                },
            }
            self.answer(StatusCode::OK).await?;
        }
    }

    async fn answer(&mut self, status: StatusCode) -> Option<()> {
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        self.connection.write_all(answer.as_bytes()).await.ok()
    }
}

/// Reads a delivery. `None` if the connection ends, or what comes is none.
async fn read(connection: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Arrived> {
    let (mut end_of_head, mut length) = (None, 0);
    loop {
        if end_of_head.is_none() {
            end_of_head = buffer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
            let head = String::from_utf8_lossy(&buffer[..end_of_head.unwrap_or_default()]).into_owned();
            length = header(&head, "content-length").and_then(|text| text.parse().ok()).unwrap_or_default();
        }
        if let Some(begin) = end_of_head
            && buffer.len() >= begin + length
        {
            let head = String::from_utf8_lossy(&buffer[..begin]).into_owned();
            let body = serde_json::from_slice(&buffer[begin..begin + length]).unwrap_or(Value::Null);
            buffer.drain(..begin + length);
            let signed_s = header(&head, "x-turnwise-timestamp").and_then(|text| text.parse().ok());
            return Some(Arrived { body, signed_s });
        }
        if buffer.len() > DELIVERY_MAX_BYTES || connection.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    fields
        .map(|(field, value)| (field, value.trim()))
        .find(|(field, _)| field.eq_ignore_ascii_case(name))
        .map(|(_, v)| v)
}
