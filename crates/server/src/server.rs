//! The composition: store, workers, doc processor, monitor, retention and listener, and their shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_command::Guard;
use turnwise_explain::demand::Trackers;
use turnwise_indexer::jobs::{self, Handler as IndexHandler, Indexing};
use turnwise_queue::{Keyspace, NodeOptions};
use turnwise_replicator::doc_processor::{DocProcessor, Settings};
use turnwise_replicator::events::Events;
use turnwise_replicator::multiplex::{self, Multiplex};
use turnwise_replicator::ownership::Ownership;
use turnwise_replicator::upstream::{Condition, Upstream};
use turnwise_replicator::{Client, Connections, Handler, JOB_TYPE};
use turnwise_store::{Seal, Store, StoreUrl, runtime};
use turnwise_worker::{
    Counts, Deadlines, Dependencies, EventRules, External, ExternalOptions, Filters, Joined, Live, Monitor,
    Recorder, Retention, Timekeeper, Worker, join_nodes,
};

use crate::access::{Audit, Identities, Jwt, Pace};
use crate::bulk::BulkOperations;
use crate::catalogue;
use crate::commands;
use crate::config::{Config, Prometheus, Shared};
use crate::descriptors;
use crate::history;
use crate::http::{self, App, AppState};
use crate::live::{self, Parts};
use crate::metrics::Metrics;
use crate::node;
use crate::open::{self, Exposure};
use crate::otel::{Exporter, Target};
use crate::pool::Pool;
use crate::scaling::Scaling;
use crate::start::{self, Opened, StartError, initialise};
use crate::webhooks::Webhooks;

/// A shutdown takes at most this long, even if a part hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request waits for an unavailable store.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// The interval between two reports of a replication's statistics. `_active_tasks` is at most half a second old, as in CouchDB.
const REPORT_INTERVAL: Duration = Duration::from_millis(400);
/// Connections to the additional port of the metrics: one or two scrapers have one each.
const METRICS_CONNECTIONS: usize = 16;
/// The pause before a part of the server restarts after a panic.
const SERVICE_PAUSE: Duration = Duration::from_secs(1);

/// What a server needs to start.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The store. An embedded one is created if it is missing, and serves one process at a time.
    pub store: StoreUrl,
    /// The address to listen on. Port 0 takes a free port.
    pub listen: SocketAddr,
    /// This node's name, by default derived from the listener. See [`check_node_name`](crate::check_node_name).
    pub name: Option<String>,
    /// The URL under which other machines reach this node, shown in lists. By default the listener's.
    pub advertise: Option<String>,
    /// The settings of the configuration file.
    pub config: Config,
    /// Runs the processes of `command` jobs, and ends everything that they have started. Without a guard, which is for tests, they have no
    /// sandbox, and continue when this process is killed.
    pub guard: Option<Guard>,
    /// Starts also where a server without identities is refused: where other machines can reach it, where it runs commands,
    /// and where several nodes share a store.
    pub insecure_no_auth: bool,
    /// The keys that encrypt secrets in the store, if it has any: [`turnwise_queue::sealing::seal`].
    pub seal: Seal,
}

/// The server; see [`Server::start`].
pub struct Server;

