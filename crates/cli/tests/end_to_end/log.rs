//! The log as JSON, and levels that change while the server runs.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Home, Server};

const LEVEL: &str = "/_node/_local/_config/log/level";

/// The lines of the log; each of them must be JSON.
fn lines(home: &Home) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    home.log().lines().map(line).collect()
}

/// Runs a command that fails, and returns the line about its end.
async fn failed(home: &Home, server: &Server, id: &str) -> Value {
    let job = json!({"id": id, "tenant": "acme", "max_attempts": 1, "options": {"argv": ["false"]}});
    server.post("/v1/jobs/command", &job).await;
    server.until(&format!("/v1/jobs/command/{id}"), |job| job["state"] == "failed").await;
    home.until_logged("failed with its last attempt", 1).await;
    let lines = lines(home);
    let is_end =
        |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with("failed with its last"));
    lines.iter().rfind(is_end).unwrap().clone()
}

#[tokio::test]
async fn lines_of_json_name_job_tenant_and_worker_and_the_level_changes_at_run_time() {
    let home =
        Home::new("[command]\nenabled = true\nallow_root = true\n[log]\nlevel = info\nformat = json\n");
    let server = home.serve().await;
    let line = failed(&home, &server, "one").await;
    let worker = server.get("/v1/workers").await;
    let expected =
        worker["workers"].as_array().unwrap().iter().find(|worker| worker["type"] == "command").unwrap();
    assert_eq!(
        (&line["job"], &line["tenant"], &line["job_type"], &line["worker"], &line["level"]),
        (&json!("one"), &json!("acme"), &json!("command"), &expected["id"], &json!("WARN")),
        "{line}"
    );
    // `[log] level` has replaced the level of the command line.
    let debug = |line: &Value| line["level"] == "DEBUG";
    assert!(!lines(&home).iter().any(debug));

    server.put(LEVEL, &"debug".into()).await;
    home.until_logged("[log] level is debug now, and was info", 1).await;
    server.get("/v1/jobs/command/one").await;
    home.until_logged(r#""level":"DEBUG""#, 1).await;
    for (wrong, problem) in [("dbug", "`dbug` is not a level"), ("turnwise", "`turnwise` is not a level")] {
        let (status, body) = server.request(Method::PUT, LEVEL, Some(&wrong.into())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(body["reason"].as_str().is_some_and(|reason| reason.contains(problem)), "{body}");
    }

    let (status, _) = server.request(Method::DELETE, LEVEL, None).await;
    assert!(status.is_success());
    home.until_logged("[log] level is info now, and was debug", 1).await;
    let before = lines(&home).iter().filter(|line| debug(line)).count();
    server.get("/v1/jobs/command/one").await;
    assert_eq!(lines(&home).iter().filter(|line| debug(line)).count(), before);
    assert!(server.terminate().await.success());
}
