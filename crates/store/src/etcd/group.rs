//! Group commit: transactions of one process that are ready at the same time become one transaction of etcd.
//!
//! etcd spends most of a small transaction on a fixed cost: a call, a round among the members, a record in each member's log. So
//! while commits are under way, new ones wait, and are then sent together:
//!
//! ```text
//!  Txn { if nothing: [ Txn { if what A read is unchanged: A's writes },
//!                      Txn { if what B read is unchanged: B's writes }, … ] }
//! ```
//!
//! Each has its own conditions and its own result. But etcd evaluates all conditions before it executes any write, so it
//! does not see conflicts within the group. This module checks those. The commits of a group have an order, which their
//! versionstamps state. A commit may join if the earlier ones write nothing that it has read, and nothing that it writes.
//! The result is then the same as if they had committed one after the other. A commit that may not join is the first of the
//! next group.
//!
//! Several commits may set the same key to their versionstamp, such as the row that wakes workers. The group sets it once,
//! outside the nested transactions, to the stamp of the last commit that sets it. Without this, each commit that adds a job would
//! need its own transaction, because etcd refuses to write a key twice. The key is then set even if the conditions of that
//! commit, or of all of them, fail. A stamp only signals a change, so an extra stamp costs its readers one needless read.
//!
//! A single commit does not wait, unless [`MAX_UNDER_WAY`] groups are under way.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::api::{Request, RequestOp, Response, TxnRequest, TxnResponse};
use super::commit::{Intervals, Needed, Prepared, Put, put};
use super::shared::Shared;
use super::space;
use crate::{Error, Result, Versionstamp};

/// Groups that are sent to a member before the first of them has been answered. Groups that a member leaves unanswered delay
/// nothing once another member is current.
const MAX_UNDER_WAY: usize = 4;

#[derive(Default)]
pub(super) struct Groups {
    waiting: VecDeque<Submission>,
    /// The number of groups under way, by the member that was current when they began.
    under_way: HashMap<usize, usize>,
}

impl Groups {
    /// Whether one more group may begin with `member`. If so, counts it.
    fn begins(&mut self, member: usize) -> bool {
        let under_way = self.under_way.entry(member).or_default();
        let begins = *under_way < MAX_UNDER_WAY;
        *under_way += usize::from(begins);
        begins
    }

    fn ends(&mut self, member: usize) {
        if let Some(under_way) = self.under_way.get_mut(&member) {
            *under_way -= 1;
        }
    }
}

struct Submission {
    prepared: Prepared,
    answer: oneshot::Sender<Result<Versionstamp>>,
}

/// Commits, alone or in a group.
pub(super) async fn commit(shared: &Arc<Shared>, prepared: Prepared) -> Result<Versionstamp> {
    let (answer, answered) = oneshot::channel();
    {
        let mut groups = shared.groups.lock();
        groups.waiting.push_back(Submission { prepared, answer });
        let member = shared.members.current();
        if groups.begins(member) {
            // A separate task, because a caller that drops its future must not stop other commits.
            tokio::spawn(run(shared.clone(), member));
        }
    }
    answered.await.unwrap_or_else(|_| Err(Error::UnknownOutcome("the commit was given up".into())))
}

/// Sends groups until no commit waits.
async fn run(shared: Arc<Shared>, mut member: usize) {
    loop {
        let group = {
            let mut groups = shared.groups.lock();
            let current = shared.members.current();
            if current != member {
                groups.ends(member);
                if !groups.begins(current) {
                    return;
                }
                member = current;
            }
            let group = Group::of(&mut groups.waiting, shared.max_txn_ops, shared.max_request_bytes);
            if group.members.is_empty() {
                groups.ends(member);
                return;
            }
            group
        };
        group.send(&shared).await;
    }
}

/// Commits that can be one transaction of etcd.
#[derive(Default)]
struct Group {
    members: Vec<Submission>,
    puts: BTreeSet<Bytes>,
    /// The keys that they set to versionstamps: by how many commits, and the place of the last one.
    stamped: BTreeMap<Bytes, (usize, u16)>,
    cleared: Intervals,
    bytes: usize,
}

