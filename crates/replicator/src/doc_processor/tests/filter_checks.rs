//! Tests of filter functions that change after their documents got their jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_queue::Then;
use turnwise_store::Runtime as _;

use super::resolve::{PATIENCE, Running, Sources, filtered, processor};
use super::*;

/// The job id of a document with the filter `d/f`, when the function's code is `code`.
fn id_with(source: &str, code: &str) -> String {
    let body = with(doc(source), json!({"filter": "d/f", "continuous": true}));
    let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
    replication_id::full(&replication, "uuid", Some(code)).to_string()
}

fn followed(source: &str) -> Value {
    with(filtered("d/f"), with(doc(source), json!({"continuous": true})))
}

/// A document `a` whose job depends on the code `old`.
async fn scheduled() -> Running {
    let running = Running::new().await;
    running.sources.answer("d/f", Ok("old"));
    running.world.put("a", followed("s")).await.unwrap();
    running.until("a", "pending").await;
    assert_eq!(running.world.job().await.id.clone(), id_with("s", "old"));
    running
}

/// Advances the clock until `done`.
async fn until(running: &Running, done: impl AsyncFn() -> bool) {
    let moved = async {
        while !done().await {
            running.world.documents.clock.advance(Duration::from_secs(30));
            running.world.settle().await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.expect("it never comes to pass");
}

impl Running {
    /// How often the filter was requested.
    fn times(&self) -> usize {
        self.sources.asked.lock().unwrap().len()
    }

    async fn job_of(&self, id: &str) -> String {
        self.world.status(id).await.unwrap()["id"].as_str().unwrap_or_default().to_owned()
    }
}

#[tokio::test]
async fn changed_code_replaces_a_running_job_by_one_with_the_new_id() {
    let running = scheduled().await;
    let (old, new) = (id_with("s", "old"), id_with("s", "new"));
    let claim = running.world.start(&old).await;
    let asked = running.world.status("a").await.unwrap()["start_time"].clone();
    running.sources.answer("d/f", Ok("new"));
    until(&running, async || running.job_of("a").await == new).await;
    // The old job must stop, and leaves nothing behind; nothing was written into the document.
    let jobs = running.world.jobs().await;
    let of = |id: &str| jobs.iter().find(|job| job.id == id).unwrap();
    assert_eq!((of(&old).cancel_requested(), of(&old).then()), (true, Then::Remove));
    assert_eq!(of(&new).state(), State::Pending);
    running.world.end(&old, &claim, Ending::Stopped, None).await;
    assert_eq!(running.world.job().await.id.clone(), new);
    assert_eq!(body(&running.world.get("a").await), followed("s"));
    assert_eq!(running.world.status("a").await.unwrap()["start_time"], asked);
    // The filter is checked again, and may change back.
    running.sources.answer("d/f", Ok("old"));
    until(&running, async || running.job_of("a").await == old).await;
    assert_eq!(running.world.job().await.id.clone(), old);
    let (world, _) = running.stop().await;
    assert_eq!(check_rows(world.keys(), &world.rows().await), []);
}

#[tokio::test]
async fn the_same_code_and_a_source_that_is_down_leave_the_job_alone() {
    let running = scheduled().await;
    let id = id_with("s", "old");
    running.world.start(&id).await;
    let times = running.times();
    until(&running, async || running.times() >= times + 2).await;
    running.sources.answer("d/f", Err("source is down"));
    let times = running.times();
    until(&running, async || running.times() >= times + 2).await;
    let job = running.world.job().await;
    assert_eq!((job.id.as_str(), job.state(), job.cancel_requested()), (id.as_str(), State::Running, false));
    assert_eq!(running.world.state("a").await, "running");
    running.stop().await;
}

#[tokio::test]
async fn the_first_check_comes_after_a_minute() {
    let running = scheduled().await;
    running.world.documents.clock.advance(Duration::from_secs(59));
    running.world.settle().await;
    assert_eq!(running.times(), 1);
    until(&running, async || running.times() >= 2).await;
    running.stop().await;
}

#[tokio::test]
async fn code_that_becomes_that_of_another_document_fails_the_later_one() {
    let running = scheduled().await;
    running.world.put("b", with(followed("s"), json!({"filter": "d/g"}))).await.unwrap();
    running.sources.answer("d/g", Ok("other"));
    running.until("b", "pending").await;
    running.sources.answer("d/g", Ok("old"));
    until(&running, async || running.world.state("b").await == "failed").await;
    let id = id_with("s", "old");
    let reason = format!(
        "Replication `{id}` specified by document `b` already started, triggered by document `a` from db `_replicator`"
    );
    assert_eq!(running.world.get("b").await.body["_replication_state_reason"], json!(reason));
    assert_eq!(running.world.job().await.id.clone(), id);
    let (world, _) = running.stop().await;
    assert_eq!(check_rows(world.keys(), &world.rows().await), []);
}

#[tokio::test]
async fn writing_a_document_again_does_not_disturb_its_job_and_looks_at_its_filter_soon() {
    let running = scheduled().await;
    let id = id_with("s", "old");
    running.world.start(&id).await;
    running.world.put("a", with(followed("s"), json!({"_replication_state": "triggered"}))).await.unwrap();
    assert_eq!(running.world.state("a").await, "running");
    assert!(!running.world.job().await.cancel_requested());
    let clock = &running.world.documents.clock;
    clock.wait_for_sleeper(Duration::from_secs(1)).await;
    clock.advance(Duration::from_secs(30));
    running.sources.asked("d/f", 2).await;
    // Changed options do restart the job.
    running.world.put("a", with(followed("s"), json!({"http_connections": 2}))).await.unwrap();
    assert!(running.world.job().await.cancel_requested());
    running.stop().await;
}

#[tokio::test]
async fn a_response_about_a_changed_or_ended_document_is_discarded() {
    let running = scheduled().await;
    let id = id_with("s", "old");
    running.sources.answers_no_more("d/f");
    until(&running, async || running.times() >= 2).await;
    running.world.put("a", with(followed("s"), json!({"_replication_state": "completed"}))).await.unwrap();
    running.sources.answer("d/f", Ok("new"));
    // When another document has its job, the response for the first one has arrived as well.
    running.world.put("b", followed("other")).await.unwrap();
    running.until("b", "pending").await;
    assert_eq!(running.world.job().await.id.clone(), id_with("other", "new"));
    assert_ne!(running.world.job().await.id.clone(), id);
    let (world, _) = running.stop().await;
    assert_eq!(check_rows(world.keys(), &world.rows().await), []);
}

#[tokio::test]
async fn of_several_nodes_one_makes_a_check() {
    let world = World::new().await;
    let others = Arc::<Sources>::default();
    others.answer("d/f", Ok("old"));
    let stop = CancellationToken::new();
    let other = tokio::spawn(processor(&world, &others).run(stop.clone()));
    let running = Running::of(world, Arc::default());
    running.sources.answer("d/f", Ok("old"));
    running.world.put("a", followed("s")).await.unwrap();
    running.until("a", "pending").await;
    let times = || running.times() + others.asked.lock().unwrap().len();
    let clock = running.world.documents.clock.clone();
    // Advances only to the first check, plus the time in which both nodes read it: the next check is a minute later.
    let tx = running.world.store().begin().await.unwrap();
    let doc = DocTx { tx: &tx, keys: running.world.keys(), db: DB, id: "a" };
    let row = doc.row().await.unwrap().unwrap();
    let away_us = (row.check_us.unwrap() - clock.now_us()).max(0).unsigned_abs();
    clock.advance(Duration::from_micros(away_us));
    let checked = async {
        while times() < 2 {
            clock.advance(Duration::from_millis(1));
            running.world.settle().await;
        }
    };
    tokio::time::timeout(PATIENCE, checked).await.expect("no check in time");
    running.world.settle().await;
    assert_eq!(times(), 2, "one of them looks");
    stop.cancel();
    other.await.unwrap();
    running.stop().await;
}
