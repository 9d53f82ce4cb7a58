//! Who is in the way of a lock.
//!
//! Reads are ranges, so that the store's serializability makes locks exclusive: a lock that is taken has proven that the rows of
//! those who could be in its way were not there, and whoever writes one of them meanwhile conflicts. Who takes a lock shared reads
//! no row that others who do so write, unless units are counted.

use std::collections::{BTreeMap, BTreeSet};

use turnwise_policy::predictive_queue::locks::{Levels, Mode, Request, Requests};
use turnwise_store::{Isolation, RangeRead, Transaction};

use super::held::{Held, LockAt, Spot};
use super::rows::{HolderRow, QueueRow, capacity};
use crate::error::corrupt;
use crate::keyspace::KeyRange;
use crate::rows::decode;
use crate::{Keyspace, Result};

/// Rows of one queue, or of those who share one resource, that are looked at; what stands behind them is in the way.
pub(super) const MAX_LOOKED_AT: usize = 10_000;

/// Somebody in the way of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// What it has, or wants and came first.
    pub lock: LockAt,
    /// How it is in the way.
    pub how: How,
    /// The job's type.
    pub job_type: String,
    /// The job.
    pub id: String,
    /// Whose job it is.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
}

/// How somebody is in the way of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum How {
    /// Holds it.
    Holds,
    /// Runs, waits for it, and came first.
    Waits,
    /// Is pending, has reserved it, and came first.
    Reserved,
}

/// Why a lock cannot be had now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// What was wanted; where nobody knows which, all of the level.
    pub lock: LockAt,
    /// Who is in its way: at least one, at most as many as were asked for.
    pub by: Vec<Blocker>,
}

/// By whom one may be kept waiting.
#[derive(Clone, Copy)]
pub(super) enum Rule<'a> {
    /// A claim: it holds nothing yet, so that nobody waits for it, and whoever came first is before it. The ticket of its
    /// reservation, if it has one.
    Claim(Option<i64>),
    /// Who runs: reservations do not bind it, and neither does who waits for a level of which it holds something and they do not. So
    /// nobody is kept by one who waits for him. Its ticket, if it waits already.
    Run(Option<i64>, &'a Held),
}

/// One who waits, or has reserved.
#[derive(Clone)]
struct Queued {
    spot: Spot,
    ticket: i64,
    job_type: String,
    id: String,
    row: QueueRow,
}

