//! Job filters: rules that decide which waiting jobs may start.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::word::words;

/// Longest name of a filter, in bytes.
pub const MAX_FILTER_NAME_BYTES: usize = 128;
/// Longest condition of a filter, in bytes.
pub const MAX_CONDITION_BYTES: usize = 4_000;

/// A filter to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "action": "pause", "when": "type = mail and options.to ~ \"@example\\.org$\"", "priority": 10, "note": "their server is moved"
}))]
pub struct PutFilter {
    /// What the filter does with the jobs that meet its condition.
    pub action: Action,
    /// Maximum number of these jobs that run at the same time. Required for `concurrency`, and allowed only there.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// The condition. Left out or empty, it applies to all jobs. It compares `id`, `type`, `tenant`, `user`, `reason` and `options.NAME` (names
    /// separated by dots) with a number, a word, or text in quotes. The operators are `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (a regular expression that
    /// matches anywhere in the value) and `!~`. Combine comparisons with `and`, `or`, `not` and parentheses.
    #[serde(default)]
    #[schema(max_length = 4000)]
    pub when: String,
    /// The server evaluates filters with a lower priority first. Filters of equal priority are ordered by watermark, then by name.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(minimum = -1000, maximum = 1000)]
    pub priority: i32,
    /// The filter applies only to jobs that were added at this time or later, in µs since the Unix epoch. 0 means all jobs.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub watermark_us: i64,
    /// Why the filter exists, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 500)]
    pub note: Option<String>,
}

words! {
    /// What a filter does with the jobs that meet its condition.
    pub enum Action {
        /// They may run, regardless of later filters.
        Accept = "accept",
        /// They do not start as long as the filter exists. Running jobs continue.
        Pause = "pause",
        /// They are cancelled.
        Reject = "reject",
        /// The next filters decide.
        Continue = "continue",
        /// They start while fewer of them run than `limit`. The others wait, and start as running ones end.
        // `rate_limit` is what Ganeti calls it.
        Concurrency = "concurrency" | "rate_limit",
    }
}

answers! {
    /// A job filter.
    #[derive(PartialEq, Eq)]
    pub struct Filter {
        /// Its name.
        pub id: String,
        /// What it does with the jobs that meet its condition.
        pub action: Action,
        /// `concurrency`: the maximum number of these jobs that run at the same time.
        pub limit: Option<u32>,
        /// The condition. Empty means all jobs.
        pub when: String,
        /// The server evaluates filters with a lower priority first.
        pub priority: i32,
        /// The filter applies only to jobs that were added at this time or later, in µs. 0 means all jobs.
        pub watermark_us: i64,
        /// Why the filter exists, for people.
        pub note: Option<String>,
    }

    /// The concurrency limit that a job waits for: as many jobs of its bucket run as the limit allows.
    #[derive(PartialEq, Eq)]
    pub struct Limited {
        /// What defines the bucket.
        pub by: LimitedBy,
        /// The name of the filter or of the bucket.
        pub name: String,
        /// Maximum number of jobs that run at the same time.
        pub limit: u32,
        /// Number of jobs that run now. Only `why` returns it.
        pub running: Option<usize>,
    }
}

words! {
    /// What defines a job's bucket.
    pub enum LimitedBy {
        /// A filter.
        Filter = "filter",
        /// A reason of the job, in the form `concurrency:n:name`.
        Reason = "reason",
        /// The job's task: it waits for a worker that takes it. The limit has no meaning.
        Task = "task",
    }
}

/// All filters, in the order in which the server evaluates them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Filters {
    /// The first filter whose condition holds for a job decides.
    pub filters: Vec<Filter>,
}

/// The result of removing a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedFilter {
    /// The filter does not exist any more.
    pub removed: bool,
}
