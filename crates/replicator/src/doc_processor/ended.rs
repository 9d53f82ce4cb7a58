//! Writes a job's end into its document.

use serde_json::{Map, Value, json};
use turnwise_queue::{Job, Keyspace, Result, State, timestamp};
use turnwise_store::Transaction;

use super::schedule::{Row, RowState};
use super::{Summary, corrupt, remove_job};
use crate::documents::{DocTx, databases, rows, write::Slot};

/// The reason in the document of a cancelled job.
const CANCELLED: &str =
    "cancelled by a request; take `_replication_state` out of the document to run it again";

/// Writes the end of a job into its document, within the transaction that ended it, and removes the job's record.
/// Writes nothing for jobs that their documents have released. Does nothing for jobs without a document, and before a
/// job's end.
pub async fn job_ended(tx: &Transaction, keys: &Keyspace, job: &Job, now_us: i64) -> Result<()> {
    if !job.state().is_final() {
        return Ok(());
    }
    let summary = Summary::of(job).ok_or_else(|| corrupt("job summary"))?;
    let Some((db, id)) = summary.document() else { return Ok(()) };
    remove_job(tx, keys, &job.id).await?;
    if databases::find(tx, keys, db).await?.is_none() {
        return Ok(());
    }
    let doc = DocTx { tx, keys, db, id };
    let Some(row) = doc.row().await? else { return Ok(()) };
    if row.job.as_deref() != Some(job.id.as_str()) {
        return Ok(());
    }
    let mut slot = Slot::open_current(doc).await?;
    if slot.current().is_none() {
        return Err(corrupt("replication row without a document"));
    }
    let mut body = doc.body().await?;
    body.insert("_replication_id".into(), json!(job.id));
    match job.state() {
        State::Completed => complete(&mut slot, &row, body, job, now_us),
        State::Failed => fail(&mut slot, &row, body, job.reason().unwrap_or("unknown"), now_us),
        _ => fail(&mut slot, &row, body, CANCELLED, now_us),
    }
}

fn complete(
    slot: &mut Slot<'_>,
    row: &Row,
    mut body: Map<String, Value>,
    job: &Job,
    now_us: i64,
) -> Result<()> {
    let info = job.info.as_deref().map(|info| serde_json::from_str(info.get()));
    let mut stats: Map<String, Value> =
        info.transpose().map_err(|_| corrupt("job info"))?.unwrap_or_default();
    // The position of a run has no meaning after its end.
    stats.shift_remove("source_seq");
    stats.shift_remove("through_seq");
    stats.insert("start_time".into(), json!(timestamp(row.start_time_us)));
    set_state(&mut body, "completed", now_us);
    body.shift_remove("_replication_state_reason");
    body.insert("_replication_stats".into(), Value::Object(stats));
    end(slot, row, RowState::Completed, &body, now_us)
}

/// Writes a document's failure as its next revision.
pub(super) fn fail(
    slot: &mut Slot<'_>,
    row: &Row,
    mut body: Map<String, Value>,
    reason: &str,
    now_us: i64,
) -> Result<()> {
    set_state(&mut body, "failed", now_us);
    body.insert("_replication_state_reason".into(), json!(reason));
    body.shift_remove("_replication_stats");
    end(slot, row, RowState::Failed, &body, now_us)
}

fn set_state(body: &mut Map<String, Value>, state: &str, now_us: i64) {
    body.insert("_replication_state".into(), json!(state));
    body.insert("_replication_state_time".into(), json!(timestamp(now_us)));
}

fn end(
    slot: &mut Slot<'_>,
    row: &Row,
    state: RowState,
    body: &Map<String, Value>,
    now_us: i64,
) -> Result<()> {
    let doc = slot.doc;
    if let Some(check_us) = row.check_us {
        doc.tx.clear(doc.keys.filter_check(check_us, doc.db, doc.id))?;
    }
    let written = slot.put(false, &rows::encode(body))?;
    let ended = Row { start_time_us: row.start_time_us, ..Row::of_ended(state, &written.rev, body, now_us) };
    // A job's URLs were checked, but a document's are read without a check.
    let ended = Row { source: row.source.clone(), target: row.target.clone(), ..ended };
    doc.owe(now_us)?;
    doc.write_row(&ended)
}
