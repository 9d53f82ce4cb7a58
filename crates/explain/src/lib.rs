//! Why a job waits, its position and its expected start; what its tenant is entitled to and has received; the demand for slots.
//!
//! Everything is computed from rows of one transaction, so that every node computes the same. Nothing here decides: the functions ask
//! [`turnwise_policy`] what a worker would decide.

mod decision;
pub mod demand;
pub mod graph;
pub mod load;
mod locked;
mod position;
mod queue;
mod reason;
mod shown;
mod snapshot;
pub mod types;
mod unknown;
mod why;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use turnwise_catalogue::Catalogue;
use turnwise_queue::Keyspace;
use turnwise_store::{Store, Transaction};
use turnwise_worker::{FairRules, QueueRules};

pub use self::queue::queue;
pub use self::shown::{awaits, blocker, how, limited, lock, lock_mode, state, waits_for_time};
pub use self::snapshot::{Of, Snapshot, Standing, all_of, could_run_since, job_counts, types as types_of};
pub use self::why::{waits, why};

/// Errors of the queue and of the store.
pub use turnwise_queue::{Error, Result};

/// The rules by which workers decide.
#[derive(Clone)]
pub struct Rules {
    /// How jobs of some types share their slots.
    pub fair: BTreeMap<&'static str, FairRules>,
    /// How jobs of all other types share theirs.
    pub fair_others: FairRules,
    /// How many jobs a pass compares, and how locks weigh.
    pub queue: Arc<QueueRules>,
    /// What derives the locks of jobs that declare none.
    pub catalogue: Arc<Catalogue>,
    /// Names the document that a job came from, by the job's type and summary.
    pub document: fn(&str, &RawValue) -> Option<String>,
}

impl Rules {
    fn fair(&self, job_type: &str) -> &FairRules {
        self.fair.get(job_type).unwrap_or(&self.fair_others)
    }
}

/// What an explanation is read from.
pub struct Reader<'a> {
    /// The store of the transaction.
    pub store: &'a Store,
    /// The transaction: all values are from its snapshot.
    pub tx: &'a Transaction,
    /// The store's keys.
    pub keys: &'a Keyspace,
    /// The rules.
    pub rules: &'a Rules,
}

impl Reader<'_> {
    /// The time of the store's clock, in µs since 1970.
    fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }
}

/// Who reads an explanation.
pub trait Viewer: Sync {
    /// Whether it may know about all tenants.
    fn operates(&self) -> bool;
    /// Whether it may read the jobs of a tenant.
    fn reads(&self, tenant: &str) -> bool;
}
