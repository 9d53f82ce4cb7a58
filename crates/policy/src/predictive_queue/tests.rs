//! Properties of weights, summaries and passes, whatever jobs want and hold.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;

use proptest::prelude::*;
use proptest::sample::Index;

use super::aging::{Aging, Rules};
use super::contention::{DEFAULT_BASE, NO_CONTENTION, Predicted, STUCK, Weight, apart, same};
use super::line::lines;
use super::locks::{AtLevel, Level, Levels, Lock, Mode, Request, Requests, Scope};
use super::order::{Decision, DeferReason, System, WindowJob, order};
use super::summary::{Occupancy, Running, Summary};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Three levels. Resources of the last one have three units each, but `b` has five.
pub(crate) fn levels() -> Levels {
    let level = |name: &str, capacity: Option<u32>| Level {
        name: name.to_owned(),
        capacity,
        capacities: capacity.map(|_| ("b".to_owned(), 5)).into_iter().collect(),
    };
    Levels::try_from(vec![level("group", None), level("node", None), level("disk", Some(3))]).unwrap()
}

fn names() -> impl Strategy<Value = BTreeSet<String>> {
    prop::collection::btree_set(prop::sample::select(&NAMES[..]).prop_map(str::to_owned), 1..4)
}

fn at_level() -> impl Strategy<Value = AtLevel> {
    let units = names().prop_flat_map(|names| {
        let count = names.len();
        (Just(names), prop::collection::vec(1..4_u32, count))
    });
    let shared = prop_oneof![
        3 => Just(Request::None),
        4 => units.prop_map(|(names, units)| Request::Shared(names.into_iter().zip(units).collect())),
        1 => Just(Request::UnknownShared),
        1 => Just(Request::AllShared),
    ];
    let exclusive = prop_oneof![
        4 => Just(Request::None),
        4 => names().prop_map(Request::Exclusive),
        1 => Just(Request::UnknownExclusive),
        1 => Just(Request::AllExclusive),
    ];
    (shared, exclusive).prop_map(|(shared, exclusive)| {
        // A merge resolves requests that contradict each other.
        let at = |request| AtLevel::new([request]).unwrap();
        at(shared).merge(at(exclusive))
    })
}

/// The requests of a job that does both.
fn merge(mut one: Requests, other: Requests) -> Requests {
    one.big_lock |= other.big_lock;
    for (level, at) in other.levels {
        let before = one.levels.remove(&level).unwrap_or_default();
        one.levels.insert(level, before.merge(at));
    }
    one
}

pub(crate) fn requests() -> impl Strategy<Value = Requests> {
    let names: Vec<String> = levels().names().map(str::to_owned).collect();
    let wanted = prop::collection::btree_map(prop::sample::select(names), at_level(), 0..4);
    let big = prop::bool::weighted(0.05);
    (big, wanted).prop_map(|(big_lock, levels)| Requests { big_lock, levels })
}

/// A running job: it holds the locks that it knew, and some that it found out.
pub(crate) fn running() -> impl Strategy<Value = Running> {
    let more = prop::collection::vec((0..3_usize, any::<Index>(), any::<bool>(), 1..4_u32), 0..3);
    (requests(), more).prop_map(|(requests, more)| {
        let levels = levels();
        let found = more.into_iter().map(|(level, name, shared, units)| Lock {
            scope: Scope::Resource { level, name: (*name.get(&NAMES)).to_owned() },
            mode: if shared { Mode::Shared } else { Mode::Exclusive },
            units: if shared { units } else { 1 },
        });
        let mut locks: BTreeMap<Scope, Lock> = BTreeMap::new();
        for lock in requests.known(&levels).into_iter().chain(found) {
            locks.entry(lock.scope.clone()).or_insert(lock);
        }
        Running::new(locks.into_values(), &requests, &levels)
    })
}

/// The weight of the big lock above the base: the highest cell at every level. 15 with five levels.
pub(crate) fn big_lock(levels: &Levels) -> Weight {
    (0..levels.len()).fold(Weight::default(), |sum, _| sum.plus(STUCK))
}

