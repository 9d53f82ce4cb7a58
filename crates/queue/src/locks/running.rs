//! Locks that a running job requests, waits for and releases, under its claim.

use async_recursion::async_recursion as boxed;
use turnwise_policy::predictive_queue::locks::{Levels, MAX_RESOURCES, Mode, Scope};
use turnwise_store::{Isolation, RangeRead, Transaction};

use super::held::Waits;
use super::held::{Held, LockAt, MAX_LOCKS_BYTES, Spot, allows, most_locks};
use super::rows::{QueueRow, View, Waiter, capacity, put_all, put_holder, wake};
use super::search::{Blocked, MAX_LOOKED_AT, Rule, Search};
use crate::claims::held as held_job;
use crate::job::Job;
use crate::keyspace::KeyRange;
use crate::rows::{encode, write_job};
use crate::{Claim, Error, Keyspace, Result, RunKey};

/// The most blockers that an answer names.
const MOST_TOLD: usize = 8;

/// The result of a request for locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// All of them are held.
    Granted,
    /// The job waits for this lock, in its queue. It holds the requested locks that come before this one in the lock order;
    /// later ones were not checked. Request again when [`Keyspace::lock_wake`] has changed.
    Waits(Blocked),
    /// This lock is not free, and the job must not wait for it. The job holds a lock that comes later in the lock order, and
    /// a holder of this lock may wait for that one. The job holds the requested locks that come before this one, and waits
    /// for none.
    OutOfOrder {
        /// The lock that is not free, and what blocks it.
        blocked: Blocked,
        /// The held lock that comes later in the order.
        above: LockAt,
    },
}

/// Requests locks for a running job. Locks that it already holds are granted immediately, so that a request can be repeated.
/// The others are taken one by one, in the order of [`Lock`](turnwise_policy::predictive_queue::locks::Lock). If one is not
/// free, the job waits for it: it is [`State::Waiting`](crate::State::Waiting), and is in that lock's queue. It leaves the
/// queue when the lock is granted ([`poll`], or another request), when it [`withdraw`]s, or when the claim ends.
///
/// A caller that waits reads [`Keyspace::lock_wake`] first in the transaction of the request, and requests again when the
/// value has changed.
///
/// # Errors
/// `Halt` for a lost claim. `Invalid` for a lock that the job's declaration does not cover, an unknown level, or too many
/// locks; also while the job waits for another lock.
#[boxed]
pub async fn request<'a>(
    tx: &'a Transaction,
    keys: &Keyspace,
    levels: &Levels,
    run: RunKey<'a>,
    locks: &[LockAt],
    now_us: i64,
) -> Result<Asked> {
    let job = held_job(tx, keys, run.job_type, run.id, run.claim).await?;
    let mut ordered = Vec::with_capacity(locks.len());
    if locks.len() > MAX_RESOURCES {
        return Err(refuse(format!("{} are asked for at once; at most {MAX_RESOURCES} can be", locks.len())));
    }
    for lock in locks {
        ordered.push((check(levels, &job, lock)?, lock.clone()));
    }
    ordered.sort();
    let ordered: Vec<LockAt> = ordered.into_iter().map(|(_, lock)| lock).collect();
    take((tx, keys, levels), job, run.claim, &ordered, now_us).await
}

/// Checks whether a waiting job can have its lock now, and grants it. `Granted` for a job that does not wait.
///
/// # Errors
/// `Halt` for a lost claim.
#[boxed]
pub async fn poll<'a>(
    tx: &'a Transaction,
    keys: &Keyspace,
    levels: &Levels,
    run: RunKey<'a>,
    now_us: i64,
) -> Result<Asked> {
    let job = held_job(tx, keys, run.job_type, run.id, run.claim).await?;
    let locks: Vec<LockAt> = job.waits().into_iter().map(|waits| waits.lock.clone()).collect();
    take((tx, keys, levels), job, run.claim, &locks, now_us).await
}

