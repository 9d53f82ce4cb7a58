//! Two schemes that ignore tenants: first in, first out, and CouchDB's older rotation.

use std::collections::BTreeSet;

use super::{JobId, Scheme, View};

/// Jobs start in an order of times, whatever their tenants are.
pub(crate) struct InOrder {
    rotates: bool,
    waiting: BTreeSet<(i64, JobId)>,
}

impl InOrder {
    /// First come, first served. A continuous job keeps its slot for ever.
    pub(crate) fn fifo() -> InOrder {
        InOrder { rotates: false, waiting: BTreeSet::new() }
    }

    /// The longest running jobs stop for the longest waiting ones.
    pub(crate) fn round_robin() -> InOrder {
        InOrder { rotates: true, waiting: BTreeSet::new() }
    }

    fn row(&self, view: View<'_>, job: JobId) -> (i64, JobId) {
        let times = view.job(job);
        (if self.rotates { times.order_us } else { times.added_us }, job)
    }
}

impl Scheme for InOrder {
    fn added(&mut self, view: View<'_>, job: JobId) {
        self.waits(view, job);
    }

    fn waits(&mut self, view: View<'_>, job: JobId) {
        self.waiting.insert(self.row(view, job));
    }

    fn removed(&mut self, view: View<'_>, job: JobId, _: bool) {
        self.waiting.remove(&self.row(view, job));
    }

    fn charge(&mut self, _: View<'_>, _: JobId, _: i64) {}

    fn fill(&mut self, _: View<'_>, free: usize, claim: &mut dyn FnMut(JobId) -> bool) -> Vec<JobId> {
        let waiting = std::iter::from_fn(|| self.waiting.pop_first()).map(|(_, job)| job);
        waiting.filter(|job| claim(*job)).take(free).collect()
    }

    fn cycle(&mut self, view: View<'_>) -> Vec<JobId> {
        if !self.rotates {
            return Vec::new();
        }
        let mut running: Vec<_> =
            view.running.iter().copied().filter(|job| view.job(*job).continuous).collect();
        running.sort_unstable_by_key(|job| (view.job(*job).order_us, *job));
        running.truncate(view.rotation());
        running
    }
}
