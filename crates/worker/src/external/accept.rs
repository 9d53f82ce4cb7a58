//! Requests of external workers for jobs.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use turnwise_policy::contention::Shard;
use turnwise_queue::tasks::Tasks;
use turnwise_queue::{Error, Job, Keyspace, Mode, Result, claims, jobs, locks, workers};
use turnwise_store::Transaction;

use super::{Accepted, External, MAX_ACCEPTED};
use crate::claimer::Claimer;
use crate::line::First;
use crate::pass::{Claimant, Numbers, Pass, pass};
use crate::tenant_filter::TenantFilter;

/// The maximum number of jobs that one response delivers again: their options are read with them.
const REDELIVER_BATCH: usize = 10;
/// The maximum number of claims with locks that are read to count a worker's waiting jobs.
const MAX_LOCKING: usize = 10_000;

/// How long a request of a worker that drains waits at most. The worker can end after its response; one that does not know what
/// draining is sends the next request.
const DRAIN_WAIT: Duration = Duration::from_secs(1);

/// The response to a request for jobs.
#[derive(Debug, Default)]
pub struct Given {
    /// The jobs, by claim.
    pub jobs: Vec<Accepted>,
    /// Whether the worker gets new jobs, as last read.
    pub mode: Mode,
}

/// What a worker asks for.
#[derive(Clone)]
pub struct Wanted {
    /// The highest claim number that it has ever received.
    pub received: u64,
    /// The most jobs.
    pub limit: usize,
    /// How long it waits for them.
    pub wait: Duration,
    /// The tenants whose jobs it may run; `None` means all.
    pub tenants: Option<TenantFilter>,
}

