//! Lists of jobs, newest or oldest first.
//!
//! *Order.* Each job has the time of its place: when it ended, started or became pending, and for a job that waits for a time, that time.
//! Jobs with equal times are sorted by type and id. This is the order of most indices, so a list merges them: the queue of each tenant and
//! priority, the delayed and paused jobs, and the partitions of those that have ended ([`crate::ended`]). Running, blocked and limited jobs, and
//! queues that are sorted by keys, have other orders. They are read as a whole and sorted. Most ranges have no job on a page, so a range is
//! opened when the list has come to the time of its first job (`heads.rs`).
//!
//! *Bounds.* A request merges at most 20,000 ranges and sorts at most [`MAX_SORTED`] jobs. A kind of jobs that exceeds this follows
//! after all others, in the order of its keys; the cursor says so. If it exceeds this between two pages, what was listed of it is left
//! out. A request reads at most [`MAX_ROWS`] rows of indices and [`MAX_RECORDS`]
//! records. Then its page ends where it has come, although it may have found few jobs.
//!
//! *Tags.* If up to [`MAX_RECORDS`] jobs have a wanted tag, their records are read and sorted, and no other index is. If more have it, the
//! merge finds many of them soon, and their records are tested.
//!
//! *Skipped without a record.* Rows of most indices state the tenant and the class of the reason, so rows of other tenants cost little.
//!
//! A job whose state changes between two pages may be missing, or be in both.

mod heads;
mod open;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use self::heads::Unopened;
use crate::ended::{Cover, PARTITIONS};
use crate::jobs::{PREFETCHED, peek, prefetch};
use crate::keyspace::{KeyRange, QueuePlace};
use crate::selection::{Position, Selection, Source, states};
use crate::{Job, Keyspace, Place, Result, counts, reason_class};

/// The most jobs that a request sorts.
const MAX_SORTED: usize = 5_000;
/// The most rows of indices that a request reads, besides one per range.
const MAX_ROWS: usize = 20_000;
/// The most records that a request reads.
const MAX_RECORDS: usize = 2_000;
/// The most ids or tenants that are looked up one by one.
const MAX_NAMES: usize = 100;
/// Rows of one range in one read: the first, and the most.
const FIRST_CHUNK: usize = 1;
const MAX_CHUNK: usize = 512;
/// How much more the next read takes: after one in which rows were wanted, and after one in which none was.
const GROWTH: usize = 4;
const GROWTH_IN_VAIN: usize = 8;

/// Which jobs come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Those with the latest times.
    Newest,
    /// Those with the earliest times.
    Oldest,
}

/// The jobs of a list.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Which come first.
    pub order: Order,
    /// The types; `None` means all.
    pub types: Option<Vec<String>>,
    /// The states, as conditions name them; `None` means all.
    pub states: Option<BTreeSet<String>>,
    /// The tenants; `None` means all.
    pub tenants: Option<Vec<String>>,
    /// The tags, of which a job has one; `None` means any, or none.
    pub tags: Option<Vec<String>>,
    /// The number of the class of the reason; `None` means any, or none.
    pub class: Option<u32>,
    /// The ids; `None` means all.
    pub ids: Option<Vec<String>>,
}

/// A place in the order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Mark {
    #[serde(rename = "at")]
    at_us: i64,
    #[serde(rename = "type", serialize_with = "write_type", deserialize_with = "read_type")]
    job_type: Arc<str>,
    id: String,
}

fn write_type<S: Serializer>(job_type: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(job_type)
}

fn read_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(deserializer).map(Arc::from)
}

/// Where a list continues. The default is its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// After this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<Mark>,
    /// The kinds of jobs that follow after all others.
    #[serde(default)]
    deferred: u8,
    /// What was listed of these before they exceeded the bounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    listed: Vec<Listed>,
    /// The position among these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rest: Option<Position>,
}

/// The jobs of these kinds up to this one were in the list before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Listed {
    kinds: u8,
    until: Mark,
}

