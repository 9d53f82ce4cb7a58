//! Reads and writes single rows.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use turnwise_queue::keyspace::KeyRange;
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Isolation, KeyValue, RangeRead, Transaction};

use super::error::corrupt;

/// A document of a `_replicator` database, within a transaction.
#[derive(Clone, Copy)]
pub(crate) struct DocTx<'a> {
    pub tx: &'a Transaction,
    pub keys: &'a Keyspace,
    pub db: &'a str,
    pub id: &'a str,
}

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

pub(crate) fn decode<T: DeserializeOwned>(what: &str, value: &[u8]) -> Result<T> {
    serde_json::from_slice(value).map_err(|error| corrupt(what, error))
}

/// Reads one row, if it exists.
pub(crate) async fn read<T: DeserializeOwned>(
    tx: &Transaction,
    key: &Bytes,
    what: &str,
) -> Result<Option<T>> {
    match tx.get(key).await? {
        Some(value) => decode(what, &value).map(Some),
        None => Ok(None),
    }
}

/// The first rows of a range. Adds no read conflict.
pub(crate) async fn page(tx: &Transaction, (begin, end): KeyRange, limit: usize) -> Result<Vec<KeyValue>> {
    let read = RangeRead { begin, end, limit, reverse: false };
    Ok(tx.range_with(read, Isolation::Snapshot).await?)
}

/// A database's counters; all zero before its first write.
pub(crate) async fn read_counters(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<Counters> {
    Ok(read(tx, &keys.sequence(db), "update sequence").await?.unwrap_or_default())
}
