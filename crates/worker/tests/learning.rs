//! The locks that jobs took in past runs determine the order of later jobs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use turnwise_policy::predictive_queue::experience::Traits;
use turnwise_policy::predictive_queue::locks::{Mode, Requests};
use turnwise_queue::locks::{Asked, LockAt, Spot, list};
use turnwise_queue::{Claim, NewJob, RunKey, State, jobs, learnt};
use turnwise_worker::{
    External, ExternalEnd, ExternalOptions, JobContext, Options, Outcome, QueueRules, Weight, Worker,
    handler_fn, weigh,
};

use crate::common::{PATIENCE, T, World, done, json};

const NOW: Duration = Duration::ZERO;
/// Longer than a read value is used.
const LATER: Duration = Duration::from_secs(31);
const UNKNOWN: &str = r#"{"node":{"exclusive":"unknown"}}"#;

#[derive(Deserialize)]
struct JobOptions {
    instance: String,
}

/// A run that is about to take its locks, and ends when the test lets it.
struct Run {
    id: String,
    lock: oneshot::Sender<()>,
    end: oneshot::Sender<()>,
}

impl Run {
    fn end(self) {
        self.lock.send(()).unwrap();
        self.end.send(()).unwrap();
    }
}

/// A world whose jobs find out at run time which node their instance is on.
struct Learning {
    world: World,
    runs: mpsc::UnboundedReceiver<Run>,
    sender: mpsc::UnboundedSender<Run>,
    nodes: Arc<Mutex<BTreeMap<String, String>>>,
}

fn node(name: &str) -> LockAt {
    LockAt::new(Spot::resource("node", name), Mode::Exclusive)
}

fn of(instance: &str) -> Traits {
    Traits { kind: T.to_owned(), values: vec![("instance".to_owned(), instance.to_owned())] }
}

impl Learning {
    fn new() -> Self {
        let (sender, runs) = mpsc::unbounded_channel();
        let nodes =
            [("web1", "n1"), ("web2", "n2")].map(|(instance, node)| (instance.to_owned(), node.to_owned()));
        Learning { world: World::new(), runs, sender, nodes: Arc::new(Mutex::new(nodes.into())) }
    }

    async fn start(&self, max_jobs: usize) -> Worker {
        let (sender, nodes) = (self.sender.clone(), self.nodes.clone());
        let handler = handler_fn(move |context: JobContext| {
            let (sender, nodes) = (sender.clone(), nodes.clone());
            async move {
                let (lock, may_lock) = oneshot::channel();
                let (end, may_end) = oneshot::channel();
                sender.send(Run { id: context.job.id.clone(), lock, end }).unwrap();
                if may_lock.await.is_err() {
                    return Outcome::Stopped;
                }
                let options: JobOptions = serde_json::from_str(context.options.get()).unwrap();
                let found = nodes.lock().unwrap().get(&options.instance).cloned();
                if let Some(name) = found
                    && let Err(error) = context.lock(node(&name)).await
                {
                    return error.into();
                }
                let _ = may_end.await;
                done()
            }
        });
        let options = Options { max_jobs, ..Options::default() };
        let World { store, keys, .. } = &self.world;
        Worker::start(store.clone(), keys.clone(), T, Arc::new(handler), options).await.unwrap()
    }

    async fn add(&self, id: &str, instance: &str, locks: &str) {
        let locks: Requests = serde_json::from_str(locks).unwrap();
        let options = json(&serde_json::json!({ "instance": instance }).to_string());
        let new = &NewJob { locks, traits: of(instance), ..NewJob::new(T, id, options) };
        let World { store, keys, clock, .. } = &self.world;
        clock.advance(Duration::from_micros(1));
        let now_us = store.runtime().now_us();
        store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
    }

    async fn next(&mut self) -> Run {
        tokio::time::timeout(PATIENCE, self.runs.recv()).await.expect("no job was started").unwrap()
    }

    /// This many complete runs, from the add to the end.
    async fn run(&mut self, instance: &str, runs: usize) {
        for n in 0..runs {
            let id = format!("{instance} {n}");
            self.add(&id, instance, UNKNOWN).await;
            let run = self.next().await;
            assert_eq!(run.id, id);
            run.end();
            self.world.until_state(&id, State::Completed).await;
        }
    }

