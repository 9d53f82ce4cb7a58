//! The fair share of one job type, as one charger knows it: a worker of this process, or this node for its external workers.
//!
//! *Model.* A [`Ledger`] says how much each tenant has received; [`Waiting`] says who has jobs that wait, in the order that follows from
//! it. What this charger charges goes into the ledger at once and into rows of its own a moment later ([`books`]); what
//! others charge comes from theirs. So a look for work reads little more than the heads of the queues that it takes from.
//!
//! *What is lost.* With this process goes what it has charged since its last write: a second's worth, and of jobs that still
//! run what they ran since the last cycle.

mod books;
mod front;
mod keys;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use turnwise_policy::fair_share::virtual_time::{Candidate, Expectation, LEAST_COST_US, Ledger, Pace, first};
use turnwise_policy::fair_share::{Shares, rfc};
use turnwise_policy::rotation;
use turnwise_queue::rate_limits::Rotation;
use turnwise_queue::usage::Charged;
use turnwise_queue::{Keyspace, Result, tenants};
use turnwise_store::{Store, Transaction};

use crate::FairRules;
use crate::filters::FilterCache;
use crate::locks::{Scan, Waits};
use crate::membership::duration_us;

pub(crate) use front::Front;
pub(crate) use keys::SORT_BATCH;
use waiting::{News, Waiting};

/// Rows of waiting tenants that are read at once; the reading goes on in the same snapshot.
const WAITING_BATCH: usize = 1_000;
/// Tenants with waiting jobs that are looked at; those behind them by name have their turn when some of these are done.
const MAX_WAITING: usize = 100_000;
/// Between two charges of running jobs where nothing rotates.
pub(crate) const CHARGE_INTERVAL: Duration = Duration::from_secs(60);

/// How much longer than it was expected to cost a run is, before it is expected to cost that.
const GOES_ON: f64 = 1.25;

/// What a job type's tenants have received, and who is next.
pub(crate) struct FairShare {
    inner: Arc<Inner>,
    /// The filters, which are asked about whoever is next.
    pub filters: FilterCache,
    /// What can start behind jobs whose locks are not free.
    pub scan: Scan,
    /// Where looks at what rate limits hold back go on.
    pub rotation: Rotation,
    /// Writes the rows, while there is something to write.
    keeper: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Inner {
    store: Store,
    keys: Keyspace,
    job_type: String,
    charger: String,
    state: Mutex<State>,
}

struct State {
    rules: FairRules,
    ledger: Ledger,
    expectation: Expectation,
    waiting: Waiting,
    /// What this charger has charged.
    own: BTreeMap<String, Own>,
    /// What others have, by tenant and charger, as last read.
    others: BTreeMap<String, BTreeMap<String, Charged>>,
    /// Who takes jobs from the queue; `None` if that is not known, or not of all.
    members: Option<BTreeSet<String>>,
    books: books::Progress,
    keys: keys::Keys,
}

/// What this charger has charged to one tenant.
#[derive(Debug, Default)]
struct Own {
    service_us: f64,
    virtual_us: f64,
    usage: rfc::Usage,
    running: u64,
    /// Moves with every change.
    version: u64,
    /// What is written.
    written: u64,
    /// There is a row.
    has_row: bool,
}

impl Own {
    fn changed(&mut self) {
        self.version += 1;
    }
}

/// A job that runs, as it is charged.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub tenant: Arc<str>,
    /// It is stopped for others, and goes on later.
    pub rotates: bool,
    /// When it was started, in µs.
    pub started_us: i64,
    /// Up to when it is charged, in µs.
    charged_us: i64,
    /// What the ledger still expects of it, in µs.
    left_us: f64,
    /// What it was expected to cost, in µs.
    expected_us: f64,
    /// It is charged at least once in an interval.
    pub often: bool,
    /// Where to ask for how long it has lent its slot: that is not charged.
    pub waits: Option<Arc<Waits>>,
    /// Of what it has run, so much was not charged for that, in µs.
    lent_us: i64,
}

