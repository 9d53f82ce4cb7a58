//! The locks that a running job requests: [`JobContext::lock`].
//!
//! *Model.* Each request is a transaction under the job's claim ([`turnwise_queue::locks::request`]). If the lock is
//! not free, the job waits in the lock's queue, as a row, and repeats the request whenever a lock is released. Its task
//! sleeps meanwhile, and its slot is lent to another job. A job that stops waiting, for whatever reason, leaves the
//! queue, at the latest when its claim ends.
//!
//! *A job that gets its lock continues immediately*, even if its slot is occupied. If it waited for a slot, it would
//! hold a lock meanwhile. The jobs in the slots might run for ever, or wait for that very lock. So a worker may have
//! more running jobs than slots: up to the number of lent slots more, and at most twice as many.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use tokio::sync::{Mutex, Notify};
use turnwise_queue::locks::{self, Asked, Blocked, LockAt, Spot};
use turnwise_queue::{Error, RunKey};
use turnwise_store::Error as StoreError;

use super::request;
use crate::run::{ClaimedJob, Controls, Shared};
use crate::sync::lock;
use crate::times::ERROR_PAUSE;
use crate::{JobContext, Outcome};

/// Why a lock was not granted.
#[derive(Debug, Clone)]
pub enum LockError {
    /// The lock is not free, and the job must not wait for it, because it holds a lock that comes after it in lock
    /// order. Take locks in the order of the levels and of their resources' names; a whole level comes before its
    /// resources. Or declare the lock, so that the job gets it before it starts.
    OutOfOrder {
        /// The lock that is not free, and the jobs that hold it or wait for it.
        blocked: Box<Blocked>,
        /// The held lock that comes after it.
        above: LockAt,
    },
    /// The job's declaration does not cover the lock, or there is no such lock. The text has the problem and the
    /// solution.
    Refused(String),
    /// The run must end, because of a shutdown, a preemption or a cancellation. The job stops waiting, and soon returns
    /// [`Outcome::Stopped`].
    Stopped,
    /// This worker no longer holds the job; its writes have no effect.
    Lost,
    /// The store has failed permanently.
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

/// The outcome of a run that cannot continue without the lock.
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

/// The number of a worker's jobs that wait for locks. Notifies the worker's loop when it increases.
#[derive(Default)]
pub(crate) struct Slots {
    waiting: AtomicUsize,
    pub more_waiting: Notify,
}

impl Slots {
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

/// Whether a run waits for a lock, and how long it has lent its slot so far. The time with a lent slot is not charged.
#[derive(Debug, Default)]
pub(crate) struct WaitState(std::sync::Mutex<WaitTimes>);

#[derive(Debug, Default)]
struct WaitTimes {
    waits: bool,
    /// Since when the run has waited and lent its slot, in µs. The settings at the beginning of the wait decide whether
    /// it lends.
    since_us: Option<i64>,
    /// How long the run lent its slot in earlier waits, in µs.
    before_us: i64,
    /// When the run's last wait ended, in µs of [`Runtime::elapsed_us`](turnwise_store::Runtime::elapsed_us).
    ended_us: Option<i64>,
}

impl WaitState {
    pub fn now(&self) -> bool {
        lock(&self.0).waits
    }

    /// When the run's last wait ended, in µs of [`Runtime::elapsed_us`](turnwise_store::Runtime::elapsed_us).
    pub fn ended_us(&self) -> Option<i64> {
        lock(&self.0).ended_us
    }

    pub fn lent_us(&self, now_us: i64) -> i64 {
        let WaitTimes { since_us, before_us, .. } = *lock(&self.0);
        before_us.saturating_add(since_us.map_or(0, |since_us| now_us.saturating_sub(since_us).max(0)))
    }

    fn begin(&self, lends: bool, now_us: i64) {
        let mut lent = lock(&self.0);
        (lent.waits, lent.since_us) = (true, lends.then_some(now_us));
    }

    fn over(&self, now_us: i64, elapsed_us: i64) {
        let before_us = self.lent_us(now_us);
        let mut lent = lock(&self.0);
        (lent.waits, lent.since_us, lent.before_us) = (false, None, before_us);
        lent.ended_us = Some(elapsed_us);
    }
}

/// The locks of one run. Clones share them.
#[derive(Clone)]
pub(crate) struct JobLocks(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    job: Arc<ClaimedJob>,
    controls: Arc<Controls>,
    /// Held during a request: a job waits for one lock at a time.
    turn: Mutex<()>,
    /// Whether the row of an ended wait may still be in a lock queue.
    left: AtomicBool,
}

impl JobContext {
    /// Takes a lock that the job's declaration covers. The declaration names the lock, or declares its level as unknown
    /// or as all. A lock that the job already holds is granted immediately. Returns when the job has the lock, however
    /// long that takes. Requests for a lock are granted in their order. [`JobContext::unlock`] or the end of the run
    /// releases it.
    ///
    /// Dropping this future ends the wait.
    ///
    /// # Errors
    /// [`LockError`]; the job does not wait any more then.
    #[boxed]
    pub async fn lock(&self, lock: LockAt) -> Result<(), LockError> {
        self.locks.take(&[lock]).await
    }

    /// Takes several locks, one after the other in lock order, whatever their order in the argument.
    ///
    /// # Errors
    /// [`LockError`]; the job keeps the locks before the one that failed.
    pub async fn lock_all(&self, locks: &[LockAt]) -> Result<(), LockError> {
        self.locks.take(locks).await
    }

