//! Batch sizes: as much as a server processes in a few seconds.
//!
//! **Model.** A run has limits for the changes in a batch, the documents in a read, and the documents and bytes in a
//! write. For each side, [`Pace`] holds the *room*: the fraction of these limits that is used. It is 1 at first, and
//! less after a request that took too long.
//!
//! **Forces.** Large writes cost CouchDB half the CPU of small ones, so a server that keeps up gets full batches. But a
//! checkpoint waits for all batches before it, and a failed request is repeated as a whole. A request that needs longer
//! than `connection_timeout` or `request_timeout` never succeeds. Smaller requests help where a server is slow or far
//! away, or documents are large. But each request also has a fixed cost, so the fraction has a minimum.
//!
//! **Formula.** `L` is a sixth of the shortest of `checkpoint_interval`, `connection_timeout` and `request_timeout`,
//! clamped to 0.25 s to 5 s. A request that used the part `s` of the limits and took `t > L` sets the room to
//! `min(room, s · L / 2t)`, but at least 1/32. This is the size that would have taken `L / 2`. The new room depends on
//! what that request held, so several concurrent slow requests count once. A request that used at least half of the
//! room, and took less than `L / 2`, adds 1/16.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use turnwise_outbound::Side;

use crate::spec::{ADAPTIVE_BATCH_SIZE, Defaults, Replication};

/// The full room.
const WHOLE: u32 = 1 << 16;
/// The minimum room: batches of 2,000 documents shrink to 62, as with a server that throttles.
const LEAST: u32 = WHOLE / 32;
/// The increase after a fast request.
const STEP: u32 = WHOLE / 16;
/// This many requests at the limit fit into the shortest of a run's timeouts: those in flight, and some more.
const REQUESTS_IN_TIME: u32 = 6;
/// A request that takes less time than this is not slow, whatever a run's timeouts are.
const SHORTEST_LIMIT: Duration = Duration::from_millis(250);
/// A request that takes longer than this is slow, however long a run's timeouts are.
const LONGEST_LIMIT: Duration = Duration::from_secs(5);

/// The pace of one run, shared by all of its batches.
#[derive(Debug)]
pub(crate) struct Pace {
    limit: Duration,
    /// The most changes in a batch.
    most_changes: usize,
    source: AtomicU32,
    target: AtomicU32,
}

impl Pace {
    /// Starts with the full room.
    pub fn new(replication: &Replication) -> Self {
        let Defaults { checkpoint_interval, ref peers, .. } = replication.settings;
        let shortest = checkpoint_interval.min(peers.connection_timeout);
        let shortest = peers.request_timeout.map_or(shortest, |timeout| timeout.min(shortest));
        let limit = (shortest / REQUESTS_IN_TIME).clamp(SHORTEST_LIMIT, LONGEST_LIMIT);
        let most_changes = replication.settings.worker_batch_size.unwrap_or(ADAPTIVE_BATCH_SIZE);
        Self { limit, most_changes, source: AtomicU32::new(WHOLE), target: AtomicU32::new(WHOLE) }
    }

    /// The part of the limits that a request of `docs` documents and `bytes` bytes uses, where `most` are the limits. A
    /// request usually has no more documents than a batch has changes.
    pub fn part(&self, (docs, bytes): (usize, usize), (most_docs, most_bytes): (usize, usize)) -> Part {
        Part::of(docs, most_docs.min(self.most_changes)).max(Part::of(bytes, most_bytes))
    }

    /// Records that a server needed `took` for a request that was `part` of the largest one. A larger request counts as
    /// the largest.
    pub fn took(&self, side: Side, part: Part, took: Duration) {
        let next = |room| Some(room_after(room, part.0, took, self.limit));
        // The closure never returns `None`.
        let _ = self.room(side).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// How many of `most` documents or bytes a request to one side may have; at least one.
    pub fn of(&self, side: Side, most: usize) -> usize {
        share(self.room(side).load(Ordering::Relaxed), most)
    }

    /// How many changes a batch may have. Each change passes both sides, so reading more than can be written has no use.
    pub fn changes(&self) -> usize {
        self.of(Side::Source, self.most_changes).min(self.of(Side::Target, self.most_changes))
    }

    fn room(&self, side: Side) -> &AtomicU32 {
        match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        }
    }
}

/// The fraction of the full room that a request used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part(u32);

impl Part {
    /// The fraction `count / most`.
    fn of(count: usize, most: usize) -> Self {
        let part = (count as u64).saturating_mul(u64::from(WHOLE)) / (most as u64).max(1);
        Self(u32::try_from(part).unwrap_or(WHOLE).min(WHOLE))
    }
}

fn share(room: u32, most: usize) -> usize {
    (most as u64 * u64::from(room) / u64::from(WHOLE)).max(1) as usize
}

