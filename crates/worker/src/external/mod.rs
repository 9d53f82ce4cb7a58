//! External workers, in any language: what a server does for them.
//!
//! External workers have no access to the store, so a server acts for them. Everything that must survive is in rows:
//! the membership, the claims, even the number of a worker's next claim. So a server may restart, or another one may
//! take over, and the worker continues. After a lost response, [`External::accept`] delivers the jobs again, and
//! [`External::end`] is idempotent.

mod accept;
mod contenders;
mod end;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use futures::future::BoxFuture;
use serde_json::value::RawValue;
use turnwise_queue::claims::{self, Answer, Report};
use turnwise_queue::deadlines::{self, Due, Over};
use turnwise_queue::tasks::{KnownTasks, check_known};
use turnwise_queue::types::{self, DeclaredBy, digest};
use turnwise_queue::workers::{Removal, RunSummary};
use turnwise_queue::{Claim, Error, Job, Keyspace, Mode, Result, RunKey, StatedTerms, jobs, rates, workers};
use turnwise_store::Store;

use crate::accounts::{Account, Accounts};
use crate::deadlines::RunObservations;
use crate::filters::FilterCache;
use crate::line::Lines;
use crate::locks::LockWake;
use crate::membership::{Leaving, new_id};
use crate::metrics::{CrashKind, Metrics, RunResult};
use crate::pass::Passes;
use crate::spans::RunOutcome;
use crate::times::duration_us;
use crate::{Live, Options, Tunables};
pub use accept::{Given, Wanted};
pub use end::{ExternalEnd, RunEnd};

/// The maximum number of jobs that an external worker runs.
pub const MAX_EXTERNAL_SLOTS: usize = 1_000;
/// The maximum number of jobs in one response.
pub const MAX_ACCEPTED: usize = 200;

/// What a worker states when it registers.
#[derive(Debug, Clone, Default)]
pub struct Registration {
    /// A name for people.
    pub name: Option<String>,
    /// Its number of slots.
    pub slots: usize,
    /// The tasks that it knows; `None` for all.
    pub tasks: Option<KnownTasks>,
    /// The terms of some tasks. They hold from now on for all jobs of these tasks.
    pub task_terms: BTreeMap<String, StatedTerms>,
    /// The identity that registers it, if identities are needed.
    pub registered_by: Option<String>,
}

/// Acts for external workers. Cheap to clone.
#[derive(Clone)]
pub struct External {
    pub(crate) store: Store,
    pub(crate) keys: Keyspace,
    pub(crate) options: Arc<Options>,
    tunables: Live<Tunables>,
    lines: Arc<Lines>,
    passes: Arc<Passes>,
    accounts: Arc<Accounts>,
    /// The observations of runs that have a timeout.
    pub(crate) run_observations: Arc<RunObservations>,
    /// Wakes jobs that wait for locks.
    pub(crate) lock_wake: Arc<LockWake>,
}

/// A job that a worker has received.
#[derive(Clone)]
pub struct Accepted {
    /// The job as it was claimed.
    pub job: Job,
    /// Its options.
    pub options: Box<RawValue>,
    /// The claim's number: every request about the job carries it.
    pub claim: u64,
}

/// What a worker learns with a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinged {
    /// The claim numbers of its jobs that must stop.
    pub stop: Vec<u64>,
    /// Whether it gets new jobs. One that drains leaves when its last job has ended.
    pub mode: Mode,
}

/// Without the options: they may hold secrets.
impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Accepted { job, claim, options: _ } = self;
        f.debug_struct("Accepted").field("job", job).field("claim", claim).finish_non_exhaustive()
    }
}

impl External {
    /// Acts for external workers on `store`. Their slots are their own, and their jobs do not rotate.
    pub fn new(store: Store, keys: Keyspace, options: Options) -> External {
        let lock_wake = Arc::new(LockWake::new(store.clone(), keys.clone()));
        External {
            store,
            keys,
            tunables: Live::from(options.tunables.clone()),
            options: Arc::new(options),
            lines: Arc::default(),
            passes: Arc::default(),
            accounts: Arc::default(),
            run_observations: Arc::default(),
            lock_wake,
        }
    }

    /// The settings that may change while it runs.
    pub fn tunables(&self) -> &Live<Tunables> {
        &self.tunables
    }

    fn metrics(&self) -> &Metrics {
        &self.options.metrics
    }

