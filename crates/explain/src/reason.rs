//! The reason for a job's state, as a code and as a sentence, and its expected start. Pure functions of a snapshot of
//! the type and the job's position.

use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_protocol::{Awaited, Expected, Limited, LimitedBy, Position, Reason};
use turnwise_queue::{EventKind, Holder, Job, State, Then, timestamp};

use turnwise_policy::schedule::HoldReason;

use crate::decision::Explanation;
use crate::position::Predecessors;
use crate::snapshot::{Snapshot, many};

/// Maximum number of jobs in a sentence.
const MAX_NAMED: usize = 3;

/// The reason of a pending job. `explanation` is its reason in the next decision (`None`: it starts). If that is a lack of
/// slots, the standing explains it. `in_tenant` jobs of its tenant, and `overall` jobs of all tenants, precede it.
pub(crate) fn of_pending(
    snapshot: &Snapshot,
    explanation: Option<&Explanation>,
    tenant: &str,
    in_tenant: usize,
    overall: usize,
) -> Reason {
    if snapshot.capacity.workers == 0 {
        return none_works(snapshot);
    }
    let stands = Stands {
        free: snapshot.free(),
        churn: snapshot.churn(),
        can_preempt: snapshot.can_preempt(tenant),
        in_tenant,
        overall: overall.max(explanation.map_or(0, |explanation| explanation.before)),
    };
    match explanation.map(|explanation| &explanation.reason) {
        None => Reason::StartsNext,
        Some(HoldReason::Locked(_)) => Reason::Locked,
        Some(HoldReason::LockReserved(_)) => Reason::LockReserved,
        Some(HoldReason::NoRoom | HoldReason::OtherShard | HoldReason::OtherPass | HoldReason::Tried) => {
            stands.reason()
        }
    }
}

/// The position of a job that waits for a slot, in the queue of all workers of its type.
#[derive(Debug, Clone, Copy, Default)]
struct Stands {
    /// Free slots of these workers.
    free: usize,
    /// The most running jobs that one cycle preempts: `max_churn`, or 0 if none of the running jobs rotates.
    churn: usize,
    /// Whether a running job would be preempted for a job of this tenant.
    can_preempt: bool,
    /// Jobs of its tenant that come before it.
    in_tenant: usize,
    /// Jobs of all tenants that come before it.
    overall: usize,
}

impl Stands {
    fn reason(&self) -> Reason {
        let Stands { free, churn, can_preempt, in_tenant, overall } = *self;
        match overall.checked_sub(free) {
            None => Reason::StartsNext,
            // Each cycle preempts some of the running jobs, and this job is among those that start then.
            Some(before) if can_preempt && before < churn => Reason::RotatesIn,
            Some(_) if in_tenant > 0 => Reason::BehindItsTenant,
            // The tenants of the running jobs and of the jobs before it have the same deficit or a larger one.
            Some(_) if overall > 0 || churn > 0 && !can_preempt => Reason::TenantHadItsShare,
            Some(_) => Reason::AllSlotsTaken,
        }
    }
}

/// The reason where no worker gets jobs of the type.
fn none_works(snapshot: &Snapshot) -> Reason {
    if snapshot.capacity.quiet > 0 { Reason::WorkersQuiet } else { Reason::NoWorker }
}

/// Why a delayed job waits.
pub(crate) fn of_delayed(snapshot: &Snapshot, job: &Job) -> Reason {
    if job.unmet() > 0 {
        return Reason::AfterOthers;
    }
    if job.paused().is_some() {
        return Reason::Paused;
    }
    match job.limited().map(|limit| &limit.bucket) {
        // `why` counts the workers that know it.
        Some(Bucket::Task(_)) => return Reason::NoWorkerForTask,
        Some(Bucket::Filter(_) | Bucket::Reason(_)) => return Reason::ConcurrencyLimited,
        Some(Bucket::Rate(_)) => return Reason::RateLimited,
        None => {}
    }
    match (job.order_us() > snapshot.now_us, snapshot.capacity.workers, job.state()) {
        (true, _, State::Crashing) => Reason::Backoff,
        (true, ..) if job.parked().is_some() => Reason::Parked,
        (true, ..) => Reason::NotBefore,
        (false, 0, _) => none_works(snapshot),
        (false, ..) => Reason::Due,
    }
}

/// The reason of a running job.
pub(crate) fn of_running(cancel_requested: bool, then: Then) -> Reason {
    match (cancel_requested, then) {
        (_, Then::Again) => Reason::RunsAgain,
        (true, Then::Keep | Then::Remove) => Reason::Stops,
        (false, Then::Keep | Then::Remove) => Reason::Runs,
    }
}

