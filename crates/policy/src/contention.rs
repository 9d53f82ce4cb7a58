//! Which jobs of the queue's front a worker takes, where several take from the same queue.
//!
//! All of them see the same front. If each took its first jobs they would all want the same ones, all but one would
//! conflict at commit, look again, and want the same ones again. So the front is divided: a hash of the job's id and of
//! the current *round* says whose it is. Whoever agrees on the contenders and on the time agrees on that, without a word
//! between them; whoever does not conflicts now and then, and is no worse off than before.
//!
//! Forces:
//!
//! - *No job waits for one contender.* It may be full, slow or dead. What is left over is taken by anyone, after a pause
//!   with jitter that the owner needs to be first; at once, if all that is seen of the front is others'. And each round
//!   divides anew.
//! - *The order of the queue holds approximately.* Nothing beyond the front is taken: with `w` contenders, who has room
//!   for `k` jobs sees the first `w · (k + SPARE)`, at most [`MAX_FRONT`]. A job is overtaken only by jobs that stand in
//!   the same front, and for as long as its owners have no room: a round for each, if nobody takes what is left over.
//! - *Alone, nothing changes*: the front is as long as there is room, in its order, and nothing is waited for.

use std::time::Duration;

/// How long a division lasts. Long beside a claim (some ms), so that few of them fall on the border between two; short
/// beside what anyone notices of a job that waits for a contender that is full.
const ROUND_US: i64 = 1_000_000;
/// Contenders beyond this many share their parts. More of them at one queue are bound by the store, not by conflicts.
pub const MAX_CONTENDERS: usize = 64;
/// Rows of the front that are seen for each contender beside those that there is room for: so many that none of them
/// is one's own once in e^8 = 3,000 times.
const SPARE: usize = 8;
/// Longest front that is read: some 60 kB of keys.
pub const MAX_FRONT: usize = 1_000;
/// The pause before jobs are taken that are others': longer than a claim takes, so that their owner is faster if it can.
const SHORTEST_PAUSE_MS: u64 = 20;
/// And as much again at most for each contender, so that these do not meet either.
const JITTER_MS: u64 = 20;

/// The rank of who takes nothing at once.
const NONE: usize = usize::MAX;

/// A worker's shard of the front, in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    contenders: usize,
    rank: usize,
    round: u64,
}

impl Default for Shard {
    fn default() -> Self {
        Shard::ALL
    }
}

impl Shard {
    /// All of it.
    pub const ALL: Shard = Shard { contenders: 1, rank: 0, round: 0 };

    /// The shard of `me` among `contenders`, which are sorted; those of whoever is not among them are somebody else's, too.
    pub fn new(contenders: &[String], me: &str, now_us: i64) -> Shard {
        let (known, place) = match contenders.iter().position(|name| name == me) {
            Some(place) => (contenders.len(), place),
            None => (contenders.len() + 1, usize::try_from(hash(me, 0) >> 1).unwrap_or(0)),
        };
        let contenders = known.min(MAX_CONTENDERS);
        let round = now_us.div_euclid(ROUND_US).cast_unsigned();
        Shard { contenders, rank: place % contenders, round }
    }

    /// The same for a contender that takes nothing at once: every job is skipped for another one.
    pub fn of_none(self) -> Shard {
        Shard { rank: NONE, ..self }
    }

    /// Whether it takes nothing at once.
    pub fn is_none(&self) -> bool {
        self.rank == NONE
    }

    /// Whether there is nobody else.
    pub fn is_all(&self) -> bool {
        self.contenders == 1
    }

    /// Whether a job is in it.
    pub fn has(&self, id: &str) -> bool {
        let whose = hash(id, self.round) % self.contenders as u64;
        whose == self.rank as u64
    }

    /// How much of the front is looked at for `room` jobs.
    pub fn front(&self, room: usize) -> usize {
        if self.is_all() {
            room
        } else {
            (room + SPARE).saturating_mul(self.contenders).min(MAX_FRONT.max(room))
        }
    }

    /// What to take of a front, in the order of the queue: the jobs that are `mine`. Others' if `eager`, or if the front is `full` and
    /// nothing in it is one's own: then as much as falls to one, from a place that `random` chooses. Who takes [nothing](Self::of_none) at once
    /// has left others' jobs for so long that it takes all of them, in the order of the queue.
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

    /// The pause before jobs are taken that are others'.
    pub fn pause(&self, random: u64) -> Duration {
        Duration::from_millis(SHORTEST_PAUSE_MS + random % (JITTER_MS * self.contenders as u64))
    }
}

/// FNV-1a, mixed once more (as in SplitMix64): the same on every node, whatever built it. Each round gives another one.
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
    fn every_job_belongs_to_exactly_one_in_each_round() {
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
    fn who_is_alone_takes_the_front_as_it_is() {
        let shard = Shard::new(&names(1), "w000", 5);
        assert!(shard.is_all());
        assert_eq!(shard.front(3), 3);
        assert_eq!(choose(&shard, jobs(3), true, false, 9), jobs(3));
    }

    #[test]
    fn what_others_leave_is_taken_after_a_pause_or_if_there_is_nothing_else() {
        let names = names(4);
        let shard = Shard::new(&names, "w001", 0);
        let others: Vec<String> = jobs(100).into_iter().filter(|job| !shard.has(job)).collect();
        assert_eq!(choose(&shard, others.clone(), false, false, 3), jobs(0));
        for (full, eager) in [(true, false), (false, true)] {
            let taken = choose(&shard, others.clone(), full, eager, 3);
            assert_eq!(taken.len(), others.len().div_ceil(4));
            assert_eq!(taken[0], others[3]);
        }
        // As long as some are one's own, others' are left to them.
        let mine: Vec<String> = jobs(100).into_iter().filter(|job| shard.has(job)).collect();
        assert_eq!(choose(&shard, jobs(100), true, false, 3), mine);
    }

    #[test]
    fn a_contender_without_a_part_takes_only_what_is_left_over() {
        let shard = Shard::new(&names(4), "w001", 0).of_none();
        assert!(jobs(100).iter().all(|job| !shard.has(job)));
        assert_eq!(shard.front(1), 36);
        assert_eq!(choose(&shard, jobs(100), false, false, 3), jobs(0));
        // It has left them to the others for long enough, so it takes all of them, in their order.
        assert_eq!(choose(&shard, jobs(100), false, true, 3), jobs(100));
        assert_eq!(choose(&shard, jobs(100), true, false, 3).len(), 25);
    }

    #[test]
    fn strangers_and_crowds_have_a_part_too() {
        let many = names(200);
        for name in ["w000", "w199", "stranger"] {
            let shard = Shard::new(&many, name, 0);
            assert_eq!(shard.contenders, MAX_CONTENDERS);
            assert!(shard.rank < MAX_CONTENDERS);
        }
        assert_eq!(Shard::new(&[], "w", 0), Shard { contenders: 1, rank: 0, round: 0 });
        assert_eq!(Shard::new(&names(1), "w", 0).contenders, 2);
    }

    #[test]
    fn a_front_has_a_bound_but_is_never_shorter_than_the_room() {
        let shard = Shard::new(&names(8), "w001", 0);
        assert_eq!(shard.front(1), 72);
        assert_eq!(shard.front(500), MAX_FRONT);
        assert_eq!(shard.front(5_000), 5_000);
    }
}
