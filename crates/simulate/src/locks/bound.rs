//! What no scheme can beat, whatever it knows.
//!
//! **Makespan.** Take the jobs that come at `t` or later; nothing of them is done before `t`. What follows holds for any schedule in which a job
//! works without a break, with its locks, on one of `m` slots; so `t +` each of it is a bound, for any `t`, and the highest is told. Waiting with locks
//! or in slots only adds to it.
//!
//! - A job takes its run time after it has come.
//! - *Slots*: at most `m` work at once, so that all work takes `Σ run / m`.
//! - *A resource*: whoever has it exclusively has it alone, so these take `Σ hold`, one after the other. While one has it nobody shares it; those who do take
//!   `max(longest hold, Σ hold / m)` at least, and `Σ units · hold / capacity` where it is counted. The two times do not overlap: they add up. Who shares
//!   all of the level shares the resource.
//! - *A level*: whoever has all of it exclusively has it while nobody has anything of it. So these take `Σ hold`, beside the time in which others
//!   have something of it: the longest of what any of its resources takes, and `max(longest hold, Σ hold / m)` of them.
//! - *The big lock* in the same way: `Σ run` of those who have it, beside the time of all who have any lock: `Σ run / m`, or what any level takes.
//!
//! What a job asks for while it runs it need not hold before that, so that its `hold` is the rest of its run.
//!
//! **Mean wait.** On one machine that is `m` times as fast, that can be shared out and handed over at any moment, the shortest remaining
//! time first ends jobs at the least sum of moments (Schrage 1968); whatever `m` slots can do it can do, and no job
//! later: so no schedule has a smaller sum. In the same way the jobs that have a resource exclusively, on one machine; those sums add up over
//! disjoint sets of jobs, of which each stands at the busiest resource that it has exclusively. Both are bounds of the sum of `end − come − run`.
//!
//! Neither bound need be reachable: the best schedules that were found stand beside them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use super::population::{BIG, Job, PlaceId, Population};

/// Moments `t` that are tried.
const MOMENTS: usize = 64;

/// A bound, and what it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bound {
    pub us: f64,
    pub by: String,
}

impl Bound {
    fn raise(&mut self, us: f64, by: impl FnOnce() -> String) {
        if us > self.us {
            *self = Bound { us, by: by() };
        }
    }
}

/// Time that jobs have something together.
#[derive(Debug, Clone, Copy, Default)]
struct Together {
    sum: f64,
    longest: f64,
}

impl Together {
    fn add(&mut self, us: f64) {
        self.sum += us;
        self.longest = self.longest.max(us);
    }

    fn and(self, other: Together) -> Together {
        Together { sum: self.sum + other.sum, longest: self.longest.max(other.longest) }
    }

    /// What it takes at least, with so many at once.
    fn takes(self, slots: f64) -> f64 {
        self.longest.max(self.sum / slots)
    }
}

/// Who has a resource: one after the other, and together.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    alone: f64,
    shared: Together,
    units: f64,
}

/// Who has something of a level.
#[derive(Debug, Clone, Default)]
struct AtLevel {
    /// All of it, exclusively.
    whole: f64,
    /// All of it, shared, and nothing of it exclusively.
    whole_shared: Together,
    /// Anything else of it, or all of it shared.
    some: Together,
    resources: BTreeMap<PlaceId, Use>,
}

/// What a job really locks, and for how long it holds that at least.
fn holds(job: &Job) -> impl Iterator<Item = (super::population::Want, f64)> {
    job.real.iter().map(|want| {
        let asked_for = job.asks.contains(want);
        (*want, (if asked_for { job.run_us - job.asks_at_us } else { job.run_us }) as f64)
    })
}

/// What the last end cannot be before, in µs since the start.
pub(crate) fn makespan(population: &Population, slots: usize) -> Bound {
    let jobs = &population.jobs;
    let mut bound = Bound { us: 0.0, by: "nothing".to_owned() };
    for job in jobs {
        bound.raise((job.comes_us + job.run_us) as f64, || "the job that comes last".to_owned());
    }
    // Jobs are in the order in which they come.
    for from in (0..jobs.len()).step_by(jobs.len().div_ceil(MOMENTS).max(1)) {
        let at_us = jobs[from].comes_us as f64;
        let Bound { us, by } = of_jobs(&jobs[from..], population, slots as f64);
        bound.raise(at_us + us, || by);
    }
    bound
}

