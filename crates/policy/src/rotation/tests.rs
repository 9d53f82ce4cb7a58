//! The decisions of cycles and of idle jobs, in examples and for random views.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::schedule::{self, schedule};

const MINUTE_US: i64 = 60_000_000;
const NOW_US: i64 = 1_000 * MINUTE_US;

/// What stops in a view.
fn stop(view: View<'_>, rules: &Rules, now_us: i64) -> Vec<Stop> {
    let rules = schedule::Rules { rotation: *rules, ..schedule::Rules::default() };
    schedule(&schedule::View::preempting(view), &rules, now_us).stop
}

/// What stops at a cycle of the only worker.
fn rotate(
    scheme: Scheme,
    tenants: &[Tenant],
    running: &[Running],
    waiting: &[Waiting],
    rules: &Rules,
    now_us: i64,
) -> Vec<Stop> {
    stop(View::cycle(scheme, tenants, running, waiting), rules, now_us)
}

/// What stops between two cycles.
fn yield_idle(
    scheme: Scheme,
    tenants: &[Tenant],
    running: &[Running],
    waiting: &[Waiting],
    rules: &Rules,
    now_us: i64,
) -> Vec<Stop> {
    let view = View { moment: Moment::Idle, ..View::cycle(scheme, tenants, running, waiting) };
    stop(view, rules, now_us)
}

fn rules(max_jobs: usize, max_churn: usize) -> Rules {
    Rules { max_jobs, max_churn, interval_us: MINUTE_US, idle_turn_us: 10_000_000 }
}

fn known(per_cycle: f64, max_churn: usize) -> Scheme {
    Scheme::VirtualTime(Pace { per_cycle, max_churn })
}

/// By virtual time, without a limit of its pace.
fn plain() -> Scheme {
    known(f64::INFINITY, 0)
}

fn tenant(tag: f64, running: usize) -> Tenant {
    let expected_us = MINUTE_US as f64;
    Tenant { tag, in_flight_us: running as f64 * expected_us, shares: 100, expected_us }
}

/// A continuous job, started this many minutes ago.
fn running(job: usize, tenant: usize, minutes: i64) -> Running {
    let started_us = NOW_US - minutes * MINUTE_US;
    Running { job, tenant, key: 0.0, started_us, priority: 0, continuous: true, idle: false, locks: false }
}

fn waiting(tenant: usize, minutes: i64) -> Waiting {
    Waiting { tenant, key: 0.0, priority: 0, not_started_since_us: NOW_US - minutes * MINUTE_US }
}

fn stops(stops: &[Stop]) -> Vec<(usize, Why)> {
    stops.iter().map(|stop| (stop.job, stop.why)).collect()
}

#[test]
fn jobs_are_preempted_for_those_of_a_tenant_with_a_larger_deficit() {
    // Four slots, all of one tenant; one that has received as little as the other one, and has none.
    let tenants = [tenant(0.0, 4), tenant(0.0, 0)];
    let four = [running(0, 0, 5), running(1, 0, 9), running(2, 0, 7), running(3, 0, 8)];
    let three = [waiting(1, 3), waiting(1, 2), waiting(1, 1)];
    let decided = rotate(plain(), &tenants, &four, &three, &rules(4, 10), NOW_US);
    // Two each: no third one, and the longest running stop.
    assert_eq!(stops(&decided), [(1, Why::LargerDeficit), (3, Why::LargerDeficit)]);
    // As many as churn allows.
    let decided = rotate(plain(), &tenants, &four, &three, &rules(4, 1), NOW_US);
    assert_eq!(stops(&decided), [(1, Why::LargerDeficit)]);
}

#[test]
fn no_job_is_preempted_for_a_tenant_whose_deficit_is_smaller_or_equal() {
    let four = [running(0, 0, 9), running(1, 0, 9), running(2, 1, 9), running(3, 1, 9)];
    for ahead in [0.0, 1e6] {
        // Whoever waits has had as much as the others, or more.
        let tenants = [tenant(0.0, 2), tenant(0.0, 2), tenant(600_000.0 + ahead, 0)];
        let decided = rotate(plain(), &tenants, &four, &[waiting(2, 500)], &rules(4, 10), NOW_US);
        assert_eq!(stops(&decided), []);
    }
}