impl Cursor {
    /// Lists these kinds after all others.
    fn defer(&mut self, kinds: u8) {
        let kinds = kinds & !self.deferred;
        if let Some(until) = self.after.clone().filter(|_| kinds != 0) {
            self.listed.push(Listed { kinds, until });
        }
        self.deferred |= kinds;
    }
}

/// Kinds of jobs, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Pending,
    Active,
    Delayed,
    Blocked,
    Paused,
    Limited,
    Ended,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Pending, Kind::Active, Kind::Delayed, Kind::Blocked, Kind::Paused, Kind::Limited, Kind::Ended];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The index of the jobs that are counted like this.
    fn of(counted: counts::Kind) -> Kind {
        match counted {
            counts::Kind::Pending => Kind::Pending,
            counts::Kind::Running => Kind::Active,
            counts::Kind::Delayed | counts::Kind::Parked | counts::Kind::Crashing => Kind::Delayed,
            counts::Kind::Blocked => Kind::Blocked,
            counts::Kind::Paused => Kind::Paused,
            counts::Kind::Limited => Kind::Limited,
            counts::Kind::Completed | counts::Kind::Failed | counts::Kind::Cancelled => Kind::Ended,
        }
    }

    fn of_job(job: &Job) -> Kind {
        Kind::of(counts::Kind::of(&job.place))
    }
}

/// A range whose keys are in the order of the list.
#[derive(Debug, Clone)]
enum Run {
    Queue(Arc<str>, i8),
    Delayed,
    Paused,
    Ended(u16),
    /// Jobs that were sorted.
    Sorted,
}

/// A part of the merge.
struct Stream {
    kind: Kind,
    job_type: Arc<str>,
    run: Run,
    /// What was not read.
    rest: KeyRange,
    /// There may be rows in it.
    more: bool,
    /// How many rows the next read takes.
    chunk: usize,
    /// The jobs that were read, besides the one in the heap.
    found: VecDeque<Mark>,
    /// The last row that was read.
    last: Option<Mark>,
}

/// The next job of a stream, or how far it was read without finding one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    mark: Ranked<Mark>,
    stream: usize,
    is_job: bool,
}

/// A place in the order of a list, all of whose places are of one kind: what comes first is the greatest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Ranked<T> {
    Newest(T),
    Oldest(Reverse<T>),
}

impl<T> Ranked<T> {
    fn new(order: Order, place: T) -> Self {
        match order {
            Order::Newest => Ranked::Newest(place),
            Order::Oldest => Ranked::Oldest(Reverse(place)),
        }
    }

    fn place(self) -> T {
        match self {
            Ranked::Newest(place) | Ranked::Oldest(Reverse(place)) => place,
        }
    }

    fn map<U>(&self, part: impl Fn(&T) -> U) -> Ranked<U> {
        match self {
            Ranked::Newest(place) => Ranked::Newest(part(place)),
            Ranked::Oldest(Reverse(place)) => Ranked::Oldest(Reverse(part(place))),
        }
    }
}

impl Order {
    /// Whether a job comes after another one.
    fn is_after(self, mark: &Mark, other: &Mark) -> bool {
        match self {
            Order::Newest => mark < other,
            Order::Oldest => mark > other,
        }
    }
}

impl Mark {
    fn of(job: &Job) -> Mark {
        let at_us = match &job.place {
            Place::Active(_) => job.started_us.unwrap_or(job.changed_us),
            Place::Blocked { .. } | Place::Ended(_) => job.changed_us,
            _ => job.order_us(),
        };
        Mark { at_us, job_type: job.job_type.as_str().into(), id: job.id.clone() }
    }
}

impl Wanted {
    fn kinds(&self) -> u8 {
        let of_states = |states: &BTreeSet<String>| {
            let kinds = states.iter().filter_map(|state| counts::Kind::of_state(state)).map(Kind::of);
            kinds.fold(0, |kinds, kind| kinds | kind.bit())
        };
        self.states.as_ref().map_or(u8::MAX, of_states)
    }

    fn has_state(&self, state: &str) -> bool {
        self.states.as_ref().is_none_or(|states| states.contains(state))
    }

