//! The handle of a store, and the loop that runs a transaction until it commits.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;

use crate::appends::Appends;
use crate::counters::{Meter, Metered};
use crate::metrics::Times;
use crate::{Clock, Condition, Counters, Engine, Error, Limits, Result, Runtime, Transaction, Watch};

/// Attempts before a transaction gives up. With the pauses below they span at most about half a minute.
const MAX_ATTEMPTS: u32 = 40;
/// Conflicts are retried immediately this many times, because the winner has already committed.
const IMMEDIATE_RETRIES: u32 = 3;
const FIRST_PAUSE_MS: u64 = 2;
const LONGEST_PAUSE_MS: u64 = 1_000;
/// The pause between two looks at transactions that have not ended.
const SWITCH_PAUSE: Duration = Duration::from_millis(5);

/// Errors that may wrap a store error, so that the retry loop can inspect it.
pub trait MaybeStoreError: From<Error> {
    /// The store error, if this is one.
    fn store_error(&self) -> Option<&Error>;
}

impl MaybeStoreError for Error {
    fn store_error(&self) -> Option<&Error> {
        Some(self)
    }
}

/// A store: an engine, and the clock that retries wait on. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    engine: Arc<dyn Engine>,
    clock: Arc<Clock>,
    /// The same clock, as a [`Runtime`].
    runtime: Arc<dyn Runtime>,
    meter: Arc<Meter>,
    limits: Limits,
    appends: Arc<Appends>,
    /// See [`Store::impatient`].
    patience: Option<Duration>,
}

impl Store {
    /// A store on `engine`. It has its own [`Clock`], which follows the clock of `runtime`.
    pub fn new(engine: Arc<dyn Engine>, runtime: Arc<dyn Runtime>) -> Self {
        let clock = Clock::new(runtime);
        let runtime: Arc<dyn Runtime> = clock.clone();
        let meter = Meter::new(runtime.clone());
        let limits = engine.limits();
        Store { engine, clock, runtime, meter, limits, appends: Arc::default(), patience: None }
    }

    /// The same store with tighter limits than its engine's, to test code that must also run on engines with smaller limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Store { limits, ..self }
    }

    /// The same store, for callers that prefer an error to a long wait. Once a transaction has taken this long, the store is not
    /// tried again while it is unavailable. An attempt that hangs this long has an unknown outcome. Conflicts are retried as
    /// usual.
    #[must_use]
    pub fn impatient(&self, patience: Duration) -> Store {
        Store { patience: Some(patience), ..self.clone() }
    }

    /// The clock and the random numbers for this store's users.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// The store's clock.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// The limits of a transaction.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The work done on this store, through this handle and its clones, since it was opened.
    pub fn counters(&self) -> Counters {
        self.meter.counters()
    }

    /// The meter, which keeps the counters and the condition.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// How long writes to the log took, each with its fsync; see [`Engine::log_writes`].
    pub fn log_writes(&self) -> Option<Times> {
        self.engine.log_writes()
    }

    /// Returns once this store cannot continue in this process; see [`Engine::ended`].
    pub async fn ended(&self) -> String {
        self.engine.ended().await
    }

    /// Whether this store works, according to the latest calls.
    pub fn condition(&self) -> Condition {
        self.meter.condition()
    }

    /// Transactions of this process that begin from now on append to logs ([`Transaction::append`]); at first, none does. Returns when all that began before have ended, or can no
    /// longer commit: from then on, each commit of this process has appended what it had to.
    pub async fn append_from_now_on(&self) {
        self.appends.switch(true);
        let begun_us = self.runtime.elapsed_us();
        let longest_us = i64::try_from(self.limits.transaction_ms).unwrap_or(i64::MAX).saturating_mul(3_000);
        while self.appends.has_former() {
            if self.runtime.elapsed_us().saturating_sub(begun_us) > longest_us {
                return;
            }
            self.runtime.sleep(SWITCH_PAUSE).await;
        }
    }

    /// Transactions of this process that begin from now on append nothing.
    pub fn append_no_longer(&self) {
        self.appends.switch(false);
    }

    /// Begins one transaction, for callers that handle retries themselves.
    #[boxed]
    pub async fn begin(&self) -> Result<Transaction> {
        let begun_us = self.runtime.elapsed_us();
        let mode = self.appends.mode();
        let snapshot = self.engine.snapshot().await;
        self.meter.began(&snapshot);
        let snapshot = Metered { snapshot: snapshot?, meter: self.meter.clone() };
        Ok(Transaction::new(snapshot, self.limits, self.runtime.clone(), begun_us, mode))
    }

    /// Runs `body` in a transaction and commits it. Repeats both after a conflict or a transient failure.
    ///
    /// The body may run many times, and even after it has committed (an unknown outcome). So it must be idempotent, and must have
    /// no effects outside its transaction. Its error is returned immediately unless it carries a retryable [`Error`].
    pub async fn transact<T, E, F, Fut>(&self, body: F) -> Result<T, E>
    where
        F: Fn(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: MaybeStoreError,
    {
        let mut retries = Retries::new(self);
        loop {
            let done = tokio::select! {
                biased;
                done = self.attempt(&body) => done,
                late = retries.wait() => Err(late.into()),
            };
            match done {
                Err(error) if retries.again(error.store_error()).await => {}
                done => return done,
            }
        }
    }

    async fn attempt<T, E, F, Fut>(&self, body: &F) -> Result<T, E>
    where
        F: Fn(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: MaybeStoreError,
    {
        let tx = self.begin().await?;
        let value = body(tx.clone()).await?;
        tx.commit().await?;
        Ok(value)
    }

    /// Returns a watch that resolves once `key` has another value than `seen`, a value from an earlier transaction. It never
    /// misses a change in between. It may resolve early, so the caller reads the key again.
    pub async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        let watch = self.engine.watch(key, seen).await;
        self.meter.promised(&watch);
        watch
    }
}

