//! `/v1` for external workers: register, ping, accept, update, finish, fail, release, end, leave.

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;
use serde_json::{Value, json};

async fn add(server: &TestServer, job: Value) {
    let added = server.post("/v1/jobs/t", &job).await;
    assert_eq!(added.status, 201, "{}", added.body);
}

async fn state(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/v1/jobs/t/{id}")).await.body["state"].clone()
}

#[tokio::test]
async fn a_running_job_is_an_active_task() {
    let server = TestServer::start().await;
    server.hide("t", &["/password"]).await;
    add(&server, json!({"id": "a", "tenant": "acme", "user": "jan", "options": {"password": "hunter2"}}))
        .await;
    add(&server, json!({"id": "waits"})).await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    let claim = worker.take(0).await["claim"].clone();
    worker.call("jobs/a/update", json!({"claim": claim, "info": {"progress": 50}})).await;
    let tasks = server.get("/_active_tasks").await.body;
    assert_eq!(tasks.as_array().unwrap().len(), 1, "{tasks}");
    let fields = [
        "info",
        "job_id",
        "node",
        "pid",
        "process_status",
        "started_on",
        "tenant",
        "type",
        "updated_on",
        "user",
    ];
    let mut found: Vec<&String> = tasks[0].as_object().unwrap().keys().collect();
    found.sort();
    assert_eq!(found, fields);
    let expected =
        [("type", json!("t")), ("job_id", json!("a")), ("tenant", json!("acme")), ("user", json!("jan"))];
    for (field, value) in expected.into_iter().chain([("info", json!({"progress": 50}))]) {
        assert_eq!(tasks[0][field], value, "{field}");
    }
    worker.call("jobs/a/finish", json!({"claim": claim})).await;
    assert_eq!(server.get("/_active_tasks").await.body, json!([]));
}

#[tokio::test]
async fn a_job_goes_from_its_client_to_a_worker_and_back() {
    let server = TestServer::start().await;
    server.hide("t", &["/password"]).await;
    let registered = server.post("/v1/workers/t", &json!({"slots": 2, "name": "tester"})).await.body;
    assert_eq!(
        (&registered["ping_interval_ms"], &registered["health_timeout_ms"]),
        (&json!(5_000), &json!(15_000))
    );
    let worker = ExternalWorker::register(&server, "t", 2).await;
    let body = json!({"id": "a b/ü", "tenant": "acme", "user": "jan", "options": {"password": "hunter2"}, "summary": {"s": 1},
        "max_attempts": 2});
    add(&server, body).await;
    let job = worker.take(0).await;
    let expected = json!({"id": "a b/ü", "claim": 1, "tenant": "acme", "user": "jan", "attempt": 1, "max_attempts": 2,
        "options": {"password": "hunter2"}, "summary": {"s": 1}});
    assert_eq!(job, expected);
    let of_job = "/v1/jobs/t/a%20b%2F%C3%BC";
    let shown = server.get(of_job).await.body;
    assert_eq!(
        (&shown["state"], &shown["worker"], &shown["claim"]),
        (&json!("running"), &json!(worker.id), &json!(1))
    );
    let path = "jobs/a%20b%2F%C3%BC";
    let updated = worker.call(&format!("{path}/update"), json!({"claim": 1, "info": {"done": 5}})).await;
    assert_eq!((updated.status, updated.body), (200, json!({"answer": "continue"})));
    assert_eq!(server.get(of_job).await.body["info"], json!({"done": 5}));
    assert_eq!(server.get("/v1/jobs?type=t&state=running").await.body["jobs"][0]["info"], json!({"done": 5}));
    let waiting = tokio::spawn(server.request("GET", &format!("{of_job}/wait")).send());
    let finish = json!({"claim": 1, "result": {"sum": 7}, "info": "done"});
    for _ in 0..3 {
        // Finishing is idempotent.
        let finished = worker.call(&format!("{path}/finish"), finish.clone()).await;
        assert_eq!((finished.status, finished.body), (200, json!({"state": "completed"})));
    }
    let ended: Value = serde_json::from_str(&waiting.await.unwrap().unwrap().text().await.unwrap()).unwrap();
    assert_eq!(
        (&ended["finished"], &ended["job"]["result"], &ended["job"]["info"]),
        (&json!(true), &json!({"sum": 7}), &json!("done"))
    );
    assert_eq!(ended["job"]["history"].as_array().unwrap().len(), 3);
    assert!(ended["job"].get("worker").is_none());
    // A second, different end of the same run does not change the first one.
    let failed = worker.call(&format!("{path}/fail"), json!({"claim": 1, "reason": "late"})).await;
    assert_eq!((failed.status, failed.body), (200, json!({"state": "completed"})));
}

