//! An external worker: jobs of one type, run by a function, over HTTP.
//!
//! ```text
//! register ─▶ ping (a task) ┐                        ┌─▶ told to stop: every run stops, `leave`
//!             accept (loop) ┼─ a task per run ───────┤
//!                           ┘  its end, repeated     └─▶ expired: every run is aborted, nothing more is written, register
//!                              until acknowledged
//! ```
//!
//! While the server is away, runs go on, and their ends are told when it is back. Claims make sure that an end counts once.
//! Where there are several servers, the worker is the same one to all of them: it goes on with the next under the id that it has.

mod lock;
mod run;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Method;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_protocol::names::{check_name, check_type};
use turnwise_protocol::{
    Accept, Accepted, AcceptedJob, Left, MAX_SLOTS, Pinged, Register, Registered, codes,
};

pub use self::lock::LockError;
use self::run::Supervisor;
pub use self::run::{Outcome, Run};
use crate::client::Request;
use crate::jobs::SHORTEST_WAIT;
use crate::{Client, Error, Result};

/// The time for `leave` when the worker stops: when it gets no answer, the server finds out by itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Beyond the grace period, this long for the ends of runs to be acknowledged when the worker stops.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// A worker's settings.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The type of the jobs.
    pub job_type: String,
    /// A name for people, at most 128 bytes.
    pub name: Option<String>,
    /// Jobs that run at the same time at most; 1 to 1,000.
    pub slots: usize,
    /// How long one request for jobs waits on the server.
    pub accept_wait: Duration,
    /// Between two reports of a job's progress, at least.
    pub report_interval: Duration,
    /// What a run that was told to stop has before it is aborted.
    pub stop_grace: Duration,
}

impl WorkerOptions {
    /// Settings for jobs of this type, one at a time.
    pub fn new(job_type: impl Into<String>) -> Self {
        WorkerOptions {
            job_type: job_type.into(),
            name: None,
            slots: 1,
            accept_wait: Duration::from_secs(30),
            report_interval: Duration::from_secs(1),
            stop_grace: Duration::from_secs(10),
        }
    }

    fn check(&self) -> Result<()> {
        check_type(&self.job_type)?;
        if let Some(name) = &self.name {
            check_name("name", name)?;
        }
        match self.slots {
            1..=MAX_SLOTS => Ok(()),
            _ => Err(Error::Invalid(format!("slots: must be from 1 to {MAX_SLOTS}"))),
        }
    }
}

/// Works until `stop` is cancelled: runs every job with `handler`, up to `slots` at a time. What still runs then is told to
/// stop and given back, and the worker leaves. A server that is away is waited for.
///
/// # Errors
/// The server refuses the worker: a wrong name, a type that belongs to the server, or not turnwise at all.
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
    let handler = Arc::new(handler);
    let options = Arc::new(options);
    // One that was registered before knows that this is turnwise, and that it is welcome.
    let mut no_verdict: fn(&Error) -> bool = is_fault;
    loop {
        let registered = register(client, &options, &stop, no_verdict).await?;
        let Some(registered) = registered else { return Ok(()) };
        no_verdict = is_no_verdict;
        let Registered { worker, ping_interval_ms, .. } = registered;
        tracing::info!(job_type = options.job_type, worker, "registered");
        let member = Member {
            shared: Arc::new(Shared {
                client: client.clone(),
                options: options.clone(),
                id: worker,
                expired: CancellationToken::new(),
                runs: Mutex::default(),
                ended: Notify::new(),
            }),
            ping_interval: Duration::from_millis(ping_interval_ms.max(1)),
            stop: stop.clone(),
        };
        if member.work(&handler).await? == End::Stopped {
            return Ok(());
        }
        tracing::warn!("taken for dead by the server: starts over as a new worker");
    }
}

/// `None`: told to stop before it was registered.
async fn register(
    client: &Client,
    options: &WorkerOptions,
    stop: &CancellationToken,
    again: fn(&Error) -> bool,
) -> Result<Option<Registered>> {
    let body = Register { name: options.name.clone(), slots: options.slots };
    let request = Request::new(Method::POST, &["workers", &options.job_type]).json(&body)?;
    // Without an answer there may be a worker that nobody is: it never pings, has no jobs, and is removed.
    persist(client, &request, stop, again).await.transpose()
}

