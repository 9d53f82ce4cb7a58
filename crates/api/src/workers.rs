//! `/v1/workers…`: the protocol of external workers. `turnwise_worker::External` implements the rules.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::value::RawValue;
use turnwise_protocol::{
    Accept, Accepted, AcceptedJob, Answer, EndRuns, EndState, Ended, EndedRun, EndedRuns, Fail, FailRun,
    Finish, FinishRun, JobGroup, Left, MAX_CLAIM, MAX_DELAY_MS, MAX_ENDS, MAX_ENDS_BODY_BYTES,
    MAX_MEDIA_TYPE_BYTES, MAX_REASON_BYTES, MAX_SLOTS, MAX_TIME_US, MAX_TIMEOUT_MS, MAX_TRACE_BYTES,
    MAX_WAIT_MS, NewLogLine, Nothing, Pinged, Register, Registered, Release, ReleaseRun, Snooze, SnoozeRun,
    TaskTerms, Update, Updated, codes, names,
};
use turnwise_queue::claims::Report;
use turnwise_queue::rates::MAX_PAUSE_OF_RUN_MS;
use turnwise_queue::tasks::KnownTasks;
use turnwise_queue::{
    Error as QueueError, Job, JobResult, Mode, RunError, StatedTerms, Terms, claims, workers,
};
use turnwise_worker::{ExternalEnd, Given, Registration, RunEnd, Wanted};

use super::app::App;
use super::body::{Json, NoBody};
use super::error::{Result, V1Error};
use super::extract::{Call, Frequent, RunPath, Shown, TypePath, WorkerPath, check_stated};
use super::responses::{BadBody, Common, Membership, NoWorker};
use super::{builtin_types, given, modes, output, quota, schedules, types, view, workers_of};

/// Maximum total size of the options and the inputs in one response with jobs, in bytes. A single job's options may be larger.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Register a worker
///
/// Registers a worker for jobs of one type. From now on the worker pings at the interval of the response. The server
/// removes a worker without a ping for the health timeout, and other workers get its jobs. A worker that was removed
/// registers again, with a new id.
#[utoipa::path(
    post, path = "/workers/{type}", tag = "workers", operation_id = "register_worker",
    params(TypePath), request_body = Register,
    responses(
        (status = 201, body = Registered, description = "The worker is registered."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: the type belongs to the server."),
        BadBody, Common,
    ),
)]
pub(super) async fn register(
    Call { app, caller, path: TypePath { job_type } }: Call<TypePath>,
    Json(Register { name, slots, tasks, task_slots, task_terms }): Json<Register>,
) -> Result<(StatusCode, Shown<Registered>)> {
    builtin_types::check_workable(&job_type)?;
    workers_of::check_type(&caller, &job_type)?;
    check_stated(&name, |name| names::check_name("name", name))?;
    check_range("slots", slots, 1, MAX_SLOTS)?;
    let tasks = known_tasks(tasks, &task_slots)?;
    let task_terms = declared(tasks.as_ref(), task_terms)?;
    if !task_terms.is_empty() && workers_of::tenants(&caller, &job_type).is_some() {
        return Err(V1Error::forbidden(
            "task_terms: hold for the jobs of all tenants, and this identity runs only those of some",
            "leave them out, and let an operator state them (PUT /v1/types/{type})",
        ));
    }
    quota::admit_worker(&app, &caller, &job_type).await?;
    let registered_by = caller.owner();
    let registration = Registration { name, slots, tasks, task_terms, registered_by };
    let worker = app.external.register_for(&job_type, registration).await?;
    let config = app.config.get();
    let answer = Registered {
        worker: worker.id,
        ping_interval_ms: ms(config.workers.health_interval),
        health_timeout_ms: ms(config.workers.health_timeout),
    };
    Ok((StatusCode::CREATED, Shown(answer)))
}

/// The tasks that a worker states, each with the most jobs of it.
fn known_tasks(tasks: Option<Vec<String>>, slots: &BTreeMap<String, usize>) -> Result<Option<KnownTasks>> {
    let Some(tasks) = tasks else {
        return match slots.is_empty() {
            true => Ok(None),
            false => Err(V1Error::bad(
                "task_slots: is given without `tasks`",
                "list all tasks that the worker knows as `tasks`",
            )),
        };
    };
    if let Some(unknown) = slots.keys().find(|task| !tasks.contains(task)) {
        return Err(V1Error::bad(
            format!("task_slots: `{unknown}` is not among the `tasks`"),
            "list all tasks that the worker knows as `tasks`",
        ));
    }
    let known = tasks.into_iter().map(|task| {
        let most = slots.get(&task).copied();
        if let Some(most) = most {
            check_range("task_slots", most, 1, MAX_SLOTS)?;
        }
        Ok((task, u32::try_from(most.unwrap_or(0)).unwrap_or(u32::MAX)))
    });
    known.collect::<Result<KnownTasks>>().map(Some)
}

