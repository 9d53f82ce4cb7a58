//! Events: what happens to jobs, in order, for those who follow it.
//!
//! *Model.* While events are recorded, each transaction that changes jobs also appends its events to a log
//! ([`Transaction::append`]): one row per commit, which conflicts with nothing. A node orders these rows by their versionstamps, and
//! moves them to numbered rows ([`collect`], [`order`]). A reader that knows the last number that it has seen reads on from there.
//!
//! ```text
//!   a commit ──▶ ("event_in", …)  ──order──▶  ("events", 1 … n)  ──▶ streams and webhooks, each with its position
//!                 one row, any key              dense numbers
//! ```
//!
//! *Order.* A snapshot that sees a commit sees all earlier ones. So the rows that a snapshot has, sorted by their stamps, come
//! before all later rows, and an event never gets a number below one that a reader may have passed. Two nodes that order at the
//! same time conflict over the head.
//!
//! *Recording* begins when a client first asks for events ([`want`]), and costs nothing before. Each node notices, and
//! [acknowledges](acknowledge) once all its commits append events. When all nodes have done so, the record is complete from the
//! head on ([`confirm`]). It ends when nobody has asked for a while ([`end`]).
//!
//! *Bounds.* Numbered events are kept for a time, and up to a number ([`prune`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_store::key::successor;
use turnwise_store::{Appended, Isolation, Transaction};

use crate::error::corrupt;
use crate::job::{EventKind, JobFields};
use crate::rows::{decode, encode};
use crate::{Job, Keyspace, Result, State, nodes, reads};

/// The most bytes of a reason in an event. The job's record may have a longer one.
pub const MAX_EVENT_REASON_BYTES: usize = 500;
/// The most events in one numbered row.
pub const MAX_ROW_EVENTS: usize = 500;
/// The most bytes of a numbered row.
const MAX_ROW_BYTES: usize = 60_000;
/// The most rows of the log that one transaction orders: each is a row to clear.
const MAX_ORDERED: usize = 300;
/// Rows of the log per read.
const PAGE: usize = 200;
/// The most bytes of rows that are sorted at the same time.
const MAX_SORTED_BYTES: usize = 16 << 20;
/// Rows that one call of [`prune`] looks at.
const PRUNED: usize = 20;
/// The state of a removed job.
const REMOVED: &str = "removed";

/// The event of a group that has ended.
pub const GROUP_ENDED: &str = "group_ended";
/// The type that events of groups state.
pub const GROUP_TYPE: &str = "@group";

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// What happened: `added`, `started`, `stopped`, `crashed`, `snoozed`, `completed`, `failed`, `expired`, `cancelled`, `edited`, `held`, `released`
    /// or `removed`; or `group_ended`, with the group's name as the id.
    pub event: String,
    /// The job's type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The job's id.
    pub id: String,
    /// The job's tenant.
    pub tenant: String,
    /// The job's task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The job's tags.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
    /// The job's state after the event, or `removed`.
    pub state: String,
    /// When it happened, in µs.
    pub at_us: i64,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the error has in common with others, if it stated its class ([`Job::error_class`](crate::JobFields::error_class)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// Which events a reader wants. An empty list admits all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// The types of the jobs.
    #[serde(default)]
    pub types: Vec<String>,
    /// The tenant of the jobs.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The states after the event.
    #[serde(default)]
    pub states: Vec<String>,
    /// What happened.
    #[serde(default)]
    pub events: Vec<String>,
}

impl Filter {
    /// Whether it admits an event.
    pub fn admits(&self, event: &JobEvent) -> bool {
        let is_one =
            |wanted: &[String], value: &str| wanted.is_empty() || wanted.iter().any(|one| one == value);
        is_one(&self.types, &event.job_type)
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == event.tenant)
            && is_one(&self.states, &event.state)
            && is_one(&self.events, &event.event)
    }
}

/// An event, as it is written.
#[derive(Serialize)]
struct Line<'a> {
    event: &'a str,
    #[serde(rename = "type")]
    job_type: &'a str,
    id: &'a str,
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    tags: BTreeSet<Cow<'a, str>>,
    state: &'a str,
    at_us: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
}

/// Appends an event of a job that is in its new place.
pub(crate) fn happened(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    kind: &EventKind,
    state: State,
    at_us: i64,
) -> Result<()> {
    if !tx.appends() {
        return Ok(());
    }
    let reason = match kind {
        EventKind::Cancelled => job.refused.as_deref(),
        kind => kind.reason(),
    };
    append(tx, keys, job, kind.name(), state.name(), at_us, reason)
}

