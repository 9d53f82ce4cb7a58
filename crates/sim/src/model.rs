//! The store's rows as what they mean, kept up to date commit by commit.

use std::collections::BTreeMap;

use bytes::Bytes;
use turnwise_queue::{Active, Job, Worker};
use turnwise_store::tuple::{Element, unpack};

use crate::ledger::JobKey;

/// A row of the keyspace, by its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// A job record.
    Job(JobKey),
    /// A piece of a job's options.
    Options(JobKey),
    /// One of the places that a job can be in.
    Place(JobKey, Place),
    /// A row of a worker: type and id, and which row.
    Worker(JobKey, WorkerRow),
    /// A row that tells nothing about a job or a worker.
    Other,
}

/// Where a job is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the pending queue.
    Pending(i64),
    /// Among the delayed.
    Delayed(i64),
    /// Among the active jobs of a worker.
    Active(String),
    /// Among the ended.
    Ended(i64),
}

/// The rows of a worker, other than the active ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerRow {
    /// `("workers", …)`
    Member,
    /// `("health", …)`
    Health,
    /// `("signal", …)`
    Signal,
    /// `("claims", …)`
    Claims,
}

/// What is known of one job.
#[derive(Debug, Clone, Default)]
pub struct JobRows {
    /// Its record.
    pub record: Option<Job>,
    /// Its record as stored.
    pub raw: Option<Bytes>,
    /// Its places, each with the row's value.
    pub places: BTreeMap<Place, Bytes>,
    /// Pieces of its options.
    pub pieces: usize,
}

impl JobRows {
    /// Whether no row is left.
    pub fn is_empty(&self) -> bool {
        self.record.is_none() && self.places.is_empty() && self.pieces == 0
    }
}

/// The meaning of a key; `None` if this table does not know it.
pub fn parse(key: &Bytes) -> Option<Row> {
    let elements: Vec<Element<'_>> = unpack(key).ok()?;
    let text = |n: usize| match elements.get(n) {
        Some(Element::String(text)) => Some(text.to_string()),
        _ => None,
    };
    let number = |n: usize| match elements.get(n) {
        Some(Element::Int(number)) => Some(*number),
        _ => None,
    };
    let tag = text(1)?;
    let pair = |first, second| Some((text(first)?, text(second)?));
    Some(match tag.as_str() {
        "jobs" => Row::Job(pair(2, 3)?),
        "options" => Row::Options(pair(2, 3)?),
        "pending" => Row::Place(pair(2, 4)?, Place::Pending(number(3)?)),
        "delayed" => Row::Place(pair(2, 4)?, Place::Delayed(number(3)?)),
        "ended" => Row::Place(pair(2, 4)?, Place::Ended(number(3)?)),
        "active" => Row::Place(pair(2, 4)?, Place::Active(text(3)?)),
        "workers" => Row::Worker(pair(2, 3)?, WorkerRow::Member),
        "health" => Row::Worker(pair(2, 3)?, WorkerRow::Health),
        "signal" => Row::Worker(pair(2, 3)?, WorkerRow::Signal),
        "claims" => Row::Worker(pair(2, 3)?, WorkerRow::Claims),
        "format" | "server" | "wake" | "workers_vs" => Row::Other,
        _ => return None,
    })
}

/// A job record.
pub fn job(key: &JobKey, value: &[u8]) -> Result<Job, serde_json::Error> {
    let mut job: Job = serde_json::from_slice(value)?;
    job.job_type.clone_from(&key.0);
    job.id.clone_from(&key.1);
    Ok(job)
}

/// An active row.
pub fn active(value: &[u8]) -> Result<Active, serde_json::Error> {
    serde_json::from_slice(value)
}

/// A worker's row.
pub fn worker(key: &JobKey, value: &[u8]) -> Result<Worker, serde_json::Error> {
    let mut worker: Worker = serde_json::from_slice(value)?;
    worker.id.clone_from(&key.1);
    Ok(worker)
}
