//! What a commit must check and write, as one transaction of etcd.
//!
//! The condition depends on what was read:
//!
//! - A key that existed: its revision is the one read.
//! - A key that did not exist: its revision is 0.
//! - A range: no key in it has a revision above the snapshot's (which also holds for an empty range). And each row that was
//!   read still has the revision that was read. This second part is needed because etcd keeps nothing of a deleted row that
//!   a condition could test.
//! - A range of `arrivals`: only the first part of this.
//!
//! A key within a range needs no separate condition. Conflicts that were declared but not read are read first, keys only.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use prost::Message as _;

use super::api::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, KeyValue, PutRequest, Request,
    RequestOp, TxnRequest,
};
use super::space::{self, Space};
use crate::appends::RowKeys;
use crate::key::successor;
use crate::{Changes, Error, Limits, Result};

/// Rows that a snapshot remembers as read. It does not remember reads beyond that, and reads those rows again if the commit must
/// check them.
const MAX_SEEN_ROWS: usize = 10_000;

/// Ranges of keys, by their begin, that neither overlap nor touch.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Intervals {
    ends: BTreeMap<Bytes, Bytes>,
}

impl Intervals {
    /// Ranges of the store, in etcd's keys.
    fn of(space: &Space, ranges: &[(Bytes, Bytes)]) -> Intervals {
        let mut intervals = Intervals::default();
        for (begin, end) in ranges.iter().filter_map(|(begin, end)| space.range(begin, end)) {
            intervals.add(begin, end);
        }
        intervals
    }

    pub(super) fn add(&mut self, begin: Bytes, end: Bytes) {
        if begin >= end {
            return;
        }
        let (mut begin, mut end) = (begin, end);
        // Merge with the ranges that begin at or before the new end, and end at or after the new begin.
        while let Some((other_begin, other_end)) = self.last_until(&end) {
            if other_end < begin {
                break;
            }
            self.ends.remove(&other_begin);
            begin = begin.min(other_begin);
            end = end.max(other_end);
        }
        self.ends.insert(begin, end);
    }

    /// The last range that begins at or before `key`.
    fn last_until(&self, key: &Bytes) -> Option<(Bytes, Bytes)> {
        let until = (Bound::Unbounded, Bound::Included(key));
        self.ends.range::<Bytes, _>(until).next_back().map(|(begin, end)| (begin.clone(), end.clone()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.ends.iter()
    }

    pub(super) fn contains(&self, key: &Bytes) -> bool {
        self.last_until(key).is_some_and(|(_, end)| *key < end)
    }

    /// Whether any key of `[begin, end)` is in one of the ranges.
    pub(super) fn overlaps(&self, begin: &Bytes, end: &Bytes) -> bool {
        let before = (Bound::Unbounded, Bound::Excluded(end));
        self.ends.range::<Bytes, _>(before).next_back().is_some_and(|(_, other_end)| begin < other_end)
    }

    /// The parts of these ranges that are not in `other`.
    fn without(&self, other: &Intervals) -> Intervals {
        let mut rest = Intervals::default();
        for (begin, end) in &self.ends {
            let mut from = begin.clone();
            let first = other.last_until(begin).map_or_else(|| begin.clone(), |(begin, _)| begin);
            for (cut_begin, cut_end) in other.ends.range::<Bytes, _>(&first..end) {
                if *cut_begin > from {
                    rest.add(from.clone(), cut_begin.clone());
                }
                from = from.max(cut_end.clone());
            }
            rest.add(from, end.clone());
        }
        rest
    }
}

/// What a commit must check to be unchanged, in etcd's keys.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// The ranges without `arrivals`, with keys as ranges of one key. Each row in these must be known.
    strict: Intervals,
    ranges: Intervals,
    arrivals: Intervals,
    /// The keys that are in no range.
    keys: Vec<Bytes>,
}

pub(super) fn needed(space: &Space, changes: &Changes) -> Result<Needed> {
    let ranges = Intervals::of(space, &changes.read_ranges);
    let mut strict = ranges.clone();
    let mut keys = Vec::new();
    for key in &changes.read_keys {
        let key = space.key(key)?;
        if !ranges.contains(&key) {
            strict.add(key.clone(), successor(&key));
            keys.push(key);
        }
    }
    let arrivals = Intervals::of(space, &changes.arrivals);
    Ok(Needed { strict, ranges, arrivals, keys })
}

impl Needed {
    /// All ranges and keys, as ranges.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.strict.iter().chain(self.arrivals.iter())
    }
}

