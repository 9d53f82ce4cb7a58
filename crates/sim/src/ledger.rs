//! What happens outside of the store: the operations of clients, and the runs of handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnwise_queue::NewJob;

use crate::trace::Site;

/// A job's type and id.
pub type JobKey = (String, String);

/// A worker's id and the number of its claim.
pub type ClaimKey = (String, u64);

/// The operation of a client.
#[derive(Debug, Clone)]
pub struct Op {
    /// What the client does.
    pub kind: OpKind,
    /// The jobs that it changes.
    pub jobs: Arc<[JobKey]>,
    /// The jobs to add, for `OpKind::Add`.
    pub new: Arc<[NewJob]>,
    /// Whether jobs are added only if they do not exist.
    pub once: bool,
}

impl Op {
    /// A change of the filters.
    pub fn of_filters() -> Op {
        Op { kind: OpKind::Filter, jobs: Arc::new([]), new: Arc::new([]), once: false }
    }

    /// A change of the schedules.
    pub fn of_schedules() -> Op {
        Op { kind: OpKind::Schedule, jobs: Arc::new([]), new: Arc::new([]), once: false }
    }

    /// A change of the groups.
    pub fn of_groups() -> Op {
        Op { kind: OpKind::Group, jobs: Arc::new([]), new: Arc::new([]), once: false }
    }

    /// An operation on one job, other than an addition.
    pub fn of(kind: OpKind, job: &JobKey) -> Op {
        Op { kind, jobs: Arc::new([job.clone()]), new: Arc::new([]), once: false }
    }
}

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// `jobs::add`.
    Add,
    /// `jobs::cancel`.
    Cancel,
    /// `jobs::restart`.
    Restart,
    /// `jobs::retry`.
    Retry,
    /// `jobs::set_priority`.
    SetClass,
    /// `filters::put` and `filters::remove`.
    Filter,
    /// `jobs::remove`.
    Remove,
    /// `schedules::put` and `schedules::remove`.
    Schedule,
    /// `groups::create` and `groups::close`.
    Group,
}

/// What a handler did in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Did {
    /// It still runs.
    Runs,
    /// It returned that it completed.
    Completed,
    /// It returned that it failed.
    Failed,
    /// It returned that it crashed, or it panicked.
    Crashed,
    /// It returned that it is too early.
    Snoozed,
    /// It returned that it stopped.
    Stopped,
    /// It was dropped.
    Dropped,
}

/// One run of a handler.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The site where it ran.
    pub site: Site,
    /// The job.
    pub job: JobKey,
    /// When it began, in µs since the world began.
    pub begun_us: i64,
    /// When it stopped running, in µs since the world began.
    pub done_us: i64,
    /// What it did.
    pub did: Did,
}

/// All runs of handlers, by claim.
pub type Executions = BTreeMap<ClaimKey, Execution>;
