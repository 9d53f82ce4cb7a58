//! The thread that decides all commits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::checkpoint::{Frozen, RETRY_PAUSE};
use super::conflicts::Window;
use super::health::Patience;
use super::memtable::Memtable;
use super::submissions::{Decision, MAX_GROUP, Submission};
use super::view::Tables;
use super::wal::{self, Segment, Unwritten};
use super::{Lease, Published, Shared};
use crate::appends;
use crate::{Changes, Error, RangeRead, Result, Sum, Versionstamp};

const CLEAR_CHUNK: usize = 1_000;
const CANNOT_WRITE: &str = "the store cannot write its log";

/// The next group waits for more transactions, at most for the last write's duration divided by this. A client that just
/// got its answer returns within microseconds. On a disk that takes milliseconds, one write for all of them is better than
/// two writes for half of them each.
const PATIENCE_PART: u32 = 8;

/// The writes of a group: rows to set, and keys to remove where the value is `None`.
type Batch = BTreeMap<Bytes, Option<Bytes>>;

pub(super) struct Committer {
    shared: Arc<Shared>,
    segment: Segment,
    /// Whether the end of the segment is unknown, so that the next record goes into the next segment.
    spoiled: bool,
    /// A group that may or may not have been written. It is written before any other.
    doubtful: Option<Batch>,
    disk_patience: Patience,
    window: Window,
    /// The last published version, on which the next group builds.
    version: u64,
    /// Every version that a snapshot may still hold, oldest first.
    leased: VecDeque<LeasedVersion>,
    /// The number of transactions for which the next group waits: one from each client that was answered, and those that
    /// wait already.
    expected: usize,
    /// How long it waits for them: a fraction of the last write's duration.
    patience: Duration,
}

struct LeasedVersion {
    version: u64,
    /// When the next version was published, after which no snapshot of this one was taken.
    replaced_us: Option<i64>,
    lease: Weak<Lease>,
}

impl Committer {
    /// A committer that continues from the published version, in the log segment `segment`.
    pub(super) fn new(shared: Arc<Shared>, segment: Segment, disk_patience: Patience) -> Self {
        let newest = shared.published();
        let version = newest.version();
        let leased = LeasedVersion { version, replaced_us: None, lease: Arc::downgrade(&newest.lease) };
        Committer {
            shared,
            segment,
            spoiled: false,
            doubtful: None,
            disk_patience,
            window: Window::new(version),
            version,
            leased: VecDeque::from([leased]),
            expected: 0,
            patience: Duration::ZERO,
        }
    }

