//! Locks that a run requests: [`Run::lock`].

use std::time::Duration;

use reqwest::Method;
use turnwise_protocol::{AskLocks, AskedLocks, LockState, Unlocked, WantedLock, codes};

use super::shared::{is_retryable, persist};
use super::{Outcome, Run};
use crate::client::Request;
use crate::{Error, Result};

/// How long one request waits for a lock on the server, before the client repeats it.
const WAIT: Duration = Duration::from_secs(30);

/// Why a lock was not granted.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The run must end: return [`Outcome::Stopped`] soon.
    #[error("the job must stop")]
    Stopped,
    /// The worker has lost the claim on the job; the server ignores everything that the run still does.
    #[error("the worker has lost its claim on the job")]
    Lost,
    /// The server refuses the request: `out_of_order`, `not_declared`, `unknown_level`, `waits_already` ([`Error::code`]).
    #[error(transparent)]
    Refused(Error),
}

/// The outcome of a run that cannot continue without the lock.
impl From<LockError> for Outcome {
    fn from(error: LockError) -> Outcome {
        match error {
            LockError::Stopped | LockError::Lost => Outcome::Stopped,
            // The lock may be free at the next attempt.
            LockError::Refused(error) if error.code() == Some(codes::OUT_OF_ORDER) => {
                Outcome::Crashed(error.to_string().into())
            }
            LockError::Refused(error) => Outcome::Failed(error.to_string().into()),
        }
    }
}

impl Run {
    /// Acquires locks that the job's declaration covers, one after the other in the order of levels and names. Returns
    /// when the run holds all of them, however long that takes. Requests for a lock are served in their order of
    /// arrival. [`Run::unlock`] or the end of the run releases the locks.
    ///
    /// If the caller drops this future, the run stays in the lock's queue until [`Run::unlock`], or until the run ends.
    ///
    /// # Errors
    /// [`LockError`]. The run then still holds the locks that it got before the error.
    pub async fn lock(&self, locks: &[WantedLock]) -> Result<(), LockError> {
        let request = || {
            let wait = self.shared.client.waits.longest(WAIT);
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let ask = AskLocks { claim: self.job.claim, locks: locks.to_vec(), wait_ms };
            Ok(self.locks(Method::POST).json(&ask)?.waiting(wait))
        };
        let _asking = self.asks.begin();
        loop {
            match self.persist::<AskedLocks>(&request).await? {
                AskedLocks { state: LockState::Held, .. } => return Ok(()),
                // The run keeps its place in the lock's queue between two requests.
                AskedLocks { state: LockState::Waiting, .. } => {}
            }
        }
    }

    /// Releases a lock before the end of the run, or withdraws the request for it; without a name, for all resources of
    /// the level. Locks that the run does not hold are ignored.
    ///
    /// # Errors
    /// [`LockError`].
    pub async fn unlock(&self, level: &str, name: Option<&str>) -> Result<(), LockError> {
        let request = self.locks(Method::DELETE);
        let request =
            request.query("claim", Some(self.job.claim)).query("level", Some(level)).query("name", name);
        self.persist::<Unlocked>(&|| Ok(request.clone())).await.map(|_| ())
    }

    fn locks(&self, method: Method) -> Request {
        let segments = ["workers", &self.job_type, &self.shared.id, "jobs", &self.job.id, "locks"];
        Request::new(method, &segments)
    }

    /// Repeats an idempotent request until there is an answer.
    pub(super) async fn persist<T: serde::de::DeserializeOwned>(
        &self,
        request: &(dyn Fn() -> Result<Request> + Sync),
    ) -> Result<T, LockError> {
        let asked = persist::<T>(&self.shared.client, request, &self.shared.expired, is_retryable);
        let answer = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(LockError::Stopped),
            answer = asked => answer,
        };
        match answer {
            None => Err(LockError::Lost),
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) if self.shared.is_lost(&error) => Err(LockError::Lost),
            Some(Err(error)) => Err(LockError::Refused(error)),
        }
    }
}
