//! A seed replays exactly.

use turnwise_sim::world::{quiet_panics, run};

/// Worlds of all sizes, with and without failures.
const SEEDS: u64 = 30;

#[test]
fn two_runs_of_a_seed_give_the_same_trace() {
    quiet_panics();
    for seed in 0..SEEDS {
        let (one, two) = (run(seed, true), run(seed, true));
        let first_difference = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
        assert!(first_difference.is_none(), "seed {seed}: {first_difference:#?}");
        assert_eq!(one.trace.len(), two.trace.len(), "seed {seed}");
        assert_eq!(one.hash, two.hash, "seed {seed}");
        assert!(one.stats.commits > 0, "seed {seed} did nothing");
    }
}

#[test]
fn other_seeds_are_other_worlds() {
    quiet_panics();
    let hashes: std::collections::BTreeSet<u64> = (0..10).map(|seed| run(seed, false).hash).collect();
    assert_eq!(hashes.len(), 10);
}
