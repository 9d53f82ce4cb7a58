//! `GET /v1/types/{type}/demand`: what counts as runnable, and how many slots that takes.

use serde_json::{Value, json};

use crate::common::TestServer;

/// Adds jobs of type `t` with these further fields.
async fn add(server: &TestServer, prefix: &str, count: usize, fields: &Value) {
    let jobs: Vec<Value> = (0..count)
        .map(|n| {
            let mut job = json!({ "type": "t", "id": format!("{prefix}{n}") });
            let fields = fields.as_object().unwrap().clone();
            job.as_object_mut().unwrap().extend(fields);
            job
        })
        .collect();
    let answer = server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

async fn demand(server: &TestServer, query: &str) -> Value {
    let answer = server.get(&format!("/v1/types/t/demand{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn a_type_without_jobs_needs_nothing_and_has_all_numbers() {
    let server = TestServer::start().await;
    let demand = demand(&server, "").await;
    let numbers = [
        "runnable",
        "oldest_age_us",
        "expected_run_us",
        "running",
        "workers",
        "slots",
        "needed_slots",
        "wanted_slots",
    ];
    for name in numbers {
        assert!(demand[name].is_u64(), "{name}: {demand}");
    }
    assert_eq!((&demand["wanted_slots"], &demand["active"]), (&json!(0), &json!(false)));
    assert_eq!(server.get("/v1/types/t/demand?drain_target_ms=999").await.error(), (400, "bad_request"));
    assert_eq!(server.get("/v1/types/t/demand?drain=1").await.error(), (400, "bad_request"));
}

#[tokio::test]
async fn pending_jobs_need_slots_by_their_run_time_and_tenants_are_told_apart() {
    let server = TestServer::start().await;
    add(&server, "a", 300, &json!({ "tenant": "a" })).await;
    add(&server, "b", 100, &json!({ "tenant": "b" })).await;
    // Nothing is known of them: a second each.
    let demand = demand(&server, "?drain_target_ms=10000").await;
    assert_eq!(demand["runnable"], 400);
    assert_eq!((&demand["needed_slots"], &demand["wanted_slots"]), (&json!(40), &json!(40)), "{demand}");
    assert_eq!(demand["expected_run_us"], 1_000_000);
    assert!(demand["oldest_age_us"].as_u64().unwrap() > 0);
    let tenants = demand["tenants"].as_array().unwrap();
    assert_eq!((&tenants[0]["tenant"], &tenants[0]["needed_slots"]), (&json!("a"), &json!(30)));
    assert_eq!((&tenants[1]["tenant"], &tenants[1]["runnable"]), (&json!("b"), &json!(100)));
}

#[tokio::test]
async fn jobs_that_cannot_run_need_no_slots() {
    let server = TestServer::start().await;
    add(&server, "later", 50, &json!({ "delay_ms": 3_600_000 })).await;
    add(&server, "after", 10, &json!({ "after": [{ "type": "t", "id": "later0" }] })).await;
    assert_eq!(demand(&server, "").await["runnable"], 0);
    // One lock for all: one of them could run.
    add(&server, "locked", 40, &json!({ "tenant": "l", "locks": { "node": { "exclusive": ["n1"] } } })).await;
    let locked = demand(&server, "").await;
    assert_eq!(locked["runnable"], 1, "{locked}");
    // No worker has seen these yet, so they are still pending.
    add(&server, "limited", 30, &json!({ "tenant": "r", "reason": ["concurrency:2:x"] })).await;
    add(&server, "paused", 20, &json!({ "tenant": "p" })).await;
    let filter = json!({ "when": "tenant = p", "action": "pause" });
    let answer = server.put("/v1/filters/p", &filter).await;
    assert!((200..300).contains(&answer.status), "{}", answer.body);
    let held = demand(&server, "").await;
    assert_eq!(held["runnable"].as_u64().unwrap(), 3, "{held}");
    assert!(held["needed_slots"].as_u64().unwrap() <= 3, "{held}");
    let paused = held["tenants"].as_array().unwrap().iter().find(|tenant| tenant["tenant"] == "p");
    assert!(paused.is_none_or(|paused| paused["runnable"] == 0), "{held}");
}

#[tokio::test]
async fn what_the_next_pass_returns_to_the_queue_counts_without_any_worker() {
    let server = TestServer::start().await;
    add(&server, "due", 7, &json!({ "delay_ms": 50 })).await;
    server.poll("/v1/types/t/demand", |demand| demand["runnable"] == 7).await;
}

#[tokio::test]
async fn running_jobs_keep_their_slots() {
    let server = TestServer::start().await;
    add(&server, "a", 3, &json!({})).await;
    let worker = server.post("/v1/workers/t", &json!({ "slots": 3 })).await.body;
    let path = format!("/v1/workers/t/{}/accept", worker["worker"].as_str().unwrap());
    let accepted = server.post(&path, &json!({ "received": 0, "limit": 3, "wait_ms": 1_000 })).await.body;
    assert_eq!(accepted["jobs"].as_array().unwrap().len(), 3, "{accepted}");
    let demand = demand(&server, "").await;
    let of = ["runnable", "running", "workers", "slots", "needed_slots", "wanted_slots"]
        .map(|name| demand[name].as_u64());
    assert_eq!(of, [0, 3, 1, 3, 3, 3].map(Some), "{demand}");
}

#[tokio::test]
async fn until_a_run_has_ended_jobs_are_expected_to_run_as_long_as_those_that_run() {
    let server = TestServer::start().await;
    add(&server, "a", 12, &json!({})).await;
    let worker = server.post("/v1/workers/t", &json!({ "slots": 2 })).await.body;
    let path = format!("/v1/workers/t/{}/accept", worker["worker"].as_str().unwrap());
    server.post(&path, &json!({ "received": 0, "limit": 2, "wait_ms": 1_000 })).await;
    // The shortest target: then each waiting job takes a slot of its own.
    server.poll("/v1/types/t/demand?drain_target_ms=1000", |demand| demand["needed_slots"] == 12).await;
    server.poll("/v1/types/t/demand", |demand| demand["expected_run_us"].as_u64() > Some(1_000_000)).await;
}
