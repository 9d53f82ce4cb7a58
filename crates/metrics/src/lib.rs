//! Metrics: `/metrics` with turnwise's own, and CouchDB's names under `/_node/{node}`.
//!
//! Counters live where their events happen: in the store, in the workers, in the client of replications, and here for
//! requests. They are plain atomics that this module reads for each request. What is in rows is read then, too, or in the
//! background ([`of_store`]) if it is much. The labels of all metrics are bounded: job types, routes, and the tenants that
//! `[prometheus] tenants` permits; never ids. `docs/design/observability.md` explains the choices.

mod couchdb;
mod groups;
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
use turnwise_indexer::jobs::Indexing;
use turnwise_outbound::Client;
use turnwise_queue::counts::{self, Counts};
use turnwise_web::error::ApiError;
use turnwise_web::{Web, answer};

use self::text::Format;

pub use self::http::{Patterns, Requests, UNKNOWN, measured};
pub use self::share::entitled_slots;

/// The counts of jobs, by type and tenant, that one request reads at most. With more, the number of jobs is left out.
const MAX_COUNTS: usize = 200_000;
/// The counts that one read returns.
const COUNTS_PAGE: usize = 10_000;

/// What a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// turnwise's own metrics.
    Own,
    /// CouchDB's names, for Prometheus.
    Prometheus,
    /// CouchDB's statistics, or those under a path.
    Stats(Vec<String>),
    /// CouchDB's numbers about its runtime.
    System,
}

/// What a node has done, and where the metrics read the rest.
pub struct Metrics {
    /// What all requests share.
    pub web: Web,
    /// The connections to other servers.
    pub client: Client,
    /// The servers whose indexes this node builds.
    pub indexing: Indexing,
    /// The requests to this node.
    pub requests: Requests,
    /// The work of its workers.
    pub workers: Arc<turnwise_worker::Metrics>,
    /// The work of its replications.
    pub replications: Arc<turnwise_replicator::Metrics>,
    of_store: of_store::Collector,
    started_us: i64,
}

impl Metrics {
    /// Of a node that starts now.
    pub fn new(
        web: Web,
        client: Client,
        indexing: Indexing,
        (workers, replications): (Arc<turnwise_worker::Metrics>, Arc<turnwise_replicator::Metrics>),
        patterns: Patterns,
    ) -> Metrics {
        let started_us = web.now_us();
        Metrics {
            web,
            client,
            indexing,
            requests: Requests::new(patterns),
            workers,
            replications,
            of_store: of_store::Collector::default(),
            started_us,
        }
    }

    /// Collects what is too much for a request, until the server stops.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.of_store.run(&self, stop).await;
    }
}

/// Answers a request for metrics, of this node.
pub async fn get(metrics: &Metrics, headers: &HeaderMap, part: &Part) -> Result<Response, ApiError> {
    match part {
        Part::Own => {
            let format = Format::accepted(headers);
            Ok(text(format, own::text(metrics, format).await))
        }
        Part::Prometheus => Ok(text(Format::Prometheus, couchdb::text(metrics).await)),
        Part::Stats(path) => couchdb::stats(metrics, path).await,
        Part::System => Ok(answer::ok(&system::couchdb(metrics.web.now_us() - metrics.started_us))),
    }
}

fn text(format: Format, text: String) -> Response {
    let mut response = answer::respond(StatusCode::OK, Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response
}

/// The exact numbers of jobs of each type. `None` if the store does not answer, or has too many tenants.
async fn jobs(metrics: &Metrics) -> Option<BTreeMap<String, Counts>> {
    let read = async {
        let tx = metrics.web.store.begin().await?;
        let mut types: BTreeMap<String, Counts> = BTreeMap::new();
        let mut last: Option<(String, String)> = None;
        for _ in 0..MAX_COUNTS / COUNTS_PAGE {
            let after = last.as_ref().map(|(job_type, tenant)| (job_type.as_str(), tenant.as_str()));
            let page = counts::list(&tx, &metrics.web.keys, after, COUNTS_PAGE).await?;
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
