//! `/v1/jobs/{type}/{id}/why`, `/v1/tenants` and `/v1/queue`: jobs in each state and with each reason for waiting.

use crate::common::worker::ExternalWorker;
use crate::common::{Cluster, TestServer, until};
use serde_json::{Value, json};
use turnwise_queue::Keyspace;
use turnwise_queue::usage::{self, Charged};

const FAR: i64 = 4_000_000_000_000_000;

async fn add(server: &TestServer, id: &str, more: Value) {
    let mut job = json!({ "id": id });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let added = server.post("/v1/jobs/mail", &job).await;
    assert!(added.status == 201 || added.status == 200, "{}", added.body);
}

async fn why(server: &TestServer, id: &str) -> Value {
    let answer = server.get(&format!("/v1/jobs/mail/{id}/why")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    // The sentence is for people: one complete line.
    let sentence = answer.body["sentence"].as_str().unwrap();
    assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence}");
    answer.body
}

#[tokio::test]
async fn a_pending_job_states_what_it_waits_for() {
    let server = TestServer::start().await;
    for n in 0..4 {
        add(&server, &format!("a{n}"), json!({ "tenant": "acme" })).await;
    }
    add(&server, "b0", json!({ "tenant": "beta" })).await;

    let alone = why(&server, "a2").await;
    assert_eq!((&alone["reason"], &alone["state"]), (&json!("no_worker"), &json!("pending")));
    assert_eq!((&alone["place"]["in_tenant"], &alone["expected"]), (&json!(2), &Value::Null));
    assert_eq!(alone["capacity"], json!({ "workers": 0, "slots": 0, "running": 0, "quiet": 0 }));

    let mut worker = ExternalWorker::register(&server, "mail", 2).await;
    assert_eq!(why(&server, "a0").await["reason"], "starts_next");
    assert_eq!(worker.next_ids(1).await, ["a0"]);
    assert_eq!(worker.next_ids(1).await.len(), 1);
    let runs = why(&server, "a0").await;
    assert_eq!((&runs["reason"], &runs["state"]), (&json!("runs"), &json!("running")));
    assert!(worker.path.ends_with(runs["worker"].as_str().unwrap()));
    assert_eq!(runs["node"], json!(server.name()));

    // Regardless of which other job was claimed, no slot is free now.
    let waiting: Vec<Value> =
        server.get("/v1/jobs?type=mail&state=pending").await.body["jobs"].as_array().unwrap().clone();
    assert_eq!(waiting.len(), 3);
    let last = why(&server, "a3").await;
    assert_eq!(last["reason"], "behind_its_tenant", "{last}");
    assert!(last["place"]["in_tenant"].as_u64().unwrap() >= 1, "{last}");
    assert_eq!(last["capacity"], json!({ "workers": 1, "slots": 2, "running": 2, "quiet": 0 }));
    assert!(last["sentence"].as_str().unwrap().contains("all 2 slots of 1 worker are taken"), "{last}");
    assert_eq!(last["tenant"]["tenant"], "acme");
    // The queue agrees, and its first job has the reason that it is next.
    let queue = server.get("/v1/queue?type=mail").await.body;
    let rows = queue["jobs"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    assert!(rows[..2].iter().all(|row| row["state"] == "running" && row["reason"] == "runs"), "{queue}");
    for row in &rows[2..] {
        assert_eq!(why(&server, row["id"].as_str().unwrap()).await["reason"], row["reason"], "{row}");
    }
    assert_eq!(rows[2]["reason"], "all_slots_taken");
    assert_eq!(why(&server, rows[2]["id"].as_str().unwrap()).await["place"]["overall"], 0);
}

#[tokio::test]
async fn jobs_that_can_start_pass_those_whose_locks_are_not_free() {
    let server = TestServer::start().await;
    let mut worker = ExternalWorker::register(&server, "mail", 3).await;
    for n in 0..5 {
        let locks = json!({ "instance": { "exclusive": ["i"] } });
        add(&server, &format!("l{n}"), json!({ "tenant": format!("t{n}"), "locks": locks })).await;
    }
    assert_eq!(worker.next_ids(3).await.len(), 1);
    add(&server, "free", json!({ "tenant": "z" })).await;
    let free = why(&server, "free").await;
    assert_eq!(free["reason"], "starts_next", "{free}");
    assert!(free["sentence"].as_str().unwrap().contains("2 of 3 slots"), "{free}");
    assert_eq!(free["place"]["overall"], 4, "they are before it even so: {free}");
    assert_eq!(worker.next_ids(3).await, ["free"]);
}

#[tokio::test]
async fn a_tenant_that_had_its_share_waits_for_others() {
    let server = TestServer::start_with("[shares]\nbeta = 1000\n").await;
    let mut worker = ExternalWorker::register(&server, "mail", 4).await;
    for n in 0..8 {
        add(&server, &format!("a{n}"), json!({ "tenant": "acme" })).await;
    }
    assert_eq!(worker.next_ids(4).await.len(), 4);
    for n in 0..4 {
        add(&server, &format!("b{n}"), json!({ "tenant": "beta" })).await;
    }
    let first = why(&server, "a4").await;
    assert_eq!(first["reason"], "tenant_had_its_share", "{first}");
    assert_eq!(
        (&first["before"][0]["tenant"], &first["before"][0]["shares"]),
        (&json!("beta"), &json!(1000))
    );
    assert_eq!((&first["place"]["in_tenant"], &first["before_more"]), (&json!(0), &json!(false)));
    let tenants = server.get("/v1/tenants?type=mail&order=deficit").await.body;
    let row = |name: &str| {
        let rows = tenants["tenants"].as_array().unwrap();
        rows.iter().find(|row| row["tenant"] == name).cloned().unwrap()
    };
    assert_eq!((&row("acme")["running"], &row("acme")["pending"]), (&json!(4), &json!(4)));
    assert_eq!((&row("beta")["running"], &row("beta")["shares"]), (&json!(0), &json!(1000)));
}

#[tokio::test]
async fn a_delayed_or_ended_job_states_so() {
    let server = TestServer::start_with("[jobs]\nbackoff_base_ms = 3600000\n").await;
    add(&server, "later", json!({ "not_before_us": FAR })).await;
    let later = why(&server, "later").await;
    assert_eq!((&later["reason"], &later["not_before_us"]), (&json!("not_before"), &json!(FAR)));
    assert_eq!((&later["expected"]["at_us"], &later["expected"]["earliest"]), (&json!(FAR), &json!(true)));
    // A job that cannot run yet does not appear as a waiting tenant.
    assert_eq!(server.get("/v1/tenants?type=mail").await.body["tenants"], json!([]));
    assert_eq!(server.get("/v1/tenants?type=mail").await.body["types"][0]["jobs"]["delayed"], 1);

    add(&server, "soon", json!({ "delay_ms": 1 })).await;
    let due =
        |reason: &'static str| server.poll("/v1/jobs/mail/soon/why", move |why| why["reason"] == reason);
    due("no_worker").await;
    let mut worker = ExternalWorker::register(&server, "mail", 8).await;
    due("due").await;
    assert_eq!(worker.next_ids(1).await, ["soon"]);
    worker.end("soon", "fail", json!({ "reason": "boom\nbang", "retry": true })).await;
    let backoff = why(&server, "soon").await;
    assert_eq!((&backoff["reason"], &backoff["crashes"]), (&json!("backoff"), &json!(1)));
    assert_eq!(backoff["error"], "boom bang");
    assert!(backoff["sentence"].as_str().unwrap().contains(
        "after 1 crash in a row. 19 of 20 attempts are left, stated by the server's settings; then it fails. The latest: boom bang"
    ));
    assert!(
        backoff["not_before_us"].as_i64().unwrap() > backoff["since_us"].as_i64().unwrap() + 3_000_000_000
    );
    let page = server.get("/v1/queue?type=mail").await.body;
    let reasons: Vec<&Value> = page["jobs"].as_array().unwrap().iter().map(|row| &row["reason"]).collect();
    assert_eq!(reasons, ["backoff", "not_before"]);

    for id in ["completes", "fails", "stops", "again", "goes"] {
        add(&server, id, json!({ "max_attempts": 1 })).await;
        assert_eq!(worker.next_ids(1).await, [id]);
    }
    worker.end("completes", "finish", json!({})).await;
    worker.end("fails", "fail", json!({ "reason": "bad", "retry": false })).await;
    server.post_empty("/v1/jobs/mail/stops/cancel").await;
    server.delete("/v1/jobs/mail/goes").await;
    add(&server, "again", json!({ "if_exists": "again" })).await;
    for (id, reason, says) in [
        ("completes", "completed", "Has completed at "),
        ("fails", "failed", ": bad"),
        ("stops", "stops", "is being stopped"),
        ("goes", "stops", "Its record is removed then."),
        ("again", "runs_again", "runs once more after that"),
    ] {
        let told = why(&server, id).await;
        assert_eq!(told["reason"], reason, "{told}");
        assert!(told["sentence"].as_str().unwrap().contains(says), "{told}");
        assert_eq!(told["expected"], Value::Null, "{told}");
        assert_eq!(told["capacity"].is_null(), ["completes", "fails"].contains(&id), "{told}");
    }
    worker.end("stops", "release", json!({})).await;
    assert_eq!(why(&server, "stops").await["reason"], "cancelled");
    assert_eq!(server.get("/v1/jobs/mail/nobody/why").await.error(), (404, "not_found"));
}

/// Writes charges to a tenant, as a worker does.
async fn charged(cluster: &Cluster, tenant: &str, charger: &str, charged: Charged) {
    let (keys, now_us) = (&Keyspace::default(), cluster.store.runtime().now_us());
    let charged = &Charged { at_us: now_us, period: now_us, ..charged };
    let written = cluster
        .store
        .transact(|tx| async move { usage::write(&tx, keys, "mail", tenant, charger, charged).await });
    written.await.unwrap();
}

#[tokio::test]
async fn known_run_times_give_an_expected_start() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    let mut worker = ExternalWorker::register(server, "mail", 2).await;
    for n in 0..7 {
        add(server, &format!("a{n}"), json!({ "tenant": "acme" })).await;
    }
    assert_eq!(worker.next_ids(2).await.len(), 2);
    // Nothing is known about the run time of this type's jobs, so there is no estimate.
    let unknown = why(server, "a6").await;
    assert_eq!((&unknown["place"]["in_tenant"], &unknown["expected"]), (&json!(4), &Value::Null));
    let (charger, other) = ("0000000000000001-0000000000000001", "0000000000000001-0000000000000002");
    let row = Charged {
        service_us: 30_000_000,
        usage_us: 20_000_000.0,
        accumulated_us: 5_000_000.0,
        expected_us: Some(10_000_000.0),
        ..Charged::default()
    };
    charged(&cluster, "acme", charger, row.clone()).await;
    charged(&cluster, "acme", other, row).await;
    let told = why(server, "a6").await;
    let now_us = cluster.store.runtime().now_us();
    // Five ends on two slots, of jobs that run 10 s.
    let in_us = told["expected"]["at_us"].as_i64().unwrap() - now_us;
    assert!((20_000_000..=25_000_000).contains(&in_us), "{told}");
    assert_eq!(told["expected"]["basis"], "5 jobs must end first; they run 10 s each, as learnt, on 2 slots");
    assert_eq!(told["expected"]["earliest"], false);
    let tenant = &told["tenant"];
    assert_eq!((&tenant["service_us"], &tenant["expected_run_us"]), (&json!(60_000_000), &json!(10_000_000)));
    // Sums of two chargers. If the interval has ended meanwhile, half of the old usage is left, and the new charges count.
    let usage_us = tenant["usage_us"].as_u64().unwrap();
    assert!([50_000_000, 30_000_000].contains(&usage_us), "{told}");
    // A running job that runs once more is expected to start when this run ends.
    add(server, "a0", json!({ "tenant": "acme", "if_exists": "again" })).await;
    let again = why(server, "a0").await;
    let left_us = again["expected"]["at_us"].as_i64().unwrap() - again["since_us"].as_i64().unwrap();
    assert_eq!((&again["reason"], left_us >= 10_000_000), (&json!("runs_again"), true), "{again}");
}