impl External {
    /// Jobs for the worker. `received` is the highest claim number that it has ever received. If it holds jobs under
    /// higher numbers, a response was lost, and these jobs are returned again. Otherwise, this claims up to `limit` new
    /// jobs, but never more than the worker has free slots. Waits up to `wait` for jobs; the list may be empty.
    ///
    /// The waiting workers of a type that may take the same jobs form a line, and only the first of them watches the store: a job
    /// that arrives wakes one worker of each line.
    ///
    /// A quiet worker gets only jobs that it holds already. It stands in no line.
    ///
    /// `leave` ends the wait, but no running transaction. Cancel it and await the result instead of dropping this
    /// future. Then no claim of this request is outstanding when the next request for the same worker begins.
    ///
    /// # Errors
    /// `Halt` if it is not a member (any more).
    pub fn accept<'a>(
        &'a self,
        job_type: &'a str,
        worker: &'a str,
        wanted: Wanted,
        leave: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Given>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            let Wanted { received, limit, wait, tenants } = wanted;
            let tenants = tenants.as_ref();
            let runtime = self.store.runtime();
            let mut deadline = pin!(runtime.sleep(wait));
            let mut first: Option<(First, String)> = None;
            let mut claimer = Claimer::new(self.store.clone(), self.keys.clone(), job_type);
            // Whether the time is over, so that this pass is the last.
            let mut last = false;
            loop {
                let job_released = self.passes.job_released();
                let shard = self.shard(job_type).await?;
                let delivery =
                    self.deliver((job_type, worker), (received, limit), tenants, shard, &claimer).await?;
                let (pass, numbered, takes) = match delivery {
                    Delivery::Jobs { jobs, mode, .. } => return Ok(Given { jobs, mode }),
                    Delivery::Quiet { mode, .. } if last => return Ok(Given { jobs: Vec::new(), mode }),
                    Delivery::Quiet { mode, row, numbered } => {
                        drop(first.take());
                        let given_again =
                            self.store.watch(self.keys.claim_number(job_type, worker), numbered).await?;
                        let changed = self.store.watch(self.keys.worker(job_type, worker), row).await?;
                        let drained = async {
                            match mode {
                                Mode::Drain => runtime.sleep(DRAIN_WAIT).await,
                                Mode::Active | Mode::Quiet => std::future::pending().await,
                            }
                        };
                        tokio::select! {
                            biased;
                            () = leave.cancelled() => {}
                            () = given_again => continue,
                            () = changed => continue,
                            () = drained => {}
                            () = &mut deadline => {}
                        }
                        return Ok(Given { jobs: Vec::new(), mode });
                    }
                    Delivery::Nothing { pass, .. }
                        if (pass.filtered || pass.more && pass.skipped.is_empty())
                            && !leave.is_cancelled() =>
                    {
                        if pass.filtered {
                            claimer.searches_further();
                        }
                        continue;
                    }
                    _ if last => return Ok(Given::default()),
                    Delivery::NoSlot { numbered } => (None, numbered, String::new()),
                    Delivery::Nothing { pass, numbered, takes } => (Some(pass), numbered, takes),
                };
                if pass.is_none() {
                    // A worker without a free slot must not block the line.
                    drop(first.take());
                }
                // Fires at a claim of another request for the same worker, whose response may be lost.
                let claimed_elsewhere =
                    self.store.watch(self.keys.claim_number(job_type, worker), numbered).await?;
                let Some(pass) = pass else {
                    tokio::select! {
                        biased;
                        () = leave.cancelled() => return Ok(Given::default()),
                        () = claimed_elsewhere => continue,
                        () = &mut deadline => return Ok(Given::default()),
                    }
                };
                claimer.starts_over();
                // A worker whose caps are reached takes less than others with its tasks.
                if first.as_ref().is_none_or(|(_, of)| *of != takes) {
                    drop(first.take());
                    tokio::select! {
                        biased;
                        () = leave.cancelled() => return Ok(Given::default()),
                        head = self.lines.join(job_type, &takes) => first = Some((head, takes)),
                        () = claimed_elsewhere => {}
                        () = &mut deadline => return Ok(Given::default()),
                    }
                    // Jobs that arrived while it was in the line woke only the workers before it. So it makes a new pass.
                    continue;
                }
                claimer.wait_after(&pass, shard.pause(runtime.random())).await?;
                tokio::select! {
                    biased;
                    () = leave.cancelled() => return Ok(Given::default()),
                    () = claimer.woken(true) => {}
                    () = claimed_elsewhere => {}
                    () = job_released, if pass.all_in_other_passes => {}
                    // If there are skipped jobs, the last pass may claim them. Otherwise, requests with a short wait would
                    // only get jobs of this node's shard.
                    () = &mut deadline => match pass.skipped.is_empty() {
                        false => {
                            claimer.expired = pass.skipped;
                            last = true;
                        }
                        true => return Ok(Given::default()),
                    },
                }
            }
        })
    }

    /// One attempt to find jobs.
    async fn deliver(
        &self,
        (job_type, worker): (&str, &str),
        (received, limit): (u64, usize),
        tenants: Option<&TenantFilter>,
        shard: Shard,
        claimer: &Claimer,
    ) -> Result<Delivery> {
        let random = self.store.runtime().random();
        let (store, keys, tunables) = (&self.store, &self.keys, self.tunables.get());
        let (queue, terms, max_history) = (&*tunables.queue, &tunables.terms(job_type), tunables.max_history);
        // Dropped after the commit: from then on, every pass reads that the jobs are no longer pending.
        let pass_jobs = &self.passes.begin_pass(job_type);
        let account = self.account(job_type);
        account.maintain(store, keys, job_type).await;
        let fair = &account.fair;
        let known = account.known(worker);
        let failed = &AtomicU32::new(0);
        let _turn = match fair.locking.load(Relaxed) {
            true => self.passes.turn(store.runtime(), job_type).await,
            false => None,
        };
        let delivery = store
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
                // A claim that is still in flight changes this key when it is committed. It may be a claim of an
                // attempt with unknown outcome, or of a request to another server, whose response may be lost.
                let numbered = tx.get(&keys.claim_number(job_type, worker)).await?;
                if !again.is_empty() {
                    let mut jobs = Vec::with_capacity(again.len());
                    for job in again {
                        let options = jobs::options(&tx, keys, &job).await?;
                        jobs.push(accepted(job, options));
                    }
                    return Ok((Delivery::Jobs { jobs, pass: None, mode: row.mode }, None));
                }
                let held = claims::numbers(&tx, keys, job_type, worker, 2 * row.slots).await?;
                if row.mode.is_quiet() {
                    let (mode, row) = (row.mode, tx.get(&keys.worker(job_type, worker)).await?);
                    return Ok((Delivery::Quiet { mode, row, numbered }, Some(held)));
                }
                let mut running = held.len();
                if running >= row.slots && !queue.waiting_uses_slot {
                    let waiting = waiting(&tx, keys, job_type, worker).await?;
                    running = running.saturating_sub(queue.lent(row.slots, waiting));
                }
                let max_jobs = row.slots.min(running.saturating_add(limit.min(MAX_ACCEPTED)));
                if max_jobs <= running {
                    return Ok((Delivery::NoSlot { numbered }, Some(held)));
                }
                let (numbers, pass_jobs) = (Numbers::Stored, Some(pass_jobs));
                let most = 2 * row.slots;
                let tasks = &Tasks::of_worker(&tx, keys, job_type, worker, row.tasks.as_ref(), most).await?;
                let claimant = Claimant {
                    job_type,
                    worker,
                    running,
                    max_jobs,
                    failed,
                    numbers,
                    fair,
                    tenants,
                    tasks,
                    queue,
                    pass_jobs,
                    shard,
                    claimer,
                    random,
                    terms,
                    max_history,
                };
                let mut pass = pass(&tx, keys, claimant, store.runtime().now_us()).await?;
                if pass.claimed.is_empty() {
                    let tenants = tenants.map_or("", |tenants| &*tenants.name);
                    let takes = format!("{tenants}\n{}", tasks.name());
                    return Ok((Delivery::Nothing { pass, numbered, takes }, Some(held)));
                }
                let claimed = pass.claimed.drain(..);
                let jobs = claimed.map(|(job, options)| accepted(job, options)).collect();
                Ok::<_, Error>((Delivery::Jobs { jobs, pass: Some(pass), mode: row.mode }, Some(held)))
            })
            .await;
        let delivery = delivery.map(|(delivery, held)| {
            if let Some(held) = held {
                // Removes the runs whose ends another server has recorded.
                account.compare(worker, &known, &held);
            }
            delivery
        });
        match &delivery {
            Ok(Delivery::Jobs { jobs, pass, .. }) => {
                if let Some(pass) = pass {
                    fair.drained(&pass.drained, pass.wake_seen.as_ref());
                    let metrics = self.metrics().of(job_type);
                    for (waited_us, accepted) in pass.waits_us.iter().zip(jobs) {
                        metrics.claimed(*waited_us, accepted.job.attempts);
                    }
                    jobs.iter().for_each(|accepted| self.run_observations.given(worker, &accepted.job));
                }
                let skipped_tenant = pass.as_ref().and_then(|pass| pass.first_skipped_tenant.as_deref());
                for accepted in jobs {
                    account.given(worker, &accepted.job, skipped_tenant);
                }
            }
            Err(Error::Halt) => account.left(worker),
            Ok(_) | Err(_) => {}
        }
        delivery
    }
}

/// The result of one attempt to find jobs.
/// `numbered` is the value of the row with the worker's latest claim number.
enum Delivery {
    /// New jobs with the pass that claimed them, or jobs that are delivered again.
    Jobs { jobs: Vec<Accepted>, pass: Option<Pass>, mode: Mode },
    /// The worker takes no new jobs: its membership row says so.
    Quiet { mode: Mode, row: Option<Bytes>, numbered: Option<Bytes> },
    /// The pass has claimed no job. Workers with the same `takes` may take the same jobs.
    Nothing { pass: Pass, numbered: Option<Bytes>, takes: String },
    /// The worker has no free slot.
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
