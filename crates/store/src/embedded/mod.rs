//! The embedded engine: one folder, one process.
//!
//! ```text
//!  snapshot() ─▶ the newest published version         commit() ─▶ waiting
//!                      ▲                                             │ all of them, as one group
//!                      │                                             ▼
//!                      │                              check what was read against recent writes
//!                      │                                             ▼                 (committer)
//!                      │                              log: one record, one fsync
//!                      │                                             ▼
//!                      └───────── publish ◀── memtable ◀─────────────┤
//!                                                 │                  ├─▶ acknowledge the whole group
//!                                   when full ┄┄┄┄┤                  └─▶ wake the watches
//!                                                 ▼
//!                                       rows in a B-tree              (checkpointer)
//! ```
//!
//! One thread, the committer, decides about all commits. While it waits for the disk the next group
//! collects, so that under load many transactions share one fsync, and a lone one never waits for company.
//! A snapshot reads the memtables over the B-tree, both as of its version. `docs/design/0001` tells why
//! there is a log before the storage crate.
//!
//! What must hold:
//!
//! 1. Nothing is visible before it is durable, and nothing is acknowledged before it is visible.
//! 2. A transaction is accepted only if no key that it read was written after its snapshot, neither by an
//!    earlier group ([`conflicts`]) nor earlier in its own group.
//! 3. Versions grow by one per group and are stored with it; a versionstamp is the version and the place in
//!    the group.
//! 4. A record leaves the log only after its rows are in the B-tree, durably, together with their version.
//! 5. Once the disk has refused a write nobody knows what it holds: the group's outcome is unknown, and
//!    nothing is written any more until the store is opened again.
//!
//! Reads run where they are called, without a thread pool: they come from memory or from the page cache and
//! take microseconds, less than a hop to another thread and back would.

mod base;
mod checkpoint;
mod committer;
mod conflicts;
mod folder;
mod gaps;
mod memtable;
mod snapshot;
mod submissions;
mod view;
mod wal;
mod watches;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;

use self::base::Base;
use self::checkpoint::{Checkpointer, Checkpoints, Frozen};
use self::committer::Committer;
use self::folder::Folder;
use self::gaps::Gaps;
use self::memtable::Memtable;
use self::snapshot::EmbeddedSnapshot;
use self::submissions::Submissions;
use self::view::Tables;
use self::wal::Segment;
use self::watches::Watches;
use crate::{Engine, Error, Limits, Result, Runtime, Snapshot, Watch, runtime};

/// How an embedded store is opened.
#[derive(Clone)]
pub struct Options {
    /// Whether a commit is on the disk before it is acknowledged. Without, a crash of the machine may lose
    /// the last commits or the store: for tests only.
    pub durable: bool,
    /// The size of a log segment. About as much, and at most twice, is kept in memory and read again by
    /// `open`. On the disk the log takes three segments.
    pub segment_bytes: u64,
    /// Memory for pages of the B-tree, at most. The page cache of the operating system stands behind it.
    pub cache_bytes: usize,
    /// The clock that the age of transactions is measured on.
    pub runtime: Arc<dyn Runtime>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            durable: true,
            segment_bytes: 32 << 20,
            cache_bytes: 64 << 20,
            runtime: Arc::new(runtime::System),
        }
    }
}

/// A store in a folder of this machine, for one process at a time.
///
/// Dropping it finishes the commits that wait, and closes it; snapshots that are left fail from then on.
pub struct Embedded {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
    /// Unlocked last.
    _folder: Folder,
}

/// What the engine, its snapshots and its threads share.
struct Shared {
    runtime: Arc<dyn Runtime>,
    limits: Limits,
    durable: bool,
    segment_bytes: u64,
    /// What new snapshots see.
    published: RwLock<Arc<Published>>,
    gaps: Gaps,
    submissions: Submissions,
    checkpoints: Checkpoints,
    watches: Arc<Watches>,
    counters: Counters,
}

/// What the engine has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Transactions that were committed.
    pub commits: u64,
    /// Transactions that were refused for a conflict.
    pub conflicts: u64,
    /// Groups that the commits were written in, with one fsync each.
    pub groups: u64,
    /// Bytes that were written to the log.
    pub log_bytes: u64,
    /// Memtables that were brought to the B-tree.
    pub checkpoints: u64,
}

#[derive(Default)]
struct Counters {
    commits: AtomicU64,
    conflicts: AtomicU64,
    groups: AtomicU64,
    log_bytes: AtomicU64,
    checkpoints: AtomicU64,
}

fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// The store as of one version.
struct Published {
    lease: Arc<Lease>,
    tables: Tables,
}

/// Lives for as long as someone may read this version.
struct Lease {
    version: u64,
    /// Whether it was held for too long, and rows of this version may be gone.
    expired: AtomicBool,
}

impl Lease {
    fn new(version: u64) -> Arc<Self> {
        Arc::new(Lease { version, expired: AtomicBool::new(false) })
    }
}

impl Published {
    fn version(&self) -> u64 {
        self.lease.version
    }
}

