//! One run of a job: the task of its handler, its reports, and its end. Every write is fenced by the claim.

use std::future::pending;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use turnwise_queue::claims::{self, Answer, Ending, StopCause};
use turnwise_queue::deadlines::{Over, Timeouts};
use turnwise_queue::{Claim, Error, Job, Keyspace, Terms};
use turnwise_store::{Runtime, Store};

use crate::first_poll::{FirstPoll, Handler, HandlerFuture, Panic, Polled};
use crate::handler::Idle;
use crate::locks::{JobLocks, LockWake, Slots, WaitState};
use crate::membership::{Leaving, join};
use crate::metrics::{CrashKind, Metrics};
use crate::record::{End, RunEnds, ending, record};
use crate::sync::lock;
use crate::{JobContext, JobHandler, Live, Options, Outcome, RunSpans, SpanKind, Tunables};

/// The state that all runs of a worker share.
pub(crate) struct Shared {
    pub store: Store,
    pub keys: Keyspace,
    pub job_type: String,
    pub handler: Arc<dyn JobHandler>,
    pub options: Options,
    /// The current values of the settings that may change.
    pub tunables: Live<Tunables>,
    pub recorder: RunEnds,
    /// Wakes the worker's jobs that wait for locks.
    pub lock_wake: LockWake,
}

impl Shared {
    /// The metrics of the process.
    pub fn metrics(&self) -> &Metrics {
        &self.options.metrics
    }

    /// The removal of a worker of its type.
    pub fn leaving<'a>(&'a self, worker: &'a str) -> Leaving<'a> {
        let Shared { store, keys, job_type, options, .. } = self;
        let (max_history, spans) = (self.tunables.get().max_history, &options.spans);
        Leaving { store, keys, job_type, worker, max_history, spans }
    }

    /// Registers an incarnation.
    #[boxed]
    pub async fn join(&self) -> turnwise_queue::Result<String> {
        let options = Options { tunables: self.tunables.get(), ..self.options.clone() };
        join(&self.store, &self.keys, &self.job_type, &options).await
    }
}

/// How the worker's loop controls a run, and what the handler reports. The loop, the run and its handler share it: a run is short
/// compared with what each further shared value costs.
#[derive(Default)]
pub(crate) struct Controls {
    /// Asks the handler to stop and give the job back.
    pub stop: CancellationToken,
    /// Cancelled when the claim is gone: the run aborts its handler, and writes nothing more.
    pub halt: CancellationToken,
    /// Whether the handler reported that it has nothing to do.
    pub idle: Idle,
    /// Counts the worker's jobs that wait for locks.
    pub slots: Arc<Slots>,
    /// Whether this run waits for a lock.
    pub waits: Arc<WaitState>,
    /// Why the run is asked to stop, if not by a client.
    pub cause: OnceLock<StopCause>,
    /// The job's sort key once it is pending again, if keys decide.
    pub key: Mutex<Option<f64>>,
    /// The handler's latest report.
    pub report: Report,
    /// The handler's first poll.
    pub first_poll: FirstPoll,
}

/// The latest report of a handler.
#[derive(Default)]
pub(crate) struct Report {
    latest: Mutex<Option<Box<RawValue>>>,
    changed: Notify,
}

impl Report {
    /// Replaces it.
    pub fn set(&self, info: Box<RawValue>) {
        *lock(&self.latest) = Some(info);
        self.changed.notify_one();
    }

    fn get(&self) -> Option<Box<RawValue>> {
        lock(&self.latest).clone()
    }
}

impl Controls {
    /// Asks the handler to stop. The first cause counts.
    pub fn stop_for(&self, cause: StopCause) {
        if !self.stop.is_cancelled() {
            let _ = self.cause.set(cause);
        }
        self.stop.cancel();
    }

    pub fn key(&self) -> Option<f64> {
        *lock(&self.key)
    }

    /// Whether the run shall end.
    pub fn shall_end(&self) -> bool {
        self.stop.is_cancelled() || self.halt.is_cancelled()
    }

