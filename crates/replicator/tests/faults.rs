//! Faulty peers: a clear error without a password, and a next run that resumes.

use crate::common::{request, run};
use serde_json::{Value, json};
use turnwise_replicator::{Error, replicate};
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, PeerOptions, compare};

/// This password is in every URL of these tests, and in none of their errors.
const PASSWORD: &str = "hunter2%21";
const PLAIN_PASSWORD: &str = "hunter2!";

async fn secured() -> Peer {
    PeerOptions::default().admin("admin", PLAIN_PASSWORD).start().await
}

fn with_password(url: &str) -> String {
    url.replace(PLAIN_PASSWORD, PASSWORD)
}

fn check(error: &Error, words: &[&str]) {
    let text = format!("{error} {error:?}");
    assert!(!text.contains("hunter2"), "{text}");
    assert!(!error.is_terminal(), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[tokio::test]
async fn each_fault_of_the_source_is_reported_and_the_next_run_succeeds() {
    let (source, target) = tokio::join!(secured(), secured());
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::small().load(&from).await;
    let proxy = FaultProxy::start(&source).await;
    let (from_url, to_url) = (with_password(&proxy.through(&from)), with_password(to.url()));
    let fields = json!({"connection_timeout": 1_000});
    let faults: [(Fault, &[&str]); 12] = [
        (Fault::Down, &["source POST", "/_session", "no connection", "refused"]),
        (Fault::Reset { after: 0 }, &["source", "connection"]),
        (Fault::Reset { after: 20 }, &["source", "broke off"]),
        (Fault::HangMidBody { after: 20 }, &["source", "timed out: no data for 1000 ms"]),
        (Fault::Status(401), &["source", "401 unauthorized"]),
        (Fault::Status(403), &["source", "403 forbidden"]),
        (Fault::Status(404), &["source", "404 not_found"]),
        (Fault::Status(429), &["source", "429"]),
        (Fault::Status(500), &["source", "500"]),
        (Fault::InvalidJson, &["source", "cannot be understood"]),
        (
            Fault::Answer { status: 502, body: format!("proxy error for admin:{PLAIN_PASSWORD}") },
            &["502 bad_gateway"],
        ),
        (
            Fault::Answer { status: 200, body: "<html>".to_owned() },
            &["source", "cannot be understood", "<html>"],
        ),
    ];
    for (fault, words) in faults {
        proxy.set(fault.clone()).await;
        let error = run(&from_url, &to_url, fields.clone()).await.expect_err(&format!("{fault:?}"));
        check(&error, words);
    }
    proxy.set(Fault::None).await;
    run(&from_url, &to_url, fields).await.unwrap();
    compare(&from, &to).await.unwrap();
}

/// A fault in one kind of request of either side: the side, the request, the fault, and the text of the error.
fn one_request_each() -> Vec<(&'static str, &'static str, Fault, &'static [&'static str])> {
    vec![
        ("source", "_changes?feed=", Fault::Reset { after: 3_000 }, &["source GET", "_changes", "broke off"]),
        ("source", "_changes?feed=", Fault::InvalidJson, &["source GET", "_changes"]),
        ("source", "_local/", Fault::Status(500), &["source GET", "_local/", "500"]),
        ("target", "_revs_diff", Fault::Status(500), &["target POST", "_revs_diff", "500"]),
        ("target", "_revs_diff", Fault::InvalidJson, &["target POST", "_revs_diff", "cannot be understood"]),
        ("target", "_bulk_docs", Fault::Status(429), &["target POST", "_bulk_docs", "429"]),
        ("target", "_bulk_docs", Fault::Reset { after: 0 }, &["target POST", "_bulk_docs"]),
        ("target", "_bulk_docs", Fault::Status(401), &["target POST", "_bulk_docs", "401 unauthorized"]),
        ("target", "new_edits=false", Fault::Status(500), &["target PUT", "500"]),
        ("target", "new_edits=false", Fault::HangMidBody { after: 0 }, &["target PUT", "timed out"]),
    ]
}

#[tokio::test]
async fn a_fault_in_any_one_request_is_reported_and_the_next_run_succeeds() {
    let (source, target) = tokio::join!(secured(), secured());
    let from = source.create("from").await;
    Dataset::small().load(&from).await;
    for (nth, (side, path, fault, words)) in one_request_each().into_iter().enumerate() {
        let to = target.create(&format!("to{nth}")).await;
        if path == "_revs_diff" {
            // An empty target is not asked.
            let some = from.get("/_all_docs?limit=1").await["rows"][0]["id"].clone();
            run(from.url(), to.url(), json!({"doc_ids": [some]})).await.unwrap();
        }
        let (before_source, before_target) =
            tokio::join!(FaultProxy::start(&source), FaultProxy::start(&target));
        let faulty = if side == "source" { &before_source } else { &before_target };
        faulty.set(fault.clone().when(move |request| request.path.contains(path))).await;
        let (from_url, to_url) =
            (with_password(&before_source.through(&from)), with_password(&before_target.through(&to)));
        let fields = json!({"connection_timeout": 1_500});
        let error = run(&from_url, &to_url, fields.clone()).await.expect_err(&format!("{path} {fault:?}"));
        check(&error, words);
        faulty.set(Fault::None).await;
        run(&from_url, &to_url, fields).await.unwrap();
        compare(&from, &to).await.unwrap_or_else(|differences| panic!("{path} {fault:?}: {differences:?}"));
    }
}

#[tokio::test]
async fn requests_are_repeated_until_the_peer_recovers() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::small().load(&from).await;
    let (before_source, before_target) = tokio::join!(FaultProxy::start(&source), FaultProxy::start(&target));
    before_source
        .set(Fault::Reset { after: 2_000 }.when(|request| request.path.contains("_bulk_get")).times(1))
        .await;
    before_source
        .add(Fault::Reset { after: 2_000 }.when(|request| request.path.contains("_changes?feed")).times(1));
    before_target.set(Fault::Status(503).when(|request| request.path.contains("_bulk_docs")).times(2)).await;
    before_target.add(Fault::InvalidJson.when(|request| request.path.contains("_revs_diff")).times(1));
    before_target.add(Fault::Status(500).when(|request| request.path.contains("new_edits=false")).times(1));
    let report =
        run(&before_source.through(&from), &before_target.through(&to), json!({"retries_per_request": 2}))
            .await
            .unwrap();
    let summary = compare(&from, &to).await.unwrap();
    assert_eq!(report.stats.doc_write_failures, 0);
    assert!(report.stats.docs_written >= summary.leaves as u64);
}

