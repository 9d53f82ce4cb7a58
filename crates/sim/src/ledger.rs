//! What happens outside of the store: the operations of clients, and the runs of handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use turnwise_queue::NewJob;
use turnwise_queue::jobs::Added;
use turnwise_queue::unique::{Did as DidFound, Outcome};

use crate::trace::Site;

/// A job's type and id.
pub type JobKey = (String, String);

/// A worker's id and the number of its claim.
pub type ClaimKey = (String, u64);

/// The operation of a client.
#[derive(Debug, Clone)]
pub struct Op {
    /// What the client does.
    pub kind: OpKind,
    /// The jobs that it changes.
    pub jobs: Arc<[JobKey]>,
    /// The jobs to add, for `OpKind::Add`.
    pub new: Arc<[NewJob]>,
    /// Jobs that have the unique keys of others, and are replaced by these; or, for `OpKind::Edit`, the job and what it gets.
    pub replaced: Arc<[(JobKey, NewJob)]>,
    /// Jobs that it adds, and then replaces by others of its jobs.
    pub edited: Arc<[JobKey]>,
    /// Whether jobs are added only if they do not exist.
    pub once: bool,
}

impl Op {
    /// An operation on these jobs, other than an addition.
    fn on(kind: OpKind, jobs: Arc<[JobKey]>) -> Op {
        Op { kind, jobs, new: Arc::new([]), replaced: Arc::new([]), edited: Arc::new([]), once: false }
    }

    /// A change of the filters.
    pub fn of_filters() -> Op {
        Op::on(OpKind::Filter, Arc::new([]))
    }

    /// A change of the schedules.
    pub fn of_schedules() -> Op {
        Op::on(OpKind::Schedule, Arc::new([]))
    }

    /// A change of the groups.
    pub fn of_groups() -> Op {
        Op::on(OpKind::Group, Arc::new([]))
    }

    /// An operation on one job, other than an addition.
    pub fn of(kind: OpKind, job: &JobKey) -> Op {
        Op::on(kind, Arc::new([job.clone()]))
    }

    /// An addition, as its transaction has answered it before the commit. A job that was there, or whose unique key another one has, is not added.
    pub fn of_add(new: &[NewJob], outcomes: &[Outcome], once: bool) -> Op {
        let mut added: BTreeMap<JobKey, NewJob> = BTreeMap::new();
        let mut replaced: BTreeMap<JobKey, NewJob> = BTreeMap::new();
        let mut edited: BTreeSet<JobKey> = BTreeSet::new();
        for (new, outcome) in new.iter().zip(outcomes) {
            match outcome {
                Outcome::Added(Added::AlreadyThere | Added::KeyTaken(_)) => {}
                Outcome::Added(_) => {
                    let key = (new.job_type.clone(), new.id.clone());
                    replaced.remove(&key);
                    added.insert(key, new.clone());
                }
                Outcome::Found(found) => {
                    let key = (found.job_type.clone(), found.id.clone());
                    match found.did {
                        DidFound::Kept | DidFound::Rejected => {}
                        DidFound::RunsAgain => drop(added.insert(key, new.clone())),
                        DidFound::Replaced => match added.get_mut(&key) {
                            // What it waits for stays.
                            Some(before) => {
                                before.options.clone_from(&new.options);
                                edited.insert(key);
                            }
                            None => drop(replaced.insert(key, new.clone())),
                        },
                    }
                }
            }
        }
        let (jobs, new): (Vec<_>, Vec<_>) = added.into_iter().unzip();
        Op {
            new: new.into(),
            replaced: replaced.into_iter().collect(),
            edited: edited.into_iter().collect(),
            once,
            ..Op::on(OpKind::Add, jobs.into())
        }
    }

    /// An edit of a job, which gets the options, the summary, the locks and the start time of this one.
    pub fn of_edit(job: &JobKey, new: NewJob) -> Op {
        Op { replaced: Arc::new([(job.clone(), new)]), ..Op::of(OpKind::Edit, job) }
    }

    /// What the job gets of an edit, or of an addition that replaces it, if this is one.
    pub fn replaces(&self, job: &JobKey) -> Option<&NewJob> {
        self.replaced.iter().find(|(key, _)| key == job).map(|(_, new)| new)
    }
}

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// `jobs::add`.
    Add,
    /// `jobs::cancel`.
    Cancel,
    /// `jobs::restart`.
    Restart,
    /// `jobs::retry`.
    Retry,
    /// `jobs::set_priority`.
    SetClass,
    /// `filters::put` and `filters::remove`.
    Filter,
    /// `jobs::remove`.
    Remove,
    /// `edit::edit`.
    Edit,
    /// `edit::hold`.
    Hold,
    /// `edit::release`.
    Release,
    /// `schedules::put` and `schedules::remove`.
    Schedule,
    /// `groups::create` and `groups::close`.
    Group,
}

/// What a handler did in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Did {
    /// It still runs.
    Runs,
    /// It returned that it completed.
    Completed,
    /// It returned that it failed.
    Failed,
    /// It returned that it crashed, or it panicked.
    Crashed,
    /// It returned that it is too early.
    Snoozed,
    /// It returned that it stopped.
    Stopped,
    /// It was dropped.
    Dropped,
}

/// One run of a handler.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The site where it ran.
    pub site: Site,
    /// The job.
    pub job: JobKey,
    /// When it began, in µs since the world began.
    pub begun_us: i64,
    /// When it stopped running, in µs since the world began.
    pub done_us: i64,
    /// What it did.
    pub did: Did,
}

/// All runs of handlers, by claim.
pub type Executions = BTreeMap<ClaimKey, Execution>;
