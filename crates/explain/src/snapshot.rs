//! The standing of a job type's tenants: a snapshot, computed only from rows, so that every node computes the same.
//!
//! A worker's memory is slightly newer than its rows: it writes its charges at each cycle, and about a second after a
//! job's end. A start is visible immediately, in the rows of running jobs. `docs/design/explanation.md` has
//! limits and formulas.

use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use turnwise_policy::fair_share::Fairness;
use turnwise_policy::fair_share::virtual_time::{Ledger, UNKNOWN_COST_US};
use turnwise_protocol as api;
use turnwise_protocol::MAX_COUNTED;
use turnwise_queue::counts::{self, Counts, Kind};
use turnwise_queue::off_queue::{self, KeptBy, OffQueue};
use turnwise_queue::usage::{Charged, RunTimes};
use turnwise_queue::workers::Contenders;
use turnwise_queue::{NODE_TYPE, State, jobs, tenants, usage, workers};
use turnwise_store::key::successor;
use turnwise_store::{Error as StoreError, Isolation, RangeRead};
use turnwise_worker::{FairRules, TenantCharges, usage_of};

use crate::{Reader, Result};

/// Maximum number of charge rows that are read of a type: those of 10,000 tenants with a few workers each.
const MAX_CHARGES: usize = 50_000;
/// Maximum number of tenants with waiting jobs that are read of a type.
const MAX_WAITING: usize = 20_000;
/// Maximum number of running jobs that are read of a type.
const MAX_RUNNING: usize = 20_000;
/// Number of rows of running jobs that one read returns: each may have about 10 kB.
const RUNNING_BATCH: usize = 500;
/// Maximum number of counts that are read of a type: those of the tenants that a snapshot knows at most.
const MAX_COUNTS: usize = 100_000;
/// Number of rows that one read returns.
const BATCH: usize = 5_000;
/// Number of jobs whose records are read to find the oldest wait.
const OLDEST_OF: usize = 8;
/// Number of jobs of a queue whose records are read to find their tasks.
const TASKS_OF: usize = 10;
/// Number of concurrent reads.
const AT_ONCE: usize = 16;
/// Number of types that are read if the request names none.
const MAX_TYPES: usize = 100;

/// The state of a job type at one moment.
pub struct Snapshot {
    /// The type.
    pub job_type: String,
    pub(crate) now_us: i64,
    pub(crate) rules: FairRules,
    pub(crate) capacity: api::Capacity,
    /// The ids of the quiet workers.
    quiet: BTreeSet<String>,
    /// The known tenants: those with waiting or running jobs, or with recent run time.
    pub tenants: BTreeMap<String, Standing>,
    /// Expected cost of a job, if nothing is known about its tenant.
    expected_of_type_us: Option<f64>,
    /// Expected run time of jobs, estimated from the past runs of all tenants.
    pub(crate) learnt_us: Option<f64>,
    /// Expected run time of the jobs of tasks, in µs.
    run_times: RunTimes,
    /// Virtual time of the job type: the highest that any worker has written.
    virtual_now: f64,
    /// The tenants' accounts, as of the next cycle where jobs rotate.
    ledger: Ledger,
    /// The charge of a rotating job in each cycle.
    turn_us: Option<f64>,
    /// Tenants with jobs that may be preempted.
    rotating: BTreeSet<String>,
    /// The highest virtual time of these tenants' last running jobs.
    highest_last: f64,
    /// The offset of the jobs' keys, with the fairness `rfc`.
    pub(crate) boost_v: f64,
    pub(crate) running: Vec<Running>,
    pub(crate) delayed: OffQueue,
    pub(crate) blocked: OffQueue,
    pub(crate) paused: OffQueue,
    pub(crate) limited: OffQueue,
    /// Tenants with names from this one on are not fully known, because there are too many. The requested tenant is always known.
    pub unknown_from: Option<String>,
}

/// The tenants to read, if there are more tenants than one request reads.
#[derive(Clone, Copy)]
pub enum Of<'a> {
    /// The first ones by name.
    First,
    /// The first ones after this name.
    After(&'a str),
    /// The first ones by name, and this one.
    Tenant(&'a str),
}

/// A tenant's standing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Standing {
    /// Its shares.
    pub shares: u32,
    /// What workers have charged it, and what of its jobs runs. While it waits, its tag is that of the ledger.
    pub charges: TenantCharges,
    /// The run time that is charged now, with the fairness `rfc`.
    pub usage_us: f64,
    /// Expected cost of one of its jobs, estimated from past runs.
    pub expected_us: Option<f64>,
    /// It may have pending jobs.
    pub waits: bool,
}

