//! Bulk operations: one change to all jobs that meet a condition.
//!
//! *Model.* An operation is a row: the condition, the action, who asked, how far the search has come, and what was done. A
//! step is one transaction. It reads a page of the [`Selection`], changes the jobs that meet the condition, and writes the
//! position and the counts into the row. So a step that is lost or made twice by two nodes is made once: both write the row,
//! and one of them conflicts.
//!
//! *Ownership.* The row names the node that makes the steps. Another node takes the operation over when it sees that the
//! number of steps has not changed for a while ([`take`]). Times of different nodes are not compared.
//!
//! *Promise.* A job that meets the condition from the start of the operation until it is reached is changed once. A job that
//! was added, added again, retried or run again after the start is left alone, and so the operation ends. A job that begins
//! to meet the condition otherwise may be changed or not. Jobs in some indices change their place there: while a pass over
//! such an index changes jobs, another pass follows, up to [`MAX_PASSES`].

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use crate::encoding::{decode, encode};
use crate::job::EventKind;
use crate::keyspace::behind;
use crate::names::check_name;
use crate::selection::{Page, Position, Selection};
use crate::spec::check_priority;
use crate::{Error, Holder, Job, Keyspace, Place, Result, State, Then, edit, jobs, reads};

/// Longest id of an operation, in bytes.
pub const MAX_BULK_ID_BYTES: usize = 128;
/// The most operations of a store that run at the same time.
pub const MAX_RUNNING: usize = 20;
/// The most of them that one identity has, unless it is an operator.
pub const MAX_RUNNING_OF_ONE: usize = 2;
/// The most operations that a store keeps, running or not.
pub const MAX_KEPT: usize = 200;
/// The most ids that a store remembers of operations that it does not keep.
const MAX_USED: usize = 2_000;
/// The most passes over the indices.
const MAX_PASSES: u32 = 4;

/// What happens to each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// As [`jobs::retry`] and [`jobs::rerun`].
    Retry,
    /// As [`jobs::cancel`].
    Cancel,
    /// As [`jobs::remove`].
    Remove,
    /// As [`jobs::set_priority`].
    Priority(i8),
    /// A job that waits for a time is pending now.
    RunNow,
    /// As [`edit::hold`].
    Hold,
    /// As [`edit::release`].
    Release,
}

/// How an operation stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It is not at its end.
    Running,
    /// It has reached all jobs.
    Done,
    /// A client has stopped it.
    Stopped,
    /// It cannot continue, for this reason.
    Failed(String),
}

/// An operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Operation {
    /// Its id. In the key, not in the value.
    #[serde(skip)]
    pub id: String,
    /// What happens to each job.
    pub action: Action,
    /// The condition.
    #[serde(rename = "where")]
    pub condition: String,
    /// The identity that asked for it; `None` on a store without identities.
    pub by: Option<String>,
    /// What that identity may do, as text.
    pub scopes: Vec<String>,
    /// When it began, in µs.
    pub begun_us: i64,
    /// How it stands.
    pub standing: Standing,
    /// When it ended, in µs.
    pub ended_us: Option<i64>,
    /// The node that makes its steps.
    pub node: String,
    /// The number of its steps so far.
    pub steps: u64,
    /// The number of jobs that it has looked at, without those that its identity may not see.
    pub looked_at: u64,
    /// About how many it will look at, as counted when it began; `None` if that was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<u64>,
    /// The number of these that met the condition.
    pub matched: u64,
    /// The number of these that it changed.
    pub changed: u64,
    /// The number of these that it did not change, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Where the search continues.
    at: Position,
    /// The number of complete passes.
    passes: u32,
    /// Whether this pass has changed a job.
    has_changed: bool,
}

/// An operation to begin.
#[derive(Debug, Clone)]
pub struct NewOperation {
    /// Its id.
    pub id: String,
    /// What happens to each job.
    pub action: Action,
    /// The condition.
    pub condition: String,
    /// See [`Operation::by`].
    pub by: Option<String>,
    /// See [`Operation::scopes`].
    pub scopes: Vec<String>,
    /// The node that begins it.
    pub node: String,
    /// Whether the identity is an operator, whose operations are limited only by [`MAX_RUNNING`].
    pub by_operator: bool,
}