/// The reason as a sentence. `node` is the node that runs the job.
pub(crate) fn sentence(
    snapshot: &Snapshot,
    job: &Job,
    reason: Reason,
    predecessors: Option<&Predecessors>,
    node: Option<&str>,
    after: &[Awaited],
    (max_attempts, stated_by): (Option<u32>, &str),
) -> String {
    let tenant = &job.tenant;
    let at = |us| timestamp(us);
    let crashes = count(job.crashes as usize, false, "crash", "crashes");
    match reason {
        Reason::NoWorker => {
            format!("No worker of type `{}` is registered: the job starts once one is.", job.job_type)
        }
        Reason::WorkersQuiet => {
            let workers = match snapshot.capacity.quiet {
                1 => "The only worker".to_owned(),
                quiet => format!("All {quiet} workers"),
            };
            format!(
                "{workers} of type `{}` may take no new jobs: the job starts once a worker is resumed \
                 (`turnwise workers resume`), or another one is registered.",
                job.job_type
            )
        }
        Reason::StartsNext
        | Reason::AllSlotsTaken
        | Reason::BehindItsTenant
        | Reason::TenantHadItsShare
        | Reason::RotatesIn => of_queue(snapshot, tenant, reason, predecessors),
        Reason::Backoff => {
            let error = job.reason().map(|error| format!(" The latest: {error}")).unwrap_or_default();
            let left = match max_attempts {
                None => "It is tried again without limit.".to_owned(),
                Some(most) => {
                    let left = most.saturating_sub(job.attempts);
                    format!("{left} of {most} attempts are left, stated by {stated_by}; then it fails.")
                }
            };
            format!("Waits until {}, after {crashes} in a row. {left}{error}", at(job.order_us()))
        }
        Reason::NotBefore if job.latest_step() == Some(&EventKind::Snoozed) => {
            let snoozes = count(job.snoozes as usize, false, "time", "times");
            format!("Is delayed until {}: its worker has put it off, {snoozes} so far.", at(job.order_us()))
        }
        Reason::NotBefore => {
            format!("Is delayed until {}, as its client requested.", at(job.order_us()))
        }
        Reason::Parked => {
            let at = at(job.order_us());
            format!(
                "Is parked: its source has no new changes, and is watched. Runs when a change arrives, or at {at}."
            )
        }
        Reason::Paused if job.held_by() == Some(Holder::Client) => {
            "Is held by a client of its tenant until it is released (`turnwise jobs release`).".to_owned()
        }
        Reason::Paused if job.held_by().is_some() => "Is held by an operator, who can release it.".to_owned(),
        Reason::Paused => {
            let filter = job.paused().unwrap_or_default();
            format!(
                "Is paused by the filter `{filter}` until that filter is changed or removed (`turnwise filters list`)."
            )
        }
        Reason::AfterOthers => {
            let others = count(job.unmet() as usize, false, "other job", "other jobs");
            let have = if job.unmet() == 1 { "has" } else { "have" };
            let named: Vec<String> = after.iter().take(MAX_NAMED).map(named).collect();
            let more = if after.len() > named.len() { ", …" } else { "" };
            let then = if job.hold.is_some() { " It is held then." } else { "" };
            format!("Waits until {others} {have} ended: {}{more}.{then}", named.join(", "))
        }
        Reason::Due => "Its delay is over: a worker puts it into the queue at its next pass.".to_owned(),
        Reason::Runs => format!("{}.", runs(job, node)),
        Reason::Stops => {
            let then = if job.then() == Then::Remove { " Its record is removed then." } else { "" };
            format!("{}, and is being stopped.{then}", runs(job, node))
        }
        Reason::RunsAgain if job.cancel_requested() => {
            format!("{}, is being stopped, and runs again with its new options after that.", runs(job, node))
        }
        Reason::RunsAgain => {
            let from = match job.order_us() > snapshot.now_us {
                true => format!(", not before {}", at(job.order_us())),
                false => String::new(),
            };
            format!("{}, and runs once more after that{from}.", runs(job, node))
        }
        Reason::Completed => format!("Has completed at {}.", at(job.changed_us)),
        Reason::Failed => {
            let error = job.reason().map(|error| format!(": {error}")).unwrap_or_default();
            format!("Has failed at {}{error}", at(job.changed_us))
        }
        Reason::Cancelled => {
            let why = job.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("Was cancelled at {}{why}.", at(job.changed_us))
        }
        // `locked`, `of_limit` and `of_rate` describe locks and limits.
        Reason::ConcurrencyLimited | Reason::RateLimited | Reason::FindsFilter | Reason::FilterFailed => {
            String::new()
        }
        // `task` describes these.
        Reason::NoWorkerForTask | Reason::TaskLimited => String::new(),
        Reason::Locked | Reason::LockReserved | Reason::WaitsForLock => String::new(),
    }
}

