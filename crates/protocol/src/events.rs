//! What the server-sent events of a job hold.
//!
//! A stream tells what happened to a job, oldest first, and goes on until the job ends:
//!
//! | event | data | id |
//! | --- | --- | --- |
//! | `state` | [`JobEvent`] | yes |
//! | `progress` | [`Progress`]: what the worker reported; not every report is told | no |
//! | `end` | [`Job`](crate::Job): the job has ended; the stream closes | yes |
//! | `removed` | [`Removed`](crate::Removed): the job was removed; the stream closes | no |
//!
//! A client that comes back with `Last-Event-ID` is told what it has missed. One that has seen the end is answered 204, so
//! that it stops coming back.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::jobs::{EventKind, State};

/// The data of an event `state`: a step in the job's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// When, in µs since the Unix epoch.
    pub at_us: i64,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// Where the job stood after it.
    pub state: State,
    /// Crashed or failed: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// The data of an event `progress`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// What the worker reported.
    #[schema(value_type = serde_json::Value)]
    pub info: Box<RawValue>,
}

/// An event as a reader of server-sent events hands it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "event": "state",
    "id": "1790000000120000:0",
    "data": "{\"at_us\":1790000000120000,\"type\":\"started\",\"state\":\"running\"}"
}))]
pub struct ServerSentEvent {
    /// `state`, `progress`, `end` or `removed`.
    pub event: String,
    /// What the client sends as `Last-Event-ID` when it comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<String>,
    /// JSON: of `state` a JobEvent, of `progress` a Progress, of `end` a Job, of `removed` a Removed.
    #[schema(content_media_type = "application/json")]
    pub data: String,
}

/// The names of events.
pub mod names {
    /// With a [`JobEvent`](super::JobEvent).
    pub const STATE: &str = "state";
    /// With a [`Progress`](super::Progress).
    pub const PROGRESS: &str = "progress";
    /// With a [`Job`](crate::Job).
    pub const END: &str = "end";
    /// With a [`Removed`](crate::Removed).
    pub const REMOVED: &str = "removed";
}
