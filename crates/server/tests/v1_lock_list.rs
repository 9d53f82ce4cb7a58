//! `/v1/locks`: the jobs that hold, await or have reserved a lock.

use crate::common::worker::ExternalWorker;
use crate::common::{Cluster, TestServer};
use serde_json::{Value, json};
use turnwise_policy::predictive_queue::locks::{Levels, Mode, Requests};
use turnwise_queue::locks::{Asked, LockAt, Spot, request, reserve};
use turnwise_queue::{Claim, Keyspace, NewJob, RunKey, jobs};

const NOW: i64 = 1_790_000_000_000_000;

/// Adds a job that declares these locks.
async fn add(cluster: &Cluster, id: &str, locks: Value) {
    let locks: Requests = serde_json::from_value(locks).unwrap();
    let options = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
    let job =
        &NewJob::new("mail", id, options).with(|spec| (spec.locks, spec.tenant) = (locks, "acme".to_owned()));
    let keys = &Keyspace::default();
    cluster.store.transact(|tx| async move { jobs::add(&tx, keys, job, NOW).await }).await.unwrap();
}

async fn reserves(cluster: &Cluster, id: &str, ticket: i64) {
    let keys = &Keyspace::default();
    let reserved =
        cluster.store.transact(|tx| async move { reserve(&tx, keys, "mail", id, ticket).await }).await;
    assert_eq!(reserved.unwrap(), Some(ticket));
}

/// An external worker that has claimed these jobs.
async fn worker<'a>(server: &'a TestServer, ids: &[&str]) -> ExternalWorker<'a> {
    let mut worker = ExternalWorker::register(server, "mail", 8).await;
    for (n, id) in ids.iter().enumerate() {
        let job = worker.next(1).await.remove(0);
        assert_eq!((&job["id"], &job["claim"]), (&json!(id), &json!(n + 1)));
    }
    worker
}

/// `level/name mode how id`, or without the name for the whole level.
async fn rows(server: &TestServer, path: &str) -> Vec<String> {
    let answer = server.get(path).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["locks"].as_array().unwrap().iter().map(row).collect()
}

fn row(row: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let name = row["lock"].get("name").map_or(String::new(), |name| format!("/{}", text(name)));
    let (level, mode) = (text(&row["lock"]["level"]), text(&row["lock"]["mode"]));
    assert_eq!((&row["type"], &row["tenant"]), (&json!("mail"), &json!("acme")), "{row}");
    assert!(row["since_us"].as_i64().unwrap() >= NOW, "{row}");
    format!("{level}{name} {mode} {} {}", text(&row["how"]), text(&row["id"]))
}

