//! The first jobs of a type's queue, with the reason for the state of each.

use async_recursion::async_recursion as boxed;
use turnwise_protocol::{QueuedJob, Reason, State as JobState};
use turnwise_queue::{Then, jobs};

use crate::decision::Head;
use crate::snapshot::{Snapshot, all_of, could_run_since};
use crate::{Error, Reader, Result, locked, reason, shown};

/// The first jobs of a type: running, pending, and outside of the queue. Each group gets a third of the limit, and what one group does not
/// need goes to the others.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn queue<'a>(reader: &'a Reader<'a>, snapshot: &Snapshot, limit: usize) -> Result<Vec<QueuedJob>> {
    let mut running = running(reader, snapshot, limit).await?;
    let mut waiting = waiting(reader, snapshot, limit).await?;
    let mut off_queue = off_queue(reader, snapshot, limit).await?;
    let third = limit.div_ceil(3);
    let spare = |one: usize, other: usize| third.saturating_sub(one) + third.saturating_sub(other);
    let (runs, waits, later) = (running.len(), waiting.len(), off_queue.len());
    waiting.truncate(third + spare(runs, later));
    running.truncate(third + spare(waits, later));
    off_queue.truncate(third + spare(runs, waits));
    running.extend(waiting);
    running.extend(off_queue);
    running.truncate(limit);
    Ok(running)
}

async fn running(reader: &Reader<'_>, snapshot: &Snapshot, limit: usize) -> Result<Vec<QueuedJob>> {
    let mut running: Vec<_> = snapshot.running.iter().collect();
    running.sort_by(|one, other| (one.started_us, &one.id).cmp(&(other.started_us, &other.id)));
    running.truncate(limit);
    let rows = running.into_iter().map(|row| async move {
        // What happens after the run's end is in the job's record.
        let job = jobs::get(reader.tx, reader.keys, &snapshot.job_type, &row.id).await?;
        let then = job.as_ref().map_or(Then::Keep, |job| job.then());
        let runs = reason::of_running(row.cancel_requested, then);
        let waits = job.as_ref().is_some_and(|job| job.waits().is_some());
        Ok(QueuedJob {
            job_type: snapshot.job_type.clone(),
            id: row.id.clone(),
            task: job.as_ref().and_then(|job| job.task.clone()),
            document: job.and_then(|job| (reader.rules.document)(&snapshot.job_type, &job.summary)),
            tenant: row.tenant.clone(),
            state: if waits { JobState::Waiting } else { JobState::Running },
            reason: if waits && !row.cancel_requested { Reason::WaitsForLock } else { runs },
            since_us: row.started_us,
            not_before_us: None,
            paused_by: None,
            limited: None,
            waits_for: None,
            worker: Some(row.worker.clone()),
        })
    });
    all_of(rows.collect()).await
}

async fn waiting(reader: &Reader<'_>, snapshot: &Snapshot, limit: usize) -> Result<Vec<QueuedJob>> {
    let head = Head::read(reader, snapshot, limit).await?;
    let rows = head.next.iter().take(limit).map(|next| async move {
        let job = jobs::get(reader.tx, reader.keys, &snapshot.job_type, &next.pending.id).await?;
        let locked = match &job {
            Some(job) => locked::look(reader, job).await?.and_then(|locked| locked.reason(job)),
            None => None,
        };
        Ok::<_, Error>((next, job, locked))
    });
    let rows = all_of(rows.collect()).await?;
    // If slots are free, startable jobs overtake those whose locks are not free.
    let has_room = snapshot.free() > 0;
    let mut before = 0;
    let rows = rows.into_iter().enumerate().map(|(position, (next, job, locked))| {
        let explanation = head.explanation(position);
        let reason = reason::of_pending(snapshot, explanation.as_ref(), &next.tenant, next.in_tenant, before);
        let reason =
            locked.filter(|_| !matches!(reason, Reason::NoWorker | Reason::WorkersQuiet)).unwrap_or(reason);
        before += usize::from(!has_room || !matches!(reason, Reason::Locked | Reason::LockReserved));
        QueuedJob {
            reason,
            job_type: snapshot.job_type.clone(),
            id: next.pending.id.clone(),
            task: job.as_ref().and_then(|job| job.task.clone()),
            document: job.as_ref().and_then(|job| (reader.rules.document)(&snapshot.job_type, &job.summary)),
            tenant: next.tenant.clone(),
            state: turnwise_protocol::State::Pending,
            since_us: job.as_ref().map_or(snapshot.now_us, could_run_since),
            not_before_us: None,
            paused_by: None,
            limited: None,
            waits_for: None,
            worker: None,
        }
    });
    Ok(rows.collect())
}

/// Jobs that wait outside of their tenants' queues: some delayed, some blocked, some paused and some limited ones.
async fn off_queue(reader: &Reader<'_>, snapshot: &Snapshot, limit: usize) -> Result<Vec<QueuedJob>> {
    let kinds = [&snapshot.delayed, &snapshot.blocked, &snapshot.paused, &snapshot.limited];
    let mut left = limit;
    let mut ids = Vec::new();
    for (n, kind) in kinds.iter().enumerate() {
        // What one kind does not need goes to the next kinds.
        let some = kind.ids.iter().take(left.div_ceil(kinds.len() - n));
        let before = ids.len();
        ids.extend(some);
        left -= ids.len() - before;
    }
    let found = ids.iter().map(|id| jobs::get(reader.tx, reader.keys, &snapshot.job_type, id));
    let found: Vec<Option<turnwise_queue::Job>> = all_of(found.collect()).await?;
    let rows = found.into_iter().flatten().map(|job| QueuedJob {
        state: shown::state(&job),
        reason: reason::of_delayed(snapshot, &job),
        since_us: could_run_since(&job),
        not_before_us: shown::waits_for_time(&job).then_some(job.order_us()),
        waits_for: (job.unmet() > 0).then_some(job.unmet()),
        paused_by: job.paused().map(str::to_owned),
        limited: job.limited().map(shown::limited),
        worker: None,
        document: (reader.rules.document)(&job.job_type, &job.summary),
        job_type: job.job_type.clone(),
        id: job.id.clone(),
        task: job.task.clone(),
        tenant: job.tenant.clone(),
    });
    Ok(rows.collect())
}
