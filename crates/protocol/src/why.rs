//! Why a job is in its state, and when it is expected to start.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::after::{End, Otherwise};
use crate::answer::answers;
use crate::filters::Limited;
use crate::groups::GroupState;
use crate::jobs::State;
use crate::locking::WhyLocks;
use crate::names::{JobId, JobType, WorkerId};
use crate::tenants::{Capacity, Tenant};
use crate::word::words;

words! {
    /// The reason for a job's state, as a stable code on which programs decide. New values may be added.
    #[derive(PartialOrd, Ord)]
    pub enum Reason {
        /// Pending: no worker of its type is registered.
        NoWorker = "no_worker",
        /// Pending: all workers of its type are quiet.
        WorkersQuiet = "workers_quiet",
        /// Pending, with a free slot for it: a worker claims it in its next pass.
        StartsNext = "starts_next",
        /// Pending and first in the queue: no slot is free.
        AllSlotsTaken = "all_slots_taken",
        /// Pending: other jobs of its tenant precede it.
        BehindItsTenant = "behind_its_tenant",
        /// Pending, and first of its tenant: tenants with a lower virtual time get the slots.
        TenantHadItsShare = "tenant_had_its_share",
        /// Pending: continuous jobs use every slot, and some of them are preempted at each cycle. The job is among the next to start.
        RotatesIn = "rotates_in",
        /// Pending: another job holds a lock that it wants.
        Locked = "locked",
        /// Pending: an earlier job has reserved a lock that it wants.
        LockReserved = "lock_reserved",
        /// It crashed, and its backoff is not over.
        Backoff = "backoff",
        /// It was added for later.
        NotBefore = "not_before",
        /// It has nothing to do until its source changes. A server watches the source for it.
        Parked = "parked",
        /// A filter has paused it.
        Paused = "paused",
        /// As many jobs of one of its buckets run as the limit allows.
        ConcurrencyLimited = "concurrency_limited",
        /// As many jobs of one of its buckets have started in the last period as the rate allows.
        RateLimited = "rate_limited",
        /// No registered worker of its type knows its task.
        NoWorkerForTask = "no_worker_for_task",
        /// The workers that know its task run as many jobs of it as they take.
        TaskLimited = "task_limited",
        /// Its dependencies have not ended.
        AfterOthers = "after_others",
        /// Its delay or its backoff is over: a worker moves it into the queue in its next pass.
        Due = "due",
        /// A worker runs it.
        Runs = "runs",
        /// A worker runs it, and it waits for a lock.
        WaitsForLock = "waits_for_lock",
        /// A worker runs it, and must stop it.
        Stops = "stops",
        /// A worker runs it, and it runs once more afterwards.
        RunsAgain = "runs_again",
        /// It has completed.
        Completed = "completed",
        /// It has failed permanently.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
        /// A replication document whose filter code has not been read from the source yet. Its job is added after that.
        FindsFilter = "finds_filter",
        /// The same, and reading the filter code has failed. The server retries.
        FilterFailed = "filter_failed",
    }
}