#[tokio::test]
async fn estimates_follow_the_run_times_of_tasks() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    let mut worker = ExternalWorker::register(server, "mail", 2).await;
    for n in 0..7 {
        let task = if n < 2 { "long" } else { "short" };
        add(server, &format!("a{n}"), json!({ "tenant": "acme", "task": task })).await;
    }
    assert_eq!(worker.next_ids(2).await, ["a0", "a1"]);
    let row = Charged { expected_us: Some(10_000_000.0), ..Charged::default() };
    charged(&cluster, "acme", "0000000000000001-0000000000000001", row).await;
    let basis = async |id: &str| why(server, id).await["expected"]["basis"].as_str().unwrap().to_owned();
    // As long as nothing is known of a task, its jobs count like all jobs of their tenant.
    assert_eq!(basis("a6").await, "5 jobs must end first; they run 10 s each, as learnt, on 2 slots");
    let learnt = &[("long".to_owned(), 40e6), ("short".to_owned(), 4e6)].into();
    let keys = &Keyspace::default();
    let write = |tx| async move { usage::write_run_times(&tx, keys, "mail", learnt).await };
    cluster.store.transact(write).await.unwrap();
    // One of the running jobs must end, or it and the short ones that come first.
    assert_eq!(basis("a2").await, "1 job must end first; they run 40 s each, as learnt, on 2 slots");
    assert_eq!(basis("a6").await, "5 jobs must end first; they run 4 s each, as learnt, on 2 slots");
    let demand = server.get("/v1/types/mail/demand").await.body;
    assert_eq!(demand["tenants"][0]["expected_run_us"], 4_000_000, "{demand}");
    add(server, "a0", json!({ "tenant": "acme", "if_exists": "again" })).await;
    assert_eq!(basis("a0").await, "it runs 40 s, as learnt, and waits for its turn then");
}

