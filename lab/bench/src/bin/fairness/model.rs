//! A model, not a program: a scheduler that gives each free slot to the next tenant with waiting jobs, in turns, whatever its
//! jobs cost and however many of them run. Systems that weigh dispatches work like this. The model dispatches in no time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::record::Job;
use crate::workload::Workload;

/// What happens, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The run of this job ends.
    End(usize),
    /// Jobs of this stream are added.
    Add { stream: usize, jobs: usize },
}

/// Runs the workload.
pub fn run(workload: &Workload) -> Vec<Job> {
    let mut events: BinaryHeap<Reverse<(u64, Event)>> = BinaryHeap::new();
    let end_us = workload.seconds * 1_000_000;
    for (n, stream) in workload.streams.iter().enumerate() {
        let mut add = |at_us: u64, jobs: usize| {
            if jobs > 0 {
                events.push(Reverse((at_us, Event::Add { stream: n, jobs })));
            }
        };
        add(0, stream.preload + stream.keep);
        add(stream.burst_s * 1_000_000, stream.burst);
        if stream.rate > 0.0 {
            let every_us = (1e6 / stream.rate) as u64;
            (0..end_us).step_by(every_us as usize).for_each(|at_us| add(at_us, 1));
        }
    }
    let mut jobs: Vec<Job> = Vec::new();
    let mut waiting: Vec<VecDeque<usize>> = workload.streams.iter().map(|_| VecDeque::new()).collect();
    let mut turns: VecDeque<usize> = VecDeque::new();
    let mut free = workload.slots;
    while let Some(Reverse((at_us, event))) = events.pop() {
        if at_us >= end_us {
            break;
        }
        let now_ms = at_us as f64 / 1e3;
        let (stream, added) = match event {
            Event::End(job) => {
                jobs[job].ended_ms = Some(now_ms);
                free += 1;
                (jobs[job].stream, usize::from(workload.streams[jobs[job].stream].keep > 0))
            }
            Event::Add { stream, jobs } => (stream, jobs),
        };
        if added > 0 && waiting[stream].is_empty() {
            turns.push_back(stream);
        }
        for _ in 0..added {
            waiting[stream].push_back(jobs.len());
            jobs.push(Job { added_ms: Some(now_ms), ..Job::new(stream) });
        }
        // All events of one moment come before the decision.
        if events.peek().is_some_and(|Reverse((next_us, _))| *next_us == at_us) {
            continue;
        }
        while free > 0
            && let Some(stream) = turns.pop_front()
            && let Some(job) = waiting[stream].pop_front()
        {
            free -= 1;
            jobs[job].started_ms = Some(now_ms);
            let end_us = at_us + (workload.streams[stream].run_ms_of(job) * 1e3) as u64;
            events.push(Reverse((end_us, Event::End(job))));
            if !waiting[stream].is_empty() {
                turns.push_back(stream);
            }
        }
    }
    jobs
}
