//! Jobs whose runs exceed a timeout are taken back from live workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_queue::check::check_rows;
use turnwise_queue::claims::Report;
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::locks::{Asked, LockAt, Spot};
use turnwise_queue::{Claim, Error, NewJob, RunKey, State, jobs, workers};
use turnwise_store::{Isolation, RangeRead};
use turnwise_worker::{Accepted, Deadlines, External, ExternalEnd, Options, Tunables};

use crate::common::{Instruction, PATIENCE, T, World, accept, json, tuned};

const TEN: Timeouts = Timeouts { run_us: None, heartbeat_us: Some(10_000_000) };
const WHOLE: Timeouts = Timeouts { run_us: Some(10_000_000), heartbeat_us: None };
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

async fn add(world: &World, id: &str, timeouts: Timeouts) {
    let new = NewJob::new(T, id, json("{}")).with(|spec| spec.timeouts = timeouts);
    let now_us = turnwise_store::Runtime::now_us(&*world.clock);
    world.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await).await;
}

/// Lets time pass for a run in this process, once it waits for the rest of it.
async fn passes(world: &World, seconds: u64, rest: u64) {
    let wait = world.clock.wait_for_sleeper(Duration::from_secs(rest));
    tokio::time::timeout(PATIENCE, wait).await.expect("nothing waits for that");
    world.clock.advance(Duration::from_secs(seconds));
    world.settle().await;
}

async fn until_crashed(world: &World, id: &str, why: &str) {
    let job = world.until_state(id, State::Crashing).await;
    assert_eq!((job.attempts, job.crashes), (1, 1));
    assert!(job.reason().is_some_and(|reason| reason.contains(why)), "{:?}", job.reason());
}

#[tokio::test]
async fn a_run_in_this_process_that_reports_nothing_is_stopped_and_has_crashed() {
    let mut world = World::new();
    let worker = world.start(1).await;
    add(&world, "a", TEN).await;
    let run = world.next_run().await;
    passes(&world, 8, 10).await;
    assert!(run.instruction.send(Instruction::Report(1)).is_ok());
    world.settle().await;
    // It has ten more seconds.
    passes(&world, 8, 10).await;
    assert_eq!(world.get("a").await.unwrap().state(), State::Running);
    passes(&world, 2, 2).await;
    until_crashed(&world, "a", "reported nothing for its heartbeat_timeout of 10s").await;
    worker.shutdown().await;
}

#[tokio::test]
async fn a_handler_that_hangs_is_aborted_after_its_timeout() {
    let mut world = World::new();
    let timeouts = Arc::new(BTreeMap::from([(T.to_owned(), WHOLE)]));
    let options =
        Options { exclusive: true, ..tuned(Tunables { max_jobs: 1, timeouts, ..Tunables::default() }) };
    let grace = options.stop_grace;
    let worker = world.start_with(&world.store, options).await;
    world.add("a").await;
    let run = world.next_run().await;
    let (hangs, hanging) = tokio::sync::oneshot::channel();
    assert!(run.instruction.send(Instruction::Hang(hangs)).is_ok());
    hanging.await.unwrap();
    passes(&world, 10, 10).await;
    assert_eq!(world.get("a").await.unwrap().state(), State::Running, "it has its grace period");
    passes(&world, grace.as_secs(), grace.as_secs()).await;
    until_crashed(&world, "a", "ran for longer than its timeout of 10s").await;
    assert_eq!(world.handler.running.load(SeqCst), 0);
    worker.shutdown().await;
}

#[tokio::test]
async fn an_idle_run_need_not_report_and_a_continuous_one_has_no_timeout() {
    let mut world = World::new();
    let worker = world.start(1).await;
    let timeouts = TEN.or(WHOLE);
    let new =
        NewJob::new(T, "a", json("{}")).with(|spec| (spec.timeouts, spec.continuous) = (timeouts, true));
    world.run(async |tx, keys| jobs::add(tx, keys, &new, 5).await).await;
    let run = world.next_run().await;
    assert!(run.instruction.send(Instruction::Idle).is_ok());
    world.settle().await;
    for _ in 0..5 {
        passes(&world, 10, 10).await;
    }
    assert_eq!(world.get("a").await.unwrap().state(), State::Running);
    worker.shutdown().await;
}

/// A server of an external worker, with its deadline checks.
struct Served {
    world: World,
    external: External,
    worker: String,
    stop: CancellationToken,
}

