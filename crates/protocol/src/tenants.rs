//! Who gets what: tenants, and what waits and runs of a type.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::filters::Limited;
use crate::jobs::State;
use crate::why::Reason;

/// A tenant, as far as jobs of one type are concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "mail", "tenant": "acme", "shares": 200, "service_us": 93_000_000_u64, "usage_us": 41_000_000_u64,
    "owed_us": -1_200_000_i64, "expected_run_us": 800_000_u64, "running": 3, "pending": 10_000, "pending_more": true,
    "oldest_claimable_us": 1_790_000_000_000_000_i64
}))]
pub struct Tenant {
    /// The type of its jobs.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub job_type: String,
    /// Its name.
    pub tenant: String,
    /// What it is entitled to, relative to others: 1 to 1,000.
    pub shares: u32,
    /// Run time that it was charged for since it was last forgotten, in µs. A tenant is forgotten when it has no jobs and what
    /// it used has decayed away.
    pub service_us: u64,
    /// Recent run time, in µs: what it was charged for lost half of its weight in each interval that has passed since (unless
    /// the coefficient is configured otherwise).
    pub usage_us: u64,
    /// Run time that it is owed, in µs: what it would have to be given to be where its type's virtual time is. Negative if it
    /// is ahead of the others. Nobody is owed anything while they have nothing that waits. Missing where the type is
    /// scheduled by the RFC's priorities, which know no such thing, and where no worker has taken note of the tenant yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub owed_us: Option<i64>,
    /// How long one of its jobs runs, as learnt from those that have run, in µs; of jobs that can be preempted, how long a
    /// turn is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub expected_run_us: Option<u64>,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that could run: counted up to 10,000.
    pub pending: usize,
    /// There are, or may be, more of them than were counted.
    pub pending_more: bool,
    /// Since when the first of those that could run waits, in µs since the Unix epoch. Jobs that wait for their time, or for
    /// the end of a backoff, could not run and do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub oldest_claimable_us: Option<i64>,
}

/// A page of tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenants {
    /// The types that were looked at, each whole, whatever part of its tenants the page holds.
    pub types: Vec<TypeSummary>,
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// There is more: ask again with `after` set to this. Missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
    /// There are more tenants or types than this order can sort: the first ones by name were sorted. The order `name` lists all of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// How tenants are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TenantOrder {
    /// By type and name.
    #[default]
    Name,
    /// Who is owed most first.
    Owed,
    /// Most recent run time first.
    Usage,
    /// Who has most jobs that run first.
    Running,
    /// Who was served most first.
    Service,
}

/// What works on jobs of a type, and what there is of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TypeSummary {
    /// The type.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub job_type: String,
    /// Who can run its jobs.
    pub capacity: Capacity,
    /// How slots are shared between tenants.
    pub fairness: Fairness,
    /// Tenants that are known: with jobs that wait or run, or with recent run time.
    pub tenants: usize,
    /// Tenants with jobs that could run now.
    pub waiting_tenants: usize,
    /// Jobs that wait for their time, or for the end of a backoff: counted up to 10,000.
    pub delayed: usize,
    /// There are more of them than were counted.
    pub delayed_more: bool,
    /// Jobs that wait for the end of others.
    #[serde(default)]
    #[schema(required = true)]
    pub blocked: Counted,
    /// Jobs that filters pause.
    #[serde(default)]
    #[schema(required = true)]
    pub paused: Counted,
    /// Jobs that rate limits hold back.
    #[serde(default)]
    #[schema(required = true)]
    pub limited: Counted,
}

/// How many there are, counted up to a bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counted {
    /// So many were counted: 10,000 at most.
    pub jobs: usize,
    /// There are more.
    pub more: bool,
}

/// What can run jobs of a type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// Workers that are registered and have slots.
    pub workers: usize,
    /// Jobs that they run at the same time at most, together.
    pub slots: usize,
    /// Jobs that they run now, counted up to 20,000.
    pub running: usize,
}

/// How the slots of a type are shared between its tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fairness {
    /// By what each tenant has received, divided by its shares.
    VirtualTime,
    /// By priorities of jobs that follow the usage of their tenants.
    Rfc,
}

/// Jobs that have not ended, in the order in which they run: those that do, those that could, the one that is next first, and
/// those that wait for something else than their turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// The types that were looked at.
    pub types: Vec<TypeSummary>,
    /// The jobs; of each type as many as were asked for at most.
    pub jobs: Vec<QueuedJob>,
    /// There are more types: ask again with `after` set to this. Missing where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}

/// A job that has not ended, and why it stands where it does. `/v1/jobs/{type}/{id}/why` tells more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuedJob {
    /// Its type.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// The document that a replication belongs to, in the database that is its tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub document: Option<String>,
    /// Who it is charged to.
    pub tenant: String,
    /// Where it stands.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// Since when, in µs since the Unix epoch: it runs, could run, or was put among those that wait for their time.
    pub since_us: i64,
    /// It starts not before this time, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub not_before_us: Option<i64>,
    /// Paused: by this filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused_by: Option<String>,
    /// Limited: until fewer jobs of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limited: Option<Limited>,
    /// Blocked: so many jobs that it waits for have not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waits_for: Option<u32>,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub worker: Option<String>,
}
