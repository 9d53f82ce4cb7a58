//! How running jobs are balanced among workers: which worker gives jobs back, and how many.
//!
//! *Problem.* A worker that joins claims waiting jobs. If all jobs are continuous, none waits, and the new worker would stay empty
//! beside full ones.
//!
//! *Rule.* One job after the other moves from the fullest worker to the emptiest one, in proportion to their slots, as long as the
//! first is at least as full after the move as the second. So no move is ever undone. In the end the loads of any two
//! workers differ by less than two jobs.
//!
//! All workers that see the same loads compute the same moves. Each makes its own.

/// A worker's slots and jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The maximum number of jobs that it runs.
    pub slots: usize,
    /// The number of jobs that it runs.
    pub running: usize,
}

impl Load {
    /// Whether this worker, with one job less, is at least as full as the other one with one job more.
    fn can_give_to(&self, other: &Load) -> bool {
        self.running > 0
            && other.running < other.slots
            && (self.running - 1).saturating_mul(other.slots)
                >= (other.running + 1).saturating_mul(self.slots)
    }
}

/// The number of jobs that the worker with the index `own` gives back, for workers with free slots. `O(workers · jobs that move)`.
pub fn surplus(own: usize, loads: &[Load]) -> usize {
    let mut loads = loads.to_vec();
    let mut surplus = 0;
    loop {
        let fuller = |one: &Load, other: &Load| {
            let after =
                |load: &Load, other: &Load| load.running.saturating_sub(1).saturating_mul(other.slots);
            after(one, other).cmp(&after(other, one))
        };
        let emptier = |one: &Load, other: &Load| {
            let after = |load: &Load, other: &Load| (load.running + 1).saturating_mul(other.slots);
            after(one, other).cmp(&after(other, one))
        };
        let with_slots = || loads.iter().enumerate().filter(|(_, load)| load.slots > 0);
        // Of equal workers, the first one gives, and the first one takes.
        let giver = with_slots().rev().max_by(|(_, one), (_, other)| fuller(one, other));
        let taker = with_slots()
            .filter(|(_, load)| load.running < load.slots)
            .min_by(|(_, one), (_, other)| emptier(one, other));
        match (giver, taker) {
            (Some((giver, from)), Some((taker, to))) if from.can_give_to(to) => {
                surplus += usize::from(giver == own);
                loads[giver].running -= 1;
                loads[taker].running += 1;
            }
            _ => return surplus,
        }
    }
}

/// Whether jobs move, and the worker with the index `own` would only pass on one that it took: with one job more, it could give
/// one to an emptier worker. So it lets the emptier ones take it. `O(workers²)`.
pub fn has_its_part(own: usize, loads: &[Load]) -> bool {
    let with_one_more = Load { running: loads[own].running + 1, ..loads[own] };
    let can_give = |from: &Load| loads.iter().any(|to| from.can_give_to(to));
    can_give(&with_one_more) && loads.iter().any(can_give)
}

/// Whether a cycle is one in which its worker may give jobs back.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    Now {
        /// The round, where workers balance in turns: a worker gives jobs back once in each.
        round: Option<i64>,
    },
    /// It may not.
    Later,
}

/// The turn of a worker by its rank among the workers. Each worker has its own time within an interval, so the cycles of
/// all workers are evenly spaced. If they are closer than `shortest_us`, too close for one worker to know what the one
/// before it has done, only every n-th cycle is a turn. n has no divisor in common with the number of workers, so that
/// each of them has its turn within n intervals. Turns with a period of their own would not do: the cycles of some workers
/// could always miss them.
pub fn turn(now_us: i64, interval_us: i64, shortest_us: i64, (rank, workers): (i64, i64)) -> Turn {
    let interval_us = interval_us.max(1);
    let apart_us = shortest_us.saturating_mul(workers);
    let least = (apart_us.saturating_add(interval_us - 1) / interval_us).max(1);
    let nth = (least..).find(|nth| divisor(*nth, workers) == 1).unwrap_or(1);
    let interval = now_us.div_euclid(interval_us);
    match interval.wrapping_mul(workers).wrapping_add(rank).rem_euclid(nth) {
        0 => Turn::Now { round: (nth > 1).then_some(interval) },
        _ => Turn::Later,
    }
}

