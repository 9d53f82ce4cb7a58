//! The time before and after a run: delayed jobs, jobs that are added once, attempts, and repeated ends. Also claims that
//! the worker never received, and the pruning of ended jobs.

use crate::common::{T, by, json};
use turnwise_policy::backoff::Waits;
use turnwise_queue::claims::{self, Ended, Ending};
use turnwise_queue::jobs::{self, Added, Cancelled, Retried};
use turnwise_queue::{
    Claim, Context, DEFAULT_TENANT, Error, EventKind, NewJob, Retry, State, Terms, workers,
};

fn new(id: &str) -> NewJob {
    NewJob::new(T, id, json("{}"))
}

fn crash(not_before_us: i64) -> Ending {
    Ending::Crashed { error: "ouch".into(), retry_us: Some(not_before_us) }
}

type World = crate::common::World<Lifecycle>;

#[derive(Default)]
struct Lifecycle;

impl World {
    async fn add(&self, new: &NewJob, now_us: i64) -> Added {
        self.run(async |tx, keys| jobs::add(tx, keys, new, now_us).await).await
    }

    async fn claim(&self, id: &str, number: u64) -> Option<Claim> {
        let claim = by(number);
        let job = self
            .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 7, 20), id, &claim).await)
            .await;
        job.and_then(|job| job.claim().cloned())
    }

    async fn end(
        &self,
        id: &str,
        claim: &Claim,
        ending: Ending,
        now_us: i64,
    ) -> turnwise_queue::Result<Ended> {
        self.try_run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, now_us, 20), id, claim, &ending, None, None).await
        })
        .await
    }

    async fn release(&self, now_us: i64) -> Option<i64> {
        self.run(async |tx, keys| claims::release_due(tx, keys, T, now_us, 10, |_| true).await)
            .await
            .next_due_us
    }
}

#[tokio::test]
async fn a_job_for_later_waits_until_its_time_has_come() {
    let world = World::new().await;
    let later = NewJob { not_before_us: Some(100), ..new("a") };
    assert_eq!(world.add(&later, 5).await, Added::Delayed);
    assert_eq!(world.get("a").await.state(), State::Delayed);
    assert_eq!(world.claim("a", 1).await, None);
    assert_eq!(world.release(99).await, Some(100));
    assert!(world.front(DEFAULT_TENANT).await.is_empty());
    assert_eq!(world.release(100).await, None);
    assert_eq!(world.front(DEFAULT_TENANT).await, ["a"]);
    let past = NewJob { not_before_us: Some(100), ..new("b") };
    assert_eq!(world.add(&past, 100).await, Added::Queued, "its time has come already");
}

#[tokio::test]
async fn a_job_for_later_that_is_added_again_moves_to_the_new_time() {
    let world = World::new().await;
    let at = |not_before_us| NewJob { not_before_us, ..new("a") };
    world.add(&at(Some(100)), 5).await;
    assert_eq!(world.add(&at(Some(50)), 6).await, Added::Delayed);
    assert_eq!(world.release(10).await, Some(50));
    assert_eq!(world.add(&at(None), 11).await, Added::Queued);
    assert_eq!((world.release(200).await, world.front(DEFAULT_TENANT).await), (None, vec!["a".to_owned()]));
}

#[tokio::test]
async fn a_job_for_later_can_be_cancelled_and_removed() {
    let world = World::new().await;
    let later = NewJob { not_before_us: Some(100), ..new("a") };
    world.add(&later, 5).await;
    let cancelled = world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 6).await).await;
    assert_eq!((cancelled, world.get("a").await.state()), (Cancelled::Now, State::Cancelled));
    world.add(&later, 7).await;
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
    assert_eq!((world.release(200).await, world.front(DEFAULT_TENANT).await), (None, vec![]));
}

