//! The chaos test: many clients and workers use one server, or two on one store, while all kinds of faults happen.
//!
//! Clients ([`clients`]) add jobs of many tenants, with delays, priorities, locks, concurrency limits, dependencies and large
//! options. They cancel jobs, retry them, and add them again. A few continuous replications ([`continuous`]) run beside
//! them. Workers ([`workers`]) run the jobs; they crash, hang, respond late or twice, and die. Meanwhile, faults
//! ([`faults`]) happen. Nodes are killed, stopped and paused, the disk is full, descriptors are few, clocks jump, and the
//! servers of the store die. The store is also copied to another one, with which the test continues.
//!
//! Beside them are the [parts](Part) that can be left out. All clients and workers use tokens, whose identities may send so many
//! requests in a second, and reach the nodes through [`gateways`], which cut, lose, refuse and compress answers. [`webhooks`] tell
//! receivers of every manner what happens. Operations of [`bulk`] change all jobs that meet a condition, and
//! [`waits`] runs the commands that wait for jobs and follow events. Schedules, unique keys, groups, rates and graphs are [`features`].
//!
//! Clients and workers note what they did ([`ledger`]). No two runs may hold a job, a lock, or a place in a full bucket at
//! the same time. In the end ([`verdict`]), the remaining jobs run. Every acknowledged job must be in its one right final
//! state, and `turnwise store check` must find nothing.
//!
//! Jobs, faults and their times follow from the seed. Their order relative to each other does not: processes run as fast as
//! the machine allows.

mod api;
mod bulk;
mod calm;
mod clients;
mod continuous;
mod faults;
mod features;
mod full;
mod gateways;
mod identity;
mod ledger;
mod node;
mod parts;
mod python;
mod receiver;
mod store;
mod verdict;
mod waits;
mod webhooks;
mod workers;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use api::{Answer, Api};
use calm::{Calm, Stalls};
use continuous::Replications;
use gateways::Gateways;
use identity::Identities;
use ledger::Ledger;
use node::{Binary, HEALTH_TIMEOUT, Node};
use store::Store;
use turnwise_testkit::{Random, free_ports};
use webhooks::Webhooks;

pub use parts::Part;

/// The time between two checks of nodes and jobs.
const LOOK: Duration = Duration::from_millis(500);
/// The number of jobs in each check.
const SWEEP: usize = 100;
/// The number of `turnwise work` processes.
const EXECS: usize = 2;
/// The number of nodes on a shared store.
const NODES: usize = 2;
/// How many requests each identity may send in a second. Its clients and workers need fewer, and exceed it together at times.
const REQUESTS_PER_SECOND: u32 = 60;
/// The pause of one who was refused a request for that.
const LIMITED_PAUSE: Duration = Duration::from_millis(300);

/// The store of a chaos test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The embedded store, with one node.
    Embedded,
    /// Three members of etcd, with two nodes.
    Etcd,
    /// One process of FoundationDB, with two nodes. This program starts it in the foreground, as `PROGRAM DIR PORT ssd`. It
    /// is ready when the file `DIR/ready` exists, and its cluster file is `DIR/fdb.cluster`.
    Foundationdb(PathBuf),
}

/// The settings of a chaos test.
#[derive(Clone, Debug)]
pub struct Options {
    /// The path of the binary.
    pub turnwise: PathBuf,
    /// The store.
    pub engine: Engine,
    /// How long clients and faults are active, in seconds.
    pub seconds: u64,
    /// The seed of all jobs and faults.
    pub seed: u64,
    /// The number of clients.
    pub clients: usize,
    /// The number of external workers.
    pub workers: usize,
    /// The number of jobs added per second.
    pub jobs_per_second: f64,
    /// The number of tenants.
    pub tenants: u64,
    /// The longest time until the next job ends, after the clients have stopped, in seconds.
    pub settle_seconds: u64,
    /// The time between two status lines, in seconds.
    pub status_seconds: u64,
    /// The nodes' `--log`.
    pub log: String,
    /// The names of the faults to cause, or empty for all.
    pub faults: Vec<String>,
    /// The shortest and the longest time between two faults, in ms.
    pub calm_ms: (u64, u64),
    /// The shortest and the longest time of a fault, in ms. Many faults are shorter than the health timeout, and many are longer.
    pub fault_ms: (u64, u64),
    /// The shortest and the longest time in which no node and no store fails, so that the delays of webhooks can be judged, in ms.
    pub quiet_ms: (u64, u64),
    /// The parts of the test.
    pub parts: Vec<Part>,
}

