//! Charges the runs of external workers. A server keeps one account for each job type that its workers request.
//!
//! *Model.* A run is charged when it has ended, with the time since its start. The server that records the end charges
//! it: the server that the worker reported to, or that removed the worker. The record holds the start time, so a
//! restart of this server, or a takeover by another one, loses nothing. A server may have claimed a job whose end
//! another server records. It then detects that the claim is gone, and forgets the run. While a run lasts, the server
//! that claimed it counts it with its expected cost.
//!
//! *What is not charged.* If a server dies, the charges of its last second are lost. If it dies while it removes a
//! worker, and a worker inside a starting process completes the removal, the removed worker's runs are not charged.
//!
//! *What is charged twice.* If the outcome of an end is unknown because the store was unreachable, the run counts as
//! ended here. If its worker then reports to another server, that server charges the run, too.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::{Arc, Mutex};

use turnwise_queue::workers::RunSummary;
use turnwise_queue::{Job, Keyspace, Result, claims};
use turnwise_store::Store;

use crate::FairRules;
use crate::external::MAX_EXTERNAL_SLOTS;
use crate::fair_share::{FairShare, RunCharges};
use crate::sync::lock;

/// The maximum number of job types with an account. Beyond it, accounts without runs are dropped, and read again when
/// needed.
const MAX_TYPES: usize = 1_000;
/// The time between two updates of the expected cost of long runs, in µs.
const MAINTAIN_US: i64 = 1_000_000;
/// The time between two sweeps for runs that have ended elsewhere, in µs. A sweep covers only workers with runs that
/// are at least as old. The runs of workers that request jobs here are compared at each response.
const SWEEP_US: i64 = 5_000_000;
/// The maximum number of workers that one sweep covers. The next sweep continues after them.
const SWEEP_WORKERS: usize = 100;
/// The approximate number of claims that a sweep reads.
const SWEEP_CLAIMS: usize = 2_000;

/// The accounts of all types.
#[derive(Default)]
pub(crate) struct Accounts {
    by_type: Mutex<BTreeMap<String, Arc<Account>>>,
}

/// The account of one type.
pub(crate) struct Account {
    pub fair: FairShare,
    /// The nodes that claim from the type's queue, and when they were read, in µs.
    pub contenders: Mutex<Option<(i64, Arc<[String]>)>>,
    runs: Mutex<Runs>,
}

#[derive(Default)]
struct Runs {
    /// By worker and claim. Workers without runs are missing.
    running: BTreeMap<String, BTreeMap<u64, Run>>,
    maintained_us: i64,
    swept_us: i64,
    /// The last worker that a sweep covered.
    swept: String,
}

/// A run of a job.
struct Run {
    charges: RunCharges,
    ending: Option<Ending>,
}

/// An end that this server tried to record.
#[derive(Debug, Clone, Copy)]
struct Ending {
    by_itself: bool,
    at_us: i64,
}

/// What this server knows of a run whose end it is about to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunStatus {
    /// This server does not know the run.
    Unknown,
    Running,
    /// An earlier attempt to record its end had an unknown outcome.
    EndTried,
}

impl Accounts {
    /// The account of a type; `charger` is the name that its charges are written under.
    pub fn of(&self, store: &Store, keys: &Keyspace, job_type: &str, charger: &str) -> Arc<Account> {
        let mut by_type = lock(&self.by_type);
        if let Some(account) = by_type.get(job_type) {
            return account.clone();
        }
        if by_type.len() >= MAX_TYPES {
            by_type.retain(|_, account| !lock(&account.runs).running.is_empty());
        }
        let fair = FairShare::new(store.clone(), keys.clone(), job_type, charger, FairRules::default());
        let account = Arc::new(Account { fair, contenders: Mutex::default(), runs: Mutex::default() });
        by_type.insert(job_type.to_owned(), account.clone());
        account
    }

    /// The types whose accounts need [`Account::maintain`]: those with running jobs, and those never maintained before.
    pub fn types(&self) -> Vec<String> {
        let is_busy = |runs: &Runs| !runs.running.is_empty() || runs.maintained_us == 0;
        let by_type = lock(&self.by_type);
        let busy = by_type.iter().filter(|(_, account)| is_busy(&lock(&account.runs)));
        busy.map(|(job_type, _)| job_type.clone()).collect()
    }
}

impl Runs {
    fn take(&mut self, worker: &str, claim: u64) -> Option<Run> {
        let runs = self.running.get_mut(worker)?;
        let run = runs.remove(&claim);
        if runs.is_empty() {
            self.running.remove(worker);
        }
        run
    }

    fn get_mut(&mut self, worker: &str, claim: u64) -> Option<&mut Run> {
        self.running.get_mut(worker)?.get_mut(&claim)
    }

