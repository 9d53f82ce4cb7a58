//! The operations of workers on jobs. Every write is fenced: its transaction returns [`Error::Halt`] unless the claim still
//! holds the job and the worker is still a member.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_policy::backoff::OnLost;
use turnwise_policy::eligibility::dependencies::DependencyEnd;
use turnwise_policy::eligibility::filters::Limits;
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_store::Transaction;

use crate::concurrency::{self, Full, Tally};
use crate::deadlines::{Deadline, Over};
use crate::error::corrupt;
use crate::jobs::{MAX_ACTIVE_OF_WORKER, PREFETCHED, erase_on_request, refuse};
use crate::keyspace::SortKey;
use crate::locks::{self, Availability, Blocked};
use crate::place::{End, Next, Place, Run};
use crate::rows::{decode, encode, read_active, read_active_info, read_job, write_active, write_job};
use crate::spec::check_size;
use crate::transition::place_from;
use crate::transition::{self, move_to};
use crate::type_terms::TermsOfType;
use crate::{
    Active, Claim, Context, Error, EventKind, Job, JobResult, Keyspace, LogLine, MAX_INFO_BYTES, Mode,
    Parked, Result, RunError, RunKey, State, Terms, Then, dependencies, events, jobs, lifetime_rows, output,
    parking, reads, schedules, unique_rows,
};

/// The result of [`release_due`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillDelayed {
    /// When the next remaining job is due, if there is one; in the past if more jobs can be released immediately.
    pub next_due_us: Option<i64>,
    /// The first due job that was skipped because it is not `mine`.
    pub left: Option<String>,
    /// The tenants of the jobs that are pending now.
    pub released: BTreeSet<String>,
}

/// Moves up to `limit` due delayed jobs into the pending queue, if they are `mine`. When several workers release jobs, each
/// skips the jobs of another worker's part.
pub async fn release_due(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    now_us: i64,
    limit: usize,
    mine: impl Fn(&str) -> bool,
) -> Result<StillDelayed> {
    // The extra row gives the time at which the next one is due.
    let rows = reads::rows(tx, keys.delayed(job_type), limit + 1).await?;
    let due = rows.iter().filter_map(|(key, _)| keys.parse_delayed(key).ok());
    let due = due.filter(|(not_before_us, id)| *not_before_us <= now_us && mine(id)).take(PREFETCHED);
    let due: Vec<String> = due.map(|(_, id)| id).collect();
    jobs::prefetch(tx, keys, due.iter().map(|id| (job_type, id.as_str()))).await?;
    let (mut moved, mut left, mut released) = (0, None, BTreeSet::new());
    for (n, (key, _)) in rows.iter().enumerate() {
        let (not_before_us, id) = keys.parse_delayed(key)?;
        if not_before_us > now_us || moved > 0 && (n == limit || !tx.has_room()) {
            return Ok(StillDelayed { next_due_us: Some(not_before_us), left, released });
        }
        if !mine(&id) {
            left.get_or_insert(id);
            continue;
        }
        moved += 1;
        let mut job = read_job(tx, keys, job_type, &id)
            .await?
            .ok_or_else(|| corrupt("delayed key", "has no job record"))?;
        let is_there =
            matches!(job.state(), State::Delayed | State::Crashing) && job.order_us() == not_before_us;
        if !is_there {
            return Err(corrupt("delayed key", "its job is in another place"));
        }
        move_to(tx, keys, &mut job, Place::pending(not_before_us))?;
        write_job(tx, keys, &job)?;
        released.insert(job.into_fields().spec.tenant);
    }
    Ok(StillDelayed { next_due_us: None, left, released })
}

/// How many delayed jobs of a type are due, and were not released yet; counts up to `most`. Adds no read conflict.
#[boxed]
pub async fn count_due(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    now_us: i64,
    most: usize,
) -> Result<usize> {
    let (begin, _) = keys.delayed(job_type);
    let end = keys.delayed_entry(job_type, now_us.saturating_add(1), "");
    Ok(reads::rows(tx, (begin, end), most).await?.len())
}

