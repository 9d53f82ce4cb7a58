//! Time and randomness as a trait, so that a simulation can control both.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rand::Rng;

#[cfg(any(test, feature = "conformance"))]
pub use crate::conformance::Manual;

/// The clock and the random numbers of all code above the store.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Microseconds since the Unix epoch. This clock may be set forward and back.
    fn now_us(&self) -> i64;

    /// The same by the clock of the machine, which a store's clock ([`crate::Clock`]) may be ahead of: for times that another program
    /// compares with its own clock.
    fn machine_us(&self) -> i64 {
        self.now_us()
    }

    /// Microseconds since a fixed moment, by a clock that is never set. It may pause while the machine is suspended.
    fn elapsed_us(&self) -> i64;

    /// Returns after `duration` has passed on the clock of [`Runtime::elapsed_us`].
    async fn sleep(&self, duration: Duration);

    /// Returns when [`Runtime::now_us`] reaches `at_us`. A store's clock ([`crate::Clock`]) wakes its sleepers early when it is
    /// set forward.
    async fn sleep_until(&self, at_us: i64) {
        while let Ok(left_us @ 1..) = u64::try_from(at_us.saturating_sub(self.now_us())) {
            self.sleep(Duration::from_micros(left_us)).await;
        }
    }

    /// A random number.
    fn random(&self) -> u64;
}

/// The machine's clock and the operating system's randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

#[async_trait]
impl Runtime for System {
    fn now_us(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
    }

    fn elapsed_us(&self) -> i64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        i64::try_from(START.elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn random(&self) -> u64 {
        rand::rng().random()
    }
}

/// The machine's clock, ahead by as much as a test has moved it. Durations stay real: a wait for a time ends when the clock is
/// moved beyond it, and a wait of a length does not.
#[derive(Debug, Default)]
pub struct Movable {
    ahead_us: AtomicI64,
}

impl Movable {
    /// Sets the clock forward to a time, unless it is there already.
    pub fn move_to(&self, at_us: i64) {
        self.ahead_us.fetch_add(at_us.saturating_sub(self.now_us()).max(0), Relaxed);
    }
}

#[async_trait]
impl Runtime for Movable {
    fn now_us(&self) -> i64 {
        System.now_us().saturating_add(self.ahead_us.load(Relaxed))
    }

    fn machine_us(&self) -> i64 {
        System.now_us()
    }

    fn elapsed_us(&self) -> i64 {
        System.elapsed_us()
    }

    async fn sleep(&self, duration: Duration) {
        System.sleep(duration).await;
    }

    fn random(&self) -> u64 {
        System.random()
    }
}
