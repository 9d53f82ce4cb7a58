//! One incarnation of a worker: its loop, and the services that the loop calls.
//!
//! Each service is a file. It has the service's state, an event that happens when the service is due, and its work as a
//! method of [`Incarnation`].

mod balance;
mod cancellation;
mod charges;
mod claims;
mod contenders;
mod departure;
mod health;
mod mode;
mod preemption;
mod rotation;
mod yielding;

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Error, Job, Mode, workers};

use crate::Tunables;
use crate::claimer::Claimer;
use crate::event::Event;
use crate::fair_share::{FairShare, RunCharges};
use crate::handler::Idle;
use crate::locks::Slots;
use crate::pass::Sibling;
use crate::run::{Controls, RunEnd, Shared, run, take_over};
use crate::times::ERROR_PAUSE;
use crate::times::duration_us;

/// Why an incarnation ends.
pub(crate) enum End {
    /// It was asked to stop.
    Stopped,
    /// Another worker removed it.
    Removed,
}

/// A registered worker, under one id, until it leaves or is removed.
pub(crate) struct Incarnation {
    shared: Arc<Shared>,
    pub id: String,
    /// The running jobs by claim number, not by job id. A job may be claimed again before this loop has processed the
    /// end of its last run.
    running: BTreeMap<u64, Running>,
    /// The tasks of the runs, which are aborted when this is dropped.
    runs: JoinSet<(u64, RunEnd)>,
    fair: FairShare,
    /// The number of these tasks whose runs other tasks have taken over, because the handlers block their threads.
    taken_over: usize,
    /// Notified when a job becomes idle.
    became_idle: Arc<Notify>,
    /// The number of jobs that wait for locks, and lend their slots.
    slots: Arc<Slots>,
    tuned: watch::Receiver<Tunables>,
    claimer: Claimer,
    /// Whether it takes new jobs, as last read.
    mode: Mode,
    /// This worker among those of its process.
    sibling: Option<Sibling>,
    claims: claims::Claims,
    health: health::Health,
    /// Happens when a client has cancelled a job of this worker.
    cancellation: Event,
    contenders: contenders::Contenders,
    rotation: rotation::Rotation,
    yielding: yielding::Yielding,
    balance: balance::Balance,
}

/// A running job.
struct Running {
    controls: Arc<Controls>,
    /// Its charges.
    charges: RunCharges,
    /// Its priority.
    priority: i8,
    /// Whether it runs until it is stopped.
    continuous: bool,
    /// Whether it declares locks.
    locks: bool,
    /// Up to when its key has been charged, in µs.
    grown_us: i64,
}

impl Running {
    /// Whether it was asked to stop.
    fn is_stopping(&self) -> bool {
        self.controls.stop.is_cancelled()
    }
}

/// How the task of a run ended.
type RunTaskEnd = std::result::Result<(u64, RunEnd), JoinError>;

impl Incarnation {
    pub(crate) fn new(shared: Arc<Shared>, id: String) -> Self {
        let tuned = shared.tunables.changes();
        let (store, keys) = (shared.store.clone(), shared.keys.clone());
        let now_us = store.runtime().now_us();
        let claimer = Claimer::new(store.clone(), keys.clone(), &shared.job_type);
        let mut fair = FairShare::new(store, keys, &shared.job_type, &id, shared.tunables.get().fair);
        let sibling = shared.options.passes.as_ref().map(|passes| passes.join(&shared.job_type, &id));
        if let Some(sibling) = &sibling {
            fair.decoded = sibling.passes().decoded();
        }
        let health = health::Health::new(shared.options.health_interval);
        Incarnation {
            shared,
            id,
            running: BTreeMap::new(),
            runs: JoinSet::new(),
            taken_over: 0,
            fair,
            became_idle: Arc::default(),
            slots: Arc::default(),
            tuned,
            claimer,
            mode: Mode::Active,
            sibling,
            claims: claims::Claims::default(),
            health,
            cancellation: Event::default(),
            contenders: contenders::Contenders { names: Vec::new(), since_us: now_us },
            rotation: rotation::Rotation::new(now_us),
            yielding: yielding::Yielding::default(),
            balance: balance::Balance::default(),
        }
    }

