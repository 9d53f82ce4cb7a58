//! What the runs of external workers are charged with: a fair share for each job type that someone here works on.
//!
//! *Model.* A run is charged once it has ended, with the time since it was started, by whoever recorded its end: the server that its
//! worker told, or that removed its worker. The record says since when it ran, so a restart of this server, or of another one that
//! takes over, changes nothing. A server that gave a job and does not record its end finds that the claim is gone, and
//! forgets the run. While a run lasts it counts as what it is expected to cost, at the server that gave it.
//!
//! *What is lost.* What a server that dies has charged in its last second. A run whose worker a server had begun to remove when it
//! died, if a worker in a process that starts finishes that. And where the outcome of an end is unknown even here, because the
//! store could not be reached, the run counts as ended here: if its worker then told another server, it is charged twice.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnwise_queue::workers::GivenBack;
use turnwise_queue::{Job, Keyspace, Result, claims};
use turnwise_store::Store;

use crate::FairRules;
use crate::external::MAX_EXTERNAL_SLOTS;
use crate::fair_share::{FairShare, Turn};

/// Types that accounts are kept for; with more of them those that nobody runs a job of are forgotten, and read again.
const MAX_TYPES: usize = 1_000;
/// Between two looks at what long runs have cost, in µs.
const TEND_US: i64 = 1_000_000;
/// Between two looks for runs that have ended elsewhere, in µs; only at workers with runs that have lasted as long. Those that
/// ask here for jobs are looked at with each answer.
const SWEEP_US: i64 = 5_000_000;
/// Workers that one such look is at, at most. The next one goes on after them.
const SWEEP_WORKERS: usize = 100;
/// Claims that it reads, about.
const SWEEP_CLAIMS: usize = 2_000;

/// The accounts of all types.
#[derive(Default)]
pub(crate) struct Accounts {
    by_type: Mutex<BTreeMap<String, Arc<Account>>>,
}

/// The account of one type.
pub(crate) struct Account {
    pub fair: FairShare,
    runs: Mutex<Runs>,
}

#[derive(Default)]
struct Runs {
    /// By worker and claim.
    running: BTreeMap<(String, u64), Run>,
    tended_us: i64,
    swept_us: i64,
    /// The worker that was looked at last.
    swept: String,
}

/// A run of a job.
struct Run {
    turn: Turn,
    ending: Option<Ending>,
}

/// An end that was to be recorded here.
#[derive(Debug, Clone, Copy)]
struct Ending {
    by_itself: bool,
    at_us: i64,
}

/// What is known here of a run whose end is to be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Not,
    Runs,
    /// Its end was tried before, with an unknown outcome.
    Tried,
}

impl Accounts {
    /// The account of a type, kept for `charger`.
    pub fn of(&self, store: &Store, keys: &Keyspace, job_type: &str, charger: &str) -> Arc<Account> {
        let mut by_type = self.by_type();
        if let Some(account) = by_type.get(job_type) {
            return account.clone();
        }
        if by_type.len() >= MAX_TYPES {
            by_type.retain(|_, account| !account.runs().running.is_empty());
        }
        let fair = FairShare::new(store.clone(), keys.clone(), job_type, charger, FairRules::default());
        let account = Arc::new(Account { fair, runs: Mutex::default() });
        by_type.insert(job_type.to_owned(), account.clone());
        account
    }

    /// The types that there is something to look after of: jobs run, or what others have charged was never read.
    pub fn types(&self) -> Vec<String> {
        let is_busy = |runs: &Runs| !runs.running.is_empty() || runs.tended_us == 0;
        let by_type = self.by_type();
        let busy = by_type.iter().filter(|(_, account)| is_busy(&account.runs()));
        busy.map(|(job_type, _)| job_type.clone()).collect()
    }