/// Appends that a group has ended. It stands as a job of the type [`GROUP_TYPE`], which no job has.
pub(crate) fn group_ended(
    tx: &Transaction,
    keys: &Keyspace,
    (tenant, id): (&str, &str),
    state: State,
    at_us: i64,
) -> Result<()> {
    if !tx.appends() {
        return Ok(());
    }
    let (event, job_type, state, tags) = (GROUP_ENDED, GROUP_TYPE, state.name(), BTreeSet::new());
    let (task, reason, class) = (None, None, None);
    let line = encode(&Line { event, job_type, id, tenant, task, tags, state, at_us, reason, class });
    tx.append(&keys.event_in(), &line)?;
    Ok(tx.set_versionstamp(keys.event_wake())?)
}

/// Appends that a job is removed.
pub(crate) fn removed(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    if !tx.appends() {
        return Ok(());
    }
    append(tx, keys, job, REMOVED, REMOVED, tx.now_us(), None)
}

fn append(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    event: &str,
    state: &str,
    at_us: i64,
    reason: Option<&str>,
) -> Result<()> {
    let reason = reason.map(|reason| &reason[..reason.floor_char_boundary(MAX_EVENT_REASON_BYTES)]);
    let (JobFields { job_type, id, .. }, tenant, tags) = (&**job, &job.tenant, job.all_tags().collect());
    let (task, class) = (job.task.as_deref(), reason.and(job.error_class.as_deref()));
    let line = encode(&Line { event, job_type, id, tenant, task, tags, state, at_us, reason, class });
    tx.append(&keys.event_in(), &line)?;
    Ok(tx.set_versionstamp(keys.event_wake())?)
}

/// Whether events are recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// How often recording has begun.
    pub number: u64,
    /// Until when events are recorded, in µs, unless a client asks again. `None` while they are not recorded.
    #[serde(default)]
    pub until_us: Option<i64>,
    /// The first number from which on no event is missing; `None` until all nodes record.
    #[serde(default)]
    pub from: Option<u64>,
}

impl Recording {
    /// Whether nodes record.
    pub fn is_on(&self) -> bool {
        self.until_us.is_some()
    }
}

/// The end of the numbered events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The number of the next event; that of the first is 1.
    pub next: u64,
    /// The node that has numbered the latest ones.
    pub node: String,
}

impl Default for Head {
    fn default() -> Self {
        Head { next: 1, node: String::new() }
    }
}

/// Whether events are recorded.
#[boxed]
pub async fn recording(tx: &Transaction, keys: &Keyspace) -> Result<Recording> {
    read(tx, &keys.event_recording(), Isolation::Serializable).await
}

/// The end of the numbered events. Adds no conflict.
#[boxed]
pub async fn head(tx: &Transaction, keys: &Keyspace) -> Result<Head> {
    read(tx, &keys.event_head(), Isolation::Snapshot).await
}

async fn read<T: Default + serde::de::DeserializeOwned>(
    tx: &Transaction,
    key: &Bytes,
    isolation: Isolation,
) -> Result<T> {
    Ok(reads::value_with(tx, key, "row of events", isolation).await?.unwrap_or_default())
}

/// Asks for events until a time at least, in µs. Begins recording if it has not begun.
#[boxed]
pub async fn want(tx: &Transaction, keys: &Keyspace, until_us: i64) -> Result<Recording> {
    let mut recording = recording(tx, keys).await?;
    match &mut recording.until_us {
        Some(until) if *until >= until_us => return Ok(recording),
        Some(until) => *until = until_us,
        None => recording = Recording { number: recording.number + 1, until_us: Some(until_us), from: None },
    }
    tx.set(keys.event_recording(), encode(&recording))?;
    Ok(recording)
}

/// States that all commits of a node, from now on, append their events.
pub fn acknowledge(tx: &Transaction, keys: &Keyspace, node: &str, recording: &Recording) -> Result<()> {
    Ok(tx.set(keys.event_node(node), encode(&recording.number))?)
}

/// Makes the record complete from the head on, if all nodes record. A node that has died counts until it is removed.
#[boxed]
pub async fn confirm(tx: &Transaction, keys: &Keyspace) -> Result<Recording> {
    let mut recording = recording(tx, keys).await?;
    if recording.from.is_some() || !recording.is_on() {
        return Ok(recording);
    }
    let number = |key: &Bytes, value: &Bytes| Ok((key.clone(), decode::<u64>("row of events", value)?));
    let numbers = reads::list(tx, keys.event_nodes(), nodes::MAX_NODES, number).await?;
    let numbers: BTreeMap<Bytes, u64> = numbers.into_iter().collect();
    let nodes = nodes::list(tx, keys).await?;
    let follows = |node: &str| numbers.get(&keys.event_node(node)) == Some(&recording.number);
    if nodes.iter().all(|node| follows(&node.node)) {
        let head: Head = read(tx, &keys.event_head(), Isolation::Serializable).await?;
        recording.from = Some(head.next);
        tx.set(keys.event_recording(), encode(&recording))?;
    }
    Ok(recording)
}

