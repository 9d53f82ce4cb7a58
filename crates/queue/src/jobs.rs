//! The operations of clients on jobs.

use std::mem;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_policy::eligibility::dependencies::DependencyEnd;
use turnwise_store::{Isolation, Transaction};

use crate::dependencies::Entry;
pub use crate::ended::prune;
use crate::error::corrupt;
use crate::job::{EventKind, Hidden, INLINE_OPTIONS_BYTES, JobFields, bounded_reason};
use crate::keyspace::{QueuePlace, behind};
use crate::locks::{Held, most_locks, pending_value};
use crate::place::{End, Place};
use crate::rows::{
    decode, decode_active, decode_job, read_active, read_job, read_job_with, write_active, write_job,
};
use crate::spec::check_priority;
use crate::transition::{self, move_to, place_from};
pub use crate::types_with_jobs::types_after;
use crate::unique_rows::UniqueRow;
use crate::{
    Active, After, Error, Inputs, Job, Keyspace, Member, NewJob, Result, State, Then, counts, dependencies,
    events, followers, group_counts, group_row, lifetime_rows, output, read_pieces, read_small_pieces, reads,
    tags, unique_rows, write_pieces,
};

/// Rows that a listing reads per batch; all batches read the same snapshot.
const LIST_BATCH: usize = 1_000;
/// The most jobs that one worker runs: the bound of `max_jobs`.
pub(crate) const MAX_ACTIVE_OF_WORKER: usize = 100_000;

/// Steps of a transaction whose records are read together: their number may exceed what fits into the transaction.
pub const PREFETCHED: usize = 32;

/// What adding a job did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    /// It is pending now: it is new, or had ended, or was delayed.
    Queued,
    /// The same, but its time has not come.
    Delayed,
    /// It was waiting already (pending or crashing) and keeps its place, with the new options.
    AlreadyWaiting,
    /// It waits for other jobs to end.
    Blocked,
    /// A dependency has ended in a state that it does not accept: the job was added, and is cancelled.
    Cancelled,
    /// It is running; it runs again with the new options when this run has ended.
    RunsAgain,
    /// It existed already, and nothing was changed.
    AlreadyThere,
    /// Another job has its unique key, and nothing was changed ([`crate::unique::add`] then does what the job states).
    KeyTaken(Box<KeyTaken>),
}

/// The key that another job has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTaken {
    /// The hash that stands for the key.
    pub hash: String,
    /// Its row.
    pub row: UniqueRow,
}

/// Adds a job, or adds it again: an ended job is pending again, and a running job runs again. Adding the same job twice
/// never creates a second one.
///
/// # Errors
/// `Invalid` with the field that is wrong, which includes a dependency in [`NewJob::after`] that does not exist, and a
/// cycle.
#[boxed]
pub async fn add(tx: &Transaction, keys: &Keyspace, new: &NewJob, now_us: i64) -> Result<Added> {
    check(tx, new)?;
    match read_job(tx, keys, &new.job_type, &new.id).await? {
        Some(old) => put_again(tx, keys, new, old, now_us).await,
        None => put(tx, keys, new, now_us).await,
    }
}

/// Adds a job unless one with its id exists in any state: repeating the request never runs the job twice. A job that is to
/// be removed once its worker has stopped it does not count: it runs again and is not removed.
pub async fn add_once(tx: &Transaction, keys: &Keyspace, new: &NewJob, now_us: i64) -> Result<Added> {
    check(tx, new)?;
    match read_job(tx, keys, &new.job_type, &new.id).await? {
        Some(job) if job.then() != Then::Remove => Ok(Added::AlreadyThere),
        Some(old) => put_again(tx, keys, new, old, now_us).await,
        None => put(tx, keys, new, now_us).await,
    }
}

/// Whether a job could be added to this store, as far as its own fields show.
pub(crate) fn check(tx: &Transaction, new: &NewJob) -> Result<()> {
    new.check()?;
    let Some(held) = Held::known(&new.locks) else { return Ok(()) };
    let (named, most) = (held.count() - 1, most_locks(tx.limits()));
    if named <= most {
        return Ok(());
    }
    let problem =
        format!("names {named} locks; at most {most} are possible in this store: ask for all of a level");
    Err(Error::Invalid { field: "locks", problem })
}

