//! The expected cost of a tenant's next job: an average of the last ones.
//!
//! A job that names a task is expected to run as long as the last jobs of this task, of all tenants, once some have ended. The cost
//! of a tenant's *next* job stays an average over all its tasks: which of them is next is known only when the job starts.

use std::collections::BTreeMap;

/// The least cost of a job, in µs: it is claimed, started and ended. Without it, jobs that end at once would be free,
/// and a tenant with enough of them would take all slots.
pub const LEAST_COST_US: f64 = 1_000.0;
/// The expected cost of a job, in µs, if nothing is known about its type.
pub const UNKNOWN_COST_US: f64 = 1_000_000.0;
/// The weight of the last job in the average. While fewer than `1 / WEIGHT` jobs have ended, all count the same. A
/// larger weight follows changes sooner, but the last jobs of a burst to end are its longest. With 1/4, the next
/// burst was expected to cost up to three times its real cost. A quiet tenant beside it then waited for up to 2.7 s,
/// instead of 0.6 s (`examples/scenarios/bursts.toml`).
const WEIGHT: f64 = 1.0 / 32.0;
/// An average that another worker has learnt counts as this many jobs.
const LOADED_JOBS: f64 = 8.0;

/// The most tasks of a type that have an average. Another one replaces the task whose last run ended first.
pub const MAX_TASKS: usize = 200;
/// A task has an average once this many of its runs have ended.
const LEAST_RUNS: f64 = 3.0;

/// A moving average of run times.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Average {
    us: f64,
    /// The number of jobs in the average, up to `1 / WEIGHT`.
    jobs: f64,
}

impl Average {
    fn add(&mut self, ran_us: f64) {
        self.jobs = (self.jobs + 1.0).min(1.0 / WEIGHT);
        self.us += (ran_us - self.us) / self.jobs;
    }
}

/// Averages of the run times of one type's jobs: per tenant, per task, and over all.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expectation {
    of_type: Option<Average>,
    tenants: BTreeMap<String, Average>,
    /// Each with the number of the run that ended last.
    tasks: BTreeMap<String, (Average, u64)>,
    /// The number of runs of jobs with tasks that have ended.
    runs: u64,
}

impl Expectation {
    /// A job of a tenant has run to its end.
    pub fn learn(&mut self, tenant: &str, ran_us: f64) {
        let us = ran_us.max(LEAST_COST_US);
        self.of_type.get_or_insert(Average { us, jobs: 0.0 }).add(us);
        match self.tenants.get_mut(tenant) {
            Some(known) => known.add(us),
            None => _ = self.tenants.insert(tenant.to_owned(), Average { us, jobs: 1.0 }),
        }
    }

    /// Sets a tenant's average to one that was learnt earlier, or by another worker.
    pub fn load(&mut self, tenant: &str, expected_us: f64) {
        let loaded = Average { us: expected_us.max(LEAST_COST_US), jobs: LOADED_JOBS };
        self.of_type.get_or_insert(loaded);
        match self.tenants.get_mut(tenant) {
            Some(known) => *known = loaded,
            None => _ = self.tenants.insert(tenant.to_owned(), loaded),
        }
    }

    /// A job of a task has run to its end.
    pub fn learn_task(&mut self, task: &str, ran_us: f64) {
        let us = ran_us.max(LEAST_COST_US);
        self.task(task, Average { us, jobs: 0.0 }).add(us);
    }

    /// Sets a task's average to one that was learnt earlier, or by another worker, if there is room.
    pub fn load_task(&mut self, task: &str, expected_us: f64) {
        if self.tasks.contains_key(task) || self.tasks.len() < MAX_TASKS {
            let loaded = Average { us: expected_us.max(LEAST_COST_US), jobs: LOADED_JOBS };
            *self.task(task, loaded) = loaded;
        }
    }

    /// The average of a task, which is now the last one that was used.
    fn task(&mut self, task: &str, new: Average) -> &mut Average {
        self.runs += 1;
        if !self.tasks.contains_key(task) {
            if self.tasks.len() >= MAX_TASKS {
                let oldest = self.tasks.iter().min_by_key(|(_, (_, last))| *last);
                let oldest = oldest.map(|(task, _)| task.clone());
                oldest.and_then(|oldest| self.tasks.remove(&oldest));
            }
            self.tasks.insert(task.to_owned(), (new, 0));
        }
        let (average, last) = self.tasks.get_mut(task).expect("it is there now");
        *last = self.runs;
        average
    }

    /// The average of a task in µs, if enough of its runs have ended.
    pub fn of_task(&self, task: &str) -> Option<f64> {
        self.tasks.get(task).filter(|(known, _)| known.jobs >= LEAST_RUNS).map(|(known, _)| known.us)
    }

    /// The tasks with an average, by name.
    pub fn tasks(&self) -> impl Iterator<Item = (&str, f64)> {
        let known = self.tasks.iter().filter(|(_, (known, _))| known.jobs >= LEAST_RUNS);
        known.map(|(task, (known, _))| (task.as_str(), known.us))
    }

    /// The expected cost of a tenant's next job, in µs: the tenant's average, else the type's, else
    /// [`UNKNOWN_COST_US`].
    pub fn of(&self, tenant: &str) -> f64 {
        self.known_us(tenant).or(self.of_type.map(|known| known.us)).unwrap_or(UNKNOWN_COST_US)
    }

    /// Whether the type has an average.
    pub fn knows_type(&self) -> bool {
        self.of_type.is_some()
    }

    /// The tenant's average in µs, if it has one.
    pub fn known_us(&self, tenant: &str) -> Option<f64> {
        self.tenants.get(tenant).map(|known| known.us)
    }

    /// Forgets a tenant.
    pub fn forget(&mut self, tenant: &str) {
        self.tenants.remove(tenant);
    }
}
