//! Bounds that no scheme can beat, whatever it knows.
//!
//! **Makespan.** Take the jobs that come at `t` or later: none of their work is done before `t`. The times below hold
//! for any schedule in which a job works without a break, with its locks, on one of `m` slots. So `t` plus each of
//! these times is a bound, for any `t`, and the highest one is reported. Waiting with locks or in slots only adds
//! time.
//!
//! - A job takes its run time after its arrival.
//! - *Together*: jobs that each occupy something for some time take the longest of these times. They also take
//!   `Σ / m`, since at most `m` work at once. And they take the time of any resource that they lock as well: `Σ` of the
//!   exclusive times, plus `Σ time · units / capacity` of the shared ones where units are counted.
//! - *A resource*: only one job at a time locks it exclusively, so these jobs take `Σ hold`, one after the other.
//!   Meanwhile no job shares it. The jobs that share it take the time that *together* gives. The two times do not
//!   overlap, so they add up. A job that shares all of the level shares the resource.
//! - *Two of three resources* of a level, as if they were one resource: any two pairs of the three have a resource in
//!   common. So while a job has two of the three exclusively, no other job has two of them, in either mode. (Four
//!   resources give no better bound. Their six pairs are three perfect matchings, and only the two pairs of one
//!   matching can be locked at the same time. So the longer times of the three matchings add up. One pair of each
//!   matching makes a star, which is a resource, or a triangle, which is two of three.)
//! - *A level*: a job that has all of it exclusively has it while no other job has anything of it. So these jobs take
//!   `Σ hold`, besides the time in which other jobs have something of the level: any of the above.
//! - *The big lock* in the same way: `Σ run` of the jobs that have it, plus the time of all jobs with any lock. That
//!   is `Σ run / m`, or what any level takes.
//!
//! A job need not hold a lock before it requests it. So a lock that it requests while it runs has only the rest of the
//! run as its `hold`. A job has two locks at the same time for the shorter of their times, because it holds both to its
//! end.
//!
//! **Mean wait.** Take one machine that is `m` times as fast, that several jobs can share, and that can change jobs
//! at any moment. On it, shortest remaining time first has the least sum of end times (Schrage 1968). It can do
//! whatever `m` slots can do, and end no job later, so no schedule has a smaller sum. The same holds for the jobs
//! that lock one resource exclusively, on one machine. These sums add up over disjoint sets of jobs: each job belongs
//! to the busiest resource that it locks exclusively. Both are bounds of the sum of `end − come − run`.
//!
//! No schedule need reach these bounds. The best schedules that were found are reported beside them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use super::population::{BIG, Job, Population, ScopeId, Want};

/// The number of moments `t` that are tried.
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

/// The number of resources of a level of which all threes are tried: the busiest ones.
const BUSIEST: usize = 24;

/// A job, as far as its locks bound it: how long it works, and its locks, with the least time that it holds each.
struct Task {
    run: f64,
    locks: Vec<(Want, f64)>,
}

impl Task {
    fn has_big_lock(&self) -> bool {
        self.locks.iter().any(|(want, _)| want.scope == BIG && want.exclusive)
    }
}

/// Jobs that occupy something, and the least time of each.
type Times<'a> = Vec<(&'a Task, f64)>;

/// The use of a resource: by exclusive holders, one after the other, and by sharers, together.
#[derive(Default)]
struct Use<'a> {
    alone: f64,
    shared: Times<'a>,
}

/// A job's locks among the busiest resources of a level, as bits, and the time for which it has all of them.
struct Bits<'a> {
    task: &'a Task,
    exclusive: u32,
    any: u32,
    hold: f64,
}

/// The real locks of a job, and the least time for which it holds each.
fn holds(job: &Job) -> impl Iterator<Item = (Want, f64)> {
    job.real.iter().map(|want| {
        let asked_for = job.asks.contains(want);
        (*want, (if asked_for { job.run_us - job.asks_at_us } else { job.run_us }) as f64)
    })
}

