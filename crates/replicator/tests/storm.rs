//! A thousand replications that start at the same time, between two servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::request;
use futures::future;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use turnwise_replicator::replicate;

/// The most concurrent requests to a server, without feeds.
const BOUND: usize = 256;

/// The load of a server.
#[derive(Default)]
struct Load {
    connections: AtomicUsize,
    requests: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

/// A server with empty databases that delays each response.
struct Server {
    address: SocketAddr,
    load: Arc<Load>,
}

impl Server {
    fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(2_048).unwrap();
        let (address, load) = (listener.local_addr().unwrap(), Arc::<Load>::default());
        let shared = Arc::clone(&load);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(connection, Arc::clone(&shared)));
            }
        });
        Self { address, load }
    }

    fn most_in_flight(&self) -> usize {
        self.load.most_in_flight.load(Ordering::Relaxed)
    }
}

async fn serve(connection: TcpStream, load: Arc<Load>) {
    let mut connection = BufReader::new(connection);
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while connection.read_line(&mut line).await.unwrap_or(0) > 2 {
            head.push_str(&std::mem::take(&mut line).to_lowercase());
        }
        if head.is_empty() {
            return;
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let mut body = vec![0; length.trim().parse().unwrap()];
        if connection.read_exact(&mut body).await.is_err() {
            return;
        }
        load.requests.fetch_add(1, Ordering::Relaxed);
        let feed = head.contains("/_changes");
        if !feed {
            let now = load.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
            load.most_in_flight.fetch_max(now, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (status, answer) = match head.split(' ').nth(1).unwrap_or_default() {
            _ if head.starts_with("put") => (201, json!({"ok": true, "rev": "0-1"})),
            path if path.contains("/_local/") => (404, json!({"error": "not_found", "reason": "missing"})),
            path if path.contains("/_changes") => (200, json!({"results": [], "last_seq": "0"})),
            "/_session" => (404, json!({"error": "not_found"})),
            _ => (200, json!({"update_seq": "0", "instance_start_time": "0"})),
        };
        if !feed {
            load.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        let answer = answer.to_string();
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        if connection.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_thousand_replications_start_at_once_and_no_server_gets_more_than_it_can_take() {
    let (source, target) = (Server::start(), Server::start());
    let context = crate::common::context();
    let replications: Vec<_> = (0..1_000)
        .map(|nth| {
            let url = |server: &Server| format!("http://u:p@{}/db{nth}", server.address);
            request(&url(&source), &url(&target), json!({}))
        })
        .collect();
    let started = std::time::Instant::now();
    let runs = replications.iter().map(|replication| replicate(replication, &context));
    for report in future::join_all(runs).await {
        assert!(report.unwrap().ok);
    }
    for (name, server) in [("source", &source), ("target", &target)] {
        let connections = server.load.connections.load(Ordering::Relaxed);
        let requests = server.load.requests.load(Ordering::Relaxed);
        let most = server.most_in_flight();
        println!("{name}: {requests} requests, {most} at once, {connections} connections");
        assert!(most <= BOUND, "{name}: {most} requests at once");
        // The places are used; otherwise the limit would prove nothing.
        assert!(most > BOUND / 4, "{name}: {most} requests at once");
    }
    println!("{:?}", started.elapsed());
}
