//! Revisions that a source names and does not deliver: all others are copied, and the run says that its copy is incomplete.

use std::time::Duration;

use crate::common::attached::{self, Attached};
use crate::common::{context, number, request, spawn, until};
use serde_json::{Value, json};
use turnwise_replicator::{Error, Incomplete, Replication, Report, replicate};
use turnwise_testkit::{Asked, CouchDb, Fake, Reply, Step};

/// The document that cannot be read.
const ID: &str = "d000030";

fn replication(source: &Fake, target: &Fake, fields: Value) -> Replication {
    let mut replication = request(&source.url(), &target.url(), fields);
    replication.settings.missing_doc_retry = Duration::from_millis(5);
    replication
}

async fn run(source: &Fake, target: &Fake, fields: Value) -> Result<Report, Error> {
    replicate(&replication(source, target, fields), &context()).await
}

/// Sixty documents of the second generation: such documents do not come with the feed.
fn fill(source: &Fake) {
    source.put((0..60).map(|n| json!({"_id": format!("d{n:06}"), "_rev": "2-b", "text": "x".repeat(50)})));
}

fn asks_for_it(asked: &Asked) -> bool {
    asked.path == "/_bulk_get" && asked.json().to_string().contains(ID)
}

/// A response of `_bulk_get` with an error in the row of the document, and without the others.
fn row_with_an_error() -> Reply {
    let error = json!({"id": ID, "rev": "2-b", "error": "not_found", "reason": "missing"});
    Reply::json(200, &json!({"results": [{"id": ID, "docs": [{"error": error}]}]}))
}

fn text(text: &str) -> Reply {
    Reply::steps(200, [Step::Send(text.to_owned().into())])
}

/// How the document fails when it is asked for with others, and by itself.
type Way = (&'static str, fn() -> Reply, fn() -> Reply);

/// How an attachment fails.
type Case = (&'static str, fn() -> Reply);

const WAYS: [Way; 11] = [
    ("missing", row_with_an_error, || Reply::json(200, &json!([{"missing": "2-b"}]))),
    ("404", row_with_an_error, || Reply::error(404, "not_found")),
    ("403", row_with_an_error, || Reply::error(403, "forbidden")),
    ("413", row_with_an_error, || Reply::error(413, "too_large")),
    ("500", || Reply::error(500, "badmatch"), || Reply::error(500, "badmatch")),
    ("502", || Reply::error(502, "bad_gateway"), || Reply::error(502, "bad_gateway")),
    ("broken off", || Reply::steps(200, [Step::Break]), || Reply::steps(200, [Step::Break])),
    (
        "no JSON",
        || text("{\"results\":[{\"id\":\"d000030\",\"docs\":[{\"ok\":{x}}]}]}"),
        || text("[{\"ok\":{x}}]"),
    ),
    ("empty", || text("{\"results\":[]}"), || text("[]")),
    ("a page", || text("<html>"), || text("<html>")),
    ("another form", || text("[1]"), || text("{\"db_name\":\"db\"}")),
];

#[tokio::test]
async fn what_the_source_delivers_is_copied_however_one_revision_fails() {
    for (way, with_others, alone) in WAYS {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        fill(&source);
        source.rule(move |asked| asks_for_it(asked).then(with_others));
        source.rule(move |asked| (asked.path == format!("/{ID}")).then(alone));
        for nth in 0..2 {
            let fields = json!({"worker_batch_size": 7, "worker_processes": 2});
            let error = run(&source, &target, fields).await.expect_err(way);
            assert!(!error.is_terminal() && matches!(error, Error::Incomplete(_)), "{way}, {nth}: {error}");
            let said = error.to_string();
            assert!(said.starts_with(Incomplete::BEGINNING) && said.contains(ID), "{way}: {said}");
            assert_eq!(target.leaves(), 59, "{way}, {nth}: {said}");
        }
        // The checkpoint is before it, so that the next run finds it again.
        let at = |local: Vec<Value>| -> u64 {
            let seq = local.first().map_or("0", |log| log["source_last_seq"].as_str().unwrap());
            seq.split('-').next().unwrap().parse().unwrap()
        };
        assert!((21..31).contains(&at(source.local())), "{way}: {:?}", source.local());
        source.well();
        run(&source, &target, json!({})).await.unwrap();
        assert_eq!((target.leaves(), at(source.local())), (60, 60), "{way}");
    }
}

#[tokio::test]
async fn a_document_that_is_too_large_to_read_leaves_out_only_itself() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    fill(&source);
    source.put([json!({"_id": "large", "_rev": "2-b", "text": "x".repeat(50_000)})]);
    fill(&source);
    let mut replication = replication(&source, &target, json!({}));
    replication.settings.peers.max_document_bytes = 20_000;
    let error = replicate(&replication, &context()).await.unwrap_err().to_string();
    assert!(error.contains("\"large\"") && error.contains("max_document_size"), "{error}");
    assert_eq!(target.leaves(), 60);
}

#[tokio::test]
async fn a_source_that_is_down_or_gone_is_no_document_that_cannot_be_read() {
    for (status, name) in
        [(503, "unavailable"), (404, "not_found"), (401, "unauthorized"), (429, "throttled")]
    {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        fill(&source);
        // It ends while documents are read.
        let mut ended = false;
        source.rule(move |asked| {
            ended |= asked.path == "/_bulk_get";
            (ended && !asked.path.starts_with("/_local/")).then(|| Reply::error(status, name))
        });
        let error = run(&source, &target, json!({})).await.unwrap_err();
        assert_eq!(error.status(), Some(status), "{error}");
        assert_eq!(target.leaves(), 0);
    }
}

#[tokio::test]
async fn attachments_that_cannot_be_read_leave_out_only_their_document() {
    let whole = |asked: &Asked, id: &str| asked.path == format!("/{id}");
    let faults: [Case; 5] = [
        ("404", || Reply::error(404, "not_found")),
        ("500", || Reply::error(500, "badmatch")),
        ("a page", || text("<html>")),
        ("no parts", || text("--M--").content_type("multipart/mixed; boundary=\"M\"")),
        ("broken off", || Reply::steps(200, [Step::Break])),
    ];
    for (fault, reply) in faults {
        for id in ["small", "large"] {
            let (source, target) = tokio::join!(Fake::start(), Fake::start());
            fill(&source);
            attached::small(&source, "small", "a");
            Attached::of(1 << 20).put(&source, "large", "1-l");
            source.rule(move |asked| {
                let inline = asked.path == "/_bulk_get" && asked.parameter("attachments") == Some("true");
                (id == "small" && inline || whole(asked, id)).then(reply)
            });
            // Neither is its attachment to be had.
            source.rule(move |asked| {
                asked.path.starts_with(&format!("/{id}/")).then(|| Reply::error(500, "badmatch"))
            });
            let error = run(&source, &target, json!({})).await.unwrap_err();
            assert!(matches!(error, Error::Incomplete(_)), "{fault}, {id}: {error}");
            assert!(error.to_string().contains(&format!("{id:?}")), "{fault}: {error}");
            assert_eq!(target.leaves(), 61, "{fault}, {id}");
            source.well();
            attached::small(&source, "small", "a");
            Attached::of(1 << 20).put(&source, "large", "1-l");
            run(&source, &target, json!({})).await.unwrap();
            assert_eq!(target.leaves(), 62, "{fault}, {id}");
        }
    }
}

#[tokio::test]
async fn an_attachment_that_differs_from_its_digest_leaves_out_only_its_document() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    fill(&source);
    Attached::of(1 << 20).put(&source, "large", "1-l");
    target.rule(|asked| (asked.path == "/large").then(|| Reply::error(400, "content_md5_mismatch")));
    let error = run(&source, &target, json!({})).await.unwrap_err().to_string();
    assert!(error.contains("does not match its digest") && error.contains("\"large\""), "{error}");
    assert_eq!(target.leaves(), 60);
}

