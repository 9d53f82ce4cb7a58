//! The soak test: random writes on both sides of many two-way continuous replications, while all kinds of faults happen.
//!
//! Two servers hold the same databases. turnwise replicates each database in both directions, through a [`FaultProxy`] in
//! front of each server, and a [`gateway`] behind that. Writers ([`workload`]) add, change and delete documents, create conflicts and attach files, on
//! both sides at the same time. Meanwhile, faults ([`storm`]) happen: connections are reset, responses are truncated, slow
//! or refusals, and ports close. turnwise and both servers are killed (`kill -9`) and restarted with their data on disk. The
//! servers are real CouchDBs, if there are any: their sessions lapse after seconds, and the disk of one of them is full at times.
//!
//! In the end ([`verdict`]), all that stops. A limited time later, both sides must be equal leaf by leaf, and hold all
//! writes that either of them acknowledged. No job may have failed permanently, and turnwise's memory must not have grown.
//! Its store must pass its check, and its log and its responses must hold no secret.
//!
//! Writes, faults and their times follow from the seed. Their order relative to each other does not: processes run as fast
//! as the machine allows.

mod counts;
mod gateway;
mod server;
mod storm;
mod turnwise;
mod verdict;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use counts::Counts;
use gateway::Gateway;
use server::Server;
use turnwise::Turnwise;
use turnwise_testkit::{Database, FaultProxy};

pub use server::ExternalServer;

/// The settings of a soak test.
#[derive(Clone, Debug)]
pub struct Options {
    /// The path of the binary.
    pub turnwise: PathBuf,
    /// How long writers and faults are active, in seconds.
    pub seconds: u64,
    /// The number of databases on each side. There are twice as many replications.
    pub databases: usize,
    /// The seed of all writes and faults.
    pub seed: u64,
    /// The number of write requests per second, on both sides together.
    pub writes_per_second: f64,
    /// The largest size of an attachment, in bytes.
    pub attachment_max_bytes: usize,
    /// The longest time after the end of writes until both sides are equal, in seconds.
    pub settle_seconds: u64,
    /// The time between two status lines, in seconds.
    pub status_seconds: u64,
    /// turnwise's `--log`.
    pub log: String,
    /// One of the servers, unless the test starts its own pouchdb-server.
    pub source: Option<ExternalServer>,
    /// The other one.
    pub target: Option<ExternalServer>,
    /// Whether the servers that the test starts are real CouchDBs, if there are any: sessions lapse, and the disk of the second one
    /// is full at times.
    pub couchdb: bool,
    /// Whether a gateway is in front of each server, which refuses optional requests and bodies of more than 1 MB.
    pub gateways: bool,
}

impl Options {
    /// A test of half an hour with 50 databases.
    pub fn new(turnwise: PathBuf) -> Self {
        Self {
            turnwise,
            seconds: 30 * 60,
            databases: 50,
            seed: 1,
            writes_per_second: 30.0,
            attachment_max_bytes: 4 << 20,
            settle_seconds: 300,
            status_seconds: 30,
            log: "debug".to_owned(),
            source: None,
            target: None,
            couchdb: true,
            gateways: true,
        }
    }
}

/// The state that all parts share.
struct World {
    options: Options,
    sides: [Side; 2],
    turnwise: Turnwise,
    counts: Counts,
    begun: Instant,
    /// Stops the writers and the faults.
    stop: CancellationToken,
}

/// One of the two servers, and the gateway and the proxy between it and turnwise.
struct Side {
    name: &'static str,
    server: Server,
    gateway: Option<Gateway>,
    /// In front of the gateway.
    proxy: FaultProxy,
    /// Held while the server is down, or its disk is full.
    outage: Mutex<()>,
    databases: Vec<Database>,
}

/// Runs a soak test to its end. `Err` lists the violations; turnwise's folder, with its log, is then kept.
///
/// # Panics
/// If one of the servers, or turnwise, cannot be started.
pub async fn run(options: Options) -> Result<(), Vec<String>> {
    let folder = tempfile::Builder::new().prefix("turnwise-soak-").tempdir().expect("a folder can be made");
    println!(
        "soak: seed {}, {} s, {} databases, {} writes/s; turnwise's log is {}",
        options.seed,
        options.seconds,
        options.databases,
        options.writes_per_second,
        folder.path().join("log").display()
    );
    let world = World::start(options, &folder).await;
    let writers = workload::start(&world);
    let storms = storm::start(&world);
    let watch = tokio::spawn(counts::watch(Arc::clone(&world)));
    tokio::time::sleep(Duration::from_secs(world.options.seconds)).await;

    world.stop.cancel();
    for task in storms.into_iter().chain([watch]) {
        task.await.expect("a storm and a watch do not panic");
    }
    let mut acknowledged = workload::Acknowledged::default();
    for writer in writers {
        acknowledged.add(writer.await.expect("a writer does not panic"));
    }
    println!("{}", world.status().await);
    let broken = verdict::judge(&world, &acknowledged).await;
    if broken.is_empty() {
        world.delete_databases().await;
        return Ok(());
    }
    println!("turnwise's folder is kept: {}", folder.keep().display());
    Err(broken)
}

impl World {
    async fn start(options: Options, folder: &TempDir) -> Arc<World> {
        let names = names(&options);
        // One after the other: a first start of CouchDB holds a lock.
        let source = Side::start(&options, 0, &names).await;
        let target = Side::start(&options, 1, &names).await;
        let turnwise = Turnwise::start(&options, folder.path()).await;
        let world = World {
            sides: [source, target],
            turnwise,
            counts: Counts::default(),
            begun: Instant::now(),
            stop: CancellationToken::new(),
            options,
        };
        world.turnwise.replicate_both_ways(&world.sides).await;
        Arc::new(world)
    }

    async fn delete_databases(&self) {
        for database in self.sides.iter().flat_map(|side| &side.databases) {
            database.delete().await;
        }
    }
}

/// Names that differ from those of another soak test on the same servers.
fn names(options: &Options) -> Vec<String> {
    (0..options.databases).map(|n| format!("soak-{}-{n}", std::process::id())).collect()
}

impl Side {
    async fn start(options: &Options, number: usize, databases: &[String]) -> Side {
        let (name, external) =
            if number == 0 { ("A", options.source.as_ref()) } else { ("B", options.target.as_ref()) };
        let server = Server::start(external, options.couchdb, number == 1).await;
        let gateway = if options.gateways { Some(Gateway::before(server.url(), number).await) } else { None };
        let proxy = FaultProxy::before(gateway.as_ref().map_or(server.url(), Gateway::url)).await;
        let mut created = Vec::new();
        for name in databases {
            let database = Database::at(format!("{}/{name}", server.url()));
            database.create().await;
            created.push(database);
        }
        Side { name, server, gateway, proxy, outage: Mutex::new(()), databases: created }
    }
}
