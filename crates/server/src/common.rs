//! What the parts of a node have in common, and the parts that every node has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_api::event_log::Events;
use turnwise_command::Handler;
use turnwise_config::{Config, Shared};
use turnwise_couch::PATTERNS;
use turnwise_explain::demand::Trackers;
use turnwise_indexer::jobs::Indexing;
use turnwise_metrics::Metrics;
use turnwise_outbound::{Client, Connections};
use turnwise_queue::{Keyspace, NodeOptions};
use turnwise_replicator::doc_processor::Settings;
use turnwise_replicator::upstream::Condition;
use turnwise_store::runtime::Movable;
use turnwise_store::{Store, StoreUrl};
use turnwise_telemetry::otel::{Exporter, Target};
use turnwise_web::access::{Identities, Pace};
use turnwise_web::names::Names;
use turnwise_web::pool::Pool;
use turnwise_web::room::Room;
use turnwise_worker::{
    Deadlines, EventRules, External, Groups, Joined, Live, LogBounds, Monitor, Passage, QueueRules, Recorder,
    Retention, RetentionOptions, Schedules, Spans, Tunables, Worker, fold_counts, join_nodes, keep_clock,
    release_filtered, remove_starts, settle_dependencies, settle_lifetimes,
};

use crate::bulk::{self, BulkOperations};
use crate::checked::Checked;
use crate::http::Http;
use crate::job_types::replication::REPORT_INTERVAL;
use crate::job_types::webhook::Webhooks;
use crate::job_types::{EVERY_OTHER_TYPE, tunables};
use crate::open::{self, Exposure};
use crate::services::Services;
use crate::start::{self, Opened, StartError, initialise};
use crate::{descriptors, live};

/// How long a request waits for an unavailable store.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);

/// What the parts of a node have in common.
pub(crate) struct Common {
    pub opened: Opened,
    /// The same store, for requests.
    pub impatient: Store,
    pub keys: Keyspace,
    /// This node's name.
    pub node: String,
    /// The connections to other servers, and the most of them.
    pub client: Client,
    pub outgoing: usize,
    /// The most connections from clients.
    pub incoming: usize,
    pub identities: Identities,
    pub shared: Shared,
    /// The settings of the file and of the store, at the start.
    pub config: Config,
    /// The settings of replications.
    pub settings: Live<Settings>,
    pub exporter: Option<Exporter>,
    pub spans: Spans,
}

/// What has been built for requests.
pub(crate) struct Built<'a> {
    pub url: StoreUrl,
    pub external: External,
    pub current: Live<Arc<Config>>,
    pub commands: Option<Arc<Handler>>,
    pub upstream: Option<Live<Condition>>,
    pub indexing: Indexing,
    pub names: Names,
    pub events: Events,
    pub counted: Arc<turnwise_worker::Metrics>,
    pub replicated: Arc<turnwise_replicator::Metrics>,
    pub stop: CancellationToken,
    pub passage: Option<Passage>,
    pub checked: &'a Checked,
}

impl Common {
    /// Reads what is in the store, and writes its first rows.
    pub async fn new(
        opened: Opened,
        config: Config,
        exposure: &Exposure<'_>,
        insecure_no_auth: bool,
        traces: Option<Target>,
    ) -> Result<Common, StartError> {
        let (store, keys, node) = (opened.store.clone(), Keyspace::default(), exposure.node.to_owned());
        let descriptors =
            descriptors::raised(if config.command.enabled { config.command.max_jobs.most } else { 0 });
        let connections = Connections { most: descriptors.outgoing, ..config.connections.clone() };
        let no_client = StartError::setting("cannot start the HTTP client: ");
        let client = Client::with(&connections).map_err(no_client)?;
        let new_uuid = start::taken_over(&opened, &keys, &config, &client).await?;
        let sample_ratio = config.otel.sample_ratio;
        let exporter = traces.map(|target| Exporter::start(&target, &node, sample_ratio)).transpose();
        let exporter = exporter.map_err(StartError::Usage)?;
        let spans = exporter.as_ref().map(Exporter::spans).unwrap_or_default();
        open::check(&opened, &keys, exposure, insecure_no_auth).await?;
        // Clients can use another server, or retry, so they learn early that the store is unavailable.
        let impatient = store.impatient(REQUEST_PATIENCE);
        let identities = Identities::new(impatient.clone(), keys.clone(), client.clone());
        // Before any job runs: with identities, tenants are kept from internal addresses.
        opened.asked(async { identities.load().await.map_err(start::Refused::Store) }).await?;
        let server_uuid = opened.asked(initialise(&opened, &keys, config.uuid.as_deref(), new_uuid)).await?;
        // Settings in the store override those in the file.
        let file = Config { uuid: Some(server_uuid.clone()), ..config };
        let shared = Shared::new(store, keys.clone(), file);
        let config = opened.asked(shared.current()).await?;
        let settings = Live::from(Settings { server_uuid, defaults: config.replication.clone() });
        Ok(Common {
            opened,
            impatient,
            keys,
            node,
            client,
            outgoing: descriptors.outgoing,
            incoming: descriptors.incoming,
            identities,
            shared,
            config,
            settings,
            exporter,
            spans,
        })
    }

