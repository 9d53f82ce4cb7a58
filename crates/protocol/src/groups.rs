//! Groups: jobs that end together, and after the last of which the server adds another one.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::bulk::quoted;
use crate::jobs::NewJob;
use crate::names::{GroupName, Name};
use crate::word::words;

/// Most groups that one request creates.
pub const MAX_NEW_GROUPS: usize = 10;
/// Most jobs of one request, with those of its arrays.
pub const MAX_ARRAY: usize = 10_000;

/// The condition that the jobs of a group meet. `None` if a condition cannot express it.
#[must_use]
pub fn jobs_of_group(tenant: &str, name: &str) -> Option<String> {
    Some(format!("group = {} and tenant = {}", quoted(name)?, quoted(tenant)?))
}

/// A group to be created.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "import-7", "on_complete": { "type": "report", "options": { "of": "import-7" } } }))]
pub struct NewGroup {
    /// Its name, within its tenant. A request can be repeated: the server creates the group once.
    #[schema(value_type = GroupName)]
    pub name: String,
    /// The tenant of its jobs. `default` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    pub tenant: Option<String>,
    /// Whether jobs can be added to it by later requests, until it is closed. By default, a group of `POST /v1/groups` is open, and one that is created with
    /// its jobs is closed with this request. Only closed groups end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// An open group of the same tenant, in which the end of this one counts like the end of a job. At most 8 groups are in each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<GroupName>)]
    pub parent: Option<String>,
    /// At most so many of its jobs run at the same time: 1 to 1,000.
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub at_once: Option<u32>,
    /// How long the group is kept after its end, in ms. If it is left out, as long as the server keeps jobs (`[jobs] retention`).
    #[serde(default, deserialize_with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 315_360_000_000_u64)]
    pub keep_ms: Option<u64>,
    /// The job that is added once when all its jobs have ended, however they have ended. A job of the group's tenant, as in `POST /v1/jobs`, with options of at most
    /// 32 kB, and without `id`, `delay_ms`, `not_before_us`, `after`, `unique`, `group`, `count` and `if_exists`.
    #[serde(default, deserialize_with = "crate::object::optional", skip_serializing_if = "Option::is_none")]
    pub on_complete: Option<NewJob>,
    /// The same, if all of them have completed.
    #[serde(default, deserialize_with = "crate::object::optional", skip_serializing_if = "Option::is_none")]
    pub on_success: Option<NewJob>,
    /// The job that is added once when one of its jobs has failed for the first time.
    #[serde(default, deserialize_with = "crate::object::optional", skip_serializing_if = "Option::is_none")]
    pub on_first_failure: Option<NewJob>,
}

words! {
    /// Whether a group has ended, and how.
    pub enum GroupState {
        /// Jobs can be added.
        Open = "open",
        /// No jobs can be added, and some have not ended.
        Closed = "closed",
        /// All its jobs have completed.
        Completed = "completed",
        /// All its jobs have ended, and some have failed.
        Failed = "failed",
        /// All its jobs have ended. None has failed, and some were cancelled or removed.
        Cancelled = "cancelled",
    }
}

words! {
    /// What a group adds a job for.
    pub enum CalledOn {
        /// All its jobs have ended.
        Complete = "complete",
        /// All its jobs have completed.
        Success = "success",
        /// One of its jobs has failed, for the first time.
        FirstFailure = "first_failure",
    }
}

answers! {
    /// How many jobs of a group, and groups in it, have ended in which way.
    #[derive(Copy, Default, PartialEq, Eq)]
    pub struct GroupCounts {
        /// All that were ever in the group.
        pub total: u64,
        /// Those that have not ended.
        pub open: u64,
        /// Those that have completed.
        pub completed: u64,
        /// Those that have failed.
        pub failed: u64,
        /// Those that were cancelled.
        pub cancelled: u64,
        /// Jobs that were removed, or went to another group, before they had ended.
        pub removed: u64,
        /// How often one of them has failed, also if it was retried then.
        pub failures: u64,
    }

    /// A job that a group has added.
    #[derive(PartialEq, Eq)]
    pub struct CalledJob {
        /// What for.
        pub on: CalledOn,
        /// Its type.
        #[serde(rename = "type")]
        pub job_type: String,
        /// Its id.
        pub id: String,
        /// When it was added, in µs since the Unix epoch.
        pub at_us: i64,
        /// Why the queue refused it.
        pub reason: Option<String>,
    }

    /// A group.
    #[derive(PartialEq, Eq)]
    pub struct Group {
        /// Its name.
        pub name: String,
        /// Its tenant.
        pub tenant: String,
        /// Whether it has ended.
        pub state: GroupState,
        /// The numbers of its jobs now. They stay when the records of its jobs are removed.
        pub counts: GroupCounts,
        /// The group in which it is.
        pub parent: Option<String>,
        /// At most so many of its jobs run at the same time.
        pub at_once: Option<u32>,
        /// How long it is kept after its end, in ms.
        pub keep_ms: u64,
        /// What it adds jobs for.
        pub callbacks: Vec<CalledOn>,
        /// The jobs that it has added.
        pub called: Vec<CalledJob>,
        /// When it ended, in µs since the Unix epoch.
        pub ended_us: Option<i64>,
        /// The numbers of its jobs when it ended. Those of now differ if jobs were retried since.
        pub ended_counts: Option<GroupCounts>,
        /// How many of its jobs were retried after its end. No job is added for them.
        pub retried: u64,
        /// When it is removed, in µs.
        pub removed_us: Option<i64>,
        /// The identity that created it.
        pub by: Option<String>,
        /// When it was created, in µs since the Unix epoch.
        pub created_us: i64,
    }

    /// A page of groups, by tenant and name.
    pub struct Groups {
        /// The groups.
        pub groups: Vec<Group>,
        /// There may be more: repeat the request with `after` set to this. Missing on the last page.
        pub next: Option<String>,
    }

    /// The group of a job.
    #[derive(PartialEq, Eq)]
    pub struct JobGroup {
        /// The name of the group.
        pub name: String,
        /// The job's place in its array, from 0 on.
        pub index: Option<u32>,
    }

    /// The group that has added a job.
    #[derive(PartialEq, Eq)]
    pub struct JobCallback {
        /// The name of the group.
        pub group: String,
        /// What for.
        pub on: CalledOn,
        /// The numbers of the group's jobs then.
        pub counts: GroupCounts,
    }
}

/// The result of removing a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedGroup {
    /// It does not exist any more. Its jobs stay.
    pub removed: bool,
}
