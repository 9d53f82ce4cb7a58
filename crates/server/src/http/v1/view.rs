//! Jobs as clients see them: never their options.

use serde_json::value::RawValue;
use turnwise_protocol as api;
use turnwise_queue::{EventKind, Job, State, jobs};
use turnwise_store::Transaction;

use super::error::Result;
use crate::http::App;

/// A job as it is now, with what its worker last reported.
pub(super) async fn job(app: &App, tx: &Transaction, job: Job) -> Result<api::Job> {
    let mut info = job.info.clone();
    if job.state == State::Running
        && let Some(active) = jobs::active_report(tx, &app.keys, &job).await?
    {
        info = active.info;
    }
    Ok(shown(job, info))
}

fn shown(job: Job, info: Option<Box<RawValue>>) -> api::Job {
    let reason = match job.state {
        State::Crashing | State::Failed => job.reason().map(str::to_owned),
        _ => None,
    };
    let waits = matches!(job.state, State::Delayed | State::Crashing);
    let (worker, claim) = match job.claim {
        Some(claim) if job.state == State::Running => (Some(claim.worker), Some(claim.number)),
        _ => (None, None),
    };
    api::Job {
        job_type: job.job_type,
        id: job.id,
        state: state(job.state),
        tenant: job.tenant,
        user: job.user,
        added_us: job.added_us,
        changed_us: job.changed_us,
        started_us: job.started_us,
        not_before_us: waits.then_some(job.order_us),
        attempts: job.attempts,
        max_attempts: job.max_attempts,
        cancel_requested: job.cancel_requested,
        worker,
        claim,
        summary: job.summary,
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

pub(super) fn state(state: State) -> api::State {
    match state {
        State::Pending => api::State::Pending,
        State::Delayed => api::State::Delayed,
        State::Running => api::State::Running,
        State::Crashing => api::State::Crashing,
        State::Completed => api::State::Completed,
        State::Failed => api::State::Failed,
        State::Cancelled => api::State::Cancelled,
    }
}

pub(super) fn event_kind(kind: &EventKind) -> api::EventKind {
    match kind {
        EventKind::Added => api::EventKind::Added,
        EventKind::Started => api::EventKind::Started,
        EventKind::Stopped => api::EventKind::Stopped,
        EventKind::Crashed { .. } => api::EventKind::Crashed,
        EventKind::Completed => api::EventKind::Completed,
        EventKind::Failed { .. } => api::EventKind::Failed,
        EventKind::Cancelled => api::EventKind::Cancelled,
    }
}
