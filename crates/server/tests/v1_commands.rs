//! Jobs of type `command` through the whole server: off unless the configuration says otherwise.

use crate::common::TestServer;
use serde_json::{Value, json};

async fn run(server: &TestServer, job: &Value) -> Value {
    let added = server.post("/v1/jobs/command", job).await;
    assert_eq!(added.status, 201, "{}", added.body);
    let ended =
        server.get(&format!("/v1/jobs/command/{}/wait", added.body["id"].as_str().unwrap())).await.body;
    assert_eq!(ended["finished"], true, "{ended}");
    ended["job"].clone()
}

#[tokio::test]
async fn a_command_runs_and_its_output_is_the_result() {
    let server = TestServer::start_with("[command]\nenabled = true\nallow_root = true\n").await;
    let options = json!({"argv": ["sh", "-c", "echo hello $WHO; echo oh >&2"], "env": {"WHO": "you"}});
    let job = run(&server, &json!({"options": options})).await;
    assert_eq!((&job["state"], &job["result"]["exit_code"]), (&json!("completed"), &json!(0)), "{job}");
    assert_eq!((&job["result"]["stdout"], &job["result"]["stderr"]), (&json!("hello you\n"), &json!("oh\n")));
    let failing = json!({"options": {"argv": ["sh", "-c", "exit 3"]}, "max_attempts": 1});
    let job = run(&server, &failing).await;
    assert_eq!(job["state"], "failed", "{job}");
    assert!(job["reason"].as_str().unwrap().contains('3'), "{job}");
    let listed = server.get("/v1/workers?type=command").await.body;
    assert_eq!(
        (&listed["workers"][0]["slots"], &listed["workers"][0]["external"]),
        (&json!(10), &json!(false))
    );
}

#[tokio::test]
async fn a_running_command_is_cancelled_and_a_stopped_server_gives_it_back() {
    let server = TestServer::start_with("[command]\nenabled = true\nallow_root = true\n").await;
    for id in ["a", "b"] {
        let added =
            server.post("/v1/jobs/command", &json!({"id": id, "options": {"argv": ["sleep", "600"]}})).await;
        assert_eq!(added.status, 201, "{}", added.body);
        server.poll(&format!("/v1/jobs/command/{id}"), |job| job["state"] == "running").await;
    }
    server.post_empty("/v1/jobs/command/a/cancel").await;
    let ended = server.get("/v1/jobs/command/a/wait").await.body;
    assert_eq!(ended["job"]["state"], "cancelled");
    // After this restart the server runs no commands.
    let server = server.restart("").await;
    assert_eq!(server.get("/v1/jobs/command/b").await.body["state"], "pending");
    assert_eq!(server.post("/v1/jobs/command", &json!({})).await.error(), (403, "forbidden"));
}

#[tokio::test]
async fn a_command_that_could_not_run_is_refused_when_it_is_added() {
    let server =
        TestServer::start_with("[command]\nenabled = true\nallow_root = true\nprograms = true, /bin/ls\n")
            .await;
    for options in [
        json!({}),
        json!({"argv": []}),
        json!({"argv": "ls"}),
        json!({"argv": ["true"], "shell": true}),
        json!({"argv": ["sh", "hunter2"]}),
        json!({"argv": ["./true"]}),
    ] {
        let refused = server.post("/v1/jobs/command", &json!({"options": options})).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{options}: {}", refused.body);
        assert!(!refused.body.to_string().contains("hunter2"));
    }
    let many = json!({"jobs": [{"type": "command", "options": {"argv": ["true"]}}, {"type": "command"}]});
    let refused = server.post("/v1/jobs", &many).await;
    assert!(refused.body["reason"].as_str().unwrap().starts_with("jobs[1]."), "{}", refused.body);
    assert_eq!(run(&server, &json!({"options": {"argv": ["true"]}})).await["state"], "completed");
}

#[tokio::test]
async fn an_allowed_program_gets_no_variables_that_make_it_run_others() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/bin/bash\nls; echo $LANG $JOB_A\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let evil = folder.path().join("evil");
    std::fs::write(&evil, "echo owned\n").unwrap();
    let script = script.to_str().unwrap();
    let server = TestServer::start_with(&format!(
        "[command]\nenabled = true\nallow_root = true\nprograms = {script}\n"
    ))
    .await;
    for (name, value) in [
        ("BASH_FUNC_ls%%", "() { echo owned; }"),
        ("BASH_ENV", evil.to_str().unwrap()),
        ("LD_PRELOAD", "/tmp/evil.so"),
        ("LD_LIBRARY_PATH", "/tmp"),
        ("PATH", "/tmp"),
        ("JOB_A", "a"),
    ] {
        let job = json!({"options": {"argv": [script], "env": {name: value}}});
        let refused = server.post("/v1/jobs/command", &job).await;
        assert_eq!(refused.status, 400, "{name}: {}", refused.body);
        let reason = refused.body["reason"].as_str().unwrap();
        assert!(reason.contains(name) && reason.contains("[command] env"), "{reason}");
    }
    let job = run(&server, &json!({"options": {"argv": [script], "env": {"LANG": "C"}}})).await;
    assert!(job["result"]["stdout"].as_str().unwrap().ends_with("C\n"), "{job}");
    let named = format!("[command]\nenabled = true\nallow_root = true\nprograms = {script}\nenv = JOB_*\n");
    let server = server.restart(&named).await;
    let job = run(&server, &json!({"options": {"argv": [script], "env": {"JOB_A": "a"}}})).await;
    assert!(job["result"]["stdout"].as_str().unwrap().ends_with("a\n"), "{job}");
}
