//! The job record and its rows as plain data. [`crate::place`] has the places of a job and the moves between them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_policy::backoff::{self, OnLost};
use turnwise_policy::eligibility::concurrency;
use turnwise_policy::predictive_queue::locks::{Levels, Requests};

use crate::after::{self, After};
use crate::locks::MAX_LOCKS_BYTES;
pub use crate::parked::Parked;
use crate::timeouts::{Deadline, Timeouts};
use crate::trace::TraceContext;
use crate::{Error, Place, Result, record};

/// Longest job type, in bytes.
pub const MAX_TYPE_BYTES: usize = 64;
/// Longest job id, in bytes. With a type and a worker id it is far below the store's 10 kB for a key.
pub const MAX_ID_BYTES: usize = 512;
/// Longest tenant or user name, in bytes.
pub const MAX_NAME_BYTES: usize = 512;
/// Largest options, in bytes. Large options are stored in pieces, so that no value exceeds the store's limit.
pub const MAX_OPTIONS_BYTES: usize = 4 << 20;
/// Largest summary, info or result, in bytes. A record has all three (36 kB), inline options (8 kB), and a history of
/// [`MAX_HISTORY_BYTES`] that JSON's escapes may double. Together they stay below the store's 100 kB for a value.
pub const MAX_INFO_BYTES: usize = 12 << 10;
/// Largest history, in bytes; the oldest entries are dropped first.
const MAX_HISTORY_BYTES: usize = 24_000;
/// Largest history of a job that locks or has places in buckets. Its record also has the locks that it declares, declares
/// for its next run, and holds, each of up to [`MAX_LOCKS_BYTES`]. It has up to eleven names of buckets.
const MAX_HISTORY_BESIDE_LOCKS_BYTES: usize = 9_000;
/// Size of an event without its reason, in bytes.
const EVENT_BYTES: usize = 48;
/// Longest stored reason, in bytes; longer ones are cut.
pub const MAX_REASON_BYTES: usize = 1_000;
/// The priority class that runs first.
pub const MIN_CLASS: i8 = -20;
/// The priority class that runs last.
pub const MAX_CLASS: i8 = 19;
/// The most reasons that a job is added with.
pub const MAX_REASONS: usize = 10;
/// Longest such reason, in bytes.
const MAX_ADDED_REASON_BYTES: usize = 200;
/// History entries that a job keeps by default (`max_history`).
pub const DEFAULT_MAX_HISTORY: usize = 20;
/// Options up to this size are in the record itself: one row to read and write, not two.
pub(crate) const INLINE_OPTIONS_BYTES: usize = 8 << 10;

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits in its tenant's queue.
    Pending,
    /// Was added for later, or waits outside of the queue; pending when its time or its event comes.
    Delayed,
    /// Has a claim.
    Running,
    /// Has a claim, and waits for a lock.
    Waiting,
    /// Crashed; pending again when its backoff is over.
    Crashing,
    /// Ended without an error.
    Completed,
    /// Ended with a permanent error, or with its last attempt.
    Failed,
    /// Cancelled.
    Cancelled,
}

impl State {
    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Delayed => "delayed",
            State::Running => "running",
            State::Waiting => "waiting",
            State::Crashing => "crashing",
            State::Completed => "completed",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }

    /// Whether the job has a claim: it runs, or waits for a lock while it runs.
    pub fn is_claimed(self) -> bool {
        matches!(self, State::Running | State::Waiting)
    }

    /// Whether the job has ended and stays in this state until a client adds or retries it.
    pub fn is_final(self) -> bool {
        matches!(self, State::Completed | State::Failed | State::Cancelled)
    }
}

/// The terms of a claim: when a run counts as healthy, and what happens to the job if the run does not end by itself. The
/// record keeps them during the run, so that the claim can be revoked without the worker's settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// The backoff after a lost run, and how long a run must last to be healthy.
    pub backoff: backoff::Rules,
    /// How the loss of the worker counts.
    pub on_lost: OnLost,
    /// The run's timeouts: the job's own, or else its type's.
    #[serde(skip_serializing_if = "Timeouts::is_none")]
    pub timeouts: Timeouts,
}

