//! Invariants of the rows of one tenant.

use bytes::Bytes;

use super::{Finding, Invariant, check_stamp};
use crate::usage::{Boost, Charged};

/// Checks the row that marks a tenant as waiting, if the tenant has a pending job or the row exists.
pub fn check_waiting(key: &[u8], value: Option<&Bytes>) -> Option<Finding> {
    match value {
        Some(_) => check_stamp(key, value),
        None => Some(Finding::new(Invariant::TenantWaits, key, "the row is missing")),
    }
}

/// Checks what was charged to a tenant.
pub fn check_usage(key: &[u8], value: &[u8]) -> Option<Finding> {
    let charged: Charged = match serde_json::from_slice(value) {
        Ok(charged) => charged,
        Err(error) => return Some(Finding::new(Invariant::Readable, key, error.to_string())),
    };
    let problem = charged.problem()?;
    Some(Finding::new(Invariant::Charged, key, problem))
}

/// Checks the latest time that any node has used.
pub(super) fn check_clock(key: &[u8], value: &[u8]) -> Option<Finding> {
    let read: Result<i64, _> = serde_json::from_slice(value);
    read.err().map(|error| Finding::new(Invariant::Readable, key, error.to_string()))
}

/// Checks how far keys have been lifted.
pub fn check_boost(key: &[u8], value: &[u8]) -> Option<Finding> {
    let read: Result<Boost, _> = serde_json::from_slice(value);
    read.err().map(|error| Finding::new(Invariant::Readable, key, error.to_string()))
}
