//! The invariants of jobs with dependencies, checked at every commit. [`turnwise_queue::check`] checks that the rows of
//! both directions and the record agree. This module checks what clients asked for and how the dependencies ended, by rules
//! of its own.
//!
//! - A job starts, is pending, or waits for its time only when all of its dependencies have ended in a way that frees it.
//! - A job or its next run is cancelled only if a dependency has ended in a state that it does not accept.
//! - A job depends only on what its last addition named, only on jobs that exist, and never in a cycle.
//!
//! The module also knows since when a job could have learned of an end, for [`crate::liveness`].

use std::collections::{BTreeMap, BTreeSet};

use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_queue::{EventKind, Job, State, Then};

use crate::broken::{Broken, ensure, in_words};
use crate::ledger::{Did, Executions, JobKey, Op, OpKind};
use crate::model::JobRows;

/// The dependencies of jobs, by the job's key and then by the dependency's key.
#[derive(Default)]
pub struct Dependencies {
    waits: BTreeMap<JobKey, BTreeMap<JobKey, Wait>>,
    /// Running jobs whose next run was refused.
    refused: BTreeSet<JobKey>,
    /// When a job last learned of the end of each of these dependencies, in µs since the world began.
    told_us: BTreeMap<JobKey, i64>,
}

/// One dependency of one job.
struct Wait {
    accepted: Vec<DependencyEnd>,
    otherwise: Otherwise,
    end: Option<End>,
    /// Whether the job has learned of the end.
    is_told: bool,
}

/// How a dependency has ended. More than one outcome is possible if a run ends together with the removal of its job or its
/// worker.
#[derive(Clone)]
struct End {
    outcomes: BTreeSet<DependencyEnd>,
    at_us: i64,
}

impl Wait {
    fn is_freed_by(&self, outcome: DependencyEnd) -> bool {
        let is_accepted = outcome != DependencyEnd::Removed && self.accepted.contains(&outcome);
        is_accepted || self.otherwise == Otherwise::Free
    }

    fn any(&self, does: impl Fn(DependencyEnd) -> bool) -> bool {
        self.end.as_ref().is_some_and(|end| end.outcomes.iter().any(|outcome| does(*outcome)))
    }

    fn may_free(&self) -> bool {
        self.any(|outcome| self.is_freed_by(outcome))
    }

    fn may_cancel(&self) -> bool {
        self.any(|outcome| !self.is_freed_by(outcome))
    }
}

/// One commit, as far as dependencies are concerned.
pub struct Commit<'a> {
    /// The operation of the client, if a client made the commit.
    pub op: Option<&'a Op>,
    /// The jobs that the commit changed, with their records before it.
    pub jobs: &'a BTreeMap<JobKey, Option<Job>>,
    /// The jobs that exist after it.
    pub known: &'a BTreeMap<JobKey, JobRows>,
    /// What handlers did.
    pub executions: &'a Executions,
    /// When it was made, in µs since the world began.
    pub now_us: i64,
}

impl Commit<'_> {
    fn record(&self, key: &JobKey) -> Option<&Job> {
        self.known.get(key)?.record.as_ref()
    }

    /// How a job has ended in this commit, if it has.
    fn outcomes(&self, key: &JobKey, old: Option<&Job>) -> Option<BTreeSet<DependencyEnd>> {
        if old.is_some_and(|old| old.state().is_final()) {
            return None;
        }
        match (old, self.record(key)) {
            (_, Some(new)) => Some(BTreeSet::from([final_outcome(new.state())?])),
            (None, None) => None,
            (Some(old), None) => {
                let mut outcomes = BTreeSet::from([DependencyEnd::Removed]);
                let claim = old.claim().map(|claim| (claim.worker.clone(), claim.number));
                if let Some(claim) = claim {
                    // The run ended after the removal was requested: by itself, or stopped because of the request.
                    outcomes.insert(DependencyEnd::Cancelled);
                    outcomes.extend(match self.executions.get(&claim).map(|run| &run.did) {
                        Some(Did::Completed) => Some(DependencyEnd::Completed),
                        Some(Did::Failed | Did::Crashed | Did::Snoozed) => Some(DependencyEnd::Failed),
                        _ => None,
                    });
                }
                Some(outcomes)
            }
        }
    }
}