/// The terms of tasks that a worker declares.
fn declared(
    tasks: Option<&KnownTasks>,
    terms: BTreeMap<String, TaskTerms>,
) -> Result<BTreeMap<String, StatedTerms>> {
    if let Some(unknown) = terms.keys().find(|task| !tasks.is_some_and(|tasks| tasks.contains_key(*task))) {
        return Err(V1Error::bad(
            format!("task_terms: `{unknown}` is not among the `tasks`"),
            "list all tasks that the worker knows as `tasks`",
        ));
    }
    let stated = |(task, terms)| {
        let terms = types::stated(terms).map_err(|error| error.at(&format!("task_terms.{task}.")))?;
        Ok((task, terms))
    };
    terms.into_iter().map(stated).collect()
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn check_range<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: T,
    least: T,
    most: T,
) -> Result<()> {
    if (&least..=&most).contains(&&value) {
        return Ok(());
    }
    Err(V1Error::out_of_bounds(format!("{field}: must be from {least} to {most}")))
}

/// Send a heartbeat
///
/// The response lists the jobs that the worker must stop, and states whether it gets new jobs.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/ping", tag = "workers", operation_id = "ping", params(WorkerPath),
    request_body = Nothing,
    responses((status = 200, body = Pinged, description = "The worker is registered, and its heartbeat is recorded."), NoWorker, Membership, BadBody, Common),
)]
pub(super) async fn ping(Call { app, path, .. }: Call<WorkerPath>, _: NoBody) -> Result<Shown<Pinged>> {
    let pinged = app.external.ping(&path.job_type, &path.worker).await.map_err(of_member)?;
    if pinged.mode == Mode::Drain {
        // Its request for jobs gets none any more.
        app.accepting.end_wait(&format!("{}/{}", path.job_type, path.worker));
    }
    Ok(Shown(Pinged { cancel: pinged.stop, mode: modes::shown(pinged.mode) }))
}

