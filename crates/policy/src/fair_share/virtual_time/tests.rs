//! How the account of a tenant changes with its own events and with those of other tenants.

use proptest::prelude::*;

use super::*;

const S: f64 = 1e6;

fn ledger() -> Ledger {
    Ledger::default()
}

#[test]
fn the_tenant_that_has_received_least_for_its_shares_is_next() {
    let mut ledger = ledger();
    ledger.arrive("high", 200);
    ledger.arrive("low", 50);
    let mut started = Vec::new();
    for _ in 0..10 {
        let next = |tenant, shares| ledger.next(tenant, shares, S);
        let (tenant, shares) = if next("high", 200) <= next("low", 50) { ("high", 200) } else { ("low", 50) };
        ledger.start(tenant, shares, S);
        started.push(tenant);
    }
    assert_eq!(started.iter().filter(|tenant| **tenant == "high").count(), 8);
    assert_eq!(started[..3], ["high", "high", "low"]);
    // The real cost of a job counts, not the expected one.
    for _ in 0..8 {
        ledger.end("high", S);
        ledger.charge("high", 200, S / 4.0);
    }
    for _ in 0..2 {
        ledger.end("low", S);
        ledger.charge("low", 50, S);
    }
    assert_eq!(ledger.in_flight_us("high"), 0.0);
    assert_eq!((ledger.tag("high", 200), ledger.tag("low", 50)), (10_000.0, 40_000.0));
}

#[test]
fn a_tenant_that_returns_has_no_deficit_and_gains_nothing() {
    let mut ledger = ledger();
    for tenant in ["a", "b"] {
        ledger.arrive(tenant, 100);
    }
    ledger.emptied("b");
    for _ in 0..50 {
        ledger.start("a", 100, S);
        ledger.charge("a", 100, S);
        ledger.end("a", S);
    }
    // Its tag is where `a` started its last job.
    ledger.arrive("b", 100);
    assert_eq!(ledger.tag("b", 100), 49.0 * S / 100.0);
    // Deleting jobs and adding them again changes nothing, neither for a tenant ahead nor for one behind.
    for tenant in ["a", "b"] {
        let before = ledger.tag(tenant, 100);
        ledger.emptied(tenant);
        ledger.arrive(tenant, 100);
        ledger.arrive(tenant, 100);
        assert_eq!(ledger.tag(tenant, 100), before);
    }
    // Run time is charged whether or not its job is deleted.
    ledger.start("b", 100, S);
    ledger.charge("b", 100, S / 2.0);
    ledger.end("b", S);
    assert_eq!(ledger.tag("b", 100), 49.5 * S / 100.0);
}

#[test]
fn a_tenant_whose_jobs_all_run_is_never_behind() {
    let mut ledger = ledger();
    ledger.start("modest", 100, S);
    ledger.arrive("greedy", 100);
    for _ in 0..20 {
        for _ in 0..10 {
            ledger.start("greedy", 100, S);
        }
        for _ in 0..10 {
            ledger.charge("greedy", 100, S);
            ledger.end("greedy", S);
        }
        ledger.charge("modest", 100, S);
        // Its start tag is virtual time, or above.
        assert!(ledger.tag("modest", 100) + S / 100.0 >= ledger.now());
    }
    // While no job waits, all tenants are even.
    ledger.emptied("greedy");
    ledger.start("rich", 1, S);
    ledger.charge("rich", 1, 1_000.0 * S);
    ledger.nobody_waits();
    assert_eq!(ledger.now(), ledger.tag("rich", 1));
    ledger.charge("modest", 100, S);
    assert!(ledger.tag("modest", 100) + S / 100.0 >= ledger.now());
}

