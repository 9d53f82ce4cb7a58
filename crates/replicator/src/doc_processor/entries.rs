//! Entries of the indexes of documents for which something is due at a time: unresolved documents, and filter checks.

use turnwise_queue::keyspace::KeyRange;
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Runtime, Transaction};

use crate::documents::{DocTx, rows};

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub due_us: i64,
    pub db: String,
    pub id: String,
}

impl Entry {
    /// Its document, within a transaction.
    pub fn doc<'a>(&'a self, tx: &'a Transaction, keys: &'a Keyspace) -> DocTx<'a> {
        DocTx { tx, keys, db: &self.db, id: &self.id }
    }
}

/// The first entries of the index of unresolved documents, or a part of it. Adds no read conflict.
pub(super) async fn unresolved(
    tx: &Transaction,
    keys: &Keyspace,
    index: KeyRange,
    limit: usize,
) -> Result<Vec<Entry>> {
    first(tx, index, limit, |key| keys.parse_unresolved(key)).await
}

/// The first entries of an index, whose keys `parse` reads.
pub(super) async fn first(
    tx: &Transaction,
    index: KeyRange,
    limit: usize,
    parse: impl Fn(&[u8]) -> turnwise_store::Result<(i64, String, String)>,
) -> Result<Vec<Entry>> {
    let entry = |key: &[u8]| {
        let (due_us, db, id) = parse(key)?;
        Ok(Entry { due_us, db, id })
    };
    rows::page(tx, index, limit).await?.iter().map(|(key, _)| entry(key)).collect()
}

/// Up to `room` of the entries that are due, and when the next one is. Other nodes read the same entries, so each starts
/// with a random one.
pub(super) fn due(entries: Vec<Entry>, room: usize, runtime: &dyn Runtime) -> (Vec<Entry>, Option<i64>) {
    let now_us = runtime.now_us();
    let (mut due, later): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.due_us <= now_us);
    if due.len() > room {
        let first = runtime.random() % due.len() as u64;
        due.rotate_left(usize::try_from(first).unwrap_or(0));
        due.truncate(room);
    }
    (due, later.first().map(|entry| entry.due_us))
}
