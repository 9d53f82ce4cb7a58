//! Job filters: which of the jobs that wait may start.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Filters of a store, at most.
pub const MAX_FILTERS: usize = 100;
/// Longest name of a filter, in bytes.
pub const MAX_FILTER_NAME_BYTES: usize = 128;
/// Longest condition of a filter, in bytes.
pub const MAX_CONDITION_BYTES: usize = 4_000;
/// Longest note of a filter, in bytes.
pub const MAX_NOTE_BYTES: usize = 500;

/// What a filter is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "action": "pause", "when": "type = mail and options.to ~ \"@example\\.org$\"", "priority": 10, "note": "their server is moved"
}))]
pub struct PutFilter {
    /// What it does with the jobs that its condition holds for.
    pub action: Action,
    /// `rate_limit`: how many of these jobs run at the same time, at most. Only there, and required.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Its condition; for all jobs if it is left out or empty. Comparisons of `id`, `type`, `tenant`, `user`, `reason` and `options.NAME` (names
    /// between dots) by `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (a regular expression is found in it) and `!~` with a number, a word, or text
    /// between quotes; with `and`, `or`, `not` and parentheses.
    #[serde(default)]
    #[schema(max_length = 4000)]
    pub when: String,
    /// Lower ones are asked first; among equals those with the lower watermark, then by name.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(minimum = -1000, maximum = 1000)]
    pub priority: i32,
    /// Only about jobs that were added at this time or later, in µs since the Unix epoch; 0: about all.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub watermark_us: i64,
    /// Why it is there, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 500)]
    pub note: Option<String>,
}

/// What a filter does with the jobs that its condition holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// They may run, whatever later filters say.
    Accept,
    /// They do not start as long as the filter is there; what runs goes on.
    Pause,
    /// They are cancelled.
    Reject,
    /// The next filters are asked.
    Continue,
    /// They start while fewer of them run than `limit`; the others are held back, and start as these end.
    RateLimit,
}

impl Action {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Accept => "accept",
            Action::Pause => "pause",
            Action::Reject => "reject",
            Action::Continue => "continue",
            Action::RateLimit => "rate_limit",
        }
    }
}

impl<'de> Deserialize<'de> for Action {
    /// From a string alone: a derived one would take an object, too.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match std::borrow::Cow::<str>::deserialize(deserializer)?.as_ref() {
            "accept" => Ok(Action::Accept),
            "pause" => Ok(Action::Pause),
            "reject" => Ok(Action::Reject),
            "continue" => Ok(Action::Continue),
            "rate_limit" => Ok(Action::RateLimit),
            _ => Err(serde::de::Error::custom(
                "expected `accept`, `pause`, `reject`, `continue` or `rate_limit`",
            )),
        }
    }
}

/// A job filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Filter {
    /// Its name.
    pub id: String,
    /// What it does.
    pub action: Action,
    /// `rate_limit`: how many of these jobs run at the same time, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limit: Option<u32>,
    /// Its condition; empty: for all jobs.
    pub when: String,
    /// Lower ones are asked first.
    pub priority: i32,
    /// Only about jobs that were added at this time or later, in µs; 0: about all.
    pub watermark_us: i64,
    /// Why it is there, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// What holds a job back until there is room: so many jobs of a bucket run, and no more of it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limited {
    /// What limits it.
    pub by: LimitedBy,
    /// The filter's name, or the bucket's.
    pub name: String,
    /// So many may run at the same time.
    pub limit: u32,
    /// So many do; told by `why` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub running: Option<usize>,
}

/// What limits a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitedBy {
    /// A filter.
    Filter,
    /// A reason of its own, `rate-limit:n:name`.
    Reason,
}

/// All filters, in the order in which they are asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Filters {
    /// The first whose condition holds for a job decides.
    pub filters: Vec<Filter>,
}

/// What removing a filter came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedFilter {
    /// It is gone.
    pub removed: bool,
}
