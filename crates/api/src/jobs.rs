//! One job: get, wait for its end, cancel, retry, remove.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use turnwise_protocol::{
    Cancelled, DEFAULT_WAIT_MS, Job, MAX_WAIT_MS, Nothing, Prioritized, Removed, Retried, RetryJob,
    SetPriority, WaitAnswer, codes,
};
use turnwise_queue::{Job as QueueJob, State as QueueState, jobs, rerun_followers, unique};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;
use turnwise_web::answer;
use utoipa::IntoParams;

use super::add::priority_of;
use super::app::App;
use super::body::{Json, NoBody, OrNothing};
use super::error::{Result, V1Error};
use super::extract::{Call, JobPath, Params, Shown};
use super::responses::{BadBody, Common, NoJob};
use super::{builtin_types, view};

/// Get a job
#[utoipa::path(
    get, path = "/jobs/{type}/{id}", tag = "jobs", operation_id = "get_job", params(JobPath),
    responses((status = 200, body = Job, description = "The job, with the options that its type does not hide.",
        headers(("ETag" = String, description = "Its version, for `If-Match` of `PATCH`. What its worker reports does not change it."))),
        NoJob, Common),
)]
pub(super) async fn get_job(Call { app, caller, path }: Call<JobPath>) -> Result<Tagged> {
    let job = find(&app, &caller, &path.job_type, &path.id).await?;
    job.map(Tagged).ok_or_else(|| V1Error::no_job(&path.job_type, &path.id))
}

/// A job as a response with its `ETag`.
pub(super) struct Tagged(pub Job);

impl IntoResponse for Tagged {
    fn into_response(self) -> Response {
        let tag = self.0.version.as_ref().map(|version| format!("\"{version}\""));
        let response = Shown(&self.0).into_response();
        match tag {
            Some(tag) => answer::with_header(response, header::ETAG, &tag),
            None => response,
        }
    }
}

/// The row of a job, if the caller may read it.
pub(super) async fn visible(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    JobPath { job_type, id }: &JobPath,
) -> Result<QueueJob> {
    let job = caller.sees(jobs::get(tx, &app.keys, job_type, id).await?);
    job.ok_or_else(|| V1Error::no_job(job_type, id))
}

/// The job, if it exists and the caller may read it.
pub async fn find(app: &App, caller: &Caller, job_type: &str, id: &str) -> Result<Option<Job>> {
    let tx = app.store.begin().await?;
    match caller.sees(jobs::get(&tx, &app.keys, job_type, id).await?) {
        Some(job) => Ok(Some(view::whole(app, caller, &tx, job).await?)),
        None => Ok(None),
    }
}

/// The parameters of `wait`.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitParams {
    /// Longest time to wait, in ms. The server may respond earlier.
    #[serde(default = "default_wait")]
    #[param(minimum = 0, maximum = 300_000, default = 60_000)]
    timeout_ms: u64,
}

fn default_wait() -> u64 {
    DEFAULT_WAIT_MS
}

/// Wait for a job's end
///
/// Responds when the job has ended, or with its current state when the time is over. `finished` states which of the two happened.
#[utoipa::path(
    get, path = "/jobs/{type}/{id}/wait", tag = "jobs", operation_id = "wait_for_job", params(JobPath, WaitParams),
    responses((status = 200, body = WaitAnswer, description = "The job has ended, or the time is over."), NoJob, Common),
)]
pub(super) async fn wait_for_job(
    Call { app, caller, path }: Call<JobPath>,
    Params(WaitParams { timeout_ms }): Params<WaitParams>,
) -> Result<Shown<WaitAnswer>> {
    if timeout_ms > MAX_WAIT_MS {
        let reason = format!("timeout_ms: must be from 0 to {MAX_WAIT_MS}");
        return Err(V1Error::bad(reason, "repeat the request until `finished` is true"));
    }
    let key = app.keys.job(&path.job_type, &path.id);
    let timeout = Duration::from_millis(timeout_ms).min(app.max_wait());
    let mut over = timeout.is_zero();
    let mut timeout = app.store.runtime().sleep(timeout);
    loop {
        let tx = app.store.begin().await?;
        let seen = tx.get(&key).await?;
        let job = visible(&app, &caller, &tx, &path).await?;
        let finished = job.state().is_final();
        if finished || over {
            let job = view::whole(&app, &caller, &tx, job).await?;
            return Ok(Shown(WaitAnswer { finished, job }));
        }
        drop(tx);
        let changed = app.store.watch(key.clone(), seen).await?;
        tokio::select! {
            biased;
            () = app.stop.cancelled() => return Err(V1Error::stopping()),
            () = changed => {}
            () = &mut timeout => over = true,
        }
    }
}

