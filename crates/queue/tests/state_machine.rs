//! Every edge of the state machine, and every fence, on the embedded store.

use crate::common::{T, json};
use turnwise_queue::claims::{self, Answer, Ended, Ending};
use turnwise_queue::jobs::{self, Added, Cancelled};
use turnwise_queue::{Claim, Context, Error, Job, NewJob, Result, State, workers};
use turnwise_store::{Isolation, RangeRead};

const HISTORY: usize = 20;

fn new(id: &str) -> NewJob {
    let new = NewJob::new(T, id, json(r#"{"secret":"s"}"#));
    new.with(|spec| (spec.tenant, spec.summary) = ("tenant".into(), json(r#"{"shown":true}"#)))
}

type World = crate::common::World<StateMachine>;

#[derive(Default)]
struct StateMachine;

impl World {
    async fn add(&self, job: &NewJob, now_us: i64) -> Added {
        self.run(async |tx, keys| jobs::add(tx, keys, job, now_us).await).await
    }

    async fn claim(&self, id: &str, worker: &str, now_us: i64) -> Option<Job> {
        let claim = self.next_claim(worker);
        self.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, now_us, HISTORY), id, &claim).await)
            .await
    }

    /// Adds and claims a job.
    async fn started(&self, id: &str, now_us: i64) -> Claim {
        self.add(&new(id), now_us).await;
        self.claim(id, "w", now_us).await.unwrap().claim().unwrap().clone()
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending, now_us: i64) -> Result<Option<Job>> {
        let ended = self.try_run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, now_us, HISTORY), id, claim, &ending, None, None).await
        });
        match ended.await? {
            Ended::Recorded(job) => Ok(job),
            Ended::AlreadyRecorded(_) => Err(Error::Halt),
        }
    }

    async fn state(&self, id: &str) -> Option<State> {
        self.find(id).await.map(|job| job.state())
    }

    async fn cancel(&self, id: &str, now_us: i64) -> Result<Cancelled> {
        self.try_run(async |tx, keys| jobs::cancel(tx, keys, T, id, now_us).await).await
    }

    async fn remove(&self, id: &str) -> Result<()> {
        self.try_run(async |tx, keys| jobs::remove(tx, keys, T, id).await.map(drop)).await
    }

    /// The pending, delayed and active rows and the history of a job: everything except its record.
    async fn places(&self) -> (Vec<String>, Vec<String>, Vec<String>) {
        let tx = self.tx().await;
        let rows = async |(begin, end)| {
            let read = RangeRead { begin, end, limit: 1000, reverse: false };
            tx.range_with(read, Isolation::Snapshot).await.unwrap()
        };
        let pending = rows(self.keys.pending(T)).await;
        let delayed = rows(self.keys.delayed(T)).await;
        let active = rows(self.keys.active(T)).await;
        (
            pending.iter().map(|(key, _)| self.keys.parse_pending(key).unwrap().1).collect(),
            delayed.iter().map(|(key, _)| self.keys.parse_delayed(key).unwrap().1).collect(),
            active.iter().map(|(key, _)| self.keys.parse_active(key).unwrap().1).collect(),
        )
    }

    async fn is_only_in(&self, place: &str, id: &str) {
        let ids = vec![id.to_owned()];
        let expected = match place {
            "pending" => (ids, vec![], vec![]),
            "delayed" => (vec![], ids, vec![]),
            "active" => (vec![], vec![], ids),
            "nowhere" => (vec![], vec![], vec![]),
            other => panic!("no such place: {other}"),
        };
        assert_eq!(self.places().await, expected);
    }

    fn history(job: &Job) -> Vec<String> {
        job.history.iter().map(|event| event.kind.name().to_owned()).collect()
    }
}