/// What an identity may see and do.
pub trait Gate: Sync {
    /// Whether it may see the job. What it may not see is not counted.
    fn sees(&self, job: &Job) -> bool;
    /// Whether conditions on the job's options may be evaluated for it.
    fn tests_options(&self, job: &Job) -> bool;
    /// Whether it may change the job in this way.
    ///
    /// # Errors
    /// Why not.
    fn permits(&self, job: &Job, action: Action) -> Result<(), &'static str>;
    /// As whom it holds jobs.
    fn holder(&self) -> Holder;
    /// Its name, for the history of a job that it holds or releases.
    fn name(&self) -> Option<String>;
}

/// The result of [`create`].
#[derive(Debug)]
pub enum Created {
    /// It has begun.
    Now(Operation),
    /// The same operation had begun before.
    Before(Operation),
    /// Another operation has this id.
    Taken,
    /// An operation of this identity had this id, and its record is gone.
    Used,
    /// This many operations run already, which is the most for this identity.
    TooMany(usize),
}

/// Begins an operation. Repeating the request begins it once.
///
/// # Errors
/// `Invalid` for a wrong id, condition or priority.
#[boxed]
pub async fn create(tx: &Transaction, keys: &Keyspace, new: &NewOperation, now_us: i64) -> Result<Created> {
    check_name("id", &new.id, MAX_BULK_ID_BYTES)?;
    if let Action::Priority(priority) = new.action {
        check_priority(priority)?;
    }
    Selection::parse(&new.condition, now_us)
        .map_err(|mistake| Error::Invalid { field: "where", problem: mistake.to_string() })?;
    if let Some(known) = get(tx, keys, &new.id).await? {
        let is_same = (known.action, &known.condition, &known.by) == (new.action, &new.condition, &new.by);
        return Ok(if is_same { Created::Before(known) } else { Created::Taken });
    }
    if tx.get(&keys.bulk_used(new.by.as_deref(), &new.id)).await?.is_some() {
        return Ok(Created::Used);
    }
    // Two transactions that both begin the last operation conflict here.
    tx.get(&keys.bulk_wake()).await?;
    let kept = list(tx, keys, None, MAX_KEPT).await?;
    let runs = |operation: &&Operation| operation.standing == Standing::Running;
    let running = kept.iter().filter(runs).count();
    let own = kept.iter().filter(runs).filter(|operation| operation.by == new.by).count();
    if running >= MAX_RUNNING {
        return Ok(Created::TooMany(running));
    }
    if !new.by_operator && own >= MAX_RUNNING_OF_ONE {
        return Ok(Created::TooMany(own));
    }
    if kept.len() >= MAX_KEPT {
        forget(tx, keys, &kept).await?;
    }
    let operation = Operation {
        id: new.id.clone(),
        action: new.action,
        condition: new.condition.clone(),
        by: new.by.clone(),
        scopes: new.scopes.clone(),
        begun_us: now_us,
        standing: Standing::Running,
        ended_us: None,
        node: new.node.clone(),
        steps: 0,
        looked_at: 0,
        about: None,
        matched: 0,
        changed: 0,
        refused: BTreeMap::new(),
        at: Position::default(),
        passes: 0,
        has_changed: false,
    };
    write(tx, keys, &operation)?;
    tx.set_versionstamp(keys.bulk_wake())?;
    Ok(Created::Now(operation))
}

/// Removes a record to make room for another one, and remembers its id: a repeated request must not begin the operation again.
async fn forget(tx: &Transaction, keys: &Keyspace, kept: &[Operation]) -> Result<()> {
    let ended = kept.iter().filter_map(|operation| Some((operation, operation.ended_us?)));
    let ended = ended.map(|(operation, at_us)| (operation.by.as_deref(), operation.id.as_str(), at_us));
    let Some((by, id, ended_us)) = least_missed(ended) else { return Ok(()) };
    tx.clear(keys.bulk(id))?;
    let used = used(tx, keys).await?;
    if used.len() >= MAX_USED
        && let Some((by, id, _)) =
            least_missed(used.iter().map(|(by, id, at)| (by.as_deref(), id.as_str(), *at)))
    {
        tx.clear(keys.bulk_used(by, id))?;
    }
    Ok(tx.set(keys.bulk_used(by, id), encode(&ended_us))?)
}

