//! Memory for request bodies: one budget for all requests of the process.
//!
//! A request reserves memory before its body is read, in proportion to what processing the body may need, and frees it
//! when it is complete. If the budget or the identity's share is used up, further requests wait unread for a while, and then receive the
//! advice to retry. Small requests need no reservation, so they are always served.

use std::time::Duration;

use async_recursion::async_recursion as boxed;

use crate::access::Caller;
use crate::pool::{Pool, PoolPermit};
use crate::v1_error::V1Error;

/// The budget, in KiB. Together with its other memory, the process stays well under 1 GB.
const ROOM_KB: u32 = 384 << 10;
/// A body up to this size needs no reservation. If every possible connection sent one, these bodies would take 640 MB.
pub const SMALL_BODY_BYTES: usize = 64 << 10;
/// How long a request may wait for its reservation.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// The memory that processing a body needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Bytes per byte of the body.
    factor: usize,
    /// Bytes in addition.
    beside: usize,
    /// An upper limit for the sum.
    most: usize,
}

/// A tree of JSON: approximately the size of [`MAX_VALUES`](super::request::MAX_VALUES) values.
const TREE_BYTES: usize = 32 << 20;

impl Cost {
    /// The text, and copies of its parts.
    pub const TEXT: Cost = Cost { factor: 3, beside: 0, most: usize::MAX };
    /// The text, the positions of its rows, and a response with a line for each row.
    pub const ROWS: Cost = Cost { factor: 4, ..Self::TEXT };
    /// The same, with rows that are indexed in turn: those of one document may be most of the body.
    pub const REVISIONS: Cost = Cost { factor: 12, ..Self::TEXT };
    /// The text, the positions of its rows, a line for each row, and trees of some rows.
    pub const DOCUMENTS: Cost = Cost { beside: TREE_BYTES, ..Self::ROWS };
    /// One tree.
    pub const TREE: Cost = Cost { factor: 40, most: TREE_BYTES + (8 << 20), ..Self::TEXT };

    /// The memory for a body of this size.
    fn bytes(self, body: usize) -> usize {
        body.saturating_mul(self.factor).saturating_add(self.beside).min(self.most)
    }
}

/// The budget.
pub struct Room {
    /// In KiB. One identity may have three in four parts.
    memory: Pool,
    patience: Duration,
}

/// A request's reservation. Empty for a small body.
#[derive(Debug, Default)]
pub struct MemoryPermit(Option<PoolPermit>);

impl Default for Room {
    fn default() -> Self {
        Room::of_kb(ROOM_KB)
    }
}

impl Room {
    /// A budget of so many KiB.
    pub fn of_kb(kb: u32) -> Room {
        Room { memory: Pool::new(kb, kb / 4 * 3), patience: ROOM_TIMEOUT }
    }

    /// Waits for the reservation of a body. The error is that the budget was used up until the timeout.
    #[boxed]
    pub async fn take(&self, caller: &Caller, body: usize, cost: Cost) -> Result<MemoryPermit, V1Error> {
        if body <= SMALL_BODY_BYTES {
            return Ok(MemoryPermit::default());
        }
        // No request reserves more than a share.
        let kb = u32::try_from(cost.bytes(body).div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let taking = self.memory.take(caller, kb.min(self.memory.share()));
        match tokio::time::timeout(self.patience, taking).await {
            Ok(permit) => Ok(MemoryPermit(Some(permit))),
            Err(_) => Err(V1Error::unavailable("too many large bodies are being sent", "try again later")),
        }
    }
}

impl MemoryPermit {
    /// Whether the body is larger than [`SMALL_BODY_BYTES`].
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::http::StatusCode;
    use turnwise_identity::Scopes;

    use super::*;

    #[tokio::test]
    async fn a_body_without_room_in_time_is_refused_and_small_bodies_need_none() {
        let room = Room { patience: Duration::ZERO, ..Room::of_kb(64 << 10) };
        let [a, b] = ["a", "b"].map(|id| Caller::token(id, Scopes::default()));
        let held = room.take(&a, 12 << 20, Cost::ROWS).await.unwrap();
        assert!(held.is_some());
        let refused = room.take(&a, SMALL_BODY_BYTES + 1, Cost::TEXT).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(!room.take(&a, SMALL_BODY_BYTES, Cost::TREE).await.unwrap().is_some());
        // The share of one identity leaves a part of the budget for the others.
        let other = room.take(&b, 4 << 20, Cost::ROWS).await.unwrap();
        assert!(room.take(&b, SMALL_BODY_BYTES + 1, Cost::TEXT).await.is_err());
        drop((held, other));
        // A body that would need more than a share reserves all of it.
        assert!(room.take(&a, 1 << 30, Cost::DOCUMENTS).await.is_ok());
    }
}
