//! Tenants with their shares, and the waiting and running jobs of a type.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::filters::Limited;
use crate::jobs::State;
use crate::why::Reason;
use crate::word::words;

answers! {
    /// A tenant's standing for jobs of one type.
    #[derive(PartialEq, Eq)]
    #[schema(example = json!({
        "type": "mail", "tenant": "acme", "shares": 200, "service_us": 93_000_000_u64, "usage_us": 41_000_000_u64,
        "deficit_us": -1_200_000_i64, "expected_run_us": 800_000_u64, "running": 3, "pending": 10_000,
        "oldest_claimable_us": 1_790_000_000_000_000_i64
    }))]
    pub struct Tenant {
        /// The type of its jobs.
        #[serde(rename = "type")]
        pub job_type: String,
        /// Its name.
        pub tenant: String,
        /// Its weight relative to other tenants, from 1 to 1,000.
        pub shares: u32,
        /// Run time charged to the tenant, in µs, since its last removal. The server removes a tenant that has no jobs and whose recent run time has
        /// decayed.
        pub service_us: u64,
        /// Recent run time, in µs. A charge loses half of its weight in each interval after it, unless the coefficient is configured otherwise.
        pub usage_us: u64,
        /// The tenant's deficit, in µs: the run time that it needs to reach its type's virtual time. A negative number is a surplus. A tenant without
        /// waiting jobs has no deficit. Missing under CouchDB's fair-share scheduling, which has no virtual time, and before a worker has recorded the
        /// tenant.
        pub deficit_us: Option<i64>,
        /// Expected run time of one of its jobs, estimated from past runs, in µs. For continuous jobs, the length of a turn until preemption.
        pub expected_run_us: Option<u64>,
        /// Number of running jobs.
        pub running: usize,
        /// Number of pending jobs.
        pub pending: u64,
        /// When the oldest pending job began to wait, in µs since the Unix epoch. Delayed and crashing jobs do not count.
        pub oldest_claimable_us: Option<i64>,
    }

    /// A page of tenants.
    #[derive(PartialEq, Eq)]
    pub struct Tenants {
        /// The types that the server read. Each summary covers the whole type, regardless of which tenants are on the page.
        pub types: Vec<TypeSummary>,
        /// The tenants.
        pub tenants: Vec<Tenant>,
        /// There are more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
        /// There are more tenants or types than this order can sort, so that only the first ones by name were sorted. The order `name` lists all of them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub partial: bool,
    }
}

words! {
    /// The order of tenants.
    #[derive(Default)]
    pub enum TenantOrder {
        /// By type and name.
        #[default]
        Name = "name",
        /// Largest deficit first.
        Deficit = "deficit",
        /// Most recent run time first.
        Usage = "usage",
        /// Most running jobs first.
        Running = "running",
        /// Most run time charged first.
        Service = "service",
    }
}

/// Summary of a type: its workers, its tenants and its jobs that wait outside of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TypeSummary {
    /// The type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The workers and slots for its jobs.
    pub capacity: Capacity,
    /// How the workers share the slots between tenants.
    pub fairness: Fairness,
    /// Number of known tenants: those with waiting or running jobs, or with recent run time.
    pub tenants: usize,
    /// Number of tenants with pending jobs.
    pub waiting_tenants: usize,
    /// Numbers of all jobs of the type.
    pub jobs: JobCounts,
}

/// Numbers of jobs, by state. They are exact, and those of one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobCounts {
    /// They wait in the queue of their tenant.
    pub pending: u64,
    /// They do not start before a time.
    pub delayed: u64,
    /// They have crashed, and wait until their backoff is over.
    pub crashing: u64,
    /// They have nothing to do until their source changes.
    pub parked: u64,
    /// They wait for other jobs to end.
    pub blocked: u64,
    /// A filter pauses them.
    pub paused: u64,
    /// They wait for room in a bucket.
    pub limited: u64,
    /// They run, or their runs wait for locks.
    pub running: u64,
    /// They have ended without an error.
    pub completed: u64,
    /// They have failed permanently.
    pub failed: u64,
    /// They were cancelled.
    pub cancelled: u64,
}

