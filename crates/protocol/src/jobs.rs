//! Operations of clients on jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::after::After;
use crate::answer::answers;
use crate::filters::Limited;
use crate::groups::{JobCallback, JobGroup, NewGroup};
use crate::inputs::{Input, Inputs};
use crate::locks::Locks;
use crate::names::{GroupName, JobId, JobType, Name, Tag, TaskName, WorkerId};
use crate::unique::{Found, Unique};
use crate::word::words;
use crate::workers::LogLevel;

/// Defines [`AddJob`] with these fields, and [`NewJob`] with these fields and the job's type.
macro_rules! requests {
    ($($(#[$attribute:meta])* pub $field:ident: $type:ty,)+) => {
        /// A job to be added, under the type in the path.
        #[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        #[schema(example = json!({
            "id": "mail-17",
            "tenant": "acme",
            "task": "send_welcome",
            "tags": ["eu", "nightly"],
            "options": { "to": "jan@example.org" },
            "summary": { "to": "jan@example.org" },
            "max_attempts": 5
        }))]
        pub struct AddJob {
            $($(#[$attribute])* pub $field: $type,)+
        }

        /// A job to be added, with its type. Otherwise the same as [`AddJob`].
        #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        #[schema(example = json!({ "type": "mail", "id": "mail-17", "options": { "to": "jan@example.org" } }))]
        pub struct NewJob {
            /// Its type, which determines the workers that run it.
            #[serde(rename = "type")]
            #[schema(value_type = JobType)]
            pub job_type: String,
            /// A name by which other jobs of the request refer to it, in a request with `whole`: at most 64 letters, digits, `_`, `-` and `.`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(nullable = false, min_length = 1, max_length = 64)]
            pub name: Option<String>,
            $($(#[$attribute])* pub $field: $type,)+
        }

        impl AddJob {
            /// This request, with the values of `others` for what it leaves out.
            #[must_use]
            pub fn or(self, others: AddJob) -> AddJob {
                AddJob { $($field: self.$field.or(others.$field)),+ }
            }
        }

        impl NewJob {
            /// An [`AddJob`] with its type.
            pub fn new(job_type: impl Into<String>, job: AddJob) -> NewJob {
                NewJob { job_type: job_type.into(), name: None, $($field: job.$field),+ }
            }
        }
    };
}

requests! {
    /// Its id. By default the server generates one. A request with an id can be repeated: the server never adds a job twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobId>)]
    pub id: Option<String>,
    /// The tenant that the job is charged to. `default` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    pub tenant: Option<String>,
    /// The user on whose behalf the job runs. It is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    pub user: Option<String>,
    /// What the job does, within its type: at most 64 bytes. Only workers get the job that know the task, or that state no tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TaskName>)]
    pub task: Option<String>,
    /// Words by which the job is found: at most 16 of 64 bytes each. They are sorted, and each is kept once. A job that is added again keeps its tags
    /// unless the request has some, or an empty list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Tag>>, max_items = 16)]
    pub tags: Option<Vec<String>>,
    /// The input of the job's handler: any JSON of at most 4 MB, `{}` if it is left out. Everyone who may change the job sees it, without the members that
    /// its type hides (`PUT /v1/types/{type}`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub options: Option<Box<RawValue>>,
    /// A description of the job for listings: an object of at most 12 kB, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub summary: Option<Box<RawValue>>,
    /// Delay before the job may start, in ms. If `not_before_us` is given, too, the later time applies.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 315_360_000_000_u64)]
    pub delay_ms: Option<u64>,
    /// The job does not start before this time, in µs since the Unix epoch.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub not_before_us: Option<i64>,
    /// The number of the job's last attempt: a crash of this attempt fails the job permanently. The loss of its worker counts as a crash, unless
    /// `on_lost` is `requeue`. 0 retries it without limit. By default the server's `[jobs] max_attempts` applies, 20, except to continuous jobs and to
    /// jobs of the server's own types, which are retried without limit.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub max_attempts: Option<u32>,
    /// How long the job waits after its consecutive crashes. By default the server's `[jobs] backoff_base_ms`, doubled with each crash up to
    /// `backoff_max_exponent` times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Whether each wait is up to a tenth longer, so that jobs that crashed together do not all start together. By default they do, except for jobs of
    /// the server's own types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<bool>,
    /// What happens if the job's worker is lost. By default the server's setting applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<OnLost>,
    /// How often the job may be snoozed: its handler then puts it off without an attempt. One time more fails the job.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1_000_000, default = 1000)]
    pub max_snoozes: Option<u32>,
    /// Longest run, in ms. A run that lasts longer loses its claim, which counts as a crash. By default the server's setting for the type applies.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub timeout_ms: Option<u64>,
    /// Longest time between two reports of a run, in ms. A run that exceeds it loses its claim, which counts as a crash. By default the server's
    /// setting for the type applies.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub heartbeat_timeout_ms: Option<u64>,
    /// The job fails unless it starts within this time, in ms, after it was added, or after its `not_before_us`. The event is then `expired`, and so is the class of its error.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64)]
    pub start_within_ms: Option<u64>,
    /// How long the job's record is kept after its end, in ms; not longer than the server, or its type, keeps all jobs.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 315_360_000_000_u64)]
    pub keep_ms: Option<u64>,
    /// Dependencies: at most 100 jobs that must end before this one starts. Each entry states what happens if its job ends in a state that is not
    /// accepted.
    #[serde(default, deserialize_with = "crate::object::objects", skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub after: Vec<After>,
    /// Results that the job gets with its claim: at most 32, each under a name of at most 64 letters, digits, `_`, `-` and `.`. Their jobs are dependencies;
    /// those that `after` does not name must complete. They are of the same tenant. Their records stay until this job has ended. A job that is added again
    /// without this member keeps it.
    #[serde(default, deserialize_with = "crate::inputs::inputs", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Input>, example = json!({ "rows": { "job": "extract/7" } }))]
    pub inputs: Inputs,
    /// The locks that the job holds while it runs. By default they follow from the entry of its type in the server's catalogue, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<Locks>,
    /// Reasons why the job is added, at most 10 texts of at most 200 bytes, for use in filters. A reason `concurrency:7:name` is a concurrency limit: the job
    /// starts while fewer than 7 jobs with this name in such a reason run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10)]
    pub reason: Vec<String>,
    /// The priority: -20 to 19, 0 if it is left out. Within a tenant, jobs with lower numbers start first. A job that is added again without a
    /// priority keeps its priority.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -20, maximum = 19)]
    pub priority: Option<i32>,
    /// Only one job holds this key at a time: another one with the same key is not added. A job that exists under the given id comes first
    /// (`if_exists`). A job that is added again without this member keeps what it has stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// The open group of its tenant of which it is a member. A job that is added again stays in its group, unless the request names another one. Of an array: the group in
    /// which the group of the array is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<GroupName>)]
    pub group: Option<String>,
    /// An array, in `POST /v1/jobs` only: so many jobs like this one, with the ids `{id}.0`, `{id}.1` and so on, in a group with the name `{id}`. Each run learns its
    /// `index`. 1 to 10,000.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub count: Option<u32>,
    /// With `count`: at most so many of them run at the same time: 1 to 1,000.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub at_once: Option<u32>,
    /// What happens if a job of this id exists.
    #[serde(default)]
    #[schema(default = "keep")]
    pub if_exists: IfExists,
}

/// A member that is left out without being an `Option`.
trait Or {
    /// The member; `other` if it is left out.
    fn or(self, other: Self) -> Self;
}

impl<T> Or for Vec<T> {
    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

impl Or for Inputs {
    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

impl Or for IfExists {
    fn or(self, other: Self) -> Self {
        if self == IfExists::Keep { other } else { self }
    }
}

/// Many jobs to be added. `POST /v1/jobs` describes whether they are added in one transaction.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddJobs {
    /// 1 to 1,000 jobs, in a body of at most 8 MB.
    #[serde(deserialize_with = "crate::object::objects")]
    #[schema(min_items = 1, max_items = 1000)]
    pub jobs: Vec<NewJob>,
    /// Groups that are created with the jobs, at most 10. Those that are not open are closed when all jobs are added.
    #[serde(default, deserialize_with = "crate::object::objects", skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10)]
    pub groups: Vec<NewGroup>,
    /// All jobs are added in one transaction, or none. Then they may have names, and refer to each other by these in `after` and `inputs`, in any order. If
    /// they do not fit into one transaction of the store, the request is refused, and so is one with a job whose unique key another job has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub whole: bool,
}

/// The waits of a job after its consecutive crashes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schema(example = json!({ "exponential": { "first_ms": 1000, "factor": 2, "most_ms": 3_600_000 } }))]
pub enum Backoff {
    /// Each wait is the one before it, multiplied.
    Exponential(Exponential),
    /// The same wait each time, in ms.
    FixedMs(WaitMs),
    /// 1 to 30 waits, in ms: one for each crash. The last one repeats.
    ListMs(WaitsMs),
}

/// A wait, in ms: at most a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(maximum = 31_536_000_000_u64)]
pub struct WaitMs(pub u64);

/// Waits, one for each crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(min_items = 1, max_items = 30)]
pub struct WaitsMs(pub Vec<WaitMs>);

/// Waits that grow with each crash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Exponential {
    /// The wait after a first crash, in ms: at most a year.
    #[schema(maximum = 31_536_000_000_u64)]
    pub first_ms: u64,
    /// The factor, from 1 to 100.
    #[serde(default = "two")]
    #[schema(default = 2, minimum = 1, maximum = 100)]
    pub factor: f64,
    /// The longest wait, in ms: at most a year.
    #[schema(maximum = 31_536_000_000_u64)]
    pub most_ms: u64,
}

fn two() -> f64 {
    2.0
}

words! {
    /// What happens to a job whose worker is lost.
    pub enum OnLost {
        /// The run counts as an attempt that crashed: the job may be what makes its workers die.
        Count = "count",
        /// The job becomes pending again at its place in the queue, and no attempt is counted.
        Requeue = "requeue",
    }
}

words! {
    /// What happens if a job of this id already exists.
    #[derive(Default)]
    pub enum IfExists {
        /// The job is unchanged, in any state, so that a repeated request has no effect.
        #[default]
        Keep = "keep",
        /// The job takes the given values, and keeps those that are left out. A job that has ended runs again, a running job runs once more after it has
        /// ended, and a waiting job keeps its place. Without `locks`, the job keeps its locks, unless the request has new options or a task from which the
        /// catalogue derives them. Conditions of an earlier request (`after`, a delay) do not apply again to a job that has ended.
        Again = "again",
    }
}

words! {
    /// The result of adding a job.
    pub enum Added {
        /// The job is new, or had ended and was added again. It is pending.
        Queued = "queued",
        /// The job is delayed.
        Delayed = "delayed",
        /// The job waits until its dependencies have ended.
        Blocked = "blocked",
        /// The job was added and immediately cancelled, because a dependency has ended in a state that the job does not accept.
        Cancelled = "cancelled",
        /// The job already exists, and is unchanged.
        Exists = "exists",
        /// The job is running, and runs once more after it has ended.
        RunsAgain = "runs_again",
        /// The job was already waiting, and keeps its place.
        AlreadyWaiting = "already_waiting",
        /// Another job has the unique key, and this one was not added. The answer has the type and the id of the other one, and `found` states why.
        Found = "found",
    }
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
    /// The result of adding it.
    pub added: Added,
    /// Why another job was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub found: Option<Found>,
}

/// The jobs that were added, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddedJobs {
    /// One entry for each job of the request; of an array, one for each of its jobs.
    pub jobs: Vec<AddedJob>,
}

words! {
    /// A job's state.
    pub enum State {
        /// In the queue of its tenant, ready to start.
        Pending = "pending",
        /// Was added for later, or is parked until its source changes.
        Delayed = "delayed",
        /// Waits until its dependencies have ended.
        Blocked = "blocked",
        /// Waits until the filter that pauses it is removed, or until it is released.
        Paused = "paused",
        /// Waits until its bucket has room.
        Limited = "limited",
        /// A worker runs it.
        Running = "running",
        /// A worker runs it, and it waits for a lock.
        Waiting = "waiting",
        /// It crashed, and waits until its backoff is over.
        Crashing = "crashing",
        /// Completed.
        Completed = "completed",
        /// Failed permanently.
        Failed = "failed",
        /// Cancelled by its user, by a filter or because of a dependency.
        Cancelled = "cancelled",
    }
}

impl State {
    /// Whether the job has ended. It then stays in this state until it is added again or retried.
    pub fn is_final(self) -> bool {
        matches!(self, State::Completed | State::Failed | State::Cancelled)
    }
}

answers! {
    /// A job.
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
        pub job_type: String,
        /// Its id, unique within the type.
        pub id: String,
        /// Its state.
        pub state: State,
        /// The tenant that it is charged to.
        pub tenant: String,
        /// Its priority, -20 to 19. Within a tenant, jobs with lower numbers start first.
        #[serde(default)]
        #[schema(required = true)]
        pub priority: i32,
        /// The user on whose behalf it runs, as the client that added it has stated.
        pub user: Option<String>,
        /// What it does, within its type.
        pub task: Option<String>,
        /// Its tags, sorted.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub tags: Vec<String>,
        /// When it was added (again), in µs since the Unix epoch.
        pub added_us: i64,
        /// When it last changed its state, in µs.
        pub changed_us: i64,
        /// When it was last started, in µs.
        pub started_us: Option<i64>,
        /// Delayed or crashing: it does not start before this time, in µs.
        #[serde(deserialize_with = "crate::number::optional")]
        pub not_before_us: Option<i64>,
        /// Attempts since it was added (again): runs that ended by themselves, or were lost with their worker. A run that was stopped is no attempt.
        pub attempts: u32,
        /// The number of its last attempt, whose crash fails the job permanently. Missing if it is retried without limit.
        #[serde(deserialize_with = "crate::number::optional")]
        pub max_attempts: Option<u32>,
        /// How long it waits after its consecutive crashes, as its client stated.
        pub backoff: Option<Backoff>,
        /// Whether its waits have jitter, as its client stated.
        pub jitter: Option<bool>,
        /// What happens if its worker is lost, as its client stated.
        pub on_lost: Option<OnLost>,
        /// How often it was snoozed since it was added (again).
        #[serde(default)]
        #[schema(required = true)]
        pub snoozes: u32,
        /// How often it may be snoozed, as its client stated.
        #[serde(deserialize_with = "crate::number::optional")]
        pub max_snoozes: Option<u32>,
        /// Longest run, in ms. A run that lasts longer loses its claim.
        #[serde(deserialize_with = "crate::number::optional")]
        pub timeout_ms: Option<u64>,
        /// Longest time between two reports of a run, in ms. A run that exceeds it loses its claim.
        #[serde(deserialize_with = "crate::number::optional")]
        pub heartbeat_timeout_ms: Option<u64>,
        /// Within which time it must start, in ms, as its client stated.
        #[serde(deserialize_with = "crate::number::optional")]
        pub start_within_ms: Option<u64>,
        /// How long its record is kept after its end, in ms, as its client stated.
        #[serde(deserialize_with = "crate::number::optional")]
        pub keep_ms: Option<u64>,
        /// Waiting for its first start: it fails unless it starts before this time, in µs.
        #[serde(deserialize_with = "crate::number::optional")]
        pub expires_us: Option<i64>,
        /// Ended: its record is removed at this time, in µs, if not before, because that is what it, or its task, states.
        #[serde(deserialize_with = "crate::number::optional")]
        pub removed_us: Option<i64>,
        /// The schedule that has added it.
        pub schedule: Option<JobSchedule>,
        /// The group of which it is a member.
        pub group: Option<JobGroup>,
        /// The group that has added it.
        pub callback: Option<JobCallback>,
        /// The jobs whose results it gets, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        #[schema(value_type = BTreeMap<String, Input>)]
        pub inputs: Inputs,
        /// Its unique key, as its client stated.
        pub unique: Option<Unique>,
        /// Whether it holds its unique key now; missing for a period.
        pub unique_held: Option<bool>,
        /// The end of its unique key's period, in µs.
        #[serde(deserialize_with = "crate::number::optional")]
        pub unique_until_us: Option<i64>,
        /// Its user has cancelled or removed it, and its worker has not stopped it yet.
        pub cancel_requested: bool,
        /// Running: the worker that holds it.
        #[schema(value_type = Option<WorkerId>)]
        pub worker: Option<String>,
        /// Running: the number of its worker's claim.
        pub claim: Option<u64>,
        /// The description for listings, as it was added.
        #[schema(value_type = serde_json::Value)]
        pub summary: Box<RawValue>,
        /// The worker's last report.
        #[schema(value_type = serde_json::Value)]
        pub info: Option<Box<RawValue>>,
        /// Completed: the result, if it is JSON of at most 12 kB. Lists leave it out. `GET …/result` gives any result.
        #[schema(value_type = serde_json::Value)]
        pub result: Option<Box<RawValue>>,
        /// Completed: the size of a result that is not in `result`, in bytes.
        pub result_bytes: Option<u64>,
        /// Completed: the media type of a result that is not JSON.
        pub result_type: Option<String>,
        /// The input of the job's handler, if it has at most 64 kB; `*****` stands for members that its type hides. Lists leave it out. `GET …/options` gives
        /// options of any size.
        #[schema(value_type = serde_json::Value)]
        pub options: Option<Box<RawValue>>,
        /// Why it was added, as the client stated.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub reasons: Vec<String>,
        /// Paused: the filter that pauses it, or `client` or `operator` if one of them holds it. Blocked or ended: who holds it when it would be pending again.
        pub paused_by: Option<String>,
        /// Limited: the bucket that has no room.
        pub limited: Option<Limited>,
        /// Blocked: the number of its dependencies that have not ended. `why` names them.
        pub waits_for: Option<u32>,
        /// Crashing or failed: the error. Cancelled: the cause, if its user did not cancel it.
        pub reason: Option<String>,
        /// Its errors with a class, a trace or a long message, newest first: the latest ones, and the first one. Lists leave them out.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub errors: Vec<JobError>,
        /// The job's ETag: an edit with this in `If-Match`, in quotes, applies only if nothing else has changed the job since. Lists leave it out.
        pub version: Option<String>,
        /// Its steps, newest first. The oldest entries are dropped.
        pub history: Vec<Event>,
    }

    /// The schedule that a job comes from.
    #[derive(PartialEq, Eq)]
    pub struct JobSchedule {
        /// The name of the schedule.
        pub name: String,
        /// The time of the fire by the schedule, in µs since the Unix epoch.
        pub scheduled_at_us: i64,
        /// When the server made the fire.
        pub fired_at_us: i64,
    }

    /// The last job of a schedule that has completed.
    pub struct LastSuccess {
        /// The id of the job.
        pub id: String,
        /// Its result, if it is small.
        #[schema(value_type = serde_json::Value)]
        pub result: Option<Box<RawValue>>,
    }

    /// The error of one of a job's runs.
    #[derive(PartialEq, Eq)]
    pub struct JobError {
        /// When the run ended, in µs since the Unix epoch.
        pub at_us: i64,
        /// The number of the attempt.
        pub attempt: u32,
        /// The class of the error.
        pub class: Option<String>,
        /// The message.
        pub message: String,
        /// The trace.
        pub trace: Option<String>,
    }

    /// A page of a job's log.
    pub struct LogPage {
        /// The lines, in the order in which they were logged.
        pub lines: Vec<LogLine>,
        /// The number of the first line that is kept: as many were dropped. A job keeps its last 1,000 lines, or 256 kB.
        pub first: u64,
        /// The `from` of the next page. If it is no more than the number of the last line plus one, there are no more lines yet.
        pub next: u64,
    }

    /// A line of a job's log.
    pub struct LogLine {
        /// Its number: the lines of a job are numbered from 0 on.
        pub number: u64,
        /// When it was logged, in µs since the Unix epoch.
        pub at_us: i64,
        /// How serious it is.
        pub level: LogLevel,
        /// The message.
        pub message: String,
        /// More about it: an object.
        #[schema(value_type = serde_json::Value)]
        pub fields: Option<Box<RawValue>>,
    }

    /// A step in a job's life.
    #[derive(PartialEq, Eq)]
    pub struct Event {
        /// Time of the step, in µs since the Unix epoch.
        pub at_us: i64,
        /// The step.
        #[serde(rename = "type")]
        pub kind: EventKind,
        /// Crashed or failed: the error. Stopped: the cause, if its worker did not give it back. Edited: the members that changed, and who changed them. Held or
        /// released: who did it.
        pub reason: Option<String>,
    }
}