    /// What the workers of all types have in common.
    pub fn worker_options(
        &self,
        queue: &Arc<QueueRules>,
        metrics: &Arc<turnwise_worker::Metrics>,
    ) -> turnwise_worker::Options {
        turnwise_worker::Options {
            node: self.node.clone(),
            exclusive: self.opened.exclusive,
            health_interval: self.config.workers.health_interval,
            health_timeout: self.config.workers.health_timeout,
            metrics: metrics.clone(),
            report_interval: REPORT_INTERVAL,
            spans: self.spans.clone(),
            tunables: Tunables { queue: queue.clone(), ..Tunables::default() },
            ..turnwise_worker::Options::default()
        }
    }

    /// Makes this process a node.
    pub async fn join(
        &self,
        options: &turnwise_worker::Options,
        advertised: &str,
        listen: SocketAddr,
    ) -> Result<Worker, StartError> {
        let Common { opened, keys, config, node, .. } = self;
        let membership = NodeOptions {
            url: advertised.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            place: crate::node::place(listen),
            upstream: config.upstream.is_some(),
        };
        let joined = join_nodes(&opened.store, keys, options, membership, opened.patience()).await;
        match opened.or_start_error(joined)? {
            Joined::Node(node) => Ok(node),
            Joined::NameTaken { url, .. } => {
                let at = url.map(|url| format!(" ({url})")).unwrap_or_default();
                Err(StartError::Setting(format!(
                    "a node called {node} runs on this store{at}: give each node a name of its own with --name"
                )))
            }
        }
    }

    /// The workers outside of this server. `options` are what the workers of all types have in common.
    pub fn external(&self, options: &turnwise_worker::Options) -> External {
        let tunables = tunables(&self.config, &options.tunables.queue, EVERY_OTHER_TYPE, 0);
        let options = turnwise_worker::Options { tunables, ..options.clone() };
        External::new(self.impatient.clone(), self.keys.clone(), options)
    }

    /// Starts the services that keep the rows of jobs in order. Returns the settings of the retention, which change.
    pub fn keep(
        &self,
        external: &External,
        counted: &Arc<turnwise_worker::Metrics>,
        recorder: Recorder,
        waiting_jobs: &Live<usize>,
        services: &mut Services,
    ) -> Live<RetentionOptions> {
        let (store, keys) = (self.opened.store.clone(), self.keys.clone());
        let own = || (store.clone(), keys.clone());
        let kept = Live::from(live::retention(&self.config));
        let (store, keys) = own();
        services.add("monitor", Monitor { store, keys, external: external.clone() }, Monitor::run);
        let (store, keys) = own();
        services.add("deadlines", Deadlines { store, keys, external: external.clone() }, Deadlines::run);
        services.add("filters", own(), release_filtered);
        services.add("starts", own(), remove_starts);
        services.add("dependencies", own(), settle_dependencies);
        services.add("lifetimes", own(), settle_lifetimes);
        services.add("clock", own(), keep_clock);
        services.add("counts", own(), fold_counts);
        let (store, keys) = own();
        services.add("retention", Retention { store, keys, options: kept.clone() }, Retention::run);
        let (store, keys) = own();
        let logs = LogBounds { store, keys, node: self.node.clone(), options: kept.clone() };
        services.add("bounds of logs", logs, LogBounds::run);
        let (store, keys) = own();
        let (waiting_jobs, metrics) = (waiting_jobs.clone(), counted.clone());
        services.add("schedules", Schedules { store, keys, waiting_jobs, metrics }, Schedules::run);
        let (store, keys) = own();
        services.add("groups", Groups { store, keys }, Groups::run);
        services.add("recorder of events", recorder, Recorder::run);
        kept
    }

