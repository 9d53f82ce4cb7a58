//! The invariants, checked at every commit on the rows that it touched.
//!
//! *Safety.* A job is in the one place that its record names. The state machine allows every change of a record, and the writer may make it.
//! That writer is a client that requested the change, the worker whose claim holds the job, or the process that removes that worker. No claim
//! is given twice. Only members are given claims and use them. A worker records what its handler did. [`turnwise_queue::check`] checks what
//! the rows themselves show. This module checks who may change them, when and how. [`Checker::look_over`] reads the whole store again, to
//! find what the check of each commit missed.

mod losses;
mod observed;
mod rows;
mod transition;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use turnwise_policy::backoff::OnLost;
use turnwise_queue::check;
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::tasks::KnownTasks;
use turnwise_queue::{Claim, Event, EventKind, Job, Keyspace, NewJob, State, Then, workers};

use crate::broken::{Broken, ensure, in_words, is_kept, none};
use crate::clocks::Clocks;
use crate::core::{Core, EPOCH_US, Stats, lock};
use crate::dependencies::{self, Dependencies};
use crate::engine::Writer;
use crate::filters::Filters;
use crate::groups::{self, Groups};
use crate::inputs::Inputs;
use crate::ledger::{ClaimKey, Did, Executions, JobKey, OpKind};
use crate::link::{Link, SLOW_STORE_MS};
use crate::load::Loads;
use crate::locks::{self, Locks};
use crate::model::{self, JobRows, Row, WorkerRow};
use crate::plan::Plan;
use crate::rows::RowChange;
use crate::schedules::{self, Schedules};
use crate::show;
use crate::tenants::{self, Tenants, is_sorted_anew};
use crate::trace::Site;
use crate::unique::{self, UniqueKeys};

use self::rows::{Report, TouchedRows};

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
    /// The task of the job of each claim of a worker that knows some tasks only.
    pub tasks: BTreeMap<ClaimKey, String>,
    /// Every claim ever given, with its job and its time.
    pub claims: BTreeMap<ClaimKey, (JobKey, i64)>,
    /// How many jobs each worker holds.
    pub load: Loads,
    /// When a job of each type was last claimed or given back, in µs since the world began.
    pub moved_us: BTreeMap<String, i64>,
    /// When a run of each type last ended otherwise than by being given back, in µs since the world began.
    pub disturbed_us: BTreeMap<String, i64>,
    /// What handlers did.
    pub executions: Executions,
    /// When each job's record last changed, in µs since the world began.
    pub changed_us: BTreeMap<JobKey, i64>,
    /// Ends of each job.
    pub ends: BTreeMap<JobKey, u64>,
    /// How often each job was added, or replaced.
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
    /// Which jobs may start, in worlds with filters, concurrency limits and dependencies, or with tasks.
    pub filters: Option<Filters>,
    /// The results of jobs, and who gets them, in the same worlds.
    pub inputs: Option<Inputs>,
    /// The unique keys of jobs, and the options that clients have stated.
    pub unique: UniqueKeys,
    /// The schedules, and what they have fired.
    pub schedules: Schedules,
    /// The groups, and with what they have called back.
    pub groups: Groups,
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

    /// The tasks that a worker knows; `None` for all.
    pub fn known_tasks(&self, worker: &JobKey) -> Option<KnownTasks> {
        let row = self.workers.get(worker)?.get(&WorkerRow::Member)?;
        model::worker(worker, row).ok()?.tasks
    }

    /// Checks that a worker takes the task of a job that it claims, and notes the task.
    fn check_task(&mut self, holder: &JobKey, number: u64, new: &Job) -> Result<(), Broken> {
        let Some(tasks) = self.known_tasks(holder) else { return Ok(()) };
        let story = || format!("{holder:?} of {tasks:?}, {:?}: {}", new.task, in_words(Some(new)));
        let most = new.task.as_ref().and_then(|task| Some((task.clone(), *tasks.get(task)?)));
        let (task, most) = most.ok_or_else(|| ("a worker gets jobs of the tasks that it knows", story()))?;
        let holds = |number: &u64| {
            let job = self.claims.get(&(holder.1.clone(), *number)).map(|(job, _)| job);
            let record = job.and_then(|job| self.jobs.get(job)?.record.as_ref());
            let claim = record.and_then(|job| job.claim());
            claim.is_some_and(|claim| (claim.worker == holder.1) && claim.number == *number)
        };
        let all = self.tasks.range((holder.1.clone(), 0)..=(holder.1.clone(), u64::MAX));
        let others = all.filter(|((_, other), of)| **of == task && *other != number && holds(other)).count();
        ensure(
            most == 0 || others < most as usize,
            "a worker runs no more jobs of a task than it states",
            || format!("{others} of {most}: {}", story()),
        )?;
        self.tasks.insert((holder.1.clone(), number), task);
        Ok(())
    }

    fn holder(&self, job: &Job) -> Option<JobKey> {
        job.claim().map(|claim| (job.job_type.clone(), claim.worker.clone()))
    }
}

