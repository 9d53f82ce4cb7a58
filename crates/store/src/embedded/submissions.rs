//! The transactions that wait for the committer.

use std::collections::VecDeque;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::sync::Mutex;
use crate::{Changes, Error, Result, Versionstamp};

/// Most transactions that may wait. Further ones are refused as unavailable.
const MAX_WAITING: usize = 65_536;
const MAX_WAITING_BYTES: usize = 256 << 20;
/// Most transactions that share one fsync, because two bytes of the versionstamp number them.
pub(super) const MAX_GROUP: usize = 8_192;
/// Most bytes that share one fsync, except for a single larger transaction: a fraction of a log segment.
const MAX_GROUP_BYTES: usize = 8 << 20;

pub(super) type Decision = Result<Versionstamp>;

pub(super) struct Submission {
    /// The version of its snapshot.
    pub(super) version: u64,
    pub(super) taken_us: i64,
    pub(super) changes: Changes,
    pub(super) answer: oneshot::Sender<Decision>,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Submissions {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Submission>,
    bytes: usize,
    /// The number of waiting transactions at which the committer wakes up.
    wanted: usize,
    /// Why new transactions are refused.
    refused: Option<Error>,
    closed: bool,
}

impl Submissions {
    /// Submits a transaction to the committer. The receiver gets the result.
    pub(super) fn submit(
        &self,
        version: u64,
        taken_us: i64,
        changes: Changes,
    ) -> Result<oneshot::Receiver<Decision>> {
        let (answer, decision) = oneshot::channel();
        let bytes = changes_bytes(&changes);
        let mut waiting = self.waiting.lock();
        if let Some(error) = &waiting.refused {
            return Err(error.clone());
        }
        if waiting.queue.len() >= MAX_WAITING || waiting.bytes >= MAX_WAITING_BYTES {
            return Err(Error::Unavailable("too many transactions wait to commit".into()));
        }
        waiting.bytes += bytes;
        waiting.queue.push_back(Submission { version, taken_us, changes, answer, bytes });
        let complete = waiting.queue.len() == waiting.wanted;
        drop(waiting);
        if complete {
            self.arrived.notify_one();
        }
        Ok(decision)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.lock().queue.len()
    }

    /// All waiting transactions, up to the size of a group. `None` once the store is closed and the queue is empty. Once
    /// one transaction waits, this waits up to `patience` until there are as many as `expected`.
    pub(super) fn next_group(&self, expected: usize, patience: Duration) -> Option<VecDeque<Submission>> {
        let mut waiting = self.wait_for(self.waiting.lock(), 1, Duration::MAX);
        if waiting.queue.len() < expected && !waiting.closed {
            waiting = self.wait_for(waiting, expected, patience);
        }
        (!waiting.queue.is_empty()).then(|| waiting.take_group())
    }

