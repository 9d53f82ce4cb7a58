//! A peer starts, responds, requires passwords, and leaves nothing behind.

use serde_json::json;
use turnwise_testkit::canary::PASSWORD;
use turnwise_testkit::{Database, Peer, client};

#[tokio::test]
async fn two_peers_have_ports_and_databases_of_their_own() {
    let (first, second) = Peer::pair().await;
    assert_ne!(first.url(), second.url());
    let database = first.create("x").await;
    let rev = database.put("id with/slash", &json!({ "v": 1 })).await;
    let doc = database.doc("id with/slash").await.unwrap();
    assert_eq!(doc, json!({ "_id": "id with/slash", "_rev": rev, "v": 1 }));
    assert_eq!(database.doc("another").await, None);
    assert_eq!(database.doc_count().await, 1);

    let elsewhere = second.create("x").await;
    assert_eq!(elsewhere.doc_count().await, 0);
}

#[tokio::test]
async fn an_admin_has_a_password() {
    let peer = Peer::options().admin("admin", PASSWORD).start().await;
    assert!(peer.url().contains(&format!("admin:{PASSWORD}@")));
    let database = peer.create("x").await;
    assert_eq!(database.doc_count().await, 0);
    let wrong = Database::at(database.url().replace(PASSWORD, "guess"));
    let (status, answer) = wrong.request(reqwest::Method::GET, "", None).await;
    assert_eq!((status.as_u16(), &answer["error"]), (401, &json!("unauthorized")));
}

#[tokio::test]
async fn a_killed_peer_answers_no_more() {
    let mut peer = Peer::start().await;
    let process = peer.process_id().unwrap();
    assert!(std::path::Path::new(&format!("/proc/{process}")).exists());
    peer.kill().await;
    let error = client().get(peer.url()).send().await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");
}

#[tokio::test]
async fn a_durable_peer_comes_back_with_all_it_had() {
    let mut peer = Peer::options().admin("admin", PASSWORD).durable().start().await;
    let database = peer.create("x").await;
    database.put("a", &json!({})).await;
    peer.kill().await;
    assert!(peer.has_ended());
    peer.restart().await;
    assert!(!peer.has_ended());
    assert_eq!(database.doc_count().await, 1);
    database.put("b", &json!({})).await;
}

#[tokio::test]
async fn an_external_peer_keeps_tests_apart_and_is_cleaned_up() {
    let server = Peer::start().await;
    let peer = Peer::external(server.url());
    let database = peer.create("x").await;
    let other = Peer::external(server.url()).create("x").await;
    assert_ne!(database.name(), other.name());
    drop(peer);
    let (status, _) = database.request(reqwest::Method::GET, "", None).await;
    assert_eq!(status.as_u16(), 404);
}
