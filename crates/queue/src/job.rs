//! The job record and its rows as plain data. [`crate::place`] has the places of a job and the moves between them.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Place;
pub use crate::parked::Parked;
use crate::place::Holder;
use crate::spec::{self, JobSpec};
use crate::stored_result::StoredResult;
use crate::timeouts::Deadline;
use crate::unique_key::Key;

/// Largest history, in bytes; the oldest entries are dropped first.
const MAX_HISTORY_BYTES: usize = 23_000;
/// Largest history of a job that locks or has places in buckets. Its record also has the locks that it declares, declares
/// for its next run, and holds, each of up to [`MAX_LOCKS_BYTES`](crate::locks::MAX_LOCKS_BYTES). It has up to eleven names of buckets.
const MAX_HISTORY_BESIDE_LOCKS_BYTES: usize = 8_400;
/// Size of an event without its reason, in bytes.
const EVENT_BYTES: usize = 48;
/// Longest stored reason, in bytes; longer ones are cut.
pub const MAX_REASON_BYTES: usize = 1_000;
/// The most edits that follow one another in a history. The oldest of them is dropped first, so that edits displace no step of the job's life.
const MAX_EDITS: usize = 5;
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
        /// Why; `None` if it parked, or its handler stopped by itself.
        reason: Option<String>,
    },
    /// Crashed: a temporary error, a timeout, or a lost worker.
    Crashed {
        /// What went wrong.
        reason: String,
    },
    /// Put off by its worker: it is no attempt, and the job runs again later.
    Snoozed,
    /// Ended without an error.
    Completed,
    /// Ended with a permanent error, or with its last attempt.
    Failed {
        /// What went wrong.
        reason: String,
    },
    /// Ended because it did not start in time.
    Expired,
    /// Cancelled.
    Cancelled,
    /// A client changed what it had stated ([`crate::edit`]).
    Edited {
        /// Which members, and who: never their values.
        reason: String,
    },
    /// A client or an operator took it out of the queue.
    Held {
        /// Who, if the store has identities.
        reason: Option<String>,
    },
    /// A client or an operator put it back.
    Released {
        /// Who, if the store has identities.
        reason: Option<String>,
    },
}

impl EventKind {
    /// Its name, in records and responses.
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::Added => "added",
            EventKind::Started => "started",
            EventKind::Stopped { .. } => "stopped",
            EventKind::Crashed { .. } => "crashed",
            EventKind::Snoozed => "snoozed",
            EventKind::Completed => "completed",
            EventKind::Failed { .. } => "failed",
            EventKind::Expired => "expired",
            EventKind::Cancelled => "cancelled",
            EventKind::Edited { .. } => "edited",
            EventKind::Held { .. } => "held",
            EventKind::Released { .. } => "released",
        }
    }

    /// The kind with this name. `None` if there is none, or it must have a reason and has none, or the other way round.
    pub(crate) fn named(name: &str, reason: Option<String>) -> Option<EventKind> {
        Some(match (name, reason) {
            ("added", None) => EventKind::Added,
            ("started", None) => EventKind::Started,
            ("stopped", reason) => EventKind::Stopped { reason },
            ("crashed", Some(reason)) => EventKind::Crashed { reason },
            ("snoozed", None) => EventKind::Snoozed,
            ("completed", None) => EventKind::Completed,
            ("failed", Some(reason)) => EventKind::Failed { reason },
            ("expired", _) => EventKind::Expired,
            ("cancelled", None) => EventKind::Cancelled,
            ("edited", Some(reason)) => EventKind::Edited { reason },
            ("held", reason) => EventKind::Held { reason },
            ("released", reason) => EventKind::Released { reason },
            _ => return None,
        })
    }

    /// Why it happened, if there is a reason.
    pub fn reason(&self) -> Option<&str> {
        match self {
            EventKind::Stopped { reason } | EventKind::Held { reason } | EventKind::Released { reason } => {
                reason.as_deref()
            }
            EventKind::Edited { reason } => Some(reason),
            _ => self.error(),
        }
    }

    /// Whether it is a change by a client or an operator, and no step of the job's life.
    pub fn is_edit(&self) -> bool {
        matches!(self, EventKind::Edited { .. } | EventKind::Held { .. } | EventKind::Released { .. })
    }

    /// The error, if there was one.
    pub fn error(&self) -> Option<&str> {
        match self {
            EventKind::Crashed { reason } | EventKind::Failed { reason } => Some(reason),
            EventKind::Expired => Some("expired: it did not start in time"),
            _ => None,
        }
    }
}

/// A job: its [fields](JobFields), in a block of memory of their own, since a job is passed on often and has 1,000 bytes.
#[derive(Debug, Clone)]
pub struct Job(Box<JobFields>);

