//! The types of jobs.

use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::error::{Result, corrupt};
use crate::keyspace::Keyspace;

/// The same for the types after `after`.
pub async fn types_after(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>> {
    let mut types: Vec<String> = Vec::new();
    while types.len() < limit {
        // The first job after the last type: one row read per type, however many jobs it has.
        let (begin, end) = keys.jobs_of_types_after(types.last().map(String::as_str).or(after));
        let read = RangeRead { begin, end, limit: 1, reverse: false };
        let rows = tx.range_with(read, Isolation::Snapshot).await?;
        let Some((key, _)) = rows.first() else { break };
        types.push(keys.parse_job_type(key).ok_or_else(|| corrupt("job key", "not a tuple of three"))?);
    }
    Ok(types)
}
