//! How many slots the jobs of a type need, so that what could run now has started within a time, the *target*.
//!
//! ```text
//! needed = max(running, ⌈busy + Σ over groups ( jobs · min(1, expected run time / target) )⌉), at most running + runnable
//! wanted = the highest `needed` within the last target
//! ```
//!
//! Forces, and what follows from them:
//!
//! - *A job shorter than the target shares a slot with others.* A longer one takes a slot of its own.
//! - *`busy` is a mean.* The slots that serve a steady stream of jobs are busy, and nothing waits. So what runs must count as well as
//!   what waits. If the jobs that run *now* counted, then a backlog would be counted twice as soon as a part of it runs: with 1,000 jobs
//!   of 0.2 s and a target of 10 s, 20 slots are enough, and twice as many would be wanted once 20 jobs run. The mean over a target
//!   rises as fast as the backlog falls. It is exponential: a plain mean over the last target oscillates more (`tests/demand.rs`).
//! - *`needed` falls while a backlog is worked off.* Slots that left with it would prolong the rest. So `wanted` falls one target later.
//!
//! Autoscalers add pauses of their own. These are not needed here, but do no harm.

use std::collections::VecDeque;

/// Jobs that could run now, with the same expected run time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// How many they are.
    pub jobs: u64,
    /// How long one is expected to run, in µs.
    pub expected_us: f64,
}

/// The most values of `needed` that are kept. Within a target, only the highest of a part of this size is kept.
const MAX_KEPT: usize = 64;

/// The slots that waiting jobs need for themselves.
pub fn for_waiting(groups: &[Group], target_us: f64) -> f64 {
    let target_us = target_us.max(1.0);
    groups.iter().map(|group| group.jobs as f64 * (group.expected_us.max(0.0) / target_us).min(1.0)).sum()
}

/// What is known of the demand for one type from earlier observations.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracker {
    target_us: f64,
    /// The mean number of running jobs, as of the last observation.
    busy: f64,
    /// The last observation: when, in µs, and how many jobs ran.
    last: Option<(i64, u64)>,
    /// Earlier values of `needed`, each with its time: a later one is lower.
    highest: VecDeque<(i64, u64)>,
}

/// The slots for a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slots {
    /// What is needed now.
    pub needed: u64,
    /// The highest of these values within the last target. This is what a scaler should provide.
    pub wanted: u64,
}

impl Tracker {
    /// A tracker without observations, for a target in µs, at least one second.
    pub fn new(target_us: i64) -> Tracker {
        let target_us = target_us.max(1_000_000) as f64;
        Tracker { target_us, busy: 0.0, last: None, highest: VecDeque::new() }
    }

    /// The slots that are needed at `now_us`, when `running` jobs run and `groups` could. Without earlier observations, the jobs that
    /// run count as a steady stream. A clock that was set back is as if no time had passed.
    pub fn observe(&mut self, now_us: i64, running: u64, groups: &[Group]) -> Slots {
        match self.last {
            None => self.busy = running as f64,
            Some((before_us, ran)) => {
                let passed = now_us.saturating_sub(before_us).max(0) as f64;
                let ran = ran as f64;
                self.busy = ran + (self.busy - ran) * (-passed / self.target_us).exp();
            }
        }
        self.last = Some((now_us, running));
        let runnable: u64 = groups.iter().fold(0, |sum, group| sum.saturating_add(group.jobs));
        let sum = (self.busy + for_waiting(groups, self.target_us) - ROUNDING).ceil().max(0.0);
        let needed = (sum as u64).max(running).min(running.saturating_add(runnable));
        Slots { needed, wanted: self.keep(now_us, needed) }
    }