/// One look at the rows, for one job.
pub(super) struct Search<'a> {
    pub tx: &'a Transaction,
    pub keys: &'a Keyspace,
    pub levels: &'a Levels,
    pub isolation: Isolation,
    /// Who asks: its own rows are in nobody's way.
    pub job_type: &'a str,
    pub id: &'a str,
    pub rule: Rule<'a>,
    /// Blockers that are told.
    pub most: usize,
    /// Rows that were seen of those who share what is counted: each of them is proven by itself.
    pub sharers: usize,
    /// Levels whose holders of all of it were looked at, in this mode, and none was found.
    without: BTreeSet<(String, Mode)>,
    /// The queues of all of a level that were read.
    whole: BTreeMap<String, Vec<Queued>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        (tx, keys, levels): (&'a Transaction, &'a Keyspace, &'a Levels),
        isolation: Isolation,
        (job_type, id): (&'a str, &'a str),
        rule: Rule<'a>,
        most: usize,
    ) -> Self {
        let (without, whole) = (BTreeSet::new(), BTreeMap::new());
        Search {
            tx,
            keys,
            levels,
            isolation,
            job_type,
            id,
            rule,
            most: most.max(1),
            sharers: 0,
            without,
            whole,
        }
    }

    /// Who is in the way of the first of these locks that cannot be had.
    pub(super) async fn first_of(&mut self, locks: &[LockAt]) -> Result<Option<Blocked>> {
        for lock in locks {
            if let Some(blocked) = self.lock(lock).await? {
                return Ok(Some(blocked));
            }
        }
        Ok(None)
    }

    /// Who is in the way of a lock.
    pub(super) async fn lock(&mut self, lock: &LockAt) -> Result<Option<Blocked>> {
        let mut by = self.holders_against(lock).await?;
        if by.len() < self.most {
            by.extend(self.queue_against(lock).await?);
        }
        Ok(self.blocked(lock, by))
    }

    /// Who has reserved something that a job may want once it runs: it does not know what, so that anything of the level counts.
    pub(super) async fn unknown(&mut self, requests: &Requests) -> Result<Option<Blocked>> {
        for (level, at) in &requests.levels {
            for request in at.requests() {
                let mode = match request {
                    Request::UnknownShared => Mode::Shared,
                    Request::UnknownExclusive => Mode::Exclusive,
                    _ => continue,
                };
                let lock = LockAt::new(Spot::whole(level), mode);
                let mut by = self.queue_against(&lock).await?;
                // Behind those who run and wait it will stand in the queue, if it wants the same.
                by.retain(|by| by.how == How::Reserved);
                if let Some(blocked) = self.blocked(&lock, by) {
                    return Ok(Some(blocked));
                }
            }
        }
        Ok(None)
    }

    fn blocked(&self, lock: &LockAt, mut by: Vec<Blocker>) -> Option<Blocked> {
        by.truncate(self.most);
        (!by.is_empty()).then(|| Blocked { lock: lock.clone(), by })
    }

    async fn holders_against(&mut self, lock: &LockAt) -> Result<Vec<Blocker>> {
        let modes = match lock.mode {
            Mode::Exclusive => &[Mode::Exclusive, Mode::Shared][..],
            Mode::Shared => &[Mode::Exclusive][..],
        };
        let mut by = Vec::new();
        for mode in modes {
            match (&lock.spot.level, &lock.spot.name) {
                (Some(level), Some(_)) => {
                    if !self.without.contains(&(level.clone(), *mode)) {
                        let found = self
                            .holders(self.keys.lock_holders(&Spot::whole(level), *mode), self.most)
                            .await?;
                        if found.is_empty() {
                            self.without.insert((level.clone(), *mode));
                        }
                        by.extend(found);
                    }
                    by.extend(self.holders(self.keys.lock_holders(&lock.spot, *mode), self.most).await?);
                }
                (Some(level), None) => {
                    by.extend(self.holders(self.keys.lock_holders_at(level, *mode), self.most).await?);
                }
                (None, _) => {
                    by.extend(self.holders(self.keys.lock_holders(&lock.spot, *mode), self.most).await?);
                }
            }
            if by.len() >= self.most {
                break;
            }
        }
        Ok(by)
    }

    /// Up to `most` holders of a range, without the one who asks.
    async fn holders(&self, (begin, end): KeyRange, most: usize) -> Result<Vec<Blocker>> {
        let read = RangeRead { begin, end, limit: most + 1, reverse: false };
        let mut found = Vec::new();
        for (key, value) in self.tx.range_with(read, self.isolation).await? {
            let (spot, mode, job_type, id) =
                self.keys.parse_lock(&key).ok_or_else(|| corrupt("lock key", "not a tuple of six"))?;
            if self.is_own(&job_type, &id) {
                continue;
            }
            let HolderRow { tenant, since_us, units, .. } = decode("lock row", &value)?;
            let lock = LockAt { spot, mode, units };
            found.push(Blocker { lock, how: How::Holds, job_type, id, tenant, since_us });
        }
        Ok(found)
    }

    /// Who came first and wants what does not go with this lock. Of units that are counted, also those who hold some.
    async fn queue_against(&mut self, lock: &LockAt) -> Result<Vec<Blocker>> {
        let mut by = Vec::new();
        let mut same = Vec::new();
        match (&lock.spot.level, &lock.spot.name) {
            (Some(level), Some(_)) => {
                if !self.whole.contains_key(level) {
                    let queued = self.queue(self.keys.lock_queue(&Spot::whole(level))).await?;
                    self.whole.insert(level.clone(), queued);
                }
                by.extend(self.whole.get(level).into_iter().flatten().cloned());
                same = self.queue(self.keys.lock_queue(&lock.spot)).await?;
            }
            (Some(level), None) => by = self.queue(self.keys.lock_queues_at(level)).await?,
            (None, _) => same = self.queue(self.keys.lock_queue(&lock.spot)).await?,
        }
        by.extend(same.iter().cloned());
        let mut by: Vec<Blocker> = by
            .into_iter()
            .filter(|queued| self.binds(queued))
            .filter(|queued| lock.mode == Mode::Exclusive || queued.row.mode == Mode::Exclusive)
            .map(Queued::blocker)
            .collect();
        let Some(capacity) = capacity(self.levels, &lock.spot).filter(|_| lock.mode == Mode::Shared) else {
            return Ok(by);
        };
        let mut sharers =
            self.holders(self.keys.lock_holders(&lock.spot, Mode::Shared), MAX_LOOKED_AT).await?;
        self.sharers += sharers.len();
        let first = same.into_iter().filter(|queued| self.binds(queued) && queued.row.mode == Mode::Shared);
        sharers.extend(first.map(Queued::blocker));
        let used: u64 = sharers.iter().map(|sharer| u64::from(sharer.lock.units)).sum();
        let wanted = u64::from(lock.units.min(capacity));
        if used + wanted > u64::from(capacity) {
            by.extend(sharers);
        }
        Ok(by)
    }

    async fn queue(&self, (begin, end): KeyRange) -> Result<Vec<Queued>> {
        let read = RangeRead { begin, end, limit: MAX_LOOKED_AT, reverse: false };
        let rows = self.tx.range_with(read, self.isolation).await?;
        let read = rows.into_iter().map(|(key, value)| {
            let (spot, ticket, job_type, id) = self
                .keys
                .parse_lock_queue(&key)
                .ok_or_else(|| corrupt("lock queue key", "not a tuple of six"))?;
            Ok(Queued { spot, ticket, job_type, id, row: decode("lock queue row", &value)? })
        });
        read.collect()
    }

    fn is_own(&self, job_type: &str, id: &str) -> bool {
        (job_type, id) == (self.job_type, self.id)
    }

    /// Whether who stands there comes first.
    fn binds(&self, queued: &Queued) -> bool {
        let Queued { spot, ticket, job_type, id, row } = queued;
        let before = |own: Option<i64>| {
            own.is_none_or(|own| (*ticket, job_type.as_str(), id.as_str()) < (own, self.job_type, self.id))
        };
        if self.is_own(job_type, id) {
            return false;
        }
        match (self.rule, &row.waits) {
            (Rule::Claim(own), _) => before(own),
            (Rule::Run(..), None) => false,
            (Rule::Run(own, held), Some(waiter)) => {
                let inside = spot.level.as_ref().is_none_or(|level| held.is_inside(level));
                before(own) && (waiter.inside || !inside)
            }
        }
    }
}

impl Queued {
    fn blocker(self) -> Blocker {
        let Queued { spot, job_type, id, row, .. } = self;
        let QueueRow { mode, units, tenant, since_us, waits } = row;
        let how = if waits.is_some() { How::Waits } else { How::Reserved };
        Blocker { lock: LockAt { spot, mode, units }, how, job_type, id, tenant, since_us }
    }
}