/// The time that the commits of a start and an end may take, with their retries, by the clocks of their writers, in µs.
const SLACK_US: i64 = 15_000_000;

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

    /// What a client's addition states of a job that it replaces.
    fn replaces(&self, job: &JobKey) -> Option<&NewJob> {
        self.writer.op.as_ref()?.replaces(job)
    }

    /// What a client's addition states of a job, whether that is its own or one that it replaces.
    fn states(&self, job: &JobKey) -> Option<&NewJob> {
        let op = self.writer.op.as_ref()?;
        let own = op.jobs.iter().position(|own| own == job).and_then(|n| op.new.get(n));
        own.or_else(|| op.replaces(job))
    }

    fn was_member(&self, known: &CheckerState, worker: &JobKey) -> bool {
        self.was_member.get(worker).copied().unwrap_or_else(|| known.is_member(worker))
    }
}

impl Checker {
    /// A checker of an empty store.
    pub fn new(core: &Arc<Core>, plan: &Plan) -> Arc<Self> {
        let locks = plan.locks.as_ref().map(|locks| Locks::new(locks.rules.levels.clone()));
        let filters = (plan.eligibility.is_some() || plan.tasks).then(Filters::default);
        let inputs = plan.eligibility.as_ref().map(|_| Inputs::default());
        Arc::new(Checker {
            core: core.clone(),
            keys: Keyspace::default(),
            health_timeout: plan.health_timeout(),
            retention: plan.retention,
            skews: plan.skews,
            known: Mutex::new(CheckerState { locks, filters, inputs, ..CheckerState::default() }),
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
        let mut touched = TouchedRows::default();
        for change in changes {
            touched.note(known, &mut commit, change)?;
        }
        self.check_workers(known, &commit, &touched)?;
        if let Some((_, finding)) = known.counts.differences(&self.keys).first() {
            return Err((finding.invariant.holds(), finding.to_string()));
        }
        if let Some((_, finding)) = known.counts.group_differences(&self.keys).first() {
            return Err((finding.invariant.holds(), finding.to_string()));
        }
        let CheckerState { jobs, executions, dependencies, .. } = known;
        commit.refused = dependencies.observe(&dependencies::Commit {
            op: commit.writer.op.as_ref(),
            jobs: &touched.jobs,
            known: jobs,
            executions,
            now_us: commit.now_us,
        })?;
        self.check_jobs(known, &commit, &touched.jobs)?;
        let added = touched.jobs.iter().filter(|(_, old)| old.is_none()).filter_map(|(key, _)| {
            let job = known.jobs[key].record.clone()?;
            (job.schedule.is_some() && commit.writer.op.is_none()).then(|| (key.clone(), job))
        });
        let (added, is_client) = (added.collect(), commit.writer.op.is_some());
        known.schedules.check(touched.schedules, added, is_client, commit.clock_us())?;
        let added = touched.jobs.iter().filter(|(_, old)| old.is_none()).filter_map(|(key, _)| {
            let job = known.jobs[key].record.clone()?;
            job.callback.is_some().then(|| (key.clone(), job))
        });
        let added = added.collect();
        known.groups.check(touched.groups, added, commit.writer.op.as_ref())?;
        if let Some(locks) = &mut known.locks {
            let count = |count: &dyn Fn(&mut Stats)| self.core.count(count);
            locks.check(&touched.locks, &touched.jobs, &known.jobs, count)?;
            locks.look(&touched.locks, touched.jobs.keys(), &known.jobs, commit.now_us);
        }
        if let Some(filters) = &mut known.filters {
            filters.check()?;
            filters.look(touched.jobs.keys(), &known.jobs, commit.now_us);
        }
        for key in touched.jobs.keys() {
            self.check_places(known, key)?;
            if known.jobs[key].is_empty() {
                known.jobs.remove(key);
            }
        }
        Ok(())
    }

    /// Checks what a commit charges to tenants, the rows of the workers that it touches, and the reports of their runs.
    fn check_workers(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        touched: &TouchedRows,
    ) -> Result<(), Broken> {
        let speaks_for = |charger: &JobKey| known.charges_for(commit.site, &charger.1);
        let is_gone = |charger: &JobKey| !known.is_member(charger);
        let removes = commit.was_member.iter().any(|(worker, was)| *was && !known.is_member(worker));
        known.tenants.check(&touched.tenants, speaks_for, is_gone, removes)?;
        for worker in &touched.workers {
            self.check_worker(known, commit, worker)?;
        }
        for Report { job, worker, old, new } in &touched.reports {
            check_report(known, commit, job, worker, old, new)?;
            if let (Ok(old), Ok(new)) = (model::active(old), model::active(new))
                && old.updated_us() != new.updated_us()
            {
                known.beats.insert((worker.clone(), new.claim), commit.now_us);
            }
        }
        Ok(())
    }

    /// Checks the records of the jobs that a commit touches, each with its record before.
    fn check_jobs(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        touched: &BTreeMap<JobKey, Option<Job>>,
    ) -> Result<(), Broken> {
        self.check_unique(known, commit, touched)?;
        for (key, old) in touched {
            let is_added = commit.is_client(&[OpKind::Add], key);
            if is_added || commit.replaces(key).is_some() {
                *known.adds.entry(key.clone()).or_default() += 1;
            }
            if is_added {
                let waits = known.jobs[key].record.as_ref().is_some_and(|job| job.unmet() > 0);
                self.core.count(|stats| stats.dependents += u64::from(waits));
            }
            let new = known.jobs[key].record.clone();
            let change = (old.as_ref(), new.as_ref());
            known.clocks.observe(key, change, is_added, commit.clock_us(), commit.now_us)?;
            self.check_transition(known, commit, key, change)?;
        }
        Ok(())
    }

    /// Checks the unique keys of the jobs that a commit touches, and notes their results.
    fn check_unique(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        touched: &BTreeMap<JobKey, Option<Job>>,
    ) -> Result<(), Broken> {
        let CheckerState { jobs, unique, inputs, .. } = known;
        let changes = touched.iter().map(|(key, old)| {
            let new = jobs[key].record.as_ref();
            let asked = commit.is_client(&[OpKind::Remove], key);
            let is_removed =
                new.is_none() && (asked || old.as_ref().is_some_and(|old| old.then() == Then::Remove));
            let (clock_us, now_us) = (commit.clock_us(), commit.now_us);
            let once = commit.writer.op.as_ref().is_some_and(|op| op.once);
            let (old, stated) = (old.as_ref(), commit.states(key));
            unique::Change { key, old, new, stated, once, is_removed, clock_us, now_us }
        });
        let changes: Vec<unique::Change<'_>> = changes.collect();
        changes.iter().for_each(|change| unique.note(change));
        for change in &changes {
            unique.check(change)?;
            if let Some(inputs) = inputs {
                let is_added = commit.is_client(&[OpKind::Add], change.key);
                inputs.note(change.key, (change.old, change.new), is_added, jobs, commit.now_us);
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
            if let (Some(Row::Unique(hash)), Some(job)) = (&row, check::unique_holder(value)) {
                jobs.entry(job).or_default().unique.insert(hash.clone());
            }
            if let Some(
                Row::Job(job)
                | Row::Options(job, _)
                | Row::Output(job, ..)
                | Row::Index(job, _)
                | Row::Tag(job, ..)
                | Row::Lock(job, ..)
                | Row::LockQueue(job, ..)
                | Row::InBucket(job, _)
                | Row::Lifetime(job, _)
                | Row::Deadline(job, _)
                | Row::After(job, _)
                | Row::Follower(job, _)
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
                    && (&told.deadlines, &told.lifetimes) == (&rows.deadlines, &rows.lifetimes)
                    && (&told.tags, &told.unique) == (&rows.tags, &rows.unique)
                    && told.followers == rows.followers
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
