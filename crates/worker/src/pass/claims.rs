//! The claims of one pass.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use async_recursion::async_recursion as boxed;
use serde_json::value::RawValue;
use turnwise_policy::eligibility::concurrency::Limit;
use turnwise_policy::eligibility::filters::Limits;
use turnwise_policy::schedule::{Decision, HoldReason, Verdict};
use turnwise_queue::claims::{self, Claiming};
use turnwise_queue::concurrency::{self, Tally};
use turnwise_queue::jobs::PREFETCHED;
use turnwise_queue::types::TermsOfType;
use turnwise_queue::{Claim, Job, Result, jobs, lifetimes, locks, tenants, types};

use super::view::View;
use super::{CLAIM_BATCH, Claimant, Context, Numbers};
use crate::fair_share::{Front, SORT_BATCH};
use crate::filters::{Admission, FilterSet};

/// A pass claims no further job once the options of its jobs have this total size.
const CLAIM_OPTIONS_BYTES: usize = 8 << 20;
/// The maximum number of decisions about the same jobs, if locks that the pass expected to be free are not.
const DECISIONS: usize = 4;
/// The maximum number of decisions about the same jobs where some lock, if chosen jobs cannot be claimed for other
/// reasons. For each decision, the pass reads the locks again.
const DECISIONS_WITH_LOCKS: usize = 16;

/// The claims of one pass.
pub(super) struct Claims<'a> {
    context: Context<'a>,
    /// The filters that decide which jobs may start.
    filters: Option<FilterSet>,
    /// The number of running jobs and of starts in each bucket.
    tally: Tally,
    /// The terms of the jobs, once there is one to claim.
    terms: Option<TermsOfType<'a>>,
    /// Whether filters or limits have removed jobs.
    pub filtered: bool,
    pub claimed: Vec<(Job, Box<RawValue>)>,
    /// How long each of them could have run before, in µs.
    pub waits_us: Vec<i64>,
    options_bytes: usize,
    /// The number of this pass's latest claim, if the store counts them.
    latest: Option<u64>,
    /// The jobs that this pass has claimed, or could not claim.
    pub tried: BTreeSet<String>,
}

/// The result of the decisions about a view.
#[derive(Default)]
pub(super) struct FillResult {
    /// The last decision.
    pub decision: Decision,
    /// Whether some job's locks are not free: another pass is useful when a lock is released.
    pub blocked: bool,
    /// Whether jobs that should start were not claimed, because the transaction is full.
    pub not_started: bool,
    /// Whether other passes of this process are about to claim some of the jobs.
    pub in_other_pass: bool,
}

/// The result of trying to claim a job.
enum Tried {
    Claimed,
    /// It is no longer pending, or filters or limits keep it from starting.
    Refused,
    /// Its locks are not free.
    Blocked,
    /// The transaction has no room for it.
    NoRoom,
}

