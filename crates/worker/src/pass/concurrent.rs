//! The jobs that passes of this process are about to claim.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Jobs that passes of this process are about to claim. Concurrent passes would all choose the head of the queue. Each
/// one therefore skips the jobs of other passes, which avoids conflicts.
#[derive(Default)]
pub(crate) struct ConcurrentPasses {
    jobs: Mutex<BTreeSet<(String, String)>>,
    job_released: Notify,
}

/// The jobs that one pass has reserved, until it is dropped.
pub(crate) struct PassJobs {
    passes: Arc<ConcurrentPasses>,
    own: Mutex<Vec<(String, String)>>,
}

impl ConcurrentPasses {
    pub(crate) fn begin_pass(self: &Arc<Self>) -> PassJobs {
        PassJobs { passes: self.clone(), own: Mutex::default() }
    }

    /// Ends when a pass, after this call, releases its reserved jobs, claimed or not.
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

    /// Releases what an earlier attempt of this pass has reserved. Returns the number of jobs that other passes have reserved.
    pub(super) fn restart(&self) -> usize {
        self.release();
        self.passes.jobs().len()
    }

    /// Whether another pass has reserved a job.
    pub(super) fn is_in_other_pass(&self, job_type: &str, id: &str) -> bool {
        let job = (job_type.to_owned(), id.to_owned());
        !self.own().contains(&job) && self.passes.jobs().contains(&job)
    }

    /// Reserves a job, unless another pass has it.
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
        // A pass without reserved jobs must wake no other pass: it may itself wait for the jobs that it has read.
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
