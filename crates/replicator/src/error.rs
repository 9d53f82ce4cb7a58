//! Why a run ended early, grouped by what the worker does next.
//!
//! [`Error::Spec`] repeats in the same way, so the job fails. Every other error may pass, even a wrong password or a missing database, which
//! an administrator may correct: the job crashes, backs off, and runs again. No message contains a password.

use std::fmt;

use turnwise_outbound::FieldError;

/// Why a replication ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The document itself is wrong; another run cannot help.
    #[error(transparent)]
    Spec(#[from] FieldError),
    /// A request failed, or too little moved; another run may succeed.
    #[error(transparent)]
    Request(#[from] turnwise_outbound::Error),
    /// The source names revisions that it does not deliver. All others were copied.
    #[error(transparent)]
    Incomplete(#[from] Incomplete),
}

impl Error {
    /// Whether the job fails permanently. Otherwise it is retried after a backoff.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Spec(_))
    }

    /// Whether a database was replaced, and with it copied documents or checkpoints were lost.
    pub(crate) fn is_replaced(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_replaced())
    }

    /// The HTTP status of the peer's response, if there was a response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Request(error) => error.status(),
            Self::Spec(_) | Self::Incomplete(_) => None,
        }
    }
}

/// The most documents that the text of [`Incomplete`] names.
const NAMED: usize = 3;

/// What is missing from a copy.
///
/// Reads as `source does not deliver 1 revision that it names, so the copy is incomplete: document "a" (404 not_found: missing)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomplete {
    /// How many revisions were not delivered.
    pub revisions: u64,
    /// The ids of the first documents, and why each could not be read.
    pub docs: Vec<(String, String)>,
}

impl Incomplete {
    /// How the text begins.
    pub const BEGINNING: &str = "source does not deliver ";
}

impl std::error::Error for Incomplete {}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, s) = (self.revisions, if self.revisions == 1 { "" } else { "s" });
        write!(f, "{}{count} revision{s} that it names, so the copy is incomplete", Self::BEGINNING)?;
        for (nth, (id, reason)) in self.docs.iter().take(NAMED).enumerate() {
            write!(f, "{} document {id:?} ({reason})", if nth == 0 { ":" } else { "," })?;
        }
        if self.docs.len() > NAMED { f.write_str(", …") } else { Ok(()) }
    }
}
