//! Sort keys: the order of jobs under CouchDB's fair-share scheduling (RFC 017), for types whose jobs rotate by it.
//!
//! *Model.* An added job has no key, and is sorted by the time since when it waits. A worker that uses keys gives a key
//! to each job at the head of a queue. It is the key of the job's last run, or that of a new job. The key stays the same
//! while the job waits. A worker that uses virtual time removes the keys again. So an operator can change the scheme
//! while jobs wait, in both directions.
//!
//! *What is not exact.* A job that no worker has read yet has no key. Its later key counts from the time since when it
//! waits, but with its tenant's usage at the time of that read. A tenant's jobs are counted once per interval, up to
//! [`MOST_COUNTED`]. If there are very many jobs to count, some tenants use older counts until a later pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use turnwise_policy::fair_share::{Fairness, rfc};
use turnwise_queue::tenants::{self, Pending};
use turnwise_queue::usage;
use turnwise_queue::{Error, Result, jobs};
use turnwise_store::Transaction;

use super::front::{Front, TenantQueue, ordered_by_key};
use super::{FairShare, Inner, RunCharges, State};
use crate::fairness::usage_of;

/// The maximum number of a tenant's pending jobs that are counted.
pub(crate) const MOST_COUNTED: usize = 10_000;
/// After this many counted jobs, a pass leaves the remaining tenants to later passes: a pass must not read all waiting
/// jobs.
const COUNTED_AT_ONCE: u64 = 20_000;
/// The number of tenants whose jobs are counted concurrently. Up to this many times [`MOST_COUNTED`] jobs may be read
/// beyond [`COUNTED_AT_ONCE`].
const CONCURRENT_COUNTS: usize = 8;
/// The number of queues that are read at the same time.
const CONCURRENT_READS: usize = 64;
/// The maximum number of jobs whose sort keys one transaction rewrites.
pub(crate) const SORT_BATCH: usize = 100;
/// The maximum number of tenants whose queues one pass reads by keys. If there are more, half of them are the first by
/// virtual time, and the others take turns.
const MAX_TENANTS: usize = 1_000;
/// The minimum number of jobs that such a pass reads of a tenant's queue.
const LEAST_SEEN: usize = 8;
/// The maximum number of missed charges that a running job's key gets in one step.
const MAX_CHARGES: i64 = 1_000;
/// The number of cycles after a change of schemes in which a worker searches queues for jobs that the other scheme has
/// sorted. It is more than one, because nodes do not change schemes at the same moment.
const SEARCH_CYCLES: u32 = 3;
/// The maximum number of consecutive transactions that remove keys, before other rows are written.
const REMOVE_BATCHES: usize = 100;

/// The state that keys need.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub boost: Option<rfc::Boost>,
    /// The number of a tenant's pending jobs, and when it was counted, in µs.
    pub pending: BTreeMap<Arc<str>, (u64, i64)>,
    /// Tenants whose queues may still hold jobs sorted by keys, although no worker uses keys any more.
    pub to_search: Vec<Arc<str>>,
    /// The number of cycles in which such jobs were searched, since the start or a change of schemes. Before this worker started,
    /// another worker may have used keys.
    pub searched: u32,
    /// Among the tenants that take turns, the position of the next one.
    seen: usize,
}

impl FairShare {
    /// If this worker uses keys, reads the increase of all keys, or writes it for the other workers. All workers must
    /// compute it from the same time and rules.
    #[boxed]
    pub async fn agree(&self) -> Result<()> {
        let now_us = self.now_us();
        let rules = {
            let state = self.state();
            if !state.by_keys() || state.boost().is_some() {
                return Ok(());
            }
            state.rules.rfc
        };
        let Inner { store, keys, job_type, .. } = &*self.inner;
        let agreed = store
            .transact(|tx| async move {
                let known = usage::read_boost(&tx, keys, job_type).await?;
                if let Some(known) = known.filter(|known| has_rules(known, &rules)) {
                    return Ok(known);
                }
                let new = match known {
                    Some(known) => known.with_rules(now_us, &rules),
                    None => rfc::Boost::new(now_us, &rules),
                };
                usage::write_boost(&tx, keys, job_type, &new)?;
                Ok::<_, Error>(new)
            })
            .await?;
        self.state().keys.boost = Some(agreed);
        Ok(())
    }

