//! Tasks: kinds of jobs within a type, of which a worker may know some.
//!
//! *Model.* The type is the queue, with the slots that tenants share. A worker that states its tasks gets jobs of these tasks only, each up to its
//! cap if it has one; a worker that states none gets all jobs. A pass that meets a job which its worker does not take moves it out of the
//! queue, into a bucket of its task ([`crate::concurrency`]). A pass whose worker takes jobs of the task returns some of them first, as many as
//! it has room for. So jobs of a task that no worker knows hide no other jobs, however many they are, and cost each of them one move.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use turnwise_policy::eligibility::concurrency::{Bucket, Limit, MAX_LIMIT};
use turnwise_store::Transaction;

use crate::encoding::decode;
use crate::error::{Error, Result};
pub use crate::names::MAX_TASK_BYTES;
use crate::names::check_task;
use crate::{Keyspace, reads};

/// The most tasks of a worker.
pub const MAX_TASKS: usize = 200;

/// The tasks that a worker knows, each with the most jobs of it that the worker runs at the same time; 0 for as many as it has slots.
pub type KnownTasks = BTreeMap<String, u32>;

/// Which jobs a worker takes now.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    /// `None` takes all.
    known: Option<KnownTasks>,
    /// The number of its running jobs, of tasks with a cap.
    running: BTreeMap<String, u32>,
}

impl Tasks {
    /// Those of a worker, which runs these jobs now.
    pub async fn of_worker(
        tx: &Transaction,
        keys: &Keyspace,
        job_type: &str,
        worker: &str,
        known: Option<&KnownTasks>,
        most: usize,
    ) -> Result<Tasks> {
        /// The only field of an active row that is read.
        #[derive(Deserialize)]
        struct OfTask {
            #[serde(default)]
            task: Option<String>,
        }
        let mut tasks = Tasks { known: known.cloned(), running: BTreeMap::new() };
        if known.is_some_and(|known| known.values().any(|cap| *cap > 0)) {
            let read = |_: &Bytes, value: &Bytes| decode::<OfTask>("active row", value);
            for OfTask { task } in reads::list(tx, keys.active_of(job_type, worker), most, read).await? {
                tasks.starts(task.as_deref());
            }
        }
        Ok(tasks)
    }

    /// How many more jobs of a task the worker takes, as far as its tasks say.
    pub fn room(&self, task: Option<&str>) -> usize {
        let Some(known) = &self.known else { return usize::MAX };
        let task = task.unwrap_or_default();
        match known.get(task) {
            None => 0,
            Some(0) => usize::MAX,
            Some(cap) => cap.saturating_sub(self.running.get(task).copied().unwrap_or(0)) as usize,
        }
    }

    /// The limit of a job of this task, if the worker takes no more of them: the job waits in its bucket.
    pub fn refuses(&self, task: Option<&str>) -> Option<Limit> {
        (self.room(task) == 0).then(|| limit(task))
    }

    /// Counts a job that starts.
    pub(crate) fn starts(&mut self, task: Option<&str>) {
        if let Some(known) = &self.known
            && let Some(task) = task.filter(|task| known.get(*task).is_some_and(|cap| *cap > 0))
        {
            *self.running.entry(task.to_owned()).or_default() += 1;
        }
    }

    /// The names of the tasks of which the worker takes jobs now; empty for a worker that takes all jobs.
    pub fn name(&self) -> String {
        let known = self.known.iter().flat_map(BTreeMap::keys);
        known
            .map(|task| if self.room(Some(task)) > 0 { format!("{task}\n") } else { "\n".to_owned() })
            .collect()
    }
}

/// The limit in whose bucket a job of this task waits for a worker that takes it. Any number of its jobs may run.
fn limit(task: Option<&str>) -> Limit {
    Limit { bucket: Bucket::Task(task.unwrap_or_default().to_owned()), most: MAX_LIMIT }
}

/// Whether a worker may state these tasks.
///
/// # Errors
/// `Invalid`.
pub fn check_known(known: &KnownTasks) -> Result<()> {
    if known.is_empty() || known.len() > MAX_TASKS {
        let problem = format!(
            "must be 1 to {MAX_TASKS} tasks, not {}; without any, a worker gets jobs of all",
            known.len()
        );
        return Err(Error::Invalid { field: "tasks", problem });
    }
    known.keys().try_for_each(|task| check_task(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_takes_jobs_of_its_tasks_up_to_their_caps() {
        let known: KnownTasks = [("a".to_owned(), 0), ("b".to_owned(), 2)].into();
        let mut tasks = Tasks { known: Some(known.clone()), running: BTreeMap::new() };
        assert_eq!(
            [Some("a"), Some("b"), Some("c"), None].map(|task| tasks.room(task)),
            [usize::MAX, 2, 0, 0]
        );
        for task in [Some("a"), Some("b"), Some("b"), Some("b"), None] {
            tasks.starts(task);
        }
        assert_eq!([Some("a"), Some("b")].map(|task| tasks.room(task)), [usize::MAX, 0]);
        assert_eq!(Tasks::default().room(Some("c")), usize::MAX);
        assert_eq!((tasks.name().as_str(), Tasks::default().name().as_str()), ("a\n\n", ""));
        for wrong in [KnownTasks::new(), [(String::new(), 0)].into(), [("x".repeat(65), 0)].into()] {
            assert!(check_known(&wrong).is_err(), "{wrong:?}");
        }
        check_known(&known).unwrap();
    }
}
