//! The embedded engine: one folder, one process.
//!
//! ```text
//!  snapshot() ─▶ the newest published view            commit() ─▶ waiting
//!                      ▲                                             │ all of them, as one group
//!                      │                                             ▼
//!                      └── publish ◀── write + one fsync ◀── check reads against recent writes
//!                             │                                      (committer thread)
//!                             ├─▶ acknowledge everyone in the group
//!                             └─▶ wake the watches
//! ```
//!
//! One thread, the committer, decides about all commits. While it waits for the disk the next group
//! collects, so that under load many transactions share one fsync, and a lone one never waits for company.
//!
//! What must hold:
//!
//! 1. Nothing is visible before it is durable, and nothing is acknowledged before it is visible.
//! 2. A transaction is accepted only if no key that it read was written after its snapshot, neither by an
//!    earlier group ([`conflicts`]) nor earlier in its own group.
//! 3. Versions grow by one per group and are stored with it; a versionstamp is the version and the place in
//!    the group.
//! 4. Once the disk has refused a write nobody knows what it holds: the group's outcome is unknown, and
//!    nothing is written any more until the store is opened again.
//!
//! Reads run where they are called, without a thread pool: they come from memory or from the page cache and
//! take microseconds, less than a hop to another thread and back would.

mod base;
mod committer;
mod conflicts;
mod folder;
mod snapshot;
mod watches;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;

use self::base::View;
use self::committer::{Committer, Submissions};
use self::folder::Folder;
use self::snapshot::EmbeddedSnapshot;
use self::watches::Watches;
use crate::{Engine, Error, Limits, Result, Runtime, Snapshot, Watch, runtime};

/// How an embedded store is opened.
#[derive(Clone)]
pub struct Options {
    /// Whether a commit is on the disk before it is acknowledged. Without, a crash of the machine may lose
    /// the last commits: for tests only.
    pub durable: bool,
    /// The clock that the age of transactions is measured on.
    pub runtime: Arc<dyn Runtime>,
}

impl Default for Options {
    fn default() -> Self {
        Options { durable: true, runtime: Arc::new(runtime::System) }
    }
}

/// A store in a folder of this machine, for one process at a time.
///
/// Dropping it finishes the commits that wait, and closes it. The folder is free again once the snapshots
/// are dropped, too.
pub struct Embedded {
    shared: Arc<Shared>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

/// What the engine, its snapshots and its committer share.
struct Shared {
    runtime: Arc<dyn Runtime>,
    limits: Limits,
    /// What new snapshots see.
    published: RwLock<Arc<Published>>,
    submissions: Submissions,
    watches: Arc<Watches>,
}

/// The store as of one version.
struct Published {
    version: u64,
    view: Box<dyn View>,
}

impl Shared {
    fn published(&self) -> Arc<Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, next: Arc<Published>) {
        *self.published.write().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

impl Embedded {
    /// Opens the store in the folder `path`, and creates both if they are missing.
    ///
    /// # Errors
    /// `Unavailable` if another process holds the folder or the disk fails, `Misuse` if the folder holds
    /// something else, `Corrupt` if it was written by a version that this one does not know.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::open_with(path, Options::default())
    }

    /// Opens a store with the given options; see [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Arc<Self>> {
        let folder = Folder::open(path.as_ref())?;
        let base = base::open(&folder.base(), options.durable)?;
        let version = base.version()?;
        let published = Arc::new(Published { version, view: base.view() });
        let shared = Arc::new(Shared {
            runtime: options.runtime,
            limits: Limits::DEFAULT,
            published: RwLock::new(published.clone()),
            submissions: Submissions::default(),
            watches: Arc::default(),
        });
        let committer = Committer::new(shared.clone(), base, published, folder);
        let thread = std::thread::Builder::new()
            .name("store-committer".into())
            .spawn(move || committer.run())
            .map_err(|error| Error::Unavailable(format!("no thread for the committer: {error}")))?;
        Ok(Arc::new(Embedded { shared, committer: Mutex::new(Some(thread)) }))
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.submissions.close();
        let thread = self.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the committer of the store has panicked");
        }
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
        if self.shared.published().view.get(&key)? != seen {
            return Ok(Box::pin(std::future::ready(())));
        }
        Ok(watch)
    }
}

#[cfg(test)]
mod tests;