/// Writes a new job, and moves it to its place.
async fn put(tx: &Transaction, keys: &Keyspace, new: &NewJob, now_us: i64) -> Result<Added> {
    // A job that is not added needs no open group: the request may be a repetition.
    let key = match unique_rows::find_free(tx, keys, new, None, now_us).await? {
        Ok(key) => key,
        Err((hash, row)) => return Ok(Added::KeyTaken(Box::new(KeyTaken { hash, row }))),
    };
    let mut job = create(new, now_us);
    if job.group.is_some() {
        group_row::join(tx, keys, &mut job.spec, None).await?;
    }
    unique_rows::take(tx, keys, &mut job, key)?;
    set_options(tx, keys, &mut job, &new.options)?;
    tags::write(tx, keys, &job)?;
    let added = begin(tx, keys, &mut job, new, now_us).await?;
    write_job(tx, keys, &job)?;
    Ok(added)
}

/// Writes a job that exists. Boxed, since most jobs are new.
#[boxed]
async fn put_again(
    tx: &Transaction,
    keys: &Keyspace,
    new: &NewJob,
    mut job: Job,
    now_us: i64,
) -> Result<Added> {
    let key = match unique_rows::find_free(tx, keys, new, Some(&job), now_us).await? {
        Ok(key) => key,
        Err((hash, row)) => return Ok(Added::KeyTaken(Box::new(KeyTaken { hash, row }))),
    };
    let joined = group_row::joined(tx, keys, new, &job).await?;
    let new = &*joined;
    unique_rows::take(tx, keys, &mut job, key)?;
    let added = match job.place {
        Place::Active(_) => return add_to_run(tx, keys, job, new, now_us).await,
        // A job that is held stays held.
        Place::Paused { .. } if job.held_by().is_some() && new.after.is_empty() => {
            add_to_waiting(tx, keys, &mut job, new, now_us).await?
        }
        Place::Pending { .. } | Place::Crashing { .. } => {
            add_to_waiting(tx, keys, &mut job, new, now_us).await?
        }
        _ => {
            job.hold = job.holder();
            transition::leave(tx, keys, &job)?;
            dependencies::leave(tx, keys, &mut job).await?;
            change(tx, keys, &mut job, new)?;
            set_options(tx, keys, &mut job, &new.options)?;
            begin(tx, keys, &mut job, new, now_us).await?
        }
    };
    write_job(tx, keys, &job)?;
    Ok(added)
}

/// Adds a running job: it runs again when this run has ended.
pub(crate) async fn add_to_run(
    tx: &Transaction,
    keys: &Keyspace,
    mut job: Job,
    new: &NewJob,
    now_us: i64,
) -> Result<Added> {
    change_in_place(tx, keys, &mut job, new)?;
    set_options(tx, keys, &mut job, &new.options)?;
    dependencies::leave(tx, keys, &mut job).await?;
    followers::enter(tx, keys, &job).await?;
    let entry = dependencies::enter(tx, keys, &job, &new.after, now_us).await?;
    let Some(run) = job.run_mut() else { return Err(corrupt("job record", "not a run")) };
    run.next.refused = None;
    let added = match entry {
        // Only the next run is refused; the current run continues to its own end.
        Entry::Refused(reason) => {
            run.refuse_next(&reason);
            unique_rows::stop_waiting(tx, keys, &mut job)?;
            Added::Cancelled
        }
        Entry::WaitsFor(unmet) => {
            run.then = Then::Again;
            run.next.unmet = unmet;
            run.next.not_before_us = new.not_before_us.unwrap_or(now_us);
            Added::RunsAgain
        }
    };
    write_job(tx, keys, &job)?;
    Ok(added)
}

