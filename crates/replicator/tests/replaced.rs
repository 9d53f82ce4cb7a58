//! Databases that are deleted and created again under a replication, and databases that only look so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{context, request, run, spawn, stop, until};
use serde_json::{Value, json};
use turnwise_replicator::{Context, Stats, replicate};
use turnwise_testkit::{Asked, Database, Fake, Peer, compare};

fn checkpointed(stats: &Stats) -> bool {
    stats.checkpointed_source_seq.is_some() && stats.checkpointed_source_seq == stats.source_seq
}

/// Waits until the target has this many leaf revisions.
async fn arrive(context: &Context, target: &Fake, leaves: usize) {
    until(context, |_| target.leaves() == leaves).await;
}

fn continuous() -> Value {
    // Databases are verified soon, but requests do not fail because a busy machine paused for a moment.
    json!({"continuous": true, "checkpoint_interval": 30, "connection_timeout": 1_000})
}

#[tokio::test]
async fn a_target_that_is_created_anew_is_copied_again_as_soon_as_there_is_a_change() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 100, 10);
    let context = context();
    let running = spawn(request(&source.url(), &target.url(), continuous()), &context);
    until(&context, checkpointed).await;
    assert_eq!(target.leaves(), 100);
    target.create_anew();
    source.put([json!({"_id": "one more"})]);
    arrive(&context, &target, 101).await;
    until(&context, checkpointed).await;
    assert_eq!(source.local()[0]["session_id"], target.local()[0]["session_id"]);
    stop(&context, running).await;
}

#[tokio::test]
async fn a_target_that_is_created_anew_is_copied_again_though_nothing_changes() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 100, 10);
    let context = context();
    let running = spawn(request(&source.url(), &target.url(), continuous()), &context);
    until(&context, checkpointed).await;
    target.create_anew();
    arrive(&context, &target, 100).await;
    stop(&context, running).await;
}

#[tokio::test]
async fn a_source_that_is_created_anew_is_copied_from_its_beginning() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 100, 10);
    let context = context();
    let running = spawn(request(&source.url(), &target.url(), continuous()), &context);
    until(&context, checkpointed).await;
    source.create_anew();
    source.fill("e", 10, 10);
    arrive(&context, &target, 110).await;
    stop(&context, running).await;

    // The next run resumes where this one ended, in the new source.
    let report = run(&source.url(), &target.url(), json!({"continuous": false})).await.unwrap();
    assert!(report.stats.docs_written == 0);
}

#[tokio::test]
async fn real_peers_that_are_created_anew_are_copied_again() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    for id in ["a", "b", "c"] {
        from.put(id, &json!({})).await;
    }
    let context = context();
    let replication = request(from.url(), to.url(), continuous());
    let again = context.clone();
    // A run that finds its database deleted fails, and a worker starts another one.
    let running = async {
        loop {
            match replicate(&replication, &again).await {
                Ok(report) => return report,
                // The database is gone, or a peer on a busy machine is slow.
                Err(error) => assert!(!error.is_terminal(), "{error}"),
            }
            tokio::time::sleep(A_MOMENT).await;
        }
    };
    let steps = async {
        until(&context, checkpointed).await;
        // CouchDB stores only the second in which a database was created.
        let second = Duration::from_millis(if source.is_pouchdb() { 0 } else { 1_100 });
        tokio::time::sleep(second).await;

        create_anew(&to).await;
        for id in ["a", "b", "c"] {
            arrives(&to, id).await;
        }
        compare(&from, &to).await.unwrap();

        // PouchDB Server continues with its heartbeats, and reports nothing of the new database.
        tokio::time::sleep(second).await;
        create_anew(&from).await;
        from.put("d", &json!({})).await;
        arrives(&to, "d").await;
        context.stop.cancel();
    };
    // A run that fails otherwise ends the test.
    tokio::join!(running, steps);
}

/// Deletes a database, and creates it again. PouchDB Server refuses that (412) while it still completes requests for the old one.
async fn create_anew(database: &Database) {
    loop {
        database.delete().await;
        match database.request(http::Method::PUT, "", None).await.0.as_u16() {
            201 => return,
            status => assert_eq!(status, 412),
        }
        tokio::time::sleep(A_MOMENT).await;
    }
}