/// The number of the next claim of a worker that does not count its claims itself.
#[boxed]
pub async fn next_number(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<u64> {
    let next = latest_number(tx, keys, job_type, worker).await? + 1;
    set_latest_number(tx, keys, job_type, worker, next)?;
    Ok(next)
}

/// Records the number of a claim that follows [`latest_number`] in this transaction.
pub fn set_latest_number(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    number: u64,
) -> Result<()> {
    Ok(tx.set(keys.claim_number(job_type, worker), encode(&number))?)
}

/// The number of the latest claim of a worker that does not count its claims itself; 0 before its first one.
#[boxed]
pub async fn latest_number(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<u64> {
    let row = keys.claim_number(job_type, worker);
    Ok(reads::value(tx, &row, "claim number").await?.unwrap_or(0))
}

/// The numbers of the claims under which a worker holds jobs, up to `limit` of them. Adds no read conflict.
#[boxed]
pub async fn numbers(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    limit: usize,
) -> Result<Vec<u64>> {
    /// The only field of an active row that is read.
    #[derive(serde::Deserialize)]
    struct Number {
        claim: u64,
    }
    let read = |_: &Bytes, value: &Bytes| decode("active row", value).map(|Number { claim }| claim);
    reads::list(tx, keys.active_of(job_type, worker), limit, read).await
}

/// The jobs that a worker holds under claims with numbers above `number`, in the order of numbers. Returns up to `limit`,
/// or as many as the transaction has room for. The worker may not have received the assignment of these jobs. Empty only if
/// there are none.
#[boxed]
pub async fn claims_after(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    number: u64,
    limit: usize,
) -> Result<Vec<Job>> {
    check_member(tx, keys, job_type, worker).await?;
    let active = jobs::active_of(tx, keys, job_type, worker, MAX_ACTIVE_OF_WORKER).await?;
    let mut found: Vec<_> = active.into_iter().map(|(id, active)| (active.claim, id)).collect();
    found.retain(|(claim, _)| *claim > number);
    found.sort_unstable();
    found.truncate(limit);
    let mut jobs = Vec::with_capacity(found.len());
    for (number, id) in found {
        let claim = Claim { worker: worker.to_owned(), number };
        jobs.push(held(tx, keys, job_type, &id, &claim).await?);
        if !tx.has_room() {
            break;
        }
    }
    Ok(jobs)
}

/// The result of a claim.
#[derive(Debug, Clone)]
pub enum Claiming {
    /// The worker has the job, which holds all locks that it knew in advance.
    Claimed {
        /// The job as it is now.
        job: Job,
        /// How long it could have run before, in µs.
        waited_us: i64,
    },
    /// It is no longer pending: another worker claimed it, or a client changed it.
    Gone,
    /// It has not started in time ([`crate::lifetimes::set_aside`]). Nothing was written.
    Due,
    /// A lock that it wants is not free. It stays pending and nothing was written: the caller may claim the next job.
    Blocked(Box<Blocked>),
    /// It is in a bucket without room. It stays pending and nothing was written.
    Limited(Box<Full>),
    /// Its locks do not fit into this transaction any more: claim it in the next one. Never returned in a transaction that
    /// has done nothing else.
    NoRoom,
}

impl Claiming {
    /// The job, if it was claimed.
    pub fn job(self) -> Option<Job> {
        match self {
            Claiming::Claimed { job, .. } => Some(job),
            Claiming::Gone
            | Claiming::Due
            | Claiming::Blocked(_)
            | Claiming::Limited(_)
            | Claiming::NoRoom => None,
        }
    }
}

/// [`claim_with`] with the default levels. `None` if the job was not claimed.
#[boxed]
pub async fn claim<'a>(context: Context<'a>, id: &'a str, claim: &Claim) -> Result<Option<Job>> {
    static LEVELS: LazyLock<Levels> = LazyLock::new(Levels::default);
    Ok(claim_with(context, &LEVELS, id, claim).await?.job())
}

/// Claims a pending job under `claim`, a number that its worker has never used. Takes the locks that the job knows it wants,
/// and a place in each bucket that its reasons name: all of them or none.
pub async fn claim_with(context: Context<'_>, levels: &Levels, id: &str, claim: &Claim) -> Result<Claiming> {
    let (mut tally, settings) = (Tally::default(), Terms::default());
    claim_within(context, levels, &mut tally, None, &TermsOfType::from(&settings), id, claim).await
}

/// Like [`claim_with`], under `terms` and with the limits of a filter. A transaction that claims several jobs passes the
/// same `tally` for all of them.
#[boxed]
pub async fn claim_within<'a>(
    context: Context<'a>,
    levels: &'a Levels,
    tally: &mut Tally,
    filter: Option<&Limits>,
    terms: &TermsOfType<'a>,
    id: &str,
    claim: &Claim,
) -> Result<Claiming> {
    let Context { tx, keys, job_type, now_us, kept } = context;
    let Membership { external, .. } = check_member(tx, keys, job_type, &claim.worker).await?;
    // Read without a conflict; only a claim adds one. So jobs that cannot be claimed use up no room of the transaction.
    let Some(mut job) = jobs::peek(tx, keys, job_type, id).await? else { return Ok(Claiming::Gone) };
    if !job.is_pending() {
        return Ok(Claiming::Gone);
    }
    if job.due_us.is_some_and(|due_us| due_us <= now_us) {
        return Ok(Claiming::Due);
    }
    let (limits, rates) = job.limits(filter);
    let all = limits.len() + rates.len();
    if !tx.has_room_for(5 * all, 2 * all) {
        return Ok(Claiming::NoRoom);
    }
    if let Some(full) = tally.full(tx, keys, job.task.as_deref(), (&limits, &rates), now_us).await? {
        return Ok(Claiming::Limited(Box::new(full)));
    }
    let held = match locks::known(tx, keys, levels, &job).await? {
        Availability::None => None,
        Availability::Free(held) => Some(*held),
        Availability::Blocked(blocked) => return Ok(Claiming::Blocked(blocked)),
        Availability::NoRoom => return Ok(Claiming::NoRoom),
    };
    tx.add_read_conflict(keys.job(job_type, id));
    // A job that its worker gave back has the place of its last start, but waits only since it was given back.
    let waited_us = now_us.saturating_sub(job.order_us().max(job.changed_us)).max(0);
    let terms = job.run_terms(&terms.of(job.task.as_deref()));
    let timeouts = terms.timeouts;
    let buckets = limits.iter().map(|limit| limit.bucket.clone()).collect();
    let run = Run::new(claim.clone(), terms, held, buckets);
    move_to(tx, keys, &mut job, Place::Active(Arc::new(run)))?;
    job.started_us = Some(now_us);
    job.record(now_us, EventKind::Started, kept.history);
    events::happened(tx, keys, &job, &EventKind::Started, job.state(), now_us)?;
    write_job(tx, keys, &job)?;
    // A worker inside a process enforces the timeouts of its runs itself.
    let timeouts = Some(timeouts).filter(|_| external);
    let deadline = timeouts.and_then(|timeouts| Deadline::of_start(timeouts, now_us));
    if let Some(deadline) = deadline {
        deadline.enter(tx, keys, &job, claim)?;
    }
    let active = Active {
        claim: claim.number,
        tenant: job.tenant.clone(),
        user: job.user.clone(),
        task: job.task.clone(),
        started_us: now_us,
        reported_us: None,
        cancel_requested: false,
        continuous: job.continuous,
        deadline,
        summary: job.summary.clone(),
        info: job.info.clone(),
    };
    write_active(tx, keys, &job, &claim.worker, &active)?;
    locks::take(tx, keys, levels, &job, claim, now_us)?;
    tally.take(tx, keys, &job, claim, (&limits, &rates), now_us).await?;
    Ok(Claiming::Claimed { job, waited_us })
}

