//! `/v1/schedules`: jobs that the server adds again and again.
//!
//! These routes write the rows of schedules. The server makes the fires (`turnwise_worker::schedules`).

mod template;
mod view;

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use turnwise_calendar::{Calendar, zone_data};
use turnwise_command::JOB_TYPE as COMMAND;
use turnwise_protocol::schedules::check_schedule_name;
use turnwise_protocol::{
    Backfill, Backfilled, DEFAULT_PREVIEW, FiredSchedule, IfExists, MAX_BACKFILL, MAX_PREVIEW, MAX_TIME_US,
    Nothing, PreviewSchedule, PutSchedule, RemovedSchedule, RunSchedule, Schedule, SchedulePreview,
    Schedules, When, codes, names,
};
use turnwise_queue::schedules::{self as rows, PausedBy, Put};
use turnwise_queue::{Job, NewJob};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;
use turnwise_web::counted::Counted;
use utoipa::IntoParams;

use super::app::App;
use super::body::{Json, NoBody};
use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown, path_with_name};
use super::list::{check_limit, default_limit};
use super::responses::{BadBody, Common};
use super::{builtin_types, position_text, quota};
use template::Wanted;

/// Number of schedules that one read of a list reads.
const BATCH: usize = 1_000;
/// Number of reads for one page of a list, most of whose schedules the caller may not see.
const MAX_READS: usize = 5;

path_with_name! {
    /// `/{schedule}`
    SchedulePath(check_schedule_name):
    /// The schedule's name, percent-encoded: at most 128 bytes, without `@` and `/`.
    #[param(min_length = 1, max_length = 128, pattern = r"^(?!\.{1,2}$)[^@/\u0000-\u001f\u007f-\u009f]+$")]
    schedule
}

fn no_schedule(name: &str) -> V1Error {
    V1Error::not_found(
        format!("there is no schedule `{name}`"),
        "GET /v1/schedules lists those that this identity may read",
    )
}

/// A schedule that the caller may read. For others it does not exist.
async fn readable(app: &App, caller: &Caller, tx: &Transaction, name: &str) -> Result<rows::Schedule> {
    let schedule = rows::get(tx, &app.keys, name).await?;
    schedule.filter(|schedule| caller.reads(&schedule.tenant)).ok_or_else(|| no_schedule(name))
}

/// A schedule that the caller may change.
async fn changeable(app: &App, caller: &Caller, tx: &Transaction, name: &str) -> Result<rows::Schedule> {
    let schedule = readable(app, caller, tx, name).await?;
    match caller.writes(&schedule.tenant) {
        true => Ok(schedule),
        false => Err(V1Error::read_only(&schedule.tenant)),
    }
}

/// A schedule whose jobs the caller may cause to be added.
async fn fireable(app: &App, caller: &Caller, tx: &Transaction, name: &str) -> Result<rows::Schedule> {
    let schedule = changeable(app, caller, tx, name).await?;
    check_pause(caller, &schedule)?;
    if schedule.template.job_type == COMMAND && !caller.commands() {
        return Err(V1Error::forbidden(
            "this identity may not add jobs that run programs",
            "it needs the scope command, beside client:TENANTS",
        ));
    }
    Ok(schedule)
}

/// Refuses what would bypass the pause of an operator.
fn check_pause(caller: &Caller, schedule: &rows::Schedule) -> Result<()> {
    match &schedule.paused {
        Some(paused) if paused.by == PausedBy::Operator && !caller.operates() => {
            Err(V1Error::forbidden("an operator has paused this schedule", "ask an operator to resume it"))
        }
        _ => Ok(()),
    }
}

/// As whom a caller pauses a schedule.
fn pauser(caller: &Caller) -> PausedBy {
    if caller.operates() { PausedBy::Operator } else { PausedBy::Client }
}

/// The schedules that the jobs of runs come from, by the ids of the jobs. Without such jobs, nothing is read.
pub(super) async fn of_runs(
    app: &App,
    jobs: impl Iterator<Item = &Job>,
) -> Result<BTreeMap<String, RunSchedule>> {
    let mut schedules = BTreeMap::new();
    let mut tx = None;
    for job in jobs {
        let Some(from) = &job.spec.schedule else { continue };
        let tx = match &mut tx {
            Some(tx) => tx,
            None => tx.insert(app.store.begin().await?),
        };
        // The name may have become that of another tenant's schedule.
        let is_own = rows::get(tx, &app.keys, &from.name).await?.is_some_and(|own| own.tenant == job.tenant);
        let last_success = match is_own {
            true => rows::ends(tx, &app.keys, &from.name).await?.1,
            false => None,
        };
        let schedule = RunSchedule {
            name: from.name.clone(),
            scheduled_at_us: from.at_us,
            fired_at_us: from.fired_us,
            last_success: last_success.map(view::success),
        };
        schedules.insert(job.id.clone(), schedule);
    }
    Ok(schedules)
}

