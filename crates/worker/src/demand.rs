//! How many jobs of a type could run now, if there were slots for all of them.
//!
//! The number of pending jobs is exact. What filters, concurrency limits and locks will do to them shows only when a pass tries to claim
//! them, and without workers there are no passes. So the head of each queue is read, and stands for the rest of it.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use futures::stream::{self, StreamExt, TryStreamExt};
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::eligibility::rate::{Rate, RateLimit};
use turnwise_queue::rates::Starts;
use turnwise_queue::tenants::{self, Pending};
use turnwise_queue::{Keyspace, Result, claims, concurrency, jobs};
use turnwise_store::{Store, Transaction};

use crate::QueueRules;
use crate::filters::FilterCache;
use crate::locks::{self, Startable};

/// The jobs that are read, of all tenants together, and of each of them at least.
const SAMPLED: usize = 500;
const SAMPLED_OF_TENANT: usize = 5;
/// The tenants whose jobs are read: those with the most pending jobs.
const TENANTS: usize = SAMPLED / SAMPLED_OF_TENANT;
/// The most due jobs that are counted.
const MAX_DUE: usize = 10_000;
/// The most jobs whose locks are compared.
const MAX_STARTABLE: usize = 2_000;
/// The most buckets that are counted. Jobs of others count as if these had no room.
const MAX_BUCKETS: usize = 64;
/// The number of queues that are read at the same time.
const AT_ONCE: usize = 16;

/// The jobs of a type that could run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Runnable {
    /// Pending jobs by tenant, for each tenant that has some.
    pub of_tenant: BTreeMap<String, u64>,
    /// Due jobs, and limited jobs whose buckets have room: the next pass of a worker returns them to the queue.
    pub outside: u64,
    /// Of these, the part that names each task, by tenant: of the jobs that were read of each.
    pub tasks: BTreeMap<String, BTreeMap<String, f64>>,
    /// Since when the oldest of the sampled ones waits, in µs.
    pub oldest_us: Option<i64>,
}

impl Runnable {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.of_tenant.values().sum::<u64>().saturating_add(self.outside)
    }
}

/// What the sample of a tenant's queue shows.
#[derive(Default)]
struct Sample {
    jobs: usize,
    /// Those that no filter and no limit concerns.
    free: usize,
    /// Those that obey a limit: the first one, and how many.
    limited: BTreeMap<Bucket, usize>,
    /// Those that declare locks.
    locking: usize,
    /// Those that name a task.
    tasks: BTreeMap<String, usize>,
}

impl Sample {
    fn add(&mut self, other: &Sample) {
        self.jobs += other.jobs;
        self.free += other.free;
        self.locking += other.locking;
        for (bucket, jobs) in &other.limited {
            *self.limited.entry(bucket.clone()).or_default() += jobs;
        }
    }
}

