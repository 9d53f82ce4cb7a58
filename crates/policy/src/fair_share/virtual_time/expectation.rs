//! What a tenant's next job is expected to cost: learnt from the last ones.

use std::collections::BTreeMap;

/// What a job costs at least, in µs: it is claimed, started and ended. Without this, jobs that end at once would be free,
/// and whoever has enough of them would have the slots for itself.
pub const LEAST_COST_US: f64 = 1_000.0;
/// What a job of a type that nothing is known about is expected to cost, in µs.
pub const UNKNOWN_COST_US: f64 = 1_000_000.0;
/// What the last job counts for, beside those before it; while there are fewer than that many, all count the same. With more, one would follow a
/// change sooner, but what ends last of a burst are its longest jobs: with a quarter, the next burst was expected to cost up to three times what it
/// did, and a quiet tenant beside it waited for up to 2.7 s instead of 0.6 (`examples/scenarios/bursts.toml`).
const WEIGHT: f64 = 1.0 / 32.0;
/// What was learnt elsewhere counts for as many jobs.
const LOADED_JOBS: f64 = 8.0;

/// An average of run times that follows the last ones.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Average {
    us: f64,
    /// How many went into it, up to `1 / WEIGHT`.
    jobs: f64,
}

impl Average {
    fn add(&mut self, ran_us: f64) {
        self.jobs = (self.jobs + 1.0).min(1.0 / WEIGHT);
        self.us += (ran_us - self.us) / self.jobs;
    }
}

/// Averages of the run times of a type's jobs: per tenant, and of all.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expectation {
    of_type: Option<Average>,
    tenants: BTreeMap<String, Average>,
}

impl Expectation {
    /// A job has run to its end.
    pub fn learn(&mut self, tenant: &str, ran_us: f64) {
        let us = ran_us.max(LEAST_COST_US);
        self.of_type.get_or_insert(Average { us, jobs: 0.0 }).add(us);
        match self.tenants.get_mut(tenant) {
            Some(known) => known.add(us),
            None => _ = self.tenants.insert(tenant.to_owned(), Average { us, jobs: 1.0 }),
        }
    }

    /// What was learnt before, or elsewhere.
    pub fn load(&mut self, tenant: &str, expected_us: f64) {
        let loaded = Average { us: expected_us.max(LEAST_COST_US), jobs: LOADED_JOBS };
        self.of_type.get_or_insert(loaded);
        match self.tenants.get_mut(tenant) {
            Some(known) => *known = loaded,
            None => _ = self.tenants.insert(tenant.to_owned(), loaded),
        }
    }

    /// What a tenant's next job will cost, in µs: of an unknown tenant as much as the type's, of an unknown type
    /// [`UNKNOWN_COST_US`].
    pub fn of(&self, tenant: &str) -> f64 {
        self.known_us(tenant).or(self.of_type.map(|known| known.us)).unwrap_or(UNKNOWN_COST_US)
    }

    /// Whether anything is known of the type.
    pub fn knows_type(&self) -> bool {
        self.of_type.is_some()
    }

    /// What is known of this tenant.
    pub fn known_us(&self, tenant: &str) -> Option<f64> {
        self.tenants.get(tenant).map(|known| known.us)
    }

    /// Forgets a tenant.
    pub fn forget(&mut self, tenant: &str) {
        self.tenants.remove(tenant);
    }
}
