//! `turnwise events`, and a server that is killed while events are followed.

use std::collections::BTreeMap;
use std::process::Output;

use serde_json::{Value, json};

use crate::server::{Home, Server, clean, turnwise};

const BATCH: usize = 500;
const BATCHES: usize = 20;

async fn events(server: &Server, args: &[&str]) -> (i32, String, String) {
    let command = turnwise().arg("events").args(args).env("TURNWISE_SERVER", server.url()).output().await;
    let Output { status, stdout, stderr } = clean(command.unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn events_are_printed() {
    let server = Home::new("").serve().await;
    assert_eq!(events(&server, &[]).await.0, 0);
    server.post("/v1/jobs/mail", &json!({"id": "a", "tenant": "acme"})).await;
    server.post("/v1/jobs/mail", &json!({"id": "b"})).await;
    server.post("/v1/jobs/mail/a/cancel", &json!({})).await;
    server
        .until("/v1/events?since=oldest&limit=9", |page| page["events"].as_array().unwrap().len() == 3)
        .await;
    let (code, said, told) = events(&server, &["--json"]).await;
    assert_eq!(code, 0, "{told}");
    let all: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(all.len(), 3, "{said}");
    let (_, said, _) =
        events(&server, &["--since", all[0]["seq"].as_str().unwrap(), "--tenant", "acme"]).await;
    assert!(said.contains("  cancelled  mail/a  acme") && said.lines().count() == 1, "{said}");
    let (code, _, told) = events(&server, &["--since", "none"]).await;
    assert!(code == 1 && told.contains("no sequence number"), "{code}: {told}");
}

#[tokio::test]
async fn no_event_is_lost_or_doubled_by_kill_9() {
    let home = Home::new("");
    let mut server = home.serve().await;
    let mut since = server.get("/v1/events?limit=1").await["next"].as_str().unwrap().to_owned();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut last = since.parse::<u64>().unwrap();
    let mut take = |page: &Value, since: &mut String| {
        for event in page["events"].as_array().unwrap() {
            let seq: u64 = event["seq"].as_str().unwrap().parse().unwrap();
            assert_eq!(seq, last + 1, "no gap, and none twice");
            last = seq;
            *seen.entry(event["id"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        page["next"].as_str().unwrap().clone_into(since);
        seen.len()
    };
    for part in 0..BATCHES {
        let jobs: Vec<Value> =
            (0..BATCH).map(|n| json!({"type": "mail", "id": format!("{part}-{n}")})).collect();
        server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
        if part % 5 == 2 {
            // What was answered is durable, and its events are, whether they have numbers or not.
            server.kill().await;
            server = home.serve().await;
        } else if part % 3 == 0 {
            let page = server.get(&format!("/v1/events?since={since}&limit=700")).await;
            take(&page, &mut since);
        }
    }
    for _ in 0..60 {
        let page = server.get(&format!("/v1/events?since={since}&wait_ms=5000")).await;
        if take(&page, &mut since) == BATCH * BATCHES {
            break;
        }
    }
    assert_eq!(seen.len(), BATCH * BATCHES);
    assert!(seen.values().all(|times| *times == 1));
}
