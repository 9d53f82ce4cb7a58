//! Sources that let this user read only: the checkpoint of the target alone counts.

use std::time::Duration;

use crate::common::{context, number, request, run, spawn, stop, until};
use serde_json::json;
use turnwise_testkit::{Asked, Fake, Reply};

fn writes_checkpoint(asked: &Asked) -> bool {
    asked.method == "PUT" && asked.path.starts_with("/_local/")
}

/// A source that rejects checkpoints with this status, and a target.
async fn pair(status: u16) -> (Fake, Fake) {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.rule(move |asked| writes_checkpoint(asked).then(|| Reply::error(status, "read_only")));
    source.fill("d", 20, 10);
    (source, target)
}

fn began_at_0(asked: &Asked) -> bool {
    asked.path == "/_changes" && asked.parameter("since") == Some("0")
}

#[tokio::test]
async fn a_run_goes_on_where_the_targets_checkpoint_says() {
    for status in [401, 403, 404, 405, 413, 500, 501] {
        let (source, target) = pair(status).await;
        let report = run(&source.url(), &target.url(), json!({})).await.unwrap();
        assert_eq!((report.stats.docs_written, target.local().len(), source.local().len()), (20, 1, 0));
        let why = report.stats.source_rejects_checkpoints.unwrap();
        assert!(why.contains("source PUT") && why.contains(&format!("{status} read_only")), "{why}");
        source.clear();
        source.put([json!({"_id": "late"})]);
        let report = run(&source.url(), &target.url(), json!({})).await.unwrap();
        assert_eq!((report.history[0].docs_written, target.leaves()), (21, 21));
        assert_eq!(source.count(began_at_0), 0, "{status}");
        assert_eq!(source.count(writes_checkpoint), 1, "each run tries it once");
    }
}

#[tokio::test]
async fn a_source_that_rejects_even_reading_checkpoints_is_the_same() {
    let (source, target) = pair(403).await;
    source.rule(|asked| asked.path.starts_with("/_local/").then(|| Reply::error(403, "read_only")));
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    source.clear();
    assert!(run(&source.url(), &target.url(), json!({})).await.unwrap().no_changes);
    assert_eq!((source.count(began_at_0), source.count(writes_checkpoint)), (0, 0));
}

#[tokio::test]
async fn another_source_under_the_same_name_is_copied_from_its_beginning() {
    let (source, target) = pair(403).await;
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    source.create_anew();
    source.fill("e", 30, 10);
    let report = run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!((report.stats.docs_written, target.leaves()), (30, 50));
    // One that has fewer changes than the checkpoint, such as a backup.
    source.create_anew();
    source.say_started("1795000001");
    source.fill("f", 10, 10);
    let report = run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!((report.stats.docs_written, target.leaves()), (10, 60));
}

#[tokio::test]
async fn a_target_that_is_created_anew_gets_everything_again() {
    let (source, target) = pair(403).await;
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    target.create_anew();
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!(target.leaves(), 20);
}

#[tokio::test]
async fn once_the_source_accepts_checkpoints_both_sides_have_them_again() {
    let (source, target) = pair(403).await;
    let mut replication = request(&source.url(), &target.url(), json!({"continuous": true}));
    replication.settings.checkpoint_interval = Duration::from_millis(30);
    let context = context();
    let running = spawn(replication, &context);
    let stats = until(&context, |stats| number(&stats.checkpointed_source_seq) == 20).await;
    assert!(stats.source_rejects_checkpoints.is_some());
    stop(&context, running).await;
    assert!(target.local()[0]["source_rejects_checkpoints"].is_object());
    source.well();
    source.put([json!({"_id": "late"})]);
    let stats = run(&source.url(), &target.url(), json!({})).await.unwrap().stats;
    assert_eq!((stats.docs_written, stats.source_rejects_checkpoints), (1, None));
    let (on_source, on_target) = (source.local(), target.local());
    assert_eq!(on_source[0]["session_id"], on_target[0]["session_id"]);
    assert!(on_target[0]["source_rejects_checkpoints"].is_null());
}

#[tokio::test]
async fn a_checkpoint_that_another_program_confirms_is_not_written() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 3, 10);
    target.rule(|asked| writes_checkpoint(asked).then(|| Reply::json(200, &json!({"error": "sorry"}))));
    let error = run(&source.url(), &target.url(), json!({})).await.unwrap_err().to_string();
    assert!(error.contains("not that the checkpoint was written"), "{error}");
}
