//! Who locks what now, what a job locks while it runs, and what locks have to do with where it stands.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The level that the big lock is listed at, which stands before all others.
pub const BIG_LOCK: &str = "big_lock";

/// How a lock goes with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LockMode {
    /// With others that are shared, as far as the capacity reaches.
    Shared,
    /// With none.
    Exclusive,
}

impl<'de> Deserialize<'de> for LockMode {
    /// From a string alone: a derived one would take an object, too.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match std::borrow::Cow::<str>::deserialize(deserializer)?.as_ref() {
            "shared" => Ok(LockMode::Shared),
            "exclusive" => Ok(LockMode::Exclusive),
            _ => Err(serde::de::Error::custom("expected `shared` or `exclusive`")),
        }
    }
}

/// A lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "level": "instance", "name": "web1", "mode": "exclusive", "units": 1 }))]
pub struct Lock {
    /// Its level; `big_lock` for the one that goes with no other.
    pub level: String,
    /// Which resource of the level; all of it, if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// How it is locked.
    pub mode: LockMode,
    /// Of a shared lock: units of the resource, which count where the level has a capacity.
    pub units: u32,
}

/// How a job has to do with a lock. New ones may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LockHow {
    /// It runs, and holds it.
    Holds,
    /// It runs, and waits for it.
    Waits,
    /// It has waited so long for its turn that it has reserved it: nobody else starts who might take it.
    Reserved,
}

/// A job that holds a lock, waits for it, or has reserved it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "lock": { "level": "instance", "name": "web1", "mode": "exclusive", "units": 1 },
    "how": "holds", "type": "cluster", "id": "migrate-17", "tenant": "acme", "since_us": 1_790_000_000_000_000_i64
}))]
pub struct Locker {
    /// The lock. Who is in another one's way may have locked more or less than what is wanted: all of the level, or one of its resources.
    pub lock: Lock,
    /// How it has to do with it.
    pub how: LockHow,
    /// The job's type.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub job_type: String,
    /// The job.
    pub id: String,
    /// Whose job it is.
    pub tenant: String,
    /// Since when, in µs since the Unix epoch.
    pub since_us: i64,
}

/// A page of who locks what. By level; of each level all of it first, then its resources by name; of each of them who holds it, then who
/// waits for it or has reserved it, first come first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lockers {
    /// The jobs.
    pub locks: Vec<Locker>,
    /// There is more: ask again with `after` set to this. Missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}

/// Locks that a job asks for while it runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "claim": 4, "locks": [{ "level": "node", "name": "n1", "mode": "exclusive" }], "wait_ms": 30_000 }))]
pub struct AskLocks {
    /// The claim's number.
    #[serde(deserialize_with = "crate::number::whole")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub claim: u64,
    /// The locks: 1 to 1,000.
    #[serde(deserialize_with = "crate::object::objects")]
    #[schema(min_items = 1, max_items = 1_000)]
    pub locks: Vec<WantedLock>,
    /// How long to wait at most for the one that is not free, in ms; the server may answer earlier. The job keeps its place in the queue
    /// after that.
    #[serde(default, deserialize_with = "crate::number::whole")]
    #[schema(default = 0, maximum = 300_000)]
    pub wait_ms: u64,
}

/// A lock that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "level": "node", "name": "n1", "mode": "exclusive" }))]
pub struct WantedLock {
    /// Its level.
    #[schema(min_length = 1, max_length = 128)]
    pub level: String,
    /// Which resource of the level; all of it, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// How it is locked.
    pub mode: LockMode,
    /// Of a shared lock: units of the resource, no more than it has.
    #[serde(default = "one", deserialize_with = "crate::number::whole")]
    #[schema(default = 1, minimum = 1, maximum = 1_000_000)]
    pub units: u32,
}

fn one() -> u32 {
    1
}

/// What came of asking for locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "state": "waiting", "lock": { "level": "node", "name": "n1", "mode": "exclusive", "units": 1 },
    "by": [{ "lock": { "level": "node", "name": "n1", "mode": "shared", "units": 1 }, "how": "holds", "type": "cluster",
        "id": "verify-3", "tenant": "acme", "since_us": 1_790_000_000_000_000_i64 }]
}))]
pub struct AskedLocks {
    /// Whether all of them are held.
    pub state: LockState,
    /// The job waits for this one: those that come before it are held, and those after it were not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lock: Option<Lock>,
    /// Who holds that, or came before; the first 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub by: Vec<Locker>,
}