    fn now_us(&self) -> i64 {
        self.shared.store.runtime().now_us()
    }

    fn after(&self, pause: Duration) -> Event {
        Event::after(self.shared.store.runtime(), pause)
    }

    /// The time until a moment; zero if it is past.
    fn until(&self, at_us: i64) -> Duration {
        let wait_us = at_us.saturating_sub(self.now_us());
        Duration::from_micros(u64::try_from(wait_us).unwrap_or(0))
    }

    /// Works until it is stopped or removed.
    pub(crate) async fn work(&mut self, stop: &CancellationToken) -> End {
        // The first pass runs immediately: there may be earlier work.
        let mut pass_due = true;
        self.schedule_ping();
        self.watch_cancellations().await;
        self.read_contenders().await;
        self.sync().await;
        self.schedule_cycle();
        let (became_idle, slots) = (self.became_idle.clone(), self.slots.clone());
        loop {
            if stop.is_cancelled() {
                return End::Stopped;
            }
            let (any, halted) = self.forget_ended();
            if halted && !self.ping().await {
                return End::Removed;
            }
            pass_due |= any;
            // Also without a free slot: due jobs become pending, and running jobs may be preempted for them.
            if pass_due {
                match self.fill_slots().await {
                    Ok(more) => pass_due = more,
                    Err(Error::Halt) => return End::Removed,
                    Err(error) => {
                        tracing::error!(%error, "a scheduling pass failed");
                        pass_due = false;
                        self.claimer.retry_after(ERROR_PAUSE);
                    }
                }
            }
            let full = self.is_full();
            // Rare events come first, so that a worker that always has jobs to claim still pings, and stops cancelled
            // jobs.
            tokio::select! {
                biased;
                () = stop.cancelled() => return End::Stopped,
                () = self.health.due.happens() => {
                    if !self.ping_and_check_neighbours().await {
                        return End::Removed;
                    }
                    self.sync().await;
                    self.charge_between_cycles();
                    self.schedule_ping();
                    // Without a free slot, it watches no key, but new delayed jobs may be due now.
                    pass_due |= full;
                }
                () = self.cancellation.happens() => {
                    self.stop_cancelled().await;
                    self.take_over_blocked();
                    pass_due |= !self.mode.is_quiet();
                }
                Ok(()) = self.tuned.changed() => {
                    self.follow_tunables().await;
                    pass_due = true;
                }
                () = self.rotation.due.happens() => {
                    self.cycle().await;
                    self.schedule_cycle();
                }
                () = became_idle.notified() => self.schedule_yield(),
                due = self.yielding.due() => match due {
                    true => self.yield_idle().await,
                    false => self.schedule_yield(),
                },
                Some(ended) = self.runs.join_next() => {
                    if self.forget(ended) && !self.ping().await {
                        return End::Removed;
                    }
                    pass_due = true;
                }
                () = slots.more_waiting.notified() => pass_due = true,
                () = ready(()), if pass_due => {}
                () = self.claimer.woken(!full) => pass_due = true,
            }
        }
    }

    /// Whether no slot is free. A worker with claims in doubt makes a pass even then, so it never counts as full.
    fn is_full(&self) -> bool {
        let max_jobs = self.shared.tunables.get().max_jobs;
        (self.mode.is_quiet() || self.slots_in_use() >= max_jobs) && !self.claims.doubt
    }

    /// The number of slots in use. Jobs that wait for locks lend their slots, if the settings allow it.
    fn slots_in_use(&self) -> usize {
        let Tunables { max_jobs, queue, .. } = self.shared.tunables.get();
        self.running.len().saturating_sub(queue.lent(max_jobs, self.slots.waiting()))
    }

    /// Whether another job may run in the slot of this one.
    fn lends(&self, running: &Running) -> bool {
        running.controls.waits.now() && !self.shared.tunables.get().queue.waiting_uses_slot
    }

