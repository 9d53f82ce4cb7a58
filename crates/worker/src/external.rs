//! Workers of other processes, in any language: what a server does for them.
//!
//! They have no store of their own, so whoever has one speaks for them. Everything that matters is in rows: the
//! membership, the claims, even the number of a worker's next claim. So a server may restart, or another one
//! may take over, and the worker goes on. What a worker may not have heard of because an answer was lost is
//! given again ([`External::accept`]) or answered again ([`External::end`]).

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
use turnwise_queue::{Claim, DEFAULT_MAX_HISTORY, Error, Job, Keyspace, Result, Terms, jobs, locks, workers};
use turnwise_store::{Store, Transaction, Watch};

use crate::accounts::{Account, Accounts, Known};
use crate::cycle::{Claimant, Leftovers, Numbers, Pass, Reserved, pass};
use crate::deadlines::Beats;
use crate::locks::{LockHistory, LockWake};
use crate::membership::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT, duration_us, new_id, remove};
use crate::record::crashed;
use crate::{Live, QueueRules};

/// Jobs that an external worker runs at most.
pub const MAX_EXTERNAL_SLOTS: usize = 1_000;
/// Jobs that one answer gives at most.
pub const MAX_ACCEPTED: usize = 50;
/// Jobs that are given again in one answer: their options are read with them.
const REDELIVER_BATCH: usize = 10;

/// Claims with locks of a type among which those of a worker are counted that wait: none where its jobs lock nothing.
const MAX_LOCKING: usize = 10_000;

/// Settings for external workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalOptions {
    /// The name of the node that they reach the store through, as the API shows it.
    pub node: String,
    /// How often a worker pings.
    pub health_interval: Duration,
    /// How long a worker may be silent before it counts as dead.
    pub health_timeout: Duration,
    /// History entries that a job keeps.
    pub max_history: usize,
    /// How long crashed jobs wait.
    pub backoff: backoff::Rules,
    /// What the loss of its worker is to a job.
    pub on_lost: OnLost,
    /// How long runs of jobs may take that do not say it themselves, by their type.
    pub timeouts: Arc<BTreeMap<String, Timeouts>>,
    /// Each tenant's entitlement.
    pub shares: Arc<Shares>,
    /// How jobs that lock are ordered.
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

/// Speaks for workers of other processes. Cheap to clone.
#[derive(Clone)]
pub struct External {
    pub(crate) store: Store,
    pub(crate) keys: Keyspace,
    options: Live<ExternalOptions>,
    lines: Arc<Lines>,
    reserved: Arc<Reserved>,
    contenders: Arc<Contenders>,
    accounts: Arc<Accounts>,
    /// What is known of runs that are held to their time.
    pub(crate) beats: Arc<Beats>,
    /// For jobs that wait for locks.
    pub(crate) lock_wake: Arc<LockWake>,
    lock_history: Arc<LockHistory>,
}

/// A job that a worker was given.
#[derive(Clone)]
pub struct Accepted {
    /// The job as it was claimed.
    pub job: Job,
    /// Its options.
    pub options: Box<RawValue>,
    /// The claim's number: every word about the job carries it.
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
    /// Well, with this result.
    Completed(Box<RawValue>),
    /// With an error that will not pass: not tried again.
    Failed(String),
    /// With an error that may pass: tried again after a backoff.
    Crashed(String),
    /// Not ended: given back.
    Released,
}

impl External {
    /// Speaks for external workers on `store`.
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

    /// Its settings, which may be changed.
    pub fn options(&self) -> &Live<ExternalOptions> {
        &self.options
    }

    /// Adds a worker to the membership, under an id that was never used before. From then on it pings.
    ///
    /// # Errors
    /// `Invalid` for slots beyond 1 to [`MAX_EXTERNAL_SLOTS`], or a name or type that is too long.
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
                // One of each attempt's own: an earlier attempt, whose outcome is not known, may have registered a worker that has
                // been removed for its silence since.
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

    /// The worker lives. Returns the numbers of those of its claims whose jobs shall stop.
    ///
    /// # Errors
    /// `Halt` if it is no member (any more): it stops all its jobs and registers anew.
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

    /// What the runs of a type are charged with.
    fn account(&self, job_type: &str) -> Arc<Account> {
        let options = self.options.get();
        let charger = workers::node_contender(&options.node);
        let account = self.accounts.of(&self.store, &self.keys, job_type, &charger);
        account.fair.follow_shares(&options.shares);
        account
    }

    /// Jobs for the worker. First those that it holds under claims with numbers above `received`, the highest that it
    /// has ever received: an answer that was lost is given again. Otherwise up to `limit` new ones, never
    /// more than it has free slots. Waits up to `wait` for some; none at the end of it is an answer, too.
    ///
    /// Waiting workers of a type stand in one line, and only the first of them watches the store: a job that
    /// arrives wakes one.
    ///
    /// `leave` ends the waiting, but no transaction that is under way: cancel it, and await the answer, in place of
    /// dropping this future. Whoever calls again for the same worker after that knows that nothing is still coming.
    ///
    /// # Errors
    /// `Halt` if it is no member (any more).
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
        // Jobs were left to other contenders for long enough.
        let mut overdue = BTreeSet::new();
        let mut leftovers = Leftovers::default();
        let mut filtered = 0;
        // The time is over, and this look is the last.
        let mut last = false;
        loop {
            let released = self.reserved.released();
            let shard = self.shard(job_type).await?;
            let mut late: Watch;
            let given =
                match self.give(job_type, worker, received, limit, (shard, &overdue), filtered).await? {
                    Given::Jobs { jobs, .. } => return Ok(jobs),
                    Given::Nothing { pass, .. }
                        if (pass.sorted_out || pass.more && pass.left_to_contenders.is_empty())
                            && !leave.is_cancelled() =>
                    {
                        filtered += u32::from(pass.sorted_out);
                        continue;
                    }
                    _ if last => return Ok(Vec::new()),
                    Given::NoSlot { numbered } => {
                        // Whoever has no free slot must not hold up the line.
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
                // What came while it stood there was for those before it; look again.
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
                // Nobody goes away with nothing while there is something: who asks without waiting would get only its shard.
                () = &mut deadline => match given.left_to_contenders.is_empty() {
                    false => (overdue, last) = (given.left_to_contenders, true),
                    true => return Ok(Vec::new()),
                },
            }
        }
    }

