//! External workers, in any language: what a server does for them.
//!
//! They have no access to the store, so a server acts for them. All state that matters is in rows: the membership, the
//! claims, even the number of a worker's next claim. So a server may restart, or another one may take over, and the
//! worker continues. After a lost response, [`External::accept`] delivers the jobs again, and [`External::end`] is
//! idempotent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, pending};
use serde_json::value::RawValue;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;
use turnwise_policy::backoff::{self, OnLost};
use turnwise_policy::contention::{MAX_CONTENDERS, Shard};
use turnwise_policy::fair_share::Shares;
use turnwise_queue::claims::{self, Answer, Ended, Ending};
use turnwise_queue::deadlines::{self, Due, Over, Timeouts};
use turnwise_queue::workers::{GivenBack, Removal};
use turnwise_queue::{
    Claim, Context, DEFAULT_MAX_HISTORY, Error, Job, Keyspace, Result, Terms, jobs, locks, workers,
};
use turnwise_store::{Store, Transaction, Watch};

use crate::accounts::{Account, Accounts, Known};
use crate::deadlines::Beats;
use crate::locks::{LockHistory, LockWake};
use crate::membership::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, duration_us, new_id, remove};
use crate::pass::{Claimant, Leftovers, Numbers, Pass, Reserved, pass};
use crate::record::crashed;
use crate::{Live, QueueRules};

/// The maximum number of jobs that an external worker runs.
pub const MAX_EXTERNAL_SLOTS: usize = 1_000;
/// The maximum number of jobs in one response.
pub const MAX_ACCEPTED: usize = 50;
/// The maximum number of jobs that one response delivers again: their options are read with them.
const REDELIVER_BATCH: usize = 10;

/// The maximum number of claims with locks that are read to count a worker's waiting jobs.
const MAX_LOCKING: usize = 10_000;

/// Settings for external workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalOptions {
    /// The name of the node through which they reach the store, as the API shows it.
    pub node: String,
    /// How often a worker pings.
    pub health_interval: Duration,
    /// How long a worker may miss its heartbeats before it is removed.
    pub health_timeout: Duration,
    /// The number of history entries that a job keeps.
    pub max_history: usize,
    /// The backoff of crashed jobs.
    pub backoff: backoff::Rules,
    /// What happens to a job whose worker is lost.
    pub on_lost: OnLost,
    /// The timeouts of jobs that set none themselves, by job type.
    pub timeouts: Arc<BTreeMap<String, Timeouts>>,
    /// Each tenant's share.
    pub shares: Arc<Shares>,
    /// The order of jobs that lock.
    pub queue: Arc<QueueRules>,
}

impl Default for ExternalOptions {
    fn default() -> Self {
        ExternalOptions {
            node: "turnwise@127.0.0.1".to_owned(),
            health_interval: DEFAULT_HEALTH_INTERVAL,
            health_timeout: DEFAULT_HEALTH_TIMEOUT,
            max_history: DEFAULT_MAX_HISTORY,
            backoff: backoff::Rules::default(),
            on_lost: OnLost::default(),
            timeouts: Arc::default(),
            shares: Arc::default(),
            queue: Arc::default(),
        }
    }
}

/// Acts for external workers. Cheap to clone.
#[derive(Clone)]
pub struct External {
    pub(crate) store: Store,
    pub(crate) keys: Keyspace,
    options: Live<ExternalOptions>,
    lines: Arc<Lines>,
    reserved: Arc<Reserved>,
    contenders: Arc<Contenders>,
    accounts: Arc<Accounts>,
    /// What is known of runs that have a timeout.
    pub(crate) beats: Arc<Beats>,
    /// Wakes jobs that wait for locks.
    pub(crate) lock_wake: Arc<LockWake>,
    lock_history: Arc<LockHistory>,
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

/// Without the options: they may hold secrets.
impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Accepted { job, claim, options: _ } = self;
        f.debug_struct("Accepted").field("job", job).field("claim", claim).finish_non_exhaustive()
    }
}

/// How an external worker ended a run.
#[derive(Debug, Clone)]
pub enum ExternalEnd {
    /// It completed, with this result.
    Completed(Box<RawValue>),
    /// It failed with a permanent error: not retried.
    Failed(String),
    /// It failed with an error that may pass: retried after a backoff.
    Crashed(String),
    /// The worker gave the job back.
    Released,
}

