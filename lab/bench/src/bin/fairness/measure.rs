//! What the jobs of a workload show: how long victims waited, whether each tenant got what it was entitled to, and whether slots
//! were idle while jobs waited.

use crate::record::Job;
use crate::workload::{Stream, Workload};

/// The step between two windows, in ms.
const STEP_MS: f64 = 1_000.0;
/// The step in which the ideal schedule is computed, in ms.
const IDEAL_MS: f64 = 50.0;

/// The results of one run.
#[derive(Debug, Clone, Default)]
pub struct Measures {
    /// Waits of the victims' jobs; `None` if there are no victims.
    pub waits: Option<Waits>,
    /// Jain's index of the parts of all run time that tenants received, divided by the parts that they were entitled to: the
    /// mean over all windows in which jobs wanted more than all slots. `None` if there were none.
    pub jain: Option<f64>,
    /// The largest difference between the two parts in any such window, divided by the entitlement. Only for tenants that
    /// are entitled to one slot or more.
    pub deviation: Option<f64>,
    /// The part of all slots that was idle while jobs waited.
    pub idle: f64,
    /// Jobs that ended per second.
    pub ended_per_s: f64,
    /// The part of all run time that each stream received.
    pub parts: Vec<f64>,
}

/// How long jobs waited from their acknowledgement to the start of their handler, in ms.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    /// How many had not started at the end; their wait counts until then.
    pub unstarted: usize,
}

/// Measures one run.
pub fn measure(workload: &Workload, jobs: &[Job]) -> Measures {
    let end_ms = workload.seconds as f64 * 1e3;
    let all = received(workload, jobs, 0.0, end_ms);
    let total: f64 = all.iter().sum();
    let (mut jains, mut deviation) = (Vec::new(), None::<f64>);
    let ideal = ideal(workload, jobs);
    let window = workload.window as f64 * 1e3;
    let steps = (window / IDEAL_MS) as usize;
    let mut from = 0.0;
    while from + window <= end_ms {
        let first = (from / IDEAL_MS) as usize;
        let ideal = &ideal[first..first + steps];
        if ideal.iter().all(|step| step.is_contended) {
            let received = received(workload, jobs, from, from + window);
            let of_ideal = |n: usize| ideal.iter().map(|step| step.entitled[n]).sum::<f64>();
            let entitled: Vec<f64> = (0..workload.streams.len()).map(of_ideal).collect();
            let total = received.iter().sum::<f64>() / entitled.iter().sum::<f64>();
            let pairs = received.iter().map(|received| received / total).zip(&entitled);
            let pairs: Vec<(f64, f64)> =
                pairs.map(|(received, entitled)| (received, *entitled)).filter(|pair| pair.1 > 0.0).collect();
            jains.push(jain(pairs.iter().map(|(received, entitled)| received / entitled)));
            let off = pairs
                .iter()
                .filter(|(_, entitled)| *entitled >= window)
                .map(|(received, entitled)| (received - entitled).abs() / entitled);
            deviation = off.fold(deviation, |most, off| Some(most.map_or(off, |most| most.max(off))));
        }
        from += STEP_MS;
    }
    Measures {
        waits: waits(workload, jobs, end_ms),
        jain: (!jains.is_empty()).then(|| jains.iter().sum::<f64>() / jains.len() as f64),
        deviation,
        idle: idle(workload, jobs, end_ms),
        ended_per_s: jobs.iter().filter(|job| job.ended_ms.is_some()).count() as f64 / end_ms * 1e3,
        parts: all.iter().map(|own| own / total).collect(),
    }
}

fn waits(workload: &Workload, jobs: &[Job], end_ms: f64) -> Option<Waits> {
    let victims = jobs.iter().filter(|job| workload.streams[job.stream].victim);
    let started = victims.filter_map(|job| Some((job.added_ms?, job.started_ms)));
    let mut unstarted = 0;
    let mut waits: Vec<f64> = started
        .map(|(added, started)| {
            unstarted += usize::from(started.is_none());
            (started.unwrap_or(end_ms) - added).max(0.0)
        })
        .collect();
    waits.sort_unstable_by(f64::total_cmp);
    let last = waits.len().checked_sub(1)?;
    let at = |part: f64| waits[(last as f64 * part) as usize];
    Some(Waits { p50: at(0.5), p95: at(0.95), p99: at(0.99), unstarted })
}

/// How long jobs of each stream ran in this time, in ms.
pub fn received(workload: &Workload, jobs: &[Job], from: f64, to: f64) -> Vec<f64> {
    let mut received = vec![0.0; workload.streams.len()];
    for job in jobs {
        if let Some(started) = job.started_ms {
            let ended = job.ended_ms.unwrap_or(f64::INFINITY);
            received[job.stream] += (ended.min(to) - started.max(from)).max(0.0);
        }
    }
    received
}

/// A step of the ideal schedule.
struct Step {
    /// Whether jobs wanted more than all slots.
    is_contended: bool,
    /// By stream: run time, in ms.
    entitled: Vec<f64>,
}

