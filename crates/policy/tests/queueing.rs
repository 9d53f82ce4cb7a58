//! Jobs that run to their end, of tenants that come and go: the bounds on unfairness, over random arrivals.
//!
//! With `D` slots, `l` a tenant's longest run, `e` the largest expected cost of one of its jobs, `φ` its shares:
//!
//! - A: a tenant with waiting jobs is behind `now` by at most `D · e / φ`.
//! - B: no tenant is ahead of `now` by more than `D · l / φ`.
//! - C: while two tenants both have waiting jobs, their services, each divided by its tenant's shares, differ by at
//!   most `D · ((l + e) / φ + (l' + e') / φ')`.
//!
//! Jobs start out of turn where a worker's bound of the queue has no job of the tenant in turn. A holds there as well.
//!
//! The proof is in `docs/design/fair-share.md`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;
use turnwise_policy::fair_share::virtual_time::{
    Expectation, LEAST_COST_US, Ledger, TenantTurn, apportion, order,
};

#[derive(Debug, Clone)]
struct Population {
    slots: usize,
    tenants: Vec<Tenant>,
    actions: Vec<(u64, usize, Action)>,
    /// Repeated: whether a start passes over the tenant in turn.
    passes_over: Vec<bool>,
}

#[derive(Debug, Clone)]
struct Tenant {
    shares: u32,
    /// The run times of its jobs, one after the other, repeated.
    runs_us: Vec<u64>,
    costs: Costs,
}

#[derive(Debug, Clone, Copy)]
enum Costs {
    Known,
    Learnt,
    /// The expected cost is the true cost times this factor.
    Wrong(f64),
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Add(usize),
    DeleteWaiting(usize),
    DeleteRunning,
    DeleteAndAddAgain,
    Shares(u32),
}

fn tenants() -> impl Strategy<Value = Vec<Tenant>> {
    let shares = prop_oneof![Just(100_u32), Just(1), Just(1000), 1..=1000_u32];
    let runs = prop::collection::vec(prop_oneof![1_000..2_000_u64, 1_000..5_000_000_u64], 1..6);
    let costs = prop_oneof![
        2 => Just(Costs::Known),
        2 => Just(Costs::Learnt),
        1 => Just(Costs::Wrong(1_000.0)),
        1 => Just(Costs::Wrong(0.001)),
    ];
    let tenant = (shares, runs, costs).prop_map(|(shares, runs_us, costs)| Tenant { shares, runs_us, costs });
    prop::collection::vec(tenant, 2..6)
}

fn populations(with_shares: bool) -> impl Strategy<Value = Population> {
    let action = prop_oneof![
        6 => (1..100_usize).prop_map(Action::Add),
        2 => (1..100_usize).prop_map(Action::DeleteWaiting),
        1 => Just(Action::DeleteRunning),
        1 => Just(Action::DeleteAndAddAgain),
        u32::from(with_shares) => (1..=1000_u32).prop_map(Action::Shares),
    ];
    let pause = prop_oneof![Just(0_u64), 0..1_000_000_u64, 0..60_000_000_u64];
    let actions = prop::collection::vec((pause, any::<prop::sample::Index>(), action), 5..60);
    (1..20_usize, tenants(), actions).prop_map(|(slots, tenants, actions)| {
        let of = |(pause, index, action): (u64, prop::sample::Index, Action)| {
            (pause, index.index(tenants.len()), action)
        };
        let actions = actions.into_iter().map(of).collect();
        Population { slots, tenants, actions, passes_over: vec![false] }
    })
}

fn populations_out_of_turn() -> impl Strategy<Value = Population> {
    let passes_over = prop::collection::vec(any::<bool>(), 1..8);
    (populations(false), passes_over)
        .prop_map(|(population, passes_over)| Population { passes_over, ..population })
}

/// The state of one tenant, and what was observed of it.
struct TenantState {
    name: String,
    shares: u32,
    least_shares: u32,
    waiting: usize,
    /// The number of its jobs that have started.
    started: usize,
    served_us: f64,
    longest_us: f64,
    expected_us: f64,
}

struct Run {
    tenant: usize,
    started_us: u64,
    expected_us: f64,
}

struct World {
    slots: usize,
    tenants: Vec<Tenant>,
    passes_over: Vec<bool>,
    states: Vec<TenantState>,
    now_us: u64,
    ledger: Ledger,
    costs: Expectation,
    runs: Vec<Option<Run>>,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    running: usize,
    /// For each pair of tenants: served time divided by shares, of both, when the later one began to wait.
    both_wait: Vec<Vec<Option<(f64, f64)>>>,
}

