//! One pass of the scheduler: it reads the head of the queue, decides, and claims, in one transaction.
//!
//! [`turnwise_policy::schedule`] makes the decision. This module reads its input ([`view`]) and makes the claims
//! ([`claims`]). It also determines how far a pass searches for jobs that can start, and when the next pass is useful.

mod claims;
mod concurrent;
mod explain;
mod skipped_jobs;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_policy::contention::Shard;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_policy::predictive_queue::window;
use turnwise_policy::schedule::{self, Decision, HoldReason};
use turnwise_queue::tasks::Tasks;
use turnwise_queue::{Job, Keyspace, Mode, Result, Terms, concurrency, locks, tenants, workers};
use turnwise_store::{Isolation, Transaction};

use crate::QueueRules;
use crate::claimer::Claimer;
use crate::fair_share::{FairShare, Front};
use crate::locks::ScanResult;
use crate::tenant_filter::TenantFilter;
use claims::{Claims, FillResult};
pub use concurrent::Passes;
pub(crate) use concurrent::{PassJobs, Sibling};
pub use explain::{QueueHead, compared, explain};
pub(crate) use skipped_jobs::SkippedJobs;
pub(crate) use view::startable;
use view::{Source, View};

/// The maximum number of jobs that one pass claims; fewer if the transaction has no more room.
const CLAIM_BATCH: usize = 500;
/// The maximum number of delayed jobs that one pass releases; fewer if the transaction has no more room.
const RELEASE_BATCH: usize = 200;
/// If filters removed jobs in a pass and slots stayed free, the next pass reads this many times as many jobs.
const WIDER: usize = 4;
/// The number of rows that a reservation writes besides those of its locks.
const ROWS_RESERVED: usize = 8;

/// The worker that claims, and its limits.
#[derive(Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub job_type: &'a str,
    pub worker: &'a str,
    /// The number of jobs that it runs now.
    pub running: usize,
    /// The maximum number of jobs that it runs.
    pub max_jobs: usize,
    /// How often this pass has failed.
    pub failed: u32,
    pub numbers: Numbers<'a>,
    /// The fair share, which decides which tenant is next.
    pub fair: &'a FairShare,
    /// The tenants whose jobs it may run; `None` means all.
    pub tenants: Option<&'a TenantFilter>,
    /// The tasks whose jobs it takes.
    pub tasks: &'a Tasks,
    /// The order of jobs that lock.
    pub queue: &'a QueueRules,
    /// The jobs of this pass, if other passes of this process run at the same time.
    pub pass_jobs: Option<&'a PassJobs>,
    /// This claimant's share of the jobs, if several claim from the same queue.
    pub shard: Shard,
    /// The state that the worker keeps from earlier passes. If jobs of other shards have expired, this pass may claim
    /// them and other jobs of those shards.
    pub claimer: &'a Claimer,
    /// A random number, which chooses among the jobs of other shards.
    pub random: u64,
    /// The terms of the runs.
    pub terms: &'a Terms,
    /// The number of history entries that a job keeps.
    pub max_history: usize,
}

impl Claimant<'_> {
    /// The number of jobs to read for a number of free slots. Filtered and limited jobs take no slot, so after passes
    /// with such jobs, each pass reads more jobs than the one before it. Jobs behind thousands of them are thus found
    /// soon, even with one free slot.
    fn depth(&self, room: usize) -> usize {
        room.saturating_mul(WIDER.saturating_pow(self.claimer.filtered)).min(CLAIM_BATCH)
    }
}

/// The source of the claims' numbers.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    /// A counter in memory. Each attempt of a transaction takes new numbers, so that none is ever used twice.
    Counted(&'a AtomicU64),
    /// The worker's row, for a worker whose incarnation outlives this process.
    Stored,
}

/// The result of a pass.
#[derive(Default)]
pub(crate) struct Pass {
    /// The claimed jobs, with their options.
    pub claimed: Vec<(Job, Box<RawValue>)>,
    /// How long each of them could have run before, in µs.
    pub waits_us: Vec<i64>,
    /// Whether another pass may claim more jobs immediately.
    pub more: bool,
    /// Whether filters or limits have removed jobs: there may be other jobs behind them.
    pub filtered: bool,
    /// Whether there are pending jobs, but other passes of this process are about to claim all of them. They may fail
    /// to claim them.
    pub all_in_other_passes: bool,
    /// Jobs that were skipped for their owners although this worker has free slots; the owners may have none. If no job
    /// at the head of the queue locks, these are only the first skipped job: once it is gone, its owner is active. If
    /// this worker's shard is empty, these are all skipped jobs.
    pub skipped: BTreeSet<String>,
    /// The tenant of the first known job that could start and was skipped for its owner. Among jobs that lock, only if
    /// a slot stayed free.
    pub first_skipped_tenant: Option<Arc<str>>,
    /// Tenants whose queues are empty now.
    pub drained: Vec<Arc<str>>,
    /// When the next delayed job is due, or a bucket of starts has room, in µs.
    pub next_due_us: Option<i64>,
    /// The wake key's value before the pass: work that arrives later changes it.
    pub wake_seen: Option<Bytes>,
    /// If the locks of some jobs are not free: the value, before the pass, of the key that changes when locks are
    /// released.
    pub lock_wake_seen: Option<Option<Bytes>>,
    /// Whether the worker takes new jobs. A quiet worker has claimed none.
    pub mode: Mode,
}

