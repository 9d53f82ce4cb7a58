//! Who holds and who waits, for those who look.

use bytes::Bytes;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use super::held::{LockAt, Spot};
use super::rows::{AllOf, HolderRow, QueueRow};
use super::search::How;
use crate::error::corrupt;
use crate::keyspace::KeyRange;
use crate::rows::decode;
use crate::{Claim, Keyspace, Result};

/// One who holds a lock, waits for it, or has reserved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its row: a listing goes on behind it.
    pub key: Bytes,
    /// The lock.
    pub lock: LockAt,
    /// How it has to do with it.
    pub how: How,
    /// The job's type.
    pub job_type: String,
    /// The job.
    pub id: String,
    /// Whose job it is.
    pub tenant: String,
    /// Since when, in µs.
    pub since_us: i64,
    /// Its claim; none for a reservation.
    pub claim: Option<Claim>,
    /// Who waits or has reserved: its number in the queue, lower first.
    pub ticket: Option<i64>,
}

/// Which rows a listing by place shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Which {
    /// Of this level only: `None` inside is the big lock. Without, of all levels; of the big lock then only who wants it alone, since
    /// everyone who locks anything shares it.
    pub level: Option<Option<String>>,
    /// Of resources of this name only, and of all of their levels, which holds them, too.
    pub name: Option<String>,
}

/// A place in a listing by place: behind the entry that has all of this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// The lock.
    pub spot: Spot,
    /// Who holds it exclusive, who holds it shared, who stands in its queue: in this order.
    pub kind: Kind,
    /// Of a queue: the number in it.
    pub ticket: i64,
    /// The job's type.
    pub job_type: String,
    /// The job.
    pub id: String,
}

/// In which of its rows a lock names a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Who holds it.
    Held(Mode),
    /// Who waits for it, or has reserved it.
    Queued,
}

/// The order within a place: exclusive holders are before shared ones, as their keys are.
const KINDS: [Kind; 3] = [Kind::Held(Mode::Exclusive), Kind::Held(Mode::Shared), Kind::Queued];
/// Rows of the big lock's queue that are looked at for those who want it alone.
const MAX_PASSED_OVER: usize = 1_000;
/// Levels that one listing goes through at most.
const MAX_LEVELS_LISTED: usize = 64;

impl Entry {
    /// Where a listing by place goes on behind this entry.
    pub fn behind(&self) -> Behind {
        let kind = if self.how == How::Holds { Kind::Held(self.lock.mode) } else { Kind::Queued };
        Behind {
            spot: self.lock.spot.clone(),
            kind,
            ticket: self.ticket.unwrap_or_default(),
            job_type: self.job_type.clone(),
            id: self.id.clone(),
        }
    }
}

impl Kind {
    fn order(self) -> usize {
        KINDS.iter().position(|kind| *kind == self).unwrap_or(KINDS.len())
    }

    fn range(self, keys: &Keyspace, spot: &Spot) -> KeyRange {
        match self {
            Kind::Held(mode) => keys.lock_holders(spot, mode),
            Kind::Queued => keys.lock_queue(spot),
        }
    }

    fn range_at(self, keys: &Keyspace, level: Option<&str>) -> KeyRange {
        match (self, level) {
            (_, None) => self.range(keys, &Spot::BIG_LOCK),
            (Kind::Held(mode), Some(level)) => keys.lock_holders_at(level, mode),
            (Kind::Queued, Some(level)) => keys.lock_queues_at(level),
        }
    }
}

/// One who runs, and has declared locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The job's type.
    pub job_type: String,
    /// The job.
    pub id: String,
    /// Whose job it is.
    pub tenant: String,
    /// Its claim.
    pub claim: Claim,
    /// What it declares, holds, and waits for.
    pub all: AllOf,
}

