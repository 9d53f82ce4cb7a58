//! What each tenant is entitled to: the weighted max-min share of the slots.
//!
//! At any moment, the slots are divided by shares among the tenants that have jobs, running or waiting. No tenant
//! gets more slots than it has jobs, and what it leaves is divided among the other tenants in the same way. So there
//! is a *level* λ, slots per share, with `entitled(tenant) = min(jobs, shares · λ)`. The sum of all is the number of
//! slots, or of jobs, if these are fewer. A tenant is *satisfied* if its jobs are the smaller of the two, otherwise
//! *hungry*.
//!
//! The entitlement over time is the integral. It is exact, and a change does not cost a visit to every tenant. A
//! hungry tenant is due its shares times the growth of `∫ λ dt`, and a satisfied one its jobs times the time. Both
//! kinds are sorted by jobs per share. A change moves the border between them by as many tenants as change from one
//! kind to the other.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// The entitlements of all tenants.
#[derive(Debug, Clone)]
pub struct Entitlement {
    slots: u64,
    now_us: i64,
    /// ∫ λ dt over the time in which any tenant was hungry, in slots·µs per share.
    level_us: f64,
    tenants: Vec<Tenant>,
    satisfied: BTreeSet<Ratio>,
    hungry: BTreeSet<Ratio>,
    /// The jobs of all satisfied tenants.
    satisfied_jobs: u64,
    /// The shares of all hungry tenants.
    hungry_shares: u64,
}

/// What one tenant has been due until now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Due {
    /// Its entitlement, in slots·µs.
    pub slot_us: f64,
    /// How long it had jobs.
    pub present_us: i64,
    /// How long it had more jobs than slots were due to it.
    pub hungry_us: i64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    jobs: u64,
    shares: u64,
    due: Due,
    since_us: i64,
    since_level_us: f64,
}

