//! The state that a worker keeps between its passes. It states how far the next pass searches, which jobs were skipped
//! for their owners, and when another pass is useful. Workers of this process and external workers share this code.

use std::collections::BTreeSet;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use turnwise_queue::Keyspace;
use turnwise_store::{Result, Store};

use crate::event::Event;
use crate::pass::{Pass, SkippedJobs};

/// A worker's memory between passes over the queue of one job type.
pub(crate) struct Claimer {
    store: Store,
    keys: Keyspace,
    job_type: String,
    /// The number of consecutive passes in which filters removed jobs and slots stayed free.
    pub filtered: u32,
    /// Jobs of other shards that were skipped for long enough: the next pass may claim them, whatever their shard.
    pub expired: BTreeSet<String>,
    /// Jobs that passes have skipped for their owners; after a pause, this worker may claim them.
    skipped_jobs: SkippedJobs,
    /// Happens when a job becomes pending.
    wake: Event,
    /// Happens when a lock is released; set only if the locks of some jobs are not free.
    lock_wake: Event,
    /// Happens when the next delayed job is due.
    due: Event,
}

impl Claimer {
    pub fn new(store: Store, keys: Keyspace, job_type: &str) -> Claimer {
        Claimer {
            store,
            keys,
            job_type: job_type.to_owned(),
            filtered: 0,
            expired: BTreeSet::new(),
            skipped_jobs: SkippedJobs::default(),
            wake: Event::default(),
            lock_wake: Event::default(),
            due: Event::default(),
        }
    }

    /// The next pass follows at once and reads more jobs, because filters removed jobs from the last one.
    pub fn searches_further(&mut self) {
        self.filtered = self.filtered.saturating_add(1);
    }

    /// The next pass reads only the head of the queue again.
    pub fn starts_over(&mut self) {
        self.filtered = 0;
        self.expired.clear();
    }

    /// Sets up the events after which the next pass is useful. Jobs that the pass has skipped may be claimed after
    /// `pause`.
    ///
    /// # Errors
    /// If the store cannot be watched.
    pub async fn wait_after(&mut self, pass: &Pass, pause: Duration) -> Result<()> {
        let runtime = self.store.runtime();
        self.skipped_jobs.note(pass.skipped.clone(), || Event::after(runtime, pause));
        self.due = pass.next_due_us.map_or_else(Event::default, |at_us| Event::at(runtime, at_us));
        self.wake = self.store.watch(self.keys.wake(&self.job_type), pass.wake_seen.clone()).await?.into();
        self.lock_wake = match &pass.lock_wake_seen {
            Some(seen) => self.store.watch(self.keys.lock_wake(), seen.clone()).await?.into(),
            None => Event::default(),
        };
        Ok(())
    }

    /// Schedules the next pass after a failure: it follows after a pause, whatever else happens.
    pub fn retry_after(&mut self, pause: Duration) {
        (self.wake, self.lock_wake) = (Event::default(), Event::default());
        self.due = Event::after(self.store.runtime(), pause);
    }

    /// Returns when another pass is useful. Without a free slot, only due jobs are a reason: a pass makes them pending.
    #[boxed]
    pub async fn woken(&mut self, has_room: bool) {
        tokio::select! {
            biased;
            // First, since it alone changes what the next pass may claim: jobs that arrive all the time must not delay it.
            expired = self.skipped_jobs.expired() => self.expired = expired,
            () = self.wake.happens(), if has_room => {}
            () = self.lock_wake.happens(), if has_room => {}
            () = self.due.happens() => {}
        }
    }
}
