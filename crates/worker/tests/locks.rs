//! Jobs that lock: which of them start together, which wait and for how long, and what they leave behind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use turnwise_policy::predictive_queue::aging::{Aging, Rules};
use turnwise_policy::predictive_queue::locks::{Mode, Requests};
use turnwise_queue::claims::Ending;
use turnwise_queue::locks::{Asked, How, LockAt, Spot, list};
use turnwise_queue::{Claim, Context, Keyspace, NewJob, RunKey, State, claims, jobs, usage, workers};
use turnwise_store::Store;
use turnwise_worker::{
    External, ExternalEnd, JobContext, LockError, Options, Outcome, Passes, QueueRules, Tunables, Worker,
    handler_fn,
};

use crate::common::{PATIENCE, T, World, accept, done, json, open, run_once_each, tuned};

const NOW: Duration = Duration::ZERO;
/// Locks instances and nodes that it finds out at run time.
const FINDS_OUT: &str = r#"{"instance":{"exclusive":"unknown"},"node":{"exclusive":"unknown"}}"#;

/// A run under the test's control.
struct Run {
    context: Arc<JobContext>,
    end: oneshot::Sender<Outcome>,
}

impl Run {
    fn id(&self) -> &str {
        &self.context.job.id
    }

    fn end(self) {
        self.end.send(done()).unwrap();
    }

    /// Requests a lock in a separate task.
    fn lock(&self, lock: LockAt) -> tokio::task::JoinHandle<Result<(), LockError>> {
        let context = self.context.clone();
        tokio::spawn(async move { context.lock(lock).await })
    }
}

/// A world whose runs are under the test's control.
struct Locking {
    world: World,
    runs: mpsc::UnboundedReceiver<Run>,
    sender: mpsc::UnboundedSender<Run>,
}

impl Locking {
    fn new() -> Self {
        let (sender, runs) = mpsc::unbounded_channel();
        Locking { world: World::new(), runs, sender }
    }

    async fn start(&self, max_jobs: usize, queue: QueueRules) -> Worker {
        let sender = self.sender.clone();
        let handler = handler_fn(move |context: JobContext| {
            let sender = sender.clone();
            async move {
                let (end, ended) = oneshot::channel();
                let context = Arc::new(context);
                sender.send(Run { context: context.clone(), end }).unwrap();
                tokio::select! {
                    () = context.stop.cancelled() => Outcome::Stopped,
                    outcome = ended => outcome.unwrap_or(Outcome::Stopped),
                }
            }
        });
        let options = tuned(Tunables { max_jobs, queue: Arc::new(queue), ..Tunables::default() });
        let World { store, keys, .. } = &self.world;
        Worker::start(store.clone(), keys.clone(), T, Arc::new(handler), options).await.unwrap()
    }

    async fn add(&self, id: &str, locks: &str) {
        add(&self.world.store, &self.world.keys, id, locks).await;
    }

    async fn next(&mut self) -> Run {
        tokio::time::timeout(PATIENCE, self.runs.recv()).await.expect("no job was started").unwrap()
    }

    /// The runs of these jobs, which start without any other event.
    async fn started<const N: usize>(&mut self, ids: [&str; N]) -> [Run; N] {
        let mut runs = BTreeMap::new();
        for _ in ids {
            let run = self.next().await;
            runs.insert(run.id().to_owned(), run);
        }
        ids.map(|id| runs.remove(id).unwrap_or_else(|| panic!("{id} was not started")))
    }

    /// Checks that a pass after everything else leaves this job in the queue.
    async fn stays(&mut self, id: &str) {
        self.add("passer-by", "{}").await;
        let run = self.next().await;
        assert_eq!(run.id(), "passer-by");
        run.end();
        self.world.until_state("passer-by", State::Completed).await;
        assert_eq!(self.world.get(id).await.unwrap().state(), State::Pending);
    }

    /// All holds, waits and reservations, except those of the big lock.
    async fn entries(&self) -> Vec<(How, String, String)> {
        let tx = self.world.store.begin().await.unwrap();
        let entries = list(&tx, &self.world.keys, None, 1_000).await.unwrap();
        let named = entries.into_iter().filter(|entry| entry.lock.spot != Spot::BIG_LOCK);
        named.map(|entry| (entry.how, entry.lock.spot.to_string(), entry.id)).collect()
    }

