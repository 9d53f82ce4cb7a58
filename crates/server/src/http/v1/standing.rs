//! How the tenants of a job type stand: one snapshot of a moment, from rows alone, so that every node paints the same one.
//!
//! What a worker knows in memory is a little newer than its rows: it writes what it has charged at each cycle, and about a second
//! after a job's end. What starts is seen at once, in the rows of the jobs that run. Bounds and formulas:
//! `docs/design/0019-why-and-when.md`.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::value::RawValue;
use turnwise_policy::fair_share::virtual_time::{Ledger, Pace, UNKNOWN_COST_US};
use turnwise_policy::fair_share::{Fairness, rfc};
use turnwise_protocol as api;
use turnwise_protocol::MAX_COUNTED;
use turnwise_queue::off_queue::{self, KeptBy, OffQueue};
use turnwise_queue::usage::Charged;
use turnwise_queue::{NODE_TYPE, State, jobs, tenants, usage, workers};
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_replicator::doc_processor::Summary;
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};
use turnwise_worker::{FairRules, boost_of, usage_of};

use super::error::{Result, V1Error};
use crate::http::App;
use crate::live;

/// Rows of charges that are read of a type: those of 10,000 tenants with a few workers each.
const MAX_CHARGES: usize = 50_000;
/// Tenants with jobs that wait that are read of a type.
const MAX_WAITING: usize = 20_000;
/// Running jobs that are read of a type.
const MAX_RUNNING: usize = 20_000;
/// Rows of running jobs that one read takes: each may be some 10 kB.
const RUNNING_BATCH: usize = 500;
/// Rows that one read takes.
const BATCH: usize = 5_000;
/// Jobs at the front of a queue of which it is seen since when they could run.
const OLDEST_OF: usize = 8;
/// Reads that are under way at the same time.
const AT_ONCE: usize = 16;
/// Types that are looked at where none is named.
pub(super) const MAX_TYPES: usize = 100;

/// A job type at a moment.
pub(super) struct Snapshot {
    pub job_type: String,
    pub now_us: i64,
    pub rules: FairRules,
    pub capacity: api::Capacity,
    /// The tenants that are known: with jobs that wait or run, or with recent run time.
    pub tenants: BTreeMap<String, Standing>,
    /// What a job is expected to cost where nothing is known of its tenant.
    expected_of_type_us: Option<f64>,
    /// How long jobs run, as learnt from any tenant.
    pub learnt_us: Option<f64>,
    /// System virtual time, as far as anyone has come.
    pub virtual_now: f64,
    /// How fast it goes, where jobs rotate.
    pace: Pace,
    /// What a job that rotates is charged for in each cycle.
    turn_us: Option<f64>,
    /// Tenants with jobs that may be stopped for others.
    rotating: BTreeSet<String>,
    /// Where the highest of the last ones of those jobs stands.
    highest_last: f64,
    /// How far keys are lifted, where they decide.
    pub boost_v: f64,
    pub running: Vec<Running>,
    pub delayed: OffQueue,
    pub blocked: OffQueue,
    pub paused: OffQueue,
    pub limited: OffQueue,
    /// Of tenants with names from this one on not everything is known: there are too many. But of the one that was asked for it is.
    pub unknown_from: Option<String>,
}

/// Whose standing is looked at, where there are more tenants than one look reads.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    /// The first by name.
    First,
    /// The first by name behind this one.
    After(&'a str),
    /// The first by name, and this one.
    Tenant(&'a str),
}

/// How a tenant stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Standing {
    pub shares: u32,
    pub service_us: u64,
    pub usage_us: f64,
    /// Service received divided by shares; none if no worker has taken note of the tenant yet.
    pub tag: Option<f64>,
    pub in_flight_us: f64,
    /// What one of its jobs is expected to cost, as learnt.
    pub expected_us: Option<f64>,
    pub running: usize,
    /// It may have jobs that could run.
    pub waits: bool,
}

/// A job that runs.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub id: String,
    pub worker: String,
    pub tenant: String,
    pub started_us: i64,
    pub continuous: bool,
    pub cancel_requested: bool,
}

/// What fair share goes by for jobs of a type.
fn rules(app: &App, job_type: &str) -> FairRules {
    let config = app.config.get();
    match job_type {
        REPLICATION => live::fair_replications(&config),
        _ => live::fair_commands(&config),
    }
}

