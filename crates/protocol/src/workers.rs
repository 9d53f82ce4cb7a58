//! What workers in any language do.
//!
//! A worker registers under a job type and gets an id. It pings at the interval that it was told, from a thread of its
//! own: a worker that is not heard of within the health timeout is removed, and its jobs go to others. It accepts jobs,
//! reports progress, and ends each with `finish`, `fail` or `release`, always with the number of its claim.
//!
//! Every request may be repeated when its answer was lost. `accept` hands the jobs out again that lie above the number
//! which the worker says it has received; a repeated end is answered as the first one was.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::jobs::State;
use crate::names::WorkerId;

/// A worker that registers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "mailer 2 on web-7", "slots": 4 }))]
pub struct Register {
    /// A name for people: at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub name: Option<String>,
    /// Jobs that it runs at the same time at most.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = 1, maximum = 1000)]
    pub slots: usize,
}

/// A worker that is registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// Its id, for the paths of its requests. It is never given again.
    #[schema(value_type = WorkerId)]
    pub worker: String,
    /// How often it shall ping, in ms.
    pub ping_interval_ms: u64,
    /// After how much silence it is removed, in ms.
    pub health_timeout_ms: u64,
}

/// What a ping is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pinged {
    /// The claims of this worker whose jobs shall stop: it stops them, and ends them with `release` (or `finish`, if they
    /// were just done).
    pub cancel: Vec<u64>,
}

/// A worker that has room for jobs. One at a time per worker: a later request takes the place of one that still waits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "received": 0, "limit": 4, "wait_ms": 30_000 }))]
pub struct Accept {
    /// The highest claim number that the worker has ever received; 0 at first. Jobs that it holds above it are handed out
    /// again: their answer was lost.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub received: u64,
    /// Jobs to hand out at most; never more than the worker has free slots, and never more than 50.
    #[serde(default = "one", deserialize_with = "crate::number::whole")]
    #[schema(default = 1, minimum = 1, maximum = 1000)]
    pub limit: usize,
    /// How long to wait for a job if there is none, in ms; the server may answer earlier. An empty list is the answer if
    /// none came.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(default = 0, maximum = 300_000)]
    pub wait_ms: u64,
}

fn one() -> usize {
    1
}

/// The jobs that a worker got.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// In increasing order of their claims.
    pub jobs: Vec<AcceptedJob>,
}

/// A job that a worker got. It is the worker's until it ends it, loses it, or is removed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AcceptedJob {
    /// Its id.
    pub id: String,
    /// The number of the worker's claim, for all that it says of this job.
    pub claim: u64,
    /// Who it is charged to.
    pub tenant: String,
    /// On whose behalf it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub user: Option<String>,
    /// Which attempt this is: 1 if it has not crashed since it was added.
    pub attempt: u32,
    /// The attempt whose crash fails it for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_attempts: Option<u32>,
    /// A run that lasts longer loses its claim, in ms: of the job, or of its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub timeout_ms: Option<u64>,
    /// A run that reports nothing for longer loses its claim, in ms: of the job, or of its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub heartbeat_timeout_ms: Option<u64>,
    /// What the worker needs. It may hold secrets.
    #[schema(value_type = serde_json::Value)]
    pub options: Box<RawValue>,
    /// What may be shown of it.
    #[schema(value_type = serde_json::Value)]
    pub summary: Box<RawValue>,
    /// What an earlier run reported last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub info: Option<Box<RawValue>>,
}

/// A report of progress.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "claim": 4, "info": { "sent": "50%" } }))]
pub struct Update {
    /// The claim's number.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub claim: u64,
    /// Any JSON of at most 12 kB; replaces the last report.
    #[schema(value_type = serde_json::Value)]
    pub info: Box<RawValue>,
}

/// What a report is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Updated {
    /// What the worker does next.
    pub answer: Answer,
}

/// What a worker is told about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Go on.
    Continue,
    /// Stop the job: its user wants it to. End it with `release`.
    Cancel,
    /// Stop the job and write nothing more for it: it is no longer this worker's.
    Halt,
}

/// A job that was done.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "claim": 4, "result": { "message_id": "a1b2" } }))]
pub struct Finish {
    /// The claim's number.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub claim: u64,
    /// What came out: any JSON of at most 12 kB. `null` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub result: Option<Box<RawValue>>,
    /// The last report: any JSON of at most 12 kB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub info: Option<Box<RawValue>>,
}

/// A job that could not be done.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "claim": 4, "reason": "the mail server does not answer" }))]
pub struct Fail {
    /// The claim's number.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub claim: u64,
    /// Why. The first 1,000 bytes are kept, on one line.
    #[schema(max_length = 65_536)]
    pub reason: String,
    /// Whether it is worth trying again, after a backoff and unless this was the last attempt. Otherwise the job has failed.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub retry: bool,
    /// The last report: any JSON of at most 12 kB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub info: Option<Box<RawValue>>,
}

fn yes() -> bool {
    true
}

/// The body of a request that says everything in its path. It may be left out; the header `Content-Type: application/json` may not, because
/// a page of another site could send a POST without it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({}))]
pub struct Nothing {}

/// A job that is given back: pending again, or cancelled if its user wanted that.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "claim": 4 }))]
pub struct Release {
    /// The claim's number.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub claim: u64,
    /// The last report: any JSON of at most 12 kB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub info: Option<Box<RawValue>>,
}

/// What the end of a run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// Where the job stands now.
    pub state: EndState,
}

/// Where a job stands after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EndState {
    /// It waits for its turn: it was given back, or is to run once more.
    Pending,
    /// It waits outside of the queue: for its time, for other jobs, for a filter or a rate limit.
    Delayed,
    /// Another run of it has begun already.
    Running,
    /// It is tried again when its backoff is over.
    Crashing,
    /// It has ended well.
    Completed,
    /// It has failed for good.
    Failed,
    /// Its user has ended it.
    Cancelled,
    /// Its record is gone: its user removed it.
    Removed,
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

/// What a worker that has left is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Left {
    /// It is no member any more, and its jobs are pending again.
    pub left: bool,
}

/// A registered worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// The type of the jobs that it runs.
    #[serde(rename = "type")]
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// The node that it runs on, or that it is registered with.
    pub node: String,
    /// Whether it works over HTTP.
    pub external: bool,
    /// Jobs that it runs at the same time at most.
    pub slots: usize,
    /// When it registered, in µs since the Unix epoch.
    pub started_us: i64,
    /// The jobs that it runs, by id; the first 100.
    pub running: Vec<RunningJob>,
    /// Whether it runs more than those.
    pub more_running: bool,
}

/// A job that a worker runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunningJob {
    /// Its id.
    pub id: String,
    /// The claim's number.
    pub claim: u64,
    /// When this run started, in µs since the Unix epoch.
    pub started_us: i64,
}

/// A page of workers, by type and id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workers {
    /// The workers.
    pub workers: Vec<Worker>,
    /// There is more: ask again with `after` set to this. Missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}
