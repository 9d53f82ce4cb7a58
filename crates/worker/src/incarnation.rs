//! One incarnation of a worker: its loop.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::future::{Either, pending};
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use turnwise_policy::contention::{MAX_CONTENDERS, Shard};
use turnwise_queue::workers::Removal;
use turnwise_queue::{Error, Job, Result, claims, jobs, workers};
use turnwise_store::{Error as StoreError, Isolation, Watch};

use crate::Tunables;
use crate::fair_share::{FairShare, Turn};
use crate::handler::Idle;
use crate::locks::Slots;
use crate::membership::{duration_us, remove, remove_dead};
use crate::neighbours::{Observations, WIDE_WINDOW, WINDOW, in_process, mine};
use crate::pass::{Claimant, Leftovers, Numbers, Pass, Sleep, pass};
use crate::run::{Controls, Ended, Shared, run};

/// The pause after a transaction that failed permanently, before the loop continues.
pub(crate) const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of attempts of a pass that ends in conflicts.
const PASS_ATTEMPTS: u32 = 10;
/// After this many attempts the worker pauses in between, so that the conflicting passes do not collide again.
const IMMEDIATE_PASS_ATTEMPTS: u32 = 3;
/// The average time between the starts of jobs that start together, up to the configured jitter.
const START_PAUSE: Duration = Duration::from_millis(10);
/// The additional pause before a worker with too many jobs claims skipped jobs: it gives their owners far more time
/// than their own pause.
const GIVING_PAUSE: Duration = Duration::from_secs(1);
/// The number of jobs that one transaction adopts.
const ADOPT_BATCH: usize = 50;

/// Why an incarnation ends.
pub(crate) enum End {
    /// It was asked to stop.
    Stopped,
    /// Another worker removed it.
    Removed,
}

pub(crate) struct Incarnation {
    pub(crate) shared: Arc<Shared>,
    pub id: String,
    next_claim: AtomicU64,
    /// Each claim up to this number either runs here or is over.
    known: u64,
    /// A pass may or may not have been committed: there may be claims above `known`.
    doubt: bool,
    /// How many consecutive passes before the next one had jobs filtered and room left.
    filtered: u32,
    /// The runs, as tasks that are aborted when this is dropped.
    runs: JoinSet<(u64, Ended)>,
    /// By claim number, not by job: a job may be claimed again before this loop learns of its last run's end.
    pub(crate) running: BTreeMap<u64, Running>,
    pub(crate) fair: FairShare,
    /// Notified when a job becomes idle.
    idle_news: Arc<Notify>,
    /// Slots that are lent, because their jobs wait for locks.
    slots: Arc<Slots>,
    /// The time of its latest cycle, in µs; without rotation, the time when it last charged its jobs.
    pub(crate) cycle_us: i64,
    /// The earliest time to check again which waiting jobs idle jobs can be preempted for, in µs.
    pub(crate) yield_from_us: i64,
    /// When it last checked whether a tenant's own jobs may take turns, in µs. Only tenants with jobs here.
    pub(crate) looked_us: BTreeMap<Arc<str>, i64>,
    neighbours: Observations,
    /// The contenders for the same queue, as of the last ping.
    pub(crate) contenders: Vec<String>,
    /// Since when these have not changed, in µs.
    pub(crate) members_since_us: i64,
    /// Emptier workers have room for some of its jobs: until the next cycle, it claims only jobs that they leave.
    pub(crate) is_above_its_part: bool,
    /// The last round in which it gave jobs back, where workers balance in turns.
    pub(crate) gave_in_round: i64,
    /// Tasks that give back the jobs of dead neighbours. Each returns the neighbours that it has processed.
    removals: JoinSet<Vec<String>>,
    /// The neighbours that these tasks process.
    being_removed: BTreeSet<String>,
    tuned: watch::Receiver<Tunables>,
}

/// A job that runs.
pub(crate) struct Running {
    pub controls: Controls,
    /// Its charges.
    pub turn: Turn,
    /// Its priority class.
    pub class: i8,
    /// It declares locks.
    pub locks: bool,
    /// Up to when its key has been charged, in µs.
    pub grown_us: i64,
}

impl Running {
    /// Whether it is idle and may be preempted for that.
    pub(crate) fn may_yield(&self) -> bool {
        self.turn.rotates && self.controls.idle.is_idle() && !self.controls.stop.is_cancelled()
    }
}

