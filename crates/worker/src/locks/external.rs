//! Locks that external workers request for their running jobs.

use std::pin::pin;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use tokio_util::sync::CancellationToken;
use turnwise_queue::locks::{self, Asked, LockAt, Spot};
use turnwise_queue::{Result, RunKey};

use super::request;
use crate::External;

impl External {
    /// Requests locks under a claim, and waits up to `wait` for them. Locks that the job holds are granted immediately,
    /// so requests can be repeated. After [`Asked::Waits`], the job keeps its place in the lock's queue, even without
    /// further requests. A repeated request continues the wait.
    ///
    /// `leave` ends this call's wait, and leaves the job in the queue.
    ///
    /// # Errors
    /// `Halt` if this claim no longer holds the job. `Invalid` for locks that its declaration does not cover, or for
    /// other locks than the one that it waits for: call [`External::unwait`] first.
    #[boxed]
    pub async fn lock<'a>(
        &self,
        run: RunKey<'a>,
        wanted: &'a [LockAt],
        wait: Duration,
        leave: &CancellationToken,
    ) -> Result<Asked> {
        let (store, keys) = (&self.store, &self.keys);
        let queue = self.tunables().get().queue;
        let levels = &queue.levels;
        let mut deadline = pin!(store.runtime().sleep(wait));
        loop {
            let (asked, seen) = request((store, keys, levels), run, wanted, false).await?;
            if !matches!(asked, Asked::Waits(_)) || wait.is_zero() {
                return Ok(asked);
            }
            tokio::select! {
                biased;
                () = leave.cancelled() => return Ok(asked),
                () = self.lock_wake.changed(seen) => {}
                () = &mut deadline => return Ok(asked),
            }
        }
    }

    /// Withdraws the job's lock request; the job continues with the locks that it holds. A request still in flight has
    /// no effect.
    ///
    /// # Errors
    /// `Halt` if this claim no longer holds the job.
    #[boxed]
    pub async fn unwait<'a>(&'a self, run: RunKey<'a>) -> Result<()> {
        let now_us = self.store.runtime().now_us();
        self.store.transact(|tx| async move { locks::withdraw(&tx, &self.keys, run, now_us).await }).await
    }

    /// Releases locks before the end of the run. Locks that the job does not hold are ignored.
    ///
    /// # Errors
    /// `Halt` if this claim no longer holds the job; `Invalid` for the big lock, which is released with the claim.
    #[boxed]
    pub async fn unlock<'a>(&self, run: RunKey<'a>, spots: &'a [Spot]) -> Result<()> {
        self.store.transact(|tx| async move { locks::release_some(&tx, &self.keys, run, spots).await }).await
    }
}