#[tokio::test]
async fn jobs_of_a_lost_response_are_sent_again() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 10).await;
    for id in ["a", "b", "c"] {
        add(&server, json!({"id": id})).await;
    }
    let first = worker.accept(0, 2).await;
    assert_eq!(first.iter().map(|job| job["claim"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    // The response was lost: the same jobs again, and no new ones before these have arrived.
    assert_eq!(worker.accept(0, 2).await, first);
    assert_eq!(worker.accept(1, 2).await, first[1..]);
    let third = worker.accept(2, 2).await;
    assert_eq!((third.len(), &third[0]["claim"]), (1, &json!(3)));
    assert!(worker.accept(3, 2).await.is_empty());
    // A job that has ended is not returned again.
    let id = third[0]["id"].as_str().unwrap();
    assert_eq!(worker.call(&format!("jobs/{id}/finish"), json!({"claim": 3})).await.status, 200);
    assert!(worker.accept(2, 2).await.is_empty());
    assert_eq!(server.get(&format!("/v1/jobs/t/{id}")).await.body["result"], Value::Null);
}

#[tokio::test]
async fn jobs_that_do_not_fit_one_answer_come_with_the_next() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 5).await;
    for id in ["a", "b", "c"] {
        add(&server, json!({"id": id, "options": "x".repeat(3_500_000)})).await;
    }
    let first = worker.accept(0, 5).await;
    assert_eq!(first.iter().map(|job| &job["claim"]).collect::<Vec<_>>(), [1, 2]);
    let rest = worker.accept(2, 5).await;
    assert_eq!((rest.len(), &rest[0]["claim"]), (1, &json!(3)));
}

#[tokio::test]
async fn a_worker_never_has_more_jobs_than_slots() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 2).await;
    let jobs: Vec<Value> = (0..5).map(|n| json!({"type": "t", "id": format!("{n}")})).collect();
    server.post("/v1/jobs", &json!({"jobs": jobs})).await;
    assert_eq!(worker.accept(0, 1_000).await.len(), 2);
    assert!(worker.accept(2, 1_000).await.is_empty());
    worker.call("jobs/0/release", json!({"claim": 1})).await;
    let next = worker.take(2).await;
    // The slot is free again. The other jobs have waited longer than the job that was given back.
    assert_eq!((&next["id"], &next["claim"], &next["attempt"]), (&json!("2"), &json!(3), &json!(1)));
}

#[tokio::test]
async fn a_waiting_worker_gets_a_job_as_it_comes() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    let path = format!("{}/accept", worker.path);
    let body = json!({"received": 0, "wait_ms": 60_000}).to_string();
    let request = server.request("POST", &path).header("content-type", "application/json").body(body);
    let waiting = tokio::spawn(request.send());
    add(&server, json!({"id": "a"})).await;
    let answer: Value = serde_json::from_str(&waiting.await.unwrap().unwrap().text().await.unwrap()).unwrap();
    assert_eq!(answer["jobs"][0]["id"], "a");
    // Without a free slot the request waits for its timeout only.
    let none = worker.call("accept", json!({"received": 1, "wait_ms": 50})).await;
    assert_eq!(none.body, json!({"jobs": []}));
}