#[tokio::test]
async fn add_makes_a_job_pending() {
    let world = World::new().await;
    assert_eq!(world.add(&new("a"), 5).await, Added::Queued);
    let job = world.find("a").await.unwrap();
    assert_eq!((job.state(), job.added_us, job.order_us()), (State::Pending, 5, 5));
    assert_eq!(World::history(&job), ["added"]);
    world.is_only_in("pending", "a").await;
    let options = jobs::options(&world.tx().await, &world.keys, &job).await.unwrap();
    assert_eq!(options.get(), r#"{"secret":"s"}"#);
}

#[tokio::test]
async fn claim_makes_a_pending_job_run() {
    let world = World::new().await;
    world.add(&new("a"), 5).await;
    let job = world.claim("a", "w", 6).await.unwrap();
    assert_eq!(job.claim(), Some(&Claim { worker: "w".into(), number: 1 }));
    assert_eq!((world.state("a").await, job.started_us), (Some(State::Running), Some(6)));
    world.is_only_in("active", "a").await;
    assert!(world.claim("a", "w", 7).await.is_none(), "claimed twice");
    assert!(world.claim("no such job", "w", 7).await.is_none());
}

#[tokio::test]
async fn two_workers_cannot_claim_the_same_job() {
    let world = World::new().await;
    world.register("v").await;
    world.add(&new("a"), 5).await;
    let (one, two) = (world.tx().await, world.tx().await);
    let first = claims::claim(Context::new(&one, &world.keys, T, 6, HISTORY), "a", &world.next_claim("w"))
        .await
        .unwrap();
    let second = claims::claim(Context::new(&two, &world.keys, T, 6, HISTORY), "a", &world.next_claim("v"))
        .await
        .unwrap();
    assert!(first.is_some() && second.is_some(), "both see it pending");
    one.commit().await.unwrap();
    assert!(matches!(two.commit().await, Err(turnwise_store::Error::Conflict)));
}

#[tokio::test]
async fn a_running_job_completes() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    let job = world.end("a", &claim, Ending::completed(json("[1]")), 9).await.unwrap().unwrap();
    assert_eq!((job.state(), job.result.as_ref().unwrap().get()), (State::Completed, "[1]"));
    assert_eq!(World::history(&job), ["completed", "started", "added"]);
    world.is_only_in("nowhere", "a").await;
}

#[tokio::test]
async fn a_running_job_fails() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    let job = world.end("a", &claim, Ending::Failed("no way".into()), 9).await.unwrap().unwrap();
    assert_eq!((job.state(), job.reason()), (State::Failed, Some("no way")));
    world.is_only_in("nowhere", "a").await;
}

fn crash(not_before_us: i64) -> Ending {
    Ending::Crashed { error: "ouch".into(), retry_us: Some(not_before_us) }
}

#[tokio::test]
async fn a_crashed_job_is_pending_again_when_its_backoff_is_over() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    let job = world.end("a", &claim, crash(100), 9).await.unwrap().unwrap();
    assert_eq!((job.state(), job.crashes, job.reason()), (State::Crashing, 1, Some("ouch")));
    world.is_only_in("delayed", "a").await;
    assert!(world.claim("a", "w", 50).await.is_none(), "a crashing job was claimed");

    let release = async |now_us| {
        let tx = world.tx().await;
        let next = claims::release_due(&tx, &world.keys, T, now_us, 10, |_| true).await.unwrap().next_due_us;
        tx.commit().await.unwrap();
        next
    };
    assert_eq!(release(99).await, Some(100));
    world.is_only_in("delayed", "a").await;
    assert_eq!(release(100).await, None);
    world.is_only_in("pending", "a").await;
    let job = world.claim("a", "w", 101).await.unwrap();
    assert_eq!(job.crashes, 1);
    let job = world.end("a", job.claim().unwrap(), Ending::completed(json("1")), 102).await.unwrap().unwrap();
    assert_eq!(job.crashes, 0, "a good end ends the row of crashes");
}

#[tokio::test]
async fn releasing_due_jobs_is_bounded_and_returns_the_next_time() {
    let world = World::new().await;
    for (n, id) in ["a", "b", "c"].iter().enumerate() {
        let claim = world.started(id, 5).await;
        world.end(id, &claim, crash(10 + i64::try_from(n).unwrap()), 9).await.unwrap();
    }
    let tx = world.tx().await;
    let next = claims::release_due(&tx, &world.keys, T, 1000, 2, |_| true).await.unwrap().next_due_us;
    tx.commit().await.unwrap();
    assert_eq!(next, Some(12));
    let (pending, delayed, _) = world.places().await;
    assert_eq!((pending, delayed), (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]));
}

#[tokio::test]
async fn a_stopped_job_is_pending_again_in_its_place() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    world.add(&new("b"), 7).await;
    let job = world.end("a", &claim, Ending::Stopped, 9).await.unwrap().unwrap();
    assert_eq!((job.state(), World::history(&job)[0].as_str()), (State::Pending, "stopped"));
    assert_eq!(world.places().await.0, ["a", "b"]);
}

