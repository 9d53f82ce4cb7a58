//! External workers: processes without a store, which send requests to nodes and do not receive every response.
//!
//! They do what any worker in any language would do by the protocol's rules. They repeat a request until it is answered,
//! and send the highest claim that they have received to [`External::accept`]. When they are no longer members, they stop
//! everything and register again. A request may be lost, or its response, or the node that handles it. The request is then
//! repeated, perhaps at another node, while the first one may still be in flight.

use std::collections::BTreeMap;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, OptionFuture};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use turnwise_queue::claims::{Answer, Report};
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::locks::{Asked, Held, LockAt, Spot};
use turnwise_queue::output::Level;
use turnwise_queue::tasks::KnownTasks;
use turnwise_queue::{Claim, Error, Job, LogLine, Result, RunError, RunKey};
use turnwise_store::Runtime;
use turnwise_worker::{Accepted, External, ExternalEnd, Registration, Wanted};

use crate::core::lock;
use crate::inputs::{self, Given};
use crate::ledger::Did;
use crate::link::{Link, SimRuntime};
use crate::locking::{self, Asks};
use crate::node::{Server, Setting};
use crate::plan::EXTERNAL;
use crate::script::{SNOOZE, Said, SimHandler};
use crate::trace::Site;

/// Jobs that an external worker runs at the same time.
pub const SLOTS: usize = 3;
/// How long a request for jobs waits.
pub const WAIT: Duration = Duration::from_secs(8);
/// How long the worker waits for any response, on top of the wait in its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before a request is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// How much longer than its timeout a worker keeps a run. Until then, the nodes may end it.
const OVERDUE: Duration = Duration::from_secs(4);
/// The same for every other worker, long enough to see whether the nodes end the run. The worker does not learn of that:
/// its slot stays occupied until then.
pub const LONG_OVERDUE: Duration = Duration::from_secs(30);
/// How long after a run its locks are given back again. By then, most retried jobs run again.
const LATE: Duration = Duration::from_secs(2);

/// A site where external workers run, one after the other.
pub struct Actor {
    number: u32,
    lives: u32,
    /// The process that runs there now.
    pub life: Option<Life>,
}