/// How the task of a run ended.
type RunEnded = std::result::Result<(u64, Ended), JoinError>;

impl Incarnation {
    pub(crate) fn new(shared: Arc<Shared>, id: String) -> Self {
        let neighbours = Observations::new(shared.options.health_interval);
        let tuned = shared.tunables.changes();
        let (store, keys) = (shared.store.clone(), shared.keys.clone());
        let now_us = store.runtime().now_us();
        let fair = FairShare::new(store, keys, &shared.job_type, &id, shared.tunables.get().fair);
        Incarnation {
            shared,
            id,
            next_claim: AtomicU64::new(1),
            known: 0,
            doubt: false,
            filtered: 0,
            runs: JoinSet::new(),
            running: BTreeMap::new(),
            fair,
            idle_news: Arc::default(),
            slots: Arc::default(),
            cycle_us: now_us,
            yield_from_us: 0,
            looked_us: BTreeMap::new(),
            neighbours,
            contenders: Vec::new(),
            members_since_us: now_us,
            is_above_its_part: false,
            gave_in_round: i64::MIN,
            removals: JoinSet::new(),
            being_removed: BTreeSet::new(),
            tuned,
        }
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        if duration.is_zero() {
            return Box::pin(ready(()));
        }
        let runtime = self.shared.store.runtime().clone();
        Box::pin(async move { runtime.sleep(duration).await })
    }

    fn sleep_until(&self, at_us: i64) -> Sleep {
        let runtime = self.shared.store.runtime().clone();
        Box::pin(async move { runtime.sleep_until(at_us).await })
    }

    /// Works until it is stopped or removed.
    pub(crate) async fn work(&mut self, stop: &CancellationToken) -> End {
        let mut health = self.sleep(self.shared.options.health_interval);
        let mut signal = self.watch_signal().await;
        // The first pass runs immediately: there may be earlier work.
        let mut look = true;
        let mut wake: Option<Watch> = None;
        let mut due: Option<Sleep> = None;
        // Set while there are jobs whose locks are not free.
        let mut lock_wake: Option<Watch> = None;
        // Set while jobs are skipped for their owners; when it ends, this worker may claim them.
        let mut leftovers = Leftovers::default();
        let mut overdue = BTreeSet::new();
        self.look_at_contenders().await;
        self.sync().await;
        let mut cycle = self.until_cycle().map(|pause| self.sleep(pause));
        // When idle jobs may be preempted: at a time, and when a job becomes pending.
        let mut idle_due: Option<Sleep> = None;
        let mut idle_wake: Option<Watch> = None;
        let idle_news = self.idle_news.clone();
        let slots = self.slots.clone();
        loop {
            if stop.is_cancelled() {
                return End::Stopped;
            }
            let (any, halted) = self.forget_ended();
            if halted && !self.ping().await {
                return End::Removed;
            }
            look |= any;
            // Also without a free slot: due jobs become pending, and running jobs may be preempted for them.
            if look {
                match self.fill_slots(std::mem::take(&mut overdue)).await {
                    Ok(pass) => {
                        look = pass.more;
                        let random = self.shared.store.runtime().random();
                        leftovers.note(pass.left_to_contenders.clone(), || self.sleep(self.pause(random)));
                        due = pass.next_due_us.map(|at_us| self.sleep_until(at_us));
                        wake = self.watch_wake(pass.wake_seen).await;
                        lock_wake = match pass.lock_wake_seen {
                            Some(seen) => self.watch(self.shared.keys.lock_wake(), seen).await,
                            None => None,
                        };
                    }
                    Err(Error::Halt) => return End::Removed,
                    Err(error) => {
                        tracing::error!(%error, "a scheduling pass failed");
                        (look, wake, lock_wake) = (false, None, None);
                        due = Some(self.sleep(ERROR_PAUSE));
                    }
                }
            }
            let full = self.is_full();
            // Rare events come first, so that a worker that is always busy still pings, and still stops cancelled jobs.
            tokio::select! {
                biased;
                () = stop.cancelled() => return End::Stopped,
                () = &mut health => {
                    if !self.ping_and_look().await {
                        return End::Removed;
                    }
                    self.sync().await;
                    self.charge_between_cycles();
                    // Without a free slot it watches nothing, but there may be new delayed jobs that are due now.
                    look |= full;
                    health = self.sleep(self.shared.options.health_interval);
                }
                () = or_never(&mut signal) => {
                    // The watch is renewed before the read, so that no change is missed.
                    signal = self.watch_signal().await;
                    if let Err(error) = self.stop_cancelled().await {
                        tracing::error!(%error, "cannot read which jobs shall stop: looks again soon");
                        signal = Some(self.sleep(ERROR_PAUSE));
                    }
                }
                Ok(()) = self.tuned.changed() => {
                    let running = self.running.values_mut().map(|running| &mut running.turn);
                    self.fair.follow(&self.shared.tunables.get().fair, running);
                    cycle = self.until_cycle().map(|pause| self.sleep(pause));
                    if let Err(error) = self.show_slots().await {
                        tracing::error!(%error, "cannot write how many jobs run at most");
                    }
                    look = true;
                }
                () = or_never(&mut cycle) => {
                    self.cycle().await;
                    cycle = self.until_cycle().map(|pause| self.sleep(pause));
                }
                () = idle_news.notified() => idle_due = self.until_yield().map(|pause| self.sleep(pause)),
                () = or_never(&mut idle_wake) => {
                    idle_wake = None;
                    idle_due = self.until_yield().map(|pause| self.sleep(pause));
                }
                () = or_never(&mut idle_due) => {
                    let yielded = self.yield_idle().await;
                    idle_due = yielded.again.map(|pause| self.sleep(pause));
                    idle_wake = self.watch_wake(yielded.wake_seen).await;
                }
                Some(ended) = self.runs.join_next() => {
                    if self.forget(ended) && !self.ping().await {
                        return End::Removed;
                    }
                    look = true;
                }
                () = slots.news.notified() => look = true,
                () = ready(()), if look => {}
                () = or_never(&mut wake), if !full => { wake = None; look = true; }
                () = or_never(&mut lock_wake), if !full => { lock_wake = None; look = true; }
                () = or_never(&mut due) => { due = None; look = true; }
                left = leftovers.overdue() => { overdue = left; look = true; }
            }
        }
    }