    /// Moves the clock of a server for tests. `kept` and the others are those of [`Common::keep`].
    pub fn passage(
        &self,
        machine: Arc<Movable>,
        external: &External,
        counted: &Arc<turnwise_worker::Metrics>,
        waiting_jobs: &Live<usize>,
        kept: &Live<RetentionOptions>,
    ) -> Passage {
        let own = || (self.opened.store.clone(), self.keys.clone());
        let ((store, keys), waiting_jobs, metrics) = (own(), waiting_jobs.clone(), counted.clone());
        let schedules = Schedules { store, keys, waiting_jobs, metrics };
        let (store, keys) = own();
        let groups = Groups { store, keys };
        let (store, keys) = own();
        let retention = Retention { store, keys, options: kept.clone() };
        let (store, keys) = own();
        let deadlines = Deadlines { store, keys, external: external.clone() };
        Passage { machine, schedules, groups, retention, deadlines, turn: Arc::default() }
    }

    /// Starts the services that follow rows for requests and webhooks. Returns the events of all jobs.
    pub fn follow(
        &self,
        rules: &Live<EventRules>,
        current: &Live<Arc<Config>>,
        options: &turnwise_worker::Options,
        services: &mut Services,
    ) -> Events {
        let (store, keys, identities) =
            (self.opened.store.clone(), self.keys.clone(), self.identities.clone());
        let bulk = BulkOperations {
            store: store.clone(),
            keys: keys.clone(),
            identities: identities.clone(),
            node: self.node.clone(),
        };
        services.add("bulk operations", bulk, BulkOperations::run);
        services.add("identities", identities.clone(), Identities::follow);
        let events = Events::new(self.impatient.clone(), keys.clone(), rules.clone());
        services.add("events", events.clone(), Events::run);
        let webhooks = Webhooks {
            store,
            keys,
            node: self.node.clone(),
            identities,
            events: events.clone(),
            rules: rules.clone(),
            client: self.client.clone(),
            config: current.clone(),
            options: options.clone(),
            connections: self.outgoing,
        };
        services.add("webhooks", webhooks, Webhooks::run);
        events
    }

    /// The states of the APIs and the pages.
    pub fn http(&self, built: Built<'_>) -> Http {
        let Built { url, external, current, commands, upstream, indexing, names, events, .. } = built;
        let Built { counted, replicated, stop, passage, checked, .. } = built;
        let client = self.client.clone();
        let web = Arc::new(turnwise_web::Shared {
            store: self.impatient.clone(),
            keys: self.keys.clone(),
            node: self.node.as_str().into(),
            stop,
            config: current,
            external,
            catalogue: checked.catalogue.clone(),
            demand: Trackers::default(),
            identities: self.identities.clone(),
            jwt: checked.jwt.clone(),
            audit: checked.audit.clone(),
            pace: Pace::default(),
            names,
            body_room: Room::default(),
            refused_page: turnwise_pages::refused,
        });
        let counters = (counted, replicated);
        let metrics = Metrics::new(web.clone(), client.clone(), indexing.clone(), counters, PATTERNS);
        let metrics = Arc::new(metrics);
        let api = Arc::new(turnwise_api::AppState {
            web: web.clone(),
            store_url: url,
            accepting: Default::default(),
            workers: Default::default(),
            commands,
            indexing,
            waiting_jobs: Default::default(),
            counts: Pool::new(bulk::COUNTS, bulk::COUNTS_OF_ONE),
            events,
            spans: self.spans.clone(),
        });
        let couch = Arc::new(turnwise_couch::AppState {
            web: web.clone(),
            settings: self.settings.clone(),
            client,
            shared: self.shared.on(self.impatient.clone()),
            upstream,
            metrics: metrics.clone(),
            spans: self.spans.clone(),
            turns: Default::default(),
        });
        Http { web, api, couch, metrics, passage }
    }
}
