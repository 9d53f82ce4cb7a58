//! Schedules a document's job, and removes it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use turnwise_queue::{Job, Keyspace, NewJob, Then, jobs, parse_timestamp};
use turnwise_store::Transaction;

use super::summary::{Origin, Summary, new_job, same_options};
use super::traces;
use crate::Replication;
use crate::documents::{DocTx, Result, Revision, names, redaction, rows, write::Slot};
use crate::spec::JOB_TYPE;

/// The state of a document's replication. For a scheduled one, its job states whether it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowState {
    /// Its replication id is not known yet.
    Initializing,
    /// Its replication id could not be computed; this will be retried.
    Error,
    /// It has a job.
    Scheduled,
    /// It has completed.
    Completed,
    /// It has failed permanently.
    Failed,
}

/// The state of a document's replication.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// The revision of the document that this describes.
    pub rev: Revision,
    /// The state of this revision.
    pub state: RowState,
    /// Its job, while it is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The source's URL for display, if it has one.
    pub source: Option<String>,
    /// The target's URL for display.
    pub target: Option<String>,
    /// When the replication was requested, in µs.
    pub start_time_us: i64,
    /// When the state last changed, in µs.
    pub updated_us: i64,
    /// Consecutive errors.
    #[serde(default)]
    pub error_count: u32,
    /// Statistics once completed, `{"error": …}` after an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Box<RawValue>>,
    /// The time of the next attempt, in µs; also in its entry in the index of unresolved documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_us: Option<i64>,
    /// When the code of its filter function is checked again, in µs, if its job depends on one. Its entry in the index
    /// of filter checks has the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_us: Option<i64>,
}

impl Row {
    fn new(document: &Doc<'_>, state: RowState, now_us: i64) -> Self {
        Row {
            source: Some(document.replication.source.url().to_string()),
            target: Some(document.replication.target.url().to_string()),
            ..Row::bare(document.rev, state, now_us)
        }
    }

    fn bare(rev: &Revision, state: RowState, now_us: i64) -> Self {
        Row {
            rev: rev.clone(),
            state,
            job: None,
            source: None,
            target: None,
            start_time_us: now_us,
            updated_us: now_us,
            error_count: 0,
            info: None,
            due_us: None,
            check_us: None,
        }
    }

    /// The row of a document whose own members state that it has ended.
    pub(super) fn of_ended(state: RowState, rev: &Revision, body: &Map<String, Value>, now_us: i64) -> Self {
        let stats = body.get("_replication_stats").and_then(Value::as_object).cloned();
        let time = |value: Option<&Value>| parse_timestamp(value?.as_str()?);
        let updated_us = time(body.get("_replication_state_time")).unwrap_or(now_us);
        let started = stats.as_ref().and_then(|stats| stats.get("start_time"));
        let start_time_us = time(started.or(body.get("_replication_start_time"))).unwrap_or(updated_us);
        let (info, error_count) = match state {
            RowState::Completed => {
                let mut stats = stats.unwrap_or_default();
                stats.shift_remove("start_time");
                (bounded(Value::Object(stats)), 0)
            }
            _ => {
                let reason = body.get("_replication_state_reason").and_then(Value::as_str);
                (reason.and_then(error_info), 1)
            }
        };
        let (source, target) = (body.get("source").and_then(endpoint), body.get("target").and_then(endpoint));
        Row { source, target, start_time_us, error_count, info, ..Row::bare(rev, state, updated_us) }
    }
}

/// The largest `info` of a row, because rows are listed by the hundred.
const MAX_INFO_BYTES: usize = 12 << 10;
/// A placeholder for a replication id that is not known yet.
const UNKNOWN_ID: &str = "unknown";
/// The longest URL of a row. Longer ones are never accepted, but a failed document may contain anything.
const MAX_URL_BYTES: usize = 4 << 10;

fn bounded(info: Value) -> Option<Box<RawValue>> {
    to_raw_value(&info).ok().filter(|info| info.get().len() <= MAX_INFO_BYTES)
}

fn error_info(reason: &str) -> Option<Box<RawValue>> {
    let end = reason.floor_char_boundary(MAX_INFO_BYTES / 8);
    bounded(json!({ "error": &reason[..end] }))
}

/// The URL of an endpoint in a document that was not validated.
fn endpoint(value: &Value) -> Option<String> {
    let url = match value {
        Value::String(url) => url,
        Value::Object(endpoint) => endpoint.get("url")?.as_str()?,
        _ => return None,
    };
    let mut parsed = url::Url::parse(url).ok().filter(url::Url::has_host)?;
    // Credentials are left out, as in every list. A text that is not a URL might contain them anywhere.
    parsed.set_username("").ok()?;
    parsed.set_password(None).ok()?;
    let shown = redaction::hide_url(parsed.as_str());
    (shown.len() <= MAX_URL_BYTES).then_some(shown)
}

/// A valid document that will get a job.
pub(super) struct Doc<'a> {
    pub at: DocTx<'a>,
    pub rev: &'a Revision,
    pub body: &'a Map<String, Value>,
    pub replication: &'a Replication,
    /// When its filter function is checked again, if its job will depend on one.
    pub check_us: Option<i64>,
}