/// The input of one attempt of a pass.
#[derive(Clone, Copy)]
struct Context<'a> {
    tx: &'a Transaction,
    keys: &'a Keyspace,
    claimant: Claimant<'a>,
    /// The maximum number of jobs to claim.
    room: usize,
    now_us: i64,
}

impl Context<'_> {
    /// Whether jobs of other shards may be claimed now.
    fn is_eager(&self) -> bool {
        !self.claimant.claimer.expired.is_empty()
    }

    fn source(&self) -> Source<'_> {
        let Context { tx, keys, claimant, now_us, .. } = *self;
        let Claimant { job_type, queue, .. } = claimant;
        Source { tx, keys, job_type, queue, now_us }
    }

    /// Decides about a view, with room for this many jobs.
    fn decide(&self, view: &View, room: usize) -> Decision {
        let Claimant { shard, claimer, random, .. } = self.claimant;
        let worker =
            schedule::View { room, shard, eager: self.is_eager(), random, ..schedule::View::default() };
        // Among jobs that lock, all expired jobs may start. The decision chooses only some jobs of other shards, and
        // the chosen ones may be exactly those whose locks are not free.
        view.decide(&self.source(), worker, |id| view.locks.is_some() && claimer.expired.contains(id))
    }

    /// Whether the worker may run jobs of this tenant.
    fn permits(&self, tenant: &str) -> bool {
        self.claimant.tenants.is_none_or(|tenants| tenants.permits(tenant))
    }

    fn is_mine(&self, id: &str) -> bool {
        self.is_eager() || self.claimant.shard.has(id)
    }

    /// Whether a bucket is in the worker's part at a time, in µs.
    fn is_mine_at(&self, bucket: &str, at_us: i64) -> bool {
        self.is_eager() || self.claimant.shard.has_at(bucket, at_us)
    }
}

