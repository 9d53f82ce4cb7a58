//! What is stated of all jobs of a type.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::jobs::{Backoff, OnLost};

/// What holds for the jobs of a type that do not state it themselves. What is left out is the server's setting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "max_attempts": 5, "backoff": { "list_ms": [5000, 30000, 300_000] }, "timeout_ms": 60_000 }))]
pub struct TypeTerms {
    /// The number of a job's last attempt; 0 retries it without limit.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub max_attempts: Option<u32>,
    /// How long a job waits after its consecutive crashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Whether each wait is up to a tenth longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<bool>,
    /// What happens if a job's worker is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<OnLost>,
    /// How often a job may be snoozed.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub max_snoozes: Option<u32>,
    /// Longest run, in ms.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub timeout_ms: Option<u64>,
    /// Longest time between two reports of a run, in ms.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    pub heartbeat_timeout_ms: Option<u64>,
    /// Classes of errors after which a job is not tried again, whatever its worker says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 20)]
    pub final_errors: Vec<String>,
    /// Members of the options that no one but a job's worker sees, as JSON pointers: `"/smtp/password"`. `*` stands for any member or element. `"/"`
    /// hides all options. Holds at once, also for jobs that were added before. Without any, all options are shown to those who may change the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub secrets: Vec<String>,
}

answers! {
    /// A type of which something is stated.
    #[derive(PartialEq)]
    pub struct StatedType {
        /// The type.
        #[serde(rename = "type")]
        pub job_type: String,
        /// What is stated.
        pub terms: TypeTerms,
        /// The identity that wrote this. Missing on a server without identities.
        pub by: Option<String>,
        /// When it was written, in µs since the Unix epoch.
        pub changed_us: i64,
    }
}

/// The types of which something is stated, sorted: at most 1,000.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatedTypes {
    /// The types.
    pub types: Vec<StatedType>,
}

/// The result of stating nothing of a type any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedTerms {
    /// Whether something was stated.
    pub removed: bool,
}
