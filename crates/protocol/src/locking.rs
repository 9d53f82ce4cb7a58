//! Locks that jobs hold or want, requests for locks while a job runs, and how locks delay a job's start.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::word::words;

/// The level under which the big lock is listed, before all others.
pub const BIG_LOCK: &str = "big_lock";

words! {
    /// The mode of a lock: which other locks of the same resource it allows.
    #[derive(PartialOrd, Ord)]
    pub enum LockMode {
        /// Allows other shared locks, up to the resource's capacity.
        Shared = "shared",
        /// Allows no other lock.
        Exclusive = "exclusive",
    }
}

answers! {
    /// A lock.
    #[derive(PartialEq, Eq)]
    #[schema(example = json!({ "level": "instance", "name": "web1", "mode": "exclusive", "units": 1 }))]
    pub struct Lock {
        /// Its level, or `big_lock` for the big lock.
        pub level: String,
        /// The resource. Missing for a lock of the whole level.
        pub name: Option<String>,
        /// Its mode.
        pub mode: LockMode,
        /// Shared: the number of units of the resource. It counts only if the level has a capacity.
        pub units: u32,
    }
}

words! {
    /// A job's relation to a lock. New values may be added.
    #[derive(PartialOrd, Ord)]
    pub enum LockHow {
        /// The job runs, and holds the lock.
        Holds = "holds",
        /// The job runs, and waits for the lock.
        Waits = "waits",
        /// The job has waited so long that it has reserved the lock: no other job that might take the lock starts.
        Reserved = "reserved",
    }
}

answers! {
    /// A job that holds, awaits or has reserved a lock.
    #[derive(PartialEq, Eq)]
    #[schema(example = json!({
        "lock": { "level": "instance", "name": "web1", "mode": "exclusive", "units": 1 },
        "how": "holds", "type": "cluster", "id": "migrate-17", "tenant": "acme", "since_us": 1_790_000_000_000_000_i64
    }))]
    pub struct Locker {
        /// The job's own lock. It may cover more or less than the lock that it blocks: the whole level, or one resource of it.
        pub lock: Lock,
        /// The job's relation to the lock.
        pub how: LockHow,
        /// The job's type. Missing if the sender may not read the jobs of its tenant.
        #[serde(rename = "type")]
        pub job_type: Option<String>,
        /// The job. Missing as above.
        pub id: Option<String>,
        /// The job's tenant. Missing as above.
        pub tenant: Option<String>,
        /// Since when it holds, awaits or has reserved the lock, in µs since the Unix epoch.
        pub since_us: i64,
    }

    /// A page of the jobs that hold, await or have reserved locks. Locks are sorted by level, with locks of the whole level first, then by the resource's
    /// name. For each lock, its holders come first, then the jobs that wait for it or have reserved it, in order of time.
    #[derive(PartialEq, Eq)]
    pub struct Lockers {
        /// The jobs.
        pub locks: Vec<Locker>,
        /// There are more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }
}

/// Locks that a job requests while it runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "claim": 4, "locks": [{ "level": "node", "name": "n1", "mode": "exclusive" }], "wait_ms": 1_000 }))]
pub struct AskLocks {
    /// The claim's number.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub claim: u64,
    /// The locks: 1 to 1,000.
    #[serde(deserialize_with = "crate::object::objects")]
    #[schema(min_items = 1, max_items = 1_000)]
    pub locks: Vec<WantedLock>,
    /// Longest time to wait for a lock that is not free, in ms. The server may respond earlier. The job keeps its place in the lock's queue
    /// afterwards.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(default = 0, maximum = 300_000)]
    pub wait_ms: u64,
}

/// A lock that a job requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "level": "node", "name": "n1", "mode": "exclusive" }))]
pub struct WantedLock {
    /// Its level.
    #[schema(min_length = 1, max_length = 128)]
    pub level: String,
    /// The resource. Left out for a lock of the whole level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// Its mode.
    pub mode: LockMode,
    /// Shared: the number of units of the resource, at most its capacity.
    #[serde(default = "crate::number::one", deserialize_with = "crate::number::whole")]
    #[schema(default = 1, minimum = 1, maximum = 1_000_000)]
    pub units: u32,
}