    /// Registers a worker under an id that was never used before. From then on, the worker must ping. `registered_by` is the
    /// identity that does it, if identities are needed.
    ///
    /// # Errors
    /// `Invalid` if `slots` is not from 1 to [`MAX_EXTERNAL_SLOTS`], or a name or type is too long.
    pub fn register<'a>(
        &'a self,
        job_type: &'a str,
        name: Option<&'a str>,
        slots: usize,
        registered_by: Option<String>,
    ) -> BoxFuture<'a, Result<workers::Worker>> {
        let name = name.map(str::to_owned);
        self.register_for(job_type, Registration { name, slots, registered_by, ..Registration::default() })
    }

    /// The same for a worker that states its tasks, and terms of them: it gets jobs of these tasks only.
    ///
    /// # Errors
    /// As [`Self::register`], and `Invalid` for wrong tasks or terms.
    pub fn register_for<'a>(
        &'a self,
        job_type: &'a str,
        registration: Registration,
    ) -> BoxFuture<'a, Result<workers::Worker>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            let Registration { name, slots, tasks, task_terms, registered_by } = &registration;
            if !(1..=MAX_EXTERNAL_SLOTS).contains(slots) {
                let problem = format!("must be from 1 to {MAX_EXTERNAL_SLOTS}, not {slots}");
                return Err(Error::Invalid { field: "slots", problem });
            }
            tasks.as_ref().map_or(Ok(()), check_known)?;
            let (options, keys) = (&self.options, &self.keys);
            self.store
                .transact(|tx| async move {
                    // Each attempt uses a new id. An earlier attempt with an unknown outcome may have registered a worker
                    // that has since been removed.
                    let (id, started_us) = new_id(&self.store);
                    let worker = workers::Worker {
                        name: name.clone(),
                        health_timeout_us: duration_us(options.health_timeout),
                        external: true,
                        registered_by: registered_by.clone(),
                        tasks: tasks.clone(),
                        task_terms: task_terms
                            .iter()
                            .map(|(task, terms)| (task.clone(), digest(terms)))
                            .collect(),
                        ..workers::Worker::new(&id, &options.node, started_us, *slots)
                    };
                    let by = DeclaredBy { worker: id, by: registered_by.clone() };
                    types::declare(&tx, keys, job_type, task_terms, &by, started_us).await?;
                    workers::register(&tx, keys, job_type, &worker)?;
                    Ok(worker)
                })
                .await
        })
    }

    /// Records a heartbeat.
    ///
    /// # Errors
    /// `Halt` if it is not a member (any more): it stops all its jobs and registers again.
    #[boxed]
    pub async fn ping(&self, job_type: &str, worker: &str) -> Result<Pinged> {
        let (keys, now_us) = (&self.keys, self.store.runtime().now_us());
        let pinged = self
            .store
            .transact(|tx| async move {
                let mode = workers::ping(&tx, keys, job_type, worker, now_us).await?;
                let stop = jobs::cancel_requests(&tx, keys, job_type, worker).await?;
                if stop.is_empty() {
                    jobs::forget_signal(&tx, keys, job_type, worker).await?;
                }
                Ok(Pinged { stop, mode })
            })
            .await;
        if let Err(Error::Halt) = pinged {
            self.account(job_type).left(worker);
        }
        pinged
    }

    /// The account that a type's runs are charged to.
    fn account(&self, job_type: &str) -> Arc<Account> {
        let charger = workers::node_contender(&self.options.node);
        let account = self.accounts.of(&self.store, &self.keys, job_type, &charger);
        account.fair.follow_shares(&self.tunables.get().fair.shares);
        account
    }

    /// Replaces a job's `info`, appends lines to its log, and returns whether to continue.
    ///
    /// # Errors
    /// `Halt` if this claim no longer holds the job: the worker stops the job and sends nothing more about it.
    #[boxed]
    pub async fn update<'a>(
        &self,
        job_type: &'a str,
        worker: &str,
        id: &str,
        claim: u64,
        report: Report<'a>,
    ) -> Result<Answer> {
        let (number, claim, now_us) = (claim, &claim_of(worker, claim), self.store.runtime().now_us());
        let answer = self
            .store
            .transact(|tx| async move {
                claims::report(&tx, &self.keys, RunKey::new(job_type, id, claim), report, now_us).await
            })
            .await?;
        self.run_observations.reported(job_type, worker, number, now_us);
        Ok(answer)
    }

    /// Lets no job start for so long in the rates that a job obeys which this worker runs.
    ///
    /// # Errors
    /// `Halt` if the worker has lost its claim.
    #[boxed]
    pub async fn pause_rates(
        &self,
        job_type: &str,
        worker: &str,
        id: &str,
        claim: u64,
        for_us: u64,
    ) -> Result<()> {
        let (keys, claim, now_us) = (&self.keys, &claim_of(worker, claim), self.store.runtime().now_us());
        let until_us = now_us.saturating_add_unsigned(for_us);
        self.store
            .transact(|tx| async move {
                let job = claims::held(&tx, keys, job_type, id, claim).await?;
                let filters = FilterCache::default().load(&tx, keys, job_type).await?;
                let limits = FilterCache::limits(filters.as_ref(), &tx, keys, &job).await?;
                for rate in limits.map(|(_, rates)| rates).unwrap_or_default() {
                    rates::lengthen_pause(&tx, keys, &rate, until_us).await?;
                }
                Ok(())
            })
            .await
    }

    /// Takes a job back from its worker because its run exceeds a timeout, unless it has reported since.
    pub(crate) async fn expire(&self, due: &Due, over: Over) -> Result<()> {
        let (keys, max_history) = (&self.keys, self.tunables.get().max_history);
        let now_us = self.store.runtime().now_us();
        let expired = self
            .store
            .transact(|tx| async move { deadlines::expire(&tx, keys, due, over, now_us, max_history).await })
            .await?;
        if let Some(run) = expired {
            let Due { job_type, id, claim, .. } = due;
            tracing::warn!(job_type, job = id, worker = claim.worker, "taken from its worker: {over}");
            self.run_observations.ended(job_type, &claim.worker, claim.number);
            let ran_us = now_us.saturating_sub(run.started_us);
            let of = (job_type.as_str(), run.task.as_deref());
            self.metrics().ended(of, RunResult::Crashed, CrashKind::from(over), ran_us);
            self.given_back(job_type, &claim.worker, std::slice::from_ref(&run));
            let ended = RunOutcome::expired(&over);
            self.options.spans.given_back(job_type, &claim.worker, &[run], &ended, now_us);
        }
        Ok(())
    }

    /// Charges the runs of a worker that this server has ended, because it removed the worker or took a job back.
    pub(crate) fn given_back(&self, job_type: &str, worker: &str, runs: &[RunSummary]) {
        if !runs.is_empty() {
            self.account(job_type).given_back(worker, runs);
        }
    }

    /// Maintains the accounts of the known runs, also of types whose workers request no jobs at present.
    pub(crate) async fn maintain(&self) {
        for job_type in self.accounts.types() {
            self.account(&job_type).maintain(&self.store, &self.keys, &job_type).await;
        }
    }

    /// Removes a worker at its own request: its jobs become pending again, and no row stays. Idempotent.
    ///
    /// # Errors
    /// `Halt` if the worker is not an external one.
    pub fn leave<'a>(&'a self, job_type: &'a str, worker: &'a str) -> BoxFuture<'a, Result<()>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            let health = self
                .store
                .transact(|tx| async move { workers::health(&tx, &self.keys, job_type, worker).await });
            match health.await? {
                Some(health) if health.external => {
                    let (External { store, keys, options, .. }, account) = (self, self.account(job_type));
                    let (max_history, spans) = (self.tunables.get().max_history, &options.spans);
                    let leaving = Leaving { store, keys, job_type, worker, max_history, spans };
                    let charge = |runs: &[RunSummary], now_us: i64| {
                        for run in runs {
                            let ran_us = now_us.saturating_sub(run.started_us);
                            let of = (job_type, run.task.as_deref());
                            self.metrics().ended(of, RunResult::Stopped, CrashKind::Error, ran_us);
                        }
                        account.given_back(worker, runs);
                    };
                    leaving.remove(Removal::Left, None, charge).await?;
                    account.left(worker);
                    account.maintain(store, keys, job_type).await;
                    Ok(())
                }
                Some(_) => Err(Error::Halt),
                None => Ok(()),
            }
        })
    }
}

fn claim_of(worker: &str, number: u64) -> Claim {
    Claim { worker: worker.to_owned(), number }
}