/// What is forgotten first, of operations with their identities, ids and ends: the oldest of the identity with the most. So an identity that
/// begins many of them forgets its own, and a repeated request of another one still finds its operation.
fn least_missed<'a>(
    ended: impl Iterator<Item = (Option<&'a str>, &'a str, i64)>,
) -> Option<(Option<&'a str>, &'a str, i64)> {
    let mut of_each: BTreeMap<Option<&str>, Vec<_>> = BTreeMap::new();
    for operation in ended {
        of_each.entry(operation.0).or_default().push(operation);
    }
    let most = of_each.into_values().max_by_key(Vec::len)?;
    most.into_iter().min_by_key(|(.., ended_us)| *ended_us)
}

/// The ids that are remembered: identity, id, and when the operation ended. Adds no read conflict.
async fn used(tx: &Transaction, keys: &Keyspace) -> Result<Vec<(Option<String>, String, i64)>> {
    let read = |key: &Bytes, value: &Bytes| {
        let (by, id) = keys.parse_bulk_used(key)?;
        Ok((by, id, decode("end of a bulk operation", value)?))
    };
    reads::list(tx, keys.bulks_used(), MAX_USED, read).await
}

fn write(tx: &Transaction, keys: &Keyspace, operation: &Operation) -> Result<()> {
    Ok(tx.set(keys.bulk(&operation.id), encode(operation))?)
}

/// An operation, if it exists.
#[boxed]
pub async fn get(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<Option<Operation>> {
    let operation: Option<Operation> = reads::value(tx, &keys.bulk(id), "bulk operation").await?;
    Ok(operation.map(|operation| Operation { id: id.to_owned(), ..operation }))
}

/// Up to `limit` operations in the order of their ids, after `after` if given. Adds no read conflict.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Operation>> {
    let range = behind(keys.bulks(), after.map(|id| keys.bulk(id)));
    let read = |key: &Bytes, value: &Bytes| {
        Ok(Operation { id: keys.parse_bulk(key)?, ..decode("bulk operation", value)? })
    };
    reads::list(tx, range, limit, read).await
}

/// Ends an operation that runs; returns it as it is now. `None` if there is none with this id.
#[boxed]
pub async fn end(
    tx: &Transaction,
    keys: &Keyspace,
    id: &str,
    how: Standing,
    now_us: i64,
) -> Result<Option<Operation>> {
    let Some(mut operation) = get(tx, keys, id).await? else { return Ok(None) };
    if operation.standing == Standing::Running {
        (operation.standing, operation.ended_us) = (how, Some(now_us));
        write(tx, keys, &operation)?;
    }
    Ok(Some(operation))
}

/// Notes about how many jobs an operation that has just begun will look at ([`Selection::about`]). Returns it.
///
/// # Errors
/// Those of the store.
pub fn expect(tx: &Transaction, keys: &Keyspace, operation: Operation, about: u64) -> Result<Operation> {
    let operation = Operation { about: Some(about), ..operation };
    write(tx, keys, &operation)?;
    Ok(operation)
}

/// Makes `node` the node that makes the steps, if their number is still `steps`. Returns whether it is.
#[boxed]
pub async fn take(tx: &Transaction, keys: &Keyspace, id: &str, steps: u64, node: &str) -> Result<bool> {
    let Some(mut operation) = get(tx, keys, id).await? else { return Ok(false) };
    if operation.standing != Standing::Running || operation.steps != steps {
        return Ok(false);
    }
    node.clone_into(&mut operation.node);
    operation.steps += 1;
    write(tx, keys, &operation)?;
    Ok(true)
}

