//! One run of a job: its handler, its reports, and its end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_protocol::{
    AcceptedJob, Answer, FailRun, FinishRun, LogLevel, MAX_LOG_LINES, MAX_REASON_BYTES, MAX_RESULT_BYTES,
    MAX_TIMEOUT_MS, MAX_TRACE_BYTES, NewLogLine, ReleaseRun, SnoozeRun, Update, Updated, json,
};

use super::ends::RunEnd;
use super::info::{Info, too_large};
use super::shared::{Shared, is_retryable};
use crate::client::{Repeat, Request};
use crate::output::JobResult;
use crate::{Client, Result};

/// The most bytes of lines that wait to be sent. The server keeps no more of a job's log, and a request with them stays within its bound, even if
/// each character needs an escape of six bytes.
const MAX_LOG_BYTES: usize = 256 << 10;
/// The longest pause of a rate, in ms.
const MAX_RATE_PAUSE_MS: u64 = 3_600_000;
/// How long a run's end waits for a report with lines that is on its way. Without its response, the end carries the same lines again.
const LAST_REPORT: Duration = Duration::from_secs(1);

/// A run, as the handler sees it.
pub struct Run {
    /// The job as the worker accepted it.
    pub job: AcceptedJob,
    /// Its type.
    pub job_type: String,
    /// Cancelled when the run must end early: a client cancelled the job, a timeout has passed, or the worker stops.
    /// The handler should then return [`Outcome::Stopped`] soon. If it does not, the worker aborts it.
    pub stop: CancellationToken,
    pub(super) shared: Arc<Shared>,
    pub(super) reports: watch::Sender<Option<Box<RawValue>>>,
    /// What `reports` is made of.
    pub(super) info: Mutex<Info>,
    /// Held by each request with a report, so that none overtakes a later one.
    pub(super) updating: Arc<tokio::sync::Mutex<()>>,
    log: Arc<Log>,
    pub(super) asks: Arc<Asks>,
}

/// The lines that a run has logged, and that were not sent yet: the last [`MAX_LOG_LINES`] of them, or [`MAX_LOG_BYTES`].
#[derive(Default)]
struct Log(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    lines: VecDeque<NewLogLine>,
    /// Their size.
    bytes: usize,
}

impl Lines {
    fn add(&mut self, line: NewLogLine) {
        self.bytes += line_bytes(&line);
        self.lines.push_back(line);
        // The server keeps the last ones only.
        while (self.lines.len() > MAX_LOG_LINES || self.bytes > MAX_LOG_BYTES)
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= line_bytes(&oldest);
        }
    }
}

/// The size of a line, without its time and its level.
fn line_bytes(line: &NewLogLine) -> usize {
    line.message.len() + line.fields.as_ref().map_or(0, |fields| fields.get().len())
}

impl Log {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: NewLogLine) {
        self.lines().add(line);
    }

    fn is_empty(&self) -> bool {
        self.lines().lines.is_empty()
    }

    /// Takes the lines for the end of the run.
    fn take(&self) -> Vec<NewLogLine> {
        std::mem::take(&mut *self.lines()).lines.into()
    }

    /// Takes the lines for a report.
    fn take_to_send(self: Arc<Self>) -> Unsent {
        Unsent { lines: self.take(), log: self }
    }
}

/// Lines in a report without a response. If the report is dropped, whether the server has them is unknown: a line may be there twice, and none
/// is lost.
struct Unsent {
    lines: Vec<NewLogLine>,
    log: Arc<Log>,
}

impl Drop for Unsent {
    /// Puts the lines back, before those that were logged since.
    fn drop(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let mut lines = self.log.lines();
        let since = std::mem::take(&mut *lines);
        self.lines.drain(..).chain(since.lines).for_each(|line| lines.add(line));
    }
}

/// How often a run has requested locks, and how many such requests are in flight. A run that waits for a lock need not report.
#[derive(Default)]
pub(super) struct Asks {
    /// Each request in flight has a clone.
    now: Arc<()>,
    times: AtomicUsize,
}

impl Asks {
    /// Counts a request as in flight until the returned value is dropped.
    pub fn begin(&self) -> Arc<()> {
        self.times.fetch_add(1, Relaxed);
        self.now.clone()
    }
}