impl External {
    /// Acts for external workers on `store`.
    pub fn new(store: Store, keys: Keyspace, options: ExternalOptions) -> External {
        let lock_wake = Arc::new(LockWake::new(store.clone(), keys.clone()));
        External {
            store,
            keys,
            options: options.into(),
            lines: Arc::default(),
            reserved: Arc::default(),
            contenders: Arc::default(),
            accounts: Arc::default(),
            beats: Arc::default(),
            lock_wake,
            lock_history: Arc::default(),
        }
    }

    /// The settings, which may be changed.
    pub fn options(&self) -> &Live<ExternalOptions> {
        &self.options
    }

    /// Registers a worker under an id that was never used before. From then on, the worker must ping.
    ///
    /// # Errors
    /// `Invalid` if `slots` is not from 1 to [`MAX_EXTERNAL_SLOTS`], or a name or type is too long.
    pub async fn register(
        &self,
        job_type: &str,
        name: Option<&str>,
        slots: usize,
    ) -> Result<workers::Worker> {
        if !(1..=MAX_EXTERNAL_SLOTS).contains(&slots) {
            let problem = format!("must be from 1 to {MAX_EXTERNAL_SLOTS}, not {slots}");
            return Err(Error::Invalid { field: "slots", problem });
        }
        let options = self.options.get();
        let options = &options;
        self.store
            .transact(|tx| async move {
                // Each attempt uses a new id: an earlier attempt with an unknown outcome may have registered a worker
                // that has since been removed for missing its heartbeats.
                let (id, started_us) = new_id(&self.store);
                let worker = workers::Worker {
                    name: name.map(str::to_owned),
                    health_timeout_us: duration_us(options.health_timeout),
                    external: true,
                    ..workers::Worker::new(&id, &options.node, started_us, slots)
                };
                workers::register(&tx, &self.keys, job_type, &worker)?;
                Ok(worker)
            })
            .await
    }

    /// Records a heartbeat. Returns the claim numbers of the worker's jobs that must stop.
    ///
    /// # Errors
    /// `Halt` if it is not a member (any more): it stops all its jobs and registers again.
    pub async fn ping(&self, job_type: &str, worker: &str) -> Result<Vec<u64>> {
        let (keys, now_us) = (&self.keys, self.store.runtime().now_us());
        let pinged = self
            .store
            .transact(|tx| async move {
                workers::ping(&tx, keys, job_type, worker, now_us).await?;
                let requests = jobs::cancel_requests(&tx, keys, job_type, worker).await?;
                if requests.is_empty() {
                    jobs::forget_signal(&tx, keys, job_type, worker).await?;
                }
                Ok(requests)
            })
            .await;
        if let Err(Error::Halt) = pinged {
            self.account(job_type).left(worker);
        }
        pinged
    }

    /// The account that a type's runs are charged to.
    fn account(&self, job_type: &str) -> Arc<Account> {
        let options = self.options.get();
        let charger = workers::node_contender(&options.node);
        let account = self.accounts.of(&self.store, &self.keys, job_type, &charger);
        account.fair.follow_shares(&options.shares);
        account
    }

