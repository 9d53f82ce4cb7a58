//! Failed jobs by their task and the class of their reason, counted from the rows of ended jobs without reading the jobs.

use std::collections::HashMap;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_store::{RangeRead, Step, Transaction};

use crate::ended::{Cover, partitions};
use crate::jobs::peek;
use crate::keyspace::KeyRange;
use crate::keyspace::elements::{Elements, not_of_its_index};
use crate::listing::Sees;
use crate::place::End;
use crate::reason_class::hash;
use crate::{Job, Keyspace, Result};

/// The most rows that are counted, of all types and partitions together: about 50 ms on the embedded store.
pub const MAX_LOOKED_AT: usize = 50_000;
/// Rows per read.
const PAGE: usize = 1_000;

/// Failed jobs of one task, or without a task, whose reasons are of one class.
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
    /// How many failed jobs were looked at, without those that are not asked for and those that the reader does not see.
    pub looked_at: u64,
    /// Whether these were all. If not, those that failed last were looked at.
    pub complete: bool,
    /// Whether there are more than were asked for.
    pub more: bool,
}

/// Failures of one task and class while they are counted.
struct Group {
    jobs: u64,
    latest_us: i64,
    job_type: usize,
    id: String,
}

/// What the rows show.
#[derive(Default)]
struct Counted {
    /// By task and class.
    groups: HashMap<(Option<u32>, u32), Group>,
    looked_at: u64,
    complete: bool,
}

/// The `most` most frequent failures of these types and tenants, and of a task if one is given. Adds no read conflict.
#[boxed]
pub async fn most_frequent<'a>(
    tx: &'a Transaction,
    keys: &Keyspace,
    types: &[String],
    tenants: Option<&[String]>,
    task: Option<&str>,
    sees: Sees<'a>,
    most: usize,
) -> Result<Failures> {
    let of = (types, tenants, task.map(hash));
    let Counted { groups, looked_at, complete } = count(tx, keys, of, sees, MAX_LOOKED_AT).await?;
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| (b.jobs, b.latest_us, &b.id).cmp(&(a.jobs, a.latest_us, &a.id)));
    let mut found = Failures { failures: Vec::new(), looked_at, complete, more: groups.len() > most };
    for Group { jobs, latest_us, job_type, id } in groups.into_iter().take(most) {
        let Some(example) = peek(tx, keys, &types[job_type], &id).await? else { continue };
        let class = example.reason_class().unwrap_or_default();
        found.failures.push(Failure { class, jobs, latest_us, example });
    }
    Ok(found)
}

