//! Watches, and the keys that they wait for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::sync::Mutex;
use crate::{Error, Result, Watch};

/// Most watches at a time; each takes about 200 bytes.
const MAX_WATCHES: usize = 100_000;

#[derive(Default)]
pub(super) struct Watches {
    waiting: Mutex<Waiting>,
    /// The number of waiting watches, so that commits skip the lock when there are none.
    count: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    /// Clients choose the ids in keys, so the hashes are not to be foreseen.
    by_key: HashMap<Bytes, Vec<Waiter>>,
    next_id: u64,
    closed: bool,
}

struct Waiter {
    id: u64,
    seen: Option<Bytes>,
    /// Wakes the watch when it is dropped.
    _wake: oneshot::Sender<()>,
}

impl Watches {
    /// Registers a watch. The caller must read the key afterwards, to find changes that were committed before this call.
    pub(super) fn register(self: &Arc<Self>, key: Bytes, seen: Option<Bytes>) -> Result<Watch> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(Error::Unavailable("the store is closed".into()));
        }
        if self.count.load(Ordering::SeqCst) >= MAX_WATCHES {
            return Err(Error::Unavailable(format!("more than {MAX_WATCHES} watches")));
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        let (wake, woken) = oneshot::channel();
        waiting.by_key.entry(key.clone()).or_default().push(Waiter { id, seen, _wake: wake });
        self.count.fetch_add(1, Ordering::SeqCst);
        let registration = Registration { watches: self.clone(), key, id };
        Ok(Box::pin(async move {
            let _registration = registration;
            // If the store was closed, the watcher reads the key and gets the error.
            let _ = woken.await;
        }))
    }

    /// Wakes the watches whose keys no longer have the value that was seen. The new rows must already be visible.
    pub(super) fn wake<'a>(&self, rows: impl Iterator<Item = (&'a Bytes, &'a Option<Bytes>)>) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waiting = self.waiting.lock();
        for (key, value) in rows {
            self.retain(&mut waiting, key, |waiter| waiter.seen == *value);
        }
    }

    /// Removes the waiters of a key, except those to `keep`.
    fn retain(&self, waiting: &mut Waiting, key: &Bytes, keep: impl Fn(&Waiter) -> bool) {
        let Some(waiters) = waiting.by_key.get_mut(key) else { return };
        let before = waiters.len();
        waiters.retain(keep);
        self.count.fetch_sub(before - waiters.len(), Ordering::SeqCst);
        if waiters.is_empty() {
            waiting.by_key.remove(key);
        }
    }

    /// Wakes all watches, because no change will follow.
    pub(super) fn wake_all(&self) {
        let mut waiting = self.waiting.lock();
        self.count.store(0, Ordering::SeqCst);
        waiting.by_key.clear();
    }

    /// Wakes all watches and refuses new ones.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.wake_all();
    }
}

/// Removes the watch when it is dropped.
struct Registration {
    watches: Arc<Watches>,
    key: Bytes,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.watches.retain(&mut self.watches.waiting.lock(), &self.key, |waiter| waiter.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_watch_leaves_nothing_behind() {
        let watches = Arc::new(Watches::default());
        let one = watches.register(Bytes::from_static(b"k"), None).unwrap();
        let two = watches.register(Bytes::from_static(b"k"), None).unwrap();
        drop(one);
        assert_eq!(watches.count.load(Ordering::SeqCst), 1);
        drop(two);
        assert_eq!(watches.count.load(Ordering::SeqCst), 0);
        assert!(watches.waiting.lock().by_key.is_empty());
    }

    #[test]
    fn the_number_of_watches_is_bounded() {
        let watches = Arc::new(Watches::default());
        let all: Vec<_> =
            (0..MAX_WATCHES).map(|_| watches.register(Bytes::from_static(b"k"), None).unwrap()).collect();
        let more = watches.register(Bytes::from_static(b"k"), None);
        assert!(matches!(more, Err(Error::Unavailable(_))));
        // Newest first, so that each is found at the end of the list.
        watches.wake_all();
        drop(all);
        assert!(watches.register(Bytes::from_static(b"k"), None).is_ok());
    }
}