impl Shared {
    fn published(&self) -> Arc<Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets new snapshots see the next version.
    fn publish(&self, lease: Arc<Lease>) {
        let mut published = self.published.write().unwrap_or_else(PoisonError::into_inner);
        *published = Arc::new(Published { lease, tables: published.tables.clone() });
    }

    /// Lets new snapshots read the same version from other tables.
    fn replace_tables(&self, replace: impl FnOnce(&Tables) -> Tables) {
        let mut published = self.published.write().unwrap_or_else(PoisonError::into_inner);
        let tables = replace(&published.tables);
        *published = Arc::new(Published { lease: published.lease.clone(), tables });
    }

    fn too_old(&self) -> Error {
        Error::TooOld { limit_ms: self.limits.transaction_ms }
    }

    /// Whether a transaction that began at `taken_us` may still do something.
    fn check_age(&self, taken_us: i64, now_us: i64) -> Result<()> {
        let age_ms = now_us.saturating_sub(taken_us) / 1_000;
        match u64::try_from(age_ms) {
            Ok(age_ms) if age_ms > self.limits.transaction_ms => Err(self.too_old()),
            _ => Ok(()),
        }
    }
}

impl Embedded {
    /// Opens the store in the folder `path`, and creates both if they are missing.
    ///
    /// # Errors
    /// `Unavailable` if another process holds the folder or the disk fails, `Misuse` if the folder holds
    /// something else, `Corrupt` if it is damaged or was written by a version that this one does not know.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::open_with(path, Options::default())
    }

    /// Opens a store with the given options; see [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Arc<Self>> {
        let folder = Folder::open(path.as_ref())?;
        let base = Base::open(&folder.base(), options.cache_bytes)?;
        let log = folder.log();
        let mut version = base.version()?;
        let found = wal::read(&log, version)?;
        folder.sync()?;
        let recovered = Arc::new(Memtable::default());
        for (next, record) in &found.records {
            version = *next;
            recovered.apply(version, wal::rows(record), version);
        }
        let number = found.last_number + 1;
        let disk = |error: std::io::Error| folder::at(&log, &error);
        let mut segment = Segment::create(&log, number, None).map_err(disk)?;
        if let Some((_, record)) = found.records.last() {
            segment.append(&wal::again(record, number), options.durable).map_err(disk)?;
        }
        let tables = Tables {
            active: Arc::default(),
            generation: 0,
            frozen: (!recovered.is_empty()).then(|| recovered.clone()),
            base: Arc::new(base.view()?),
        };
        let shared = Arc::new(Shared {
            runtime: options.runtime,
            limits: Limits::DEFAULT,
            durable: options.durable,
            segment_bytes: options.segment_bytes,
            published: RwLock::new(Arc::new(Published { lease: Lease::new(version), tables })),
            gaps: Gaps::default(),
            submissions: Submissions::default(),
            checkpoints: Checkpoints::default(),
            watches: Arc::default(),
            counters: Counters::default(),
        });
        let mut checkpointer =
            Checkpointer { shared: shared.clone(), base, log, next_number: number + 1, used: Vec::new() };
        if recovered.is_empty() {
            checkpointer.used = found.files;
        } else {
            shared.checkpoints.start(Frozen { version, memtable: recovered, files: found.files });
        }
        let committer = Committer::new(shared.clone(), segment);
        let mut engine = Embedded { shared, committer: None, checkpointer: None, _folder: folder };
        engine.checkpointer = Some(spawn("store-checkpointer", move || checkpointer.run())?);
        engine.committer = Some(spawn("store-committer", move || committer.run())?);
        Ok(Arc::new(engine))
    }

    /// What the engine has done since it was opened.
    pub fn stats(&self) -> Stats {
        let Counters { commits, conflicts, groups, log_bytes, checkpoints } = &self.shared.counters;
        let [commits, conflicts, groups, log_bytes, checkpoints] =
            [commits, conflicts, groups, log_bytes, checkpoints]
                .map(|counter| counter.load(Ordering::Relaxed));
        Stats { commits, conflicts, groups, log_bytes, checkpoints }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| Error::Unavailable(format!("no thread for the store: {error}")))
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(Err(_)) = thread.map(JoinHandle::join) {
        tracing::error!("a thread of the store has panicked");
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // The committer first: it may need a checkpoint to finish.
        self.shared.submissions.close();
        join(self.committer.take());
        self.shared.checkpoints.close();
        join(self.checkpointer.take());
    }
}

#[async_trait]
impl Engine for Embedded {
    fn limits(&self) -> Limits {
        self.shared.limits
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(EmbeddedSnapshot::new(self.shared.clone())))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        // Registered first and compared then: a commit in between finds the watch.
        let watch = self.shared.watches.register(key.clone(), seen.clone())?;
        let now = self.shared.published();
        if now.tables.get(&key, now.version())? != seen {
            return Ok(Box::pin(std::future::ready(())));
        }
        Ok(watch)
    }
}

#[cfg(test)]
mod tests;
