//! Deploying design documents to a real CouchDB.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::watch;
use turnwise_indexer::{Database, Deployed, Error, Progress, Step, clean, deploy, rollback};
use turnwise_testkit::{CouchDb, Database as TestDatabase, until};

const DOCUMENTS: usize = 4_000;

fn version(map: &str) -> Map<String, Value> {
    let design = json!({ "language": "javascript", "views": { "v": { "map": map, "reduce": "_count" } } });
    design.as_object().unwrap().clone()
}

fn by_number() -> Map<String, Value> {
    version("function (doc) { emit(doc.n, 'old'); }")
}

fn by_text() -> Map<String, Value> {
    version("function (doc) { emit([doc.text, doc.n], 'new'); }")
}

async fn filled(name: &str) -> Option<(turnwise_testkit::Peer, TestDatabase, Database)> {
    let peer = CouchDb::shared().await?.peer();
    let database = peer.create(name).await;
    write(&database, 0..DOCUMENTS).await;
    let subject = Database::new(database.url()).unwrap();
    Some((peer, database, subject))
}

async fn write(database: &TestDatabase, numbers: std::ops::Range<usize>) {
    let docs: Vec<Value> =
        numbers.map(|n| json!({ "_id": format!("d{n:06}"), "n": n, "text": "x" })).collect();
    for part in docs.chunks(1_000) {
        database.post("/_bulk_docs", &json!({ "docs": part })).await;
    }
}

async fn deployed(database: &Database, version: &Map<String, Value>) -> Deployed {
    deploy(database, "d", version, &watch::Sender::new(Progress::default())).await.unwrap()
}

/// The value of the first row of the view, and the number of rows, without waiting for the index.
async fn read(database: &TestDatabase) -> (Value, u64) {
    let rows = database.get("/_design/d/_view/v?reduce=false&limit=1&update=false").await;
    (rows["rows"][0]["value"].clone(), rows["total_rows"].as_u64().unwrap())
}

async fn exists(database: &TestDatabase, name: &str) -> bool {
    database.doc(&format!("_design/{name}")).await.is_some()
}

#[tokio::test]
async fn readers_see_the_old_version_or_the_complete_new_one() {
    let Some((_peer, database, subject)) = filled("deploy-readers").await else { return };
    let first = deployed(&subject, &by_number()).await;
    assert_eq!((first.replaced, first.kept), (true, None));
    let stop = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (database, stop) = (database.clone(), stop.clone());
        async move {
            let mut seen = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let (value, rows) = read(&database).await;
                assert!(rows >= DOCUMENTS as u64, "{value} has {rows} rows");
                seen.push(value);
            }
            seen
        }
    });
    let writer = tokio::spawn({
        let (database, stop) = (database.clone(), stop.clone());
        async move {
            let mut n = DOCUMENTS;
            while !stop.load(Ordering::Relaxed) {
                write(&database, n..n + 20).await;
                n += 20;
            }
            n
        }
    });
    let second = deployed(&subject, &by_text()).await;
    assert_eq!((second.replaced, second.kept.as_deref()), (true, Some("_design/d-turnwise-old")));
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    let (seen, written) = (reader.await.unwrap(), writer.await.unwrap());
    assert!(written > DOCUMENTS, "nothing was written meanwhile");
    let changed = seen.iter().position(|value| value == "new").unwrap();
    assert!(changed > 0 && seen[..changed].iter().all(|value| value == "old"));
    assert!(seen[changed..].iter().all(|value| value == "new"));
    assert!(!exists(&database, "d-turnwise-new").await);
    // The same again changes nothing.
    let again = deployed(&subject, &by_text()).await;
    assert!(!again.replaced);
}

#[tokio::test]
async fn a_deployment_that_is_interrupted_at_any_step_is_completed_by_the_next() {
    let steps = [Step::Write, Step::Build, Step::Keep, Step::Replace, Step::CleanUp];
    // Each waits for the server most of the time.
    futures::future::join_all(steps.map(interrupted)).await;
}