/// The attempts of one transaction. Apart from [`Store::transact`], because that is compiled for each of its callers.
struct Retries<'a> {
    store: &'a Store,
    attempts: u32,
    /// When [`Store::impatient`] gives up, in µs of the runtime's elapsed time.
    give_up_us: Option<i64>,
}

impl<'a> Retries<'a> {
    fn new(store: &'a Store) -> Self {
        let give_up_us = store.patience.map(|patience| {
            let patience_us = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
            store.runtime.elapsed_us().saturating_add(patience_us)
        });
        Retries { store, attempts: 0, give_up_us }
    }

    /// Returns when an attempt has taken too long: never, unless the store is [`Store::impatient`].
    async fn wait(&self) -> Error {
        let Some(patience) = self.store.patience else { return std::future::pending().await };
        self.store.runtime.sleep(patience).await;
        Error::UnknownOutcome(format!("no answer within {patience:?}"))
    }

    /// Whether to try again after an attempt that failed with this store error. Returns after the pause before that attempt.
    #[boxed]
    async fn again(&mut self, error: Option<&Error>) -> bool {
        let Some(cause) = error else { return false };
        self.attempts += 1;
        let is_late = self.give_up_us.is_some_and(|at_us| self.store.runtime.elapsed_us() >= at_us);
        if !cause.is_retryable() || self.attempts >= MAX_ATTEMPTS || (cause.is_away() && is_late) {
            return false;
        }
        self.store.meter.counts.retries.add(1);
        tracing::debug!(attempt = self.attempts, %cause, "transaction runs again");
        let is_immediate = matches!(cause, Error::Conflict) && self.attempts <= IMMEDIATE_RETRIES;
        if !is_immediate {
            self.pause().await;
        }
        true
    }

    /// Exponential backoff with full jitter, so that transactions that conflicted do not conflict again.
    async fn pause(&self) {
        let longest_ms = FIRST_PAUSE_MS.saturating_mul(1 << self.attempts.min(16)).min(LONGEST_PAUSE_MS);
        let pause_ms = 1 + self.store.runtime.random() % longest_ms;
        self.store.runtime.sleep(Duration::from_millis(pause_ms)).await;
    }
}
