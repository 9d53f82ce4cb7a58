//! One pass of the scheduler: read → decide → claim, in one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use turnwise_policy::contention::Shard;
use turnwise_policy::predictive_queue::window;
use turnwise_policy::select::{Rules, View, select};
use turnwise_queue::claims::Claiming;
use turnwise_queue::rate_limits::{self, Tally};
use turnwise_queue::tenants::Pending;
use turnwise_queue::{Claim, Job, Keyspace, Result, Terms, claims, jobs, locks, tenants};
use turnwise_store::{Isolation, Transaction};

use crate::QueueRules;
use crate::fair_share::{FairShare, Front, SORT_BATCH};
use crate::filters::{Admission, FilterSet};
use crate::locks::{Chosen, LockHistory, LocksView, Scanned, choose};

/// The maximum number of jobs that one pass claims; fewer if the transaction has no more room.
const CLAIM_BATCH: usize = 500;
/// A pass claims no further job once the options of its jobs have this total size.
const CLAIM_OPTIONS_BYTES: usize = 8 << 20;
/// The maximum number of delayed jobs that one pass releases; fewer if the transaction has no more room.
const RELEASE_BATCH: usize = 200;
/// How often a pass decides again about the same jobs, because locks that it expected to be free were not.
const DECISIONS: usize = 4;
/// How often a pass among jobs that lock decides again, because filters and buckets have removed chosen jobs.
const SORTING_DECISIONS: usize = 16;
/// If a pass had jobs filtered and room left, the next one reads this many times as many jobs.
const WIDER: usize = 4;
/// The maximum number of jobs with reservations outside the window that a pass reads. There is rarely more than one,
/// because only one job of a window reserves at a time.
const MAX_OUTSIDE: usize = 4;
/// Rows that a reservation writes besides those of its locks.
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
    /// How many consecutive passes before this one had jobs filtered and room left.
    pub filtered: u32,
    pub numbers: Numbers<'a>,
    /// Decides which tenant is next.
    pub fair: &'a FairShare,
    /// The order of jobs that lock.
    pub queue: &'a QueueRules,
    /// What past runs locked.
    pub lock_history: &'a LockHistory,
    /// Jobs that other passes in this process are about to claim; this pass adds its own.
    pub hold: Option<&'a Hold>,
    /// This claimant's share of the jobs, if several claim from the same queue.
    pub shard: Shard,
    /// Jobs of other shards that were skipped for long enough. If there are any, this pass may claim them and others of
    /// those shards.
    pub overdue: &'a BTreeSet<String>,
    /// Chooses among the jobs of other shards.
    pub random: u64,
    /// The terms of the runs.
    pub terms: Terms,
    /// The number of history entries that a job keeps.
    pub max_history: usize,
}

impl Claimant<'_> {
    /// The number of jobs to read for a given room. Filtered and limited jobs take no room, so after a pass with such
    /// jobs the next passes read more and more. Jobs behind thousands of them are thus found soon, whatever the room.
    fn depth(&self, room: usize) -> usize {
        room.saturating_mul(WIDER.saturating_pow(self.filtered)).min(CLAIM_BATCH)
    }
}

/// Where the claims get their numbers from.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    /// A counter in memory. Each attempt of a transaction takes new numbers, so that none is ever used twice.
    Counted(&'a AtomicU64),
    /// The worker's row, for a worker whose incarnation outlives this process.
    Stored,
}

/// Jobs that passes of this process are about to claim. Concurrent passes would all choose the head of the queue. Each
/// one therefore skips the jobs of other passes, which avoids conflicts.
#[derive(Default)]
pub(crate) struct Reserved {
    jobs: Mutex<BTreeSet<(String, String)>>,
    released: Notify,
}

/// The jobs that one pass has reserved, until it is dropped.
pub(crate) struct Hold {
    reserved: Arc<Reserved>,
    held: Mutex<Vec<(String, String)>>,
}

