//! What a commit must prove and write, as one transaction of etcd.
//!
//! | was read | condition |
//! | --- | --- |
//! | a key that was there | its revision is the one seen |
//! | a key that was not | its revision is 0 |
//! | a range | no key in it has a revision above the snapshot's (which holds for an empty range too), and each row that was seen has the revision seen: etcd keeps nothing of a deleted row that a condition could ask for |
//! | a range into which nothing may have come | the first of these alone |
//!
//! A key that lies in a range needs no condition of its own. What was declared but not read is read first, keys only.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use prost::Message as _;

use super::api::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, KeyValue, PutRequest, Request,
    RequestOp, TxnRequest,
};
use super::space::{self, Space};
use crate::key::successor;
use crate::{Changes, Error, Limits, Result};

/// Rows that a snapshot remembers to have seen. Of what it reads beyond that it remembers nothing, and reads it again
/// should it have to be proved.
const MAX_SEEN_ROWS: usize = 10_000;

/// Ranges of keys that neither overlap nor touch, by their begin.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Intervals {
    ends: BTreeMap<Bytes, Bytes>,
}

impl Intervals {
    pub(super) fn add(&mut self, begin: Bytes, end: Bytes) {
        if begin >= end {
            return;
        }
        let (mut begin, mut end) = (begin, end);
        // Those that begin at or before the new end, and end at or after the new begin.
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

    /// The last one that begins at or before `key`.
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

    /// Whether any key of `[begin, end)` is in one of them.
    pub(super) fn overlaps(&self, begin: &Bytes, end: &Bytes) -> bool {
        let before = (Bound::Unbounded, Bound::Excluded(end));
        self.ends.range::<Bytes, _>(before).next_back().is_some_and(|(_, other_end)| begin < other_end)
    }

    /// What of these ranges is not in `other`.
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

/// What a commit must prove to be unchanged, in etcd's keys.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// Everything, keys as ranges of one.
    pub(super) all: Intervals,
    /// The same without `arrivals`: of these each row must be known.
    strict: Intervals,
    ranges: Intervals,
    arrivals: Intervals,
    /// Those that are in no range.
    keys: Vec<Bytes>,
}

pub(super) fn needed(space: &Space, changes: &Changes) -> Result<Needed> {
    let mut ranges = Intervals::default();
    for (begin, end) in &changes.read_ranges {
        if let Some((begin, end)) = space.range(begin, end) {
            ranges.add(begin, end);
        }
    }
    let mut strict = ranges.clone();
    let mut keys = Vec::new();
    for key in &changes.read_keys {
        let key = space.key(key)?;
        if !ranges.contains(&key) {
            strict.add(key.clone(), successor(&key));
            keys.push(key);
        }
    }
    let mut arrivals = Intervals::default();
    for (begin, end) in &changes.arrivals {
        if let Some((begin, end)) = space.range(begin, end) {
            arrivals.add(begin, end);
        }
    }
    let mut all = strict.clone();
    arrivals.iter().for_each(|(begin, end)| all.add(begin.clone(), end.clone()));
    Ok(Needed { all, strict, ranges, arrivals, keys })
}

/// What a snapshot has read.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// In these all rows are known.
    covered: Intervals,
    /// The rows in `covered`, and the revisions of their latest changes.
    revisions: BTreeMap<Bytes, i64>,
}

impl Seen {
    /// All rows of a range. Above the bound they are remembered only if they `must` be.
    pub(super) fn add(&mut self, covered: (Bytes, Bytes), rows: &[KeyValue], must: bool) {
        if !must && self.revisions.len() + rows.len() > MAX_SEEN_ROWS {
            return;
        }
        self.covered.add(covered.0, covered.1);
        self.revisions.extend(rows.iter().map(|row| (row.key.clone(), row.mod_revision)));
    }

    /// What of the needed was not read yet.
    pub(super) fn missing(&self, needed: &Needed) -> Intervals {
        needed.strict.without(&self.covered)
    }

