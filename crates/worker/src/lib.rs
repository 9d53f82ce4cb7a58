//! Background workers: they claim jobs, run their handlers and report back.
//!
//! A worker is one incarnation of a process, for one job type, under an id that is never used twice. Its loop
//! waits for work (a watch, not polling), reads the queue's front, asks [`turnwise_policy::select`], claims in
//! one transaction, and starts a task per job ([`run`]). Nothing but rows of the store coordinates workers.
//!
//! Workers of one type watch each other ([`neighbours`]); a server speaks for those of other processes, in any
//! language ([`External`]), watches them ([`Monitor`]), holds their runs to their time ([`Deadlines`]), tells jobs of ends that they wait for ([`Dependencies`]), releases
//! paused jobs when filters change ([`Filters`]), removes
//! what ended long ago ([`Retention`]), and keeps its clock with the others' ([`Timekeeper`]). Servers are
//! members, too ([`join_nodes`]).
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
//! `examples/embedded.rs` is the whole of it. A [`JobHandler`] of its own is for types that write rows with the end
//! of a job.

mod accounts;
mod cycle;
mod deadlines;
mod dependencies;
mod events;
mod external;
mod fair_share;
mod fairness;
mod filters;
mod handler;
mod incarnation;
mod live;
mod locks;
mod membership;
mod monitor;
mod neighbours;
mod nodes;
mod record;
mod retention;
mod rotate;
mod run;
mod service;
mod timekeeper;
mod worker;

pub use deadlines::Deadlines;
pub use dependencies::Dependencies;
pub use events::{Membership, membership_events, owner};
pub use external::{Accepted, External, ExternalEnd, ExternalOptions, MAX_ACCEPTED, MAX_EXTERNAL_SLOTS};
pub use fairness::{FairRules, RotationRules, boost_of, usage_of};
pub use filters::Filters;
pub use handler::{JobContext, JobHandler, Outcome, handler_fn};
pub use live::Live;
pub use locks::{LockError, QueueRules, Weight, startable, weigh};
pub use membership::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT};
pub use monitor::{Monitor, MonitorOptions};
pub use nodes::{Joined, join_nodes};
pub use retention::{Retention, RetentionOptions};
pub use timekeeper::Timekeeper;
pub use worker::{Options, Tunables, Worker};