/// Counts up to `most` rows. All partitions have the same share of them. What some do not need is shared again among those that have more rows.
async fn count(
    tx: &Transaction,
    keys: &Keyspace,
    (types, tenants, of_task): (&[String], Option<&[String]>, Option<u32>),
    sees: Sees<'_>,
    most: usize,
) -> Result<Counted> {
    let mut ranges: Vec<(usize, KeyRange)> = Vec::new();
    for (number, job_type) in types.iter().enumerate() {
        for partition in partitions(End::Failed, tenants, None).into_iter().flatten() {
            ranges.push((number, keys.ended_in(job_type, &(partition..=partition))));
        }
    }
    let mut counted = Counted::default();
    let mut left = most;
    let share_of = |left: usize, ranges: usize| (left / ranges.max(1)).max(1);
    // One row more than the share shows that there are more.
    let page_of = |share: usize| (share + 1).min(PAGE);
    let page = page_of(share_of(left, ranges.len()));
    let first = |(_, (begin, end)): &(usize, KeyRange)| RangeRead {
        begin: begin.clone(),
        end: end.clone(),
        limit: page,
        reverse: true,
    };
    tx.prefetch_ranges(ranges.iter().map(first).collect::<Vec<_>>()).await?;
    while !ranges.is_empty() && left > 0 {
        let share = share_of(left, ranges.len());
        let mut unread = Vec::new();
        for (job_type, (begin, end)) in ranges {
            let partition_at = keys.ended(&types[job_type]).0.len() - 1;
            let share = share.min(left);
            let (mut seen, mut has_more, mut rest_end) = (0, false, end.clone());
            let mut visit = |key: &[u8], value: &[u8], _: &mut Vec<u8>| {
                if seen == share {
                    has_more = true;
                    return Ok(Step::End);
                }
                seen += 1;
                if seen == share {
                    rest_end = Bytes::copy_from_slice(key);
                }
                let Some(Cover { tenant, class: Some(class), task }) = Cover::read(value) else {
                    return Ok(Step::Next);
                };
                let is_wanted = tenants.is_none_or(|tenants| tenants.iter().any(|name| *name == tenant));
                if !is_wanted || of_task.is_some_and(|of| task != Some(of)) || !sees(&tenant) {
                    return Ok(Step::Next);
                }
                counted.looked_at += 1;
                let mut elements = Elements::at(key, partition_at);
                let mut time = || elements.int().and_then(|_| elements.int());
                let ended_us = time().ok_or_else(not_of_its_index)?;
                let group = counted.groups.entry((task, class)).or_insert_with(|| Group {
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
            tx.walk((begin.clone(), end), true, page_of(share), &mut visit).await?;
            left -= seen;
            if has_more {
                unread.push((job_type, (begin, rest_end)));
            }
        }
        ranges = unread;
    }
    counted.complete = ranges.is_empty();
    Ok(counted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use turnwise_store::runtime::Manual;
    use turnwise_store::{Limits, Store};

    use super::*;
    use crate::cover::FIRST_FAILED;
    use crate::ended::PARTITIONS;

    const TYPES: usize = 3;

    /// A store with failed jobs of one class in all partitions of some types, and with many in one partition.
    async fn filled(each: i64, many: i64) -> (tempfile::TempDir, Store, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let options = turnwise_store::embedded::Options { durable: false, ..Default::default() };
        let engine = turnwise_store::embedded::Embedded::open_with(folder.path(), options).unwrap();
        let store = Store::new(engine, Manual::new(1, 0)).with_limits(Limits::DEFAULT);
        let types: Vec<String> = (0..TYPES).map(|n| format!("t{n}")).collect();
        let (tx, keys) = (store.begin().await.unwrap(), Keyspace::default());
        let value = Cover { tenant: "tenant".into(), class: Some(7), task: None }.bytes();
        for job_type in &types {
            for partition in FIRST_FAILED..PARTITIONS {
                let rows =
                    if (job_type.as_str(), partition) == ("t1", FIRST_FAILED + 5) { many } else { each };
                for at_us in 0..rows {
                    tx.set(keys.ended_entry(job_type, partition, at_us, &format!("j{at_us}")), value.clone())
                        .unwrap();
                }
            }
        }
        tx.commit().await.unwrap();
        (folder, store, types)
    }

    async fn counted(store: &Store, types: &[String], most: usize) -> (u64, bool, i64) {
        let tx = store.begin().await.unwrap();
        let counted = count(&tx, &Keyspace::default(), (types, None, None), &|_| true, most).await.unwrap();
        let group = counted.groups.get(&(None, 7));
        assert_eq!(group.map_or(0, |group| group.jobs), counted.looked_at);
        (counted.looked_at, counted.complete, group.map_or(0, |group| group.latest_us))
    }

    #[tokio::test]
    async fn the_bound_is_one_of_all_partitions_together() {
        let (_folder, store, types) = filled(2, 2_500).await;
        let ranges = TYPES * usize::from(PARTITIONS - FIRST_FAILED);
        let all = 2 * (ranges - 1) + 2_500;
        // Fewer than there are partitions, as many, and what one partition has beyond its share.
        for most in [0, 1, ranges / 2, ranges, 3 * ranges, all - 1] {
            let (looked_at, complete, _) = counted(&store, &types, most).await;
            assert_eq!((looked_at, complete), (most as u64, false), "of {all}");
        }
        for most in [all, all + 1, 2 * all] {
            assert_eq!(counted(&store, &types, most).await, (all as u64, true, 2_499));
        }
        // Of each partition, those that failed last.
        assert_eq!(counted(&store, &types, ranges).await.2, 2_499);
        assert_eq!(counted(&store, &[], 9).await, (0, true, 0));
    }
}
