//! Reads and writes single rows.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use turnwise_queue::Keyspace;
use turnwise_store::Transaction;

use super::error::corrupt;

/// A database's update sequence, and its number of documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The number of the latest write.
    pub sequence: i64,
    /// Number of existing documents.
    pub documents: u64,
    /// Number of deleted documents.
    pub deleted: u64,
}

pub(crate) fn encode<T: Serialize>(row: &T) -> Bytes {
    Bytes::from(serde_json::to_vec(row).expect("rows are plain data with string keys"))
}

pub(crate) fn decode<T: DeserializeOwned>(what: &str, value: &[u8]) -> turnwise_queue::Result<T> {
    serde_json::from_slice(value).map_err(|error| corrupt(what, error))
}

/// Reads one row, if it exists.
pub(crate) async fn read<T: DeserializeOwned>(
    tx: &Transaction,
    key: &Bytes,
    what: &str,
) -> turnwise_queue::Result<Option<T>> {
    match tx.get(key).await? {
        Some(value) => decode(what, &value).map(Some),
        None => Ok(None),
    }
}

/// A database's counters; all zero before its first write.
pub(crate) async fn read_counters(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
) -> turnwise_queue::Result<Counters> {
    Ok(read(tx, &keys.sequence(db), "update sequence").await?.unwrap_or_default())
}
