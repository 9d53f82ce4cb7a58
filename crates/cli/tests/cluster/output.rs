//! What runs leave is durable once it is acknowledged: a result of 1 MB and 1,000 lines of log, over `kill -9`, on each engine.

use serde_json::{Value, json};

use crate::node::Node;
use crate::shared_store::SharedStore;

const T: &str = "t";
const LINES: usize = 1_000;
const RESULT_BYTES: usize = 1 << 20;

/// A request to the node, which must succeed.
async fn post(node: &Node, path: &str, body: &Value) -> Value {
    node.server().post(path, body).await
}

/// Sends lines and a result, and kills the node as soon as each is acknowledged.
async fn output_survives_on(store: &str) {
    let mut node = Node::start(store, "[workers]\nhealth_timeout = 60\n").await;
    post(&node, &format!("/v1/jobs/{T}"), &json!({ "id": "a" })).await;
    let worker = post(&node, &format!("/v1/workers/{T}"), &json!({ "slots": 1 })).await;
    let path = format!("/v1/workers/{T}/{}", worker["worker"].as_str().unwrap());
    let accept = json!({ "received": 0, "wait_ms": 10_000 });
    let accepted = post(&node, &format!("{path}/accept"), &accept).await;
    let claim = &accepted["jobs"][0]["claim"];

    let message = |n: usize| format!("line {n} {}", "x".repeat(100));
    let lines: Vec<Value> = (0..LINES).map(|n| json!({ "message": message(n) })).collect();
    for part in lines.chunks(LINES / 4) {
        let update = json!({ "claim": claim, "log": part });
        assert_eq!(post(&node, &format!("{path}/jobs/a/update"), &update).await["answer"], "continue");
    }
    node.kill().await;
    node.restart().await;
    let result = "r".repeat(RESULT_BYTES - 2);
    let finish = json!({ "claim": claim, "result": result });
    assert_eq!(post(&node, &format!("{path}/jobs/a/finish"), &finish).await["state"], "completed");
    node.kill().await;
    node.restart().await;

    let job = node.server().get(&format!("/v1/jobs/{T}/a")).await;
    assert_eq!(
        (&job["state"], job["result_bytes"].as_u64()),
        (&json!("completed"), Some(RESULT_BYTES as u64))
    );
    assert_eq!(node.server().get(&format!("/v1/jobs/{T}/a/result")).await, json!(result));
    let page = node.server().get(&format!("/v1/jobs/{T}/a/logs?limit=1000")).await;
    let kept = page["lines"].as_array().unwrap();
    assert_eq!((kept.len(), page["first"].as_u64()), (LINES, Some(0)));
    for (n, line) in kept.iter().enumerate() {
        assert_eq!((line["number"].as_u64(), &line["message"]), (Some(n as u64), &json!(message(n))));
    }
    // The end that is repeated, as after a lost answer.
    assert_eq!(post(&node, &format!("{path}/jobs/a/finish"), &finish).await["state"], "completed");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_survives_on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    output_survives_on(&format!("embedded:{}", folder.path().join("data").display())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_survives_on_etcd() {
    let Some(store) = SharedStore::etcd().await else { return };
    output_survives_on(&store.url()).await;
}

/// `cargo xtask test --cluster foundationdb`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_survives_on_foundationdb() {
    if let Some(store) = SharedStore::foundationdb().filter(|_| cfg!(feature = "foundationdb")) {
        output_survives_on(&store.url()).await;
    }
}
