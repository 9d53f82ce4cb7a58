//! Unread request bodies are drained for a while.
//!
//! The server often rejects a request by its head: its path, its method, its declared length. Most clients send the
//! whole body before they read the response. If the server closed the connection with unread bytes, it would reset the
//! connection. The client would then see a connection error instead of the reason. So the server reads and drops the
//! rest of a body, within limits.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header;
use bytes::Bytes;
use futures::StreamExt;
use http_body::{Frame, SizeHint};

use super::heads::Reading;

/// Maximum number of bytes of an unread body that are dropped. Beyond it the server closes the connection.
const MAX_DROPPED_BYTES: usize = 256 << 20;
/// Longest time for which an unread body is dropped.
const LINGER: Duration = Duration::from_secs(10);

/// Wraps a request so that its body is drained, even if the handler does not read it.
pub fn lingering(request: Request) -> Request {
    // A client that sends `Expect` waits for the response before it sends the body.
    if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
        return request;
    }
    // Until its end, what arrives is not the head of another request.
    let reading = request.extensions().get().cloned();
    request.map(|body| Body::new(Lingering(body, reading)))
}

struct Lingering(Body, Option<Reading>);

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
            let (rest, reading) = (std::mem::take(&mut self.0), self.1.take());
            runtime.spawn(async move {
                let _ = tokio::time::timeout(LINGER, drop_bytes(rest)).await;
                drop(reading);
            });
        }
    }
}

async fn drop_bytes(body: Body) {
    let mut pieces = body.into_data_stream();
    let mut bytes = 0;
    // On an error the connection is gone.
    while let Some(Ok(piece)) = pieces.next().await {
        bytes += piece.len();
        if bytes > MAX_DROPPED_BYTES {
            return;
        }
    }
}
