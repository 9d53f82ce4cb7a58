//! Checks all rows of a small store.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{
    Finding, IndexRow, Invariant, JobKey, JobRows, LockTally, RateTally, Row, WorkerRow, check_awaited,
    check_boost, check_claims, check_clock, check_job, check_learnt, check_stamp, check_usage, check_waiting,
    check_worker,
};
use crate::{Active, Keyspace};

/// Checks every job, worker and type of a store, given all of its rows. Holds all of them in memory: for tests and
/// simulations. Rows of `_replicator` databases are parsed, but not checked.
pub fn check_rows(keys: &Keyspace, rows: &[(Bytes, Bytes)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut jobs: BTreeMap<JobKey, JobRows> = BTreeMap::new();
    let mut workers: BTreeMap<JobKey, BTreeMap<WorkerRow, Bytes>> = BTreeMap::new();
    let mut active: BTreeMap<JobKey, BTreeMap<String, Active>> = BTreeMap::new();
    let mut stamps: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    let mut waiting: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    let mut locks = LockTally::default();
    let mut rates = RateTally::default();
    let mut unsettled: BTreeSet<(JobKey, i64)> = BTreeSet::new();
    for (key, value) in rows {
        match Row::parse(keys, key) {
            None => {
                findings.push(Finding::new(Invariant::Known, key, "no key of this release looks like this"))
            }
            Some(Row::Worker(worker, row)) => {
                drop(workers.entry(worker).or_default().insert(row, value.clone()))
            }
            Some(
                row @ (Row::Job(_)
                | Row::Options(..)
                | Row::Index(..)
                | Row::Parked(..)
                | Row::Unwatched(..)
                | Row::Lock(..)
                | Row::LockQueue(..)
                | Row::Rate(..)
                | Row::Deadline(..)
                | Row::After(..)
                | Row::Dependent(..)),
            ) => {
                let Some(job) = row.of_job().cloned() else { continue };
                findings.extend(locks.enter(key, &row, value));
                rates.enter(&row, value);
                if let Row::Index(_, IndexRow::Active(worker)) = &row
                    && let Ok(report) = serde_json::from_slice(value)
                {
                    let worker = (job.0.clone(), worker.clone());
                    active.entry(worker).or_default().insert(job.1.clone(), report);
                }
                // A record that cannot be read is reported with its job.
                let _ = jobs.entry(job).or_default().add(row, value);
            }
            Some(Row::Unsettled(on, group)) => drop(unsettled.insert((on, group))),
            Some(Row::Wake(_) | Row::Membership(_) | Row::UnwatchedWake(_) | Row::UnsettledWake) => {
                drop(stamps.insert(key.clone(), value.clone()))
            }
            Some(row @ Row::Roomy(..)) => {
                findings.extend(check_stamp(key, Some(value)));
                rates.enter(&row, value);
            }
            Some(Row::LockWake | Row::FilterStamp) => findings.extend(check_stamp(key, Some(value))),
            Some(Row::Waiting(..)) => drop(waiting.insert(key.clone(), value.clone())),
            Some(Row::Learnt(slot)) => findings.extend(check_learnt(key, slot, value)),
            Some(Row::Usage(..)) => findings.extend(check_usage(key, value)),
            Some(row @ Row::Unmarked(_)) => rates.enter(&row, value),
            Some(Row::Boost(_)) => findings.extend(check_boost(key, value)),
            Some(Row::Clock) => findings.extend(check_clock(key, value)),
            Some(_) => {}
        }
    }
    findings.extend(locks.finish());
    findings.extend(rates.finish(keys));
    for (job, rows) in &jobs {
        findings.extend(check_job(keys, job, rows, |worker| workers.contains_key(worker)));
    }
    for (job, rows) in &jobs {
        for awaited in &rows.after {
            let other = jobs.get(&awaited.0).and_then(|rows| rows.record.as_ref());
            findings.extend(check_awaited(keys, job, awaited, other, unsettled.contains(awaited)));
        }
    }
    for (worker, rows) in &workers {
        findings.extend(check_worker(keys, worker, rows));
    }
    for (worker, active) in &active {
        let counted = workers.get(worker).and_then(|rows| rows.get(&WorkerRow::Claims));
        let counted = counted.and_then(|value| serde_json::from_slice(value).ok());
        findings.extend(check_claims(keys, worker, active, counted));
    }
    let pending = jobs.iter().flat_map(|(job, rows)| {
        rows.places.keys().filter_map(|place| match place {
            IndexRow::Pending(place) => Some(keys.waiting_entry(&job.0, &place.tenant)),
            _ => None,
        })
    });
    let tenants: BTreeSet<Bytes> = pending.chain(waiting.keys().cloned()).collect();
    for key in tenants {
        findings.extend(check_waiting(&key, waiting.get(&key)));
    }
    let waits = |place: &IndexRow| matches!(place, IndexRow::Pending(_) | IndexRow::Delayed(_));
    let woken =
        jobs.iter().filter(|(_, rows)| rows.places.keys().any(waits)).map(|(job, _)| keys.wake(&job.0));
    let parked = jobs.iter().filter(|(_, rows)| !rows.unwatched.is_empty());
    let watchers = parked.map(|(job, _)| keys.unwatched_wake(&job.0));
    let memberships = workers.keys().map(|worker| keys.workers_versionstamp(&worker.0));
    let watched: BTreeSet<Bytes> =
        woken.chain(watchers).chain(memberships).chain(stamps.keys().cloned()).collect();
    for key in watched {
        findings.extend(check_stamp(&key, stamps.get(&key)));
    }
    if !unsettled.is_empty() {
        let wake = keys.unsettled_wake();
        findings.extend(check_stamp(&wake, stamps.get(&wake)));
    }
    findings
}
