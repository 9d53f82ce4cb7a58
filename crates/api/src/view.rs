//! Jobs in the form of the API. Only [`whole`] reads their options.

use serde_json::value::RawValue;
use turnwise_policy::backoff::{OnLost, Waits};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_protocol::{
    self as api, CalledOn, GroupCounts, JobCallback, MAX_SHOWN_OPTIONS_BYTES, OnLost as ApiOnLost,
};
use turnwise_queue::groups::{self, On};
use turnwise_queue::output::{self, KeptError};
use turnwise_queue::{EventKind, Job, State, jobs, secrets, types};
use turnwise_store::Transaction;
use turnwise_web::access::Caller;

pub(super) use turnwise_explain::{limited, state, waits_for_time};

use super::app::App;
use super::builtin_types;
use super::error::Result;
use super::{inputs, unique};

/// A variant of one enum as that of another one with the same name. The compiler checks that all variants are named.
macro_rules! same {
    ($value:expr, $from:ident => $to:ident: $($variant:ident)+) => {
        match $value {
            $($from::$variant => $to::$variant,)+
        }
    };
}
pub(super) use same;

/// A job in its current state, with its worker's last report.
pub(super) async fn job(app: &App, tx: &Transaction, job: Job) -> Result<api::Job> {
    let mut info = job.info.clone();
    if job.state().is_claimed()
        && let Some(active) = jobs::active_report(tx, &app.keys, &job).await?
    {
        info = active.info;
    }
    let stated = types::stated(tx, &app.keys, &job.job_type).await?;
    let stated = stated.and_then(|stated| stated.max_attempts(job.task.as_deref()));
    let of_type = stated.map(|(most, _)| most).or(app.config.get().jobs.max_attempts(&job.job_type));
    let max_attempts = job.attempts_in_all(of_type);
    Ok(shown(job, info, max_attempts))
}

/// A job with what lists leave out, as the caller may see it.
pub(super) async fn whole(app: &App, caller: &Caller, tx: &Transaction, row: Job) -> Result<api::Job> {
    let errors = output::errors(tx, &app.keys, &row).await?;
    let options = match builtin_types::shows_options(caller, &row.job_type, &row.tenant) {
        true => secrets::small_shown_options(tx, &app.keys, &row, MAX_SHOWN_OPTIONS_BYTES).await?,
        false => None,
    };
    let version = Some(row.version());
    let shown = job(app, tx, row).await?;
    Ok(api::Job { options, errors: errors.into_iter().map(error).collect(), version, ..shown })
}

/// A job in a list: without its result.
pub(super) async fn listed(app: &App, tx: &Transaction, row: Job) -> Result<api::Job> {
    Ok(api::Job { result: None, ..job(app, tx, row).await? })
}

fn error(KeptError { at_us, attempt, class, message, trace }: KeptError) -> api::JobError {
    api::JobError { at_us, attempt, class, message, trace }
}

fn shown(job: Job, info: Option<Box<RawValue>>, max_attempts: Option<u32>) -> api::Job {
    let reason = match job.state() {
        State::Crashing | State::Failed | State::Cancelled => job.reason().map(str::to_owned),
        _ => None,
    };
    let not_before_us = waits_for_time(&job).then_some(job.order_us());
    let state = state(&job);
    let (worker, claim) = match job.claim() {
        Some(claim) => (Some(claim.worker.clone()), Some(claim.number)),
        None => (None, None),
    };
    let ended = job.state().is_final();
    let paused_by = job.paused_by().map(str::to_owned);
    let limited = job.limited().map(limited);
    let waits_for = (state == api::State::Blocked).then_some(job.unmet());
    let cancel_requested = job.cancel_requested();
    let job = job.into_fields();
    api::Job {
        paused_by,
        limited,
        waits_for,
        cancel_requested,
        job_type: job.job_type,
        id: job.id,
        state,
        tenant: job.spec.tenant,
        priority: i32::from(job.priority),
        user: job.spec.user,
        task: job.spec.task,
        tags: job.spec.tags.into_iter().collect(),
        added_us: job.added_us,
        changed_us: job.changed_us,
        started_us: job.started_us,
        not_before_us,
        reasons: job.spec.reasons,
        attempts: job.attempts,
        max_attempts,
        backoff: job.spec.retry.backoff.as_ref().map(shown_waits),
        jitter: job.spec.retry.jitter,
        on_lost: job.spec.retry.on_lost.map(shown_on_lost),
        snoozes: job.snoozes,
        max_snoozes: job.spec.retry.max_snoozes,
        timeout_ms: ms(job.spec.timeouts.run_us),
        heartbeat_timeout_ms: ms(job.spec.timeouts.heartbeat_us),
        start_within_ms: ms(job.spec.lifetime.start_within_us),
        keep_ms: ms(job.spec.lifetime.keep_us),
        expires_us: job.due_us.filter(|_| !ended),
        removed_us: job.due_us.filter(|_| ended),
        schedule: job.spec.schedule.map(|from| api::JobSchedule {
            name: from.name,
            scheduled_at_us: from.at_us,
            fired_at_us: from.fired_us,
        }),
        group: job.spec.group.map(|group| api::JobGroup { name: group.name, index: group.index }),
        callback: job.spec.callback.map(shown_callback),
        unique_held: job.unique_key.as_ref().filter(|key| key.until_us.is_none()).map(|key| key.held),
        unique_until_us: job.unique_key.and_then(|key| key.until_us),
        unique: job.spec.unique.map(unique::shown),
        inputs: inputs::shown(job.spec.inputs),
        worker,
        claim,
        summary: job.spec.summary,
        info,
        result: job.result,
        result_bytes: job.stored_result.as_ref().map(|result| result.bytes as u64),
        result_type: job.stored_result.and_then(|result| result.media_type),
        options: None,
        errors: Vec::new(),
        version: None,
        reason,
        history: job
            .history
            .iter()
            .map(|event| api::Event {
                at_us: event.at_us,
                kind: event_kind(&event.kind),
                reason: event.kind.reason().map(str::to_owned),
            })
            .collect(),
    }
}