impl FairShare {
    pub fn new(store: Store, keys: Keyspace, job_type: &str, charger: &str, rules: FairRules) -> Self {
        let state = State {
            rules,
            ledger: Ledger::default(),
            expectation: Expectation::default(),
            waiting: Waiting::default(),
            own: BTreeMap::new(),
            others: BTreeMap::new(),
            members: None,
            books: books::Progress::default(),
            keys: keys::Keys::default(),
        };
        let (job_type, charger) = (job_type.to_owned(), charger.to_owned());
        let inner = Inner { store, keys, job_type, charger, state: Mutex::new(state) };
        let (filters, scan, rotation) = (FilterCache::default(), Scan::default(), Rotation::default());
        FairShare { inner: Arc::new(inner), filters, scan, rotation, keeper: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state()
    }

    fn now_us(&self) -> i64 {
        self.inner.store.runtime().now_us()
    }

    /// What it goes by from now on. Those who run are charged first, by the rules of that time: what is charged at once at most
    /// ([`State::most_us`]) follows from them, and where nothing rotates it is far more than in a short interval.
    pub fn follow<'a>(&self, rules: &FairRules, running: impl Iterator<Item = &'a mut Turn>) {
        let now_us = self.now_us();
        let mut state = self.state();
        if state.rules == *rules {
            return;
        }
        running.for_each(|turn| state.charge(turn, now_us));
        let State { rules: old, own, .. } = &mut *state;
        for own in own.values_mut() {
            own.usage.roll_up(now_us, &old.rfc);
        }
        if old.fairness != rules.fairness {
            state.keys.schemes_changed();
        }
        state.rules = rules.clone();
        state.ledger.all_new_shares(&rules.shares);
        state.reorder();
    }

    /// What it goes by now, but for the shares.
    pub fn follow_shares(&self, shares: &Arc<Shares>) {
        let mut state = self.state();
        if !Arc::ptr_eq(&state.rules.shares, shares) {
            state.rules.shares = shares.clone();
            state.ledger.all_new_shares(shares);
            state.reorder();
        }
    }

    /// Who takes jobs from the same queue, if all of them are known.
    pub fn know_members(&self, members: Option<BTreeSet<String>>) {
        self.state().members = members;
    }

    /// A job of a tenant has been claimed, and runs; one of the tenant `left` could start, too, and was left to another worker.
    pub fn start(&self, tenant: &str, left: Option<&str>, continuous: bool, started_us: i64) -> Turn {
        let turn = self.state().start(tenant, left, continuous, started_us);
        self.keep_books();
        turn
    }

    /// Charges what a job has run since it was charged last.
    pub fn charge(&self, turn: &mut Turn) {
        let now_us = self.now_us();
        self.state().charge(turn, now_us);
    }

    /// A job that has not ended, but runs for longer than expected, and is charged at its end only: it is expected to cost what it
    /// has, at least nearly. Each time is a row that is written, so there are few.
    pub fn goes_on(&self, turn: &mut Turn) {
        let now_us = self.now_us();
        let mut state = self.state();
        let ran_us = us(now_us.saturating_sub(turn.started_us));
        if ran_us > turn.left_us * GOES_ON {
            state.ledger.expect(&turn.tenant, turn.left_us, ran_us);
            turn.left_us = ran_us;
            state.changed(&turn.tenant);
        }
    }

    /// A job has ended, and is charged for the last time. One that ended by itself tells what such jobs cost.
    pub fn end(&self, turn: Turn, by_itself: bool) {
        let now_us = self.now_us();
        self.end_at(turn, by_itself, now_us);
    }

