//! Fires schedules.
//!
//! *Model.* Every server sleeps until the next schedule is due, or until a client changes one. It reads those that are due and fires them, some per
//! transaction, and several transactions at the same time. No server leads: two that fire the same schedules conflict, and the one that fails looks
//! again, from another place of the index on. With nothing due, a server does nothing.
//!
//! *Schedules that cannot fire.* One that fails alone, or whose zone is unknown here, stays due: another server may be able to fire it. This one logs it, leaves it
//! out for a while, and reads on behind it, so that it keeps no others.
//!
//! *Zone data.* A next instant was computed with the zone data of the server that wrote it. A server that starts with other data computes it again, in parts
//! and beside its fires.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use futures::future::{BoxFuture, join};
use futures::stream::{self, StreamExt};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use turnwise_queue::schedules::{self, Due, Fired, Outcome, Waiting};
use turnwise_queue::{Error, Keyspace, Result};
use turnwise_store::{Error as StoreError, Isolation, Store, Watch};

use crate::record::is_passing;
use crate::service::{keep_up, until_stopped};
use crate::times::ERROR_PAUSE;
use crate::{Live, Metrics};

/// The maximum number of due schedules that one read returns.
const PAGE: usize = 1_000;
/// The maximum number of schedules that one transaction fires: short enough for other jobs not to wait for it.
const BATCH: usize = 100;
/// The maximum number of transactions at the same time.
const AT_ONCE: usize = 4;
/// How long a schedule that cannot fire is left out, in µs.
const STUCK_US: i64 = 10_000_000;

/// Fires schedules when they are due.
#[derive(Clone)]
pub struct Schedules {
    /// The store.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// How many waiting jobs of a type a tenant may have; 0 is no limit.
    pub waiting_jobs: Live<usize>,
    /// Counts what comes of each instant.
    pub metrics: Arc<Metrics>,
}

/// What came of some due schedules.
#[derive(Default)]
struct Round {
    /// Whether any of them is due no more.
    moved: bool,
    /// Whether another server fires them, too.
    contended: bool,
    failed: Option<Error>,
    /// The schedules that cannot fire here, and why.
    stuck: Vec<(Due, String)>,
}

/// The due schedules that cannot fire here, and until when they are left out, in µs.
pub(crate) type Stuck = BTreeMap<Due, i64>;