    /// Lets time pass until this job has a reservation, without any other event.
    async fn reserves(&self, id: &str) {
        let clock = self.world.clock.clone();
        let reserves = self.world.until(id, |job| job.reserved().is_some());
        let mut reserves = std::pin::pin!(reserves);
        loop {
            tokio::select! {
                biased;
                _ = &mut reserves => break,
                () = tokio::task::yield_now() => clock.advance(Duration::from_millis(100)),
            }
        }
    }

    /// Waits until these jobs are completed, and stops the worker. No lock is left.
    async fn finish(&self, worker: Worker, ids: &[&str]) {
        for id in ids {
            self.world.until_state(id, State::Completed).await;
        }
        worker.shutdown().await;
        self.none_left().await;
    }

    async fn none_left(&self) {
        let tx = self.world.store.begin().await.unwrap();
        assert_eq!(list(&tx, &self.world.keys, None, 10).await.unwrap(), []);
    }
}

async fn add(store: &Store, keys: &Keyspace, id: &str, locks: &str) {
    let locks: Requests = serde_json::from_str(locks).unwrap();
    let new = &NewJob::new(T, id, json("{}")).with(|spec| spec.locks = locks);
    let now_us = store.runtime().now_us();
    store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
}

fn exclusive(level: &str, name: &str) -> LockAt {
    LockAt::new(Spot::resource(level, name), Mode::Exclusive)
}

async fn granted(asked: tokio::task::JoinHandle<Result<(), LockError>>) {
    tokio::time::timeout(PATIENCE, asked).await.expect("it waits on").unwrap().unwrap();
}

