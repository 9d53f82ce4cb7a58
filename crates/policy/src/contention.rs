//! Which jobs at the head of the queue a worker claims, where several workers claim from the same queue.
//!
//! All workers see the same head. If each worker claimed the first jobs, all would choose the same ones. All but one
//! would conflict at commit, read again, and choose the same jobs again. So the head is divided: a hash of the job's
//! id and of the current *round* decides who owns the job. Workers that agree on the contenders and on the time agree
//! on all owners, without communication. A worker that does not agree conflicts now and then, which is no worse than
//! without a division.
//!
//! Forces:
//!
//! - *No job waits for one contender.* Its owner may be full, slow or dead. So any worker may claim a job that its
//!   owner has left, after a pause with jitter, which gives the owner the first chance. A worker that owns nothing in
//!   a full head claims some of it at once. And each round divides the head anew.
//! - *The order of the queue holds approximately.* Workers claim only jobs of the head. With `w` contenders, a worker
//!   with room for `k` jobs reads the first `w · (k + SPARE)` rows, at most [`MAX_FRONT`]. A job is overtaken only by
//!   jobs of the same head, and only while its owners have no room: one round for each owner, if no other worker
//!   claims it.
//! - *A single worker is not affected*: it reads as many rows as it has room for, in their order, without a pause.

use std::time::Duration;

/// How long a division lasts. It is long compared with a claim (some ms), so that few claims fall on the border
/// between two rounds. It is short for a job that waits for a full contender.
const ROUND_US: i64 = 1_000_000;
/// With more contenders than this, several share one part. So many workers on one queue are limited by the store, not
/// by conflicts.
pub const MAX_CONTENDERS: usize = 64;
/// Rows of the head that are read for each contender, beyond those that the worker has room for. With 8, a worker
/// owns none of them once in e^8 = 3,000 reads.
const SPARE: usize = 8;
/// The longest head that is read: about 60 kB of keys.
pub const MAX_FRONT: usize = 1_000;
/// The shortest pause before a worker claims jobs of other parts. It is longer than a claim takes, so that an owner
/// with room is faster.
const SHORTEST_PAUSE_MS: u64 = 20;
/// The most jitter that the pause gets for each contender, so that several pausing workers do not meet either.
const JITTER_MS: u64 = 20;

/// A worker's part of the head, in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    contenders: usize,
    /// A bit for each contender whose part belongs to it: none for a contender that claims nothing at once, several for
    /// workers of one process that agree with each other.
    ranks: u64,
    round: u64,
}

impl Default for Shard {
    fn default() -> Self {
        Shard::ALL
    }
}

impl Shard {
    /// The whole head.
    pub const ALL: Shard = Shard { contenders: 1, ranks: 1, round: 0 };

    /// The part of `me` among `contenders`, which are sorted. If `me` is not among them, it counts as one more
    /// contender. A hash of its name then chooses its rank, so its jobs belong to another contender as well.
    pub fn new(contenders: &[String], me: &str, now_us: i64) -> Shard {
        let (known, place) = match contenders.iter().position(|name| name == me) {
            Some(place) => (contenders.len(), place),
            None => (contenders.len() + 1, usize::try_from(hash(me, 0) >> 1).unwrap_or(0)),
        };
        let contenders = known.min(MAX_CONTENDERS);
        Shard { contenders, ranks: 1 << (place % contenders), round: round(now_us) }
    }

    /// The same with the parts of some other contenders, which agree with it about who claims a job.
    pub fn with(self, contenders: &[String], are_others: impl Fn(&str) -> bool) -> Shard {
        let others = (0..).zip(contenders).filter(|(_, name)| are_others(name));
        let ranks = others.map(|(place, _): (usize, _)| 1 << (place % self.contenders));
        Shard { ranks: ranks.fold(self.ranks, |ranks, rank: u64| ranks | rank), ..self }
    }

    /// The same division for a contender that claims nothing at once: it skips every job for its owner.
    pub fn of_none(self) -> Shard {
        Shard { ranks: 0, ..self }
    }