#[test]
fn what_is_left_of_churn_rotates_within_tenants() {
    let tenants = [tenant(0.0, 2), tenant(0.0, 2)];
    let four = [running(0, 0, 4), running(1, 0, 6), running(2, 1, 5), running(3, 1, 7)];
    let all = [waiting(0, 20), waiting(0, 5), waiting(1, 30), waiting(1, 10)];
    let rotated = |churn| stops(&rotate(plain(), &tenants, &four, &all, &rules(4, churn), NOW_US));
    // Whoever has not been started for the longest time comes first.
    let expected = [(3, Why::LongestRunning), (1, Why::LongestRunning), (2, Why::LongestRunning)];
    assert_eq!(rotated(3), expected);
    assert_eq!(rotated(1), expected[..1]);
    assert_eq!(rotated(0), []);
    // One that was started in the second half of the cycle has hardly begun.
    let mut fresh = four;
    fresh.iter_mut().for_each(|job| job.started_us = NOW_US - MINUTE_US / 2 + 1);
    assert_eq!(rotate(plain(), &tenants, &fresh, &all, &rules(4, 3), NOW_US), []);
}

#[test]
fn half_of_churn_is_for_turns_within_tenants() {
    // One tenant is owed six slots; the other one's jobs have waited for long.
    let tenants = [tenant(0.0, 12), tenant(0.0, 0)];
    let twelve: Vec<Running> = (0..12).map(|job| running(job, 0, 20)).collect();
    let all: Vec<Waiting> = (0..9).map(|n| waiting(n % 2, 50)).collect();
    let count = |churn, cycle, why| {
        let decided = rotate(plain(), &tenants, &twelve, &all, &rules(12, churn), NOW_US + cycle * MINUTE_US);
        decided.iter().filter(|stop| stop.why == why).count()
    };
    let counts =
        |churn, cycle| (count(churn, cycle, Why::LargerDeficit), count(churn, cycle, Why::LongestRunning));
    for (churn, halves) in [(4, (2, 2)), (10, (4, 5)), (7, (4, 3)), (1, (1, 0))] {
        assert_eq!(counts(churn, 0), halves);
    }
    // The odd job goes to one half, then to the other.
    assert_eq!((counts(7, 1), counts(1, 1)), ((3, 4), (0, 1)));
    // One half uses what the other half leaves.
    let one_tenant: Vec<Waiting> = (0..4).map(|_| waiting(1, 50)).collect();
    let decided = rotate(plain(), &tenants, &twelve, &one_tenant, &rules(12, 4), NOW_US);
    assert!(decided.iter().all(|stop| stop.why == Why::LargerDeficit) && decided.len() == 4);
}

#[test]
fn free_slots_come_first() {
    let tenants = [tenant(0.0, 3), tenant(0.0, 0)];
    let three = [running(0, 0, 9), running(1, 0, 8), running(2, 0, 7)];
    let decided = rotate(plain(), &tenants, &three, &[waiting(1, 3)], &rules(4, 10), NOW_US);
    assert_eq!(stops(&decided), []);
    let decided = rotate(plain(), &tenants, &three, &[waiting(1, 3), waiting(1, 3)], &rules(4, 10), NOW_US);
    assert_eq!(stops(&decided), [(0, Why::LargerDeficit)]);
}

#[test]
fn one_shot_jobs_are_stopped_only_if_more_of_them_run_than_max_jobs() {
    let ending = |job, tenant, minutes| Running { continuous: false, ..running(job, tenant, minutes) };
    let tenants = [tenant(0.0, 3), tenant(0.0, 1), tenant(0.0, 0)];
    let four = [ending(0, 0, 90), ending(1, 0, 80), running(2, 0, 1), running(3, 1, 2)];
    let waits = [waiting(2, 100)];
    for scheme in [plain(), Scheme::Rfc] {
        let stopped = |max_jobs| stops(&rotate(scheme, &tenants, &four, &waits, &rules(max_jobs, 0), NOW_US));
        assert_eq!(stopped(4), [], "{scheme:?}");
        let mut two = stopped(2);
        two.sort();
        assert_eq!(two, [(2, Why::Excess), (3, Why::Excess)], "{scheme:?}");
        assert_eq!(stopped(1).last(), Some(&(0, Why::Excess)), "{scheme:?}");
        assert_eq!(stopped(0).len(), 4, "{scheme:?}");
    }
    // Churn is for others' sake, and there is nobody's place that they could have.
    let only = [ending(0, 0, 90), ending(1, 0, 80)];
    assert_eq!(rotate(plain(), &tenants, &only, &waits, &rules(2, 10), NOW_US), []);
}

