//! Whose worker sends a request: the identity that has registered it.
//!
//! A worker's id is no secret: lists and jobs show it. So a request of a worker must come from the identity that registered
//! the worker. For any other identity, the worker does not exist.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use turnwise_queue::workers;
use turnwise_worker::TenantFilter;

use super::error::{Result, V1Error};
use crate::access::Caller;
use crate::http::App;

/// The most workers that are cached.
const MAX_CACHED: usize = 10_000;

/// The identities that have registered workers, by type and id. No id is used twice, so an entry is never wrong.
#[derive(Default)]
pub(crate) struct RegisteredBy(Mutex<HashMap<(String, String), Option<String>>>);

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
    /// Whether the caller may send requests of this worker.
    pub(super) async fn check(&self, app: &App, caller: &Caller, job_type: &str, worker: &str) -> Result<()> {
        if caller.operates() {
            return Ok(());
        }
        check_type(caller, job_type)?;
        let key = (job_type.to_owned(), worker.to_owned());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let by = match known {
            Some(by) => by,
            None => {
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
        match by == caller.name() {
            true => Ok(()),
            false => Err(V1Error::expired()),
        }
    }
}