    /// Whether no slot is free. A worker in doubt makes a pass even then.
    fn is_full(&self) -> bool {
        let Tunables { max_jobs, queue, .. } = self.shared.tunables.get();
        let lent = queue.lent(max_jobs, self.slots.waiting());
        self.running.len().saturating_sub(lent) >= max_jobs && !self.doubt
    }

    /// Whether another job may run in the slot of this one.
    pub(crate) fn lends(&self, running: &Running) -> bool {
        running.controls.waits.now() && !self.shared.tunables.get().queue.waiting_uses_slot
    }

    pub(crate) fn until(&self, at_us: i64) -> Duration {
        let wait_us = at_us.saturating_sub(self.shared.store.runtime().now_us());
        Duration::from_micros(u64::try_from(wait_us).unwrap_or(0))
    }

    /// Makes one pass, and starts a task for each claimed job.
    async fn fill_slots(&mut self, overdue: BTreeSet<String>) -> Result<Pass> {
        if self.doubt {
            self.adopt().await?;
        }
        self.fair.agree().await?;
        match self.pass(&overdue).await {
            Ok(mut pass) => {
                self.known = self.next_claim.load(Relaxed) - 1;
                self.filtered = if pass.filtered && pass.more { self.filtered.saturating_add(1) } else { 0 };
                self.fair.drained(&pass.drained, pass.wake_seen.as_ref());
                let spread = self.spread(pass.claimed.len());
                let left = pass.first_left.clone();
                for (job, options) in pass.claimed.drain(..) {
                    self.start(job, options, left.as_deref(), spread);
                }
                Ok(pass)
            }
            Err(error) => {
                self.doubt = matches!(error, Error::Store(StoreError::UnknownOutcome(_)));
                Err(error)
            }
        }
    }

