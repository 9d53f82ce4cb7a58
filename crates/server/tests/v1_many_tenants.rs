//! More tenants and types than one request reads: all are listed, and a job of the last one has a place.

use std::sync::Arc;

use crate::common::TestServer;
use serde_json::json;
use turnwise_queue::Keyspace;
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Error, Store, runtime};

/// More than one request reads of a type.
const TENANTS: usize = 20_500;
const BATCH: usize = 500;

#[tokio::test]
async fn each_of_twenty_thousand_tenants_is_on_a_page_and_knows_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durable: false, ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let store = Store::new(engine, Arc::new(runtime::System));
    let server = TestServer::start_on(&store, "").await;
    let keys = &Keyspace::default();
    for from in (0..TENANTS).step_by(BATCH) {
        let write = |tx: turnwise_store::Transaction| async move {
            for n in from..from + BATCH {
                tx.set_versionstamp(keys.waiting_entry("mail", &format!("t{n:05}")))?;
            }
            Ok::<_, Error>(())
        };
        store.transact(write).await.unwrap();
    }
    let added = server.post("/v1/jobs/mail", &json!({ "id": "last", "tenant": "zz" })).await;
    assert_eq!(added.status, 201, "{}", added.body);
    for n in 0..120 {
        let path = format!("/v1/jobs/type{n:03}");
        let added = server.post(&path, &json!({ "id": "a", "tenant": "x" })).await;
        assert_eq!(added.status, 201, "{}", added.body);
    }
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/v1/tenants?limit=1000{after}")).await.body;
        for tenant in page["tenants"].as_array().unwrap() {
            let name = |of: &str| tenant[of].as_str().unwrap().to_owned();
            names.push((name("type"), name("tenant")));
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert!(names.is_sorted());
    assert_eq!(names.len(), TENANTS + 1 + 120);
    assert_eq!(names[TENANTS], ("mail".to_owned(), "zz".to_owned()));
    let why = server.get("/v1/jobs/mail/last/why").await.body;
    assert_eq!(why["tenant"]["pending"], 1, "{why}");
    // The other tenants precede it, as far as the server has read.
    assert_eq!(why["place"]["overall_more"], true, "{why}");
    server.server.shutdown().await;
}
