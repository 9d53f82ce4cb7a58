//! The HTTP API: `/v1` ([`v1`]), and CouchDB's API for replications in this file and those beside it.
//!
//! There is one [`Target`] per path, and one function per target and method. Shapes, codes and reasons are CouchDB 3.5's;
//! `docs/design/replicator-databases.md` explains the differences.

mod all_docs;
pub(crate) mod answer;
mod bulk;
mod changes;
pub(crate) mod config;
mod cors;
mod cross_site;
mod databases;
mod docs;
mod encoding;
pub(crate) mod error;
mod heads;
mod linger;
mod listener;
mod refusal;
mod replicate;
mod request;
mod room;
mod root;
pub(crate) mod route;
mod rows;
mod scheduler;
mod session;
#[cfg(test)]
mod slow_reader_tests;
pub(crate) mod tls;
mod traced;
mod ui;
mod up;
pub(crate) mod v1;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;
use turnwise_catalogue::Catalogue;
use turnwise_explain::demand::Trackers;
use turnwise_indexer::jobs::Indexing;
use turnwise_outbound::Client;
use turnwise_queue::Keyspace;
use turnwise_replicator::doc_processor::{self, Settings};
use turnwise_replicator::documents::names;
use turnwise_replicator::upstream::Condition;
use turnwise_store::{Store, StoreUrl};
use turnwise_worker::{External, Live, Spans};

use self::error::ApiError;
use self::request::Params;
use self::route::{Part, Target};
use crate::access::{Audit, Caller, Identities, Jwt, Pace, Peer, authenticate, rights};
use crate::config::{Config, Shared};
use crate::events::Events;
use crate::metrics::{self, Metrics};
use crate::pool::Pool;

pub(crate) use self::cross_site::Names;
pub(crate) use self::listener::serve;
pub(crate) use self::refusal::{Refusal, is_v1, refuse};
pub(crate) use self::room::Room;
pub(crate) use self::tls::Tls;
pub(crate) use self::v1::{Accepting, CallerGate, RegisteredBy, Sequence};

/// The state that all requests share. Each layer of each request clones it, so it is one pointer.
#[derive(Clone)]
pub(crate) struct App(Arc<AppState>);

impl std::ops::Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// See [`App`].
pub(crate) struct AppState {
    pub store: Store,
    pub keys: Keyspace,
    pub settings: Live<Settings>,
    /// Reads the code of filters from sources.
    pub client: Client,
    /// The node's name in responses.
    pub node: Arc<str>,
    /// The store's URL.
    pub store_url: Arc<StoreUrl>,
    /// Cancelled when the server stops: requests that wait then respond immediately.
    pub stop: CancellationToken,
    /// See [`App::turn`].
    pub turns: Turns,
    /// Acts for external workers.
    pub external: External,
    /// Their heartbeat interval, and the timeout for missed heartbeats.
    pub health: Health,
    /// Their current requests for jobs.
    pub accepting: v1::Accepting,
    /// Memory for request bodies.
    pub body_room: Room,
    /// The current configuration.
    pub config: Live<Arc<Config>>,
    /// Derives the locks of jobs that declare none.
    pub catalogue: Arc<Catalogue>,
    /// The settings that nodes share.
    pub shared: Shared,
    /// Runs jobs of type `command`. `None` if this node runs none.
    pub commands: Option<Arc<turnwise_command::Handler>>,
    /// The condition of the upstream, if there is one.
    pub upstream: Option<Live<Condition>>,
    /// The servers whose indexes this node builds.
    pub indexing: Indexing,
    /// The names under which clients reach this server.
    pub names: Arc<Names>,
    /// Who has registered external workers.
    pub workers: RegisteredBy,
    /// The keys of JSON Web Tokens, if they are accepted.
    pub jwt: Option<Arc<Jwt>>,
    /// The audit log, if there is one.
    pub audit: Option<Arc<Audit>>,
    /// How many requests each identity has sent.
    pub pace: Pace,
    pub waiting_jobs: v1::WaitingJobs,
    /// Counts of jobs by condition, of which each takes long.
    pub counts: Pool,
    /// The demand for slots, as far as this node was asked.
    pub demand: Trackers,
    /// Who may use it.
    pub identities: Identities,
    /// The events of all jobs.
    pub events: Events,
    /// What this node has done.
    pub metrics: Arc<Metrics>,
    /// Where the spans of traced jobs go.
    pub spans: Spans,
}

/// See [`AppState::health`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Health {
    pub interval: Duration,
    pub timeout: Duration,
}

/// Locks for writers of databases. Databases share them by the hash of their names.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<[tokio::sync::Mutex<()>; 32]>);

impl App {
    pub fn new(state: AppState) -> Self {
        App(Arc::new(state))
    }

    /// The service that handles requests.
    pub fn router(self) -> Router {
        v1::router()
            .merge(ui::router())
            .fallback(answer_request)
            .layer(axum::middleware::from_fn(encoding::decode))
            .layer(from_fn_with_state(self.clone(), authenticate))
            .layer(from_fn_with_state(self.clone(), cross_site::check))
            .layer(axum::middleware::map_request(|request| async { linger::lingering(request) }))
            .layer(from_fn_with_state(self.clone(), metrics::measured))
            .with_state(self)
    }

