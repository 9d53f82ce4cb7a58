//! The rows of a mirror: see the keyspace's `("mirror", …)`.

use serde::{Deserialize, Serialize};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{KeyValue, Transaction};

use crate::Seq;
use crate::documents::{DocTx, names, rows};

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

pub(super) async fn read_mirror(tx: &Transaction, keys: &Keyspace, db: &str) -> Result<Option<Mirror>> {
    rows::read(tx, &keys.mirror(db), "mirror row").await
}

pub(super) fn write_mirror(tx: &Transaction, keys: &Keyspace, db: &str, mirror: &Mirror) -> Result<()> {
    Ok(tx.set(keys.mirror(db), rows::encode(mirror))?)
}

impl DocTx<'_> {
    /// The upstream's revision that the document of a mirror has.
    pub(super) async fn seen(self) -> Result<Option<String>> {
        rows::read(self.tx, &self.keys.mirror_seen(self.db, self.id), "mirrored revision").await
    }

    pub(super) fn write_seen(self, rev: &str) -> Result<()> {
        Ok(self.tx.set(self.keys.mirror_seen(self.db, self.id), rows::encode(&rev))?)
    }

    /// Records that the document's state must be written back, if its database is a mirror.
    pub(crate) fn owe(self, now_us: i64) -> Result<()> {
        match names::is_mirror(self.db) {
            true => self.write_owed(&Owed { due_us: now_us, attempts: 0 }),
            false => Ok(()),
        }
    }

    pub(super) fn write_owed(self, owed: &Owed) -> Result<()> {
        Ok(self.tx.set(self.keys.mirror_owed(self.db, self.id), rows::encode(owed))?)
    }

    /// No state must be written back.
    pub(super) fn clear_owed(self) -> Result<()> {
        Ok(self.tx.clear(self.keys.mirror_owed(self.db, self.id))?)
    }
}

/// The first owed states, by document id. Adds no read conflict.
pub(super) async fn list_owed(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    limit: usize,
) -> Result<Vec<(String, Owed)>> {
    let owed = |(key, value): &KeyValue| {
        let id = keys.parse_mirror_owed(key)?;
        Ok((id, rows::decode("owed row", value)?))
    };
    rows::page(tx, keys.mirror_all_owed(db), limit).await?.iter().map(owed).collect()
}
