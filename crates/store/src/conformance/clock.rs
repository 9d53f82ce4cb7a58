//! A runtime for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::sync::{Notify, oneshot};

use crate::Runtime;
use crate::sync::Mutex;

/// A clock that moves only when a test moves it, and random numbers from a seed.
pub struct Manual {
    state: Mutex<ManualState>,
    slept: Notify,
}

struct ManualState {
    elapsed_us: i64,
    /// The difference between the clock and `elapsed_us`, in µs. It changes when the clock is set.
    set_us: i64,
    rng: StdRng,
    /// Sleepers by their wake time. The second part of the key distinguishes equal times.
    sleepers: BTreeMap<(i64, u64), oneshot::Sender<()>>,
    next_sleeper: u64,
}

impl Manual {
    /// A clock that shows `now_us`.
    pub fn new(now_us: i64, seed: u64) -> Arc<Self> {
        let state = ManualState {
            elapsed_us: now_us,
            set_us: 0,
            rng: StdRng::seed_from_u64(seed),
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
        };
        Arc::new(Manual { state: Mutex::new(state), slept: Notify::new() })
    }

    /// Moves the clock forward and wakes the sleepers whose time has come, earliest first.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.state.lock();
        state.elapsed_us = add_us(state.elapsed_us, duration);
        let after_now = (state.elapsed_us.saturating_add(1), 0);
        let later = state.sleepers.split_off(&after_now);
        for (_, wake) in std::mem::replace(&mut state.sleepers, later) {
            let _ = wake.send(());
        }
    }

    /// Sets the clock forward or back, as a machine's owner may. No time passes, and no sleeper wakes.
    pub fn set_clock(&self, by_us: i64) {
        let mut state = self.state.lock();
        state.set_us = state.set_us.saturating_add(by_us);
    }

    /// Waits for a sleeper whose wake time is at least `duration` away. A test can then move the clock knowing that the code
    /// under test already waits.
    pub async fn wait_for_sleeper(&self, duration: Duration) {
        self.wait_for_sleepers(duration, 1).await;
    }

    /// Waits like [`Manual::wait_for_sleeper`], for `count` sleepers.
    pub async fn wait_for_sleepers(&self, duration: Duration, count: usize) {
        loop {
            let slept = self.slept.notified();
            {
                let mut state = self.state.lock();
                let from = add_us(state.elapsed_us, duration);
                state.sleepers.retain(|_, wake| !wake.is_closed());
                if state.sleepers.range((from, 0)..).count() >= count {
                    return;
                }
            }
            slept.await;
        }
    }
}

fn add_us(now_us: i64, duration: Duration) -> i64 {
    now_us.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
}

#[async_trait]
impl Runtime for Manual {
    fn now_us(&self) -> i64 {
        let state = self.state.lock();
        state.elapsed_us.saturating_add(state.set_us)
    }

    fn elapsed_us(&self) -> i64 {
        self.state.lock().elapsed_us
    }

    async fn sleep(&self, duration: Duration) {
        let woken = {
            let mut state = self.state.lock();
            let (wake, woken) = oneshot::channel();
            let at_us = add_us(state.elapsed_us, duration);
            state.next_sleeper += 1;
            let sleeper = state.next_sleeper;
            state.sleepers.insert((at_us, sleeper), wake);
            woken
        };
        self.slept.notify_waiters();
        let _ = woken.await;
    }

    fn random(&self) -> u64 {
        self.state.lock().rng.random()
    }
}
