//! The nodes of a store: the servers that run on it.
//!
//! A node is a worker of a type of its own, [`NODE_TYPE`], without room for jobs. So it lives and dies as workers do: it moves
//! its health counter, its neighbour removes it once that stands still, and it leaves by itself when it stops.

use serde::{Deserialize, Serialize};
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::error::corrupt;
use crate::rows::decode;
use crate::workers::Worker;
use crate::{Keyspace, Result};

/// The type that nodes are workers of. No client can have jobs or workers of it: `@` may not stand in the names of theirs.
pub const NODE_TYPE: &str = "@nodes";
/// Nodes that a listing reads at most.
pub const MAX_NODES: usize = 1_000;

/// What is known of a node, beside its name ([`Worker::node`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOptions {
    /// Where it is reached.
    pub url: String,
    /// The release that it runs.
    pub version: String,
    /// What only one living process can have, if there is such a thing: a listener on one machine. A node that starts in the
    /// place of another one knows that the other is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// It follows the databases of an upstream CouchDB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upstream: bool,
}

/// All nodes, sorted by id: the one that started first is the first. Takes no conflict.
pub async fn list(tx: &Transaction, keys: &Keyspace) -> Result<Vec<Worker>> {
    let (begin, end) = keys.workers(NODE_TYPE);
    let read = RangeRead { begin, end, limit: MAX_NODES, reverse: false };
    let rows = tx.range_with(read, Isolation::Snapshot).await?;
    rows.into_iter()
        .map(|(key, value)| {
            let mut node: Worker = decode("node row", &value)?;
            node.id = keys.parse_worker(&key).ok_or_else(|| corrupt("node key", "not a tuple of three"))?;
            Ok(node)
        })
        .collect()
}
