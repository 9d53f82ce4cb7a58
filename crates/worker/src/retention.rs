//! Removes the records of jobs that ended long ago, of all types, a bounded number at a time. A type may state how long its records are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::ended::Behind;
use turnwise_queue::{Keyspace, Result, jobs, types};
use turnwise_store::{Error, Store};

use crate::Live;
use crate::service::until_stopped;
use crate::times::duration_us;

/// The maximum number of job types that one read returns.
const TYPES: usize = 100;
/// The approximate number of job types that one pass covers. The next pass continues after them.
const TYPES_PER_PASS: usize = 2_000;
/// The maximum number of jobs that one transaction removes.
const BATCH: usize = 200;
/// The maximum number of jobs that one pass removes.
const MAX_PER_PASS: usize = 10_000;
/// The pause after a pass that left jobs to remove. With it, several thousand jobs a second are removed, and other
/// transactions run in between.
const PAUSE: Duration = Duration::from_secs(1);

/// Settings of the retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionOptions {
    /// How long a job is kept after its end, unless its type states that.
    pub retention: Duration,
    /// The time between two passes.
    pub interval: Duration,
    /// The bytes of log that all jobs of a tenant keep together ([`crate::LogBounds`]).
    pub tenant_log_bytes: u64,
}

/// The bytes of log that all jobs of a tenant keep together by default.
pub const DEFAULT_TENANT_LOG_BYTES: u64 = 1 << 30;

impl Default for RetentionOptions {
    fn default() -> Self {
        RetentionOptions {
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            interval: Duration::from_secs(60),
            tenant_log_bytes: DEFAULT_TENANT_LOG_BYTES,
        }
    }
}

/// Removes jobs that ended long ago.
#[derive(Clone)]
pub struct Retention {
    /// The store that holds the jobs.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// Settings.
    pub options: Live<RetentionOptions>,
}

impl Retention {
    /// Repeats passes until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let mut changes = self.options.changes();
            let mut round = Round::default();
            loop {
                let pause = match self.pass(&mut round).await {
                    Ok(true) => PAUSE,
                    Ok(false) => self.options.get().interval,
                    Err(error) => {
                        tracing::error!(%error, "cannot remove jobs that ended long ago: tries again later");
                        self.options.get().interval
                    }
                };
                tokio::select! {
                    biased;
                    Ok(()) = changes.changed() => {}
                    () = self.store.runtime().sleep(pause) => {}
                }
            }
        })
    }

    /// Removes about [`MAX_PER_PASS`] jobs or fewer. Returns whether there may be more. It removes one batch of each
    /// type in turn, and the next pass continues behind the last type. So a type with many jobs does not delay other
    /// types.
    pub(crate) async fn pass(&self, round: &mut Round) -> Result<bool> {
        let (store, keys) = (&self.store, &self.keys);
        let now_us = store.runtime().now_us();
        let before_us = now_us.saturating_sub(duration_us(self.options.get().retention));
        let (mut removed, mut covered) = (0, 0);
        while covered < TYPES_PER_PASS {
            let after = round.after.as_deref();
            let types =
                store.transact(|tx| async move { jobs::types_after(&tx, keys, after, TYPES).await }).await?;
            let is_last = types.len() < TYPES;
            covered += types.len();
            for job_type in types {
                let tx = store.begin().await?;
                let stated = types::stated(&tx, keys, &job_type).await?;
                let kept_us = stated.and_then(|stated| stated.terms.lifetime.keep_us);
                let before_us = kept_us.map_or(before_us, |kept_us| now_us.saturating_sub(kept_us));
                let behind = round.behind.entry(job_type.clone()).or_default();
                let pruned = jobs::prune(&tx, keys, &job_type, before_us, BATCH, behind).await?;
                match tx.commit().await {
                    Ok(_) => {
                        removed += pruned;
                        round.removed |= pruned > 0;
                    }
                    // Another node is removing the same jobs: retrying here would only cause more conflicts.
                    Err(Error::Conflict) => {}
                    Err(error) => return Err(error.into()),
                }
                if behind.is_empty() {
                    round.behind.remove(&job_type);
                }
                round.after = Some(job_type);
                if removed >= MAX_PER_PASS {
                    return Ok(true);
                }
            }
            // If a round has removed jobs, there may be more.
            if is_last {
                round.after = None;
                if !std::mem::take(&mut round.removed) {
                    round.behind.clear();
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Rounds over all types, which may take several passes, until one has removed nothing.
#[derive(Default)]
pub(crate) struct Round {
    /// The last type that was processed.
    after: Option<String>,
    /// How far they have come behind records that must stay, by type.
    behind: BTreeMap<String, Behind>,
    /// Whether the round has removed any job.
    removed: bool,
}
