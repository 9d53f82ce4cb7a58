//! `POST /v1/retry`: retries many jobs, after the cause of their crashes or failures has been repaired.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use turnwise_command::JOB_TYPE as COMMAND;
use turnwise_protocol::{Nothing, RetriedJobs, RetriedState, names};
use turnwise_queue::{State as QueueState, jobs};
use turnwise_replicator::{JOB_TYPE as REPLICATION, doc_processor};
use utoipa::IntoParams;

use super::body::NoBody;
use super::error::{Result, V1Error};
use super::extract::Params;
use super::list::Cursor;
use super::{BadBody, Common, owned, position_text};
use crate::access::Caller;
use crate::http::{App, answer};

/// Number of jobs that one request reads. If there are more, the response has `next`.
const MAX_LOOKED_AT: usize = 2_000;
/// Number of jobs that one transaction reads.
const BATCH: usize = 100;
/// Number of documents in state `error` that one request reads.
const MAX_DOCUMENTS: usize = 2_000;

/// The jobs to retry: of a type, of a tenant, or of both.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryParams {
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    job_type: Option<String>,
    /// Only jobs of this tenant.
    #[param(value_type = Option<names::Name>, nullable = false)]
    tenant: Option<String>,
    /// Only jobs in this state.
    #[serde(default)]
    #[param(inline, nullable = false)]
    state: RetriedState,
    /// The `next` of the previous response.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_.-]{1,64}/[^\u0000-\u001f\u007f-\u009f]{0,1024}$")]
    after: Option<String>,
}

/// Retry many jobs
///
/// Retries all crashing jobs of a type, of a tenant, or of both: each becomes pending immediately, and its count of
/// consecutive crashes is reset. Or retries those that have failed or were cancelled: each runs again with its stored
/// options, and its attempts count from the start. Delayed jobs keep their time. The first request for crashing jobs
/// also retries up to 2,000 replication documents in state `error`. To run replications again that have ended, use
/// their documents or `POST /_replicate`.
#[utoipa::path(
    post, path = "/retry", tag = "jobs", operation_id = "retry_jobs", params(RetryParams),
    request_body = Nothing,
    responses(
        (status = 200, body = RetriedJobs, description = "How many jobs were retried, and whether there may be more."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: the jobs are replications that have ended."),
        BadBody, Common,
    ),
)]
pub(super) async fn retry_jobs(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<RetryParams>,
    _: NoBody,
) -> Result<Response> {
    let RetryParams { job_type, tenant, state, after } = params;
    if let Some(job_type) = &job_type {
        names::check_type(job_type)?;
    }
    if let Some(tenant) = &tenant {
        names::check_name("tenant", tenant)?;
    }
    if job_type.is_none() && tenant.is_none() {
        return Err(V1Error::bad(
            "type, tenant: at least one of them is required",
            "name the type, the tenant, or both",
        ));
    }
    let which = Which { job_type, tenant, state, caller };
    if let (Some(job_type), true) = (&which.job_type, state != RetriedState::Crashing) {
        owned::check_rerunnable(&which.caller, job_type)?;
    }
    let mut retried = RetriedJobs { jobs: 0, documents: 0, next: None };
    let after = position_text::read(&app, &which.caller, after).await?;
    let mut cursor = after.as_deref().map(Cursor::parse).transpose()?;
    // A position in another type is meaningless for this one. The listing then starts from the beginning, which is harmless.
    if which.job_type.as_ref().is_some_and(|wanted| cursor.as_ref().is_some_and(|at| at.job_type != *wanted))
    {
        cursor = None;
    }
    if cursor.is_none() && which.takes_documents() {
        let wanted = |db: &str| which.takes(db);
        let count = doc_processor::retry_errors(&app.store, &app.keys, wanted, MAX_DOCUMENTS);
        retried.documents = count.await? as u64;
    }
    for _ in 0..MAX_LOOKED_AT / BATCH {
        let at = match cursor.take() {
            Some(at) => at,
            None => match which.first(&app).await? {
                Some(first) => first,
                None => return Ok(answer::ok(&retried)),
            },
        };
        let Batch { count, last, exhausted } = batch(&app, &which, &at).await?;
        retried.jobs += count;
        cursor = match (exhausted, last) {
            (true, _) => which.type_after(&app, &at.job_type).await?,
            (false, Some(id)) => Some(Cursor { id, ..at }),
            (false, None) => Some(at),
        };
        if cursor.is_none() {
            return Ok(answer::ok(&retried));
        }
    }
    retried.next = position_text::shown(&app, &which.caller, cursor.as_ref().map(Cursor::text)).await?;
    Ok(answer::ok(&retried))
}