#[test]
fn of_a_tenant_the_last_class_is_preempted_first_and_none_for_a_later_class() {
    let of = |priority, job| Running { priority, ..job };
    let wait = |priority, minutes| Waiting { priority, ..waiting(0, minutes) };
    let tenants = [tenant(0.0, 3)];
    let three = [of(-5, running(0, 0, 9)), of(3, running(1, 0, 5)), of(3, running(2, 0, 7))];
    let rotated = |waits: &[Waiting]| stops(&rotate(plain(), &tenants, &three, waits, &rules(3, 10), NOW_US));
    let longest = |job| (job, Why::LongestRunning);
    assert_eq!(rotated(&[wait(-5, 1)]), [longest(2)], "not the longest running of all");
    assert_eq!(rotated(&[wait(0, 1), wait(2, 1), wait(3, 1)]), [longest(2), longest(1)]);
    assert_eq!(rotated(&[wait(-5, 1), wait(-5, 1), wait(-5, 1)]), [longest(2), longest(1), longest(0)]);
    assert_eq!(rotated(&[wait(4, 99)]), []);
    // Between tenants priorities have no effect: the deficits decide.
    let two = [tenant(0.0, 3), tenant(0.0, 0)];
    let other = [Waiting { priority: 19, ..waiting(1, 1) }];
    let decided = rotate(plain(), &two, &three, &other, &rules(3, 10), NOW_US);
    assert_eq!(stops(&decided), [(2, Why::LargerDeficit)]);
}

#[test]
fn by_keys_the_highest_are_preempted_for_the_lowest() {
    let key = |key, job| Running { key, ..job };
    let four = [
        key(5.0, running(0, 0, 9)),
        key(9.0, running(1, 0, 9)),
        key(7.0, running(2, 0, 3)),
        key(7.0, running(3, 0, 4)),
    ];
    let wait = |key, minutes| Waiting { key, ..waiting(0, minutes) };
    let rotated = |waits: &[Waiting]| stops(&rotate(Scheme::Rfc, &[], &four, waits, &rules(4, 3), NOW_US));
    let all = [(1, Why::LargerDeficit), (3, Why::LargerDeficit), (2, Why::LargerDeficit)];
    assert_eq!(rotated(&[wait(1.0, 1), wait(2.0, 1), wait(3.0, 1), wait(4.0, 1)]), all);
    assert_eq!(rotated(&[wait(1.0, 1)]), all[..1]);
    // Of equals, the longest running; for a higher one, nobody.
    assert_eq!(rotated(&[wait(8.0, 1), wait(7.0, 1)]), [(1, Why::LargerDeficit)]);
    assert_eq!(rotated(&[wait(9.0, 1)]), [(1, Why::LongestRunning)]);
    assert_eq!(rotated(&[wait(9.1, 1)]), []);
}

#[test]
fn by_keys_classes_order_a_tenants_own_jobs_and_nothing_else() {
    let of = |priority, key, job| Running { priority, key, ..job };
    let wait = |tenant, priority, key| Waiting { priority, key, ..waiting(tenant, 1) };
    let three = [of(-5, 9.0, running(0, 0, 9)), of(3, 5.0, running(1, 0, 9)), of(0, 7.0, running(2, 1, 9))];
    let rotated = |waits: &[Waiting]| stops(&rotate(Scheme::Rfc, &[], &three, waits, &rules(3, 3), NOW_US));
    // The highest place is the first tenant's, and its job of the last priority goes.
    assert_eq!(rotated(&[wait(2, 19, 1.0)]), [(1, Why::LargerDeficit)]);
    // Of jobs of one tenant none goes for a later priority, and one goes for an earlier priority whatever the keys.
    assert_eq!(rotated(&[wait(0, 4, 1.0)]), []);
    assert_eq!(rotated(&[wait(0, -5, 99.0)]), [(1, Why::LongestRunning)]);
    assert_eq!(
        rotated(&[wait(0, -20, 99.0), wait(0, -20, 99.0)]),
        [(1, Why::LongestRunning), (0, Why::LongestRunning)]
    );
    // A priority moves no slot between tenants.
    assert_eq!(rotated(&[wait(2, -20, 99.0)]), []);
    // The same holds for idle jobs.
    let idle = three.map(|job| Running { idle: true, ..job });
    let yielded =
        |waits: &[Waiting]| stops(&yield_idle(Scheme::Rfc, &[], &idle, waits, &rules(3, 3), NOW_US));
    assert_eq!(yielded(&[wait(0, 4, 99.0)]), []);
    assert_eq!(yielded(&[wait(0, 0, 99.0)]), [(1, Why::Idle)]);
}

