//! Servers that return 429: jobs that wait, continue, and leave nothing behind.

use crate::common::{context, request};
use serde_json::json;
use turnwise_replicator::replicate;
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, Request, compare};

fn throttled(request: &Request) -> bool {
    request.status == Some(429)
}

#[tokio::test]
async fn a_throttled_job_ends_well_and_leaves_no_trace_in_the_limiter() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::small().load(&from).await;
    let proxy = FaultProxy::start(&target).await;
    // More rejections than an operation has attempts.
    proxy.set(Fault::Status(429).when(|request| request.path.contains("_bulk_docs")).times(9)).await;
    let context = context();
    let fields = json!({"retries_per_request": 2, "use_checkpoints": false});
    let replication = request(from.url(), &proxy.through(&to), fields);
    replicate(&replication, &context).await.unwrap();
    compare(&from, &to).await.unwrap();
    assert_eq!(proxy.count(throttled), 9);
    // Each success shortens the interval. Requests that are sent without need are not repeated without end.
    let mut runs = 0;
    while context.client.throttled() > 0 {
        replicate(&replication, &context).await.unwrap();
        runs += 1;
        assert!(runs < 100, "{} intervals are left", context.client.throttled());
    }
}

#[tokio::test]
async fn a_server_that_only_throttles_ends_the_run_after_a_bounded_number_of_requests() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::small().load(&from).await;
    let proxy = FaultProxy::start(&target).await;
    proxy.set(Fault::Status(429).when(|request| request.path.contains("_bulk_docs"))).await;
    let fields = json!({"retries_per_request": 1, "worker_processes": 1});
    let replication = request(from.url(), &proxy.through(&to), fields);
    let error = replicate(&replication, &context()).await.unwrap_err();
    assert_eq!(error.status(), Some(429), "{error}");
    let refused = proxy.count(throttled);
    assert!((10..=21).contains(&refused), "{refused} requests");
}
