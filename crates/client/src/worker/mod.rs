//! An external worker: it runs jobs of one type with a function, and speaks HTTP to a server.
//!
//! ```text
//! register ─▶ ping (thread) ┐                        ┌─▶ asked to stop: runs end within `drain`, or stop; `leave`
//!             accept (loop) ┼─ a task per run ───────┤
//!             end (a task)  ┘  its end, repeated     ├─▶ drained: no more jobs, `leave` after the last run
//!                              until acknowledged    └─▶ expired: every run is aborted, nothing more is written, register
//! ```
//!
//! While no server answers, runs continue, and the worker reports their ends later. Reporting an end is idempotent,
//! because it names the claim. With several servers, the worker fails over to the next one and keeps its id, because
//! the servers share the store.

mod ends;
mod heartbeats;
mod info;
mod input;
mod lock;
mod run;
mod shared;
mod step;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::Method;
use serde::de::IgnoredAny;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_protocol::schedules::check_schedule_name;
use turnwise_protocol::{
    Accept, Accepted, AcceptedJob, EndRuns, EndedRuns, Left, MAX_WAIT_MS, PutSchedule, Register, Registered,
    ReleaseRun,
};

use self::ends::Ends;
use self::heartbeats::Heartbeats;
pub use self::lock::LockError;
use self::run::Supervisor;
pub use self::run::{Outcome, Run, RunError};
pub use self::shared::WorkerOptions;
use self::shared::{Shared, is_fault, is_retryable, persist};
use crate::client::Request;
use crate::jobs::SHORTEST_WAIT;
use crate::waits::is_cut;
use crate::{Client, Error, Result};

/// The timeout of `leave` when the worker stops. Without `leave`, the server removes the worker when its health timeout is over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a stopping worker tries to give back the jobs of a request that it has given up.
const RETURN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a stopping worker waits for the acknowledgement of its runs' ends, beyond twice the grace period.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// Runs jobs with `handler`, up to `slots` at a time, until `stop` is cancelled. It then lets the running jobs end for the time of `drain`,
/// stops those that still run, gives them back, and unregisters the worker. While the server does not answer, the worker retries. If an
/// operator drains the worker, it gets no more jobs. It ends when its last job has ended.
///
/// # Errors
/// The server refuses the worker, for a wrong name or a type that only the server runs; or the answer is not turnwise's.
pub async fn work<F, Running>(
    client: &Client,
    options: WorkerOptions,
    handler: F,
    stop: CancellationToken,
) -> Result<()>
where
    F: Fn(Run) -> Running + Send + Sync + 'static,
    Running: Future<Output = Outcome> + Send + 'static,
{
    options.check()?;
    let handler: Arc<Handler> = Arc::new(move |run| Box::pin(handler(run)));
    let options = Arc::new(options);
    // After the first registration, the URL is known to be turnwise's, so foreign answers are retried, too.
    let mut may_retry: fn(&Error) -> bool = is_fault;
    loop {
        let registered = register(client, &options, &stop, may_retry).await?;
        let Some(registered) = registered else { return Ok(()) };
        may_retry = is_retryable;
        let Registered { worker, ping_interval_ms, health_timeout_ms } = registered;
        tracing::info!(job_type = options.job_type, worker, "registered");
        let member = Member {
            shared: Arc::new(Shared {
                client: client.clone(),
                options: options.clone(),
                id: worker,
                expired: CancellationToken::new(),
                draining: CancellationToken::new(),
                runs: Mutex::default(),
                ends: Ends::default(),
                received: AtomicU64::default(),
                asking: AtomicBool::default(),
            }),
            handler: handler.clone(),
            ping_interval: Duration::from_millis(ping_interval_ms.max(1)),
            health_timeout: Duration::from_millis(health_timeout_ms),
            stop: stop.clone(),
        };
        if member.work().await? == End::Stopped {
            return Ok(());
        }
        tracing::warn!("the server has removed this worker: registering again as a new one");
    }
}

/// Registers the worker. `None`: stopped before it was registered.
async fn register(
    client: &Client,
    options: &WorkerOptions,
    stop: &CancellationToken,
    again: fn(&Error) -> bool,
) -> Result<Option<Registered>> {
    let body = Register {
        name: options.name.clone(),
        slots: options.slots,
        tasks: options.tasks.clone(),
        task_slots: options.task_slots.clone(),
        task_terms: options.task_terms.clone(),
    };
    let request = Request::new(Method::POST, &["workers", &options.job_type]).json(&body)?;
    // If only the answer was lost, an unused worker stays registered: it never pings, has no jobs, and the server removes it.
    persist(client, &|| Ok(request.clone()), stop, again).await.transpose()
}

