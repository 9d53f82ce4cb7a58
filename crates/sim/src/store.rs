//! The simulated store itself, without faults: rows, watches, and the order of commits.
//!
//! It is one object for the whole world, like a database cluster. Nodes reach it through
//! [`SimEngine`](crate::engine::SimEngine), which adds the faults of the connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;
use turnwise_store::{Changes, Error, KeyValue, Limits, RangeRead, Result, Versionstamp};

use crate::rows::{RowChange, Rows, versionstamp};

/// The clock that measures the age of transactions, in µs.
pub type Clock = Box<dyn Fn() -> i64 + Send + Sync>;

/// A function that receives each commit when it happens, with its writer `W`.
pub type Observer<W> = Box<dyn Fn(&W, u64, &[RowChange]) + Send + Sync>;

/// A store in memory. `W` is the type that identifies writers.
pub struct SimStore<W> {
    state: Mutex<State>,
    limits: Limits,
    clock: Clock,
    observer: Option<Observer<W>>,
}

#[derive(Default)]
struct State {
    rows: Rows,
    watches: BTreeMap<Bytes, Vec<Waiter>>,
    next_watch: u64,
}

struct Waiter {
    id: u64,
    /// The engine that created the watch.
    engine: u64,
    seen: Option<Bytes>,
    wake: oneshot::Sender<()>,
}

/// A version that a snapshot may read, until this is dropped.
pub struct VersionLease<W> {
    store: Arc<SimStore<W>>,
    version: u64,
    taken_us: i64,
}

impl<W> SimStore<W> {
    /// An empty store.
    pub fn new(limits: Limits, clock: Clock, observer: Option<Observer<W>>) -> Arc<Self> {
        // As etcd does, which has smaller limits.
        let appends_sums = limits != Limits::DEFAULT;
        let state = State { rows: Rows::new(appends_sums), ..State::default() };
        Arc::new(SimStore { state: Mutex::new(state), limits, clock, observer })
    }

    /// The limits of a commit.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a snapshot of the current state.
    pub fn lease(self: &Arc<Self>) -> VersionLease<W> {
        let version = self.state().rows.hold();
        VersionLease { store: self.clone(), version, taken_us: (self.clock)() }
    }

    /// The newest value of a key.
    pub fn latest(&self, key: &[u8]) -> Option<Bytes> {
        self.state().rows.latest(key).cloned()
    }

    /// All rows as they are now.
    pub fn all(&self) -> Vec<KeyValue> {
        self.state().rows.all().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Waits until `key` no longer holds `seen`. Resolves immediately if it does not hold it now.
    pub fn watch(self: &Arc<Self>, engine: u64, key: Bytes, seen: Option<Bytes>) -> Waiting<W>
    where
        W: 'static,
    {
        let mut state = self.state();
        let (wake, woken) = oneshot::channel();
        state.next_watch += 1;
        let id = state.next_watch;
        if state.rows.latest(&key) == seen.as_ref() {
            state.watches.entry(key.clone()).or_default().push(Waiter { id, engine, seen, wake });
        }
        Waiting { woken, _registration: Registration { store: self.clone(), key, id } }
    }

    /// Ends all watches of an engine that is closed.
    pub fn close(&self, engine: u64) {
        for waiters in self.state().watches.values_mut() {
            waiters.retain(|waiter| waiter.engine != engine);
        }
    }

    fn forget(&self, key: &Bytes, id: u64) {
        let mut state = self.state();
        if let Some(waiters) = state.watches.get_mut(key) {
            waiters.retain(|waiter| waiter.id != id);
            if waiters.is_empty() {
                state.watches.remove(key);
            }
        }
    }
}

impl<W> VersionLease<W> {
    /// Fails if the transaction is too old to do anything.
    pub fn check_age(&self) -> Result<()> {
        let limit_ms = self.store.limits.transaction_ms;
        let age_ms = (self.store.clock)().saturating_sub(self.taken_us) / 1_000;
        match u64::try_from(age_ms) {
            Ok(age_ms) if age_ms > limit_ms => Err(Error::TooOld { limit_ms }),
            _ => Ok(()),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.check_age()?;
        Ok(self.store.state().rows.get(self.version, key))
    }

    /// Rows of a range.
    pub fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.check_age()?;
        Ok(self.store.state().rows.range(self.version, read))
    }

    /// Commits now, or returns why it cannot.
    pub fn commit(&self, changes: &Changes, writer: &W) -> Result<Versionstamp> {
        self.check_age()?;
        let mut state = self.store.state();
        let (writes, proofs, limits) =
            (parts_written(changes), state.rows.parts_proved(self.version, changes), self.store.limits);
        if writes > limits.transaction_writes || proofs > limits.transaction_conflicts {
            let what = format!("writes {writes} rows and proves {proofs} reads");
            let limit = limits.transaction_writes.min(limits.transaction_conflicts);
            return Err(Error::TooMany { what, limit });
        }
        if state.rows.conflicts(self.version, changes) {
            return Err(Error::Conflict);
        }
        let (version, changed) = state.rows.apply(changes);
        let mut woken = Vec::new();
        for RowChange { key, new, .. } in &changed {
            let Some(waiters) = state.watches.get_mut(key) else { continue };
            woken.extend(waiters.extract_if(.., |waiter| waiter.seen != *new));
            if waiters.is_empty() {
                state.watches.remove(key);
            }
        }
        drop(state);
        if let Some(observer) = &self.store.observer {
            observer(writer, version, &changed);
        }
        for waiter in woken {
            let _ = waiter.wake.send(());
        }
        Ok(versionstamp(version))
    }
}

/// The number of operations that a commit takes on an engine that allows no second write and no clear of a written key. A
/// cleared range is split around the keys in it that are written.
fn parts_written(changes: &Changes) -> usize {
    let keys = || changes.puts.iter().map(|(key, _)| key).chain(&changes.versionstamped);
    let within = |(begin, end): &&(Bytes, Bytes), key: &Bytes| begin <= key && key < end;
    let splits = keys().filter(|key| changes.clear_ranges.iter().any(|range| within(&range, key)));
    keys().count() + changes.adds.len() + changes.appends.len() + changes.clear_ranges.len() + splits.count()
}

impl<W> Drop for VersionLease<W> {
    fn drop(&mut self) {
        self.store.state().rows.release(self.version);
    }
}

/// A watch that is registered.
pub struct Waiting<W> {
    woken: oneshot::Receiver<()>,
    _registration: Registration<W>,
}

impl<W> Waiting<W> {
    /// Returns when the value has changed or the engine was closed.
    pub async fn changed(self) {
        let _ = self.woken.await;
    }
}

/// Removes the watch when it is dropped.
struct Registration<W> {
    store: Arc<SimStore<W>>,
    key: Bytes,
    id: u64,
}

impl<W> Drop for Registration<W> {
    fn drop(&mut self) {
        self.store.forget(&self.key, self.id);
    }
}