#[tokio::test]
async fn a_tenants_deficit_is_its_lag_in_virtual_time() {
    let cluster = Cluster::start(["[shares]\nrich = 1000\n"]).await;
    let server = cluster.at(0);
    for tenant in ["late", "ahead", "rich", "idle"] {
        let row = |tag: f64| Charged { tag, now: 5e6, expected_us: Some(1e9), ..Charged::default() };
        let row = row(match tenant {
            "ahead" => 8e6,
            _ => 4e6,
        });
        charged(&cluster, tenant, "0000000000000001-0000000000000001", row).await;
        if tenant != "idle" {
            add(server, tenant, json!({ "tenant": tenant })).await;
        }
    }
    let deficit = server.get("/v1/tenants?type=mail&order=deficit").await.body;
    let deficit: Vec<(&str, i64)> = deficit["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["tenant"].as_str().unwrap(), row["deficit_us"].as_i64().unwrap()))
        .collect();
    // One virtual second behind is as many seconds as shares. But a deficit is at most one run, here 1,000 s.
    assert_eq!(
        deficit,
        [("rich", 1_000_000_000), ("late", 100_000_000), ("idle", 0), ("ahead", -300_000_000)]
    );
    let queue = server.get("/v1/queue?type=mail").await.body;
    let order: Vec<&str> =
        queue["jobs"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(order, ["rich", "late", "ahead"]);
    assert_eq!(why(server, "ahead").await["place"]["overall"], 2);
}

#[tokio::test]
async fn every_node_gives_the_same_answer() {
    let cluster = Cluster::start(["", ""]).await;
    for n in 0..3 {
        add(cluster.at(0), &format!("a{n}"), json!({ "tenant": "acme" })).await;
    }
    let mut worker = ExternalWorker::register(cluster.at(1), "mail", 1).await;
    assert_eq!(worker.next_ids(1).await.len(), 1);
    for path in ["tenants?type=mail", "queue?type=mail", "jobs/mail/a2/why", "jobs/mail/a0/why"] {
        let path = format!("/v1/{path}");
        // Charges may change between the two responses, but not without end.
        let (one, other) = (cluster.at(0), cluster.at(1));
        let both = async || (one.get(&path).await.body, other.get(&path).await.body);
        until(&format!("both say the same of {path}"), both, |(one, other)| one == other).await;
    }
    assert_eq!(cluster.get("/v1/types").await, json!({ "types": ["mail"] }));
    assert_eq!(cluster.at(0).get("/v1/tenants?type=mail").await.body["tenants"][0]["running"], 1);
}

#[tokio::test]
async fn tenants_come_in_pages_and_in_orders() {
    let server = TestServer::start().await;
    let jobs: Vec<Value> = (0..25)
        .flat_map(|n| {
            (0..=n).map(
                move |m| json!({ "type": "mail", "id": format!("{n}-{m}"), "tenant": format!("t{n:02}") }),
            )
        })
        .collect();
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    server.post("/v1/jobs/other", &json!({ "id": "x", "tenant": "z/_replicator" })).await;
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/tenants?limit=10{after}")).await.body;
        names.extend(page["tenants"].as_array().unwrap().iter().map(|row| {
            format!(
                "{}/{}/{}",
                row["type"].as_str().unwrap(),
                row["tenant"].as_str().unwrap(),
                row["pending"]
            )
        }));
        assert_eq!(page["types"].as_array().unwrap().len(), 3, "{page}");
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={}", next.replace('/', "%2F"));
    }
    let mut expected: Vec<String> = (0..25).map(|n| format!("mail/t{n:02}/{}", n + 1)).collect();
    expected.push("other/z/_replicator/1".to_owned());
    assert_eq!(names, expected);
    let one = server.get("/v1/tenants?type=mail&limit=1&after=mail%2Ft23").await.body;
    assert_eq!((&one["tenants"][0]["tenant"], one.get("next")), (&json!("t24"), None));
    for order in ["deficit", "usage", "running", "service"] {
        let page = server.get(&format!("/v1/tenants?order={order}&limit=3")).await;
        assert_eq!((page.status, page.body["tenants"].as_array().unwrap().len()), (200, 3));
        assert_eq!(page.body.get("next"), None);
    }
    assert_eq!(server.get("/v1/tenants?order=deficit&after=mail%2Ft01").await.body["tenants"], json!([]));
    for wrong in
        ["/v1/tenants?order=age", "/v1/tenants?limit=0", "/v1/queue?limit=1001", "/v1/queue?type=a%20b"]
    {
        assert_eq!(server.get(wrong).await.error(), (400, "bad_request"), "{wrong}");
    }
    // The head of the queue alternates between tenants.
    let queue = server.get("/v1/queue?type=mail&limit=25").await.body;
    let tenants: std::collections::BTreeSet<&str> =
        queue["jobs"].as_array().unwrap().iter().map(|row| row["tenant"].as_str().unwrap()).collect();
    assert_eq!(tenants.len(), 25, "{queue}");
}

/// A source that accepts connections and never responds.
async fn silent() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            kept.push(connection);
        }
    });
    url
}

