//! The ends of runs, on their way to the server.
//!
//! A request for jobs carries the ends that wait, and gets jobs for their slots. While such a request waits on the server, or none
//! is sent, a task of its own sends them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::value::RawValue;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};
use turnwise_protocol::{
    EndRuns, EndState, EndedRun, EndedRuns, FailRun, FinishRun, MAX_BODY_BYTES, MAX_ENDS, NewLogLine,
    ReleaseRun, SnoozeRun,
};

use super::shared::{Shared, is_fault, is_retryable};
use crate::{Error, Result};

/// The size of the ends in one request, in bytes, beyond which the others wait for the next one.
const MAX_BATCH_BYTES: usize = MAX_BODY_BYTES / 2;
/// More than the names and numbers of an end need, in bytes.
const END_BYTES: usize = 1_000;
/// More than the time and the level of a line of log need, in bytes.
const LINE_BYTES: usize = 80;

/// The end of a run.
#[derive(Debug, Clone)]
pub(super) enum RunEnd {
    Finish(FinishRun),
    Fail(FailRun),
    Snooze(SnoozeRun),
    Release(ReleaseRun),
}

impl RunEnd {
    fn claim(&self) -> u64 {
        match self {
            RunEnd::Finish(end) => end.claim,
            RunEnd::Fail(end) => end.claim,
            RunEnd::Snooze(end) => end.claim,
            RunEnd::Release(end) => end.claim,
        }
    }

    /// An upper bound of its size in a request, unless its texts need many escapes.
    fn bytes(&self) -> usize {
        let of = |json: &Option<Box<RawValue>>| json.as_ref().map_or(0, |json| json.get().len());
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let lines = |log: &[NewLogLine]| -> usize {
            log.iter().map(|line| LINE_BYTES + line.message.len() + of(&line.fields)).sum()
        };
        END_BYTES
            + match self {
                RunEnd::Finish(end) => of(&end.result) + text(&end.data) + of(&end.info) + lines(&end.log),
                RunEnd::Fail(end) => end.reason.len() + text(&end.trace) + of(&end.info) + lines(&end.log),
                RunEnd::Snooze(end) => of(&end.info) + lines(&end.log),
                RunEnd::Release(end) => of(&end.info) + lines(&end.log),
            }
    }
}

/// The ends that no request has taken.
#[derive(Default)]
pub(super) struct Ends {
    waiting: Mutex<VecDeque<WaitingEnd>>,
    /// Whether the next request for jobs takes them soon.
    carried: AtomicBool,
    changed: Notify,
}

struct WaitingEnd {
    end: RunEnd,
    answer: oneshot::Sender<Result<EndState>>,
    /// Whether it is sent in a request of its own, because the server has refused a request with it and others.
    alone: bool,
}

/// The ends in one request.
pub(super) struct Batch(Vec<WaitingEnd>);

impl Ends {
    /// Hands an end over to the next request, and returns the server's answer. `None` if the request got no answer: hand the
    /// end over again.
    pub async fn send(&self, end: RunEnd) -> Option<Result<EndState>> {
        let (answer, answered) = oneshot::channel();
        self.waiting().push_back(WaitingEnd { end, answer, alone: false });
        self.changed.notify_waiters();
        answered.await.ok()
    }

    /// Takes as many waiting ends as one request may carry.
    pub fn take(&self) -> Batch {
        let mut waiting = self.waiting();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(next) = waiting.front() {
            bytes += next.end.bytes();
            let fits = !next.alone && batch.len() < MAX_ENDS && bytes <= MAX_BATCH_BYTES;
            if !fits && !batch.is_empty() {
                break;
            }
            let alone = next.alone;
            batch.extend(waiting.pop_front());
            if alone {
                break;
            }
        }
        Batch(batch)
    }

    /// States whether the next request for jobs takes the waiting ends soon.
    pub fn set_carried(&self, carried: bool) {
        self.carried.store(carried, SeqCst);
        if !carried {
            self.changed.notify_waiters();
        }
    }

    /// Completes when an end arrives, or a run is over, after this call.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Wakes those that wait for a change, because a run is over.
    pub fn run_is_over(&self) {
        self.changed.notify_waiters();
    }

    /// Gives ends back that were refused together, for requests of their own. A single end is at fault itself.
    pub fn refused(&self, Batch(mut ends): Batch, error: Error) {
        if ends.len() <= 1 {
            if let Some(WaitingEnd { answer, .. }) = ends.pop() {
                let _ = answer.send(Err(error));
            }
            return;
        }
        self.waiting().extend(ends.into_iter().map(|end| WaitingEnd { alone: true, ..end }));
        self.changed.notify_waiters();
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<WaitingEnd>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes ends that no request for jobs will carry, as soon as there are some.
    async fn take_uncarried(&self) -> Batch {
        loop {
            let changed = self.changed.notified();
            if !self.carried.load(SeqCst) {
                let batch = self.take();
                if !batch.is_empty() {
                    return batch;
                }
            }
            changed.await;
        }
    }
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The ends, as a request states them.
    pub fn request(&self) -> EndRuns {
        let mut ends = EndRuns::default();
        for WaitingEnd { end, .. } in &self.0 {
            match end.clone() {
                RunEnd::Finish(end) => ends.finish.push(end),
                RunEnd::Fail(end) => ends.fail.push(end),
                RunEnd::Snooze(end) => ends.snooze.push(end),
                RunEnd::Release(end) => ends.release.push(end),
            }
        }
        ends
    }

    /// Passes the server's answers on, and forgets the runs that are over. An end without an answer is sent again, and so is one that the server could
    /// not record now.
    pub fn answered(self, ended: Vec<EndedRun>, shared: &Shared) {
        let mut waiting: BTreeMap<u64, oneshot::Sender<Result<EndState>>> =
            self.0.into_iter().map(|WaitingEnd { end, answer, .. }| (end.claim(), answer)).collect();
        for EndedRun { claim, state, error } in ended {
            let answer = match (state, error) {
                (_, Some(error)) => Err(Error::of_part(error)),
                (Some(state), None) => Ok(state),
                (None, None) => continue,
            };
            if answer.as_ref().is_err_and(is_fault) {
                continue;
            }
            let Some(waiting) = waiting.remove(&claim) else { continue };
            if answer.as_ref().map_or_else(Error::is_halt, |_| true) {
                // Its slot is free before its task has ended.
                shared.runs().remove(&claim);
            }
            let _ = waiting.send(answer);
        }
    }
}

/// Sends the ends that no request for jobs carries, until the worker has expired.
pub(super) async fn send_uncarried(shared: Arc<Shared>) {
    loop {
        let batch = shared.ends.take_uncarried().await;
        let request = shared.request(&["end"]).json(&batch.request()).expect("texts and numbers are JSON");
        match shared.client.once::<EndedRuns>(&request).await {
            Ok(EndedRuns { ended }) => batch.answered(ended, &shared),
            Err(error) if error.is_expired() => return shared.expired.cancel(),
            // Each run hands its end over again, after a pause.
            Err(error) if is_retryable(&error) => {
                tracing::debug!(ends = batch.len(), "the ends of runs got no answer: {error}");
            }
            Err(error) => shared.ends.refused(batch, error),
        }
    }
}
