//! Counts of groups that are made again from their jobs.

use std::collections::BTreeMap;

use turnwise_store::{Store, Sum, Transaction};

use crate::encoding::decode;
use crate::group_counts::{self, Field};
use crate::group_row::Group;
use crate::keyspace::behind;
use crate::member::numbered;
use crate::{Job, Keyspace, Result, reads};

/// Rows per read.
const PAGE: usize = 1_000;

/// How many jobs of each group exist, by tenant, and name and number in one text, and by the fields up to `cancelled`.
#[derive(Debug, Default)]
pub(crate) struct Members(BTreeMap<(String, String), [u64; 4]>);

impl Members {
    /// Counts a job.
    pub(crate) fn enter(&mut self, job: &Job) {
        if let Some(member) = &job.group {
            self.of(&job.tenant, numbered(&member.name, member.id))[Field::of(&job.place) as usize] += 1;
        }
    }

    fn of(&mut self, tenant: &str, group: String) -> &mut [u64; 4] {
        self.0.entry((tenant.to_owned(), group)).or_default()
    }
}

/// Writes the counts of all groups: what is open is what exists, and of what has ended at least that. Marks the groups, so that those end of which nothing is open.
pub(crate) async fn rebuild(store: &Store, keys: &Keyspace, mut members: Members) -> Result<()> {
    let mut groups: Vec<Group> = Vec::new();
    let mut rest = keys.groups();
    loop {
        let range = &rest;
        let rows = store.transact(|tx| async move { reads::rows(&tx, range.clone(), PAGE).await }).await?;
        for (key, value) in &rows {
            let (tenant, name) = keys.parse_group(key)?;
            let group = Group { tenant, name, ..decode("group", value)? };
            if let Some(parent) = group.parent.as_ref().filter(|_| group.ended.is_none()) {
                members.of(&group.tenant, numbered(&parent.name, parent.id))[0] += 1;
            }
            groups.push(group);
        }
        match rows.last() {
            Some((last, _)) if rows.len() == PAGE => rest = behind(rest, Some(last.clone())),
            _ => break,
        }
    }
    for group in &groups {
        let text = numbered(&group.name, group.id);
        let exist = members.0.get(&(group.tenant.clone(), text)).copied().unwrap_or_default();
        store.transact(|tx| async move { write(&tx, keys, group, exist).await }).await?;
    }
    Ok(())
}

async fn write(tx: &Transaction, keys: &Keyspace, group: &Group, exist: [u64; 4]) -> Result<()> {
    let stored = group_counts::read(tx, keys, &group.tenant, &group.name, group.id).await?;
    let [open, completed, failed, cancelled] = exist;
    let mut sum = Sum::default();
    for (field, count) in [
        (Field::Open, open),
        (Field::Completed, completed.max(stored.completed)),
        (Field::Failed, failed.max(stored.failed)),
        (Field::Cancelled, cancelled.max(stored.cancelled)),
        (Field::Removed, stored.removed),
        (Field::Failures, stored.failures.max(failed)),
    ] {
        sum += field.more(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let (first, text) = (group.counts_key(keys), numbered(&group.name, group.id));
    tx.clear_range((first.clone(), keys.group_counts_behind(&group.tenant, &text).1))?;
    if !sum.is_zero() {
        tx.set(first, sum.to_bytes())?;
    }
    match group.ended {
        None => group_counts::mark(tx, keys, &group.tenant, &group.name),
        Some(_) => Ok(()),
    }
}
