//! Counters, gauges and histograms for metrics: plain atomics, so that measuring takes no lock and allocates nothing.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Upper bounds of the buckets for calls within a server, in µs: from 100 µs to 10 s.
pub const CALL_BOUNDS_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];

/// A number of events.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `more` events.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// The number so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds to it.
    pub fn add(&self, more: i64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// How long things took: a counter for each range of times, and the sum.
#[derive(Debug)]
pub struct Histogram {
    bounds_us: &'static [u64],
    /// One more than bounds: the last one counts the times above all bounds.
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Histogram {
    /// With buckets up to these bounds, which ascend, in µs.
    pub fn new(bounds_us: &'static [u64]) -> Histogram {
        let counts = (0..=bounds_us.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds_us, counts, sum_us: AtomicU64::new(0) }
    }

    /// Counts a time, in µs. A negative one, of a clock that was set back, counts as zero.
    pub fn observe_us(&self, us: i64) {
        let us = u64::try_from(us).unwrap_or(0);
        let bucket = self.bounds_us.partition_point(|bound| *bound < us);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// The sum of all times, in µs.
    pub fn sum_us(&self) -> u64 {
        self.sum_us.load(Relaxed)
    }

    /// What it has counted so far.
    pub fn read(&self) -> Times {
        Times {
            bounds_us: self.bounds_us,
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum_us: self.sum_us(),
        }
    }
}

/// What a [`Histogram`] has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// The upper bounds of the buckets, in µs.
    pub bounds_us: &'static [u64],
    /// The times in each bucket, and behind them those above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all times, in µs.
    pub sum_us: u64,
}

impl Times {
    /// The number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_it_does_not_exceed() {
        let histogram = Histogram::new(&[10, 100]);
        for us in [-5, 0, 10, 11, 100, 101] {
            histogram.observe_us(us);
        }
        let times = histogram.read();
        assert_eq!((times.counts.as_slice(), times.sum_us), ([3, 2, 1].as_slice(), 222));
        assert_eq!(times.count(), 6);
    }
}