#[tokio::test]
async fn a_finished_job_that_is_added_again_runs_again() {
    let world = World::new().await;
    for ending in [Ending::completed(json("1")), Ending::Failed("x".into())] {
        let claim = world.started("a", 5).await;
        world.end("a", &claim, ending, 9).await.unwrap();
        assert_eq!(world.add(&new("a"), 20).await, Added::Queued);
        let job = world.find("a").await.unwrap();
        assert!(job.state() == State::Pending && job.result.is_none() && job.added_us == 20);
        world.remove("a").await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_job_that_is_added_again_keeps_its_place_with_new_options() {
    let world = World::new().await;
    world.add(&new("a"), 5).await;
    let again = NewJob { options: json("[2]"), ..new("a") };
    assert_eq!(world.add(&again, 8).await, Added::AlreadyWaiting);
    let job = world.find("a").await.unwrap();
    assert_eq!((job.order_us(), job.state()), (5, State::Pending));
    let options = jobs::options(&world.tx().await, &world.keys, &job).await.unwrap();
    assert_eq!(options.get(), "[2]");
    world.is_only_in("pending", "a").await;
}

#[tokio::test]
async fn a_running_job_that_is_added_again_runs_once_more_after_it_ends() {
    let world = World::new().await;
    for ending in [Ending::completed(json("1")), Ending::Failed("x".into()), Ending::Stopped, crash(99)] {
        let claim = world.started("a", 5).await;
        assert_eq!(world.add(&new("a"), 8).await, Added::RunsAgain);
        world.is_only_in("active", "a").await;
        let job = world.end("a", &claim, ending, 9).await.unwrap().unwrap();
        assert_eq!(job.state(), State::Pending);
        world.is_only_in("pending", "a").await;
        let job = world.claim("a", "w", 10).await.unwrap();
        let job = world.end("a", job.claim().unwrap(), Ending::completed(json("1")), 11).await.unwrap();
        assert_eq!(job.unwrap().state(), State::Completed, "it runs once more, not for ever");
        world.remove("a").await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_job_is_cancelled_at_once() {
    let world = World::new().await;
    world.add(&new("a"), 5).await;
    assert_eq!(world.cancel("a", 6).await.unwrap(), Cancelled::Now);
    assert_eq!(world.state("a").await, Some(State::Cancelled));
    world.is_only_in("nowhere", "a").await;
    assert_eq!(world.cancel("a", 7).await.unwrap(), Cancelled::AlreadyEnded);
    assert!(world.claim("a", "w", 8).await.is_none(), "a cancelled job started");
    assert!(matches!(world.cancel("b", 7).await, Err(Error::NotFound)));

    let claim = world.started("c", 5).await;
    world.end("c", &claim, crash(99), 9).await.unwrap();
    assert_eq!(world.cancel("c", 10).await.unwrap(), Cancelled::Now);
    world.is_only_in("nowhere", "c").await;
}

#[tokio::test]
async fn a_running_job_is_cancelled_when_its_worker_stops_it() {
    let world = World::new().await;
    for ending in [Ending::Stopped, crash(99)] {
        let claim = world.started("a", 5).await;
        let signal = world.keys.signal(T, "w");
        let before = world.tx().await.get(&signal).await.unwrap();
        assert_eq!(world.cancel("a", 6).await.unwrap(), Cancelled::Requested);
        assert_ne!(world.tx().await.get(&signal).await.unwrap(), before, "the worker got no signal");
        let requests = jobs::cancel_requests(&world.tx().await, &world.keys, T, "w").await.unwrap();
        assert_eq!(requests, [claim.number]);

        let tx = world.tx().await;
        let answer = claims::update(&tx, &world.keys, T, "a", &claim, &json("1"), 7).await.unwrap();
        assert_eq!(answer, Answer::Cancel);
        let job = world.end("a", &claim, ending, 9).await.unwrap().unwrap();
        assert_eq!((job.state(), World::history(&job)[0].as_str()), (State::Cancelled, "cancelled"));
        world.is_only_in("nowhere", "a").await;
        world.remove("a").await.unwrap();
    }
}

#[tokio::test]
async fn a_job_that_was_done_before_it_was_stopped_is_completed() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    world.cancel("a", 6).await.unwrap();
    let job = world.end("a", &claim, Ending::completed(json("1")), 9).await.unwrap().unwrap();
    assert_eq!(job.state(), State::Completed);
}

#[tokio::test]
async fn cancelling_a_running_job_also_cancels_its_next_run() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    world.add(&new("a"), 6).await;
    world.cancel("a", 7).await.unwrap();
    let job = world.end("a", &claim, Ending::Stopped, 9).await.unwrap().unwrap();
    assert_eq!(job.state(), State::Cancelled);
}

#[tokio::test]
async fn restarting_a_running_job_stops_it_and_runs_it_with_the_new_options() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    let tx = world.tx().await;
    jobs::add(&tx, &world.keys, &NewJob { options: json("[3]"), ..new("a") }, 6).await.unwrap();
    jobs::restart(&tx, &world.keys, T, "a").await.unwrap();
    tx.commit().await.unwrap();
    let requests = jobs::cancel_requests(&world.tx().await, &world.keys, T, "w").await.unwrap();
    assert_eq!(requests, [claim.number]);
    let job = world.end("a", &claim, Ending::Stopped, 9).await.unwrap().unwrap();
    assert_eq!((job.state(), job.cancel_requested()), (State::Pending, false));
    let options = jobs::options(&world.tx().await, &world.keys, &job).await.unwrap();
    assert_eq!(options.get(), "[3]");
}

#[tokio::test]
async fn a_removed_job_leaves_no_row() {
    let world = World::new().await;
    let everything = |world: &World| {
        let (begin, end) = world.keys.jobs(T);
        (begin, world.keys.options_piece(T, "\u{10ffff}", 0).max(end))
    };
    let large = NewJob { options: json(&format!("\"{}\"", "x".repeat(200_000))), ..new("a") };
    world.add(&large, 5).await;
    world.remove("a").await.unwrap();
    let claim = world.started("b", 5).await;
    world.remove("b").await.unwrap();
    assert_eq!(world.state("b").await, Some(State::Running), "its worker has to stop it first");
    assert!(world.end("b", &claim, Ending::Stopped, 9).await.unwrap().is_none());
    let claim = world.started("c", 5).await;
    world.end("c", &claim, Ending::completed(json("1")), 9).await.unwrap();
    world.remove("c").await.unwrap();
    world.is_only_in("nowhere", "").await;
    let rows = world.tx().await.range(&everything(&world), 100).await.unwrap();
    assert_eq!(rows, []);
    assert!(matches!(world.remove("c").await, Err(Error::NotFound)));
}

#[tokio::test]
async fn large_options_are_stored_in_pieces_and_replaced_whole() {
    let world = World::new().await;
    for size in [10, 300_000, 100_000, 20, 89_998, 90_000] {
        let options = json(&format!("\"{}\"", "x".repeat(size)));
        world.add(&NewJob { options: options.clone(), ..new("a") }, 5).await;
        let job = world.find("a").await.unwrap();
        let read = jobs::options(&world.tx().await, &world.keys, &job).await.unwrap();
        assert_eq!(read.get(), options.get());
    }
}

#[tokio::test]
async fn a_stale_claim_changes_nothing() {
    let world = World::new().await;
    let stale = world.started("a", 5).await;
    world.end("a", &stale, Ending::Stopped, 6).await.unwrap();
    let now_held = world.claim("a", "w", 7).await.unwrap().claim().unwrap().clone();
    assert_ne!(stale, now_held);
    let before = world.tx().await.range(&world.keys.jobs(T), 10).await.unwrap();
    for ending in [Ending::completed(json("1")), Ending::Failed("x".into()), Ending::Stopped, crash(9)] {
        assert!(matches!(world.end("a", &stale, ending, 8).await, Err(Error::Halt)));
    }
    let tx = world.tx().await;
    let update = claims::update(&tx, &world.keys, T, "a", &stale, &json("1"), 8).await;
    assert!(matches!(update, Err(Error::Halt)));
    assert_eq!(world.tx().await.range(&world.keys.jobs(T), 10).await.unwrap(), before);
    world.is_only_in("active", "a").await;
}

#[tokio::test]
async fn a_removed_worker_can_neither_claim_nor_write() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    world.add(&new("b"), 5).await;
    let tx = world.tx().await;
    assert!(workers::remove(Context::new(&tx, &world.keys, T, 8, HISTORY), "w", 10).await.unwrap());
    tx.commit().await.unwrap();
    assert!(matches!(world.end("a", &claim, Ending::Stopped, 9).await, Err(Error::Halt)));
    let tx = world.tx().await;
    let claimed =
        claims::claim(Context::new(&tx, &world.keys, T, 9, HISTORY), "b", &world.next_claim("w")).await;
    assert!(matches!(claimed, Err(Error::Halt)));
    assert!(matches!(workers::ping(&tx, &world.keys, T, "w", 9).await, Err(Error::Halt)));
}

