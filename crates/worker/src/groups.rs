//! Ends groups: adds the jobs with which they call back, after the last of their jobs has ended.
//!
//! *Model.* Each end of a job of a group changes the group's mark ([`turnwise_queue::groups`]). Every server watches the marks together, and looks at the groups whose
//! marks are others than at its last look. A look costs two reads, however many jobs the group has. No server leads: two that end the same group conflict, and the
//! second one finds that it has ended. A server that starts looks at all groups that have not ended.
//!
//! *Turns.* A tenant may have thousands of groups that end at the same time. So a pass looks at a part of those of each tenant, some at the same time, in
//! turns of the tenants, and the next pass goes on behind them. Others wait for one pass.
//!
//! *Pauses.* While jobs of groups end all the time, a server looks at most every [`PAUSE`], and spends at most a tenth of its time on it, but pauses no longer
//! than [`LONGEST_PAUSE`]. So a group ends soon after its last job.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use turnwise_queue::groups::{self, Marked, Settled};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Isolation, Store, Transaction, Watch};

use crate::service::{keep_up, until_stopped};

/// The shortest pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause is so many times as long as the look before it.
const PAUSES: u32 = 9;
/// The longest pause between two looks: all tenants wait for it.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The maximum number of marks that one read returns.
const PAGE: usize = 1_000;
/// How many groups one pass looks at, at least one of each tenant: on etcd, where an end takes 5 ms, a pass takes 160 ms.
const LOOKS: usize = 500;
/// How many groups it looks at at the same time.
const AT_ONCE: usize = 16;
/// The maximum number of groups that one transaction removes.
const BATCH: usize = 50;
/// The maximum number of such transactions in one pass.
const BATCHES: usize = 10;

/// Ends and removes groups.
#[derive(Clone)]
pub struct Groups {
    /// The store.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
}

/// What is known from the last look.
#[derive(Default)]
pub(crate) struct Seen {
    /// The stamps of the groups, by tenant and name.
    stamps: HashMap<(String, String), Bytes>,
    /// The last group that was looked at of a tenant with more of them.
    turns: HashMap<String, String>,
}

impl Seen {
    /// Which of these groups to look at, and in which order. Keeps the stamps of those that have not changed. Returns also whether others are left.
    fn due(&mut self, marked: Vec<Marked>) -> (Vec<Marked>, bool) {
        let mut stamps = HashMap::with_capacity(marked.len());
        let mut changed: BTreeMap<String, Vec<Marked>> = BTreeMap::new();
        for mark in marked {
            let of = (mark.tenant.clone(), mark.name.clone());
            match self.stamps.remove(&of) {
                Some(stamp) if stamp == mark.stamp => drop(stamps.insert(of, stamp)),
                _ => changed.entry(mark.tenant.clone()).or_default().push(mark),
            }
        }
        self.stamps = stamps;
        let most = (LOOKS / changed.len().max(1)).max(1);
        let (mut turns, mut due) = (HashMap::new(), Vec::new());
        for (tenant, mut of_tenant) in changed {
            if of_tenant.len() > most {
                // They are sorted by name.
                let last = self.turns.get(&tenant);
                let next = last.map_or(0, |last| of_tenant.partition_point(|mark| mark.name <= *last));
                of_tenant.rotate_left(next);
                of_tenant.truncate(most);
                turns.extend(of_tenant.last().map(|last| (tenant, last.name.clone())));
            }
            due.extend(of_tenant.into_iter().enumerate());
        }
        self.turns = turns;
        // One of each tenant, and then another one of each.
        due.sort_by_key(|(turn, _)| *turn);
        (due.into_iter().map(|(_, mark)| mark).collect(), !self.turns.is_empty())
    }
}

