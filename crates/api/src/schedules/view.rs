//! Schedules in the form of the API. Only [`whole`] reads their options.

use turnwise_calendar::{Calendar, Fire, Moved as Move, When as Stored, instant};
use turnwise_protocol::{
    AddJob, FireOutcome, LastSuccess, Locks, MAX_SHOWN_OPTIONS_BYTES, Missed, Moved, NewJob, Overlap,
    PausedBy, PreviewedFire, Schedule, ScheduleFire, ScheduleState, When,
};
use turnwise_queue::JobSpec;
use turnwise_queue::schedules::{
    self as rows, FireRecord, Missed as Late, Outcome, Overlap as Stacked, PausedBy as By, Template,
};
use turnwise_queue::secrets::Secrets;
use turnwise_store::Transaction;
use turnwise_web::access::{Caller, shown_owner};

use crate::app::App;
use crate::builtin_types::shows_options;
use crate::error::Result;
use crate::unique;
use crate::view::{ms, same, shown_on_lost, shown_waits};

/// A schedule with what lists leave out, as the caller may see it.
pub(super) async fn whole(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    schedule: rows::Schedule,
) -> Result<Schedule> {
    let options = match shows_options(caller, &schedule.template.job_type, &schedule.tenant) {
        true => {
            let options = rows::options(tx, &app.keys, &schedule).await?;
            let secrets = Secrets::of_type(tx, &app.keys, &schedule.template.job_type).await?;
            Some(secrets.without(&options)).filter(|options| options.get().len() <= MAX_SHOWN_OPTIONS_BYTES)
        }
        false => None,
    };
    let (failures, last_success) = rows::ends(tx, &app.keys, &schedule.name).await?;
    let mut shown = shown(schedule);
    shown.job.options = options;
    let last_success = last_success.map(success);
    Ok(Schedule { failures: Some(failures), last_success, ..shown })
}

/// A schedule in a list.
pub(super) fn shown(schedule: rows::Schedule) -> Schedule {
    let next = schedule.next.map(|at_us| next(&schedule.calendar, at_us));
    let state = match (&schedule.paused, &next) {
        (Some(_), _) => ScheduleState::Paused,
        (None, Some(_)) => ScheduleState::Active,
        (None, None) => ScheduleState::Over,
    };
    let (missed, most_missed) = match schedule.missed {
        Late::One => (Missed::One, None),
        Late::Skip => (Missed::Skip, None),
        Late::All { most } => (Missed::All, Some(most)),
    };
    Schedule {
        name: schedule.name,
        tenant: schedule.tenant,
        when: when(schedule.calendar),
        derived_locks: locks(&schedule.template, false).filter(|_| !schedule.template.spec.locks.is_none()),
        job: job(schedule.template),
        jitter_ms: ms(Some(schedule.jitter_us)).unwrap_or_default(),
        missed,
        most_missed,
        overlap: same!(schedule.overlap, Stacked => Overlap: Skip Allow Queue CancelRunning),
        pause_after: schedule.pause_after,
        note: schedule.note,
        state,
        paused_by: schedule
            .paused
            .as_ref()
            .map(|paused| same!(paused.by, By => PausedBy: Client Operator Failures)),
        paused_us: schedule.paused.map(|paused| paused.at_us),
        next,
        fires: schedule.fires.into_iter().map(record).collect(),
        failures: None,
        last_success: None,
        zone_data: schedule.zone_data,
        by: schedule.by.as_deref().map(shown_owner),
        created_us: schedule.created_us,
        changed_us: schedule.changed_us,
    }
}

/// The stored next fire. Where the zone data have changed since, it has no local time yet.
fn next(calendar: &Calendar, at_us: i64) -> PreviewedFire {
    let computed = calendar.next(at_us - 1).filter(|fire| fire.at_us == at_us);
    fire(computed.unwrap_or_else(|| Fire { at_us, local: instant(at_us), moved: None }))
}

/// A fire to come.
pub(super) fn fire(Fire { at_us, local, moved }: Fire) -> PreviewedFire {
    PreviewedFire { at_us, local, moved: moved.map(|moved| same!(moved, Move => Moved: Skipped Twice)) }
}

/// What came of a fire.
pub(super) fn record(FireRecord { at_us, fired_us, outcome, job }: FireRecord) -> ScheduleFire {
    let (outcome, reason) = match outcome {
        Outcome::Added => (FireOutcome::Added, None),
        Outcome::Skipped => (FireOutcome::Skipped, None),
        Outcome::Missed => (FireOutcome::Missed, None),
        Outcome::Exists => (FireOutcome::Exists, None),
        Outcome::Refused(reason) => (FireOutcome::Refused, Some(reason)),
        Outcome::Found => (FireOutcome::Found, None),
        Outcome::Full => (FireOutcome::Full, None),
    };
    ScheduleFire { at_us, fired_us, outcome, reason, job }
}

/// The last success of a schedule.
pub(super) fn success(success: rows::Success) -> LastSuccess {
    LastSuccess { id: success.id, result: success.result }
}

fn when(Calendar { when, from_us, until_us }: Calendar) -> When {
    let bounds = When { from_us, until_us, ..When::default() };
    match when {
        Stored::Cron { expression, zone } => When { cron: Some(expression), zone: Some(zone), ..bounds },
        Stored::Every { every_us, offset_us } => When {
            every_ms: ms(Some(every_us)),
            offset_ms: ms(Some(offset_us).filter(|us| *us > 0)),
            ..bounds
        },
        Stored::Dates(dates_us) => When { dates_us, ..bounds },
    }
}

/// The locks of a template, if a client states them, or if the catalogue derives them.
fn locks(template: &Template, stated: bool) -> Option<Locks> {
    // A request has the form of the row.
    let locks = || serde_json::to_value(&template.spec.locks).and_then(serde_json::from_value);
    (template.states_locks == stated).then(locks)?.ok()
}

/// The job of a template, without its options, as a client states it: without the locks that the catalogue derives.
fn job(template: Template) -> NewJob {
    let locks = locks(&template, true);
    let Template { job_type, spec, priority, states_locks: _ } = template;
    let has_summary = spec.summary.get() != JobSpec::default().summary.get();
    let job = AddJob {
        tenant: Some(spec.tenant),
        user: spec.user,
        task: spec.task,
        tags: Some(spec.tags.into_iter().collect::<Vec<_>>()).filter(|tags| !tags.is_empty()),
        summary: Some(spec.summary).filter(|_| has_summary),
        max_attempts: spec.max_attempts,
        backoff: spec.retry.backoff.as_ref().map(shown_waits),
        jitter: spec.retry.jitter,
        on_lost: spec.retry.on_lost.map(shown_on_lost),
        max_snoozes: spec.retry.max_snoozes,
        timeout_ms: ms(spec.timeouts.run_us),
        heartbeat_timeout_ms: ms(spec.timeouts.heartbeat_us),
        start_within_ms: ms(spec.lifetime.start_within_us),
        keep_ms: ms(spec.lifetime.keep_us),
        reason: spec.reasons,
        locks,
        unique: spec.unique.map(unique::shown),
        priority: priority.map(i32::from),
        group: spec.group.map(|group| group.name),
        ..AddJob::default()
    };
    NewJob::new(job_type, job)
}