/// Makes one pass. The worker has claimed the jobs once the transaction is committed. Without a free slot, a pass only
/// makes jobs pending: those that are due, and those whose buckets have room.
pub(crate) async fn pass(
    tx: &Transaction,
    keys: &Keyspace,
    claimant: Claimant<'_>,
    now_us: i64,
) -> Result<Pass> {
    let Claimant { job_type, running, max_jobs, failed, fair, pass_jobs, shard, .. } = claimant;
    let room = max_jobs.saturating_sub(running).min(CLAIM_BATCH);
    let context = Context { tx, keys, claimant, room, now_us };
    let mine = |id: &str| context.is_mine(id);
    let permits = |tenant: &str| context.permits(tenant);
    let others = pass_jobs.map_or(0, PassJobs::restart);
    let wake_seen = tx.get_with(&keys.wake(job_type), Isolation::Snapshot).await?;
    if room > 0 {
        // Read before the transaction makes anything pending: the new stamps of those tenants are not known.
        fair.refresh_waiting(tx, wake_seen.as_ref(), now_us).await?;
    }
    let delayed =
        turnwise_queue::claims::release_due(tx, keys, job_type, now_us, RELEASE_BATCH, mine).await?;
    let turns = |waiting: &[(String, usize)], most| fair.turns(waiting, most);
    // Also without a free slot: running jobs can be preempted only for jobs that are pending.
    let (rotation, most) = (&fair.rotation, room.max(1));
    let held_back = concurrency::release_limited(
        tx,
        keys,
        job_type,
        concurrency::ReleaseOptions { rotation, most, clears: failed == 0, tasks: claimant.tasks, now_us },
        |bucket, at_us| context.is_mine_at(bucket, at_us),
        turns,
    )
    .await?;
    // Delayed jobs, and buckets of starts.
    let next_due_us = delayed.next_due_us.into_iter().chain(held_back.next_us).min();
    let mut released = delayed.released;
    released.extend(held_back.released);
    let skipped_before = delayed.left.or(held_back.left);
    if room == 0 {
        fair.made_pending(&released);
        return Ok(Pass {
            skipped: skipped_before.into_iter().collect(),
            next_due_us,
            wake_seen,
            ..Pass::default()
        });
    }
    let wanted = claimant.depth(room);
    let depth = shard.front(wanted) + others;
    fair.made_pending(&released);
    let queue = fair.front(tx, wake_seen.as_ref(), depth, (mine, permits), false).await?;
    // A claim reads the same row, so with jobs to claim this costs nothing.
    let mode = match queue.jobs.is_empty() {
        true => Mode::Active,
        false => workers::mode(tx, keys, job_type, claimant.worker).await?,
    };
    if mode.is_quiet() {
        fair.made_pending(&released);
        return Ok(Pass { next_due_us, wake_seen, mode, ..Pass::default() });
    }
    let mut claims = Claims::new(context).await?;
    let locking = queue.jobs.iter().any(|(pending, _)| !pending.locks.is_none());
    fair.locking.store(locking, Relaxed);
    let SearchResult { queue, filled, skipped, ages_out_us, lock_wake_seen } = match locking {
        true => search(&mut claims, &context, queue, wake_seen.as_ref(), others).await?,
        false => {
            let mut view = View::without_locks(queue);
            let filled = claims.fill(&mut view).await?;
            let skipped = skipped(&view, &filled);
            SearchResult { queue: view.queue, filled, skipped, ages_out_us: None, lock_wake_seen: None }
        }
    };
    claims.store_number()?;
    claims.sort(&queue).await?;
    let claimed = claims.claimed.len();
    assert!(claimed <= room, "a pass has claimed {claimed} jobs for {room} slots");
    let has_room = running + claimed < max_jobs;
    let any = claimed > 0;
    let more = filled.not_started
        || held_back.more
        || has_room
            && (claims.filtered
                || queue.again
                || any && (claimed == room || queue.beyond || filled.decision.has_no_room())
                || !locking && claims.tried.len() >= wanted);
    let is_skipped: BTreeSet<&str> = skipped.iter().map(String::as_str).collect();
    let first_skipped_tenant = queue.tenant_of_first(|id| is_skipped.contains(id));
    // Once the first skipped job is gone, its owner is active. A worker with an empty shard watches all skipped jobs:
    // it may be the only worker with a free slot. Jobs that lock do not start in the order of the queue, so all of them
    // are watched.
    let watched = match (locking || shard.is_none(), &skipped_before) {
        (true, _) => usize::MAX,
        (false, None) => 1,
        (false, Some(_)) => 0,
    };
    let skipped = skipped.into_iter().filter(|_| has_room).take(watched).chain(skipped_before);
    Ok(Pass {
        more,
        filtered: claims.filtered,
        all_in_other_passes: filled.in_other_pass && !any,
        skipped: skipped.collect(),
        first_skipped_tenant,
        drained: drained(&queue, &claims.claimed, &released),
        next_due_us: next_due_us.into_iter().chain(ages_out_us).min(),
        wake_seen,
        lock_wake_seen,
        claimed: claims.claimed,
        waits_us: claims.waits_us,
        mode,
    })
}

/// The findings of a pass, besides its claims.
struct SearchResult {
    /// The head of the queue that was read last.
    queue: Front,
    filled: FillResult,
    /// Jobs that could start, but are skipped for their owners, in the order of the queue.
    skipped: Vec<String>,
    ages_out_us: Option<i64>,
    lock_wake_seen: Option<Option<Bytes>>,
}

fn skipped(view: &View, filled: &FillResult) -> Vec<String> {
    let jobs = view.jobs();
    filled.decision.skipped().map(|job| jobs[job].id.clone()).collect()
}