async fn replicate(server: &TestServer, id: &str, more: Value) {
    let source = silent().await;
    let mut doc = json!({ "source": format!("{source}/s"), "target": format!("{source}/{id}") });
    doc.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.put_ok(&format!("/_replicator/{id}"), &doc).await;
}

async fn replications_that_rotate(fairness: &str) {
    let config = format!(
        "fairness = {fairness}\nconnection_timeout = 600000\nmax_jobs = 2\nmax_churn = 1\ninterval = 86400000\n"
    );
    let server = TestServer::start_with(&config).await;
    for n in 0..6 {
        replicate(&server, &format!("d{n}"), json!({ "continuous": true })).await;
        let state = if n < 2 { "runs" } else { "pending" };
        let path = format!("/v1/documents/_replicator/d{n}/why");
        server.poll(&path, |why| why["reason"] == state || why["job"]["state"] == state).await;
    }
    let why = async |n: usize| server.get(&format!("/v1/documents/_replicator/d{n}/why")).await.body;
    let next = why(2).await;
    assert_eq!(next["reason"], "rotates_in", "{next}");
    let job = &next["job"];
    assert_eq!((&job["place"]["overall"], &job["type"]), (&json!(0), &json!("replication")));
    let wait_us = job["expected"]["at_us"].as_i64().unwrap() - job["since_us"].as_i64().unwrap();
    assert!((86_400_000_000..86_600_000_000).contains(&wait_us), "{job}");
    assert!(
        job["sentence"]
            .as_str()
            .unwrap()
            .contains("up to 1 of the 2 running jobs are preempted every 86400 s"),
        "{job}"
    );
    let later = why(5).await;
    assert_eq!(
        (&later["reason"], &later["job"]["place"]["in_tenant"]),
        (&json!("behind_its_tenant"), &json!(3))
    );
    let days = (later["job"]["expected"]["at_us"].as_i64().unwrap()
        - later["job"]["since_us"].as_i64().unwrap())
        / 86_400_000_000;
    assert_eq!(days, 4, "{later}");
    // Churn beyond the number of slots has no effect.
    let churn = server.put("/_node/_local/_config/replicator/max_churn", &json!("20")).await;
    assert_eq!(churn.status, 200);
    let two =
        |why: &Value| why["job"]["sentence"].as_str().unwrap().contains("up to 2 of the 2 running jobs");
    server.poll("/v1/documents/_replicator/d2/why", two).await;
    let later = why(5).await["job"].clone();
    assert_eq!(
        (later["expected"]["at_us"].as_i64().unwrap() - later["since_us"].as_i64().unwrap()) / 86_400_000_000,
        2,
        "{later}"
    );
    let summary = server.get("/v1/tenants?type=replication").await.body["types"][0].clone();
    assert_eq!((&summary["fairness"], &summary["capacity"]["running"]), (&json!(fairness), &json!(2)));
}