    /// The service of the additional port: the metrics, for everyone who reaches it.
    pub fn metrics_router(self, names: Names) -> Router {
        let names = Arc::new(names);
        Router::new().fallback(move |request| answer_metrics(self.clone(), names.clone(), request))
    }

    /// Waits for a turn to write documents of a database. All writes of a database take the next sequence number, so
    /// only one of several concurrent writes can commit. Serial writes avoid conflicts and their pauses. Correctness
    /// does not depend on it: other processes and ending jobs write without a turn.
    pub async fn turn(&self, db: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = std::hash::DefaultHasher::new();
        db.hash(&mut hasher);
        let turns = &self.turns.0;
        let nth = hasher.finish() % turns.len() as u64;
        turns[usize::try_from(nth).unwrap_or(0)].lock().await
    }

    /// Runs transactions that may add replication jobs: these continue the trace of the request, or begin one.
    pub async fn traced<T, E>(
        &self,
        headers: &HeaderMap,
        write: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        doc_processor::traced(&self.spans, traced::parent(headers), self.store.runtime(), write).await
    }

    pub fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }

    /// The longest time that a request of `/v1` waits.
    pub fn max_wait(&self) -> Duration {
        self.config.get().jobs.max_wait
    }

    /// 32 random hexadecimal digits.
    pub fn new_uuid(&self) -> String {
        let runtime = self.store.runtime();
        format!("{:016x}{:016x}", runtime.random(), runtime.random())
    }
}

/// A request without its body.
pub(crate) struct Call {
    pub method: Method,
    pub params: Params,
    pub headers: HeaderMap,
    pub caller: Caller,
    pub peer: Peer,
}

impl Call {
    pub fn sender(&self) -> request::Sender<'_> {
        (&self.caller, &self.headers)
    }

    /// The absolute URL of a database or document, under the server's name in the request.
    pub fn location(&self, db: &str, doc: Option<&str>) -> String {
        /// Characters that a path segment may contain unencoded.
        const SEGMENT: &percent_encoding::AsciiSet =
            &percent_encoding::NON_ALPHANUMERIC.remove(b'_').remove(b'-').remove(b'.').remove(b'~');
        let encode = |name: &str| percent_encoding::utf8_percent_encode(name, SEGMENT).to_string();
        let host = self.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let doc = doc.map(|doc| format!("/{}", encode(doc))).unwrap_or_default();
        format!("{}://{host}/{}{doc}", self.peer.scheme(), encode(db))
    }
}

async fn answer_metrics(app: App, names: Arc<Names>, request: Request) -> Response {
    // A page of another site whose name leads here could read them.
    if let Err(refusal) = names.check_host(&request) {
        return refuse(&request, refusal);
    }
    let response = match (request.method().as_str(), route::target(request.uri().path())) {
        ("GET" | "HEAD", Ok(Target::Metrics(node, part))) => {
            metrics::get(&app, request.headers(), node.as_deref(), &part).await
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
    let Some(caller) = parts.extensions.get::<Caller>().cloned() else {
        return Err(error::internal(&NoCaller));
    };
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
    rights::couchdb(&target, &call.method).check(&call.caller)?;
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
        Target::Metrics(node, part) => metrics::get(&app, &call.headers, node.as_deref(), &part).await,
        Target::Replicate if call.method == Method::POST => replicate::post(&app, &call, body).await,
        Target::Replicate => Err(ApiError::method("POST")),
        Target::Node(node, part) => config::config(&app, &call, body, &node, part).await,
        Target::Db(db, part) => database(&app, &call, body, &db, part).await,
        Target::Unknown => Err(ApiError::not_found("turnwise has nothing under this path")),
    }
}

/// A request reached a handler without the layer that finds out who sends it.
#[derive(Debug, thiserror::Error)]
#[error("nobody has authenticated a request")]
struct NoCaller;

/// A database that the caller may not read does not exist.
fn check_database(call: &Call, db: &str) -> Result<(), ApiError> {
    match call.caller.reads(db) {
        true => Ok(()),
        false => Err(turnwise_replicator::documents::Error::NoDatabase.into()),
    }
}

/// Whether the caller may do this with the database, beside what [`rights::couchdb`] checks.
fn check_use(call: &Call, db: &str, part: &Part) -> Result<(), ApiError> {
    let target = Target::Db(db.to_owned(), part.clone());
    let writes = rights::couchdb(&target, &call.method) == rights::Right::Write;
    if writes && !call.caller.writes(db) && (call.caller.reads(db) || *part == Part::Itself) {
        let reason = format!(
            "this identity may not change the database `{db}`: it needs a scope client:TENANTS that names it"
        );
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", reason));
    }
    check_database(call, db)
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
        (Part::EnsureFullCommit, "POST") => databases::ensure_full_commit(app, call, db).await,
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