    /// Whether jobs are ordered by keys.
    pub fn by_keys(&self) -> bool {
        self.state().by_keys()
    }

    /// The sort key of a job that starts now; `None` if keys are not used.
    pub fn key_of_start(&self, tenant: &str, priority: Option<f64>, since_us: i64) -> Option<f64> {
        let now_us = self.now_us();
        let state = self.state();
        state.by_keys().then(|| state.key(tenant, priority, since_us, now_us).get())
    }

    /// Charges a running job's key for every moment of charging that has passed while it ran.
    pub fn grow_key(&self, charges: &RunCharges, key: &mut Option<f64>, grown_us: &mut i64) {
        let now_us = self.now_us();
        *key = self.state().grown_key(charges, *key, *grown_us, now_us);
        // A clock that is set back charges nothing twice.
        *grown_us = now_us.max(*grown_us);
    }

    /// Counts the pending jobs of tenants whose count is old: first those never counted, then the oldest counts, as
    /// many as one pass may.
    pub async fn count(&self, tx: &Transaction, tenants: impl IntoIterator<Item = Arc<str>>) -> Result<()> {
        let now_us = self.now_us();
        let mut old: Vec<(Option<i64>, Arc<str>)> = {
            let state = self.state();
            let old_us = now_us.saturating_sub(state.rules.rfc.charge_interval_us);
            let counted_us = |tenant: Arc<str>| (state.keys.pending.get(&tenant).map(|(_, at)| *at), tenant);
            let known = tenants.into_iter().map(counted_us);
            known.filter(|(at, _)| at.is_none_or(|at| at <= old_us)).collect()
        };
        old.sort();
        let (keys, job_type) = (&self.inner.keys, &self.inner.job_type);
        let count = |tenant: Arc<str>| async move {
            let counted = tenants::count_pending(tx, keys, job_type, &tenant, MOST_COUNTED).await?;
            Ok::<_, Error>((tenant, counted as u64))
        };
        let tenants = stream::iter(old.into_iter().map(|(_, tenant)| tenant));
        let mut counts = std::pin::pin!(tenants.map(count).buffered(CONCURRENT_COUNTS));
        let mut rows = 0;
        while rows < COUNTED_AT_ONCE
            && let Some((tenant, pending)) = counts.try_next().await?
        {
            rows += pending;
            self.state().keys.pending.insert(tenant, (pending, now_us));
        }
        Ok(())
    }

    /// The first `depth` waiting jobs, by their keys.
    pub(super) async fn front_by_keys(
        &self,
        tx: &Transaction,
        wake: Option<&Bytes>,
        depth: usize,
        mine: &impl Fn(&str) -> bool,
        wide: bool,
    ) -> Result<Front> {
        let now_us = self.now_us();
        let (all, tenants) = self.state().some_of_all();
        self.count(tx, tenants.iter().cloned()).await?;
        let most = (4 * depth).div_ceil(tenants.len().max(1)).clamp(LEAST_SEEN, depth.max(LEAST_SEEN));
        let (keys, job_type) = (&self.inner.keys, &self.inner.job_type);
        let wanted: Vec<(Arc<str>, usize)> = tenants.into_iter().map(|tenant| (tenant, most)).collect();
        let heads = self.decoded.read_each(tx, keys, job_type, &wanted).await?;
        let read = |((tenant, _), mut jobs): ((Arc<str>, usize), Vec<Pending>)| async move {
            let is_all = jobs.len() < most;
            let keyed = jobs.iter().filter(|job| job.key.is_some()).count();
            if !is_all {
                // In the store, jobs with keys come behind all jobs without keys, whatever their order is.
                let by_keys = self.decoded.read(tx, keys, keys.keyed_of(job_type, &tenant), most).await?;
                jobs.extend(by_keys.into_iter().skip(keyed));
            }
            Ok::<_, Error>((tenant, jobs, is_all))
        };
        let heads = stream::iter(wanted.into_iter().zip(heads));
        let queues: Vec<_> = heads.map(read).buffered(CONCURRENT_READS).try_collect().await?;
        let mut front = Front { beyond: all > queues.len(), ..Front::default() };
        for (tenant, queue, is_all) in queues {
            if queue.is_empty() {
                if !wide {
                    self.state().found_empty(&tenant, wake, now_us);
                }
                continue;
            }
            front.beyond |= !is_all;
            front.jobs.extend(queue.iter().map(|job| (job.clone(), front.tenants.len())));
            front.tenants.push(TenantQueue { tenant, jobs: queue.len(), is_all });
        }
        self.give_keys(tx, &mut front, mine).await?;
        front.jobs = ordered_by_key(std::mem::take(&mut front.jobs));
        front.beyond |= front.jobs.len() > depth;
        front.jobs.truncate(depth);
        if !front.beyond {
            front.again = self.state().waiting.must_be_read_again(wake);
            front.beyond = front.again;
        }
        Ok(front)
    }