/// The sentence of a job that waits for a slot.
fn of_queue(
    snapshot: &Snapshot,
    tenant: &str,
    reason: Reason,
    predecessors: Option<&Predecessors>,
) -> String {
    let none = Predecessors::default();
    let predecessors = predecessors.unwrap_or(&none);
    let position = &predecessors.position;
    match reason {
        Reason::StartsNext => {
            let free = snapshot.free();
            format!("Starts next: {free} of {} are free.", slots(snapshot))
        }
        Reason::AllSlotsTaken => format!("Is next, but {}.", taken(snapshot)),
        Reason::BehindItsTenant => {
            let own = count(position.in_tenant, position.in_tenant_more, "job", "jobs");
            let others = match position.overall.saturating_sub(position.in_tenant) {
                0 => String::new(),
                jobs => {
                    format!(" and {} of other tenants", count(jobs, position.overall_more, "job", "jobs"))
                }
            };
            let start = if position.overall == 1 { "starts" } else { "start" };
            format!(
                "Waits for its turn: {own} of its tenant `{tenant}`{others} {start} before it, and {}.",
                taken(snapshot)
            )
        }
        Reason::TenantHadItsShare if position.overall == 0 => format!(
            "Is the first in the queue of its tenant `{tenant}`, which has received its share: the tenants of the running jobs are entitled to \
             as much, and {}.",
            taken(snapshot)
        ),
        Reason::TenantHadItsShare => {
            let jobs = count(position.overall, position.overall_more, "job", "jobs");
            let of = count(predecessors.others, false, "other tenant", "other tenants");
            let start = if position.overall == 1 { "starts" } else { "start" };
            format!(
                "Is the first in the queue of its tenant `{tenant}`, which has received its share: {jobs} of {of} {start} before it, and {}.",
                taken(snapshot)
            )
        }
        Reason::RotatesIn => {
            let ahead = match position.overall {
                0 => "it is next".to_owned(),
                1 => "1 job starts before it".to_owned(),
                jobs => format!("{} start before it", count(jobs, position.overall_more, "job", "jobs")),
            };
            let every = snapshot.rules.rotation.map_or(0.0, |rotation| rotation.interval.as_secs_f64());
            format!(
                "Starts at one of the next cycles: up to {} of the {} are preempted every {}, and {ahead}.",
                snapshot.churn(),
                count(snapshot.capacity.running, false, "running job", "running jobs"),
                seconds(every),
            )
        }
        // The other reasons are not about slots.
        _ => String::new(),
    }
}

/// The sentence for a sender who may not know about other tenants, where it differs from [`sentence`].
pub(crate) fn without_others(
    job: &Job,
    reason: Reason,
    predecessors: Option<&Predecessors>,
) -> Option<String> {
    Some(match reason {
        Reason::StartsNext => "Starts next: a slot is free.".to_owned(),
        Reason::AllSlotsTaken => "Is next, but all slots are taken.".to_owned(),
        Reason::BehindItsTenant => {
            let position = predecessors.map(|predecessors| predecessors.position).unwrap_or_default();
            let own = count(position.in_tenant, position.in_tenant_more, "job", "jobs");
            let start = if position.in_tenant == 1 { "starts" } else { "start" };
            format!("Waits for its turn: {own} of its tenant `{}` {start} before it.", job.tenant)
        }
        Reason::TenantHadItsShare => format!(
            "Is the first in the queue of its tenant `{}`, which has received its share: others have received less.",
            job.tenant
        ),
        Reason::RotatesIn => "Starts at one of the next cycles, when running jobs are preempted.".to_owned(),
        Reason::ConcurrencyLimited => {
            let limit = job.limited().map_or(0, |limit| limit.most);
            format!("As many jobs of a bucket run as its limit allows: {limit}.")
        }
        _ => return None,
    })
}