    /// The same for a job that ended at a time that has passed.
    pub fn end_at(&self, mut turn: Turn, by_itself: bool, now_us: i64) {
        let mut state = self.state();
        state.charge(&mut turn, now_us);
        state.fill_up(&mut turn, now_us);
        if state.waiting.len() == 0 {
            // Nobody was owed what it ran.
            let tag = state.ledger.tag(&turn.tenant, state.shares(&turn.tenant));
            state.ledger.advance_to(tag);
        }
        state.ledger.end(&turn.tenant, turn.left_us);
        let own = state.own.entry(turn.tenant.to_string()).or_default();
        own.running = own.running.saturating_sub(1);
        if by_itself && !turn.rotates {
            let ran_us = us(now_us.saturating_sub(turn.started_us).saturating_sub(turn.lent_us));
            let is_first = !state.expectation.knows_type();
            state.expectation.learn(&turn.tenant, ran_us);
            if is_first {
                // The others have been put to their places by a guess.
                state.reorder();
            }
        }
        state.changed(&turn.tenant);
        drop(state);
        self.keep_books();
    }

    /// A job has been asked to stop: it counts as gone, and is charged until it is.
    pub fn stops(&self, turn: &mut Turn) {
        let mut state = self.state();
        state.ledger.end(&turn.tenant, turn.left_us);
        turn.left_us = 0.0;
        state.changed(&turn.tenant);
    }

    /// Whose turn it is among tenants with so many jobs each: one place for each of up to `most` jobs.
    pub fn turns(&self, tenants: &[(String, usize)], most: usize) -> Vec<usize> {
        let state = self.state();
        let candidates: Vec<Candidate> = tenants.iter().map(|(tenant, _)| state.candidate(tenant)).collect();
        let jobs: Vec<usize> = tenants.iter().map(|(_, jobs)| *jobs).collect();
        first(&candidates, &jobs, most)
    }

