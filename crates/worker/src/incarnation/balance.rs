//! Balancing: a worker with too many running jobs gives some back, so that emptier workers can claim them.
//!
//! As in rotation, workers decide one after the other, and each knows the result of the worker before it. A job that is
//! given back keeps its position in its tenant's queue. Until its next cycle, the worker skips that job, and all jobs
//! that arrive, for the other workers ([`Incarnation::shard`]).

use turnwise_policy::contention::MAX_CONTENDERS;
use turnwise_policy::rotation::balance::{Load, Turn, turn};
use turnwise_queue::{Result, workers};

use super::Incarnation;
use super::rotation::SHORTEST_PHASE;
use crate::RotationRules;
use crate::times::duration_us;

/// The result of the last comparison with other workers.
#[derive(Default)]
pub(super) struct Balance {
    /// Whether emptier workers have room for some of its jobs, or for the next one. Until the next cycle, it then claims only
    /// jobs that it has skipped for long enough.
    pub is_above_its_part: bool,
    /// The last round in which it gave jobs back, where workers balance in turns.
    pub gave_in_round: Option<i64>,
}

/// The loads of all workers of the type.
pub(super) struct Loads {
    pub all: Vec<Load>,
    /// The index of this worker.
    pub own: usize,
    /// Whether it may give jobs back in this cycle.
    pub turn: Turn,
}

impl Incarnation {
    /// Reads the loads of all workers, if the set of workers has been stable for a while.
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
        let (interval_us, shortest_us) = (duration_us(rotation.interval), duration_us(SHORTEST_PHASE));
        let turn = match turn(now_us, interval_us, shortest_us, self.rank()) {
            Turn::Now { round: Some(round) } if self.balance.gave_in_round == Some(round) => Turn::Later,
            turn => turn,
        };
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
        Ok(Some(Loads { all: members.iter().map(load).collect(), own, turn }))
    }
}
