//! The `indexing` job type: keeps the indexes of CouchDB servers up to date.
//!
//! ```text
//!   a CouchDB                                              turnwise
//!   _db_updates, _all_dbs, _dbs_info ──▶ watch: which databases have changed, and which indexes they have
//!                                          │ a new index: a job is added      │ after a delay: its parked jobs are woken
//!   _view?update=true&limit=0        ◀── handler: builds one index, reports, and parks at its database
//! ```
//!
//! *Model.* An index is the indexes of one [`Kind`](crate::Kind) in one design document of one database. It has one job with a fixed
//! id ([`Index`]), which is parked while the index has everything that its database has. The job's token is the database's update
//! sequence at the beginning of the last build. Its report ([`Info`]) holds what is known about the index.
//!
//! What must hold:
//!
//! 1. *No index is built by two claims at once*: it has one job, and a job has one claim.
//! 2. *No change is lost.* A parked job counts as watched only after its database was watched, and its token was compared after that
//!    (`turnwise_queue::parking`). The node that watches a server compares all databases at its start, after every break of the feed, and
//!    at intervals.
//! 3. *A server that is down costs nothing.* A run that gets no answer parks without a token, and is woken when the server answers.
//! 4. *What a server loses is built again*: an index is looked at once more when it must be on the server's disk (`verify`).
//! 5. Requests and memory are bounded: a changed database costs two requests and a few rows, and a watcher holds the name and two numbers
//!    of each database.

mod designs;
mod dirty;
mod examine;
mod handler;
mod index;
mod pace;
mod settings;
mod tasks;
mod verify;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use turnwise_outbound::{Client, PeerSettings};
use turnwise_policy::predictive_queue::locks::Level;
use turnwise_replicator::Remote;

pub use handler::Handler;
pub use index::{Building, Built, Index, Info, Summary};
use pace::Pace;
pub use settings::{Settings, Tenant, is_system};
use tasks::Tasks;
pub use watch::Service;

/// The type of indexing jobs.
pub const JOB_TYPE: &str = "indexing";
/// The level of the lock that a running job holds: one unit of its server.
pub const LEVEL: &str = "index_server";

/// The servers whose indexes are built. Cheap to clone.
#[derive(Clone)]
pub struct Indexing(Arc<Inner>);

struct Inner {
    settings: Settings,
    servers: BTreeMap<String, Arc<Server>>,
}

/// One of the servers, as this process uses it.
struct Server {
    /// The part of its address that names it.
    name: String,
    remote: Remote,
    pace: Pace,
    tasks: Tasks,
}

/// How a server is at present, as seen by this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its name.
    pub server: String,
    /// How many builds it is asked for at once, of those that it may be asked for.
    pub allowed: usize,
    /// How many of them run in this process.
    pub running: usize,
    /// The 95th percentile of the time of a small request beside builds, in ms; `None` if no build has run for half a minute.
    pub p95_ms: Option<u64>,
}

impl Indexing {
    /// The servers of these settings, on the connections of `client`.
    pub fn new(settings: Settings, peers: &PeerSettings, client: &Client) -> Indexing {
        let mut servers = BTreeMap::new();
        for address in &settings.servers {
            let remote = Remote::new(address, peers, client);
            let name = address.name().to_owned();
            let pace = Pace::new(settings.builds as usize, settings.max_p95);
            servers.insert(name.clone(), Arc::new(Server { name, remote, pace, tasks: Tasks::default() }));
        }
        Indexing(Arc::new(Inner { settings, servers }))
    }

    /// The level of the locks, with as many units for each server as it may have builds.
    pub fn level(settings: &Settings) -> Level {
        Level { name: LEVEL.to_owned(), capacity: Some(settings.builds), capacities: BTreeMap::new() }
    }

    /// The most jobs that run at the same time.
    pub fn max_jobs(&self) -> usize {
        self.0.settings.builds as usize * self.0.servers.len()
    }

    /// The requests to a server.
    pub fn remote(&self, server: &str) -> Option<&Remote> {
        self.server(server).map(|server| &server.remote)
    }

    /// How the servers are.
    pub fn conditions(&self) -> Vec<Condition> {
        let condition = |server: &Arc<Server>| server.pace.condition(&server.name);
        self.0.servers.values().map(condition).collect()
    }

    fn server(&self, name: &str) -> Option<&Arc<Server>> {
        self.0.servers.get(name)
    }

    fn settings(&self) -> &Settings {
        &self.0.settings
    }
}
