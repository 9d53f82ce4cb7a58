//! The faults, one after the other; and the check that every node works soon after each of them.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::World;
use super::ledger::{Entry, Kind};
use turnwise_testkit::Random;

/// The time within which a node works again after a fault, on a machine that is also compiling.
const RECOVERY: Duration = Duration::from_secs(60);
/// The time between two checks of a node.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The number of faults after which a store in use is checked.
const CHECK_EACH: u64 = 5;
/// How far clocks jump, in seconds.
const JUMPS: [i64; 6] = [7_200, -7_200, 90, -90, 86_400, 0];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillNode,
    StopNode,
    PauseNode,
    FewDescriptors,
    FullDisk,
    ClockJump,
    KillWorkers,
    PauseJobs,
    Copy,
    KillStoreServer,
    PauseStoreServer,
    CutStore,
    /// Nothing happens to nodes and stores for a while, so that the delays of webhooks can be judged.
    Quiet,
}

const ALL: [Fault; 13] = [
    Fault::KillNode,
    Fault::StopNode,
    Fault::PauseNode,
    Fault::FewDescriptors,
    Fault::FullDisk,
    Fault::ClockJump,
    Fault::KillWorkers,
    Fault::PauseJobs,
    Fault::Copy,
    Fault::KillStoreServer,
    Fault::PauseStoreServer,
    Fault::CutStore,
    Fault::Quiet,
];

/// Causes one fault after the other until the end. Each kind occurs once before any kind occurs again.
pub(super) async fn run(world: &World) {
    let mut random = Random::new(world.options.seed ^ 0xfa17);
    let mut left: Vec<Fault> = Vec::new();
    let mut count = 0;
    loop {
        let calm = between(&mut random, world.options.calm_ms);
        tokio::select! {
            () = world.stop.cancelled() => break,
            () = tokio::time::sleep(calm) => {}
        }
        if left.is_empty() {
            let wanted =
                |fault: &Fault| world.options.faults.is_empty() || fault.is_in(&world.options.faults);
            left = ALL.into_iter().filter(wanted).collect();
        }
        let index = usize::try_from(random.below(left.len() as u64)).expect("an index");
        let fault = left.swap_remove(index);
        *world.fault.lock().expect("no holder of this lock panics") = format!("{fault:?}");
        let begun = Instant::now();
        if fault.stops_nodes() {
            world.calm.disturb();
        }
        if !happen(world, fault, &mut random).await {
            world.calm.settle();
            continue;
        }
        count += 1;
        world.counts.add(&format!("faults: {fault:?}"), 1);
        recover(world, fault).await;
        world.calm.settle();
        println!(
            "{:>5} s: {fault:?}, {:.1} s",
            world.begun.elapsed().as_secs(),
            begun.elapsed().as_secs_f64()
        );
        if count % CHECK_EACH == 0 && world.store.is_shared() {
            check(world).await;
        }
        world.fault.lock().expect("no holder of this lock panics").clear();
    }
}

impl Fault {
    /// Whether a node, the store or the way to it does not work meanwhile.
    fn stops_nodes(self) -> bool {
        !matches!(self, Fault::KillWorkers | Fault::PauseJobs | Fault::ClockJump | Fault::Quiet)
    }

    /// Whether a list names this fault.
    fn is_in(self, names: &[String]) -> bool {
        names.iter().any(|name| name.eq_ignore_ascii_case(&format!("{self:?}")))
    }
}

/// Checks the names of faults.
pub(super) fn check_names(names: &[String]) -> Result<(), String> {
    match names.iter().find(|name| !ALL.iter().any(|fault| fault.is_in(std::slice::from_ref(name)))) {
        Some(unknown) => Err(format!("there is no fault {unknown}; there are {ALL:?}")),
        None => Ok(()),
    }
}

fn between(random: &mut Random, (least, most): (u64, u64)) -> Duration {
    Duration::from_millis(least + random.below(most - least))
}