#[tokio::test]
async fn a_replication_is_rotated_in_by_virtual_time() {
    replications_that_rotate("virtual_time").await;
}

#[tokio::test]
async fn a_replication_is_rotated_in_by_the_rfcs_priorities() {
    replications_that_rotate("rfc").await;
}

#[tokio::test]
async fn by_the_rfcs_priorities_jobs_that_never_ran_take_turns_as_they_came() {
    let server = TestServer::start_with(
        "fairness = rfc\nconnection_timeout = 600000\nmax_jobs = 1\nmax_churn = 0\ninterval = 86400000\n",
    )
    .await;
    let dbs = ["_replicator", "a/_replicator", "b/_replicator"].map(|db| db.replace('/', "%2F"));
    for db in &dbs[1..] {
        assert_eq!(server.put(&format!("/{db}"), &json!({})).await.status, 201);
    }
    let source = silent().await;
    for (n, db) in [0, 1, 1, 2, 0].into_iter().enumerate() {
        let doc = json!({ "source": format!("{source}/s"), "target": format!("{source}/{n}") });
        server.put_ok(&format!("/{}/d{n}", dbs[db]), &doc).await;
        if n == 0 {
            server.poll("/v1/documents/_replicator/d0/why", |why| why["reason"] == "runs").await;
        }
    }
    for (n, db, place, reason) in [
        (1, 1, [0, 0], "all_slots_taken"),
        (2, 1, [1, 1], "behind_its_tenant"),
        (3, 2, [0, 2], "tenant_had_its_share"),
        (4, 0, [0, 3], "tenant_had_its_share"),
    ] {
        let why = server.get(&format!("/v1/documents/{}/d{n}/why", dbs[db])).await.body["job"].clone();
        let at = [why["place"]["in_tenant"].as_u64().unwrap(), why["place"]["overall"].as_u64().unwrap()];
        assert_eq!((at, &why["reason"]), (place, &json!(reason)), "{why}");
        assert_eq!(why["tenant"].get("deficit_us"), None, "{why}");
    }
    let queue = server.get("/v1/queue?type=replication").await.body;
    let order: Vec<&str> =
        queue["jobs"].as_array().unwrap().iter().map(|row| row["tenant"].as_str().unwrap()).collect();
    assert_eq!(order, ["_replicator", "a/_replicator", "a/_replicator", "b/_replicator", "_replicator"]);
    let documents: Vec<&str> =
        queue["jobs"].as_array().unwrap().iter().map(|row| row["document"].as_str().unwrap()).collect();
    assert_eq!(documents, ["d0", "d1", "d2", "d3", "d4"]);
}

