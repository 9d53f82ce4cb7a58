//! The fair share of one job type, as one charger knows it: a worker of this process, or this node for its external
//! workers.
//!
//! *Model.* A [`Ledger`] holds the virtual time of each tenant. [`WaitingTenants`] holds the tenants with waiting jobs,
//! in the order that follows from the ledger. A charger adds its charges to the ledger immediately, and to its own rows
//! within a second ([`rows`]). It reads the charges of other chargers from their rows. So a pass reads little more than
//! the heads of the queues that it claims from.
//!
//! *What is lost.* If the process dies, the charges since its last write are lost, which is about one second. For
//! running jobs, these are the charges since the last cycle.

mod charges;
mod front;
mod keys;
mod rows;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::Duration;

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use turnwise_policy::fair_share::virtual_time::{
    Expectation, LEAST_COST_US, Ledger, Pace, TenantTurn, first,
};
use turnwise_policy::fair_share::{Shares, rfc};
use turnwise_policy::rotation;
use turnwise_queue::concurrency::Rotation;
use turnwise_queue::tenants::DecodedRows;
use turnwise_queue::usage::Charged;
use turnwise_queue::{Keyspace, Result, tenants};
use turnwise_store::{Store, Transaction};

use crate::FairRules;
use crate::filters::FilterCache;
use crate::locks::{Scan, WaitState};
use crate::sync::lock;
use crate::times::duration_us;

pub use charges::TenantCharges;
pub(crate) use front::Front;
pub(crate) use keys::SORT_BATCH;
use waiting::{TenantChange, WaitingTenants};

/// The maximum number of rows of waiting tenants per read. All reads are in one snapshot.
const WAITING_BATCH: usize = 1_000;
/// The maximum number of tenants with waiting jobs that a charger knows. Tenants behind them by name follow when the
/// queues of some known tenants are empty.
const MAX_WAITING: usize = 100_000;
/// The time between two charges of running jobs without rotation.
pub(crate) const CHARGE_INTERVAL: Duration = Duration::from_secs(60);

/// When a run has lasted this many times its expected cost, its actual time becomes the expected cost.
const OVERRUN: f64 = 1.25;

/// The run time that the tenants of a job type were charged, and the order of their waiting jobs.
pub(crate) struct FairShare {
    inner: Arc<Inner>,
    /// The filters that apply to the next jobs.
    pub filters: FilterCache,
    /// Finds startable jobs behind jobs whose locks are not free.
    pub scan: Scan,
    /// Where the checks of limited jobs continue.
    pub rotation: Rotation,
    /// The rows of the queues that earlier passes have decoded, also those of siblings.
    pub decoded: Arc<DecodedRows>,
    /// Whether the last pass has seen jobs that lock at the head of the queue.
    pub locking: AtomicBool,
    /// The task that writes the rows, while there is something to write.
    writer: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Inner {
    store: Store,
    keys: Keyspace,
    job_type: String,
    charger: String,
    state: Mutex<State>,
    /// Held by the task that reads the rows of other chargers.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    rules: FairRules,
    ledger: Ledger,
    expectation: Expectation,
    waiting: WaitingTenants,
    /// The charges of this charger, by tenant.
    own: BTreeMap<String, OwnCharges>,
    /// The charges of other chargers, by tenant and charger, as last read.
    others: BTreeMap<String, BTreeMap<String, Charged>>,
    /// The contenders for the queue; `None` if not all of them are known.
    members: Option<BTreeSet<String>>,
    rows: rows::RowState,
    keys: keys::Keys,
}

/// The charges of this charger to one tenant.
#[derive(Debug, Default)]
struct OwnCharges {
    service_us: f64,
    virtual_us: f64,
    usage: rfc::Usage,
    running: u64,
    /// Incremented by every change.
    version: u64,
    /// The version that was written last.
    written: u64,
    /// Whether there is a row.
    has_row: bool,
}

impl OwnCharges {
    fn changed(&mut self) {
        self.version += 1;
    }
}

/// The charges of one run of a job.
#[derive(Debug, Clone)]
pub(crate) struct RunCharges {
    pub tenant: Arc<str>,
    /// The job's task.
    task: Option<Box<str>>,
    /// Whether the job can be preempted, and continues later.
    pub rotates: bool,
    /// When the run started, in µs.
    pub started_us: i64,
    /// Up to when the run is charged, in µs.
    charged_us: i64,
    /// The remaining expected cost of the run in the ledger, in µs.
    left_us: f64,
    /// The expected cost of the run at its start, in µs.
    expected_us: f64,
    /// Whether the run is charged at least once in an interval.
    pub often: bool,
    /// How long the run has lent its slot: that time is not charged.
    pub waits: Option<Arc<WaitState>>,
    /// The part of the run time that was not charged because the slot was lent, in µs.
    lent_us: i64,
}

impl FairShare {
    pub fn new(store: Store, keys: Keyspace, job_type: &str, charger: &str, rules: FairRules) -> Self {
        let state = Mutex::new(State { rules, ..State::default() });
        let (job_type, charger) = (job_type.to_owned(), charger.to_owned());
        let inner = Inner { store, keys, job_type, charger, state, reading: tokio::sync::Mutex::default() };
        let (filters, scan, rotation) = (FilterCache::default(), Scan::default(), Rotation::default());
        FairShare {
            inner: Arc::new(inner),
            filters,
            scan,
            rotation,
            decoded: Arc::default(),
            locking: AtomicBool::new(false),
            writer: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state()
    }

    fn now_us(&self) -> i64 {
        self.inner.store.runtime().now_us()
    }

    /// A clock that nobody sets, in µs.
    pub fn elapsed_us(&self) -> i64 {
        self.inner.store.runtime().elapsed_us()
    }

    /// Sets new rules. Running jobs are charged first, by the old rules, because these set the limit of one charge
    /// ([`State::most_us`]). Without rotation, this limit is far higher than with a short interval.
    pub fn follow<'a>(&self, rules: &FairRules, running: impl Iterator<Item = &'a mut RunCharges>) {
        let now_us = self.now_us();
        let mut state = self.state();
        if state.rules == *rules {
            return;
        }
        running.for_each(|charges| state.charge(charges, now_us));
        let State { rules: old, own, .. } = &mut *state;
        for own in own.values_mut() {
            own.usage.roll_up(now_us, &old.rfc);
        }
        if old.fairness != rules.fairness {
            state.keys.searched = 0;
        }
        state.rules = rules.clone();
        state.ledger.all_new_shares(&rules.shares);
        state.reorder();
    }