    pub fn set_key(&self, key: Option<f64>) {
        *lock(&self.key) = key;
    }
}

/// Whether a run ended under its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// The end is recorded.
    Recorded,
    /// The claim was lost; nothing was written.
    Halted,
    /// Another task supervises the run now ([`take_over`]).
    TakenOver,
}

/// The fields of the claimed job that recording its end needs; the handler has the rest.
pub(crate) struct ClaimedJob {
    pub id: String,
    pub task: Option<String>,
    pub claim: Claim,
    pub started_us: Option<i64>,
    pub crashes: u32,
    pub attempts: u32,
    pub terms: Terms,
    /// The spans below the run, if the job is traced.
    pub spans: Option<RunSpans>,
}

impl ClaimedJob {
    fn new(job: &Job, spans: Option<RunSpans>) -> Arc<Self> {
        let claim = job.claim().cloned().expect("a claimed job has a claim");
        Arc::new(ClaimedJob {
            id: job.id.clone(),
            task: job.task.clone(),
            claim,
            started_us: job.started_us,
            crashes: job.crashes,
            attempts: job.attempts,
            terms: job.terms(),
            spans,
        })
    }
}

/// Starts the handler of a claimed job, after `delay`. The returned future supervises it until its end is recorded. Not an
/// `async fn`: its future would keep the arguments, too.
pub(crate) fn run(
    shared: Arc<Shared>,
    job: Job,
    job_options: Box<RawValue>,
    controls: Arc<Controls>,
    delay: Duration,
) -> impl Future<Output = RunEnd> {
    let spans = shared.options.spans.run(&job, shared.store.runtime());
    let claimed = ClaimedJob::new(&job, spans.clone());
    // At the level of errors, so that events of every level have its fields. Not within the span of the worker, whose fields it has.
    let span = tracing::error_span!(
        parent: None, "run", job_type = shared.job_type, job = job.id, tenant = job.tenant, worker = claimed.claim.worker
    );
    let context = JobContext {
        job,
        options: job_options,
        stop: controls.stop.clone(),
        controls: controls.clone(),
        locks: JobLocks::new(shared.clone(), claimed.clone(), controls.clone()),
        spans,
    };
    let handler = shared.handler.clone();
    let runtime = shared.store.runtime().clone();
    let handler: HandlerFuture = Box::pin(
        async move {
            if !delay.is_zero() {
                tokio::select! {
                    biased;
                    () = context.stop.cancelled() => return Outcome::Stopped,
                    () = runtime.sleep(delay) => {}
                }
            }
            handler.run(context).await
        }
        .instrument(span.clone()),
    );
    let mut run = Run { shared, job: claimed, controls, crash: CrashKind::Error };
    async move {
        let Timeouts { run_us, heartbeat_us } = run.job.terms.timeouts;
        let polled = match (run_us, heartbeat_us) {
            (None, None) => {
                run.controls.first_poll.poll(handler, &run.job, || !run.controls.shall_end()).await
            }
            // A supervisor must enforce them, also during the first poll.
            _ => Some(Polled::Waits(handler)),
        };
        let outcome = match polled {
            None => return RunEnd::TakenOver,
            Some(Polled::Ended(outcome)) => Some(outcome),
            Some(Polled::Panicked(panic)) => Some(run.outcome(Err(Some(panic)))),
            // Boxed: such a run is not short.
            Some(Polled::Waits(handler)) => Box::pin(run.supervise(Handler::spawn(handler), delay)).await,
        };
        run.end(outcome).await
    }
    .instrument(span)
}

/// Supervises a run from now on, if its handler has not returned from its first poll. The task of that run ends as
/// [`RunEnd::TakenOver`], once the handler returns.
pub(crate) fn take_over(
    shared: &Arc<Shared>,
    controls: &Arc<Controls>,
) -> Option<impl Future<Output = RunEnd> + use<>> {
    let (job, span, handler) = controls.first_poll.take()?;
    let mut run = Run { shared: shared.clone(), job, controls: controls.clone(), crash: CrashKind::Error };
    let ends = async move {
        let outcome = run.supervise(handler, Duration::ZERO).await;
        run.end(outcome).await
    };
    Some(ends.instrument(span))
}

