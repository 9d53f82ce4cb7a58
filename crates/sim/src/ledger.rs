//! What is known outside of the store: what clients asked for, and what handlers did.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnwise_queue::NewJob;

use crate::trace::Place;

/// A job's type and id.
pub type JobKey = (String, String);

/// A worker's id and the number of its claim.
pub type ClaimKey = (String, u64);

/// What a client is doing.
#[derive(Debug, Clone)]
pub struct Op {
    /// To what end.
    pub kind: OpKind,
    /// To which jobs.
    pub jobs: Arc<[JobKey]>,
    /// What they shall be, if they are added.
    pub new: Arc<[NewJob]>,
    /// They are added only if they are not there.
    pub once: bool,
}

impl Op {
    /// A change of the filters.
    pub fn of_filters() -> Op {
        Op { kind: OpKind::Filter, jobs: Arc::new([]), new: Arc::new([]), once: false }
    }

    /// What is done to one job, other than to add it.
    pub fn of(kind: OpKind, job: &JobKey) -> Op {
        Op { kind, jobs: Arc::new([job.clone()]), new: Arc::new([]), once: false }
    }
}

/// The things that clients do.
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
    /// `jobs::set_class`.
    SetClass,
    /// `filters::put` and `filters::remove`.
    Filter,
    /// `jobs::remove`.
    Remove,
}

/// What a handler did in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Did {
    /// It runs.
    Runs,
    /// It returned that it completed.
    Completed,
    /// It returned that it failed.
    Failed,
    /// It returned that it crashed, or it panicked.
    Crashed,
    /// It returned that it stopped.
    Stopped,
    /// It was dropped.
    Dropped,
}

/// One run of a handler.
#[derive(Debug, Clone)]
pub struct Execution {
    /// Where.
    pub place: Place,
    /// Of which job.
    pub job: JobKey,
    /// When it began, in µs since the world began.
    pub begun_us: i64,
    /// When it did something else than to run, in µs since the world began.
    pub done_us: i64,
    /// What it did.
    pub did: Did,
}

/// All runs of handlers, by claim.
pub type Executions = BTreeMap<ClaimKey, Execution>;