/// The answer to a worker's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The run continues.
    Continue,
    /// A client has asked the job to stop.
    Cancel,
}

/// Why a run stops without an error, if no client has asked for it. None of these counts as an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// Its worker shuts down.
    Shutdown,
    /// Its worker drains.
    Drain,
    /// Another job waits for its slot.
    Preempted,
    /// Its worker has fewer slots now.
    FewerSlots,
    /// Another worker has fewer jobs.
    Balanced,
    /// Its worker has released it.
    Released,
}

impl StopCause {
    /// The reason in the job's history.
    pub fn reason(self) -> &'static str {
        match self {
            StopCause::Shutdown => "its worker shuts down",
            StopCause::Drain => "its worker drains",
            StopCause::Preempted => "preempted for a waiting job",
            StopCause::FewerSlots => "its worker has fewer slots",
            StopCause::Balanced => "moves to a worker with fewer jobs",
            StopCause::Released => "its worker released it",
        }
    }
}

/// What a run reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report<'a> {
    /// The progress, in place of the last report.
    pub info: Option<&'a RawValue>,
    /// Lines of log.
    pub log: &'a [LogLine],
    /// Why it stops, at its end.
    pub cause: Option<StopCause>,
}

impl<'a> Report<'a> {
    /// Of progress only.
    pub fn of(info: Option<&'a RawValue>) -> Self {
        Report { info, ..Report::default() }
    }

