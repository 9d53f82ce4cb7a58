//! Jobs that run to their end. Only the choice for each free slot can be fair, because no running job is stopped.

use turnwise_simulate::{Policy, Results, Scenario, TenantResults, run};

fn read(name: &str) -> Scenario {
    let file = format!("{}/../../examples/scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    Scenario::parse(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn by(policy: Policy, scenario: &Scenario) -> Results {
    let outcome = run(scenario, policy).unwrap();
    for TenantResults { name, entitled, received, longest_wait_cycles, mean_wait_cycles, .. } in
        &outcome.tenants
    {
        println!(
            "{:24} {policy:12} {name:24} received/entitled {:.3}  mean wait {:8.3} s  longest {:8.3} s",
            scenario.name,
            received / entitled,
            mean_wait_cycles * scenario.interval_ms.get() as f64 / 1e3,
            longest_wait_cycles * scenario.interval_ms.get() as f64 / 1e3,
        );
    }
    assert_eq!(outcome.idle_slot_passes, 0, "a slot was free while a job waited");
    outcome
}

fn assert_fair(outcome: &Results) {
    assert!(outcome.jain() >= 0.99, "{}", outcome.jain());
    assert!(outcome.largest_deviation() <= 0.02, "{}", outcome.largest_deviation());
}

#[test]
fn one_job_waits_for_one_running_job_of_a_million_at_most() {
    let scenario = read("million-against-one");
    let outcome = by(Policy::VirtualTime, &scenario);
    // A running job lasts at most another 1.5 s; a cycle is one second here.
    assert_eq!(outcome.tenants[1].completed, 1);
    assert!(outcome.tenants[1].longest_wait_cycles <= 1.5, "{:?}", outcome.tenants[1]);
    // It starts before all others, whenever it comes: with fifty slots, some job ends every 20 ms.
    assert!(outcome.tenants[1].longest_wait_cycles <= 0.2, "{:?}", outcome.tenants[1]);
}

#[test]
fn with_first_in_first_out_one_job_waits_for_a_million() {
    let mut scenario = read("million-against-one");
    scenario.cycles = 70.try_into().unwrap();
    let outcome = by(Policy::Fifo, &scenario);
    assert_eq!((outcome.tenants[1].starts, outcome.tenants[1].still_waiting), (0, 1));
}

#[test]
fn a_stream_of_short_jobs_is_shared_by_shares() {
    assert_fair(&by(Policy::VirtualTime, &read("short-jobs")));
}

#[test]
fn unexpected_run_times_change_no_share() {
    let scenario = read("wrong-expectations");
    assert_fair(&by(Policy::VirtualTime, &scenario));
    // In the order of arrival, the first tenant gets all slots.
    let first = by(Policy::Fifo, &scenario);
    assert!(first.jain() < 0.6, "{}", first.jain());
}

#[test]
fn a_tenant_that_comes_does_not_wait_for_what_shorter_jobs_were_expected_to_cost() {
    let outcome = by(Policy::VirtualTime, &read("shorter-jobs"));
    let small = &outcome.tenants[1];
    // Some job of the large tenant ends every 20 ms on average, but many end together.
    assert!(small.starts > 1_300 && small.longest_wait_cycles <= 1.0, "{small:?}");
}

#[test]
fn bursts_of_one_tenant_hardly_delay_a_quiet_one() {
    for seed in [3, 4, 5] {
        let mut scenario = read("bursts");
        scenario.seed = seed.try_into().unwrap();
        let outcome = by(Policy::VirtualTime, &scenario);
        let quiet = &outcome.tenants[0];
        // Some job ends every 40 ms.
        assert!(quiet.mean_wait_cycles <= 0.04, "{quiet:?}");
        assert!(quiet.longest_wait_cycles <= 1.5, "{quiet:?}");
        let first = by(Policy::Fifo, &scenario);
        assert!(first.tenants[0].longest_wait_cycles >= 30.0);
    }
}

#[test]
fn a_tenant_of_one_shot_jobs_and_one_of_continuous_jobs_have_the_same() {
    assert_fair(&by(Policy::VirtualTime, &read("one-shots-and-continuous")));
}