/// The types to look at: this one, or the first of those that have jobs or workers, from `from` on; and the one behind them, if there are
/// more.
pub(super) async fn types(
    app: &App,
    tx: &Transaction,
    job_type: Option<&str>,
    from: Option<&str>,
) -> Result<(Vec<String>, Option<String>)> {
    if let Some(job_type) = job_type {
        return Ok((vec![job_type.to_owned()], None));
    }
    // One more than there is room for, and the nodes'.
    let most = MAX_TYPES + 2;
    let with_jobs = jobs::types_after(tx, &app.keys, from, most).await?;
    let with_workers = workers::types_after(tx, &app.keys, from, most).await?;
    let mut types: BTreeSet<String> = with_jobs.into_iter().chain(with_workers).collect();
    types.extend(from.map(str::to_owned));
    types.remove(NODE_TYPE);
    let mut types: Vec<String> = types.into_iter().take(MAX_TYPES + 1).collect();
    let behind = if types.len() > MAX_TYPES { types.pop() } else { None };
    Ok((types, behind))
}

impl Snapshot {
    pub async fn read(app: &App, tx: &Transaction, job_type: &str, of: Of<'_>) -> Result<Snapshot> {
        let (keys, now_us) = (&app.keys, app.now_us());
        let rules = rules(app, job_type);
        let workers = workers::list(tx, keys, job_type).await?;
        let with_slots = workers.iter().filter(|worker| worker.slots > 0);
        let running = running(app, tx, job_type).await?;
        let capacity = api::Capacity {
            workers: with_slots.clone().count(),
            slots: with_slots.map(|worker| worker.slots).sum(),
            running: running.len(),
        };
        let boost_v = match rules.fairness {
            Fairness::VirtualTime => 0.0,
            Fairness::Rfc => {
                let boost = usage::read_boost(tx, keys, job_type).await?.map(boost_of);
                boost.map_or(0.0, |boost| boost.at(now_us))
            }
        };
        let off_queue = async |kept_by| off_queue::list(tx, keys, job_type, kept_by, MAX_COUNTED).await;
        let mut snapshot = Snapshot {
            job_type: job_type.to_owned(),
            now_us,
            rules,
            capacity,
            tenants: BTreeMap::new(),
            expected_of_type_us: None,
            learnt_us: None,
            virtual_now: 0.0,
            pace: Pace::default(),
            turn_us: None,
            rotating: BTreeSet::new(),
            highest_last: f64::NEG_INFINITY,
            boost_v,
            running,
            delayed: off_queue(KeptBy::Time).await?,
            blocked: off_queue(KeptBy::Jobs).await?,
            paused: off_queue(KeptBy::Filter).await?,
            limited: off_queue(KeptBy::RateLimit).await?,
            unknown_from: None,
        };
        let contends = |worker: &workers::Worker| match worker.external {
            true => workers::node_contender(&worker.node),
            false => worker.id.clone(),
        };
        let members = workers.iter().filter(|worker| worker.slots > 0).map(contends).collect();
        let from = match of {
            Of::After(tenant) => Some(tenant),
            Of::First | Of::Tenant(_) => None,
        };
        let charges_from = snapshot.read_charges(app, tx, &members, from).await?;
        let mut waiting_from = None;
        let mut after: Option<String> = from.map(str::to_owned);
        for read in 1..=MAX_WAITING / BATCH {
            let batch = tenants::waiting(tx, keys, job_type, after.as_deref(), BATCH).await?;
            let exhausted = batch.len() < BATCH;
            after = batch.last().map(|(tenant, _)| tenant.clone());
            for (tenant, _) in batch {
                snapshot.tenants.entry(tenant).or_default().waits = true;
            }
            if exhausted {
                break;
            }
            if read == MAX_WAITING / BATCH {
                waiting_from = after.as_deref().map(next_name);
            }
        }
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
        snapshot.look_how_fast();
        snapshot.look_who_can_preempt();
        Ok(snapshot)
    }

