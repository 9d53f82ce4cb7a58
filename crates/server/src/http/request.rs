//! What comes with a request: its parameters and its body, each within its bound.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use serde_json::{Map, Value};
use turnwise_replicator::documents::MAX_BODY_BYTES;

use super::error::ApiError;

/// Largest body of a request with one document: the document, and room for spaces between its members.
pub(crate) const DOCUMENT_BYTES: usize = MAX_BODY_BYTES + (64 << 10);
/// Largest body of any other request.
pub(crate) const REQUEST_BYTES: usize = 16 << 20;
/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Parameters that a query may have.
const MAX_PARAMS: usize = 100;

/// The parameters of a query. Of those that are given twice the last one counts.
#[derive(Debug, Default)]
pub(crate) struct Params(HashMap<String, String>);

impl Params {
    pub fn new(query: Option<&str>) -> Self {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned();
        Params(pairs.take(MAX_PARAMS).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// These, and what a body says in place of the query.
    pub fn with(&self, body: &Map<String, Value>) -> Self {
        let mut all = self.0.clone();
        all.extend(body.iter().map(|(name, value)| (name.clone(), value.to_string())));
        Params(all)
    }

    /// A parameter that is `true` or `false`.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::query(format!("`{name}` must be true or false"))),
        }
    }

    /// A parameter that is a whole number, not negative.
    pub fn number(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let wrong = || ApiError::query(format!("{name} must be an integer from 0 on"));
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// A parameter that is JSON, under the first of its names that is there.
    pub fn json(&self, names: &[&str]) -> Result<Option<Value>, ApiError> {
        let Some((name, text)) = names.iter().find_map(|name| Some((name, self.get(name)?))) else {
            return Ok(None);
        };
        let value = serde_json::from_str(text);
        value
            .map(Some)
            .map_err(|_| ApiError::bad_request(format!("`{name}` must be JSON: a string needs its quotes")))
    }

    /// A parameter that is a JSON string.
    pub fn json_string(&self, names: &[&str]) -> Result<Option<String>, ApiError> {
        match self.json(names)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => {
                Err(ApiError::query(format!("`{}` must be a string: keys are document ids", names[0])))
            }
        }
    }
}

/// Reads a body to its end.
pub(crate) async fn bytes(body: Body, headers: &HeaderMap, limit: usize) -> Result<Bytes, ApiError> {
    let too_large = || {
        let reason = format!("the request entity is too large: at most {limit} bytes are allowed");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
    };
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        // It broke off, and nobody reads the answer; or it was too large.
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "the request's body did not come in time",
        )),
    }
}

/// A body that must be JSON by its content type, as CouchDB demands it of most requests.
pub(crate) async fn json_object(
    body: Body,
    headers: &HeaderMap,
    limit: usize,
) -> Result<Map<String, Value>, ApiError> {
    check_json(headers)?;
    object(&bytes(body, headers, limit).await?, "Request body must be a JSON object")
}

pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let reason = "Content-Type must be application/json";
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason))
}

/// JSON text that must be an object.
pub(crate) fn object(text: &[u8], otherwise: &str) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::bad_request(otherwise)),
        // Where, and not what: the text may hold a password.
        Err(error) => Err(ApiError::bad_request(format!(
            "invalid UTF-8 JSON: {} at line {} column {}",
            match error.classify() {
                serde_json::error::Category::Eof => "it ends too early",
                _ => "a mistake",
            },
            error.line(),
            error.column()
        ))),
    }
}
