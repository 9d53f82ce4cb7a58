//! `PATCH /v1/jobs/{type}/{id}`, hold and release: changes of a job that does not run.

use axum::http::{HeaderMap, StatusCode, header};
use serde_json::value::RawValue;
use turnwise_protocol::{AddJob, EditJob, HeldJob, Job, NewJob, Nothing, codes};
use turnwise_queue::edit::{self, Edit, Released};
use turnwise_queue::secrets::{self, Secrets};
use turnwise_queue::{Job as QueueJob, JobSpec};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;

use super::add::{check_room, not_before_us, priority_of, stated};
use super::app::App;
use super::body::{Json, NoBody};
use super::error::{Result, V1Error};
use super::extract::{Call, JobPath, Shown};
use super::jobs::{Tagged, changeable};
use super::responses::{BadBody, Common, NoJob};
use super::{builtin_types, catalogue, view};

/// What a job cannot be given by an edit.
const FIXED: [&str; 11] =
    ["type", "id", "tenant", "user", "task", "tags", "after", "locks", "reason", "unique", "if_exists"];
const SEE_EDIT: &str = "an edit changes options, summary, priority, the start time and the terms; for anything else, cancel the job and add another one";

/// Change a job that does not run
///
/// Members that are left out stay as they are. A pending job keeps its place in the queue, unless its priority or its start time changes; a job that
/// is crashing starts at its new start time. Filters and limits decide again about a job that they keep out of the queue. The history states who
/// changed which members. With `If-Match`, the change applies only to the version that it names.
#[utoipa::path(
    patch, path = "/jobs/{type}/{id}", tag = "jobs", operation_id = "edit_job", request_body = EditJob,
    params(JobPath, ("If-Match" = Option<String>, Header, description = "The `ETag` of `GET`, or several: the change applies only if the job has one of these versions.")),
    responses(
        (status = 200, body = Job, description = "The job as it is now.", headers(("ETag" = String, description = "Its version."))),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: jobs of this type follow from documents, webhooks or settings."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: the job runs, or has ended, or another job has the unique key of the new options."),
        (status = 412, body = turnwise_protocol::Error, description = "`stale`: the job has another version."),
        NoJob, BadBody, Common,
    ),
)]
pub(super) async fn edit_job(
    Call { app, caller, path }: Call<JobPath>,
    headers: HeaderMap,
    body: Result<Json<EditJob>>,
) -> Result<Tagged> {
    let Json(edit) = body.map_err(fixed)?;
    change(&app, &caller, &path, edit, Match::of(&headers)).await.map(Tagged)
}

/// Says of a member that no edit changes why it is refused.
fn fixed(error: V1Error) -> V1Error {
    let (_, unknown) = error.reason.split_once("unknown field `").unwrap_or_default();
    let Some(name) = FIXED.into_iter().find(|name| unknown.split('`').next() == Some(name)) else {
        return error;
    };
    V1Error::bad(format!("{name}: cannot be changed"), SEE_EDIT)
}

/// The versions of a job that a request may change.
pub enum Match {
    /// All of them.
    Any,
    /// These.
    OneOf(Vec<String>),
}

impl Match {
    /// Those that a request names. What is no version matches none.
    fn of(headers: &HeaderMap) -> Match {
        let values = headers.get_all(header::IF_MATCH);
        if values.iter().next().is_none() {
            return Match::Any;
        }
        let texts = values.iter().filter_map(|value| value.to_str().ok());
        let mut versions = Vec::new();
        for tag in texts.flat_map(|text| text.split(',')).map(str::trim) {
            if tag == "*" {
                return Match::Any;
            }
            // A gateway that compresses answers makes tags weak.
            let tag = tag.strip_prefix("W/").unwrap_or(tag);
            versions.extend(tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).map(str::to_owned));
        }
        Match::OneOf(versions)
    }
}

/// Changes a job.
pub async fn change(
    app: &App,
    caller: &Caller,
    path: &JobPath,
    request: EditJob,
    versions: Match,
) -> Result<Job> {
    let now_us = app.now_us();
    let names = names(&request);
    if names.is_empty() {
        return Err(V1Error::bad("the body names nothing to change", SEE_EDIT));
    }
    let mut note = names.join(", ");
    if let Some(by) = caller.name() {
        note = format!("{note}; by {by}");
    }
    let commands = match path.job_type == turnwise_command::JOB_TYPE && request.options.is_some() {
        true => builtin_types::Commands::find(app).await?,
        false => builtin_types::Commands::Nowhere,
    };
    let (request, versions, note, commands) = (&request, &versions, &note, &commands);
    let changed = app.store.transact(|tx| async move {
        let mut job = changeable(app, caller, &tx, path).await?;
        builtin_types::check_editable(caller, &path.job_type)?;
        if let Match::OneOf(versions) = versions
            && !versions.contains(&job.version())
        {
            return Err(V1Error::new(
                StatusCode::PRECONDITION_FAILED,
                codes::STALE,
                "the job has changed since that version",
                "get the job again, and repeat the change if it is still right",
            ));
        }
        // A refusal for its state comes before those for what is wrong in the request.
        edit::check(&job).map_err(unchangeable)?;
        let edit = edit_of(app, &tx, &job, request, commands, now_us).await?;
        let edit = Edit { note: note.clone(), ..edit };
        edit::edit(&tx, &app.keys, &mut job, edit, now_us).await?.map_err(unchangeable)?;
        view::whole(app, caller, &tx, job).await
    });
    changed.await
}

