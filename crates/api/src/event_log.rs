//! The events of all jobs, for the streams of this process.
//!
//! One reader follows the numbered events in the store ([`turnwise_queue::events`]) and keeps the latest ones in memory. Each stream
//! has a position, and takes its events from there. A stream that is further behind reads from the store by itself until it has
//! caught up. So a slow reader occupies no memory, and is ended only when its events are gone from the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use turnwise_queue::events::{self, JobEvent, Page, Recording, Row};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::{Error as StoreError, Isolation, Store};
use turnwise_web::counted::{Counted, Numbers};
use turnwise_worker::{EventRules, Live};

/// The most streams of this process.
const MAX_STREAMS: u64 = 500;
/// The most streams of one identity.
const MAX_STREAMS_OF_ONE: u64 = 20;
/// The most bytes of events that are kept in memory.
const RING_BYTES: usize = 8 << 20;
/// Rows per read of the reader, and of a stream that is behind.
const READER_ROWS: usize = 20;
const STREAM_ROWS: usize = 2;
/// Streams that read from the store at the same time.
const READERS: usize = 4;
/// The longest time between two requests to go on recording.
const LONGEST_RENEWAL: Duration = Duration::from_secs(60);
/// The time between two looks whether all nodes record.
const BEGIN_PAUSE: Duration = Duration::from_millis(20);
/// How long a request waits until all nodes record. A node that has died is removed within this time.
const BEGIN_TIME: Duration = Duration::from_secs(30);
/// The pause after an error of the store.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// An event in memory.
#[derive(Debug)]
pub struct Known {
    /// Its number.
    pub number: u64,
    /// What happened.
    pub event: JobEvent,
    /// The same as JSON.
    pub json: Bytes,
}

/// Consecutive events, shared by all streams.
pub type Batch = Arc<[Known]>;

/// The latest events.
#[derive(Default)]
struct Ring {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The number of the next event.
    next: u64,
}

impl Ring {
    fn first(&self) -> u64 {
        self.batches.front().and_then(|batch| batch.first()).map_or(self.next, |event| event.number)
    }

    fn push(&mut self, batch: Batch) {
        let Some(last) = batch.last() else { return };
        self.next = last.number + 1;
        self.bytes += size(&batch);
        self.batches.push_back(batch);
        while self.bytes > RING_BYTES
            && self.batches.len() > 1
            && let Some(oldest) = self.batches.pop_front()
        {
            self.bytes -= size(&oldest);
        }
    }

    fn begin_at(&mut self, next: u64) {
        *self = Ring { next, ..Ring::default() };
    }
}

fn size(batch: &Batch) -> usize {
    batch.iter().map(|event| event.json.len() + std::mem::size_of::<Known>()).sum()
}

/// The events of this process. Cheap to clone.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    store: Store,
    keys: Keyspace,
    rules: Live<EventRules>,
    ring: Mutex<Ring>,
    /// The number of the next event.
    head: watch::Sender<u64>,
    /// The streams, by identity.
    streams: Numbers<String>,
    opened: Notify,
    readers: Semaphore,
}

/// A place among the streams of this process.
pub type Place = Counted<String>;

/// What a position leads to.
#[derive(Debug)]
pub enum Next {
    /// These events.
    Events(Vec<Batch>),
    /// None yet.
    None,
    /// Some of them are gone.
    Gone,
    /// No such event has existed.
    Unknown,
}

