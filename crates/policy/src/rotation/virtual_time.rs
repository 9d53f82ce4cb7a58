//! Rotation by virtual time: a slot moves from the tenant whose last job has the highest position to the one whose next job
//! has the lowest, as long as the first position is above the second.
//!
//! A move exchanges the `next` of one tenant and the `last` of the other. So no move is ever undone, and after the last one no two
//! tenants' deficits differ by a whole job.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Float, Rules, Running, Stop, Tenant, Waiting, Why};
use crate::fair_share::virtual_time::Pace;

/// Jobs by tenant, in their order.
struct Queues<'a, T> {
    jobs: Vec<&'a T>,
    /// For each tenant: the range of its remaining jobs in `jobs`.
    places: Vec<(usize, usize)>,
}

impl<'a, T> Queues<'a, T> {
    /// A stable sort: takes linear time if the jobs come tenant by tenant, as they mostly do.
    fn new(tenants: usize, jobs: impl Iterator<Item = &'a T>, tenant: impl Fn(&T) -> usize) -> Self {
        let mut jobs: Vec<&T> = jobs.collect();
        jobs.sort_by_key(|job| tenant(job));
        let mut places = vec![(0, 0); tenants];
        for (place, job) in jobs.iter().enumerate() {
            let (first, end) = &mut places[tenant(job)];
            if *end == 0 {
                *first = place;
            }
            *end = place + 1;
        }
        Queues { jobs, places }
    }

    fn first(&self, tenant: usize) -> Option<&'a T> {
        let (first, end) = self.places[tenant];
        self.jobs[first..end].first().copied()
    }

    fn is_empty(&self, tenant: usize) -> bool {
        self.first(tenant).is_none()
    }

    fn pop_first(&mut self, tenant: usize) -> Option<&'a T> {
        let job = self.first(tenant)?;
        self.places[tenant].0 += 1;
        Some(job)
    }
}

/// The tenants, while slots move between them.
struct Balance<'a> {
    tenants: Vec<Tenant>,
    pace: Pace,
    /// The jobs of each tenant that can be stopped: the highest priority first, then the longest running.
    running: Queues<'a, Running>,
    /// The waiting jobs of each tenant.
    waiting: Queues<'a, Waiting>,
    /// Tenants with a waiting job, the lowest `next` first. Entries whose number has changed since are skipped.
    lowest: BinaryHeap<Reverse<(Float, usize)>>,
    /// Tenants with a job that can be stopped, the highest `last` first, likewise.
    highest: BinaryHeap<(Float, Reverse<usize>)>,
}

impl<'a> Balance<'a> {
    fn new(
        tenants: &[Tenant],
        pace: Pace,
        running: impl Iterator<Item = &'a Running>,
        waiting: &'a [Waiting],
    ) -> Balance<'a> {
        let mut balance = Balance {
            tenants: tenants.to_vec(),
            pace,
            running: Queues::new(tenants.len(), std::iter::empty(), |job: &Running| job.tenant),
            waiting: Queues::new(tenants.len(), waiting.iter(), |job| job.tenant),
            lowest: BinaryHeap::new(),
            highest: BinaryHeap::new(),
        };
        balance.replace_running(running);
        for tenant in 0..tenants.len() {
            balance.enter_waiting(tenant);
        }
        balance
    }

    /// Replaces the jobs that can be stopped.
    fn replace_running(&mut self, running: impl Iterator<Item = &'a Running>) {
        let mut running: Vec<&Running> = running.collect();
        running.sort_by_key(|job| (Reverse(job.priority), job.started_us));
        self.running = Queues::new(self.tenants.len(), running.into_iter(), |job| job.tenant);
        self.highest.clear();
        for tenant in 0..self.tenants.len() {
            self.enter_running(tenant);
        }
    }

    fn next(&self, tenant: usize) -> f64 {
        self.tenants[tenant].next(&self.pace)
    }

    fn last(&self, tenant: usize) -> f64 {
        self.tenants[tenant].last(&self.pace)
    }

    fn enter_waiting(&mut self, tenant: usize) {
        if !self.waiting.is_empty(tenant) {
            self.lowest.push(Reverse((Float(self.next(tenant)), tenant)));
        }
    }

    fn enter_running(&mut self, tenant: usize) {
        if !self.running.is_empty(tenant) {
            self.highest.push((Float(self.last(tenant)), Reverse(tenant)));
        }
    }

    fn has_changed(&mut self, tenant: usize, by_us: f64) {
        self.tenants[tenant].in_flight_us += by_us;
        self.enter_waiting(tenant);
        self.enter_running(tenant);
    }

    /// The tenant whose next job has the lowest position, with that position.
    fn lowest(&mut self) -> Option<(f64, usize)> {
        while let Some(Reverse((Float(next), tenant))) = self.lowest.peek().copied() {
            if !self.waiting.is_empty(tenant) && next.total_cmp(&self.next(tenant)).is_eq() {
                return Some((next, tenant));
            }
            self.lowest.pop();
        }
        None
    }

    /// The tenant whose last job has the highest position, with that position.
    fn highest(&mut self) -> Option<(f64, usize)> {
        while let Some((Float(last), Reverse(tenant))) = self.highest.peek().copied() {
            if !self.running.is_empty(tenant) && last.total_cmp(&self.last(tenant)).is_eq() {
                return Some((last, tenant));
            }
            self.highest.pop();
        }
        None
    }

    /// The next job of a tenant will be started.
    fn starts(&mut self, tenant: usize) {
        self.waiting.pop_first(tenant);
        self.has_changed(tenant, self.tenants[tenant].expected_us);
    }

    /// The longest running job of a tenant is stopped.
    fn stops(&mut self, tenant: usize) -> Option<usize> {
        let job = self.running.pop_first(tenant)?;
        self.has_changed(tenant, -self.tenants[tenant].expected_us);
        Some(job.job)
    }

    /// Stops a job of the tenant with the highest position.
    fn stop_highest(&mut self) -> Option<usize> {
        let (_, tenant) = self.highest()?;
        self.stops(tenant)
    }

    fn fill(&mut self, free: usize) {
        for _ in 0..free {
            let Some((_, tenant)) = self.lowest() else { break };
            self.starts(tenant);
        }
    }

    /// Moves one slot from one tenant to another, if their positions demand it. Returns the job that stops.
    fn swap(&mut self) -> Option<usize> {
        let ((next, starting), (last, stopping)) = (self.lowest()?, self.highest()?);
        if next >= last {
            return None;
        }
        let job = self.stops(stopping)?;
        self.starts(starting);
        Some(job)
    }

    /// Rotates up to `most` slots within their tenants. Tenants whose next job was started longest ago come first.
    fn rotate_within(&mut self, most: usize, may_stop: impl Fn(&Running) -> bool) -> Vec<usize> {
        let mut stops = Vec::new();
        let since = |waiting: &Queues<'_, Waiting>, tenant| {
            waiting.first(tenant).map(|job| Reverse((job.not_started_since_us, tenant)))
        };
        let mut longest: BinaryHeap<_> =
            (0..self.tenants.len()).filter_map(|tenant| since(&self.waiting, tenant)).collect();
        while stops.len() < most
            && let Some(Reverse((_, tenant))) = longest.pop()
        {
            // A job takes no turn in the slot of a job with a lower priority.
            let priority = self.waiting.first(tenant).map_or(i8::MAX, |job| job.priority);
            if self.running.first(tenant).is_some_and(|job| job.priority >= priority && may_stop(job))
                && let Some(running) = self.running.pop_first(tenant)
            {
                stops.push(running.job);
                self.waiting.pop_first(tenant);
                longest.extend(since(&self.waiting, tenant));
            }
        }
        stops
    }
}

