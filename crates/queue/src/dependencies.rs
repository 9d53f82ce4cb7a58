//! Jobs that wait for other jobs to end.
//!
//! *Model.* A job with dependencies is [`Place::Blocked`], in an index without times. It has a row `("after", …)` for each
//! dependency that has not ended, and their number in its record. Each dependency has a reverse row, `("dependents", …)`.
//! The transaction that ends a job updates its dependents ([`settle_ended`]). It removes one row of each dependent. With its
//! last row a dependent is pending, and with the first end that it does not accept it is cancelled.
//!
//! *Only awaited jobs cost more.* The record of a job with dependents says so ([`Job::awaited`](crate::JobFields::awaited)). The end of any other job
//! reads nothing more. The first dependent writes this field, and so conflicts with the job's end: no dependent is missed.
//! The record names a *group*: the jobs that wait for this end, and not for a later end of a job with the same id.
//!
//! *Many dependents.* One transaction settles [`AT_ONCE`] dependents, or fewer if it has no room. For the others it leaves a
//! row `("unsettled", …)`, which the servers watch ([`settle`]). The same happens when an end cancels a job that has
//! dependents itself: a chain of any length is a sequence of small transactions.
//!
//! *Small transactions.* An end proves that no dependent arrives among those that it has read: one conflict, however many
//! there are. It also adds a conflict for the record of each dependent that it settles. A dependent's rows are read without
//! conflicts, because they change with its record. A dependent that does not fit is left to [`settle`], where the first one
//! of a transaction always fits.
//!
//! *No cycles.* A job cannot wait for a job that does not exist. So an add can close a cycle only if the added job already
//! has dependents. Only then does it search the dependencies, up to [`MAX_SEARCHED`] jobs, without conflicts. If several
//! concurrent adds form a cycle together, the last one to commit finds its job awaited, and searches. A dependent that
//! arrived in between has written the job's record, which is a conflict. Its search may miss rows of another add. If that
//! add searched, too, both conflict over one row ([`Keyspace::after_guard`]). If it did not, its job had no dependents yet,
//! and the same argument applies to the add that made its job awaited.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise, Verdict, judge};
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::after::invalid;
pub use crate::after::{After, MAX_AFTER};
use crate::error::corrupt;
use crate::input::Inputs;
use crate::keyspace::behind;
use crate::place::{End, Place};
use crate::rows::{decode, encode, read_job, write_job};
use crate::transition::{move_to, place_from};
use crate::{Error, EventKind, Job, Keyspace, Result, events, followers, input, reads, unique_rows};

/// The most dependents that one transaction settles.
pub const AT_ONCE: usize = 100;
/// The most jobs that a search for a cycle reads.
pub const MAX_SEARCHED: usize = 1_000;
/// Rows that are read concurrently.
const CONCURRENT_READS: usize = 64;
/// The most rows that settling one dependent writes, beside two for each of its dependencies.
const ROWS_TOLD: usize = 14;

/// The row `("after", …)`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AfterRow {
    accepted: Vec<DependencyEnd>,
    otherwise: Otherwise,
    /// The group of the other job's dependents to which this one belongs.
    pub(crate) group: i64,
}

/// The error for a dependency, the n-th of a job, on a job that does not exist.
pub fn missing(n: usize, After { job_type, id, .. }: &After) -> Error {
    invalid(format!(
        "[{n}]: there is no job `{id}` of type `{job_type}`: add it first, or leave this out if it has ended and was removed"
    ))
}

/// The result of [`enter`].
pub(crate) enum Entry {
    /// How many dependencies have not ended.
    WaitsFor(u32),
    /// A dependency has ended in a state that is not accepted. The caller must cancel the job for this reason; nothing was
    /// written.
    Refused(String),
}

/// Writes the rows of a job's dependencies; it has none yet.
///
/// # Errors
/// `Invalid` if a dependency does not exist, or waits for this job.
pub(crate) async fn enter(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    after: &[After],
    now_us: i64,
) -> Result<Entry> {
    match after {
        [] => Ok(Entry::WaitsFor(0)),
        after => enter_all(tx, keys, job, after, now_us).await,
    }
}