impl Served {
    async fn new(options: Options) -> Served {
        let world = World::new();
        let external = External::new(world.store.clone(), world.keys.clone(), options);
        let worker = external.register(T, None, 5, None).await.unwrap().id;
        let served = Served { world, external, worker, stop: CancellationToken::new() };
        served.serve(&served.external);
        served
    }

    /// Starts the checks, with this server's knowledge.
    fn serve(&self, external: &External) {
        let (store, keys) = (self.world.store.clone(), self.world.keys.clone());
        let deadlines = Deadlines { store, keys, external: external.clone() };
        tokio::spawn(deadlines.run(self.stop.clone()));
    }

    /// Accepts a job; `received` is the last claim that was received.
    async fn accept(&self, received: u64) -> Accepted {
        let leave = CancellationToken::new();
        let accepted = accept(&self.external, T, &self.worker, (received, 1, PATIENCE), &leave).await;
        accepted.unwrap().remove(0)
    }

    /// Lets this many checks happen, each after this time on the clock.
    async fn check(&self, checks: usize, each: Duration) {
        for _ in 0..checks {
            let wait = self.world.clock.wait_for_sleepers(CHECK_INTERVAL, 1);
            tokio::time::timeout(PATIENCE, wait).await.expect("the server makes no check");
            self.world.clock.advance(each);
            self.world.settle().await;
        }
        let wait = self.world.clock.wait_for_sleepers(CHECK_INTERVAL, 1);
        tokio::time::timeout(PATIENCE, wait).await.expect("the server makes no check");
    }

    async fn update(&self, id: &str, claim: u64) -> turnwise_queue::Result<()> {
        self.external.update(T, &self.worker, id, claim, Report::of(Some(&json("1")))).await.map(drop)
    }

    async fn state(&self, id: &str) -> State {
        self.world.get(id).await.unwrap().state()
    }

    async fn is_sound(&self) {
        let tx = self.world.store.begin().await.unwrap();
        let all = RangeRead { begin: "".into(), end: "\u{ff}".into(), limit: 10_000, reverse: false };
        let rows = tx.range_with(all, Isolation::Snapshot).await.unwrap();
        let rows: Vec<_> = rows.into_iter().filter(|(key, _)| self.world.keys.contains(key)).collect();
        assert_eq!(check_rows(&self.world.keys, &rows), []);
    }
}

#[tokio::test]
async fn an_external_run_that_hangs_is_taken_back_from_a_worker_that_pings() {
    let timeouts = Arc::new(BTreeMap::from([(T.to_owned(), TEN)]));
    let served = Served::new(tuned(Tunables { timeouts, ..Tunables::default() })).await;
    served.world.add("a").await;
    let claim = served.accept(0).await.claim;
    served.is_sound().await;
    served.check(8, CHECK_INTERVAL).await;
    served.update("a", claim).await.unwrap();
    // The first of these checks covers the pause in which the run has reported.
    served.check(10, CHECK_INTERVAL).await;
    assert_eq!(served.state("a").await, State::Running, "it has reported");
    served.check(2, CHECK_INTERVAL).await;
    until_crashed(&served.world, "a", "reported nothing for its heartbeat_timeout of 10s").await;
    // The worker is still a member, but its claim is gone.
    served.external.ping(T, &served.worker).await.unwrap();
    assert!(matches!(served.update("a", claim).await, Err(Error::Halt)));
    let end = ExternalEnd::completed(json("1"));
    let ended = served.external.end(T, &served.worker, "a", claim, end, None).await;
    assert!(matches!(ended, Err(Error::Halt)), "{ended:?}");
    let gone = served.world.run(async |tx, keys| workers::get(tx, keys, T, &served.worker).await).await;
    assert!(gone.is_some());
    served.is_sound().await;
    served.stop.cancel();
}

#[tokio::test]
async fn a_timeout_ends_a_run_however_often_it_reports() {
    let served = Served::new(Options::default()).await;
    add(&served.world, "a", WHOLE).await;
    let claim = served.accept(0).await.claim;
    for _ in 0..10 {
        served.check(1, CHECK_INTERVAL).await;
        served.update("a", claim).await.unwrap();
    }
    served.check(2, CHECK_INTERVAL).await;
    until_crashed(&served.world, "a", "ran for longer than its timeout of 10s").await;
    served.stop.cancel();
}

