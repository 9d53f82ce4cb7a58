//! The meaning of the store's rows, kept up to date with every commit.

use bytes::Bytes;
pub use turnwise_queue::check::{IndexRow, JobRows, Row, WorkerRow};
use turnwise_queue::{Active, Keyspace, Worker};

use crate::ledger::JobKey;

/// The meaning of a key; `None` if it has none.
pub fn parse(key: &Bytes) -> Option<Row> {
    Row::parse(&Keyspace::default(), key)
}

/// An active row.
pub fn active(value: &[u8]) -> Result<Active, serde_json::Error> {
    serde_json::from_slice(value)
}

/// A worker's row.
pub fn worker(key: &JobKey, value: &[u8]) -> Result<Worker, serde_json::Error> {
    let mut worker: Worker = serde_json::from_slice(value)?;
    worker.id.clone_from(&key.1);
    Ok(worker)
}
