//! How many of something each key has: connections of an address, streams of an identity.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers by key. A key that has none is forgotten. Cheap to clone.
#[derive(Clone)]
pub struct Numbers<K>(Arc<Mutex<HashMap<K, u64>>>);

/// What one holder adds to the number of a key, until it is dropped.
pub struct Counted<K: Eq + Hash + Clone> {
    all: Numbers<K>,
    key: K,
    many: u64,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Numbers(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Numbers<K> {
    fn map(&self) -> MutexGuard<'_, HashMap<K, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds so many. Also returns the number of the key, with these.
    pub fn add(&self, key: K, many: u64) -> (Counted<K>, u64) {
        let mut map = self.map();
        let number = map.entry(key.clone()).or_default();
        *number += many;
        let number = *number;
        drop(map);
        (Counted { all: self.clone(), key, many }, number)
    }

    /// The numbers of all keys together.
    pub fn total(&self) -> u64 {
        self.map().values().sum()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.map().is_empty()
    }
}

impl<K: Eq + Hash + Clone> Drop for Counted<K> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut number) = self.all.map().entry(self.key.clone()) {
            *number.get_mut() -= self.many;
            if *number.get() == 0 {
                number.remove();
            }
        }
    }
}
