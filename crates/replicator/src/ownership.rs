//! Ownership: which node does the work that only one node should do for a key.
//!
//! Nodes with the same members agree on every owner. A member that joins or leaves moves only the keys that it gains or
//! had ([`turnwise_worker::owner`]). Between two memberships, ownership does not change: [`Ownership::is_mine`] uses
//! the last stable membership. Two nodes may still own a key for a moment, because one sees the new members before the
//! other. All work by ownership must therefore be idempotent. Members are node names, so that a node that restarts gets
//! its keys back.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turnwise_queue::{Keyspace, NODE_TYPE, NodeOptions, nodes};
use turnwise_store::Store;
use turnwise_worker::{Membership, membership_events, owner};

use crate::waits::tried;

/// How long the membership must be unchanged before it counts as stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// After the start of this node: `[replicator] cluster_start_period`.
    pub start: Duration,
    /// After a change: `[replicator] cluster_quiet_period`.
    pub quiet: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Periods { start: Duration::from_secs(5), quiet: Duration::from_secs(60) }
    }
}

/// One node's view of the ownership. Clones are cheap and share the same state.
#[derive(Debug, Clone)]
pub struct Ownership {
    node: String,
    /// The members of the last stable membership, sorted; `None` before the first.
    members: watch::Sender<Option<Vec<String>>>,
}

impl Ownership {
    /// The ownership of the node with this name. It owns nothing before [`run`](Ownership::run) has found a stable membership.
    pub fn new(node: impl Into<String>) -> Self {
        Ownership { node: node.into(), members: watch::Sender::new(None) }
    }

    /// Whether this node owns a key, by the last stable membership.
    pub fn is_mine(&self, key: &str) -> bool {
        self.members.borrow().as_ref().is_some_and(|members| owner(members, key) == Some(&self.node))
    }

    /// The members of each new stable membership.
    pub fn changes(&self) -> watch::Receiver<Option<Vec<String>>> {
        self.members.subscribe()
    }

    /// Sets these members as a stable membership.
    pub fn settle(&self, mut members: Vec<String>) {
        members.sort_unstable();
        members.dedup();
        self.members.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&members);
            *current = Some(members);
            changed
        });
    }

    /// Follows the membership of the nodes that `counts` counts, until `stop` is cancelled.
    pub async fn run(
        &self,
        store: &Store,
        keys: &Keyspace,
        counts: fn(&NodeOptions) -> bool,
        periods: Periods,
        stop: CancellationToken,
    ) {
        let follow = async {
            let Periods { start, quiet } = periods;
            let mut changes = pin!(membership_events(store.clone(), keys.clone(), NODE_TYPE, start, quiet));
            while let Some(membership) = changes.next().await {
                if let Membership::Stable(_) = membership {
                    self.settle(self.read(store, keys, counts).await);
                }
            }
        };
        stop.run_until_cancelled(follow).await;
    }

    /// The names of the nodes that count, including this one: this node is alive, even if other nodes have removed it.
    async fn read(&self, store: &Store, keys: &Keyspace, counts: fn(&NodeOptions) -> bool) -> Vec<String> {
        let nodes = tried(store, "cannot read the nodes", |tx| async move { nodes::list(&tx, keys).await });
        let counted = nodes.await.into_iter().filter(|node| node.node_options.as_ref().is_some_and(counts));
        counted.map(|node| node.node).chain([self.node.clone()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_owns_nothing_before_it_knows_the_members_and_shares_with_them_then() {
        let (a, b) = (Ownership::new("a"), Ownership::new("b"));
        let keys: Vec<String> = (0..100).map(|n| format!("db {n}")).collect();
        assert!(!keys.iter().any(|key| a.is_mine(key)));
        a.settle(vec!["a".into()]);
        assert!(keys.iter().all(|key| a.is_mine(key)));
        for one in [&a, &b] {
            one.settle(vec!["b".into(), "a".into(), "b".into()]);
        }
        assert!(keys.iter().all(|key| a.is_mine(key) != b.is_mine(key)));
        let mine = keys.iter().filter(|key| a.is_mine(key)).count();
        assert!((25..75).contains(&mine), "{mine} of 100");
    }
}
