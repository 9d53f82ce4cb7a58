//! Reading and writing single rows.

use serde::Deserialize;
use serde_json::value::RawValue;
use turnwise_store::{Isolation, Transaction};

pub(crate) use crate::encoding::{decode, encode};
use crate::error::corrupt;
use crate::timeouts::Deadline;
use crate::{Active, Job, Keyspace, Place, Result};

/// Not generic, unlike [`decode`], so that it is compiled in this crate only. So is [`decode_active`].
pub(crate) fn decode_job(value: &[u8]) -> Result<Job> {
    decode("job record", value)
}

pub(crate) fn decode_active(value: &[u8]) -> Result<Active> {
    decode("active row", value)
}

pub(crate) async fn read_job(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
) -> Result<Option<Job>> {
    read_job_with(tx, keys, job_type, id, Isolation::Serializable).await
}

pub(crate) async fn read_job_with(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    isolation: Isolation,
) -> Result<Option<Job>> {
    let Some(value) = tx.get_owned(keys.job(job_type, id), isolation).await? else { return Ok(None) };
    let mut job = decode_job(&value)?;
    job.job_type = job_type.to_owned();
    job.id = id.to_owned();
    Ok(Some(job))
}

/// A job, if it is in the queue of its tenant.
pub(crate) async fn read_pending(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
) -> Result<Option<Job>> {
    Ok(read_job(tx, keys, job_type, id).await?.filter(Job::is_pending))
}

pub(crate) fn write_job(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    if let Place::Active(run) = &job.place {
        debug_assert!(run.held.is_some() || run.waits.is_none(), "a run without locks waits for one");
        debug_assert!(!run.claim.worker.is_empty(), "a claim without a worker");
    }
    debug_assert!(!job.history.is_empty(), "a job without a history");
    Ok(tx.set(keys.job(&job.job_type, &job.id), encode(job))?)
}

pub(crate) async fn read_active(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    id: &str,
) -> Result<Option<Active>> {
    let value = tx.get(&keys.active_entry(job_type, worker, id)).await?;
    value.map(|value| decode_active(&value)).transpose()
}

/// A job's last report in its active row, and when servers check it; ignores the rest of the row.
pub(crate) async fn read_active_info(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    worker: &str,
) -> Result<Option<(Option<Box<RawValue>>, Option<Deadline>)>> {
    #[derive(Deserialize)]
    struct Info<'a> {
        #[serde(borrow, default)]
        info: Option<&'a RawValue>,
        #[serde(default)]
        deadline: Option<Deadline>,
    }
    let active = keys.active_entry(&job.job_type, worker, &job.id);
    let Some(value) = tx.get_owned(active, Isolation::Serializable).await? else {
        return Ok(None);
    };
    let Info { info, deadline } =
        serde_json::from_slice(&value).map_err(|error| corrupt("active row", error))?;
    Ok(Some((info.map(RawValue::to_owned), deadline)))
}

pub(crate) fn write_active(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    worker: &str,
    active: &Active,
) -> Result<()> {
    Ok(tx.set(keys.active_entry(&job.job_type, worker, &job.id), encode(active))?)
}
