//! `/v1`: jobs for clients, and the protocol of workers in any language.
//!
//! `turnwise-protocol` defines types and limits. `utoipa` reads the routes and their description from the same
//! attributes above the handlers. `docs/design/http-api.md` explains the design.

mod accepting;
mod add;
mod body;
mod builtin_types;
pub(in crate::http) mod bulk;
mod counts;
mod demand;
mod error;
mod events;
mod extract;
pub(in crate::http) mod filters;
pub(in crate::http) mod fleets;
pub(in crate::http) mod history;
pub(in crate::http) mod identities;
pub(in crate::http) mod indexes;
pub(in crate::http) mod jobs;
pub(in crate::http) mod list;
pub(in crate::http) mod locks;
pub(in crate::http) mod members;
pub(in crate::http) mod modes;
pub(in crate::http) mod nodes;
mod openapi;
mod position_text;
mod quota;
mod run_locks;
pub(in crate::http) mod sorted;
mod stream;
pub(in crate::http) mod tenants;
mod view;
pub(in crate::http) mod webhooks;
pub(in crate::http) mod why;
pub(in crate::http) mod workers;
mod workers_of;

use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use turnwise_protocol::Error;
use utoipa::{IntoResponses, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::answer;
use super::cross_site;

pub(crate) use self::accepting::Accepting;
pub(crate) use self::bulk::CallerGate;
pub(in crate::http) use self::error::V1Error;
pub(in crate::http) use self::extract::JobPath;
pub(crate) use self::quota::WaitingJobs;
pub(crate) use self::stream::Sequence;
pub(crate) use self::workers_of::RegisteredBy;

/// Errors that every request may cause.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the description alone")]
enum Common {
    /// `bad_request`, `bad_json`: correct the request.
    #[response(status = 400)]
    Bad(Error),
    /// `unauthorized`: the request needs credentials, and has none, or wrong ones.
    #[response(status = 401)]
    Unauthorized(Error),
    /// `forbidden`: this identity may not do this; or see the description of the request.
    #[response(status = 403)]
    Forbidden(Error),
    /// The URL is longer than 65,534 bytes. There is no body, and the server closes the connection.
    #[response(status = 414)]
    LongUrl,
    /// `misdirected_request`: the header `Host` has a name that is not the server's.
    #[response(status = 421)]
    Misdirected(Error),
    /// `too_many_requests`: too many wrong passwords. The header `Retry-After` has the time in s.
    #[response(status = 429)]
    TooMany(Error),
    /// The head of the request has more than 100 headers, or is larger than 256 KiB. There is no body, and the server closes the connection.
    #[response(status = 431)]
    LargeHead,
    /// `internal_server_error`: an internal error of the server. Its log has the details.
    #[response(status = 500)]
    Internal(Error),
    /// `service_unavailable`, `unknown_outcome`: the server is stopping, or its store is unavailable. Try again.
    #[response(status = 503)]
    Unavailable(Error),
}

/// Errors of requests with a body.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the description alone")]
enum BadBody {
    /// `timeout`: the body did not arrive in time.
    #[response(status = 408)]
    Timeout(Error),
    /// `too_large`: the body is too large.
    #[response(status = 413)]
    TooLarge(Error),
    /// `bad_content_type`: the body is not declared as JSON, or has a content encoding other than gzip and identity.
    #[response(status = 415)]
    BadContentType(Error),
}

/// Errors of requests about a job.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the description alone")]
enum NoJob {
    /// `not_found`: the job does not exist.
    #[response(status = 404)]
    NotFound(Error),
}

/// Errors of requests from workers.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the description alone")]
enum NoWorker {
    /// `forbidden`: the server manages this type or this worker itself.
    #[response(status = 403)]
    Forbidden(Error),
    /// `unknown_worker`: the id does not have the form of an id that the server assigns to workers.
    #[response(status = 404)]
    UnknownWorker(Error),
}

/// Errors of requests from registered workers.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the description alone")]
enum Membership {
    /// `expired_worker`: the worker is not registered any more. It stops all its jobs, sends nothing more for them, and
    /// registers again.
    #[response(status = 410)]
    Expired(Error),
}

/// Errors of requests about a job that a worker runs.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the description alone")]
enum LostClaim {
    /// `halt`: the worker does not hold the job under this claim any more. It stops the job and sends nothing more for it.
    #[response(status = 409)]
    Halt(Error),
}

/// The routes with their description.
fn described() -> (Router<App>, utoipa::openapi::OpenApi) {
    let routes = OpenApiRouter::new()
        .routes(routes!(add::add_jobs, list::list_jobs))
        .routes(routes!(add::add_job))
        .routes(routes!(jobs::get_job, jobs::remove_job))
        .routes(routes!(jobs::wait_for_job))
        .routes(routes!(events::follow_job))
        .routes(routes!(stream::follow_jobs))
        .routes(routes!(webhooks::list_webhooks))
        .routes(routes!(webhooks::get_webhook, webhooks::put_webhook, webhooks::remove_webhook))
        .routes(routes!(jobs::cancel_job))
        .routes(routes!(jobs::retry_job))
        .routes(routes!(jobs::set_priority))
        .routes(routes!(bulk::match_jobs))
        .routes(routes!(bulk::list_bulks))
        .routes(routes!(bulk::get_bulk, bulk::put_bulk, bulk::stop_bulk))
        .routes(routes!(why::why_job))
        .routes(routes!(why::why_document))
        .routes(routes!(counts::count_jobs))
        .routes(routes!(sorted::count_failures))
        .routes(routes!(history::get_history))
        .routes(routes!(tenants::list_tenants))
        .routes(routes!(tenants::get_queue))
        .routes(routes!(filters::list_filters))
        .routes(routes!(filters::get_filter, filters::put_filter, filters::remove_filter))
        .routes(routes!(list::list_types))
        .routes(routes!(demand::get_demand))
        .routes(routes!(locks::list_locks))
        .routes(routes!(members::list_workers))
        .routes(routes!(modes::set_worker_mode))
        .routes(routes!(nodes::list_nodes))
        .routes(routes!(modes::set_node_mode))
        .routes(routes!(nodes::get_store))
        .routes(routes!(indexes::list_indexes))
        .routes(routes!(fleets::list_fleets))
        .routes(routes!(fleets::put_fleet, fleets::remove_fleet))
        .routes(routes!(workers::register))
        .routes(routes!(workers::ping))
        .routes(routes!(workers::accept))
        .routes(routes!(workers::update))
        .routes(routes!(workers::finish))
        .routes(routes!(workers::fail))
        .routes(routes!(workers::release))
        .routes(routes!(workers::end_runs))
        .routes(routes!(run_locks::lock, run_locks::unlock))
        .routes(routes!(workers::leave))
        .routes(routes!(identities::get_me))
        .routes(routes!(identities::list_users, identities::add_user))
        .routes(routes!(identities::remove_user))
        .routes(routes!(identities::set_password))
        .routes(routes!(identities::set_scopes))
        .routes(routes!(identities::list_tokens, identities::add_token))
        .routes(routes!(identities::revoke_token))
        .routes(routes!(identities::rotate_token));
    OpenApiRouter::with_openapi(openapi::Description::openapi()).nest("/v1", routes).split_for_parts()
}

/// The description: the response of `/v1/openapi.json`, and the text of `docs/openapi.json`.
pub(crate) fn description() -> bytes::Bytes {
    openapi::text(&described().1)
}

/// Everything under `/v1`.
pub(super) fn router() -> Router<App> {
    let (routes, description) = described();
    let description = openapi::text(&description);
    routes
        // Not for methods that a route does not support.
        .route_layer(from_fn(cross_site::check_json))
        .route("/v1/openapi.json", get(move || async move { openapi::answer(description) }))
        .route("/v1", axum::routing::any(error::no_such_path))
        .route("/v1/", axum::routing::any(error::no_such_path))
        .route("/v1/{*rest}", axum::routing::any(error::no_such_path))
        .method_not_allowed_fallback(error::no_such_method)
        .layer(from_fn(logged))
}

/// The panic hook has already logged the cause.
#[derive(Debug, thiserror::Error)]
#[error("the handler of a request panicked")]
struct Panicked;

async fn logged(mut request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let room = body::BodyMemory::default();
    request.extensions_mut().insert(room.clone());
    // A panic in a handler is a bug, and the client still gets a response.
    let response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => error::V1Error::internal(&Panicked).into_response(),
    };
    drop(room);
    // The log contains no query and no body: they may hold secrets.
    tracing::debug!(%method, path, status = response.status().as_u16(), "request");
    answer::with_header(response, header::SERVER, concat!("turnwise/", env!("CARGO_PKG_VERSION")))
}