    /// Sets new shares only.
    pub fn follow_shares(&self, shares: &Arc<Shares>) {
        let mut state = self.state();
        if !Arc::ptr_eq(&state.rules.shares, shares) {
            state.rules.shares = shares.clone();
            state.ledger.all_new_shares(shares);
            state.reorder();
        }
    }

    /// Sets the contenders for the same queue, if all of them are known.
    pub fn set_members(&self, members: Option<BTreeSet<String>>) {
        self.state().members = members;
    }

    /// Begins to charge a job of this tenant and task that was claimed. `skipped_tenant` has a job that could start, too, and was skipped for
    /// its owner.
    pub fn start(
        &self,
        of: (&str, Option<&str>),
        skipped_tenant: Option<&str>,
        continuous: bool,
        started_us: i64,
    ) -> RunCharges {
        let charges = self.state().start(of, skipped_tenant, continuous, started_us);
        self.write_soon();
        charges
    }

    /// Charges the run time of a job since its last charge.
    pub fn charge(&self, charges: &mut RunCharges) {
        let now_us = self.now_us();
        let mut state = self.state();
        state.charge(charges, now_us);
        state.update_position(&charges.tenant);
    }

    /// If a job has run for much longer than expected, sets its expected cost to its run time so far. For jobs that are
    /// charged only at their end. Each change is a row to write, so there is one only after the run time has grown by a
    /// quarter.
    pub fn raise_expected_cost(&self, charges: &mut RunCharges) {
        let now_us = self.now_us();
        let mut state = self.state();
        let ran_us = us(now_us.saturating_sub(charges.started_us));
        if ran_us > charges.left_us * OVERRUN {
            state.ledger.expect(&charges.tenant, charges.left_us, ran_us);
            charges.left_us = ran_us;
            state.changed(&charges.tenant);
        }
    }

    /// Charges a job that has ended for the last time. If it ended by itself, its run time improves the expected cost.
    pub fn end(&self, charges: RunCharges, by_itself: bool) {
        let now_us = self.now_us();
        self.end_at(charges, by_itself, now_us);
    }