/// A worker's fenced hold on a job. Every write for the job carries it. No two claims are equal: a worker's id is used once,
/// and the worker numbers its claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The worker's id.
    pub worker: String,
    /// The number that the worker gave to the claim; it uses each number once.
    pub number: u64,
}

/// What happens when a running job ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// The record stays, in its final state.
    #[default]
    Keep,
    /// The record is removed.
    Remove,
    /// The job was added again during the run, and runs again.
    Again,
}

/// An event in the history of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, in µs since the epoch.
    pub at_us: i64,
    /// What happened.
    pub kind: EventKind,
}

/// The kinds of events that a history keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Put into the queue.
    Added,
    /// Claimed by a worker.
    Started,
    /// Given back without an error: preempted, a clean shutdown, or a lost worker that does not count.
    Stopped {
        /// Why, if its worker did not give it back.
        reason: Option<String>,
    },
    /// Crashed: a temporary error, a timeout, or a lost worker.
    Crashed {
        /// What went wrong.
        reason: String,
    },
    /// Ended without an error.
    Completed,
    /// Ended with a permanent error, or with its last attempt.
    Failed {
        /// What went wrong.
        reason: String,
    },
    /// Cancelled.
    Cancelled,
}

impl EventKind {
    /// Given back by its worker.
    pub const STOPPED: EventKind = EventKind::Stopped { reason: None };

    /// Its name, in records and responses.
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::Added => "added",
            EventKind::Started => "started",
            EventKind::Stopped { .. } => "stopped",
            EventKind::Crashed { .. } => "crashed",
            EventKind::Completed => "completed",
            EventKind::Failed { .. } => "failed",
            EventKind::Cancelled => "cancelled",
        }
    }

    /// The kind with this name. `None` if there is none, or it must have a reason and has none, or the other way round.
    pub(crate) fn named(name: &str, reason: Option<String>) -> Option<EventKind> {
        Some(match (name, reason) {
            ("added", None) => EventKind::Added,
            ("started", None) => EventKind::Started,
            ("stopped", reason) => EventKind::Stopped { reason },
            ("crashed", Some(reason)) => EventKind::Crashed { reason },
            ("completed", None) => EventKind::Completed,
            ("failed", Some(reason)) => EventKind::Failed { reason },
            ("cancelled", None) => EventKind::Cancelled,
            _ => return None,
        })
    }

    /// Why it happened, if there is a reason.
    pub fn reason(&self) -> Option<&str> {
        match self {
            EventKind::Stopped { reason } => reason.as_deref(),
            _ => self.error(),
        }
    }

    /// The error, if there was one.
    pub fn error(&self) -> Option<&str> {
        match self {
            EventKind::Crashed { reason } | EventKind::Failed { reason } => Some(reason),
            _ => None,
        }
    }
}

