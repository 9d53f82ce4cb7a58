//! What a world is made of: everything that its seed decides before it begins.
//!
//! Most worlds are small, since most faults need only a few nodes and jobs to meet, and small worlds are fast. Each kind of
//! fault is left out of some worlds, frequent in others (swarm testing): what one fault hides another world shows.

use std::time::Duration;

use turnwise_policy::backoff;
use turnwise_store::Limits;
use turnwise_worker::Options;

use crate::dice::Dice;
use crate::link::{Rates, SLOW_STORE_MS};

/// The job type of the external workers.
pub const EXTERNAL: &str = "x";

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
    /// Clocks are wrong.
    pub skews: bool,
    /// What a transaction may have: much, or as little as with etcd.
    pub limits: Limits,
    /// The workers' settings.
    pub options: Options,
}

impl Plan {
    /// The plan of a seed, thrown with its dice.
    pub fn new(dice: &Dice) -> Self {
        let size = dice.below(100);
        let (nodes, types, clients, ops) = match size {
            // A crowd.
            0..2 => (dice.between(60, 120), dice.between(2, 4), 6, 8),
            2..15 => (dice.between(8, 20), dice.between(1, 2), dice.between(3, 6), 40),
            _ => (dice.between(2, 6), dice.between(1, 2), dice.between(1, 4), 150),
        };
        let flood = if (15..27).contains(&size) { dice.between(51, 120) } else { 0 };
        let rate = |often: u64| *dice.choose(&[0, often / 10, often / 10, often]);
        let rates = Rates {
            latency: *dice.choose(&[50, 300, 700]),
            latency_ms: *dice.choose(&[3, 20, SLOW_STORE_MS]),
            slow: rate(30),
            conflict: rate(150),
            unknown: *dice.choose(&[0, 20, 200, 200]),
            late: *dice.choose(&[100, 300, 700]),
            early_watch: rate(300),
        };
        let health_s = *dice.choose(&[2, 5, 5]);
        let slots = if flood > 0 { dice.between(60, 120) } else { *dice.choose(&[1, 2, 4, 10]) };
        let options = Options {
            max_jobs: usize::try_from(slots).expect("a small number"),
            health_interval: Duration::from_secs(health_s),
            health_timeout: Duration::from_secs(health_s * dice.between(2, 4)),
            report_interval: dice.ms(100, 2_000),
            stop_grace: dice.ms(500, 5_000),
            max_history: usize::try_from(dice.between(1, 20)).expect("a small number"),
            backoff: backoff::Rules { base_us: 1_000_000, max_exponent: 3, health_threshold_us: 20_000_000 },
            ..Options::default()
        };
        let externals = if dice.chance(300) { dice.between(1, 4) } else { 0 };
        Plan {
            externals: u32::try_from(externals).expect("a small number"),
            retention: Duration::from_secs(*dice.choose(&[10, 60, 1_000_000])),
            nodes: u32::try_from(nodes).expect("a small number"),
            types: (0..types).map(|n| format!("t{n}")).collect(),
            clients: u32::try_from(clients).expect("a small number"),
            ops,
            think_ms: *dice.choose(&[1_000, 3_000, 8_000]),
            flood,
            rounds: dice.between(1, 3),
            chaos_ms: dice.between(10_000, 60_000),
            fault_ms: *dice.choose(&[1_000, 5_000, 20_000]),
            rates,
            crashes: dice.chance(800),
            pauses: dice.chance(700),
            cuts: dice.chance(600),
            skews: dice.chance(600),
            limits: *dice.choose(&[Limits::DEFAULT, Limits::SMALL]),
            options,
        }
    }

    /// The types of the jobs that clients add.
    pub fn job_types(&self) -> Vec<String> {
        let mut types = self.types.clone();
        if self.externals > 0 {
            types.push(EXTERNAL.to_owned());
        }
        types
    }

    /// Whether the store is so slow, in a calm, too, that what is bound in time may not be done in it: a shutdown with many jobs
    /// leaves them to the neighbours, a ping may come too late.
    pub fn is_slow(&self) -> bool {
        self.rates.latency_ms >= SLOW_STORE_MS
    }

    /// How long a worker may be silent.
    pub fn health_timeout(&self) -> Duration {
        self.options.health_timeout
    }
}
