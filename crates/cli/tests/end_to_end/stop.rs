//! SIGTERM: jobs write checkpoints and are pending again, and the process exits before a supervisor kills it.

use std::time::{Duration, Instant};

use serde_json::json;
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};

use crate::server::Home;

/// The time that Kubernetes gives a process before it kills it. The server's own limit is 10 s; a busy machine adds to that.
const PATIENCE_OF_SUPERVISORS: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_terminated_server_checkpoints_its_jobs_and_exits_in_time() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    Dataset::plain(2_000).load(&source).await;
    let proxy = FaultProxy::start(&a).await;
    proxy.set(Fault::Slow { bytes_per_second: 100_000 }).await;
    let hanging = FaultProxy::start(&a).await;
    hanging.set(Fault::HangMidBody { after: 0 }).await;

    // No other checkpoint is due during the test, so the checkpoint comes from the stop.
    let home = Home::new("checkpoint_interval = 3600000\nconnection_timeout = 60000");
    let server = home.serve().await;
    let target = b.create("target").await;
    let doc = json!({ "source": proxy.through(&source), "target": target.url(), "worker_batch_size": 100 });
    server.put("/_replicator/slow", &doc).await;
    let doc = json!({ "source": hanging.through(&source), "target": b.create("other").await.url() });
    server.put("/_replicator/hanging", &doc).await;
    server.until_state("hanging", "running").await;
    server
        .until("/_scheduler/docs/_replicator/slow", |doc| {
            doc["info"]["docs_written"].as_u64().is_some_and(|n| n > 0)
        })
        .await;

    let asked = Instant::now();
    let status = server.terminate().await;
    assert!(asked.elapsed() < PATIENCE_OF_SUPERVISORS, "it took {:?}", asked.elapsed());
    assert_eq!(status.code(), Some(0));
    let written = target.doc_count().await;
    assert!(written < 2_000, "it had come to its end already");

    proxy.set(Fault::None).await;
    hanging.set(Fault::None).await;
    proxy.clear();
    let server = home.serve().await;
    server.until_state("slow", "completed").await;
    server.until_state("hanging", "completed").await;
    compare(&source, &target).await.expect("source and target must agree");
    let feeds: Vec<String> = proxy
        .requests()
        .into_iter()
        .map(|request| request.path)
        .filter(|path| path.contains("/_changes"))
        .collect();
    assert!(!feeds.is_empty() && feeds.iter().all(|path| !path.contains("since=0")), "{feeds:?}");
}
