//! `turnwise webhooks`, and a server that is killed while it delivers.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::server::{Home, PATIENCE, Server, clean, turnwise};

/// Marked, so that what is printed and logged is searched for it.
const SECRET: &str = "hunter2-signs-the-deliveries";

async fn webhooks(server: &Server, secret: Option<&str>, args: &[&str]) -> (i32, String, String) {
    let mut command = turnwise();
    command.arg("webhooks").args(args).env("TURNWISE_SERVER", server.url());
    if let Some(secret) = secret {
        command.env("TURNWISE_WEBHOOK_SECRET", secret);
    }
    let Output { status, stdout, stderr } = clean(command.output().await.unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn webhooks_are_added_paused_resumed_and_removed() {
    let server = Home::new("").serve().await;
    let url = "http://127.0.0.1:1/hooks";
    let add = ["add", "w", url, "--type", "mail,print", "--event", "failed", "--tenant", "acme"];
    let (code, _, told) = webhooks(&server, None, &add).await;
    assert!(code == 1 && told.contains("secret: is missing"), "{code}: {told}");
    assert_eq!(
        webhooks(&server, Some(SECRET), &add).await,
        (0, format!("events go to {url}"), String::new())
    );
    let show = async || {
        let (code, said, told) = webhooks(&server, None, &["show", "w"]).await;
        assert_eq!(code, 0, "{told}");
        serde_json::from_str::<Value>(&said).unwrap()
    };
    let webhook = show().await;
    assert_eq!(
        ["url", "types", "events", "tenant", "job_tenant"].map(|name| webhook[name].clone()),
        [json!(url), json!(["mail", "print"]), json!(["failed"]), json!("acme"), json!("_operators")]
    );
    for (word, said, enabled) in
        [("pause", "the webhook w is paused", false), ("resume", "the webhook w delivers", true)]
    {
        assert_eq!(webhooks(&server, None, &[word, "w"]).await, (0, said.to_owned(), String::new()));
        let now = show().await;
        assert_eq!((&now["enabled"], &now["types"]), (&json!(enabled), &webhook["types"]));
    }
    let (_, said, _) = webhooks(&server, None, &["list"]).await;
    assert!(said.contains("w        enabled  0") && said.contains(url), "{said}");
    assert_eq!(webhooks(&server, None, &["remove", "w"]).await.0, 0);
    assert_eq!(webhooks(&server, None, &["remove", "w"]).await.0, 1);
    assert_eq!(webhooks(&server, None, &["list"]).await.1, "No webhooks.");
}

/// The documented check, with the secret's file as it was made, accepts a delivery, and not another body.
#[tokio::test]
async fn the_documented_check_accepts_deliveries() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let check = docs.split("```python\n").find(|text| text.contains("def is_genuine")).unwrap();
    let check = check.split("```").next().unwrap();
    let (delivered, mut deliveries) = mpsc::unbounded_channel();
    let take = async |State(delivered): State<mpsc::UnboundedSender<_>>, headers: HeaderMap, body: String| {
        delivered.send((headers, body)).unwrap();
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hooks", listener.local_addr().unwrap());
    let router = Router::new().fallback(take).with_state(delivered);
    tokio::spawn(async move { axum::serve(listener, router).await });

    let server = Home::new("").serve().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let file = file.to_str().unwrap();
    let (code, _, told) = webhooks(&server, None, &["add", "w", &url, "--secret-file", file]).await;
    assert_eq!(code, 0, "{told}");
    server.post("/v1/jobs/mail", &json!({ "id": "a" })).await;
    let (headers, body) = tokio::time::timeout(PATIENCE, deliveries.recv()).await.unwrap().unwrap();
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    for (body, genuine) in [(body.clone(), "True"), (body + " ", "False")] {
        let ask = "import sys\nheaders = {'X-Turnwise-Timestamp': sys.argv[1], 'X-Turnwise-Signature': sys.argv[2]}\n\
                   print(is_genuine(secret, headers, sys.argv[3].encode()))";
        let mut python = tokio::process::Command::new("python3");
        python.arg("-c").arg(format!("{check}\n{ask}")).current_dir(folder.path());
        python.args([header("x-turnwise-timestamp"), header("x-turnwise-signature"), body]);
        let output = python.output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), genuine, "{output:?}");
    }
}

/// The events that a target has accepted, by the number of each: how often it came, and what it was.
type Accepted = BTreeMap<u64, (usize, String)>;

/// A target that accepts everything.
async fn target() -> (String, watch::Receiver<Accepted>) {
    let (accepted, seen) = watch::channel(Accepted::new());
    let take = async |State(accepted): State<Arc<watch::Sender<Accepted>>>, Json(body): Json<Value>| {
        accepted.send_modify(|accepted| {
            for event in body["events"].as_array().unwrap() {
                let seq = event["seq"].as_str().unwrap().parse().unwrap();
                let what = ["id", "event"].map(|name| event[name].as_str().unwrap()).join(" ");
                accepted.entry(seq).or_insert((0, what)).0 += 1;
            }
        });
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hooks", listener.local_addr().unwrap());
    let router = Router::new().fallback(take).with_state(Arc::new(accepted));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, seen)
}

/// On an encrypted store, too: the rows of webhooks have secrets.
#[tokio::test]
async fn every_event_is_delivered_over_kill_9() {
    const JOBS: usize = 300;
    const TURNS: usize = 6;
    let (url, mut accepted) = target().await;
    let mut home = Home::new("[jobs]\nbackoff_base_ms = 10\n");
    home.seal(&"c3".repeat(32));
    let mut server = home.serve().await;
    let (code, _, told) =
        webhooks(&server, Some(SECRET), &["add", "w", &url, "--event", "added,cancelled"]).await;
    assert_eq!(code, 0, "{told}");
    let mut expected = Vec::new();
    for turn in 0..TURNS {
        let ids: Vec<String> = (0..JOBS).map(|n| format!("{turn}-{n:03}")).collect();
        let jobs: Vec<Value> = ids.iter().map(|id| json!({"type": "mail", "id": id})).collect();
        server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
        server.post(&format!("/v1/jobs/mail/{turn}-000/cancel"), &json!({})).await;
        expected.extend(ids.iter().map(|id| format!("{id} added")));
        expected.push(format!("{turn}-000 cancelled"));
        if turn % 2 == 1 {
            // Some of these events have a number, some are under way, some are accepted and not yet noted.
            let some = turn * JOBS / 2;
            tokio::time::timeout(PATIENCE, accepted.wait_for(|seen| seen.len() >= some))
                .await
                .unwrap()
                .unwrap();
            server.kill().await;
            server = home.serve().await;
        }
    }
    let all = expected.len();
    let waited = tokio::time::timeout(PATIENCE, accepted.wait_for(|seen| seen.len() >= all)).await;
    let seen = waited.unwrap_or_else(|_| panic!("{}", home.log())).unwrap().clone();
    let mut what: Vec<String> = seen.values().map(|(_, what)| what.clone()).collect();
    what.sort();
    expected.sort();
    assert_eq!(what, expected);
    // Only a batch that was accepted and not yet noted at a kill comes again.
    let again = seen.values().filter(|(times, _)| *times > 1).count();
    assert!(again <= TURNS / 2 * 100, "{again} events came more than once");
    assert!(!home.log().contains(SECRET));
}
