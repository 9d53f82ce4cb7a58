//! The locks that a run asks for: [`Run::lock`].

use std::fmt;
use std::time::Duration;

use reqwest::Method;
use turnwise_protocol::{AskLocks, AskedLocks, LockState, Unlocked, WantedLock, codes};

use super::{Outcome, Run, is_no_verdict, persist};
use crate::Error;
use crate::client::Request;

/// How long one request waits for a lock on the server; then it is made again.
const WAIT: Duration = Duration::from_secs(30);

/// Why a lock was not granted.
#[derive(Debug)]
pub enum LockError {
    /// The run shall end: return [`Outcome::Stopped`] soon.
    Stopped,
    /// The job is no longer this worker's; nothing that it does counts.
    Lost,
    /// The server refuses it: `out_of_order`, `not_declared`, `unknown_level`, `waits_already` ([`Error::code`]).
    Refused(Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Stopped => f.write_str("the job shall stop"),
            LockError::Lost => f.write_str("the job is no longer this worker's"),
            LockError::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LockError {}

/// What a run comes to that cannot go on without the lock.
impl From<LockError> for Outcome {
    fn from(error: LockError) -> Outcome {
        match error {
            LockError::Stopped | LockError::Lost => Outcome::Stopped,
            // Another time it may be free.
            LockError::Refused(error) if error.code() == Some(codes::OUT_OF_ORDER) => {
                Outcome::Crashed(error.to_string())
            }
            LockError::Refused(error) => Outcome::Failed(error.to_string()),
        }
    }
}

impl Run {
    /// Takes locks that the job's declaration covers, one after the other in the order of levels and names. Returns when it has all of them,
    /// however long that takes, first come first served. They are given back with [`Run::unlock`], or when the run ends.
    ///
    /// Whoever drops this future still stands in the lock's queue: [`Run::unlock`] leaves it, and so does the end of the run.
    ///
    /// # Errors
    /// [`LockError`]; those that come before the one that could not be had are held.
    pub async fn lock(&self, locks: &[WantedLock]) -> Result<(), LockError> {
        let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
        let ask = AskLocks { claim: self.job.claim, locks: locks.to_vec(), wait_ms };
        let request = self.locks(Method::POST).json(&ask).map_err(LockError::Refused)?.waiting(WAIT);
        let _asking = self.asks.begin();
        loop {
            match self.persist::<AskedLocks>(&request).await? {
                AskedLocks { state: LockState::Held, .. } => return Ok(()),
                // It keeps its place while it asks again.
                AskedLocks { state: LockState::Waiting, .. } => {}
            }
        }
    }

    /// Gives a lock back before the end of the run, or stops waiting for it; without a name that of all of the level. What the run does not hold is
    /// none to be given back.
    ///
    /// # Errors
    /// [`LockError`].
    pub async fn unlock(&self, level: &str, name: Option<&str>) -> Result<(), LockError> {
        let request = self.locks(Method::DELETE);
        let request =
            request.query("claim", Some(self.job.claim)).query("level", Some(level)).query("name", name);
        self.persist::<Unlocked>(&request).await.map(|_| ())
    }

    fn locks(&self, method: Method) -> Request {
        let segments = ["workers", &self.job_type, &self.shared.id, "jobs", &self.job.id, "locks"];
        Request::new(method, &segments)
    }

    /// Makes a request until it is answered. It may be made twice: what is held is granted, what is not held is given back.
    async fn persist<T: serde::de::DeserializeOwned>(&self, request: &Request) -> Result<T, LockError> {
        let asked = persist::<T>(&self.shared.client, request, &self.shared.expired, is_no_verdict);
        let answer = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(LockError::Stopped),
            answer = asked => answer,
        };
        match answer {
            None => Err(LockError::Lost),
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) if error.is_expired() => {
                self.shared.expired.cancel();
                Err(LockError::Lost)
            }
            Some(Err(error)) if error.is_halt() => Err(LockError::Lost),
            Some(Err(error)) => Err(LockError::Refused(error)),
        }
    }
}
