//! `POST /v1/retry`: the backoffs of many jobs end at once, when what made them crash has been mended.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use turnwise_protocol::{RetriedJobs, names};
use turnwise_queue::{State as QueueState, jobs};
use turnwise_replicator::{JOB_TYPE as REPLICATION, doc_processor};
use utoipa::IntoParams;

use super::Common;
use super::error::{Result, V1Error};
use super::extract::Params;
use super::list::Place;
use crate::http::{App, answer};

/// Jobs that one request looks at; `next` tells to go on.
const MAX_LOOKED_AT: usize = 2_000;
/// Jobs that one transaction looks at.
const BATCH: usize = 100;
/// Documents in state `error` that one request looks at.
const MAX_DOCUMENTS: usize = 2_000;

/// Which jobs.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryParams {
    /// Jobs of this type.
    #[serde(rename = "type")]
    #[param(value_type = names::JobType)]
    job_type: String,
    /// Jobs of this tenant only.
    #[param(value_type = Option<names::Name>, nullable = false)]
    tenant: Option<String>,
    /// The `next` of the answer before.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_.-]{1,64}/[^\u0000-\u001f\u007f-\u009f]{0,512}$")]
    after: Option<String>,
}

/// Retry all crashing jobs of a type
///
/// Each is pending at once, and its next crash counts as the first one in a row. Delayed jobs keep their time. Of
/// replications, documents in state `error` are tried again, too: up to 2,000 of them with the first request.
#[utoipa::path(
    post, path = "/retry", tag = "jobs", operation_id = "retry_jobs", params(RetryParams),
    responses((status = 200, body = RetriedJobs, description = "How many, and whether there may be more."), Common),
)]
pub(super) async fn retry_jobs(
    State(app): State<App>,
    Params(params): Params<RetryParams>,
) -> Result<Response> {
    let RetryParams { job_type, tenant, after } = params;
    names::check_type(&job_type)?;
    if let Some(tenant) = &tenant {
        names::check_name("tenant", tenant)?;
    }
    let (tenant, job_type) = (tenant.as_deref(), &job_type);
    let mut retried = RetriedJobs { jobs: 0, documents: 0, next: None };
    let mut after = match after.as_deref().map(Place::parse).transpose()? {
        Some(place) if place.job_type == *job_type => Some(place.id),
        // One of another type says nothing of this one: it begins anew, which does no harm.
        _ => {
            if job_type == REPLICATION {
                let count = doc_processor::retry_errors(&app.store, &app.keys, tenant, MAX_DOCUMENTS);
                retried.documents = count.await? as u64;
            }
            None
        }
    };
    for _ in 0..MAX_LOOKED_AT / BATCH {
        let (app, from, now_us) = (&app, after.as_deref(), app.now_us());
        let batch = app.store.transact(|tx| async move {
            let batch = jobs::list(&tx, &app.keys, job_type, from, BATCH).await?;
            let (mut count, mut last, mut all) = (0, None, batch.len() < BATCH);
            for job in batch {
                if last.is_some() && !tx.has_room() {
                    all = false;
                    break;
                }
                let wanted =
                    job.state == QueueState::Crashing && tenant.is_none_or(|name| name == job.tenant);
                // It is read again: what it was when the page was read is nothing to act on.
                if wanted
                    && let jobs::Retried::Now = jobs::retry(&tx, &app.keys, job_type, &job.id, now_us).await?
                {
                    count += 1;
                }
                last = Some(job.id);
            }
            Ok::<_, V1Error>((count, last, all))
        });
        let (count, last, all) = batch.await?;
        retried.jobs += count;
        after = last.or(after);
        if all {
            return Ok(answer::ok(&retried));
        }
    }
    retried.next = after.map(|id| Place { job_type: job_type.clone(), id }.text());
    Ok(answer::ok(&retried))
}