/// Writes a schedule of a worker that starts. `None`: stopped before that.
pub(crate) async fn put_schedule(
    client: &Client,
    name: &str,
    schedule: &PutSchedule,
    stop: &CancellationToken,
) -> Result<Option<IgnoredAny>> {
    check_schedule_name(name)?;
    let request = Request::new(Method::PUT, &["schedules", name]).json(schedule)?;
    persist(client, &|| Ok(request.clone()), stop, is_fault).await.transpose()
}

#[derive(PartialEq, Eq)]
enum End {
    Stopped,
    Expired,
}

/// Runs a job.
type Handler = dyn Fn(Run) -> BoxFuture<'static, Outcome> + Send + Sync;

/// The worker from one registration to its end.
struct Member {
    shared: Arc<Shared>,
    handler: Arc<Handler>,
    ping_interval: Duration,
    health_timeout: Duration,
    stop: CancellationToken,
}

impl Member {
    async fn work(&self) -> Result<End> {
        // The worker pings until the last run has ended.
        let _pinging = Heartbeats::start(&self.shared, self.ping_interval, self.health_timeout)?;
        let _ending = AbortOnDropHandle::new(tokio::spawn(ends::send_uncarried(self.shared.clone())));
        let mut tasks = JoinSet::new();
        let accepted = tokio::select! {
            biased;
            () = self.shared.expired.cancelled() => Ok(()),
            () = self.stop.cancelled() => Ok(()),
            never = self.accept(&mut tasks) => never,
        };
        self.shared.ends.set_carried(false);
        if accepted.is_ok() && !self.shared.expired.is_cancelled() && self.shared.asking.load(Relaxed) {
            let returned = tokio::time::timeout(RETURN_TIMEOUT, self.return_undelivered()).await;
            if let Ok(Err(error)) | Err(error) = returned.map_err(|_| Error::Invalid("no answer".to_owned()))
            {
                tracing::debug!(
                    "jobs that may have been on their way stay claimed until the worker leaves: {error}"
                );
            }
        }
        if accepted.is_ok() && self.shared.draining.is_cancelled() {
            tracing::info!("draining: ends when its last job has ended");
            self.stop.run_until_cancelled(self.ended(&mut tasks, Duration::MAX)).await;
        }
        let drain = self.shared.options.drain;
        if accepted.is_ok()
            && self.stop.is_cancelled()
            && !drain.is_zero()
            && !self.ended(&mut tasks, drain).await
        {
            tracing::warn!("{} runs go on after {drain:?}: they are stopped", self.shared.runs().len());
        }
        if accepted.is_err() || !self.shared.expired.is_cancelled() {
            self.stop_runs(&mut tasks).await;
        }
        if self.shared.expired.is_cancelled() {
            // Every run notices this itself: it aborts its handler and writes nothing.
            while tasks.join_next().await.is_some() {}
            accepted?;
            let is_over = self.stop.is_cancelled() || self.shared.draining.is_cancelled();
            return Ok(if is_over { End::Stopped } else { End::Expired });
        }
        let request = self.shared.request(&["leave"]);
        let leaving = self.shared.client.once::<Left>(&request);
        match tokio::time::timeout(LEAVE_TIMEOUT, leaving).await {
            Ok(Ok(_)) => tracing::info!("left"),
            Ok(Err(error)) => tracing::warn!(
                "could not unregister; the server removes this worker after its health timeout: {error}"
            ),
            Err(_) => tracing::warn!(
                "could not unregister in time; the server removes this worker after its health timeout"
            ),
        }
        accepted.map(|()| End::Stopped)
    }

