//! Jobs under concurrency limits: how many of them run, and that the others start as these end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_queue::{Job, Keyspace, NewJob, State, check, filters, jobs};
use turnwise_store::{Isolation, RangeRead, Store};
use turnwise_worker::{JobContext, Options, Outcome, Worker, handler_fn, release_filtered};

use crate::common::{PATIENCE, Run, T, World, done, json, open, run_once_each, slots};

async fn add(world: &World, id: &str, change: impl FnOnce(&mut NewJob)) {
    let mut new = NewJob::new(T, id, json("{}"));
    change(&mut new);
    let (keys, new) = (&world.keys, &new);
    let now_us = turnwise_store::Runtime::now_us(&*world.clock);
    world.store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
}

async fn add_in(world: &World, id: &str, reason: &str) {
    add(world, id, |new| new.spec.reasons = vec![reason.to_owned()]).await;
}

async fn started<const N: usize>(world: &mut World, ids: [&str; N]) -> [Run; N] {
    let mut runs = BTreeMap::new();
    for _ in ids {
        let run = world.next_run().await;
        runs.insert(run.id.clone(), run);
    }
    ids.map(|id| runs.remove(id).unwrap_or_else(|| panic!("{id} was not started")))
}

async fn limited(world: &World, id: &str) {
    world.until(id, |job| job.limited().is_some()).await;
}

async fn put(world: &World, rule: &Rule) {
    let keys = &world.keys;
    world.store.transact(|tx| async move { filters::put(&tx, keys, rule).await }).await.unwrap();
}

fn rule(id: &str, priority: i32, when: &str, action: Action, limit: Option<u32>) -> Rule {
    Rule {
        id: id.into(),
        priority,
        watermark_us: 0,
        when: when.into(),
        action,
        limit,
        rate: None,
        note: None,
    }
}

async fn check(store: &Store, keys: &Keyspace) {
    let tx = store.begin().await.unwrap();
    let everything = RangeRead { begin: "".into(), end: b"\xff"[..].into(), limit: 100_000, reverse: false };
    let mut rows = tx.range_with(everything, Isolation::Snapshot).await.unwrap();
    // The rows that the handler writes.
    rows.retain(|(key, _)| keys.contains(key));
    assert_eq!(check::check_rows(keys, &rows), []);
}

#[tokio::test]
async fn a_limited_job_starts_when_a_job_of_its_bucket_ends_and_delays_no_other_job() {
    let mut world = World::new();
    for id in ["a", "b", "c", "d"] {
        add_in(&world, id, "concurrency:2:net").await;
    }
    add(&world, "free", |_| {}).await;
    let worker = world.start(10).await;
    let [a, b, free] = started(&mut world, ["a", "b", "free"]).await;
    for id in ["c", "d"] {
        limited(&world, id).await;
    }
    a.end(done());
    let [c] = started(&mut world, ["c"]).await;
    free.end(done());
    world.until_state("free", State::Completed).await;
    assert!(world.get("d").await.unwrap().limited().is_some());
    world.cancel("b").await;
    let [d] = started(&mut world, ["d"]).await;
    drop(b);
    for run in [c, d] {
        run.end(done());
    }
    for id in ["c", "d"] {
        world.until_state(id, State::Completed).await;
    }
    check(&world.store, &world.keys).await;
    worker.shutdown().await;
}

/// Several workers on a clock that runs by itself.
struct Real {
    store: Store,
    keys: Keyspace,
    runs: mpsc::UnboundedReceiver<(Job, oneshot::Sender<Outcome>)>,
    sender: mpsc::UnboundedSender<(Job, oneshot::Sender<Outcome>)>,
    _dir: tempfile::TempDir,
}

