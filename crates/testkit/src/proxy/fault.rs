//! The faults of a peer, and the requests that they apply to.

use std::fmt;
use std::sync::Arc;

use super::Request;

/// What the proxy does with a request instead of forwarding it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault: request and response stream through unchanged.
    None,
    /// The port is closed: connections are refused, and open ones end. This applies to the whole proxy, independent of the
    /// rule's condition. The next [`FaultProxy::set`](super::FaultProxy::set) opens the same port again.
    Down,
    /// The connection is reset (TCP RST) after this many bytes of the response's body, or before its last byte. With 0, it
    /// is reset before any response.
    Reset {
        /// Bytes of the body that still arrive.
        after: u64,
    },
    /// The response and its connection end after this many bytes of the body, or before its last byte. They end properly
    /// (TCP FIN), so that only the framing shows that something is missing.
    Truncated {
        /// Bytes of the body that still arrive.
        after: u64,
    },
    /// The head of the response and this many bytes of its body arrive (never its last byte). Then nothing more arrives,
    /// and the connection stays open. A response without a body does not arrive at all.
    HangMidBody {
        /// Bytes of the body that still arrive.
        after: u64,
    },
    /// The proxy responds with this status and an error with CouchDB's text. The request does not reach the peer.
    Status(u16),
    /// Like `Status`, with the test's own body (`application/json`).
    Answer {
        /// The HTTP status.
        status: u16,
        /// The body, sent unchanged.
        body: String,
    },
    /// The proxy responds with 200, `application/json`, and a body that breaks off in the middle of an object.
    InvalidJson,
    /// The proxy responds like CouchDB, which pouchdb-server cannot: with `multipart/mixed`, and a `multipart/related` part
    /// for each revision with attachments. This applies to `GET doc?open_revs=…`, and to `POST _bulk_get?attachments=true`
    /// whose `Accept` contains `multipart/mixed`. Other requests pass. It is no fault, but the base of the variant below.
    Multipart,
    /// Like `Multipart`, but the body ends in the middle of a part, although its HTTP framing is complete. Other requests pass.
    TruncatedMultipart,
    /// The proxy responds with this status and a page of HTML, as gateways do. The request does not reach the peer.
    Page(u16),
    /// The request reaches the peer, and its response is lost: the client gets this status and a page of HTML.
    Lost {
        /// The HTTP status.
        status: u16,
    },
    /// The client gets 504 and a page of HTML if the peer's response does not begin in time. Once it has begun, response and
    /// connection end when the peer is silent for as long.
    Impatient {
        /// The longest silence of the peer, in ms.
        after_ms: u64,
    },
    /// The client gets 413 and a page of HTML before the body of its request was read, and the connection ends.
    BodyRefused {
        /// Whether the proxy reads and drops the body, so that a client that sends all of it gets the response. Otherwise the
        /// connection is reset.
        lingers: bool,
    },
    /// The response is compressed with gzip, if the client accepts that and it is text. Its `ETag` becomes a weak one.
    Gzip,
    /// The response arrives at this pace.
    Slow {
        /// Bytes of the body per second.
        bytes_per_second: u64,
    },
}

impl Fault {
    /// Only for requests for which `condition` holds.
    pub fn when(self, condition: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Rule {
        Rule::from(self).when(condition)
    }

    /// Only for the next `count` requests (for which the condition holds).
    pub fn times(self, count: usize) -> Rule {
        Rule::from(self).times(count)
    }

    /// Whether the fault can apply to this request at all.
    fn fits(&self, request: &Request) -> bool {
        match self {
            Self::Multipart | Self::TruncatedMultipart => {
                let bulk_get = request.path.contains("/_bulk_get?")
                    && request.path.contains("attachments=true")
                    && request.header("accept").is_some_and(|accept| accept.contains("multipart/mixed"));
                bulk_get || request.method == "GET" && request.path.contains("open_revs=")
            }
            _ => true,
        }
    }
}

/// A fault with its condition: see [`Fault::when`] and [`Fault::times`].
#[derive(Clone)]
pub struct Rule {
    fault: Fault,
    condition: Arc<dyn Fn(&Request) -> bool + Send + Sync>,
    /// How many more requests the rule applies to; `None` means all.
    left: Option<usize>,
}

impl From<Fault> for Rule {
    fn from(fault: Fault) -> Self {
        Self { fault, condition: Arc::new(|_| true), left: None }
    }
}

impl Rule {
    /// Only for requests for which `condition` holds.
    pub fn when(mut self, condition: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.condition = Arc::new(condition);
        self
    }

    /// Only for the next `count` requests (for which the condition holds).
    pub fn times(mut self, count: usize) -> Self {
        self.left = Some(count);
        self
    }

    /// Whether this rule closes the port.
    pub(super) fn is_down(&self) -> bool {
        self.fault == Fault::Down
    }

    /// The fault for `request`, if this rule applies to it. Uses up one of the rule's times.
    pub(super) fn take(&mut self, request: &Request) -> Option<Fault> {
        let applies = self.left != Some(0) && self.fault.fits(request) && (self.condition)(request);
        if !applies {
            return None;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        Some(self.fault.clone())
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("fault", &self.fault).field("left", &self.left).finish_non_exhaustive()
    }
}

/// CouchDB's text for a status, as the JSON body of a response.
pub(super) fn error_body(status: u16) -> String {
    let (error, reason) = match status {
        400 => ("bad_request", "invalid UTF-8 JSON"),
        401 => ("unauthorized", "Name or password is incorrect."),
        403 => ("forbidden", "You are not allowed to access this db."),
        404 => ("not_found", "Database does not exist."),
        409 => ("conflict", "Document update conflict."),
        412 => ("file_exists", "The database could not be created, the file already exists."),
        413 => ("too_large", "the request entity is too large"),
        429 => ("too_many_requests", "Too many requests. Slow down."),
        503 => ("service_unavailable", "Service unavailable."),
        _ => ("internal_server_error", "The fault proxy was told to fail."),
    };
    format!("{{\"error\":\"{error}\",\"reason\":\"{reason}\"}}\n")
}
