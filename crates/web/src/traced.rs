//! The headers that CouchDB sends with every response: a request id, and the time that the body took to arrive. The trace that a client
//! states.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use http_body::{Frame, SizeHint};
use turnwise_queue::trace::Traceparent;

/// A request's id: the client's own, or a random one.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");
/// Milliseconds from the first read of the body to its end.
pub const BODY_TIME: HeaderName = HeaderName::from_static("x-couchdb-body-time");
/// Longest id that a client may choose, in bytes.
const MAX_ID_BYTES: usize = 100;

/// The client's id for its request, if it is valid.
pub fn id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    (1..=MAX_ID_BYTES).contains(&id.len()).then(|| id.to_owned())
}

/// The trace that a request belongs to, as W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace that the client states. Several statements are none.
pub fn parent(headers: &HeaderMap) -> Traceparent {
    let mut stated = headers.get_all(TRACEPARENT).iter();
    match (stated.next().map(|value| value.to_str()), stated.next()) {
        (Some(Ok(text)), None) => Traceparent::parse(text),
        _ => Traceparent::Unknown,
    }
}

/// The time that a body has taken so far.
#[derive(Clone, Default)]
pub struct BodyTime(Arc<AtomicU64>);

impl BodyTime {
    /// The time in ms.
    pub fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The same request, and the time of its body.
pub fn timed(request: Request) -> (Request, BodyTime) {
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
