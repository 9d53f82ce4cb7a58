//! Which jobs are preempted: at a cycle, and between cycles where one has nothing to do.
//!
//! It decides only who stops. A slot that becomes free is filled by the next pass, which takes the best that waits.
//!
//! A cycle, in this order:
//!
//! 1. *Excess.* More jobs than `max_jobs` run, because that was lowered: as many are stopped. Jobs that rotate first, those
//!    that run to their end only if no other ones are left.
//! 2. *Free slots.* As many of the jobs that wait as there are free slots need nobody's place.
//! 3. *Surplus.* Up to half of `max_churn` jobs that rotate are preempted for jobs of tenants with a larger deficit.
//! 4. *Longest running.* The other half rotates within tenants: the longest running is preempted for the one that
//!    has not been started for the longest time. Where a tenant's jobs are of several priority classes, those of the highest number are preempted
//!    first, for those of the lowest; none is preempted for one of a higher number.
//! 5. What one of the two does not need of its half the other one has.
//!
//! Without halves, many tenants whose shares make no whole slots would need all churn to pass slots to and fro among them, and a job of
//! a tenant that is owed nothing would never have its turn: of 500 tenants of random shares on 500 slots, with a churn of
//! 20, 135 had jobs that waited for more than twice what it takes to turn all jobs over. With halves, none.
//!
//! A job is never stopped for one that is owed less, and one that runs to its end never for another one at all.
//! The work is `O(running + waiting + churn · log tenants)`; how many jobs are pending does not matter, since at
//! most `max_churn` of each tenant are looked at.

pub mod balance;
mod rfc;
#[cfg(test)]
mod tests;
mod virtual_time;

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use crate::fair_share::virtual_time::Pace;

/// A number with a total order, for heaps and sorting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Float(pub f64);

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

/// What the configuration demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Jobs that run at most.
    pub max_jobs: usize,
    /// Jobs that are preempted in one cycle.
    pub max_churn: usize,
    /// How long a cycle is, in µs.
    pub interval_us: i64,
    /// How long a job runs at least before it gives its slot back for having nothing to do, in µs.
    pub idle_turn_us: i64,
}

/// A job that runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Running {
    /// The caller's number of it.
    pub job: usize,
    /// Index into the tenants.
    pub tenant: usize,
    /// Its key in the scheme of the RFC.
    pub key: f64,
    /// When it was started, in µs.
    pub started_us: i64,
    /// Its priority class: of its tenant's jobs, those of higher ones are preempted first, and none for one of a higher class.
    pub class: i8,
    /// It may be stopped for others, since it never ends by itself.
    pub continuous: bool,
    /// It has nothing to do just now.
    pub idle: bool,
}

/// A job that waits. Of each tenant at most `max_churn` in the order in which they will be started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    /// Index into the tenants.
    pub tenant: usize,
    /// Its key in the scheme of the RFC.
    pub key: f64,
    /// Its priority class.
    pub class: i8,
    /// When it was started the last time, or added, in µs.
    pub not_started_since_us: i64,
}

/// A tenant of jobs that run or wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tenant {
    /// Service received divided by shares, in virtual µs.
    pub tag: f64,
    /// What its running jobs are expected to cost yet, in µs.
    pub in_flight_us: f64,
    /// Its shares.
    pub shares: u32,
    /// What one of its jobs is expected to cost, in µs.
    pub expected_us: f64,
}

impl Tenant {
    /// Where its next job stands.
    pub(crate) fn next(&self, pace: &Pace) -> f64 {
        pace.position(self.tag, self.in_flight_us + self.expected_us / 2.0, self.shares, self.expected_us)
    }

    /// Where the last one of its running jobs stands.
    pub(crate) fn last(&self, pace: &Pace) -> f64 {
        pace.position(self.tag, self.in_flight_us - self.expected_us / 2.0, self.shares, self.expected_us)
    }
}

/// How it is known who is owed what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scheme {
    /// By tenants' tags, and how fast virtual time goes: [`Ledger::pace`](crate::fair_share::virtual_time::Ledger::pace).
    VirtualTime(Pace),
    /// By jobs' keys.
    Rfc,
}

/// Why a job is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// More jobs run than may.
    Excess,
    /// A job that waits is owed more.
    OwedLess,
    /// It has run for the longest time of those that are owed the same.
    LongestRunning,
    /// It has nothing to do, and others wait.
    Idle,
}

/// A job that is to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The caller's number of it.
    pub job: usize,
    /// Why.
    pub why: Why,
}

/// Jobs with the places of each tenant given to its own jobs by class, lower ones first. `of` tells a job's tenant and class. Places of a tenant, and the
/// order of its jobs within a class, stay as they are.
pub fn in_classes<T>(jobs: Vec<T>, of: impl Fn(&T) -> (usize, i16)) -> Vec<T> {
    let tenants: Vec<usize> = jobs.iter().map(|job| of(job).0).collect();
    let mut own: HashMap<usize, Vec<(i16, usize, T)>> = HashMap::new();
    for (place, job) in jobs.into_iter().enumerate() {
        let (tenant, class) = of(&job);
        own.entry(tenant).or_default().push((class, place, job));
    }
    for jobs in own.values_mut() {
        // They are taken from the end.
        jobs.sort_by_key(|(class, place, _)| Reverse((*class, *place)));
    }
    tenants.iter().filter_map(|tenant| own.get_mut(tenant)?.pop().map(|(.., job)| job)).collect()
}

/// Who is stopped at a cycle. Tenants have been charged for what ran until now, and `running` has no job that is being
/// stopped already.
pub fn rotate(
    scheme: Scheme,
    tenants: &[Tenant],
    running: &[Running],
    waiting: &[Waiting],
    rules: &Rules,
    now_us: i64,
) -> Vec<Stop> {
    match scheme {
        Scheme::VirtualTime(pace) => virtual_time::rotate(tenants, pace, running, waiting, rules, now_us),
        Scheme::Rfc => rfc::rotate(running, waiting, rules),
    }
}

/// Who is stopped between two cycles, because it has nothing to do and others wait: at most `max_churn`. A tenant that
/// is owed more than those that wait keeps its slots; but its own jobs take turns in them.
pub fn yield_idle(
    scheme: Scheme,
    tenants: &[Tenant],
    running: &[Running],
    waiting: &[Waiting],
    rules: &Rules,
    now_us: i64,
) -> Vec<Stop> {
    let has_had_its_turn = |job: &Running| {
        job.continuous && job.idle && now_us.saturating_sub(job.started_us) >= rules.idle_turn_us
    };
    let free = rules.max_jobs.saturating_sub(running.len());
    let idle: Vec<Running> = running.iter().filter(|job| has_had_its_turn(job)).copied().collect();
    match scheme {
        _ if idle.is_empty() || waiting.len() <= free => Vec::new(),
        Scheme::VirtualTime(pace) => virtual_time::yield_idle(tenants, pace, &idle, waiting, free, rules),
        Scheme::Rfc => rfc::yield_idle(&idle, waiting, free, rules),
    }
}
