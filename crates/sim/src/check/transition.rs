//! The state machine: which changes of a job's record are allowed, and who may make them.

use super::*;

/// A change that no other invariant names.
const ALLOWED: &str = "every change of a job is allowed";

/// A change of a record, and the commit that makes it.
struct Change<'a> {
    commit: &'a Commit<'a>,
    key: &'a JobKey,
    old: &'a Job,
    new: &'a Job,
}

impl Change<'_> {
    fn story(&self) -> String {
        in_words_both(self.key, (Some(self.old), Some(self.new)))
    }

    /// Whether a client's operation of one of these kinds makes the change.
    fn by(&self, kinds: &[OpKind]) -> bool {
        self.commit.is_client(kinds, self.key)
    }

    fn is_by_client(&self) -> bool {
        self.commit.writer.op.is_some()
    }

    /// Whether the job, or its next run, is cancelled because of its dependencies.
    fn is_refused(&self) -> bool {
        self.commit.refused.contains(self.key)
    }
}

impl Checker {
    /// The state machine allows every change of a record, and its writer may make it.
    pub(super) fn check_transition(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        key: &JobKey,
        (old, new): (Option<&Job>, Option<&Job>),
    ) -> Result<(), Broken> {
        let refused = commit.refused.contains(key);
        if refused {
            self.core.count(|stats| stats.refused += 1);
        }
        match (old, new) {
            (None, None) => Ok(()),
            (None, Some(new)) => {
                if refused {
                    self.count_end(known, key);
                }
                let waits = matches!(new.state(), State::Pending | State::Delayed) || refused;
                let story = || in_words_both(key, (None, Some(new)));
                // A schedule fires ([`crate::schedules`]), or a group calls back ([`crate::groups`]).
                let is_made = new.schedule.is_some() || new.callback.is_some();
                let is_made = is_made && commit.writer.op.is_none();
                ensure(waits && (is_made || commit.is_client(&[OpKind::Add], key)), ALLOWED, story)
            }
            (Some(old), None) => self.check_removal(known, commit, key, old),
            (Some(old), Some(new)) => self.check_change(known, &Change { commit, key, old, new }),
        }
    }

    /// A job is removed by a client, by the end of its run if a client has requested that, or by the retention.
    fn check_removal(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        key: &JobKey,
        old: &Job,
    ) -> Result<(), Broken> {
        const LOST: &str = "no acknowledged job is lost";
        let story = || in_words_both(key, (Some(old), None));
        let asked = commit.is_client(&[OpKind::Remove], key);
        if !old.state().is_final() {
            self.count_end(known, key);
        }
        if let Some(inputs) = &mut known.inputs {
            inputs.check_removed(key, old.state().is_final() && !asked, &known.jobs)?;
        }
        match old.state() {
            State::Running | State::Waiting => {
                self.check_release(known, commit, old, None)?;
                ensure(old.then() == Then::Remove, LOST, story)
            }
            state if state.is_final() => {
                // The retention removes it when its time has come.
                let told_us = commit.clock_us();
                let retention_us = i64::try_from(self.retention.as_micros()).unwrap_or(i64::MAX);
                let old_enough = told_us.saturating_sub(old.changed_us) >= retention_us;
                let is_over = old.due_us.is_some_and(|due_us| told_us >= due_us);
                let pruned = commit.writer.op.is_none() && (old_enough || is_over);
                ensure(pruned || asked, LOST, story)
            }
            _ => ensure(asked, LOST, story),
        }
    }

