//! Compares complete responses with a real CouchDB's. Both servers get the same requests about replications of the same
//! source. The test compares the responses member by member and value by value, except for [`DIFFERENCES`].

use crate::common::{Answer, PATIENCE, TestServer, until};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use turnwise_testkit::{CouchDb, Database, client};

/// Intended differences: the request, and the member of its response. `docs/replication.md` gives the reasons.
const DIFFERENCES: &[(&str, &str)] = &[
    // There are no logins, so no user owns anything, unless the request states one.
    ("continuous job", "user"),
    ("continuous task", "user"),
    ("completed document", "owner"),
    // turnwise asks the source for the number of pending changes immediately.
    ("continuous job", "info.changes_pending"),
    ("continuous task", "changes_pending"),
    ("completed status", "info.changes_pending"),
    ("completed document", "_replication_stats.changes_pending"),
    // Responses never contain passwords.
    ("completed document", "source"),
    ("completed document", "target"),
    // A document keeps the id after its end.
    ("completed document", "_replication_id"),
];

/// Values that differ from server to server. Only their types are compared.
const OWN: [&str; 24] = [
    "_id",
    "_local_id",
    "_replication_id",
    "_replication_state_time",
    "_rev",
    "end_last_seq",
    "end_time",
    "id",
    "last_updated",
    "node",
    "pid",
    "checkpointed_source_seq",
    "recorded_seq",
    "replication_id",
    "rev",
    "session_id",
    "source_last_seq",
    "source_seq",
    "start_last_seq",
    "start_time",
    "started_on",
    "through_seq",
    "timestamp",
    "updated_on",
];

/// Both servers, and the differences found so far.
struct Both<'a> {
    couchdb: &'a CouchDb,
    turnwise: TestServer,
    found: BTreeSet<(String, String)>,
    wrong: Vec<String>,
}

impl Both<'_> {
    async fn couchdb(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = client().request(method, format!("{}{path}", self.couchdb.url())).timeout(PATIENCE);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null);
        Answer { status, headers, body }
    }

    async fn turnwise(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let mut request = self.turnwise.request(method, path);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        self.turnwise.send(request).await
    }

    /// Compares the two responses to `question`.
    fn compare(&mut self, question: &str, theirs: &Answer, ours: &Answer) {
        if theirs.status != ours.status {
            self.wrong.push(format!(
                "{question}: {} {} there, {} {} here",
                theirs.status, theirs.body, ours.status, ours.body
            ));
        }
        for name in ["content-type", "cache-control", "x-couchdb-body-time"] {
            let (there, here) = (theirs.header(name), ours.header(name));
            if there != here && name != "x-couchdb-body-time" || there.is_empty() != here.is_empty() {
                self.wrong.push(format!("{question}: {name}: {there:?} there, {here:?} here"));
            }
        }
        let id = |answer: &Answer| {
            let id = answer.header("x-couch-request-id").to_owned();
            id.len() == 10 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if (id(theirs), id(ours)) != (true, true) {
            self.wrong.push(format!("{question}: a request's id is ten hexadecimal digits"));
        }
        self.compare_values(question, &theirs.body, &ours.body);
    }

    fn compare_values(&mut self, question: &str, theirs: &Value, ours: &Value) {
        let (theirs, ours) = (leaves(theirs), leaves(ours));
        let places: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
        for place in places {
            let (there, here) = (theirs.get(place), ours.get(place));
            let own = place.rsplit('.').next().is_some_and(|name| OWN.contains(&name));
            let same = match (there, here) {
                (Some(there), Some(here)) if own => {
                    std::mem::discriminant(there) == std::mem::discriminant(here)
                }
                _ => there == here,
            };
            if same {
                continue;
            }
            if DIFFERENCES.contains(&(question, place.as_str())) {
                self.found.insert((question.to_owned(), place.clone()));
            } else {
                self.wrong.push(format!("{question}: {place}: {there:?} there, {here:?} here"));
            }
        }
    }

    /// Sends both servers the same request, except for the target, and compares the responses.
    async fn ask(
        &mut self,
        question: &str,
        method: &str,
        path: &str,
        bodies: [Option<&Value>; 2],
    ) -> [Value; 2] {
        let theirs = self.couchdb(method, path, bodies[0]).await;
        let ours = self.turnwise(method, path, bodies[1]).await;
        self.compare(question, &theirs, &ours);
        [theirs.body, ours.body]
    }

    /// Repeats a request to one server until its response is good.
    async fn until(&self, here: bool, path: &str, good: impl Fn(&Value) -> bool) -> Answer {
        let look = async || match here {
            true => self.turnwise("GET", path, None).await,
            false => self.couchdb("GET", path, None).await,
        };
        until(&format!("{path} is as wanted"), look, |answer| good(&answer.body)).await
    }
}

