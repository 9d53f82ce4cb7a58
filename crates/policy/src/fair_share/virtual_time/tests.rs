//! What tenants gain by what they do, and lose by what is done to them.

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
    // What a job has cost counts, not what was expected.
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
fn who_comes_back_is_owed_nothing_and_gains_nothing() {
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
    // It stands where `a` was started the last time.
    ledger.arrive("b", 100);
    assert_eq!(ledger.tag("b", 100), 49.0 * S / 100.0);
    // Jobs that are deleted and added again change nothing, for who is ahead and for who is behind.
    for tenant in ["a", "b"] {
        let before = ledger.tag(tenant, 100);
        ledger.emptied(tenant);
        ledger.arrive(tenant, 100);
        ledger.arrive(tenant, 100);
        assert_eq!(ledger.tag(tenant, 100), before);
    }
    // What runs is charged, whether its job is deleted or not.
    ledger.start("b", 100, S);
    ledger.charge("b", 100, S / 2.0);
    ledger.end("b", S);
    assert_eq!(ledger.tag("b", 100), 49.5 * S / 100.0);
}

#[test]
fn who_has_all_it_wants_is_never_behind() {
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
        // Its start tag is virtual time, or beyond.
        assert!(ledger.tag("modest", 100) + S / 100.0 >= ledger.now());
    }
    // Nobody waits: all are even.
    ledger.emptied("greedy");
    ledger.start("rich", 1, S);
    ledger.charge("rich", 1, 1_000.0 * S);
    ledger.nobody_waits();
    assert_eq!(ledger.now(), ledger.tag("rich", 1));
    ledger.charge("modest", 100, S);
    assert!(ledger.tag("modest", 100) + S / 100.0 >= ledger.now());
}

#[test]
fn who_is_far_ahead_takes_virtual_time_along_only_in_its_turn() {
    let far_ahead = || {
        let mut ledger = ledger();
        // One with one share has a run that nothing can stop; one has all it wants, and one waits.
        ledger.start("far ahead", 1, S);
        ledger.charge("far ahead", 1, 500.0 * S);
        ledger.arrive("far ahead", 1);
        ledger.start("content", 100, S);
        ledger.arrive("waits", 200);
        ledger
    };
    let mut ledger = far_ahead();
    ledger.start_out_of_turn("far ahead", 1, S, ("waits", 200));
    ledger.charge("content", 100, S);
    assert_eq!((ledger.now(), ledger.tag("content", 100)), (0.0, S / 100.0));
    // Where that is virtual time already, or further, it moves by no less than it should.
    ledger.load("waits", 3.0 * S);
    ledger.start_out_of_turn("far ahead", 1, S, ("waits", 200));
    assert_eq!(ledger.now(), 3.0 * S);
    let mut ledger = far_ahead();
    ledger.emptied("waits");
    ledger.start("far ahead", 1, S);
    assert_eq!(ledger.now(), 501.0 * S);
}

#[test]
fn a_restart_forgets_what_was_saved_up_and_keeps_what_is_due() {
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
fn what_rotates_is_charged_up_to_a_bound_and_what_ends_by_itself_is_not() {
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
    // The first cycle is what it was started for; another three are too much.
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
fn what_churn_kept_from_a_tenant_outlasts_its_absence_but_not_a_time_in_which_nobody_waits() {
    let turn = 60.0 * S;
    let mut ledger = ledger();
    for tenant in ["holder", "visitor"] {
        ledger.arrive(tenant, 100);
    }
    for _ in 0..10 {
        ledger.start("holder", 100, turn);
    }
    // Entitled to five slots, and none of them given back: at most two cycles of that.
    let owed_after = |ledger: &mut Ledger, cycles| {
        (0..cycles).for_each(|_| ledger.cycle(1));
        ledger.emptied("visitor");
        ledger.advance_to(ledger.now() + 1_000.0 * S);
        let now = ledger.now();
        ledger.arrive("visitor", 100);
        (now - ledger.tag("visitor", 100)) * 100.0 / turn
    };
    assert!((owed_after(&mut ledger, 1) - 5.0).abs() < 1e-6);
    assert!((owed_after(&mut ledger, 9) - 10.0).abs() < 1e-6);
    // It has more than that for one cycle.
    (0..20).for_each(|_| ledger.start("visitor", 100, turn));
    let in_flight = 20.0;
    assert!((owed_after(&mut ledger, 1) - (5.0 + in_flight)).abs() < 1e-6);
    (0..20).for_each(|_| ledger.end("visitor", turn));
    assert!((owed_after(&mut ledger, 0) - 5.0).abs() < 1e-6);
    for tenant in ["holder", "visitor"] {
        ledger.emptied(tenant);
    }
    ledger.nobody_waits();
    assert!(owed_after(&mut ledger, 0).abs() < 1e-6);
}

#[test]
fn more_shares_do_not_multiply_what_is_owed() {
    let mut ledger = ledger();
    ledger.arrive("a", 1);
    ledger.advance_to(30.0 * S);
    // Half a minute is owed, with 1000 shares as with one.
    assert_eq!(ledger.tag("a", 1), 0.0);
    assert_eq!(ledger.tag("a", 1_000), 30.0 * S - 30.0 * S / 1_000.0);
    ledger.start("a", 1_000, S);
    assert_eq!(ledger.tag("a", 1_000), 30.0 * S - 30.0 * S / 1_000.0);
    // Fewer again: nothing comes back.
    assert_eq!(ledger.tag("a", 1), 30.0 * S - 30.0 * S / 1_000.0);
}

#[test]
fn a_surplus_that_churn_cannot_take_back_counts() {
    let pace = Pace { per_cycle: 10.0 * S / 100.0, max_churn: 2 };
    // Entitled to ten jobs of a second: up to twelve, nothing more than what is in flight.
    for jobs in [1.0, 10.0, 12.0] {
        assert_eq!(pace.position(7.0, jobs * S, 100, S), 7.0 + jobs * S / 100.0);
    }
    // A surplus of six: four will run once more, then two.
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
fn what_others_say_is_counted_once() {
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
fn costs_are_learnt_per_tenant_and_of_a_stranger_as_much_as_of_the_type() {
    let mut costs = Expectation::default();
    assert_eq!(costs.of("a"), UNKNOWN_COST_US);
    costs.learn("a", 10.0 * S);
    costs.learn("b", 2.0 * S);
    assert_eq!((costs.of("a"), costs.of("b"), costs.of("stranger")), (10.0 * S, 2.0 * S, 6.0 * S));
    // The first ones count the same; later ones for a part that stays.
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

proptest! {
    /// Tags only grow, whatever happens: so the highest of several workers' is the newest.
    #[test]
    fn prop_tags_never_shrink(events in prop::collection::vec((0..9_u8, 0..3_usize, 1..1_000_u32, 0.0..1e9_f64), 1..60)) {
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
                3 => ledger.end(name, us),
                4 => _ = ledger.charge(name, shares, us),
                5 => _ = ledger.charge_rotating(name, shares, us, us),
                6 => ledger.nobody_waits(),
                7 => ledger.cycle(10),
                _ => ledger.resume(name, shares, us),
            }
            for (name, before) in names.iter().zip(&mut before) {
                let tag = ledger.tag(name, 1);
                prop_assert!(tag.is_finite() && tag >= *before - tag.abs() * 1e-12);
                *before = tag;
            }
            prop_assert!(ledger.now().is_finite() && ledger.now() >= now);
            now = ledger.now();
        }
    }
}
