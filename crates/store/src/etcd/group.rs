//! Group commit: transactions of one process that are ready at the same time become one transaction of etcd.
//!
//! etcd spends most of a small transaction on what every one of them needs: a call, a round among the members, a record
//! in each one's log. So while commits are under way those that come meanwhile wait, and then go together:
//!
//! ```text
//!  Txn { if nothing: [ Txn { if what A read is unchanged: A's writes },
//!                      Txn { if what B read is unchanged: B's writes }, … ] }
//! ```
//!
//! Each has conditions, and an answer, of its own. But etcd looks at the conditions of all of them before it writes for
//! any, so it does not see what they do to each other; that is checked here. The members of a group are in an order,
//! which their versionstamps tell. One may join if those before it write nothing that it has read, and nothing that it
//! writes: then it is as if they had committed one after the other. One that may not join is first in the next group.
//!
//! What several of them set to their versionstamp, such as the row that wakes workers, is set once, outside, to that of the
//! last one that sets it: etcd refuses to write a key twice, and without this everyone who adds a job would go alone. It is
//! then set even if that one, or all of them, fail for their conditions. A stamp tells of a change and of nothing else: a
//! stamp too many makes its readers look in vain, once.
//!
//! A lone commit waits for nobody, unless [`MAX_UNDER_WAY`] are.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::api::{Request, RequestOp, Response, TxnRequest, TxnResponse};
use super::commit::{Intervals, Needed, Prepared, Put, put};
use super::{Shared, space};
use crate::{Error, Result, Versionstamp};

/// Groups that are sent to a member before the first of them has been answered. Those that a member leaves unanswered hold
/// nothing up once another one is asked.
const MAX_UNDER_WAY: usize = 4;

/// Commits that wait for their turn.
#[derive(Default)]
pub(super) struct Groups {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Submission>,
    /// By the member that was asked when they began.
    under_way: HashMap<usize, usize>,
}

