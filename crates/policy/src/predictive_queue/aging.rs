//! What a job weighs after it has waited: `weight · max(0, 1 − age/K)`.
//!
//! The age counts the ticks of one clock that all jobs share, from the tick in which a job became pending. So all
//! jobs age at the same moments, and no order changes in between. Of two jobs of the same weight, the one of the
//! earlier tick always comes first. From `K` ticks on, a job weighs zero: it is *aged out*, and may reserve its locks
//! ([`order`](super::order)). Otherwise a stream of lighter jobs could overtake it for ever, because its locks might
//! never all be free at the moment of a pass.
//!
//! 30 s and K = 30, as in Ganeti's design document, are 15 minutes.

use super::contention::{DEFAULT_BASE, Weight};

/// After this many times K ticks, a job is *overdue*. Until then, jobs that came later may start before it. Ten times
/// 15 minutes are two and a half hours, in which the shipped backlogs of 2,000 jobs end.
const OVERDUE: u64 = 10;

/// How fast jobs age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aging {
    /// The length of a tick, in µs. Zero and less count as 1.
    pub tick_us: i64,
    /// K: the ticks after which a job weighs zero. With 0, all jobs weigh zero: first come, first served.
    pub ticks: u32,
}

impl Default for Aging {
    fn default() -> Self {
        Aging { tick_us: 30_000_000, ticks: 30 }
    }
}

impl Aging {
    /// The tick in which a moment is.
    pub fn tick(&self, at_us: i64) -> i64 {
        at_us.div_euclid(self.tick_us.max(1))
    }

    /// The ticks from one moment to a later one. If a clock was set back, the age is 0.
    pub fn age(&self, since_us: i64, now_us: i64) -> u64 {
        self.between(self.tick(since_us), self.tick(now_us))
    }

    pub(crate) fn between(&self, since: i64, now: i64) -> u64 {
        u64::try_from(now.saturating_sub(since)).unwrap_or(0)
    }

    /// Whether a job of this age weighs zero.
    pub fn is_over(&self, age: u64) -> bool {
        age >= u64::from(self.ticks)
    }

    /// Whether a job of this age is overdue: it comes before all jobs of its priority that are not.
    pub fn is_overdue(&self, age: u64) -> bool {
        age >= u64::from(self.ticks) * OVERDUE
    }

    /// When a job that waits since `since_us` is aged out, in µs.
    pub fn over_us(&self, since_us: i64) -> i64 {
        let tick = self.tick(since_us).saturating_add(i64::from(self.ticks));
        tick.saturating_mul(self.tick_us.max(1))
    }

    /// A weight at this age.
    pub fn aged(&self, weight: Weight, age: u64) -> Aged {
        let left = u64::from(self.ticks).saturating_sub(age);
        Aged { scaled: u64::from(weight.in_thousandths()) * left }
    }
}

/// An aged weight: the weight in thousandths times the remaining ticks of K, an integer. Only values of one [`Aging`]
/// can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Aged {
    scaled: u64,
}

impl Aged {
    /// As a number, for display.
    pub fn to_f64(self, aging: Aging) -> f64 {
        self.scaled as f64 / 1_000.0 / f64::from(aging.ticks.max(1))
    }
}

/// The parameters of the predictive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The weight of every job before any comparison. It is at least a thousandth, because a weight of zero does not
    /// age.
    pub base: Weight,
    /// How jobs age.
    pub aging: Aging,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { base: DEFAULT_BASE, aging: Aging::default() }
    }
}

impl Rules {
    /// The base weight, at least a thousandth: so only an aged-out job weighs zero.
    pub fn least_base(&self) -> Weight {
        self.base.max(Weight::thousandths(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: i64 = 1_000_000;

    #[test]
    fn a_weight_shrinks_with_each_tick_and_is_gone_after_k() {
        let aging = Aging::default();
        let weight = |age| aging.aged(Weight::thousandths(4_500), age).to_f64(aging);
        assert_eq!([0, 10, 15, 29, 30, 31, u64::MAX].map(weight), [4.5, 3.0, 2.25, 0.15, 0.0, 0.0, 0.0]);
        assert!(!aging.is_over(29) && aging.is_over(30));
    }

    #[test]
    fn all_jobs_age_at_the_same_moments() {
        let aging = Aging::default();
        assert_eq!(aging.age(0, 29 * S), 0);
        assert_eq!(aging.age(29 * S, 30 * S), 1);
        assert_eq!(aging.age(0, 60 * S), 2);
        // Moments before 1970, and a clock that was set back.
        assert_eq!(aging.age(-S, S), 1);
        assert_eq!(aging.age(90 * S, 0), 0);
        assert!(aging.is_over(aging.age(i64::MIN, i64::MAX)));
    }

    #[test]
    fn odd_rules_are_no_errors() {
        let never = Aging { tick_us: 0, ticks: 0 };
        assert!(never.is_over(never.age(5, 5)));
        assert_eq!(never.aged(Weight::thousandths(9), 0).to_f64(never), 0.0);
    }

    proptest! {
        #[test]
        fn prop_zero_from_k_ticks_on_never_negative_never_growing(
            tick_us in 1..100 * S, ticks in 0..1_000_u32, weight in 1..50_000_u32,
            since in -1_000 * S..1_000 * S, waited in 0..200_000 * S, more in 0..200_000 * S,
        ) {
            let aging = Aging { tick_us, ticks };
            let weight = Weight::thousandths(weight);
            let at = |waited: i64| aging.aged(weight, aging.age(since, since + waited)).to_f64(aging);
            // Both are rounded.
            prop_assert!(at(waited) >= 0.0 && at(waited) <= weight.to_f64() * (1.0 + f64::EPSILON));
            prop_assert!(at(waited + more) <= at(waited));
            if waited >= i64::from(ticks) * tick_us {
                prop_assert_eq!(at(waited), 0.0);
            } else if waited + tick_us <= i64::from(ticks) * tick_us - tick_us {
                prop_assert!(at(waited) > 0.0);
            }
        }
    }
}
