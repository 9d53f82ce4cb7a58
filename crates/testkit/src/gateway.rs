//! A gateway that does not wait for answers.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// How long [`Gateway::wait_for_requests`] waits before it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a gateway does with a request that is not answered for too long, or whose answer pauses for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// It answers with this status and HTML, also in the middle of another answer.
    Status(u16),
    /// It closes the connection.
    Close,
}

/// An HTTP/1.1 gateway in front of one server, with a timeout between two reads from it, as nginx's `proxy_read_timeout`. It serves one
/// request per connection, and ends when it is dropped.
#[derive(Debug)]
pub struct Gateway {
    url: String,
    requests: watch::Sender<usize>,
    listening: JoinHandle<()>,
}

impl Gateway {
    /// A gateway in front of the server at `host:port`, which cuts after this time without data from it.
    pub async fn before(address: &str, timeout: Duration, cut: Cut) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let requests = watch::Sender::new(0);
        let (counted, address) = (requests.clone(), address.to_owned());
        let listening = tokio::spawn(async move {
            // The set is dropped with this task, and so are its connections.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        // A client that is gone already needs no connection.
                        let Ok((client, _)) = accepted else { continue };
                        counted.send_modify(|count| *count += 1);
                        let address = address.clone();
                        connections.spawn(async move { serve(client, &address, timeout, cut).await });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Gateway { url, requests, listening }
    }

    /// `http://127.0.0.1:port`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until this many requests have come.
    pub async fn wait_for_requests(&self, count: usize) {
        let mut requests = self.requests.subscribe();
        let came = tokio::time::timeout(PATIENCE, requests.wait_for(|came| *came >= count)).await;
        let Ok(Ok(_)) = came else { panic!("only {} of {count} requests came", *self.requests.borrow()) };
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn serve(mut client: TcpStream, address: &str, timeout: Duration, cut: Cut) -> std::io::Result<()> {
    let mut server = TcpStream::connect(address).await?;
    let mut buffer = vec![0; 64 << 10];
    let mut head = Vec::new();
    let end = loop {
        let read = client.read(&mut buffer).await?;
        head.extend_from_slice(&buffer[..read]);
        match head.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(end) => break end,
            None if read == 0 => return Ok(()),
            None => {}
        }
    };
    server.write_all(&head[..end]).await?;
    server.write_all(b"\r\nconnection: close").await?;
    server.write_all(&head[end..]).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let answering = async {
        loop {
            match tokio::time::timeout(timeout, from_server.read(&mut buffer)).await {
                Ok(Ok(0)) => return Ok(()),
                Ok(read) => to_client.write_all(&buffer[..read?]).await?,
                Err(_) => break,
            }
        }
        if let Cut::Status(status) = cut {
            let head = format!("HTTP/1.1 {status} Cut\r\ncontent-type: text/html\r\ncontent-length: 6\r\n");
            to_client.write_all(format!("{head}connection: close\r\n\r\n<html>").as_bytes()).await?;
        }
        Ok(())
    };
    tokio::select! {
        answered = answering => answered,
        // The rest of the request's body. A client that closes its connection ends the request.
        sent = tokio::io::copy(&mut from_client, &mut to_server) => sent.map(drop),
    }
}
