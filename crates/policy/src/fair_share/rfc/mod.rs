//! Fair share as in CouchDB's RFC 017, "Fair Share Job Scheduling for CouchDB 3.x Replicator", after Kay and Lauder.
//!
//! Each tenant has a usage, and each job has a priority value. The job with the lowest value runs first:
//!
//! ```text
//! every t1, per tenant:       usage    = usage · K1 + what its jobs ran since the last time, in µs
//! every t2, per job:          priority = priority · K2
//! every t3, per running job:  priority = priority + usage(tenant) · jobs(tenant) / shares(tenant)²
//! a new job:                  priority =            usage(tenant) · jobs(tenant) / shares(tenant)²
//! ```
//!
//! A new job starts as if it had run one cycle, so a tenant that adds jobs all the time does not stay first. But a
//! job that has accumulated more than that gains if it is deleted and added again. Virtual time has no such weakness.
//!
//! Forces:
//!
//! - *No write to a waiting job.* All priorities shrink by the same factor at the same time, which changes no order.
//!   The stored value is `key = ln(priority) + V(t)`, where V grows by −ln K2 every t2 ([`Boost`]). The key stays the
//!   same while its job waits. When K2 or t2 change, V continues from its current value, so the order does not change
//!   either.
//! - *A priority of 0 has no logarithm*, and stays 0 for ever: its key is [`Key::ZERO`], finite and below all others.
//! - *No timer.* A [`Usage`] is rolled up when it is read, at the multiples of t1 that have passed since the last
//!   time, and a running job is charged at the multiples of t3. These moments are the same for all workers, so usages that
//!   several workers have charged can be added up.
//!
//! Source: "Fair Share Job Scheduling for CouchDB 3.x Replicator", and its reference, Kay and Lauder, "A Fair Share
//! Scheduler" (1988). Numbers are exact here; `tests/integers.rs` truncates where CouchDB does.

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// A smaller usage counts as none, in µs: its tenant is forgotten.
pub const LEAST_USAGE_US: f64 = 1_000.0;

/// The parameters of the model. All of them may change at any time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// K1: what is left of a usage after one `usage_interval_us`.
    pub usage_coeff: f64,
    /// K2: what is left of a priority value after one `priority_interval_us`.
    pub priority_coeff: f64,
    /// t1: how often usages are rolled up, in µs.
    pub usage_interval_us: i64,
    /// t2: how often priorities shrink, in µs.
    pub priority_interval_us: i64,
    /// t3: how often running jobs are charged, in µs.
    pub charge_interval_us: i64,
}

impl Rules {
    /// The allowed K1. With 1, a usage would never be forgotten.
    pub const USAGE_COEFF: RangeInclusive<f64> = 0.0..=0.999;
    /// The allowed K2. With 0, there would be no order. With 1, a job that has run would wait for all jobs that have
    /// not.
    pub const PRIORITY_COEFF: RangeInclusive<f64> = 0.001..=1.0;
    /// The allowed t1, t2 and t3, in µs: a second to a day.
    pub const INTERVAL_US: RangeInclusive<i64> = 1_000_000..=86_400_000_000;

    /// How often a job that ran from `after_us` until `until_us` is charged: at the multiples of t3, as every running job
    /// is. If the time since its start counted instead, runs shorter than t3 would never be charged, and the jobs with
    /// such runs would keep those out that were charged once.
    pub fn charges(&self, after_us: i64, until_us: i64) -> i64 {
        multiples(after_us, until_us, self.charge_interval_us)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            usage_coeff: 0.5,
            priority_coeff: 0.98,
            usage_interval_us: 60_000_000,
            priority_interval_us: 60_000_000,
            charge_interval_us: 60_000_000,
        }
    }
}

/// The growth of one running job's priority value at every t3, and the first value of a new job.
pub fn increment(usage_us: f64, jobs: u64, shares: u32) -> f64 {
    let shares = f64::from(shares.max(1));
    usage_us.max(0.0) * jobs as f64 / (shares * shares)
}

/// The number of multiples of `interval_us` that are later than `after_us`, and not later than `until_us`.
fn multiples(after_us: i64, until_us: i64, interval_us: i64) -> i64 {
    let interval_us = interval_us.max(1);
    (until_us.div_euclid(interval_us) - after_us.div_euclid(interval_us)).max(0)
}