/// A duration in ms, converted from µs and rounded up.
pub(super) fn ms(us: Option<i64>) -> Option<u64> {
    us.map(|us| us.unsigned_abs().div_ceil(1_000))
}

/// A dependency, in the form of the queue.
pub(super) fn awaited(
    job_type: String,
    id: String,
    accepted: &[api::End],
    otherwise: api::Otherwise,
) -> turnwise_queue::After {
    use api::{End, Otherwise as Stated};
    let accepted = accepted.iter().map(|end| same!(end, End => DependencyEnd: Completed Failed Cancelled));
    let otherwise = same!(otherwise, Stated => Otherwise: Cancel Free);
    turnwise_queue::After { job_type, id, accepted: accepted.collect(), otherwise }
}

pub(super) fn event_kind(kind: &EventKind) -> api::EventKind {
    match kind {
        EventKind::Added => api::EventKind::Added,
        EventKind::Started => api::EventKind::Started,
        EventKind::Stopped { .. } => api::EventKind::Stopped,
        EventKind::Crashed { .. } => api::EventKind::Crashed,
        EventKind::Snoozed => api::EventKind::Snoozed,
        EventKind::Expired => api::EventKind::Expired,
        EventKind::Completed => api::EventKind::Completed,
        EventKind::Failed { .. } => api::EventKind::Failed,
        EventKind::Cancelled => api::EventKind::Cancelled,
        EventKind::Edited { .. } => api::EventKind::Edited,
        EventKind::Held { .. } => api::EventKind::Held,
        EventKind::Released { .. } => api::EventKind::Released,
    }
}

/// The waits of a request. Too long ones are refused with the job that they are part of.
pub(super) fn waits(backoff: &api::Backoff) -> Waits {
    let us = |ms: &u64| i64::try_from(*ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    match backoff {
        api::Backoff::Exponential(api::Exponential { first_ms, factor, most_ms }) => {
            Waits::Exponential { first_us: us(first_ms), factor: *factor, most_us: us(most_ms) }
        }
        api::Backoff::FixedMs(api::WaitMs(wait_ms)) => Waits::List(vec![us(wait_ms)]),
        api::Backoff::ListMs(api::WaitsMs(list)) => {
            Waits::List(list.iter().map(|api::WaitMs(wait_ms)| us(wait_ms)).collect())
        }
    }
}

/// The waits of a row.
pub(super) fn shown_waits(waits: &Waits) -> api::Backoff {
    let ms = |us: &i64| us.unsigned_abs() / 1_000;
    match waits {
        Waits::Exponential { first_us, factor, most_us } => api::Backoff::Exponential(api::Exponential {
            first_ms: ms(first_us),
            factor: *factor,
            most_ms: ms(most_us),
        }),
        Waits::List(list) => match &list[..] {
            [wait_us] => api::Backoff::FixedMs(api::WaitMs(ms(wait_us))),
            list => api::Backoff::ListMs(api::WaitsMs(list.iter().map(|us| api::WaitMs(ms(us))).collect())),
        },
    }
}

/// What a request states of a lost worker.
pub(super) fn on_lost(on_lost: ApiOnLost) -> OnLost {
    same!(on_lost, ApiOnLost => OnLost: Count Requeue)
}

/// What a row states of a lost worker.
pub(super) fn shown_on_lost(on_lost: OnLost) -> ApiOnLost {
    same!(on_lost, OnLost => ApiOnLost: Count Requeue)
}

/// What a callback is about.
pub(super) fn shown_on(on: On) -> CalledOn {
    same!(on, On => CalledOn: Complete Success FirstFailure)
}

/// The counts of a group.
pub(super) fn shown_counts(counts: groups::GroupCounts) -> GroupCounts {
    let groups::GroupCounts { open, completed, failed, cancelled, removed, failures } = counts;
    GroupCounts { total: counts.total(), open, completed, failed, cancelled, removed, failures }
}

/// Which group has added a job.
pub(super) fn shown_callback(callback: groups::Callback) -> JobCallback {
    let groups::Callback { group, on, counts } = callback;
    JobCallback { group, on: shown_on(on), counts: shown_counts(counts) }
}