#[tokio::test]
async fn a_running_job_that_is_added_again_for_later_waits_after_its_end() {
    let world = World::new().await;
    world.add(&new("a"), 5).await;
    let claim = world.claim("a", 1).await.unwrap();
    let later = NewJob { not_before_us: Some(100), ..new("a") };
    assert_eq!(world.add(&later, 6).await, Added::RunsAgain);
    world.end("a", &claim, Ending::completed(json("1")), 8).await.unwrap();
    assert_eq!((world.get("a").await.state(), world.release(9).await), (State::Delayed, Some(100)));
}

#[tokio::test]
async fn adding_once_never_changes_a_job_that_is_there() {
    let world = World::new().await;
    let once =
        async |now_us| world.run(async |tx, keys| jobs::add_once(tx, keys, &new("a"), now_us).await).await;
    assert_eq!(once(5).await, Added::Queued);
    assert_eq!(once(6).await, Added::AlreadyThere);
    let claim = world.claim("a", 1).await.unwrap();
    assert_eq!(once(8).await, Added::AlreadyThere);
    world.end("a", &claim, Ending::completed(json("1")), 9).await.unwrap();
    assert_eq!(once(10).await, Added::AlreadyThere);
    assert_eq!((world.get("a").await.state(), world.get("a").await.added_us), (State::Completed, 5));
}

#[tokio::test]
async fn adding_once_a_job_that_is_about_to_be_removed_adds_it() {
    let world = World::new().await;
    let first = world.run(async |tx, keys| jobs::add_once(tx, keys, &new("a"), 5).await).await;
    assert_eq!(first, Added::Queued);
    let claim = world.claim("a", 1).await.unwrap();
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
    let second = NewJob { options: json("[2]"), ..new("a") };
    let once = async || world.run(async |tx, keys| jobs::add_once(tx, keys, &second, 8).await).await;
    assert_eq!(once().await, Added::RunsAgain);
    // Repeated after a lost response.
    assert_eq!(once().await, Added::AlreadyThere);
    world.end("a", &claim, Ending::Stopped, 9).await.unwrap();
    let job = world.get("a").await;
    assert_eq!(job.state(), State::Pending);
    let options = world.run(async |tx, keys| jobs::options(tx, keys, &job).await).await;
    assert_eq!(options.get(), "[2]");
}

#[tokio::test]
async fn the_next_run_does_not_have_the_result_of_the_one_before() {
    let world = World::new().await;
    world.add(&new("a"), 5).await;
    let claim = world.claim("a", 1).await.unwrap();
    assert_eq!(world.add(&new("a"), 6).await, Added::RunsAgain);
    world.end("a", &claim, Ending::completed(json("1")), 8).await.unwrap();
    assert!(world.get("a").await.result.is_none());
    let claim = world.claim("a", 2).await.unwrap();
    world.end("a", &claim, Ending::Failed("no".into()), 9).await.unwrap();
    let job = world.get("a").await;
    assert_eq!((job.state(), job.result.is_none()), (State::Failed, true));
}

#[tokio::test]
async fn the_crash_of_the_last_attempt_fails_the_job() {
    let world = World::new().await;
    world.add(&new("a").with(|spec| spec.max_attempts = Some(2)), 5).await;
    let first = world.claim("a", 1).await.unwrap();
    world.end("a", &first, crash(20), 10).await.unwrap();
    assert_eq!(world.get("a").await.state(), State::Crashing);
    world.release(20).await;
    let second = world.claim("a", 2).await.unwrap();
    world.end("a", &second, crash(40), 30).await.unwrap();
    let job = world.get("a").await;
    assert_eq!((job.state(), job.attempts, job.reason()), (State::Failed, 2, Some("ouch")));
    assert_eq!(world.release(1_000).await, None);
    world.add(&new("a"), 50).await;
    assert_eq!(world.get("a").await.attempts, 0);
}

