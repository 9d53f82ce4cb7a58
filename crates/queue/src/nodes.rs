//! The nodes of a store: the servers that run on it.
//!
//! A node is a worker of its own type, [`NODE_TYPE`], without slots, and its membership works like that of workers. It
//! moves its health counter, its neighbour removes it once the counter does not move, and it leaves when it stops.

use async_recursion::async_recursion as boxed;
use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use crate::worker_row::{self, Worker};
use crate::{Keyspace, Result};

/// The worker type of nodes. No client can have jobs or workers of this type, because its names must not contain `@`.
pub const NODE_TYPE: &str = "@nodes";
/// The most nodes that a listing reads.
pub const MAX_NODES: usize = 1_000;

/// What is stored about a node, beside its name ([`Worker::node`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOptions {
    /// The URL at which the node is reached.
    pub url: String,
    /// The release that the node runs.
    pub version: String,
    /// Names something that only one live process can have, such as a listener on one machine. A node that starts with the
    /// same value knows that the earlier node is dead. `None` if there is no such thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The node follows the databases of an upstream CouchDB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upstream: bool,
}

/// All nodes, sorted by id: the earliest started is first. Adds no read conflict.
#[boxed]
pub async fn list(tx: &Transaction, keys: &Keyspace) -> Result<Vec<Worker>> {
    worker_row::list(tx, keys, NODE_TYPE, MAX_NODES).await
}