/// Every value that is neither an object nor an array, by its path. Names of targets are normalized.
fn leaves(value: &Value) -> BTreeMap<String, Value> {
    fn walk(place: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
        let at = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
        match value {
            Value::Object(object) => object.iter().for_each(|(name, value)| walk(&at(name), value, into)),
            Value::Array(array) => {
                array.iter().enumerate().for_each(|(n, value)| walk(&at(&n.to_string()), value, into))
            }
            Value::String(text) => {
                let text = text.rsplit_once("-ours").map_or(text.as_str(), |(before, _)| before);
                let text = text.rsplit_once("-theirs").map_or(text, |(before, _)| before);
                into.insert(place.to_owned(), text.into());
            }
            _ => {
                into.insert(place.to_owned(), value.clone());
            }
        }
    }
    let mut all = BTreeMap::new();
    walk("", value, &mut all);
    all
}

/// Writes documents with a second generation, which no changes feed returns.
async fn write(source: &Database, name: &str, count: usize) {
    for n in 0..count {
        let id = format!("{name}{n}");
        let rev = source.put(&id, &json!({"n": n})).await;
        source.put(&id, &json!({"n": n, "_rev": rev})).await;
    }
}

#[tokio::test]
async fn whole_answers_are_couchdbs() {
    // A CouchDB for this test only: lists of jobs and tasks would also show the replications of other tests.
    let Some(couchdb) = CouchDb::start().await else { return };
    let couchdb = &couchdb;
    let peer = couchdb.peer();
    let source = peer.create("answers").await;
    let (theirs, ours) = (peer.create("copy-theirs").await, peer.create("copy-ours").await);
    let (_, welcome) = couchdb.request(Method::GET, "/", None).await;
    let uuid = welcome["uuid"].as_str().unwrap();
    // Parking would make a continuous job `pending`. Without parking it runs, as in CouchDB.
    let turnwise = TestServer::start_with(&format!("multiplex = off\n[couchdb]\nuuid = {uuid}\n")).await;
    let mut both = Both { couchdb, turnwise, found: BTreeSet::new(), wrong: Vec::new() };
    let bodies = |more: Value| {
        [&theirs, &ours].map(|target| {
            let mut body = json!({"source": source.url(), "target": target.url()});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        })
    };

    // One-shot requests: the counters of the second one are sums, and the third one finds no changes.
    write(&source, "a", 5).await;
    let [there, here] = bodies(json!({}));
    both.ask("first one-shot", "POST", "/_replicate", [Some(&there), Some(&here)]).await;
    write(&source, "b", 3).await;
    both.ask("second one-shot", "POST", "/_replicate", [Some(&there), Some(&here)]).await;
    both.ask("nothing new", "POST", "/_replicate", [Some(&there), Some(&here)]).await;
    for fields in [
        json!({"doc_ids": ["a0", "a1"]}),
        json!({"selector": {"n": {"$gt": 1}}}),
        json!({"winning_revs_only": true}),
    ] {
        let [there, here] = bodies(fields.clone());
        both.ask(&fields.to_string(), "POST", "/_replicate", [Some(&there), Some(&here)]).await;
    }

    // A continuous replication, and its counters while it runs.
    write(&source, "c", 2).await;
    let [there, here] = bodies(json!({"continuous": true, "winning_revs_only": true}));
    let ids = both.ask("continuous", "POST", "/_replicate", [Some(&there), Some(&here)]).await;
    let ids = ids.map(|answer| answer["_local_id"].as_str().unwrap().to_owned());
    let task = |id: String| {
        move |tasks: &Value| {
            let mut tasks = tasks.as_array().unwrap().iter();
            tasks.find(|task| task["replication_id"] == *id).cloned().unwrap_or_default()
        }
    };
    let tasks = ids.clone().map(task);
    let [there, here] = [false, true];
    let there = both.until(there, "/_active_tasks", |all| tasks[0](all)["docs_read"] == 2).await;
    let here = both.until(here, "/_active_tasks", |all| tasks[1](all)["docs_read"] == 2).await;
    both.compare_values("continuous task", &tasks[0](&there.body), &tasks[1](&here.body));
    let paths = ids.clone().map(|id| format!("/_scheduler/jobs/{id}"));
    let there = both.until(false, &paths[0], |job| job["info"]["docs_read"] == 2).await;
    let here = both.until(true, &paths[1], |job| job["info"]["docs_read"] == 2).await;
    both.compare("continuous job", &there, &here);
    let cancel = ids.map(|id| json!({"cancel": true, "id": id}));
    both.ask("cancelled", "POST", "/_replicate", [Some(&cancel[0]), Some(&cancel[1])]).await;
    both.ask("no jobs", "GET", "/_scheduler/jobs", [None, None]).await;
    both.ask("no tasks", "GET", "/_active_tasks", [None, None]).await;
    both.ask("no such job", "GET", "/_scheduler/jobs/x", [None, None]).await;

    // A document.
    let [there, here] = bodies(json!({"create_target": true}));
    let path = "/_replicator/doc";
    both.ask("document", "PUT", path, [Some(&there), Some(&here)]).await;
    let status = "/_scheduler/docs/_replicator/doc";
    let there = both.until(false, status, |status| status["state"] == "completed").await;
    let here = both.until(true, status, |status| status["state"] == "completed").await;
    both.compare("completed status", &there, &here);
    let [there, here] =
        both.ask("completed document", "GET", path, [None, None]).await.map(|doc| doc["_rev"].clone());
    let paths = [there, here].map(|rev| format!("{path}?rev={}", rev.as_str().unwrap()));
    let there = both.couchdb("DELETE", &paths[0], None).await;
    let here = both.turnwise("DELETE", &paths[1], None).await;
    both.compare("deleted document", &there, &here);
    both.ask("no such document", "GET", path, [None, None]).await;
    both.ask("no such status", "GET", status, [None, None]).await;

    let (wrong, found) = (both.wrong, both.found);
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (question, place) in DIFFERENCES {
        assert!(
            found.contains(&((*question).into(), (*place).into())),
            "no longer different: {question}: {place}"
        );
    }
}

