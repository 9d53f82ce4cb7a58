//! The results of completed jobs.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_store::Transaction;

use super::{Kept, RESULT};
use crate::error::corrupt;
use crate::stored_result::StoredResult;
use crate::{Job, Keyspace, MAX_INFO_BYTES, Result, read_pieces, write_pieces};

/// The largest result by default, in bytes.
pub const DEFAULT_MAX_RESULT_BYTES: usize = 1 << 20;
/// The highest bound of results, in bytes.
pub const MAX_RESULT_BYTES: usize = 8 << 20;

/// The result of a run.
#[derive(Debug, Clone)]
pub enum JobResult {
    /// JSON. Up to [`MAX_INFO_BYTES`] it is in the record.
    Json(Box<RawValue>),
    /// Bytes of a media type.
    Bytes {
        /// The media type.
        media_type: String,
        /// The bytes.
        bytes: Bytes,
    },
}

impl From<Box<RawValue>> for JobResult {
    fn from(json: Box<RawValue>) -> Self {
        JobResult::Json(json)
    }
}

impl JobResult {
    /// Its size in bytes.
    pub fn len(&self) -> usize {
        match self {
            JobResult::Json(json) => json.get().len(),
            JobResult::Bytes { bytes, .. } => bytes.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why a job cannot have this result, if it cannot. `most_written` is what the store accepts at once, in bytes.
    pub(crate) fn problem(&self, kept: Kept, most_written: usize) -> Option<String> {
        // A transaction also has the record, and each piece has a key.
        let (bytes, most) = (self.len(), kept.result_bytes.min(most_written / 4 * 3));
        (bytes > most).then(|| format!("its result has {bytes} bytes; at most {most} are allowed"))
    }
}

/// Stores the result of a job that has completed, in place of an earlier one.
pub(crate) fn store(tx: &Transaction, keys: &Keyspace, job: &mut Job, result: &JobResult) -> Result<()> {
    clear(tx, keys, job)?;
    let (bytes, media_type) = match result {
        JobResult::Json(json) if json.get().len() <= MAX_INFO_BYTES => {
            job.result = Some(json.clone());
            return Ok(());
        }
        JobResult::Json(json) => (Bytes::copy_from_slice(json.get().as_bytes()), None),
        JobResult::Bytes { media_type, bytes } => (bytes.clone(), Some(media_type.clone())),
    };
    let (job_type, id) = (&job.job_type, &job.id);
    let piece = |n: u32| keys.output_row(job_type, id, RESULT, n.into());
    write_pieces(tx, keys.output_of(job_type, id, RESULT), piece, &bytes)?;
    job.stored_result = Some(StoredResult { bytes: bytes.len(), media_type });
    job.has_output = true;
    Ok(())
}

/// Removes the result of a job. Does not write the record.
pub(crate) fn clear(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    job.result = None;
    if job.stored_result.take().is_some() {
        tx.clear_range(keys.output_of(&job.job_type, &job.id, RESULT))?;
    }
    Ok(())
}

/// The result of a completed job. Adds no read conflict.
#[boxed]
pub async fn result(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Option<JobResult>> {
    let Some(StoredResult { bytes, media_type }) = &job.stored_result else {
        return Ok(job.result.clone().map(JobResult::Json));
    };
    let stored = read_pieces(tx, &keys.output_of(&job.job_type, &job.id, RESULT)).await?;
    if stored.len() != *bytes {
        return Err(corrupt("job result", format!("has {} bytes instead of {bytes}", stored.len())));
    }
    Ok(Some(match media_type {
        Some(media_type) => JobResult::Bytes { media_type: media_type.clone(), bytes: stored },
        None => {
            let json = String::from_utf8(stored.into()).map_err(|error| corrupt("job result", error))?;
            JobResult::Json(RawValue::from_string(json).map_err(|error| corrupt("job result", error))?)
        }
    }))
}