impl Server {
    /// Opens the store, starts the workers, the doc processor, the services beside them, and the listener.
    ///
    /// # Errors
    /// [`StartError`]. In that case nothing is left running.
    pub fn start(config: ServerConfig) -> BoxFuture<'static, Result<RunningServer, StartError>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(Self::start_node(config, None))
    }

    /// Starts another node on a store that is already open, instead of the store of the configuration. The nodes of one
    /// process can even share an embedded store.
    ///
    /// # Errors
    /// As with [`Server::start`].
    pub fn start_on(
        store: Store,
        config: ServerConfig,
    ) -> BoxFuture<'static, Result<RunningServer, StartError>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(Self::start_node(config, Some(store)))
    }

    async fn start_node(config: ServerConfig, store: Option<Store>) -> Result<RunningServer, StartError> {
        let ServerConfig { store: url, listen, name, advertise, config, guard, insecure_no_auth, seal } =
            config;
        if let Some(name) = &name {
            node::check_name(name).map_err(StartError::Name)?;
        }
        if let Some(url) = &advertise {
            node::check_advertised(url).map_err(StartError::Advertised)?;
        }
        let sandbox = commands::sandbox(&config.command, guard.as_ref()).map_err(StartError::Commands)?;
        let catalogue = catalogue::read(config.queue.catalogue.as_deref()).map_err(StartError::Catalogue)?;
        start::check_files(&config)?;
        let tls = http::Tls::new(config.tls.clone()).map_err(StartError::Certificate)?;
        let audit = match &config.audit_file {
            Some(file) => {
                let no_audit = |cause| StartError::Audit { file: file.display().to_string(), cause };
                Some(Arc::new(Audit::open(file).map_err(no_audit)?))
            }
            None => None,
        };
        let jwt = Jwt::new(&config.jwt).map_err(StartError::Jwt)?.map(Arc::new);
        let traces =
            Target::new(&config.otel, |name| std::env::var(name).ok()).map_err(StartError::Traces)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let no_listener = |cause| StartError::Listen { listen, cause };
        let listener = TcpListener::bind(listen).await.map_err(no_listener)?;
        let listen = listener.local_addr().map_err(no_listener)?;
        let metrics_listener = metrics_listener(&config.prometheus).await?;
        let opened = match store {
            Some(store) => Opened::with(store, &url),
            None => start::open(&url, Arc::new(runtime::System), &seal).await?,
        };
        let store = opened.store.clone();
        let runtime = store.runtime().clone();
        let keys = Keyspace::default();
        let descriptors =
            descriptors::raised(if config.command.enabled { config.command.max_jobs.most } else { 0 });
        let connections = Connections { most: descriptors.outgoing, ..config.connections.clone() };
        let client = Client::with(&connections).map_err(StartError::Client)?;
        let new_uuid = start::taken_over(&opened, &keys, &config, &client).await?;
        let node = name.unwrap_or_else(|| node::default_name(listen));
        let sample_ratio = config.otel.sample_ratio;
        let exporter = traces.map(|target| Exporter::start(&target, &node, sample_ratio)).transpose();
        let exporter = exporter.map_err(StartError::Traces)?;
        let spans = exporter.as_ref().map(Exporter::spans).unwrap_or_default();
        let exposure = Exposure { listen, commands: config.command.enabled, url: &url, node: &node };
        open::check(&opened, &keys, &exposure, insecure_no_auth).await?;
        // Clients can use another server, or retry, so they learn early that the store is unavailable.
        let impatient = store.impatient(REQUEST_PATIENCE);
        let identities = Identities::new(impatient.clone(), keys.clone(), client.clone());
        // Before any job runs: with identities, tenants are kept from internal addresses.
        opened.asked(async { identities.load().await.map_err(start::Refused::Store) }).await?;
        let server_uuid = opened.asked(initialise(&opened, &keys, config.uuid.as_deref(), new_uuid)).await?;
        // Settings in the store override those in the file.
        let file = Config { uuid: Some(server_uuid.clone()), ..config };
        let shared = Shared::new(store.clone(), keys.clone(), file);
        let config = opened.asked(shared.current()).await?;
        let settings = Live::from(Settings { server_uuid, defaults: config.replication.clone() });

        let mode = Live::from(config.multiplex);
        let multiplex = Multiplex::new(client.clone(), mode.clone());
        let events = Events::default();
        let handler = Handler::new(client.clone(), settings.clone(), runtime)
            .with_events(events.clone())
            .with_multiplex(multiplex.clone());
        let levels = live::levels(catalogue.levels(), &config.indexing).map_err(StartError::Catalogue)?;
        let queue = live::queue(&config, &levels);
        let counted = Arc::<turnwise_worker::Metrics>::default();
        let metrics = Arc::new(Metrics::new(counted.clone(), store.runtime().now_us()));
        let options = turnwise_worker::Options {
            node: node.clone(),
            max_jobs: config.max_jobs.least,
            bounds: config.max_jobs.bounds(),
            max_history: config.max_history,
            backoff: config.backoff,
            on_lost: config.on_lost,
            timeouts: live::timeouts(&config, JOB_TYPE),
            exclusive: opened.exclusive,
            health_interval: config.workers.health_interval,
            health_timeout: config.workers.health_timeout,
            fair: live::fair_replications(&config),
            queue: queue.clone(),
            metrics: counted.clone(),
            report_interval: REPORT_INTERVAL,
            spans: spans.clone(),
            ..turnwise_worker::Options::default()
        };
        let membership = NodeOptions {
            url: advertise.unwrap_or_else(|| node::default_url(scheme, listen)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            place: node::place(listen),
            upstream: config.upstream.is_some(),
        };
        let advertised = membership.url.clone();
        let names = http::Names::new(listen, &advertised, &config.listener_names);
        // The nodes join first, because the name may be taken: no other part has started by then.
        let mut workers = match opened
            .or_start_error(join_nodes(&store, &keys, &options, membership, opened.patience()).await)?
        {
            Joined::Node(node) => vec![node],
            Joined::NameTaken { url, .. } => return Err(StartError::NameTaken { name: node, url }),
        };
        let events_of_jobs: Live<EventRules> = config.events.into();
        let recorder = Recorder {
            store: store.clone(),
            keys: keys.clone(),
            node: node.clone(),
            rules: events_of_jobs.clone(),
        };
        // Before this node changes any job.
        opened.asked(recorder.begin()).await?;
        let external = ExternalOptions {
            node: node.clone(),
            health_interval: config.workers.health_interval,
            health_timeout: config.workers.health_timeout,
            max_history: config.jobs.max_history,
            backoff: config.jobs.backoff,
            on_lost: config.jobs.on_lost,
            timeouts: Arc::new(config.jobs.timeouts()),
            shares: config.jobs.shares.clone(),
            queue: queue.clone(),
            spans: spans.clone(),
        };
        let external = External::new(impatient.clone(), keys.clone(), external).with_metrics(counted);
        let start = |job_type, handler, options| {
            Worker::start(store.clone(), keys.clone(), job_type, handler, options)
        };
        let replications = opened.asked(start(JOB_TYPE, Arc::new(handler), options.clone())).await?;
        let replication_tunables = replications.tunables().clone();
        workers.push(replications);
        let index_options = options.clone();
        let mut command_tunables = None;
        let commands = sandbox.map(|sandbox| Arc::new(commands::handler(&config.command, guard, sandbox)));
        if let Some(handler) = &commands {
            let options = turnwise_worker::Options {
                max_jobs: config.command.max_jobs.least,
                bounds: config.command.max_jobs.bounds(),
                max_history: config.jobs.max_history,
                backoff: config.jobs.backoff,
                on_lost: config.jobs.on_lost,
                timeouts: live::timeouts(&config, turnwise_command::JOB_TYPE),
                fair: live::fair_commands(&config),
                ..options.clone()
            };
            workers.push(opened.asked(start(turnwise_command::JOB_TYPE, handler.clone(), options)).await?);
            command_tunables = workers.last().map(|worker| worker.tunables().clone());
        }
        let indexing = Indexing::new(config.indexing.clone(), &config.replication, &client);
        let indexing = indexing.map_err(|error| StartError::Indexing(error.to_string()))?;
        let mut index_tunables = None;
        if indexing.max_jobs() > 0 {
            let handler = Arc::new(IndexHandler::new(indexing.clone(), store.runtime().clone()));
            let tunables = live::indexing(&config, &queue, indexing.max_jobs());
            let options = turnwise_worker::Options {
                max_jobs: tunables.max_jobs,
                max_history: tunables.max_history,
                backoff: tunables.backoff,
                on_lost: tunables.on_lost,
                timeouts: tunables.timeouts,
                fair: tunables.fair,
                ..index_options
            };
            let worker = opened.asked(start(turnwise_indexer::jobs::JOB_TYPE, handler, options)).await?;
            index_tunables = Some((worker.tunables().clone(), indexing.max_jobs()));
            workers.push(worker);
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
            options: live::monitor(&config).into(),
            external: external.clone(),
        };
        let deadlines = Deadlines { store: store.clone(), keys: keys.clone(), external: external.clone() };
        let ownership = Ownership::new(node.clone());
        if opened.exclusive {
            // No other node can exist.
            ownership.settle(vec![node.clone()]);
        }
        let parked = multiplex::Service {
            store: store.clone(),
            keys: keys.clone(),
            multiplex,
            settings: settings.clone(),
            ownership: ownership.clone(),
        };
        let index_watch = jobs::Service {
            store: store.clone(),
            keys: keys.clone(),
            indexing: indexing.clone(),
            ownership: ownership.clone(),
        };
        let (membership, periods) = ((store.clone(), keys.clone()), config.periods);
        let filters = Filters { store: store.clone(), keys: keys.clone() };
        let dependencies = Dependencies { store: store.clone(), keys: keys.clone() };
        let timekeeper = Timekeeper { store: store.clone(), keys: keys.clone() };
        let counts = Counts { store: store.clone(), keys: keys.clone() };
        let retention =
            Retention { store: store.clone(), keys: keys.clone(), options: live::retention(&config).into() };
        let parts = Parts {
            config: Arc::new(config.clone()).into(),
            replications: replication_tunables.clone(),
            commands: command_tunables.clone(),
            indexing: index_tunables,
            external: external.options().clone(),
            monitor: monitor.options.clone(),
            retention: retention.options.clone(),
            events: events_of_jobs.clone(),
            settings: settings.clone(),
            client: client.clone(),
            multiplex: mode,
            traces: exporter.as_ref().map(|exporter| exporter.queue.clone()),
            levels,
        };
        let current = parts.config.clone();
        let (following, parts) = (shared.clone(), Arc::new(parts));
        let upstream = beside(&opened, &keys, &config, &settings, &client, &node, &events).await?;
        let mut services = vec![
            service("configuration", &stop, move |stop| {
                let parts = parts.clone();
                following.clone().follow(move |config| parts.apply(config), stop)
            }),
            service("doc processor", &stop, move |stop| processor.clone().run(stop)),
            service("ownership of parked replications", &stop, move |stop| {
                let (ownership, (store, keys)) = (ownership.clone(), membership.clone());
                async move {
                    // Ownership counts all nodes, and only this service uses these events.
                    let events = Events::default();
                    ownership.run(&store, &keys, |_| true, periods, &events, stop).await;
                }
            }),
            service("parked replications", &stop, move |stop| parked.clone().run(stop)),
            service("indexes", &stop, move |stop| index_watch.clone().run(stop)),
            service("monitor", &stop, move |stop| monitor.clone().run(stop)),
            service("deadlines", &stop, move |stop| deadlines.clone().run(stop)),
            service("filters", &stop, move |stop| filters.clone().run(stop)),
            service("dependencies", &stop, move |stop| dependencies.clone().run(stop)),
            service("clock", &stop, move |stop| timekeeper.clone().run(stop)),
            service("counts", &stop, move |stop| counts.clone().run(stop)),
            service("retention", &stop, move |stop| retention.clone().run(stop)),
            service("recorder of events", &stop, move |stop| recorder.clone().run(stop)),
        ];
        let condition = upstream.as_ref().map(|upstream| upstream.condition.clone());
        let owned = upstream.as_ref().map(|upstream| upstream.ownership.clone());
        if let Some(upstream) = upstream {
            let ownership = upstream.ownership.clone();
            let (store, keys, events) = (store.clone(), keys.clone(), events.clone());
            services.push(service("ownership", &stop, move |stop| {
                let (ownership, store, keys, events) =
                    (ownership.clone(), store.clone(), keys.clone(), events.clone());
                async move { ownership.run(&store, &keys, |node| node.upstream, periods, &events, stop).await }
            }));
            services.push(service("upstream", &stop, move |stop| upstream.clone().run(stop)));
        }
        services.push(service("bulk operations", &stop, {
            let bulk = BulkOperations {
                store: store.clone(),
                keys: keys.clone(),
                identities: identities.clone(),
                node: node.clone(),
            };
            move |stop| bulk.clone().run(stop)
        }));
        services.push(service("identities", &stop, {
            let identities = identities.clone();
            move |stop| identities.clone().follow(stop)
        }));
        let all_events = crate::events::Events::new(impatient.clone(), keys.clone(), events_of_jobs.clone());
        services.push(service("events", &stop, {
            let events = all_events.clone();
            move |stop| events.clone().run(stop)
        }));
        services.push(service("webhooks", &stop, {
            let webhooks = Webhooks {
                store: store.clone(),
                keys: keys.clone(),
                node: node.clone(),
                identities: identities.clone(),
                events: all_events.clone(),
                rules: events_of_jobs,
                client: client.clone(),
                config: current.clone(),
                options,
                connections: connections.most,
            };
            move |stop| webhooks.clone().run(stop)
        }));
        let app = App::new(AppState {
            shared: shared.on(impatient.clone()),
            store: impatient,
            keys,
            settings,
            client,
            node: node.into(),
            store_url: Arc::new(url),
            stop: stop.clone(),
            turns: http::Turns::default(),
            external,
            health: http::Health {
                interval: config.workers.health_interval,
                timeout: config.workers.health_timeout,
            },
            accepting: http::Accepting::default(),
            body_room: http::Room::default(),
            config: current,
            catalogue: Arc::new(catalogue),
            commands,
            upstream: condition,
            indexing,
            names: Arc::new(names),
            workers: http::RegisteredBy::default(),
            audit: audit.clone(),
            jwt: jwt.clone(),
            pace: Pace::default(),
            waiting_jobs: Default::default(),
            counts: Pool::new(crate::bulk::COUNTS, crate::bulk::COUNTS_OF_ONE),
            demand: Trackers::default(),
            identities,
            events: all_events,
            metrics,
            spans,
        });
        let replications = Scaling {
            app: app.clone(),
            job_type: JOB_TYPE,
            slots: |config| config.max_jobs,
            tunables: replication_tunables,
        };
        services.push(service("slots of replications", &stop, move |stop| replications.clone().run(stop)));
        if let Some(tunables) = command_tunables {
            let commands = Scaling {
                app: app.clone(),
                job_type: turnwise_command::JOB_TYPE,
                slots: |config| config.command.max_jobs,
                tunables,
            };
            services.push(service("slots of commands", &stop, move |stop| commands.clone().run(stop)));
        }
        services.push(service("metrics", &stop, {
            let app = app.clone();
            move |stop| Metrics::run(app.clone(), stop)
        }));
        services.push(service("history", &stop, {
            let app = app.clone();
            move |stop| history::run(app.clone(), stop)
        }));
        if let Some(listener) = metrics_listener {
            let listen = listener.local_addr().map_err(no_listener)?;
            let names = http::Names::new(listen, &advertised, &config.listener_names);
            let listening = http::serve(
                listener,
                None,
                METRICS_CONNECTIONS,
                app.clone().metrics_router(names),
                stop.clone(),
            );
            services.push(Service {
                name: "metrics port",
                task: AbortOnDropHandle::new(tokio::spawn(listening)),
            });
        }
        let http = AbortOnDropHandle::new(tokio::spawn(http::serve(
            listener,
            tls.clone(),
            descriptors.incoming,
            app.router(),
            stop.clone(),
        )));
        if let Some(tls) = tls.clone() {
            services.push(service("certificate", &stop, move |stop| tls.clone().follow(stop)));
        }
        tracing::info!("listening on {scheme}://{listen}");
        Ok(RunningServer {
            listen,
            store: opened.store,
            stop,
            workers,
            services,
            http,
            events,
            ownership: owned,
            shared,
            tls,
            audit,
            jwt,
            exporter,
        })
    }
}

