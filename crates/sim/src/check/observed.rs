//! What handlers and external workers see: which runs start, what they do, and which answers they are given.

use turnwise_queue::locks::{LockAt, Spot};

use super::*;
use crate::inputs::Given;
use crate::ledger::Execution;

impl Checker {
    /// Notes that a handler starts a run with these options. Returns how often the job ran before.
    pub fn on_run(&self, site: Site, job: &Job, options: &str) -> usize {
        let claim = job.claim().cloned().expect("a claimed job has a claim");
        let key = (job.job_type.clone(), job.id.clone());
        self.core.note(site, "runs", format!("{} {} {}", key.0, key.1, claim.number));
        self.core.count(|stats| stats.runs += 1);
        let known = &mut *lock(&self.known);
        let claim = (claim.worker, claim.number);
        match known.claims.get(&claim) {
            Some((job, given_us)) if *job == key => {
                if let Err((invariant, story)) = known.unique.check_options(&key, options, *given_us) {
                    self.core.violated(invariant, story);
                }
            }
            _ => self.core.violated("only claimed jobs run", format!("{key:?} under {claim:?} at {site}")),
        }
        let begun_us = self.core.elapsed_us();
        let runs = known.runs.entry(key.clone()).or_default();
        *runs += 1;
        let before_this = *runs - 1;
        let run = Execution { site, job: key, begun_us, done_us: begun_us, did: Did::Runs };
        if let Some(before) = known.executions.insert(claim.clone(), run) {
            self.core
                .violated("a claim is executed once", format!("{claim:?} at {site}, before: {before:?}"));
        }
        before_this
    }

    /// Checks the inputs that a run has read since `begun_us`, in µs since the world began.
    pub fn on_given(&self, site: Site, job: &Job, given: &Given, begun_us: i64) {
        let key = (job.job_type.clone(), job.id.clone());
        self.core.count(|stats| stats.given += 1);
        let checked = self.known(|known| match &known.inputs {
            Some(inputs) => inputs.check_given(&key, given, begun_us),
            None => Ok(()),
        });
        if let Err((invariant, story)) = checked {
            self.core.violated(invariant, format!("at {site}: {story}"));
        }
    }

    /// Notes what a handler did in its run.
    pub fn on_done(&self, site: Site, claim: &Claim, did: Did) {
        self.core.note(site, "ends", format!("{} {did:?}", claim.number));
        let known = &mut *lock(&self.known);
        if let Some(run) = known.executions.get_mut(&(claim.worker.clone(), claim.number)) {
            (run.did, run.done_us) = (did, self.core.elapsed_us());
        }
    }

    /// Notes that a run requests a lock.
    pub fn on_ask(&self, claim: &Claim, lock: &LockAt) {
        self.known(|known| known.locks.as_mut().map(|locks| locks.ask(claim, &lock.spot)));
    }

    /// Notes that a run gives a lock back.
    pub fn on_give_back(&self, claim: &Claim, spot: &Spot) {
        self.known(|known| known.locks.as_mut().map(|locks| locks.give_back(claim, spot)));
    }

    /// Checks that a run that learns of its lock has it. This must hold while its claim holds the job.
    pub fn on_granted(&self, site: Site, job: &Job, claim: &Claim, lock: &LockAt) {
        let key = (job.job_type.clone(), job.id.clone());
        let wrong = self.known(|known| {
            let record = known.jobs.get(&key)?.record.as_ref()?;
            let holds = known.locks.as_ref()?.holds(&key, claim, lock);
            (record.claim() == Some(claim) && !holds).then(|| in_words(Some(record)))
        });
        if let Some(record) = wrong {
            let story = format!("{key:?} was told at {site} that it has {lock}, and is {record}");
            self.core.violated("acknowledged changes are in the store", story);
        }
    }

    /// Notes that an external worker has learned that it is a member.
    pub fn moves_in(&self, worker: &str, link: &Arc<Link>) {
        lock(&self.known).homes.insert(worker.to_owned(), link.clone());
    }

    /// Notes that an external worker no longer works under this id.
    pub fn moves_out(&self, worker: &str, leaves: bool) {
        let known = &mut *lock(&self.known);
        known.homes.remove(worker);
        if leaves {
            known.left.insert(worker.to_owned());
        }
    }

    /// Checks an acknowledged end: an external worker has learned that the end of its run is recorded.
    pub fn on_acknowledged_end(&self, site: Site, claim: &Claim) {
        let recorded = lock(&self.known).recorded.contains(&(claim.worker.clone(), claim.number));
        if !recorded {
            self.core
                .violated("acknowledged changes are in the store", format!("the end of {claim:?} at {site}"));
        }
    }

    /// Checks a refused end, after an external worker has learned of it. The refusal is wrong while the worker is a member
    /// and its claim holds the job, or was the last claim to end it.
    pub fn on_refused_end(&self, site: Site, job: &Job, claim: &Claim) {
        let known = &*lock(&self.known);
        let record =
            known.jobs.get(&(job.job_type.clone(), job.id.clone())).and_then(|rows| rows.record.as_ref());
        let holds =
            record.is_some_and(|job| job.claim() == Some(claim) || job.ended_claim.as_ref() == Some(claim));
        if holds && known.is_member(&(job.job_type.clone(), claim.worker.clone())) {
            let story = format!("{claim:?} at {site}, but the job is {}", in_words(record));
            self.core.violated("an end that is sent again is acknowledged again", story);
        }
    }
}
