//! What the order of 100,000 pending jobs costs with 1,000 running ones: `cargo bench -p turnwise-policy --bench predictive`.
//!
//! Jobs are operations on clusters of virtual machines, in the shares that [`operation`] gives them: of 200 instances on 20
//! nodes, as small as the jobs' catalogue describes, so that each resource is wanted by thousands; of 50,000 instances on
//! 2,000 nodes, so that there are many names; and of one node that every second job wants for itself.

use divan::{Bencher, black_box};
use turnwise_policy::predictive_queue::aging::{Aged, Rules};
use turnwise_policy::predictive_queue::locks::{Levels, Requests};
use turnwise_policy::predictive_queue::order::{Candidate, System, order};
use turnwise_policy::predictive_queue::queue::Queue;
use turnwise_policy::predictive_queue::summary::Running;

const PENDING: u64 = 100_000;
const RUNNING: usize = 1_000;
/// Jobs that are read after an event: as many as slots could become free.
const FIRST: usize = 20;
const TICK_US: i64 = 30_000_000;
/// Some have waited for twice as long as it takes to be aged out.
const NOW_US: i64 = 60 * TICK_US;
const BIG_LOCK: &str = r#"{"big_lock":true}"#;

#[derive(Debug, Clone, Copy)]
enum World {
    Small,
    Large,
    OneHotNode,
}

const WORLDS: [World; 3] = [World::Small, World::Large, World::OneHotNode];

fn main() {
    divan::main();
}

/// Numbers that are the same each time (a linear congruence, the upper bits).
struct SeededRng(u64);

impl SeededRng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn requests(json: &str) -> Requests {
    serde_json::from_str(json).expect("it is one of those below")
}