fn unchangeable(reason: &'static str) -> V1Error {
    V1Error::conflict(
        codes::CONFLICT,
        format!("the job cannot be changed: {reason}"),
        "change a job while it waits; `if_exists: again` runs one again with changes",
    )
}

/// The members that a request names.
fn names(request: &EditJob) -> Vec<&'static str> {
    let EditJob {
        options,
        summary,
        priority,
        not_before_us,
        delay_ms,
        max_attempts,
        backoff,
        jitter,
        on_lost,
        max_snoozes,
        timeout_ms,
        heartbeat_timeout_ms,
        start_within_ms,
        keep_ms,
    } = request;
    let all = [
        ("options", options.is_some()),
        ("summary", summary.is_some()),
        ("priority", priority.is_some()),
        ("not_before_us", not_before_us.is_some()),
        ("delay_ms", delay_ms.is_some()),
        ("max_attempts", max_attempts.is_some()),
        ("backoff", backoff.is_some()),
        ("jitter", jitter.is_some()),
        ("on_lost", on_lost.is_some()),
        ("max_snoozes", max_snoozes.is_some()),
        ("timeout_ms", timeout_ms.is_some()),
        ("heartbeat_timeout_ms", heartbeat_timeout_ms.is_some()),
        ("start_within_ms", start_within_ms.is_some()),
        ("keep_ms", keep_ms.is_some()),
    ];
    all.into_iter().filter_map(|(name, is_named)| is_named.then_some(name)).collect()
}

/// The job's spec without the members that a request puts back.
fn put_back(request: &EditJob, spec: &JobSpec) -> JobSpec {
    let mut spec = spec.clone();
    let is_null = |member: Option<bool>| member == Some(true);
    macro_rules! clear {
        ($($member:ident => $field:expr;)+) => {
            $(if is_null(request.$member.as_ref().map(Option::is_none)) { $field = Default::default(); })+
        };
    }
    clear! {
        max_attempts => spec.max_attempts;
        backoff => spec.retry.backoff;
        jitter => spec.retry.jitter;
        on_lost => spec.retry.on_lost;
        max_snoozes => spec.retry.max_snoozes;
        timeout_ms => spec.timeouts.run_us;
        heartbeat_timeout_ms => spec.timeouts.heartbeat_us;
        start_within_ms => spec.lifetime.start_within_us;
        keep_ms => spec.lifetime.keep_us;
    }
    if is_null(request.summary.as_ref().map(Option::is_none)) {
        spec.summary = JobSpec::default().summary;
    }
    spec
}

/// What a request makes of a job, within the bounds of jobs that are added.
async fn edit_of(
    app: &App,
    tx: &Transaction,
    job: &QueueJob,
    request: &EditJob,
    commands: &builtin_types::Commands<'_>,
    now_us: i64,
) -> Result<Edit> {
    let of_add = AddJob {
        summary: request.summary.clone().flatten(),
        delay_ms: request.delay_ms.flatten(),
        not_before_us: request.not_before_us.flatten(),
        max_attempts: request.max_attempts.flatten(),
        backoff: request.backoff.clone().flatten(),
        jitter: request.jitter.flatten(),
        on_lost: request.on_lost.flatten(),
        max_snoozes: request.max_snoozes.flatten(),
        timeout_ms: request.timeout_ms.flatten(),
        heartbeat_timeout_ms: request.heartbeat_timeout_ms.flatten(),
        start_within_ms: request.start_within_ms.flatten(),
        keep_ms: request.keep_ms.flatten(),
        ..AddJob::default()
    };
    let of_add = NewJob::new(job.job_type.clone(), of_add);
    let start_us = not_before_us(&of_add, now_us)?;
    let is_moved = request.not_before_us.is_some() || request.delay_ms.is_some();
    let priority = request.priority.map(|priority| priority_of(priority.unwrap_or(0))).transpose();
    let priority = priority.map_err(V1Error::out_of_bounds)?;
    let mut spec = stated(&of_add, put_back(request, &job.spec))?;
    let options = request.options.clone().map(|options| options.unwrap_or_else(none));
    if let Some(options) = &options {
        builtin_types::check_addable(commands, &job.job_type, Some(options))?;
        check_hidden(app, tx, &job.job_type, options).await?;
    }
    let mut checked =
        turnwise_queue::NewJob::new(&job.job_type, &job.id, options.clone().unwrap_or_else(none));
    checked.priority = priority;
    checked.spec = spec.clone();
    if options.is_some() && app.catalogue.line(&job.job_type).is_some() {
        spec.locks = catalogue::derived(&checked, &app.catalogue, &app.store.limits());
        checked.spec.locks.clone_from(&spec.locks);
    }
    check_room(app, &checked, "")?;
    let start_us = is_moved.then(|| start_us.unwrap_or(now_us));
    Ok(Edit { spec, options, priority, start_us, note: String::new() })
}