/// Stops waiting: the job continues with the locks that it holds. An earlier request may still be in flight, after its
/// caller has disconnected or given up. That request now conflicts, even if the job does not wait yet.
///
/// # Errors
/// `Halt` for a lost claim.
#[boxed]
pub async fn withdraw<'a>(tx: &'a Transaction, keys: &Keyspace, run: RunKey<'a>, now_us: i64) -> Result<()> {
    let mut job = held_job(tx, keys, run.job_type, run.id, run.claim).await?;
    if job.waits().is_some() {
        leave_queue(tx, keys, &mut job)?;
        job.changed_us = now_us;
        put_all(tx, keys, &job)?;
    }
    // Written also if nothing has changed: a transaction that read the record before conflicts.
    write_job(tx, keys, &job)
}

/// Releases locks before the end of the run. Idempotent: locks that are not held are ignored. A lock on a whole level can
/// only be released as a whole, and the big lock not at all.
///
/// # Errors
/// `Halt` for a lost claim. `Invalid` for the big lock, and while the job waits for a lock. Its place in that lock's queue
/// depends on the locks that it held when it entered the queue, which rules out deadlocks.
#[boxed]
pub async fn release_some<'a>(
    tx: &'a Transaction,
    keys: &Keyspace,
    run: RunKey<'a>,
    spots: &[Spot],
) -> Result<()> {
    let mut job = held_job(tx, keys, run.job_type, run.id, run.claim).await?;
    if spots.contains(&Spot::BIG_LOCK) {
        return Err(refuse("the big lock goes with the claim, and not before it".to_owned()));
    }
    if let Some(waits) = job.waits() {
        return Err(refuse(format!(
            "the job waits for {} and gives nothing back before it has it, or withdraws",
            waits.lock
        )));
    }
    let Some(mut held) = job.held().cloned() else { return Ok(()) };
    let mut changed = false;
    for spot in spots {
        if let Some(mode) = held.remove(spot) {
            tx.clear(keys.lock_holder(spot, mode, run.job_type, run.id))?;
            changed = true;
        }
    }
    if !changed {
        return Ok(());
    }
    set_held(&mut job, held);
    wake(tx, keys)?;
    put_all(tx, keys, &job)?;
    write_job(tx, keys, &job)
}

fn refuse(problem: String) -> Error {
    Error::Invalid { field: "locks", problem }
}

/// Whether a job may request a lock; returns the lock's scope in the levels.
fn check(levels: &Levels, job: &Job, lock: &LockAt) -> Result<Scope> {
    let Some(scope) = lock.spot.scope(levels) else {
        let known: Vec<&str> = levels.names().collect();
        let level = lock.spot.level.as_deref().unwrap_or_default();
        return Err(refuse(format!("there is no level {level:?}; the levels are {}", known.join(", "))));
    };
    let Some(held) = job.held() else {
        return Err(refuse(format!(
            "the job declares none, and asks for {lock}: declare what it may want, as \"unknown\" if nothing else is known"
        )));
    };
    let counted = capacity(levels, &lock.spot);
    if lock.units == 0 || lock.mode == Mode::Shared && counted.is_some_and(|most| lock.units > most) {
        let most = counted.map_or_else(String::new, |most| format!(", and it has {most}"));
        return Err(refuse(format!("{} units of {} are asked for{most}", lock.units, lock.spot)));
    }
    if !held.covers(lock, counted.is_some()) && !allows(&job.locks, lock) {
        let level = lock.spot.level.as_deref().unwrap_or_default();
        return Err(refuse(format!(
            "the job asks for {lock}, which it has not declared: name it, or say \"unknown\" of level {level:?}"
        )));
    }
    if let Some(name) = &lock.spot.name {
        turnwise_policy::predictive_queue::locks::check_name(name)
            .map_err(|problem| refuse(format!("a lock of level {:?} {problem}", lock.spot.level)))?;
    }
    Ok(scope)
}