answers! {
    /// Why a job is in its state.
    #[derive(PartialEq)]
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
            "deficit_us": -1_200_000_i64, "expected_run_us": 800_000_u64, "running": 3, "pending": 17,
            "oldest_claimable_us": 1_790_000_000_000_000_i64
        },
        "place": { "in_tenant": 16, "in_tenant_more": false, "overall": 21, "overall_more": false },
        "before": [{ "tenant": "beta", "shares": 100, "jobs": 5, "jobs_more": false }],
        "before_more": false,
        "capacity": { "workers": 2, "slots": 4, "running": 4, "quiet": 0 },
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
        /// Its state.
        pub state: State,
        /// The reason for its state.
        pub reason: Reason,
        /// The reason in one line, for people.
        pub sentence: String,
        /// Since when it runs, is pending, has ended, or waits outside of a queue, in µs since the Unix epoch.
        pub since_us: i64,
        /// It does not start before this time, in µs.
        pub not_before_us: Option<i64>,
        /// Number of consecutive crashes.
        pub crashes: u32,
        /// The error of its last run, if that run crashed or failed.
        pub error: Option<String>,
        /// Its dependencies, by type and id: the first 100.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub after: Vec<Awaited>,
        /// The worker that runs it.
        #[schema(value_type = Option<WorkerId>)]
        pub worker: Option<String>,
        /// The node that runs it, or that its worker is registered with.
        pub node: Option<String>,
        /// Its priority, -20 to 19. Within a tenant, jobs with lower numbers start first.
        #[serde(default)]
        #[schema(required = true)]
        pub priority: i32,
        /// The tenant that it is charged to, with its standing.
        pub tenant: Tenant,
        /// Pending: its place in the queue.
        pub place: Option<Position>,
        /// Pending: other tenants whose jobs precede it, in the order of their next jobs: the first 10.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub before: Vec<Before>,
        /// Whether there are more of them.
        #[serde(default)]
        pub before_more: bool,
        /// The workers and slots for jobs of its type. Missing for a job that has ended.
        pub capacity: Option<Capacity>,
        /// The locks that it holds or wants. Missing for a job that declares no locks, and for one that has ended.
        pub locks: Option<WhyLocks>,
        /// Limited: the bucket that has no room.
        pub limited: Option<Limited>,
        /// When the job is expected to start (again). Null if nothing is known to estimate it, and if the job will not start.
        // By its full name, it is no member that is left out.
        pub expected: std::option::Option<Expected>,
    }

    /// A dependency of a job.
    #[derive(PartialEq, Eq)]
    pub struct Awaited {
        /// Its type.
        #[serde(rename = "type")]
        #[schema(value_type = JobType)]
        pub job_type: String,
        /// Its id.
        #[schema(value_type = JobId)]
        pub id: String,
        /// Its state. Missing if it has just been removed.
        pub state: Option<State>,
        /// The final states that are accepted.
        pub accepted: Vec<End>,
        /// What happens if it ends in another state.
        pub otherwise: Otherwise,
    }
}

/// The position of a pending job in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Position {
    /// Number of jobs of its tenant that precede it, counted up to 10,000.
    pub in_tenant: usize,
    /// Whether there are more of them than were counted.
    pub in_tenant_more: bool,
    /// Number of jobs of all tenants that precede it, if nothing changes, counted up to 10,000.
    pub overall: usize,
    /// Whether there are more of them than were counted.
    pub overall_more: bool,
}

/// A tenant whose jobs precede the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Before {
    /// Its name.
    pub tenant: String,
    /// Its shares.
    pub shares: u32,
    /// Number of its jobs that precede the job.
    pub jobs: usize,
    /// Whether there are more of them than were counted.
    pub jobs_more: bool,
}

/// When a job is expected to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Expected {
    /// The expected time, in µs since the Unix epoch.
    pub at_us: i64,
    /// Whether the time is only a lower bound: the job does not start earlier, and may start later.
    pub earliest: bool,
    /// The data that the estimate is based on.
    pub basis: String,
}

answers! {
    /// Why the replication of a document is in its state.
    #[derive(PartialEq)]
    pub struct DocumentWhy {
        /// The `_replicator` database.
        pub database: String,
        /// The document.
        pub doc_id: String,
        /// The reason: that of the job, if there is one.
        pub reason: Reason,
        /// The reason in one line, for people.
        pub sentence: String,
        /// The last error, if there is one.
        pub error: Option<String>,
        /// The document's job, if there is one.
        pub job: Option<Why>,
    }

    /// What the jobs of a group wait for.
    #[derive(PartialEq, Eq)]
    pub struct GroupWhy {
        /// The group's name.
        pub name: String,
        /// Its tenant.
        pub tenant: String,
        /// Whether it has ended.
        pub state: GroupState,
        /// Why it has not ended in one line, for people.
        pub sentence: String,
        /// The number of its jobs and groups that have not ended.
        pub open: u64,
        /// The number of the jobs that were looked at: at most 20 in each state.
        pub looked_at: u64,
        /// Whether these were all.
        pub complete: bool,
        /// Why these jobs are in their states, the most frequent reason first.
        pub reasons: Vec<GroupReason>,
        /// The groups in it that have not ended, at most 20 of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub groups: Vec<String>,
    }

    /// Jobs of a group that are in their states for the same reason.
    #[derive(PartialEq, Eq)]
    pub struct GroupReason {
        /// The reason.
        pub reason: Reason,
        /// Their number, among those that were looked at.
        pub jobs: u64,
        /// The type of one of them.
        #[serde(rename = "type")]
        pub job_type: String,
        /// Its id.
        pub id: String,
        /// The reason for its state in one line, for people.
        pub sentence: String,
    }
}
