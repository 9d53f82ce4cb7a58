//! The real CouchDB for tests, if available.

use reqwest::Method;
use serde_json::json;
use turnwise_testkit::{CouchDb, process};

#[tokio::test]
async fn tests_share_a_server_and_have_databases_of_their_own() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let (one, other) = (couchdb.peer(), couchdb.peer());
    let database = one.create("x").await;
    database.put("a", &json!({})).await;
    assert_eq!(other.create("x").await.doc_count().await, 0);
    let name = database.name().to_owned();
    drop(one);
    let (status, _) = couchdb.request(Method::GET, &format!("/{name}"), None).await;
    assert_eq!(status, 404);
    let (status, welcome) = CouchDb::shared().await.unwrap().request(Method::GET, "/", None).await;
    assert_eq!((status, &welcome["couchdb"]), (200, &json!("Welcome")));
}

#[tokio::test]
async fn a_server_ends_with_its_value() {
    let Some(couchdb) = CouchDb::start().await else { return };
    let process = couchdb.process_id();
    assert!(process::is_alive(process));
    drop(couchdb);
    assert!(!process::is_alive(process));
}
