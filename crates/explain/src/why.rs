//! The reason for a job's state.

use async_recursion::async_recursion as boxed;
use turnwise_protocol::{Awaited, Expected, Limited, MAX_COUNTED, Position, Reason, Why};
use turnwise_queue::{Job, State as QueueState, concurrency, dependencies, jobs, rates, workers};

use crate::snapshot::{Of, Snapshot, could_run_since};
use crate::{Reader, Result, Viewer, decision, locked, position, reason, shown, task};

/// Why a job waits, as a code and as a sentence; `None` if it runs.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn waits<'a>(
    reader: &'a Reader<'a>,
    viewer: &dyn Viewer,
    job: &Job,
) -> Result<Option<(Reason, String)>> {
    if job.state() == QueueState::Running {
        return Ok(None);
    }
    let snapshot = Snapshot::read(reader, &job.job_type, Of::Tenant(&job.tenant)).await?;
    reason_of(reader, viewer, &snapshot, job).await.map(Some)
}

/// Why a job is in its state, as a code and as a sentence. The snapshot is of its type, and has its tenant: one serves many jobs.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn reason_of<'a>(
    reader: &'a Reader<'a>,
    viewer: &dyn Viewer,
    snapshot: &Snapshot,
    job: &Job,
) -> Result<(Reason, String)> {
    let Cause { reason, sentence, .. } = explain(reader, viewer, snapshot, job).await?;
    Ok((reason, sentence))
}

/// The reason for a job's state, and what it was found from.
struct Cause {
    reason: Reason,
    sentence: String,
    predecessors: Option<position::Predecessors>,
    node: Option<String>,
    after: Vec<Awaited>,
    limited: Option<Limited>,
    locked: Option<locked::Locked>,
}

async fn explain(reader: &Reader<'_>, viewer: &dyn Viewer, snapshot: &Snapshot, job: &Job) -> Result<Cause> {
    let (mut predecessors, mut explanation, mut node) = (None, None, None);
    let reason = match job.state() {
        QueueState::Pending => {
            let found = position::find(reader, snapshot, job).await?;
            let Position { in_tenant, overall, .. } = found.position;
            explanation = decision::of(reader, snapshot, job).await?;
            let reason = reason::of_pending(snapshot, explanation.as_ref(), &job.tenant, in_tenant, overall);
            predecessors = Some(found);
            reason
        }
        QueueState::Delayed | QueueState::Crashing => reason::of_delayed(snapshot, job),
        QueueState::Running | QueueState::Waiting => {
            if let Some(claim) = job.claim() {
                let worker = workers::get(reader.tx, reader.keys, &job.job_type, &claim.worker).await?;
                node = worker.map(|worker| worker.node);
            }
            reason::of_running(job.cancel_requested(), job.then())
        }
        QueueState::Completed => Reason::Completed,
        QueueState::Failed => Reason::Failed,
        QueueState::Cancelled => Reason::Cancelled,
    };
    let of_task = task::look(reader, job).await?;
    let reason = of_task.as_ref().map_or(reason, |(reason, _)| *reason);
    let locked = locked::look(reader, job).await?;
    // Without a worker, or if the job must stop, locks are not the cause.
    let is_about_locks = !matches!(reason, Reason::NoWorker | Reason::WorkersQuiet | Reason::NoWorkerForTask)
        && !job.cancel_requested();
    let by_locks = locked.as_ref().filter(|_| is_about_locks).and_then(|locked| locked.reason(job));
    let reason = by_locks.unwrap_or(reason);
    let mut after = Vec::new();
    for awaited in dependencies::unmet(reader.tx, reader.keys, job).await? {
        let other = jobs::get(reader.tx, reader.keys, &awaited.job_type, &awaited.id).await?;
        // An operator may have made the job wait for one of another tenant.
        if other.as_ref().is_none_or(|other| viewer.reads(&other.tenant)) {
            after.push(shown::awaits(awaited, other.as_ref()));
        }
    }
    let mut limited = None;
    if let Some(limit) = job.limited().cloned() {
        let running = concurrency::count(reader.tx, reader.keys, &limit.bucket).await?;
        // The running jobs of all tenants are counted.
        let running = viewer.operates().then_some(running);
        let rate = rates::awaited(reader.tx, reader.keys, job).await?;
        limited = Some(Limited {
            running: running.filter(|_| rate.is_none()),
            per_ms: rate.as_ref().map(|(rate, _)| rate.per_ms),
            next_us: rate.map(|(_, next_us)| next_us.max(0)),
            ..shown::limited(&limit)
        });
    }
    let before = locked
        .as_ref()
        .zip(explanation.as_ref())
        .and_then(|(locked, explanation)| locked.before(&explanation.reason));
    let sentence = match (&locked, by_locks, before) {
        (_, None, _) if let Some((_, sentence)) = of_task => sentence,
        (_, None, Some(sentence)) if is_about_locks => sentence,
        (Some(locked), Some(_), _) => locked.sentence(viewer, job, &reason::runs(job, node.as_deref())),
        _ if reason == Reason::ConcurrencyLimited => reason::of_limit(limited.as_ref()),
        _ if reason == Reason::RateLimited => reason::of_rate(snapshot.now_us, limited.as_ref()),
        _ => reason::sentence(
            snapshot,
            job,
            reason,
            predecessors.as_ref(),
            node.as_deref(),
            &after,
            reader.max_attempts(job).await?,
        ),
    };
    let sentence = match viewer.operates() {
        true => sentence,
        false => reason::without_others(job, reason, predecessors.as_ref()).unwrap_or(sentence),
    };
    Ok(Cause { reason, sentence, predecessors, node, after, limited, locked })
}

