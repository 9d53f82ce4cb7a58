//! How much of its limits a job uses while its servers are throttled.
//!
//! **Model.** A server that returns 429 or 503 is overloaded. The rate limiter delays requests. The job also makes
//! fewer concurrent requests, and smaller ones. Each such response halves its connections, its batches in flight and
//! their size, down to 1/32 (and never below one). Each second with a success doubles them again. Rejections at the
//! same time count once. Each side has its own level, so that the successes of one do not affect the other. Batches
//! follow the higher level, because a source need not be read faster than its target is written.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Side;

/// The most halvings: 20 connections become one, batches of 2,000 documents 62.
const MAX_LEVEL: u32 = 5;
/// Rejections within this time count once.
const VOLLEY: Duration = Duration::from_millis(250);
/// A level lasts at least this long.
const RELIEF: Duration = Duration::from_secs(1);

/// The pressure of one job, shared by its two peers: a gauge for each [`Side`].
#[derive(Debug, Default)]
pub(crate) struct Pressure([Gauge; 2]);

#[derive(Debug, Default)]
struct Gauge {
    level: AtomicU32,
    changed: Mutex<Option<Instant>>,
}

impl Gauge {
    fn level(&self) -> u32 {
        self.level.load(Ordering::Relaxed)
    }

    /// Changes the level, unless it has changed within the last `pause`.
    fn change(&self, now: Instant, pause: Duration, level: impl Fn(u32) -> u32) {
        let mut changed = self.changed.lock().expect("no thread panics while it holds this lock");
        if changed.is_none_or(|changed| now >= changed + pause) {
            self.level.store(level(self.level()), Ordering::Relaxed);
            *changed = Some(now);
        }
    }
}

impl Pressure {
    /// A server has responded that it is overloaded.
    pub fn refused(&self, side: Side, now: Instant) {
        self.0[side as usize].change(now, VOLLEY, |level| (level + 1).min(MAX_LEVEL));
    }

    /// A request succeeded.
    pub fn served(&self, side: Side, now: Instant) {
        let gauge = &self.0[side as usize];
        if gauge.level() > 0 {
            gauge.change(now, RELIEF, |level| level.saturating_sub(1));
        }
    }

    /// How much of the limit `room` to use.
    pub fn reduced(&self, room: usize) -> usize {
        let [source, target] = &self.0;
        (room >> source.level().max(target.level())).max(1)
    }

    /// How many of a side's connections one request takes, so that fewer requests fit.
    pub fn weight(&self, side: Side, connections: usize) -> u32 {
        let weight = 1u32 << self.0[side as usize].level();
        weight.min(u32::try_from(connections).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn each_volley_of_refusals_halves_and_each_served_second_doubles() {
        let (pressure, start) = (Pressure::default(), Instant::now());
        let at = |ms: u32| start + ms * MS;
        assert_eq!((pressure.reduced(2_000), pressure.weight(Side::Target, 20)), (2_000, 1));
        for nth in 0..20 {
            pressure.refused(Side::Target, at(nth));
        }
        assert_eq!((pressure.reduced(2_000), pressure.weight(Side::Target, 20)), (1_000, 2));
        // The other side keeps its connections, and its successes change nothing.
        pressure.served(Side::Source, at(5_000));
        assert_eq!((pressure.reduced(4), pressure.weight(Side::Source, 20)), (2, 1));
        for nth in 1..10 {
            pressure.refused(Side::Target, at(nth * 300));
        }
        assert_eq!((pressure.reduced(2_000), pressure.weight(Side::Target, 20)), (62, 20));
        assert_eq!(pressure.reduced(4), 1);
        for (ms, reduced) in [(2_800, 62), (3_700, 125), (3_800, 125), (4_700, 250), (9_000, 500)] {
            pressure.served(Side::Target, at(ms));
            assert_eq!(pressure.reduced(2_000), reduced, "{ms}");
        }
        for nth in 10..12 {
            pressure.served(Side::Target, at(nth * 1_000));
        }
        assert_eq!((pressure.reduced(2_000), pressure.weight(Side::Target, 20)), (2_000, 1));
    }
}
