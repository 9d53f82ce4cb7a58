//! The next decision about the head of a type's queue, as one worker with all free slots of the type would make it.

use std::collections::BTreeMap;

use turnwise_policy::schedule::Reason;
use turnwise_queue::Job;
use turnwise_queue::tenants::Pending;
use turnwise_store::Transaction;
use turnwise_worker::{QueueHead, QueueRules, Startable, compared, explain, startable};

use super::error::Result;
use super::position::{self, Next};
use super::reason::free;
use super::standing::Snapshot;
use crate::http::App;

/// Why a job does not start.
pub(super) struct Explanation {
    pub reason: Reason,
    /// How many jobs start instead.
    pub before: usize,
}

/// The first jobs of a queue, and the decision about them.
pub(super) struct Head {
    /// The jobs, in the order of the tenants' turns.
    pub next: Vec<Next>,
    /// Why each job that a pass compares waits; `None` if it starts. Empty if no slot is free, because workers then make no pass.
    reasons: Vec<Option<Reason>>,
    /// How many of them start.
    starting: usize,
    /// There are free slots that none of these jobs takes, and there may be other jobs.
    is_incomplete: bool,
}

impl Head {
    /// Reads at least the first `least` jobs, and decides.
    pub async fn read(app: &App, tx: &Transaction, snapshot: &Snapshot, least: usize) -> Result<Head> {
        let (room, rules) = (free(snapshot), rules(app));
        let first = compared(&rules, &[], room);
        let asked = least.max(first);
        let mut next = position::front(app, tx, snapshot, asked).await?;
        if room == 0 {
            return Ok(Head { next, reasons: Vec::new(), starting: 0, is_incomplete: false });
        }
        let pending: Vec<&Pending> = next.iter().map(|next| &next.pending).collect();
        let compared = compared(&rules, &pending, room);
        if compared > asked && next.len() == asked {
            next = position::front(app, tx, snapshot, compared).await?;
        }
        let beyond = next.len() >= compared;
        let mut tenants: BTreeMap<&str, usize> = BTreeMap::new();
        let jobs = next.iter().take(compared).map(|next| {
            let number = tenants.len();
            (next.pending.clone(), *tenants.entry(&next.tenant).or_insert(number))
        });
        let head = QueueHead { jobs: jobs.collect(), beyond };
        let reasons = explain(&app.store, tx, &app.keys, &rules, &snapshot.job_type, head, room).await?;
        let starting = reasons.iter().filter(|reason| reason.is_none()).count();
        debug_assert!(starting <= room, "{starting} jobs start in {room} slots");
        Ok(Head { is_incomplete: beyond && starting < room.min(first), next, reasons, starting })
    }

    /// Why the job at this position does not start; `None` if it does.
    pub fn explanation(&self, position: usize) -> Option<Explanation> {
        let reason = self.reasons.get(position).cloned().unwrap_or(Some(Reason::NoRoom))?;
        Some(Explanation { reason, before: self.starting })
    }
}

/// Why a pending job does not start; `None` if it does.
pub(super) async fn of(
    app: &App,
    tx: &Transaction,
    snapshot: &Snapshot,
    job: &Job,
) -> Result<Option<Explanation>> {
    let room = free(snapshot);
    if room == 0 {
        return Ok(Some(Explanation { reason: Reason::NoRoom, before: 0 }));
    }
    let head = Head::read(app, tx, snapshot, 0).await?;
    let mut compared = head.next.iter().take(head.reasons.len());
    if let Some(position) = compared.position(|next| next.id == job.id) {
        return Ok(head.explanation(position));
    }
    if head.is_incomplete {
        // A worker then searches the rest of the queue for jobs that can start.
        let most = room.saturating_add(1);
        let startable =
            startable(&app.store, tx, &app.keys, &rules(app), &job.job_type, (Startable::All, most)).await?;
        if startable < most {
            return Ok(None);
        }
    }
    Ok(Some(Explanation { reason: Reason::NoRoom, before: head.starting }))
}

fn rules(app: &App) -> std::sync::Arc<QueueRules> {
    app.external.options().get().queue.clone()
}