fn of_jobs(jobs: &[Job], population: &Population, slots: f64) -> Bound {
    let mut all = Together::default();
    let (mut big, mut lockers) = (0.0, Together::default());
    let mut levels = vec![AtLevel::default(); population.levels.len()];
    for job in jobs {
        let run = job.run_us as f64;
        all.add(run);
        if job.real.iter().any(|want| want.place == BIG && want.exclusive) {
            big += run;
        } else if !job.real.is_empty() {
            lockers.add(run);
            (0..).zip(&mut levels).for_each(|(level, at)| add_to(at, level, job, population));
        }
    }
    let mut bound = Bound { us: 0.0, by: String::new() };
    bound.raise(all.takes(slots), || "the slots".to_owned());
    bound.raise(big + lockers.takes(slots), || "the big lock and the slots".to_owned());
    for (at, name) in levels.iter().zip(population.levels.names()) {
        bound.raise(big + at.whole + at.some.takes(slots), || format!("all of {name}"));
        for (place, used) in &at.resources {
            let place = &population.places[*place as usize];
            let units = place.capacity.map_or(0.0, |capacity| used.units / f64::from(capacity));
            let shared = used.shared.and(at.whole_shared).takes(slots).max(units);
            bound.raise(big + at.whole + used.alone + shared, || place.name.clone());
        }
    }
    bound
}

fn add_to(at: &mut AtLevel, level: u8, job: &Job, population: &Population) {
    let here = || holds(job).filter(|(want, _)| population.places[want.place as usize].level == Some(level));
    let is_whole = |place: PlaceId| population.places[place as usize].whole;
    let Some(longest) = here().map(|(_, hold)| hold).reduce(f64::max) else { return };
    if let Some((_, hold)) = here().find(|(want, _)| is_whole(want.place) && want.exclusive) {
        at.whole += hold;
        return;
    }
    at.some.add(longest);
    let whole = here().find(|(want, _)| is_whole(want.place));
    let any_alone = here().any(|(want, _)| want.exclusive);
    if let (Some((_, hold)), false) = (whole, any_alone) {
        at.whole_shared.add(hold);
    }
    for (want, hold) in here().filter(|(want, _)| !is_whole(want.place)) {
        let used = at.resources.entry(want.place).or_default();
        if want.exclusive {
            used.alone += hold;
        } else if whole.is_none() {
            used.shared.add(hold);
            used.units += hold * f64::from(want.units);
        }
    }
}

/// What the mean wait cannot be below, in µs.
pub(crate) fn mean_wait(population: &Population, slots: usize) -> Bound {
    let jobs = &population.jobs;
    let mut bound = Bound { us: 0.0, by: "nothing".to_owned() };
    let count = jobs.len().max(1) as f64;
    let all: Vec<(i64, i64)> = jobs.iter().map(|job| (job.comes_us, job.run_us)).collect();
    bound.raise(least_waits(all, slots) / count, || "the slots".to_owned());
    let mut load: HashMap<PlaceId, f64> = HashMap::new();
    for (want, hold) in jobs.iter().flat_map(holds).filter(|(want, _)| want.exclusive) {
        *load.entry(want.place).or_default() += hold;
    }
    let mut sets: BTreeMap<PlaceId, Vec<(i64, i64)>> = BTreeMap::new();
    for job in jobs {
        let alone = holds(job).filter(|(want, _)| want.exclusive);
        let busiest = alone
            .max_by(|(a, _), (b, _)| load[&a.place].total_cmp(&load[&b.place]).then(a.place.cmp(&b.place)));
        if let Some((want, hold)) = busiest {
            let hold = hold as i64;
            sets.entry(want.place).or_default().push((job.comes_us + job.run_us - hold, hold));
        }
    }
    let sum: f64 = sets.into_values().map(|set| least_waits(set, 1).max(0.0)).sum();
    bound.raise(sum / count, || "locks that are exclusive".to_owned());
    bound
}

/// The least sum of `end − come − run` on one machine that is so many times as fast, the shortest remaining time first: (come, run) in µs.
fn least_waits(mut jobs: Vec<(i64, i64)>, speed: usize) -> f64 {
    jobs.sort_unstable();
    let given: i128 = jobs.iter().map(|(comes, run)| i128::from(*comes) + i128::from(*run)).sum();
    // Time in units of a µs by the speed: the machine does one µs of work in each.
    let speed = i128::try_from(speed.max(1)).expect("slots are fewer than 2^127");
    let mut coming = jobs.into_iter().peekable();
    let mut left: BinaryHeap<Reverse<i128>> = BinaryHeap::new();
    let (mut now, mut ends) = (0_i128, 0_i128);
    loop {
        while let Some((_, run)) = coming.next_if(|(comes, _)| i128::from(*comes) * speed <= now) {
            left.push(Reverse(i128::from(run)));
        }
        let next = coming.peek().map(|(comes, _)| i128::from(*comes) * speed);
        match (left.pop(), next) {
            (None, None) => break,
            (None, Some(comes)) => now = comes,
            (Some(Reverse(rest)), Some(comes)) if now + rest > comes => {
                left.push(Reverse(rest - (comes - now)));
                now = comes;
            }
            (Some(Reverse(rest)), _) => {
                now += rest;
                ends += now;
            }
        }
    }
    ends as f64 / speed as f64 - given as f64
}