/// Adds a pending or crashing job: it keeps its time, unless it has dependencies now.
async fn add_to_waiting(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    new: &NewJob,
    now_us: i64,
) -> Result<Added> {
    let (order_us, before) = (job.order_us(), job.lifetime);
    let is_pending = job.is_pending();
    let moves = job.tenant != new.tenant || new.priority.is_some_and(|priority| priority != job.priority);
    // The job's row states its locks, and the job may no longer want the locks that it has reserved.
    let wants_others = job.locks != new.locks;
    let leaves = !new.after.is_empty() || is_pending && (moves || wants_others);
    match leaves {
        true => {
            transition::leave(tx, keys, job)?;
            change(tx, keys, job, new)?;
        }
        false => change_in_place(tx, keys, job, new)?,
    }
    set_options(tx, keys, job, &new.options)?;
    lifetime_rows::changed(tx, keys, job, (before, false), now_us, now_us).await?;
    followers::enter(tx, keys, job).await?;
    if !leaves {
        return Ok(Added::AlreadyWaiting);
    }
    match dependencies::enter(tx, keys, job, &new.after, now_us).await? {
        Entry::Refused(reason) => {
            refuse(tx, keys, job, &reason, now_us).await?;
            Ok(Added::Cancelled)
        }
        Entry::WaitsFor(0) => {
            let to =
                if is_pending { Place::pending(order_us) } else { Place::Crashing { until_us: order_us } };
            transition::enter(tx, keys, job, to)?;
            Ok(Added::AlreadyWaiting)
        }
        Entry::WaitsFor(unmet) => {
            transition::enter(tx, keys, job, Place::Blocked { until_us: order_us, unmet })?;
            Ok(Added::Blocked)
        }
    }
}

/// Resets a job that is in no place, and puts it into one.
async fn begin(tx: &Transaction, keys: &Keyspace, job: &mut Job, new: &NewJob, now_us: i64) -> Result<Added> {
    output::clear_result(tx, keys, job)?;
    job.begin(now_us);
    lifetime_rows::await_start(tx, keys, job, new.not_before_us.unwrap_or(now_us), now_us).await?;
    followers::enter(tx, keys, job).await?;
    let unmet = match dependencies::enter(tx, keys, job, &new.after, now_us).await? {
        Entry::Refused(reason) => {
            events::happened(tx, keys, job, &EventKind::Added, State::Pending, now_us)?;
            refuse(tx, keys, job, &reason, now_us).await?;
            return Ok(Added::Cancelled);
        }
        Entry::WaitsFor(unmet) => unmet,
    };
    let to = match new.order_us {
        Some(order_us) if new.not_before_us.is_none() && unmet == 0 => Place::pending(order_us),
        _ => place_from(unmet, new.not_before_us, now_us),
    };
    let added = match to {
        Place::Blocked { .. } => Added::Blocked,
        Place::Delayed { .. } => Added::Delayed,
        _ => Added::Queued,
    };
    transition::enter(tx, keys, job, to)?;
    events::happened(tx, keys, job, &EventKind::Added, job.state(), now_us)?;
    Ok(added)
}

/// A new job that is in no place yet.
fn create(new: &NewJob, now_us: i64) -> Job {
    let mut fields = JobFields::new(new.job_type.clone(), new.id.clone(), new.spec.clone(), now_us);
    fields.priority = new.priority.unwrap_or(0);
    fields.into()
}

/// The same as [`change`], for a job that stays in its place.
fn change_in_place(tx: &Transaction, keys: &Keyspace, job: &mut Job, new: &NewJob) -> Result<()> {
    // Counts are by tenant.
    counts::leave(tx, keys, job)?;
    let regrouped = is_regrouped(job, new);
    if regrouped {
        group_counts::leave(tx, keys, job)?;
    }
    change(tx, keys, job, new)?;
    if regrouped {
        group_counts::enter(tx, keys, job, &job.place)?;
    }
    counts::enter(tx, keys, job, &job.place)?;
    // So is what the row of its place says.
    transition::rewrite_row(tx, keys, job)
}

/// Whether a job is no member of its group any more, or of another one.
fn is_regrouped(job: &Job, new: &NewJob) -> bool {
    let id = |group: &Option<Member>| group.as_ref().map(|group| group.id);
    id(&job.group) != id(&new.group)
}