/// A running server. Dropping it stops it immediately, like a crash; [`RunningServer::shutdown`] stops it cleanly.
pub struct RunningServer {
    listen: SocketAddr,
    store: Store,
    stop: CancellationToken,
    workers: Vec<Worker>,
    services: Vec<Service>,
    http: AbortOnDropHandle<()>,
    events: Events,
    ownership: Option<Ownership>,
    shared: Shared,
    tls: Option<http::Tls>,
    audit: Option<Arc<Audit>>,
    jwt: Option<Arc<Jwt>>,
    exporter: Option<Exporter>,
}

/// A part of the server that runs until the server stops.
struct Service {
    name: &'static str,
    task: AbortOnDropHandle<()>,
}

/// Runs a part of the server, and restarts it after a panic. The part's data is in the store, so it can continue from there.
fn service<Run>(
    name: &'static str,
    stop: &CancellationToken,
    run: impl Fn(CancellationToken) -> Run + Send + 'static,
) -> Service
where
    Run: Future<Output = ()> + Send + 'static,
{
    let stop = stop.clone();
    let task = async move {
        while !stop.is_cancelled() {
            if let Err(error) = AbortOnDropHandle::new(tokio::spawn(run(stop.clone()))).await {
                tracing::error!(%error, part = name, "a part of the server panicked; it restarts");
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(SERVICE_PAUSE) => {}
            }
        }
    };
    Service { name, task: AbortOnDropHandle::new(tokio::spawn(task)) }
}

