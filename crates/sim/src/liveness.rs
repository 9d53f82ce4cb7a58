//! The promises that have a deadline, checked when the world has been calm for a while.
//!
//! A calm is a time in which no fault begins or ends and no process starts. [Its length](calm) is two health timeouts and
//! [`SLACK`]: the jobs of a dead worker may take this long to be pending again. A calm begins only when the effects of the
//! last faults are over: slow operations, late commits, pauses between retries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use turnwise_policy::fair_share::Fairness;
use turnwise_queue::State;
use turnwise_queue::deadlines::Timeouts;
use turnwise_worker::Membership;

use crate::broken::{in_words, is_kept};
use crate::check::CheckerState;
use crate::core::{Violation, lock};
use crate::external::{self, LONG_OVERDUE, Life};
use crate::ledger::{ClaimKey, Did, JobKey};
use crate::link::Link;
use crate::model::{self, WorkerRow};
use crate::node::{Process, Setting};
use crate::plan::{EXTERNAL, STARTUP_JITTER};
use crate::trace::Site;

/// The tolerance of each deadline: a few transactions with their retries, and the longest time between two heartbeats.
pub const SLACK: Duration = Duration::from_secs(5);

/// The tolerance for a run that exceeds its time: the next check by the node that enforces the timeout, and the commit.
const OVERDUE: Duration = Duration::from_secs(10);

/// The tolerance on a slow store, if jobs lock, filters may keep them, or keys order them. A pass takes a second or two there,
/// and is repeated if a lock that it found free, the filters, or a job without a key changed meanwhile. The same holds for a
/// transaction that informs jobs of an end or of new filters.
const SLOW_PASSES: Duration = Duration::from_secs(15);

/// How long it may take to record the end of a run, with its retries on a slow store.
const RECORDING: Duration = Duration::from_secs(30);

/// How long a calm lasts.
pub fn calm(setting: &Setting) -> Duration {
    // A worker with many jobs is removed in several transactions.
    2 * setting.plan.health_timeout() + if setting.plan.is_slow() { SLOW_PASSES } else { SLACK }
}

/// Checks every promise, at the end of a calm.
pub fn check(inspection: &Inspection<'_>) -> Result<(), Violation> {
    inspection.workers()?;
    inspection.jobs()?;
    inspection.executions()?;
    inspection.schedules()?;
    inspection.groups()?;
    inspection.subscribers()
}

/// Checks that jobs start if they can, in the middle of a calm.
pub fn check_starts(inspection: &Inspection<'_>) -> Result<(), Violation> {
    inspection.starts()
}

/// Checks that no run exceeds its time.
pub fn check_runs(inspection: &Inspection<'_>) -> Result<(), Violation> {
    inspection.overdue()
}

/// Runs a check on a world with these live `processes` and `lives`. Skips it if no node is well.
pub fn inspect(
    setting: &Setting,
    processes: &[&Process],
    lives: &[&Life],
    check: impl Fn(&Inspection<'_>) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let mut sites = BTreeMap::new();
    for process in processes {
        let works = process.is_booted() && !process.is_leaving();
        sites.insert(process.link.site, (works, process.link.clone()));
    }
    for life in lives {
        sites.insert(life.link.site, (!life.is_leaving(), life.link.clone()));
    }
    let is_well = |works: bool, link: &Link| works && !link.is_paused();
    let well: BTreeMap<Site, Arc<Link>> = sites
        .iter()
        .filter(|(_, (works, link))| is_well(*works, link))
        .map(|(site, (_, link))| (*site, link.clone()))
        .collect();
    if !well.keys().any(|site| matches!(site, Site::Node(..))) {
        return Ok(());
    }
    // Paused, booting, or shutting down: neither dead nor well.
    let unclear = sites.keys().copied().filter(|site| !well.contains_key(site)).collect();
    setting.checker.known(|known| {
        check(&Inspection { setting, known, well, unclear, now_us: setting.core.elapsed_us() })
    })
}

/// The state that is checked.
pub struct Inspection<'a> {
    pub(crate) setting: &'a Setting,
    pub(crate) known: &'a CheckerState,
    well: BTreeMap<Site, Arc<Link>>,
    unclear: BTreeSet<Site>,
    /// In µs since the world began.
    pub(crate) now_us: i64,
}

fn broken(invariant: &'static str, story: String) -> Result<(), Violation> {
    Err(Violation { invariant, story })
}

