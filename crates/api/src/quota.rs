//! How much of the store a client may fill: `[limits] waiting_jobs` and `[limits] workers`. Operators are not limited.
//!
//! *Waiting jobs.* A request counts with the jobs that it would add or run again, and not with those that exist, or whose
//! unique key another job has: the repetition of a request
//! whose response was lost is never refused. A group that it creates counts with the jobs that it will add: the server adds these without asking. The store's counts are exact, but do not contain what other requests are adding. Each node adds
//! what it is adding itself, so on several nodes a tenant may exceed the limit by what the others add at the same moment.

use std::collections::{BTreeMap, HashSet};

use turnwise_protocol::IfExists;
use turnwise_queue::{NewJob, Place, Then, counts, jobs, unique, workers};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;
use turnwise_web::counted::{Counted, Numbers};

use super::app::App;
use super::error::{Result, V1Error};

/// Job type and tenant.
type Of = (String, String);

/// How many jobs this node is adding, by job type and tenant.
#[derive(Default, Clone)]
pub struct WaitingJobs(Numbers<Of>);

impl WaitingJobs {
    /// Checks whether tenants may add these jobs. The caller keeps what is returned until it has added them.
    ///
    /// # Errors
    /// A tenant would have too many jobs that have not started.
    pub(super) async fn admit(
        &self,
        app: &App,
        caller: &Caller,
        wanted: &[Wanted<'_>],
    ) -> Result<Vec<Counted<Of>>> {
        let most = u64::try_from(app.config.get().limits.waiting_jobs).unwrap_or(u64::MAX);
        if most == 0 || caller.operates() {
            return Ok(Vec::new());
        }
        let tx = app.store.begin().await?;
        let new = new_jobs(app, caller, &tx, wanted).await?;
        let mut admitted = Vec::with_capacity(new.len());
        for (of, jobs) in new {
            // Before the counts are read: what another request adds is in one of both.
            let (adding, all) = self.0.add(of.clone(), jobs);
            admitted.push(adding);
            let tx = app.store.begin().await?;
            let (job_type, tenant) = of;
            let waiting = counts::of_tenant(&tx, &app.keys, &job_type, &tenant).await?.not_started();
            if waiting.saturating_add(all) > most {
                return Err(V1Error::too_many(
                    format!(
                        "tenant `{tenant}` may have {most} waiting jobs of type `{job_type}`, and has {waiting}"
                    ),
                    "add fewer jobs, or wait until some have started; an operator sets [limits] waiting_jobs",
                ));
            }
        }
        Ok(admitted)
    }
}

/// A job of a request.
pub(super) struct Wanted<'a> {
    pub job: &'a NewJob,
    pub if_exists: IfExists,
    /// The request names its tenant. Otherwise a job that runs again keeps its own.
    pub states_tenant: bool,
    /// The server generated its id, so no other job can have it.
    pub made: bool,
}

impl<'a> Wanted<'a> {
    /// One whose id no other job has.
    pub fn made(job: &'a NewJob) -> Self {
        Wanted { job, if_exists: IfExists::Keep, states_tenant: true, made: true }
    }
}

/// How many waiting jobs a request would add, by job type and tenant. A job that the caller may not read adds none: it will be refused, and
/// the refusal says nothing about its tenant.
async fn new_jobs(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    wanted: &[Wanted<'_>],
) -> Result<BTreeMap<Of, u64>> {
    let mut new: BTreeMap<Of, u64> = BTreeMap::new();
    let (mut named, mut unique_keys) = (HashSet::new(), HashSet::new());
    for some in wanted.chunks(jobs::PREFETCHED) {
        let ids =
            some.iter().filter(|one| !one.made).map(|one| (one.job.job_type.as_str(), one.job.id.as_str()));
        jobs::prefetch(tx, &app.keys, ids).await?;
        for Wanted { job, if_exists, states_tenant, made } in some {
            let old = match made {
                true => None,
                // An id that the request names twice is one job.
                false if !named.insert((job.job_type.as_str(), job.id.as_str())) => continue,
                false => jobs::get(tx, &app.keys, &job.job_type, &job.id).await?,
            };
            let adds = match &old {
                None => true,
                Some(old) if !caller.reads(&old.tenant) => false,
                Some(old) if old.then() == Then::Remove => true,
                Some(old) => *if_exists == IfExists::Again && matches!(old.place, Place::Ended(_)),
            };
            let adds = adds
                && match unique::key_of_new(tx, &app.keys, job, old.as_ref(), app.now_us()).await? {
                    // A key that the request has twice is one job.
                    Ok(key) => key.is_none_or(|key| unique_keys.insert(key)),
                    Err(_) => false,
                };
            if adds {
                let kept = old
                    .filter(|_| !states_tenant && *if_exists == IfExists::Again)
                    .map(|old| old.into_fields().spec.tenant);
                let tenant = kept.unwrap_or_else(|| job.tenant.clone());
                *new.entry((job.job_type.clone(), tenant)).or_default() += 1;
            }
        }
    }
    Ok(new)
}

/// Checks whether an identity may register another worker of a type.
///
/// # Errors
/// It has too many.
pub(super) async fn admit_worker(app: &App, caller: &Caller, job_type: &str) -> Result<()> {
    let most = app.config.get().limits.workers;
    let (Some(identity), false) = (caller.owner(), most == 0 || caller.operates()) else { return Ok(()) };
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
        let WaitingJobs(all) = WaitingJobs::default();
        let of = |tenant: &str| ("mail".to_owned(), tenant.to_owned());
        let (first, one) = all.add(of("acme"), 3);
        let (second, both) = all.add(of("acme"), 4);
        let (other, others) = all.add(of("beta"), 1);
        assert_eq!((one, both, others, all.total()), (3, 7, 1, 8));
        drop(first);
        assert_eq!(all.add(of("acme"), 1).1, 5);
        drop((second, other));
        assert!(all.is_empty());
    }
}
