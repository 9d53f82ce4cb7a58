//! What blocks a lock.
//!
//! Reads are ranges, so that the store's serializability makes locks exclusive. A transaction that takes a lock proves that
//! no rows of possible blockers exist, and a concurrent write of such a row conflicts. A job that takes a shared lock reads
//! no row that other sharers write, unless units are counted. A job with a ticket reads queues up to its ticket: later jobs
//! do not conflict with it.
//!
//! The ranges of one lock are read concurrently, and those of several locks together. With a remote store, a claim of many
//! locks would otherwise outlive its transaction. They are read without conflicts, and proven if nothing blocks.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt, TryStreamExt};
use turnwise_policy::predictive_queue::locks::{Levels, Mode, Requests};
use turnwise_store::{KeyValue, Proof, RangeRead, Transaction};

use super::entry::{Entry, How};
use super::held::{Held, LockAt, Spot};
use super::rows::{View, capacity};
use crate::keyspace::KeyRange;
use crate::{Keyspace, Result};

/// The most rows that are read of one queue, or of the sharers of one resource; anything after them counts as blocking.
pub(super) const MAX_LOOKED_AT: usize = 10_000;

/// Ranges that are read concurrently.
const CONCURRENT_READS: usize = 64;
/// Locks that are checked together: if one of them is blocked, the reads of the others are wasted.
const TOGETHER: usize = 16;

/// Why a lock is not available now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The lock that was wanted; the whole level if the name is unknown.
    pub lock: LockAt,
    /// What blocks it: at least one job, and at most as many as requested.
    pub by: Vec<Entry>,
}

/// Which jobs may block the caller.
#[derive(Clone, Copy)]
pub(super) enum Rule<'a> {
    /// A claim, with the ticket of its reservation if it has one. It holds nothing yet, so that no job waits for it, and
    /// every earlier job blocks it.
    Claim(Option<i64>),
    /// A running job, with its ticket if it already waits. Reservations do not block it. A job that waits at a level where
    /// it holds nothing does not block it, if this job holds something there. So no job is blocked by a job that waits for
    /// it.
    Run(Option<i64>, &'a Held),
}

/// A range, and how many of its rows are read.
type Wanted = (KeyRange, usize);

