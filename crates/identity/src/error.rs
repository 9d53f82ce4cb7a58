//! Errors of changes to identities.

use turnwise_store::{Error as StoreError, MaybeStoreError};

/// The result of a change.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a change was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A member of the request is invalid.
    #[error("{field}: {problem}")]
    Invalid {
        /// The member.
        field: &'static str,
        /// What is wrong with it, and what is valid.
        problem: String,
    },
    /// The identity exists already.
    #[error("there is already a user `{0}`")]
    Exists(String),
    /// The identity does not exist.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// `user` or `token`.
        what: &'static str,
        /// Its name or id.
        name: String,
    },
    /// Without it, nobody could manage identities.
    #[error(
        "`{0}` is the last identity with the scope `admin`: without it nobody could manage identities any more"
    )]
    LastAdmin(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Error {
        Error::Invalid { field, problem: problem.into() }
    }
}

impl MaybeStoreError for Error {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Error::Store(error) => Some(error),
            _ => None,
        }
    }
}
