//! The composition: store, workers, doc processor, monitor, retention, listener, and how they stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_command::{Guard, Programs};
use turnwise_queue::{Format, Keyspace, keyspace};
use turnwise_replicator::doc_processor::{DocProcessor, Settings};
use turnwise_replicator::documents::{self, databases, names};
use turnwise_replicator::{Client, Handler, JOB_TYPE};
use turnwise_store::{Store, StoreUrl, Transaction, runtime};
use turnwise_worker::{
    External, ExternalOptions, Monitor, MonitorOptions, Retention, RetentionOptions, Worker,
};

use crate::config::{self, Config};
use crate::http::{self, App};
use crate::node;

/// A stop takes at most this long, whatever hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks for jobs that have been kept for long enough: a tenth of the retention, within these bounds.
const SHORTEST_RETENTION_PAUSE: Duration = Duration::from_secs(1);
/// See [`SHORTEST_RETENTION_PAUSE`].
const LONGEST_RETENTION_PAUSE: Duration = Duration::from_secs(60);

/// What a server needs to start.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where everything is kept. An embedded one is created if it is missing, and is for one process at a time.
    pub store: StoreUrl,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// This node's name; made from the listener if there is none. See [`check_node_name`](crate::check_node_name).
    pub name: Option<String>,
    /// The configuration file's settings.
    pub config: Config,
    /// Ends the processes of `command` jobs when this process is killed. Without, they go on then.
    pub guard: Option<Guard>,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node cannot be called so.
    #[error("the node's name {0}")]
    Name(String),
    /// The store cannot be opened.
    #[error("cannot open the store {store}: {cause}")]
    Open {
        /// Its URL, without a password.
        store: String,
        /// Why not.
        cause: turnwise_store::Error,
    },
    /// The data directory holds data of another release.
    #[error(
        "the data was written in format {found}, and this release knows format {}: use the release that wrote it",
        keyspace::FORMAT_VERSION
    )]
    Format {
        /// The format found.
        found: String,
    },
    /// The store is being written by `turnwise store copy`.
    #[error(
        "the store is an unfinished copy of {from}: run `turnwise store copy` again until it says that it is done"
    )]
    CopyUnderWay {
        /// Where it is copied from.
        from: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {listen}: {cause}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why not.
        cause: io::Error,
    },
    /// The store failed while the server started.
    #[error(transparent)]
    Store(#[from] turnwise_queue::Error),
    /// The HTTP client cannot be made.
    #[error("cannot start the HTTP client: {0}")]
    Client(turnwise_replicator::Error),
}

impl From<turnwise_store::Error> for StartError {
    fn from(error: turnwise_store::Error) -> Self {
        StartError::Store(error.into())
    }
}

impl turnwise_store::MaybeStoreError for StartError {
    fn store_error(&self) -> Option<&turnwise_store::Error> {
        match self {
            StartError::Store(error) => error.store_error(),
            _ => None,
        }
    }
}

/// The server; see [`Server::start`].
pub struct Server;

