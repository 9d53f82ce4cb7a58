//! Operations of workers in any language.
//!
//! A worker registers under a job type and gets an id. It pings in its own thread, at the interval of the response. The server removes a worker
//! without a ping for the health timeout, and other workers get its jobs. The worker accepts jobs, reports progress, and ends each job with `finish`,
//! `fail` or `release`. Each of these requests carries the number of the claim. `end` ends many jobs at once, and `accept` may carry the same ends.
//!
//! A worker may repeat every request whose response was lost. `accept` returns the jobs again whose claim numbers are higher than the last one that
//! the worker has received. Ending a job is idempotent: the response is the same again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::answer::answers;
use crate::error::Error;
use crate::groups::{JobCallback, JobGroup};
use crate::jobs::{LastSuccess, State};
use crate::names::{JobId, TaskName, WorkerId};
use crate::types::TaskTerms;
use crate::word::words;

/// A registration of a worker.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "mailer 2 on web-7", "slots": 4, "tasks": ["send_welcome", "thumbnail"], "task_slots": { "thumbnail": 2 } }))]
pub struct Register {
    /// A name for people: at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub name: Option<String>,
    /// Its number of slots: the jobs that it runs at the same time.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = 1, maximum = 1000)]
    pub slots: usize,
    /// The tasks that it knows: it gets jobs of these only. By default it gets all jobs of its type, with any task or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<TaskName>>, min_items = 1, max_items = 200)]
    pub tasks: Option<Vec<String>>,
    /// The most jobs of some of these tasks that it runs at the same time, by task.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, SlotCount>)]
    pub task_slots: BTreeMap<String, usize>,
    /// What holds for the jobs of some of these tasks, by task, from now on, in place of what other workers have stated. What is stated with `PUT /v1/types/{type}` of a task
    /// stays. Not for workers that run the jobs of some tenants only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub task_terms: BTreeMap<String, TaskTerms>,
}

/// A number of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(minimum = 1, maximum = 1000)]
pub struct SlotCount(pub usize);

/// A registered worker's id and intervals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// Its id, for the paths of its requests. The server never assigns it again.
    #[schema(value_type = WorkerId)]
    pub worker: String,
    /// The interval between its pings, in ms.
    pub ping_interval_ms: u64,
    /// The time without a ping after which the server removes it, in ms.
    pub health_timeout_ms: u64,
}

/// The response to a ping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pinged {
    /// The claims of this worker whose jobs must stop. The worker stops each job and ends it with `release`, or with `finish` if the job has already
    /// completed.
    pub cancel: Vec<u64>,
    /// Whether the worker gets new jobs. A worker that drains leaves when its last job has ended.
    #[serde(default, skip_serializing_if = "Mode::is_active")]
    pub mode: Mode,
}

words! {
    /// Whether a worker gets new jobs.
    #[derive(Default)]
    pub enum Mode {
        /// It gets jobs.
        #[default]
        Active = "active",
        /// It gets no new jobs until it is resumed. Its running jobs continue.
        Quiet = "quiet",
        /// The same. An external worker leaves when its last job has ended. A worker inside a server gives back the jobs that do not end by themselves,
        /// and stays registered.
        Drain = "drain",
    }
}

impl Mode {
    /// Whether a worker with this mode gets new jobs.
    pub fn is_active(&self) -> bool {
        *self == Mode::Active
    }
}

/// A new mode of a worker, or of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "mode": "quiet" }))]
pub struct SetMode {
    /// The mode. `active` resumes a worker.
    pub mode: Mode,
}

/// A request for jobs. Each worker has one at a time: a later request replaces one that still waits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "received": 0, "limit": 4, "wait_ms": 1_000 }))]
pub struct Accept {
    /// The highest claim number that the worker has received, 0 at first. The server returns jobs with higher claims of this worker again, because
    /// their response was lost.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub received: u64,
    /// Maximum number of jobs to return, within the worker's free slots. One response holds at most 200.
    #[serde(default = "crate::number::one", deserialize_with = "crate::number::whole")]
    #[schema(default = 1, minimum = 1, maximum = 1000)]
    pub limit: usize,
    /// Longest time to wait for a job, in ms. The server may respond earlier. If no job became available, the response is an empty list.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(default = 0, maximum = 300_000)]
    pub wait_ms: u64,
    /// Runs that have ended. The server records these ends first, so their slots are free for the jobs of the response. A request with ends does not
    /// wait for jobs.
    #[serde(default, skip_serializing_if = "EndRuns::is_empty")]
    pub ends: EndRuns,
}

/// The jobs that a worker has claimed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// The results of the request's `ends`, in the order of `finish`, `fail`, `snooze` and `release`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndedRun>,
    /// The jobs, in increasing order of their claims.
    pub jobs: Vec<AcceptedJob>,
    /// Whether the worker gets new jobs. A worker that drains leaves when its last job has ended.
    #[serde(default, skip_serializing_if = "Mode::is_active")]
    pub mode: Mode,
}

