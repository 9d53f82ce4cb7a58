//! Records the end of a run, fenced by its claim, and retries until that succeeds.
//!
//! A transaction costs an fsync, whatever its size, so runs that end at the same time share one. The task that holds a
//! mutex writes the ends of all waiting tasks. Each end has its own reply, and a lost claim does not affect other ends.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use turnwise_queue::claims::{self, Ending, Park, Report, StopCause};
use turnwise_queue::jobs::PREFETCHED;
use turnwise_queue::{Context, Error, Result};
use turnwise_store::{Error as StoreError, Transaction};

use crate::metrics::{CrashKind, RunResult};
use crate::run::{ClaimedJob, RunEnd, Shared};
use crate::spans::RunOutcome;
use crate::sync::lock;
use crate::times::duration_us;
use crate::{Outcome, SpanKind};

/// The pause before the next attempt to write an end that the store could not commit.
const END_RETRY: Duration = Duration::from_secs(1);
/// A parked job runs again after this long even if its source has not changed: its target or its settings may have. Its
/// source is compared far more often.
const PARKED: Duration = Duration::from_secs(4 * 3600);
/// A parked job runs up to this much later, so that jobs that were parked together do not all start at the same time.
const PARKED_SPREAD: Duration = Duration::from_secs(4 * 3600);
/// The maximum number of ends that one transaction records.
pub(crate) const GROUP: usize = 256;

/// The end of one run, as it is written.
pub(crate) struct End {
    pub job: Arc<ClaimedJob>,
    pub ending: Ending,
    /// Its last report.
    pub info: Option<Box<RawValue>>,
    /// The job's sort key if it is pending again, where keys decide.
    pub key: Option<f64>,
    /// Why it was asked to stop, if not by a client.
    pub cause: Option<StopCause>,
}

/// Retries until the end is written or the claim is lost: no acknowledged end may be lost. `crash` is why the run crashed, if it did.
pub(crate) async fn record(shared: &Shared, end: End, crash: CrashKind, halt: &CancellationToken) -> RunEnd {
    let mut end = Arc::new(end);
    let mut replaced = false;
    loop {
        let span = end.job.spans.as_ref().and_then(|spans| spans.child(SpanKind::Internal));
        let recorded = shared.recorder.record(shared, end.clone()).await;
        if let Some(span) = span {
            let error = recorded.as_ref().err().map(ToString::to_string);
            span.end("transaction: end".to_owned(), Vec::new(), error);
        }
        let error = match recorded {
            Ok(result) => {
                log_failure(shared, &end.job, &end.ending);
                let now_us = shared.store.runtime().now_us();
                let ran_us = now_us.saturating_sub(end.job.started_us.unwrap_or(now_us));
                let of = (shared.job_type.as_str(), end.job.task.as_deref());
                shared.metrics().ended(of, result, crash, ran_us);
                if let Some(spans) = &end.job.spans {
                    spans.ended(&shared.job_type, &RunOutcome::of(&end.ending, result));
                }
                return RunEnd::Recorded;
            }
            Err(Error::Halt) => return RunEnd::Halted,
            Err(error) => error,
        };
        tracing::error!(job = %end.job.id, %error, "the end of a job could not be written");
        if !is_passing(&error) && !replaced {
            // The record is at fault, not the store: this end can never be written, but another one can.
            let ending = Ending::Failed(format!("the end of the job could not be written: {error}").into());
            end = Arc::new(End { job: end.job.clone(), ending, info: end.info.clone(), ..*end });
            replaced = true;
            continue;
        }
        tokio::select! {
            biased;
            () = halt.cancelled() => return RunEnd::Halted,
            () = shared.store.runtime().sleep(END_RETRY) => {}
        }
    }
}

fn log_failure(shared: &Shared, claimed: &ClaimedJob, ending: &Ending) {
    let (job_type, job) = (&shared.job_type, &claimed.id);
    match ending {
        Ending::Crashed { error, .. } if claimed.terms.is_last(claimed.attempts.saturating_add(1)) => {
            tracing::warn!(job_type, job, "failed with its last attempt: {error}");
        }
        Ending::Crashed { error, retry_us } => {
            let now_us = shared.store.runtime().now_us();
            let ran_us = now_us.saturating_sub(claimed.started_us.unwrap_or(now_us));
            let crashes = claimed.terms.backoff.crashes_in_row(claimed.crashes, ran_us);
            let wait_us = match retry_us {
                Some(retry_us) => retry_us.saturating_sub(now_us),
                None => claimed.terms.wait_us(&claimed.id, crashes),
            };
            let wait_s = rounded_s(wait_us);
            tracing::warn!(job_type, job, crashes, "crashed, next try in {wait_s} s: {error}");
        }
        Ending::Failed(error) => tracing::warn!(job_type, job, "failed: {error}"),
        Ending::Completed(_)
        | Ending::Snoozed { .. }
        | Ending::Stopped
        | Ending::Preempted
        | Ending::Parked(_) => {}
    }
}

/// Rounded to whole seconds: the time that has passed since the decision would make 29 s of 30.
fn rounded_s(us: i64) -> i64 {
    us.max(0).saturating_add(500_000) / 1_000_000
}

