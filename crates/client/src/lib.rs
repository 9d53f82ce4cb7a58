//! The Rust client of turnwise's `/v1` HTTP API.
#![doc = include_str!("../README.md")]

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
