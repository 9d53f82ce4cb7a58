//! Continuous replications: jobs that never end, in addition to all others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::World;
use super::api::Answer;
use turnwise_testkit::Fake;

/// The number of replications. Each has its own source and target.
const REPLICATIONS: usize = 4;
/// The time between two documents in each source.
const WRITE: Duration = Duration::from_millis(500);

/// The pairs of source and target.
pub(super) struct Replications(Vec<(Fake, Fake)>);

impl Replications {
    pub async fn start() -> Self {
        let mut pairs = Vec::new();
        for _ in 0..REPLICATIONS {
            pairs.push((Fake::start().await, Fake::start().await));
        }
        Replications(pairs)
    }

    /// The replications whose target lacks documents of the source, as text.
    fn missing(&self) -> Vec<String> {
        let leaves = self.0.iter().map(|(source, target)| (source.leaves(), target.leaves()));
        let differ = leaves.enumerate().filter(|(_, (source, target))| source != target);
        differ
            .map(|(n, (source, target))| format!("replication {n} has copied {target} of {source} documents"))
            .collect()
    }
}

/// Adds the replications, and then documents to their sources until the end.
pub(super) async fn run(world: Arc<World>) {
    for (n, (source, target)) in world.replications.0.iter().enumerate() {
        let doc = json!({ "source": source.url(), "target": target.url(), "continuous": true });
        let path = format!("/_replicator/chaos-{n}");
        // The response is 409 if an earlier request took effect, but its response was lost.
        while !matches!(world.api.ask(0, Method::PUT, &path, Some(&doc)).await, Answer::Got(..)) {
            tokio::time::sleep(WRITE).await;
        }
    }
    let mut written = 0;
    while !world.stop.is_cancelled() {
        tokio::time::sleep(WRITE).await;
        for (source, target) in &world.replications.0 {
            source.put([json!({ "_id": format!("d{written}"), "text": "x".repeat(written % 3_000) })]);
            source.clear();
            target.clear();
        }
        written += 1;
    }
}

/// Checks that every document arrives once no faults happen any more.
pub(super) async fn judge(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(world.options.settle_seconds);
    while !world.replications.missing().is_empty() && Instant::now() < deadline {
        tokio::time::sleep(WRITE).await;
    }
    let missing = world.replications.missing();
    if !missing.is_empty() {
        let docs = world.api.get("/_scheduler/docs").await.unwrap_or_default();
        world.ledger.finding(format!("{}: {docs}", missing.join("; ")));
    }
    let copied: usize = world.replications.0.iter().map(|(_, target)| target.leaves()).sum();
    println!("{copied} documents were replicated");
}
