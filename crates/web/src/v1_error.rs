//! Errors in the shape of `/v1`: a status, a stable code, a reason, and what the client can do. What refuses a request before a handler
//! reads it says so with them, too; CouchDB's API shows them as an [`ApiError`].

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use turnwise_identity::Error as IdentityError;
use turnwise_protocol::{Answer, Error, Problem, codes};
use turnwise_queue::Error as QueueError;
use turnwise_store::{Error as StoreError, MaybeStoreError};

use super::answer;
use super::error::ApiError;

/// An error response; see [`Error`].
#[derive(Debug)]
pub struct V1Error {
    /// The status of the response.
    pub status: StatusCode,
    /// The stable code.
    pub code: &'static str,
    /// What is wrong.
    pub reason: String,
    /// What to do.
    pub hint: &'static str,
    /// When the client may try again, in s.
    pub retry_after_s: Option<u64>,
    answer: Option<Answer>,
    /// The cause, for the log.
    pub(crate) cause: Option<StoreError>,
}

/// What a user can do about a member that is out of its bounds.
const CORRECT: &str = "correct the member; /v1/openapi.json has the bounds";
/// What a user can know about a job that is not there.
const NO_JOB: &str =
    "it was never added, was removed, or ended longer ago than jobs are kept ([jobs] retention)";

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

    /// A parameter, a member or a name is invalid: 400.
    pub fn bad(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, codes::BAD_REQUEST, reason, hint)
    }

    /// A member is out of its bounds: 400.
    pub fn out_of_bounds(reason: impl Into<String>) -> Self {
        Self::bad(reason, CORRECT)
    }

    /// The request needs credentials, and has none, or wrong ones: 401.
    pub fn unauthorized(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, codes::UNAUTHORIZED, reason, hint)
    }

    /// This identity may not do it: 403.
    pub fn forbidden(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, codes::FORBIDDEN, reason, hint)
    }

    /// The identity may read the tenant's jobs, and not change them: 403.
    pub fn read_only(tenant: &str) -> Self {
        Self::forbidden(
            format!("this identity may not change the jobs of tenant `{tenant}`"),
            "it needs a scope client:TENANTS that names the tenant",
        )
    }

    /// There is no such thing: 404.
    pub fn not_found(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, codes::NOT_FOUND, reason, hint)
    }

    /// There is no such job: 404.
    pub fn no_job(job_type: &str, id: &str) -> Self {
        Self::not_found(format!("there is no job `{id}` of type `{job_type}`"), NO_JOB)
    }

    /// The job's state does not allow the request: 409.
    pub fn conflict(code: &'static str, reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::CONFLICT, code, reason, hint)
    }

    /// The claim is lost: 409.
    pub fn halt() -> Self {
        let reason = "this worker does not hold the job under this claim";
        let hint = "stop the job and send nothing more for it: another claim has it, or it has ended";
        V1Error { answer: Some(Answer::Halt), ..Self::conflict(codes::HALT, reason, hint) }
    }

    /// The worker is not registered: 410.
    pub fn expired() -> Self {
        Self::new(
            StatusCode::GONE,
            codes::EXPIRED_WORKER,
            "this worker is not registered (any more): it has left, or the server removed it after missed pings",
            "stop all of its jobs, send nothing more for them, and register again under a new id",
        )
    }

    /// The request is too large: 413.
    pub fn too_large(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, codes::TOO_LARGE, reason, hint)
    }

    /// The body has a type or an encoding that is not read: 415.
    pub(crate) fn bad_content_type(reason: &str, hint: &'static str) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, codes::BAD_CONTENT_TYPE, reason, hint)
    }

    /// A limit of the sender is reached: 429.
    pub fn too_many(reason: impl Into<String>, hint: &'static str) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, codes::TOO_MANY_REQUESTS, reason, hint);
        V1Error { retry_after_s: Some(5), ..error }
    }

    /// An error that only a bug can cause: 500.
    pub fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!(%error, "a request failed");
        Self::failed()
    }

    fn failed() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            codes::INTERNAL,
            "the server failed to handle this request",
            "the server's log has the reason; the request is not the cause",
        )
    }

    /// The server cannot do it now, and has changed nothing: 503.
    pub fn unavailable(reason: impl Into<String>, hint: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, codes::UNAVAILABLE, reason, hint)
    }

    /// The server stops: 503.
    pub fn stopping() -> Self {
        let hint = "repeat the request after a second or more, when the server has restarted";
        Self::unavailable("the server is stopping", hint)
    }

    /// The same error, to be repeated after this time.
    pub fn retry_after(self, wait: Duration) -> Self {
        V1Error { retry_after_s: Some(wait.as_secs() + 1), ..self }
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

    /// Logs the cause, if it is one of the server.
    pub fn log(&self) {
        log_cause(self.status, self.cause.as_ref());
    }

    /// The response, in the shape of `/v1` or of CouchDB's API.
    pub(crate) fn respond(self, is_v1: bool) -> Response {
        if is_v1 { self.into_response() } else { ApiError::from(self).into_response() }
    }
}

