//! What every storage engine must offer.
//!
//! An engine is strictly serializable: a commit succeeds only if nothing in its `read_keys` and
//! `read_ranges` was written after its snapshot was taken, nor anything set in its `arrivals`, and a snapshot taken after a
//! commit was acknowledged sees it. An acknowledged commit is durable.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Error, Result};

/// A key and its value.
pub type KeyValue = (Bytes, Bytes);

/// Resolves when a watched key no longer holds the value that its watcher saw. It may resolve early or
/// when the engine closes, so the watcher looks again; it never misses a change.
pub type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ten bytes that order all commits of a store: larger means later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Versionstamp(pub [u8; 10]);

/// Bounds that hold on every engine. Code that batches asks for them instead of knowing an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes.
    pub key_bytes: usize,
    /// Longest value, in bytes.
    pub value_bytes: usize,
    /// Largest sum of written keys and values and of conflict keys, in bytes.
    pub transaction_bytes: usize,
    /// Most rows a transaction may write.
    pub transaction_writes: usize,
    /// Most things that a commit may have to prove: a key that was read, a range that was read, and each row
    /// that was seen in it; a range into which nothing may have come counts once.
    pub transaction_conflicts: usize,
    /// How long a transaction may live, in milliseconds.
    pub transaction_ms: u64,
}

impl Limits {
    /// The limits that FoundationDB documents and that turnwise promises everywhere.
    pub const DEFAULT: Limits = Limits {
        key_bytes: 10_000,
        value_bytes: 100_000,
        transaction_bytes: 10_000_000,
        transaction_writes: 100_000,
        transaction_conflicts: 100_000,
        transaction_ms: 5_000,
    };

    /// What etcd takes unless it is configured otherwise (`--max-txn-ops`, `--max-request-bytes`).
    pub const ETCD: Limits = Limits {
        transaction_bytes: 1_500_000,
        transaction_writes: 960,
        transaction_conflicts: 120,
        ..Limits::DEFAULT
    };

    /// The smallest limits that an engine may have: everything above the store works with them, whatever the data. A store that takes fewer
    /// writes or conflicts is not opened ([`Limits::check`]); with fewer bytes it takes smaller options and documents.
    pub const SMALL: Limits = Limits {
        transaction_bytes: 1_300_000,
        transaction_writes: 480,
        transaction_conflicts: 112,
        ..Limits::DEFAULT
    };

    /// Whether everything above the store can work within these numbers of writes and conflicts.
    ///
    /// # Errors
    /// [`Error::Misuse`] with the limit that is below [`Limits::SMALL`].
    pub fn check(&self) -> Result<()> {
        let needed = Limits::SMALL;
        let wrong = [
            ("writes", self.transaction_writes, needed.transaction_writes),
            ("conflicts", self.transaction_conflicts, needed.transaction_conflicts),
        ];
        let Some((what, has, needs)) = wrong.into_iter().find(|(_, has, needs)| has < needs) else {
            return Ok(());
        };
        Err(Error::Misuse(format!(
            "a transaction of this store has room for {has} {what}, and {needs} are needed: raise etcd's --max-txn-ops to 128 or more, and \
             name it in the URL"
        )))
    }
}

/// One bounded read of consecutive keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRead {
    /// First key, included.
    pub begin: Bytes,
    /// Last key, excluded.
    pub end: Bytes,
    /// Most rows to return, at least 1.
    pub limit: usize,
    /// From the end backwards.
    pub reverse: bool,
}

/// Everything that one transaction asks of a commit. Ranges are `[begin, end)`.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// Keys that must not have been written since the snapshot.
    pub read_keys: Vec<Bytes>,
    /// Ranges in which no key must have been written since the snapshot.
    pub read_ranges: Vec<(Bytes, Bytes)>,
    /// Ranges in which no key must have been set since the snapshot. That one was cleared, and is not there at the commit, may go
    /// unnoticed.
    pub arrivals: Vec<(Bytes, Bytes)>,
    /// Ranges to clear, before `puts` are applied.
    pub clear_ranges: Vec<(Bytes, Bytes)>,
    /// Keys to set, or to clear where the value is `None`, in key order.
    pub puts: Vec<(Bytes, Option<Bytes>)>,
    /// Keys whose value becomes the ten bytes of this commit's versionstamp.
    pub versionstamped: Vec<Bytes>,
}

/// A consistent view of the whole store as it was when the snapshot was taken.
#[async_trait]
pub trait Snapshot: Send + Sync {
    /// The value of a key.
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The first (or last, if `reverse`) `limit` rows of a range, in key order (reversed if `reverse`).
    /// Fewer rows than `limit` mean that there are no more.
    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>>;

    /// Commits `changes` against this snapshot: all of them, or none and an error that says why.
    async fn commit(&self, changes: Changes) -> Result<Versionstamp>;
}

/// A storage engine.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The bounds of this engine.
    fn limits(&self) -> Limits;

    /// Takes a snapshot that sees every commit acknowledged before the call.
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;

    /// Waits until `key` holds something else than `seen` (`None`: no value).
    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch>;

    /// Returns once the engine cannot go on in this process, with the reason in one line. Whoever uses it should end: opened
    /// anew it works, or says what is wrong. What may pass by itself never ends an engine.
    async fn ended(&self) -> String {
        std::future::pending().await
    }
}
