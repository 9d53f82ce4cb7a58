//! Failed jobs by the class of their reason, counted from the rows of ended jobs without reading the jobs.

use std::collections::HashMap;

use bytes::Bytes;
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::ended::{Cover, partitions};
use crate::error::corrupt;
use crate::jobs::peek;
use crate::keyspace::KeyRange;
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

/// The `most` most frequent classes of failures of these types and tenants. Adds no read conflict. Failures that were recorded by formats
/// up to 8 are not counted.
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
    let first = |(_, (begin, end)): &(usize, KeyRange)| read_of(begin, end, per_range.min(PAGE));
    tx.prefetch_ranges(ranges.iter().map(first).collect::<Vec<_>>()).await?;
    for (job_type, (begin, mut end)) in ranges {
        let mut left = per_range;
        while left > 0 {
            let read = read_of(&begin, &end, left.min(PAGE));
            let limit = read.limit;
            let rows = tx.range_with(read, Isolation::Snapshot).await?;
            let is_last = rows.len() < limit;
            left -= rows.len();
            for (key, value) in &rows {
                let Some(Cover::Reason(tenant, class)) = Cover::read(value) else { continue };
                let is_wanted = tenants.is_none_or(|tenants| tenants.contains(&tenant));
                if !is_wanted || !sees(&tenant) {
                    continue;
                }
                counted.looked_at += 1;
                let ended = keys.parse_ended(key).ok_or_else(|| corrupt("ended key", "not of its index"))?;
                let group = groups.entry(class).or_insert_with(|| Group {
                    jobs: 0,
                    latest_us: i64::MIN,
                    job_type,
                    id: String::new(),
                });
                group.jobs += 1;
                if ended.ended_us > group.latest_us {
                    (group.latest_us, group.job_type, group.id) = (ended.ended_us, job_type, ended.id);
                }
            }
            match rows.into_iter().next_back() {
                Some((key, _)) if !is_last => end = key,
                _ => break,
            }
        }
        counted.complete &= left > 0 || is_empty(tx, begin, end).await?;
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

fn read_of(begin: &Bytes, end: &Bytes, limit: usize) -> RangeRead {
    RangeRead { begin: begin.clone(), end: end.clone(), limit, reverse: true }
}

async fn is_empty(tx: &Transaction, begin: Bytes, end: Bytes) -> Result<bool> {
    Ok(tx.range_with(read_of(&begin, &end, 1), Isolation::Snapshot).await?.is_empty())
}