/// Up to `limit` entries, behind the one with the key `after` if it is given: first those who hold locks, the big lock and then
/// by level, mode and name; then those who wait, by level, name and ticket. Takes no conflict.
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Bytes>,
    limit: usize,
) -> Result<Vec<Entry>> {
    let behind = |(begin, end): KeyRange, after: &Bytes| {
        (begin <= *after && *after < end).then(|| (successor(after), end))
    };
    let (holders, queues) = (keys.locks(), keys.lock_queues());
    let (holders, queues) = match after {
        None => (Some(holders), Some(queues)),
        Some(after) => match behind(holders, after) {
            Some(rest) => (Some(rest), Some(queues)),
            None => (None, behind(queues, after)),
        },
    };
    let mut entries = Vec::new();
    if let Some(range) = holders {
        entries = held(tx, keys, range, limit).await?;
    }
    let Some(range) = queues.filter(|_| entries.len() < limit) else { return Ok(entries) };
    entries.extend(queued(tx, keys, range, limit - entries.len()).await?);
    Ok(entries)
}

async fn held(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Vec<Entry>> {
    let rows = read(tx, range, limit).await?.into_iter().map(|(key, value)| {
        let (spot, mode, job_type, id) = parse(keys, &key)?;
        let HolderRow { claim, tenant, since_us, units, .. } = decode("lock row", &value)?;
        let lock = LockAt { spot, mode, units };
        let (how, claim) = (How::Holds, Some(claim));
        Ok(Entry { key, lock, how, job_type, id, tenant, since_us, claim, ticket: None })
    });
    rows.collect()
}

async fn queued(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Vec<Entry>> {
    let rows = read(tx, range, limit).await?.into_iter().map(|(key, value)| {
        let (spot, ticket, job_type, id) =
            keys.parse_lock_queue(&key).ok_or_else(|| corrupt("lock queue key", "not a tuple of six"))?;
        let QueueRow { mode, units, tenant, since_us, waits } = decode("lock queue row", &value)?;
        let lock = LockAt { spot, mode, units };
        let how = if waits.is_some() { How::Waits } else { How::Reserved };
        let (claim, ticket) = (waits.map(|waits| waits.claim), Some(ticket));
        Ok(Entry { key, lock, how, job_type, id, tenant, since_us, claim, ticket })
    });
    rows.collect()
}

/// The same by place: of each level all of it first, then its resources by name; of each place who holds it, then who stands in its
/// queue, the first one first. Up to `limit` entries behind a place; and the place that the next page begins behind, unless this was the
/// last one. Takes no conflict.
pub async fn list_by_place(
    tx: &Transaction,
    keys: &Keyspace,
    which: &Which,
    after: Option<Behind>,
    limit: usize,
) -> Result<(Vec<Entry>, Option<Behind>)> {
    let limit = limit.max(1);
    let mut level = match (&which.level, &after) {
        (Some(level), _) => level.clone(),
        (None, Some(after)) => after.spot.level.clone(),
        (None, None) => None,
    };
    let mut page: Vec<Entry> = Vec::new();
    for _ in 0..MAX_LEVELS_LISTED {
        let after = after.as_ref().filter(|after| after.spot.level == level);
        let more = limit + 1 - page.len();
        let mut found = at_level(tx, keys, which, level.as_deref(), after, more).await?;
        page.append(&mut found);
        if page.len() > limit {
            page.truncate(limit);
            let behind = page.last().map(Entry::behind);
            return Ok((page, behind));
        }
        if which.level.is_some() {
            break;
        }
        match next_level(tx, keys, level.as_deref()).await? {
            Some(next) => level = Some(next),
            None => break,
        }
    }
    Ok((page, None))
}

/// The first of one level's, in their order.
async fn at_level(
    tx: &Transaction,
    keys: &Keyspace,
    which: &Which,
    level: Option<&str>,
    after: Option<&Behind>,
    limit: usize,
) -> Result<Vec<Entry>> {
    // Where each one who locks anything shares the big lock, those who do are no news.
    let alone = level.is_none() && which.level.is_none();
    let spots: Vec<Option<Spot>> = match (level, &which.name) {
        (Some(level), Some(name)) => vec![Some(Spot::whole(level)), Some(Spot::resource(level, name))],
        _ => vec![None],
    };
    let mut found = Vec::new();
    for spot in &spots {
        for kind in KINDS.into_iter().filter(|kind| !alone || *kind != Kind::Held(Mode::Shared)) {
            let (mut begin, end) = match spot {
                Some(spot) => kind.range(keys, spot),
                None => kind.range_at(keys, level),
            };
            if let Some(after) = after {
                begin = begin.max(start(keys, kind, after));
            }
            if begin >= end {
                continue;
            }
            let mut entries = match kind {
                Kind::Held(_) => held(tx, keys, (begin, end), limit).await?,
                // Those who share it are left out below.
                Kind::Queued if alone => queued(tx, keys, (begin, end), limit.max(MAX_PASSED_OVER)).await?,
                Kind::Queued => queued(tx, keys, (begin, end), limit).await?,
            };
            entries.retain(|entry| !alone || entry.lock.mode == Mode::Exclusive);
            found.append(&mut entries);
        }
    }
    // What is of one place and kind stands in its order already.
    found.sort_by(|one, other| {
        let place = |entry: &Entry| entry.behind().kind.order();
        one.lock.spot.name.cmp(&other.lock.spot.name).then_with(|| place(one).cmp(&place(other)))
    });
    found.truncate(limit);
    Ok(found)
}

/// Where the rows of a kind go on behind an entry.
fn start(keys: &Keyspace, kind: Kind, after: &Behind) -> Bytes {
    let Behind { spot, kind: last, ticket, job_type, id } = after;
    let (begin, end) = kind.range(keys, spot);
    match kind.order().cmp(&last.order()) {
        std::cmp::Ordering::Less => end,
        std::cmp::Ordering::Greater => begin,
        std::cmp::Ordering::Equal => successor(&match kind {
            Kind::Held(mode) => keys.lock_holder(spot, mode, job_type, id),
            Kind::Queued => keys.lock_queue_entry(spot, *ticket, job_type, id),
        }),
    }
}

/// The next level of which something is held or wanted.
async fn next_level(tx: &Transaction, keys: &Keyspace, level: Option<&str>) -> Result<Option<String>> {
    // Of a level the shared holders have the last rows.
    let held = (Kind::Held(Mode::Shared).range_at(keys, level).1, keys.locks().1);
    let queued = (Kind::Queued.range_at(keys, level).1, keys.lock_queues().1);
    let mut next = None;
    for (key, _) in read(tx, held, 1).await? {
        next = parse(keys, &key)?.0.level;
    }
    for (key, _) in read(tx, queued, 1).await? {
        let (spot, ..) =
            keys.parse_lock_queue(&key).ok_or_else(|| corrupt("lock queue key", "not a tuple of six"))?;
        next = match (next, spot.level) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    Ok(next)
}

/// Up to `limit` jobs of all types that run and have declared locks, each with what it holds: one row per job. Takes no conflict.
pub async fn running(tx: &Transaction, keys: &Keyspace, limit: usize) -> Result<Vec<Running>> {
    running_in(tx, keys, |mode| keys.lock_holders(&Spot::BIG_LOCK, mode), limit).await
}

/// The same of one type: nothing is read of others.
pub async fn running_of(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    limit: usize,
) -> Result<Vec<Running>> {
    running_in(tx, keys, |mode| keys.big_lock_holders_of(mode, job_type), limit).await
}

async fn running_in(
    tx: &Transaction,
    keys: &Keyspace,
    range: impl Fn(Mode) -> KeyRange,
    limit: usize,
) -> Result<Vec<Running>> {
    let mut found = Vec::new();
    for mode in [Mode::Exclusive, Mode::Shared] {
        for (key, value) in read(tx, range(mode), limit - found.len()).await? {
            let (_, _, job_type, id) = parse(keys, &key)?;
            let HolderRow { claim, tenant, all, .. } = decode("lock row", &value)?;
            let all = *all.ok_or_else(|| {
                corrupt("lock row", "the one of the big lock does not say what else is held")
            })?;
            found.push(Running { job_type, id, tenant, claim, all });
        }
    }
    Ok(found)
}

fn parse(keys: &Keyspace, key: &[u8]) -> Result<(Spot, Mode, String, String)> {
    keys.parse_lock(key).ok_or_else(|| corrupt("lock key", "not a tuple of six"))
}

async fn read(tx: &Transaction, (begin, end): KeyRange, limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
    Ok(tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?)
}
