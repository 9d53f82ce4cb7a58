//! What comes with a request, within its bounds: names in the path, parameters, and the body.

use std::fmt;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::StreamExt;
use percent_encoding::percent_decode_str;
use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use turnwise_protocol::{MAX_BODY_BYTES, MAX_DEPTH, Object, codes, names};
use utoipa::IntoParams;

use super::error::{Result, V1Error};
use super::owned;
use crate::http::App;

/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// What an answer repeats of a mistake, in bytes.
const MAX_MISTAKE_BYTES: usize = 300;
const SEE_OPENAPI: &str = "GET /v1/openapi.json tells what this request may hold";

/// `/{type}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct TypePath {
    /// The job type.
    #[serde(rename = "type")]
    #[param(value_type = names::JobType)]
    pub job_type: String,
}

/// `/{type}/{id}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct JobPath {
    /// The job's type.
    #[serde(rename = "type")]
    #[param(value_type = names::JobType)]
    pub job_type: String,
    /// The job's id, percent-encoded.
    #[param(value_type = names::JobId)]
    pub id: String,
}

/// `/{type}/{worker}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct WorkerPath {
    /// The job type that the worker is registered for.
    #[serde(rename = "type")]
    #[param(value_type = names::JobType)]
    pub job_type: String,
    /// The worker's id.
    #[param(value_type = names::WorkerId)]
    pub worker: String,
}

/// `/{type}/{worker}/jobs/{id}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct RunPath {
    /// The job's type.
    #[serde(rename = "type")]
    #[param(value_type = names::JobType)]
    pub job_type: String,
    /// The id of the worker that runs it.
    #[param(value_type = names::WorkerId)]
    pub worker: String,
    /// The job's id, percent-encoded.
    #[param(value_type = names::JobId)]
    pub id: String,
}

/// The names of a path.
pub(super) trait Names: DeserializeOwned + Send {
    /// Whether they can be names at all, and of workers that clients may have.
    fn check(&self) -> Result<()>;
}

impl Names for TypePath {
    fn check(&self) -> Result<()> {
        Ok(names::check_type(&self.job_type)?)
    }
}

impl Names for JobPath {
    fn check(&self) -> Result<()> {
        names::check_type(&self.job_type)?;
        Ok(names::check_id(&self.id)?)
    }
}

impl Names for WorkerPath {
    fn check(&self) -> Result<()> {
        check_worker(&self.job_type, &self.worker)
    }
}

impl Names for RunPath {
    fn check(&self) -> Result<()> {
        check_worker(&self.job_type, &self.worker)?;
        Ok(names::check_id(&self.id)?)
    }
}

fn check_worker(job_type: &str, id: &str) -> Result<()> {
    names::check_type(job_type)?;
    owned::check_workable(job_type)?;
    match names::is_worker_id(id) {
        true => Ok(()),
        false => Err(V1Error::new(
            StatusCode::NOT_FOUND,
            codes::UNKNOWN_WORKER,
            "the server gives no such ids to workers",
            "register with POST /v1/workers/{type}, and use the `worker` of its answer",
        )),
    }
}

/// The names of the path, checked.
pub(super) struct Named<T>(pub T);

impl<T: Names> FromRequestParts<App> for Named<T> {
    type Rejection = V1Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let wrong = |_| V1Error::bad("the path is not UTF-8", "percent-encode the UTF-8 bytes of each name");
        let Path(names) = Path::<T>::from_request_parts(parts, app).await.map_err(wrong)?;
        names.check()?;
        Ok(Named(names))
    }
}

/// The parameters of the query; unknown ones are refused.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = V1Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self> {
        if percent_decode_str(parts.uri.query().unwrap_or_default()).decode_utf8().is_err() {
            return Err(V1Error::bad(
                "the query is not UTF-8",
                "percent-encode the UTF-8 bytes of each value",
            ));
        }
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(error) => {
                let error =
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                Err(V1Error::bad(format!("the query: {}", shortened(&error)), SEE_OPENAPI))
            }
        }
    }
}

/// A body of at most `MAX` bytes: a JSON object that is a `T`.
pub(super) struct Json<T, const MAX: usize = MAX_BODY_BYTES>(pub T);

