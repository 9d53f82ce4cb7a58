//! The invariants hold.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use turnwise_sim::plan::LOCKS_FROM;
use turnwise_sim::world::{quiet_panics, run};

/// As many as a run of all tests can afford; `cargo xtask sim --seeds 10000` runs more.
const SEEDS: u64 = 200;
/// Of these, worlds with locks; `cargo xtask sim --seeds 2000 --from 1000000` runs more.
const SEEDS_WITH_LOCKS: u64 = 30;

#[test]
fn the_invariants_hold_in_every_world() {
    quiet_panics();
    let (next, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    let seed = match seed.checked_sub(SEEDS - SEEDS_WITH_LOCKS) {
                        None => seed,
                        Some(n @ ..SEEDS_WITH_LOCKS) => LOCKS_FROM + n,
                        Some(_) => return,
                    };
                    let report = run(seed, false);
                    if let Some(violation) = report.violation {
                        let tail = report.trace.join("\n");
                        let text = format!(
                            "{tail}\nseed {seed} breaks: {}\n{}",
                            violation.invariant, violation.story
                        );
                        failures.lock().unwrap().push((seed, text));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort_unstable();
    let first = failures.first().map(|(_, text)| text.as_str()).unwrap_or_default();
    assert!(
        failures.is_empty(),
        "{first}\nseeds {:?} fail; replay one: cargo xtask sim --seed N",
        failures.iter().map(|(seed, _)| seed).collect::<Vec<_>>()
    );
}