    /// Waits for the ends of all runs, but no longer than this. Returns whether they have ended, or the worker has expired.
    async fn ended(&self, tasks: &mut JoinSet<()>, within: Duration) -> bool {
        let ended = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            biased;
            () = self.shared.expired.cancelled() => true,
            ended = tokio::time::timeout(within, ended) => ended.is_ok(),
        }
    }

    /// Stops all runs and waits for their ends, up to a limit. It drops runs that still have not ended; `leave` gives
    /// their jobs back.
    async fn stop_runs(&self, tasks: &mut JoinSet<()>) {
        for stop in self.shared.runs().values() {
            stop.cancel();
        }
        let patience = self.shared.options.stop_grace.saturating_mul(2) + STOP_MARGIN;
        if !self.ended(tasks, patience).await {
            tracing::warn!("could not report the ends of some runs in time: their jobs return to the queue");
            tasks.shutdown().await;
        }
    }

    /// Gives back the jobs that the server has claimed for a request that this worker has given up. Otherwise they would wait for it to leave.
    async fn return_undelivered(&self) -> Result<()> {
        let shared = &self.shared;
        loop {
            let received = shared.received.load(Relaxed);
            let body = Accept { received, limit: 1, wait_ms: 0, ends: EndRuns::default() };
            let accepted: Accepted = shared.client.once(&shared.request(&["accept"]).json(&body)?).await?;
            let release = accepted.jobs.into_iter().map(|AcceptedJob { id, claim, .. }| {
                shared.received.fetch_max(claim, Relaxed);
                ReleaseRun { id, claim, info: None, log: Vec::new() }
            });
            let ends = EndRuns { release: release.collect(), ..EndRuns::default() };
            let count = ends.release.len();
            if count > 0 {
                let _: EndedRuns = shared.client.once(&shared.request(&["end"]).json(&ends)?).await?;
            }
            // The request is for one job, so that several are some that were sent before, and there may be more of them.
            if count < 2 {
                return Ok(());
            }
        }
    }

    /// Requests jobs whenever a slot is free, or is free once the server knows the end of its run. Returns when the worker drains,
    /// and when the server refuses a request.
    async fn accept(&self, tasks: &mut JoinSet<()>) -> Result<()> {
        let shared = &self.shared;
        let mut backoff = shared.client.backoff();
        loop {
            while tasks.try_join_next().is_some() {}
            if shared.draining.is_cancelled() {
                return Ok(());
            }
            self.make_room().await;
            let changed = shared.ends.changed();
            shared.ends.set_carried(true);
            let ends = shared.ends.take();
            let running = shared.runs().len().saturating_sub(ends.len());
            let free = shared.options.slots.saturating_sub(running);
            if free == 0 {
                tokio::select! {
                    biased;
                    () = shared.draining.cancelled() => {}
                    () = changed => {}
                }
                continue;
            }
            // A request without ends waits on the server for jobs. Ends that arrive meanwhile do not wait for it.
            let waits = ends.is_empty();
            shared.ends.set_carried(!waits);
            let wait = shared.client.waits.longest(shared.options.accept_wait);
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(MAX_WAIT_MS).min(MAX_WAIT_MS);
            let received = shared.received.load(Relaxed);
            let body = Accept { received, limit: free, wait_ms, ends: ends.request() };
            let wait = if waits { wait } else { Duration::ZERO };
            let request = shared.request(&["accept"]).json(&body)?.waiting(wait);
            let asked = Instant::now();
            let server = shared.client.servers.current();
            shared.asking.store(true, Relaxed);
            let answered = tokio::select! {
                biased;
                answered = shared.client.once::<Accepted>(&request) => answered,
                // A ping has failed, and the client has moved to another server. Jobs in the lost answer come again
                // from that server.
                () = shared.client.servers.left(server) => continue,
                // Jobs in the lost answer return to the queue when the worker leaves.
                () = shared.draining.cancelled(), if waits => continue,
            };
            let jobs = match answered {
                Ok(Accepted { ended, jobs, mode }) => {
                    shared.asking.store(false, Relaxed);
                    ends.answered(ended, shared);
                    shared.follow(mode);
                    jobs
                }
                Err(error) if error.is_expired() => {
                    shared.expired.cancel();
                    return std::future::pending().await;
                }
                Err(error) if is_cut(wait, asked.elapsed(), &error) => continue,
                Err(error) if is_retryable(&error) => {
                    if backoff.attempts() == 0 {
                        tracing::warn!("requesting jobs again until the server answers: {error}");
                    }
                    drop(ends);
                    shared.ends.set_carried(false);
                    tokio::time::sleep(backoff.next()).await;
                    continue;
                }
                // One of the ends may be at fault.
                Err(error) if !waits => {
                    shared.ends.set_carried(false);
                    shared.ends.refused(ends, error);
                    changed.await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            backoff = shared.client.backoff();
            if jobs.is_empty() && waits && !shared.draining.is_cancelled() {
                tokio::time::sleep_until(asked + SHORTEST_WAIT.min(shared.options.accept_wait)).await;
            }
            for job in jobs {
                // `received` acknowledges the claims that have arrived. Even if the server sends a claim again, the
                // worker runs it once.
                if job.claim > shared.received.fetch_max(job.claim, Relaxed) {
                    self.start(job, tasks);
                }
            }
        }
    }

    /// Waits until no more jobs run than there are slots. The server returns the jobs of a lost answer again, perhaps before it has
    /// acknowledged the ends that made room for them. No request for jobs can carry these ends then.
    async fn make_room(&self) {
        let Shared { ends, options, draining, .. } = &*self.shared;
        let has_room = || self.shared.runs().len() <= options.slots;
        if has_room() {
            return;
        }
        ends.set_carried(false);
        loop {
            let changed = ends.changed();
            if has_room() {
                return;
            }
            tokio::select! {
                () = draining.cancelled() => return,
                () = changed => {}
            }
        }
    }

    fn start(&self, job: AcceptedJob, tasks: &mut JoinSet<()>) {
        let stop = CancellationToken::new();
        self.shared.runs().insert(job.claim, stop.clone());
        let (supervisor, run) = Supervisor::new(self.shared.clone(), job, stop);
        let handler = self.handler.clone();
        // Called within the task, because the handler may panic.
        let task = tokio::spawn(async move { handler(run).await });
        tasks.spawn(supervisor.run(AbortOnDropHandle::new(task)));
    }
}
