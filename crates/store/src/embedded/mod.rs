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
//! One thread, the committer, decides all commits. While it waits for the disk, the next group collects. So under load many
//! transactions share one fsync, and a single one never waits for others. A snapshot reads the memtables over the B-tree, both as
//! of its version. `docs/design/store.md` explains why the storage crate is behind a log.
//!
//! What must hold:
//!
//! 1. Nothing is visible before it is durable, and nothing is acknowledged before it is visible.
//! 2. A transaction is accepted only if no key that it read was written after its snapshot. This covers earlier groups
//!    ([`conflicts`]) and earlier transactions of its own group.
//! 3. Versions grow by one per group and are stored with it. A versionstamp is the version and the place in the group.
//! 4. A record leaves the log only after the B-tree durably has its rows, together with their version.
//! 5. After a failed write or fsync, the content of the disk is unknown. The group has an unknown outcome, and nothing builds on
//!    what it may have written. The committer writes it again, elsewhere, before any other group ([`committer`]).
//! 6. The store recovers by itself from a lack of room or a transient failure. Damaged data is not written to ([`health`]). A
//!    disk that fails permanently ends the store ([`Engine::ended`]).
//!
//! Reads run on the caller's thread, without a thread pool. They come from memory or from the page cache and take microseconds,
//! less than a switch to another thread and back.

mod base;
mod checkpoint;
mod committer;
mod conflicts;
mod cursor;
mod disk;
mod folder;
mod gaps;
mod health;
mod memtable;
mod pages;
mod snapshot;
mod submissions;
mod view;
mod wal;
mod watches;

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use self::base::{Base, BaseView, Stored};
use self::checkpoint::{Checkpointer, Checkpoints, Frozen};
use self::committer::Committer;
use self::disk::{Disk, at, damage};
pub use self::disk::{DiskCall, Faults};
use self::folder::Folder;
pub(crate) use self::folder::PRIVATE_FOLDER;
use self::gaps::Gaps;
use self::health::{Health, Patience};
use self::memtable::Memtable;
use self::snapshot::EmbeddedSnapshot;
use self::submissions::Submissions;
use self::view::Tables;
use self::wal::Segment;
use self::watches::Watches;
use crate::metrics::{CALL_BOUNDS_US, Counter, Histogram, Times};
use crate::sync::RwLock;
use crate::{Engine, Error, Limits, Result, Runtime, Snapshot, Watch, runtime};

/// How to open an embedded store.
#[derive(Clone)]
pub struct Options {
    /// Whether a commit is on the disk before it is acknowledged. If not, a crash of the machine may lose the last commits or the
    /// store. Only tests turn it off.
    pub durable: bool,
    /// The size of a log segment. About as much, at most twice, is kept in memory, and `open` reads as much again. On the disk
    /// the log takes three segments.
    pub segment_bytes: u64,
    /// Most memory for pages of the B-tree. The page cache of the operating system comes in addition.
    pub cache_bytes: usize,
    /// The clock that measures the age of transactions.
    pub runtime: Arc<dyn Runtime>,
    /// How long the disk may fail, except for lack of room, before the store [ends](Engine::ended).
    pub disk_patience: Duration,
    /// Makes the disk fail, for tests.
    #[doc(hidden)]
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            durable: true,
            segment_bytes: 32 << 20,
            cache_bytes: 64 << 20,
            runtime: Arc::new(runtime::System),
            disk_patience: Duration::from_secs(30),
            faults: Faults::default(),
        }
    }
}

/// A store in a folder of this machine, for one process at a time.
///
/// Dropping it finishes the waiting commits and closes it. Remaining snapshots fail from then on.
pub struct Embedded {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
    /// Set for a store opened for reading; otherwise the checkpointer owns the base.
    _base: Option<Base>,
    /// Dropped last, which releases the lock.
    _folder: Folder,
}

/// What the engine, its snapshots and its threads share.
struct Shared {
    runtime: Arc<dyn Runtime>,
    segment_bytes: u64,
    /// The version that new snapshots see.
    published: RwLock<Arc<Published>>,
    gaps: Gaps,
    submissions: Submissions,
    checkpoints: Checkpoints,
    watches: Arc<Watches>,
    health: Health,
    stats: Stats<Counter>,
    /// How long the writes of groups took, each with its fsync.
    log_writes: Histogram,
}

