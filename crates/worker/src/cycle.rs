//! One pass of the scheduler: read → decide → claim, in one transaction.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use turnwise_policy::contention::Part;
use turnwise_policy::select::{Rules, View, select};
use turnwise_queue::{Claim, Job, Keyspace, Result, claims, jobs};
use turnwise_store::{Isolation, Transaction};

/// Jobs that one pass claims at most; fewer where the transaction has no more room for them.
const CLAIM_BATCH: usize = 500;
/// A pass claims no further job once the options of those it has are this large together.
const CLAIM_OPTIONS_BYTES: usize = 8 << 20;
/// Delayed jobs that one pass releases at most; fewer where the transaction has no more room for them.
const RELEASE_BATCH: usize = 200;

/// Who claims, and how much.
#[derive(Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub job_type: &'a str,
    pub worker: &'a str,
    /// Jobs that it runs now.
    pub running: usize,
    /// Jobs that it runs at most.
    pub max_jobs: usize,
    pub numbers: Numbers<'a>,
    /// Jobs that others in this process are about to claim; what this pass claims is added.
    pub hold: Option<&'a Hold>,
    /// Which jobs are this claimant's, where several take from the same queue.
    pub part: Part,
    /// Others' jobs are taken, too: they were left to them for a while.
    pub eager: bool,
    /// Chooses among others' jobs.
    pub dice: u64,
    /// History entries that a job keeps.
    pub max_history: usize,
}

/// Where the numbers of its claims come from.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    /// Counted in memory. Each attempt of a transaction takes new ones, so that none is ever used twice.
    Counted(&'a AtomicU64),
    /// From the worker's row, for one whose incarnation outlives this process.
    Stored,
}

/// Jobs that passes of this process are about to claim. They run at the same time and would all want the front
/// of the queue; so each leaves out what another one is at, and none has to run again.
#[derive(Default)]
pub(crate) struct Reserved {
    jobs: Mutex<BTreeSet<(String, String)>>,
    released: Notify,
}

/// What one pass has reserved, until it is dropped.
pub(crate) struct Hold {
    reserved: Arc<Reserved>,
    held: Mutex<Vec<(String, String)>>,
}

impl Reserved {
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        Hold { reserved: self.clone(), held: Mutex::default() }
    }

    /// Ends when someone, after this call, gives back what it has reserved: claimed or not.
    pub(crate) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// How many jobs are reserved, by anyone.
    fn len(&self) -> usize {
        self.reserved.jobs().len()
    }

    /// Gives back what an earlier attempt has reserved, and reserves the first `limit` of `ids` that nobody has.
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
        // Who reserved nothing must wake nobody: it may wait itself, for what it has just looked at.
        if !held.is_empty() {
            let mut jobs = self.reserved.jobs();
            for job in held.drain(..) {
                jobs.remove(&job);
            }
            self.reserved.released.notify_waiters();
        }
    }
}

/// What a pass found and did.
pub(crate) struct Pass {
    /// Jobs that are this worker's now, with their options.
    pub claimed: Vec<(Job, Box<RawValue>)>,
    /// There may be more to claim at once.
    pub more: bool,
    /// There are pending jobs, all of them reserved by others in this process, who may fail to claim them.
    pub left_to_others: bool,
    /// The first of the jobs that were left to other contenders while there is room for it here: those may have none.
    pub left_to_contenders: Option<String>,
    /// When the next delayed job is due, in µs.
    pub next_due_us: Option<i64>,
    /// The wake key's value before the pass: work that comes later changes it.
    pub wake_seen: Option<Bytes>,
}

/// A wait that can be held on to.
pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is left to other contenders, and until when.
#[derive(Default)]
pub(crate) struct Leftovers(Option<(String, Sleep)>);

impl Leftovers {
    /// After a pass that left `first` to others. While that one stands there its time runs; if it has gone, they are at work,
    /// and who is next has a time of its own.
    pub(crate) fn note(&mut self, first: Option<String>, pause: impl FnOnce() -> Sleep) {
        self.0 = match (self.0.take(), first) {
            (_, None) => None,
            (Some((id, until)), Some(first)) if id == first => Some((id, until)),
            (_, Some(first)) => Some((first, pause())),
        };
    }

    /// Returns when they were left for long enough; never, if there are none.
    pub(crate) async fn are_due(&mut self) {
        match &mut self.0 {
            Some((_, until)) => until.await,
            None => std::future::pending().await,
        }
        self.0 = None;
    }
}

/// One pass. The jobs are the worker's once the transaction is committed.
pub(crate) async fn pass(
    tx: &Transaction,
    keys: &Keyspace,
    claimant: Claimant<'_>,
    now_us: i64,
) -> Result<Pass> {
    let Claimant { job_type, worker, running, max_jobs, numbers, hold, part, eager, dice, max_history } =
        claimant;
    let wake_seen = tx.get_with(&keys.wake(job_type), Isolation::Snapshot).await?;
    let mine = |id: &str| eager || part.has(id);
    let delayed = claims::release_due(tx, keys, job_type, now_us, RELEASE_BATCH, mine).await?;
    let window = max_jobs.saturating_sub(running).min(CLAIM_BATCH);
    let others = hold.map_or(0, Hold::len);
    let depth = part.front(window) + others;
    let seen = claims::front(tx, keys, job_type, depth).await?;
    let full = seen.len() == depth;
    let seen: Vec<String> = seen.into_iter().map(|pending| pending.id).collect();
    let left = seen.iter().find(|id| !part.has(id)).cloned();
    let chosen = part.choose(seen, full, eager, dice);
    let chosen_jobs = chosen.len();
    let front: Vec<String> = match hold {
        Some(hold) => hold.take(job_type, chosen.into_iter(), window),
        None => chosen.into_iter().take(window).collect(),
    };
    let left_to_others = chosen_jobs > 0 && front.is_empty();
    let decision = select(View { running, front: &front }, Rules { max_jobs });
    let mut claimed = Vec::with_capacity(decision.start.len());
    let mut options_bytes = 0;
    let mut started = 0;
    for id in &decision.start {
        if options_bytes >= CLAIM_OPTIONS_BYTES || started > 0 && !tx.has_room() {
            break;
        }
        started += 1;
        let number = match numbers {
            Numbers::Counted(next) => next.fetch_add(1, Relaxed),
            Numbers::Stored => claims::next_number(tx, keys, job_type, worker).await?,
        };
        let claim = Claim { worker: worker.to_owned(), number };
        if let Some(job) = claims::claim(tx, keys, job_type, id, &claim, now_us, max_history).await? {
            let options = jobs::options(tx, keys, &job).await?;
            options_bytes += options.get().len();
            claimed.push((job, options));
        }
    }
    let not_started = started < decision.start.len();
    let has_room = running + claimed.len() < max_jobs;
    // Beyond what was seen there may be more of one's own.
    let more = not_started || has_room && (front.len() == window || full && !claimed.is_empty());
    let left_to_contenders = delayed.left.or(left).filter(|_| has_room);
    let next_due_us = delayed.next_due_us;
    Ok(Pass { claimed, more, left_to_others, left_to_contenders, next_due_us, wake_seen })
}
