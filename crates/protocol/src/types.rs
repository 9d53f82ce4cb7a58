//! What is stated of all jobs of a type.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::jobs::{Backoff, OnLost};
use crate::names::WorkerId;

/// Defines [`TaskTerms`] with these members, and [`TypeTerms`] with these members and those of a type.
macro_rules! terms {
    ($($(#[$attribute:meta])* pub $field:ident: $type:ty,)+) => {
        /// What holds for the jobs of a task that do not state it themselves. What is left out is what holds for the type.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        #[schema(example = json!({ "max_attempts": 3, "timeout_ms": 60_000 }))]
        pub struct TaskTerms {
            $($(#[$attribute])* pub $field: $type,)+
        }

        /// What holds for the jobs of a type that do not state it themselves. What is left out is the server's setting.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        #[schema(example = json!({
            "max_attempts": 5,
            "backoff": { "list_ms": [5000, 30000, 300_000] },
            "timeout_ms": 60_000,
            "tasks": { "thumbnail": { "max_attempts": 2 } }
        }))]
        pub struct TypeTerms {
            $($(#[$attribute])* pub $field: $type,)+
            /// What holds for the jobs of some tasks, by task: at most 200.
            #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
            pub tasks: BTreeMap<String, TaskTerms>,
            /// Members of the options that no one but a job's worker sees, as JSON pointers: `"/smtp/password"`. `*` stands for any member or element. `"/"`
            /// hides all options. Holds at once, also for jobs that were added before. Without any, all options are shown to those who may change the job.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[schema(max_items = 100)]
            pub secrets: Vec<String>,
        }

        impl TypeTerms {
            /// Those of its members that a task may have, too.
            pub fn terms(self) -> TaskTerms {
                TaskTerms { $($field: self.$field),+ }
            }

            /// These terms, without any of a task or of options.
            pub fn of(terms: TaskTerms) -> TypeTerms {
                TypeTerms { $($field: terms.$field,)+ ..TypeTerms::default() }
            }
        }
    };
}

terms! {
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
    /// A job that is added from now on fails unless it starts within this time, in ms.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000_000_u64)]
    pub start_within_ms: Option<u64>,
    /// How long a job's record is kept after its end, in ms. That of a type replaces the server's retention; a job, or a task, can only state a shorter
    /// time.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 315_360_000_000_u64)]
    pub keep_ms: Option<u64>,
    /// Classes of errors after which a job is not tried again, whatever its worker says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 20)]
    pub final_errors: Vec<String>,
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
        /// The terms of tasks that workers have stated when they registered: the worker, and when, by task.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub declared: BTreeMap<String, Declared>,
        /// The identity that wrote this. Missing on a server without identities, and if only workers have stated terms.
        pub by: Option<String>,
        /// When it was written, in µs since the Unix epoch.
        pub changed_us: i64,
    }
}

answers! {
    /// Which worker has stated the terms of a task.
    #[derive(PartialEq, Eq)]
    pub struct Declared {
        /// The worker.
        #[schema(value_type = WorkerId)]
        pub worker: String,
        /// The identity that registered it. Missing on a server without identities.
        pub by: Option<String>,
        /// When, in µs since the Unix epoch.
        pub at_us: i64,
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
