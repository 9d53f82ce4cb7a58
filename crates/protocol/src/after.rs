//! What a job waits for: the end of others.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::names::{JobId, JobType};

/// Jobs that one job waits for at most.
pub const MAX_AFTER: usize = 100;

/// A job that is to end before another one starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "type": "mail", "id": "mail-16", "accepted": ["completed"], "otherwise": "cancel" }))]
pub struct After {
    /// Its type; the type of the job that waits, if it is left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobType>)]
    pub job_type: Option<String>,
    /// Its id. It must be there: a job that was never added, or was removed after its end, is refused.
    #[schema(value_type = JobId)]
    pub id: String,
    /// The ends that are accepted; `completed` alone if it is left out.
    #[serde(default = "completed")]
    #[schema(min_items = 1)]
    pub accepted: Vec<End>,
    /// What happens if it ends otherwise, or is removed before it has ended.
    #[serde(default)]
    #[schema(default = "cancel")]
    pub otherwise: Otherwise,
}

fn completed() -> Vec<End> {
    vec![End::Completed]
}

/// How a job can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Well.
    Completed,
    /// With an error that is not tried again.
    Failed,
    /// By its user, or because it was refused.
    Cancelled,
}

impl<'de> Deserialize<'de> for End {
    /// From a string alone: a derived one would take an object, too.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match std::borrow::Cow::<str>::deserialize(deserializer)?.as_ref() {
            "completed" => Ok(End::Completed),
            "failed" => Ok(End::Failed),
            "cancelled" => Ok(End::Cancelled),
            _ => Err(serde::de::Error::custom("expected `completed`, `failed` or `cancelled`")),
        }
    }
}

/// What happens to a job when one that it waits for ends in a way that it does not accept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// It is cancelled.
    #[default]
    Cancel,
    /// It does not wait for that one any more.
    Free,
}

impl<'de> Deserialize<'de> for Otherwise {
    /// From a string alone: a derived one would take an object, too.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match std::borrow::Cow::<str>::deserialize(deserializer)?.as_ref() {
            "cancel" => Ok(Otherwise::Cancel),
            "free" => Ok(Otherwise::Free),
            _ => Err(serde::de::Error::custom("expected `cancel` or `free`")),
        }
    }
}
