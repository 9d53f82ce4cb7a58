//! Requests that are refused before a handler reads them: the same error in the shape of either API.

use std::borrow::Cow;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use turnwise_protocol::Error;

use super::answer;
use super::error::ApiError;

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the response.
    pub status: StatusCode,
    /// The stable code.
    pub code: &'static str,
    /// What is wrong.
    pub reason: Cow<'static, str>,
    /// What to do.
    pub hint: &'static str,
    /// When the client may try again, in s.
    pub retry_after_s: Option<u64>,
}

/// Whether a request is for a page or one of its actions, and not for a program.
pub fn is_page<B>(request: &axum::http::Request<B>) -> bool {
    matches!(request.uri().path().split('/').nth(1), Some("ui" | "_utils"))
}

/// Whether a request is one of `/v1`.
pub fn is_v1(request: &Request) -> bool {
    request.uri().path().split('/').nth(1) == Some("v1")
}

impl Refusal {
    pub(crate) fn log(&self, request: &Request) {
        // The log leaves names out, because a stranger has chosen them.
        tracing::debug!(method = %request.method(), path = request.uri().path(), %self.reason, "a request was refused");
    }

    /// The response to a request of a program, which is none for a page.
    pub fn of_program(self, request: &Request) -> Response {
        self.log(request);
        self.respond(is_v1(request))
    }

    /// The response, in the shape of `/v1` or of CouchDB's API.
    pub fn respond(self, is_v1: bool) -> Response {
        match is_v1 {
            true => self.in_v1(),
            false => ApiError::from(self).into_response(),
        }
    }

    fn in_v1(self) -> Response {
        let Refusal { status, code, reason, hint, retry_after_s } = self;
        let error = Error {
            error: code.to_owned(),
            reason: reason.into_owned(),
            hint: hint.to_owned(),
            answer: None,
        };
        with_headers(answer::json(status, &error), status, retry_after_s)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let Refusal { status, code, reason, hint, retry_after_s } = refusal;
        // CouchDB's errors have no hint.
        let reason = match status {
            StatusCode::UNAUTHORIZED => reason.into_owned(),
            _ => format!("{reason}: {hint}"),
        };
        ApiError::new(status, code, reason).after(retry_after_s)
    }
}

/// The headers that belong to a status.
pub fn with_headers(mut response: Response, status: StatusCode, retry_after_s: Option<u64>) -> Response {
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        // Not `Basic`: a browser would ask for a password itself, and send it with every request from then on.
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"turnwise\""));
    }
    if let Some(seconds) = retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer::with_header(response, header::SERVER, concat!("turnwise/", env!("CARGO_PKG_VERSION")))
}