/// Causes one fault and ends it. Returns whether it was possible here.
async fn happen(world: &World, fault: Fault, random: &mut Random) -> bool {
    let away = between(random, world.options.fault_ms);
    let number = usize::try_from(random.below(64)).expect("small");
    let victim = number % world.nodes.len();
    let node = &world.nodes[victim];
    match fault {
        Fault::KillNode => {
            world.down(victim, true);
            node.kill().await;
            tokio::time::sleep(away / 4).await;
            node.start(&world.store.url(victim)).await;
            world.down(victim, false);
        }
        Fault::StopNode => {
            world.down(victim, true);
            if let Err(problem) = node.stop().await {
                world.ledger.finding(problem);
            }
            node.start(&world.store.url(victim)).await;
            world.down(victim, false);
        }
        Fault::PauseNode => {
            node.signal("-STOP").await;
            tokio::time::sleep(away).await;
            node.signal("-CONT").await;
        }
        Fault::FewDescriptors => {
            let spare = usize::try_from(random.below(12)).expect("small");
            let Some(before) = node.take_descriptors(spare).await else { return false };
            tokio::time::sleep(away).await;
            node.limit_descriptors(&before).await;
        }
        Fault::FullDisk => {
            let Some(disk) = &world.store.disk else { return false };
            disk.fill().await;
            tokio::time::sleep(away).await;
            disk.free().await;
        }
        Fault::ClockJump => {
            if !world.has_faketime {
                return false;
            }
            let jump = JUMPS[usize::try_from(random.below(JUMPS.len() as u64)).expect("an index")];
            world.largest_jump.fetch_max(jump, std::sync::atomic::Ordering::Relaxed);
            world.set_clocks(jump);
            tokio::time::sleep(away).await;
            if random.below(2) == 0 {
                world.set_clocks(0);
            }
        }
        Fault::KillWorkers => {
            world.kill_workers.send_replace(number);
            world.execs.replace(number).await;
        }
        Fault::PauseJobs => {
            let filter = json!({ "action": "pause", "when": "tenant ~ \"1\"" });
            let put =
                world.ask_some(&world.api, random, Method::PUT, "/v1/filters/chaos", Some(&filter)).await;
            tokio::time::sleep(away).await;
            world.remove_filter().await;
            return put.success().is_some();
        }
        Fault::Quiet => {
            if world.webhooks.is_none() {
                return false;
            }
            tokio::select! {
                () = world.stop.cancelled() => {}
                () = tokio::time::sleep(between(random, world.options.quiet_ms)) => {}
            }
        }
        Fault::Copy => copy(world).await,
        Fault::KillStoreServer => return world.store.kill_server(number, away / 2).await,
        Fault::PauseStoreServer => return world.store.pause_server(number, away).await,
        Fault::CutStore => return world.store.cut(away).await,
    }
    true
}

/// Stops all nodes, checks the store, copies it to another one, checks that one, and continues with the copy.
async fn copy(world: &World) {
    for (number, node) in world.nodes.iter().enumerate() {
        world.down(number, true);
        // The first node is killed, because a store can be copied in any state that a process left.
        if number == 0 {
            node.kill().await;
        } else if let Err(problem) = node.stop().await {
            world.ledger.finding(problem);
        }
    }
    check(world).await;
    let from = world.store.url(0);
    let (to, between) = world.store.next();
    let way: Vec<String> = [Some(from), between, Some(to)].into_iter().flatten().collect();
    match copy_along(world, &way).await {
        Ok(()) => world.store.copied().await,
        Err(problem) => world.ledger.finding(problem),
    }
    for (number, node) in world.nodes.iter().enumerate() {
        node.start(&world.store.url(number)).await;
        world.down(number, false);
    }
}

/// Copies from each of these stores to the next one, and checks the copy.
async fn copy_along(world: &World, way: &[String]) -> Result<(), String> {
    for step in way.windows(2) {
        world.binary.store(&["copy", &step[0], &step[1]]).await?;
        world.binary.store(&["check", &step[1]]).await?;
    }
    Ok(())
}

/// Requires that `turnwise store check` finds nothing.
pub(super) async fn check(world: &World) {
    world.counts.add("store checks", 1);
    if let Err(problem) = world.binary.store(&["check", &world.store.url(0)]).await {
        world.ledger.finding(problem);
    }
}

/// Checks that every node responds again, and accepts jobs.
async fn recover(world: &World, fault: Fault) {
    for (number, node) in world.nodes.iter().enumerate() {
        if works_within(world, number, RECOVERY).await {
            continue;
        }
        let up = world.api.ask(number, Method::GET, "/_up", None).await;
        let text = format!("node {number} does not work {RECOVERY:?} after {fault:?}: {up:?}");
        world.ledger.finding(text);
        node.kill().await;
        node.start(&world.store.url(number)).await;
        if !works_within(world, number, RECOVERY).await {
            world.ledger.finding(format!("node {number} does not work after a restart, either"));
        }
    }
}

async fn works_within(world: &World, number: usize, time: Duration) -> bool {
    let id = format!("probe-{}", world.batches.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let key = format!("mail/{id}");
    world.ledger.adding(vec![(key.clone(), Entry::new(Kind::Done, &key))]);
    let job = json!({ "type": "mail", "id": id, "options": { "kind": "Done", "bytes": 0 } });
    let works = async {
        loop {
            let up = world.api.ask(number, Method::GET, "/_up", None).await;
            if up.success().is_some() {
                let added =
                    world.api.ask(number, Method::POST, "/v1/jobs", Some(&json!({ "jobs": [job] }))).await;
                if added.success().is_some() {
                    return;
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let works = tokio::time::timeout(time, works).await.is_ok();
    world.ledger.change(&key, |entry| entry.acknowledged = works);
    works
}