impl Options {
    /// A test of ten minutes with 32 clients and 32 workers.
    pub fn new(turnwise: PathBuf, engine: Engine) -> Self {
        Options {
            turnwise,
            engine,
            seconds: 600,
            seed: 1,
            clients: 32,
            workers: 32,
            jobs_per_second: 60.0,
            tenants: 1_000,
            settle_seconds: 60,
            status_seconds: 30,
            log: "info".to_owned(),
            faults: Vec::new(),
            calm_ms: (500, 4_000),
            fault_ms: (200, 9_000),
            quiet_ms: (20_000, 30_000),
            parts: Part::ALL.to_vec(),
        }
    }
}

/// The state that all parts share.
struct World {
    options: Options,
    binary: Binary,
    store: Store,
    nodes: Vec<Node>,
    execs: Execs,
    replications: Replications,
    /// Asks everything, directly at the nodes.
    api: Api,
    identities: Identities,
    gateways: Option<Gateways>,
    webhooks: Option<Arc<Webhooks>>,
    calm: Calm,
    stalls: Stalls,
    ledger: Ledger,
    counts: Counts,
    begun: Instant,
    /// Stops clients and faults. From then on, workers behave correctly.
    stop: CancellationToken,
    workers_stop: CancellationToken,
    /// All faults are over, and the clocks stay.
    healed: CancellationToken,
    /// A third of the workers dies whenever this changes.
    kill_workers: watch::Sender<usize>,
    /// The number of requests that add jobs.
    batches: AtomicU64,
    /// The nodes that are down on purpose.
    down: Vec<AtomicBool>,
    /// The current fault.
    fault: Mutex<String>,
    has_faketime: bool,
    /// The largest forward jump of the clocks, in seconds.
    largest_jump: AtomicI64,
}

/// Counters of the whole test.
#[derive(Default)]
struct Counts(Mutex<BTreeMap<String, u64>>);

impl Counts {
    fn add(&self, what: &str, count: u64) {
        *self.0.lock().expect("no holder of this lock panics").entry(what.to_owned()).or_default() += count;
    }

    fn get(&self, what: &str) -> u64 {
        self.0.lock().expect("no holder of this lock panics").get(what).copied().unwrap_or_default()
    }

    fn text(&self) -> String {
        let counts = self.0.lock().expect("no holder of this lock panics");
        counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    }
}

/// Runs a chaos test to its end. `Err` lists the violations; the folder with logs, ledger and store is then kept.
///
/// # Errors
/// The violations, or why the test cannot run here.
pub async fn run(options: Options) -> Result<(), Vec<String>> {
    faults::check_names(&options.faults).map_err(|problem| vec![problem])?;
    let folder = store::folder();
    println!(
        "chaos: {:?}, seed {}, {} s; logs are in {}",
        options.engine,
        options.seed,
        options.seconds,
        folder.path().display()
    );
    let world = World::start(options, folder.path()).await.map_err(|problem| vec![problem])?;
    let clients = clients::start(&world);
    let working = workers::start(&world);
    let replicating = tokio::spawn(continuous::run(Arc::clone(&world)));
    let watching = tokio::spawn(watch(Arc::clone(&world)));
    let parts = start_parts(&world);
    let features =
        if world.has(Part::Features) { features::start(&world) } else { features::Tasks::default() };
    let end = tokio::time::sleep(Duration::from_secs(world.options.seconds));
    let stop = world.stop.clone();
    let ending = tokio::spawn(async move {
        end.await;
        stop.cancel();
    });
    faults::run(&world).await;
    for task in clients.into_iter().chain(parts).chain([ending, replicating]) {
        task.await.expect("a client does not panic");
    }
    println!("{}", world.status());
    webhooks::judge(&world).await;
    verdict::judge(&world).await;
    continuous::judge(&world).await;
    for task in features.parts {
        task.await.expect("a part does not panic");
    }
    world.workers_stop.cancel();
    for task in working.into_iter().chain(features.hands).chain([watching]) {
        task.await.expect("a worker does not panic");
    }
    world.execs.stop().await;
    verdict::close(&world).await;
    println!("{}", world.status());
    let findings = world.ledger.findings();
    if findings.is_empty() {
        return Ok(());
    }
    let kept = folder.keep();
    if world.store.disk.is_some() {
        // The disk is a file system in memory, so the store is copied.
        let (from, to) = (kept.join("disk").display().to_string(), kept.join("store").display().to_string());
        node::run("cp", &["-r", &from, &to]).await;
    }
    println!("seed {}: logs and store are kept in {}", world.options.seed, kept.display());
    Err(findings)
}

