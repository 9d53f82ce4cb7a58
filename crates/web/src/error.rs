//! Errors in responses: a status, a stable code, and a reason that states what to do. Internal details go to the log.

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use turnwise_queue::Error as QueueError;
use turnwise_replicator::documents::Error as DocumentError;
use turnwise_store::Error as StoreError;

use super::answer;
use super::refusal::with_headers;

/// An error response: `{"error": code, "reason": reason}`.
#[derive(Debug)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// The stable code.
    pub error: &'static str,
    /// What is wrong, and what to do.
    pub reason: String,
    header: Option<(HeaderName, String)>,
    /// When the client may try again, in s.
    retry_after_s: Option<u64>,
}

impl ApiError {
    /// An error with this status, code and reason.
    pub fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Self {
        ApiError { status, error, reason: reason.into(), header: None, retry_after_s: None }
    }

    /// The request is not correct: 400.
    pub fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// A parameter is not correct: 400.
    pub fn query(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    /// There is no such thing: 404.
    pub fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    /// Only these methods are allowed: 405.
    pub fn method(allowed: &str) -> Self {
        let error = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            format!("Only {allowed} allowed"),
        );
        ApiError { header: Some((header::ALLOW, allowed.to_owned())), ..error }
    }

    /// The same error, with the time after which the client may try again.
    pub fn after(self, retry_after_s: Option<u64>) -> Self {
        ApiError { retry_after_s, ..self }
    }

    /// The server stops: 503.
    pub fn stopping() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "service_unavailable",
            "the server is stopping; try again later",
        )
    }
}

impl From<DocumentError> for ApiError {
    fn from(error: DocumentError) -> Self {
        use DocumentError as E;
        let (status, code) = match &error {
            E::Queue(error) => return error.clone().into(),
            E::NoDatabase | E::NotReplicator(_) | E::Missing | E::Deleted => {
                (StatusCode::NOT_FOUND, "not_found")
            }
            E::DatabaseExists => (StatusCode::PRECONDITION_FAILED, "file_exists"),
            E::IllegalName(_) => (StatusCode::BAD_REQUEST, "illegal_database_name"),
            E::Mirror => (StatusCode::FORBIDDEN, "forbidden"),
            E::Conflict => (StatusCode::CONFLICT, "conflict"),
            E::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "document_too_large"),
            E::IllegalId(_) => (StatusCode::BAD_REQUEST, "illegal_docid"),
            E::SpecialMember(_) => (StatusCode::BAD_REQUEST, "doc_validation"),
            E::Refused(_) => (StatusCode::FORBIDDEN, "forbidden"),
            E::Invalid(_) => (StatusCode::BAD_REQUEST, "bad_request"),
        };
        ApiError::new(status, code, error.to_string())
    }
}

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => error.into(),
            QueueError::Invalid { .. } => ApiError::bad_request(error.to_string()),
            QueueError::NotFound => ApiError::not_found("missing"),
            QueueError::Halt => internal(&error),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict | StoreError::TooOld { .. } | StoreError::Unavailable(_) => {
                // The store's failure is logged once, and not by every request.
                tracing::debug!(%error, "a request could not be served");
                let reason = "the store cannot answer now; nothing was changed, try again";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
            }
            StoreError::NoRoom { what, .. } => {
                tracing::debug!(%error, "a request could not be served");
                let reason = format!(
                    "the store has no room: {what}; nothing was changed, try again once there is room"
                );
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
            }
            StoreError::UnknownOutcome(_) => {
                tracing::debug!(%error, "a request has an unknown outcome");
                let reason = "it is unknown whether the request took effect; check before you try again";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unknown_outcome", reason)
            }
            StoreError::TooLarge { .. } | StoreError::TooMany { .. } => ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                format!("the request is too large for one transaction of this server's store: {error}"),
            ),
            StoreError::Misuse(_) | StoreError::Exposed(_) | StoreError::Corrupt(_) => internal(&error),
        }
    }
}

/// The time after which a client may retry a request that failed, in s.
const RETRY_AFTER_S: &str = "1";

/// Adds the advice to retry soon to a response.
pub fn retry_later(response: Response) -> Response {
    answer::with_header(response, header::RETRY_AFTER, RETRY_AFTER_S)
}

/// An error that only a bug or a broken disk can cause.
pub fn internal(error: &dyn std::error::Error) -> ApiError {
    tracing::error!(%error, "a request failed");
    let reason = "the server failed to handle this request; its log has the reason";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", reason)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.error, "reason": self.reason });
        let mut response = answer::json(self.status, &body);
        if let Some((name, value)) = self.header
            && let Ok(value) = value.parse()
        {
            response.headers_mut().insert(name, value);
        }
        let response =
            if self.status == StatusCode::SERVICE_UNAVAILABLE { retry_later(response) } else { response };
        with_headers(response, self.status, self.retry_after_s)
    }
}
