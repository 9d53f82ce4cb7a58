//! When a fault affects a node or the store, and how late the machine itself is.
//!
//! A delay is judged by its *calm* time: the time outside of the faults that stop a node, the store, or the way to it. Nothing else is left
//! out: a delay that begins before such a fault and ends after it counts with its part before and its part after.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time between two looks at the clock.
const TICK: Duration = Duration::from_millis(10);
/// A shorter delay of the machine is usual.
const LATE: Duration = Duration::from_millis(50);

/// The faults of nodes and stores: when they began, and when all nodes worked again.
#[derive(Default)]
pub(super) struct Calm(Mutex<Vec<(Instant, Option<Instant>)>>);

impl Calm {
    /// A fault begins.
    pub fn disturb(&self) {
        self.0.lock().expect("no holder of this lock panics").push((Instant::now(), None));
    }

    /// All nodes work again.
    pub fn settle(&self) {
        let mut faults = self.0.lock().expect("no holder of this lock panics");
        if let Some((_, end)) = faults.last_mut() {
            end.get_or_insert_with(Instant::now);
        }
    }

    /// The calm part of the time between two moments. A fault lasts for `grace` after the nodes work again.
    pub fn between(&self, from: Instant, to: Instant, grace: Duration) -> Duration {
        let faults = self.0.lock().expect("no holder of this lock panics");
        // Faults come one after the other, but the grace of one may reach into the next.
        let before = faults.partition_point(|(_, end)| end.is_some_and(|end| end + grace <= from));
        let (mut calm, mut at) = (Duration::ZERO, from);
        for (begin, end) in faults[before..].iter().take_while(|(begin, _)| *begin < to) {
            let end = end.map_or(to, |end| end + grace);
            calm += begin.min(&to).saturating_duration_since(at);
            at = at.max(end);
        }
        calm + to.saturating_duration_since(at)
    }
}

/// How late the machine is: a thread that wants to run every few milliseconds.
pub(super) struct Stalls {
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
}

impl Stalls {
    pub fn watch() -> Self {
        let (late, stop) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let (noted, stopped) = (Arc::clone(&late), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut before = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                let now = Instant::now();
                let by = now.duration_since(before).saturating_sub(TICK);
                if by > LATE {
                    noted.lock().expect("no holder of this lock panics").push((now, by));
                }
                before = now;
            }
        });
        Stalls { late, stop }
    }

    /// How long the machine stood still between two moments.
    pub fn between(&self, from: Instant, to: Instant) -> Duration {
        let late = self.late.lock().expect("no holder of this lock panics");
        let overlap = |(end, by): &(Instant, Duration)| {
            let begin = end.checked_sub(*by).unwrap_or(*end);
            (*end).min(to).saturating_duration_since(begin.max(from))
        };
        late.iter().map(overlap).sum()
    }

    /// What there was, as text.
    pub fn text(&self) -> String {
        let late = self.late.lock().expect("no holder of this lock panics");
        let all: Duration = late.iter().map(|(_, by)| *by).sum();
        let most = late.iter().map(|(_, by)| *by).max().unwrap_or_default();
        format!(
            "the machine stood still {} times for more than {LATE:?}, {all:.1?} in all, at most {most:.1?}",
            late.len()
        )
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_time_is_what_lies_outside_of_faults() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let calm = Calm(Mutex::new(vec![(at(10), Some(at(20))), (at(23), Some(at(30))), (at(50), None)]));
        let seconds = |from, to, grace| calm.between(at(from), at(to), Duration::from_secs(grace)).as_secs();
        assert_eq!(seconds(0, 5, 0), 5);
        assert_eq!(seconds(0, 25, 0), 13);
        assert_eq!(seconds(0, 25, 5), 10, "the grace of the first reaches into the second");
        assert_eq!(seconds(12, 40, 2), 9, "one s before the second, and 8 s after its grace");
        assert_eq!(seconds(40, 60, 0), 10, "the last one has not ended");
        assert_eq!(seconds(55, 60, 0), 0);
    }
}
