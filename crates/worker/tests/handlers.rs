//! Handlers that misbehave, and handlers that are functions.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use turnwise_queue::{Job, Keyspace, State};
use turnwise_store::Transaction;
use turnwise_worker::{JobContext, JobHandler, Options, Outcome, Worker, handler_fn};

use crate::common::{PATIENCE, T, World, json, slots};

#[tokio::test]
async fn a_function_is_a_handler() {
    let world = World::new();
    let handler = handler_fn(|job: JobContext| async move { Outcome::completed(&job.job.id) });
    let options = Options { exclusive: true, ..Options::default() };
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let worker = Worker::start(store, keys, T, Arc::new(handler), options).await.unwrap();
    world.add("a").await;
    let job = world.until_state("a", State::Completed).await;
    assert_eq!(job.result.as_ref().unwrap().get(), r#""a""#);
    worker.shutdown().await;
}

/// Blocks its thread until the test releases it; jobs named `good` end normally.
struct Blocking {
    let_go: Mutex<mpsc::Receiver<()>>,
    blocks: tokio::sync::mpsc::UnboundedSender<()>,
}

#[async_trait]
impl JobHandler for Blocking {
    async fn run(&self, job: JobContext) -> Outcome {
        if job.job.id != "good" {
            job.report(&"blocks");
            self.blocks.send(()).unwrap();
            // A failing test must end, too.
            let _ = self.let_go.lock().unwrap().recv_timeout(PATIENCE);
        }
        Outcome::Completed(json("1"))
    }
}

struct Blocked {
    world: World,
    worker: Worker,
    let_go: mpsc::Sender<()>,
}

/// A worker with a handler that blocks its thread.
async fn blocked() -> Blocked {
    let world = World::new();
    let (let_go, wait) = mpsc::channel();
    let (blocks, mut blocking) = tokio::sync::mpsc::unbounded_channel();
    let handler = Blocking { let_go: Mutex::new(wait), blocks };
    let options = slots(2);
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let worker = Worker::start(store, keys, T, Arc::new(handler), options).await.unwrap();
    world.add("bad").await;
    tokio::time::timeout(PATIENCE, blocking.recv()).await.unwrap().unwrap();
    Blocked { world, worker, let_go }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_that_blocks_its_thread_for_a_while_ends_with_its_report() {
    let Blocked { world, worker, let_go } = blocked().await;
    let_go.send(()).unwrap();
    let job = world.until_state("bad", State::Completed).await;
    assert_eq!(job.info.as_ref().unwrap().get(), r#""blocks""#);
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_job_that_blocks_its_thread_and_returns_in_time_ends_with_its_outcome() {
    let Blocked { world, worker, let_go } = blocked().await;
    world.cancel("bad").await;
    // From then on another task supervises it.
    let grace = Options::default().stop_grace;
    let begins = world.clock.wait_for_sleepers(grace, 2);
    tokio::time::timeout(PATIENCE, begins).await.expect("no grace period begins");
    let_go.send(()).unwrap();
    let job = world.until_state("bad", State::Completed).await;
    assert_eq!(job.info.as_ref().unwrap().get(), r#""blocks""#);
    worker.shutdown().await;
}

/// Both grace periods pass.
async fn graces(world: &World, sleepers_before: usize) {
    let grace = Options::default().stop_grace;
    for _ in 0..2 {
        let wait = world.clock.wait_for_sleepers(grace, sleepers_before + 1);
        tokio::time::timeout(PATIENCE, wait).await.expect("no grace period begins");
        world.clock.advance(grace);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_job_that_blocks_its_thread_is_abandoned_and_its_worker_continues() {
    let Blocked { world, worker, let_go } = blocked().await;
    world.cancel("bad").await;
    graces(&world, 1).await;
    world.until_state("bad", State::Cancelled).await;
    world.add("good").await;
    world.until_state("good", State::Completed).await;
    let_go.send(()).unwrap();
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shutdown_does_not_wait_for_a_job_that_blocks_its_thread_and_records_why() {
    let Blocked { world, worker, let_go } = blocked().await;
    let leaving = tokio::spawn(worker.shutdown());
    // The shutdown's deadline and its next ping sleep as well.
    graces(&world, 2).await;
    tokio::time::timeout(PATIENCE, leaving).await.expect("the shutdown hangs").unwrap();
    let job = world.get("bad").await.unwrap();
    assert_eq!((job.state(), job.crashes), (State::Crashing, 1));
    assert!(job.reason().unwrap().contains("blocks its thread"), "{:?}", job.reason());
    assert_eq!(world.workers().await.len(), 0, "a row of the worker stays");
    let_go.send(()).unwrap();
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_store_that_hangs() {
    let world = World::new();
    let (store, faulty) = world.faulty();
    let worker = world.start_beside(&store, 1).await;
    let interval = Options::default().health_interval;
    tokio::time::timeout(PATIENCE, world.clock.wait_for_sleeper(interval)).await.unwrap();
    // Its next ping hangs, and so would its shutdown.
    faulty.pause(true);
    world.clock.advance(interval);
    let leaving = tokio::spawn(worker.shutdown());
    let longest = 2 * Options::default().stop_grace + Duration::from_secs(3);
    let deadline = world.clock.wait_for_sleeper(longest);
    tokio::time::timeout(PATIENCE, deadline).await.expect("the shutdown has no deadline");
    world.clock.advance(longest);
    tokio::time::timeout(PATIENCE, leaving).await.expect("the shutdown hangs").unwrap();
    assert_eq!(world.workers().await.len(), 1, "its neighbours will find it dead");
}

/// Its `ended` panics the first time.
struct PanicsInTheEnd(std::sync::atomic::AtomicBool);

#[async_trait]
impl JobHandler for PanicsInTheEnd {
    async fn run(&self, _: JobContext) -> Outcome {
        Outcome::Completed(json("1"))
    }

    async fn ended(&self, _: &Transaction, _: &Keyspace, _: Option<&Job>) -> turnwise_queue::Result<()> {
        assert!(
            self.0.swap(true, std::sync::atomic::Ordering::SeqCst),
            "cannot write what belongs to the end"
        );
        Ok(())
    }
}

#[tokio::test]
async fn a_panic_while_the_end_is_written_fails_the_job_and_frees_its_slot() {
    let world = World::new();
    let options = Options { exclusive: true, ..slots(1) };
    let handler = Arc::new(PanicsInTheEnd(false.into()));
    let worker = Worker::start(world.store.clone(), world.keys.clone(), T, handler, options).await.unwrap();
    world.add("a").await;
    let job = world.until_state("a", State::Failed).await;
    assert!(job.reason().unwrap().contains("could not be written"), "{:?}", job.reason());
    world.add("b").await;
    world.until_state("b", State::Completed).await;
    worker.shutdown().await;
}
