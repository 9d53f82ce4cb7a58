//! Random transactions in parallel, checked against a serial model.
//!
//! Tasks run random transactions on a few keys, so that they conflict, and record every read with its result. Afterwards the
//! suite replays the committed transactions serially on an ordered map, in the order of their versionstamps. It checks:
//!
//! - Every read of a transaction that wrote something returns the same result.
//! - The reads of a transaction that wrote nothing match a single moment. It is not before the last commit that was acknowledged
//!   when the transaction began.
//! - A transaction that began after another one was acknowledged comes later in the order.
//! - The remaining rows are the rows of the store.
//!
//! An engine may set a versionstamp for a transaction that conflicts ([`stamps_may_stay`](super::Subject::stamps_may_stay)). Such
//! a stamp, if a read saw it, counts as a separate commit.
//!
//! The random numbers have a seed, which a failure prints; `TURNWISE_SEED` sets it. The machine decides how tasks interleave, so
//! a failure may need several runs of its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::scene::{Case, Scene, cases, soon};
use crate::{Error, Isolation, RangeRead, Result, Store, Transaction, Versionstamp};

pub(super) const CASES: &[Case] = cases![few_keys_many_conflicts, more_keys_and_restarts];

type Rows = BTreeMap<Bytes, Bytes>;

/// A step of a transaction, with its result.
#[derive(Debug, Clone)]
enum Step {
    Get(Bytes, Isolation, Option<Bytes>),
    Range(RangeRead, Isolation, Vec<(Bytes, Bytes)>),
    Set(Bytes, Bytes),
    Clear(Bytes),
    ClearRange(Bytes, Bytes),
    Stamp(Bytes),
}

/// A committed transaction.
#[derive(Debug)]
struct Done {
    steps: Vec<Step>,
    /// `None` if it wrote nothing.
    stamp: Option<Versionstamp>,
    /// The latest stamp that was acknowledged before it began.
    after: Option<Versionstamp>,
}

struct SeededRng {
    rng: StdRng,
    keys: u32,
}

impl SeededRng {
    fn below(&mut self, n: u32) -> u32 {
        self.rng.random_range(0..n)
    }

    fn key(&mut self) -> Bytes {
        let n = self.below(self.keys);
        Bytes::from(format!("key {n:04}"))
    }

    fn isolation(&mut self) -> Isolation {
        if self.below(5) == 0 { Isolation::Snapshot } else { Isolation::Serializable }
    }

    fn span(&mut self) -> (Bytes, Bytes) {
        let from = self.below(self.keys);
        let to = from + 1 + self.below(self.keys / 3 + 1);
        (Bytes::from(format!("key {from:04}")), Bytes::from(format!("key {to:04}")))
    }
}

async fn few_keys_many_conflicts(scene: Scene) {
    run(scene, 12, 8, 60, 1).await;
}

async fn more_keys_and_restarts(scene: Scene) {
    run(scene, 200, 8, 40, 3).await;
}

async fn run(mut scene: Scene, keys: u32, tasks: u64, rounds: u32, generations: u64) {
    let seed = seed();
    let seed_on_failure = SeedOnFailure(seed);
    let mut model = Rows::new();
    for generation in 0..generations {
        let acknowledged = Arc::new(Mutex::new(None));
        let values = Arc::new(AtomicU64::new(generation * 1_000_000));
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let rng = StdRng::seed_from_u64(seed ^ (generation * tasks + task).wrapping_mul(0x9e37_79b9));
                let player = Player {
                    store: scene.store.clone(),
                    rng: SeededRng { rng, keys },
                    acknowledged: acknowledged.clone(),
                    values: values.clone(),
                };
                tokio::spawn(player.play(rounds))
            })
            .collect();
        let (mut done, mut refused) = (Vec::new(), BTreeSet::new());
        for task in running {
            let (did, stamped) = soon("a task's end", task).await.expect("no task fails");
            done.extend(did);
            refused.extend(stamped);
        }
        let start = model.clone();
        scene = scene.reopened().await;
        let stored: Rows = scene.all().await.into_iter().collect();
        if scene.subject.stamps_may_stay() {
            done.extend(stamps_that_stayed(&start, &done, &refused, &stored));
        }
        check(&start, &mut model, done);
        assert_eq!(stored, model, "the rows of generation {generation}");
    }
    drop(seed_on_failure);
}

fn seed() -> u64 {
    match std::env::var("TURNWISE_SEED") {
        Ok(text) => text.parse().expect("TURNWISE_SEED is a number"),
        Err(_) => rand::rng().random(),
    }
}

struct SeedOnFailure(u64);

impl Drop for SeedOnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to run it again: TURNWISE_SEED={}", self.0);
        }
    }
}

/// One of the tasks that run random transactions.
struct Player {
    store: Store,
    rng: SeededRng,
    acknowledged: Arc<Mutex<Option<Versionstamp>>>,
    /// No value is written twice, so a read identifies the write that it saw.
    values: Arc<AtomicU64>,
}