#[derive(Debug, Default)]
pub(super) struct ReadSet {
    /// The ranges whose rows are all known.
    covered: Intervals,
    /// The rows in `covered`, with the revisions of their latest changes.
    revisions: BTreeMap<Bytes, i64>,
}

impl ReadSet {
    /// Adds all rows of a range. Beyond the limit, they are remembered only if `must` is set.
    pub(super) fn add(&mut self, covered: (Bytes, Bytes), rows: &[KeyValue], must: bool) {
        if !must && self.revisions.len() + rows.len() > MAX_SEEN_ROWS {
            return;
        }
        self.covered.add(covered.0, covered.1);
        self.revisions.extend(rows.iter().map(|row| (row.key.clone(), row.mod_revision)));
    }

    /// The needed ranges that were not read yet.
    pub(super) fn missing(&self, needed: &Needed) -> Intervals {
        needed.strict.without(&self.covered)
    }

    /// The conditions that hold if all that is needed is as it was at `revision`. All of it must have been read.
    pub(super) fn compares(&self, needed: &Needed, revision: i64) -> Vec<Compare> {
        let unchanged = |key: &Bytes, revision: i64| Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Mod as i32,
            key: key.clone(),
            with: Some(CompareWith::ModRevision(revision)),
            range_end: Bytes::new(),
        };
        let mut compares: Vec<_> = needed
            .keys
            .iter()
            .map(|key| unchanged(key, self.revisions.get(key).copied().unwrap_or_default()))
            .collect();
        let none_newer = |begin: &Bytes, end: &Bytes| Compare {
            result: CompareResult::Less as i32,
            target: CompareTarget::Mod as i32,
            key: begin.clone(),
            with: Some(CompareWith::ModRevision(revision + 1)),
            range_end: end.clone(),
        };
        compares.extend(needed.arrivals.iter().map(|(begin, end)| none_newer(begin, end)));
        for (begin, end) in needed.ranges.iter() {
            compares.push(none_newer(begin, end));
            let rows = self.revisions.range::<Bytes, _>(begin..end);
            compares.extend(rows.map(|(key, revision)| unchanged(key, *revision)));
        }
        compares
    }
}

pub(super) fn put(key: Bytes, value: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::Put(PutRequest { key, value })) }
}

fn delete(key: Bytes, range_end: Bytes) -> RequestOp {
    RequestOp { request: Some(Request::DeleteRange(DeleteRangeRequest { key, range_end })) }
}

/// What a commit writes, in etcd's keys. No two operations touch the same key, because etcd would refuse that: cleared ranges
/// have gaps where a key is set.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) puts: BTreeMap<Bytes, Put>,
    pub(super) cleared: Intervals,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Put {
    Value(Bytes),
    Versionstamp,
    /// The versionstamp, and then these bytes.
    Appended(Bytes),
}

pub(super) fn writes(space: &Space, additions: &RowKeys, changes: &Changes) -> Result<Writes> {
    let mut cleared = Intervals::of(space, &changes.clear_ranges);
    let mut puts = BTreeMap::new();
    for (key, value) in &changes.puts {
        let key = space.key(key)?;
        match value {
            Some(value) => {
                space::check_literal(value)?;
                puts.insert(key, Put::Value(value.clone()));
            }
            None => {
                let after = successor(&key);
                cleared.add(key, after);
            }
        }
    }
    for key in &changes.versionstamped {
        puts.insert(space.key(key)?, Put::Versionstamp);
    }
    for (key, lines) in &changes.appends {
        puts.insert(space.key(key)?, Put::Appended(lines.clone()));
    }
    // etcd cannot add to a value, so each commit sets a row of its own.
    for (key, sum) in &changes.adds {
        puts.insert(space.key(&additions.key(key))?, Put::Value(sum.to_bytes()));
    }
    let mut set = Intervals::default();
    for key in puts.keys() {
        set.add(key.clone(), successor(key));
    }
    let cleared = cleared.without(&set);
    Ok(Writes { puts, cleared })
}

impl Writes {
    pub(super) fn len(&self) -> usize {
        self.puts.len().max(1) + self.cleared.ends.len()
    }

    pub(super) fn stamped(&self) -> impl Iterator<Item = &Bytes> {
        self.puts.iter().filter(|(_, put)| **put == Put::Versionstamp).map(|(key, _)| key)
    }

    /// Sets a key if the commit sets none. If nothing is deleted either, etcd creates no new revision, and this commit would get
    /// the versionstamp of another one.
    pub(super) fn anchor(&mut self, space: &Space, place: u16) {
        if self.puts.is_empty() {
            self.puts.insert(space.own(&format!("cleared {place}")), Put::Value(Bytes::new()));
        }
    }

