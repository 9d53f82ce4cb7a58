//! Running a job again, and those after it that were cancelled because of its end.
//!
//! *Model.* A job that was cancelled because of the end of another one is a follower of it, with what it waited for ([`crate::followers`]). It waits
//! for this again. Its own followers come next, so a caller goes through the graph, one transaction after the other. Each step may be
//! repeated: a job that runs again already stays as it is, and those behind it come next. A job that does not run again ends its branch: those behind it
//! need it.

use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_store::Transaction;

use crate::followers::{self, AT_ONCE};
use crate::job::bounded_reason;
use crate::jobs::{Retried, rerun_after};
use crate::place::{End, Place};
use crate::rows::read_job;
use crate::{After, Job, Keyspace, Result, dependencies};

/// The rows that running a job again writes, beside three for each dependency, and two for each input.
const ROWS: usize = 30;
/// The conflicts of the same, beside one for each dependency and each input.
const CONFLICTS: usize = 8;

/// A step through the followers of one job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The jobs that were cancelled because of its end, now or before a request that is repeated, run again, and have followers themselves: these come
    /// next.
    pub followers: Vec<(String, String)>,
    /// Those that were cancelled because of its end, and run again now.
    pub rerun: Vec<(String, String)>,
    /// Those that were, and cannot: another job has their unique key, what they waited for was removed or has ended otherwise, or the caller may
    /// not. What they waited for may run again later in the graph: then they come again, behind that.
    pub refused: Vec<(String, String)>,
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
        if follower.after.is_empty() {
            last = Some(follower.job);
            continue;
        }
        let (of_type, of_id) = &follower.job;
        let Some(job) = read_job(tx, keys, of_type, of_id).await? else {
            tx.clear(keys.follower((job_type, id), of_type, of_id))?;
            last = Some(follower.job);
            continue;
        };
        let (waited, inputs) = (follower.after.len(), job.inputs.len());
        let rows = ROWS + job.group_rows() + 3 * waited + 2 * inputs;
        let has_room = tx.has_room() && tx.has_room_for(rows, CONFLICTS + waited + inputs);
        if n > 0 && !has_room {
            step.next = last;
            return Ok(step);
        }
        last = Some(follower.job.clone());
        let because = job.refused.as_ref().is_some_and(|refused| reasons.contains(refused));
        let is_cancelled = matches!(job.place, Place::Ended(End::Cancelled)) && because;
        let mut runs = !has_ended(&job);
        if is_cancelled {
            let after = still_there(tx, keys, &job, &follower.after).await?;
            let retried = match after.filter(|_| may(&job)) {
                Some(after) => rerun_after(tx, keys, (of_type, of_id), &after, now_us).await?,
                None => Retried::Not(job.state()),
            };
            if retried == Retried::Now {
                // If the result is an input, its row states that only now. A repeated request goes on behind it.
                followers::cancelled(tx, keys, (job_type, id), (of_type, of_id), &follower.after)?;
                runs = read_job(tx, keys, of_type, of_id).await?.is_some_and(|job| !has_ended(&job));
            }
            let told = if runs { &mut step.rerun } else { &mut step.refused };
            told.push(follower.job.clone());
        }
        if runs && job.followed {
            step.followers.push(follower.job);
        }
    }
    step.next = last.filter(|_| is_full);
    Ok(step)
}

fn has_ended(job: &Job) -> bool {
    matches!(job.place, Place::Ended(_))
}

/// What a job waited for, without jobs that were removed; `None` if it does not start without one of these, or if one whose result it gets is another
/// tenant's by now.
async fn still_there(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    waited: &[After],
) -> Result<Option<Vec<After>>> {
    let mut after = Vec::with_capacity(waited.len());
    for one in waited {
        let is_input = || job.inputs.values().any(|of| (&of.job_type, &of.id) == (&one.job_type, &one.id));
        match (read_job(tx, keys, &one.job_type, &one.id).await?, one.otherwise) {
            (Some(other), _) if other.tenant != job.tenant && is_input() => return Ok(None),
            (Some(_), _) => after.push(one.clone()),
            (None, Otherwise::Cancel) => return Ok(None),
            (None, Otherwise::Free) => {}
        }
    }
    Ok(Some(after))
}