    /// Decides groups until the store is closed.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            if let Some(batch) = self.doubtful.take() {
                if shared.submissions.pause(RETRY_PAUSE) {
                    return;
                }
                self.write_and_publish(batch, Vec::new());
            } else if let Some(group) = shared.submissions.next_group(self.expected, self.patience) {
                self.commit(group);
            } else {
                return self.close();
            }
        }
    }

    /// Appends an empty record, so that damage to the last record is detected: only a record that nothing follows may be torn.
    fn close(&mut self) {
        if !self.spoiled && self.segment.append(self.version, &[]).is_err() {
            tracing::warn!("the end of the store's log could not be written: nothing is lost");
        }
    }

    /// Writes the transactions without conflicts, with one fsync, and answers all.
    fn commit(&mut self, group: VecDeque<Submission>) {
        let now_us = self.shared.runtime.elapsed_us();
        let version = self.version + 1;
        let newest = self.shared.published();
        let mut batch = Batch::new();
        let mut accepted = Vec::with_capacity(group.len());
        let mut unread = false;
        for submission in group {
            let place = u16::try_from(accepted.len()).expect("a group is smaller than MAX_GROUP");
            let stamp = Versionstamp::of(version, place);
            let checked = self.check(&submission, &batch, now_us).and_then(|()| {
                let cleared = self.rows_to_clear(&newest, &submission.changes, &batch)?;
                Ok((cleared, self.sums(&newest, &submission.changes, &batch)?))
            });
            match checked {
                Ok((cleared, sums)) => {
                    collect(submission.changes, cleared, stamp, &mut batch);
                    batch.extend(sums);
                    accepted.push((submission.answer, stamp));
                }
                Err(error) => {
                    match error {
                        Error::Conflict => self.shared.stats.conflicts.add(1),
                        Error::Unavailable(_) | Error::NoRoom { .. } | Error::Corrupt(_) => unread = true,
                        _ => {}
                    }
                    let _ = submission.answer.send(Err(error));
                }
            }
        }
        if unread {
            self.shared.look_after(&newest.tables);
        }
        drop(newest);
        if !accepted.is_empty() {
            self.write_and_publish(batch, accepted);
        }
    }

    /// Writes and publishes the next version. If that fails, reports the error and pauses before the next attempt. After a write
    /// that failed half-way, it is unknown whether the log has the group. The group is then written again, into another segment
    /// and before any other group.
    fn write_and_publish(&mut self, batch: Batch, accepted: Accepted) {
        let version = self.version + 1;
        let written = match self.write(version, &batch) {
            Err(Unwritten { in_doubt: true, .. }) => {
                self.write(version, &batch).map_err(|unwritten| Unwritten { in_doubt: true, ..unwritten })
            }
            written => written,
        };
        match written {
            Ok(written) => {
                self.disk_patience.works();
                self.publish(version, batch, &written, accepted);
            }
            Err(Unwritten { error, in_doubt }) => {
                // Without waiting transactions this still is the doubtful group.
                let in_doubt = in_doubt || accepted.is_empty();
                for (answer, _) in accepted {
                    let _ = answer.send(Err(match in_doubt {
                        true => Error::UnknownOutcome(error.to_string()),
                        false => error.clone(),
                    }));
                }
                self.shared.submissions.refuse_waiting(&error);
                match in_doubt {
                    true => self.doubtful = Some(batch),
                    false => drop(self.shared.submissions.pause(RETRY_PAUSE)),
                }
            }
        }
    }

    /// Makes the written version visible, and answers its transactions.
    fn publish(&mut self, version: u64, batch: Batch, written: &Written, accepted: Accepted) {
        let oldest = self.forget(self.shared.runtime.elapsed_us());
        let tables = self.shared.published().tables.clone();
        tables.active.apply(version, wal::rows(&written.rows), oldest);
        self.shared.gaps.cut(batch.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key));
        let lease = Lease::new(version);
        let leased = LeasedVersion { version, replaced_us: None, lease: Arc::downgrade(&lease) };
        self.version = version;
        self.shared.publish(lease);
        if let Some(replaced) = self.leased.back_mut() {
            replaced.replaced_us = Some(self.shared.runtime.elapsed_us());
        }
        self.leased.push_back(leased);
        let stats = &self.shared.stats;
        stats.groups.add(1);
        stats.commits.add(accepted.len() as u64);
        stats.log_bytes.add(written.log_bytes);
        // The transactions that already wait, and the clients that return with their next one after this answer.
        self.expected = (self.shared.submissions.len() + accepted.len()).min(MAX_GROUP);
        for (answer, stamp) in accepted {
            let _ = answer.send(Ok(stamp));
        }
        self.shared.watches.wake(batch.iter());
        self.window.push(version, batch.into_keys().collect());
        if self.window.wants_merging() {
            self.leased.retain(|leased| leased.lease.strong_count() > 0);
            let versions: Vec<u64> = self.leased.iter().map(|leased| leased.version).collect();
            self.window.merge(&versions);
        }
    }

    /// Whether nothing that a transaction has read was written since.
    fn check(&self, submission: &Submission, batch: &Batch, now_us: i64) -> Result<()> {
        let Submission { version, taken_us, changes, .. } = submission;
        self.shared.check_age(*taken_us, now_us)?;
        if !self.window.covers(*version) {
            return Err(self.shared.too_old());
        }
        let key_changed = |key: &Bytes| batch.contains_key(key) || self.window.wrote_key(*version, key);
        let range_changed = |(begin, end): &(Bytes, Bytes)| {
            begin < end
                && (batch.range::<Bytes, _>(begin..end).next().is_some()
                    || self.window.wrote_within(*version, begin, end))
        };
        let mut ranges = changes.read_ranges.iter().chain(&changes.arrivals);
        if changes.read_keys.iter().any(key_changed) || ranges.any(range_changed) {
            return Err(Error::Conflict);
        }
        Ok(())
    }

    /// The rows of the ranges that a transaction clears: stored rows, and rows of its group. Clearing a range that stores nothing
    /// is no write, so it causes no conflict.
    fn rows_to_clear(&self, newest: &Published, changes: &Changes, batch: &Batch) -> Result<Vec<Bytes>> {
        let mut rows = Vec::new();
        for (begin, end) in changes.clear_ranges.iter().filter(|(begin, end)| begin < end) {
            rows.extend(batch.range::<Bytes, _>(begin..end).map(|(key, _)| key.clone()));
            let mut rest =
                RangeRead { begin: begin.clone(), end: end.clone(), limit: CLEAR_CHUNK, reverse: false };
            loop {
                let chunk = newest.tables.range(&rest, self.version, &self.shared.gaps)?;
                let more = chunk.len() == rest.limit;
                if let Some((last, _)) = chunk.last() {
                    rest.pass(last);
                }
                rows.extend(chunk.into_iter().map(|(key, _)| key));
                if !more {
                    break;
                }
            }
        }
        Ok(rows)
    }

    /// The new rows of the sums that a transaction adds to.
    fn sums(&self, newest: &Published, changes: &Changes, batch: &Batch) -> Result<Batch> {
        let sum = |(key, added): &(Bytes, Sum)| {
            let before = match batch.get(key) {
                Some(value) => value.clone(),
                None => newest.tables.get(key, self.version)?,
            };
            let mut sum = before.map_or(Ok(Sum::default()), |value| Sum::read(&value))?;
            sum += *added;
            Ok((key.clone(), Some(sum.to_bytes())))
        };
        changes.adds.iter().map(sum).collect()
    }

    /// Writes a group to the log, in the next segment if this one is full.
    fn write(&mut self, version: u64, batch: &Batch) -> Result<Written, Unwritten> {
        let rows = wal::encode(batch.iter()).map_err(|error| self.before_the_log(error))?;
        if self.spoiled || !self.segment.has_room(&rows, self.shared.segment_bytes) {
            self.rotate().map_err(|error| self.before_the_log(error))?;
        }
        let start = Instant::now();
        let appended = self.segment.append(version, &rows);
        let took = start.elapsed();
        self.shared.log_writes.observe_us(i64::try_from(took.as_micros()).unwrap_or(i64::MAX));
        self.patience = took / PATIENCE_PART;
        let log_bytes = appended.inspect_err(|Unwritten { error, in_doubt }| {
            self.spoiled |= in_doubt;
            self.disk_patience.bear(error, CANNOT_WRITE, &self.shared);
        })?;
        Ok(Written { rows, log_bytes })
    }

    /// An error before the log is written. The checkpointer bears its own errors, so this one is only passed on.
    fn before_the_log(&mut self, error: Error) -> Unwritten {
        self.disk_patience.pass(&error, CANNOT_WRITE);
        Unwritten { error, in_doubt: false }
    }

    /// Starts the next segment and a new memtable, and passes the old ones to the checkpointer.
    fn rotate(&mut self) -> Result<()> {
        let next = self.shared.checkpoints.next_segment()?;
        let next_number = next.number;
        let full = std::mem::replace(&mut self.segment, next);
        self.spoiled = false;
        let mut frozen = None;
        self.shared.replace_tables(|tables| {
            frozen = Some(tables.active.clone());
            Tables {
                active: Arc::new(Memtable::default()),
                generation: tables.generation + 1,
                frozen: frozen.clone(),
                base: tables.base.clone(),
            }
        });
        self.shared.gaps.rotate(self.shared.published().tables.generation);
        let memtable = frozen.expect("it was just replaced");
        self.shared.checkpoints.start(Frozen {
            version: self.version,
            memtable,
            files: vec![full.into_file()],
            next: next_number,
        });
        Ok(())
    }

    /// Expires snapshots that are too old, and drops the keys that no other held snapshot needs. Returns the oldest version
    /// that a snapshot may still read.
    fn forget(&mut self, now_us: i64) -> u64 {
        while let Some(LeasedVersion { replaced_us: Some(replaced_us), lease, .. }) = self.leased.front() {
            if let Some(lease) = lease.upgrade() {
                if self.shared.check_age(*replaced_us, now_us).is_ok() {
                    break;
                }
                lease.expired.store(true, Ordering::SeqCst);
            }
            self.leased.pop_front();
        }
        let oldest = self.leased.front().map_or(self.version, |leased| leased.version);
        self.window.forget_until(oldest);
        oldest
    }
}