    fn check(&self) -> Result<()> {
        self.info.map_or(Ok(()), |info| check_size("info", info, MAX_INFO_BYTES))?;
        output::check_log(self.log)
    }
}

/// Reports progress: replaces the job's `info`. Writes only the worker's own row.
#[boxed]
pub async fn update(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    id: &str,
    claim: &Claim,
    info: &RawValue,
    now_us: i64,
) -> Result<Answer> {
    report(tx, keys, RunKey::new(job_type, id, claim), Report::of(Some(info)), now_us).await
}

/// The same with lines of log, which have rows of their own.
#[boxed]
pub async fn report<'a>(
    tx: &'a Transaction,
    keys: &Keyspace,
    RunKey { job_type, id, claim }: RunKey<'a>,
    report: Report<'a>,
    now_us: i64,
) -> Result<Answer> {
    report.check()?;
    // The active row exists as long as the claim: ending or revoking the claim clears the row.
    check_member(tx, keys, job_type, &claim.worker).await?;
    let mut active = read_active(tx, keys, job_type, &claim.worker, id).await?.ok_or(Error::Halt)?;
    if active.claim != claim.number {
        return Err(Error::Halt);
    }
    if let Some(info) = report.info {
        active.info = Some(info.to_owned());
    }
    active.reported_us = Some(now_us);
    output::append_to_running(tx, keys, (job_type, id), &active.tenant, report.log, now_us).await?;
    let row = keys.active_entry(job_type, &claim.worker, id);
    tx.set(row, encode(&active))?;
    Ok(if active.cancel_requested { Answer::Cancel } else { Answer::Continue })
}

/// How a run ended.
#[derive(Debug, Clone)]
pub enum Ending {
    /// Without an error, with this result. Too large a result fails the job.
    Completed(JobResult),
    /// With a permanent error.
    Failed(RunError),
    /// With a temporary error.
    Crashed {
        /// What went wrong.
        error: RunError,
        /// The job does not start again before this time, in µs; by default, after the backoff of its terms.
        retry_us: Option<i64>,
    },
    /// Without an error and before its end: its handler puts the job off to this time, in µs. No attempt is counted.
    Snoozed {
        /// When it may start again.
        until_us: i64,
    },
    /// Without an error and before its end: a clean shutdown, or cancelled. The job keeps its place in the queue.
    Stopped,
    /// Without an error and before its end, so that another job can run. A continuous job is now behind the jobs of its tenant
    /// and priority that already wait. Another one stopped because its worker has fewer slots, and is before them.
    Preempted,
    /// Without an error, and the job is not over: it has nothing to do until its source changes.
    Parked(Park),
}

impl Ending {
    /// Without an error, with this result.
    pub fn completed(json: Box<RawValue>) -> Self {
        Ending::Completed(json.into())
    }

    /// The error, if there was one.
    pub fn error(&self) -> Option<&RunError> {
        match self {
            Ending::Failed(error) | Ending::Crashed { error, .. } => Some(error),
            Ending::Completed(_)
            | Ending::Snoozed { .. }
            | Ending::Stopped
            | Ending::Preempted
            | Ending::Parked(_) => None,
        }
    }
}

