//! The thread that decides about all commits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::base::{Base, Batch};
use super::conflicts::Window;
use super::folder::Folder;
use super::{Published, Shared};
use crate::key::successor;
use crate::{Changes, Error, RangeRead, Result, Versionstamp};

/// Most transactions that wait for the committer; more are told to come back later.
const MAX_WAITING: usize = 65_536;
/// Most transactions that share one fsync: two bytes of the versionstamp count them.
const MAX_GROUP: usize = 8_192;
/// Rows that are read at a time where a range is cleared.
const CLEAR_CHUNK: usize = 1_000;

type Decision = Result<Versionstamp>;

/// A transaction that waits to be decided about.
struct Submission {
    version: u64,
    taken_us: i64,
    changes: Changes,
    answer: oneshot::Sender<Decision>,
}

/// The transactions that wait for the committer.
#[derive(Default)]
pub(super) struct Submissions {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Submission>,
    /// Why nothing is accepted any more.
    refused: Option<String>,
    closed: bool,
}

impl Submissions {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a transaction to the committer. The receiver gets the decision.
    pub(super) fn submit(
        &self,
        version: u64,
        taken_us: i64,
        changes: Changes,
    ) -> Result<oneshot::Receiver<Decision>> {
        let (answer, decision) = oneshot::channel();
        let mut waiting = self.waiting();
        if let Some(reason) = &waiting.refused {
            return Err(Error::Unavailable(reason.clone()));
        }
        if waiting.queue.len() >= MAX_WAITING {
            return Err(Error::Unavailable(format!("more than {MAX_WAITING} transactions wait to commit")));
        }
        waiting.queue.push_back(Submission { version, taken_us, changes, answer });
        let was_idle = waiting.queue.len() == 1;
        drop(waiting);
        if was_idle {
            self.arrived.notify_one();
        }
        Ok(decision)
    }

    /// Everything that waits, up to a group; nothing once the store is closed and all is done.
    fn next_group(&self) -> Option<VecDeque<Submission>> {
        let mut waiting = self.waiting();
        loop {
            if !waiting.queue.is_empty() {
                let rest = waiting.queue.len().min(MAX_GROUP);
                let rest = waiting.queue.split_off(rest);
                return Some(std::mem::replace(&mut waiting.queue, rest));
            }
            if waiting.closed {
                return None;
            }
            waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Refuses everything from now on, and what waits already: none of it has been written.
    fn refuse(&self, reason: &str) {
        let mut waiting = self.waiting();
        waiting.refused = Some(reason.to_owned());
        for submission in waiting.queue.drain(..) {
            let _ = submission.answer.send(Err(Error::Unavailable(reason.to_owned())));
        }
    }

    /// Takes no more transactions; those that wait are still decided about.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.refused.get_or_insert_with(|| "the store is closed".to_owned());
        waiting.closed = true;
        drop(waiting);
        self.arrived.notify_one();
    }
}

/// The committer's own state.
pub(super) struct Committer {
    shared: Arc<Shared>,
    base: Box<dyn Base>,
    window: Window,
    /// What was published last: what the next group builds on.
    newest: Arc<Published>,
    /// Every version that a snapshot may still hold, oldest first.
    held: VecDeque<(u64, i64, Weak<Published>)>,
    /// Released last.
    _folder: Folder,
}

impl Committer {
    pub(super) fn new(
        shared: Arc<Shared>,
        base: Box<dyn Base>,
        newest: Arc<Published>,
        folder: Folder,
    ) -> Self {
        let version = newest.version;
        let held = VecDeque::from([(version, shared.runtime.now_us(), Arc::downgrade(&newest))]);
        Committer { shared, base, window: Window::new(version), newest, held, _folder: folder }
    }

    /// Decides about groups until the store is closed.
    pub(super) fn run(mut self) {
        while let Some(group) = self.shared.clone().submissions.next_group() {
            if let Err(error) = self.commit(group) {
                tracing::error!(%error, "the store takes no more writes");
                self.shared
                    .submissions
                    .refuse(&format!("the store has to be opened again, a write has failed: {error}"));
                self.shared.watches.wake_all();
            }
        }
    }