impl Service {
    async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, part = self.name, "a part of the server panicked");
        }
    }
}

impl RunningServer {
    /// The address that it listens on, with the actual port.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// The scheme of its URL: `https` with TLS.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Returns when this process can no longer use the store, with the reason in one line. The process should then end,
    /// and a supervisor should restart it. A store that is full or unavailable recovers by itself, and never ends a
    /// server.
    pub async fn ended(&self) -> String {
        self.store.ended().await
    }

    /// The ownership of the upstream's databases, if there is an upstream.
    pub fn ownership(&self) -> Option<&Ownership> {
        self.ownership.as_ref()
    }

    /// Events of the server's parts, so that tests need not poll.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Applies a configuration file that was read again. Settings that can change at run time take effect soon. Other
    /// changes are logged, and wait for the next start.
    pub fn reload(&self, file: Config) {
        if let Some(tls) = &self.tls {
            tls.reload();
        }
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
        if let Some(jwt) = &self.jwt {
            jwt.reload();
        }
        for (section, key) in self.shared.reload(file) {
            tracing::warn!("[{section}] {key} has changed in the file: it needs a restart");
        }
    }

    /// Ends open feeds and waiting requests. Every job writes its checkpoint and is given back. Returns when all parts
    /// have stopped, within 10 s.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            let RunningServer { stop, workers, services, http, exporter, .. } = self;
            stop.cancel();
            let stopped = async {
                let services = join_all(services.into_iter().map(Service::ended));
                let workers = join_all(workers.into_iter().map(Worker::shutdown));
                tokio::join!(workers, services, Service { name: "listener", task: http }.ended());
                // Last, with the spans of the runs that have just stopped.
                if let Some(exporter) = exporter {
                    exporter.finish().await;
                }
            };
            if tokio::time::timeout(STOP_TIMEOUT, stopped).await.is_err() {
                tracing::error!("the server did not stop in time; the next start recovers the rest");
            }
        })
    }
}

