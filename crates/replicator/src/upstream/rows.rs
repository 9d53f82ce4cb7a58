//! What is kept of a mirror: see the keyspace's `("mirror", …)`.

use serde::{Deserialize, Serialize};
use turnwise_queue::Keyspace;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::Seq;
use crate::documents::{corrupt, names, rows};

/// A database that mirrors one of the upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// What tells the upstream's database from another one of the same name.
    pub incarnation: String,
    /// Up to here its changes are in the mirror.
    pub since: Seq,
    /// Who follows it: a number that each follower chooses anew. Whoever finds another one stops.
    pub follower: u64,
}

/// A state that is still to be written into the upstream's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owed {
    /// Not to be tried before this time, in µs.
    pub due_us: i64,
    /// Attempts that failed.
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

/// The upstream's revision that a document of a mirror is of.
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

/// Notes that a document's state is to be written back, if its database is a mirror.
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

/// The first states that are owed, by document id. Takes no conflict.
pub(super) async fn list_owed(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    limit: usize,
) -> turnwise_queue::Result<Vec<(String, Owed)>> {
    let (begin, end) = keys.mirror_all_owed(db);
    let found = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    let owed = |(key, value): &(bytes::Bytes, bytes::Bytes)| {
        let id = keys.parse_mirror_owed(key).ok_or_else(|| corrupt("owed key", "not a tuple of four"))?;
        Ok((id, rows::decode("owed row", value)?))
    };
    found.iter().map(owed).collect()
}