/// What the engine has done since it was opened, as numbers, or while it is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats<N = u64> {
    /// Transactions that were committed.
    pub commits: N,
    /// Transactions that were refused because of a conflict.
    pub conflicts: N,
    /// Groups of commits, each written with one fsync.
    pub groups: N,
    /// Bytes that were written to the log.
    pub log_bytes: N,
    /// Memtables that were written to the B-tree.
    pub checkpoints: N,
}

/// The store as of one version.
struct Published {
    lease: Arc<Lease>,
    tables: Tables,
}

/// Exists for as long as a snapshot may read this version.
struct Lease {
    version: u64,
    /// Whether it was held for too long, so that rows of this version may be gone.
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
    fn new(options: &Options, version: u64, recovered: &Arc<Memtable>, base: Arc<BaseView>) -> Self {
        let frozen = (!recovered.is_empty()).then(|| recovered.clone());
        let tables = Tables { active: Arc::default(), generation: 0, frozen, base };
        Shared {
            runtime: options.runtime.clone(),
            segment_bytes: options.segment_bytes,
            published: RwLock::new(Arc::new(Published { lease: Lease::new(version), tables })),
            gaps: Gaps::default(),
            submissions: Submissions::default(),
            checkpoints: Checkpoints::default(),
            watches: Arc::default(),
            health: Health::default(),
            stats: Stats::default(),
            log_writes: Histogram::new(CALL_BOUNDS_US),
        }
    }

    fn published(&self) -> Arc<Published> {
        self.published.read().clone()
    }

    /// Makes new snapshots see the next version.
    fn publish(&self, lease: Arc<Lease>) {
        let mut published = self.published.write();
        *published = Arc::new(Published { lease, tables: published.tables.clone() });
    }

    /// Makes new snapshots read the same version from other tables.
    fn replace_tables(&self, replace: impl FnOnce(&Tables) -> Tables) {
        let mut published = self.published.write();
        let tables = replace(&published.tables);
        *published = Arc::new(Published { lease: published.lease.clone(), tables });
    }

    /// Requests that a base with a failed read is reopened.
    fn look_after(&self, tables: &Tables) {
        let Some(error) = tables.base.failure() else { return };
        if matches!(error, Error::Corrupt(_)) {
            self.is_damaged(&error);
        }
        self.checkpoints.mend();
    }

    fn too_old(&self) -> Error {
        Error::TooOld { limit_ms: Limits::DEFAULT.transaction_ms }
    }

    /// Returns an error if a transaction that began at `taken_us` is too old.
    fn check_age(&self, taken_us: i64, now_us: i64) -> Result<()> {
        let age_ms = now_us.saturating_sub(taken_us) / 1_000;
        match u64::try_from(age_ms) {
            Ok(age_ms) if age_ms > Limits::DEFAULT.transaction_ms => Err(self.too_old()),
            _ => Ok(()),
        }
    }
}

