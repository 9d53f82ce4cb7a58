//! The product's own two schemes. They keep what a worker keeps in memory about its tenants, and call the policy in
//! the same order.
//!
//! A pass takes the first tenants of the order, as many as slots are free. It divides the slots among them, and reads
//! that many rows of their queues. A cycle charges running jobs, and asks which jobs are preempted. Unlike in a
//! worker, no row is read, and no claim can fail.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use turnwise_policy::fair_share::Fairness;
use turnwise_policy::fair_share::rfc::{self, Boost, Key, Usage};
use turnwise_policy::fair_share::virtual_time::{
    Expectation, LEAST_COST_US, Ledger, TenantTurn, apportion, order,
};
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_policy::rotation::{self, Float, Running, Waiting};
use turnwise_policy::schedule::{self, schedule};

use super::{JobId, Scheme, View};
use crate::policy::Policy;
use crate::scenario::{Scenario, Work};

/// The row of a waiting job: its key (only the RFC's scheme has keys), the time since which it has not started, its
/// id.
type Row = (Float, i64, JobId);

/// The time between two charges of running jobs where nothing rotates, as in the worker.
const CHARGE_INTERVAL_US: i64 = 60_000_000;
/// A cycle looks at this many tenants whose own jobs may take turns, for each job that it may stop, as in the worker.
const WITHIN: usize = 2;

/// Jobs of these scenarios declare no locks.
static NO_LOCKS: LazyLock<Requests> = LazyLock::new(Requests::default);

/// The charges of one run.
#[derive(Debug, Clone, Copy, Default)]
struct RunCharge {
    /// Its remaining expected cost, in µs.
    left_us: f64,
    /// The run time that was charged, in µs.
    ran_us: f64,
    /// The run time since then, in µs.
    uncharged_us: f64,
}

/// Fair share by virtual time, or as in the RFC.
pub(crate) struct Fair {
    fairness: Fairness,
    /// Whether there are continuous jobs, so that jobs rotate.
    rotates: bool,
    rules: rfc::Rules,
    ledger: Ledger,
    expectation: Expectation,
    boost: Boost,
    usage: Vec<Usage>,
    /// Per job: the key of its priority value.
    keys: Vec<Key>,
    /// Per job: its current run.
    charges: Vec<RunCharge>,
    /// The last time when jobs that do not rotate were charged.
    charged_us: i64,
    /// Per tenant: when a cycle last read its queue for turns among its own jobs.
    looked_us: Vec<i64>,
    /// Per tenant: its waiting jobs.
    queues: Vec<BTreeSet<Row>>,
    /// Per tenant with waiting jobs: its position in `order`, and the time that breaks ties.
    places: Vec<Option<(Float, i64)>>,
    order: BTreeSet<(Float, i64, usize)>,
}

impl Fair {
    pub(crate) fn new(policy: Policy, scenario: &Scenario, tenants: usize) -> Self {
        let interval_us = scenario.interval_us();
        let rules = rfc::Rules {
            usage_coeff: scenario.rfc.usage_coeff.get(),
            priority_coeff: scenario.rfc.priority_coeff.get(),
            usage_interval_us: interval_us,
            priority_interval_us: interval_us,
            charge_interval_us: interval_us,
        };
        let fairness = if policy == Policy::Rfc { Fairness::Rfc } else { Fairness::VirtualTime };
        let continuous = |work: &Work| work.run_ms.is_none();
        let rotates = scenario.tenants.iter().any(|tenants| tenants.work().iter().any(continuous));
        Fair {
            fairness,
            rotates,
            rules,
            ledger: Ledger::default(),
            expectation: Expectation::default(),
            boost: Boost::new(0, &rules),
            usage: vec![Usage::default(); tenants],
            keys: Vec::new(),
            charges: Vec::new(),
            charged_us: 0,
            looked_us: vec![0; tenants],
            queues: vec![BTreeSet::new(); tenants],
            places: vec![None; tenants],
            order: BTreeSet::new(),
        }
    }

    fn row(&self, view: View<'_>, job: JobId) -> Row {
        let key = match self.fairness {
            Fairness::VirtualTime => 0.0,
            Fairness::Rfc => self.keys[job as usize].get(),
        };
        (Float(key), view.job(job).order_us, job)
    }

    /// The expected cost of a tenant's next job. Where jobs rotate and nothing else is known, it is one turn.
    fn expected_us(&self, view: View<'_>, tenant: usize) -> f64 {
        let name = &view.tenants[tenant].name;
        match self.rotates {
            true => self.expectation.known_us(name).unwrap_or(view.interval_us as f64),
            false => self.expectation.of(name),
        }
    }

