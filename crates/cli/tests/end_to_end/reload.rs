//! SIGHUP: the server reads its configuration again, and does not stop.

use crate::server::{Home, Server};

async fn value(server: &Server, path: &str) -> String {
    server.get(&format!("/_node/_local/_config/{path}")).await.as_str().unwrap().to_owned()
}

/// Sends SIGHUP, and waits until the log has one more occurrence of this text.
async fn reload(home: &Home, server: &Server, expected: &str) {
    let before = home.log().matches(expected).count();
    server.signal("-HUP").await;
    home.until_logged(expected, before + 1).await;
}

#[tokio::test]
async fn sighup_applies_live_settings_and_logs_those_that_need_a_restart() {
    let home = Home::new("max_jobs = 7\n[workers]\nhealth_interval = 2\n");
    let server = home.serve().await;
    home.configure(
        "max_jobs = 8\n[workers]\nhealth_interval = 1\n[shares]\nacme = 300\n[command]\nenabled = true\n",
    );
    reload(&home, &server, "[command] enabled has changed in the file: it needs a restart").await;
    server.until("/_node/_local/_config/replicator/max_jobs", |value| value == "8").await;
    server.until("/_node/_local/_config/shares/acme", |value| value == "300").await;
    assert!(home.log().contains("[workers] health_interval has changed in the file: it needs a restart"));
    assert_eq!(value(&server, "workers/health_interval").await, "2");
    assert_eq!(value(&server, "command/enabled").await, "false");

    // A wrong file changes nothing, and a setting in the store overrides the file.
    home.configure("max_jobs = many\n");
    reload(&home, &server, "the settings are unchanged: ").await;
    assert_eq!(value(&server, "replicator/max_jobs").await, "8");
    server.put("/_node/_local/_config/replicator/max_jobs", &"9".into()).await;
    home.configure("max_jobs = 10\nmax_churn = 11\n");
    reload(&home, &server, "turnwise.ini was reloaded").await;
    server.until("/_node/_local/_config/replicator/max_churn", |value| value == "11").await;
    assert_eq!(value(&server, "replicator/max_jobs").await, "9");
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn sighup_without_a_file_changes_nothing() {
    let home = Home::new("");
    let server = home.serve_without_file().await;
    reload(&home, &server, "there is no configuration file").await;
    server.get("/_up").await;
    assert!(server.terminate().await.success());
}
