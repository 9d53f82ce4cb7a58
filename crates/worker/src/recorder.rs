//! Records events ([`turnwise_queue::events`]): numbers them, keeps them bounded, and begins and ends the recording.
//!
//! Every node runs this service. The node that has numbered the latest events goes on. Another one takes over if there are events
//! that have waited for a while: then both may number at the same time, and one of them conflicts.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::events::{self, Ordered, Recording};
use turnwise_queue::{Error, Keyspace, Result};
use turnwise_store::{Error as StoreError, Isolation, Store};

use crate::Live;
use crate::service::until_stopped;
use crate::times::{ERROR_PAUSE, duration_us};

/// The shortest time between two passes that number events: so many events share a row.
const PASS_PAUSE: Duration = Duration::from_millis(20);
/// How long events wait for the node that has numbered the latest ones, before another node does it.
const TAKEOVER: Duration = Duration::from_secs(2);
/// The time between two looks at the age of events.
const PRUNE_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two looks whether all nodes record.
const CONFIRM_PAUSE: Duration = Duration::from_millis(30);
/// The most transactions of a pass. The next pass continues.
const MAX_TRANSACTIONS: usize = 1_000;
/// Rows that are dropped per transaction when recording has ended.
const DROPPED: usize = 200;

/// How long and how many events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRules {
    /// How long an event is kept.
    pub keep: Duration,
    /// The most events that are kept.
    pub most: u64,
}

/// Records events on one node.
#[derive(Clone)]
pub struct Recorder {
    /// The store that holds the jobs.
    pub store: Store,
    /// Its keys.
    pub keys: Keyspace,
    /// The node's name.
    pub node: String,
    /// The bounds.
    pub rules: Live<EventRules>,
}

impl Recorder {
    /// Makes this process append events if they are recorded. A node calls it after it has joined, before it changes jobs.
    ///
    /// # Errors
    /// As the store.
    #[boxed]
    pub async fn begin(&self) -> Result<()> {
        let keys = &self.keys;
        let recording = self.store.transact(|tx| async move { events::recording(&tx, keys).await }).await?;
        self.follow(&recording).await
    }

