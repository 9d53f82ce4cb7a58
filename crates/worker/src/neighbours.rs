//! Which of a worker's right-hand neighbours in the ring are dead, and which worker removes them.
//!
//! The workers of a type form a ring, in the order of their ids. With each ping, a worker, here called the watcher,
//! checks the health counters of the workers to its right. No clock is compared with another one: a check counts as one
//! interval, because the watcher has slept that long since its last check. A worker is dead if its counter has not
//! moved for as many checks as make up its timeout. No worker thus seems dead because a clock was set, the store
//! blocked all workers, or the watcher paused.
//!
//! A watcher removes the dead workers up to the first reliable neighbour, which watches the workers behind itself:
//!
//! ```text
//!    watcher ─▶ dead ─▶ dead ─▶ newcomer ─▶ dead ─▶ alive ─▶ dead
//!               └──── mine ────┘            mine    └─ its ─┘
//! ```
//!
//! *Newcomers* are not reliable: they have not watched for a whole timeout. A neighbour whose counter has not moved for
//! half of its timeout is not reliable either. Two watchers may therefore both remove the same worker, which is
//! harmless.
//!
//! One check reads [`WINDOW`] neighbours; if no counter among them has moved, it immediately reads [`WIDE_WINDOW`].
//! Many deaths are thus found as fast as one: after the next check and one timeout.

use std::collections::BTreeMap;
use std::time::Duration;

use turnwise_queue::Health;

use crate::times::duration_us;

/// The number of neighbours that a check reads.
pub(crate) const WINDOW: usize = 32;
/// The number of neighbours that a check reads if no counter in [`WINDOW`] has moved. Dead workers beyond it are found
/// one window after the other.
pub(crate) const WIDE_WINDOW: usize = 1_000;

/// What a watcher remembers of its neighbours.
pub(crate) struct Observations {
    /// The time that a check counts as, in µs.
    interval_us: i64,
    counters: BTreeMap<String, CounterHistory>,
}

/// A worker's health counter over the past checks.
struct CounterHistory {
    counter: u64,
    /// The number of consecutive checks that found the counter unchanged.
    unchanged: u32,
    /// The number of checks since the worker was first seen.
    known: u32,
}

/// A worker's condition, as seen by the watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Its counter has not moved for its timeout.
    Dead,
    /// It was first seen at least a timeout ago, and its counter moved within the last half of it.
    Reliable,
    /// Neither dead nor reliable.
    Unsure,
}

impl Observations {
    /// For a watcher that sleeps `interval` between two checks.
    pub(crate) fn new(interval: Duration) -> Self {
        Observations { interval_us: duration_us(interval), counters: BTreeMap::new() }
    }

    /// Makes one check, at least an interval after the last one. Workers that are not in the list are forgotten.
    pub(crate) fn check(&mut self, workers: Vec<(String, Health)>) -> Vec<(String, Health, Condition)> {
        let mut before = std::mem::take(&mut self.counters);
        let mut found = Vec::with_capacity(workers.len());
        for (worker, health) in workers {
            let counter = health.counter;
            let history = match before.remove(&worker) {
                Some(history) if history.counter == counter => CounterHistory {
                    unchanged: history.unchanged.saturating_add(1),
                    known: history.known.saturating_add(1),
                    counter,
                },
                Some(history) => {
                    CounterHistory { unchanged: 0, known: history.known.saturating_add(1), counter }
                }
                None => CounterHistory { unchanged: 0, known: 0, counter },
            };
            let condition = self.condition(&history, health.timeout_us);
            self.counters.insert(worker.clone(), history);
            found.push((worker, health, condition));
        }
        found
    }

    fn condition(&self, history: &CounterHistory, timeout_us: i64) -> Condition {
        let time_us = |checks: u32| self.interval_us.saturating_mul(i64::from(checks));
        if history.unchanged > 0 && time_us(history.unchanged) >= timeout_us {
            Condition::Dead
        } else if time_us(history.known) >= timeout_us && time_us(history.unchanged) < timeout_us / 2 {
            Condition::Reliable
        } else {
            Condition::Unsure
        }
    }

    /// Whether every counter is unchanged since the last check.
    pub(crate) fn none_moved(&self, workers: &[(String, Health)]) -> bool {
        workers.iter().all(|(worker, health)| {
            self.counters.get(worker).is_some_and(|history| history.counter == health.counter)
        })
    }
}

/// The dead workers that this watcher removes: those before the first neighbour that it can rely on.
pub(crate) fn mine(ring: Vec<(String, Health, Condition)>) -> Vec<(String, Health)> {
    ring.into_iter()
        .take_while(|(_, _, condition)| *condition != Condition::Reliable)
        .filter(|(_, _, condition)| *condition == Condition::Dead)
        .map(|(worker, health, _)| (worker, health))
        .collect()
}

