//! Metrics: `/metrics` with turnwise's own, and CouchDB's names under `/_node/{node}`.
//!
//! Counters live where their events happen: in the store, in the workers, in the client of replications, and here for
//! requests. They are plain atomics that this module reads for each request. What is in rows is read then, too, or in the
//! background ([`of_store`]) if it is much. The labels of all metrics are bounded: job types, routes, and the tenants that
//! `[prometheus] tenants` permits; never ids. `docs/design/observability.md` explains the choices.

mod couchdb;
mod http;
mod of_store;
mod own;
mod share;
mod system;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use tokio_util::sync::CancellationToken;
use turnwise_queue::counts::{self, Counts};

use self::text::Format;
use crate::http::error::ApiError;
use crate::http::{App, answer, config};

pub(crate) use self::http::measured;
pub(crate) use self::share::entitled_slots;

/// The counts of jobs, by type and tenant, that one request reads at most. With more, the number of jobs is left out.
const MAX_COUNTS: usize = 200_000;
/// The counts that one read returns.
const COUNTS_PAGE: usize = 10_000;

/// What a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// turnwise's own metrics.
    Own,
    /// CouchDB's names, for Prometheus.
    Prometheus,
    /// CouchDB's statistics, or those under a path.
    Stats(Vec<String>),
    /// CouchDB's numbers about its runtime.
    System,
}

/// What a node has done.
pub(crate) struct Metrics {
    pub requests: http::Requests,
    pub workers: Arc<turnwise_worker::Metrics>,
    pub replications: Arc<turnwise_replicator::Metrics>,
    of_store: of_store::Collector,
    started_us: i64,
}

impl Metrics {
    /// Of a node that starts now.
    pub fn new(
        workers: Arc<turnwise_worker::Metrics>,
        replications: Arc<turnwise_replicator::Metrics>,
        now_us: i64,
    ) -> Metrics {
        Metrics {
            requests: http::Requests::default(),
            workers,
            replications,
            of_store: of_store::Collector::default(),
            started_us: now_us,
        }
    }

    /// Collects what is too much for a request, until the server stops.
    pub async fn run(app: App, stop: CancellationToken) {
        app.metrics.clone().of_store.run(app, stop).await;
    }
}

/// Answers a request for metrics, of this node.
pub(crate) async fn get(
    app: &App,
    headers: &HeaderMap,
    node: Option<&str>,
    part: &Part,
) -> Result<Response, ApiError> {
    if let Some(node) = node
        && !config::check_node(app, node).await?
    {
        let reason = format!("ask {node} itself for its metrics: /_node/_local");
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason));
    }
    match part {
        Part::Own => {
            let format = Format::accepted(headers);
            Ok(text(format, own::text(app, format).await))
        }
        Part::Prometheus => Ok(text(Format::Prometheus, couchdb::text(app).await)),
        Part::Stats(path) => couchdb::stats(app, path).await,
        Part::System => Ok(answer::ok(&system::couchdb(app.now_us() - app.metrics.started_us))),
    }
}

fn text(format: Format, text: String) -> Response {
    let mut response = answer::respond(StatusCode::OK, Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response
}

/// The exact numbers of jobs of each type. `None` if the store does not answer, or has too many tenants.
async fn jobs(app: &App) -> Option<BTreeMap<String, Counts>> {
    let read = async {
        let tx = app.store.begin().await?;
        let mut types: BTreeMap<String, Counts> = BTreeMap::new();
        let mut last: Option<(String, String)> = None;
        for _ in 0..MAX_COUNTS / COUNTS_PAGE {
            let after = last.as_ref().map(|(job_type, tenant)| (job_type.as_str(), tenant.as_str()));
            let page = counts::list(&tx, &app.keys, after, COUNTS_PAGE).await?;
            let is_last = page.len() < COUNTS_PAGE;
            last = page.last().map(|counted| (counted.job_type.clone(), counted.tenant.clone()));
            for counted in page {
                match types.get_mut(&counted.job_type) {
                    Some(counts) => *counts += counted.counts,
                    None => drop(types.insert(counted.job_type, counted.counts)),
                }
            }
            if is_last {
                return Ok(Some(types));
            }
        }
        tracing::warn!("more than {MAX_COUNTS} tenants have jobs: the metrics leave out the numbers of jobs");
        Ok::<_, turnwise_queue::Error>(None)
    };
    match read.await {
        Ok(types) => types,
        Err(error) => {
            tracing::warn!(%error, "cannot read the numbers of jobs for the metrics");
            None
        }
    }
}