/// The values that a job stores when it parks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Park {
    /// What wakes it.
    pub at: Parked,
    /// The state of its source that the job last saw: a watcher that finds another state wakes the job. At most
    /// [`parking::MAX_TOKEN_BYTES`].
    pub token: String,
    /// When it runs again without a change, in µs.
    pub not_before_us: i64,
}

/// The result of ending a run.
#[derive(Debug, Clone)]
pub enum Ended {
    /// The end is recorded. The job as it is now, or `None` if it was removed.
    Recorded(Option<Job>),
    /// This claim had already recorded its end, and nothing was changed. The job as it is now.
    AlreadyRecorded(Job),
}

/// Ends a run, and with it the claim. `info` is the job's last report. `sort_key` is that of the next run, where keys decide.
/// Idempotent: safe to repeat when the outcome is not known.
#[boxed]
pub async fn end<'a>(
    context: Context<'a>,
    id: &'a str,
    claim: &Claim,
    ending: &Ending,
    info: Option<&RawValue>,
    sort_key: Option<f64>,
) -> Result<Ended> {
    end_with(context, id, claim, ending, Report::of(info), sort_key).await
}

/// The same with lines of log.
#[boxed]
pub async fn end_with<'a>(
    context: Context<'a>,
    id: &'a str,
    claim: &Claim,
    ending: &Ending,
    report: Report<'a>,
    sort_key: Option<f64>,
) -> Result<Ended> {
    let Context { tx, keys, job_type, now_us, kept } = context;
    let Membership { mode, .. } = check_member(tx, keys, job_type, &claim.worker).await?;
    let mut job = read_job(tx, keys, job_type, id).await?.ok_or(Error::Halt)?;
    if !is_held(&job, claim) {
        let recorded = job.ended_claim.as_ref() == Some(claim);
        return if recorded { Ok(Ended::AlreadyRecorded(job)) } else { Err(Error::Halt) };
    }
    // All checks come before the first write: a caller may skip this end on an error, and commit others.
    report.check()?;
    let too_large = match ending {
        Ending::Completed(result) => result.problem(kept, tx.limits().transaction_bytes),
        _ => None,
    };
    let refused = too_large.map(|problem| Ending::Failed(problem.into())).or_else(|| {
        let Ending::Crashed { error, .. } = ending else { return None };
        let is_final = job.run().is_some_and(|run| run.terms.is_final(error.class.as_deref()));
        is_final.then(|| Ending::Failed(error.clone()))
    });
    let ending = refused.as_ref().unwrap_or(ending);
    if let Ending::Parked(park) = ending {
        parking::check(park)?;
    }
    job.ended_claim = Some(claim.clone());
    let streak = job.streak(now_us);
    let run = end_run(tx, keys, &mut job, claim).await?;
    if let Some(info) = report.info {
        job.info = Some(info.to_owned());
    }
    job.has_output |= output::append(tx, keys, (job_type, id), &job.tenant, report.log, now_us).await?;
    if let Some(key) = sort_key.and_then(SortKey::new) {
        job.sort_key = Some(key.get());
    }
    let again = run.then == Then::Again;
    let kind = match ending {
        // A client's request to stop overrides how the handler ended, unless the job was completed or failed.
        Ending::Crashed { .. }
        | Ending::Snoozed { .. }
        | Ending::Stopped
        | Ending::Preempted
        | Ending::Parked(_)
            if run.cancel_requested && !again =>
        {
            EventKind::Cancelled
        }
        Ending::Parked(_) => EventKind::Stopped { reason: None },
        Ending::Stopped | Ending::Preempted => {
            let drains = report.cause == Some(StopCause::Released) && mode == Mode::Drain;
            let cause = if drains { Some(StopCause::Drain) } else { report.cause };
            EventKind::Stopped { reason: cause.map(|cause| cause.reason().to_owned()) }
        }
        Ending::Completed(result) => {
            output::store_result(tx, keys, &mut job, result)?;
            EventKind::Completed
        }
        Ending::Failed(error) => EventKind::Failed { reason: error.reason() },
        // The last attempt has crashed.
        Ending::Crashed { error, .. } if run.terms.is_last(job.attempts.saturating_add(1)) => {
            EventKind::Failed { reason: error.reason() }
        }
        Ending::Snoozed { .. } if !again && !run.terms.may_snooze(job.snoozes) => EventKind::Failed {
            reason: format!("it was put off more often than its max_snoozes, {}", job.snoozes),
        },
        Ending::Snoozed { .. } => EventKind::Snoozed,
        Ending::Crashed { error, .. } => EventKind::Crashed { reason: error.reason() },
    };
    job.error_class = ending.error().and_then(RunError::failure_class);
    job.record(now_us, kind.clone(), kept.history);
    if run.then == Then::Remove {
        events::happened(tx, keys, &job, &kind, state_after(&kind), now_us)?;
        schedules::job_ended(tx, keys, &job, end_of(&kind), now_us).await?;
        let outcome = end_of(&kind).map_or(DependencyEnd::Removed, End::outcome);
        dependencies::settle_ended(tx, keys, &mut job, outcome, now_us).await?;
        erase_on_request(tx, keys, &job).await?;
        return Ok(Ended::Recorded(None));
    }
    match ending {
        Ending::Crashed { .. } => job.crashes = streak.saturating_add(1),
        // A job that has done all its work has no consecutive crashes.
        Ending::Completed(_) | Ending::Failed(_) | Ending::Parked(_) => job.crashes = 0,
        // The run stopped before it could prove healthy: the number of consecutive crashes stays.
        Ending::Stopped | Ending::Preempted | Ending::Snoozed { .. } => job.crashes = streak,
    }
    if matches!(ending, Ending::Crashed { .. } | Ending::Completed(_) | Ending::Failed(_)) {
        job.attempts = job.attempts.saturating_add(1);
    }
    if let Some(error) = ending.error() {
        output::keep_error(tx, keys, &mut job, error, kept.errors).await?;
    }
    if kind == EventKind::Snoozed {
        job.snoozes = job.snoozes.saturating_add(1);
    }
    let to = match ending {
        Ending::Crashed { retry_us, .. } => Place::Crashing {
            until_us: retry_us
                .unwrap_or_else(|| now_us.saturating_add(run.terms.wait_us(&job.id, job.crashes))),
        },
        Ending::Snoozed { until_us } => Place::Delayed { until_us: *until_us },
        Ending::Parked(park) => Place::Parked { until_us: park.not_before_us, at: park.at.clone() },
        Ending::Preempted if job.continuous => Place::pending(now_us),
        // Its worker has fewer slots now. It takes no turns with others, so it is the next to start, as before this run.
        Ending::Preempted => waiting(job.added_us.min(job.started_us.unwrap_or(now_us)), &run.next),
        Ending::Stopped | Ending::Completed(_) | Ending::Failed(_) => wait_again(&job, &run.next, now_us),
    };
    conclude(context, &mut job, &run, &kind, to).await?;
    if let (Ending::Parked(park), Place::Parked { .. }) = (ending, &job.place) {
        parking::enter(tx, keys, &job, park)?;
    }
    Ok(Ended::Recorded(Some(job)))
}

