//! Request bodies: read within their limits, and checked against their types.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use turnwise_protocol::{MAX_BODY_BYTES, Nothing, Object, codes};
use turnwise_web::access::Caller;
use turnwise_web::request::{self, Sent};
use turnwise_web::room::{Cost, MemoryPermit, Room, SMALL_BODY_BYTES};

use super::app::App;
use super::error::{Result, V1Error};
use super::extract::{SEE_OPENAPI, shortened};

/// A body of at most `MAX` bytes: a JSON object that represents a `T`.
pub(super) struct Json<T, const MAX: usize = MAX_BODY_BYTES>(pub T);

impl<T: DeserializeOwned + Send + 'static, const MAX: usize> FromRequest<App> for Json<T, MAX> {
    type Rejection = V1Error;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        request::check_json(request.headers())?;
        let caller = request.extensions().get::<Caller>().cloned().unwrap_or_else(Caller::nobody);
        let memory = request.extensions().get::<BodyMemory>().cloned();
        let Sent { text, room } = read(&app.body_room, &caller, request, MAX).await?;
        // Outside of the threads that handle requests if it is large: many of them would keep all others waiting.
        let parsed = request::beside(text.len(), move || parse(&text)).await?;
        if let Some(memory) = memory {
            *memory.0.lock().unwrap_or_else(PoisonError::into_inner) = room;
        }
        parsed.map(Json)
    }
}

/// Reads a body whose text is parsed into values.
async fn read(room: &Room, caller: &Caller, request: Request, limit: usize) -> Result<Sent> {
    let (parts, body) = request.into_parts();
    request::bytes(room, body, (caller, &parts.headers), limit, Cost::TEXT).await
}

/// The memory reserved for a request's body, until the response is complete: data from the body stays in memory until then.
#[derive(Clone, Default)]
pub(super) struct BodyMemory(Arc<Mutex<MemoryPermit>>);

/// The body of a request whose path states everything: an empty object, or no bytes.
pub(super) struct NoBody;

impl FromRequest<App> for NoBody {
    type Rejection = V1Error;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        if request.body().is_end_stream() {
            return Ok(NoBody);
        }
        Json::<Nothing, SMALL_BODY_BYTES>::from_request(request, app).await.map(|_| NoBody)
    }
}

/// The body of a request that may state nothing: a JSON object, or no bytes.
pub(super) struct OrNothing<T>(pub T);

impl<T: DeserializeOwned + Default + Send + 'static> FromRequest<App> for OrNothing<T> {
    type Rejection = V1Error;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        if request.body().is_end_stream() {
            return Ok(OrNothing(T::default()));
        }
        Json::<T, SMALL_BODY_BYTES>::from_request(request, app).await.map(|Json(body)| OrNothing(body))
    }
}

/// Parses a body.
///
/// First as JSON of any shape that every JSON library can read.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let text = turnwise_protocol::json::check_body(bytes).map_err(|error| {
        let reason = format!("the body is not JSON that can be read: {}", shortened(&error.to_string()));
        let hint =
            "send one JSON object, UTF-8, nested no deeper than 100, without numbers beyond a double's range";
        V1Error::new(StatusCode::BAD_REQUEST, codes::BAD_JSON, reason, hint)
    })?;
    if let Ok(Object(value)) = serde_json::from_str(text) {
        return Ok(value);
    }
    // Once more, to find the place of the mistake: keeping track of it costs as much as the rest.
    let mut json = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, Object<T>>(&mut json) {
        Ok(Object(value)) => Ok(value),
        Err(error) => {
            let place = error.path().to_string();
            let mistake = shortened(&without_value(&error.into_inner().to_string()));
            let reason = match place.as_str() {
                "." => mistake,
                place => format!("{}: {mistake}", shortened(place)),
            };
            Err(V1Error::bad(reason, SEE_OPENAPI))
        }
    }
}