    fn has_tenant(&self, tenant: &str) -> bool {
        self.tenants.as_ref().is_none_or(|tenants| tenants.iter().any(|name| name == tenant))
    }

    fn covers(&self, cover: &Cover<'_>) -> bool {
        self.has_tenant(&cover.tenant) && self.class.is_none_or(|wanted| cover.class == Some(wanted))
    }

    fn holds(&self, job: &Job) -> bool {
        let class = || job.reason_class().map(|class| reason_class::number(&class));
        self.has_tenant(&job.tenant)
            && states(job).iter().any(|state| self.has_state(state))
            && self.tags.as_ref().is_none_or(|tags| tags.iter().any(|tag| job.has_tag(tag)))
            && (self.class.is_none() || class() == self.class)
    }

    fn few_tenants(&self) -> Option<&[String]> {
        self.tenants.as_deref().filter(|tenants| tenants.len() <= MAX_NAMES)
    }
}

impl Run {
    /// The key of a job in the range.
    fn key(&self, keys: &Keyspace, job_type: &str, at_us: i64, id: &str) -> Bytes {
        match self {
            Run::Queue(tenant, priority) => {
                let place = QueuePlace {
                    tenant: tenant.to_string(),
                    key: None,
                    priority: *priority,
                    order_us: at_us,
                };
                keys.pending_entry(job_type, &place, id)
            }
            Run::Delayed => keys.delayed_entry(job_type, at_us, id),
            Run::Paused => keys.paused_entry(job_type, at_us, id),
            Run::Ended(partition) => keys.ended_entry(job_type, *partition, at_us, id),
            Run::Sorted => Bytes::new(),
        }
    }

    fn range(&self, keys: &Keyspace, job_type: &str) -> KeyRange {
        match self {
            Run::Queue(tenant, priority) => keys.pending_in(job_type, tenant, *priority),
            Run::Delayed => keys.delayed(job_type),
            Run::Paused => keys.paused_of(job_type),
            Run::Ended(partition) => keys.ended_in(job_type, &(*partition..=*partition)),
            Run::Sorted => (Bytes::new(), Bytes::new()),
        }
    }

    /// The time and the id of a row, and what it says about its job.
    fn parse<'v>(
        &'v self,
        keys: &Keyspace,
        key: &[u8],
        value: &'v [u8],
    ) -> Result<(i64, String, Option<Cover<'v>>)> {
        Ok(match self {
            Run::Queue(tenant, _) => {
                let (place, id) = keys.parse_pending(key)?;
                (place.order_us, id, Some(Cover { tenant: Cow::Borrowed(tenant), class: None, task: None }))
            }
            Run::Delayed => {
                let (at_us, id) = keys.parse_delayed(key)?;
                (at_us, id, Cover::read(value))
            }
            Run::Paused => {
                let (_, at_us, id) = keys.parse_paused(key)?;
                (at_us, id, None)
            }
            Run::Ended(_) => {
                let ended = keys.parse_ended(key)?;
                (ended.ended_us, ended.id, Cover::read(value))
            }
            // It has no rows to read.
            Run::Sorted => return Err(keys.unreadable(key).into()),
        })
    }
}

/// Which tenants the reader of a list may see.
pub type Sees<'a> = &'a (dyn Fn(&str) -> bool + Send + Sync);

/// A list that is being read, in one transaction.
pub struct Listing<'a> {
    tx: &'a Transaction,
    keys: &'a Keyspace,
    wanted: &'a Wanted,
    sees: Sees<'a>,
    types: Vec<Arc<str>>,
    streams: Vec<Stream>,
    heap: BinaryHeap<Head>,
    /// Ranges of which only the first job is known.
    unopened: BinaryHeap<Unopened>,
    /// How many jobs may still be sorted.
    sorts_left: usize,
    rows_left: usize,
    records_left: usize,
    looked_at: u64,
    cursor: Cursor,
    end: Option<PageEnd>,
}

/// Why no jobs follow in this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageEnd {
    /// There are none.
    NoMore,
    /// It has read as much as it may.
    Bound,
}

