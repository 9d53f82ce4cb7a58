//! What a target does not take: counted and passed over, or an error that says which document it was.
#![allow(clippy::unwrap_used)]

mod common;

use common::attached::Attached;
use common::{context, number, request, run, spawn, stop, until};
use serde_json::json;
use turnwise_replicator::replicate;
use turnwise_testkit::{Fake, Reply};

#[tokio::test]
async fn documents_with_too_long_ids_are_left_out_and_counted() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    let twenty = "\u{e9}".repeat(10);
    let ids = [
        "short",
        &twenty,
        "a \"quoted\" \\ id!!",
        "123456789012345678901",
        "",
        "\u{e9}\u{e9}345678901234567890",
    ];
    source.put(ids.map(|id| json!({"_id": id})));
    let mut replication = request(&source.url(), &target.url(), json!({}));
    replication.max_document_id_length = Some(20);
    let report = replicate(&replication, &context()).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (3, 2));
    assert_eq!(target.leaves(), 3);
    assert!(replicate(&replication, &context()).await.unwrap().no_changes);

    // A feed of nothing else moves the checkpoint, too.
    replication.continuous = true;
    replication.checkpoint_interval = std::time::Duration::from_millis(30);
    let context = context();
    let running = spawn(replication, &context);
    source.put([json!({"_id": "1".repeat(21)})]);
    until(&context, |stats| stats.doc_write_failures > 0).await;
    source.put([json!({"_id": "2".repeat(21)}), json!({"_id": "fits"})]);
    until(&context, |stats| number(&stats.checkpointed_source_seq) == 9).await;
    stop(&context, running).await;
    assert_eq!(target.leaves(), 4);
}

#[tokio::test]
async fn a_document_that_the_target_takes_for_wrong_is_named() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 60, 10);
    source.put([json!({"_id": "worm"})]);
    source.fill("e", 60, 10);
    // A CouchDB with a bound on ids, of all of the batch.
    target.rule(|asked| {
        let wrong = asked.path == "/_bulk_docs" && asked.json().to_string().contains("\"worm\"");
        wrong.then(|| Reply::error(400, "illegal_docid"))
    });
    let error = run(&source.url(), &target.url(), json!({})).await.unwrap_err();
    assert!(!error.is_terminal());
    let error = error.to_string();
    assert!(error.contains("document \"worm\" is refused") && error.contains("400 illegal_docid"), "{error}");
    // In no run is it passed over in silence.
    assert!(run(&source.url(), &target.url(), json!({})).await.is_err());
    target.well();
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!(target.leaves(), 121);
}

#[tokio::test]
async fn a_revision_with_attachments_is_counted_only_where_it_is_forbidden_or_too_large() {
    for (status, counted) in [
        (401, true),
        (403, true),
        (413, true),
        (400, false),
        (404, false),
        (409, false),
        (412, false),
        (500, false),
    ] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.put([json!({"_id": "before"})]);
        Attached::of(1 << 20).put(&source, "large", "1-l");
        source.put([json!({"_id": "after"})]);
        target.rule(move |asked| (asked.path == "/large").then(|| Reply::error(status, "as_told")));
        let ended = run(&source.url(), &target.url(), json!({})).await;
        if counted {
            let stats = ended.unwrap().stats;
            assert_eq!((stats.docs_written, stats.doc_write_failures), (2, 1), "{status}");
        } else {
            let error = ended.unwrap_err().to_string();
            assert!(error.contains("target PUT") && error.contains(&status.to_string()), "{status}: {error}");
        }
    }
}

#[tokio::test]
async fn only_what_is_forbidden_or_too_large_is_passed_over_in_a_batch() {
    for (word, counted) in [
        ("forbidden", true),
        ("unauthorized", true),
        ("document_too_large", true),
        ("unknown_error", false),
        ("conflict", false),
        ("doc_validation", false),
        ("invalid_design_doc", false),
        ("internal_server_error", false),
    ] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", 3, 10);
        target.rule(move |asked| {
            let row = json!([{"id": "d000001", "rev": "1-a", "error": word, "reason": "so"}]);
            (asked.path == "/_bulk_docs").then(|| Reply::json(201, &row))
        });
        let ended = run(&source.url(), &target.url(), json!({})).await;
        if counted {
            let stats = ended.unwrap().stats;
            assert_eq!((stats.docs_written, stats.doc_write_failures), (2, 1), "{word}");
        } else {
            let error = ended.unwrap_err().to_string();
            assert!(error.contains("\"d000001\" was not written") && error.contains(word), "{error}");
        }
    }
}