#[tokio::test]
async fn a_continuous_run_goes_on_says_what_is_missing_and_asks_again() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    fill(&source);
    source.rule(|asked| asks_for_it(asked).then(row_with_an_error));
    source.rule(|asked| (asked.path == format!("/{ID}")).then(|| Reply::error(404, "not_found")));
    let fields = json!({"continuous": true, "checkpoint_interval": 100, "worker_batch_size": 7});
    let context = context();
    let running = spawn(replication(&source, &target, fields), &context);
    let stats = until(&context, |stats| stats.docs_written == 59).await;
    assert_eq!((stats.doc_read_failures, stats.unread_docs), (1, vec![ID.to_owned()]));
    source.put([json!({"_id": "later"})]);
    let stats = until(&context, |stats| stats.docs_written == 60).await;
    assert!(number(&stats.through_seq) < 31, "{stats:?}");
    // It ends, so that the next run asks again.
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Incomplete(Incomplete { revisions: 1, .. })), "{error}");
    source.well();
    run(&source, &target, json!({})).await.unwrap();
    assert_eq!(target.leaves(), 61);
}

#[tokio::test]
async fn couchdb_ends_with_an_error_as_well_and_its_checkpoint_stays() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let target = couchdb.peer().create("unread").await;
    let source = Fake::start().await;
    fill(&source);
    source.rule(|asked| asks_for_it(asked).then(row_with_an_error));
    source.rule(|asked| (asked.path == format!("/{ID}")).then(|| Reply::error(404, "not_found")));
    let body = json!({
        "source": source.url(), "target": target.url(), "retries_per_request": 1,
        "checkpoint_interval": 100, "worker_batch_size": 7,
    });
    let (status, answer) = couchdb.request(http::Method::POST, "/_replicate", Some(&body)).await;
    assert_eq!(status, 500, "{answer}");
    for log in source.local() {
        let seq = log["source_last_seq"].as_str().unwrap().to_owned();
        assert!(seq.split('-').next().unwrap().parse::<u64>().unwrap() < 31, "{seq}");
    }
}
