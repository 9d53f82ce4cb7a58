//! A store that an earlier release wrote: `store check` accepts it, and a server continues with its jobs.
//!
//! `data/rows-fcbf930.txt` is the output of `turnwise store dump --secrets` of the release fcbf930, the last one before a job's
//! place was a type (docs/design/0045). Its server was killed while jobs ran, so the store has a job in every place except
//! parked, a run that waits for a lock, and workers that are lost.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use turnwise_admin::check::{Progress, check};
use turnwise_admin::dump::{line, parse_key};
use turnwise_admin::scan::{Scan, everything};
use turnwise_queue::{Keyspace, jobs};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Error, Store, runtime};

use crate::common::TestServer;

const ROWS: &str = include_str!("data/rows-fcbf930.txt");

/// The bytes that a value of the dump stands for.
fn value(text: &str) -> Bytes {
    let parsed: Value = serde_json::from_str(text).unwrap();
    let tagged = |tag: &str| parsed.get(tag).map(|text| text.as_str().unwrap().to_owned());
    if parsed.is_null() {
        return Bytes::new();
    }
    match (tagged("$versionstamp"), tagged("$text")) {
        (Some(hex), _) => {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        }
        (_, Some(text)) => text.into(),
        _ => Bytes::copy_from_slice(text.as_bytes()),
    }
}

/// A store with the rows of the dump, each from a transaction of its own. So the versionstamps of the dump are older than those
/// of later transactions, as in the store that was dumped.
async fn store(folder: &tempfile::TempDir) -> Store {
    let options = Options { durable: false, ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let store = Store::new(engine, Arc::new(runtime::System));
    for row in ROWS.lines() {
        let (key, text) = row.split_once('\t').unwrap();
        let write = |tx: turnwise_store::Transaction| async move {
            tx.set(parse_key(key).unwrap(), value(text))?;
            Ok::<_, Error>(())
        };
        store.transact(write).await.unwrap();
    }
    store
}

/// The name of a job's place.
async fn place(store: &Store, of_type: &str, id: &str) -> String {
    let tx = store.begin().await.unwrap();
    let job = jobs::get(&tx, &Keyspace::default(), of_type, id).await.unwrap().unwrap();
    let shown = format!("{:?}", job.place);
    shown.split(|char: char| !char.is_alphanumeric()).next().unwrap().to_owned()
}

/// Takes jobs of a type, one after another, and finishes each, until `id` is among them.
async fn finish_up_to(server: &TestServer, of_type: &str, id: &str) {
    let registered = server.post(&format!("/v1/workers/{of_type}"), &json!({ "slots": 1 })).await;
    let worker = format!("/v1/workers/{of_type}/{}", registered.body["worker"].as_str().unwrap());
    let mut received = 0;
    loop {
        let accept = json!({ "received": received, "limit": 1, "wait_ms": 60_000 });
        let accepted = server.post(&format!("{worker}/accept"), &accept).await;
        let job = accepted.body["jobs"][0].clone();
        let taken = job["id"].as_str().unwrap_or_else(|| panic!("no job of {of_type}: {}", accepted.body));
        received = job["claim"].as_u64().unwrap();
        let finish = json!({ "claim": received, "result": "done" });
        let finished = server.post(&format!("{worker}/jobs/{taken}/finish"), &finish).await;
        assert_eq!(finished.status, 200, "{}", finished.body);
        if taken == id {
            return;
        }
    }
}

/// The server keeps working: what moves during the pass is read again, in one transaction.
async fn assert_sound(store: &Store) {
    let report = check(store, true, &Progress::default()).await.unwrap();
    assert!(report.findings.is_empty() && report.undecided.is_empty(), "{report:#?}");
}

#[tokio::test]
async fn a_store_of_the_release_before_is_sound_and_its_jobs_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder).await;
    assert_sound(&store).await;
    let mut scan = Scan::new(&store, everything());
    for row in ROWS.lines() {
        let (key, value) = scan.next().await.unwrap().unwrap();
        assert_eq!(line(&Keyspace::default(), &key, &value, true), row, "the rows are those of the dump");
    }

    for (of_type, id, expected) in [
        ("build", "b0", "Active"),
        ("build", "b1", "Pending"),
        ("build", "unknown", "Active"),
        ("mail", "after-later", "Blocked"),
        ("mail", "gone", "Ended"),
        ("mail", "later", "Delayed"),
        ("mail", "m0", "Ended"),
        ("mail", "m1", "Ended"),
        ("mail", "m2", "Crashing"),
        ("news", "n1", "Paused"),
        ("sms", "s0", "Active"),
        ("sms", "s1", "Limited"),
    ] {
        assert_eq!(place(&store, of_type, id).await, expected, "{of_type} {id}");
    }

    let server = TestServer::start_on(&store, "").await;
    // Its limit counts a run of a lost worker, which is removed.
    finish_up_to(&server, "sms", "s2").await;
    // So are the workers that hold these locks.
    finish_up_to(&server, "build", "b2").await;
    assert_eq!(server.delete("/v1/filters/pause-news").await.status, 200);
    finish_up_to(&server, "news", "n1").await;
    finish_up_to(&server, "mail", "m2").await;
    // Its dependents are cancelled.
    assert_eq!(server.post_empty("/v1/jobs/mail/later/cancel").await.status, 200);
    server.poll("/v1/jobs/mail/after-later", |job| job["state"] == "cancelled").await;
    assert_sound(&store).await;
}