#[cfg(test)]
mod tests {
    use super::super::scenario::Scenario;
    use super::*;

    fn population(slots: usize, operations: &str) -> Population {
        let text = format!(
            "name = 'x'\nslots = {slots}\nlevels = [{{ name = 'a' }}, {{ name = 'n', capacity = 2 }}]\n{operations}\n\
             [cluster]\ngroups = 1\nnodes = 2\ninstances = 1\n"
        );
        Population::new(&Scenario::parse(&text).unwrap()).unwrap()
    }

    /// Ten jobs of a second with these locks, at once.
    fn ten(locks: &str) -> Population {
        population(
            4,
            &format!(
                "arrivals = [{{ count = 10 }}]\noperations = [{{ name = 'o', weight = 1, run_ms = 1000, locks = {{ {locks} }} }}]"
            ),
        )
    }

    #[test]
    fn what_ten_seconds_of_work_take_at_least() {
        for (locks, s, by) in [
            ("", 2.5, "the slots"),
            ("a = { shared = ['i'] }", 2.5, "the slots"),
            ("a = { exclusive = ['i'] }", 10.0, "i"),
            ("a = { exclusive = 'all' }", 10.0, "all of a"),
            ("big_lock = true", 10.0, "the big lock and the slots"),
            ("n = { shared = ['i'] }", 5.0, "i"),
            ("n = { shared = { i = 2 } }", 10.0, "i"),
        ] {
            assert_eq!(makespan(&ten(locks), 4), Bound { us: s * 1e6, by: by.to_owned() }, "{locks}");
        }
    }

    #[test]
    fn times_that_cannot_overlap_add_up() {
        let operations = |one: &str, other: &str| {
            let operation = |name, locks| {
                format!("{{ name = '{name}', weight = 1, run_ms = 1000, locks = {{ {locks} }} }}")
            };
            format!(
                "arrivals = [{{ count = 40 }}]\noperations = [{}, {}]",
                operation("one", one),
                operation("other", other)
            )
        };
        for (one, other) in [
            ("a = { exclusive = ['i'] }", "a = { shared = ['i'] }"),
            ("a = { exclusive = ['i'] }", "a = { shared = 'all' }"),
            ("a = { exclusive = 'all' }", "a = { shared = ['i'] }"),
            ("big_lock = true", "a = { shared = ['i'] }"),
        ] {
            let population = population(4, &operations(one, other));
            let of_one = population.jobs.iter().filter(|job| job.operation == 0).count() as f64;
            assert_eq!(makespan(&population, 4).us, (of_one + (40.0 - of_one) / 4.0) * 1e6, "{one}, {other}");
        }
    }

    #[test]
    fn late_jobs_have_their_own_bound() {
        let text = "arrivals = [{ count = 1 }, { count = 8, at_ms = 100000 }]\noperations = [{ name = 'o', weight = 1, run_ms = 1000 }]";
        assert_eq!(makespan(&population(4, text), 4).us, 102e6);
    }

    #[test]
    fn least_waits_are_those_of_the_shortest_remaining_time_first() {
        // One after the other: 0, 1 and 3 s. A short one breaks in on a long one, which ends later by it.
        assert_eq!(least_waits(vec![(0, 2), (0, 1), (0, 5)], 1), 4.0);
        assert_eq!(least_waits(vec![(0, 10), (4, 1)], 1), 1.0);
        assert_eq!(
            mean_wait(&ten("a = { exclusive = ['i'] }"), 4),
            Bound { us: 4.5e6, by: "locks that are exclusive".to_owned() }
        );
        // Two are at work at once, on a machine that is twice as fast: (½ + 1 + 1½ + 2 − 4) / 4, never more than the truth, which is (0 + 0 + 1 + 1) / 4.
        assert!((least_waits(vec![(0, 10), (0, 10), (0, 10), (0, 10)], 2) - 10.0).abs() < 1e-9);
    }
}