#[tokio::test]
async fn a_later_request_for_jobs_takes_the_place_of_an_earlier_one() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    let waiting = |n: usize| {
        let body = json!({"received": 0, "wait_ms": 60_000}).to_string();
        let request = server.request("POST", &format!("{}/accept", worker.path)).header("n", n.to_string());
        tokio::spawn(request.header("content-type", "application/json").body(body).send())
    };
    let mut earlier = waiting(0);
    for n in 1..4 {
        // The later of the two requests ends the earlier one.
        let mut later = waiting(n);
        let (ended, waits) = tokio::select! {
            ended = &mut earlier => (ended, later),
            ended = &mut later => (ended, earlier),
        };
        let ended = ended.unwrap().unwrap();
        assert_eq!(ended.status(), 409);
        assert!(ended.text().await.unwrap().contains("superseded"));
        earlier = waits;
    }
    add(&server, json!({"id": "a"})).await;
    let answer: Value = serde_json::from_str(&earlier.await.unwrap().unwrap().text().await.unwrap()).unwrap();
    assert_eq!(answer["jobs"][0]["claim"], 1);
}

#[tokio::test]
async fn a_dropped_request_leaves_nothing_behind() {
    let server = TestServer::start().await;
    let (worker, other) =
        (ExternalWorker::register(&server, "t", 1).await, ExternalWorker::register(&server, "t", 1).await);
    for _ in 0..20 {
        let body = json!({"received": 0, "wait_ms": 60_000});
        let dropped =
            tokio::time::timeout(std::time::Duration::from_millis(5), worker.call("accept", body)).await;
        assert!(dropped.is_err());
    }
    // A dropped request neither blocks later ones nor gets a job.
    add(&server, json!({"id": "a"})).await;
    let answer = other.call("accept", json!({"received": 0, "wait_ms": 60_000})).await;
    assert_eq!(answer.body["jobs"][0]["id"], "a", "{}", answer.body);
}

#[tokio::test]
async fn a_failed_job_is_tried_again_until_its_last_attempt() {
    let server = TestServer::start_with("[jobs]\nbackoff_base_ms = 1\n").await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    add(&server, json!({"id": "a", "max_attempts": 2})).await;
    let job = worker.take(0).await;
    let crash = json!({"claim": job["claim"], "reason": "no\nway", "info": {"at": 1}});
    for _ in 0..2 {
        assert_eq!(worker.call("jobs/a/fail", crash.clone()).await.body, json!({"state": "crashing"}));
    }
    let shown = server.get("/v1/jobs/t/a").await.body;
    assert_eq!(
        (&shown["reason"], &shown["attempts"], &shown["info"]),
        (&json!("no way"), &json!(1), &json!({"at": 1}))
    );
    assert!(shown["not_before_us"].as_i64().unwrap() > shown["changed_us"].as_i64().unwrap());
    let again =
        worker.call("accept", json!({"received": 1, "wait_ms": 60_000})).await.body["jobs"][0].clone();
    assert_eq!(
        (&again["attempt"], &again["claim"], &again["info"]),
        (&json!(2), &json!(2), &json!({"at": 1}))
    );
    assert_eq!(
        worker.call("jobs/a/fail", json!({"claim": 2, "reason": "still"})).await.body,
        json!({"state": "failed"})
    );
    let shown = server.get("/v1/jobs/t/a").await.body;
    assert_eq!((&shown["state"], &shown["reason"]), (&json!("failed"), &json!("still")));
    // A failure without a retry.
    add(&server, json!({"id": "b"})).await;
    worker.take(2).await;
    let fail = json!({"claim": 3, "reason": "never", "retry": false});
    assert_eq!(worker.call("jobs/b/fail", fail).await.body, json!({"state": "failed"}));
}

#[tokio::test]
async fn a_crashed_job_is_retried_on_request() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    let retry = async |path: &str| server.post_empty(path).await;
    add(&server, json!({"id": "000"})).await;
    let job = worker.accept(0, 1).await.remove(0);
    let received = job["claim"].as_u64().unwrap();
    worker.call("jobs/000/fail", json!({"claim": received, "reason": "its server is away"})).await;
    let one = retry("/v1/jobs/t/000/retry").await;
    assert_eq!((one.status, one.body), (200, json!({"retried": true, "state": "pending"})));
    let again = retry("/v1/jobs/t/000/retry").await;
    assert_eq!((again.status, again.body), (200, json!({"retried": false, "state": "pending"})));
    assert_eq!(retry("/v1/jobs/t/none/retry").await.status, 404);
    let next = worker.call("accept", json!({"received": received, "wait_ms": 60_000})).await;
    assert_eq!(next.body["jobs"][0]["attempt"], 2, "{}", next.body);
}

