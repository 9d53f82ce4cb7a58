//! Limits each worker to one request for jobs at a time.
//!
//! A worker whose connection broke repeats its request, perhaps before the server detects the loss. If both requests
//! ran, each could claim jobs, and those of the lost one would stay idle until a third request. So a later request ends
//! the wait of an earlier one, and begins when the earlier one has ended. By then the earlier one's claims are known,
//! and the server returns these jobs again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

/// The workers with a request, by name. Other workers have no entry.
#[derive(Clone, Default)]
pub(crate) struct Accepting(Arc<Mutex<HashMap<String, Line>>>);

/// The requests of one worker.
struct Line {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Ends the wait of the latest request.
    latest: CancellationToken,
}

/// The right to request a worker's jobs, which only one request has.
pub(super) struct Turn {
    accepting: Accepting,
    worker: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Accepting {
    /// Ends the wait of an earlier request of this worker, and returns when that one is over. A later request cancels `leave`.
    pub(super) async fn turn(&self, worker: String, leave: &CancellationToken) -> Turn {
        let turn = match self.lock().entry(worker.clone()) {
            Entry::Occupied(mut line) => {
                let line = line.get_mut();
                std::mem::replace(&mut line.latest, leave.clone()).cancel();
                line.turn.clone()
            }
            Entry::Vacant(line) => {
                line.insert(Line { turn: Arc::default(), latest: leave.clone() }).turn.clone()
            }
        };
        // Created before the wait, so that a request that stops waiting removes its entry.
        let mut place = Turn { accepting: self.clone(), worker, guard: None };
        place.guard = Some(turn.lock_owned().await);
        place
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = self.accepting.lock();
        drop(self.guard.take());
        // A request that waits for its turn holds the line, too. No request can join the line under this mutex.
        if lines.get(&self.worker).is_some_and(|line| Arc::strong_count(&line.turn) == 1) {
            lines.remove(&self.worker);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_later_request_ends_the_wait_of_an_earlier_one_and_waits_for_its_end() {
        let accepting = Accepting::default();
        let (first, second, other) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let turn = accepting.turn("a".into(), &first).await;
        let _other = accepting.turn("b".into(), &other).await;
        let waiting = {
            let (accepting, second) = (accepting.clone(), second.clone());
            tokio::spawn(async move { accepting.turn("a".into(), &second).await })
        };
        first.cancelled().await;
        assert!(!waiting.is_finished() && !second.is_cancelled() && !other.is_cancelled());
        drop(turn);
        let turn = waiting.await.unwrap();
        assert_eq!(accepting.lock().len(), 2);
        drop(turn);
        assert_eq!(accepting.lock().keys().collect::<Vec<_>>(), ["b"]);
    }

    #[tokio::test]
    async fn a_request_that_stops_waiting_leaves_no_entry() {
        let accepting = Accepting::default();
        let turn = accepting.turn("a".into(), &CancellationToken::new()).await;
        let second = CancellationToken::new();
        let waiting = accepting.turn("a".into(), &second);
        assert!(futures::poll!(std::pin::pin!(waiting)).is_pending());
        drop(turn);
        assert!(accepting.lock().is_empty());
    }
}
