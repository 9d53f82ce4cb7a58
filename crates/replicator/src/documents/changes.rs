//! The changes feed: every document once, at the position of its latest write.

use turnwise_queue::Keyspace;
use turnwise_store::{Isolation, RangeRead, Transaction};

use super::error::corrupt;
use super::rows::{self, decode, read_counters};
use super::{DocTx, Head, Result, databases};

/// One page of changes.
#[derive(Debug, Clone)]
pub struct Page {
    /// Oldest first, or latest first if asked for; tombstones included.
    pub changes: Vec<Head>,
    /// Everything up to this number was read; the next page begins here.
    pub last: i64,
    /// There may be more.
    pub more: bool,
    /// The database's latest write.
    pub latest: i64,
    /// When the database was created, in µs. Another value means another database of the same name.
    pub created_us: i64,
}

/// Up to `limit` changes after the one with number `since`, or before it if `descending`.
///
/// # Errors
/// Those of [`databases::check`].
pub async fn page(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    since: i64,
    descending: bool,
    limit: usize,
) -> Result<Page> {
    let created_us = databases::check(tx, keys, db).await?.created_us;
    let latest = read_counters(tx, keys, db).await?.sequence;
    let (mut begin, mut end) = keys.changes(db);
    match descending {
        true => end = keys.change(db, since),
        false => begin = keys.change(db, since.saturating_add(1)),
    }
    let rows =
        tx.range_with(RangeRead { begin, end, limit, reverse: descending }, Isolation::Snapshot).await?;
    let more = rows.len() == limit;
    let mut changes = Vec::with_capacity(rows.len());
    for (_, value) in rows {
        let id: String = decode("change", &value)?;
        let head = DocTx { tx, keys, db, id: &id }.head().await?;
        changes.push(head.ok_or_else(|| corrupt("change", "names no document"))?);
    }
    let last = match changes.last() {
        Some(change) => change.sequence,
        None => latest.min(since),
    };
    Ok(Page { changes, last, more, latest, created_us })
}

/// How many changes come after the one with number `since`, counted up to `limit`.
pub async fn count_after(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    since: i64,
    limit: usize,
) -> Result<usize> {
    let (_, end) = keys.changes(db);
    let begin = keys.change(db, since.saturating_add(1));
    Ok(rows::page(tx, (begin, end), limit).await?.len())
}
