//! The jobs that a worker skips for their owners, and when it may claim them itself. The owner of a job is the worker
//! whose part of the queue the job is in.

use std::collections::BTreeSet;

use crate::event::Event;

/// The jobs that are skipped for their owners, and the end of the pause for which they are skipped.
#[derive(Default)]
pub(crate) struct SkippedJobs(Option<(BTreeSet<String>, Event)>);

impl SkippedJobs {
    /// Notes the jobs that a pass has skipped. The pause continues while one of the jobs from its beginning is still
    /// skipped. If all of them are gone, their owners are active, and the jobs skipped now begin a new pause. So no job
    /// is skipped for longer than two pauses, whatever jobs come and go before it.
    pub(crate) fn note(&mut self, skipped: BTreeSet<String>, pause: impl FnOnce() -> Event) {
        let since_before = self.0.take().and_then(|(mut before, until)| {
            before.retain(|id| skipped.contains(id));
            (!before.is_empty()).then_some((before, until))
        });
        self.0 = since_before.or_else(|| (!skipped.is_empty()).then(|| (skipped, pause())));
    }

    /// Returns the jobs that were skipped for long enough; never returns if there are none.
    pub(crate) async fn expired(&mut self) -> BTreeSet<String> {
        match &mut self.0 {
            Some((_, until)) => until.happens().await,
            None => std::future::pending().await,
        }
        self.0.take().map(|(skipped, _)| skipped).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use turnwise_store::{Runtime, runtime};

    use super::*;

    fn jobs(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_skipped_job_expires_whatever_jobs_come_before_it() {
        let runtime: Arc<dyn Runtime> = Arc::new(runtime::System);
        let begun = Cell::new(0);
        let mut skipped_jobs = SkippedJobs::default();
        let note = |skipped_jobs: &mut SkippedJobs, ids: &[&str]| {
            let over =
                if begun.get() == 0 { Event::default() } else { Event::after(&runtime, Duration::ZERO) };
            skipped_jobs.note(jobs(ids), || {
                begun.set(begun.get() + 1);
                over
            });
        };
        note(&mut skipped_jobs, &["b", "c"]);
        // One job goes, and others come before and behind it: the pause of the remaining jobs continues.
        note(&mut skipped_jobs, &["a", "c", "d"]);
        note(&mut skipped_jobs, &["a", "c", "e"]);
        assert_eq!(begun.get(), 1);
        // All of them are gone: their owner is active, and the rest begins a new pause.
        note(&mut skipped_jobs, &["a", "e"]);
        assert_eq!(begun.get(), 2);
        note(&mut skipped_jobs, &["e", "f"]);
        assert_eq!(skipped_jobs.expired().await, jobs(&["e"]));
        // Once they were claimed, or could not be, a new pause begins.
        note(&mut skipped_jobs, &["e", "f"]);
        assert_eq!(begun.get(), 3);
        note(&mut skipped_jobs, &[]);
        assert!(skipped_jobs.0.is_none());
    }
}
