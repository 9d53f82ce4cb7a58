//! The requests and responses of the `/v1` HTTP API, as plain data with their JSON Schema.
//!
//! The server, the Rust client and the OpenAPI document all use these types, so they cannot disagree. Requests with unknown members are rejected.
//! Responses may get new members, and readers of responses ignore members that they do not know.
//!
//! Units are in the names: `_us` is microseconds since the Unix epoch, `_ms` a duration in milliseconds. Limits of names are in bytes of UTF-8. The
//! server passes a job's JSON values ([`RawValue`](serde_json::value::RawValue)) on as they were written.
//!
//! - [`jobs`]: operations of clients: add, list, get, cancel, remove, wait.
//! - [`edit`]: changes of jobs that do not run: edit, hold, release.
//! - [`filters`]: rules that decide which waiting jobs may start.
//! - [`bulk`]: one change to all jobs that meet a condition.
//! - [`after`]: dependencies of jobs.
//! - [`locks`]: the locks that a job declares.
//! - [`events`]: the data of a job's server-sent events.
//! - [`workers`]: operations of workers in any language: register, ping, accept, update, finish, fail, release, end, leave.
//! - [`tenants`] and [`why`]: each tenant's share and queue, and why a job waits.
//! - [`locking`]: which jobs hold or want locks, and requests for locks while a job runs.
//! - [`nodes`]: the servers that share a store, and the state of that store.
//! - [`groups`]: jobs that end together.
//! - [`schedules`]: jobs that the server adds again and again.
//! - [`types`]: what is stated of all jobs of a type.
//! - [`unique`]: unique keys of jobs.
//! - [`fleets`]: supervisors of worker processes, and their reports about themselves.
//! - [`webhooks`]: events that the server sends to URLs.
//! - [`indexes`]: the indexes of CouchDB servers that turnwise keeps up to date.
//! - [`error`]: the one shape of every error.
//! - [`json`]: the JSON that the server takes.
//! - [`names`]: the rules for types, ids and names.

/// Formats a value that has a secret, with these members only.
macro_rules! debug_without_secret {
    ($name:ident { $($shown:ident),* }) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($shown), &self.$shown))*
                    .finish_non_exhaustive()
            }
        }
    };
}

pub mod after;
mod answer;
pub mod bulk;
pub mod edit;
pub mod error;
pub mod events;
pub mod filters;
pub mod fleets;
pub mod groups;
pub mod history;
pub mod identities;
pub mod indexes;
pub mod inputs;
pub mod jobs;
pub mod json;
pub mod locking;
pub mod locks;
pub mod names;
pub mod nodes;
mod number;
mod object;
pub mod schedules;
pub mod stream;
pub mod tenants;
pub mod types;
pub mod unique;
pub mod webhooks;
pub mod why;
mod word;
pub mod workers;

pub use after::*;
pub use bulk::*;
pub use edit::*;
pub use error::*;
pub use events::*;
pub use filters::*;
pub use fleets::*;
pub use groups::*;
pub use history::*;
pub use identities::*;
pub use indexes::*;
pub use inputs::*;
pub use jobs::*;
pub use locking::*;
pub use locks::*;
pub use names::Problem;
pub use nodes::*;
pub use object::Object;
pub use schedules::*;
pub use tenants::*;
pub use types::*;
pub use unique::*;
pub use webhooks::*;
pub use why::*;
pub use workers::*;

/// Maximum number of ends of each kind in one request.
pub const MAX_ENDS: usize = 1_000;
/// Maximum number of jobs that one request may add.
pub const MAX_ADDED: usize = 1_000;
/// Maximum number of rows in one page of a listing.
pub const MAX_LIMIT: usize = 1_000;
/// Number of rows in one page of a listing, unless the request states another limit.
pub const DEFAULT_LIMIT: usize = 100;
/// Longest time that a request may wait for something, in ms.
pub const MAX_WAIT_MS: u64 = 300_000;
/// How long a request that waits for a job's end waits by default, in ms.
pub const DEFAULT_WAIT_MS: u64 = 60_000;
/// Waiting jobs are counted up to this number; beyond it, `…_more` states that there are more.
pub const MAX_COUNTED: usize = 10_000;
/// Maximum number of a worker's slots, and of the `limit` of an `accept` request.
pub const MAX_SLOTS: usize = 1_000;
/// Longest body of a request, in bytes. Requests that add many jobs have [`MAX_BATCH_BODY_BYTES`] instead.
pub const MAX_BODY_BYTES: usize = 5 << 20;
/// Longest body of a request that adds many jobs, in bytes. What such a request writes fits one transaction.
pub const MAX_BATCH_BODY_BYTES: usize = 8 << 20;
/// Longest body of a request that ends runs, in bytes: a result of [`MAX_RESULT_BYTES`] in base64 fits.
pub const MAX_ENDS_BODY_BYTES: usize = 12 << 20;
/// Largest options of a job, in bytes.
pub const MAX_OPTIONS_BYTES: usize = 4 << 20;
/// Largest summary, info or result, in bytes.
pub const MAX_INFO_BYTES: usize = 12 << 10;
/// Deepest nesting of JSON, counted from the request's body.
pub const MAX_DEPTH: usize = 100;
/// Longest delay, in ms: ten years.
pub const MAX_DELAY_MS: u64 = 315_360_000_000;
/// Latest time that a job may be delayed to, in µs: the end of the year 9999.
pub const MAX_TIME_US: i64 = 253_402_300_799_999_999;
/// Highest number of attempts that a request may set.
pub const MAX_ATTEMPTS: u32 = 1_000_000;
/// Largest `timeout_ms` and `heartbeat_timeout_ms`, in ms: a year.
pub const MAX_TIMEOUT_MS: u64 = 31_536_000_000;
/// Most tasks that a worker may state.
pub const MAX_TASKS: usize = 200;
/// Longest reason of a failure in a request, in bytes. The server keeps less.
pub const MAX_REASON_BYTES: usize = 64 << 10;
/// Longest trace of an error in a request, in bytes. The server keeps less.
pub const MAX_TRACE_BYTES: usize = 1 << 20;
/// The highest `[jobs] max_result_bytes`. The bound of results is 1 MB by default.
pub const MAX_RESULT_BYTES: usize = 8 << 20;
/// Longest media type of a result, in bytes.
pub const MAX_MEDIA_TYPE_BYTES: usize = 128;
/// Most lines of log in a request.
pub const MAX_LOG_LINES: usize = 1_000;
/// Largest options that a job's own page and answer show, in bytes.
pub const MAX_SHOWN_OPTIONS_BYTES: usize = 64 << 10;
/// Highest claim number: the highest integer that every JSON library reads exactly.
pub const MAX_CLAIM: u64 = (1 << 53) - 1;