    /// Jobs for the worker. First the jobs that it holds under claims with numbers above `received`, the highest number
    /// that it has ever received: a lost response is sent again. Otherwise up to `limit` new jobs, but never more than
    /// it has free slots. Waits up to `wait` for jobs; the list may be empty.
    ///
    /// The waiting workers of a type form a line, and only the first of them watches the store: a job that arrives
    /// wakes one.
    ///
    /// `leave` ends the wait, but no running transaction. Cancel it and await the result instead of dropping this
    /// future. After that, a caller with a new request for the same worker knows that no claim is outstanding.
    ///
    /// # Errors
    /// `Halt` if it is not a member (any more).
    pub async fn accept(
        &self,
        job_type: &str,
        worker: &str,
        received: u64,
        limit: usize,
        wait: Duration,
        leave: &CancellationToken,
    ) -> Result<Vec<Accepted>> {
        let runtime = self.store.runtime();
        let mut deadline = pin!(runtime.sleep(wait));
        let mut turn: Option<Turn> = None;
        // Jobs that were skipped for their owners for long enough.
        let mut overdue = BTreeSet::new();
        let mut leftovers = Leftovers::default();
        let mut filtered = 0;
        // The time is over, and this pass is the last.
        let mut last = false;
        loop {
            let released = self.reserved.released();
            let shard = self.shard(job_type).await?;
            let mut late: Watch;
            let given =
                match self.give(job_type, worker, received, limit, (shard, &overdue), filtered).await? {
                    Given::Jobs { jobs, .. } => return Ok(jobs),
                    Given::Nothing { pass, .. }
                        if (pass.filtered || pass.more && pass.left_to_contenders.is_empty())
                            && !leave.is_cancelled() =>
                    {
                        filtered += u32::from(pass.filtered);
                        continue;
                    }
                    _ if last => return Ok(Vec::new()),
                    Given::NoSlot { numbered } => {
                        // A worker without a free slot must not block the line.
                        drop(turn.take());
                        let late =
                            self.store.watch(self.keys.claim_number(job_type, worker), numbered).await?;
                        tokio::select! {
                            biased;
                            () = leave.cancelled() => return Ok(Vec::new()),
                            () = late => continue,
                            () = &mut deadline => return Ok(Vec::new()),
                        }
                    }
                    Given::Nothing { pass, numbered } => {
                        late = self.store.watch(self.keys.claim_number(job_type, worker), numbered).await?;
                        pass
                    }
                };
            overdue.clear();
            filtered = 0;
            if turn.is_none() {
                tokio::select! {
                    biased;
                    () = leave.cancelled() => return Ok(Vec::new()),
                    first = self.lines.join(job_type) => turn = Some(first),
                    () = &mut late => {}
                    () = &mut deadline => return Ok(Vec::new()),
                }
                // While it was in the line, new jobs were for the workers before it. It now needs a new pass.
                continue;
            }
            let wake = self.store.watch(self.keys.wake(job_type), given.wake_seen).await?;
            let locks = match given.lock_wake_seen {
                Some(seen) => Either::Left(self.store.watch(self.keys.lock_wake(), seen).await?),
                None => Either::Right(pending()),
            };
            let due = match given.next_due_us {
                Some(at_us) => Either::Left(runtime.sleep_until(at_us)),
                None => Either::Right(pending()),
            };
            let pause = shard.pause(runtime.random());
            leftovers.note(given.left_to_contenders.clone(), || {
                let runtime = runtime.clone();
                Box::pin(async move { runtime.sleep(pause).await })
            });
            tokio::select! {
                biased;
                () = leave.cancelled() => return Ok(Vec::new()),
                left = leftovers.overdue() => overdue = left,
                () = wake => {}
                () = locks => {}
                () = late => {}
                () = released, if given.left_to_others => {}
                () = due => {}
                // A request does not end empty while there are jobs: a caller that does not wait would only get its
                // shard.
                () = &mut deadline => match given.left_to_contenders.is_empty() {
                    false => (overdue, last) = (given.left_to_contenders, true),
                    true => return Ok(Vec::new()),
                },
            }
        }
    }

    /// The part of the head of the queue that is this node's now.
    async fn shard(&self, job_type: &str) -> Result<Shard> {
        let now_us = self.store.runtime().now_us();
        let me = workers::node_contender(&self.options.get().node);
        let ttl_us = duration_us(self.options.get().health_interval);
        if let Some(names) = self.contenders.known(job_type, now_us, ttl_us) {
            return Ok(Shard::new(&names, &me, now_us));
        }
        let tx = self.store.begin().await?;
        let mut names = workers::contenders(&tx, &self.keys, job_type, MAX_CONTENDERS).await?;
        if let Err(place) = names.binary_search(&me) {
            // Its workers have registered at another node, or there are too many to see this node's.
            names.insert(place, me.clone());
        }
        let all = (names.len() < MAX_CONTENDERS).then(|| names.iter().cloned().collect());
        self.account(job_type).fair.know_members(all);
        let names = self.contenders.learn(job_type, now_us, names);
        Ok(Shard::new(&names, &me, now_us))
    }