#[tokio::test]
async fn a_job_waits_as_it_states_after_each_crash_unless_its_worker_says_how_long() {
    let world = World::new().await;
    let waits = Waits::List(vec![5, 30, 300]);
    world.add(&new("a").with(|spec| spec.retry.backoff = Some(waits)), 5).await;
    let mut now_us = 10;
    for (number, wait_us) in (1..).zip([5, 30, 300, 300]) {
        let claim = world.claim("a", number).await.unwrap();
        world
            .end("a", &claim, Ending::Crashed { error: "ouch".into(), retry_us: None }, now_us)
            .await
            .unwrap();
        let job = world.get("a").await;
        assert_eq!((job.state(), job.order_us() - now_us), (State::Crashing, wait_us));
        now_us += wait_us;
        world.release(now_us).await;
    }
    let claim = world.claim("a", 9).await.unwrap();
    world.end("a", &claim, crash(now_us + 7), now_us).await.unwrap();
    let job = world.get("a").await;
    assert_eq!((job.order_us(), job.crashes, job.attempts), (now_us + 7, 5, 5));
    // With jitter, two jobs that crashed at the same time wait differently, and up to a tenth longer.
    let waits = Waits::List(vec![1_000_000]);
    let mut at = Vec::new();
    for id in ["b", "c"] {
        let stated = Retry { backoff: Some(waits.clone()), jitter: Some(true), ..Retry::default() };
        world.add(&new(id).with(|spec| spec.retry = stated), 5).await;
        let claim = world.claim(id, 1).await.unwrap();
        world.end(id, &claim, Ending::Crashed { error: "ouch".into(), retry_us: None }, 10).await.unwrap();
        at.push(world.get(id).await.order_us() - 10);
    }
    assert!(at.iter().all(|wait| (1_000_000..=1_100_000).contains(wait)) && at[0] != at[1], "{at:?}");
}

#[tokio::test]
async fn a_snoozed_job_runs_again_at_its_time_without_an_attempt() {
    let world = World::new().await;
    world
        .add(&new("a").with(|spec| (spec.max_attempts, spec.retry.max_snoozes) = (Some(2), Some(2))), 5)
        .await;
    let first = world.claim("a", 1).await.unwrap();
    world.end("a", &first, crash(20), 10).await.unwrap();
    world.release(20).await;
    for (number, until_us) in [(2, 100), (3, 200)] {
        let claim = world.claim("a", number).await.unwrap();
        world.end("a", &claim, Ending::Snoozed { until_us }, 30).await.unwrap();
        let job = world.get("a").await;
        let counted = (job.attempts, job.crashes, job.snoozes);
        assert_eq!(
            (job.state(), job.order_us(), counted),
            (State::Delayed, until_us, (1, 1, (number - 1) as u32))
        );
        assert_eq!(job.history[0].kind, EventKind::Snoozed);
        assert_eq!(world.release(until_us - 1).await, Some(until_us));
        world.release(until_us).await;
    }
    // One time more than it may, it fails, and so does no job that was added again.
    let claim = world.claim("a", 4).await.unwrap();
    world.end("a", &claim, Ending::Snoozed { until_us: 300 }, 250).await.unwrap();
    let job = world.get("a").await;
    assert_eq!((job.state(), job.attempts), (State::Failed, 1));
    assert_eq!(job.reason(), Some("it was put off more often than its max_snoozes, 2"));
    world.add(&new("a"), 260).await;
    let claim = world.claim("a", 5).await.unwrap();
    world.end("a", &claim, Ending::Snoozed { until_us: 300 }, 270).await.unwrap();
    assert_eq!((world.get("a").await.state(), world.get("a").await.snoozes), (State::Delayed, 1));
    // A request to stop is not put off.
    world.release(300).await;
    let claim = world.claim("a", 6).await.unwrap();
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 310).await).await;
    world.end("a", &claim, Ending::Snoozed { until_us: 400 }, 320).await.unwrap();
    assert_eq!(world.get("a").await.state(), State::Cancelled);
    // A job that was added again while it ran begins anew, when the new request says.
    world.add(&new("b"), 5).await;
    let claim = world.claim("b", 1).await.unwrap();
    world.add(&NewJob { not_before_us: Some(50), ..new("b") }, 10).await;
    world.end("b", &claim, Ending::Snoozed { until_us: 400 }, 20).await.unwrap();
    let job = world.get("b").await;
    assert_eq!((job.state(), job.order_us(), job.snoozes), (State::Delayed, 50, 0));
}