words! {
    /// The steps in a job's life.
    pub enum EventKind {
        /// Added to the queue, or delayed.
        Added = "added",
        /// Claimed by a worker.
        Started = "started",
        /// Given back without an error: released, a clean shutdown, a preemption, or a lost worker under `on_lost = requeue`.
        Stopped = "stopped",
        /// Ended with an error that may pass, or lost with its worker.
        Crashed = "crashed",
        /// Put off by its worker until later, without an attempt.
        Snoozed = "snoozed",
        /// Completed.
        Completed = "completed",
        /// Failed permanently.
        Failed = "failed",
        /// Failed, because it did not start in time.
        Expired = "expired",
        /// Cancelled.
        Cancelled = "cancelled",
        /// A client changed what it had stated. The reason names the members, and the identity.
        Edited = "edited",
        /// A client or an operator holds the job. The reason names the identity.
        Held = "held",
        /// A client or an operator released the job.
        Released = "released",
    }
}

impl EventKind {
    /// Whether it is a change by a client or an operator, and no step of the job's life.
    pub fn is_edit(self) -> bool {
        matches!(self, EventKind::Edited | EventKind::Held | EventKind::Released)
    }
}

words! {
    /// The order of a list of jobs.
    pub enum ListOrder {
        /// The latest first: by when they ended, started or became pending; for jobs that wait for a time, by that time.
        Newest = "newest",
        /// The reverse.
        Oldest = "oldest",
        /// By type and id.
        Id = "id",
    }
}