async fn interrupted(until: Step) {
    let name = format!("deploy-{until:?}").to_lowercase();
    let Some((_peer, database, subject)) = filled(&name).await else { return };
    deployed(&subject, &by_number()).await;
    let progress = watch::Sender::new(Progress::default());
    let mut seen = progress.subscribe();
    let new = by_text();
    tokio::select! {
        biased;
        _ = async {
            seen.changed().await.unwrap();
            seen.wait_for(|progress| progress.step >= until).await.unwrap();
        } => {}
        ended = deploy(&subject, "d", &new, &progress) => { ended.unwrap(); }
    }
    let (value, rows) = read(&database).await;
    assert!(value == "old" || value == "new", "{until:?}: {value}");
    assert_eq!(rows, DOCUMENTS as u64, "{until:?}");
    let done = deployed(&subject, &new).await;
    assert_eq!(read(&database).await, (json!("new"), DOCUMENTS as u64), "{until:?}");
    assert_eq!(done.kept.as_deref(), Some("_design/d-turnwise-old"), "{until:?}");
    assert!(!exists(&database, "d-turnwise-new").await, "{until:?}");
    let back = rollback(&subject, "d", &watch::Sender::new(Progress::default())).await.unwrap();
    assert!(back.replaced);
    assert_eq!(read(&database).await, (json!("old"), DOCUMENTS as u64), "{until:?}");
    assert_eq!(clean(&subject, "d").await.unwrap(), ["_design/d-turnwise-old"]);
    let nothing = rollback(&subject, "d", &watch::Sender::new(Progress::default())).await;
    assert!(matches!(nothing, Err(Error::NoEarlier(..))), "{nothing:?}");
}

#[tokio::test]
async fn a_version_that_does_not_compile_leaves_nothing() {
    let Some((_peer, database, subject)) = filled("deploy-wrong").await else { return };
    deployed(&subject, &by_number()).await;
    let wrong = version("function (doc) { emit(");
    let error = deploy(&subject, "d", &wrong, &watch::Sender::new(Progress::default())).await.unwrap_err();
    assert!(error.to_string().contains("compilation_error"), "{error}");
    assert!(!exists(&database, "d-turnwise-new").await);
    assert!(!exists(&database, "d-turnwise-old").await);
    assert_eq!(read(&database).await, (json!("old"), DOCUMENTS as u64));
}

#[tokio::test]
async fn a_design_document_that_another_client_changes_is_not_replaced() {
    let Some((_peer, database, subject)) = filled("deploy-changed").await else { return };
    deployed(&subject, &by_number()).await;
    let progress = watch::Sender::new(Progress::default());
    let mut seen = progress.subscribe();
    let new = by_text();
    let deploying = deploy(&subject, "d", &new, &progress);
    let other = async {
        seen.wait_for(|progress| progress.step >= Step::Build).await.unwrap();
        let mut doc = database.doc("_design/d").await.unwrap();
        doc["note"] = json!("by another client");
        database.put("_design/d", &doc).await;
    };
    let (ended, ()) = tokio::join!(deploying, other);
    assert!(matches!(ended, Err(Error::Changed(..))), "{ended:?}");
    assert_eq!(database.doc("_design/d").await.unwrap()["note"], "by another client");
}

#[tokio::test]
async fn partitioned_databases_and_designs_without_views_are_deployed() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let peer = couchdb.peer();
    let database = peer.db("deploy-partitioned");
    database.delete().await;
    let (status, answer) = database.request(http::Method::PUT, "?partitioned=true", None).await;
    assert!(status.is_success(), "{answer}");
    let docs: Vec<Value> =
        (0..400).map(|n| json!({ "_id": format!("p{}:{n:04}", n % 20), "n": n })).collect();
    database.post("/_bulk_docs", &json!({ "docs": docs })).await;
    let subject = Database::new(database.url()).unwrap();
    deployed(&subject, &by_number()).await;
    let rows = database.get("/_partition/p7/_design/d/_view/v?reduce=false&update=false").await;
    assert_eq!(rows["rows"].as_array().unwrap().len(), 20);
    let filters = json!({ "filters": { "f": "function (doc) { return true; }" } });
    let done =
        deploy(&subject, "f", filters.as_object().unwrap(), &watch::Sender::new(Progress::default())).await;
    assert!(done.unwrap().replaced);
    database.delete().await;
}

/// A version with a rule for writes: it forbids documents that have `field`.
fn forbidding(map: &str, field: &str) -> Map<String, Value> {
    let mut version = version(map);
    let rule = format!("function (doc) {{ if (doc.{field}) throw({{ forbidden: '{field}' }}); }}");
    version.insert("validate_doc_update".to_owned(), json!(rule));
    version
}

