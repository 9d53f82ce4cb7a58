//! What clients do with jobs.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::after::After;
use crate::filters::Limited;
use crate::locks::Locks;
use crate::names::{JobId, JobType, Name, WorkerId};

/// A job to be added under the type that the path names.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "id": "mail-17",
    "tenant": "acme",
    "options": { "to": "jan@example.org", "password": "only workers see this" },
    "summary": { "to": "jan@example.org" },
    "max_attempts": 5
}))]
pub struct AddJob {
    /// Its id. Without one the server makes one; with one the request can be repeated: a job is never added twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobId>)]
    pub id: Option<String>,
    /// Who it is charged to. `default` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    pub tenant: Option<String>,
    /// On whose behalf it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    pub user: Option<String>,
    /// What the worker needs: any JSON of at most 4 MB, `{}` if it is left
    /// out. It may hold secrets: only workers get it, no answer shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub options: Option<Box<RawValue>>,
    /// What may be shown of the job: an object of at most 12 kB, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub summary: Option<Box<RawValue>>,
    /// Start it this much later, in ms. If `not_before_us` is given, too, the later of the two counts.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 315_360_000_000_u64)]
    pub delay_ms: Option<u64>,
    /// Start it not before this time, in µs since the Unix epoch.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub not_before_us: Option<i64>,
    /// The crash of this attempt fails the job for good; the loss of its worker is one, too, unless the server counts none. Without it a job is tried for ever.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub max_attempts: Option<u32>,
    /// A run that lasts longer loses its claim, in ms: that is a crash. Without it the server's setting for the type counts.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub timeout_ms: Option<u64>,
    /// A run that reports nothing for longer loses its claim, in ms: that is a crash. Without it the server's setting for the type counts.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub heartbeat_timeout_ms: Option<u64>,
    /// Jobs that are to end before it starts: at most 100. If one of them ends in a way that is not accepted, it is cancelled,
    /// or does not wait for that one any more, as each says.
    #[serde(default, deserialize_with = "crate::object::objects", skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub after: Vec<After>,
    /// What it locks while it runs. Without, its type's entry in the server's catalogue tells, if there is one; with, it alone counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<Locks>,
    /// Why it is added, in up to 10 texts of at most 200 bytes: filters ask for that. `rate-limit:7:name` lets the job start while fewer than 7 that
    /// have this name in such a reason run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10)]
    pub reason: Vec<String>,
    /// Its priority class: -20 to 19, 0 if it is left out. Of its tenant's jobs, those of lower classes start first. One that is added again
    /// without keeps the one that it has.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -20, maximum = 19)]
    pub priority: Option<i32>,
    /// What happens if there is a job of this id.
    #[serde(default)]
    #[schema(default = "keep")]
    pub if_exists: IfExists,
}

/// A job to be added, with its type. The same as [`AddJob`] otherwise.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "type": "mail", "id": "mail-17", "options": { "to": "jan@example.org" } }))]
pub struct NewJob {
    /// Its type: the workers that run it.
    #[serde(rename = "type")]
    #[schema(value_type = JobType)]
    pub job_type: String,
    /// Its id. Without one the server makes one; with one the request can be repeated: a job is never added twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobId>)]
    pub id: Option<String>,
    /// Who it is charged to. `default` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    pub tenant: Option<String>,
    /// On whose behalf it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    pub user: Option<String>,
    /// What the worker needs: any JSON of at most 4 MB, `{}` if it is left
    /// out. It may hold secrets: only workers get it, no answer shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub options: Option<Box<RawValue>>,
    /// What may be shown of the job: an object of at most 12 kB, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub summary: Option<Box<RawValue>>,
    /// Start it this much later, in ms. If `not_before_us` is given, too, the later of the two counts.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 315_360_000_000_u64)]
    pub delay_ms: Option<u64>,
    /// Start it not before this time, in µs since the Unix epoch.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub not_before_us: Option<i64>,
    /// The crash of this attempt fails the job for good; the loss of its worker is one, too, unless the server counts none. Without it a job is tried for ever.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub max_attempts: Option<u32>,
    /// A run that lasts longer loses its claim, in ms: that is a crash. Without it the server's setting for the type counts.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub timeout_ms: Option<u64>,
    /// A run that reports nothing for longer loses its claim, in ms: that is a crash. Without it the server's setting for the type counts.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub heartbeat_timeout_ms: Option<u64>,
    /// Jobs that are to end before it starts: at most 100. If one of them ends in a way that is not accepted, it is cancelled,
    /// or does not wait for that one any more, as each says.
    #[serde(default, deserialize_with = "crate::object::objects", skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub after: Vec<After>,
    /// What it locks while it runs. Without, its type's entry in the server's catalogue tells, if there is one; with, it alone counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<Locks>,
    /// Why it is added, in up to 10 texts of at most 200 bytes: filters ask for that. `rate-limit:7:name` lets the job start while fewer than 7 that
    /// have this name in such a reason run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10)]
    pub reason: Vec<String>,
    /// Its priority class: -20 to 19, 0 if it is left out. Of its tenant's jobs, those of lower classes start first. One that is added again
    /// without keeps the one that it has.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -20, maximum = 19)]
    pub priority: Option<i32>,
    /// What happens if there is a job of this id.
    #[serde(default)]
    #[schema(default = "keep")]
    pub if_exists: IfExists,
}

