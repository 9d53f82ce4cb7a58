//! A node's membership among the nodes of its store: a worker without slots, whose name no other live node has.
//!
//! The row of a killed node stays for a health timeout. A process that starts under the same name on the same listener
//! knows that the old node is dead. Any other process must watch the old node's health counter: a live node increments
//! it at least twice in a timeout. If the counter does not move, the node is dead, or so late that its neighbours would
//! soon remove it. The starting process then removes its row.
//!
//! If the old node was only unreachable, it detects that it was removed, and registers again under the same name. Two
//! nodes then have one name. Only lists show this: no claim, lock or row depends on a node's name.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use turnwise_queue::nodes::{self, NODE_TYPE};
use turnwise_queue::{Error, Health, Keyspace, NodeOptions, Result, clock, workers};
use turnwise_store::Store;

use crate::membership::{Leaving, check_health_times, new_id, remove_predecessors, row};
use crate::{Options, Outcome, Tunables, Worker, handler_fn};

/// The maximum number of dead nodes of the same name that a starting node removes.
const MAX_NAMESAKES: usize = 10;
/// How late a live node may increment its counter.
const LATE: Duration = Duration::from_secs(1);

/// The result of starting as a node.
pub enum Joined {
    /// It is a node now. To leave, shut the worker down.
    Node(Worker),
    /// A live node has this name: its id, and its URL if it publishes one.
    NameTaken {
        /// Its worker's id.
        id: String,
        /// Its URL.
        url: Option<String>,
    },
}

/// Registers a node of the store under the name `options.node`. The options `health_interval`, `health_timeout` and
/// `exclusive` apply as to every worker. If `patience` is given and the store does not answer for that long, this
/// fails.
///
/// # Errors
/// Those of [`Worker::start`].
pub fn join_nodes<'a>(
    store: &'a Store,
    keys: &'a Keyspace,
    options: &'a Options,
    node: NodeOptions,
    patience: Option<Duration>,
) -> BoxFuture<'a, Result<Joined>> {
    // Boxed, so that the crates that await it do not compile it again.
    Box::pin(async move {
        check_health_times(options.health_interval, options.health_timeout)?;
        let tunables = Tunables { max_jobs: 0, bounds: None, ..options.tunables.clone() };
        let options = Options { node_options: Some(node), tunables, ..options.clone() };
        let bounded_store = match patience {
            Some(patience) => store.impatient(patience),
            None => store.clone(),
        };
        // The clock is set before this process uses any time.
        clock::compare(&bounded_store, keys).await?;
        if options.exclusive {
            remove_predecessors(store, keys, NODE_TYPE, &options).await?;
        }
        let (id, started_us) = new_id(store);
        let own = &row(&id, started_us, &options);
        for _ in 0..MAX_NAMESAKES {
            let namesake = bounded_store
                .transact(|tx| async move {
                    // This key changes with every node that joins or leaves: of two concurrent starts, one is repeated.
                    tx.get(&keys.workers_versionstamp(NODE_TYPE)).await?;
                    let all = nodes::list(&tx, keys).await?;
                    // Its own row is there after an attempt of unknown outcome.
                    match all.into_iter().find(|other| other.node == own.node && other.id != own.id) {
                        Some(other) => Ok(Some(other)),
                        None => workers::register(&tx, keys, NODE_TYPE, own).map(|()| None),
                    }
                })
                .await?;
            let Some(namesake) = namesake else {
                // Never called, because a node has no slots.
                let idle =
                    Arc::new(handler_fn(|_| async { Outcome::Failed("nodes run no jobs".to_owned()) }));
                let worker = Worker::registered(store.clone(), keys.clone(), NODE_TYPE, idle, options, id);
                return Ok(Joined::Node(worker));
            };
            let liveness = match (&own.node_options, &namesake.node_options) {
                (Some(own), Some(other)) if own.place.is_some() && own.place == other.place => {
                    // This process replaces it.
                    let health = read_health(&bounded_store, keys, &namesake.id).await?;
                    health.map_or(Liveness::Gone, |(health, _)| Liveness::Dead(health))
                }
                _ => watch_liveness(&bounded_store, keys, &namesake).await?,
            };
            match liveness {
                Liveness::Alive => {
                    let url = namesake.node_options.map(|node| node.url);
                    return Ok(Joined::NameTaken { id: namesake.id, url });
                }
                Liveness::Dead(health) => {
                    let (max_history, spans) = (options.tunables.max_history, &options.spans);
                    let (job_type, worker) = (NODE_TYPE, namesake.id.as_str());
                    let dead = Leaving { store, keys, job_type, worker, max_history, spans };
                    dead.remove_dead(health, &options.metrics, |_| ()).await;
                }
                Liveness::Gone => {}
            }
        }
        Err(Error::Invalid {
            field: "node",
            problem: format!("{MAX_NAMESAKES} nodes of this name were found dead: choose another one"),
        })
    })
}

/// The state of another node of the same name.
enum Liveness {
    /// Its counter has moved: it lives.
    Alive,
    /// Its counter has not moved for longer than a live node's counter stays unchanged.
    Dead(Health),
    /// It has left, or was removed.
    Gone,
}

/// Watches a node until its counter moves, or has not moved for too long.
async fn watch_liveness(store: &Store, keys: &Keyspace, node: &workers::Worker) -> Result<Liveness> {
    let Some((health, value)) = read_health(store, keys, &node.id).await? else { return Ok(Liveness::Gone) };
    // Its interval is at most half of its timeout.
    let interval = Duration::from_micros(u64::try_from(health.timeout_us / 2).unwrap_or(0));
    tracing::info!(
        node = node.node,
        "a node of this name was here: waits up to {:?} to see whether it lives",
        interval + LATE
    );
    let mut deadline = pin!(store.runtime().sleep(interval + LATE));
    loop {
        let moved = store.watch(keys.health(NODE_TYPE, &node.id), Some(value.clone())).await?;
        let late = tokio::select! {
            biased;
            () = moved => false,
            () = &mut deadline => true,
        };
        match read_health(store, keys, &node.id).await? {
            None => return Ok(Liveness::Gone),
            Some((_, now)) if now != value => return Ok(Liveness::Alive),
            Some(_) if late => return Ok(Liveness::Dead(health)),
            // A watch may end early.
            Some(_) => {}
        }
    }
}

/// A node's health, decoded and as stored.
async fn read_health(store: &Store, keys: &Keyspace, id: &str) -> Result<Option<(Health, Bytes)>> {
    store
        .transact(|tx| async move {
            let Some(health) = workers::health(&tx, keys, NODE_TYPE, id).await? else { return Ok(None) };
            let value = tx.get(&keys.health(NODE_TYPE, id)).await?.unwrap_or_default();
            Ok(Some((health, value)))
        })
        .await
}
