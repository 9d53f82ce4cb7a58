//! Checkpoints shared with a real CouchDB: with its UUID, turnwise resumes where CouchDB's own replicator stopped, and
//! CouchDB resumes after turnwise. The test runs only if a CouchDB can be started. Golden tests of ids and of the
//! checkpoints' layout run everywhere.

use crate::common::TestServer;
use serde_json::{Value, json};
use turnwise_testkit::{CouchDb, Database, Peer, client};

/// Writes `count` further documents.
async fn write(database: &Database, name: &str, count: usize) {
    for n in 0..count {
        database.put(&format!("{name}-{n}"), &json!({"n": n})).await;
    }
}

/// The response of CouchDB's own replicator.
async fn couchdb(peer: &Peer, body: &Value) -> Value {
    let request = client().post(format!("{}/_replicate", peer.url()));
    let request = request.header("content-type", "application/json").body(body.to_string());
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// `later` began where `earlier` ended, continues its history, and reports `written` further documents.
fn goes_on(later: &Value, earlier: &Value, written: u64) {
    let session = &later["history"][0];
    assert_eq!(session["start_last_seq"], earlier["source_last_seq"], "{later}");
    assert_eq!(later["history"][1]["session_id"], earlier["session_id"], "{later}");
    for number in ["docs_read", "docs_written", "missing_checked", "missing_found"] {
        let before = earlier["history"][0][number].as_u64().unwrap();
        assert_eq!(session[number], before + written, "{number}: {later}");
    }
}

#[tokio::test]
async fn turnwise_goes_on_from_couchdbs_checkpoint_and_couchdb_from_turnwises() {
    let Some(real) = CouchDb::shared().await else { return };
    let (a, b) = (real.peer(), real.peer());
    let welcome = client().get(a.url()).send().await.unwrap().text().await.unwrap();
    let welcome: Value = serde_json::from_str(&welcome).unwrap();
    let uuid = welcome["uuid"].as_str().unwrap();
    let server = TestServer::start_with(&format!("[couchdb]\nuuid = {uuid}\n")).await;
    let source = a.create("checkpoints").await;
    source
        .put("_design/app", &json!({"filters": {"even": "function (doc, req) { return doc.n % 2 == 0 }"}}))
        .await;
    write(&source, "first", 20).await;
    for (name, more, of_eight) in [
        ("all", json!({}), 8),
        ("ids", json!({"doc_ids": (0..8).map(|n| format!("all-couchdb-{n}")).collect::<Vec<_>>()}), 8),
        ("selector", json!({"selector": {"n": {"$lt": 4}}}), 4),
        ("filter", json!({"filter": "app/even", "query_params": {"a": "b"}}), 4),
        ("winners", json!({"winning_revs_only": true}), 8),
    ] {
        let target = b.create(name).await;
        let mut body = json!({"source": source.url(), "target": target.url()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if name == "ids" {
            // Feeds of named documents can only resume at their end: without changes there is nothing to do.
            let first = couchdb(&a, &body).await;
            let second = server.post("/_replicate", &body).await.body;
            assert_eq!((&second["no_changes"], &second["session_id"]), (&json!(true), &first["session_id"]));
            continue;
        }
        let first = couchdb(&a, &body).await;
        write(&source, &format!("{name}-couchdb"), 8).await;
        let second = server.post("/_replicate", &body).await.body;
        goes_on(&second, &first, of_eight);
        write(&source, &format!("{name}-turnwise"), 8).await;
        let third = couchdb(&a, &body).await;
        goes_on(&third, &second, of_eight);
    }
}