/// Request jobs
///
/// If an earlier response was lost, this one first returns the jobs that the worker already holds under claims above
/// `received`, at most 10 at a time. Otherwise the worker claims new jobs. If there are none, the request waits for up
/// to `wait_ms`. `ends` are recorded before that; a request with ends does not wait.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/accept", tag = "workers", operation_id = "accept",
    params(WorkerPath), request_body = Accept,
    responses(
        (status = 200, body = Accepted, description = "The jobs, by claim. Empty if no job was available in time."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`superseded`: a later request of the same worker has replaced this one."),
        NoWorker, Membership, BadBody, Common,
    ),
)]
pub(super) async fn accept(
    Call { app, caller, path: WorkerPath { job_type, worker } }: Call<WorkerPath>,
    Json(Accept { received, limit, wait_ms, ends }): Json<Accept, MAX_ENDS_BODY_BYTES>,
) -> Result<Frequent<Accepted>> {
    check_range("received", received, 0, MAX_CLAIM)?;
    check_range("limit", limit, 1, MAX_SLOTS)?;
    check_range("wait_ms", wait_ms, 0, MAX_WAIT_MS)?;
    let ends = run_ends(&app, "ends.", ends)?;
    let wait_ms = if ends.is_empty() { wait_ms } else { 0 };
    let ended = end_all(&app, &job_type, &worker, &ends).await?;
    let leave = app.stop.child_token();
    // The client is gone when this guard is dropped. Claims in progress complete nevertheless, and the next request finds them.
    let _gone = leave.clone().drop_guard();
    let tenants = workers_of::tenants(&caller, &job_type);
    let accepting = tokio::spawn({
        let (app, leave) = (app.clone(), leave.clone());
        let (job_type, worker) = (job_type.clone(), worker.clone());
        async move {
            let _permit = app.accepting.acquire(format!("{job_type}/{worker}"), &leave).await;
            let wait = Duration::from_millis(wait_ms).min(app.max_wait());
            app.external.accept(&job_type, &worker, Wanted { received, limit, wait, tenants }, &leave).await
        }
    });
    let accepted = accepting.await.map_err(|error| V1Error::internal(&error))?;
    let Given { jobs, mode } = accepted.map_err(of_member)?;
    if jobs.is_empty() && ended.is_empty() && app.stop.is_cancelled() {
        return Err(V1Error::stopping());
    }
    let mode = match jobs.is_empty() && leave.is_cancelled() {
        // A ping has ended the wait, or a later request.
        true => workers::mode(&app.store.begin().await?, &app.keys, &job_type, &worker).await.unwrap_or(mode),
        false => mode,
    };
    if jobs.is_empty() && ended.is_empty() && leave.is_cancelled() && mode != Mode::Drain {
        return Err(V1Error::new(
            StatusCode::CONFLICT,
            codes::SUPERSEDED,
            "a later request of this worker has replaced this one",
            "send one request for jobs at a time; to run more jobs, register with more slots",
        ));
    }
    // Jobs that do not fit have claims above the highest one in this response, so the next request returns them.
    let mut bytes = 0;
    let mut fitting = Vec::with_capacity(jobs.len());
    let mut inputs = BTreeMap::new();
    for accepted in jobs {
        bytes += accepted.options.get().len();
        if !accepted.job.inputs.is_empty() {
            let given = given::of_run(&app, &app.store.begin().await?, &accepted.job).await?;
            bytes += serde_json::to_vec(&given).map_or(0, |json| json.len());
            inputs.insert(accepted.claim, given);
        }
        if bytes > MAX_ANSWER_BYTES && !fitting.is_empty() {
            break;
        }
        fitting.push(accepted);
    }
    let mut of_schedules = schedules::of_runs(&app, fitting.iter().map(|accepted| &accepted.job)).await?;
    let jobs = fitting.into_iter().map(|turnwise_worker::Accepted { job, options, claim }| {
        let Terms { timeouts, max_attempts, .. } = job.terms();
        let traceparent = app.spans.of_run(&job).map(|context| context.to_string());
        let job = job.into_fields();
        AcceptedJob {
            schedule: of_schedules.remove(&job.id),
            inputs: inputs.remove(&claim).unwrap_or_default(),
            traceparent,
            group: job.spec.group.map(|group| JobGroup { name: group.name, index: group.index }),
            callback: job.spec.callback.map(view::shown_callback),
            timeout_ms: view::ms(timeouts.run_us),
            heartbeat_timeout_ms: view::ms(timeouts.heartbeat_us),
            id: job.id,
            claim,
            tenant: job.spec.tenant,
            user: job.spec.user,
            task: job.spec.task,
            attempt: job.attempts.saturating_add(1),
            max_attempts,
            options,
            summary: job.spec.summary,
            info: job.info,
        }
    });
    Ok(Frequent(Accepted { ended, jobs: jobs.collect(), mode: modes::shown(mode) }))
}

/// Report progress
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/jobs/{id}/update", tag = "workers", operation_id = "update",
    params(RunPath), request_body = Update,
    responses((status = 200, body = Updated, description = "What the worker must do next."), super::responses::LostClaim, NoWorker,
        Membership, BadBody, Common),
)]
pub(super) async fn update(
    Call { app, path, .. }: Call<RunPath>,
    Json(Update { claim, info, log, rate_pause_ms }): Json<Update>,
) -> Result<Shown<Updated>> {
    check_range("claim", claim, 0, MAX_CLAIM)?;
    let log = output::log_lines(&app, log)?;
    let report = Report { log: &log, ..Report::of(info.as_deref()) };
    if let Some(for_ms) = rate_pause_ms {
        check_range("rate_pause_ms", for_ms, 0, MAX_PAUSE_OF_RUN_MS)?;
        let paused =
            app.external.pause_rates(&path.job_type, &path.worker, &path.id, claim, for_ms * 1_000).await;
        if let Err(error) = paused {
            return Err(refused(&app, &path, error).await);
        }
    }
    let updated = app.external.update(&path.job_type, &path.worker, &path.id, claim, report).await;
    let answer = match updated {
        Ok(claims::Answer::Continue) => Answer::Continue,
        Ok(claims::Answer::Cancel) => Answer::Cancel,
        Err(error) => return Err(refused(&app, &path, error).await),
    };
    Ok(Shown(Updated { answer }))
}