/// Copies what a request states to a job. Declared locks apply from the next run on.
fn change(tx: &Transaction, keys: &Keyspace, job: &mut Job, new: &NewJob) -> Result<()> {
    tags::change(tx, keys, job, &new.spec)?;
    if is_regrouped(job, new) {
        group_counts::left(tx, keys, job)?;
    }
    followers::leave(tx, keys, job, &new.inputs)?;
    let mut spec = new.spec.clone();
    let job = &mut **job;
    if let Place::Active(run) = &mut job.place {
        let run = Arc::make_mut(run);
        let next = mem::replace(&mut spec.locks, mem::take(&mut job.spec.locks));
        run.next.locks = (next != spec.locks).then_some(next);
    }
    job.spec = spec;
    job.priority = new.priority.unwrap_or(job.priority);
    Ok(())
}

pub(crate) fn set_options(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    options: &RawValue,
) -> Result<()> {
    let in_pieces = options.get().len() > INLINE_OPTIONS_BYTES;
    let is_new = job.history.is_empty();
    job.options_changes = job.options_changes.wrapping_add(u32::from(!is_new));
    job.options = (!in_pieces).then(|| Hidden(options.to_owned()));
    if in_pieces || !is_new {
        let value = Bytes::copy_from_slice(if in_pieces { options.get().as_bytes() } else { b"" });
        let piece = |n| keys.options_piece(&job.job_type, &job.id, n);
        write_pieces(tx, keys.options(&job.job_type, &job.id), piece, &value)?;
    }
    Ok(())
}

/// Cancels a job that has left its place ([`transition::leave`]), for a reason other than its user's request. Does not write the
/// record.
#[boxed]
pub(crate) async fn refuse(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    reason: &str,
    now_us: i64,
) -> Result<()> {
    job.refused = Some(bounded_reason(reason));
    job.record_request(now_us, EventKind::Cancelled);
    transition::enter(tx, keys, job, Place::Ended(End::Cancelled))?;
    events::happened(tx, keys, job, &EventKind::Cancelled, job.state(), now_us)?;
    dependencies::settle_ended(tx, keys, job, DependencyEnd::Cancelled, now_us).await
}

/// A job, if it exists.
#[boxed]
pub async fn get(tx: &Transaction, keys: &Keyspace, job_type: &str, id: &str) -> Result<Option<Job>> {
    read_job(tx, keys, job_type, id).await
}

/// The same, without a read conflict: for callers that read the job again where it matters.
#[boxed]
pub async fn peek(tx: &Transaction, keys: &Keyspace, job_type: &str, id: &str) -> Result<Option<Job>> {
    read_job_with(tx, keys, job_type, id, Isolation::Snapshot).await
}

/// Reads the records of jobs at the same time that the caller will read one after the other ([`Transaction::prefetch`]).
pub async fn prefetch<'a>(
    tx: &Transaction,
    keys: &Keyspace,
    jobs: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<()> {
    Ok(tx.prefetch(jobs.map(|(job_type, id)| keys.job(job_type, id))).await?)
}

/// A job's options.
#[boxed]
pub async fn options(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Box<RawValue>> {
    if let Some(Hidden(options)) = &job.options {
        return Ok(options.clone());
    }
    let value = read_pieces(tx, &keys.options(&job.job_type, &job.id)).await?;
    decode("job options", &value)
}

/// A job's options, if they have at most so many bytes. Reads little more than these.
pub async fn small_options(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    max_bytes: usize,
) -> Result<Option<Box<RawValue>>> {
    if let Some(Hidden(options)) = &job.options {
        return Ok(Some(options.clone()).filter(|options| options.get().len() <= max_bytes));
    }
    let value = read_small_pieces(tx, &keys.options(&job.job_type, &job.id), max_bytes).await?;
    value.map(|value| decode("job options", &value)).transpose()
}

/// Up to `limit` jobs of a type in the order of their ids, after the job `after` if given.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Job>> {
    let mut rest = behind(keys.jobs(job_type), after.map(|id| keys.job(job_type, id)));
    let mut jobs = Vec::new();
    while jobs.len() < limit {
        let batch = (limit - jobs.len()).min(LIST_BATCH);
        let rows = reads::rows(tx, rest.clone(), batch).await?;
        for (key, value) in &rows {
            let mut job = decode_job(value)?;
            job.job_type = job_type.to_owned();
            job.id = keys.parse_job(key)?;
            jobs.push(job);
        }
        match rows.last() {
            Some((last, _)) if rows.len() == batch => rest = behind(rest, Some(last.clone())),
            _ => break,
        }
    }
    Ok(jobs)
}