    /// The operations of the commit at `place` in a revision.
    pub(super) fn operations(&self, place: u16) -> Vec<RequestOp> {
        let deletes = self.cleared.iter().map(|(begin, end)| {
            let one = *end == successor(begin);
            delete(begin.clone(), if one { Bytes::new() } else { end.clone() })
        });
        let puts = self.puts.iter().map(|(key, value)| match value {
            Put::Value(value) => put(key.clone(), value.clone()),
            Put::Versionstamp => put(key.clone(), space::stamped(place, &[])),
            Put::Appended(lines) => put(key.clone(), space::stamped(place, lines)),
        });
        deletes.chain(puts).collect()
    }
}

#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) needed: Needed,
    pub(super) compares: Vec<Compare>,
    pub(super) writes: Writes,
}

impl Prepared {
    /// About how many bytes it adds to a request.
    pub(super) fn bytes(&self) -> usize {
        let compares: usize = self.compares.iter().map(|compare| compare.encoded_len() + 4).sum();
        let puts = self.writes.puts.iter().map(|(key, value)| match value {
            Put::Value(value) => key.len() + value.len() + 32,
            Put::Versionstamp => key.len() + 64,
            Put::Appended(lines) => key.len() + lines.len() + 64,
        });
        let cleared = self.writes.cleared.iter().map(|(begin, end)| begin.len() + end.len() + 32);
        compares + puts.chain(cleared).sum::<usize>() + 64
    }
}

/// The limits of an engine on an etcd with these settings, for keys that are `overhead` bytes longer in etcd.
///
/// etcd counts the conditions and the operations of a transaction separately, and the larger number counts against
/// `max_txn_ops`. A nested transaction may have as many operations as the outer one has left. So the writes can be divided
/// among nested transactions without conditions. The limits give 15 sixteenths of `max_txn_ops` to the conditions. There
/// may be as many nested transactions as conditions, each with the remaining sixteenth as its operations.
pub(super) fn limits(max_txn_ops: usize, max_request_bytes: usize, overhead: usize) -> Limits {
    let inner = max_txn_ops / 16;
    let conflicts = max_txn_ops - inner;
    let writes = conflicts * inner;
    // Each operation's prefix and framing, plus some for the keys of rows that were read in ranges.
    let framing = (conflicts + writes) * (overhead + 32);
    let bytes = max_request_bytes.saturating_sub(framing).saturating_sub(16 << 10).max(max_request_bytes / 4);
    Limits {
        transaction_bytes: bytes.min(Limits::DEFAULT.transaction_bytes),
        transaction_writes: writes.min(Limits::DEFAULT.transaction_writes),
        transaction_conflicts: conflicts.min(Limits::DEFAULT.transaction_conflicts),
        ..Limits::DEFAULT
    }
}

pub(super) fn too_many_conflicts(count: usize, limits: Limits) -> Error {
    Error::TooMany {
        what: format!("proves {count} keys, ranges and rows"),
        limit: limits.transaction_conflicts,
    }
}