/// The earliest possible end of the last job, in µs since the start.
pub(crate) fn makespan(population: &Population, slots: usize) -> Bound {
    let jobs = &population.jobs;
    let task = |job: &Job| Task { run: job.run_us as f64, locks: holds(job).collect() };
    let tasks: Vec<Task> = jobs.iter().map(task).collect();
    let scopes = Scopes { population, slots: slots as f64 };
    let mut bound = Bound { us: 0.0, by: "nothing".to_owned() };
    for job in jobs {
        bound.raise((job.comes_us + job.run_us) as f64, || "the job that comes last".to_owned());
    }
    // Jobs are in the order of their arrival.
    for from in (0..jobs.len()).step_by(jobs.len().div_ceil(MOMENTS).max(1)) {
        let at_us = jobs[from].comes_us as f64;
        let Bound { us, by } = scopes.all(&tasks[from..]);
        bound.raise(at_us + us, || by);
    }
    bound
}

/// The scopes that jobs lock, and the slots.
struct Scopes<'p> {
    population: &'p Population,
    slots: f64,
}

impl Scopes<'_> {
    fn all(&self, tasks: &[Task]) -> Bound {
        let mut bound = Bound { us: 0.0, by: String::new() };
        let all: Times<'_> = tasks.iter().map(|task| (task, task.run)).collect();
        bound.raise(self.by_slots(&all), || "the slots".to_owned());
        let (big, mut others): (Times<'_>, Times<'_>) = all.iter().partition(|(task, _)| task.has_big_lock());
        let big: f64 = big.iter().map(|(_, run)| run).sum();
        others.retain(|(task, _)| !task.locks.is_empty());
        bound.raise(big + self.by_slots(&others), || "the big lock and the slots".to_owned());
        for (level, name) in (0..).zip(self.population.levels.names()) {
            let at_level = self.at_level(level, name, &others);
            bound.raise(big + at_level.us, || at_level.by);
        }
        bound
    }

    /// The least time of the jobs that lock something at a level.
    fn at_level(&self, level: u8, name: &str, tasks: &Times<'_>) -> Bound {
        let scope = |want: &Want| &self.population.scopes[want.scope as usize];
        let mut whole_alone = 0.0;
        let (mut some, mut whole_shared) = (Times::new(), Times::new());
        let mut uses: BTreeMap<ScopeId, Use<'_>> = BTreeMap::new();
        let mut named: Vec<(&Task, Vec<(Want, f64)>)> = Vec::new();
        for (task, _) in tasks {
            let here = || task.locks.iter().filter(|(want, _)| scope(want).level == Some(level));
            let Some(longest) = here().map(|(_, hold)| *hold).reduce(f64::max) else { continue };
            let whole = here().find(|(want, _)| scope(want).whole);
            if let Some((_, hold)) = whole.filter(|(want, _)| want.exclusive) {
                whole_alone += hold;
                continue;
            }
            some.push((*task, longest));
            match whole {
                Some((_, hold)) if !here().any(|(want, _)| want.exclusive) => {
                    whole_shared.push((*task, *hold));
                }
                Some(_) => {}
                None => named.push((*task, here().copied().collect())),
            }
            for (want, hold) in here().filter(|(want, _)| !scope(want).whole) {
                let used = uses.entry(want.scope).or_default();
                if want.exclusive {
                    used.alone += hold;
                } else if whole.is_none() {
                    used.shared.push((*task, *hold));
                }
            }
        }
        let mut bound = Bound { us: self.by_slots(&some), by: format!("all of {name}") };
        for (id, Use { alone, shared }) in &uses {
            let shared = shared.iter().chain(&whole_shared).copied().collect();
            let name = || self.population.scopes[*id as usize].name.clone();
            bound.raise(alone + self.together(&shared), name);
        }
        self.two_of_three(&uses, &named, &whole_shared, &mut bound);
        bound.us += whole_alone;
        bound
    }

    /// Raises the bound to the least time of the jobs that lock two of three resources.
    fn two_of_three(
        &self,
        uses: &BTreeMap<ScopeId, Use<'_>>,
        named: &[(&Task, Vec<(Want, f64)>)],
        whole_shared: &Times<'_>,
        bound: &mut Bound,
    ) {
        let mut busiest: Vec<(f64, ScopeId)> = uses.iter().map(|(id, used)| (used.alone, *id)).collect();
        busiest.retain(|(alone, _)| *alone > 0.0);
        busiest.sort_by(|one, other| other.0.total_cmp(&one.0));
        busiest.truncate(BUSIEST);
        let bits = named.iter().map(|(task, here)| {
            let bit = |want: &Want| {
                busiest.iter().position(|(_, id)| *id == want.scope).map_or(0, |at| 1_u32 << at)
            };
            let exclusive = here.iter().filter(|(want, _)| want.exclusive);
            Bits {
                task,
                exclusive: exclusive.fold(0, |all, (want, _)| all | bit(want)),
                any: here.iter().fold(0, |all, (want, _)| all | bit(want)),
                hold: here.iter().map(|(_, hold)| *hold).fold(f64::INFINITY, f64::min),
            }
        });
        let named: Vec<Bits<'_>> = bits.filter(|bits| bits.any.count_ones() >= 2).collect();
        // Many jobs lock the same resources.
        let mut alone: BTreeMap<u32, f64> = BTreeMap::new();
        for bits in named.iter().filter(|bits| bits.exclusive.count_ones() >= 2) {
            *alone.entry(bits.exclusive).or_default() += bits.hold;
        }
        let two = |bits: u32, three: u32| (bits & three).count_ones() >= 2;
        let last = busiest.len();
        for (a, b, c) in (0..last).flat_map(|a| (0..a).flat_map(move |b| (0..b).map(move |c| (a, b, c)))) {
            let three = 1 << a | 1 << b | 1 << c;
            let alone: f64 = alone.iter().filter(|(bits, _)| two(**bits, three)).map(|(_, sum)| sum).sum();
            if alone == 0.0 {
                continue;
            }
            let shared = named.iter().filter(|bits| !two(bits.exclusive, three) && two(bits.any, three));
            let shared = shared.map(|bits| (bits.task, bits.hold)).chain(whole_shared.iter().copied());
            let name = |at: usize| self.population.scopes[busiest[at].1 as usize].name.as_str();
            bound.raise(alone + self.together(&shared.collect()), || {
                format!("two of {}, {} and {}", name(a), name(b), name(c))
            });
        }
    }

    /// The least time of these jobs, as only so many work at once.
    fn by_slots(&self, times: &Times<'_>) -> f64 {
        let longest = times.iter().map(|(_, time)| *time).fold(0.0, f64::max);
        longest.max(times.iter().map(|(_, time)| time).sum::<f64>() / self.slots)
    }

    /// The least time of these jobs, as they also lock other scopes.
    fn together(&self, times: &Times<'_>) -> f64 {
        let mut at: HashMap<ScopeId, f64> = HashMap::new();
        for (task, time) in times {
            for (want, hold) in &task.locks {
                let part = match self.population.scopes[want.scope as usize].capacity {
                    _ if want.exclusive => 1.0,
                    Some(capacity) => f64::from(want.units) / f64::from(capacity),
                    None => continue,
                };
                *at.entry(want.scope).or_default() += time.min(*hold) * part;
            }
        }
        at.into_values().fold(self.by_slots(times), f64::max)
    }
}