impl Events {
    /// Follows the events of this store.
    pub fn new(store: Store, keys: Keyspace, rules: Live<EventRules>) -> Self {
        Events(Arc::new(Inner {
            store,
            keys,
            rules,
            ring: Mutex::default(),
            head: watch::Sender::new(0),
            streams: Numbers::default(),
            opened: Notify::new(),
            readers: Semaphore::new(READERS),
        }))
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a stream of an identity; an empty one is everyone, on a store without identities. The error is how many streams the
    /// identity, or the process, has already.
    pub fn place(&self, identity: &str) -> std::result::Result<Place, u64> {
        let (place, own) = self.0.streams.add(identity.to_owned(), 1);
        let all = self.0.streams.total();
        if all > MAX_STREAMS {
            return Err(all - 1);
        }
        if own > MAX_STREAMS_OF_ONE && !identity.is_empty() {
            return Err(own - 1);
        }
        self.0.opened.notify_one();
        Ok(place)
    }

    /// Changes when there are more events.
    pub fn head(&self) -> watch::Receiver<u64> {
        self.0.head.subscribe()
    }

    /// Makes all nodes record events, and returns when they do. `None` if they do not soon.
    pub async fn begin(&self) -> Result<Option<Recording>> {
        let Inner { store, keys, .. } = &*self.0;
        let begun_us = store.runtime().elapsed_us();
        self.renew().await?;
        loop {
            let recording = store.transact(|tx| async move { events::recording(&tx, keys).await }).await?;
            if recording.from.is_some() {
                return Ok(Some(recording));
            }
            if store.runtime().elapsed_us().saturating_sub(begun_us) > us(BEGIN_TIME) {
                return Ok(None);
            }
            store.runtime().sleep(BEGIN_PAUSE).await;
        }
    }

    /// Asks for events for as long as they are kept.
    pub async fn renew(&self) -> Result<()> {
        let Inner { store, keys, rules, .. } = &*self.0;
        let (now_us, keep) = (store.runtime().now_us(), rules.get().keep);
        let (until_us, enough_us) =
            (now_us.saturating_add(us(keep)), now_us.saturating_add(us(keep / 4 * 3)));
        store
            .transact(|tx| async move {
                // Programs that get many pages do not write the row with each one.
                let recording = events::recording(&tx, keys).await?;
                match recording.until_us {
                    Some(until_us) if until_us >= enough_us => Ok(()),
                    _ => events::want(&tx, keys, until_us).await.map(drop),
                }
            })
            .await
    }

    /// The number of the next event in the store.
    pub async fn next_number(&self) -> Result<u64> {
        let Inner { store, keys, .. } = &*self.0;
        Ok(events::head(&store.begin().await?, keys).await?.next)
    }

    /// The number of the first event in the store.
    pub async fn oldest(&self) -> Result<u64> {
        let Inner { store, keys, .. } = &*self.0;
        events::oldest(&store.begin().await?, keys).await
    }

    /// The events from this number on: those in memory, or some from the store.
    pub async fn from(&self, number: u64) -> Result<Next> {
        {
            let ring = self.ring();
            if ring.first() <= number && number <= ring.next && ring.next > 0 {
                let from = ring
                    .batches
                    .partition_point(|batch| batch.last().is_none_or(|last| last.number < number));
                let batches: Vec<Batch> = ring.batches.range(from..).cloned().collect();
                return Ok(if batches.is_empty() { Next::None } else { Next::Events(batches) });
            }
        }
        let Inner { store, keys, readers, .. } = &*self.0;
        let _turn = readers.acquire().await;
        let page = events::page(&store.begin().await?, keys, number.saturating_sub(1), STREAM_ROWS).await?;
        Ok(match page {
            Page::Gone { .. } => Next::Gone,
            Page::Unknown => Next::Unknown,
            Page::Events(rows) if rows.is_empty() => Next::None,
            Page::Events(rows) => Next::Events(rows.into_iter().map(known).collect::<Result<_>>()?),
        })
    }

    /// Follows the events in the store while there are streams, until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        let work = async {
            loop {
                let opened = self.0.opened.notified();
                if self.0.streams.is_empty() {
                    opened.await;
                }
                if let Err(error) = self.follow().await {
                    tracing::warn!(%error, "cannot follow events: tries again soon");
                    self.0.store.runtime().sleep(ERROR_PAUSE).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    /// Follows the events until there are no streams.
    async fn follow(&self) -> Result<()> {
        let Inner { store, keys, rules, head, .. } = &*self.0;
        let mut renewed_us = i64::MIN;
        // Streams that are behind read from the store.
        let next = self.next_number().await?;
        self.ring().begin_at(next);
        // Some may have come since a stream has looked.
        head.send_replace(next);
        while !self.0.streams.is_empty() {
            let renewal = (rules.get().keep / 4).min(LONGEST_RENEWAL);
            let elapsed_us = store.runtime().elapsed_us();
            if elapsed_us >= renewed_us.saturating_add(us(renewal)) {
                renewed_us = elapsed_us;
                self.renew().await?;
            }
            let tx = store.begin().await?;
            let seen = tx.get_with(&keys.event_head(), Isolation::Snapshot).await?;
            let next = self.ring().next;
            let page = events::page(&tx, keys, next - 1, READER_ROWS).await?;
            drop(tx);
            match page {
                Page::Events(rows) if !rows.is_empty() => {
                    for row in rows {
                        let batch = known(row)?;
                        self.ring().push(batch);
                    }
                    head.send_replace(self.ring().next);
                    continue;
                }
                Page::Events(_) => {}
                // It was too slow, or events were not recorded for a while.
                Page::Gone { .. } | Page::Unknown => {
                    let next = self.next_number().await?;
                    self.ring().begin_at(next);
                    head.send_replace(next);
                }
            }
            let changed = store.watch(keys.event_head(), seen).await?;
            tokio::select! {
                () = changed => {}
                () = store.runtime().sleep(renewal) => {}
            }
        }
        self.ring().begin_at(0);
        Ok(())
    }
}

fn known(row: Row) -> Result<Batch> {
    let first = row.first;
    let known = (first..).zip(row.events).map(|(number, json)| {
        let event = serde_json::from_slice(&json);
        let event = event.map_err(|error| StoreError::Corrupt(format!("event {number}: {error}")))?;
        Ok(Known { number, event, json })
    });
    known.collect()
}

pub(super) fn us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