    /// A record changes its priority, the mark of a job that another one depends on, what keeps it out of the queue, or its
    /// state.
    fn check_change(&self, known: &mut CheckerState, change: &Change<'_>) -> Result<(), Broken> {
        let Change { commit, key, old, new } = *change;
        let story = || change.story();
        if change.by(&[OpKind::SetClass]) {
            return ensure(differs_only(old, new, |was| was.priority = new.priority), ALLOWED, story);
        }
        if old.priority != new.priority && !change.by(&[OpKind::Add]) {
            return Err(("a job keeps its priority", story()));
        }
        if let Some(stated) = commit.replaces(key) {
            let is_edit = change.by(&[OpKind::Edit]);
            return UniqueKeys::check_replaced(key, (old, new), stated, is_edit, commit.clock_us());
        }
        if change.by(&[OpKind::Hold, OpKind::Release]) {
            return check_held(change);
        }
        // The first job that depends on it, or gets its result, sets a mark in its record.
        if is_marked_now(old, new) {
            let adds = commit.writer.op.as_ref().is_some_and(|op| op.kind == OpKind::Add);
            return ensure(adds, ALLOWED, story);
        }
        // A record that a follower needs stays for longer than it states.
        if old.state().is_final() && old.due_us != new.due_us && !change.is_by_client() {
            let followed = known.inputs.as_ref().is_some_and(|inputs| inputs.has_followers(key));
            let is_over = old.due_us.is_some_and(|due_us| commit.clock_us() >= due_us);
            let stays = differs_only(old, new, |was| was.due_us = new.due_us);
            return ensure(followed && is_over && stays, ALLOWED, story);
        }
        // Another node may clear the row that this one has cleared.
        let expired = new.history.first().is_some_and(|event| event.kind == EventKind::Expired);
        if expired && !old.state().is_claimed() && old.history != new.history {
            self.count_end(known, key);
            let is_over = old.due_us.is_some_and(|due_us| commit.clock_us() >= due_us);
            let by_node = commit.writer.op.is_none() && old.state() != new.state();
            return ensure(
                is_over && by_node && new.state() == State::Failed && new.attempts == old.attempts,
                "only a job that has not started in time expires",
                story,
            );
        }
        let is_asked = change.by(&[OpKind::Cancel]) || waits_anew(change) || change.is_refused();
        let stays = old.holder().is_none() || new.holder() == old.holder();
        ensure(stays || is_asked, "a held job stays where it is", story)?;
        let starts = !old.state().is_claimed() && new.state().is_claimed();
        let in_time =
            !starts || old.due_us.is_none_or(|due_us| new.started_us.is_some_and(|at_us| at_us < due_us));
        ensure(in_time && (!starts || new.due_us.is_none()), "no job starts too late", story)?;
        // A pass sets aside a job that is due, perhaps one that it has just released.
        let is_due = old.due_us.is_some_and(|due_us| commit.clock_us() >= due_us) && old.due_us == new.due_us;
        let waits = |job: &Job| !job.state().is_claimed() && !job.state().is_final();
        let is_aside = new.state() == State::Delayed && !is_kept(new) && new.unmet() == 0;
        if is_due && waits(old) && is_aside && !change.is_by_client() && old.history == new.history {
            return Ok(());
        }
        // One that is held while it waits for others is taken out when they have ended.
        if old.unmet() > 0 && old.holder().is_some() && new.held_by() == old.holder() {
            let is_stated = old.history == new.history || change.by(&[OpKind::Add]);
            return ensure(new.unmet() == 0 && is_stated, ALLOWED, story);
        }
        // One commit may put the job back and take it out again. Its time may be the same as before if a clock was set back.
        let is_same = || differs_only(old, new, |_| {});
        if !change.is_by_client() && is_kept(new) && (is_moved(old, new) || is_same()) {
            return self.check_filtered(known, change);
        }
        if !change.is_by_client() && is_kept(old) {
            let filters = known.filters.as_mut();
            let may = filters.is_some_and(|filters| filters.lets_go(key, old, new, commit.now_us));
            ensure(may, "a paused or limited job returns to its old place, when it may", story)?;
            return match new.state() {
                State::Pending => Ok(()),
                State::Running => self.check_claim(known, commit, new),
                State::Cancelled => self.check_filtered(known, change),
                _ => Err((ALLOWED, story())),
            };
        }
        self.check_states(known, change)
    }

