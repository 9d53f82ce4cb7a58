//! A seed replays exactly.

use std::collections::BTreeSet;

use turnwise_sim::world::{quiet_panics, run};

/// Worlds of all sizes.
const SEEDS: u64 = 30;

#[test]
fn two_runs_of_a_seed_give_the_same_trace() {
    quiet_panics();
    let mut hashes = BTreeSet::new();
    for seed in 0..SEEDS {
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
    assert_eq!(hashes.len() as u64, SEEDS, "other seeds are other worlds");
}