/// Claims jobs from a head of the queue where some jobs lock. Compares more jobs than there are free slots; if none of
/// them can start, it compares even more, up to [`window::MAX`]. Behind the largest window, it claims jobs that a
/// [scan](crate::locks::Scan) has found to be startable, if it may run the jobs of all tenants.
async fn search(
    claims: &mut Claims<'_>,
    context: &Context<'_>,
    queue: Front,
    wake: Option<&Bytes>,
    others: usize,
) -> Result<SearchResult> {
    let Context { tx, keys, claimant, room, now_us } = *context;
    let Claimant { job_type, fair, queue: rules, shard, .. } = claimant;
    let mine = |id: &str| context.is_mine(id);
    let permits = |tenant: &str| context.permits(tenant);
    let source = context.source();
    let lock_wake = tx.get_with(&keys.lock_wake(), Isolation::Snapshot).await?;
    let mut window = rules.window(room);
    let queue = match queue.beyond {
        true => fair.front(tx, wake, shard.front(window) + others, (mine, permits), false).await?,
        false => queue,
    };
    let mut view = View::with_locks(&source, queue, mine).await?;
    let mut filled = claims.fill(&mut view).await?;
    while filled.is_nothing(claims)
        && view.queue.beyond
        && let Some(wider) = window::wider(window)
    {
        window = wider;
        let queue = fair.front(tx, wake, shard.front(window) + others, (mine, permits), true).await?;
        view = View::with_locks(&source, queue, mine).await?;
        filled = claims.fill(&mut view).await?;
    }
    let mut skipped_jobs = skipped(&view, &filled);
    let mut ages_out_us = filled.decision.ages_out_us;
    // The worker's scan is of all tenants. What it finds first may be nothing that a worker of some tenants may run.
    let scans = claimant.tenants.is_none() && view.queue.beyond;
    if filled.is_nothing(claims) && scans && filled.decision.reserve.is_none() {
        let stamps = (wake.cloned(), lock_wake.clone());
        let pending = (tx, keys, job_type);
        let is_free = |requests: &Requests| view.is_free(requests);
        let startable = |jobs: &[&tenants::Pending]| view.startable(&source, jobs);
        let elapsed_us = || fair.elapsed_us();
        match fair.scan.find(pending, &stamps, now_us, elapsed_us, is_free, startable).await? {
            ScanResult::Found(jobs) => {
                view = View::with_locks(&source, fair.front_of(jobs), mine).await?;
                let found = claims.fill(&mut view).await?;
                // If no slot is free any more, the jobs that were not tried can still start later.
                let offered = found.offered(&view).into_iter().filter(|_| !found.decision.has_no_room());
                let tried = claims.tried.iter().cloned().chain(offered).collect();
                let again_us = fair.scan.forget(&tried);
                ages_out_us = ages_out_us.into_iter().chain(found.decision.ages_out_us).chain(again_us).min();
                skipped_jobs.extend(skipped(&view, &found));
                filled = FillResult { blocked: filled.blocked || found.blocked, ..found };
                filled.decision.reserve = None;
            }
            ScanResult::Unfinished => filled.not_started = true,
            ScanResult::Nothing(again_us) => ages_out_us = ages_out_us.into_iter().chain(again_us).min(),
        }
    }
    if let Some(job) = filled.decision.reserve.and_then(|job| view.jobs().get(job).copied()) {
        let rows = job.locks.known(&rules.levels).len() + ROWS_RESERVED;
        if let Some(limit) = claims.not_taken(&job.id).await? {
            // Nobody may ever take it, and its reservation would keep all others waiting.
            concurrency::hold_back(tx, keys, job_type, &job.id, &limit, None, now_us).await?;
            filled.not_started = true;
        } else if tx.has_room_for(rows, ROWS_RESERVED) {
            locks::reserve(tx, keys, job_type, &job.id, now_us).await?;
            // If this node's clock is behind, this reservation may come before those that blocked the job, so its locks
            // may be free now. Another pass checks that.
            filled.not_started = true;
        } else {
            filled.not_started = !claims.claimed.is_empty();
        }
    }
    let lock_wake_seen = filled.blocked.then_some(lock_wake);
    Ok(SearchResult { queue: view.queue, filled, skipped: skipped_jobs, ages_out_us, lock_wake_seen })
}

impl FillResult {
    /// Whether nothing can be claimed from the view.
    fn is_nothing(&self, claims: &Claims<'_>) -> bool {
        claims.claimed.is_empty() && !self.not_started && !self.in_other_pass
    }

    /// The jobs of this view that could have started, but were held back.
    fn offered(&self, view: &View) -> Vec<String> {
        let jobs = view.jobs();
        let is_offered = |reason: &HoldReason| !matches!(reason, HoldReason::OtherPass | HoldReason::Tried);
        let held = self.decision.hold.iter().filter(|hold| hold.own && is_offered(&hold.reason));
        held.map(|hold| jobs[hold.candidate].id.clone()).collect()
    }
}

/// The tenants whose waiting jobs were all claimed. Excludes tenants that got a new pending job in this transaction:
/// their new stamp is not known.
fn drained(queue: &Front, claimed: &[(Job, Box<RawValue>)], released: &BTreeSet<String>) -> Vec<Arc<str>> {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for read in queue.tenants.iter().filter(|read| read.is_all && read.jobs > 0) {
        left.insert(&read.tenant, read.jobs);
    }
    for (job, _) in claimed {
        if let Some(left) = left.get_mut(job.tenant.as_str()) {
            *left = left.saturating_sub(1);
        }
    }
    left.retain(|tenant, left| *left == 0 && !released.contains(*tenant));
    left.into_keys().map(Arc::from).collect()
}