    /// Adds up what all chargers have charged, to tenants after `from`. Returns from which tenant on not all of that was read, if there
    /// is too much.
    async fn read_charges(
        &mut self,
        app: &App,
        tx: &Transaction,
        members: &BTreeSet<String>,
        from: Option<&str>,
    ) -> Result<Option<String>> {
        let mut after: Option<(String, String)> = from.map(|from| (next_name(from), String::new()));
        for _ in 0..MAX_CHARGES / BATCH {
            let place = after.as_ref().map(|(tenant, charger)| (tenant.as_str(), charger.as_str()));
            let batch = usage::of_type(tx, &app.keys, &self.job_type, place, BATCH).await?;
            let exhausted = batch.len() < BATCH;
            after = batch.last().map(|(tenant, charger, _)| (tenant.clone(), charger.clone()));
            for (tenant, charger, charged) in batch {
                self.charge(&tenant, &charger, charged, members);
            }
            if exhausted {
                return Ok(None);
            }
        }
        Ok(after.map(|(tenant, _)| tenant))
    }

    /// Adds what one has charged to a tenant. What runs of those that are no `members` any more is with others now.
    fn charge(&mut self, tenant: &str, charger: &str, charged: Charged, members: &BTreeSet<String>) {
        self.virtual_now = self.virtual_now.max(charged.now);
        let usage = usage_of(&charged);
        let standing = self.tenants.entry(tenant.to_owned()).or_default();
        standing.service_us = standing.service_us.saturating_add(charged.service_us);
        // What was charged in this interval counts, too: a tenant that has just begun has used something.
        standing.usage_us +=
            usage.at(self.now_us, &self.rules.rfc) + fresh(usage, self.now_us, &self.rules.rfc);
        standing.tag = Some(standing.tag.unwrap_or(0.0).max(charged.tag));
        if members.contains(charger) {
            standing.in_flight_us += charged.in_flight_us;
            let running = usize::try_from(charged.running).unwrap_or(usize::MAX);
            standing.running = standing.running.saturating_add(running);
        }
        // Of several that have learnt, the one that has served more knows better; a plain mean is near enough.
        standing.expected_us = match (standing.expected_us, charged.expected_us) {
            (Some(one), Some(other)) => Some(f64::midpoint(one, other)),
            (one, other) => one.or(other),
        };
    }

