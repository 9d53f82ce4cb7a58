//! The invariants, checked at every commit on the rows that it touched.
//!
//! *Safety.* A job is in the one place that its record names. The state machine allows every change of a record, and the writer may make it.
//! That writer is a client that requested the change, the worker whose claim holds the job, or the process that removes that worker. No claim
//! is given twice. Only members are given claims and use them. A worker records what its handler did. [`turnwise_queue::check`] checks what
//! the rows themselves show. This module checks who may change them, when and how. [`Checker::look_over`] reads the whole store again, to
//! find what the check of each commit missed.

mod losses;
mod observed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use turnwise_policy::backoff::OnLost;
use turnwise_queue::check;
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::{Claim, Event, EventKind, Job, Keyspace, State, Then, workers};

use crate::broken::{Broken, ensure, in_words, is_kept, none};
use crate::clocks::Clocks;
use crate::core::{Core, EPOCH_US, Stats, lock};
use crate::dependencies::{self, Dependencies};
use crate::engine::Writer;
use crate::filters::Filters;
use crate::ledger::{ClaimKey, Did, Executions, JobKey, OpKind};
use crate::link::{Link, SLOW_STORE_MS};
use crate::load::Loads;
use crate::locks::{self, Locks};
use crate::model::{self, JobRows, Row, WorkerRow};
use crate::plan::Plan;
use crate::rows::RowChange;
use crate::show;
use crate::tenants::{Tenants, Touched, is_sorted_anew};
use crate::trace::Site;

/// The state of the store, and of what happened outside of it, as derived from the commits.
pub struct Checker {
    core: Arc<Core>,
    keys: Keyspace,
    /// How long a worker may go without a heartbeat.
    health_timeout: Duration,
    /// How long a job is kept after its end.
    retention: Duration,
    /// Whether clocks are wrong.
    skews: bool,
    known: Mutex<CheckerState>,
}

/// Everything that the checker knows.
#[derive(Default)]
pub struct CheckerState {
    /// The jobs' rows.
    pub jobs: BTreeMap<JobKey, JobRows>,
    /// The workers' rows, by type and id.
    pub workers: BTreeMap<JobKey, BTreeMap<WorkerRow, Bytes>>,
    /// Where each worker that ever registered runs or ran. For an external worker: the process that works under its id.
    pub homes: BTreeMap<String, Arc<Link>>,
    /// The workers that ever registered as external ones.
    pub externals: BTreeSet<String>,
    /// Registered workers that no process uses, and since when, in µs since the world began. The process that registered
    /// such a worker did not learn of it, and has registered again.
    pub orphans: BTreeMap<String, i64>,
    /// External workers that have asked to leave.
    pub left: BTreeSet<String>,
    /// When the run under each claim last began, reported, or got a lock that it waited for, in µs since the world began.
    pub beats: BTreeMap<ClaimKey, i64>,
    /// Claims whose ends are recorded.
    pub recorded: BTreeSet<ClaimKey>,
    /// Every claim ever given, with its job and its time.
    pub claims: BTreeMap<ClaimKey, (JobKey, i64)>,
    /// How many jobs each worker holds.
    pub load: Loads,
    /// When a job of each type was last claimed or given back, in µs since the world began.
    pub moved_us: BTreeMap<String, i64>,
    /// What handlers did.
    pub executions: Executions,
    /// When each job's record last changed, in µs since the world began.
    pub changed_us: BTreeMap<JobKey, i64>,
    /// Ends of each job.
    pub ends: BTreeMap<JobKey, u64>,
    /// How often each job was added.
    pub adds: BTreeMap<JobKey, u64>,
    /// Runs of each job.
    pub runs: BTreeMap<JobKey, usize>,
    /// Which jobs of each tenant wait, and what was charged to each tenant.
    pub tenants: Tenants,
    /// Held and requested locks, in worlds where jobs lock.
    pub locks: Option<Locks>,
    /// Which jobs depend on which.
    pub dependencies: Dependencies,
    /// Jobs that wait for a time, and the order in which jobs were added.
    pub clocks: Clocks,
    /// The counts of jobs, compared with the jobs.
    pub counts: check::CountTally,
    /// Which jobs may start, in worlds with filters, concurrency limits and dependencies.
    pub filters: Option<Filters>,
}

impl CheckerState {
    /// Where a worker runs or ran.
    pub fn home(&self, worker: &str) -> Option<Site> {
        self.homes.get(worker).map(|link| link.site)
    }

    /// Whether a row of a worker may be written at this site. Every node may write for an external worker.
    fn speaks_for(&self, site: Site, worker: &str) -> bool {
        match self.externals.contains(worker) {
            true => matches!(site, Site::Node(..)),
            false => self.home(worker) == Some(site),
        }
    }