impl Reserved {
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        Hold { reserved: self.clone(), held: Mutex::default() }
    }

    /// Ends when a pass, after this call, releases its reserved jobs, claimed or not.
    pub(crate) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// The number of reserved jobs, of all passes.
    fn len(&self) -> usize {
        self.reserved.jobs().len()
    }

    /// The jobs of `ids` that no pass has reserved. First releases what an earlier attempt has reserved.
    fn free(&self, job_type: &str, mut ids: Vec<String>) -> Vec<String> {
        self.take(job_type, std::iter::empty(), 0);
        let jobs = self.reserved.jobs();
        ids.retain(|id| !jobs.contains(&(job_type.to_owned(), id.clone())));
        ids
    }

    /// Releases what an earlier attempt has reserved, then reserves the first `limit` of `ids` that no pass has.
    fn take(&self, job_type: &str, ids: impl Iterator<Item = String>, limit: usize) -> Vec<String> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = self.reserved.jobs();
        if !held.is_empty() {
            for job in held.drain(..) {
                jobs.remove(&job);
            }
            self.reserved.released.notify_waiters();
        }
        let mut taken = Vec::new();
        for id in ids {
            if taken.len() == limit {
                break;
            }
            let job = (job_type.to_owned(), id);
            if jobs.insert(job.clone()) {
                taken.push(job.1.clone());
                held.push(job);
            }
        }
        taken
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A pass without reserved jobs must wake no other pass: it may itself wait for the jobs that it has read.
        if !held.is_empty() {
            let mut jobs = self.reserved.jobs();
            for job in held.drain(..) {
                jobs.remove(&job);
            }
            self.reserved.released.notify_waiters();
        }
    }
}

/// The result of a pass.
pub(crate) struct Pass {
    /// The claimed jobs, with their options.
    pub claimed: Vec<(Job, Box<RawValue>)>,
    /// There may be more to claim immediately.
    pub more: bool,
    /// Filters have removed jobs: there may be others behind them.
    pub sorted_out: bool,
    /// There are pending jobs, but other passes of this process have reserved all of them, and may fail to claim them.
    pub left_to_others: bool,
    /// Jobs that were skipped for their owners although there is room for them here; the owners may have no room. Where
    /// none of the jobs lock, only the first one: once it is gone, its owner is active. All of them if this worker's
    /// shard is empty.
    pub left_to_contenders: BTreeSet<String>,
    /// The tenant of the first known job that could start and was skipped for its owner. Among jobs that lock, only if
    /// there was room for more.
    pub first_left: Option<Arc<str>>,
    /// Tenants whose queues are empty now.
    pub drained: Vec<Arc<str>>,
    /// When the next delayed job is due, in µs.
    pub next_due_us: Option<i64>,
    /// The wake key's value before the pass: work that arrives later changes it.
    pub wake_seen: Option<Bytes>,
    /// If the locks of some jobs are not free: the value, before the pass, of the key that changes when locks are
    /// released.
    pub lock_wake_seen: Option<Option<Bytes>>,
}

impl Pass {
    fn nothing(wake_seen: Option<Bytes>) -> Pass {
        Pass {
            claimed: Vec::new(),
            more: false,
            sorted_out: false,
            left_to_others: false,
            left_to_contenders: BTreeSet::new(),
            first_left: None,
            drained: Vec::new(),
            next_due_us: None,
            wake_seen,
            lock_wake_seen: None,
        }
    }
}

/// A pause that can be stored.
pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The jobs that are skipped for their owners, and until when.
#[derive(Default)]
pub(crate) struct Leftovers(Option<(BTreeSet<String>, Sleep)>);

impl Leftovers {
    /// Notes the jobs that a pass has skipped. The pause continues as long as one of the jobs from its beginning is
    /// still there. If all of them are gone, their owners are active, and the jobs skipped now begin a new pause. So no
    /// job is skipped for longer than two pauses, whatever comes and goes before it.
    pub(crate) fn note(&mut self, left: BTreeSet<String>, pause: impl FnOnce() -> Sleep) {
        let since_before = self.0.take().and_then(|(mut before, until)| {
            before.retain(|id| left.contains(id));
            (!before.is_empty()).then_some((before, until))
        });
        self.0 = since_before.or_else(|| (!left.is_empty()).then(|| (left, pause())));
    }