#[tokio::test]
async fn jobs_that_hold_await_or_reserve_locks_are_listed_by_level_and_name() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    assert_eq!(server.get("/v1/locks").await.body, json!({ "locks": [] }));
    add(
        &cluster,
        "holds",
        json!({ "instance": { "exclusive": ["web1"] }, "node": { "shared": { "n1": 3 } } }),
    )
    .await;
    let mut worker = worker(server, &["holds"]).await;
    add(&cluster, "waits", json!({ "node": { "exclusive": "unknown" } })).await;
    assert_eq!(worker.next_ids(1).await, ["waits"]);
    let claim = &Claim { worker: worker.id.clone(), number: 2 };
    let (keys, levels) = (&Keyspace::default(), &Levels::default());
    let wanted = &[LockAt::new(Spot::resource("node", "n1"), Mode::Exclusive)];
    let asked = cluster.store.transact(|tx| async move {
        request(&tx, keys, levels, RunKey::new("mail", "waits", claim), wanted, NOW + 1).await
    });
    assert!(matches!(asked.await.unwrap(), Asked::Waits(_)));
    add(&cluster, "reserves", json!({ "instance": { "exclusive": ["web1"] } })).await;
    reserves(&cluster, "reserves", NOW + 2).await;
    // A job that is only pending has no entry in the list.
    add(&cluster, "pending", json!({ "node": { "shared": "all" } })).await;

    let all = [
        "instance/web1 exclusive holds holds",
        "instance/web1 exclusive reserved reserves",
        "node/n1 shared holds holds",
        "node/n1 exclusive waits waits",
    ];
    assert_eq!(rows(server, "/v1/locks").await, all);
    assert_eq!(server.get("/v1/locks").await.body["locks"][2]["lock"]["units"], 3);
    assert_eq!(rows(server, "/v1/locks?level=instance").await, all[..2]);
    for name in ["level=node&name=n1", "name=n1"] {
        assert_eq!(rows(server, &format!("/v1/locks?{name}")).await, all[2..]);
    }
    assert_eq!(rows(server, "/v1/locks?level=node&name=n2").await, [""; 0]);
    assert_eq!(
        rows(server, "/v1/locks?level=big_lock").await,
        ["big_lock shared holds holds", "big_lock shared holds waits", "big_lock shared reserved reserves"]
    );

    // A job that wants the big lock comes before all others. Page by page the list is the same.
    add(&cluster, "alone", json!({ "big_lock": true })).await;
    reserves(&cluster, "alone", NOW + 3).await;
    add(&cluster, "whole", json!({ "node": { "exclusive": "all" } })).await;
    reserves(&cluster, "whole", NOW + 4).await;
    let all = [
        "big_lock exclusive reserved alone",
        all[0],
        all[1],
        "node exclusive reserved whole",
        all[2],
        all[3],
    ];
    assert_eq!(rows(server, "/v1/locks").await, all);
    for limit in 1..=7 {
        let (mut paged, mut after) = (Vec::new(), String::new());
        loop {
            let page = server.get(&format!("/v1/locks?limit={limit}{after}")).await.body;
            let rows = page["locks"].as_array().unwrap();
            assert!(rows.len() <= limit, "{page}");
            paged.extend(rows.iter().map(row));
            let Some(next) = page["next"].as_str() else { break };
            let next: String = form_urlencoded(next);
            after = format!("&after={next}");
        }
        assert_eq!(paged, all, "{limit}");
    }
    assert_eq!(rows(server, "/v1/locks?level=node&name=n1").await, all[3..]);

    let ended = worker.call("jobs/holds/finish", json!({ "claim": 1 })).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    let left = ["big_lock exclusive reserved alone", all[2], "node exclusive reserved whole", all[5]];
    assert_eq!(rows(server, "/v1/locks").await, left);
}

fn form_urlencoded(text: &str) -> String {
    text.replace('%', "%25")
}

#[tokio::test]
async fn a_wrong_query_is_refused_with_the_problem() {
    let server = TestServer::start().await;
    for (query, says) in [
        ("level=", "level: has an empty name"),
        ("level=node&name=a%0Ab", "name: has a name with control characters"),
        ("limit=0", "limit: must be from 1"),
        ("after=x", "after: must be the `next`"),
        ("after=a/b/c/d/e/f", "after: must be the `next`"),
        ("levels=node", "unknown field"),
    ] {
        let answer = server.get(&format!("/v1/locks?{query}")).await;
        assert_eq!(answer.error(), (400, "bad_request"), "{query}: {}", answer.body);
        assert!(answer.body["reason"].as_str().unwrap().contains(says), "{query}: {}", answer.body);
    }
}