answers! {
    /// A page of jobs.
    pub struct Jobs {
        /// The jobs. A page may hold fewer than `limit` jobs, even none, although a next page exists: the server reads a bounded number of jobs per
        /// request.
        pub jobs: Vec<Job>,
        /// The number of jobs that the server looked at for this page, without those that the caller may not see. Missing in a list by type and
        /// id without `where`.
        pub looked_at: Option<u64>,
        /// There are more jobs: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }

    /// Failed jobs of one task, or without a task, whose reasons are of one class.
    pub struct Failure {
        /// The class of their reasons: a reason without numbers, addresses and quoted text. `reason_class` of a list selects these jobs.
        pub reason_class: String,
        /// What these jobs do, within their type; missing if they name no task.
        pub task: Option<String>,
        /// How many of the jobs that were looked at failed like this.
        pub jobs: u64,
        /// When the latest of them failed, in µs since the epoch.
        pub latest_us: i64,
        /// The type of the latest of them.
        #[serde(rename = "type")]
        pub job_type: String,
        /// Its id.
        pub id: String,
        /// Its reason.
        pub reason: Option<String>,
    }
}

/// Failed jobs by their task and the class of their reason.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Failures {
    /// The most frequent first: at most 100.
    pub failures: Vec<Failure>,
    /// How many failed jobs were looked at, without those that the caller may not see.
    pub looked_at: u64,
    /// Whether these were all. Of more than about 50,000 failed jobs, those that failed last are looked at.
    pub complete: bool,
}