/// The workers' reports about their running jobs: worker, job id, report.
#[boxed]
pub async fn active(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    limit: usize,
) -> Result<Vec<(String, String, Active)>> {
    let read = |key: &Bytes, value: &Bytes| {
        let (worker, id) = keys.parse_active(key)?;
        Ok((worker, id, decode_active(value)?))
    };
    reads::list(tx, keys.active(job_type), limit, read).await
}

/// The reports of the workers of all types about their running jobs: type, worker, job id, report; by type.
#[boxed]
pub async fn all_active(
    tx: &Transaction,
    keys: &Keyspace,
    limit: usize,
) -> Result<Vec<(String, String, String, Active)>> {
    let read = |key: &Bytes, value: &Bytes| {
        let (job_type, worker, id) = keys.parse_all_active(key)?;
        Ok((job_type, worker, id, decode_active(value)?))
    };
    reads::list(tx, keys.all_active(), limit, read).await
}

/// One worker's reports about its running jobs: job id, report.
#[boxed]
pub async fn active_of(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    limit: usize,
) -> Result<Vec<(String, Active)>> {
    let read = |key: &Bytes, value: &Bytes| Ok((keys.parse_active(key)?.1, decode_active(value)?));
    reads::list(tx, keys.active_of(job_type, worker), limit, read).await
}

/// The worker's report about one running job.
#[boxed]
pub async fn active_report(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Option<Active>> {
    match job.claim() {
        Some(claim) => read_active(tx, keys, &job.job_type, &claim.worker, &job.id).await,
        None => Ok(None),
    }
}

/// The numbers of a worker's claims on jobs that clients have asked to stop. Reads the worker's jobs only if there was a
/// signal since [`forget_signal`].
#[boxed]
pub async fn cancel_requests(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
) -> Result<Vec<u64>> {
    if tx.get_with(&keys.signal(job_type, worker), Isolation::Snapshot).await?.is_none() {
        return Ok(Vec::new());
    }
    let active = active_of(tx, keys, job_type, worker, MAX_ACTIVE_OF_WORKER).await?;
    let asked = active.iter().filter(|(_, active)| active.cancel_requested);
    Ok(asked.map(|(_, active)| active.claim).collect())
}

/// Removes the signal of a worker that has no [`cancel_requests`] left. Conflicts with a signal that arrives concurrently.
/// Not for a worker that watches its signal.
#[boxed]
pub async fn forget_signal(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<()> {
    let signal = keys.signal(job_type, worker);
    if tx.get(&signal).await?.is_some() {
        tx.clear(signal)?;
    }
    Ok(())
}

/// The result of [`cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It has ended.
    Now,
    /// It runs; its worker has been signalled to stop it.
    Requested,
    /// It had ended before.
    AlreadyEnded,
}

/// Cancels a job: immediately if it waits, by a signal to its worker if it runs. The record stays.
#[boxed]
pub async fn cancel(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    now_us: i64,
) -> Result<Cancelled> {
    let mut job = read_job(tx, keys, job_type, id).await?.ok_or(Error::NotFound)?;
    match &mut job.place {
        Place::Ended(_) => return Ok(Cancelled::AlreadyEnded),
        Place::Active(run) => {
            let run = Arc::make_mut(run);
            let again = run.then == Then::Again;
            // A cancellation replaces the refusal of the next run as the reason.
            run.next.refused = None;
            if again {
                run.then = Then::Keep;
                dependencies::leave(tx, keys, &mut job).await?;
                unique_rows::stop_waiting(tx, keys, &mut job)?;
            }
            request_stop(tx, keys, &mut job).await?;
            return Ok(Cancelled::Requested);
        }
        _ => {}
    }
    dependencies::leave(tx, keys, &mut job).await?;
    job.refused = None;
    job.record_request(now_us, EventKind::Cancelled);
    move_to(tx, keys, &mut job, Place::Ended(End::Cancelled))?;
    events::happened(tx, keys, &job, &EventKind::Cancelled, job.state(), now_us)?;
    dependencies::settle_ended(tx, keys, &mut job, DependencyEnd::Cancelled, now_us).await?;
    write_job(tx, keys, &job)?;
    Ok(Cancelled::Now)
}

/// The result of [`retry`] and [`rerun`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// It is pending now, and its consecutive crashes are reset.
    Now,
    /// It cannot be retried in this state, and nothing was changed.
    Not(State),
    /// Another job has its unique key, and nothing was changed.
    KeyTaken,
}