impl<'a> Claims<'a> {
    pub async fn new(context: Context<'a>) -> Result<Claims<'a>> {
        Ok(Claims {
            context,
            filters: context
                .claimant
                .fair
                .filters
                .load(context.tx, context.keys, context.claimant.job_type)
                .await?,
            tally: Tally::of(context.claimant.tasks.clone()),
            terms: None,
            filtered: false,
            claimed: Vec::new(),
            waits_us: Vec::new(),
            options_bytes: 0,
            latest: None,
            tried: BTreeSet::new(),
        })
    }

    /// Decides about the jobs of a view and claims the jobs that start. Decides again if some of them could not be
    /// claimed, and other jobs wait only because of the number of free slots.
    #[boxed]
    pub async fn fill(&mut self, view: &mut View) -> Result<FillResult> {
        let context = self.context;
        let mut filled = FillResult::default();
        view.note(&context, &self.tried);
        let (mut blocked, mut refused) = (0, 0);
        loop {
            let decision = context.decide(view, context.room.saturating_sub(self.claimed.len()));
            filled.blocked |= decision.is_blocked();
            filled.in_other_pass |=
                decision.hold.iter().any(|hold| hold.own && hold.reason == HoldReason::OtherPass);
            let (blocked_before, refused_before) = (blocked, refused);
            let jobs = view.jobs();
            let start: Vec<(usize, String)> =
                decision.start.iter().map(|job| (*job, jobs[*job].id.clone())).collect();
            for (n, (job, id)) in start.iter().enumerate() {
                if self.is_full() {
                    filled.not_started = true;
                    break;
                }
                if n % PREFETCHED == 0 {
                    let next = &start[n..start.len().min(n + PREFETCHED)];
                    self.prefetch(next, view).await?;
                }
                if context.claimant.pass_jobs.is_some_and(|jobs| !jobs.add(id)) {
                    view.verdicts[*job] = Verdict::OtherPass;
                    filled.in_other_pass = true;
                    refused = refused_before + 1;
                    continue;
                }
                let tried = self.claim(id).await?;
                view.verdicts[*job] = Verdict::Tried;
                match tried {
                    Tried::Claimed => {}
                    Tried::Refused => refused = refused_before + 1,
                    Tried::Blocked => blocked = blocked_before + 1,
                    // The first job has the whole transaction. If that is not enough, another pass does not help.
                    Tried::NoRoom if self.claimed.is_empty() => refused = refused_before + 1,
                    Tried::NoRoom => {
                        filled.not_started = true;
                        break;
                    }
                }
            }
            filled.blocked |= blocked > blocked_before;
            let again = match view.locks {
                Some(_) => {
                    blocked > blocked_before && blocked < DECISIONS
                        || refused > refused_before && refused < DECISIONS_WITH_LOCKS
                }
                None => refused > refused_before,
            };
            if !again || !decision.has_no_room() || filled.not_started {
                filled.decision = decision;
                return Ok(filled);
            }
            // The slots of jobs that could not be claimed are free for other jobs.
            view.read_locks(&context.source()).await?;
        }
    }

    /// Reads at the same time what the claims of these jobs will read one after the other.
    async fn prefetch(&self, jobs: &[(usize, String)], view: &View) -> Result<()> {
        let Context { tx, keys, claimant, .. } = self.context;
        let records = jobs.iter().map(|(_, id)| (claimant.job_type, id.as_str()));
        jobs::prefetch(tx, keys, records).await?;
        if view.locks.is_some() {
            let known = view.jobs();
            let locks = jobs.iter().map(|(job, id)| (claimant.job_type, id.as_str(), &*known[*job].locks));
            locks::prefetch(tx, keys, &claimant.queue.levels, locks).await?;
        }
        Ok(())
    }

    /// Whether further jobs must wait for the next transaction.
    fn is_full(&self) -> bool {
        let Context { claimant, room, .. } = self.context;
        // Each attempt claims half as many jobs as the one before it, which halves the chance of the same failure.
        let halved = |jobs: usize| jobs.checked_shr(claimant.failed).unwrap_or(0).max(1);
        let most = match claimant.failed {
            0 => CLAIM_BATCH,
            _ => halved(claimant.depth(room)).max(room).min(halved(CLAIM_BATCH)),
        };
        self.options_bytes >= CLAIM_OPTIONS_BYTES
            || self.tried.len() >= most
            || !self.tried.is_empty() && !self.context.tx.has_room()
    }

    /// Claims a job if it is still pending, the filters accept it, its buckets have room, and its locks are free.
    async fn claim(&mut self, id: &str) -> Result<Tried> {
        let Context { tx, keys, claimant, now_us, .. } = self.context;
        let Claimant { job_type, worker, numbers, queue, max_history, .. } = claimant;
        let is_first = self.tried.insert(id.to_owned());
        debug_assert!(is_first, "a pass tries {id} twice");
        if claimant.tenants.is_some() {
            // The head of the queue leaves other tenants out, but a job with a reservation is found without it.
            let job = jobs::peek(tx, keys, job_type, id).await?;
            if job.is_none_or(|job| !self.context.permits(&job.tenant)) {
                return Ok(Tried::Refused);
            }
        }
        let mut limits = Limits::default();
        if let Some(filters) = &self.filters {
            match filters.admits(tx, keys, job_type, id, now_us).await? {
                Admission::Admitted(admitted) => limits = admitted,
                Admission::Filtered => {
                    self.filtered = true;
                    return Ok(Tried::Refused);
                }
            }
        }
        let number = match numbers {
            Numbers::Counted(next) => next.fetch_add(1, Relaxed),
            // The row is written only with a claim. Otherwise, requests that watch it for new claims would wake without
            // one.
            Numbers::Stored => match self.latest {
                Some(latest) => latest + 1,
                None => claims::latest_number(tx, keys, job_type, worker).await? + 1,
            },
        };
        let claim = Claim { worker: worker.to_owned(), number };
        let levels = &queue.levels;
        let terms = match self.terms.take() {
            Some(terms) => terms,
            None => {
                let stated = types::stated(tx, keys, job_type).await?;
                TermsOfType { stated, settings: claimant.terms }
            }
        };
        let terms = &*self.terms.insert(terms);
        let (tally, filter) = (&mut self.tally, Some(&limits));
        let change = turnwise_queue::Context::new(tx, keys, job_type, now_us, max_history);
        let claiming = claims::claim_within(change, levels, tally, filter, terms, id, &claim).await?;
        Ok(match claiming {
            Claiming::Claimed { job, waited_us } => {
                if matches!(numbers, Numbers::Stored) {
                    self.latest = Some(number);
                }
                let options = jobs::options(tx, keys, &job).await?;
                self.options_bytes += options.get().len();
                self.claimed.push((job, options));
                self.waits_us.push(waited_us);
                Tried::Claimed
            }
            Claiming::Limited(full) => {
                self.filtered = true;
                let stamp = self.filters.as_ref().map(FilterSet::stamp);
                concurrency::hold_back_until(tx, keys, job_type, id, &full, stamp, now_us).await?;
                Tried::Refused
            }
            Claiming::Gone => Tried::Refused,
            Claiming::Due => {
                // The jobs behind it must not wait until it has ended.
                self.filtered = true;
                lifetimes::set_aside(tx, keys, job_type, id, now_us).await?;
                Tried::Refused
            }
            Claiming::Blocked(_) => Tried::Blocked,
            Claiming::NoRoom => Tried::NoRoom,
        })
    }

    /// The limit of a job's task, if the worker takes no jobs of it.
    pub async fn not_taken(&self, id: &str) -> Result<Option<Limit>> {
        let Context { tx, keys, claimant, .. } = self.context;
        let job = jobs::peek(tx, keys, claimant.job_type, id).await?;
        Ok(job.and_then(|job| claimant.tasks.refuses(job.task.as_deref())))
    }

    /// Stores the number of the latest claim, if the store counts them.
    pub fn store_number(&self) -> Result<()> {
        let Context { tx, keys, claimant, .. } = self.context;
        match self.latest {
            Some(latest) => claims::set_latest_number(tx, keys, claimant.job_type, claimant.worker, latest),
            None => Ok(()),
        }
    }

    /// Rewrites the sort keys that are out of date, of jobs that continue to wait.
    #[boxed]
    pub async fn sort(&self, queue: &Front) -> Result<()> {
        let Context { tx, keys, claimant, .. } = self.context;
        let waits = queue.to_sort.iter().filter(|(id, _)| !self.tried.contains(id));
        for (id, key) in waits.take(SORT_BATCH).take_while(|_| tx.has_room()) {
            tenants::set_key(tx, keys, claimant.job_type, id, *key).await?;
        }
        Ok(())
    }
}