/// Boxed, since most jobs have no dependencies.
#[boxed]
async fn enter_all(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    after: &[After],
    now_us: i64,
) -> Result<Entry> {
    let mut others = Vec::new();
    let mut refused = None;
    for (n, (one, other)) in after.iter().zip(read_all(tx, keys, after).await?).enumerate() {
        let Some(mut other) = other else {
            return Err(missing(n, one));
        };
        if other.tenant != job.tenant {
            refuse_input(job, one)?;
        }
        match final_outcome(&other) {
            None => others.push((one, other)),
            Some(outcome) => match judge(outcome, &one.accepted, one.otherwise) {
                Verdict::Freed => {}
                Verdict::Cancelled if refused.is_none() => {
                    refused = Some(cancel_reason(&one.job_type, &one.id, outcome));
                    if job.run().is_none() && outcome != DependencyEnd::Completed {
                        followers::refused(tx, keys, &mut other, job, after)?;
                    }
                }
                Verdict::Cancelled => {}
            },
        }
    }
    if job.awaited.is_some() {
        refuse_cycle(tx, keys, job, &others).await?;
    }
    if let Some(reason) = refused {
        return Ok(Entry::Refused(reason));
    }
    let mut unmet = 0;
    for (one, mut other) in others {
        let on = (one.job_type.as_str(), one.id.as_str());
        let group = group_of(tx, keys, &mut other, now_us).await?;
        let row = AfterRow { accepted: one.accepted.clone(), otherwise: one.otherwise, group };
        tx.set(keys.after_entry(&job.job_type, &job.id, on), encode(&row))?;
        tx.set(keys.dependents_entry(on, group, &job.job_type, &job.id), Bytes::new())?;
        unmet += 1;
    }
    Ok(Entry::WaitsFor(unmet))
}

/// Fails if the job is to get the result of this dependency, which is of another tenant.
fn refuse_input(job: &Job, After { job_type, id, .. }: &After) -> Result<()> {
    match job.inputs.iter().find(|(_, input)| (&input.job_type, &input.id) == (job_type, id)) {
        Some((name, _)) => Err(input::invalid(format!(
            "`{name}` is of another tenant: a job gets results of its own tenant only"
        ))),
        None => Ok(()),
    }
}

/// The records of these jobs.
async fn read_all(tx: &Transaction, keys: &Keyspace, after: &[After]) -> Result<Vec<Option<Job>>> {
    let named: Vec<_> = after.iter().map(|one| (one.job_type.clone(), one.id.clone())).collect();
    let read = |(job_type, id): (String, String)| async move { read_job(tx, keys, &job_type, &id).await };
    stream::iter(named).map(read).buffered(CONCURRENT_READS).try_collect().await
}

/// The group of the jobs that wait for a job's next end; a new one if there are none.
async fn group_of(tx: &Transaction, keys: &Keyspace, other: &mut Job, now_us: i64) -> Result<i64> {
    if let Some(group) = other.awaited {
        return Ok(group);
    }
    // A number that no unsettled group has. Adds no read conflict: such a row appears only with a change of the record.
    let mut group = now_us;
    let unsettled = |group| keys.unsettled_entry((&other.job_type, &other.id), group);
    while tx.get_with(&unsettled(group), Isolation::Snapshot).await?.is_some() {
        group += 1;
    }
    other.awaited = Some(group);
    write_job(tx, keys, other)?;
    Ok(group)
}

/// Prepares an add with many dependencies: marks the records of dependencies that have not ended as awaited, and those of inputs as
/// followed. Starts with the `from`th, marks as many as the transaction has room for, and returns how far it came. The add then writes
/// only small rows and fits one transaction, however large these records are. The marks have no other effect.
#[boxed]
pub async fn announce(
    tx: &Transaction,
    keys: &Keyspace,
    (after, inputs): (&[After], &Inputs),
    from: usize,
    now_us: i64,
) -> Result<usize> {
    for (n, one) in after.iter().enumerate().skip(from) {
        if n > from && !tx.has_room() {
            return Ok(n);
        }
        let Some(mut other) = read_job(tx, keys, &one.job_type, &one.id).await? else { continue };
        if inputs.values().any(|input| (&input.job_type, &input.id) == (&one.job_type, &one.id)) {
            followers::mark(tx, keys, &mut other)?;
        }
        if final_outcome(&other).is_none() {
            group_of(tx, keys, &mut other, now_us).await?;
        }
    }
    Ok(after.len())
}

