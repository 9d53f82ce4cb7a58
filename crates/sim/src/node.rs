//! A node, and the processes that run on it one after the other.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_queue::Keyspace;
use turnwise_store::{Meter, Runtime, Store};
use turnwise_worker::{
    Deadlines, External, Groups, Live, Membership, Monitor, Options, Retention, RetentionOptions, Schedules,
    Tunables, Worker, fold_counts, keep_clock, membership_events, release_filtered, remove_starts,
    settle_dependencies, settle_lifetimes,
};

use crate::check::Checker;
use crate::core::{Core, lock};
use crate::engine::{SimEngine, Writer};
use crate::link::{Link, SimRuntime};
use crate::plan::{Plan, QUIET_PERIOD};
use crate::script::SimHandler;
use crate::store::SimStore;
use crate::trace::Site;

/// The state that all processes of a world share.
pub struct Setting {
    /// The world.
    pub core: Arc<Core>,
    /// Its store.
    pub store: Arc<SimStore<Writer>>,
    /// Its invariants.
    pub checker: Arc<Checker>,
    /// Its composition.
    pub plan: Plan,
    /// The nodes that serve external workers now.
    pub servers: Mutex<BTreeMap<Site, Server>>,
    /// What each node last learned about the membership of the first job type, if it subscribes.
    pub heard: Mutex<BTreeMap<Site, Membership>>,
    /// The current settings of all processes.
    pub tunables: Mutex<Tunables>,
    /// The handles through which the workers of each live process receive their settings.
    pub told: Mutex<BTreeMap<Site, Vec<Live<Tunables>>>>,
    /// The store usage of every process that has ever run.
    pub meters: Mutex<Vec<Arc<Meter>>>,
}

impl Setting {
    /// Changes the settings of every worker.
    pub fn change(&self, tunables: Tunables) {
        for worker in lock(&self.told).values().flatten() {
            worker.set(tunables.clone());
        }
        *lock(&self.tunables) = tunables;
    }

    /// Removes a process that is gone: it serves no workers and receives no settings.
    fn forget(&self, site: Site) {
        lock(&self.servers).remove(&site);
        lock(&self.told).remove(&site);
    }
}

/// A process that serves external workers.
#[derive(Clone)]
pub struct Server {
    /// Its clock, random numbers and connection.
    pub link: Arc<Link>,
    /// The operations that it offers them.
    pub external: External,
    /// Its store.
    pub store: Store,
}

/// The largest number of nodes with which nodes subscribe to changes of the membership.
const MAX_LISTENERS: u32 = 20;
/// The time between two removals of jobs that ended long ago.
const RETENTION_INTERVAL: Duration = Duration::from_secs(10);
/// The pause of a process after it could not start a worker.
const START_RETRY: Duration = Duration::from_secs(1);
/// The largest error of a node's clock, in ms.
const SKEW_MS: u64 = 60_000;
/// The largest deviation of a clock's rate, in ppm.
const DRIFT_PPM: u64 = 20_000;

/// A site where processes run.
pub struct Node {
    number: u32,
    lives: u32,
    /// By how much its clock is wrong, in µs.
    pub skew_us: i64,
    drift_ppm: i64,
    /// The process that runs there now.
    pub process: Option<Process>,
}

