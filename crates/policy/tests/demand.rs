//! Slots follow the demand: 500 random workloads, in which a scaler provides the wanted slots.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use turnwise_policy::demand::{Group, Slots, Tracker, for_waiting};

const S: i64 = 1_000_000;
const WORKLOADS: u64 = 500;
/// The most jobs of a workload.
const MAX_JOBS: usize = 30_000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between 0 and 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.part()
    }

    /// Between two positive numbers, each magnitude as often as another.
    fn magnitude(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }
}

/// When jobs arrive, and how the slots follow.
struct Workload {
    target_us: i64,
    run_us: i64,
    /// Arrivals are spaced evenly, so that what changes is the scaler's doing.
    even: bool,
    arrivals: Vec<i64>,
    /// The phases with a constant rate: from, to, jobs that run at the same time.
    phases: Vec<(i64, i64, f64)>,
    poll_us: i64,
    start_us: i64,
}

impl Workload {
    fn new(seed: u64) -> Workload {
        let mut random = Random(seed);
        let target = random.magnitude(5.0, 120.0);
        let run = random.magnitude(0.02, 300.0);
        let even = seed.is_multiple_of(2);
        let (mut arrivals, mut phases, mut at) = (Vec::new(), Vec::new(), 0.0);
        for _ in 0..1 + random.next() % 4 {
            if random.part() < 0.4 {
                // A burst.
                let slots = random.magnitude(1.0, 60.0);
                let jobs = (slots * (target / run).max(1.0)) as usize;
                arrivals.extend(std::iter::repeat_n(at, jobs.min(MAX_JOBS)));
            }
            let long = random.between(1.0, 12.0) * target.max(run);
            let running = if random.part() < 0.3 { 0.0 } else { random.magnitude(0.2, 60.0) };
            phases.push(((at * 1e6) as i64, ((at + long) * 1e6) as i64, running));
            let (rate, mut next) = (running / run, at);
            while rate > 0.0 && arrivals.len() < MAX_JOBS {
                next += if even { 1.0 / rate } else { -(1.0 - random.part()).ln() / rate };
                if next > at + long {
                    break;
                }
                arrivals.push(next);
            }
            at += long;
        }
        arrivals.truncate(MAX_JOBS);
        let mut arrivals: Vec<i64> = arrivals.into_iter().map(|at| (at * 1e6) as i64).collect();
        arrivals.sort_unstable();
        // Behind the last job that was kept, the rate is not constant any more.
        let last = arrivals.last().copied().unwrap_or(0);
        if arrivals.len() == MAX_JOBS {
            phases.retain(|(_, to, _)| *to <= last);
        }
        Workload {
            target_us: (target * 1e6) as i64,
            run_us: (run * 1e6) as i64,
            even,
            arrivals,
            phases,
            poll_us: random.between(0.2, 0.1 * target.max(10.0)) as i64 * S + S / 2,
            start_us: (random.between(0.1, 3.0) * 1e6) as i64,
        }
    }

    /// What the slots were at each poll, and when the last job had started.
    fn run(&self, mut wanted: impl FnMut(i64, u64, &[Group]) -> u64) -> Trace {
        let mut waiting: VecDeque<i64> = VecDeque::new();
        let mut ends: BinaryHeap<Reverse<i64>> = BinaryHeap::new();
        // Slots that have been requested: the times from which they are there.
        let mut coming: VecDeque<(i64, u64)> = VecDeque::new();
        let (mut slots, mut next, mut now_us) = (0_u64, 0, 0_i64);
        let mut trace = Trace::default();
        let end_us =
            self.phases.last().map_or(0, |(_, to, _)| *to).max(self.arrivals.last().copied().unwrap_or(0));
        loop {
            // Up to this poll: jobs arrive, end and start, in the order of time.
            loop {
                let arrival = self.arrivals.get(next).copied().unwrap_or(i64::MAX);
                let end = ends.peek().map_or(i64::MAX, |Reverse(end)| *end);
                let ready = coming.front().map_or(i64::MAX, |(at, _)| *at);
                let first = arrival.min(end).min(ready);
                if first > now_us {
                    break;
                }
                if first == end {
                    ends.pop();
                } else if first == arrival {
                    waiting.push_back(arrival);
                    next += 1;
                } else if let Some((_, more)) = coming.pop_front() {
                    slots += more;
                }
                while (ends.len() as u64) < slots
                    && let Some(arrived) = waiting.pop_front()
                {
                    ends.push(Reverse(first + self.run_us));
                    trace.longest_wait_us = trace.longest_wait_us.max(first - arrived);
                }
            }
            let running = ends.len() as u64;
            let group = Group { jobs: waiting.len() as u64, expected_us: self.run_us as f64 };
            let wants = wanted(now_us, running, &[group]);
            let have = slots + coming.iter().map(|(_, more)| more).sum::<u64>();
            if wants > have {
                coming.push_back((now_us + self.start_us, wants - have));
            } else if wants < have {
                // Those that are still starting first, then idle ones. Busy ones end with their jobs.
                let mut less = have - wants;
                while less > 0
                    && let Some((at, more)) = coming.pop_back()
                {
                    let of_these = more.min(less);
                    less -= of_these;
                    if more > of_these {
                        coming.push_back((at, more - of_these));
                    }
                }
                slots -= less.min(slots.saturating_sub(running));
            }
            trace.polls.push(Poll {
                at_us: now_us,
                slots,
                wanted: wants,
                offered: self.offered(now_us, next, &ends, waiting.len()),
            });
            if now_us > end_us && waiting.is_empty() && ends.is_empty() && slots == 0
                || trace.polls.len() > 200_000
            {
                return trace;
            }
            now_us += self.poll_us;
        }
    }