fn final_outcome(state: State) -> Option<DependencyEnd> {
    match state {
        State::Completed => Some(DependencyEnd::Completed),
        State::Failed => Some(DependencyEnd::Failed),
        State::Cancelled => Some(DependencyEnd::Cancelled),
        _ => None,
    }
}

const EARLY: &str = "a job starts only after all that it waits for";

impl Dependencies {
    /// Checks a commit. Returns the jobs that it cancelled, or whose next run it cancelled, because of a dependency.
    pub fn observe(&mut self, commit: &Commit<'_>) -> Result<BTreeSet<JobKey>, Broken> {
        for (key, old) in commit.jobs {
            let Some(outcomes) = commit.outcomes(key, old.as_ref()) else { continue };
            let end = End { outcomes, at_us: commit.now_us };
            let waiters = self.waits.values_mut().filter_map(|waits| waits.get_mut(key));
            waiters.filter(|wait| wait.end.is_none()).for_each(|wait| wait.end = Some(end.clone()));
        }
        let mut asked = BTreeSet::new();
        for (n, key) in commit.op.iter().flat_map(|op| op.jobs.iter().enumerate()) {
            let Some(op) = commit.op.filter(|_| commit.jobs.contains_key(key)) else { continue };
            match op.kind {
                OpKind::Add => {
                    let waits = self.declared(commit, key, &op.new[n])?;
                    self.refused.remove(key);
                    self.waits.insert(key.clone(), waits);
                    asked.insert(key);
                }
                OpKind::Cancel | OpKind::Remove | OpKind::Retry => {
                    self.waits.remove(key);
                    self.refused.remove(key);
                }
                // The restart also removes the refused dependencies.
                OpKind::Restart if self.refused.remove(key) => drop(self.waits.remove(key)),
                OpKind::Restart
                | OpKind::SetClass
                | OpKind::Edit
                | OpKind::Hold
                | OpKind::Release
                | OpKind::Filter
                | OpKind::Schedule
                | OpKind::Group => {}
            }
        }
        for key in &asked {
            self.check_circle(key)?;
        }
        let mut refused = BTreeSet::new();
        for key in commit.jobs.keys() {
            self.note_told(commit, key);
            let was = commit.jobs[key].as_ref().map(|old| old.state());
            if self.check(commit, key, was, asked.contains(key))? {
                refused.insert(key.clone());
            }
        }
        Ok(refused)
    }

    /// The dependencies that an addition declares. A job that has already ended counts as if it ended now.
    fn declared(
        &self,
        commit: &Commit<'_>,
        key: &JobKey,
        new: &turnwise_queue::NewJob,
    ) -> Result<BTreeMap<JobKey, Wait>, Broken> {
        let mut waits = BTreeMap::new();
        for after in &new.after {
            let on = (after.job_type.clone(), after.id.clone());
            let Some(other) = commit.record(&on) else {
                return Err(("a job waits only for jobs that exist", format!("{key:?} for {on:?}")));
            };
            let end = final_outcome(other.state())
                .map(|outcome| End { outcomes: BTreeSet::from([outcome]), at_us: commit.now_us });
            let (accepted, otherwise) = (after.accepted.clone(), after.otherwise);
            let is_told = end.is_some();
            waits.insert(on, Wait { accepted, otherwise, end, is_told });
        }
        Ok(waits)
    }

    /// No job may depend on itself, directly or through other jobs.
    fn check_circle(&self, key: &JobKey) -> Result<(), Broken> {
        let mut seen = BTreeSet::new();
        let mut open = vec![key];
        while let Some(next) = open.pop() {
            let waits = self.waits.get(next).into_iter().flatten().filter(|(_, wait)| wait.end.is_none());
            for (on, _) in waits {
                ensure(on != key, "no jobs depend on each other in a cycle", || {
                    format!("{key:?} and {next:?}")
                })?;
                if seen.insert(on) {
                    open.push(on);
                }
            }
        }
        Ok(())
    }

    /// Notes which ends a job has learned of.
    fn note_told(&mut self, commit: &Commit<'_>, key: &JobKey) {
        let (Some(waits), Some(rows)) = (self.waits.get_mut(key), commit.known.get(key)) else { return };
        for (on, wait) in waits.iter_mut().filter(|(_, wait)| wait.end.is_some() && !wait.is_told) {
            if rows.after.iter().all(|(other, _)| other != on) {
                wait.is_told = true;
                self.told_us.insert(on.clone(), commit.now_us);
            }
        }
    }

