//! The interface of a storage engine.
//!
//! An engine is strictly serializable. A commit fails if, after its snapshot, another commit wrote to its `read_keys` or
//! `read_ranges`, or set a key in its `arrivals`. A snapshot that is taken after a commit was acknowledged sees this commit. An
//! acknowledged commit is durable.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::key::successor;
use crate::metrics::Times;
use crate::{Error, Result, Sum};

/// A key and its value.
pub type KeyValue = (Bytes, Bytes);

/// Resolves when the watched key no longer has the value that the watcher saw. It may resolve early, or when the engine closes,
/// so the watcher reads the key again. It never misses a change.
pub type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ten bytes that order all commits of a store: larger means later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Versionstamp(pub [u8; 10]);

impl Versionstamp {
    /// That of the commit at `place` among those of a version.
    pub(crate) fn of(version: u64, place: u16) -> Self {
        let mut stamp = [0; 10];
        stamp[..8].copy_from_slice(&version.to_be_bytes());
        stamp[8..].copy_from_slice(&place.to_be_bytes());
        Versionstamp(stamp)
    }
}

/// The limits of an engine. Code that batches reads them, and so needs to know no engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes.
    pub key_bytes: usize,
    /// Longest value, in bytes.
    pub value_bytes: usize,
    /// Largest sum of written keys and values and of conflict keys, in bytes.
    pub transaction_bytes: usize,
    /// Most rows that a transaction may write.
    pub transaction_writes: usize,
    /// Most conflicts that a commit may check: each key that was read, each range that was read, and each row in such a range. A
    /// range of `arrivals` counts once.
    pub transaction_conflicts: usize,
    /// How long a transaction may live, in milliseconds.
    pub transaction_ms: u64,
}

impl Limits {
    /// The limits that FoundationDB documents. The embedded engine has the same; other engines have smaller ones in part.
    pub const DEFAULT: Limits = Limits {
        key_bytes: 10_000,
        value_bytes: 100_000,
        transaction_bytes: 10_000_000,
        transaction_writes: 100_000,
        transaction_conflicts: 100_000,
        transaction_ms: 5_000,
    };

    /// The limits of etcd in its default configuration (`--max-txn-ops`, `--max-request-bytes`).
    pub const ETCD: Limits = Limits {
        transaction_bytes: 1_500_000,
        transaction_writes: 960,
        transaction_conflicts: 120,
        ..Limits::DEFAULT
    };

    /// The smallest limits that an engine may have: all code above the store works within them, whatever the data. A store with
    /// fewer writes or conflicts is not opened ([`Limits::check`]). A store with fewer bytes accepts only smaller options and
    /// documents.
    pub const SMALL: Limits = Limits {
        transaction_bytes: 1_300_000,
        transaction_writes: 480,
        transaction_conflicts: 112,
        ..Limits::DEFAULT
    };

    /// Checks that all code above the store can work within these limits for writes and conflicts.
    ///
    /// # Errors
    /// [`Error::Misuse`] with the limit that is below [`Limits::SMALL`].
    pub fn check(&self) -> Result<()> {
        let needed = Limits::SMALL;
        for (what, has, needs) in [
            ("writes", self.transaction_writes, needed.transaction_writes),
            ("conflicts", self.transaction_conflicts, needed.transaction_conflicts),
        ] {
            if has < needs {
                return Err(Error::Misuse(format!(
                    "a transaction of this store has room for {has} {what}, and {needs} are needed: raise etcd's --max-txn-ops to 128 or more, \
                     and name it in the URL"
                )));
            }
        }
        Ok(())
    }
}

/// One bounded read of consecutive keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RangeRead {
    /// The first key, inclusive.
    pub begin: Bytes,
    /// The last key, exclusive.
    pub end: Bytes,
    /// Most rows to return, at least 1.
    pub limit: usize,
    /// Whether to read backwards from the end.
    pub reverse: bool,
}

/// A range that is read in several parts has its rest here.
impl RangeRead {
    /// The bound where it begins to read.
    pub(crate) fn front(&self) -> &Bytes {
        if self.reverse { &self.end } else { &self.begin }
    }

    /// The bound where it ends.
    pub(crate) fn back(&self) -> &Bytes {
        if self.reverse { &self.begin } else { &self.end }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.begin >= self.end
    }

    /// Whether `a` precedes `b` in the direction of this read.
    pub(crate) fn precedes(&self, a: &[u8], b: &[u8]) -> bool {
        if self.reverse { a > b } else { a < b }
    }

