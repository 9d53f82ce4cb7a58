//! Targets, or gateways before them, that accept bodies of a limited size.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{context, request, run};
use serde_json::json;
use turnwise_replicator::replicate;
use turnwise_testkit::{Asked, Fake, Fault, FaultProxy, Peer, Reply, compare};

/// The default of nginx, rounded down.
const MEGABYTE: u64 = 1_000_000;

fn writes(asked: &Asked) -> bool {
    asked.path == "/_bulk_docs"
}

fn sent_bytes(target: &Fake) -> u64 {
    target.requests().iter().filter(|asked| writes(asked)).map(|asked| asked.body_bytes).sum()
}

/// A target that rejects larger bodies, like a gateway.
fn limit(target: &Fake, bytes: u64) {
    let too_large = move |asked: &Asked| writes(asked) && asked.body_bytes > bytes;
    target.rule(move |asked| too_large(asked).then(|| Reply::error(413, "request_entity_too_large")));
}

#[tokio::test]
async fn a_limit_is_found_once_and_not_with_every_buffer() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 300, 30_000);
    limit(&target, MEGABYTE);
    let (context, replication) = (context(), request(&source.url(), &target.url(), json!({})));
    let report = replicate(&replication, &context).await.unwrap();
    assert_eq!((report.stats.docs_written, target.leaves()), (300, 300));
    let sent = sent_bytes(&target);
    assert!(sent < 300 * 30_000 * 3 / 2, "{sent} bytes for 9 MB");
    let refused = |target: &Fake| target.count(|asked| writes(asked) && asked.body_bytes > MEGABYTE);
    assert!((1..=4).contains(&refused(&target)), "once, by as many writes as are made at the same time");

    // Another run, and another replication into the same database, know it.
    target.clear();
    source.fill("e", 300, 30_000);
    replicate(&replication, &context).await.unwrap();
    let other = Fake::start().await;
    other.fill("f", 300, 30_000);
    replicate(&request(&other.url(), &target.url(), json!({})), &context).await.unwrap();
    assert_eq!((refused(&target), target.leaves()), (0, 900));
}

#[tokio::test]
async fn a_target_without_a_limit_soon_gets_large_bodies() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 600, 30_000);
    run(&source.url(), &target.url(), json!({"worker_processes": 1})).await.unwrap();
    let largest = target.requests().iter().filter(|asked| writes(asked)).map(|asked| asked.body_bytes).max();
    assert!(largest > Some(3 << 20), "{largest:?}");
    assert!(target.count(writes) <= 12, "{}", target.count(writes));
}

#[tokio::test]
async fn a_limit_of_documents_is_found_once() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 1_000, 10);
    let docs = |asked: &Asked| asked.json()["docs"].as_array().map_or(0, Vec::len);
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    target.rule(move |asked| {
        if !writes(asked) || docs(asked) <= 100 {
            return None;
        }
        count.fetch_add(1, Ordering::Relaxed);
        Some(Reply::json(413, &json!({"error": "max_bulk_docs_count_exceeded", "reason": "100"})))
    });
    run(&source.url(), &target.url(), json!({"worker_processes": 1})).await.unwrap();
    assert_eq!(target.leaves(), 1_000);
    let refused = refused.load(Ordering::Relaxed);
    assert!((1..=2).contains(&refused), "{refused}");
}

#[tokio::test]
async fn one_document_that_is_too_large_is_no_limit_for_the_others() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 50, 10_000);
    source.put([json!({"_id": "large"})]);
    target.rule(|asked| {
        let large = writes(asked) && asked.json().to_string().contains("\"large\"");
        large.then(|| Reply::json(413, &json!({"error": "document_too_large", "reason": "large"})))
    });
    let context = context();
    let stats = replicate(&request(&source.url(), &target.url(), json!({})), &context).await.unwrap().stats;
    assert_eq!((stats.docs_written, stats.doc_write_failures), (50, 1));
    target.clear();
    source.fill("e", 50, 10_000);
    replicate(&request(&source.url(), &target.url(), json!({})), &context).await.unwrap();
    assert_eq!(target.count(writes), 1, "500 kB at once");
}

#[tokio::test]
async fn a_connection_that_is_closed_in_the_middle_of_a_body_is_not_tried_again_at_the_same_size() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let text = "x".repeat(30_000);
    for first in [0, 100, 200] {
        let docs: Vec<_> = (first..first + 100)
            .map(|nth| json!({ "_id": format!("{nth:04}"), "_rev": "1-a", "text": text }))
            .collect();
        from.put_revisions(&docs).await;
    }
    for limit in [MEGABYTE, 200_000] {
        let to = if limit == MEGABYTE { to.clone() } else { target.create("smaller").await };
        let proxy = FaultProxy::start(&target).await;
        let closed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&closed);
        let closes = Fault::Reset { after: 0 }.when(move |request| {
            let length = request.header("content-length").and_then(|length| length.parse::<u64>().ok());
            let closes = request.path.contains("_bulk_docs") && length > Some(limit);
            count.fetch_add(usize::from(closes), Ordering::Relaxed);
            closes
        });
        proxy.set(closes).await;
        // As few attempts as there can be.
        run(from.url(), &proxy.through(&to), json!({})).await.unwrap();
        compare(&from, &to).await.unwrap();
        let closed = closed.load(Ordering::Relaxed);
        assert!((1..=12).contains(&closed), "{limit}: {closed}");
    }
}

#[tokio::test]
async fn a_single_document_behind_a_connection_that_breaks_is_an_error_and_not_skipped() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put_revisions(&[json!({ "_id": "a", "_rev": "1-a", "text": "x".repeat(300_000) })]).await;
    let proxy = FaultProxy::start(&target).await;
    proxy.set(Fault::Reset { after: 0 }.when(|request| request.path.contains("_bulk_docs"))).await;
    let error = run(from.url(), &proxy.through(&to), json!({})).await.unwrap_err().to_string();
    assert!(error.contains("target POST") && error.contains("_bulk_docs"), "{error}");
    proxy.set(Fault::None).await;
    run(from.url(), &proxy.through(&to), json!({})).await.unwrap();
    compare(&from, &to).await.unwrap();
}