    /// Records until it is stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        until_stopped(stop, async move {
            let mut pruned_us = i64::MIN;
            loop {
                if let Err(error) = self.work(&mut pruned_us).await {
                    tracing::warn!(%error, "cannot record events: tries again soon");
                    self.store.runtime().sleep(ERROR_PAUSE).await;
                }
            }
        })
    }

    /// Does what the recording needs now, and waits until it needs something else.
    async fn work(&self, pruned_us: &mut i64) -> Result<()> {
        let (store, keys) = (&self.store, &self.keys);
        let tx = store.begin().await?;
        let seen = tx.get_with(&keys.event_recording(), Isolation::Snapshot).await?;
        let recording = events::recording(&tx, keys).await?;
        drop(tx);
        self.follow(&recording).await?;
        let changed = store.watch(keys.event_recording(), seen).await?;
        if !recording.is_on() {
            while store.transact(|tx| async move { events::drop_unordered(&tx, keys, DROPPED).await }).await?
                == DROPPED
            {}
            changed.await;
            return Ok(());
        }
        let recorded = async {
            if recording.from.is_none() {
                self.confirm().await?;
            }
            self.number(pruned_us).await
        };
        tokio::select! {
            biased;
            () = changed => Ok(()),
            recorded = recorded => recorded,
        }
    }

    /// Appends events or not, as the row says, and says so.
    async fn follow(&self, recording: &Recording) -> Result<()> {
        if !recording.is_on() {
            self.store.append_no_longer();
            return Ok(());
        }
        self.store.append_from_now_on().await;
        let (keys, node) = (&self.keys, &self.node);
        self.store
            .transact(|tx| async move {
                let known = tx.get_with(&keys.event_node(node), Isolation::Snapshot).await?;
                if known.as_deref() != Some(recording.number.to_string().as_bytes()) {
                    events::acknowledge(&tx, keys, node, recording)?;
                }
                Ok::<_, Error>(())
            })
            .await
    }

    /// Waits until all nodes record.
    async fn confirm(&self) -> Result<()> {
        let keys = &self.keys;
        loop {
            let recording = self.store.transact(|tx| async move { events::confirm(&tx, keys).await }).await?;
            if recording.from.is_some() || !recording.is_on() {
                return Ok(());
            }
            self.store.runtime().sleep(CONFIRM_PAUSE).await;
        }
    }

    /// Numbers events as they come. Returns after an error.
    async fn number(&self, pruned_us: &mut i64) -> Result<()> {
        let (store, keys) = (&self.store, &self.keys);
        loop {
            let tx = store.begin().await?;
            let seen = tx.get_with(&keys.event_wake(), Isolation::Snapshot).await?;
            let head = events::head(&tx, keys).await?;
            drop(tx);
            if head.node != self.node && !head.node.is_empty() {
                self.wait_for(&head, pruned_us).await?;
            }
            self.pass().await?;
            self.prune(pruned_us).await?;
            store.runtime().sleep(PASS_PAUSE).await;
            let woken = store.watch(keys.event_wake(), seen).await?;
            tokio::select! {
                () = woken => {}
                () = store.runtime().sleep(PRUNE_INTERVAL) => {}
            }
        }
    }

    /// Leaves it to another node to number events, as long as it does.
    async fn wait_for(&self, head: &events::Head, pruned_us: &mut i64) -> Result<()> {
        let mut known = head.clone();
        loop {
            self.store.runtime().sleep(TAKEOVER).await;
            // The other node may be dead, and no events may come.
            self.prune(pruned_us).await?;
            let tx = self.store.begin().await?;
            let head = events::head(&tx, &self.keys).await?;
            let (begin, end) = self.keys.events_in();
            let read = turnwise_store::RangeRead { begin, end, limit: 1, reverse: false };
            let waits = !tx.range_with(read, Isolation::Snapshot).await?.is_empty();
            if waits && head == known {
                return Ok(());
            }
            known = head;
        }
    }

    /// Numbers all events that are there.
    async fn pass(&self) -> Result<()> {
        let (store, keys) = (&self.store, &self.keys);
        for _ in 0..MAX_TRANSACTIONS {
            let tx = store.begin().await?;
            let mut next = events::head(&tx, keys).await?.next;
            let rows = events::collect(&tx, keys).await?;
            drop(tx);
            let mut rest = &rows[..];
            if rest.is_empty() {
                return Ok(());
            }
            while !rest.is_empty() {
                let tx = store.begin().await?;
                let ordered = events::order(&tx, keys, rest, next, &self.node).await?;
                let Ordered::Moved { rows, next: after } = ordered else { break };
                match tx.commit().await {
                    Ok(_) => (rest, next) = (&rest[rows..], after),
                    // Another node has numbered them, or it is unknown whether this one has.
                    Err(StoreError::Conflict | StoreError::UnknownOutcome(_)) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Removes old events, and ends the recording if nobody has asked for events for long.
    async fn prune(&self, pruned_us: &mut i64) -> Result<()> {
        let (store, keys) = (&self.store, &self.keys);
        let elapsed_us = store.runtime().elapsed_us();
        if elapsed_us < pruned_us.saturating_add(duration_us(PRUNE_INTERVAL)) {
            return Ok(());
        }
        *pruned_us = elapsed_us;
        let EventRules { keep, most } = self.rules.get();
        let now_us = store.runtime().now_us();
        if store.transact(|tx| async move { events::end(&tx, keys, now_us).await }).await? {
            return Ok(());
        }
        let before_us = now_us.saturating_sub(duration_us(keep));
        for _ in 0..MAX_TRANSACTIONS {
            let pruned =
                store.transact(|tx| async move { events::prune(&tx, keys, before_us, most).await }).await?;
            if pruned == 0 {
                break;
            }
        }
        Ok(())
    }
}