/// Finish a job
///
/// The job has completed, with a result. Repeat the request until it gets a response: finishing is idempotent.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/jobs/{id}/finish", tag = "workers", operation_id = "finish",
    params(RunPath), request_body = Finish,
    responses((status = 200, body = Ended, description = "The end is recorded."), super::responses::LostClaim, NoWorker, Membership,
        BadBody, Common),
)]
pub(super) async fn finish(
    call: Call<RunPath>,
    Json(body): Json<Finish, MAX_ENDS_BODY_BYTES>,
) -> Result<Frequent<Ended>> {
    let Finish { claim, result, data, media_type, info, log } = body;
    end(call, claim, completed(result, data, media_type)?, info, log).await
}

/// Fail a job
///
/// The run has ended with an error. Repeat the request until it gets a response.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/jobs/{id}/fail", tag = "workers", operation_id = "fail",
    params(RunPath), request_body = Fail,
    responses((status = 200, body = Ended, description = "The end is recorded."), super::responses::LostClaim, NoWorker, Membership,
        BadBody, Common),
)]
pub(super) async fn fail(call: Call<RunPath>, Json(body): Json<Fail>) -> Result<Frequent<Ended>> {
    let Fail { claim, reason, class, trace, retry, retry_after_ms, info, log } = body;
    end(call, claim, failed((reason, class, trace), retry, retry_after_ms)?, info, log).await
}

/// Put a job off
///
/// The handler has found that it is too early: the job is delayed, and no attempt is counted. A job that is put off more often than
/// its `max_snoozes` fails. Repeat the request until it gets a response.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/jobs/{id}/snooze", tag = "workers", operation_id = "snooze",
    params(RunPath), request_body = Snooze,
    responses((status = 200, body = Ended, description = "The end is recorded."), super::responses::LostClaim, NoWorker, Membership,
        BadBody, Common),
)]
pub(super) async fn snooze(call: Call<RunPath>, Json(body): Json<Snooze>) -> Result<Frequent<Ended>> {
    let Snooze { claim, until_us, for_ms, info, log } = body;
    end(call, claim, snoozed(until_us, for_ms)?, info, log).await
}

/// Give a job back
///
/// The run ended without a result and without an error: the job becomes pending, or cancelled if its user has cancelled it.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/jobs/{id}/release", tag = "workers", operation_id = "release",
    params(RunPath), request_body = Release,
    responses((status = 200, body = Ended, description = "The end is recorded."), super::responses::LostClaim, NoWorker, Membership,
        BadBody, Common),
)]
pub(super) async fn release(call: Call<RunPath>, Json(body): Json<Release>) -> Result<Frequent<Ended>> {
    let Release { claim, info, log } = body;
    end(call, claim, ExternalEnd::Released, info, log).await
}

/// End many runs
///
/// Each end has the effect of a request `finish`, `fail`, `snooze` or `release`, and its own result. The server records all of them
/// in one transaction if the store allows it. Repeat the request until it gets a response.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/end", tag = "workers", operation_id = "end_runs",
    params(WorkerPath), request_body = EndRuns,
    responses((status = 200, body = EndedRuns, description = "The result of each end."), NoWorker, Membership, BadBody, Common),
)]
pub(super) async fn end_runs(
    Call { app, path, .. }: Call<WorkerPath>,
    Json(ends): Json<EndRuns, MAX_ENDS_BODY_BYTES>,
) -> Result<Frequent<EndedRuns>> {
    let ends = run_ends(&app, "", ends)?;
    Ok(Frequent(EndedRuns { ended: end_all(&app, &path.job_type, &path.worker, &ends).await? }))
}