    /// One attempt to find jobs.
    async fn give(
        &self,
        job_type: &str,
        worker: &str,
        received: u64,
        limit: usize,
        (shard, overdue): (Shard, &BTreeSet<String>),
        filtered: u32,
    ) -> Result<Given> {
        let random = self.store.runtime().random();
        let (store, keys, options) = (&self.store, &self.keys, self.options.get());
        let ExternalOptions { max_history, backoff, on_lost, .. } = options;
        let timeouts = options.timeouts.get(job_type).copied().unwrap_or_default();
        let (queue, terms) = (&*options.queue, Terms { backoff, on_lost, timeouts });
        // Held until the commit: after it, every pass sees that the jobs are no longer pending.
        let hold = &self.reserved.hold();
        let account = self.account(job_type);
        account.tend(store, keys, job_type).await;
        let fair = &account.fair;
        let lock_history = &*self.lock_history;
        let known = account.known(worker);
        let failed = &AtomicU32::new(0);
        let given = store
            .transact(|tx| async move {
                let failed = failed.fetch_add(1, Relaxed);
                let row = workers::get(&tx, keys, job_type, worker).await?.ok_or(Error::Halt)?;
                let latest = claims::latest_number(&tx, keys, job_type, worker).await?;
                let again = match latest > received {
                    true => {
                        claims::claims_after(&tx, keys, job_type, worker, received, REDELIVER_BATCH).await?
                    }
                    false => Vec::new(),
                };
                // A claim still in flight changes this key when it is committed: one of an attempt with unknown
                // outcome, or of a request to another server, whose response may be lost.
                let numbered = tx.get(&keys.claim_number(job_type, worker)).await?;
                if !again.is_empty() {
                    let mut given = Vec::with_capacity(again.len());
                    for job in again {
                        let options = jobs::options(&tx, keys, &job).await?;
                        given.push(accepted(job, options));
                    }
                    return Ok((Given::Jobs { jobs: given, pass: None }, None));
                }
                let held = claims::numbers(&tx, keys, job_type, worker, 2 * row.slots).await?;
                let mut running = held.len();
                if running >= row.slots && !queue.waiting_uses_slot {
                    let waiting = waiting(&tx, keys, job_type, worker).await?;
                    running = running.saturating_sub(queue.lent(row.slots, waiting));
                }
                let max_jobs = row.slots.min(running.saturating_add(limit.min(MAX_ACCEPTED)));
                if max_jobs <= running {
                    return Ok((Given::NoSlot { numbered }, Some(held)));
                }
                let (numbers, hold) = (Numbers::Stored, Some(hold));
                let claimant = Claimant {
                    job_type,
                    worker,
                    running,
                    max_jobs,
                    failed,
                    filtered,
                    numbers,
                    fair,
                    queue,
                    lock_history,
                    hold,
                    shard,
                    overdue,
                    random,
                    terms,
                    max_history,
                };
                let mut pass = pass(&tx, keys, claimant, store.runtime().now_us()).await?;
                if pass.claimed.is_empty() {
                    return Ok((Given::Nothing { pass, numbered }, Some(held)));
                }
                let claimed = pass.claimed.drain(..);
                let jobs = claimed.map(|(job, options)| accepted(job, options)).collect();
                Ok::<_, Error>((Given::Jobs { jobs, pass: Some(pass) }, Some(held)))
            })
            .await;
        let given = given.map(|(given, held)| {
            if let Some(held) = held {
                // Drops the runs whose ends another server has recorded.
                account.compare(worker, &known, &held);
            }
            given
        });
        match &given {
            Ok(Given::Jobs { jobs, pass }) => {
                if let Some(pass) = pass {
                    fair.drained(&pass.drained, pass.wake_seen.as_ref());
                    jobs.iter().for_each(|accepted| self.beats.given(worker, &accepted.job));
                }
                let left = pass.as_ref().and_then(|pass| pass.first_left.as_deref());
                for accepted in jobs {
                    account.given(worker, &accepted.job, left);
                }
            }
            Err(Error::Halt) => account.left(worker),
            Ok(_) | Err(_) => {}
        }
        given
    }

    /// Replaces a job's `info`, and returns whether to continue.
    ///
    /// # Errors
    /// `Halt` if this claim no longer holds the job: the worker stops the job and sends nothing more about it.
    pub async fn update(
        &self,
        job_type: &str,
        worker: &str,
        id: &str,
        claim: u64,
        info: &RawValue,
    ) -> Result<Answer> {
        let (number, claim, now_us) = (claim, &claim_of(worker, claim), self.store.runtime().now_us());
        let answer = self
            .store
            .transact(
                |tx| async move { claims::update(&tx, &self.keys, job_type, id, claim, info, now_us).await },
            )
            .await?;
        self.beats.reported(job_type, worker, number, now_us);
        Ok(answer)
    }