#[tokio::test]
async fn two_jobs_with_the_same_lock_never_run_together_and_jobs_behind_them_start() {
    let mut locking = Locking::new();
    for (id, locks) in [
        ("a", r#"{"instance":{"exclusive":["x"]}}"#),
        ("b", r#"{"instance":{"exclusive":["x"]}}"#),
        ("c", "{}"),
        ("d", r#"{"instance":{"exclusive":["y"]}}"#),
    ] {
        locking.add(id, locks).await;
        locking.world.clock.advance(Duration::from_micros(1));
    }
    let worker = locking.start(10, QueueRules::default()).await;
    let [a, c, d] = locking.started(["a", "c", "d"]).await;
    assert!(a.context.job.held().is_some() && c.context.job.held().is_none());
    locking.add("e", r#"{"instance":{"shared":["x","y"]}}"#).await;
    locking.stays("b").await;
    locking.stays("e").await;
    a.end();
    let [b] = locking.started(["b"]).await;
    d.end();
    locking.world.until_state("d", State::Completed).await;
    locking.stays("e").await;
    b.end();
    let [e] = locking.started(["e"]).await;
    e.end();
    c.end();
    locking.finish(worker, &["e"]).await;
}

#[tokio::test]
async fn jobs_behind_a_window_full_of_blocked_jobs_start() {
    let mut locking = Locking::new();
    locking.add("000", r#"{"instance":{"exclusive":["x"]}}"#).await;
    for n in 1..100 {
        locking.world.clock.advance(Duration::from_micros(1));
        locking.add(&format!("{n:03}"), r#"{"instance":{"exclusive":["x"]}}"#).await;
    }
    locking.world.clock.advance(Duration::from_micros(1));
    locking.add("free", r#"{"instance":{"exclusive":["y"]}}"#).await;
    let worker = locking.start(2, QueueRules { window: 4, ..QueueRules::default() }).await;
    let [first, free] = locking.started(["000", "free"]).await;
    free.end();
    first.end();
    for n in 1..100 {
        let run = locking.next().await;
        assert_eq!(run.id(), format!("{n:03}"));
        run.end();
    }
    locking.finish(worker, &["099"]).await;
}

#[tokio::test]
async fn an_aged_out_job_starts_despite_a_stream_of_small_jobs() {
    let mut locking = Locking::new();
    let aging = Aging { tick_us: 1_000_000, ticks: 3 };
    let rules = Rules { aging, ..Rules::default() };
    let worker = locking.start(4, QueueRules { rules, ..QueueRules::default() }).await;
    let small = r#"{"node":{"shared":["n"]}}"#;
    locking.add("small", small).await;
    let mut last = locking.next().await;
    locking.add("big", r#"{"node":{"exclusive":["n"]}}"#).await;
    // Until it is aged out, the small jobs overtake it.
    for n in 0..5 {
        locking.add(&format!("small {n}"), small).await;
        let next = locking.next().await;
        assert_eq!(next.id(), format!("small {n}"));
        std::mem::replace(&mut last, next).end();
    }
    assert_eq!(locking.world.get("big").await.unwrap().reserved(), None);
    // No other event: the worker makes a pass because the job is aged out.
    locking.reserves("big").await;
    locking.add("late", small).await;
    locking.stays("late").await;
    last.end();
    let [big] = locking.started(["big"]).await;
    locking.stays("late").await;
    assert!(big.context.job.held().is_some());
    big.end();
    let [late] = locking.started(["late"]).await;
    late.end();
    locking.finish(worker, &["late"]).await;
}

#[tokio::test]
async fn a_job_with_a_reservation_starts_from_behind_a_full_window() {
    let mut locking = Locking::new();
    let aging = Aging { tick_us: 1_000_000, ticks: 3 };
    let rules = Rules { aging, ..Rules::default() };
    let worker = locking.start(4, QueueRules { rules, ..QueueRules::default() }).await;
    let small = r#"{"node":{"shared":["n"]}}"#;
    locking.add("small", small).await;
    let last = locking.next().await;
    locking.add("big", r#"{"node":{"exclusive":["n"]}}"#).await;
    locking.reserves("big").await;
    // More jobs than a pass compares at most. All of them precede the job in the queue, and its reservation blocks them.
    let locks: Requests = serde_json::from_str(small).unwrap();
    let World { store, keys, .. } = &locking.world;
    let late: Vec<NewJob> = (0..1_001)
        .map(|n| {
            NewJob { order_us: Some(1), ..NewJob::new(T, &format!("late {n}"), json("{}")) }
                .with(|spec| spec.locks = locks.clone())
        })
        .collect();
    let now_us = store.runtime().now_us();
    for some in late.chunks(10) {
        store
            .transact(|tx| async move {
                for job in some {
                    jobs::add(&tx, keys, job, now_us).await?;
                }
                Ok::<_, turnwise_queue::Error>(())
            })
            .await
            .unwrap();
    }
    last.end();
    let [big] = locking.started(["big"]).await;
    big.end();
    assert!(locking.next().await.id().starts_with("late"));
    worker.shutdown().await;
}

#[tokio::test]
async fn running_jobs_take_locks_in_lock_order_and_wait_first_come_first_served() {
    let mut locking = Locking::new();
    let worker = locking.start(8, QueueRules::default()).await;
    for id in ["a", "b", "c"] {
        locking.add(id, FINDS_OUT).await;
    }
    let [a, b, c] = locking.started(["a", "b", "c"]).await;
    let (i, n) = (exclusive("instance", "i"), exclusive("node", "n"));
    a.context.lock_all(&[n.clone(), i.clone()]).await.unwrap();
    a.context.lock(i.clone()).await.unwrap();
    let b_asked = b.lock(i.clone());
    locking.world.until_state("b", State::Waiting).await;
    let c_asked = c.lock(i.clone());
    locking.world.until_state("c", State::Waiting).await;
    let names = |entries: Vec<(How, String, String)>| -> Vec<String> {
        entries.into_iter().map(|(how, spot, id)| format!("{id} {how:?} {spot}")).collect()
    };
    assert_eq!(
        names(locking.entries().await),
        ["a Holds instance/i", "a Holds node/n", "b Waits instance/i", "c Waits instance/i"]
    );
    a.context.unlock(std::slice::from_ref(&i.spot)).await.unwrap();
    granted(b_asked).await;
    locking.world.until_state("b", State::Running).await;
    assert_eq!(locking.world.get("c").await.unwrap().state(), State::Waiting);
    // Against the lock order, a job gets locks that are free, but does not wait for others.
    let refused = a.context.lock(i.clone()).await.unwrap_err();
    assert!(matches!(&refused, LockError::OutOfOrder { above, .. } if above.spot == n.spot), "{refused}");
    assert_eq!(
        refused.to_string(),
        "instance/i (exclusive) is not free, and the job holds node/n (exclusive), which comes after it: ask for locks in their order, or declare them"
    );
    a.context.lock(exclusive("instance", "free")).await.unwrap();
    let refused = b.context.lock(exclusive("network", "w")).await.unwrap_err();
    assert!(
        matches!(&refused, LockError::Refused(problem) if problem.contains("has not declared")),
        "{refused}"
    );
    assert!(matches!(Outcome::from(refused), Outcome::Failed(_)));
    // The end of a run releases its locks.
    b.end();
    granted(c_asked).await;
    c.end();
    a.end();
    locking.finish(worker, &["a", "b", "c"]).await;
}

#[tokio::test]
async fn a_job_that_waits_lends_its_slot_and_no_more_slots_are_lent_than_exist() {
    let mut locking = Locking::new();
    let worker = locking.start(2, QueueRules::default()).await;
    let levels = [("instance", "i"), ("node", "n"), ("network", "w")];
    let all = levels.map(|(level, _)| format!(r#""{level}":{{"exclusive":"unknown"}}"#)).join(",");
    locking.add("a", &format!("{{{all}}}")).await;
    let [a] = locking.started(["a"]).await;
    let locks = levels.map(|(level, name)| exclusive(level, name));
    a.context.lock_all(&locks).await.unwrap();
    // One job after the other waits for one of them. The first has its own slot, the others a lent one.
    let mut waiting = Vec::new();
    for ((level, _), lock) in levels.iter().zip(&locks) {
        let id = format!("waits for {level}");
        locking.add(&id, &format!(r#"{{"{level}":{{"exclusive":"unknown"}}}}"#)).await;
        let run = locking.next().await;
        assert_eq!(run.id(), id);
        let asked = run.lock(lock.clone());
        locking.world.until_state(&id, State::Waiting).await;
        waiting.push((run, asked));
    }
    // Four jobs run in two slots, and three of them wait: no third slot is lent.
    locking.add("e", "{}").await;
    // A job that gets its lock continues immediately, although both slots are occupied.
    let mut runs = vec![a];
    for (lock, (run, asked)) in locks.iter().zip(waiting) {
        runs[0].context.unlock(std::slice::from_ref(&lock.spot)).await.unwrap();
        granted(asked).await;
        runs.push(run);
    }
    for left in [3, 2] {
        let run = runs.remove(0);
        let id = run.id().to_owned();
        run.end();
        locking.world.until_state(&id, State::Completed).await;
        assert!(locking.runs.try_recv().is_err(), "another one was started beside {left} in two slots");
    }
    assert_eq!(locking.world.get("e").await.unwrap().state(), State::Pending);
    runs.remove(0).end();
    let [e] = locking.started(["e"]).await;
    runs.remove(0).end();
    e.end();
    locking.finish(worker, &["e"]).await;
}

#[tokio::test]
async fn a_slot_that_is_not_lent_stays_taken() {
    let mut locking = Locking::new();
    let worker = locking.start(2, QueueRules { waiting_uses_slot: true, ..QueueRules::default() }).await;
    for id in ["a", "b", "c"] {
        locking.add(id, FINDS_OUT).await;
        locking.world.clock.advance(Duration::from_micros(1));
    }
    let i = exclusive("instance", "i");
    let [a, b] = locking.started(["a", "b"]).await;
    a.context.lock(i.clone()).await.unwrap();
    let asked = b.lock(i);
    locking.world.until_state("b", State::Waiting).await;
    assert_eq!(locking.world.get("c").await.unwrap().state(), State::Pending);
    assert!(locking.runs.try_recv().is_err());
    a.end();
    granted(asked).await;
    let [c] = locking.started(["c"]).await;
    assert_eq!(
        locking.world.get("a").await.unwrap().state(),
        State::Completed,
        "c was started before a slot was free"
    );
    b.end();
    c.end();
    locking.finish(worker, &["b"]).await;
}

#[tokio::test]
async fn a_run_is_not_charged_for_the_time_in_which_it_lends_its_slot() {
    for (waiting_uses_slot, charged_us) in [(false, 5_000_000), (true, 12_000_000)] {
        let mut locking = Locking::new();
        let worker = locking.start(2, QueueRules { waiting_uses_slot, ..QueueRules::default() }).await;
        let World { store, keys, clock, .. } = &locking.world;
        let (store, keys, clock) = (store.clone(), keys.clone(), clock.clone());
        for id in ["holds", "waits"] {
            let locks = serde_json::from_str(FINDS_OUT).unwrap();
            let job = NewJob::new(T, id, json("{}"))
                .with(|spec| (spec.tenant, spec.locks) = (id.to_owned(), locks));
            let tx = store.begin().await.unwrap();
            jobs::add(&tx, &keys, &job, store.runtime().now_us()).await.unwrap();
            tx.commit().await.unwrap();
        }
        let [holds, waits] = locking.started(["holds", "waits"]).await;
        let i = exclusive("instance", "i");
        holds.context.lock(i.clone()).await.unwrap();
        clock.advance(Duration::from_secs(2));
        let asked = waits.lock(i.clone());
        locking.world.until_state("waits", State::Waiting).await;
        locking.world.settle().await;
        clock.advance(Duration::from_secs(7));
        holds.context.unlock(std::slice::from_ref(&i.spot)).await.unwrap();
        granted(asked).await;
        clock.advance(Duration::from_secs(3));
        waits.end();
        locking.world.until_state("waits", State::Completed).await;
        // The shutdown writes its charges.
        worker.shutdown().await;
        let tx = store.begin().await.unwrap();
        let rows = usage::of_tenant(&tx, &keys, T, "waits").await.unwrap();
        assert_eq!(rows.iter().map(|(_, row)| row.service_us).sum::<u64>(), charged_us, "{rows:?}");
    }
}

#[tokio::test]
async fn a_job_that_stops_waiting_leaves_no_row() {
    let mut locking = Locking::new();
    let worker = locking.start(4, QueueRules::default()).await;
    for id in ["a", "b", "c", "d"] {
        locking.add(id, FINDS_OUT).await;
    }
    let [a, b, c, d] = locking.started(["a", "b", "c", "d"]).await;
    let i = exclusive("instance", "i");
    a.context.lock(i.clone()).await.unwrap();
    // A client cancels it.
    let asked = b.lock(i.clone());
    locking.world.until_state("b", State::Waiting).await;
    locking.world.cancel("b").await;
    assert!(matches!(asked.await.unwrap(), Err(LockError::Stopped | LockError::Lost)));
    locking.world.until_state("b", State::Cancelled).await;
    // Its handler drops the request, and makes another one.
    let asked = c.lock(i.clone());
    locking.world.until_state("c", State::Waiting).await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    locking.world.until_state("c", State::Running).await;
    c.context.lock(exclusive("instance", "another")).await.unwrap();
    let entries = locking.entries().await;
    assert!(entries.iter().all(|(how, ..)| *how == How::Holds), "{entries:?}");
    // A shutdown.
    let asked = d.lock(i);
    locking.world.until_state("d", State::Waiting).await;
    worker.shutdown().await;
    assert!(matches!(asked.await.unwrap(), Err(LockError::Stopped | LockError::Lost)));
    locking.none_left().await;
    for id in ["a", "c", "d"] {
        assert_eq!(locking.world.get(id).await.unwrap().state(), State::Pending);
    }
}

#[tokio::test]
async fn waiting_jobs_get_the_locks_of_a_dead_worker() {
    let mut locking = Locking::new();
    let declared = r#"{"instance":{"exclusive":["i"]}}"#;
    locking.add("dead", declared).await;
    let (row, claim) =
        (workers::Worker::new("ghost", "n", 0, 9), Claim { worker: "ghost".into(), number: 1 });
    let claimed = locking.world.run(async |tx, keys| {
        workers::register(tx, keys, T, &row)?;
        claims::claim(Context::new(tx, keys, T, 2, 20), "dead", &claim).await
    });
    assert!(claimed.await.unwrap().held().is_some());
    let worker = locking.start(4, QueueRules::default()).await;
    locking.add("blocked", declared).await;
    let first = loop {
        tokio::select! {
            biased;
            run = locking.runs.recv() => break run.unwrap(),
            () = locking.world.tick(1) => {}
        }
    };
    assert!(!locking.world.workers().await.contains(&"ghost".to_owned()));
    // The job of the dead worker has crashed, and becomes pending after its backoff.
    while locking.world.get("dead").await.unwrap().state() == State::Crashing {
        locking.world.tick(1).await;
        locking.world.settle().await;
    }
    locking.stays(if first.id() == "dead" { "blocked" } else { "dead" }).await;
    first.end();
    locking.next().await.end();
    locking.finish(worker, &["dead", "blocked"]).await;
}

#[tokio::test]
async fn a_job_is_woken_when_a_job_of_another_type_releases_its_lock() {
    const OTHER: &str = "another type";
    let mut locking = Locking::new();
    let declared = r#"{"instance":{"exclusive":["i"]}}"#;
    let locks: Requests = serde_json::from_str(declared).unwrap();
    let new = NewJob::new(OTHER, "other", json("{}")).with(|spec| spec.locks = locks);
    let (row, claim) = (workers::Worker::new("w", "n", 0, 9), Claim { worker: "w".into(), number: 1 });
    let claimed = locking.world.run(async |tx, keys| {
        workers::register(tx, keys, OTHER, &row)?;
        jobs::add(tx, keys, &new, 2).await?;
        claims::claim(Context::new(tx, keys, OTHER, 2, 20), "other", &claim).await
    });
    assert!(claimed.await.unwrap().held().is_some());
    let worker = locking.start(4, QueueRules::default()).await;
    locking.add("blocked", declared).await;
    locking.stays("blocked").await;
    let ended = locking.world.run(async |tx, keys| {
        let ending = Ending::completed(json("1"));
        claims::end(Context::new(tx, keys, OTHER, 3, 20), "other", &claim, &ending, None, None).await
    });
    ended.await;
    let [blocked] = locking.started(["blocked"]).await;
    blocked.end();
    locking.finish(worker, &["blocked"]).await;
}

#[tokio::test]
async fn external_workers_receive_jobs_with_their_locks_and_wait_for_further_locks() {
    let locking = Locking::new();
    let World { store, keys, .. } = &locking.world;
    let external = External::new(store.clone(), keys.clone(), Options::default());
    let worker = external.register(T, None, 2, None).await.unwrap().id;
    for (id, locks) in [("a", r#"{"instance":{"exclusive":["i"]}}"#), ("b", FINDS_OUT)] {
        locking.add(id, locks).await;
        locking.world.clock.advance(Duration::from_micros(1));
    }
    let leave = &CancellationToken::new();
    let accepted = accept(&external, T, &worker, (0, 2, NOW), leave).await.unwrap();
    let [a, b] = <[_; 2]>::try_from(accepted).unwrap();
    assert_eq!((a.job.id.as_str(), b.job.id.as_str()), ("a", "b"));
    assert!(a.job.held().unwrap().at(&Spot::resource("instance", "i")).is_some());
    let i = [exclusive("instance", "i")];
    let [of_a, of_b] = [a.claim, b.claim].map(|number| Claim { worker: worker.clone(), number });
    let run_b = RunKey::new(T, "b", &of_b);
    let asked = external.lock(run_b, &i, NOW, leave).await.unwrap();
    assert!(matches!(&asked, Asked::Waits(blocked) if blocked.by[0].id == "a"), "{asked:?}");
    // One job waits, and lends its slot.
    locking.add("c", "{}").await;
    let accepted = accept(&external, T, &worker, (b.claim, 1, NOW), leave).await.unwrap();
    assert_eq!(accepted[0].job.id, "c");
    let waits = tokio::spawn({
        let (external, of_b, i, leave) = (external.clone(), of_b.clone(), i.clone(), leave.clone());
        async move { external.lock(RunKey::new(T, "b", &of_b), &i, PATIENCE, &leave).await }
    });
    locking.world.clock.wait_for_sleeper(PATIENCE).await;
    external.end(T, &worker, "a", a.claim, ExternalEnd::completed(json("1")), None).await.unwrap();
    let asked = tokio::time::timeout(PATIENCE, waits).await.expect("it waits on").unwrap();
    assert_eq!(asked.unwrap(), Asked::Granted);
    external.unlock(run_b, std::slice::from_ref(&i[0].spot)).await.unwrap();
    let late = external.lock(RunKey::new(T, "a", &of_a), &i, NOW, leave).await;
    assert!(late.is_err(), "its claim is over");
    external.unwait(run_b).await.unwrap();
    external.leave(T, &worker).await.unwrap();
    locking.none_left().await;
}

/// The held locks, as recorded by the jobs that hold them.
#[derive(Default)]
struct Ledger {
    held: Mutex<BTreeMap<String, (usize, usize)>>,
    violations: Mutex<Vec<String>>,
}

impl Ledger {
    fn take(&self, lock: &LockAt, id: &str) {
        let mut held = self.held.lock().unwrap();
        let (shared, exclusive) = held.entry(lock.spot.to_string()).or_default();
        let alone = lock.mode == Mode::Exclusive;
        if *exclusive > 0 || alone && *shared > 0 {
            self.violations.lock().unwrap().push(format!("{id}: {lock}"));
        }
        *if alone { exclusive } else { shared } += 1;
    }

    fn give_back(&self, lock: &LockAt) {
        let mut held = self.held.lock().unwrap();
        let (shared, exclusive) = held.get_mut(&lock.spot.to_string()).unwrap();
        *if lock.mode == Mode::Exclusive { exclusive } else { shared } -= 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_of_500_jobs_on_three_workers_hold_conflicting_locks() {
    run_with_conflicting_locks(None, true).await;
    run_with_conflicting_locks(Some(Arc::default()), true).await;
}

/// Passes that take turns do not choose the same jobs or locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_workers_of_one_process_do_not_conflict() {
    let conflicts = run_with_conflicting_locks(Some(Arc::default()), false).await;
    println!("{conflicts} conflicts");
    assert!(conflicts <= 10, "{conflicts} conflicts");
}

/// Runs jobs that lock on three workers; with `finds_out`, a quarter of them request theirs during
/// the run. Returns the number of conflicts.
async fn run_with_conflicting_locks(passes: Option<Arc<Passes>>, finds_out: bool) -> u64 {
    const JOBS: usize = 500;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let (keys, ledger) = (Keyspace::default(), Arc::new(Ledger::default()));
    let (ended, mut ends) = mpsc::unbounded_channel();
    for n in 0..JOBS {
        let (instance, node, other) = (n % 23, n % 7, n % 5);
        let locks = match n % 4 {
            0 => format!(r#"{{"instance":{{"exclusive":["i{instance}"]}},"node":{{"shared":["n{node}"]}}}}"#),
            1 => format!(r#"{{"node":{{"exclusive":["n{node}"]}}}}"#),
            2 if finds_out => FINDS_OUT.to_owned(),
            2 => format!(r#"{{"instance":{{"shared":["i{instance}"]}}}}"#),
            _ => format!(r#"{{"node":{{"shared":["n{other}","n{node}"]}}}}"#),
        };
        add(&store, &keys, &format!("{n:03}"), &locks).await;
    }
    let handler = {
        let ledger = ledger.clone();
        move |context: JobContext| {
            let (ledger, ended) = (ledger.clone(), ended.clone());
            async move {
                let id = &context.job.id;
                let mut locks = context.job.held().unwrap().locks();
                locks.iter().for_each(|lock| ledger.take(lock, id));
                let n: usize = id.parse().unwrap();
                if finds_out && n % 4 == 2 {
                    let wanted = [
                        exclusive("instance", &format!("i{}", n % 23)),
                        exclusive("node", &format!("n{}", n % 7)),
                    ];
                    for lock in wanted {
                        if let Err(error) = context.lock(lock.clone()).await {
                            return error.into();
                        }
                        ledger.take(&lock, id);
                        locks.push(lock);
                    }
                }
                for _ in 0..n % 11 {
                    tokio::task::yield_now().await;
                }
                // Before the lock's row is removed.
                locks.iter().for_each(|lock| ledger.give_back(lock));
                ended.send(id.clone()).unwrap();
                done()
            }
        }
    };
    run_once_each(&store, &keys, Arc::new(handler_fn(handler)), 7, &mut ends, JOBS, passes.as_ref()).await;
    let conflicts = store.counters().conflicts;
    assert_eq!(*ledger.violations.lock().unwrap(), Vec::<String>::new());
    let tx = store.begin().await.unwrap();
    for n in 0..JOBS {
        let job = jobs::get(&tx, &keys, T, &format!("{n:03}")).await.unwrap().unwrap();
        assert_eq!(job.state(), State::Completed, "{} {:?}", job.id, job.reason());
    }
    assert_eq!(list(&tx, &keys, None, 10).await.unwrap(), []);
    conflicts
}

#[tokio::test]
async fn jobs_that_can_start_overtake_any_number_of_blocked_jobs() {
    let mut locking = Locking::new();
    let (store, keys) = (locking.world.store.clone(), locking.world.keys.clone());
    let add = |tenant: String, locks: &'static str| {
        let (store, keys) = (store.clone(), keys.clone());
        async move {
            let locks: Requests = serde_json::from_str(locks).unwrap();
            let new = &NewJob::new(T, &tenant, json("{}"))
                .with(|spec| (spec.tenant, spec.locks) = (tenant.clone(), locks));
            let keys = &keys;
            store.transact(|tx| async move { jobs::add(&tx, keys, new, 1).await }).await.unwrap();
        }
    };
    for n in 0..1_500 {
        add(format!("t{n:04}"), r#"{"instance":{"exclusive":["i"]}}"#).await;
    }
    // Behind all other jobs, by its tenant's name.
    for tenant in ["u1", "u2", "u3"] {
        add(tenant.to_owned(), "{}").await;
    }
    add("u4".to_owned(), r#"{"instance":{"exclusive":["j"]}}"#).await;
    let worker = locking.start(10, QueueRules::default()).await;
    let mut started = BTreeMap::new();
    for _ in 0..5 {
        let run = locking.next().await;
        started.insert(run.id().to_owned(), run);
    }
    assert_eq!(started.keys().filter(|id| id.starts_with('u')).count(), 4, "{:?}", started.keys());
    // A later job starts after the pause between two scans.
    add("v1".to_owned(), "{}").await;
    let clock = locking.world.clock.clone();
    let mut next = std::pin::pin!(locking.next());
    let run = loop {
        tokio::select! {
            biased;
            run = &mut next => break run,
            () = tokio::task::yield_now() => clock.advance(Duration::from_millis(1)),
        }
    };
    assert_eq!(run.id(), "v1");
    worker.shutdown().await;
}

/// Sets a stamp of another engine, as in a copied store: it is higher than all later stamps.
async fn copied_stamp(locking: &Locking) {
    locking.world.run(async |tx, keys| Ok(tx.set(keys.lock_wake(), vec![0xff; 10].into())?)).await;
}

#[tokio::test]
async fn in_a_copied_store_a_job_that_waits_for_a_lock_is_woken() {
    let mut locking = Locking::new();
    copied_stamp(&locking).await;
    let worker = locking.start(3, QueueRules::default()).await;
    let x = LockAt::new(Spot::resource("instance", "x"), Mode::Exclusive);
    for id in ["a", "b", "c"] {
        locking.add(id, FINDS_OUT).await;
    }
    let [a, b, c] = locking.started(["a", "b", "c"]).await;
    granted(a.lock(x.clone())).await;
    let b_asks = b.lock(x.clone());
    locking.world.until_state("b", State::Waiting).await;
    a.end();
    granted(b_asks).await;
    // So is the next one, whose stamp is from this engine.
    let c_asks = c.lock(x);
    locking.world.until_state("c", State::Waiting).await;
    b.end();
    granted(c_asks).await;
    c.end();
    locking.finish(worker, &["c"]).await;
}

#[tokio::test]
async fn in_a_copied_store_a_job_that_waits_for_a_lock_does_not_repeat_its_request() {
    let mut locking = Locking::new();
    copied_stamp(&locking).await;
    let worker = locking.start(3, QueueRules::default()).await;
    let named = |name| LockAt::new(Spot::resource("instance", name), Mode::Exclusive);
    for id in ["a", "b", "c"] {
        locking.add(id, FINDS_OUT).await;
    }
    let [a, b, c] = locking.started(["a", "b", "c"]).await;
    granted(a.lock(named("x"))).await;
    granted(a.lock(named("y"))).await;
    let b_asks = b.lock(named("x"));
    locking.world.until_state("b", State::Waiting).await;
    locking.world.settle().await;
    // A release changes the stamp to a lower one, and the next request reads that one.
    a.context.unlock(&[Spot::resource("instance", "y")]).await.unwrap();
    let c_asks = c.lock(named("x"));
    locking.world.until_state("c", State::Waiting).await;
    locking.world.settle().await;
    let before = locking.world.store.counters();
    for _ in 0..3 {
        locking.world.settle().await;
    }
    let asked = locking.world.store.counters().since(&before).gets;
    assert!(asked < 10, "{asked} reads while nothing happens");
    a.end();
    granted(b_asks).await;
    b.end();
    granted(c_asks).await;
    c.end();
    locking.finish(worker, &["c"]).await;
}