async fn why(server: &TestServer, id: &str) -> Value {
    let answer = server.get(&format!("/v1/jobs/mail/{id}/why")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn a_job_requests_locks_while_it_runs_waits_for_them_and_releases_them() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    add(&cluster, "first", json!({ "node": { "exclusive": "unknown" } })).await;
    let mut worker = worker(server, &["first"]).await;
    let path = worker.path.clone();
    add(&cluster, "second", json!({ "node": { "exclusive": "unknown" }, "instance": { "shared": "all" } }))
        .await;
    assert_eq!(worker.next_ids(1).await, ["second"]);
    add(&cluster, "third", json!({ "network": { "exclusive": ["lan"] } })).await;
    assert_eq!(worker.next_ids(1).await, ["third"]);
    let lock = |level: &str, name: &str, mode: &str| json!({ "level": level, "name": name, "mode": mode });
    let n1 = lock("node", "n1", "exclusive");
    let ask = async |id: &str, claim: u64, wait_ms: u64, lock: &Value| {
        let body = json!({ "claim": claim, "locks": [lock], "wait_ms": wait_ms });
        server.post(&format!("{path}/jobs/{id}/locks"), &body).await
    };
    let give = async |id: &str, claim: u64, lock: &str| {
        server.delete(&format!("{path}/jobs/{id}/locks?claim={claim}&{lock}")).await
    };
    // Held locks are granted again.
    for _ in 0..2 {
        assert_eq!(ask("first", 1, 0, &n1).await.body, json!({ "state": "held" }));
    }
    let waits = ask("second", 2, 0, &n1).await;
    assert_eq!((waits.status, &waits.body["state"]), (200, &json!("waiting")), "{}", waits.body);
    assert_eq!((&waits.body["lock"]["name"], &waits.body["by"][0]["id"]), (&json!("n1"), &json!("first")));
    let told = why(server, "second").await;
    assert_eq!((&told["reason"], &told["state"]), (&json!("waits_for_lock"), &json!("waiting")));
    assert_eq!(
        (&told["locks"]["wanted"]["name"], &told["locks"]["by"][0]["id"]),
        (&json!("n1"), &json!("first"))
    );
    assert_eq!(told["locks"]["held"], json!([{ "level": "instance", "mode": "shared", "units": 1 }]));
    let sentence = told["sentence"].as_str().unwrap();
    assert!(sentence.contains("has waited for node/n1 (exclusive) since "), "{sentence}");
    assert!(sentence.contains("`first` of type `mail` holds node/n1 (exclusive) since "), "{sentence}");
    let queue = server.get("/v1/queue?type=mail").await.body;
    let row = queue["jobs"].as_array().unwrap().iter().find(|row| row["id"] == "second").unwrap();
    assert_eq!((&row["state"], &row["reason"]), (&json!("waiting"), &json!("waits_for_lock")));
    let kept = give("second", 2, "level=instance").await;
    assert_eq!(kept.error(), (409, "waits_already"), "{}", kept.body);
    let other = ask("second", 2, 0, &lock("node", "n2", "exclusive")).await;
    assert_eq!(other.error(), (409, "waits_already"), "{}", other.body);

    // A waiting request gets its response as soon as the lock is released.
    let (granted, given) =
        tokio::join!(ask("second", 2, 60_000, &n1), give("first", 1, "level=node&name=n1"));
    assert_eq!((given.status, given.body), (200, json!({ "unlocked": true })));
    assert_eq!(granted.body, json!({ "state": "held" }));
    assert_eq!(rows(server, "/v1/locks?level=node").await, ["node/n1 exclusive holds second"]);

    // A job that withdraws its request continues to run.
    assert_eq!(ask("first", 1, 0, &n1).await.body["state"], "waiting");
    assert_eq!(give("first", 1, "level=node&name=n1").await.status, 200);
    let told = why(server, "first").await;
    assert_eq!((&told["reason"], &told["locks"]["wanted"]), (&json!("runs"), &Value::Null));

    // `third` holds a lock that is later in the order than all locks that the others want.
    add(&cluster, "fourth", json!({ "node": { "shared": "unknown" }, "network": { "exclusive": ["wan"] } }))
        .await;
    assert_eq!(worker.next_ids(1).await, ["fourth"]);
    for (id, claim, lock, error, says) in [
        ("fourth", 4, lock("node", "n1", "shared"), (409, "out_of_order"), "holds network/wan (exclusive)"),
        ("third", 3, lock("node", "n1", "shared"), (409, "not_declared"), "which it has not declared"),
        (
            "third",
            3,
            lock("disk", "d", "shared"),
            (409, "unknown_level"),
            "the levels are node_group, instance",
        ),
        ("third", 3, lock("big_lock", "d", "shared"), (400, "bad_request"), "the big lock has none"),
        ("third", 3, lock("node", "", "shared"), (400, "bad_request"), "empty name"),
        ("third", 3, lock("node", "n", "both"), (400, "bad_request"), "expected `shared` or `exclusive`"),
        ("third", 2, lock("network", "lan", "shared"), (409, "halt"), "does not hold"),
    ] {
        let answer = ask(id, claim, 0, &lock).await;
        assert_eq!(answer.error(), error, "{lock}: {}", answer.body);
        assert!(answer.body["reason"].as_str().unwrap().contains(says), "{lock}: {}", answer.body);
    }
    for (lock, error) in [("level=node&name=n1", (409, "halt")), ("level=", (400, "bad_request"))] {
        assert_eq!(give("second", 1, lock).await.error(), error, "{lock}");
    }
    assert_eq!(give("second", 2, "level=big_lock").await.error(), (400, "bad_request"));
    let none = worker.call("jobs/first/locks", json!({ "claim": 1, "locks": [] })).await;
    assert_eq!(none.error(), (400, "bad_request"));
    // A worker that has left gets an error.
    assert_eq!(worker.call("leave", json!({})).await.status, 200);
    assert_eq!(ask("second", 2, 0, &n1).await.error(), (410, "expired_worker"));
    assert_eq!(rows(server, "/v1/locks").await, [""; 0]);
}

#[tokio::test]
async fn why_names_the_lock_that_is_not_free_the_jobs_that_block_it_and_the_weight() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    add(&cluster, "holds", json!({ "instance": { "exclusive": ["web1"] } })).await;
    let worker = worker(server, &["holds"]).await;
    add(&cluster, "old", json!({ "instance": { "exclusive": ["web1"] }, "node": { "shared": "unknown" } }))
        .await;
    let told = why(server, "old").await;
    assert_eq!((&told["reason"], &told["state"]), (&json!("locked"), &json!("pending")), "{told}");
    let sentence = told["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("Starts when it can take instance/web1 (exclusive): `holds` of type `mail`"),
        "{sentence}"
    );
    let locks = &told["locks"];
    assert_eq!(
        (&locks["wanted"]["name"], &locks["by"][0]["id"], &locks["by"][0]["how"]),
        (&json!("web1"), &json!("holds"), &json!("holds"))
    );
    assert_eq!(
        locks["declared"],
        json!({ "instance": { "exclusive": ["web1"] }, "node": { "shared": "unknown" } })
    );
    // It has waited far more than `aging_ticks` ticks.
    let weight = &locks["weight"];
    assert_eq!((&weight["base"], &weight["total"], &weight["aged"]), (&json!(1.0), &json!(4.3), &json!(0.0)));
    assert_eq!(
        weight["levels"],
        json!([{ "level": "instance", "weight": 3.0 }, { "level": "node", "weight": 0.3 }])
    );
    let (ticks, tick_us) =
        (weight["aging_ticks"].as_i64().unwrap(), weight["tick_ms"].as_i64().unwrap() * 1_000);
    assert_eq!(weight["nothing_us"], (NOW / tick_us + ticks) * tick_us);

    // The weight of a new job is reduced by its age, and by the line for the resource that `old` wants, too.
    let (keys, store) = (&Keyspace::default(), &cluster.store);
    let options = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
    let locks: Requests = serde_json::from_value(json!({ "instance": { "exclusive": ["web1"] } })).unwrap();
    let new = &NewJob::new("mail", "new", options)
        .with(|spec| (spec.locks, spec.tenant) = (locks, "acme".to_owned()));
    let now_us = store.runtime().now_us();
    store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
    let weight = why(server, "new").await["locks"]["weight"].clone();
    let number = |member: &str| weight[member].as_f64().unwrap();
    assert_eq!(weight["line"], 1);
    let left = (number("aging_ticks") - number("age") - number("line")) / number("aging_ticks");
    assert!((number("aged") - number("total") * left).abs() < 0.01 && number("total") == 4.0, "{weight}");

    // The job with the reservation and the jobs that it delays report it.
    reserves(&cluster, "old", NOW + 1).await;
    assert_eq!(why(server, "old").await["locks"]["reserved_us"], NOW + 1);
    let ids = |told: &Value| -> Vec<String> {
        let by = told["locks"]["by"].as_array().unwrap().iter();
        by.map(|by| format!("{} {}", by["id"].as_str().unwrap(), by["how"].as_str().unwrap())).collect()
    };
    assert_eq!(ids(&why(server, "new").await), ["holds holds", "old reserved"]);
    // `old` may take any node, and no job blocks it.
    worker.call("jobs/holds/finish", json!({ "claim": 1 })).await;
    let told = why(server, "new").await;
    assert_eq!((&told["reason"], ids(&told)), (&json!("lock_reserved"), vec!["old reserved".to_owned()]));
    let free = why(server, "old").await;
    assert_eq!((&free["reason"], &free["locks"]["wanted"]), (&json!("starts_next"), &Value::Null), "{free}");
    let queue = server.get("/v1/queue?type=mail").await.body;
    for row in queue["jobs"].as_array().unwrap() {
        assert_eq!(why(server, row["id"].as_str().unwrap()).await["reason"], row["reason"], "{row}");
    }

    // Without locks the response does not mention them, and without a worker they are not the reason.
    add(&cluster, "plain", json!({})).await;
    assert_eq!(why(server, "plain").await.get("locks"), None);
    assert_eq!(worker.call("leave", json!({})).await.status, 200);
    assert_eq!(why(server, "new").await["reason"], "no_worker");
}