    /// The workers of the next sweep, each with its known claims.
    fn to_sweep(&self, now_us: i64) -> Vec<(String, Vec<u64>)> {
        let behind = self.running.range::<str, _>((Excluded(self.swept.as_str()), Unbounded));
        let up_to = self.running.range::<str, _>((Unbounded, Included(self.swept.as_str())));
        let is_long = |run: &Run| now_us.saturating_sub(run.charges.started_us) >= SWEEP_US;
        let long = behind.chain(up_to).filter(|(_, runs)| runs.values().any(is_long));
        let known = long.map(|(worker, runs)| (worker.clone(), runs.keys().copied().collect()));
        known.take(SWEEP_WORKERS).collect()
    }
}

impl Account {
    /// Notes a job that a worker has received, perhaps repeatedly. `skipped_tenant` has a job that could start, too,
    /// and was skipped for its owner.
    pub fn given(&self, worker: &str, job: &Job, skipped_tenant: Option<&str>) {
        let (Some(claim), Some(started_us)) = (job.claim(), job.started_us) else { return };
        let mut runs = lock(&self.runs);
        let of_worker = runs.running.entry(worker.to_owned()).or_default();
        of_worker.entry(claim.number).or_insert_with(|| Run {
            charges: self.fair.start((&job.tenant, job.task.as_deref()), skipped_tenant, false, started_us),
            ending: None,
        });
    }

    /// The numbers of a worker's claims that this server knows.
    pub fn known(&self, worker: &str) -> Vec<u64> {
        lock(&self.runs).running.get(worker).map_or_else(Vec::new, |runs| runs.keys().copied().collect())
    }

    /// Notes that this server is about to record the end of a run. Returns what it knew of the run.
    pub fn ends(&self, worker: &str, claim: u64, by_itself: bool, now_us: i64) -> RunStatus {
        match lock(&self.runs).get_mut(worker, claim) {
            None => RunStatus::Unknown,
            Some(Run { ending: Some(_), .. }) => RunStatus::EndTried,
            Some(run) => {
                run.ending = Some(Ending { by_itself, at_us: now_us });
                RunStatus::Running
            }
        }
    }

    /// Notes that a run continues, because its end was rejected.
    pub fn ends_not(&self, worker: &str, claim: u64) {
        if let Some(run) = lock(&self.runs).get_mut(worker, claim) {
            run.ending = None;
        }
    }

    /// Charges a run whose end this server has recorded. Returns whether it knew the run.
    pub fn ended(&self, worker: &str, claim: u64, by_itself: bool) -> bool {
        let run = lock(&self.runs).take(worker, claim);
        run.map(|run| self.fair.end(run.charges, by_itself)).is_some()
    }

    /// Forgets a run whose end another server or worker has recorded.
    pub fn ended_elsewhere(&self, worker: &str, claim: u64) {
        if let Some(run) = lock(&self.runs).take(worker, claim) {
            self.fair.abandon(&run.charges);
        }
    }

    /// Charges runs of a worker that this server has ended.
    pub fn given_back(&self, worker: &str, runs: &[RunSummary]) {
        for RunSummary { tenant, task, claim, started_us, .. } in runs {
            if !self.ended(worker, *claim, false) {
                self.fair.end_unknown((tenant, task.as_deref()), *started_us, false);
            }
        }
    }

    /// Forgets the runs of a worker that was removed: the process that removed it charges them.
    pub fn left(&self, worker: &str) {
        let known = self.known(worker);
        self.compare(worker, &known, &[]);
    }

    /// Compares the known claims of a worker with the claims that still hold a job, and removes the runs of all others.
    pub fn compare(&self, worker: &str, known: &[u64], held: &[u64]) {
        for claim in known.iter().filter(|claim| !held.contains(claim)) {
            let Some(run) = lock(&self.runs).take(worker, *claim) else { continue };
            match run.ending {
                Some(Ending { by_itself, at_us }) => self.fair.end_at(run.charges, by_itself, at_us),
                None => self.fair.abandon(&run.charges),
            }
        }
    }

    /// Maintains the account, at intervals: reads the charges of other workers, updates the expected cost of long runs,
    /// and removes runs that have ended elsewhere. A failed read only makes the shares less exact.
    pub async fn maintain(&self, store: &Store, keys: &Keyspace, job_type: &str) {
        if let Err(error) = self.try_maintain(store, keys, job_type).await {
            tracing::debug!(job_type, %error, "cannot read what tenants were charged");
        }
    }

    async fn try_maintain(&self, store: &Store, keys: &Keyspace, job_type: &str) -> Result<()> {
        self.fair.sync_if_due().await?;
        let now_us = store.runtime().now_us();
        let to_sweep = {
            let mut runs = lock(&self.runs);
            if now_us.saturating_sub(runs.maintained_us) < MAINTAIN_US {
                return Ok(());
            }
            runs.maintained_us = now_us;
            for run in runs.running.values_mut().flat_map(BTreeMap::values_mut) {
                self.fair.raise_expected_cost(&mut run.charges);
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
            lock(&self.runs).swept = worker;
            if claims >= SWEEP_CLAIMS {
                break;
            }
        }
        Ok(())
    }
}