#[tokio::test]
async fn a_cancelled_job_is_stopped_by_its_worker() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 3).await;
    for id in ["a", "b", "c"] {
        add(&server, json!({"id": id})).await;
    }
    worker.accept(0, 3).await;
    let cancelled = server.post_empty("/v1/jobs/t/a/cancel").await;
    assert_eq!(cancelled.body, json!({"state": "running"}));
    assert_eq!(server.get("/v1/jobs/t/a").await.body["cancel_requested"], true);
    let removed = server.delete("/v1/jobs/t/b").await;
    assert_eq!((removed.status, removed.body), (202, json!({"removed": false})));
    assert_eq!(worker.ping().await.body, json!({"cancel": [1, 2]}));
    let update = json!({"claim": 1, "info": {}});
    assert_eq!(worker.call("jobs/a/update", update).await.body, json!({"answer": "cancel"}));
    assert_eq!(worker.call("jobs/a/release", json!({"claim": 1})).await.body, json!({"state": "cancelled"}));
    assert_eq!(worker.call("jobs/b/release", json!({"claim": 2})).await.body, json!({"state": "removed"}));
    assert_eq!(server.get("/v1/jobs/t/b").await.status, 404);
    assert_eq!(worker.ping().await.body, json!({"cancel": []}));
    // Added again while it runs: the job runs once more.
    let again = server.post("/v1/jobs/t", &json!({"id": "c", "if_exists": "again"})).await;
    assert_eq!((again.status, &again.body["added"]), (200, &json!("runs_again")));
    assert_eq!(worker.call("jobs/c/finish", json!({"claim": 3})).await.body, json!({"state": "pending"}));
    assert_eq!(worker.take(3).await["id"], "c");
}

#[tokio::test]
async fn a_claim_that_is_not_the_workers_is_halted() {
    let server = TestServer::start().await;
    let (worker, other) =
        (ExternalWorker::register(&server, "t", 1).await, ExternalWorker::register(&server, "t", 1).await);
    add(&server, json!({"id": "a"})).await;
    worker.take(0).await;
    for (who, claim) in [(&worker, 0), (&worker, 2), (&other, 1)] {
        for (what, body) in [
            ("update", json!({"claim": claim, "info": {}})),
            ("finish", json!({"claim": claim})),
            ("fail", json!({"claim": claim, "reason": ""})),
            ("release", json!({"claim": claim})),
        ] {
            for job in ["a", "none"] {
                let answer = who.call(&format!("jobs/{job}/{what}"), body.clone()).await;
                assert_eq!(answer.error(), (409, "halt"), "{what}: {}", answer.body);
                assert_eq!(answer.body["answer"], "halt");
                assert!(answer.body["hint"].as_str().unwrap().contains("stop the job"));
            }
        }
    }
    assert_eq!(state(&server, "a").await, "running");
    assert_eq!(worker.call("jobs/a/finish", json!({"claim": 1})).await.status, 200);
}

#[tokio::test]
async fn a_worker_that_left_is_no_member_and_its_jobs_are_pending() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    add(&server, json!({"id": "a"})).await;
    worker.take(0).await;
    for _ in 0..2 {
        let left = server.post_empty(&format!("{}/leave", worker.path)).await;
        assert_eq!((left.status, left.body), (200, json!({"left": true})));
    }
    assert_eq!(state(&server, "a").await, "pending");
    for (what, body) in [
        ("ping", json!({})),
        ("accept", json!({"received": 0})),
        ("jobs/a/update", json!({"claim": 1, "info": {}})),
        ("jobs/a/finish", json!({"claim": 1})),
        ("jobs/a/fail", json!({"claim": 1, "reason": "x"})),
        ("jobs/a/release", json!({"claim": 1})),
        ("end", json!({"finish": [{"id": "a", "claim": 1}]})),
        ("accept", json!({"received": 1, "ends": {"release": [{"id": "a", "claim": 1}]}})),
    ] {
        let gone = worker.call(what, body).await;
        assert_eq!(gone.error(), (410, "expired_worker"), "{what}: {}", gone.body);
        assert!(gone.body["hint"].as_str().unwrap().contains("register again"));
    }
    assert_eq!(server.get("/v1/workers?type=t").await.body, json!({"workers": []}));
}

