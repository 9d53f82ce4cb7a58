//! The types that have jobs.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::Transaction;

use crate::error::Result;
use crate::keyspace::Keyspace;
use crate::reads::groups;

/// Up to `limit` job types that have jobs, in order, after the type `after` if given. One read per type.
#[boxed]
pub async fn types_after(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>> {
    let (first, end) = keys.all_jobs();
    let begin = after.map_or(first, |after| keys.jobs(after).1);
    let of_job = |key: &Bytes| {
        let (job_type, _) = keys.parse_any_job(key)?;
        let (_, end) = keys.jobs(&job_type);
        Ok((job_type, end))
    };
    groups(tx, (begin, end), limit, of_job).await
}
