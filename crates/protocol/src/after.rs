//! Dependencies: jobs that must end before another job starts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::names::{JobId, JobType};
use crate::word::words;

/// Maximum number of dependencies of one job.
pub const MAX_AFTER: usize = 100;

/// A dependency: a job that must end before another one starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "type": "mail", "id": "mail-16", "accepted": ["completed"], "otherwise": "cancel" }))]
pub struct After {
    /// The dependency's type. By default the type of the job that waits.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobType>)]
    pub job_type: Option<String>,
    /// The dependency's id. The job must exist: the server rejects an id that was never added, or was removed after its end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(value_type = JobId, required = false)]
    pub id: String,
    /// In place of the type and the id, in a request with `whole`: the `name` of another job of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64)]
    pub name: Option<String>,
    /// The final states that are accepted. By default only `completed`.
    #[serde(default = "completed")]
    #[schema(min_items = 1)]
    pub accepted: Vec<End>,
    /// What happens if the dependency ends in another state, or is removed before it has ended.
    #[serde(default)]
    #[schema(default = "cancel")]
    pub otherwise: Otherwise,
}

fn completed() -> Vec<End> {
    vec![End::Completed]
}

words! {
    /// The final states of a job.
    pub enum End {
        /// It completed.
        Completed = "completed",
        /// It failed with an error that is not retried, or in its last attempt.
        Failed = "failed",
        /// Its user cancelled it, or the server rejected it.
        Cancelled = "cancelled",
    }
}

words! {
    /// What happens to a job when a dependency ends in a state that the job does not accept.
    #[derive(Default)]
    pub enum Otherwise {
        /// The job is cancelled.
        #[default]
        Cancel = "cancel",
        /// The job stops waiting for this dependency.
        Free = "free",
    }
}
