//! Arguments that several operations share.

use turnwise_store::Transaction;

use crate::{Claim, Kept, Keyspace};

/// The transaction in which a worker's operation changes jobs of one type, and what is recorded with the change.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The transaction.
    pub tx: &'a Transaction,
    /// Where the rows are.
    pub keys: &'a Keyspace,
    /// The type of the jobs.
    pub job_type: &'a str,
    /// The time of the change, in µs since 1970.
    pub now_us: i64,
    /// How much of its output a job keeps.
    pub kept: Kept,
}

impl<'a> Context<'a> {
    /// A context of these parts. A job keeps so many history entries, and as much other output as by default.
    pub fn new(
        tx: &'a Transaction,
        keys: &'a Keyspace,
        job_type: &'a str,
        now_us: i64,
        max_history: usize,
    ) -> Self {
        Self { tx, keys, job_type, now_us, kept: Kept::history(max_history) }
    }
}

/// Names a run: a job under a claim.
#[derive(Debug, Clone, Copy)]
pub struct RunKey<'a> {
    /// The job's type.
    pub job_type: &'a str,
    /// The job's id.
    pub id: &'a str,
    /// The claim under which it runs.
    pub claim: &'a Claim,
}

impl<'a> RunKey<'a> {
    /// The run of a job under a claim.
    pub fn new(job_type: &'a str, id: &'a str, claim: &'a Claim) -> Self {
        Self { job_type, id, claim }
    }
}