/// A running job: what of its row is needed. The rest, which may be large, is skipped.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Running {
    /// In the row's key.
    #[serde(skip)]
    pub id: String,
    /// In the row's key.
    #[serde(skip)]
    pub worker: String,
    pub tenant: String,
    #[serde(default)]
    pub task: Option<String>,
    pub started_us: i64,
    #[serde(default)]
    pub continuous: bool,
    #[serde(default)]
    pub cancel_requested: bool,
}

/// The types to read: the given one, or the first types with jobs or workers, from `from` on. Also returns the next
/// type, if there are more.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn types<'a>(
    reader: &'a Reader<'a>,
    job_type: Option<&str>,
    from: Option<&str>,
) -> Result<(Vec<String>, Option<String>)> {
    if let Some(job_type) = job_type {
        return Ok((vec![job_type.to_owned()], None));
    }
    // One type more than the limit, and the type of the nodes.
    let most = MAX_TYPES + 2;
    let with_jobs = jobs::types_after(reader.tx, reader.keys, from, most).await?;
    let with_workers = workers::types_after(reader.tx, reader.keys, from, most).await?;
    let mut types: BTreeSet<String> = with_jobs.into_iter().chain(with_workers).collect();
    types.extend(from.map(str::to_owned));
    types.remove(NODE_TYPE);
    let mut types: Vec<String> = types.into_iter().take(MAX_TYPES + 1).collect();
    let behind = if types.len() > MAX_TYPES { types.pop() } else { None };
    Ok((types, behind))
}