/// Takes locks in the given order, up to the first that is not free.
async fn take(view: View<'_>, mut job: Job, claim: &Claim, locks: &[LockAt], now_us: i64) -> Result<Asked> {
    let (tx, keys, levels) = view;
    let Some(mut held) = job.held().cloned() else { return Ok(Asked::Granted) };
    let mut changed = false;
    let mut asked = Asked::Granted;
    for lock in locks {
        let counted = capacity(levels, &lock.spot).is_some();
        if held.covers(lock, counted) {
            continue;
        }
        if let Some(waits) = job.waits().filter(|waits| waits.lock != *lock) {
            return Err(refuse(format!(
                "the job waits for {} and cannot ask for {lock} before it",
                waits.lock
            )));
        }
        check_room(tx, &held, lock)?;
        if let Some(blocked) = free(view, &job, &held, lock).await? {
            if job.waits().is_none() {
                if let Some(above) = above(levels, &held, lock) {
                    asked = Asked::OutOfOrder { blocked, above };
                    break;
                }
                enter_queue(tx, keys, &mut job, claim, &held, lock, now_us).await?;
                changed = true;
            }
            asked = Asked::Waits(blocked);
            break;
        }
        if job.waits().is_some() {
            leave_queue(tx, keys, &mut job)?;
            job.changed_us = now_us;
        }
        if let Some((mode, _)) = held.at(&lock.spot) {
            tx.clear(keys.lock_holder(&lock.spot, mode, &job.job_type, &job.id))?;
        }
        if lock.spot.level.is_some() {
            put_holder(view, &job, claim, lock, now_us)?;
        }
        held.add(lock);
        changed = true;
    }
    if changed {
        set_held(&mut job, held);
        put_all(tx, keys, &job)?;
        write_job(tx, keys, &job)?;
    }
    Ok(asked)
}

/// A claim holds only as many locks as its record and the transaction of its end have room for.
fn check_room(tx: &Transaction, held: &Held, lock: &LockAt) -> Result<()> {
    let most = most_locks(tx.limits());
    let bytes = encode(held).len() + encode(lock).len();
    if held.count() > most || bytes > MAX_LOCKS_BYTES {
        return Err(refuse(format!(
            "the job holds {} locks of {bytes} bytes and asks for more; {most} and {MAX_LOCKS_BYTES} bytes are possible: \
             ask for all of the level",
            held.count()
        )));
    }
    Ok(())
}

/// What blocks a lock; `None` if nothing does, which the transaction then proves. A blocked lock adds no conflict.
async fn free(view: View<'_>, job: &Job, held: &Held, lock: &LockAt) -> Result<Option<Blocked>> {
    let mut search = run_search(view, job, held, MOST_TOLD);
    let blocked = search.lock(lock).await?;
    if blocked.is_none() {
        search.prove();
    }
    Ok(blocked)
}

fn run_search<'a>(view: View<'a>, job: &'a Job, held: &'a Held, most: usize) -> Search<'a> {
    let rule = Rule::Run(job.waits().map(|waits| waits.ticket), held);
    Search::new(view, (&job.job_type, &job.id), rule, most)
}

/// The jobs that block a running job that waits, up to `most`: the holders of its lock, and then the jobs before it in a
/// queue. `None` if it does not wait, or if nothing blocks it. Adds no read conflict.
#[boxed]
pub async fn blockers_of_run(
    tx: &Transaction,
    keys: &Keyspace,
    levels: &Levels,
    job: &Job,
    most: usize,
) -> Result<Option<Blocked>> {
    let (Some(waits), Some(held)) = (job.waits(), job.held()) else { return Ok(None) };
    run_search((tx, keys, levels), job, held, most).lock(&waits.lock).await
}

/// Whether a running job holds this lock, or has declared that it may want it.
pub fn may_request(levels: &Levels, job: &Job, lock: &LockAt) -> bool {
    let counted = capacity(levels, &lock.spot).is_some();
    job.held().is_some_and(|held| held.covers(lock, counted)) || allows(&job.locks, lock)
}

