//! Claims: passes over the queue, and the claims of passes whose outcome is not known.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use turnwise_queue::tasks::Tasks;
use turnwise_queue::{Error, Result, claims, jobs, workers};
use turnwise_store::Error as StoreError;

use super::Incarnation;
use crate::Tunables;
use crate::pass::{Claimant, Numbers, Pass, Sibling, pass};
use crate::run::Shared;
use crate::times::ERROR_PAUSE;
use crate::times::duration_us;

/// The maximum number of attempts of a pass that ends in conflicts.
const PASS_ATTEMPTS: u32 = 10;
/// After this many attempts the worker pauses in between, so that the conflicting passes do not collide again.
const IMMEDIATE_PASS_ATTEMPTS: u32 = 3;
/// The average time between the starts of jobs that one pass has claimed, up to the configured jitter.
const START_PAUSE: Duration = Duration::from_millis(10);
/// The pause after a pass that has left all jobs to other passes of its process. It is longer than a claim takes.
const SIBLINGS_PAUSE: Duration = Duration::from_millis(20);
/// The number of jobs that one transaction adopts.
const ADOPT_BATCH: usize = 50;

/// The numbers of this worker's claims.
pub(super) struct Claims {
    next: AtomicU64,
    /// The job of each claim up to this number either runs here or has ended.
    known: u64,
    /// Whether the outcome of a pass's commit is unknown: there may be claims above `known`.
    pub doubt: bool,
}

impl Default for Claims {
    fn default() -> Self {
        Claims { next: AtomicU64::new(1), known: 0, doubt: false }
    }
}

impl Incarnation {
    /// Makes one pass, and starts a task for each claimed job. Returns whether another pass should follow at once.
    pub(super) async fn fill_slots(&mut self) -> Result<bool> {
        if self.claims.doubt {
            self.adopt().await?;
        }
        self.fair.agree().await?;
        let pass = self.pass().await;
        // Other workers own the expired jobs: one pass may claim them, and passes that search further would only conflict.
        self.claimer.expired.clear();
        let mut pass = match pass {
            Ok(pass) => pass,
            Err(error) => {
                self.claims.doubt = matches!(error, Error::Store(StoreError::UnknownOutcome(_)));
                return Err(error);
            }
        };
        match pass.filtered && pass.more {
            true => self.claimer.searches_further(),
            false => self.claimer.starts_over(),
        }
        if pass.mode.is_quiet() {
            self.learn_mode(pass.mode);
        }
        self.claims.known = self.claims.next.load(Relaxed) - 1;
        self.fair.drained(&pass.drained, pass.wake_seen.as_ref());
        let spread = self.spread(pass.claimed.len());
        let skipped_tenant = pass.first_skipped_tenant.clone();
        let shared = self.shared.clone();
        for (waited_us, (job, options)) in pass.waits_us.drain(..).zip(pass.claimed.drain(..)) {
            shared.metrics().of(&shared.job_type).claimed(waited_us, job.attempts);
            self.start(job, options, skipped_tenant.as_deref(), spread);
        }
        if pass.all_in_other_passes {
            // They may fail to claim these jobs.
            let again_us = self.now_us().saturating_add(duration_us(SIBLINGS_PAUSE));
            pass.next_due_us = pass.next_due_us.into_iter().chain([again_us]).min();
        }
        let random = self.shared.store.runtime().random();
        if let Err(error) = self.claimer.wait_after(&pass, self.pause(random)).await {
            // Without a watch, the worker makes another pass after a pause.
            tracing::error!(%error, "cannot watch the store");
            self.claimer.retry_after(ERROR_PAUSE);
        }
        Ok(pass.more)
    }

