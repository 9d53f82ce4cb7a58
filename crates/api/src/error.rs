//! Errors in responses of `/v1`: a status, a stable code, a reason, and what the client can do.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use turnwise_protocol::{Answer, Error, Problem, codes};
use turnwise_queue::Error as QueueError;
use turnwise_store::{Error as StoreError, MaybeStoreError};
use turnwise_web::access::Unchecked;
use turnwise_web::answer;
use turnwise_web::error::retry_later;
use turnwise_web::refusal::{Refusal, with_headers};

/// The result of a handler.
pub type Result<T, E = V1Error> = std::result::Result<T, E>;

/// An error response; see [`Error`].
#[derive(Debug)]
pub struct V1Error {
    /// The status of the response.
    pub status: StatusCode,
    code: &'static str,
    reason: String,
    hint: &'static str,
    answer: Option<Answer>,
    /// When the client may try again, in s.
    retry_after_s: Option<u64>,
    /// The cause, for the log.
    cause: Option<StoreError>,
}

impl V1Error {
    /// An error with this status, code, reason and hint.
    pub fn new(
        status: StatusCode,
        code: &'static str,
        reason: impl Into<String>,
        hint: &'static str,
    ) -> Self {
        V1Error { status, code, reason: reason.into(), hint, answer: None, retry_after_s: None, cause: None }
    }

    /// A parameter, a member or a name is invalid.
    pub fn bad(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, codes::BAD_REQUEST, reason, hint)
    }

    /// This identity may not do it: 403.
    pub fn forbidden(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, codes::FORBIDDEN, reason, hint)
    }

    /// There is no such job: 404.
    pub fn no_job(job_type: &str, id: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            codes::NOT_FOUND,
            format!("there is no job `{id}` of type `{job_type}`"),
            "it was never added, was removed, or ended longer ago than jobs are kept ([jobs] retention)",
        )
    }

    /// The claim is lost.
    pub fn halt() -> Self {
        let reason = "this worker does not hold the job under this claim";
        let hint = "stop the job and send nothing more for it: another claim has it, or it has ended";
        let answer = Some(Answer::Halt);
        V1Error { answer, ..Self::new(StatusCode::CONFLICT, codes::HALT, reason, hint) }
    }

    /// The worker is not registered.
    pub fn expired() -> Self {
        Self::new(
            StatusCode::GONE,
            codes::EXPIRED_WORKER,
            "this worker is not registered (any more): it has left, or the server removed it after missed pings",
            "stop all of its jobs, send nothing more for them, and register again under a new id",
        )
    }

    /// The job's state does not allow the request.
    pub fn conflict(code: &'static str, reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::CONFLICT, code, reason, hint)
    }

    /// The same error for one of many jobs.
    pub fn at(self, place: &str) -> Self {
        V1Error { reason: format!("{place}{}", self.reason), ..self }
    }

    /// The same error for one of many jobs, whose place is such as `jobs[7].`: before the member that is wrong, or before a sentence.
    pub fn of_job(self, place: &str) -> Self {
        let names_a_member = !self.reason.split([':', '[']).next().unwrap_or_default().contains(' ');
        match place.strip_suffix('.') {
            // The store's failures are not the job's.
            Some(_) if self.cause.is_some() => self,
            Some(job) if !names_a_member => self.at(&format!("{job}: ")),
            _ => self.at(place),
        }
    }

    /// The request is too large: 413.
    pub fn too_large(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, codes::TOO_LARGE, reason, hint)
    }

    /// A limit of the sender is reached.
    pub fn too_many(reason: impl Into<String>, hint: &'static str) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, codes::TOO_MANY_REQUESTS, reason, hint);
        V1Error { retry_after_s: Some(5), ..error }
    }

    /// The same error, to be repeated after this time.
    pub fn retry_after(self, wait: Duration) -> Self {
        V1Error { retry_after_s: Some(wait.as_secs() + 1), ..self }
    }

    /// The identity may read the tenant's jobs, and not change them.
    pub fn read_only(tenant: &str) -> Self {
        Self::forbidden(
            format!("this identity may not change the jobs of tenant `{tenant}`"),
            "it needs a scope client:TENANTS that names the tenant",
        )
    }

    /// An error that only a bug can cause.
    pub fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!(%error, "a request failed");
        let (reason, hint) = (
            "the server failed to handle this request",
            "the server's log has the reason; the request is not the cause",
        );
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, codes::INTERNAL, reason, hint)
    }

    /// Logs the cause, if it is one of the server.
    pub fn log(&self) {
        if let (true, Some(error)) = (self.status.is_server_error(), &self.cause) {
            match error.is_retryable() {
                // The store's failure is logged once, and not by every request.
                true => tracing::debug!(%error, "a request could not be served"),
                false => tracing::error!(%error, "a request could not be served"),
            }
        }
    }

    /// The server stops: 503.
    pub fn stopping() -> Self {
        let (reason, hint) = (
            "the server is stopping",
            "repeat the request after a second or more, when the server has restarted",
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, codes::UNAVAILABLE, reason, hint)
    }
}