/// The transactions that wait for a group's result, with their stamps.
type Accepted = Vec<(oneshot::Sender<Decision>, Versionstamp)>;

/// A group that is in the log.
struct Written {
    rows: Bytes,
    log_bytes: u64,
}

impl Drop for Committer {
    /// On close or panic: no transaction may wait for a committer that has ended.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.end("the thread of the store's commits has panicked");
        }
        self.shared.submissions.refuse(&Error::Unavailable("the store is closed".to_owned()));
        self.shared.watches.close();
    }
}

/// Adds a transaction's writes to the batch of its group.
fn collect(changes: Changes, cleared: Vec<Bytes>, stamp: Versionstamp, batch: &mut Batch) {
    batch.extend(cleared.into_iter().map(|key| (key, None)));
    if batch.is_empty() {
        // Built at once from sorted rows, which is faster than row by row. Large transactions are often alone in their group.
        *batch = changes.puts.into_iter().collect();
    } else if changes.puts.len() >= batch.len() / 2 {
        // Merged, which compares each row with one or two others.
        batch.append(&mut changes.puts.into_iter().collect());
    } else {
        batch.extend(changes.puts);
    }
    let bytes = stamp.0;
    let stamp = Bytes::copy_from_slice(&bytes);
    batch.extend(
        changes.appends.into_iter().map(|(key, lines)| (key, Some(appends::stamped(&bytes, &lines)))),
    );
    batch.extend(changes.versionstamped.into_iter().map(|key| (key, Some(stamp.clone()))));
}
