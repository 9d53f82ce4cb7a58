//! Invariants of the rows of one worker.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Finding, Invariant, JobKey, WorkerRow};
use crate::{Active, Health, Keyspace, Worker};

/// Size of a versionstamp.
const STAMP_BYTES: usize = 10;

impl WorkerRow {
    /// Its key.
    pub fn key(self, keys: &Keyspace, (job_type, worker): &JobKey) -> Bytes {
        match self {
            WorkerRow::Member => keys.worker(job_type, worker),
            WorkerRow::Health => keys.health(job_type, worker),
            WorkerRow::Signal => keys.signal(job_type, worker),
            WorkerRow::Claims => keys.claim_number(job_type, worker),
        }
    }
}

/// A worker's row.
pub(super) fn read_worker(key: &JobKey, value: &[u8]) -> Result<Worker, serde_json::Error> {
    let mut worker: Worker = serde_json::from_slice(value)?;
    worker.id.clone_from(&key.1);
    Ok(worker)
}

/// Checks the rows of one worker, read in one snapshot. A health row alone is no finding: the worker is being removed, and
/// its watcher continues the removal.
pub fn check_worker(keys: &Keyspace, key: &JobKey, rows: &BTreeMap<WorkerRow, Bytes>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |invariant, row: WorkerRow, problem: String| {
        findings.push(Finding::new(invariant, &row.key(keys, key), problem));
    };
    let health = rows.get(&WorkerRow::Health).map(|value| serde_json::from_slice::<Health>(value));
    if let Some(Err(error)) = &health {
        found(Invariant::Readable, WorkerRow::Health, format!("it is not a health row: {error}"));
    }
    if let Some(value) = rows.get(&WorkerRow::Claims)
        && let Err(error) = serde_json::from_slice::<u64>(value)
    {
        found(Invariant::Readable, WorkerRow::Claims, format!("it is not the number of a claim: {error}"));
    }
    if let Some(value) = rows.get(&WorkerRow::Signal) {
        let row = WorkerRow::Signal.key(keys, key);
        findings.extend(check_stamp(&row, Some(value)));
    }
    let mut found = |invariant, row: WorkerRow, problem: String| {
        findings.push(Finding::new(invariant, &row.key(keys, key), problem));
    };
    let Some(member) = rows.get(&WorkerRow::Member) else {
        if health.is_none() {
            for row in rows.keys() {
                found(Invariant::Outlived, *row, "the worker has no health row".to_owned());
            }
        }
        return findings;
    };
    match (read_worker(key, member), health) {
        (Err(error), _) => {
            found(Invariant::Readable, WorkerRow::Member, format!("it is not a worker's row: {error}"))
        }
        (Ok(_), None) => {
            found(Invariant::MemberHealthy, WorkerRow::Member, "it has no health row".to_owned())
        }
        (Ok(worker), Some(Ok(health)))
            if (worker.health_timeout_us, worker.external) != (health.timeout_us, health.external) =>
        {
            let problem = format!(
                "its timeout is {} µs and the worker's is {} µs; `external` is {} and {}",
                health.timeout_us, worker.health_timeout_us, health.external, worker.external
            );
            found(Invariant::WorkerAgrees, WorkerRow::Health, problem);
        }
        (Ok(_), Some(_)) => {}
    }
    findings
}

/// Checks a watched key of a type that has workers or waiting jobs.
pub fn check_stamp(key: &[u8], value: Option<&Bytes>) -> Option<Finding> {
    let problem = match value {
        Some(value) if value.len() == STAMP_BYTES => return None,
        Some(value) => format!("it has {} bytes, and a versionstamp has {STAMP_BYTES}", value.len()),
        None => "the row is missing".to_owned(),
    };
    Some(Finding::new(Invariant::Stamped, key, problem))
}

/// Checks the claims of one worker: its active rows by job id, and its latest claim number, if the store counts them.
pub fn check_claims(
    keys: &Keyspace,
    key: &JobKey,
    active: &BTreeMap<String, Active>,
    counted: Option<u64>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut jobs: BTreeMap<u64, &String> = BTreeMap::new();
    for (id, active) in active {
        let row = keys.active_entry(&key.0, &key.1, id);
        let number = active.claim;
        if let Some(other) = jobs.insert(number, id) {
            let problem = format!("job {other:?} has claim {number}, too");
            findings.push(Finding::new(Invariant::ClaimUnique, &row, problem));
        }
        if let Some(counted) = counted.filter(|counted| *counted < number) {
            let problem = format!("it has claim {number}, and the worker's latest is {counted}");
            findings.push(Finding::new(Invariant::ClaimCounted, &row, problem));
        }
    }
    findings
}