impl Server {
    /// Opens the store, starts the workers, the doc processor, the services beside them, and the listener.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start(config: ServerConfig) -> Result<RunningServer, StartError> {
        Self::start_node(config, None).await
    }

    /// Starts another node on a store that is open already, in place of the one that the configuration names. The nodes of
    /// one process can share even an embedded store.
    ///
    /// # Errors
    /// As with [`Server::start`].
    pub async fn start_on(store: Store, config: ServerConfig) -> Result<RunningServer, StartError> {
        Self::start_node(config, Some(store)).await
    }

    async fn start_node(config: ServerConfig, store: Option<Store>) -> Result<RunningServer, StartError> {
        let ServerConfig { store: url, listen, name, config, guard } = config;
        let exclusive = store.is_none() && !url.is_shared();
        if let Some(name) = &name {
            node::check_name(name).map_err(StartError::Name)?;
        }
        if !listen.ip().is_loopback() {
            tracing::warn!(
                %listen,
                commands = config.command.enabled,
                "everyone who can reach this address may read, change and delete every job: there are no logins yet"
            );
        }
        let no_listener = |cause| StartError::Listen { listen, cause };
        let listener = TcpListener::bind(listen).await.map_err(no_listener)?;
        let listen = listener.local_addr().map_err(no_listener)?;
        let store = match store {
            Some(store) => store,
            None => {
                let opened = turnwise_store::open(&url, Arc::new(runtime::System)).await;
                opened.map_err(|cause| StartError::Open { store: url.to_string(), cause })?
            }
        };
        let runtime = store.runtime().clone();
        let keys = Keyspace::default();
        let server_uuid = initialise(&store, &keys, config.uuid.as_deref()).await?;
        let client = Client::new().map_err(StartError::Client)?;
        let settings = Settings { server_uuid: server_uuid.clone(), defaults: config.replication.clone() };
        let node = name.unwrap_or_else(|| node::default_name(listen));

        let handler = Handler::new(client.clone(), server_uuid, config.replication, runtime);
        let options = turnwise_worker::Options {
            node: node.clone(),
            max_jobs: config.max_jobs,
            max_history: config.max_history,
            backoff: config.backoff,
            exclusive,
            health_interval: config.workers.health_interval,
            health_timeout: config.workers.health_timeout,
            ..turnwise_worker::Options::default()
        };
        let external = ExternalOptions {
            node: node.clone(),
            health_interval: config.workers.health_interval,
            health_timeout: config.workers.health_timeout,
            max_history: config.jobs.max_history,
            backoff: config.jobs.backoff,
        };
        let external = External::new(store.clone(), keys.clone(), external);
        let start = |job_type, handler, options| {
            Worker::start(store.clone(), keys.clone(), job_type, handler, options)
        };
        let mut workers = vec![start(JOB_TYPE, Arc::new(handler), options.clone()).await?];
        let commands = config.command.enabled.then(|| Arc::new(commands(&config.command, guard)));
        if let Some(handler) = &commands {
            let options = turnwise_worker::Options {
                max_jobs: config.command.max_jobs,
                max_history: config.jobs.max_history,
                backoff: config.jobs.backoff,
                ..options
            };
            workers.push(start(turnwise_command::JOB_TYPE, handler.clone(), options).await?);
        }
        let stop = CancellationToken::new();
        let processor = DocProcessor {
            store: store.clone(),
            keys: keys.clone(),
            settings: settings.clone(),
            filters: Arc::new(client.clone()),
        };
        let monitor = Monitor {
            store: store.clone(),
            keys: keys.clone(),
            options: MonitorOptions {
                interval: config.workers.health_interval,
                max_history: config.jobs.max_history,
            },
        };
        let retention = Retention {
            store: store.clone(),
            keys: keys.clone(),
            options: RetentionOptions {
                retention: config.jobs.retention,
                interval: (config.jobs.retention / 10)
                    .clamp(SHORTEST_RETENTION_PAUSE, LONGEST_RETENTION_PAUSE),
            },
        };
        let services = vec![
            service("doc processor", processor.run(stop.clone())),
            service("monitor", monitor.run(stop.clone())),
            service("retention", retention.run(stop.clone())),
        ];
        let app = App {
            store,
            keys,
            settings: Arc::new(settings),
            client,
            node: node.into(),
            stop: stop.clone(),
            turns: http::Turns::default(),
            external,
            health: http::Health {
                interval: config.workers.health_interval,
                timeout: config.workers.health_timeout,
            },
            accepting: http::Accepting::default(),
            body_room: http::BodyRoom::default(),
            max_wait: config.jobs.max_wait,
            commands,
        };
        let http = AbortOnDropHandle::new(tokio::spawn(http::serve(listener, app.router(), stop.clone())));
        tracing::info!("listening on http://{listen}");
        Ok(RunningServer { listen, stop, workers, services, http })
    }
}

/// A server that runs. Dropping it stops it at once, like a crash; [`RunningServer::shutdown`] stops it cleanly.
pub struct RunningServer {
    listen: SocketAddr,
    stop: CancellationToken,
    workers: Vec<Worker>,
    services: Vec<Service>,
    http: AbortOnDropHandle<()>,
}