#[tokio::test]
async fn workers_are_listed_with_what_they_run() {
    let server = TestServer::start().await;
    let workers =
        [ExternalWorker::register(&server, "t", 2).await, ExternalWorker::register(&server, "t", 1).await];
    server.post("/v1/workers/u", &json!({"slots": 1})).await;
    add(&server, json!({"id": "a", "task": "send"})).await;
    workers[0].take(0).await;
    let listed = server.get("/v1/workers?type=t").await.body;
    let first = &listed["workers"][0];
    let node = format!("turnwise@{}", server.server.listen());
    let expected = json!({"type": "t", "id": workers[0].id, "name": "tester", "node": node, "external": true,
        "slots": 2, "started_us": first["started_us"], "mode": "active", "more_running": false,
        "running": [{"id": "a", "task": "send", "claim": 1, "started_us": first["running"][0]["started_us"]}]});
    assert_eq!(*first, expected);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/workers?limit=1{after}")).await.body;
        seen.extend(page["workers"].as_array().unwrap().iter().map(|worker| worker["type"].to_string()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["\"replication\"", "\"t\"", "\"t\"", "\"u\""]);
}

#[tokio::test]
async fn invalid_requests_of_workers_are_refused() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    for (body, status) in [
        (json!({}), 400),
        (json!({"slots": 0}), 400),
        (json!({"slots": 1_001}), 400),
        (json!({"slots": -1}), 400),
        (json!({"slots": 1, "name": ""}), 400),
        (json!({"slots": 1, "name": "a\u{0}"}), 400),
        (json!({"slots": 1, "name": "n".repeat(129)}), 400),
        (json!({"slots": 1, "nam": "x"}), 400),
    ] {
        assert_eq!(server.post("/v1/workers/t", &body).await.error(), (status, "bad_request"), "{body}");
    }
    for job_type in ["replication", "command"] {
        let refused = server.post(&format!("/v1/workers/{job_type}"), &json!({"slots": 1})).await;
        assert_eq!(refused.error(), (403, "forbidden"));
        let path = format!("/v1/workers/{job_type}/{}/accept", worker.id);
        assert_eq!(server.post(&path, &json!({"received": 0})).await.error(), (403, "forbidden"));
    }
    for id in ["x", "%00", "000643d1a2b3c4d5-9f3a1c5e7b2d486g"] {
        let unknown = server.post(&format!("/v1/workers/t/{id}/accept"), &json!({"received": 0})).await;
        assert_eq!(unknown.error(), (404, "unknown_worker"), "{}", unknown.body);
    }
    for body in [
        json!({}),
        json!({"received": -1}),
        json!({"received": (1_u64 << 53)}),
        json!({"received": 0, "limit": 0}),
        json!({"received": 0, "limit": 1_001}),
        json!({"received": 0, "wait_ms": 300_001}),
        json!({"received": 0, "wait": 1}),
    ] {
        assert_eq!(worker.call("accept", body.clone()).await.error(), (400, "bad_request"), "{body}");
    }
    add(&server, json!({"id": "a"})).await;
    worker.take(0).await;
    let large = "x".repeat(13_000);
    for (what, body) in [
        ("update", json!({"claim": 1, "info": large})),
        ("finish", json!({"claim": "1"})),
        ("finish", json!({"claim": 1, "info": large})),
        ("finish", json!({"claim": 1, "answer": 42})),
        ("fail", json!({"claim": 1})),
        ("fail", json!({"claim": 1, "reason": "r".repeat(65_537)})),
        ("fail", json!({"claim": 1, "reason": "", "retry": "no"})),
        ("release", json!({})),
    ] {
        let answer = worker.call(&format!("jobs/a/{what}"), body).await;
        assert_eq!(answer.error(), (400, "bad_request"), "{what}: {}", answer.body);
    }
    for (ends, reason) in [
        (json!({"finish": [{"id": "a"}]}), "claim"),
        (
            json!({"finish": [{"id": "a", "claim": 1}], "fail": [{"id": "\u{0}", "claim": 1, "reason": ""}]}),
            "fail[0].id:",
        ),
        (json!({"fail": [{"id": "a", "claim": 1}]}), "reason"),
        (json!({"fail": [{"id": "a", "claim": 1, "reason": "r".repeat(65_537)}]}), "fail[0].reason:"),
        (json!({"release": [{"id": "a", "claim": 1_u64 << 53}]}), "release[0].claim:"),
        (json!({"release": vec![json!({"id": "a", "claim": 1}); 1_001]}), "release: has 1001 ends"),
        (json!({"cancel": []}), "cancel"),
    ] {
        let ended = worker.call("end", ends.clone()).await;
        assert_eq!(ended.error(), (400, "bad_request"), "{}", ended.body);
        assert!(ended.body["reason"].as_str().unwrap().contains(reason), "{}", ended.body);
        let accepted = worker.call("accept", json!({"received": 1, "ends": ends})).await;
        assert_eq!(accepted.error(), (400, "bad_request"), "{}", accepted.body);
    }
    assert_eq!(state(&server, "a").await, "running");
}