/// Ends recording if its time is over, and removes all events. Returns whether it did.
#[boxed]
pub async fn end(tx: &Transaction, keys: &Keyspace, now_us: i64) -> Result<bool> {
    let recording = recording(tx, keys).await?;
    if recording.until_us.is_none_or(|until_us| now_us < until_us) {
        return Ok(false);
    }
    let recording = Recording { until_us: None, from: None, ..recording };
    tx.set(keys.event_recording(), encode(&recording))?;
    tx.clear_range(keys.events())?;
    tx.clear_range(keys.event_nodes())?;
    Ok(true)
}

/// The earliest rows of the log, in the order of their commits. All rows that are not among them come later.
#[boxed]
pub async fn collect(tx: &Transaction, keys: &Keyspace) -> Result<Vec<Appended>> {
    collect_up_to(tx, keys, None, MAX_SORTED_BYTES).await
}

/// The same of the rows that come after `row`: for a reader that may not clear the rows before.
#[boxed]
pub async fn collect_after(
    tx: &Transaction,
    keys: &Keyspace,
    row: Option<&Appended>,
) -> Result<Vec<Appended>> {
    collect_up_to(tx, keys, row.map(commit_order), MAX_SORTED_BYTES).await
}

/// What rows of the log are sorted by.
type CommitOrder = ([u8; 10], i64);

fn commit_order(row: &Appended) -> CommitOrder {
    (row.stamp.0, row.place)
}

async fn collect_up_to(
    tx: &Transaction,
    keys: &Keyspace,
    begin: Option<CommitOrder>,
    most_bytes: usize,
) -> Result<Vec<Appended>> {
    let log = keys.event_in();
    // Rows from here on are left for the next time.
    let mut cut = None;
    let mut earliest: BTreeMap<CommitOrder, Appended> = BTreeMap::new();
    let (mut bytes, mut after) = (0, None);
    loop {
        let page = tx.log(&log, after.as_ref(), PAGE).await?;
        let is_last = page.len() < PAGE;
        after = page.last().map(|row| row.key.clone());
        for row in page {
            let order = commit_order(&row);
            if begin.is_none_or(|begin| order > begin) && cut.is_none_or(|cut| order < cut) {
                bytes += row.lines.len();
                earliest.insert(order, row);
            }
        }
        while bytes > most_bytes
            && earliest.len() > 1
            && let Some((order, latest)) = earliest.pop_last()
        {
            bytes -= latest.lines.len();
            cut = Some(order);
        }
        if is_last {
            return Ok(earliest.into_values().collect());
        }
    }
}

/// What [`order`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordered {
    /// It has moved this many rows, and the number of the next event is `next`.
    Moved {
        /// The number of rows.
        rows: usize,
        /// The next number.
        next: u64,
    },
    /// Another node has numbered events since the rows were collected. Nothing was changed.
    Stale,
}

/// Numbers the events of the first of these rows, as many as the transaction has room for. The rows are what [`collect`] has
/// returned, without those that were moved since. `expected` is the next number after the last move, or that of the collection.
#[boxed]
pub async fn order(
    tx: &Transaction,
    keys: &Keyspace,
    rows: &[Appended],
    expected: u64,
    node: &str,
) -> Result<Ordered> {
    let head: Head = read(tx, &keys.event_head(), Isolation::Serializable).await?;
    if head.next != expected {
        return Ok(Ordered::Stale);
    }
    let mut out = Out { next: head.next, ..Out::default() };
    let mut moved = 0;
    for row in rows.iter().take(MAX_ORDERED) {
        if moved > 0 && !tx.has_space() {
            break;
        }
        for line in row.lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            out.push(tx, keys, line)?;
        }
        tx.clear(row.key.clone())?;
        moved += 1;
    }
    out.flush(tx, keys)?;
    let next = out.next;
    tx.set(keys.event_head(), encode(&Head { next, node: node.to_owned() }))?;
    Ok(Ordered::Moved { rows: moved, next })
}

/// A numbered row that is being filled.
#[derive(Default)]
struct Out {
    next: u64,
    events: usize,
    row: BytesMut,
}

impl Out {
    fn push(&mut self, tx: &Transaction, keys: &Keyspace, line: &[u8]) -> Result<()> {
        let is_full = self.events == MAX_ROW_EVENTS || self.row.len() + line.len() > MAX_ROW_BYTES;
        if self.events > 0 && is_full {
            self.flush(tx, keys)?;
        }
        self.row.put_u8(if self.events == 0 { b'[' } else { b',' });
        self.row.put_slice(line);
        self.events += 1;
        self.next += 1;
        Ok(())
    }

