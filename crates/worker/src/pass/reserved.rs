//! The jobs that passes of this process are about to claim.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Jobs that passes of this process are about to claim. Concurrent passes would all choose the head of the queue. Each
/// one therefore skips the jobs of other passes, which avoids conflicts.
#[derive(Default)]
pub(crate) struct Reserved {
    jobs: Mutex<BTreeSet<(String, String)>>,
    released: Notify,
}

/// The jobs that one pass has reserved, until it is dropped.
pub(crate) struct Hold {
    reserved: Arc<Reserved>,
    held: Mutex<Vec<(String, String)>>,
}

impl Reserved {
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        Hold { reserved: self.clone(), held: Mutex::default() }
    }

    /// Ends when a pass, after this call, releases its reserved jobs, claimed or not.
    pub(crate) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    fn held(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases what an earlier attempt of this pass has reserved. Returns the number of jobs that other passes have reserved.
    pub(super) fn begin(&self) -> usize {
        self.release();
        self.reserved.jobs().len()
    }

    /// Whether another pass has reserved a job.
    pub(super) fn is_taken(&self, job_type: &str, id: &str) -> bool {
        let job = (job_type.to_owned(), id.to_owned());
        !self.held().contains(&job) && self.reserved.jobs().contains(&job)
    }

    /// Reserves a job, unless another pass has it.
    pub(super) fn take(&self, job_type: &str, id: &str) -> bool {
        let job = (job_type.to_owned(), id.to_owned());
        let taken = self.reserved.jobs().insert(job.clone());
        if taken {
            self.held().push(job);
        }
        taken
    }

    fn release(&self) {
        let held = std::mem::take(&mut *self.held());
        // A pass without reserved jobs must wake no other pass: it may itself wait for the jobs that it has read.
        if !held.is_empty() {
            let mut jobs = self.reserved.jobs();
            for job in held {
                jobs.remove(&job);
            }
            self.reserved.released.notify_waiters();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}
