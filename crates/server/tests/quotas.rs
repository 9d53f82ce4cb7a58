//! `[limits] waiting_jobs` and `[limits] workers`.

use serde_json::json;

use crate::common::{TestServer, until};

#[tokio::test]
async fn a_tenant_has_no_more_waiting_jobs_than_it_may() {
    let server = TestServer::start_with("[limits]\nwaiting_jobs = 3\n").await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let tokens = [admin.token(&["client:acme,small"]).await, admin.token(&["worker:t"]).await];
    let [client, worker] = [0, 1].map(|n| server.with(&tokens[n]));
    let add = async |tenant: &str| client.post("/v1/jobs/t", &json!({"tenant": tenant})).await;
    for n in 0..2 {
        assert_eq!(add("acme").await.status, 201, "{n}");
    }
    // All of a request, or none of it.
    let two = json!({"jobs": [{"type": "t", "tenant": "acme"}, {"type": "t", "tenant": "acme"}]});
    assert_eq!(client.post("/v1/jobs", &two).await.error(), (429, "too_many_requests"));
    assert_eq!(add("acme").await.status, 201);
    let refused = add("acme").await;
    assert_eq!(refused.error(), (429, "too_many_requests"));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    let reason = refused.body["reason"].as_str().unwrap();
    assert_eq!(reason, "tenant `acme` may have 3 waiting jobs of type `t`, and has 3");
    // Those for later, or after others, wait as well.
    let later = client.post("/v1/jobs/t", &json!({"tenant": "acme", "delay_ms": 60_000})).await;
    assert_eq!(later.error(), (429, "too_many_requests"));
    // Of another tenant, of another type, and of operators.
    assert_eq!(add("small").await.status, 201);
    assert_eq!(client.post("/v1/jobs/u", &json!({"tenant": "acme"})).await.status, 201);
    assert_eq!(admin.post("/v1/jobs/t", &json!({"tenant": "acme"})).await.status, 201);
    // What runs does not wait.
    let registered = worker.post("/v1/workers/t", &json!({"slots": 10})).await.body;
    let accept = format!("/v1/workers/t/{}/accept", registered["worker"].as_str().unwrap());
    let accepted = worker.post(&accept, &json!({"received": 0, "limit": 10, "wait_ms": 1000})).await.body;
    assert_eq!(accepted["jobs"].as_array().unwrap().len(), 5);
    until("there is room again", async || add("acme").await.status, |status| *status == 201).await;
}

