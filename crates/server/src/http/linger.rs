//! Bodies that nobody wants are still taken from the client, for a while.
//!
//! A request is often refused by its head: its path, its method, its declared length. Most clients send the whole body
//! before they read the answer; a server that closes the connection with bytes unread resets it, and the client sees a
//! broken connection in place of the reason. So what is left of a body is read and dropped, within bounds.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header;
use bytes::Bytes;
use futures::StreamExt;
use http_body::{Frame, SizeHint};

/// Bytes of an unwanted body that are read and dropped at most; then the connection is closed.
const MAX_DROPPED_BYTES: usize = 256 << 20;
/// And for how long.
const LINGER: Duration = Duration::from_secs(10);

/// A request whose body is read to its end even if its handler does not.
pub(super) fn lingering(request: Request) -> Request {
    // Who asks before sending is told the answer instead.
    if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
        return request;
    }
    request.map(|body| Body::new(Lingering(body)))
}

struct Lingering(Body);

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.0.is_end_stream() {
            let rest = std::mem::take(&mut self.0);
            runtime.spawn(async move { tokio::time::timeout(LINGER, drop_bytes(rest)).await });
        }
    }
}

async fn drop_bytes(body: Body) {
    let mut pieces = body.into_data_stream();
    let mut bytes = 0;
    // An error is a connection that is gone.
    while let Some(Ok(piece)) = pieces.next().await {
        bytes += piece.len();
        if bytes > MAX_DROPPED_BYTES {
            return;
        }
    }
}
