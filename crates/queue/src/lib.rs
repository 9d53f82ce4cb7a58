//! Jobs as rows: the keyspace, and every transaction on it.
//!
//! Every function takes the [`Transaction`](turnwise_store::Transaction) first, so that callers can compose them: one
//! transaction writes a document and its job. Time is an argument. A job is in exactly one [`Place`].
//!
//! - [`jobs`]: what clients do: add, get, list, cancel, remove.
//! - [`edit`]: what they change at jobs that do not run.
//! - [`place`]: where a job is, and where it can go from there.
//! - [`claims`]: what workers do: claim, update, end a run; the claim fences every write.
//! - [`workers`]: membership: register, ping, leave, and the removal of dead workers.
//! - [`locks`]: the locks that running jobs hold and wait for.
//! - [`unique`]: jobs of which only one may exist at a time for a key.
//! - [`parking`]: jobs that wait for a change of their source.
//! - [`dependencies`]: jobs that wait for other jobs to end.
//! - [`followers`]: jobs that get the results of others; [`rerun_followers`]: those that run again after them.
//! - [`filters`]: which waiting jobs may start.
//! - [`selection`]: jobs that meet a condition.
//! - [`listing`]: the same, newest or oldest first.
//! - [`bulk`]: one change to all of them.
//! - [`concurrency`]: how many of them run at the same time.
//! - [`check`]: the invariants of the rows.
//! - [`counts`]: how many jobs are in each place.
//! - [`tasks`]: kinds of jobs within a type, of which a worker may know some.
//! - [`secrets`]: members of options that only the workers of a type see.
//! - [`output`]: what runs leave beside the record: results, errors, lines of log.
//! - [`schedules`]: jobs that are added at the instants of a calendar.
//! - [`groups`]: jobs whose ends are counted, and after the last of which another job is added.
//! - [`ended`], [`failures`]: jobs that have ended, and why they failed.
//! - [`history`]: samples over time.
//! - [`events`]: what happens to jobs, in order.
//! - [`webhooks`]: who is sent which events.
//! - [`tenants`]: the tenants with pending jobs, and their queues.
//! - [`usage`]: what was charged to tenants.
//! - [`nodes`]: the servers of a store.
//! - [`fleets`]: what supervisors of workers report.

mod after;
pub mod bulk;
pub mod check;
pub mod claims;
pub mod clock;
pub mod concurrency;
mod context;
pub mod counts;
mod cover;
pub mod deadlines;
pub mod dependencies;
pub mod edit;
mod encoding;
pub mod ended;
mod error;
pub mod events;
pub mod failures;
pub mod filters;
pub mod fleets;
pub mod followers;
mod format;
mod group_counts;
mod group_recount;
mod group_row;
pub mod groups;
pub mod history;
mod index_row;
mod input;
mod job;
pub mod jobs;
pub mod keyspace;
mod lifetime;
mod lifetime_rows;
pub mod lifetimes;
pub mod listing;
pub mod locks;
mod member;
pub mod modes;
mod names;
pub mod nodes;
pub mod off_queue;
pub mod output;
mod parked;
pub mod parking;
mod paused_row;
mod pieces;
pub mod place;
pub mod rates;
mod reads;
pub mod reason_class;
mod record;
pub mod rerun_followers;
mod rows;
pub mod schedules;
pub mod sealing;
pub mod secrets;
pub mod selection;
mod spec;
mod stored_result;
pub mod tags;
pub mod tasks;
pub mod tenants;
mod terms;
mod timeouts;
pub mod trace;
mod transition;
mod type_terms;
pub mod types;
mod types_with_jobs;
pub mod unique;
mod unique_key;
mod unique_rows;
pub mod usage;
pub mod webhooks;
mod worker_row;
pub mod workers;

pub use after::await_inputs;
pub use context::{Context, RunKey};
pub use dependencies::{After, MAX_AFTER};
pub use error::{Error, Result};
pub use format::{Copying, Format};
pub use input::{Input, Inputs, MAX_INPUT_NAME_BYTES, MAX_INPUTS, MAX_INPUTS_BYTES};
pub use job::{
    Active, Claim, DEFAULT_MAX_HISTORY, Event, EventKind, Job, JobFields, MAX_REASON_BYTES, Parked, State,
    Then,
};
pub use keyspace::Keyspace;
pub use lifetime::{Lifetime, MAX_LIFETIME_US};
pub use member::{Callback, GroupCounts, Member};
pub use modes::Mode;
pub use nodes::{NODE_TYPE, NodeOptions};
pub use output::{JobResult, Kept, LogLine, RunError};
pub use pieces::{read_pieces, read_small_pieces, write_pieces};
pub use place::{End, Holder, Place, Run};
pub use spec::{
    DEFAULT_TENANT, JobSpec, MAX_ID_BYTES, MAX_INFO_BYTES, MAX_OPTIONS_BYTES, MAX_PRIORITY, MAX_REASONS,
    MIN_PRIORITY, NewJob, Scheduled,
};
pub use terms::{DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_SNOOZES, Retry, StatedTerms, Terms};
pub use turnwise_policy::timestamp::{parse_timestamp, timestamp};
pub use workers::{Bounds, Health, MAX_WORKER_NAME_BYTES, Worker};