    /// What rows of different kinds say, made to agree.
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
            standing.shares = self.rules.shares.of(tenant);
            let seen = by_tenant.get(tenant.as_str()).copied().unwrap_or(0);
            let expected_us = standing.expected_us.unwrap_or(unknown_us);
            if all_seen && seen != standing.running {
                // The charges were written before some of them started or ended.
                let written = standing.in_flight_us / many(standing.running.max(1));
                let each_us = if written > 0.0 { written } else { expected_us };
                standing.in_flight_us = each_us * many(seen);
                standing.running = seen;
            }
            if standing.waits {
                // As the ledger does with those that arrive: nobody is owed more than one turn for having waited elsewhere.
                let least = self.virtual_now - expected_us / f64::from(standing.shares.max(1));
                standing.tag = standing.tag.map(|tag| tag.max(least));
            }
        }
    }

    /// Which tenants have jobs that may be stopped for others, and where the last one of them stands.
    fn look_who_can_preempt(&mut self) {
        let rotating = self.running.iter().filter(|running| running.continuous && !running.cancel_requested);
        self.rotating = rotating.map(|running| running.tenant.clone()).collect();
        let lasts = self.rotating.iter().map(|tenant| self.last(tenant));
        self.highest_last = lasts.fold(f64::NEG_INFINITY, f64::max);
    }

    /// Whether a job that rotates may be stopped for a job of this tenant: of the same tenant, or of one that is owed less.
    pub fn can_preempt(&self, tenant: &str) -> bool {
        match self.rules.fairness {
            Fairness::Rfc => !self.rotating.is_empty(),
            Fairness::VirtualTime => {
                self.rotating.contains(tenant) || self.highest_last > self.next(tenant).0
            }
        }
    }

    /// How fast virtual time goes, as a ledger finds it at each cycle that holds what the rows say.
    fn look_how_fast(&mut self) {
        let Some(rotation) = self.rules.rotation else { return };
        let mut ledger = Ledger::default();
        ledger.advance_to(self.virtual_now);
        for (tenant, standing) in &self.tenants {
            let shares = standing.shares;
            ledger.load(tenant, standing.tag.unwrap_or(self.virtual_now));
            ledger.new_shares(tenant, shares);
            if standing.waits {
                ledger.resume(tenant, shares, self.expected_us(tenant));
            }
            ledger.in_flight_elsewhere(tenant, standing.in_flight_us);
        }
        ledger.cycle(rotation.max_churn);
        self.pace = ledger.pace();
    }

    /// What one of a tenant's jobs is expected to cost, in µs: learnt, or what the policy takes for it.
    pub fn expected_us(&self, tenant: &str) -> f64 {
        let learnt = self.tenants.get(tenant).and_then(|standing| standing.expected_us);
        learnt.or(self.expected_of_type_us).unwrap_or(UNKNOWN_COST_US)
    }

    /// Where a tenant's next job stands, by virtual time; and how much further each one after that.
    pub fn next(&self, tenant: &str) -> (f64, f64) {
        let none = Standing { shares: self.rules.shares.of(tenant), ..Standing::default() };
        let standing = self.tenants.get(tenant).unwrap_or(&none);
        let expected_us = self.expected_us(tenant);
        let tag = standing.tag.unwrap_or(self.virtual_now);
        let after_us = standing.in_flight_us + expected_us / 2.0;
        let next = self.pace.position(tag, after_us, standing.shares, expected_us);
        (next, expected_us / f64::from(standing.shares.max(1)))
    }

    /// Where the last of a tenant's running jobs stands.
    fn last(&self, tenant: &str) -> f64 {
        let standing = &self.tenants[tenant];
        let tag = standing.tag.unwrap_or(self.virtual_now);
        let expected_us = self.expected_us(tenant);
        let before_us = standing.in_flight_us - expected_us / 2.0;
        self.pace.position(tag, before_us, standing.shares, expected_us)
    }

    /// Whether jobs of a tenant are preempted for each other, by the time for which they wait.
    pub fn take_turns(&self, tenant: &str) -> bool {
        self.rules.fairness == Fairness::VirtualTime && self.rotating.contains(tenant)
    }

    /// Jobs that are preempted at each cycle, on all workers together: no more than there are slots for jobs that do; none if
    /// none of those that run rotates.
    pub fn churn(&self) -> usize {
        if self.rotating.is_empty() {
            return 0;
        }
        let churn = self.rules.rotation.map_or(0, |rotation| rotation.max_churn);
        let held = self.running.iter().filter(|running| !running.continuous).count();
        let slots = self.capacity.slots.saturating_sub(held).max(1);
        churn.saturating_mul(self.capacity.workers).min(slots)
    }

    /// What a tenant is owed, in µs.
    pub fn owed_us(&self, standing: &Standing) -> Option<i64> {
        if self.rules.fairness == Fairness::Rfc {
            return None;
        }
        let behind = (self.virtual_now - standing.tag?) * f64::from(standing.shares) - standing.in_flight_us;
        let owed = if standing.waits { behind } else { behind.min(0.0) };
        #[allow(clippy::cast_possible_truncation, reason = "a cast of a float stays within the bounds")]
        Some(owed.round() as i64)
    }

    /// A tenant as clients see it, with its queue counted up to `most`.
    pub async fn tenant(
        &self,
        app: &App,
        tx: &Transaction,
        tenant: &str,
        most: usize,
    ) -> Result<api::Tenant> {
        let none = Standing { shares: self.rules.shares.of(tenant), ..Standing::default() };
        let standing = self.tenants.get(tenant).unwrap_or(&none);
        let queue = match standing.waits {
            true => tenants::front(tx, &app.keys, &self.job_type, tenant, most + 1).await?,
            false => Vec::new(),
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "stays within the bounds")]
        let whole = |us: f64| us.round() as u64;
        Ok(api::Tenant {
            job_type: self.job_type.clone(),
            tenant: tenant.to_owned(),
            shares: standing.shares,
            service_us: standing.service_us,
            usage_us: whole(standing.usage_us),
            owed_us: self.owed_us(standing),
            expected_run_us: standing.expected_us.map(whole),
            running: standing.running,
            pending: queue.len().min(most),
            pending_more: queue.len() > most,
            oldest_claimable_us: self.oldest(app, tx, queue).await?,
        })
    }

    /// Since when the first of these jobs could run. One that a worker had to give back, at its shutdown or after its end, has its place
    /// by its last start, and could run since then only.
    async fn oldest(
        &self,
        app: &App,
        tx: &Transaction,
        mut queue: Vec<tenants::Pending>,
    ) -> Result<Option<i64>> {
        queue.sort_by_key(|pending| pending.order_us);
        let mut oldest: Option<i64> = None;
        for pending in queue.into_iter().take(OLDEST_OF) {
            if oldest.is_some_and(|oldest| oldest <= pending.order_us) {
                break;
            }
            let Some(job) = jobs::get(tx, &app.keys, &self.job_type, &pending.id).await? else { continue };
            let since_us = could_run_since(&job);
            oldest = Some(oldest.map_or(since_us, |oldest| oldest.min(since_us)));
        }
        Ok(oldest)
    }

    pub fn summary(&self) -> api::TypeSummary {
        api::TypeSummary {
            job_type: self.job_type.clone(),
            capacity: self.capacity,
            fairness: match self.rules.fairness {
                Fairness::VirtualTime => api::Fairness::VirtualTime,
                Fairness::Rfc => api::Fairness::Rfc,
            },
            tenants: self.tenants.len(),
            waiting_tenants: self.tenants.values().filter(|standing| standing.waits).count(),
            delayed: self.delayed.ids.len(),
            delayed_more: self.delayed.more,
            blocked: counted(&self.blocked),
            paused: counted(&self.paused),
            limited: counted(&self.limited),
        }
    }

    /// Nothing waits, runs or works.
    pub fn is_empty(&self) -> bool {
        let off_queue = [&self.delayed, &self.blocked, &self.paused, &self.limited];
        let waits = off_queue.iter().any(|jobs| !jobs.ids.is_empty());
        self.capacity.workers == 0 && self.tenants.is_empty() && !waits
    }
}

