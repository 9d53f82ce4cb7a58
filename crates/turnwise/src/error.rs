//! What can go wrong.

use turnwise_queue::Job;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call is wrong: correct it.
    #[error("{0}")]
    Invalid(String),
    /// The job has no result: it has failed, or was cancelled.
    #[error("{}/{} has no result: {}", .0.job_type, .0.id, .0.reason().unwrap_or("it was cancelled"))]
    JobFailed(Box<Job>),
    /// What the queue says: a wrong field, a job that does not exist, or an error of the store.
    #[error(transparent)]
    Queue(#[from] turnwise_queue::Error),
}

impl From<turnwise_store::Error> for Error {
    fn from(error: turnwise_store::Error) -> Error {
        Error::Queue(error.into())
    }
}
