//! How the jobs of schedules end: the failures in a row, and the last success, whose result the next job gets.
//!
//! The row is created and removed with the schedule, and a job that has ended only changes it. So a job that ends after its schedule was removed leaves
//! nothing behind, and one of an earlier schedule of the same name changes nothing of the later one.

use async_recursion::async_recursion as boxed;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_store::{Isolation, Transaction};

use crate::encoding::encode;
use crate::error::Result;
use crate::job::Job;
use crate::keyspace::Keyspace;
use crate::place::End;
use crate::reads;

/// The row `("schedule_ends", name)`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ends {
    /// When the schedule was created, in µs.
    pub created_us: i64,
    /// The jobs that have failed since the last success.
    #[serde(default)]
    pub failures: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Success>,
}

/// The last job of a schedule that has completed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Success {
    /// Its id.
    pub id: String,
    /// The instant for which it was scheduled, in µs.
    pub at_us: i64,
    /// When it ended, in µs.
    pub ended_us: i64,
    /// Its result, if that is small: JSON of at most [`crate::MAX_INFO_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

pub(crate) async fn read(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<Option<Ends>> {
    reads::value(tx, &keys.schedule_ends(name), "ends of a schedule").await
}

pub(crate) fn write(tx: &Transaction, keys: &Keyspace, name: &str, ends: &Ends) -> Result<()> {
    Ok(tx.set(keys.schedule_ends(name), encode(ends))?)
}

/// How many jobs of a schedule have failed in a row, and its last success. Adds no read conflict.
#[boxed]
pub async fn ends(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<(u32, Option<Success>)> {
    let key = keys.schedule_ends(name);
    let ends: Option<Ends> = reads::value_with(tx, &key, "ends of a schedule", Isolation::Snapshot).await?;
    Ok(ends.map(|ends| (ends.failures, ends.last_success)).unwrap_or_default())
}

/// Notes the end of a job, in the transaction that ends it. A job that no schedule has added costs nothing, and one that was cancelled
/// has neither failed nor succeeded.
pub(crate) async fn job_ended(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    end: Option<End>,
    now_us: i64,
) -> Result<()> {
    let end = end.filter(|end| *end != End::Cancelled);
    let Some((of, end)) = job.schedule.as_ref().zip(end) else { return Ok(()) };
    let Some(mut ends) = read(tx, keys, &of.name).await? else { return Ok(()) };
    if of.fired_us < ends.created_us {
        return Ok(());
    }
    if end == End::Failed {
        ends.failures = ends.failures.saturating_add(1);
    } else {
        // A job that makes up for an earlier instant does not hide what a later one has found.
        let is_latest = ends.last_success.as_ref().is_none_or(|last| last.at_us <= of.at_us);
        if !is_latest && ends.failures == 0 {
            return Ok(());
        }
        ends.failures = 0;
        if is_latest {
            let result = job.result.clone();
            ends.last_success =
                Some(Success { id: job.id.clone(), at_us: of.at_us, ended_us: now_us, result });
        }
    }
    write(tx, keys, &of.name, &ends)
}
