//! The listener: accepts connections, and limits each of them.

use std::fmt::Display;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwise_telemetry::ThrottledLog;

use super::counted::{Counted, Numbers};
use super::heads::{Counting, Heads};
use super::tls::{self, Tls};
use crate::access::{Peer, network};

/// How long a connection may take to send the head of its first request.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection may be idle before the end of the head of its next request. Clients keep idle connections for up to a
/// minute or so, and would send a request into one that this server has just closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// The part of all connections that one address may have: three in four.
const OF_ONE_ADDRESS: (usize, usize) = (3, 4);
/// Largest head of a request: a URL may carry a list of keys.
const MAX_HEAD_BYTES: usize = 256 << 10;
/// The pause after a failed accept: a shortage of file descriptors passes by itself.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long active responses may take once the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until `stop` is cancelled, then completes active responses and returns. While `most` connections are open,
/// further ones wait to be accepted.
#[boxed]
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    most: usize,
    router: Router,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(most));
    let most_of_one = (most * OF_ONE_ADDRESS.0 / OF_ONE_ADDRESS.1).max(1) as u64;
    let addresses = Numbers::default();
    let heads = Heads::default();
    let mut connections = JoinSet::new();
    while let Some((stream, address, permit)) = accept(&listener, &room, &stop).await {
        let Some(of_address) = enter(&addresses, network(address), most_of_one) else {
            tracing::debug!(%address, "a connection was closed: its address has too many");
            continue;
        };
        let (router, tls, heads, stop) = (router.clone(), tls.clone(), heads.clone(), stop.clone());
        connections.spawn(async move {
            serve_stream(stream, address, tls, router, heads, stop).await;
            drop((permit, of_address));
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained =
        tokio::time::timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!(connections = connections.len(), "closed the connections that did not end in time");
        connections.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, IpAddr, tokio::sync::OwnedSemaphorePermit)> {
    let accepted = async {
        let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match listener.accept().await {
                Ok((stream, address)) => return (stream, address.ip().to_canonical(), permit),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => None,
        accepted = accepted => Some(accepted),
    }
}

async fn serve_stream(
    stream: TcpStream,
    address: IpAddr,
    tls: Option<Tls>,
    router: Router,
    heads: Heads,
    stop: CancellationToken,
) {
    // Responses are written in large pieces, so waiting for more data would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let Some(tls) = tls else {
        let peer = Peer { address, tls: false, names: None };
        return serve_connection(stream, peer, router, heads, stop).await;
    };
    let handshake = tokio::select! {
        () = stop.cancelled() => return,
        handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream)) => handshake,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let names = certificate.map(|certificate| tls::names(certificate).into());
            let peer = Peer { address, tls: true, names };
            serve_connection(stream, peer, router, heads, stop).await;
        }
        // A port scanner, or a load balancer that only connects.
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            tracing::debug!(%address, "a connection ended before its TLS handshake");
        }
        Ok(Err(error)) => refused(address, &error),
        Err(_) => refused(address, &format_args!("it was not completed within {HANDSHAKE_TIMEOUT:?}")),
    }
}

fn refused(address: IpAddr, problem: &dyn Display) {
    static LINES: ThrottledLog = ThrottledLog::new();
    if let Some(left_out) = LINES.line() {
        tracing::info!(%address, left_out, "a TLS handshake has failed: {problem}");
    }
}

fn unfinished(address: IpAddr) {
    static LINES: ThrottledLog = ThrottledLog::new();
    if let Some(left_out) = LINES.line() {
        tracing::info!(%address, left_out, "a connection was closed: unfinished heads of requests took too much memory, and its was the oldest");
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    router: Router,
    heads: Heads,
    stop: CancellationToken,
) {
    let router = TowerToHyperService::new(router);
    let address = peer.address;
    let head = heads.connection(network(address));
    let has_begun = Arc::new(AtomicBool::new(false));
    let (begun, of_request) = (has_begun.clone(), head.clone());
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        begun.store(true, Relaxed);
        let reading = of_request.complete();
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(reading.clone());
        let response = router.call(request);
        async move {
            let response = response.await;
            drop(reading);
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(Counting::new(stream, head.clone())), service);
    let mut connection = pin!(connection);
    let served = async {
        let may_last = tokio::select! {
            ended = connection.as_mut() => return ended,
            () = stop.cancelled() => true,
            () = tokio::time::sleep(FIRST_HEAD_TIMEOUT) => has_begun.load(Relaxed),
        };
        if !may_last {
            tracing::debug!("a connection was closed: it has sent no request");
            return Ok(());
        }
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    // The connection is dropped, and thereby closed, when this returns.
    tokio::select! {
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        }
        () = head.must_close() => unfinished(address),
    }
}

/// A connection of an address, unless it has too many.
fn enter(addresses: &Numbers<IpAddr>, address: IpAddr, most: u64) -> Option<Counted<IpAddr>> {
    let (connection, open) = addresses.add(address, 1);
    (open <= most).then_some(connection)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_address_does_not_take_all_connections() {
        let addresses = Numbers::default();
        let enter = |address| super::enter(&addresses, address, 2);
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let first = enter(one);
        let second = enter(one);
        assert!(first.is_some() && second.is_some() && enter(one).is_none());
        assert!(enter(other).is_some());
        drop(first);
        assert!(enter(one).is_some());
        drop(second);
        assert!(addresses.is_empty(), "an address without connections is forgotten");
    }
}