    /// The conditions under which all that is needed is as it was at `revision`. Everything needed was seen.
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

/// What a commit writes, in etcd's keys. No two of these touch the same key, which etcd would refuse: cleared ranges
/// have gaps where something is set.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) puts: BTreeMap<Bytes, Put>,
    pub(super) cleared: Intervals,
}

/// What a key is set to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Put {
    Value(Bytes),
    Versionstamp,
}

pub(super) fn writes(space: &Space, changes: &Changes) -> Result<Writes> {
    let mut cleared = Intervals::default();
    for (begin, end) in &changes.clear_ranges {
        if let Some((begin, end)) = space.range(begin, end) {
            cleared.add(begin, end);
        }
    }
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
    let mut set = Intervals::default();
    for key in puts.keys() {
        set.add(key.clone(), successor(key));
    }
    let cleared = cleared.without(&set);
    Ok(Writes { puts, cleared })
}

impl Writes {
    /// How many operations these will be.
    pub(super) fn len(&self) -> usize {
        self.puts.len().max(1) + self.cleared.ends.len()
    }

    /// The keys that are set to the versionstamp.
    pub(super) fn stamped(&self) -> impl Iterator<Item = &Bytes> {
        self.puts.iter().filter(|(_, put)| **put == Put::Versionstamp).map(|(key, _)| key)
    }

    /// Sets something if nothing is set: where nothing is deleted etcd makes no new revision, and this commit would
    /// have the versionstamp of another one.
    pub(super) fn anchor(&mut self, space: &Space, place: u16) {
        if self.puts.is_empty() {
            self.puts.insert(space.own(&format!("cleared {place}")), Put::Value(Bytes::new()));
        }
    }

    /// The operations of the `place`th commit of a revision.
    pub(super) fn operations(&self, place: u16) -> Vec<RequestOp> {
        let deletes = self.cleared.iter().map(|(begin, end)| {
            let one = *end == successor(begin);
            delete(begin.clone(), if one { Bytes::new() } else { end.clone() })
        });
        let puts = self.puts.iter().map(|(key, value)| match value {
            Put::Value(value) => put(key.clone(), value.clone()),
            Put::Versionstamp => put(key.clone(), space::stamped(place)),
        });
        deletes.chain(puts).collect()
    }
}

/// A commit that is ready to be sent.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) needed: Needed,
    pub(super) compares: Vec<Compare>,
    pub(super) writes: Writes,
}

impl Prepared {
    /// About what it adds to a request.
    pub(super) fn bytes(&self) -> usize {
        let compares: usize = self.compares.iter().map(|compare| compare.encoded_len() + 4).sum();
        let puts = self.writes.puts.iter().map(|(key, value)| match value {
            Put::Value(value) => key.len() + value.len() + 32,
            Put::Versionstamp => key.len() + 64,
        });
        let cleared = self.writes.cleared.iter().map(|(begin, end)| begin.len() + end.len() + 32);
        compares + puts.chain(cleared).sum::<usize>() + 64
    }
}