/// The greatest common divisor.
fn divisor(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(of: &[(usize, usize)]) -> Vec<Load> {
        of.iter().map(|(running, slots)| Load { slots: *slots, running: *running }).collect()
    }

    fn given(of: &[(usize, usize)]) -> Vec<usize> {
        let loads = loads(of);
        (0..loads.len()).map(|own| surplus(own, &loads)).collect()
    }

    #[test]
    fn each_gives_what_is_beyond_its_part() {
        assert_eq!(given(&[]), [0; 0]);
        assert_eq!(given(&[(5, 5)]), [0]);
        assert_eq!(given(&[(15, 20), (15, 20), (0, 20)]), [5, 5, 0]);
        assert_eq!(given(&[(20, 20), (10, 20), (0, 20)]), [10, 0, 0]);
        // One that is twice as large keeps twice as many.
        assert_eq!(given(&[(9, 20), (0, 10)]), [3, 0]);
        assert_eq!(given(&[(0, 20), (9, 10)]), [0, 6]);
    }

    #[test]
    fn equals_and_almost_equals_stay() {
        for balanced in [[(1, 4), (1, 4), (0, 4)], [(2, 4), (1, 4), (1, 4)], [(4, 4), (4, 4), (4, 4)]] {
            assert_eq!(given(&balanced), [0, 0, 0]);
        }
        assert_eq!(given(&[(2, 4), (2, 4), (0, 4)]), [1, 0, 0], "one of two that are equally full");
        assert_eq!(given(&[(1, 4), (0, 4)]), [0, 0]);
    }

    #[test]
    fn while_jobs_move_only_the_emptiest_take_them() {
        let have_their_part = |of: &[(usize, usize)]| -> Vec<bool> {
            let loads = loads(of);
            (0..loads.len()).map(|own| has_its_part(own, &loads)).collect()
        };
        assert_eq!(have_their_part(&[(1, 4), (2, 4), (0, 4)]), [true, true, false]);
        assert_eq!(have_their_part(&[(2, 4), (1, 4), (1, 4)]), [false; 3], "no job moves");
        assert_eq!(have_their_part(&[(3, 4), (3, 4), (3, 4)]), [false; 3]);
        assert_eq!(have_their_part(&[(1, 4), (3, 4), (1, 1)]), [false, true, true], "one is full");
    }

    #[test]
    fn nothing_goes_to_one_without_a_free_slot() {
        assert_eq!(given(&[(9, 20), (1, 1), (0, 0)]), [0, 0, 0]);
        assert_eq!(given(&[(20, 20), (0, 2)]), [1, 0]);
    }

    /// A generator of numbers, so that no random one is needed.
    fn next(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*state >> 33).unwrap_or(0)
    }

    #[test]
    fn prop_moves_end_in_balance_and_none_is_taken_back() {
        let mut state = 7;
        for _ in 0..2_000 {
            let workers = 1 + next(&mut state) % 6;
            let mut loads: Vec<Load> = (0..workers)
                .map(|_| {
                    let slots = next(&mut state) % 30;
                    Load { slots, running: if slots == 0 { 0 } else { next(&mut state) % (slots + 1) } }
                })
                .collect();
            let given: Vec<usize> = (0..workers).map(|own| surplus(own, &loads)).collect();
            let before = loads.clone();
            for (load, given) in loads.iter_mut().zip(&given) {
                load.running -= given;
            }
            for _ in 0..given.iter().sum() {
                let free = loads.iter_mut().filter(|load| load.running < load.slots);
                let emptiest = free.min_by(|one, other| {
                    ((one.running + 1) * other.slots).cmp(&((other.running + 1) * one.slots))
                });
                emptiest.expect("what is given back has a slot").running += 1;
            }
            for own in 0..workers {
                assert_eq!(surplus(own, &loads), 0, "{before:?} became {loads:?}");
            }
        }
    }

    #[test]
    fn every_worker_has_its_turn_and_no_two_within_the_shortest_phase() {
        let shortest_us = 3_000_000;
        for (workers, interval_us) in [
            (2, 60_000_000),
            (6, 17_939_000),
            (20, 60_000_000),
            (40, 60_000_000),
            (500, 60_000_000),
            (9, 1_000_000),
        ] {
            // The cycles of each worker are at its own time within the interval.
            let intervals = shortest_us * workers / interval_us + 20;
            let mut turns: Vec<(i64, i64)> = Vec::new();
            for n in 1_000..1_000 + 2 * intervals {
                for rank in 0..workers {
                    let cycle_us = n * interval_us + interval_us / workers * rank + 1_000;
                    if let Turn::Now { .. } = turn(cycle_us, interval_us, shortest_us, (rank, workers)) {
                        turns.push((cycle_us, rank));
                    }
                }
            }
            turns.sort_unstable();
            for rank in 0..workers {
                assert!(turns.iter().any(|(_, of)| *of == rank), "{rank} of {workers}");
            }
            for pair in turns.windows(2) {
                let apart_us = pair[1].0 - pair[0].0;
                assert!(apart_us >= shortest_us - workers, "{pair:?} of {workers}, {apart_us} µs apart");
            }
        }
    }
}
