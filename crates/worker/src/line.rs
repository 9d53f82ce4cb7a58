//! Lines: of those who wait for the same thing, one at a time goes first, in the order of their arrival.
//!
//! External workers wait for jobs: of each type, of those who may take the same jobs only the first one watches the store. If workers with
//! other tenants or tasks shared a line, the first one could not take what the next one could. Passes wait for their turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::OwnedMutexGuard;

use crate::sync::lock;
/// Lines, one per job type.
#[derive(Default)]
pub(crate) struct Lines {
    /// The lines that are not empty.
    by_key: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

/// A job type, and the name of what its workers may take.
type Key = (String, String);

/// The head of a line. Dropping it admits the next worker.
pub(crate) struct First {
    // The order of the fields matters: when the position is dropped, it checks whether another worker uses the line.
    _first: OwnedMutexGuard<()>,
    _position: Position,
}

/// A position in a line. The last one to be dropped removes the line.
struct Position {
    lines: Arc<Lines>,
    key: Key,
}

impl Lines {
    /// Returns once every worker that joined the line earlier has left.
    pub async fn join(self: &Arc<Self>, job_type: &str, takes: &str) -> First {
        let key = (job_type.to_owned(), takes.to_owned());
        let line = lock(&self.by_key).entry(key.clone()).or_default().clone();
        let position = Position { lines: self.clone(), key };
        First { _first: line.lock_owned().await, _position: position }
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        let mut by_key = lock(&self.lines.by_key);
        if by_key.get(&self.key).is_some_and(|line| Arc::strong_count(line) == 1) {
            by_key.remove(&self.key);
        }
    }
}