#[test]
fn a_tenant_far_ahead_advances_virtual_time_only_in_its_turn() {
    let far_ahead = || {
        let mut ledger = ledger();
        // A tenant with one share has a run that nothing can stop. All jobs of a second tenant run, and a third one
        // waits.
        ledger.start("far ahead", 1, S);
        ledger.charge("far ahead", 1, 500.0 * S);
        ledger.arrive("far ahead", 1);
        ledger.start("all running", 100, S);
        ledger.arrive("waits", 200);
        ledger
    };
    let mut ledger = far_ahead();
    ledger.start_out_of_turn("far ahead", 1, S, ("waits", 200));
    ledger.charge("all running", 100, S);
    assert_eq!((ledger.now(), ledger.tag("all running", 100)), (0.0, S / 100.0));
    // Where the start tag of the tenant in turn is higher, virtual time advances to it, and no less than it should.
    ledger.load("waits", 3.0 * S);
    ledger.start_out_of_turn("far ahead", 1, S, ("waits", 200));
    assert_eq!(ledger.now(), 3.0 * S);
    let mut ledger = far_ahead();
    ledger.emptied("waits");
    ledger.start("far ahead", 1, S);
    assert_eq!(ledger.now(), 501.0 * S);
}

#[test]
fn a_restart_keeps_a_deficit_of_one_run_at_most() {
    let mut ledger = ledger();
    ledger.advance_to(1_000.0 * S);
    ledger.load("long ago", 1.0);
    ledger.load("due", 1_000.0 * S - 60.0 * S / 100.0 / 2.0);
    for tenant in ["long ago", "due"] {
        ledger.resume(tenant, 100, 60.0 * S);
    }
    assert_eq!(ledger.tag("long ago", 100), 1_000.0 * S - 0.6 * S);
    assert_eq!(ledger.tag("due", 100), 1_000.0 * S - 0.3 * S);
}

#[test]
fn rotating_jobs_are_charged_up_to_a_bound_and_other_jobs_in_full() {
    let mut ledger = ledger();
    ledger.arrive("one share", 1);
    for _ in 0..75 {
        ledger.start("one share", 1, 60.0 * S);
    }
    ledger.emptied("one share");
    ledger.nobody_waits();
    ledger.arrive("one share", 1);
    ledger.arrive("thousand", 1_000);
    ledger.cycle(10);
    let now = ledger.now();
    // The first cycle is the turn for which the jobs started. Charges for three more cycles exceed the bound.
    for _ in 0..4 * 75 {
        ledger.charge_rotating("one share", 1, 60.0 * S, 60.0 * S);
    }
    let per_cycle = 75.0 * 60.0 * S / 1_001.0;
    let bound = now + 60.0 * S + DEBT_CYCLES * per_cycle;
    assert!((ledger.tag("one share", 1) - bound).abs() < 1.0);
    assert_eq!(ledger.charge_rotating("one share", 1, 60.0 * S, 60.0 * S), 0.0);
    assert_eq!(ledger.charge("one share", 1, 60.0 * S), 60.0 * S);
}

#[test]
fn what_churn_withheld_outlasts_an_absence_but_not_a_time_without_waiting_jobs() {
    let turn = 60.0 * S;
    let mut ledger = ledger();
    for tenant in ["holder", "visitor"] {
        ledger.arrive(tenant, 100);
    }
    for _ in 0..10 {
        ledger.start("holder", 100, turn);
    }
    // It is entitled to five slots, and gets none of them: that stays due, for at most two cycles.
    let due_after = |ledger: &mut Ledger, cycles| {
        (0..cycles).for_each(|_| ledger.cycle(1));
        ledger.emptied("visitor");
        ledger.advance_to(ledger.now() + 1_000.0 * S);
        let now = ledger.now();
        ledger.arrive("visitor", 100);
        (now - ledger.tag("visitor", 100)) * 100.0 / turn
    };
    assert!((due_after(&mut ledger, 1) - 5.0).abs() < 1e-6);
    assert!((due_after(&mut ledger, 9) - 10.0).abs() < 1e-6);
    // It now has more than its entitlement, for one cycle.
    (0..20).for_each(|_| ledger.start("visitor", 100, turn));
    let in_flight = 20.0;
    assert!((due_after(&mut ledger, 1) - (5.0 + in_flight)).abs() < 1e-6);
    (0..20).for_each(|_| _ = ledger.end("visitor", turn));
    assert!((due_after(&mut ledger, 0) - 5.0).abs() < 1e-6);
    for tenant in ["holder", "visitor"] {
        ledger.emptied(tenant);
    }
    ledger.nobody_waits();
    assert!(due_after(&mut ledger, 0).abs() < 1e-6);
}

