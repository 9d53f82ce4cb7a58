//! Compares rejections of documents with a real CouchDB's own replicator. For each rejection, and each way in which a
//! document travels, both skip the document or both end with an error. CouchDB also skips a document for an error that is
//! not about the document; turnwise ends with an error then, so that it is not lost.

use crate::common::{attached, run};
use futures::stream::{self, StreamExt};
use http::Method;
use serde_json::json;
use turnwise_testkit::{Asked, CouchDb, Database, Fake, Reply};

/// Concurrent cases.
const AT_ONCE: usize = 4;
const ATTACHMENT_NAME: &str = "Attachment name '_a' starts with prohibited character '_'";

/// How a target rejects one document.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// Rejects a whole request, however the document travels.
    Request(u16, &'static str, &'static str),
    /// Rejects a document: an error row of `_bulk_docs`, and this status of a `PUT`.
    Document(u16, &'static str),
}

const REFUSALS: [Refusal; 18] = [
    Refusal::Request(400, "bad_request", ATTACHMENT_NAME),
    Refusal::Request(400, "bad_request", "Attachment name is not UTF-8 encoded"),
    Refusal::Request(400, "bad_request", "invalid UTF-8 JSON"),
    Refusal::Request(400, "doc_validation", "Bad special document member: _x"),
    Refusal::Request(404, "not_found", "missing"),
    Refusal::Request(409, "conflict", "no"),
    Refusal::Request(412, "precondition_failed", "no"),
    Refusal::Request(413, "document_too_large", "bad"),
    Refusal::Request(415, "bad_content_type", "no"),
    Refusal::Request(422, "bad_request", ATTACHMENT_NAME),
    Refusal::Request(403, "blocked", "by a firewall"),
    Refusal::Request(401, "expired", "by a proxy"),
    Refusal::Request(500, "unknown_error", "no"),
    Refusal::Request(501, "not_implemented", "no"),
    Refusal::Document(401, "unauthorized"),
    Refusal::Document(403, "forbidden"),
    Refusal::Document(413, "document_too_large"),
    Refusal::Document(415, "bad_content_type"),
];

/// Errors that only occur in rows.
const ROWS: [&str; 4] = ["conflict", "invalid_design_doc", "doc_validation", "TypeError"];
/// Those for which only CouchDB skips the document.
const LOST_BY_COUCHDB: [&str; 4] = ["internal_server_error", "insufficient_storage", "timeout", "any"];

impl Refusal {
    /// The response, if the request contains the document.
    fn answer(self, asked: &Asked) -> Option<Reply> {
        let put = asked.method == "PUT" && asked.path == "/bad";
        let bulk = asked.path == "/_bulk_docs" && asked.json().to_string().contains("bad\"");
        Some(match self {
            Refusal::Request(status, error, reason) if put || bulk => {
                Reply::json(status, &json!({"error": error, "reason": reason}))
            }
            Refusal::Document(status, error) if put => {
                Reply::json(status, &json!({"error": error, "reason": "no"}))
            }
            Refusal::Document(_, error) if bulk => {
                Reply::json(201, &json!([{"id": "bad", "rev": "1-x", "error": error, "reason": "no"}]))
            }
            _ => return None,
        })
    }
}

/// How a replication ended: documents written and skipped, or an error.
type Ended = Result<(u64, u64), String>;

/// A target that rejects one document.
async fn target(refusal: Refusal) -> Fake {
    let target = Fake::start().await;
    target.rule(move |asked| refusal.answer(asked));
    target
}

async fn by_couchdb(couchdb: &CouchDb, source: &str, target: &str) -> Ended {
    let body = json!({"source": source, "target": target, "retries_per_request": 1});
    let (status, answer) = couchdb.request(Method::POST, "/_replicate", Some(&body)).await;
    let session = &answer["history"][0];
    match status {
        200 => {
            Ok((session["docs_written"].as_u64().unwrap(), session["doc_write_failures"].as_u64().unwrap()))
        }
        _ => Err(answer.to_string()),
    }
}

async fn by_turnwise(source: &str, target: &str) -> Ended {
    match run(source, target, json!({})).await {
        Ok(report) => Ok((report.stats.docs_written, report.stats.doc_write_failures)),
        Err(error) => Err(error.to_string()),
    }
}

