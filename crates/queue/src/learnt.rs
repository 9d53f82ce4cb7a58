//! What past runs locked, as rows, for the runs to come.
//!
//! *Model.* A job's [`Traits`] are values of options that it shares with other jobs. When a run completes whose job did not
//! know all its locks, the transaction that ends it updates the [`Experience`] of each of these values. So the experience
//! survives restarts, is the same for all nodes, and counts each run once.
//!
//! *Forces.*
//!
//! - *No hot rows.* The experience is read without a conflict: of runs that end at the same moment, one may be lost. The
//!   experience is a sample, and one run less does not matter.
//! - *Bounded by construction.* There are [`SLOTS`] rows, for any number of values. A hash gives each value a choice of two
//!   rows. A new value takes an empty row. If there is none, it takes the row of a value that was seen only once (the older
//!   first), or else of one not seen for [`FORGOTTEN_US`]. Otherwise it is not learnt. So values that never return (ids,
//!   times) replace each other, and no value that returns.
//! - *Never an obstacle.* A run's end does not fail because of the experience. A row that cannot be read is replaced, and
//!   nothing is learnt if the transaction has no room.

use serde::{Deserialize, Serialize};
use turnwise_policy::contention::hash;
use turnwise_policy::predictive_queue::experience::{Experience, Traits};
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_store::{Isolation, Transaction};

use crate::locks::{Held, LockAt};
use crate::rows::encode;
use crate::{Job, Keyspace, Result};

/// The most rows, and so the most values with experience.
pub const SLOTS: u64 = 16_384;
/// How long a value that was seen more than once keeps its row after it was last seen, in µs: a day.
pub const FORGOTTEN_US: i64 = 86_400_000_000;
/// The longest list of locks that one run has released before its end, as JSON in bytes.
const MAX_GIVEN_BACK_BYTES: usize = 2 << 10;

/// The experience with one value of an option of jobs of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learnt {
    /// The kind of jobs: [`Traits::kind`].
    pub kind: String,
    /// The option.
    pub option: String,
    /// Its value.
    pub value: String,
    /// When a run with it last ended, in µs.
    pub seen_us: i64,
    /// It was seen before `seen_us`, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// What those runs locked.
    pub locked: Experience,
}

impl Learnt {
    /// The numbers of the two rows that it may be in.
    pub fn slots(&self) -> [u64; 2] {
        slots(&self.kind, &self.option, &self.value)
    }

    fn is_of(&self, kind: &str, option: &str, value: &str) -> bool {
        self.kind == kind && self.option == option && self.value == value
    }
}

fn slots(kind: &str, option: &str, value: &str) -> [u64; 2] {
    let name = format!("{kind}\0{option}\0{value}");
    [0, 1].map(|choice| hash(&name, choice) % SLOTS)
}

/// The experience with a value; `None` if there is none. Adds no read conflict.
pub async fn get(
    tx: &Transaction,
    keys: &Keyspace,
    kind: &str,
    option: &str,
    value: &str,
) -> Result<Option<Experience>> {
    let found = read(tx, keys, slots(kind, option, value)).await?;
    let found = found.into_iter().flatten().find(|learnt| learnt.is_of(kind, option, value));
    Ok(found.map(|learnt| learnt.locked))
}

async fn read(tx: &Transaction, keys: &Keyspace, slots: [u64; 2]) -> Result<[Option<Learnt>; 2]> {
    let mut rows = [None, None];
    for (row, slot) in rows.iter_mut().zip(slots) {
        let value = tx.get_with(&keys.learnt(slot), Isolation::Snapshot).await?;
        *row = value.and_then(|value| serde_json::from_slice(&value).ok());
    }
    Ok(rows)
}

/// Locks of a run that its job did not know in advance.
pub(crate) struct Observed {
    traits: Traits,
    declared: Requests,
    locked: Requests,
}

/// The locks to learn from a run that completes now; `None` if there is nothing to learn. Call it before the locks are
/// released.
pub(crate) fn observe(job: &Job) -> Option<Observed> {
    let learns = !job.traits.is_empty() && job.locks.has_unknown();
    // A run that released too many locks is not counted: its record has only some of them.
    let run = job.run().filter(|run| learns && !is_too_much(&run.gave_back))?;
    let locked = run.held.as_ref()?.requests().merge(run.gave_back.clone());
    Some(Observed { traits: job.traits.clone(), declared: job.locks.clone(), locked })
}

