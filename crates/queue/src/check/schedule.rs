//! Whether the rows of a schedule agree with each other.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Finding, Invariant, PIECE_BYTES, Row};
use crate::Keyspace;
use crate::schedules::{Schedule, index_value};

/// The rows of one schedule.
#[derive(Debug, Default)]
pub struct ScheduleRows {
    /// Its own row, or why that cannot be read.
    own: Option<Result<Schedule, String>>,
    /// The sizes of the pieces of its options.
    pieces: BTreeMap<u32, usize>,
    due: BTreeSet<i64>,
    has_ends: bool,
    /// The tenants for which it is in the index, with the values there.
    tenants: BTreeMap<String, Bytes>,
}

impl ScheduleRows {
    /// Adds a row. Rows of other kinds are ignored.
    pub fn add(&mut self, row: &Row, value: &Bytes) {
        match row {
            Row::Schedule(_) => {
                let read = serde_json::from_slice(value);
                self.own = Some(read.map_err(|error| error.to_string()));
            }
            Row::ScheduleOptions(_, n) => drop(self.pieces.insert(*n, value.len())),
            Row::ScheduleDue(at_us, _) => drop(self.due.insert(*at_us)),
            Row::ScheduleEnds(_) => self.has_ends = true,
            Row::TenantSchedule(tenant, _) => drop(self.tenants.insert(tenant.clone(), value.clone())),
            _ => {}
        }
    }

    /// The keys of the rows that its own row names, beside the pieces of its options.
    pub fn named(&self, keys: &Keyspace, name: &str) -> Vec<Bytes> {
        let Some(Ok(schedule)) = &self.own else { return Vec::new() };
        let due = schedule.next.map(|at_us| keys.schedule_due_entry(at_us, name));
        [keys.tenant_schedule(&schedule.template.spec.tenant, name), keys.schedule_ends(name)]
            .into_iter()
            .chain(due)
            .collect()
    }
}

/// Checks the rows of one schedule.
pub fn check_schedule(keys: &Keyspace, name: &str, rows: &ScheduleRows) -> Vec<Finding> {
    let agrees = |key: Bytes, problem: &str| Finding::new(Invariant::ScheduleAgrees, &key, problem);
    let schedule = match &rows.own {
        Some(Err(error)) => {
            return vec![Finding::new(Invariant::Readable, &keys.schedule(name), error.clone())];
        }
        Some(Ok(schedule)) => Some(schedule),
        None => None,
    };
    let mut findings = Vec::new();
    let next = schedule.and_then(|schedule| schedule.next);
    for at_us in rows.due.iter().filter(|at_us| next != Some(**at_us)) {
        findings.push(agrees(keys.schedule_due_entry(*at_us, name), "the schedule does not fire next then"));
    }
    let tenant = schedule.map(|schedule| schedule.template.spec.tenant.as_str());
    for other in rows.tenants.keys().filter(|other| tenant != Some(other)) {
        findings.push(agrees(keys.tenant_schedule(other, name), "the tenant has no such schedule"));
    }
    let Some(schedule) = schedule else {
        if rows.has_ends {
            findings.push(agrees(keys.schedule_ends(name), "there is no schedule"));
        }
        if !rows.pieces.is_empty() {
            findings.push(agrees(keys.schedule_options_piece(name, 0), "there is no schedule"));
        }
        return findings;
    };
    if let Some(at_us) = next.filter(|at_us| !rows.due.contains(at_us)) {
        findings.push(agrees(keys.schedule_due_entry(at_us, name), "the row is missing"));
    }
    if schedule.paused.is_some() && next.is_some() {
        findings.push(agrees(keys.schedule(name), "it is paused, and has a next instant"));
    }
    let tenant = &schedule.template.spec.tenant;
    if rows.tenants.get(tenant) != Some(&index_value(schedule)) {
        findings
            .push(agrees(keys.tenant_schedule(tenant, name), "the row is missing, or states another pause"));
    }
    if !rows.has_ends {
        findings.push(agrees(keys.schedule_ends(name), "the row is missing"));
    }
    let whole = rows.pieces.iter().zip(0..).all(|((n, bytes), expected)| {
        let is_last = expected as usize + 1 == rows.pieces.len();
        *n == expected && (is_last || *bytes == PIECE_BYTES)
    });
    if !whole || rows.pieces.values().sum::<usize>() != schedule.options_bytes {
        findings.push(agrees(keys.schedule_options_piece(name, 0), "the options are not complete"));
    }
    findings
}