impl DocTx<'_> {
    /// The state of the document's replication.
    pub(crate) async fn row(self) -> turnwise_queue::Result<Option<Row>> {
        rows::read(self.tx, &self.keys.replication(self.db, self.id), "replication row").await
    }

    /// Writes the document's row, and its entries in the indexes of unresolved documents and filter checks. The caller
    /// must clear the entries of the previous row ([`leave`](Self::leave)).
    pub(crate) fn write_row(self, row: &Row) -> turnwise_queue::Result<()> {
        let DocTx { tx, keys, db, id } = self;
        if let Some(due_us) = row.due_us {
            tx.set(keys.unresolved_entry(due_us, db, id), Bytes::new())?;
            tx.set_versionstamp(keys.unresolved_wake())?;
        }
        if let Some(check_us) = row.check_us {
            tx.set(keys.filter_check(check_us, db, id), Bytes::new())?;
        }
        Ok(tx.set(keys.replication(db, id), rows::encode(row))?)
    }

    /// Removes the document's row and job.
    pub(crate) async fn forget(self) -> turnwise_queue::Result<()> {
        let Some(row) = self.row().await? else { return Ok(()) };
        self.leave(&row, None).await?;
        Ok(self.tx.clear(self.keys.replication(self.db, self.id))?)
    }

    /// Removes a row's index entries and its job, unless the job is `keep`.
    async fn leave(self, row: &Row, keep: Option<&str>) -> turnwise_queue::Result<()> {
        let DocTx { tx, keys, db, id } = self;
        if let Some(due_us) = row.due_us {
            tx.clear(keys.unresolved_entry(due_us, db, id))?;
        }
        if let Some(check_us) = row.check_us {
            tx.clear(keys.filter_check(check_us, db, id))?;
        }
        match &row.job {
            Some(job) if keep != Some(job) => super::remove_job(tx, keys, job).await,
            _ => Ok(()),
        }
    }
}

impl Doc<'_> {
    /// The job that runs its replication under the id `id`.
    fn job(&self, id: &str, now_us: i64) -> Result<NewJob> {
        let origin = Origin::Document { db: self.at.db, id: self.at.id };
        new_job(self.replication, id, origin, self.body, now_us)
    }
}

/// Records that the document needs its filter's code before it can have a job. A document that could not have a job
/// even then is rejected now, while the client can receive the error.
///
/// # Errors
/// `Invalid` as in [`new_job`].
pub(super) async fn wait_for_filter(document: &Doc<'_>, now_us: i64) -> Result<()> {
    // The id is not known yet. Ids are never too long, and nothing else depends on it.
    document.job(UNKNOWN_ID, now_us)?;
    document.at.forget().await?;
    let row = Row { due_us: Some(now_us), ..Row::new(document, RowState::Initializing, now_us) };
    Ok(document.at.write_row(&row)?)
}

/// Leaves a document's job unchanged if the relevant members of the document have not changed: the filter's code is not
/// fetched, and a run continues. Returns whether there is such a job. The code is checked soon, in case it is the
/// reason for the write.
pub(super) async fn keep(document: &Doc<'_>, now_us: i64) -> Result<bool> {
    let DocTx { tx, keys, .. } = document.at;
    let Some(old) = document.at.row().await? else { return Ok(false) };
    let (RowState::Scheduled, Some(id)) = (old.state, &old.job) else { return Ok(false) };
    let Owner::This(job) = owner(document.at, id).await? else { return Ok(false) };
    if !same_options(tx, keys, &job, &document.job(id, now_us)?).await? {
        return Ok(false);
    }
    document.at.leave(&old, Some(id)).await?;
    let row = Row { rev: document.rev.clone(), check_us: old.check_us.map(|_| now_us), ..old };
    document.at.write_row(&row)?;
    Ok(true)
}

/// The owner of the job that a document needs.
enum Owner {
    /// There is no job, or it has ended, or its document has released it.
    Nobody,
    /// This document has it already.
    This(Job),
    /// Another document has it.
    Other { db: String, id: String },
    /// A request to `_replicate`.
    Request,
}

async fn owner(doc: DocTx<'_>, id: &str) -> turnwise_queue::Result<Owner> {
    let Some(job) = jobs::get(doc.tx, doc.keys, JOB_TYPE, id).await? else { return Ok(Owner::Nobody) };
    let leaving = job.state().is_final() || job.then() == Then::Remove;
    if leaving || job.cancel_requested() && job.then() == Then::Keep {
        return Ok(Owner::Nobody);
    }
    let summary = Summary::of(&job).ok_or_else(|| super::corrupt("job summary"))?;
    Ok(match summary.document() {
        Some((db, id)) if (db, id) == (doc.db, doc.id) => Owner::This(job),
        Some((db, id)) => Owner::Other { db: db.to_owned(), id: id.to_owned() },
        None => Owner::Request,
    })
}