/// What a running job locks at one level, as requests: columns of the table.
fn columns(job: &Running, level: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    let (mut shared, mut exclusive) = (BTreeMap::new(), BTreeSet::new());
    for lock in job.locks() {
        match (&lock.scope, lock.mode) {
            (Scope::BigLock, Mode::Exclusive) => requests.push(Request::AllExclusive),
            (Scope::WholeLevel(at), Mode::Shared) if *at == level => requests.push(Request::AllShared),
            (Scope::WholeLevel(at), Mode::Exclusive) if *at == level => {
                requests.push(Request::AllExclusive);
            }
            (Scope::Resource { level: at, name }, Mode::Shared) if *at == level => {
                shared.insert(name.clone(), lock.units);
            }
            (Scope::Resource { level: at, name }, Mode::Exclusive) if *at == level => {
                exclusive.insert(name.clone());
            }
            _ => {}
        }
    }
    if !shared.is_empty() {
        requests.push(Request::Shared(shared));
    }
    if !exclusive.is_empty() {
        requests.push(Request::Exclusive(exclusive));
    }
    for (_, mode) in job.unknown.iter().filter(|(at, _)| *at == level) {
        requests.push(match mode {
            Mode::Shared => Request::UnknownShared,
            Mode::Exclusive => Request::UnknownExclusive,
        });
    }
    requests
}

/// The weight of what a pending job wants at a level against what one running job locks there. Units are not
/// compared.
pub(crate) fn compare(wanted: &Request, locked: &Request) -> Weight {
    let shares_a_name = match (wanted, locked) {
        (Request::Shared(i), Request::Shared(j)) => i.keys().any(|name| j.contains_key(name)),
        (Request::Shared(i), Request::Exclusive(j)) => i.keys().any(|name| j.contains(name)),
        (Request::Exclusive(i), Request::Shared(j)) => i.iter().any(|name| j.contains_key(name)),
        (Request::Exclusive(i), Request::Exclusive(j)) => !i.is_disjoint(j),
        _ => false,
    };
    let cell = if shares_a_name { same } else { apart };
    cell(wanted.into(), locked.into())
}

/// A job's weight by comparison with every running job: the definition. A [`Summary`](super::summary::Summary)
/// computes the same at the cost of the job's own resources.
pub(crate) fn weigh_by_comparing(
    wanted: &Requests,
    running: &[Running],
    levels: &Levels,
    base: Weight,
) -> Predicted {
    if wanted.big_lock {
        return Predicted::new(base, vec![STUCK; levels.len()]);
    }
    let at_level = |(level, name): (usize, &str)| {
        let Some(at) = wanted.levels.get(name) else { return NO_CONTENTION };
        let locked: Vec<Request> =
            running.iter().flat_map(|job| columns(job, level)).chain(once(Request::None)).collect();
        let pairs = at.requests().into_iter().flat_map(|row| locked.iter().map(move |column| (row, column)));
        let worst = pairs.map(|(row, column)| compare(row, column)).max().unwrap_or_default();
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for request in &locked {
            if let Request::Shared(names) = request {
                names.iter().for_each(|(name, units)| *held.entry(name).or_default() += u64::from(*units));
            }
        }
        let too_many = |(name, wanted): (&String, &u32)| {
            let held = held.get(name.as_str()).copied().unwrap_or(0);
            levels
                .capacity(level, name)
                .is_some_and(|most| held + u64::from(*wanted.min(&most)) > u64::from(most))
        };
        let stuck = matches!(at.requests()[0], Request::Shared(names) if names.iter().any(too_many));
        if stuck { STUCK } else { worst }
    };
    Predicted::new(base, levels.names().enumerate().map(at_level).collect())
}

fn weigh(wanted: &Requests, running: &[Running]) -> Predicted {
    weigh_by_comparing(wanted, running, &levels(), DEFAULT_BASE)
}

fn summary_of(jobs: &[Running]) -> Summary {
    let mut summary = Summary::new(&levels());
    jobs.iter().for_each(|job| summary.add(job));
    summary
}