    /// Returns the jobs that were skipped for long enough; never returns if there are none.
    pub(crate) async fn overdue(&mut self) -> BTreeSet<String> {
        match &mut self.0 {
            Some((_, until)) => until.await,
            None => std::future::pending().await,
        }
        self.0.take().map(|(left, _)| left).unwrap_or_default()
    }
}

/// One pass. The worker holds the jobs once the transaction is committed. Without room, a pass only makes pending the
/// jobs whose time has come, or whose bucket has room.
pub(crate) async fn pass(
    tx: &Transaction,
    keys: &Keyspace,
    claimant: Claimant<'_>,
    now_us: i64,
) -> Result<Pass> {
    let Claimant { job_type, running, max_jobs, failed, fair, hold, shard, overdue, random, .. } = claimant;
    let eager = !overdue.is_empty();
    let wake_seen = tx.get_with(&keys.wake(job_type), Isolation::Snapshot).await?;
    let mine = |id: &str| eager || shard.has(id);
    let room = max_jobs.saturating_sub(running).min(CLAIM_BATCH);
    if room > 0 {
        // Read before the transaction makes anything pending: the new stamps of those tenants are not known.
        fair.look(tx, wake_seen.as_ref(), now_us).await?;
    }
    let delayed = claims::release_due(tx, keys, job_type, now_us, RELEASE_BATCH, mine).await?;
    let turns = |waiting: &[(String, usize)], most| fair.turns(waiting, most);
    // Also without room: running jobs may be preempted only for jobs that are pending.
    let (turn, most) = (&fair.rotation, room.max(1));
    let held_back = rate_limits::look(tx, keys, job_type, turn, most, failed == 0, mine, turns).await?;
    let mut released = delayed.released;
    released.extend(held_back.released);
    let left_before = delayed.left.or(held_back.left);
    if room == 0 {
        fair.made_pending(&released);
        return Ok(Pass {
            left_to_contenders: left_before.into_iter().collect(),
            next_due_us: delayed.next_due_us,
            ..Pass::nothing(wake_seen)
        });
    }
    let others = hold.map_or(0, Hold::len);
    let window = claimant.depth(room);
    let depth = shard.front(window) + others;
    let queue = fair.front(tx, wake_seen.as_ref(), released.clone(), depth, mine).await?;
    let mut claims = Claims {
        tx,
        keys,
        claimant,
        now_us,
        filters: fair.filters.load(tx, keys).await?,
        tally: Tally::default(),
        sorted_out: false,
        claimed: Vec::new(),
        options_bytes: 0,
        tried: BTreeSet::new(),
    };
    if queue.jobs.iter().any(|(pending, _)| !pending.locks.is_none()) {
        let looked = pass_with_locks(&mut claims, queue, wake_seen.as_ref(), room).await?;
        let has_room = running + claims.claimed.len() < max_jobs;
        let first_left = looked.queue.tenant_of_first(|id| looked.left.contains(id));
        let left = looked.left.into_iter().filter(|_| has_room).chain(left_before);
        return Ok(Pass {
            drained: drained(&looked.queue, &claims.claimed, &released),
            claimed: claims.claimed,
            more: looked.more || held_back.more || claims.sorted_out && has_room,
            sorted_out: claims.sorted_out,
            left_to_others: looked.left_to_others,
            left_to_contenders: left.collect(),
            first_left,
            next_due_us: delayed.next_due_us.into_iter().chain(looked.ages_out_us).min(),
            wake_seen,
            lock_wake_seen: looked.lock_wake_seen,
        });
    }
    let seen: Vec<String> = queue.jobs.iter().map(|(pending, _)| pending.id.clone()).collect();
    // Once the first job is gone, its owner is active. A worker with an empty shard watches all: it could be the only
    // one with room for the last job.
    let looked_at = if shard.is_none() { usize::MAX } else { 1 };
    let left: Vec<String> = seen.iter().filter(|id| !shard.has(id)).take(looked_at).cloned().collect();
    let chosen = shard.choose(seen, queue.beyond, eager, random);
    let chosen_jobs = chosen.len();
    let front: Vec<String> = match hold {
        Some(hold) => hold.take(job_type, chosen.into_iter(), window),
        None => chosen.into_iter().take(window).collect(),
    };
    let left_to_others = chosen_jobs > 0 && front.is_empty();
    let mut not_started = false;
    let mut rest = &front[..];
    // A filtered job leaves its room to the jobs behind it.
    while !not_started {
        let decision =
            select(View { running: running + claims.claimed.len(), front: rest }, Rules { max_jobs });
        if decision.start.is_empty() {
            break;
        }
        rest = &rest[decision.start.len()..];
        for id in &decision.start {
            not_started = claims.is_full()
                || matches!(claims.claim(id).await?, Claiming::NoRoom) && !claims.claimed.is_empty();
            if not_started {
                break;
            }
        }
    }
    claims.sort(&queue).await?;
    let first_left = queue.tenant_of_first(|id| !shard.has(id) && !claims.tried.contains(id));
    let Claims { claimed, sorted_out, .. } = claims;
    let has_room = running + claimed.len() < max_jobs;
    // Behind the jobs that were read there may be more of this worker's.
    let more = not_started
        || held_back.more
        || sorted_out && has_room
        || has_room && (front.len() == window || queue.beyond && !claimed.is_empty() || queue.again);
    let left_to_contenders = match left_before {
        Some(before) => BTreeSet::from([before]),
        None => left.into_iter().filter(|_| has_room).collect(),
    };
    let next_due_us = delayed.next_due_us;
    let drained = drained(&queue, &claimed, &released);
    let lock_wake_seen = None;
    Ok(Pass {
        claimed,
        more,
        sorted_out,
        left_to_others,
        left_to_contenders,
        first_left,
        drained,
        next_due_us,
        wake_seen,
        lock_wake_seen,
    })
}

