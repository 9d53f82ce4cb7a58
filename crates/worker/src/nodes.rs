//! A node's place among the nodes of its store: a worker without room for jobs, whose name no other living node has.
//!
//! A node that was killed leaves its row behind for a health timeout. Whoever starts under the same name on the very listener
//! that it had knows that it is dead. Others cannot tell it from one that lives, so they watch: a living node moves its counter at least twice in a timeout. One that does not is
//! dead, or at least so late that others would soon take it for dead, and its row is removed. If it was only away it finds
//! itself removed, as every worker does, and comes back beside the new one: then two nodes have one name, which is wrong in
//! lists and nowhere else, because no claim, lock or row depends on a node's name.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use turnwise_queue::nodes::{self, NODE_TYPE};
use turnwise_queue::{Error, Health, Keyspace, NodeOptions, Result, clock, workers};
use turnwise_store::Store;

use crate::membership::{check_health_times, new_id, remove_dead, remove_predecessors, row};
use crate::{JobContext, JobHandler, Options, Outcome, Worker};

/// Nodes of its own name that a starting one finds dead, one after the other, at most.
const MAX_NAMESAKES: usize = 10;
/// How much later than it should a living node may move its counter.
const LATE: Duration = Duration::from_secs(1);

/// How a start as a node ended.
pub enum Joined {
    /// It is a node now. Shutting the worker down lets it leave.
    Node(Worker),
    /// A node of this name lives: its id, and where it is reached if it says so.
    NameTaken {
        /// Its worker's id.
        id: String,
        /// Its URL.
        url: Option<String>,
    },
}

/// Becomes a node of the store: `options.node` is its name, and `options.health_interval`, `health_timeout` and `exclusive`
/// count as for every worker. With a patience it
/// gives up when the store does not answer for that long.
///
/// # Errors
/// Those of [`Worker::start`].
pub async fn join_nodes(
    store: &Store,
    keys: &Keyspace,
    options: &Options,
    node: NodeOptions,
    patience: Option<Duration>,
) -> Result<Joined> {
    check_health_times(options.health_interval, options.health_timeout)?;
    let options = Options { max_jobs: 0, node_options: Some(node), ..options.clone() };
    let asked = match patience {
        Some(patience) => store.impatient(patience),
        None => store.clone(),
    };
    // Before anything of this process has a time.
    clock::compare(&asked, keys).await?;
    if options.exclusive {
        remove_predecessors(store, keys, NODE_TYPE, &options).await?;
    }
    let (id, started_us) = new_id(store);
    let own = &row(&id, started_us, &options);
    for _ in 0..MAX_NAMESAKES {
        let namesake = asked
            .transact(|tx| async move {
                // It changes with every node that joins or leaves: of two that come at once one looks again.
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
            let idle = Arc::new(Idle);
            let worker = Worker::registered(store.clone(), keys.clone(), NODE_TYPE, idle, options, id);
            return Ok(Joined::Node(worker));
        };
        let sign = match (&own.node_options, &namesake.node_options) {
            (Some(own), Some(other)) if own.place.is_some() && own.place == other.place => {
                replaced(&asked, keys, &namesake).await?
            }
            _ => sign_of_life(&asked, keys, &namesake).await?,
        };
        match sign {
            Sign::Moved => {
                let url = namesake.node_options.map(|node| node.url);
                return Ok(Joined::NameTaken { id: namesake.id, url });
            }
            Sign::Still(health) => {
                remove_dead(store, keys, NODE_TYPE, &namesake.id, health, options.max_history).await;
            }
            Sign::Gone => {}
        }
    }
    Err(Error::Invalid {
        field: "node",
        problem: format!("{MAX_NAMESAKES} nodes of this name were found dead: choose another one"),
    })
}

enum Sign {
    /// It lives.
    Moved,
    /// It has not moved for as long as a living one may.
    Still(Health),
    /// It has left, or was removed.
    Gone,
}

/// A node whose place this process has taken is dead.
async fn replaced(store: &Store, keys: &Keyspace, node: &workers::Worker) -> Result<Sign> {
    Ok(look(store, keys, &node.id).await?.map_or(Sign::Gone, |(health, _)| Sign::Still(health)))
}

/// Watches a node until it moves, or has stood still for too long.
async fn sign_of_life(store: &Store, keys: &Keyspace, node: &workers::Worker) -> Result<Sign> {
    let Some((health, value)) = look(store, keys, &node.id).await? else { return Ok(Sign::Gone) };
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
        match look(store, keys, &node.id).await? {
            None => return Ok(Sign::Gone),
            Some((_, now)) if now != value => return Ok(Sign::Moved),
            Some(_) if late => return Ok(Sign::Still(health)),
            // A watch may end early.
            Some(_) => {}
        }
    }
}

/// A node's health, as it is and as it is written.
async fn look(store: &Store, keys: &Keyspace, id: &str) -> Result<Option<(Health, Bytes)>> {
    store
        .transact(|tx| async move {
            let Some(health) = workers::health(&tx, keys, NODE_TYPE, id).await? else { return Ok(None) };
            let value = tx.get(&keys.health(NODE_TYPE, id)).await?.unwrap_or_default();
            Ok(Some((health, value)))
        })
        .await
}

/// A node has no room for jobs, so that this is never asked.
struct Idle;

#[async_trait]
impl JobHandler for Idle {
    async fn run(&self, _: JobContext) -> Outcome {
        Outcome::Failed("nodes run no jobs".to_owned())
    }
}
