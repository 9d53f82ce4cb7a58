//! Background workers: they claim jobs, run their handlers and record the results.
//!
//! A worker runs jobs of one type, under an id that is used only once. Its loop watches the store for new work instead
//! of polling. It then reads the head of the queue, calls [`turnwise_policy::schedule`], and claims the chosen jobs,
//! all in one transaction. For each claimed job it spawns a task ([`run`]). Only rows of the store coordinate workers.
//!
//! Workers of one type monitor each other's heartbeats ([`neighbours`]). A server:
//! - acts for external workers, written in any language ([`External`]), and monitors them ([`Monitor`]);
//! - enforces the timeouts of their runs ([`Deadlines`]);
//! - releases blocked jobs when their dependencies have ended ([`settle_dependencies`]);
//! - releases paused jobs when filters change ([`release_filtered`]), and removes the rows of starts ([`remove_starts`]);
//! - removes jobs that ended long ago ([`Retention`]);
//! - records events, while a client follows them ([`Recorder`]);
//! - keeps its clock in step with the store's ([`keep_clock`]).
//!
//! Servers are members, too ([`join_nodes`]).
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use turnwise_worker::{JobContext, Options, Outcome, Worker, handler_fn};
//! # async fn example(store: turnwise_store::Store) -> turnwise_queue::Result<()> {
//! let greet = handler_fn(|job: JobContext| async move {
//!     println!("hello {}", job.options);
//!     Outcome::completed(&serde_json::json!({ "greeted": true }))
//! });
//! let worker = Worker::start(store, Default::default(), "greet", Arc::new(greet), Options::default()).await?;
//! worker.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! The crate `turnwise` makes this a program in a few lines. A job type needs its own [`JobHandler`] only if it writes rows in
//! the transaction that ends a job.

mod accounts;
mod claimer;
mod counts;
mod deadlines;
mod demand;
mod dependencies;
mod event;
mod events;
mod external;
mod fair_share;
mod fairness;
mod filters;
mod first_poll;
mod groups;
mod handler;
mod incarnation;
mod lifetimes;
mod line;
mod live;
mod locks;
mod log_bounds;
mod membership;
mod metrics;
mod monitor;
mod neighbours;
mod nodes;
mod options;
mod pass;
mod passage;
mod rates;
mod record;
mod recorder;
mod retention;
mod run;
mod schedules;
mod service;
mod spans;
mod sync;
mod tenant_filter;
mod timekeeper;
mod times;
mod worker;

pub use counts::fold_counts;
pub use deadlines::Deadlines;
pub use demand::{Runnable, runnable};
pub use dependencies::settle_dependencies;
pub use events::{Membership, membership_events, owner};
pub use external::{
    Accepted, External, ExternalEnd, Given, MAX_ACCEPTED, MAX_EXTERNAL_SLOTS, Pinged, Registration, RunEnd,
    Wanted,
};
pub use fair_share::TenantCharges;
pub use fairness::{FairRules, RotationRules, usage_of};
pub use filters::{holds as filter_holds, release_filtered};
pub use groups::Groups;
pub use handler::{JobContext, JobHandler, Outcome, handler_fn};
pub use lifetimes::settle_lifetimes;
pub use live::Live;
pub use locks::{LockError, QueueRules, Startable, Weight, startable, weigh};
pub use log_bounds::{INTERVAL as LOG_SWEEP_INTERVAL, LogBounds};
pub use metrics::{
    CrashKind, JOB_BOUNDS_US, MAX_TASKS_OF_TYPE, MAX_TYPES, Metrics, OTHER, RunResult, TaskMetrics,
    TypeMetrics,
};
pub use monitor::Monitor;
pub use nodes::{Joined, join_nodes};
pub use options::{Options, Tunables};
pub use pass::{Passes, QueueHead, compared, explain};
pub use passage::Passage;
pub use rates::remove_starts;
pub use recorder::{EventRules, Recorder};
pub use retention::{DEFAULT_TENANT_LOG_BYTES, Retention, RetentionOptions};
pub use schedules::Schedules;
pub use spans::{
    ChildSpan, MAX_CHILDREN, MAX_REASON_BYTES, Producer, RunSpans, Span, SpanKind, SpanSink, SpanValue, Spans,
};
pub use tenant_filter::TenantFilter;
pub use timekeeper::keep_clock;
pub use times::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT};
pub use worker::Worker;
