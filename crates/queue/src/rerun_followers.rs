//! Running a job again, and those after it that were cancelled because of its end.
//!
//! *Model.* A job that was cancelled because of the end of another one is a follower of it, with what it waited for ([`crate::followers`]). It waits
//! for this again. Its own followers come next, so a caller goes through the graph, one transaction after the other. Each step may be
//! repeated: a job that runs again already stays as it is.

use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_store::Transaction;

use crate::followers::{self, AT_ONCE};
use crate::job::bounded_reason;
use crate::jobs::{Retried, rerun_after};
use crate::place::{End, Place};
use crate::rows::read_job;
use crate::{After, Job, Keyspace, Result, dependencies};

/// The rows that running a job again writes, beside two for each dependency.
const ROWS: usize = 30;
/// The conflicts of the same, beside one for each dependency.
const CONFLICTS: usize = 8;

/// A step through the followers of one job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The jobs that were cancelled because of its end, whether they run again already or not: their followers come next.
    pub followers: Vec<(String, String)>,
    /// How many of them run again now.
    pub rerun: usize,
    /// How many of them cannot: another job has their unique key, what they waited for was removed, or the caller may not.
    pub refused: usize,
    /// The last one, if there are more.
    pub next: Option<(String, String)>,
}

/// Lets followers of a job that were cancelled because of its end wait again for what they waited for: those after the job `after`, as many
/// as the transaction has room for. `may` tells whether the caller may run a job again.
pub async fn step(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    after: Option<&(String, String)>,
    may: impl Fn(&Job) -> bool,
    now_us: i64,
) -> Result<Step> {
    let mut step = Step::default();
    let ends = [DependencyEnd::Failed, DependencyEnd::Cancelled];
    let reasons = ends.map(|end| bounded_reason(&dependencies::cancel_reason(job_type, id, end)));
    let found = followers::list(tx, keys, (job_type, id), after, AT_ONCE).await?;
    let is_full = found.len() == AT_ONCE;
    let mut last = None;
    for (n, follower) in found.into_iter().enumerate() {
        let waited = follower.after.len();
        let has_room = tx.has_room() && tx.has_room_for(ROWS + 2 * waited, CONFLICTS + waited);
        if n > 0 && !has_room {
            step.next = last;
            return Ok(step);
        }
        last = Some(follower.job.clone());
        if follower.after.is_empty() {
            continue;
        }
        let (of_type, of_id) = &follower.job;
        let Some(job) = read_job(tx, keys, of_type, of_id).await? else { continue };
        let because = job.refused.as_ref().is_some_and(|refused| reasons.contains(refused));
        if matches!(job.place, Place::Ended(End::Cancelled)) && because {
            let after = still_there(tx, keys, &follower.after).await?;
            let retried = match after.filter(|_| may(&job)) {
                Some(after) => rerun_after(tx, keys, (of_type, of_id), &after, now_us).await?,
                None => Retried::Not(job.state()),
            };
            match retried {
                Retried::Now => step.rerun += 1,
                Retried::Not(_) | Retried::KeyTaken => step.refused += 1,
            }
        }
        step.followers.push(follower.job);
    }
    step.next = last.filter(|_| is_full);
    Ok(step)
}

/// What a job waited for, without jobs that were removed; `None` if it does not start without one of these.
async fn still_there(tx: &Transaction, keys: &Keyspace, waited: &[After]) -> Result<Option<Vec<After>>> {
    let mut after = Vec::with_capacity(waited.len());
    for one in waited {
        match (read_job(tx, keys, &one.job_type, &one.id).await?, one.otherwise) {
            (Some(_), _) => after.push(one.clone()),
            (None, Otherwise::Cancel) => return Ok(None),
            (None, Otherwise::Free) => {}
        }
    }
    Ok(Some(after))
}