/// Logs why the store could not serve a request.
pub(crate) fn log_cause(status: StatusCode, cause: Option<&StoreError>) {
    if let (true, Some(error)) = (status.is_server_error(), cause) {
        match error.is_retryable() {
            // The store's failure is logged once, and not by every request.
            true => tracing::debug!(%error, "a request could not be served"),
            false => tracing::error!(%error, "a request could not be served"),
        }
    }
}

impl From<Problem> for V1Error {
    fn from(problem: Problem) -> Self {
        Self::bad(problem.to_string(), "correct the name; /v1/openapi.json has the rules")
    }
}

impl From<QueueError> for V1Error {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => error.into(),
            QueueError::Invalid { .. } => Self::out_of_bounds(error.to_string()),
            QueueError::NotFound => Self::not_found("there is no such job", NO_JOB),
            QueueError::Halt => Self::halt(),
        }
    }
}

impl From<IdentityError> for V1Error {
    fn from(error: IdentityError) -> Self {
        let reason = error.to_string();
        match error {
            IdentityError::Store(error) => error.into(),
            IdentityError::Invalid { .. } => Self::out_of_bounds(reason),
            IdentityError::NotFound { .. } => Self::not_found(reason, "it was never added, or was removed"),
            IdentityError::Exists(_) => Self::conflict(
                codes::CONFLICT,
                reason,
                "choose another name, or change the password of this user",
            ),
            IdentityError::LastAdmin(_) => {
                Self::conflict(codes::CONFLICT, reason, "add another identity with the scope `admin` first")
            }
        }
    }
}

impl From<StoreError> for V1Error {
    fn from(error: StoreError) -> Self {
        let plain = match &error {
            StoreError::Conflict | StoreError::TooOld { .. } | StoreError::Unavailable(_) => {
                Self::unavailable(
                    "the store cannot answer now; nothing was changed",
                    "try again, after a longer pause each time",
                )
            }
            StoreError::NoRoom { what, .. } => Self::unavailable(
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
            StoreError::Misuse(_) | StoreError::Exposed(_) | StoreError::Corrupt(_) => Self::failed(),
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
        let V1Error { status, retry_after_s, .. } = self;
        with_headers(answer::json(status, &Error::from(self)), status, retry_after_s)
    }
}

/// The headers that belong to a status.
pub fn with_headers(mut response: Response, status: StatusCode, retry_after_s: Option<u64>) -> Response {
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        // Not `Basic`: a browser would ask for a password itself, and send it with every request from then on.
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"turnwise\""));
    }
    // A server that is not available now may be soon.
    let soon = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
    if let Some(seconds) = retry_after_s.or(soon) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer::with_header(response, header::SERVER, concat!("turnwise/", env!("CARGO_PKG_VERSION")))
}