    /// Records the start of a job in the ledger.
    fn start(&mut self, view: View<'_>, job: JobId) {
        let of = view.tenant_of(job);
        let mut cost_us = self.expected_us(view, view.job(job).tenant);
        if view.job(job).continuous {
            cost_us = view.interval_us as f64;
            self.expectation.learn(&of.name, cost_us);
        }
        self.ledger.start(&of.name, of.shares, cost_us);
        self.charges[job as usize].left_us = cost_us;
    }

    /// Charges the run time of a job since its last charge.
    fn book(&mut self, view: View<'_>, job: JobId) {
        let (of, charge) = (view.tenant_of(job), &mut self.charges[job as usize]);
        let ran_us = std::mem::take(&mut charge.uncharged_us);
        charge.ran_us += ran_us;
        if view.job(job).continuous {
            self.ledger.charge_rotating(&of.name, of.shares, ran_us, view.interval_us as f64);
        } else {
            let left_us = (charge.left_us - ran_us).max(LEAST_COST_US.min(charge.left_us));
            self.ledger.expect(&of.name, charge.left_us, left_us);
            charge.left_us = left_us;
            self.ledger.charge(&of.name, of.shares, ran_us);
        }
        self.put(view, view.job(job).tenant);
    }

    /// Computes a tenant's position in `order` again, after an event that may have changed it.
    fn put(&mut self, view: View<'_>, tenant: usize) {
        let place = self.queues[tenant].first().map(|(key, since, _)| match self.fairness {
            Fairness::VirtualTime => {
                let expected_us = self.expected_us(view, tenant);
                let of = &view.tenants[tenant];
                (Float(self.ledger.next(&of.name, of.shares, expected_us)), 0)
            }
            Fairness::Rfc => (*key, *since),
        });
        if place != self.places[tenant] {
            if let Some((place, since)) = self.places[tenant] {
                self.order.remove(&(place, since, tenant));
            }
            if let Some((place, since)) = place {
                self.order.insert((place, since, tenant));
            }
            self.places[tenant] = place;
        }
    }

    fn reorder(&mut self, view: View<'_>) {
        let waiting: Vec<usize> = self.order.iter().map(|(_, _, tenant)| *tenant).collect();
        for tenant in waiting {
            self.put(view, tenant);
        }
    }

    /// The waiting jobs at the head of the queue, in the order of the tenants' turns by virtual time: up to `free`, fewer if a
    /// tenant has fewer jobs than its turns. Each with its tenant.
    fn head_by_virtual_time(&self, view: View<'_>, free: usize) -> Vec<(usize, JobId)> {
        let tenants: Vec<usize> = self.order.iter().take(free).map(|(_, _, tenant)| *tenant).collect();
        let candidates = self.candidates(view, &tenants);
        let picks = apportion(&candidates, free);
        let rows: Vec<usize> =
            tenants.iter().zip(picks).map(|(tenant, picks)| picks.min(self.queues[*tenant].len())).collect();
        let mut queues: Vec<_> = tenants.iter().map(|tenant| self.queues[*tenant].iter()).collect();
        let next = |index: usize| {
            let (_, _, job) = queues[index].next().expect("no more rows than it has");
            (tenants[index], *job)
        };
        order(&candidates, &rows).into_iter().map(next).collect()
    }

    /// The first waiting job by keys: the lowest key, then the longest not started.
    fn head_by_key(&self) -> Vec<(usize, JobId)> {
        let first = self.order.first().and_then(|(_, _, tenant)| {
            let (_, _, job) = self.queues[*tenant].first()?;
            Some((*tenant, *job))
        });
        first.into_iter().collect()
    }

