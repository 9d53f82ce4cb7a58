//! Modes: quiet workers take no new jobs until they are resumed, and workers that drain give back what does not end.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_queue::{Mode, State, modes, workers};
use turnwise_worker::{External, Given, Options, Wanted};

use crate::common::{PATIENCE, T, World, done, slots};

const WAIT: Duration = Duration::from_secs(600);

impl World {
    async fn set_mode(&self, worker: &str, mode: Mode) {
        let (_, is_changed) =
            self.run(async |tx, keys| modes::set(tx, keys, T, worker, mode).await).await.unwrap();
        assert!(is_changed);
    }

    async fn set_node(&self, node: &str, mode: Mode) -> usize {
        self.run(async |tx, keys| modes::set_node(tx, keys, node, mode).await).await;
        self.run(async |tx, keys| modes::follow_node(tx, keys, T, node).await).await
    }

    /// The next start, while the clock moves: a job of another worker's part of the queue is claimed after a pause.
    async fn next_start(&mut self) -> crate::common::Run {
        let start = async {
            loop {
                self.settle().await;
                if let Ok(run) = self.runs.try_recv() {
                    return run;
                }
                self.clock.advance(Duration::from_millis(100));
            }
        };
        tokio::time::timeout(PATIENCE, start).await.expect("no job was started")
    }

    async fn starts_nothing(&mut self) {
        self.settle().await;
        assert!(self.runs.try_recv().is_err(), "a quiet worker has started a job");
    }
}

