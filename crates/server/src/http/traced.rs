//! What CouchDB says of every request: a name for the log, and how long its body took to arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use http_body::{Frame, SizeHint};

/// A request's name: the client's own, or a random one.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");
/// Milliseconds from the first look at the body to its end.
pub(super) const BODY_TIME: HeaderName = HeaderName::from_static("x-couchdb-body-time");
/// The longest name that is taken from a client.
const MAX_ID_BYTES: usize = 100;

/// The name that the client has given to its request, if it can be used.
pub(super) fn id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    (1..=MAX_ID_BYTES).contains(&id.len()).then(|| id.to_owned())
}

/// How long a body has taken so far.
#[derive(Clone, Default)]
pub(super) struct BodyTime(Arc<AtomicU64>);

impl BodyTime {
    pub fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The same request, and how long its body takes.
pub(super) fn timed(request: Request) -> (Request, BodyTime) {
    let time = BodyTime::default();
    let request = request.map(|body| Body::new(Timed { body, began: None, time: time.clone() }));
    (request, time)
}

struct Timed {
    body: Body,
    began: Option<Instant>,
    time: BodyTime,
}

impl http_body::Body for Timed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let began = *self.began.get_or_insert_with(Instant::now);
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.time.0.store(ms, Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