#[tokio::test]
async fn attempts_without_limit_have_none() {
    let world = World::new().await;
    let terms = Terms { max_attempts: Some(2), ..Terms::default() };
    for (id, stated, continuous, expected) in [
        ("typical", None, false, Some(2)),
        ("endless", Some(0), false, None),
        ("own", Some(7), false, Some(7)),
        ("continuous", None, true, None),
        ("bounded", Some(3), true, Some(3)),
    ] {
        let added = new(id).with(|spec| (spec.max_attempts, spec.continuous) = (stated, continuous));
        world.add(&added, 5).await;
        let job = world.get(id).await;
        assert_eq!(job.run_terms(&terms).max_attempts, expected, "{id}");
        assert_eq!(job.attempts_in_all(Some(2)), expected, "{id}");
    }
}

#[tokio::test]
async fn a_retried_job_waits_no_longer_and_its_crashes_are_reset() {
    let world = World::new().await;
    let retry = async |id: &str| world.run(async |tx, keys| jobs::retry(tx, keys, T, id, 15).await).await;
    world.add(&new("a").with(|spec| spec.max_attempts = Some(2)), 5).await;
    assert_eq!(retry("a").await, Retried::Not(State::Pending));
    let claim = world.claim("a", 1).await.unwrap();
    assert_eq!(retry("a").await, Retried::Not(State::Running));
    world.end("a", &claim, crash(1_000_000), 10).await.unwrap();
    assert_eq!(retry("a").await, Retried::Now);
    let job = world.get("a").await;
    assert_eq!((job.state(), job.crashes, job.attempts), (State::Pending, 0, 1));
    assert_eq!(
        (world.front(DEFAULT_TENANT).await, world.release(2_000_000).await),
        (vec!["a".to_owned()], None)
    );
    // The attempts stay counted.
    let claim = world.claim("a", 2).await.unwrap();
    world.end("a", &claim, crash(40), 30).await.unwrap();
    assert_eq!(retry("a").await, Retried::Not(State::Failed));
    world.add(&NewJob { not_before_us: Some(100), ..new("b") }, 5).await;
    assert_eq!(retry("b").await, Retried::Now);
    assert_eq!((world.front(DEFAULT_TENANT).await, world.release(200).await), (vec!["b".to_owned()], None));
    let missing = world.try_run(async |tx, keys| jobs::retry(tx, keys, T, "c", 15).await).await;
    assert!(matches!(missing, Err(Error::NotFound)));
}

#[tokio::test]
async fn a_job_that_is_rerun_keeps_its_request_and_resets_its_attempts() {
    let world = World::new().await;
    let rerun = async |id: &str| world.run(async |tx, keys| jobs::rerun(tx, keys, T, id, 50).await).await;
    let added =
        NewJob { priority: Some(-3), options: json(&format!("\"{}\"", "x".repeat(20_000))), ..new("a") }
            .with(|spec| {
                (spec.tenant, spec.max_attempts, spec.reasons) =
                    ("acme".to_owned(), Some(1), vec!["concurrency:7:net".to_owned()])
            });
    world.add(&added, 5).await;
    assert_eq!(rerun("a").await, Retried::Not(State::Pending));
    let claim = world.claim("a", 1).await.unwrap();
    assert_eq!(rerun("a").await, Retried::Not(State::Running));
    world.end("a", &claim, crash(20), 10).await.unwrap();
    let failed = world.get("a").await;
    assert_eq!((failed.state(), failed.attempts), (State::Failed, 1));
    assert_eq!(rerun("a").await, Retried::Now);
    let job = world.get("a").await;
    assert_eq!((job.state(), job.attempts, job.crashes, job.added_us), (State::Pending, 0, 0, 50));
    assert_eq!((job.tenant.as_str(), job.priority, job.max_attempts), ("acme", -3, Some(1)));
    assert_eq!(job.reasons, added.reasons);
    let options = world.run(async |tx, keys| jobs::options(tx, keys, &job).await).await;
    assert_eq!(options.get(), added.options.get());
    let claim = world.claim("a", 2).await.unwrap();
    world.end("a", &claim, Ending::completed(json("null")), 60).await.unwrap();
    assert_eq!(rerun("a").await, Retried::Not(State::Completed));
    world.add(&new("b"), 5).await;
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "b", 6).await).await;
    assert_eq!(rerun("b").await, Retried::Now);
    assert_eq!(world.front(DEFAULT_TENANT).await, ["b"]);
}

