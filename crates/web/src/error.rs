//! Errors in the shape of CouchDB's API: a status, a stable code, and a reason that states what to do. Internal details go to the log.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use turnwise_queue::Error as QueueError;
use turnwise_replicator::documents::Error as DocumentError;
use turnwise_store::{Error as StoreError, MaybeStoreError};

use super::answer;
use super::v1_error::{V1Error, log_cause, with_headers};

/// An error response: `{"error": code, "reason": reason}`.
#[derive(Debug)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// The stable code.
    pub error: &'static str,
    /// What is wrong, and what to do.
    pub reason: String,
    /// The methods that are allowed, for the header `Allow`.
    allow: Option<&'static str>,
    /// When the client may try again, in s.
    retry_after_s: Option<u64>,
    /// The cause, for the log.
    cause: Option<StoreError>,
}

impl ApiError {
    /// An error with this status, code and reason.
    pub fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Self {
        ApiError { status, error, reason: reason.into(), allow: None, retry_after_s: None, cause: None }
    }

    /// The request is not correct: 400.
    pub fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// A parameter is not correct: 400.
    pub fn query(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    /// The sender may not do this, or nobody may: 403.
    pub fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    /// There is no such thing: 404.
    pub fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    /// Only these methods are allowed: 405.
    pub fn method(allowed: &'static str) -> Self {
        let reason = format!("Only {allowed} allowed");
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason);
        ApiError { allow: Some(allowed), ..error }
    }

    /// CouchDB does this, and turnwise does not: 501.
    pub fn not_implemented(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason)
    }

    /// Logs the cause, if it is one of the server.
    pub fn log(&self) {
        log_cause(self.status, self.cause.as_ref());
    }
}

impl From<V1Error> for ApiError {
    fn from(error: V1Error) -> Self {
        let V1Error { status, code, reason, hint, retry_after_s, cause, .. } = error;
        // CouchDB's errors have no hint.
        let reason = if status == StatusCode::UNAUTHORIZED { reason } else { format!("{reason}: {hint}") };
        ApiError { retry_after_s, cause, ..Self::new(status, code, reason) }
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
            E::Conflict => (StatusCode::CONFLICT, "conflict"),
            E::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "document_too_large"),
            E::IllegalId(_) => (StatusCode::BAD_REQUEST, "illegal_docid"),
            E::SpecialMember(_) => (StatusCode::BAD_REQUEST, "doc_validation"),
            E::Mirror | E::Refused(_) => (StatusCode::FORBIDDEN, "forbidden"),
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
        let reason = match &error {
            // In contrast to `/v1`, a repetition may do more.
            StoreError::UnknownOutcome(_) => {
                Some("it is unknown whether the request took effect; check before you try again".to_owned())
            }
            StoreError::TooLarge { .. } | StoreError::TooMany { .. } => {
                Some(format!("the request is too large for one transaction of this server's store: {error}"))
            }
            _ => None,
        };
        let same = ApiError::from(V1Error::from(error));
        ApiError { reason: reason.unwrap_or(same.reason), ..same }
    }
}

impl MaybeStoreError for ApiError {
    fn store_error(&self) -> Option<&StoreError> {
        self.cause.as_ref()
    }
}

/// An error that only a bug or a broken disk can cause.
pub fn internal(error: &dyn std::error::Error) -> ApiError {
    V1Error::internal(error).into()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.log();
        let body = json!({ "error": self.error, "reason": self.reason });
        let mut response = answer::json(self.status, &body);
        if let Some(allow) = self.allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        with_headers(response, self.status, self.retry_after_s)
    }
}
