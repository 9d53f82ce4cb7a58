//! What a worker remembers between its passes: how far the next one searches, which jobs it has skipped for their owners,
//! and when it is useful. Workers of this process and external workers use the same.

use std::collections::BTreeSet;
use std::time::Duration;

use turnwise_queue::Keyspace;
use turnwise_store::{Result, Store};

use crate::event::Event;
use crate::pass::{Pass, SkippedJobs};

/// A worker's memory between passes over the queue of one job type.
pub(crate) struct Claimer {
    store: Store,
    keys: Keyspace,
    job_type: String,
    /// The number of consecutive passes before the next one that had jobs filtered and room left.
    filtered: u32,
    /// Jobs of other shards that were skipped for long enough: the next pass may claim them.
    expired: BTreeSet<String>,
    /// Jobs that are skipped for their owners; after a pause, this worker may claim them.
    skipped_jobs: SkippedJobs,
    /// A job becomes pending.
    wake: Event,
    /// A lock is released, if the locks of some jobs are not free.
    lock_wake: Event,
    /// The next delayed job is due.
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

    /// How many consecutive passes before this one had jobs filtered and room left.
    pub fn filtered(&self) -> u32 {
        self.filtered
    }

    /// Jobs of other shards that this pass may claim.
    pub fn expired(&self) -> &BTreeSet<String> {
        &self.expired
    }

    /// The next pass follows at once, and searches further: filters have taken jobs from the last one.
    pub fn searches_further(&mut self) {
        self.filtered = self.filtered.saturating_add(1);
    }

    /// The next pass searches the head of the queue again.
    pub fn starts_over(&mut self) {
        self.filtered = 0;
        self.expired.clear();
    }

    /// The next pass may claim these jobs, whatever their shard.
    pub fn may_claim(&mut self, expired: BTreeSet<String>) {
        self.expired = expired;
    }

    /// Sets up what makes the next pass useful. Jobs that the pass has skipped may be claimed after `pause`.
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

    /// After a failure: the next pass follows after a pause, whatever happens.
    pub fn retry_after(&mut self, pause: Duration) {
        (self.wake, self.lock_wake) = (Event::default(), Event::default());
        self.due = Event::after(self.store.runtime(), pause);
    }

    /// Returns when another pass is useful. Without room, only a due job is a reason: it becomes pending.
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