#[tokio::test]
async fn recording_an_end_is_idempotent() {
    let world = World::new().await;
    world.add(&new("a"), 5).await;
    let claim = world.claim("a", 1).await.unwrap();
    let done = || Ending::completed(json("1"));
    assert!(matches!(world.end("a", &claim, done(), 8).await, Ok(Ended::Recorded(Some(_)))));
    let events = world.get("a").await.history.len();
    assert!(matches!(world.end("a", &claim, done(), 9).await, Ok(Ended::AlreadyRecorded(_))));
    assert_eq!(world.get("a").await.history.len(), events);
    // Another claim has ended the job since: the old claim has no effect any more.
    world.add(&new("a"), 10).await;
    let next = world.claim("a", 2).await.unwrap();
    assert!(matches!(world.end("a", &claim, done(), 11).await, Ok(Ended::AlreadyRecorded(_))));
    assert_eq!(world.get("a").await.state(), State::Running);
    world.end("a", &next, crash(40), 12).await.unwrap();
    assert!(matches!(world.end("a", &claim, done(), 13).await, Err(Error::Halt)));
}

#[tokio::test]
async fn claims_that_a_worker_has_not_received_are_found() {
    let world = World::new().await;
    for (id, number) in [("c", 3), ("a", 5), ("b", 4)] {
        world.add(&new(id), 5).await;
        world.claim(id, number).await.unwrap();
    }
    let after = async |number, limit| {
        let jobs =
            world.run(async |tx, keys| claims::claims_after(tx, keys, T, "w", number, limit).await).await;
        jobs.into_iter().map(|job| (job.claim().unwrap().number, job.id.clone())).collect::<Vec<_>>()
    };
    assert_eq!(after(3, 10).await, [(4, "b".to_owned()), (5, "a".to_owned())]);
    assert_eq!(after(0, 1).await, [(3, "c".to_owned())]);
    assert_eq!(after(5, 10).await, []);
    let unknown = world.try_run(async |tx, keys| claims::claims_after(tx, keys, T, "x", 0, 9).await).await;
    assert!(matches!(unknown, Err(Error::Halt)));
}

#[tokio::test]
async fn claims_of_a_worker_that_does_not_count_are_numbered() {
    let world = World::new().await;
    let next = async || world.run(async |tx, keys| claims::next_number(tx, keys, T, "w").await).await;
    assert_eq!([next().await, next().await, next().await], [1, 2, 3]);
}

#[tokio::test]
async fn only_jobs_that_ended_long_ago_are_pruned() {
    let world = World::new().await;
    for (n, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        world.add(&new(id), 5).await;
        let claim = world.claim(id, n as u64 + 1).await.unwrap();
        world.end(id, &claim, Ending::Failed("no".into()), 10 + n as i64).await.unwrap();
    }
    world.add(&new("waits"), 5).await;
    // The job runs again: its first end is no reason to prune it.
    world.add(&new("a"), 20).await;
    let prune = async |before_us, limit| {
        world
            .run(async |tx, keys| jobs::prune(tx, keys, T, before_us, limit, &mut Default::default()).await)
            .await
    };
    assert_eq!(prune(13, 1).await, 1);
    assert_eq!(prune(13, 10).await, 1);
    assert_eq!(prune(13, 10).await, 0);
    let left = world.run(async |tx, keys| jobs::list(tx, keys, T, None, 10).await).await;
    assert_eq!(left.into_iter().map(|job| job.into_fields().id).collect::<Vec<_>>(), ["a", "d", "waits"]);
}