/// Whether it is the server's fault, and may be over soon: nothing is said about the request.
fn is_fault(error: &Error) -> bool {
    let codes = [codes::INTERNAL, codes::TIMEOUT, codes::SUPERSEDED];
    error.may_pass() || error.code().is_some_and(|code| codes.contains(&code))
}

/// Whether a worker that the server knows goes on after this: beside a fault, what stands between has answered in its place.
fn is_no_verdict(error: &Error) -> bool {
    is_fault(error) || matches!(error, Error::Foreign { .. })
}

/// Makes a request until it is answered; `None` once `gone` is cancelled.
async fn persist<T: serde::de::DeserializeOwned>(
    client: &Client,
    request: &Request,
    gone: &CancellationToken,
    again: fn(&Error) -> bool,
) -> Option<Result<T>> {
    let asking = async {
        let mut backoff = client.backoff();
        loop {
            match client.once(request).await {
                Err(error) if again(&error) => {
                    if backoff.attempts() == 0 {
                        tracing::warn!("asking again until there is an answer: {error}");
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
                answer => return answer,
            }
        }
    };
    gone.run_until_cancelled(asking).await
}

/// What all parts of an incarnation share.
struct Shared {
    client: Client,
    options: Arc<WorkerOptions>,
    id: String,
    /// The server has told that this worker is no member any more.
    expired: CancellationToken,
    /// By claim: how to stop those that run.
    runs: Mutex<BTreeMap<u64, CancellationToken>>,
    ended: Notify,
}

impl Shared {
    fn request(&self, rest: &[&str]) -> Request {
        let segments = [&["workers", &self.options.job_type, &self.id], rest].concat();
        Request::new(Method::POST, &segments)
    }

    fn runs(&self) -> MutexGuard<'_, BTreeMap<u64, CancellationToken>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(PartialEq, Eq)]
enum End {
    Stopped,
    Expired,
}

/// One incarnation of the worker.
struct Member {
    shared: Arc<Shared>,
    ping_interval: Duration,
    stop: CancellationToken,
}

impl Member {
    async fn work<F, Running>(&self, handler: &Arc<F>) -> Result<End>
    where
        F: Fn(Run) -> Running + Send + Sync + 'static,
        Running: Future<Output = Outcome> + Send + 'static,
    {
        // Pings go on until the last run has ended.
        let _pinging = AbortOnDropHandle::new(tokio::spawn(ping(self.shared.clone(), self.ping_interval)));
        let mut tasks = JoinSet::new();
        let accepted = tokio::select! {
            biased;
            () = self.shared.expired.cancelled() => Ok(()),
            () = self.stop.cancelled() => Ok(()),
            never = self.accept(handler, &mut tasks) => never,
        };
        if accepted.is_err() || !self.shared.expired.is_cancelled() {
            self.stop_runs(&mut tasks).await;
        }
        if self.shared.expired.is_cancelled() {
            // Every run sees it by itself: it aborts its handler and writes nothing.
            while tasks.join_next().await.is_some() {}
            accepted?;
            return Ok(if self.stop.is_cancelled() { End::Stopped } else { End::Expired });
        }
        let request = self.shared.request(&["leave"]);
        let leaving = self.shared.client.once::<Left>(&request);
        match tokio::time::timeout(LEAVE_TIMEOUT, leaving).await {
            Ok(Ok(_)) => tracing::info!("left"),
            Ok(Err(error)) => tracing::warn!("could not leave, the server will notice: {error}"),
            Err(_) => tracing::warn!("could not leave in time, the server will notice"),
        }
        accepted.map(|()| End::Stopped)
    }

    /// Lets every run end, for as long as that may take, and drops what is left: `leave` gives it back.
    async fn stop_runs(&self, tasks: &mut JoinSet<()>) {
        for stop in self.shared.runs().values() {
            stop.cancel();
        }
        let ended = async { while tasks.join_next().await.is_some() {} };
        let patience = self.shared.options.stop_grace.saturating_mul(2) + STOP_MARGIN;
        tokio::select! {
            biased;
            () = self.shared.expired.cancelled() => {}
            ended = tokio::time::timeout(patience, ended) => {
                if ended.is_err() {
                    tracing::warn!("the ends of some runs could not be told in time: they go back to the queue");
                    tasks.shutdown().await;
                }
            }
        }
    }

    /// Asks for jobs whenever there is room. Ends only with what the server refuses.
    async fn accept<F, Running>(&self, handler: &Arc<F>, tasks: &mut JoinSet<()>) -> Result<()>
    where
        F: Fn(Run) -> Running + Send + Sync + 'static,
        Running: Future<Output = Outcome> + Send + 'static,
    {
        let shared = &self.shared;
        let wait = shared.options.accept_wait;
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(turnwise_protocol::MAX_WAIT_MS);
        let mut received = 0;
        let mut backoff = shared.client.backoff();
        loop {
            while tasks.try_join_next().is_some() {}
            let ended = shared.ended.notified();
            let free = shared.options.slots - shared.runs().len();
            if free == 0 {
                ended.await;
                continue;
            }
            let body = Accept { received, limit: free, wait_ms };
            let request = shared.request(&["accept"]).json(&body)?.waiting(wait);
            let asked = Instant::now();
            let server = shared.client.servers.current();
            let answered = tokio::select! {
                biased;
                answered = shared.client.once::<Accepted>(&request) => answered,
                // A ping has found that it does not answer any more. Jobs that it gives now are given again by the next one.
                () = shared.client.servers.left(server) => continue,
            };
            let jobs = match answered {
                Ok(Accepted { jobs }) => jobs,
                Err(error) if error.is_expired() => {
                    shared.expired.cancel();
                    return std::future::pending().await;
                }
                Err(error) if is_no_verdict(&error) => {
                    if backoff.attempts() == 0 {
                        tracing::warn!("asking for jobs again until there is an answer: {error}");
                    }
                    tokio::time::sleep(backoff.next()).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            backoff = shared.client.backoff();
            if jobs.is_empty() {
                tokio::time::sleep_until(asked + SHORTEST_WAIT.min(wait)).await;
            }
            for job in jobs {
                // `received` told the server what has come. Whatever it says, no claim is run twice.
                if job.claim > received {
                    received = job.claim;
                    self.start(job, handler, tasks);
                }
            }
        }
    }

    fn start<F, Running>(&self, job: AcceptedJob, handler: &Arc<F>, tasks: &mut JoinSet<()>)
    where
        F: Fn(Run) -> Running + Send + Sync + 'static,
        Running: Future<Output = Outcome> + Send + 'static,
    {
        let stop = CancellationToken::new();
        self.shared.runs().insert(job.claim, stop.clone());
        let (supervisor, run) = Supervisor::new(self.shared.clone(), job, stop);
        let handler = handler.clone();
        let task = tokio::spawn(async move { handler(run).await });
        tasks.spawn(supervisor.run(AbortOnDropHandle::new(task)));
    }
}

/// Shows that the worker lives, and passes on which runs shall stop.
async fn ping(shared: Arc<Shared>, interval: Duration) {
    let mut request = shared.request(&["ping"]);
    // A ping that takes longer is not worth waiting for: the next one is due.
    request.timeout = interval.max(Duration::from_secs(1));
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut backoff = shared.client.backoff();
    loop {
        ticks.tick().await;
        match shared.client.once::<Pinged>(&request).await {
            Ok(Pinged { cancel }) => {
                backoff = shared.client.backoff();
                let runs = shared.runs();
                for stop in cancel.iter().filter_map(|claim| runs.get(claim)) {
                    stop.cancel();
                }
            }
            Err(error) if error.is_expired() => return shared.expired.cancel(),
            Err(error) => {
                tracing::debug!("a ping was not answered: {error}");
                // Sooner than the next one would be: the server may just have come back.
                ticks.reset_after(backoff.next().min(interval));
            }
        }
    }
}