impl Group {
    /// Takes the commits from the front that can go together.
    fn of(waiting: &mut VecDeque<Submission>, max_txn_ops: usize, max_request_bytes: usize) -> Self {
        let mut group = Group::default();
        // Half of the operations limits the number of commits, the other half the size of each.
        let room = max_txn_ops / 2;
        while let Some(next) = waiting.front() {
            let prepared = &next.prepared;
            let is_small = prepared.compares.len().max(prepared.writes.len()) <= room;
            let bytes = prepared.bytes();
            let joins = group.members.is_empty()
                || is_small
                    && group.members.len() + group.shared().count() + prepared.writes.stamped().count()
                        < room
                    && group.bytes + bytes <= max_request_bytes / 2
                    && !group.writes_any_of(&prepared.needed)
                    && !group.overlaps(prepared);
            if !joins {
                break;
            }
            let Some(next) = waiting.pop_front() else { break };
            if next.answer.is_closed() {
                // The caller has gone, and nothing was sent.
                continue;
            }
            group.bytes += bytes;
            group.puts.extend(next.prepared.writes.puts.keys().cloned());
            for key in next.prepared.writes.stamped() {
                let (stamps, last) = group.stamped.entry(key.clone()).or_default();
                *stamps += 1;
                *last = place_of(group.members.len());
            }
            for (begin, end) in next.prepared.writes.cleared.iter() {
                group.cleared.add(begin.clone(), end.clone());
            }
            group.members.push(next);
            if !is_small {
                break;
            }
        }
        group
    }

    /// The keys that several commits set to their versionstamp, each with the place of the last one.
    fn shared(&self) -> impl Iterator<Item = (&Bytes, u16)> {
        self.stamped.iter().filter(|(_, (stamps, _))| *stamps > 1).map(|(key, (_, last))| (key, *last))
    }

    fn puts_in(&self, begin: &Bytes, end: &Bytes) -> bool {
        self.puts.range::<Bytes, _>((Bound::Included(begin), Bound::Excluded(end))).next().is_some()
    }

    /// Whether the group writes what another commit has read.
    fn writes_any_of(&self, needed: &Needed) -> bool {
        needed.iter().any(|(begin, end)| self.puts_in(begin, end) || self.cleared.overlaps(begin, end))
    }

    /// Whether the group writes what another commit writes, except a versionstamp in both.
    fn overlaps(&self, other: &Prepared) -> bool {
        let taken = |(key, put): (&Bytes, &Put)| {
            let is_shared = *put == Put::Versionstamp && self.stamped.contains_key(key);
            self.cleared.contains(key) || self.puts.contains(key) && !is_shared
        };
        other.writes.puts.iter().any(taken)
            || other.writes.cleared.iter().any(|(begin, end)| self.puts_in(begin, end))
    }

