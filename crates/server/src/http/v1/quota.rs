//! How much of the store a client may fill: `[limits] waiting_jobs` and `[limits] workers`. Operators are not limited.
//!
//! *Waiting jobs.* A count reads a row for each job, up to the limit. So an add does not count. It takes from what a count has left, and a new count follows
//! when that is used up, or is old. Per job that is added, this reads less than a row or two, unless the tenant is at its limit: there, a count a second tells
//! whether jobs have started. Each node counts for itself, so on several nodes a tenant may exceed the limit by what they admit between two counts.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use turnwise_queue::{tenants, workers};

use super::error::{Result, V1Error};
use crate::access::Caller;
use crate::http::App;

/// How long a count is used: other nodes add jobs, too.
const FRESH: Duration = Duration::from_secs(10);
/// The shortest time between two counts, and how many times longer than a count it is.
const SHORTEST: Duration = Duration::from_secs(1);
const PAUSE: u32 = 10;
/// The most rows that one transaction counts.
const PAGE: usize = 1_000;
/// The most job types and tenants whose counts are remembered.
const MAX_KNOWN: usize = 10_000;

/// The counts of waiting jobs, by job type and tenant.
#[derive(Default)]
pub(crate) struct WaitingJobs(Mutex<HashMap<(String, String), Count>>);

/// A count of a tenant's waiting jobs of one type.
struct Count {
    /// The number of jobs that may be added.
    left: usize,
    at: Instant,
    /// When the next one may follow.
    next: Instant,
}

impl WaitingJobs {
    fn known(&self) -> MutexGuard<'_, HashMap<(String, String), Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `jobs` from what is left. `None` if a new count is necessary.
    fn take(&self, key: &(String, String), jobs: usize, now: Instant) -> Option<bool> {
        let mut known = self.known();
        let count = known.get_mut(key)?;
        let age = now.saturating_duration_since(count.at);
        match count.left.checked_sub(jobs) {
            Some(left) if age < FRESH => {
                count.left = left;
                Some(true)
            }
            None if now < count.next => Some(false),
            _ => None,
        }
    }

    /// Keeps a count, unless another one has ended since it began: what that one had left may be used up.
    fn learn(&self, key: &(String, String), left: usize, begun: Instant, now: Instant) {
        let mut known = self.known();
        if known.get(key).is_some_and(|count| count.at >= begun) {
            return;
        }
        if known.len() >= MAX_KNOWN && !known.contains_key(key) {
            known.retain(|_, count| now < count.next);
        }
        known.insert(key.clone(), Count { left, at: now, next: now + SHORTEST.max((now - begun) * PAUSE) });
    }

    /// Checks whether a tenant may add this many jobs of a type.
    ///
    /// # Errors
    /// It has too many waiting ones.
    pub(super) async fn admit(
        &self,
        app: &App,
        caller: &Caller,
        (job_type, tenant): (&str, &str),
        jobs: usize,
    ) -> Result<()> {
        let most = app.config.get().limits.waiting_jobs;
        if most == 0 || caller.operates() {
            return Ok(());
        }
        let key = (job_type.to_owned(), tenant.to_owned());
        let admitted = match self.take(&key, jobs, Instant::now()) {
            Some(admitted) => admitted,
            None => {
                let begun = Instant::now();
                let waiting = count(app, job_type, tenant, most).await?;
                self.learn(&key, most.saturating_sub(waiting), begun, Instant::now());
                self.take(&key, jobs, Instant::now()) == Some(true)
            }
        };
        if admitted {
            return Ok(());
        }
        let reason = format!("tenant `{tenant}` may have {most} waiting jobs of type `{job_type}`");
        Err(V1Error::too_many(
            reason,
            "add fewer jobs, or wait until some have started; an operator sets [limits] waiting_jobs",
        ))
    }
}

/// How many jobs of a type a tenant has pending; counts up to `most`. In several transactions: some engines give each little time.
async fn count(app: &App, job_type: &str, tenant: &str, most: usize) -> Result<usize> {
    let (mut count, mut from) = (0, None);
    while count < most {
        let tx = app.store.begin().await?;
        let limit = PAGE.min(most - count);
        let page = tenants::count_page(&tx, &app.keys, (job_type, tenant), from, limit).await?;
        count += page.count;
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    Ok(count)
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
    fn adds_take_from_the_last_count() {
        let (counts, start) = (WaitingJobs::default(), Instant::now());
        let key = ("mail".to_owned(), "acme".to_owned());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(counts.take(&key, 1, start), None, "not counted yet");
        counts.learn(&key, 5, start, start);
        assert_eq!((counts.take(&key, 3, at(0)), counts.take(&key, 3, at(1))), (Some(true), Some(false)));
        assert_eq!(counts.take(&key, 2, at(2)), Some(true));
        // After a second, jobs may have started.
        assert_eq!((counts.take(&key, 1, at(999)), counts.take(&key, 1, at(1_000))), (Some(false), None));
        counts.learn(&key, 100, at(1_000), at(1_000));
        // It began before the other one ended, so it does not give the same room twice.
        counts.learn(&key, 999, at(999), at(1_001));
        assert_eq!(
            (counts.take(&key, 101, at(1_500)), counts.take(&key, 1, at(10_999))),
            (Some(false), Some(true))
        );
        assert_eq!(counts.take(&key, 1, at(11_000)), None, "other nodes may have added some");
        counts.learn(&key, 0, at(10_700), at(11_000));
        assert_eq!((counts.take(&key, 1, at(13_999)), counts.take(&key, 1, at(14_000))), (Some(false), None));
    }
}
