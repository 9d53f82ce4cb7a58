//! What can go wrong, sorted by what the caller does next.

use turnwise_protocol::{Problem, codes};

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong before it is sent: correct it.
    #[error("{0}")]
    Invalid(String),
    /// The server refused it: correct it, or look at what it says.
    #[error("{}", refusal(.0))]
    Refused(turnwise_protocol::Error),
    /// The server cannot answer now: try again later. It changed nothing.
    #[error("{}", refusal(.0))]
    Unavailable(turnwise_protocol::Error),
    /// There was no answer, or the server does not know: it is unknown whether the request took effect.
    #[error("no answer from {server}: {cause}")]
    NoAnswer {
        /// Which server.
        server: String,
        /// What happened.
        cause: String,
        /// Whether the request may have reached it.
        maybe_sent: bool,
    },
    /// Whoever answers there is not a turnwise of this kind.
    #[error("{server} answered {status} as turnwise does not: {problem}; is the URL right?")]
    Foreign {
        /// Which server.
        server: String,
        /// The status of its answer.
        status: u16,
        /// What is wrong with it.
        problem: String,
    },
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
    /// The code of a refusal; see [`codes`].
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Refused(error) | Error::Unavailable(error) => Some(&error.error),
            _ => None,
        }
    }

    /// There is no such job.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(codes::NOT_FOUND)
    }

    /// The claim is lost.
    pub(crate) fn is_halt(&self) -> bool {
        self.code() == Some(codes::HALT)
    }

    /// The worker is no member any more.
    pub(crate) fn is_expired(&self) -> bool {
        matches!(self.code(), Some(codes::EXPIRED_WORKER | codes::UNKNOWN_WORKER))
    }

    /// Whether the same request may be answered well another time.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::NoAnswer { .. })
    }

    /// Whether the request may have taken effect all the same.
    pub(crate) fn may_have_worked(&self) -> bool {
        match self {
            Error::NoAnswer { maybe_sent, .. } => *maybe_sent,
            Error::Unavailable(error) => error.error == codes::UNKNOWN_OUTCOME,
            _ => false,
        }
    }
}
