//! Failed jobs by the class of their reason, counted from the rows of ended jobs without reading the jobs.

use std::collections::HashMap;

use turnwise_store::{RangeRead, Step, Transaction};

use crate::ended::{CoverRef, partitions};
use crate::jobs::peek;
use crate::keyspace::KeyRange;
use crate::keyspace::elements::{Elements, not_of_its_index};
use crate::listing::Sees;
use crate::place::End;
use crate::{Job, Keyspace, Result};

/// The most rows that are read: about 50 ms on the embedded store.
pub const MAX_LOOKED_AT: usize = 50_000;
/// Rows per read.
const PAGE: usize = 1_000;
/// The fewest rows that each partition contributes.
const MIN_PER_PARTITION: usize = 100;

/// Failed jobs whose reasons are of one class.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The class.
    pub class: String,
    /// How many they are.
    pub jobs: u64,
    /// When the latest of them failed, in µs.
    pub latest_us: i64,
    /// The latest of them.
    pub example: Job,
}

/// The most frequent failures.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    /// The most frequent first.
    pub failures: Vec<Failure>,
    /// How many failed jobs were looked at, without those that the reader does not see.
    pub looked_at: u64,
    /// Whether these were all. If not, those that failed last were looked at.
    pub complete: bool,
    /// Whether there are more classes than were asked for.
    pub more: bool,
}

/// A class while it is counted.
struct Group {
    jobs: u64,
    latest_us: i64,
    job_type: usize,
    id: String,
}

/// The `most` most frequent classes of failures of these types and tenants. Adds no read conflict.
pub async fn most_frequent(
    tx: &Transaction,
    keys: &Keyspace,
    types: &[String],
    tenants: Option<&[String]>,
    sees: Sees<'_>,
    most: usize,
) -> Result<Failures> {
    let mut ranges: Vec<(usize, KeyRange)> = Vec::new();
    for (number, job_type) in types.iter().enumerate() {
        for partition in partitions(End::Failed, tenants, None).into_iter().flatten() {
            ranges.push((number, keys.ended_in(job_type, &(partition..=partition))));
        }
    }
    let per_range = (MAX_LOOKED_AT / ranges.len().max(1)).max(MIN_PER_PARTITION);
    let mut counted = Failures { complete: true, ..Failures::default() };
    let mut groups: HashMap<u32, Group> = HashMap::new();
    let page = per_range.min(PAGE);
    let first = |(_, (begin, end)): &(usize, KeyRange)| RangeRead {
        begin: begin.clone(),
        end: end.clone(),
        limit: page,
        reverse: true,
    };
    tx.prefetch_ranges(ranges.iter().map(first).collect::<Vec<_>>()).await?;
    for (job_type, range) in ranges {
        let partition_at = keys.ended(&types[job_type]).0.len() - 1;
        let mut left = per_range;
        let mut visit = |key: &[u8], value: &[u8], _: &mut Vec<u8>| {
            if left == 0 {
                counted.complete = false;
                return Ok(Step::End);
            }
            left -= 1;
            let Some(CoverRef { tenant, class: Some(class) }) = CoverRef::read(value) else {
                return Ok(Step::Next);
            };
            let is_wanted = tenants.is_none_or(|tenants| tenants.iter().any(|name| *name == tenant));
            if !is_wanted || !sees(&tenant) {
                return Ok(Step::Next);
            }
            counted.looked_at += 1;
            let mut elements = Elements::at(key, partition_at);
            let mut time = || elements.int().and_then(|_| elements.int());
            let ended_us = time().ok_or_else(not_of_its_index)?;
            let group = groups.entry(class).or_insert_with(|| Group {
                jobs: 0,
                latest_us: i64::MIN,
                job_type,
                id: String::new(),
            });
            group.jobs += 1;
            if ended_us > group.latest_us {
                let id = elements.text().ok_or_else(not_of_its_index)?;
                (group.latest_us, group.job_type, group.id) = (ended_us, job_type, id.into_owned());
            }
            Ok(Step::Next)
        };
        tx.walk(range, true, page, &mut visit).await?;
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| (b.jobs, b.latest_us, &b.id).cmp(&(a.jobs, a.latest_us, &a.id)));
    counted.more = groups.len() > most;
    for Group { jobs, latest_us, job_type, id } in groups.into_iter().take(most) {
        let Some(example) = peek(tx, keys, &types[job_type], &id).await? else { continue };
        let class = example.reason_class().unwrap_or_default();
        counted.failures.push(Failure { class, jobs, latest_us, example });
    }
    Ok(counted)
}