answers! {
    /// The schedule that the job of a run comes from.
    pub struct RunSchedule {
        /// The name of the schedule.
        pub name: String,
        /// The time of the fire by the schedule, in µs since the Unix epoch.
        pub scheduled_at_us: i64,
        /// When the server made the fire.
        pub fired_at_us: i64,
        /// The last job of the schedule that has completed.
        pub last_success: Option<LastSuccess>,
    }

    /// A job that a worker has claimed. The worker holds it until it ends the job, loses the claim, or is removed.
    pub struct AcceptedJob {
        /// Its id.
        pub id: String,
        /// The number of the worker's claim, for all requests about this job.
        pub claim: u64,
        /// The tenant that it is charged to.
        pub tenant: String,
        /// The user on whose behalf it runs.
        pub user: Option<String>,
        /// What it does, within its type.
        pub task: Option<String>,
        /// The number of this attempt: 1 if the job has not crashed since it was added.
        pub attempt: u32,
        /// The number of the last attempt, whose crash fails the job permanently.
        pub max_attempts: Option<u32>,
        /// Longest run, in ms: the job's own or its type's. A run that lasts longer loses its claim.
        pub timeout_ms: Option<u64>,
        /// Longest time between two reports, in ms: the job's own or its type's. A run that exceeds it loses its claim.
        pub heartbeat_timeout_ms: Option<u64>,
        /// The schedule that has added the job, and what its last job that has completed has returned.
        pub schedule: Option<RunSchedule>,
        /// The group of which the job is a member, and its index in an array.
        pub group: Option<JobGroup>,
        /// The group that has added the job, and how its jobs had ended.
        pub callback: Option<JobCallback>,
        /// The results of jobs before it, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub inputs: BTreeMap<String, GivenInput>,
        /// The run's trace (W3C Trace Context), for the requests that it sends. Only if the job is traced.
        pub traceparent: Option<String>,
        /// The input of the job's handler. It may hold secrets.
        #[schema(value_type = serde_json::Value)]
        pub options: Box<RawValue>,
        /// The description of the job for listings.
        #[schema(value_type = serde_json::Value)]
        pub summary: Box<RawValue>,
        /// The last report of an earlier run.
        #[schema(value_type = serde_json::Value)]
        pub info: Option<Box<RawValue>>,
    }
}

/// A report of a run: its progress, lines of its log, or both.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "claim": 4, "info": { "sent": "50%" }, "log": [{ "message": "half of them are sent" }] }))]
pub struct Update {
    /// The number of the claim.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub claim: u64,
    /// Any JSON of at most 12 kB. It replaces the last report, which stays if this is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub info: Option<Box<RawValue>>,
    /// Lines of log, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub log: Vec<NewLogLine>,
    /// Lets no job start for so long, in ms, in the rates that this job obeys: the service that they protect has refused a request (status 429).
    /// The pause ends by itself.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 3_600_000)]
    pub rate_pause_ms: Option<u64>,
}

/// A line of log. Of a line of more than 8 kB, the fields are dropped, and the message is cut.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "level": "warn", "message": "the mail server is slow", "fields": { "seconds": 12 } }))]
pub struct NewLogLine {
    /// When it was logged, in µs since the Unix epoch. By default the server's time.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub at_us: Option<i64>,
    /// How serious it is.
    #[serde(default)]
    #[schema(default = "info")]
    pub level: LogLevel,
    /// The message.
    pub message: String,
    /// More about it: an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub fields: Option<Box<RawValue>>,
}

words! {
    /// How serious a line of log is.
    #[derive(Default)]
    pub enum LogLevel {
        /// For the developers of the program.
        Debug = "debug",
        /// What the program does.
        #[default]
        Info = "info",
        /// Something is not as it should be.
        Warn = "warn",
        /// Something has failed.
        Error = "error",
    }
}

/// The response to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Updated {
    /// What the worker must do next.
    pub answer: Answer,
}

words! {
    /// An instruction to a worker about a job.
    pub enum Answer {
        /// Continue.
        Continue = "continue",
        /// Stop the job, because its user has cancelled it, and end it with `release`.
        Cancel = "cancel",
        /// Stop the job and send nothing more for it: this worker has lost its claim.
        Halt = "halt",
    }
}