/// The pause between two reads of a server that does not report changes.
const A_MOMENT: Duration = Duration::from_millis(50);

/// Waits until a document exists.
async fn arrives(database: &Database, id: &str) {
    while database.doc(id).await.is_none() {
        tokio::time::sleep(A_MOMENT).await;
    }
}

#[tokio::test]
async fn a_target_that_is_created_anew_in_the_middle_of_a_one_shot_run_gets_everything() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    let target = Arc::new(target);
    source.fill("d", 100, 10);
    let again = Arc::downgrade(&target);
    let mut writes = 0;
    target.rule(move |asked| {
        writes += usize::from(asked.path == "/_bulk_docs");
        if asked.path == "/_bulk_docs" && writes == 5 {
            again.upgrade().unwrap().create_anew();
        }
        None
    });
    let report = run(&source.url(), &target.url(), json!({"worker_batch_size": 10})).await.unwrap();
    assert_eq!(target.leaves(), 100);
    assert!(report.stats.docs_written > 100);
    let again = run(&source.url(), &target.url(), json!({"worker_batch_size": 10})).await.unwrap();
    assert!(again.no_changes);
}

#[tokio::test]
async fn a_checkpoint_that_was_written_into_a_new_target_does_not_count() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    let target = Arc::new(target);
    source.fill("d", 100, 10);
    let again = Arc::downgrade(&target);
    let mut first = true;
    // Between the check of the database and the checkpoint.
    target.rule(move |asked| {
        if asked.method == "PUT" && asked.path.starts_with("/_local/") && std::mem::take(&mut first) {
            again.upgrade().unwrap().create_anew();
        }
        None
    });
    let context = context();
    let running = spawn(request(&source.url(), &target.url(), continuous()), &context);
    arrive(&context, &target, 100).await;
    until(&context, |stats| stats.revisions_checked == 200).await;
    arrive(&context, &target, 100).await;
    stop(&context, running).await;
}

#[tokio::test]
async fn a_changed_instance_start_time_alone_changes_nothing() {
    // An upgrade to a server that reports when a database was created, and servers that report when they were started.
    for (before, after) in [
        ("0", "1795297690"),
        ("1795297690", "0"),
        ("1795297690123456", "1795299999123456"),
        ("1795297690123", "1795299999123"),
    ] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        for fake in [&source, &target] {
            fake.say_started(before);
        }
        source.fill("d", 20, 10);
        let context = context();
        let running = spawn(request(&source.url(), &target.url(), continuous()), &context);
        until(&context, checkpointed).await;
        for fake in [&source, &target] {
            fake.say_started(after);
        }
        for n in 0..3 {
            source.put([json!({"_id": format!("later{n}")})]);
            until(&context, |stats| stats.docs_written == 21 + n && checkpointed(stats)).await;
        }
        // The same while nothing happens.
        let looks = |asked: &Asked| asked.method == "GET" && asked.path.is_empty();
        target.wait_for(target.count(looks) + 2, looks).await;
        let report = stop(&context, running).await;
        assert_eq!(report.stats.revisions_checked, 23, "{before} {after}");
        assert_eq!(source.count(|asked| asked.parameter("feed").is_some()), 1);
    }
}

#[tokio::test]
async fn a_target_that_is_gone_is_an_error_and_once_it_is_back_everything_is_copied() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 10, 10);
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    let gone = Arc::new(Mutex::new(true));
    let is_gone = Arc::clone(&gone);
    target.rule(move |_| is_gone.lock().unwrap().then(|| turnwise_testkit::Reply::error(404, "not_found")));
    source.put([json!({"_id": "more"})]);
    let error = run(&source.url(), &target.url(), json!({})).await.unwrap_err();
    assert!(error.to_string().contains("404 not_found") && !error.is_terminal(), "{error}");
    target.create_anew();
    *gone.lock().unwrap() = false;
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!(target.leaves(), 11);
}
