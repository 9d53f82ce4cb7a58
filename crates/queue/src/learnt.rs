//! What past runs locked, as rows, for those to come.
//!
//! *Model.* A job's [`Traits`] are what it has in common with others: values of options. When a run has ended well whose job did not know
//! what it would lock, the [`Experience`] of each of these values is written anew, in the transaction that ends the run. So
//! it survives restarts, is the same for all nodes, and no run counts twice.
//!
//! *Forces.*
//!
//! - *No hot rows.* The experience is read without a conflict: of runs that end at the same moment elsewhere one may be missing
//!   in it afterwards. It is a sample, and a run less is none.
//! - *Bounded by construction.* There are [`SLOTS`] rows, whatever values come. Each value has two of them to choose from, by its hash. A new one
//!   takes an empty one; or the place of one that was seen once only, the older first; or of one that was not seen for [`FORGOTTEN_US`].
//!   Otherwise it is not learnt. So values that never come back (ids, times) push out each other, and none that do.
//! - *Never in the way.* A run's end does not fail because of it: a row that cannot be read is written anew, and where the transaction has no more
//!   room nothing is learnt.

use serde::{Deserialize, Serialize};
use turnwise_policy::contention::hash;
use turnwise_policy::predictive_queue::experience::{Experience, Traits, unknown};
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_store::{Isolation, Transaction};

use crate::locks::{Held, LockAt};
use crate::rows::encode;
use crate::{Job, Keyspace, Result};

/// Rows, and so values whose experience is kept, at most.
pub const SLOTS: u64 = 16_384;
/// Whoever was seen again keeps its row for so long after that, in µs: a day.
pub const FORGOTTEN_US: i64 = 86_400_000_000;
/// What is remembered of locks that one run has given back before its end, as JSON in bytes.
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
    /// When a run with it has ended last, in µs.
    pub seen_us: i64,
    /// It was seen before that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// What those runs locked.
    pub locked: Experience,
}

impl Learnt {
    /// The numbers of the two rows of which one may be it.
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

/// What is known of a value; `None` if nothing is. Takes no conflict.
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

/// What a run has locked that its job did not know before.
pub(crate) struct Observed {
    traits: Traits,
    declared: Requests,
    locked: Requests,
}

/// What is learnt from a run that ends well now; `None` if nothing is. To be asked before its locks are released.
pub(crate) fn observe(job: &Job) -> Option<Observed> {
    let learns = !job.traits.is_empty() && job.locks.has_unknown();
    // Of whoever gave back too much to be remembered, nothing is known.
    let run = job.run().filter(|run| learns && !is_too_much(&run.gave_back))?;
    let locked = run.held.as_ref()?.requests().merge(run.gave_back.clone());
    Some(Observed { traits: job.traits.clone(), declared: job.locks.clone(), locked })
}

/// Writes down what was observed.
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

/// Which of a value's two rows becomes its row: the one that is, an empty one, or one that has to go.
fn place(rows: &[Option<Learnt>; 2], is_it: impl Fn(&Learnt) -> bool, now_us: i64) -> Option<usize> {
    let found = rows.iter().position(|row| row.as_ref().is_some_and(&is_it));
    found.or_else(|| rows.iter().position(Option::is_none)).or_else(|| {
        let may_go = |learnt: &Learnt| !learnt.again || now_us.saturating_sub(learnt.seen_us) >= FORGOTTEN_US;
        let rows = rows.iter().enumerate().filter_map(|(place, row)| Some((place, row.as_ref()?)));
        let goes = rows.filter(|(_, learnt)| may_go(learnt));
        goes.min_by_key(|(_, learnt)| (learnt.again, learnt.seen_us)).map(|(place, _)| place)
    })
}

/// Remembers that a job gives back a lock that it found out while it ran; up to one more than are remembered, so that it is known that
/// there were more.
pub(crate) fn gives_back(job: &mut Job, lock: &LockAt) {
    let level = lock.spot.level.as_deref();
    let learns = !job.traits.is_empty() && unknown(&job.locks).any(|(at, _)| Some(at) == level);
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
    fn who_comes_once_makes_room_and_who_comes_again_stays_for_a_day() {
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
        // By a clock that is behind.
        assert_eq!(place_at(again(FORGOTTEN_US), again(2 * FORGOTTEN_US), 9), None);
    }

    #[test]
    fn a_value_has_two_slots_that_never_change() {
        // Rows of other releases are found by them.
        assert_eq!(slots("cluster instance-migrate", "instance", "web1"), [121, 2675]);
        let spread: std::collections::BTreeSet<u64> =
            (0..1_000).flat_map(|n| slots("t", "o", &n.to_string())).collect();
        assert!(spread.len() > 1_850 && spread.iter().all(|slot| *slot < SLOTS), "{}", spread.len());
    }
}
