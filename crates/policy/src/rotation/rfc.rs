//! Rotation by keys, as in CouchDB's fair-share scheduling (RFC 017): running jobs with the highest keys are preempted for waiting
//! jobs with the lowest.
//!
//! Priorities order only the jobs of one tenant. Keys decide which places a tenant has among all jobs; priorities decide which of
//! its jobs have them. So a priority moves no slot between tenants.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use super::{Float, Rules, Running, Stop, Waiting, Why, by_priority};

/// The order in which jobs are preempted: the highest key first, then the longest running.
fn first_stopped(a: &&Running, b: &&Running) -> Ordering {
    (Reverse(Float(a.key)), a.started_us).cmp(&(Reverse(Float(b.key)), b.started_us))
}

/// The order in which jobs are started: the lowest key first, then the longest not started.
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

/// A job, and the key of its place. The tenant's jobs of the first priority have the first of its places.
type Placed<'a, T> = (f64, &'a T);

/// The first `count` jobs in that order, each with the key of its place.
fn places<'a, T>(
    all: impl Iterator<Item = &'a T>,
    count: usize,
    order: impl Fn(&&'a T, &&'a T) -> Ordering,
    key: impl Fn(&T) -> f64,
    priority: impl Fn(&T) -> (usize, i16),
) -> Vec<Placed<'a, T>> {
    let mut all: Vec<&T> = all.collect();
    if all.windows(2).all(|pair| priority(pair[0]).1 == priority(pair[1]).1) {
        return first(all, count, order).into_iter().map(|job| (key(job), job)).collect();
    }
    all.sort_by(order);
    let keys: Vec<f64> = all.iter().map(|job| key(job)).collect();
    let jobs = by_priority(all, |job| priority(job));
    keys.into_iter().zip(jobs).take(count).collect()
}

/// The jobs in the order in which they are preempted: the highest place first, and of a tenant the last priority.
fn stopped_first<'a>(jobs: impl Iterator<Item = &'a Running>, count: usize) -> Vec<Placed<'a, Running>> {
    places(jobs, count, first_stopped, |job| job.key, |job| (job.tenant, -i16::from(job.priority)))
}

/// The waiting jobs without a free slot: the lowest place first, and of a tenant the first priority.
fn beyond_free(waiting: &[Waiting], free: usize, most: usize) -> Vec<Placed<'_, Waiting>> {
    let priority = |job: &Waiting| (job.tenant, i16::from(job.priority));
    let mut first = places(waiting.iter(), free.saturating_add(most), first_started, |job| job.key, priority);
    first.split_off(free.min(first.len()))
}

/// A job is not preempted for one of the same tenant with a later priority.
fn may_go_for(running: &Running, waiting: &Waiting) -> bool {
    running.tenant != waiting.tenant || running.priority >= waiting.priority
}

pub(super) fn rotate(running: &[Running], waiting: &[Waiting], rules: &Rules) -> Vec<Stop> {
    let excess = running.len().saturating_sub(rules.max_jobs);
    let (rotating, ending): (Vec<&Running>, Vec<&Running>) = running.iter().partition(|job| job.continuous);
    let placed = stopped_first(rotating.iter().copied(), excess.saturating_add(rules.max_churn));
    let ending = first(ending, excess.saturating_sub(placed.len()), first_stopped);
    let (stopped, rest) = placed.split_at(excess.min(placed.len()));
    let stopped = stopped.iter().map(|(_, job)| *job).chain(ending);
    let mut stops: Vec<Stop> = stopped.map(|job| Stop { job: job.job, why: Why::Excess }).collect();
    let most = stops.len() + rules.max_churn;

    let free = rules.max_jobs.saturating_sub(running.len());
    let pairs = rest.iter().zip(beyond_free(waiting, free, rules.max_churn)).take(rules.max_churn);
    let mut started: Vec<&Waiting> = Vec::new();
    for ((running_key, running), (waiting_key, waiting)) in pairs {
        let why = match Float(*running_key).cmp(&Float(waiting_key)) {
            Ordering::Greater => Why::LargerDeficit,
            Ordering::Equal => Why::LongestRunning,
            Ordering::Less => break,
        };
        if may_go_for(running, waiting) {
            stops.push(Stop { job: running.job, why });
            started.push(waiting);
        }
    }
    stop_later_classes(&rotating, waiting, (free, &started), most, &mut stops);
    stops
}

/// Preempts jobs for jobs of the same tenant with an earlier priority, whatever their keys. The slot stays with the tenant: the
/// preempted job takes the other one's place in the queue.
fn stop_later_classes(
    rotating: &[&Running],
    waiting: &[Waiting],
    (free, started): (usize, &[&Waiting]),
    most: usize,
    stops: &mut Vec<Stop>,
) {
    let priorities = rotating.iter().map(|job| job.priority).chain(waiting.iter().map(|job| job.priority));
    let (least, last) = priorities
        .fold((i8::MAX, i8::MIN), |(least, last), priority| (priority.min(least), priority.max(last)));
    if least >= last {
        return;
    }
    let mut own: HashMap<usize, Vec<&Running>> = HashMap::new();
    for job in rotating.iter().filter(|job| stops.iter().all(|stop| stop.job != job.job)) {
        own.entry(job.tenant).or_default().push(job);
    }
    for jobs in own.values_mut() {
        jobs.sort_by(|a, b| a.priority.cmp(&b.priority).then_with(|| first_stopped(b, a)));
    }
    for (_, waiting) in beyond_free(waiting, free, usize::MAX) {
        if stops.len() >= most {
            return;
        }
        if started.iter().any(|started| std::ptr::eq(*started, waiting)) {
            continue;
        }
        let Some(jobs) = own.get_mut(&waiting.tenant) else { continue };
        if let Some(job) = jobs.pop_if(|job| job.priority > waiting.priority) {
            stops.push(Stop { job: job.job, why: Why::LongestRunning });
        }
    }
}

pub(super) fn yield_idle(idle: &[Running], waiting: &[Waiting], free: usize, rules: &Rules) -> Vec<Stop> {
    let mut idle = stopped_first(idle.iter(), idle.len());
    let mut stops = Vec::new();
    for (key, waiting) in beyond_free(waiting, free, rules.max_churn) {
        // The highest running job if its key is not lower, else a job of the same tenant.
        let highest = idle.first().is_some_and(|(place, job)| *place >= key && may_go_for(job, waiting));
        let own = |(_, job): &Placed<'_, Running>| job.tenant == waiting.tenant && may_go_for(job, waiting);
        let place = if highest { Some(0) } else { idle.iter().position(own) };
        if let Some(place) = place {
            stops.push(Stop { job: idle.remove(place).1.job, why: Why::Idle });
        }
    }
    stops
}