#[test]
fn more_shares_do_not_multiply_a_deficit() {
    let mut ledger = ledger();
    ledger.arrive("a", 1);
    ledger.advance_to(30.0 * S);
    // The deficit is half a minute, with 1000 shares as with one.
    assert_eq!(ledger.tag("a", 1), 0.0);
    assert_eq!(ledger.tag("a", 1_000), 30.0 * S - 30.0 * S / 1_000.0);
    ledger.start("a", 1_000, S);
    assert_eq!(ledger.tag("a", 1_000), 30.0 * S - 30.0 * S / 1_000.0);
    // With fewer shares again, the old deficit does not come back.
    assert_eq!(ledger.tag("a", 1), 30.0 * S - 30.0 * S / 1_000.0);
}

#[test]
fn a_surplus_that_churn_cannot_take_back_counts() {
    let pace = Pace { per_cycle: 10.0 * S / 100.0, max_churn: 2 };
    // Entitled to ten jobs of a second: up to twelve, only the cost in flight counts.
    for jobs in [1.0, 10.0, 12.0] {
        assert_eq!(pace.position(7.0, jobs * S, 100, S), 7.0 + jobs * S / 100.0);
    }
    // A surplus of six: four of these jobs run once more, then two.
    assert_eq!(pace.position(0.0, 16.0 * S, 100, S), (16.0 + 6.0) * S / 100.0);
    assert_eq!(Pace::default().position(0.0, 16.0 * S, 100, S), 16.0 * S / 100.0);
}

#[test]
fn a_tenant_is_forgotten_when_that_changes_nothing() {
    let mut ledger = ledger();
    assert!(ledger.is_forgettable("unknown"));
    ledger.arrive("a", 100);
    assert!(!ledger.is_forgettable("a"), "it waits");
    ledger.start("a", 100, S);
    ledger.emptied("a");
    assert!(!ledger.is_forgettable("a"), "it runs");
    ledger.charge("a", 100, S);
    ledger.end("a", S);
    assert!(!ledger.is_forgettable("a"), "it is ahead");
    ledger.advance_to(S / 100.0);
    assert!(ledger.is_forgettable("a"));
    ledger.forget("a");
    assert_eq!(ledger.tenants().count(), 0);
    ledger.arrive("a", 100);
    assert_eq!(ledger.tag("a", 100), S / 100.0);
}

#[test]
fn charges_of_other_workers_are_counted_once() {
    let (mut here, mut there) = (ledger(), ledger());
    for ledger in [&mut here, &mut there] {
        ledger.arrive("a", 100);
        ledger.start("a", 100, S);
    }
    let charged_here = here.charge("a", 100, 3.0 * S);
    let charged_there = there.charge("a", 100, 5.0 * S);
    for (ledger, charged, tag) in
        [(&mut here, charged_there, 5.0 * S / 100.0), (&mut there, charged_here, 3.0 * S / 100.0)]
    {
        ledger.charge_elsewhere("a", charged);
        ledger.load("a", tag);
        ledger.in_flight_elsewhere("a", S);
        assert_eq!(ledger.tag("a", 100), 8.0 * S / 100.0);
        assert_eq!((ledger.in_flight_here_us("a"), ledger.in_flight_us("a")), (S, 2.0 * S));
    }
}

#[test]
fn costs_are_learnt_per_tenant_and_an_unknown_tenant_has_the_cost_of_the_type() {
    let mut costs = Expectation::default();
    assert_eq!(costs.of("a"), UNKNOWN_COST_US);
    costs.learn("a", 10.0 * S);
    costs.learn("b", 2.0 * S);
    assert_eq!((costs.of("a"), costs.of("b"), costs.of("unknown")), (10.0 * S, 2.0 * S, 6.0 * S));
    // The first jobs count the same. Later, each job has a fixed weight.
    costs.learn("b", 4.0 * S);
    assert_eq!(costs.of("b"), 3.0 * S);
    for _ in 0..400 {
        costs.learn("a", 0.0);
    }
    assert!(costs.of("a") < LEAST_COST_US * 1.2);
    assert!(costs.of("a") >= LEAST_COST_US);
    costs.forget("a");
    assert_eq!(costs.known_us("a"), None);
    costs.load("c", 5.0 * S);
    assert_eq!(costs.known_us("c"), Some(5.0 * S));
}

