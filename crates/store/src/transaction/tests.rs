//! Tests of own writes over a snapshot, against a model.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use async_trait::async_trait;
use futures::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::Snapshot;
use crate::counters::Meter;
use crate::runtime::Manual;

type Rows = BTreeMap<Bytes, Bytes>;

/// A snapshot of plain rows that records what it was asked to commit.
struct Plain {
    rows: Rows,
    committed: Mutex<Vec<Changes>>,
}

#[async_trait]
impl Snapshot for Plain {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.rows.get(key).cloned())
    }

    async fn range(&self, read: &RangeRead) -> Result<Vec<KeyValue>> {
        Ok(range_of(&self.rows, read))
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn commit(&self, changes: Changes) -> Result<Versionstamp> {
        self.committed.lock().push(changes);
        Ok(STAMP)
    }
}

const STAMP: Versionstamp = Versionstamp([9; 10]);

/// No future here ever waits.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().unwrap()
}

fn range_of(rows: &Rows, read: &RangeRead) -> Vec<KeyValue> {
    if read.begin >= read.end {
        return Vec::new();
    }
    let row = |(key, value): (&Bytes, &Bytes)| (key.clone(), value.clone());
    let rows = rows.range::<Bytes, _>(&read.begin..&read.end);
    if read.reverse {
        rows.rev().take(read.limit).map(row).collect()
    } else {
        rows.take(read.limit).map(row).collect()
    }
}

fn on(snapshot: Arc<dyn Snapshot>, limits: Limits, clock: Arc<Manual>, begun_us: i64) -> Transaction {
    let snapshot = Metered { snapshot, meter: Meter::new(clock.clone()) };
    Transaction::new(snapshot, limits, clock, begun_us, Arc::default())
}

fn transaction_on(rows: Rows) -> (Transaction, Arc<Plain>) {
    let plain = Arc::new(Plain { rows, committed: Mutex::default() });
    (on(plain.clone(), Limits::DEFAULT, Manual::new(0, 1), 0), plain)
}

/// The steps of a transaction, on the keys `a` to `p`.
#[derive(Debug, Clone)]
enum Step {
    Get(u8),
    /// Of the keys from one to the other.
    Prefetch(u8, u8),
    PrefetchRange {
        begin: u8,
        end: u8,
        limit: usize,
        reverse: bool,
    },
    Range {
        begin: u8,
        end: u8,
        limit: usize,
        reverse: bool,
    },
    Set(u8, u8),
    Clear(u8),
    ClearRange(u8, u8),
    Stamp(u8),
}

const KEYS: u8 = 16;

fn key(n: u8) -> Bytes {
    Bytes::from(vec![b'a' + n])
}

fn value(n: u8) -> Bytes {
    Bytes::from(vec![n])
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..KEYS;
    let step = prop_oneof![
        3 => key().prop_map(Step::Get),
        2 => (key(), 0..=KEYS).prop_map(|(begin, end)| Step::Prefetch(begin, end)),
        2 => (key(), 0..=KEYS, 1..6_usize, any::<bool>())
            .prop_map(|(begin, end, limit, reverse)| Step::PrefetchRange { begin, end, limit, reverse }),
        4 => (key(), 0..=KEYS, 1..6_usize, any::<bool>())
            .prop_map(|(begin, end, limit, reverse)| Step::Range { begin, end, limit, reverse }),
        4 => (key(), any::<u8>()).prop_map(|(key, value)| Step::Set(key, value)),
        2 => key().prop_map(Step::Clear),
        2 => (key(), 0..=KEYS).prop_map(|(begin, end)| Step::ClearRange(begin, end)),
        1 => key().prop_map(Step::Stamp),
    ];
    proptest::collection::vec(step, 1..25)
}

fn stored() -> impl Strategy<Value = Rows> {
    proptest::collection::btree_map(0..KEYS, any::<u8>(), 0..12)
        .prop_map(|rows| rows.into_iter().map(|(n, v)| (key(n), value(v))).collect())
}

/// Runs the steps and returns what they read, `None` where a versionstamp prevented the read.
fn take(tx: &Transaction, steps: &[Step]) -> Vec<Option<Vec<KeyValue>>> {
    let mut seen = Vec::new();
    for step in steps {
        match step.clone() {
            Step::Get(n) => {
                let row = |value: Option<Bytes>| value.map(|value| (key(n), value)).into_iter().collect();
                seen.push(unless_stamped(block_on(tx.get(&key(n))).map(row)));
            }
            Step::Prefetch(begin, end) => {
                block_on(tx.prefetch((begin..end).map(key))).unwrap();
            }
            Step::PrefetchRange { begin, end, limit, reverse } => {
                let read = RangeRead { begin: key(begin), end: key(end), limit, reverse };
                block_on(tx.prefetch_ranges([read])).unwrap();
            }
            Step::Range { begin, end, limit, reverse } => {
                let read = RangeRead { begin: key(begin), end: key(end), limit, reverse };
                seen.push(unless_stamped(block_on(tx.range_with(read, Isolation::Serializable))));
            }
            Step::Set(n, v) => tx.set(key(n), value(v)).unwrap(),
            Step::Clear(n) => tx.clear(key(n)).unwrap(),
            Step::ClearRange(begin, end) => tx.clear_range((key(begin), key(end))).unwrap(),
            Step::Stamp(n) => tx.set_versionstamp(key(n)).unwrap(),
        }
    }
    seen
}

