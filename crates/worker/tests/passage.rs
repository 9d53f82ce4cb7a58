//! A clock that a test of another program moves: everything happens as if the time had passed, but workers live in real time.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_calendar::{Calendar, When};
use turnwise_queue::deadlines::{self, Timeouts};
use turnwise_queue::schedules::{self, NewSchedule, Overlap, Template};
use turnwise_queue::{Job, JobSpec, Keyspace, Lifetime, NewJob, State, jobs};
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::{Store, Transaction, runtime::Movable};
use turnwise_worker::{
    Deadlines, External, Groups, Live, Metrics, Options, Passage, Retention, RetentionOptions, Schedules,
};

use crate::common::{PATIENCE, T, accept, json};

const HOUR: Duration = Duration::from_secs(3_600);
const HOUR_US: i64 = 3_600_000_000;

struct Moved {
    store: Store,
    keys: Keyspace,
    external: External,
    metrics: Arc<Metrics>,
    passage: Passage,
    _dir: tempfile::TempDir,
}

impl Moved {
    fn new() -> Moved {
        let dir = tempfile::tempdir().unwrap();
        let machine = Arc::<Movable>::default();
        let options =
            embedded::Options { durable: false, runtime: machine.clone(), ..embedded::Options::default() };
        let store = Store::new(Embedded::open_with(dir.path(), options).unwrap(), machine.clone());
        let (keys, metrics) = (Keyspace::default(), Arc::<Metrics>::default());
        let external = External::new(store.clone(), keys.clone(), Options::default());
        let own = || (store.clone(), keys.clone());
        let ((store, keys), waiting_jobs) = (own(), Live::from(0));
        let schedules = Schedules { store, keys, waiting_jobs, metrics: metrics.clone() };
        let (store, keys) = own();
        let groups = Groups { store, keys };
        let (store, keys) = own();
        let retention = Retention { store, keys, options: RetentionOptions::default().into() };
        let (store, keys) = own();
        let deadlines = Deadlines { store, keys, external: external.clone() };
        let passage = Passage { machine, schedules, groups, retention, deadlines, turn: Arc::default() };
        let (store, keys) = own();
        Moved { store, keys, external, metrics, passage, _dir: dir }
    }

    fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }

    async fn run<R>(
        &self,
        body: impl AsyncFnOnce(&Transaction, &Keyspace) -> turnwise_queue::Result<R>,
    ) -> R {
        let tx = self.store.begin().await.unwrap();
        let value = body(&tx, &self.keys).await.unwrap();
        tx.commit().await.unwrap();
        value
    }

    async fn add(&self, new: NewJob) {
        let now_us = self.now_us();
        self.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await).await;
    }

    async fn get(&self, id: &str) -> Option<Job> {
        self.run(async |tx, keys| jobs::get(tx, keys, T, id).await).await
    }

    async fn state(&self, id: &str) -> State {
        self.get(id).await.unwrap().state()
    }

    /// How many runs would exceed a timeout by the clock.
    async fn deadlines_due(&self) -> usize {
        let now_us = self.now_us();
        self.run(async |tx, keys| deadlines::due(tx, keys, None, now_us, 9).await).await.0.len()
    }

    async fn advance(&self, hours: u32) {
        let before_us = self.now_us();
        let now_us = self.passage.advance(hours * HOUR, false).await.unwrap();
        assert!(now_us >= before_us + i64::from(hours) * HOUR_US);
    }
}

fn new(id: &str) -> NewJob {
    NewJob::new(T, id, json("{}"))
}

#[tokio::test]
async fn each_instant_of_a_schedule_has_its_job() {
    let moved = Moved::new();
    let when = When::Every { every_us: HOUR_US, offset_us: 0 };
    let template =
        Template { job_type: T.to_owned(), spec: JobSpec::default(), priority: None, states_locks: false };
    let calendar = Calendar { when, from_us: None, until_us: None };
    let schedule =
        NewSchedule { overlap: Overlap::Allow, ..NewSchedule::new("s", calendar, template, json("{}")) };
    let now_us = moved.now_us();
    moved.run(async |tx, keys| schedules::put(tx, keys, &schedule, now_us).await).await;
    moved.advance(26).await;
    let fires: Vec<_> = moved.metrics.fires().filter(|(_, count)| *count > 0).collect();
    assert_eq!(fires, [("added", 26)]);
    let first_us = (now_us / HOUR_US + 1) * HOUR_US;
    for n in 0..26 {
        let at_us = first_us + n * HOUR_US;
        let job = moved.get(&schedules::job_id("s", at_us)).await.unwrap();
        let fired_us = job.schedule.as_ref().map(|of| of.fired_us).unwrap();
        assert!((at_us..at_us + HOUR_US / 2).contains(&fired_us), "{fired_us} is not soon after {at_us}");
    }
}

#[tokio::test]
async fn jobs_that_are_due_are_pending_then_and_late_ones_have_failed() {
    let moved = Moved::new();
    let not_before_us = Some(moved.now_us() + 25 * HOUR_US);
    moved.add(NewJob { not_before_us, ..new("delayed") }).await;
    let lifetime = Lifetime { start_within_us: Some(25 * HOUR_US), keep_us: None };
    moved.add(new("late").with(|spec| spec.lifetime = lifetime)).await;
    moved.advance(24).await;
    assert_eq!((moved.state("delayed").await, moved.state("late").await), (State::Delayed, State::Pending));
    moved.advance(2).await;
    assert_eq!((moved.state("delayed").await, moved.state("late").await), (State::Pending, State::Failed));
    moved.advance(6 * 24).await;
    assert!(moved.get("late").await.is_some(), "records are kept for seven days");
    moved.advance(24).await;
    assert!(moved.get("late").await.is_none());
}

#[tokio::test]
async fn runs_grow_older_only_where_the_test_says_so() {
    let moved = Moved::new();
    let stop = CancellationToken::new();
    let service = tokio::spawn(moved.passage.deadlines.clone().run(stop.clone()));
    let worker = moved.external.register(T, None, 2, None).await.unwrap().id;
    let timeouts = |run_us, heartbeat_us| Timeouts { run_us, heartbeat_us };
    moved.add(new("a").with(|spec| spec.timeouts = timeouts(Some(HOUR_US), None))).await;
    moved.add(new("b").with(|spec| spec.timeouts = timeouts(None, Some(3 * HOUR_US)))).await;
    let accepted = accept(&moved.external, T, &worker, (0, 2, PATIENCE), &stop).await.unwrap();
    assert_eq!(accepted.len(), 2);
    moved.advance(26).await;
    // The service finds them due by the clock, and lets them run.
    let looked = async {
        while moved.deadlines_due().await > 0 {
            moved.store.runtime().sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looked).await.expect("the service does not look at the runs");
    assert_eq!((moved.state("a").await, moved.state("b").await), (State::Running, State::Running));
    moved.passage.advance(HOUR - Duration::from_secs(60), true).await.unwrap();
    assert_eq!((moved.state("a").await, moved.state("b").await), (State::Running, State::Running));
    moved.passage.advance(Duration::from_secs(60), true).await.unwrap();
    assert_ne!(moved.state("a").await, State::Running);
    assert_eq!(moved.state("b").await, State::Running);
    moved.passage.advance(2 * HOUR, true).await.unwrap();
    let job = moved.get("b").await.unwrap();
    assert!(job.reason().is_some_and(|reason| reason.contains("heartbeat_timeout")), "{:?}", job.reason());
    stop.cancel();
    service.await.unwrap();
}
