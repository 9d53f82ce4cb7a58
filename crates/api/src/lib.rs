//! `/v1`: jobs for clients, and the protocol of workers in any language.
//!
//! `turnwise-protocol` defines types and limits. `utoipa` reads the routes and their description from the same
//! attributes above the handlers. `docs/design/http-api.md` explains the design.

mod accepting;
mod add;
mod body;
mod builtin_types;
pub mod bulk;
mod catalogue;
mod counts;
mod demand;
mod error;
pub mod event_log;
mod events;
mod extract;
pub mod filters;
pub mod fleets;
pub mod history;
pub mod identities;
pub mod indexes;
pub mod jobs;
pub mod list;
pub mod locks;
pub mod members;
pub mod modes;
pub mod nodes;
mod openapi;
mod position_text;
mod quota;
mod run_locks;
pub mod sight;
pub mod sorted;
mod stream;
pub mod tenants;
pub mod tokens;
mod view;
pub mod webhooks;
pub mod why;
pub mod workers;
mod workers_of;

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use turnwise_indexer::jobs::Indexing;
use turnwise_protocol::Error;
use turnwise_store::StoreUrl;
use turnwise_web::pool::Pool;
use turnwise_web::{Web, answer, cross_site};
use turnwise_worker::{External, Spans};
use utoipa::{IntoResponses, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::event_log::Events;

pub use self::accepting::Accepting;
pub use self::bulk::CallerGate;
pub use self::catalogue::read as read_catalogue;
pub use self::error::V1Error;
pub use self::extract::JobPath;
pub use self::quota::WaitingJobs;
pub use self::stream::Sequence;
pub use self::workers_of::RegisteredBy;

/// The state of this API.
#[derive(Clone)]
pub struct App(Arc<AppState>);

/// See [`App`].
pub struct AppState {
    /// What all requests share.
    pub web: Web,
    /// The store's URL.
    pub store_url: StoreUrl,
    /// Acts for external workers.
    pub external: External,
    /// Their heartbeat interval, and the timeout for missed heartbeats.
    pub health: Health,
    /// Their current requests for jobs.
    pub accepting: Accepting,
    /// Who has registered external workers.
    pub workers: RegisteredBy,
    /// Runs jobs of type `command`. `None` if this node runs none.
    pub commands: Option<Arc<turnwise_command::Handler>>,
    /// The servers whose indexes this node builds.
    pub indexing: Indexing,
    /// The numbers of waiting jobs, for the limit of each identity.
    pub waiting_jobs: WaitingJobs,
    /// Counts of jobs by condition, of which each takes long.
    pub counts: Pool,
    /// The events of all jobs.
    pub events: Events,
    /// Where the spans of traced jobs go.
    pub spans: Spans,
}

/// See [`AppState::health`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// How often a worker sends a heartbeat.
    pub interval: Duration,
    /// How long one may be missing.
    pub timeout: Duration,
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl Deref for AppState {
    type Target = Web;

    fn deref(&self) -> &Web {
        &self.web
    }
}

impl App {
    /// With this state.
    pub fn new(state: AppState) -> Self {
        App(Arc::new(state))
    }

    /// Everything under `/v1`.
    pub fn router(self) -> Router {
        router().with_state(self)
    }

    /// The longest time that a request waits.
    pub fn max_wait(&self) -> Duration {
        self.config.get().jobs.max_wait
    }
}

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
pub fn description() -> bytes::Bytes {
    openapi::text(&described().1)
}

/// Everything under `/v1`.
fn router() -> Router<App> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use turnwise_web::access::rights::V1;

    /// The routes are those of the router: its description is generated from it.
    #[test]
    fn every_route_has_a_row_and_every_row_has_a_route() {
        let description: serde_json::Value = serde_json::from_slice(&super::description()).unwrap();
        let routes: BTreeSet<(String, String)> = description["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        let own = ("GET".to_owned(), "/v1/openapi.json".to_owned());
        let rows: BTreeSet<(String, String)> =
            V1.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
        assert_eq!(rows.len(), V1.len(), "a row is there twice");
        let without: Vec<_> = routes.difference(&rows).collect();
        assert!(without.is_empty(), "routes without a row: {without:?}");
        let unused: Vec<_> = rows.difference(&routes).filter(|row| **row != own).collect();
        assert!(unused.is_empty(), "rows without a route: {unused:?}");
    }
}
