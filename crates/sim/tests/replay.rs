//! A seed replays exactly.

use std::collections::BTreeSet;

use turnwise_sim::plan::{ELIGIBILITY_FROM, LOCKS_FROM};
use turnwise_sim::world::{quiet_panics, run};

/// The numbers of worlds: of all sizes, with locks, and where not all jobs may start.
const SEEDS: u64 = 10;
const SEEDS_WITH_LOCKS: u64 = 3;
const SEEDS_OF_ELIGIBILITY: u64 = 3;

#[test]
fn two_runs_of_a_seed_give_the_same_trace() {
    quiet_panics();
    let mut hashes = BTreeSet::new();
    let others = (LOCKS_FROM..LOCKS_FROM + SEEDS_WITH_LOCKS)
        .chain(ELIGIBILITY_FROM..ELIGIBILITY_FROM + SEEDS_OF_ELIGIBILITY);
    for seed in (0..SEEDS).chain(others) {
        let (one, two) = (run(seed, false), run(seed, false));
        if one.hash != two.hash {
            let (one, two) = (run(seed, true), run(seed, true));
            let first = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
            panic!(
                "seed {seed} gives two traces, of {} and {} events: {first:#?}",
                one.trace.len(),
                two.trace.len()
            );
        }
        assert_eq!(one.stats, two.stats, "seed {seed}");
        assert!(one.stats.commits > 0, "seed {seed} did nothing");
        hashes.insert(one.hash);
    }
    assert_eq!(
        hashes.len() as u64,
        SEEDS + SEEDS_WITH_LOCKS + SEEDS_OF_ELIGIBILITY,
        "other seeds are other worlds"
    );
}