    /// Like [`FairShare::end`], for a job that ended at an earlier time.
    pub fn end_at(&self, charges: RunCharges, by_itself: bool, now_us: i64) {
        self.state().end(charges, by_itself, now_us);
        self.write_soon();
    }

    /// Notes that a job must stop: it no longer counts with its expected cost, but is charged until it has ended.
    pub fn stops(&self, charges: &mut RunCharges) {
        let mut state = self.state();
        // Not an end yet: its last run time is charged later.
        state.ledger.expect(&charges.tenant, charges.left_us, 0.0);
        charges.left_us = 0.0;
        state.changed(&charges.tenant);
    }

    /// The order in which jobs of these tenants start, where each tenant has the given number of jobs. Returns the
    /// index of the tenant for each of the first `most` jobs.
    pub fn turns(&self, tenants: &[(String, usize)], most: usize) -> Vec<usize> {
        let state = self.state();
        let candidates: Vec<TenantTurn> = tenants.iter().map(|(tenant, _)| state.candidate(tenant)).collect();
        let jobs: Vec<usize> = tenants.iter().map(|(_, jobs)| *jobs).collect();
        first(&candidates, &jobs, most)
    }

    /// Notes that jobs of these tenants have become pending.
    pub fn made_pending<'a>(&self, tenants: impl IntoIterator<Item = &'a String>) {
        let mut state = self.state();
        tenants.into_iter().for_each(|tenant| state.suspect(tenant));
    }

    /// How many jobs each other charger runs, according to the rows that were last read.
    pub fn running_elsewhere(&self) -> BTreeMap<String, usize> {
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        for (charger, charged) in self.state().others.values().flatten() {
            let more = usize::try_from(charged.running).unwrap_or(usize::MAX);
            let jobs = running.entry(charger.clone()).or_default();
            *jobs = jobs.saturating_add(more);
        }
        running
    }

    /// Whether a tenant has waiting jobs, as far as is known.
    pub fn waits(&self, tenant: &str) -> bool {
        self.state().waiting.has(tenant)
    }

    /// A tenant's state for the decision which jobs to preempt.
    pub fn standing(&self, tenant: &str) -> rotation::Tenant {
        let state = self.state();
        state.ledger.tenant(tenant, state.shares(tenant), state.expected_us(tenant))
    }

    /// The rate of virtual time.
    pub fn pace(&self) -> Pace {
        self.state().ledger.pace()
    }

    /// Forgets a job that does not run here any more, and whose run another charger has charged.
    pub fn abandon(&self, charges: &RunCharges) {
        let mut state = self.state();
        // Its run time is charged when the other charger's rows are read.
        state.ledger.expect(&charges.tenant, charges.left_us, 0.0);
        if let Some(own) = state.own.get_mut(charges.tenant.as_ref()) {
            debug_assert!(own.running > 0, "a run of {} ends twice", charges.tenant);
            own.running = own.running.saturating_sub(1);
        }
        state.changed(&charges.tenant);
        drop(state);
        self.write_soon();
    }

    /// Charges a run that this process did not know: another server claimed the job, or this one before a restart.
    pub fn end_unknown(&self, of: (&str, Option<&str>), started_us: i64, by_itself: bool) {
        let charges = self.state().start(of, None, false, started_us);
        self.end(charges, by_itself);
    }

    /// Begins a cycle. Must be called once per cycle, before its charges.
    pub fn cycle(&self, max_churn: usize) {
        self.state().ledger.cycle(max_churn);
    }

    /// Ends the charges of a cycle.
    pub fn charged(&self) {
        let mut state = self.state();
        if state.waiting.len() == 0 {
            state.ledger.nobody_waits();
        }
        drop(state);
        self.write_soon();
    }