    /// Makes one pass, and repeats it after a conflict. Never repeats it after a commit of unknown outcome: that could
    /// claim more jobs than there are slots.
    async fn pass(&self) -> Result<Pass> {
        let Shared { store, keys, job_type, options, .. } = &*self.shared;
        let tunables = self.shared.tunables.get();
        let Tunables { max_jobs, max_history, queue, .. } = &tunables;
        let terms = tunables.terms(job_type);
        // A quiet worker still makes due jobs pending.
        let (max_jobs, max_history) = (if self.mode.is_quiet() { 0 } else { *max_jobs }, *max_history);
        let tasks = Tasks::default();
        let claimant = Claimant {
            job_type,
            worker: &self.id,
            running: self.slots_in_use(),
            max_jobs,
            failed: 0,
            numbers: Numbers::Counted(&self.claims.next),
            fair: &self.fair,
            tenants: None,
            tasks: &tasks,
            queue,
            pass_jobs: None,
            shard: self.shard(),
            claimer: &self.claimer,
            random: store.runtime().random(),
            terms: &terms,
            max_history,
        };
        // A pass with repeated conflicts must not delay a ping.
        let health_interval_us = duration_us(options.health_interval);
        let give_up_us = store.runtime().now_us().saturating_add(health_interval_us);
        let mut attempt = 1;
        loop {
            let passes = self.sibling.as_ref().map(Sibling::passes);
            let turn = match passes {
                Some(passes) if self.fair.locking.load(Relaxed) => {
                    passes.turn(store.runtime(), job_type).await
                }
                _ => None,
            };
            // Dropped after the commit: from then on, every pass reads that the jobs are no longer pending.
            let pass_jobs = passes.map(|passes| passes.begin_pass(job_type));
            let tx = store.begin().await?;
            let claimant = Claimant { failed: attempt - 1, pass_jobs: pass_jobs.as_ref(), ..claimant };
            let pass = pass(&tx, keys, claimant, store.runtime().now_us()).await?;
            match tx.commit().await {
                Ok(_) => return Ok(pass),
                Err(StoreError::Conflict)
                    if attempt < PASS_ATTEMPTS && store.runtime().now_us() < give_up_us => {}
                Err(error) => return Err(error.into()),
            }
            drop((pass_jobs, turn));
            if attempt >= IMMEDIATE_PASS_ATTEMPTS {
                let pause_ms = 1 + store.runtime().random() % (1 << attempt);
                store.runtime().sleep(Duration::from_millis(pause_ms)).await;
            }
            attempt += 1;
        }
    }

    /// The time over which the starts of this many jobs are spread; zero if jobs do not rotate.
    fn spread(&self, jobs: usize) -> Duration {
        let jitter = self.shared.tunables.get().fair.rotation.map(|rotation| rotation.startup_jitter);
        match (jitter, u32::try_from(jobs)) {
            (None, _) | (_, Ok(0 | 1)) => Duration::ZERO,
            (Some(jitter), jobs) => jitter.min(START_PAUSE.saturating_mul(jobs.unwrap_or(u32::MAX))),
        }
    }

    /// Resolves an unknown outcome: makes sure that an outstanding commit has succeeded or never will. Then starts the
    /// jobs that this worker has claimed without knowing it.
    async fn adopt(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let Shared { store, keys, job_type, .. } = &*shared;
        let id = &self.id;
        store.transact(|tx| async move { workers::fence(&tx, keys, job_type, id).await }).await?;
        loop {
            let (id, known) = (&self.id, self.claims.known);
            let found = store
                .transact(|tx| async move {
                    let held = claims::claims_after(&tx, keys, job_type, id, known, ADOPT_BATCH).await?;
                    let mut found = Vec::with_capacity(held.len());
                    for job in held {
                        let options = jobs::options(&tx, keys, &job).await?;
                        found.push((job, options));
                    }
                    Ok::<_, Error>(found)
                })
                .await?;
            let done = found.is_empty();
            for (job, options) in found {
                tracing::warn!(job = %job.id, "claimed by a commit of unknown outcome: adopted");
                self.claims.known = job.claim().map_or(self.claims.known, |claim| claim.number);
                self.start(job, options, None, Duration::ZERO);
            }
            if done {
                self.claims.doubt = false;
                return Ok(());
            }
        }
    }
}