#[test]
fn workers_that_decide_together_divide_the_stops_for_deficits() {
    let tenants = [tenant(0.0, 4), tenant(0.0, 0)];
    let jobs: Vec<Running> = (0..4).map(|job| running(job, 0, 9 - i64::try_from(job).unwrap())).collect();
    let waits: Vec<Waiting> = (0..3).map(|_| waiting(1, 3)).collect();
    let view = View::cycle(plain(), &tenants, &jobs, &waits);
    let of = |max_jobs, simultaneous| stop(View { simultaneous, ..view }, &rules(max_jobs, 10), NOW_US);
    assert_eq!(stops(&of(4, 1)), [(0, Why::LargerDeficit), (1, Why::LargerDeficit)]);
    assert_eq!(stops(&of(4, 2)), [(0, Why::LargerDeficit)]);
    assert_eq!(stops(&of(4, 9)), [(0, Why::LargerDeficit)]);
    // What is over its own limit, each worker stops by itself.
    assert_eq!(of(1, 9).iter().filter(|stop| stop.why == Why::Excess).count(), 3);
}

#[test]
fn jobs_are_given_back_to_emptier_workers_with_what_is_left_of_churn() {
    use balance::Load;
    let tenants = [tenant(0.0, 4), tenant(0.0, 0)];
    let mut jobs = [running(0, 0, 9), running(1, 0, 8), running(2, 0, 7), running(3, 0, 6)];
    jobs[0].locks = true;
    jobs[1].continuous = false;
    let loads = [Load { slots: 4, running: 4 }, Load { slots: 4, running: 0 }];
    let view = View { loads: Some((0, &loads)), ..View::cycle(plain(), &tenants, &jobs, &[]) };
    // Two of four: jobs without locks first, then the longest running. One-shot jobs stay.
    let emptier = |job| (job, Why::EmptierWorker);
    assert_eq!(stops(&stop(view, &rules(4, 10), NOW_US)), [emptier(2), emptier(3)]);
    assert_eq!(stops(&stop(view, &rules(4, 1), NOW_US)), [emptier(2)]);
    let waits = [waiting(1, 3)];
    let with_deficit = View { waiting: &waits, ..view };
    assert_eq!(stops(&stop(with_deficit, &rules(4, 10), NOW_US)), [(0, Why::LargerDeficit), emptier(2)]);
    assert_eq!(stops(&stop(with_deficit, &rules(4, 1), NOW_US)), [(0, Why::LargerDeficit)]);
    // The jobs that stop are gone: with three of seven, nothing is to be given back.
    let full = [Load { slots: 4, running: 4 }, Load { slots: 4, running: 3 }];
    assert_eq!(
        stops(&stop(View { loads: Some((0, &full)), ..with_deficit }, &rules(4, 10), NOW_US)).len(),
        1
    );
}

#[test]
fn places_are_given_by_class_within_each_tenant() {
    let jobs = vec![(0, 5, 'a'), (1, 0, 'b'), (0, -5, 'c'), (0, 5, 'd'), (1, 0, 'e'), (0, -5, 'f')];
    let placed: String =
        by_priority(jobs, |(tenant, priority, _)| (*tenant, *priority)).iter().map(|job| job.2).collect();
    assert_eq!(placed, "cbfaed");
}

