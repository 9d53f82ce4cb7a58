//! What clients do with jobs.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

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
    /// The crash of this attempt fails the job for good. Without it a job is tried for ever.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub max_attempts: Option<u32>,
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
    /// The crash of this attempt fails the job for good. Without it a job is tried for ever.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub max_attempts: Option<u32>,
    /// What happens if there is a job of this id.
    #[serde(default)]
    #[schema(default = "keep")]
    pub if_exists: IfExists,
}

impl NewJob {
    /// A job that is not yet typed, under a type.
    pub fn new(job_type: impl Into<String>, job: AddJob) -> NewJob {
        let AddJob { id, tenant, user, options, summary, delay_ms, not_before_us, max_attempts, if_exists } =
            job;
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
            if_exists,
        }
    }
}

/// Many jobs to be added: all of them or none.
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
    /// It takes the new options: one that has ended is run again, one that runs is run once more after it ended, one that
    /// waits keeps its place.
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
    /// Waits for its time.
    Delayed,
    /// A worker runs it.
    Running,
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
    /// Runs that have crashed since it was added (again).
    pub attempts: u32,
    /// The crash of this attempt fails it for good.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_attempts: Option<u32>,
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
    /// Crashing or failed: why.
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
    /// Crashed or failed: why.
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
    /// Given back without an error: released, a clean shutdown, or its worker was lost.
    Stopped,
    /// Ended with an error that may pass.
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

/// What removing a job came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// Whether it is gone; otherwise it goes as soon as its worker has stopped it.
    pub removed: bool,
}

/// Job types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Types {
    /// The types that have jobs, sorted; the first 1,000.
    pub types: Vec<String>,
}
