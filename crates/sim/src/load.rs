//! How many jobs each worker held, and for how long. This shows whether it had room all the time.

use std::collections::{BTreeMap, VecDeque};

use crate::ledger::JobKey;

/// How far back the loads are known, in µs.
const KNOWN_US: i64 = 120_000_000;

/// The loads of all workers, by type and id.
#[derive(Default)]
pub struct Loads(BTreeMap<JobKey, VecDeque<(i64, usize)>>);

impl Loads {
    /// How many jobs a worker holds.
    pub fn now(&self, worker: &JobKey) -> usize {
        self.0.get(worker).and_then(|loads| loads.back()).map_or(0, |(_, load)| *load)
    }

    /// The most jobs that a worker held at one time since `since_us`.
    pub fn most_since(&self, worker: &JobKey, since_us: i64) -> usize {
        let Some(loads) = self.0.get(worker) else { return 0 };
        // The load at that time is the last entry before it.
        let begin = loads.iter().rposition(|(at_us, _)| *at_us < since_us).unwrap_or(0);
        loads.iter().skip(begin).map(|(_, load)| *load).max().unwrap_or(0)
    }

    /// The worker holds one more job.
    pub fn add(&mut self, worker: &JobKey, now_us: i64) {
        let load = self.now(worker) + 1;
        self.note(worker, load, now_us);
    }

    /// The worker holds one job less.
    pub fn take(&mut self, worker: &JobKey, now_us: i64) {
        let load = self.now(worker).saturating_sub(1);
        self.note(worker, load, now_us);
    }

    fn note(&mut self, worker: &JobKey, load: usize, now_us: i64) {
        let loads = self.0.entry(worker.clone()).or_default();
        loads.push_back((now_us, load));
        while loads.get(1).is_some_and(|(at_us, _)| *at_us < now_us - KNOWN_US) {
            loads.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_of_a_time_is_found() {
        let worker = ("t".to_owned(), "w".to_owned());
        let mut loads = Loads::default();
        assert_eq!(loads.most_since(&worker, 0), 0);
        loads.add(&worker, 10);
        loads.add(&worker, 20);
        loads.take(&worker, 30);
        assert_eq!(loads.most_since(&worker, 30), 2, "it held two when that time began");
        assert_eq!([loads.most_since(&worker, 31), loads.now(&worker)], [1, 1]);
        assert_eq!(loads.most_since(&worker, 0), 2);
        loads.add(&worker, 40 + KNOWN_US);
        assert_eq!(loads.0[&worker].len(), 2);
    }
}