/// A part of the server that runs until the server stops.
struct Service {
    name: &'static str,
    task: AbortOnDropHandle<()>,
}

fn service(name: &'static str, run: impl Future<Output = ()> + Send + 'static) -> Service {
    Service { name, task: AbortOnDropHandle::new(tokio::spawn(run)) }
}

impl Service {
    async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, part = self.name, "a part of the server ended badly");
        }
    }
}

impl RunningServer {
    /// Where it listens, with the port that it took.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Ends open feeds and waiting requests, lets every job write its checkpoint and gives it back, and returns when all
    /// is still, within 10 s.
    pub async fn shutdown(self) {
        let RunningServer { stop, workers, services, http, .. } = self;
        stop.cancel();
        let stopped = async {
            let services = join_all(services.into_iter().map(Service::ended));
            let workers = join_all(workers.into_iter().map(Worker::shutdown));
            tokio::join!(workers, services, Service { name: "listener", task: http }.ended());
        };
        if tokio::time::timeout(STOP_TIMEOUT, stopped).await.is_err() {
            tracing::error!("the server did not stop in time: what is left is recovered by the next start");
        }
    }
}

/// What runs jobs of type `command`.
fn commands(config: &config::Command, guard: Option<Guard>) -> turnwise_command::Handler {
    let programs = config.programs.clone().map_or(Programs::All, Programs::Only);
    let max_output_bytes = config.max_output_bytes;
    turnwise_command::Handler::new(turnwise_command::Settings {
        programs,
        max_output_bytes,
        guard,
        ..turnwise_command::Settings::default()
    })
}

/// Checks the store's format, and makes what every store has. Returns the server's UUID.
async fn initialise(store: &Store, keys: &Keyspace, uuid: Option<&str>) -> Result<String, StartError> {
    let runtime = store.runtime();
    let new_uuid = format!("{:016x}{:016x}", runtime.random(), runtime.random());
    let (now_us, new_uuid) = (runtime.now_us(), new_uuid.as_str());
    let uuid = store
        .transact(|tx| async move {
            check_format(&tx, keys).await?;
            let uuid = server_uuid(&tx, keys, uuid, new_uuid).await?;
            match databases::create(&tx, keys, names::REPLICATOR, now_us).await {
                Ok(()) | Err(documents::Error::DatabaseExists) => Ok(uuid),
                Err(documents::Error::Queue(error)) => Err(StartError::Store(error)),
                Err(error) => unreachable!("the name is right, and nothing else can go wrong: {error}"),
            }
        })
        .await?;
    Ok(uuid)
}

async fn check_format(tx: &Transaction, keys: &Keyspace) -> Result<(), StartError> {
    let Some(found) = tx.get(&keys.format()).await? else {
        return Ok(tx.set(keys.format(), Format::current())?);
    };
    match Format::read(&found) {
        Format::Version(keyspace::FORMAT_VERSION) => Ok(()),
        Format::Version(other) => Err(StartError::Format { found: other.to_string() }),
        Format::Copying(copying) => Err(StartError::CopyUnderWay { from: copying.from }),
        Format::Unknown(found) => Err(StartError::Format { found }),
    }
}

/// The configured UUID, or the one that the store has, or a new one; and the store has it from now on.
async fn server_uuid(
    tx: &Transaction,
    keys: &Keyspace,
    configured: Option<&str>,
    new: &str,
) -> Result<String, StartError> {
    let corrupt = |error| turnwise_store::Error::Corrupt(format!("server uuid: {error}"));
    let stored: Option<String> = match tx.get(&keys.server_uuid()).await? {
        Some(value) => Some(serde_json::from_slice(&value).map_err(corrupt)?),
        None => None,
    };
    let uuid = configured.or(stored.as_deref()).unwrap_or(new).to_owned();
    if stored.as_ref() != Some(&uuid) {
        if stored.is_some() {
            tracing::warn!(
                "the configured uuid is not the one that this store was used with: replications look for checkpoints under \
                 new ids, and start over where there are none"
            );
        }
        tx.set(keys.server_uuid(), serde_json::json!(uuid).to_string().into())?;
    }
    Ok(uuid)
}
