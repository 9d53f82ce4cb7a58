//! Store errors, sorted by what the caller does next.

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, sorted by what the caller does next.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Something this transaction read has changed meanwhile; nothing was written. Run it again.
    #[error("the transaction conflicts with another one")]
    Conflict,
    /// The transaction lived longer than the engine keeps its snapshot; nothing was written. Run it again,
    /// and do less in one transaction if it happens often.
    #[error("the transaction is older than {limit_ms} ms")]
    TooOld {
        /// How long a transaction may live, in milliseconds.
        limit_ms: u64,
    },
    /// The engine cannot be reached or cannot work now; nothing was written. Try again later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The disk is full, or something else of which there is only so much; nothing was written. Try again later: it works again
    /// by itself once there is room.
    #[error("the store has no room: {what} ({place})")]
    NoRoom {
        /// What there is no more of: `the disk is full`.
        what: &'static str,
        /// Where, and what the system said.
        place: String,
    },
    /// The commit may or may not have happened. Run it again only if it is idempotent.
    #[error("it is unknown whether the transaction was committed: {0}")]
    UnknownOutcome(String),
    /// A key, a value or the transaction exceeds a limit. A caller's mistake.
    #[error("{what} of {size} bytes exceeds the limit of {limit} bytes")]
    TooLarge {
        /// `key`, `value` or `transaction`.
        what: &'static str,
        /// The size found, in bytes.
        size: usize,
        /// The size allowed, in bytes.
        limit: usize,
    },
    /// The transaction has more parts than the engine takes in one; nothing was written. Do less in one transaction.
    #[error("a transaction that {what} exceeds the limit of {limit}")]
    TooMany {
        /// What it does, with the number: `writes 129 rows`.
        what: String,
        /// How many are allowed.
        limit: usize,
    },
    /// The call makes no sense, for example reading a versionstamp that is not known before the commit.
    #[error("invalid use of the store: {0}")]
    Misuse(String),
    /// What is stored cannot be understood. Stop, and look.
    #[error("the store is corrupt: {0}")]
    Corrupt(String),
}

impl Error {
    /// Whether the same work can be done in several smaller transactions, where one is too much for the engine.
    pub fn is_too_much(&self) -> bool {
        matches!(self, Error::TooLarge { .. } | Error::TooMany { .. })
    }

    /// Whether running the same, idempotent transaction again can succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Conflict
            | Error::TooOld { .. }
            | Error::Unavailable(_)
            | Error::NoRoom { .. }
            | Error::UnknownOutcome(_) => true,
            Error::TooLarge { .. } | Error::TooMany { .. } | Error::Misuse(_) | Error::Corrupt(_) => false,
        }
    }

    /// Whether the store could not be asked, or did not answer.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::NoRoom { .. } | Error::UnknownOutcome(_))
    }
}