    /// Reads the waiting tenants, if the known ones may be out of date. `wake` is the wake key's value in this
    /// transaction's snapshot. Must be called before the transaction makes a job pending.
    pub async fn refresh_waiting(&self, tx: &Transaction, wake: Option<&Bytes>, now_us: i64) -> Result<()> {
        if !self.state().waiting.must_read(wake, now_us) {
            return Ok(());
        }
        let (keys, job_type) = (&self.inner.keys, &self.inner.job_type);
        let mut rows = Vec::new();
        let each = |tenant, stamp| rows.push((tenant, stamp));
        let bounds = (WAITING_BATCH, MAX_WAITING);
        if tenants::each_waiting(tx, keys, job_type, None, bounds, each).await?.is_some() {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(job_type, "more than {MAX_WAITING} tenants have jobs that wait: those behind them by name wait longer");
            });
        }
        self.state().read_waiting(rows, wake.cloned(), now_us);
        Ok(())
    }

    /// Notes that the queues of these tenants are empty, after the commit of a transaction that read `wake`.
    pub fn drained(&self, tenants: &[Arc<str>], wake: Option<&Bytes>) {
        let now_us = self.now_us();
        let mut state = self.state();
        for tenant in tenants {
            state.found_empty(tenant, wake, now_us);
        }
        drop(state);
        self.write_soon();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn shares(&self, tenant: &str) -> u32 {
        self.rules.shares.of(tenant)
    }

    /// The charges of this charger to a tenant. Copies the name only of a tenant that is new.
    fn own_of(&mut self, tenant: &str) -> &mut OwnCharges {
        if !self.own.contains_key(tenant) {
            self.own.insert(tenant.to_owned(), OwnCharges::default());
        }
        self.own.get_mut(tenant).expect("it is there now")
    }

    /// A tenant's position among the tenants with waiting jobs.
    fn candidate(&self, tenant: &str) -> TenantTurn {
        let (shares, expected_us) = (self.shares(tenant), self.expected_us(tenant));
        let next = self.ledger.next(tenant, shares, expected_us);
        TenantTurn { next, step: expected_us / f64::from(shares) }
    }

    fn interval_us(&self) -> Option<f64> {
        self.rules.rotation.map(|rotation| us(duration_us(rotation.interval)))
    }

    /// The expected cost of a tenant's next job. If jobs rotate, a job of unknown cost counts with one interval.
    fn expected_us(&self, tenant: &str) -> f64 {
        match self.interval_us() {
            Some(interval_us) => self.expectation.known_us(tenant).unwrap_or(interval_us),
            None => self.expectation.of(tenant),
        }
    }

    fn start(
        &mut self,
        (tenant, task): (&str, Option<&str>),
        skipped_tenant: Option<&str>,
        continuous: bool,
        started_us: i64,
    ) -> RunCharges {
        let (shares, interval_us) = (self.shares(tenant), self.interval_us().filter(|_| continuous));
        let of_task = || task.and_then(|task| self.expectation.of_task(task));
        let expected_us = interval_us.or_else(of_task).unwrap_or_else(|| self.expected_us(tenant));
        if let Some(interval_us) = interval_us {
            // A continuous job costs one interval. A tenant may also have one-shot jobs.
            self.expectation.learn(tenant, interval_us);
        }
        let next = |tenant: &str| self.candidate(tenant).next;
        match skipped_tenant.filter(|skipped| self.waiting.has(skipped) && next(skipped) < next(tenant)) {
            None => self.ledger.start(tenant, shares, expected_us),
            Some(skipped) => {
                let first = (skipped, self.shares(skipped));
                self.ledger.start_out_of_turn(tenant, shares, expected_us, first);
            }
        }
        self.own_of(tenant).running += 1;
        self.changed(tenant);
        RunCharges {
            tenant: tenant.into(),
            task: task.map(Into::into),
            rotates: interval_us.is_some(),
            started_us,
            charged_us: started_us,
            left_us: expected_us,
            expected_us,
            often: false,
            waits: None,
            lent_us: 0,
        }
    }

    fn end(&mut self, mut charges: RunCharges, by_itself: bool, now_us: i64) {
        self.charge(&mut charges, now_us);
        self.fill_up(&mut charges, now_us);
        if self.waiting.len() == 0 {
            // No tenant waits, so the virtual time of the job type follows the job that has ended.
            let tag = self.ledger.tag(&charges.tenant, self.shares(&charges.tenant));
            self.ledger.advance_to(tag);
        }
        if self.ledger.end(&charges.tenant, charges.left_us) {
            self.reorder();
        }
        let own = self.own_of(&charges.tenant);
        debug_assert!(own.running > 0, "a run of {} ends twice", charges.tenant);
        own.running = own.running.saturating_sub(1);
        if by_itself && !charges.rotates {
            let ran_us = us(now_us.saturating_sub(charges.started_us).saturating_sub(charges.lent_us));
            let is_first = !self.expectation.knows_type();
            self.expectation.learn(&charges.tenant, ran_us);
            if let Some(task) = &charges.task {
                self.learn_task(task, ran_us);
            }
            if is_first {
                // The positions of the other tenants were based on a default cost.
                self.reorder();
            }
        }
        self.changed(&charges.tenant);
    }

    /// Charges the time since the last charge. Does not update the tenant's position.
    fn charge(&mut self, charges: &mut RunCharges, now_us: i64) {
        let lent_us = charges.waits.as_ref().map_or(0, |waits| waits.lent_us(now_us));
        let from_us = charges.charged_us.saturating_add(lent_us.saturating_sub(charges.lent_us));
        charges.lent_us = lent_us;
        let mut ran_us = us(now_us.saturating_sub(from_us));
        if charges.often {
            ran_us = ran_us.min(self.most_us());
        }
        charges.charged_us = charges.charged_us.max(now_us);
        if ran_us > 0.0 {
            self.add(charges, ran_us, now_us);
        }
    }

    /// Charges the difference to the minimum cost of a run. Otherwise, jobs too short for the clock to measure would be
    /// free.
    fn fill_up(&mut self, charges: &mut RunCharges, now_us: i64) {
        let missing_us = LEAST_COST_US - us(charges.charged_us.saturating_sub(charges.started_us));
        if missing_us > 0.0 {
            self.add(charges, missing_us, now_us);
        }
    }

    /// Charges a run time. Does not update the tenant's position.
    fn add(&mut self, charges: &mut RunCharges, ran_us: f64, now_us: i64) {
        let (tenant, shares) = (charges.tenant.clone(), self.shares(&charges.tenant));
        let virtual_us = if charges.rotates {
            self.ledger.charge_rotating(&tenant, shares, ran_us, charges.expected_us)
        } else {
            let left_us = (charges.left_us - ran_us).max(LEAST_COST_US.min(charges.left_us));
            self.ledger.expect(&tenant, charges.left_us, left_us);
            charges.left_us = left_us;
            self.ledger.charge(&tenant, shares, ran_us)
        };
        let rules = self.rules.rfc;
        let own = self.own_of(&tenant);
        own.service_us += ran_us;
        own.virtual_us += virtual_us;
        own.usage.charge(ran_us, now_us, &rules);
        own.changed();
    }

    /// The maximum of one charge, if jobs are charged in each interval. More time passes between two charges only if
    /// the clock was set, or the machine was suspended.
    fn most_us(&self) -> f64 {
        2.0 * self.interval_us().unwrap_or(us(duration_us(CHARGE_INTERVAL)))
    }

    /// Notes a change of a tenant's charges: its row must be written, and its position is updated.
    fn changed(&mut self, tenant: &str) {
        if let Some(own) = self.own.get_mut(tenant) {
            own.changed();
        }
        self.update_position(tenant);
    }

    fn update_position(&mut self, tenant: &str) {
        if self.waiting.has(tenant) {
            let next = self.candidate(tenant).next;
            self.waiting.put(tenant, next);
        }
    }

    /// Updates the position of every waiting tenant.
    fn reorder(&mut self) {
        let all: Vec<Arc<str>> = self.waiting.in_order().map(|(tenant, _)| tenant.clone()).collect();
        for tenant in all {
            self.update_position(&tenant);
        }
    }

    fn read_waiting(
        &mut self,
        rows: Vec<(String, turnwise_store::Versionstamp)>,
        wake: Option<Bytes>,
        now_us: i64,
    ) {
        for (tenant, change) in self.waiting.read(rows, wake, now_us) {
            let shares = self.shares(&tenant);
            match change {
                TenantChange::Found => {
                    let expected_us = self.expected_us(&tenant);
                    self.ledger.resume(&tenant, shares, expected_us);
                }
                TenantChange::Arrived => self.ledger.arrive(&tenant, shares),
                TenantChange::Gone => self.ledger.emptied(&tenant),
            }
            self.update_position(&tenant);
        }
    }

    fn suspect(&mut self, tenant: &str) {
        if self.waiting.suspect(tenant) {
            self.ledger.arrive(tenant, self.rules.shares.of(tenant));
            self.update_position(tenant);
        }
    }

    fn found_empty(&mut self, tenant: &str, wake: Option<&Bytes>, now_us: i64) {
        if self.waiting.found_empty(tenant, wake, now_us) {
            self.ledger.emptied(tenant);
        }
    }
}

/// A run time in µs, never negative.
fn us(time_us: i64) -> f64 {
    time_us.max(0) as f64
}
