//! The response of `_scheduler/docs`.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use turnwise_queue::{Job, Keyspace, Result as QueueResult, State, jobs, timestamp};
use turnwise_store::Transaction;

use super::schedule::{Row, RowState};
use super::{Nodes, Summary};
use crate::documents::{DocTx, Result, databases, rows};
use crate::spec::JOB_TYPE;

/// All states of a replication document, in CouchDB's order.
pub const STATES: [&str; 7] =
    ["initializing", "error", "running", "pending", "crashing", "completed", "failed"];

/// The state of one document's replication in `_scheduler/docs`.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The replicator database.
    pub database: String,
    /// The document.
    pub doc_id: String,
    /// The replication id; none before it is known and after the end.
    pub id: Option<String>,
    /// The node that runs it, null while no node does; not after the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Option<String>>,
    /// The source's URL without credentials.
    pub source: Option<String>,
    /// The target's URL without credentials.
    pub target: Option<String>,
    /// One of [`STATES`].
    pub state: &'static str,
    /// Statistics, or `{"error": …}`.
    pub info: Option<Box<RawValue>>,
    /// Consecutive errors.
    pub error_count: u32,
    /// When the state last changed.
    pub last_updated: String,
    /// When the replication was requested.
    pub start_time: String,
    /// The source's proxy without its password; null without a proxy. Only while there is a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_proxy: Option<Option<String>>,
    /// The target's proxy, as `source_proxy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_proxy: Option<Option<String>>,
}

/// One document's state at `now_us`, in µs. `None` for design documents, and for documents that do not exist.
///
/// # Errors
/// Those of [`databases::check`].
pub async fn status(
    tx: &Transaction,
    keys: &Keyspace,
    nodes: &mut Nodes,
    db: &str,
    id: &str,
    now_us: i64,
) -> Result<Option<Status>> {
    databases::check(tx, keys, db).await?;
    let doc = DocTx { tx, keys, db, id };
    match doc.row().await? {
        Some(row) => Ok(Some(of_row(doc, nodes, row, now_us).await?)),
        None => Ok(None),
    }
}

/// A page of states at `now_us`, in µs, by document id. Reads at most `limit` rows, from `next` on, and returns where
/// the next page begins.
///
/// # Errors
/// Those of [`databases::check`].
pub async fn statuses(
    tx: &Transaction,
    keys: &Keyspace,
    nodes: &mut Nodes,
    db: &str,
    next: Option<Bytes>,
    limit: usize,
    now_us: i64,
) -> Result<(Vec<Status>, Option<Bytes>)> {
    databases::check(tx, keys, db).await?;
    let (begin, end) = keys.replications(db);
    let page = rows::page(tx, (next.unwrap_or(begin), end), limit).await?;
    let next = match page.last() {
        Some((last, _)) if page.len() == limit => Some(turnwise_store::key::successor(last)),
        _ => None,
    };
    let mut found = Vec::with_capacity(page.len());
    for (key, value) in page {
        let (_, id) = keys.parse_replication(&key)?;
        let row = rows::decode("replication row", &value)?;
        found.push(of_row(DocTx { tx, keys, db, id: &id }, nodes, row, now_us).await?);
    }
    Ok((found, next))
}

async fn of_row(
    DocTx { tx, keys, db, id }: DocTx<'_>,
    nodes: &mut Nodes,
    row: Row,
    now_us: i64,
) -> QueueResult<Status> {
    let ended = matches!(row.state, RowState::Completed | RowState::Failed);
    let mut status = Status {
        database: db.to_owned(),
        doc_id: id.to_owned(),
        id: row.job.clone(),
        node: (!ended).then_some(None),
        source: row.source,
        target: row.target,
        state: match row.state {
            RowState::Initializing => "initializing",
            RowState::Error => "error",
            RowState::Scheduled => "pending",
            RowState::Completed => "completed",
            RowState::Failed => "failed",
        },
        info: row.info,
        error_count: row.error_count,
        last_updated: timestamp(row.updated_us),
        start_time: timestamp(row.start_time_us),
        source_proxy: row.job.as_ref().map(|_| None),
        target_proxy: row.job.as_ref().map(|_| None),
    };
    if let Some(job) = &row.job
        && let Some(job) = jobs::get(tx, keys, JOB_TYPE, job).await?
    {
        let active = jobs::active_report(tx, keys, &job).await?;
        status.state = state_name(&job);
        if let Some(summary) = Summary::of(&job) {
            status.source_proxy = Some(summary.source_proxy);
            status.target_proxy = Some(summary.target_proxy);
        }
        status.node = Some(nodes.of_job(tx, keys, &job).await?);
        status.error_count = job.streak(now_us);
        status.last_updated = timestamp(job.changed_us);
        status.info = match job.reason() {
            Some(reason) => to_raw_value(&serde_json::json!({ "error": reason })).ok(),
            None => active.and_then(|active| active.info).or(job.into_fields().info),
        };
    }
    Ok(status)
}

/// A job's state as `_scheduler/docs` names it.
pub fn state_name(job: &Job) -> &'static str {
    match job.state() {
        State::Running | State::Waiting => "running",
        // Its backoff is over, but it counts as crashing until it runs.
        State::Pending if job.reason().is_some() => "crashing",
        State::Pending | State::Delayed => "pending",
        State::Crashing => "crashing",
        State::Completed => "completed",
        State::Failed | State::Cancelled => "failed",
    }
}