    /// Whether a charge of `charger` may be written at this site: by the worker itself, or by the node that charges for
    /// external workers.
    fn charges_for(&self, site: Site, charger: &str) -> bool {
        self.home(charger) == Some(site) || charger == workers::node_contender(&site.to_string())
    }

    /// Whether a worker is a member.
    pub fn is_member(&self, worker: &JobKey) -> bool {
        self.workers.get(worker).is_some_and(|rows| rows.contains_key(&WorkerRow::Member))
    }

    /// Marks this process's earlier workers of the same type as orphans if they were never given a job: the process has
    /// registered again.
    fn orphan(&mut self, commit: &Commit<'_>, joined: &JobKey) {
        let before = self.workers.keys().filter(|before| {
            let is_used = || self.claims.range((before.1.clone(), 0)..=(before.1.clone(), u64::MAX)).next();
            before.0 == joined.0 && self.home(&before.1) == Some(commit.site) && is_used().is_none()
        });
        for (_, id) in before.cloned().collect::<Vec<_>>() {
            self.homes.remove(&id);
            self.orphans.insert(id, commit.now_us);
        }
    }

    /// How often each of these jobs was added.
    pub fn accepted(&self, jobs: &[JobKey]) -> Vec<u64> {
        jobs.iter().map(|job| self.adds.get(job).copied().unwrap_or(0)).collect()
    }

    fn holder(&self, job: &Job) -> Option<JobKey> {
        job.claim().map(|claim| (job.job_type.clone(), claim.worker.clone()))
    }
}

/// The time that the commits of a start and an end may take, with their retries, by the clocks of their writers, in µs.
const SLACK_US: i64 = 15_000_000;

/// The rows of a job that a commit changes. Before the first change, this notes the record as it was.
fn touch<'a>(
    jobs: &'a mut BTreeMap<JobKey, JobRows>,
    touched: &mut BTreeMap<JobKey, Option<Job>>,
    job: &JobKey,
) -> &'a mut JobRows {
    let rows = jobs.entry(job.clone()).or_default();
    touched.entry(job.clone()).or_insert_with(|| rows.record.clone());
    rows
}

/// One commit, while it is checked.
struct Commit<'a> {
    writer: &'a Writer,
    site: Site,
    /// Whether each worker that this commit registers or removes was a member before.
    was_member: BTreeMap<JobKey, bool>,
    /// Jobs that this commit cancelled, or whose next run it cancelled, because of their dependencies.
    refused: BTreeSet<JobKey>,
    now_us: i64,
}

impl Commit<'_> {
    /// The clock of the commit's writer, in µs since the epoch.
    fn clock_us(&self) -> i64 {
        self.writer.link.as_ref().map_or(0, |link| link.clock_us())
    }

    fn is_client(&self, kinds: &[OpKind], job: &JobKey) -> bool {
        self.writer.op.as_ref().is_some_and(|op| kinds.contains(&op.kind) && op.jobs.contains(job))
    }

    fn was_member(&self, known: &CheckerState, worker: &JobKey) -> bool {
        self.was_member.get(worker).copied().unwrap_or_else(|| known.is_member(worker))
    }
}

impl Checker {
    /// A checker of an empty store.
    pub fn new(core: &Arc<Core>, plan: &Plan) -> Arc<Self> {
        let locks = plan.locks.as_ref().map(|locks| Locks::new(locks.rules.levels.clone()));
        let filters = plan.eligibility.as_ref().map(|_| Filters::default());
        Arc::new(Checker {
            core: core.clone(),
            keys: Keyspace::default(),
            health_timeout: plan.health_timeout(),
            retention: plan.retention,
            skews: plan.skews,
            known: Mutex::new(CheckerState { locks, filters, ..CheckerState::default() }),
        })
    }

    /// Runs `look` on what the checker knows.
    pub fn known<T>(&self, look: impl FnOnce(&mut CheckerState) -> T) -> T {
        look(&mut lock(&self.known))
    }

    /// Checks a commit.
    pub fn on_commit(&self, writer: &Writer, version: u64, changes: &[RowChange]) {
        let Some(link) = &writer.link else { return };
        let late = if writer.late { " late" } else { "" };
        self.core.note_commit(link.site, format!("{version}{late}"), changes);
        if writer.late {
            self.core.count(|stats| stats.late += 1);
        }
        let (was_member, refused) = (BTreeMap::new(), BTreeSet::new());
        let now_us = self.core.elapsed_us();
        let commit = Commit { writer, site: link.site, was_member, refused, now_us };
        if let Err((invariant, story)) = self.check(commit, changes) {
            self.core.violated(invariant, format!("in commit {version} of {}: {story}", link.site));
        }
    }