/// Jobs per share, and the tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ratio {
    jobs: u64,
    shares: u64,
    tenant: usize,
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let (mine, theirs) = (self.jobs * other.shares, other.jobs * self.shares);
        mine.cmp(&theirs).then(self.tenant.cmp(&other.tenant))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Entitlement {
    /// For `tenants` tenants without jobs.
    pub fn new(slots: u64, tenants: usize) -> Self {
        Entitlement {
            slots,
            now_us: 0,
            level_us: 0.0,
            tenants: vec![Tenant::default(); tenants],
            satisfied: BTreeSet::new(),
            hungry: BTreeSet::new(),
            satisfied_jobs: 0,
            hungry_shares: 0,
        }
    }

    /// Advances the time.
    pub fn advance(&mut self, now_us: i64) {
        assert!(now_us >= self.now_us, "time goes forward");
        if self.hungry_shares > 0 {
            let left = self.slots.saturating_sub(self.satisfied_jobs) as f64;
            self.level_us += left / self.hungry_shares as f64 * (now_us - self.now_us) as f64;
        }
        self.now_us = now_us;
    }

    /// Sets the tenant's jobs and shares from now on.
    pub fn set(&mut self, tenant: usize, jobs: u64, shares: u32) {
        self.settle(tenant);
        self.take_out(tenant);
        let entry = &mut self.tenants[tenant];
        (entry.jobs, entry.shares) = (jobs, u64::from(shares));
        if jobs > 0 {
            self.put_in(tenant, false);
        }
        self.balance();
    }

    /// What the tenant has been due until now.
    pub fn due(&mut self, tenant: usize) -> Due {
        self.settle(tenant);
        self.tenants[tenant].due
    }

    fn ratio(&self, tenant: usize) -> Ratio {
        let Tenant { jobs, shares, .. } = self.tenants[tenant];
        Ratio { jobs, shares, tenant }
    }

    fn settle(&mut self, tenant: usize) {
        let ratio = self.ratio(tenant);
        let hungry = ratio.jobs > 0 && self.hungry.contains(&ratio);
        let (now_us, level_us) = (self.now_us, self.level_us);
        let entry = &mut self.tenants[tenant];
        let passed_us = now_us - entry.since_us;
        if entry.jobs > 0 {
            entry.due.present_us += passed_us;
            if hungry {
                entry.due.hungry_us += passed_us;
                entry.due.slot_us += entry.shares as f64 * (level_us - entry.since_level_us);
            } else {
                entry.due.slot_us += entry.jobs as f64 * passed_us as f64;
            }
        }
        (entry.since_us, entry.since_level_us) = (now_us, level_us);
    }

    fn take_out(&mut self, tenant: usize) {
        let ratio = self.ratio(tenant);
        if self.hungry.remove(&ratio) {
            self.hungry_shares -= ratio.shares;
        } else if self.satisfied.remove(&ratio) {
            self.satisfied_jobs -= ratio.jobs;
        }
    }

    fn put_in(&mut self, tenant: usize, satisfied: bool) {
        let ratio = self.ratio(tenant);
        if satisfied {
            self.satisfied.insert(ratio);
            self.satisfied_jobs += ratio.jobs;
        } else {
            self.hungry.insert(ratio);
            self.hungry_shares += ratio.shares;
        }
    }

    fn cross(&mut self, tenant: usize, satisfied: bool) {
        self.settle(tenant);
        self.take_out(tenant);
        self.put_in(tenant, satisfied);
    }

    /// Moves the border until each tenant is on the right side.
    fn balance(&mut self) {
        // A tenant is satisfied if `jobs / shares ≤ (slots − other satisfied jobs) / (other hungry shares + shares)`. For a
        // satisfied tenant, the first comparison is equivalent, because `satisfied_jobs` includes its own jobs.
        while let Some(last) = self.satisfied.last().copied() {
            let left = i128::from(self.slots) - i128::from(self.satisfied_jobs);
            if i128::from(last.jobs) * i128::from(self.hungry_shares) <= left * i128::from(last.shares) {
                break;
            }
            self.cross(last.tenant, false);
        }
        while let Some(first) = self.hungry.first().copied() {
            let left = i128::from(self.slots) - i128::from(self.satisfied_jobs);
            if i128::from(first.jobs) * i128::from(self.hungry_shares) > left * i128::from(first.shares) {
                break;
            }
            self.cross(first.tenant, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The entitlements, found by trying every border.
    fn by_trying(slots: u64, tenants: &[(u64, u64)]) -> Vec<f64> {
        let mut order: Vec<usize> = (0..tenants.len()).filter(|n| tenants[*n].0 > 0).collect();
        order.sort_by(|a, b| {
            (tenants[*a].0 * tenants[*b].1).cmp(&(tenants[*b].0 * tenants[*a].1)).then(a.cmp(b))
        });
        let mut entitled = vec![0.0; tenants.len()];
        let mut left = slots as f64;
        let mut shares: u64 = order.iter().map(|n| tenants[*n].1).sum();
        for n in order {
            let (jobs, weight) = tenants[n];
            entitled[n] = (jobs as f64).min(left * weight as f64 / shares as f64);
            left -= entitled[n];
            shares -= weight;
        }
        entitled
    }

    #[test]
    fn slots_are_divided_by_shares() {
        let mut due = Entitlement::new(75, 3);
        for (tenant, shares) in [100, 700, 200].into_iter().enumerate() {
            due.set(tenant, 100, shares);
        }
        due.advance(10);
        for (tenant, slots) in [7.5, 52.5, 15.0].into_iter().enumerate() {
            let due = due.due(tenant);
            assert!((due.slot_us / 10.0 - slots).abs() < 1e-9, "{due:?}");
            assert_eq!((due.present_us, due.hungry_us), (10, 10));
        }
    }

    #[test]
    fn what_one_tenant_leaves_goes_to_the_others() {
        let mut due = Entitlement::new(20, 3);
        due.set(0, 2, 1000);
        due.set(1, 200, 100);
        due.set(2, 2000, 50);
        due.advance(6);
        assert_eq!([0, 1, 2].map(|n| due.due(n).slot_us), [12.0, 72.0, 36.0]);
        assert_eq!([0, 1, 2].map(|n| due.due(n).hungry_us), [0, 6, 6]);
        // It becomes hungry when it has more jobs.
        due.set(0, 100, 50);
        due.advance(8);
        assert_eq!([0, 1, 2].map(|n| due.due(n).slot_us), [22.0, 92.0, 46.0]);
    }

    #[test]
    fn no_tenant_is_due_more_than_its_jobs() {
        let mut due = Entitlement::new(20, 2);
        due.set(0, 3, 1);
        due.set(1, 4, 1000);
        due.advance(2);
        due.set(1, 0, 1000);
        due.advance(4);
        assert_eq!([0, 1].map(|n| due.due(n).slot_us), [12.0, 8.0]);
        assert_eq!([0, 1].map(|n| due.due(n).present_us), [4, 2]);
    }

    proptest! {
        #[test]
        fn prop_entitlements_equal_those_found_by_trying_every_border(
            slots in 1_u64..60,
            changes in proptest::collection::vec((0_usize..6, 0_u64..40, 1_u32..1000, 0_i64..5), 1..40),
        ) {
            let mut due = Entitlement::new(slots, 6);
            let mut tenants = vec![(0, 1); 6];
            let mut expected = vec![0.0; 6];
            let mut now = 0;
            for (tenant, jobs, shares, passes) in changes {
                due.set(tenant, jobs, shares);
                tenants[tenant] = (jobs, u64::from(shares));
                now += passes;
                due.advance(now);
                for (sum, slots) in expected.iter_mut().zip(by_trying(slots, &tenants)) {
                    *sum += slots * passes as f64;
                }
            }
            for (tenant, expected) in expected.into_iter().enumerate() {
                let got = due.due(tenant).slot_us;
                prop_assert!((got - expected).abs() < 1e-6, "{tenant}: {got} {expected}");
            }
        }
    }
}