/// A process with one worker of each type.
pub struct Process {
    /// Its clock, random numbers and connection.
    pub link: Arc<Link>,
    /// When it began, or when a fault last affected it, in µs since the world began.
    pub begun_us: i64,
    booted: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Process {
    /// Whether all of its workers have started.
    pub fn is_booted(&self) -> bool {
        self.booted.load(Relaxed)
    }

    /// Ends the process immediately.
    pub fn crash(self, setting: &Setting) {
        setting.forget(self.link.site);
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

impl Node {
    /// A node without a process.
    pub fn new(setting: &Setting, number: u32) -> Self {
        let rng = &setting.core.rng;
        let signed = |size: i64| if rng.chance(500) { size } else { -size };
        let (skew_us, drift_ppm) = match setting.plan.skews {
            true => (
                signed(i64::try_from(rng.below(SKEW_MS) * 1_000).expect("a minute")),
                signed(i64::try_from(rng.below(DRIFT_PPM)).expect("a few per cent")),
            ),
            false => (0, 0),
        };
        Node { number, lives: 0, skew_us, drift_ppm, process: None }
    }

    /// Starts a process, in place of any earlier one.
    pub fn start(&mut self, setting: &Arc<Setting>) {
        self.lives += 1;
        let site = Site::Node(self.number, self.lives);
        let core = &setting.core;
        core.note(site, "starts", "");
        core.disturb(Duration::ZERO);
        let link = Link::new(core, site, setting.plan.rates, self.skew_us, self.drift_ppm);
        let booted = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = oneshot::channel();
        let life = live(setting.clone(), link.clone(), booted.clone(), stopped);
        let task = tokio::spawn(life);
        let begun_us = core.elapsed_us();
        self.process = Some(Process { link, begun_us, booted, stop: Some(stop), task });
    }
}

/// Runs a process until it is asked to leave.
async fn live(
    setting: Arc<Setting>,
    link: Arc<Link>,
    booted: Arc<AtomicBool>,
    stopped: oneshot::Receiver<()>,
) {
    let engine = SimEngine::new(setting.store.clone(), Some(link.clone()));
    let runtime = Arc::new(SimRuntime(link.clone()));
    let store = Store::new(engine, runtime.clone());
    link.set_clock(store.clock());
    lock(&setting.meters).push(store.meter().clone());
    let _services = services(&setting, &link, &store);
    let mut workers = Vec::new();
    for job_type in &setting.plan.types {
        let (node, tunables) = (link.site.to_string(), lock(&setting.tunables).clone());
        let options = Options { node, tunables, ..setting.plan.options.clone() };
        let handler = Arc::new(SimHandler {
            link: link.clone(),
            checker: setting.checker.clone(),
            store: Some(store.clone()),
        });
        loop {
            let started =
                Worker::start(store.clone(), Keyspace::default(), job_type, handler.clone(), options.clone());
            match started.await {
                Ok(worker) => {
                    // The settings may have changed meanwhile.
                    worker.tunables().set(lock(&setting.tunables).clone());
                    lock(&setting.told).entry(link.site).or_default().push(worker.tunables().clone());
                    break workers.push(worker);
                }
                Err(error) => link.core.note(link.site, "cannot start", error.to_string()),
            }
            runtime.sleep(START_RETRY).await;
        }
    }
    booted.store(true, Relaxed);
    link.core.disturb(Duration::ZERO);
    // At the world's end, the sender is dropped, too.
    let _ = stopped.await;
    link.core.note(link.site, "shuts down", "");
    setting.forget(link.site);
    join_all(workers.into_iter().map(Worker::shutdown)).await;
    link.core.note(link.site, "has left", "");
    link.kill();
}

/// Starts what a server runs beside its workers. The tasks end when the returned handles are dropped.
fn services(setting: &Arc<Setting>, link: &Arc<Link>, store: &Store) -> Vec<AbortOnDropHandle<()>> {
    let (plan, keys) = (&setting.plan, Keyspace::default());
    let options = Options { node: link.site.to_string(), ..plan.options.clone() };
    let external = External::new(store.clone(), keys.clone(), options);
    lock(&setting.servers)
        .insert(link.site, Server { link: link.clone(), external: external.clone(), store: store.clone() });
    let monitor = Monitor { store: store.clone(), keys: keys.clone(), external: external.clone() };
    let options = RetentionOptions {
        retention: plan.retention,
        interval: RETENTION_INTERVAL,
        ..RetentionOptions::default()
    };
    let retention = Retention { store: store.clone(), keys: keys.clone(), options: options.into() };
    // The tasks never stop by themselves here, because they have no work for a process that has left.
    let never = CancellationToken::new();
    let listener = listen(setting.clone(), link.clone(), store.clone());
    let of = || (store.clone(), keys.clone());
    let mut tasks = vec![
        tokio::spawn(keep_clock(of(), never.clone())),
        tokio::spawn(monitor.run(never.clone())),
        tokio::spawn(retention.run(never.clone())),
        tokio::spawn(fold_counts(of(), never.clone())),
        tokio::spawn(settle_lifetimes(of(), never.clone())),
        tokio::spawn(listener),
    ];
    if plan.timeouts {
        let deadlines = Deadlines { store: store.clone(), keys: keys.clone(), external };
        tasks.push(tokio::spawn(deadlines.run(never.clone())));
    }
    if plan.schedules {
        let (store, keys) = of();
        let schedules = Schedules { store, keys, waiting_jobs: 0.into(), metrics: Arc::default() };
        tasks.push(tokio::spawn(schedules.run(never.clone())));
        let (store, keys) = of();
        tasks.push(tokio::spawn(Groups { store, keys }.run(never.clone())));
    }
    if plan.eligibility.is_some() {
        tasks.push(tokio::spawn(settle_dependencies(of(), never.clone())));
        tasks.push(tokio::spawn(release_filtered(of(), never.clone())));
        tasks.push(tokio::spawn(remove_starts(of(), never)));
    }
    tasks.into_iter().map(AbortOnDropHandle::new).collect()
}

/// Follows the membership of the first job type. With many nodes no node subscribes, because each would read the rows of
/// all others.
async fn listen(setting: Arc<Setting>, link: Arc<Link>, store: Store) {
    let plan = &setting.plan;
    if plan.nodes > MAX_LISTENERS {
        return;
    }
    let events = membership_events(store, Keyspace::default(), &plan.types[0], QUIET_PERIOD, QUIET_PERIOD);
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        // A dead process learns nothing.
        link.gate().await;
        link.core.note(link.site, "hears", format!("{event:?}"));
        lock(&setting.heard).insert(link.site, event);
    }
}
