//! What the queue has, in the form of the API.

use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_policy::eligibility::rate;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_protocol as api;
use turnwise_protocol::locking::BIG_LOCK;
use turnwise_protocol::{Lock, LockHow, LockMode, Locker};
use turnwise_queue::locks::{Entry, How, LockAt, Spot};
use turnwise_queue::{End, Job, Place};

use crate::Viewer;

/// Whether the job waits only for a time.
pub fn waits_for_time(job: &Job) -> bool {
    matches!(state(job), api::State::Delayed | api::State::Crashing)
}

/// The bucket that a limited job waits for.
pub fn limited(limit: &Limit) -> api::Limited {
    let mut of_key = None;
    let (by, name) = match &limit.bucket {
        Bucket::Task(name) => (api::LimitedBy::Task, name.clone()),
        Bucket::Filter(name) => (api::LimitedBy::Filter, name.clone()),
        Bucket::Reason(name) => (api::LimitedBy::Reason, name.clone()),
        Bucket::Rate(name) => match rate::parts(name) {
            (Some(filter), key) => {
                of_key = key.map(str::to_owned);
                (api::LimitedBy::Rate, filter.to_owned())
            }
            (None, name) => (api::LimitedBy::Rate, name.unwrap_or_default().to_owned()),
        },
    };
    api::Limited { by, name, key: of_key, limit: limit.most, running: None, per_ms: None, next_us: None }
}

/// A job's state. For a job outside of its tenant's queue, the state shows what the job waits for.
pub fn state(job: &Job) -> api::State {
    match &job.place {
        Place::Pending { .. } => api::State::Pending,
        Place::Blocked { .. } => api::State::Blocked,
        Place::Paused { .. } => api::State::Paused,
        Place::Limited { .. } => api::State::Limited,
        Place::Delayed { .. } | Place::Parked { .. } => api::State::Delayed,
        Place::Crashing { .. } => api::State::Crashing,
        Place::Active(run) if run.waits.is_some() => api::State::Waiting,
        Place::Active(_) => api::State::Running,
        Place::Ended(End::Completed) => api::State::Completed,
        Place::Ended(End::Failed) => api::State::Failed,
        Place::Ended(End::Cancelled) => api::State::Cancelled,
    }
}

/// A dependency in the form of the API, with that job's state.
pub fn awaits(after: turnwise_queue::After, job: Option<&Job>) -> api::Awaited {
    let accepted = after.accepted.into_iter().filter_map(|outcome| match outcome {
        DependencyEnd::Completed => Some(api::End::Completed),
        DependencyEnd::Failed => Some(api::End::Failed),
        DependencyEnd::Cancelled => Some(api::End::Cancelled),
        // Requests cannot contain this value.
        DependencyEnd::Removed => None,
    });
    let otherwise = match after.otherwise {
        Otherwise::Cancel => api::Otherwise::Cancel,
        Otherwise::Free => api::Otherwise::Free,
    };
    api::Awaited {
        job_type: after.job_type,
        id: after.id,
        state: job.map(state),
        accepted: accepted.collect(),
        otherwise,
    }
}

/// A job that blocks another one, in the form of the API. Of a job that the viewer may not read, only the level and the mode
/// of its lock are shown.
pub fn blocker(viewer: &dyn Viewer, by: Entry) -> Locker {
    let Entry { lock, how, job_type, id, tenant, since_us, .. } = by;
    let (mut lock, how) = (self::lock(lock), self::how(how));
    if !viewer.reads(&tenant) {
        lock.name = None;
        return Locker { lock, how, job_type: None, id: None, tenant: None, since_us };
    }
    let (job_type, id, tenant) = (Some(job_type), Some(id), Some(tenant));
    Locker { lock, how, job_type, id, tenant, since_us }
}

/// A lock, in the form of the API.
pub fn lock(lock: LockAt) -> Lock {
    let LockAt { spot: Spot { level, name }, mode, units } = lock;
    Lock { level: level.unwrap_or_else(|| BIG_LOCK.to_owned()), name, mode: lock_mode(mode), units }
}

/// A mode, in the form of the API.
pub fn lock_mode(mode: Mode) -> LockMode {
    match mode {
        Mode::Shared => LockMode::Shared,
        Mode::Exclusive => LockMode::Exclusive,
    }
}

/// What a job does with a lock, in the form of the API.
pub fn how(how: How) -> LockHow {
    match how {
        How::Holds => LockHow::Holds,
        How::Waits => LockHow::Waits,
        How::Reserved => LockHow::Reserved,
    }
}