    fn check(&self, mut commit: Commit<'_>, changes: &[RowChange]) -> Result<(), Broken> {
        let known = &mut *lock(&self.known);
        let mut touched_jobs: BTreeMap<JobKey, Option<Job>> = BTreeMap::new();
        let mut touched_workers: BTreeSet<JobKey> = BTreeSet::new();
        let mut reports = Vec::new();
        let mut touched_tenants = Touched::default();
        let mut touched_locks = locks::Touched::default();
        for change in changes {
            let row = model::parse(&change.key);
            let row =
                row.ok_or_else(|| ("every key is known", show::row(&change.key, change.new.as_ref())))?;
            known.tenants.observe(&row, change, &mut touched_tenants)?;
            known.counts.enter(&row, change.old.as_ref(), change.new.as_ref());
            let unreadable = |error| {
                ("rows can be read", format!("{error}: {}", show::row(&change.key, change.new.as_ref())))
            };
            if let Some(locks) = &mut known.locks {
                locks.observe(&row, change, &mut touched_locks).map_err(unreadable)?;
            }
            if let Some(filters) = &mut known.filters {
                filters.observe(&row, change, commit.now_us).map_err(unreadable)?;
            }
            match row {
                Row::Job(job) => {
                    let rows = touch(&mut known.jobs, &mut touched_jobs, &job);
                    rows.record = None;
                    rows.set_record(&job, change.new.as_ref()).map_err(unreadable)?;
                    known.changed_us.insert(job, commit.now_us);
                }
                Row::Options(job, n) => {
                    let pieces = &mut known.jobs.entry(job).or_default().pieces;
                    match &change.new {
                        Some(value) => drop(pieces.insert(n, value.len())),
                        None => drop(pieces.remove(&n)),
                    }
                }
                Row::Index(job, place) => {
                    if let (model::IndexRow::Active(worker), Some(old), Some(new)) =
                        (&place, &change.old, &change.new)
                    {
                        reports.push((job.clone(), worker.clone(), old.clone(), new.clone()));
                    }
                    let places = &mut touch(&mut known.jobs, &mut touched_jobs, &job).places;
                    match &change.new {
                        Some(value) => drop(places.insert(place, value.clone())),
                        None => drop(places.remove(&place)),
                    }
                }
                Row::Parked(job, at) => {
                    let parked = &mut touch(&mut known.jobs, &mut touched_jobs, &job).parked;
                    match &change.new {
                        Some(_) => parked.insert(at),
                        None => parked.remove(&at),
                    };
                }
                Row::Unwatched(job, at) => {
                    let unwatched = &mut touch(&mut known.jobs, &mut touched_jobs, &job).unwatched;
                    match &change.new {
                        Some(_) => unwatched.insert(at),
                        None => unwatched.remove(&at),
                    };
                }
                Row::Lock(ref job, ..)
                | Row::LockQueue(ref job, ..)
                | Row::After(ref job, ..)
                | Row::Deadline(ref job, _)
                | Row::Rate(ref job, ..) => {
                    let rows = touch(&mut known.jobs, &mut touched_jobs, job);
                    match &row {
                        Row::Lock(_, spot, mode) => drop(rows.locks.remove(&(spot.clone(), *mode))),
                        Row::LockQueue(_, spot, at) => drop(rows.queued.remove(&(spot.clone(), *at))),
                        Row::After(_, on) => rows.after.retain(|(other, _)| other != on),
                        Row::Rate(_, bucket) => drop(rows.buckets.remove(bucket)),
                        Row::Deadline(_, at_us) => drop(rows.deadlines.remove(at_us)),
                        _ => {}
                    }
                    if let Some(value) = &change.new {
                        rows.add(row, value).map_err(unreadable)?;
                    }
                }
                Row::Dependent(job, on, group) => {
                    let back = &mut touch(&mut known.jobs, &mut touched_jobs, &job).back;
                    match &change.new {
                        Some(_) => back.insert((on, group)),
                        None => back.remove(&(on, group)),
                    };
                }
                Row::Worker(worker, row) => {
                    if row == WorkerRow::Member {
                        commit.was_member.insert(worker.clone(), change.old.is_some());
                    }
                    let rows = known.workers.entry(worker.clone()).or_default();
                    match &change.new {
                        Some(value) => drop(rows.insert(row, value.clone())),
                        None => drop(rows.remove(&row)),
                    }
                    touched_workers.insert(worker);
                }
                _ => {}
            }
        }
        let speaks_for = |charger: &JobKey| known.charges_for(commit.site, &charger.1);
        let is_gone = |charger: &JobKey| !known.is_member(charger);
        let removes = commit.was_member.iter().any(|(worker, was)| *was && !known.is_member(worker));
        known.tenants.check(&touched_tenants, speaks_for, is_gone, removes)?;
        for worker in &touched_workers {
            self.check_worker(known, &commit, worker)?;
        }
        for (job, worker, old, new) in reports {
            check_report(known, &commit, &job, &worker, &old, &new)?;
            if let (Ok(old), Ok(new)) = (model::active(&old), model::active(&new))
                && old.updated_us() != new.updated_us()
            {
                known.beats.insert((worker, new.claim), commit.now_us);
            }
        }
        if let Some((_, finding)) = known.counts.differences(&self.keys).first() {
            return Err((finding.invariant.holds(), finding.to_string()));
        }
        let CheckerState { jobs, executions, dependencies, .. } = known;
        commit.refused = dependencies.observe(&dependencies::Commit {
            op: commit.writer.op.as_ref(),
            jobs: &touched_jobs,
            known: jobs,
            executions,
            now_us: commit.now_us,
        })?;
        for (key, old) in &touched_jobs {
            if commit.is_client(&[OpKind::Add], key) {
                *known.adds.entry(key.clone()).or_default() += 1;
                let waits = known.jobs[key].record.as_ref().is_some_and(|job| job.unmet() > 0);
                self.core.count(|stats| stats.dependents += u64::from(waits));
            }
            let new = known.jobs[key].record.clone();
            let is_added = commit.is_client(&[OpKind::Add], key);
            let change = (old.as_ref(), new.as_ref());
            known.clocks.observe(key, change, is_added, commit.clock_us(), commit.now_us)?;
            self.check_transition(known, &commit, key, old.as_ref(), new.as_ref())?;
        }
        if let Some(locks) = &mut known.locks {
            let count = |count: &dyn Fn(&mut Stats)| self.core.count(count);
            locks.check(&touched_locks, &touched_jobs, &known.jobs, count)?;
            locks.look(&touched_locks, touched_jobs.keys(), &known.jobs, commit.now_us);
        }
        if let Some(filters) = &mut known.filters {
            filters.check()?;
            filters.look(touched_jobs.keys(), &known.jobs, commit.now_us);
        }
        for key in touched_jobs.keys() {
            self.check_places(known, key)?;
            if known.jobs[key].is_empty() {
                known.jobs.remove(key);
            }
        }
        Ok(())
    }