/// How the run of a job ends that was not preempted.
pub(crate) fn ending(shared: &Shared, outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Completed(result) => Ending::completed(result),
        Outcome::Failed(reason) => Ending::Failed(reason.into()),
        Outcome::Stopped => Ending::Stopped,
        Outcome::Snoozed(time) => {
            let now_us = shared.store.runtime().now_us();
            Ending::Snoozed { until_us: now_us.saturating_add(duration_us(time)) }
        }
        Outcome::Parked { at, token } => {
            let runtime = shared.store.runtime();
            let spread_us = runtime.random() % (duration_us(PARKED_SPREAD).unsigned_abs() + 1);
            let wait_us = duration_us(PARKED).saturating_add_unsigned(spread_us);
            let not_before_us = runtime.now_us().saturating_add(wait_us);
            Ending::Parked(Park { at, token, not_before_us })
        }
        Outcome::Crashed(reason) => Ending::Crashed { error: reason.into(), retry_us: None },
    }
}

/// Writes the ends of a worker's runs. Ends that arrive during a write share the next transaction.
#[derive(Default)]
pub(crate) struct RunEnds {
    waiting: Mutex<VecDeque<WaitingEnd>>,
    /// The task that holds this mutex writes the ends of all waiting tasks.
    turn: tokio::sync::Mutex<()>,
}

struct WaitingEnd {
    end: Arc<End>,
    answer: oneshot::Sender<Result<RunResult>>,
}

impl RunEnds {
    /// Writes an end, alone or in a group.
    async fn record(&self, shared: &Shared, end: Arc<End>) -> Result<RunResult> {
        let (answer, mut recorded) = oneshot::channel();
        lock(&self.waiting).push_back(WaitingEnd { end, answer });
        loop {
            tokio::select! {
                biased;
                answer = &mut recorded => return answer.unwrap_or_else(|_| Err(abandoned())),
                // Boxed, because most runs wait for the task that has the turn, and keep their part of the memory small.
                _turn = self.turn.lock() => Box::pin(self.write_group(shared)).await,
            }
        }
    }

    /// Writes the waiting ends, and replies to each.
    async fn write_group(&self, shared: &Shared) {
        let mut group: VecDeque<WaitingEnd> = {
            let mut waiting = lock(&self.waiting);
            let ready = waiting.len().min(GROUP);
            waiting.drain(..ready).collect()
        };
        // One end can make the transaction of a whole group fail. Each end then gets a transaction of its own.
        let mut most = GROUP;
        while !group.is_empty() {
            let ends: Vec<Arc<End>> = group.iter().take(most).map(|waiting| waiting.end.clone()).collect();
            let written = match write(shared, &ends).await {
                Ok(written) => written,
                Err(error) if is_passing(&error) => vec![Err(error); ends.len()],
                Err(error) if ends.len() == 1 => vec![Err(error)],
                Err(_) => {
                    most = 1;
                    continue;
                }
            };
            for (waiting, answer) in group.drain(..written.len()).zip(written) {
                // The receiver is gone if the worker was dropped meanwhile.
                let _ = waiting.answer.send(answer);
            }
        }
    }
}

/// The error for an end whose writing task was dropped.
fn abandoned() -> Error {
    Error::Store(StoreError::UnknownOutcome("the transaction was abandoned".to_owned()))
}

pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Store(error) if error.is_retryable())
}

/// Writes ends in one transaction: at least the first, and as many as fit. Returns the result of each.
async fn write(shared: &Shared, ends: &[Arc<End>]) -> Result<Vec<Result<RunResult>>> {
    let runtime = shared.store.runtime();
    let attempts = AtomicU32::new(0);
    let attempts = &attempts;
    shared
        .store
        .transact(|tx| async move {
            // Each attempt writes half as many ends as the one before it, which halves the chance of the same failure.
            let attempt = attempts.fetch_add(1, Relaxed);
            let most = ends.len().checked_shr(attempt).unwrap_or(0).max(1);
            let now_us = runtime.now_us();
            let mut written = Vec::with_capacity(most);
            for (n, end) in ends[..most].iter().enumerate() {
                if n % PREFETCHED == 0 {
                    let next = ends[n..most].iter().take(PREFETCHED).map(|end| &end.job);
                    let runs = next.map(|job| (job.id.as_str(), job.claim.worker.as_str()));
                    claims::prefetch_ends(&tx, &shared.keys, &shared.job_type, runs).await?;
                }
                written.push(match write_one(shared, &tx, end, now_us).await {
                    // Nothing was written for this end.
                    Err(Error::Halt) => Err(Error::Halt),
                    Err(error) => return Err(error),
                    Ok(result) => Ok(result),
                });
                if !tx.has_room() {
                    break;
                }
            }
            Ok(written)
        })
        .await
}

async fn write_one(shared: &Shared, tx: &Transaction, end: &End, now_us: i64) -> Result<RunResult> {
    let (keys, job_type, kept) = (&shared.keys, &shared.job_type, shared.tunables.get().kept());
    let End { job, ending, info, key, cause } = end;
    let ClaimedJob { id, claim, .. } = &**job;
    let report = Report { cause: *cause, ..Report::of(info.as_deref()) };
    let context = Context { tx, keys, job_type, now_us, kept };
    match claims::end_with(context, id, claim, ending, report, *key).await? {
        claims::Ended::Recorded(job) => {
            let ended = AssertUnwindSafe(shared.handler.ended(tx, keys, job.as_ref()));
            ended.catch_unwind().await.unwrap_or_else(|_| {
                Err(Error::Store(StoreError::Misuse("the handler's `ended` panicked".to_owned())))
            })?;
            Ok(RunResult::of(ending, job.as_ref()))
        }
        // An earlier attempt has committed this end, together with the handler's rows.
        claims::Ended::AlreadyRecorded(job) => Ok(RunResult::of(ending, Some(&job))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_shown_as_it_was_decided() {
        assert_eq!([29_999_200, 30_000_000, 499_999, -5].map(rounded_s), [30, 30, 0, 0]);
    }
}
