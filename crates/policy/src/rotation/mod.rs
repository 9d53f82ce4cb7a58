//! Preemption: which running jobs are stopped for waiting ones, at a worker's cycles and, if jobs are idle, between them.
//!
//! This is the last step of [`schedule`](mod@crate::schedule). It decides only which jobs stop. A slot that becomes free is filled
//! by the next pass, with the best waiting job.
//!
//! A cycle has these steps, in this order:
//!
//! 1. *Excess.* If more than `max_jobs` jobs run, because the setting was lowered, the excess is stopped. Continuous jobs stop
//!    first. One-shot jobs stop only if no continuous ones are left.
//! 2. *Free slots.* As many waiting jobs as there are free slots need no other job's slot.
//! 3. *Deficits.* Up to half of `max_churn` continuous jobs are preempted for jobs of tenants with a larger deficit.
//! 4. *Longest running.* The other half rotates within tenants: the longest running job is preempted for the one that was
//!    started longest ago. If a tenant's jobs have several priorities, jobs of the highest number are preempted first,
//!    for jobs of the lowest. No job is preempted for one of a higher number.
//! 5. What one of these two steps leaves of its half is the other one's.
//! 6. *Balance.* With what is left of `max_churn`, a worker gives continuous jobs back if other workers are emptier
//!    ([`balance`]).
//!
//! The halves prevent starvation. Without them, many tenants whose shares are not whole numbers of slots use all the churn to
//! pass slots among each other, and a job of a tenant without a deficit never gets its turn. Measured with 500 tenants of random
//! shares on 500 slots and a churn of 20: 135 tenants had jobs that waited for more than twice the time in which all jobs turn
//! over. With halves, none had.
//!
//! A job is never preempted for a job of a tenant with a smaller deficit. A one-shot job is never preempted.
//! The work is `O(running + waiting + churn · log tenants)`. The number of pending jobs does not matter, since at most
//! `max_churn` of each tenant are read.

pub mod balance;
mod rfc;
#[cfg(test)]
mod tests;
mod virtual_time;

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};

use crate::fair_share::virtual_time::Pace;

/// A number with a total order, for heaps and sorting.
#[derive(Debug, Clone, Copy)]
pub struct Float(pub f64);

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Float {}

impl PartialOrd for Float {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Float {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// The maximum number of jobs that run.
    pub max_jobs: usize,
    /// The maximum number of jobs that are preempted in one cycle.
    pub max_churn: usize,
    /// The time between two cycles, in µs.
    pub interval_us: i64,
    /// The minimum time that a job runs before it is preempted for being idle, in µs.
    pub idle_turn_us: i64,
}

/// When jobs are preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// At a cycle.
    Cycle,
    /// Between two cycles: only idle jobs are preempted.
    Idle,
}

/// What preemption depends on.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// When it is.
    pub moment: Moment,
    /// How deficits are known.
    pub scheme: Scheme,
    /// The tenants of the jobs, charged for all run time until now.
    pub tenants: &'a [Tenant],
    /// The worker's running jobs, without those that are stopping already.
    pub running: &'a [Running],
    /// The jobs that could start instead.
    pub waiting: &'a [Waiting],
    /// The number of workers that decide at the same time, and cannot see each other's decisions: each preempts only its
    /// part for tenants with a deficit.
    pub simultaneous: usize,
    /// The loads of all workers, and the index of this one, if jobs may be given back now.
    pub loads: Option<(usize, &'a [balance::Load])>,
}

impl<'a> View<'a> {
    /// A cycle of the only worker.
    pub fn cycle(
        scheme: Scheme,
        tenants: &'a [Tenant],
        running: &'a [Running],
        waiting: &'a [Waiting],
    ) -> View<'a> {
        View { moment: Moment::Cycle, scheme, tenants, running, waiting, simultaneous: 1, loads: None }
    }
}

/// A running job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Running {
    /// The caller's number of the job.
    pub job: usize,
    /// Index into the tenants.
    pub tenant: usize,
    /// Its key under CouchDB's fair-share scheduling.
    pub key: f64,
    /// When it was started, in µs.
    pub started_us: i64,
    /// Its priority. Of a tenant's jobs, those with higher numbers are preempted first, and none for one with a higher number.
    pub priority: i8,
    /// It never ends by itself, and may be preempted.
    pub continuous: bool,
    /// It has nothing to do now.
    pub idle: bool,
    /// It declares locks: it is given back to other workers last.
    pub locks: bool,
}

/// A waiting job. Of each tenant there are at most `max_churn`, in the order in which they will be started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    /// Index into the tenants.
    pub tenant: usize,
    /// Its key under CouchDB's fair-share scheduling.
    pub key: f64,
    /// Its priority.
    pub priority: i8,
    /// When it was last started, or added, in µs.
    pub not_started_since_us: i64,
}

/// A tenant with running or waiting jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tenant {
    /// Service received divided by shares, in virtual µs.
    pub tag: f64,
    /// The expected remaining cost of its running jobs, in µs.
    pub in_flight_us: f64,
    /// Its shares.
    pub shares: u32,
    /// The expected cost of one of its jobs, in µs.
    pub expected_us: f64,
}

impl Tenant {
    /// The position of its next job in virtual time.
    pub(crate) fn next(&self, pace: &Pace) -> f64 {
        pace.position(self.tag, self.in_flight_us + self.expected_us / 2.0, self.shares, self.expected_us)
    }

