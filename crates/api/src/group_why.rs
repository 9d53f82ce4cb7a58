//! `GET /v1/groups/{tenant}/{group}/why`: what the jobs of a group wait for.
//!
//! A group may have 100,000 jobs, and the reason for the state of one costs reads of its queue. So a few jobs of each state are looked at: those that keep the
//! group from its end differ by their states, and within a state they mostly wait for the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use turnwise_explain::{Of, Reader, Snapshot, reason_of};
use turnwise_protocol::{Group, GroupReason, GroupState, GroupWhy, Reason, jobs_of_group};
use turnwise_queue::Job;
use turnwise_queue::groups as rows;
use turnwise_queue::selection::Position;
use turnwise_web::access::Caller;

use super::app::App;
use super::bulk;
use super::error::Result;
use super::extract::{Call, Shown};
use super::groups::{GroupPath, Which, list, readable, shown};
use super::list::SEARCH_TIME;
use super::responses::Common;

/// The states of jobs that have not ended, as conditions name them. A parked job is delayed.
const STATES: [&str; 8] =
    ["crashing", "blocked", "paused", "limited", "delayed", "pending", "waiting", "running"];
/// The most jobs of a state whose reason is found.
const MOST_OF_STATE: usize = 20;
/// The most rows of a state that are read to find them.
const MOST_LOOKS: usize = 2_000;
/// Number of jobs that one read reads.
const BATCH: usize = 200;
/// The most types whose queues are read.
const MOST_TYPES: usize = 10;
/// The most groups in it that are named.
const MOST_GROUPS: usize = 20;

/// Explain why a group has not ended
///
/// Looks at some of its jobs that have not ended, at most 20 in each state, and counts the reasons for their states. `GET /v1/jobs/{type}/{id}/why` explains one of them.
#[utoipa::path(
    get, path = "/groups/{tenant}/{group}/why", tag = "groups", operation_id = "why_group", params(GroupPath),
    responses(
        (status = 200, body = GroupWhy, description = "The reasons, with the number of jobs for each."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such group."),
        Common,
    ),
)]
pub(super) async fn why_group(Call { app, caller, path }: Call<GroupPath>) -> Result<Shown<GroupWhy>> {
    why(&app, &caller, &path).await.map(Shown)
}

/// Why a group has not ended.
pub async fn why(app: &App, caller: &Caller, path: &GroupPath) -> Result<GroupWhy> {
    let _permit = app.counts.take(caller, 1).await;
    let (tx, rules) = (app.store.begin().await?, app.rules());
    let row = readable(app, caller, &tx, path).await?;
    let group = shown(app, &tx, row.clone()).await?;
    let mut sample = Sample { complete: true, ..Sample::default() };
    if group.counts.open > 0 {
        sample.take(app, caller, &app.reader(&tx, &rules), &row).await?;
    }
    let mut reasons: Vec<GroupReason> = sample.reasons.into_values().collect();
    reasons.sort_by_key(|of| std::cmp::Reverse(of.jobs));
    let which = Which { tenant: Some(&group.tenant), parent: Some(&group.name), state: None };
    let inside = list(app, caller, MOST_GROUPS, None, which).await?;
    let groups = inside.groups.into_iter().filter(|group| group.ended_us.is_none()).map(|group| group.name);
    Ok(GroupWhy {
        sentence: sentence(&group),
        state: group.state,
        open: group.counts.open,
        looked_at: reasons.iter().map(|of| of.jobs).sum(),
        complete: sample.complete,
        reasons,
        groups: groups.collect(),
        name: group.name,
        tenant: group.tenant,
    })
}

fn sentence(group: &Group) -> String {
    let (open, total) = (group.counts.open, group.counts.total);
    match (group.state, open) {
        (GroupState::Open, 0) => {
            "None of its jobs is left. It is open, and ends when it is closed.".to_owned()
        }
        (GroupState::Open, _) => {
            format!(
                "{open} of {total} jobs have not ended. It is open, and does not end before it is closed."
            )
        }
        (GroupState::Closed, 0) => "All its jobs have ended: a server ends it in a moment.".to_owned(),
        (GroupState::Closed, _) => format!("{open} of {total} jobs have not ended."),
        (_, 0) => "It has ended.".to_owned(),
        (..) => format!("It has ended. {open} of its jobs were retried since, and have not ended."),
    }
}

/// Some jobs of a group, by the reason for their states.
#[derive(Default)]
struct Sample {
    reasons: BTreeMap<Reason, GroupReason>,
    /// Whether all its jobs were reached.
    complete: bool,
    seen: BTreeSet<(String, String)>,
    /// Of the types of these jobs.
    snapshots: BTreeMap<String, Snapshot>,
}

impl Sample {
    async fn take(
        &mut self,
        app: &App,
        caller: &Caller,
        reader: &Reader<'_>,
        group: &rows::Group,
    ) -> Result<()> {
        let begun = Instant::now();
        let Some(condition) = jobs_of_group(&group.tenant, &group.name) else {
            self.complete = false;
            return Ok(());
        };
        for state in STATES {
            let selection = bulk::selection(&format!("{condition} and state = {state}"), app.now_us())?;
            let selection =
                selection.narrowed(reader.tx, reader.keys, &|tenant: &str| tenant == group.tenant).await?;
            let (mut at, mut looked_at, mut taken) = (Position::default(), 0, 0);
            loop {
                let page = selection.page(reader.tx, reader.keys, &at, BATCH).await?;
                looked_at += page.jobs.len();
                for (_, job) in page.jobs {
                    let is_member = job.group.as_ref().is_some_and(|member| member.id == group.id);
                    if !is_member || !selection.holds(reader.tx, reader.keys, &job, false).await? {
                        continue;
                    }
                    if taken == MOST_OF_STATE || begun.elapsed() >= SEARCH_TIME {
                        self.complete = false;
                        break;
                    }
                    taken += usize::from(self.add(caller, reader, job).await?);
                }
                let is_over = taken == MOST_OF_STATE || looked_at >= MOST_LOOKS;
                match page.next {
                    None => break,
                    Some(_) if is_over || begun.elapsed() >= SEARCH_TIME => {
                        self.complete = false;
                        break;
                    }
                    Some(next) => at = next,
                }
            }
        }
        Ok(())
    }

    /// Counts the reason for the state of a job. Returns whether it did.
    async fn add(&mut self, caller: &Caller, reader: &Reader<'_>, job: Job) -> Result<bool> {
        if !self.seen.insert((job.job_type.clone(), job.id.clone())) {
            return Ok(false);
        }
        if !self.snapshots.contains_key(&job.job_type) {
            if self.snapshots.len() == MOST_TYPES {
                self.complete = false;
                return Ok(false);
            }
            let snapshot = Snapshot::read(reader, &job.job_type, Of::Tenant(&job.tenant)).await?;
            self.snapshots.insert(job.job_type.clone(), snapshot);
        }
        let Some(snapshot) = self.snapshots.get(&job.job_type) else { return Ok(false) };
        let (reason, sentence) = reason_of(reader, caller, snapshot, &job).await?;
        let first =
            || GroupReason { reason, jobs: 0, job_type: job.job_type.clone(), id: job.id.clone(), sentence };
        self.reasons.entry(reason).or_insert_with(first).jobs += 1;
        Ok(true)
    }
}
