//! The invariants hold.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use turnwise_sim::plan::{ELIGIBILITY_FROM, LOCKS_FROM, MODES_FROM, SCHEDULES_FROM};
use turnwise_sim::world::{quiet_panics, run};

/// The number of worlds that a run of all tests can afford. `cargo xtask sim --seeds 10000` runs more.
const SEEDS: u64 = 100;
/// How many of these have locks. `cargo xtask sim --seeds 2000 --from 1000000` runs more.
const SEEDS_WITH_LOCKS: u64 = 25;
/// How many of these are worlds where not all jobs may start. `cargo xtask sim --seeds 2000 --from 2000000` runs more.
const SEEDS_OF_ELIGIBILITY: u64 = 25;
/// How many of these have an operator. `cargo xtask sim --seeds 2000 --from 3000000` runs more.
const SEEDS_WITH_MODES: u64 = 15;
/// How many of these have schedules. `cargo xtask sim --seeds 2000 --from 4000000` runs more.
const SEEDS_WITH_SCHEDULES: u64 = 15;
/// Seeds that have found bugs without another test (docs/design/simulation.md).
const THAT_FOUND: [u64; 14] = [
    1_826, 1_000_157, 1_000_553, 1_000_719, 1_001_086, 1_001_116, 1_001_298, 1_001_503, 2_000_134, 2_000_162,
    2_000_180, 2_000_187, 2_000_620, 2_001_193,
];

#[test]
fn the_invariants_hold_in_every_world() {
    quiet_panics();
    let plain = 0..SEEDS - SEEDS_WITH_LOCKS - SEEDS_OF_ELIGIBILITY - SEEDS_WITH_MODES - SEEDS_WITH_SCHEDULES;
    let seeds: Vec<u64> = plain
        .chain(LOCKS_FROM..LOCKS_FROM + SEEDS_WITH_LOCKS)
        .chain(ELIGIBILITY_FROM..ELIGIBILITY_FROM + SEEDS_OF_ELIGIBILITY)
        .chain(MODES_FROM..MODES_FROM + SEEDS_WITH_MODES)
        .chain(SCHEDULES_FROM..SCHEDULES_FROM + SEEDS_WITH_SCHEDULES)
        .chain(THAT_FOUND)
        .collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Relaxed)) {
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