/// The parameters of a listing of schedules.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulesParams {
    /// Maximum number of schedules in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next` of the previous page.
    #[param(nullable = false, max_length = 6000)]
    after: Option<String>,
    /// Only schedules of this tenant.
    #[param(value_type = Option<names::Name>, nullable = false)]
    tenant: Option<String>,
}

/// List schedules
///
/// Those that this identity may read, by name. A page may hold fewer than `limit` although a next page exists.
#[utoipa::path(
    get, path = "/schedules", tag = "schedules", operation_id = "list_schedules", params(SchedulesParams),
    responses((status = 200, body = Schedules, description = "A page of schedules."), Common),
)]
pub(super) async fn list_schedules(
    call: Call,
    Params(query): Params<SchedulesParams>,
) -> Result<Shown<Schedules>> {
    let SchedulesParams { limit, after, tenant } = query;
    list(&call.app, &call.caller, limit, after.as_deref(), tenant.as_deref()).await.map(Shown)
}

/// A page of schedules.
pub async fn list(
    app: &App,
    caller: &Caller,
    limit: usize,
    after: Option<&str>,
    tenant: Option<&str>,
) -> Result<Schedules> {
    check_limit(limit)?;
    tenant.map_or(Ok(()), |tenant| names::check_name("tenant", tenant))?;
    let mut after = position_text::read(app, caller, after.map(str::to_owned)).await?;
    after.as_deref().map_or(Ok(()), |after| names::check_name("after", after))?;
    let tx = app.store.begin().await?;
    let mut schedules = Vec::new();
    let batch_size = if tenant.is_some() { limit + 1 } else { BATCH };
    let mut reads = 0;
    let has_more = 'list: loop {
        let batch = rows::list(&tx, &app.keys, after.as_deref(), tenant, batch_size).await?;
        let is_last = batch.len() < batch_size;
        for schedule in batch {
            if schedules.len() == limit {
                break 'list true;
            }
            after = Some(schedule.name.clone());
            if caller.reads(&schedule.tenant) {
                schedules.push(view::shown(schedule));
            }
        }
        reads += 1;
        if is_last || reads == MAX_READS {
            break !is_last;
        }
    };
    let next = position_text::shown(app, caller, after.filter(|_| has_more)).await?;
    Ok(Schedules { schedules, next })
}

/// Get a schedule
#[utoipa::path(
    get, path = "/schedules/{schedule}", tag = "schedules", operation_id = "get_schedule", params(SchedulePath),
    responses(
        (status = 200, body = Schedule, description = "The schedule."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such schedule."),
        Common,
    ),
)]
pub(super) async fn get_schedule(Call { app, caller, path }: Call<SchedulePath>) -> Result<Shown<Schedule>> {
    one(&app, &caller, &path.schedule).await.map(Shown)
}

/// A schedule with what lists leave out.
pub async fn one(app: &App, caller: &Caller, name: &str) -> Result<Schedule> {
    let tx = app.store.begin().await?;
    let schedule = readable(app, caller, &tx, name).await?;
    view::whole(app, caller, &tx, schedule).await
}

/// Write a schedule
///
/// Creates a schedule, or replaces the one with this name. From the time of the request on, each fire adds a job with the id
/// `{name}@{time in UTC}`, as `nightly@2026-11-29T01:30:00Z`. A fire is one transaction, so it adds its job exactly once, whatever fails. A
/// change makes no fire of the past.
///
/// A time that a change of clocks skips fires once, at the first time after it that exists; a time that comes twice fires once, at the
/// first. An expression that repeats over the hours (a wildcard or a step in its hour, or all hours) goes on through both.
#[utoipa::path(
    put, path = "/schedules/{schedule}", tag = "schedules", operation_id = "put_schedule", params(SchedulePath),
    request_body = PutSchedule,
    responses(
        (status = 200, body = Schedule, description = "The schedule existed. It is as the request states now."),
        (status = 201, body = Schedule, description = "The schedule is new."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: the name is taken by a schedule that this identity may not read."),
        BadBody, Common,
    ),
)]
pub(super) async fn put_schedule(
    Call { app, caller, path }: Call<SchedulePath>,
    Json(put): Json<PutSchedule>,
) -> Result<(StatusCode, Shown<Schedule>)> {
    let (is_new, schedule) = write(&app, &caller, &path.schedule, put).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Shown(schedule)))
}