/// The ideal schedule: at any time, all tenants that want them have equal parts of the slots, and what a tenant does not want
/// goes to the others. Jobs can be divided at will, but none runs in two slots at once.
fn ideal(workload: &Workload, jobs: &[Job]) -> Vec<Step> {
    let mut arrivals: Vec<(f64, usize, f64)> = jobs
        .iter()
        .enumerate()
        .filter_map(|(n, job)| Some((job.added_ms?, job.stream, workload.streams[job.stream].run_ms_of(n))))
        .collect();
    arrivals.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut arrivals = arrivals.into_iter().peekable();
    let mut work = vec![0.0_f64; workload.streams.len()];
    let steps = (workload.seconds as f64 * 1e3 / IDEAL_MS) as usize;
    let step = |n: usize| {
        while let Some((_, stream, run_ms)) = arrivals.next_if(|(at, ..)| *at <= n as f64 * IDEAL_MS) {
            work[stream] += run_ms;
        }
        let wanted = |(stream, work): (&Stream, &f64)| match stream.keep {
            0 => work.min((work / stream.run_ms as f64).ceil() * IDEAL_MS),
            _ => f64::INFINITY,
        };
        let wanted: Vec<f64> = workload.streams.iter().zip(&work).map(wanted).collect();
        let (is_contended, entitled) = divide(workload.slots as f64 * IDEAL_MS, &wanted);
        for (work, entitled) in work.iter_mut().zip(&entitled) {
            *work = (*work - entitled).max(0.0);
        }
        Step { is_contended, entitled }
    };
    (0..steps).map(step).collect()
}

/// Divides a capacity into equal parts, except that what is not wanted goes to the others. Also returns whether more is wanted
/// than there is.
fn divide(capacity: f64, wanted: &[f64]) -> (bool, Vec<f64>) {
    if wanted.iter().sum::<f64>() <= capacity {
        return (false, wanted.to_vec());
    }
    let mut sorted = wanted.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (mut left, mut level) = (capacity, f64::INFINITY);
    for (n, wanted) in sorted.iter().enumerate() {
        let part = left / (sorted.len() - n) as f64;
        if *wanted > part {
            level = part;
            break;
        }
        left -= wanted;
    }
    (true, wanted.iter().map(|wanted| wanted.min(level)).collect())
}

/// Jain's index: 1 if all values are equal, 1/n if one of n has everything.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum, squares) = values
        .fold((0.0, 0.0, 0.0), |(n, sum, squares), value| (n + 1.0, sum + value, squares + value * value));
    if squares > 0.0 { sum * sum / (n * squares) } else { 0.0 }
}

fn idle(workload: &Workload, jobs: &[Job], end_ms: f64) -> f64 {
    // By time: how the numbers of waiting and of running jobs change.
    let mut changes: Vec<(f64, i64, i64)> = Vec::with_capacity(3 * jobs.len());
    for job in jobs {
        let (Some(added), started) = (job.added_ms, job.started_ms) else { continue };
        // A job may start before its acknowledgement arrives.
        changes.push((started.map_or(added, |started| started.min(added)), 1, 0));
        changes.extend(started.map(|started| (started, -1, 1)));
        changes.extend(job.ended_ms.map(|ended| (ended, 0, -1)));
    }
    changes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut at, mut waiting, mut running, mut idle) = (0.0, 0_i64, 0_i64, 0.0);
    for (time, waits, runs) in changes {
        let time = time.clamp(0.0, end_ms);
        let free = (workload.slots as i64 - running).max(0);
        idle += free.min(waiting.max(0)) as f64 * (time - at);
        (at, waiting, running) = (time, waiting + waits, running + runs);
    }
    idle / (workload.slots as f64 * end_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(streams: usize) -> Workload {
        Workload {
            name: String::new(),
            title: String::new(),
            slots: 10,
            seconds: 20,
            window: 10,
            streams: (0..streams).map(|_| Stream { run_ms: 1_000, ..Stream::default() }).collect(),
        }
    }

    #[test]
    fn what_a_tenant_does_not_want_goes_to_the_others() {
        assert_eq!(divide(10.0, &[1.0, 2.0, 3.0]), (false, vec![1.0, 2.0, 3.0]));
        assert_eq!(divide(10.0, &[1.0, 9.0, f64::INFINITY]), (true, vec![1.0, 4.5, 4.5]));
    }

    #[test]
    fn the_ideal_schedule_serves_what_arrives_at_once() {
        let workload = workload(2);
        let added =
            |stream, ms: f64, jobs| (0..jobs).map(move |_| Job { added_ms: Some(ms), ..Job::new(stream) });
        let jobs: Vec<Job> = added(0, 0.0, 1_000).chain(added(1, 10_000.0, 10)).collect();
        let steps = ideal(&workload, &jobs);
        assert_eq!(steps[0].entitled, [10.0 * IDEAL_MS, 0.0]);
        let at_ten = &steps[(10_000.0 / IDEAL_MS) as usize];
        assert!(at_ten.is_contended);
        assert_eq!(at_ten.entitled, [5.0 * IDEAL_MS, 5.0 * IDEAL_MS]);
    }

    #[test]
    fn a_slot_is_idle_only_while_a_job_waits() {
        let workload = workload(1);
        let job = |added, started, ended| Job {
            stream: 0,
            added_ms: Some(added),
            started_ms: Some(started),
            ended_ms: Some(ended),
        };
        // It waits for 5 of 20 s, beside 10 free slots.
        assert!((idle(&workload, &[job(0.0, 5_000.0, 6_000.0)], 20_000.0) - 0.025).abs() < 1e-9);
        assert_eq!(idle(&workload, &[job(0.0, 0.0, 1_000.0)], 20_000.0), 0.0);
    }

    #[test]
    fn the_index_is_one_for_equal_parts() {
        assert_eq!(jain([2.0, 2.0, 2.0].into_iter()), 1.0);
        assert_eq!(jain([3.0, 0.0, 0.0].into_iter()), 1.0 / 3.0);
    }
}