/// The room after a request that used `part` of the full room and took `took`.
fn room_after(room: u32, part: u32, took: Duration, limit: Duration) -> u32 {
    if took > limit {
        let affordable = u128::from(part) * limit.as_micros() / (2 * took.as_micros());
        // At most `part`, because the request took longer than the limit.
        room.min(affordable as u32).max(LEAST)
    } else if took < limit / 2 && part >= room / 2 {
        (room + STEP).min(WHOLE)
    } else {
        room
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    const MOST: usize = 2_000;
    const MS: Duration = Duration::from_millis(1);

    /// The pace of a run with these timeouts, which determine the time limit of its requests.
    fn pace(mut fields: serde_json::Value, request_timeout: Option<Duration>) -> Pace {
        fields["source"] = json!("http://s/db");
        fields["target"] = json!("http://t/db");
        let mut defaults = Defaults::default();
        defaults.peers.request_timeout = request_timeout;
        Pace::new(&Replication::parse(fields.as_object().unwrap(), &defaults).unwrap())
    }

    /// Writes as many documents as there is room for, to a target that takes `of(documents)`. Returns the number of
    /// documents of each write.
    fn writes(pace: &Pace, count: usize, of: impl Fn(usize) -> Duration) -> Vec<usize> {
        let write = |_| {
            let docs = pace.of(Side::Target, MOST);
            pace.took(Side::Target, Part::of(docs, MOST), of(docs));
            docs
        };
        (0..count).map(write).collect()
    }

    #[test]
    fn a_target_that_keeps_up_gets_all_at_once() {
        let pace = pace(json!({}), None);
        // 4,000 documents/s in four concurrent writes, as between two CouchDBs on one machine.
        assert_eq!(writes(&pace, 100, |docs| MS * docs as u32), [MOST; 100]);
    }

    #[test]
    fn a_slow_target_gets_what_it_takes_within_the_limit() {
        let pace = pace(json!({}), None);
        assert_eq!(pace.limit, 5_000 * MS);
        // At 100 documents/s, 2,000 take 20 s, of the 30 s after which the target counts as silent.
        let sizes = writes(&pace, 50, |docs| 10 * MS * docs as u32);
        assert_eq!(sizes[..3], [2_000, 250, 250]);
        assert!(sizes[1..].iter().all(|docs| (250..=500).contains(docs)), "{sizes:?}");
        // The target is fast again.
        let sizes = writes(&pace, 50, |docs| MS / 4 * docs as u32);
        assert!(sizes.is_sorted() && sizes[15..] == [MOST; 35], "{sizes:?}");
    }

    #[test]
    fn a_volley_counts_once() {
        let pace = pace(json!({}), None);
        for _ in 0..4 {
            pace.took(Side::Target, Part::of(MOST, MOST), 10_000 * MS);
        }
        assert_eq!(pace.of(Side::Target, MOST), 500);
    }

    #[test]
    fn a_request_that_is_slow_whatever_it_holds_keeps_a_32nd() {
        let pace = pace(json!({}), None);
        assert_eq!(writes(&pace, 10, |_| 20_000 * MS)[5..], [62; 5]);
        assert_eq!(pace.of(Side::Target, 1), 1);
    }

    #[test]
    fn small_fast_requests_do_not_increase_the_room() {
        let pace = pace(json!({}), None);
        pace.took(Side::Target, Part::of(MOST, MOST), 10_000 * MS);
        for _ in 0..100 {
            pace.took(Side::Target, Part::of(100, MOST), MS);
        }
        assert_eq!(pace.of(Side::Target, MOST), 500);
    }

    #[test]
    fn each_side_has_its_own_and_changes_go_by_the_slower_one() {
        let pace = pace(json!({}), None);
        pace.took(Side::Source, Part::of(MOST, MOST), 10_000 * MS);
        assert_eq!([Side::Source, Side::Target].map(|side| pace.of(side, MOST)), [500, MOST]);
        assert_eq!(pace.changes(), 500);
    }

    #[test]
    fn the_shortest_of_a_runs_times_sets_the_limit() {
        let limit = |fields, request_timeout| pace(fields, request_timeout).limit;
        assert_eq!(limit(json!({ "checkpoint_interval": 12_000 }), None), 2_000 * MS);
        assert_eq!(limit(json!({ "connection_timeout": 6_000 }), None), 1_000 * MS);
        assert_eq!(limit(json!({}), Some(3_000 * MS)), 500 * MS);
        assert_eq!(limit(json!({ "connection_timeout": 600 }), None), SHORTEST_LIMIT);
        let long = json!({ "checkpoint_interval": 600_000, "connection_timeout": 600_000 });
        assert_eq!(limit(long, None), LONGEST_LIMIT);
    }
}