impl NewJob {
    /// A job that is not yet typed, under a type.
    pub fn new(job_type: impl Into<String>, job: AddJob) -> NewJob {
        let AddJob {
            id,
            tenant,
            user,
            options,
            summary,
            delay_ms,
            not_before_us,
            max_attempts,
            timeout_ms,
            heartbeat_timeout_ms,
            after,
            locks,
            reason,
            priority,
            if_exists,
        } = job;
        NewJob {
            job_type: job_type.into(),
            id,
            tenant,
            user,
            options,
            summary,
            delay_ms,
            not_before_us,
            max_attempts,
            timeout_ms,
            heartbeat_timeout_ms,
            after,
            locks,
            reason,
            priority,
            if_exists,
        }
    }
}

/// Many jobs to be added. Whether all or none are in the store after a failure, `POST /v1/jobs` says.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddJobs {
    /// 1 to 1,000 of them, in a body of at most 8 MB.
    #[serde(deserialize_with = "crate::object::objects")]
    #[schema(min_items = 1, max_items = 1000)]
    pub jobs: Vec<NewJob>,
}

/// What happens to a job that is there already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IfExists {
    /// It stays as it is, in whatever state: a repeated request changes nothing.
    #[default]
    Keep,
    /// It takes what is given anew, and keeps what is left out: one that has ended is run again, one that runs is run once more after
    /// it ended, one that waits keeps its place. Without `locks`, it keeps its own, unless there are new options from which the catalogue tells
    /// them. What an earlier request made it wait for (`after`, a delay) is not given anew when it has ended.
    Again,
}

impl<'de> Deserialize<'de> for IfExists {
    /// From a string alone: a derived one would take `{"keep": null}`, too.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match std::borrow::Cow::<str>::deserialize(deserializer)?.as_ref() {
            "keep" => Ok(IfExists::Keep),
            "again" => Ok(IfExists::Again),
            _ => Err(serde::de::Error::custom("expected `keep` or `again`")),
        }
    }
}

/// What adding a job did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Added {
    /// It is new, or had ended and was added again: it waits for its turn.
    Queued,
    /// It waits for its time.
    Delayed,
    /// It waits for the end of other jobs.
    Blocked,
    /// A job that it was to wait for has ended in a way that it does not accept: it was added, and is cancelled.
    Cancelled,
    /// It was there and stays as it was.
    Exists,
    /// It runs, and runs once more after it has ended.
    RunsAgain,
    /// It waited already, and keeps its place.
    AlreadyWaiting,
}

/// A job that was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddedJob {
    /// Its type.
    #[serde(rename = "type")]
    #[schema(value_type = JobType)]
    pub job_type: String,
    /// Its id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// What adding it did.
    pub added: Added,
}

/// The jobs that were added, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddedJobs {
    /// One for each job of the request.
    pub jobs: Vec<AddedJob>,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its turn.
    Pending,
    /// Waits for its time, or is parked until there is news for it.
    Delayed,
    /// Waits for the end of other jobs.
    Blocked,
    /// Waits until the filter that pauses it is removed.
    Paused,
    /// Waits until fewer jobs of its rate limit run.
    Limited,
    /// A worker runs it.
    Running,
    /// A worker runs it, and it waits for a lock.
    Waiting,
    /// It crashed, and waits until its backoff is over.
    Crashing,
    /// Ended well.
    Completed,
    /// Ended with an error that is not tried again.
    Failed,
    /// Ended by its user.
    Cancelled,
}