    /// Checks the rows of a worker: it registers once, and leaves no row behind when it is gone.
    fn check_worker(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        worker: &JobKey,
    ) -> Result<(), Broken> {
        let was_member = commit.was_member(known, worker);
        let is_member = known.is_member(worker);
        let rows = known.workers[worker].clone();
        let story = || format!("worker {worker:?} has {:?}", rows.keys().collect::<Vec<_>>());
        if is_member && !was_member {
            let is_new = !known.homes.contains_key(&worker.1)
                && !known.externals.contains(&worker.1)
                && !known.orphans.contains_key(&worker.1);
            ensure(is_new, "no worker's id is used twice", story)?;
            let row = model::worker(worker, &rows[&WorkerRow::Member]);
            let row = row.map_err(|error| ("rows can be read", format!("{error}: {}", story())))?;
            let home = commit.writer.link.as_ref().expect("it has a site");
            if row.external {
                known.externals.insert(worker.1.clone());
            } else if commit.writer.late {
                known.orphans.insert(worker.1.clone(), commit.now_us);
            } else {
                known.orphan(commit, worker);
                known.homes.insert(worker.1.clone(), home.clone());
            }
        }
        if was_member && !is_member && known.home(&worker.1) != Some(commit.site) {
            self.core.count(|stats| stats.removals += 1);
            self.core.note(commit.site, "removes", worker.1.clone());
            // The last fault may make a worker look dead for one more timeout.
            let calm_us = commit.now_us - self.core.calm_since_us();
            let lives = known.homes.get(&worker.1).is_some_and(|link| !link.is_dead() && !link.is_paused());
            // On a slow store, a pass that conflicts with faster ones delays a worker's heartbeats by seconds.
            let fast = commit.writer.link.as_ref().is_some_and(|link| link.rates.latency_ms < SLOW_STORE_MS);
            let long_calm = fast
                && !self.core.is_chaos()
                && u64::try_from(calm_us).is_ok_and(|us| Duration::from_micros(us) > self.health_timeout);
            ensure(!(lives && long_calm), "no live worker is removed", story)?;
        }
        none(check::check_worker(&self.keys, worker, &rows))?;
        if !is_member && !rows.is_empty() {
            // Another process removes the worker. Its health row goes last.
            let by_itself = known.home(&worker.1) == Some(commit.site);
            ensure(was_member || !by_itself, "a removed worker writes nothing", story)?;
        }
        if rows.is_empty() {
            known.workers.remove(worker);
        }
        Ok(())
    }

