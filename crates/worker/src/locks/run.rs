//! The locks that a running job asks for: [`JobContext::lock`].
//!
//! *Model.* Each is asked for in a transaction under the job's claim ([`turnwise_queue::locks::request`]). One that is not free is waited for: the job
//! stands in the lock's queue, a row, and asks again whenever somebody has given a lock back. Its task sleeps meanwhile, and its slot
//! is lent to another job. Whoever stops waiting, for whatever reason, leaves the queue; at the latest with the claim.
//!
//! *Who is granted a lock goes on at once*, though its slot may be taken. If it waited for one it would hold a lock meanwhile, and those in the slots
//! might run for ever, or wait for that very lock. So a worker may have more running jobs than slots: by as many as were lent, and no
//! more than there are.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;
use turnwise_queue::locks::{self, Asked, Blocked, LockAt, Spot};
use turnwise_queue::{Claim, Error};
use turnwise_store::{Error as StoreError, Isolation};

use crate::incarnation::ERROR_PAUSE;
use crate::run::Shared;
use crate::{JobContext, Outcome};

/// Why a lock was not granted.
#[derive(Debug, Clone)]
pub enum LockError {
    /// It is not free, and the job must not wait for it: it holds one that comes after it. Take locks in the order of the levels and their
    /// names, all of a level before its resources; or declare it, so that it is taken before the job starts.
    OutOfOrder {
        /// What is not free, and who is in the way.
        blocked: Box<Blocked>,
        /// What is held and comes after it.
        above: LockAt,
    },
    /// The job's declaration does not cover it, or there is no such lock: what is wrong, and what would be right.
    Refused(String),
    /// The run shall end: a shutdown, or its user cancelled the job. It waits no longer, and returns [`Outcome::Stopped`] soon.
    Stopped,
    /// The job is no longer this worker's; nothing that it writes counts.
    Lost,
    /// The store has failed for good.
    Store(StoreError),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::OutOfOrder { blocked, above } => write!(
                f,
                "{} is not free, and the job holds {above}, which comes after it: ask for locks in their order, or declare them",
                blocked.lock
            ),
            LockError::Refused(problem) => f.write_str(problem),
            LockError::Stopped => f.write_str("the job shall stop"),
            LockError::Lost => f.write_str("the job is no longer this worker's"),
            LockError::Store(error) => write!(f, "the store: {error}"),
        }
    }
}

impl std::error::Error for LockError {}

/// What a run comes to that cannot go on without the lock.
impl From<LockError> for Outcome {
    fn from(error: LockError) -> Outcome {
        match error {
            LockError::Stopped | LockError::Lost => Outcome::Stopped,
            LockError::Refused(problem) => Outcome::Failed(problem),
            error @ (LockError::OutOfOrder { .. } | LockError::Store(_)) => {
                Outcome::Crashed(error.to_string())
            }
        }
    }
}

/// How many of a worker's jobs wait for locks, and news of more for its loop.
#[derive(Default)]
pub(crate) struct Slots {
    waiting: AtomicUsize,
    pub news: Notify,
}

impl Slots {
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

/// Whether a run waits for a lock, and for how long it has lent its slot so far: that time is not charged.
#[derive(Debug, Default)]
pub(crate) struct Waits(std::sync::Mutex<Lent>);

#[derive(Debug, Default)]
struct Lent {
    waits: bool,
    /// It waits and lends its slot since then, in µs. That is decided when it begins to wait.
    since_us: Option<i64>,
    /// How long it did so before, in µs.
    before_us: i64,
    /// How often it has waited.
    times: u64,
}

impl Waits {
    pub fn now(&self) -> bool {
        self.lent().waits
    }

    /// How often it has waited, this time included if it does.
    pub fn times(&self) -> u64 {
        self.lent().times
    }

    pub fn lent_us(&self, now_us: i64) -> i64 {
        let Lent { since_us, before_us, .. } = *self.lent();
        before_us.saturating_add(since_us.map_or(0, |since_us| now_us.saturating_sub(since_us).max(0)))
    }

