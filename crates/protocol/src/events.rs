//! The data of a job's server-sent events.
//!
//! A stream sends the steps in a job's life, oldest first, and continues until the job ends:
//!
//! | event | data | id |
//! | --- | --- | --- |
//! | `state` | [`JobEvent`] | yes |
//! | `progress` | [`Progress`]: the worker's latest report; some reports are skipped | no |
//! | `end` | [`Job`](crate::Job): the job has ended; the stream closes | yes |
//! | `removed` | [`Removed`](crate::Removed): the job was removed; the stream closes | no |
//!
//! A client that reconnects with `Last-Event-ID` receives the events that it has missed. If it has already received the end, the response is 204, so
//! that it stops reconnecting.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::answer::answers;
use crate::jobs::{EventKind, State};

answers! {
    /// The data of an event `state`: a step in the job's life.
    #[derive(PartialEq, Eq)]
    pub struct JobEvent {
        /// Time of the step, in µs since the Unix epoch.
        pub at_us: i64,
        /// What happened.
        #[serde(rename = "type")]
        pub kind: EventKind,
        /// The job's state after the step.
        pub state: State,
        /// Crashed or failed: the error.
        pub reason: Option<String>,
    }
}

/// The data of an event `progress`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// The worker's report.
    #[schema(value_type = serde_json::Value)]
    pub info: Box<RawValue>,
}

answers! {
    /// An event as a reader of server-sent events returns it.
    #[derive(PartialEq, Eq)]
    #[schema(example = json!({
        "event": "state",
        "id": "1790000000120000:0",
        "data": "{\"at_us\":1790000000120000,\"type\":\"started\",\"state\":\"running\"}"
    }))]
    pub struct ServerSentEvent {
        /// `state`, `progress`, `line`, `end` or `removed`.
        pub event: String,
        /// The value of `Last-Event-ID` that the client sends when it reconnects.
        pub id: Option<String>,
        /// JSON: a JobEvent for `state`, a Progress for `progress`, a LogLine for `line`, a Job for `end`, a Removed for `removed`.
        #[schema(content_media_type = "application/json")]
        pub data: String,
    }
}

/// The names of events.
pub mod names {
    /// With a [`JobEvent`](super::JobEvent).
    pub const STATE: &str = "state";
    /// With a [`LogLine`](crate::LogLine), in a stream of a job's log.
    pub const LINE: &str = "line";
    /// With a [`Progress`](super::Progress).
    pub const PROGRESS: &str = "progress";
    /// With a [`Job`](crate::Job).
    pub const END: &str = "end";
    /// With a [`Removed`](crate::Removed).
    pub const REMOVED: &str = "removed";
}
