//! Takes away the claims of external workers' runs that are over their time: a worker that pings may hang all the same.
//!
//! Every server looks at all of them, as with [`crate::monitor`], and reads those whose time has come by its clock ([`deadlines`]). By that
//! clock it decides nothing. It counts its own looks, each worth the pause before it, and remembers since when it has seen a run as
//! it is: one that was given, or has reported, through this server since then; any other since the first look at it. So a run is
//! taken away when it was silent for its whole timeout while this server looked on, and no clock that jumps, or differs from another server's,
//! takes one away too early. Where a worker speaks to one server, a run is taken away about two looks after its timeout; where that
//! server is new, or another one was told of the reports, up to a timeout later.
//!
//! A clock that jumped may have left runs at places that are far away. So a server that finds its clock jumped, or has just started,
//! reads all of the index once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use turnwise_queue::deadlines::{self, Due, Over};
use turnwise_queue::{Job, Keyspace, Result};
use turnwise_store::Store;

use crate::External;
use crate::membership::duration_us;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Runs that one read takes at most.
const PAGE: usize = 200;
/// Runs that one look reads at most; the next one goes on behind them.
const MAX_LOOKED: usize = 5_000;
/// Runs that one transaction moves at most.
const MOVE_BATCH: usize = 30;
/// A clock that is off by more than this after a pause has jumped, or the process has slept, in µs.
const JUMP_US: i64 = 5_000_000;
/// Looks between two that forget runs which have ended elsewhere.
const PRUNE_LOOKS: u32 = 600;
/// Runs that are remembered at most; with more of them all are seen anew.
const MAX_SEEN: usize = 500_000;

/// What this server knows of the runs of external workers that are held to a time.
#[derive(Default)]
pub(crate) struct Beats {
    /// How long it has looked, in µs: its looks, each worth its pause.
    looked_us: AtomicI64,
    /// By type, worker, and claim.
    seen: Mutex<BTreeMap<(String, String, u64), Seen>>,
}

/// A run as it was seen. Times are those of [`Beats::looked_us`].
struct Seen {
    /// The time of its last report, as it is stored.
    updated_us: i64,
    /// When it began, began to wait for a lock, or got one, as it is stored.
    changed_us: i64,
    /// When both were seen first.
    since_us: i64,
    /// When it began.
    begun_us: i64,
    /// It was given through this server: both are right.
    exact: bool,
    /// How long it may be without a look.
    keep_us: i64,
}

impl Beats {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<(String, String, u64), Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens now lies before the end of the pause that is under way.
    fn next_us(&self) -> i64 {
        self.looked_us.load(Relaxed).saturating_add(duration_us(LOOK))
    }

    /// A worker was given a job, for the first time.
    pub fn given(&self, worker: &str, job: &Job) {
        let timeouts = job.terms().timeouts;
        let (Some(claim), Some(started_us), false) = (job.claim(), job.started_us, timeouts.is_none()) else {
            return;
        };
        let now_us = self.next_us();
        let keep_us = timeouts.run_us.max(timeouts.heartbeat_us).unwrap_or(0).saturating_mul(2);
        let (updated_us, changed_us) = (started_us, job.changed_us);
        let seen = Seen { updated_us, changed_us, since_us: now_us, begun_us: now_us, exact: true, keep_us };
        self.seen().insert((job.job_type.clone(), worker.to_owned(), claim.number), seen);
    }

    /// A run has reported.
    pub fn reported(&self, job_type: &str, worker: &str, claim: u64, updated_us: i64) {
        let since_us = self.next_us();
        let mut all = self.seen();
        if let Some(seen) = all.get_mut(&(job_type.to_owned(), worker.to_owned(), claim)) {
            (seen.updated_us, seen.since_us) = (updated_us, since_us);
        }
    }

    /// A run has ended, or was taken away.
    pub fn ended(&self, job_type: &str, worker: &str, claim: u64) {
        self.seen().remove(&(job_type.to_owned(), worker.to_owned(), claim));
    }

    /// How long a run has left, and whether that is known exactly; or what is over. `now_us` is the clock's time, which tells of a run that
    /// is seen for the first time how long it has lasted; not of before `trusted_from_us`, when the clock had jumped.
    fn look(
        &self,
        due: &Due,
        now_us: i64,
        trusted_from_us: Option<i64>,
    ) -> std::result::Result<(i64, bool), Over> {
        let looked_us = self.looked_us.load(Relaxed);
        let key = (due.job_type.clone(), due.claim.worker.clone(), due.claim.number);
        let mut all = self.seen();
        if all.len() >= MAX_SEEN && !all.contains_key(&key) {
            all.clear();
        }
        let seen = all.entry(key).or_insert_with(|| {
            let begun_us = trusted_from_us.map_or(due.started_us, |from_us| due.started_us.max(from_us));
            let timeouts = due.deadline.timeouts;
            Seen {
                updated_us: due.updated_us,
                changed_us: due.changed_us,
                since_us: looked_us,
                begun_us: looked_us.saturating_sub(now_us.saturating_sub(begun_us).max(0)),
                exact: false,
                keep_us: timeouts.run_us.max(timeouts.heartbeat_us).unwrap_or(0).saturating_mul(2),
            }
        });
        // It is silent from the end of a wait on, also of one that began and ended between two looks.
        if (seen.updated_us, seen.changed_us) != (due.updated_us, due.changed_us) || due.waits {
            (seen.updated_us, seen.changed_us) = (due.updated_us, due.changed_us);
            seen.since_us = looked_us;
        }
        let silent_us = (!due.waits).then(|| looked_us.saturating_sub(seen.since_us));
        match due.deadline.timeouts.left_us(looked_us.saturating_sub(seen.begun_us), silent_us) {
            Some(left) => left.map(|left_us| (left_us, seen.exact)),
            None => Ok((deadlines::MAX_TIMEOUT_US, false)),
        }
    }

