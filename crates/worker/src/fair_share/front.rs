//! The head of the queue: the first waiting jobs of all tenants, in the order in which they start.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_policy::contention::Shard;
use turnwise_policy::fair_share::virtual_time::{TenantTurn, apportion, first};
use turnwise_policy::rotation::by_priority;
use turnwise_queue::Result;
use turnwise_queue::tenants::Pending;
use turnwise_store::Transaction;

use super::FairShare;

/// The maximum number of rounds of reads, each of which follows because queues were shorter than expected.
const ROUNDS: usize = 4;

/// The head of the queue, as one pass has read it.
#[derive(Debug, Default)]
pub(crate) struct Front {
    /// The jobs in the order in which they start, each with the index of its tenant.
    pub jobs: Vec<(Pending, usize)>,
    /// The tenants whose queues were read.
    pub tenants: Vec<TenantQueue>,
    /// Whether there may be more jobs behind them.
    pub beyond: bool,
    /// Whether a repeated read may immediately find more jobs.
    pub again: bool,
    /// Jobs whose stored sort key is wrong, each with the correct key; `None` removes the key.
    pub to_sort: Vec<(String, Option<f64>)>,
}

impl Front {
    /// The tenant of the first job for which `is_one` is true.
    pub fn tenant_of_first(&self, is_one: impl Fn(&str) -> bool) -> Option<Arc<str>> {
        let first = self.jobs.iter().find(|(job, _)| is_one(&job.id));
        first.map(|(_, tenant)| self.tenants[*tenant].tenant.clone())
    }

    /// Replaces each job's priority by its rank among the priorities of the same tenant's jobs here: 0 for the lowest priority.
    /// A window is ordered by priorities first. With ranks, no tenant gets ahead of other tenants by its priority numbers. If
    /// a tenant's jobs all have one priority, their rank is 0.
    pub fn rank_classes(&mut self) {
        let mut priorities: BTreeMap<usize, BTreeSet<i8>> = BTreeMap::new();
        for (job, tenant) in &self.jobs {
            priorities.entry(*tenant).or_default().insert(job.priority);
        }
        for (job, tenant) in &mut self.jobs {
            let before =
                priorities.get(tenant).map_or(0, |priorities| priorities.range(..job.priority).count());
            job.priority = i8::try_from(before).unwrap_or(i8::MAX);
        }
    }
}

/// The part of a tenant's queue that was read.
#[derive(Debug)]
pub(crate) struct TenantQueue {
    pub tenant: Arc<str>,
    /// The number of jobs that were read.
    pub jobs: usize,
    /// Whether these are all jobs of the queue.
    pub is_all: bool,
}

/// The head of a tenant's queue.
struct Head {
    jobs: Vec<Pending>,
    is_all: bool,
}

impl FairShare {
    /// The first `depth` waiting jobs. `mine` states which jobs are this worker's, by id, and `permits` which tenants' jobs it
    /// may run. Only for jobs of this worker, stored sort keys are corrected. Call [`FairShare::refresh_waiting`] first.
    ///
    /// A `wide` front is for a worker whose first jobs cannot start. If the queues of the first tenants are still not known
    /// after [`ROUNDS`], this also reads some jobs of every other tenant. So no tenant is hidden by the tenants before it.
    /// The transaction may then have removed jobs from queues, and may fail. So a wide front does not record that a queue is
    /// empty.
    pub async fn front(
        &self,
        tx: &Transaction,
        wake: Option<&Bytes>,
        depth: usize,
        (mine, permits): (impl Fn(&str) -> bool, impl Fn(&str) -> bool),
        wide: bool,
    ) -> Result<Front> {
        let (mine, permits) = (&mine, &permits);
        let now_us = self.now_us();
        if self.by_keys() {
            return self.front_by_keys(tx, wake, depth, mine, wide).await;
        }
        let mut heads: BTreeMap<Arc<str>, Head> = BTreeMap::new();
        let mut round = 0;
        loop {
            round += 1;
            let (tenants, candidates) = self.candidates(depth, permits);
            let known = |tenant: &Arc<str>| match heads.get(tenant) {
                Some(head) if head.is_all => head.jobs.len(),
                _ => usize::MAX,
            };
            let jobs: Vec<usize> = tenants.iter().map(known).collect();
            let order = first(&candidates, &jobs, depth);
            let mut wanted = vec![0; tenants.len()];
            for tenant in &order {
                wanted[*tenant] += 1;
            }
            let seen = |tenant: &Arc<str>| heads.get(tenant).map_or(0, |head| head.jobs.len());
            let unread: Vec<(Arc<str>, usize)> = tenants
                .iter()
                .zip(&wanted)
                .filter(|(tenant, wanted)| seen(tenant) < **wanted)
                .map(|(tenant, wanted)| (tenant.clone(), *wanted))
                .collect();
            if unread.is_empty() || round > ROUNDS && !wide {
                let front = self.merge(heads, (tenants, candidates), &wanted, (mine, permits), wake);
                return Ok(Front { again: front.again || !unread.is_empty(), ..front });
            }
            if round > ROUNDS {
                let others: Vec<_> = tenants.iter().filter(|tenant| !heads.contains_key(*tenant)).collect();
                let each = depth.div_ceil(others.len().max(1));
                let others = others.into_iter().map(|tenant| (tenant.clone(), each)).collect();
                heads.extend(self.read(tx, others).await?);
                let (tenants, candidates) = self.candidates(depth, permits);
                let seen = |tenant: &Arc<str>| heads.get(tenant).map_or(0, |head| head.jobs.len());
                let jobs: Vec<usize> = tenants.iter().map(seen).collect();
                return Ok(self.merge(heads, (tenants, candidates), &jobs, (mine, permits), wake));
            }
            heads.extend(self.read(tx, unread).await?);
            let empty = heads.iter().filter(|(_, head)| !wide && head.jobs.is_empty());
            let mut state = self.state();
            empty.for_each(|(tenant, _)| state.found_empty(tenant, wake, now_us));
        }
    }