/// What a pass among jobs that lock has found, besides its claims.
struct Looked {
    /// The window, as it was last read.
    queue: Front,
    more: bool,
    left_to_others: bool,
    left: BTreeSet<String>,
    ages_out_us: Option<i64>,
    lock_wake_seen: Option<Option<Bytes>>,
}

/// Claims jobs from a head of the queue where some lock. Compares more jobs than there is room for; if none can start,
/// even more, up to [`window::MAX`]. Behind the largest window it claims what a [scan](crate::locks::Scan) finds
/// startable.
async fn pass_with_locks(
    claims: &mut Claims<'_>,
    mut queue: Front,
    wake: Option<&Bytes>,
    room: usize,
) -> Result<Looked> {
    let Claims { tx, keys, claimant, now_us, .. } = *claims;
    let Claimant { job_type, fair, queue: rules, lock_history, hold, shard, overdue, random, .. } = claimant;
    let eager = !overdue.is_empty();
    let mine = |id: &str| eager || shard.has(id);
    let lock_wake = tx.get_with(&keys.lock_wake(), Isolation::Snapshot).await?;
    let stamps = (wake.cloned(), lock_wake.clone());
    let mut window = rules.window(room);
    let mut view = None;
    // The result for the window, once a scan has searched behind it.
    let mut behind: Option<Chosen> = None;
    let mut scan_again_us = None;
    loop {
        if queue.beyond && behind.is_none() {
            let depth = shard.front(window) + hold.map_or(0, Hold::len);
            queue = match view {
                None => fair.front(tx, wake, [], depth, mine).await?,
                Some(_) => fair.wide_front(tx, wake, depth, mine).await?,
            };
        }
        queue.rank_classes();
        let seen: Vec<String> = queue.jobs.iter().map(|(pending, _)| pending.id.clone()).collect();
        let chosen: BTreeSet<String> =
            shard.choose(seen.clone(), queue.beyond, eager, random).into_iter().collect();
        // Includes all expired jobs: most jobs of other shards cannot start, and a part of them may be exactly these.
        let own: Vec<String> =
            seen.into_iter().filter(|id| chosen.contains(id) || overdue.contains(id)).collect();
        let chosen = own.len();
        let own = match hold {
            Some(hold) => hold.free(job_type, own),
            None => own,
        };
        let mut taken = own.len() < chosen;
        let is_own: BTreeSet<&str> = own.iter().map(String::as_str).collect();
        let all = || queue.jobs.iter().map(|(pending, _)| pending);
        let by_id: BTreeMap<&str, &Pending> = all().map(|pending| (pending.id.as_str(), pending)).collect();
        let others: Vec<&Pending> = all()
            .filter(|pending| !shard.has(&pending.id) && !is_own.contains(pending.id.as_str()))
            .collect();
        let view = match &mut view {
            Some(view) => view,
            None => view.insert(LocksView::read(tx, keys, &rules.levels, (lock_history, now_us)).await?),
        };
        let outside = view.reserved(job_type).filter(|id| !by_id.contains_key(id) && mine(id));
        let outside = claims.pending(outside).await?;
        let mut own: Vec<&Pending> = own.iter().filter_map(|id| by_id.get(id.as_str()).copied()).collect();
        own.extend(&outside);
        lock_history.look(tx, keys, own.iter().chain(&others).map(|pending| &pending.traits), now_us).await?;
        let mut looked = Chosen::default();
        let mut not_started = false;
        let (mut refusals, mut sortings) = (0, 0);
        loop {
            let room = room.saturating_sub(claims.claimed.len());
            let chosen = choose((view, lock_history), job_type, rules, (&own, &others), room, now_us);
            let start = match hold {
                Some(hold) => hold.take(job_type, chosen.start.iter().cloned(), room),
                None => chosen.start.clone(),
            };
            taken |= start.is_empty() && !chosen.start.is_empty();
            let (mut refused, mut sorted_out) = (false, false);
            for id in &start {
                if claims.is_full() {
                    not_started = true;
                    break;
                }
                match claims.claim(id).await? {
                    Claiming::Claimed(_) => {}
                    Claiming::Gone | Claiming::Limited(_) => sorted_out = true,
                    Claiming::Blocked(_) => refused = true,
                    // Alone it has the whole transaction. If that is not enough, another pass does not help.
                    Claiming::NoRoom if claims.claimed.is_empty() => {}
                    Claiming::NoRoom => {
                        not_started = true;
                        break;
                    }
                }
            }
            let no_room = chosen.no_room;
            looked = Chosen { blocked: looked.blocked || chosen.blocked || refused, ..chosen };
            refusals += usize::from(refused);
            sortings += usize::from(sorted_out);
            let again = refused && refusals < DECISIONS || sorted_out && sortings < SORTING_DECISIONS;
            if !again || !no_room || not_started {
                break;
            }
            // Jobs that were refused or filtered had taken the room of others.
            *view = LocksView::read(tx, keys, &rules.levels, (lock_history, now_us)).await?;
            own.retain(|pending| !claims.tried.contains(&pending.id));
        }
        let nothing = claims.claimed.is_empty() && !not_started && !taken;
        if nothing && queue.beyond && behind.is_none() {
            if let Some(wider) = window::wider(window) {
                window = wider;
                continue;
            }
            if looked.reserve.is_none() && room > 0 {
                let startable = |jobs: &[&Pending]| {
                    let all =
                        choose((&*view, lock_history), job_type, rules, (jobs, &[]), jobs.len(), now_us);
                    all.start.into_iter().collect()
                };
                match fair.scan.look(tx, keys, job_type, &stamps, now_us, startable).await? {
                    Scanned::Found(jobs) => {
                        queue = fair.front_of(jobs);
                        behind = Some(looked);
                        continue;
                    }
                    Scanned::Unfinished => not_started = true,
                    Scanned::Nothing(again_us) => scan_again_us = again_us,
                }
            }
        }
        if let Some(window) = behind.take() {
            // If the room ran out, the jobs that were not tried can still start.
            let offered = own.iter().filter(|_| !looked.no_room).map(|pending| &pending.id);
            let tried = claims.tried.iter().chain(offered).cloned().collect();
            scan_again_us = fair.scan.forget(&tried);
            looked.reserve = None;
            looked.blocked |= window.blocked;
            looked.ages_out_us = looked.ages_out_us.into_iter().chain(window.ages_out_us).min();
            looked.left.extend(window.left);
        }
        if let Some(id) = &looked.reserve {
            let wants = own.iter().find(|pending| pending.id == *id).map(|pending| &pending.locks);
            let rows = wants.map_or(0, |wants| wants.known(&rules.levels).len()) + ROWS_RESERVED;
            if tx.has_room_for(rows, ROWS_RESERVED) {
                locks::reserve(tx, keys, job_type, id, now_us).await?;
                // If this node's clock is behind, the reservation may precede those that blocked the job, and its locks
                // may be free now. Another pass checks that.
                not_started = true;
            } else {
                not_started = !claims.claimed.is_empty();
            }
        }
        claims.sort(&queue).await?;
        let has_room = claims.claimed.len() < room;
        let any = !claims.claimed.is_empty();
        let more = not_started
            || any && (room == CLAIM_BATCH || has_room && (queue.beyond || looked.no_room))
            || has_room && queue.again;
        let Chosen { left, ages_out_us, blocked, .. } = looked;
        let ages_out_us = ages_out_us.into_iter().chain(scan_again_us).min();
        let lock_wake_seen = blocked.then_some(lock_wake);
        return Ok(Looked { queue, more, left_to_others: taken && !any, left, ages_out_us, lock_wake_seen });
    }
}