/// Cancel a job
///
/// A waiting job ends immediately. For a running job, its worker receives the instruction to stop it. A job that has
/// ended is unchanged.
#[utoipa::path(
    post, path = "/jobs/{type}/{id}/cancel", tag = "jobs", operation_id = "cancel_job", params(JobPath),
    request_body = Nothing,
    responses(
        (status = 200, body = Cancelled, description = "The job is cancelled, is being stopped, or had already ended."),
        (status = 403, body = turnwise_protocol::Error,
            description = "`forbidden`: the replication belongs to a document."),
        NoJob, BadBody, Common,
    ),
)]
pub(super) async fn cancel_job(
    Call { app, caller, path }: Call<JobPath>,
    _: NoBody,
) -> Result<Shown<Cancelled>> {
    cancel(&app, &caller, &path).await.map(Shown)
}

/// Cancels a job.
pub async fn cancel(app: &App, caller: &Caller, path: &JobPath) -> Result<Cancelled> {
    let now_us = app.now_us();
    let cancelled = app.store.transact(|tx| async move {
        let (keys, JobPath { job_type, id }) = (&app.keys, path);
        let job = changeable(app, caller, &tx, path).await?;
        builtin_types::check_stoppable(&job)?;
        jobs::cancel(&tx, keys, job_type, id, now_us).await?;
        Ok::<_, V1Error>(Cancelled { state: state_of(app, caller, &tx, path).await? })
    });
    cancelled.await
}

/// The job, if the caller may change it.
pub(super) async fn changeable(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    path: &JobPath,
) -> Result<QueueJob> {
    let job = visible(app, caller, tx, path).await?;
    match caller.writes(&job.tenant) {
        true => Ok(job),
        false => Err(V1Error::read_only(&job.tenant)),
    }
}

/// A job's state, including the changes of this transaction.
async fn state_of(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    path: &JobPath,
) -> Result<turnwise_protocol::State> {
    Ok(view::state(&visible(app, caller, tx, path).await?))
}

/// Retry a job
///
/// A job that is crashing, delayed or blocked becomes pending immediately, and its count of consecutive crashes is
/// reset. A job that has failed or was cancelled runs again with its options, tenant, priority, locks and reasons, and
/// its attempts count from the start. A job in another state is unchanged: running, pending, completed, paused or
/// limited. To run a replication again that has ended, use its document or `POST /_replicate`: the server keeps no
/// credentials of it.
///
/// `with_dependents` retries the graph from here: the jobs that were cancelled because of its end, and those after them, wait again for what they waited
/// for. Then a job that has not failed and was not cancelled is unchanged, and the others are retried all the same. The body may be left out.
#[utoipa::path(
    post, path = "/jobs/{type}/{id}/retry", tag = "jobs", operation_id = "retry_job", params(JobPath),
    request_body = RetryJob,
    responses(
        (status = 200, body = Retried, description = "Whether the job is pending now, and its state."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: the job is a replication that has ended."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: another job has the unique key of this job."),
        NoJob, BadBody, Common,
    ),
)]
pub(super) async fn retry_job(
    Call { app, caller, path }: Call<JobPath>,
    OrNothing(RetryJob { with_dependents }): OrNothing<RetryJob>,
) -> Result<Shown<Retried>> {
    match with_dependents {
        true => retry_from(&app, &caller, &path).await.map(Shown),
        false => retry(&app, &caller, &path).await.map(Shown),
    }
}

/// The most jobs that one request retries with a job.
const MAX_DEPENDENTS: usize = 10_000;
/// The most jobs behind which one request looks for others. Those that run again already are among them.
const MAX_SEEN: usize = 100_000;

/// Retries a job, and those after it that were cancelled because of its end.
pub async fn retry_from(app: &App, caller: &Caller, path: &JobPath) -> Result<Retried> {
    let job = changeable(app, caller, &app.store.begin().await?, path).await?;
    let retried = match job.state() {
        QueueState::Failed | QueueState::Cancelled => retry(app, caller, path).await?,
        // If it waits, it goes on: this request may be repeated.
        _ => {
            Retried { retried: false, state: view::state(&job), dependents: None, refused: None, more: None }
        }
    };
    let now_us = app.now_us();
    let may = |job: &QueueJob| {
        caller.writes(&job.tenant) && builtin_types::check_rerunnable(caller, &job.job_type).is_ok()
    };
    let own = (path.job_type.clone(), path.id.clone());
    let mut seen = HashSet::from([own.clone()]);
    let mut open = VecDeque::from([(own, None)]);
    let (mut dependents, mut refused, mut more) = (0, HashSet::new(), None);
    while let Some((job, after)) = open.pop_front() {
        if dependents >= MAX_DEPENDENTS || seen.len() > MAX_SEEN {
            more = Some(true);
            break;
        }
        let (of, last): (_, &Option<(String, String)>) = ((job.0.as_str(), job.1.as_str()), &after);
        let step = app.store.transact(|tx| async move {
            rerun_followers::step(&tx, &app.keys, of, last.as_ref(), may, now_us).await
        });
        let rerun_followers::Step { followers, rerun, refused: not, next } = step.await?;
        dependents += rerun.len();
        // A job may be refused behind one dependency, and run again behind another one.
        for one in &rerun {
            refused.remove(one);
        }
        refused.extend(not.into_iter().take(MAX_DEPENDENTS.saturating_sub(refused.len())));
        let new: Vec<_> = followers.into_iter().filter(|one| seen.insert(one.clone())).collect();
        if next.is_some() {
            open.push_front((job, next));
        }
        open.extend(new.into_iter().map(|one| (one, None)));
    }
    let (dependents, refused) = (Some(dependents as u64), Some(refused.len() as u64));
    Ok(Retried { dependents, refused, more, ..retried })
}