#[tokio::test]
async fn a_repeated_request_is_not_refused_and_crashing_jobs_do_not_count() {
    let server = TestServer::start_with("[limits]\nwaiting_jobs = 2\n").await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let tokens = [admin.token(&["client:acme,beta"]).await, admin.token(&["worker:t"]).await];
    let [client, worker] = [0, 1].map(|n| server.with(&tokens[n]));
    let job = |id: &str, more: serde_json::Value| {
        let mut job = json!({"type": "t", "id": id, "tenant": "acme"});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let keep = |id: &str| job(id, json!({}));
    let batch = json!({ "jobs": [keep("a"), keep("b")] });
    assert_eq!(client.post("/v1/jobs", &batch).await.status, 200);
    // All that may wait do. What exists is not added, in a batch or alone, and no id counts twice.
    let again = client.post("/v1/jobs", &batch).await;
    assert_eq!((again.status, &again.body["jobs"][1]["added"]), (200, &json!("exists")), "{}", again.body);
    let alone = client.post("/v1/jobs/t", &json!({"id": "a", "tenant": "acme"})).await;
    assert_eq!((alone.status, &alone.body["added"]), (200, &json!("exists")));
    let waits = client.post("/v1/jobs/t", &json!({"id": "a", "tenant": "acme", "if_exists": "again"})).await;
    assert_eq!((waits.status, &waits.body["added"]), (200, &json!("already_waiting")), "{}", waits.body);
    // One new job is one too many, and then none of the request is added.
    let more = json!({ "jobs": [keep("a"), keep("c"), keep("c")] });
    assert_eq!(client.post("/v1/jobs", &more).await.error(), (429, "too_many_requests"));
    assert_eq!(client.get("/v1/jobs/t/c").await.status, 404);

    // Both crash: they wait for their next attempt, and two more may be added.
    let registered = worker.post("/v1/workers/t", &json!({"slots": 2})).await.body;
    let path = format!("/v1/workers/t/{}", registered["worker"].as_str().unwrap());
    let accept = json!({"received": 0, "limit": 2, "wait_ms": 10_000});
    let accepted = worker.post(&format!("{path}/accept"), &accept).await.body;
    for run in accepted["jobs"].as_array().unwrap() {
        let fail = format!("{path}/jobs/{}/fail", run["id"].as_str().unwrap());
        let failed =
            worker.post(&fail, &json!({"claim": run["claim"], "reason": "no route", "retry": true})).await;
        assert_eq!(failed.status, 200, "{}", failed.body);
    }
    assert_eq!(client.get("/v1/jobs/t/a").await.body["state"], "crashing");
    let next = json!({ "jobs": [keep("c"), keep("d"), keep("c")] });
    assert_eq!(client.post("/v1/jobs", &next).await.status, 200);
    assert_eq!(
        client.post("/v1/jobs", &json!({ "jobs": [keep("e")] })).await.error(),
        (429, "too_many_requests")
    );
    assert_eq!(client.post("/v1/jobs", &json!({ "jobs": [keep("a"), keep("c")] })).await.status, 200);

    // A job that has ended and runs again is one more, of the tenant that it keeps.
    assert_eq!(client.post("/v1/jobs/t/a/cancel", &json!({})).await.status, 200);
    let again = json!({"jobs": [{"type": "t", "id": "a", "if_exists": "again"}]});
    let refused = client.post("/v1/jobs", &again).await;
    assert_eq!(refused.error(), (429, "too_many_requests"));
    let reason = refused.body["reason"].as_str().unwrap();
    assert_eq!(reason, "tenant `acme` may have 2 waiting jobs of type `t`, and has 2");
    // An identity that may not read it learns neither the tenant nor its number of jobs.
    let other = admin.token(&["client:gamma"]).await;
    let refused = server.with(&other).post("/v1/jobs", &again).await;
    assert_eq!(refused.error(), (409, "conflict"), "{}", refused.body);
    assert!(!refused.body.to_string().contains("acme"), "{}", refused.body);
    assert_eq!(client.post("/v1/jobs/t/c/cancel", &json!({})).await.status, 200);
    assert_eq!(client.post("/v1/jobs", &again).await.status, 200);
}

#[tokio::test]
async fn a_limit_counts_what_other_nodes_and_earlier_servers_have_added() {
    let server = TestServer::start_with("[limits]\nwaiting_jobs = 2500\n").await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["client:acme"]).await;
    let client = server.with(&token);
    let jobs: Vec<_> =
        (0..1_000).map(|n| json!({"type": "t", "id": n.to_string(), "tenant": "acme"})).collect();
    let batch = |from: usize| {
        let jobs: Vec<_> = (from..from + 500).map(|n| json!({"type": "t", "id": n.to_string()})).collect();
        json!({ "jobs": jobs })
    };
    // More than one page of rows, which an operator has added.
    assert_eq!(admin.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    for from in [1_000, 1_500, 2_000] {
        assert_eq!(client.post("/v1/jobs", &batch(from)).await.status, 200, "{from}");
    }
    assert_eq!(client.post("/v1/jobs", &batch(2_500)).await.error(), (429, "too_many_requests"));
    let one = client.post("/v1/jobs/t", &json!({})).await;
    assert_eq!(one.error(), (429, "too_many_requests"));
}

#[tokio::test]
async fn an_identity_registers_no_more_workers_than_it_may() {
    let server = TestServer::start_with("[limits]\nworkers = 2\n").await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let tokens = [admin.token(&["worker:t,u"]).await, admin.token(&["worker:t"]).await];
    let [one, other] = [0, 1].map(|n| server.with(&tokens[n]));
    let slots = json!({"slots": 1});
    let mut first = None;
    for _ in 0..2 {
        let registered = one.post("/v1/workers/t", &slots).await;
        assert_eq!(registered.status, 201);
        first = registered.body["worker"].as_str().map(str::to_owned);
    }
    let refused = one.post("/v1/workers/t", &slots).await;
    assert_eq!(refused.error(), (429, "too_many_requests"));
    assert_eq!(one.post("/v1/workers/u", &slots).await.status, 201, "another type");
    let registered = other.post("/v1/workers/t", &slots).await;
    assert_eq!(registered.status, 201, "another identity");
    for _ in 0..3 {
        assert_eq!(admin.post("/v1/workers/t", &slots).await.status, 201, "an operator");
    }
    // A worker that has left makes room.
    let left = one.post(&format!("/v1/workers/t/{}/leave", first.unwrap()), &json!({})).await;
    assert_eq!(left.status, 200, "{}", left.body);
    assert_eq!(one.post("/v1/workers/t", &slots).await.status, 201);
}
