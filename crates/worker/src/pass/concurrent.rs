//! What the concurrent passes of one process know of each other.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use turnwise_queue::tenants::DecodedRows;
use turnwise_store::Runtime;

use crate::line::{First, Lines};
use crate::sync::lock;

/// How long a pass waits for its turn: far longer than those of many workers take together.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// The passes of one process. Workers that share it claim from the same queues without conflicts with each other.
///
/// Without it, concurrent passes would all choose the head of the queue, and conflict. With it, each pass skips the jobs
/// that others are about to claim. Among jobs that lock, that is not enough, because a claim also takes its locks from
/// other jobs: there, passes take turns.
#[derive(Default)]
pub struct Passes {
    /// The jobs that passes are about to claim, by type. Types without such jobs are missing.
    jobs: Mutex<BTreeMap<String, HashSet<Arc<str>>>>,
    job_released: Notify,
    /// Of each job type with jobs that lock, the passes that wait for their turn.
    turns: Arc<Lines>,
    /// The rows of the queues that passes have decoded.
    decoded: Arc<DecodedRows>,
    /// The workers of this process, by job type.
    workers: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

impl fmt::Debug for Passes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passes").field("workers", &lock(&self.workers)).finish_non_exhaustive()
    }
}

/// A worker of this process, until this is dropped.
pub(crate) struct Sibling {
    passes: Arc<Passes>,
    job_type: String,
    id: String,
}

impl Sibling {
    /// Whether a worker of the same type belongs to this process, too.
    pub fn is_beside(&self, id: &str) -> bool {
        lock(&self.passes.workers).get(&self.job_type).is_some_and(|workers| workers.contains(id))
    }

    pub fn passes(&self) -> &Arc<Passes> {
        &self.passes
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        let mut workers = lock(&self.passes.workers);
        if let Some(of_type) = workers.get_mut(&self.job_type) {
            of_type.remove(&self.id);
            if of_type.is_empty() {
                workers.remove(&self.job_type);
            }
        }
    }
}

/// The jobs that one pass is about to claim. Other passes may claim them again when this is dropped.
pub(crate) struct PassJobs {
    passes: Arc<Passes>,
    job_type: String,
    own: Mutex<HashSet<Arc<str>>>,
}

impl Passes {
    /// Begins a pass over the queue of a type, without jobs.
    pub(crate) fn begin_pass(self: &Arc<Self>, job_type: &str) -> PassJobs {
        PassJobs { passes: self.clone(), job_type: job_type.to_owned(), own: Mutex::default() }
    }

    /// Ends when a pass releases its jobs after this call, whether it has claimed them or not.
    pub(crate) fn job_released(&self) -> Notified<'_> {
        self.job_released.notified()
    }

    /// Adds a worker to those of this process.
    pub(crate) fn join(self: &Arc<Self>, job_type: &str, id: &str) -> Sibling {
        lock(&self.workers).entry(job_type.to_owned()).or_default().insert(id.to_owned());
        Sibling { passes: self.clone(), job_type: job_type.to_owned(), id: id.to_owned() }
    }

    pub(crate) fn decoded(&self) -> Arc<DecodedRows> {
        self.decoded.clone()
    }

    /// Returns once no other pass over a queue with jobs that lock has its turn. `None` if that takes long, as with a store that
    /// hangs: then all passes would wait for each other, and the only gain of a turn is fewer conflicts.
    pub(crate) async fn turn(&self, runtime: &Arc<dyn Runtime>, job_type: &str) -> Option<First> {
        tokio::select! {
            biased;
            turn = self.turns.join(job_type, "") => Some(turn),
            () = runtime.sleep(LONGEST_TURN) => None,
        }
    }
}

impl PassJobs {
    /// Releases the jobs of an earlier attempt of this pass. Returns the number of jobs of other passes.
    pub(super) fn restart(&self) -> usize {
        self.release();
        lock(&self.passes.jobs).get(&self.job_type).map_or(0, HashSet::len)
    }

    /// Which of these jobs belong to other passes, in the same order.
    pub(super) fn in_other_passes<'a>(&self, ids: impl Iterator<Item = &'a str>) -> Vec<bool> {
        let (own, all) = (lock(&self.own), lock(&self.passes.jobs));
        match all.get(&self.job_type) {
            Some(jobs) => ids.map(|id| jobs.contains(id) && !own.contains(id)).collect(),
            None => ids.map(|_| false).collect(),
        }
    }

    /// Adds a job to this pass, unless it belongs to another one. Returns whether the job was added.
    pub(super) fn add(&self, id: &str) -> bool {
        let id: Arc<str> = id.into();
        let (mut own, mut all) = (lock(&self.own), lock(&self.passes.jobs));
        let is_new = match all.get_mut(&self.job_type) {
            Some(jobs) => jobs.insert(id.clone()),
            None => all.insert(self.job_type.clone(), HashSet::from([id.clone()])).is_none(),
        };
        if is_new {
            own.insert(id);
        }
        is_new
    }

    fn release(&self) {
        let own = std::mem::take(&mut *lock(&self.own));
        // A pass without jobs must wake no other pass: it may itself wait for the jobs that it has read.
        if own.is_empty() {
            return;
        }
        let mut all = lock(&self.passes.jobs);
        if let Some(jobs) = all.get_mut(&self.job_type) {
            for job in &own {
                jobs.remove(job);
            }
            if jobs.is_empty() {
                all.remove(&self.job_type);
            }
        }
        drop(all);
        self.passes.job_released.notify_waiters();
    }
}

impl Drop for PassJobs {
    fn drop(&mut self) {
        self.release();
    }
}