/// Defines the end of a run in a request of its own, and in a request with many ends, which also names the job.
macro_rules! ends {
    ($(
        $(#[$about:meta])* $end:ident, $(#[$about_run:meta])* $run:ident {
            $($(#[$attribute:meta])* pub $field:ident: $type:ty,)*
        }
    )+) => {$(
        #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub struct $end {
            /// The number of the claim.
            #[serde(deserialize_with = "crate::number::whole")]
            #[schema(maximum = 9_007_199_254_740_991_u64)]
            pub claim: u64,
            $($(#[$attribute])* pub $field: $type,)*
            /// The last report: any JSON of at most 12 kB.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(value_type = serde_json::Value)]
            pub info: Option<Box<RawValue>>,
            /// The last lines of log, at most 1,000.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[schema(max_items = 1000)]
            pub log: Vec<NewLogLine>,
        }

        #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about_run])*
        pub struct $run {
            /// The job's id.
            #[schema(value_type = JobId)]
            pub id: String,
            /// The number of the claim.
            #[serde(deserialize_with = "crate::number::whole")]
            #[schema(maximum = 9_007_199_254_740_991_u64)]
            pub claim: u64,
            $($(#[$attribute])* pub $field: $type,)*
            /// The last report: any JSON of at most 12 kB.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(value_type = serde_json::Value)]
            pub info: Option<Box<RawValue>>,
            /// The last lines of log, at most 1,000.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[schema(max_items = 1000)]
            pub log: Vec<NewLogLine>,
        }
    )+};
}

ends! {
    /// A job that has completed.
    #[schema(example = json!({ "claim": 4, "result": { "message_id": "a1b2" } }))]
    Finish,
    /// One of the jobs that have completed.
    FinishRun {
        /// The result: any JSON. `null` if it is left out. A result of more than `[jobs] max_result_bytes`, 1 MB by default, fails the job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = serde_json::Value)]
        pub result: Option<Box<RawValue>>,
        /// In place of `result`: bytes, in base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        pub data: Option<String>,
        /// The media type of `data`. By default `application/octet-stream`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false, max_length = 128)]
        pub media_type: Option<String>,
    }

    /// A job that crashed or failed.
    #[schema(example = json!({ "claim": 4, "reason": "the mail server does not answer" }))]
    Fail,
    /// One of the jobs that crashed or failed.
    FailRun {
        /// The error's message. The history keeps its first 1,000 bytes, on one line.
        #[schema(max_length = 65_536)]
        pub reason: String,
        /// The class of the error, as the worker's language names it: at most 200 bytes are kept. Failures of one class are counted together.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false, max_length = 65_536)]
        pub class: Option<String>,
        /// The trace of the error. Of one with more than 16 kB, the middle is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false, max_length = 1_048_576)]
        pub trace: Option<String>,
        /// Whether to retry the job after a backoff, unless this was the last attempt. Otherwise the job has failed.
        #[serde(default = "yes")]
        #[schema(default = true)]
        pub retry: bool,
        /// How long the job waits before it is retried, in ms, in place of its backoff: what the other side asked for.
        #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
        #[schema(maximum = 31_536_000_000_u64)]
        pub retry_after_ms: Option<u64>,
    }

    /// A job that its handler puts off: it is delayed, and no attempt is counted. Of `until_us` and `for_ms`, the later time applies.
    #[schema(example = json!({ "claim": 4, "for_ms": 40_000 }))]
    Snooze,
    /// One of the jobs that are put off.
    SnoozeRun {
        /// The job does not start before this time, in µs since the Unix epoch.
        #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
        pub until_us: Option<i64>,
        /// How long the job is put off, in ms. 0 by default.
        #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
        #[schema(maximum = 315_360_000_000_u64)]
        pub for_ms: Option<u64>,
    }

    /// A job that the worker gives back: it becomes pending, or cancelled if its user has cancelled it.
    #[schema(example = json!({ "claim": 4 }))]
    Release,
    /// One of the jobs that the worker gives back.
    ReleaseRun {}
}

pub(crate) fn yes() -> bool {
    true
}

/// The body of a request whose path states everything. It may be left out. The header `Content-Type: application/json` is required, because a page of
/// another site could send a POST without it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({}))]
pub struct Nothing {}

/// Ends of many runs. Each has the effect of a request `finish`, `fail`, `snooze` or `release`, and may be repeated like it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "finish": [{ "id": "mail-17", "claim": 4 }, { "id": "mail-18", "claim": 5 }] }))]
pub struct EndRuns {
    /// The jobs that have completed: at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub finish: Vec<FinishRun>,
    /// The jobs that crashed or failed: at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub fail: Vec<FailRun>,
    /// The jobs that are put off: at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub snooze: Vec<SnoozeRun>,
    /// The jobs that the worker gives back: at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub release: Vec<ReleaseRun>,
}

impl EndRuns {
    /// Whether there are no ends.
    pub fn is_empty(&self) -> bool {
        self.finish.is_empty() && self.fail.is_empty() && self.snooze.is_empty() && self.release.is_empty()
    }
}

/// The results of many ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedRuns {
    /// One result for each end of the request, in the order of `finish`, `fail` and `release`.
    pub ended: Vec<EndedRun>,
}

answers! {
    /// The result of one of many ends: a state or an error.
    #[derive(PartialEq, Eq)]
    pub struct EndedRun {
        /// The number of the claim.
        pub claim: u64,
        /// The job's state now.
        pub state: Option<EndState>,
        /// Why the end was not recorded, as in the response to a request of its own. `halt`: the worker has lost this claim.
        pub error: Option<Error>,
    }
}

/// The result of ending a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// The job's state now.
    pub state: EndState,
}

words! {
    /// A job's state after a run.
    pub enum EndState {
        /// The job is pending: it was given back, or runs once more.
        Pending = "pending",
        /// The job waits outside of the queue: for a later time, for dependencies, for a filter or for a concurrency limit.
        Delayed = "delayed",
        /// Another run of the job has already begun.
        Running = "running",
        /// The job is retried when its backoff is over.
        Crashing = "crashing",
        /// The job has completed.
        Completed = "completed",
        /// The job has failed permanently.
        Failed = "failed",
        /// The job was cancelled.
        Cancelled = "cancelled",
        /// The job's record was removed by its user.
        Removed = "removed",
    }
}

impl From<State> for EndState {
    fn from(state: State) -> Self {
        match state {
            State::Pending => EndState::Pending,
            State::Delayed | State::Blocked | State::Paused | State::Limited => EndState::Delayed,
            State::Running | State::Waiting => EndState::Running,
            State::Crashing => EndState::Crashing,
            State::Completed => EndState::Completed,
            State::Failed => EndState::Failed,
            State::Cancelled => EndState::Cancelled,
        }
    }
}

/// The response to a worker that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Left {
    /// The worker is no longer registered, and its jobs are pending again.
    pub left: bool,
}

answers! {
    /// A registered worker.
    #[derive(PartialEq, Eq)]
    pub struct Worker {
        /// The type of its jobs.
        #[serde(rename = "type")]
        pub job_type: String,
        /// Its id.
        pub id: String,
        /// Its name, if it has one.
        pub name: Option<String>,
        /// The node that it runs on, or that it is registered with.
        pub node: String,
        /// Whether it is an external worker.
        pub external: bool,
        /// Its number of slots.
        pub slots: usize,
        /// The tasks that it knows, each with the most jobs that it runs of it; 0 for as many as it has slots. Missing if it gets all jobs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        pub tasks: Option<BTreeMap<String, u32>>,
        /// The tasks for which it has stated other terms than those that hold now: another worker, or a request, has replaced them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub other_terms: Vec<String>,
        /// The bounds within which its slots follow the demand. Missing if they do not.
        pub slot_bounds: Option<SlotBounds>,
        /// When it registered, in µs since the Unix epoch.
        pub started_us: i64,
        /// The identity that has registered it: `user:NAME` or `token:ID`. Missing for workers of servers, and for those that
        /// were registered without credentials.
        pub registered_by: Option<String>,
        /// Whether it gets new jobs.
        #[serde(default)]
        #[schema(required = true)]
        pub mode: Mode,
        /// The jobs that it runs, by id: the first 100.
        pub running: Vec<RunningJob>,
        /// Whether it runs more jobs than these.
        pub more_running: bool,
    }
}

/// The bounds of a worker's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotBounds {
    /// Its fewest slots.
    pub least: usize,
    /// Its most slots.
    pub most: usize,
}

/// A running job of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunningJob {
    /// Its id.
    pub id: String,
    /// What it does, within its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub task: Option<String>,
    /// The number of the claim.
    pub claim: u64,
    /// When this run started, in µs since the Unix epoch.
    pub started_us: i64,
}

answers! {
    /// A page of workers, by type and id.
    #[derive(PartialEq, Eq)]
    pub struct Workers {
        /// The workers.
        pub workers: Vec<Worker>,
        /// There are more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }
}

answers! {
    /// An input of a job that a worker has claimed: the result, or where it is.
    #[schema(example = json!({ "job": "extract/7", "state": "completed", "result": [1, 2] }))]
    pub struct GivenInput {
        /// The type and the id of the job before it.
        pub job: String,
        /// The state of that job. If it is not `completed`, there is no result: it failed and that was accepted, or it runs again, or was removed.
        pub state: EndState,
        /// The result, if it is JSON, and fits: the inputs of a job have at most 64 kB together, the smallest first.
        #[schema(value_type = serde_json::Value)]
        pub result: Option<Box<RawValue>>,
        /// Otherwise: its size in bytes.
        pub bytes: Option<u64>,
        /// Its media type.
        pub media_type: Option<String>,
        /// The path under which this worker gets it while it holds the claim.
        pub url: Option<String>,
    }
}