pub(super) fn rotate(
    tenants: &[Tenant],
    pace: Pace,
    running: &[Running],
    waiting: &[Waiting],
    rules: &Rules,
    now_us: i64,
) -> Vec<Stop> {
    let rotating = || running.iter().filter(|job| job.continuous);
    let mut balance = Balance::new(tenants, pace, rotating(), waiting);
    let mut stops = Vec::new();
    let mut stop = |job: usize, why: Why| stops.push(Stop { job, why });

    let mut excess = running.len().saturating_sub(rules.max_jobs);
    while excess > 0
        && let Some(job) = balance.stop_highest()
    {
        stop(job, Why::Excess);
        excess -= 1;
    }
    if excess > 0 {
        balance.replace_running(running.iter().filter(|job| !job.continuous));
        for _ in 0..excess {
            let Some(job) = balance.stop_highest() else { break };
            stop(job, Why::Excess);
        }
        return stops;
    }

    balance.fill(rules.max_jobs.saturating_sub(running.len()));
    // The turn of a job that was started in the second half of the last cycle is not over.
    let has_had_its_turn = |job: &Running| now_us.saturating_sub(job.started_us) >= rules.interval_us / 2;
    // One half of the churn is for tenants with deficits, the other one for turns within tenants. Then both again, with what is
    // left of either half. An odd job counts to one half in even cycles, and to the other half in odd ones.
    let cycle = now_us.div_euclid(rules.interval_us.max(1));
    let mut left = rules.max_churn;
    for most in [if cycle % 2 == 0 { left.div_ceil(2) } else { left / 2 }, left] {
        for _ in 0..most.min(left) {
            let Some(job) = balance.swap() else { break };
            stop(job, Why::LargerDeficit);
            left -= 1;
        }
        for job in balance.rotate_within(left, has_had_its_turn) {
            stop(job, Why::LongestRunning);
            left -= 1;
        }
    }
    stops
}

pub(super) fn yield_idle(
    tenants: &[Tenant],
    pace: Pace,
    idle: &[Running],
    waiting: &[Waiting],
    free: usize,
    rules: &Rules,
) -> Vec<Stop> {
    let mut balance = Balance::new(tenants, pace, idle.iter(), waiting);
    balance.fill(free);
    let mut jobs = Vec::new();
    while jobs.len() < rules.max_churn
        && let Some(job) = balance.swap()
    {
        jobs.push(job);
    }
    let left = rules.max_churn - jobs.len();
    jobs.extend(balance.rotate_within(left, |_| true));
    jobs.into_iter().map(|job| Stop { job, why: Why::Idle }).collect()
}