    fn begin(&self, lends: bool, now_us: i64) {
        let mut lent = self.lent();
        (lent.waits, lent.since_us) = (true, lends.then_some(now_us));
        lent.times += 1;
    }

    fn over(&self, now_us: i64) {
        let before_us = self.lent_us(now_us);
        let mut lent = self.lent();
        (lent.waits, lent.since_us, lent.before_us) = (false, None, before_us);
    }

    fn lent(&self) -> std::sync::MutexGuard<'_, Lent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The locks of one run. Clones are the same.
#[derive(Clone)]
pub(crate) struct JobLocks(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    id: String,
    claim: Claim,
    stop: CancellationToken,
    halt: CancellationToken,
    slots: Arc<Slots>,
    waits: Arc<Waits>,
    /// A job waits for one lock at a time.
    turn: Mutex<()>,
    /// Somebody has stopped waiting, and the row may still be there.
    left: AtomicBool,
}

impl JobContext {
    /// Takes a lock that the job's declaration covers: of a level where it says unknown or all, or by name. What is held is granted at once.
    /// Returns when the job has it, however long that takes, first come first served. It is given back with [`JobContext::unlock`], or when the
    /// run ends.
    ///
    /// Dropping this future ends the waiting.
    ///
    /// # Errors
    /// [`LockError`]; nothing is waited for then.
    pub async fn lock(&self, lock: LockAt) -> Result<(), LockError> {
        self.locks.take(&[lock]).await
    }

    /// Takes several locks, one after the other in their order, whatever order they are given in.
    ///
    /// # Errors
    /// [`LockError`]; those that come before the one that could not be had are held.
    pub async fn lock_all(&self, locks: &[LockAt]) -> Result<(), LockError> {
        self.locks.take(locks).await
    }

    /// Gives locks back before the end of the run. What is not held is none to be given back.
    ///
    /// # Errors
    /// `Refused` for the big lock, which goes with the run; `Lost` and `Store` as with all that a job writes.
    pub async fn unlock(&self, spots: &[Spot]) -> Result<(), LockError> {
        self.locks.give_back(spots).await
    }
}

impl JobLocks {
    pub fn new(
        shared: Arc<Shared>,
        (id, claim): (String, Claim),
        (stop, halt): (CancellationToken, CancellationToken),
        (slots, waits): (Arc<Slots>, Arc<Waits>),
    ) -> Self {
        let (turn, left) = (Mutex::default(), AtomicBool::new(false));
        JobLocks(Arc::new(Inner { shared, id, claim, stop, halt, slots, waits, turn, left }))
    }

    async fn take(&self, locks: &[LockAt]) -> Result<(), LockError> {
        let inner = &*self.0;
        let _turn = inner.turn.lock().await;
        let mut waiting = Waiting { locks: self, on: false, settled: false };
        let runtime = inner.shared.store.runtime();
        let stopped = || inner.stop.is_cancelled() || inner.halt.is_cancelled();
        while !stopped() {
            let pause = match inner.ask(locks).await {
                Ok((Asked::Granted, _)) => {
                    waiting.over();
                    return Ok(());
                }
                Ok((Asked::OutOfOrder { blocked, above }, _)) => {
                    waiting.over();
                    return Err(LockError::OutOfOrder { blocked: Box::new(blocked), above });
                }
                Ok((Asked::Waits(_), seen)) => {
                    waiting.begin();
                    Some(seen)
                }
                // The row may be there, and the next attempt finds it.
                Err(Error::Store(error)) if error.is_retryable() => None,
                Err(error @ Error::Store(_)) => return Err(told(error)),
                Err(error) => {
                    waiting.over();
                    return Err(told(error));
                }
            };
            let pause = async {
                match pause {
                    Some(seen) => inner.shared.lock_wake.changed(seen).await,
                    None => runtime.sleep(ERROR_PAUSE).await,
                }
            };
            tokio::select! {
                biased;
                () = inner.halt.cancelled() => {}
                () = inner.stop.cancelled() => {}
                () = pause => {}
            }
        }
        if inner.halt.is_cancelled() {
            waiting.over();
            return Err(LockError::Lost);
        }
        inner.left.store(true, Relaxed);
        inner.withdraw().await;
        waiting.over();
        Err(LockError::Stopped)
    }