#[tokio::test]
async fn a_quiet_worker_finishes_its_jobs_and_starts_none_until_it_is_resumed() {
    let mut world = World::new();
    let worker = world.start(2).await;
    world.add("a").await;
    let a = world.next_run().await;
    let id = world.workers().await.remove(0);
    world.set_mode(&id, Mode::Quiet).await;
    world.add("b").await;
    world.starts_nothing().await;
    a.end(done());
    world.until_state("a", State::Completed).await;
    world.starts_nothing().await;
    // It stays a member, and has its heartbeats.
    for _ in 0..5 {
        world.tick(1).await;
        world.settle().await;
    }
    world.starts_nothing().await;
    assert_eq!(
        (world.workers().await, world.get("b").await.unwrap().state()),
        (vec![id.clone()], State::Pending)
    );
    world.set_mode(&id, Mode::Active).await;
    assert_eq!(world.next_run().await.id, "b");
    worker.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_did_not_see_the_change_claims_nothing() {
    let mut world = World::new();
    let worker = world.start(2).await;
    let id = world.workers().await.remove(0);
    world.settle().await;
    // In one transaction: whatever the worker reads first, it sees both or neither.
    let new = turnwise_queue::NewJob::new(T, "a", crate::common::json("{}"));
    world
        .run(async |tx, keys| {
            modes::set(tx, keys, T, &id, Mode::Quiet).await?;
            // Without the signal, only its row tells the worker.
            tx.clear(keys.signal(T, &id))?;
            turnwise_queue::jobs::add(tx, keys, &new, 1).await.map(drop)
        })
        .await;
    world.starts_nothing().await;
    // It learns with its heartbeat that it is resumed.
    world
        .run(async |tx, keys| {
            modes::set(tx, keys, T, &id, Mode::Active).await?;
            Ok(tx.clear(keys.signal(T, &id))?)
        })
        .await;
    world.tick(1).await;
    assert_eq!(world.next_run().await.id, "a");
    worker.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_drains_gives_back_what_does_not_end_and_finishes_the_rest() {
    let mut world = World::new();
    world.add_for("acme", "endless", true).await;
    world.add_for("acme", "ends", false).await;
    let first = world.start_beside(&world.store, 2).await;
    let id = world.workers().await.remove(0);
    let (one, two) = (world.next_run().await, world.next_run().await);
    let (endless, ends) = if one.id == "endless" { (one, two) } else { (two, one) };
    let second = world.start_beside(&world.store, 2).await;
    world.settle().await;
    world.set_mode(&id, Mode::Drain).await;
    let again = world.next_start().await;
    assert_eq!(again.id, "endless");
    assert_ne!(again.job.claim().unwrap().worker, id);
    drop(endless);
    assert_eq!(world.get("ends").await.unwrap().claim().unwrap().worker, id);
    ends.end(done());
    world.until_state("ends", State::Completed).await;
    // It is still there, and can be resumed.
    let all = world.run(async |tx, keys| workers::list(tx, keys, T).await).await;
    let drained: Vec<bool> = all.iter().map(|worker| worker.mode == Mode::Drain).collect();
    assert_eq!((all.len(), drained), (2, all.iter().map(|worker| worker.id == id).collect()));
    again.end(done());
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test]
async fn no_job_waits_for_the_part_of_a_quiet_worker() {
    let mut world = World::new();
    let first = world.start_beside(&world.store, 20).await;
    let id = world.workers().await.remove(0);
    world.set_mode(&id, Mode::Quiet).await;
    let second = world.start_beside(&world.store, 20).await;
    world.settle().await;
    for n in 0..20 {
        world.add(&format!("job {n}")).await;
    }
    // The clock does not move: all jobs are of the second worker's part.
    for _ in 0..20 {
        world.next_run().await.end(done());
    }
    let contenders = world.run(async |tx, keys| workers::contenders(tx, keys, T, 64).await).await;
    assert_eq!((contenders.names.len(), contenders.members.len()), (1, 2));
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test]
async fn a_node_keeps_its_mode_through_a_restart() {
    let mut world = World::new();
    let options = || Options { node: "n1".into(), ..slots(1) };
    let worker = world.start_with(&world.store, options()).await;
    assert_eq!(world.set_node("n1", Mode::Quiet).await, 1);
    assert_eq!(world.set_node("n2", Mode::Drain).await, 0);
    world.add("a").await;
    world.starts_nothing().await;
    worker.shutdown().await;
    let worker = world.start_with(&world.store, options()).await;
    world.starts_nothing().await;
    let nodes = world.run(async |tx, keys| modes::of_nodes(tx, keys).await).await;
    assert_eq!(nodes, [("n1".to_owned(), Mode::Quiet), ("n2".to_owned(), Mode::Drain)]);
    assert_eq!(world.set_node("n1", Mode::Active).await, 1);
    assert_eq!(world.next_run().await.id, "a");
    worker.shutdown().await;
}

#[tokio::test]
async fn a_quiet_external_worker_waits_without_standing_in_the_line() {
    let world = World::new();
    let external = External::new(world.store.clone(), world.keys.clone(), Options::default());
    let (quiet, other) = (
        external.register(T, None, 1, None).await.unwrap().id,
        external.register(T, None, 1, None).await.unwrap().id,
    );
    let waits = |worker: &str| {
        let (external, worker) = (external.clone(), worker.to_owned());
        let wanted = Wanted { received: 0, limit: 1, wait: WAIT, tenants: None };
        tokio::spawn(async move { external.accept(T, &worker, wanted, &CancellationToken::new()).await })
    };
    let given = async |waiting: tokio::task::JoinHandle<turnwise_queue::Result<Given>>| {
        let given = tokio::time::timeout(PATIENCE, waiting).await.expect("it waits on").unwrap().unwrap();
        let ids: Vec<String> = given.jobs.iter().map(|accepted| accepted.job.id.clone()).collect();
        (ids, given.mode)
    };
    // It is the first in the line when it becomes quiet.
    let first = waits(&quiet);
    world.clock.wait_for_sleepers(WAIT, 1).await;
    world.settle().await;
    let second = waits(&other);
    world.clock.wait_for_sleepers(WAIT, 2).await;
    world.set_mode(&quiet, Mode::Quiet).await;
    world.add("a").await;
    assert_eq!(given(second).await, (vec!["a".to_owned()], Mode::Active));
    assert!(!first.is_finished());
    assert_eq!(external.ping(T, &quiet).await.unwrap().mode, Mode::Quiet);
    // Its request goes on when it is resumed.
    world.add("b").await;
    world.set_mode(&quiet, Mode::Active).await;
    assert_eq!(given(first).await, (vec!["b".to_owned()], Mode::Active));
    // One that drains gets an answer soon, and what it holds already again.
    world.set_mode(&quiet, Mode::Drain).await;
    let (ids, mode) = given(waits(&quiet)).await;
    assert_eq!((ids, mode), (vec!["b".to_owned()], Mode::Drain));
    let wanted = Wanted { received: 1, limit: 1, wait: WAIT, tenants: None };
    let leave = CancellationToken::new();
    let waiting = external.accept(T, &quiet, wanted, &leave);
    let drained = async {
        world.clock.wait_for_sleepers(Duration::from_secs(1), 1).await;
        world.clock.advance(Duration::from_secs(1));
    };
    let (drained, ()) =
        tokio::time::timeout(PATIENCE, async { tokio::join!(waiting, drained) }).await.unwrap();
    let drained = drained.unwrap();
    assert_eq!((drained.jobs.len(), drained.mode), (0, Mode::Drain));
}
