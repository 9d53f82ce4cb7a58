//! The result of a request: a response that is still arriving, or an error with its context.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, RETRY_AFTER};
use http::{Method, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use tokio::time::Instant;

use crate::auth::Ticket;
use crate::deadline::Deadline;
use crate::error::{Error, Fault, PeerError};
use crate::gate::Permit;
use crate::peer::{Inner, Peer};
use crate::room::{MemoryPermits, Use};
use crate::secret::CUT;
use crate::text::{PeerText, beginning};
use crate::trickle::{self, Trickle};

/// The most bytes that are read of an error's body.
const ERROR_BODY_BYTES: usize = 64 * 1024;

/// The destination of a request; adds this context to errors.
#[derive(Clone)]
pub(crate) struct Destination {
    pub peer: Peer,
    pub method: Method,
    pub path: String,
}

impl Destination {
    pub fn fault(&self, mut fault: Fault) -> Error {
        let inner = &*self.peer.0;
        let clean = |text: &mut String| *text = self.peer.clean(text);
        match &mut fault {
            Fault::Unreachable(cause)
            | Fault::BrokeOff(cause)
            | Fault::Malformed(cause)
            | Fault::Unexpected(cause)
            | Fault::NotWritten(cause) => clean(cause),
            Fault::Status { error, reason, .. } => [error, reason].into_iter().for_each(clean),
            Fault::Silent(_) | Fault::TooLong(_) | Fault::TooSlow { .. } => {}
            Fault::TooLarge(_) | Fault::Replaced | Fault::LoggedOut => {}
        }
        let path = self.path.split('?').next().unwrap_or_default();
        Error::Peer(Box::new(PeerError {
            side: inner.side,
            method: self.method.to_string(),
            url: format!("{}{path}", inner.shown),
            fault,
        }))
    }

    pub fn transport(&self, error: &legacy::Error) -> Error {
        self.fault(transport_fault(error))
    }
}

/// Why a connection was not opened, or broke off.
pub(crate) fn transport_fault(error: &legacy::Error) -> Fault {
    let fault = if error.is_connect() { Fault::Unreachable } else { Fault::BrokeOff };
    fault(causes(error))
}

/// The messages of the error's innermost causes.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut cause = Some(error);
    while let Some(inner) = cause {
        words.push(inner.to_string());
        cause = inner.source();
    }
    // The outer layers only name themselves ("client error (Connect)"); the last two state what happened.
    words.dedup();
    let tell = words.len().saturating_sub(2);
    words[tell..].join(": ")
}

/// A response whose head has arrived and whose body has not.
pub struct Answer {
    pub(crate) destination: Destination,
    pub(crate) response: http::Response<Incoming>,
    /// The silence after which it has broken off.
    pub(crate) timeout: Duration,
    /// When it must have ended.
    pub(crate) deadline: Deadline,
    /// What its reader reads.
    pub(crate) reads: Use,
    /// The memory places that it holds, if it is large.
    pub(crate) places: MemoryPermits,
    /// The check of its minimum progress.
    pub(crate) trickle: Trickle,
    /// The login of its request.
    pub(crate) ticket: Ticket,
    /// Kept as long as the connection is in use.
    pub(crate) _permit: Option<Permit>,
}

#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(default, deserialize_with = "present")]
    error: Option<PeerText>,
    #[serde(default, deserialize_with = "present")]
    reason: Option<PeerText>,
}

/// A member that is there, even if it is `null`: the reason of a validation function may be that.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PeerText>, D::Error> {
    PeerText::deserialize(deserializer).map(Some)
}

impl ErrorBody {
    /// Whether it has the form of CouchDB's errors.
    fn is_of_couchdb(&self) -> bool {
        self.error.as_ref().is_some_and(|error| !error.0.is_empty()) && self.reason.is_some()
    }
}

impl Answer {
    /// A header of the response, if it is text.
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The login that its request carried.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// When the request was sent, after all waiting on this side.
    pub fn sent_at(&self) -> Instant {
        self.deadline.began
    }

    /// Waits until this many bytes of the response may be held.
    pub async fn hold(&mut self, bytes: usize) -> Result<(), Error> {
        let Inner { client, flow, .. } = &*self.destination.peer.0;
        flow.excused(client.0.room.grow(self.reads, &mut self.places, bytes)).await
    }

    /// Releases the memory if no more than this of the response is held any more.
    pub fn release(&mut self, bytes: usize) {
        if bytes <= self.reads.free_bytes() {
            self.places = MemoryPermits::default();
        }
    }

