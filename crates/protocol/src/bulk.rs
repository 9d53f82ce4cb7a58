//! Bulk operations: one change to all jobs that meet a condition.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::State;
use crate::answer::answers;
use crate::names::{JobId, JobType, Name};
use crate::word::words;

/// Longest id of a bulk operation, in bytes.
pub const MAX_BULK_ID_BYTES: usize = 128;
/// Maximum number of examples in [`MatchingJobs`].
pub const MAX_EXAMPLES: usize = 20;

/// A text as a condition writes it: between quotes. `None` if a condition cannot express it, because it ends with a backslash.
#[must_use]
pub fn quoted(text: &str) -> Option<String> {
    (!text.ends_with('\\')).then(|| format!("\"{}\"", text.replace('"', "\\\"")))
}

/// A request for a bulk operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "action": "retry", "where": "type = mail and state = failed and reason ~ timeout and ended_age < 2d"
}))]
pub struct PutBulk {
    /// What happens to each job.
    pub action: BulkAction,
    /// `priority`: the new priority. Required there, and allowed only there.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -20, maximum = 19)]
    pub priority: Option<i32>,
    /// The condition, in the language of filters, with more fields: `id`, `type`, `tenant`, `user`, `state`, `reason` (a text of the add, or why the job
    /// failed, crashed or was cancelled), `options.NAME`, `priority`, `attempts`, `crashes`, the times `added`, `changed` and `ended` (compared with
    /// `2026-01-31T12:00:00Z`), and the ages `age`, `changed_age` and `ended_age` (compared with `90s` or `2d`). The operators are `=`, `!=`, `<`, `<=`,
    /// `>`, `>=`, `~`, `!~` and `in (…)`. Combine comparisons with `and`, `or`, `not` and parentheses. Ages are measured from the start.
    #[serde(rename = "where")]
    #[schema(min_length = 1, max_length = 4000)]
    pub condition: String,
}

words! {
    /// What a bulk operation does to each job.
    pub enum BulkAction {
        /// As `POST /v1/jobs/{type}/{id}/retry`.
        Retry = "retry",
        /// As `POST /v1/jobs/{type}/{id}/cancel`.
        Cancel = "cancel",
        /// As `DELETE /v1/jobs/{type}/{id}`.
        Remove = "remove",
        /// As `PUT /v1/jobs/{type}/{id}/priority`.
        Priority = "priority",
        /// A job that is delayed, parked or crashing is pending now. Other jobs are unchanged.
        RunNow = "run_now",
        /// As `POST /v1/jobs/{type}/{id}/hold`.
        Hold = "hold",
        /// As `POST /v1/jobs/{type}/{id}/release`.
        Release = "release",
    }
}

words! {
    /// How a bulk operation stands.
    pub enum BulkState {
        /// It is not at its end.
        Running = "running",
        /// It has reached all jobs.
        Done = "done",
        /// A client has stopped it. What it has changed stays changed.
        Stopped = "stopped",
        /// It cannot continue: see `reason`.
        Failed = "failed",
    }
}

answers! {
    /// A bulk operation.
    #[derive(PartialEq, Eq)]
    pub struct Bulk {
        /// Its id.
        pub id: String,
        /// What happens to each job.
        pub action: BulkAction,
        /// `priority`: the new priority.
        pub priority: Option<i32>,
        /// The condition.
        #[serde(rename = "where")]
        pub condition: String,
        /// The identity that asked for it, such as `user:jan`. Missing on a store without identities.
        pub by: Option<String>,
        /// How it stands.
        pub state: BulkState,
        /// `failed`: why.
        pub reason: Option<String>,
        /// When it began, in µs since the Unix epoch.
        pub begun_us: i64,
        /// When it ended, in µs.
        pub ended_us: Option<i64>,
        /// Number of jobs that it has looked at, without those that its identity may not see.
        pub looked_at: u64,
        /// About how many it will look at, as counted when it began. Missing where there were too many types and tenants to count.
        pub about: Option<u64>,
        /// Number of these jobs that met the condition.
        pub matched: u64,
        /// Number of these jobs that it changed.
        pub changed: u64,
        /// The others of them, by the reason why they are unchanged.
        pub refused: Vec<RefusedJobs>,
    }
}

/// Jobs that a bulk operation does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedJobs {
    /// Why.
    pub reason: String,
    /// Their number.
    pub jobs: u64,
}

answers! {
    /// A page of bulk operations, by id.
    #[derive(PartialEq, Eq)]
    pub struct Bulks {
        /// The operations.
        pub bulk: Vec<Bulk>,
        /// There are more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }

    /// A count of the jobs that meet a condition.
    #[derive(PartialEq, Eq)]
    pub struct MatchingJobs {
        /// Whether all jobs were reached. If not, the time was over, and there may be more.
        pub complete: bool,
        /// Number of jobs that were looked at, without those that the caller may not see.
        pub looked_at: u64,
        /// Number of these jobs that meet the condition.
        pub matched: u64,
        /// With an action: the number of these jobs that it would change.
        pub changes: Option<u64>,
        /// With an action: the others of them, by the reason why they would be unchanged.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub refused: Vec<RefusedJobs>,
        /// Some of the jobs that meet the condition, and that the action would change: at most 20.
        pub examples: Vec<ExampleJob>,
    }
}

/// A job that meets a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExampleJob {
    /// Its type.
    #[serde(rename = "type")]
    #[schema(value_type = JobType)]
    pub job_type: String,
    /// Its id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// Its tenant.
    #[schema(value_type = Name)]
    pub tenant: String,
    /// Its state.
    pub state: State,
}
