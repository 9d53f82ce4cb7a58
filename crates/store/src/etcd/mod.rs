//! The engine on etcd, version 3.4 or later: any number of processes, on any number of machines.
//!
//! ```text
//!  snapshot() ─▶ nothing; the first read pins a revision ─▶ reads of that revision
//!                                                                  │ what was seen
//!                                                                  ▼
//!  commit() ─▶ if nothing of it has changed (compares) ─▶ puts and deletes, one transaction of etcd, one revision
//!
//!  watch() ─▶ one stream of watches per process ─▶ wakes whoever waits
//! ```
//!
//! What must hold:
//!
//! 1. A snapshot sees every commit that was acknowledged before its first read began, because that read is linearizable. All its
//!    reads use one revision.
//! 2. A commit is accepted only if nothing that was read has a newer revision or was deleted ([`commit`]).
//! 3. A commit is sent once. Unless a failure proves that the commit was not done, its outcome is unknown ([`failure`]).
//! 4. A watch exists before the key is read, so that no change in between is missed ([`watches`]).
//! 5. The engine reads and writes nothing outside its prefix ([`space`]).
//!
//! `docs/design/shared-stores.md` explains the alternatives that were tried and the costs; `conformance` lists how the engines differ.

mod api;
mod commit;
mod compaction;
mod failure;
mod group;
mod heads;
mod members;
mod reads;
mod shared;
mod snapshot;
mod space;
mod watches;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::AbortHandle;

use self::heads::Heads;
use self::members::Members;
use self::reads::Reads;
use self::shared::Shared;
use self::snapshot::EtcdSnapshot;
use self::space::Space;
use self::watches::Watches;
use crate::appends::RowKeys;
use crate::sync::Mutex;
use crate::{Engine, EtcdUrl, Limits, Result, Runtime, Snapshot, Watch};

/// A store in an etcd cluster. Dropping it wakes its watches.
pub struct Etcd {
    shared: Arc<Shared>,
    watches: Arc<Watches>,
    tasks: Vec<AbortHandle>,
}

impl Etcd {
    /// Opens the store of a URL, once a member has answered.
    ///
    /// `Unavailable`, with one line that states what to do, if no member answers, the user is refused, or a certificate cannot be
    /// read.
    pub async fn open(url: &EtcdUrl, runtime: Arc<dyn Runtime>) -> Result<Arc<Self>> {
        let space = Space::new(&url.prefix);
        let members = Members::new(url, runtime.random())?;
        let shared = Arc::new(Shared {
            groups: Mutex::default(),
            heads: Heads::default(),
            reads: Reads::new(members.len()),
            members,
            limits: commit::limits(url.max_txn_ops, url.max_request_bytes, space.overhead()),
            space,
            additions: RowKeys::new(runtime.random()),
            max_txn_ops: url.max_txn_ops,
            max_request_bytes: url.max_request_bytes,
        });
        shared.newest(&shared.space.own("opened")).await?;
        let watches = Watches::new(shared.clone());
        let mut tasks = vec![tokio::spawn(watches::run(watches.clone())).abort_handle()];
        if url.compact {
            tasks.push(tokio::spawn(compaction::run(shared.clone(), runtime)).abort_handle());
        }
        Ok(Arc::new(Etcd { shared, watches, tasks }))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.watches.close();
    }
}

#[async_trait]
impl Engine for Etcd {
    fn limits(&self) -> Limits {
        self.shared.limits
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(EtcdSnapshot::new(self.shared.clone())))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        self.watches.watch(self.shared.space.key(&key)?, seen).await
    }
}
