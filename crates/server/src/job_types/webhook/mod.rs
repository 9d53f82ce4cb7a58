//! Webhooks: they are sent events (`docs/design/events-and-webhooks.md`).
//!
//! ```text
//!   numbered events ──▶ wake: which webhooks want one ──▶ jobs of type `webhook` ──▶ deliver: POST, then move the position
//! ```
//!
//! Every node runs this service. As long as a webhook is enabled, it keeps events recorded, runs a worker for the jobs, and looks
//! whether identities are gone. Without webhooks it waits for the first one, and costs nothing.

mod deliver;
mod hosts;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_api::event_log::Events;
use turnwise_config::Config;
use turnwise_outbound::Client;
use turnwise_policy::backoff;
use turnwise_queue::webhooks::{self, JOB_TYPE, MAX_WEBHOOKS, Webhook};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Isolation, Store};
use turnwise_web::access::{Identities, caller_now};
use turnwise_worker::{EventRules, Live, Options, Tunables, Worker};

use self::deliver::Deliverer;
use self::wake::Woken;

/// The part of a node's connections that deliveries may have: one in so many.
const PART_OF_CONNECTIONS: usize = 4;
/// The longest backoff, half an hour, unless the first one is longer. Longer ones would cost events, which are kept for a day.
const LONGEST_BACKOFF_US: i64 = 32 * 60 * 1_000_000;
/// The longest time between two looks at the identities, and two requests to go on recording.
const LONGEST_LOOK: Duration = Duration::from_secs(20);
/// The pause after an error of the store.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// The service of one node.
#[derive(Clone)]
pub(crate) struct Webhooks {
    pub store: Store,
    pub keys: Keyspace,
    /// This node's name.
    pub node: String,
    pub identities: Identities,
    pub events: Events,
    pub rules: Live<EventRules>,
    /// The connections, which know the egress rules.
    pub client: Client,
    /// The current configuration.
    pub config: Live<Arc<Config>>,
    /// The settings of the worker that do not change.
    pub options: Options,
    /// The most connections of this node to other servers.
    pub connections: usize,
}

/// What a node remembers between two looks.
#[derive(Default)]
struct State {
    worker: Option<Worker>,
    woken: Woken,
}

impl Webhooks {
    /// Delivers until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        let mut state = State::default();
        let work = async {
            loop {
                if let Err(error) = self.work(&mut state).await {
                    tracing::warn!(%error, "cannot deliver to webhooks: tries again soon");
                    self.store.runtime().sleep(ERROR_PAUSE).await;
                }
            }
        };
        stop.run_until_cancelled(work).await;
        if let Some(worker) = state.worker.take() {
            worker.shutdown().await;
        }
    }

    /// Does what the webhooks need now, until something else may be needed.
    async fn work(&self, state: &mut State) -> Result<()> {
        let (store, keys) = (&self.store, &self.keys);
        let tx = store.begin().await?;
        let seen = tx.get_with(&keys.webhooks_versionstamp(), Isolation::Snapshot).await?;
        let all = webhooks::list(&tx, keys).await?;
        drop(tx);
        let changed = store.watch(keys.webhooks_versionstamp(), seen).await?;
        let enabled: Vec<Webhook> =
            all.into_iter().map(|(webhook, _)| webhook).filter(|webhook| webhook.enabled).collect();
        if enabled.is_empty() {
            state.woken = Woken::default();
            if let Some(worker) = state.worker.take() {
                worker.shutdown().await;
            }
            changed.await;
            return Ok(());
        }
        self.keep_worker(state).await?;
        self.events.renew().await?;
        let looks = async {
            self.disable_orphans(&enabled).await?;
            store.runtime().sleep((self.rules.get().keep / 4).min(LONGEST_LOOK)).await;
            Ok(())
        };
        tokio::select! {
            biased;
            () = changed => Ok(()),
            looked = looks => looked,
            woken = self.wake(&enabled, &mut state.woken) => woken,
        }
    }

    /// Starts the worker, or tells it the current settings.
    async fn keep_worker(&self, state: &mut State) -> Result<()> {
        let tunables = self.tunables();
        if let Some(worker) = &state.worker {
            worker.tunables().set(tunables);
            return Ok(());
        }
        let slots = tunables.max_jobs;
        let options = Options { tunables, ..self.options.clone() };
        let (store, keys) = (self.store.clone(), self.keys.clone());
        let (identities, client) = (self.identities.clone(), self.client.clone());
        let handler = Deliverer::new(store.clone(), keys.clone(), identities, client, slots);
        let handler = Arc::new(handler);
        state.worker = Some(Worker::start(store, keys, JOB_TYPE, handler, options).await?);
        Ok(())
    }

    /// The current settings of the worker.
    fn tunables(&self) -> Tunables {
        let (config, queue) = (self.config.get(), &self.options.tunables.queue);
        let tunables = super::tunables(&config, queue, JOB_TYPE, slots(self.connections));
        let most = (LONGEST_BACKOFF_US / tunables.backoff.base_us.max(1)).max(1).ilog2();
        let max_exponent = tunables.backoff.max_exponent.min(most);
        Tunables { backoff: backoff::Rules { max_exponent, ..tunables.backoff }, ..tunables }
    }

    /// Disables the webhooks whose identities are gone.
    async fn disable_orphans(&self, enabled: &[Webhook]) -> Result<()> {
        let tx = self.store.begin().await?;
        for webhook in enabled {
            let (by, scopes) = (webhook.by.as_deref(), &webhook.scopes);
            if caller_now(&self.identities, &tx, &self.keys, by, scopes).await?.is_none() {
                disable(&self.store, &self.keys, webhook, GONE).await?;
            }
        }
        Ok(())
    }
}

/// How many webhooks a node delivers to at the same time: all that a store can have, if there are connections for them. A delivery costs a
/// connection and up to 64 kB, and waits most of its time. So no webhook waits for the target of another one.
fn slots(connections: usize) -> usize {
    (connections / PART_OF_CONNECTIONS).clamp(1, MAX_WEBHOOKS)
}

/// Why a webhook without its identity is disabled.
const GONE: &str =
    "its identity is gone, or has expired: write the webhook again, with its secret, as another one";

async fn disable(store: &Store, keys: &Keyspace, webhook: &Webhook, reason: &str) -> Result<()> {
    let disabled =
        store.transact(|tx| async move { webhooks::disable(&tx, keys, webhook, reason).await }).await?;
    if disabled {
        tracing::warn!(webhook = %webhook.id, "a webhook is disabled: {reason}");
    }
    Ok(())
}