/// The workers of a ring that run inside servers. External workers have no access to the store: they watch no worker,
/// and a server monitors them.
pub(crate) fn in_process(mut ring: Vec<(String, Health)>) -> Vec<(String, Health)> {
    ring.retain(|(_, health)| !health.external);
    ring
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    /// Checks every 5 s, of workers with a timeout of 15 s.
    fn observations() -> Observations {
        Observations::new(Duration::from_secs(5))
    }

    fn health(counter: u64) -> Health {
        Health { counter, timeout_us: 15 * S, external: false, seen_us: 0 }
    }

    /// One check of workers, named in the order of the ring.
    fn check(observations: &mut Observations, ring: &[(&str, u64)]) -> Vec<String> {
        let ring = ring.iter().map(|(id, counter)| ((*id).to_owned(), health(*counter))).collect();
        mine(observations.check(ring)).into_iter().map(|(worker, _)| worker).collect()
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn a_worker_whose_counter_does_not_move_for_its_timeout_is_dead_and_not_before() {
        let mut observations = observations();
        for _ in 0..3 {
            assert_eq!(check(&mut observations, &[("a", 7)]), NONE);
        }
        assert_eq!(check(&mut observations, &[("a", 7)]), ["a"]);
    }

    #[test]
    fn a_worker_whose_counter_moves_in_time_is_never_dead() {
        let mut observations = observations();
        for n in 0..100 {
            assert_eq!(check(&mut observations, &[("a", n / 3)]), NONE);
        }
    }

    #[test]
    fn a_timeout_that_is_no_multiple_of_the_interval_is_rounded_up() {
        let mut observations = observations();
        let health = Health { counter: 1, timeout_us: 11 * S, external: false, seen_us: 0 };
        let mut checks = 0;
        while mine(observations.check(vec![("a".into(), health)])).is_empty() {
            checks += 1;
        }
        assert_eq!(checks, 3);
    }

    #[test]
    fn observations_of_a_worker_begin_anew_when_it_joins_again() {
        let mut observations = observations();
        for _ in 0..3 {
            check(&mut observations, &[("a", 7)]);
        }
        assert_eq!(check(&mut observations, &[("b", 7)]), NONE);
        for _ in 0..3 {
            assert_eq!(check(&mut observations, &[("a", 7)]), NONE);
        }
        assert_eq!(check(&mut observations, &[("a", 7)]), ["a"]);
    }

    #[test]
    fn a_reliable_neighbour_removes_the_dead_workers_behind_it() {
        let mut observations = observations();
        for n in 0..6 {
            let found = check(&mut observations, &[("a", 1), ("b", 1), ("c", n), ("d", 1)]);
            let expected: &[&str] = if n < 3 { &[] } else { &["a", "b"] };
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_newcomer_is_not_reliable_before_it_has_watched_for_a_timeout() {
        let mut observations = observations();
        for n in 0..3 {
            check(&mut observations, &[("a", n), ("c", 1)]);
        }
        // "b" joins, and "a" leaves: the new neighbour has not watched "c" for a timeout.
        assert_eq!(check(&mut observations, &[("b", 0), ("c", 1)]), ["c"]);
        for n in 1..3 {
            assert_eq!(check(&mut observations, &[("b", n), ("c", 1)]), ["c"]);
        }
        assert_eq!(check(&mut observations, &[("b", 3), ("c", 1)]), NONE);
    }

    #[test]
    fn a_neighbour_that_misses_half_of_its_timeout_is_not_reliable() {
        let mut observations = observations();
        for n in 0..9 {
            check(&mut observations, &[("a", n), ("b", n)]);
        }
        // Both die, the watcher of "b" a little later.
        assert_eq!(check(&mut observations, &[("a", 9), ("b", 8)]), NONE);
        assert_eq!(check(&mut observations, &[("a", 9), ("b", 8)]), NONE);
        assert_eq!(check(&mut observations, &[("a", 9), ("b", 8)]), ["b"]);
        assert_eq!(check(&mut observations, &[("a", 9), ("b", 8)]), ["a", "b"]);
    }

    #[test]
    fn none_moved_only_if_all_counters_were_seen_before_and_are_unchanged() {
        let mut observations = observations();
        let ring = |counters: &[u64]| -> Vec<(String, Health)> {
            counters.iter().zip(0..).map(|(counter, n)| (format!("{n}"), health(*counter))).collect()
        };
        assert!(!observations.none_moved(&ring(&[1, 1])));
        observations.check(ring(&[1, 1]));
        assert!(observations.none_moved(&ring(&[1, 1])));
        assert!(!observations.none_moved(&ring(&[1, 2])));
        assert!(!observations.none_moved(&ring(&[1, 1, 1])));
    }

    #[test]
    fn the_longest_timeout_does_not_overflow() {
        let mut observations = Observations::new(Duration::MAX);
        let health = Health { counter: 1, timeout_us: i64::MAX, external: false, seen_us: 0 };
        observations.check(vec![("a".into(), health)]);
        assert_eq!(mine(observations.check(vec![("a".into(), health)])).len(), 1);
    }
}