impl World {
    fn new(population: &Population) -> World {
        let count = population.tenants.len();
        let state = |(number, tenant): (usize, &Tenant)| TenantState {
            name: format!("tenant {number}"),
            shares: tenant.shares,
            least_shares: tenant.shares,
            waiting: 0,
            started: 0,
            served_us: 0.0,
            longest_us: LEAST_COST_US,
            expected_us: LEAST_COST_US,
        };
        World {
            slots: population.slots,
            tenants: population.tenants.clone(),
            passes_over: population.passes_over.clone(),
            states: population.tenants.iter().enumerate().map(state).collect(),
            now_us: 0,
            ledger: Ledger::default(),
            costs: Expectation::default(),
            runs: Vec::new(),
            ends: BinaryHeap::new(),
            running: 0,
            both_wait: vec![vec![None; count]; count],
        }
    }

    fn run_us(&self, tenant: usize) -> u64 {
        let runs_us = &self.tenants[tenant].runs_us;
        runs_us[self.states[tenant].started % runs_us.len()]
    }

    fn expected_us(&self, tenant: usize) -> f64 {
        let runs_us = self.run_us(tenant) as f64;
        match self.tenants[tenant].costs {
            Costs::Known => runs_us,
            Costs::Learnt => self.costs.of(&self.states[tenant].name),
            Costs::Wrong(factor) => runs_us * factor,
        }
    }

    fn add(&mut self, tenant: usize, jobs: usize) {
        let state = &mut self.states[tenant];
        state.waiting += jobs;
        if state.waiting > 0 {
            self.ledger.arrive(&state.name, state.shares);
        }
    }

    fn delete_waiting(&mut self, tenant: usize, jobs: usize) {
        let state = &mut self.states[tenant];
        state.waiting = state.waiting.saturating_sub(jobs);
        if state.waiting == 0 {
            self.ledger.emptied(&state.name);
        }
    }

    fn end(&mut self, number: usize) {
        let Some(Run { tenant, started_us, expected_us }) = self.runs[number].take() else { return };
        let state = &mut self.states[tenant];
        let ran_us = ((self.now_us - started_us) as f64).max(LEAST_COST_US);
        state.longest_us = state.longest_us.max(ran_us);
        state.served_us += ran_us / f64::from(state.shares);
        self.ledger.charge(&state.name, state.shares, ran_us);
        self.ledger.end(&state.name, expected_us);
        self.costs.learn(&state.name, ran_us);
        self.running -= 1;
    }

    fn act(&mut self, tenant: usize, action: Action) {
        match action {
            Action::Add(jobs) => self.add(tenant, jobs),
            Action::DeleteWaiting(jobs) => self.delete_waiting(tenant, jobs),
            Action::DeleteRunning => {
                let of = |run: &Option<Run>| run.as_ref().is_some_and(|run| run.tenant == tenant);
                if let Some(number) = self.runs.iter().position(of) {
                    self.end(number);
                }
            }
            Action::DeleteAndAddAgain => {
                let jobs = self.states[tenant].waiting;
                self.delete_waiting(tenant, jobs);
                self.add(tenant, jobs);
                // It has not waited all the time: it may have lost service by that, and gained none.
                for other in 0..self.states.len() {
                    self.both_wait[tenant][other] = None;
                    self.both_wait[other][tenant] = None;
                }
            }
            Action::Shares(shares) => {
                let state = &mut self.states[tenant];
                state.shares = shares;
                state.least_shares = state.least_shares.min(shares);
                self.ledger.new_shares(&state.name, shares);
            }
        }
    }

    fn fill(&mut self) {
        while self.running < self.slots {
            let waiting = (0..self.states.len()).filter(|tenant| self.states[*tenant].waiting > 0);
            let next = |tenant: usize| {
                let state = &self.states[tenant];
                self.ledger.next(&state.name, state.shares, self.expected_us(tenant))
            };
            let mut waiting: Vec<usize> = waiting.collect();
            waiting.sort_by(|a, b| next(*a).total_cmp(&next(*b)));
            let Some(first) = waiting.first().copied() else { break };
            let passes_over = self.passes_over[self.runs.len() % self.passes_over.len()];
            let tenant = waiting.get(1).copied().filter(|_| passes_over).unwrap_or(first);
            let (run_us, expected_us) = (self.run_us(tenant), self.expected_us(tenant));
            let TenantState { name, shares, .. } = &self.states[tenant];
            if tenant == first {
                self.ledger.start(name, *shares, expected_us);
            } else {
                let first = &self.states[first];
                let first = (first.name.as_str(), first.shares);
                self.ledger.start_out_of_turn(name, *shares, expected_us, first);
            }
            let state = &mut self.states[tenant];
            state.expected_us = state.expected_us.max(expected_us);
            state.started += 1;
            self.ends.push(Reverse((self.now_us + run_us, self.runs.len())));
            self.runs.push(Some(Run { tenant, started_us: self.now_us, expected_us }));
            self.running += 1;
            self.delete_waiting(tenant, 1);
        }
        if self.states.iter().all(|state| state.waiting == 0) {
            self.ledger.nobody_waits();
        }
    }

