//! Changes of jobs that do not run: edits, holds and releases.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::answer::answers;
use crate::jobs::{Backoff, OnLost, State};
use crate::number::Whole;

/// Changes of a job. What is left out stays as it is, and `null` puts a member back to what it is for a job that states nothing. Each member has the
/// bounds that it has when a job is added.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "options": { "to": "jan@example.org" }, "max_attempts": 9, "timeout_ms": null }))]
pub struct EditJob {
    /// The input of the job's handler, as a whole. `null` stands for `{}`. The locks that the catalogue derives from options follow.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub options: Option<Option<Box<RawValue>>>,
    /// The description for lists: an object of at most 12 kB, without secrets.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub summary: Option<Option<Box<RawValue>>>,
    /// The priority: -20 to 19.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i32>, minimum = -20, maximum = 19)]
    pub priority: Option<Option<i32>>,
    /// The job does not start before this time, in µs since the Unix epoch. `null` ends the wait for a time, also that for the end of a backoff.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 253_402_300_799_999_999_i64)]
    pub not_before_us: Option<Option<i64>>,
    /// The same, in ms from now on. If both are given, the later time applies.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, maximum = 315_360_000_000_u64)]
    pub delay_ms: Option<Option<u64>>,
    /// The number of the job's last attempt; 0 retries it without limit. Attempts of the past count.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 1_000_000)]
    pub max_attempts: Option<Option<u32>>,
    /// How long the job waits after its consecutive crashes, from the next one on.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Backoff>)]
    pub backoff: Option<Option<Backoff>>,
    /// Whether each wait is up to a tenth longer.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub jitter: Option<Option<bool>>,
    /// What happens if the job's worker is lost.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OnLost>)]
    pub on_lost: Option<Option<OnLost>>,
    /// How often the job may be snoozed.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 1_000_000)]
    pub max_snoozes: Option<Option<u32>>,
    /// Longest run, in ms.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31_536_000_000_u64)]
    pub timeout_ms: Option<Option<u64>>,
    /// Longest time between two reports of a run, in ms.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31_536_000_000_u64)]
    pub heartbeat_timeout_ms: Option<Option<u64>>,
    /// Within which time the job must start, in ms, from now on, or from its start time on.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 315_360_000_000_u64)]
    pub start_within_ms: Option<Option<u64>>,
    /// How long its record is kept after its end, in ms.
    #[serde(default, deserialize_with = "number", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 0, maximum = 315_360_000_000_u64)]
    pub keep_ms: Option<Option<u64>>,
}

/// A member that is there, perhaps as null.
fn stated<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// The same for a whole number.
fn number<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    let number: Option<Whole<T>> = Option::deserialize(deserializer)?;
    Ok(Some(number.map(|Whole(number)| number)))
}

answers! {
    /// The result of holding or releasing a job.
    #[derive(PartialEq, Eq)]
    pub struct HeldJob {
        /// The state now: `paused` for a job that is held, unless it is `blocked`.
        pub state: State,
        /// `client` or `operator` if one of them holds the job; otherwise the filter that pauses it.
        pub paused_by: Option<String>,
    }
}