    async fn give_back(&self, spots: &[Spot]) -> Result<(), LockError> {
        let Inner { shared, id, claim, .. } = &*self.0;
        let Shared { store, keys, job_type, .. } = &**shared;
        let given = store
            .transact(|tx| async move { locks::release_some(&tx, keys, job_type, id, claim, spots).await });
        given.await.map_err(told)
    }
}

impl Inner {
    /// Asks for what is not held yet. With the answer, what tells whether another one is worth it.
    async fn ask(&self, wanted: &[LockAt]) -> turnwise_queue::Result<(Asked, Option<Bytes>)> {
        let Shared { store, keys, job_type, tunables, .. } = &*self.shared;
        let levels = &tunables.get().queue.levels;
        let (id, claim, left) = (&self.id, &self.claim, self.left.load(Relaxed));
        let asked = store
            .transact(|tx| async move {
                let now_us = store.runtime().now_us();
                let seen = tx.get_with(&keys.lock_wake(), Isolation::Snapshot).await?;
                if left {
                    locks::withdraw(&tx, keys, job_type, id, claim, now_us).await?;
                }
                let asked = locks::request(&tx, keys, levels, job_type, id, claim, wanted, now_us).await?;
                Ok::<_, Error>((asked, seen))
            })
            .await?;
        self.left.store(false, Relaxed);
        Ok(asked)
    }

    /// Leaves the queue, if the job stands in one. Whether it is done: what cannot be written now goes with the claim.
    async fn withdraw(&self) -> bool {
        if !self.left.load(Relaxed) {
            return true;
        }
        let Shared { store, keys, job_type, .. } = &*self.shared;
        let (id, claim) = (&self.id, &self.claim);
        let withdrawn = store.transact(|tx| async move {
            locks::withdraw(&tx, keys, job_type, id, claim, store.runtime().now_us()).await
        });
        match withdrawn.await {
            Ok(()) | Err(Error::Halt) => {
                self.left.store(false, Relaxed);
                true
            }
            Err(error) => {
                tracing::warn!(job = %id, %error, "cannot leave a lock's queue");
                false
            }
        }
    }

    /// The same until it is done: whoever stands there and does not ask keeps all behind him from the lock.
    async fn withdraw_at_last(&self) {
        let runtime = self.shared.store.runtime();
        while !self.withdraw().await {
            tokio::select! {
                biased;
                () = self.halt.cancelled() => return,
                () = runtime.sleep(ERROR_PAUSE) => {}
            }
        }
    }
}

fn told(error: Error) -> LockError {
    match error {
        Error::Halt | Error::NotFound => LockError::Lost,
        Error::Invalid { problem, .. } => LockError::Refused(problem),
        Error::Store(error) => LockError::Store(error),
    }
}

/// That a job waits, as the worker's loop counts it.
struct Waiting<'a> {
    locks: &'a JobLocks,
    /// It is counted.
    on: bool,
    /// No row is left of it, and none is on its way.
    settled: bool,
}

impl Waiting<'_> {
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.on, true) {
            let Inner { shared, slots, waits, .. } = &*self.locks.0;
            let lends = !shared.tunables.get().queue.waiting_uses_slot;
            waits.begin(lends, shared.store.runtime().now_us());
            slots.waiting.fetch_add(1, Relaxed);
            slots.news.notify_one();
        }
    }

    fn over(&mut self) {
        self.settled = true;
        if std::mem::replace(&mut self.on, false) {
            let Inner { shared, slots, waits, .. } = &*self.locks.0;
            waits.over(shared.store.runtime().now_us());
            slots.waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Waiting<'_> {
    /// Whoever asked does not wait for the answer any more.
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        self.over();
        self.locks.0.left.store(true, Relaxed);
        let halted = self.locks.0.halt.is_cancelled();
        let Some(handle) = tokio::runtime::Handle::try_current().ok().filter(|_| !halted) else { return };
        let locks = self.locks.clone();
        handle.spawn(async move {
            let _turn = locks.0.turn.lock().await;
            locks.0.withdraw_at_last().await;
        });
    }
}