answers! {
    /// The result of a request for locks.
    #[derive(PartialEq, Eq)]
    #[schema(example = json!({
        "state": "waiting", "lock": { "level": "node", "name": "n1", "mode": "exclusive", "units": 1 },
        "by": [{ "lock": { "level": "node", "name": "n1", "mode": "shared", "units": 1 }, "how": "holds", "type": "cluster",
            "id": "verify-3", "tenant": "acme", "since_us": 1_790_000_000_000_000_i64 }]
    }))]
    pub struct AskedLocks {
        /// Whether the job holds all of them.
        pub state: LockState,
        /// The lock that the job waits for. The job holds the locks before it in the order; the server has not tried those after it.
        pub lock: Option<Lock>,
        /// The jobs that hold that lock, or that are earlier in its queue: at most the first 8.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub by: Vec<Locker>,
    }
}

words! {
    /// Whether a job holds the locks that it requested.
    pub enum LockState {
        /// It holds all of them.
        Held = "held",
        /// It waits for one of them. Repeat the request.
        Waiting = "waiting",
    }
}

/// The result of releasing a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unlocked {
    /// The job neither holds nor awaits the lock.
    pub unlocked: bool,
}

answers! {
    /// The locks that a job holds or wants.
    #[derive(PartialEq)]
    pub struct WhyLocks {
        /// The locks that it declares, by level.
        #[schema(value_type = Object)]
        pub declared: serde_json::Value,
        /// Declared locks that are unknown before the job runs: the cause, and what it will probably lock.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub unknown: Vec<UnknownLocks>,
        /// Running: the locks that it holds, at most the first 100.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub held: Vec<Lock>,
        /// The lock that is not free now, or that the job waits for. It covers the whole level if the resource is still unknown. Missing if no lock
        /// delays the job.
        pub wanted: Option<Lock>,
        /// The jobs that hold that lock, have reserved it, or precede this job in the queue: at most the first 10.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub by: Vec<Locker>,
        /// Whether there are more of them.
        #[serde(default)]
        pub by_more: bool,
        /// Pending: since when the job has reserved the locks that it wants, in µs. No job that might take them starts any more, unless it has reserved
        /// them earlier.
        pub reserved_us: Option<i64>,
        /// Pending: an estimate of how likely the job is to wait for locks if it started now. Lighter jobs start first.
        pub weight: Option<LockWeight>,
    }

    /// Locks of a job at one level that are unknown before it runs.
    #[derive(PartialEq)]
    #[schema(example = json!({
        "level": "node", "mode": "exclusive", "because": "its option \"nodes\" is missing", "option": "nodes", "line": 12
    }))]
    pub struct UnknownLocks {
        /// The level.
        pub level: String,
        /// The mode.
        pub mode: LockMode,
        /// Why the locks are unknown.
        pub because: String,
        /// The option that is missing, or has an unsuitable value.
        pub option: Option<String>,
        /// The line of the catalogue that refers to the option, from 1.
        pub line: Option<usize>,
        /// The job's step that needs the locks, from 1.
        pub step: Option<usize>,
    }
}

/// An estimate of how likely a job is to wait for locks, and its value after the time that the job has waited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "base": 1.0, "levels": [{ "level": "instance", "weight": 3.0 }], "total": 4.0, "age": 10, "line": 5, "tick_ms": 30_000, "aging_ticks": 30,
    "aged": 2.0, "nothing_us": 1_790_000_900_000_000_i64
}))]
pub struct LockWeight {
    /// The weight of every job.
    pub base: f64,
    /// What each level adds where the job wants a lock.
    pub levels: Vec<LevelWeight>,
    /// The base and the weights of all levels together.
    pub total: f64,
    /// How long the job has waited, in ticks.
    pub age: u64,
    /// Number of other jobs in the window that name a resource which this job wants exclusively. Each of them makes the job older by a tick.
    #[serde(default)]
    #[schema(required = true)]
    pub line: u64,
    /// Length of a tick, in ms.
    pub tick_ms: u64,
    /// After this many ticks the job is aged out: its weight is zero, and it may reserve the locks that it wants.
    pub aging_ticks: u32,
    /// The total at the job's age, plus a tick for each job in `line`. It orders the jobs of one priority that have no reservation.
    pub aged: f64,
    /// When the job is or was aged out, in µs since the Unix epoch: its age reaches `aging_ticks`, without counting `line`.
    pub nothing_us: i64,
}

/// The weight that one level adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LevelWeight {
    /// The level.
    pub level: String,
    /// From 0 to 3; 3 is a lock that another job holds.
    pub weight: f64,
}
