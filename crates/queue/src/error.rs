//! Queue errors, sorted by what the caller does next.

use turnwise_store::{Error as StoreError, MaybeStoreError};

/// A result of the queue.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the queue.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An error of the store, whose own kinds state what the caller does next.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The worker no longer holds this job: another claim does, or its membership has ended. The worker must stop the job
    /// and write nothing more for it.
    #[error("this worker no longer holds the job")]
    Halt,
    /// There is no such job.
    #[error("there is no such job")]
    NotFound,
    /// A field of a new job is out of bounds: a mistake of the caller. Nothing was written.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it and what would be right.
        problem: String,
    },
}

impl MaybeStoreError for Error {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Error::Store(error) => Some(error),
            Error::Halt | Error::NotFound | Error::Invalid { .. } => None,
        }
    }
}

/// A row that cannot be decoded.
pub(crate) fn corrupt(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Store(StoreError::Corrupt(format!("{what}: {error}")))
}