/// Writes a schedule. Returns whether it is new.
pub async fn write(app: &App, caller: &Caller, name: &str, put: PutSchedule) -> Result<(bool, Schedule)> {
    check_schedule_name(name)?;
    let now_us = app.now_us();
    let wanted = &Wanted::parse(app, put, now_us).await?;
    let put = app.store.transact(|tx| async move {
        let known = rows::get(&tx, &app.keys, name).await?;
        if let Some(known) = &known {
            if !caller.reads(&known.tenant) {
                return Err(V1Error::conflict(
                    codes::CONFLICT,
                    format!("the name `{name}` is taken"),
                    "choose another name: all tenants share the names of schedules",
                ));
            }
            if !caller.writes(&known.tenant) {
                return Err(V1Error::read_only(&known.tenant));
            }
            if wanted.put.paused == Some(false) {
                check_pause(caller, known)?;
            }
        }
        let new = wanted.schedule(app, caller, &tx, name, known.as_ref()).await?;
        rows::put(&tx, &app.keys, &new, now_us).await.map_err(full)
    });
    let put = put.await?;
    Ok((matches!(put, Put::Created), one(app, caller, name).await?))
}

/// Says of a tenant or a store that has too many schedules that this may change.
fn full(error: turnwise_queue::Error) -> V1Error {
    match error {
        turnwise_queue::Error::Invalid { field: "schedule", problem } => V1Error::too_many(
            problem,
            "remove schedules that are not needed; an operator sets [limits] schedules",
        ),
        error => error.into(),
    }
}

/// Remove a schedule
///
/// The jobs that it has added stay. What an operator has paused, only an operator removes.
#[utoipa::path(
    delete, path = "/schedules/{schedule}", tag = "schedules", operation_id = "remove_schedule", params(SchedulePath),
    responses(
        (status = 200, body = RemovedSchedule, description = "The schedule is removed."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: an operator has paused the schedule."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such schedule."),
        Common,
    ),
)]
pub(super) async fn remove_schedule(
    Call { app, caller, path }: Call<SchedulePath>,
) -> Result<Shown<RemovedSchedule>> {
    remove(&app, &caller, &path.schedule).await?;
    Ok(Shown(RemovedSchedule { removed: true }))
}

/// Removes a schedule.
pub async fn remove(app: &App, caller: &Caller, name: &str) -> Result<()> {
    let removed = app.store.transact(|tx| async move {
        check_pause(caller, &changeable(app, caller, &tx, name).await?)?;
        rows::remove(&tx, &app.keys, name).await?;
        Ok(())
    });
    removed.await
}

/// Pause a schedule
///
/// It does not fire until it is resumed. What an operator pauses, only an operator resumes, fires or removes.
#[utoipa::path(
    post, path = "/schedules/{schedule}/pause", tag = "schedules", operation_id = "pause_schedule", params(SchedulePath),
    request_body = Nothing,
    responses(
        (status = 200, body = Schedule, description = "The schedule is paused."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such schedule."),
        BadBody, Common,
    ),
)]
pub(super) async fn pause_schedule(
    Call { app, caller, path }: Call<SchedulePath>,
    _: NoBody,
) -> Result<Shown<Schedule>> {
    pause(&app, &caller, &path.schedule).await.map(Shown)
}

/// Pauses a schedule.
pub async fn pause(app: &App, caller: &Caller, name: &str) -> Result<Schedule> {
    let now_us = app.now_us();
    let paused = app.store.transact(|tx| async move {
        changeable(app, caller, &tx, name).await?;
        rows::pause(&tx, &app.keys, name, pauser(caller), now_us).await?;
        Ok::<_, V1Error>(())
    });
    paused.await?;
    one(app, caller, name).await
}

/// Resume a schedule
///
/// It fires again, from now on. Fires of the time in which it was paused are not made.
#[utoipa::path(
    post, path = "/schedules/{schedule}/resume", tag = "schedules", operation_id = "resume_schedule", params(SchedulePath),
    request_body = Nothing,
    responses(
        (status = 200, body = Schedule, description = "The schedule is not paused."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: an operator has paused the schedule."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such schedule."),
        BadBody, Common,
    ),
)]
pub(super) async fn resume_schedule(
    Call { app, caller, path }: Call<SchedulePath>,
    _: NoBody,
) -> Result<Shown<Schedule>> {
    resume(&app, &caller, &path.schedule).await.map(Shown)
}