/// Whether two locks are compatible by definition. Units are left out.
fn are_compatible(one: &Lock, other: &Lock) -> bool {
    let touch = match (&one.scope, &other.scope) {
        (Scope::BigLock, Scope::BigLock) => true,
        (Scope::WholeLevel(a), Scope::Resource { level: b, .. } | Scope::WholeLevel(b))
        | (Scope::Resource { level: b, .. }, Scope::WholeLevel(a)) => a == b,
        (one, other) => one == other,
    };
    !touch || one.mode == Mode::Shared && other.mode == Mode::Shared
}

/// Whether a lock is free, compared with the locks of every job.
fn is_free(lock: &Lock, jobs: &[Running], levels: &Levels) -> bool {
    let held = || jobs.iter().flat_map(Running::locks);
    let units = held().filter(|held| held.scope == lock.scope).map(|held| held.units).sum::<u32>();
    let fits = match (&lock.scope, lock.mode) {
        (Scope::Resource { level, name }, Mode::Shared) => {
            levels.capacity(*level, name).is_none_or(|most| units + lock.units.min(most) <= most)
        }
        _ => true,
    };
    fits && held().all(|held| are_compatible(lock, held))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn prop_a_summary_equals_a_comparison_with_every_running_job(
        jobs in prop::collection::vec(running(), 0..8),
        leave in prop::collection::vec(any::<bool>(), 8),
        wanted in requests(),
    ) {
        let mut summary = summary_of(&jobs);
        prop_assert_eq!(summary.weigh(&wanted, DEFAULT_BASE), weigh(&wanted, &jobs));
        let (stay, gone): (Vec<_>, Vec<_>) = jobs.into_iter().zip(leave).partition(|(_, leaves)| !leaves);
        gone.iter().for_each(|(job, _)| summary.remove(job));
        let stay: Vec<Running> = stay.into_iter().map(|(job, _)| job).collect();
        prop_assert_eq!(summary.weigh(&wanted, DEFAULT_BASE), weigh(&wanted, &stay));
        prop_assert_eq!(summary, summary_of(&stay));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn prop_a_weight_lies_between_the_base_and_that_of_the_big_lock(
        jobs in prop::collection::vec(running(), 0..8), wanted in requests(), base in 1..5_000_u32,
    ) {
        let base = Weight::thousandths(base);
        let weight = summary_of(&jobs).weigh(&wanted, base);
        let most = base.plus(big_lock(&levels()));
        prop_assert!(base <= weight.total && weight.total <= most);
        prop_assert!(!wanted.big_lock || weight.total == most);
        prop_assert!(!wanted.is_none() || weight.total == base);
    }

    #[test]
    fn prop_a_weight_never_falls_when_another_job_runs(
        jobs in prop::collection::vec(running(), 0..6), another in running(), wanted in requests(),
    ) {
        let mut summary = summary_of(&jobs);
        let before = summary.weigh(&wanted, DEFAULT_BASE);
        summary.add(&another);
        let after = summary.weigh(&wanted, DEFAULT_BASE);
        prop_assert!(before.levels.iter().zip(&after.levels).all(|(before, after)| before <= after));
        prop_assert!(before.total <= after.total);
    }

    #[test]
    fn prop_a_lock_is_blocked_exactly_if_a_running_job_holds_an_incompatible_one(
        jobs in prop::collection::vec(running(), 0..5), wanted in requests(),
    ) {
        let (levels, known) = (levels(), wanted.known(&levels()));
        let first = known.iter().find(|lock| !is_free(lock, &jobs, &levels));
        let obstacle = summary_of(&jobs).obstacle(&known);
        prop_assert_eq!(obstacle.as_ref().map(|obstacle| &obstacle.wanted), first);
    }

    #[test]
    fn prop_a_blocked_level_has_the_weight_of_a_stuck_job(
        jobs in prop::collection::vec(running(), 1..5), wanted in requests(),
    ) {
        let summary = summary_of(&jobs);
        if let Some(obstacle) = summary.obstacle(&wanted.known(&levels()))
            && let Some(level) = obstacle.wanted.scope.level()
        {
            prop_assert_eq!(summary.weigh(&wanted, DEFAULT_BASE).levels[level].to_f64(), 3.0);
        }
    }

    #[test]
    fn prop_a_job_of_several_steps_weighs_no_less_than_each_of_them(
        mut steps in prop::collection::vec(requests(), 1..4), jobs in prop::collection::vec(running(), 0..5),
    ) {
        // Known and unknown locks of one mode and level merge into unknown ones, which may weigh less. And a job that
        // shares all of a level needs no units.
        let less = |level: &str, at: &AtLevel| {
            let [shared, exclusive] = at.requests();
            let no_units = *shared == Request::AllShared && level == "disk";
            no_units || *shared == Request::UnknownShared || *exclusive == Request::UnknownExclusive
        };
        steps.iter_mut().for_each(|step| step.levels.retain(|level, at| !less(level, at)));
        let all = steps.iter().cloned().reduce(merge).unwrap();
        for step in &steps {
            prop_assert!(weigh(step, &jobs).total <= weigh(&all, &jobs).total);
        }
    }
}

/// A window, and the state around it.
#[derive(Debug, Clone)]
struct Scene {
    running: Vec<Running>,
    window: Vec<(i8, i64, Requests)>,
    reserve: Vec<Index>,
    room: usize,
}

fn scene() -> impl Strategy<Value = Scene> {
    let job = (0..2_i8, 0..40_i64, requests());
    (
        prop::collection::vec(running(), 0..3),
        prop::collection::vec(job, 0..8),
        prop::collection::vec(any::<Index>(), 0..3),
        0..6_usize,
    )
        .prop_map(|(running, window, reserve, room)| Scene { running, window, reserve, room })
}

/// The part of a job's requests that a reservation holds: the known locks.
fn known_of(requests: &Requests) -> Requests {
    let known = |at: &AtLevel| {
        let known = at.requests().into_iter().cloned();
        let known =
            known.filter(|request| !matches!(request, Request::UnknownShared | Request::UnknownExclusive));
        AtLevel::new(known).unwrap()
    };
    let levels = requests.levels.iter().map(|(level, at)| (level.clone(), known(at))).collect();
    Requests { big_lock: requests.big_lock, levels }
}

const TICK: i64 = 30_000_000;
const NOW: i64 = 40 * TICK;

fn decide(scene: &Scene) -> Decision {
    let Scene { running, window, reserve, room } = scene;
    let mut owners: Vec<usize> = Vec::new();
    for index in reserve.iter().filter(|_| !window.is_empty()) {
        let place = index.index(window.len());
        if !owners.contains(&place) {
            owners.push(place);
        }
    }
    let candidate = |(place, (priority, ticks, requests)): (usize, &'_ (i8, i64, Requests))| {
        (*priority, *ticks * TICK, requests.clone(), owners.iter().position(|owner| *owner == place))
    };
    let owned: Vec<_> = window.iter().enumerate().map(candidate).collect();
    let window: Vec<WindowJob<'_>> = owned
        .iter()
        .map(|(priority, since_us, requests, reservation)| WindowJob {
            priority: *priority,
            since_us: *since_us,
            requests,
            reservation: *reservation,
        })
        .collect();
    let reservations: Vec<Running> =
        owners.iter().map(|owner| reservation(&known_of(&owned[*owner].2))).collect();
    let running = summary_of(running);
    let system = System {
        running: &running,
        reservations: &reservations,
        room: *room,
        may_reserve: true,
        now_us: NOW,
    };
    order(&window, system, &Rules::default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn prop_a_pass_examines_every_job_once_and_starts_only_compatible_jobs(scene in scene()) {
        let decision = decide(&scene);
        let mut seen: Vec<usize> = decision.start.iter().map(|start| start.job).collect();
        prop_assert!(seen.len() <= scene.room);
        let mut jobs = scene.running.clone();
        for place in &seen {
            let wanted = &scene.window[*place].2;
            for lock in wanted.known(&levels()) {
                prop_assert!(is_free(&lock, &jobs, &levels()));
            }
            jobs.push(Running::starting(wanted, &levels()));
        }
        let full = seen.len() == scene.room;
        for deferral in &decision.defer {
            match &deferral.reason {
                DeferReason::NoRoom => prop_assert!(full),
                DeferReason::Locked(obstacle) => prop_assert!(!is_free(&obstacle.wanted, &jobs, &levels())),
                DeferReason::Reserved(_) => {}
            }
            seen.push(deferral.job);
        }
        prop_assert!(decision.reserve.len() <= 1);
        for place in &decision.reserve {
            let deferral = decision.defer.iter().find(|deferral| deferral.job == *place).unwrap();
            prop_assert!(deferral.weighed.aged_out && deferral.reason != DeferReason::NoRoom);
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..scene.window.len()).collect::<Vec<_>>());
    }

    #[test]
    fn prop_each_examined_job_is_the_lightest_that_is_left(mut scene in scene()) {
        scene.reserve.clear();
        let decision = decide(&scene);
        prop_assume!(scene.window.iter().any(|(_, _, requests)| !requests.is_none()));
        let rules = Rules::default();
        let lines = lines(scene.window.iter().map(|(_, _, requests)| requests));
        // The same pass again. After each step, every job is weighed by comparison with every other one.
        let mut jobs = scene.running.clone();
        let mut left: Vec<usize> = (0..scene.window.len()).collect();
        let mut examined = decision.start.iter().map(|start| start.job).collect::<Vec<_>>();
        let deferred = decision.defer.iter().map(|deferral| deferral.job).collect::<BTreeSet<_>>();
        let mut order = Vec::new();
        let started: BTreeSet<usize> = examined.drain(..).collect();
        let mut count = 0;
        while count < decision.start.len() {
            let first = left.iter().copied().min_by_key(|place| {
                let (priority, ticks, wanted) = &scene.window[*place];
                let age = rules.aging.age(*ticks * TICK, NOW);
                let aged = rules.aging.aged(weigh(wanted, &jobs).total, age + lines[*place]);
                (*priority, aged, Reverse(lines[*place]), *place)
            }).unwrap();
            left.retain(|place| *place != first);
            if started.contains(&first) {
                jobs.push(Running::starting(&scene.window[first].2, &levels()));
                prop_assert_eq!(decision.start[count].job, first);
                count += 1;
            } else {
                prop_assert!(deferred.contains(&first));
                order.push(first);
            }
        }
        let examined: Vec<usize> = decision.defer.iter().map(|deferral| deferral.job).take(order.len()).collect();
        prop_assert_eq!(examined, order);
    }

    #[test]
    fn prop_without_locks_the_window_stays_as_it_came(ages in prop::collection::vec(0..40_i64, 0..10), room in 0..6_usize) {
        let window = ages.iter().map(|age| (0, *age, Requests::default())).collect::<Vec<_>>();
        let count = window.len();
        let decision = decide(&Scene { running: Vec::new(), window, reserve: Vec::new(), room });
        let started: Vec<usize> = decision.start.iter().map(|start| start.job).collect();
        prop_assert_eq!(started, (0..count.min(room)).collect::<Vec<_>>());
        prop_assert!(decision.reserve.is_empty());
    }
}

fn wants(json: &str) -> Requests {
    serde_json::from_str(json).unwrap()
}

#[test]
fn on_an_idle_system_jobs_that_lock_less_start_first() {
    let scene = Scene {
        running: Vec::new(),
        window: [
            r#"{"big_lock":true}"#,
            r#"{"node":{"exclusive":["a"]}}"#,
            r#"{"node":{"shared":["b"]}}"#,
            "{}",
        ]
        .map(|json| (0, 40, wants(json)))
        .to_vec(),
        reserve: Vec::new(),
        room: 9,
    };
    let decision = decide(&scene);
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [3, 2, 1]);
    let weights: Vec<f64> = decision.start.iter().map(|start| start.weighed.weight.to_f64()).collect();
    // The last job is weighed while a job runs that shares another node.
    assert_eq!(weights, [1.0, 1.3, 1.5]);
    assert!(
        matches!(&decision.defer[0].reason, DeferReason::Locked(obstacle) if obstacle.scope == Scope::BigLock)
    );
}

