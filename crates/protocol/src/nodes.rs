//! The servers that share a store, and how that store does.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::names::WorkerId;

/// The nodes of a store: the servers that run on it. Each answers for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// The name of the node that answers.
    pub node: String,
    /// The nodes, the one that started first first. One that was killed stays for a health timeout.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "000643d1a2b3c4d5-9f3a1c5e7b2d4860", "name": "turnwise@10.0.1.1:7984", "url": "http://10.0.1.1:7984",
    "version": "0.1.0", "started_us": 1_763_734_800_000_000_i64
}))]
pub struct Node {
    /// The id of this run of it, never used again.
    #[schema(value_type = WorkerId)]
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub url: String,
    /// The release that it runs.
    pub version: String,
    /// When it started, in µs since the Unix epoch.
    pub started_us: i64,
}

/// The store of the node that answers, as that node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Store {
    /// The name of the node that answers.
    pub node: String,
    /// `embedded`, `etcd` or `foundationdb`.
    pub engine: String,
    /// Its URL, without user and password.
    pub url: String,
    /// Why it does not work now; missing while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub failing: Option<Failing>,
    /// What one transaction may do.
    pub limits: StoreLimits,
    /// What the node has done with it since it started.
    pub counters: StoreCounters,
}

/// Since when a store does not work, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failing {
    /// Since when, in µs since the Unix epoch.
    pub since_us: i64,
    /// The latest failure, in one line.
    pub reason: String,
}

/// What one transaction of a store may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreLimits {
    /// Longest key, in bytes.
    pub key_bytes: usize,
    /// Longest value, in bytes.
    pub value_bytes: usize,
    /// Keys and values together, in bytes.
    pub transaction_bytes: usize,
    /// Rows that are written.
    pub transaction_writes: usize,
    /// Rows and ranges that were read and must be as they were.
    pub transaction_conflicts: usize,
    /// How long it may take, in ms.
    pub transaction_ms: u64,
}

/// What a node has done with its store since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreCounters {
    /// Transactions that were begun, each attempt one.
    pub transactions: u64,
    /// Commits that were asked for.
    pub commits: u64,
    /// Commits that failed because something had changed meanwhile; they were tried again.
    pub conflicts: u64,
    /// Transactions that took too long.
    pub too_old: u64,
    /// Commits of which it is unknown whether they happened.
    pub unknown_outcomes: u64,
    /// Calls that the store could not answer.
    pub unavailable: u64,
    /// Reads of one row.
    pub gets: u64,
    /// Reads of a range.
    pub ranges: u64,
    /// Rows that were read.
    pub rows_read: u64,
    /// Rows and ranges that were written or cleared.
    pub rows_written: u64,
    /// How long all commits took together, in µs.
    pub commit_us: u64,
}
