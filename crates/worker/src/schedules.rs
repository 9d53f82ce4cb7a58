//! Fires schedules.
//!
//! *Model.* Every server sleeps until the next schedule is due, or until a client changes one. It reads those that are due and fires them, some per transaction, and several
//! transactions at the same time. No server leads: two that fire the same schedules conflict, and the one that fails looks again, from another place of
//! the index on. With nothing due, a server does nothing.
//!
//! *Zone data.* A next instant was computed with the zone data of the server that wrote it. A server that starts with other data computes it again.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use tokio_util::sync::CancellationToken;
use turnwise_queue::schedules::{self, Due, Fired, Outcome};
use turnwise_queue::{Error, Keyspace, Result};
use turnwise_store::{Error as StoreError, Isolation, Store, Watch};

use crate::Metrics;
use crate::record::is_passing;
use crate::service::{keep_up, until_stopped};
use crate::times::ERROR_PAUSE;

/// The maximum number of due schedules that one read returns.
const PAGE: usize = 1_000;
/// The maximum number of schedules that one transaction fires: short enough for other jobs not to wait for it.
const BATCH: usize = 100;
/// The maximum number of transactions at the same time.
const AT_ONCE: usize = 4;

/// Fires schedules when they are due.
#[derive(Clone)]
pub struct Schedules {
    /// The store.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
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
}

impl Schedules {
    /// Fires schedules until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            while let Err(error) = self.recompute().await {
                tracing::error!(%error, "cannot compute when schedules fire with this server's zone data: tries again");
                self.store.runtime().sleep(ERROR_PAUSE).await;
            }
            keep_up(&self.store, "cannot fire the schedules that are due", || self.pass()).await;
        })
    }

    /// Computes the next instants again that were computed with other zone data.
    async fn recompute(&self) -> Result<()> {
        let keys = &self.keys;
        let read = |tx| async move { schedules::of_other_zone_data(&tx, keys).await };
        for name in &self.store.transact(read).await? {
            let now_us = self.store.runtime().now_us();
            let write = |tx| async move { schedules::recompute(&tx, keys, name, now_us).await };
            if let Some((before_us, now_us)) = self.store.transact(write).await? {
                tracing::info!(
                    schedule = name,
                    before_us,
                    now_us,
                    "fires at another time: the zone data has changed"
                );
            }
        }
        Ok(())
    }

    /// Fires all that is due. Returns a watch that ends when more may be due.
    async fn pass(&self) -> Result<Watch> {
        let (keys, runtime) = (&self.keys, self.store.runtime());
        let stamp = &keys.schedules_versionstamp();
        let mut contended = false;
        loop {
            // The version is read first: a change after this read changes it.
            let look = |tx: turnwise_store::Transaction| async move {
                let seen = tx.get_with(stamp, Isolation::Snapshot).await?;
                Ok::<_, Error>((seen, schedules::next_due(&tx, keys).await?))
            };
            let (seen, next_us) = self.store.transact(look).await?;
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
            let round = self.round(now_us, contended).await?;
            contended = round.contended;
            match round.failed {
                Some(error) if !round.moved => return Err(error),
                // Their zones are unknown here. Another server may know them.
                None if !round.moved && !contended => runtime.sleep(ERROR_PAUSE).await,
                _ => {}
            }
        }
    }

    /// Fires a page of what is due.
    async fn round(&self, now_us: i64, contended: bool) -> Result<Round> {
        let keys = &self.keys;
        let read = |tx| async move { schedules::due(&tx, keys, now_us, PAGE).await };
        let mut due = self.store.transact(read).await?;
        if contended && !due.is_empty() {
            let first = self.store.runtime().random() % due.len() as u64;
            due.rotate_left(usize::try_from(first).unwrap_or(0));
        }
        let rounds: Vec<_> = due.chunks(BATCH).map(|due| self.fire_all(due, now_us)).collect();
        let rounds: Vec<Round> = stream::iter(rounds).buffer_unordered(AT_ONCE).collect().await;
        Ok(rounds.into_iter().fold(Round::default(), |all, one| Round {
            moved: all.moved || one.moved,
            contended: all.contended || one.contended,
            failed: all.failed.or(one.failed),
        }))
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
                    due = &due[fired.done..];
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
                    round.failed = Some(error);
                    due = &due[1..];
                }
            }
        }
        round
    }

    /// Fires these, as many as one transaction has room for.
    async fn fire(&self, due: &[Due], now_us: i64) -> Result<Fired> {
        let tx = self.store.begin().await?;
        let fired = schedules::fire(&tx, &self.keys, due, now_us).await?;
        tx.commit().await?;
        for (schedule, fire) in &fired.fires {
            self.metrics.fired(&fire.outcome);
            let late_ms = fire.fired_us.saturating_sub(fire.at_us) / 1_000;
            match &fire.outcome {
                Outcome::Refused(problem) => {
                    tracing::warn!(schedule, problem, "cannot add the job of a schedule")
                }
                Outcome::Missed => tracing::warn!(schedule, late_ms, "a schedule has missed an instant"),
                Outcome::Added | Outcome::Skipped | Outcome::Exists => {}
            }
        }
        for schedule in &fired.paused {
            tracing::warn!(schedule, "a schedule pauses: its jobs have failed too often in a row");
        }
        for schedule in &fired.unknown {
            tracing::error!(schedule, "cannot fire a schedule: its time zone is unknown to this server");
        }
        Ok(fired)
    }
}
