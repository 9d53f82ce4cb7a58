//! CouchDB's names: `_prometheus` and `_stats`, with its descriptions and shapes.
//!
//! A dashboard for CouchDB finds all names of `couch_replicator`. What CouchDB counts of its own processes has no counterpart
//! here, and is always 0; the table says which.

use axum::response::Response;
use serde_json::{Map, Value, json};
use turnwise_queue::counts::{Counts, Kind as Place};
use turnwise_replicator::JOB_TYPE;
use turnwise_web::answer;
use turnwise_web::error::ApiError;
use turnwise_worker::{RunResult, TypeMetrics};

use super::text::{Format, Kind, Text};
use super::{jobs, system};
use crate::Metrics;

/// Where the values come from.
struct Source<'a> {
    runs: &'a TypeMetrics,
    replications: &'a turnwise_replicator::Metrics,
    requests: &'a turnwise_outbound::Metrics,
    jobs: Counts,
}

/// A statistic of `couch_replicator`: its path, kind, description, and value.
struct Row {
    path: &'static [&'static str],
    kind: Kind,
    description: &'static str,
    value: fn(&Source<'_>) -> u64,
}

/// Processes that only CouchDB has, and what is not counted here.
fn none(_: &Source<'_>) -> u64 {
    0
}

fn stops(of: &Source<'_>) -> u64 {
    let results = [RunResult::Stopped, RunResult::Preempted, RunResult::Parked];
    results.map(|result| of.runs.results(result)).iter().sum()
}

macro_rules! rows {
    ($($path:expr, $kind:ident, $description:literal, $value:expr;)+) => {
        &[$(Row { path: &$path, kind: Kind::$kind, description: $description, value: $value }),+]
    };
}

const ROWS: &[Row] = rows! {
    ["changes_read_failures"], Counter, "number of failed replicator changes read failures", |of| of.requests.feed_failures.get();
    ["changes_reader_deaths"], Counter, "number of failed replicator changes readers", |of| of.replications.reader_deaths.get();
    ["changes_manager_deaths"], Counter, "number of failed replicator changes managers", none;
    ["changes_queue_deaths"], Counter, "number of failed replicator changes work queues", none;
    ["checkpoints", "success"], Counter, "number of checkpoints successfully saves", |of| of.replications.checkpoints.get();
    ["checkpoints", "failure"], Counter, "number of failed checkpoint saves", |of| of.replications.checkpoint_failures.get();
    ["failed_starts"], Counter, "number of replications that have failed to start", |of| of.replications.failed_starts.get();
    ["requests"], Counter, "number of HTTP requests made by the replicator", |of| of.requests.requests.get();
    ["responses", "failure"], Counter, "number of failed HTTP responses received by the replicator", |of| of.requests.response_failures.get();
    ["responses", "success"], Counter, "number of successful HTTP responses received by the replicator", |of| of.requests.responses.get();
    ["stream_responses", "failure"], Counter, "number of failed streaming HTTP responses received by the replicator", |of| of.requests.feed_failures.get();
    ["stream_responses", "success"], Counter, "number of successful streaming HTTP responses received by the replicator", |of| of.requests.feeds.get();
    ["worker_deaths"], Counter, "number of failed replicator workers", |of| of.runs.results(RunResult::Crashed);
    ["workers_started"], Counter, "number of replicator workers started", |of| of.replications.runs.get();
    ["db_scans"], Counter, "number of times replicator db scans have been started", none;
    ["docs", "dbs_deleted"], Counter, "number of db shard deletions seen by replicator doc processor", none;
    ["docs", "dbs_found"], Counter, "number of db shard found by replicator doc processor", none;
    ["docs", "db_changes"], Counter, "number of db changes processed by replicator doc processor", none;
    ["docs", "failed_state_updates"], Counter, "number of 'failed' state document updates", |of| of.runs.results(RunResult::Failed);
    ["docs", "completed_state_updates"], Counter, "number of 'completed' state document updates", |of| of.runs.results(RunResult::Completed);
    ["jobs", "adds"], Counter, "number of jobs added to replicator scheduler", none;
    ["jobs", "duplicate_adds"], Counter, "number of duplicate jobs added to replicator scheduler", none;
    ["jobs", "removes"], Counter, "number of jobs removed from replicator scheduler", none;
    ["jobs", "starts"], Counter, "number of jobs started by replicator scheduler", |of| of.runs.claims.get();
    ["jobs", "stops"], Counter, "number of jobs stopped by replicator scheduler", stops;
    ["jobs", "crashes"], Counter, "number of job crashed noticed by replicator scheduler", |of| of.runs.results(RunResult::Crashed);
    ["jobs", "running"], Gauge, "replicator scheduler running jobs", |of| of.jobs[Place::Running];
    // A parked replication has copied everything. In CouchDB it would be running, and idle.
    ["jobs", "pending"], Gauge, "replicator scheduler pending jobs", |of| of.jobs[Place::Pending];
    ["jobs", "crashed"], Gauge, "replicator scheduler crashed jobs", |of| of.jobs[Place::Crashing];
    ["jobs", "total"], Gauge, "total number of replicator scheduler jobs", |of| of.jobs.waiting() + of.jobs[Place::Running];
    ["connection", "acquires"], Counter, "number of times connections are shared", |of| of.requests.requests.get();
    ["connection", "creates"], Counter, "number of connections created", |of| of.requests.connections_opened.get();
    ["connection", "releases"], Counter, "number of times ownership of a connection is released", |of| of.requests.responses.get() + of.requests.response_failures.get();
    ["connection", "owner_crashes"], Counter, "number of times a connection owner crashes while owning at least one connection", none;
    ["connection", "worker_crashes"], Counter, "number of times a worker unexpectedly terminates", none;
    ["connection", "closes"], Counter, "number of times a worker is gracefully shut down", |of| of.requests.connections_closed.get();
};