#[tokio::test]
async fn ends_in_a_request_for_jobs_free_the_slots_for_them() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 2).await;
    for id in ["a", "b", "c", "d"] {
        add(&server, json!({"id": id})).await;
    }
    worker.accept(0, 2).await;
    let ends = json!({"fail": [{"id": "b", "claim": 2, "reason": "no", "retry": false}],
        "finish": [{"id": "a", "claim": 1, "result": 42, "info": {"done": 1}}]});
    let accepted = worker.call("accept", json!({"received": 2, "limit": 2, "ends": ends})).await.body;
    assert_eq!(
        accepted["ended"],
        json!([{"claim": 1, "state": "completed"}, {"claim": 2, "state": "failed"}])
    );
    let next: Vec<&str> =
        accepted["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(next, ["c", "d"]);
    let ended = server.get("/v1/jobs/t/a").await.body;
    assert_eq!((&ended["result"], &ended["info"]), (&json!(42), &json!({"done": 1})));
    assert_eq!(server.get("/v1/jobs/t/b").await.body["reason"], "no");

    // There are no more jobs. A request with ends does not wait for them.
    let ends = json!({"finish": [{"id": "c", "claim": 3}, {"id": "d", "claim": 4}]});
    let request = json!({"received": 4, "limit": 2, "wait_ms": 300_000, "ends": ends});
    let accepted = worker.call("accept", request.clone()).await.body;
    let expected = json!({"jobs": [],
        "ended": [{"claim": 3, "state": "completed"}, {"claim": 4, "state": "completed"}]});
    assert_eq!(accepted, expected);
    assert_eq!(worker.call("accept", request).await.body, expected, "it may be repeated");
}

#[tokio::test]
async fn each_of_many_ends_has_its_own_result() {
    let server = TestServer::start().await;
    let (worker, other) =
        (ExternalWorker::register(&server, "t", 5).await, ExternalWorker::register(&server, "t", 1).await);
    for id in ["a", "b", "c", "d", "e"] {
        add(&server, json!({"id": id})).await;
    }
    worker.accept(0, 4).await;
    other.take(0).await;
    let ends = json!({
        "finish": [{"id": "a", "claim": 1}, {"id": "b", "claim": 2, "info": "x".repeat(13_000)}, {"id": "e", "claim": 1}],
        "fail": [{"id": "c", "claim": 3, "reason": "ouch"}, {"id": "none", "claim": 7, "reason": ""}],
        "release": [{"id": "d", "claim": 4}],
    });
    for _ in 0..2 {
        let answer = worker.call("end", ends.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let ended = answer.body["ended"].as_array().unwrap();
        let results: Vec<(u64, &Value)> = ended
            .iter()
            .map(|end| (end["claim"].as_u64().unwrap(), end.get("state").unwrap_or(&end["error"]["error"])))
            .collect();
        let expected = [
            (1, json!("completed")),
            (2, json!("bad_request")),
            (1, json!("halt")),
            (3, json!("crashing")),
            (7, json!("halt")),
            (4, json!("pending")),
        ];
        assert_eq!(results, expected.each_ref().map(|(claim, result)| (*claim, result)));
        assert_eq!(ended[2]["error"]["answer"], "halt");
    }
    for (id, expected) in
        [("a", "completed"), ("b", "running"), ("c", "crashing"), ("d", "pending"), ("e", "running")]
    {
        assert_eq!(state(&server, id).await, expected, "{id}");
    }
}

#[tokio::test]
async fn a_worker_goes_on_when_the_server_comes_back() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 2).await;
    add(&server, json!({"id": "a"})).await;
    worker.take(0).await;
    let path = worker.path.clone();
    let body = json!({"received": 1, "wait_ms": 60_000}).to_string();
    let request = server
        .request("POST", &format!("{path}/accept"))
        .header("content-type", "application/json")
        .body(body);
    let waiting = tokio::spawn(request.send());
    // The request may be waiting by then, or may not have been sent yet.
    let server = server.restart("").await;
    match waiting.await.unwrap() {
        Ok(answer) => assert_eq!(answer.status(), 503),
        Err(error) => assert!(error.is_connect() || error.is_request(), "{error}"),
    }
    let finished = server.post(&format!("{path}/jobs/a/finish"), &json!({"claim": 1})).await;
    assert_eq!((finished.status, &finished.body["state"]), (200, &json!("completed")), "{}", finished.body);
    add(&server, json!({"id": "b"})).await;
    let given = server.post(&format!("{path}/accept"), &json!({"received": 1})).await;
    assert_eq!(given.body["jobs"][0]["claim"], 2);
}