/// Builds one transaction of etcd: all operations, under all conditions.
pub(super) fn transaction(
    compare: Vec<Compare>,
    mut operations: Vec<RequestOp>,
    max_txn_ops: usize,
    max_request_bytes: usize,
    limits: Limits,
) -> Result<TxnRequest> {
    if compare.len() > limits.transaction_conflicts {
        return Err(too_many_conflicts(compare.len(), limits));
    }
    if operations.len() > max_txn_ops {
        let each = |inner: usize| max_txn_ops - inner.max(compare.len());
        let inner = (1..max_txn_ops).find(|inner| inner * each(*inner) >= operations.len());
        let Some(inner) = inner else {
            return Err(Error::TooMany {
                what: format!("writes {} rows and ranges", operations.len()),
                limit: limits.transaction_writes,
            });
        };
        let each = each(inner);
        let mut rest = operations;
        operations = Vec::with_capacity(inner);
        while !rest.is_empty() {
            let after = rest.split_off(each.min(rest.len()));
            let txn = TxnRequest { success: rest, ..TxnRequest::default() };
            operations.push(RequestOp { request: Some(Request::Txn(txn)) });
            rest = after;
        }
    }
    let request = TxnRequest { compare, success: operations, failure: Vec::new() };
    // etcd wraps it in a few dozen bytes before it checks the size.
    let size = request.encoded_len() + 512;
    if size > max_request_bytes {
        return Err(Error::TooLarge { what: "transaction", size, limit: max_request_bytes });
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    //! Ranges against a model, and the form of transactions.

    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn key(name: &'static str) -> Bytes {
        Bytes::from_static(name.as_bytes())
    }

    fn space() -> Space {
        Space::new("p")
    }

    fn row(name: &'static str, mod_revision: i64) -> KeyValue {
        KeyValue { key: space().key(name.as_bytes()).unwrap(), mod_revision, ..KeyValue::default() }
    }

    fn text(bytes: &Bytes) -> String {
        String::from_utf8_lossy(bytes).replace('\0', "+")
    }

    /// The conditions, as text.
    fn as_text(compares: &[Compare]) -> Vec<String> {
        let as_text = |compare: &Compare| {
            let sign = if compare.result == CompareResult::Less as i32 { '<' } else { '=' };
            let Some(CompareWith::ModRevision(revision)) = compare.with else { panic!("{compare:?}") };
            format!("{}..{} {sign} {revision}", text(&compare.key), text(&compare.range_end))
        };
        compares.iter().map(as_text).collect()
    }

    proptest! {
        #[test]
        fn prop_intervals_are_sets_of_keys(
            ours in proptest::collection::vec((0u8..40, 0u8..40), 0..8),
            others in proptest::collection::vec((0u8..40, 0u8..40), 0..8),
        ) {
            let build = |pairs: &[(u8, u8)]| {
                let (mut intervals, mut model) = (Intervals::default(), BTreeSet::new());
                for (begin, end) in pairs {
                    intervals.add(Bytes::copy_from_slice(&[*begin]), Bytes::copy_from_slice(&[*end]));
                    model.extend(*begin..(*end).max(*begin));
                }
                (intervals, model)
            };
            let members = |intervals: &Intervals| -> BTreeSet<u8> {
                (0..40).filter(|n| intervals.contains(&Bytes::copy_from_slice(&[*n]))).collect()
            };
            let ((ours, our_model), (others, other_model)) = (build(&ours), build(&others));
            prop_assert_eq!(members(&ours), our_model.clone());
            let rest = ours.without(&others);
            prop_assert_eq!(members(&rest), our_model.difference(&other_model).copied().collect::<BTreeSet<_>>());
            for intervals in [&ours, &rest] {
                let all: Vec<_> = intervals.iter().collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", all);
            }
        }
    }

    #[test]
    fn each_row_that_was_read_has_one_condition() {
        let mut read_set = ReadSet::default();
        let range = |begin: &str, end: &str| space().range(begin.as_bytes(), end.as_bytes()).unwrap();
        read_set.add(range("b", "f"), &[row("b", 3), row("d", 5)], false);
        read_set.add(range("k", "k\0"), &[row("k", 7)], false);
        read_set.add(range("m", "m\0"), &[], false);
        let changes = Changes {
            read_keys: vec![key("d"), key("k"), key("m"), key("z")],
            read_ranges: vec![(key("c"), key("e")), (key("b"), key("d")), (key("x"), key("y"))],
            ..Changes::default()
        };
        let needed = needed(&space(), &changes).unwrap();
        let missing = read_set.missing(&needed);
        let missing_text: Vec<_> = missing.iter().map(|(b, e)| format!("{}..{}", text(b), text(e))).collect();
        assert_eq!(missing_text, ["p/x..p/y", "p/z..p/z+"]);
        read_set.add(range("x", "y"), &[row("x", 9)], true);
        read_set.add(range("z", "z\0"), &[], true);
        assert!(read_set.missing(&needed).iter().next().is_none());
        assert_eq!(
            as_text(&read_set.compares(&needed, 10)),
            [
                "p/k.. = 7",
                "p/m.. = 0",
                "p/z.. = 0",
                "p/b..p/e < 11",
                "p/b.. = 3",
                "p/d.. = 5",
                "p/x..p/y < 11",
                "p/x.. = 9",
            ]
        );
    }

    #[test]
    fn arrivals_need_no_known_rows() {
        let changes = Changes {
            read_keys: vec![key("d")],
            arrivals: vec![(key("b"), key("f")), (key("c"), key("e"))],
            ..Changes::default()
        };
        let mut read_set = ReadSet::default();
        read_set.add(space().range(b"d", b"d\0").unwrap(), &[row("d", 5)], false);
        let needed = needed(&space(), &changes).unwrap();
        assert!(read_set.missing(&needed).iter().next().is_none());
        assert_eq!(as_text(&read_set.compares(&needed, 10)), ["p/d.. = 5", "p/b..p/f < 11"]);
    }

    #[test]
    fn too_many_rows_are_read_again() {
        let mut read_set = ReadSet::default();
        let rows = vec![row("a", 1); MAX_SEEN_ROWS + 1];
        let range = space().range(b"a", b"b").unwrap();
        read_set.add(range.clone(), &rows, false);
        let changes = Changes { read_ranges: vec![(key("a"), key("b"))], ..Changes::default() };
        let needed = needed(&space(), &changes).unwrap();
        assert_eq!(read_set.missing(&needed), needed.strict);
        read_set.add(range, &rows[..1], true);
        assert_eq!(read_set.compares(&needed, 1).len(), 2);
    }

    #[test]
    fn nothing_is_written_twice() {
        let changes = Changes {
            clear_ranges: vec![(key("a"), key("f")), (key("e"), key("h"))],
            puts: vec![(key("b"), Some(key("1"))), (key("c"), None), (key("x"), None)],
            versionstamped: vec![key("g")],
            ..Changes::default()
        };
        let operations = writes(&space(), &RowKeys::new(1), &changes).unwrap().operations(0);
        let texts: Vec<_> = operations
            .iter()
            .map(|operation| match operation.request.as_ref().unwrap() {
                Request::Put(put) => format!("{} set", text(&put.key)),
                Request::DeleteRange(delete) => format!("{}..{}", text(&delete.key), text(&delete.range_end)),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = ["p/a..p/b", "p/b+..p/g", "p/g+..p/h", "p/x..", "p/b set", "p/g set"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_commit_that_only_clears_also_sets_a_key() {
        let changes = Changes { puts: vec![(key("a"), None)], ..Changes::default() };
        let mut writes = writes(&space(), &RowKeys::new(1), &changes).unwrap();
        assert_eq!(writes.len(), 2);
        writes.anchor(&space(), 3);
        assert_eq!(writes.puts.keys().cloned().collect::<Vec<_>>(), [space().own("cleared 3")]);
        assert_eq!(writes.operations(3).len(), 2);
    }

    /// The number of operations that etcd counts, in the outer transaction and in the largest nested one.
    fn counted(request: &TxnRequest) -> (usize, usize) {
        let inner = request.success.iter().map(|operation| match operation.request.as_ref().unwrap() {
            Request::Txn(inner) => inner.success.len(),
            _ => 0,
        });
        (request.compare.len().max(request.success.len()), inner.max().unwrap_or_default())
    }

    #[test]
    fn the_limits_fit_into_etcds() {
        for max_txn_ops in [64, 128, 1_000] {
            let limits = limits(max_txn_ops, 3 << 19, 9);
            let conditions = vec![Compare::default(); limits.transaction_conflicts];
            let puts = |count: usize| vec![put(key("k"), key("v")); count];
            for writes in [1, max_txn_ops, max_txn_ops + 1, limits.transaction_writes] {
                let request =
                    transaction(conditions.clone(), puts(writes), max_txn_ops, usize::MAX, limits).unwrap();
                let (outer, inner) = counted(&request);
                assert!(outer + inner <= max_txn_ops, "{writes} writes: {outer} and {inner}");
            }
            let more = transaction(
                vec![Compare::default(); limits.transaction_conflicts + 1],
                puts(1),
                max_txn_ops,
                usize::MAX,
                limits,
            );
            assert!(matches!(more, Err(Error::TooMany { .. })));
            let more =
                transaction(conditions, puts(limits.transaction_writes + 1), max_txn_ops, usize::MAX, limits);
            assert!(matches!(more, Err(Error::TooMany { .. })));
        }
        assert_eq!(limits(128, 3 << 19, 9).transaction_writes, 960);
    }

    #[test]
    fn a_transaction_that_etcd_would_refuse_is_not_sent() {
        let big = vec![put(key("k"), Bytes::from(vec![0; 2_000]))];
        let refused = transaction(Vec::new(), big, 128, 2_000, limits(128, 2_000, 9));
        assert!(matches!(refused, Err(Error::TooLarge { what: "transaction", limit: 2_000, .. })));
    }

    /// Readers of the rows of sums unpack their keys.
    #[test]
    fn the_row_that_adds_to_a_sum_has_a_tuple_as_its_key() {
        let sum = Bytes::from(foundationdb_tuple::pack(&("counts", "mail", "acme")));
        for random in [0, 1, u64::MAX] {
            let additions = RowKeys::new(random);
            let keys = [additions.key(&sum), additions.key(&sum)];
            assert_ne!(keys[0], keys[1]);
            for key in &keys {
                let elements: Vec<foundationdb_tuple::Element<'_>> = foundationdb_tuple::unpack(key).unwrap();
                assert_eq!(elements.len(), 5);
                assert!(key.len() - sum.len() <= 20, "{} bytes", key.len() - sum.len());
            }
        }
    }
}