impl State {
    /// Whether the job has ended and stays so until it is added again.
    pub fn is_final(self) -> bool {
        matches!(self, State::Completed | State::Failed | State::Cancelled)
    }
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "mail",
    "id": "mail-17",
    "state": "running",
    "tenant": "acme",
    "priority": 0,
    "added_us": 1_790_000_000_000_000_i64,
    "changed_us": 1_790_000_000_120_000_i64,
    "started_us": 1_790_000_000_120_000_i64,
    "attempts": 0,
    "max_attempts": 5,
    "cancel_requested": false,
    "worker": "000643d1a2b3c4d5-9f3a1c5e7b2d4860",
    "claim": 4,
    "summary": { "to": "jan@example.org" },
    "info": { "sent": "50%" },
    "history": [
        { "at_us": 1_790_000_000_120_000_i64, "type": "started" },
        { "at_us": 1_790_000_000_000_000_i64, "type": "added" }
    ]
}))]
pub struct Job {
    /// Its type.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub job_type: String,
    /// Its id, unique within the type.
    pub id: String,
    /// Where it stands.
    pub state: State,
    /// Who it is charged to.
    pub tenant: String,
    /// Its priority class, -20 to 19: of its tenant's jobs, those of lower classes start first.
    #[serde(default)]
    #[schema(required = true)]
    pub priority: i32,
    /// On whose behalf it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub user: Option<String>,
    /// When it was added (again), in µs since the Unix epoch.
    pub added_us: i64,
    /// When it last changed its state, in µs.
    pub changed_us: i64,
    /// When it was last started, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub started_us: Option<i64>,
    /// Delayed or crashing: it starts not before this time, in µs.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub not_before_us: Option<i64>,
    /// Attempts since it was added (again): runs that ended by themselves, or with their workers. One that was stopped is none.
    pub attempts: u32,
    /// The crash of this attempt fails it for good.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_attempts: Option<u32>,
    /// A run that lasts longer loses its claim, in ms.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub timeout_ms: Option<u64>,
    /// A run that reports nothing for longer loses its claim, in ms.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub heartbeat_timeout_ms: Option<u64>,
    /// Its user wants it to stop, and its worker was told.
    pub cancel_requested: bool,
    /// Running: the worker that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerId>, nullable = false)]
    pub worker: Option<String>,
    /// Running: the number of that worker's claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub claim: Option<u64>,
    /// What may be shown of it, as it was added.
    #[schema(value_type = serde_json::Value)]
    pub summary: Box<RawValue>,
    /// What its worker last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub info: Option<Box<RawValue>>,
    /// Completed: what came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub result: Option<Box<RawValue>>,
    /// Why it was added, as whoever added it says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub reasons: Vec<String>,
    /// Paused: by this filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused_by: Option<String>,
    /// Limited: until fewer jobs of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limited: Option<Limited>,
    /// Blocked: so many jobs that it waits for have not ended; `why` names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waits_for: Option<u32>,
    /// Crashing or failed: why; cancelled: why, if it was not its user who did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// What happened to it, newest first; the oldest entries are dropped.
    pub history: Vec<Event>,
}

/// A step in a job's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// When, in µs since the Unix epoch.
    pub at_us: i64,
    /// What.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// Crashed or failed: why; stopped: why, if it was not its worker that gave it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// The steps in a job's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Put into the queue, or among the delayed.
    Added,
    /// Claimed by a worker.
    Started,
    /// Given back without an error: released, a clean shutdown, or a lost worker that does not count.
    Stopped,
    /// Ended with an error that may pass, or with its worker.
    Crashed,
    /// Ended well.
    Completed,
    /// Ended with an error that is not tried again.
    Failed,
    /// Ended by its user.
    Cancelled,
}

/// A page of jobs, by type and id.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Jobs {
    /// The jobs. There may be fewer than `limit`, even none, and still a next page: the server looks at a bounded number of
    /// jobs per request.
    pub jobs: Vec<Job>,
    /// There is more: ask again with `after` set to this. Missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}

/// What waiting for a job came to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WaitAnswer {
    /// Whether the job has ended; otherwise the time was over first.
    pub finished: bool,
    /// The job as it is now.
    pub job: Job,
}

/// What cancelling a job came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// Where it stands now: `cancelled`, `running` if its worker still has to stop it, or how it had ended before.
    pub state: State,
}

/// What retrying a job came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Retried {
    /// Whether it was delayed, blocked, crashing, failed or cancelled, and is pending now. Otherwise nothing was changed.
    pub retried: bool,
    /// Where it stands now.
    pub state: State,
}

/// Jobs that can be retried many at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(default = "crashing")]
#[serde(rename_all = "lowercase")]
pub enum RetriedState {
    /// Their backoffs end.
    #[default]
    Crashing,
    /// They run again.
    Failed,
    /// They run again.
    Cancelled,
}

/// What retrying many jobs came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetriedJobs {
    /// Jobs that are pending now.
    pub jobs: u64,
    /// Replication documents in state `error` that are tried again now: they have no jobs yet.
    pub documents: u64,
    /// There may be more: ask again with `after` set to this. Missing when all jobs have been looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}

/// Another priority class for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "priority": -5 }))]
pub struct SetPriority {
    /// -20 (first) to 19 (last).
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = -20, maximum = 19)]
    pub priority: i32,
}

/// What changing a job's priority class came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Prioritized {
    /// Whether it has that class now. Otherwise it has ended, and nothing was changed.
    pub changed: bool,
    /// Where it stands. One that is not pending has its place by the class from when it is.
    pub state: State,
}

/// What removing a job came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// Whether it is gone; otherwise it goes as soon as its worker has stopped it.
    pub removed: bool,
}

/// Job types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Types {
    /// Types that have jobs, sorted: 1,000 at most.
    pub types: Vec<String>,
    /// There are more: ask again with `after` set to this. Missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}
