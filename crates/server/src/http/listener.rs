//! The listener: accepts connections, and limits each of them.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::access::Peer;

/// How long a connection may take to send the head of its next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Largest head of a request: a URL may carry a list of keys.
const MAX_HEAD_BYTES: usize = 256 << 10;
/// The pause after a failed accept: a shortage of file descriptors passes by itself.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long active responses may take once the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until `stop` is cancelled, then completes active responses and returns. While `most` connections are open,
/// further ones wait to be accepted.
pub(crate) async fn serve(listener: TcpListener, most: usize, router: Router, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    while let Some((stream, permit)) = accept(&listener, &room, &stop).await {
        let (router, stop) = (router.clone(), stop.clone());
        connections.spawn(async move {
            serve_connection(stream, router, stop).await;
            drop(permit);
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
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let accepted = async {
        let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, permit),
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

async fn serve_connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    // Responses are written in large pieces, so waiting for more data would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let address = stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
    let peer = Peer { address, tls: false };
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