#[test]
fn costs_of_tasks_are_learnt_after_some_runs_and_are_bounded() {
    let mut costs = Expectation::default();
    for _ in 0..2 {
        costs.learn_task("thumbnail", 2.0 * S);
    }
    assert_eq!(costs.of_task("thumbnail"), None);
    costs.learn_task("thumbnail", 5.0 * S);
    assert_eq!(costs.of_task("thumbnail"), Some(3.0 * S));
    costs.load_task("video", 90.0 * S);
    assert_eq!(costs.tasks().collect::<Vec<_>>(), [("thumbnail", 3.0 * S), ("video", 90.0 * S)]);
    // What tasks cost is nothing that tenants cost.
    assert!(!costs.knows_type());
    // Tasks that clients invent replace each other, and not those that run.
    for n in 0..2 * MAX_TASKS {
        (0..3).for_each(|_| costs.learn_task(&format!("invented-{n}"), S));
        costs.learn_task("thumbnail", 3.0 * S);
    }
    assert_eq!((costs.tasks().count(), costs.of_task("video")), (MAX_TASKS, None));
    assert_eq!(costs.of_task("thumbnail"), Some(3.0 * S));
    // What others have learnt replaces none.
    costs.load_task("video", 90.0 * S);
    assert_eq!((costs.tasks().count(), costs.of_task("video")), (MAX_TASKS, None));
}

proptest! {
    /// Virtual time falls only at the end of a job, and tags shrink only if it falls. So the highest of several workers' tags
    /// is the newest, or it holds a tenant back for a cost that was expected too high.
    #[test]
    fn prop_tags_shrink_only_with_virtual_time(events in prop::collection::vec((0..9_u8, 0..3_usize, 1..1_000_u32, 0.0..1e9_f64), 1..60)) {
        let names = ["a", "b", "c"];
        let mut ledger = Ledger::default();
        let mut before = [0.0; 3];
        let mut now = 0.0;
        for (event, tenant, shares, us) in events {
            let name = names[tenant];
            match event {
                0 => ledger.arrive(name, shares),
                1 => ledger.emptied(name),
                2 => ledger.start(name, shares, us),
                3 => _ = ledger.end(name, us),
                4 => _ = ledger.charge(name, shares, us),
                5 => _ = ledger.charge_rotating(name, shares, us, us),
                6 => ledger.nobody_waits(),
                7 => ledger.cycle(10),
                _ => ledger.resume(name, shares, us),
            }
            let falls = ledger.now() < now;
            prop_assert!(ledger.now().is_finite() && (!falls || event == 3));
            now = ledger.now();
            for (name, before) in names.iter().zip(&mut before) {
                let tag = ledger.tag(name, 1);
                prop_assert!(tag.is_finite() && (falls || tag >= *before - tag.abs() * 1e-12));
                *before = tag;
            }
        }
    }
}

#[test]
fn a_tenant_that_comes_does_not_wait_for_costs_that_were_expected_too_high() {
    let mut ledger = Ledger::default();
    ledger.arrive("big", 1);
    // Each of ten jobs is expected to run for an hour.
    (0..10).for_each(|_| ledger.start("big", 1, 3600e6));
    ledger.arrive("small", 1);
    assert_eq!(ledger.tag("small", 1), ledger.now());
    // They run for a second.
    let changed = (0..10).filter(|_| {
        ledger.expect("big", 3600e6, 3599e6);
        ledger.charge("big", 1, 1e6);
        ledger.end("big", 3599e6)
    });
    // When the first one ends, as much is still expected as when the last one started.
    assert_eq!(changed.count(), 9);
    assert_eq!((ledger.tag("big", 1), ledger.tag("small", 1), ledger.now()), (10e6, 10e6, 10e6));
    assert!(ledger.next("small", 1, 1e6) <= ledger.next("big", 1, 1e6));
}