/// A job. `record.rs` has the form in which it is stored.
#[derive(Debug, Clone)]
pub struct Job {
    /// The job's type; in the key, not in the value.
    pub job_type: String,
    /// The job's id, unique within its type; in the key, not in the value.
    pub id: String,
    /// Its place.
    pub place: Place,
    /// The account that it is charged to.
    pub tenant: String,
    /// On whose behalf it runs.
    pub user: Option<String>,
    /// It never ends by itself: it may be preempted for another job, and continues later.
    pub continuous: bool,
    /// When it was added (again), in µs.
    pub added_us: i64,
    /// When it was last started, in µs.
    pub started_us: Option<i64>,
    /// When it last changed its state, in µs.
    pub changed_us: i64,
    /// The group of its dependents, if other jobs wait for its end.
    pub awaited: Option<i64>,
    /// Why it was added, as stated by the client: filters read this, and some reasons state a limit
    /// ([`concurrency::of_reason`]).
    pub reasons: Vec<String>,
    /// CANCELLED: why, if its user did not cancel it.
    pub refused: Option<String>,
    /// Its priority class, [`MIN_CLASS`] to [`MAX_CLASS`]: of its tenant's jobs, those of lower classes run first.
    pub class: i8,
    /// Its sort key where keys decide, as of its last run: a finite number.
    pub sort_key: Option<f64>,
    /// The locks that it declares.
    pub locks: Requests,
    /// Consecutive crashes, as of its last claim; see [`Job::streak`].
    pub crashes: u32,
    /// Attempts since it was added: runs that completed, failed, crashed, or were lost with their worker, if that counts. A
    /// run that was stopped is none.
    pub attempts: u32,
    /// The crash of this attempt fails the job; `None` retries it forever.
    pub max_attempts: Option<u32>,
    /// The timeouts of its runs; its type's settings apply where it has none.
    pub timeouts: Timeouts,
    /// The claim under which its latest end was recorded: recording that end again changes nothing.
    pub ended_claim: Option<Claim>,
    /// Newest first.
    pub history: Vec<Event>,
    /// What may be shown to every user who may see the job: never contains a secret.
    pub summary: Box<RawValue>,
    /// The job's last report; while it runs, [`Active::info`] is newer.
    pub info: Option<Box<RawValue>>,
    /// COMPLETED: the result.
    pub result: Option<Box<RawValue>>,
    /// Its options are cleared when it ends: they hold passwords, and a client that adds it again has them.
    pub forgets_options: bool,
    /// The span that added it, if its trace is sampled.
    pub trace: Option<TraceContext>,
    /// The options, unless they are stored in pieces.
    pub(crate) options: Option<Hidden>,
}

/// Options; debug output hides them.
#[derive(Clone)]
pub(crate) struct Hidden(pub Box<RawValue>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("*****")
    }
}

impl Job {
    /// Resets the job as newly added at `now_us`: attempts, crashes and results of earlier runs are dropped. The history
    /// stays.
    pub(crate) fn begin(&mut self, now_us: i64) {
        self.added_us = now_us;
        self.crashes = 0;
        self.attempts = 0;
        self.result = None;
        self.info = None;
        self.sort_key = None;
        self.refused = None;
        self.record_request(now_us, EventKind::Added);
    }

    /// The error of its latest event, if that was a crash or a failure. For a cancelled job, why it was cancelled; `None` if
    /// its user requested that.
    pub fn reason(&self) -> Option<&str> {
        if self.state() == State::Cancelled {
            return self.refused.as_deref();
        }
        self.history.first()?.kind.error()
    }

    /// Consecutive crashes as of `now_us`, in µs: 0 once the run has lasted long enough to be healthy.
    pub fn streak(&self, now_us: i64) -> u32 {
        match (self.run(), self.started_us) {
            (Some(run), Some(started_us)) => {
                run.terms.backoff.streak(self.crashes, now_us.saturating_sub(started_us))
            }
            _ => self.crashes,
        }
    }

    /// Records an action of a client. Only workers know the job's `max_history`, so this does not shorten what they have
    /// kept.
    pub(crate) fn record_request(&mut self, now_us: i64, kind: EventKind) {
        let max_history = self.history.len().max(DEFAULT_MAX_HISTORY);
        self.record(now_us, kind, max_history);
    }

    pub(crate) fn record(&mut self, now_us: i64, kind: EventKind, max_history: usize) {
        self.changed_us = now_us;
        self.history.insert(0, Event { at_us: now_us, kind });
        let wants_locks = !self.locks.is_none() || self.run().is_some_and(|run| run.next.locks.is_some());
        let most_bytes = if wants_locks || !self.buckets().is_empty() {
            MAX_HISTORY_BESIDE_LOCKS_BYTES
        } else {
            MAX_HISTORY_BYTES
        };
        let mut bytes = 0;
        let fitting = self.history.iter().take_while(|event| {
            bytes += EVENT_BYTES + event.kind.reason().map_or(0, str::len);
            bytes <= most_bytes
        });
        let kept = fitting.count().min(max_history).max(1);
        self.history.truncate(kept);
    }
}

