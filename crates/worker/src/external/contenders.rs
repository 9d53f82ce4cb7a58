//! The nodes that claim from the same queue, and this node's shard among them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

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
        let ttl_us = duration_us(self.options.health_interval);
        if let Some(names) = self.contenders.known(job_type, now_us, ttl_us) {
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
        self.account(job_type).fair.set_members(all);
        let names = self.contenders.learn(job_type, now_us, names);
        Ok(Shard::new(&names, &me, now_us))
    }
}

/// The contenders for each type's queue, as recently read.
#[derive(Default)]
pub(super) struct Contenders {
    by_type: Mutex<BTreeMap<String, CachedNames>>,
}

/// When they were read, in µs, and their names.
type CachedNames = (i64, Arc<[String]>);

/// The maximum number of types with remembered contenders; beyond it, they are read more often.
const MAX_KNOWN_TYPES: usize = 1_000;

impl Contenders {
    fn known(&self, job_type: &str, now_us: i64, ttl_us: i64) -> Option<Arc<[String]>> {
        let by_type = lock(&self.by_type);
        let (read_us, names) = by_type.get(job_type)?;
        // A clock that was set back makes the entry old, too.
        (0..ttl_us).contains(&now_us.saturating_sub(*read_us)).then(|| names.clone())
    }

    fn learn(&self, job_type: &str, now_us: i64, names: Vec<String>) -> Arc<[String]> {
        let names: Arc<[String]> = names.into();
        let mut by_type = lock(&self.by_type);
        if by_type.len() >= MAX_KNOWN_TYPES {
            by_type.clear();
        }
        by_type.insert(job_type.to_owned(), (now_us, names.clone()));
        names
    }
}
