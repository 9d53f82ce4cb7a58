//! `kill -9` of the server while it works.

use serde_json::{Value, json};
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};

use crate::server::Home;

const REPLICATIONS: usize = 10;
const DOCUMENTS: usize = 2_000;
/// Slow enough that all ten are still running when the server is killed.
const BYTES_PER_SECOND: u64 = 100_000;

#[tokio::test]
async fn ten_running_replications_go_on_from_their_checkpoints_after_kill_9() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    Dataset::plain(DOCUMENTS).load(&source).await;
    let followed = a.create("followed").await;
    let follower = b.create("follower").await;
    // Each has its own proxy, whose log shows where that replication started.
    let mut proxies = Vec::new();
    for _ in 0..REPLICATIONS {
        let proxy = FaultProxy::start(&a).await;
        proxy.set(Fault::Slow { bytes_per_second: BYTES_PER_SECOND }).await;
        proxies.push(proxy);
    }

    let home = Home::new("");
    let server = home.serve().await;
    let continuous = json!({ "source": followed.url(), "target": follower.url(), "continuous": true });
    server.put("/_replicator/continuous", &continuous).await;
    for (n, proxy) in proxies.iter().enumerate() {
        let target = b.create(&format!("target-{n}")).await;
        let doc =
            json!({ "source": proxy.through(&source), "target": target.url(), "worker_batch_size": 100 });
        server.put(&format!("/_replicator/{n}"), &doc).await;
    }
    followed.put("before", &json!({})).await;
    // Each has written a checkpoint, and none has ended.
    server.until("/_active_tasks", all_checkpointed).await;
    server.kill().await;
    for n in 0..REPLICATIONS {
        let written = b.db(&format!("target-{n}")).doc_count().await;
        assert!(written > 0 && written < DOCUMENTS as u64, "target-{n} has {written} documents already");
    }
    followed.put("meanwhile", &json!({})).await;
    for proxy in &proxies {
        proxy.clear();
        proxy.set(Fault::None).await;
    }

    let server = home.serve().await;
    for (n, proxy) in proxies.iter().enumerate() {
        server.until_state(&n.to_string(), "completed").await;
        let target = b.db(&format!("target-{n}"));
        compare(&source, &target).await.unwrap_or_else(|differences| panic!("target-{n}: {differences:?}"));
        let feed = proxy
            .requests()
            .into_iter()
            .find(|request| request.path.contains("/_changes"))
            .unwrap_or_else(|| panic!("replication {n} read no changes after the restart"));
        let since = since(&feed.path);
        assert!(since > 0, "replication {n} started over: {}", feed.path);
    }
    server.until("/_active_tasks", |tasks| tasks[0]["doc_id"] == "continuous").await;
    server
        .until("/_scheduler/docs/_replicator/continuous", |doc| number(&doc["info"]["through_seq"]) == 2)
        .await;
    for id in ["before", "meanwhile"] {
        assert!(follower.doc(id).await.is_some(), "{id} was not copied");
    }
}

/// Whether all slow replications have written a checkpoint.
fn all_checkpointed(tasks: &Value) -> bool {
    let checkpointed =
        |task: &&Value| task["continuous"] == json!(false) && number(&task["checkpointed_source_seq"]) > 0;
    tasks.as_array().unwrap().iter().filter(checkpointed).count() == REPLICATIONS
}

/// The number after `since=`.
fn since(path: &str) -> u64 {
    let (_, rest) = path.split_once("since=").unwrap_or_else(|| panic!("no since in {path}"));
    leading_number(rest.trim_start_matches("%22"))
}

/// A sequence's number: PouchDB's sequences are numbers, CouchDB's are strings that begin with one.
fn number(sequence: &Value) -> u64 {
    sequence.as_u64().unwrap_or_else(|| leading_number(sequence.as_str().unwrap_or_default()))
}

fn leading_number(text: &str) -> u64 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}
