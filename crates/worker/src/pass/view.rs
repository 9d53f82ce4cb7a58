//! What a pass has read of the queue, and the decision about it.

use std::collections::BTreeSet;

use turnwise_policy::contention::Shard;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_policy::schedule::{self, Candidate, Decision, Rules, Verdict, schedule};
use turnwise_queue::tenants::Pending;
use turnwise_queue::{Job, Result, jobs};

use super::{Claimant, Context};
use crate::QueueRules;
use crate::fair_share::Front;
use crate::locks::{LockHistory, LocksView};

/// The maximum number of jobs with reservations outside the window that a pass reads. There is rarely more than one,
/// because only one job of a window reserves at a time.
const MAX_OUTSIDE: usize = 4;

/// What a pass has read of the queue.
pub(super) struct View {
    pub queue: Front,
    /// The locks, if a job of the queue declares some.
    pub locks: Option<LocksView>,
    /// Jobs with reservations that are not in the part of the queue that was read.
    outside: Vec<Pending>,
    /// What is known of each job, in the order of [`View::jobs`]. Written when the pass begins to claim.
    pub verdicts: Vec<Verdict>,
}

impl View {
    /// A view of jobs that declare no locks.
    pub fn without_locks(queue: Front) -> View {
        View { queue, locks: None, outside: Vec::new(), verdicts: Vec::new() }
    }

    /// A view of jobs of which some declare locks.
    pub async fn with_locks(context: &Context<'_>, mut queue: Front) -> Result<View> {
        queue.rank_classes();
        let mut view = View::without_locks(queue);
        view.read_locks_of_all(context).await?;
        Ok(view)
    }

    /// Reads the locks again after claims, if jobs declare some.
    pub async fn read_locks(&mut self, context: &Context<'_>) -> Result<()> {
        if self.locks.is_some() {
            self.locks = Some(read_locks(context).await?);
        }
        Ok(())
    }

    async fn read_locks_of_all(&mut self, context: &Context<'_>) -> Result<()> {
        let Claimant { job_type, lock_history, .. } = context.claimant;
        let locks = read_locks(context).await?;
        let seen: BTreeSet<&str> = self.queue.jobs.iter().map(|(pending, _)| pending.id.as_str()).collect();
        let outside = locks.reserved(job_type).filter(|id| !seen.contains(id) && context.is_mine(id));
        self.outside = pending(context, outside).await?;
        self.locks = Some(locks);
        let traits = self.jobs().into_iter().map(|job| &job.traits);
        lock_history.look(context.tx, context.keys, traits, context.now_us).await
    }

    /// The jobs that the decision is about.
    pub fn jobs(&self) -> Vec<&Pending> {
        self.queue.jobs.iter().map(|(pending, _)| pending).chain(&self.outside).collect()
    }

    /// Notes the jobs that this pass has tried, and those that other passes of this process have.
    pub fn note(&mut self, context: &Context<'_>, tried: &BTreeSet<String>) {
        let Claimant { job_type, hold, .. } = context.claimant;
        let verdict = |job: &Pending| match hold {
            _ if tried.contains(&job.id) => Verdict::Tried,
            Some(hold) if hold.is_taken(job_type, &job.id) => Verdict::OtherPass,
            _ => Verdict::Unknown,
        };
        self.verdicts = self.jobs().into_iter().map(verdict).collect();
    }

    /// Which of these jobs could start together with the locks of this view.
    pub fn startable(&self, context: &Context<'_>, jobs: &[&Pending]) -> BTreeSet<String> {
        let Claimant { job_type, queue, lock_history, .. } = context.claimant;
        let Some(locks) = &self.locks else { return BTreeSet::new() };
        let startable = startable(jobs, (locks, lock_history), (job_type, queue), context.now_us);
        startable.into_iter().map(|job| jobs[job].id.clone()).collect()
    }

