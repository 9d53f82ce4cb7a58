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
pub struct Accepting(Arc<Mutex<HashMap<String, WorkerRequests>>>);

/// The requests of one worker.
struct WorkerRequests {
    mutex: Arc<tokio::sync::Mutex<()>>,
    /// Ends the wait of the latest request.
    latest: CancellationToken,
}

/// The right to request a worker's jobs, which only one request has.
pub(super) struct RequestPermit {
    accepting: Accepting,
    worker: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Accepting {
    /// Ends the wait of an earlier request of this worker, and returns when that one is over. A later request cancels `leave`.
    pub(super) async fn acquire(&self, worker: String, leave: &CancellationToken) -> RequestPermit {
        let mutex = match self.lock().entry(worker.clone()) {
            Entry::Occupied(mut entry) => {
                let requests = entry.get_mut();
                std::mem::replace(&mut requests.latest, leave.clone()).cancel();
                requests.mutex.clone()
            }
            Entry::Vacant(entry) => {
                entry.insert(WorkerRequests { mutex: Arc::default(), latest: leave.clone() }).mutex.clone()
            }
        };
        // Created before the wait, so that a request that stops waiting removes its entry.
        let mut permit = RequestPermit { accepting: self.clone(), worker, guard: None };
        permit.guard = Some(mutex.lock_owned().await);
        permit
    }

    /// Ends the wait of this worker's request, if one waits here.
    pub(super) fn end_wait(&self, worker: &str) {
        if let Some(requests) = self.lock().get(worker) {
            requests.latest.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, WorkerRequests>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut workers = self.accepting.lock();
        drop(self.guard.take());
        // A request that waits holds the worker's mutex, too. No request can begin to wait under this lock.
        if workers.get(&self.worker).is_some_and(|requests| Arc::strong_count(&requests.mutex) == 1) {
            workers.remove(&self.worker);
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
        let permit = accepting.acquire("a".into(), &first).await;
        let _other = accepting.acquire("b".into(), &other).await;
        let waiting = {
            let (accepting, second) = (accepting.clone(), second.clone());
            tokio::spawn(async move { accepting.acquire("a".into(), &second).await })
        };
        first.cancelled().await;
        assert!(!waiting.is_finished() && !second.is_cancelled() && !other.is_cancelled());
        drop(permit);
        let permit = waiting.await.unwrap();
        assert_eq!(accepting.lock().len(), 2);
        drop(permit);
        assert_eq!(accepting.lock().keys().collect::<Vec<_>>(), ["b"]);
    }

    #[tokio::test]
    async fn a_request_that_stops_waiting_leaves_no_entry() {
        let accepting = Accepting::default();
        let permit = accepting.acquire("a".into(), &CancellationToken::new()).await;
        let second = CancellationToken::new();
        let waiting = accepting.acquire("a".into(), &second);
        assert!(futures::poll!(std::pin::pin!(waiting)).is_pending());
        drop(permit);
        assert!(accepting.lock().is_empty());
    }
}