/// Ends the wait of a crashing or delayed job, for its time or its dependencies. The job is pending immediately, behind the
/// waiting jobs of its tenant and priority. Its consecutive crashes are reset, and its attempts stay counted.
#[boxed]
pub async fn retry(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    now_us: i64,
) -> Result<Retried> {
    let mut job = read_job(tx, keys, job_type, id).await?.ok_or(Error::NotFound)?;
    if !matches!(job.state(), State::Delayed | State::Crashing) {
        return Ok(Retried::Not(job.state()));
    }
    dependencies::leave(tx, keys, &mut job).await?;
    job.crashes = 0;
    job.record_request(now_us, EventKind::Added);
    move_to(tx, keys, &mut job, Place::pending(now_us))?;
    events::happened(tx, keys, &job, &EventKind::Added, job.state(), now_us)?;
    write_job(tx, keys, &job)?;
    Ok(Retried::Now)
}

/// Runs a failed or cancelled job again, with everything it was added with: options, tenant, priority, locks, reasons and
/// limits. It is pending immediately, behind the waiting jobs of its tenant and priority. Its attempts and crashes are reset,
/// and it waits for no other job. One that an operator holds is held again.
#[boxed]
pub async fn rerun(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    now_us: i64,
) -> Result<Retried> {
    rerun_after(tx, keys, (job_type, id), &[], now_us).await
}

/// The same for a job that waits for these jobs first. It is cancelled again if one of them has ended in a state that is not accepted.
pub(crate) async fn rerun_after(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    after: &[After],
    now_us: i64,
) -> Result<Retried> {
    let mut job = read_job(tx, keys, job_type, id).await?.ok_or(Error::NotFound)?;
    // A job that forgets its options has none left to run with.
    let may_run_again =
        matches!(job.place, Place::Ended(End::Failed | End::Cancelled)) && !job.forgets_options;
    if !may_run_again {
        return Ok(Retried::Not(job.state()));
    }
    if !unique_rows::take_again(tx, keys, &mut job, now_us).await? {
        return Ok(Retried::KeyTaken);
    }
    group_row::rerun(tx, keys, &mut job).await?;
    transition::leave(tx, keys, &job)?;
    job.begin(now_us);
    lifetime_rows::await_start(tx, keys, &mut job, now_us, now_us).await?;
    followers::enter(tx, keys, &job).await?;
    match dependencies::enter(tx, keys, &job, after, now_us).await? {
        Entry::Refused(reason) => refuse(tx, keys, &mut job, &reason, now_us).await?,
        Entry::WaitsFor(unmet) => {
            transition::enter(tx, keys, &mut job, place_from(unmet, None, now_us))?;
            events::happened(tx, keys, &job, &EventKind::Added, job.state(), now_us)?;
        }
    }
    write_job(tx, keys, &job)?;
    Ok(Retried::Now)
}

/// The result of [`set_priority`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prioritized {
    /// It has that priority now.
    Set(State),
    /// It has ended in this state, and nothing was changed.
    Ended(State),
}

/// Changes a job's priority. A pending job moves in its queue immediately; any other job has the new priority when it is
/// pending again.
///
/// # Errors
/// `Invalid` for a priority out of range, `NotFound` if the job does not exist.
#[boxed]
pub async fn set_priority(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    priority: i8,
) -> Result<Prioritized> {
    check_priority(priority)?;
    let mut job = read_job(tx, keys, job_type, id).await?.ok_or(Error::NotFound)?;
    let state = job.state();
    if state.is_final() {
        return Ok(Prioritized::Ended(state));
    }
    if job.priority == priority {
        return Ok(Prioritized::Set(state));
    }
    if job.is_pending() {
        move_in_queue(tx, keys, &job, priority)?;
    } else if let Some(mut place) = job.limited_place() {
        let row = keys.limited_entry(job_type, &place, id);
        let held_back = tx.get(&row).await?.ok_or_else(|| corrupt("job record", "no limited row"))?;
        tx.clear(row)?;
        place.priority = priority;
        tx.set(keys.limited_entry(job_type, &place, id), held_back)?;
    }
    job.priority = priority;
    write_job(tx, keys, &job)?;
    Ok(Prioritized::Set(state))
}