#[tokio::test]
async fn a_document_whose_filter_is_still_to_be_read_says_so() {
    let server = TestServer::start_with("connection_timeout = 600000\n").await;
    replicate(&server, "waits", json!({ "filter": "d/f" })).await;
    let path = "/v1/documents/_replicator/waits/why";
    let told = server.poll(path, |why| why["reason"] == "finds_filter").await;
    assert_eq!(told.get("job"), None);
    let refused =
        json!({ "source": "http://127.0.0.1:1/s", "target": "http://127.0.0.1:1/t", "filter": "d/f" });
    server.put_ok("/_replicator/fails", &refused).await;
    let told =
        server.poll("/v1/documents/_replicator/fails/why", |why| why["reason"] == "filter_failed").await;
    assert!(told["error"].as_str().is_some_and(|error| error.contains("127.0.0.1:1")), "{told}");
    server
        .put_ok(
            "/_replicator/ended",
            &json!({ "source": "http://a/s", "target": "http://a/t", "_replication_state": "completed" }),
        )
        .await;
    assert_eq!(server.get("/v1/documents/_replicator/ended/why").await.body["reason"], "completed");
    for path in [
        "/v1/documents/_replicator/none/why",
        "/v1/documents/a%2F_replicator/x/why",
        "/v1/documents/acme/x/why",
    ] {
        assert_eq!(server.get(path).await.error(), (404, "not_found"), "{path}");
    }
}