#[tokio::test]
async fn the_types_of_all_jobs_are_listed() {
    let world = World::new().await;
    for (job_type, id) in [("mail", "1"), ("mail", "2"), ("a", "1"), ("video", "1")] {
        world.add(&NewJob::new(job_type, id, json("{}")), 5).await;
    }
    let types =
        async |limit| world.run(async |tx, keys| jobs::types_after(tx, keys, None, limit).await).await;
    assert_eq!(types(10).await, ["a", "mail", "video"]);
    assert_eq!(types(2).await, ["a", "mail"]);
}

#[tokio::test]
async fn operations_of_clients_do_not_shorten_the_history() {
    let world = World::new().await;
    for n in 1..=15 {
        world.add(&new("a"), 5).await;
        let claim = Claim { worker: "w".into(), number: n };
        let (keys, done) = (&world.keys, Ending::completed(json("1")));
        let tx = world.tx().await;
        claims::claim(Context::new(&tx, keys, T, 7, 100), "a", &claim).await.unwrap().unwrap();
        claims::end(Context::new(&tx, keys, T, 8, 100), "a", &claim, &done, None, None).await.unwrap();
        tx.commit().await.unwrap();
    }
    // Three events each: added, started, completed. Each event beyond the default replaces the oldest one.
    assert_eq!(world.get("a").await.history.len(), 37);
    world.add(&new("a"), 9).await;
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 10).await).await;
    assert_eq!(world.get("a").await.history.len(), 37);
}

#[tokio::test]
async fn names_with_control_characters_are_refused() {
    let world = World::new().await;
    for job in [new("a\nb"), new("\0"), new("a").with(|spec| spec.tenant = "\u{1b}[31m".into())] {
        let refused = world.try_run(async |tx, keys| jobs::add(tx, keys, &job, 5).await).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })));
    }
    let never = new("a").with(|spec| spec.retry.backoff = Some(Waits::List(Vec::new())));
    let refused = world.try_run(async |tx, keys| jobs::add(tx, keys, &never, 5).await).await;
    assert!(matches!(refused, Err(Error::Invalid { field: "backoff", .. })));
}

#[tokio::test]
async fn no_job_shows_its_options_when_it_is_printed() {
    let world = World::new().await;
    let new = NewJob { options: json(r#"{"password":"hunter2"}"#), ..new("a") };
    world.add(&new, 5).await;
    for shown in [format!("{new:?}"), format!("{:?}", world.get("a").await)] {
        assert!(shown.contains("\"a\"") && !shown.contains("hunter2"), "{shown}");
    }
}

#[tokio::test]
async fn the_largest_record_fits_a_value() {
    let world = World::new().await;
    let large = |size: usize| json(&format!("\"{}\"", "x".repeat(size - 2)));
    let most = turnwise_queue::MAX_INFO_BYTES;
    let job = NewJob { options: large(8 << 10), ..new("a") }.with(|spec| spec.summary = large(most));
    for n in 1..=120 {
        world.add(&job, 5).await;
        let claim = Claim { worker: "w".into(), number: n };
        let (keys, info) = (&world.keys, large(most));
        // Quotes take two bytes each in JSON. Odd jobs complete, and leave a result.
        let failed = Ending::Failed("\"".repeat(2_000).into());
        let ending = if n % 2 == 0 { failed } else { Ending::completed(large(most)) };
        let tx = world.tx().await;
        claims::claim(Context::new(&tx, keys, T, 7, 1_000), "a", &claim).await.unwrap().unwrap();
        claims::end(Context::new(&tx, keys, T, 8, 1_000), "a", &claim, &ending, Some(&info), None)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_job_that_was_added_again_for_later_keeps_its_delay_when_its_worker_is_gone() {
    let world = World::new().await;
    world.add(&new("a"), 5).await;
    world.claim("a", 1).await.unwrap();
    let later = NewJob { not_before_us: Some(1_000), ..new("a") };
    assert_eq!(world.add(&later, 8).await, Added::RunsAgain);
    assert!(
        world.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 20, 20), "w", 9).await).await
    );
    let job = world.get("a").await;
    assert_eq!((job.state(), job.order_us()), (State::Delayed, 1_000));
}
