//! Rotation by priority values: the highest running ones make way for the lowest waiting ones.

use std::cmp::{Ordering, Reverse};

use super::{Float, Rules, Running, Stop, Waiting, Why};

/// Who is stopped first: the highest, then the longest running.
fn first_stopped(a: &&Running, b: &&Running) -> Ordering {
    (Reverse(Float(a.key)), a.started_us).cmp(&(Reverse(Float(b.key)), b.started_us))
}

/// Who is started first: the lowest, then the longest not started.
fn first_started(a: &&Waiting, b: &&Waiting) -> Ordering {
    (Float(a.key), a.not_started_since_us).cmp(&(Float(b.key), b.not_started_since_us))
}

/// The first `count` in that order: O(all + count · log count).
fn first<T: Copy>(mut all: Vec<T>, count: usize, order: impl Fn(&T, &T) -> Ordering) -> Vec<T> {
    if count < all.len() {
        all.select_nth_unstable_by(count, &order);
        all.truncate(count);
    }
    all.sort_by(order);
    all
}

/// Those of `waiting` for whom no slot is free.
fn beyond_free(waiting: &[Waiting], free: usize, most: usize) -> Vec<&Waiting> {
    let mut first = first(waiting.iter().collect(), free.saturating_add(most), first_started);
    first.split_off(free.min(first.len()))
}

pub(super) fn rotate(running: &[Running], waiting: &[Waiting], rules: &Rules) -> Vec<Stop> {
    let excess = running.len().saturating_sub(rules.max_jobs);
    let (rotating, ending): (Vec<&Running>, Vec<&Running>) = running.iter().partition(|job| job.continuous);
    let rotating = first(rotating, excess.saturating_add(rules.max_churn), first_stopped);
    let ending = first(ending, excess.saturating_sub(rotating.len()), first_stopped);
    let (stopped, rest) = rotating.split_at(excess.min(rotating.len()));
    let stopped = stopped.iter().chain(&ending);
    let mut stops: Vec<Stop> = stopped.map(|job| Stop { job: job.job, why: Why::Excess }).collect();

    let free = rules.max_jobs.saturating_sub(running.len());
    let pairs = rest.iter().zip(beyond_free(waiting, free, rules.max_churn)).take(rules.max_churn);
    for (running, waiting) in pairs {
        let why = match Float(running.key).cmp(&Float(waiting.key)) {
            Ordering::Greater => Why::OwedLess,
            Ordering::Equal => Why::LongestRunning,
            Ordering::Less => break,
        };
        stops.push(Stop { job: running.job, why });
    }
    stops
}

pub(super) fn yield_idle(idle: &[Running], waiting: &[Waiting], free: usize, rules: &Rules) -> Vec<Stop> {
    let mut idle = first(idle.iter().collect(), idle.len(), first_stopped);
    let mut stops = Vec::new();
    for waiting in beyond_free(waiting, free, rules.max_churn) {
        // The highest one if that is not lower, else one of the same tenant's.
        let highest = idle.first().is_some_and(|job| job.key >= waiting.key);
        let place = if highest { Some(0) } else { idle.iter().position(|job| job.tenant == waiting.tenant) };
        if let Some(place) = place {
            stops.push(Stop { job: idle.remove(place).job, why: Why::Idle });
        }
    }
    stops
}
