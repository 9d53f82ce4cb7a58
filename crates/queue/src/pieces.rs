//! Values larger than the store's limit, in pieces under consecutive keys.

use bytes::{Bytes, BytesMut};
use turnwise_store::{Isolation, RangeRead, Result, Transaction};

use crate::keyspace::KeyRange;

/// Size of all pieces of a value but the last: below the store's 100 kB for a value on every engine.
pub const PIECE_BYTES: usize = 90_000;
/// No value has more pieces: far above every bound on what is stored this way.
const MAX_PIECES: usize = 1_000;

/// Writes `value` under `key(0)`, `key(1)`, …, in place of whatever `range` held.
pub fn write_pieces(
    tx: &Transaction,
    range: KeyRange,
    key: impl Fn(u32) -> Bytes,
    value: &Bytes,
) -> Result<()> {
    let key = |n: usize| key(u32::try_from(n).expect("a value has fewer than MAX_PIECES pieces"));
    // What is written again needs not be cleared: an engine for which this is one step too many would do it in two.
    let (_, end) = range;
    tx.clear_range((key(value.len().div_ceil(PIECE_BYTES)), end))?;
    for (n, begin) in (0..value.len()).step_by(PIECE_BYTES).enumerate() {
        let piece = value.slice(begin..value.len().min(begin + PIECE_BYTES));
        tx.set(key(n), piece)?;
    }
    Ok(())
}

/// Reads back what [`write_pieces`] wrote; empty if there is nothing. Takes no conflict: whoever writes pieces writes the
/// row that they belong to, and whoever reads them has read that one.
pub async fn read_pieces(tx: &Transaction, (begin, end): &KeyRange) -> Result<Bytes> {
    let (begin, end) = (begin.clone(), end.clone());
    let read = RangeRead { begin, end, limit: MAX_PIECES, reverse: false };
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
