//! The results of a simulation: what each tenant got and was entitled to, and the figures of fairness.

use serde::Serialize;

use crate::policy::Policy;

/// What a policy did with a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// The policy that decided.
    pub policy: Policy,
    /// The most jobs that ran at once.
    pub slots: usize,
    /// The most jobs that one cycle preempted.
    pub churn: usize,
    /// The length of a cycle.
    pub interval_ms: u64,
    /// The number of simulated cycles.
    pub cycles: u64,
    /// Every tenant, in the scenario's order.
    pub tenants: Vec<TenantResults>,
    /// Moments after which a slot was free although a job waited. A policy that wastes nothing has none.
    pub idle_slot_passes: u64,
    /// Jobs that cycles preempted.
    pub stopped: u64,
    /// Every schedule, in the scenario's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleResults>,
    /// Every rate, in the scenario's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<RateResults>,
    /// What each tenant had got over time.
    pub series: Series,
}

/// What one tenant got. Service is in slot·cycles: one slot for the length of one cycle.
#[derive(Debug, Clone, Serialize)]
pub struct TenantResults {
    /// Its name.
    pub name: String,
    /// Its shares, at the end.
    pub shares: u32,
    /// Jobs that were added. A job that was deleted and added again counts again.
    pub jobs: u64,
    /// What it was entitled to.
    pub entitled: f64,
    /// What it got.
    pub received: f64,
    /// How long it had jobs, in cycles.
    pub present_cycles: f64,
    /// How long it had more jobs than slots were due to it, in cycles.
    pub hungry_cycles: f64,
    /// Runs that were started.
    pub starts: u64,
    /// Jobs that ran to their end.
    pub completed: u64,
    /// Jobs that waited at the end.
    pub still_waiting: usize,
    /// The longest wait for a slot of one of its jobs, up to its start, its deletion or the end.
    pub longest_wait_cycles: f64,
    /// The mean of all waits.
    pub mean_wait_cycles: f64,
}

/// What equal schedules did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ScheduleResults {
    /// Their name.
    pub name: String,
    /// Their tenant.
    pub tenant: String,
    /// How often they fired, while the tenant was there.
    pub fires: u64,
    /// Those that a change of clocks has moved.
    pub moved: u64,
    /// Those that added no job, because an earlier one had not ended.
    pub skipped: u64,
    /// Those that have cancelled an earlier job.
    pub cancelled: u64,
    /// The longest time from the instant of a fire to the start of its job, or to the end of the simulation if it waited then. It contains the jitter.
    pub longest_delay_ms: u64,
}

/// What a rate did.
#[derive(Debug, Clone, Serialize)]
pub struct RateResults {
    /// Its name.
    pub name: String,
    /// The most starts per period.
    pub at_most: u32,
    /// The length of the period.
    pub per_ms: u64,
    /// The starts that it has counted.
    pub starts: u64,
    /// The most starts that a bucket had in any period.
    pub highest_use: u64,
    /// The part of the time in which a job waited because of it, 0 to 1.
    pub reason_share: f64,
}

impl TenantResults {
    /// Received divided by entitled: 1 is fair.
    pub fn ratio(&self) -> f64 {
        match self.entitled > 0.0 {
            true => self.received / self.entitled,
            false => 1.0,
        }
    }

    /// Whether it had more jobs than slots were due to it for at least half of the time in which it had any. Only
    /// such tenants compete. A tenant with fewer jobs gets all that it asks for, unless the policy starves it.
    pub fn is_backlogged(&self) -> bool {
        self.hungry_cycles * 2.0 >= self.present_cycles && self.hungry_cycles > 0.0
    }

    /// The slots that it held on average while it had jobs.
    pub fn slots(&self) -> f64 {
        self.received / self.present_cycles.max(f64::MIN_POSITIVE)
    }
}

impl Results {
    /// Jain's index of the backlogged tenants' ratios: 1 if all are equal, 1/n if one of n gets everything. It is also 1
    /// if no tenant is backlogged.
    pub fn jain(&self) -> f64 {
        jain(self.backlogged().map(TenantResults::ratio))
    }

    /// The tenants that compete.
    pub fn backlogged(&self) -> impl Iterator<Item = &TenantResults> {
        self.tenants.iter().filter(|tenant| tenant.is_backlogged())
    }

    /// The largest `|received / entitled − 1|` among backlogged tenants.
    pub fn largest_deviation(&self) -> f64 {
        self.backlogged().map(|tenant| (tenant.ratio() - 1.0).abs()).fold(0.0, f64::max)
    }

    /// The utilisation of the slots: 1 if each was busy all the time.
    pub fn utilisation(&self) -> f64 {
        let received: f64 = self.tenants.iter().map(|tenant| tenant.received).sum();
        received / (self.slots as f64 * self.cycles as f64)
    }

    /// The utilisation of the slots, divided by the utilisation that the jobs could have reached.
    pub fn utilisation_of_possible(&self) -> f64 {
        let received: f64 = self.tenants.iter().map(|tenant| tenant.received).sum();
        let possible: f64 = self.tenants.iter().map(|tenant| tenant.entitled).sum();
        if possible > 0.0 { received / possible } else { 1.0 }
    }

    /// The longest wait of all jobs.
    pub fn longest_wait_cycles(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.longest_wait_cycles).fold(0.0, f64::max)
    }
}

/// Jain's index, `(Σx)² / (n · Σx²)`.
pub fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum, squares) =
        values.fold((0.0, 0.0, 0.0), |(n, sum, squares), x| (n + 1.0, sum + x, squares + x * x));
    if squares > 0.0 { sum * sum / (n * squares) } else { 1.0 }
}

/// What each tenant had got and had been entitled to over time. Both are sums since the start, in slot·µs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Series {
    /// The cycles after which the sums were recorded.
    pub cycles: Vec<u64>,
    /// Per tenant: what it had received by then.
    #[serde(skip)]
    pub received: Vec<Vec<f64>>,
    /// Per tenant: what it had been entitled to by then.
    #[serde(skip)]
    pub entitled: Vec<Vec<f64>>,
}

impl Series {
    pub(crate) fn new(tenants: usize) -> Self {
        Series {
            cycles: Vec::new(),
            received: vec![Vec::new(); tenants],
            entitled: vec![Vec::new(); tenants],
        }
    }

    pub(crate) fn push(&mut self, cycle: u64, now: impl Iterator<Item = (f64, f64)>) {
        self.cycles.push(cycle);
        for ((received, entitled), (now_received, now_entitled)) in
            self.received.iter_mut().zip(&mut self.entitled).zip(now)
        {
            received.push(now_received);
            entitled.push(now_entitled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_when_all_are_equal_and_one_nth_when_one_gets_everything() {
        assert_eq!(jain([2.0, 2.0, 2.0].into_iter()), 1.0);
        assert_eq!(jain([0.0, 0.0, 5.0, 0.0].into_iter()), 0.25);
        assert_eq!(jain(std::iter::empty()), 1.0);
    }
}