/// Removes operations that ended before `before_us`: those among the first [`MAX_KEPT`], and ids that are remembered. Returns how many.
#[boxed]
pub async fn prune(tx: &Transaction, keys: &Keyspace, before_us: i64) -> Result<usize> {
    let mut pruned = 0;
    for operation in list(tx, keys, None, MAX_KEPT).await? {
        if !tx.has_room() {
            break;
        }
        if operation.ended_us.is_some_and(|ended_us| ended_us < before_us) {
            tx.clear(keys.bulk(&operation.id))?;
            pruned += 1;
        }
    }
    for (by, id, ended_us) in used(tx, keys).await? {
        if ended_us < before_us && tx.has_room() {
            tx.clear(keys.bulk_used(by.as_deref(), &id))?;
            pruned += 1;
        }
    }
    Ok(pruned)
}

/// What one step does.
pub struct Step<'a> {
    /// The operation.
    pub id: &'a str,
    /// The node that makes the step.
    pub node: &'a str,
    /// The jobs that meet the operation's condition.
    pub selection: &'a Selection,
    /// What its identity may do now.
    pub gate: &'a dyn Gate,
    /// The most jobs to look at.
    pub looks: usize,
    /// The most jobs to change.
    pub changes: usize,
}

/// The result of a step.
#[derive(Debug)]
pub enum Stepped {
    /// The operation does not run any more, or another node makes its steps.
    Over,
    /// The operation after the step.
    Made(Box<Operation>),
}

/// Why a job stays as it is that is as the action would leave it. Such jobs do not count.
const HAS_PRIORITY: &str = "it has this priority";
const IS_HELD: &str = "it is held";
const NOT_HELD: &str = "it is not held";

/// Makes a step.
#[boxed]
pub async fn step<'a>(tx: &'a Transaction, keys: &Keyspace, step: &Step<'a>, now_us: i64) -> Result<Stepped> {
    let Some(mut operation) = get(tx, keys, step.id).await? else { return Ok(Stepped::Over) };
    if operation.standing != Standing::Running || operation.node != step.node {
        return Ok(Stepped::Over);
    }
    let Page { jobs: found, next } = step.selection.page(tx, keys, &operation.at, step.looks).await?;
    let (mut changes, mut stopped_at) = (0, None);
    let mut reached = operation.at.clone();
    for (position, job) in found {
        let is_full = changes >= step.changes || !tx.has_room();
        if is_full && reached != operation.at {
            stopped_at = Some(reached);
            break;
        }
        reached = position;
        if !step.gate.sees(&job) {
            continue;
        }
        let is_first_pass = operation.passes == 0;
        operation.looked_at += u64::from(is_first_pass);
        if is_newer(&job, operation.begun_us) || !meets(tx, keys, step, &job).await? {
            continue;
        }
        // This transaction may have changed the job already, as a dependent of another one.
        let Some(job) = jobs::get(tx, keys, &job.job_type, &job.id).await? else { continue };
        if is_newer(&job, operation.begun_us) || !meets(tx, keys, step, &job).await? {
            continue;
        }
        let outcome = match step.gate.permits(&job, operation.action) {
            Ok(()) => apply(tx, keys, job, operation.action, step.gate, now_us).await?,
            Err(reason) => Err(reason),
        };
        match outcome {
            Ok(()) => {
                changes += 1;
                operation.matched += 1;
                operation.changed += 1;
            }
            // Perhaps this operation has changed it a moment ago, and it has moved to where the search comes by.
            Err(HAS_PRIORITY | IS_HELD | NOT_HELD) => operation.looked_at -= u64::from(is_first_pass),
            // A later pass meets them again.
            Err(reason) if is_first_pass => {
                operation.matched += 1;
                *operation.refused.entry(reason.to_owned()).or_default() += 1;
            }
            Err(_) => {}
        }
    }
    operation.steps += 1;
    operation.has_changed |= changes > 0;
    let may_miss = step.selection.may_miss(&operation.at);
    match stopped_at.or(next) {
        Some(at) => operation.at = at,
        None if may_miss && operation.has_changed && operation.passes + 1 < MAX_PASSES => {
            operation.passes += 1;
            (operation.at, operation.has_changed) = (Position::default(), false);
        }
        None => (operation.standing, operation.ended_us) = (Standing::Done, Some(now_us)),
    }
    write(tx, keys, &operation)?;
    Ok(Stepped::Made(Box::new(operation)))
}