    /// The edges of the state machine. A job that a filter or a concurrency limit keeps out of the queue is not checked here.
    fn check_states(&self, known: &mut CheckerState, change: &Change<'_>) -> Result<(), Broken> {
        let Change { commit, key, old, new } = *change;
        let (by, refused) = (|kinds: &[OpKind]| change.by(kinds), change.is_refused());
        let story = || change.story();
        match (old.state(), new.state()) {
            (was, is) if was.is_claimed() && is.is_claimed() => check_running(known, change),
            (State::Running | State::Waiting, _) => {
                if new.state().is_final() {
                    self.count_end(known, key);
                }
                self.check_release(known, commit, old, Some(new))
            }
            (State::Pending, State::Running) => self.check_claim(known, commit, new),
            (State::Delayed | State::Crashing, State::Pending | State::Running) => {
                let told_us = commit.clock_us();
                let asked = old.state() == State::Delayed && by(&[OpKind::Add]) || by(&[OpKind::Retry]);
                ensure(asked || told_us >= old.order_us(), "no job starts before its time", story)?;
                // A pass may release a job and claim it immediately.
                if new.state() == State::Running { self.check_claim(known, commit, new) } else { Ok(()) }
            }
            (State::Pending | State::Delayed | State::Crashing, State::Cancelled) => {
                if !change.is_by_client() && !refused {
                    return self.check_filtered(known, change);
                }
                self.count_end(known, key);
                ensure(by(&[OpKind::Cancel]) || refused, ALLOWED, story)
            }
            (State::Delayed, State::Delayed) => {
                let heard = old.unmet() > new.unmet() && old.order_us() == new.order_us();
                ensure(by(&[OpKind::Add]) || heard, ALLOWED, story)
            }
            (State::Pending | State::Crashing, State::Delayed) => {
                ensure(by(&[OpKind::Add]) && new.unmet() > 0, ALLOWED, story)
            }
            (State::Pending, State::Pending) if !change.is_by_client() => {
                let reserves = old.reserved().is_none()
                    && new.reserved().is_some()
                    && old.queue_place() == new.queue_place();
                ensure(is_sorted_anew(old, new) || reserves, ALLOWED, story)
            }
            (was, is) if was == is && !refused => {
                let same = old.history == new.history && old.order_us() == new.order_us();
                let is_edited = commit.writer.op.as_ref().is_some_and(|op| op.edited.contains(key));
                let latest = new.history.first().map(|event| &event.kind);
                let edited = is_edited && matches!(latest, Some(EventKind::Edited { .. }));
                ensure((same || edited) && by(&[OpKind::Add]), ALLOWED, story)
            }
            (was, State::Cancelled) if was.is_final() && refused => {
                self.count_end(known, key);
                ensure(by(&[OpKind::Add]), "a job that has ended starts again only if it is added", story)
            }
            (was, State::Pending | State::Delayed) if was.is_final() => {
                ensure(by(&[OpKind::Add]), "a job that has ended starts again only if it is added", story)
            }
            _ => Err((ALLOWED, story())),
        }
    }

    /// A pass takes a job out of the queue because of a filter, or of a bucket that has no room.
    fn check_filtered(&self, known: &mut CheckerState, change: &Change<'_>) -> Result<(), Broken> {
        let Change { commit, key, old, new } = *change;
        let told_us = commit.clock_us();
        // Its time may have come in the same commit, or its last dependency may have ended. Other checks cover these.
        let could_run = match old.state() {
            State::Pending => true,
            State::Delayed | State::Crashing => is_kept(old) || told_us >= old.order_us(),
            _ => false,
        };
        if new.state().is_final() {
            self.count_end(known, key);
        }
        let count = |count: &dyn Fn(&mut Stats)| self.core.count(count);
        let may =
            known.filters.as_mut().is_some_and(|filters| filters.sorts_out(key, new, commit.now_us, count));
        // A job that was blocked is in the queue at the time when its last dependency ended.
        let freed = old.unmet() > 0 && new.unmet() == 0 && new.order_us() == new.changed_us;
        let stays = new.state().is_final() || old.order_us() == new.order_us() || freed;
        let fits = could_run && may && stays;
        ensure(fits, "a job leaves the queue only for a filter or a bucket", || change.story())
    }

    fn count_end(&self, known: &mut CheckerState, key: &JobKey) {
        *known.ends.entry(key.clone()).or_default() += 1;
        self.core.count(|stats| stats.ends += 1);
    }