impl Snapshot {
    /// Reads the state of a type.
    ///
    /// # Errors
    /// Those of the store.
    #[boxed]
    pub async fn read<'a>(reader: &'a Reader<'a>, job_type: &str, of: Of<'a>) -> Result<Snapshot> {
        let (tx, keys, now_us) = (reader.tx, reader.keys, reader.now_us());
        let rules = reader.rules.fair(job_type).clone();
        let workers = workers::list(tx, keys, job_type).await?;
        let (quiet, active): (Vec<_>, Vec<_>) =
            workers.iter().filter(|worker| worker.slots > 0).partition(|worker| worker.mode.is_quiet());
        let running = running(reader, job_type).await?;
        let quiet_ids: BTreeSet<String> = quiet.iter().map(|worker| worker.id.clone()).collect();
        let is_quiet = |worker: &str| quiet_ids.contains(worker);
        let capacity = api::Capacity {
            workers: active.len(),
            slots: active.iter().map(|worker| worker.slots).sum(),
            most_slots: active.iter().any(|worker| worker.bounds.is_some()).then(|| {
                active.iter().map(|worker| worker.bounds.map_or(worker.slots, |bounds| bounds.most)).sum()
            }),
            running: running.iter().filter(|running| !is_quiet(&running.worker)).count(),
            quiet: quiet.len(),
        };
        let boost_v = match rules.fairness {
            Fairness::VirtualTime => 0.0,
            Fairness::Rfc => {
                usage::read_boost(tx, keys, job_type).await?.map_or(0.0, |boost| boost.at(now_us))
            }
        };
        let off_queue = async |kept_by| off_queue::list(tx, keys, job_type, kept_by, MAX_COUNTED).await;
        let mut snapshot = Snapshot {
            job_type: job_type.to_owned(),
            now_us,
            rules,
            capacity,
            quiet: quiet_ids,
            tenants: BTreeMap::new(),
            expected_of_type_us: None,
            learnt_us: None,
            run_times: usage::run_times(tx, keys, job_type).await?,
            virtual_now: 0.0,
            ledger: Ledger::default(),
            turn_us: None,
            rotating: BTreeSet::new(),
            highest_last: f64::NEG_INFINITY,
            boost_v,
            running,
            delayed: off_queue(KeptBy::Time).await?,
            blocked: off_queue(KeptBy::Jobs).await?,
            paused: off_queue(KeptBy::Filter).await?,
            limited: off_queue(KeptBy::Concurrency).await?,
            unknown_from: None,
        };
        let members = Contenders::of(&workers).members.into_iter().collect();
        let from = match of {
            Of::After(tenant) => Some(tenant),
            Of::First | Of::Tenant(_) => None,
        };
        let charges_from = snapshot.read_charges(reader, &members, from).await?;
        let each = |tenant, _| snapshot.tenants.entry(tenant).or_default().waits = true;
        let waiting_last =
            tenants::each_waiting(tx, keys, job_type, from, (BATCH, MAX_WAITING), each).await?;
        let waiting_from = waiting_last.as_deref().map(next_name);
        snapshot.unknown_from = charges_from.into_iter().chain(waiting_from).min();
        if let (Of::Tenant(tenant), Some(unknown_from)) = (of, &snapshot.unknown_from)
            && tenant >= unknown_from.as_str()
        {
            snapshot.tenants.remove(tenant);
            let rows = usage::of_tenant(tx, keys, job_type, tenant).await?;
            rows.into_iter()
                .for_each(|(charger, charged)| snapshot.charge(tenant, &charger, charged, &members));
            let row = tx.get_with(&keys.waiting_entry(job_type, tenant), Isolation::Snapshot).await?;
            snapshot.tenants.entry(tenant.to_owned()).or_default().waits = row.is_some();
        }
        snapshot.settle();
        snapshot.find_rotating();
        Ok(snapshot)
    }

    /// Adds up the charges of all workers to tenants after `from`. If there are too many rows, returns the first tenant
    /// whose charges were not read completely.
    async fn read_charges(
        &mut self,
        reader: &Reader<'_>,
        members: &BTreeSet<String>,
        from: Option<&str>,
    ) -> Result<Option<String>> {
        let job_type = self.job_type.clone();
        let from = from.map(next_name);
        let after = from.as_deref().map(|tenant| (tenant, ""));
        let each =
            |tenant: String, charger: String, charged| self.charge(&tenant, &charger, charged, members);
        let bounds = (BATCH, MAX_CHARGES);
        let last = usage::each_of_type(reader.tx, reader.keys, &job_type, after, bounds, each).await?;
        Ok(last.map(|(tenant, _)| tenant))
    }

    /// Adds one worker's charges to a tenant.
    fn charge(&mut self, tenant: &str, charger: &str, charged: Charged, members: &BTreeSet<String>) {
        self.ledger.advance_to(charged.now);
        let standing = self.tenants.entry(tenant.to_owned()).or_default();
        standing.charges.add(&charged, charged.tag, members.contains(charger));
        // The usage includes the charges of the current interval, so that a new tenant does not appear with zero.
        standing.usage_us += usage_of(&charged).with_fresh(self.now_us, &self.rules.rfc);
        // The estimate of the worker that has served more is better, but the plain mean is close enough.
        standing.expected_us = match (standing.expected_us, charged.expected_us) {
            (Some(one), Some(other)) => Some(f64::midpoint(one, other)),
            (one, other) => one.or(other),
        };
    }

    /// Makes rows of different kinds consistent, and the ledger of them.
    fn settle(&mut self) {
        let mut by_tenant: BTreeMap<&str, usize> = BTreeMap::new();
        for running in &self.running {
            *by_tenant.entry(&running.tenant).or_default() += 1;
        }
        for tenant in by_tenant.keys() {
            self.tenants.entry((*tenant).to_owned()).or_default();
        }
        let all_seen = self.running.len() < MAX_RUNNING;
        let known: Vec<f64> = self.tenants.values().filter_map(|standing| standing.expected_us).collect();
        self.learnt_us = (!known.is_empty()).then(|| known.iter().sum::<f64>() / many(known.len()));
        self.turn_us = self.rules.rotation.map(|rotation| rotation.interval.as_secs_f64() * 1e6);
        self.expected_of_type_us = self.turn_us.or(self.learnt_us);
        let unknown_us = self.expected_of_type_us.unwrap_or(UNKNOWN_COST_US);
        for (tenant, standing) in &mut self.tenants {
            let shares = self.rules.shares.of(tenant);
            let seen = by_tenant.get(tenant.as_str()).copied().unwrap_or(0);
            let expected_us = standing.expected_us.unwrap_or(unknown_us);
            let charges = &mut standing.charges;
            if all_seen && seen != charges.running {
                // Some of the jobs started or ended after the charges were written.
                let written = charges.in_flight_us / many(charges.running.max(1));
                let each_us = if written > 0.0 { written } else { expected_us };
                charges.in_flight_us = each_us * many(seen);
                charges.running = seen;
            }
            charges.load(&mut self.ledger, tenant);
            self.ledger.new_shares(tenant, shares);
            if standing.waits {
                self.ledger.resume(tenant, shares, expected_us);
            }
            charges.tag = charges.tag.map(|_| self.ledger.tag(tenant, shares));
            standing.shares = shares;
        }
        self.virtual_now = self.ledger.now();
        if let Some(rotation) = self.rules.rotation {
            self.ledger.cycle(rotation.max_churn);
        }
    }

    /// Finds the tenants with jobs that may be preempted, and the highest virtual time of their last jobs.
    fn find_rotating(&mut self) {
        let rotating = self.in_slots().filter(|running| running.continuous && !running.cancel_requested);
        self.rotating = rotating.map(|running| running.tenant.clone()).collect();
        let lasts = self.rotating.iter().map(|tenant| self.last(tenant));
        self.highest_last = lasts.fold(f64::NEG_INFINITY, f64::max);
    }

    /// Whether a rotating job may be preempted for a job of this tenant. It must belong to the same tenant, or to one
    /// with a higher virtual time.
    pub(crate) fn can_preempt(&self, tenant: &str) -> bool {
        match self.rules.fairness {
            Fairness::Rfc => !self.rotating.is_empty(),
            Fairness::VirtualTime => {
                self.rotating.contains(tenant) || self.highest_last > self.next(tenant).0
            }
        }
    }

    /// Expected cost of one of a tenant's jobs, in µs: estimated from past runs, or the policy's default.
    pub(crate) fn expected_us(&self, tenant: &str) -> f64 {
        let learnt = self.tenants.get(tenant).and_then(|standing| standing.expected_us);
        learnt.or(self.expected_of_type_us).unwrap_or(UNKNOWN_COST_US)
    }

    /// Expected run time of a job of this tenant and task, in µs, if past runs tell it.
    pub(crate) fn learnt_of(&self, tenant: &str, task: Option<&str>) -> Option<f64> {
        let of_task = task.and_then(|task| self.run_times.get(task).copied());
        let of_tenant = || self.tenants.get(tenant).and_then(|standing| standing.expected_us);
        of_task.or_else(of_tenant).or(self.learnt_us)
    }

    /// Expected run time of a tenant's pending jobs, in µs, if past runs tell it. `tasks` is the part of them that names each task.
    pub(crate) fn learnt_of_tasks(&self, tenant: &str, tasks: &BTreeMap<String, f64>) -> Option<f64> {
        let without = (1.0 - tasks.values().sum::<f64>()).max(0.0);
        let parts = tasks.iter().map(|(task, part)| (Some(task.as_str()), *part)).chain([(None, without)]);
        let parts = parts.filter(|(_, part)| *part > 0.0);
        parts.map(|(task, part)| self.learnt_of(tenant, task).map(|us| us * part)).sum()
    }

    /// The mean run time of the first pending jobs of a tenant, in µs, if past runs tell it. Reads these jobs only if the run times of
    /// some tasks are known.
    pub(crate) async fn learnt_of_queue(&self, reader: &Reader<'_>, tenant: &str) -> Result<Option<f64>> {
        if self.run_times.is_empty() {
            return Ok(self.learnt_of(tenant, None));
        }
        let (tx, keys, job_type) = (reader.tx, reader.keys, &self.job_type);
        let front = tenants::front(tx, keys, job_type, tenant, TASKS_OF).await?;
        jobs::prefetch(tx, keys, front.iter().map(|pending| (job_type.as_str(), pending.id.as_str())))
            .await?;
        let (mut tasks, part) = (BTreeMap::new(), 1.0 / many(front.len().max(1)));
        for pending in front {
            if let Some(task) =
                jobs::peek(tx, keys, job_type, &pending.id).await?.and_then(|job| job.into_fields().spec.task)
            {
                *tasks.entry(task).or_insert(0.0) += part;
            }
        }
        Ok(self.learnt_of_tasks(tenant, &tasks))
    }

    /// The mean run time of the running jobs, in µs, if some of them name a task whose run time is known.
    pub(crate) fn learnt_of_running(&self) -> Option<f64> {
        let names_one =
            |run: &Running| run.task.as_ref().is_some_and(|task| self.run_times.contains_key(task));
        if !self.in_slots().any(names_one) {
            return None;
        }
        let each = self.in_slots().filter_map(|run| self.learnt_of(&run.tenant, run.task.as_deref()));
        let (jobs, us) = each.fold((0, 0.0), |(jobs, sum), us| (jobs + 1, sum + us));
        Some(us / many(jobs))
    }

    /// The virtual time of a tenant's next job, and the increment for each job after it.
    pub(crate) fn next(&self, tenant: &str) -> (f64, f64) {
        let (shares, expected_us) = (self.rules.shares.of(tenant), self.expected_us(tenant));
        let next = match self.tenants.contains_key(tenant) {
            true => self.ledger.next(tenant, shares, expected_us),
            // It has no deficit, and nothing in flight.
            false => self.ledger.pace().position(self.virtual_now, expected_us / 2.0, shares, expected_us),
        };
        (next, expected_us / f64::from(shares.max(1)))
    }

    /// The virtual time of the last of a tenant's running jobs.
    fn last(&self, tenant: &str) -> f64 {
        self.ledger.last(tenant, self.rules.shares.of(tenant), self.expected_us(tenant))
    }

    /// Whether jobs of a tenant are preempted for each other, in the order of their waits.
    pub(crate) fn take_turns(&self, tenant: &str) -> bool {
        self.rules.fairness == Fairness::VirtualTime && self.rotating.contains(tenant)
    }

    /// The running jobs in the slots that new jobs may get: those of workers that are not quiet.
    fn in_slots(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().filter(|running| !self.quiet.contains(&running.worker))
    }

    /// Number of free slots.
    pub(crate) fn free(&self) -> usize {
        self.capacity.slots.saturating_sub(self.capacity.running)
    }

    /// Number of jobs that all workers together preempt at each cycle: at most the slots that rotating jobs can have.
    /// Zero if no running job rotates.
    pub(crate) fn churn(&self) -> usize {
        if self.rotating.is_empty() {
            return 0;
        }
        let churn = self.rules.rotation.map_or(0, |rotation| rotation.max_churn);
        let held = self.in_slots().filter(|running| !running.continuous).count();
        let slots = self.capacity.slots.saturating_sub(held).max(1);
        churn.saturating_mul(self.capacity.workers).min(slots)
    }

    /// A tenant's deficit, in µs.
    pub fn deficit_us(&self, standing: &Standing) -> Option<i64> {
        if self.rules.fairness == Fairness::Rfc {
            return None;
        }
        let TenantCharges { tag, in_flight_us, .. } = standing.charges;
        let behind = (self.virtual_now - tag?) * f64::from(standing.shares) - in_flight_us;
        let deficit = if standing.waits { behind } else { behind.min(0.0) };
        Some(deficit.round() as i64)
    }

    /// A tenant in the form of the API. Its oldest job is searched among the first `most` of its queue.
    ///
    /// # Errors
    /// Those of the store.
    #[boxed]
    pub async fn tenant<'a>(&self, reader: &'a Reader<'a>, tenant: &str, most: usize) -> Result<api::Tenant> {
        let none = Standing { shares: self.rules.shares.of(tenant), ..Standing::default() };
        let standing = self.tenants.get(tenant).unwrap_or(&none);
        let queue = match standing.waits {
            true => tenants::front(reader.tx, reader.keys, &self.job_type, tenant, most).await?,
            false => Vec::new(),
        };
        let whole = |us: f64| us.round() as u64;
        Ok(api::Tenant {
            job_type: self.job_type.clone(),
            tenant: tenant.to_owned(),
            shares: standing.shares,
            service_us: standing.charges.service_us,
            usage_us: whole(standing.usage_us),
            deficit_us: self.deficit_us(standing),
            expected_run_us: standing.expected_us.map(whole),
            running: standing.charges.running,
            pending: counts::of_tenant(reader.tx, reader.keys, &self.job_type, tenant).await?[Kind::Pending],
            oldest_claimable_us: self.oldest(reader, queue).await?,
        })
    }

    /// When the oldest of these jobs began to wait. A job that its worker gave back, at a shutdown or after its end,
    /// has the place of its last start. But it has waited only since it was given back.
    pub(crate) async fn oldest(
        &self,
        reader: &Reader<'_>,
        mut queue: Vec<tenants::Pending>,
    ) -> Result<Option<i64>> {
        queue.sort_by_key(|pending| pending.order_us);
        let mut oldest: Option<i64> = None;
        for pending in queue.into_iter().take(OLDEST_OF) {
            if oldest.is_some_and(|oldest| oldest <= pending.order_us) {
                break;
            }
            let Some(job) = jobs::get(reader.tx, reader.keys, &self.job_type, &pending.id).await? else {
                continue;
            };
            let since_us = could_run_since(&job);
            oldest = Some(oldest.map_or(since_us, |oldest| oldest.min(since_us)));
        }
        Ok(oldest)
    }

    /// The totals of the type, in the form of the API.
    ///
    /// # Errors
    /// Those of the store.
    #[boxed]
    pub async fn summary<'a>(&self, reader: &'a Reader<'a>) -> Result<api::TypeSummary> {
        Ok(api::TypeSummary {
            job_type: self.job_type.clone(),
            capacity: self.capacity,
            fairness: match self.rules.fairness {
                Fairness::VirtualTime => api::Fairness::VirtualTime,
                Fairness::Rfc => api::Fairness::Rfc,
            },
            tenants: self.tenants.len(),
            waiting_tenants: self.tenants.values().filter(|standing| standing.waits).count(),
            jobs: job_counts(&counts::of_type(reader.tx, reader.keys, &self.job_type).await?),
        })
    }

    /// Whether nothing waits, nothing runs, and no worker exists.
    pub fn is_empty(&self) -> bool {
        let off_queue = [&self.delayed, &self.blocked, &self.paused, &self.limited];
        let waits = off_queue.iter().any(|jobs| !jobs.ids.is_empty());
        self.capacity.workers == 0 && self.tenants.is_empty() && !waits
    }
}

