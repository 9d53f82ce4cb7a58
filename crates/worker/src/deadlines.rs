//! Takes jobs back from external workers whose runs exceed a timeout: a run may hang although its worker pings.
//!
//! As with [`crate::monitor`], every server checks all of these runs. The server's clock selects which runs it reads
//! ([`deadlines`]), and gives the age of a run that it sees for the first time. All other times are sums of the
//! server's own pauses between checks. For each run, the server remembers since when it has observed no change. This is
//! a start or report through this server, otherwise the first check. So a run that does not report is taken back only
//! after this server has observed it for a full timeout. A clock that jumps, or differs from another server's, thus
//! causes no run to be taken back too early.
//!
//! If a worker uses one server, its run is taken back about two checks after its timeout. It takes up to one timeout
//! longer if the server is new, or if another server received the reports.
//!
//! A clock jump can leave index entries at times that are far off. So a server reads the whole index once after its own
//! start, and after each jump of its clock.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::deadlines::{self, Due, Over};
use turnwise_queue::{Job, Keyspace, Result};
use turnwise_store::Store;

use crate::External;
use crate::service::until_stopped;
use crate::sync::lock;
use crate::times::duration_us;

/// The time between two checks.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of runs that one read returns.
const PAGE: usize = 200;
/// The maximum number of runs that one check reads; the next check continues behind them.
const MAX_CHECKED: usize = 5_000;
/// The maximum number of runs that one transaction moves in the index.
const MOVE_BATCH: usize = 30;
/// If the clock differs by more than this from the expected time after a pause, in µs, it has jumped, or the process
/// was suspended.
const JUMP_US: i64 = 5_000_000;
/// After this many checks, observations of runs that have ended elsewhere are removed.
const PRUNE_CHECKS: u32 = 600;
/// The maximum number of observed runs. Beyond it, the server forgets all of them and begins to observe again.
const MAX_OBSERVED: usize = 500_000;

/// What this server knows of the runs of external workers that have a timeout.
#[derive(Default)]
pub(crate) struct RunObservations {
    /// The observed time, in µs: the sum of the pauses between checks.
    pub observed_us: AtomicI64,
    /// The observed runs, by type, worker, and claim.
    runs: Mutex<BTreeMap<(String, String, u64), Observation>>,
}

/// A run as this server has observed it. `since_us` and `begun_us` are times of [`RunObservations::observed_us`].
struct Observation {
    /// The time of its last report, as stored.
    updated_us: i64,
    /// When it last began, began to wait for a lock, or got one, as stored.
    changed_us: i64,
    /// When this server first saw the values of both.
    since_us: i64,
    /// When it began.
    begun_us: i64,
    /// Whether this server claimed the job for its worker, so that both times are exact.
    exact: bool,
    /// How long to remember it without a check.
    keep_us: i64,
}

impl RunObservations {
    /// The observed time at the end of the current pause: an upper bound for an event that happens now.
    fn next_us(&self) -> i64 {
        self.observed_us.load(Relaxed).saturating_add(duration_us(CHECK_INTERVAL))
    }

    /// Notes that a worker has received a job for the first time.
    pub fn given(&self, worker: &str, job: &Job) {
        let timeouts = job.terms().timeouts;
        let (Some(claim), Some(started_us), false) = (job.claim(), job.started_us, timeouts.is_none()) else {
            return;
        };
        let now_us = self.next_us();
        let keep_us = timeouts.run_us.max(timeouts.heartbeat_us).unwrap_or(0).saturating_mul(2);
        let (updated_us, changed_us) = (started_us, job.changed_us);
        let observation =
            Observation { updated_us, changed_us, since_us: now_us, begun_us: now_us, exact: true, keep_us };
        lock(&self.runs).insert((job.job_type.clone(), worker.to_owned(), claim.number), observation);
    }

    /// Notes a report of a run.
    pub fn reported(&self, job_type: &str, worker: &str, claim: u64, updated_us: i64) {
        let since_us = self.next_us();
        let mut all = lock(&self.runs);
        if let Some(observation) = all.get_mut(&(job_type.to_owned(), worker.to_owned(), claim)) {
            (observation.updated_us, observation.since_us) = (updated_us, since_us);
        }
    }

    /// Forgets a run that has ended, or was taken back.
    pub fn ended(&self, job_type: &str, worker: &str, claim: u64) {
        let mut all = lock(&self.runs);
        // Most runs have no timeout.
        if !all.is_empty() {
            all.remove(&(job_type.to_owned(), worker.to_owned(), claim));
        }
    }

    /// The time that a run has left, and whether that is exact; or the timeout that it exceeded. If the run is seen for
    /// the first time, its age is the time from its start to `now_us`. The age counts from `trusted_from_us` at the
    /// earliest, because the clock jumped then.
    fn check(
        &self,
        due: &Due,
        now_us: i64,
        trusted_from_us: Option<i64>,
    ) -> std::result::Result<(i64, bool), Over> {
        let observed_us = self.observed_us.load(Relaxed);
        let key = (due.job_type.clone(), due.claim.worker.clone(), due.claim.number);
        let mut all = lock(&self.runs);
        if all.len() >= MAX_OBSERVED && !all.contains_key(&key) {
            all.clear();
        }
        let observation = all.entry(key).or_insert_with(|| {
            let begun_us = trusted_from_us.map_or(due.started_us, |from_us| due.started_us.max(from_us));
            let timeouts = due.deadline.timeouts;
            Observation {
                updated_us: due.updated_us,
                changed_us: due.changed_us,
                since_us: observed_us,
                begun_us: observed_us.saturating_sub(now_us.saturating_sub(begun_us).max(0)),
                exact: false,
                keep_us: timeouts.run_us.max(timeouts.heartbeat_us).unwrap_or(0).saturating_mul(2),
            }
        });
        // The time without a report begins at the end of a wait, even if the wait began and ended between two checks.
        if (observation.updated_us, observation.changed_us) != (due.updated_us, due.changed_us) || due.waits {
            (observation.updated_us, observation.changed_us) = (due.updated_us, due.changed_us);
            observation.since_us = observed_us;
        }
        let silent_us = (!due.waits).then(|| observed_us.saturating_sub(observation.since_us));
        match due.deadline.timeouts.left_us(observed_us.saturating_sub(observation.begun_us), silent_us) {
            Some(left) => left.map(|left_us| (left_us, observation.exact)),
            None => Ok((deadlines::MAX_TIMEOUT_US, false)),
        }
    }

