//! What can be wrong with a peer, and with which requests.

use std::fmt;
use std::sync::Arc;

use super::Request;

/// What the proxy does with a request instead of passing it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: request and answer stream through unchanged.
    None,
    /// The port is closed: connections are refused, and those that are open end. Concerns the whole proxy, whatever
    /// the rule's condition; the next [`FaultProxy::set`](super::FaultProxy::set) opens the same port again.
    Down,
    /// The connection is reset (TCP RST) after this many bytes of the answer's body, or before its last byte;
    /// with 0 before anything was answered.
    Reset {
        /// Bytes of the body that still arrive.
        after: u64,
    },
    /// The answer ends after this many bytes of its body, or before its last byte, and the connection with it: in good order (TCP FIN),
    /// so that only the framing tells that something is missing.
    Truncated {
        /// Bytes of the body that still arrive.
        after: u64,
    },
    /// The head of the answer and this many bytes of its body arrive (its last byte never does), then nothing more,
    /// and the connection stays open. An answer without a body does not arrive at all.
    HangMidBody {
        /// Bytes of the body that still arrive.
        after: u64,
    },
    /// The proxy answers with this status and an error as CouchDB words it; the peer does not see the request.
    Status(u16),
    /// As `Status`, with a body (`application/json`) of the test's own.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The body, sent as it is.
        body: String,
    },
    /// The proxy answers 200, `application/json`, and a body that is broken off in the middle of an object.
    InvalidJson,
    /// `GET doc?open_revs=…`, and `POST _bulk_get?attachments=true` where it accepts nothing else, are answered as CouchDB does and
    /// pouchdb-server cannot: with `multipart/mixed`, a `multipart/related` part
    /// for each revision that has attachments. Not a fault, but what the ones below are deviations of. Other requests pass.
    Multipart,
    /// As `Multipart`, but the body ends in the middle of a part, although its HTTP framing is complete. Other requests pass.
    TruncatedMultipart,
    /// The answer arrives at this pace.
    Slow {
        /// Bytes of the body in a second.
        bytes_per_second: u64,
    },
}

impl Fault {
    /// Only for requests that `condition` holds for.
    pub fn when(self, condition: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Rule {
        Rule::from(self).when(condition)
    }

    /// Only for the next `count` requests (that the condition holds for).
    pub fn times(self, count: usize) -> Rule {
        Rule::from(self).times(count)
    }

    /// Whether the fault can be inflicted on this request at all.
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
    /// How many more requests it is for; `None` is all.
    left: Option<usize>,
}

impl From<Fault> for Rule {
    fn from(fault: Fault) -> Self {
        Self { fault, condition: Arc::new(|_| true), left: None }
    }
}

impl Rule {
    /// Only for requests that `condition` holds for.
    pub fn when(mut self, condition: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.condition = Arc::new(condition);
        self
    }

    /// Only for the next `count` requests (that the condition holds for).
    pub fn times(mut self, count: usize) -> Self {
        self.left = Some(count);
        self
    }

    /// Whether this rule closes the port.
    pub(super) fn is_down(&self) -> bool {
        self.fault == Fault::Down
    }

    /// The fault to inflict on `request`, if this rule is for it; uses up one of its times.
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

/// CouchDB's words for a status, as the JSON body of its answer.
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