/// Moves the row of a pending job to the place of another priority. Does not change the job.
pub(crate) fn move_in_queue(tx: &Transaction, keys: &Keyspace, job: &Job, priority: i8) -> Result<()> {
    let Some(place) = job.queue_place() else { return Ok(()) };
    tx.clear(keys.pending_entry(&job.job_type, &place, &job.id))?;
    let place = QueuePlace { priority, ..place };
    Ok(tx.set(keys.pending_entry(&job.job_type, &place, &job.id), pending_value(job))?)
}

/// Stops a running job, and adds it again with what [`add`] wrote before, so that changed options take effect now. Does
/// nothing to a job that does not run.
#[boxed]
pub async fn restart(tx: &Transaction, keys: &Keyspace, job_type: &str, id: &str) -> Result<()> {
    let mut job = read_job(tx, keys, job_type, id).await?.ok_or(Error::NotFound)?;
    if let Some(run) = job.run_mut() {
        // If it was added again, that request set the time before which it does not run.
        if run.then != Then::Again {
            run.next.not_before_us = 0;
        }
        run.then = Then::Again;
        run.next.refused = None;
        request_stop(tx, keys, &mut job).await?;
    }
    Ok(())
}

/// Removes a job and its record: immediately if it does not run, otherwise once its worker has stopped it. `NotFound` if it
/// does not exist.
///
/// Its dependents treat the removal as an end that no job accepts. [`dependencies::settle`] updates them soon after.
#[boxed]
pub async fn remove(tx: &Transaction, keys: &Keyspace, job_type: &str, id: &str) -> Result<()> {
    let mut job = read_job(tx, keys, job_type, id).await?.ok_or(Error::NotFound)?;
    if let Some(run) = job.run_mut() {
        run.then = Then::Remove;
        dependencies::leave(tx, keys, &mut job).await?;
        unique_rows::stop_waiting(tx, keys, &mut job)?;
        return request_stop(tx, keys, &mut job).await;
    }
    dependencies::leave(tx, keys, &mut job).await?;
    dependencies::settle_later(tx, keys, &mut job, DependencyEnd::Removed)?;
    erase_on_request(tx, keys, &job).await
}

/// Erases a job because a client has removed it: its key for a period is free, too.
pub(crate) async fn erase_on_request(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    unique_rows::end_period(tx, keys, job).await?;
    erase(tx, keys, job)
}

/// Clears a job's record and options, and the row of its place. A run must have ended.
pub(crate) fn erase(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    lifetime_rows::clear(tx, keys, job)?;
    unique_rows::clear(tx, keys, job)?;
    transition::leave_for_good(tx, keys, job)?;
    events::removed(tx, keys, job)?;
    tags::clear(tx, keys, job)?;
    tx.clear(keys.job(&job.job_type, &job.id))?;
    output::clear(tx, keys, job)?;
    followers::clear(tx, keys, job)?;
    followers::leave(tx, keys, job, &Inputs::new())?;
    Ok(tx.clear_range(keys.options(&job.job_type, &job.id))?)
}

/// Flags a running job and signals its worker.
async fn request_stop(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    let Some(run) = job.run_mut() else { return Ok(()) };
    run.cancel_requested = true;
    let worker = run.claim.worker.clone();
    write_job(tx, keys, job)?;
    if let Some(mut active) = read_active(tx, keys, &job.job_type, &worker, &job.id).await? {
        active.cancel_requested = true;
        write_active(tx, keys, job, &worker, &active)?;
    }
    Ok(tx.set_versionstamp(keys.signal(&job.job_type, &worker))?)
}
