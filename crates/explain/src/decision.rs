//! The next decision about the head of a type's queue, as one worker with all free slots of the type would make it.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use turnwise_policy::schedule::HoldReason;
use turnwise_queue::Job;
use turnwise_queue::tenants::Pending;
use turnwise_worker::{QueueHead, Startable, compared, explain, startable};

use crate::position::{self, Next};
use crate::snapshot::Snapshot;
use crate::{Reader, Result};

/// Why a job does not start.
pub(crate) struct Explanation {
    pub reason: HoldReason,
    /// How many jobs start instead.
    pub before: usize,
}

/// The first jobs of a queue, and the decision about them.
pub(crate) struct Head {
    /// The jobs, in the order of the tenants' turns.
    pub next: Vec<Next>,
    /// Why each job that a pass compares waits; `None` if it starts. Empty if no slot is free, because workers then make no pass.
    reasons: Vec<Option<HoldReason>>,
    /// How many of them start.
    starting: usize,
    /// There are free slots that none of these jobs takes, and there may be other jobs.
    is_incomplete: bool,
}

impl Head {
    /// Reads at least the first `least` jobs, and decides.
    #[boxed]
    pub async fn read<'a>(reader: &'a Reader<'a>, snapshot: &Snapshot, least: usize) -> Result<Head> {
        let (room, rules) = (snapshot.free(), &reader.rules.queue);
        let first = compared(rules, &[], room);
        let asked = least.max(first);
        let mut next = position::front(reader, snapshot, asked).await?;
        if room == 0 {
            return Ok(Head { next, reasons: Vec::new(), starting: 0, is_incomplete: false });
        }
        let pending: Vec<&Pending> = next.iter().map(|next| &next.pending).collect();
        let compared = compared(rules, &pending, room);
        if compared > asked && next.len() == asked {
            next = position::front(reader, snapshot, compared).await?;
        }
        let beyond = next.len() >= compared;
        let mut tenants: BTreeMap<&str, usize> = BTreeMap::new();
        let jobs = next.iter().take(compared).map(|next| {
            let number = tenants.len();
            (next.pending.clone(), *tenants.entry(&next.tenant).or_insert(number))
        });
        let head = QueueHead { jobs: jobs.collect(), beyond };
        let reasons =
            explain(reader.store, reader.tx, reader.keys, rules, &snapshot.job_type, head, room).await?;
        let starting = reasons.iter().filter(|reason| reason.is_none()).count();
        debug_assert!(starting <= room, "{starting} jobs start in {room} slots");
        Ok(Head { is_incomplete: beyond && starting < room.min(first), next, reasons, starting })
    }

    /// Why the job at this position does not start; `None` if it does.
    pub fn explanation(&self, position: usize) -> Option<Explanation> {
        let reason = self.reasons.get(position).cloned().unwrap_or(Some(HoldReason::NoRoom))?;
        Some(Explanation { reason, before: self.starting })
    }
}

/// Why a pending job does not start; `None` if it does.
pub(crate) async fn of(reader: &Reader<'_>, snapshot: &Snapshot, job: &Job) -> Result<Option<Explanation>> {
    let room = snapshot.free();
    if room == 0 {
        return Ok(Some(Explanation { reason: HoldReason::NoRoom, before: 0 }));
    }
    let head = Head::read(reader, snapshot, 0).await?;
    let mut compared = head.next.iter().take(head.reasons.len());
    if let Some(position) = compared.position(|next| next.pending.id == job.id) {
        return Ok(head.explanation(position));
    }
    if head.is_incomplete {
        // A worker then searches the rest of the queue for jobs that can start.
        let most = room.saturating_add(1);
        let startable = startable(
            reader.store,
            reader.tx,
            reader.keys,
            &reader.rules.queue,
            &job.job_type,
            (Startable::All, most),
        )
        .await?;
        if startable < most {
            return Ok(None);
        }
    }
    Ok(Some(Explanation { reason: HoldReason::NoRoom, before: head.starting }))
}