/// What a job has of the locks that it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LockState {
    /// All of them.
    Held,
    /// It waits for one: ask again.
    Waiting,
}

/// A lock was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unlocked {
    /// The job neither holds it nor waits for it.
    pub unlocked: bool,
}

/// What a job locks, or wants to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhyLocks {
    /// What it declares, by level.
    #[schema(value_type = Object)]
    pub declared: serde_json::Value,
    /// What of that nobody knows before it runs: why, and what it will probably lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub unknown: Vec<UnknownLocks>,
    /// It runs: what it holds; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub held: Vec<Lock>,
    /// The lock that it cannot have now, or waits for; of all of the level where nobody knows yet which. Missing if nothing is in its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub wanted: Option<Lock>,
    /// Who holds that, and who is before it: has reserved it, or stands before it in the queue. The first 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub by: Vec<Locker>,
    /// There are more of them.
    #[serde(default)]
    pub by_more: bool,
    /// It could run, and has waited so long that it has reserved what it wants: since when, in µs. Nobody starts any more who might
    /// take it and has not reserved it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reserved_us: Option<i64>,
    /// It could run: how likely it is to wait for locks if it started now. What weighs less starts first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub weight: Option<LockWeight>,
}

/// What a job will lock at one level, and does not know before it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "level": "node", "mode": "exclusive", "because": "its option \"nodes\" is missing", "option": "nodes", "line": 12,
    "likely": { "locks": [{ "level": "node", "name": "n3", "mode": "exclusive", "units": 1 }], "confidence": 0.764, "alike": 15, "runs": 16,
        "option": "instance", "value": "web1" }
}))]
pub struct UnknownLocks {
    /// The level.
    pub level: String,
    /// The mode.
    pub mode: LockMode,
    /// Why nobody knows it.
    pub because: String,
    /// The option that is missing, or is not what it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub option: Option<String>,
    /// The line of the catalogue that asks for it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub line: Option<usize>,
    /// Of which of the job's steps, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub step: Option<usize>,
    /// What past runs tell, if it is sure enough. The job weighs by it; what it locks does not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub likely: Option<LikelyLocks>,
}

/// What runs locked that had the same value of an option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LikelyLocks {
    /// What most of them locked; empty for nothing.
    pub locks: Vec<Lock>,
    /// How sure that is: the lower end of Wilson's 95% interval of `alike` of `runs`, from 0.5 to 1.
    pub confidence: f64,
    /// So many of them locked exactly this.
    pub alike: usize,
    /// So many were looked at: the latest 16 at most.
    pub runs: usize,
    /// The option that they have in common.
    pub option: String,
    /// Its value.
    pub value: String,
}

/// How likely a job is to wait for locks, and what is left of that after it has waited for its turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "base": 1.0, "levels": [{ "level": "instance", "weight": 3.0 }], "total": 4.0, "age": 10, "line": 5, "tick_ms": 30_000, "aging_ticks": 30,
    "aged": 2.0, "nothing_us": 1_790_000_900_000_000_i64
}))]
pub struct LockWeight {
    /// What each job weighs.
    pub base: f64,
    /// What it adds at each level where it wants something.
    pub levels: Vec<LevelWeight>,
    /// All of it together.
    pub total: f64,
    /// How long it has waited, in ticks.
    pub age: u64,
    /// How many other jobs of those that are compared with it name what it wants for itself: each makes it older by a tick.
    #[serde(default)]
    #[schema(required = true)]
    pub line: u64,
    /// How long a tick is.
    pub tick_ms: u64,
    /// After so many ticks it weighs nothing, and reserves what it wants.
    pub aging_ticks: u32,
    /// What the total is worth at its age, a tick more for each in line: among jobs of its class, and unless it has reserved, this decides the order.
    pub aged: f64,
    /// When it has waited for `aging_ticks`, or since when, in µs since the Unix epoch: it weighs nothing then, whatever its line.
    pub nothing_us: i64,
}

/// What one level adds to a weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LevelWeight {
    /// The level.
    pub level: String,
    /// 0 to 3: 3 is a lock that somebody has.
    pub weight: f64,
}