/// An external worker's process.
pub struct Life {
    /// Its clock, random numbers and connection.
    pub link: Arc<Link>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Life {
    /// Ends the process immediately.
    pub fn crash(self) {
        self.link.kill();
        self.task.abort();
    }

    /// Asks it to leave.
    pub fn shut_down(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Whether it was asked to leave.
    pub fn is_leaving(&self) -> bool {
        self.stop.is_none()
    }

    /// Whether it has left.
    pub fn has_left(&self) -> bool {
        self.task.is_finished()
    }
}

impl Actor {
    /// A site without a process.
    pub fn new(number: u32) -> Self {
        Actor { number, lives: 0, life: None }
    }

    /// Starts a process, in place of any earlier one.
    pub fn start(&mut self, setting: &Arc<Setting>) {
        self.lives += 1;
        let site = Site::External(self.number, self.lives);
        setting.core.note(site, "starts", "");
        setting.core.disturb(Duration::ZERO);
        let link = Link::new(&setting.core, site, setting.plan.rates, 0, 0);
        let (stop, stopped) = oneshot::channel();
        let me = Arc::new(Me {
            setting: setting.clone(),
            tasks: setting.plan.known_tasks(self.number),
            runtime: SimRuntime(link.clone()),
            handler: SimHandler { link: link.clone(), checker: setting.checker.clone(), store: None },
            link: link.clone(),
            overdue: if self.number.is_multiple_of(2) { LONG_OVERDUE } else { OVERDUE },
        });
        let task = tokio::spawn(me.live(stopped));
        self.life = Some(Life { link, stop: Some(stop), task });
    }
}

struct Me {
    setting: Arc<Setting>,
    link: Arc<Link>,
    runtime: SimRuntime,
    /// The tasks that it knows; `None` for all.
    tasks: Option<KnownTasks>,
    handler: SimHandler,
    /// How much longer than the timeout it keeps a run.
    overdue: Duration,
}

/// The result of a request.
enum Reply<T> {
    Done(T),
    /// The claim, or the membership, is gone.
    Halt,
    /// The worker received no response, or only an error that may pass.
    Lost,
}

/// How a worker's work under one id ends.
enum End {
    Asked,
    Expired,
}

impl Me {
    /// Makes one request, once.
    async fn call<T, F, Fut>(&self, wait: Duration, request: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(External, CancellationToken) -> Fut,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        self.call_server(wait, |server, leave| request(server.external, leave)).await
    }

    /// The same to a server, of which it needs more than the operations for workers.
    async fn call_server<T, F, Fut>(&self, wait: Duration, request: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Server, CancellationToken) -> Fut,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        let link = &self.link;
        link.gate().await;
        // While no faults occur, the load balancer knows which nodes respond.
        let servers: Vec<Server> = lock(&self.setting.servers)
            .values()
            .filter(|server| link.core.is_chaos() || !server.link.is_paused())
            .cloned()
            .collect();
        if servers.is_empty() || link.goes_wrong(link.rates.unknown) {
            sleep(link.rng.ms(0, 1_000)).await;
            return Reply::Lost;
        }
        let server = link.rng.choose(&servers).clone();
        link.travel().await;
        let leave = CancellationToken::new();
        let (tell, told) = oneshot::channel();
        let working = request(server, leave.clone());
        tokio::spawn(async move {
            let _ = tell.send(working.await);
        });
        // The drop informs the node that the client has disconnected.
        let _hung_up = leave.drop_guard();
        let is_lost = link.goes_wrong(link.rates.unknown);
        let told = timeout(wait + PATIENCE, told).await;
        link.travel().await;
        link.gate().await;
        match told {
            _ if is_lost => Reply::Lost,
            Ok(Ok(Ok(answer))) => Reply::Done(answer),
            Ok(Ok(Err(Error::Halt))) => Reply::Halt,
            _ => Reply::Lost,
        }
    }

    async fn live(self: Arc<Self>, mut stopped: oneshot::Receiver<()>) {
        loop {
            let (name, tasks) = (Some("external".to_owned()), self.tasks.clone());
            let stated = Registration { name, slots: SLOTS, tasks, ..Registration::default() };
            let registered = self.call(Duration::ZERO, |external, _| async move {
                external.register_for(EXTERNAL, stated).await
            });
            let Reply::Done(worker) = registered.await else {
                if stopped.try_recv().is_ok() {
                    return self.link.kill();
                }
                self.runtime.sleep(RETRY).await;
                continue;
            };
            self.note("is a member", &worker.id);
            self.setting.checker.moves_in(&worker.id, &self.link);
            self.link.core.disturb(Duration::ZERO);
            match self.clone().work(&worker.id, &mut stopped).await {
                End::Expired => {
                    self.note("is no member", &worker.id);
                    self.setting.checker.moves_out(&worker.id, false);
                }
                End::Asked => {
                    self.note("leaves", &worker.id);
                    self.setting.checker.moves_out(&worker.id, true);
                    loop {
                        let id = worker.id.clone();
                        let left = self.call(Duration::ZERO, |external, _| async move {
                            external.leave(EXTERNAL, &id).await
                        });
                        if !matches!(left.await, Reply::Lost) {
                            break;
                        }
                        self.runtime.sleep(RETRY).await;
                    }
                    self.note("has left", &worker.id);
                    return self.link.kill();
                }
            }
        }
    }

    fn note(&self, what: &'static str, text: &str) {
        self.link.core.note(self.link.site, what, text);
    }

    /// Works as one registered worker.
    async fn work(self: Arc<Self>, worker: &str, stopped: &mut oneshot::Receiver<()>) -> End {
        let interval = self.setting.plan.options.health_interval;
        let mut ping = self.wait(interval);
        let mut accept: Option<BoxFuture<'static, Reply<Vec<Accepted>>>> = None;
        let mut received = 0;
        let mut stops: BTreeMap<u64, CancellationToken> = BTreeMap::new();
        let mut runs: JoinSet<u64> = JoinSet::new();
        // Once it is asked to stop, it requests no more jobs and gives its runs back. It pings until the last one has ended.
        let mut leaving = false;
        let expired = |leaving| if leaving { End::Asked } else { End::Expired };
        while !leaving || !runs.is_empty() {
            if !leaving && accept.is_none() && stops.len() < SLOTS {
                accept = Some(self.clone().accept(worker.to_owned(), received, SLOTS - stops.len()).boxed());
            }
            tokio::select! {
                biased;
                _ = &mut *stopped, if !leaving => {
                    leaving = true;
                    accept = None;
                    stops.values().for_each(CancellationToken::cancel);
                }
                () = &mut ping => {
                    let id = worker.to_owned();
                    match self.call(Duration::ZERO, |external, _| async move { external.ping(EXTERNAL, &id).await }).await {
                        Reply::Done(pinged) => {
                            pinged.stop.iter().filter_map(|claim| stops.get(claim)).for_each(CancellationToken::cancel);
                            ping = self.wait(interval);
                        }
                        Reply::Halt => return expired(leaving),
                        Reply::Lost => ping = self.wait(interval.min(RETRY)),
                    }
                }
                Some(ended) = runs.join_next() => {
                    if let Ok(claim) = ended {
                        stops.remove(&claim);
                    }
                }
                Some(told) = OptionFuture::from(accept.as_mut()) => {
                    accept = None;
                    match told {
                        Reply::Done(jobs) => for accepted in jobs {
                            received = received.max(accepted.claim);
                            let stop = CancellationToken::new();
                            stops.insert(accepted.claim, stop.clone());
                            runs.spawn(self.clone().run(worker.to_owned(), accepted, stop));
                        },
                        Reply::Halt => return End::Expired,
                        Reply::Lost => accept = Some(self.clone().pause().boxed()),
                    }
                }
            }
        }
        End::Asked
    }

    fn wait(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let runtime = SimRuntime(self.link.clone());
        async move { runtime.sleep(duration).await }.boxed()
    }

    async fn pause(self: Arc<Self>) -> Reply<Vec<Accepted>> {
        self.runtime.sleep(RETRY).await;
        Reply::Done(Vec::new())
    }

    async fn accept(self: Arc<Self>, worker: String, received: u64, limit: usize) -> Reply<Vec<Accepted>> {
        let wanted = Wanted { received, limit, wait: WAIT, tenants: None };
        self.call(WAIT, |external, leave| async move {
            Ok(external.accept(EXTERNAL, &worker, wanted, &leave).await?.jobs)
        })
        .await
    }

    /// Runs a job until its end is recorded. Returns its claim.
    async fn run(self: Arc<Self>, worker: String, accepted: Accepted, stop: CancellationToken) -> u64 {
        let Accepted { job, options, claim } = accepted;
        let id = job.id.clone();
        let (report, mut reports) = mpsc::unbounded_channel();
        let did = {
            let asks = AsksThere { me: &self, worker: &worker, id: &id, claim, stop: &stop };
            let play = self.handler.play(&job, &options, &stop, &asks, |said| {
                if let Said::Progress(n) = said {
                    let _ = report.send(n);
                }
            });
            let mut play = std::pin::pin!(AssertUnwindSafe(play).catch_unwind());
            // The worker, too, ends a run that exceeds its time, but later than the nodes do.
            let Timeouts { run_us, heartbeat_us } = job.terms().timeouts;
            let late = run_us.into_iter().chain(heartbeat_us).min();
            let late = late.map(|us| self.overdue + Duration::from_micros(us.unsigned_abs()));
            let given_up = async {
                let overdue = async {
                    match late {
                        Some(late) => self.runtime.sleep(late).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = overdue => stop.cancel(),
                }
                self.runtime.sleep(self.setting.plan.options.stop_grace).await;
            };
            let mut given_up = std::pin::pin!(given_up);
            loop {
                tokio::select! {
                    biased;
                    did = &mut play => break did.unwrap_or(Did::Crashed),
                    () = &mut given_up => break Did::Dropped,
                    Some(n) = reports.recv() => match self.update(&worker, &id, claim, n).await {
                        Reply::Done(Answer::Cancel) => stop.cancel(),
                        Reply::Halt => return claim,
                        Reply::Done(Answer::Continue) | Reply::Lost => {}
                    },
                    else => pending::<()>().await,
                }
            }
        };
        loop {
            match self.end(&worker, &id, claim, &did).await {
                Reply::Done(()) => {
                    let claim = Claim { worker, number: claim };
                    self.setting.checker.on_acknowledged_end(self.link.site, &claim);
                    tokio::spawn(self.tidy_up(job, claim.clone()));
                    return claim.number;
                }
                Reply::Halt => {
                    let claim = Claim { worker, number: claim };
                    self.setting.checker.on_refused_end(self.link.site, &job, &claim);
                    tokio::spawn(self.tidy_up(job, claim.clone()));
                    return claim.number;
                }
                Reply::Lost => self.runtime.sleep(RETRY).await,
            }
        }
    }

    /// Gives back the locks that a run started with, long after its end. This can be a delayed request, or a program that
    /// always cleans up. The job's next run may hold the same locks by now, and keeps them.
    async fn tidy_up(self: Arc<Self>, job: Job, claim: Claim) {
        let held = job.held().into_iter().flat_map(Held::locks).map(|lock| lock.spot);
        let spots: Vec<Spot> = held.filter(|spot| spot.level.is_some()).collect();
        if spots.is_empty() {
            return;
        }
        self.runtime.sleep(LATE).await;
        let id = job.into_fields().id;
        let story = format!("{id} {} of {}", claim.number, claim.worker);
        self.note("tidies up", &story);
        let unlock = |external: External, _| async move {
            external.unlock(RunKey::new(EXTERNAL, &id, &claim), &spots).await
        };
        if let Reply::Done(()) = self.call(Duration::ZERO, unlock).await {
            self.link.core.violated("a claim that has ended releases no lock", story);
        }
    }

    async fn update(&self, worker: &str, id: &str, claim: u64, n: u64) -> Reply<Answer> {
        let (worker, id) = (worker.to_owned(), id.to_owned());
        let info = json(n.to_string());
        let message = format!("report {n}");
        let log = [LogLine { at_us: 0, level: Level::Info, message, fields: None }];
        let update = |external: External, _| async move {
            let report = Report { log: &log, ..Report::of(Some(&info)) };
            external.update(EXTERNAL, &worker, &id, claim, report).await
        };
        self.call(Duration::ZERO, update).await
    }

    async fn end(&self, worker: &str, id: &str, claim: u64, did: &Did) -> Reply<()> {
        let (worker, id) = (worker.to_owned(), id.to_owned());
        let end = match did {
            Did::Completed => ExternalEnd::completed(json(inputs::result_of(&Claim {
                worker: worker.clone(),
                number: claim,
            }))),
            Did::Failed => ExternalEnd::Failed(classed(format!("failure {claim}"))),
            Did::Crashed => ExternalEnd::crashed(classed(format!("crash {claim}"))),
            Did::Snoozed => {
                let for_us = i64::try_from(SNOOZE.as_micros()).expect("some seconds");
                ExternalEnd::Snoozed { until_us: 0, for_us }
            }
            Did::Stopped | Did::Runs | Did::Dropped => ExternalEnd::Released,
        };
        let end = |external: External, _| async move {
            external.end(EXTERNAL, &worker, &id, claim, end, None).await.map(drop)
        };
        self.call(Duration::ZERO, end).await
    }
}

/// An error of which the history does not say all, so that it has a row of its own.
fn classed(message: String) -> RunError {
    RunError { message, class: Some("Fault".to_owned()), trace: Some("at run (job.rs:1)".to_owned()) }
}

/// The lock requests of an external worker's run.
struct AsksThere<'a> {
    me: &'a Me,
    worker: &'a str,
    id: &'a str,
    claim: u64,
    stop: &'a CancellationToken,
}

impl AsksThere<'_> {
    /// Repeats the request until it is answered. An error says why there is no answer.
    async fn call<T, F, Fut>(&self, wait: Duration, request: F) -> std::result::Result<T, locking::Reply>
    where
        T: Send + 'static,
        F: Fn(External, CancellationToken, String, String, u64) -> Fut + Send + Sync,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        loop {
            let (worker, id, claim) = (self.worker.to_owned(), self.id.to_owned(), self.claim);
            let request = |external, leave| request(external, leave, worker, id, claim).map(allowed);
            match self.me.call(wait, request).await {
                Reply::Done(Some(answer)) => return Ok(answer),
                Reply::Done(None) => return Err(locking::Reply::Refused),
                Reply::Halt => return Err(locking::Reply::Lost),
                Reply::Lost if self.stop.is_cancelled() => return Err(locking::Reply::Stopped),
                Reply::Lost => self.me.runtime.sleep(RETRY).await,
            }
        }
    }

    async fn unwait(&self) -> std::result::Result<(), locking::Reply> {
        let unwait = |external: External, _, worker: String, id: String, number| async move {
            external.unwait(RunKey::new(EXTERNAL, &id, &Claim { worker, number })).await
        };
        self.call(Duration::ZERO, unwait).await
    }
}

