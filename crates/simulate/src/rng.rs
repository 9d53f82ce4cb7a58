//! Random numbers that follow from the scenario's seed, so that every policy gets the same population.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::number::OneOf;
use crate::scenario::{RandomTime, RunTime};

/// The random numbers for one kind of a tenant's jobs.
#[derive(Debug, Clone)]
pub(crate) struct SeededRng(ChaCha8Rng);

impl SeededRng {
    /// The numbers of `tenant` for its `part` do not depend on any other numbers.
    pub(crate) fn new(seed: u64, tenant: usize, part: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream((tenant as u64) << 32 | part as u64);
        SeededRng(rng)
    }

    /// A number of `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number of `[from, to]`.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + (self.unit() * (to - from + 1) as f64) as u64
    }

    /// A random time until the next event of a Poisson process whose events are `mean` apart on average.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// How long a job runs, in µs: at least a millisecond.
    pub(crate) fn run_us(&mut self, time: RunTime) -> i64 {
        let us = |ms: u64| ms as f64 * 1e3;
        let us = match time {
            OneOf::One(ms) => us(ms.get()),
            OneOf::Other(RandomTime::Exponential(mean)) => self.exponential(us(mean.get())),
            OneOf::Other(RandomTime::Uniform(from, to)) => {
                self.between(from.get() * 1_000, to.get() * 1_000) as f64
            }
            OneOf::Other(RandomTime::Either(one, other)) => match self.unit() < 0.5 {
                true => us(one.get()),
                false => us(other.get()),
            },
        };
        us.max(1_000.0) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Int;

    #[test]
    fn run_times_have_the_requested_mean() {
        let mean = |time| {
            let mut rng = SeededRng::new(7, 3, 1);
            (0..20_000).map(|_| rng.run_us(time) as f64 / 1e3).sum::<f64>() / 20_000.0
        };
        let (a, b) = (Int::constant(1_000), Int::constant(9_000));
        assert_eq!(mean(OneOf::One(Int::constant(40))), 40.0);
        for (time, expected) in [
            (RandomTime::Exponential(b), 9_000.0),
            (RandomTime::Uniform(a, b), 5_000.0),
            (RandomTime::Either(b, a), 5_000.0),
        ] {
            let mean = mean(OneOf::Other(time));
            assert!((mean / expected - 1.0).abs() < 0.03, "{time:?}: {mean}");
        }
    }

    #[test]
    fn tenants_draw_different_numbers_and_a_seed_repeats_them() {
        let draws = |seed, tenant, part| {
            let mut rng = SeededRng::new(seed, tenant, part);
            [rng.between(1, 1_000), rng.between(1, 1_000), rng.between(1, 1_000)]
        };
        assert_eq!(draws(1, 2, 3), draws(1, 2, 3));
        assert_ne!(draws(1, 2, 3), draws(1, 3, 3));
        assert_ne!(draws(1, 2, 3), draws(1, 2, 4));
        assert_ne!(draws(1, 2, 3), draws(2, 2, 3));
    }
}
