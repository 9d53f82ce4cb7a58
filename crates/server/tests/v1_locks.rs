//! The locks of jobs, as `/v1` receives them, or as the catalogue derives them.

use crate::common::{Cluster, TestServer};
use serde_json::{Value, json};
use turnwise_queue::{Keyspace, jobs};

/// A server with a catalogue, on a store that the test can read.
struct Locks {
    nodes: Cluster,
    _folder: tempfile::TempDir,
}

impl Locks {
    async fn start(catalogue: &str) -> Locks {
        let (folder, config) = with_catalogue(catalogue);
        Locks { nodes: Cluster::start([config.as_str()]).await, _folder: folder }
    }

    fn server(&self) -> &TestServer {
        self.nodes.at(0)
    }

    /// The locks of a job in the store.
    async fn of(&self, job_type: &str, id: &str) -> Value {
        let keys = &Keyspace::default();
        let job =
            self.nodes.store.transact(|tx| async move { jobs::get(&tx, keys, job_type, id).await }).await;
        serde_json::to_value(&job.unwrap().unwrap().locks).unwrap()
    }
}

fn with_catalogue(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("catalogue.toml");
    std::fs::write(&file, text).unwrap();
    let config = format!("[queue]\ncatalogue = {}\n", file.display());
    (folder, config)
}

const CATALOGUE: &str = "
    [jobs.t]
    task = 'do'
    steps = 'steps'
    tasks.migrate.instance.exclusive = ['{instance}']
    tasks.migrate.node.exclusive = ['{nodes}']
    tasks.query = {}
";

#[tokio::test]
async fn a_job_that_states_its_locks_is_stored_with_them() {
    let locks = Locks::start(CATALOGUE).await;
    let server = locks.server();
    let stated = json!({"node": {"shared": {"n1": 2}, "exclusive": "unknown"}, "network": {"shared": "all"}});
    let options = json!({"do": "migrate", "instance": "web1", "nodes": ["n1"]});
    let add = |id: &str, locks: Value| json!({"id": id, "options": options, "locks": locks});
    assert_eq!(server.post("/v1/jobs/t", &add("a", stated.clone())).await.status, 201);
    assert_eq!(locks.of("t", "a").await, stated);
    assert_eq!(server.post("/v1/jobs/t", &add("big", json!({"big_lock": true}))).await.status, 201);
    assert_eq!(locks.of("t", "big").await, json!({"big_lock": true}));
    // An empty declaration is a declaration, too: the catalogue is not used.
    assert_eq!(server.post("/v1/jobs/t", &add("none", json!({}))).await.status, 201);
    assert_eq!(locks.of("t", "none").await, json!({}));
}

#[tokio::test]
async fn a_schedule_shows_the_locks_that_the_catalogue_derives_apart_from_stated_ones() {
    let locks = Locks::start(CATALOGUE).await;
    let server = locks.server();
    let put = async |name: &str, job: Value| {
        let schedule = json!({"when": {"every_ms": 86_400_000}, "job": job});
        server.put(&format!("/v1/schedules/{name}"), &schedule).await.body
    };
    let options = json!({"do": "migrate", "instance": "web1", "nodes": ["n1"]});
    let derived = put("derived", json!({"type": "t", "options": options})).await;
    let wanted = json!({"instance": {"exclusive": ["web1"]}, "node": {"exclusive": ["n1"]}});
    assert_eq!((&derived["derived_locks"], derived["job"].get("locks")), (&wanted, None), "{derived}");
    let big = json!({"big_lock": true});
    let stated = put("stated", json!({"type": "t", "options": options, "locks": big})).await;
    assert_eq!((stated.get("derived_locks"), &stated["job"]["locks"]), (None, &big), "{stated}");
    let plain = put("plain", json!({"type": "t", "options": {"do": "query"}})).await;
    assert!(plain.get("derived_locks").is_none() && plain["job"].get("locks").is_none(), "{plain}");
}