/// Starts the parts of the test beside clients, workers and faults.
fn start_parts(world: &Arc<World>) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    if world.has(Part::Gateways) {
        tasks.push(tokio::spawn(gateways::run(Arc::clone(world))));
    }
    if world.has(Part::Limits) {
        tasks.push(tokio::spawn(identity::flood(Arc::clone(world))));
        tasks.push(tokio::spawn(full::run(Arc::clone(world))));
    }
    if world.has(Part::Bulk) {
        tasks.push(tokio::spawn(bulk::run(Arc::clone(world))));
    }
    if world.has(Part::Waits) {
        tasks.push(tokio::spawn(waits::run(Arc::clone(world))));
        tasks.push(tokio::spawn(python::run(Arc::clone(world))));
    }
    if world.has(Part::Webhooks) {
        tasks.push(tokio::spawn(webhooks::run(Arc::clone(world))));
    }
    tasks
}

/// Prints what cannot be tested here. Bypasses the test harness, which hides the output of tests that pass.
fn left_out(what: &str) {
    let _ = writeln!(std::io::stderr(), "left out: {what}");
}

impl World {
    async fn start(options: Options, folder: &std::path::Path) -> Result<Arc<World>, String> {
        let has = |part: Part| options.parts.contains(&part);
        let (requests, jobs) =
            if has(Part::Limits) { (REQUESTS_PER_SECOND, full::WAITING_JOBS) } else { (0, 0) };
        let limits = format!("[limits]\nrequests_per_second = {requests}\nwaiting_jobs = {jobs}\n");
        let binary = Binary::new(&options.turnwise, folder, &options.log, &limits);
        if !binary.has_faketime {
            left_out("clocks that jump, which need Debian's package faketime");
        }
        let store = Store::start(&options.engine, folder).await?;
        let count = if store.is_shared() { NODES } else { 1 };
        let listen: Vec<String> = free_ports(count).iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let urls: Vec<String> = listen.iter().map(|listen| format!("http://{listen}")).collect();
        let nodes: Vec<Node> = listen
            .into_iter()
            .enumerate()
            .map(|(number, listen)| Node::new(number, listen, binary.clone()))
            .collect();
        for (number, node) in nodes.iter().enumerate() {
            node.start(&store.url(number)).await;
        }
        let gateways = if has(Part::Gateways) { Some(Gateways::before(&urls).await) } else { None };
        let mut outside = Api::new(gateways.as_ref().map_or_else(|| urls.clone(), Gateways::urls));
        if has(Part::Gzip) {
            outside = outside.compressing();
        }
        let identities = Identities::create(&Api::new(urls), &outside).await?;
        let api = identities.admin.clone();
        let webhooks =
            if has(Part::Webhooks) { Some(Webhooks::start(&api, options.seed).await?) } else { None };
        let world = World {
            execs: Execs::start(&binary, &outside.of(&identity::token(&api, &["worker:exec"]).await?)),
            identities,
            gateways,
            webhooks,
            calm: Calm::default(),
            stalls: Stalls::watch(),
            replications: Replications::start().await,
            ledger: Ledger::new(&folder.join("ledger"), HEALTH_TIMEOUT),
            counts: Counts::default(),
            begun: Instant::now(),
            stop: CancellationToken::new(),
            workers_stop: CancellationToken::new(),
            healed: CancellationToken::new(),
            kill_workers: watch::Sender::new(0),
            batches: AtomicU64::new(1),
            down: nodes.iter().map(|_| AtomicBool::new(false)).collect(),
            fault: Mutex::default(),
            has_faketime: binary.has_faketime,
            largest_jump: AtomicI64::new(0),
            options,
            binary,
            store,
            nodes,
            api,
        };
        Ok(Arc::new(world))
    }

    fn has(&self, part: Part) -> bool {
        self.options.parts.contains(&part)
    }

    /// Sets the time of day that all nodes see, as an offset from the real one in seconds.
    fn set_clocks(&self, offset: i64) {
        if let Some(webhooks) = &self.webhooks {
            webhooks.set_clock(offset);
        }
        self.nodes.iter().for_each(|node| node.set_clock(offset));
    }