/// What some operation wants.
fn operation(world: World, rng: &mut SeededRng) -> Requests {
    let (instances, nodes) = match world {
        World::Small | World::OneHotNode => (200, 20),
        World::Large => (50_000, 2_000),
    };
    let i = rng.roll(instances);
    // An instance lives on two nodes of a group.
    let (n, m, g) = (i % nodes, (i + 1 + i / nodes) % nodes, i % nodes / 4);
    if matches!(world, World::OneHotNode) && rng.roll(2) == 0 {
        return requests(&format!(
            r#"{{"instance":{{"exclusive":["i{i}"]}},"node":{{"exclusive":["n0"]}}}}"#
        ));
    }
    let all_of = |level: &str, mode: &str| requests(&format!(r#"{{"{level}":{{"{mode}":"all"}}}}"#));
    match rng.roll(1_000) {
        // Start, stop, reboot.
        0..350 => requests(&format!(
            r#"{{"instance":{{"exclusive":["i{i}"]}},"node":{{"shared":["n{n}","n{m}"]}},"node_resource":{{"shared":["n{n}"]}}}}"#
        )),
        // Migrate, replace disks.
        350..550 => requests(&format!(
            r#"{{"instance":{{"exclusive":["i{i}"]}},"node":{{"exclusive":["n{n}","n{m}"]}},"node_resource":{{"exclusive":["n{n}","n{m}"]}}}}"#
        )),
        // Create, where the node is yet to be found.
        550..650 => requests(&format!(
            r#"{{"node_group":{{"shared":["g{g}"]}},"instance":{{"exclusive":["new{i}"]}},"node":{{"exclusive":"unknown"}},"network":{{"shared":["net"]}}}}"#
        )),
        // Look at it.
        650..950 => {
            requests(&format!(r#"{{"instance":{{"shared":["i{i}"]}},"node":{{"shared":["n{n}"]}}}}"#))
        }
        // Maintenance of a node, of a group; verification; networks.
        950..980 => requests(&format!(
            r#"{{"node":{{"exclusive":["n{n}"]}},"node_resource":{{"exclusive":["n{n}"]}}}}"#
        )),
        980..985 => requests(&format!(r#"{{"node_group":{{"exclusive":["g{g}"]}}}}"#)),
        985..994 => all_of("instance", "shared").merge(all_of("node", "shared")),
        994..998 => all_of("network", "exclusive"),
        998 => all_of("node", "exclusive"),
        _ => requests(BIG_LOCK),
    }
}

/// Jobs that wait since, and what runs.
struct Scene {
    queue: Queue,
    pending: Vec<(i64, Requests)>,
    running: Vec<Running>,
}

fn scene(world: World) -> Scene {
    let (levels, mut rng) = (Levels::default(), SeededRng(7));
    let mut queue = Queue::new(&levels, Rules::default());
    let mut running = Vec::new();
    // What goes together, as far as there is such; and then more of what only looks.
    let look = |i: u64| requests(&format!(r#"{{"instance":{{"shared":["looked at {}"]}}}}"#, i % 100));
    for attempt in 0.. {
        let wanted = if attempt < 10_000 { operation(world, &mut rng) } else { look(attempt) };
        if queue.running().obstacle(&wanted.known(&levels)).is_none() && !wanted.is_none() {
            let job = Running::starting(&wanted, &levels);
            queue.start(&job);
            running.push(job);
        }
        if running.len() == RUNNING {
            break;
        }
    }
    let pending: Vec<(i64, Requests)> = (0..PENDING)
        .map(|place| (NOW_US * i64::try_from(place).unwrap_or(0) / 100_000, operation(world, &mut rng)))
        .collect();
    for (place, (since_us, wanted)) in (0..).zip(&pending) {
        queue.add(0, *since_us, place, wanted);
    }
    assert_eq!(queue.all(NOW_US).len(), pending.len());
    println!("{world:?}: {} groups", queue.groups());
    Scene { queue, pending, running }
}

/// The order of all jobs, from the groups.
#[divan::bench(args = WORLDS, sample_count = 100, sample_size = 1)]
fn full_order(bencher: Bencher<'_, '_>, world: World) {
    let Scene { mut queue, .. } = scene(world);
    bencher.bench_local(|| queue.all(NOW_US));
}

/// The same with nothing kept: every job is weighed, and all are sorted.
#[divan::bench(args = WORLDS, sample_count = 20, sample_size = 1)]
fn weigh_and_sort_all(bencher: Bencher<'_, '_>, world: World) {
    let Scene { queue, pending, .. } = scene(world);
    let rules = Rules::default();
    bencher.bench_local(|| {
        let aged = |(place, (since_us, wanted)): (usize, &(i64, Requests))| {
            let weight = queue.running().weigh(wanted, rules.base).total;
            (rules.aging.aged(weight, rules.aging.age(*since_us, NOW_US)), place)
        };
        let mut all: Vec<(Aged, usize)> = pending.iter().enumerate().map(aged).collect();
        all.sort_unstable();
        all
    });
}

/// One running job ends, or starts: groups change, and the first jobs are read.
#[divan::bench(args = WORLDS, sample_count = 2_000, sample_size = 1)]
fn one_event(bencher: Bencher<'_, '_>, world: World) {
    let Scene { mut queue, running, .. } = scene(world);
    let mut events = running.iter().flat_map(|job| [(job, true), (job, false)]).cycle();
    bencher.bench_local(|| {
        match events.next() {
            Some((job, true)) => queue.end(job),
            Some((job, false)) => queue.start(job),
            None => {}
        }
        queue.ordered(NOW_US).take(FIRST).fold(0, |sum, (job, _)| sum ^ job)
    });
}

/// Events that change what most jobs weigh: the big lock, all nodes, a group, and a node for itself.
#[divan::bench(args = WORLDS, sample_count = 800, sample_size = 1)]
fn one_event_for_all(bencher: Bencher<'_, '_>, world: World) {
    let Scene { mut queue, .. } = scene(world);
    let wanted = [
        BIG_LOCK,
        r#"{"node":{"exclusive":"all"}}"#,
        r#"{"node_group":{"exclusive":["g0"]}}"#,
        r#"{"node":{"exclusive":["n0"]},"node_resource":{"exclusive":["n0"]}}"#,
    ];
    let jobs = wanted.map(|wanted| Running::starting(&requests(wanted), &Levels::default()));
    let mut events = jobs.iter().flat_map(|job| [(job, true), (job, false)]).cycle();
    bencher.bench_local(|| {
        match events.next() {
            Some((job, true)) => queue.start(job),
            Some((job, false)) => queue.end(job),
            None => {}
        }
        queue.ordered(NOW_US).take(FIRST).fold(0, |sum, (job, _)| sum ^ job)
    });
}

/// A tick later, when some 1,700 jobs become aged out.
#[divan::bench(args = WORLDS, sample_count = 25, sample_size = 1)]
fn one_tick(bencher: Bencher<'_, '_>, world: World) {
    let Scene { mut queue, .. } = scene(world);
    let mut ticks = 60..;
    bencher.bench_local(|| {
        let now_us = ticks.next().map_or(NOW_US, |tick| (tick + 1) * TICK_US);
        queue.ordered(now_us).take(FIRST).fold(0, |sum, (job, _)| sum ^ job)
    });
}

/// A job becomes pending.
#[divan::bench(args = WORLDS, sample_count = 2_000, sample_size = 1)]
fn add(bencher: Bencher<'_, '_>, world: World) {
    let Scene { mut queue, pending, .. } = scene(world);
    let mut jobs = pending.iter();
    bencher.bench_local(|| jobs.next().map(|(_, wanted)| queue.add(0, NOW_US, PENDING, wanted)));
}

/// One pass over a window of this many jobs.
#[divan::bench(args = [100, 1_000], sample_count = 200, sample_size = 1)]
fn pass(bencher: Bencher<'_, '_>, jobs: usize) {
    let Scene { queue, pending, .. } = scene(World::Small);
    let candidate = |(since_us, requests): &'_ (i64, Requests)| (*since_us, requests.clone());
    let jobs: Vec<(i64, Requests)> = pending.iter().rev().take(jobs).map(candidate).collect();
    let window: Vec<Candidate<'_>> = jobs
        .iter()
        .map(|(since_us, requests)| Candidate {
            class: 0,
            since_us: *since_us,
            requests,
            likely: None,
            reservation: None,
        })
        .collect();
    let system = System {
        running: queue.running(),
        foreseen: queue.running(),
        reservations: &[],
        room: FIRST,
        may_reserve: true,
        now_us: NOW_US,
    };
    bencher.bench_local(|| order(black_box(&window), system, &Rules::default()));
}