    /// Gives keys to jobs without one; of those, jobs that are `mine` are then stored under their keys.
    async fn give_keys(
        &self,
        tx: &Transaction,
        front: &mut Front,
        mine: &impl Fn(&str) -> bool,
    ) -> Result<()> {
        let now_us = self.now_us();
        let (keys, job_type) = (&self.inner.keys, &self.inner.job_type);
        let unkeyed = front.jobs.iter().filter(|(job, _)| job.key.is_none() && mine(&job.id));
        let ids: Vec<String> = unkeyed.map(|(job, _)| job.id.clone()).take(SORT_BATCH).collect();
        // Snapshot reads, without conflicts: several heads of queues have more rows than a transaction can check. A job
        // that is then sorted or claimed is read again.
        let read = |id: String| async move {
            let job = jobs::peek(tx, keys, job_type, &id).await?;
            Ok::<_, Error>((id, job.and_then(|job| job.sort_key)))
        };
        let priorities: BTreeMap<String, Option<f64>> =
            stream::iter(ids).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        let state = self.state();
        for (job, tenant) in front.jobs.iter_mut().filter(|(job, _)| job.key.is_none()) {
            let tenant = &front.tenants[*tenant].tenant;
            let priority = priorities.get(&job.id);
            let key = state.key(tenant, priority.copied().flatten(), job.order_us, now_us).get();
            job.key = Some(key);
            // The priority comes before the key, but stored keys ignore it. So jobs of other priorities stay among those
            // without keys, which are sorted by priority.
            if priority.is_some() && job.priority == 0 {
                front.to_sort.push((job.id.clone(), Some(key)));
            }
        }
        Ok(())
    }

    /// In the first cycles after a change of schemes, searches queues for jobs that are still sorted by keys.
    pub fn search_for_keys(&self) {
        let mut state = self.state();
        if state.by_keys() || state.keys.searched == SEARCH_CYCLES {
            return;
        }
        state.keys.searched += 1;
        state.keys.to_search = state.waiting.in_order().map(|(tenant, _)| tenant.clone()).collect();
        drop(state);
        self.write_soon();
    }
}

impl Inner {
    /// Removes the keys of jobs in the queues that have to be searched, so that these jobs are sorted by time again.
    pub(super) async fn remove_keys(&self) -> Result<()> {
        for _ in 0..REMOVE_BATCHES {
            let tenant = {
                let mut state = self.state();
                if state.by_keys() {
                    state.keys.to_search.clear();
                }
                let Some(tenant) = state.keys.to_search.last().cloned() else { return Ok(()) };
                tenant
            };
            let (keys, job_type, name) = (&self.keys, &self.job_type, &tenant);
            let removed = self
                .store
                .transact(|tx| async move {
                    let keyed = tenants::keyed(&tx, keys, job_type, name, SORT_BATCH).await?;
                    let mut removed = false;
                    for job in &keyed {
                        if removed && !tx.has_room() {
                            break;
                        }
                        removed |= tenants::set_key(&tx, keys, job_type, &job.id, None).await?;
                    }
                    Ok::<_, Error>(removed)
                })
                .await?;
            if !removed {
                let to_search = &mut self.state().keys.to_search;
                // Another list may have been made meanwhile.
                if to_search.last() == Some(&tenant) {
                    to_search.pop();
                }
            }
        }
        Ok(())
    }
}