/// Turns a refused request into `None`: a repetition would not help.
fn allowed<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(Error::Invalid { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

#[async_trait]
impl Asks for AsksThere<'_> {
    async fn lock(&self, lock: &LockAt, patience: Option<Duration>) -> locking::Reply {
        let until = patience.map(|patience| tokio::time::Instant::now() + patience);
        loop {
            let ask = |external: External, leave: CancellationToken, worker: String, id: String, number| {
                let lock = lock.clone();
                async move {
                    let claim = Claim { worker, number };
                    external.lock(RunKey::new(EXTERNAL, &id, &claim), &[lock], WAIT, &leave).await
                }
            };
            match self.call(WAIT, ask).await {
                Ok(Asked::Granted) => return locking::Reply::Done,
                Ok(Asked::OutOfOrder { .. }) => return locking::Reply::OutOfOrder,
                Ok(Asked::Waits(_)) if self.stop.is_cancelled() => return locking::Reply::Stopped,
                Ok(Asked::Waits(_)) if until.is_some_and(|until| until <= tokio::time::Instant::now()) => {
                    return self.unwait().await.err().unwrap_or(locking::Reply::Late);
                }
                Ok(Asked::Waits(_)) => {}
                Err(told) => return told,
            }
        }
    }

    async fn give_back(&self, spot: &Spot) -> locking::Reply {
        let give_back = |external: External, _, worker: String, id: String, number| {
            let spot = spot.clone();
            async move { external.unlock(RunKey::new(EXTERNAL, &id, &Claim { worker, number }), &[spot]).await }
        };
        self.call(Duration::ZERO, give_back).await.err().unwrap_or(locking::Reply::Done)
    }

    async fn inputs(&self) -> Option<Given> {
        let (id, claim) = (self.id.to_owned(), Claim { worker: self.worker.to_owned(), number: self.claim });
        let read =
            |server: Server, _| async move { inputs::read(&server.store, EXTERNAL, &id, &claim).await };
        match self.me.call_server(Duration::ZERO, read).await {
            Reply::Done(given) => Some(given),
            Reply::Halt | Reply::Lost => None,
        }
    }
}

fn json(text: String) -> Box<RawValue> {
    RawValue::from_string(text).expect("a number is JSON")
}