/// Moves a job after a run that ended in this way, which its history already has, and writes its record. It goes to its end, or, if it
/// was added again, to where its next run waits, or is cancelled if that run was refused; otherwise it goes `to` this place.
async fn conclude(context: Context<'_>, job: &mut Job, run: &Run, kind: &EventKind, to: Place) -> Result<()> {
    let Context { tx, keys, now_us, .. } = context;
    let again = run.then == Then::Again;
    let end = end_of(kind).filter(|_| !again);
    let refused = run.next.refused.as_ref().filter(|_| !again && end.is_none());
    if refused.is_some() {
        events::happened(tx, keys, job, kind, state_after(kind), now_us)?;
    }
    match (end, refused) {
        _ if again => {
            job.attempts = 0;
            job.snoozes = 0;
            // The result of the earlier request.
            output::clear_result(tx, keys, job)?;
            let Next { unmet, not_before_us, .. } = run.next;
            move_to(tx, keys, job, place_from(unmet, Some(not_before_us), now_us))?;
            lifetime_rows::await_start(tx, keys, job, not_before_us, now_us).await?;
        }
        (Some(end), _) => {
            // If the job was added again after the request to stop, and that was refused, the refusal is the reason.
            if end == End::Cancelled {
                job.refused.clone_from(&run.next.refused);
            }
            move_to(tx, keys, job, Place::Ended(end))?;
        }
        (None, Some(reason)) => {
            transition::leave(tx, keys, job)?;
            refuse(tx, keys, job, reason, now_us).await?;
        }
        (None, None) => move_to(tx, keys, job, to)?,
    }
    if !job.state().is_final() {
        unique_rows::take_again(tx, keys, job, now_us).await?;
    }
    if refused.is_none() {
        events::happened(tx, keys, job, kind, job.state(), now_us)?;
    }
    if let Some(end) = end {
        schedules::job_ended(tx, keys, job, Some(end), now_us).await?;
        dependencies::settle_ended(tx, keys, job, end.outcome(), now_us).await?;
    }
    write_job(tx, keys, job)
}

