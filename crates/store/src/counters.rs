//! The counters of a store since it was opened, and its condition, by the same code for every engine.
//!
//! Every call to an engine goes through [`Meter`], so that each call is counted exactly once. A store is failing from the
//! first call that it could not answer until the next one that it could. A commit of unknown outcome counts as not
//! answered. After a failed commit, only a commit ends the failure: a store that is full still answers reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;

use crate::metrics::{CALL_BOUNDS_US, Counter, Histogram, Times};
use crate::sync::Mutex;
use crate::{Changes, Error, KeyValue, RangeRead, Result, Runtime, Snapshot, Versionstamp, Visit};

/// The work that a store has done since it was opened, as numbers, or while it is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters<N = u64> {
    /// Transactions that were begun. Each attempt counts.
    pub transactions: N,
    /// Commits that the engine was called for, successful or not. A transaction that wrote nothing calls for none.
    pub commits: N,
    /// Commits that failed because of a conflict.
    pub conflicts: N,
    /// Reads and commits that failed because their transaction was too old.
    pub too_old: N,
    /// Commits with an unknown outcome.
    pub unknown_outcomes: N,
    /// Calls that the store could not answer.
    pub unavailable: N,
    /// Reads of one key.
    pub gets: N,
    /// Reads of a range.
    pub ranges: N,
    /// Rows that these reads returned.
    pub rows_read: N,
    /// Rows and ranges that successful commits wrote or cleared.
    pub rows_written: N,
    /// The total duration of all commits, in µs.
    pub commit_us: N,
    /// Writes and commits that were refused because of a limit: a caller's mistake, or data that is too large.
    pub too_much: N,
    /// Transactions that were run again after a conflict or a failure that passes.
    pub retries: N,
}

impl Counters<Counter> {
    fn read(&self) -> Counters {
        Counters {
            transactions: self.transactions.get(),
            commits: self.commits.get(),
            conflicts: self.conflicts.get(),
            too_old: self.too_old.get(),
            unknown_outcomes: self.unknown_outcomes.get(),
            unavailable: self.unavailable.get(),
            gets: self.gets.get(),
            ranges: self.ranges.get(),
            rows_read: self.rows_read.get(),
            rows_written: self.rows_written.get(),
            commit_us: self.commit_us.get(),
            too_much: self.too_much.get(),
            retries: self.retries.get(),
        }
    }
}

impl Counters {
    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            transactions: self.transactions.saturating_sub(earlier.transactions),
            commits: self.commits.saturating_sub(earlier.commits),
            conflicts: self.conflicts.saturating_sub(earlier.conflicts),
            too_old: self.too_old.saturating_sub(earlier.too_old),
            unknown_outcomes: self.unknown_outcomes.saturating_sub(earlier.unknown_outcomes),
            unavailable: self.unavailable.saturating_sub(earlier.unavailable),
            gets: self.gets.saturating_sub(earlier.gets),
            ranges: self.ranges.saturating_sub(earlier.ranges),
            rows_read: self.rows_read.saturating_sub(earlier.rows_read),
            rows_written: self.rows_written.saturating_sub(earlier.rows_written),
            commit_us: self.commit_us.saturating_sub(earlier.commit_us),
            too_much: self.too_much.saturating_sub(earlier.too_much),
            retries: self.retries.saturating_sub(earlier.retries),
        }
    }
}

/// Whether a store works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The latest call was answered.
    Working,
    /// A call failed, and no call has been answered since.
    Failing {
        /// The time of the first failed call, in µs since the epoch.
        since_us: i64,
        /// The latest failure, in one line.
        reason: String,
    },
}

/// Counts calls, and detects when the store starts and stops failing. It may outlive its store.
pub struct Meter {
    runtime: Arc<dyn Runtime>,
    pub(crate) counts: Counters<Counter>,
    commits_took: Histogram,
    /// Whether `failure` is set. A successful call reads only this flag.
    failing: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

struct Failure {
    since_us: i64,
    reason: String,
    /// Whether a commit failed. Then only a successful commit ends the failure.
    of_commits: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Read,
    Commit,
}

impl Meter {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Arc<Meter> {
        Arc::new(Meter {
            runtime,
            counts: Counters::default(),
            commits_took: Histogram::new(CALL_BOUNDS_US),
            failing: AtomicBool::default(),
            failure: Mutex::default(),
        })
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.counts.read()
    }

    /// How long commits took, successful or not.
    pub fn commits_took(&self) -> Times {
        self.commits_took.read()
    }

    /// Whether the store works, according to the latest calls.
    pub fn condition(&self) -> Condition {
        match &*self.failure.lock() {
            None => Condition::Working,
            Some(Failure { since_us, reason, .. }) => {
                Condition::Failing { since_us: *since_us, reason: reason.clone() }
            }
        }
    }

    /// Counts a transaction that was begun, and the result of its snapshot.
    pub(crate) fn began<T>(&self, result: &Result<T>) {
        self.counts.transactions.add(1);
        self.promised(result);
    }

    /// Records the result of a call that the engine accepted or refused. Only a refusal counts: success proves nothing, because
    /// an engine may contact its server only at the first read.
    pub(crate) fn promised<T>(&self, result: &Result<T>) {
        if result.is_err() {
            self.answered(Call::Read, result);
        }
    }

