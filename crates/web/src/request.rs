//! A request's parameters and body, within their limits.

use std::collections::HashMap;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Map, Value};
use turnwise_protocol::codes;
use turnwise_replicator::documents::MAX_BODY_BYTES;

use super::encoding;
use super::error::ApiError;
use super::room::{Cost, MemoryPermit, Room, SMALL_BODY_BYTES};
use super::rows::Listed;
use crate::access::Caller;
use crate::v1_error::V1Error;

/// Largest body of a request with one document, in bytes: the document, and room for whitespace.
pub const DOCUMENT_BYTES: usize = MAX_BODY_BYTES + (64 << 10);
/// Largest body of any other request, in bytes.
pub const REQUEST_BYTES: usize = 16 << 20;
/// Maximum number of values in a tree of JSON: elements of arrays, and members of objects. Each takes up to about 150
/// bytes, however short its text is.
pub const MAX_VALUES: usize = 200_000;
/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of parameters in a query.
const MAX_PARAMS: usize = 100;

/// The parameters of a query. If one occurs twice, the last value applies.
#[derive(Debug, Default)]
pub struct Params(HashMap<String, String>);

impl Params {
    /// Parses a query.
    pub fn new(query: Option<&str>) -> Self {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned();
        Params(pairs.take(MAX_PARAMS).collect())
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// These parameters, overridden by the members of a body.
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

    /// A parameter that is a whole number from 0 on.
    pub fn number(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let wrong = || ApiError::query(format!("{name} must be a whole number, 0 or more"));
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// A parameter that is JSON, under the first of its names that is present.
    pub fn json(&self, names: &[&str]) -> Result<Option<Value>, ApiError> {
        let Some((name, text)) = names.iter().find_map(|name| Some((name, self.get(name)?))) else {
            return Ok(None);
        };
        let value = serde_json::from_str(text);
        value
            .map(Some)
            .map_err(|_| ApiError::bad_request(format!("`{name}` must be JSON: a string needs quotes")))
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

/// A body, and the memory that is reserved for it until the request is complete.
pub struct Sent {
    /// The body.
    pub text: Bytes,
    /// The memory for it.
    pub room: MemoryPermit,
}

/// Who sends a body, and its headers.
pub type Sender<'a> = (&'a Caller, &'a HeaderMap);

/// Reads a body completely, after reserving memory for its processing.
#[boxed]
pub async fn bytes<'a>(
    room: &'a Room,
    body: Body,
    (caller, headers): Sender<'a>,
    limit: usize,
    cost: Cost,
) -> Result<Sent, V1Error> {
    let too_large = || {
        let reason = format!("the body is too large: at most {limit} bytes are allowed");
        V1Error::too_large(reason, "store large data elsewhere, or send less in one request")
    };
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut permit = room.take(caller, length.unwrap_or_default(), cost).await?;
    let reading = async {
        let mut text = Vec::with_capacity(length.unwrap_or_default());
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece =
                piece.map_err(|error| V1Error::bad(encoding::problem(&error), "send the complete body"))?;
            if text.len() + piece.len() > limit {
                return Err(too_large());
            }
            if text.len() + piece.len() > SMALL_BODY_BYTES && !permit.is_some() {
                permit = room.take(caller, limit, cost).await?;
            }
            text.extend_from_slice(&piece);
        }
        Ok::<_, V1Error>(Bytes::from(text))
    };
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(text) => Ok(Sent { text: text?, room: permit }),
        Err(_) => {
            let reason = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            let hint = "send it faster, or in smaller requests";
            Err(V1Error::new(StatusCode::REQUEST_TIMEOUT, codes::TIMEOUT, reason, hint))
        }
    }
}

/// A body that is a JSON object.
#[boxed]
pub async fn json_object<'a>(
    room: &'a Room,
    body: Body,
    sender: Sender<'a>,
    limit: usize,
) -> Result<(Map<String, Value>, MemoryPermit), ApiError> {
    let Sent { text, room } = bytes(room, body, sender, limit, Cost::TREE).await?;
    Ok((object(&text, "Request body must be a JSON object")?, room))
}