/// Counts in the form of the API.
pub fn job_counts(counts: &Counts) -> api::JobCounts {
    api::JobCounts {
        pending: counts[Kind::Pending],
        delayed: counts[Kind::Delayed],
        crashing: counts[Kind::Crashing],
        parked: counts[Kind::Parked],
        blocked: counts[Kind::Blocked],
        paused: counts[Kind::Paused],
        limited: counts[Kind::Limited],
        running: counts[Kind::Running],
        completed: counts[Kind::Completed],
        failed: counts[Kind::Failed],
        cancelled: counts[Kind::Cancelled],
    }
}

/// The number of jobs of each of these kinds, by tenant, for each tenant that has some.
pub(crate) async fn jobs_by_tenant<const N: usize>(
    reader: &Reader<'_>,
    job_type: &str,
    kinds: [Kind; N],
) -> Result<[BTreeMap<String, u64>; N]> {
    let counted = counts::list_of_type(reader.tx, reader.keys, job_type, None, MAX_COUNTS).await?;
    let of_kind = |kind| counted.iter().map(move |of| (of.tenant.clone(), of.counts[kind]));
    Ok(kinds.map(|kind| of_kind(kind).filter(|(_, jobs)| *jobs > 0).collect()))
}

/// The results of these reads, in order. A few reads run concurrently, which matters where each is a request to a cluster.
///
/// # Errors
/// The first one.
pub async fn all_of<T, E>(reads: Vec<impl Future<Output = Result<T, E>>>) -> Result<Vec<T>, E> {
    stream::iter(reads).buffered(AT_ONCE).try_collect().await
}

