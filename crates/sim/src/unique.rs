//! The invariants of unique keys, and of options, checked at every commit. [`turnwise_queue::check`] checks that records and rows of keys agree. This module
//! checks who may have a key, by rules of its own.
//!
//! - No two jobs have one key. For a period, a job has it until the end that its record states, or until a client removes it.
//! - A job that an answer names as the holder of a key has that key: it waits, or has not ended, or its period is not over, as its mode says. So no key
//!   blocks without a job.
//! - A job that waits again has its key, unless another one has it.
//! - A job that an addition replaces stays where it is, or waits for the time that the addition states.
//! - A run gets the options that were stated last before its claim, whether its own client or an addition with its key stated them.

use std::collections::{BTreeMap, BTreeSet};

use turnwise_queue::unique::{Found, Mode, OnConflict, Unique, Within};
use turnwise_queue::{EventKind, Job, JobSpec, NewJob, State, Then};

use crate::broken::{Broken, ensure, in_words};
use crate::ledger::JobKey;

const ONE: &str = "no two jobs have one unique key";
const BLOCKS: &str = "no unique key blocks without a job";

/// Tenant, type if the key is one of a type, and text of a key.
type Key = (String, Option<String>, String);

/// The key of a job, if it has one.
fn key_of(job_type: &str, spec: &JobSpec) -> Option<Key> {
    let Unique { by, within, .. } = spec.unique.as_ref()?;
    let turnwise_queue::unique::By::Key(text) = by else { return None };
    let of_type = (*within != Within::Tenant).then(|| job_type.to_owned());
    Some((spec.tenant.clone(), of_type, text.clone()))
}

/// Whether a job waits, or will after its run.
fn waits(job: &Job) -> bool {
    !job.state().is_final() && (!job.state().is_claimed() || job.then() == Then::Again)
}

/// Whether a job may have its key until it gives it up, by its mode.
fn may_hold(job: &Job) -> bool {
    match job.unique.as_ref().map(|unique| unique.mode) {
        Some(Mode::WhileWaiting) => waits(job),
        Some(Mode::UntilEnd) => !job.state().is_final(),
        Some(Mode::Period(_)) | None => false,
    }
}

/// The script in a job's options.
fn words(options: &str) -> &str {
    options.trim_matches('"').trim_end()
}

/// A period for which a job has a key.
#[derive(Debug, Clone)]
struct Period {
    job: JobKey,
    hash: String,
    /// Its end, by the store's clock.
    until_us: i64,
    /// When its row was cleared after its end, the key was given to another job, or a client removed the job, in µs since the world began.
    over_us: i64,
}

/// What the checker knows about unique keys.
#[derive(Default)]
pub struct UniqueKeys {
    /// The jobs whose records state that they hold each key.
    holders: BTreeMap<Key, BTreeSet<JobKey>>,
    /// Until when each job may have held a key by its mode, in µs since the world began; the highest number if it may now.
    held_us: BTreeMap<(Key, JobKey), i64>,
    periods: BTreeMap<Key, Vec<Period>>,
    /// The options of each job that clients have stated, and when.
    stated: BTreeMap<JobKey, Vec<(i64, String)>>,
}

/// What a commit does to a job.
pub(crate) struct Change<'a> {
    pub key: &'a JobKey,
    pub old: Option<&'a Job>,
    pub new: Option<&'a Job>,
    /// What a client states of it: in its own addition, or in one that replaces it.
    pub stated: Option<&'a NewJob>,
    /// Whether that is added only if it does not exist.
    pub once: bool,
    /// Whether a client removes it, now or by an earlier request.
    pub is_removed: bool,
    /// The clock of the writer, in µs since the epoch.
    pub clock_us: i64,
    pub now_us: i64,
}