#[test]
fn a_tenant_that_has_started_meanwhile_does_not_wait_either() {
    let mut ledger = Ledger::default();
    ledger.arrive("big", 1);
    (0..10).for_each(|_| ledger.start("big", 1, 3600e6));
    // The first job ends. Of two tenants that come, one gets its slot.
    ledger.charge("big", 1, 1e6);
    ledger.end("big", 3600e6);
    ledger.arrive("lucky", 1);
    ledger.arrive("small", 1);
    ledger.start("lucky", 1, 3600e6);
    (0..9).for_each(|_| {
        ledger.charge("big", 1, 1e6);
        ledger.end("big", 3600e6);
    });
    assert_eq!((ledger.tag("big", 1), ledger.now()), (10e6, 10e6));
    assert_eq!((ledger.tag("small", 1), ledger.tag("lucky", 1)), (10e6, 10e6));
}

#[test]
fn a_lift_to_what_tenants_have_received_stays() {
    let mut ledger = Ledger::default();
    ledger.arrive("big", 1);
    (0..10).for_each(|_| {
        ledger.start("big", 1, 1e6);
        ledger.charge("big", 1, 1e6);
        ledger.end("big", 1e6);
    });
    assert_eq!(ledger.now(), 9e6);
    ledger.arrive("small", 1);
    ledger.start("big", 1, 1e6);
    assert_eq!((ledger.now(), ledger.tag("small", 1)), (10e6, 9e6));
    // The job of `big` ends at once: it has still received what it received before `small` came.
    assert!(!ledger.end("big", 1e6));
    assert_eq!((ledger.now(), ledger.tag("small", 1)), (10e6, 9e6));
    // A tenant that has ended all its jobs and is forgotten leaves virtual time where it is.
    ledger.emptied("big");
    assert!(ledger.is_forgettable("big"));
    ledger.forget("big");
    ledger.arrive("other", 1);
    assert_eq!(ledger.tag("other", 1), 10e6);
}

#[test]
fn virtual_time_falls_when_jobs_at_other_workers_were_expected_to_cost_too_much() {
    let mut ledger = Ledger::default();
    ledger.arrive("large", 100);
    ledger.in_flight_elsewhere("large", 16.0 * 600.0 * S);
    ledger.start("large", 100, 600.0 * S);
    ledger.arrive("small", 100);
    assert_eq!((ledger.now(), ledger.tag("small", 100)), (96.0 * S, 96.0 * S));
    // The jobs elsewhere have ended after a second each. One still runs here.
    ledger.charge_elsewhere("large", 16.0 * S / 100.0);
    assert!(ledger.in_flight_elsewhere("large", 0.0));
    assert!(ledger.settle(["large", "unknown"]));
    let now = 6.16 * S;
    assert!((ledger.now() - now).abs() < 1.0 && (ledger.tag("small", 100) - now).abs() < 1.0);
    assert!(!ledger.in_flight_elsewhere("large", 0.0) && !ledger.settle(["large"]));
}

#[test]
fn what_is_certain_contains_charges_and_no_estimates() {
    let mut ledger = Ledger::default();
    let certain = |ledger: &Ledger, tenant: &str| {
        let now = ledger.certain_now();
        (now, ledger.certain_tag(tenant, 100, now))
    };
    // Tenants come one after the other, and each is raised to what the one before it has received.
    for (nth, tenant) in ["a", "b", "c"].into_iter().enumerate() {
        ledger.arrive(tenant, 100);
        ledger.start(tenant, 100, 100.0 * S);
        ledger.charge(tenant, 100, 100.0 * S);
        ledger.end(tenant, 100.0 * S);
        ledger.start(tenant, 100, 100.0 * S);
        ledger.emptied(tenant);
        let received = (nth + 1) as f64 * S;
        assert_eq!((ledger.now(), certain(&ledger, tenant)), (received, (received, received)));
    }
    // The third one starts more, which will cost little.
    ledger.arrive("c", 100);
    ledger.start("c", 100, 900.0 * S);
    ledger.start("c", 100, 900.0 * S);
    ledger.arrive("d", 100);
    assert_eq!((ledger.now(), ledger.tag("d", 100)), (13.0 * S, 13.0 * S));
    assert_eq!(certain(&ledger, "d"), (3.0 * S, 3.0 * S));
    assert_eq!(certain(&ledger, "c"), (3.0 * S, 3.0 * S));
}
