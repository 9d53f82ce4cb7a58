//! What is measured of a run, while it goes on.

use super::population::{Job, PlaceId, Population, Want};

/// What was measured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measure {
    /// Of each job, as they ended: its operation, and how long it was there without working.
    pub waits: Vec<(usize, i64)>,
    /// When the last one ended.
    pub makespan_us: i64,
    /// Slot time in which jobs worked.
    pub worked_us: i64,
    /// Time that jobs waited after they had started.
    pub waited_inside_us: i64,
    /// Of that, what took a slot.
    pub wasted_us: i64,
    /// Lock time: how long locks were held, one by one.
    pub held_us: i64,
    /// Of that, by jobs that waited meanwhile.
    pub held_idle_us: i64,
    /// From each of these moments on: jobs that work, and slots that jobs wait in.
    pub steps: Vec<(i64, usize, usize)>,
    /// Of each place, how long it was held exclusively.
    exclusive_us: Vec<i64>,
}

impl Measure {
    pub(crate) fn new(population: &Population) -> Self {
        Measure { exclusive_us: vec![0; population.places.len()], ..Measure::default() }
    }

    /// A job has ended, which held these since then.
    pub(crate) fn ended<'w>(
        &mut self,
        job: &Job,
        at_us: i64,
        held: impl Iterator<Item = (&'w Want, &'w i64)>,
    ) {
        self.waits.push((job.operation, at_us - job.comes_us - job.run_us));
        self.worked_us += job.run_us;
        self.makespan_us = self.makespan_us.max(at_us);
        for (want, since_us) in held {
            self.held_us += at_us - since_us;
            if want.exclusive {
                self.exclusive_us[want.place as usize] += at_us - since_us;
            }
        }
    }

    /// A job has waited inside, with so many locks that it held meanwhile.
    pub(crate) fn waited_inside(&mut self, us: i64, with_slot: bool, locks: usize) {
        self.waited_inside_us += us;
        if with_slot {
            self.wasted_us += us;
        }
        self.held_idle_us += us * i64::try_from(locks).expect("jobs hold fewer locks than 2^63");
    }

    /// What is so from now on.
    pub(crate) fn step(&mut self, at_us: i64, working: usize, waiting: usize) {
        self.steps.push((at_us, working, waiting));
    }

    /// The place that was held exclusively for longest, the first of several.
    pub(crate) fn busiest(&self) -> Option<(PlaceId, i64)> {
        let mut busiest = None;
        for (place, us) in (0..).zip(&self.exclusive_us) {
            if *us > busiest.map_or(0, |(_, most)| most) {
                busiest = Some((place, *us));
            }
        }
        busiest
    }
}
