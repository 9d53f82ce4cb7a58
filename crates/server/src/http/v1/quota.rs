//! How much of the store a client may fill: `[limits] waiting_jobs` and `[limits] workers`. Operators are not limited.
//!
//! *Waiting jobs.* The store's counts are exact, but do not contain what other requests are adding. Each node adds what it is adding itself, so on
//! several nodes a tenant may exceed the limit by what the others add at the same moment.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnwise_queue::{counts, workers};

use super::error::{Result, V1Error};
use crate::access::Caller;
use crate::http::App;

/// Job type and tenant.
type Of = (String, String);

/// How many jobs this node is adding, by job type and tenant.
#[derive(Default, Clone)]
pub(crate) struct WaitingJobs(Arc<Mutex<HashMap<Of, u64>>>);

/// Jobs that are being added, until this is dropped.
pub(super) struct Adding {
    all: WaitingJobs,
    of: Of,
    jobs: u64,
}

impl Drop for Adding {
    fn drop(&mut self) {
        let mut adding = self.all.adding();
        if let Some(jobs) = adding.get_mut(&self.of) {
            *jobs -= self.jobs;
            if *jobs == 0 {
                adding.remove(&self.of);
            }
        }
    }
}

impl WaitingJobs {
    fn adding(&self) -> MutexGuard<'_, HashMap<Of, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that jobs are being added. Also returns how many are, with these.
    fn begin(&self, of: Of, jobs: u64) -> (Adding, u64) {
        let mut adding = self.adding();
        let all = adding.entry(of.clone()).or_default();
        *all += jobs;
        let all = *all;
        drop(adding);
        (Adding { all: self.clone(), of, jobs }, all)
    }

    /// Checks whether a tenant may add this many jobs of a type. The caller keeps what is returned until it has added them.
    ///
    /// # Errors
    /// It would have too many that have not started.
    pub(super) async fn admit(
        &self,
        app: &App,
        caller: &Caller,
        (job_type, tenant): (&str, &str),
        jobs: usize,
    ) -> Result<Option<Adding>> {
        let most = u64::try_from(app.config.get().limits.waiting_jobs).unwrap_or(u64::MAX);
        if most == 0 || caller.operates() {
            return Ok(None);
        }
        let jobs = u64::try_from(jobs).unwrap_or(u64::MAX);
        // Before the counts are read: what another request adds is in one of both.
        let (adding, all) = self.begin((job_type.to_owned(), tenant.to_owned()), jobs);
        let tx = app.store.begin().await?;
        let waiting = counts::of_tenant(&tx, &app.keys, job_type, tenant).await?.waiting();
        if waiting.saturating_add(all) <= most {
            return Ok(Some(adding));
        }
        let reason =
            format!("tenant `{tenant}` may have {most} waiting jobs of type `{job_type}`, and has {waiting}");
        Err(V1Error::too_many(
            reason,
            "add fewer jobs, or wait until some have started; an operator sets [limits] waiting_jobs",
        ))
    }
}

/// Checks whether an identity may register another worker of a type.
///
/// # Errors
/// It has too many.
pub(super) async fn admit_worker(app: &App, caller: &Caller, job_type: &str) -> Result<()> {
    let most = app.config.get().limits.workers;
    let (Some(identity), false) = (caller.name(), most == 0 || caller.operates()) else { return Ok(()) };
    let tx = app.store.begin().await?;
    let all = workers::list(&tx, &app.keys, job_type).await?;
    let own = all.iter().filter(|worker| worker.registered_by.as_ref() == Some(&identity)).count();
    if own < most {
        return Ok(());
    }
    let reason = format!("this identity may have {most} workers of type `{job_type}`");
    Err(V1Error::too_many(
        reason,
        "run several jobs in one worker (slots); workers that have stopped pinging do not count after [workers] health_timeout",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_count_while_they_are_added() {
        let all = WaitingJobs::default();
        let of = |tenant: &str| ("mail".to_owned(), tenant.to_owned());
        let (first, one) = all.begin(of("acme"), 3);
        let (second, both) = all.begin(of("acme"), 4);
        let (other, others) = all.begin(of("beta"), 1);
        assert_eq!((one, both, others), (3, 7, 1));
        drop(first);
        assert_eq!(all.begin(of("acme"), 1).1, 5);
        drop((second, other));
        assert!(all.adding().is_empty());
    }
}
