//! What the replications of a process have done, for metrics. Their requests are counted by [`Client::metrics`](turnwise_outbound::Client::metrics).

use turnwise_store::metrics::{Counter, Gauge};

use crate::stats::Stats;

/// The metrics of all replications of a process.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Revisions read from sources.
    pub docs_read: Counter,
    /// Revisions written to targets.
    pub docs_written: Counter,
    /// Revisions that targets rejected permanently.
    pub doc_write_failures: Counter,
    /// Bytes of documents and attachments written to targets.
    pub bytes_written: Counter,
    /// The changes that the sources of the running replications report as not yet copied.
    pub changes_pending: Gauge,
    /// Feeds of changes that ended with an error, which ended the run.
    pub reader_deaths: Counter,
    /// Checkpoints written.
    pub checkpoints: Counter,
    /// Checkpoints that could not be written.
    pub checkpoint_failures: Counter,
    /// Runs that began.
    pub runs: Counter,
    /// Runs that ended with an error before they had copied anything.
    pub failed_starts: Counter,
}

/// The part of one run in the metrics: what it has counted already.
pub(crate) struct Part<'a> {
    metrics: &'a Metrics,
    counted: Stats,
    changes_pending: i64,
}

impl<'a> Part<'a> {
    /// Of a run that begins with these numbers.
    pub fn new(metrics: &'a Metrics, before: &Stats) -> Part<'a> {
        metrics.runs.add(1);
        Part { metrics, counted: before.clone(), changes_pending: 0 }
    }

    /// Counts what has come since the last call.
    pub fn count(&mut self, stats: &Stats) {
        let Metrics { docs_read, docs_written, doc_write_failures, bytes_written, changes_pending, .. } =
            self.metrics;
        let more = |counter: &Counter, now: u64, before: u64| counter.add(now.saturating_sub(before));
        more(docs_read, stats.docs_read, self.counted.docs_read);
        more(docs_written, stats.docs_written, self.counted.docs_written);
        more(doc_write_failures, stats.doc_write_failures, self.counted.doc_write_failures);
        more(bytes_written, stats.bytes_written, self.counted.bytes_written);
        let pending = stats.changes_pending.map_or(0, |pending| i64::try_from(pending).unwrap_or(i64::MAX));
        changes_pending.add(pending - self.changes_pending);
        (self.counted, self.changes_pending) = (stats.clone(), pending);
    }

    /// Counts an error that ended the run.
    pub fn failed(&self, before: &Stats) {
        let copied_nothing = self.counted.revisions_checked == before.revisions_checked;
        self.metrics.failed_starts.add(u64::from(copied_nothing));
    }
}

/// A run that has ended has no pending changes.
impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.metrics.changes_pending.add(-self.changes_pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_only_what_is_new_and_its_pending_changes_end_with_it() {
        let metrics = Metrics::default();
        let before = Stats { docs_written: 10, ..Stats::default() };
        let mut part = Part::new(&metrics, &before);
        part.count(&Stats { docs_written: 13, changes_pending: Some(7), ..Stats::default() });
        part.count(&Stats { docs_written: 15, changes_pending: Some(4), ..Stats::default() });
        assert_eq!((metrics.docs_written.get(), metrics.changes_pending.get()), (5, 4));
        drop(part);
        assert_eq!(metrics.changes_pending.get(), 0);
    }
}
