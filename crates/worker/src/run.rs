//! One job's run: its handler as a task, its reports, and its end, each fenced by the claim.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_queue::claims::{self, Answer, Ending};
use turnwise_queue::{Claim, Error, Job, Keyspace, MAX_INFO_BYTES, Result};
use turnwise_store::Store;

use crate::{JobContext, JobHandler, Options, Outcome};

/// The pause before an end that the store could not take is tried again.
const END_RETRY: Duration = Duration::from_secs(1);

/// What all runs of a worker share.
pub(crate) struct Shared {
    pub store: Store,
    pub keys: Keyspace,
    pub job_type: String,
    pub handler: Arc<dyn JobHandler>,
    pub options: Options,
}

/// How the worker's loop steers a run.
#[derive(Clone, Default)]
pub(crate) struct Controls {
    /// Asks the handler to stop and give the job back.
    pub stop: CancellationToken,
    /// The claim is gone: abort, and write nothing more.
    pub halt: CancellationToken,
}

/// Whether a run ended under its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its end is written.
    Recorded,
    /// The claim was lost; nothing was written.
    Halted,
}

/// Runs a claimed job to its recorded end.
pub(crate) async fn run(
    shared: Arc<Shared>,
    job: Job,
    job_options: Box<RawValue>,
    controls: Controls,
) -> Ended {
    let claim = job.claim.clone().expect("a claimed job has a claim");
    let (progress, reports) = watch::channel(None);
    let context =
        JobContext { job: job.clone(), options: job_options, stop: controls.stop.clone(), progress };
    let handler = shared.handler.clone();
    // A run that is dropped takes its handler along.
    let task = AbortOnDropHandle::new(tokio::spawn(async move { handler.run(context).await }));
    let mut run = Run { shared, job, claim, reports, controls };
    let Some(outcome) = run.supervise(task).await else { return Ended::Halted };
    run.record(outcome).await
}

struct Run {
    shared: Arc<Shared>,
    job: Job,
    claim: Claim,
    reports: watch::Receiver<Option<Box<RawValue>>>,
    controls: Controls,
}

impl Run {
    /// Waits for the handler's end; meanwhile writes its reports and passes on what the worker wants. `None`
    /// if the claim was lost.
    async fn supervise(&mut self, mut task: AbortOnDropHandle<Outcome>) -> Option<Outcome> {
        let runtime = self.shared.store.runtime().clone();
        let Options { report_interval, stop_grace, .. } = self.shared.options;
        // The first report is written at once; one that comes early after another waits for the interval to pass.
        let mut interval = std::pin::pin!(runtime.sleep(report_interval));
        let mut due = true;
        let mut unwritten = false;
        let mut reporting = true;
        loop {
            if due && unwritten {
                (due, unwritten) = (false, false);
                interval.set(runtime.sleep(report_interval));
                if self.write_report().await.is_err() {
                    self.controls.halt.cancel();
                }
            }
            tokio::select! {
                biased;
                () = self.controls.halt.cancelled() => {
                    task.abort();
                    let _ = task.await;
                    return None;
                }
                ended = &mut task => return Some(outcome(ended)),
                () = self.controls.stop.cancelled() => break,
                changed = self.reports.changed(), if reporting => {
                    // The sender is dropped with the context, when the handler ends.
                    reporting = changed.is_ok();
                    unwritten |= reporting;
                }
                () = &mut interval, if !due => due = true,
            }
        }
        // Asked to stop: it has the grace period to do so by itself.
        let grace = std::pin::pin!(runtime.sleep(stop_grace));
        tokio::select! {
            biased;
            () = self.controls.halt.cancelled() => {
                task.abort();
                let _ = task.await;
                None
            }
            ended = &mut task => Some(outcome(ended)),
            () = grace => {
                tracing::warn!(job = %self.job.id, "did not stop within its grace period: aborted");
                task.abort();
                // The claim is given back only once the handler is really gone.
                Some(task.await.unwrap_or(Outcome::Stopped))
            }
        }
    }

