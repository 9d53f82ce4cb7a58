//! Listings of holders and queues of locks.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_store::Transaction;
use turnwise_store::key::successor;

use super::entry::{Entry, How};
use super::held::Spot;
use super::rows::{AllOf, HolderRow};
use crate::error::corrupt;
use crate::keyspace::{KeyRange, behind};
use crate::reads;
use crate::rows::decode;
use crate::{Claim, Keyspace, Result};

/// Which rows a listing by place includes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Which {
    /// Only this level; an inner `None` is the big lock. An outer `None` lists all levels. Of the big lock, it then lists
    /// only the jobs that hold or want it exclusively, since every job with locks shares it.
    pub level: Option<Option<String>>,
    /// Only resources of this name, and locks on their whole levels, which include them.
    pub name: Option<String>,
}

/// A position in a listing by place: after the entry with these values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// The lock.
    pub spot: Spot,
    /// Exclusive holders, shared holders, or queue: in this order.
    pub kind: Kind,
    /// In a queue: the ticket.
    pub ticket: i64,
    /// The job's type.
    pub job_type: String,
    /// The job.
    pub id: String,
}

/// The kind of row in which a lock names a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A holder.
    Held(Mode),
    /// A job that waits for it, or has reserved it.
    Queued,
}

/// The order within a place: exclusive holders before shared ones, as in their keys.
const KINDS: [Kind; 3] = [Kind::Held(Mode::Exclusive), Kind::Held(Mode::Shared), Kind::Queued];
/// The most rows of the big lock's queue that are read to find jobs that want it exclusively.
const MAX_PASSED_OVER: usize = 1_000;
/// The most levels that one listing reads.
const MAX_LEVELS_LISTED: usize = 64;

impl Entry {
    /// Where a listing by place continues after this entry.
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

/// A running job that has declared locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The job's type.
    pub job_type: String,
    /// The job.
    pub id: String,
    /// The job's tenant.
    pub tenant: String,
    /// Its claim.
    pub claim: Claim,
    /// The locks that it declares, holds, and waits for.
    pub all: AllOf,
}

/// Up to `limit` entries, after the one with the key `after` if given. Holders come first: the big lock, then by level, mode
/// and name. Queues follow, by level, name and ticket. Adds no read conflict.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Bytes>,
    limit: usize,
) -> Result<Vec<Entry>> {
    let queues = keys.lock_queues();
    let in_queues = after.filter(|after| (&queues.0..&queues.1).contains(after)).cloned();
    let mut entries = match in_queues {
        Some(_) => Vec::new(),
        None => held(tx, keys, behind(keys.locks(), after.cloned()), limit).await?,
    };
    let queued = queued(tx, keys, behind(queues, in_queues), limit - entries.len()).await?;
    entries.extend(queued);
    Ok(entries)
}

async fn held(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Vec<Entry>> {
    reads::list(tx, range, limit, |key, value| Entry::of_holder(keys, key, value)).await
}

async fn queued(tx: &Transaction, keys: &Keyspace, range: KeyRange, limit: usize) -> Result<Vec<Entry>> {
    reads::list(tx, range, limit, |key, value| Ok(Entry::of_queue(keys, key, value)?.0)).await
}

/// The same by place: of each level the whole level first, then its resources by name. Each place lists its holders, then
/// its queue in order. Returns up to `limit` entries after a position, and the position after which the next page starts,
/// unless this was the last page. Adds no read conflict.
#[boxed]
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

/// The first entries of one level, in order.
async fn at_level(
    tx: &Transaction,
    keys: &Keyspace,
    which: &Which,
    level: Option<&str>,
    after: Option<&Behind>,
    limit: usize,
) -> Result<Vec<Entry>> {
    // Every job with locks shares the big lock, so a listing of all levels leaves the sharers out.
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
                // The shared ones are filtered out below.
                Kind::Queued if alone => queued(tx, keys, (begin, end), limit.max(MAX_PASSED_OVER)).await?,
                Kind::Queued => queued(tx, keys, (begin, end), limit).await?,
            };
            entries.retain(|entry| !alone || entry.lock.mode == Mode::Exclusive);
            found.append(&mut entries);
        }
    }
    // The entries of one place and kind are already in order.
    found.sort_by(|one, other| {
        let place = |entry: &Entry| entry.behind().kind.order();
        one.lock.spot.name.cmp(&other.lock.spot.name).then_with(|| place(one).cmp(&place(other)))
    });
    found.truncate(limit);
    Ok(found)
}

/// Where the rows of a kind continue after an entry.
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

/// The next level with holders or a queue.
async fn next_level(tx: &Transaction, keys: &Keyspace, level: Option<&str>) -> Result<Option<String>> {
    // Within a level, the shared holders have the last rows.
    let held = (Kind::Held(Mode::Shared).range_at(keys, level).1, keys.locks().1);
    let queued = (Kind::Queued.range_at(keys, level).1, keys.lock_queues().1);
    let held = reads::list(tx, held, 1, |key, _| Ok(keys.parse_lock(key)?.0.level)).await?;
    let queued = reads::list(tx, queued, 1, |key, _| Ok(keys.parse_lock_queue(key)?.0.level)).await?;
    Ok(held.into_iter().chain(queued).flatten().min())
}

/// Up to `limit` running jobs of all types that have declared locks, each with its locks: one row per job. Adds no read
/// conflict.
#[boxed]
pub async fn running(tx: &Transaction, keys: &Keyspace, limit: usize) -> Result<Vec<Running>> {
    running_in(tx, keys, |mode| keys.lock_holders(&Spot::BIG_LOCK, mode), limit).await
}

/// The same for one type; reads nothing of other types.
#[boxed]
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
        for (key, value) in reads::rows(tx, range(mode), limit - found.len()).await? {
            let (_, _, job_type, id) = keys.parse_lock(&key)?;
            let HolderRow { claim, tenant, all, .. } = decode("lock row", &value)?;
            let all = *all.ok_or_else(|| {
                corrupt("lock row", "the one of the big lock does not say what else is held")
            })?;
            found.push(Running { job_type, id, tenant, claim, all });
        }
    }
    Ok(found)
}