/// Checks an addition that runs a job again: one of its own, or one with its unique key.
fn check_again(change: &Change<'_>) -> Result<(), Broken> {
    let (Some(old), Some(new), Some(stated)) = (change.old, change.new, change.stated) else { return Ok(()) };
    let (is_own, conflict) =
        (stated.id == change.key.1, stated.unique.as_ref().map(|unique| unique.on_conflict));
    let story = || {
        let words = (in_words(Some(old)), in_words(Some(new)));
        format!("{:?} by {}\n  was {}\n  is  {}", change.key, stated.id, words.0, words.1)
    };
    if is_own {
        let is_new = !change.once || old.then() == Then::Remove;
        return ensure(is_new, "what is added once is not added again", story);
    }
    if conflict == Some(OnConflict::After) {
        let same_key = key_of(&stated.job_type, &stated.spec) == key_of(&change.key.0, &old.spec);
        let runs = old.state().is_claimed() && new.state().is_claimed();
        return ensure(
            same_key && runs,
            "only a job that runs with the same unique key runs again for another",
            story,
        );
    }
    Ok(())
}

impl UniqueKeys {
    /// Notes that a row of a key with this end is cleared. A clock that is ahead may end a period early.
    pub(crate) fn cleared(&mut self, hash: &str, until_us: i64, clock_us: i64, now_us: i64) {
        let is_it = |period: &&mut Period| period.hash == hash && period.until_us == until_us;
        for period in self.periods.values_mut().flatten().filter(is_it).filter(|_| until_us <= clock_us) {
            period.over_us = period.over_us.min(now_us);
        }
    }

    /// Notes what a commit does to a job. [`check`](Self::check) must follow when all of its jobs are noted.
    pub(crate) fn note(&mut self, change: &Change<'_>) {
        let Change { key, old, new, stated, is_removed, now_us, .. } = *change;
        if let Some(new) = stated {
            let options = words(new.options.get()).to_owned();
            self.stated.entry(key.clone()).or_default().push((now_us, options));
        }
        let of = |job: Option<&Job>| job.and_then(|job| key_of(&key.0, &job.spec));
        if let (Some(old), Some(name)) = (old, of(old)) {
            if old.unique_key.as_ref().is_some_and(|key| key.held) {
                self.holders.entry(name.clone()).or_default().remove(key);
            }
            if may_hold(old) {
                self.held_us.insert((name.clone(), key.clone()), now_us);
            }
            let periods = self.periods.get_mut(&name).into_iter().flatten();
            for period in periods.filter(|period| period.job == *key && is_removed) {
                period.over_us = period.over_us.min(now_us);
            }
        }
        if let (Some(new), Some(name)) = (new, of(new)) {
            if new.unique_key.as_ref().is_some_and(|key| key.held) {
                self.holders.entry(name.clone()).or_default().insert(key.clone());
            }
            if may_hold(new) {
                self.held_us.insert((name, key.clone()), i64::MAX);
            }
        }
    }

    /// Checks what a commit does to a job.
    pub(crate) fn check(&mut self, change: &Change<'_>) -> Result<(), Broken> {
        let Change { key, old, new, clock_us, now_us, .. } = *change;
        check_again(change)?;
        let Some((job, name)) = new.and_then(|job| Some((job, key_of(&key.0, &job.spec)?))) else {
            return Ok(());
        };
        let holders = self.holders.get(&name).cloned().unwrap_or_default();
        let periods = self.periods.entry(name.clone()).or_default();
        let story = || format!("{name:?} of {key:?}, {holders:?} and {periods:?}: {}", in_words(Some(job)));
        ensure(holders.len() <= 1, ONE, story)?;
        let others = || periods.iter().filter(|period| period.job != *key && period.over_us == i64::MAX);
        let was = old.and_then(|old| old.unique_key.as_ref());
        let is = job.unique_key.as_ref();
        let takes = is.filter(|is| was != Some(*is) && (is.held || is.until_us.is_some()));
        if let Some(takes) = takes {
            let is_free = others().all(|period| period.until_us <= clock_us);
            // The adds of one commit have times of their own: one may take the key when the period of another one is over.
            let is_over = takes.until_us.is_some_and(|until_us| until_us <= clock_us);
            let is_alone = takes.held || is_over || holders.is_empty();
            ensure(is_free && is_alone, ONE, story)?;
            periods.iter_mut().for_each(|period| period.over_us = period.over_us.min(now_us));
            if let Some(until_us) = takes.until_us {
                let hash = takes.hash.clone();
                periods.push(Period { job: key.clone(), hash, until_us, over_us: i64::MAX });
            }
        } else if job.unique.as_ref().is_some_and(|unique| unique.mode == Mode::WhileWaiting)
            && old.is_some_and(|old| old.state().is_claimed())
            && !job.state().is_claimed()
            && !job.state().is_final()
            && is.is_some_and(|is| !is.held)
        {
            // A commit that returns several jobs of a lost worker may free the key behind this one.
            let mut held = self.held_us.iter().filter(|((of, holder), _)| *of == name && holder != key);
            let is_freed_now = held.any(|(_, until_us)| *until_us == now_us);
            let is_taken = !holders.is_empty() || others().next().is_some() || is_freed_now;
            ensure(is_taken, "a job that waits again takes its unique key, if that is free", story)?;
        }
        Ok(())
    }

