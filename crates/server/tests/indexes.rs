//! The indexes of a real CouchDB, which turnwise keeps up to date. CouchDB's own builder is switched off.

use reqwest::Method;
use serde_json::{Value, json};
use turnwise_testkit::{CouchDb, Database};

use crate::common::{TestServer, until};

/// A CouchDB that builds nothing by itself.
async fn couchdb() -> Option<CouchDb> {
    let couchdb = CouchDb::start().await?;
    for key in ["batch_channels", "incremental_channels"] {
        let path = format!("/_node/_local/_config/ken/{key}");
        assert_eq!(couchdb.request(Method::PUT, &path, Some(&json!("0"))).await.0, 200);
    }
    Some(couchdb)
}

async fn turnwise(couchdb: &CouchDb, folder: tempfile::TempDir, more: &str) -> TestServer {
    let config = format!(
        "[indexing]\nservers = {}\nmin_delay = 0.1\nmax_delay = 0.5\nmax_p95_ms = 0\n{more}\n[jobs]\nbackoff_base_ms = 200\n",
        couchdb.url()
    );
    TestServer::start_in(folder, &config).await
}

fn view(map: &str) -> Value {
    json!({ "language": "javascript", "views": { "v": { "map": map } } })
}

fn database(couchdb: &CouchDb, name: &str) -> Database {
    Database::at(format!("{}/{name}", couchdb.url()))
}

async fn write(database: &Database, from: usize, count: usize) {
    let docs: Vec<Value> = (from..from + count).map(|n| json!({ "_id": format!("d{n}"), "n": n })).collect();
    database.post("/_bulk_docs", &json!({ "docs": docs })).await;
}

/// How many changes a design document's views lack.
async fn lacks(database: &Database, design: &str) -> u64 {
    let info = database.get(&format!("/_design/{design}/_info")).await;
    info["view_index"]["updates_pending"]["total"].as_u64().unwrap()
}

async fn until_built(database: &Database, design: &str) {
    let what = format!("{}/{design} is built", database.name());
    until(&what, async || lacks(database, design).await, |changes| *changes == 0).await;
}

/// The indexes in the list, once `good` holds for all of them.
async fn until_listed(server: &TestServer, count: usize, good: impl Fn(&Value) -> bool) -> Vec<Value> {
    let all = |answer: &Value| {
        let indexes = answer["indexes"].as_array().unwrap();
        indexes.len() == count && indexes.iter().all(&good)
    };
    server.poll("/v1/indexes?limit=1000", all).await["indexes"].as_array().unwrap().clone()
}

fn is_current(index: &Value) -> bool {
    index["parked"] == true && index["changes_behind"] == 0 && index["seconds_behind"] == 0
}

#[tokio::test]
async fn every_index_gets_every_write_although_both_servers_crash() {
    const DATABASES: usize = 20;
    const DESIGNS: [&str; 3] = ["a", "b", "m"];
    let Some(mut couchdb) = couchdb().await else { return };
    let databases: Vec<Database> = (0..DATABASES)
        .map(|n| database(&couchdb, &format!("{}-{n}", if n < 15 { "acme" } else { "other" })))
        .collect();
    for database in &databases {
        database.create().await;
        write(database, 0, 50).await;
        database.put("_design/a", &view("function (doc) { emit(doc.n, 1); }")).await;
        database.put("_design/b", &view("function (doc) { emit(-doc.n, 1); }")).await;
        let mango = json!({ "index": { "fields": ["n"] }, "name": "by-n", "ddoc": "m", "type": "json" });
        database.post("/_index", &mango).await;
    }
    let server = turnwise(&couchdb, tempfile::tempdir().unwrap(), "builds = 3").await;
    let indexes = until_listed(&server, DATABASES * DESIGNS.len(), is_current).await;
    for index in &indexes {
        assert_eq!(
            index["tenant"],
            index["database"].as_str().unwrap().split('-').next().unwrap(),
            "{index}"
        );
        assert_eq!(index["kind"], if index["design"] == "m" { "mango" } else { "views" }, "{index}");
        assert!(index["built"]["size_bytes"].as_u64().unwrap() > 0, "{index}");
    }
    // A crash of CouchDB between writes, and one of turnwise.
    for (n, database) in databases.iter().enumerate() {
        write(database, 100, 1 + n).await;
    }
    couchdb.crash().await;
    for database in databases.iter().step_by(2) {
        write(database, 200, 3).await;
    }
    let TestServer { server, folder, .. } = server;
    drop(server);
    for database in databases.iter().step_by(3) {
        write(database, 300, 3).await;
    }
    let server = turnwise(&couchdb, folder, "builds = 3").await;
    for database in databases.iter().step_by(4) {
        write(database, 400, 3).await;
    }
    for database in &databases {
        for design in DESIGNS {
            until_built(database, design).await;
        }
    }
    until_listed(&server, DATABASES * DESIGNS.len(), is_current).await;
    server.server.shutdown().await;
}