    /// Whether all nodes and the store have worked for a moment within this time.
    fn was_calm_within(&self, time: Duration) -> bool {
        let now = Instant::now();
        now.checked_sub(time).is_some_and(|since| self.calm.between(since, now, Duration::ZERO) >= LOOK)
    }

    fn down(&self, node: usize, down: bool) {
        self.down[node].store(down, Ordering::Relaxed);
    }

    fn is_up(&self, node: usize) -> bool {
        !self.down[node % self.down.len()].load(Ordering::Relaxed)
    }

    /// Sends a request to a random node. Waits for a moment if it was refused because its identity sends too many.
    async fn ask_some(
        &self,
        api: &Api,
        random: &mut Random,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let node = usize::try_from(random.below(self.nodes.len() as u64)).expect("small");
        let node = if self.is_up(node) { node } else { node + 1 };
        match api.ask(node, method, path, body).await {
            Answer::Limited => {
                self.counts.add("requests of clients that were limited", 1);
                tokio::time::sleep(LIMITED_PAUSE).await;
                Answer::NotDone
            }
            answer => answer,
        }
    }

    /// Sends a request to the first node that is up.
    async fn api_any(&self, method: Method, path: &str) -> Answer {
        let node = (0..self.nodes.len()).find(|node| self.is_up(*node)).unwrap_or_default();
        self.api.ask(node, method, path, None).await
    }

    /// Removes the filter that pauses jobs, and retries until a node responds.
    async fn remove_filter(&self) {
        loop {
            match self.api_any(Method::DELETE, "/v1/filters/chaos").await {
                Answer::Got(..) => return,
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// The status line.
    fn status(&self) -> String {
        let (jobs, open) = (self.ledger.job_count(), self.ledger.open_count());
        let (seconds, webhooks) = (self.begun.elapsed().as_secs(), webhooks::so_far(self));
        format!("{seconds:>5} s: {jobs} jobs, {open} open; {webhooks}{}", self.counts.text())
    }
}

/// Restarts nodes that have ended, follows the states of jobs, and prints status lines.
async fn watch(world: Arc<World>) {
    let interval = Duration::from_secs(world.options.status_seconds);
    let mut next = Instant::now() + interval;
    while !world.workers_stop.is_cancelled() {
        tokio::time::sleep(LOOK).await;
        for (number, node) in world.nodes.iter().enumerate() {
            // Like a supervisor of the service.
            if world.is_up(number) && node.has_ended().await {
                let fault = world.fault.lock().expect("no holder of this lock panics").clone();
                world.counts.add(&format!("node ended by itself ({fault})"), 1);
                node.start(&world.store.url(number)).await;
            }
        }
        if let Some(gateways) = &world.gateways {
            gateways.forget();
        }
        if !world.stop.is_cancelled() {
            verdict::sweep(&world, SWEEP, false).await;
        }
        if Instant::now() >= next {
            println!("{}", world.status());
            next += interval;
        }
    }
}

/// Processes of `turnwise work`, which are killed sometimes.
struct Execs {
    binary: Binary,
    api: Api,
    running: tokio::sync::Mutex<Vec<Child>>,
}

impl Execs {
    fn start(binary: &Binary, api: &Api) -> Self {
        let execs =
            Execs { binary: binary.clone(), api: api.clone(), running: tokio::sync::Mutex::default() };
        let running = (0..EXECS).map(|_| execs.spawn()).collect();
        Execs { running: tokio::sync::Mutex::new(running), ..execs }
    }

    fn spawn(&self) -> Child {
        let mut command = self.binary.command("work.log");
        let script = "case \"$(cat)\" in *'\"code\":65'*) exit 65 ;; esac; sleep 0.05";
        command.args([
            "work",
            "--type",
            "exec",
            "--slots",
            "3",
            "--server",
            &self.api.urls().join(","),
            "--exec",
            "sh",
            "-c",
            script,
        ]);
        command.env("TURNWISE_TOKEN", self.api.token());
        command.spawn().expect("turnwise can be started")
    }

    /// Kills a process like `kill -9`, and starts another one.
    async fn replace(&self, number: usize) {
        let mut running = self.running.lock().await;
        let index = number % running.len();
        let _ = running[index].kill().await;
        running[index] = self.spawn();
    }

    async fn stop(&self) {
        for child in self.running.lock().await.iter_mut() {
            let _ = child.kill().await;
        }
    }
}