fn has_rules(boost: &rfc::Boost, rules: &rfc::Rules) -> bool {
    boost.coeff.total_cmp(&rules.priority_coeff).is_eq() && boost.interval_us == rules.priority_interval_us
}

impl State {
    /// Whether keys decide; only possible if jobs rotate.
    pub(super) fn by_keys(&self) -> bool {
        self.rules.rotation.is_some() && self.rules.fairness == Fairness::Rfc
    }

    /// The number of waiting tenants, and the tenants whose queues the next pass reads.
    pub(super) fn some_of_all(&mut self) -> (usize, Vec<Arc<str>>) {
        let all = self.waiting.len();
        let first = if all > MAX_TENANTS { MAX_TENANTS / 2 } else { all };
        let from = self.keys.seen.checked_rem(all - first).unwrap_or(0);
        let in_order = || self.waiting.in_order().map(|(tenant, _)| tenant.clone());
        let others = in_order().skip(first + from).take(MAX_TENANTS - first);
        let tenants = in_order().take(first).chain(others).collect();
        self.keys.seen = from + MAX_TENANTS - first;
        (all, tenants)
    }

    fn boost(&self) -> Option<&rfc::Boost> {
        self.keys.boost.as_ref().filter(|boost| has_rules(boost, &self.rules.rfc))
    }

    fn v(&self, now_us: i64) -> f64 {
        self.keys.boost.map_or(0.0, |boost| boost.at(now_us))
    }

    /// The recent run time of a tenant's jobs, here and at other chargers, in µs.
    fn usage_us(&self, tenant: &str, now_us: i64) -> f64 {
        let rules = &self.rules.rfc;
        let own = self.own.get(tenant).map_or(0.0, |own| own.usage.at(now_us, rules));
        let others = self.others.get(tenant).into_iter().flat_map(BTreeMap::values);
        own + others.map(|charged| usage_of(charged).at(now_us, rules)).sum::<f64>()
    }

    /// The number of a tenant's jobs that run or wait, as far as they are counted.
    pub(super) fn jobs(&self, tenant: &str) -> u64 {
        let own = self.own.get(tenant).map_or(0, |own| own.running);
        let others = self.others.get(tenant).into_iter().flatten();
        let live = others.filter(|(charger, _)| self.is_member(charger));
        let elsewhere: u64 = live.map(|(_, charged)| charged.running).sum();
        let pending = self.keys.pending.get(tenant).map_or(0, |(pending, _)| *pending);
        (own + elsewhere + pending).min(MOST_COUNTED as u64).max(1)
    }

    fn increment(&self, tenant: &str, now_us: i64) -> f64 {
        rfc::increment(self.usage_us(tenant, now_us), self.jobs(tenant), self.rules.shares.of(tenant))
    }

    /// The key of a job that has run since `grown_us`; `None` if keys are not used.
    pub(super) fn grown_key(
        &self,
        charges: &RunCharges,
        key: Option<f64>,
        grown_us: i64,
        now_us: i64,
    ) -> Option<f64> {
        if !self.by_keys() {
            return None;
        }
        let more = self.increment(&charges.tenant, now_us);
        let v = self.v(now_us);
        let mut grown = match key {
            Some(key) => rfc::Key::stored(key),
            // If keys were not used when it started, it counts as a new job.
            None => self.key(&charges.tenant, None, charges.started_us, now_us),
        };
        for _ in 0..self.rules.rfc.charges(grown_us, now_us).min(MAX_CHARGES) {
            grown = grown.add(more, v);
        }
        Some(grown.get())
    }

    /// A job's sort key: the key after its last run, or the key as if it had run for one interval when it was added.
    pub(super) fn key(&self, tenant: &str, priority: Option<f64>, since_us: i64, now_us: i64) -> rfc::Key {
        match priority {
            Some(priority) => rfc::Key::stored(priority),
            None => rfc::Key::of(self.increment(tenant, now_us), self.v(since_us.min(now_us))),
        }
    }
}