    /// Whether it claims nothing at once.
    pub fn is_none(&self) -> bool {
        self.ranks == 0
    }

    /// Whether it is the whole head.
    pub fn is_all(&self) -> bool {
        self.ranks.count_ones() as usize == self.contenders
    }

    /// Whether a job is in this part.
    pub fn has(&self, id: &str) -> bool {
        self.has_in(id, self.round)
    }

    /// Whether a name is in this part of the division at a time, in µs.
    pub fn has_at(&self, name: &str, at_us: i64) -> bool {
        self.has_in(name, round(at_us))
    }

    fn has_in(&self, name: &str, round: u64) -> bool {
        let whose = hash(name, round) % self.contenders as u64;
        self.ranks & (1 << whose) != 0
    }

    /// How many rows of the head to read for `room` jobs.
    pub fn front(&self, room: usize) -> usize {
        if self.is_all() {
            room
        } else {
            (room + SPARE).saturating_mul(self.contenders).min(MAX_FRONT.max(room))
        }
    }

    /// The jobs of the head to claim, in the order of the queue: those that are `mine`. Jobs of other parts follow if
    /// the caller is `eager`, or if the head is `full` and none of it is `mine`. They are one contender's number of
    /// jobs, from a place that `random` chooses. An eager contender that claims [nothing at once](Self::of_none) has
    /// skipped them for so long that it gets all of them, in the order of the queue.
    pub fn choose<T>(
        &self,
        front: Vec<T>,
        mine: impl Fn(&T) -> bool,
        full: bool,
        eager: bool,
        random: u64,
    ) -> Vec<T> {
        if self.is_all() {
            return front;
        }
        let (mine, mut others): (Vec<T>, Vec<T>) = front.into_iter().partition(mine);
        if others.is_empty() || !(eager || full && mine.is_empty()) {
            return mine;
        }
        if eager && self.is_none() {
            return others;
        }
        let from = usize::try_from(random % others.len() as u64).unwrap_or(0);
        let count = others.len().div_ceil(self.contenders);
        others.rotate_left(from);
        others.truncate(count);
        mine.into_iter().chain(others).collect()
    }

    /// The pause before a worker claims jobs of other parts.
    pub fn pause(&self, random: u64) -> Duration {
        Duration::from_millis(SHORTEST_PAUSE_MS + random % (JITTER_MS * self.contenders as u64))
    }
}

fn round(at_us: i64) -> u64 {
    at_us.div_euclid(ROUND_US).cast_unsigned()
}