    /// Fills both slots, one of them with a job that holds `held`. Lets these jobs wait, and returns the one that
    /// starts in the slot that becomes free.
    async fn first_of(&mut self, held: &str, waiting: [(&str, &str); 2]) -> String {
        self.add("holder", "none", &format!(r#"{{"node":{{"exclusive":["{held}"]}}}}"#)).await;
        let holder = self.next().await;
        self.add("filler", "none", "{}").await;
        let filler = self.next().await;
        for (id, instance) in waiting {
            self.add(id, instance, UNKNOWN).await;
        }
        filler.end();
        let first = self.next().await;
        let id = first.id.clone();
        // All runs end, also those that wait for locks.
        first.lock.send(()).unwrap();
        first.end.send(()).unwrap();
        holder.end();
        let second = self.next().await;
        second.end();
        for id in ["holder", "filler", waiting[0].0, waiting[1].0] {
            self.world.until_state(id, State::Completed).await;
        }
        id
    }

    /// A job's weight, and its likely locks with the number of runs.
    async fn weight(&self, id: &str) -> (f64, Vec<(String, usize, usize)>) {
        let World { store, keys, .. } = &self.world;
        let tx = store.begin().await.unwrap();
        let job = jobs::get(&tx, keys, T, id).await.unwrap().unwrap();
        let Weight { predicted, likely, .. } =
            weigh(store, &tx, keys, &QueueRules::default(), &job, &[]).await.unwrap();
        let likely = likely
            .iter()
            .map(|likely| (serde_json::to_string(&likely.set).unwrap(), likely.alike, likely.runs));
        (predicted.total.to_f64(), likely.collect())
    }
}

#[tokio::test]
async fn after_some_runs_a_job_whose_likely_node_is_free_starts_first() {
    let mut learning = Learning::new();
    let worker = learning.start(2).await;
    // Nothing is known: they start in the order of their adds.
    assert_eq!(learning.first_of("n1", [("a", "web1"), ("b", "web2")]).await, "a");
    for instance in ["web1", "web2"] {
        learning.run(instance, 2).await;
    }
    // Read values are used for a while, so time passes first.
    learning.world.clock.advance(LATER);
    assert_eq!(learning.first_of("n1", [("c", "web1"), ("d", "web2")]).await, "d");
    assert_eq!(learning.first_of("n2", [("e", "web1"), ("f", "web2")]).await, "e");
    worker.shutdown().await;
    let tx = learning.world.store.begin().await.unwrap();
    assert_eq!(list(&tx, &learning.world.keys, None, 10).await.unwrap(), []);
}

#[tokio::test]
async fn likely_locks_keep_no_job_from_starting() {
    let mut learning = Learning::new();
    let worker = learning.start(2).await;
    learning.run("web1", 3).await;
    learning.add("a", "web1", UNKNOWN).await;
    let a = learning.next().await;
    learning.add("b", "web1", UNKNOWN).await;
    // It will probably lock what `a` locks; it starts, and waits if necessary.
    let b = learning.next().await;
    assert_eq!((a.id.as_str(), b.id.as_str()), ("a", "b"));
    a.lock.send(()).unwrap();
    learning.world.until("a", |job| job.held().is_some_and(|held| held.len() > 1)).await;
    b.lock.send(()).unwrap();
    learning.world.until_state("b", State::Waiting).await;
    a.end.send(()).unwrap();
    b.end.send(()).unwrap();
    learning.world.until_state("b", State::Completed).await;
    worker.shutdown().await;
}

#[tokio::test]
async fn the_likely_locks_of_a_running_job_count_until_it_has_locked() {
    let mut learning = Learning::new();
    let worker = learning.start(1).await;
    for instance in ["web1", "web2"] {
        learning.run(instance, 3).await;
    }
    learning.add("runs", "web1", UNKNOWN).await;
    let runs = learning.next().await;
    learning.add("alike", "web1", UNKNOWN).await;
    learning.add("other", "web2", UNKNOWN).await;
    learning.add("unknown", "web3", UNKNOWN).await;
    let likely = |node: &str| vec![(format!(r#"{{"exclusive":["{node}"]}}"#), 3, 3)];
    // It has locked nothing yet.
    assert_eq!(learning.weight("alike").await, (4.0, likely("n1")));
    assert_eq!(learning.weight("other").await, (1.5, likely("n2")));
    assert_eq!(learning.weight("unknown").await, (2.5, vec![]));
    // It locks something that it has never locked before.
    learning.nodes.lock().unwrap().insert("web1".to_owned(), "n9".to_owned());
    runs.lock.send(()).unwrap();
    learning.world.until("runs", |job| job.held().is_some_and(|held| held.len() > 1)).await;
    assert_eq!(learning.weight("alike").await, (1.5, likely("n1")));
    runs.end.send(()).unwrap();
    for _ in 0..3 {
        learning.next().await.end();
    }
    worker.shutdown().await;
}

#[tokio::test]
async fn new_runs_change_the_prediction() {
    let mut learning = Learning::new();
    let worker = learning.start(1).await;
    learning.run("web1", 16).await;
    learning
        .add("waits", "web1", r#"{"instance":{"exclusive":["web1"]},"node":{"exclusive":"unknown"}}"#)
        .await;
    let first = learning.next().await;
    let likely = |node: &str, alike| vec![(format!(r#"{{"exclusive":["{node}"]}}"#), alike, 16)];
    assert_eq!(learning.weight("waits").await.1, likely("n1", 16));
    first.end();
    learning.world.until_state("waits", State::Completed).await;
    learning.nodes.lock().unwrap().insert("web1".to_owned(), "n7".to_owned());
    let guesses = async |learning: &mut Learning, runs| {
        learning.run("web1", runs).await;
        learning.weight("waits").await.1
    };
    assert_eq!(guesses(&mut learning, 4).await, likely("n1", 12));
    assert_eq!(guesses(&mut learning, 1).await, []);
    assert_eq!(guesses(&mut learning, 7).await, likely("n7", 12));
    worker.shutdown().await;
}

#[tokio::test]
async fn runs_of_external_workers_are_learnt_and_they_receive_lighter_jobs_first() {
    let learning = Learning::new();
    let World { store, keys, clock, .. } = &learning.world;
    let external = External::new(store.clone(), keys.clone(), ExternalOptions::default());
    let worker = &external.register(T, None, 3).await.unwrap().id;
    let leave = &CancellationToken::new();
    let mut received = 0;
    let mut accept = async || {
        let accepted = external.accept(T, worker, received, 1, NOW, leave).await.unwrap();
        received = accepted[0].claim;
        (accepted[0].job.id.clone(), accepted[0].claim)
    };
    let lock = async |id: &str, claim, name: &str| {
        let claim = Claim { worker: worker.clone(), number: claim };
        let asked = external.lock(RunKey::new(T, id, &claim), &[node(name)], NOW, leave).await.unwrap();
        assert_eq!(asked, Asked::Granted);
    };
    let end = async |id: &str, claim| {
        external.end(T, worker, id, claim, ExternalEnd::Completed(json("1")), None).await.unwrap();
    };
    for n in 0..6 {
        let (instance, name) = [("web1", "n1"), ("web2", "n2")][n % 2];
        learning.add(&format!("teaches {n}"), instance, UNKNOWN).await;
        let (id, claim) = accept().await;
        lock(&id, claim, name).await;
        if n > 3 {
            // Released before the end, which is sent twice.
            let of_run = Claim { worker: worker.clone(), number: claim };
            external.unlock(RunKey::new(T, &id, &of_run), &[node(name).spot]).await.unwrap();
            end(&id, claim).await;
        }
        end(&id, claim).await;
    }
    let tx = store.begin().await.unwrap();
    assert!(learnt::get(&tx, keys, T, "instance", "web1").await.unwrap().is_some());
    learning.add("holder", "none", r#"{"node":{"exclusive":["n1"]}}"#).await;
    let (holder, holds) = accept().await;
    assert_eq!(holder, "holder");
    learning.add("a", "web1", UNKNOWN).await;
    learning.add("b", "web2", UNKNOWN).await;
    assert_eq!(learning.weight("a").await, (4.0, vec![(r#"{"exclusive":["n1"]}"#.to_owned(), 3, 3)]));
    clock.advance(LATER);
    let (first, _) = accept().await;
    let (second, _) = accept().await;
    assert_eq!((first.as_str(), second.as_str()), ("b", "a"));
    end("holder", holds).await;
    external.leave(T, worker).await.unwrap();
}
