//! Invariants of single rows, which need no other row.

use bytes::Bytes;

use super::count::check_counts;
use super::tenant::check_clock;
use super::{Finding, Row, check_boost, check_stamp, check_usage};

/// Checks a row that needs no other row. Other rows have no findings.
pub fn check_single(key: &[u8], row: &Row, value: &Bytes) -> Option<Finding> {
    match row {
        Row::Wake(_)
        | Row::Membership(_)
        | Row::Waiting(..)
        | Row::Roomy(..)
        | Row::LockWake
        | Row::FilterStamp
        | Row::BulkWake
        | Row::UnsettledWake
        | Row::UnwatchedWake(_)
        | Row::UnresolvedWake
        | Row::CountsGuard
        | Row::EventWake
        | Row::WebhookStamp
        | Row::ConfigStamp => check_stamp(key, Some(value)),
        Row::Counts(..) => check_counts(key, value),
        Row::Usage(..) => check_usage(key, value),
        Row::Boost(_) => check_boost(key, value),
        Row::Clock => check_clock(key, value),
        _ => None,
    }
}