    /// Adds a value to the window. Returns the highest in it.
    fn keep(&mut self, now_us: i64, needed: u64) -> u64 {
        let (target_us, part_us) = (self.target_us as i64, (self.target_us as i64) / MAX_KEPT as i64);
        // A value from the future was seen before the clock was set back.
        self.highest.retain(|(at_us, _)| (0..=target_us).contains(&now_us.saturating_sub(*at_us)));
        while self.highest.back().is_some_and(|(_, last)| *last <= needed) {
            self.highest.pop_back();
        }
        match self.highest.back() {
            // The higher one stands for both, and is forgotten a little early.
            Some((at_us, _)) if now_us.saturating_sub(*at_us) < part_us => {}
            _ => self.highest.push_back((now_us, needed)),
        }
        self.highest.front().map_or(needed, |(_, highest)| (*highest).max(needed))
    }
}

/// A mean that comes close to a whole number from above needs no slot more.
const ROUNDING: f64 = 0.01;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: i64 = 1_000_000;

    fn jobs(jobs: u64, expected_us: f64) -> Group {
        Group { jobs, expected_us }
    }

    #[test]
    fn a_backlog_gets_the_slots_that_start_it_within_the_target() {
        let mut tracker = Tracker::new(10 * S);
        assert_eq!(tracker.observe(0, 0, &[]), Slots::default());
        // 1,000 jobs of 0.2 s are 200 s of work.
        let slots = tracker.observe(S, 0, &[jobs(1_000, 200_000.0)]);
        assert_eq!(slots, Slots { needed: 20, wanted: 20 });
        // A part of it runs: no slot more.
        let slots = tracker.observe(2 * S, 20, &[jobs(980, 200_000.0)]);
        assert_eq!(slots, Slots { needed: 20, wanted: 20 });
        let slots = tracker.observe(7 * S, 20, &[jobs(480, 200_000.0)]);
        assert_eq!(slots.wanted, 20);
        assert!(slots.needed <= 20);
        // Nothing is left: the slots are wanted for another target.
        let slots = tracker.observe(11 * S, 0, &[]);
        assert_eq!(slots, Slots { needed: 0, wanted: 20 });
        assert_eq!(tracker.observe(40 * S, 0, &[]).wanted, 0);
    }

    #[test]
    fn long_jobs_take_a_slot_each_and_never_more_than_there_are_jobs() {
        let mut tracker = Tracker::new(10 * S);
        assert_eq!(tracker.observe(0, 3, &[jobs(4, 3_600.0 * 1e6)]).needed, 7);
        // The mean is 3 and falls.
        assert_eq!(tracker.observe(S, 0, &[jobs(1, 1e6)]).needed, 1);
    }

    #[test]
    fn a_steady_stream_keeps_its_slots() {
        let mut tracker = Tracker::new(10 * S);
        for second in 0..100 {
            assert_eq!(tracker.observe(second * S, 12, &[]), Slots { needed: 12, wanted: 12 });
        }
    }

    #[test]
    fn a_clock_that_was_set_back_forgets_nothing_for_ever() {
        let mut tracker = Tracker::new(10 * S);
        tracker.observe(1_000 * S, 50, &[]);
        let slots = tracker.observe(0, 0, &[]);
        assert_eq!(slots, Slots::default());
        assert_eq!(tracker.observe(S, 1, &[]).wanted, 1);
    }

    proptest! {
        #[test]
        fn prop_every_slot_has_a_job_and_every_running_job_a_slot(
            target in 1..4_000_i64,
            steps in prop::collection::vec((0..100_i64, 0..1_000_u64, 0..10_000_u64, 0.0..1e9), 1..100),
        ) {
            let mut tracker = Tracker::new(target * S);
            let mut now_us = 0;
            for (seconds, running, runnable, expected_us) in steps {
                now_us += seconds * S;
                let slots = tracker.observe(now_us, running, &[jobs(runnable, expected_us)]);
                prop_assert!((running..=running + runnable).contains(&slots.needed));
                prop_assert!(slots.wanted >= slots.needed);
                prop_assert!(tracker.highest.len() <= MAX_KEPT + 2);
            }
        }
    }
}