impl JobCounts {
    /// The states and their numbers.
    pub fn by_state(&self) -> [(&'static str, u64); 11] {
        [
            ("pending", self.pending),
            ("delayed", self.delayed),
            ("crashing", self.crashing),
            ("parked", self.parked),
            ("blocked", self.blocked),
            ("paused", self.paused),
            ("limited", self.limited),
            ("running", self.running),
            ("completed", self.completed),
            ("failed", self.failed),
            ("cancelled", self.cancelled),
        ]
    }
}

answers! {
    /// Numbers of jobs of one type, of one tenant or of all.
    #[derive(PartialEq, Eq)]
    pub struct CountedJobs {
        /// The type.
        #[serde(rename = "type")]
        pub job_type: String,
        /// The tenant. Missing if these are the jobs of all tenants whose jobs this identity may read.
        pub tenant: Option<String>,
        /// The numbers.
        pub jobs: JobCounts,
    }

    /// A page of counts.
    #[derive(PartialEq, Eq)]
    pub struct CountPage {
        /// The counts, by type and tenant. Those without any job are left out.
        pub counts: Vec<CountedJobs>,
        /// There are more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }
}

words! {
    /// Of what jobs are counted.
    #[derive(Default)]
    pub enum CountBy {
        /// All jobs of a type.
        #[default]
        Type = "type",
        /// The jobs of a type and tenant.
        Tenant = "tenant",
    }
}

answers! {
    /// The workers and slots for the jobs of a type.
    #[derive(Copy, Default, PartialEq, Eq)]
    pub struct Capacity {
        /// Number of registered workers with slots, without the quiet ones.
        pub workers: usize,
        /// Total number of their slots.
        pub slots: usize,
        /// The most slots that they may have together. Missing if the slots of none of them follow the demand.
        pub most_slots: Option<usize>,
        /// Number of jobs that they run now, counted up to 20,000.
        pub running: usize,
        /// Number of quiet workers: they get no new jobs.
        #[serde(default)]
        #[schema(required = true)]
        pub quiet: usize,
    }
}

/// How many slots the jobs of a type need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "mail", "runnable": 980, "oldest_age_us": 1_200_000, "expected_run_us": 200_000, "running": 20, "workers": 2, "slots": 20,
    "needed_slots": 20, "wanted_slots": 20, "active": true,
    "tenants": [{"tenant": "acme", "runnable": 980, "running": 20, "expected_run_us": 200_000, "needed_slots": 24}]
}))]
pub struct Demand {
    /// The type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// Number of jobs that could run now if there were slots. Exact if no filter, concurrency limit or lock concerns the pending jobs; otherwise estimated from
    /// the heads of the queues.
    pub runnable: u64,
    /// How long the oldest of these has waited, in µs; 0 if there is none.
    pub oldest_age_us: u64,
    /// Expected run time of one of these, estimated from past runs, in µs.
    pub expected_run_us: u64,
    /// Number of jobs that run.
    pub running: u64,
    /// Number of registered workers with slots.
    pub workers: u64,
    /// Total number of their slots.
    pub slots: u64,
    /// Number of slots with which the running jobs go on, and the others have started within the target.
    pub needed_slots: u64,
    /// The highest `needed_slots` within the last target, as far as this server was asked. An autoscaler should provide so many.
    pub wanted_slots: u64,
    /// Whether any slot is wanted.
    pub active: bool,
    /// The demand of each tenant, the largest first; at most 100.
    pub tenants: Vec<TenantDemand>,
    /// There are more tenants.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_tenants: bool,
}

/// How many slots a tenant's jobs of a type need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantDemand {
    /// The tenant.
    pub tenant: String,
    /// Number of its pending jobs that could run now if there were slots.
    pub runnable: u64,
    /// Number of its running jobs.
    pub running: u64,
    /// Expected run time of one of its jobs, in µs.
    pub expected_run_us: u64,
    /// Number of slots for its running jobs, and for those that could run.
    pub needed_slots: u64,
}

words! {
    /// How the workers of a type share the slots between its tenants.
    pub enum Fairness {
        /// By the run time of each tenant, divided by its shares.
        VirtualTime = "virtual_time",
        /// By CouchDB's fair-share scheduling: jobs have priority values, which follow the usage of their tenants.
        Rfc = "rfc",
    }
}

answers! {
    /// Jobs that have not ended: first the running ones, then the pending ones in the order in which they will start, then those that wait outside of a
    /// queue.
    #[derive(PartialEq, Eq)]
    pub struct Queue {
        /// The types that the server read.
        pub types: Vec<TypeSummary>,
        /// The jobs: of each type, at most as many as requested.
        pub jobs: Vec<QueuedJob>,
        /// There are more types: repeat the request with `after` set to this. Missing if there are no more.
        pub next: Option<String>,
    }

    /// A job that has not ended, and the reason for its state. `/v1/jobs/{type}/{id}/why` has the details.
    #[derive(PartialEq, Eq)]
    pub struct QueuedJob {
        /// Its type.
        #[serde(rename = "type")]
        pub job_type: String,
        /// Its id.
        pub id: String,
        /// Replications: the document in the replicator database, which is the tenant.
        pub document: Option<String>,
        /// The tenant that it is charged to.
        pub tenant: String,
        /// What it does, within its type.
        pub task: Option<String>,
        /// Its state.
        pub state: State,
        /// The reason for its state.
        pub reason: Reason,
        /// Since when it runs, is pending, or waits outside of a queue, in µs since the Unix epoch.
        pub since_us: i64,
        /// It does not start before this time, in µs.
        pub not_before_us: Option<i64>,
        /// Paused: the filter that pauses it.
        pub paused_by: Option<String>,
        /// Limited: the bucket that has no room.
        pub limited: Option<Limited>,
        /// Blocked: the number of its dependencies that have not ended.
        pub waits_for: Option<u32>,
        /// Running: its worker.
        pub worker: Option<String>,
    }
}
