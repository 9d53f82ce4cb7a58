//! One watch of the store for all waits for locks in a process.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use turnwise_queue::Keyspace;
use turnwise_store::{Isolation, Result, Store};

use crate::sync::lock;
use crate::times::ERROR_PAUSE;

/// Wakes the tasks that wait for locks when a lock is released. While no task waits, it does not watch the store.
pub(crate) struct LockWake {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    keys: Keyspace,
    state: Mutex<State>,
    /// Notified when a read has completed. It is no `watch` channel, because the wake order of such a channel cannot be
    /// replayed from a seed.
    read_completed: Notify,
    /// Notified when a wait needs another read.
    read_needed: Notify,
    /// Notified when no wait is left.
    no_waits_left: Notify,
}

#[derive(Default)]
struct State {
    /// The number of reads that have begun.
    begun: u64,
    /// The number of the latest read, and the stamp that it found. Stamps are compared only for equality. A copied
    /// store has stamps of another engine, which may be higher than all later stamps.
    latest: Option<(u64, Option<Bytes>)>,
    /// The number of waits.
    waiting: usize,
    is_running: bool,
    /// The task ends when this is dropped.
    task: Option<AbortOnDropHandle<()>>,
}

impl LockWake {
    pub fn new(store: Store, keys: Keyspace) -> Self {
        let inner = Inner {
            store,
            keys,
            state: Mutex::default(),
            read_completed: Notify::new(),
            read_needed: Notify::new(),
            no_waits_left: Notify::new(),
        };
        LockWake { inner: Arc::new(inner) }
    }

    /// Returns once a lock was released after the snapshot in which [`Keyspace::lock_wake`] had the value `seen`. It
    /// returns only if a read that began after this call has found another stamp. So a caller that alternates requests
    /// with this call makes no more requests than there are releases.
    #[boxed]
    pub async fn changed(&self, seen: Option<Bytes>) {
        let inner = &self.inner;
        let _waits = WaitGuard::new(inner);
        let before = lock(&inner.state).begun;
        loop {
            // Registered before the comparison, so that no later change is missed.
            let mut read_completed = pin!(inner.read_completed.notified());
            read_completed.as_mut().enable();
            match &lock(&inner.state).latest {
                // The watch reports the next stamp.
                Some((_, stamp)) if *stamp == seen => {}
                Some((number, _)) if *number > before => return,
                // That read may have been older than `seen`.
                _ => inner.read_needed.notify_one(),
            }
            read_completed.await;
        }
    }
}

impl Drop for LockWake {
    fn drop(&mut self) {
        // The task holds `inner`, which holds the task's handle.
        lock(&self.inner.state).task = None;
    }
}

/// One wait, until it is dropped.
struct WaitGuard<'a>(&'a Inner);

impl<'a> WaitGuard<'a> {
    fn new(inner: &'a Arc<Inner>) -> Self {
        let mut state = lock(&inner.state);
        state.waiting += 1;
        if !state.is_running {
            state.is_running = true;
            let inner = inner.clone();
            state.task = Some(AbortOnDropHandle::new(tokio::spawn(async move { inner.watch().await })));
        }
        WaitGuard(inner)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.waiting -= 1;
        if state.waiting == 0 {
            self.0.no_waits_left.notify_one();
        }
    }
}

impl Inner {
    async fn watch(&self) {
        loop {
            let watch = match self.read_stamp().await {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::warn!(%error, "cannot watch for locks that are given back: tries again");
                    let runtime = self.store.runtime().clone();
                    Box::pin(async move { runtime.sleep(ERROR_PAUSE).await })
                }
            };
            tokio::select! {
                biased;
                () = self.no_waits_left.notified() => {
                    let mut state = lock(&self.state);
                    if state.waiting == 0 {
                        state.is_running = false;
                        return;
                    }
                }
                () = self.read_needed.notified() => {}
                () = watch => {}
            }
        }
    }

    /// Reads and publishes the stamp, and returns a watch for the next one.
    async fn read_stamp(&self) -> Result<turnwise_store::Watch> {
        let key = self.keys.lock_wake();
        let number = {
            let mut state = lock(&self.state);
            state.begun += 1;
            state.begun
        };
        let stamp = self.store.begin().await?.get_with(&key, Isolation::Snapshot).await?;
        lock(&self.state).latest = Some((number, stamp.clone()));
        self.read_completed.notify_waiters();
        self.store.watch(key, stamp).await
    }
}
