//! The passage of time, for a server of tests whose clock the tests move.
//!
//! *Model.* The clock moves from one instant at which a schedule fires to the next, and stops at the end. So each instant has its job, and
//! none is missed. At each stop, this does at once what the services do sooner or later, and returns when nothing is left: jobs that are
//! due become pending, those that have not started in time fail, groups end, old records go.
//!
//! *What does not pass.* Workers live in real time: their heartbeats, and the requests that wait for jobs. Their runs do not grow older either,
//! unless the test says so, because a job that runs while a test moves the clock by a day does not hang.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Mutex;
use turnwise_queue::{Error, Result, claims, clock, deadlines, jobs, schedules};
use turnwise_store::Transaction;
use turnwise_store::runtime::Movable;

use crate::deadlines::{CHECK_INTERVAL, Checks};
use crate::times::duration_us;
use crate::{Deadlines, Groups, Retention, Schedules, dependencies, lifetimes};

/// The maximum number of job types that one read returns.
const TYPES: usize = 100;
/// The maximum number of jobs that one transaction makes pending.
const BATCH: usize = 100;

/// Moves the clock of a store that no other process uses.
#[derive(Clone)]
pub struct Passage {
    /// The clock of the machine, as the store has it.
    pub machine: Arc<Movable>,
    /// Fires schedules.
    pub schedules: Schedules,
    /// Ends groups.
    pub groups: Groups,
    /// Removes records.
    pub retention: Retention,
    /// Enforces the timeouts of runs.
    pub deadlines: Deadlines,
    /// One after the other.
    pub turn: Arc<Mutex<()>>,
}

impl Passage {
    /// Moves the clock forward, and does what is due then. With `timeouts`, the runs of external workers grow older by the same time, and those that exceed their
    /// timeouts are taken back. Returns the time then, in µs.
    ///
    /// # Errors
    /// Those of the store. The clock may have been moved in part.
    pub fn advance(&self, by: Duration, timeouts: bool) -> BoxFuture<'_, Result<i64>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let store = &self.schedules.store;
            let until_us = store.runtime().now_us().saturating_add(duration_us(by));
            if timeouts {
                // A run is observed from the end of the interval in which it began.
                self.observe(duration_us(CHECK_INTERVAL));
            }
            loop {
                let now_us = store.runtime().now_us();
                self.at(now_us, timeouts).await?;
                if now_us >= until_us {
                    break;
                }
                let next_us =
                    self.next_us(now_us, timeouts).await?.map_or(until_us, |next_us| next_us.min(until_us));
                self.machine.move_to(next_us);
                clock::compare(store, &self.schedules.keys).await?;
                if timeouts {
                    self.observe(store.runtime().now_us().saturating_sub(now_us));
                }
            }
            self.settle().await?;
            Ok(store.runtime().now_us())
        })
    }

    fn observe(&self, passed_us: i64) {
        self.deadlines.external.run_observations.observed_us.fetch_add(passed_us, Relaxed);
    }

    /// The next instant at which something happens, after now.
    async fn next_us(&self, now_us: i64, timeouts: bool) -> Result<Option<i64>> {
        let (store, keys) = (&self.schedules.store, &self.schedules.keys);
        let read = |tx: Transaction| async move {
            let fires_us = schedules::next_due(&tx, keys, Some(now_us)).await?;
            let behind = keys.deadlines_until(now_us).1;
            let ends = match timeouts {
                true => deadlines::due(&tx, keys, Some(behind), i64::MAX, 1).await?.0,
                false => Vec::new(),
            };
            Ok::<_, Error>(fires_us.into_iter().chain(ends.first().map(|due| due.deadline.at_us)).min())
        };
        store.transact(read).await
    }

    /// Does what must happen at this instant, and not later.
    async fn at(&self, now_us: i64, timeouts: bool) -> Result<()> {
        drop(self.schedules.pass(&Mutex::default()).await?);
        lifetimes::round(&self.schedules.store, &self.schedules.keys).await?;
        if timeouts {
            self.deadlines.check(&mut Checks::at(now_us)).await?;
        }
        Ok(())
    }

    /// Does what is due now, but for what happens at each instant.
    async fn settle(&self) -> Result<()> {
        let (store, keys) = (&self.schedules.store, &self.schedules.keys);
        drop(dependencies::pass(store, keys).await?);
        drop(self.groups.pass(&Mutex::default()).await?);
        self.release().await?;
        let mut round = crate::retention::Round::default();
        while self.retention.pass(&mut round).await? {}
        Ok(())
    }

    /// Makes jobs pending whose time has come: workers do it before they claim, but tests look before they run one.
    async fn release(&self) -> Result<()> {
        let (store, keys) = (&self.schedules.store, &self.schedules.keys);
        let mut after: Option<String> = None;
        loop {
            let behind = after.as_deref();
            let types =
                store.transact(|tx| async move { jobs::types_after(&tx, keys, behind, TYPES).await }).await?;
            for job_type in &types {
                loop {
                    let now_us = store.runtime().now_us();
                    let release = |tx: Transaction| async move {
                        claims::release_due(&tx, keys, job_type, now_us, BATCH, |_: &str| true).await
                    };
                    let left = store.transact(release).await?;
                    if left.next_due_us.is_none_or(|next_us| next_us > now_us) {
                        break;
                    }
                }
            }
            if types.len() < TYPES {
                return Ok(());
            }
            after = types.into_iter().next_back();
        }
    }
}