/// An error message without the value that was found in place of the expected one: it may be a password in the wrong member.
fn without_value(mistake: &str) -> String {
    match (mistake.find("string \""), mistake.rfind("\", expected")) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}a text{}", &mistake[..begin], &mistake[end + 1..])
        }
        _ => mistake.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use axum::http::header;
    use turnwise_protocol::{AddJob, AddJobs, MAX_DEPTH};

    fn refused<T: DeserializeOwned>(body: &str) -> String {
        let Err(error) = parse::<T>(body.as_bytes()) else { panic!("taken: {body}") };
        format!("{error:?}")
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let told = refused::<AddJobs>(r#"{"jobs": [{"type": "a"}, {"type": "b", "delay_ms": "1"}]}"#);
        assert!(told.contains("jobs[1].delay_ms: invalid type"), "{told}");
        assert!(refused::<AddJob>("[]").contains("expected an object"));
        for body in [r#""hunter2""#, r#"{"delay_ms": "hunter2"}"#, r#"{"id": ["hunter2\", expected"]}"#] {
            let told = refused::<AddJob>(body);
            assert!(told.contains("expected") && !told.contains("hunter2"), "{told}");
        }
        assert!(refused::<AddJob>(&format!("{{\"{}\": 1}}", "x".repeat(10_000))).len() < 1_000);
    }

    #[test]
    fn json_that_other_libraries_cannot_read_is_refused() {
        for options in
            ["1e999", r#""\ud800""#, r#""\u12""#, "01", "NaN", "\"\u{1}\"", "[1,]", r#"{"a":1 "b":2}"#]
        {
            let told = refused::<AddJob>(&format!("{{\"options\": {options}}}"));
            assert!(told.contains("bad_json"), "{options}: {told}");
        }
        assert!(parse::<AddJob>(b"{\"options\": \"\xff\"}").is_err());
        let nested = |depth: usize| format!("{{\"options\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse::<AddJob>(nested(MAX_DEPTH - 1).as_bytes()).is_ok());
        assert!(refused::<AddJob>(&nested(MAX_DEPTH)).contains("nested deeper"));
        refused::<AddJob>(&nested(1_000_000));
        assert!(refused::<AddJob>("{} {}").contains("bad_json"));
    }

    #[tokio::test]
    async fn a_large_body_waits_for_room_and_a_small_one_does_not() {
        let (room, caller) = (Room::of_kb(24 << 10), Caller::everyone());
        let read = |request, limit| super::read(&room, &caller, request, limit);
        let declared = |bytes: usize| {
            let request = Request::builder().header(header::CONTENT_LENGTH, bytes);
            request.body(axum::body::Body::from(vec![b' '; bytes])).unwrap()
        };
        let chunked = |bytes: usize| Request::new(axum::body::Body::from(vec![b' '; bytes]));
        let first = read(declared(8 << 20), 8 << 20).await.unwrap();
        for request in [declared(SMALL_BODY_BYTES + 1), chunked(SMALL_BODY_BYTES + 1)] {
            let mut reading = std::pin::pin!(read(request, 1 << 20));
            assert!(futures::poll!(reading.as_mut()).is_pending());
        }
        for request in [declared(SMALL_BODY_BYTES), chunked(SMALL_BODY_BYTES), chunked(0)] {
            read(request, 1 << 20).await.unwrap();
        }
        let mut reading = std::pin::pin!(read(chunked(100_000), 1 << 20));
        assert!(futures::poll!(reading.as_mut()).is_pending());
        drop(first);
        assert_eq!(reading.await.unwrap().text.len(), 100_000);
    }

    #[test]
    fn a_jobs_values_keep_their_text() {
        let job = parse::<AddJob>(br#"{"options": {"b": 1.00, "a": 12345678901234567890123}}"#).unwrap();
        assert_eq!(job.options.unwrap().get(), r#"{"b": 1.00, "a": 12345678901234567890123}"#);
    }
}