    /// The state machine allows every change of a record, and its writer may make it.
    fn check_transition(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        key: &JobKey,
        old: Option<&Job>,
        new: Option<&Job>,
    ) -> Result<(), Broken> {
        let story = || format!("job {key:?}\n  was {}\n  is  {}", in_words(old), in_words(new));
        let by = |kinds: &[OpKind]| commit.is_client(kinds, key);
        let refused = commit.refused.contains(key);
        if refused {
            self.core.count(|stats| stats.refused += 1);
        }
        const ALLOWED: &str = "every change of a job is allowed";
        match (old, new) {
            (None, None) => Ok(()),
            (None, Some(new)) => {
                if refused {
                    self.count_end(known, key);
                }
                let waits = matches!(new.state(), State::Pending | State::Delayed) || refused;
                ensure(waits && by(&[OpKind::Add]), ALLOWED, story)
            }
            (Some(old), None) => {
                if !old.state().is_final() {
                    self.count_end(known, key);
                }
                match old.state() {
                    State::Running | State::Waiting => {
                        self.check_release(known, commit, old, None)?;
                        ensure(old.then() == Then::Remove, "no acknowledged job is lost", story)
                    }
                    state if state.is_final() => {
                        // The retention removes it when its time has come.
                        let told_us = commit.clock_us();
                        let retention_us = i64::try_from(self.retention.as_micros()).unwrap_or(i64::MAX);
                        let old_enough = told_us.saturating_sub(old.changed_us) >= retention_us;
                        let pruned = commit.writer.op.is_none() && old_enough;
                        ensure(pruned || by(&[OpKind::Remove]), "no acknowledged job is lost", story)
                    }
                    _ => ensure(by(&[OpKind::Remove]), "no acknowledged job is lost", story),
                }
            }
            (Some(old), Some(new)) if by(&[OpKind::SetClass]) => {
                ensure(differs_only(old, new, |was| was.class = new.class), ALLOWED, story)
            }
            (Some(old), Some(new)) if old.class != new.class && !by(&[OpKind::Add]) => {
                Err(("a job keeps its class", story()))
            }
            // The first job that depends on it sets a mark in its record.
            (Some(old), Some(new)) if is_awaited_now(old, new) => {
                let adds = commit.writer.op.as_ref().is_some_and(|op| op.kind == OpKind::Add);
                ensure(adds, ALLOWED, story)
            }
            // One commit may put the job back and take it out again. Its time may be the same as before if a clock was set back.
            (Some(old), Some(new))
                if commit.writer.op.is_none()
                    && is_kept(new)
                    && (is_moved(old, new) || differs_only(old, new, |_| {})) =>
            {
                self.check_filtered(known, commit, key, old, new)
            }
            (Some(old), Some(new)) if commit.writer.op.is_none() && is_kept(old) => {
                let may = known
                    .filters
                    .as_mut()
                    .is_some_and(|filters| filters.lets_go(key, old, new, commit.now_us));
                ensure(may, "a paused or limited job returns to its old place, when it may", story)?;
                match new.state() {
                    State::Pending => Ok(()),
                    State::Running => self.check_claim(known, commit, new),
                    State::Cancelled => self.check_filtered(known, commit, key, old, new),
                    _ => Err((ALLOWED, story())),
                }
            }
            (Some(old), Some(new)) => match (old.state(), new.state()) {
                (was, is) if was.is_claimed() && is.is_claimed() => {
                    ensure(
                        old.claim() == new.claim(),
                        "a claim changes hands only through the queue",
                        story,
                    )?;
                    if let Some(Claim { worker, number }) = &new.claim() {
                        known.tenants.goes_on(worker, *number, is == State::Waiting, commit.now_us);
                        if was == State::Waiting {
                            known.beats.insert((worker.clone(), *number), commit.now_us);
                        }
                    }
                    let unchanged = old.cancel_requested() == new.cancel_requested()
                        && (old.then() == new.then() || refused && new.then() == Then::Keep)
                        && old.history == new.history;
                    let asked = by(&[OpKind::Add, OpKind::Cancel, OpKind::Restart, OpKind::Remove]);
                    ensure(asked || unchanged, ALLOWED, story)?;
                    ensure(old.history == new.history, ALLOWED, story)
                }
                (State::Running | State::Waiting, _) => {
                    if new.state().is_final() {
                        self.count_end(known, key);
                    }
                    self.check_release(known, commit, old, Some(new))
                }
                (State::Pending, State::Running) => self.check_claim(known, commit, new),
                (State::Delayed | State::Crashing, State::Pending | State::Running) => {
                    let told_us = commit.clock_us();
                    let asked = old.state() == State::Delayed && by(&[OpKind::Add]) || by(&[OpKind::Retry]);
                    ensure(asked || told_us >= old.order_us(), "no job starts before its time", story)?;
                    // A pass may release a job and claim it immediately.
                    if new.state() == State::Running { self.check_claim(known, commit, new) } else { Ok(()) }
                }
                (State::Pending | State::Delayed | State::Crashing, State::Cancelled) => {
                    if commit.writer.op.is_none() && !refused {
                        return self.check_filtered(known, commit, key, old, new);
                    }
                    self.count_end(known, key);
                    ensure(by(&[OpKind::Cancel]) || refused, ALLOWED, story)
                }
                (State::Delayed, State::Delayed) => {
                    let heard = old.unmet() > new.unmet() && old.order_us() == new.order_us();
                    ensure(by(&[OpKind::Add]) || heard, ALLOWED, story)
                }
                (State::Pending | State::Crashing, State::Delayed) => {
                    ensure(by(&[OpKind::Add]) && new.unmet() > 0, ALLOWED, story)
                }
                (State::Pending, State::Pending) if commit.writer.op.is_none() => {
                    let reserves = old.reserved().is_none()
                        && new.reserved().is_some()
                        && old.queue_place() == new.queue_place();
                    ensure(is_sorted_anew(old, new) || reserves, ALLOWED, story)
                }
                (was, is) if was == is && !refused => {
                    let same = old.history == new.history && old.order_us() == new.order_us();
                    ensure(same && by(&[OpKind::Add]), ALLOWED, story)
                }
                (was, State::Cancelled) if was.is_final() && refused => {
                    self.count_end(known, key);
                    ensure(by(&[OpKind::Add]), "a job that has ended starts again only if it is added", story)
                }
                (was, State::Pending | State::Delayed) if was.is_final() => {
                    ensure(by(&[OpKind::Add]), "a job that has ended starts again only if it is added", story)
                }
                _ => Err((ALLOWED, story())),
            },
        }
    }

