//! Every shipped scenario is read and runs to its end, and has a comment that says what it shows.

use std::fs;
use std::path::Path;

use turnwise_simulate::{Described, Policy, Scenario, plot, report, run};

/// Scenarios with more jobs run only with their own policy: all policies would take too long without optimisation.
const JOBS_FOR_ALL: u64 = 9_000;

fn shipped() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .map(|file| {
            (file.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(file).unwrap())
        })
        .collect()
}

#[test]
fn every_shipped_scenario_runs_to_its_end() {
    let shipped = shipped();
    assert!(shipped.len() >= 15, "{shipped:?}");
    for (name, text) in shipped {
        assert!(name.ends_with(".toml") && text.starts_with("# "), "{name}: a comment says what it shows");
        // Scenarios about locks have tests of their own.
        let Described::Tenants(scenario) =
            Described::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
        else {
            continue;
        };
        let outcome = run(&scenario, scenario.policy).unwrap();
        let jobs: u64 = outcome.tenants.iter().map(|tenant| tenant.jobs).sum();
        let others =
            Policy::ALL.into_iter().filter(|policy| *policy != scenario.policy && jobs <= JOBS_FOR_ALL);
        let mut outcomes = vec![outcome];
        outcomes.extend(others.map(|policy| run(&scenario, policy).unwrap()));
        for outcome in &outcomes {
            println!("{name}: {}: {}", outcome.policy, report::figures(outcome));
            assert_eq!(
                outcome.idle_slot_passes, 0,
                "{name}: {}: a slot was free while a job waited",
                outcome.policy
            );
            let (got, possible): (f64, f64) =
                outcome.tenants.iter().fold((0.0, 0.0), |sum, t| (sum.0 + t.received, sum.1 + t.entitled));
            assert!((got - possible).abs() <= 1e-6 * possible.max(1.0), "{name}: {got} of {possible}");
        }
        let svg = plot::svg(&scenario.name, &outcomes).unwrap();
        assert!(svg.len() < 100_000 * outcomes.len(), "{name}: {} bytes", svg.len());
    }
}

#[test]
fn a_scenario_repeats_itself() {
    let (_, text) = shipped().into_iter().find(|(name, _)| name == "bursts.toml").unwrap();
    let scenario = Scenario::parse(&text).unwrap();
    let received = || -> Vec<f64> {
        let outcome = run(&scenario, Policy::VirtualTime).unwrap();
        outcome.tenants.iter().map(|tenant| tenant.received).collect()
    };
    assert_eq!(received(), received());
    let other = Scenario::parse(&text.replace("seed = 3", "seed = 4")).unwrap();
    let other: Vec<f64> =
        run(&other, Policy::VirtualTime).unwrap().tenants.iter().map(|tenant| tenant.received).collect();
    assert_ne!(received(), other);
}
