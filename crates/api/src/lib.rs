//! `/v1`: jobs for clients, and the protocol of workers in any language.
//!
//! `turnwise-protocol` defines types and limits. `utoipa` reads the routes and their description from the same
//! attributes above the handlers. `docs/design/http-api.md` explains the design.

mod accepting;
pub mod add;
mod app;
mod body;
mod builtin_types;
pub mod bulk;
mod catalogue;
mod counts;
mod demand;
pub mod edit;
mod error;
pub mod event_log;
mod events;
mod extract;
pub mod filters;
pub mod fleets;
mod given;
pub mod group_why;
pub mod groups;
pub mod history;
pub mod identities;
pub mod indexes;
mod inputs;
pub mod jobs;
pub mod list;
pub mod locks;
pub mod members;
pub mod modes;
pub mod nodes;
mod openapi;
pub mod output;
mod position_text;
mod quota;
mod responses;
mod run_locks;
pub mod schedules;
pub mod sight;
pub mod sorted;
mod stream;
pub mod tenants;
pub mod testing;
pub mod tokens;
mod types;
mod unique;
mod view;
pub mod webhooks;
mod whole;
pub mod why;
pub mod workers;
mod workers_of;

use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use turnwise_web::{answer, cross_site};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::accepting::Accepting;
pub use self::app::{App, AppState};
pub use self::bulk::CallerGate;
pub use self::catalogue::read as read_catalogue;
pub use self::error::V1Error;
pub use self::extract::JobPath;
pub use self::groups::GroupPath;
pub use self::quota::WaitingJobs;
pub use self::stream::{EVENTS, Sequence};
pub use self::workers_of::RegisteredBy;

/// The routes with their description.
fn described() -> (Router<App>, utoipa::openapi::OpenApi) {
    let routes = OpenApiRouter::new()
        .routes(routes!(add::add_jobs, list::list_jobs))
        .routes(routes!(add::add_job))
        .routes(routes!(jobs::get_job, edit::edit_job, jobs::remove_job))
        .routes(routes!(jobs::wait_for_job))
        .routes(routes!(events::follow_job))
        .routes(routes!(output::get_logs))
        .routes(routes!(output::get_options))
        .routes(routes!(output::get_result))
        .routes(routes!(stream::follow_jobs))
        .routes(routes!(webhooks::list_webhooks))
        .routes(routes!(webhooks::get_webhook, webhooks::put_webhook, webhooks::remove_webhook))
        .routes(routes!(schedules::list_schedules))
        .routes(routes!(schedules::get_schedule, schedules::put_schedule, schedules::remove_schedule))
        .routes(routes!(schedules::preview_schedule))
        .routes(routes!(schedules::pause_schedule))
        .routes(routes!(schedules::resume_schedule))
        .routes(routes!(schedules::fire_schedule))
        .routes(routes!(schedules::backfill_schedule))
        .routes(routes!(schedules::preview_unstored))
        .routes(routes!(groups::list_groups, groups::create_group))
        .routes(routes!(groups::get_group, groups::remove_group))
        .routes(routes!(groups::close_group))
        .routes(routes!(group_why::why_group))
        .routes(routes!(jobs::cancel_job))
        .routes(routes!(jobs::retry_job))
        .routes(routes!(edit::hold_job))
        .routes(routes!(edit::release_job))
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
        .routes(routes!(filters::pause_rate))
        .routes(routes!(list::list_types))
        .routes(routes!(types::list_type_terms))
        .routes(routes!(types::get_type_terms, types::put_type_terms, types::remove_type_terms))
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
        .routes(routes!(workers::snooze))
        .routes(routes!(workers::release))
        .routes(routes!(workers::end_runs))
        .routes(routes!(given::get_input))
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
pub fn router(app: App) -> Router {
    let (routes, description) = described();
    let description = openapi::text(&description);
    routes
        // Not for methods that a route does not support.
        .route_layer(from_fn_with_state(app.web.clone(), cross_site::check_json))
        .route("/v1/openapi.json", get(move || async move { openapi::answer(description) }))
        .route("/v1", axum::routing::any(error::no_such_path))
        .route("/v1/", axum::routing::any(error::no_such_path))
        .route("/v1/{*rest}", axum::routing::any(error::no_such_path))
        .method_not_allowed_fallback(error::no_such_method)
        .layer(from_fn(logged))
        .with_state(app)
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