impl Player {
    /// Returns its committed transactions, and the keys that its refused transactions would have set to versionstamps.
    async fn play(mut self, rounds: u32) -> (Vec<Done>, BTreeSet<Bytes>) {
        let (mut done, mut refused) = (Vec::new(), BTreeSet::new());
        while done.len() < rounds as usize {
            let after = *self.acknowledged.lock().expect("nobody panics with it");
            let tx = self.store.begin().await.expect("begins");
            let mut steps = Vec::new();
            for _ in 0..1 + self.rng.below(6) {
                steps.extend(self.step(&tx).await.expect("steps"));
                if self.rng.below(2) == 0 {
                    tokio::task::yield_now().await;
                }
            }
            match tx.commit().await {
                Ok(stamp) => {
                    let mut latest = self.acknowledged.lock().expect("nobody panics with it");
                    *latest = stamp.max(*latest);
                    drop(latest);
                    done.push(Done { steps, stamp, after });
                }
                Err(Error::Conflict) => refused.extend(steps.into_iter().filter_map(|step| match step {
                    Step::Stamp(key) => Some(key),
                    _ => None,
                })),
                Err(error) => panic!("{error}"),
            }
        }
        (done, refused)
    }

    /// One random step; `None` if it was refused because it read a versionstamp.
    async fn step(&mut self, tx: &Transaction) -> Result<Option<Step>> {
        let step = match self.rng.below(12) {
            0..=3 => {
                let (key, isolation) = (self.rng.key(), self.rng.isolation());
                match tx.get_with(&key, isolation).await {
                    Ok(value) => Step::Get(key, isolation, value),
                    Err(Error::Misuse(_)) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            4..=6 => {
                let (begin, end) = self.rng.span();
                let limit = 1 + self.rng.below(6) as usize;
                let read = RangeRead { begin, end, limit, reverse: self.rng.below(2) == 0 };
                let isolation = self.rng.isolation();
                match tx.range_with(read.clone(), isolation).await {
                    Ok(rows) => Step::Range(read, isolation, rows),
                    Err(Error::Misuse(_)) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            7..=8 => {
                let value = Bytes::from(self.values.fetch_add(1, Ordering::Relaxed).to_string());
                let key = self.rng.key();
                tx.set(key.clone(), value.clone())?;
                Step::Set(key, value)
            }
            9 => {
                let key = self.rng.key();
                tx.clear(key.clone())?;
                Step::Clear(key)
            }
            10 => {
                let (begin, end) = self.rng.span();
                tx.clear_range((begin.clone(), end.clone()))?;
                Step::ClearRange(begin, end)
            }
            _ => {
                let key = self.rng.key();
                tx.set_versionstamp(key.clone())?;
                Step::Stamp(key)
            }
        };
        Ok(Some(step))
    }
}

/// The versionstamps that were read, but belong to no committed transaction. Only keys that refused transactions would have
/// set can hold them.
fn stamps_that_stayed(start: &Rows, done: &[Done], refused: &BTreeSet<Bytes>, stored: &Rows) -> Vec<Done> {
    let seen_by = |step: &Step| match step {
        Step::Get(key, _, Some(value)) => vec![(key.clone(), value.clone())],
        Step::Range(_, _, rows) => rows.clone(),
        _ => Vec::new(),
    };
    let mut seen: BTreeSet<(Bytes, Bytes)> =
        done.iter().flat_map(|done| &done.steps).flat_map(seen_by).collect();
    seen.extend(stored.iter().map(|(key, value)| (key.clone(), value.clone())));
    let committed: BTreeSet<Versionstamp> = done.iter().filter_map(|done| done.stamp).collect();
    let mut stayed: BTreeMap<Versionstamp, Vec<Step>> = BTreeMap::new();
    for (key, value) in seen.into_iter().filter(|(key, _)| refused.contains(key)) {
        // All other values are shorter.
        let Ok(stamp) = <[u8; 10]>::try_from(&value[..]).map(Versionstamp) else { continue };
        if !committed.contains(&stamp) && start.get(&key) != Some(&value) {
            stayed.entry(stamp).or_default().push(Step::Stamp(key));
        }
    }
    stayed.into_iter().map(|(stamp, steps)| Done { steps, stamp: Some(stamp), after: None }).collect()
}

/// Replays the committed transactions serially, from `start` to `model`.
fn check(start: &Rows, model: &mut Rows, done: Vec<Done>) {
    let (mut writers, readers): (Vec<_>, Vec<_>) = done.into_iter().partition(|done| done.stamp.is_some());
    writers.sort_by_key(|done| done.stamp);
    for pair in writers.windows(2) {
        assert!(pair[0].stamp < pair[1].stamp, "two commits have the stamp {:?}", pair[0].stamp);
    }
    for writer in &writers {
        assert!(writer.stamp > writer.after, "it began after a later commit was acknowledged: {writer:?}");
        if let Err(why) = replay(model, writer, false) {
            panic!("{why}\n{writer:#?}");
        }
    }
    for reader in readers {
        let mut state = start.clone();
        let mut fits = reader.after.is_none() && replay(&mut state, &reader, true).is_ok();
        for writer in &writers {
            if fits {
                break;
            }
            replay(&mut state, writer, false).expect("it was checked above");
            fits = writer.stamp >= reader.after && replay(&mut state, &reader, true).is_ok();
        }
        assert!(fits, "no moment fits what it saw: {reader:#?}");
    }
}

/// Replays a transaction on the model. Snapshot reads count only if `strictly`: they may have read an earlier state than the
/// commit.
fn replay(model: &mut Rows, done: &Done, strictly: bool) -> Result<(), String> {
    let must_match = |isolation: Isolation| strictly || isolation == Isolation::Serializable;
    for step in &done.steps {
        match step {
            Step::Get(key, isolation, seen) => {
                if must_match(*isolation) && model.get(key) != seen.as_ref() {
                    return Err(format!("{key:?} was {seen:?}, and should be {:?}", model.get(key)));
                }
            }
            Step::Range(read, isolation, seen) => {
                let rows = model.range::<Bytes, _>(&read.begin..&read.end);
                let row = |(key, value): (&Bytes, &Bytes)| (key.clone(), value.clone());
                let expected: Vec<_> = if read.reverse {
                    rows.rev().take(read.limit).map(row).collect()
                } else {
                    rows.take(read.limit).map(row).collect()
                };
                if must_match(*isolation) && expected != *seen {
                    return Err(format!("{read:?} was {seen:?}, and should be {expected:?}"));
                }
            }
            Step::Set(key, value) => drop(model.insert(key.clone(), value.clone())),
            Step::Clear(key) => drop(model.remove(key)),
            Step::ClearRange(begin, end) => {
                model.retain(|key, _| key < begin || end <= key);
            }
            Step::Stamp(key) => {
                let stamp = done.stamp.ok_or("it wrote a stamp and has none")?;
                model.insert(key.clone(), Bytes::copy_from_slice(&stamp.0));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &'static str, value: &'static str) -> (Bytes, Bytes) {
        (Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()))
    }

    fn done(stamp: u8, after: u8, steps: Vec<Step>) -> Done {
        let stamp_of = |n: u8| (n > 0).then_some(Versionstamp([n; 10]));
        Done { steps, stamp: stamp_of(stamp), after: stamp_of(after) }
    }

    fn get(key: &'static str, seen: Option<&'static str>) -> Step {
        Step::Get(row(key, "").0, Isolation::Serializable, seen.map(|seen| row("", seen).1))
    }

    fn set(key: &'static str, value: &'static str) -> Step {
        let (key, value) = row(key, value);
        Step::Set(key, value)
    }

    #[test]
    fn a_serial_history_passes() {
        let mut model = Rows::new();
        let history = vec![
            done(2, 1, vec![get("a", Some("1")), set("b", "2")]),
            done(1, 0, vec![get("a", None), set("a", "1")]),
            done(0, 1, vec![get("a", Some("1")), get("b", None)]),
        ];
        check(&Rows::new(), &mut model, history);
        assert_eq!(model, Rows::from([row("a", "1"), row("b", "2")]));
    }

    #[test]
    #[should_panic(expected = "should be Some(b\"1\")")]
    fn a_lost_update_is_found() {
        let both = |stamp, value| done(stamp, 0, vec![get("a", None), set("a", value)]);
        check(&Rows::new(), &mut Rows::new(), vec![both(1, "1"), both(2, "2")]);
    }

    #[test]
    fn a_stamp_that_stayed_is_a_commit_of_its_own() {
        let key = row("a", "").0;
        let stamp = |n| Bytes::copy_from_slice(&[n; 10]);
        let read = |n| Step::Get(key.clone(), Isolation::Serializable, Some(stamp(n)));
        let done = vec![
            done(1, 0, vec![Step::Stamp(key.clone())]),
            done(3, 1, vec![read(2), set("b", "2")]),
            done(5, 3, vec![Step::Stamp(key.clone())]),
        ];
        let stored = Rows::from([(key.clone(), stamp(5)), row("b", "2")]);
        let stayed = |refused| stamps_that_stayed(&Rows::new(), &done, &refused, &stored);
        assert!(stayed(BTreeSet::new()).is_empty());
        let stayed = stayed(BTreeSet::from([key.clone()]));
        assert_eq!(stayed.iter().map(|done| done.stamp).collect::<Vec<_>>(), [Some(Versionstamp([2; 10]))]);
        let mut model = Rows::new();
        check(&Rows::new(), &mut model, done.into_iter().chain(stayed).collect());
        assert_eq!(model, stored);
    }

    #[test]
    #[should_panic(expected = "no moment fits")]
    fn a_stale_read_is_found() {
        let history = vec![done(1, 0, vec![set("a", "1")]), done(0, 1, vec![get("a", None)])];
        check(&Rows::new(), &mut Rows::new(), history);
    }
}
