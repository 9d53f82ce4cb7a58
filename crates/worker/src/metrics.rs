//! What the workers of a process have done, by job type, for metrics: plain atomics, which cost nothing to speak of.
//!
//! The table has a fixed number of places. The types that come when it is full share the last place, so that clients who
//! invent types cannot make it grow.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use turnwise_queue::claims::Ending;
use turnwise_queue::deadlines::Over;
use turnwise_store::metrics::{Counter, Histogram};

/// The number of types that are measured each by itself: as many as one response of the API lists.
pub const MAX_TYPES: usize = 100;
/// The places of the table: more than types, so that a search ends soon.
const PLACES: usize = 256;
/// The name of all further types together.
pub const OTHER_TYPES: &str = "other";

const SECOND_US: u64 = 1_000_000;
/// Upper bounds of the buckets for waits and runs, in µs: from 1 ms to a day.
pub const JOB_BOUNDS_US: &[u64] = &[
    1_000,
    5_000,
    25_000,
    100_000,
    500_000,
    SECOND_US,
    5 * SECOND_US,
    15 * SECOND_US,
    60 * SECOND_US,
    300 * SECOND_US,
    900 * SECOND_US,
    3_600 * SECOND_US,
    6 * 3_600 * SECOND_US,
    24 * 3_600 * SECOND_US,
];

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunResult {
    /// The job completed.
    Completed,
    /// The job failed with a permanent error.
    Failed,
    /// The run crashed: see [`CrashKind`]. The job is tried again, unless this was its last attempt.
    Crashed,
    /// The worker gave the job back, because it stopped or was told to stop the job.
    Stopped,
    /// The run was preempted for another job.
    Preempted,
    /// The replication is idle, and waits for a change of its source.
    Parked,
    /// The handler has put the job off.
    Snoozed,
}

impl RunResult {
    /// All results in their order, each with its name in metrics.
    pub const ALL: [(RunResult, &'static str); 7] = [
        (RunResult::Completed, "completed"),
        (RunResult::Failed, "failed"),
        (RunResult::Crashed, "crashed"),
        (RunResult::Stopped, "stopped"),
        (RunResult::Preempted, "preempted"),
        (RunResult::Parked, "parked"),
        (RunResult::Snoozed, "snoozed"),
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl From<&Ending> for RunResult {
    fn from(ending: &Ending) -> RunResult {
        match ending {
            Ending::Completed(_) => RunResult::Completed,
            Ending::Failed(_) => RunResult::Failed,
            Ending::Crashed { .. } => RunResult::Crashed,
            Ending::Stopped => RunResult::Stopped,
            Ending::Preempted => RunResult::Preempted,
            Ending::Parked(_) => RunResult::Parked,
            Ending::Snoozed { .. } => RunResult::Snoozed,
        }
    }
}

/// Why a run crashed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CrashKind {
    /// The handler reported an error that may pass.
    #[default]
    Error,
    /// The handler panicked, or blocked its thread.
    Panic,
    /// The run exceeded its timeout.
    Timeout,
    /// The run did not report within its heartbeat timeout.
    HeartbeatTimeout,
    /// Its worker was lost. With `on_lost = requeue` the job does not count this as a crash.
    Lost,
}

impl CrashKind {
    /// All kinds in their order, each with its name in metrics.
    pub const ALL: [(CrashKind, &'static str); 5] = [
        (CrashKind::Error, "error"),
        (CrashKind::Panic, "panic"),
        (CrashKind::Timeout, "timeout"),
        (CrashKind::HeartbeatTimeout, "heartbeat_timeout"),
        (CrashKind::Lost, "lost"),
    ];
}

impl From<Over> for CrashKind {
    fn from(over: Over) -> CrashKind {
        match over {
            Over::Run(_) => CrashKind::Timeout,
            Over::Heartbeat(_) => CrashKind::HeartbeatTimeout,
        }
    }
}

/// The metrics of one job type.
#[derive(Debug)]
pub struct TypeMetrics {
    /// Jobs that were claimed, which is when their runs start.
    pub claims: Counter,
    /// Claims of jobs that had been tried before.
    pub retries: Counter,
    /// From when a job could run until its claim.
    pub waits: Histogram,
    /// From the claim until the end of the run.
    pub runs: Histogram,
    /// Workers that were removed because they missed their heartbeats.
    pub workers_lost: Counter,
    results: [Counter; RunResult::ALL.len()],
    crashes: [Counter; CrashKind::ALL.len()],
}

impl Default for TypeMetrics {
    fn default() -> Self {
        TypeMetrics {
            claims: Counter::default(),
            retries: Counter::default(),
            waits: Histogram::new(JOB_BOUNDS_US),
            runs: Histogram::new(JOB_BOUNDS_US),
            workers_lost: Counter::default(),
            results: Default::default(),
            crashes: Default::default(),
        }
    }
}

impl TypeMetrics {
    /// Counts a claim: the job's wait in µs, and how often it had been tried before.
    pub(crate) fn claimed(&self, waited_us: i64, attempts: u32) {
        self.claims.add(1);
        self.retries.add(u64::from(attempts > 0));
        self.waits.observe_us(waited_us);
    }

    /// Counts the end of a run that took `ran_us`. `crash` is why it crashed, if it did.
    pub(crate) fn ended(&self, result: RunResult, crash: CrashKind, ran_us: i64) {
        self.results[result as usize].add(1);
        self.runs.observe_us(ran_us);
        if result == RunResult::Crashed {
            self.crashes[crash as usize].add(1);
        }
    }

    /// Counts a run that was taken from its worker after `ran_us`.
    pub(crate) fn taken(&self, kind: CrashKind, ran_us: i64) {
        self.ended(RunResult::Crashed, kind, ran_us);
    }

    /// Runs with this result.
    pub fn results(&self, result: RunResult) -> u64 {
        self.results[result as usize].get()
    }

    /// Runs that crashed for this reason.
    pub fn crashes(&self, kind: CrashKind) -> u64 {
        self.crashes[kind as usize].get()
    }
}

/// A type's name, and its metrics.
type Named = (Box<str>, TypeMetrics);

/// The metrics of all types.
#[derive(Debug)]
pub struct Metrics {
    places: Box<[OnceLock<Named>]>,
    types: Counter,
    other: TypeMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| OnceLock::new()).collect();
        Metrics { places, types: Counter::default(), other: TypeMetrics::default() }
    }
}

impl Metrics {
    /// The metrics of a type. Takes no lock, except for the first use of a type.
    pub fn of(&self, job_type: &str) -> &TypeMetrics {
        let mut hasher = DefaultHasher::new();
        job_type.hash(&mut hasher);
        let first = usize::try_from(hasher.finish() % PLACES as u64).unwrap_or(0);
        for n in 0..PLACES {
            let place = &self.places[(first + n) % PLACES];
            let (name, metrics) = match place.get() {
                Some(found) => found,
                None if self.types.get() >= MAX_TYPES as u64 => return &self.other,
                None => place.get_or_init(|| {
                    self.types.add(1);
                    (job_type.into(), TypeMetrics::default())
                }),
            };
            if **name == *job_type {
                return metrics;
            }
        }
        &self.other
    }