    /// Writes what is free of conflicts, with one fsync, and tells everyone. An error means that what the
    /// disk holds is unknown.
    fn commit(&mut self, group: VecDeque<Submission>) -> Result<()> {
        let now_us = self.shared.runtime.now_us();
        let version = self.newest.version + 1;
        let mut batch = Batch::new();
        let mut accepted = Vec::with_capacity(group.len());
        for submission in group {
            let stamp = stamp(version, accepted.len());
            let checked = self.check(&submission, &batch, now_us);
            match checked.and_then(|()| self.rows_to_clear(&submission.changes, &batch)) {
                Ok(cleared) => {
                    collect(submission.changes, cleared, stamp, &mut batch);
                    accepted.push((submission.answer, stamp));
                }
                Err(error) => drop(submission.answer.send(Err(error))),
            }
        }
        if accepted.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.base.apply(version, &batch) {
            for (answer, _) in accepted {
                let _ = answer.send(Err(Error::UnknownOutcome(error.to_string())));
            }
            return Err(error);
        }
        self.newest = Arc::new(Published { version, view: self.base.view() });
        self.held.push_back((version, now_us, Arc::downgrade(&self.newest)));
        self.shared.publish(self.newest.clone());
        for (answer, stamp) in accepted {
            let _ = answer.send(Ok(stamp));
        }
        self.shared.watches.wake(&batch);
        self.window.push(version, batch.into_keys().collect());
        self.forget(now_us);
        Ok(())
    }

    /// Whether everything that a transaction has read is still as it read it.
    fn check(&self, submission: &Submission, batch: &Batch, now_us: i64) -> Result<()> {
        let Submission { version, taken_us, changes, .. } = submission;
        self.shared.check_age(*taken_us, now_us)?;
        if !self.window.covers(*version) {
            return Err(Error::TooOld { limit_ms: self.shared.limits.transaction_ms });
        }
        let key_changed = |key: &Bytes| batch.contains_key(key) || self.window.wrote_key(*version, key);
        let range_changed = |(begin, end): &(Bytes, Bytes)| {
            begin < end
                && (batch.range::<Bytes, _>(begin..end).next().is_some()
                    || self.window.wrote_within(*version, begin, end))
        };
        if changes.read_keys.iter().any(key_changed) || changes.read_ranges.iter().any(range_changed) {
            return Err(Error::Conflict);
        }
        Ok(())
    }

    /// The rows of the ranges that a transaction clears: those that are stored, and those of its group.
    /// Clearing what is not there is no write, so nobody conflicts with it.
    fn rows_to_clear(&self, changes: &Changes, batch: &Batch) -> Result<Vec<Bytes>> {
        let mut rows = Vec::new();
        for (begin, end) in changes.clear_ranges.iter().filter(|(begin, end)| begin < end) {
            rows.extend(batch.range::<Bytes, _>(begin..end).map(|(key, _)| key.clone()));
            let mut rest =
                RangeRead { begin: begin.clone(), end: end.clone(), limit: CLEAR_CHUNK, reverse: false };
            loop {
                let chunk = self.newest.view.range(&rest)?;
                let more = chunk.len() == rest.limit;
                if let Some((last, _)) = chunk.last() {
                    rest.begin = successor(last);
                }
                rows.extend(chunk.into_iter().map(|(key, _)| key));
                if !more {
                    break;
                }
            }
        }
        Ok(rows)
    }

    /// Shortens the window to what the snapshots that are still held, and young enough, can ask for.
    fn forget(&mut self, now_us: i64) {
        while let Some((_, replaced_us, held)) =
            self.held.get(1).map(|next| (next.0, next.1, &self.held[0].2))
        {
            let useless = held.strong_count() == 0 || self.shared.check_age(replaced_us, now_us).is_err();
            if !useless {
                break;
            }
            self.held.pop_front();
        }
        if let Some((oldest, _, _)) = self.held.front() {
            self.window.forget_until(*oldest);
        }
    }
}

impl Drop for Committer {
    /// Whether closed or panicked: nobody waits for a committer that is gone.
    fn drop(&mut self) {
        self.shared.submissions.refuse("the store is closed");
        self.shared.watches.close();
    }
}

/// Adds a transaction's writes to the batch of its group.
fn collect(changes: Changes, cleared: Vec<Bytes>, stamp: Versionstamp, batch: &mut Batch) {
    batch.extend(cleared.into_iter().map(|key| (key, None)));
    batch.extend(changes.puts);
    let stamp = Bytes::copy_from_slice(&stamp.0);
    batch.extend(changes.versionstamped.into_iter().map(|key| (key, Some(stamp.clone()))));
}

/// The version in eight bytes, the place in the group in two.
fn stamp(version: u64, place: usize) -> Versionstamp {
    let place = u16::try_from(place).expect("a group is smaller than MAX_GROUP");
    let mut stamp = [0; 10];
    stamp[..8].copy_from_slice(&version.to_be_bytes());
    stamp[8..].copy_from_slice(&place.to_be_bytes());
    Versionstamp(stamp)
}