/// `base` to the power of any integer.
fn power(base: f64, exponent: i64) -> f64 {
    base.powi(i32::try_from(exponent).unwrap_or(i32::MAX))
}

/// The decayed run time of a tenant's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// The usage as of the last roll-up, in µs.
    pub usage_us: f64,
    /// What was charged since then, in µs.
    pub accumulated_us: f64,
    /// The moment up to which it is rolled up, in µs.
    pub period: i64,
}

impl Usage {
    /// Charges a run time that ends now. At a multiple of t1, it still counts for the interval before.
    pub fn charge(&mut self, ran_us: f64, now_us: i64, rules: &Rules) {
        self.roll_up(now_us.saturating_sub(1), rules);
        self.accumulated_us += ran_us.max(0.0);
    }

    /// The usage now, in µs.
    pub fn at(self, now_us: i64, rules: &Rules) -> f64 {
        self.rolled_up(now_us, rules).usage_us
    }

    /// The usage now, and what was charged since then, in µs.
    pub fn with_fresh(self, now_us: i64, rules: &Rules) -> f64 {
        let Usage { usage_us, accumulated_us, .. } = self.rolled_up(now_us, rules);
        usage_us + accumulated_us
    }

    fn rolled_up(mut self, now_us: i64, rules: &Rules) -> Usage {
        self.roll_up(now_us, rules);
        self
    }

    /// Counts what was charged before the last multiple of t1. Call it before t1 or K1 change: the time until now is
    /// counted with the rules of this call.
    pub fn roll_up(&mut self, now_us: i64, rules: &Rules) {
        let times = multiples(self.period, now_us, rules.usage_interval_us);
        if times > 0 {
            let first = self.usage_us * rules.usage_coeff + self.accumulated_us;
            self.usage_us = first * power(rules.usage_coeff, times - 1);
            self.accumulated_us = 0.0;
        }
        self.period = self.period.max(now_us);
    }

    /// Whether so little is left of it that its tenant can be forgotten.
    pub fn is_forgotten(self, now_us: i64, rules: &Rules) -> bool {
        self.with_fresh(now_us, rules) < LEAST_USAGE_US
    }
}

/// V(t): the growing term of keys. It stands for the decay of priorities, so that the keys of waiting jobs stay. It is stored as it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Boost {
    /// V at the moment `at_us`.
    pub v: f64,
    /// The moment of `v`, in µs.
    pub at_us: i64,
    /// K2 since then.
    pub coeff: f64,
    /// t2 since then, in µs.
    pub interval_us: i64,
}

impl Boost {
    /// V starts at 0.
    pub fn new(now_us: i64, rules: &Rules) -> Boost {
        Boost { v: 0.0, at_us: now_us, coeff: rules.priority_coeff, interval_us: rules.priority_interval_us }
    }

    /// V now. It grows at the multiples of t2.
    pub fn at(&self, now_us: i64) -> f64 {
        let times = multiples(self.at_us, now_us, self.interval_us);
        let least = *Rules::PRIORITY_COEFF.start();
        self.v - self.coeff.clamp(least, 1.0).ln() * times as f64
    }

    /// V continues from its current value, with other rules.
    pub fn with_rules(&self, now_us: i64, rules: &Rules) -> Boost {
        Boost { v: self.at(now_us), ..Boost::new(now_us.max(self.at_us), rules) }
    }
}

/// A job's position in the order: `ln(priority) + V`. Time does not change it.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Key(f64);

impl Key {
    /// The key of a priority of 0, at any time.
    pub const ZERO: Key = Key(f64::MIN);

    /// The key of a priority value while V is `v`.
    pub fn of(priority: f64, v: f64) -> Key {
        Key::stored(priority.min(f64::MAX).ln() + v)
    }

    /// A key as it is stored. One that is not a finite number counts as a priority of 0.
    pub fn stored(key: f64) -> Key {
        if key.is_finite() { Key(key) } else { Key::ZERO }
    }

    /// The number to store: it is finite.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The priority value while V is `v`.
    pub fn priority(self, v: f64) -> f64 {
        (self.0 - v).exp().min(f64::MAX)
    }

    /// The key after the priority has grown by `increment` while V is `v`.
    pub fn add(self, increment: f64, v: f64) -> Key {
        if increment > 0.0 { Key::of(self.priority(v) + increment, v) } else { self }
    }
}
