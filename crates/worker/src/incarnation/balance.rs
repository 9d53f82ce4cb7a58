//! Balancing: a worker with too many running jobs gives some back, so that emptier workers can claim them.
//!
//! As in rotation, workers decide one after the other, and each knows the result of the worker before it. A job that is
//! given back keeps its position in its tenant's queue. Until its next cycle, the worker skips that job, and all jobs
//! that arrive, for the other workers ([`Incarnation::shard`]).

use turnwise_policy::contention::MAX_CONTENDERS;
use turnwise_policy::rotation::balance::Load;
use turnwise_queue::{Result, workers};

use super::Incarnation;
use super::rotation::SHORTEST_PHASE;
use crate::RotationRules;
use crate::times::duration_us;

/// The result of the last comparison with other workers.
#[derive(Default)]
pub(super) struct Balance {
    /// Whether emptier workers have room for some of its jobs. Until the next cycle, it then claims only jobs that it
    /// has skipped for long enough.
    pub is_above_its_part: bool,
    /// The last round in which it gave jobs back, where workers balance in turns.
    pub gave_in_round: Option<i64>,
}

/// The loads of all workers of the type.
pub(super) struct Loads {
    pub all: Vec<Load>,
    /// The index of this worker.
    pub own: usize,
    /// The round, where workers balance in turns.
    pub round: Option<i64>,
}

/// Whether a cycle is one in which its worker may give jobs back.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Now {
        /// See [`Loads::round`].
        round: Option<i64>,
    },
    Later,
}

/// The turn of a worker by its rank. Each worker has its own time within an interval, so the cycles of all workers are evenly spaced. If they are
/// too close for one worker to know what the one before it has done, only every n-th cycle is a turn. n has no divisor in common with the
/// number of workers, so that each of them has its turn within n intervals. Turns with a period of their own would not do: the cycles of some
/// workers could always miss them.
fn turn(now_us: i64, interval_us: i64, (rank, workers): (i64, i64)) -> Turn {
    let interval_us = interval_us.max(1);
    let apart_us = duration_us(SHORTEST_PHASE).saturating_mul(workers);
    let least = (apart_us.saturating_add(interval_us - 1) / interval_us).max(1);
    let nth = (least..).find(|nth| divisor(*nth, workers) == 1).unwrap_or(1);
    let interval = now_us.div_euclid(interval_us);
    match (interval.wrapping_mul(workers) + rank).rem_euclid(nth) {
        0 => Turn::Now { round: (nth > 1).then_some(interval) },
        _ => Turn::Later,
    }
}

/// The greatest common divisor.
fn divisor(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { divisor(other, one % other) }
}

impl Incarnation {
    /// Reads the loads of all workers, if the set of workers has been stable for a while, and it is this worker's turn.
    pub(super) async fn read_loads(&self, rotation: RotationRules) -> Result<Option<Loads>> {
        let now_us = self.now_us();
        let stable_us = now_us.saturating_sub(self.contenders.since_us);
        let is_one_of_all = (2..MAX_CONTENDERS).contains(&self.contenders.names.len());
        if rotation.max_churn == 0
            || self.mode.is_quiet()
            || !is_one_of_all
            || stable_us < duration_us(rotation.quiet_period)
        {
            return Ok(None);
        }
        let Turn::Now { round } = turn(now_us, duration_us(rotation.interval), self.rank()) else {
            return Ok(None);
        };
        if round.is_some() && round == self.balance.gave_in_round {
            return Ok(None);
        }
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let members = workers::list(&self.shared.store.begin().await?, keys, job_type).await?;
        let Some(own) = members.iter().position(|member| member.id == self.id) else { return Ok(None) };
        let elsewhere = self.fair.running_elsewhere();
        let load = |member: &workers::Worker| Load {
            // It is not known how many jobs each external worker runs. A quiet one has no room. Where slots follow the demand, the
            // slots of a worker follow the jobs that it may take.
            slots: match member.bounds {
                _ if member.external || member.mode.is_quiet() => 0,
                Some(bounds) => bounds.most,
                None => member.slots,
            },
            running: match member.id == self.id {
                true => self.in_slots().count(),
                false => elsewhere.get(&member.id).copied().unwrap_or(0),
            },
        };
        Ok(Some(Loads { all: members.iter().map(load).collect(), own, round }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_its_turn_and_no_two_within_the_shortest_phase() {
        let shortest_us = duration_us(SHORTEST_PHASE);
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
                    if let Turn::Now { .. } = turn(cycle_us, interval_us, (rank, workers)) {
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