/// Creates eight documents and the one that will be rejected, with `bytes` of attachments in it.
async fn source(database: &Database, id: &str, bytes: Option<usize>) {
    for n in 0..8 {
        database.put(&format!("d{n}"), &json!({ "n": n })).await;
    }
    let mut doc = json!({"x": 1});
    if let Some(bytes) = bytes {
        // base64, of a type that is not stored compressed.
        let data = "QUJD".repeat(bytes / 3);
        doc["_attachments"] = json!({"f": {"content_type": "application/octet-stream", "data": data}});
    }
    database.put(id, &doc).await;
}

#[tokio::test]
async fn every_refusal_ends_as_in_couchdb_in_every_way_of_travel() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let peer = couchdb.peer();
    let mut cases: Vec<(&str, Database, Refusal)> = Vec::new();
    // turnwise sends small attachments inside `_bulk_docs` and large ones in a `PUT`; CouchDB sends each in a `PUT`.
    for (way, bytes) in [("plain", None), ("small", Some(30)), ("large", Some(600_000))] {
        let database = peer.create(way).await;
        source(&database, "bad", bytes).await;
        cases.extend(REFUSALS.map(|refusal| (way, database.clone(), refusal)));
        if way == "plain" {
            let rows = ROWS.into_iter().chain(LOST_BY_COUCHDB);
            cases.extend(rows.map(|error| (way, database.clone(), Refusal::Document(400, error))));
        }
    }
    let count = cases.len();
    let ends = stream::iter(cases).map(|(way, source, refusal)| async move {
        let (theirs, ours) = (target(refusal).await, target(refusal).await);
        let theirs = by_couchdb(couchdb, source.url(), &theirs.url()).await;
        let ours = by_turnwise(source.url(), &ours.url()).await;
        let lost = matches!(refusal, Refusal::Document(_, error) if LOST_BY_COUCHDB.contains(&error));
        let same = match (&theirs, &ours) {
            (Ok(_), Err(_)) if lost => true,
            (Ok(theirs), Ok(ours)) => theirs == ours && !lost,
            (Err(_), Err(_)) => true,
            _ => false,
        };
        (!same).then(|| format!("{way}, {refusal:?}: {theirs:?} there, {ours:?} here"))
    });
    let different: Vec<String> =
        ends.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect::<Vec<_>>().await;
    assert!(different.is_empty(), "{} of {count}: {different:#?}", different.len());
}

#[tokio::test]
async fn a_real_target_refuses_one_of_nine_and_gets_eight() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let peer = couchdb.peer();
    let source = Fake::start().await;
    source.fill("a", 4, 10);
    attached::small(&source, "bad", "_a");
    source.fill("b", 4, 10);
    let (theirs, ours) = (peer.create("theirs").await, peer.create("ours").await);
    assert_eq!(by_couchdb(couchdb, &source.url(), theirs.url()).await, Ok((8, 1)));
    assert_eq!(by_turnwise(&source.url(), ours.url()).await, Ok((8, 1)));
    assert_eq!((theirs.doc_count().await, ours.doc_count().await), (8, 8));

    // The next run does not retry it.
    let report = run(&source.url(), ours.url(), json!({})).await.unwrap();
    assert!(report.no_changes);
}

#[tokio::test]
async fn a_real_target_may_refuse_with_a_reason_of_any_type() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let peer = couchdb.peer();
    let source = Fake::start().await;
    source.fill("a", 4, 10);
    let reasons =
        [("null", json!(null)), ("number", json!(1)), ("object", json!({"a": ["b"]})), ("text", json!("so"))];
    source.put(reasons.map(|(id, why)| json!({"_id": id, "why": why})));
    let rule = "function (doc) { if ('why' in doc) throw({ forbidden: doc.why }); }";
    let ours = peer.create("our-reasons").await;
    ours.put("_design/rule", &json!({ "validate_doc_update": rule })).await;
    // CouchDB's own replicator crashes when it logs the first reason that is not a string.
    assert_eq!(by_turnwise(&source.url(), ours.url()).await, Ok((4, 4)));
}
