//! What is stored about a worker.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use crate::encoding::decode;
use crate::nodes::NodeOptions;
use crate::tasks::KnownTasks;
use crate::{Keyspace, Result, reads};

/// Whether a worker takes new jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It takes jobs.
    #[default]
    Active,
    /// It takes no new jobs until it is resumed. Its running jobs continue.
    Quiet,
    /// The same, and it gives back the jobs that do not end by themselves. An external worker leaves when its last job has ended.
    Drain,
}

impl Mode {
    /// Whether a worker with this mode takes no new jobs.
    pub fn is_quiet(self) -> bool {
        self != Mode::Active
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_active(&self) -> bool {
        *self == Mode::Active
    }
}

/// A registered worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its id, used once: a restarted process registers under a new one. In the key, not in the value.
    #[serde(skip)]
    pub id: String,
    /// The node that it runs on (or reaches the store through), as the API shows it.
    pub node: String,
    /// Its display name, if it has one; never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it registered, in µs.
    pub started_us: i64,
    /// The most jobs that it runs.
    pub slots: usize,
    /// The bounds within which its slots follow the demand; `None` if they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// How long its health counter may stay the same before it counts as dead, in µs.
    pub health_timeout_us: i64,
    /// It reaches the store only through a server: it watches no other worker, and survives that server's restart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// The identity that has registered it, if identities are needed: only this one may act for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_by: Option<String>,
    /// The tasks that it knows; `None` if it takes jobs of all ([`crate::tasks`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<KnownTasks>,
    /// The tasks whose terms it has declared, each with the [digest](crate::types::digest) of these terms.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub task_terms: BTreeMap<String, u64>,
    /// Whether it takes new jobs ([`crate::modes`]).
    #[serde(default, skip_serializing_if = "Mode::is_active")]
    pub mode: Mode,
    /// A node's own description; workers have none.
    #[serde(default, rename = "options", skip_serializing_if = "Option::is_none")]
    pub node_options: Option<NodeOptions>,
}

/// The bounds of a worker's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Its fewest slots.
    pub least: usize,
    /// Its most slots.
    pub most: usize,
}

/// How long a health counter may stay the same by default, in µs: three heartbeats.
pub const DEFAULT_HEALTH_TIMEOUT_US: i64 = 15_000_000;

impl Worker {
    /// A worker of this process, without a name, with the default timeout.
    pub fn new(id: &str, node: &str, started_us: i64, slots: usize) -> Self {
        Worker {
            id: id.to_owned(),
            node: node.to_owned(),
            name: None,
            started_us,
            slots,
            bounds: None,
            health_timeout_us: DEFAULT_HEALTH_TIMEOUT_US,
            external: false,
            registered_by: None,
            tasks: None,
            task_terms: BTreeMap::new(),
            mode: Mode::Active,
            node_options: None,
        }
    }
}

/// Up to `limit` registered workers of a type, sorted by id. Adds no read conflict.
pub(crate) async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    limit: usize,
) -> Result<Vec<Worker>> {
    let read = |key: &Bytes, value: &Bytes| {
        Ok(Worker { id: keys.parse_worker(key)?, ..decode("worker row", value)? })
    };
    reads::list(tx, keys.workers(job_type), limit, read).await
}

/// A worker's heartbeat. Its watcher measures on its own clock how long the counter stays the same. `seen_us` only shows how
/// long the jobs of a lost worker have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Moves while the worker lives.
    pub counter: u64,
    /// How long the counter may stay the same, in µs.
    pub timeout_us: i64,
    /// See [`Worker::external`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// When the counter last moved, in µs, by the clock of the process that moved it.
    pub seen_us: i64,
}
