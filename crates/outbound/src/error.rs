//! Why a request failed, grouped by what the caller does next.
//!
//! Every error may pass, even a wrong password or a missing database, which an administrator may correct. No message contains a password:
//! all texts of peers and of the HTTP client pass through a [`Scrubber`](crate::Scrubber), and are cut to
//! [`MAX_REASON_BYTES`](crate::MAX_REASON_BYTES).

use std::fmt;
use std::time::Duration;

/// Why a request, or a job of many requests, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to a peer failed; it may succeed later.
    #[error(transparent)]
    Peer(#[from] Box<PeerError>),
    /// The run moved too little, although no request failed.
    #[error(
        "too slow: {moved} bytes from and to both databases in {} ms, [replicator] minimum_progress is {least}",
        interval.as_millis()
    )]
    TooSlow {
        /// Bytes that were moved.
        moved: u64,
        /// Bytes that must be moved.
        least: u64,
        /// The interval in which they must be moved.
        interval: Duration,
    },
    /// This process cannot do its part (no TLS roots, no random numbers). Another process may, or this one later.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// What went wrong with the request, if this is a peer's error.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Peer(error) => Some(&error.fault),
            Self::TooSlow { .. } | Self::Local(_) => None,
        }
    }

    /// The side of the peer, if this is a peer's error.
    pub fn side(&self) -> Option<Side> {
        match self {
            Self::Peer(error) => Some(error.side),
            Self::TooSlow { .. } | Self::Local(_) => None,
        }
    }

    /// The HTTP status of the peer's response, if there was a response.
    pub fn status(&self) -> Option<u16> {
        match self.fault()? {
            Fault::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The message without the side, where there is only one server.
    pub fn of_server(&self) -> String {
        match self {
            Self::Peer(error) => format!("{} ({} {})", error.fault, error.method, error.url),
            Self::TooSlow { .. } | Self::Local(_) => self.to_string(),
        }
    }

    /// Whether other requests to the same peer may succeed: it has answered this one, with a refusal or with what cannot be read here.
    pub fn concerns_one_request(&self) -> bool {
        match self.fault() {
            // Such as: no memory for so large an answer.
            None => matches!(self, Self::Local(_)),
            Some(Fault::Status { .. } | Fault::Malformed(_) | Fault::Unexpected(_) | Fault::TooLarge(_)) => {
                true
            }
            Some(_) => false,
        }
    }

    /// Whether the peer has responded that it does not offer what was asked for, or not to this user.
    pub fn is_refusal(&self) -> bool {
        matches!(self.status(), Some(400..=407 | 409..=428 | 430..=499 | 501))
    }

    /// Whether the reason may be what the peer was asked for, so that another request may succeed. False if the peer is down or
    /// throttled, or the session has ended.
    pub fn may_concern_request(&self) -> bool {
        self.fault().is_some_and(|fault| match fault {
            Fault::Status { status, .. } => *status != 429,
            Fault::Malformed(_) | Fault::Unexpected(_) | Fault::TooLarge(_) => true,
            // A gateway may answer with silence, or close the connection.
            Fault::BrokeOff(_) | Fault::Silent(_) | Fault::TooLong(_) => true,
            Fault::Unreachable(_) | Fault::LoggedOut | Fault::NotWritten(_) => false,
            Fault::Replaced | Fault::TooSlow { .. } => false,
        })
    }

    /// Whether the same request may succeed in a moment.
    pub fn is_passing(&self) -> bool {
        self.fault().is_some_and(|fault| match fault {
            Fault::Unreachable(_) | Fault::Silent(_) | Fault::TooLong(_) => true,
            Fault::BrokeOff(_) | Fault::Malformed(_) | Fault::LoggedOut | Fault::NotWritten(_) => true,
            Fault::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            // Another attempt would get the same time limit.
            Fault::Unexpected(_) | Fault::Replaced | Fault::TooSlow { .. } | Fault::TooLarge(_) => false,
        })
    }

    /// Whether the connection was silent for too long.
    pub fn is_silence(&self) -> bool {
        matches!(self.fault(), Some(Fault::Silent(_)))
    }

    /// Whether the connection ended in the middle of an exchange.
    pub fn is_break_off(&self) -> bool {
        matches!(self.fault(), Some(Fault::BrokeOff(_)))
    }

    /// How long a response that took too long was awaited.
    pub fn took_too_long(&self) -> Option<Duration> {
        match self.fault()? {
            Fault::Silent(after) | Fault::TooLong(after) => Some(*after),
            _ => None,
        }
    }

    /// Whether a database was replaced, and with it copied documents or checkpoints were lost.
    pub fn is_replaced(&self) -> bool {
        self.fault() == Some(&Fault::Replaced)
    }

    /// Whether a session has ended. The next attempt uses a new one.
    pub fn is_logged_out(&self) -> bool {
        self.fault() == Some(&Fault::LoggedOut)
    }

    /// The time that the peer asked to wait before the next attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.fault()? {
            Fault::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Why a request is rejected: the field, and what would be right. A retry cannot help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {problem}")]
pub struct FieldError {
    /// The field as the user wrote it, with dots into objects: `source.auth.basic.password`.
    pub field: String,
    /// Continues the sentence after the field's name: `must be a boolean`.
    pub problem: String,
}

impl FieldError {
    /// An error with this field name and problem.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

/// A side of a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The peer that documents are read from.
    Source,
    /// The peer that documents are written to.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// A failed request.
///
/// Reads as `404 not_found: missing (source GET http://u:*****@host/db/)`. The URL comes last: it may hold a long document id, and
/// texts are cut at their end.
#[derive(Debug, thiserror::Error)]
#[error("{fault} ({side} {method} {url})")]
pub struct PeerError {
    /// The side of the peer.
    pub side: Side,
    /// The request's method.
    pub method: String,
    /// The request's URL without its query and without secrets.
    pub url: String,
    /// What went wrong.
    pub fault: Fault,
}

/// What went wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No connection, or the connection was lost before a response began.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// No data arrived for this long.
    #[error("timed out: no data for {} ms", .0.as_millis())]
    Silent(Duration),
    /// The response had not ended after this long, although data may have arrived all the time.
    #[error("timed out: no end of the answer after {} ms, [replicator] request_timeout", .0.as_millis())]
    TooLong(Duration),
    /// Data of the response arrived all the time, but too little.
    #[error(
        "too slow: {came} bytes of the answer in {} ms, [replicator] minimum_progress is {least}",
        interval.as_millis()
    )]
    TooSlow {
        /// Bytes that arrived.
        came: u64,
        /// Bytes that must arrive.
        least: u64,
        /// The interval, in waiting time, in which they must arrive.
        interval: Duration,
    },
    /// A document has more than this many bytes.
    #[error("a document of more than {0} bytes, [replicator] max_document_size")]
    TooLarge(usize),
    /// The response, or the request's body, ended too early.
    #[error("the connection broke off: {0}")]
    BrokeOff(String),
    /// The response violates the protocol.
    #[error("an answer that cannot be understood: {0}")]
    Malformed(String),
    /// A response with an error status.
    #[error("{status} {error}{}", after(reason))]
    Status {
        /// The HTTP status.
        status: u16,
        /// The body's `error`, or the name of the status.
        error: String,
        /// The body's `reason`, or the beginning of a body that is not JSON.
        reason: String,
        /// Whether the body has the form of CouchDB's errors. Otherwise another program may have responded, such as a gateway.
        of_couchdb: bool,
        /// The `Retry-After` header.
        retry_after: Option<Duration>,
    },
    /// The target has responded, but has not stored these documents, for a reason that does not concern them.
    #[error("{0}")]
    NotWritten(String),
    /// The session ended before the request, whose body cannot be sent again. A new session exists now.
    #[error("the session has ended")]
    LoggedOut,
    /// A valid response that makes it impossible to continue.
    #[error("{0}")]
    Unexpected(String),
    /// The database was deleted, and another one has its name now.
    #[error(
        "the database was deleted and created anew while it was being replicated; it is copied from the beginning"
    )]
    Replaced,
}

/// What a peer gives as its reason, after the error's name.
fn after(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::shorten;

    #[test]
    fn the_status_and_the_peers_words_come_before_a_url_of_any_length() {
        let status = |reason: &str| Fault::Status {
            status: 507,
            error: "insufficient_storage".to_owned(),
            reason: reason.to_owned(),
            of_couchdb: true,
            retry_after: None,
        };
        for (fault, begins) in [
            (
                status("the disk is full"),
                "507 insufficient_storage: the disk is full (target PUT http://h/db/aaa",
            ),
            (status(""), "507 insufficient_storage (target PUT http://h/db/aaa"),
            (Fault::Unreachable("refused".to_owned()), "no connection: refused (target PUT http://h/db/aaa"),
        ] {
            let url = format!("http://h/db/{}", "a".repeat(4_000));
            let error = PeerError { side: Side::Target, method: "PUT".to_owned(), url, fault };
            assert!(shorten(&error.to_string()).starts_with(begins), "{error}");
            let error = Error::Peer(Box::new(error)).of_server();
            assert!(error.contains(" (PUT http://h/db/"), "{error}");
        }
    }
}
