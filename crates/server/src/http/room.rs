//! Memory for what clients send: one budget for all requests of the process.
//!
//! A request takes room before its body is read, in proportion to what its body may become in memory, and gives it back when it has been dealt with. More of
//! them wait, unread, for a while; then they are told to come back. Small ones need no room: whatever others send, they are answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The budget, in KiB. With what the process has otherwise, it stays well under 1 GB.
const ROOM_KB: usize = 384 << 10;
/// A body up to this size needs no room. Were every connection that there can be to send one, these would take 640 MB.
pub(crate) const SMALL_BODY_BYTES: usize = 64 << 10;
/// How long a body may wait for room.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// What a body may become in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes for each of the body's.
    pub factor: usize,
    /// And so many at most, or beside them.
    pub more: More,
}

/// See [`Cost::more`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// What there is beside the body's own part.
    Beside(usize),
    /// There is never more in all.
    AtMost(usize),
}

/// A tree of JSON: [`MAX_VALUES`](super::request::MAX_VALUES) values take about as much.
const TREE_BYTES: usize = 32 << 20;

impl Cost {
    /// The text, and copies of its parts.
    pub const TEXT: Cost = Cost { factor: 3, more: More::Beside(0) };
    /// The text, where its rows are, and an answer with a line for each.
    pub const ROWS: Cost = Cost { factor: 4, more: More::Beside(0) };
    /// The same, with trees of some of the rows.
    pub const DOCUMENTS: Cost = Cost { factor: 4, more: More::Beside(TREE_BYTES) };
    /// One tree.
    pub const TREE: Cost = Cost { factor: 40, more: More::AtMost(TREE_BYTES + (8 << 20)) };

    /// For a body of so many bytes.
    fn bytes(self, body: usize) -> usize {
        let own = body.saturating_mul(self.factor);
        match self.more {
            More::Beside(bytes) => own.saturating_add(bytes),
            More::AtMost(bytes) => own.min(bytes),
        }
    }
}

/// The budget.
#[derive(Clone)]
pub(crate) struct Room {
    free: Arc<Semaphore>,
    kb: usize,
    patience: Duration,
}

/// Room that a request has. None for a small one.
#[derive(Debug, Default)]
pub(crate) struct Held(Option<OwnedSemaphorePermit>);

/// There was no room in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Full {
    pub const REASON: &'static str = "too many large bodies are being sent";
}

impl Default for Room {
    fn default() -> Self {
        Room::of_kb(ROOM_KB)
    }
}

impl Room {
    pub fn of_kb(kb: usize) -> Room {
        Room { free: Arc::new(Semaphore::new(kb)), kb, patience: ROOM_TIMEOUT }
    }

    /// Waits for the room of a body.
    pub async fn take(&self, body: usize, cost: Cost) -> Result<Held, Full> {
        if body <= SMALL_BODY_BYTES {
            return Ok(Held::default());
        }
        // No single one needs more than there is.
        let kb = cost.bytes(body).div_ceil(1 << 10).min(self.kb);
        let taking = self.free.clone().acquire_many_owned(u32::try_from(kb).unwrap_or(u32::MAX));
        match tokio::time::timeout(self.patience, taking).await {
            Ok(permit) => Ok(Held(Some(permit.expect("nobody closes it")))),
            Err(_) => Err(Full),
        }
    }
}

impl Held {
    /// Whether it is for a body of more than [`SMALL_BODY_BYTES`].
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn what_finds_no_room_in_time_is_told_so_and_small_bodies_need_none() {
        let room = Room { patience: Duration::ZERO, ..Room::of_kb(64 << 10) };
        let held = room.take(16 << 20, Cost::ROWS).await.unwrap();
        assert!(held.is_some());
        assert_eq!(room.take(SMALL_BODY_BYTES + 1, Cost::TEXT).await.unwrap_err(), Full);
        assert!(!room.take(SMALL_BODY_BYTES, Cost::TREE).await.unwrap().is_some());
        drop(held);
        assert!(room.take(SMALL_BODY_BYTES + 1, Cost::TEXT).await.is_ok());
        // One that would need more than there is gets all of it.
        assert!(room.take(1 << 30, Cost::DOCUMENTS).await.is_ok());
    }
}