    /// Applies changed settings.
    async fn follow_tunables(&mut self) {
        let running = self.running.values_mut().map(|running| &mut running.charges);
        self.fair.follow(&self.shared.tunables.get().fair, running);
        self.schedule_cycle();
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let Tunables { max_jobs: slots, bounds, .. } = self.shared.tunables.get();
        let (store, id) = (&self.shared.store, &self.id);
        let shown = store
            .transact(|tx| async move { workers::set_slots(&tx, keys, job_type, id, slots, bounds).await })
            .await;
        if let Err(error) = shown {
            tracing::error!(%error, "cannot write how many jobs run at most");
        }
    }

    fn start(&mut self, job: Job, options: Box<RawValue>, skipped_tenant: Option<&str>, spread: Duration) {
        let claim = job.claim().expect("a claimed job has a claim").number;
        let (idle, slots) = (Idle::of(&self.became_idle), self.slots.clone());
        let controls = Arc::new(Controls { idle, slots, ..Controls::default() });
        let started_us = job.started_us.unwrap_or_else(|| self.shared.store.runtime().now_us());
        let mut charges =
            self.fair.start((&job.tenant, job.task.as_deref()), skipped_tenant, job.continuous, started_us);
        (charges.often, charges.waits) = (true, Some(controls.waits.clone()));
        if job.cancel_requested() {
            // The client cancelled it before it was adopted, so no further signal follows.
            controls.stop.cancel();
        }
        let key = self.fair.key_of_start(&job.tenant, job.sort_key, job.order_us());
        controls.set_key(key);
        let (priority, continuous, locks) = (job.priority, job.continuous, !job.locks.is_none());
        let running = Running {
            controls: controls.clone(),
            charges,
            priority,
            continuous,
            locks,
            grown_us: started_us,
        };
        let before = self.running.insert(claim, running);
        assert!(before.is_none(), "two runs have the claim {claim}");
        let delay_us = match duration_us(spread) {
            0 => 0,
            spread_us => self.shared.store.runtime().random() % spread_us.unsigned_abs(),
        };
        let run = run(self.shared.clone(), job, options, controls, Duration::from_micros(delay_us));
        self.runs.spawn(async move { (claim, run.await) });
    }

    /// Supervises in further tasks the runs that shall end and whose handlers have not returned from their first polls.
    fn take_over_blocked(&mut self) {
        for (claim, Running { controls, .. }) in &self.running {
            if controls.shall_end()
                && let Some(run) = take_over(&self.shared, controls)
            {
                let claim = *claim;
                self.taken_over += 1;
                self.runs.spawn(async move { (claim, run.await) });
            }
        }
    }

    /// Whether runs have not ended, other than those that block their threads and were given up.
    fn has_runs(&self) -> bool {
        self.runs.len() > self.taken_over
    }

    /// Frees the slots of all runs that have ended. Returns whether any has ended, and whether any was halted.
    fn forget_ended(&mut self) -> (bool, bool) {
        let (mut any, mut halted) = (false, false);
        while let Some(ended) = self.runs.try_join_next() {
            any = true;
            halted |= self.forget(ended);
        }
        (any, halted)
    }

    /// Frees the slot of a run that has ended. Returns whether it was halted.
    fn forget(&mut self, ended: RunTaskEnd) -> bool {
        match ended {
            Ok((_, RunEnd::TakenOver)) => {
                self.taken_over -= 1;
                false
            }
            Ok((claim, ended)) => {
                if let Some(Running { controls, charges, .. }) = self.running.remove(&claim) {
                    self.fair.end(charges, ended == RunEnd::Recorded && !controls.stop.is_cancelled());
                }
                ended == RunEnd::Halted
            }
            Err(error) => {
                // Its slot stays occupied, and its job stays claimed until the worker leaves.
                tracing::error!(%error, "a run ended badly: its job is recovered when this worker ends");
                false
            }
        }
    }
}