    /// Everything until this moment.
    fn pass(&mut self, until_us: u64, shares_change: bool) {
        while let Some(Reverse((at_us, number))) =
            self.ends.peek().copied().filter(|Reverse((at, _))| *at <= until_us)
        {
            self.ends.pop();
            self.now_us = at_us;
            self.end(number);
            self.fill();
            self.check(shares_change);
        }
        self.now_us = until_us;
    }

    fn check(&mut self, shares_change: bool) {
        let now = self.ledger.now();
        let slots = self.slots as f64;
        let rounding = 1e-6 + now.abs() * 1e-9;
        let in_turn = !self.passes_over.contains(&true);
        for tenant in 0..self.states.len() {
            self.states[tenant].expected_us = self.states[tenant].expected_us.max(self.expected_us(tenant));
        }
        for state in &self.states {
            let tag = self.ledger.tag(&state.name, state.shares);
            let behind = slots * state.expected_us / f64::from(state.shares);
            assert!(
                state.waiting == 0 || tag >= now - behind - rounding,
                "A: {} {tag} {now} {behind}",
                state.name
            );
            let ahead = slots * state.longest_us / f64::from(state.least_shares);
            assert!(!in_turn || tag <= now + ahead + rounding, "B: {} {tag} {now} {ahead}", state.name);
            assert!(self.ledger.in_flight_us(&state.name) >= 0.0);
        }
        for f in 0..self.states.len() {
            for m in 0..f {
                let (left, right) = (&self.states[f], &self.states[m]);
                if left.waiting == 0 || right.waiting == 0 || shares_change || !in_turn {
                    self.both_wait[f][m] = None;
                    continue;
                }
                let (served_f, served_m) =
                    self.both_wait[f][m].get_or_insert((left.served_us, right.served_us));
                let difference = (left.served_us - *served_f) - (right.served_us - *served_m);
                let of =
                    |state: &TenantState| (state.longest_us + state.expected_us) / f64::from(state.shares);
                let bound = slots * (of(left) + of(right)) + rounding;
                assert!(
                    difference.abs() <= bound,
                    "C: {} and {}: {difference} {bound}",
                    left.name,
                    right.name
                );
            }
        }
        // No slot is free while a job waits.
        assert!(self.running == self.slots || self.states.iter().all(|state| state.waiting == 0));
    }
}

fn run(population: &Population, shares_change: bool) {
    let mut world = World::new(population);
    for (pause_us, tenant, action) in &population.actions {
        world.pass(world.now_us + pause_us, shares_change);
        world.act(*tenant, *action);
        world.fill();
        world.check(shares_change);
    }
    world.pass(u64::MAX / 2, shares_change);
    for state in &world.states {
        assert_eq!(world.ledger.in_flight_us(&state.name).round(), 0.0);
    }
}

proptest! {
    #[test]
    fn prop_unfairness_is_bounded(population in populations(false)) {
        run(&population, false);
    }

    #[test]
    fn prop_no_tenant_is_far_behind_or_ahead_when_shares_change(population in populations(true)) {
        run(&population, true);
    }

    /// A start out of turn does not advance virtual time: no waiting tenant is behind by more than otherwise.
    #[test]
    fn prop_no_tenant_is_far_behind_where_some_start_out_of_turn(population in populations_out_of_turn()) {
        run(&population, false);
    }

    /// Each pick goes to the candidate that is lowest at that time, and `order` has the same sequence.
    #[test]
    fn prop_slots_are_apportioned_one_by_one(
        tenants in prop::collection::vec((0.0..100.0_f64, 0.1..10.0_f64, 0..8_usize), 0..12),
        picks in 0..40_usize,
    ) {
        let candidates: Vec<TenantTurn> = tenants.iter().map(|(next, step, _)| TenantTurn { next: *next, step: *step }).collect();
        let place = |index: usize, taken: usize| candidates[index].next + candidates[index].step * taken as f64;
        let apportioned = apportion(&candidates, picks);
        prop_assert_eq!(apportioned.iter().sum::<usize>(), if candidates.is_empty() { 0 } else { picks });
        for (a, taken) in apportioned.iter().enumerate().filter(|(_, taken)| **taken > 0) {
            for (b, others) in apportioned.iter().enumerate() {
                prop_assert!(place(a, taken - 1) <= place(b, *others) + 1e-9);
            }
        }
        let jobs: Vec<usize> = tenants.iter().map(|(_, _, jobs)| *jobs).collect();
        let order = order(&candidates, &jobs);
        prop_assert_eq!(order.len(), jobs.iter().sum::<usize>());
        let mut taken = vec![0; jobs.len()];
        let mut before = f64::MIN;
        for index in order {
            prop_assert!(place(index, taken[index]) >= before - 1e-9);
            before = place(index, taken[index]);
            taken[index] += 1;
        }
        prop_assert_eq!(taken, jobs);
    }
}
