//! Whose worker sends a request: the identity that has registered it; and whether it sends too many.
//!
//! A worker's id is no secret: lists and jobs show it. So a request of a worker must come from the identity that registered
//! the worker. For any other identity, the worker does not exist.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use turnwise_queue::workers;
use turnwise_web::access::{
    Budget, Caller, LOOKUPS_PER_SECOND, REFUSED_WORKERS_PER_SECOND, pings_per_second,
};
use turnwise_worker::TenantFilter;

use super::app::App;
use super::error::{Result, V1Error};

/// The most workers that are cached. Beyond, they are read again.
const MAX_CACHED: usize = 100_000;

/// The identities that have registered workers, by type and id. No id is used twice, so an entry is never wrong.
#[derive(Default)]
pub struct RegisteredBy(Mutex<HashMap<(String, String), Option<String>>>);

/// Whether the caller may run jobs of this type.
pub(super) fn check_type(caller: &Caller, job_type: &str) -> Result<()> {
    match caller.works(job_type) {
        true => Ok(()),
        false => Err(V1Error::forbidden(
            format!("this identity may not run jobs of type `{job_type}`"),
            "it needs a scope worker:TYPES that names the type",
        )),
    }
}

/// The tenants whose jobs of this type the caller may run; `None` means all.
pub(super) fn tenants(caller: &Caller, job_type: &str) -> Option<TenantFilter> {
    let lists = caller.work_tenants(job_type)?;
    let name = lists.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    Some(TenantFilter::new(&name, move |tenant| lists.iter().any(|list| list.contain(tenant))))
}

impl RegisteredBy {
    /// Whether the caller may send a request of this worker, with its type and id, now. `valid`: whether these may be those of a worker.
    pub(super) async fn check(
        &self,
        app: &App,
        caller: &Caller,
        worker: (&str, &str),
        is_ping: bool,
        valid: Result<()>,
    ) -> Result<()> {
        if caller.operates() {
            return valid;
        }
        let checked = match valid {
            Ok(()) => self.check_own(app, caller, worker).await,
            invalid => invalid,
        };
        let (job_type, id) = (worker.0.to_owned(), worker.1.to_owned());
        match (checked, caller.owner()) {
            (Ok(()), Some(_)) if is_ping => charge(
                app,
                Budget::Pings(job_type, id),
                pings_per_second(app.config.get().workers.health_interval),
            ),
            (Ok(()), Some(_)) => {
                let per_second = app.config.get().limits.requests_per_second;
                charge(app, Budget::Worker(job_type, id), per_second)
            }
            (Err(error), Some(identity)) => {
                charge(app, Budget::RefusedWorkers(identity), REFUSED_WORKERS_PER_SECOND)?;
                Err(error)
            }
            (checked, None) => checked,
        }
    }

    /// Whether this is a worker of the caller.
    async fn check_own(&self, app: &App, caller: &Caller, (job_type, worker): (&str, &str)) -> Result<()> {
        check_type(caller, job_type)?;
        let key = (job_type.to_owned(), worker.to_owned());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let by = match known {
            Some(by) => by,
            None => {
                if let Some(identity) = caller.owner() {
                    charge(app, Budget::Lookups(identity), LOOKUPS_PER_SECOND)?;
                }
                let tx = app.store.begin().await?;
                let row = workers::get(&tx, &app.keys, job_type, worker).await?;
                let by = row.ok_or_else(V1Error::expired)?.registered_by;
                let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if known.len() >= MAX_CACHED {
                    known.clear();
                }
                known.insert(key, by.clone());
                by
            }
        };
        match by == caller.owner() {
            true => Ok(()),
            false => Err(V1Error::expired()),
        }
    }
}

/// Takes a request into account, if requests are limited.
fn charge(app: &App, budget: Budget, per_second: u32) -> Result<()> {
    if app.config.get().limits.requests_per_second == 0 {
        return Ok(());
    }
    app.pace.admit(budget, per_second, Instant::now()).map_err(|wait| {
        let error = V1Error::too_many(
            "this worker sends too many requests",
            "end many runs with one request; the header Retry-After has the time in s",
        );
        error.retry_after(wait)
    })
}