/// Resumes a schedule.
pub async fn resume(app: &App, caller: &Caller, name: &str) -> Result<Schedule> {
    let now_us = app.now_us();
    let resumed = app.store.transact(|tx| async move {
        fireable(app, caller, &tx, name).await?;
        rows::resume(&tx, &app.keys, name, pauser(caller), now_us).await?;
        Ok::<_, V1Error>(())
    });
    resumed.await?;
    one(app, caller, name).await
}

/// Fire a schedule now
///
/// Adds a job at once, also while the schedule is paused, whatever its `overlap`. Its next fire stays as it is. What an operator has paused, only an
/// operator fires.
#[utoipa::path(
    post, path = "/schedules/{schedule}/fire", tag = "schedules", operation_id = "fire_schedule", params(SchedulePath),
    request_body = Nothing,
    responses(
        (status = 200, body = FiredSchedule, description = "The job that was added, or that has the unique key."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: an operator has paused the schedule."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such schedule."),
        BadBody, Common,
    ),
)]
pub(super) async fn fire_schedule(
    Call { app, caller, path }: Call<SchedulePath>,
    _: NoBody,
) -> Result<Shown<FiredSchedule>> {
    fire(&app, &caller, &path.schedule).await.map(Shown)
}

/// Fires a schedule now.
pub async fn fire(app: &App, caller: &Caller, name: &str) -> Result<FiredSchedule> {
    let now_us = app.now_us();
    let schedule = fireable(app, caller, &app.store.begin().await?, name).await?;
    let _adding = admit(app, caller, &schedule, &[now_us]).await?;
    let fired = app.store.transact(|tx| async move {
        fireable(app, caller, &tx, name).await?;
        Ok::<_, V1Error>(rows::fire_now(&tx, &app.keys, name, now_us).await?)
    });
    let fired = view::record(fired.await?);
    Ok(FiredSchedule { job: fired.job.unwrap_or_default(), outcome: fired.outcome })
}

/// Checks whether the schedule's tenant may have these jobs.
async fn admit(
    app: &App,
    caller: &Caller,
    schedule: &rows::Schedule,
    instants: &[i64],
) -> Result<Vec<Counted<(String, String)>>> {
    let job = |at_us: &i64| NewJob {
        spec: schedule.template.spec.clone(),
        ..NewJob::new(
            &schedule.template.job_type,
            &rows::job_id(&schedule.name, *at_us),
            RawValue::NULL.to_owned(),
        )
    };
    let jobs: Vec<_> = instants.iter().map(job).collect();
    let wanted = jobs.iter().map(|job| quota::Wanted {
        job,
        if_exists: IfExists::Keep,
        states_tenant: true,
        made: false,
    });
    app.waiting_jobs.admit(app, caller, &wanted.collect::<Vec<_>>()).await
}

/// Make fires of the past
///
/// Adds a job for each fire from `from_us` on and before `to_us`, at most 1,000. A fire whose job exists adds none, so a request can be
/// repeated; nor does one whose unique key another job has. With `dry_run` it adds nothing.
#[utoipa::path(
    post, path = "/schedules/{schedule}/backfill", tag = "schedules", operation_id = "backfill_schedule", params(SchedulePath),
    request_body = Backfill,
    responses(
        (status = 200, body = Backfilled, description = "The fires."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: an operator has paused the schedule."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such schedule."),
        BadBody, Common,
    ),
)]
pub(super) async fn backfill_schedule(
    Call { app, caller, path }: Call<SchedulePath>,
    Json(request): Json<Backfill>,
) -> Result<Shown<Backfilled>> {
    backfill(&app, &caller, &path.schedule, request).await.map(Shown)
}

/// Makes fires of the past.
pub async fn backfill(app: &App, caller: &Caller, name: &str, request: Backfill) -> Result<Backfilled> {
    let Backfill { from_us, to_us, dry_run } = request;
    let now_us = app.now_us();
    if from_us < 0 || to_us <= from_us || to_us > now_us {
        return Err(V1Error::bad(
            "to_us: must be after from_us, and not after now",
            "the schedule makes the fires to come itself",
        ));
    }
    let schedule = fireable(app, caller, &app.store.begin().await?, name).await?;
    let fires = preview_of(schedule.calendar.clone(), from_us - 1, MAX_BACKFILL + 1, to_us).await?.fires;
    if fires.len() > MAX_BACKFILL {
        return Err(V1Error::bad(
            format!("to_us: there are more than {MAX_BACKFILL} fires in this time"),
            "split the time into several requests",
        ));
    }
    if dry_run {
        return Ok(Backfilled { fires, added: 0 });
    }
    let instants: Vec<i64> = fires.iter().map(|fire| fire.at_us).collect();
    let _adding = admit(app, caller, &schedule, &instants).await?;
    let mut added = 0;
    let mut from_us = Some(from_us);
    while let Some(from) = from_us {
        let some = app.store.transact(|tx| async move {
            fireable(app, caller, &tx, name).await?;
            Ok::<_, V1Error>(
                rows::backfill(&tx, &app.keys, name, (from, to_us - 1), MAX_BACKFILL, now_us).await?,
            )
        });
        let some = some.await?;
        added += some.added.len() as u64;
        from_us = some.next_us;
    }
    Ok(Backfilled { fires, added })
}

