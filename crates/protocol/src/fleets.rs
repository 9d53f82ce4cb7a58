//! Fleets: supervisors of worker processes, and what they report about themselves.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most types of a fleet.
pub const MAX_FLEET_TYPES: usize = 100;
/// Longest name of a fleet, in bytes.
pub const MAX_FLEET_NAME_BYTES: usize = 64;
/// Longest text in a report of a fleet, in bytes.
pub const MAX_FLEET_TEXT_BYTES: usize = 300;
/// The longest time after which a fleet that reports nothing more is forgotten, in ms: an hour.
pub const MAX_FLEET_EXPIRY_MS: u64 = 3_600_000;

/// A fleet's report about itself. Each report replaces the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutFleet {
    /// The machine on which it runs; at most 300 bytes.
    pub host: String,
    /// The release that it runs; at most 300 bytes.
    pub version: String,
    /// When it started, in µs since the Unix epoch.
    pub started_us: i64,
    /// How long the report is valid, in ms. The fleet reports again before that.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub expires_ms: u64,
    /// Its types.
    #[schema(max_items = 100)]
    pub types: Vec<FleetType>,
}

/// The workers of a type that a fleet keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "type": "mail", "slots": 4, "min": 0, "max": 20, "target": 5, "running": 5, "stopping": 0, "failures": 0,
    "why": "20 slots are wanted: 20 jobs run, 980 could run, each for about 200 ms"
}))]
pub struct FleetType {
    /// The type of the jobs.
    #[serde(rename = "type")]
    #[schema(value_type = crate::names::JobType)]
    pub job_type: String,
    /// Slots of each process.
    pub slots: u64,
    /// Processes that always run.
    pub min: u64,
    /// Most processes.
    pub max: u64,
    /// Processes that the fleet wants to run now.
    pub target: u64,
    /// Processes that run, without those that stop.
    pub running: u64,
    /// Processes that finish their jobs and stop.
    pub stopping: u64,
    /// How many times in a row the command has ended soon after its start.
    pub failures: u64,
    /// Why the target is what it is, and what holds up a start; at most 300 bytes.
    pub why: String,
}

/// A fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fleet {
    /// Its name.
    pub name: String,
    /// The machine on which it runs.
    pub host: String,
    /// The release that it runs.
    pub version: String,
    /// When it started, in µs since the Unix epoch.
    pub started_us: i64,
    /// When it reported last, in µs since the Unix epoch.
    pub seen_us: i64,
    /// Its types.
    pub types: Vec<FleetType>,
}

/// The fleets of a store, in the order of their names. A fleet that has not reported for its time is not listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fleets {
    /// The fleets.
    pub fleets: Vec<Fleet>,
}

/// The response to the removal of a fleet's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedFleet {
    /// Whether there was one.
    pub removed: bool,
}
