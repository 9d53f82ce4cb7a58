//! The nodes that claim from the same queue, and this node's shard among them.

use turnwise_policy::contention::{MAX_CONTENDERS, Shard};
use turnwise_queue::{Result, workers};

use super::External;
use crate::sync::lock;
use crate::times::duration_us;

impl External {
    /// This node's current part of the head of the queue.
    pub(super) async fn shard(&self, job_type: &str) -> Result<Shard> {
        let now_us = self.store.runtime().now_us();
        let me = workers::node_contender(&self.options.node);
        let account = self.account(job_type);
        // A clock that was set back makes what is known old, too.
        let is_recent = |read_us: i64| {
            (0..duration_us(self.options.health_interval)).contains(&now_us.saturating_sub(read_us))
        };
        let known = lock(&account.contenders).clone();
        if let Some((_, names)) = known.filter(|(read_us, _)| is_recent(*read_us)) {
            return Ok(Shard::new(&names, &me, now_us));
        }
        let tx = self.store.begin().await?;
        let found = workers::contenders(&tx, &self.keys, job_type, MAX_CONTENDERS).await?;
        let workers::Contenders { mut names, mut members } = found;
        if let Err(place) = names.binary_search(&me) {
            // The workers have registered at another node, or there are too many contenders to read this node's entry.
            names.insert(place, me.clone());
        }
        members.push(me.clone());
        let all = (members.len() < MAX_CONTENDERS).then(|| members.into_iter().collect());
        account.fair.set_members(all);
        let shard = Shard::new(&names, &me, now_us);
        *lock(&account.contenders) = Some((now_us, names.into()));
        Ok(shard)
    }
}
