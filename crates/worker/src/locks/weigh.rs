//! How many pending jobs locks let start, and what one pending job weighs.

use async_recursion::async_recursion as boxed;
use turnwise_policy::predictive_queue::contention::Predicted;
use turnwise_policy::predictive_queue::line::line;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_queue::tenants::{self, Pending};
use turnwise_queue::{Job, Keyspace, Result};
use turnwise_store::{Store, Transaction};

use super::QueueRules;
use super::view::LocksView;
use crate::pass;

/// The maximum number of pending jobs that [`startable`] reads.
const MAX_COUNTED: usize = 20_000;
/// The number of pending jobs per read.
const COUNT_PAGE: usize = 1_000;

/// Which jobs [`startable`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Startable {
    /// All of them.
    All,
    /// Those that declare locks.
    Locking,
}

/// How many pending jobs of a type could start together, as far as locks are concerned: all jobs, or only those that declare locks.
/// Counts up to `most`, among the first [`MAX_COUNTED`] by tenant.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn startable(
    store: &Store,
    tx: &Transaction,
    keys: &Keyspace,
    rules: &QueueRules,
    job_type: &str,
    (which, most): (Startable, usize),
) -> Result<usize> {
    let now_us = store.runtime().now_us();
    let view = LocksView::read(tx, keys, &rules.levels).await?;
    let (mut startable, mut from) = (0, None);
    for _ in 0..MAX_COUNTED / COUNT_PAGE {
        let counts =
            |requests: &Requests| (which == Startable::All || !requests.is_none()) && view.is_free(requests);
        let page = tenants::page(tx, keys, job_type, from, COUNT_PAGE, counts).await?;
        let jobs: Vec<&Pending> = page.jobs.iter().map(|(_, pending)| pending).collect();
        startable += pass::startable(&jobs, &view, (job_type, rules), now_us).len();
        if startable >= most || page.next.is_none() {
            break;
        }
        from = page.next;
    }
    Ok(startable.min(most))
}

/// A pending job's weight.
#[derive(Debug)]
pub struct Weight {
    /// The weight against all held and requested locks, as a pass would compute it now.
    pub predicted: Predicted,
    /// The number of other jobs in the window that name a resource which it wants exclusively. Each makes it older by a
    /// tick.
    pub line: u64,
}

/// A pending job's weight within its window.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn weigh(
    tx: &Transaction,
    keys: &Keyspace,
    rules: &QueueRules,
    job: &Job,
    others: &[Pending],
) -> Result<Weight> {
    let view = LocksView::read(tx, keys, &rules.levels).await?;
    let line = line(&job.locks, others.iter().map(|other| &*other.locks));
    let predicted = view.running.weigh(&job.locks, rules.rules.least_base());
    Ok(Weight { predicted, line })
}
