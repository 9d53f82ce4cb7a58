//! The Rust client of turnwise's `/v1` HTTP API.
//!
//! ```no_run
//! use turnwise_client::{AddJob, Client};
//!
//! # async fn example() -> turnwise_client::Result<()> {
//! let client = Client::new("http://127.0.0.1:7984")?;
//! let options = serde_json::value::to_raw_value(&serde_json::json!({ "to": "jan@example.org" })).expect("it is JSON");
//! let added = client.add("mail", AddJob { options: Some(options), ..AddJob::default() }).await?;
//! let job = client.wait("mail", &added.id, None).await?.job;
//! println!("{:?}: {:?}", job.state, job.result);
//! # Ok(()) }
//! ```
//!
//! The client repeats a request that got no answer, or that the server cannot answer now, if repeating it is harmless:
//! see each method. It does so after a backoff with jitter, for as long as [`Client::retry_for`] allows. A gateway that cuts requests
//! while they wait for a job or an event only makes their waits shorter. Where several
//! servers share a store, the client takes all of their URLs, and fails over to the next one when one does not answer.
//! [`work`] is an external worker: it registers, pings, accepts jobs, runs them, and reports the end of each run until
//! the server acknowledges it.

mod backoff;
mod bulk;
mod client;
mod error;
mod events;
mod follow;
mod groups;
mod identities;
mod jobs;
mod output;
mod schedules;
mod servers;
mod settings;
mod sse;
mod stream;
mod tasks;
mod waits;
mod worker;

pub use client::Client;
pub use error::{Error, Result};
pub use events::{Events, JobUpdate};
pub use jobs::{CountJobs, ListIndexes, ListJobs, ListLocks, ListTenants, Pages};
pub use output::{JobResult, LogLines, LogUpdate};
pub use stream::EventsOfJobs;
pub use tasks::{Handle, Task, TaskError, Worker};
pub use tokio_util::sync::CancellationToken;
pub use turnwise_protocol as protocol;
pub use turnwise_protocol::{
    AddJob, Added, AddedJob, Before, Bulk, BulkAction, BulkState, Capacity, CountBy, CountPage, CountedJobs,
    Demand, DocumentWhy, Expected, Failure, Failures, Fairness, Found, FoundDid, IfExists, Index, Job,
    JobCounts, ListOrder, Lock, LockHow, LockMode, LockNames, LockWord, Locker, Locks, LocksAtLevel,
    MatchingJobs, NewJob, Node as NodeInfo, Nodes, OnConflict, Position, PutBulk, Queue, QueuedJob, Reason,
    State, Tenant, TenantDemand, TenantOrder, Tenants, Token as TokenInfo, TypeSummary, Unique, UniqueMode,
    UniqueWithin, User as UserInfo, WaitAnswer, Why, Worker as WorkerInfo,
};
pub use worker::{LockError, Outcome, Run, RunError, WorkerOptions, work};