struct Run {
    shared: Arc<Shared>,
    job: Arc<ClaimedJob>,
    controls: Arc<Controls>,
    /// Why it crashes, if it does.
    crash: CrashKind,
}

impl Run {
    /// Records the end of the run; `None` if its claim was lost.
    async fn end(self, outcome: Option<Outcome>) -> RunEnd {
        let Some(outcome) = outcome else { return RunEnd::Halted };
        let Run { shared, job, controls, crash } = self;
        let cause = controls.cause.get().copied();
        let ending = match (outcome, cause) {
            (Outcome::Stopped, Some(StopCause::Preempted | StopCause::FewerSlots)) => Ending::Preempted,
            (outcome, _) => ending(&shared, outcome),
        };
        let (info, key) = (controls.report.get(), controls.key());
        record(&shared, End { job, ending, info, key, cause }, crash, &controls.halt).await
    }

    /// Waits for the handler's end; the handler begins after `delay`. Meanwhile writes its reports, forwards stop
    /// requests, and enforces its timeouts. A run that is idle or waits for a lock need not report. `None` if the claim
    /// was lost.
    async fn supervise(&mut self, mut task: Handler, delay: Duration) -> Option<Outcome> {
        let runtime = self.shared.store.runtime().clone();
        let Options { report_interval, stop_grace, .. } = self.shared.options;
        // The first report is written immediately. One that follows too early waits until the interval has passed.
        let mut interval = std::pin::pin!(after(&*runtime, None, Duration::ZERO));
        let mut due = true;
        let mut unwritten = false;
        let mut over = None;
        let timeout = |us: Option<i64>| us.map(|us| Duration::from_micros(us.unsigned_abs()));
        let heartbeat = timeout(self.job.terms.timeouts.heartbeat_us);
        let mut run_over = std::pin::pin!(after(&*runtime, timeout(self.job.terms.timeouts.run_us), delay));
        let mut silent = std::pin::pin!(after(&*runtime, heartbeat, delay));
        let mut was_idle = false;
        loop {
            if due && unwritten {
                (due, unwritten) = (false, false);
                interval.set(after(&*runtime, Some(report_interval), Duration::ZERO));
                // Boxed: few runs report at the same time.
                if Box::pin(self.write_report()).await.is_err() {
                    self.controls.halt.cancel();
                }
            }
            tokio::select! {
                biased;
                () = self.controls.halt.cancelled() => {
                    Box::pin(self.abort(task)).await;
                    return None;
                }
                ended = &mut task => return Some(self.outcome(ended)),
                () = self.controls.stop.cancelled() => break,
                () = self.controls.report.changed.notified() => {
                    unwritten = true;
                    silent.set(after(&*runtime, heartbeat, Duration::ZERO));
                    was_idle = false;
                }
                () = &mut interval, if !due => due = true,
                Some(run_us) = async { run_over.as_mut().await; self.job.terms.timeouts.run_us } => {
                    over = Some(Over::Run(run_us));
                    break;
                }
                Some(heartbeat_us) = async { silent.as_mut().await; self.job.terms.timeouts.heartbeat_us } => {
                    // It is not known when an idle run became busy.
                    let may_rest = std::mem::replace(&mut was_idle, self.controls.idle.is_idle());
                    let rested = was_idle || may_rest || self.controls.waits.now();
                    let since_us = match (rested, self.controls.waits.ended_us()) {
                        (true, _) => runtime.elapsed_us(),
                        (false, ended_us) => ended_us.unwrap_or(i64::MIN),
                    };
                    let left_us = since_us.saturating_add(heartbeat_us).saturating_sub(runtime.elapsed_us());
                    if left_us <= 0 {
                        over = Some(Over::Heartbeat(heartbeat_us));
                        break;
                    }
                    let left = Duration::from_micros(left_us.unsigned_abs());
                    silent.set(after(&*runtime, Some(left), Duration::ZERO));
                }
            }
        }
        self.controls.stop.cancel();
        // The handler has the grace period to stop by itself.
        let grace = std::pin::pin!(runtime.sleep(stop_grace));
        let stopped = tokio::select! {
            biased;
            () = self.controls.halt.cancelled() => {
                Box::pin(self.abort(task)).await;
                return None;
            }
            ended = &mut task => self.outcome(ended),
            () = grace => {
                tracing::warn!(job = %self.job.id, "did not stop within its grace period: aborted");
                self.crash = CrashKind::Panic;
                Box::pin(self.abort(task)).await
            }
        };
        Some(match (over, stopped) {
            (
                Some(over),
                Outcome::Stopped | Outcome::Crashed(_) | Outcome::Snoozed(_) | Outcome::Parked { .. },
            ) => {
                self.crash = CrashKind::from(over);
                Outcome::Crashed(over.to_string())
            }
            (_, stopped) => stopped,
        })
    }