/// The options of a job that states none.
fn none() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("it is JSON")
}

/// Refuses options in which a hidden member is as it was shown: the job would get the asterisks in place of the secret.
pub(super) async fn check_hidden(
    app: &App,
    tx: &Transaction,
    job_type: &str,
    options: &RawValue,
) -> Result<()> {
    let hidden = Secrets::of_type(tx, &app.keys, job_type).await?;
    match hidden.hide_some() && options.get().contains(&format!("\"{}\"", secrets::HIDDEN)) {
        true => Err(V1Error::bad(
            format!("options: `{}` stands for a member that the type hides", secrets::HIDDEN),
            "state the value of each hidden member: it replaces the options as a whole",
        )),
        false => Ok(()),
    }
}

/// Hold a job
///
/// Takes a job that waits out of the queue until it is released. A job that is pending, delayed, crashing, limited or paused by a filter can be held. One that is
/// blocked goes on waiting for its dependencies, and is held then. What an operator holds, only an operator releases, also if the job is cancelled and retried meanwhile.
#[utoipa::path(
    post, path = "/jobs/{type}/{id}/hold", tag = "jobs", operation_id = "hold_job", params(JobPath),
    request_body = Nothing,
    responses(
        (status = 200, body = HeldJob, description = "The job is held."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: jobs of this type follow from documents, webhooks or settings."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: the job runs, or has ended."),
        NoJob, BadBody, Common,
    ),
)]
pub(super) async fn hold_job(Call { app, caller, path }: Call<JobPath>, _: NoBody) -> Result<Shown<HeldJob>> {
    hold(&app, &caller, &path).await.map(Shown)
}

/// Holds a job.
pub async fn hold(app: &App, caller: &Caller, path: &JobPath) -> Result<HeldJob> {
    let now_us = app.now_us();
    let held = app.store.transact(|tx| async move {
        let mut job = changeable(app, caller, &tx, path).await?;
        builtin_types::check_editable(caller, &path.job_type)?;
        let done = edit::hold(&tx, &app.keys, &mut job, builtin_types::holder(caller), caller.name(), now_us)
            .await?;
        done.map_err(|reason| {
            V1Error::conflict(
                codes::CONFLICT,
                format!("the job cannot be held: {reason}"),
                "hold a job while it waits",
            )
        })?;
        Ok::<_, V1Error>(held_job(&job))
    });
    held.await
}

/// Release a job
///
/// Returns a held job to its place in the queue, or delays it until its time. A job that is not held is unchanged.
#[utoipa::path(
    post, path = "/jobs/{type}/{id}/release", tag = "jobs", operation_id = "release_job", params(JobPath),
    request_body = Nothing,
    responses(
        (status = 200, body = HeldJob, description = "No one holds the job. A filter may pause it."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: an operator holds the job."),
        NoJob, BadBody, Common,
    ),
)]
pub(super) async fn release_job(
    Call { app, caller, path }: Call<JobPath>,
    _: NoBody,
) -> Result<Shown<HeldJob>> {
    release(&app, &caller, &path).await.map(Shown)
}

/// Releases a job.
pub async fn release(app: &App, caller: &Caller, path: &JobPath) -> Result<HeldJob> {
    let now_us = app.now_us();
    let released = app.store.transact(|tx| async move {
        let mut job = changeable(app, caller, &tx, path).await?;
        let by = caller.name();
        match edit::release(&tx, &app.keys, &mut job, builtin_types::holder(caller), by, now_us).await? {
            Released::Now | Released::NotHeld => Ok(held_job(&job)),
            Released::ByOperator => {
                Err(V1Error::forbidden("an operator holds this job", "ask an operator to release it"))
            }
        }
    });
    released.await
}

fn held_job(job: &QueueJob) -> HeldJob {
    HeldJob { state: view::state(job), paused_by: job.paused_by().map(str::to_owned) }
}