    /// Decides which of the jobs start, with room for this many.
    pub fn decide(&self, context: &Context<'_>, room: usize) -> Decision {
        let Claimant { job_type, queue, lock_history, shard, overdue, random, .. } = context.claimant;
        let in_front = self.queue.jobs.len();
        let jobs = self.jobs();
        let known = (0..).zip(&jobs).zip(&self.verdicts).map(|((place, job), verdict)| Known {
            job,
            verdict: *verdict,
            // Also all expired jobs: most jobs of other shards cannot start, and a part of them may be exactly these.
            pinned: place >= in_front || self.locks.is_some() && overdue.contains(&job.id),
        });
        let scope = Scope { beyond: self.queue.beyond, room, shard, eager: context.is_eager(), random };
        let locks = self.locks.as_ref().map(|locks| (locks, lock_history));
        decide(known, scope, locks, (job_type, queue), context.now_us)
    }
}

async fn read_locks(context: &Context<'_>) -> Result<LocksView> {
    let Context { tx, keys, claimant, now_us, .. } = *context;
    LocksView::read(tx, keys, &claimant.queue.levels, (claimant.lock_history, now_us)).await
}

/// The pending jobs among the first few of `ids`. A snapshot read, without conflicts: a claim reads its job again.
async fn pending(context: &Context<'_>, ids: impl Iterator<Item = &str>) -> Result<Vec<Pending>> {
    let mut found = Vec::new();
    for id in ids.take(MAX_OUTSIDE) {
        let job = jobs::peek(context.tx, context.keys, context.claimant.job_type, id).await?;
        if let Some(job) = job.filter(Job::is_pending) {
            let order_us = job.order_us();
            let Job { id, locks, traits, .. } = job;
            // It has a reservation: whatever its class, it precedes jobs of the window without one.
            found.push(Pending { id, order_us, key: None, class: 0, locks, traits });
        }
    }
    Ok(found)
}

/// A job, and what is known of it.
struct Known<'a> {
    job: &'a Pending,
    verdict: Verdict,
    pinned: bool,
}

/// What a decision depends on beside jobs and locks: [`schedule::View`] has the meaning of each.
struct Scope {
    beyond: bool,
    room: usize,
    shard: Shard,
    eager: bool,
    random: u64,
}

fn decide<'a>(
    jobs: impl Iterator<Item = Known<'a>> + Clone,
    Scope { beyond, room, shard, eager, random }: Scope,
    locks: Option<(&LocksView, &LockHistory)>,
    (job_type, queue): (&str, &QueueRules),
    now_us: i64,
) -> Decision {
    let likely: Vec<Option<Requests>> = match locks {
        Some((_, history)) => {
            jobs.clone().map(|known| Some(history.guess(&known.job.locks, &known.job.traits)?.0)).collect()
        }
        None => Vec::new(),
    };
    let likely = likely.iter().map(Option::as_ref).chain(std::iter::repeat(None));
    let candidates: Vec<Candidate<'_>> = jobs
        .zip(likely)
        .map(|(Known { job, verdict, pinned }, likely)| Candidate {
            id: &job.id,
            class: job.class,
            since_us: job.order_us,
            requests: &job.locks,
            likely,
            reservation: locks.and_then(|(locks, _)| locks.place(job_type, &job.id)),
            pinned,
            verdict,
        })
        .collect();
    let locks = locks.map(|(locks, _)| schedule::Locks {
        running: &locks.running,
        foreseen: locks.foreseen(),
        reservations: &locks.reservations,
    });
    let view = schedule::View { candidates: &candidates, beyond, room, shard, eager, random, locks };
    schedule(&view, &Rules { queue: queue.rules }, now_us)
}

/// Which of these jobs could start together if there were room for all: their indexes.
pub(crate) fn startable(
    jobs: &[&Pending],
    (locks, history): (&LocksView, &LockHistory),
    queue: (&str, &QueueRules),
    now_us: i64,
) -> Vec<usize> {
    let known = jobs.iter().map(|job| Known { job, verdict: Verdict::Unknown, pinned: false });
    let scope = Scope { beyond: false, room: jobs.len(), shard: Shard::ALL, eager: false, random: 0 };
    decide(known, scope, Some((locks, history)), queue, now_us).start
}
