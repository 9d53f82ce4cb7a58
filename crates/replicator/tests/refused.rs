//! Documents that a target rejects: counted and skipped, or an error that names the document.

use crate::common::attached::{self, Attached};
use crate::common::{context, number, request, run, spawn, stop, until};
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

    // A feed with nothing else also advances the checkpoint.
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
async fn a_document_that_the_target_rejects_as_invalid_is_named() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 60, 10);
    source.put([json!({"_id": "worm"})]);
    source.fill("e", 60, 10);
    // A CouchDB with a limit on ids rejects the whole batch.
    target.rule(|asked| {
        let wrong = asked.path == "/_bulk_docs" && asked.json().to_string().contains("\"worm\"");
        wrong.then(|| Reply::error(400, "illegal_docid"))
    });
    let error = run(&source.url(), &target.url(), json!({})).await.unwrap_err();
    assert!(!error.is_terminal());
    let error = error.to_string();
    assert!(error.contains("document \"worm\" is refused") && error.contains("400 illegal_docid"), "{error}");
    // No run skips it silently.
    assert!(run(&source.url(), &target.url(), json!({})).await.is_err());
    target.well();
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!(target.leaves(), 121);
}

/// CouchDB's message for the name of an attachment that it rejects.
const ATTACHMENT_NAME: &str = "Attachment name '_a' starts with prohibited character '_'";

/// A target's responses to the `PUT` of a document, and whether the document is then skipped.
const PUTS: [(u16, &str, &str, bool); 14] = [
    (401, "unauthorized", "no", true),
    (403, "forbidden", "no", true),
    (413, "document_too_large", "large", true),
    (415, "bad_content_type", "no", true),
    (400, "bad_request", ATTACHMENT_NAME, true),
    (400, "bad_request", "invalid UTF-8 JSON", false),
    (400, "illegal_docid", "Attachment name", false),
    (401, "other", "no", false),
    (403, "access_denied", "a firewall says so", false),
    (404, "not_found", "Database does not exist.", false),
    (409, "conflict", "no", false),
    (412, "precondition_failed", "no", false),
    (422, "bad_request", ATTACHMENT_NAME, false),
    (500, "unknown_error", "no", false),
];

fn refusal(status: u16, error: &str, reason: &str) -> Reply {
    Reply::json(status, &json!({"error": error, "reason": reason}))
}

#[tokio::test]
async fn a_revision_that_is_put_is_passed_over_only_where_it_is_refused_for_good() {
    for (status, error, reason, passed_over) in PUTS {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.put([json!({"_id": "before"})]);
        Attached::of(1 << 20).put(&source, "large", "1-l");
        source.put([json!({"_id": "after"})]);
        target.rule(move |asked| (asked.path == "/large").then(|| refusal(status, error, reason)));
        let ended = run(&source.url(), &target.url(), json!({})).await;
        if passed_over {
            let stats = ended.unwrap().stats;
            assert_eq!((stats.docs_written, stats.doc_write_failures), (2, 1), "{status} {error}");
        } else {
            let said = ended.unwrap_err().to_string();
            assert!(said.contains("target PUT") && said.contains(&format!("{status} {error}")), "{said}");
        }
    }
}

#[tokio::test]
async fn a_row_with_an_error_is_passed_over_whatever_the_error() {
    for word in ["forbidden", "unauthorized", "conflict", "invalid_design_doc", "internal_server_error"] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", 3, 10);
        target.rule(move |asked| {
            let row = json!([{"id": "d000001", "rev": "1-a", "error": word, "reason": "so"}]);
            (asked.path == "/_bulk_docs").then(|| Reply::json(201, &row))
        });
        let stats = run(&source.url(), &target.url(), json!({})).await.unwrap().stats;
        assert_eq!((stats.docs_written, stats.doc_write_failures), (2, 1), "{word}");
    }
}

#[tokio::test]
async fn a_row_with_an_error_is_passed_over_whatever_the_reason_is() {
    for reason in [json!(null), json!(1), json!({"why": ["so"]}), json!("x".repeat(10_000))] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", 3, 10);
        let row =
            json!([{"id": "d000001", "error": "forbidden", "reason": reason}, {"id": 2, "error": {"a": 1}}]);
        target.rule(move |asked| (asked.path == "/_bulk_docs").then(|| Reply::json(201, &row)));
        let stats = run(&source.url(), &target.url(), json!({})).await.unwrap().stats;
        assert_eq!((stats.docs_written, stats.doc_write_failures), (1, 2), "{reason}");
    }
}

#[tokio::test]
async fn in_a_refused_batch_only_attachment_errors_are_passed_over() {
    for (status, reason, attachments, passed_over) in [
        (400, ATTACHMENT_NAME, true, true),
        (415, "no", true, true),
        (413, "large", true, true),
        (413, "large", false, true),
        (400, "wrong", true, false),
        (400, ATTACHMENT_NAME, false, false),
        (415, "no", false, false),
    ] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", 8, 10);
        match attachments {
            true => attached::small(&source, "wrong", "_a"),
            false => source.put([json!({"_id": "wrong"})]),
        }
        target.rule(move |asked| {
            let wrong = asked.path == "/_bulk_docs" && asked.json().to_string().contains("\"wrong\"");
            wrong.then(|| refusal(status, "bad_request", reason))
        });
        match run(&source.url(), &target.url(), json!({})).await {
            Ok(report) => {
                assert!(passed_over, "{status} {reason} {attachments}");
                assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (8, 1));
                assert_eq!(target.leaves(), 8);
            }
            Err(error) => assert!(
                !passed_over && error.to_string().contains("document \"wrong\" is refused"),
                "{status} {reason} {attachments}: {error}"
            ),
        }
    }
}
