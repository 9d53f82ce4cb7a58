//! Checks all rows of a small store.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{
    BucketTally, CountTally, Finding, Groups, IndexRow, Invariant, JobKey, JobRows, LockTally, Row,
    ScheduleRows, UniqueTally, WorkerRow, check_awaited, check_claims, check_follows, check_group, check_job,
    check_schedule, check_single, check_stamp, check_waiting, check_worker, unique_holder,
};
use crate::{Active, Keyspace};

/// Checks every job, worker and type of a store, given all of its rows. Holds all of them in memory: for tests and
/// simulations. Rows of `_replicator` databases are parsed, but not checked.
pub fn check_rows(keys: &Keyspace, rows: &[(Bytes, Bytes)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut jobs: BTreeMap<JobKey, JobRows> = BTreeMap::new();
    let mut workers: BTreeMap<JobKey, BTreeMap<WorkerRow, Bytes>> = BTreeMap::new();
    let mut active: BTreeMap<JobKey, BTreeMap<String, Active>> = BTreeMap::new();
    let mut present: BTreeSet<&Bytes> = BTreeSet::new();
    let mut locks = LockTally::default();
    let mut buckets = BucketTally::default();
    let mut counts = CountTally::default();
    let mut schedules: BTreeMap<String, ScheduleRows> = BTreeMap::new();
    let mut groups = Groups::new();
    let mut unique = UniqueTally::default();
    let mut unsettled: BTreeSet<(JobKey, i64)> = BTreeSet::new();
    for (key, value) in rows {
        let Some(row) = Row::parse(keys, key) else {
            findings.push(Finding::new(Invariant::Known, key, "no key of this release looks like this"));
            continue;
        };
        findings.extend(check_single(key, &row, value));
        findings.extend(locks.enter(key, &row, value));
        findings.extend(unique.enter(key, &row, value));
        buckets.enter(&row, value);
        counts.enter(&row, None, Some(value));
        if let Row::Index((job_type, id), IndexRow::Active(worker)) = &row
            && let Ok(report) = serde_json::from_slice(value)
        {
            let worker = (job_type.clone(), worker.clone());
            active.entry(worker).or_default().insert(id.clone(), report);
        }
        if let Row::Follower(on, follower) = &row {
            jobs.entry(follower.clone()).or_default().follows.insert(on.clone(), value.is_empty());
        }
        if let Some(job) = row.of_job().cloned() {
            // A record that cannot be read is reported with its job.
            let _ = jobs.entry(job).or_default().add(row, value);
            continue;
        }
        if let Some(name) = row.of_schedule() {
            schedules.entry(name.to_owned()).or_default().add(&row, value);
        }
        if let Some((tenant, name)) = row.of_group() {
            groups.entry((tenant.to_owned(), name.to_owned())).or_default().add(&row, value);
        }
        present.insert(key);
        match row {
            Row::Worker(worker, row) => drop(workers.entry(worker).or_default().insert(row, value.clone())),
            Row::Unsettled(on, group) => drop(unsettled.insert((on, group))),
            Row::Unique(hash) => {
                if let Some(job) = unique_holder(value) {
                    jobs.entry(job).or_default().unique.insert(hash);
                }
            }
            _ => {}
        }
    }
    findings.extend(schedules.iter().flat_map(|(name, rows)| check_schedule(keys, name, rows)));
    let of_groups = groups.iter().flat_map(|((tenant, name), rows)| check_group(keys, (tenant, name), rows));
    findings.extend(of_groups);
    findings.extend(locks.finish());
    findings.extend(buckets.finish(keys));
    findings.extend(unique.finish(keys));
    findings.extend(counts.differences(keys).into_iter().map(|(_, finding)| finding));
    findings.extend(counts.group_differences(keys).into_iter().map(|(_, finding)| finding));
    for (job, rows) in &jobs {
        findings.extend(check_job(keys, job, rows, |worker| workers.contains_key(worker)));
    }
    for (job, rows) in &jobs {
        for awaited in &rows.after {
            let other = jobs.get(&awaited.0).and_then(|rows| rows.record.as_ref());
            findings.extend(check_awaited(keys, job, awaited, other, unsettled.contains(awaited)));
        }
        for (record, input) in rows.record.iter().flat_map(|job| job.inputs.values().map(move |of| (job, of)))
        {
            let on = (input.job_type.clone(), input.id.clone());
            let other = jobs.get(&on).and_then(|rows| rows.record.as_ref());
            findings.extend(check_follows(keys, record, input, other, rows.follows.contains_key(&on)));
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
    let absent = |key: &Bytes| !present.contains(key);
    let tenants: BTreeSet<Bytes> = pending.filter(absent).collect();
    findings.extend(tenants.iter().flat_map(|key| check_waiting(key, None)));
    let waits = |place: &IndexRow| matches!(place, IndexRow::Pending(_) | IndexRow::Delayed(_));
    let woken =
        jobs.iter().filter(|(_, rows)| rows.places.keys().any(waits)).map(|(job, _)| keys.wake(&job.0));
    let parked = jobs.iter().filter(|(_, rows)| !rows.unwatched.is_empty());
    let watchers = parked.map(|(job, _)| keys.unwatched_wake(&job.0));
    let memberships = workers.keys().map(|worker| keys.workers_versionstamp(&worker.0));
    let settlers = unsettled.iter().map(|_| keys.unsettled_wake());
    let watched: BTreeSet<Bytes> =
        woken.chain(watchers).chain(memberships).chain(settlers).filter(absent).collect();
    findings.extend(watched.iter().flat_map(|key| check_stamp(key, None)));
    findings
}
