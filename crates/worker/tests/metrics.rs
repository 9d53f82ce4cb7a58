//! What workers count: claims, waits, the results of runs, and why they crashed.

use std::sync::Arc;
use std::time::Duration;

use turnwise_queue::State;
use turnwise_worker::{
    CrashKind, External, ExternalEnd, Metrics, Options, Outcome, RunResult, Tunables, TypeMetrics,
};

use crate::common::{Instruction, PATIENCE, T, World, accept, json, slots};

/// Claims, retries, and the waits in µs.
fn starts(of_type: &TypeMetrics) -> (u64, u64, u64) {
    (of_type.claims.get(), of_type.retries.get(), of_type.waits.read().sum_us)
}

#[tokio::test]
async fn the_runs_of_a_worker_are_counted_by_their_results() {
    let mut world = World::new();
    let metrics = Arc::<Metrics>::default();
    let options = Options { metrics: metrics.clone(), exclusive: true, ..slots(1) };
    for id in ["a", "b"] {
        world.add(id).await;
    }
    world.clock.advance(Duration::from_millis(20));
    let worker = world.start_with(&world.store, options).await;
    let first = tokio::time::timeout(PATIENCE, world.runs.recv()).await.unwrap().unwrap();
    world.clock.advance(Duration::from_millis(3));
    let id = first.id.clone();
    first.end(Outcome::Completed(json("1")));
    world.until_state(&id, State::Completed).await;
    let second = tokio::time::timeout(PATIENCE, world.runs.recv()).await.unwrap().unwrap();
    let id = second.id.clone();
    second.instruction.send(Instruction::Panic).ok().unwrap();
    world.until_state(&id, State::Crashing).await;
    let of_type = metrics.of(T);
    // One job waited 20 ms, and the other one also while the first one ran.
    assert_eq!(starts(of_type), (2, 0, 43_000));
    worker.shutdown().await;
    assert_eq!(of_type.results(RunResult::Completed), 1);
    assert_eq!((of_type.results(RunResult::Crashed), of_type.crashes(CrashKind::Panic)), (1, 1));
    assert_eq!((of_type.runs.read().count(), of_type.runs.read().sum_us), (2, 3_000));
}

#[tokio::test]
async fn the_runs_of_an_external_worker_are_counted_and_a_retry_is_one() {
    let world = World::new();
    let metrics = Arc::<Metrics>::default();
    let options = Options { metrics: metrics.clone(), ..Options::default() };
    let external = External::new(world.store.clone(), world.keys.clone(), options);
    let worker = external.register(T, None, 1, None).await.unwrap().id;
    world.add("a").await;
    let never = tokio_util::sync::CancellationToken::new();
    let crash = ExternalEnd::crashed("a fault".to_owned());
    for (received, end) in [(0, crash), (1, ExternalEnd::completed(json("1")))] {
        let mut jobs = accept(&external, T, &worker, (received, 1, Duration::ZERO), &never).await.unwrap();
        let claim = jobs.pop().unwrap().claim;
        // A lost response is sent again, and is no second claim.
        let again = accept(&external, T, &worker, (received, 1, Duration::ZERO), &never).await.unwrap();
        assert_eq!(again.len(), 1);
        world.clock.advance(Duration::from_millis(2));
        for _ in 0..2 {
            external.end(T, &worker, "a", claim, end.clone(), None).await.unwrap();
        }
        // The backoff after the crash.
        world.clock.advance(Duration::from_secs(3_600));
    }
    let of_type = metrics.of(T);
    assert_eq!((of_type.claims.get(), of_type.retries.get()), (2, 1));
    assert_eq!(of_type.results(RunResult::Completed), 1);
    assert_eq!((of_type.results(RunResult::Crashed), of_type.crashes(CrashKind::Error)), (1, 1));
    assert_eq!(of_type.runs.read().sum_us, 4_000);
}

/// A result that is refused fails its job, whatever its handler has said.
#[tokio::test]
async fn a_run_whose_result_is_refused_counts_as_failed() {
    let mut world = World::new();
    let metrics = Arc::<Metrics>::default();
    let tunables = Tunables { max_result_bytes: 10, ..Tunables::default() };
    let options = Options { metrics: metrics.clone(), exclusive: true, tunables, ..slots(1) };
    let large = || json(&format!("\"{}\"", "x".repeat(20)));
    world.add("a").await;
    let worker = world.start_with(&world.store, options.clone()).await;
    let run = tokio::time::timeout(PATIENCE, world.runs.recv()).await.unwrap().unwrap();
    run.end(Outcome::Completed(large()));
    world.until_state("a", State::Failed).await;
    worker.shutdown().await;
    let of_type = metrics.of(T);
    assert_eq!((of_type.results(RunResult::Failed), of_type.results(RunResult::Completed)), (1, 0));
    let external = External::new(world.store.clone(), world.keys.clone(), options);
    let id = external.register(T, None, 1, None).await.unwrap().id;
    world.add("b").await;
    let never = tokio_util::sync::CancellationToken::new();
    let claim = accept(&external, T, &id, (0, 1, Duration::ZERO), &never).await.unwrap().pop().unwrap().claim;
    external.end(T, &id, "b", claim, ExternalEnd::completed(large()), None).await.unwrap();
    assert_eq!((of_type.results(RunResult::Failed), of_type.results(RunResult::Completed)), (2, 0));
}
