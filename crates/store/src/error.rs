//! Store errors, sorted by what the caller does next.

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, sorted by what the caller does next.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Another transaction changed something that this one had read; nothing was written. Run it again.
    #[error("the transaction conflicts with another one")]
    Conflict,
    /// The transaction lived longer than the engine keeps its snapshot; nothing was written. Run it again. If this happens often,
    /// do less in one transaction.
    #[error("the transaction is older than {limit_ms} ms")]
    TooOld {
        /// How long a transaction may live, in milliseconds.
        limit_ms: u64,
    },
    /// The engine cannot be reached or cannot work now; nothing was written. Try again later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The disk or another limited resource is full; nothing was written. Try again later: the store works again once there is
    /// room.
    #[error("the store has no room: {what} ({place})")]
    NoRoom {
        /// The resource that is used up: `the disk is full`.
        what: &'static str,
        /// Where it is used up, and the message of the system.
        place: String,
    },
    /// The commit may or may not have happened. Run it again only if it is idempotent.
    #[error("it is unknown whether the transaction was committed: {0}")]
    UnknownOutcome(String),
    /// A key, a value or the transaction exceeds a limit. This is the caller's mistake.
    #[error("{what} of {size} bytes exceeds the limit of {limit} bytes")]
    TooLarge {
        /// `key`, `value` or `transaction`.
        what: &'static str,
        /// The size found, in bytes.
        size: usize,
        /// The size allowed, in bytes.
        limit: usize,
    },
    /// The transaction has more parts than the engine accepts in one; nothing was written. Do less in one transaction.
    #[error("a transaction that {what} exceeds the limit of {limit}")]
    TooMany {
        /// What the transaction does, with the number: `writes 129 rows`.
        what: String,
        /// How many are allowed.
        limit: usize,
    },
    /// The call is invalid, for example a read of a versionstamp before the commit has set it.
    #[error("invalid use of the store: {0}")]
    Misuse(String),
    /// Other users of the machine can read the store's files, or write them. Nothing was opened.
    #[error("{0}")]
    Exposed(String),
    /// The store holds data that cannot be decoded. Stop and investigate.
    #[error("the store is corrupt: {0}")]
    Corrupt(String),
}

impl Error {
    /// Whether the engine refused the transaction's size, so that several smaller transactions could do the same work.
    pub fn is_too_much(&self) -> bool {
        matches!(self, Error::TooLarge { .. } | Error::TooMany { .. })
    }

    /// Whether the same idempotent transaction can succeed if it runs again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Conflict
            | Error::TooOld { .. }
            | Error::Unavailable(_)
            | Error::NoRoom { .. }
            | Error::UnknownOutcome(_) => true,
            Error::TooLarge { .. }
            | Error::TooMany { .. }
            | Error::Misuse(_)
            | Error::Exposed(_)
            | Error::Corrupt(_) => false,
        }
    }

    /// Whether the store could not be reached or could not answer.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::NoRoom { .. } | Error::UnknownOutcome(_))
    }
}