impl State {
    /// Whether one more may begin with `member`.
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

impl Groups {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Commits, alone or in company.
pub(super) async fn commit(shared: &Arc<Shared>, prepared: Prepared) -> Result<Versionstamp> {
    let (answer, answered) = oneshot::channel();
    {
        let mut state = shared.groups.state();
        state.waiting.push_back(Submission { prepared, answer });
        let member = shared.members.current();
        if state.begins(member) {
            // A task of its own: whoever gives up waiting for one commit must not stop those of others.
            tokio::spawn(run(shared.clone(), member));
        }
    }
    answered.await.unwrap_or_else(|_| Err(Error::UnknownOutcome("the commit was given up".into())))
}

/// Sends groups until nothing waits.
async fn run(shared: Arc<Shared>, mut member: usize) {
    loop {
        let group = {
            let mut state = shared.groups.state();
            let current = shared.members.current();
            if current != member {
                state.ends(member);
                if !state.begins(current) {
                    return;
                }
                member = current;
            }
            let group = Group::of(&mut state.waiting, shared.max_txn_ops, shared.max_request_bytes);
            if group.members.is_empty() {
                state.ends(member);
                return;
            }
            group
        };
        group.send(&shared).await;
    }
}

/// Transactions that can be one of etcd's.
#[derive(Default)]
struct Group {
    members: Vec<Submission>,
    /// Keys that they set.
    puts: BTreeSet<Bytes>,
    /// Those of them that are set to versionstamps, by how many, and the place of the last one.
    stamped: BTreeMap<Bytes, (usize, u16)>,
    /// Keys that more than one sets to its versionstamp.
    shared: usize,
    /// Ranges that they clear.
    cleared: Intervals,
    bytes: usize,
}

impl Group {
    /// Takes those from the front that go together.
    fn of(waiting: &mut VecDeque<Submission>, max_txn_ops: usize, max_request_bytes: usize) -> Self {
        let mut group = Group::default();
        // Half of the operations for how many they are, half for how many each may have.
        let room = max_txn_ops / 2;
        while let Some(next) = waiting.front() {
            let prepared = &next.prepared;
            let is_small = prepared.compares.len().max(prepared.writes.len()) <= room;
            let bytes = prepared.bytes();
            let joins = group.members.is_empty()
                || is_small
                    && group.members.len() + group.shared + prepared.writes.stamped().count() < room
                    && group.bytes + bytes <= max_request_bytes / 2
                    && !group.writes_any_of(&prepared.needed)
                    && !group.overlaps(prepared);
            if !joins {
                break;
            }
            let Some(next) = waiting.pop_front() else { break };
            if next.answer.is_closed() {
                // Whoever wanted it has gone: nothing was sent.
                continue;
            }
            group.bytes += bytes;
            group.puts.extend(next.prepared.writes.puts.keys().cloned());
            for key in next.prepared.writes.stamped() {
                let (stamps, last) = group.stamped.entry(key.clone()).or_default();
                *stamps += 1;
                *last = place_of(group.members.len());
                group.shared += usize::from(*stamps == 2);
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

    fn puts_in(&self, begin: &Bytes, end: &Bytes) -> bool {
        self.puts.range::<Bytes, _>((Bound::Included(begin), Bound::Excluded(end))).next().is_some()
    }

    /// Whether something is written that another transaction has read.
    fn writes_any_of(&self, needed: &Needed) -> bool {
        needed.all.iter().any(|(begin, end)| self.puts_in(begin, end) || self.cleared.overlaps(begin, end))
    }

    /// Whether something is written that another transaction writes, other than as a versionstamp in both.
    fn overlaps(&self, other: &Prepared) -> bool {
        let taken = |(key, put): (&Bytes, &Put)| {
            let is_shared = *put == Put::Versionstamp && self.stamped.contains_key(key);
            self.cleared.contains(key) || self.puts.contains(key) && !is_shared
        };
        other.writes.puts.iter().any(taken)
            || other.writes.cleared.iter().any(|(begin, end)| self.puts_in(begin, end))
    }

    /// Commits all of them, and tells each what came of it.
    async fn send(mut self, shared: &Shared) {
        if self.members.len() == 1 {
            let Some(Submission { prepared, answer }) = self.members.pop() else { return };
            let _ = answer.send(alone(shared, prepared).await);
            return;
        }
        let room = shared.max_txn_ops / 2;
        let (mut operations, mut answers) = (Vec::new(), Vec::new());
        let mut shared_stamps = self.stamped;
        shared_stamps.retain(|_, (stamps, _)| *stamps > 1);
        for (place, Submission { prepared, answer }) in self.members.into_iter().enumerate() {
            let place = place_of(place);
            let Prepared { compares, mut writes, .. } = prepared;
            debug_assert!(compares.len() <= room);
            for key in shared_stamps.keys() {
                writes.puts.remove(key);
            }
            writes.anchor(&shared.space, place);
            let txn =
                TxnRequest { compare: compares, success: writes.operations(place), failure: Vec::new() };
            operations.push(RequestOp { request: Some(Request::Txn(txn)) });
            answers.push(answer);
        }
        operations.extend(shared_stamps.into_iter().map(|(key, (_, last))| put(key, space::stamped(last))));
        let request = TxnRequest { success: operations, ..TxnRequest::default() };
        match shared.members.commit(request).await {
            Ok(response) => tell(answers, &response),
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

fn tell(answers: Vec<oneshot::Sender<Result<Versionstamp>>>, response: &TxnResponse) {
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
    //! Who may go with whom.

    #![allow(clippy::unwrap_used)]

    use super::super::api::Compare;
    use super::super::commit::{needed, writes};
    use super::super::space::Space;
    use super::*;
    use crate::Changes;

    fn key(name: &str) -> Bytes {
        Bytes::copy_from_slice(name.as_bytes())
    }

    /// A transaction that reads ranges and keys, sets keys, and clears ranges: `"a-c d"` is a range and a key, `"*e"` one
    /// that is set to the versionstamp.
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
            writes: writes(&space, changes).unwrap(),
        };
        (Submission { prepared, answer }, answered)
    }

    /// How many of these go together in each group.
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
    fn those_who_do_not_touch_each_other_go_together() {
        assert_eq!(groups(&[("a", "a", ""), ("b", "b", ""), ("c-d", "c", "e-f")]), [3]);
        // Both have read it and neither writes it.
        assert_eq!(groups(&[("a", "b", ""), ("a", "c", "")]), [2]);
        // The one before has read what the one after writes.
        assert_eq!(groups(&[("a", "b", ""), ("c", "a", "")]), [2]);
        assert_eq!(groups(&[("a-m", "z", ""), ("", "b", "c-d")]), [2]);
        // Both clear the same.
        assert_eq!(groups(&[("", "", "a-m"), ("", "", "b-z")]), [2]);
    }

    #[test]
    fn who_has_read_what_another_one_writes_goes_later() {
        assert_eq!(groups(&[("", "a", ""), ("a", "b", "")]), [1, 1]);
        assert_eq!(groups(&[("", "c", ""), ("a-m", "z", "")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-m"), ("b", "z", "")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-m"), ("f-z", "y", "")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-m"), ("m-z", "y", "")]), [2]);
    }

    #[test]
    fn who_writes_what_another_one_writes_goes_later() {
        assert_eq!(groups(&[("", "a", ""), ("", "a", "")]), [1, 1]);
        assert_eq!(groups(&[("", "a", ""), ("", "", "a-b")]), [1, 1]);
        assert_eq!(groups(&[("", "", "a-c"), ("", "b", "")]), [1, 1]);
        // In their order: the third does not overtake the second.
        assert_eq!(groups(&[("", "a", ""), ("", "a", ""), ("", "b", "")]), [1, 2]);
    }

    #[test]
    fn those_who_set_the_same_stamp_go_together() {
        assert_eq!(groups(&[("", "a *w", ""), ("", "b *w", ""), ("c", "*w", "")]), [3]);
        // It has the stamp of the last one that sets it.
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
        // Each of theirs has to have a place among etcd's operations, too.
        let many: Vec<_> = (0..70).map(|n| format!("k{n} *v *w")).collect();
        let all: Vec<_> = many.iter().map(|sets| ("", sets.as_str(), "")).collect();
        assert!(groups(&all).iter().all(|size| size + 2 <= 64));
    }

    #[test]
    fn a_group_has_room_for_so_many() {
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
        // Nobody waits for this one any more.
        let (submission, answered) = submitted(&small, 1);
        drop(answered);
        assert!(Group::of(&mut VecDeque::from([submission]), 128, 1 << 20).members.is_empty());
    }
}