/// The additional port of the metrics, if there is one.
async fn metrics_listener(prometheus: &Prometheus) -> Result<Option<TcpListener>, StartError> {
    if !prometheus.additional_port {
        return Ok(None);
    }
    let listen = SocketAddr::new(prometheus.bind_address, prometheus.port);
    let listener = TcpListener::bind(listen).await.map_err(|cause| StartError::Listen { listen, cause })?;
    tracing::info!("metrics without authentication on http://{listen}");
    Ok(Some(listener))
}

/// The mirror of the upstream, if there is an upstream.
async fn beside(
    opened: &Opened,
    keys: &Keyspace,
    config: &Config,
    settings: &Live<Settings>,
    client: &Client,
    node: &str,
    events: &Events,
) -> Result<Option<Upstream>, StartError> {
    let Some(address) = &config.upstream else {
        let mirrors = opened.asked(Upstream::mirrors(&opened.store, keys)).await?;
        if !mirrors.is_empty() {
            tracing::warn!(
                databases = mirrors.join(", "),
                "no upstream is configured, but the store has mirrors of one: their replications still run here; to end them, delete the databases"
            );
        }
        return Ok(None);
    };
    Ok(Some(Upstream {
        store: opened.store.clone(),
        keys: keys.clone(),
        settings: settings.clone(),
        client: client.clone(),
        address: address.clone(),
        ownership: Ownership::new(node),
        events: events.clone(),
        condition: Condition::Unknown.into(),
    }))
}