    /// The waiting jobs of `shard`: the first `depth`, and the given number of jobs of each tenant in `also`. Call
    /// [`FairShare::refresh_waiting`] first.
    #[boxed]
    pub async fn heads(
        &self,
        tx: &Transaction,
        wake: Option<&Bytes>,
        depth: usize,
        also: &BTreeMap<Arc<str>, usize>,
        shard: &Shard,
    ) -> Result<BTreeMap<Arc<str>, Vec<Pending>>> {
        let now_us = self.now_us();
        let mut heads: BTreeMap<Arc<str>, Vec<Pending>> = BTreeMap::new();
        for _ in 0..ROUNDS {
            let (tenants, candidates) = self.candidates(depth, |_| true);
            let mut wanted: BTreeMap<Arc<str>, usize> = also.clone();
            for (tenant, jobs) in tenants.iter().zip(apportion(&candidates, depth)) {
                let also = wanted.entry(tenant.clone()).or_default();
                *also = jobs.max(*also);
            }
            wanted.retain(|tenant, jobs| *jobs > 0 && !heads.contains_key(tenant));
            if wanted.is_empty() {
                break;
            }
            let wanted = wanted.into_iter().map(|(tenant, jobs)| (tenant, shard.front(jobs))).collect();
            for (tenant, head) in self.read(tx, wanted).await? {
                if head.jobs.is_empty() {
                    self.state().found_empty(&tenant, wake, now_us);
                }
                heads.insert(tenant, head.jobs.into_iter().filter(|job| shard.has(&job.id)).collect());
            }
        }
        Ok(heads)
    }

    /// Puts the given jobs into the order in which they start, as a head of the queue behind which there may be more.
    pub fn front_of(&self, found: Vec<(String, Pending)>) -> Front {
        let now_us = self.now_us();
        let state = self.state();
        let mut queues: BTreeMap<String, Vec<Pending>> = BTreeMap::new();
        for (tenant, mut pending) in found {
            if state.by_keys() && pending.key.is_none() {
                pending.key = Some(state.key(&tenant, None, pending.order_us, now_us).get());
            }
            queues.entry(tenant).or_default().push(pending);
        }
        let mut tenants = Vec::with_capacity(queues.len());
        let mut candidates = Vec::with_capacity(queues.len());
        for (tenant, queue) in &queues {
            tenants.push(TenantQueue { tenant: tenant.as_str().into(), jobs: queue.len(), is_all: false });
            candidates.push(state.candidate(tenant));
        }
        let mut jobs = in_order(&candidates, queues.into_values().collect());
        if state.by_keys() {
            jobs = ordered_by_key(jobs);
        }
        Front { jobs, tenants, beyond: true, ..Front::default() }
    }