/// Why a job is in its state, and all that is known about that.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn why<'a>(reader: &'a Reader<'a>, viewer: &dyn Viewer, job: Job) -> Result<Why> {
    let snapshot = Snapshot::read(reader, &job.job_type, Of::Tenant(&job.tenant)).await?;
    let Cause { reason, sentence, mut predecessors, node, after, limited, locked } =
        explain(reader, viewer, &snapshot, &job).await?;
    let failed = matches!(job.state(), QueueState::Crashing | QueueState::Failed | QueueState::Pending)
        || job.state() == QueueState::Cancelled;
    let locks = match locked {
        Some(locked) => Some(locked.why(reader, viewer, &snapshot, &job).await?),
        None => None,
    };
    let next_us = limited.as_ref().and_then(|limited| limited.next_us);
    let expected = match next_us.filter(|_| reason == Reason::RateLimited) {
        Some(at_us) => Some(Expected {
            at_us: at_us.max(snapshot.now_us),
            earliest: true,
            basis: "a place of its rate is free then, and it enters the queue".to_owned(),
        }),
        None => reason::expected(&snapshot, &job, reason, predecessors.as_ref()),
    };
    let tenant = snapshot.tenant(reader, &job.tenant, MAX_COUNTED).await?;
    let (before, before_more) = match &mut predecessors {
        Some(predecessors) => {
            let named = predecessors.before.len();
            (std::mem::take(&mut predecessors.before), predecessors.others > named)
        }
        None => (Vec::new(), false),
    };
    let why = Why {
        state: shown::state(&job),
        reason,
        sentence,
        since_us: could_run_since(&job),
        not_before_us: shown::waits_for_time(&job).then_some(job.order_us()),
        crashes: job.streak(snapshot.now_us),
        error: job.reason().filter(|_| failed).map(str::to_owned),
        worker: job.claim().map(|claim| claim.worker.clone()),
        node,
        after,
        priority: i32::from(job.priority),
        tenant,
        place: predecessors.map(|predecessors| predecessors.position),
        before,
        before_more,
        capacity: (!job.state().is_final()).then_some(snapshot.capacity),
        expected,
        limited,
        locks,
        job_type: job.job_type.clone(),
        id: job.id.clone(),
    };
    Ok(if viewer.operates() { why } else { without_others(why) })
}

/// Without what tells about other tenants, also by counts.
fn without_others(why: Why) -> Why {
    let place = why.place.map(|place| Position {
        overall: place.in_tenant,
        overall_more: place.in_tenant_more,
        ..place
    });
    let expected = why.expected.map(|expected| Expected {
        basis: match expected.earliest {
            true => expected.basis,
            false => "estimated from past runs".to_owned(),
        },
        ..expected
    });
    Why { place, expected, before: Vec::new(), before_more: false, capacity: None, ..why }
}