/// How many jobs could run. `pending` are the numbers of pending jobs by tenant, in the same snapshot. Adds no read conflict.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn runnable(
    store: &Store,
    tx: &Transaction,
    keys: &Keyspace,
    rules: &QueueRules,
    job_type: &str,
    pending: &BTreeMap<String, u64>,
) -> Result<Runnable> {
    let now_us = store.runtime().now_us();
    let due = claims::count_due(tx, keys, job_type, now_us, MAX_DUE).await?;
    let outside = due + concurrency::releasable(tx, keys, job_type, now_us).await?;
    let mut result = Runnable { outside: outside as u64, ..Runnable::default() };
    let filters = FilterCache::default().load(tx, keys, job_type).await?;
    let mut largest: Vec<(&String, u64)> = pending.iter().map(|(tenant, jobs)| (tenant, *jobs)).collect();
    largest.retain(|(_, jobs)| *jobs > 0);
    largest.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(other.0)));
    let each = SAMPLED / largest.len().clamp(1, TENANTS);
    let heads = largest.iter().take(TENANTS).map(|(tenant, _)| async move {
        Ok::<_, turnwise_queue::Error>((*tenant, tenants::front(tx, keys, job_type, tenant, each).await?))
    });
    let heads: Vec<_> = heads.collect();
    let heads: Vec<(&String, Vec<Pending>)> = stream::iter(heads).buffered(AT_ONCE).try_collect().await?;
    let (mut samples, mut all, mut limits) =
        (BTreeMap::new(), Sample::default(), BTreeMap::<Bucket, (u32, Option<Rate>)>::new());
    for (tenant, head) in heads {
        let mut sample = Sample::default();
        for group in head.chunks(jobs::PREFETCHED) {
            jobs::prefetch(tx, keys, group.iter().map(|pending| (job_type, pending.id.as_str()))).await?;
            for pending in group {
                let Some(job) = jobs::peek(tx, keys, job_type, &pending.id).await? else { continue };
                sample.jobs += 1;
                if let Some(task) = &job.task {
                    *sample.tasks.entry(task.clone()).or_default() += 1;
                }
                sample.locking += usize::from(!pending.locks.is_none());
                let Some((of_job, rates)) = FilterCache::limits(filters.as_ref(), tx, keys, &job).await?
                else {
                    continue;
                };
                match (of_job.first(), rates.first()) {
                    (None, None) => sample.free += 1,
                    (Some(Limit { bucket, most }), _) => {
                        *sample.limited.entry(bucket.clone()).or_default() += 1;
                        limits.insert(bucket.clone(), (*most, None));
                    }
                    (None, Some(RateLimit { bucket, rate })) => {
                        *sample.limited.entry(bucket.clone()).or_default() += 1;
                        limits.insert(bucket.clone(), (rate.at_most, Some(rate.clone())));
                    }
                }
                let since_us = job.order_us().max(job.changed_us);
                result.oldest_us = result.oldest_us.into_iter().chain([since_us]).min();
            }
        }
        all.add(&sample);
        if !sample.tasks.is_empty() {
            let part = |jobs: usize| jobs as f64 / sample.jobs as f64;
            let tasks = std::mem::take(&mut sample.tasks).into_iter();
            result.tasks.insert(tenant.clone(), tasks.map(|(task, jobs)| (task, part(jobs))).collect());
        }
        samples.insert(tenant.clone(), sample);
    }
    let mut room: BTreeMap<Bucket, f64> = BTreeMap::new();
    for (bucket, (most, rate)) in limits.into_iter().take(MAX_BUCKETS) {
        let free = match rate {
            None => f64::from(most) - concurrency::count(tx, keys, &bucket).await? as f64,
            Some(rate) => {
                let mut starts = Starts::read(tx, keys, &bucket).await?;
                starts.places(tx, keys, &rate, most as usize, now_us).await?.now as f64
            }
        };
        room.insert(bucket, free);
    }
    // How many jobs of each bucket there are, and which part of them may start.
    let part =
        |pending: u64, sample: &Sample, jobs: usize| pending as f64 * jobs as f64 / sample.jobs.max(1) as f64;
    let of = |tenant: &String| samples.get(tenant).filter(|sample| sample.jobs > 0).unwrap_or(&all);
    let mut wanted: BTreeMap<&Bucket, f64> = BTreeMap::new();
    for (tenant, pending) in &largest {
        let sample = of(tenant);
        for (bucket, jobs) in &sample.limited {
            *wanted.entry(bucket).or_default() += part(*pending, sample, *jobs);
        }
    }
    let admitted = |bucket: &Bucket| {
        let wanted = wanted.get(bucket).copied().unwrap_or_default();
        (room.get(bucket).copied().unwrap_or_default().max(0.0) / wanted.max(1.0)).min(1.0)
    };
    // The part of the jobs with locks that could start together.
    let locking: f64 =
        largest.iter().map(|(tenant, pending)| part(*pending, of(tenant), of(tenant).locking)).sum();
    let mut unlocked = 1.0;
    if locking > 0.0 {
        let which = (Startable::Locking, MAX_STARTABLE);
        let startable = locks::startable(store, tx, keys, rules, job_type, which).await?;
        if startable < MAX_STARTABLE {
            unlocked = (startable as f64 / locking.max(1.0)).min(1.0);
        }
    }
    for (tenant, pending) in &largest {
        let sample = of(tenant);
        let limited = sample
            .limited
            .iter()
            .map(|(bucket, of_bucket)| part(*pending, sample, *of_bucket) * admitted(bucket));
        let jobs = part(*pending, sample, sample.free) + limited.sum::<f64>();
        let locking = part(1, sample, sample.locking);
        let jobs = (jobs * (1.0 - locking + locking * unlocked)).round() as u64;
        result.of_tenant.insert((*tenant).clone(), jobs);
    }
    if result.total() == 0 {
        result.oldest_us = None;
    }
    Ok(result)
}
