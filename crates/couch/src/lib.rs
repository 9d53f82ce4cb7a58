//! CouchDB's API for replications, in this file and those beside it, and the paths of the metrics.
//!
//! There is one [`Target`] per path, and one function per target and method. Shapes, codes and reasons are CouchDB 3.5's;
//! `docs/design/replicator-databases.md` explains the differences.

mod all_docs;
mod app;
mod bulk;
mod call;
mod changes;
mod config;
mod databases;
mod docs;
mod replicate;
mod root;
mod route;
mod scheduler;
mod session;
#[cfg(test)]
mod slow_reader_tests;
mod up;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use turnwise_metrics::Patterns;
use turnwise_replicator::documents::names;
use turnwise_web::access::{Caller, Peer};
use turnwise_web::error::ApiError;
use turnwise_web::names::Names;
use turnwise_web::request::Params;
use turnwise_web::{answer, traced};

use self::call::{check_database, check_use};
use self::route::{Part, Target};

pub use self::app::{App, AppState};
pub use self::call::Call;
pub use self::config::error as setting_error;
pub use self::databases::make as make_database;
pub use self::docs::{delete as delete_document, shown as shown_document, write as write_document};
pub use self::scheduler::{all_databases, is_scheduled};
pub use self::up::problem as store_problem;

/// The routes of this API, for the metrics of requests.
pub const PATTERNS: Patterns = Patterns { all: route::PATTERNS, of: route::pattern };

/// Answers every path that no other router has.
pub fn router(app: App) -> Router {
    Router::new().fallback(answer_request).with_state(app)
}

/// The service of the additional port: the metrics, for everyone who reaches it.
pub fn metrics_router(app: App, names: Names) -> Router {
    let names = Arc::new(names);
    Router::new().fallback(move |request| answer_metrics(app.clone(), names.clone(), request))
}

async fn answer_metrics(app: App, names: Arc<Names>, request: Request) -> Response {
    // A page of another site whose name leads here could read them.
    if let Err(error) = names.check_host(&request) {
        return app.refuse(&request, error);
    }
    let response = match (request.method().as_str(), route::target(request.uri().path())) {
        ("GET" | "HEAD", Ok(Target::Metrics(node, part))) => {
            metrics(&app, request.headers(), node.as_deref(), &part).await
        }
        ("GET" | "HEAD", Ok(_)) => Err(ApiError::not_found("this port has the metrics alone: /metrics")),
        (_, Ok(_)) => Err(ApiError::method("GET,HEAD")),
        (_, Err(error)) => Err(error),
    };
    let response = response.unwrap_or_else(IntoResponse::into_response);
    answer::with_header(response, header::SERVER, concat!("turnwise/", env!("CARGO_PKG_VERSION")))
}

async fn answer_request(State(app): State<App>, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = traced::id(request.headers()).unwrap_or_else(|| app.new_uuid()[..10].to_owned());
    let (request, body_time) = traced::timed(request);
    let response = dispatch(app, request).await.unwrap_or_else(IntoResponse::into_response);
    // The log contains no query and no body: they may hold secrets.
    tracing::debug!(%method, path, id, status = response.status().as_u16(), "request");
    let response = answer::with_header(response, traced::REQUEST_ID, &id);
    let response = answer::with_header(response, traced::BODY_TIME, &body_time.ms().to_string());
    answer::with_header(response, header::SERVER, concat!("turnwise/", env!("CARGO_PKG_VERSION")))
}