    /// Aborts the handler's task, and returns once it has ended: only then may another worker claim the job. A handler
    /// that blocks its thread cannot be aborted. It counts as crashed, so that its worker continues and the next
    /// attempt waits for a backoff.
    async fn abort(&self, mut task: Handler) -> Outcome {
        task.abort();
        let Options { stop_grace, .. } = self.shared.options;
        tokio::select! {
            biased;
            ended = &mut task => ended.unwrap_or(Outcome::Stopped),
            () = self.shared.store.runtime().sleep(stop_grace) => {
                tracing::error!(job = %self.job.id, "blocks its thread: given up, and its thread with it");
                Outcome::Crashed(format!(
                    "did not stop within {stop_grace:?}, and could not be aborted in as long again: its handler blocks its thread"
                ))
            }
        }
    }

    /// A panic counts as a crash, with its message as the reason.
    fn outcome(&mut self, ended: Result<Outcome, Option<Panic>>) -> Outcome {
        let panic = match ended {
            Ok(outcome) => return outcome,
            Err(None) => return Outcome::Stopped,
            Err(Some(panic)) => panic,
        };
        self.crash = CrashKind::Panic;
        let message = panic
            .downcast_ref::<&str>()
            .map(|message| (*message).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Outcome::Crashed(format!("the handler panicked: {message}"))
    }

    /// Writes the latest report. An error means that the claim is lost.
    async fn write_report(&mut self) -> Result<(), RunEnd> {
        let Some(info) = self.controls.report.get() else { return Ok(()) };
        let (shared, id, claim, info) = (&self.shared, &self.job.id, &self.job.claim, &info);
        let now_us = shared.store.runtime().now_us();
        let span = self.job.spans.as_ref().and_then(|spans| spans.child(SpanKind::Internal));
        let answer = shared
            .store
            .transact(|tx| async move {
                claims::update(&tx, &shared.keys, &shared.job_type, id, claim, info, now_us).await
            })
            .await;
        if let Some(span) = span {
            let error = answer.as_ref().err().map(ToString::to_string);
            span.end("transaction: report".to_owned(), Vec::new(), error);
        }
        match answer {
            Ok(Answer::Continue) => {}
            Ok(Answer::Cancel) => self.controls.stop.cancel(),
            Err(Error::Halt) => return Err(RunEnd::Halted),
            // The next report, or the end, retries.
            Err(error) => tracing::warn!(job = %id, %error, "progress could not be written"),
        }
        Ok(())
    }
}

/// Ends `time` after `delay` has passed; never if there is no `time`.
async fn after(runtime: &dyn Runtime, time: Option<Duration>, delay: Duration) {
    match time {
        Some(time) => runtime.sleep(delay.saturating_add(time)).await,
        None => pending().await,
    }
}
