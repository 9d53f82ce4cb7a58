//! The parked jobs of a type, for the services that wake them.
//!
//! Everything here is repeated until the store does it: parked jobs stay parked meanwhile.

use bytes::Bytes;
use turnwise_queue::parking::{self, ParkedJob};
use turnwise_queue::{Job, Keyspace, Parked, Result, jobs};
use turnwise_store::{Isolation, Store, Transaction, Watch};

use crate::waits::{ERROR_PAUSE, tried};

/// The most jobs that one transaction wakes.
const WAKE_BATCH: usize = 100;

/// The parked jobs of a type.
#[derive(Clone)]
pub struct ParkedJobs {
    /// The store that holds the jobs.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// Their type.
    pub job_type: &'static str,
}

impl ParkedJobs {
    /// Runs a transaction until it succeeds.
    pub async fn tried<T, F, Fut>(&self, transaction: F) -> T
    where
        F: Fn(Transaction) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        tried(&self.store, "cannot read or write which jobs are parked", transaction).await
    }

    /// The value of the key that changes when jobs park.
    pub async fn wake_key(&self) -> Option<Bytes> {
        let key = &self.keys.unwatched_wake(self.job_type);
        self.tried(|tx| async move { Ok(tx.get_with(key, Isolation::Snapshot).await?) }).await
    }

    /// Resolves when that key no longer has the value `seen`.
    pub async fn watch(&self, seen: Option<Bytes>) -> Watch {
        match self.store.watch(self.keys.unwatched_wake(self.job_type), seen).await {
            Ok(watch) => watch,
            Err(error) => {
                tracing::error!(%error, "cannot watch for parked jobs; retrying");
                let runtime = self.store.runtime().clone();
                Box::pin(async move { runtime.sleep(ERROR_PAUSE).await })
            }
        }
    }

    /// Up to `limit` jobs of a group, after the job `after` if given.
    pub async fn list(&self, group: &str, after: Option<&ParkedJob>, limit: usize) -> Vec<ParkedJob> {
        let Self { keys, job_type, .. } = self;
        self.tried(|tx| async move { parking::list(&tx, keys, job_type, group, after, limit).await }).await
    }

    /// Up to `limit` jobs of a group that were not compared since they parked.
    pub async fn unwatched(&self, group: &str, limit: usize) -> Vec<ParkedJob> {
        let Self { keys, job_type, .. } = self;
        self.tried(|tx| async move { parking::unwatched(&tx, keys, job_type, group, limit).await }).await
    }

    /// Up to `limit` jobs that wait for the same change.
    pub async fn at(&self, at: &Parked, limit: usize) -> Vec<ParkedJob> {
        let Self { keys, job_type, .. } = self;
        self.tried(|tx| async move { parking::at(&tx, keys, job_type, at, limit).await }).await
    }

    /// The record of a job, as it was a moment ago.
    pub async fn job(&self, id: &str) -> Option<Job> {
        let Self { keys, job_type, .. } = self;
        self.tried(|tx| async move { jobs::peek(&tx, keys, job_type, id).await }).await
    }

    /// Wakes the jobs in `changed`, and removes the unwatched mark from those in `same`.
    pub async fn record(&self, changed: &[ParkedJob], same: &[ParkedJob]) {
        let Self { keys, job_type, .. } = self;
        let (mut done, all) = (0, changed.len() + same.len());
        while done < all {
            let from = done;
            let through = self.tried(|tx| async move {
                let now_us = self.store.runtime().now_us();
                for (n, job) in changed.iter().chain(same).enumerate().skip(from) {
                    if n == from + WAKE_BATCH || n > from && !tx.has_room() {
                        return Ok(n);
                    }
                    if n < changed.len() {
                        parking::wake(&tx, keys, job_type, job, now_us).await?;
                    } else {
                        parking::settle(&tx, keys, job_type, job).await?;
                    }
                }
                Ok(all)
            });
            done = through.await;
        }
    }
}