#[tokio::test]
async fn a_job_that_states_none_locks_what_the_catalogue_says() {
    let locks = Locks::start(CATALOGUE).await;
    let server = locks.server();
    let long: Vec<String> = (0..999).map(|n| format!("a-node-with-a-long-name-{n}")).collect();
    let migrate = |nodes: Value| json!({"do": "migrate", "instance": "web1", "nodes": nodes});
    let many = json!({"jobs": [
        {"type": "t", "id": "full", "options": migrate(json!(["n1", "n2"]))},
        {"type": "t", "id": "task", "task": "migrate", "options": {"instance": "web1", "nodes": ["n1", "n2"]}},
        {"type": "t", "id": "part", "options": {"do": "migrate", "instance": "web1"}},
        {"type": "t", "id": "wrong", "options": migrate(json!({"password": "hunter2"}))},
        {"type": "t", "id": "nothing", "options": {"do": "query"}},
        {"type": "t", "id": "strange", "options": {"do": "dance"}},
        {"type": "t", "id": "steps", "options": {"steps": [migrate(json!("n1")), {"do": "query"}, migrate(json!("n2"))]}},
        {"type": "t", "id": "many", "options": migrate(json!(long))},
        {"type": "other", "id": "other", "options": {"do": "migrate"}},
    ]});
    let added = server.post("/v1/jobs", &many).await;
    assert_eq!(added.status, 200, "{}", added.body);
    let web1 = json!({"exclusive": ["web1"]});
    let unknown = json!({"exclusive": "unknown"});
    for (id, wanted) in [
        ("full", json!({"instance": web1, "node": {"exclusive": ["n1", "n2"]}})),
        ("task", json!({"instance": web1, "node": {"exclusive": ["n1", "n2"]}})),
        ("part", json!({"instance": web1, "node": unknown})),
        ("wrong", json!({"instance": web1, "node": unknown})),
        ("nothing", json!({})),
        (
            "strange",
            json!({"node_group": unknown, "instance": unknown, "node": unknown, "node_resource": unknown, "network": unknown}),
        ),
        ("steps", json!({"instance": web1, "node": {"exclusive": ["n1", "n2"]}})),
        // A job's record has no room for so many names.
        ("many", json!({"instance": web1, "node": {"exclusive": "all"}})),
    ] {
        assert_eq!(locks.of("t", id).await, wanted, "{id}");
    }
    assert_eq!(locks.of("other", "other").await, json!({}));
    // A waiting job that is added again gets the locks that follow from its new options.
    let again = json!({"id": "full", "options": migrate(json!(["n3"])), "if_exists": "again"});
    assert_eq!(server.post("/v1/jobs/t", &again).await.body["added"], "already_waiting");
    assert_eq!(locks.of("t", "full").await["node"], json!({"exclusive": ["n3"]}));
    // A new task alone decides, too, with the options that the job has; new options keep the task.
    let again = |what: Value| async {
        let (mut again, what) = (json!({"id": "task", "if_exists": "again"}), what);
        again.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        assert_eq!(server.post("/v1/jobs/t", &again).await.body["added"], "already_waiting");
        locks.of("t", "task").await
    };
    assert_eq!(
        again(json!({"options": {"instance": "web2", "nodes": []}})).await["instance"],
        json!({"exclusive": ["web2"]})
    );
    assert_eq!(again(json!({"task": "query"})).await, json!({}));
    assert_eq!(again(json!({"task": "migrate"})).await["instance"], json!({"exclusive": ["web2"]}));
}

#[tokio::test]
async fn names_from_numbers_have_the_digits_that_were_sent() {
    let locks = Locks::start(CATALOGUE).await;
    let server = locks.server();
    let sent = ["12345678901234567890123", "12345678901234567890124", "1e2", "100", "100.0", "-0"];
    for (n, number) in sent.iter().enumerate() {
        let body = format!(
            r#"{{"id": "j{n}", "options": {{"do": "migrate", "instance": {number}, "nodes": [{number}]}}}}"#
        );
        let request = server.request("POST", "/v1/jobs/t").header("content-type", "application/json");
        assert_eq!(server.send(request.body(body)).await.status, 201, "{number}");
        let name = json!({"exclusive": [number]});
        assert_eq!(locks.of("t", &format!("j{n}")).await, json!({"instance": name, "node": name}));
    }
}