/// The same, where the rows in one member are not parsed into a tree.
#[boxed]
pub async fn json_rows<'a>(
    room: &'a Room,
    body: Body,
    sender: Sender<'a>,
    (name, limit): (&str, usize),
    cost: Cost,
) -> Result<(Listed, MemoryPermit), ApiError> {
    let Sent { text, room } = bytes(room, body, sender, limit, cost).await?;
    let name = name.to_owned();
    let listed = beside(text.len(), move || Listed::parse(text, &name)).await?;
    let listed = listed.map_err(|error| wrong_json(&error, "Request body must be a JSON object"))?;
    Ok((listed, room))
}

/// Whether the body has this content type, with any parameters.
pub fn has_type(headers: &HeaderMap, content_type: &str) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(content_type)
}

/// Refuses a request without the content type JSON.
pub fn check_json(headers: &HeaderMap) -> Result<(), V1Error> {
    if has_type(headers, "application/json") {
        return Ok(());
    }
    let hint = "send the header Content-Type: application/json, even without a body";
    Err(V1Error::bad_content_type("Content-Type must be application/json", hint))
}

/// Runs work on a text of this size outside of the threads that handle requests, if it is long.
pub async fn beside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, V1Error> {
    match bytes {
        0..=SMALL_BODY_BYTES => Ok(work()),
        _ => tokio::task::spawn_blocking(work).await.map_err(|error| V1Error::internal(&error)),
    }
}

/// Parses JSON text that must be an object.
pub fn object(text: &[u8], otherwise: &str) -> Result<Map<String, Value>, ApiError> {
    if values(text) > MAX_VALUES {
        let reason = format!("this JSON has more than {MAX_VALUES} values");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason));
    }
    serde_json::from_slice(text).map_err(|error| wrong_json(&error, otherwise))
}

/// An upper bound for the number of values in this text.
fn values(text: &[u8]) -> usize {
    let (mut count, mut at) = (1, 0);
    while at < text.len() {
        match text[at] {
            b',' | b'[' | b'{' => count += 1,
            b'"' => {
                at += 1;
                while at < text.len() && text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
            }
            _ => {}
        }
        at += 1;
    }
    count
}

/// The error for a text that is not JSON, or that is not of the required type.
pub fn wrong_json(error: &serde_json::Error, otherwise: &str) -> ApiError {
    let problem = match error.classify() {
        serde_json::error::Category::Data => return ApiError::bad_request(otherwise),
        serde_json::error::Category::Eof => "it ends too early",
        _ => "a mistake",
    };
    // The error states the position and not the text, which may hold a password.
    let (line, column) = (error.line(), error.column());
    ApiError::bad_request(format!("invalid UTF-8 JSON: {problem} at line {line} column {column}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_are_counted_without_a_tree() {
        for (text, count) in
            [("{}", 2), ("{\"a,[\\\"{\": 1}", 2), ("[1,2,{\"a\": [0, 0]}]", 7), ("\"open", 1), ("\"a\\", 1)]
        {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
        let zeros = |count: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(count));
        assert!(object(zeros(MAX_VALUES - 10).as_bytes(), "").is_ok());
        assert_eq!(
            object(zeros(MAX_VALUES).as_bytes(), "").unwrap_err().status,
            StatusCode::PAYLOAD_TOO_LARGE
        );
    }

    #[test]
    fn a_value_that_is_no_object_and_invalid_json_have_different_errors() {
        for (text, reason) in
            [("[]", "otherwise"), ("1", "otherwise"), ("{", "ends too early"), ("{x}", "a mistake at line 1")]
        {
            assert!(object(text.as_bytes(), "otherwise").unwrap_err().reason.contains(reason), "{text}");
        }
    }
}
