//! The cost of one pass over the head of 10,000 pending jobs that lock, while 1,000 jobs run: `cargo bench -p
//! turnwise-policy --bench predictive`.
//!
//! Jobs work on clusters of virtual machines, in the proportions that [`task`] gives them. There are
//! three clusters. One has 200 instances on 20 nodes, as small as the jobs' catalogue describes, so that thousands of
//! jobs want each resource. One has 50,000 instances on 2,000 nodes, so that there are many names. In the third,
//! every second job wants the same node exclusively.

use divan::{Bencher, black_box};
use turnwise_policy::predictive_queue::locks::{Levels, Requests};
use turnwise_policy::predictive_queue::summary::{Running, Summary};
use turnwise_policy::schedule::{Candidate, Locks, Rules, View, schedule};

const PENDING: i64 = 10_000;
const RUNNING: usize = 1_000;
/// Free slots.
const SLOTS: usize = 20;
const TICK_US: i64 = 30_000_000;
/// Some jobs have waited for twice the time after which they are aged out.
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

/// Numbers that are the same each time: the upper bits of a linear congruential generator.
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

/// The locks of a random task.
fn task(world: World, rng: &mut SeededRng) -> Requests {
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
        // Create, while the node is still unknown.
        550..650 => requests(&format!(
            r#"{{"node_group":{{"shared":["g{g}"]}},"instance":{{"exclusive":["new{i}"]}},"node":{{"exclusive":"unknown"}},"network":{{"shared":["net"]}}}}"#
        )),
        // Read.
        650..950 => {
            requests(&format!(r#"{{"instance":{{"shared":["i{i}"]}},"node":{{"shared":["n{n}"]}}}}"#))
        }
        // Maintenance of a node, of a group; verification; networks.
        950..980 => requests(&format!(
            r#"{{"node":{{"exclusive":["n{n}"]}},"node_resource":{{"exclusive":["n{n}"]}}}}"#
        )),
        980..985 => requests(&format!(r#"{{"node_group":{{"exclusive":["g{g}"]}}}}"#)),
        985..994 => requests(r#"{"instance":{"shared":"all"},"node":{"shared":"all"}}"#),
        994..998 => all_of("network", "exclusive"),
        998 => all_of("node", "exclusive"),
        _ => requests(BIG_LOCK),
    }
}

/// What runs, and pending jobs with the time since which they wait, the newest last.
fn scene(world: World) -> (Summary, Vec<(i64, Requests)>) {
    let (levels, mut rng) = (Levels::default(), SeededRng(7));
    let mut running = Summary::new(&levels);
    let mut started = 0;
    // Compatible jobs, as far as there are enough; then more of those that only read.
    let read = |i: u64| requests(&format!(r#"{{"instance":{{"shared":["read {}"]}}}}"#, i % 100));
    for attempt in 0.. {
        let wanted = if attempt < 10_000 { task(world, &mut rng) } else { read(attempt) };
        if running.obstacle(&wanted.known(&levels)).is_none() && !wanted.is_none() {
            running.add(&Running::starting(&wanted, &levels));
            started += 1;
        }
        if started == RUNNING {
            break;
        }
    }
    let pending = (0..PENDING).map(|n| (NOW_US * n / PENDING, task(world, &mut rng))).collect();
    (running, pending)
}

fn pass(bencher: Bencher<'_, '_>, world: World, jobs: usize) {
    let (running, pending) = scene(world);
    let jobs: Vec<(i64, Requests)> = pending.into_iter().rev().take(jobs).collect();
    let candidate = |(since_us, requests)| Candidate { since_us, ..Candidate::new("", requests) };
    let candidates: Vec<Candidate<'_>> =
        jobs.iter().map(|(since_us, requests)| candidate((*since_us, requests))).collect();
    let locks = Locks { running: &running, reservations: &[] };
    let view = View { locks: Some(locks), ..View::new(&candidates, SLOTS) };
    bencher.bench_local(|| schedule(black_box(&view), &Rules::default(), NOW_US));
}

/// The default window.
#[divan::bench(args = WORLDS, sample_count = 200, sample_size = 1)]
fn pass_of_500(bencher: Bencher<'_, '_>, world: World) {
    pass(bencher, world, 500);
}

/// Smaller and larger windows.
#[divan::bench(args = [100, 1_000], sample_count = 200, sample_size = 1)]
fn pass_of(bencher: Bencher<'_, '_>, jobs: usize) {
    pass(bencher, World::Small, jobs);
}