/// The end of a run with a result: JSON, or bytes of a media type.
fn completed(
    result: Option<Box<RawValue>>,
    data: Option<String>,
    media_type: Option<String>,
) -> Result<ExternalEnd> {
    let null = || RawValue::from_string("null".to_owned()).expect("it is JSON");
    let Some(data) = data else {
        return match media_type {
            None => Ok(ExternalEnd::completed(result.unwrap_or_else(null))),
            Some(_) => Err(V1Error::bad(
                "media_type: is given without `data`",
                "send the bytes in base64 as `data`; a `result` is JSON",
            )),
        };
    };
    if result.is_some() {
        return Err(V1Error::bad("data: is given beside `result`", "send one of them"));
    }
    let bytes = BASE64_STANDARD.decode(data).map_err(|error| {
        V1Error::bad(format!("data: is not base64: {error}"), "encode the bytes in base64, with padding")
    })?;
    let media_type = media_type.unwrap_or_else(|| "application/octet-stream".to_owned());
    let is_one = media_type.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty())
        && media_type.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if media_type.len() > MAX_MEDIA_TYPE_BYTES || !is_one {
        let problem = format!("media_type: must be a media type of at most {MAX_MEDIA_TYPE_BYTES} bytes");
        return Err(V1Error::bad(problem, "for example image/png"));
    }
    Ok(ExternalEnd::Completed(JobResult::Bytes { media_type, bytes: bytes.into() }))
}

/// Which error a run ended with: its message, its class, and its trace.
type StatedError = (String, Option<String>, Option<String>);

fn failed(
    (message, class, trace): StatedError,
    retry: bool,
    retry_after_ms: Option<u64>,
) -> Result<ExternalEnd> {
    let parts = [
        ("reason", Some(&message), MAX_REASON_BYTES),
        ("class", class.as_ref(), MAX_REASON_BYTES),
        ("trace", trace.as_ref(), MAX_TRACE_BYTES),
    ];
    for (name, text, most) in parts {
        let bytes = text.map_or(0, String::len);
        if bytes > most {
            let problem = format!("{name}: has {bytes} bytes; at most {most} are allowed");
            return Err(V1Error::bad(problem, "send its beginning: the server keeps less"));
        }
    }
    let class = class.filter(|class| !class.is_empty());
    let error = RunError { message, class, trace: trace.filter(|trace| !trace.is_empty()) };
    if !retry {
        return Ok(ExternalEnd::Failed(error));
    }
    let retry_after_us = retry_after_ms.map(|ms| us("retry_after_ms", ms, MAX_TIMEOUT_MS)).transpose()?;
    Ok(ExternalEnd::Crashed { error, retry_after_us })
}

fn snoozed(until_us: Option<i64>, for_ms: Option<u64>) -> Result<ExternalEnd> {
    let until_us = until_us.unwrap_or(0);
    if !(0..=MAX_TIME_US).contains(&until_us) {
        return Err(V1Error::out_of_bounds(format!(
            "until_us: must be from 0 to {MAX_TIME_US} (the year 9999)"
        )));
    }
    let for_us = us("for_ms", for_ms.unwrap_or(0), MAX_DELAY_MS)?;
    Ok(ExternalEnd::Snoozed { until_us, for_us })
}

/// A time of at most `most` ms, in µs.
fn us(member: &str, ms: u64, most: u64) -> Result<i64> {
    match i64::try_from(ms) {
        Ok(ms) if ms.unsigned_abs() <= most => Ok(ms * 1_000),
        _ => Err(V1Error::out_of_bounds(format!("{member}: must be from 0 to {most}"))),
    }
}

/// The ends of a request, in the order of their results. `place` names them in errors.
fn run_ends(
    app: &App,
    place: &str,
    EndRuns { finish, fail, snooze, release }: EndRuns,
) -> Result<Vec<RunEnd>> {
    let lens = [
        ("finish", finish.len()),
        ("fail", fail.len()),
        ("snooze", snooze.len()),
        ("release", release.len()),
    ];
    for (kind, ends) in lens {
        if ends > MAX_ENDS {
            let reason = format!("{place}{kind}: has {ends} ends; at most {MAX_ENDS} are allowed");
            return Err(V1Error::bad(reason, "split them into several requests"));
        }
    }
    let run = |id: String, claim: u64, end: Result<ExternalEnd>, info, log| -> Result<RunEnd> {
        let log = output::log_lines(app, log)?;
        Ok(RunEnd { id, claim, end: end?, info, log })
    };
    let finish = finish.into_iter().map(|FinishRun { id, claim, result, data, media_type, info, log }| {
        run(id, claim, completed(result, data, media_type), info, log)
    });
    let fail = fail.into_iter().map(
        |FailRun { id, claim, reason, class, trace, retry, retry_after_ms, info, log }| {
            run(id, claim, failed((reason, class, trace), retry, retry_after_ms), info, log)
        },
    );
    let snooze = snooze.into_iter().map(|SnoozeRun { id, claim, until_us, for_ms, info, log }| {
        run(id, claim, snoozed(until_us, for_ms), info, log)
    });
    let release = release
        .into_iter()
        .map(|ReleaseRun { id, claim, info, log }| run(id, claim, Ok(ExternalEnd::Released), info, log));
    let finish = finish.enumerate().map(|(n, run)| (("finish", n), run));
    let fail = fail.enumerate().map(|(n, run)| (("fail", n), run));
    let snooze = snooze.enumerate().map(|(n, run)| (("snooze", n), run));
    let release = release.enumerate().map(|(n, run)| (("release", n), run));
    let all = finish.chain(fail).chain(snooze).chain(release);
    let checked = all.map(|((kind, n), run)| {
        let checked = run.and_then(|run| {
            names::check_id(&run.id)?;
            check_range("claim", run.claim, 0, MAX_CLAIM)?;
            Ok(run)
        });
        checked.map_err(|error| error.at(&format!("{place}{kind}[{n}].")))
    });
    checked.collect()
}