/// Without the job's options, because they may hold secrets.
impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { job: AcceptedJob { id, claim, attempt, .. }, job_type, .. } = self;
        f.debug_struct("Run")
            .field("job_type", job_type)
            .field("id", id)
            .field("claim", claim)
            .field("attempt", attempt)
            .finish_non_exhaustive()
    }
}

impl Run {
    /// Logs a line, which the worker sends with the next report, or with the end of the run. The server keeps the last 1,000 lines of a job, or
    /// 256 kB; of more between two reports, the worker sends the last ones.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.add_line(level, message.into(), None);
    }

    /// Like [`Run::log`], with fields that say more: an object. Other fields are dropped, with a warning in the worker's own log.
    pub fn log_with<T: Serialize>(&self, level: LogLevel, message: impl Into<String>, fields: &T) {
        let raw = serde_json::value::to_raw_value(fields).ok();
        // The server would refuse the whole report for them.
        let raw = raw.filter(|raw| raw.get().starts_with('{') && json::check_result(raw).is_ok());
        if raw.is_none() {
            tracing::warn!(job = self.job.id, "fields of a line dropped: no object that the server takes");
        }
        self.add_line(level, message.into(), raw);
    }

    fn add_line(&self, level: LogLevel, message: String, fields: Option<Box<RawValue>>) {
        let at_us = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let at_us = at_us.and_then(|since| i64::try_from(since.as_micros()).ok());
        self.log.add(NewLogLine { at_us, level, message, fields });
        self.reports.send_modify(|_| {});
    }

    /// Reports the progress of the run. This is cheap: the worker sends the latest report at intervals, and with the
    /// end of the run. At most 12 kB, with the values of [`Run::step`], nested no deeper than 96; another report is dropped, with a warning in the log.
    pub fn report<T: Serialize>(&self, report: &T) {
        let report = match serde_json::value::to_raw_value(report) {
            Ok(report) => report,
            Err(error) => return tracing::warn!(job = self.job.id, %error, "report dropped: not JSON"),
        };
        let mut info = self.info();
        let before = info.report.replace(report);
        match info.checked() {
            Ok(json) => drop(self.reports.send_replace(json)),
            Err(problem) => {
                info.report = before;
                tracing::warn!(job = self.job.id, "report dropped: {problem}");
            }
        }
    }

    /// The last report of this run, or of an earlier one.
    pub fn last_report(&self) -> Option<Box<RawValue>> {
        self.info().report.clone()
    }

    pub(super) fn info(&self) -> MutexGuard<'_, Info> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no job start for this time, at most an hour, in the rates that this job obeys: the service that they protect has refused a request.
    ///
    /// # Errors
    /// The worker has lost its claim, or the server does not answer.
    pub async fn pause_rate(&self, time: Duration) -> Result<()> {
        let rate_pause_ms = Some(ms(time).min(MAX_RATE_PAUSE_MS));
        let update = Update { claim: self.job.claim, info: None, log: Vec::new(), rate_pause_ms };
        let request = self.shared.request(&["jobs", &self.job.id, "update"]).json(&update)?;
        self.client().call::<Updated>(&request, Repeat::Harmless).await.map(drop)
    }

    /// A client of the worker's server, with the worker's identity.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub enum Outcome {
    /// The run completed, with this result.
    Completed(Box<RawValue>),
    /// The run completed, with bytes of a media type.
    CompletedWith(JobResult),
    /// The run failed permanently, with this error: the job is not retried.
    Failed(RunError),
    /// The run failed with an error that may pass: the job is retried after a backoff, up to its `max_attempts`.
    Crashed(RunError),
    /// As [`Outcome::Crashed`], but the job waits for this long, in place of its backoff: what the other side asked for.
    RetryAfter(RunError, Duration),
    /// It is too early: the job runs again after this long, and no attempt is counted. More often than the job's `max_snoozes`, it
    /// fails.
    Snoozed(Duration),
    /// The run stopped early, on request: the worker gives the job back.
    Stopped,
}