fn unless_stamped<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Misuse(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The same on a map: what the steps read, and the rows that remain.
fn model(mut rows: Rows, steps: &[Step]) -> (Vec<Option<Vec<KeyValue>>>, Rows) {
    let mut seen = Vec::new();
    let mut stamped = BTreeSet::new();
    for step in steps {
        match step.clone() {
            Step::Get(n) => seen.push(
                (!stamped.contains(&key(n)))
                    .then(|| rows.get(&key(n)).map(|value| (key(n), value.clone())).into_iter().collect()),
            ),
            Step::Prefetch(..) | Step::PrefetchRange { .. } => {}
            Step::Range { begin, end, limit, reverse } => {
                let read = RangeRead { begin: key(begin), end: key(end), limit, reverse };
                let has_stamp = begin < end && stamped.range(key(begin)..key(end)).next().is_some();
                seen.push((!has_stamp).then(|| range_of(&rows, &read)));
            }
            Step::Set(n, v) => {
                stamped.remove(&key(n));
                rows.insert(key(n), value(v));
            }
            Step::Clear(n) => {
                stamped.remove(&key(n));
                rows.remove(&key(n));
            }
            Step::ClearRange(begin, end) => {
                let inside = |name: &Bytes| key(begin) <= *name && *name < key(end);
                stamped.retain(|name| !inside(name));
                rows.retain(|name, _| !inside(name));
            }
            Step::Stamp(n) => {
                stamped.insert(key(n));
                rows.insert(key(n), Bytes::copy_from_slice(&STAMP.0));
            }
        }
    }
    (seen, rows)
}

/// Applies the changes as an engine must.
fn apply(rows: &mut Rows, changes: &Changes) {
    for (begin, end) in &changes.clear_ranges {
        rows.retain(|name, _| !(begin <= name && name < end));
    }
    for (name, value) in &changes.puts {
        match value {
            Some(value) => drop(rows.insert(name.clone(), value.clone())),
            None => drop(rows.remove(name)),
        }
    }
    for name in &changes.versionstamped {
        rows.insert(name.clone(), Bytes::copy_from_slice(&STAMP.0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// A transaction reads as if its writes were already in the store, and its commit writes the same rows.
    #[test]
    fn prop_own_writes_are_merged(rows in stored(), steps in steps()) {
        let (tx, plain) = transaction_on(rows.clone());
        let seen = take(&tx, &steps);
        let (expected_seen, expected_rows) = model(rows.clone(), &steps);
        prop_assert_eq!(seen, expected_seen);
        block_on(tx.commit()).unwrap();
        let mut left = rows;
        for changes in plain.committed.lock().iter() {
            prop_assert!(changes.puts.is_sorted_by(|a, b| a.0 < b.0));
            apply(&mut left, changes);
        }
        prop_assert_eq!(left, expected_rows);
    }

    /// If another transaction's write would change what was read, the key is among the conflicts.
    #[test]
    fn prop_conflicts_cover_all_that_was_read(
        rows in stored(),
        steps in steps(),
        changed in 0..KEYS,
        to in proptest::option::of(any::<u8>()),
    ) {
        let (tx, plain) = transaction_on(rows.clone());
        let seen = take(&tx, &steps);
        block_on(tx.commit()).unwrap();
        let mut others = rows;
        match to {
            Some(v) => drop(others.insert(key(changed), value(v))),
            None => drop(others.remove(&key(changed))),
        }
        let (again, _) = transaction_on(others);
        if let (true, Some(changes)) = (take(&again, &steps) != seen, plain.committed.lock().first()) {
            let found = changes.read_keys.contains(&key(changed))
                || is_within(&key(changed), &changes.read_ranges);
            prop_assert!(found, "{:?} is missing in {:?}", key(changed), changes);
        }
    }
}

#[test]
fn a_prefetched_key_conflicts_once_it_is_read() {
    let (tx, plain) = transaction_on([(key(0), value(1)), (key(1), value(2))].into());
    block_on(tx.prefetch([key(0), key(1), key(2)])).unwrap();
    assert_eq!(block_on(tx.get_with(&key(0), Isolation::Snapshot)).unwrap(), Some(value(1)));
    assert_eq!(block_on(tx.get(&key(2))).unwrap(), None);
    tx.set(key(5), value(5)).unwrap();
    block_on(tx.commit()).unwrap();
    assert_eq!(plain.committed.lock()[0].read_keys, [key(2)]);
}

#[test]
fn a_limited_read_conflicts_only_up_to_its_last_row() {
    let (tx, plain) = transaction_on((0..8).map(|n| (key(n), value(n))).collect());
    let read = RangeRead { begin: key(1), end: key(8), limit: 2, reverse: false };
    block_on(tx.range_with(read.clone(), Isolation::Serializable)).unwrap();
    block_on(tx.range_with(RangeRead { reverse: true, ..read }, Isolation::Serializable)).unwrap();
    tx.set(key(0), value(0)).unwrap();
    block_on(tx.commit()).unwrap();
    let committed = plain.committed.lock();
    assert_eq!(committed[0].read_ranges, [(key(1), successor(&key(2))), (key(6), key(8))]);
}

#[test]
fn a_batch_has_room_until_it_is_large_or_old() {
    let (snapshot, clock) = (Plain { rows: Rows::new(), committed: Mutex::default() }, Manual::new(7, 1));
    let tx = on(Arc::new(snapshot), Limits::DEFAULT, clock.clone(), 7);
    let row = |n: usize| tx.set(format!("{n}").into(), vec![0; 100_000].into()).unwrap();
    (0..39).for_each(row);
    assert!(tx.has_room());
    row(39);
    assert!(!tx.has_room(), "two fifths of 10 MB are used up");

    let (snapshot, clock) = (Plain { rows: Rows::new(), committed: Mutex::default() }, Manual::new(7, 1));
    let tx = on(Arc::new(snapshot), Limits::DEFAULT, clock.clone(), 7);
    clock.advance(std::time::Duration::from_millis(1_249));
    assert!(tx.has_room());
    clock.advance(std::time::Duration::from_millis(1));
    assert!(!tx.has_room(), "a quarter of 5 s is used up");
}

fn few_on(rows: Rows) -> Transaction {
    on(Arc::new(Plain { rows, committed: Mutex::default() }), Limits::SMALL, Manual::new(0, 1), 0)
}

fn row(n: usize) -> Bytes {
    format!("{n:04}").into()
}

#[test]
fn a_batch_leaves_room_for_one_more_step() {
    let tx = few_on(Rows::new());
    for n in 0..480 {
        assert_eq!(tx.has_room(), n < 480 - 96, "{n} writes");
        tx.set(row(n), value(0)).unwrap();
    }
    assert!(matches!(tx.set(row(480), value(0)), Err(Error::TooMany { limit: 480, .. })));
    let tx = few_on(Rows::new());
    for n in 0..112 - 32 {
        assert!(tx.has_room(), "{n} reads");
        block_on(tx.get(&row(n))).unwrap();
    }
    assert!(!tx.has_room());
}

#[test]
fn rows_seen_in_a_range_must_be_proved_unless_it_is_a_snapshot_read() {
    let rows: Rows = (0..200).map(|n| (row(n), value(0))).collect();
    let read = RangeRead { begin: row(0), end: row(9_999), limit: 111, reverse: false };
    let tx = few_on(rows.clone());
    block_on(tx.range_with(read.clone(), Isolation::Serializable)).unwrap();
    tx.set(key(0), value(0)).unwrap();
    block_on(tx.commit()).unwrap();

    let tx = few_on(rows.clone());
    block_on(tx.range_with(RangeRead { limit: 112, ..read.clone() }, Isolation::Serializable)).unwrap();
    assert!(matches!(tx.set(key(0), value(0)), Err(Error::TooMany { limit: 112, .. })));
    assert!(matches!(block_on(tx.commit()), Err(Error::TooMany { limit: 112, .. })));

    let tx = few_on(rows);
    block_on(tx.range_with(RangeRead { limit: 200, ..read.clone() }, Isolation::Snapshot)).unwrap();
    let (_, proof) = block_on(tx.range_to_prove(RangeRead { limit: 200, ..read })).unwrap();
    tx.prove_arrivals(proof);
    assert!(tx.has_room());
    tx.set(key(0), value(0)).unwrap();
    block_on(tx.commit()).unwrap();
}

#[test]
fn writing_into_a_cleared_range_costs_one_more() {
    let tx = few_on(Rows::new());
    tx.clear_range((row(0), row(9_999))).unwrap();
    for n in 0..239 {
        tx.set(row(n), value(0)).unwrap();
        tx.set(row(n), value(1)).unwrap();
    }
    tx.set_versionstamp(row(0)).unwrap();
    assert!(tx.set(row(239), value(0)).is_err(), "1 + 2 * 240 rows");
    // Clearing the same rows again makes the splits free.
    tx.clear_range((row(0), row(9_999))).unwrap();
    assert!(tx.has_room());
}