    /// Waits until `wanted` transactions wait, or the store is closed, but no longer than `longest`.
    fn wait_for<'a>(
        &'a self,
        mut waiting: MutexGuard<'a, Waiting>,
        wanted: usize,
        longest: Duration,
    ) -> MutexGuard<'a, Waiting> {
        waiting.wanted = wanted;
        let goes_on = |waiting: &mut Waiting| waiting.queue.len() < wanted && !waiting.closed;
        let waited = self.arrived.wait_timeout_while(waiting, longest, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Refuses all transactions from now on, including those that wait. None of them has been written.
    pub(super) fn refuse(&self, error: &Error) {
        self.waiting.lock().refused.get_or_insert_with(|| error.clone());
        self.refuse_waiting(error);
    }

    /// Refuses the waiting transactions. None of them has been written.
    pub(super) fn refuse_waiting(&self, error: &Error) {
        let mut waiting = self.waiting.lock();
        waiting.bytes = 0;
        for submission in waiting.queue.drain(..) {
            let _ = submission.answer.send(Err(error.clone()));
        }
    }

    /// Waits for `longest`, or until the store is closed. Returns whether it is closed.
    pub(super) fn pause(&self, longest: Duration) -> bool {
        let open = |waiting: &mut Waiting| !waiting.closed;
        let waited = self.arrived.wait_timeout_while(self.waiting.lock(), longest, open);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    /// Refuses new transactions. The committer still decides those that wait.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.refused.get_or_insert_with(|| Error::Unavailable("the store is closed".to_owned()));
        waiting.closed = true;
        drop(waiting);
        self.arrived.notify_one();
    }
}

impl Waiting {
    fn take_group(&mut self) -> VecDeque<Submission> {
        let (mut count, mut bytes) = (0, 0);
        for submission in &self.queue {
            if count == MAX_GROUP || (count > 0 && bytes + submission.bytes > MAX_GROUP_BYTES) {
                break;
            }
            count += 1;
            bytes += submission.bytes;
        }
        self.bytes -= bytes;
        let rest = self.queue.split_off(count);
        std::mem::replace(&mut self.queue, rest)
    }
}

fn changes_bytes(changes: &Changes) -> usize {
    let value = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
    changes.puts.iter().map(|(key, put)| key.len() + value(put)).sum::<usize>()
        + changes.versionstamped.iter().map(|key| key.len() + 10).sum::<usize>()
        + changes.appends.iter().map(|(key, lines)| key.len() + 10 + lines.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(bytes: usize) -> Changes {
        Changes { puts: vec![(Bytes::new(), Some(Bytes::from(vec![0; bytes])))], ..Changes::default() }
    }

    #[test]
    fn a_group_is_bounded() {
        let submissions = Submissions::default();
        let mut answers = Vec::new();
        for bytes in [1, MAX_GROUP_BYTES / 2, MAX_GROUP_BYTES / 2, MAX_GROUP_BYTES * 2, 1] {
            answers.push(submissions.submit(0, 0, changes(bytes)).unwrap());
        }
        for _ in 0..=MAX_GROUP {
            answers.push(submissions.submit(0, 0, changes(1)).unwrap());
        }
        let mut groups = Vec::new();
        for _ in 0..5 {
            groups.push(submissions.next_group(0, Duration::ZERO).unwrap().len());
        }
        assert_eq!(groups, [2, 1, 1, MAX_GROUP, 2]);
        assert_eq!(submissions.waiting.lock().bytes, 0);
    }

    #[test]
    fn a_group_waits_for_the_expected_number() {
        let submissions = Submissions::default();
        let group = std::thread::scope(|scope| {
            let group = scope.spawn(|| submissions.next_group(3, Duration::from_secs(3_600)).unwrap().len());
            let answers: Vec<_> = (0..3).map(|_| submissions.submit(0, 0, changes(1)).unwrap()).collect();
            let group = group.join().unwrap();
            drop(answers);
            group
        });
        assert_eq!(group, 3);
        // A single transaction forms a group without waiting for others, and no group waits longer than its patience.
        for (expected, patience) in [(1, Duration::from_secs(3_600)), (3, Duration::ZERO)] {
            let _answer = submissions.submit(0, 0, changes(1)).unwrap();
            assert_eq!(submissions.next_group(expected, patience).unwrap().len(), 1);
        }
    }

    #[test]
    fn the_queue_is_bounded() {
        let submissions = Submissions::default();
        let answers: Vec<_> =
            (0..MAX_WAITING).map(|_| submissions.submit(0, 0, changes(0)).unwrap()).collect();
        let more = submissions.submit(0, 0, changes(0));
        assert!(matches!(more, Err(Error::Unavailable(_))));
        drop(answers);
    }

    #[test]
    fn transactions_that_wait_at_the_close_are_still_returned() {
        let submissions = Submissions::default();
        let _answer = submissions.submit(0, 0, changes(1)).unwrap();
        submissions.close();
        assert!(matches!(submissions.submit(0, 0, changes(1)), Err(Error::Unavailable(_))));
        assert_eq!(submissions.next_group(0, Duration::ZERO).unwrap().len(), 1);
        assert!(submissions.next_group(0, Duration::ZERO).is_none());
    }
}