#[tokio::test]
async fn a_malformed_document_is_refused_as_by_couchdb() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let turnwise = TestServer::start().await;
    let mut both = Both { couchdb, turnwise, found: BTreeSet::new(), wrong: Vec::new() };
    let url = "http://127.0.0.1:1/db";
    let with = |name: &str, value: Value| {
        let mut doc = json!({"source": url, "target": url});
        doc[name] = value;
        doc
    };
    let documents = [
        json!({}),
        json!({"target": url}),
        json!({"source": url}),
        with("source", json!(5)),
        with("source", json!("db")),
        with("source", json!("ftp://h/db")),
        with("source", json!({"headers": {}})),
        with("source", json!({"url": 5})),
        with("source", json!({"url": url, "headers": []})),
        with("source", json!({"url": url, "headers": {"X": 5}})),
        with("source", json!({"url": url, "auth": 5})),
        with("continuous", json!("yes")),
        with("create_target", json!(5)),
        with("winning_revs_only", json!(5)),
        with("doc_ids", json!("a")),
        with("doc_ids", json!([1])),
        with("selector", json!(5)),
        json!({"source": url, "target": url, "doc_ids": ["a"], "selector": {}}),
        with("filter", json!("x")),
        with("filter", json!(5)),
        with("query_params", json!(5)),
        with("proxy", json!(5)),
        with("proxy", json!("ftp://h")),
        json!({"source": url, "target": url, "proxy": "http://p", "source_proxy": "http://p"}),
        with("socket_options", json!("nonsense")),
        with("worker_processes", json!("many")),
        with("checkpoint_interval", json!("x")),
        with("user_ctx", json!(5)),
        with("_special", json!(5)),
        json!([]),
        json!("a"),
    ];
    for document in &documents {
        for (method, path) in [("PUT", "/_replicator/malformed"), ("POST", "/_replicator")] {
            let theirs = both.couchdb(method, path, Some(document)).await;
            let ours = both.turnwise(method, path, Some(document)).await;
            if theirs.error() != ours.error() {
                both.wrong.push(format!(
                    "{method} {document}: {:?} there, {:?} here",
                    theirs.error(),
                    ours.error()
                ));
            }
        }
        // In a batch, each document has its own result.
        let batch = json!({"docs": [document]});
        let theirs = both.couchdb("POST", "/_replicator/_bulk_docs", Some(&batch)).await;
        let ours = both.turnwise("POST", "/_replicator/_bulk_docs", Some(&batch)).await;
        let error = |answer: &Answer| answer.body[0]["error"].clone();
        if (theirs.error(), error(&theirs)) != (ours.error(), error(&ours)) {
            both.wrong.push(format!(
                "batch of {document}: {} {} there, {} {} here",
                theirs.status, theirs.body, ours.status, ours.body
            ));
        }
    }
    assert!(both.wrong.is_empty(), "{} {:#?}", both.wrong.len(), both.wrong);
}

#[tokio::test]
async fn a_request_keeps_the_id_that_its_client_chose() {
    let turnwise = TestServer::start().await;
    for path in ["/", "/_up", "/_active_tasks", "/_replicator/none", "/nothing", "/_replicator/_changes"] {
        let named = turnwise.send(turnwise.request("GET", path).header("X-Couch-Request-ID", "abc")).await;
        assert_eq!(named.header("x-couch-request-id"), "abc", "{path}");
        let [one, other] = [turnwise.get(path).await, turnwise.get(path).await];
        assert_ne!(one.header("x-couch-request-id"), other.header("x-couch-request-id"), "{path}");
        assert_eq!(one.header("x-couch-request-id").len(), 10, "{path}");
        assert_eq!(one.header("x-couchdb-body-time"), "0", "{path}");
    }
    let set = turnwise
        .request("PUT", "/_node/_local/_config/replicator/max_jobs")
        .header("X-Couch-Persist", "false");
    assert_eq!(turnwise.send(set.body("\"501\"")).await.status, 200);
}
