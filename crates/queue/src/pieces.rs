//! Values larger than the store's limit, in pieces under consecutive keys.

use bytes::{Bytes, BytesMut};
use turnwise_store::{Result, Transaction};

use crate::keyspace::KeyRange;

/// Below the store's 100 kB for a value on every engine.
const PIECE_BYTES: usize = 90_000;
/// No value has more pieces: far above every bound on what is stored this way.
const MAX_PIECES: usize = 1_000;

/// Writes `value` under `key(0)`, `key(1)`, …, in place of whatever `range` held.
pub fn write_pieces(
    tx: &Transaction,
    range: KeyRange,
    key: impl Fn(u32) -> Bytes,
    value: &Bytes,
) -> Result<()> {
    tx.clear_range(range)?;
    for (n, begin) in (0..value.len()).step_by(PIECE_BYTES).enumerate() {
        let piece = value.slice(begin..value.len().min(begin + PIECE_BYTES));
        tx.set(key(u32::try_from(n).expect("a value has fewer than MAX_PIECES pieces")), piece)?;
    }
    Ok(())
}

/// Reads back what [`write_pieces`] wrote; empty if there is nothing.
pub async fn read_pieces(tx: &Transaction, range: &KeyRange) -> Result<Bytes> {
    let mut pieces = tx.range(range, MAX_PIECES).await?;
    if pieces.len() == 1 {
        return Ok(pieces.remove(0).1);
    }
    let mut value = BytesMut::with_capacity(pieces.iter().map(|(_, piece)| piece.len()).sum());
    for (_, piece) in pieces {
        value.extend_from_slice(&piece);
    }
    Ok(value.freeze())
}
