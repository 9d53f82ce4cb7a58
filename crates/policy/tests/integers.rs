//! CouchDB's fair-share scheduling (RFC 017) in integers, truncated where CouchDB truncates, to compare it with recorded runs of CouchDB.
//! `turnwise-simulate` compares its own implementation with this one, too.
//!
//! Usages and priorities are integers, in µs. Each decay and each charge drops the fraction. A priority or a usage
//! that reaches 0 is forgotten.

use std::collections::BTreeMap;

use turnwise_policy::fair_share::Shares;
use turnwise_policy::fair_share::rfc::Rules;

/// All tenants' usages and all jobs' priorities.
#[derive(Debug, Clone, Default)]
pub struct Integers {
    usage: BTreeMap<String, u64>,
    accumulated: BTreeMap<String, u64>,
    jobs: BTreeMap<String, u64>,
    priority: BTreeMap<String, u64>,
}

impl Integers {
    /// Adds a job of a tenant. Its priority starts as if it had run one cycle.
    pub fn added(&mut self, tenant: &str, id: &str, shares: &Shares) {
        *self.jobs.entry(tenant.to_owned()).or_default() += 1;
        self.grow(tenant, id, shares);
    }

    /// A job of a tenant has run for this long.
    pub fn charge(&mut self, tenant: &str, ran_us: u64) {
        *self.accumulated.entry(tenant.to_owned()).or_default() += ran_us;
    }

    /// Runs one cycle: rolls up usages, decays priorities, and charges the running jobs (tenant and id).
    pub fn cycle<'a>(
        &mut self,
        running: impl IntoIterator<Item = (&'a str, &'a str)>,
        rules: &Rules,
        shares: &Shares,
    ) {
        decay(&mut self.usage, rules.usage_coeff);
        for (tenant, charged) in std::mem::take(&mut self.accumulated) {
            *self.usage.entry(tenant).or_default() += charged;
        }
        decay(&mut self.priority, rules.priority_coeff);
        for (tenant, id) in running {
            self.grow(tenant, id, shares);
        }
    }

    /// A tenant's usage, in µs.
    pub fn usage_us(&self, tenant: &str) -> u64 {
        self.usage.get(tenant).copied().unwrap_or(0)
    }

    /// A job's priority value.
    pub fn priority(&self, id: &str) -> u64 {
        self.priority.get(id).copied().unwrap_or(0)
    }

    fn grow(&mut self, tenant: &str, id: &str, shares: &Shares) {
        let jobs = self.jobs.get(tenant).copied().unwrap_or(0);
        let squared = u64::from(shares.of(tenant)).pow(2);
        let increment = self.usage_us(tenant).saturating_mul(jobs) / squared;
        if increment > 0 {
            *self.priority.entry(id.to_owned()).or_default() += increment;
        }
    }
}

fn decay(values: &mut BTreeMap<String, u64>, coeff: f64) {
    values.retain(|_, value| {
        *value = (*value as f64 * coeff) as u64;
        *value > 0
    });
}
