//! Whether the counts of jobs are those of the jobs.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use turnwise_store::{Error, Sum};

use super::{Finding, Invariant, Row};
use crate::Keyspace;
use crate::counts::{Counts, Kind, one};
use crate::group_counts;
use crate::groups::Group;
use crate::member::{GroupCounts, numbered};
use crate::place::{End, Place};
use crate::rows::decode_job;

/// Type and tenant.
type Of = (String, String);

/// Compares the jobs of each type and tenant with their counts.
#[derive(Debug, Default)]
pub struct CountTally {
    /// What the jobs add up to, and what is stored.
    sums: BTreeMap<Of, (Sum, Sum)>,
    changed: BTreeSet<Of>,
    /// The same of groups, by tenant, and name and number in one text.
    groups: BTreeMap<Of, GroupSums>,
    changed_groups: BTreeSet<Of>,
}

/// The members of a group that exist, and what is stored of all that ever were.
#[derive(Debug, Default, Clone, Copy)]
struct GroupSums {
    open: i64,
    completed: i64,
    failed: i64,
    cancelled: i64,
    stored: Sum,
}

impl GroupSums {
    fn of(&mut self, place: &Place) -> &mut i64 {
        match place {
            Place::Ended(End::Completed) => &mut self.completed,
            Place::Ended(End::Failed) => &mut self.failed,
            Place::Ended(End::Cancelled) => &mut self.cancelled,
            _ => &mut self.open,
        }
    }
}

impl CountTally {
    /// Enters a change of a row, or a row that is there as one that is new. Rows that cannot be read count nothing.
    pub fn enter(&mut self, row: &Row, old: Option<&Bytes>, new: Option<&Bytes>) {
        match row {
            Row::Job((job_type, _)) => {
                let read = |value: &Bytes| decode_job(value).ok();
                if let Some(job) = old.and_then(read) {
                    self.of(job_type, &job.tenant).0 += -one(&job.place);
                    if let Some(member) = &job.group {
                        *self.of_group(&job.tenant, &member.name, member.id).of(&job.place) -= 1;
                    }
                }
                if let Some(job) = new.and_then(read) {
                    self.of(job_type, &job.tenant).0 += one(&job.place);
                    if let Some(member) = &job.group {
                        *self.of_group(&job.tenant, &member.name, member.id).of(&job.place) += 1;
                    }
                }
            }
            Row::Group(tenant, _) => {
                // Groups count in those of which they are parts. How they have ended may be forgotten.
                for (value, sign) in [(old, -1), (new, 1)] {
                    let group = value.and_then(|value| serde_json::from_slice::<Group>(value).ok());
                    let group = group.filter(|group| group.ended.is_none());
                    if let Some(parent) = group.and_then(|group| group.parent) {
                        self.of_group(tenant, &parent.name, parent.id).open += sign;
                    }
                }
            }
            Row::GroupCounts(tenant, group) => {
                let of = (tenant.clone(), group.clone());
                self.changed_groups.insert(of.clone());
                let stored = &mut self.groups.entry(of).or_default().stored;
                let read = |value: &Bytes| Sum::read(value).unwrap_or_default();
                *stored += -old.map(read).unwrap_or_default();
                *stored += new.map(read).unwrap_or_default();
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

    fn of_group(&mut self, tenant: &str, name: &str, id: u64) -> &mut GroupSums {
        let of = (tenant.to_owned(), numbered(name, id));
        self.changed_groups.insert(of.clone());
        self.groups.entry(of).or_default()
    }

    /// The findings about the groups that have changed since the last call, each with tenant and name. More of its jobs may have ended than have records.
    pub fn group_differences(&mut self, keys: &Keyspace) -> Vec<((String, String), Finding)> {
        let mut findings = Vec::new();
        for of in std::mem::take(&mut self.changed_groups) {
            let Some(sums) = self.groups.get(&of) else { continue };
            let GroupSums { open, completed, failed, cancelled, stored } = *sums;
            // Jobs that have ended outlive the counts of their group.
            if stored.is_zero() && open == 0 {
                continue;
            }
            let GroupCounts { open: counted, completed: done, failed: lost, cancelled: stopped, .. } =
                group_counts::of_sum(&stored);
            let at_least = |jobs: i64, counted: u64| u64::try_from(jobs).is_ok_and(|jobs| jobs <= counted);
            let all_count =
                at_least(completed, done) && at_least(failed, lost) && at_least(cancelled, stopped);
            if u64::try_from(open) != Ok(counted) || !all_count {
                let problem = format!(
                    "{open} have not ended, and {counted} are counted; {completed}, {failed} and {cancelled} have completed, failed and were                      cancelled, and {done}, {lost} and {stopped} are counted"
                );
                let finding =
                    Finding::new(Invariant::GroupCounted, &keys.group_counts(&of.0, &of.1), problem);
                let name = of.1.rsplit_once('@').map_or(of.1.as_str(), |(name, _)| name).to_owned();
                findings.push(((of.0, name), finding));
            }
        }
        findings
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