/// The fields of a job. `record.rs` has the form in which they are stored.
#[derive(Debug, Clone)]
pub struct JobFields {
    /// The job's type; in the key, not in the value.
    pub job_type: String,
    /// The job's id, unique within its type; in the key, not in the value.
    pub id: String,
    /// Its place.
    pub place: Place,
    /// What its client states. The job has its fields: `job.tenant` is `job.spec.tenant`.
    pub spec: JobSpec,
    /// When it was added (again), in µs.
    pub added_us: i64,
    /// When it was last started, in µs.
    pub started_us: Option<i64>,
    /// When it last changed its state, in µs.
    pub changed_us: i64,
    /// The group of its dependents, if other jobs wait for its end.
    pub awaited: Option<i64>,
    /// It may have followers ([`crate::followers`]).
    pub followed: bool,
    /// BLOCKED, or ended: who holds it when it would return to the queue ([`crate::edit`]).
    pub hold: Option<Holder>,
    /// CANCELLED: why, if its user did not cancel it.
    pub refused: Option<String>,
    /// Its priority, [`MIN_PRIORITY`](crate::MIN_PRIORITY) to [`MAX_PRIORITY`](crate::MAX_PRIORITY): of its tenant's jobs, those with lower numbers run first.
    pub priority: i8,
    /// Its sort key where keys decide, as of its last run: a finite number.
    pub sort_key: Option<f64>,
    /// Consecutive crashes, as of its last claim; see [`Job::streak`].
    pub crashes: u32,
    /// Attempts since it was added: runs that completed, failed, crashed, or were lost with their worker, if that counts. A
    /// run that was stopped is none.
    pub attempts: u32,
    /// How often it was snoozed since it was added.
    pub snoozes: u32,
    /// Waiting for its first start: it fails then. Ended: its record is removed then. In µs ([`crate::lifetimes`]).
    pub due_us: Option<i64>,
    /// Its unique key, if it states one ([`crate::unique`]).
    pub unique_key: Option<Key>,
    /// The claim under which its latest end was recorded: recording that end again changes nothing.
    pub ended_claim: Option<Claim>,
    /// Newest first.
    pub history: Vec<Event>,
    /// The job's last report; while it runs, [`Active::info`] is newer.
    pub info: Option<Box<RawValue>>,
    /// COMPLETED: the result, if it is in the record.
    pub result: Option<Box<RawValue>>,
    /// COMPLETED: the result, if it has rows of its own ([`crate::output`]).
    pub stored_result: Option<StoredResult>,
    /// What its latest error has in common with others, if that stated its class.
    pub error_class: Option<String>,
    /// It may have rows of output ([`crate::output`]).
    pub has_output: bool,
    /// How often its options were written again: they are no part of its [version](Job::version).
    pub options_changes: u32,
    /// The options, unless they are stored in pieces.
    pub(crate) options: Option<Hidden>,
}

impl JobFields {
    /// Those of a new job that is in no place yet.
    pub(crate) fn new(job_type: String, id: String, spec: JobSpec, now_us: i64) -> Self {
        JobFields {
            job_type,
            id,
            place: Place::pending(now_us),
            spec,
            added_us: now_us,
            started_us: None,
            changed_us: now_us,
            awaited: None,
            followed: false,
            hold: None,
            refused: None,
            priority: 0,
            sort_key: None,
            crashes: 0,
            attempts: 0,
            snoozes: 0,
            due_us: None,
            unique_key: None,
            ended_claim: None,
            history: Vec::new(),
            info: None,
            result: None,
            stored_result: None,
            error_class: None,
            has_output: false,
            options_changes: 0,
            options: None,
        }
    }
}

impl From<JobFields> for Job {
    fn from(fields: JobFields) -> Self {
        Job(Box::new(fields))
    }
}

impl Deref for Job {
    type Target = JobFields;

    fn deref(&self) -> &JobFields {
        &self.0
    }
}

impl DerefMut for Job {
    fn deref_mut(&mut self) -> &mut JobFields {
        &mut self.0
    }
}

impl Deref for JobFields {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.spec
    }
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
    /// Its fields, for who takes some of them out of it.
    pub fn into_fields(self) -> JobFields {
        *self.0
    }

    /// Resets the job as newly added at `now_us`: attempts, crashes and reports of earlier runs are dropped. The history
    /// stays. The caller has dropped the result.
    pub(crate) fn begin(&mut self, now_us: i64) {
        self.added_us = now_us;
        self.crashes = 0;
        self.attempts = 0;
        self.snoozes = 0;
        self.error_class = None;
        self.info = None;
        self.sort_key = None;
        self.refused = None;
        self.record_request(now_us, EventKind::Added);
    }

    /// The latest step of its life.
    pub fn latest_step(&self) -> Option<&EventKind> {
        self.history.iter().map(|event| &event.kind).find(|kind| !kind.is_edit())
    }

    /// Whether it has not started since it was added (again).
    pub(crate) fn awaits_start(&self) -> bool {
        let has_run = self.attempts > 0 || self.crashes > 0 || self.snoozes > 0;
        !has_run && self.started_us.is_none_or(|started_us| started_us < self.added_us)
    }

    /// The error of its latest step, if that was a crash or a failure. For a cancelled job, why it was cancelled; `None` if
    /// its user requested that.
    pub fn reason(&self) -> Option<&str> {
        if self.state() == State::Cancelled {
            return self.refused.as_deref();
        }
        self.latest_step()?.error()
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

    /// Records a change by a client or an operator, which is no step of the job's life: the time of its last change stays.
    pub(crate) fn record_edit(&mut self, now_us: i64, kind: EventKind) {
        let changed_us = self.changed_us;
        let edits = self.history.iter().take_while(|event| event.kind.is_edit()).count();
        if edits >= MAX_EDITS {
            self.history.remove(edits - 1);
        }
        self.record_request(now_us, kind);
        self.changed_us = changed_us;
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
    /// See [`JobSpec::task`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// When this run started, in µs.
    pub started_us: i64,
    /// When the worker last reported, in µs; `None` before its first report.
    #[serde(default, rename = "updated_us", skip_serializing_if = "Option::is_none")]
    pub reported_us: Option<i64>,
    /// A client has asked the job to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// See [`JobSpec::continuous`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continuous: bool,
    /// The timeouts that servers enforce for the run, and when they check it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// See [`JobSpec::summary`].
    #[serde(default = "spec::no_summary", skip_serializing_if = "spec::is_no_summary")]
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