/// What went wrong in a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunError {
    /// The message.
    pub message: String,
    /// The class of the error: failures of one class are counted together.
    pub class: Option<String>,
    /// Where it was raised: the text of a trace.
    pub trace: Option<String>,
}

impl From<String> for RunError {
    fn from(message: String) -> Self {
        RunError { message, ..RunError::default() }
    }
}

impl From<&str> for RunError {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl Outcome {
    /// Completed, with a result that serializes to JSON; crashed if it does not.
    pub fn completed<T: Serialize>(result: &T) -> Self {
        match serde_json::value::to_raw_value(result) {
            Ok(result) => Outcome::Completed(result),
            Err(error) => Outcome::Crashed(format!("the result is not JSON: {error}").into()),
        }
    }
}

/// Supervises a handler, and sends its reports and its end to the server.
pub(super) struct Supervisor {
    shared: Arc<Shared>,
    id: String,
    claim: u64,
    stop: CancellationToken,
    reports: watch::Receiver<Option<Box<RawValue>>>,
    updating: Arc<tokio::sync::Mutex<()>>,
    log: Arc<Log>,
    asks: Arc<Asks>,
    /// The limits on the run's duration, and on the time between two reports. The server enforces them, too; here they
    /// free the slot.
    timeout: Option<Duration>,
    heartbeat_timeout: Option<Duration>,
}

/// The claim is lost, or the worker has expired: the worker writes nothing more for this run.
struct Halt;

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.runs().remove(&self.claim);
        self.shared.ends.run_is_over();
    }
}

impl Supervisor {
    pub fn new(shared: Arc<Shared>, job: AcceptedJob, stop: CancellationToken) -> (Supervisor, Run) {
        let (sender, reports) = watch::channel(None);
        let (id, claim) = (job.id.clone(), job.claim);
        let job_type = shared.options.job_type.clone();
        let (asks, log) = (Arc::<Asks>::default(), Arc::<Log>::default());
        let timeout = job.timeout_ms.map(Duration::from_millis);
        let heartbeat_timeout = job.heartbeat_timeout_ms.map(Duration::from_millis);
        let updating = Arc::<tokio::sync::Mutex<()>>::default();
        let run = Run {
            info: Mutex::new(Info::of(job.info.as_deref())),
            updating: updating.clone(),
            job,
            job_type,
            stop: stop.clone(),
            shared: shared.clone(),
            reports: sender,
            log: log.clone(),
            asks: asks.clone(),
        };
        let supervisor =
            Supervisor { shared, id, claim, stop, reports, updating, log, asks, timeout, heartbeat_timeout };
        (supervisor, run)
    }

    /// Runs until the end is acknowledged.
    pub async fn run(mut self, mut task: AbortOnDropHandle<Outcome>) {
        let ended = match self.supervise(&mut task).await {
            Ok(outcome) => self.end(outcome).await,
            Err(Halt) => {
                task.abort();
                let _ = task.await;
                Err(Halt)
            }
        };
        if ended.is_err() {
            tracing::warn!(
                job = self.id,
                "the claim is lost: the run is stopped, and the worker reports nothing more for it"
            );
        }
    }