/// The least possible mean wait, in µs.
pub(crate) fn mean_wait(population: &Population, slots: usize) -> Bound {
    let jobs = &population.jobs;
    let mut bound = Bound { us: 0.0, by: "nothing".to_owned() };
    let count = jobs.len().max(1) as f64;
    let all: Vec<(i64, i64)> = jobs.iter().map(|job| (job.comes_us, job.run_us)).collect();
    bound.raise(least_waits(all, slots) / count, || "the slots".to_owned());
    let mut load: HashMap<ScopeId, f64> = HashMap::new();
    for (want, hold) in jobs.iter().flat_map(holds).filter(|(want, _)| want.exclusive) {
        *load.entry(want.scope).or_default() += hold;
    }
    let mut sets: BTreeMap<ScopeId, Vec<(i64, i64)>> = BTreeMap::new();
    for job in jobs {
        let alone = holds(job).filter(|(want, _)| want.exclusive);
        let busiest = alone
            .max_by(|(a, _), (b, _)| load[&a.scope].total_cmp(&load[&b.scope]).then(a.scope.cmp(&b.scope)));
        if let Some((want, hold)) = busiest {
            let hold = hold as i64;
            sets.entry(want.scope).or_default().push((job.comes_us + job.run_us - hold, hold));
        }
    }
    let sum: f64 = sets.into_values().map(|set| least_waits(set, 1).max(0.0)).sum();
    bound.raise(sum / count, || "locks that are exclusive".to_owned());
    bound
}

