//! Whether the rows of a group agree with each other.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Finding, Invariant, Row};
use crate::Keyspace;
use crate::groups::{Group, On};

/// The rows of one group, without its counts ([`super::CountTally`]).
#[derive(Debug, Default)]
pub struct GroupRows {
    /// Its own row, or why that cannot be read.
    own: Option<Result<Group, String>>,
    callbacks: BTreeSet<String>,
    removals: BTreeSet<i64>,
    is_marked: bool,
}

/// The rows of all groups, by tenant and name.
pub type Groups = BTreeMap<(String, String), GroupRows>;

impl GroupRows {
    /// Adds a row. Rows of other kinds are ignored.
    pub fn add(&mut self, row: &Row, value: &Bytes) {
        match row {
            Row::Group(..) => {
                let read = serde_json::from_slice(value);
                self.own = Some(read.map_err(|error| error.to_string()));
            }
            Row::GroupCallback(_, _, on) => drop(self.callbacks.insert(on.clone())),
            Row::GroupRemoval(at_us, ..) => drop(self.removals.insert(*at_us)),
            Row::GroupMark(..) => self.is_marked = true,
            _ => {}
        }
    }

    /// The keys of the rows that its own row names.
    pub fn named(&self, keys: &Keyspace, tenant: &str, name: &str) -> Vec<Bytes> {
        let Some(Ok(group)) = &self.own else { return Vec::new() };
        let callbacks = On::ALL.map(|on| keys.group_callback(tenant, name, on.name()));
        let removal = group.removed_us.map(|at_us| keys.group_removal(at_us, tenant, name));
        callbacks.into_iter().chain([keys.group_mark(tenant, name)]).chain(removal).collect()
    }
}

/// Checks the rows of one group.
pub fn check_group(keys: &Keyspace, (tenant, name): (&str, &str), rows: &GroupRows) -> Vec<Finding> {
    let agrees = |key: Bytes, problem: &str| Finding::new(Invariant::GroupAgrees, &key, problem);
    let group = match &rows.own {
        Some(Err(error)) => {
            return vec![Finding::new(Invariant::Readable, &keys.group(tenant, name), error.clone())];
        }
        Some(Ok(group)) => Some(group),
        None => None,
    };
    let mut findings = Vec::new();
    let stated = group.into_iter().flat_map(|group| &group.callbacks).map(|on| on.name().to_owned());
    let stated: BTreeSet<String> = stated.collect();
    for on in stated.symmetric_difference(&rows.callbacks) {
        let problem = "the row is missing, or the group has no such callback";
        findings.push(agrees(keys.group_callback(tenant, name, on), problem));
    }
    let removed_us = group.and_then(|group| group.removed_us);
    for at_us in rows.removals.iter().filter(|at_us| removed_us != Some(**at_us)) {
        findings.push(agrees(keys.group_removal(*at_us, tenant, name), "the group is not removed then"));
    }
    let Some(group) = group else { return findings };
    if let Some(at_us) = removed_us.filter(|at_us| !rows.removals.contains(at_us)) {
        findings.push(agrees(keys.group_removal(at_us, tenant, name), "the row is missing"));
    }
    if group.ended.is_some() != group.removed_us.is_some() || group.ended.is_some() && group.open {
        findings.push(agrees(keys.group(tenant, name), "it has ended, and is open or never removed"));
    }
    // A job that is retried marks a group that has ended, for a moment.
    if group.ended.is_none() && !rows.is_marked {
        findings.push(agrees(keys.group_mark(tenant, name), "the row is missing"));
    }
    findings
}