/// Fails if one of `others` waits for the job, directly or through other jobs. Conflicts with all other searches.
async fn refuse_cycle(tx: &Transaction, keys: &Keyspace, job: &Job, others: &[(&After, Job)]) -> Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let guard = keys.after_guard();
    tx.get(&guard).await?;
    tx.set(guard, encode(&(&job.job_type, &job.id)))?;
    let own = (job.job_type.clone(), job.id.clone());
    let waits = others.iter().filter(|(_, other)| other.unmet() > 0);
    let mut open: Vec<_> = waits.map(|(_, other)| (other.job_type.clone(), other.id.clone())).collect();
    let mut seen: BTreeSet<(String, String)> = open.iter().cloned().collect();
    while !open.is_empty() {
        let read = |one: (String, String)| async move {
            let rows = reads::rows(tx, keys.after(&one.0, &one.1), MAX_AFTER).await?;
            Ok::<_, Error>((one, rows))
        };
        let found: Vec<_> = stream::iter(std::mem::take(&mut open))
            .map(read)
            .buffered(CONCURRENT_READS)
            .try_collect()
            .await?;
        for ((job_type, id), rows) in found {
            for (key, _) in rows {
                let next = keys.parse_after(&key)?;
                if next == own {
                    return Err(invalid(format!(
                        "job `{id}` of type `{job_type}` waits for this one: the circle would never end; leave one of them out"
                    )));
                }
                if seen.len() == MAX_SEARCHED {
                    return Err(invalid(format!(
                        "more than {MAX_SEARCHED} jobs are to end before this one, for which others wait: whether that is a circle is not searched; add it under a new id"
                    )));
                }
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    Ok(())
}

/// Removes a job's dependencies, because it leaves its place in this transaction or, if it runs, has no next run to wait
/// for. Does not write the record, which the same transaction must have read.
pub(crate) async fn leave(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    for (key, row) in after_rows(tx, keys, job).await? {
        let on = keys.parse_after(&key)?;
        tx.clear(keys.dependents_entry((&on.0, &on.1), row.group, &job.job_type, &job.id))?;
        tx.clear(key)?;
    }
    if let Some(run) = job.run_mut() {
        run.next.unmet = 0;
    }
    Ok(())
}

/// The rows of a job's dependencies. Adds no read conflict: whatever changes them changes the record.
async fn after_rows(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Vec<(Bytes, AfterRow)>> {
    if job.unmet() == 0 {
        return Ok(Vec::new());
    }
    let read = |key: &Bytes, value: &Bytes| Ok((key.clone(), decode("after row", value)?));
    reads::list(tx, keys.after(&job.job_type, &job.id), MAX_AFTER, read).await
}

/// The dependencies of a job that have not ended, up to [`MAX_AFTER`]. Adds no read conflict.
#[boxed]
pub async fn unmet(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Vec<After>> {
    let rows = after_rows(tx, keys, job).await?;
    rows.into_iter()
        .map(|(key, AfterRow { accepted, otherwise, .. })| {
            let (job_type, id) = keys.parse_after(&key)?;
            Ok(After { job_type, id, accepted, otherwise })
        })
        .collect()
}

/// The jobs that wait for a job to end, by type and id: up to `limit`. Adds no read conflict.
#[boxed]
pub async fn dependents(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    limit: usize,
) -> Result<Vec<(String, String)>> {
    let Some(group) = job.awaited else { return Ok(Vec::new()) };
    let range = keys.dependents((&job.job_type, &job.id), group);
    reads::list(tx, range, limit, |key, _| Ok(keys.parse_dependents(key)?)).await
}

/// Updates the dependents of a job that has ended, or is about to be removed. The caller writes or removes its record.
pub(crate) async fn settle_ended(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    outcome: DependencyEnd,
    now_us: i64,
) -> Result<()> {
    let Some(group) = job.awaited.take() else { return Ok(()) };
    // A job that is about to be removed has no other try.
    let keeps = matches!(job.place, Place::Ended(End::Failed | End::Cancelled));
    job.followed |= keeps;
    let group = Unsettled::of(job, group);
    settle_groups(tx, keys, group, outcome, (true, keeps), now_us).await.map(drop)
}

/// Leaves the dependents of a job that has ended, or is about to be removed, to a later transaction of [`settle`].
pub(crate) fn settle_later(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    outcome: DependencyEnd,
) -> Result<()> {
    let Some(group) = job.awaited.take() else { return Ok(()) };
    leave_unsettled(tx, keys, &Unsettled::of(job, group), outcome)
}

fn leave_unsettled(
    tx: &Transaction,
    keys: &Keyspace,
    group: &Unsettled,
    outcome: DependencyEnd,
) -> Result<()> {
    tx.set(group.row(keys), encode(&outcome))?;
    Ok(tx.set_versionstamp(keys.unsettled_wake())?)
}

/// A group whose dependents are not all updated yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsettled {
    job_type: String,
    id: String,
    group: i64,
}

impl Unsettled {
    /// The dependents of a job that wait for this end.
    fn of(job: &Job, group: i64) -> Unsettled {
        Unsettled { job_type: job.job_type.clone(), id: job.id.clone(), group }
    }

    fn on(&self) -> (&str, &str) {
        (&self.job_type, &self.id)
    }

    fn row(&self, keys: &Keyspace) -> Bytes {
        keys.unsettled_entry(self.on(), self.group)
    }
}

/// The first such group, after `after` if given. Adds no read conflict.
#[boxed]
pub async fn next_unsettled(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Unsettled>,
) -> Result<Option<Unsettled>> {
    let read = |key: &Bytes, _: &Bytes| {
        let (job_type, id, group) = keys.parse_unsettled(key)?;
        Ok(Unsettled { job_type, id, group })
    };
    let range = behind(keys.unsettled(), after.map(|after| after.row(keys)));
    Ok(reads::list(tx, range, 1, read).await?.pop())
}

/// Updates some dependents of a group, at least one, and the dependents of jobs that this cancels. Use a transaction of its
/// own. Returns how many were updated; the group is removed with its last one.
#[boxed]
pub async fn settle(tx: &Transaction, keys: &Keyspace, group: &Unsettled, now_us: i64) -> Result<usize> {
    // Transactions that settle the same group conflict here, once its last dependent is updated.
    let Some(outcome) = reads::value(tx, &group.row(keys), "unsettled row").await? else { return Ok(0) };
    let record = read_job(tx, keys, &group.job_type, &group.id).await?;
    // Also if it runs again by now: the retry that let it do so then finds those that are cancelled only here.
    let keeps = matches!(outcome, DependencyEnd::Failed | DependencyEnd::Cancelled)
        && record.is_some_and(|job| job.followed);
    settle_groups(tx, keys, group.clone(), outcome, (false, keeps), now_us).await
}

/// Settles a group, and the groups of jobs that this cancels, as far as one transaction can. `new` means that this
/// transaction ends the job of the first group, so dependents may still arrive until the commit. `keeps` means that its record stays, so
/// those that are cancelled become its followers.
#[boxed]
async fn settle_groups(
    tx: &Transaction,
    keys: &Keyspace,
    first: Unsettled,
    outcome: DependencyEnd,
    (new, keeps): (bool, bool),
    now_us: i64,
) -> Result<usize> {
    let mut groups = VecDeque::from([(first, outcome, new, keeps)]);
    let mut settled = 0;
    while let Some((group, outcome, new, keeps)) = groups.pop_front() {
        let (begin, end) = keys.dependents(group.on(), group.group);
        let room = AT_ONCE - settled;
        let read = RangeRead { begin, end, limit: room + 1, reverse: false };
        let (rows, proof) = tx.range_to_prove(read).await?;
        let mut is_done = rows.len() <= room;
        for (key, _) in rows.into_iter().take(room) {
            // Each remaining group needs a row.
            let told = match tx.has_room() {
                true => settle_one(tx, keys, (&group, outcome, keeps), key, groups.len() + 2, now_us).await?,
                false => None,
            };
            let Some(next) = told else {
                is_done = false;
                break;
            };
            settled += 1;
            groups.extend(next.map(|next| (next, DependencyEnd::Cancelled, true, true)));
        }
        if is_done && new {
            tx.prove_arrivals(proof);
        }
        match is_done {
            true if !new => tx.clear(group.row(keys))?,
            true => {}
            false => leave_unsettled(tx, keys, &group, outcome)?,
        }
    }
    Ok(settled)
}

/// Updates one dependent after the end of a dependency. Returns the group of its own dependents if the update cancels it.
/// `None` if the transaction has no room for the update and `left` other rows: then nothing is written.
async fn settle_one(
    tx: &Transaction,
    keys: &Keyspace,
    (group, outcome, keeps): (&Unsettled, DependencyEnd, bool),
    dependent: Bytes,
    left: usize,
    now_us: i64,
) -> Result<Option<Option<Unsettled>>> {
    let (job_type, id) = keys.parse_dependents(&dependent)?;
    let job = read_job(tx, keys, &job_type, &id).await?;
    let mut job = job.ok_or_else(|| corrupt("dependents key", "its job has no record"))?;
    // Adds no read conflict: this row changes with the record.
    let row = keys.after_entry(&job_type, &id, group.on());
    let after: Option<AfterRow> = reads::value_with(tx, &row, "after row", Isolation::Snapshot).await?;
    let Some(after) = after.filter(|after| after.group == group.group) else {
        tx.clear(dependent)?;
        return Ok(Some(None));
    };
    if job.unmet() == 0 {
        return Err(corrupt("job record", "waits for no job, and has an after row"));
    }
    let verdict = judge(outcome, &after.accepted, after.otherwise);
    let rows = ROWS_TOLD
        + job.group_rows()
        + if verdict == Verdict::Cancelled { 2 * job.unmet() as usize } else { 2 };
    if !tx.has_room_for(rows + left, left) {
        return Ok(None);
    }
    tx.clear(dependent)?;
    let mut next = None;
    match verdict {
        Verdict::Freed => {
            tx.clear(row)?;
            match &mut job.place {
                Place::Blocked { until_us, unmet: 1 } => {
                    let to = place_from(0, Some(*until_us), now_us);
                    job.changed_us = now_us;
                    move_to(tx, keys, &mut job, to)?;
                }
                Place::Blocked { unmet, .. } => *unmet -= 1,
                Place::Active(run) => Arc::make_mut(run).next.unmet -= 1,
                _ => return Err(corrupt("job record", "it waits for other jobs, and is not blocked")),
            }
        }
        Verdict::Cancelled => {
            if keeps && job.run().is_none() {
                let waited = unmet(tx, keys, &job).await?;
                followers::cancelled(tx, keys, group.on(), (&job_type, &id), &waited)?;
            }
            leave(tx, keys, &mut job).await?;
            let reason = cancel_reason(&group.job_type, &group.id, outcome);
            // The job runs; only its next run was waiting.
            if let Some(run) = job.run_mut() {
                run.refuse_next(&reason);
                unique_rows::stop_waiting(tx, keys, &mut job)?;
            } else {
                job.refused = Some(crate::job::bounded_reason(&reason));
                job.record_request(now_us, EventKind::Cancelled);
                move_to(tx, keys, &mut job, Place::Ended(End::Cancelled))?;
                events::happened(tx, keys, &job, &EventKind::Cancelled, job.state(), now_us)?;
                next = job.awaited.take().map(|group| Unsettled::of(&job, group));
                job.followed |= next.is_some();
            }
        }
    }
    write_job(tx, keys, &job)?;
    Ok(Some(next))
}

/// The outcome of an ended job; `None` if it has not ended.
fn final_outcome(job: &Job) -> Option<DependencyEnd> {
    match job.place {
        Place::Ended(end) => Some(end.outcome()),
        _ => None,
    }
}

/// Why a job is cancelled when this job ends in a state that it does not accept.
pub(crate) fn cancel_reason(job_type: &str, id: &str, outcome: DependencyEnd) -> String {
    format!("job `{id}` of type `{job_type}`, which it was to wait for, {}", outcome.phrase())
}
