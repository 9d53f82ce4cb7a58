//! What a world is made of: everything that its seed decides before it begins.
//!
//! Most worlds are small, since most faults need only a few nodes and jobs to meet, and small worlds are fast. Each kind of
//! fault is left out of some worlds, frequent in others (swarm testing): what one fault hides another world shows.

use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::backoff::{self, OnLost};
use turnwise_policy::fair_share::{Fairness, Shares, rfc};
use turnwise_queue::deadlines::Timeouts;
use turnwise_store::Limits;
use turnwise_worker::{FairRules, Options, RotationRules};

use crate::eligibility::EligibilityPlan;
use crate::link::{Rates, SLOW_STORE_MS};
use crate::locking::LockPlan;
use crate::node::QUIET_PERIOD;
use crate::rng::SeededRng;

/// From this seed on worlds have jobs that lock.
pub const LOCKS_FROM: u64 = 1_000_000;

/// From this seed on they have jobs that may not run at once, and some have jobs that lock.
pub const ELIGIBILITY_FROM: u64 = 2_000_000;

/// The job type of the external workers.
pub const EXTERNAL: &str = "x";

/// Jobs that start together are spread over so much time at most.
pub const STARTUP_JITTER: Duration = Duration::from_secs(3);

/// The composition of a world.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Processes that run at the same time at most.
    pub nodes: u32,
    /// Job types; each node has a worker for each.
    pub types: Vec<String>,
    /// Workers in other processes, that reach the store through the nodes: all for one more job type, [`EXTERNAL`].
    pub externals: u32,
    /// How long jobs are kept after their end.
    pub retention: Duration,
    /// Whom jobs are charged to.
    pub tenants: u32,
    /// Clients.
    pub clients: u32,
    /// Things that each client does at most.
    pub ops: u64,
    /// The longest pause between two things that a client does, in ms.
    pub think_ms: u64,
    /// Some client adds that many long jobs at once, if it is not 0.
    pub flood: u64,
    /// Rounds of chaos and calm.
    pub rounds: u64,
    /// The longest time of chaos in one round, in ms.
    pub chaos_ms: u64,
    /// The longest pause between two faults of nodes, in ms.
    pub fault_ms: u64,
    /// What goes wrong on the way to the store.
    pub rates: Rates,
    /// Nodes crash.
    pub crashes: bool,
    /// Nodes are paused.
    pub pauses: bool,
    /// Connections to the store are cut.
    pub cuts: bool,
    /// Settings are changed.
    pub changes: bool,
    /// Clocks are wrong.
    pub skews: bool,
    /// They are set by hours, forward and back.
    pub jumps: bool,
    /// What a transaction may have: much, or as little as with etcd.
    pub limits: Limits,
    /// How jobs lock, if they do.
    pub locks: Option<LockPlan>,
    /// Which jobs may run, if not all may.
    pub eligibility: Option<EligibilityPlan>,
    /// Some runs are held to their time.
    pub timeouts: bool,
    /// In the end, before jobs have their turns, continuous jobs take all slots.
    pub fills: bool,
    /// The workers' settings.
    pub options: Options,
}

/// How jobs are shared out among tenants: by either scheme, most often with rotation, and with cycles as short as may be.
pub fn fair_rules(rng: &SeededRng, tenants: u32) -> FairRules {
    let mut shares = Shares::default();
    for n in 0..tenants {
        if rng.chance(500) {
            let some = *rng.choose(&[1, 10, 200, *Shares::RANGE.end()]);
            shares.set(tenant(n.into()), some).expect("it is in their range");
        }
    }
    let interval_us = |most_s: u64| i64::try_from(rng.between(1, most_s) * 1_000_000).expect("a minute");
    let rfc = rfc::Rules {
        usage_coeff: *rng.choose(&[0.0, 0.5, 0.9]),
        priority_coeff: *rng.choose(&[0.5, 0.98, 1.0]),
        usage_interval_us: interval_us(60),
        priority_interval_us: interval_us(60),
        charge_interval_us: interval_us(60),
    };
    let rotation = RotationRules {
        interval: rng.ms(1_000, *rng.choose(&[3_000, 20_000])),
        max_churn: usize::try_from(*rng.choose(&[0, 1, 2, 20])).expect("a small number"),
        startup_jitter: STARTUP_JITTER.mul_f64(*rng.choose(&[0.0, 0.1, 1.0])),
        idle_turn: rng.ms(0, 10_000),
        quiet_period: QUIET_PERIOD,
    };
    FairRules {
        fairness: *rng.choose(&Fairness::ALL),
        rfc,
        shares: Arc::new(shares),
        rotation: rng.chance(800).then_some(rotation),
    }
}