#[tokio::test]
async fn every_revision_is_asked_for_until_it_has_come() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let leaves = ["1-a", "1-b"].map(|rev| json!({"_id": "c", "_rev": rev}));
    from.put_revisions(&leaves).await;
    let proxy = FaultProxy::start(&source).await;
    // The same half of the response twice: two results, but only one of the two revisions.
    let half = format!("{{\"results\":[{{\"id\":\"c\",\"docs\":[{{\"ok\":{}}}]}},", leaves[0]);
    let broken = Fault::Answer { status: 200, body: half };
    proxy.set(broken.when(|request| request.path.contains("_bulk_get")).times(2)).await;
    run(&proxy.through(&from), to.url(), json!({"retries_per_request": 2})).await.unwrap();
    compare(&from, &to).await.unwrap();
    // The third response was complete, so there was nothing to request in another way.
    assert_eq!(proxy.count(|request| request.path.contains("_bulk_get")), 3);
    assert_eq!(proxy.count(|request| request.path.contains("open_revs")), 0);
}

#[tokio::test]
async fn a_result_without_a_revision_is_asked_for_in_another_way() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    // Its second revision, because a first one would come with the feed.
    let rev = from.put("x", &json!({})).await;
    from.put("x", &json!({ "_rev": rev })).await;
    let proxy = FaultProxy::start(&source).await;
    let empty = |body: &str| Fault::Answer { status: 200, body: body.to_owned() };
    let nothing = empty("{\"results\":[{\"id\":\"x\",\"docs\":[]}]}");
    proxy.set(nothing.when(|request| request.path.contains("_bulk_get"))).await;
    // If that finds nothing either, the run must not continue as if it had.
    proxy.add(empty("[]").when(|request| request.path.contains("open_revs")).times(2));
    let error = run(&proxy.through(&from), to.url(), json!({})).await.unwrap_err();
    check(&error, &["source does not deliver 1 revision", "\"x\"", "without any of the revisions"]);
    run(&proxy.through(&from), to.url(), json!({})).await.unwrap();
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn a_source_without_bulk_get_is_read_document_by_document() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    Dataset::small().load(&from).await;
    for status in [404, 405, 501] {
        let to = target.create(&format!("to{status}")).await;
        let proxy = FaultProxy::start(&source).await;
        proxy.set(Fault::Status(status).when(|request| request.path.contains("_bulk_get"))).await;
        run(&proxy.through(&from), to.url(), json!({"worker_processes": 1})).await.unwrap();
        // Each form of it is tried once: for documents, with attachments, and as multipart.
        assert!((1..=4).contains(&proxy.count(|request| request.path.contains("_bulk_get"))));
        compare(&from, &to).await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_split_until_it_fits() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::plain(300).load(&from).await;
    from.put("huge", &json!({"text": "x".repeat(50_000)})).await;
    let proxy = FaultProxy::start(&target).await;
    let too_large = |request: &turnwise_testkit::Request| {
        let length = request.header("content-length").and_then(|text| text.parse::<usize>().ok());
        request.path.contains("_bulk_docs") && length.is_some_and(|length| length > 40_000)
    };
    proxy.set(Fault::Status(413).when(too_large)).await;
    let report = run(from.url(), &proxy.through(&to), json!({})).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (300, 1));
    assert!(to.doc("huge").await.is_none());
}

