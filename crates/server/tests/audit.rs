//! The audit log, and limits of requests.

use serde_json::{Value, json};

use crate::common::{As, TestServer};

#[tokio::test]
async fn changes_leave_a_line_and_are_refused_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logs/audit.jsonl");
    std::fs::create_dir(folder.path().join("logs")).unwrap();
    let server = TestServer::start_with(&format!("[audit]\nfile = {}\n", file.display())).await;
    let admin = server.close().await;
    let client = server.with(&admin).token(&["client:acme"]).await;
    let (admin, client) = (server.with(&admin), server.with(&client));
    admin.hide("t", &["/password"]).await;
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
            ("PUT /v1/types/t", "token", 200),
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

/// A login says who, through the API and through the page; and a proxy with TLS keeps its cookie from other connections.
#[tokio::test]
async fn logins_say_who_and_their_cookie_is_secure_behind_https() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let settings = format!("[audit]\nfile = {}\n", file.display());
    let server = TestServer::start_advertised("https://turnwise.example", &settings).await;
    let admin = server.close().await;
    let jan = json!({"name": "jan", "password": "a password", "scopes": ["operator"]});
    assert_eq!(server.with(&admin).post("/v1/users", &jan).await.status, 201);
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let log_in = async |path: &str, password: &str| {
        let form = client.post(format!("{}{path}", server.url)).header("origin", &server.url);
        let form = form.header("content-type", "application/x-www-form-urlencoded");
        form.body(format!("name=jan&password={password}")).send().await.unwrap()
    };
    let through_api = log_in("/_session", "a+password").await;
    let through_page = log_in("/ui/login", "a+password").await;
    let wrong = log_in("/ui/login", "another").await;
    assert_eq!(
        [through_api.status(), through_page.status(), wrong.status()].map(|it| it.as_u16()),
        [200, 303, 401]
    );
    for login in [&through_api, &through_page] {
        let cookie = login.headers()["set-cookie"].to_str().unwrap();
        assert!(cookie.ends_with("; Secure"), "{cookie}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let lines = text.lines().filter(|line| line.contains("/_session") || line.contains("/ui/login"));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = lines.iter().map(|line| (line["who"].clone(), line["status"].clone()));
    let expected =
        [(json!("user:jan"), json!(200)), (json!("user:jan"), json!(303)), (Value::Null, json!(401))];
    assert_eq!(told.collect::<Vec<_>>(), expected);
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

/// A worker is alive as long as it pings, whatever another program of its identity sends.
#[tokio::test]
async fn heartbeats_and_ends_of_workers_are_not_refused_for_other_requests_of_their_identity() {
    let server = TestServer::start_with("[limits]\nrequests_per_second = 5\n").await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let tokens = [admin.token(&["worker:t", "client:a"]).await, admin.token(&["worker:t"]).await];
    let [one, other] = [0, 1].map(|n| server.with(&tokens[n]));
    for id in ["done", "again"] {
        assert_eq!(admin.post("/v1/jobs/t", &json!({"id": id, "tenant": "a"})).await.status, 201);
    }
    let registered = one.post("/v1/workers/t", &json!({"slots": 2})).await.body;
    let path = format!("/v1/workers/t/{}", registered["worker"].as_str().unwrap());
    let ping = format!("{path}/ping");
    let used_up = async || while one.get("/v1/jobs").await.status == 200 {};
    used_up().await;
    // Not even a first ping at a node that does not know the worker. Then the worker's other requests.
    assert_eq!(one.post(&ping, &json!({})).await.status, 200);
    let accept = json!({"received": 0, "limit": 2, "wait_ms": 10_000});
    let accepted = one.post(&format!("{path}/accept"), &accept).await;
    let runs = accepted.body["jobs"].as_array().unwrap().clone();
    assert_eq!(runs.len(), 2, "{}", accepted.body);
    used_up().await;
    for (run, end) in runs.iter().zip(["finish", "release"]) {
        let run_path = format!("{path}/jobs/{}", run["id"].as_str().unwrap());
        let update = json!({"claim": run["claim"], "info": {}});
        assert_eq!(one.post(&format!("{run_path}/update"), &update).await.status, 200);
        assert_eq!(one.post(&format!("{run_path}/{end}"), &json!({"claim": run["claim"]})).await.status, 200);
    }
    // These have bounds of their own, and those of ends are not those of heartbeats.
    refused_at_last(&one, &format!("{path}/end"), &json!({"ends": []})).await;
    assert_eq!(one.post(&ping, &json!({})).await.status, 200);
    refused_at_last(&one, &ping, &json!({})).await;
    // No worker's name makes a request free: those of others, of no type of the identity, and that cannot exist.
    for path in [ping.as_str(), "/v1/workers/u/0000/ping", "/v1/workers/t/none/ping"] {
        refused_at_last(&other, path, &json!({})).await;
    }
}

/// Sends a request until it is refused as one too many.
async fn refused_at_last(server: &As<'_>, path: &str, body: &Value) {
    for _ in 0..100 {
        let answers = futures::future::join_all((0..100).map(|_| server.post(path, body))).await;
        if let Some(refused) = answers.iter().find(|answer| answer.status == 429) {
            assert_eq!(refused.error(), (429, "too_many_requests"));
            return;
        }
    }
    panic!("{path} is never refused");
}
