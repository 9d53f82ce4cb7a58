//! Documents that a target rejects: counted and skipped, or an error that names the document.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::attached::{self, Attached};
use crate::common::{context, number, request, run, spawn, stop, until};
use serde_json::json;
use turnwise_replicator::replicate;
use turnwise_testkit::{Asked, Fake, Reply, Step};

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
    replication.settings.max_document_id_length = Some(20);
    let report = replicate(&replication, &context()).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (3, 2));
    assert_eq!(target.leaves(), 3);
    assert!(replicate(&replication, &context()).await.unwrap().no_changes);

    // A feed with nothing else also advances the checkpoint.
    replication.continuous = true;
    replication.settings.checkpoint_interval = std::time::Duration::from_millis(30);
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

/// The errors in rows that end a run, and the errors that are about the document.
const ROWS: [(&str, bool); 18] = [
    ("forbidden", true),
    ("unauthorized", true),
    ("conflict", true),
    ("doc_validation", true),
    ("invalid_design_doc", true),
    ("illegal_docid", true),
    ("document_too_large", true),
    ("bad_content_type", true),
    ("TypeError", true),
    // A validation function of the target that cannot be compiled: no document passes it.
    ("compilation_error", false),
    ("internal_server_error", false),
    ("insufficient_storage", false),
    ("timeout", false),
    ("unknown_error", false),
    ("service_unavailable", false),
    ("not_found", false),
    ("any", false),
    ("", false),
];

#[tokio::test]
async fn only_a_row_with_an_error_about_the_document_is_passed_over() {
    for ((word, passed_over), status) in ROWS.into_iter().flat_map(|row| [(row, 201), (row, 202)]) {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", 3, 10);
        let sick = Arc::new(AtomicBool::new(true));
        let is_sick = Arc::clone(&sick);
        target.rule(move |asked| {
            let row = json!([{"id": "d000001", "rev": "1-a", "error": word, "reason": "so"}]);
            let wrong = asked.path == "/_bulk_docs" && asked.json().to_string().contains("d000001");
            (wrong && is_sick.load(Ordering::Relaxed)).then(|| Reply::json(status, &row))
        });
        let ended = run(&source.url(), &target.url(), json!({})).await;
        if passed_over {
            let stats = ended.unwrap().stats;
            assert_eq!((stats.docs_written, stats.doc_write_failures), (2, 1), "{status} {word}");
            continue;
        }
        let said = ended.unwrap_err().to_string();
        assert!(said.contains(&format!("{word}: so: document \"d000001\" was not written")), "{said}");
        // No checkpoint has passed it.
        sick.store(false, Ordering::Relaxed);
        let stats = run(&source.url(), &target.url(), json!({})).await.unwrap().stats;
        assert_eq!((target.leaves(), stats.doc_write_failures), (3, 0), "{status} {word}");
    }
}

#[tokio::test]
async fn a_design_document_that_cannot_be_compiled_is_passed_over() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.put([json!({"_id": "_design/d", "views": {"v": {"map": "function ("}}}), json!({"_id": "a"})]);
    target.rule(|asked| {
        let row = json!([{"id": "_design/d", "rev": "1-a", "error": "compilation_error", "reason": "so"}]);
        (asked.path == "/_bulk_docs").then(|| Reply::json(201, &row))
    });
    let stats = run(&source.url(), &target.url(), json!({})).await.unwrap().stats;
    assert_eq!((stats.docs_written, stats.doc_write_failures), (1, 1));
}

#[tokio::test]
async fn only_the_documents_that_were_not_written_are_written_again() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 5, 10);
    // Two revisions of one document.
    source.put([json!({"_id": "d000001", "_rev": "1-b"})]);
    let mut failures = 2;
    target.rule(move |asked| {
        if asked.path != "/_bulk_docs" || failures == 0 {
            return None;
        }
        failures -= 1;
        let row = |id: &str, rev: &str| json!({"id": id, "rev": rev, "error": "internal_server_error"});
        Some(Reply::json(
            202,
            &json!([row("d000001", "1-b"), row("d000003", "1-a"), {"ok": true, "id": "d000000"}]),
        ))
    });
    let stats = run(&source.url(), &target.url(), json!({"retries_per_request": 3})).await.unwrap().stats;
    assert_eq!((stats.docs_written, stats.doc_write_failures), (6, 0));
    let writes: Vec<Vec<String>> =
        target.requests().iter().filter(|asked| asked.path == "/_bulk_docs").map(named).collect();
    assert_eq!(writes.len(), 3);
    assert_eq!(writes[0].len(), 6);
    for again in &writes[1..] {
        let again: HashSet<&str> = again.iter().map(String::as_str).collect();
        assert_eq!(again, HashSet::from(["d000001 1-b", "d000003 1-a"]));
    }
}