    /// Checks a job that the commit changed. Returns whether the job or its next run was cancelled because of a dependency.
    fn check(
        &mut self,
        commit: &Commit<'_>,
        key: &JobKey,
        was: Option<State>,
        asked: bool,
    ) -> Result<bool, Broken> {
        let Some(job) = commit.record(key) else {
            self.waits.remove(key);
            self.refused.remove(key);
            return Ok(false);
        };
        // It had to start within a time, and waits for nothing any more.
        if job.history.first().is_some_and(|event| event.kind == EventKind::Expired) {
            self.waits.remove(key);
            return Ok(false);
        }
        let none = BTreeMap::new();
        let waits = self.waits.get(key).unwrap_or(&none);
        let story = || {
            let told = waits.iter().map(|(on, wait)| {
                let outcomes = wait.end.as_ref().map(|end| &end.outcomes);
                format!("\n  {on:?} for {:?} or {:?}: {outcomes:?}", wait.accepted, wait.otherwise)
            });
            format!("{key:?} is {}, and waits for{}", in_words(Some(job)), told.collect::<String>())
        };
        let rows: BTreeSet<&JobKey> = commit.known[key].after.iter().map(|(on, _)| on).collect();
        let stray = rows.iter().find(|on| !waits.contains_key(**on));
        ensure(stray.is_none(), "a job waits only for the dependencies that it was added with", || {
            format!("{stray:?}: {}", story())
        })?;
        let waits_on = match job.state() {
            State::Delayed => job.unmet() > 0,
            state => state.is_claimed() && job.then() == Then::Again,
        };
        if waits_on {
            let forgotten = waits.iter().find(|(on, wait)| wait.end.is_none() && !rows.contains(on));
            ensure(forgotten.is_none(), EARLY, story)?;
            if asked {
                let is_over = waits.values().any(|wait| wait.may_cancel());
                ensure(!is_over, "a dependency that has ended counts as if it ended now", story)?;
            }
            if job.unmet() == 0 {
                ensure(waits.values().all(Wait::may_free), EARLY, story)?;
            }
            return Ok(false);
        }
        if waits.is_empty() {
            return Ok(false);
        }
        let refuses = |(on, _): (&JobKey, &Wait)| {
            let told = format!("job `{}` of type `{}`", on.1, on.0);
            job.refused.as_ref().is_some_and(|reason| reason.contains(&told))
        };
        let ran = was.is_some_and(State::is_claimed);
        let ends_now = waits
            .values()
            .any(|wait| wait.may_cancel() && wait.end.as_ref().is_some_and(|end| end.at_us == commit.now_us));
        let refused = match job.state() {
            State::Cancelled => {
                let told = waits.iter().filter(|(_, wait)| wait.may_cancel()).any(refuses);
                // A pass that rejects a job frees the jobs that accept this end, and may reject them, too.
                let freed = was == Some(State::Delayed) && waits.values().all(Wait::may_free);
                ensure(told || freed, "a job is cancelled only for an end that it does not accept", story)?;
                told
            }
            state if state.is_claimed() && ran => {
                let may = waits.values().any(Wait::may_cancel);
                ensure(may, EARLY, story)?;
                // The job must not start again when this run is over.
                return Ok(self.refused.insert(key.clone()));
            }
            // The run ended by itself. If several jobs end in one commit, it may have ended just after its next run was refused.
            state if state.is_final() && (self.refused.contains(key) || ran && ends_now) => {
                !self.refused.contains(key)
            }
            _ => {
                ensure(
                    !self.refused.contains(key),
                    "a job whose next run was refused does not start again",
                    story,
                )?;
                ensure(waits.values().all(Wait::may_free), EARLY, story)?;
                false
            }
        };
        self.waits.remove(key);
        self.refused.remove(key);
        Ok(refused)
    }

    /// Since when the job waits although its dependency has ended, and no other job has learned of that end. Many jobs may
    /// depend on one job, and each transaction informs only some of them.
    pub fn untold_since_us(&self, key: &JobKey, rows: &JobRows) -> Option<i64> {
        let waits = self.waits.get(key)?;
        let since_us = |on: &JobKey| {
            let at_us = waits.get(on)?.end.as_ref()?.at_us;
            Some(self.told_us.get(on).map_or(at_us, |told_us| at_us.max(*told_us)))
        };
        rows.after.iter().filter_map(|(on, _)| since_us(on)).min()
    }
}