/// The jobs that a request selects.
struct Which {
    job_type: Option<String>,
    tenant: Option<String>,
    state: RetriedState,
    caller: Caller,
}

impl Which {
    fn takes(&self, tenant: &str) -> bool {
        self.tenant.as_ref().is_none_or(|wanted| wanted == tenant) && self.caller.writes(tenant)
    }

    fn takes_documents(&self) -> bool {
        let replications = self.job_type.as_ref().is_none_or(|job_type| job_type == REPLICATION);
        replications && self.state == RetriedState::Crashing
    }

    fn wants(&self, job: &turnwise_queue::Job) -> bool {
        let state = match self.state {
            RetriedState::Crashing => QueueState::Crashing,
            RetriedState::Failed => QueueState::Failed,
            RetriedState::Cancelled => QueueState::Cancelled,
        };
        let may_run = job.job_type != COMMAND || state == QueueState::Crashing || self.caller.commands();
        job.state() == state && may_run && self.takes(&job.tenant)
    }

    /// The position before the first job.
    async fn first(&self, app: &App) -> Result<Option<Cursor>> {
        match &self.job_type {
            Some(job_type) => Ok(Some(Cursor { job_type: job_type.clone(), id: String::new() })),
            None => next_type(app, None, self.state).await,
        }
    }

    /// The position before the first job of the next type, unless the request selects one type.
    async fn type_after(&self, app: &App, job_type: &str) -> Result<Option<Cursor>> {
        match &self.job_type {
            Some(_) => Ok(None),
            None => next_type(app, Some(job_type), self.state).await,
        }
    }
}

async fn next_type(app: &App, after: Option<&str>, state: RetriedState) -> Result<Option<Cursor>> {
    let tx = app.store.begin().await?;
    let types = jobs::types_after(&tx, &app.keys, after, 2).await?;
    let may_be = |job_type: &String| state == RetriedState::Crashing || job_type != REPLICATION;
    Ok(types.into_iter().find(may_be).map(|job_type| Cursor { job_type, id: String::new() }))
}

/// The result of one transaction.
struct Batch {
    count: u64,
    /// The last job that it read.
    last: Option<String>,
    /// Whether the type has no further jobs.
    exhausted: bool,
}

async fn batch(app: &App, which: &Which, at: &Cursor) -> Result<Batch> {
    let now_us = app.now_us();
    let after = Some(at.id.as_str()).filter(|id| !id.is_empty());
    let batch = app.store.transact(|tx| async move {
        let page = jobs::list(&tx, &app.keys, &at.job_type, after, BATCH).await?;
        let mut batch = Batch { count: 0, last: None, exhausted: page.len() < BATCH };
        for job in page {
            if batch.last.is_some() && !tx.has_room() {
                batch.exhausted = false;
                break;
            }
            if which.wants(&job) {
                // The job is read again in this transaction, because its state may have changed since the page was read.
                let retried = match which.state {
                    RetriedState::Crashing => {
                        jobs::retry(&tx, &app.keys, &at.job_type, &job.id, now_us).await?
                    }
                    _ => jobs::rerun(&tx, &app.keys, &at.job_type, &job.id, now_us).await?,
                };
                batch.count += u64::from(retried == jobs::Retried::Now);
            }
            batch.last = Some(job.id);
        }
        Ok::<_, V1Error>(batch)
    });
    batch.await
}