    /// Makes one pass, and repeats it after a conflict. Never repeats it after a commit of unknown outcome: that could
    /// claim more jobs than there are slots.
    async fn pass(&self, overdue: &BTreeSet<String>) -> Result<Pass> {
        let Shared { store, keys, job_type, options, lock_history, .. } = &*self.shared;
        let tunables = self.shared.tunables.get();
        let Tunables { max_jobs, max_history, queue, .. } = &tunables;
        let (max_jobs, max_history) = (*max_jobs, *max_history);
        let lent = queue.lent(max_jobs, self.slots.waiting());
        let claimant = Claimant {
            job_type,
            worker: &self.id,
            running: self.running.len().saturating_sub(lent),
            max_jobs,
            failed: 0,
            filtered: self.filtered,
            numbers: Numbers::Counted(&self.next_claim),
            fair: &self.fair,
            queue,
            lock_history,
            hold: None,
            shard: self.shard(),
            overdue,
            random: store.runtime().random(),
            terms: tunables.terms(),
            max_history,
        };
        // A pass that keeps conflicting must not delay a ping.
        let health_interval_us = duration_us(options.health_interval);
        let give_up_us = store.runtime().now_us().saturating_add(health_interval_us);
        let mut attempt = 1;
        loop {
            let tx = store.begin().await?;
            let claimant = Claimant { failed: attempt - 1, ..claimant };
            let pass = pass(&tx, keys, claimant, store.runtime().now_us()).await?;
            match tx.commit().await {
                Ok(_) => return Ok(pass),
                Err(StoreError::Conflict)
                    if attempt < PASS_ATTEMPTS && store.runtime().now_us() < give_up_us => {}
                Err(error) => return Err(error.into()),
            }
            if attempt >= IMMEDIATE_PASS_ATTEMPTS {
                let pause_ms = 1 + store.runtime().random() % (1 << attempt);
                store.runtime().sleep(Duration::from_millis(pause_ms)).await;
            }
            attempt += 1;
        }
    }

    /// The part of the head of the queue that this worker claims without a pause.
    fn shard(&self) -> Shard {
        if self.is_above_its_part { self.division().of_none() } else { self.division() }
    }

    /// The pause before it claims jobs that it has skipped for their owners.
    fn pause(&self, random: u64) -> Duration {
        let pause = self.shard().pause(random);
        if self.is_above_its_part { GIVING_PAUSE + pause } else { pause }
    }

    /// This worker's part of the head of the queue now, in the division among all workers.
    pub(crate) fn division(&self) -> Shard {
        match self.contenders.is_empty() {
            true => Shard::ALL,
            false => Shard::new(&self.contenders, &self.id, self.shared.store.runtime().now_us()),
        }
    }

    /// Reads which workers contend for the same queue. Missing knowledge only costs conflicts.
    async fn look_at_contenders(&mut self) {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let found = async {
            let tx = self.shared.store.begin().await?;
            workers::contenders(&tx, keys, job_type, MAX_CONTENDERS).await
        };
        match found.await {
            Ok(contenders) => self.know(contenders),
            Err(error) => tracing::debug!(%error, "cannot look who else takes jobs"),
        }
    }

    /// Remembers the contenders for the same queue.
    fn know(&mut self, contenders: Vec<String>) {
        let all = (contenders.len() < MAX_CONTENDERS).then(|| contenders.iter().cloned().collect());
        self.fair.know_members(all);
        if self.contenders != contenders {
            self.is_above_its_part = false;
            self.members_since_us = self.shared.store.runtime().now_us();
            self.contenders = contenders;
        }
    }

    /// Reads the charges of other workers if it is time to. A failed read only makes the shares less exact.
    pub(crate) async fn sync(&self) {
        if let Err(error) = self.fair.sync_if_due().await {
            tracing::debug!(%error, "cannot read what others have charged to tenants");
        }
    }

    /// The time over which the starts of so many jobs are spread, if jobs rotate.
    fn spread(&self, jobs: usize) -> Duration {
        let jitter = self.shared.tunables.get().fair.rotation.map(|rotation| rotation.startup_jitter);
        match (jitter, u32::try_from(jobs)) {
            (None, _) | (_, Ok(0 | 1)) => Duration::ZERO,
            (Some(jitter), jobs) => jitter.min(START_PAUSE.saturating_mul(jobs.unwrap_or(u32::MAX))),
        }
    }

