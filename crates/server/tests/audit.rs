//! The audit log, and limits of requests.

use serde_json::{Value, json};

use crate::common::TestServer;

#[tokio::test]
async fn changes_leave_a_line_and_are_refused_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logs/audit.jsonl");
    std::fs::create_dir(folder.path().join("logs")).unwrap();
    let server = TestServer::start_with(&format!("[audit]\nfile = {}\n", file.display())).await;
    let admin = server.close().await;
    let client = server.with(&admin).token(&["client:acme"]).await;
    let (admin, client) = (server.with(&admin), server.with(&client));
    let add = json!({"id": "a", "options": {"password": "hunter2-audit"}});
    assert_eq!(client.post("/v1/jobs/t", &add).await.status, 201);
    assert_eq!(client.get("/v1/jobs/t/a").await.status, 200);
    assert_eq!(client.put("/v1/filters/f", &json!({"action": "pause"})).await.status, 403);
    assert_eq!(server.post("/v1/jobs/t?x=hunter2-audit", &add).await.status, 401);
    assert_eq!(admin.put("/_node/_local/_config/jobs/retention", &json!("3600")).await.status, 200);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    let lines: Vec<Value> = text
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let told: Vec<(String, &str, u64)> = lines
        .iter()
        .map(|line| {
            let who = line["who"].as_str().map_or("nobody", |who| who.split(':').next().unwrap());
            let what = format!("{} {}", line["method"].as_str().unwrap(), line["path"].as_str().unwrap());
            (what, who, line["status"].as_u64().unwrap())
        })
        .collect();
    let told: Vec<(&str, &str, u64)> =
        told.iter().map(|(what, who, status)| (&**what, *who, *status)).collect();
    assert_eq!(
        told,
        [
            ("POST /v1/tokens", "nobody", 201),
            ("POST /v1/tokens", "token", 201),
            ("POST /v1/jobs/t", "token", 201),
            ("PUT /v1/filters/f", "token", 403),
            ("POST /v1/jobs/t", "nobody", 401),
            ("PUT /_node/_local/_config/jobs/retention", "token", 200),
        ]
    );
    assert_eq!((&lines[0]["address"], lines[0]["at"].as_str().unwrap().len()), (&json!("127.0.0.1"), 20));
    // Strangers cannot fill the disk.
    for _ in 0..50 {
        assert_eq!(server.post("/v1/jobs/t", &add).await.status, 401);
    }
    let strangers = || std::fs::read_to_string(&file).unwrap().matches("\"status\":401").count();
    assert!(strangers() < 20, "{} lines of 51 requests", strangers());
    // The disk is gone.
    std::fs::rename(folder.path().join("logs"), folder.path().join("gone")).unwrap();
    server.server.reload(turnwise_server::Config::default());
    let refused = client.post("/v1/jobs/t", &json!({"id": "b"})).await;
    assert_eq!(refused.error(), (503, "service_unavailable"), "{}", refused.body);
    assert_eq!(client.get("/v1/jobs/t/b").await.status, 404);
    std::fs::rename(folder.path().join("gone"), folder.path().join("logs")).unwrap();
    assert_eq!(client.post("/v1/jobs/t", &json!({"id": "b"})).await.status, 201);
}

#[tokio::test]
async fn an_identity_sends_no_more_requests_than_it_may() {
    let server = TestServer::start_with("[limits]\nrequests_per_second = 5\n").await;
    let admin = server.close().await;
    let tokens =
        [server.with(&admin).token(&["client:a"]).await, server.with(&admin).token(&["client:b"]).await];
    let (one, other) = (server.with(&tokens[0]), server.with(&tokens[1]));
    let mut refused = None;
    for _ in 0..20 {
        let answer = one.get("/v1/jobs").await;
        if answer.status != 200 {
            refused = Some(answer);
        }
    }
    let refused = refused.unwrap();
    assert_eq!(refused.error(), (429, "too_many_requests"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(other.get("/v1/jobs").await.status, 200);
    for _ in 0..20 {
        assert_eq!(server.with(&admin).get("/v1/jobs").await.status, 200, "operators are not limited");
    }
}