/// The record that `new` would take over from another tenant, whose progress and history are not for this one. Without
/// identities, nothing is hidden.
async fn foreign(tx: &Transaction, keys: &Keyspace, new: &NewJob) -> turnwise_queue::Result<Option<Job>> {
    let job = jobs::get(tx, keys, JOB_TYPE, &new.id).await?.filter(|job| job.tenant != new.tenant);
    match job.is_some() && tx.get(&keys.session_key()).await?.is_some() {
        true => Ok(job),
        false => Ok(None),
    }
}

/// Gives a document the job with the replication id `id`, replacing its previous job.
///
/// # Errors
/// `Invalid` as in [`new_job`]; then nothing is written.
pub(super) async fn start(slot: &mut Slot<'_>, document: &Doc<'_>, id: &str, now_us: i64) -> Result<()> {
    let DocTx { tx, keys, db, id: doc_id } = document.at;
    let old = document.at.row().await?;
    // A revision counts as requested when it was first seen, however late its job is added or replaced.
    let same_rev = old.as_ref().filter(|old| old.rev == *document.rev);
    let asked_us = same_rev.map_or(now_us, |old| old.start_time_us);
    let new = document.job(id, asked_us)?;
    if let Some(old) = &old {
        document.at.leave(old, Some(id)).await?;
    }
    let mut row = Row { start_time_us: asked_us, ..Row::new(document, RowState::Scheduled, now_us) };
    let error = match owner(document.at, id).await? {
        Owner::Nobody => {
            let foreign = foreign(tx, keys, &new).await?;
            if foreign.as_ref().is_some_and(|job| job.state().is_claimed()) {
                Some(format!("Replication `{id}` of another db has not stopped yet"))
            } else {
                if foreign.is_some() {
                    jobs::remove(tx, keys, JOB_TYPE, id).await?;
                }
                add(tx, keys, &new, now_us).await?;
                None
            }
        }
        Owner::This(job) if same_options(tx, keys, &job, &new).await? => {
            // Nothing relevant has changed: the job continues.
            if let Some(old) = &old {
                row.start_time_us = old.start_time_us;
            }
            None
        }
        Owner::This(job) => {
            replace(tx, keys, &job, &new, now_us).await?;
            None
        }
        Owner::Other { db: other_db, id: other_id } => {
            let both_mirrored = names::is_mirror(db) && names::is_mirror(&other_db);
            let other_db = match both_mirrored {
                true => names::without_mirror(&other_db),
                false => &other_db,
            };
            // Another database may be another customer's: with identities, its documents are not shown here.
            let hidden = !both_mirrored && other_db != db && tx.get(&keys.session_key()).await?.is_some();
            let by = match hidden {
                true => "a document from another db".to_owned(),
                false => format!("document `{other_id}` from db `{other_db}`"),
            };
            let reason = format!(
                "Replication `{id}` specified by document `{doc_id}` already started, triggered by {by}"
            );
            if !both_mirrored {
                return Ok(super::ended::fail(slot, &row, document.body.clone(), &reason, now_us)?);
            }
            // The upstream decides which of the two has failed, even while it runs nothing. If both were reported,
            // each might name the other one.
            Some(reason)
        }
        Owner::Request => Some(format!(
            "Replication `{id}` specified by document `{doc_id}` already running as a transient replication, \
             started via `_replicate` API endpoint"
        )),
    };
    if let Some(reason) = error {
        let row = errored(&row, old.as_ref(), &reason, now_us);
        return Ok(document.at.write_row(&row)?);
    }
    row.job = Some(id.to_owned());
    row.check_us = document.check_us;
    Ok(document.at.write_row(&row)?)
}

/// The row after a temporary error, which is retried after a backoff.
pub(super) fn errored(row: &Row, before: Option<&Row>, reason: &str, now_us: i64) -> Row {
    let before =
        before.filter(|before| before.state == RowState::Error).map_or(0, |before| before.error_count);
    let error_count = before + 1;
    // CouchDB's limits, without its random part: 32 s at first, doubling, up to 36 hours.
    let wait_us = 32_000_000_i64 << (error_count - 1).min(12);
    Row {
        state: RowState::Error,
        job: None,
        error_count,
        info: error_info(reason),
        updated_us: now_us,
        due_us: Some(now_us + wait_us),
        ..row.clone()
    }
}

/// Adds a job that does not exist, has ended, or is being removed, with its trace. In the last case it runs again after
/// it has stopped.
pub async fn add(tx: &Transaction, keys: &Keyspace, new: &NewJob, now_us: i64) -> turnwise_queue::Result<()> {
    match traces::of(new) {
        None => jobs::add(tx, keys, new, now_us).await?,
        trace => jobs::add(tx, keys, &new.clone().with(|spec| spec.trace = trace), now_us).await?,
    };
    Ok(())
}

/// Gives a job other options immediately: a waiting job starts again without its backoff, a running job is stopped and run again.
async fn replace(tx: &Transaction, keys: &Keyspace, job: &Job, new: &NewJob, now_us: i64) -> Result<()> {
    if job.state().is_claimed() {
        add(tx, keys, new, now_us).await?;
        return Ok(jobs::restart(tx, keys, JOB_TYPE, &new.id).await?);
    }
    jobs::remove(tx, keys, JOB_TYPE, &new.id).await?;
    Ok(add(tx, keys, new, now_us).await?)
}