/// The sentence about the rate that a job waits for.
pub(crate) fn of_rate(now_us: i64, limited: Option<&Limited>) -> String {
    let Some(Limited { name, key, limit, per_ms, next_us, .. }) = limited else { return String::new() };
    let of = key.as_ref().map(|key| format!(" for `{key}`")).unwrap_or_default();
    let per = per_ms.map(|per_ms| format!(" in any {}", seconds(per_ms as f64 / 1e3))).unwrap_or_default();
    let jobs = if *limit == 1 { "job starts" } else { "jobs start" };
    let next = match next_us {
        Some(next_us) if *next_us > now_us => format!("the next place is free at {}", timestamp(*next_us)),
        _ => "a place is free: it can start again".to_owned(),
    };
    format!("By the rate `{name}`{of}, at most {limit} {jobs}{per}: {next}.")
}

/// The sentence about the concurrency limit that a job waits for.
pub(crate) fn of_limit(limited: Option<&Limited>) -> String {
    let Some(Limited { by, name, limit, running, .. }) = limited else { return String::new() };
    let running = running.unwrap_or(0);
    let of = match by {
        LimitedBy::Filter => format!("that filter `{name}` limits"),
        LimitedBy::Reason => format!("of the bucket `{name}`"),
        LimitedBy::Task => format!("of the task `{name}`"),
        LimitedBy::Rate => format!("of the rate `{name}`"),
    };
    let jobs = if *limit == 1 { "job" } else { "jobs" };
    let room = if running < *limit as usize { ": it can start again" } else { "" };
    let run = if running == 1 { "runs" } else { "run" };
    format!("{running} of {limit} {jobs} {of} {run}{room}.")
}

/// The expected start of a job, if it can be estimated.
pub(crate) fn expected(
    snapshot: &Snapshot,
    job: &Job,
    reason: Reason,
    predecessors: Option<&Predecessors>,
) -> Option<Expected> {
    let now_us = snapshot.now_us;
    let about = |in_us: f64, basis: String| {
        Some(Expected { at_us: now_us.saturating_add(in_us.ceil() as i64), earliest: false, basis })
    };
    let earliest = |at_us, basis: &str| Some(Expected { at_us, earliest: true, basis: basis.to_owned() });
    match reason {
        Reason::StartsNext => about(0.0, "a slot is free".to_owned()),
        Reason::Due => earliest(now_us, "a worker puts it into the queue at its next pass"),
        Reason::Backoff => earliest(job.order_us(), "its backoff ends then, and it enters the queue"),
        Reason::NotBefore => earliest(job.order_us(), "its delay ends then, and it enters the queue"),
        Reason::Parked => earliest(job.order_us(), "it runs then, or as soon as a change arrives"),
        Reason::RotatesIn => by_rotation(snapshot, &job.tenant, predecessors?, about),
        Reason::AllSlotsTaken | Reason::BehindItsTenant | Reason::TenantHadItsShare => {
            match snapshot.churn() {
                0 => by_run_times(snapshot, &job.tenant, predecessors?, about),
                _ if snapshot.can_preempt(&job.tenant) => {
                    by_rotation(snapshot, &job.tenant, predecessors?, about)
                }
                // When the other tenants' virtual times catch up depends on jobs that are added meanwhile.
                _ => None,
            }
        }
        Reason::RunsAgain => {
            let each_us = snapshot.learnt_of(&job.tenant, job.task.as_deref());
            let each_us = each_us.filter(|_| !job.continuous && !job.cancel_requested())?;
            let ran_us = now_us.saturating_sub(job.started_us?);
            let left_us = (each_us - ran_us as f64).max(0.0);
            let basis = format!("it runs {}, as learnt, and waits for its turn then", seconds(each_us / 1e6));
            about(left_us, basis)
        }
        _ => None,
    }
}

/// The expected start by rotation: after the cycles that start the jobs before the job, and the job itself. If its
/// tenant's jobs rotate, the jobs before it are those that have waited longer. One cycle starts no more jobs of a
/// tenant than the tenant has running jobs.
fn by_rotation(
    snapshot: &Snapshot,
    tenant: &str,
    predecessors: &Predecessors,
    about: impl Fn(f64, String) -> Option<Expected>,
) -> Option<Expected> {
    let Position { in_tenant, overall, overall_more, .. } = predecessors.position;
    let rotation = snapshot.rules.rotation?;
    let (churn, every) = (snapshot.churn().max(1), rotation.interval.as_secs_f64());
    let (before, more, what) = match predecessors.longer {
        Some((longer, more)) => (longer, more, ["job has waited longer", "jobs have waited longer"]),
        None => (overall, overall_more, ["job starts before it", "jobs start before it"]),
    };
    let cycles = (before + 1).saturating_sub(snapshot.free()).div_ceil(churn).max(1);
    let own = match predecessors.longer {
        Some(_) => (in_tenant + 1).div_ceil(snapshot.tenants.get(tenant)?.charges.running.max(1)),
        None => 1,
    };
    let basis = format!(
        "{}, and up to {churn} start every {}",
        count(before, more, what[0], what[1]),
        seconds(every)
    );
    about(every * 1e6 * many(cycles.max(own)), basis)
}