    async fn supervise(&mut self, task: &mut AbortOnDropHandle<Outcome>) -> Result<Outcome, Halt> {
        let expired = self.shared.expired.clone();
        let stop = self.stop.clone();
        let interval = self.shared.options.report_interval;
        let mut due = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let (mut unsent, mut reporting) = (false, true);
        let (heartbeat, mut over) = (self.heartbeat_timeout, None);
        let mut run_over = std::pin::pin!(after(self.timeout));
        let mut silent = std::pin::pin!(after(heartbeat));
        let mut asked = 0;
        loop {
            tokio::select! {
                biased;
                () = expired.cancelled() => return Err(Halt),
                ended = &mut *task => return Ok(outcome(ended)),
                () = stop.cancelled() => break,
                changed = self.reports.changed(), if reporting && !unsent => {
                    // The sender is in the `Run`, so it is dropped when the handler ends.
                    reporting = changed.is_ok();
                    unsent = reporting;
                    silent.set(after(heartbeat));
                }
                () = &mut run_over => {
                    over = self.timeout.map(|time| format!("it ran for longer than its timeout of {time:?}"));
                    break;
                }
                () = &mut silent => {
                    let times = self.asks.times.load(Relaxed);
                    let asks = std::mem::replace(&mut asked, times) != times || Arc::strong_count(&self.asks.now) > 1;
                    if !asks && !self.reports.has_changed().unwrap_or(false) {
                        over = heartbeat
                            .map(|time| format!("it reported nothing for its heartbeat_timeout of {time:?}"));
                        break;
                    }
                    silent.set(after(heartbeat));
                }
                () = &mut due, if unsent => {
                    let patience = if self.log.is_empty() { Duration::ZERO } else { LAST_REPORT };
                    let mut sending = std::pin::pin!(self.report());
                    tokio::select! {
                        biased;
                        () = expired.cancelled() => return Err(Halt),
                        ended = &mut *task => {
                            let _ = tokio::time::timeout(patience, sending).await;
                            return Ok(outcome(ended));
                        }
                        () = stop.cancelled() => {
                            let _ = tokio::time::timeout(patience, sending).await;
                            break;
                        }
                        sent = &mut sending => unsent = sent?,
                    }
                    due.set(tokio::time::sleep(interval));
                }
            }
        }
        self.stop.cancel();
        let ended = tokio::select! {
            biased;
            () = expired.cancelled() => return Err(Halt),
            ended = &mut *task => outcome(ended),
            () = tokio::time::sleep(self.shared.options.stop_grace) => {
                tracing::warn!(job = self.id, "did not stop within its grace period: aborted");
                task.abort();
                // The claim must not be given back before the handler has ended.
                task.await.unwrap_or(Outcome::Stopped)
            }
        };
        Ok(match (over, ended) {
            (
                Some(over),
                Outcome::Stopped | Outcome::Crashed(_) | Outcome::RetryAfter(..) | Outcome::Snoozed(_),
            ) => Outcome::Crashed(over.into()),
            (_, ended) => ended,
        })
    }

    /// Sends the latest report and the lines of log. A lost report does not matter, because the next one, or the end, replaces it; lines are
    /// sent again. Returns whether there are lines to send again.
    async fn report(&mut self) -> Result<bool, Halt> {
        let updating = self.updating.clone();
        let _turn = updating.lock().await;
        let (info, mut unsent) = (self.reports.borrow_and_update().clone(), self.log.clone().take_to_send());
        if info.is_none() && unsent.lines.is_empty() {
            return Ok(false);
        }
        let update = Update { claim: self.claim, info, log: unsent.lines.clone(), rate_pause_ms: None };
        let request = match self.request("update").json(&update) {
            Ok(request) => request,
            Err(_) => return Ok(false),
        };
        let sent = self.shared.client.once::<Updated>(&request).await;
        if sent.as_ref().map_or_else(|error| !is_retryable(error), |_| true) {
            // The server has them, or would refuse them again.
            unsent.lines.clear();
        }
        drop(unsent);
        match sent {
            Ok(Updated { answer: Answer::Continue }) => Ok(false),
            Ok(Updated { answer: Answer::Cancel }) => {
                self.stop.cancel();
                Ok(false)
            }
            Ok(Updated { answer: Answer::Halt }) => Err(Halt),
            Err(error) if self.shared.is_lost(&error) => Err(Halt),
            Err(error) => {
                tracing::debug!(job = self.id, "the server did not accept a report: {error}");
                Ok(!self.log.is_empty())
            }
        }
    }