/// The end of a job whose run ended like this; `None` if the job has not ended.
fn end_of(kind: &EventKind) -> Option<End> {
    match kind {
        EventKind::Completed => Some(End::Completed),
        EventKind::Failed { .. } => Some(End::Failed),
        EventKind::Cancelled => Some(End::Cancelled),
        EventKind::Added
        | EventKind::Started
        | EventKind::Stopped { .. }
        | EventKind::Crashed { .. }
        | EventKind::Snoozed
        | EventKind::Expired
        | EventKind::Edited { .. }
        | EventKind::Held { .. }
        | EventKind::Released { .. } => None,
    }
}

/// A job's state after the end of a run, unless something else follows.
fn state_after(kind: &EventKind) -> State {
    match (end_of(kind), kind) {
        (Some(end), _) => end.state(),
        (None, EventKind::Crashed { .. }) => State::Crashing,
        (None, EventKind::Snoozed) => State::Delayed,
        (None, _) => State::Pending,
    }
}

/// Why a claim is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RevocationCause {
    /// The worker leaves, and gives its jobs back.
    Left,
    /// The worker is lost. It was last seen at this time, in µs.
    Lost { seen_us: i64 },
    /// The run has exceeded a timeout.
    Expired(Over),
}

/// Revokes a worker's claim on a job. A job that is given back is pending again. A timeout counts as a crash, and so does
/// the loss of the worker unless the terms state otherwise. If a client has requested it, the job is removed or cancelled.
/// If a client has added the job again, it runs again, not before the requested time.
pub(crate) async fn take_back(
    context: Context<'_>,
    job: &mut Job,
    claim: &Claim,
    cause: RevocationCause,
) -> Result<()> {
    let Context { tx, keys, now_us, kept, .. } = context;
    let worker = &claim.worker;
    let (seen_us, lost) = match cause {
        RevocationCause::Left => (now_us, Some("its worker left".to_owned())),
        RevocationCause::Lost { seen_us } => (seen_us, Some(format!("its worker {worker} was lost"))),
        RevocationCause::Expired(over) => (now_us, Some(format!("{over}: taken from its worker {worker}"))),
    };
    let streak = job.streak(seen_us);
    let run = end_run(tx, keys, job, claim).await?;
    let counts = matches!(cause, RevocationCause::Expired(_)) || run.terms.on_lost == OnLost::Count;
    if run.then == Then::Remove {
        dependencies::settle_ended(tx, keys, job, DependencyEnd::Removed, now_us).await?;
        return erase_on_request(tx, keys, job).await;
    }
    job.crashes = streak;
    job.error_class = None;
    let again = run.then == Then::Again;
    let kind = match lost {
        _ if run.cancel_requested && !again => EventKind::Cancelled,
        Some(reason) if counts && cause != RevocationCause::Left && !run.cancel_requested => {
            job.crashes = streak.saturating_add(1);
            job.attempts = job.attempts.saturating_add(1);
            match !again && run.terms.is_last(job.attempts) {
                true => EventKind::Failed { reason },
                false => EventKind::Crashed { reason },
            }
        }
        reason => EventKind::Stopped { reason },
    };
    job.record(now_us, kind.clone(), kept.history);
    let to = match kind {
        EventKind::Crashed { .. } => {
            Place::Crashing { until_us: now_us.saturating_add(run.terms.wait_us(&job.id, job.crashes)) }
        }
        _ => wait_again(job, &run.next, now_us),
    };
    conclude(context, job, &run, &kind, to).await
}