    /// Goes on behind the row `key`.
    pub(crate) fn pass(&mut self, key: &Bytes) {
        match self.reverse {
            true => self.end = key.clone(),
            false => self.begin = successor(key),
        }
    }

    /// Goes on at `to`, if that is ahead: at the first row from there on, or backwards at the last row before it.
    pub(crate) fn seek(&mut self, to: &[u8]) {
        match self.reverse {
            true if to < &self.end[..] => self.end = Bytes::copy_from_slice(to),
            false if to > &self.begin[..] => self.begin = Bytes::copy_from_slice(to),
            _ => {}
        }
    }
}

/// Where a walk goes on after a row. A walk reads few rows of a range, at many places: for example the first row of each group of rows. A range
/// per group costs more than the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// At the next row.
    Next,
    /// At the key in the buffer: the first row from there on, or backwards the last row before it. It must not be behind the walk.
    Seek,
    /// Nowhere.
    End,
}

/// Is shown a row of a walk, its key and its value, and a buffer for the key of [`Step::Seek`]. It may be called under a lock, so it must be
/// quick.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8], &mut Vec<u8>) -> Result<Step> + Send + 'a;

/// All that a transaction passes to its commit. Ranges are `[begin, end)`.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// Keys that must not have been written since the snapshot.
    pub read_keys: Vec<Bytes>,
    /// Ranges in which no key may have been written since the snapshot.
    pub read_ranges: Vec<(Bytes, Bytes)>,
    /// Ranges in which no key may have been set since the snapshot. The commit may miss a key that was
    /// cleared and does not exist at the commit.
    pub arrivals: Vec<(Bytes, Bytes)>,
    /// Ranges to clear, before `puts` are applied.
    pub clear_ranges: Vec<(Bytes, Bytes)>,
    /// Keys to set, or to clear where the value is `None`, in key order.
    pub puts: Vec<(Bytes, Option<Bytes>)>,
    /// Keys whose value becomes the ten bytes of this commit's versionstamp.
    pub versionstamped: Vec<Bytes>,
    /// What to add to sums, by key; a sum that has no row is 0. The commit neither reads nor writes these keys in any other way. It
    /// conflicts with no other commit that adds.
    ///
    /// A sum is what all rows whose keys begin with `key` add up to: an engine may add to the row of `key`, or set a new row behind
    /// it, with a key that no other commit uses.
    pub adds: Vec<(Bytes, Sum)>,
    /// Keys that no other commit uses, and bytes. Their values become the ten bytes of this commit's versionstamp, and then these
    /// bytes.
    pub appends: Vec<(Bytes, Bytes)>,
}

/// A consistent view of the whole store as it was when the snapshot was taken.
#[async_trait]
pub trait Snapshot: Send + Sync {
    /// The value of a key.
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The first `limit` rows of a range, in key order; the last ones in reverse order if `reverse`. Fewer rows than `limit` mean
    /// that there are no more.
    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>>;

    /// Shows `visit` rows of a range, whatever its limit, without copies of them, and without a read for each place that it goes to. Returns
    /// how many they were; `None` if this engine has nothing better than ranges.
    fn walk(&self, range: &RangeRead, visit: &mut Visit<'_>) -> Option<Result<usize>> {
        let _ = (range, visit);
        None
    }

    /// What a commit has appended, from the part of the row's value behind the versionstamp. An engine that stores something else
    /// than it was given has another implementation.
    fn appended(&self, key: &[u8], stored: Bytes) -> Result<Bytes> {
        let _ = key;
        Ok(stored)
    }

    /// Whether each read waits for an answer from elsewhere. Then several reads should be under way at the same time.
    fn is_remote(&self) -> bool {
        false
    }

    /// Commits `changes` against this snapshot: all of them, or none and an error with the reason.
    async fn commit(&self, changes: Changes) -> Result<Versionstamp>;
}

/// A storage engine.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The limits of this engine.
    fn limits(&self) -> Limits;

    /// Takes a snapshot that sees every commit that was acknowledged before the call.
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;

    /// Returns a watch that resolves once `key` has another value than `seen` (`None`: no value).
    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch>;

    /// Returns once the engine cannot continue in this process, with the reason in one line. The caller should then end the
    /// process: a new open either works or reports the problem. A failure that may pass never ends an engine.
    async fn ended(&self) -> String {
        std::future::pending().await
    }

    /// How long writes to the log took, each with its fsync. `None` if another process writes it.
    fn log_writes(&self) -> Option<Times> {
        None
    }
}