    fn by_type(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Account>>> {
        self.by_type.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runs {
    fn take(&mut self, worker: &str, claim: u64) -> Option<Run> {
        self.running.remove(&(worker.to_owned(), claim))
    }

    /// The claims of a worker that are known here.
    fn of(&self, worker: &str) -> Vec<u64> {
        let from = (worker.to_owned(), 0);
        let known = self.running.range(from..).map(|((name, claim), _)| (name, *claim));
        known.take_while(|(name, _)| *name == worker).map(|(_, claim)| claim).collect()
    }

    /// Whom to look at next, and what is known of them.
    fn to_sweep(&self, now_us: i64) -> Vec<(String, Vec<u64>)> {
        let swept = (self.swept.clone(), u64::MAX);
        let behind = self.running.range((Excluded(swept.clone()), Unbounded));
        let mut found: Vec<(String, Vec<u64>)> = Vec::new();
        for ((worker, _), run) in behind.chain(self.running.range(..=swept)) {
            let is_long = now_us.saturating_sub(run.turn.started_us) >= SWEEP_US;
            if is_long && found.last().is_none_or(|(last, _)| last != worker) {
                if found.len() == SWEEP_WORKERS {
                    break;
                }
                found.push((worker.clone(), self.of(worker)));
            }
        }
        found
    }
}

impl Account {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker has been given a job, perhaps once more; one of the tenant `left` could start, too, and was left to another worker.
    pub fn given(&self, worker: &str, job: &Job, left: Option<&str>) {
        let (Some(claim), Some(started_us)) = (job.claim(), job.started_us) else { return };
        let mut runs = self.runs();
        let run = (worker.to_owned(), claim.number);
        let start = || Run { turn: self.fair.start(&job.tenant, left, false, started_us), ending: None };
        runs.running.entry(run).or_insert_with(start);
    }

    /// The claims of a worker that are known here.
    pub fn known(&self, worker: &str) -> Vec<u64> {
        self.runs().of(worker)
    }

    /// The end of a run is about to be recorded here.
    pub fn ends(&self, worker: &str, claim: u64, by_itself: bool, now_us: i64) -> Known {
        match self.runs().running.get_mut(&(worker.to_owned(), claim)) {
            None => Known::Not,
            Some(Run { ending: Some(_), .. }) => Known::Tried,
            Some(run) => {
                run.ending = Some(Ending { by_itself, at_us: now_us });
                Known::Runs
            }
        }
    }

    /// It goes on: its end was refused.
    pub fn ends_not(&self, worker: &str, claim: u64) {
        if let Some(run) = self.runs().running.get_mut(&(worker.to_owned(), claim)) {
            run.ending = None;
        }
    }

    /// The end of a run was recorded here. Whether it was known.
    pub fn ended(&self, worker: &str, claim: u64, by_itself: bool) -> bool {
        let run = self.runs().take(worker, claim);
        run.map(|run| self.fair.end(run.turn, by_itself)).is_some()
    }

    /// A claim does not hold its job any more, and someone else has recorded that.
    pub fn ended_elsewhere(&self, worker: &str, claim: u64) {
        if let Some(run) = self.runs().take(worker, claim) {
            self.fair.abandon(&run.turn);
        }
    }

    /// Runs of a worker were ended here, because it was removed.
    pub fn given_back(&self, worker: &str, runs: &[GivenBack]) {
        for GivenBack { tenant, claim, started_us } in runs {
            if !self.ended(worker, *claim, false) {
                self.fair.end_unknown(tenant, *started_us, false);
            }
        }
    }

    /// A worker is gone: whoever removed it charges what it ran.
    pub fn left(&self, worker: &str) {
        let known = self.known(worker);
        self.compare(worker, &known, &[]);
    }

    /// Of the claims of a worker that were known here before, these hold a job.
    pub fn compare(&self, worker: &str, known: &[u64], held: &[u64]) {
        for claim in known.iter().filter(|claim| !held.contains(claim)) {
            let Some(run) = self.runs().take(worker, *claim) else { continue };
            match run.ending {
                Some(Ending { by_itself, at_us }) => self.fair.end_at(run.turn, by_itself, at_us),
                None => self.fair.abandon(&run.turn),
            }
        }
    }

    /// Brings everything up to date, now and then: what others have charged, and what long runs have cost. What cannot be read
    /// only costs fairness.
    pub async fn tend(&self, store: &Store, keys: &Keyspace, job_type: &str) {
        if let Err(error) = self.try_tend(store, keys, job_type).await {
            tracing::debug!(job_type, %error, "cannot read what tenants were charged");
        }
    }

    async fn try_tend(&self, store: &Store, keys: &Keyspace, job_type: &str) -> Result<()> {
        self.fair.sync_if_due().await?;
        let now_us = store.runtime().now_us();
        let to_sweep = {
            let mut runs = self.runs();
            if now_us.saturating_sub(runs.tended_us) < TEND_US {
                return Ok(());
            }
            runs.tended_us = now_us;
            for run in runs.running.values_mut() {
                self.fair.goes_on(&mut run.turn);
            }
            if now_us.saturating_sub(runs.swept_us) < SWEEP_US {
                return Ok(());
            }
            runs.swept_us = now_us;
            runs.to_sweep(now_us)
        };
        if to_sweep.is_empty() {
            return Ok(());
        }
        let tx = store.begin().await?;
        let mut claims = 0;
        for (worker, known) in to_sweep {
            let held = claims::numbers(&tx, keys, job_type, &worker, MAX_EXTERNAL_SLOTS).await?;
            claims += held.len();
            self.compare(&worker, &known, &held);
            self.runs().swept = worker;
            if claims >= SWEEP_CLAIMS {
                break;
            }
        }
        Ok(())
    }
}
