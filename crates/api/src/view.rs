//! Jobs in the form of the API, without their options.

use serde_json::value::RawValue;
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_protocol as api;
use turnwise_queue::{EventKind, Job, State, jobs};
use turnwise_store::Transaction;

pub(super) use turnwise_explain::{limited, state, waits_for_time};

use super::app::App;
use super::error::Result;

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
    Ok(shown(job, info))
}

fn shown(job: Job, info: Option<Box<RawValue>>) -> api::Job {
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
    api::Job {
        paused_by: job.paused().map(str::to_owned),
        limited: job.limited().map(limited),
        waits_for: (state == api::State::Blocked).then_some(job.unmet()),
        cancel_requested: job.cancel_requested(),
        job_type: job.job_type,
        id: job.id,
        state,
        tenant: job.spec.tenant,
        priority: i32::from(job.priority),
        user: job.spec.user,
        added_us: job.added_us,
        changed_us: job.changed_us,
        started_us: job.started_us,
        not_before_us,
        reasons: job.spec.reasons,
        attempts: job.attempts,
        max_attempts: job.spec.max_attempts,
        timeout_ms: ms(job.spec.timeouts.run_us),
        heartbeat_timeout_ms: ms(job.spec.timeouts.heartbeat_us),
        worker,
        claim,
        summary: job.spec.summary,
        info,
        result: job.result,
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
        EventKind::Completed => api::EventKind::Completed,
        EventKind::Failed { .. } => api::EventKind::Failed,
        EventKind::Cancelled => api::EventKind::Cancelled,
    }
}