/// Retries a job.
pub async fn retry(app: &App, caller: &Caller, path: &JobPath) -> Result<Retried> {
    let now_us = app.now_us();
    let retried = app.store.transact(|tx| async move {
        let JobPath { job_type, id } = path;
        let job = changeable(app, caller, &tx, path).await?;
        let retried = match job.state() {
            QueueState::Failed | QueueState::Cancelled => {
                builtin_types::check_rerunnable(caller, job_type)?;
                jobs::rerun(&tx, &app.keys, job_type, id, now_us).await?
            }
            // The filter or the bucket would hold the job back again immediately.
            _ if job.paused().is_some() || job.limited().is_some() => jobs::Retried::Not(job.state()),
            _ => jobs::retry(&tx, &app.keys, job_type, id, now_us).await?,
        };
        if retried == jobs::Retried::KeyTaken {
            let row = unique::row_of(&tx, &app.keys, &job).await?;
            let holder = row.map(|row| format!("job `{}` of type `{}`", row.id, row.job_type));
            return Err(V1Error::conflict(
                codes::CONFLICT,
                format!(
                    "{} has the unique key of this job",
                    holder.unwrap_or_else(|| "another job".to_owned())
                ),
                "wait until that job has given the key up, or cancel it",
            ));
        }
        let state = state_of(app, caller, &tx, path).await?;
        let retried = retried == jobs::Retried::Now;
        Ok::<_, V1Error>(Retried { retried, state, dependents: None, refused: None, more: None })
    });
    retried.await
}

/// Change a job's priority
///
/// A pending job moves to the place of its new priority immediately. Any other job takes its new place when it becomes
/// pending. A job that has ended is unchanged.
#[utoipa::path(
    put, path = "/jobs/{type}/{id}/priority", tag = "jobs", operation_id = "set_priority", params(JobPath),
    request_body = SetPriority,
    responses((status = 200, body = Prioritized, description = "Whether the job has this priority now."), NoJob, BadBody, Common),
)]
pub(super) async fn set_priority(
    Call { app, caller, path }: Call<JobPath>,
    Json(SetPriority { priority }): Json<SetPriority>,
) -> Result<Shown<Prioritized>> {
    prioritize(&app, &caller, &path, priority).await.map(Shown)
}

/// Changes a job's priority.
pub async fn prioritize(app: &App, caller: &Caller, path: &JobPath, priority: i32) -> Result<Prioritized> {
    let priority = priority_of(priority).map_err(|problem| V1Error::bad(problem, "the default is 0"))?;
    let set = app.store.transact(|tx| async move {
        let JobPath { job_type, id } = path;
        changeable(app, caller, &tx, path).await?;
        let prioritized = jobs::set_priority(&tx, &app.keys, job_type, id, priority).await?;
        let changed = matches!(prioritized, jobs::Prioritized::Set(_));
        Ok::<_, V1Error>(Prioritized { changed, state: state_of(app, caller, &tx, path).await? })
    });
    set.await
}

/// Remove a job
///
/// Removes its record: immediately if the job does not run, otherwise as soon as its worker has stopped it.
#[utoipa::path(
    delete, path = "/jobs/{type}/{id}", tag = "jobs", operation_id = "remove_job", params(JobPath),
    responses(
        (status = 200, body = Removed, description = "The job is removed."),
        (status = 202, body = Removed, description = "The job is running. It is removed when its worker has stopped it."),
        (status = 403, body = turnwise_protocol::Error,
            description = "`forbidden`: the replication belongs to a document."),
        NoJob, Common,
    ),
)]
pub(super) async fn remove_job(
    Call { app, caller, path }: Call<JobPath>,
) -> Result<(StatusCode, Shown<Removed>)> {
    let removed = remove(&app, &caller, &path).await?;
    let status = if removed.removed { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Shown(removed)))
}

/// Removes a job.
pub async fn remove(app: &App, caller: &Caller, path: &JobPath) -> Result<Removed> {
    let removed = app.store.transact(|tx| async move {
        let (keys, JobPath { job_type, id }) = (&app.keys, path);
        let job = changeable(app, caller, &tx, path).await?;
        builtin_types::check_stoppable(&job)?;
        jobs::remove(&tx, keys, job_type, id).await?;
        Ok::<_, V1Error>(!job.state().is_claimed())
    });
    Ok(Removed { removed: removed.await? })
}