    /// The slots that the jobs of the next target need: those that are there, and those that will arrive.
    fn offered(&self, now_us: i64, next: usize, ends: &BinaryHeap<Reverse<i64>>, waiting: usize) -> f64 {
        let until = self.arrivals.partition_point(|at| *at <= now_us + self.target_us).max(next);
        let new = (waiting + until - next) as u64;
        let target_us = self.target_us as f64;
        let left =
            ends.iter().map(|Reverse(end)| ((end - now_us) as f64 / target_us).clamp(0.0, 1.0)).sum::<f64>();
        left + for_waiting(&[Group { jobs: new, expected_us: self.run_us as f64 }], target_us)
    }
}

#[derive(Default)]
struct Trace {
    polls: Vec<Poll>,
    longest_wait_us: i64,
}

struct Poll {
    at_us: i64,
    slots: u64,
    wanted: u64,
    offered: f64,
}

/// By how much more slots there were than the jobs could use, as a factor; without two slots for rounding and the poll's delay.
fn overshoot(trace: &Trace) -> f64 {
    let most = trace.polls.iter().map(|poll| poll.slots).max().unwrap_or(0) as f64;
    let offered = trace.polls.iter().map(|poll| poll.offered).fold(0.0, f64::max);
    (most - 2.0).max(0.0) / offered.max(1.0)
}

/// The largest part by which the wanted slots rise again after they have fallen, while jobs arrive at a constant rate.
fn oscillation(workload: &Workload, trace: &Trace) -> f64 {
    let mut most: f64 = 0.0;
    for (from, to, running) in &workload.phases {
        // Until then, the scaler works off what was there before, or runs the first jobs.
        let settled = from + 4 * workload.target_us.max(workload.run_us) + 2 * workload.start_us;
        let steady = trace.polls.iter().filter(|poll| (settled..*to).contains(&poll.at_us));
        let mut lowest = u64::MAX;
        for poll in steady {
            lowest = lowest.min(poll.wanted);
            let noise = if workload.even { 0.0 } else { 5.0 * running.sqrt() };
            let again = (poll.wanted - lowest) as f64 - 2.0 - noise;
            most = most.max(again / running.max(1.0));
        }
    }
    most
}

/// The slots that are started anew within a target, as a part of those that run, while jobs arrive at a constant rate.
fn churn(workload: &Workload, trace: &Trace) -> f64 {
    let mut most: f64 = 0.0;
    for (from, to, running) in &workload.phases {
        let settled = from + 4 * workload.target_us.max(workload.run_us) + 2 * workload.start_us;
        let steady: Vec<&Poll> =
            trace.polls.iter().filter(|poll| (settled..*to).contains(&poll.at_us)).collect();
        let rises: u64 = steady.windows(2).map(|pair| pair[1].wanted.saturating_sub(pair[0].wanted)).sum();
        let targets = (to - settled) as f64 / workload.target_us as f64;
        if *running >= 10.0 && targets >= 3.0 {
            most = most.max(rises as f64 / running / targets);
        }
    }
    most
}

#[test]
fn slots_neither_overshoot_nor_oscillate_over_500_workloads() {
    for seed in 0..WORKLOADS {
        let workload = Workload::new(seed);
        let mut tracker = Tracker::new(workload.target_us);
        let trace = workload.run(|now_us, running, groups| tracker.observe(now_us, running, groups).wanted);
        let (overshoot, oscillation) = (overshoot(&trace), oscillation(&workload, &trace));
        assert!(overshoot <= 1.2, "seed {seed}: {overshoot:.2} times the slots that the jobs need");
        assert!(oscillation <= 0.2, "seed {seed}: the slots rise again by {oscillation:.2}");
        let churn = churn(&workload, &trace);
        assert!(churn <= 0.2, "seed {seed}: in each target, {churn:.2} of the slots are started anew");
        let allowed_us = workload.target_us + 2 * workload.start_us + 2 * workload.poll_us + workload.run_us;
        assert!(
            trace.longest_wait_us <= allowed_us,
            "seed {seed}: a job waited {} s",
            trace.longest_wait_us / S
        );
    }
}

/// The checks above find what is wrong: each of these policies breaks one of them in some workload.
#[test]
fn simpler_policies_are_caught() {
    /// Returns the wanted slots.
    type Policy = fn(&mut Tracker, i64, i64, u64, &[Group]) -> u64;
    fn running_now(_: &mut Tracker, target_us: i64, _: i64, running: u64, groups: &[Group]) -> u64 {
        running + for_waiting(groups, target_us as f64).ceil() as u64
    }
    fn only_what_waits(_: &mut Tracker, target_us: i64, _: i64, _: u64, groups: &[Group]) -> u64 {
        for_waiting(groups, target_us as f64).ceil() as u64
    }
    fn without_the_window(tracker: &mut Tracker, _: i64, now_us: i64, running: u64, groups: &[Group]) -> u64 {
        let Slots { needed, .. } = tracker.observe(now_us, running, groups);
        needed
    }
    let policies: [(&str, Policy); 3] =
        [("overshoot", running_now), ("oscillation", only_what_waits), ("churn", without_the_window)];
    for (what, policy) in policies {
        let caught = (0..WORKLOADS).any(|seed| {
            let workload = Workload::new(seed);
            let (target_us, mut tracker) = (workload.target_us, Tracker::new(workload.target_us));
            let trace = workload
                .run(|now_us, running, groups| policy(&mut tracker, target_us, now_us, running, groups));
            match what {
                "overshoot" => overshoot(&trace) > 1.2,
                "oscillation" => oscillation(&workload, &trace) > 0.2,
                _ => churn(&workload, &trace) > 0.2,
            }
        });
        assert!(caught, "no workload shows the {what} of a simpler policy");
    }
}