    /// The position of its last running job in virtual time.
    pub(crate) fn last(&self, pace: &Pace) -> f64 {
        pace.position(self.tag, self.in_flight_us - self.expected_us / 2.0, self.shares, self.expected_us)
    }
}

/// How the deficits of tenants are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scheme {
    /// By the tenants' tags, and the pace of virtual time: [`Ledger::pace`](crate::fair_share::virtual_time::Ledger::pace).
    VirtualTime(Pace),
    /// By the jobs' keys: CouchDB's fair-share scheduling (RFC 017).
    Rfc,
}

/// Why a job is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// More than `max_jobs` jobs run.
    Excess,
    /// The tenant of a waiting job has a larger deficit.
    LargerDeficit,
    /// It has run for the longest time among the jobs of tenants with the same deficit.
    LongestRunning,
    /// It is idle, and other jobs wait.
    Idle,
    /// Another worker has room for it.
    EmptierWorker,
}

/// A job that stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The caller's number of the job.
    pub job: usize,
    /// Why.
    pub why: Why,
}

/// Reorders each tenant's jobs by priority, lower priorities first. `of` returns a job's tenant and priority. The places of a tenant in
/// the list, and the order of its jobs within a priority, stay the same.
pub fn by_priority<T>(jobs: Vec<T>, of: impl Fn(&T) -> (usize, i16)) -> Vec<T> {
    let tenants: Vec<usize> = jobs.iter().map(|job| of(job).0).collect();
    let mut own: HashMap<usize, Vec<(i16, usize, T)>> = HashMap::new();
    for (place, job) in jobs.into_iter().enumerate() {
        let (tenant, priority) = of(&job);
        own.entry(tenant).or_default().push((priority, place, job));
    }
    for jobs in own.values_mut() {
        // They are taken from the end.
        jobs.sort_by_key(|(priority, place, _)| Reverse((*priority, *place)));
    }
    tenants.iter().filter_map(|tenant| own.get_mut(tenant)?.pop().map(|(.., job)| job)).collect()
}

/// The jobs to stop, and the number of jobs for which other workers have room.
pub(crate) fn preempt(view: &View<'_>, rules: &Rules, now_us: i64) -> (Vec<Stop>, usize) {
    let mut stop = match view.moment {
        Moment::Cycle => own_part(rotate(view, rules, now_us), view.simultaneous),
        Moment::Idle => yield_idle(view, rules, now_us),
    };
    let mut surplus = 0;
    let most = rules.max_churn.saturating_sub(stop.len());
    if let Some((own, loads)) = view.loads
        && most > 0
    {
        let mut loads = loads.to_vec();
        loads[own].running = loads[own].running.saturating_sub(stop.len());
        surplus = balance::surplus(own, &loads);
        give_back(view.running, surplus.min(most), &mut stop);
    }
    (stop, surplus)
}

/// The jobs that stop at a cycle.
fn rotate(view: &View<'_>, rules: &Rules, now_us: i64) -> Vec<Stop> {
    let View { tenants, running, waiting, .. } = *view;
    match view.scheme {
        Scheme::VirtualTime(pace) => virtual_time::rotate(tenants, pace, running, waiting, rules, now_us),
        Scheme::Rfc => rfc::rotate(running, waiting, rules),
    }
}

/// This worker's part of the jobs that stop for tenants with a larger deficit. All other stops are its own.
fn own_part(mut stops: Vec<Stop>, workers: usize) -> Vec<Stop> {
    let mut left =
        stops.iter().filter(|stop| stop.why == Why::LargerDeficit).count().div_ceil(workers.max(1));
    stops.retain(|stop| {
        let shared = stop.why == Why::LargerDeficit;
        let stays = !shared || left > 0;
        left = left.saturating_sub(usize::from(shared));
        stays
    });
    stops
}

/// The jobs that stop between two cycles, because they are idle and other jobs wait: at most `max_churn`. A tenant with a
/// larger deficit than the waiting ones keeps its slots, but its own jobs take turns in them.
fn yield_idle(view: &View<'_>, rules: &Rules, now_us: i64) -> Vec<Stop> {
    let View { tenants, running, waiting, .. } = *view;
    let has_had_its_turn = |job: &Running| {
        job.continuous && job.idle && now_us.saturating_sub(job.started_us) >= rules.idle_turn_us
    };
    let free = rules.max_jobs.saturating_sub(running.len());
    let idle: Vec<Running> = running.iter().filter(|job| has_had_its_turn(job)).copied().collect();
    match view.scheme {
        _ if idle.is_empty() || waiting.len() <= free => Vec::new(),
        Scheme::VirtualTime(pace) => virtual_time::yield_idle(tenants, pace, &idle, waiting, free, rules),
        Scheme::Rfc => rfc::yield_idle(&idle, waiting, free, rules),
    }
}

/// Gives continuous jobs back to emptier workers: first those without locks, of these the longest running.
fn give_back(running: &[Running], count: usize, stop: &mut Vec<Stop>) {
    let stopped: HashSet<usize> = stop.iter().map(|stop| stop.job).collect();
    let mut jobs: Vec<&Running> =
        running.iter().filter(|job| job.continuous && !stopped.contains(&job.job)).collect();
    jobs.sort_by_key(|job| (job.locks, job.started_us));
    stop.extend(jobs.into_iter().take(count).map(|job| Stop { job: job.job, why: Why::EmptierWorker }));
}