/// The parameters of a preview.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PreviewParams {
    /// How many fires to show.
    #[param(minimum = 1, maximum = 100, default = 10, nullable = false)]
    count: Option<usize>,
    /// The fires after this time, in µs since the Unix epoch. By default those after now.
    #[param(minimum = 0, maximum = 253_402_300_799_999_999_i64, nullable = false)]
    after_us: Option<i64>,
}

/// Show the next fires of a schedule
///
/// `moved` says which of them a change of clocks moves.
#[utoipa::path(
    get, path = "/schedules/{schedule}/preview", tag = "schedules", operation_id = "preview_schedule",
    params(SchedulePath, PreviewParams),
    responses(
        (status = 200, body = SchedulePreview, description = "The fires. A schedule that is paused makes none of them."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such schedule."),
        Common,
    ),
)]
pub(super) async fn preview_schedule(
    Call { app, caller, path }: Call<SchedulePath>,
    Params(query): Params<PreviewParams>,
) -> Result<Shown<SchedulePreview>> {
    let (count, after_us) = bounds(&app, query.count, query.after_us)?;
    let schedule = readable(&app, &caller, &app.store.begin().await?, &path.schedule).await?;
    preview_of(schedule.calendar, after_us, count, MAX_TIME_US).await.map(Shown)
}

/// Show the fires of a schedule that is not stored
#[utoipa::path(
    post, path = "/schedule_preview", tag = "schedules", operation_id = "preview", request_body = PreviewSchedule,
    responses((status = 200, body = SchedulePreview, description = "The fires."), BadBody, Common),
)]
pub(super) async fn preview_unstored(
    call: Call,
    Json(PreviewSchedule { when, count, after_us }): Json<PreviewSchedule>,
) -> Result<Shown<SchedulePreview>> {
    preview(&call.app, &when, count, after_us).await.map(Shown)
}

/// The fires of a specification.
pub async fn preview(
    app: &App,
    when: &When,
    count: Option<usize>,
    after_us: Option<i64>,
) -> Result<SchedulePreview> {
    let (count, after_us) = bounds(app, count, after_us)?;
    let calendar = template::calendar(when)?;
    calendar.check(app.now_us()).map_err(template::wrong)?;
    preview_of(calendar, after_us, count, MAX_TIME_US).await
}

fn bounds(app: &App, count: Option<usize>, after_us: Option<i64>) -> Result<(usize, i64)> {
    let (count, after_us) = (count.unwrap_or(DEFAULT_PREVIEW), after_us.unwrap_or_else(|| app.now_us()));
    if !(1..=MAX_PREVIEW).contains(&count) {
        return Err(V1Error::out_of_bounds(format!("count: must be from 1 to {MAX_PREVIEW}")));
    }
    match (0..=MAX_TIME_US).contains(&after_us) {
        true => Ok((count, after_us)),
        false => Err(V1Error::out_of_bounds(format!("after_us: must be from 0 to {MAX_TIME_US}"))),
    }
}

/// The first fires after one time and before another one. Those of a rare expression take long to find.
async fn preview_of(calendar: Calendar, after_us: i64, count: usize, to_us: i64) -> Result<SchedulePreview> {
    let fires = tokio::task::spawn_blocking(move || {
        let fires = calendar.fires(after_us)?;
        Ok(fires.take_while(|fire| fire.at_us < to_us).take(count).map(view::fire).collect())
    });
    let fires = fires.await.map_err(|error| V1Error::internal(&error))?;
    Ok(SchedulePreview { fires: fires.map_err(template::wrong)?, zone_data: zone_data() })
}

/// Whether clients have schedules for jobs of this type.
pub fn is_for_schedules(job_type: &str) -> bool {
    job_type == turnwise_replicator::JOB_TYPE || builtin_types::is_for_clients(job_type)
}
