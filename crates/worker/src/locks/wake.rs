//! One watch of the store for all that wait for locks in a process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use turnwise_queue::Keyspace;
use turnwise_store::{Isolation, Result, Store};

use crate::incarnation::ERROR_PAUSE;

/// Tells whoever waits for a lock when somebody has given one back. While nobody waits it watches nothing.
pub(crate) struct LockWake {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    keys: Keyspace,
    /// The latest stamp that is known; they only grow.
    latest: watch::Sender<Option<Bytes>>,
    watching: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    is_running: bool,
    /// Ends with whoever has this.
    task: Option<AbortOnDropHandle<()>>,
}

impl LockWake {
    pub fn new(store: Store, keys: Keyspace) -> Self {
        let (latest, watching) = (watch::Sender::new(None), Mutex::default());
        LockWake { inner: Arc::new(Inner { store, keys, latest, watching }) }
    }

    /// Returns once a lock has been given back after the snapshot in which [`Keyspace::lock_wake`] was `seen`.
    pub async fn changed(&self, seen: Option<Bytes>) {
        // Before the look at the task: it ends only when nobody has subscribed.
        let mut latest = self.inner.latest.subscribe();
        {
            let mut watching = self.inner.watching();
            if !watching.is_running {
                watching.is_running = true;
                let inner = self.inner.clone();
                watching.task =
                    Some(AbortOnDropHandle::new(tokio::spawn(async move { inner.watch().await })));
            }
        }
        // The sender is kept here.
        let _ = latest.wait_for(|latest| *latest > seen).await;
    }
}

impl Drop for LockWake {
    fn drop(&mut self) {
        // The task holds what holds its handle.
        self.inner.watching().task = None;
    }
}

impl Inner {
    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(&self) {
        loop {
            let watch = match self.look().await {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::warn!(%error, "cannot watch for locks that are given back: tries again");
                    let runtime = self.store.runtime().clone();
                    Box::pin(async move { runtime.sleep(ERROR_PAUSE).await })
                }
            };
            tokio::select! {
                biased;
                () = self.latest.closed() => {
                    let mut watching = self.watching();
                    if self.latest.receiver_count() == 0 {
                        watching.is_running = false;
                        return;
                    }
                }
                () = watch => {}
            }
        }
    }

    /// Tells the stamp, and watches for the next one.
    async fn look(&self) -> Result<turnwise_store::Watch> {
        let key = self.keys.lock_wake();
        let stamp = self.store.begin().await?.get_with(&key, Isolation::Snapshot).await?;
        self.latest.send_if_modified(|latest| {
            let is_later = stamp > *latest;
            if is_later {
                latest.clone_from(&stamp);
            }
            is_later
        });
        self.store.watch(key, stamp).await
    }
}
