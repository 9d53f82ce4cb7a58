//! The rows of a mirror: see the keyspace's `("mirror", …)`.

use serde::{Deserialize, Serialize};
use turnwise_queue::Keyspace;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::Seq;
use crate::documents::{names, rows};

/// A database that mirrors a database of the upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// Distinguishes the upstream's database from another one of the same name.
    pub incarnation: String,
    /// The mirror has the changes up to this sequence.
    pub since: Seq,
    /// The number of the current follower. Each follower chooses a new one, and stops when it finds another number.
    pub follower: u64,
}

/// A state that must still be written to the upstream's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owed {
    /// The time of the next attempt, in µs.
    pub due_us: i64,
    /// Number of failed attempts.
    pub attempts: u32,
}

pub(super) async fn read_mirror(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
) -> turnwise_queue::Result<Option<Mirror>> {
    rows::read(tx, &keys.mirror(db), "mirror row").await
}

pub(super) fn write_mirror(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    mirror: &Mirror,
) -> turnwise_queue::Result<()> {
    Ok(tx.set(keys.mirror(db), rows::encode(mirror))?)
}

/// The upstream's revision that the document of a mirror has.
pub(super) async fn read_seen(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    id: &str,
) -> turnwise_queue::Result<Option<String>> {
    rows::read(tx, &keys.mirror_seen(db, id), "mirrored revision").await
}

pub(super) fn write_seen(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    id: &str,
    rev: &str,
) -> turnwise_queue::Result<()> {
    Ok(tx.set(keys.mirror_seen(db, id), rows::encode(&rev))?)
}

/// Records that a document's state must be written back, if its database is a mirror.
pub(crate) fn owe(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    id: &str,
    now_us: i64,
) -> turnwise_queue::Result<()> {
    match names::is_mirror(db) {
        true => write_owed(tx, keys, db, id, &Owed { due_us: now_us, attempts: 0 }),
        false => Ok(()),
    }
}

pub(super) fn write_owed(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    id: &str,
    owed: &Owed,
) -> turnwise_queue::Result<()> {
    Ok(tx.set(keys.mirror_owed(db, id), rows::encode(owed))?)
}

/// The first owed states, by document id. Adds no read conflict.
pub(super) async fn list_owed(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    limit: usize,
) -> turnwise_queue::Result<Vec<(String, Owed)>> {
    let (begin, end) = keys.mirror_all_owed(db);
    let found = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    let owed = |(key, value): &(bytes::Bytes, bytes::Bytes)| {
        let id = keys.parse_mirror_owed(key)?;
        Ok((id, rows::decode("owed row", value)?))
    };
    found.iter().map(owed).collect()
}
