//! Fair share as the CouchDB replicator's proposal describes it, after Kay and Lauder.
//!
//! Per tenant a usage, per job a priority value; the lowest runs first:
//!
//! ```text
//! every t1, per tenant:       usage    = usage · K1 + what its jobs ran since the last time, in µs
//! every t2, per job:          priority = priority · K2
//! every t3, per running job:  priority = priority + usage(tenant) · jobs(tenant) / shares(tenant)²
//! a new job:                  priority =            usage(tenant) · jobs(tenant) / shares(tenant)²
//! ```
//!
//! A new job starts as if it had run one cycle, so adding jobs all the time does not keep their tenant in front. But a job that has
//! accumulated more than that does gain by being deleted and added again; virtual time has no such weakness.
//!
//! Forces:
//!
//! - *No write to a job that waits.* All priorities shrink by the same factor at the same time, which changes no order.
//!   What is stored is `key = ln(priority) + V(t)`, where V grows by −ln K2 every t2 ([`Boost`]): it stays the same while
//!   its job waits. V goes on from where it is if K2 or t2 change, so that these change no order either.
//! - *A priority of 0 has no logarithm*, and stays 0 for ever: its key is [`Key::ZERO`], finite and below all others.
//! - *Nobody ticks.* A [`Usage`] is rolled up when it is looked at, at the multiples of t1 that have passed since. These are
//!   the same moments for everyone, so usages that several workers have charged can be added up.
//!
//! Source: "Fair Share Job Scheduling for CouchDB 3.x Replicator", and its reference, Kay and Lauder, "A Fair Share
//! Scheduler" (1988). Numbers are exact here; [`whole`] truncates where CouchDB does.

#[cfg(test)]
mod tests;
pub mod whole;

use std::ops::RangeInclusive;

/// A usage below this is none, in µs: its tenant has been forgotten.
pub const LEAST_USAGE_US: f64 = 1_000.0;

/// The numbers of the model. All of them may change at any time.
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
    /// What K1 can be. With 1 a usage would never be forgotten.
    pub const USAGE_COEFF: RangeInclusive<f64> = 0.0..=0.999;
    /// What K2 can be. With 0 there would be no order, with 1 a job that has run would wait for all that have not.
    pub const PRIORITY_COEFF: RangeInclusive<f64> = 0.001..=1.0;
    /// What t1, t2 and t3 can be, in µs: a second to a day.
    pub const INTERVAL_US: RangeInclusive<i64> = 1_000_000..=86_400_000_000;
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

/// What one running job's priority value grows by, every t3; and what a new job starts with.
pub fn increment(usage_us: f64, jobs: u64, shares: u32) -> f64 {
    let shares = f64::from(shares.max(1));
    usage_us.max(0.0) * jobs as f64 / (shares * shares)
}

/// Multiples of `interval_us` that are later than `after_us`, and not later than `until_us`.
fn multiples(after_us: i64, until_us: i64, interval_us: i64) -> i64 {
    let interval_us = interval_us.max(1);
    (until_us.div_euclid(interval_us) - after_us.div_euclid(interval_us)).max(0)
}

/// `base` to a whole power, of any size.
fn power(base: f64, exponent: i64) -> f64 {
    base.powi(i32::try_from(exponent).unwrap_or(i32::MAX))
}

/// How long a tenant's jobs have run, lately.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// As of the last time it was rolled up, in µs.
    pub usage_us: f64,
    /// Charged since, in µs.
    pub accumulated_us: f64,
    /// The moment up to which it is rolled up, in µs.
    pub period: i64,
}

impl Usage {
    /// Charges what a job ran up to now. At a multiple of t1 that still counts for the time before it.
    pub fn charge(&mut self, ran_us: f64, now_us: i64, rules: &Rules) {
        self.roll_up(now_us.saturating_sub(1), rules);
        self.accumulated_us += ran_us.max(0.0);
    }

    /// The usage now, in µs.
    pub fn at(&self, now_us: i64, rules: &Rules) -> f64 {
        let mut usage = *self;
        usage.roll_up(now_us, rules);
        usage.usage_us
    }

    /// Counts what was charged before the last multiple of t1. To be called before t1 or K1 change: the time until now is
    /// counted with those it is called with.
    pub fn roll_up(&mut self, now_us: i64, rules: &Rules) {
        let times = multiples(self.period, now_us, rules.usage_interval_us);
        if times > 0 {
            let first = self.usage_us * rules.usage_coeff + self.accumulated_us;
            self.usage_us = first * power(rules.usage_coeff, times - 1);
            self.accumulated_us = 0.0;
        }
        self.period = self.period.max(now_us);
    }

    /// Whether nothing worth mentioning is left of it.
    pub fn is_forgotten(&self, now_us: i64, rules: &Rules) -> bool {
        let mut usage = *self;
        usage.roll_up(now_us, rules);
        usage.usage_us + usage.accumulated_us < LEAST_USAGE_US
    }
}

/// V(t): what the keys of jobs that wait are compared with, as time passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Boost {
    /// V at that moment.
    pub v: f64,
    /// That moment, in µs.
    pub at_us: i64,
    /// K2 since then.
    pub coeff: f64,
    /// t2 since then, in µs.
    pub interval_us: i64,
}

impl Boost {
    /// V, beginning with 0.
    pub fn new(now_us: i64, rules: &Rules) -> Boost {
        Boost { v: 0.0, at_us: now_us, coeff: rules.priority_coeff, interval_us: rules.priority_interval_us }
    }

    /// V now. It grows at the multiples of t2.
    pub fn at(&self, now_us: i64) -> f64 {
        let times = multiples(self.at_us, now_us, self.interval_us);
        let least = *Rules::PRIORITY_COEFF.start();
        self.v - self.coeff.clamp(least, 1.0).ln() * times as f64
    }

    /// V that goes on from now with other rules.
    pub fn with_rules(&self, now_us: i64, rules: &Rules) -> Boost {
        Boost { v: self.at(now_us), ..Boost::new(now_us.max(self.at_us), rules) }
    }
}

/// What a job's place among the others depends on, and time does not change: `ln(priority) + V`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Key(f64);

impl Key {
    /// The key of a priority of 0, at any time.
    pub const ZERO: Key = Key(f64::MIN);

    /// The key of a priority value while V is `v`.
    pub fn of(priority: f64, v: f64) -> Key {
        let key = priority.min(f64::MAX).ln() + v;
        if key.is_finite() { Key(key) } else { Key::ZERO }
    }

    /// A key as it is stored. One that is not a finite number is that of a priority of 0.
    pub fn stored(key: f64) -> Key {
        if key.is_finite() { Key(key) } else { Key::ZERO }
    }

    /// As it is stored: finite.
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