impl From<Problem> for V1Error {
    fn from(problem: Problem) -> Self {
        Self::bad(problem.to_string(), "correct the name; /v1/openapi.json has the rules")
    }
}

impl From<Refusal> for V1Error {
    fn from(refusal: Refusal) -> Self {
        let Refusal { status, code, reason, hint, retry_after_s } = refusal;
        V1Error { retry_after_s, ..Self::new(status, code, reason, hint) }
    }
}

impl From<Unchecked> for V1Error {
    fn from(unchecked: Unchecked) -> Self {
        Refusal::from(unchecked).into()
    }
}

impl From<QueueError> for V1Error {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => error.into(),
            QueueError::Invalid { .. } => {
                Self::bad(error.to_string(), "correct the member; /v1/openapi.json has the bounds")
            }
            QueueError::NotFound => Self::new(
                StatusCode::NOT_FOUND,
                codes::NOT_FOUND,
                "there is no such job",
                "it was never added, was removed, or ended longer ago than jobs are kept ([jobs] retention)",
            ),
            QueueError::Halt => Self::halt(),
        }
    }
}

impl From<StoreError> for V1Error {
    fn from(error: StoreError) -> Self {
        let plain = match &error {
            StoreError::Conflict | StoreError::TooOld { .. } | StoreError::Unavailable(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                codes::UNAVAILABLE,
                "the store cannot answer now; nothing was changed",
                "try again, after a longer pause each time",
            ),
            StoreError::NoRoom { what, .. } => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                codes::UNAVAILABLE,
                format!("the store has no room: {what}; nothing was changed"),
                "try again once there is room; the server needs no restart",
            ),
            StoreError::UnknownOutcome(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                codes::UNKNOWN_OUTCOME,
                "it is unknown whether the request took effect",
                "repeat it with the same ids and claims: that is harmless",
            ),
            StoreError::TooLarge { .. } | StoreError::TooMany { .. } => Self::too_large(
                "the request is too large for one transaction",
                "send fewer jobs in one request",
            ),
            StoreError::Misuse(_) | StoreError::Exposed(_) | StoreError::Corrupt(_) => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                codes::INTERNAL,
                "the server failed to handle this request",
                "the server's log has the reason; the request is not the cause",
            ),
        };
        V1Error { cause: Some(error), ..plain }
    }
}

impl MaybeStoreError for V1Error {
    fn store_error(&self) -> Option<&StoreError> {
        self.cause.as_ref()
    }
}

impl From<V1Error> for Error {
    fn from(V1Error { code, reason, hint, answer, .. }: V1Error) -> Self {
        Error { error: code.to_owned(), reason, hint: hint.to_owned(), answer }
    }
}

impl IntoResponse for V1Error {
    fn into_response(self) -> Response {
        self.log();
        let status = self.status;
        let retry_after_s = self.retry_after_s;
        let response = answer::json(status, &Error::from(self));
        let response =
            if status == StatusCode::SERVICE_UNAVAILABLE { retry_later(response) } else { response };
        with_headers(response, status, retry_after_s)
    }
}

/// The response for unknown paths.
pub(super) async fn no_such_path() -> V1Error {
    let hint = "GET /v1/openapi.json lists all paths; ids in paths are percent-encoded";
    V1Error::new(StatusCode::NOT_FOUND, codes::NOT_FOUND, "there is nothing under this path", hint)
}

/// The response for methods that a path does not support. The router adds the header `Allow`.
pub(super) async fn no_such_method(request: Request) -> V1Error {
    let method = request.method();
    // Clients may invent methods, and these may be long.
    let known = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];
    let method = if known.contains(method) { method.as_str() } else { "this method" };
    V1Error::new(
        StatusCode::METHOD_NOT_ALLOWED,
        codes::METHOD_NOT_ALLOWED,
        format!("{method} is not allowed here"),
        "the header Allow has the methods that are",
    )
}