    fn answered<T>(&self, call: Call, result: &Result<T>) {
        let error = match result {
            Ok(_) => return self.works(call),
            Err(error) => error,
        };
        match error {
            // A conflict is an answer, so the store works.
            Error::Conflict => {
                self.counts.conflicts.add(1);
                self.works(call);
            }
            Error::TooOld { .. } => self.counts.too_old.add(1),
            Error::Unavailable(reason) => {
                self.counts.unavailable.add(1);
                self.fails(call, reason);
            }
            Error::NoRoom { .. } => {
                self.counts.unavailable.add(1);
                self.fails(call, &error.to_string());
            }
            Error::UnknownOutcome(reason) => {
                self.counts.unknown_outcomes.add(1);
                self.fails(call, reason);
            }
            Error::Corrupt(reason) => self.fails(call, reason),
            Error::TooLarge { .. } | Error::TooMany { .. } | Error::Misuse(_) | Error::Exposed(_) => {}
        }
    }

    fn works(&self, call: Call) {
        if !self.failing.load(Relaxed) {
            return;
        }
        let mut failure = self.failure.lock();
        let over = |failure: &mut Failure| call == Call::Commit || !failure.of_commits;
        if let Some(over) = failure.take_if(over) {
            self.failing.store(false, Relaxed);
            let failed_ms = self.runtime.now_us().saturating_sub(over.since_us) / 1_000;
            tracing::info!(failed_ms, "the store works again");
        }
    }

    fn fails(&self, call: Call, reason: &str) {
        let mut failure = self.failure.lock();
        match &mut *failure {
            Some(failure) => {
                reason.clone_into(&mut failure.reason);
                failure.of_commits |= call == Call::Commit;
            }
            None => {
                tracing::warn!("the store fails: {reason}");
                let since_us = self.runtime.now_us();
                let of_commits = call == Call::Commit;
                *failure = Some(Failure { since_us, reason: reason.to_owned(), of_commits });
                self.failing.store(true, Relaxed);
            }
        }
    }
}

/// A snapshot whose reads and commit are counted.
#[derive(Clone)]
pub(crate) struct Metered {
    pub snapshot: Arc<dyn Snapshot>,
    pub meter: Arc<Meter>,
}

impl Metered {
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let result = self.snapshot.get(key).await;
        self.read(&self.meter.counts.gets, result, |value| usize::from(value.is_some()))
    }

    pub(crate) async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        let result = self.snapshot.range(read).await;
        self.read(&self.meter.counts.ranges, result, Vec::len)
    }

    /// A walk counts as a read of a range. Returns whether the engine has made it.
    pub(crate) fn walk(&self, range: &RangeRead, visit: &mut Visit<'_>) -> Result<bool> {
        let Some(result) = self.snapshot.walk(range, visit) else { return Ok(false) };
        self.read(&self.meter.counts.ranges, result, |rows| *rows).map(|_| true)
    }

    /// Counts a read, and the rows that it has returned.
    fn read<T>(&self, reads: &Counter, result: Result<T>, rows: impl Fn(&T) -> usize) -> Result<T> {
        reads.add(1);
        if let Ok(found) = &result {
            self.meter.counts.rows_read.add(rows(found) as u64);
        }
        self.meter.answered(Call::Read, &result);
        result
    }

    pub(crate) async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        let rows = changes.puts.len() + changes.clear_ranges.len() + changes.versionstamped.len();
        let rows = rows + changes.adds.len() + changes.appends.len();
        let begun_us = self.meter.runtime.elapsed_us();
        let result = self.snapshot.commit(changes).await;
        let took_us = self.meter.runtime.elapsed_us().saturating_sub(begun_us);
        self.meter.counts.commits.add(1);
        self.meter.counts.commit_us.add(u64::try_from(took_us).unwrap_or(0));
        self.meter.commits_took.observe_us(took_us);
        if result.is_ok() {
            self.meter.counts.rows_written.add(rows as u64);
        }
        self.meter.answered(Call::Commit, &result);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Manual;

    fn unavailable<T>(reason: &str) -> Result<T> {
        Err(Error::Unavailable(reason.to_owned()))
    }

    #[test]
    fn it_fails_from_the_first_failure_until_the_next_success() {
        let clock = Manual::new(5, 1);
        let meter = Meter::new(clock.clone());
        assert_eq!(meter.condition(), Condition::Working);
        meter.began::<()>(&unavailable("no route"));
        clock.advance(std::time::Duration::from_micros(10));
        meter.began::<()>(&unavailable("no quorum"));
        let failing = Condition::Failing { since_us: 5, reason: "no quorum".to_owned() };
        assert_eq!(meter.condition(), failing);
        meter.began(&Ok(()));
        assert_eq!(meter.condition(), failing);
        meter.answered(Call::Read, &Ok(()));
        assert_eq!(meter.condition(), Condition::Working);
        assert_eq!(meter.counters().unavailable, 2);
        assert_eq!(meter.counters().transactions, 3);
    }

    #[test]
    fn reads_do_not_hide_that_commits_fail() {
        let meter = Meter::new(Manual::new(0, 1));
        meter.answered::<()>(Call::Commit, &unavailable("no space"));
        meter.answered(Call::Read, &Ok(()));
        assert_ne!(meter.condition(), Condition::Working);
        // A commit that conflicted with another one reached a store that works.
        meter.answered::<()>(Call::Commit, &Err(Error::Conflict));
        assert_eq!(meter.condition(), Condition::Working);
        assert_eq!(meter.counters().conflicts, 1);
    }

    #[test]
    fn a_mistake_of_the_caller_does_not_change_the_condition() {
        let meter = Meter::new(Manual::new(0, 1));
        meter.answered::<()>(Call::Commit, &Err(Error::Misuse("no".to_owned())));
        meter.answered::<()>(Call::Read, &Err(Error::TooOld { limit_ms: 1 }));
        assert_eq!(meter.condition(), Condition::Working);
        assert_eq!(meter.counters().too_old, 1);
    }
}