    /// A pass takes a job out of the queue because of a filter, or of a bucket that has no room.
    fn check_filtered(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        key: &JobKey,
        old: &Job,
        new: &Job,
    ) -> Result<(), Broken> {
        let story = || format!("job {key:?}\n  was {}\n  is  {}", in_words(Some(old)), in_words(Some(new)));
        let told_us = commit.clock_us();
        // Its time may have come in the same commit, or its last dependency may have ended. Other checks cover these.
        let could_run = match old.state() {
            State::Pending => true,
            State::Delayed | State::Crashing => is_kept(old) || told_us >= old.order_us(),
            _ => false,
        };
        if new.state().is_final() {
            self.count_end(known, key);
        }
        let count = |count: &dyn Fn(&mut Stats)| self.core.count(count);
        let may =
            known.filters.as_mut().is_some_and(|filters| filters.sorts_out(key, new, commit.now_us, count));
        // A job that was blocked is in the queue at the time when its last dependency ended.
        let freed = old.unmet() > 0 && new.unmet() == 0 && new.order_us() == new.changed_us;
        let stays = new.state().is_final() || old.order_us() == new.order_us() || freed;
        ensure(could_run && may && stays, "a job leaves the queue only for a filter or a bucket", story)
    }

    fn count_end(&self, known: &mut CheckerState, key: &JobKey) {
        *known.ends.entry(key.clone()).or_default() += 1;
        self.core.count(|stats| stats.ends += 1);
    }

    /// A claim is new, and a member gives it to itself.
    fn check_claim(&self, known: &mut CheckerState, commit: &Commit<'_>, new: &Job) -> Result<(), Broken> {
        let story = || format!("job {} is {}", new.id, in_words(Some(new)));
        let Some(Claim { worker, number }) = new.claim().cloned() else {
            return Err(("a running job has a claim", story()));
        };
        let holder = (new.job_type.clone(), worker.clone());
        let member = commit.was_member(known, &holder) && known.is_member(&holder);
        ensure(member, "only members claim jobs", story)?;
        ensure(!known.mode(&holder).is_quiet(), "no quiet worker claims a job", story)?;
        let at_home = known.speaks_for(commit.site, &worker);
        ensure(at_home, "workers claim for themselves", story)?;
        ensure(!new.cancel_requested(), "a cancelled job never starts again", story)?;
        let job = (new.job_type.clone(), new.id.clone());
        known.moved_us.insert(new.job_type.clone(), commit.now_us);
        known.load.add(&holder, commit.now_us);
        known.tenants.claimed(&worker, number, &new.job_type, &new.tenant, commit.now_us);
        if let Some(filters) = &mut known.filters {
            filters.claimed(&job, new, commit.now_us)?;
        }
        known.beats.insert((worker.clone(), number), commit.now_us);
        let given = known.claims.insert((worker, number), (job, commit.now_us));
        ensure(given.is_none(), "no claim is given twice", || format!("{} to {given:?}", story()))
    }