    fn start(&mut self, job: Job, options: Box<RawValue>, left: Option<&str>, spread: Duration) {
        let claim = job.claim().expect("a claimed job has a claim").number;
        let (idle, slots) = (Idle::of(&self.idle_news), self.slots.clone());
        let controls = Controls { idle, slots, ..Controls::default() };
        let started_us = job.started_us.unwrap_or_else(|| self.shared.store.runtime().now_us());
        let mut turn = self.fair.start(&job.tenant, left, job.continuous, started_us);
        (turn.often, turn.waits) = (true, Some(controls.waits.clone()));
        if job.cancel_requested() {
            // Cancelled before it was adopted: its signal has already passed.
            controls.stop.cancel();
        }
        let key = self.fair.key_of_start(&job.tenant, job.priority, job.order_us());
        controls.set_key(key);
        let (class, locks) = (job.class, !job.locks.is_none());
        let running = Running { controls: controls.clone(), turn, class, locks, grown_us: started_us };
        self.running.insert(claim, running);
        let delay_us = match duration_us(spread) {
            0 => 0,
            spread_us => self.shared.store.runtime().random() % spread_us.unsigned_abs(),
        };
        let run = run(self.shared.clone(), job, options, controls, Duration::from_micros(delay_us));
        self.runs.spawn(async move { (claim, run.await) });
    }

    /// Resolves a doubt: makes sure that an outstanding commit has succeeded or never will. Then starts the jobs that
    /// this worker holds but did not know of.
    async fn adopt(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let Shared { store, keys, job_type, .. } = &*shared;
        let id = &self.id;
        store.transact(|tx| async move { workers::fence(&tx, keys, job_type, id).await }).await?;
        loop {
            let (id, known) = (&self.id, self.known);
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
                self.known = job.claim().map_or(self.known, |claim| claim.number);
                self.start(job, options, None, Duration::ZERO);
            }
            if done {
                self.doubt = false;
                return Ok(());
            }
        }
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
    fn forget(&mut self, ended: RunEnded) -> bool {
        match ended {
            Ok((claim, ended)) => {
                if let Some(Running { controls, turn, .. }) = self.running.remove(&claim) {
                    self.fair.end(turn, ended == Ended::Recorded && !controls.stop.is_cancelled());
                }
                ended == Ended::Halted
            }
            Err(error) => {
                // Its slot stays occupied, and its job claimed: the worker gives both back when it leaves.
                tracing::error!(%error, "a run ended badly: its job is recovered when this worker ends");
                false
            }
        }
    }

    async fn watch_wake(&self, seen: Option<bytes::Bytes>) -> Option<Watch> {
        let key = self.shared.keys.wake(&self.shared.job_type);
        self.watch(key, seen).await
    }

    async fn watch_signal(&self) -> Option<Watch> {
        let key = self.shared.keys.signal(&self.shared.job_type, &self.id);
        let seen = match self.shared.store.begin().await {
            Ok(tx) => tx.get_with(&key, Isolation::Snapshot).await.unwrap_or_default(),
            Err(_) => None,
        };
        self.watch(key, seen).await
    }

    async fn watch(&self, key: bytes::Bytes, seen: Option<bytes::Bytes>) -> Option<Watch> {
        match self.shared.store.watch(key, seen).await {
            Ok(watch) => Some(watch),
            Err(error) => {
                // Without a watch, the worker makes another pass after a pause.
                tracing::error!(%error, "cannot watch the store");
                Some(self.sleep(ERROR_PAUSE))
            }
        }
    }

    /// Stops the jobs that clients have cancelled.
    async fn stop_cancelled(&self) -> Result<()> {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let cancelled = self
            .shared
            .store
            .transact(|tx| async move { jobs::cancel_requests(&tx, keys, job_type, &self.id).await })
            .await?;
        for running in cancelled.iter().filter_map(|claim| self.running.get(claim)) {
            running.controls.stop.cancel();
        }
        Ok(())
    }

    /// Publishes a changed number of slots.
    async fn show_slots(&self) -> Result<()> {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let slots = self.shared.tunables.get().max_jobs;
        let (store, id) = (&self.shared.store, &self.id);
        store.transact(|tx| async move { workers::set_slots(&tx, keys, job_type, id, slots).await }).await
    }

