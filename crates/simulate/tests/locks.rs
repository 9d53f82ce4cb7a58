//! The predictive queue on the shipped clusters, compared with first in, first out, whose jobs wait in their slots.
//!
//! The simulated world itself asserts after each step, for each scheme, that no two jobs hold locks that exclude each
//! other. It also asserts that every job ends, and that no lock outlives its job.

use std::fs;
use std::path::Path;

use turnwise_policy::predictive_queue::window;
use turnwise_simulate::locks::{Compared, Scenario, Scheme, SchemeResults, plot, report, run};

const SHIPPED: [&str; 4] = ["cluster", "cluster-bursts", "cluster-hot-node", "cluster-unknown"];

fn read(name: &str) -> Scenario {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/scenarios/{name}.toml"));
    Scenario::parse(&fs::read_to_string(file).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn of(compared: &Compared, scheme: Scheme) -> &SchemeResults {
    compared.outcomes.iter().find(|outcome| outcome.scheme == scheme).unwrap()
}

fn print(name: &str, seed: u64, compared: &Compared) {
    println!("{name}, seed {seed}:");
    report::rows(compared).iter().for_each(|row| println!("  {}", row.join("  ")));
}

/// Asserts the promises for a shipped cluster. `of_bound` is the longest makespan, in percent of the bound. All times
/// are simulated: they do not depend on a clock.
fn assert_promised(name: &str, seed: u64, of_bound: f64) {
    let mut scenario = read(name);
    scenario.seed = seed.try_into().unwrap();
    assert_eq!((scenario.jobs(), scenario.slots.get()), (2_000, 20));
    assert_eq!(scenario.queue.window.usize(), window::DEFAULT, "{name}: the default of a server");
    let compared = run(&scenario, &[Scheme::Fifo, Scheme::Predictive]).unwrap();
    print(name, seed, &compared);
    let (fifo, predictive) = (of(&compared, Scheme::Fifo), of(&compared, Scheme::Predictive));
    assert!(predictive.mean_wait_s <= 0.75 * fifo.mean_wait_s, "{name}, seed {seed}: at least 25% less");
    assert!(predictive.makespan_s < fifo.makespan_s, "{name}, seed {seed}: it ends later");
    assert!(
        predictive.makespan_s <= of_bound / 100.0 * compared.bound.makespan_s,
        "{name}, seed {seed}: {} of {}",
        predictive.makespan_s,
        compared.bound.makespan_s
    );
    let aging_s = (scenario.queue.aging_ticks.get() * scenario.queue.tick_ms.get()) as f64 / 1e3;
    assert!(
        predictive.longest_wait_s <= fifo.longest_wait_s + aging_s,
        "{name}, seed {seed}: a job waits too long"
    );
    assert_eq!(predictive.wasted_slot_s, 0.0, "{name}, seed {seed}: a slot is lent, or not taken");
    for outcome in &compared.outcomes {
        assert!(
            outcome.makespan_s >= compared.bound.makespan_s - 1e-6,
            "{name}: {} beats the bound",
            outcome.scheme
        );
        assert!(
            outcome.mean_wait_s >= compared.bound.mean_wait_s - 1e-6,
            "{name}: {} beats the bound",
            outcome.scheme
        );
    }
}

#[test]
fn a_backlog_waits_for_less() {
    [1, 2].into_iter().for_each(|seed| assert_promised("cluster", seed, 115.0));
}

#[test]
fn bursts_wait_for_less() {
    [1, 2].into_iter().for_each(|seed| assert_promised("cluster-bursts", seed, 115.0));
}

#[test]
fn a_hot_node_delays_no_other_job() {
    [1, 2].into_iter().for_each(|seed| assert_promised("cluster-hot-node", seed, 115.0));
}

#[test]
fn locks_found_out_later_are_waited_for_without_a_slot() {
    // No scheme can foresee these locks, so it takes longer.
    assert_promised("cluster-unknown", 1, 150.0);
}

/// A shipped cluster with fewer jobs, for tests that do not need many.
fn small(name: &str) -> Scenario {
    let mut scenario = read(name);
    for arrivals in &mut scenario.arrivals {
        arrivals.count = (arrivals.count.get() / 10).try_into().unwrap();
    }
    scenario
}

#[test]
fn every_scheme_ends_every_job_and_beats_no_bound() {
    for name in SHIPPED {
        for seed in 1..=5_u64 {
            let mut scenario = small(name);
            scenario.seed = seed.try_into().unwrap();
            scenario.queue.waiting_uses_slot = seed % 2 == 0;
            let compared = run(&scenario, &Scheme::ALL).unwrap();
            for outcome in &compared.outcomes {
                assert_eq!(outcome.waits_s.len(), compared.jobs);
                assert!(outcome.waits_s.iter().all(|wait| *wait >= 0.0));
                assert!(outcome.makespan_s >= compared.bound.makespan_s - 1e-6, "{name}: {}", outcome.scheme);
                assert!(
                    outcome.mean_wait_s >= compared.bound.mean_wait_s - 1e-6,
                    "{name}: {}",
                    outcome.scheme
                );
                let jobs: usize = outcome.tasks.iter().map(|task| task.jobs).sum();
                assert_eq!(jobs, compared.jobs);
            }
            let (wait, end) = (of(&compared, Scheme::BestWait), of(&compared, Scheme::BestMakespan));
            assert!(wait.mean_wait_s <= end.mean_wait_s && end.makespan_s <= wait.makespan_s);
        }
    }
}

#[test]
fn a_scenario_repeats_itself() {
    let scenario = small("cluster-unknown");
    let outcomes = |scenario: &Scenario| {
        let compared = run(scenario, &Scheme::ALL).unwrap();
        format!("{:?}", compared.outcomes)
    };
    assert_eq!(outcomes(&scenario), outcomes(&scenario));
    let mut other = scenario.clone();
    other.seed = 7.try_into().unwrap();
    assert_ne!(outcomes(&scenario), outcomes(&other));
}

#[test]
fn first_in_first_out_wastes_the_slots_of_waiting_jobs() {
    // Half of the jobs need one network exclusively, the others nothing. On two slots, two jobs of the first kind
    // block all others.
    let text = "name = 'x'\nslots = 2\narrivals = [{ count = 20 }]\n[cluster]\ngroups = 1\nnodes = 2\ninstances = 1000\nhot_percent = 0\n\
                [[tasks]]\nname = 'one'\nweight = 1\nrun_ms = 1000\nlocks = { network = { exclusive = ['n'] } }\n\
                [[tasks]]\nname = 'other'\nweight = 1\nrun_ms = 1000\n";
    let compared = run(&Scenario::parse(text).unwrap(), &[Scheme::Fifo, Scheme::Predictive]).unwrap();
    let (fifo, predictive) = (of(&compared, Scheme::Fifo), of(&compared, Scheme::Predictive));
    assert!(fifo.wasted_slot_s > 0.0 && fifo.waited_inside_s == fifo.wasted_slot_s, "{fifo:?}");
    assert_eq!((predictive.wasted_slot_s, predictive.waited_inside_s), (0.0, 0.0));
    assert_eq!((fifo.waits_s.len(), predictive.waits_s.len()), (20, 20));
}

#[test]
fn a_picture_has_a_line_per_scheme() {
    let compared = run(&small("cluster"), &Scheme::ALL).unwrap();
    let svg = plot::svg("a & b", &compared).unwrap();
    for part in ["a &amp; b", "predictive", "best_makespan", "jobs that waited no longer"] {
        assert!(svg.contains(part), "{part}");
    }
    assert!(svg.trim_end().ends_with("</svg>") && svg.len() < 80_000, "{}", svg.len());
}
