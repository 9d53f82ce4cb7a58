//! Runs that their worker did not end, because it was lost or the run exceeded a deadline; and the number of consecutive crashes.

use super::*;

impl Checker {
    /// A live worker loses a run only after the run exceeded its time.
    pub(super) fn check_expired(
        &self,
        known: &CheckerState,
        commit: &Commit<'_>,
        old: &Job,
    ) -> Result<(), Broken> {
        let Some(claim) = old.claim().map(|claim| (claim.worker.clone(), claim.number)) else {
            return Ok(());
        };
        let external = known.externals.contains(&claim.0);
        let lasted = |since_us: Option<&i64>| since_us.map_or(i64::MAX, |since_us| commit.now_us - since_us);
        // Clocks run up to 2 % too fast. The reports of a run inside a process reach the store later.
        let is_over = |timeout_us: i64, since_us| lasted(since_us) >= timeout_us - timeout_us / 40;
        let begun_us = known.claims.get(&claim).map(|(_, begun_us)| begun_us);
        let beat_us = if external { known.beats.get(&claim) } else { begun_us };
        let Timeouts { run_us, heartbeat_us } = old.terms().timeouts;
        // For an external worker, another node may have claimed the job. Its clock then measures the run, from the decision
        // to start it. The commit may be some seconds late.
        let decided_us = old.started_us.map(|started_us| started_us - EPOCH_US);
        let since_us = if external { decided_us.as_ref() } else { begun_us };
        let run_over = run_us.is_some_and(|run_us| external && self.skews || is_over(run_us, since_us));
        let silent = heartbeat_us.is_some_and(|heartbeat_us| is_over(heartbeat_us, beat_us));
        ensure(run_over || silent, "only a run that exceeds its time loses its claim", || {
            format!(
                "after {} µs, {} µs of them silent: {}",
                lasted(begun_us),
                lasted(beat_us),
                in_words(Some(old))
            )
        })
    }

    /// If the loss of a worker counts, it is an attempt that crashed: with a backoff, and the last attempt fails the job. A
    /// worker that has left gives its jobs back. In both cases, a job whose next run was refused is cancelled.
    pub(super) fn check_lost(
        &self,
        known: &CheckerState,
        commit: &Commit<'_>,
        (old, new): (&Job, &Job),
        refused: bool,
        event: &EventKind,
    ) -> Result<(), Broken> {
        let story =
            || format!("job {}\n  was {}\n  is  {}", old.id, in_words(Some(old)), in_words(Some(new)));
        let (again, goes) = (old.then() == Then::Again, old.cancel_requested());
        let state = match event {
            EventKind::Cancelled => goes && (refused || !again) && new.state() == State::Cancelled,
            EventKind::Stopped { .. } => again || refused || new.state() == State::Pending,
            EventKind::Crashed { .. } => again || refused || new.state() == State::Crashing,
            // The job was added again with fewer attempts than it has had, and this attempt counts.
            EventKind::Failed { .. } => new.state() == State::Failed && old.terms().is_last(new.attempts),
            _ => false,
        };
        ensure(state, "a lost worker's jobs are given back", story)?;
        let counted = matches!(event, EventKind::Crashed { .. } | EventKind::Failed { .. });
        let worker = old.claim().map(|claim| claim.worker.as_str()).unwrap_or_default();
        // A worker that leaves gives back the jobs that it has not ended. If it dies meanwhile, other processes finish its
        // removal.
        let may_have_left = known.left.contains(worker) || known.home(worker) == Some(commit.site);
        let expired = event.reason().is_some_and(|reason| reason.contains(OVER));
        let counts = (expired || old.terms().on_lost == OnLost::Count) && !goes;
        ensure(counted == counts || !counted && may_have_left, "a lost worker counts as an attempt", story)?;
        if !counted || again {
            return Ok(());
        }
        let is_last = old.terms().is_last(new.attempts);
        let wait_us = old.terms().wait_us(&old.id, new.crashes);
        let waits = refused
            || new.state() == State::Failed
            || new.order_us() == new.changed_us.saturating_add(wait_us);
        let counted = new.attempts == old.attempts + 1 && new.crashes >= 1;
        let ends = is_last == (new.state() == State::Failed);
        ensure(counted && waits && ends, "a lost worker counts as an attempt", story)
    }

    /// A healthy run resets the number of consecutive crashes, however it ends. A shorter run that did not crash leaves the
    /// number unchanged.
    pub(super) fn check_streak(
        &self,
        known: &CheckerState,
        commit: &Commit<'_>,
        (old, new): (&Job, &Job),
        event: &EventKind,
    ) -> Result<(), Broken> {
        let Some(claim) = old.claim().map(|claim| (claim.worker.clone(), claim.number)) else {
            return Ok(());
        };
        let lost = event.reason().is_some_and(|reason| reason.ends_with("was lost") || reason.contains(OVER));
        let did = known.executions.get(&claim).map(|run| &run.did);
        // A job that was put off too often has failed, and has not crashed.
        let crashed = matches!(event, EventKind::Crashed { .. } | EventKind::Failed { .. })
            && (lost || did != Some(&Did::Snoozed));
        let well = matches!(did, Some(Did::Completed | Did::Failed)) && !lost;
        // The number does not matter for a cancelled job.
        if self.skews || well || *event == EventKind::Cancelled {
            return Ok(());
        }
        // The run lasted until its handler was done, or until that was recorded. When the run of a lost worker stopped is
        // unknown.
        let given_us = known.claims.get(&claim).map_or(commit.now_us, |(_, given_us)| *given_us);
        let longest_us = commit.now_us - given_us;
        let done = known.executions.get(&claim).filter(|run| run.did != Did::Runs && !lost);
        let shortest_us = done.map_or(0, |run| run.done_us - run.begun_us);
        let threshold_us = old.terms().backoff.health_threshold_us;
        let before = match () {
            () if shortest_us > threshold_us + SLACK_US => 0,
            () if longest_us < threshold_us - SLACK_US => old.crashes,
            () => return Ok(()),
        };
        ensure(
            new.crashes == before + u32::from(crashed),
            "a healthy run resets the consecutive crashes",
            || {
                let jobs = (in_words(Some(old)), in_words(Some(new)));
                format!("job {} after {longest_us} µs\n  was {}\n  is  {}", old.id, jobs.0, jobs.1)
            },
        )
    }
}
