//! What a handler gets and returns: names in the path and parameters of the query, within their limits, and a value for the response.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use turnwise_protocol::{codes, json, names};
use turnwise_web::access::Caller;
use turnwise_web::answer;
use utoipa::IntoParams;

use super::app::App;
use super::builtin_types;
use super::error::{Result, V1Error};

/// Longest part of an invalid value that a response repeats, in bytes.
const MAX_MISTAKE_BYTES: usize = 300;
pub(super) const SEE_OPENAPI: &str = "GET /v1/openapi.json describes what this request may contain";

/// Defines a path with one name, and the function that checks the name.
macro_rules! path_with_name {
    ($(#[$path_doc:meta])* $path:ident($check:expr): $(#[$name_attribute:meta])* $name:ident) => {
        $(#[$path_doc])*
        #[derive(serde::Deserialize, utoipa::IntoParams)]
        #[into_params(parameter_in = Path)]
        pub(super) struct $path {
            $(#[$name_attribute])*
            pub $name: String,
        }

        impl $crate::extract::Names for $path {
            fn check(&self) -> $crate::error::Result<()> {
                $check(&self.$name).map_err(Into::into)
            }
        }
    };
}
pub(super) use path_with_name;

path_with_name! {
    /// `/{type}`
    TypePath(names::check_type):
    /// The job type.
    #[serde(rename = "type")]
    #[param(value_type = names::JobType)]
    job_type
}

/// `/{type}/{id}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct JobPath {
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

/// `/{type}/{worker}/jobs/{id}/inputs/{input}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct InputPath {
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
    /// The name of the input.
    #[param(min_length = 1, max_length = 64)]
    pub input: String,
}

/// The names in a path.
pub(super) trait Names: DeserializeOwned + Send {
    /// Checks that the names are valid, and that clients may have workers with them.
    fn check(&self) -> Result<()>;

    /// The type and the id of the worker that sends the request, if it is a request of a worker.
    fn worker(&self) -> Option<(&str, &str)> {
        None
    }
}

impl Names for () {
    fn check(&self) -> Result<()> {
        Ok(())
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

    fn worker(&self) -> Option<(&str, &str)> {
        Some((&self.job_type, &self.worker))
    }
}

impl Names for RunPath {
    fn check(&self) -> Result<()> {
        check_worker(&self.job_type, &self.worker)?;
        Ok(names::check_id(&self.id)?)
    }

    fn worker(&self) -> Option<(&str, &str)> {
        Some((&self.job_type, &self.worker))
    }
}

impl Names for InputPath {
    fn check(&self) -> Result<()> {
        check_worker(&self.job_type, &self.worker)?;
        Ok(names::check_id(&self.id)?)
    }

    fn worker(&self) -> Option<(&str, &str)> {
        Some((&self.job_type, &self.worker))
    }
}

fn check_worker(job_type: &str, id: &str) -> Result<()> {
    names::check_type(job_type)?;
    builtin_types::check_workable(job_type)?;
    match names::is_worker_id(id) {
        true => Ok(()),
        false => Err(V1Error::new(
            StatusCode::NOT_FOUND,
            codes::UNKNOWN_WORKER,
            "no worker can have this id",
            "register with POST /v1/workers/{type}, and use the `worker` of the response",
        )),
    }
}

/// A request without its query and its body: who sends it, and the names in its path, checked.
pub(super) struct Call<P = ()> {
    pub app: App,
    pub caller: Caller,
    pub path: P,
}

impl<P: Names> FromRequestParts<App> for Call<P> {
    type Rejection = V1Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let caller = Caller::of(&parts.extensions)?;
        let wrong = |_| V1Error::bad("the path is not UTF-8", "percent-encode the UTF-8 bytes of each name");
        let Path(path) = Path::<P>::from_request_parts(parts, app).await.map_err(wrong)?;
        let valid = path.check();
        if let Some(worker) = path.worker() {
            let is_ping = parts.uri.path().ends_with("/ping");
            app.workers.check(app, &caller, worker, is_ping, valid).await?;
        } else {
            valid?;
        }
        Ok(Call { app: app.clone(), caller, path })
    }
}

/// The parameters of the query. Unknown ones are rejected.
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

/// Checks an id with a bound of its own. `what` is the member, and what has the bound.
pub(super) fn check_short(what: &str, id: &str, most: usize) -> Result<()> {
    if id.len() > most {
        return Err(V1Error::bad(format!("{what} has more than {most} bytes"), "choose a shorter one"));
    }
    Ok(names::check_id(id)?)
}

/// Checks a name, if it is stated.
pub(super) fn check_stated(
    name: &Option<String>,
    check: impl FnOnce(&str) -> Result<(), names::Problem>,
) -> Result<()> {
    Ok(name.as_deref().map_or(Ok(()), check)?)
}

pub(super) fn shortened(text: &str) -> String {
    match text.floor_char_boundary(MAX_MISTAKE_BYTES) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

/// A value as the JSON of a response, with status 200 if no other one is given with it.
pub(super) struct Shown<T>(pub T);

impl<T: Serialize> IntoResponse for Shown<T> {
    fn into_response(self) -> Response {
        answer::ok(&self.0)
    }
}

/// The same of a response of which there is one for each job.
pub(super) struct Frequent<T>(pub T);

impl<T: json::Frequent> IntoResponse for Frequent<T> {
    fn into_response(self) -> Response {
        answer::text(StatusCode::OK, self.0.to_json())
    }
}
