//! The results of a simulation: how long jobs waited, and how slots and locks were used.

use serde::Serialize;

use super::Scheme;
use super::bound;
use super::measure::Measure;
use super::population::Population;
use super::scenario::Scenario;

/// The outcomes of several schemes, for the same jobs.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// The number of jobs.
    pub jobs: usize,
    /// The most jobs that worked at once.
    pub slots: usize,
    /// The bounds that no schedule can beat.
    pub bound: Bounds,
    /// The results of each scheme.
    pub outcomes: Vec<SchemeResults>,
}

/// Bounds that no schedule can beat. It is unknown whether a schedule can reach them.
#[derive(Debug, Clone, Serialize)]
pub struct Bounds {
    /// The end of the last job, in s since the start.
    pub makespan_s: f64,
    /// What prevents an earlier end.
    pub makespan_by: String,
    /// The mean wait, in s.
    pub mean_wait_s: f64,
    /// What prevents a shorter wait.
    pub mean_wait_by: String,
}

impl Bounds {
    pub(super) fn new(population: &Population, scenario: &Scenario) -> Bounds {
        let slots = scenario.slots.usize();
        let (makespan, wait) = (bound::makespan(population, slots), bound::mean_wait(population, slots));
        Bounds {
            makespan_s: makespan.us / 1e6,
            makespan_by: makespan.by,
            mean_wait_s: wait.us / 1e6,
            mean_wait_by: wait.by,
        }
    }
}

/// The results of one scheme. A job's wait is all the time in which it existed and did not work.
#[derive(Debug, Clone, Serialize)]
pub struct SchemeResults {
    /// The scheme that decided.
    pub scheme: Scheme,
    /// The end of the last job, in s since the start.
    pub makespan_s: f64,
    /// The mean wait, in s.
    pub mean_wait_s: f64,
    /// Half of the jobs waited no longer, in s.
    pub median_wait_s: f64,
    /// 99 of 100 jobs waited no longer, in s.
    pub p99_wait_s: f64,
    /// The longest wait, in s.
    pub longest_wait_s: f64,
    /// The time that jobs waited for locks after their start, summed up, in s.
    pub waited_inside_s: f64,
    /// The part of it in which the waiting jobs kept their slots, in slot·s: no other job could work in them.
    pub wasted_slot_s: f64,
    /// The utilisation of the slots until the last end: 1 if a job worked in each all the time.
    pub slots_working: f64,
    /// The part of the time that locks were held in which their holders worked, and did not wait.
    pub locks_used: f64,
    /// The resource that was held exclusively for the longest time.
    pub busiest_lock: Option<String>,
    /// The part of the makespan in which it was held exclusively.
    pub busiest_lock_held: f64,
    /// The waits of each task that has jobs, in the scenario's order.
    pub tasks: Vec<OfTask>,
    /// All waits, in s, the shortest first.
    #[serde(skip)]
    pub waits_s: Vec<f64>,
    /// From each of these moments on, in s: the number of working jobs, and of slots in which jobs waited.
    #[serde(skip)]
    pub steps: Vec<(f64, usize, usize)>,
}

/// The jobs of one task.
#[derive(Debug, Clone, Serialize)]
pub struct OfTask {
    /// Its name.
    pub name: String,
    /// The number of its jobs.
    pub jobs: usize,
    /// Their mean wait, in s.
    pub mean_wait_s: f64,
    /// Their longest wait, in s.
    pub longest_wait_s: f64,
}

impl SchemeResults {
    pub(super) fn new(
        scheme: Scheme,
        scenario: &Scenario,
        population: &Population,
        measure: Measure,
    ) -> SchemeResults {
        let s = |us: i64| us as f64 / 1e6;
        let mut waits_s: Vec<f64> = measure.waits.iter().map(|(_, wait)| s(*wait)).collect();
        waits_s.sort_by(f64::total_cmp);
        let part = |of: f64, whole: f64| if whole > 0.0 { of / whole } else { 0.0 };
        let makespan_s = s(measure.makespan_us);
        let tasks = scenario.tasks.iter().enumerate().filter_map(|(n, task)| {
            let waits = || measure.waits.iter().filter(|(of, _)| *of == n).map(|(_, wait)| s(*wait));
            let jobs = waits().count();
            (jobs > 0).then(|| OfTask {
                name: task.name.clone(),
                jobs,
                mean_wait_s: waits().sum::<f64>() / jobs as f64,
                longest_wait_s: waits().fold(0.0, f64::max),
            })
        });
        let busiest = measure.busiest();
        SchemeResults {
            scheme,
            makespan_s,
            mean_wait_s: part(waits_s.iter().sum(), waits_s.len() as f64),
            median_wait_s: quantile(&waits_s, 0.5),
            p99_wait_s: quantile(&waits_s, 0.99),
            longest_wait_s: waits_s.last().copied().unwrap_or_default(),
            waited_inside_s: s(measure.waited_inside_us),
            wasted_slot_s: s(measure.wasted_us),
            slots_working: part(s(measure.worked_us), makespan_s * scenario.slots.get() as f64),
            locks_used: 1.0 - part(s(measure.held_idle_us), s(measure.held_us)),
            busiest_lock: busiest.map(|(scope, _)| population.scopes[scope as usize].name.clone()),
            busiest_lock_held: part(busiest.map_or(0.0, |(_, us)| s(us)), makespan_s),
            tasks: tasks.collect(),
            waits_s,
            steps: measure.steps.iter().map(|(at, working, waiting)| (s(*at), *working, *waiting)).collect(),
        }
    }
}

/// The smallest of some sorted values that at least this part of them does not exceed.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|part| quantile(&values, part)), [1.0, 100.0, 198.0, 200.0]);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