#[tokio::test]
async fn a_worker_without_pings_is_removed_and_other_workers_get_its_jobs() {
    // The time that a worker has to register, to accept a job and to ping, and the next worker to end the job.
    let config = "[workers]\nhealth_interval = 0.5\nhealth_timeout = 6\n[jobs]\nbackoff_base_ms = 1\n";
    let server = TestServer::start_with(config).await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    add(&server, json!({"id": "a"})).await;
    worker.take(0).await;
    assert_eq!(worker.ping().await.status, 200);
    let lost = server.poll("/v1/jobs/t/a", |job| job["state"] == "crashing").await;
    assert_eq!((&lost["attempts"], &lost["history"][0]["type"]), (&json!(1), &json!("crashed")));
    assert_eq!(lost["reason"], format!("its worker {} was lost", worker.id));
    let late = worker.call("jobs/a/finish", json!({"claim": 1})).await;
    assert_eq!(late.error(), (410, "expired_worker"));
    assert_eq!(worker.ping().await.error(), (410, "expired_worker"));
    let next = ExternalWorker::register(&server, "t", 1).await;
    let taken = next.call("accept", json!({"received": 0, "wait_ms": 60_000})).await.body["jobs"][0].clone();
    assert_eq!((&taken["id"], &taken["attempt"]), (&json!("a"), &json!(2)));
    assert_eq!(next.call("jobs/a/finish", json!({"claim": 1})).await.status, 200);
}

#[tokio::test]
async fn a_run_that_hangs_is_taken_from_a_worker_that_pings() {
    let server = TestServer::start_with("[heartbeat_timeouts]\nt = 0.5\n").await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    add(&server, json!({"id": "a", "max_attempts": 1, "timeout_ms": 3_600_000})).await;
    let job = worker.take(0).await;
    assert_eq!((&job["timeout_ms"], &job["heartbeat_timeout_ms"]), (&json!(3_600_000), &json!(500)));
    let waited = server.get("/v1/jobs/t/a/wait?timeout_ms=60000").await.body;
    let ended = &waited["job"];
    assert_eq!((&ended["state"], &ended["attempts"]), (&json!("failed"), &json!(1)), "{waited}");
    assert_eq!((&ended["timeout_ms"], &ended["heartbeat_timeout_ms"]), (&json!(3_600_000), &Value::Null));
    let why = server.get("/v1/jobs/t/a/why").await.body;
    for told in [&ended["reason"], &ended["history"][0]["reason"], &why["error"], &why["sentence"]] {
        assert!(told.as_str().unwrap().contains("heartbeat_timeout of 500ms"), "{told} {why}");
    }
    assert_eq!(worker.ping().await.status, 200);
    assert_eq!(worker.call("jobs/a/update", json!({"claim": 1, "info": {}})).await.status, 409);
    assert_eq!(worker.call("jobs/a/finish", json!({"claim": 1, "result": 1})).await.status, 409);
}
