//! Recording the end of a run, fenced by its claim, for as long as it takes.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use turnwise_policy::backoff;
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::{Claim, Error, Job, MAX_INFO_BYTES, Result};
use turnwise_store::Error as StoreError;

use crate::Outcome;
use crate::run::{Ended, Shared};

/// The pause before an end that the store could not take is tried again.
const END_RETRY: Duration = Duration::from_secs(1);

/// A run that is over, but not recorded.
pub(crate) struct Finished {
    /// The job as it was claimed.
    pub job: Job,
    pub claim: Claim,
    pub outcome: Outcome,
    /// Its last report.
    pub info: Option<Box<RawValue>>,
}

/// Writes the end until it is written, or the claim is lost: nothing acknowledged may be lost.
pub(crate) async fn record(shared: &Shared, finished: Finished, halt: &CancellationToken) -> Ended {
    let Finished { job, claim, outcome, info } = finished;
    let mut ending = ending(shared, &job, outcome);
    let mut replaced = false;
    loop {
        let error = match try_record(shared, &job, &claim, &ending, info.as_deref()).await {
            Ok(()) => {
                log_failure(shared, &job, &ending);
                return Ended::Recorded;
            }
            Err(Error::Halt) => return Ended::Halted,
            Err(error) => error,
        };
        tracing::error!(job = %job.id, %error, "the end of a job could not be written");
        let passing = matches!(&error, Error::Store(error) if error.is_retryable());
        if !passing && !replaced {
            // Not the store's fault but the record's: this end can never be written, another one can.
            ending = Ending::Failed(format!("the end of the job could not be written: {error}"));
            replaced = true;
            continue;
        }
        tokio::select! {
            biased;
            () = halt.cancelled() => return Ended::Halted,
            () = shared.store.runtime().sleep(END_RETRY) => {}
        }
    }
}

fn log_failure(shared: &Shared, job: &Job, ending: &Ending) {
    let (job_type, job) = (&shared.job_type, &job.id);
    match ending {
        Ending::Crashed { reason, crashes, not_before_us } => {
            let wait_s = (not_before_us - shared.store.runtime().now_us()) / 1_000_000;
            tracing::warn!(job_type, job, crashes, "crashed, next try in {wait_s} s: {reason}");
        }
        Ending::Failed(reason) => tracing::warn!(job_type, job, "failed: {reason}"),
        Ending::Completed(_) | Ending::Stopped => {}
    }
}

fn ending(shared: &Shared, job: &Job, outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Completed(result) if result.get().len() > MAX_INFO_BYTES => Ending::Failed(format!(
            "its result has {} bytes; at most {MAX_INFO_BYTES} are allowed",
            result.get().len()
        )),
        Outcome::Completed(result) => Ending::Completed(result),
        Outcome::Failed(reason) => Ending::Failed(reason),
        Outcome::Stopped => Ending::Stopped,
        Outcome::Crashed(reason) => {
            crashed(&shared.options.backoff, job, reason, shared.store.runtime().now_us())
        }
    }
}

/// The crash of a run that `job` tells the start of. Where another node wrote that, a difference between the clocks
/// may lengthen or shorten a row of crashes, and nothing else.
pub(crate) fn crashed(backoff: &backoff::Rules, job: &Job, reason: String, now_us: i64) -> Ending {
    let ran_us = now_us.saturating_sub(job.started_us.unwrap_or(now_us));
    let crashes = backoff.crashes_in_row(job.crashes, ran_us);
    let not_before_us = now_us.saturating_add(backoff.wait_us(crashes));
    Ending::Crashed { reason, crashes, not_before_us }
}

async fn try_record(
    shared: &Shared,
    job: &Job,
    claim: &Claim,
    ending: &Ending,
    info: Option<&RawValue>,
) -> Result<()> {
    let (keys, job_type, id) = (&shared.keys, &shared.job_type, &job.id);
    let (max_history, now_us) = (shared.options.max_history, shared.store.runtime().now_us());
    shared
        .store
        .transact(|tx| async move {
            match claims::end(&tx, keys, job_type, id, claim, ending, info, now_us, max_history).await? {
                claims::Ended::Recorded(job) => {
                    let ended = AssertUnwindSafe(shared.handler.ended(&tx, keys, job.as_deref()));
                    ended.catch_unwind().await.unwrap_or_else(|_| {
                        Err(Error::Store(StoreError::Misuse("the handler's `ended` panicked".to_owned())))
                    })
                }
                // An earlier attempt was committed, and with it what the handler wrote.
                claims::Ended::AlreadyRecorded(_) => Ok(()),
            }
        })
        .await
}
