//! Why a replication did not go on, sorted by what the caller does next.
//!
//! [`Error::Spec`] will fail again the same way: the job has failed. Everything else is the world's weather, also a
//! wrong password or a missing database (an administrator may mend it): the job crashes, backs off, and is run again.
//! No message contains a password; all texts of peers and of the HTTP client pass through a
//! [`Scrubber`](crate::secret::Scrubber) and are cut to [`MAX_REASON_BYTES`].

use std::fmt;
use std::time::Duration;

use crate::secret::CUT;
use crate::spec;

/// How much of a peer's own words goes into an error.
pub const MAX_REASON_BYTES: usize = 500;

/// Why a replication ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong; running it again cannot help.
    #[error(transparent)]
    Spec(#[from] spec::Error),
    /// A peer did not do what was asked; it may do so later.
    #[error(transparent)]
    Peer(#[from] Box<PeerError>),
    /// This process cannot do its part (no TLS roots, no random numbers); another one, or a later one, may.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// Whether the job has failed for good; otherwise it should be tried again after a backoff.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Spec(_))
    }

    /// Whose error it is, if it is a peer's.
    pub(crate) fn side(&self) -> Option<Side> {
        match self {
            Self::Peer(error) => Some(error.side),
            _ => None,
        }
    }

    /// The HTTP status that a peer answered, if it answered one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Peer(error) => match &error.fault {
                Fault::Status { status, .. } => Some(*status),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the same request may succeed in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Peer(error) => match &error.fault {
                Fault::Unreachable(_) | Fault::Silent(_) | Fault::TooLong(_) => true,
                Fault::BrokeOff(_) | Fault::Malformed(_) | Fault::LoggedOut => true,
                Fault::Status { status, .. } => matches!(status, 408 | 429 | 500..),
                // Another attempt would be given as much time again.
                Fault::Unexpected(_) | Fault::Replaced | Fault::TooSlow { .. } => false,
            },
            _ => false,
        }
    }

    /// Whether nothing came for too long.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Peer(error) if matches!(error.fault, Fault::Silent(_)))
    }

    /// How long was waited for an answer that took too long.
    pub(crate) fn took_too_long(&self) -> Option<Duration> {
        match self {
            Self::Peer(error) => match error.fault {
                Fault::Silent(after) | Fault::TooLong(after) => Some(after),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether what has been copied, or what of it is remembered, is gone with a database.
    pub(crate) fn is_replaced(&self) -> bool {
        matches!(self, Self::Peer(error) if error.fault == Fault::Replaced)
    }

    /// Whether a session has ended, and the next attempt has a new one.
    pub(crate) fn is_logged_out(&self) -> bool {
        matches!(self, Self::Peer(error) if error.fault == Fault::LoggedOut)
    }

    /// How long the peer asked to wait before the next attempt.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Peer(error) => match &error.fault {
                Fault::Status { retry_after, .. } => *retry_after,
                _ => None,
            },
            _ => None,
        }
    }
}

/// Which side of a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where documents come from.
    Source,
    /// Where they go.
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

/// A request that did not end well.
///
/// Reads as `source GET http://u:*****@host/db/: 404 not_found: missing`.
#[derive(Debug, thiserror::Error)]
#[error("{side} {method} {url}: {fault}")]
pub struct PeerError {
    /// Which peer.
    pub side: Side,
    /// The request's method.
    pub method: String,
    /// The request's URL without its query and without secrets.
    pub url: String,
    /// What went wrong.
    pub fault: Fault,
}

/// What went wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No connection, or it was lost before an answer began.
    Unreachable(String),
    /// Nothing came for this long.
    Silent(Duration),
    /// The answer had not ended after this long, though it may have been coming all the time.
    TooLong(Duration),
    /// Of the answer there came something all the time, and too little.
    TooSlow {
        /// Bytes that came.
        came: u64,
        /// Bytes that have to come.
        least: u64,
        /// In so much time of waiting for them.
        interval: Duration,
    },
    /// The answer, or the request's body, ended too early.
    BrokeOff(String),
    /// The answer is not what the protocol promises.
    Malformed(String),
    /// An answer with an error status.
    Status {
        /// The HTTP status.
        status: u16,
        /// The body's `error`, or the status' own name.
        error: String,
        /// The body's `reason`, or the beginning of a body that is no JSON.
        reason: String,
        /// The `Retry-After` header.
        retry_after: Option<Duration>,
    },
    /// The session has ended before the request, whose body cannot be sent again; there is a new session now.
    LoggedOut,
    /// A proper answer that makes going on impossible.
    Unexpected(String),
    /// The database was deleted, and there is another one of its name.
    Replaced,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(cause) => write!(f, "no connection: {cause}"),
            Self::Silent(after) => write!(f, "timed out: no data for {} ms", after.as_millis()),
            Self::TooLong(after) => {
                let after = after.as_millis();
                write!(f, "timed out: no end of the answer after {after} ms, [replicator] request_timeout")
            }
            Self::TooSlow { came, least, interval } => {
                let interval = interval.as_millis();
                write!(
                    f,
                    "too slow: {came} bytes of the answer in {interval} ms, [replicator] minimum_progress is {least}"
                )
            }
            Self::BrokeOff(cause) => write!(f, "the connection broke off: {cause}"),
            Self::Malformed(cause) => write!(f, "an answer that cannot be understood: {cause}"),
            Self::Status { status, error, reason, .. } if reason.is_empty() => write!(f, "{status} {error}"),
            Self::Status { status, error, reason, .. } => write!(f, "{status} {error}: {reason}"),
            Self::LoggedOut => f.write_str("the session has ended"),
            Self::Unexpected(cause) => f.write_str(cause),
            Self::Replaced => f.write_str(
                "the database was deleted and created anew while it was being replicated; it is copied from the beginning",
            ),
        }
    }
}

/// The first [`MAX_REASON_BYTES`] of `text`, on one line, without what would steer a terminal. It has no secrets any more: a part of one could
/// not be told from other text.
pub(crate) fn shorten(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.contains(is_control) {
        line = line
            .chars()
            .map(|char| if is_control(char) { char::REPLACEMENT_CHARACTER } else { char })
            .collect();
    }
    if line.len() > MAX_REASON_BYTES {
        line.truncate(line.floor_char_boundary(MAX_REASON_BYTES));
        line.push(CUT);
    }
    line
}

/// Whether a character does something to a line in place of standing in it: the control characters, and those that change a line's direction.
fn is_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The beginning of a body for an error's text, of which much more is left than is shown in the end: its secrets are found before it is cut
/// to that.
pub(crate) fn excerpt(body: &[u8]) -> String {
    const MAX_EXCERPT_BYTES: usize = 4 << 10;
    let mut text = String::from_utf8_lossy(&body[..body.len().min(MAX_EXCERPT_BYTES)]).into_owned();
    if body.len() > MAX_EXCERPT_BYTES {
        // Half of a character.
        text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        text.push(CUT);
    }
    text
}
