//! The servers that share a store, and the state of that store.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::names::WorkerId;
use crate::workers::Mode;

/// The nodes of a store: the servers that run on it. Each node responds for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// The name of the node that responds.
    pub node: String,
    /// The nodes, ordered by start time. A killed node stays in the list until its health timeout is over.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "000643d1a2b3c4d5-9f3a1c5e7b2d4860", "name": "turnwise@10.0.1.1:7984", "url": "http://10.0.1.1:7984",
    "version": "0.1.0", "started_us": 1_763_734_800_000_000_i64, "mode": "active"
}))]
pub struct Node {
    /// The id of this run of the node. It is never used again.
    #[schema(value_type = WorkerId)]
    pub id: String,
    /// Its name.
    pub name: String,
    /// The URL under which other nodes and clients reach it.
    pub url: String,
    /// The release that it runs.
    pub version: String,
    /// When it started, in µs since the Unix epoch.
    pub started_us: i64,
    /// Whether the workers inside this server get new jobs: also those that register after a restart of the node.
    #[serde(default)]
    #[schema(required = true)]
    pub mode: Mode,
}

/// A node whose mode was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedNode {
    /// Its name.
    pub node: String,
    /// Its mode now.
    pub mode: Mode,
    /// The number of registered workers inside this server. All of them have the mode now.
    pub workers: usize,
}

answers! {
    /// The store of the node that responds, as that node sees it.
    #[derive(PartialEq, Eq)]
    pub struct Store {
        /// The name of the node that responds.
        pub node: String,
        /// `embedded`, `etcd` or `foundationdb`.
        pub engine: String,
        /// The URL of the store, without user and password.
        pub url: String,
        /// Why the store is failing. Missing while it works.
        pub failing: Option<Failing>,
        /// The limits of one transaction.
        pub limits: StoreLimits,
        /// The node's operations on the store since the node started.
        pub counters: StoreCounters,
    }
}

/// Since when a store is failing, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failing {
    /// Since when, in µs since the Unix epoch.
    pub since_us: i64,
    /// The latest error, in one line.
    pub reason: String,
}

/// The limits of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreLimits {
    /// Longest key, in bytes.
    pub key_bytes: usize,
    /// Longest value, in bytes.
    pub value_bytes: usize,
    /// Maximum size of all keys and values together, in bytes.
    pub transaction_bytes: usize,
    /// Maximum number of rows that are written.
    pub transaction_writes: usize,
    /// Maximum number of rows and ranges that were read and are checked for conflicts.
    pub transaction_conflicts: usize,
    /// Longest duration, in ms.
    pub transaction_ms: u64,
}

/// A node's operations on its store since the node started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreCounters {
    /// Transactions that began; each attempt counts.
    pub transactions: u64,
    /// Commits that the node requested.
    pub commits: u64,
    /// Commits that failed because another transaction had changed what they read. The node repeated them.
    pub conflicts: u64,
    /// Transactions that took too long.
    pub too_old: u64,
    /// Commits whose outcome is unknown.
    pub unknown_outcomes: u64,
    /// Calls that failed because the store was unavailable.
    pub unavailable: u64,
    /// Reads of one row.
    pub gets: u64,
    /// Reads of a range.
    pub ranges: u64,
    /// Rows that were read.
    pub rows_read: u64,
    /// Rows and ranges that were written or cleared.
    pub rows_written: u64,
    /// Total duration of all commits, in µs.
    pub commit_us: u64,
}
