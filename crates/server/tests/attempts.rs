//! How jobs are tried again: what they state, what is stated of their type, and what a worker asks for.

use serde_json::{Value, json};

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;

async fn job(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/v1/jobs/t/{id}")).await.body
}

/// How long a job waits after its latest event, in ms.
fn wait_ms(job: &Value) -> i64 {
    (job["not_before_us"].as_i64().unwrap() - job["changed_us"].as_i64().unwrap()) / 1_000
}

#[tokio::test]
async fn what_a_job_states_comes_before_its_type_and_that_before_the_settings() {
    let server = TestServer::start_with("[jobs]\nmax_attempts = 9\n").await;
    let terms = json!({ "max_attempts": 4, "backoff": { "list_ms": [70_000, 80_000] }, "jitter": false, "timeout_ms": 60_000 });
    let put = server.put("/v1/types/t", &terms).await;
    assert_eq!(
        (put.status, &put.body["terms"], &put.body["type"]),
        (200, &terms, &json!("t")),
        "{}",
        put.body
    );
    assert_eq!(server.get("/v1/types/t").await.body["terms"], terms);
    assert_eq!(server.get("/v1/type_terms").await.body["types"][0]["type"], "t");
    let worker = ExternalWorker::register(&server, "t", 9).await;
    let own = json!({ "exponential": { "first_ms": 5_000, "factor": 3.0, "most_ms": 9_000 } });
    for (id, stated) in [
        ("typical", json!({})),
        ("own", json!({ "max_attempts": 2, "backoff": own, "timeout_ms": 1_000_000 })),
        ("endless", json!({ "max_attempts": 0, "backoff": { "fixed_ms": 3_000 } })),
    ] {
        let mut body = stated;
        body["id"] = json!(id);
        assert_eq!(server.post("/v1/jobs/t", &body).await.status, 201);
    }
    for (id, attempts, timeout_ms, wait) in [
        ("typical", json!(4), 60_000, 70_000),
        ("own", json!(2), 1_000_000, 5_000),
        ("endless", Value::Null, 60_000, 3_000),
    ] {
        let accepted = worker.take(0).await;
        assert_eq!(accepted["id"], id);
        assert_eq!((&accepted["max_attempts"], &accepted["timeout_ms"]), (&attempts, &json!(timeout_ms)));
        let fail = json!({ "claim": accepted["claim"], "reason": "ouch" });
        assert_eq!(worker.call(&format!("jobs/{id}/fail"), fail).await.status, 200);
        let crashed = job(&server, id).await;
        assert_eq!((&crashed["state"], &crashed["max_attempts"]), (&json!("crashing"), &attempts));
        assert_eq!(wait_ms(&crashed), wait, "{crashed}");
    }
    let why = server.get("/v1/jobs/t/own/why").await.body;
    assert!(why["sentence"].as_str().unwrap().contains("1 of 2 attempts are left"), "{why}");
    assert_eq!(job(&server, "own").await["backoff"], own);
    let why = server.get("/v1/jobs/t/endless/why").await.body;
    assert!(why["sentence"].as_str().unwrap().contains("without limit"), "{why}");
    // Nothing is stated of the type any more: the settings hold, from the next start on.
    assert_eq!(server.delete("/v1/types/t").await.body, json!({ "removed": true }));
    assert_eq!(server.delete("/v1/types/t").await.body, json!({ "removed": false }));
    assert_eq!(job(&server, "typical").await["max_attempts"], 9);
    server.post_empty("/v1/jobs/t/typical/retry").await;
    let accepted = worker.take(3).await;
    assert_eq!((&accepted["max_attempts"], &accepted["timeout_ms"]), (&json!(9), &Value::Null), "{accepted}");
}

