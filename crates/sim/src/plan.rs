//! The composition of a world: everything that its seed decides before it begins.
//!
//! Most worlds are small: most faults need only a few nodes and jobs to interact, and small worlds are fast. Each kind of
//! fault is absent from some worlds and frequent in others (swarm testing), because one fault can hide another.

use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::backoff::{self, OnLost, Waits};
use turnwise_policy::fair_share::{Fairness, Shares, rfc};
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::tasks::KnownTasks;
use turnwise_queue::unique::{self, By, OnConflict, Unique, Within};
use turnwise_queue::{Lifetime, Retry};
use turnwise_store::Limits;
use turnwise_worker::{FairRules, Options, RotationRules, Tunables};

use crate::eligibility::EligibilityPlan;
use crate::link::{Rates, SLOW_STORE_MS};
use crate::locking::LockPlan;
use crate::rng::SeededRng;

/// Worlds have jobs that lock from this seed on.
pub const LOCKS_FROM: u64 = 1_000_000;

/// From this seed on, worlds have jobs that may not start immediately, and some have jobs that lock.
pub const ELIGIBILITY_FROM: u64 = 2_000_000;

/// From this seed on, worlds have an operator who quiets and drains workers during chaos. All jobs may start, and none locks.
pub const MODES_FROM: u64 = 3_000_000;

/// From this seed on, worlds have schedules and groups. All jobs may start, and none locks.
pub const SCHEDULES_FROM: u64 = 4_000_000;

/// The job type of the external workers.
pub const EXTERNAL: &str = "x";

/// The tasks of its jobs.
const TASKS: [&str; 3] = ["a", "b", "c"];

/// How long a membership must not have changed to be stable.
pub const QUIET_PERIOD: Duration = Duration::from_secs(2);

/// The longest time over which jobs that start together are spread.
pub const STARTUP_JITTER: Duration = Duration::from_secs(3);

/// The composition of a world.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The highest number of processes that run at the same time.
    pub nodes: u32,
    /// Job types; each node has a worker for each.
    pub types: Vec<String>,
    /// Workers in other processes, which reach the store through the nodes. All of them work for one more job type, [`EXTERNAL`].
    pub externals: u32,
    /// How long jobs are kept after their end.
    pub retention: Duration,
    /// The number of tenants.
    pub tenants: u32,
    /// The number of clients.
    pub clients: u32,
    /// The highest number of operations of each client.
    pub ops: u64,
    /// The longest pause between two operations of a client, in ms.
    pub think_ms: u64,
    /// The number of long jobs that one client adds together (the flood), or 0.
    pub flood: u64,
    /// Rounds of chaos and calm.
    pub rounds: u64,
    /// The longest time of chaos in one round, in ms.
    pub chaos_ms: u64,
    /// The longest pause between two faults of nodes, in ms.
    pub fault_ms: u64,
    /// The faults on the way to the store.
    pub rates: Rates,
    /// Whether nodes crash.
    pub crashes: bool,
    /// Whether nodes are paused.
    pub pauses: bool,
    /// Whether connections to the store are cut.
    pub cuts: bool,
    /// Whether settings change.
    pub changes: bool,
    /// Whether clocks are wrong.
    pub skews: bool,
    /// Whether clocks are set by hours, forward and back.
    pub jumps: bool,
    /// The limits of a transaction: large, or as small as with etcd.
    pub limits: Limits,
    /// How jobs lock, if they do.
    pub locks: Option<LockPlan>,
    /// Which jobs may start, if not all may.
    pub eligibility: Option<EligibilityPlan>,
    /// Whether an operator quiets and drains workers.
    pub modes: bool,
    /// Whether there are schedules, and groups.
    pub schedules: bool,
    /// Whether some runs have timeouts.
    pub timeouts: bool,
    /// Whether some jobs have unique keys.
    pub unique: bool,
    /// Whether jobs of external workers have tasks, of which most of these workers know some.
    pub tasks: bool,
    /// Whether clients edit and hold jobs that wait.
    pub edits: bool,
    /// Whether continuous jobs take all slots at the end, before the check of turns.
    pub fills: bool,
    /// The workers' settings.
    pub options: Options,
}

