//! The lines of external workers that wait for jobs: of each type, only the first one watches the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The lines of waiting workers, one per job type.
#[derive(Default)]
pub(super) struct Lines {
    /// The lines that are not empty.
    by_type: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// The head of a line. Dropping it admits the next worker.
pub(super) struct First {
    // The order of the fields matters: when the position is dropped, it checks whether another worker uses the line.
    _first: OwnedMutexGuard<()>,
    _position: Position,
}

/// A position in a line. The last one to be dropped removes the line.
struct Position {
    lines: Arc<Lines>,
    job_type: String,
}

impl Lines {
    /// Returns once every worker that joined the line earlier has left.
    pub async fn join(self: &Arc<Self>, job_type: &str) -> First {
        let line = self.lock().entry(job_type.to_owned()).or_default().clone();
        let position = Position { lines: self.clone(), job_type: job_type.to_owned() };
        First { _first: line.lock_owned().await, _position: position }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<tokio::sync::Mutex<()>>>> {
        self.by_type.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        let mut by_type = self.lines.lock();
        if by_type.get(&self.job_type).is_some_and(|line| Arc::strong_count(line) == 1) {
            by_type.remove(&self.job_type);
        }
    }
}