    /// Reports the end until the server acknowledges it.
    async fn end(&self, outcome: Outcome) -> Result<(), Halt> {
        let Shared { client, expired, ends, .. } = &*self.shared;
        let mut end = self.ending(outcome);
        let mut replaced = false;
        let mut backoff = client.backoff();
        loop {
            let Some(answer) = expired.run_until_cancelled(ends.send(end.clone())).await else {
                return Err(Halt);
            };
            let error = match answer {
                Some(Ok(state)) => {
                    tracing::debug!(job = self.id, ?state, "ended");
                    return Ok(());
                }
                Some(Err(error)) => error,
                None => {
                    if backoff.attempts() == 0 {
                        tracing::warn!(job = self.id, "reporting the end again until the server answers");
                    }
                    let pause = tokio::time::sleep(backoff.next());
                    if expired.run_until_cancelled(pause).await.is_none() {
                        return Err(Halt);
                    }
                    continue;
                }
            };
            if self.shared.is_lost(&error) {
                return Err(Halt);
            }
            tracing::error!(job = self.id, "the server refuses the end of a run: {error}");
            if std::mem::replace(&mut replaced, true) {
                // The server contradicts the protocol. The claim ends when the worker leaves or expires.
                return Err(Halt);
            }
            // The server will never accept this end, but may accept a failure.
            let refused = format!("the server refused the end of this run: {error}");
            end = self.fail(refused.into(), Retry::Never, None);
        }
    }

    fn ending(&self, outcome: Outcome) -> RunEnd {
        let (id, claim) = (self.id.clone(), self.claim);
        let info = self.reports.borrow().clone();
        match outcome {
            Outcome::Completed(result) => match problem(&result) {
                Some(problem) => self.fail(format!("its result {problem}").into(), Retry::Never, info),
                None => self.finish(Some(result), None, info),
            },
            Outcome::CompletedWith(result) => match too_large(result.bytes.len(), MAX_RESULT_BYTES) {
                Some(problem) => self.fail(format!("its result {problem}").into(), Retry::Never, info),
                None => self.finish(None, Some(result), info),
            },
            Outcome::Failed(error) => self.fail(error, Retry::Never, info),
            Outcome::Crashed(error) => self.fail(error, Retry::ByTerms, info),
            Outcome::RetryAfter(error, time) => self.fail(error, Retry::After(time), info),
            Outcome::Snoozed(time) => {
                let log = self.log.take();
                RunEnd::Snooze(SnoozeRun { id, claim, until_us: None, for_ms: Some(ms(time)), info, log })
            }
            Outcome::Stopped => RunEnd::Release(ReleaseRun { id, claim, info, log: self.log.take() }),
        }
    }

    fn finish(
        &self,
        result: Option<Box<RawValue>>,
        data: Option<JobResult>,
        info: Option<Box<RawValue>>,
    ) -> RunEnd {
        let (id, claim, log) = (self.id.clone(), self.claim, self.log.take());
        let (media_type, data) =
            data.map(|data| (data.media_type, BASE64_STANDARD.encode(&data.bytes))).unzip();
        RunEnd::Finish(FinishRun { id, claim, result, data, media_type, info, log })
    }

    fn fail(&self, error: RunError, retry: Retry, info: Option<Box<RawValue>>) -> RunEnd {
        let bounded = |mut text: String, most: usize| {
            text.truncate(text.floor_char_boundary(most));
            text
        };
        let reason = bounded(error.message, MAX_REASON_BYTES);
        let class = error.class.map(|class| bounded(class, MAX_REASON_BYTES));
        let trace = error.trace.map(|trace| bounded(trace, MAX_TRACE_BYTES));
        let log = self.log.take();
        let retry_after_ms = match retry {
            Retry::After(time) => Some(ms(time)),
            Retry::Never | Retry::ByTerms => None,
        };
        let (id, claim, retry) = (self.id.clone(), self.claim, retry != Retry::Never);
        RunEnd::Fail(FailRun { id, claim, reason, class, trace, retry, retry_after_ms, info, log })
    }

    fn request(&self, what: &str) -> Request {
        self.shared.request(&["jobs", &self.id, what])
    }
}

/// Whether a job that failed is tried again, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Never,
    ByTerms,
    After(Duration),
}

/// At most what the server takes, a year.
pub(super) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(MAX_TIMEOUT_MS)
}

/// Why the server would not take a result.
fn problem(result: &RawValue) -> Option<String> {
    let bytes = result.get().len();
    too_large(bytes, MAX_RESULT_BYTES).or_else(|| {
        let error = json::check_result(result).err()?;
        Some(format!("of {bytes} bytes is JSON that the server does not take: {error}"))
    })
}

/// Completes after this time; never if there is none.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The outcome of a handler. A panic counts as a crash, with its message as the reason.
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
    Outcome::Crashed(format!("the handler panicked: {message}").into())
}
