//! What the parts of a registered worker share: its settings, its runs, and what they know of the server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Method;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use turnwise_protocol::names::{check_name, check_type};
use turnwise_protocol::{MAX_SLOTS, Mode, TaskTerms, codes};

use super::ends::Ends;
use crate::client::Request;
use crate::waits::is_cut;
use crate::{Client, Error, Result};

/// A worker's settings.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The type of the jobs.
    pub job_type: String,
    /// A display name, at most 128 bytes.
    pub name: Option<String>,
    /// The number of jobs that may run at the same time; 1 to 1,000.
    pub slots: usize,
    /// The tasks that it knows; `None` gets all jobs of the type.
    pub tasks: Option<Vec<String>>,
    /// The most jobs of some of these tasks that may run at the same time.
    pub task_slots: BTreeMap<String, usize>,
    /// What holds for the jobs of some of these tasks from now on, in place of what is stated for their type.
    pub task_terms: BTreeMap<String, TaskTerms>,
    /// How long one request for jobs waits on the server.
    pub accept_wait: Duration,
    /// The shortest time between two reports of a run.
    pub report_interval: Duration,
    /// How long running jobs may go on after the worker was asked to stop. It accepts no more jobs meanwhile. What still runs then is
    /// stopped.
    pub drain: Duration,
    /// How long a run may take to stop before the worker aborts it.
    pub stop_grace: Duration,
}

impl WorkerOptions {
    /// Settings for jobs of this type, one at a time.
    pub fn new(job_type: impl Into<String>) -> Self {
        WorkerOptions {
            job_type: job_type.into(),
            name: None,
            slots: 1,
            tasks: None,
            task_slots: BTreeMap::new(),
            task_terms: BTreeMap::new(),
            accept_wait: Duration::from_secs(30),
            report_interval: Duration::from_secs(1),
            drain: Duration::ZERO,
            stop_grace: Duration::from_secs(10),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        check_type(&self.job_type)?;
        if let Some(name) = &self.name {
            check_name("name", name)?;
        }
        match self.slots {
            1..=MAX_SLOTS => Ok(()),
            _ => Err(Error::Invalid(format!("slots: must be from 1 to {MAX_SLOTS}"))),
        }
    }
}

/// The state that all parts of a registered worker share.
pub(super) struct Shared {
    pub client: Client,
    pub options: Arc<WorkerOptions>,
    pub id: String,
    /// Cancelled when the server reports that this worker is no longer registered.
    pub expired: CancellationToken,
    /// Cancelled when the server reports that this worker drains.
    pub draining: CancellationToken,
    /// By claim: how to stop each run.
    pub runs: Mutex<BTreeMap<u64, CancellationToken>>,
    pub ends: Ends,
    /// The highest claim that has arrived.
    pub received: AtomicU64,
    /// Whether a request for jobs has no answer.
    pub asking: AtomicBool,
}

impl Shared {
    pub fn request(&self, rest: &[&str]) -> Request {
        let segments = [&["workers", &self.options.job_type, &self.id], rest].concat();
        Request::new(Method::POST, &segments)
    }

    /// Follows the mode that the server reports. A quiet worker asks for jobs, and gets none. Draining cannot be undone: the
    /// worker may have decided to leave.
    pub fn follow(&self, mode: Mode) {
        if mode == Mode::Drain {
            self.draining.cancel();
        }
    }

    /// Whether an error says that a run has lost its claim, as each run has when the worker has expired.
    pub fn is_lost(&self, error: &Error) -> bool {
        if error.is_expired() {
            self.expired.cancel();
        }
        error.is_expired() || error.is_halt()
    }

    pub fn runs(&self) -> MutexGuard<'_, BTreeMap<u64, CancellationToken>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the error is a fault of the server that may pass, and does not decide about the request.
pub(super) fn is_fault(error: &Error) -> bool {
    error.may_pass() || error.code() == Some(codes::SUPERSEDED)
}

/// Whether a registered worker retries after this error: a fault, or an answer from a proxy in front of the server.
pub(super) fn is_retryable(error: &Error) -> bool {
    is_fault(error) || matches!(error, Error::Foreign { .. })
}

/// Repeats a request until there is an answer; `None` once `gone` is cancelled. Each attempt has a request of its own, because it may wait
/// for less than the one before.
pub(super) async fn persist<T: serde::de::DeserializeOwned>(
    client: &Client,
    request: &(dyn Fn() -> Result<Request> + Sync),
    gone: &CancellationToken,
    again: fn(&Error) -> bool,
) -> Option<Result<T>> {
    let asking = async {
        let mut backoff = client.backoff();
        loop {
            let request = request()?;
            let asked = Instant::now();
            match client.once(&request).await {
                Err(error) if is_cut(request.wait, asked.elapsed(), &error) => {}
                Err(error) if again(&error) => {
                    if backoff.attempts() == 0 {
                        tracing::warn!("retrying until the server answers: {error}");
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
                answer => return answer,
            }
        }
    };
    gone.run_until_cancelled(asking).await
}