/// A held lock that forbids waiting for this one: any that does not come before it. A held lock on a whole level comes after
/// each of its resources, because holders of one resource may wait for the next.
fn above(levels: &Levels, held: &Held, lock: &LockAt) -> Option<LockAt> {
    let wanted = lock.spot.scope(levels)?;
    let is_below = |other: &LockAt| match other.spot.scope(levels) {
        Some(Scope::BigLock) => wanted != Scope::BigLock,
        Some(Scope::WholeLevel(level)) => wanted.level().is_some_and(|wanted| level < wanted),
        Some(scope @ Scope::Resource { .. }) => before(&scope, &wanted),
        // A lock of a level that is no longer configured: it has no place in the order, and no job waits for it.
        None => true,
    };
    held.locks().into_iter().find(|other| !is_below(other))
}

fn before(one: &Scope, other: &Scope) -> bool {
    let name = |scope: &Scope| match scope {
        Scope::Resource { name, .. } => Some(name.clone()),
        _ => None,
    };
    (one.level(), name(one)) < (other.level(), name(other))
}

fn set_held(job: &mut Job, held: Held) {
    if let Some(run) = job.run_mut() {
        run.held = Some(held);
    }
}

/// Enters the queue of a lock, behind all entries. Does not write the record.
async fn enter_queue(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    claim: &Claim,
    held: &Held,
    lock: &LockAt,
    now_us: i64,
) -> Result<()> {
    // The ticket is above all tickets of the level, because the clock may be behind. Otherwise a job that is blocked by an
    // entry of another lock of the level could get a lower ticket than that entry. Then nothing would block it, and nothing
    // would wake it.
    let level = lock.spot.level.as_deref();
    let queues = level.map_or_else(|| keys.lock_queue(&lock.spot), |level| keys.lock_queues_at(level));
    let own = last_tickets(tx, keys, keys.lock_queue(&lock.spot), true, Isolation::Serializable).await?;
    let others = last_tickets(tx, keys, queues, false, Isolation::Snapshot).await?;
    let ticket = own.max(others).map_or(now_us, |last| now_us.max(last.saturating_add(1)));
    let inside = lock.spot.level.as_ref().is_none_or(|level| held.is_inside(level));
    let row = QueueRow {
        mode: lock.mode,
        units: lock.units,
        tenant: job.tenant.clone(),
        since_us: now_us,
        waits: Some(Waiter { claim: claim.clone(), inside }),
    };
    tx.set(keys.lock_queue_entry(&lock.spot, ticket, &job.job_type, &job.id), encode(&row))?;
    if let Some(run) = job.run_mut() {
        run.waits = Some(Waits { lock: lock.clone(), ticket, since_us: now_us });
    }
    job.changed_us = now_us;
    Ok(())
}

/// Leaves the queue of the lock that the job waits for. Does not write the record.
fn leave_queue(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    if let Some(waits) = job.run_mut().and_then(|run| run.waits.take()) {
        tx.clear(keys.lock_queue_entry(&waits.lock.spot, waits.ticket, &job.job_type, &job.id))?;
        // The jobs behind this one may get what it blocked.
        wake(tx, keys)?;
    }
    Ok(())
}

/// The highest ticket in a range of queues; of a single queue, that of the last row.
async fn last_tickets(
    tx: &Transaction,
    keys: &Keyspace,
    (begin, end): KeyRange,
    single: bool,
    isolation: Isolation,
) -> Result<Option<i64>> {
    let limit = if single { 1 } else { MAX_LOOKED_AT };
    let mut last = None;
    for (key, _) in tx.range_with(RangeRead { begin, end, limit, reverse: true }, isolation).await? {
        last = last.max(Some(keys.parse_lock_queue(&key)?.1));
    }
    Ok(last)
}