    /// Ends a run. Returns the job as it is now, or `None` if it was removed. Idempotent.
    ///
    /// # Errors
    /// `Halt` if another claim holds the job, or its worker is no longer a member: nothing was changed. `Invalid` for a
    /// result or info that is too large.
    pub async fn end(
        &self,
        job_type: &str,
        worker: &str,
        id: &str,
        claim: u64,
        end: ExternalEnd,
        info: Option<&RawValue>,
    ) -> Result<Option<Job>> {
        let (keys, options, now_us) = (&self.keys, &self.options.get(), self.store.runtime().now_us());
        let account = self.account(job_type);
        let by_itself = !matches!(end, ExternalEnd::Released);
        let known = account.ends(worker, claim, by_itself, now_us);
        let attempts = &AtomicUsize::new(0);
        let (number, claim, end) = (claim, &claim_of(worker, claim), &end);
        let ended = self
            .store
            .transact(|tx| async move {
                attempts.fetch_add(1, Relaxed);
                // If another server gave the job, or this one before a restart, only the record holds what the charge
                // needs.
                let unknown = match known {
                    Known::Runs | Known::Tried => None,
                    Known::Not => jobs::get(&tx, keys, job_type, id).await?,
                };
                let ending = match end.clone() {
                    ExternalEnd::Completed(result) => Ending::Completed(result),
                    ExternalEnd::Failed(reason) => Ending::Failed(reason),
                    ExternalEnd::Released => Ending::Stopped,
                    ExternalEnd::Crashed(reason) => {
                        let job = jobs::get(&tx, keys, job_type, id).await?.ok_or(Error::Halt)?;
                        crashed(&options.backoff, (job.started_us, job.crashes), reason, now_us)
                    }
                };
                let context = Context::new(&tx, keys, job_type, now_us, options.max_history);
                Ok((claims::end(context, id, claim, &ending, info, None).await?, unknown))
            })
            .await;
        let (ended, unknown) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                match error {
                    // Its record is gone, and this server has recorded the end.
                    Error::Halt if known == Known::Tried => drop(account.ended(worker, number, by_itself)),
                    Error::Halt => account.ended_elsewhere(worker, number),
                    Error::Invalid { .. } if known == Known::Runs => account.ends_not(worker, number),
                    // It is unknown whether the end was recorded.
                    Error::Store(_) | Error::Invalid { .. } | Error::NotFound => {}
                }
                return Err(error);
            }
        };
        self.beats.ended(job_type, worker, number);
        Ok(match ended {
            Ended::Recorded(job) => {
                if !account.ended(worker, number, by_itself)
                    && let Some(Job { tenant, started_us: Some(started_us), .. }) = &unknown
                {
                    account.fair.end_unknown(tenant, *started_us, by_itself);
                    account.tend(&self.store, keys, job_type).await;
                }
                job.map(|job| *job)
            }
            Ended::AlreadyRecorded(job) => {
                // Recorded by an earlier attempt with unknown outcome, or else by another server, which charges it.
                match known == Known::Tried || attempts.load(Relaxed) > 1 {
                    true => drop(account.ended(worker, number, by_itself)),
                    false => account.ended_elsewhere(worker, number),
                }
                Some(*job)
            }
        })
    }

    /// Takes a job back from its worker because its run exceeds a timeout, unless it has reported since.
    pub(crate) async fn expire(&self, due: &Due, over: Over) -> Result<()> {
        let (keys, max_history) = (&self.keys, self.options.get().max_history);
        let now_us = self.store.runtime().now_us();
        let expired = self
            .store
            .transact(|tx| async move { deadlines::expire(&tx, keys, due, over, now_us, max_history).await })
            .await?;
        if let Some(run) = expired {
            let Due { job_type, id, claim, .. } = due;
            tracing::warn!(job_type, job = id, worker = claim.worker, "taken from its worker: {over}");
            self.beats.ended(job_type, &claim.worker, claim.number);
            self.given_back(job_type, &claim.worker, &[run]);
        }
        Ok(())
    }

    /// Charges the runs of a worker that this server has ended, because it removed the worker or took a job back.
    pub(crate) fn given_back(&self, job_type: &str, worker: &str, runs: &[GivenBack]) {
        if !runs.is_empty() {
            self.account(job_type).given_back(worker, runs);
        }
    }

    /// Maintains the accounts of the known runs, even if no worker requests jobs any more.
    pub(crate) async fn tend(&self) {
        for job_type in self.accounts.types() {
            self.account(&job_type).tend(&self.store, &self.keys, &job_type).await;
        }
    }

    /// Removes a worker at its own request: its jobs become pending again, and no row stays. Idempotent.
    ///
    /// # Errors
    /// `Halt` if the worker is not an external one.
    pub async fn leave(&self, job_type: &str, worker: &str) -> Result<()> {
        let health =
            self.store.transact(|tx| async move { workers::health(&tx, &self.keys, job_type, worker).await });
        match health.await? {
            Some(health) if health.external => {
                let max_history = self.options.get().max_history;
                let account = self.account(job_type);
                let charge = |runs: &[GivenBack]| account.given_back(worker, runs);
                remove(&self.store, &self.keys, job_type, worker, Removal::Left, max_history, charge).await?;
                account.left(worker);
                account.tend(&self.store, &self.keys, job_type).await;
                Ok(())
            }
            Some(_) => Err(Error::Halt),
            None => Ok(()),
        }
    }
}

