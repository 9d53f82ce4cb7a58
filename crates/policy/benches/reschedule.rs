//! The cost of one cycle, with 500 running jobs and 10,000 to 1,000,000 pending ones: `cargo bench -p turnwise-policy`.
//!
//! A cycle charges the run time, decides which jobs stop, and apportions the slots that become free. The waiting jobs are in
//! memory here, in the order of their rows. Reading the heads of their queues, and moving stopped and started jobs between
//! queues, are part of the cycle.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use divan::{Bencher, black_box};
use turnwise_policy::fair_share::rfc::{self, Boost, Key, Usage};
use turnwise_policy::fair_share::virtual_time::{Ledger, TenantTurn, apportion, order};
use turnwise_policy::rotation::{Rules, Running, Scheme, Stop, Tenant, View, Waiting};
use turnwise_policy::schedule::{self, schedule};

const INTERVAL_US: i64 = 60_000_000;
const TURN_US: f64 = INTERVAL_US as f64;
const RULES: Rules =
    Rules { max_jobs: 500, max_churn: 20, interval_us: INTERVAL_US, idle_turn_us: 10_000_000 };

/// Pending jobs and tenants.
const SIZES: [(usize, usize); 6] =
    [(10_000, 3), (100_000, 3), (1_000_000, 3), (10_000, 1_000), (100_000, 1_000), (1_000_000, 1_000)];

fn main() {
    divan::main();
}

/// The jobs that stop at a cycle.
fn rotate(
    scheme: Scheme,
    tenants: &[Tenant],
    running: &[Running],
    waiting: &[Waiting],
    now_us: i64,
) -> Vec<Stop> {
    let cycle = View::cycle(scheme, tenants, running, waiting);
    let rules = schedule::Rules { rotation: RULES, ..schedule::Rules::default() };
    schedule(&schedule::View::preempting(cycle), &rules, now_us).stop
}

/// The running jobs, under either scheme.
struct Slots {
    names: Vec<String>,
    shares: Vec<u32>,
    running: Vec<Running>,
    next_job: usize,
    now_us: i64,
}

impl Slots {
    fn new(tenants: usize) -> Slots {
        Slots {
            names: (0..tenants).map(|tenant| format!("tenant{tenant}/_replicator")).collect(),
            shares: (0..tenants).map(|tenant| [100, 700, 200][tenant % 3]).collect(),
            running: Vec::new(),
            next_job: 0,
            now_us: 0,
        }
    }

    fn start(&mut self, tenant: usize, key: f64) {
        let started_us = self.now_us;
        self.running.push(Running {
            job: self.next_job,
            tenant,
            key,
            started_us,
            priority: 0,
            continuous: true,
            idle: false,
            locks: false,
        });
        self.next_job += 1;
    }
}

struct ByVirtualTime {
    slots: Slots,
    ledger: Ledger,
    waiting: Vec<VecDeque<i64>>,
}

impl ByVirtualTime {
    fn new(pending: usize, tenants: usize) -> Self {
        let slots = Slots::new(tenants);
        let mut ledger = Ledger::default();
        for (name, shares) in slots.names.iter().zip(&slots.shares) {
            ledger.arrive(name, *shares);
        }
        let waiting = (0..tenants).map(|_| (0..pending.div_ceil(tenants)).map(|_| 0).collect()).collect();
        let mut all = ByVirtualTime { slots, ledger, waiting };
        all.fill();
        (0..50).for_each(|_| all.cycle());
        all
    }

    fn fill(&mut self) {
        let Slots { names, shares, running, .. } = &self.slots;
        let free = RULES.max_jobs - running.len();
        let of = |(name, shares): (&String, &u32)| TenantTurn {
            next: self.ledger.next(name, *shares, TURN_US),
            step: TURN_US / f64::from(*shares),
        };
        let candidates: Vec<TenantTurn> = names.iter().zip(shares).map(of).collect();
        let rows = apportion(&candidates, free);
        for tenant in order(&candidates, &rows) {
            if self.waiting[tenant].pop_front().is_some() {
                self.ledger.start(&self.slots.names[tenant], self.slots.shares[tenant], TURN_US);
                self.slots.start(tenant, 0.0);
            }
        }
    }