#[tokio::test]
async fn designs_and_databases_come_change_and_go() {
    let Some(couchdb) = couchdb().await else { return };
    let server = turnwise(&couchdb, tempfile::tempdir().unwrap(), "exclude = left-*\ntenant = indexes").await;
    let one = database(&couchdb, "one");
    one.create().await;
    write(&one, 0, 20).await;
    // A new design document, one that is not built by itself, and one that the server cannot build.
    let rev = one.put("_design/a", &view("function (doc) { emit(doc.n, 1); }")).await;
    let mut manual = view("function (doc) { emit(doc.n, 2); }");
    manual["autoupdate"] = json!(false);
    let of_manual = one.put("_design/manual", &manual).await;
    let broken = json!({ "language": "none", "views": { "v": { "map": "x" } } });
    let of_broken = one.put("_design/broken", &broken).await;
    // A database that is left out, and a partitioned one.
    let left = database(&couchdb, "left-out");
    left.create().await;
    left.put("_design/a", &view("function (doc) { emit(doc.n, 1); }")).await;
    let parts = database(&couchdb, "parts");
    assert_eq!(couchdb.request(Method::PUT, "/parts?partitioned=true", None).await.0, 201);
    let docs: Vec<Value> = (0..20).map(|n| json!({ "_id": format!("p{}:{n}", n % 5), "n": n })).collect();
    parts.post("/_bulk_docs", &json!({ "docs": docs })).await;
    parts.put("_design/a", &view("function (doc) { emit(doc.n, 1); }")).await;
    until_built(&one, "a").await;
    until_built(&parts, "a").await;
    let by_design = |indexes: &[Value], design: &str| {
        let of = |index: &&Value| index["database"] == "one" && index["design"] == design;
        indexes.iter().find(of).cloned().unwrap_or_default()
    };
    let indexes = until_listed(&server, 3, |index| is_current(index) || index["state"] == "failed").await;
    assert_eq!(by_design(&indexes, "a")["tenant"], "indexes");
    let broken = by_design(&indexes, "broken");
    assert!(broken["error"].as_str().unwrap().contains("unknown_query_language"), "{broken}");
    assert_eq!((lacks(&one, "manual").await > 0, lacks(&left, "a").await > 0), (true, true));
    // A repaired one, one that is built from now on, and one that is not any more.
    let mut fixed = view("function (doc) { emit(doc.n, 3); }");
    fixed["_rev"] = json!(of_broken);
    one.put("_design/broken", &fixed).await;
    manual["autoupdate"] = json!(true);
    manual["_rev"] = json!(of_manual);
    one.put("_design/manual", &manual).await;
    let path = format!("/one/_design/a?rev={rev}");
    assert_eq!(couchdb.request(Method::DELETE, &path, None).await.0, 200);
    until_built(&one, "broken").await;
    until_built(&one, "manual").await;
    let indexes = until_listed(&server, 3, is_current).await;
    assert_eq!(by_design(&indexes, "a"), Value::Null);
    // A database that is deleted, and created again with the same design document.
    one.delete().await;
    until_listed(&server, 1, |index| index["database"] == "parts").await;
    one.create().await;
    write(&one, 0, 5).await;
    one.put("_design/manual", &view("function (doc) { emit(doc.n, 2); }")).await;
    until_built(&one, "manual").await;
    let indexes = until_listed(&server, 2, is_current).await;
    // Clients add no such jobs, and the page of a job explains it.
    let id = by_design(&indexes, "manual")["id"].as_str().unwrap().replace('%', "%25").replace('/', "%2F");
    let why = server.get(&format!("/v1/jobs/indexing/{id}/why")).await;
    assert_eq!((why.status, &why.body["reason"]), (200, &json!("parked")), "{}", why.body);
    let added = server.post("/v1/jobs/indexing", &json!({ "options": {} })).await;
    assert_eq!(added.error(), (403, "forbidden"));
    let page = server.request("GET", "/ui/indexes?database=one").send().await.unwrap().text().await.unwrap();
    assert!(page.contains("up to date") && page.contains("manual") && !page.contains("parts"), "{page}");
    // Its locks are units of the server.
    assert_eq!(
        server.get("/v1/indexes?database=one&limit=1").await.body["indexes"].as_array().unwrap().len(),
        1
    );
    server.server.shutdown().await;
}

#[tokio::test]
async fn indexes_wait_while_their_server_is_down_and_fail_nothing() {
    let Some(mut couchdb) = couchdb().await else { return };
    let one = database(&couchdb, "one");
    one.create().await;
    write(&one, 0, 20).await;
    one.put("_design/a", &view("function (doc) { emit(doc.n, 1); }")).await;
    let server = turnwise(&couchdb, tempfile::tempdir().unwrap(), "").await;
    until_listed(&server, 1, is_current).await;
    for round in 0..2 {
        write(&one, 100 * (round + 1), 10).await;
        couchdb.crash().await;
        until_built(&one, "a").await;
    }
    // The index is not yet on the disk, and nothing is written to the database after the crash.
    couchdb.crash().await;
    until_built(&one, "a").await;
    let indexes = until_listed(&server, 1, is_current).await;
    assert_eq!(indexes[0].get("error"), None, "{indexes:?}");
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_database_with_large_design_documents_is_indexed_and_stops_no_other() {
    const LARGE: usize = 10;
    let Some(couchdb) = couchdb().await else { return };
    let (large, small) = (database(&couchdb, "large"), database(&couchdb, "small"));
    for database in [&large, &small] {
        database.create().await;
        write(database, 0, 5).await;
    }
    // Together more than one answer may have.
    for n in 0..LARGE {
        let mut design = view(&format!("function (doc) {{ emit(doc.n, {n}); }}"));
        design["note"] = json!("x".repeat(7_900_000));
        large.put(&format!("_design/l{n}"), &design).await;
    }
    small.put("_design/a", &view("function (doc) { emit(doc.n, 1); }")).await;
    let server = turnwise(&couchdb, tempfile::tempdir().unwrap(), "").await;
    until_listed(&server, LARGE + 1, is_current).await;
    assert_eq!(lacks(&small, "a").await + lacks(&large, "l9").await, 0);
    server.server.shutdown().await;
}
