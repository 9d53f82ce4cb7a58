//! The clock that all users of a store share. It never goes back.
//!
//! *Model.* Between two comparisons the clock advances with the time that passes ([`Runtime::elapsed_us`]), even if the
//! machine's clock is set meanwhile. A comparison ([`Clock::compare`]) continues from the latest of three times: the
//! clock's own, the machine's, and the one that the store's users have agreed upon. So the clock follows a machine's clock
//! that is set forward, also after a suspend, and ignores one that is set back.
//!
//! *Forces.* The machine's clock may be behind this clock, because it was set back or because another machine's clock is
//! ahead. This clock then runs slower by an eighth until both show the same time. So a wrong clock is corrected eventually,
//! and a wait for a time takes at most a seventh longer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::Runtime;
use crate::sync::Mutex;

/// A clock that is ahead loses 1 µs of this many µs.
const SLOWER: i64 = 8;
/// Sleepers are not woken for a smaller change: a machine's clock and its elapsed time always drift apart a little.
const NOTICED_US: i64 = 1_000;
/// From this difference on, a warning reports that the clock is ahead of the machine's.
const AHEAD_US: i64 = 60_000_000;

/// A clock that never goes back.
pub struct Clock {
    machine: Arc<dyn Runtime>,
    state: Mutex<State>,
    raised: Notify,
}

/// The state at the latest comparison.
#[derive(Clone, Copy)]
struct State {
    /// The time that the clock showed, in µs since the epoch.
    at_us: i64,
    /// The moment of the comparison, by the clock that is never set.
    elapsed_us: i64,
    /// How far the clock was ahead of the machine's, in µs.
    ahead_us: i64,
}

impl State {
    fn now_us(&self, elapsed_us: i64) -> i64 {
        let passed_us = elapsed_us.saturating_sub(self.elapsed_us).max(0);
        self.at_us.saturating_add(passed_us - (passed_us / SLOWER).min(self.ahead_us))
    }
}

impl Clock {
    /// A clock that shows the machine's time.
    pub fn new(machine: Arc<dyn Runtime>) -> Arc<Self> {
        let state = State { at_us: machine.now_us(), elapsed_us: machine.elapsed_us(), ahead_us: 0 };
        Arc::new(Clock { machine, state: Mutex::new(state), raised: Notify::new() })
    }

    /// The earliest time that a comparison can set: the later of its own time and the machine's, in µs since the epoch.
    pub fn wanted_us(&self) -> i64 {
        self.now_us().max(self.machine.now_us())
    }

    /// Continues from `agreed_us`, or from the clock's own time if that is later. Wakes the sleepers that this affects.
    pub fn compare(&self, agreed_us: i64) {
        let (machine_us, elapsed_us) = (self.machine.now_us(), self.machine.elapsed_us());
        let raised_us = {
            let mut state = self.state.lock();
            let (now_us, was_ahead) = (state.now_us(elapsed_us), state.ahead_us >= AHEAD_US);
            let at_us = now_us.max(agreed_us);
            let ahead_us = at_us.saturating_sub(machine_us).max(0);
            *state = State { at_us, elapsed_us, ahead_us };
            if ahead_us >= AHEAD_US && !was_ahead {
                let ahead_s = ahead_us / 1_000_000;
                tracing::warn!(
                    "the clock of this machine is {ahead_s} s behind that of the store: it was set back, or another machine's is ahead"
                );
            }
            at_us.saturating_sub(now_us)
        };
        if raised_us >= NOTICED_US {
            self.raised.notify_waiters();
        }
    }
}

#[async_trait]
impl Runtime for Clock {
    fn now_us(&self) -> i64 {
        self.state.lock().now_us(self.machine.elapsed_us())
    }

    fn machine_us(&self) -> i64 {
        self.machine.machine_us()
    }

    fn elapsed_us(&self) -> i64 {
        self.machine.elapsed_us()
    }

    async fn sleep(&self, duration: Duration) {
        self.machine.sleep(duration).await;
    }

    async fn sleep_until(&self, at_us: i64) {
        loop {
            let raised = self.raised.notified();
            let left_us = u64::try_from(at_us.saturating_sub(self.now_us())).unwrap_or(0);
            if left_us == 0 {
                return;
            }
            tokio::select! {
                biased;
                () = raised => {}
                () = self.machine.sleep(Duration::from_micros(left_us)) => {}
            }
        }
    }

    fn random(&self) -> u64 {
        self.machine.random()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use super::*;
    use crate::runtime::Manual;

    const HOUR_US: i64 = 3_600_000_000;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_clock_that_is_set_back_is_not_followed() {
        let machine = Manual::new(10 * HOUR_US, 1);
        let clock = Clock::new(machine.clone());
        machine.set_clock(-2 * HOUR_US);
        assert_eq!(clock.now_us(), 10 * HOUR_US);
        machine.advance(SECOND);
        assert_eq!(clock.now_us(), 10 * HOUR_US + 1_000_000);
        clock.compare(clock.wanted_us());
        machine.advance(8 * SECOND);
        assert_eq!(clock.now_us(), 10 * HOUR_US + 8_000_000, "it loses an eighth");
        // After 16 hours both clocks show the same time, and advance together.
        machine.advance(Duration::from_secs(20 * 3_600));
        clock.compare(clock.wanted_us());
        assert_eq!(clock.now_us(), machine.now_us());
        machine.advance(8 * SECOND);
        assert_eq!(clock.now_us(), machine.now_us());
    }

    #[test]
    fn a_clock_that_is_set_forward_is_followed_at_the_next_comparison() {
        let machine = Manual::new(HOUR_US, 1);
        let clock = Clock::new(machine.clone());
        machine.set_clock(2 * HOUR_US);
        assert_eq!((clock.now_us(), clock.wanted_us()), (HOUR_US, 3 * HOUR_US));
        clock.compare(clock.wanted_us());
        assert_eq!(clock.now_us(), 3 * HOUR_US);
        clock.compare(9 * HOUR_US);
        assert_eq!(clock.now_us(), 9 * HOUR_US, "another machine's clock is ahead");
        clock.compare(i64::MAX);
        machine.advance(SECOND);
        assert_eq!(clock.now_us(), i64::MAX);
    }

    async fn is_over(mut sleeper: Pin<&mut impl Future<Output = ()>>) -> bool {
        poll_fn(|cx| Poll::Ready(sleeper.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn a_sleeper_wakes_when_the_clock_shows_its_time() {
        let machine = Manual::new(HOUR_US, 1);
        let clock = Clock::new(machine.clone());
        let mut sleeper = pin!(clock.sleep_until(2 * HOUR_US));
        assert!(!is_over(sleeper.as_mut()).await);
        machine.set_clock(HOUR_US - 1);
        clock.compare(clock.wanted_us());
        assert!(!is_over(sleeper.as_mut()).await);
        machine.advance(Duration::from_micros(1));
        assert!(is_over(sleeper.as_mut()).await);
        // A clock that is ahead runs slower, so a sleeper never wakes early.
        machine.set_clock(-HOUR_US);
        clock.compare(clock.wanted_us());
        let mut sleeper = pin!(clock.sleep_until(clock.now_us() + 7_000_000));
        assert!(!is_over(sleeper.as_mut()).await);
        machine.advance(7 * SECOND);
        assert!(!is_over(sleeper.as_mut()).await);
        machine.advance(SECOND);
        assert!(is_over(sleeper.as_mut()).await);
    }
}
