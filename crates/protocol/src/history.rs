//! What happened over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::word::words;

words! {
    /// The length of the intervals of a history.
    pub enum HistoryStep {
        /// 10 s, kept for a day.
        TenSeconds = "10s",
        /// Five minutes, kept for a week.
        FiveMinutes = "5m",
        /// An hour, kept for 30 days.
        Hour = "1h",
    }
}

answers! {
    /// A part of the history.
    #[derive(PartialEq)]
    pub struct History {
        /// The length of an interval, in s.
        pub step_s: i64,
        /// The upper bounds of the buckets of `waits`, in µs. The last bucket has none.
        pub wait_bounds_us: Vec<u64>,
        /// The intervals, oldest first. Those in which no server ran are missing.
        pub points: Vec<HistoryPoint>,
        /// There are later ones: repeat the request with `from_us` set to this.
        pub next_us: Option<i64>,
    }
}

/// What happened in one interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryPoint {
    /// The begin of the interval, in µs since the Unix epoch.
    pub at_us: i64,
    /// By job type.
    pub types: BTreeMap<String, TypeHistory>,
}

/// What happened with the jobs of a type.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TypeHistory {
    /// Mean numbers of jobs by state, without those that are 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub jobs: BTreeMap<String, f64>,
    /// Slots of the workers.
    #[serde(default)]
    pub slots: f64,
    /// How long the oldest job that could run had waited, in ms; the largest of the interval.
    #[serde(default)]
    pub oldest_ms: u64,
    /// Runs that began.
    #[serde(default)]
    pub claims: u64,
    /// Jobs that completed.
    #[serde(default)]
    pub completed: u64,
    /// Jobs that failed permanently.
    #[serde(default)]
    pub failed: u64,
    /// Runs that crashed.
    #[serde(default)]
    pub crashed: u64,
    /// The run time of the runs that ended, in ms.
    #[serde(default)]
    pub ran_ms: u64,
    /// How many jobs had waited up to each of `wait_bounds_us` when they were claimed. Buckets at the end that are empty are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<u64>,
    /// The tenants with the largest demand: at most 20, and at most 200 of all types.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, TenantHistory>,
}

/// What a tenant was entitled to, and what it received.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TenantHistory {
    /// Slots that it was entitled to, by its shares and its jobs.
    pub entitled: f64,
    /// Slots that it had.
    pub received: f64,
    /// Its pending jobs.
    pub waiting: f64,
}