/// The claims of one pass.
struct Claims<'a> {
    tx: &'a Transaction,
    keys: &'a Keyspace,
    claimant: Claimant<'a>,
    now_us: i64,
    /// The filters that decide which jobs may start.
    filters: Option<FilterSet>,
    /// The number of running jobs in each bucket.
    tally: Tally,
    /// Some jobs were filtered.
    sorted_out: bool,
    claimed: Vec<(Job, Box<RawValue>)>,
    options_bytes: usize,
    /// Jobs that it has claimed, or could not claim.
    tried: BTreeSet<String>,
}

impl Claims<'_> {
    /// Whether further jobs must wait for the next transaction.
    fn is_full(&self) -> bool {
        // Whatever failed the last attempt, half as many jobs meet it half as often.
        let most = CLAIM_BATCH.checked_shr(self.claimant.failed).unwrap_or(0).max(1);
        self.options_bytes >= CLAIM_OPTIONS_BYTES
            || self.tried.len() >= most
            || !self.tried.is_empty() && !self.tx.has_room()
    }

    /// The pending jobs among the first few of `ids`. A snapshot read, without conflicts: a claim reads its job again.
    async fn pending(&self, ids: impl Iterator<Item = &str>) -> Result<Vec<Pending>> {
        let mut found = Vec::new();
        for id in ids.take(MAX_OUTSIDE) {
            let job = jobs::peek(self.tx, self.keys, self.claimant.job_type, id).await?;
            if let Some(job) = job.filter(Job::is_pending) {
                let order_us = job.order_us();
                let Job { id, locks, traits, .. } = job;
                // It has a reservation: whatever its class, it precedes jobs of the window without one.
                found.push(Pending { id, order_us, key: None, class: 0, locks, traits });
            }
        }
        Ok(found)
    }

    /// Claims a job if it is still there, no filter rejects it, its buckets have room, and its locks are free.
    async fn claim(&mut self, id: &str) -> Result<Claiming> {
        let Claims { tx, keys, claimant, now_us, .. } = *self;
        let Claimant { job_type, worker, numbers, queue, terms, max_history, .. } = claimant;
        self.tried.insert(id.to_owned());
        let mut filter = None;
        if let Some(filters) = &self.filters {
            match filters.admits(tx, keys, job_type, id, now_us).await? {
                Admission::Admitted(limit) => filter = limit,
                Admission::SortedOut => {
                    self.sorted_out = true;
                    return Ok(Claiming::Gone);
                }
            }
        }
        let number = match numbers {
            Numbers::Counted(next) => next.fetch_add(1, Relaxed),
            // Written only with a claim: otherwise, requests that watch this key for new claims would wake for none.
            Numbers::Stored => claims::latest_number(tx, keys, job_type, worker).await? + 1,
        };
        let claim = Claim { worker: worker.to_owned(), number };
        let levels = &queue.levels;
        let (tally, filter) = (&mut self.tally, filter.as_ref());
        let claiming = claims::claim_within(
            tx,
            keys,
            levels,
            tally,
            filter,
            &terms,
            job_type,
            id,
            &claim,
            now_us,
            max_history,
        )
        .await?;
        if let Claiming::Limited(full) = &claiming {
            self.sorted_out = true;
            let stamp = self.filters.as_ref().map(FilterSet::stamp);
            rate_limits::hold_back(tx, keys, job_type, id, &full.limit, stamp, now_us).await?;
        }
        if let Claiming::Claimed(job) = &claiming {
            if matches!(numbers, Numbers::Stored) {
                claims::next_number(tx, keys, job_type, worker).await?;
            }
            let options = jobs::options(tx, keys, job).await?;
            self.options_bytes += options.get().len();
            self.claimed.push(((**job).clone(), options));
        }
        Ok(claiming)
    }

    /// Rewrites the sort keys of jobs that continue to wait, where they are out of date.
    async fn sort(&self, queue: &Front) -> Result<()> {
        let waits = queue.to_sort.iter().filter(|(id, _)| !self.tried.contains(id));
        for (id, key) in waits.take(SORT_BATCH).take_while(|_| self.tx.has_room()) {
            tenants::set_key(self.tx, self.keys, self.claimant.job_type, id, *key).await?;
        }
        Ok(())
    }
}