    fn prune(&self) {
        let observed_us = self.observed_us.load(Relaxed);
        lock(&self.runs).retain(|_, observation| {
            observed_us.saturating_sub(observation.since_us.max(observation.begun_us)) <= observation.keep_us
        });
    }
}

/// Enforces the timeouts of external workers' runs.
#[derive(Clone)]
pub struct Deadlines {
    /// The store that holds the runs.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// Charges the runs that are taken back, and has this server's observations of runs.
    pub external: External,
}

/// The state of the checks.
#[derive(Default)]
pub(crate) struct Checks {
    /// The clock's time at the latest check, in µs.
    at_us: i64,
    /// When the clock jumped last, if ever.
    trusted_from_us: Option<i64>,
    /// Where the next check continues.
    from: Option<Bytes>,
    /// Whether the checks continue through the whole index, not only through its due entries.
    all: bool,
    number: u32,
}

impl Checks {
    /// Before the first one, at this time.
    pub fn at(at_us: i64) -> Self {
        Checks { at_us, ..Checks::default() }
    }
}

impl Deadlines {
    /// Repeats checks until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let runtime = self.store.runtime();
            let mut checks = Checks { all: true, ..Checks::at(runtime.now_us()) };
            loop {
                runtime.sleep(CHECK_INTERVAL).await;
                self.external.run_observations.observed_us.fetch_add(duration_us(CHECK_INTERVAL), Relaxed);
                if let Err(error) = self.check(&mut checks).await {
                    tracing::error!(%error, "cannot check the deadlines of runs: tries again soon");
                }
            }
        })
    }

    /// One check.
    pub(crate) async fn check(&self, checks: &mut Checks) -> Result<()> {
        let now_us = self.store.runtime().now_us();
        let passed_us = now_us.saturating_sub(std::mem::replace(&mut checks.at_us, now_us));
        if passed_us.saturating_sub(duration_us(CHECK_INTERVAL)).saturating_abs() > JUMP_US {
            (checks.trusted_from_us, checks.from, checks.all) = (Some(now_us), None, true);
        }
        checks.number = checks.number.wrapping_add(1);
        if checks.number.is_multiple_of(PRUNE_CHECKS) {
            self.external.run_observations.prune();
        }
        let mut checked = 0;
        while checked < MAX_CHECKED {
            let until_us = if checks.all { i64::MAX } else { now_us };
            let tx = self.store.begin().await?;
            let (page, next) = deadlines::due(&tx, &self.keys, checks.from.take(), until_us, PAGE).await?;
            drop(tx);
            checked += PAGE;
            self.check_page(page, now_us, checks.trusted_from_us).await?;
            match next {
                Some(next) => checks.from = Some(next),
                None => {
                    checks.all = false;
                    break;
                }
            }
        }
        // The check itself took time by the same clock.
        checks.at_us = self.store.runtime().now_us();
        Ok(())
    }

    async fn check_page(&self, page: Vec<Due>, now_us: i64, trusted_from_us: Option<i64>) -> Result<()> {
        let mut moved: Vec<(Due, i64)> = Vec::new();
        for due in page {
            let timeouts = due.deadline.timeouts;
            let (left_us, exact) = match self.external.run_observations.check(&due, now_us, trusted_from_us) {
                Ok(left) => left,
                Err(over) => {
                    self.external.expire(&due, over).await?;
                    continue;
                }
            };
            let sign_us = due.updated_us.max(due.changed_us);
            let silent_us = (!due.waits).then(|| now_us.saturating_sub(sign_us).max(0));
            let estimate = timeouts.left_us(now_us.saturating_sub(due.started_us).max(0), silent_us);
            let at_us = now_us.saturating_add(match estimate {
                // Otherwise, the time left is computed from the clocks of the servers that recorded the run.
                _ if exact => left_us,
                Some(Ok(estimated_us)) => estimated_us,
                // The entry stays where it is: another server may know the time exactly.
                _ => 0,
            });
            let is_due = due.deadline.at_us <= now_us;
            if is_due && at_us > now_us || !is_due && at_us < due.deadline.at_us.saturating_sub(JUMP_US) {
                moved.push((due, at_us));
            }
        }
        let keys = &self.keys;
        for batch in moved.chunks(MOVE_BATCH) {
            self.store
                .transact(|tx| async move {
                    for (due, at_us) in batch {
                        deadlines::postpone(&tx, keys, due, *at_us).await?;
                        // The remaining entries are still due, so the next check reads them again.
                        if !tx.has_room() {
                            break;
                        }
                    }
                    Ok::<_, turnwise_queue::Error>(())
                })
                .await?;
        }
        Ok(())
    }
}