    /// The job's own worker ends a claim while it is a member. Otherwise the claim ends with the membership of its worker.
    fn check_release(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        old: &Job,
        new: Option<&Job>,
    ) -> Result<(), Broken> {
        let story = || format!("job {}\n  was {}\n  is  {}", old.id, in_words(Some(old)), in_words(new));
        let holder = known.holder(old).ok_or_else(|| ("a running job has a claim", story()))?;
        let at_home = known.speaks_for(commit.site, &holder.1);
        let ended = at_home && commit.was_member(known, &holder) && known.is_member(&holder);
        let removed = !known.is_member(&holder);
        ensure(ended || removed, "only its worker, or the remover of its worker, ends a run", story)?;
        known.moved_us.insert(old.job_type.clone(), commit.now_us);
        known.load.take(&holder, commit.now_us);
        if let Some(filters) = &mut known.filters {
            filters.released(&(old.job_type.clone(), old.id.clone()), commit.now_us);
        }
        if let Some(Claim { worker, number }) = &old.claim() {
            known.tenants.released(worker, *number, &old.tenant, commit.now_us);
        }
        let Some(new) = new else {
            known.recorded.extend(old.claim().cloned().map(|claim| (claim.worker, claim.number)));
            return Ok(());
        };
        // The next run was cancelled, now or before, and this run did not end by itself.
        let refused_now = commit.refused.contains(&(new.job_type.clone(), new.id.clone()));
        let refused = new.state() == State::Cancelled && refused_now;
        let again = old.then() == Then::Again && !refused_now;
        let waits = matches!(new.state(), State::Pending | State::Delayed);
        match old.then() {
            Then::Again => ensure(waits || refused_now, "a job that was added again runs again", story)?,
            Then::Remove => return Err(("a removed job goes away", story())),
            Then::Keep if old.cancel_requested() => {
                ensure(new.state().is_final(), "a cancelled job never starts again", story)?;
            }
            Then::Keep => {}
        }
        let grown = |history: &[Event]| {
            let kept = history.len().min(old.history.len() + 1);
            kept == history.len() && kept > 0 && history[1..] == old.history[..kept - 1]
        };
        // The end of the run and the refusal are two events. For a run that was to stop they are one.
        let two = refused && !(old.cancel_requested() && grown(&new.history));
        let history = &new.history[usize::from(two).min(new.history.len())..];
        ensure(grown(history), "every end is recorded once", story)?;
        let event = &history[0].kind;
        let claim = old.claim().expect("its holder was just found");
        // A run that is to be cancelled and exceeds its time is cancelled without an event for the timeout. Either the run
        // continues, or its worker has not reported yet that it ended by itself.
        let key = (claim.worker.clone(), claim.number);
        let external = known.externals.contains(&claim.worker);
        let did = known.executions.get(&key).map(|run| &run.did);
        let told_nothing = matches!(did, None | Some(Did::Runs | Did::Completed | Did::Failed));
        let unsaid = *event == EventKind::Cancelled && external && told_nothing;
        let expired = !removed && (event.reason().is_some_and(|reason| reason.contains(OVER)) || unsaid);
        if expired {
            self.check_expired(known, commit, old)?;
        }
        let taken = removed || expired && external;
        self.check_streak(known, commit, (old, new), event)?;
        if again {
            let told_us = commit.clock_us();
            let early =
                old.order_us() > told_us && (new.state(), new.order_us()) != (State::Delayed, old.order_us());
            ensure(!early, "a job that was added again for later keeps its delay", story)?;
        }
        if taken {
            return self.check_lost(known, commit, (old, new), refused, event);
        }
        let first = known.recorded.insert((claim.worker.clone(), claim.number));
        ensure(first, "every end is recorded once", story)?;
        let did = known.executions.get(&(claim.worker.clone(), claim.number)).map(|run| run.did.clone());
        let told = match event {
            EventKind::Completed => did == Some(Did::Completed),
            // The run did not stop, or had stopped only a moment before its time was over.
            EventKind::Failed { .. } | EventKind::Crashed { .. } if expired => {
                matches!(did, None | Some(Did::Stopped | Did::Dropped | Did::Crashed))
            }
            EventKind::Failed { .. } => matches!(did, Some(Did::Failed | Did::Crashed)),
            EventKind::Crashed { .. } => did == Some(Did::Crashed),
            // Stopped before it began: if many runs start together, the worker delays some of them for a moment.
            EventKind::Stopped { .. } => matches!(did, None | Some(Did::Stopped | Did::Dropped)),
            EventKind::Cancelled => matches!(did, None | Some(Did::Stopped | Did::Dropped | Did::Crashed)),
            EventKind::Added | EventKind::Started => false,
        };
        ensure(told, "the recorded end is what the handler did", || format!("{did:?}, but {}", story()))?;
        let right = match event {
            _ if again => waits,
            _ if refused => true,
            EventKind::Completed => new.state() == State::Completed,
            EventKind::Failed { .. } => new.state() == State::Failed,
            EventKind::Cancelled => new.state() == State::Cancelled,
            EventKind::Crashed { .. } => new.state() == State::Crashing,
            _ => new.state() == State::Pending,
        };
        ensure(right, "an end leads to its state", story)?;
        let tries_left = old.max_attempts.is_none_or(|most| new.attempts < most);
        ensure(new.state() != State::Crashing || tries_left, "a job has no more attempts than allowed", story)
    }

