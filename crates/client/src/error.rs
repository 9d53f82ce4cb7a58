//! The errors of requests, by what the caller does next.

use turnwise_protocol::{Job, Problem, State, codes};

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid and was not sent: correct it.
    #[error("{0}")]
    Invalid(String),
    /// The server refused the request: correct it, or read the message.
    #[error("{}", refusal(.0))]
    Refused(turnwise_protocol::Error),
    /// The server cannot answer now: try again later. The request changed nothing.
    #[error("{}", refusal(.0))]
    Unavailable(turnwise_protocol::Error),
    /// There was no answer, or the server does not know the outcome: the request may have taken effect.
    #[error("no answer from {server}: {cause}")]
    NoAnswer {
        /// The server's URL.
        server: String,
        /// What happened.
        cause: String,
        /// Whether the request may have reached the server.
        maybe_sent: bool,
    },
    /// The answer is not one of turnwise's API: the URL may be wrong.
    #[error("{server} answered {status} as turnwise does not: {problem}; is the URL right?")]
    Foreign {
        /// The server's URL.
        server: String,
        /// The HTTP status of the answer.
        status: u16,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The job has no result: it has failed, or was cancelled.
    #[error("{}/{} has {}: {}", .0.job_type, .0.id, ended(.0), .0.reason.as_deref().unwrap_or("no reason is stated"))]
    JobFailed(Box<Job>),
}

fn ended(job: &Job) -> &'static str {
    if job.state == State::Cancelled { "been cancelled" } else { "failed" }
}

fn refusal(error: &turnwise_protocol::Error) -> String {
    format!("{}: {} ({})", error.error, error.reason, error.hint)
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Error::Invalid(problem.to_string())
    }
}

impl Error {
    /// The error in the answer about a part of a request, whose code says what a status says of a whole answer.
    pub(crate) fn of_part(error: turnwise_protocol::Error) -> Error {
        match error.error.as_str() {
            codes::TIMEOUT | codes::TOO_MANY_REQUESTS | codes::UNAVAILABLE | codes::UNKNOWN_OUTCOME => {
                Error::Unavailable(error)
            }
            _ => Error::Refused(error),
        }
    }

    /// The code of a refusal; see [`codes`].
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Refused(error) | Error::Unavailable(error) => Some(&error.error),
            _ => None,
        }
    }

    /// Whether the job, or another object that the request names, does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(codes::NOT_FOUND)
    }

    /// Whether the worker has lost its claim.
    pub(crate) fn is_halt(&self) -> bool {
        self.code() == Some(codes::HALT)
    }

    /// Whether the worker is no longer registered.
    pub(crate) fn is_expired(&self) -> bool {
        matches!(self.code(), Some(codes::EXPIRED_WORKER | codes::UNKNOWN_WORKER))
    }

    /// Whether the server had an internal error, which may pass, and says nothing about the request.
    pub(crate) fn is_internal(&self) -> bool {
        self.code() == Some(codes::INTERNAL)
    }

    /// Whether the same request may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::NoAnswer { .. }) || self.is_internal()
    }

    /// Whether the request may have taken effect despite the error.
    pub(crate) fn may_have_worked(&self) -> bool {
        match self {
            Error::NoAnswer { maybe_sent, .. } => *maybe_sent,
            Error::Unavailable(error) => error.error == codes::UNKNOWN_OUTCOME,
            _ => self.is_internal(),
        }
    }
}