    /// Checks that a job of which a client was told that it has this key had it, at some time since `begun_us`, in µs since the world began. `clock_us` is
    /// the client's clock then.
    pub(crate) fn check_found(
        &self,
        new: &NewJob,
        found: &Found,
        begun_us: i64,
        clock_us: i64,
    ) -> Result<(), Broken> {
        let holder = (found.job_type.clone(), found.id.clone());
        let Some(name) = key_of(&new.job_type, &new.spec) else {
            return Err((BLOCKS, format!("{} has no key, and its answer names {found:?}", new.id)));
        };
        let had = match found.until_us {
            None => self.held_us.get(&(name.clone(), holder)).is_some_and(|until_us| *until_us >= begun_us),
            Some(until_us) => {
                let periods = self.periods.get(&name).into_iter().flatten();
                let mut periods =
                    periods.filter(|period| period.job == holder && period.until_us == until_us);
                until_us > clock_us && periods.any(|period| period.over_us >= begun_us)
            }
        };
        ensure(had, BLOCKS, || format!("the answer to {} names {found:?}, by {name:?} at {clock_us}", new.id))
    }

    /// Checks a job that a client edits, or that an addition replaces.
    pub(crate) fn check_replaced(
        key: &JobKey,
        (old, new): (&Job, &Job),
        stated: &NewJob,
        is_edit: bool,
        clock_us: i64,
    ) -> Result<(), Broken> {
        const STAYS: &str = "a job that is edited keeps all but what it is given";
        let story = || {
            let words = (in_words(Some(old)), in_words(Some(new)));
            format!("{key:?} gets {:?}\n  was {}\n  is  {}", stated.not_before_us, words.0, words.1)
        };
        let replaces = stated.unique.as_ref().is_some_and(|unique| unique.on_conflict == OnConflict::Replace);
        let same_key = key_of(&stated.job_type, &stated.spec) == key_of(&key.0, &old.spec);
        ensure(is_edit || replaces && same_key, "a job is replaced only by one with its unique key", story)?;
        ensure(
            !old.state().is_claimed() && !old.state().is_final(),
            "only jobs that wait are edited",
            story,
        )?;
        let kept = |job: &Job| {
            let numbers = (job.priority, job.attempts, job.crashes, job.snoozes, job.unmet());
            (job.tenant.clone(), job.unique.clone(), job.unique_key.clone(), numbers, job.holder())
        };
        let edited = matches!(new.history.first().map(|event| &event.kind), Some(EventKind::Edited { .. }));
        ensure(kept(old) == kept(new) && edited, STAYS, story)?;
        let states = [State::Pending, State::Delayed, State::Crashing];
        let crashes = new.state() == State::Crashing && old.state() != State::Crashing;
        ensure(states.contains(&new.state()) && !crashes, STAYS, story)?;
        let later_us = stated.not_before_us.filter(|at_us| *at_us > clock_us);
        ensure(later_us.is_none_or(|at_us| new.order_us() == at_us), STAYS, story)
    }

    /// Checks the options of a run whose claim was given at `given_us`, in µs since the world began.
    pub(crate) fn check_options(&self, key: &JobKey, options: &str, given_us: i64) -> Result<(), Broken> {
        let Some(stated) = self.stated.get(key) else { return Ok(()) };
        let before = stated.iter().rposition(|(at_us, _)| *at_us < given_us).unwrap_or(0);
        let is_stated = stated[before..].iter().any(|(_, stated)| stated == words(options));
        ensure(is_stated, "a run gets the options that were stated last", || {
            format!("{key:?} gets {} and not {:?}", words(options), &stated[before..])
        })
    }
}
