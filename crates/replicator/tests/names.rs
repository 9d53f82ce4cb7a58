//! Names that a URL cannot hold, or that mean something else in it. Any user of a source may choose them.

use crate::common::{context, request, run};
use serde_json::{Value, json};
use turnwise_replicator::{Error, replicate};
use turnwise_testkit::{CouchDb, Fake, Reply};

const DOTS: [&str; 3] = [".", "..", "_design/.."];

fn with_attachment(id: &str, name: &str, bytes: usize) -> Value {
    let data = "QUJD".repeat(bytes / 3);
    json!({"_id": id, "_attachments": {name: {"content_type": "application/octet-stream", "data": data}}})
}

#[tokio::test]
async fn documents_named_like_dots_are_copied_between_two_couchdbs_in_every_way() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let peer = couchdb.peer();
    let from = peer.create("dots-from").await;
    let mut docs: Vec<Value> = Vec::new();
    for (nth, id) in DOTS.into_iter().enumerate() {
        docs.push(with_attachment(id, if nth == 0 { ".." } else { "a" }, 4_000_000));
    }
    docs.push(with_attachment("...", ".", 30));
    docs.push(with_attachment("a/../b?c#d%2e", "x/../y", 30));
    docs.push(json!({"_id": "é".repeat(500)}));
    docs.push(json!({"_id": "z"}));
    let written = from.post("/_bulk_docs", &json!({"docs": docs})).await;
    assert!(!written.to_string().contains("error"), "{written}");
    for (nth, fields) in [json!({}), json!({"use_bulk_get": false})].into_iter().enumerate() {
        let to = peer.create(&format!("dots-to{nth}")).await;
        let report = run(from.url(), to.url(), fields).await.unwrap();
        assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (docs.len() as u64, 0));
        // By their names in a body: the other clients of these tests fold dots.
        let docs: Vec<Value> = docs.iter().map(|doc| json!({"id": doc["_id"]})).collect();
        let (path, wanted) = ("/_bulk_get?attachments=true&revs=true", json!({"docs": docs}));
        let (sent, came) = tokio::join!(from.post(path, &wanted), to.post(path, &wanted));
        assert!(sent == came, "attempt {nth}: the documents differ");
    }
}

/// A gateway that folds `%2E%2E` answers with what is one level higher.
#[tokio::test]
async fn a_source_behind_a_gateway_that_folds_dots_loses_only_these_documents() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 10, 10);
    source.put(DOTS.map(|id| json!({"_id": id, "_rev": "2-b"})));
    source.rule(|asked| {
        let higher = json!({"_id": "another", "_rev": "2-b", "db_name": "db"});
        asked.path.contains("%2E").then(|| match asked.path.len() {
            4 => Reply::json(200, &json!([{"ok": higher}])),
            _ => Reply::json(200, &higher),
        })
    });
    let replication = request(&source.url(), &target.url(), json!({"use_bulk_get": false}));
    let error = replicate(&replication, &context()).await.unwrap_err();
    assert!(matches!(&error, Error::Incomplete(incomplete) if incomplete.revisions == 3), "{error}");
    assert_eq!((target.leaves(), target.revisions("another").len()), (10, 0));
    // Together they have no URL.
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!(target.leaves(), 13);
}

#[tokio::test]
async fn a_target_behind_a_gateway_that_folds_dots_refuses_only_these_documents() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 10, 10);
    let large = crate::common::attached::Attached::of(4 << 20);
    source.put([json!({"_id": "..", "_rev": "1-l", "_attachments": {"a": {"stub": true, "length": 4 << 20, "digest": "md5-x"}}})]);
    source.rule(move |asked| {
        let multipart =
            asked.headers.iter().any(|(name, value)| name == "accept" && value == "multipart/mixed");
        (multipart && asked.path == "/%2E%2E").then(|| large.whole("..", "1-l"))
    });
    target.rule(|asked| asked.path.contains("%2E").then(|| Reply::error(412, "file_exists")));
    let report = run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (10, 1));
}

#[tokio::test]
async fn a_name_that_is_reserved_is_never_put_into_a_url() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 10, 10);
    let stubs = json!({"a": {"stub": true, "length": 4 << 20, "digest": "md5-x"}});
    for id in ["_security", "_local/x", "_design/", "_"] {
        source.put([json!({"_id": id, "_rev": "1-l", "_attachments": stubs})]);
    }
    let report = run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (10, 4));
    let fields = json!({"use_bulk_get": false});
    let error = run(&source.url(), &Fake::start().await.url(), fields).await.unwrap_err();
    assert!(matches!(&error, Error::Incomplete(incomplete) if incomplete.revisions == 4), "{error}");
    for asked in source.requests().iter().chain(&target.requests()) {
        let of_checkpoint = asked.path.starts_with("/_local/") && asked.path.len() > 20;
        let reserved = ["/_security", "/_local", "/_design", "/_?"];
        let named = reserved.iter().any(|name| asked.path.starts_with(name));
        assert!(of_checkpoint || !named, "{} {}", asked.method, asked.target);
    }
}
