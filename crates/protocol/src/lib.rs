//! The requests and answers of the `/v1` HTTP API, as plain data with their JSON Schema.
//!
//! The server reads and writes these types, the Rust client writes and reads them, and the OpenAPI document is made from
//! them: what the three say cannot differ. Requests refuse members that they do not know; answers may get new members, and
//! readers of answers ignore what they do not know.
//!
//! Units are in the names: `_us` is microseconds since the Unix epoch, `_ms` a length in milliseconds. Bounds of names
//! are in bytes of UTF-8. What a job carries ([`RawValue`](serde_json::value::RawValue)) is passed on as it was written.
//!
//! - [`jobs`]: what clients do: add, list, get, cancel, remove, wait.
//! - [`filters`]: which of the jobs that wait may start.
//! - [`after`]: what jobs wait for.
//! - [`locks`]: what a job locks while it runs.
//! - [`events`]: what the server-sent events of a job hold.
//! - [`workers`]: what workers in any language do: register, ping, accept, update, finish, fail, release, leave.
//! - [`tenants`] and [`why`]: who gets what, and why a job waits.
//! - [`locking`]: who locks what, and what jobs lock while they run.
//! - [`nodes`]: which servers share a store, and how it does.
//! - [`error`]: the one shape of every error.
//! - [`names`]: what types, ids and names may look like.

pub mod after;
pub mod error;
pub mod events;
pub mod filters;
pub mod jobs;
pub mod locking;
pub mod locks;
pub mod names;
pub mod nodes;
mod number;
mod object;
pub mod tenants;
pub mod why;
pub mod workers;

pub use after::{After, End, MAX_AFTER, Otherwise};
pub use error::{Error, codes};
pub use events::{JobEvent, Progress, ServerSentEvent};
pub use filters::{
    Action, Filter, Filters, Limited, LimitedBy, MAX_CONDITION_BYTES, MAX_FILTER_NAME_BYTES, MAX_FILTERS,
    MAX_NOTE_BYTES, PutFilter, RemovedFilter,
};
pub use jobs::{
    AddJob, AddJobs, Added, AddedJob, AddedJobs, Cancelled, Event, EventKind, IfExists, Job, Jobs, NewJob,
    Prioritized, Removed, Retried, RetriedJobs, RetriedState, SetPriority, State, Types, WaitAnswer,
};
pub use locking::{
    AskLocks, AskedLocks, LevelWeight, LikelyLocks, Lock, LockHow, LockMode, LockState, LockWeight, Locker,
    Lockers, UnknownLocks, Unlocked, WantedLock, WhyLocks,
};
pub use locks::{LockNames, LockWord, Locks, LocksAtLevel};
pub use names::Problem;
pub use nodes::{Failing, Node, Nodes, Store, StoreCounters, StoreLimits};
pub use object::Object;
pub use tenants::{Capacity, Counted, Fairness, Queue, QueuedJob, Tenant, TenantOrder, Tenants, TypeSummary};
pub use why::{Awaited, Before, DocumentWhy, Expected, Place, Reason, Why};
pub use workers::{
    Accept, Accepted, AcceptedJob, Answer, EndState, Ended, Fail, Finish, Left, Nothing, Pinged, Register,
    Registered, Release, RunningJob, Update, Updated, Worker, Workers,
};

/// Jobs that one request may add.
pub const MAX_ADDED: usize = 1_000;
/// Rows that a page of a listing holds at most, and unless the request says otherwise.
pub const MAX_LIMIT: usize = 1_000;
/// See [`MAX_LIMIT`].
pub const DEFAULT_LIMIT: usize = 100;
/// The longest that a request may wait for something, in ms.
pub const MAX_WAIT_MS: u64 = 300_000;
/// How long a request to wait for a job's end waits unless it says otherwise, in ms.
pub const DEFAULT_WAIT_MS: u64 = 60_000;
/// Jobs that wait are counted up to this; beyond, `…_more` says that there are more.
pub const MAX_COUNTED: usize = 10_000;
/// Jobs that a worker runs at the same time at most, and that one `accept` hands out.
pub const MAX_SLOTS: usize = 1_000;
/// Longest body of a request, in bytes, except for [`MAX_BATCH_BODY_BYTES`].
pub const MAX_BODY_BYTES: usize = 5 << 20;
/// Longest body of a request that adds many jobs, in bytes. What they write fits one transaction.
pub const MAX_BATCH_BODY_BYTES: usize = 8 << 20;
/// Largest options of a job, in bytes.
pub const MAX_OPTIONS_BYTES: usize = 4 << 20;
/// Largest summary, info or result, in bytes.
pub const MAX_INFO_BYTES: usize = 12 << 10;
/// How deep JSON may be nested, counted from the request's body.
pub const MAX_DEPTH: usize = 100;
/// Longest delay, in ms: ten years.
pub const MAX_DELAY_MS: u64 = 315_360_000_000;
/// Latest time that a job may be delayed to, in µs: the end of the year 9999.
pub const MAX_TIME_US: i64 = 253_402_300_799_999_999;
/// Most attempts that can be asked for.
pub const MAX_ATTEMPTS: u32 = 1_000_000;
/// Largest `timeout_ms` and `heartbeat_timeout_ms`, in ms: a year.
pub const MAX_TIMEOUT_MS: u64 = 31_536_000_000;
/// Longest reason of a failure in a request, in bytes. The server keeps the first 1,000.
pub const MAX_REASON_BYTES: usize = 64 << 10;
/// Highest claim number: what every JSON library reads exactly.
pub const MAX_CLAIM: u64 = (1 << 53) - 1;