impl<'a> Listing<'a> {
    /// Begins to read a list from a position. Adds no read conflict.
    pub async fn open(
        tx: &'a Transaction,
        keys: &'a Keyspace,
        wanted: &'a Wanted,
        sees: Sees<'a>,
        from: &Cursor,
    ) -> Result<Listing<'a>> {
        let mut listing = Listing {
            tx,
            keys,
            wanted,
            sees,
            types: Vec::new(),
            streams: Vec::new(),
            heap: BinaryHeap::new(),
            unopened: BinaryHeap::new(),
            sorts_left: MAX_SORTED,
            rows_left: MAX_ROWS,
            records_left: MAX_RECORDS,
            looked_at: 0,
            cursor: from.clone(),
            end: None,
        };
        if from.rest.is_none() {
            listing.open_streams().await?;
        }
        Ok(listing)
    }

    /// The next jobs, each with the position after it: up to `most`. They are of the wanted types, states, tenants, class and ids, and of
    /// tenants that the reader sees. None means that no more follow in this request.
    pub async fn next(&mut self, most: usize) -> Result<Vec<(Cursor, Job)>> {
        let most = most.clamp(1, PREFETCHED);
        loop {
            if self.end.is_some() {
                return Ok(Vec::new());
            }
            let found = match self.cursor.rest.clone() {
                None => self.next_merged(most).await?,
                Some(at) => self.next_deferred(at, most).await?,
            };
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }

    /// How many jobs were looked at so far, without those that the reader does not see.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Where the list continues after everything that was looked at; `None` at its end.
    pub fn position(&self) -> Option<Cursor> {
        (self.end != Some(PageEnd::NoMore)).then(|| self.cursor.clone())
    }

    async fn next_merged(&mut self, most: usize) -> Result<Vec<(Cursor, Job)>> {
        let mut marks = Vec::with_capacity(most);
        while marks.len() < most {
            match self.next_mark().await? {
                Some(mark) => marks.push(mark),
                None => break,
            }
        }
        prefetch(self.tx, self.keys, marks.iter().map(|mark| (&*mark.job_type, mark.id.as_str()))).await?;
        let mut found = Vec::with_capacity(marks.len());
        for mark in marks {
            let Some(job) = peek(self.tx, self.keys, &mark.job_type, &mark.id).await? else { continue };
            if !self.admits(&job) {
                continue;
            }
            found.push((Cursor { after: Some(mark), ..self.cursor.clone() }, job));
        }
        Ok(found)
    }

    /// Counts a job whose record was read. Returns whether it is in the list.
    fn admits(&mut self, job: &Job) -> bool {
        self.records_left = self.records_left.saturating_sub(1);
        if !(self.sees)(&job.tenant) {
            return false;
        }
        self.looked_at += 1;
        self.wanted.holds(job)
    }

    /// The next job of the merge.
    async fn next_mark(&mut self) -> Result<Option<Mark>> {
        loop {
            if self.records_left == 0 {
                self.end = Some(PageEnd::Bound);
                return Ok(None);
            }
            self.open_due()?;
            let Some(head) = self.heap.pop() else {
                match self.cursor.deferred {
                    0 => self.end = Some(PageEnd::NoMore),
                    _ => self.cursor.rest = Some(Position::default()),
                }
                return Ok(None);
            };
            let Head { mark, stream, is_job } = head;
            if is_job {
                let mark = mark.place();
                self.advance(stream);
                self.cursor.after = Some(mark.clone());
                return Ok(Some(mark));
            }
            if self.rows_left == 0 {
                self.cursor.after = Some(mark.place());
                self.end = Some(PageEnd::Bound);
                return Ok(None);
            }
            let read = self.fill(stream).await?;
            self.rows_left = self.rows_left.saturating_sub(read);
        }
    }

    /// Puts the next job of a stream into the heap, or how far it was read.
    fn advance(&mut self, stream: usize) {
        let Stream { found, more, last, .. } = &mut self.streams[stream];
        let (mark, is_job) = match found.pop_front() {
            Some(mark) => (Some(mark), true),
            None => (last.clone().filter(|_| *more), false),
        };
        if let Some(mark) = mark {
            self.heap.push(Head { mark: Ranked::new(self.wanted.order, mark), stream, is_job });
        }
    }

    fn read_of(&self, stream: &Stream) -> RangeRead {
        let (begin, end) = stream.rest.clone();
        let reverse = self.wanted.order == Order::Newest;
        RangeRead { begin, end, limit: stream.chunk, reverse }
    }

    /// Reads on in a stream. Returns how many rows it has read.
    async fn fill(&mut self, number: usize) -> Result<usize> {
        let read = self.read_of(&self.streams[number]);
        let (limit, reverse) = (read.limit, read.reverse);
        let rows = self.tx.range_with(read, Isolation::Snapshot).await?;
        let (keys, wanted) = (self.keys, self.wanted);
        let stream = &mut self.streams[number];
        stream.more = rows.len() == limit;
        if let Some((key, _)) = rows.last() {
            match reverse {
                true => stream.rest.1 = key.clone(),
                false => stream.rest.0 = successor(key),
            }
        }
        let read = rows.len();
        for (key, value) in rows {
            let (at_us, id, cover) = stream.run.parse(keys, &key, &value)?;
            let mark = Mark { at_us, job_type: stream.job_type.clone(), id };
            stream.last = Some(mark.clone());
            match cover.filter(|cover| !wanted.covers(cover) || !(self.sees)(&cover.tenant)) {
                Some(cover) => self.looked_at += u64::from((self.sees)(&cover.tenant)),
                None => stream.found.push_back(mark),
            }
        }
        let growth = if stream.found.is_empty() { GROWTH_IN_VAIN } else { GROWTH };
        stream.chunk = (stream.chunk * growth).min(MAX_CHUNK);
        self.advance(number);
        Ok(read)
    }

    /// The jobs of kinds that could not be merged, in the order of their keys.
    async fn next_deferred(&mut self, at: Position, most: usize) -> Result<Vec<(Cursor, Job)>> {
        if self.records_left == 0 {
            self.end = Some(PageEnd::Bound);
            return Ok(Vec::new());
        }
        // For the read itself, which may find nothing.
        self.records_left -= 1;
        self.cursor.after = None;
        let Cursor { deferred, listed, .. } = self.cursor.clone();
        let is_deferred = |kind: Kind| deferred & kind.bit() != 0;
        let order = self.wanted.order;
        let was_listed = |job: &Job| {
            let kind = Kind::of_job(job);
            listed.iter().any(|listed| {
                listed.kinds & kind.bit() != 0 && !order.is_after(&Mark::of(job), &listed.until)
            })
        };
        let mut sources = Vec::new();
        for kind in Kind::ALL.into_iter().filter(|kind| is_deferred(*kind)) {
            sources.push(match kind {
                Kind::Pending => Source::Queues,
                Kind::Active => Source::Active,
                Kind::Delayed => Source::Delayed,
                Kind::Blocked => Source::Blocked,
                Kind::Paused => Source::Paused,
                Kind::Ended => Source::Ended(0..=PARTITIONS - 1),
                // They have no index by type.
                Kind::Limited => Source::Records,
            });
        }
        if sources.contains(&Source::Records) {
            sources = vec![Source::Records];
        }
        let selection = Selection::of_sources(self.wanted.types.clone(), sources);
        let page = selection.page(self.tx, self.keys, &at, most).await?;
        let mut found = Vec::new();
        for (position, job) in page.jobs {
            if is_deferred(Kind::of_job(&job)) && !was_listed(&job) && self.admits(&job) {
                found.push((Cursor { rest: Some(position), ..self.cursor.clone() }, job));
            } else {
                self.records_left = self.records_left.saturating_sub(1);
            }
        }
        match page.next {
            Some(next) => self.cursor.rest = Some(next),
            None => self.end = Some(PageEnd::NoMore),
        }
        Ok(found)
    }
}