    /// What of the queue's front is this node's now.
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
            // Its workers have registered at another node, or are so many that this one's were not seen.
            names.insert(place, me.clone());
        }
        let all = (names.len() < MAX_CONTENDERS).then(|| names.iter().cloned().collect());
        self.account(job_type).fair.know_members(all);
        let names = self.contenders.learn(job_type, now_us, names);
        Ok(Shard::new(&names, &me, now_us))
    }

    /// One look for jobs.
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
        // Until the commit: then everyone sees that they are no longer pending.
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
                // A claim that is still on its way changes this when it arrives: of an attempt whose outcome is unknown, or
                // of a request to another server, whose answer may be lost.
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
                // Without those whose end another server has recorded.
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

    /// Replaces a job's `info`, and tells whether to go on.
    ///
    /// # Errors
    /// `Halt` if this claim no longer holds the job: the worker stops it and says nothing more about it.
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

    /// Ends a run. Returns the job as it is now, or `None` if it was removed. Repeating it is harmless, and
    /// answers the same.
    ///
    /// # Errors
    /// `Halt` if another claim holds the job, or its worker is no member any more: nothing was changed.
    /// `Invalid` for a result or info that is too large.
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
                // Of a run that another server gave, or this one before a restart, only the record tells what it is charged with.
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
                let max_history = options.max_history;
                let ended =
                    claims::end(&tx, keys, job_type, id, claim, &ending, info, None, now_us, max_history);
                Ok((ended.await?, unknown))
            })
            .await;
        let (ended, unknown) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                match error {
                    // Its record is gone, and it was this server that recorded it.
                    Error::Halt if known == Known::Tried => drop(account.ended(worker, number, by_itself)),
                    Error::Halt => account.ended_elsewhere(worker, number),
                    Error::Invalid { .. } if known == Known::Runs => account.ends_not(worker, number),
                    // It is not known whether it was recorded.
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
                // By an earlier attempt whose outcome was unknown, or else by another server, which charges it.
                match known == Known::Tried || attempts.load(Relaxed) > 1 {
                    true => drop(account.ended(worker, number, by_itself)),
                    false => account.ended_elsewhere(worker, number),
                }
                Some(*job)
            }
        })
    }

    /// Takes a run that is over its time away from its worker, unless it has reported since.
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

    /// Runs of a worker have ended here, because it was removed: they are charged.
    pub(crate) fn given_back(&self, job_type: &str, worker: &str, runs: &[GivenBack]) {
        if !runs.is_empty() {
            self.account(job_type).given_back(worker, runs);
        }
    }

    /// Looks after the runs that are known here, also where no worker asks for jobs any more.
    pub(crate) async fn tend(&self) {
        for job_type in self.accounts.types() {
            self.account(&job_type).tend(&self.store, &self.keys, &job_type).await;
        }
    }

    /// The worker leaves by itself: its jobs are pending again, no row stays. Harmless if it has left before.
    ///
    /// # Errors
    /// `Halt` for a worker that is not an external one.
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

/// What a look for jobs came to.
enum Given {
    Jobs { jobs: Vec<Accepted>, pass: Option<Pass> },
    Nothing { pass: Pass, numbered: Option<Bytes> },
    NoSlot { numbered: Option<Bytes> },
}

fn accepted(job: Job, options: Box<RawValue>) -> Accepted {
    let claim = job.claim().expect("a claimed job has a claim").number;
    Accepted { job, options, claim }
}

/// How many jobs of a worker wait for locks.
async fn waiting(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<usize> {
    let running = locks::running_of(tx, keys, job_type, MAX_LOCKING).await?;
    let its = |job: &&locks::Running| job.claim.worker == worker;
    Ok(running.iter().filter(its).filter(|job| job.all.waits.is_some()).count())
}

fn claim_of(worker: &str, number: u64) -> Claim {
    Claim { worker: worker.to_owned(), number }
}

/// Who takes jobs from each type's queue, as it was found not long ago.
#[derive(Default)]
struct Contenders {
    by_type: Mutex<BTreeMap<String, Found>>,
}

/// When they were found, in µs, and who.
type Found = (i64, Arc<[String]>);

/// Types whose contenders are remembered; with more of them they are looked at more often.
const MAX_KNOWN_TYPES: usize = 1_000;

impl Contenders {
    fn known(&self, job_type: &str, now_us: i64, ttl_us: i64) -> Option<Arc<[String]>> {
        let by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        let (found_us, names) = by_type.get(job_type)?;
        // A clock that was set back makes it old, too.
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
    /// Only those that someone stands in.
    by_type: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// The first place of a line. Dropping it lets the next one in.
struct Turn {
    // In this order: the place looks whether anyone else still holds the line.
    _first: OwnedMutexGuard<()>,
    _place: Place,
}

/// A place in a line; with the last one the line goes.
struct Place {
    lines: Arc<Lines>,
    job_type: String,
}

impl Lines {
    /// Returns once everyone who came before has gone.
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