impl Embedded {
    /// Opens the store in the folder `path`, and creates both if they are missing.
    ///
    /// `Unavailable` if another process uses the folder or the disk fails. `Misuse` if the folder contains something else.
    /// `Corrupt` if the store is damaged or has a format that this version does not know.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::open_with(path, Options::default())
    }

    /// Opens a store with the given options; see [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Arc<Self>> {
        let mut folder = Folder::open(path.as_ref())?;
        let disk = Disk { durable: options.durable, faults: options.faults.clone() };
        if !base::is_there(&folder.base())? && !folder.is_complete() {
            // A new store, or one whose creation was interrupted before it had any rows.
            if base::is_there(&folder.log())? {
                return Err(damage(&folder.base(), "the file is missing"));
            }
            Base::create(&folder, &disk, options.cache_bytes)?;
        }
        if !folder.is_complete() {
            folder.complete()?;
        }
        let base = Base::open(&folder, &disk, options.cache_bytes, false)?;
        let Stored { version, segments } = base.stored()?;
        let log = folder.log();
        let failed = |error: std::io::Error| at(&log, &error);
        if segments.is_none() && !base::is_there(&log)? {
            std::fs::DirBuilder::new().mode(PRIVATE_FOLDER).create(&log).map_err(failed)?;
            folder.sync()?;
        }
        let found = wal::read(&log, version, segments.as_ref(), &disk, true)?;
        for unused in &found.unused {
            std::fs::remove_file(unused).map_err(failed)?;
        }
        let (recovered, version) = recovered(&found.records, version);
        let log_folder = disk.folder(log.clone()).map_err(failed)?;
        let number = found.last_number + 1;
        let mut segment = Segment::create(&log_folder, number, &mut None).map_err(failed)?;
        if let Some((version, rows)) = found.records.last() {
            segment.append(*version, rows).map_err(|unwritten| unwritten.error)?;
        }
        let first = match segments {
            Some(segments) if !recovered.is_empty() => *segments.start(),
            _ => number,
        };
        let segments = first..=number;
        base.demand(&segments)?;
        let shared = Arc::new(Shared::new(&options, version, &recovered, Arc::new(base.view()?)));
        let patience = || Patience::new(options.disk_patience);
        let mut checkpointer = Checkpointer {
            shared: shared.clone(),
            base,
            log: log_folder,
            segments,
            used: Vec::new(),
            patience: patience(),
        };
        if recovered.is_empty() {
            checkpointer.used = found.files;
        } else {
            shared.checkpoints.start(Frozen {
                version,
                memtable: recovered,
                files: found.files,
                next: number,
            });
        }
        let committer = Committer::new(shared.clone(), segment, patience());
        let mut engine =
            Embedded { shared, committer: None, checkpointer: None, _base: None, _folder: folder };
        engine.checkpointer = Some(spawn("store-checkpointer", move || checkpointer.run())?);
        engine.committer = Some(spawn("store-committer", move || committer.run())?);
        Ok(Arc::new(engine))
    }

    /// Opens the store in the folder `path` for reading, also while other readers have it open. It writes nothing, not even to a
    /// store that was not closed or has the previous format, so the disk may be read-only.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `Misuse` if there is no store.
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        let folder = Folder::open_to_read(path.as_ref())?;
        let options = Options::default();
        let disk = Disk { durable: false, faults: Faults::default() };
        let base = Base::open(&folder, &disk, options.cache_bytes, true)?;
        let Stored { version, segments } = base.stored()?;
        let found = wal::read(&folder.log(), version, segments.as_ref(), &disk, false)?;
        let (recovered, version) = recovered(&found.records, version);
        let shared = Arc::new(Shared::new(&options, version, &recovered, Arc::new(base.view()?)));
        shared.submissions.refuse(&Error::Misuse("the store was opened to be read only".to_owned()));
        Ok(Arc::new(Embedded {
            shared,
            committer: None,
            checkpointer: None,
            _base: Some(base),
            _folder: folder,
        }))
    }

    /// What the engine has done since it was opened.
    pub fn stats(&self) -> Stats {
        let counted = &self.shared.stats;
        Stats {
            commits: counted.commits.get(),
            conflicts: counted.conflicts.get(),
            groups: counted.groups.get(),
            log_bytes: counted.log_bytes.get(),
            checkpoints: counted.checkpoints.get(),
        }
    }
}

/// The rows that the log has beyond the base, and the version after them.
fn recovered(records: &[(u64, Bytes)], version: u64) -> (Arc<Memtable>, u64) {
    let memtable = Memtable::default();
    for (version, rows) in records {
        memtable.apply(*version, wal::rows(rows), *version);
    }
    (Arc::new(memtable), records.last().map_or(version, |(version, _)| *version))
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
        // The committer first, because it may need a checkpoint to finish.
        self.shared.submissions.close();
        join(self.committer.take());
        self.shared.checkpoints.close();
        join(self.checkpointer.take());
    }
}

#[async_trait]
impl Engine for Embedded {
    fn limits(&self) -> Limits {
        Limits::DEFAULT
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(EmbeddedSnapshot::new(self.shared.clone())))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        // Register first and compare then, so that a commit in between wakes the watch.
        let watch = self.shared.watches.register(key.clone(), seen.clone())?;
        let now = self.shared.published();
        let found = now.tables.get(&key, now.version());
        if found.is_err() {
            self.shared.look_after(&now.tables);
        }
        if found? != seen {
            return Ok(Box::pin(std::future::ready(())));
        }
        Ok(watch)
    }

    async fn ended(&self) -> String {
        self.shared.health.ended().await
    }

    fn log_writes(&self) -> Option<Times> {
        Some(self.shared.log_writes.read())
    }
}

#[cfg(test)]
mod disk_tests;
#[cfg(test)]
mod tests;
