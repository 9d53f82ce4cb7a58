//! Feeds that work without being useful: dead behind their heartbeats, slow, or searching for rare documents.

use std::time::Duration;

use crate::common::{context, number, request, run, spawn, stop, until};
use futures::StreamExt;
use serde_json::json;
use turnwise_testkit::{Asked, Fake, Reply, Step};

/// The silence that is a fault. All requests share it, and no other request may fail because a busy machine paused for a moment.
const TIMEOUT_MS: u64 = 1_000;

fn is_feed(asked: &Asked) -> bool {
    asked.path == "/_changes" && asked.parameter("feed").is_some()
}

/// A feed that sends only heartbeats.
fn heartbeats() -> Reply {
    let beat = [Step::Send("\n".into()), Step::Pause(Duration::from_millis(20))];
    Reply::stream(200, futures::stream::iter(beat).cycle().boxed())
}

#[tokio::test]
async fn a_feed_that_is_dead_behind_its_heartbeats_is_opened_again() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    let mut dead = true;
    source.rule(move |asked| (is_feed(asked) && std::mem::take(&mut dead)).then(heartbeats));
    let context = context();
    let fields = json!({"continuous": true, "connection_timeout": TIMEOUT_MS});
    let running = spawn(request(&source.url(), &target.url(), fields), &context);
    source.wait_for(1, is_feed).await;
    source.fill("d", 3, 10);
    until(&context, |stats| stats.docs_written == 3).await;
    assert_eq!(source.count(is_feed), 2);
    // A feed that is only quiet is not reopened, however often its source is asked.
    source.wait_for(source.count(is_look) + 3, is_look).await;
    assert_eq!(source.count(is_feed), 2);
    stop(&context, running).await;
}

fn is_look(asked: &Asked) -> bool {
    asked.path == "/_changes" && asked.parameter("limit") == Some("0")
}

#[tokio::test]
async fn a_source_that_is_only_slow_gets_more_time_with_each_attempt() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 2, 10);
    // Like a server that sends nothing while its filter finds nothing.
    source.rule(|asked| {
        let rows: String = (0..2)
            .map(|n| {
                json!({"seq": n, "id": format!("d00000{n}"), "changes": [{"rev": "1-a"}]}).to_string() + ","
            })
            .collect();
        let rows = format!("{{\"results\":[{}],\"last_seq\":2}}", rows.trim_end_matches(','));
        is_feed(asked)
            .then(|| Reply::steps(200, [Step::Pause(Duration::from_millis(2_800)), Step::Send(rows.into())]))
    });
    let fields = json!({"connection_timeout": TIMEOUT_MS, "retries_per_request": 3});
    let report = run(&source.url(), &target.url(), fields).await.unwrap();
    assert_eq!(report.stats.docs_written, 2);
    // After one second, two, and four.
    assert_eq!(source.count(is_feed), 3);
}

#[tokio::test]
async fn a_source_that_never_answers_is_an_error_in_the_end() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.rule(|asked| is_feed(asked).then(|| Reply::steps(200, [Step::Hang])));
    let fields = json!({"connection_timeout": 500, "retries_per_request": 2});
    let error = run(&source.url(), &target.url(), fields).await.unwrap_err().to_string();
    assert!(error.starts_with("timed out: no data for 2000 ms (source GET "), "{error}");
    assert!(error.contains("_changes"), "{error}");
    assert_eq!(source.count(is_feed), 3);
}

#[tokio::test]
async fn a_filter_that_finds_nothing_moves_the_checkpoint_all_the_same() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 5_000, 10);
    let first = context();
    let fields = json!({
        "continuous": true, "connection_timeout": TIMEOUT_MS, "checkpoint_interval": 50, "selector": {"pass": true},
    });
    let replication = request(&source.url(), &target.url(), fields);
    let running = spawn(replication.clone(), &first);
    until(&first, |stats| number(&stats.checkpointed_source_seq) == 5_000).await;
    // The same while the run continues: documents that do not pass.
    source.fill("e", 500, 10);
    until(&first, |stats| number(&stats.checkpointed_source_seq) == 5_500).await;
    // A document that passes comes immediately, by the continuous feed.
    source.put([json!({"_id": "hit", "pass": true})]);
    until(&first, |stats| stats.docs_written == 1).await;
    stop(&first, running).await;

    // The next run starts after all of it.
    source.clear();
    let second = context();
    let running = spawn(replication, &second);
    source.wait_for(1, is_feed).await;
    let asked = source.requests().into_iter().find(is_feed).unwrap();
    assert_eq!(asked.parameter("since"), Some("5501-incarnation0"));
    stop(&second, running).await;
}

#[tokio::test]
async fn a_filtered_feed_that_is_cut_again_and_again_goes_on_from_its_last_hit() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    for n in 0..20 {
        source.fill(&format!("miss{n}-"), 100, 10);
        source.put([json!({"_id": format!("hit{n}"), "pass": true})]);
    }
    // No connection lasts for more than three rows.
    source.cut(300, is_feed);
    for continuous in [false, true] {
        target.create_anew();
        source.forget_local();
        source.clear();
        let context = context();
        let fields = json!({
            "continuous": continuous, "connection_timeout": TIMEOUT_MS, "retries_per_request": 1, "selector": {"pass": true},
        });
        let running = spawn(request(&source.url(), &target.url(), fields), &context);
        let stats = until(&context, |stats| stats.docs_written == 20).await;
        // Each hit came once: no connection started from the beginning again.
        assert_eq!(stats.revisions_checked, 20);
        assert!(source.count(is_feed) >= 6);
        stop(&context, running).await;
    }
    assert_eq!(target.leaves(), 20);
}

#[tokio::test]
async fn a_dead_reader_behind_a_filter_is_noticed_too() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.rule(|asked| (asked.parameter("feed") == Some("continuous")).then(heartbeats));
    let context = context();
    let fields = json!({"continuous": true, "connection_timeout": TIMEOUT_MS, "doc_ids": ["b", "c"]});
    let running = spawn(request(&source.url(), &target.url(), fields), &context);
    source.wait_for(2, is_feed).await;
    for (nth, id) in ["a", "b", "c"].into_iter().enumerate() {
        source.put([json!({"_id": id})]);
        until(&context, |stats| stats.docs_written == nth as u64).await;
    }
    stop(&context, running).await;
}