    /// Releases locks before the end of the run. Locks that the job does not hold are ignored.
    ///
    /// # Errors
    /// `Refused` for the big lock, which is released with the run; `Lost` and `Store` as with every write of a job.
    #[boxed]
    pub async fn unlock(&self, spots: &[Spot]) -> Result<(), LockError> {
        self.locks.give_back(spots).await
    }
}

impl JobLocks {
    pub fn new(shared: Arc<Shared>, job: Arc<ClaimedJob>, controls: Arc<Controls>) -> Self {
        let (turn, left) = (Mutex::default(), AtomicBool::new(false));
        JobLocks(Arc::new(Inner { shared, job, controls, turn, left }))
    }

    async fn take(&self, locks: &[LockAt]) -> Result<(), LockError> {
        let inner = &*self.0;
        let _turn = inner.turn.lock().await;
        let mut waiting = WaitGuard { locks: self, on: false, settled: false };
        let runtime = inner.shared.store.runtime();
        let Controls { stop, halt, .. } = &*inner.controls;
        while !inner.controls.shall_end() {
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
                // The request may have written its row; the next attempt finds it.
                Err(Error::Store(error)) if error.is_retryable() => None,
                Err(error @ Error::Store(_)) => return Err(lock_error(error)),
                Err(error) => {
                    waiting.over();
                    return Err(lock_error(error));
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
                () = halt.cancelled() => {}
                () = stop.cancelled() => {}
                () = pause => {}
            }
        }
        if halt.is_cancelled() {
            waiting.over();
            return Err(LockError::Lost);
        }
        inner.left.store(true, Relaxed);
        inner.withdraw().await;
        waiting.over();
        Err(LockError::Stopped)
    }

    async fn give_back(&self, spots: &[Spot]) -> Result<(), LockError> {
        let Inner { shared, .. } = &*self.0;
        let Shared { store, keys, .. } = &**shared;
        let run = self.0.run();
        let given = store.transact(|tx| async move { locks::release_some(&tx, keys, run, spots).await });
        given.await.map_err(lock_error)
    }
}

impl Inner {
    fn run(&self) -> RunKey<'_> {
        RunKey::new(&self.shared.job_type, &self.job.id, &self.job.claim)
    }

    /// Requests the locks that the job does not hold yet, as [`request`] does.
    async fn ask(&self, wanted: &[LockAt]) -> turnwise_queue::Result<(Asked, Option<Bytes>)> {
        let Shared { store, keys, tunables, .. } = &*self.shared;
        let levels = &tunables.get().queue.levels;
        let asked = request((store, keys, levels), self.run(), wanted, self.left.load(Relaxed)).await?;
        self.left.store(false, Relaxed);
        Ok(asked)
    }

    /// Leaves the lock's queue, if the job may be in one. Returns whether that is done; otherwise, the row stays until
    /// another attempt, or until the claim ends.
    async fn withdraw(&self) -> bool {
        if !self.left.load(Relaxed) {
            return true;
        }
        let (Shared { store, keys, .. }, run) = (&*self.shared, self.run());
        let withdrawn = store
            .transact(|tx| async move { locks::withdraw(&tx, keys, run, store.runtime().now_us()).await });
        match withdrawn.await {
            Ok(()) | Err(Error::Halt) => {
                self.left.store(false, Relaxed);
                true
            }
            Err(error) => {
                tracing::warn!(job = %self.job.id, %error, "cannot leave a lock's queue");
                false
            }
        }
    }

    /// Repeats [`Inner::withdraw`] until it is done: a job that stays in a lock queue without a request blocks all jobs
    /// behind it.
    async fn withdraw_at_last(&self) {
        let runtime = self.shared.store.runtime();
        while !self.withdraw().await {
            tokio::select! {
                biased;
                () = self.controls.halt.cancelled() => return,
                () = runtime.sleep(ERROR_PAUSE) => {}
            }
        }
    }
}

fn lock_error(error: Error) -> LockError {
    match error {
        Error::Halt | Error::NotFound => LockError::Lost,
        Error::Invalid { problem, .. } => LockError::Refused(problem),
        Error::Store(error) => LockError::Store(error),
    }
}

/// The wait of a job: counted by the worker's loop while it lasts, and withdrawn when this is dropped.
struct WaitGuard<'a> {
    locks: &'a JobLocks,
    /// Whether the wait is counted.
    on: bool,
    /// Whether the wait has no row, and no write of it is in flight.
    settled: bool,
}

impl WaitGuard<'_> {
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.on, true) {
            let Inner { shared, controls, .. } = &*self.locks.0;
            let Controls { slots, waits, .. } = &**controls;
            let lends = !shared.tunables.get().queue.waiting_uses_slot;
            waits.begin(lends, shared.store.runtime().now_us());
            slots.waiting.fetch_add(1, Relaxed);
            slots.more_waiting.notify_one();
        }
    }

    fn over(&mut self) {
        self.settled = true;
        if std::mem::replace(&mut self.on, false) {
            let Inner { shared, controls, .. } = &*self.locks.0;
            let Controls { slots, waits, .. } = &**controls;
            let runtime = shared.store.runtime();
            waits.over(runtime.now_us(), runtime.elapsed_us());
            slots.waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for WaitGuard<'_> {
    /// Withdraws the request: the caller has stopped waiting for the lock.
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        self.over();
        self.locks.0.left.store(true, Relaxed);
        let halted = self.locks.0.controls.halt.is_cancelled();
        let Some(handle) = tokio::runtime::Handle::try_current().ok().filter(|_| !halted) else { return };
        let locks = self.locks.clone();
        handle.spawn(async move {
            let _turn = locks.0.turn.lock().await;
            locks.0.withdraw_at_last().await;
        });
    }
}