async fn meets(tx: &Transaction, keys: &Keyspace, step: &Step<'_>, job: &Job) -> Result<bool> {
    step.selection.holds(tx, keys, job, step.gate.tests_options(job)).await
}

/// Whether a job was added, added again or retried after this time.
fn is_newer(job: &Job, begun_us: i64) -> bool {
    let is_added = |kind: &EventKind| *kind == EventKind::Added;
    job.added_us > begun_us || job.history.iter().any(|event| is_added(&event.kind) && event.at_us > begun_us)
}

/// Whether [`apply`] would change a job in its present state, for an identity that holds jobs as this holder.
///
/// # Errors
/// Why not.
pub fn check(job: &Job, action: Action, holder: Holder) -> Result<(), &'static str> {
    let state = job.state();
    let is_stopping = |then| job.cancel_requested() && job.then() == then;
    match (action, &job.place) {
        (Action::Cancel | Action::Priority(_), Place::Ended(_)) => Err("it has ended"),
        (Action::Cancel, Place::Active(_)) if is_stopping(Then::Keep) || is_stopping(Then::Remove) => {
            Err("it is being stopped")
        }
        (Action::Remove, Place::Active(_)) if is_stopping(Then::Remove) => Err("it is being stopped"),
        (Action::Priority(priority), _) if job.priority == priority => Err(HAS_PRIORITY),
        (Action::Cancel | Action::Remove | Action::Priority(_), _) => Ok(()),
        // The filter or the bucket would hold the job back again immediately.
        (Action::Retry | Action::RunNow, Place::Paused { .. }) => Err("it is paused"),
        (Action::Retry | Action::RunNow, Place::Limited { .. }) => Err("it is limited"),
        (Action::Retry | Action::RunNow, Place::Pending { .. }) => Err("it is pending"),
        (Action::Retry | Action::RunNow, Place::Active(_)) => Err("it runs"),
        (Action::RunNow, Place::Blocked { .. }) => Err("it waits for other jobs"),
        (Action::RunNow, Place::Ended(_)) => Err("it has ended"),
        (Action::Retry, Place::Ended(_)) => match state {
            State::Completed => Err("it has completed"),
            _ if job.forgets_options => Err("its options are not kept"),
            _ => Ok(()),
        },
        (Action::Retry | Action::RunNow, _) => Ok(()),
        (Action::Hold, _) if edit::holds_for(job, holder) => Err(IS_HELD),
        (Action::Hold, _) => edit::check_hold(job),
        (Action::Release, _) => match job.holder() {
            None => Err(NOT_HELD),
            Some(Holder::Operator) if holder == Holder::Client => Err("an operator holds it"),
            Some(_) => Ok(()),
        },
    }
}

/// Changes a job, or returns why it does not.
async fn apply(
    tx: &Transaction,
    keys: &Keyspace,
    mut job: Job,
    action: Action,
    gate: &dyn Gate,
    now_us: i64,
) -> Result<Result<(), &'static str>> {
    let holder = gate.holder();
    if let Err(reason) = check(&job, action, holder) {
        return Ok(Err(reason));
    }
    let (job_type, id) = (job.job_type.as_str(), job.id.as_str());
    match action {
        Action::Cancel => jobs::cancel(tx, keys, job_type, id, now_us).await.map(drop)?,
        Action::Remove => jobs::remove(tx, keys, job_type, id).await?,
        Action::Priority(priority) => jobs::set_priority(tx, keys, job_type, id, priority).await.map(drop)?,
        Action::RunNow => jobs::retry(tx, keys, job_type, id, now_us).await.map(drop)?,
        Action::Retry if job.state().is_final() => {
            if jobs::rerun(tx, keys, job_type, id, now_us).await? == jobs::Retried::KeyTaken {
                return Ok(Err("another job has its unique key"));
            }
        }
        Action::Retry => jobs::retry(tx, keys, job_type, id, now_us).await.map(drop)?,
        Action::Hold => return edit::hold(tx, keys, &mut job, holder, gate.name(), now_us).await,
        Action::Release => {
            edit::release(tx, keys, &mut job, holder, gate.name(), now_us).await.map(drop)?;
        }
    }
    Ok(Ok(()))
}