/// How tenants share slots: by either scheme, mostly with rotation, and with very short cycles.
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
        let eligibility = (ELIGIBILITY_FROM..MODES_FROM).contains(&seed).then(|| EligibilityPlan::new(rng));
        let has_locks = match &eligibility {
            Some(_) => rng.chance(300),
            None => (LOCKS_FROM..ELIGIBILITY_FROM).contains(&seed),
        };
        let locks = has_locks.then(|| LockPlan::new(rng));
        let size = rng.below(100);
        let (nodes, types, clients, ops) = match size {
            // A large cluster.
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
            health_interval: Duration::from_secs(health_s),
            health_timeout: Duration::from_secs(health_s * rng.between(2, 4)),
            report_interval: rng.ms(100, 2_000),
            stop_grace: rng.ms(500, 5_000),
            tunables: Tunables {
                max_jobs: usize::try_from(slots).expect("a small number"),
                max_history: usize::try_from(rng.between(1, 20)).expect("a small number"),
                backoff: backoff::Rules {
                    base_us: 1_000_000,
                    max_exponent: 3,
                    health_threshold_us: 20_000_000,
                },
                on_lost: OnLost::ALL[usize::from(seed.is_multiple_of(4))],
                max_attempts: *rng.choose(&[None, None, Some(4)]),
                ..Tunables::default()
            },
            ..Options::default()
        };
        let tenants = u32::try_from(*rng.choose(&[1, 2, 3, 8])).expect("a small number");
        let queue = Arc::new(locks.as_ref().map(|locks| locks.rules.clone()).unwrap_or_default());
        let tunables = Tunables { fair: fair_rules(rng, tenants), queue, ..options.tunables };
        let options = Options { tunables, ..options };
        // Few faults happen in some worlds, so that run times can be compared with charges.
        let quiet = rng.chance(60);
        let rates = match quiet {
            true => Rates { slow: 0, unknown: 0, latency_ms: 3, ..rates },
            false => rates,
        };
        let skews = rng.chance(600) && !quiet;
        let jumps = skews && rng.chance(400);
        // If clients added jobs all the time, no job would be late.
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
            modes: (MODES_FROM..SCHEDULES_FROM).contains(&seed),
            schedules: seed >= SCHEDULES_FROM,
            timeouts: seed % 3 == 1,
            unique: seed % 4 == 3,
            tasks: externals > 0 && seed % 5 < 3,
            edits: seed.is_multiple_of(3),
            fills: seed % 3 == 2,
            options,
        }
    }

    /// The timeouts of a job, if some runs have timeouts.
    pub fn timeouts(&self, rng: &SeededRng) -> Timeouts {
        if !self.timeouts || rng.chance(500) {
            return Timeouts::default();
        }
        let us = |often: u64| {
            rng.chance(often).then(|| i64::try_from(rng.between(3, 12) * 1_000_000).expect("some seconds"))
        };
        Timeouts { run_us: us(400), heartbeat_us: us(700) }
    }

    /// How a job states that it is tried again.
    pub fn retry(rng: &SeededRng) -> Retry {
        let second = |n: u64| i64::try_from(n * 1_000_000).expect("some seconds");
        let backoff = rng.chance(300).then(|| match rng.chance(500) {
            true => Waits::List((0..rng.between(1, 3)).map(|_| second(rng.between(0, 6))).collect()),
            false => Waits::Exponential {
                first_us: second(rng.between(0, 2)),
                factor: *rng.choose(&[1.0, 1.5, 3.0]),
                most_us: second(rng.between(2, 9)),
            },
        });
        Retry {
            backoff,
            jitter: rng.chance(300).then(|| rng.chance(500)),
            on_lost: rng.chance(300).then(|| *rng.choose(&OnLost::ALL)),
            max_snoozes: rng.chance(500).then(|| u32::try_from(rng.below(3)).expect("a small number")),
        }
    }

    /// How long a job may wait for its first start, and is kept.
    pub fn lifetime(&self, rng: &SeededRng) -> Lifetime {
        let second = |n: u64| i64::try_from(n * 1_000_000).expect("some seconds");
        // If jobs ended by themselves whenever a clock is wrong, none would be late.
        let start_within_us = (!self.jumps && rng.chance(100)).then(|| second(rng.between(2, 40)));
        Lifetime { start_within_us, keep_us: rng.chance(100).then(|| second(rng.between(0, 20))) }
    }

    /// The unique key of a job, if some have one. A few keys, so that jobs meet.
    pub fn unique(&self, rng: &SeededRng) -> Option<Unique> {
        if !self.unique || rng.chance(500) {
            return None;
        }
        let second = |n: u64| i64::try_from(n * 1_000_000).expect("some seconds");
        Some(Unique {
            mode: match rng.below(5) {
                0 | 1 => unique::Mode::WhileWaiting,
                2 | 3 => unique::Mode::UntilEnd,
                _ => unique::Mode::Period(second(rng.between(1, 20))),
            },
            by: By::Key(format!("k{}", rng.below(4))),
            within: *rng.choose(&[Within::Type, Within::Tenant]),
            on_conflict: *rng.choose(&[
                OnConflict::Keep,
                OnConflict::Replace,
                OnConflict::After,
                OnConflict::Reject,
            ]),
        })
    }

    /// The task of a job, if jobs of its type have some.
    pub fn task(&self, rng: &SeededRng, job_type: &str) -> Option<String> {
        (self.tasks && job_type == EXTERNAL && rng.chance(800)).then(|| (*rng.choose(&TASKS)).to_owned())
    }

    /// The tasks that an external worker knows, each with the most that it runs at the same time; `None` for all. The first worker takes all jobs.
    pub fn known_tasks(&self, number: u32) -> Option<KnownTasks> {
        let known: &[(&str, u32)] = match number % 4 {
            1 => &[(TASKS[0], 0)],
            2 => &[(TASKS[0], 1), (TASKS[1], 0)],
            3 => &[(TASKS[1], 1)],
            _ => return None,
        };
        self.tasks.then(|| known.iter().map(|(task, most)| ((*task).to_owned(), *most)).collect())
    }

    /// The types of the jobs that clients add.
    pub fn job_types(&self) -> Vec<String> {
        let mut types = self.types.clone();
        if self.externals > 0 {
            types.push(EXTERNAL.to_owned());
        }
        types
    }

    /// The tenant of a job. At least half of the jobs belong to the first tenant, so that some tenants have more jobs than
    /// others.
    pub fn tenant(&self, rng: &SeededRng) -> String {
        let number = if rng.chance(500) { 0 } else { rng.below(u64::from(self.tenants)) };
        tenant(number)
    }

    /// The tenant with the largest share.
    pub fn largest_tenant(&self, shares: &Shares) -> String {
        let all = (0..self.tenants).map(|number| tenant(number.into()));
        all.max_by_key(|tenant| shares.of(tenant)).expect("there are some")
    }

    /// Whether the store is slow even without faults, so that work with a deadline may not be done in time. A shutdown with
    /// many jobs leaves them to other workers, and a heartbeat may come too late.
    pub fn is_slow(&self) -> bool {
        self.rates.latency_ms >= SLOW_STORE_MS
    }

    /// Whether no process dies, is paused, has a wrong clock, or has commits of unknown outcome. The process that charges a
    /// run then knows its length.
    pub fn is_quiet(&self) -> bool {
        let Plan { crashes, pauses, cuts, skews, rates, .. } = self;
        !(crashes | pauses | cuts | skews) && rates.slow + rates.unknown == 0 && !self.is_slow()
    }

    /// How long a worker may go without a heartbeat.
    pub fn health_timeout(&self) -> Duration {
        self.options.health_timeout
    }
}