impl Row {
    /// Its name for Prometheus, without `_total` if it is a counter.
    fn name(&self) -> String {
        let parts = self.path.iter().filter(|part| **part != "success").copied();
        let parts: Vec<&str> = ["couchdb_couch_replicator"].into_iter().chain(parts).collect();
        parts.join("_")
    }
}

async fn source(metrics: &Metrics) -> Source<'_> {
    let jobs = jobs(metrics).await.and_then(|types| types.get(JOB_TYPE).copied()).unwrap_or_default();
    let (runs, replications) = (metrics.workers.of(JOB_TYPE), &metrics.replications);
    Source { runs, replications, requests: metrics.client.metrics(), jobs }
}

/// `_prometheus`, always in Prometheus' own format, in which `jobs_total` can be a gauge.
pub(super) async fn text(metrics: &Metrics) -> String {
    let mut text = Text::new(Format::Prometheus);
    let source = source(metrics).await;
    for row in ROWS {
        text.family(&row.name(), row.kind, row.description).value(&[], (row.value)(&source));
    }
    let requests = &metrics.requests;
    let (by_method, by_code) = (requests.by_method(), requests.by_code());
    let all = by_method.values().sum();
    text.counter("couchdb_httpd_requests", "number of HTTP requests", all);
    let mut family =
        text.family("couchdb_httpd_request_methods", Kind::Gauge, "number of HTTP requests of a method");
    for (method, count) in &by_method {
        family.value(&[("method", method)], count);
    }
    let mut family =
        text.family("couchdb_httpd_status_codes", Kind::Gauge, "number of HTTP responses of a status code");
    for (code, count) in &by_code {
        family.value(&[("code", &code.to_string())], count);
    }
    let up_s = (metrics.web.now_us() - metrics.started_us) / 1_000_000;
    text.gauge("couchdb_uptime_seconds", "couchdb uptime", up_s);
    let mut family = text.family(
        "couchdb_erlang_memory_bytes",
        Kind::Gauge,
        "size of memory (in bytes) dynamically allocated",
    );
    family.value(&[("memory_type", "total")], system::resident_bytes().unwrap_or(0));
    text.end()
}

/// `_stats`: all of it, or what is under a path.
pub(super) async fn stats(metrics: &Metrics, path: &[String]) -> Result<Response, ApiError> {
    let leaf = |value: u64, kind: Kind, description: &str| json!({ "value": value, "type": kind.name(), "desc": description });
    let mut replicator = Map::new();
    let source = source(metrics).await;
    for row in ROWS {
        let value = leaf((row.value)(&source), row.kind, row.description);
        match row.path {
            [section, name] => {
                let section = replicator.entry(*section).or_insert_with(|| json!({}));
                section[*name] = value;
            }
            path => drop(replicator.insert(path.join("."), value)),
        }
    }
    let requests = &metrics.requests;
    let (by_method, by_code) = (requests.by_method(), requests.by_code());
    let methods: Map<String, Value> = by_method
        .iter()
        .map(|(method, count)| {
            let description = format!("number of HTTP {method} requests");
            ((*method).to_owned(), leaf(*count, Kind::Counter, &description))
        })
        .collect();
    let codes: Map<String, Value> = by_code
        .iter()
        .map(|(code, count)| {
            let description = format!("number of HTTP {code} responses");
            (code.to_string(), leaf(*count, Kind::Counter, &description))
        })
        .collect();
    let all = leaf(by_method.values().sum(), Kind::Counter, "number of HTTP requests");
    let mut value = json!({
        "couch_replicator": replicator,
        "couchdb": {
            "httpd": { "requests": all },
            "httpd_request_methods": methods,
            "httpd_status_codes": codes,
        },
    });
    for part in path {
        value = match value.get_mut(part) {
            Some(found) if found.is_object() => found.take(),
            _ => return Err(ApiError::not_found("missing")),
        };
    }
    Ok(answer::ok(&value))
}