/// The tenants whose waiting jobs were all claimed. Excludes tenants that got a new pending job in this transaction:
/// their new stamp is not known.
fn drained(queue: &Front, claimed: &[(Job, Box<RawValue>)], released: &BTreeSet<String>) -> Vec<Arc<str>> {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for looked in queue.tenants.iter().filter(|looked| looked.is_all && looked.seen > 0) {
        left.insert(&looked.tenant, looked.seen);
    }
    for (job, _) in claimed {
        if let Some(left) = left.get_mut(job.tenant.as_str()) {
            *left = left.saturating_sub(1);
        }
    }
    left.retain(|tenant, left| *left == 0 && !released.contains(*tenant));
    left.into_keys().map(Arc::from).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    fn jobs(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[tokio::test]
    async fn what_is_left_has_its_time_whatever_comes_before_it() {
        let begun = Cell::new(0);
        let mut leftovers = Leftovers::default();
        let note = |leftovers: &mut Leftovers, ids: &[&str]| {
            let over: Sleep = if begun.get() == 0 { Box::pin(pending()) } else { Box::pin(ready(())) };
            leftovers.note(jobs(ids), || {
                begun.set(begun.get() + 1);
                over
            });
        };
        note(&mut leftovers, &["b", "c"]);
        // One job goes, and others come before and behind it: the pause of the remaining jobs continues.
        note(&mut leftovers, &["a", "c", "d"]);
        note(&mut leftovers, &["a", "c", "e"]);
        assert_eq!(begun.get(), 1);
        // All of them are gone: their owner is active, and the rest begins a new pause.
        note(&mut leftovers, &["a", "e"]);
        assert_eq!(begun.get(), 2);
        note(&mut leftovers, &["e", "f"]);
        assert_eq!(leftovers.overdue().await, jobs(&["e"]));
        // Once they were claimed, or could not be, a new pause begins.
        note(&mut leftovers, &["e", "f"]);
        assert_eq!(begun.get(), 3);
        note(&mut leftovers, &[]);
        assert!(leftovers.0.is_none());
    }
}