#[tokio::test]
async fn a_lost_workers_jobs_are_pending_again_in_batches() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.started(id, 5).await;
    }
    world.cancel("b", 6).await.unwrap();
    let step = async || {
        let tx = world.tx().await;
        let done = workers::remove(Context::new(&tx, &world.keys, T, 8, HISTORY), "w", 2).await.unwrap();
        tx.commit().await.unwrap();
        done
    };
    assert!(!step().await);
    assert!(workers::list(&world.tx().await, &world.keys, T).await.unwrap().is_empty());
    assert!(step().await);
    let (pending, delayed, active) = world.places().await;
    assert_eq!((pending.len(), delayed.len(), active.len()), (2, 0, 0));
    assert_eq!(world.state("b").await, Some(State::Cancelled), "cancelled jobs never start again");
    let job = world.find("a").await.unwrap();
    assert_eq!((job.state(), World::history(&job)[0].as_str()), (State::Pending, "stopped"));
}

#[tokio::test]
async fn reports_replace_each_other_and_outlive_the_run() {
    let world = World::new().await;
    let claim = world.started("a", 5).await;
    for info in ["{\"n\":1}", "{\"n\":2}"] {
        let tx = world.tx().await;
        let answer = claims::update(&tx, &world.keys, T, "a", &claim, &json(info), 6).await.unwrap();
        assert_eq!(answer, Answer::Continue);
        tx.commit().await.unwrap();
    }
    let active = jobs::active(&world.tx().await, &world.keys, T, 10).await.unwrap();
    let (worker, id, report) = &active[0];
    assert_eq!((worker.as_str(), id.as_str()), ("w", "a"));
    assert_eq!(report.info.as_ref().unwrap().get(), "{\"n\":2}");
    assert_eq!(report.summary.get(), r#"{"shown":true}"#);
    let job = world.end("a", &claim, Ending::Stopped, 9).await.unwrap().unwrap();
    assert_eq!(job.info.as_ref().unwrap().get(), "{\"n\":2}");
}

#[tokio::test]
async fn a_history_is_bounded_in_entries_and_bytes() {
    let world = World::new().await;
    world.add(&new("a"), 0).await;
    for n in 0..40 {
        let job = world.claim("a", "w", n).await.unwrap();
        let reason = "\u{1}ä\"".repeat(5_000);
        let ending = Ending::Crashed { error: reason.into(), retry_us: Some(n) };
        let job = world.end("a", job.claim().unwrap(), ending, n).await.unwrap().unwrap();
        assert!(
            job.history.len() <= HISTORY && job.reason().unwrap().len() <= turnwise_queue::MAX_REASON_BYTES
        );
        let tx = world.tx().await;
        claims::release_due(&tx, &world.keys, T, n, 1, |_| true).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(world.find("a").await.unwrap().history.len(), HISTORY);
}

#[tokio::test]
async fn a_new_job_out_of_bounds_is_refused_with_the_fields_name() {
    let world = World::new().await;
    let long = "x".repeat(5 << 20);
    let cases = [
        ("id", NewJob { id: String::new(), ..new("a") }),
        ("id", NewJob { id: long.clone(), ..new("a") }),
        ("type", NewJob { job_type: long.clone(), ..new("a") }),
        ("tenant", new("a").with(|spec| spec.tenant = String::new())),
        ("user", new("a").with(|spec| spec.user = Some(long.clone()))),
        ("options", NewJob { options: json(&format!("\"{long}\"")), ..new("a") }),
        ("summary", new("a").with(|spec| spec.summary = json(&format!("\"{long}\"")))),
    ];
    for (name, job) in cases {
        let error = jobs::add(&world.tx().await, &world.keys, &job, 5).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { field, .. } if *field == name), "{name}: {error}");
    }
}

#[tokio::test]
async fn jobs_are_listed_in_pages() {
    let world = World::new().await;
    for n in 0..25 {
        world.add(&new(&format!("{n:02}")), n).await;
    }
    let mut seen = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = jobs::list(&world.tx().await, &world.keys, T, after.as_deref(), 10).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        seen.extend(page.into_iter().map(|job| job.into_fields().id));
    }
    assert_eq!(seen, (0..25).map(|n| format!("{n:02}")).collect::<Vec<_>>());
}