    fn flush(&mut self, tx: &Transaction, keys: &Keyspace) -> Result<()> {
        if self.events > 0 {
            self.row.put_u8(b']');
            tx.set(keys.events_until(self.next - 1), self.row.split().freeze())?;
            self.events = 0;
        }
        Ok(())
    }
}

/// Drops up to `limit` rows of the log, for when events are not recorded: transactions that began before may still add some.
#[boxed]
pub async fn drop_unordered(tx: &Transaction, keys: &Keyspace, limit: usize) -> Result<usize> {
    if recording(tx, keys).await?.is_on() {
        return Ok(0);
    }
    let rows = reads::rows(tx, keys.events_in(), limit).await?;
    for (key, _) in &rows {
        tx.clear(key.clone())?;
    }
    Ok(rows.len())
}

/// Events that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The number of the first.
    pub first: u64,
    /// The events, as JSON.
    pub events: Vec<Bytes>,
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// The events after the given number, in order. None means that there are no more yet.
    Events(Vec<Row>),
    /// Some of the events after the given number are gone.
    Gone {
        /// The number of the first event that is there.
        oldest: u64,
    },
    /// No event has this number: it is of another store.
    Unknown,
}

/// The number of the first event that is there, or of the next one. Adds no conflict.
#[boxed]
pub async fn oldest(tx: &Transaction, keys: &Keyspace) -> Result<u64> {
    let recording: Recording = read(tx, &keys.event_recording(), Isolation::Snapshot).await?;
    let from = match recording.from {
        Some(from) => from,
        None => head(tx, keys).await?.next,
    };
    let read = |key: &Bytes, value: &Bytes| row(keys, key, value);
    match reads::list(tx, keys.events_from(from), 1, read).await?.first() {
        Some(row) => Ok(row.first.max(from)),
        None => Ok(head(tx, keys).await?.next),
    }
}

/// Up to `limit` rows of the events after the number `since`. Adds no conflict.
#[boxed]
pub async fn page(tx: &Transaction, keys: &Keyspace, since: u64, limit: usize) -> Result<Page> {
    tx.prefetch([keys.event_recording(), keys.event_head()]).await?;
    let recording: Recording = read(tx, &keys.event_recording(), Isolation::Snapshot).await?;
    let head = head(tx, keys).await?;
    let wanted = since.saturating_add(1);
    if wanted > head.next {
        return Ok(Page::Unknown);
    }
    let from = recording.from.unwrap_or(head.next);
    if wanted < from {
        return Ok(Page::Gone { oldest: from });
    }
    if wanted == head.next {
        return Ok(Page::Events(Vec::new()));
    }
    let read = |key: &Bytes, value: &Bytes| row(keys, key, value);
    let mut page = reads::list(tx, keys.events_from(wanted), limit, read).await?;
    match page.first_mut() {
        // The row may begin earlier.
        Some(first) if first.first <= wanted => {
            let skipped = usize::try_from(wanted - first.first).unwrap_or(usize::MAX);
            first.events.drain(..skipped.min(first.events.len()));
            first.first = wanted;
            Ok(Page::Events(page))
        }
        Some(first) => Ok(Page::Gone { oldest: first.first }),
        None => Ok(Page::Gone { oldest: head.next }),
    }
}

fn row(keys: &Keyspace, key: &[u8], value: &Bytes) -> Result<Row> {
    let last = keys.parse_events(key)?;
    let events: Vec<&RawValue> =
        serde_json::from_slice(value).map_err(|error| corrupt("row of events", error))?;
    let before = u64::try_from(events.len()).ok().and_then(|count| (last + 1).checked_sub(count));
    let first = before.ok_or_else(|| corrupt("row of events", "more events than numbers"))?;
    Ok(Row { first, events: events.iter().map(|event| value.slice_ref(event.get().as_bytes())).collect() })
}

/// Removes rows whose events all happened before a time, in µs, or come before the last `most` events: up to 20 per call. Returns how
/// many.
#[boxed]
pub async fn prune(tx: &Transaction, keys: &Keyspace, before_us: i64, most: u64) -> Result<usize> {
    let next = head(tx, keys).await?.next;
    let rows = reads::rows(tx, keys.events(), PRUNED).await?;
    let mut old = None;
    let mut count = 0;
    for (key, value) in &rows {
        let last = keys.parse_events(key)?;
        let is_beyond = last.saturating_add(most) < next;
        if !is_beyond {
            let row = row(keys, key, value)?;
            let latest = row.events.last().map(|event| decode::<JobEvent>("event", event)).transpose()?;
            if latest.is_some_and(|latest| latest.at_us >= before_us) {
                break;
            }
        }
        old = Some(key);
        count += 1;
    }
    if let Some(last) = old {
        tx.clear_range((keys.events().0, successor(last)))?;
    }
    Ok(count)
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
