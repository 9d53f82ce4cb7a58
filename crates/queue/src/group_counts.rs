//! The counts of a group: added to by each transaction that moves one of its jobs.
//!
//! A sum per group ([`Transaction::add`]), which is read by none of them and on which none of them conflict, however many jobs of a group
//! end at the same time. With the end of a job, the group is marked: a server then looks whether that was the last one
//! ([`crate::groups::settle`]). A job without a group pays nothing.

use std::cell::RefCell;

use bytes::Bytes;
use turnwise_store::{Sum, Transaction};

use crate::keyspace::Keyspace;
use crate::member::{GroupCounts, Member, numbered};
use crate::place::{End, Place};
use crate::{Job, Result};

/// The width of a field in bits.
const FIELD_BITS: usize = 40;

impl Job {
    /// The rows that a move writes for its group, at most.
    pub(crate) fn group_rows(&self) -> usize {
        if self.group.is_some() { 3 } else { 0 }
    }
}

/// The fields of the stored sum, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Open,
    Completed,
    Failed,
    Cancelled,
    Removed,
    Failures,
}

impl Field {
    /// What a job in this place counts as.
    pub(crate) fn of(place: &Place) -> Field {
        match place {
            Place::Ended(end) => Field::of_end(*end),
            _ => Field::Open,
        }
    }

    pub(crate) fn of_end(end: End) -> Field {
        match end {
            End::Completed => Field::Completed,
            End::Failed => Field::Failed,
            End::Cancelled => Field::Cancelled,
        }
    }

    /// The sum with so many more of it.
    pub(crate) fn more(self, count: i64) -> Sum {
        Sum::of(count, FIELD_BITS * self as usize)
    }

    /// The sum with one that has come here.
    pub(crate) fn arrives(self) -> Sum {
        let mut sum = self.more(1);
        if self == Field::Failed {
            sum += Field::Failures.more(1);
        }
        sum
    }
}

/// The counts in a stored sum.
pub(crate) fn of_sum(sum: &Sum) -> GroupCounts {
    let field = |field: Field| sum.field(FIELD_BITS * field as usize, FIELD_BITS);
    GroupCounts {
        open: field(Field::Open),
        completed: field(Field::Completed),
        failed: field(Field::Failed),
        cancelled: field(Field::Cancelled),
        removed: field(Field::Removed),
        failures: field(Field::Failures),
    }
}

/// The key of a group's counts.
pub(crate) fn key(keys: &Keyspace, tenant: &str, name: &str, id: u64) -> Bytes {
    keys.group_counts(tenant, &numbered(name, id))
}

/// Keys of a group.
struct GroupKeys {
    space: Bytes,
    tenant: String,
    name: String,
    id: u64,
    counts: Bytes,
    mark: Bytes,
    wake: Bytes,
}

thread_local! {
    /// The keys that this thread used last: a request moves many jobs of one group.
    static LAST_USED: RefCell<Option<GroupKeys>> = const { RefCell::new(None) };
}

/// Uses the keys of a job's group.
fn with_keys<T>(keys: &Keyspace, job: &Job, member: &Member, then: impl FnOnce(&GroupKeys) -> T) -> T {
    let (tenant, Member { name, id, .. }) = (&job.tenant, member);
    let space = keys.space.bytes();
    let is_last = |last: &GroupKeys| {
        last.id == *id && last.name == *name && last.tenant == *tenant && last.space == space
    };
    LAST_USED.with_borrow_mut(|last| {
        let same = last.take().filter(is_last);
        then(last.insert(same.unwrap_or_else(|| GroupKeys {
            space: Bytes::copy_from_slice(space),
            tenant: tenant.clone(),
            name: name.clone(),
            id: *id,
            counts: key(keys, tenant, name, *id),
            mark: keys.group_mark(tenant, name),
            wake: keys.group_wake(),
        })))
    })
}

/// The counts of a group. Adds no read conflict. Not for a transaction that has changed them.
pub(crate) async fn read(
    tx: &Transaction,
    keys: &Keyspace,
    tenant: &str,
    name: &str,
    id: u64,
) -> Result<GroupCounts> {
    Ok(of_sum(&tx.sum(&key(keys, tenant, name, id)).await?))
}

/// Makes the servers look at a group.
pub(crate) fn mark(tx: &Transaction, keys: &Keyspace, tenant: &str, name: &str) -> Result<()> {
    tx.set_versionstamp(keys.group_mark(tenant, name))?;
    Ok(tx.set_versionstamp(keys.group_wake())?)
}

/// Adds to the counts of a job's group, and marks it if `ends`.
fn add(tx: &Transaction, keys: &Keyspace, job: &Job, member: &Member, sum: Sum, ends: bool) -> Result<()> {
    with_keys(keys, job, member, |of| {
        tx.add(of.counts.clone(), sum)?;
        if ends {
            tx.set_versionstamp(of.mark.clone())?;
            tx.set_versionstamp(of.wake.clone())?;
        }
        Ok(())
    })
}

/// Counts a job that enters a place.
pub(crate) fn enter(tx: &Transaction, keys: &Keyspace, job: &Job, to: &Place) -> Result<()> {
    let Some(member) = &job.group else { return Ok(()) };
    let field = Field::of(to);
    add(tx, keys, job, member, field.arrives(), field != Field::Open)
}

/// No longer counts a job that leaves its place: [`enter`], or [`left`] if it is no member any more, follows.
pub(crate) fn leave(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let Some(member) = &job.group else { return Ok(()) };
    add(tx, keys, job, member, Field::of(&job.place).more(-1), false)
}

/// Counts a job that goes from its place to another one.
pub(crate) fn change(tx: &Transaction, keys: &Keyspace, job: &Job, to: &Place) -> Result<()> {
    let Some(member) = &job.group else { return Ok(()) };
    let (before, after) = (Field::of(&job.place), Field::of(to));
    if before == after {
        return Ok(());
    }
    let mut sum = before.more(-1);
    sum += after.arrives();
    add(tx, keys, job, member, sum, after != Field::Open)
}

/// A job that has left its place is no member any more. How it had ended still counts.
pub(crate) fn left(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let Some(member) = &job.group else { return Ok(()) };
    let field = match Field::of(&job.place) {
        Field::Open => Field::Removed,
        ended => ended,
    };
    add(tx, keys, job, member, field.more(1), true)
}

/// The record of a job is removed. How it had ended still counts.
pub(crate) fn erase(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    match job.place {
        Place::Ended(_) => Ok(()),
        _ => {
            leave(tx, keys, job)?;
            left(tx, keys, job)
        }
    }
}
