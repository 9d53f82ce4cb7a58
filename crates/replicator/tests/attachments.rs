//! Attachments between two real servers: bytes, digests, and how much of them the replicator holds.

use crate::common::stalled::Stalled;
use crate::common::{copy, run};
use serde_json::json;
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};

#[tokio::test]
async fn the_standard_data_set_arrives_leaf_by_leaf() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let loaded = Dataset::standard().load(&from).await;
    let report = copy(&from, &to).await;
    let summary = compare(&from, &to).await.unwrap();
    assert_eq!((summary.leaves, summary.attachments), (loaded.leaves, loaded.attachments));
    assert_eq!(report.stats.docs_written, loaded.leaves as u64);
    if source.is_pouchdb() {
        // CouchDB sends text gzipped.
        assert!(report.stats.bytes_written > loaded.attachment_bytes);
    }
    assert!(copy(&from, &to).await.no_changes);
}

#[tokio::test]
async fn a_source_that_answers_multipart_hands_over_whole_revisions() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let loaded = Dataset::small().load(&from).await;
    let proxy = FaultProxy::start(&source).await;
    if source.is_pouchdb() {
        // CouchDB returns this by itself.
        proxy.set(Fault::Multipart).await;
    }
    run(&proxy.through(&from), to.url(), json!({})).await.unwrap();
    let summary = compare(&from, &to).await.unwrap();
    assert_eq!(summary.attachments, loaded.attachments);
    // No attachment was requested separately.
    let by_itself = |path: &str| {
        let id_and_name = path.split('?').next().unwrap().matches('/').count() > 2;
        id_and_name && !path.contains("/_local/") && !path.contains("/_design/")
    };
    assert_eq!(proxy.count(|request| by_itself(&request.path)), 0);
}

#[tokio::test]
async fn attachments_are_copied_without_bulk_get() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::small().load(&from).await;
    run(from.url(), to.url(), json!({"use_bulk_get": false})).await.unwrap();
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn ids_that_a_url_resolves_away_never_lead_out_of_the_database() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    let with_attachment = |id: &str, bytes: usize| {
        let attachment =
            json!({ "content_type": "application/octet-stream", "data": "QUJD".repeat(bytes / 3) });
        json!({ "_id": id, "_attachments": { "a": attachment } })
    };
    let docs = [with_attachment(".", 300_000), with_attachment("..", 1_000_000), json!({ "_id": "z" })];
    from.post("/_bulk_docs", &json!({ "docs": docs })).await;
    let to = target.create("to").await;
    let (asked, told) = (FaultProxy::start(&source).await, FaultProxy::start(&target).await);
    run(&asked.through(&from), &told.through(&to), json!({})).await.unwrap();
    let wanted = json!({ "docs": [{ "id": "." }, { "id": ".." }, { "id": "z" }] });
    let found = to.post("/_bulk_get?attachments=true", &wanted).await.to_string();
    assert_eq!(found.matches("\"ok\"").count(), 3);
    assert_eq!(found.matches("QUJD").count(), 300_000 / 3 + 1_000_000 / 3);
    for request in asked.requests().iter().chain(&told.requests()) {
        let database = request.path.trim_start_matches('/').split(['/', '?']).next().unwrap();
        assert!(from.url().ends_with(database) || to.url().ends_with(database), "{}", request.path);
    }

    // Too large to come inside the document. A whole revision is read by its URL, and an attachment by itself is not.
    let other = source.create("other").await;
    other
        .post("/_bulk_docs", &json!({ "docs": [with_attachment("..", 4_000_000), json!({ "_id": "y" })] }))
        .await;
    let ended = run(other.url(), to.url(), json!({})).await;
    assert!(to.doc("y").await.is_some());
    if source.is_pouchdb() {
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("copy is incomplete: document \"..\""), "{error}");
    }
}

#[tokio::test]
async fn one_connection_is_enough() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::small().load(&from).await;
    run(from.url(), to.url(), json!({"http_connections": 1, "worker_batch_size": 40})).await.unwrap();
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn a_target_that_stops_reading_stops_the_reading_of_the_source() {
    let source = Peer::start().await;
    let from = source.create("from").await;
    let attachments = Dataset { attachments: 2, attachment_max_bytes: 32 << 20, ..Dataset::plain(1) };
    let loaded = attachments.load(&from).await;
    let proxy = FaultProxy::start(&source).await;
    let target = Stalled::start();
    let fields = json!({"connection_timeout": 3_000});
    let error = run(&proxy.through(&from), &target.url(), fields).await.unwrap_err().to_string();
    assert!(error.starts_with("timed out") && error.contains("(target PUT"), "{error}");
    // The data that was read is in the buffers of four sockets, and almost none of it in the replicator.
    let read: u64 = proxy.requests().iter().map(|request| request.answer_bytes).sum();
    assert!(read < loaded.attachment_bytes / 2, "{read} of {} bytes were read", loaded.attachment_bytes);
}
