//! Passwords appear in no answer and in no log.

use reqwest::Method;
use serde_json::{Value, json};
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, canary};

use crate::server::{Home, Server, turnwise};

const PASSWORD: &str = canary::PASSWORD;
const HEADER_SECRET: &str = canary::TOKEN;
/// `admin:hunter2-pa55word`
const BASE64: &str = "YWRtaW46aHVudGVyMi1wYTU1d29yZA==";

fn assert_clean(what: &str, text: &str) {
    for secret in [PASSWORD, HEADER_SECRET, BASE64] {
        assert!(!text.contains(secret), "{what} tells a secret: {text}");
    }
}

async fn ask(server: &Server, method: Method, path: &str, body: Option<&Value>) -> Value {
    let (_, answer) = server.request(method, path, body).await;
    assert_clean(path, &answer.to_string());
    answer
}

#[tokio::test]
async fn passwords_appear_in_no_answer_and_no_log() {
    let locked = Peer::options().admin("admin", PASSWORD).start().await;
    let open = Peer::start().await;
    let source = locked.create("source").await;
    Dataset::small().load(&source).await;
    let home = Home::new("");
    let server = home.serve().await;

    // The source requires the password; the target repeats in its errors what it was sent.
    let without_userinfo = source.url().replace(&format!("admin:{PASSWORD}@"), "");
    let sources = [
        ("userinfo", json!(source.url())),
        (
            "auth",
            json!({ "url": without_userinfo, "auth": { "basic": { "username": "admin", "password": PASSWORD } } }),
        ),
        (
            "header",
            json!({ "url": without_userinfo, "headers": { "Authorization": format!("Basic {BASE64}") } }),
        ),
        ("extra", json!({ "url": source.url(), "headers": { "X-Token": HEADER_SECRET } })),
    ];
    for (name, source) in &sources {
        let doc = json!({ "source": source, "target": open.db(name).url(), "create_target": true });
        ask(&server, Method::PUT, &format!("/_replicator/{name}"), Some(&doc)).await;
        server.until_state(name, "completed").await;
        ask(&server, Method::POST, "/_replicate", Some(&doc)).await;
    }

    let proxy = FaultProxy::start(&locked).await;
    for (name, fault) in [
        ("down", Fault::Down),
        (
            "echo",
            Fault::Answer {
                status: 500,
                body: json!({ "error": BASE64, "reason": source.url() }).to_string(),
            },
        ),
        ("html", Fault::Answer { status: 403, body: format!("<p>{PASSWORD} is wrong for {HEADER_SECRET}") }),
        ("json", Fault::InvalidJson),
    ] {
        proxy.set(fault).await;
        let url = proxy.through(&source);
        assert!(url.contains(PASSWORD));
        let source = json!({ "url": url, "headers": { "X-Token": HEADER_SECRET } });
        let doc = json!({ "source": source, "target": open.db(name).url(), "continuous": true });
        ask(&server, Method::PUT, &format!("/_replicator/{name}"), Some(&doc)).await;
        server.until_state(name, "crashing").await;
        let one_shot = json!({ "source": source, "target": open.db(name).url() });
        ask(&server, Method::POST, "/_replicate", Some(&one_shot)).await;
    }

    let wrong =
        json!({ "source": format!("ftp://admin:{PASSWORD}@localhost/db"), "target": "http://127.0.0.1:1/b" });
    ask(&server, Method::POST, "/_replicate", Some(&wrong)).await;
    ask(&server, Method::PUT, "/_replicator/wrong", Some(&wrong)).await;
    for path in [
        "/",
        "/_active_tasks",
        "/_scheduler/jobs",
        "/_scheduler/docs",
        "/_scheduler/docs/_replicator",
        "/_scheduler/docs/_replicator/echo",
        "/_replicator",
        "/_replicator/auth",
        "/_replicator/extra",
        "/_replicator/_all_docs?include_docs=true",
        "/_replicator/_changes?include_docs=true",
    ] {
        ask(&server, Method::GET, path, None).await;
    }
    for job in server.get("/_scheduler/jobs").await["jobs"].as_array().unwrap() {
        let id = job["id"].as_str().unwrap().replace('+', "%2B");
        ask(&server, Method::GET, &format!("/_scheduler/jobs/{id}"), None).await;
    }
    server.terminate().await;
    assert!(home.log().len() > 1_000, "the log is as good as empty");
    assert_clean("the log", &home.log());
}

#[tokio::test]
async fn the_command_prints_no_password() {
    for (source, code) in [
        (format!("http://admin:{PASSWORD}@127.0.0.1:1/db"), 1),
        (format!("ftp://admin:{PASSWORD}@127.0.0.1:1/db"), 2),
        (format!("http://admin:{PASSWORD}@127.0.0.1:notaport/db"), 2),
    ] {
        let output = crate::server::clean(
            turnwise()
                .args([
                    "--log",
                    "trace",
                    "replicate",
                    &source,
                    "http://127.0.0.1:1/b",
                    "--option",
                    "retries_per_request=0",
                ])
                .output()
                .await
                .unwrap(),
        );
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_clean("the command", &format!("{output:?}"));
    }
}