/// Whether a document with `field` can be written.
async fn is_allowed(database: &TestDatabase, field: &str) -> bool {
    let doc = json!({ field: true });
    let (status, answer) = database.request(http::Method::POST, "", Some(&doc)).await;
    assert!(status.is_success() || status == 403, "{status}: {answer}");
    status.is_success()
}

/// Waits until documents with `a` and with `b` can be written, or cannot: CouchDB learns of a changed rule a moment later.
async fn rules_are(database: &TestDatabase, wanted: (bool, bool)) {
    let both = async || (is_allowed(database, "a").await, is_allowed(database, "b").await);
    until("the rules are in force that should be", both, |both| *both == wanted).await;
}

/// The rules of the live version, the new one and the kept one.
async fn rules(database: &TestDatabase) -> [Value; 3] {
    let mut rules = Vec::new();
    for name in ["d", "d-turnwise-new", "d-turnwise-old"] {
        let doc = database.doc(&format!("_design/{name}")).await.unwrap_or_default();
        rules.push(doc["validate_doc_update"].clone());
    }
    rules.try_into().unwrap()
}

#[tokio::test]
async fn a_rule_for_writes_is_in_force_only_while_its_version_is_live() {
    let Some((_peer, database, subject)) = filled("deploy-rule").await else { return };
    let a = forbidding("function (doc) { emit(doc.n, 'old'); }", "a");
    let b = forbidding("function (doc) { emit([doc.text, doc.n], 'new'); }", "b");
    let (of_a, of_b) = (a["validate_doc_update"].clone(), b["validate_doc_update"].clone());
    deployed(&subject, &a).await;
    rules_are(&database, (false, true)).await;

    // Before the replacement the new rule is not in force.
    let progress = watch::Sender::new(Progress::default());
    let mut seen = progress.subscribe();
    tokio::select! {
        biased;
        _ = async { seen.wait_for(|progress| progress.step >= Step::Build).await.unwrap(); } => {}
        ended = deploy(&subject, "d", &b, &progress) => { ended.unwrap(); }
    }
    assert!(exists(&database, "d-turnwise-new").await);
    assert_eq!(rules(&database).await, [of_a, Value::Null, Value::Null]);
    rules_are(&database, (false, true)).await;

    // After it, that of the version before is not.
    deployed(&subject, &b).await;
    assert_eq!(rules(&database).await, [of_b.clone(), Value::Null, Value::Null]);
    rules_are(&database, (true, false)).await;
    deployed(&subject, &by_number()).await;
    assert!(exists(&database, "d-turnwise-old").await);
    assert_eq!(rules(&database).await, [Value::Null, Value::Null, Value::Null]);
    rules_are(&database, (true, true)).await;

    for (rule, wanted) in [(of_b, (true, false)), (Value::Null, (true, true))] {
        let back = rollback(&subject, "d", &watch::Sender::new(Progress::default())).await.unwrap();
        assert!(back.replaced);
        assert_eq!(rules(&database).await, [rule, Value::Null, Value::Null]);
        rules_are(&database, wanted).await;
    }
}

#[tokio::test]
async fn indexes_of_find_are_refused() {
    let Some((_peer, database, subject)) = filled("deploy-find").await else { return };
    let find = json!({ "language": "query", "views": { "n": {
        "map": { "fields": { "n": "asc" }, "partial_filter_selector": {} }, "reduce": "_count",
        "options": { "def": { "fields": ["n"] } },
    } } });
    let progress = watch::Sender::new(Progress::default());
    let refused = deploy(&subject, "d", find.as_object().unwrap(), &progress).await;
    assert!(matches!(refused, Err(Error::OfFind(..))), "{refused:?}");
    // Neither may it become a version before.
    database.put("_design/d", &find).await;
    let refused = deploy(&subject, "d", &by_number(), &progress).await;
    assert!(matches!(refused, Err(Error::OfFind(..))), "{refused:?}");
    assert!(!exists(&database, "d-turnwise-new").await && !exists(&database, "d-turnwise-old").await);
}

#[test]
fn a_url_that_is_no_database_is_refused_without_its_password() {
    for url in ["", "http://user:hunter2@host:5984", "ftp://user:hunter2@host/db", "user:hunter2@host/db"] {
        let error = Database::new(url).unwrap_err().to_string();
        assert!(!error.contains("hunter2") && error.contains("expected the URL"), "{error}");
    }
    let database = Database::new("http://user:hunter2@host:5984/db").unwrap();
    assert!(!format!("{database:?}").contains("hunter2"));
}