    /// The first tenants, at most as many as jobs are wanted.
    fn candidates(&self, depth: usize, permits: impl Fn(&str) -> bool) -> (Vec<Arc<str>>, Vec<TenantTurn>) {
        let state = self.state();
        let candidate = |(tenant, next): (&Arc<str>, f64)| {
            let step = state.expected_us(tenant) / f64::from(state.shares(tenant));
            (tenant.clone(), TenantTurn { next, step })
        };
        state.waiting.in_order().filter(|(tenant, _)| permits(tenant)).take(depth).map(candidate).unzip()
    }

    /// Reads the heads of queues. It reads one job more than wanted of each, to find out whether there are more.
    async fn read(&self, tx: &Transaction, unread: Vec<(Arc<str>, usize)>) -> Result<Vec<(Arc<str>, Head)>> {
        let (keys, job_type) = (&self.inner.keys, &self.inner.job_type);
        let more: Vec<(Arc<str>, usize)> =
            unread.into_iter().map(|(tenant, wanted)| (tenant, wanted + 1)).collect();
        let queues = self.decoded.read_each(tx, keys, job_type, &more).await?;
        let head = |((tenant, more), mut jobs): ((Arc<str>, usize), Vec<Pending>)| {
            let is_all = jobs.len() < more;
            jobs.truncate(more - 1);
            (tenant, Head { jobs, is_all })
        };
        Ok(more.into_iter().zip(queues).map(head).collect())
    }

    fn merge(
        &self,
        mut heads: BTreeMap<Arc<str>, Head>,
        (tenants, candidates): (Vec<Arc<str>>, Vec<TenantTurn>),
        wanted: &[usize],
        (mine, permits): (&impl Fn(&str) -> bool, &impl Fn(&str) -> bool),
        wake: Option<&Bytes>,
    ) -> Front {
        let mut queues = Vec::new();
        // The jobs of this worker's shard come first, and are ordered without the jobs of other shards. So the order of
        // tenants does not depend on which of their jobs are in this shard.
        let (mut own, mut others) = (Vec::with_capacity(tenants.len()), Vec::with_capacity(tenants.len()));
        let mut beyond = false;
        for (tenant, wanted) in tenants.into_iter().zip(wanted) {
            let head = heads.remove(&tenant);
            beyond |= head.as_ref().is_none_or(|head| !head.is_all);
            let (jobs, is_all) = head.map_or((Vec::new(), false), |head| (head.jobs, head.is_all));
            queues.push(TenantQueue { tenant, jobs: jobs.len(), is_all });
            let (own_jobs, others_jobs): (Vec<Pending>, Vec<Pending>) =
                jobs.into_iter().take(*wanted).partition(|job| mine(&job.id));
            own.push(own_jobs);
            others.push(others_jobs);
        }
        let mut jobs = in_order(&candidates, own);
        jobs.extend(in_order(&candidates, others));
        let mut state = self.state();
        // Only tenants whose jobs this worker may run count.
        let mut permitted = state.waiting.in_order().filter(|(tenant, _)| permits(tenant));
        beyond |= state.waiting.len() > queues.len() && permitted.nth(queues.len()).is_some();
        drop(permitted);
        // Tenants whose jobs have arrived since the last read of the waiting tenants are missing here.
        let again = !beyond && state.waiting.must_be_read_again(wake);
        Front { jobs, tenants: queues, beyond: beyond || again, again, to_sort: Vec::new() }
    }
}

/// Jobs in the order of their keys, each with its tenant. The keys decide which positions a tenant gets; the priorities
/// decide which of its jobs take these positions.
pub(super) fn ordered_by_key(mut jobs: Vec<(Pending, usize)>) -> Vec<(Pending, usize)> {
    jobs.sort_by(|(one, _), (other, _)| by_key(one, other));
    by_priority(jobs, |(job, tenant)| (*tenant, job.priority.into()))
}

/// The order of jobs if keys decide.
fn by_key(one: &Pending, other: &Pending) -> Ordering {
    let position = |job: &Pending| (job.key.unwrap_or(f64::MAX), job.order_us);
    let ((one_key, one_us), (other_key, other_us)) = (position(one), position(other));
    one_key.total_cmp(&other_key).then(one_us.cmp(&other_us)).then_with(|| one.id.cmp(&other.id))
}

/// Jobs of tenants in the order in which they start, each with its tenant.
fn in_order(candidates: &[TenantTurn], queues: Vec<Vec<Pending>>) -> Vec<(Pending, usize)> {
    let jobs: Vec<usize> = queues.iter().map(Vec::len).collect();
    let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
    let order = first(candidates, &jobs, usize::MAX).into_iter();
    order.filter_map(|tenant| Some((queues[tenant].next()?, tenant))).collect()
}