async fn end_all(app: &App, job_type: &str, worker: &str, ends: &[RunEnd]) -> Result<Vec<EndedRun>> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    let results = app.external.end_all(job_type, worker, ends).await?;
    let is_halted = results.iter().any(|result| matches!(result, Err(QueueError::Halt)));
    if is_halted && !is_member(app, job_type, worker).await {
        return Err(V1Error::expired());
    }
    let ended = ends.iter().zip(results).map(|(RunEnd { claim, .. }, result)| {
        let (state, error) = match result {
            Ok(job) => (Some(end_state(job)), None),
            Err(error) => (None, Some(V1Error::from(error).into())),
        };
        EndedRun { claim: *claim, state, error }
    });
    Ok(ended.collect())
}

async fn end(
    Call { app, path, .. }: Call<RunPath>,
    claim: u64,
    end: ExternalEnd,
    info: Option<Box<RawValue>>,
    log: Vec<NewLogLine>,
) -> Result<Frequent<Ended>> {
    check_range("claim", claim, 0, MAX_CLAIM)?;
    let run = RunEnd { id: path.id.clone(), claim, end, info, log: output::log_lines(&app, log)? };
    match app.external.end_run(&path.job_type, &path.worker, run).await {
        Ok(job) => Ok(Frequent(Ended { state: end_state(job) })),
        Err(error) => Err(refused(&app, &path, error).await),
    }
}

fn end_state(job: Option<Job>) -> EndState {
    job.map_or(EndState::Removed, |job| view::state(&job).into())
}

/// The error of a request that is about no claim: who must halt is not registered.
fn of_member(error: QueueError) -> V1Error {
    match error {
        QueueError::Halt => V1Error::expired(),
        error => error.into(),
    }
}

/// Whether the worker has lost only this claim, or its registration.
pub(super) async fn refused(app: &App, path: &RunPath, error: QueueError) -> V1Error {
    match error {
        QueueError::Halt if !is_member(app, &path.job_type, &path.worker).await => V1Error::expired(),
        error => error.into(),
    }
}

/// Whether a worker is registered, as far as the store can be read.
async fn is_member(app: &App, job_type: &str, worker: &str) -> bool {
    let member = async {
        let tx = app.store.begin().await?;
        workers::get(&tx, &app.keys, job_type, worker).await
    };
    !matches!(member.await, Ok(None))
}

/// Leave
///
/// A clean shutdown: the worker is no longer registered, and the jobs that it still holds become pending. The request
/// is idempotent.
#[utoipa::path(
    post, path = "/workers/{type}/{worker}/leave", tag = "workers", operation_id = "leave", params(WorkerPath),
    request_body = Nothing,
    responses((status = 200, body = Left, description = "The worker has left."), NoWorker, BadBody, Common),
)]
pub(super) async fn leave(Call { app, path, .. }: Call<WorkerPath>, _: NoBody) -> Result<Shown<Left>> {
    remove(&app, &path.job_type, &path.worker).await.map(Shown)
}

/// Removes an external worker. The jobs that it still holds become pending.
pub async fn remove(app: &App, job_type: &str, worker: &str) -> Result<Left> {
    match app.external.leave(job_type, worker).await {
        Ok(()) => Ok(Left { left: true }),
        Err(QueueError::Halt) => {
            Err(V1Error::forbidden("this worker is a part of a server", "it leaves when that server stops"))
        }
        Err(error) => Err(error.into()),
    }
}