    /// A claim is new, and a member gives it to itself.
    fn check_claim(&self, known: &mut CheckerState, commit: &Commit<'_>, new: &Job) -> Result<(), Broken> {
        let story = || format!("job {} is {}", new.id, in_words(Some(new)));
        let Some(Claim { worker, number }) = new.claim().cloned() else {
            return Err(("a running job has a claim", story()));
        };
        let holder = (new.job_type.clone(), worker.clone());
        let member = commit.was_member(known, &holder) && known.is_member(&holder);
        ensure(member, "only members claim jobs", story)?;
        ensure(!known.mode(&holder).is_quiet(), "no quiet worker claims a job", story)?;
        let at_home = known.speaks_for(commit.site, &worker);
        ensure(at_home, "workers claim for themselves", story)?;
        ensure(!new.cancel_requested(), "a cancelled job never starts again", story)?;
        let job = (new.job_type.clone(), new.id.clone());
        known.check_task(&holder, number, new)?;
        known.moved_us.insert(new.job_type.clone(), commit.now_us);
        known.load.add(&holder, commit.now_us);
        known.tenants.claimed(&worker, number, &new.job_type, &new.tenant, commit.now_us);
        if let Some(filters) = &mut known.filters {
            filters.claimed(&job, new, commit.now_us)?;
        }
        known.beats.insert((worker.clone(), number), commit.now_us);
        let given = known.claims.insert((worker, number), (job, commit.now_us));
        ensure(given.is_none(), "no claim is given twice", || format!("{} to {given:?}", story()))
    }