/// The result of one attempt to find jobs.
enum Given {
    Jobs { jobs: Vec<Accepted>, pass: Option<Pass> },
    Nothing { pass: Pass, numbered: Option<Bytes> },
    NoSlot { numbered: Option<Bytes> },
}

fn accepted(job: Job, options: Box<RawValue>) -> Accepted {
    let claim = job.claim().expect("a claimed job has a claim").number;
    Accepted { job, options, claim }
}

/// The number of a worker's jobs that wait for locks.
async fn waiting(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<usize> {
    let running = locks::running_of(tx, keys, job_type, MAX_LOCKING).await?;
    let its = |job: &&locks::Running| job.claim.worker == worker;
    Ok(running.iter().filter(its).filter(|job| job.all.waits.is_some()).count())
}

fn claim_of(worker: &str, number: u64) -> Claim {
    Claim { worker: worker.to_owned(), number }
}

/// The contenders for each type's queue, as recently read.
#[derive(Default)]
struct Contenders {
    by_type: Mutex<BTreeMap<String, Found>>,
}

/// When they were read, in µs, and their names.
type Found = (i64, Arc<[String]>);

/// The maximum number of types with remembered contenders; beyond it, they are read more often.
const MAX_KNOWN_TYPES: usize = 1_000;

impl Contenders {
    fn known(&self, job_type: &str, now_us: i64, ttl_us: i64) -> Option<Arc<[String]>> {
        let by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        let (found_us, names) = by_type.get(job_type)?;
        // A clock that was set back makes the entry old, too.
        (0..ttl_us).contains(&now_us.saturating_sub(*found_us)).then(|| names.clone())
    }

    fn learn(&self, job_type: &str, now_us: i64, names: Vec<String>) -> Arc<[String]> {
        let names: Arc<[String]> = names.into();
        let mut by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        if by_type.len() >= MAX_KNOWN_TYPES {
            by_type.clear();
        }
        by_type.insert(job_type.to_owned(), (now_us, names.clone()));
        names
    }
}

/// One line of waiting workers per job type.
#[derive(Default)]
struct Lines {
    /// Only lines that are not empty.
    by_type: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// The first place of a line. Dropping it admits the next worker.
struct Turn {
    // The order matters: the place checks whether any other worker still holds the line.
    _first: OwnedMutexGuard<()>,
    _place: Place,
}

/// A place in a line. The last one to be dropped removes the line.
struct Place {
    lines: Arc<Lines>,
    job_type: String,
}

impl Lines {
    /// Returns once every worker that came before has left.
    async fn join(self: &Arc<Self>, job_type: &str) -> Turn {
        let line = self.lock().entry(job_type.to_owned()).or_default().clone();
        let place = Place { lines: self.clone(), job_type: job_type.to_owned() };
        Turn { _first: line.lock_owned().await, _place: place }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<tokio::sync::Mutex<()>>>> {
        self.by_type.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_type = self.lines.lock();
        if by_type.get(&self.job_type).is_some_and(|line| Arc::strong_count(line) == 1) {
            by_type.remove(&self.job_type);
        }
    }
}
