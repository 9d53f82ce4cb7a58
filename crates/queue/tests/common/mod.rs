//! A store with one worker, and transactions on it, for all tests of this crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_queue::keyspace::KeyRange;
use turnwise_queue::{Claim, Job, Keyspace, Result, check, jobs, tenants, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Isolation, KeyValue, Limits, RangeRead, Store, Transaction, runtime};

/// The type of all jobs.
pub const T: &str = "test";

pub fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// A claim of the worker `w`.
pub fn by(number: u64) -> Claim {
    Claim { worker: "w".into(), number }
}

/// The store in a directory, with the limits of its engine.
pub fn open(dir: &tempfile::TempDir) -> Store {
    let options = Options { durable: false, ..Options::default() };
    Store::new(Embedded::open_with(dir.path(), options).unwrap(), Arc::new(runtime::System))
}

/// The rows of a range.
pub async fn rows_in(store: &Store, (begin, end): KeyRange) -> Vec<KeyValue> {
    let read = RangeRead { begin, end, limit: 10_000_000, reverse: false };
    store.begin().await.unwrap().range_with(read, Isolation::Snapshot).await.unwrap()
}

/// Checks all rows of a store.
pub async fn check_all(store: &Store, keys: &Keyspace) {
    let rows = rows_in(store, (Bytes::new(), b"\xff"[..].into())).await;
    assert_eq!(check::check_rows(keys, &rows), []);
}

/// A store. Each file of tests has a type `F` for what it needs besides, and adds its own methods to `World<F>`.
pub struct World<F> {
    pub store: Store,
    pub keys: Keyspace,
    pub claims: AtomicU64,
    pub own: F,
    _dir: tempfile::TempDir,
}

impl<F: Default> World<F> {
    /// A store without rows.
    pub fn empty(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir).with_limits(limits);
        World { store, keys: Keyspace::default(), claims: AtomicU64::new(1), own: F::default(), _dir: dir }
    }

    /// A store with the worker `w`.
    pub async fn with_limits(limits: Limits) -> Self {
        let world = World::empty(limits);
        world.register("w").await;
        world
    }

    /// A store with the worker `w`, and the smallest limits.
    pub async fn new() -> Self {
        World::with_limits(Limits::SMALL).await
    }
}

impl<F> World<F> {
    pub async fn register(&self, worker: &str) {
        let worker = workers::Worker::new(worker, "n", 0, 9);
        self.run(async |tx, keys| workers::register(tx, keys, T, &worker)).await;
    }

    pub async fn tx(&self) -> Transaction {
        self.store.begin().await.unwrap()
    }

    /// Runs a transaction once. The rows may be wrong.
    pub async fn unchecked<R>(
        &self,
        body: impl AsyncFnOnce(&Transaction, &Keyspace) -> Result<R>,
    ) -> Result<R> {
        let tx = self.tx().await;
        let value = body(&tx, &self.keys).await?;
        tx.commit().await?;
        Ok(value)
    }

    /// Runs a transaction once, then checks all rows.
    pub async fn try_run<R>(
        &self,
        body: impl AsyncFnOnce(&Transaction, &Keyspace) -> Result<R>,
    ) -> Result<R> {
        let value = self.unchecked(body).await?;
        self.check().await;
        Ok(value)
    }

    /// The same, for a transaction that must succeed.
    pub async fn run<R>(&self, body: impl AsyncFnOnce(&Transaction, &Keyspace) -> Result<R>) -> R {
        self.try_run(body).await.unwrap()
    }

    pub async fn check(&self) {
        check_all(&self.store, &self.keys).await;
    }

    /// A new claim of a worker.
    pub fn next_claim(&self, worker: &str) -> Claim {
        Claim { worker: worker.into(), number: self.claims.fetch_add(1, SeqCst) }
    }

    pub async fn find(&self, id: &str) -> Option<Job> {
        jobs::get(&self.tx().await, &self.keys, T, id).await.unwrap()
    }

    pub async fn get(&self, id: &str) -> Job {
        self.find(id).await.unwrap()
    }

    /// The queue of a tenant.
    pub async fn front(&self, tenant: &str) -> Vec<String> {
        let front = tenants::front(&self.tx().await, &self.keys, T, tenant, 1_000).await.unwrap();
        front.into_iter().map(|pending| pending.id).collect()
    }
}

/// Where a check is; printed if it fails.
pub struct FailureContext(pub String);

impl Drop for FailureContext {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at {}", self.0);
        }
    }
}
