//! What a replication has done so far: the numbers of `_scheduler/jobs`, `_active_tasks` and the progress bar.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::seq::Seq;

/// A snapshot of a running replication. Serialised, it has the names and the shape of CouchDB's `info` object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Leaf revisions that the source's changes named.
    pub revisions_checked: u64,
    /// Those that the target did not have.
    pub missing_revisions_found: u64,
    /// Revisions read from the source.
    pub docs_read: u64,
    /// Revisions written to the target.
    pub docs_written: u64,
    /// Revisions that the target refused (401, 403, 413 per document); the replication went on without them.
    pub doc_write_failures: u64,
    /// Requests to `_bulk_get`.
    pub bulk_get_attempts: u64,
    /// Revisions that `_bulk_get` answered.
    pub bulk_get_docs: u64,
    /// Changes of the source that are not done yet, as far as the source says; `None` if it does not.
    pub changes_pending: Option<u64>,
    /// The sequence of the last checkpoint that was written, or found at the start.
    pub checkpointed_source_seq: Option<Seq>,
    /// The last sequence that the changes feed has named.
    pub source_seq: Option<Seq>,
    /// Everything up to here is on the target.
    pub through_seq: Option<Seq>,
    /// Bytes of documents and attachments written to the target. Not part of CouchDB's answers.
    #[serde(skip)]
    pub bytes_written: u64,
}

/// A number that the concurrent parts of one run count up together.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counting half of [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub revisions_checked: Count,
    pub missing_revisions_found: Count,
    pub docs_read: Count,
    pub docs_written: Count,
    pub doc_write_failures: Count,
    pub bulk_get_attempts: Count,
    pub bulk_get_docs: Count,
    pub bytes_written: Count,
}

impl Tally {
    /// The numbers so far; the sequences are the pipeline's.
    pub fn stats(&self) -> Stats {
        Stats {
            revisions_checked: self.revisions_checked.get(),
            missing_revisions_found: self.missing_revisions_found.get(),
            docs_read: self.docs_read.get(),
            docs_written: self.docs_written.get(),
            doc_write_failures: self.doc_write_failures.get(),
            bulk_get_attempts: self.bulk_get_attempts.get(),
            bulk_get_docs: self.bulk_get_docs.get(),
            bytes_written: self.bytes_written.get(),
            ..Stats::default()
        }
    }
}