/// The least sum of `end − come − run` on one machine that is `speed` times as fast, by shortest remaining time
/// first. Jobs are (come, run), in µs.
fn least_waits(mut jobs: Vec<(i64, i64)>, speed: usize) -> f64 {
    jobs.sort_unstable();
    let given: i128 = jobs.iter().map(|(comes, run)| i128::from(*comes) + i128::from(*run)).sum();
    // In units of a µs divided by the speed: in each, the machine does one µs of work.
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
    use proptest::prelude::*;

    use super::super::scenario::Scenario;
    use super::*;

    fn population(slots: usize, tasks: &str) -> Population {
        let text = format!(
            "name = 'x'\nslots = {slots}\nlevels = [{{ name = 'a' }}, {{ name = 'n', capacity = 2 }}]\n{tasks}\n\
             [cluster]\ngroups = 1\nnodes = 2\ninstances = 1\n"
        );
        Population::new(&Scenario::parse(&text).unwrap()).unwrap()
    }

    /// Ten jobs of a second with these locks, all at once.
    fn ten(locks: &str) -> Population {
        population(
            4,
            &format!(
                "arrivals = [{{ count = 10 }}]\ntasks = [{{ name = 'o', weight = 1, run_ms = 1000, locks = {{ {locks} }} }}]"
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
        let tasks = |one: &str, other: &str| {
            let task = |name, locks| {
                format!("{{ name = '{name}', weight = 1, run_ms = 1000, locks = {{ {locks} }} }}")
            };
            format!("arrivals = [{{ count = 40 }}]\ntasks = [{}, {}]", task("one", one), task("other", other))
        };
        for (one, other) in [
            ("a = { exclusive = ['i'] }", "a = { shared = ['i'] }"),
            ("a = { exclusive = ['i'] }", "a = { shared = 'all' }"),
            ("a = { exclusive = 'all' }", "a = { shared = ['i'] }"),
            ("big_lock = true", "a = { shared = ['i'] }"),
        ] {
            let population = population(4, &tasks(one, other));
            let of_one = population.jobs.iter().filter(|job| job.task == 0).count() as f64;
            assert_eq!(makespan(&population, 4).us, (of_one + (40.0 - of_one) / 4.0) * 1e6, "{one}, {other}");
        }
    }

    #[test]
    fn only_one_job_at_a_time_has_two_of_three() {
        let task = |names: &str| {
            format!(
                "{{ name = \"{names}\", weight = 1, run_ms = 1000, locks = {{ a = {{ exclusive = [{names}] }} }} }}"
            )
        };
        let tasks = ["'i', 'j'", "'j', 'k'", "'i', 'k'"].map(task).join(", ");
        let population = population(4, &format!("arrivals = [{{ count = 9 }}]\ntasks = [{tasks}]"));
        let bound = makespan(&population, 4);
        assert_eq!(bound.us, 9e6);
        assert!(bound.by.starts_with("two of "), "{}", bound.by);
    }

    #[test]
    fn sharers_of_one_resource_that_lock_another_exclusively_take_turns() {
        // Some jobs lock `n` exclusively. The others share it, and lock `i` exclusively.
        let tasks = "arrivals = [{ count = 40 }]\ntasks = [\
            { name = 'one', weight = 1, run_ms = 1000, locks = { a = { exclusive = ['n'] } } },\
            { name = 'other', weight = 1, run_ms = 1000, locks = { a = { shared = ['n'] }, n = { exclusive = ['i'] } } }]";
        assert_eq!(makespan(&population(4, tasks), 4), Bound { us: 40e6, by: "n".to_owned() });
    }

    /// Whether two jobs can work at the same time. Units are left out.
    fn are_compatible(one: &Job, other: &Job, population: &Population) -> bool {
        let scope = |want: &Want| &population.scopes[want.scope as usize];
        one.real.iter().all(|a| {
            other.real.iter().all(|b| {
                let same_level = scope(a).level == scope(b).level;
                let meet = a.scope == b.scope || same_level && (scope(a).whole || scope(b).whole);
                !meet || !a.exclusive && !b.exclusive
            })
        })
    }

    /// The earliest end of the last job over all schedules: jobs in every order, each as early as possible beside
    /// those before it.
    fn shortest(population: &Population, slots: usize, placed: &mut Vec<(usize, i64)>) -> i64 {
        let jobs = &population.jobs;
        let end = |(job, start): &(usize, i64)| start + jobs[*job].run_us;
        if placed.len() == jobs.len() {
            return placed.iter().map(end).max().unwrap();
        }
        let fits = |job: usize, start: i64| {
            let beside = |at: i64| placed.iter().filter(move |other| other.1 <= at && at < end(other));
            let units = |at: i64, want: &Want| -> u32 {
                let of = |job: usize| jobs[job].real.iter().filter(|other| other.scope == want.scope);
                beside(at).flat_map(|(other, _)| of(*other)).map(|other| other.units).sum()
            };
            let overlapping =
                placed.iter().filter(|other| other.1 < start + jobs[job].run_us && start < end(other));
            let moments = overlapping.clone().map(|other| other.1.max(start)).chain([start]);
            overlapping.clone().all(|(other, _)| are_compatible(&jobs[job], &jobs[*other], population))
                && moments.clone().all(|at| beside(at).count() < slots)
                && jobs[job].real.iter().filter(|want| !want.exclusive).all(|want| {
                    let capacity = population.scopes[want.scope as usize].capacity;
                    capacity.is_none_or(|most| moments.clone().all(|at| units(at, want) + want.units <= most))
                })
        };
        let left: Vec<usize> =
            (0..jobs.len()).filter(|job| placed.iter().all(|(other, _)| other != job)).collect();
        let starts = left.into_iter().map(|job| {
            let ends = placed.iter().map(end).chain([jobs[job].comes_us]);
            let start = ends.filter(|at| *at >= jobs[job].comes_us && fits(job, *at)).min().unwrap();
            (job, start)
        });
        let starts: Vec<(usize, i64)> = starts.collect();
        let ends = starts.into_iter().map(|start| {
            placed.push(start);
            let end = shortest(population, slots, placed);
            placed.pop();
            end
        });
        ends.min().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn prop_no_schedule_beats_the_bound(seed in any::<u32>(), slots in 1..5_usize, first in 1..6_usize, then in 0..2_usize) {
            let locks = [
                "", "big_lock = true", "a = { exclusive = 'all' }", "a = { shared = 'all' }", "a = { exclusive = ['i', 'j'] }",
                "a = { exclusive = ['j', 'k'] }", "a = { exclusive = ['i', 'k'] }", "a = { exclusive = ['i', 'j', 'k'] }",
                "a = { shared = ['i', 'j'] }, n = { exclusive = ['x'] }", "a = { shared = ['j', 'k'] }, n = { shared = ['x'] }",
                "a = { shared = ['i'], exclusive = ['j'] }", "a = { exclusive = ['k'] }, n = { shared = ['x', 'y'] }",
            ];
            let task = |(n, locks): (usize, &&str)| {
                format!("{{ name = '{n}', weight = {}, run_ms = {{ uniform = [1, 9] }}, locks = {{ {locks} }} }}", n.min(5) + 1)
            };
            let tasks: Vec<String> = locks.iter().enumerate().map(task).collect();
            let text = format!(
                "seed = {seed}\narrivals = [{{ count = {first} }}, {{ count = {}, at_ms = 6 }}]\ntasks = [{}]", then + 1, tasks.join(", ")
            );
            let population = population(slots, &text);
            let (shortest, bound) = (shortest(&population, slots, &mut Vec::new()), makespan(&population, slots));
            prop_assert!(bound.us <= shortest as f64 + 1e-6, "{bound:?}, and {shortest} is possible");
        }
    }

    #[test]
    fn late_jobs_have_their_own_bound() {
        let text = "arrivals = [{ count = 1 }, { count = 8, at_ms = 100000 }]\ntasks = [{ name = 'o', weight = 1, run_ms = 1000 }]";
        assert_eq!(makespan(&population(4, text), 4).us, 102e6);
    }

    #[test]
    fn least_waits_are_those_of_the_shortest_remaining_time_first() {
        // One after the other: 0, 1 and 3 s. A short job interrupts a long one, which then ends later by as much.
        assert_eq!(least_waits(vec![(0, 2), (0, 1), (0, 5)], 1), 4.0);
        assert_eq!(least_waits(vec![(0, 10), (4, 1)], 1), 1.0);
        assert_eq!(
            mean_wait(&ten("a = { exclusive = ['i'] }"), 4),
            Bound { us: 4.5e6, by: "locks that are exclusive".to_owned() }
        );
        // Two jobs work at once, on a machine that is twice as fast: (½ + 1 + 1½ + 2 − 4) / 4 of a run. That is never
        // more than the truth, which is (0 + 0 + 1 + 1) / 4.
        assert!((least_waits(vec![(0, 10), (0, 10), (0, 10), (0, 10)], 2) - 10.0).abs() < 1e-9);
    }
}
