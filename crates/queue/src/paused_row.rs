//! The row of a paused job.

use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use crate::encoding::hex;
use crate::error::Result;
use crate::job::Job;
use crate::keyspace::Keyspace;
use crate::rows::encode;

/// The value of the row.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PausedRow {
    /// The filter's name, or that of the [`Holder`](crate::Holder).
    pub filter: String,
    /// The versionstamp of the filters at that time, in hexadecimal digits. Empty for a job that is held.
    pub stamp: String,
}

/// Writes the row of a paused job.
pub(crate) fn write(tx: &Transaction, keys: &Keyspace, job: &Job, filter: &str, stamp: &[u8]) -> Result<()> {
    let row = PausedRow { filter: filter.to_owned(), stamp: hex(stamp) };
    Ok(tx.set(keys.paused_entry(&job.job_type, job.order_us(), &job.id), encode(&row))?)
}