#[tokio::test]
async fn a_blocked_job_names_its_dependencies_and_why_it_was_cancelled() {
    let server = TestServer::start().await;
    add(&server, "first", json!({})).await;
    let next = json!({ "id": "next", "after": [{ "id": "first" }] });
    let added = server.post("/v1/jobs/mail", &next).await;
    assert_eq!((added.status, &added.body["added"]), (201, &json!("blocked")));
    let waits = why(&server, "next").await;
    assert_eq!((&waits["reason"], &waits["state"]), (&json!("after_others"), &json!("blocked")));
    let first = json!({ "type": "mail", "id": "first", "state": "pending", "accepted": ["completed"],
        "otherwise": "cancel" });
    assert_eq!(waits["after"], json!([first]));
    assert!(waits["sentence"].as_str().unwrap().contains("`first` of type `mail` (pending;"), "{waits}");
    let job = server.get("/v1/jobs/mail/next").await.body;
    assert_eq!((&job["waits_for"], &job["not_before_us"]), (&json!(1), &Value::Null));
    let free = json!({ "id": "free", "after": [{ "type": "mail", "id": "first", "otherwise": "free" }] });
    assert_eq!(server.post("/v1/jobs/mail", &free).await.body["added"], "blocked");

    let mut worker = ExternalWorker::register(&server, "mail", 2).await;
    assert_eq!(worker.next_ids(2).await, ["first"]);
    worker.end("first", "fail", json!({ "reason": "no such address", "retry": false })).await;
    let cancelled = why(&server, "next").await;
    assert_eq!((&cancelled["reason"], &cancelled["state"]), (&json!("cancelled"), &json!("cancelled")));
    assert!(cancelled["sentence"].as_str().unwrap().contains("`first`"), "{cancelled}");
    assert!(server.get("/v1/jobs/mail/next").await.body["reason"].as_str().unwrap().contains("`first`"));
    assert_eq!(worker.next_ids(2).await, ["free"]);

    for (after, problem) in [
        (json!([{ "id": "none" }]), "no job `none` of type `mail`"),
        (json!([{ "id": "late" }]), "the job itself"),
        (json!([{ "type": "a b", "id": "x" }]), "after[0].type"),
        (json!([{ "id": "first", "accepted": [] }]), "accepted"),
    ] {
        let refused = server.post("/v1/jobs/mail", &json!({ "id": "late", "after": after })).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body["reason"].as_str().unwrap().contains(problem), "{}", refused.body);
    }
    let jobs = json!({ "jobs": [
        { "type": "o", "id": "1" }, { "type": "o", "id": "2", "after": [{ "id": "1" }] },
    ] });
    let added = server.post("/v1/jobs", &jobs).await.body;
    assert_eq!(
        (&added["jobs"][0]["added"], &added["jobs"][1]["added"]),
        (&json!("queued"), &json!("blocked"))
    );
}
