//! Why a job stands where it does, and when it can be expected.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::after::{End, Otherwise};
use crate::filters::Limited;
use crate::jobs::State;
use crate::locking::WhyLocks;
use crate::names::{JobId, JobType, WorkerId};
use crate::tenants::{Capacity, Tenant};

/// Why a job stands where it does, as a word that does not change: programs decide by it. New ones may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It could run, and no worker of its type is registered.
    NoWorker,
    /// It could run, and there is a free slot for it: a worker takes it with its next look.
    StartsNext,
    /// It could run and is next, and every slot is taken.
    AllSlotsTaken,
    /// It could run, and other jobs of its tenant go before it.
    BehindItsTenant,
    /// It could run and is its tenant's first, and other tenants are owed more.
    TenantHadItsShare,
    /// It could run, and every slot is taken by jobs of which some are preempted at each cycle: it is among those that are rotated
    /// in next.
    RotatesIn,
    /// It could run, and somebody has a lock that it wants.
    Locked,
    /// It could run, and a lock that it wants is reserved for one that is before it.
    LockReserved,
    /// It crashed, and its backoff is not over.
    Backoff,
    /// It was added for later.
    NotBefore,
    /// It has nothing to do until something changes at its source, which is watched for it.
    Parked,
    /// A filter has paused it.
    Paused,
    /// As many jobs of a bucket that it is in run as may.
    RateLimited,
    /// It waits for the end of other jobs.
    AfterOthers,
    /// Its time has come, or its backoff is over: a worker puts it into the queue with its next look.
    Due,
    /// A worker runs it.
    Runs,
    /// A worker runs it, and it waits for a lock.
    WaitsForLock,
    /// A worker runs it, and was told to stop it.
    Stops,
    /// A worker runs it, and it runs once more after that.
    RunsAgain,
    /// It has ended well.
    Completed,
    /// It has failed for good.
    Failed,
    /// Its user has ended it.
    Cancelled,
    /// A replication document whose filter's code is still to be read from the source: its job is added then.
    FindsFilter,
    /// The same, and reading it has failed; it is tried again.
    FilterFailed,
}

impl Reason {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::NoWorker => "no_worker",
            Reason::StartsNext => "starts_next",
            Reason::AllSlotsTaken => "all_slots_taken",
            Reason::BehindItsTenant => "behind_its_tenant",
            Reason::TenantHadItsShare => "tenant_had_its_share",
            Reason::RotatesIn => "rotates_in",
            Reason::Locked => "locked",
            Reason::LockReserved => "lock_reserved",
            Reason::WaitsForLock => "waits_for_lock",
            Reason::Backoff => "backoff",
            Reason::NotBefore => "not_before",
            Reason::Parked => "parked",
            Reason::Paused => "paused",
            Reason::RateLimited => "rate_limited",
            Reason::AfterOthers => "after_others",
            Reason::Due => "due",
            Reason::Runs => "runs",
            Reason::Stops => "stops",
            Reason::RunsAgain => "runs_again",
            Reason::Completed => "completed",
            Reason::Failed => "failed",
            Reason::Cancelled => "cancelled",
            Reason::FindsFilter => "finds_filter",
            Reason::FilterFailed => "filter_failed",
        }
    }
}