fn tenant(number: u64) -> String {
    format!("u{number}")
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, rng: &SeededRng) -> Self {
        let eligibility = (seed >= ELIGIBILITY_FROM).then(|| EligibilityPlan::new(rng));
        let has_locks = match &eligibility {
            Some(_) => rng.chance(300),
            None => seed >= LOCKS_FROM,
        };
        let locks = has_locks.then(|| LockPlan::new(rng));
        let size = rng.below(100);
        let (nodes, types, clients, ops) = match size {
            // A crowd.
            0..2 => (rng.between(60, 120), rng.between(2, 4), 6, 8),
            2..15 => (rng.between(8, 20), rng.between(1, 2), rng.between(3, 6), 40),
            _ => (rng.between(2, 6), rng.between(1, 2), rng.between(1, 4), 150),
        };
        let has_hub = eligibility.as_ref().is_some_and(|plan| plan.hub);
        let flood = match size {
            15..27 if has_hub => rng.between(100, 200),
            15..27 => rng.between(51, 120),
            _ => 0,
        };
        let rate = |often: u64| *rng.choose(&[0, often / 10, often / 10, often]);
        let rates = Rates {
            latency: *rng.choose(&[50, 300, 700]),
            latency_ms: *rng.choose(&[3, 20, SLOW_STORE_MS]),
            slow: rate(30),
            conflict: rate(150),
            unknown: *rng.choose(&[0, 20, 200, 200]),
            late: *rng.choose(&[100, 300, 700]),
            early_watch: rate(300),
        };
        let health_s = *rng.choose(&[2, 5, 5]);
        let slots = if flood > 0 { rng.between(60, 120) } else { *rng.choose(&[1, 2, 4, 10]) };
        let options = Options {
            max_jobs: usize::try_from(slots).expect("a small number"),
            health_interval: Duration::from_secs(health_s),
            health_timeout: Duration::from_secs(health_s * rng.between(2, 4)),
            report_interval: rng.ms(100, 2_000),
            stop_grace: rng.ms(500, 5_000),
            max_history: usize::try_from(rng.between(1, 20)).expect("a small number"),
            backoff: backoff::Rules { base_us: 1_000_000, max_exponent: 3, health_threshold_us: 20_000_000 },
            on_lost: OnLost::ALL[usize::from(seed.is_multiple_of(4))],
            ..Options::default()
        };
        let tenants = u32::try_from(*rng.choose(&[1, 2, 3, 8])).expect("a small number");
        let queue = Arc::new(locks.as_ref().map(|locks| locks.rules.clone()).unwrap_or_default());
        let options = Options { fair: fair_rules(rng, tenants), queue, ..options };
        // In some worlds little goes wrong, so that what happened can be compared with what was charged.
        let quiet = rng.chance(60);
        let rates = match quiet {
            true => Rates { slow: 0, unknown: 0, latency_ms: 3, ..rates },
            false => rates,
        };
        let skews = rng.chance(600) && !quiet;
        let jumps = skews && rng.chance(400);
        // Where others come all the time nothing is late.
        let ops = if jumps { ops.min(30) } else { ops };
        let externals = if rng.chance(300) { rng.between(1, 4) } else { 0 };
        Plan {
            externals: u32::try_from(externals).expect("a small number"),
            retention: Duration::from_secs(*rng.choose(&[10, 60, 1_000_000])),
            nodes: u32::try_from(nodes).expect("a small number"),
            types: (0..types).map(|n| format!("t{n}")).collect(),
            tenants,
            clients: u32::try_from(clients).expect("a small number"),
            ops,
            think_ms: *rng.choose(&[1_000, 3_000, 8_000]),
            flood,
            rounds: rng.between(1, 3),
            chaos_ms: rng.between(10_000, 60_000),
            fault_ms: *rng.choose(&[1_000, 5_000, 20_000]),
            rates,
            crashes: rng.chance(800) && !quiet,
            pauses: rng.chance(700) && !quiet,
            cuts: rng.chance(600) && !quiet,
            changes: rng.chance(600),
            skews,
            jumps,
            limits: *rng.choose(&[Limits::DEFAULT, Limits::ETCD, Limits::SMALL]),
            locks,
            eligibility,
            timeouts: seed % 3 == 1,
            fills: seed % 3 == 2,
            options,
        }
    }

    /// How long a job's runs may take, where some are held to their time.
    pub fn timeouts(&self, rng: &SeededRng) -> Timeouts {
        if !self.timeouts || rng.chance(500) {
            return Timeouts::default();
        }
        let us = |often: u64| {
            rng.chance(often).then(|| i64::try_from(rng.between(3, 12) * 1_000_000).expect("some seconds"))
        };
        Timeouts { run_us: us(400), heartbeat_us: us(700) }
    }

    /// The types of the jobs that clients add.
    pub fn job_types(&self) -> Vec<String> {
        let mut types = self.types.clone();
        if self.externals > 0 {
            types.push(EXTERNAL.to_owned());
        }
        types
    }

    /// Whom a job is charged to: every other one to the first, so that some have more jobs than others.
    pub fn tenant(&self, rng: &SeededRng) -> String {
        let number = if rng.chance(500) { 0 } else { rng.below(u64::from(self.tenants)) };
        tenant(number)
    }

    /// Who of the tenants has the largest share.
    pub fn largest_tenant(&self, shares: &Shares) -> String {
        let all = (0..self.tenants).map(|number| tenant(number.into()));
        all.max_by_key(|tenant| shares.of(tenant)).expect("there are some")
    }

    /// Whether the store is so slow, in a calm, too, that what is bound in time may not be done in it: a shutdown with many jobs
    /// leaves them to the neighbours, a ping may come too late.
    pub fn is_slow(&self) -> bool {
        self.rates.latency_ms >= SLOW_STORE_MS
    }

    /// Whether nobody dies, is held up, has a wrong clock, or must ask again what became of a commit: then whoever charges a run knows
    /// how long it was.
    pub fn is_quiet(&self) -> bool {
        let Plan { crashes, pauses, cuts, skews, rates, .. } = self;
        !(crashes | pauses | cuts | skews) && rates.slow + rates.unknown == 0 && !self.is_slow()
    }

    /// How long a worker may be silent.
    pub fn health_timeout(&self) -> Duration {
        self.options.health_timeout
    }
}
