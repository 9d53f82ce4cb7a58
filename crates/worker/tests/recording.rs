//! Ends that are written together: fewer transactions, and each end has its own reply.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use async_trait::async_trait;
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::{Claim, Context, Error, Job, Keyspace, NewJob, State, jobs, workers};
use turnwise_store::{Error as StoreError, Transaction};
use turnwise_worker::{JobContext, JobHandler, Options, Outcome, Worker};

use crate::common::{T, World, done, json, slots};

const RUNS: usize = 40;

#[tokio::test]
async fn runs_that_end_together_share_transactions() {
    let mut world = World::new();
    let (store, faulty) = world.faulty();
    let worker = world.start_beside(&store, RUNS).await;
    let ids: Vec<String> = (0..RUNS).map(|n| format!("{n:02}")).collect();
    for id in &ids {
        world.add(id).await;
    }
    let mut runs = Vec::new();
    for _ in &ids {
        runs.push(world.next_run().await);
    }
    // Nothing is written until all of them have ended.
    faulty.pause(true);
    let before = faulty.begun();
    for run in runs {
        run.end(done());
    }
    while world.handler.running.load(SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    faulty.pause(false);
    for id in &ids {
        world.until_state(id, State::Completed).await;
    }
    let begun = faulty.begun() - before;
    assert!(begun < RUNS / 2, "{begun} transactions for {RUNS} ends");
    worker.shutdown().await;
}

#[tokio::test]
async fn a_lost_claim_affects_no_other_end() {
    let mut world = World::new();
    let worker = world.start(3).await;
    for id in ["a", "b", "c"] {
        world.add(id).await;
    }
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(world.next_run().await);
    }
    // Another worker has the job by now, and has ended it once.
    let ours = world.get("b").await.unwrap().claim().unwrap().clone();
    let theirs = Claim { worker: "other".into(), number: 1 };
    let row = workers::Worker::new("other", "n", 0, 9);
    world
        .run(async |tx, keys| {
            workers::register(tx, keys, T, &row)?;
            for claim in [&ours, &theirs] {
                if claim != &ours {
                    jobs::add(tx, keys, &NewJob::new(T, "b", json("{}")), 5).await?;
                    claims::claim(Context::new(tx, keys, T, 6, 20), "b", claim).await?.unwrap();
                }
                let stopped = Ending::Failed("elsewhere".into());
                claims::end(Context::new(tx, keys, T, 7, 20), "b", claim, &stopped, None, None).await?;
            }
            Ok(())
        })
        .await;
    for run in runs {
        run.end(done());
    }
    for id in ["a", "c"] {
        world.until_state(id, State::Completed).await;
    }
    let job = world.get("b").await.unwrap();
    assert_eq!((job.state(), job.reason()), (State::Failed, Some("elsewhere")));
    worker.shutdown().await;
}

/// Its `ended` writes a row and then rejects the completion of one job.
struct Picky;

#[async_trait]
impl JobHandler for Picky {
    async fn run(&self, job: JobContext) -> Outcome {
        // All runs end in the same turn of the runtime.
        Outcome::completed(&job.job.id)
    }

    async fn ended(&self, tx: &Transaction, _: &Keyspace, job: Option<&Job>) -> turnwise_queue::Result<()> {
        let Some(job) = job else { return Ok(()) };
        tx.set(format!("hook {}", job.id).into(), format!("{:?}", job.state()).into())?;
        if job.id == "bad" && job.state() == State::Completed {
            return Err(Error::Store(StoreError::Misuse("no".into())));
        }
        Ok(())
    }
}

#[tokio::test]
async fn an_end_that_cannot_be_written_affects_no_other_end() {
    let world = World::new();
    for id in ["a", "bad", "c", "d"] {
        world.add(id).await;
    }
    let options = Options { exclusive: true, ..slots(4) };
    let (store, keys) = (world.store.clone(), world.keys.clone());
    let worker = Worker::start(store, keys, T, Arc::new(Picky), options).await.unwrap();
    for id in ["a", "c", "d"] {
        world.until_state(id, State::Completed).await;
    }
    let bad = world.until_state("bad", State::Failed).await;
    assert!(bad.reason().unwrap().contains("could not be written"), "{:?}", bad.reason());
    let hook = async |id: &str| {
        let tx = world.store.begin().await.unwrap();
        String::from_utf8(tx.get(&format!("hook {id}").into()).await.unwrap().unwrap().to_vec()).unwrap()
    };
    assert_eq!([hook("a").await, hook("bad").await, hook("d").await], ["Completed", "Failed", "Completed"]);
    worker.shutdown().await;
}