/// Stores what was observed.
pub(crate) async fn record(
    tx: &Transaction,
    keys: &Keyspace,
    observed: Option<Observed>,
    now_us: i64,
) -> Result<()> {
    let Some(Observed { traits, declared, locked }) = observed else { return Ok(()) };
    for (option, value) in &traits.values {
        if !tx.has_room() {
            break;
        }
        let slots = slots(&traits.kind, option, value);
        let rows = read(tx, keys, slots).await?;
        let Some(place) = place(&rows, |learnt| learnt.is_of(&traits.kind, option, value), now_us) else {
            continue;
        };
        let [one, other] = rows;
        let known = if place == 0 { one } else { other };
        let known = known.filter(|learnt| learnt.is_of(&traits.kind, option, value));
        let again = known.is_some();
        let mut experience = known.map(|learnt| learnt.locked).unwrap_or_default();
        experience.record(&declared, &locked);
        let learnt = Learnt {
            kind: traits.kind.clone(),
            option: option.clone(),
            value: value.clone(),
            seen_us: now_us,
            again,
            locked: experience,
        };
        tx.set(keys.learnt(slots[place]), encode(&learnt))?;
    }
    Ok(())
}

/// Which of a value's two rows it gets: its own, an empty one, or one that may be replaced.
fn place(rows: &[Option<Learnt>; 2], is_it: impl Fn(&Learnt) -> bool, now_us: i64) -> Option<usize> {
    let found = rows.iter().position(|row| row.as_ref().is_some_and(&is_it));
    found.or_else(|| rows.iter().position(Option::is_none)).or_else(|| {
        let may_go = |learnt: &Learnt| !learnt.again || now_us.saturating_sub(learnt.seen_us) >= FORGOTTEN_US;
        let rows = rows.iter().enumerate().filter_map(|(place, row)| Some((place, row.as_ref()?)));
        let goes = rows.filter(|(_, learnt)| may_go(learnt));
        goes.min_by_key(|(_, learnt)| (learnt.again, learnt.seen_us)).map(|(place, _)| place)
    })
}

/// Remembers a lock that a job requested while it ran and now releases. It stores one lock above the limit, which marks the
/// run as one with too many.
pub(crate) fn gives_back(job: &mut Job, lock: &LockAt) {
    let level = lock.spot.level.as_deref();
    let learns = !job.traits.is_empty() && job.locks.unknown().any(|(at, _)| Some(at) == level);
    if let Some(run) = job.run_mut().filter(|run| learns && !is_too_much(&run.gave_back)) {
        run.gave_back = std::mem::take(&mut run.gave_back).merge(lock.requests());
    }
}

fn is_too_much(gave_back: &Requests) -> bool {
    encode(gave_back).len() > MAX_GIVEN_BACK_BYTES
}

impl Held {
    /// The same as requests, without the big lock.
    fn requests(&self) -> Requests {
        let locks = self.locks().into_iter().filter(|lock| lock.spot.level.is_some());
        locks.fold(Requests::default(), |all, lock| all.merge(lock.requests()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn learnt(value: &str, seen_us: i64, again: bool) -> Learnt {
        let (kind, option, locked) = ("t".to_owned(), "o".to_owned(), Experience::default());
        Learnt { kind, option, value: value.to_owned(), seen_us, again, locked }
    }

    #[test]
    fn a_value_seen_once_is_replaced_and_a_value_seen_again_stays_for_a_day() {
        let is_new = |learnt: &Learnt| learnt.is_of("t", "o", "new");
        let place_at =
            |one: Option<Learnt>, other: Option<Learnt>, now_us| place(&[one, other], is_new, now_us);
        let (once, again) = (|us| Some(learnt("a", us, false)), |us| Some(learnt("b", us, true)));
        assert_eq!(place_at(None, None, 9), Some(0));
        assert_eq!(place_at(again(1), None, 9), Some(1));
        assert_eq!(place_at(again(1), Some(learnt("new", 0, false)), 9), Some(1), "its own");
        assert_eq!(place_at(once(2), once(1), 9), Some(1), "the older one");
        assert_eq!(place_at(again(1), once(8), 9), Some(1));
        assert_eq!(place_at(again(1), again(2), 9), None);
        assert_eq!(place_at(again(1), again(2), 1 + FORGOTTEN_US), Some(0));
        // With a clock that is behind.
        assert_eq!(place_at(again(FORGOTTEN_US), again(2 * FORGOTTEN_US), 9), None);
    }

    #[test]
    fn a_value_has_two_slots_that_never_change() {
        // Other releases find their rows by these slots.
        assert_eq!(slots("cluster instance-migrate", "instance", "web1"), [121, 2675]);
        let spread: std::collections::BTreeSet<u64> =
            (0..1_000).flat_map(|n| slots("t", "o", &n.to_string())).collect();
        assert!(spread.len() > 1_850 && spread.iter().all(|slot| *slot < SLOTS), "{}", spread.len());
    }
}
