//! The end of a run: the response to a one-shot `POST /_replicate`, and the history entries of checkpoints.

use serde::{Deserialize, Serialize};

use crate::seq::Seq;
use crate::stats::Stats;

/// The version of the replication id, and of the checkpoints that carry it.
pub const REPLICATION_ID_VERSION: u32 = 4;

/// The result of a run that did not fail. Serialised, it is CouchDB's response to a one-shot `POST /_replicate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Always true; failures are [`crate::Error`]s.
    pub ok: bool,
    /// Whether the source had nothing to check.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_changes: bool,
    /// This run's id, or the last one's if there were no changes.
    pub session_id: String,
    /// The target has every change up to this sequence.
    pub source_last_seq: Seq,
    /// [`REPLICATION_ID_VERSION`].
    pub replication_id_version: u32,
    /// This run first, then earlier runs, as far as checkpoints record them.
    pub history: Vec<Session>,
    /// Whether the run was stopped before its end. The next run resumes at its checkpoint.
    #[serde(skip)]
    pub stopped: bool,
    /// The run parked: it has nothing to do until the source's state differs from this token.
    #[serde(skip)]
    pub parked: Option<String>,
    /// The run's final numbers.
    #[serde(skip)]
    pub stats: Stats,
}

/// One run in a checkpoint's history. Its numbers are the sums of this run and the earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The run's id.
    pub session_id: String,
    /// When it started, as in HTTP headers (`Sat, 21 Nov 2026 08:54:30 GMT`).
    pub start_time: String,
    /// When this entry was last written.
    pub end_time: String,
    /// The sequence at which it started.
    pub start_last_seq: Seq,
    /// The sequence that it had reached.
    pub end_last_seq: Seq,
    /// The sequence at which a later run may start.
    pub recorded_seq: Seq,
    /// [`Stats::revisions_checked`].
    pub missing_checked: u64,
    /// [`Stats::missing_revisions_found`].
    pub missing_found: u64,
    /// [`Stats::docs_read`].
    pub docs_read: u64,
    /// [`Stats::docs_written`].
    pub docs_written: u64,
    /// [`Stats::doc_write_failures`].
    pub doc_write_failures: u64,
    /// [`Stats::bulk_get_attempts`].
    pub bulk_get_attempts: u64,
    /// [`Stats::bulk_get_docs`].
    pub bulk_get_docs: u64,
}

impl Session {
    /// Whether the run started at this sequence. The beginning of a database is a number or a string.
    pub(crate) fn began_at(&self, seq: &Seq) -> bool {
        self.start_last_seq == *seq || self.start_last_seq.is_zero() && seq.is_zero()
    }
}

impl Session {
    /// The numbers that the next session continues from.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            revisions_checked: self.missing_checked,
            missing_revisions_found: self.missing_found,
            docs_read: self.docs_read,
            docs_written: self.docs_written,
            doc_write_failures: self.doc_write_failures,
            bulk_get_attempts: self.bulk_get_attempts,
            bulk_get_docs: self.bulk_get_docs,
            ..Stats::default()
        }
    }
}