/// The first possible name after another one.
fn next_name(name: &str) -> String {
    format!("{name}\0")
}

/// A count as a factor for durations.
pub(crate) fn many(count: usize) -> f64 {
    count as f64
}

/// Since when a job has been pending, or in its current state outside of the queue.
pub fn could_run_since(job: &turnwise_queue::Job) -> i64 {
    match job.state() {
        State::Pending => job.order_us().max(job.changed_us),
        _ => job.changed_us,
    }
}

async fn running(reader: &Reader<'_>, job_type: &str) -> Result<Vec<Running>> {
    let (mut begin, end) = reader.keys.active(job_type);
    let mut running = Vec::new();
    while running.len() < MAX_RUNNING {
        let read = RangeRead { begin, end: end.clone(), limit: RUNNING_BATCH, reverse: false };
        let rows = reader.tx.range_with(read, Isolation::Snapshot).await?;
        let exhausted = rows.len() < RUNNING_BATCH;
        for (key, value) in &rows {
            let (Ok((worker, id)), Ok(row)) = (reader.keys.parse_active(key), serde_json::from_slice(value))
            else {
                return Err(
                    StoreError::Corrupt(format!("{job_type}: a running job's row cannot be read")).into()
                );
            };
            running.push(Running { id, worker, ..row });
        }
        match rows.last() {
            Some((last, _)) if !exhausted => begin = successor(last),
            _ => break,
        }
    }
    Ok(running)
}
