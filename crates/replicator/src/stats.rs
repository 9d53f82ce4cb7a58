//! The progress of a replication: the numbers of `_scheduler/jobs`, `_active_tasks` and the progress bar.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::seq::Seq;
use crate::unread::Unread;

/// A snapshot of a running replication. Serialised, it has the names and the shape of CouchDB's `info` object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Leaf revisions in the source's changes.
    pub revisions_checked: u64,
    /// Leaf revisions that the target did not have.
    pub missing_revisions_found: u64,
    /// Revisions read from the source.
    pub docs_read: u64,
    /// Revisions written to the target.
    pub docs_written: u64,
    /// Revisions that the target rejected permanently; the replication continued without them.
    pub doc_write_failures: u64,
    /// Revisions that the source names and did not deliver to the current run: the copy is incomplete. CouchDB does not report
    /// this number, and it is left out while it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub doc_read_failures: u64,
    /// The ids of the first documents among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread_docs: Vec<String>,
    /// Revisions requested by `_bulk_get`.
    pub bulk_get_attempts: u64,
    /// Revisions returned by `_bulk_get`.
    pub bulk_get_docs: u64,
    /// The source's changes that are not yet copied, as the source reports them; `None` if it does not.
    pub changes_pending: Option<u64>,
    /// The sequence of the last checkpoint that was written, or that was found at the start; `"0"` before the first one.
    pub checkpointed_source_seq: Option<Seq>,
    /// The last sequence in the changes feed.
    pub source_seq: Option<Seq>,
    /// The target has every change up to this sequence.
    pub through_seq: Option<Seq>,
    /// Why the source rejects its checkpoint, if it does: the checkpoint of the target alone counts. CouchDB does not have this, because
    /// its replication ends with an error then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_rejects_checkpoints: Option<String>,
    /// Bytes of documents and attachments written to the target. CouchDB does not report this number.
    #[serde(skip)]
    pub bytes_written: u64,
}

impl Stats {
    /// The larger of each number: the job's, or that of its last checkpoint. Either may be the more recent one.
    pub(crate) fn larger(self, other: &Stats) -> Stats {
        Stats {
            revisions_checked: self.revisions_checked.max(other.revisions_checked),
            missing_revisions_found: self.missing_revisions_found.max(other.missing_revisions_found),
            docs_read: self.docs_read.max(other.docs_read),
            docs_written: self.docs_written.max(other.docs_written),
            doc_write_failures: self.doc_write_failures.max(other.doc_write_failures),
            bulk_get_attempts: self.bulk_get_attempts.max(other.bulk_get_attempts),
            bulk_get_docs: self.bulk_get_docs.max(other.bulk_get_docs),
            ..self
        }
    }

    /// The numbers of a job whose latest run has the numbers `self`, and which had reached `before` when this run began.
    pub fn after(self, before: &Stats) -> Stats {
        Stats {
            revisions_checked: self.revisions_checked + before.revisions_checked,
            missing_revisions_found: self.missing_revisions_found + before.missing_revisions_found,
            docs_read: self.docs_read + before.docs_read,
            docs_written: self.docs_written + before.docs_written,
            doc_write_failures: self.doc_write_failures + before.doc_write_failures,
            // Each run asks for them again.
            doc_read_failures: self.doc_read_failures,
            unread_docs: self.unread_docs,
            bulk_get_attempts: self.bulk_get_attempts + before.bulk_get_attempts,
            bulk_get_docs: self.bulk_get_docs + before.bulk_get_docs,
            bytes_written: self.bytes_written + before.bytes_written,
            // Sequences keep their earlier value until the run has its own. The number of pending changes does not
            // carry over from the run before.
            checkpointed_source_seq: self
                .checkpointed_source_seq
                .or_else(|| before.checkpointed_source_seq.clone()),
            source_seq: self.source_seq.or_else(|| before.source_seq.clone()),
            through_seq: self.through_seq.or_else(|| before.through_seq.clone()),
            changes_pending: self.changes_pending,
            source_rejects_checkpoints: self.source_rejects_checkpoints,
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A counter that the concurrent parts of one run share.
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

/// The counters of [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub revisions_checked: Count,
    pub missing_revisions_found: Count,
    pub docs_read: Count,
    pub docs_written: Count,
    pub doc_write_failures: Count,
    pub unread: Unread,
    pub bulk_get_attempts: Count,
    pub bulk_get_docs: Count,
    pub bytes_written: Count,
}

impl Tally {
    /// The numbers so far. The pipeline adds the sequences.
    pub fn stats(&self) -> Stats {
        Stats {
            revisions_checked: self.revisions_checked.get(),
            missing_revisions_found: self.missing_revisions_found.get(),
            docs_read: self.docs_read.get(),
            docs_written: self.docs_written.get(),
            doc_write_failures: self.doc_write_failures.get(),
            doc_read_failures: self.unread.revisions(),
            unread_docs: self.unread.docs(),
            bulk_get_attempts: self.bulk_get_attempts.get(),
            bulk_get_docs: self.bulk_get_docs.get(),
            bytes_written: self.bytes_written.get(),
            ..Stats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_job_go_on_where_its_last_run_ended() {
        let seq = |text: &str| Some(Seq::from(&serde_json::json!(text)));
        let before = Stats { docs_written: 20, docs_read: 21, through_seq: seq("21-x"), ..Stats::default() };
        let began = Stats::default().after(&before);
        assert_eq!(began, before);
        let run = Stats { docs_written: 5, docs_read: 5, through_seq: seq("26-y"), ..Stats::default() };
        let after = run.after(&before);
        assert_eq!((after.docs_written, after.docs_read, after.through_seq), (25, 26, seq("26-y")));
    }
}