    /// The job's own worker ends a claim while it is a member. Otherwise the claim ends with the membership of its worker.
    fn check_release(
        &self,
        known: &mut CheckerState,
        commit: &Commit<'_>,
        old: &Job,
        new: Option<&Job>,
    ) -> Result<(), Broken> {
        let story = || format!("job {}\n  was {}\n  is  {}", old.id, in_words(Some(old)), in_words(new));
        let holder = known.holder(old).ok_or_else(|| ("a running job has a claim", story()))?;
        let at_home = known.speaks_for(commit.site, &holder.1);
        let ended = at_home && commit.was_member(known, &holder) && known.is_member(&holder);
        let removed = !known.is_member(&holder);
        ensure(ended || removed, "only its worker, or the remover of its worker, ends a run", story)?;
        known.moved_us.insert(old.job_type.clone(), commit.now_us);
        known.load.take(&holder, commit.now_us);
        if let Some(filters) = &mut known.filters {
            filters.released(&(old.job_type.clone(), old.id.clone()), commit.now_us);
        }
        if let Some(Claim { worker, number }) = &old.claim() {
            known.tenants.released(worker, *number, &old.tenant, commit.now_us);
        }
        let Some(new) = new else {
            known.recorded.extend(old.claim().cloned().map(|claim| (claim.worker, claim.number)));
            return Ok(());
        };
        // The next run was cancelled, now or before, and this run did not end by itself.
        let refused_now = commit.refused.contains(&(new.job_type.clone(), new.id.clone()));
        let refused = new.state() == State::Cancelled && refused_now;
        let again = old.then() == Then::Again && !refused_now;
        let waits = matches!(new.state(), State::Pending | State::Delayed);
        match old.then() {
            Then::Again => ensure(waits || refused_now, "a job that was added again runs again", story)?,
            Then::Remove => return Err(("a removed job goes away", story())),
            Then::Keep if old.cancel_requested() => {
                ensure(new.state().is_final(), "a cancelled job never starts again", story)?;
            }
            Then::Keep => {}
        }
        let grown = |history: &[Event]| {
            let kept = history.len().min(old.history.len() + 1);
            kept == history.len() && kept > 0 && history[1..] == old.history[..kept - 1]
        };
        // The end of the run and the refusal are two events. For a run that was to stop they are one.
        let two = refused && !(old.cancel_requested() && grown(&new.history));
        let history = &new.history[usize::from(two).min(new.history.len())..];
        ensure(grown(history), "every end is recorded once", story)?;
        let event = &history[0].kind;
        if removed || !matches!(event, EventKind::Stopped { .. }) {
            known.disturbed_us.insert(old.job_type.clone(), commit.now_us);
        }
        let claim = old.claim().expect("its holder was just found");
        // A run that is to be cancelled and exceeds its time is cancelled without an event for the timeout. Either the run
        // continues, or its worker has not reported yet that it ended by itself.
        let key = (claim.worker.clone(), claim.number);
        let external = known.externals.contains(&claim.worker);
        let did = known.executions.get(&key).map(|run| &run.did);
        let told_nothing = matches!(did, None | Some(Did::Runs | Did::Completed | Did::Failed));
        let unsaid = *event == EventKind::Cancelled && external && told_nothing;
        let expired = !removed && (event.reason().is_some_and(|reason| reason.contains(OVER)) || unsaid);
        if expired {
            self.check_expired(known, commit, old)?;
        }
        let taken = removed || expired && external;
        self.check_streak(known, commit, (old, new), event)?;
        if again {
            let told_us = commit.clock_us();
            let early =
                old.order_us() > told_us && (new.state(), new.order_us()) != (State::Delayed, old.order_us());
            ensure(!early, "a job that was added again for later keeps its delay", story)?;
        }
        if taken {
            return self.check_lost(known, commit, (old, new), refused, event);
        }
        let first = known.recorded.insert((claim.worker.clone(), claim.number));
        ensure(first, "every end is recorded once", story)?;
        let did = known.executions.get(&(claim.worker.clone(), claim.number)).map(|run| run.did.clone());
        let told = match event {
            EventKind::Completed => did == Some(Did::Completed),
            // The run did not stop, or had stopped only a moment before its time was over.
            EventKind::Failed { .. } | EventKind::Crashed { .. } if expired => {
                matches!(did, None | Some(Did::Stopped | Did::Dropped | Did::Crashed | Did::Snoozed))
            }
            EventKind::Failed { .. } if did == Some(Did::Snoozed) => !old.terms().may_snooze(old.snoozes),
            EventKind::Failed { .. } => matches!(did, Some(Did::Failed | Did::Crashed)),
            EventKind::Snoozed => did == Some(Did::Snoozed) && (again || old.terms().may_snooze(old.snoozes)),
            EventKind::Crashed { .. } => did == Some(Did::Crashed),
            // Stopped before it began: if many runs start together, the worker delays some of them for a moment.
            EventKind::Stopped { .. } => matches!(did, None | Some(Did::Stopped | Did::Dropped)),
            EventKind::Cancelled => {
                matches!(did, None | Some(Did::Stopped | Did::Dropped | Did::Crashed | Did::Snoozed))
            }
            EventKind::Added
            | EventKind::Expired
            | EventKind::Started
            | EventKind::Edited { .. }
            | EventKind::Held { .. }
            | EventKind::Released { .. } => false,
        };
        ensure(told, "the recorded end is what the handler did", || format!("{did:?}, but {}", story()))?;
        let right = match event {
            _ if again => waits,
            _ if refused => true,
            EventKind::Completed => new.state() == State::Completed,
            EventKind::Failed { .. } => new.state() == State::Failed,
            EventKind::Cancelled => new.state() == State::Cancelled,
            EventKind::Crashed { .. } => {
                let wait_us = wait_us(old, new.crashes);
                new.state() == State::Crashing && new.order_us() == new.changed_us.saturating_add(wait_us)
            }
            EventKind::Snoozed => new.state() == State::Delayed,
            _ => new.state() == State::Pending,
        };
        ensure(right, "an end leads to its state", story)?;
        if !again {
            let counts = expired || did != Some(Did::Snoozed);
            ensure(counted_once(old, new, event, counts), "attempts and snoozes are counted once", story)?;
        }
        let tries_left = !old.terms().is_last(new.attempts);
        ensure(new.state() != State::Crashing || tries_left, "a job has no more attempts than allowed", story)
    }
}

/// Whether a client adds a job again with dependencies.
fn waits_anew(change: &Change<'_>) -> bool {
    change.by(&[OpKind::Add]) && change.commit.states(change.key).is_some_and(|new| !new.after.is_empty())
}