/// A job to be added.
#[derive(Clone)]
pub struct NewJob {
    /// Its type, which decides the handler.
    pub job_type: String,
    /// Its id, unique within the type.
    pub id: String,
    /// The account that it is charged to.
    pub tenant: String,
    /// On whose behalf it runs.
    pub user: Option<String>,
    /// What the handler needs; may contain secrets.
    pub options: Box<RawValue>,
    /// What may be shown: a JSON object without secrets.
    pub summary: Box<RawValue>,
    /// It does not start before this time, in µs.
    pub not_before_us: Option<i64>,
    /// Its order in its tenant's queue; the time of adding by default. It keeps jobs that one transaction adds in the order
    /// in which the client named them.
    pub order_us: Option<i64>,
    /// The crash of this attempt, counted from 1, fails the job; `None` retries it forever.
    pub max_attempts: Option<u32>,
    /// See [`Job::timeouts`].
    pub timeouts: Timeouts,
    /// See [`Job::continuous`].
    pub continuous: bool,
    /// The locks that it declares; see [`NewJob::check_locks`].
    pub locks: Requests,
    /// Its dependencies: at most [`MAX_AFTER`](crate::MAX_AFTER) jobs.
    pub after: Vec<After>,
    /// See [`Job::reasons`]: at most [`MAX_REASONS`].
    pub reasons: Vec<String>,
    /// See [`Job::class`]. `None` keeps the class of a job that is added again; a new job gets 0.
    pub class: Option<i8>,
    /// See [`Job::forgets_options`].
    pub forgets_options: bool,
    /// See [`Job::trace`].
    pub trace: Option<TraceContext>,
}

/// Omits the options: they may hold secrets.
impl fmt::Debug for NewJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewJob {
            job_type,
            id,
            tenant,
            user,
            summary,
            not_before_us,
            order_us,
            max_attempts,
            timeouts,
            continuous,
            locks,
            after,
            reasons,
            class,
            forgets_options,
            trace,
            options: _,
        } = self;
        f.debug_struct("NewJob")
            .field("job_type", job_type)
            .field("id", id)
            .field("tenant", tenant)
            .field("user", user)
            .field("summary", summary)
            .field("not_before_us", not_before_us)
            .field("order_us", order_us)
            .field("max_attempts", max_attempts)
            .field("timeouts", timeouts)
            .field("continuous", continuous)
            .field("locks", locks)
            .field("after", after)
            .field("reasons", reasons)
            .field("class", class)
            .field("forgets_options", forgets_options)
            .field("trace", trace)
            .finish_non_exhaustive()
    }
}

/// The tenant of jobs that name none.
pub const DEFAULT_TENANT: &str = "default";

impl NewJob {
    /// A job of the tenant [`DEFAULT_TENANT`], without a summary, that starts as soon as possible.
    pub fn new(job_type: &str, id: &str, options: Box<RawValue>) -> Self {
        NewJob {
            job_type: job_type.to_owned(),
            id: id.to_owned(),
            tenant: DEFAULT_TENANT.to_owned(),
            user: None,
            options,
            summary: record::no_summary(),
            not_before_us: None,
            order_us: None,
            max_attempts: None,
            timeouts: Timeouts::default(),
            continuous: false,
            locks: Requests::default(),
            after: Vec::new(),
            reasons: Vec::new(),
            class: None,
            forgets_options: false,
            trace: None,
        }
    }

    /// Whether the declared locks are possible with the configured levels. [`jobs::add`](crate::jobs::add) does not know the
    /// levels, and checks only the size.
    ///
    /// # Errors
    /// `Invalid` with the position in the declaration, the problem, and what would be right.
    pub fn check_locks(&self, levels: &Levels) -> Result<()> {
        let invalid = |problem| Error::Invalid { field: "locks", problem };
        levels
            .check(&self.locks)
            .map_err(|refused| invalid(format!("{}: {}", refused.level, refused.problem)))
    }

