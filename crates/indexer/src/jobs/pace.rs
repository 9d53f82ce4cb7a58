//! How many builds a server is asked for at once, by how fast it answers small requests beside them.
//!
//! *Model.* While builds run, a small request is measured four times a second. If the 95th percentile of the last 20 is over the limit,
//! half as many builds may run; if one alone is too much, pauses follow it that grow up to four times its own length. Below 70% of the
//! limit, the pauses shrink, and then one more build may run. There are some seconds between two of these steps, so that each is measured.
//!
//! *Limits.* A build that runs is not slowed down: the server builds to the end what it was asked for.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Condition;

/// The samples of which a percentile is taken.
const SAMPLES: usize = 20;
/// The samples between two steps.
const SAMPLES_PER_STEP: usize = 10;
/// The most pauses of the length of a build that follow it.
const MAX_RESTS: u32 = 4;
/// The longest time that these take.
const MAX_REST: Duration = Duration::from_secs(20);
/// The time after which samples are old.
const FRESH: Duration = Duration::from_secs(30);

/// The pace of one server.
pub(super) struct Pace {
    most: usize,
    limit: Duration,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    samples: VecDeque<Duration>,
    sampled: Option<Instant>,
    since_step: usize,
    allowed: usize,
    running: usize,
    rests: u32,
    not_before: Option<Instant>,
}

/// A build that may run; it has ended when this is dropped.
pub(super) struct Turn<'a> {
    pace: &'a Pace,
    began: Instant,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.pace.lock();
            state.running = state.running.saturating_sub(1);
            if state.rests > 0 {
                let rest = (self.began.elapsed() * state.rests).min(MAX_REST);
                state.not_before = Some(Instant::now() + rest);
            }
        }
        self.pace.changed.notify_waiters();
    }
}

impl Pace {
    /// At most `most` builds; a `limit` of zero never reduces them.
    pub fn new(most: usize, limit: Duration) -> Self {
        let state = State { allowed: most, ..State::default() };
        Pace { most, limit, state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more build may run.
    pub async fn turn(&self) -> Turn<'_> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let rest = {
                let mut state = self.lock();
                let now = Instant::now();
                state.not_before = state.not_before.filter(|until| *until > now);
                if state.running < state.allowed && state.not_before.is_none() {
                    state.running += 1;
                    return Turn { pace: self, began: now };
                }
                state.not_before
            };
            match rest {
                Some(until) => drop(tokio::time::timeout_at(until, changed).await),
                None => changed.await,
            }
        }
    }

    /// Whether builds run, so that the server must be measured.
    pub fn is_busy(&self) -> bool {
        self.lock().running > 0
    }

    /// Takes the time of a small request.
    pub fn sample(&self, took: Duration) {
        {
            let mut state = self.lock();
            if state.samples.len() == SAMPLES {
                state.samples.pop_front();
            }
            state.samples.push_back(took);
            state.sampled = Some(Instant::now());
            state.since_step += 1;
            if self.limit.is_zero()
                || state.samples.len() < SAMPLES_PER_STEP
                || state.since_step < SAMPLES_PER_STEP
            {
                return;
            }
            let p95 = state.p95().unwrap_or_default();
            if p95 > self.limit {
                if state.allowed > 1 {
                    state.allowed /= 2;
                } else {
                    state.rests = (state.rests + 1).min(MAX_RESTS);
                }
            } else if p95.as_secs_f64() < 0.7 * self.limit.as_secs_f64() {
                if state.rests > 0 {
                    state.rests -= 1;
                } else {
                    state.allowed = (state.allowed + 1).min(self.most);
                }
            } else {
                return;
            }
            state.since_step = 0;
        }
        self.changed.notify_waiters();
    }

    /// How the server is.
    pub fn condition(&self, server: &str) -> Condition {
        let state = self.lock();
        let is_fresh = state.sampled.is_some_and(|at| at.elapsed() < FRESH);
        let p95 = if is_fresh { state.p95() } else { None };
        Condition {
            server: server.to_owned(),
            allowed: state.allowed,
            running: state.running,
            p95_ms: p95.map(|p95| u64::try_from(p95.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl State {
    fn p95(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.samples.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (sorted.len() * 95).div_ceil(100);
        sorted.get(rank.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn samples(pace: &Pace, ms: u64, count: usize) {
        for _ in 0..count {
            pace.sample(Duration::from_millis(ms));
        }
    }

    #[tokio::test]
    async fn a_slow_server_is_asked_for_fewer_builds_and_then_for_pauses() {
        let pace = Pace::new(4, Duration::from_millis(100));
        let turns = [pace.turn().await, pace.turn().await, pace.turn().await, pace.turn().await];
        assert!(pace.turn().now_or_never().is_none());
        samples(&pace, 300, 20);
        assert_eq!(pace.condition("s").allowed, 1);
        let [first, rest @ ..] = turns;
        drop(rest);
        assert!(pace.turn().now_or_never().is_none());
        assert!(pace.lock().not_before.is_none());
        samples(&pace, 300, 10);
        drop(first);
        assert!(pace.lock().not_before.is_some(), "a pause of the length of the build");
        samples(&pace, 10, 80);
        let condition = Condition { server: "s".into(), allowed: 4, running: 0, p95_ms: Some(10) };
        assert_eq!(pace.condition("s"), condition);
        // The pause is over.
        let turn = pace.turn().await;
        drop(turn);
        assert!(pace.lock().not_before.is_none());
    }

    #[test]
    fn without_a_limit_a_slow_server_is_asked_for_all_builds() {
        let pace = Pace::new(2, Duration::ZERO);
        samples(&pace, 10_000, 100);
        assert_eq!(pace.condition("s").allowed, 2);
    }
}