impl Inspection<'_> {
    /// The time by the node's clock that is the furthest behind.
    pub(crate) fn clock_us(&self) -> i64 {
        self.nodes().map(|link| link.clock_us()).min().unwrap_or(0)
    }

    pub(crate) fn is_older(&self, at_us: i64, than: Duration) -> bool {
        self.now_us - at_us > i64::try_from(than.as_micros()).expect("a few minutes")
    }

    /// Every row of a worker belongs to a live worker, and every live process is registered exactly once.
    fn workers(&self) -> Result<(), Violation> {
        let mut members: BTreeMap<(Site, &String), Vec<&String>> = BTreeMap::new();
        for ((job_type, worker), rows) in &self.known.workers {
            let home = self.known.home(worker);
            if let Some(home) = home.filter(|home| self.well.contains_key(home))
                && rows.contains_key(&WorkerRow::Member)
            {
                members.entry((home, job_type)).or_default().push(worker);
            } else if !home.is_some_and(|home| self.unclear.contains(&home)) && !self.is_new_orphan(worker) {
                let story = format!("worker {worker} of {home:?} still has {:?}", rows.keys());
                return broken("a dead worker is removed within two health timeouts", story);
            }
        }
        if self.setting.plan.is_slow() {
            // Live workers may be considered dead sometimes.
            return Ok(());
        }
        for site in self.well.keys() {
            let types = match site {
                Site::External(..) => &[EXTERNAL.to_owned()],
                _ => &self.setting.plan.types[..],
            };
            for job_type in types {
                let ids = members.get(&(*site, job_type));
                if ids.is_none_or(|ids| ids.len() != 1) {
                    let story = format!("{site} is a member for {job_type} under {ids:?}");
                    return broken("every live process is a member, once", story);
                }
            }
        }
        Ok(())
    }

    /// Whether no process uses this worker, but not for long enough to detect that it is dead.
    fn is_new_orphan(&self, worker: &String) -> bool {
        let since_us = self.known.orphans.get(worker);
        since_us.is_some_and(|since_us| !self.is_older(*since_us, calm(self.setting)))
    }

    fn jobs(&self) -> Result<(), Violation> {
        self.starts()?;
        for (key, rows) in &self.known.jobs {
            let Some(job) = rows.record.as_ref().filter(|job| job.state().is_claimed()) else { continue };
            let changed_us = self.known.changed_us[key];
            let seconds = (self.now_us - changed_us) / 1_000_000;
            let story = || format!("{key:?} for {seconds} s: {}", in_words(Some(job)));
            self.running(key, story)?;
            self.waiting(key, story)?;
        }
        self.notifications()
    }

    /// Jobs learn of the end of their dependencies, and kept jobs learn that the filters have changed.
    fn notifications(&self) -> Result<(), Violation> {
        let time = if self.setting.plan.is_slow() { SLOW_PASSES } else { SLACK };
        for (key, rows) in &self.known.jobs {
            let untold_us = self.known.dependencies.untold_since_us(key, rows);
            if untold_us.is_some_and(|since_us| self.is_older(since_us, time)) {
                let story = format!("{key:?}: {}", in_words(rows.record.as_ref()));
                return broken("a job learns of the end of its dependencies", story);
            }
            let Some((filters, job)) = self.known.filters.as_ref().zip(rows.record.as_ref()) else {
                continue;
            };
            let outdated_us = filters.outdated_since_us(key, job);
            if outdated_us.is_some_and(|since_us| self.is_older(since_us, time)) {
                let story = format!("{key:?}: {}", in_words(Some(job)));
                return broken("a paused or limited job is checked again after the filters change", story);
            }
        }
        Ok(())
    }

    /// The runs at a worker that still run, or did within this time, whether or not they still have their claims.
    fn runs_within(&self, worker: &String, time: Duration) -> usize {
        let first = (worker.clone(), 0);
        let all = self.known.executions.range(first..).take_while(|((at, _), _)| at == worker);
        all.filter(|(_, run)| run.did == Did::Runs || !self.is_older(run.done_us, time)).count()
    }

    /// Jobs start when there is room: no worker has a free slot all the time while a job waits.
    fn starts(&self) -> Result<(), Violation> {
        let max_jobs = lock(&self.setting.tunables).max_jobs;
        let slots = |worker: &String| match self.known.externals.contains(worker) {
            true => external::SLOTS,
            false => max_jobs,
        };
        let has_room = |job_type: &String| {
            let moved_us = self.known.moved_us.get(job_type).copied().unwrap_or(0);
            let time = self.start_within(job_type);
            let idle = self.is_older(moved_us, time);
            self.known.workers.keys().any(|worker| {
                let home = self.known.home(&worker.1);
                // While a queue is worked off, and while jobs take turns, slots are free only for moments. On a slow store
                // they are free for the length of the pass that fills them.
                let only_idle = self.known.externals.contains(&worker.1) || self.setting.plan.is_slow();
                let most = match only_idle {
                    true if idle => self.known.load.now(worker).max(self.runs_within(&worker.1, time)),
                    true => return false,
                    false => self.known.load.most_since(worker, self.now_us - time.as_micros() as i64),
                };
                // Only a worker that takes all jobs takes each of them.
                let takes_all = !self.setting.plan.tasks || self.known.known_tasks(worker).is_none();
                worker.0 == *job_type
                    && takes_all
                    && home.is_some_and(|home| self.well.contains_key(&home))
                    && most < slots(&worker.1)
            })
        };
        let clock_us = self.clock_us();
        // A slow pass conflicts with jobs that enter or leave its jobs' buckets meanwhile. Those make progress, and this
        // pass does not.
        let slow_filters = self.known.filters.as_ref().filter(|_| self.setting.plan.is_slow());
        let contended_us =
            slow_filters.map(|filters| filters.contended_us(&self.known.jobs)).unwrap_or_default();
        for (key, rows) in &self.known.jobs {
            let Some(job) = &rows.record else { continue };
            // One that must start within a time may end instead.
            if job.due_us.is_some() {
                continue;
            }
            let changed_us = self.known.changed_us[key];
            let story = || {
                format!("{key:?} for {} s: {}", (self.now_us - changed_us) / 1_000_000, in_words(Some(job)))
            };
            // A job that locks can start only when its locks are free, too.
            let free_us = match &self.known.locks {
                Some(locks) if !job.locks.is_none() => locks.free_since_us(key),
                _ => Some(changed_us),
            };
            // A pass reads as many jobs as there is room for. While jobs leave the queue because of filters and buckets,
            // the jobs behind them wait.
            let sorted_us = self.known.filters.as_ref().map_or(0, |filters| filters.sorted_since_us(&key.0));
            let sorted_us = sorted_us.max(contended_us.get(&key.0).copied().unwrap_or(0));
            // A kept job that returns to the queue keeps its age. Whether the locks of a job are free is unknown while it
            // is kept.
            let could_start = self.known.filters.as_ref().and_then(|filters| filters.free_since_us(key));
            // A place of a rate is free by the clocks of nodes.
            let place = self.known.filters.as_ref().and_then(|filters| filters.place_us(job));
            let start_us = i64::try_from(self.start_within(&key.0).as_micros()).expect("a minute");
            let has_place = place.is_none_or(|(at_us, late_us)| clock_us - start_us - late_us > at_us);
            let could_start = could_start
                .filter(|_| has_place)
                .filter(|_| job.locks.is_none() || is_kept(job))
                .is_some_and(|free_us| self.is_older(free_us.max(sorted_us), self.start_within(&key.0)));
            let waits_us = free_us.map_or(self.now_us, |free_us| free_us.max(changed_us).max(sorted_us));
            match job.state() {
                State::Pending if self.is_older(waits_us, self.start_within(&key.0)) && has_room(&key.0) => {
                    return broken("a pending job starts when there is room", story());
                }
                State::Pending | State::Delayed if could_start && has_room(&key.0) => {
                    return broken("a job starts when no filter and no bucket stops it", story());
                }
                State::Delayed | State::Crashing
                    if job.unmet() == 0
                        && !is_kept(job)
                        && self.is_older(changed_us, self.start_within(&key.0))
                        && clock_us - job.order_us() > 2 * SLACK.as_micros() as i64
                        && has_room(&key.0) =>
                {
                    return broken("a delayed job starts when its time has come", story());
                }
                State::Delayed | State::Crashing
                    if self.is_older(changed_us, self.start_within(&key.0))
                        && self.known.clocks.is_late(key, self.now_us)
                        && has_room(&key.0) =>
                {
                    return broken("no job waits much longer than asked", story());
                }
                // Even without room, because only pending jobs cause running jobs to be preempted.
                State::Delayed | State::Crashing
                    if job.unmet() == 0
                        && !is_kept(job)
                        && self.releases_within(&key.0).is_some_and(|time| {
                            self.is_older(changed_us.max(self.setting.core.calm_since_us()), time)
                                && clock_us - job.order_us() > time.as_micros() as i64
                        }) =>
                {
                    return broken("a delayed job is pending when its time has come", story());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The worker knows its claim, and a run that is asked to stop stops.
    fn running(&self, key: &JobKey, story: impl Fn() -> String) -> Result<(), Violation> {
        let job = self.known.jobs[key].record.as_ref().expect("its state was just read");
        let claim = job.claim().expect("checked at every commit");
        let claim_key = (claim.worker.clone(), claim.number);
        let Some(home) = self.known.home(&claim.worker).filter(|home| self.well.contains_key(home)) else {
            if self.known.home(&claim.worker).is_some_and(|home| self.unclear.contains(&home)) {
                return Ok(());
            }
            return broken("a dead worker's jobs are pending within two health timeouts", story());
        };
        let changed_us = self.known.changed_us[key];
        let options = &self.setting.plan.options;
        // A worker learns of it only after its current pass.
        let slow = if self.setting.plan.is_slow() { SLOW_PASSES } else { Duration::ZERO };
        self.over(key, &claim_key, &story)?;
        match self.known.executions.get(&claim_key) {
            None if self.is_older(
                self.known.claims[&claim_key].1,
                options.health_interval + STARTUP_JITTER + SLACK + self.longest_wait(&key.0),
            ) =>
            {
                broken("every claim is known to its worker", format!("{home}: {}", story()))
            }
            Some(run)
                if run.did == Did::Runs
                    && job.cancel_requested()
                    && self.is_older(changed_us, 2 * options.stop_grace + SLACK + slow) =>
            {
                broken("a cancelled job stops", format!("{home}: {}", story()))
            }
            Some(run) if run.did != Did::Runs && self.is_older(run.done_us, RECORDING) => {
                broken("the end of every run is recorded", format!("{home}: {:?}, but {}", run.did, story()))
            }
            _ => Ok(()),
        }
    }

    fn overdue(&self) -> Result<(), Violation> {
        for (key, rows) in &self.known.jobs {
            let Some(claim) = rows.record.as_ref().and_then(|job| job.claim()) else { continue };
            if self.known.home(&claim.worker).is_some_and(|home| self.well.contains_key(&home)) {
                let story = || format!("{key:?}: {}", in_words(rows.record.as_ref()));
                self.over(key, &(claim.worker.clone(), claim.number), story)?;
            }
        }
        Ok(())
    }

    /// A run that exceeds its time loses its claim, if clocks agree. The time before the calm does not count.
    fn over(&self, key: &JobKey, claim: &ClaimKey, story: impl Fn() -> String) -> Result<(), Violation> {
        let job = self.known.jobs[key].record.as_ref().expect("its state was just read");
        let plan = &self.setting.plan;
        if plan.skews {
            return Ok(());
        }
        let slow = if plan.is_slow() { SLOW_PASSES } else { Duration::ZERO };
        let late = 2 * plan.options.stop_grace + OVERDUE + slow;
        let is_over = |timeout_us: Option<i64>, since_us: Option<i64>| {
            let (Some(timeout_us), Some(since_us)) = (timeout_us, since_us) else { return false };
            let since_us = since_us.max(self.setting.core.calm_since_us());
            self.is_older(since_us, Duration::from_micros(timeout_us.unsigned_abs()) + late)
        };
        let Timeouts { run_us, heartbeat_us } = job.terms().timeouts;
        let begun_us = self.known.claims.get(claim).map(|(_, begun_us)| *begun_us);
        // A continuous run inside a process may have nothing to do. The record may describe the next run, which may not be
        // continuous.
        let active = self.known.jobs[key].places.get(&model::IndexRow::Active(claim.0.clone()));
        let continuous =
            active.and_then(|row| model::active(row).ok()).is_some_and(|active| active.continuous);
        let may_rest = continuous && !self.known.externals.contains(&claim.0);
        let silent = heartbeat_us.filter(|_| job.state() == State::Running && !may_rest);
        if is_over(run_us, begun_us) || is_over(silent, self.known.beats.get(claim).copied()) {
            return broken("a run that exceeds its time loses its claim", story());
        }
        Ok(())
    }

    /// A run that waits for a lock gets it soon after the lock is free.
    fn waiting(&self, key: &JobKey, story: impl Fn() -> String) -> Result<(), Violation> {
        let job = self.known.jobs[key].record.as_ref().filter(|job| job.state() == State::Waiting);
        let Some(locks) = job.and(self.known.locks.as_ref()) else { return Ok(()) };
        match locks.free_since_us(key) {
            Some(free_us) if self.is_older(free_us, self.start_within(&key.0)) => {
                broken("a free lock is granted to a run that waits for it", story())
            }
            _ => Ok(()),
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.well.iter().filter(|(site, _)| matches!(site, Site::Node(..))).map(|(_, link)| link)
    }

    /// How soon a job that can start starts, or a run gets a free lock that it waits for.
    fn start_within(&self, job_type: &str) -> Duration {
        let writes_keys = self.setting.plan.options.tunables.fair.fairness == Fairness::Rfc;
        let asks_more = writes_keys || self.known.locks.is_some() || self.known.filters.is_some();
        let slow = asks_more && self.setting.plan.is_slow();
        self.longest_wait(job_type) + if slow { SLOW_PASSES } else { SLACK }
    }

    /// How soon a delayed job that is due is pending. `None` if that depends on whether a worker requests jobs. A worker
    /// without a free slot checks with each heartbeat.
    fn releases_within(&self, job_type: &str) -> Option<Duration> {
        let within = self.setting.plan.options.health_interval + 2 * SLACK;
        (job_type != EXTERNAL && !self.setting.plan.is_slow()).then_some(within)
    }

    /// How long a worker may take to learn of a job. An external worker requests jobs again only after a response.
    fn longest_wait(&self, job_type: &str) -> Duration {
        if job_type == EXTERNAL { 2 * external::WAIT } else { Duration::ZERO }
    }

    /// Subscribers to the membership have learned who the members are, and that the membership is stable.
    fn subscribers(&self) -> Result<(), Violation> {
        if self.setting.plan.is_slow() {
            return Ok(());
        }
        let job_type = &self.setting.plan.types[0];
        let of_type = |((known, worker), rows): (&JobKey, &BTreeMap<WorkerRow, Bytes>)| {
            (known == job_type && rows.contains_key(&WorkerRow::Member)).then(|| worker.clone())
        };
        let members = Membership::Stable(self.known.workers.iter().filter_map(of_type).collect());
        let heard = lock(&self.setting.heard);
        for site in self.well.keys() {
            match heard.get(site) {
                Some(last) if *last != members => {
                    let story = format!("{site} last heard {last:?}, but it is {members:?}");
                    return broken("subscribers learn of a stable membership", story);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A schedule fires when its time has come.
    fn schedules(&self) -> Result<(), Violation> {
        let slow = if self.setting.plan.is_slow() { SLOW_PASSES } else { Duration::ZERO };
        let late_us = i64::try_from((2 * SLACK + slow).as_micros()).expect("some seconds");
        let clock_us = self.clock_us();
        match self.known.schedules.due().find(|(_, next_us)| clock_us - next_us > late_us) {
            Some((name, next_us)) => {
                let story = format!("{name} should have fired at {next_us}, and it is {clock_us}");
                broken("a schedule fires when its time has come", story)
            }
            None => Ok(()),
        }
    }

    /// A group ends after the last of its jobs.
    fn groups(&self) -> Result<(), Violation> {
        let slow = if self.setting.plan.is_slow() { SLOW_PASSES } else { Duration::ZERO };
        let late_us = i64::try_from((2 * SLACK + slow).as_micros()).expect("some seconds");
        let jobs = self.known.jobs.values().filter_map(|rows| rows.record.as_ref());
        match self.known.groups.due(jobs).into_iter().find(|(_, since_us)| self.now_us - since_us > late_us) {
            Some((group, since_us)) => {
                let story =
                    format!("{group:?} should have ended since {since_us}, and it is {}", self.now_us);
                broken("a group ends after the last of its jobs", story)
            }
            None => Ok(()),
        }
    }

    /// A worker that lost a claim stops its run.
    fn executions(&self) -> Result<(), Violation> {
        let options = &self.setting.plan.options;
        for ((worker, number), run) in &self.known.executions {
            if run.did != Did::Runs || !self.well.contains_key(&run.site) {
                continue;
            }
            let record = self.known.jobs.get(&run.job).and_then(|rows| rows.record.as_ref());
            let held = record
                .and_then(|job| job.claim())
                .is_some_and(|claim| (&claim.worker, claim.number) == (worker, *number));
            let lost_us = self.known.changed_us[&run.job];
            let left = if self.known.externals.contains(worker) { LONG_OVERDUE } else { Duration::ZERO };
            if !held && self.is_older(lost_us, options.health_interval + options.stop_grace + SLACK + left) {
                let story = format!("{run:?} under {worker}/{number}, but it is {}", in_words(record));
                return broken("a run whose claim is lost stops", story);
            }
        }
        Ok(())
    }
}
