//! Whether the counts of jobs are those of the jobs.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use turnwise_store::{Error, Sum};

use super::{Finding, Invariant, Row};
use crate::Keyspace;
use crate::counts::{Counts, Kind, one};
use crate::rows::decode_job;

/// Type and tenant.
type Of = (String, String);

/// Compares the jobs of each type and tenant with their counts.
#[derive(Debug, Default)]
pub struct CountTally {
    /// What the jobs add up to, and what is stored.
    sums: BTreeMap<Of, (Sum, Sum)>,
    changed: BTreeSet<Of>,
}

impl CountTally {
    /// Enters a change of a row, or a row that is there as one that is new. Rows that cannot be read count nothing.
    pub fn enter(&mut self, row: &Row, old: Option<&Bytes>, new: Option<&Bytes>) {
        match row {
            Row::Job((job_type, _)) => {
                let read = |value: &Bytes| decode_job(value).ok();
                if let Some(job) = old.and_then(read) {
                    self.of(job_type, &job.tenant).0 += -one(&job.place);
                }
                if let Some(job) = new.and_then(read) {
                    self.of(job_type, &job.tenant).0 += one(&job.place);
                }
            }
            Row::Counts(job_type, tenant) => {
                let stored = &mut self.of(job_type, tenant).1;
                let read = |value: &Bytes| Sum::read(value).unwrap_or_default();
                *stored += -old.map(read).unwrap_or_default();
                *stored += new.map(read).unwrap_or_default();
            }
            _ => {}
        }
    }

    fn of(&mut self, job_type: &str, tenant: &str) -> &mut (Sum, Sum) {
        let of = (job_type.to_owned(), tenant.to_owned());
        self.changed.insert(of.clone());
        self.sums.entry(of).or_default()
    }

    /// The findings about the types and tenants that have changed since the last call, each with its type.
    pub fn differences(&mut self, keys: &Keyspace) -> Vec<(String, Finding)> {
        let mut findings = Vec::new();
        for of in std::mem::take(&mut self.changed) {
            let Some((jobs, stored)) = self.sums.get(&of) else { continue };
            if jobs != stored {
                let finding = different(keys, &of, &Counts::of_sum(jobs), &Counts::of_sum(stored));
                findings.push((of.0, finding));
            } else if jobs.is_zero() {
                self.sums.remove(&of);
            }
        }
        findings
    }
}

fn different(keys: &Keyspace, (job_type, tenant): &Of, jobs: &Counts, stored: &Counts) -> Finding {
    let differ = Kind::ALL.into_iter().filter(|kind| jobs[*kind] != stored[*kind]);
    let differ: Vec<_> = differ
        .map(|kind| format!("{} are {}, and counted as {}", jobs[kind], kind.name(), stored[kind]))
        .collect();
    Finding::new(Invariant::JobsCounted, &keys.counts_of(job_type, tenant), differ.join("; "))
}

/// Checks a row of counts by itself.
pub(super) fn check_counts(key: &[u8], value: &[u8]) -> Option<Finding> {
    let problem = match Sum::read(value) {
        Ok(_) => return None,
        Err(Error::Corrupt(problem)) => problem,
        Err(error) => error.to_string(),
    };
    Some(Finding::new(Invariant::Readable, key, problem))
}
