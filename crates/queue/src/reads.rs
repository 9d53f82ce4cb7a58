//! Reads of rows that many kinds of rows share.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use turnwise_store::{Isolation, KeyValue, RangeRead, Transaction};

use crate::encoding::decode;
use crate::error::Result;
use crate::keyspace::{KeyRange, behind};

/// The first rows of a range, up to `limit`. Adds no read conflict.
pub(crate) async fn rows(tx: &Transaction, (begin, end): KeyRange, limit: usize) -> Result<Vec<KeyValue>> {
    Ok(tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?)
}

/// What `read` makes of the keys and values of these rows. Adds no read conflict.
pub(crate) async fn list<T>(
    tx: &Transaction,
    range: KeyRange,
    limit: usize,
    read: impl Fn(&Bytes, &Bytes) -> Result<T>,
) -> Result<Vec<T>> {
    rows(tx, range, limit).await?.iter().map(|(key, value)| read(key, value)).collect()
}

/// Calls `each` with every row of a range. Reads `page` rows at a time, and stops after `most`: then it returns the key of the last one.
/// Adds no read conflict.
pub(crate) async fn each(
    tx: &Transaction,
    mut range: KeyRange,
    (page, most): (usize, usize),
    mut each: impl FnMut(&Bytes, &Bytes) -> Result<()>,
) -> Result<Option<Bytes>> {
    let mut read = 0;
    loop {
        let rows = rows(tx, range.clone(), page).await?;
        for (key, value) in &rows {
            each(key, value)?;
        }
        read += rows.len();
        let Some((last, _)) = rows.last().filter(|_| rows.len() == page) else { return Ok(None) };
        if read >= most {
            return Ok(Some(last.clone()));
        }
        range = behind(range, Some(last.clone()));
    }
}

/// Up to `limit` groups of rows, in order. `read` returns the group of a key, and the end of its rows. Reads one row per group, however
/// many it has. Adds no read conflict.
pub(crate) async fn groups<T>(
    tx: &Transaction,
    (mut begin, end): KeyRange,
    limit: usize,
    read: impl Fn(&Bytes) -> Result<(T, Bytes)>,
) -> Result<Vec<T>> {
    let mut groups = Vec::new();
    while groups.len() < limit {
        let first = rows(tx, (begin, end.clone()), 1).await?;
        let Some((key, _)) = first.first() else { break };
        let (group, behind) = read(key)?;
        groups.push(group);
        begin = behind;
    }
    Ok(groups)
}

/// The value of a row, if the row exists; `what` names the row in an error.
pub(crate) async fn value<T: DeserializeOwned>(
    tx: &Transaction,
    key: &Bytes,
    what: &str,
) -> Result<Option<T>> {
    value_with(tx, key, what, Isolation::Serializable).await
}

/// The same with this isolation.
pub(crate) async fn value_with<T: DeserializeOwned>(
    tx: &Transaction,
    key: &Bytes,
    what: &str,
    isolation: Isolation,
) -> Result<Option<T>> {
    tx.get_with(key, isolation).await?.map(|value| decode(what, &value)).transpose()
}
