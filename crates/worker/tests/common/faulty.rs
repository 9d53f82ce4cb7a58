//! A store that fails on request, as one of several processes sees it: commits of unknown outcome, and pauses of all
//! its operations.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use turnwise_store::{
    Changes, Engine, Error, KeyValue, Limits, RangeRead, Result, Snapshot, Versionstamp, Watch,
};

/// The real result of a commit whose outcome is reported as unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It was committed.
    Committed,
    /// It was not.
    Lost,
    /// It is still in flight: the test lets it arrive.
    Late,
}

/// One process's view of a store.
pub struct Faulty {
    inner: Arc<dyn Engine>,
    state: Arc<State>,
}

struct State {
    /// The fault of the next commit that writes a key containing this text.
    next: Mutex<Option<(Fault, &'static str)>>,
    late: Mutex<Option<(Arc<dyn Snapshot>, Changes)>>,
    paused: watch::Sender<bool>,
    commits_paused: watch::Sender<bool>,
    happened: watch::Sender<usize>,
    snapshots: AtomicUsize,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Engine>) -> Arc<Self> {
        let state = State {
            next: Mutex::default(),
            late: Mutex::default(),
            paused: watch::Sender::new(false),
            commits_paused: watch::Sender::new(false),
            happened: watch::Sender::new(0),
            snapshots: AtomicUsize::new(0),
        };
        Arc::new(Faulty { inner, state: Arc::new(state) })
    }

    /// Makes the next commit that writes a key containing this text fail.
    pub fn fail(&self, fault: Fault, key: &'static str) {
        *self.state.next.lock().unwrap() = Some((fault, key));
    }

    /// Waits until the `n`-th fault has happened.
    pub async fn happened(&self, n: usize) {
        let mut happened = self.state.happened.subscribe();
        let wait = happened.wait_for(|count| *count >= n);
        tokio::time::timeout(super::PATIENCE, wait).await.expect("the fault never happened").unwrap();
    }

    /// Commits the late transaction.
    pub async fn arrive(&self) -> Result<Versionstamp> {
        let (snapshot, changes) = self.state.late.lock().unwrap().take().unwrap();
        snapshot.commit(changes).await
    }

    /// The number of transactions that have begun here.
    pub fn begun(&self) -> usize {
        self.state.snapshots.load(SeqCst)
    }

    /// Blocks every operation of this store, or lets them continue.
    pub fn pause(&self, paused: bool) {
        self.state.paused.send_replace(paused);
    }

    /// Like [`Faulty::pause`], for commits only.
    pub fn pause_commits(&self, paused: bool) {
        self.state.commits_paused.send_replace(paused);
    }
}

impl State {
    async fn pass(&self) {
        self.paused.subscribe().wait_for(|paused| !paused).await.unwrap();
    }

    fn fault(&self, changes: &Changes) -> Option<Fault> {
        let mut next = self.next.lock().unwrap();
        let (fault, text) = (*next)?;
        let writes = |key: &Bytes| key.windows(text.len()).any(|shard| shard == text.as_bytes());
        if !changes.puts.iter().any(|(key, _)| writes(key)) {
            return None;
        }
        *next = None;
        Some(fault)
    }
}

#[async_trait]
impl Engine for Faulty {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        self.state.pass().await;
        self.state.snapshots.fetch_add(1, SeqCst);
        let inner = self.inner.snapshot().await?;
        Ok(Arc::new(FaultySnapshot { inner, state: self.state.clone() }))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        self.inner.watch(key, seen).await
    }
}

struct FaultySnapshot {
    inner: Arc<dyn Snapshot>,
    state: Arc<State>,
}

#[async_trait]
impl Snapshot for FaultySnapshot {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.inner.get(key).await
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        self.inner.range(read).await
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        self.state.pass().await;
        self.state.commits_paused.subscribe().wait_for(|paused| !paused).await.unwrap();
        let Some(fault) = self.state.fault(&changes) else { return self.inner.commit(changes).await };
        match fault {
            Fault::Committed => {
                self.inner.commit(changes).await?;
            }
            Fault::Lost => {}
            Fault::Late => *self.state.late.lock().unwrap() = Some((self.inner.clone(), changes)),
        }
        self.state.happened.send_modify(|count| *count += 1);
        Err(Error::UnknownOutcome("as the test wants it".into()))
    }
}
