//! What the workers of a process have done, by job type and by task, for metrics: plain atomics, which cost nothing to speak of.
//!
//! A table has a fixed number of places. The types that come when it is full share one more, and so do the further tasks of a
//! type, so that clients who invent names cannot make it grow.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use turnwise_queue::claims::Ending;
use turnwise_queue::deadlines::Over;
use turnwise_queue::schedules::Outcome;
use turnwise_queue::{End, Job, Place};
use turnwise_store::metrics::{Counter, Histogram};

/// The number of types that are measured each by itself: as many as one response of the API lists.
pub const MAX_TYPES: usize = 100;
/// The places of the table of types: more than types, so that a search ends soon.
const PLACES: usize = 256;
/// The name of all further types together, and of all further tasks of a type.
pub const OTHER: &str = "other";
/// The number of tasks of one type that are measured each by itself: the first ones that run.
pub const MAX_TASKS_OF_TYPE: usize = 100;
/// The same for all types together, so that one response of metrics stays small.
const MAX_TASKS: usize = 1_000;
const TASK_PLACES: usize = 2_048;

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

impl RunResult {
    /// The result of a run that ended like this, and left the job as it is now. A job whose result is refused fails, and so does one
    /// that is put off too often.
    pub(crate) fn of(ending: &Ending, job: Option<&Job>) -> RunResult {
        let has_failed = job.is_some_and(|job| job.place == Place::Ended(End::Failed));
        match ending {
            Ending::Completed(_) | Ending::Snoozed { .. } if has_failed => RunResult::Failed,
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
    /// The number of its tasks that have metrics of their own.
    tasks: Counter,
    /// Those that have not, together.
    other_tasks: TaskMetrics,
}

/// The metrics of one task.
#[derive(Debug)]
pub struct TaskMetrics {
    /// From the claim until the end of the run.
    pub runs: Histogram,
    results: [Counter; RunResult::ALL.len()],
}

impl Default for TaskMetrics {
    fn default() -> Self {
        TaskMetrics { runs: Histogram::new(JOB_BOUNDS_US), results: Default::default() }
    }
}

impl TaskMetrics {
    fn ended(&self, result: RunResult, ran_us: i64) {
        self.results[result as usize].add(1);
        self.runs.observe_us(ran_us);
    }

    /// Runs with this result.
    pub fn results(&self, result: RunResult) -> u64 {
        self.results[result as usize].get()
    }
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
            tasks: Counter::default(),
            other_tasks: TaskMetrics::default(),
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

    /// Counts the end of a run that took `ran_us`.
    fn ended(&self, result: RunResult, crash: CrashKind, ran_us: i64) {
        self.results[result as usize].add(1);
        self.runs.observe_us(ran_us);
        if result == RunResult::Crashed {
            self.crashes[crash as usize].add(1);
        }
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

/// A name, and its value.
type Named<V> = (Box<str>, V);

/// A table that only grows, up to `most` names.
#[derive(Debug)]
struct Table<V> {
    places: Vec<OnceLock<Named<V>>>,
    names: Counter,
    most: usize,
}

impl<V: Default> Table<V> {
    fn new(places: usize, most: usize) -> Self {
        let places = (0..places).map(|_| OnceLock::new()).collect();
        Table { places, names: Counter::default(), most }
    }

    /// The value of a name; `None` for a new one if there is no room. A new one counts in `group`, too, which has room for so many.
    /// Takes no lock, except for the first use of a name.
    fn of(&self, name: &str, group: Option<(&Counter, usize)>) -> Option<&V> {
        let has_room = |(names, most): (&Counter, usize)| names.get() < most as u64;
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let places = self.places.len();
        let first = usize::try_from(hasher.finish() % places as u64).unwrap_or(0);
        for n in 0..places {
            let place = &self.places[(first + n) % places];
            let (found, value) = match place.get() {
                Some(found) => found,
                None if !has_room((&self.names, self.most)) || !group.is_none_or(has_room) => return None,
                None => place.get_or_init(|| {
                    self.names.add(1);
                    if let Some((names, _)) = group {
                        names.add(1);
                    }
                    (name.into(), V::default())
                }),
            };
            if **found == *name {
                return Some(value);
            }
        }
        None
    }

    /// All names so far, sorted.
    fn all(&self) -> Vec<(&str, &V)> {
        let known = self.places.iter().filter_map(|place| place.get());
        let mut all: Vec<_> = known.map(|(name, value)| (&**name, value)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }
}

/// Separates a type from its task: neither has control characters.
const SEPARATOR: char = '\0';

/// The metrics of all types.
#[derive(Debug)]
pub struct Metrics {
    types: Table<TypeMetrics>,
    other: TypeMetrics,
    tasks: Table<TaskMetrics>,
    fires: [Counter; Outcome::NAMES.len()],
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            types: Table::new(PLACES, MAX_TYPES),
            other: TypeMetrics::default(),
            tasks: Table::new(TASK_PLACES, MAX_TASKS),
            fires: Default::default(),
        }
    }
}

impl Metrics {
    /// Counts what came of an instant of a schedule.
    pub(crate) fn fired(&self, outcome: &Outcome) {
        self.fires[outcome.index()].add(1);
    }

    /// What came of the instants of schedules that this server has fired: the name of each outcome, and how often.
    pub fn fires(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Outcome::NAMES.into_iter().zip(self.fires.iter().map(Counter::get))
    }

    /// The metrics of a type.
    pub fn of(&self, job_type: &str) -> &TypeMetrics {
        self.types.of(job_type, None).unwrap_or(&self.other)
    }

    fn of_task<'a>(&'a self, of_type: &'a TypeMetrics, job_type: &str, task: &str) -> &'a TaskMetrics {
        if std::ptr::eq(of_type, &raw const self.other) || task == OTHER {
            return &of_type.other_tasks;
        }
        let group = (&of_type.tasks, MAX_TASKS_OF_TYPE);
        let known = self.tasks.of(&format!("{job_type}{SEPARATOR}{task}"), Some(group));
        known.unwrap_or(&of_type.other_tasks)
    }

    /// Counts the end of a run of a job of this type and task, which took `ran_us`. `crash` is why it crashed, if it did.
    pub(crate) fn ended(
        &self,
        (job_type, task): (&str, Option<&str>),
        result: RunResult,
        crash: CrashKind,
        ran_us: i64,
    ) {
        let of_type = self.of(job_type);
        of_type.ended(result, crash, ran_us);
        if let Some(task) = task {
            self.of_task(of_type, job_type, task).ended(result, ran_us);
        }
    }

    /// All types so far, by name; the further ones together as [`OTHER`], if there are any.
    pub fn all(&self) -> Vec<(&str, &TypeMetrics)> {
        let mut all = self.types.all();
        if self.other.claims.get() > 0 || self.other.runs.read().count() > 0 {
            all.push((OTHER, &self.other));
        }
        all
    }

    /// The tasks whose runs have ended, each with its type, by name; the further ones of a type together as [`OTHER`].
    pub fn tasks(&self) -> Vec<(&str, &str, &TaskMetrics)> {
        let named = self.tasks.all();
        let named = named.into_iter().filter_map(|(name, of)| Some((name.split_once(SEPARATOR)?, of)));
        let mut all: Vec<_> = named.map(|((job_type, task), of)| (job_type, task, of)).collect();
        let others = self.all().into_iter().filter(|(_, of)| of.other_tasks.runs.read().count() > 0);
        all.extend(others.map(|(job_type, of)| (job_type, OTHER, &of.other_tasks)));
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
        assert_eq!(all[MAX_TYPES].0, OTHER);
        let total: u64 = all.iter().map(|(_, of_type)| of_type.claims.get()).sum();
        assert_eq!(total, (0..2 * MAX_TYPES as u64).map(|n| n % 3 + 1).sum::<u64>());
    }

    #[test]
    fn tasks_are_counted_by_type_and_have_bounds() {
        let metrics = Metrics::default();
        let ends = |job_type: &str, task: Option<&str>| {
            metrics.ended((job_type, task), RunResult::Completed, CrashKind::default(), 3);
        };
        for n in 0..MAX_TASKS_OF_TYPE + 5 {
            ends("a", Some(&format!("task-{n:03}")));
        }
        // Each type has tasks of its own; a job without one counts for its type only.
        ends("b", Some("task-000"));
        ends("b", Some("other"));
        ends("b", None);
        let tasks = metrics.tasks();
        assert_eq!(tasks.len(), MAX_TASKS_OF_TYPE + 3);
        let counted = |job_type: &str, task: &str| {
            let of = tasks.iter().find(|(of, name, _)| (*of, *name) == (job_type, task));
            of.map(|(_, _, of)| (of.results(RunResult::Completed), of.runs.read().sum_us))
        };
        assert_eq!(counted("a", "task-099"), Some((1, 3)));
        assert_eq!((counted("a", "task-100"), counted("a", OTHER)), (None, Some((5, 15))));
        assert_eq!((counted("b", "task-000"), counted("b", OTHER)), (Some((1, 3)), Some((1, 3))));
        assert_eq!(metrics.of("b").results(RunResult::Completed), 3);
        // All types together have a bound, too, and so have the tasks of types that are not measured by themselves.
        for n in 0..2 * MAX_TYPES {
            (0..20).for_each(|task| ends(&format!("type-{n}"), Some(&format!("t{task}"))));
        }
        let (named, others): (Vec<_>, Vec<_>) =
            metrics.tasks().into_iter().partition(|(_, task, _)| *task != OTHER);
        // Of the 100 types with a place, 44 have all their tasks among the 1,000; and there are the other types.
        assert_eq!((named.len(), others.len()), (MAX_TASKS, MAX_TYPES - 44 + 1));
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
        metrics.ended(RunResult::Crashed, CrashKind::Lost, 4);
        let counted = (metrics.results(RunResult::Completed), metrics.results(RunResult::Crashed));
        assert_eq!((counted, metrics.crashes(CrashKind::Lost)), ((1, 1), 1));
        assert_eq!((metrics.crashes(CrashKind::Error), metrics.runs.read().sum_us), (0, 7));
    }
}