/// The limits of an engine whose etcd has these, for keys that are `overhead` bytes longer there.
///
/// etcd counts what a transaction asks and what it does separately, and the larger number counts against `max_txn_ops`.
/// A transaction in a transaction has what the outer one has left. So what is done can be spread over inner ones that
/// ask nothing: with all but a sixteenth of the operations for conditions, as many inner transactions have that
/// sixteenth each.
pub(super) fn limits(max_txn_ops: usize, max_request_bytes: usize, overhead: usize) -> Limits {
    let inner = max_txn_ops / 16;
    let conflicts = max_txn_ops - inner;
    let writes = conflicts * inner;
    // Each operation's prefix and framing, and some for the keys of rows that were seen in ranges.
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

/// One transaction of etcd: under the conditions, all operations.
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
    // etcd wraps it in a few dozen bytes before it compares.
    let size = request.encoded_len() + 512;
    if size > max_request_bytes {
        return Err(Error::TooLarge { what: "transaction", size, limit: max_request_bytes });
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    //! Ranges against a model, and the shape of transactions.

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

    /// What the conditions ask, in words.
    fn told(compares: &[Compare]) -> Vec<String> {
        let told = |compare: &Compare| {
            let sign = if compare.result == CompareResult::Less as i32 { '<' } else { '=' };
            let Some(CompareWith::ModRevision(revision)) = compare.with else { panic!("{compare:?}") };
            format!("{}..{} {sign} {revision}", text(&compare.key), text(&compare.range_end))
        };
        compares.iter().map(told).collect()
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
    fn what_was_read_is_proved_once() {
        let mut seen = Seen::default();
        let range = |begin: &str, end: &str| space().range(begin.as_bytes(), end.as_bytes()).unwrap();
        seen.add(range("b", "f"), &[row("b", 3), row("d", 5)], false);
        seen.add(range("k", "k\0"), &[row("k", 7)], false);
        seen.add(range("m", "m\0"), &[], false);
        let changes = Changes {
            read_keys: vec![key("d"), key("k"), key("m"), key("z")],
            read_ranges: vec![(key("c"), key("e")), (key("b"), key("d")), (key("x"), key("y"))],
            ..Changes::default()
        };
        let needed = needed(&space(), &changes).unwrap();
        let missing = seen.missing(&needed);
        let told_missing: Vec<_> = missing.iter().map(|(b, e)| format!("{}..{}", text(b), text(e))).collect();
        assert_eq!(told_missing, ["p/x..p/y", "p/z..p/z+"]);
        seen.add(range("x", "y"), &[row("x", 9)], true);
        seen.add(range("z", "z\0"), &[], true);
        assert!(seen.missing(&needed).iter().next().is_none());
        assert_eq!(
            told(&seen.compares(&needed, 10)),
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
    fn of_arrivals_no_row_needs_to_be_known() {
        let changes = Changes {
            read_keys: vec![key("d")],
            arrivals: vec![(key("b"), key("f")), (key("c"), key("e"))],
            ..Changes::default()
        };
        let mut seen = Seen::default();
        seen.add(space().range(b"d", b"d\0").unwrap(), &[row("d", 5)], false);
        let needed = needed(&space(), &changes).unwrap();
        assert!(seen.missing(&needed).iter().next().is_none());
        assert_eq!(told(&seen.compares(&needed, 10)), ["p/d.. = 5", "p/b..p/f < 11"]);
    }

    #[test]
    fn too_many_rows_are_read_again() {
        let mut seen = Seen::default();
        let rows = vec![row("a", 1); MAX_SEEN_ROWS + 1];
        let range = space().range(b"a", b"b").unwrap();
        seen.add(range.clone(), &rows, false);
        let changes = Changes { read_ranges: vec![(key("a"), key("b"))], ..Changes::default() };
        let needed = needed(&space(), &changes).unwrap();
        assert_eq!(seen.missing(&needed), needed.all);
        seen.add(range, &rows[..1], true);
        assert_eq!(seen.compares(&needed, 1).len(), 2);
    }

    #[test]
    fn nothing_is_written_twice() {
        let changes = Changes {
            clear_ranges: vec![(key("a"), key("f")), (key("e"), key("h"))],
            puts: vec![(key("b"), Some(key("1"))), (key("c"), None), (key("x"), None)],
            versionstamped: vec![key("g")],
            ..Changes::default()
        };
        let operations = writes(&space(), &changes).unwrap().operations(0);
        let told: Vec<_> = operations
            .iter()
            .map(|operation| match operation.request.as_ref().unwrap() {
                Request::Put(put) => format!("{} set", text(&put.key)),
                Request::DeleteRange(delete) => format!("{}..{}", text(&delete.key), text(&delete.range_end)),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = ["p/a..p/b", "p/b+..p/g", "p/g+..p/h", "p/x..", "p/b set", "p/g set"];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_only_clears_sets_something_too() {
        let changes = Changes { puts: vec![(key("a"), None)], ..Changes::default() };
        let mut writes = writes(&space(), &changes).unwrap();
        assert_eq!(writes.len(), 2);
        writes.anchor(&space(), 3);
        assert_eq!(writes.puts.keys().cloned().collect::<Vec<_>>(), [space().own("cleared 3")]);
        assert_eq!(writes.operations(3).len(), 2);
    }

    /// How many operations etcd counts, outside and in the largest transaction within.
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
}
