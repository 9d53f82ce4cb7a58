//! `[limits] waiting_jobs` and `[limits] workers`.

use serde_json::json;

use crate::common::TestServer;

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
    while add("acme").await.status != 201 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
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
