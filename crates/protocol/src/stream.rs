//! The events of all jobs: `GET /v1/events`.
//!
//! As server-sent events:
//!
//! | event | data | id |
//! | --- | --- | --- |
//! | `open` | [`Opened`]: where the stream begins | yes |
//! | `job` | [`StreamEvent`] | yes |
//! | `gone` | [`Error`](crate::Error): the reader was too slow, and events are gone; the stream closes | no |
//!
//! The id of an event is its sequence number. A client that reconnects sends it as `Last-Event-ID`, or as `since`. The server also
//! sends ids without an event, so that a client whose filter matches little stays up to date.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;

/// Longest time that a request for a page of events waits, in ms.
pub const MAX_EVENTS_WAIT_MS: u64 = 60_000;
/// Most events in a page.
pub const MAX_EVENTS: usize = 1_000;

answers! {
    /// The data of an event `job`: what happened to a job.
    #[derive(PartialEq, Eq)]
    #[schema(example = json!({
        "seq": "4711", "event": "failed", "type": "mail", "id": "mail-17", "tenant": "acme", "state": "failed",
        "at_us": 1790000000120000i64, "reason": "no such mailbox"
    }))]
    pub struct StreamEvent {
        /// Its sequence number, opaque: the value of `since` for the events after it.
        pub seq: String,
        /// What happened: `added`, `started`, `stopped`, `crashed`, `snoozed`, `completed`, `failed`, `expired`, `cancelled`, `edited`, `held`, `released` or `removed`; or `group_ended`, with the type `@group` and the name of the group as the id. Later releases may have others.
        pub event: String,
        /// The job's type.
        #[serde(rename = "type")]
        pub job_type: String,
        /// The job's id.
        pub id: String,
        /// The job's tenant.
        pub tenant: String,
        /// The job's task.
        pub task: Option<String>,
        /// The job's tags.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub tags: Vec<String>,
        /// The job's state after the event; `removed` if it is removed. Of the states of a job that waits, events know `pending` and `delayed`
        /// only: a blocked, paused, limited or parked job is `delayed`.
        pub state: String,
        /// When it happened, in µs since the Unix epoch.
        pub at_us: i64,
        /// Why, in at most 500 bytes: the error of a job that failed or crashed.
        pub reason: Option<String>,
        /// What the error has in common with others, if its worker stated its class: the class, and the place in the program.
        pub class: Option<String>,
    }
}

/// The data of an event `open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Opened {
    /// The stream has the events after this sequence number.
    pub since: String,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events, in order. There may be none, although more follow.
    pub events: Vec<StreamEvent>,
    /// The value of `since` for the next page.
    pub next: String,
    /// Whether there may be more events already.
    pub more: bool,
}

/// The names of the events of this stream.
pub mod names {
    /// With an [`Opened`](super::Opened).
    pub const OPEN: &str = "open";
    /// With a [`StreamEvent`](super::StreamEvent).
    pub const JOB: &str = "job";
    /// With an [`Error`](crate::Error).
    pub const GONE: &str = "gone";
}
