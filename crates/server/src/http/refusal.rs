//! Requests that are refused before a handler reads them: the same error in the shape of either API.

use std::borrow::Cow;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use turnwise_protocol::Error;

use super::error::ApiError;
use super::{answer, ui};

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub reason: Cow<'static, str>,
    pub hint: &'static str,
    /// When the client may try again, in s.
    pub retry_after_s: Option<u64>,
}

/// The response to a request that is refused.
pub(crate) fn refuse(request: &Request, refusal: Refusal) -> Response {
    // The log leaves names out, because a stranger has chosen them.
    tracing::debug!(method = %request.method(), path = request.uri().path(), %refusal.reason, "a request was refused");
    match ui::is_page(request) {
        true => ui::refused(request, refusal),
        false => refusal.respond(is_v1(request)),
    }
}

/// Whether a request is one of `/v1`.
pub(crate) fn is_v1(request: &Request) -> bool {
    request.uri().path().split('/').nth(1) == Some("v1")
}

impl Refusal {
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
pub(super) fn with_headers(
    mut response: Response,
    status: StatusCode,
    retry_after_s: Option<u64>,
) -> Response {
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
