//! Two schemes that ignore tenants: first in, first out, and CouchDB's older rotation.

use std::collections::BTreeSet;

use super::{JobId, Scheme, View};

/// First come, first served. A continuous job keeps its slot for ever.
#[derive(Default)]
pub(crate) struct Fifo {
    waiting: BTreeSet<(i64, JobId)>,
}

/// The longest running jobs stop for the longest waiting ones.
#[derive(Default)]
pub(crate) struct RoundRobin {
    waiting: BTreeSet<(i64, JobId)>,
}

fn first(waiting: &mut BTreeSet<(i64, JobId)>, count: usize) -> Vec<JobId> {
    std::iter::from_fn(|| waiting.pop_first()).map(|(_, job)| job).take(count).collect()
}

impl Scheme for Fifo {
    fn added(&mut self, view: View<'_>, job: JobId) {
        self.waits(view, job);
    }

    fn waits(&mut self, view: View<'_>, job: JobId) {
        self.waiting.insert((view.job(job).added_us, job));
    }

    fn removed(&mut self, view: View<'_>, job: JobId, _: bool) {
        self.waiting.remove(&(view.job(job).added_us, job));
    }

    fn charge(&mut self, _: View<'_>, _: JobId, _: i64) {}

    fn fill(&mut self, _: View<'_>, free: usize) -> Vec<JobId> {
        first(&mut self.waiting, free)
    }

    fn cycle(&mut self, _: View<'_>) -> Vec<JobId> {
        Vec::new()
    }
}

impl Scheme for RoundRobin {
    fn added(&mut self, view: View<'_>, job: JobId) {
        self.waits(view, job);
    }

    fn waits(&mut self, view: View<'_>, job: JobId) {
        self.waiting.insert((view.job(job).order_us, job));
    }

    fn removed(&mut self, view: View<'_>, job: JobId, _: bool) {
        self.waiting.remove(&(view.job(job).order_us, job));
    }

    fn charge(&mut self, _: View<'_>, _: JobId, _: i64) {}

    fn fill(&mut self, _: View<'_>, free: usize) -> Vec<JobId> {
        first(&mut self.waiting, free)
    }

    fn cycle(&mut self, view: View<'_>) -> Vec<JobId> {
        let mut running: Vec<_> =
            view.running.iter().copied().filter(|job| view.job(*job).continuous).collect();
        running.sort_unstable_by_key(|job| (view.job(*job).order_us, *job));
        running.truncate(view.rotation());
        running
    }
}