#[tokio::test]
async fn derived_locks_keep_jobs_apart() {
    let locks = Locks::start(CATALOGUE).await;
    let server = locks.server();
    let worker = server.post("/v1/workers/t", &json!({"slots": 3, "name": "w"})).await.body["worker"].clone();
    let path = format!("/v1/workers/t/{}", worker.as_str().unwrap());
    for (id, instance, node) in [("a", "web1", "n1"), ("b", "web2", "n1"), ("c", "web3", "n2")] {
        let options = json!({"do": "migrate", "instance": instance, "nodes": [node]});
        let added = server.post("/v1/jobs/t", &json!({"id": id, "options": options})).await;
        assert_eq!(added.status, 201, "{}", added.body);
    }
    let mut running: Vec<Value> = Vec::new();
    while running.len() < 2 {
        let received = running.iter().map(|job: &Value| job["claim"].as_u64().unwrap()).max().unwrap_or(0);
        let body = json!({"received": received, "limit": 3, "wait_ms": 10_000});
        let answer = server.post(&format!("{path}/accept"), &body).await;
        running.extend(answer.body["jobs"].as_array().unwrap().iter().cloned());
    }
    let mut ids: Vec<&str> = running.iter().map(|job| job["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "c"], "b wants the node that a has");
    assert_eq!(server.get("/v1/jobs/t/b").await.body["state"], "pending");
    let a = running.iter().find(|job| job["id"] == "a").unwrap();
    let end = json!({"claim": a["claim"], "result": {}});
    let ended = server.post(&format!("{path}/jobs/a/finish"), &end).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    let received = running.iter().map(|job| job["claim"].as_u64().unwrap()).max().unwrap();
    let body = json!({"received": received, "limit": 1, "wait_ms": 60_000});
    let answer = server.post(&format!("{path}/accept"), &body).await;
    assert_eq!(answer.body["jobs"][0]["id"], "b", "{}", answer.body);
}

#[tokio::test]
async fn wrong_locks_are_refused_with_the_place_and_the_fix() {
    let server = TestServer::start().await;
    let names: Vec<String> = (0..1_001).map(|n| format!("n{n}")).collect();
    for (locks, said) in [
        (json!([]), "locks: invalid type: sequence, expected an object with what is locked"),
        (
            json!({"nod": {"shared": "all"}}),
            "locks.nod: there is no such level; the levels are node_group, instance, node, node_resource, network",
        ),
        (
            json!({"node": {"shered": "all"}}),
            "locks.node.shered: unknown field `shered`, expected `shared` or `exclusive`",
        ),
        (
            json!({"node": {"shared": "n1"}}),
            "locks.node.shared: must be \"all\" or \"unknown\", or a list, if it is a name",
        ),
        (json!({"node": {"shared": ["a", 3]}}), "locks.node.shared[1]: invalid type: integer"),
        (json!({"node": {"shared": {"a": -1}}}), "locks.node.shared.a: invalid value: integer `-1`"),
        (
            json!({"node": {"shared": {"a": 0}}}),
            "locks.node: wants 0 units of \"a\": 1 to 1000000 can be had",
        ),
        (
            json!({"node": {"exclusive": {"a": 1}}}),
            "locks.node: has units of an exclusive lock, which takes all of them",
        ),
        (json!({"node": {"shared": []}}), "locks.node: names nothing to lock shared: leave it out"),
        (json!({"node": {}}), "locks.node: locks nothing: leave the level out"),
        (
            json!({"node": {"shared": ["a"], "exclusive": ["a"]}}),
            "locks.node: names \"a\" both shared and exclusive",
        ),
        (json!({"node": {"shared": [""]}}), "locks.node: has an empty name"),
        (json!({"node": {"shared": names}}), "locks.node: more than 1000 resources are named"),
        (json!({"node": {"shared": ["a".repeat(200)]}}), "locks.node: has a name of 200 bytes"),
        (json!({"big_lock": "yes"}), "locks.big_lock: invalid type"),
    ] {
        let answer = server.post("/v1/jobs/t", &json!({"locks": locks})).await;
        assert_eq!(answer.error(), (400, "bad_request"), "{locks}: {}", answer.body);
        let reason = answer.body["reason"].as_str().unwrap();
        assert!(reason.starts_with(said), "{locks}\n  says {reason}\n  not  {said}");
        assert!(answer.body["hint"].as_str().is_some_and(|hint| !hint.is_empty()));
    }
    // The error names the invalid job, and no job is added.
    let many = json!({"jobs": [{"type": "t"}, {"type": "t", "locks": {"node": {"shared": []}}}]});
    let answer = server.post("/v1/jobs", &many).await;
    assert!(answer.body["reason"].as_str().unwrap().starts_with("jobs[1].locks.node: names nothing"));
    assert_eq!(server.get("/v1/types").await.body, json!({"types": []}));
}

#[tokio::test]
async fn levels_and_capacities_are_the_catalogues() {
    let text = "[[levels]]\nname = 'disk'\ncapacity = 4\n[jobs.t.locks]\ndisk = { shared = ['{disk}'], units = '{n}' }\n";
    let locks = Locks::start(text).await;
    let server = locks.server();
    let job = |id: &str, n: u32| json!({"id": id, "options": {"disk": "sda", "n": n}});
    assert_eq!(server.post("/v1/jobs/t", &job("a", 3)).await.status, 201);
    assert_eq!(locks.of("t", "a").await, json!({"disk": {"shared": {"sda": 3}}}));
    assert_eq!(server.post("/v1/jobs/t", &job("b", 9)).await.status, 201);
    assert_eq!(locks.of("t", "b").await, json!({"disk": {"shared": {"sda": 4}}}));
    // Three of four units and all four conflict: custom levels work like the built-in ones.
    let worker = server.post("/v1/workers/t", &json!({"slots": 2, "name": "w"})).await.body["worker"].clone();
    let path = format!("/v1/workers/t/{}", worker.as_str().unwrap());
    let accept = |received: u64, wait_ms: u64| {
        let body = json!({"received": received, "limit": 2, "wait_ms": wait_ms});
        async { server.post(&format!("{path}/accept"), &{ body }).await.body["jobs"].clone() }
    };
    let first = accept(0, 60_000).await;
    let claim = first[0]["claim"].as_u64().unwrap();
    assert_eq!(first.as_array().unwrap().len(), 1, "{first}");
    assert_eq!(accept(claim, 0).await, json!([]));
    let end = json!({"claim": claim, "result": {}});
    let id = first[0]["id"].as_str().unwrap();
    assert_eq!(server.post(&format!("{path}/jobs/{id}/finish"), &end).await.status, 200);
    assert_eq!(accept(claim, 60_000).await.as_array().unwrap().len(), 1);
    for (stated, said) in [
        (json!({"disk": {"shared": {"sda": 5}}}), "locks.disk: wants 5 units of \"sda\", which has 4"),
        (json!({"node": {"shared": "all"}}), "locks.node: there is no such level; the levels are disk"),
    ] {
        let answer = server.post("/v1/jobs/t", &json!({"locks": stated})).await;
        assert!(answer.body["reason"].as_str().unwrap().starts_with(said), "{}", answer.body);
    }
}

#[tokio::test]
async fn why_shows_the_cause_of_each_unknown_lock() {
    let locks = Locks::start(
        "[jobs.t]
        task = 'do'
        [jobs.t.tasks.move]
        instance.exclusive = ['{instance}']
        node.exclusive = ['{nodes}']
        network.shared = 'unknown'",
    )
    .await;
    let server = locks.server();
    let why = async |id: &str| {
        let why = server.get(&format!("/v1/jobs/t/{id}/why")).await;
        assert_eq!(why.status, 200, "{}", why.body);
        why.body["locks"].clone()
    };
    let derived = json!({"id": "derived", "options": {"do": "move", "instance": "web1"}});
    let stated = json!({"id": "stated", "locks": {"node": {"exclusive": "unknown"}}});
    for job in [&derived, &stated] {
        assert_eq!(server.post("/v1/jobs/t", job).await.status, 201);
    }
    let told = why("derived").await;
    let unknown = json!([
        {"level": "network", "mode": "shared",
            "because": "the catalogue says that it is known only when the job runs", "line": 6},
        {"level": "node", "mode": "exclusive", "because": "its option \"nodes\" is missing", "option": "nodes", "line": 5},
    ]);
    assert_eq!(told["unknown"], unknown);
    let levels = told["weight"]["levels"].as_array().unwrap();
    let network = levels.iter().find(|at| at["level"] == "network").unwrap();
    assert_eq!(network["weight"], 0.3);
    let because = "the job's declaration stated this when the job was added";
    let unknown = json!([{"level": "node", "mode": "exclusive", "because": because}]);
    assert_eq!(why("stated").await["unknown"], unknown);
}

#[tokio::test]
async fn a_wrong_catalogue_refuses_the_start_in_one_line() {
    let cluster = Cluster::start([""]).await;
    for (text, said) in [
        (
            "[jobs.t.locks]\nnod.shared = 'all'\n",
            ":2: jobs.t.locks.nod: there is no such level; the levels are node_group, instance",
        ),
        ("[jobs.t]\nlocks = {}\n[jobs.t]\n", ":3: duplicate key; it stands above already"),
        ("\n[jobs.'a b'.locks]\n", ":2: jobs.a b: type: "),
        ("[jobs.replication.locks]\n", ":1: jobs.replication: replications lock nothing; leave the type out"),
    ] {
        let (folder, config) = with_catalogue(text);
        let refused =
            TestServer::try_start_on(&cluster.store, &config).await.err().expect("it starts").to_string();
        let file = folder.path().join("catalogue.toml").display().to_string();
        let told = refused.strip_prefix(&file).expect(&refused);
        assert!(told.starts_with(said) && !told.contains('\n'), "{told}");
    }
    let none = "[queue]\ncatalogue = /no/such/catalogue.toml\n";
    let refused = TestServer::try_start_on(&cluster.store, none).await.err().expect("it starts").to_string();
    assert!(refused.starts_with("/no/such/catalogue.toml: No such file"), "{refused}");
}