#[test]
fn an_idle_job_is_preempted_early_for_a_tenant_with_a_larger_deficit() {
    let idle = |job, tenant, seconds: i64| Running {
        idle: true,
        started_us: NOW_US - seconds * 1_000_000,
        ..running(job, tenant, 0)
    };
    let yielded = |scheme, tenants: &[Tenant], jobs: &[Running], waits: &[Waiting], max_jobs| {
        stops(&yield_idle(scheme, tenants, jobs, waits, &rules(max_jobs, 10), NOW_US))
    };
    let even = [tenant(0.0, 2), tenant(0.0, 0)];
    let jobs = [idle(0, 0, 12), running(1, 0, 99)];
    for scheme in [plain(), Scheme::Rfc] {
        assert_eq!(yielded(scheme, &even, &jobs, &[waiting(1, 1)], 2), [(0, Why::Idle)]);
        // The same for the next job of the same tenant.
        assert_eq!(yielded(scheme, &even, &jobs, &[waiting(0, 1)], 2), [(0, Why::Idle)]);
        // Not before its turn is over, not if it is busy, and not while a slot is free or no job waits.
        assert_eq!(yielded(scheme, &even, &[idle(0, 0, 9), jobs[1]], &[waiting(1, 1)], 2), []);
        assert_eq!(yielded(scheme, &even, &[running(0, 0, 12), jobs[1]], &[waiting(1, 1)], 2), []);
        assert_eq!(yielded(scheme, &even, &jobs, &[waiting(1, 1)], 3), []);
        assert_eq!(yielded(scheme, &even, &jobs, &[], 2), []);
    }
    // The tenant with the largest deficit keeps its slots.
    let unequal = [tenant(0.0, 2), tenant(1e9, 0)];
    assert_eq!(yielded(plain(), &unequal, &jobs, &[waiting(1, 1)], 2), []);
    let low = jobs.map(|job| Running { key: 1.0, ..job });
    let high = Waiting { key: 2.0, ..waiting(1, 1) };
    assert_eq!(yielded(Scheme::Rfc, &unequal, &low, &[high], 2), []);
}

#[derive(Debug, Clone)]
struct Any {
    scheme: Scheme,
    tenants: Vec<Tenant>,
    running: Vec<Running>,
    waiting: Vec<Waiting>,
    rules: Rules,
}

fn anything() -> impl Strategy<Value = Any> {
    let tenant = (0.0..1e7_f64, 1..=1000_u32, prop_oneof![Just(6e7_f64), 1e3..1e8_f64])
        .prop_map(|(tag, shares, expected_us)| Tenant { tag, in_flight_us: 0.0, shares, expected_us });
    let keys = prop_oneof![Just(f64::MIN), -20.0..20.0_f64, Just(1.0)];
    let job = (any::<prop::sample::Index>(), keys, 0..300_i64, any::<bool>(), any::<bool>());
    let jobs = || prop::collection::vec(job.clone(), 0..30);
    let scheme = prop_oneof![Just(plain()), Just(Scheme::Rfc), Just(known(1e6, 2))];
    let numbers = (0..35_usize, 0..12_usize);
    (scheme, prop::collection::vec(tenant, 1..6), jobs(), jobs(), numbers).prop_map(
        |(scheme, mut tenants, running, waiting, (max_jobs, max_churn))| {
            let count = tenants.len();
            let running: Vec<Running> = running
                .into_iter()
                .enumerate()
                .map(|(job, (index, key, seconds, continuous, idle))| {
                    let started_us = NOW_US - seconds * 1_000_000;
                    Running {
                        job,
                        tenant: index.index(count),
                        key,
                        started_us,
                        priority: 0,
                        continuous,
                        idle,
                        locks: idle,
                    }
                })
                .collect();
            for job in &running {
                tenants[job.tenant].in_flight_us += tenants[job.tenant].expected_us;
            }
            let waiting = waiting
                .into_iter()
                .map(|(index, key, seconds, ..)| Waiting {
                    tenant: index.index(count),
                    key,
                    priority: 0,
                    not_started_since_us: NOW_US - seconds * 1_000_000,
                })
                .collect();
            Any { scheme, tenants, running, waiting, rules: rules(max_jobs, max_churn) }
        },
    )
}

/// The position of a tenant's next (`half` 0.5) or last (-0.5) job if `more` of its jobs ran.
fn stands(any: &Any, pace: Pace, tenant: usize, more: i64, half: f64) -> f64 {
    let Tenant { tag, in_flight_us, shares, expected_us } = any.tenants[tenant];
    pace.position(tag, in_flight_us + (more as f64 + half) * expected_us, shares, expected_us)
}

