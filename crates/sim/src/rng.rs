//! Seeded randomness. The same seed always gives the same numbers, independent of any dependency.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The increment of SplitMix64's state in each step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A SplitMix64 generator (Steele, Lea & Flood 2014). Many owners may share it, but only one thread draws.
#[derive(Debug)]
pub struct SeededRng(AtomicU64);

impl SeededRng {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        // Adjacent seeds must not give shifted copies of one sequence.
        SeededRng(AtomicU64::new(mix(seed.wrapping_add(STEP))))
    }

    /// Another generator, seeded by this one and by `salt`. What one part of the world draws does not change what other
    /// parts draw.
    pub fn fork(&self, salt: u64) -> Self {
        SeededRng::new(self.bits() ^ mix(salt))
    }

    /// 64 random bits.
    pub fn bits(&self) -> u64 {
        mix(self.0.fetch_add(STEP, Relaxed).wrapping_add(STEP))
    }

    /// A number below `bound`, which must not be 0. (The bias of the remainder does not matter here.)
    pub fn below(&self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// A number of `[from, to]`.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True in `permille` of a thousand draws.
    pub fn chance(&self, permille: u64) -> bool {
        permille > 0 && self.below(1_000) < permille
    }

    /// One of `these`.
    pub fn choose<'a, T>(&self, these: &'a [T]) -> &'a T {
        &these[usize::try_from(self.below(these.len() as u64)).expect("it is below a usize")]
    }

    /// A duration of `[from, to]` milliseconds.
    pub fn ms(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