    /// Jobs of these tenants have been made pending.
    pub fn made_pending<'a>(&self, tenants: impl IntoIterator<Item = &'a String>) {
        let mut state = self.state();
        tenants.into_iter().for_each(|tenant| state.suspect(tenant));
    }

    /// How many jobs each of the others runs, by the rows that were read last.
    pub fn running_elsewhere(&self) -> BTreeMap<String, usize> {
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        for (charger, charged) in self.state().others.values().flatten() {
            let more = usize::try_from(charged.running).unwrap_or(usize::MAX);
            let jobs = running.entry(charger.clone()).or_default();
            *jobs = jobs.saturating_add(more);
        }
        running
    }

    /// Whether a tenant has jobs that wait, as far as is known.
    pub fn waits(&self, tenant: &str) -> bool {
        self.state().waiting.has(tenant)
    }

    /// How a tenant stands, for a decision about who stops.
    pub fn standing(&self, tenant: &str) -> rotation::Tenant {
        let state = self.state();
        let shares = state.shares(tenant);
        rotation::Tenant {
            tag: state.ledger.tag(tenant, shares),
            in_flight_us: state.ledger.in_flight_us(tenant),
            shares,
            expected_us: state.expected_us(tenant),
        }
    }

    /// How fast virtual time goes.
    pub fn pace(&self) -> Pace {
        self.state().ledger.pace()
    }

    /// A job does not run here any more, and someone else has charged what it ran.
    pub fn abandon(&self, turn: &Turn) {
        let mut state = self.state();
        state.ledger.end(&turn.tenant, turn.left_us);
        if let Some(own) = state.own.get_mut(turn.tenant.as_ref()) {
            own.running = own.running.saturating_sub(1);
        }
        state.changed(&turn.tenant);
        drop(state);
        self.keep_books();
    }

    /// Charges a run that this process did not know of: it was started through another one, or before a restart.
    pub fn end_unknown(&self, tenant: &str, started_us: i64, by_itself: bool) {
        let turn = self.state().start(tenant, None, false, started_us);
        self.end(turn, by_itself);
    }

    /// A cycle begins: once for each, before its charges.
    pub fn cycle(&self, max_churn: usize) {
        self.state().ledger.cycle(max_churn);
    }

    /// The charges of a cycle are done.
    pub fn charged(&self) {
        let mut state = self.state();
        if state.waiting.len() == 0 {
            state.ledger.nobody_waits();
        }
        drop(state);
        self.keep_books();
    }

    /// Makes sure that it is known who waits, in a snapshot where the wake key's value is `wake`. To be called before anything
    /// is made pending in the transaction.
    pub async fn look(&self, tx: &Transaction, wake: Option<&Bytes>, now_us: i64) -> Result<()> {
        if !self.state().waiting.must_read(wake, now_us) {
            return Ok(());
        }
        let (keys, job_type) = (&self.inner.keys, &self.inner.job_type);
        let mut rows: Vec<(String, _)> = Vec::new();
        loop {
            let after = rows.last().map(|(tenant, _)| tenant.as_str());
            let page = tenants::waiting(tx, keys, job_type, after, WAITING_BATCH).await?;
            let is_last = page.len() < WAITING_BATCH;
            rows.extend(page);
            if is_last {
                break;
            }
            if rows.len() >= MAX_WAITING {
                static ONCE: Once = Once::new();
                ONCE.call_once(|| {
                    tracing::warn!(job_type, "more than {MAX_WAITING} tenants have jobs that wait: those behind them by name wait longer");
                });
                break;
            }
        }
        self.state().read_waiting(rows, wake.cloned(), now_us);
        Ok(())
    }

    /// The queues of these tenants are empty now that a transaction is committed that saw `wake`.
    pub fn drained(&self, tenants: &[Arc<str>], wake: Option<&Bytes>) {
        let now_us = self.now_us();
        let mut state = self.state();
        for tenant in tenants {
            state.found_empty(tenant, wake, now_us);
        }
        drop(state);
        self.keep_books();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn shares(&self, tenant: &str) -> u32 {
        self.rules.shares.of(tenant)
    }

    /// Where a tenant stands among those whose jobs wait.
    fn candidate(&self, tenant: &str) -> Candidate {
        let (shares, expected_us) = (self.shares(tenant), self.expected_us(tenant));
        let next = self.ledger.next(tenant, shares, expected_us);
        Candidate { next, step: expected_us / f64::from(shares) }
    }

    fn interval_us(&self) -> Option<f64> {
        self.rules.rotation.map(|rotation| us(duration_us(rotation.interval)))
    }

    /// What a tenant's next job is expected to cost. Where jobs rotate, one that nothing is known of costs a turn.
    fn expected_us(&self, tenant: &str) -> f64 {
        match self.interval_us() {
            Some(interval_us) => self.expectation.known_us(tenant).unwrap_or(interval_us),
            None => self.expectation.of(tenant),
        }
    }

    fn start(&mut self, tenant: &str, left: Option<&str>, continuous: bool, started_us: i64) -> Turn {
        let (shares, interval_us) = (self.shares(tenant), self.interval_us().filter(|_| continuous));
        let expected_us = interval_us.unwrap_or_else(|| self.expected_us(tenant));
        if let Some(interval_us) = interval_us {
            // A turn is what a job of this kind costs; tenants may have jobs of both kinds.
            self.expectation.learn(tenant, interval_us);
        }
        let place = |tenant: &str| self.candidate(tenant).next;
        match left.filter(|left| self.waiting.has(left) && place(left) < place(tenant)) {
            None => self.ledger.start(tenant, shares, expected_us),
            Some(left) => {
                let first = (left, self.shares(left));
                self.ledger.start_out_of_turn(tenant, shares, expected_us, first);
            }
        }
        self.own.entry(tenant.to_owned()).or_default().running += 1;
        self.changed(tenant);
        Turn {
            tenant: tenant.into(),
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

    fn charge(&mut self, turn: &mut Turn, now_us: i64) {
        let lent_us = turn.waits.as_ref().map_or(0, |waits| waits.lent_us(now_us));
        let from_us = turn.charged_us.saturating_add(lent_us.saturating_sub(turn.lent_us));
        turn.lent_us = lent_us;
        let mut ran_us = us(now_us.saturating_sub(from_us));
        if turn.often {
            ran_us = ran_us.min(self.most_us());
        }
        turn.charged_us = turn.charged_us.max(now_us);
        if ran_us > 0.0 {
            self.add(turn, ran_us, now_us);
        }
    }

    /// No run costs less than the least: jobs of no length, or none that the clock can see, would be free.
    fn fill_up(&mut self, turn: &mut Turn, now_us: i64) {
        let missing_us = LEAST_COST_US - us(turn.charged_us.saturating_sub(turn.started_us));
        if missing_us > 0.0 {
            self.add(turn, missing_us, now_us);
        }
    }

    /// Charges a time.
    fn add(&mut self, turn: &mut Turn, ran_us: f64, now_us: i64) {
        let (tenant, shares) = (turn.tenant.clone(), self.shares(&turn.tenant));
        let virtual_us = if turn.rotates {
            self.ledger.charge_rotating(&tenant, shares, ran_us, turn.expected_us)
        } else {
            let left_us = (turn.left_us - ran_us).max(LEAST_COST_US.min(turn.left_us));
            self.ledger.expect(&tenant, turn.left_us, left_us);
            turn.left_us = left_us;
            self.ledger.charge(&tenant, shares, ran_us)
        };
        let rules = self.rules.rfc;
        let own = self.own.entry(tenant.to_string()).or_default();
        own.service_us += ran_us;
        own.virtual_us += virtual_us;
        own.usage.charge(ran_us, now_us, &rules);
        self.changed(&tenant);
    }

    /// What is charged at once, at most, where that is done in each interval. More has passed only on a clock that was set, or
    /// of a machine that slept.
    fn most_us(&self) -> f64 {
        2.0 * self.interval_us().unwrap_or(us(duration_us(CHARGE_INTERVAL)))
    }

    /// A tenant's row is to be written, and its place is another one.
    fn changed(&mut self, tenant: &str) {
        if let Some(own) = self.own.get_mut(tenant) {
            own.changed();
        }
        self.place(tenant);
    }

    fn place(&mut self, tenant: &str) {
        if self.waiting.has(tenant) {
            let (shares, expected_us) = (self.shares(tenant), self.expected_us(tenant));
            let next = self.ledger.next(tenant, shares, expected_us);
            self.waiting.put(tenant, next);
        }
    }

    /// Puts every waiting tenant to its place.
    fn reorder(&mut self) {
        let all: Vec<Arc<str>> = self.waiting.in_order().map(|(tenant, _)| tenant.clone()).collect();
        for tenant in all {
            self.place(&tenant);
        }
    }

    fn read_waiting(
        &mut self,
        rows: Vec<(String, turnwise_store::Versionstamp)>,
        wake: Option<Bytes>,
        now_us: i64,
    ) {
        for (tenant, news) in self.waiting.read(rows, wake, now_us) {
            let shares = self.shares(&tenant);
            match news {
                News::Found => {
                    let expected_us = self.expected_us(&tenant);
                    self.ledger.resume(&tenant, shares, expected_us);
                }
                News::Arrived => self.ledger.arrive(&tenant, shares),
                News::Gone => self.ledger.emptied(&tenant),
            }
            self.place(&tenant);
        }
    }

    fn suspect(&mut self, tenant: &str) {
        if self.waiting.suspect(tenant) {
            self.ledger.arrive(tenant, self.rules.shares.of(tenant));
            self.place(tenant);
        }
    }

    fn found_empty(&mut self, tenant: &str, wake: Option<&Bytes>, now_us: i64) {
        if self.waiting.found_empty(tenant, wake, now_us) {
            self.ledger.emptied(tenant);
        }
    }
}

/// A time that ran, never a negative one.
#[allow(clippy::cast_precision_loss, reason = "exact up to 285 years")]
fn us(time_us: i64) -> f64 {
    time_us.max(0) as f64
}