/// Pending again, in the order of the time at which the run started: being stopped does not cost the job its place.
fn wait_again(job: &Job, next: &Next, now_us: i64) -> Place {
    waiting(job.started_us.unwrap_or(now_us), next)
}

fn waiting(order_us: i64, next: &Next) -> Place {
    match next.unmet {
        0 => Place::pending(order_us),
        unmet => Place::Blocked { until_us: order_us, unmet },
    }
}

/// Clears the active row, its deadline, the locks and the places in buckets, and keeps the last report. Returns the run; the
/// job stays in its place until it [moves](move_to).
async fn end_run(tx: &Transaction, keys: &Keyspace, job: &mut Job, claim: &Claim) -> Result<Arc<Run>> {
    if let Some((info, deadline)) = read_active_info(tx, keys, job, &claim.worker).await? {
        job.info = info;
        if let Some(deadline) = deadline {
            deadline.leave(tx, keys, job)?;
        }
    }
    locks::release(tx, keys, job)?;
    concurrency::release(tx, keys, job).await?;
    concurrency::wake_for_task(tx, keys, job).await?;
    tx.clear(keys.active_entry(&job.job_type, &claim.worker, &job.id))?;
    match &job.place {
        Place::Active(run) => Ok(run.clone()),
        _ => Err(corrupt("job record", "not a run")),
    }
}

/// The job, if this claim still holds it and its worker is still a member.
#[boxed]
pub async fn held(tx: &Transaction, keys: &Keyspace, job_type: &str, id: &str, claim: &Claim) -> Result<Job> {
    check_member(tx, keys, job_type, &claim.worker).await?;
    let job = read_job(tx, keys, job_type, id).await?.ok_or(Error::Halt)?;
    if is_held(&job, claim) { Ok(job) } else { Err(Error::Halt) }
}

/// Reads at the same time what [`end`] reads for each of these runs, given by job id and worker
/// ([`Transaction::prefetch`]).
pub async fn prefetch_ends<'a>(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    runs: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<()> {
    let rows =
        runs.flat_map(|(id, worker)| [keys.job(job_type, id), keys.active_entry(job_type, worker, id)]);
    Ok(tx.prefetch(rows).await?)
}

fn is_held(job: &Job, claim: &Claim) -> bool {
    job.claim() == Some(claim)
}

/// The fields of a member's row that are read.
#[derive(Clone, Copy, serde::Deserialize)]
struct Membership {
    #[serde(default)]
    external: bool,
    #[serde(default)]
    mode: Mode,
}

/// Checks that the worker is still a member; serialised against its removal.
async fn check_member(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<Membership> {
    match tx.get(&keys.worker(job_type, worker)).await? {
        Some(value) => membership(value),
        None => Err(Error::Halt),
    }
}

/// Decodes a member's row. A transaction that claims or ends many jobs checks the same row for each of them.
fn membership(value: Bytes) -> Result<Membership> {
    thread_local! {
        /// The row that was decoded last.
        static DECODED: RefCell<Option<(Bytes, Membership)>> = const { RefCell::new(None) };
    }
    DECODED.with_borrow_mut(|decoded| match decoded {
        Some((row, membership)) if *row == value => Ok(*membership),
        _ => {
            let membership = decode("worker row", &value)?;
            // A copy: the row may share the memory of many others.
            *decoded = Some((Bytes::copy_from_slice(&value), membership));
            Ok(membership)
        }
    })
}
