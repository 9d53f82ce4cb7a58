//! What the cases of all chapters use: a store on an engine under test.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;

use crate::runtime::{Manual, System};
use crate::{Engine, RangeRead, Store, Transaction};

const PATIENCE: Duration = Duration::from_secs(30);

/// An engine under test, with its own store.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// Opens the store, which is empty at the first call. Before each further call, the suite drops all that the engine has
    /// returned.
    async fn open(&self) -> Arc<dyn Engine>;

    /// The clock that measures the age of transactions, if a test can move it.
    fn clock(&self) -> Option<Arc<Manual>>;

    /// Whether a key may hold the versionstamp that a refused transaction would have set.
    fn stamps_may_stay(&self) -> bool {
        false
    }
}

/// A test, with its name.
pub(super) type Case = (&'static str, fn(Scene) -> BoxFuture<'static, ()>);

/// Lists functions as cases, named after the functions.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        &[$((stringify!($case), |scene| Box::pin($case(scene)))),*]
    };
}
pub(super) use cases;

/// A store on a subject.
pub(super) struct Scene {
    pub subject: Arc<dyn Subject>,
    pub store: Store,
}

impl Scene {
    pub async fn new(subject: Arc<dyn Subject>) -> Self {
        let store = Store::new(subject.open().await, Arc::new(System));
        Scene { subject, store }
    }

    /// Closes the store and opens it again.
    pub async fn reopened(self) -> Self {
        let Scene { subject, store } = self;
        drop(store);
        Self::new(subject).await
    }

    pub async fn begin(&self) -> Transaction {
        self.store.begin().await.expect("begins")
    }

    /// Sets rows in one transaction.
    pub async fn set(&self, rows: &[(&'static str, &'static str)]) {
        let tx = self.begin().await;
        for (name, value) in rows {
            tx.set(key(name), key(value)).expect("sets");
        }
        tx.commit().await.expect("commits");
    }

    /// The value that a new transaction reads.
    pub async fn get(&self, name: &'static str) -> Option<Bytes> {
        self.begin().await.get(&key(name)).await.expect("reads")
    }

    /// All rows of the store as a new transaction reads them.
    pub async fn all(&self) -> Vec<(Bytes, Bytes)> {
        self.begin().await.range(&everything(), usize::MAX).await.expect("reads")
    }
}

pub(super) fn key(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

pub(super) fn everything() -> (Bytes, Bytes) {
    (Bytes::new(), Bytes::from_static(b"\xff"))
}

pub(super) fn span(begin: &'static str, end: &'static str) -> (Bytes, Bytes) {
    (key(begin), key(end))
}

pub(super) fn forwards(begin: &'static str, end: &'static str, limit: usize) -> RangeRead {
    RangeRead { begin: key(begin), end: key(end), limit, reverse: false }
}

pub(super) fn backwards(begin: &'static str, end: &'static str, limit: usize) -> RangeRead {
    RangeRead { reverse: true, ..forwards(begin, end, limit) }
}

/// Waits for an event that must happen.
pub(super) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("{what} has not happened after {PATIENCE:?}"),
    }
}
