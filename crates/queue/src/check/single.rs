//! Invariants of single rows, which need no other row.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use turnwise_policy::eligibility::concurrency::Bucket;

use super::count::check_counts;
use super::{Finding, Invariant, Row, check_stamp};
use crate::rates::StartCount;
use crate::usage::{Boost, Charged, RunTimes};

/// Checks a row that needs no other row. Other rows have no findings.
pub fn check_single(key: &[u8], row: &Row, value: &Bytes) -> Option<Finding> {
    match row {
        Row::Roomy(_, Bucket::Rate(_)) | Row::Start(..) | Row::Clock => read::<i64>(key, value).err(),
        Row::StartCount(_) => read::<StartCount>(key, value).err(),
        Row::Stamp
        | Row::Wake(_)
        | Row::Membership(_)
        | Row::Waiting(..)
        | Row::Roomy(..)
        | Row::GroupMark(..) => check_stamp(key, Some(value)),
        Row::Counts(..) | Row::GroupCounts(..) => check_counts(key, value),
        Row::Usage(..) => check_usage(key, value),
        Row::RunTimes(_) => check_run_times(key, value),
        Row::Boost(_) => check_boost(key, value),
        _ => None,
    }
}

/// Checks the row that marks a tenant as waiting, if the tenant has a pending job or the row exists.
pub fn check_waiting(key: &[u8], value: Option<&Bytes>) -> Option<Finding> {
    match value {
        Some(_) => check_stamp(key, value),
        None => Some(Finding::new(Invariant::TenantWaits, key, "the row is missing")),
    }
}

/// Checks what was charged to a tenant.
pub fn check_usage(key: &[u8], value: &[u8]) -> Option<Finding> {
    match read::<Charged>(key, value) {
        Ok(charged) => Some(Finding::new(Invariant::Charged, key, charged.problem()?)),
        Err(finding) => Some(finding),
    }
}

/// Checks how long the jobs of tasks run.
fn check_run_times(key: &[u8], value: &[u8]) -> Option<Finding> {
    match read::<RunTimes>(key, value) {
        Ok(times) => {
            let (task, us) = times.iter().find(|(_, us)| !(us.is_finite() && **us >= 0.0))?;
            Some(Finding::new(Invariant::Charged, key, format!("{task} runs {us} µs")))
        }
        Err(finding) => Some(finding),
    }
}

/// Checks how far keys have been lifted.
pub fn check_boost(key: &[u8], value: &[u8]) -> Option<Finding> {
    read::<Boost>(key, value).err()
}

fn read<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, Finding> {
    serde_json::from_slice(value).map_err(|error| Finding::new(Invariant::Readable, key, error.to_string()))
}