    fn cycle(&mut self) {
        self.slots.now_us += INTERVAL_US;
        let Slots { names, shares, running, now_us, .. } = &mut self.slots;
        self.ledger.cycle(RULES.max_churn);
        for job in running.iter() {
            self.ledger.charge_rotating(&names[job.tenant], shares[job.tenant], TURN_US, TURN_US);
        }
        let of = |(name, shares): (&String, &u32)| self.ledger.tenant(name, *shares, TURN_US);
        let tenants: Vec<Tenant> = names.iter().zip(shares.iter()).map(of).collect();
        let heads = |(tenant, queue): (usize, &VecDeque<i64>)| {
            let job =
                move |since: &i64| Waiting { tenant, key: 0.0, priority: 0, not_started_since_us: *since };
            queue.iter().take(RULES.max_churn).map(job).collect::<Vec<_>>()
        };
        let waiting: Vec<Waiting> = self.waiting.iter().enumerate().flat_map(heads).collect();
        let scheme = Scheme::VirtualTime(self.ledger.pace());
        let stops = rotate(scheme, &tenants, running, &waiting, *now_us);
        let stopped: BTreeSet<usize> = stops.iter().map(|stop| stop.job).collect();
        running.retain(|job| {
            let stays = !stopped.contains(&job.job);
            if !stays {
                self.ledger.end(&names[job.tenant], TURN_US);
                self.waiting[job.tenant].push_back(job.started_us);
            }
            stays
        });
        self.fill();
    }
}

/// A row of the queue, in its order: key, last start, number.
struct Row(f64, i64, usize);

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Row {}

impl PartialOrd for Row {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Row {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then((self.1, self.2).cmp(&(other.1, other.2)))
    }
}

struct ByKeys {
    slots: Slots,
    rules: rfc::Rules,
    usage: Vec<Usage>,
    boost: Boost,
    waiting: Vec<BTreeSet<Row>>,
    jobs: Vec<u64>,
}

impl ByKeys {
    fn new(pending: usize, tenants: usize) -> Self {
        let rules = rfc::Rules::default();
        let each = pending.div_ceil(tenants);
        let queue = |_| (0..each).map(|job| Row(job as f64 / each as f64, 0, job)).collect();
        let mut all = ByKeys {
            slots: Slots::new(tenants),
            rules,
            usage: vec![Usage::default(); tenants],
            boost: Boost::new(0, &rules),
            waiting: (0..tenants).map(queue).collect(),
            jobs: vec![each as u64; tenants],
        };
        all.slots.next_job = each;
        all.fill();
        (0..50).for_each(|_| all.cycle());
        all
    }

    fn fill(&mut self) {
        let head = |tenant: usize, queue: &BTreeSet<Row>| {
            queue.first().map(|row| Reverse((Row(row.0, row.1, row.2), tenant)))
        };
        let heads = self.waiting.iter().enumerate().filter_map(|(tenant, queue)| head(tenant, queue));
        let mut heads: BinaryHeap<_> = heads.collect();
        while self.slots.running.len() < RULES.max_jobs
            && let Some(Reverse((_, tenant))) = heads.pop()
            && let Some(Row(key, ..)) = self.waiting[tenant].pop_first()
        {
            self.slots.start(tenant, key);
            heads.extend(head(tenant, &self.waiting[tenant]));
        }
    }

    fn cycle(&mut self) {
        self.slots.now_us += INTERVAL_US;
        let Slots { shares, running, now_us, .. } = &mut self.slots;
        for job in running.iter() {
            self.usage[job.tenant].charge(TURN_US, *now_us, &self.rules);
        }
        let v = self.boost.at(*now_us);
        for job in running.iter_mut() {
            let usage = self.usage[job.tenant].at(*now_us, &self.rules);
            let more = rfc::increment(usage, self.jobs[job.tenant], shares[job.tenant]);
            job.key = Key::stored(job.key).add(more, v).get();
        }
        let heads = |(tenant, queue): (usize, &BTreeSet<Row>)| {
            let job =
                move |row: &Row| Waiting { tenant, key: row.0, priority: 0, not_started_since_us: row.1 };
            queue.iter().take(RULES.max_churn).map(job).collect::<Vec<_>>()
        };
        let waiting: Vec<Waiting> = self.waiting.iter().enumerate().flat_map(heads).collect();
        let stops = rotate(Scheme::Rfc, &[], running, &waiting, *now_us);
        let stopped: BTreeSet<usize> = stops.iter().map(|stop| stop.job).collect();
        running.retain(|job| {
            let stays = !stopped.contains(&job.job);
            if !stays {
                self.waiting[job.tenant].insert(Row(job.key, job.started_us, job.job));
            }
            stays
        });
        self.fill();
    }
}

#[divan::bench(args = SIZES)]
fn virtual_time(bencher: Bencher<'_, '_>, (pending, tenants): (usize, usize)) {
    let mut all = ByVirtualTime::new(pending, tenants);
    bencher.bench_local(|| black_box(&mut all).cycle());
}

#[divan::bench(args = SIZES)]
fn priorities(bencher: Bencher<'_, '_>, (pending, tenants): (usize, usize)) {
    let mut all = ByKeys::new(pending, tenants);
    bencher.bench_local(|| black_box(&mut all).cycle());
}