fn counted(jobs: &OffQueue) -> api::Counted {
    api::Counted { jobs: jobs.ids.len(), more: jobs.more }
}

/// What these reads give, in their order; a few are under way at the same time, which counts where each is a request to a cluster.
pub(super) async fn all_of<T, E>(reads: Vec<impl Future<Output = Result<T, E>>>) -> Result<Vec<T>, E> {
    stream::iter(reads).buffered(AT_ONCE).try_collect().await
}

/// The lowest name behind another one.
fn next_name(name: &str) -> String {
    format!("{name}\0")
}

/// A count among lengths of time.
#[allow(clippy::cast_precision_loss, reason = "tens of thousands")]
pub(super) fn many(count: usize) -> f64 {
    count as f64
}

/// The document that a replication belongs to.
pub(super) fn document(job_type: &str, summary: &RawValue) -> Option<String> {
    let summary = Some(summary).filter(|_| job_type == REPLICATION).and_then(Summary::parse)?;
    summary.document().map(|(_, id)| id.to_owned())
}

/// Since when a job could run.
pub(super) fn could_run_since(job: &turnwise_queue::Job) -> i64 {
    match job.state() {
        State::Pending => job.order_us().max(job.changed_us),
        _ => job.changed_us,
    }
}

/// What was charged since the usage was last rolled up.
fn fresh(mut usage: rfc::Usage, now_us: i64, rules: &rfc::Rules) -> f64 {
    usage.roll_up(now_us, rules);
    usage.accumulated_us
}

/// What is looked at of a running job's row; the rest, which may be large, is skipped.
#[derive(Deserialize)]
struct Active {
    tenant: String,
    started_us: i64,
    #[serde(default)]
    continuous: bool,
    #[serde(default)]
    cancel_requested: bool,
}

async fn running(app: &App, tx: &Transaction, job_type: &str) -> Result<Vec<Running>> {
    let (mut begin, end) = app.keys.active(job_type);
    let mut running = Vec::new();
    while running.len() < MAX_RUNNING {
        let read = RangeRead { begin, end: end.clone(), limit: RUNNING_BATCH, reverse: false };
        let rows = tx.range_with(read, Isolation::Snapshot).await?;
        let exhausted = rows.len() < RUNNING_BATCH;
        for (key, value) in &rows {
            let (Some((worker, id)), Ok(active)) =
                (app.keys.parse_active(key), serde_json::from_slice(value))
            else {
                return Err(V1Error::internal(&Unreadable));
            };
            let Active { tenant, started_us, continuous, cancel_requested } = active;
            running.push(Running { id, worker, tenant, started_us, continuous, cancel_requested });
        }
        match rows.last() {
            Some((last, _)) if !exhausted => begin = successor(last),
            _ => break,
        }
    }
    Ok(running)
}

/// A running job's row is not what workers write.
#[derive(Debug, thiserror::Error)]
#[error("a running job's row cannot be read")]
struct Unreadable;