    /// Whether the job could be added, as far as its own fields show: [`jobs::add`](crate::jobs::add) makes the same checks.
    ///
    /// # Errors
    /// `Invalid` with the field that is empty, too long, out of range, or holds control characters.
    pub fn check(&self) -> Result<()> {
        check_name("type", &self.job_type, MAX_TYPE_BYTES)?;
        check_name("id", &self.id, MAX_ID_BYTES)?;
        check_name("tenant", &self.tenant, MAX_NAME_BYTES)?;
        if let Some(user) = &self.user {
            check_name("user", user, MAX_NAME_BYTES)?;
        }
        check_size("options", &self.options, MAX_OPTIONS_BYTES)?;
        check_size("summary", &self.summary, MAX_INFO_BYTES)?;
        if !self.locks.is_none() {
            check_requests(&self.locks)?;
        }
        after::check(&self.job_type, &self.id, &self.after)?;
        if self.reasons.len() > MAX_REASONS {
            let problem = format!("has {} texts; at most {MAX_REASONS} are allowed", self.reasons.len());
            return Err(Error::Invalid { field: "reason", problem });
        }
        for reason in &self.reasons {
            check_name("reason", reason, MAX_ADDED_REASON_BYTES)?;
            concurrency::of_reason(reason).map_err(|problem| Error::Invalid { field: "reason", problem })?;
        }
        self.class.map_or(Ok(()), check_class)?;
        self.timeouts.check()?;
        match self.max_attempts {
            Some(0) => Err(Error::Invalid { field: "max_attempts", problem: "must be 1 or more".to_owned() }),
            _ => Ok(()),
        }
    }
}

pub(crate) fn check_class(class: i8) -> Result<()> {
    if (MIN_CLASS..=MAX_CLASS).contains(&class) {
        return Ok(());
    }
    let problem = format!("must be from {MIN_CLASS} (first) to {MAX_CLASS} (last)");
    Err(Error::Invalid { field: "priority", problem })
}

pub(crate) fn check_name(field: &'static str, name: &str, limit: usize) -> Result<()> {
    let problem = match name.len() {
        0 => "must not be empty".to_owned(),
        n if n > limit => format!("has {n} bytes; at most {limit} are allowed"),
        // They would break the lines of logs and tables.
        _ if name.contains(char::is_control) => "must not contain control characters".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::Invalid { field, problem })
}

/// Whether a declaration fits into a job's record.
fn check_requests(locks: &Requests) -> Result<()> {
    let bytes = crate::encoding::encode(locks).len();
    if bytes <= MAX_LOCKS_BYTES {
        return Ok(());
    }
    let problem = format!("has {bytes} bytes; at most {MAX_LOCKS_BYTES} are allowed: ask for all of a level");
    Err(Error::Invalid { field: "locks", problem })
}

pub(crate) fn check_size(field: &'static str, json: &RawValue, limit: usize) -> Result<()> {
    match json.get().len() {
        n if n > limit => {
            Err(Error::Invalid { field, problem: format!("has {n} bytes; at most {limit} are allowed") })
        }
        _ => Ok(()),
    }
}

/// A reason on one line, cut to [`MAX_REASON_BYTES`] at a character's border.
pub(crate) fn bounded_reason(reason: &str) -> String {
    let mut reason = reason.replace(char::is_control, " ");
    if reason.len() > MAX_REASON_BYTES {
        let end = reason.floor_char_boundary(MAX_REASON_BYTES - '…'.len_utf8());
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// What a worker reports about a job that it runs: enough to answer `_active_tasks` from one range read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Active {
    /// The claim's number.
    pub claim: u64,
    /// The account that it is charged to.
    pub tenant: String,
    /// On whose behalf it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When this run started, in µs.
    pub started_us: i64,
    /// When the worker last reported, in µs; `None` before its first report.
    #[serde(default, rename = "updated_us", skip_serializing_if = "Option::is_none")]
    pub reported_us: Option<i64>,
    /// A client has asked the job to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// See [`Job::continuous`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continuous: bool,
    /// The timeouts that servers enforce for the run, and when they check it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// See [`Job::summary`].
    #[serde(default = "record::no_summary", skip_serializing_if = "record::is_no_summary")]
    pub summary: Box<RawValue>,
    /// The job's last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Box<RawValue>>,
}

impl Active {
    /// When the run last reported, or began, in µs.
    pub fn updated_us(&self) -> i64 {
        self.reported_us.unwrap_or(self.started_us)
    }
}