impl Real {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (sender, runs) = mpsc::unbounded_channel();
        let store = open(&dir);
        Real { store, keys: Keyspace::default(), runs, sender, _dir: dir }
    }

    async fn start(&self, max_jobs: usize) -> Worker {
        let sender = self.sender.clone();
        let handler = handler_fn(move |context: JobContext| {
            let sender = sender.clone();
            async move {
                let (end, ended) = oneshot::channel();
                sender.send((context.job.clone(), end)).unwrap();
                tokio::select! {
                    () = context.stop.cancelled() => Outcome::Stopped,
                    outcome = ended => outcome.unwrap_or(Outcome::Stopped),
                }
            }
        });
        let options = slots(max_jobs);
        Worker::start(self.store.clone(), self.keys.clone(), T, Arc::new(handler), options).await.unwrap()
    }

    async fn next(&mut self) -> (Job, oneshot::Sender<Outcome>) {
        tokio::time::timeout(PATIENCE, self.runs.recv()).await.expect("no job was started").unwrap()
    }

    async fn put(&self, rule: &Rule) {
        let keys = &self.keys;
        self.store.transact(|tx| async move { filters::put(&tx, keys, rule).await }).await.unwrap();
    }

    async fn until(&self, id: &str, condition: impl Fn(&Job) -> bool) {
        let wait = async {
            loop {
                let key = self.keys.job(T, id);
                let tx = self.store.begin().await.unwrap();
                let seen = tx.get(&key).await.unwrap();
                let job = jobs::get(&tx, &self.keys, T, id).await.unwrap();
                if job.is_some_and(|job| condition(&job)) {
                    return;
                }
                self.store.watch(key, seen).await.unwrap().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the job never got there");
    }
}

#[tokio::test]
async fn a_filters_limit_counts_across_workers_and_can_be_changed() {
    let mut real = Real::new();
    let stop = CancellationToken::new();
    tokio::spawn(release_filtered((real.store.clone(), real.keys.clone()), stop.clone()));
    real.put(&rule("few", 0, "id ~ '^few'", Action::Concurrency, Some(2))).await;
    let ids = ["few-a", "few-b", "few-c", "few-d", "few-e", "few-f"];
    for (n, id) in (1..).zip(ids) {
        let (keys, new) = (&real.keys, &NewJob::new(T, id, json("{}")));
        real.store.transact(|tx| async move { jobs::add(&tx, keys, new, n).await }).await.unwrap();
    }
    let (one, two) = (real.start(5).await, real.start(5).await);
    let mut runs = vec![real.next().await, real.next().await];
    let held_back = |runs: &[(Job, oneshot::Sender<Outcome>)]| -> Vec<&str> {
        ids.into_iter().filter(|id| runs.iter().all(|(job, _)| job.id != *id)).collect()
    };
    let held_back_by = |most: u32| move |job: &Job| job.limited().is_some_and(|limit| limit.most == most);
    for id in held_back(&runs) {
        real.until(id, held_back_by(2)).await;
    }
    real.put(&rule("few", 0, "id ~ '^few'", Action::Concurrency, Some(3))).await;
    runs.push(real.next().await);
    for id in held_back(&runs) {
        real.until(id, held_back_by(3)).await;
    }
    assert!(runs.iter().all(|(job, _)| job.buckets() == [Bucket::Filter("few".into())]));
    let keys = &real.keys;
    real.store.transact(|tx| async move { filters::remove(&tx, keys, "few").await }).await.unwrap();
    for _ in 0..3 {
        runs.push(real.next().await);
    }
    for (_, end) in runs {
        end.send(done()).unwrap();
    }
    for id in ids {
        real.until(id, |job| job.state() == State::Completed).await;
    }
    check(&real.store, &real.keys).await;
    stop.cancel();
    for worker in [one, two] {
        worker.shutdown().await;
    }
}

#[tokio::test]
async fn a_dead_worker_frees_its_places_in_buckets() {
    let mut world = World::new();
    let dying = world.start_beside(&world.store, 1).await;
    add_in(&world, "a", "concurrency:1:net").await;
    let _lost = world.next_run().await;
    let living = world.start_beside(&world.store, 1).await;
    world.tick(2).await;
    world.clock.wait_for_sleepers(Options::default().health_interval, 2).await;
    drop(dying);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    add_in(&world, "b", "concurrency:1:net").await;
    for _ in 0..6 {
        world.tick(1).await;
    }
    // Its place is free. The lost run itself counts as a crash, and waits for its backoff.
    let b = world.next_run().await;
    assert_eq!(b.id, "b");
    b.end(done());
    world.until_state("b", State::Completed).await;
    for _ in 0..40 {
        world.tick(1).await;
    }
    let again = world.next_run().await;
    assert_eq!(again.id, "a");
    again.end(done());
    world.until_state("a", State::Completed).await;
    check(&world.store, &world.keys).await;
    living.shutdown().await;
}

/// A window with all cases: jobs that a filter pauses, limited jobs, jobs blocked by a lock, and jobs that can start.
#[tokio::test]
async fn among_jobs_that_lock_some_are_paused_and_some_are_limited() {
    let mut world = World::new();
    let stop = CancellationToken::new();
    tokio::spawn(release_filtered((world.store.clone(), world.keys.clone()), stop.clone()));
    put(&world, &rule("moved", 0, "id ~ '^0-paused'", Action::Pause, None)).await;
    put(&world, &rule("gone", 1, "id ~ '^0-rejected'", Action::Reject, None)).await;
    let node = |name: &str| format!(r#"{{"node":{{"exclusive":["{name}"]}}}}"#);
    let locking = async |id: &str, name: &str, reason: Option<&str>| {
        let locks = serde_json::from_str(&node(name)).unwrap();
        let reasons = reason.map(str::to_owned).into_iter().collect();
        add(&world, id, |new| (new.spec.locks, new.spec.reasons) = (locks, reasons)).await;
    };
    for n in 0..5 {
        locking(&format!("0-paused{n}"), "n1", None).await;
        locking(&format!("0-rejected{n}"), "n1", None).await;
    }
    locking("1-first", "n2", Some("concurrency:1:net")).await;
    locking("2-blocked", "n2", None).await;
    locking("3-held-back", "n3", Some("concurrency:1:net")).await;
    locking("4-other", "n4", None).await;
    add(&world, "5-unlocked", |_| {}).await;
    let worker = world.start(4).await;
    let [first, other, unlocked] = started(&mut world, ["1-first", "4-other", "5-unlocked"]).await;
    limited(&world, "3-held-back").await;
    for n in 0..5 {
        assert!(world.until_state(&format!("0-rejected{n}"), State::Cancelled).await.refused.is_some());
        world.until(&format!("0-paused{n}"), |job| job.paused() == Some("moved")).await;
    }
    assert_eq!(
        world.get("2-blocked").await.unwrap().state(),
        State::Pending,
        "locks are waited for in the queue"
    );
    check(&world.store, &world.keys).await;
    first.end(done());
    let [blocked, held_back] = started(&mut world, ["2-blocked", "3-held-back"]).await;
    check(&world.store, &world.keys).await;
    for run in [other, unlocked, blocked, held_back] {
        run.end(done());
    }
    let keys = &world.keys;
    world.store.transact(|tx| async move { filters::remove(&tx, keys, "moved").await }).await.unwrap();
    for _ in 0..5 {
        let run = world.next_run().await;
        assert!(run.id.starts_with("0-paused"), "{}", run.id);
        run.end(done());
    }
    for n in 0..5 {
        world.until_state(&format!("0-paused{n}"), State::Completed).await;
    }
    check(&world.store, &world.keys).await;
    stop.cancel();
    worker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_of_300_jobs_on_three_workers_run_than_their_buckets_allow() {
    const JOBS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let keys = Keyspace::default();
    let (ended, mut ends) = mpsc::unbounded_channel();
    // 7 buckets with 1 to 3 places. A third of the jobs is in two of them, and every second job locks.
    let bucket = |n: usize| format!("concurrency:{}:{}", n % 7 % 3 + 1, n % 7);
    for n in 0..JOBS {
        let mut new = NewJob::new(T, &format!("{n:03}"), json("{}"));
        new.spec.tenant = format!("t{}", n % 4);
        new.spec.reasons = vec![bucket(n)];
        if n % 3 == 0 {
            new.spec.reasons.push(bucket(n / 3));
        }
        if n % 2 == 0 {
            new.spec.locks =
                serde_json::from_str(&format!(r#"{{"node":{{"exclusive":["n{}"]}}}}"#, n % 11)).unwrap();
        }
        let (keys, new) = (&keys, &new);
        let now_us = i64::try_from(n).unwrap();
        store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
    }
    let ledger: Arc<Mutex<BTreeMap<String, (u32, u32)>>> = Arc::default();
    let handler = {
        let ledger = ledger.clone();
        move |context: JobContext| {
            let (ledger, ended) = (ledger.clone(), ended.clone());
            async move {
                let job = &context.job;
                let buckets: std::collections::BTreeSet<&String> = job.reasons.iter().collect();
                for bucket in &buckets {
                    let mut ledger = ledger.lock().unwrap();
                    let (running, most) = ledger.entry((*bucket).clone()).or_default();
                    *running += 1;
                    *most = *running.max(most);
                }
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                for bucket in &buckets {
                    ledger.lock().unwrap().get_mut(*bucket).unwrap().0 -= 1;
                }
                ended.send(job.id.clone()).unwrap();
                done()
            }
        }
    };
    run_once_each(&store, &keys, Arc::new(handler_fn(handler)), 9, &mut ends, JOBS, None).await;
    for (bucket, (running, most)) in &*ledger.lock().unwrap() {
        let limit: u32 = bucket.split(':').nth(1).unwrap().parse().unwrap();
        assert!(*running == 0 && *most <= limit, "{most} of {bucket} ran at once");
    }
    check(&store, &keys).await;
}