#[tokio::test]
async fn documents_that_the_target_forbids_are_counted() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    for id in ["a", "b", "c"] {
        from.put(id, &json!({})).await;
    }
    let proxy = FaultProxy::start(&target).await;
    let body = json!([{"id": "a", "error": "forbidden", "reason": "no"}, {"id": "b", "error": "unauthorized", "reason": ""}]);
    let refused = Fault::Answer { status: 201, body: body.to_string() };
    proxy.set(refused.when(|request| request.path.contains("_bulk_docs"))).await;
    let report = run(from.url(), &proxy.through(&to), json!({})).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (1, 2));
}

#[tokio::test]
async fn a_wrong_password_is_an_error_that_does_not_show_it() {
    let (source, target) = tokio::join!(secured(), Peer::start());
    let (from, to) = (source.create("from").await, target.create("to").await);
    let url = from.url().replace(PLAIN_PASSWORD, "wrongpass");
    let error = run(&url, to.url(), json!({})).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("wrongpass"), "{error:?}");
    check(&error, &["401 unauthorized", "(source POST http://admin:*****@", "/_session)"]);
}

#[tokio::test]
async fn all_ways_to_log_in_work_and_none_is_shown() {
    let (source, target) = tokio::join!(secured(), Peer::start());
    let from = source.create("from").await;
    from.put("a", &json!({})).await;
    let plain = from.url().replace(&format!("admin:{PLAIN_PASSWORD}@"), "");
    let basic = "Basic YWRtaW46aHVudGVyMiE=";
    let cases: [Value; 3] = [
        json!(with_password(from.url())),
        json!({"url": plain, "auth": {"basic": {"username": "admin", "password": PLAIN_PASSWORD}}}),
        json!({"url": plain, "headers": {"Authorization": basic}}),
    ];
    for (nth, source) in cases.into_iter().enumerate() {
        let to = target.create(&format!("to{nth}")).await;
        let replication = request("http://unused/db", to.url(), json!({"source": source}));
        let shown = format!("{replication:?} {}", replication.source.redacted_url());
        assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVy"), "{shown}");
        replicate(&replication, &crate::common::context()).await.unwrap();
        assert!(to.doc("a").await.is_some());
    }
}