/// A client holds a job that waits, or releases it: then it is back in its place.
fn check_held(change: &Change<'_>) -> Result<(), Broken> {
    let Change { commit, old, new, .. } = *change;
    let stays = (old.order_us(), old.priority, old.attempts) == (new.order_us(), new.priority, new.attempts);
    let waits = !old.state().is_claimed() && !old.state().is_final() && old.unmet() == new.unmet();
    let is_right = match new.holder() {
        Some(_) => change.by(&[OpKind::Hold]) && old.holder().is_none(),
        // Its time has come for the writer, or soon after that.
        None => {
            let in_time = new.state() == State::Delayed || commit.clock_us() >= new.order_us();
            change.by(&[OpKind::Release])
                && old.holder().is_some()
                && in_time
                && (new.unmet() > 0 || !is_kept(new))
        }
    };
    ensure(stays && waits && is_right, "a job is held, and released to its place", || change.story())
}

/// A job keeps its claim while its run goes on, and only clients change what follows the run.
fn check_running(known: &mut CheckerState, change: &Change<'_>) -> Result<(), Broken> {
    let Change { commit, old, new, .. } = *change;
    let story = || change.story();
    ensure(old.claim() == new.claim(), "a claim changes hands only through the queue", story)?;
    if let Some(Claim { worker, number }) = &new.claim() {
        known.tenants.goes_on(worker, *number, new.state() == State::Waiting, commit.now_us);
        if old.state() == State::Waiting {
            known.beats.insert((worker.clone(), *number), commit.now_us);
        }
    }
    let unchanged = old.cancel_requested() == new.cancel_requested()
        && (old.then() == new.then() || change.is_refused() && new.then() == Then::Keep)
        && old.history == new.history;
    let asked = change.by(&[OpKind::Add, OpKind::Cancel, OpKind::Restart, OpKind::Remove]);
    ensure(asked || unchanged, ALLOWED, story)?;
    ensure(old.history == new.history, ALLOWED, story)
}

/// The record of a job before and after a commit.
fn in_words_both(key: &JobKey, (old, new): (Option<&Job>, Option<&Job>)) -> String {
    format!("job {key:?}\n  was {}\n  is  {}", in_words(old), in_words(new))
}

/// Whether a job has changed its place: its state, its time, or what keeps it out of the queue.
fn is_moved(old: &Job, new: &Job) -> bool {
    (old.state(), old.changed_us, &old.paused(), &old.limited())
        != (new.state(), new.changed_us, &new.paused(), &new.limited())
}

/// Whether the only change is that a first job now depends on this one, or follows it.
fn is_marked_now(old: &Job, new: &Job) -> bool {
    let is_awaited = old.awaited.is_none() && new.awaited.is_some();
    let is_followed = !old.followed && new.followed;
    (is_awaited || is_followed)
        && differs_only(old, new, |was| {
            was.awaited = if is_awaited { new.awaited } else { was.awaited };
            was.followed |= is_followed;
        })
}

/// Whether the change from `old` to `new` is exactly what `change` does.
fn differs_only(old: &Job, new: &Job, change: impl FnOnce(&mut Job)) -> bool {
    let mut was = old.clone();
    change(&mut was);
    serde_json::to_vec(&was).ok() == serde_json::to_vec(new).ok()
}

/// How long a job waits after its crash. What it states itself comes first, whatever the record says of its run.
fn wait_us(job: &Job, crashes: u32) -> i64 {
    let mut terms = job.terms();
    terms.waits = job.retry.backoff.clone().or(terms.waits);
    terms.wait_us(&job.id, crashes)
}

/// Whether a job's attempts and snoozes have grown by what its run was. `counts` states whether a run that failed was an attempt.
fn counted_once(old: &Job, new: &Job, event: &EventKind, counts: bool) -> bool {
    let attempt = counts
        && matches!(event, EventKind::Completed | EventKind::Failed { .. } | EventKind::Crashed { .. });
    // A run that was to stop, and crashed instead, is an attempt, too.
    let crashed = *event == EventKind::Cancelled && new.attempts == old.attempts + 1;
    let attempts = crashed || new.attempts == old.attempts + u32::from(attempt);
    attempts && new.snoozes == old.snoozes + u32::from(*event == EventKind::Snoozed)
}
