//! The jobs that concurrent passes of one process are about to claim.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The jobs that passes of this process are about to claim. Without it, concurrent passes would all choose the head of
/// the queue, and conflict. With it, each pass skips the jobs of other passes.
#[derive(Default)]
pub(crate) struct ConcurrentPasses {
    jobs: Mutex<BTreeSet<(String, String)>>,
    job_released: Notify,
}

/// The jobs that one pass is about to claim. Other passes may claim them again when this is dropped.
pub(crate) struct PassJobs {
    passes: Arc<ConcurrentPasses>,
    own: Mutex<Vec<(String, String)>>,
}

impl ConcurrentPasses {
    /// Begins a pass, without jobs.
    pub(crate) fn begin_pass(self: &Arc<Self>) -> PassJobs {
        PassJobs { passes: self.clone(), own: Mutex::default() }
    }

    /// Ends when a pass releases its jobs after this call, whether it has claimed them or not.
    pub(crate) fn job_released(&self) -> Notified<'_> {
        self.job_released.notified()
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PassJobs {
    fn own(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the jobs of an earlier attempt of this pass. Returns the number of jobs of other passes.
    pub(super) fn restart(&self) -> usize {
        self.release();
        self.passes.jobs().len()
    }

    /// Whether a job belongs to another pass.
    pub(super) fn is_in_other_pass(&self, job_type: &str, id: &str) -> bool {
        let job = (job_type.to_owned(), id.to_owned());
        !self.own().contains(&job) && self.passes.jobs().contains(&job)
    }

    /// Adds a job to this pass, unless it belongs to another one. Returns whether the job was added.
    pub(super) fn add(&self, job_type: &str, id: &str) -> bool {
        let job = (job_type.to_owned(), id.to_owned());
        let is_new = self.passes.jobs().insert(job.clone());
        if is_new {
            self.own().push(job);
        }
        is_new
    }

    fn release(&self) {
        let own = std::mem::take(&mut *self.own());
        // A pass without jobs must wake no other pass: it may itself wait for the jobs that it has read.
        if !own.is_empty() {
            let mut jobs = self.passes.jobs();
            for job in own {
                jobs.remove(&job);
            }
            self.passes.job_released.notify_waiters();
        }
    }
}

impl Drop for PassJobs {
    fn drop(&mut self) {
        self.release();
    }
}