    /// Commits all of them, and sends each its result.
    async fn send(mut self, shared: &Shared) {
        if self.members.len() == 1 {
            let Some(Submission { prepared, answer }) = self.members.pop() else { return };
            let _ = answer.send(alone(shared, prepared).await);
            return;
        }
        let room = shared.max_txn_ops / 2;
        let (mut operations, mut answers) = (Vec::new(), Vec::new());
        let shared_stamps: Vec<_> = self.shared().map(|(key, last)| (key.clone(), last)).collect();
        for (place, Submission { prepared, answer }) in self.members.into_iter().enumerate() {
            let place = place_of(place);
            let Prepared { compares, mut writes, .. } = prepared;
            debug_assert!(compares.len() <= room);
            for (key, _) in &shared_stamps {
                writes.puts.remove(key);
            }
            writes.anchor(&shared.space, place);
            let txn =
                TxnRequest { compare: compares, success: writes.operations(place), failure: Vec::new() };
            operations.push(RequestOp { request: Some(Request::Txn(txn)) });
            answers.push(answer);
        }
        operations.extend(shared_stamps.into_iter().map(|(key, last)| put(key, space::stamped(last, &[]))));
        let request = TxnRequest { success: operations, ..TxnRequest::default() };
        match shared.members.commit(request).await {
            Ok(response) => answer_all(answers, &response),
            Err(error) => {
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
}

fn place_of(member: usize) -> u16 {
    u16::try_from(member).expect("a group has few members")
}

async fn alone(shared: &Shared, prepared: Prepared) -> Result<Versionstamp> {
    let Prepared { compares, mut writes, .. } = prepared;
    writes.anchor(&shared.space, 0);
    let request = super::commit::transaction(
        compares,
        writes.operations(0),
        shared.max_txn_ops,
        shared.max_request_bytes,
        shared.limits,
    )?;
    let response = shared.members.commit(request).await?;
    stamp(&response, 0, response.succeeded)
}

fn stamp(response: &TxnResponse, place: u16, succeeded: bool) -> Result<Versionstamp> {
    let revision = response.header.as_ref().map_or(0, |header| header.revision);
    if succeeded { Ok(space::versionstamp(revision, place)) } else { Err(Error::Conflict) }
}

fn answer_all(answers: Vec<oneshot::Sender<Result<Versionstamp>>>, response: &TxnResponse) {
    for (place, answer) in answers.into_iter().enumerate() {
        let said = response.responses.get(place).and_then(|answer| answer.response.as_ref());
        let result = match (said, u16::try_from(place)) {
            (Some(Response::Txn(txn)), Ok(place)) => stamp(response, place, txn.succeeded),
            _ => Err(Error::UnknownOutcome("etcd has answered something else than was asked".into())),
        };
        let _ = answer.send(result);
    }
}

#[cfg(test)]
mod tests {
    //! Which commits may share a group.

    #![allow(clippy::unwrap_used)]

    use super::super::api::Compare;
    use super::super::commit::{needed, writes};
    use super::super::space::Space;
    use super::*;
    use crate::Changes;
    use crate::appends::RowKeys;

    fn key(name: &str) -> Bytes {
        Bytes::copy_from_slice(name.as_bytes())
    }

    /// A transaction that reads ranges and keys, sets keys, and clears ranges. `"a-c d"` is a range and a key, `"*e"` a key that
    /// is set to the versionstamp.
    fn changes(reads: &str, sets: &str, clears: &str) -> Changes {
        let ranges = |text: &str| {
            let ranges = text.split_whitespace().filter_map(|part| part.split_once('-'));
            ranges.map(|(begin, end)| (key(begin), key(end))).collect::<Vec<_>>()
        };
        let keys = |text: &str| {
            let plain = |part: &&str| !part.contains('-') && !part.starts_with('*');
            text.split_whitespace().filter(plain).map(key).collect::<Vec<_>>()
        };
        let stamped = sets.split_whitespace().filter_map(|part| part.strip_prefix('*'));
        Changes {
            read_keys: keys(reads),
            read_ranges: ranges(reads),
            arrivals: Vec::new(),
            clear_ranges: ranges(clears),
            puts: keys(sets).into_iter().map(|key| (key, Some(Bytes::new()))).collect(),
            versionstamped: stamped.map(key).collect(),
            adds: Vec::new(),
            appends: Vec::new(),
        }
    }

    fn submitted(
        changes: &Changes,
        compares: usize,
    ) -> (Submission, oneshot::Receiver<Result<Versionstamp>>) {
        let space = Space::new("p");
        let (answer, answered) = oneshot::channel();
        let prepared = Prepared {
            needed: needed(&space, changes).unwrap(),
            compares: vec![Compare::default(); compares],
            writes: writes(&space, &RowKeys::new(1), changes).unwrap(),
        };
        (Submission { prepared, answer }, answered)
    }

    /// The sizes of the groups that these form.
    fn groups(all: &[(&str, &str, &str)]) -> Vec<usize> {
        let (mut waiting, _answered): (VecDeque<_>, Vec<_>) =
            all.iter().map(|(reads, sets, clears)| submitted(&changes(reads, sets, clears), 1)).unzip();
        let mut groups = Vec::new();
        while !waiting.is_empty() {
            groups.push(Group::of(&mut waiting, 128, 1 << 20).members.len());
        }
        groups
    }

    #[test]
    fn independent_commits_share_a_group() {
        assert_eq!(groups(&[("a", "a", ""), ("b", "b", ""), ("c-d", "c", "e-f")]), [3]);
        // Both have read it and neither writes it.
        assert_eq!(groups(&[("a", "b", ""), ("a", "c", "")]), [2]);
        // The earlier one has read what the later one writes.
        assert_eq!(groups(&[("a", "b", ""), ("c", "a", "")]), [2]);
        assert_eq!(groups(&[("a-m", "z", ""), ("", "b", "c-d")]), [2]);
        // Both clear the same range.
        assert_eq!(groups(&[("", "", "a-m"), ("", "", "b-z")]), [2]);
    }

    #[test]
    fn a_commit_that_read_what_another_one_writes_is_in_a_later_group() {
        assert_eq!(groups(&[("", "a", ""), ("a", "b", "")]), [1, 1]);
        assert_eq!(groups(&[("", "c", ""), ("a-m", "z", "")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-m"), ("b", "z", "")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-m"), ("f-z", "y", "")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-m"), ("m-z", "y", "")]), [2]);
    }

    #[test]
    fn a_commit_that_writes_what_another_one_writes_is_in_a_later_group() {
        assert_eq!(groups(&[("", "a", ""), ("", "a", "")]), [1, 1]);
        assert_eq!(groups(&[("", "a", ""), ("", "", "a-b")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-c"), ("", "b", "")]), [1, 1]);
        // The order is kept: the third does not overtake the second.
        assert_eq!(groups(&[("", "a", ""), ("", "a", ""), ("", "b", "")]), [1, 2]);
    }

    #[test]
    fn commits_that_set_the_same_stamp_share_a_group() {
        assert_eq!(groups(&[("", "a *w", ""), ("", "b *w", ""), ("c", "*w", "")]), [3]);
        // It has the stamp of the last commit that sets it.
        let all = [changes("", "*w", ""), changes("", "*w *v", ""), changes("", "a", "")];
        let (mut waiting, _answered): (VecDeque<_>, Vec<_>) =
            all.iter().map(|changes| submitted(changes, 1)).unzip();
        let stamped = Group::of(&mut waiting, 128, 1 << 20).stamped;
        assert_eq!(stamped.into_values().collect::<Vec<_>>(), [(1, 1), (2, 1)]);
        assert_eq!(groups(&[("", "w", ""), ("", "*w", "")]), [1, 1]);
        assert_eq!(groups(&[("", "*w", ""), ("", "w", "")]), [1, 1]);
        assert_eq!(groups(&[("", "*w", ""), ("w", "a", "")]), [1, 1]);
        assert_eq!(groups(&[("", "*w", ""), ("", "", "v-x")]), [1, 1]);
        assert_eq!(groups(&[("", "", "v-x"), ("", "*w", "")]), [1, 1]);
        // Each shared stamp also needs a place among etcd's operations.
        let many: Vec<_> = (0..70).map(|n| format!("k{n} *v *w")).collect();
        let all: Vec<_> = many.iter().map(|sets| ("", sets.as_str(), "")).collect();
        assert!(groups(&all).iter().all(|size| size + 2 <= 64));
    }

    #[test]
    fn the_size_of_a_group_is_bounded() {
        let many: Vec<_> = (0..130).map(|n| format!("k{n}")).collect();
        let all: Vec<_> = many.iter().map(|name| ("", name.as_str(), "")).collect();
        assert_eq!(groups(&all), [64, 64, 2]);
        let (small, large) = (changes("", "a", ""), changes("", "b", ""));
        let submissions = [(&small, 1), (&large, 65), (&small, 1)];
        let (mut waiting, answered): (VecDeque<_>, Vec<_>) =
            submissions.into_iter().map(|(changes, compares)| submitted(changes, compares)).unzip();
        for expected in [1, 1, 1] {
            assert_eq!(Group::of(&mut waiting, 128, 1 << 20).members.len(), expected);
        }
        drop(answered);
        // The caller of this commit has gone.
        let (submission, answered) = submitted(&small, 1);
        drop(answered);
        assert!(Group::of(&mut VecDeque::from([submission]), 128, 1 << 20).members.is_empty());
    }
}