    /// Writes a heartbeat. False if the worker is not a member any more; an error that may pass counts as success.
    async fn ping(&self) -> bool {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let now_us = self.shared.store.runtime().now_us();
        let pinged = self
            .shared
            .store
            .transact(|tx| async move { workers::ping(&tx, keys, job_type, &self.id, now_us).await });
        match pinged.await {
            Ok(()) => true,
            Err(Error::Halt) => false,
            Err(error) => {
                tracing::error!(%error, "cannot write the health counter");
                true
            }
        }
    }

    /// Writes a heartbeat and checks the neighbours, in one transaction. Removes the dead ones, after giving back their
    /// jobs. Returns whether this worker is still a member.
    async fn ping_and_look(&mut self) -> bool {
        let shared = self.shared.clone();
        let Shared { store, keys, job_type, .. } = &*shared;
        let (id, neighbours, now_us) = (&self.id, &self.neighbours, store.runtime().now_us());
        let ring = store
            .transact(|tx| async move {
                workers::ping(&tx, keys, job_type, id, now_us).await?;
                let contenders = workers::contenders(&tx, keys, job_type, MAX_CONTENDERS).await?;
                let ring = workers::neighbours(&tx, keys, job_type, id, WINDOW).await?;
                let full = ring.len() == WINDOW;
                let ring = in_process(ring);
                if full && neighbours.none_moved(&ring) {
                    let wide = workers::neighbours(&tx, keys, job_type, id, WIDE_WINDOW).await?;
                    return Ok((in_process(wide), contenders));
                }
                Ok((ring, contenders))
            })
            .await;
        let ring = match ring {
            Ok((ring, contenders)) => {
                self.know(contenders);
                ring
            }
            Err(Error::Halt) => return false,
            Err(error) => {
                tracing::error!(%error, "cannot write the health counter");
                return true;
            }
        };
        let mut dead = mine(self.neighbours.look(ring));
        let done = std::iter::from_fn(|| self.removals.try_join_next());
        for worker in done.filter_map(std::result::Result::ok).flatten() {
            // If it could not be removed, it is still dead and is found again.
            self.being_removed.remove(&worker);
        }
        dead.retain(|(worker, _)| self.being_removed.insert(worker.clone()));
        if !dead.is_empty() {
            let (store, keys, job_type) = (store.clone(), keys.clone(), job_type.clone());
            let max_history = self.shared.tunables.get().max_history;
            self.removals.spawn(async move {
                for (worker, health) in &dead {
                    remove_dead(&store, &keys, &job_type, worker, *health, max_history).await;
                }
                dead.into_iter().map(|(worker, _)| worker).collect()
            });
        }
        true
    }

    /// A clean shutdown: gives every job back and clears every row. Takes as long as the handlers and the store; the
    /// caller sets the deadline.
    pub(crate) async fn leave(&mut self) {
        for running in self.running.values() {
            running.controls.stop.cancel();
        }
        let mut health = self.sleep(self.shared.options.health_interval);
        while !self.runs.is_empty() {
            tokio::select! {
                biased;
                Some(ended) = self.runs.join_next() => { self.forget(ended); }
                () = &mut health => {
                    // It keeps pinging for as long as its handlers take.
                    if !self.ping().await {
                        return self.halt().await;
                    }
                    health = self.sleep(self.shared.options.health_interval);
                }
            }
        }
        self.fair.close().await;
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let max_history = self.shared.tunables.get().max_history;
        let left =
            remove(&self.shared.store, keys, job_type, &self.id, Removal::Left, max_history, |_| ()).await;
        if let Err(error) = left {
            tracing::error!(%error, "cannot leave the membership");
        }
    }

    /// Its claims are gone: aborts all runs and waits for their end.
    pub(crate) async fn halt(&mut self) {
        for running in self.running.values() {
            running.controls.halt.cancel();
        }
        while let Some(ended) = self.runs.join_next().await {
            self.forget(ended);
        }
        // The removal may mean that the store is unreachable: the last charges are not worth a long wait.
        tokio::select! {
            biased;
            () = self.fair.close() => {}
            () = self.shared.store.runtime().sleep(ERROR_PAUSE) => {}
        }
    }
}

/// Waits for an optional future; forever if there is none.
fn or_never<F: Future<Output = ()> + Unpin>(future: &mut Option<F>) -> impl Future<Output = ()> + '_ {
    match future {
        Some(future) => Either::Left(future),
        None => Either::Right(pending()),
    }
}