#[test]
fn jobs_that_start_in_one_pass_are_compatible() {
    let exclusive = |name: &str| (0, 40, wants(&format!(r#"{{"node":{{"exclusive":["{name}"]}}}}"#)));
    let scene = Scene {
        running: Vec::new(),
        window: vec![exclusive("a"), exclusive("a"), exclusive("b"), exclusive("a")],
        reserve: Vec::new(),
        room: 3,
    };
    let decision = decide(&scene);
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(decision.defer.iter().map(|deferral| deferral.job).collect::<Vec<_>>(), [1, 3]);
    assert!(decision.reserve.is_empty());
}

#[test]
fn the_last_units_go_to_a_job_that_fits() {
    let disk = |units: u32| (0, 40, wants(&format!(r#"{{"disk":{{"shared":{{"a":{units}}}}}}}"#)));
    let running = vec![Running::starting(&disk(2).2, &levels())];
    let scene = Scene { running, window: vec![disk(2), disk(1), disk(1)], reserve: Vec::new(), room: 3 };
    let decision = decide(&scene);
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [1]);
    assert_eq!(decision.defer.len(), 2);
}

#[test]
fn each_job_in_the_line_makes_a_job_older() {
    let node = |names: &str| wants(&format!(r#"{{"node":{{"exclusive":[{names}]}}}}"#));
    // A job that shares is lighter than one that wants a node exclusively, unless so many jobs name that node that
    // they age it out.
    let (sharing, alone, other) = (wants(r#"{"node":{"shared":["c"]}}"#), node(r#""a""#), node(r#""b""#));
    let first = |line: usize, ages: [i64; 2]| {
        let mut window = vec![(0, 40 - ages[0], sharing.clone()), (0, 40 - ages[1], other.clone())];
        window.extend((0..line).map(|_| (0, 40, alone.clone())));
        let decision = decide(&Scene { running: Vec::new(), window, reserve: Vec::new(), room: 1 });
        decision.start[0].job
    };
    assert_eq!([first(2, [0, 0]), first(31, [0, 0]), first(31, [29, 0])], [0, 2, 2]);
}

#[test]
fn an_overdue_job_comes_before_all_lines() {
    let (alone, sharing) = (wants(r#"{"node":{"exclusive":["a"]}}"#), wants(r#"{"node":{"shared":["c"]}}"#));
    let rules = Rules::default();
    let first = |age: i64| {
        let now_us = 1_000 * TICK;
        let mut jobs = vec![(now_us - age * TICK, &sharing)];
        jobs.extend((0..40).map(|_| (now_us - 31 * TICK, &alone)));
        let window = jobs.iter().map(|(since_us, requests)| WindowJob {
            priority: 0,
            since_us: *since_us,
            requests,
            reservation: None,
        });
        let window: Vec<WindowJob<'_>> = window.collect();
        let running = summary_of(&[]);
        let system = System { running: &running, reservations: &[], room: 1, may_reserve: true, now_us };
        order(&window, system, &rules).start[0].job
    };
    assert_eq!([31, 299, 300, 400].map(first), [1, 1, 0, 0]);
}

#[test]
fn a_job_reserves_only_against_jobs_that_come_much_later() {
    let (big, small) = (wants(r#"{"node":{"exclusive":["a","b"]}}"#), wants(r#"{"node":{"shared":["a"]}}"#));
    let held = summary_of(&[Running::starting(&small, &levels())]);
    let rules = Rules::default();
    // The big job came at 0, and the others at these ticks. The pass is at tick `now`.
    let reserves = |others: &[i64], now: i64| {
        let big = WindowJob { priority: 0, since_us: 0, requests: &big, reservation: None };
        let mut window = vec![big];
        window.extend(others.iter().map(|tick| WindowJob { since_us: tick * TICK, requests: &small, ..big }));
        let now_us = now * TICK;
        let system = System { running: &held, reservations: &[], room: 9, may_reserve: true, now_us };
        order(&window, system, &rules).reserve == [0]
    };
    assert!(!reserves(&[], 29) && reserves(&[], 30));
    assert!(!reserves(&[0, 29], 100) && reserves(&[0, 30], 30));
    // Whatever the age of the others is, it reserves once it is overdue.
    assert!(!reserves(&[0, 29], 299) && reserves(&[0, 29], 300));
}

#[test]
fn a_job_that_may_not_reserve_blocks_no_other() {
    let (big, small) = (wants(r#"{"node":{"exclusive":["a","b"]}}"#), wants(r#"{"node":{"shared":["b"]}}"#));
    let held = summary_of(&[Running::starting(&wants(r#"{"node":{"shared":["a"]}}"#), &levels())]);
    let big = WindowJob { priority: 0, since_us: 0, requests: &big, reservation: None };
    let window = [big, WindowJob { since_us: 40 * TICK, requests: &small, priority: 1, ..big }];
    let decide = |may_reserve| {
        let now_us = 50 * TICK;
        let system = System { running: &held, reservations: &[], room: 9, may_reserve, now_us };
        let decision = order(&window, system, &Rules::default());
        let start: Vec<usize> = decision.start.iter().map(|start| start.job).collect();
        (decision.reserve, start)
    };
    assert_eq!(decide(true), (vec![0], vec![]));
    assert_eq!(decide(false), (vec![], vec![1]));
}

/// The step at which a job starts that wants both of two nodes. Small jobs, each of which shares one of the nodes,
/// arrive faster than they end.
fn overtaken(aging: Aging) -> Option<i64> {
    let rules = Rules { aging, ..Rules::default() };
    let (big, levels) = (wants(r#"{"node":{"exclusive":["a","b"]}}"#), levels());
    let small = ["a", "b"].map(|name| wants(&format!(r#"{{"node":{{"shared":["{name}"]}}}}"#)));
    let mut ends: Vec<(i64, Running)> = vec![(1, Running::starting(&small[0], &levels))];
    let mut reserved = false;
    // Each step is a tenth of a tick. A small job runs for three steps, and there are always new ones.
    for step in 0..1_000_i64 {
        let now_us = step * TICK / 10;
        ends.retain(|(end, _)| *end > step);
        let running = summary_of(&ends.iter().map(|(_, job)| job.clone()).collect::<Vec<_>>());
        let reservations = if reserved { vec![reservation(&big)] } else { Vec::new() };
        let mut window =
            vec![WindowJob { priority: 0, since_us: 0, requests: &big, reservation: reserved.then_some(0) }];
        window.extend((0..4).map(|place| WindowJob {
            priority: 0,
            since_us: now_us,
            requests: &small[(place + usize::try_from(step).unwrap()) % 2],
            reservation: None,
        }));
        let system =
            System { running: &running, reservations: &reservations, room: 1, may_reserve: true, now_us };
        let decision = order(&window, system, &rules);
        for start in &decision.start {
            if start.job == 0 {
                return Some(step);
            }
            ends.push((step + 3, Running::starting(window[start.job].requests, &levels)));
        }
        reserved |= decision.reserve.contains(&0);
    }
    None
}

#[test]
fn a_stream_of_small_jobs_does_not_overtake_an_aged_out_one_for_ever() {
    // It is aged out after 300 steps, reserves, and starts once the jobs that ran then have ended.
    let start = overtaken(Aging::default()).unwrap();
    assert!((300..=303).contains(&start), "{start}");
    // Without aging it never starts: there is no moment at which both nodes are free.
    assert_eq!(overtaken(Aging { ticks: u32::MAX, ..Aging::default() }), None);
}

fn reservation(requests: &Requests) -> Running {
    Running::starting(requests, &levels())
}

#[test]
fn a_job_that_knows_no_lock_yet_reserves_the_big_lock_against_a_job_that_wants_it_alone() {
    let unknown = wants(r#"{"node":{"shared":"unknown"}}"#);
    let big = wants(r#"{"big_lock":true}"#);
    let job = |requests, priority, reservation| WindowJob { priority, since_us: NOW, requests, reservation };
    // Because of the priorities, the job without a reservation is examined first.
    let window = [job(&big, 0, None), job(&unknown, 1, Some(0))];
    let running = Summary::new(&levels());
    // A row of the lock queue names the lock alone.
    let shared = Lock { scope: Scope::BigLock, mode: Mode::Shared, units: 1 };
    let reservations = [Running::new([shared], &Requests::default(), &levels())];
    let system =
        System { running: &running, reservations: &reservations, room: 2, may_reserve: true, now_us: NOW };
    let decision = order(&window, system, &Rules::default());
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [1]);
    assert!(matches!(&decision.defer[..], [deferral] if matches!(deferral.reason, DeferReason::Reserved(_))));
}

#[test]
fn reservations_are_served_in_their_order() {
    let all = wants(r#"{"node":{"exclusive":"all"}}"#);
    let one = |name: &str| wants(&format!(r#"{{"node":{{"exclusive":["{name}"]}}}}"#));
    let holder = Running::starting(&one("a"), &levels());
    let mut scene = Scene {
        running: vec![holder],
        // The first three are aged out: the first wants a held node, the second wants what the first reserves, and
        // the locks of the third are unknown. The last one wants none of these, and came later.
        window: [
            all,
            one("b"),
            wants(r#"{"node":{"shared":"unknown"}}"#),
            wants(r#"{"group":{"shared":["a"]}}"#),
        ]
        .map(|wanted| (0, 0, wanted))
        .to_vec(),
        reserve: Vec::new(),
        room: 9,
    };
    scene.window[3].1 = 31;
    let decision = decide(&scene);
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [3]);
    // One reservation at a time.
    assert_eq!(decision.reserve, [0]);
    let reasons: Vec<bool> =
        decision.defer.iter().map(|deferral| matches!(deferral.reason, DeferReason::Reserved(_))).collect();
    assert_eq!(reasons, [false, true, true]);
    // Once the node is free, the first job starts, and none of the jobs that it blocks.
    let decision = decide(&Scene { running: Vec::new(), ..scene });
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn the_first_reservation_is_served_first_whatever_the_window_says() {
    // All are overdue, so no line counts.
    let (levels, now_us) = (levels(), 300 * TICK);
    let both = wants(r#"{"node":{"exclusive":["a","b"]},"group":{"shared":"unknown"}}"#);
    let (a, b) = (wants(r#"{"node":{"exclusive":["a"]}}"#), wants(r#"{"node":{"exclusive":["b"]}}"#));
    let job = |requests, reservation| WindowJob { priority: 0, since_us: 0, requests, reservation };
    let window = [job(&a, None), job(&b, Some(1)), job(&both, Some(0))];
    let running = Summary::new(&levels);
    let system = System {
        running: &running,
        reservations: &[reservation(&known_of(&both)), reservation(&b)],
        room: 3,
        may_reserve: true,
        now_us,
    };
    let decision = order(&window, system, &Rules::default());
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [2]);
    // Jobs with a reservation keep it. The other job gets one when no job of the window has one.
    assert_eq!(decision.reserve, [0; 0]);
    assert!(decision.defer.iter().all(|deferral| matches!(deferral.reason, DeferReason::Reserved(_))));
}

#[test]
fn reserved_units_count_with_held_ones() {
    let disk = |units: u32| wants(&format!(r#"{{"disk":{{"shared":{{"a":{units}}}}}}}"#));
    let (three, one) = (disk(3), disk(1));
    let mut running = Summary::new(&levels());
    running.add(&Running::starting(&one, &levels()));
    let window = [WindowJob { priority: 0, since_us: NOW, requests: &one, reservation: None }];
    let reasons = |reservations: &[Running]| {
        let decision = order(
            &window,
            System { running: &running, reservations, room: 1, may_reserve: true, now_us: NOW },
            &Rules::default(),
        );
        decision.defer.into_iter().map(|deferral| deferral.reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&[]), []);
    assert_eq!(reasons(&[reservation(&one)]), []);
    assert!(
        matches!(&reasons(&[reservation(&three)])[..], [DeferReason::Reserved(obstacle)] if obstacle.occupancy == Occupancy::Units { free: 0 })
    );
}

#[test]
fn a_reservation_ends_when_its_job_starts() {
    let disk = |units: u32| wants(&format!(r#"{{"disk":{{"shared":{{"a":{units}}}}}}}"#));
    let (one, two) = (disk(1), disk(2));
    let job = |requests, since_us, reservation| WindowJob { priority: 0, since_us, requests, reservation };
    let window = [job(&one, 0, Some(0)), job(&two, NOW, None)];
    let running = Summary::new(&levels());
    let system = System {
        running: &running,
        reservations: &[reservation(&one)],
        room: 2,
        may_reserve: true,
        now_us: NOW,
    };
    // Its unit counts once: as held, no longer as reserved. So the three units are enough.
    let decision = order(&window, system, &Rules::default());
    assert_eq!(decision.start.iter().map(|start| start.job).collect::<Vec<_>>(), [0, 1]);
}
