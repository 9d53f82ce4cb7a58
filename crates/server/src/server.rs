//! The composition: store, workers, doc processor, monitor, retention and listener, and their shutdown.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio_util::sync::CancellationToken;
use turnwise_command::Guard;
use turnwise_config::{Config, Shared};
use turnwise_metrics::Metrics;
use turnwise_queue::sealing::seal;
use turnwise_replicator::ownership::Ownership;
use turnwise_store::{Seal, Store, StoreUrl, runtime};
use turnwise_telemetry::otel::Exporter;
use turnwise_web::names::Names;
use turnwise_worker::{EventRules, Live, Recorder, Worker};

use crate::checked::Checked;
use crate::common::{Built, Common};
use crate::job_types::{self, JobType, command, indexing, replication};
use crate::live::{self, Parts};
use crate::open::Exposure;
use crate::scaling::Scaling;
use crate::services::Services;
use crate::start::{self, Opened, StartError};
use crate::{history, node};

/// A shutdown takes at most this long, even if a part hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

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
        Box::pin(Self::start_node(config, None, None))
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
        Box::pin(async move {
            let opened = Opened::with(store, &config.store);
            Self::start_node(config, Some(opened), None).await
        })
    }

    /// Starts a server for the tests of other programs, on a free port of this machine, with a store in `folder` that a crash may lose. Its clock is moved by
    /// `POST /v1/test/advance`, which no other server has.
    ///
    /// # Errors
    /// As with [`Server::start`].
    pub fn start_for_tests(folder: &Path) -> BoxFuture<'static, Result<RunningServer, StartError>> {
        let store = folder.join("store");
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            let clock = Arc::<runtime::Movable>::default();
            let opened = Opened::volatile(&store, clock.clone())?;
            let config = ServerConfig {
                store: StoreUrl::Embedded { data_dir: store },
                listen: (Ipv4Addr::LOCALHOST, 0).into(),
                name: None,
                advertise: None,
                config: Config::default(),
                guard: None,
                insecure_no_auth: false,
                seal: seal(None).expect("no keys are no wrong ones"),
            };
            Self::start_node(config, Some(opened), Some(clock)).await
        })
    }

    async fn start_node(
        config: ServerConfig,
        opened: Option<Opened>,
        clock: Option<Arc<runtime::Movable>>,
    ) -> Result<RunningServer, StartError> {
        let mut checked = Checked::new(&config).await?;
        let ServerConfig { store: url, name, advertise, config, guard, insecure_no_auth, seal, .. } = config;
        let opened = match opened {
            Some(opened) => opened,
            None => start::open(&url, Arc::new(runtime::System), &seal).await?,
        };
        let node = name.unwrap_or_else(|| node::default_name(checked.listen));
        let exposure =
            Exposure { listen: checked.listen, commands: config.command.enabled, url: &url, node: &node };
        let common = Common::new(opened, config, &exposure, insecure_no_auth, checked.traces.take()).await?;
        let Common { opened, keys, config, .. } = &common;
        let levels =
            live::levels(checked.catalogue.levels(), &config.indexing).map_err(StartError::Setting)?;
        let queue = live::queue(config, &levels);
        let counted = Arc::<turnwise_worker::Metrics>::default();
        let options = common.worker_options(&queue, &counted);
        let advertised = advertise.unwrap_or_else(|| node::default_url(checked.scheme(), checked.listen));
        // The nodes join first, because the name may be taken: no other part has started by then.
        let mut workers = vec![common.join(&options, &advertised, checked.listen).await?];
        let rules: Live<EventRules> = config.events.into();
        let recorder = Recorder {
            store: opened.store.clone(),
            keys: keys.clone(),
            node: common.node.clone(),
            rules: rules.clone(),
        };
        // Before this node changes any job.
        opened.asked(recorder.begin()).await?;
        let external = common.external(&options);
        let mut services = Services::new(CancellationToken::new());
        let start = job_types::Start {
            opened,
            keys,
            config,
            settings: &common.settings,
            client: &common.client,
            queue: &queue,
            options: &options,
        };
        let replications = replication::start(&start, &common.node, &mut services).await?;
        let mut types = Vec::new();
        let commands =
            checked.sandbox.take().map(|sandbox| command::handler(&config.command, guard, sandbox));
        let commands = commands.map(Arc::new);
        if let Some(handler) = &commands {
            types.push(command::start(&start, handler.clone()).await?);
        }
        let indexing = indexing::servers(&start);
        types.extend(indexing::start(&start, &indexing, &replications.ownership, &mut services).await?);
        types.insert(0, replications.job_type);
        let waiting_jobs = Live::from(config.limits.waiting_jobs);
        let retention = common.keep(&external, &counted, recorder, &waiting_jobs, &mut services);
        let passage =
            clock.map(|clock| common.passage(clock, &external, &counted, &waiting_jobs, &retention));
        let tuned = |of: &JobType| (of.worker.tunables().clone(), of.tune);
        let parts = Parts {
            config: Arc::new(config.clone()).into(),
            workers: types.iter().map(tuned).collect(),
            external: external.tunables().clone(),
            retention,
            waiting_jobs,
            events: rules.clone(),
            settings: common.settings.clone(),
            client: common.client.clone(),
            multiplex: replications.mode,
            traces: common.exporter.as_ref().map(|exporter| exporter.queue.clone()),
            levels,
        };
        let current = parts.config.clone();
        services.add("configuration", (common.shared.clone(), Arc::new(parts)), |(shared, parts), stop| {
            shared.follow(move |config| parts.apply(config), stop)
        });
        let events = common.follow(&rules, &current, &options, &mut services);
        let names = Names::new(checked.listen, &advertised, &config.listener_names);
        let upstream = replications.upstream;
        let http = common.http(Built {
            url,
            external,
            current,
            commands,
            upstream: upstream.as_ref().map(|upstream| upstream.condition.clone()),
            indexing,
            names,
            events,
            counted,
            replicated: replications.metrics,
            stop: services.stop().clone(),
            passage,
            checked: &checked,
        });
        for JobType { name, worker, slots, .. } in types {
            if let Some(slots) = slots {
                let tunables = worker.tunables().clone();
                let scaling = Scaling { web: http.web.clone(), job_type: name, slots, tunables };
                services.add("slots that follow the demand", scaling, Scaling::run);
            }
            workers.push(worker);
        }
        services.add("metrics", http.metrics.clone(), Metrics::run);
        services.add("history", http.metrics.clone(), history::run);
        checked.serve(&http, &common, &advertised, &mut services)?;
        tracing::info!("listening on {}://{}", checked.scheme(), checked.listen);
        Ok(RunningServer {
            checked,
            store: common.opened.store,
            workers,
            services,
            ownership: upstream.map(|upstream| upstream.ownership),
            shared: common.shared,
            exporter: common.exporter,
        })
    }
}

/// A running server. Dropping it stops it immediately, like a crash; [`RunningServer::shutdown`] stops it cleanly.
pub struct RunningServer {
    checked: Checked,
    store: Store,
    workers: Vec<Worker>,
    services: Services,
    ownership: Option<Ownership>,
    shared: Shared,
    exporter: Option<Exporter>,
}

impl RunningServer {
    /// The address that it listens on, with the actual port.
    pub fn listen(&self) -> SocketAddr {
        self.checked.listen
    }

    /// The scheme of its URL: `https` with TLS.
    pub fn scheme(&self) -> &'static str {
        self.checked.scheme()
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

    /// Applies a configuration file that was read again. Settings that can change at run time take effect soon. Other
    /// changes are logged, and wait for the next start.
    pub fn reload(&self, file: Config) {
        let Checked { tls, audit, jwt, .. } = &self.checked;
        if let Some(tls) = tls {
            tls.reload();
        }
        if let Some(audit) = audit {
            audit.reopen();
        }
        if let Some(jwt) = jwt {
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
            let RunningServer { workers, services, exporter, .. } = self;
            services.stop().cancel();
            let stopped = async {
                let workers = join_all(workers.into_iter().map(Worker::shutdown));
                tokio::join!(workers, services.ended());
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
