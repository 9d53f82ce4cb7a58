//! Unique keys: jobs of which only one may exist at a time.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::word::words;

/// The most pointers that make a unique key.
pub const MAX_UNIQUE_OF: usize = 8;

/// A unique key: while a job holds it, no other one with the same key is added. The tenant is part of each key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "mode": "while_waiting", "of": ["/customer"], "on_conflict": "replace" }))]
pub struct Unique {
    /// How long the job holds the key.
    pub mode: UniqueMode,
    /// `period`, and only then: for how long, in ms; at most 31 days.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_678_400_000_u64)]
    pub period_ms: Option<u64>,
    /// The key: a text of at most 256 bytes, without secrets. Without it and `of`, the key is made of all options; the order of members does not
    /// count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub key: Option<String>,
    /// The key is made of these members of the options: 1 to 8 JSON pointers of at most 128 bytes each. A member that is missing is not the same as one
    /// that is null.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 8)]
    pub of: Vec<String>,
    /// Which jobs of the tenant have one key if they state the same.
    #[serde(default)]
    #[schema(default = "type")]
    pub within: UniqueWithin,
    /// What happens if another job has the key.
    #[serde(default)]
    #[schema(default = "keep")]
    pub on_conflict: OnConflict,
}

words! {
    /// How long a job holds its unique key.
    pub enum UniqueMode {
        /// Until a worker starts it. When a run ends and the job waits again, it takes the key again, if no other job has it by then.
        WhileWaiting = "while_waiting",
        /// Until it has ended, or is removed.
        UntilEnd = "until_end",
        /// For a time after it was added, also if it has ended and its record is gone. If a client removes the job, the key is free.
        Period = "period",
    }
}

words! {
    /// Which jobs have one key if they state the same. They are always of one tenant.
    #[derive(Default)]
    pub enum UniqueWithin {
        /// The tenant's jobs of this type.
        #[default]
        Type = "type",
        /// Those of this task of the type.
        Task = "task",
        /// All jobs of the tenant.
        Tenant = "tenant",
    }
}

words! {
    /// What happens if another job has the unique key of a job that is added. With `after` of the job, only `keep` and `reject` are possible.
    #[derive(Default)]
    pub enum OnConflict {
        /// The job is not added.
        #[default]
        Keep = "keep",
        /// The other job, if it waits, takes the options, the summary, the locks and the start time of the request. A job that runs is kept.
        Replace = "replace",
        /// The request is refused with 409. So is `replace` or `after`, if the other job is of another type.
        Reject = "reject",
        /// The other job, if it runs, runs once more after it has ended, with what the request states. A job that waits is kept.
        After = "after",
    }
}

words! {
    /// What happened to the job that has the unique key.
    pub enum FoundDid {
        /// Nothing.
        Kept = "kept",
        /// It has the options, the summary, the locks and the start time of the request.
        Replaced = "replaced",
        /// It runs once more after it has ended, with what the request states.
        RunsAgain = "runs_again",
    }
}

answers! {
    /// Why a job was found in place of the one that was to be added.
    #[derive(PartialEq, Eq)]
    pub struct Found {
        /// How long the found job has the key.
        pub mode: UniqueMode,
        /// The end of its period, in µs since the Unix epoch. The job may be gone by now.
        pub until_us: Option<i64>,
        /// What happened to it.
        pub did: FoundDid,
    }
}