/// Why a job stands where it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "mail",
    "id": "mail-17",
    "state": "pending",
    "reason": "behind_its_tenant",
    "sentence": "Waits for its turn: 16 jobs of its tenant `acme` go before it, and all 4 slots of 2 workers are taken.",
    "since_us": 1_790_000_000_000_000_i64,
    "crashes": 0,
    "tenant": {
        "type": "mail", "tenant": "acme", "shares": 100, "service_us": 93_000_000_u64, "usage_us": 41_000_000_u64,
        "owed_us": -1_200_000_i64, "expected_run_us": 800_000_u64, "running": 3, "pending": 17, "pending_more": false,
        "oldest_claimable_us": 1_790_000_000_000_000_i64
    },
    "place": { "in_tenant": 16, "in_tenant_more": false, "overall": 21, "overall_more": false },
    "before": [{ "tenant": "beta", "shares": 100, "jobs": 5, "jobs_more": false }],
    "before_more": false,
    "capacity": { "workers": 2, "slots": 4, "running": 4 },
    "expected": {
        "at_us": 1_790_000_004_400_000_i64, "earliest": false,
        "basis": "22 jobs must end first; they run 0.8 s each, as learnt, on 4 slots"
    }
}))]
pub struct Why {
    /// Its type.
    #[serde(rename = "type")]
    #[schema(value_type = JobType)]
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// The same for people, in one line.
    pub sentence: String,
    /// Since when, in µs since the Unix epoch: it runs, could run, has ended, or was put among those that wait for their time.
    pub since_us: i64,
    /// It starts not before this time, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub not_before_us: Option<i64>,
    /// Crashes in a row.
    pub crashes: u32,
    /// What went wrong last, if its latest run crashed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// The jobs that it waits for, by type and id; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub after: Vec<Awaited>,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerId>, nullable = false)]
    pub worker: Option<String>,
    /// Where it runs, or through which node its worker takes jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub node: Option<String>,
    /// Its priority class, -20 to 19: those of lower classes go before it among its tenant's jobs.
    #[serde(default)]
    #[schema(required = true)]
    pub priority: i32,
    /// Who it is charged to, and how that tenant stands.
    pub tenant: Tenant,
    /// It could run: where it stands in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub place: Option<Place>,
    /// It could run: other tenants whose jobs go before it, the one that is next first; the first 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub before: Vec<Before>,
    /// There are more of them.
    #[serde(default)]
    pub before_more: bool,
    /// Who can run jobs of its type. Missing for a job that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub capacity: Option<Capacity>,
    /// What it locks, or wants to. Missing for a job that declares no locks, and for one that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub locks: Option<WhyLocks>,
    /// It is held back: what limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limited: Option<Limited>,
    /// When it can be expected to start (again); null where nothing is known to tell that by, and where it will not.
    pub expected: Option<Expected>,
}

/// A job that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Awaited {
    /// Its type.
    #[serde(rename = "type")]
    #[schema(value_type = JobType)]
    pub job_type: String,
    /// Its id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// Where it stands. Missing if it has just been removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub state: Option<State>,
    /// The ends that are accepted.
    pub accepted: Vec<End>,
    /// What happens if it ends otherwise.
    pub otherwise: Otherwise,
}

/// Where a job that could run stands in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Place {
    /// Jobs of its tenant that go before it: counted up to 10,000.
    pub in_tenant: usize,
    /// There are more of them than were counted.
    pub in_tenant_more: bool,
    /// Jobs of all tenants that go before it, if nothing changes: counted up to 10,000.
    pub overall: usize,
    /// There are more of them than were counted.
    pub overall_more: bool,
}

/// A tenant whose jobs go before another one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Before {
    /// Its name.
    pub tenant: String,
    /// Its shares.
    pub shares: u32,
    /// How many of its jobs.
    pub jobs: usize,
    /// There are more of them than were counted.
    pub jobs_more: bool,
}

/// When a job can be expected to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Expected {
    /// At about this time, in µs since the Unix epoch.
    pub at_us: i64,
    /// Not before that time, and it may be later: when it is known only until when it cannot start.
    pub earliest: bool,
    /// What that is computed from.
    pub basis: String,
}

/// Why the replication of a document stands where it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DocumentWhy {
    /// The `_replicator` database.
    pub database: String,
    /// The document.
    pub doc_id: String,
    /// Why. Of the job, if there is one.
    pub reason: Reason,
    /// The same for people, in one line.
    pub sentence: String,
    /// What went wrong last, if something did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// The document's job, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub job: Option<Why>,
}
