//! The measurements of a run.

use std::cmp::Reverse;

use super::population::{Job, Population, ScopeId, Want};

/// The measurements of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measure {
    /// For each job, in the order of the ends: its task, and how long it existed without working.
    pub waits: Vec<(usize, i64)>,
    /// When the last job ended.
    pub makespan_us: i64,
    /// Slot time in which jobs worked.
    pub worked_us: i64,
    /// The time that jobs waited after their start, summed up.
    pub waited_inside_us: i64,
    /// The part of it in which the waiting jobs kept their slots.
    pub wasted_us: i64,
    /// How long locks were held, summed over all locks.
    pub held_us: i64,
    /// The part of it in which the holders waited.
    pub held_idle_us: i64,
    /// From each of these moments on: the number of working jobs, and of slots in which jobs wait.
    pub steps: Vec<(i64, usize, usize)>,
    /// For each scope, how long it was held exclusively.
    exclusive_us: Vec<i64>,
}

impl Measure {
    pub(crate) fn new(population: &Population) -> Self {
        Measure { exclusive_us: vec![0; population.scopes.len()], ..Measure::default() }
    }

    /// A job has ended that held each of these locks since the moment beside it.
    pub(crate) fn ended<'w>(
        &mut self,
        job: &Job,
        at_us: i64,
        held: impl Iterator<Item = (&'w Want, &'w i64)>,
    ) {
        self.waits.push((job.task, at_us - job.comes_us - job.run_us));
        self.worked_us += job.run_us;
        self.makespan_us = self.makespan_us.max(at_us);
        for (want, since_us) in held {
            self.held_us += at_us - since_us;
            if want.exclusive {
                self.exclusive_us[want.scope as usize] += at_us - since_us;
            }
        }
    }

    /// A job has waited inside, and held this number of locks meanwhile.
    pub(crate) fn waited_inside(&mut self, us: i64, with_slot: bool, locks: usize) {
        self.waited_inside_us += us;
        if with_slot {
            self.wasted_us += us;
        }
        self.held_idle_us += us * i64::try_from(locks).expect("jobs hold fewer locks than 2^63");
    }

    /// The scope that was held exclusively for the longest time; of several, the first.
    pub(crate) fn busiest(&self) -> Option<(ScopeId, i64)> {
        let held = (0..).zip(self.exclusive_us.iter().copied()).filter(|(_, us)| *us > 0);
        held.max_by_key(|(scope, us)| (*us, Reverse(*scope)))
    }
}