    /// Writes the latest report. An error means that the claim is lost.
    async fn write_report(&mut self) -> Result<(), Ended> {
        let Some(info) = self.reports.borrow_and_update().clone() else { return Ok(()) };
        let (shared, id, claim, info) = (&self.shared, &self.job.id, &self.claim, &info);
        let now_us = shared.store.runtime().now_us();
        let answer = shared
            .store
            .transact(|tx| async move {
                claims::update(&tx, &shared.keys, &shared.job_type, id, claim, info, now_us).await
            })
            .await;
        match answer {
            Ok(Answer::Continue) => {}
            Ok(Answer::Cancel) => self.controls.stop.cancel(),
            Err(Error::Halt) => return Err(Ended::Halted),
            // The next report, or the end, tries again.
            Err(error) => tracing::warn!(job = %id, %error, "progress could not be written"),
        }
        Ok(())
    }

    /// Writes the end, for as long as it takes: nothing acknowledged may be lost.
    async fn record(&self, outcome: Outcome) -> Ended {
        let mut ending = self.ending(outcome);
        let mut replaced = false;
        loop {
            let error = match self.try_record(&ending).await {
                Ok(()) => {
                    self.log_failure(&ending);
                    return Ended::Recorded;
                }
                Err(Error::Halt) => return Ended::Halted,
                Err(error) => error,
            };
            tracing::error!(job = %self.job.id, %error, "the end of a job could not be written");
            let passing = matches!(&error, Error::Store(error) if error.is_retryable());
            if !passing && !replaced {
                // Not the store's fault but the record's: this end can never be written, another one can.
                ending = Ending::Failed(format!("the end of the job could not be written: {error}"));
                replaced = true;
                continue;
            }
            tokio::select! {
                () = self.controls.halt.cancelled() => return Ended::Halted,
                () = self.shared.store.runtime().sleep(END_RETRY) => {}
            }
        }
    }

    fn log_failure(&self, ending: &Ending) {
        let (job_type, job) = (&self.job.job_type, &self.job.id);
        match ending {
            Ending::Crashed { reason, crashes, not_before_us } => {
                let wait_s = (not_before_us - self.shared.store.runtime().now_us()) / 1_000_000;
                tracing::warn!(job_type, job, crashes, "crashed, next try in {wait_s} s: {reason}");
            }
            Ending::Failed(reason) => tracing::warn!(job_type, job, "failed: {reason}"),
            Ending::Completed(_) | Ending::Stopped => {}
        }
    }

    fn ending(&self, outcome: Outcome) -> Ending {
        match outcome {
            Outcome::Completed(result) if result.get().len() > MAX_INFO_BYTES => Ending::Failed(format!(
                "its result has {} bytes; at most {MAX_INFO_BYTES} are allowed",
                result.get().len()
            )),
            Outcome::Completed(result) => Ending::Completed(result),
            Outcome::Failed(reason) => Ending::Failed(reason),
            Outcome::Stopped => Ending::Stopped,
            Outcome::Crashed(reason) => {
                let backoff = &self.shared.options.backoff;
                let now_us = self.shared.store.runtime().now_us();
                let ran_us = now_us - self.job.started_us.unwrap_or(now_us);
                let crashes = backoff.crashes_in_row(self.job.crashes, ran_us);
                let not_before_us = now_us.saturating_add(backoff.wait_us(crashes));
                Ending::Crashed { reason, crashes, not_before_us }
            }
        }
    }

    async fn try_record(&self, ending: &Ending) -> Result<()> {
        let (shared, id, claim) = (&self.shared, &self.job.id, &self.claim);
        let info = self.reports.borrow().clone();
        let (info, max_history) = (info.as_deref(), shared.options.max_history);
        let now_us = shared.store.runtime().now_us();
        shared
            .store
            .transact(|tx| async move {
                let (keys, job_type) = (&shared.keys, &shared.job_type);
                match claims::end(&tx, keys, job_type, id, claim, ending, info, now_us, max_history).await? {
                    claims::Ended::Recorded(job) => shared.handler.ended(&tx, keys, job.as_deref()).await,
                    // An earlier attempt was committed, and with it what the handler wrote.
                    claims::Ended::AlreadyRecorded(_) => Ok(()),
                }
            })
            .await
    }
}

/// A panic counts as a crash, with its message as the reason.
fn outcome(ended: Result<Outcome, JoinError>) -> Outcome {
    let error = match ended {
        Ok(outcome) => return outcome,
        Err(error) => error,
    };
    let Ok(panic) = error.try_into_panic() else { return Outcome::Stopped };
    let message = panic
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Outcome::Crashed(format!("the handler panicked: {message}"))
}
