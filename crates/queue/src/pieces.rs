//! Values that exceed the store's limit, in pieces under consecutive keys.

use async_recursion::async_recursion as boxed;
use bytes::{Bytes, BytesMut};
use turnwise_store::{Isolation, RangeRead, Result, Transaction};

use crate::keyspace::KeyRange;

/// Size of all pieces of a value except the last: below the 100 kB that every engine allows for a value.
pub const PIECE_BYTES: usize = 90_000;
/// The most pieces of a value: far above every bound on values that are stored this way.
const MAX_PIECES: usize = 1_000;

/// Writes `value` under `key(0)`, `key(1)`, …, and replaces what `range` held.
pub fn write_pieces(
    tx: &Transaction,
    range: KeyRange,
    key: impl Fn(u32) -> Bytes,
    value: &Bytes,
) -> Result<()> {
    let key = |n: usize| key(u32::try_from(n).expect("a value has fewer than MAX_PIECES pieces"));
    // Keys that are written below need no clear. It would cost an extra step on an engine with few operations per step.
    let (_, end) = range;
    tx.clear_range((key(value.len().div_ceil(PIECE_BYTES)), end))?;
    for (n, begin) in (0..value.len()).step_by(PIECE_BYTES).enumerate() {
        let piece = value.slice(begin..value.len().min(begin + PIECE_BYTES));
        tx.set(key(n), piece)?;
    }
    Ok(())
}

/// Reads what [`write_pieces`] wrote; empty if there is nothing. Adds no read conflict: a writer of pieces also writes the
/// row that they belong to, and a reader of pieces has read that row.
#[boxed]
pub async fn read_pieces(tx: &Transaction, range: &KeyRange) -> Result<Bytes> {
    read_some(tx, range, MAX_PIECES).await
}

/// The same, if the value has at most so many bytes. Reads no pieces behind these.
pub async fn read_small_pieces(
    tx: &Transaction,
    range: &KeyRange,
    max_bytes: usize,
) -> Result<Option<Bytes>> {
    // All pieces but the last are full: a larger value has more bytes in so many pieces.
    let value = read_some(tx, range, max_bytes / PIECE_BYTES + 1).await?;
    Ok(Some(value).filter(|value| value.len() <= max_bytes))
}

async fn read_some(tx: &Transaction, (begin, end): &KeyRange, limit: usize) -> Result<Bytes> {
    let (begin, end) = (begin.clone(), end.clone());
    let read = RangeRead { begin, end, limit, reverse: false };
    let mut pieces = tx.range_with(read, Isolation::Snapshot).await?;
    if pieces.len() == 1 {
        return Ok(pieces.remove(0).1);
    }
    let mut value = BytesMut::with_capacity(pieces.iter().map(|(_, piece)| piece.len()).sum());
    for (_, piece) in pieces {
        value.extend_from_slice(&piece);
    }
    Ok(value.freeze())
}