#[tokio::test]
async fn a_worker_says_when_a_job_is_tried_again_or_puts_it_off() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 9).await;
    for id in ["a", "b", "c", "d"] {
        let body = json!({ "id": id, "max_attempts": 3, "max_snoozes": 1 });
        assert_eq!(server.post("/v1/jobs/t", &body).await.status, 201);
    }
    let claims: Vec<Value> = worker.accept(0, 9).await.iter().map(|job| job["claim"].clone()).collect();
    let until_us = job(&server, "c").await["started_us"].as_i64().unwrap() + 3_600_000_000;
    let end = json!({
        "fail": [{ "id": "a", "claim": claims[0], "reason": "429", "retry_after_ms": 40_000 }],
        "snooze": [
            { "id": "b", "claim": claims[1], "for_ms": 50_000 },
            { "id": "c", "claim": claims[2], "until_us": until_us },
        ],
    });
    let ended = worker.call("end", end.clone()).await;
    let states = ["crashing", "delayed", "delayed"].map(|state| json!(state));
    let told: Vec<Value> =
        ended.body["ended"].as_array().unwrap().iter().map(|end| end["state"].clone()).collect();
    assert_eq!(told, states, "{}", ended.body);
    assert_eq!(wait_ms(&job(&server, "a").await), 40_000);
    let snoozed = job(&server, "b").await;
    assert_eq!(
        (wait_ms(&snoozed), &snoozed["attempts"], &snoozed["snoozes"]),
        (50_000, &json!(0), &json!(1))
    );
    assert_eq!(snoozed["history"][0]["type"], "snoozed");
    assert_eq!(job(&server, "c").await["not_before_us"], until_us);
    let why = server.get("/v1/jobs/t/b/why").await.body;
    assert!(why["sentence"].as_str().unwrap().contains("put it off, 1 time so far"), "{why}");
    // Repeated, as after a lost answer.
    assert_eq!(worker.call("end", end).await.body, ended.body);
    assert_eq!(job(&server, "b").await["snoozes"], 1);
    // Once more than it may.
    server.post_empty("/v1/jobs/t/b/retry").await;
    let claim = worker.take(4).await["claim"].clone();
    let snooze = worker.call("jobs/b/snooze", json!({ "claim": claim, "for_ms": 1 })).await;
    assert_eq!(snooze.body, json!({ "state": "failed" }));
    assert_eq!(job(&server, "b").await["reason"], "it was put off more often than its max_snoozes, 1");
    for wrong in [json!({ "for_ms": u64::MAX }), json!({ "until_us": -1 })] {
        let mut body = wrong;
        body["claim"] = claims[3].clone();
        let refused = worker.call("jobs/d/snooze", body).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    assert_eq!(job(&server, "d").await["state"], "running");
}

#[tokio::test]
async fn wrong_terms_are_refused_with_their_bounds() {
    let server = TestServer::start().await;
    for (terms, problem) in [
        (json!({ "max_attempts": 1_000_001 }), "max_attempts: must be from 0 to 1000000"),
        (json!({ "backoff": { "list_ms": [] } }), "backoff: has 0 waits; 1 to 30 are allowed"),
        (json!({ "backoff": { "list_ms": [31_536_000_001_u64] } }), "from 0 ms to a year"),
        (
            json!({ "backoff": { "exponential": { "first_ms": 1, "factor": 0.5, "most_ms": 9 } } }),
            "factor must be from 1 to 100",
        ),
        (json!({ "backoff": { "fixed_ms": u64::MAX } }), "from 0 ms to a year"),
        (json!({ "timeout_ms": 0 }), "timeout_ms: must be from 1"),
    ] {
        for refused in [server.post("/v1/jobs/t", &terms).await, server.put("/v1/types/t", &terms).await] {
            let reason = refused.body["reason"].as_str().unwrap_or_default();
            assert!(refused.status == 400 && reason.contains(problem), "{terms}: {}", refused.body);
        }
    }
    for terms in [json!({ "backoff": {} }), json!({ "backoff": 5 }), json!({ "on_lost": "x" })] {
        assert_eq!(server.post("/v1/jobs/t", &terms).await.status, 400, "{terms}");
    }
    assert_eq!(server.get("/v1/type_terms").await.body, json!({ "types": [] }));
}

