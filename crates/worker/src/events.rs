//! Changes of the membership, as events for code that divides work by ownership.
//!
//! ```text
//!            start period, quiet               a change
//!  Unstable ─────────────────────▶ Stable(ids) ────────▶ Unstable ──▶ …
//!                                                          │  ▲
//!                                   quiet period, quiet ◀──┘  └── a change: the period starts anew
//! ```
//!
//! Instability is reported immediately, stability only after a quiet period. Moving work costs more than waiting, and
//! workers often start or stop in groups.

use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use md5::{Digest, Md5};
use turnwise_queue::{Error, Keyspace, workers};
use turnwise_store::{Store, Watch};

use crate::times::ERROR_PAUSE;

/// A change of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// The membership has changed, or is not known yet. Members should neither take nor give up work now.
    Unstable,
    /// The membership has not changed for a quiet period. These are the members, sorted by id.
    Stable(Vec<String>),
}

/// The membership changes of a job type, beginning with [`Membership::Unstable`]. The first stable event comes after
/// `start_period` without a change, each later one after `quiet_period` without one.
pub fn membership_events(
    store: Store,
    keys: Keyspace,
    job_type: &str,
    start_period: Duration,
    quiet_period: Duration,
) -> impl Stream<Item = Membership> + Send {
    let events = Events { store, keys, job_type: job_type.to_owned(), quiet_period };
    let begin = (events, Phase::Settling(start_period));
    let later = stream::unfold(begin, move |(events, phase)| async move {
        Some(match phase {
            Phase::Settling(period) => {
                let (version, members) = events.settle(period).await;
                (Membership::Stable(members), (events, Phase::Settled(version)))
            }
            Phase::Settled(version) => {
                events.change(version).await;
                (Membership::Unstable, (events, Phase::Settling(quiet_period)))
            }
        })
    });
    stream::once(ready(Membership::Unstable)).chain(later)
}

/// The member that owns a key, if there are members: the one with the highest hash of member and key. Callers with the
/// same list of members compute the same owner. If a member joins or leaves, only keys that it gains or owned move.
pub fn owner<'a>(members: &'a [String], key: &str) -> Option<&'a str> {
    let weight = |member: &&String| {
        let mut hash = Md5::new();
        hash.update(member.as_bytes());
        hash.update([0]);
        hash.update(key.as_bytes());
        <[u8; 16]>::from(hash.finalize())
    };
    members.iter().max_by_key(weight).map(String::as_str)
}

struct Events {
    store: Store,
    keys: Keyspace,
    job_type: String,
    quiet_period: Duration,
}

enum Phase {
    /// Until nothing has changed for this period.
    Settling(Duration),
    /// Until this version changes.
    Settled(Option<Bytes>),
}

impl Events {
    /// Waits until nothing has changed for a period.
    async fn settle(&self, period: Duration) -> (Option<Bytes>, Vec<String>) {
        let (mut version, mut members) = self.read().await;
        let mut quiet = self.sleep(period);
        loop {
            let changed = self.watch(version.clone()).await;
            tokio::select! {
                biased;
                () = changed => {
                    let (now, now_members) = self.read().await;
                    // A watch may end early.
                    if now != version {
                        (version, members) = (now, now_members);
                        quiet = self.sleep(self.quiet_period);
                    }
                }
                () = &mut quiet => return (version, members),
            }
        }
    }

    /// Waits until the membership's version has changed.
    async fn change(&self, version: Option<Bytes>) {
        loop {
            self.watch(version.clone()).await.await;
            if self.read().await.0 != version {
                return;
            }
        }
    }

    /// Reads version and members in one snapshot.
    async fn read(&self) -> (Option<Bytes>, Vec<String>) {
        let (keys, job_type) = (&self.keys, self.job_type.as_str());
        loop {
            let read = self.store.transact(|tx| async move {
                let version = tx.get(&keys.workers_versionstamp(job_type)).await?;
                let members = workers::list(&tx, keys, job_type).await?;
                Ok::<_, Error>((version, members.into_iter().map(|worker| worker.id).collect()))
            });
            match read.await {
                Ok(read) => return read,
                Err(error) => tracing::error!(%error, "cannot read the membership: tries again"),
            }
            self.sleep(ERROR_PAUSE).await;
        }
    }

    async fn watch(&self, seen: Option<Bytes>) -> Watch {
        match self.store.watch(self.keys.workers_versionstamp(&self.job_type), seen).await {
            Ok(watch) => watch,
            Err(error) => {
                tracing::error!(%error, "cannot watch the membership: tries again soon");
                self.sleep(ERROR_PAUSE)
            }
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let runtime = self.store.runtime().clone();
        Box::pin(async move { runtime.sleep(duration).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_divided_evenly_and_only_keys_that_must_move_do() {
        let members: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let keys: Vec<String> = (0..4_000).map(|n| format!("key {n}")).collect();
        for member in &members {
            let owned = keys.iter().filter(|key| owner(&members, key) == Some(member)).count();
            assert!((900..1_100).contains(&owned), "{member} owns {owned} of 4,000");
        }
        let without_b: Vec<String> = members.iter().filter(|member| *member != "b").cloned().collect();
        for key in &keys {
            let (before, after) = (owner(&members, key), owner(&without_b, key));
            assert!(before == after || before == Some("b"), "{key} moved from {before:?} to {after:?}");
        }
        assert_eq!(owner(&[], "key"), None);
    }
}
