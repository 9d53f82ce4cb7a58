//! Whether a job waits for a worker that takes its task.

use std::collections::BTreeSet;

use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_protocol::Reason;
use turnwise_queue::{Job, workers};

use crate::{Reader, Result};

/// Maximum number of tasks in a sentence.
const MAX_NAMED: usize = 5;

/// The workers of a type, as a job of a task sees them.
struct Known {
    workers: usize,
    /// Those that take jobs of the task.
    taking: usize,
    /// The tasks that the workers know.
    tasks: BTreeSet<String>,
}

/// The reason and the sentence of a job that waits for a worker that takes its task; `None` if it does not.
pub(crate) async fn look(reader: &Reader<'_>, job: &Job) -> Result<Option<(Reason, String)>> {
    let is_out = matches!(job.limited().map(|limit| &limit.bucket), Some(Bucket::Task(_)));
    if !is_out && !job.is_pending() {
        return Ok(None);
    }
    let task = job.task.as_deref().unwrap_or_default();
    let mut known = Known { workers: 0, taking: 0, tasks: BTreeSet::new() };
    for worker in workers::list(reader.tx, reader.keys, &job.job_type).await? {
        known.workers += 1;
        match worker.tasks {
            None => known.taking += 1,
            Some(tasks) => {
                known.taking += usize::from(tasks.contains_key(task));
                known.tasks.extend(tasks.into_keys());
            }
        }
    }
    Ok(match (known.workers, known.taking) {
        (0, _) if is_out => {
            Some((Reason::NoWorker, format!("No worker of type `{}` is registered.", job.job_type)))
        }
        (0, _) => None,
        (_, 0) => Some((Reason::NoWorkerForTask, known.none_takes(job))),
        _ if is_out => Some((Reason::TaskLimited, known.takes_later(job))),
        _ => None,
    })
}

impl Known {
    fn none_takes(&self, job: &Job) -> String {
        let mut named: Vec<String> =
            self.tasks.iter().take(MAX_NAMED).map(|task| format!("`{task}`")).collect();
        if self.tasks.len() > MAX_NAMED {
            named.push(format!("{} more", self.tasks.len() - MAX_NAMED));
        }
        let (named, workers) = (named.join(", "), self.of_type(job));
        match &job.task {
            Some(task) => format!("No worker knows its task `{task}`: {workers} registered, for {named}."),
            None => format!("It has no task: {workers} registered, only for {named}."),
        }
    }

    fn takes_later(&self, job: &Job) -> String {
        let task = job.task.as_deref().unwrap_or_default();
        format!(
            "{} of {} know its task `{task}`: it starts when one of them has a free slot for the task.",
            self.taking, self.workers
        )
    }

    fn of_type(&self, job: &Job) -> String {
        match self.workers {
            1 => format!("1 worker of type `{}` is", job.job_type),
            many => format!("{many} workers of type `{}` are", job.job_type),
        }
    }
}