#[tokio::test]
async fn a_clock_that_jumps_ends_no_run_and_a_hanging_run_is_still_found() {
    let served = Served::new(Options::default()).await;
    add(&served.world, "a", TEN.or(Timeouts { run_us: Some(60_000_000), heartbeat_us: None })).await;
    let claim = served.accept(0).await.claim;
    served.check(3, CHECK_INTERVAL).await;
    // The clock is set two hours forward, or the machine was suspended for as long.
    served.check(1, Duration::from_secs(7_200)).await;
    assert_eq!(served.state("a").await, State::Running);
    served.update("a", claim).await.unwrap();
    served.check(9, CHECK_INTERVAL).await;
    assert_eq!(served.state("a").await, State::Running);
    served.check(3, CHECK_INTERVAL).await;
    until_crashed(&served.world, "a", "heartbeat_timeout").await;
    served.stop.cancel();
}

#[tokio::test]
async fn a_server_that_has_just_started_gives_a_run_one_more_heartbeat_timeout() {
    let served = Served::new(Options::default()).await;
    served.stop.cancel();
    add(&served.world, "a", TEN).await;
    served.accept(0).await;
    served.world.clock.advance(Duration::from_secs(30));
    served.world.settle().await;
    let stop = CancellationToken::new();
    let (store, keys) = (served.world.store.clone(), served.world.keys.clone());
    let external = External::new(store.clone(), keys.clone(), Options::default());
    tokio::spawn(Deadlines { store, keys, external }.run(stop.clone()));
    served.check(10, CHECK_INTERVAL).await;
    assert_eq!(served.state("a").await, State::Running, "no server has observed it for its timeout");
    served.check(1, CHECK_INTERVAL).await;
    until_crashed(&served.world, "a", "heartbeat_timeout").await;
    stop.cancel();
}

#[tokio::test]
async fn a_run_that_waits_for_a_lock_need_not_report() {
    need_not_report(40).await;
}

#[tokio::test]
async fn a_lock_wait_between_two_checks_resets_the_heartbeat_timeout() {
    need_not_report(8).await;
}

/// A run waits for a lock for this many checks, and then has its whole timeout for a report.
async fn need_not_report(checks: usize) {
    let served = Served::new(Options::default()).await;
    let lock = LockAt { spot: Spot::resource("instance", "x"), mode: Mode::Exclusive, units: 1 };
    let mut claims = Vec::new();
    for (id, timeouts) in [("holds", Timeouts::default()), ("waits", TEN)] {
        let locks = serde_json::from_str(r#"{"instance":{"exclusive":"unknown"}}"#).unwrap();
        let new = NewJob::new(T, id, json("{}")).with(|spec| (spec.timeouts, spec.locks) = (timeouts, locks));
        served.world.run(async |tx, keys| jobs::add(tx, keys, &new, 5).await).await;
        claims.push(served.accept(claims.last().copied().unwrap_or(0)).await.claim);
    }
    let leave = CancellationToken::new();
    leave.cancel();
    let claim_of = |number| Claim { worker: served.worker.clone(), number };
    let ask = async |id: &str, number| {
        let claim = claim_of(number);
        served
            .external
            .lock(RunKey::new(T, id, &claim), std::slice::from_ref(&lock), Duration::ZERO, &leave)
            .await
    };
    assert!(matches!(ask("holds", claims[0]).await.unwrap(), Asked::Granted));
    assert!(matches!(ask("waits", claims[1]).await.unwrap(), Asked::Waits(_)));
    served.check(checks, CHECK_INTERVAL).await;
    assert_eq!(served.state("waits").await, State::Waiting);
    let holds = claim_of(claims[0]);
    served.external.unlock(RunKey::new(T, "holds", &holds), std::slice::from_ref(&lock.spot)).await.unwrap();
    assert!(matches!(ask("waits", claims[1]).await.unwrap(), Asked::Granted));
    served.check(9, CHECK_INTERVAL).await;
    assert_eq!(served.state("waits").await, State::Running);
    // The first check after it has got the lock detects that; at most one timeout later the run expires.
    served.check(13, CHECK_INTERVAL).await;
    until_crashed(&served.world, "waits", "heartbeat_timeout").await;
    // Its locks are released.
    served.is_sound().await;
    served.stop.cancel();
}
