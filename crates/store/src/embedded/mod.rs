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
//! 5. After a write or fsync that failed nobody knows what the disk holds: the group's outcome is unknown, nothing is built
//!    on what it may have written, and it is written again, elsewhere, before any other group ([`committer`]).
//! 6. What fails for want of room, or once, goes on by itself. What is damaged is not written to ([`health`]); a disk that
//!    fails for good ends the store ([`Engine::ended`]).
//!
//! Reads run where they are called, without a thread pool: they come from memory or from the page cache and
//! take microseconds, less than a hop to another thread and back would.

mod base;
mod checkpoint;
mod committer;
mod conflicts;
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use self::base::{Base, BaseView, Stored};
use self::checkpoint::{Checkpointer, Checkpoints, Frozen};
use self::committer::Committer;
use self::disk::{Disk, Trouble, TroubleKind};
pub use self::disk::{DiskCall, Faults};
use self::folder::{Folder, PRIVATE_FOLDER};
use self::gaps::Gaps;
use self::health::{Health, Patience};
use self::memtable::Memtable;
use self::snapshot::EmbeddedSnapshot;
use self::submissions::Submissions;
use self::view::Tables;
use self::wal::{Segment, Unwritten};
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
    /// How long a disk may fail, other than for want of room, before the store [ends](Engine::ended).
    pub disk_patience: Duration,
    /// Lets the disk fail, for tests.
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
/// Dropping it finishes the commits that wait, and closes it; snapshots that are left fail from then on.
pub struct Embedded {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
    /// Of a store that is only read; otherwise the checkpointer has it.
    _base: Option<Base>,
    /// Unlocked last.
    _folder: Folder,
}

/// What the engine, its snapshots and its threads share.
struct Shared {
    runtime: Arc<dyn Runtime>,
    limits: Limits,
    segment_bytes: u64,
    /// What new snapshots see.
    published: RwLock<Arc<Published>>,
    gaps: Gaps,
    submissions: Submissions,
    checkpoints: Checkpoints,
    watches: Arc<Watches>,
    health: Health,
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
    fn new(options: &Options, version: u64, recovered: &Arc<Memtable>, base: Arc<BaseView>) -> Self {
        let frozen = (!recovered.is_empty()).then(|| recovered.clone());
        let tables = Tables { active: Arc::default(), generation: 0, frozen, base };
        Shared {
            runtime: options.runtime.clone(),
            limits: Limits::DEFAULT,
            segment_bytes: options.segment_bytes,
            published: RwLock::new(Arc::new(Published { lease: Lease::new(version), tables })),
            gaps: Gaps::default(),
            submissions: Submissions::default(),
            checkpoints: Checkpoints::default(),
            watches: Arc::default(),
            health: Health::default(),
            counters: Counters::default(),
        }
    }

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

    /// Sees to it that a base that has failed a read is opened again.
    fn look_after(&self, tables: &Tables) {
        let Some(trouble) = tables.base.failure() else { return };
        if trouble.kind == TroubleKind::Damage {
            self.is_damaged(&trouble.error);
        }
        self.checkpoints.mend();
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
        let mut folder = Folder::open(path.as_ref())?;
        let disk = Disk { durable: options.durable, faults: options.faults.clone() };
        if !base::is_there(&folder.base())? && (!folder.is_complete() || !folder.has_sums()) {
            // A store that is new, or whose creation was interrupted before it held anything.
            if base::is_there(&folder.log())? {
                return Err(Trouble::damage(&folder.base(), "the file is missing").into());
            }
            Base::create(&folder, &disk, options.cache_bytes)?;
        } else if !folder.has_sums() {
            tracing::info!("the store is brought to a new format: its pages get checksums");
            Base::add_sums(&folder, &disk, options.cache_bytes)?;
        }
        if !folder.is_complete() || !folder.has_sums() {
            folder.complete()?;
        }
        let base = Base::open(&folder, &disk, options.cache_bytes)?;
        let Stored { version, segments } = base.stored()?;
        let log = folder.log();
        let failed = |error: std::io::Error| Trouble::at(&log, &error);
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
        if let Some((_, record)) = found.records.last() {
            let written = segment.append(&wal::again(record, number));
            written.map_err(|(Unwritten::Nothing(error) | Unwritten::Doubtful(error))| failed(error))?;
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

    /// Opens the store in the folder `path` to read it, beside others that do the same. Nothing is written, not even to a
    /// store of the format before or one that was not closed, so that the disk may be read-only.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Misuse` if there is no store.
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        let folder = Folder::open_to_read(path.as_ref())?;
        let options = Options::default();
        let disk = Disk { durable: false, faults: Faults::default() };
        let base = Base::open_to_read(&folder, &disk, options.cache_bytes)?;
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
        let Counters { commits, conflicts, groups, log_bytes, checkpoints } = &self.shared.counters;
        let [commits, conflicts, groups, log_bytes, checkpoints] =
            [commits, conflicts, groups, log_bytes, checkpoints]
                .map(|counter| counter.load(Ordering::Relaxed));
        Stats { commits, conflicts, groups, log_bytes, checkpoints }
    }
}

/// What the log holds beyond the base, and the version that it leads to.
fn recovered(records: &[(u64, Bytes)], version: u64) -> (Arc<Memtable>, u64) {
    let memtable = Memtable::default();
    for (version, record) in records {
        memtable.apply(*version, wal::rows(record), *version);
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
}

#[cfg(test)]
mod disk_tests;
#[cfg(test)]
mod tests;