proptest! {
    #[test]
    fn prop_a_cycle_stops_no_more_than_it_may(any in anything()) {
        let Any { scheme, tenants, running, waiting, rules } = &any;
        let decided = rotate(*scheme, tenants, running, waiting, rules, NOW_US);
        let jobs: BTreeSet<usize> = decided.iter().map(|stop| stop.job).collect();
        prop_assert_eq!(jobs.len(), decided.len(), "no job is stopped twice");
        let of = |why: Why| decided.iter().filter(move |stop| stop.why == why);
        let excess = running.len().saturating_sub(rules.max_jobs);
        prop_assert_eq!(of(Why::Excess).count(), excess);
        let rotated = decided.len() - excess;
        prop_assert!(rotated <= rules.max_churn);
        let free = rules.max_jobs.saturating_sub(running.len());
        prop_assert!(rotated <= waiting.len().saturating_sub(free), "each is preempted for another job");
        for stop in &decided {
            let job = &running[stop.job];
            if !job.continuous {
                prop_assert_eq!(stop.why, Why::Excess);
                let rest = running.iter().filter(|job| job.continuous && !jobs.contains(&job.job));
                prop_assert_eq!(rest.count(), 0, "continuous jobs are stopped first");
            }
        }
    }

    /// After a cycle by virtual time and the starts that follow it, no waiting tenant has a larger deficit than a tenant with a
    /// job that can be preempted, unless that half of the churn is used up. No job was preempted for a tenant with a smaller
    /// deficit.
    #[test]
    fn prop_a_cycle_leaves_no_larger_deficit(any in anything()) {
        let Any { scheme, tenants, running, waiting, rules } = &any;
        let Scheme::VirtualTime(pace) = *scheme else { return Ok(()) };
        let decided = rotate(*scheme, tenants, running, waiting, rules, NOW_US);
        let mut more: BTreeMap<usize, i64> = BTreeMap::new();
        let mut waits: Vec<usize> = vec![0; tenants.len()];
        waiting.iter().for_each(|job| waits[job.tenant] += 1);
        let mut start = |more: &mut BTreeMap<usize, i64>| {
            let next = |tenant: usize| stands(&any, pace, tenant, more.get(&tenant).copied().unwrap_or(0), 0.5);
            let lowest = (0..tenants.len()).filter(|tenant| waits[*tenant] > 0);
            let lowest = lowest.min_by(|a, b| next(*a).total_cmp(&next(*b)))?;
            let stood = next(lowest);
            waits[lowest] -= 1;
            *more.entry(lowest).or_default() += 1;
            Some(stood)
        };
        for _ in 0..rules.max_jobs.saturating_sub(running.len()) {
            start(&mut more);
        }
        for stop in &decided {
            let tenant = running[stop.job].tenant;
            let stood = stands(&any, pace, tenant, more.get(&tenant).copied().unwrap_or(0), -0.5);
            if stop.why != Why::LongestRunning {
                *more.entry(tenant).or_default() -= 1;
            }
            if stop.why == Why::LargerDeficit {
                prop_assert!(start(&mut more).is_some_and(|next| next < stood));
            }
        }
        let preempted = decided.iter().filter(|stop| stop.why == Why::LargerDeficit).count();
        if running.len() <= rules.max_jobs && preempted < rules.max_churn / 2 {
            let stopped: BTreeSet<usize> = decided.iter().map(|stop| stop.job).collect();
            for job in running.iter().filter(|job| job.continuous && !stopped.contains(&job.job)) {
                let last = stands(&any, pace, job.tenant, more.get(&job.tenant).copied().unwrap_or(0), -0.5);
                for tenant in (0..tenants.len()).filter(|tenant| waits[*tenant] > 0) {
                    let next = stands(&any, pace, tenant, more.get(&tenant).copied().unwrap_or(0), 0.5);
                    prop_assert!(next >= last, "tenant {tenant} has a larger deficit than that of job {}", job.job);
                }
            }
        }
    }

    #[test]
    fn prop_only_idle_jobs_yield(any in anything()) {
        let Any { scheme, tenants, running, waiting, rules } = &any;
        let decided = yield_idle(*scheme, tenants, running, waiting, rules, NOW_US);
        let jobs: BTreeSet<usize> = decided.iter().map(|stop| stop.job).collect();
        prop_assert_eq!(jobs.len(), decided.len());
        let free = rules.max_jobs.saturating_sub(running.len());
        prop_assert!(decided.len() <= rules.max_churn.min(waiting.len().saturating_sub(free)));
        for job in jobs {
            let job = &running[job];
            prop_assert!(job.idle && job.continuous && NOW_US - job.started_us >= rules.idle_turn_us);
        }
    }
}