#[tokio::test]
async fn the_terms_of_a_task_come_before_those_of_its_type_and_workers_may_declare_them() {
    let server = TestServer::start().await;
    let terms =
        json!({ "max_attempts": 4, "timeout_ms": 60_000, "tasks": { "send": { "max_attempts": 2 } } });
    let put = server.put("/v1/types/t", &terms).await;
    assert_eq!((put.status, &put.body["terms"]), (200, &terms), "{}", put.body);
    for (id, task) in [("plain", None), ("sent", Some("send")), ("resized", Some("resize"))] {
        let body = json!({ "id": id, "task": task });
        let body = if task.is_some() { body } else { json!({ "id": id }) };
        assert_eq!(server.post("/v1/jobs/t", &body).await.status, 201);
    }
    let attempts = async |id: &str| job(&server, id).await["max_attempts"].clone();
    assert_eq!([attempts("plain").await, attempts("sent").await, attempts("resized").await], [4, 2, 4]);

    // A worker that is deployed with other terms replaces those of earlier workers, and not what an operator has stated.
    let register = async |terms: Value| {
        let body =
            json!({ "slots": 1, "name": "w", "tasks": ["send", "resize", "crop"], "task_terms": terms });
        let registered = server.post("/v1/workers/t", &body).await;
        assert_eq!(registered.status, 201, "{}", registered.body);
        registered.body["worker"].as_str().unwrap().to_owned()
    };
    let crop = json!({ "max_attempts": 6 });
    let old =
        register(json!({ "send": { "max_attempts": 7 }, "resize": { "max_attempts": 1 }, "crop": crop }))
            .await;
    assert_eq!([attempts("plain").await, attempts("sent").await, attempts("resized").await], [4, 2, 1]);
    let new =
        register(json!({ "send": { "max_attempts": 2 }, "resize": { "max_attempts": 5 }, "crop": crop }))
            .await;
    assert_eq!([attempts("plain").await, attempts("sent").await, attempts("resized").await], [4, 2, 5]);
    let stated = server.get("/v1/types/t").await.body;
    let of_tasks = json!({ "crop": crop, "resize": { "max_attempts": 5 }, "send": { "max_attempts": 2 } });
    assert_eq!((&stated["terms"]["tasks"], &stated["terms"]["timeout_ms"]), (&of_tasks, &json!(60_000)));
    let declared = &stated["declared"];
    assert_eq!((&declared["resize"]["worker"], &declared["crop"]["worker"]), (&json!(new), &json!(old)));
    assert!(declared.get("send").is_none(), "{declared}");
    let workers = server.get("/v1/workers?type=t").await.body;
    let other = |id: &str| {
        let all = workers["workers"].as_array().unwrap();
        all.iter().find(|worker| worker["id"] == id).unwrap().get("other_terms").cloned()
    };
    assert_eq!((other(&old), other(&new)), (Some(json!(["resize", "send"])), None));
    let page = server.request("GET", "/ui/workers").send().await.unwrap().text().await.unwrap();
    assert!(page.contains("States other terms than those that hold for "), "{page}");
    // Stated again with a change elsewhere, it is still what that worker has declared.
    let mut again = stated["terms"].clone();
    again["timeout_ms"] = json!(70_000);
    assert_eq!(server.put("/v1/types/t", &again).await.body["declared"], *declared);

    for (body, at) in [
        (json!({ "slots": 1, "task_terms": { "send": {} } }), "task_terms"),
        (json!({ "slots": 1, "tasks": ["a"], "task_terms": { "b": {} } }), "task_terms"),
        (
            json!({ "slots": 1, "tasks": ["a"], "task_terms": { "a": { "max_attempts": 1_000_001 } } }),
            "task_terms.a.max_attempts",
        ),
        (json!({ "slots": 1, "tasks": ["a"], "task_terms": { "a": { "secrets": ["/x"] } } }), "secrets"),
    ] {
        let refused = server.post("/v1/workers/t", &body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.body["reason"].as_str().unwrap().contains(at), "{}", refused.body);
    }
    let wrong = json!({ "tasks": { "a": { "start_within_ms": 0 } } });
    let refused = server.put("/v1/types/t", &wrong).await;
    assert!(
        refused.body["reason"].as_str().unwrap().contains("tasks.a.start_within_ms: must be"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn a_job_that_does_not_start_in_time_fails_and_says_so() {
    let server = TestServer::start().await;
    assert_eq!(
        server.post("/v1/jobs/t", &json!({ "id": "a", "start_within_ms": 1_500, "keep_ms": 0 })).await.status,
        201
    );
    let added = job(&server, "a").await;
    let within = added["expires_us"].as_i64().unwrap() - added["added_us"].as_i64().unwrap();
    assert_eq!((within, added.get("removed_us")), (1_500_000, None), "{added}");
    let failed = server
        .post("/v1/jobs/t", &json!({ "id": "b", "start_within_ms": 1_000, "keep_ms": 3_600_000 }))
        .await;
    assert_eq!(failed.status, 201);
    let ended = server.poll("/v1/jobs/t/b", |b| b["state"] == "failed").await;
    assert_eq!(ended["history"][0]["type"], "expired");
    assert_eq!(ended["reason"], "expired: it did not start in time");
    let kept = ended["removed_us"].as_i64().unwrap() - ended["changed_us"].as_i64().unwrap();
    assert_eq!((kept, ended.get("expires_us")), (3_600_000_000, None));
    let why = server.get("/v1/jobs/t/b/why").await.body;
    assert!(why["sentence"].as_str().unwrap().contains("it did not start in time"), "{why}");
    // The other one is not kept at all.
    server.poll("/v1/jobs/t/a", |a| a["error"] == "not_found").await;
}