/// The result of waiting for a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WaitAnswer {
    /// Whether the job has ended. If not, the timeout was over first.
    pub finished: bool,
    /// The job in its current state.
    pub job: Job,
}

/// The result of cancelling a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// The state now: `cancelled`, or `running` if its worker still has to stop it, or the final state that it already had.
    pub state: State,
}

/// How a job is retried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "with_dependents": true }))]
pub struct RetryJob {
    /// Also the jobs that were cancelled because of its end, and those after them: they wait again for what they waited for. The request can be repeated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(default = false)]
    pub with_dependents: bool,
}

answers! {
    /// The result of retrying a job.
    #[derive(Copy, PartialEq, Eq)]
    pub struct Retried {
        /// Whether the job was delayed, blocked, crashing, failed or cancelled, and is pending now. If not, nothing was changed.
        pub retried: bool,
        /// The state now.
        pub state: State,
        /// With `with_dependents`: how many jobs that were cancelled because of its end wait again.
        pub dependents: Option<u64>,
        /// How many of them do not, because another job has their unique key, a job that they waited for was removed or has ended in a state that they do not accept, or
        /// this identity may not run them. Those behind them stay cancelled, too.
        pub refused: Option<u64>,
        /// There may be more than these 10,000: repeat the request.
        pub more: Option<bool>,
    }
}

/// A new priority for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "priority": -5 }))]
pub struct SetPriority {
    /// -20 (first) to 19 (last).
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = -20, maximum = 19)]
    pub priority: i32,
}

/// The result of changing a job's priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Prioritized {
    /// Whether the job has that priority now. If not, it has ended, and nothing was changed.
    pub changed: bool,
    /// The state now. A job that is not pending takes its new place when it becomes pending.
    pub state: State,
}

/// The result of removing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// Whether the job is removed. If not, it is removed as soon as its worker has stopped it.
    pub removed: bool,
}

answers! {
    /// Job types.
    #[derive(PartialEq, Eq)]
    pub struct Types {
        /// The types that have jobs, sorted: at most 1,000.
        pub types: Vec<String>,
        /// There are more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }
}