impl Groups {
    /// Ends and removes groups until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let seen = Mutex::new(Seen::default());
            keep_up(&self.store, "cannot end groups", || self.pass(&seen)).await;
        })
    }

    /// Looks at groups whose marks have changed, and removes those whose time is over. Returns a watch that ends when there may be more.
    pub(crate) async fn pass(&self, seen: &Mutex<Seen>) -> Result<Watch> {
        let (keys, runtime) = (&self.keys, self.store.runtime().clone());
        let begun_us = runtime.elapsed_us();
        let wake = &keys.group_wake();
        // The stamp is read first: a change after this read changes it.
        let stamp = self.store.transact(|tx| async move { tx.get_with(wake, Isolation::Snapshot).await });
        let stamp = stamp.await?;
        let looked = self.look(&mut *seen.lock().await).await;
        let next_us = self.prune(runtime.now_us()).await?;
        let is_left = looked?;
        let changed = self.store.watch(wake.clone(), stamp).await?;
        let took_us = u64::try_from(runtime.elapsed_us().saturating_sub(begun_us)).unwrap_or(0);
        let pause = (Duration::from_micros(took_us) * PAUSES).clamp(PAUSE, LONGEST_PAUSE);
        Ok(Box::pin(async move {
            let due = async {
                match next_us {
                    _ if is_left => {}
                    Some(next_us) => runtime.sleep_until(next_us).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = due => {}
            }
            runtime.sleep(pause).await;
        }))
    }

    /// Looks at a part of the groups that have changed. Returns whether others are left.
    async fn look(&self, seen: &mut Seen) -> Result<bool> {
        let keys = &self.keys;
        let mut marked: Vec<Marked> = Vec::new();
        loop {
            let after = marked.last();
            let read = |tx: Transaction| async move { groups::marked(&tx, keys, after, PAGE).await };
            let page = self.store.transact(read).await?;
            let is_last = page.len() < PAGE;
            marked.extend(page);
            if is_last {
                break;
            }
        }
        let (due, is_left) = seen.due(marked);
        let looks: Vec<_> = due.into_iter().map(|mark| self.settle(mark)).collect();
        let looked: Vec<_> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        let mut failed = None;
        for settled in looked {
            match settled {
                Ok(Marked { tenant, name, stamp }) => drop(seen.stamps.insert((tenant, name), stamp)),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(is_left), Err)
    }

    async fn settle(&self, mark: Marked) -> Result<Marked> {
        let (keys, Marked { tenant, name, .. }) = (&self.keys, &mark);
        let now_us = self.store.runtime().now_us();
        let settle = |tx: Transaction| async move { groups::settle(&tx, keys, tenant, name, now_us).await };
        let Settled { called, ended } = self.store.transact(settle).await?;
        for called in called {
            if let Some(problem) = called.refused {
                tracing::warn!(
                    tenant,
                    group = name,
                    problem,
                    "cannot add the job with which a group calls back"
                );
            }
        }
        if ended.is_some() {
            tracing::debug!(tenant, group = name, "a group has ended");
        }
        Ok(mark)
    }

    /// Removes groups whose time is over. Returns when the next one is removed.
    async fn prune(&self, now_us: i64) -> Result<Option<i64>> {
        let keys = &self.keys;
        let mut batches = 0;
        loop {
            let read = |tx: Transaction| async move { groups::next_removal(&tx, keys).await };
            let next_us = self.store.transact(read).await?;
            if batches == BATCHES || next_us.is_none_or(|next_us| next_us > now_us) {
                return Ok(next_us);
            }
            let prune = |tx: Transaction| async move { groups::prune(&tx, keys, now_us, BATCH).await };
            self.store.transact(prune).await?;
            batches += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(tenant: &str, name: &str, stamp: u8) -> Marked {
        Marked { tenant: tenant.to_owned(), name: name.to_owned(), stamp: vec![stamp].into() }
    }

    /// Looks at what is due. Returns it.
    fn look(seen: &mut Seen, marked: &[Marked]) -> (Vec<Marked>, bool) {
        let (due, is_left) = seen.due(marked.to_vec());
        for Marked { tenant, name, stamp } in due.clone() {
            seen.stamps.insert((tenant, name), stamp);
        }
        (due, is_left)
    }

    #[test]
    fn a_tenant_with_many_groups_leaves_turns_to_others() {
        let mut seen = Seen::default();
        let mut marked: Vec<Marked> = (0..LOOKS).map(|n| mark("a", &format!("{n:05}"), 0)).collect();
        marked.push(mark("b", "g", 0));
        let (due, is_left) = look(&mut seen, &marked);
        assert!(is_left && due.len() == LOOKS / 2 + 1);
        assert_eq!(due[1], mark("b", "g", 0), "it waits for no more than one");
        // Those that change all the time do not keep the others of their tenant from their turns.
        marked.iter_mut().for_each(|mark| mark.stamp = vec![1].into());
        let (due, _) = look(&mut seen, &marked);
        assert_eq!(due[0].name, format!("{:05}", LOOKS / 2));
        // What has not changed since is not looked at.
        look(&mut seen, &marked);
        assert_eq!(look(&mut seen, &marked), (Vec::new(), false));
    }
}