/// FNV-1a, followed by the mixing steps of SplitMix64. It is the same on every node, in every build. Each round gives
/// another hash.
pub fn hash(id: &str, round: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in round.to_be_bytes().into_iter().chain(id.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("w{n:03}")).collect()
    }

    fn jobs(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("job {n}")).collect()
    }

    fn choose(shard: &Shard, front: Vec<String>, full: bool, eager: bool, random: u64) -> Vec<String> {
        shard.choose(front, |id| shard.has(id), full, eager, random)
    }

    #[test]
    fn every_job_has_exactly_one_owner_in_each_round() {
        for workers in [1, 2, 3, 8, 64] {
            let names = names(workers);
            for round in 0..3 {
                let parts: Vec<Shard> =
                    names.iter().map(|name| Shard::new(&names, name, round * ROUND_US + 7)).collect();
                for job in jobs(500) {
                    assert_eq!(parts.iter().filter(|shard| shard.has(&job)).count(), 1);
                }
            }
        }
    }

    #[test]
    fn the_part_at_a_time_is_that_of_a_pass_at_that_time() {
        let names = names(3);
        let (now, later) = [7, 5 * ROUND_US + 1].map(|now_us| Shard::new(&names, "w001", now_us)).into();
        for job in jobs(100) {
            assert_eq!(now.has_at(&job, 5 * ROUND_US + 1), later.has(&job));
            assert_eq!(later.has_at(&job, 7), now.has(&job));
        }
    }

    #[test]
    fn parts_are_about_equal_and_change_with_the_round() {
        let names = names(8);
        let mine = |round: i64| -> Vec<String> {
            let shard = Shard::new(&names, "w003", round * ROUND_US);
            jobs(8_000).into_iter().filter(|job| shard.has(job)).collect()
        };
        for round in 0..10 {
            assert!((850..1_150).contains(&mine(round).len()), "{}", mine(round).len());
        }
        let (first, second) = (mine(0), mine(1));
        let both = first.iter().filter(|job| second.contains(job)).count();
        assert!((60..190).contains(&both), "{both} of about 1,000 in both rounds");
    }

    #[test]
    fn a_single_worker_takes_the_head_as_it_is() {
        let shard = Shard::new(&names(1), "w000", 5);
        assert!(shard.is_all());
        assert_eq!(shard.front(3), 3);
        assert_eq!(choose(&shard, jobs(3), true, false, 9), jobs(3));
    }

    #[test]
    fn jobs_of_other_parts_are_taken_after_a_pause_or_if_there_is_nothing_else() {
        let names = names(4);
        let shard = Shard::new(&names, "w001", 0);
        let others: Vec<String> = jobs(100).into_iter().filter(|job| !shard.has(job)).collect();
        assert_eq!(choose(&shard, others.clone(), false, false, 3), jobs(0));
        for (full, eager) in [(true, false), (false, true)] {
            let taken = choose(&shard, others.clone(), full, eager, 3);
            assert_eq!(taken.len(), others.len().div_ceil(4));
            assert_eq!(taken[0], others[3]);
        }
        // While the worker owns a job of the head, it skips the jobs of other parts.
        let mine: Vec<String> = jobs(100).into_iter().filter(|job| shard.has(job)).collect();
        assert_eq!(choose(&shard, jobs(100), true, false, 3), mine);
    }

    #[test]
    fn a_contender_without_a_part_takes_only_skipped_jobs() {
        let shard = Shard::new(&names(4), "w001", 0).of_none();
        assert!(jobs(100).iter().all(|job| !shard.has(job)));
        assert_eq!(shard.front(1), 36);
        assert_eq!(choose(&shard, jobs(100), false, false, 3), jobs(0));
        // It has skipped them for long enough, so it takes all of them, in their order.
        assert_eq!(choose(&shard, jobs(100), false, true, 3), jobs(100));
        assert_eq!(choose(&shard, jobs(100), true, false, 3).len(), 25);
    }

    #[test]
    fn an_unknown_worker_and_each_of_many_have_a_part() {
        let many = names(200);
        for name in ["w000", "w199", "unknown"] {
            let shard = Shard::new(&many, name, 0);
            assert_eq!(shard.contenders, MAX_CONTENDERS);
            assert_eq!(shard.ranks.count_ones(), 1);
        }
        assert_eq!(Shard::new(&[], "w", 0), Shard::ALL);
        assert_eq!(Shard::new(&names(1), "w", 0).contenders, 2);
    }

    #[test]
    fn siblings_have_all_their_parts() {
        let names = names(4);
        let is_sibling = |name: &str| matches!(name, "w001" | "w003");
        let [one, three] = ["w001", "w003"].map(|name| Shard::new(&names, name, 7));
        let shared = one.with(&names, is_sibling);
        assert_eq!(shared, three.with(&names, is_sibling));
        for job in jobs(500) {
            assert_eq!(shared.has(&job), one.has(&job) || three.has(&job));
        }
        assert!(!shared.is_all());
        let all = one.with(&names, |_| true);
        assert!(all.is_all() && all.front(3) == 3);
        assert_eq!(choose(&all, jobs(3), true, false, 9), jobs(3));
    }

    #[test]
    fn the_head_has_a_bound_but_is_never_shorter_than_the_room() {
        let shard = Shard::new(&names(8), "w001", 0);
        assert_eq!(shard.front(1), 72);
        assert_eq!(shard.front(500), MAX_FRONT);
        assert_eq!(shard.front(5_000), 5_000);
    }
}