    fn prune(&self) {
        let looked_us = self.looked_us.load(Relaxed);
        self.seen()
            .retain(|_, seen| looked_us.saturating_sub(seen.since_us.max(seen.begun_us)) <= seen.keep_us);
    }
}

/// Holds the runs of external workers to their time.
#[derive(Clone)]
pub struct Deadlines {
    /// Where they are.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// Charges what it takes away, and knows what was reported through this server.
    pub external: External,
}

/// Where the looks are.
#[derive(Default)]
struct Looks {
    /// The clock's time at the latest one, in µs.
    at_us: i64,
    /// Since when the clock has not jumped, if it has.
    trusted_from_us: Option<i64>,
    /// Where the next look goes on.
    from: Option<Bytes>,
    /// It goes on through the whole index, not only through what is due.
    all: bool,
    number: u32,
}

impl Deadlines {
    /// Looks again and again, until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        let runtime = self.store.runtime().clone();
        let mut looks = Looks { at_us: runtime.now_us(), all: true, ..Looks::default() };
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = runtime.sleep(LOOK) => {}
            }
            self.external.beats.looked_us.fetch_add(duration_us(LOOK), Relaxed);
            let looked = async {
                if let Err(error) = self.look(&mut looks).await {
                    tracing::error!(%error, "cannot look at the deadlines of runs: looks again soon");
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = looked => {}
            }
        }
    }

    /// One look.
    async fn look(&self, looks: &mut Looks) -> Result<()> {
        let now_us = self.store.runtime().now_us();
        let passed_us = now_us.saturating_sub(std::mem::replace(&mut looks.at_us, now_us));
        if passed_us.saturating_sub(duration_us(LOOK)).saturating_abs() > JUMP_US {
            (looks.trusted_from_us, looks.from, looks.all) = (Some(now_us), None, true);
        }
        looks.number = looks.number.wrapping_add(1);
        if looks.number.is_multiple_of(PRUNE_LOOKS) {
            self.external.beats.prune();
        }
        let mut looked = 0;
        while looked < MAX_LOOKED {
            let until_us = if looks.all { i64::MAX } else { now_us };
            let tx = self.store.begin().await?;
            let (page, next) = deadlines::due(&tx, &self.keys, looks.from.take(), until_us, PAGE).await?;
            drop(tx);
            looked += PAGE;
            self.judge(page, now_us, looks.trusted_from_us).await?;
            match next {
                Some(next) => looks.from = Some(next),
                None => {
                    looks.all = false;
                    break;
                }
            }
        }
        // The look that was at work has ended by the clock's own time.
        looks.at_us = self.store.runtime().now_us();
        Ok(())
    }

    async fn judge(&self, page: Vec<Due>, now_us: i64, trusted_from_us: Option<i64>) -> Result<()> {
        let mut moved: Vec<(Due, i64)> = Vec::new();
        for due in page {
            let timeouts = due.deadline.timeouts;
            let (left_us, exact) = match self.external.beats.look(&due, now_us, trusted_from_us) {
                Ok(left) => left,
                Err(over) => {
                    self.external.expire(&due, over).await?;
                    continue;
                }
            };
            let heard_us = due.updated_us.max(due.changed_us);
            let silent_us = (!due.waits).then(|| now_us.saturating_sub(heard_us).max(0));
            let told = timeouts.left_us(now_us.saturating_sub(due.started_us).max(0), silent_us);
            let at_us = now_us.saturating_add(match told {
                // Known here, or told by the clocks of those who took its reports.
                _ if exact => left_us,
                Some(Ok(told_us)) => told_us,
                // It is watched where it is: another server may know it exactly.
                _ => 0,
            });
            let is_due = due.deadline.at_us <= now_us;
            if is_due && at_us > now_us || !is_due && at_us < due.deadline.at_us.saturating_sub(JUMP_US) {
                moved.push((due, at_us));
            }
        }
        let keys = &self.keys;
        for some in moved.chunks(MOVE_BATCH) {
            self.store
                .transact(|tx| async move {
                    for (due, at_us) in some {
                        deadlines::postpone(&tx, keys, due, *at_us).await?;
                        // The others are due, and come again.
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