/// One search in the rows, for one job.
pub(super) struct Search<'a> {
    pub tx: &'a Transaction,
    pub keys: &'a Keyspace,
    pub levels: &'a Levels,
    /// The job that asks: its own rows do not block.
    pub job_type: &'a str,
    pub id: &'a str,
    pub rule: Rule<'a>,
    /// The most blockers that are returned.
    pub most: usize,
    /// What was read, in one snapshot.
    read: BTreeMap<Wanted, (Vec<KeyValue>, Proof)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        (tx, keys, levels): View<'a>,
        (job_type, id): (&'a str, &'a str),
        rule: Rule<'a>,
        most: usize,
    ) -> Self {
        Search { tx, keys, levels, job_type, id, rule, most: most.max(1), read: BTreeMap::new() }
    }

    /// What blocks the first of these locks that is not available.
    pub(super) async fn first_of(&mut self, locks: &[LockAt]) -> Result<Option<Blocked>> {
        for locks in locks.chunks(TOGETHER) {
            self.fetch(locks.iter().flat_map(|lock| self.wanted(lock)).collect()).await?;
            for lock in locks {
                if let Some(blocked) = self.against(lock)? {
                    return Ok(Some(blocked));
                }
            }
        }
        Ok(None)
    }

    /// What [`first_of`](Search::first_of) reads first.
    pub(super) fn first_reads(&self, locks: &[LockAt]) -> Vec<RangeRead> {
        let wanted = locks.iter().take(TOGETHER).flat_map(|lock| self.wanted(lock));
        wanted.map(|((begin, end), limit)| RangeRead { begin, end, limit, reverse: false }).collect()
    }

    /// What blocks a lock.
    pub(super) async fn lock(&mut self, lock: &LockAt) -> Result<Option<Blocked>> {
        self.first_of(std::slice::from_ref(lock)).await
    }

    /// The reservations that conflict with locks that a job may want once it runs: as their names are unknown, anything of
    /// the level counts.
    pub(super) async fn unknown(&mut self, requests: &Requests) -> Result<Option<Blocked>> {
        for (level, mode) in requests.unknown() {
            let lock = LockAt::new(Spot::whole(level), mode);
            self.fetch(self.queues(&lock.spot)).await?;
            let mut by = self.queue_against(&lock)?;
            // Running jobs that wait do not count: the job will queue behind them if it requests the same.
            by.retain(|by| by.how == How::Reserved);
            if let Some(blocked) = self.blocked(&lock, by) {
                return Ok(Some(blocked));
            }
        }
        Ok(None)
    }

    /// How many conflicts [`prove`](Search::prove) adds.
    pub(super) fn conflicts(&self) -> usize {
        self.read.len()
    }

    /// Makes the transaction conflict with rows that arrive in the ranges that were read. Rows that are removed do not
    /// matter.
    pub(super) fn prove(self) {
        self.read.into_values().for_each(|(_, proof)| self.tx.prove_arrivals(proof));
    }

    /// Reads concurrently what has not been read yet.
    async fn fetch(&mut self, mut wanted: Vec<Wanted>) -> Result<()> {
        wanted.retain(|wanted| !self.read.contains_key(wanted));
        wanted.sort_unstable();
        wanted.dedup();
        let tx = self.tx;
        let read = |wanted: Wanted| async move {
            let ((begin, end), limit) = wanted.clone();
            let found = tx.range_to_prove(RangeRead { begin, end, limit, reverse: false }).await?;
            Ok::<_, turnwise_store::Error>((wanted, found))
        };
        let found: Vec<_> = stream::iter(wanted).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        self.read.extend(found);
        Ok(())
    }

    /// Rows that were fetched.
    fn rows(&self, wanted: &Wanted) -> &[KeyValue] {
        self.read.get(wanted).map(|(rows, _)| rows.as_slice()).unwrap_or_default()
    }

    /// All ranges that are read for a lock.
    fn wanted(&self, lock: &LockAt) -> Vec<Wanted> {
        let mut wanted = self.holders_of(lock);
        wanted.extend(self.queues(&lock.spot));
        if self.counted(lock).is_some() {
            wanted.push(self.sharers(lock));
        }
        wanted
    }

    /// The ranges of holders that may conflict with a lock.
    fn holders_of(&self, lock: &LockAt) -> Vec<Wanted> {
        let modes = match lock.mode {
            Mode::Exclusive => &[Mode::Exclusive, Mode::Shared][..],
            Mode::Shared => &[Mode::Exclusive][..],
        };
        let ranges = modes.iter().flat_map(|mode| match (&lock.spot.level, &lock.spot.name) {
            (Some(level), Some(_)) => {
                let whole = self.keys.lock_holders(&Spot::whole(level), *mode);
                vec![whole, self.keys.lock_holders(&lock.spot, *mode)]
            }
            (Some(level), None) => vec![self.keys.lock_holders_at(level, *mode)],
            (None, _) => vec![self.keys.lock_holders(&lock.spot, *mode)],
        });
        ranges.map(|range| (range, self.most + 1)).collect()
    }

    /// The capacity of a shared lock's resource, if its units are counted.
    fn counted(&self, lock: &LockAt) -> Option<u32> {
        capacity(self.levels, &lock.spot).filter(|_| lock.mode == Mode::Shared)
    }

    /// The holders that share a resource.
    fn sharers(&self, lock: &LockAt) -> Wanted {
        (self.keys.lock_holders(&lock.spot, Mode::Shared), MAX_LOOKED_AT + 1)
    }

    /// The queues in which jobs may be before the caller.
    fn queues(&self, spot: &Spot) -> Vec<Wanted> {
        let Some(level) = &spot.level else { return vec![self.queue(spot)] };
        match spot.name {
            Some(_) => vec![self.queue(&Spot::whole(level)), self.queue(spot)],
            None => vec![(self.keys.lock_queues_at(level), MAX_LOOKED_AT)],
        }
    }

    /// A queue, up to the caller's ticket.
    fn queue(&self, spot: &Spot) -> Wanted {
        let (begin, end) = self.keys.lock_queue(spot);
        let (Rule::Claim(ticket) | Rule::Run(ticket, _)) = self.rule;
        let own = ticket.map(|ticket| self.keys.lock_queue_entry(spot, ticket, self.job_type, self.id));
        ((begin, own.unwrap_or(end)), MAX_LOOKED_AT)
    }

    /// What blocks a lock whose ranges were all fetched.
    fn against(&self, lock: &LockAt) -> Result<Option<Blocked>> {
        let mut by = Vec::new();
        for wanted in self.holders_of(lock) {
            by.extend(self.holders(&wanted)?);
            if by.len() >= self.most {
                break;
            }
        }
        if by.len() < self.most {
            by.extend(self.queue_against(lock)?);
        }
        Ok(self.blocked(lock, by))
    }

    fn blocked(&self, lock: &LockAt, mut by: Vec<Entry>) -> Option<Blocked> {
        by.truncate(self.most);
        (!by.is_empty()).then(|| Blocked { lock: lock.clone(), by })
    }

    /// The holders in a range, without the caller.
    fn holders(&self, wanted: &Wanted) -> Result<Vec<Entry>> {
        let holders = self.rows(wanted).iter().map(|(key, value)| Entry::of_holder(self.keys, key, value));
        let mut holders: Vec<Entry> = holders.collect::<Result<_>>()?;
        holders.retain(|holder| !self.is_own(holder));
        Ok(holders)
    }

    /// The earlier jobs that want what conflicts with this lock. If units are counted and too few are free, also the holders
    /// of units.
    fn queue_against(&self, lock: &LockAt) -> Result<Vec<Entry>> {
        let mut queued = Vec::new();
        for (key, value) in self.queues(&lock.spot).iter().flat_map(|wanted| self.rows(wanted)) {
            let (entry, is_inside) = Entry::of_queue(self.keys, key, value)?;
            if self.binds(&entry, is_inside) {
                queued.push(entry);
            }
        }
        let excludes = |queued: &&Entry| lock.mode == Mode::Exclusive || queued.lock.mode == Mode::Exclusive;
        let mut by: Vec<Entry> = queued.iter().filter(excludes).cloned().collect();
        let Some(capacity) = self.counted(lock) else { return Ok(by) };
        let mut sharers = self.holders(&self.sharers(lock))?;
        queued.retain(|queued| queued.lock.spot == lock.spot && queued.lock.mode == Mode::Shared);
        sharers.append(&mut queued);
        let used: u64 = sharers.iter().map(|sharer| u64::from(sharer.lock.units)).sum();
        let wanted = u64::from(lock.units.min(capacity));
        if used + wanted > u64::from(capacity) {
            by.extend(sharers);
        }
        Ok(by)
    }

    fn is_own(&self, entry: &Entry) -> bool {
        (entry.job_type.as_str(), entry.id.as_str()) == (self.job_type, self.id)
    }

    /// Whether this entry of a queue blocks the caller.
    fn binds(&self, entry: &Entry, is_inside: bool) -> bool {
        let place = (entry.ticket.unwrap_or_default(), entry.job_type.as_str(), entry.id.as_str());
        let before = |own: Option<i64>| own.is_none_or(|own| place < (own, self.job_type, self.id));
        if self.is_own(entry) {
            return false;
        }
        match (self.rule, entry.how) {
            (Rule::Claim(own), _) => before(own),
            (Rule::Run(own, held), How::Waits) => {
                let holds = entry.lock.spot.level.as_ref().is_none_or(|level| held.is_inside(level));
                before(own) && (is_inside || !holds)
            }
            (Rule::Run(..), _) => false,
        }
    }
}