    /// Reads the whole store, and compares it with the state derived from the commits.
    pub fn look_over(&self, rows: &[(Bytes, Bytes)]) {
        if let Err((invariant, story)) = self.compare(rows) {
            self.core.violated(invariant, story);
        }
    }

    fn compare(&self, rows: &[(Bytes, Bytes)]) -> Result<(), Broken> {
        let known = &*lock(&self.known);
        let mut jobs: BTreeMap<JobKey, JobRows> = BTreeMap::new();
        for (key, value) in rows {
            let row = model::parse(key);
            if let Some(
                Row::Job(job)
                | Row::Options(job, _)
                | Row::Index(job, _)
                | Row::Lock(job, ..)
                | Row::LockQueue(job, ..)
                | Row::Rate(job, _)
                | Row::Deadline(job, _)
                | Row::After(job, _)
                | Row::Dependent(job, ..),
            ) = row.clone()
            {
                let added = row.map_or(Ok(()), |row| jobs.entry(job).or_default().add(row, value));
                added.map_err(|error| {
                    ("rows can be read", format!("{error}: {}", show::row(key, Some(value))))
                })?;
            }
        }
        for (key, rows) in &jobs {
            let told = known.jobs.get(key);
            let same = told.is_some_and(|told| {
                let told_locks = (&told.locks, &told.queued);
                (&told.raw, &told.places, &told.pieces) == (&rows.raw, &rows.places, &rows.pieces)
                    && told_locks == (&rows.locks, &rows.queued)
                    && (&told.after, &told.back, &told.buckets) == (&rows.after, &rows.back, &rows.buckets)
                    && told.deadlines == rows.deadlines
            });
            ensure(same, "the commits contain every change", || format!("{key:?}: {rows:?}, but {told:?}"))?;
        }
        let same = jobs.keys().eq(known.jobs.keys());
        ensure(same, "the commits contain every change", || "the store has other jobs".to_owned())?;
        none(check::check_rows(&self.keys, rows))
    }

    /// Checks the rows of a job: it is in the one place that its record names, and no row lacks its job.
    fn check_places(&self, known: &CheckerState, key: &JobKey) -> Result<(), Broken> {
        let rows = &known.jobs[key];
        none(check::check_job(&self.keys, key, rows, |worker| known.workers.contains_key(worker))).map_err(
            |(invariant, story)| (invariant, format!("{story}\n  {}", in_words(rows.record.as_ref()))),
        )
    }
}

/// The text in the reason of a run that exceeded its time.
const OVER: &str = "timeout of ";

/// Whether a job has changed its place: its state, its time, or what keeps it out of the queue.
fn is_moved(old: &Job, new: &Job) -> bool {
    (old.state(), old.changed_us, &old.paused(), &old.limited())
        != (new.state(), new.changed_us, &new.paused(), &new.limited())
}

/// Whether the only change is that a first job now depends on this one.
fn is_awaited_now(old: &Job, new: &Job) -> bool {
    if old.awaited.is_some() || new.awaited.is_none() {
        return false;
    }
    differs_only(old, new, |was| was.awaited = new.awaited)
}

/// Whether the change from `old` to `new` is exactly what `change` does.
fn differs_only(old: &Job, new: &Job, change: impl FnOnce(&mut Job)) -> bool {
    let mut was = old.clone();
    change(&mut was);
    serde_json::to_vec(&was).ok() == serde_json::to_vec(new).ok()
}

/// Only the holder of a claim reports, and only clients request a stop.
fn check_report(
    known: &CheckerState,
    commit: &Commit<'_>,
    job: &JobKey,
    worker: &str,
    old: &[u8],
    new: &[u8],
) -> Result<(), Broken> {
    let holder = (job.0.clone(), worker.to_owned());
    let story = || format!("job {job:?} of worker {worker}: {:?}", String::from_utf8_lossy(new));
    let (Ok(old), Ok(new)) = (model::active(old), model::active(new)) else {
        return Err(("rows can be read", story()));
    };
    ensure(old.claim == new.claim, "a claim changes hands only through the queue", story)?;
    if old.deadline != new.deadline {
        // A node has checked the deadline, and will check it again later.
        let same = old.reported_us == new.reported_us && old.cancel_requested == new.cancel_requested;
        let by_node = matches!(commit.site, Site::Node(..)) && commit.writer.op.is_none();
        return ensure(same && by_node, "nodes move deadlines, and nothing else with them", story);
    }
    if old.cancel_requested != new.cancel_requested {
        let asked = commit.is_client(&[OpKind::Cancel, OpKind::Restart, OpKind::Remove], job);
        return ensure(asked && new.cancel_requested, "only clients ask for a stop", story);
    }
    if commit.writer.op.is_some() {
        return Ok(());
    }
    let holds = known.speaks_for(commit.site, worker)
        && commit.was_member(known, &holder)
        && known.is_member(&holder);
    ensure(holds, "only the holder of a claim reports", story)
}