async fn dispatch(app: App, request: Request) -> Result<Response, ApiError> {
    let peer = Peer::of(&request);
    let (parts, body) = request.into_parts();
    let caller = Caller::of(&parts.extensions)?;
    let target = route::target(parts.uri.path())?;
    let params = Params::new(parts.uri.query());
    // hyper omits the body of a response to HEAD.
    let method = if parts.method == Method::HEAD { Method::GET } else { parts.method };
    let call = Call { method, params, headers: parts.headers, caller, peer };
    let takes_more = matches!(
        target,
        Target::Replicate | Target::Node(..) | Target::Db(..) | Target::Session | Target::Unknown
    );
    if !takes_more && call.method != Method::GET {
        return Err(ApiError::method("GET,HEAD"));
    }
    target.needed(&call.method).check(&call.caller)?;
    match target {
        Target::Root => root::welcome(&app),
        Target::Up => up::up(&app, &call.caller).await,
        Target::AllDbs => root::all_dbs(&app, &call).await,
        Target::Uuids => root::uuids(&app, &call),
        Target::Session => session::session(&app, &call, body).await,
        Target::Membership => up::membership(&app).await,
        Target::ActiveTasks => scheduler::active_tasks(&app, &call).await,
        Target::SchedulerJobs => scheduler::jobs(&app, &call).await,
        Target::SchedulerJob(id) => scheduler::job(&app, &call, &id).await,
        Target::SchedulerDocs(db) => scheduler::docs(&app, &call, db).await,
        Target::SchedulerDoc(db, id) => {
            check_database(&call, &db)?;
            scheduler::doc(&app, &db, &id).await
        }
        Target::Metrics(node, part) => metrics(&app, &call.headers, node.as_deref(), &part).await,
        Target::Replicate if call.method == Method::POST => replicate::post(&app, &call, body).await,
        Target::Replicate => Err(ApiError::method("POST")),
        Target::Node(node, part) => config::config(&app, &call, body, &node, part).await,
        Target::Db(db, part) => database(&app, &call, body, &db, part).await,
        Target::Unknown => Err(ApiError::not_found("turnwise has nothing under this path")),
    }
}

async fn metrics(
    app: &App,
    headers: &HeaderMap,
    node: Option<&str>,
    part: &turnwise_metrics::Part,
) -> Result<Response, ApiError> {
    if let Some(node) = node
        && !config::check_node(app, node).await?
    {
        let reason = format!("ask {node} itself for its metrics: /_node/_local");
        return Err(ApiError::not_implemented(reason));
    }
    turnwise_metrics::get(&app.metrics, headers, part).await
}

async fn database(app: &App, call: &Call, body: Body, db: &str, part: Part) -> Result<Response, ApiError> {
    check_use(call, db, &part)?;
    match (part, call.method.as_str()) {
        (Part::Itself, "GET") => databases::info(app, db).await,
        (Part::Itself, "PUT") => databases::create(app, call, db).await,
        (Part::Itself, "DELETE") => databases::delete(app, db).await,
        (Part::Itself, "POST") => docs::post(app, call, body, db).await,
        (Part::Itself, _) => Err(ApiError::method("DELETE,GET,HEAD,POST,PUT")),
        (Part::AllDocs, "GET" | "POST") => all_docs::all_docs(app, call, body, db).await,
        (Part::AllDocs, _) => Err(ApiError::method("GET,HEAD,POST")),
        (Part::Changes, "GET" | "POST") => changes::changes(app, call, body, db).await,
        (Part::Changes, _) => Err(ApiError::method("GET,HEAD,POST")),
        (Part::BulkDocs, "POST") => bulk::bulk_docs(app, call, body, db).await,
        (Part::BulkGet, "POST") => bulk::bulk_get(app, call, body, db).await,
        (Part::RevsDiff, "POST") => bulk::revs_diff(app, call, body, db).await,
        (Part::EnsureFullCommit, "POST") => databases::ensure_full_commit(app, db).await,
        (Part::BulkDocs | Part::BulkGet | Part::RevsDiff | Part::EnsureFullCommit, _) => {
            Err(ApiError::method("POST"))
        }
        (Part::Security, "GET") => databases::security(app, db).await,
        (Part::Security, _) => Err(ApiError::method("GET,HEAD")),
        (Part::Doc(id), "GET") => docs::get(app, call, db, &id).await,
        (Part::Doc(id), "PUT") => docs::put(app, call, body, db, &id).await,
        (Part::Doc(id), "DELETE") => docs::delete(app, call, db, &id).await,
        (Part::Doc(_), _) => Err(ApiError::method("DELETE,GET,HEAD,PUT")),
        (Part::Local(id), "GET") => docs::get_local(app, db, &id).await,
        (Part::Local(id), "PUT") => docs::put_local(app, call, body, db, &id).await,
        (Part::Local(id), "DELETE") => docs::delete_local(app, call, db, &id).await,
        (Part::Local(_), _) => Err(ApiError::method("DELETE,GET,HEAD,PUT")),
        (Part::Attachment, "GET") => Err(ApiError::not_found("Document is missing attachment")),
        (Part::Attachment, _) => Err(ApiError::bad_request("replication documents have no attachments")),
        (Part::Unknown(id), "PUT") => {
            Err(names::check_id(&id).err().map_or_else(|| ApiError::not_found("missing"), ApiError::from))
        }
        (Part::Unknown(name), _) => {
            Err(ApiError::not_found(format!("replicator databases have no `{name}`")))
        }
    }
}