impl Schedules {
    /// Fires schedules until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            // Only passes use it, one after the other.
            let stuck = &Mutex::<Stuck>::default();
            let fires = keep_up(&self.store, "cannot fire the schedules that are due", || self.pass(stuck));
            join(self.recompute(), fires).await;
        })
    }

    /// Computes the next instants again that were computed with other zone data.
    async fn recompute(&self) {
        let (keys, runtime) = (&self.keys, self.store.runtime());
        let mut row = None;
        loop {
            let (behind, now_us) = (&row, runtime.now_us());
            let part = |tx| async move { schedules::recompute(&tx, keys, behind.clone(), now_us).await };
            match self.store.transact(part).await {
                Ok(done) => {
                    for (schedule, before_us, now_us) in done.moved {
                        tracing::info!(
                            schedule,
                            before_us,
                            now_us,
                            "fires at another time: the zone data has changed"
                        );
                    }
                    for schedule in done.unreadable {
                        tracing::error!(schedule, "cannot read the row of a schedule");
                    }
                    if done.rest.is_none() {
                        return;
                    }
                    row = done.rest;
                }
                Err(error) => {
                    tracing::error!(%error, "cannot compute when schedules fire with this server's zone data: tries again");
                    runtime.sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    /// Fires all that is due. Returns a watch that ends when more may be due.
    pub(crate) async fn pass(&self, stuck: &Mutex<Stuck>) -> Result<Watch> {
        let mut stuck = stuck.lock().await;
        let (keys, runtime) = (&self.keys, self.store.runtime());
        let stamp = &keys.schedules_versionstamp();
        let mut contended = false;
        // Nothing but stuck schedules is due until a time, unless the version has changed since.
        let mut only_stuck = None;
        loop {
            let after_us = only_stuck.as_ref().map(|(until_us, _)| *until_us);
            // The version is read first: a change after this read changes it.
            let look = |tx: turnwise_store::Transaction| async move {
                let seen = tx.get_with(stamp, Isolation::Snapshot).await?;
                Ok::<_, Error>((seen, schedules::next_due(&tx, keys, after_us).await?))
            };
            let (seen, mut next_us) = self.store.transact(look).await?;
            if let Some((_, before)) = only_stuck.take() {
                if before != seen {
                    continue;
                }
                next_us = next_us.into_iter().chain(stuck.values().copied()).min();
            }
            let now_us = runtime.now_us();
            if next_us.is_none_or(|next_us| next_us > now_us) {
                let changed = self.store.watch(stamp.clone(), seen).await?;
                let runtime = runtime.clone();
                return Ok(Box::pin(async move {
                    let due = async {
                        match next_us {
                            Some(next_us) => runtime.sleep_until(next_us).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = due => {}
                    }
                }));
            }
            let round = self.round(now_us, contended, &mut stuck).await?;
            contended = round.contended;
            match round.failed {
                Some(error) if !round.moved => return Err(error),
                None if !round.moved && !contended && !stuck.is_empty() => only_stuck = Some((now_us, seen)),
                _ => {}
            }
        }
    }

    /// Fires all that is due, a page at a time, but for what is stuck.
    async fn round(&self, now_us: i64, contended: bool, stuck: &mut Stuck) -> Result<Round> {
        let keys = &self.keys;
        let mut all = Round::default();
        // Those that another server has fired, or a client has changed, are not seen again.
        let mut still = Stuck::new();
        let mut row = None;
        loop {
            let behind = &row;
            let read =
                |tx| async move { schedules::due_behind(&tx, keys, behind.clone(), now_us, PAGE).await };
            let (mut due, last): (Vec<Due>, Option<Bytes>) = self.store.transact(read).await?;
            due.retain(|due| match stuck.get(due) {
                Some(until_us) if *until_us > now_us => {
                    still.insert(due.clone(), *until_us);
                    false
                }
                _ => true,
            });
            let page = self.fire_page(due, now_us, contended).await;
            for (due, problem) in page.stuck {
                let until_us = now_us.saturating_add(STUCK_US);
                if stuck.insert(due.clone(), until_us).is_none() {
                    tracing::error!(schedule = due.name, problem, "cannot fire a schedule: tries again");
                }
                still.insert(due, until_us);
            }
            all.moved |= page.moved;
            (all.contended, all.failed) = (page.contended, page.failed);
            if all.contended || all.failed.is_some() {
                return Ok(all);
            }
            if last.is_none() {
                *stuck = still;
                return Ok(all);
            }
            row = last;
        }
    }

    /// Fires these, some per transaction.
    async fn fire_page(&self, mut due: Vec<Due>, now_us: i64, contended: bool) -> Round {
        if contended && !due.is_empty() {
            let first = self.store.runtime().random() % due.len() as u64;
            due.rotate_left(usize::try_from(first).unwrap_or(0));
        }
        let rounds: Vec<_> = due.chunks(BATCH).map(|due| self.fire_all(due, now_us)).collect();
        let rounds: Vec<Round> = stream::iter(rounds).buffer_unordered(AT_ONCE).collect().await;
        rounds.into_iter().fold(Round::default(), |all, one| Round {
            moved: all.moved || one.moved,
            contended: all.contended || one.contended,
            failed: all.failed.or(one.failed),
            stuck: all.stuck.into_iter().chain(one.stuck).collect(),
        })
    }

    /// Fires these, in as many transactions as they need.
    async fn fire_all(&self, mut due: &[Due], now_us: i64) -> Round {
        let mut round = Round::default();
        // After a failure that stays, each by itself: it must not keep the others.
        let mut most = due.len();
        while !due.is_empty() {
            match self.fire(&due[..most.min(due.len())], now_us).await {
                Ok(fired) => {
                    round.moved |= fired.done > fired.unknown.len();
                    let (done, rest) = due.split_at(fired.done);
                    let unknown = done.iter().filter(|due| fired.unknown.contains(&due.name));
                    let problem = "its time zone is unknown to this server";
                    round.stuck.extend(unknown.map(|due| (due.clone(), problem.to_owned())));
                    due = rest;
                }
                Err(Error::Store(StoreError::Conflict)) => {
                    round.contended = true;
                    return round;
                }
                Err(error) if is_passing(&error) => {
                    round.failed = Some(error);
                    return round;
                }
                Err(_) if most > 1 => most = 1,
                Err(error) => {
                    round.stuck.push((due[0].clone(), error.to_string()));
                    due = &due[1..];
                }
            }
        }
        round
    }

    /// Fires these, as many as one transaction has room for.
    async fn fire(&self, due: &[Due], now_us: i64) -> Result<Fired> {
        let tx = self.store.begin().await?;
        let waiting = match u64::try_from(self.waiting_jobs.get()).unwrap_or(u64::MAX) {
            0 => None,
            most => Some(Waiting::new(self.store.begin().await?, most)),
        };
        let fired = schedules::fire(&tx, &self.keys, due, waiting, now_us).await?;
        tx.commit().await?;
        for (schedule, fire) in &fired.fires {
            self.metrics.fired(&fire.outcome);
            let late_ms = fire.fired_us.saturating_sub(fire.at_us) / 1_000;
            match &fire.outcome {
                Outcome::Refused(problem) => {
                    tracing::warn!(schedule, problem, "cannot add the job of a schedule")
                }
                Outcome::Full => {
                    tracing::warn!(schedule, "a schedule adds no job: its tenant has too many that wait")
                }
                Outcome::Missed => tracing::warn!(schedule, late_ms, "a schedule has missed an instant"),
                Outcome::Added | Outcome::Skipped | Outcome::Exists | Outcome::Found => {}
            }
        }
        for schedule in &fired.paused {
            tracing::warn!(schedule, "a schedule pauses: its jobs have failed too often in a row");
        }
        Ok(fired)
    }
}
