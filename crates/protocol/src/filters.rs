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
    /// Maximum number of these jobs that run at the same time. Required for `concurrency`, and otherwise allowed only for `rate`.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// How many of these jobs start per period. Required for `rate`, and allowed only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rate: Option<Rate>,
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
        /// They start while fewer of them have started in the last period than `rate` allows. The others wait, and start as places get free.
        Rate = "rate",
    }
}

/// How many jobs start per period. A start counts once per run, however the run ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "at_most": 100, "per_ms": 60_000, "key": "options.customer" }))]
pub struct Rate {
    /// Maximum number of starts per period.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub at_most: u32,
    /// Length of the period, in ms: at most 31 days.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = 100, maximum = 2_678_400_000_u64)]
    pub per_ms: u64,
    /// An option, `options.NAME`: each of its values has a rate of its own. Jobs without the option, or whose type hides it, share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 200)]
    pub key: Option<String>,
    /// As how many starts each job counts; at most `at_most`.
    #[serde(default = "one", deserialize_with = "crate::number::whole")]
    #[schema(minimum = 1, maximum = 10_000, default = 1)]
    pub weight: u32,
    /// How starts are counted.
    #[serde(default)]
    #[schema(default = "window")]
    pub algorithm: RateAlgorithm,
}

fn one() -> u32 {
    1
}

words! {
    /// How starts are counted.
    #[derive(Default)]
    pub enum RateAlgorithm {
        /// No period of this length, whenever it begins, has more starts than the rate allows.
        #[default]
        Window = "window",
        /// A token bucket of `at_most` tokens that refills evenly. After a pause, a period may have up to twice as many starts.
        Bucket = "bucket",
    }
}

/// Closes a rate for a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "for_ms": 30_000, "key": "acme" }))]
pub struct PauseRate {
    /// For how long no job of the rate starts, in ms: at most a day. 0 ends an earlier pause.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(minimum = 0, maximum = 86_400_000)]
    pub for_ms: u64,
    /// The value of the rate's key. Required if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 128)]
    pub key: Option<String>,
}

/// The response to the pause of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PausedRate {
    /// Until when no job of the rate starts, in µs since the Unix epoch.
    pub until_us: i64,
}

answers! {
    /// A job filter.
    #[derive(PartialEq, Eq)]
    pub struct Filter {
        /// Its name.
        pub id: String,
        /// What it does with the jobs that meet its condition.
        pub action: Action,
        /// `concurrency` and `rate`: the maximum number of these jobs that run at the same time.
        pub limit: Option<u32>,
        /// `rate`: how many of these jobs start per period.
        pub rate: Option<Rate>,
        /// The condition. Empty means all jobs.
        pub when: String,
        /// The server evaluates filters with a lower priority first.
        pub priority: i32,
        /// The filter applies only to jobs that were added at this time or later, in µs. 0 means all jobs.
        pub watermark_us: i64,
        /// Why the filter exists, for people.
        pub note: Option<String>,
    }

    /// The limit that a job waits for: as many jobs of its bucket run, or have started in the last period, as the limit allows.
    #[derive(PartialEq, Eq)]
    pub struct Limited {
        /// What defines the bucket.
        pub by: LimitedBy,
        /// The name of the filter or of the bucket.
        pub name: String,
        /// The value of the rate's key, if it has one.
        pub key: Option<String>,
        /// Maximum number of jobs that run at the same time, or that start per period.
        pub limit: u32,
        /// Number of jobs that run now. Only `why` returns it.
        pub running: Option<usize>,
        /// Of a rate: the length of its period, in ms. Only `why` returns it.
        pub per_ms: Option<u64>,
        /// Of a rate: when the next job may start, in µs. Only `why` returns it.
        pub next_us: Option<i64>,
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
        /// The rate of a filter, or of a reason of the job, in the form `rate:100/60s:name`.
        Rate = "rate",
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
