//! The input of a pass's decision, as read from the store, and the decision.

use std::collections::BTreeSet;

use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_policy::schedule::{self, Candidate, Decision, Rules, Verdict, schedule};
use turnwise_queue::tenants::Pending;
use turnwise_queue::{Job, JobFields, Keyspace, Result, jobs};
use turnwise_store::Transaction;

use super::Context;
use crate::QueueRules;
use crate::fair_share::Front;
use crate::locks::LocksView;

/// The maximum number of jobs with reservations outside the window that a pass reads. There is rarely more than one,
/// because only one job of a window reserves at a time.
const MAX_OUTSIDE: usize = 4;

/// The store that a view is read from, and the rules that apply.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub tx: &'a Transaction,
    pub keys: &'a Keyspace,
    pub job_type: &'a str,
    pub queue: &'a QueueRules,
    pub now_us: i64,
}

impl Source<'_> {
    async fn locks(&self) -> Result<LocksView> {
        LocksView::read(self.tx, self.keys, &self.queue.levels).await
    }

    /// The pending jobs among the first few of `ids`. A snapshot read, without conflicts: a claim reads its job again.
    async fn pending(&self, ids: impl Iterator<Item = &str>) -> Result<Vec<Pending>> {
        let mut found = Vec::new();
        for id in ids.take(MAX_OUTSIDE) {
            let job = jobs::peek(self.tx, self.keys, self.job_type, id).await?;
            if let Some(job) = job.filter(Job::is_pending) {
                let order_us = job.order_us();
                let JobFields { id, spec, .. } = job.into_fields();
                // It has a reservation: whatever its priority, it precedes jobs of the window without one.
                found.push(Pending { id, order_us, key: None, priority: 0, locks: spec.locks.into() });
            }
        }
        Ok(found)
    }
}

/// The part of the queue that a pass has read, with the locks.
pub(super) struct View {
    pub queue: Front,
    /// The locks, if a job of the queue declares some.
    pub locks: Option<LocksView>,
    /// Jobs with reservations that are not among the jobs of `queue`.
    outside: Vec<Pending>,
    /// The pass's knowledge of each job, in the order of [`View::jobs`].
    pub verdicts: Vec<Verdict>,
}

impl View {
    /// A view of jobs that declare no locks.
    pub fn without_locks(queue: Front) -> View {
        let verdicts = vec![Verdict::Unknown; queue.jobs.len()];
        View { queue, locks: None, outside: Vec::new(), verdicts }
    }

    /// A view of jobs of which some declare locks. It includes the jobs with reservations that are `mine`.
    pub async fn with_locks(
        source: &Source<'_>,
        mut queue: Front,
        mine: impl Fn(&str) -> bool,
    ) -> Result<View> {
        queue.rank_classes();
        let locks = source.locks().await?;
        let seen: BTreeSet<&str> = queue.jobs.iter().map(|(pending, _)| pending.id.as_str()).collect();
        let outside = locks.reserved(source.job_type).filter(|id| !seen.contains(id) && mine(id));
        let outside = source.pending(outside).await?;
        let verdicts = vec![Verdict::Unknown; queue.jobs.len() + outside.len()];
        Ok(View { queue, locks: Some(locks), outside, verdicts })
    }

    /// Reads the locks again after claims, if jobs declare some.
    pub async fn read_locks(&mut self, source: &Source<'_>) -> Result<()> {
        if self.locks.is_some() {
            self.locks = Some(source.locks().await?);
        }
        Ok(())
    }

    /// The jobs that the decision is about.
    pub fn jobs(&self) -> Vec<&Pending> {
        self.queue.jobs.iter().map(|(pending, _)| pending).chain(&self.outside).collect()
    }

    /// Sets the verdicts of jobs that this pass has tried, and of jobs that other passes of this process are about to
    /// claim.
    pub fn note(&mut self, context: &Context<'_>, tried: &BTreeSet<String>) {
        let jobs = self.jobs();
        let ids = jobs.iter().map(|job| job.id.as_str());
        let in_other_pass = match context.claimant.pass_jobs {
            Some(pass_jobs) => pass_jobs.in_other_passes(ids),
            None => vec![false; jobs.len()],
        };
        let verdict = |(job, in_other_pass): (&&Pending, bool)| match in_other_pass {
            _ if tried.contains(&job.id) => Verdict::Tried,
            true => Verdict::OtherPass,
            false => Verdict::Unknown,
        };
        self.verdicts = jobs.iter().zip(in_other_pass).map(verdict).collect();
    }

    /// Whether a job with these locks is not blocked by a running job.
    pub fn is_free(&self, requests: &Requests) -> bool {
        self.locks.as_ref().is_some_and(|locks| locks.is_free(requests))
    }

    /// Which of these jobs could start together with the locks of this view.
    pub fn startable(&self, source: &Source<'_>, jobs: &[&Pending]) -> BTreeSet<String> {
        let Source { job_type, queue, now_us, .. } = *source;
        let Some(locks) = &self.locks else { return BTreeSet::new() };
        let startable = startable(jobs, locks, (job_type, queue), now_us);
        startable.into_iter().map(|job| jobs[job].id.clone()).collect()
    }

    /// Decides which of the jobs start. Jobs for which `pinned` returns true may start whatever their shard is.
    pub fn decide(
        &self,
        source: &Source<'_>,
        worker: schedule::View<'_>,
        pinned: impl Fn(&str) -> bool,
    ) -> Decision {
        let Source { job_type, queue, now_us, .. } = *source;
        let in_front = self.queue.jobs.len();
        let jobs = self.jobs();
        let known = (0..)
            .zip(&jobs)
            .zip(&self.verdicts)
            .map(|((position, job), verdict)| (*job, *verdict, position >= in_front || pinned(&job.id)));
        let worker = schedule::View { beyond: self.queue.beyond, ..worker };
        decide(known, worker, self.locks.as_ref(), (job_type, queue), now_us)
    }
}

/// Decides about jobs, each with what the pass knows of it, and whether it may start whatever its shard is. `worker` is the view of a
/// worker without jobs and locks.
fn decide<'a>(
    jobs: impl Iterator<Item = (&'a Pending, Verdict, bool)>,
    worker: schedule::View<'_>,
    locks: Option<&LocksView>,
    (job_type, queue): (&str, &QueueRules),
    now_us: i64,
) -> Decision {
    let candidates: Vec<Candidate<'_>> = jobs
        .map(|(job, verdict, pinned)| Candidate {
            id: &job.id,
            priority: job.priority,
            since_us: job.order_us,
            requests: &job.locks,
            reservation: locks.and_then(|locks| locks.position(job_type, &job.id)),
            pinned,
            verdict,
        })
        .collect();
    let locks =
        locks.map(|locks| schedule::Locks { running: &locks.running, reservations: &locks.reservations });
    let view = schedule::View { candidates: &candidates, locks, ..worker };
    schedule(&view, &Rules { queue: queue.rules, ..Rules::default() }, now_us)
}

/// Which of these jobs could start together if there were room for all: their indexes.
pub(crate) fn startable(
    jobs: &[&Pending],
    locks: &LocksView,
    queue: (&str, &QueueRules),
    now_us: i64,
) -> Vec<usize> {
    let known = jobs.iter().map(|job| (*job, Verdict::Unknown, false));
    decide(known, schedule::View::new(&[], jobs.len()), Some(locks), queue, now_us).start
}