impl<T: DeserializeOwned, const MAX: usize> FromRequest<App> for Json<T, MAX> {
    type Rejection = V1Error;

    async fn from_request(request: Request, _: &App) -> Result<Self> {
        check_content_type(request.headers())?;
        let bytes = match tokio::time::timeout(BODY_TIMEOUT, read(request, MAX)).await {
            Ok(bytes) => bytes?,
            Err(_) => {
                let reason = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
                let hint = "send it faster, or in smaller requests";
                return Err(V1Error::new(StatusCode::REQUEST_TIMEOUT, codes::TIMEOUT, reason, hint));
            }
        };
        parse(&bytes).map(Json)
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<()> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(V1Error::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        codes::BAD_CONTENT_TYPE,
        "the body is not declared as JSON",
        "send the header Content-Type: application/json",
    ))
}

async fn read(request: Request, limit: usize) -> Result<Bytes> {
    let too_large = || {
        let hint = "put large data elsewhere and name its place in the options, or send fewer jobs at once";
        V1Error::too_large(format!("the body is too large: at most {limit} bytes are allowed"), hint)
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut pieces = request.into_body().into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        // It broke off: nobody reads the answer.
        let piece = piece.map_err(|_| V1Error::bad("the body broke off", "send all of it"))?;
        if bytes.len() + piece.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

/// Reads a body.
///
/// First as JSON of any shape: what a job carries is passed on as it was written, and whoever reads it later, with
/// whatever library, must be able to. So nothing is nested deeper than they can go, every number is one, and every text is
/// Unicode.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let readable = Readable { depth: 0 }.deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = readable {
        let reason = format!("the body is not JSON that can be read: {}", shortened(&error.to_string()));
        let hint =
            "send one JSON object, UTF-8, nested no deeper than 100, without numbers beyond a double's range";
        return Err(V1Error::new(StatusCode::BAD_REQUEST, codes::BAD_JSON, reason, hint));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, Object<T>>(&mut json) {
        Ok(Object(value)) => Ok(value),
        Err(error) => {
            let place = error.path().to_string();
            let mistake = shortened(&error.into_inner().to_string());
            let reason = match place.as_str() {
                "." => mistake,
                place => format!("{}: {mistake}", shortened(place)),
            };
            Err(V1Error::bad(reason, SEE_OPENAPI))
        }
    }
}

fn shortened(text: &str) -> String {
    match text.floor_char_boundary(MAX_MISTAKE_BYTES) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

/// Reads any JSON and keeps nothing of it.
struct Readable {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Readable {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Readable {
    fn inner<E: serde::de::Error>(&self) -> Result<Readable, E> {
        match self.depth {
            MAX_DEPTH => Err(E::custom(format!("nested deeper than {MAX_DEPTH}"))),
            depth => Ok(Readable { depth: depth + 1 }),
        }
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self.inner::<A::Error>()?)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(self.inner::<A::Error>()?)?.is_some() {
            map.next_value_seed(self.inner::<A::Error>()?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use turnwise_protocol::{AddJob, AddJobs};

    fn refused<T: DeserializeOwned>(body: &str) -> String {
        let Err(error) = parse::<T>(body.as_bytes()) else { panic!("taken: {body}") };
        format!("{error:?}")
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let told = refused::<AddJobs>(r#"{"jobs": [{"type": "a"}, {"type": "b", "delay_ms": "1"}]}"#);
        assert!(told.contains("jobs[1].delay_ms: invalid type"), "{told}");
        assert!(refused::<AddJob>("[]").contains("expected an object"));
        assert!(refused::<AddJob>(&format!("{{\"{}\": 1}}", "x".repeat(10_000))).len() < 1_000);
    }

    #[test]
    fn json_that_others_could_not_read_is_refused() {
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

    #[test]
    fn what_a_job_carries_stays_as_it_was_written() {
        let job = parse::<AddJob>(br#"{"options": {"b": 1.00, "a": 12345678901234567890123}}"#).unwrap();
        assert_eq!(job.options.unwrap().get(), r#"{"b": 1.00, "a": 12345678901234567890123}"#);
    }
}
