//! The progress of a replication: the numbers of `_scheduler/jobs`, `_active_tasks` and the progress bar.

use serde::{Deserialize, Serialize};
use turnwise_store::metrics::Counter;

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
        self.with(other, u64::max)
    }

    /// The numbers of a job whose latest run has the numbers `self`, and which had reached `before` when this run began.
    ///
    /// The revisions that were not delivered do not carry over, because each run asks for them again, nor does the number of pending
    /// changes. Sequences keep their earlier value until the run has its own.
    pub fn after(self, before: &Stats) -> Stats {
        let sum = self.with(before, |run, before| run + before);
        Stats {
            bytes_written: sum.bytes_written + before.bytes_written,
            checkpointed_source_seq: sum
                .checkpointed_source_seq
                .or_else(|| before.checkpointed_source_seq.clone()),
            source_seq: sum.source_seq.or_else(|| before.source_seq.clone()),
            through_seq: sum.through_seq.or_else(|| before.through_seq.clone()),
            ..sum
        }
    }

    /// The counts of both, combined by `by`, and everything else of `self`.
    fn with(self, other: &Stats, by: impl Fn(u64, u64) -> u64) -> Stats {
        Stats {
            revisions_checked: by(self.revisions_checked, other.revisions_checked),
            missing_revisions_found: by(self.missing_revisions_found, other.missing_revisions_found),
            docs_read: by(self.docs_read, other.docs_read),
            docs_written: by(self.docs_written, other.docs_written),
            doc_write_failures: by(self.doc_write_failures, other.doc_write_failures),
            bulk_get_attempts: by(self.bulk_get_attempts, other.bulk_get_attempts),
            bulk_get_docs: by(self.bulk_get_docs, other.bulk_get_docs),
            ..self
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The counters of [`Stats`], which the concurrent parts of one run share.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub revisions_checked: Counter,
    pub missing_revisions_found: Counter,
    pub docs_read: Counter,
    pub docs_written: Counter,
    pub doc_write_failures: Counter,
    pub unread: Unread,
    pub bulk_get_attempts: Counter,
    pub bulk_get_docs: Counter,
    pub bytes_written: Counter,
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
