//! Pools that the requests of all identities share: how much there is of something, and how much of it one identity may have.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_recursion::async_recursion as boxed;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::Caller;

/// So many of something, for all identities together and for each.
pub struct Pool {
    all: Arc<Semaphore>,
    share: u32,
    shares: Semaphores<Option<String>>,
}

/// A part of a pool, until it is dropped.
#[derive(Debug)]
pub struct PoolPermit {
    _permits: [OwnedSemaphorePermit; 2],
}

impl Pool {
    /// A pool with so many, of which each identity may have a share.
    pub fn new(all: u32, share: u32) -> Self {
        Pool { all: semaphore(all), share, shares: Semaphores::default() }
    }

    /// The most that one identity may have.
    pub fn share(&self) -> u32 {
        self.share
    }

    /// Waits for a part of at most a share: first for what the identity has given back, so that those that wait here take nothing from
    /// others.
    #[boxed]
    pub async fn take(&self, caller: &Caller, many: u32) -> PoolPermit {
        let share = self.shares.of(caller.owner(), self.share);
        let own = take(share, many).await;
        PoolPermit { _permits: [own, take(self.all.clone(), many).await] }
    }
}

/// Semaphores by key. One that nobody uses is forgotten.
pub struct Semaphores<K>(Mutex<HashMap<K, Weak<Semaphore>>>);

impl<K> Default for Semaphores<K> {
    fn default() -> Self {
        Semaphores(Mutex::default())
    }
}

impl<K: Eq + Hash> Semaphores<K> {
    /// The semaphore of a key: one that is in use, or a new one with so many permits.
    pub fn of(&self, key: K, most: u32) -> Arc<Semaphore> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = known.get(&key).and_then(Weak::upgrade) {
            return used;
        }
        known.retain(|_, semaphore| semaphore.strong_count() > 0);
        let new = semaphore(most);
        known.insert(key, Arc::downgrade(&new));
        new
    }

    /// The number of keys whose semaphores are known, of which some may be forgotten.
    pub fn known(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Waits for so many permits.
#[boxed]
pub async fn take(of: Arc<Semaphore>, many: u32) -> OwnedSemaphorePermit {
    of.acquire_many_owned(many).await.expect("the semaphore is never closed")
}

fn semaphore(permits: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits as usize))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use turnwise_identity::Scopes;

    use super::*;

    #[tokio::test]
    async fn an_identity_gets_its_share_and_the_others_the_rest() {
        let pool = Pool::new(4, 3);
        let [a, b] = ["a", "b"].map(|id| Caller::token(id, Scopes::default()));
        let take = |caller: &Caller, many| {
            let (pool, caller) = (&pool, caller.clone());
            tokio::task::unconstrained(async move { pool.take(&caller, many).await }).now_or_never()
        };
        let of_a = take(&a, 2).expect("all is free");
        assert!(take(&a, 2).is_none(), "more than its share");
        let last_of_a = take(&a, 1).expect("it is its share");
        assert!(take(&a, 1).is_none());
        let of_b = take(&b, 1).expect("another one's share is not used");
        assert!(take(&b, 1).is_none(), "nothing is left");
        drop(of_a);
        assert!(take(&b, 2).is_some());
        drop((last_of_a, of_b));
        assert!(take(&a, 3).is_some() && pool.shares.known() <= 2, "who has nothing is forgotten");
    }
}
