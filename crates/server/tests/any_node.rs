//! Several nodes on one store: each node responds for all nodes, and the loss of a node loses no jobs.

use std::collections::BTreeSet;

use crate::common::{Cluster, PATIENCE, TestServer, failed};
use serde_json::{Value, json};
use turnwise_testkit::Peer;

/// A request in progress, with its later response.
fn begun(request: reqwest::RequestBuilder) -> tokio::task::JoinHandle<Value> {
    tokio::spawn(async move {
        let answer = request.send().await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    })
}

async fn answer(request: tokio::task::JoinHandle<Value>) -> Value {
    tokio::time::timeout(PATIENCE, request).await.expect("no answer comes").unwrap()
}

/// Reads a stream until it holds `text`.
async fn read_until(stream: &mut reqwest::Response, text: &str) -> String {
    let mut read = String::new();
    let found = async {
        while !read.contains(text) {
            let chunk = stream.chunk().await.unwrap().expect("the stream ends");
            read.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    assert!(tokio::time::timeout(PATIENCE, found).await.is_ok(), "no {text} in {read}");
    read
}

fn node_of(task: &Value) -> String {
    task["node"].as_str().unwrap_or_else(|| panic!("no node: {task}")).to_owned()
}

/// Settings for nodes that detect a dead node soon, and leave a busy machine some time.
const QUICK: &str = "[workers]\nhealth_interval = 0.2\nhealth_timeout = 4\n";

#[tokio::test]
async fn a_job_its_client_and_its_worker_are_each_at_another_node() {
    let cluster = Cluster::start(["", "", ""]).await;
    let (a, b, c) = (cluster.at(0), cluster.at(1), cluster.at(2));
    let registered = a.post("/v1/workers/t", &json!({"slots": 2})).await.body;
    let worker = format!("/v1/workers/t/{}", registered["worker"].as_str().unwrap());
    // The worker waits at B, and the job is added at C.
    let accept = json!({"received": 0, "wait_ms": 300_000});
    let accepting = begun(
        b.request("POST", &format!("{worker}/accept"))
            .header("content-type", "application/json")
            .body(accept.to_string()),
    );
    let job = json!({"id": "j", "options": {"n": 1}});
    assert_eq!(c.post("/v1/jobs/t", &job).await.body["added"], "queued");
    assert_eq!(answer(accepting).await["jobs"][0]["claim"], 1);
    // A request to another node that does not know about the claim yet: it returns the same job.
    let again = c.post(&format!("{worker}/accept"), &json!({"received": 0})).await.body;
    assert_eq!(again["jobs"][0]["id"], "j");
    let waiting = begun(a.request("GET", "/v1/jobs/t/j/wait"));
    let mut events = c.request("GET", "/v1/jobs/t/j/events").send().await.unwrap();
    read_until(&mut events, "started").await;
    let updated = a.post(&format!("{worker}/jobs/j/update"), &json!({"claim": 1, "info": {"done": 5}})).await;
    assert_eq!(updated.body, json!({"answer": "continue"}));
    read_until(&mut events, "{\"done\":5}").await;
    assert_eq!(cluster.get("/v1/jobs/t/j").await["info"], json!({"done": 5}));
    assert_eq!(cluster.get("/v1/workers?type=t").await["workers"][0]["running"][0]["id"], "j");
    for node in [b, a, c] {
        let finished = node.post(&format!("{worker}/jobs/j/finish"), &json!({"claim": 1, "result": 7})).await;
        assert_eq!(finished.body, json!({"state": "completed"}), "however often, and wherever");
    }
    assert_eq!(answer(waiting).await["job"]["result"], 7);
    read_until(&mut events, "event: end").await;
    assert_eq!(cluster.get("/v1/jobs/t/j").await["state"], "completed");
    assert_eq!(cluster.get("/v1/jobs").await["jobs"].as_array().unwrap().len(), 1);

    // A client cancels a job at one node, and the worker learns it from a ping to another node.
    c.post("/v1/jobs/t", &json!({"id": "k"})).await;
    assert_eq!(
        b.post(&format!("{worker}/accept"), &json!({"received": 1})).await.body["jobs"][0]["claim"],
        2
    );
    assert_eq!(a.post("/v1/jobs/t/k/cancel", &json!({})).await.body["state"], "running");
    assert_eq!(b.post(&format!("{worker}/ping"), &json!({})).await.body, json!({"cancel": [2]}));
    let released = c.post(&format!("{worker}/jobs/k/release"), &json!({"claim": 2})).await;
    assert_eq!(released.body, json!({"state": "cancelled"}));
    assert_eq!(b.post(&format!("{worker}/leave"), &json!({})).await.body, json!({"left": true}));
    assert_eq!(cluster.get("/v1/workers?type=t").await, json!({"workers": []}));
}

#[tokio::test]
async fn an_external_worker_outlives_the_node_that_it_registered_with() {
    let mut cluster = Cluster::start([QUICK, QUICK]).await;
    let client = turnwise_client::Client::new(&format!("{},{}", cluster.at(0).url, cluster.at(1).url));
    let (starts, mut started) = tokio::sync::mpsc::unbounded_channel();
    let (go, gone) = tokio::sync::watch::channel(false);
    let handler = move |run: turnwise_client::Run| {
        let (starts, mut gone) = (starts.clone(), gone.clone());
        async move {
            starts.send(run.job.id.clone()).unwrap();
            gone.wait_for(|gone| *gone).await.unwrap();
            turnwise_client::Outcome::completed(&run.job.id)
        }
    };
    let stop = tokio_util::sync::CancellationToken::new();
    let options = turnwise_client::WorkerOptions { slots: 2, ..turnwise_client::WorkerOptions::new("t") };
    let working = tokio::spawn({
        let (client, stop) = (client.unwrap(), stop.clone());
        async move { turnwise_client::work(&client, options, handler, stop).await }
    });
    cluster.at(1).post("/v1/jobs/t", &json!({"id": "a"})).await;
    assert_eq!(started.recv().await.unwrap(), "a");
    let before = cluster.get("/v1/workers?type=t").await["workers"][0]["id"].clone();
    cluster.kill(0);
    cluster.at(0).post("/v1/jobs/t", &json!({"id": "b"})).await;
    assert_eq!(started.recv().await.unwrap(), "b");
    go.send(true).unwrap();
    for id in ["a", "b"] {
        let ended = cluster.at(0).get(&format!("/v1/jobs/t/{id}/wait")).await.body;
        assert_eq!((&ended["job"]["state"], &ended["job"]["result"]), (&json!("completed"), &json!(id)));
        assert_eq!(ended["job"]["history"].as_array().unwrap().len(), 3, "one run: {ended}");
    }
    let workers = cluster.get("/v1/workers?type=t").await;
    assert_eq!(workers["workers"].as_array().unwrap().len(), 1, "{workers}");
    assert_eq!(workers["workers"][0]["id"], before, "it is who it was");
    stop.cancel();
    working.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_replicator_database_is_the_same_everywhere() {
    let cluster = Cluster::start(["", ""]).await;
    let (a, b) = (cluster.at(0), cluster.at(1));
    assert_eq!(cluster.get("/").await["uuid"].as_str().unwrap().len(), 32, "one uuid");
    let mut feed = a
        .request("GET", "/_replicator/_changes?feed=continuous&heartbeat=60000&since=now")
        .send()
        .await
        .unwrap();
    let longpoll = begun(a.request("GET", "/_replicator/_changes?feed=longpoll&since=0&timeout=600000"));
    let rev = b.put_ok("/_replicator/a", &failed(1)).await;
    read_until(&mut feed, &rev).await;
    assert_eq!(answer(longpoll).await["results"][0]["id"], "a");
    // Revisions and sequence numbers continue, regardless of the node that writes next.
    let rev = a.put_ok(&format!("/_replicator/a?rev={rev}"), &failed(2)).await;
    assert_eq!(b.put(&format!("/_replicator/a?rev=1-{}", "0".repeat(32)), &failed(3)).await.status, 409);
    assert_eq!(cluster.get("/_replicator/_changes").await["last_seq"], "2");
    // Writers at both nodes conflict, and all of them succeed.
    let writes = (0..40).map(|n| {
        let node = cluster.at(n % 2);
        async move { node.put(&format!("/_replicator/d{n}"), &failed(n)).await.status }
    });
    assert_eq!(futures::future::join_all(writes).await, [201; 40]);
    assert_eq!(cluster.get("/_replicator").await["doc_count"], 41);
    let changes = cluster.get("/_replicator/_changes").await;
    assert_eq!(changes["last_seq"], "42");
    assert_eq!(changes["results"].as_array().unwrap().len(), 41, "no number is used twice");
    assert_eq!(a.delete(&format!("/_replicator/a?rev={rev}")).await.status, 200);
    assert_eq!(b.get("/_replicator/a").await.status, 404);
    // A client creates a database at one node, and deletes it at another one.
    assert_eq!(a.put("/x%2F_replicator", &json!(null)).await.status, 201);
    for n in 0..150 {
        b.put_ok(&format!("/x%2F_replicator/{n}"), &failed(n)).await;
    }
    let mut feed =
        a.request("GET", "/x%2F_replicator/_changes?feed=continuous&heartbeat=60000").send().await.unwrap();
    assert_eq!(b.delete("/x%2F_replicator").await.status, 200);
    read_until(&mut feed, "last_seq").await;
    assert_eq!(cluster.get("/_all_dbs").await, json!(["_replicator"]));
    assert_eq!(a.put("/x%2F_replicator", &json!(null)).await.status, 201);
}

#[tokio::test]
async fn every_node_reports_where_each_replication_runs() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    from.put("a", &json!({})).await;
    let two = format!("max_jobs = 2\n{QUICK}");
    let mut cluster = Cluster::start([two.as_str(), two.as_str(), two.as_str()]).await;
    // Six jobs, and two slots on each node.
    for n in 0..6 {
        let body = json!({"source": from.url(), "target": target.db(&format!("t{n}")).url(), "create_target": true,
            "continuous": true});
        cluster.at(n % 3).put_ok(&format!("/_replicator/d{n}"), &body).await;
    }
    let all_run = |tasks: &Value| {
        tasks
            .as_array()
            .is_some_and(|tasks| tasks.len() == 6 && tasks.iter().all(|task| task["docs_written"] == 1))
    };
    cluster.at(0).poll("/_active_tasks", all_run).await;
    let tasks = cluster.at(1).get("/_active_tasks").await.body;
    let nodes: Vec<String> = tasks.as_array().unwrap().iter().map(node_of).collect();
    assert_eq!(nodes.iter().cloned().collect::<BTreeSet<_>>(), cluster.names());
    for path in ["/_scheduler/jobs", "/_scheduler/docs"] {
        let told = cluster.get(path).await;
        let rows = told[path.rsplit('/').next().unwrap()].as_array().unwrap().clone();
        assert_eq!(rows.len(), 6, "{told}");
        for row in &rows {
            let task = tasks.as_array().unwrap().iter().find(|task| task["doc_id"] == row["doc_id"]).unwrap();
            assert_eq!(row["node"], task["node"], "{row}");
        }
    }
    // A seventh job waits, and no node runs it.
    let body = json!({"source": from.url(), "target": target.db("t6").url(), "continuous": true, "create_target": true});
    cluster.at(2).put_ok("/_replicator/d6", &body).await;
    let waits = cluster.get("/_scheduler/docs/_replicator/d6").await;
    assert_eq!((&waits["state"], &waits["node"]), (&json!("pending"), &json!(null)), "{waits}");
    // A client requests a replication at one node, and cancels it at another node than the one that runs it.
    let request = json!({"source": from.url(), "target": target.db("t7").url(), "continuous": true, "create_target": true});
    let id = cluster.at(0).post("/_replicate", &request).await.body["_local_id"].clone();
    let cancelled = cluster.at(1).post("/_replicate", &json!({"replication_id": id, "cancel": true})).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    let stopped = &tasks[0];
    let elsewhere = cluster.nodes.iter().find(|node| node.name() != node_of(stopped)).unwrap();
    let doc = format!("/_replicator/{}", stopped["doc_id"].as_str().unwrap());
    let rev = elsewhere.get(&doc).await.body["_rev"].as_str().unwrap().to_owned();
    assert_eq!(elsewhere.delete(&format!("{doc}?rev={rev}")).await.status, 200);
    elsewhere.until("d6", &["running"]).await;
    // A node dies. Its jobs continue on the other nodes as soon as slots are free: each has two.
    let dead = cluster.at(0).name();
    cluster.kill(0);
    let moved = |tasks: &Value| {
        let tasks = tasks.as_array().unwrap();
        tasks.len() == 4 && tasks.iter().all(|task| task["node"] != json!(dead) && task["node"].is_string())
    };
    cluster.at(0).poll("/_active_tasks", moved).await;
    from.put("b", &json!({})).await;
    // Each has copied both documents: the counters of the dead node's run continue.
    let go_on = |tasks: &Value| tasks.as_array().unwrap().iter().all(|task| task["docs_written"] == json!(2));
    cluster.at(1).poll("/_active_tasks", go_on).await;
}

#[tokio::test]
async fn a_request_is_answered_with_the_end_of_a_replication_that_any_node_runs() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    from.put("a", &json!({})).await;
    let cluster = Cluster::start(["max_jobs = 1\n", "max_jobs = 1\n"]).await;
    let requests = (0..6).map(|n| {
        let request =
            json!({"source": from.url(), "target": target.db(&format!("t{n}")).url(), "create_target": true});
        let node = cluster.at(n % 2);
        async move { node.post("/_replicate", &request).await }
    });
    for answer in futures::future::join_all(requests).await {
        assert_eq!((answer.status, &answer.body["history"][0]["docs_written"]), (200, &json!(1)));
    }
    // Each node reports the failure, however often a client repeats the request.
    let missing = json!({"source": format!("{}x", from.url()), "target": target.db("t0").url()});
    for n in 0..4 {
        let failed = cluster.at(n % 2).post("/_replicate", &missing).await;
        assert_eq!(failed.error(), (500, "db_not_found"), "{}", failed.body);
    }
}

#[tokio::test]
async fn commands_run_on_the_nodes_that_may_and_are_steered_from_all() {
    let cluster = Cluster::start(["", "[command]\nenabled = true\nallow_root = true\n"]).await;
    let (without, with) = (cluster.at(0), cluster.at(1));
    let hello = json!({"id": "hello", "options": {"argv": ["sh", "-c", "echo hello"]}});
    let added = without.post("/v1/jobs/command", &hello).await;
    assert_eq!(added.status, 201, "{}", added.body);
    let ended = without.get("/v1/jobs/command/hello/wait").await.body;
    assert_eq!(ended["job"]["result"]["stdout"], "hello\n", "{ended}");
    let wrong = json!({"options": {"argv": "echo"}});
    assert_eq!(without.post("/v1/jobs/command", &wrong).await.error(), (400, "bad_request"));
    let sleep = json!({"id": "sleep", "options": {"argv": ["sleep", "600"]}});
    without.post("/v1/jobs/command", &sleep).await;
    with.poll("/v1/jobs/command/sleep", |job| job["state"] == "running").await;
    without.post("/v1/jobs/command/sleep/cancel", &json!({})).await;
    let ended = without.get("/v1/jobs/command/sleep/wait").await.body;
    assert_eq!(ended["job"]["state"], "cancelled", "{ended}");
    let alone = Cluster::start([""]).await;
    assert_eq!(alone.at(0).post("/v1/jobs/command", &hello).await.error(), (403, "forbidden"));
}

#[tokio::test]
async fn a_node_with_another_uuid_is_no_node_of_the_cluster() {
    let mut cluster = Cluster::start(["", ""]).await;
    let uuid = cluster.get("/").await["uuid"].as_str().unwrap().to_owned();
    let other = "[couchdb]\nuuid = b0000000000000000000000000000025\n";
    let refused = TestServer::try_start_on(&cluster.store, other).await.err().expect("it starts").to_string();
    assert!(refused.contains(&uuid) && refused.contains("stop all of them first"), "{refused}");
    let same = format!("[couchdb]\nuuid = {uuid}\n");
    cluster.nodes.push(TestServer::start_on(&cluster.store, &same).await);
    assert_eq!(cluster.get("/").await["uuid"], json!(uuid));
    for node in cluster.nodes.drain(..) {
        node.server.shutdown().await;
    }
    let first = TestServer::start_on(&cluster.store, other).await;
    assert_eq!(first.get("/").await.body["uuid"], "b0000000000000000000000000000025");
}