    /// How many rows of which queues a cycle reads: those of the first tenants, and some of each tenant whose own
    /// jobs may take turns.
    fn heads(&mut self, view: View<'_>) -> BTreeMap<usize, usize> {
        let depth = view.churn + view.free();
        let mut within: BTreeMap<usize, (i64, usize)> = BTreeMap::new();
        for job in view.running.iter().map(|job| view.job(*job)).filter(|job| job.continuous) {
            let (started_us, jobs) = within.entry(job.tenant).or_insert((i64::MAX, 0));
            *started_us = job.order_us.min(*started_us);
            *jobs = view.churn.min(*jobs + 1);
        }
        within.retain(|tenant, _| !self.queues[*tenant].is_empty());
        let mut within: Vec<_> = within.into_iter().collect();
        within.sort_by_key(|(tenant, (started_us, jobs))| {
            (self.looked_us[*tenant], *started_us, Reverse(*jobs))
        });
        within.truncate(WITHIN * view.churn);
        for (tenant, _) in &within {
            self.looked_us[*tenant] = view.now_us;
        }
        let mut heads: BTreeMap<usize, usize> =
            within.into_iter().map(|(tenant, (_, jobs))| (tenant, jobs)).collect();
        let tenants: Vec<usize> = self.order.iter().take(depth).map(|(_, _, tenant)| *tenant).collect();
        let first = match self.fairness {
            Fairness::VirtualTime => apportion(&self.candidates(view, &tenants), depth),
            Fairness::Rfc => vec![depth; tenants.len()],
        };
        for (tenant, rows) in tenants.into_iter().zip(first).filter(|(_, rows)| *rows > 0) {
            let also = heads.entry(tenant).or_default();
            *also = rows.max(*also);
        }
        heads
    }

    fn candidates(&self, view: View<'_>, tenants: &[usize]) -> Vec<TenantTurn> {
        let candidate = |tenant: &usize| {
            let (expected_us, of) = (self.expected_us(view, *tenant), &view.tenants[*tenant]);
            let next = self.ledger.next(&of.name, of.shares, expected_us);
            TenantTurn { next, step: expected_us / f64::from(of.shares) }
        };
        tenants.iter().map(candidate).collect()
    }

    /// Charges the jobs that ran through a cycle, by the RFC.
    fn grow_keys(&mut self, view: View<'_>) {
        let v = self.boost.at(view.now_us);
        for job in view.running {
            let tenant = view.tenant_of(*job);
            let usage = self.usage[view.job(*job).tenant].at(view.now_us, &self.rules);
            let more = rfc::increment(usage, tenant.jobs as u64, tenant.shares);
            let key = &mut self.keys[*job as usize];
            *key = key.add(more, v);
        }
    }
}

impl Scheme for Fair {
    fn added(&mut self, view: View<'_>, job: JobId) {
        let tenant = view.tenant_of(job);
        let usage = self.usage[view.job(job).tenant].at(view.now_us, &self.rules);
        // The job starts as if it had run one cycle.
        let first = rfc::increment(usage, tenant.jobs as u64, tenant.shares);
        let key = Key::of(first, self.boost.at(view.now_us));
        match self.keys.get_mut(job as usize) {
            Some(known) => *known = key,
            None => {
                self.keys.push(key);
                self.charges.push(RunCharge::default());
            }
        }
        self.waits(view, job);
    }

    fn waits(&mut self, view: View<'_>, job: JobId) {
        let tenant = view.job(job).tenant;
        let row = self.row(view, job);
        let before = self.queues[tenant].first().copied();
        self.queues[tenant].insert(row);
        // Behind another job of its tenant, it changes nothing.
        if before.is_none_or(|before| row < before) {
            let of = &view.tenants[tenant];
            self.ledger.arrive(&of.name, of.shares);
            self.put(view, tenant);
        }
    }

    fn removed(&mut self, view: View<'_>, job: JobId, ran: bool) {
        let tenant = view.job(job).tenant;
        if ran {
            return;
        }
        let row = self.row(view, job);
        self.queues[tenant].remove(&row);
        if self.queues[tenant].is_empty() {
            self.ledger.emptied(&view.tenants[tenant].name);
        }
        self.put(view, tenant);
    }

    fn charge(&mut self, view: View<'_>, job: JobId, ran_us: i64) {
        let ran_us = ran_us as f64;
        self.usage[view.job(job).tenant].charge(ran_us, view.now_us, &self.rules);
        self.charges[job as usize].uncharged_us += ran_us;
        if self.rotates {
            self.book(view, job);
        }
    }

    fn ended(&mut self, view: View<'_>, job: JobId, completed: bool) {
        self.book(view, job);
        let (of, charge) = (view.tenant_of(job), std::mem::take(&mut self.charges[job as usize]));
        if self.order.is_empty() {
            // No job waited, so no tenant had a deficit meanwhile.
            self.ledger.advance_to(self.ledger.tag(&of.name, of.shares));
        }
        if self.ledger.end(&of.name, charge.left_us) {
            self.reorder(view);
        }
        if completed && !view.job(job).continuous {
            let is_first = !self.expectation.knows_type();
            self.expectation.learn(&of.name, charge.ran_us);
            if is_first {
                self.reorder(view);
            }
        }
        self.put(view, view.job(job).tenant);
    }