    /// The largest document that is copied.
    pub fn max_document_bytes(&self) -> usize {
        self.destination.peer.max_document_bytes()
    }

    /// Adds the context of this response to a fault.
    pub fn fault(&self, fault: Fault) -> Error {
        self.destination.fault(fault)
    }

    /// The error of a response that violates the protocol.
    pub fn malformed(&self, cause: impl std::fmt::Display) -> Error {
        self.fault(Fault::Malformed(cause.to_string()))
    }

    /// Sets whether the response may be idle: it is a feed, and everything that it has begun is complete.
    pub fn rest(&mut self, rests: bool) {
        self.trickle.rest(rests);
    }

    /// The next piece of the body; `None` at its proper end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let timeout = self.timeout;
        self.trickle.waits(Instant::now());
        loop {
            let body = self.response.body_mut();
            let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            let next = self.deadline.before(tokio::time::timeout(timeout, frame)).await;
            match next.map_err(|fault| self.fault(fault))? {
                Err(_) => return Err(self.fault(Fault::Silent(timeout))),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(self.fault(Fault::BrokeOff(causes(&error)))),
                Ok(Some(Ok(frame))) => {
                    // Trailers carry no information here.
                    if let Ok(chunk) = frame.into_data() {
                        let Inner { flow, settings, .. } = &*self.destination.peer.0;
                        flow.moved(trickle::substance(&chunk, settings.minimum_progress));
                        let enough = self.trickle.came(&chunk, Instant::now());
                        enough.map_err(|fault| self.fault(fault))?;
                        return Ok(Some(chunk));
                    }
                }
            }
        }
    }

    /// The whole body. An error if it has more than `limit_bytes`.
    pub async fn bytes(&mut self, limit_bytes: usize) -> Result<Vec<u8>, Error> {
        let body = self.bytes_up_to(limit_bytes).await?;
        body.ok_or_else(|| {
            self.fault(Fault::Unexpected(format!("an answer of more than {limit_bytes} bytes")))
        })
    }

    /// The whole body; `None` if it has more than `limit_bytes`.
    pub async fn bytes_up_to(&mut self, limit_bytes: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > limit_bytes {
                return Ok(None);
            }
            self.hold(body.len() + chunk.len()).await?;
            body.extend_from_slice(&chunk);
        }
        Ok(Some(body))
    }

    /// The whole body as JSON.
    pub async fn json<T: DeserializeOwned>(mut self, limit_bytes: usize) -> Result<T, Error> {
        let body = self.bytes(limit_bytes).await?;
        self.parsed(&body)
    }

    /// The whole body as JSON; `None` if it has more than `limit_bytes`.
    pub async fn json_up_to<T: DeserializeOwned>(mut self, limit_bytes: usize) -> Result<Option<T>, Error> {
        let body = self.bytes_up_to(limit_bytes).await?;
        body.map(|body| self.parsed(&body)).transpose()
    }

    fn parsed<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body)
            .map_err(|cause| self.malformed(format!("{cause} in {}", beginning(body))))
    }

    /// The error of a response with an error status, without the texts of its body, which may repeat what was sent.
    pub(crate) async fn into_bare_error(self, status: StatusCode) -> Error {
        let mut bare = self.into_error(status).await;
        if let Error::Peer(peer) = &mut bare
            && let Fault::Status { error, reason, .. } = &mut peer.fault
        {
            (*error, *reason) = (name(status), String::new());
        }
        bare
    }

    pub(crate) async fn into_error(mut self, status: StatusCode) -> Error {
        let retry_after = retry_after(self.response.headers());
        let mut body = Vec::new();
        while body.len() <= ERROR_BODY_BYTES {
            match self.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                // The status is enough. The mark shows that the body may end within a secret.
                Err(_) => {
                    body.extend_from_slice(CUT.encode_utf8(&mut [0; 4]).as_bytes());
                    break;
                }
            }
        }
        let parsed = serde_json::from_slice::<ErrorBody>(&body);
        let of_couchdb = parsed.as_ref().is_ok_and(ErrorBody::is_of_couchdb);
        let (error, reason) = match parsed {
            Ok(ErrorBody { error, reason }) => (error, reason.unwrap_or_default().0),
            Err(_) => (None, beginning(&body)),
        };
        let error = error.filter(|error| !error.0.is_empty()).map_or_else(|| name(status), |error| error.0);
        self.fault(Fault::Status { status: status.as_u16(), error, reason, of_couchdb, retry_after })
    }
}

/// The name of a status, in the style of CouchDB's errors.
fn name(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or("error").to_lowercase().replace(' ', "_")
}

/// How long the peer asks to wait, if it states that in seconds.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