    /// All types so far, by name; the further ones together as [`OTHER_TYPES`], if there are any.
    pub fn all(&self) -> Vec<(&str, &TypeMetrics)> {
        let known = self.places.iter().filter_map(|place| place.get());
        let mut all: Vec<_> = known.map(|(name, metrics)| (&**name, metrics)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        if self.other.claims.get() > 0 || self.other.runs.read().count() > 0 {
            all.push((OTHER_TYPES, &self.other));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_own_place_until_there_are_too_many() {
        let metrics = Metrics::default();
        for n in 0..2 * MAX_TYPES {
            for _ in 0..=n % 3 {
                metrics.of(&format!("type-{n}")).claimed(5, 0);
            }
        }
        let all = metrics.all();
        assert_eq!(all.len(), MAX_TYPES + 1);
        for (name, of_type) in &all[..MAX_TYPES] {
            let n: u64 = name.trim_start_matches("type-").parse().expect("a number");
            assert_eq!(of_type.claims.get(), n % 3 + 1, "{name}");
        }
        assert_eq!(all[MAX_TYPES].0, OTHER_TYPES);
        let total: u64 = all.iter().map(|(_, of_type)| of_type.claims.get()).sum();
        assert_eq!(total, (0..2 * MAX_TYPES as u64).map(|n| n % 3 + 1).sum::<u64>());
    }

    #[test]
    fn results_and_kinds_are_counted_at_their_own_places() {
        let metrics = TypeMetrics::default();
        for (n, (result, _)) in RunResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, n);
        }
        for (n, (kind, _)) in CrashKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, n);
        }
        metrics.ended(RunResult::Completed, CrashKind::default(), 3);
        metrics.taken(CrashKind::Lost, 4);
        let counted = (metrics.results(RunResult::Completed), metrics.results(RunResult::Crashed));
        assert_eq!((counted, metrics.crashes(CrashKind::Lost)), ((1, 1), 1));
        assert_eq!((metrics.crashes(CrashKind::Error), metrics.runs.read().sum_us), (0, 7));
    }
}