    fn new_shares(&mut self, view: View<'_>, tenant: usize) {
        let of = &view.tenants[tenant];
        self.ledger.new_shares(&of.name, of.shares);
        self.put(view, tenant);
    }

    fn fill(&mut self, view: View<'_>, free: usize, claim: &mut dyn FnMut(JobId) -> bool) -> Vec<JobId> {
        let mut started = Vec::new();
        while started.len() < free && !self.order.is_empty() {
            let room = free - started.len();
            let head = match self.fairness {
                Fairness::VirtualTime => self.head_by_virtual_time(view, room),
                Fairness::Rfc => self.head_by_key(),
            };
            let candidates = vec![schedule::Candidate::new("", &NO_LOCKS); head.len()];
            let queue = schedule::View::new(&candidates, room);
            let decision = schedule(&queue, &schedule::Rules::default(), view.now_us);
            let mut tenants = BTreeSet::new();
            for candidate in decision.start {
                let (tenant, job) = head[candidate];
                let row = self.row(view, job);
                self.queues[tenant].remove(&row);
                tenants.insert(tenant);
                if !claim(job) {
                    continue;
                }
                if self.fairness == Fairness::VirtualTime {
                    self.start(view, job);
                }
                started.push(job);
            }
            for tenant in tenants {
                if self.fairness == Fairness::VirtualTime && self.queues[tenant].is_empty() {
                    self.ledger.emptied(&view.tenants[tenant].name);
                }
                self.put(view, tenant);
            }
        }
        started
    }

    fn cycle_begins(&mut self, view: View<'_>) {
        if self.rotates && self.fairness == Fairness::VirtualTime {
            self.ledger.cycle(view.churn);
            // Positions depend on how fast virtual time advances.
            self.reorder(view);
        }
    }

    fn cycle(&mut self, view: View<'_>) -> Vec<JobId> {
        if !self.rotates && view.now_us - self.charged_us >= CHARGE_INTERVAL_US {
            self.charged_us = view.now_us;
            for job in view.running {
                self.book(view, *job);
            }
        }
        if self.order.is_empty() {
            self.ledger.nobody_waits();
        }
        if self.fairness == Fairness::Rfc {
            self.grow_keys(view);
        }
        if !self.rotates {
            return Vec::new();
        }
        let heads = self.heads(view);
        let mut involved: Vec<usize> = view.running.iter().map(|job| view.job(*job).tenant).collect();
        involved.extend(heads.keys());
        involved.sort_unstable();
        involved.dedup();
        let index = |tenant: usize| involved.binary_search(&tenant).expect("it runs or waits");

        let tenant = |tenant: &usize| {
            let of = &view.tenants[*tenant];
            rotation::Tenant {
                tag: self.ledger.tag(&of.name, of.shares),
                in_flight_us: self.ledger.in_flight_us(&of.name),
                shares: of.shares,
                expected_us: self.expected_us(view, *tenant),
            }
        };
        let tenants: Vec<rotation::Tenant> = involved.iter().map(tenant).collect();
        let running = |(place, id): (usize, &JobId)| {
            let job = view.job(*id);
            Running {
                job: place,
                tenant: index(job.tenant),
                key: self.keys[*id as usize].get(),
                started_us: job.order_us,
                priority: 0,
                continuous: job.continuous,
                idle: false,
                locks: false,
            }
        };
        let running: Vec<Running> = view.running.iter().enumerate().map(running).collect();
        let mut waiting = Vec::new();
        for (tenant, rows) in heads {
            waiting.extend(self.queues[tenant].iter().take(rows).map(|(_, since, job)| Waiting {
                tenant: index(tenant),
                key: self.keys[*job as usize].get(),
                priority: 0,
                not_started_since_us: *since,
            }));
        }
        let rules = rotation::Rules {
            max_jobs: view.slots,
            max_churn: view.churn,
            interval_us: view.interval_us,
            idle_turn_us: i64::MAX,
        };
        let scheme = match self.fairness {
            Fairness::VirtualTime => rotation::Scheme::VirtualTime(self.ledger.pace()),
            Fairness::Rfc => rotation::Scheme::Rfc,
        };
        let cycle = rotation::View::cycle(scheme, &tenants, &running, &waiting);
        let rules = schedule::Rules { rotation: rules, ..schedule::Rules::default() };
        let decision = schedule(&schedule::View::preempting(cycle), &rules, view.now_us);
        decision.stop.into_iter().map(|stop| view.running[stop.job]).collect()
    }
}