/// The ids and revisions in a `_bulk_docs`.
fn named(asked: &Asked) -> Vec<String> {
    let docs = asked.json()["docs"].as_array().cloned().unwrap_or_default();
    docs.iter()
        .map(|doc| format!("{} {}", doc["_id"].as_str().unwrap(), doc["_rev"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_row_without_a_known_document_concerns_all_of_them() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 3, 10);
    let mut first = true;
    target.rule(move |asked| {
        let first = asked.path == "/_bulk_docs" && std::mem::take(&mut first);
        first.then(|| Reply::json(201, &json!([{"id": 2, "error": {"a": 1}}])))
    });
    let stats = run(&source.url(), &target.url(), json!({"retries_per_request": 1})).await.unwrap().stats;
    assert_eq!((stats.docs_written, stats.doc_write_failures, target.leaves()), (3, 0, 3));
}

#[tokio::test]
async fn a_row_with_an_error_is_passed_over_whatever_the_reason_is() {
    for reason in [json!(null), json!(1), json!({"why": ["so"]}), json!("x".repeat(10_000))] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", 3, 10);
        let row = json!([{"id": "d000001", "error": "forbidden", "reason": reason}]);
        target.rule(move |asked| (asked.path == "/_bulk_docs").then(|| Reply::json(201, &row)));
        let stats = run(&source.url(), &target.url(), json!({})).await.unwrap().stats;
        assert_eq!((stats.docs_written, stats.doc_write_failures), (2, 1), "{reason}");
    }
}

#[tokio::test]
async fn what_a_gateway_or_a_database_says_to_its_user_is_not_about_a_document() {
    let replies: [fn() -> Reply; 6] = [
        || Reply::steps(401, [Step::Send("<html>no</html>".into())]),
        || Reply::steps(403, [Step::Send("<html>no</html>".into())]),
        || Reply::steps(403, [Step::Send("".into())]),
        || Reply::steps(415, [Step::Send("<html>no</html>".into())]),
        || refusal(403, "forbidden", "You are not allowed to access this db."),
        || refusal(401, "unauthorized", "You are not authorized to access this db."),
    ];
    for (nth, reply) in replies.into_iter().enumerate() {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        Attached::of(1 << 20).put(&source, "large", "1-l");
        target.rule(move |asked| (asked.path == "/large").then(reply));
        let error = run(&source.url(), &target.url(), json!({})).await.expect_err(&nth.to_string());
        assert!(error.to_string().contains("target PUT"), "{error}");
        target.well();
        run(&source.url(), &target.url(), json!({})).await.unwrap();
    }
}

#[tokio::test]
async fn in_a_refused_batch_only_attachment_errors_are_passed_over() {
    for (status, error, reason, attachments, passed_over) in [
        (400, "bad_request", ATTACHMENT_NAME, true, true),
        (415, "bad_content_type", "no", true, true),
        (413, "document_too_large", "large", true, true),
        (413, "document_too_large", "large", false, true),
        (400, "bad_request", "wrong", true, false),
        (400, "bad_request", ATTACHMENT_NAME, false, false),
        (415, "bad_content_type", "no", false, false),
        (415, "unsupported_media_type", "no", true, false),
    ] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", 8, 10);
        match attachments {
            true => attached::small(&source, "wrong", "_a"),
            false => source.put([json!({"_id": "wrong"})]),
        }
        target.rule(move |asked| {
            let wrong = asked.path == "/_bulk_docs" && asked.json().to_string().contains("\"wrong\"");
            wrong.then(|| refusal(status, error, reason))
        });
        match run(&source.url(), &target.url(), json!({})).await {
            Ok(report) => {
                assert!(passed_over, "{status} {reason} {attachments}");
                assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (8, 1));
                assert_eq!(target.leaves(), 8);
            }
            Err(said) => assert!(
                !passed_over && said.to_string().contains("document \"wrong\" is refused"),
                "{status} {reason} {attachments}: {said}"
            ),
        }
    }
}