/// The expected start by run times. The jobs before it and one more must end first, on all slots, and run as long as past runs.
fn by_run_times(
    snapshot: &Snapshot,
    tenant: &str,
    predecessors: &Predecessors,
    about: impl Fn(f64, String) -> Option<Expected>,
) -> Option<Expected> {
    let Position { overall, overall_more, .. } = predecessors.position;
    let capacity = snapshot.capacity;
    let ends = (overall + 1).saturating_sub(snapshot.free());
    let each_us = match overall {
        0 => snapshot.learnt_of_running().or_else(|| snapshot.learnt_of(tenant, None))?,
        _ => predecessors.cost_us? / many(overall),
    };
    let must = if ends == 1 && !overall_more { "job must end" } else { "jobs must end" };
    let more = if overall_more { "+" } else { "" };
    let run = seconds(each_us / 1e6);
    let slots = capacity.slots;
    let basis = format!("{ends}{more} {must} first; they run {run} each, as learnt, on {slots} slots");
    about(many(ends) * each_us / many(slots.max(1)), basis)
}

/// `mail-16` of type `mail` (running; completed or failed is accepted)
fn named(awaited: &Awaited) -> String {
    let state = awaited.state.map_or_else(|| "removed".to_owned(), written);
    let accepted: Vec<String> = awaited.accepted.iter().map(written).collect();
    let Awaited { job_type, id, .. } = awaited;
    format!("`{id}` of type `{job_type}` ({state}; {} is accepted)", accepted.join(" or "))
}

/// A value in the form of the API.
fn written(value: impl serde::Serialize) -> String {
    let written = serde_json::to_value(value);
    written.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(crate) fn runs(job: &Job, node: Option<&str>) -> String {
    let since = job.started_us.map(|us| format!(" since {}", timestamp(us))).unwrap_or_default();
    let node = node.map(|node| format!(" of node `{node}`")).unwrap_or_default();
    match job.claim() {
        Some(claim) => format!("Runs on worker `{}`{node}{since}", claim.worker),
        None => format!("Runs{since}"),
    }
}

/// `all 4 slots of 2 workers are taken`
fn taken(snapshot: &Snapshot) -> String {
    match snapshot.free() {
        0 => format!("all {} are taken", slots(snapshot)),
        free => format!("{free} of {} are free for those", slots(snapshot)),
    }
}

/// `4 slots of 2 workers`
fn slots(snapshot: &Snapshot) -> String {
    let slots = count(snapshot.capacity.slots, false, "slot", "slots");
    format!("{slots} of {}", count(snapshot.capacity.workers, false, "worker", "workers"))
}

fn count(number: usize, more: bool, one: &str, many: &str) -> String {
    match (number, more) {
        (1, false) => format!("1 {one}"),
        (number, false) => format!("{number} {many}"),
        (number, true) => format!("{number} or more {many}"),
    }
}

/// A duration for people.
fn seconds(seconds: f64) -> String {
    match seconds {
        ..1.0 => format!("{:.0} ms", (seconds * 1e3).max(1.0)),
        1.0..10.0 => format!("{} s", (seconds * 10.0).round() / 10.0),
        _ => format!("{seconds:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_has_its_reason() {
        let next = Stands::default();
        let rotating = Stands { churn: 2, can_preempt: true, ..next };
        for (stands, reason) in [
            (Stands { free: 1, ..next }, Reason::StartsNext),
            (Stands { free: 3, in_tenant: 2, overall: 2, ..next }, Reason::StartsNext),
            (next, Reason::AllSlotsTaken),
            (Stands { overall: 1, ..next }, Reason::TenantHadItsShare),
            (Stands { overall: 5, in_tenant: 1, ..next }, Reason::BehindItsTenant),
            (rotating, Reason::RotatesIn),
            (Stands { overall: 1, in_tenant: 1, ..rotating }, Reason::RotatesIn),
            (Stands { overall: 3, free: 2, ..rotating }, Reason::RotatesIn),
            (Stands { overall: 2, in_tenant: 2, ..rotating }, Reason::BehindItsTenant),
            (Stands { can_preempt: false, ..rotating }, Reason::TenantHadItsShare),
        ] {
            assert_eq!(stands.reason(), reason, "{stands:?}");
        }
    }
}
