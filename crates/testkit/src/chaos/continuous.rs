//! Continuous replications: jobs that never end, beside all those that do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::World;
use super::api::Answer;
use crate::Fake;

/// Replications, each from a database of its own to another one.
const REPLICATIONS: usize = 4;
/// Between two documents in each source.
const WRITE: Duration = Duration::from_millis(500);

/// Sources and targets.
pub(super) struct Replications(Vec<(Fake, Fake)>);

impl Replications {
    pub async fn start() -> Self {
        let mut pairs = Vec::new();
        for _ in 0..REPLICATIONS {
            pairs.push((Fake::start().await, Fake::start().await));
        }
        Replications(pairs)
    }

    /// What is in the sources and not in their targets.
    fn missing(&self) -> Vec<String> {
        let leaves = self.0.iter().map(|(source, target)| (source.leaves(), target.leaves()));
        let differ = leaves.enumerate().filter(|(_, (source, target))| source != target);
        differ
            .map(|(n, (source, target))| format!("replication {n} has copied {target} of {source} documents"))
            .collect()
    }
}

/// Adds the replications, and documents to their sources, until the end.
pub(super) async fn run(world: Arc<World>) {
    for (n, (source, target)) in world.replications.0.iter().enumerate() {
        let doc = json!({ "source": source.url(), "target": target.url(), "continuous": true });
        let path = format!("/_replicator/chaos-{n}");
        // 409 is the answer where an earlier request was executed, and its answer lost.
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

/// Every document arrives, as soon as nothing fails any more.
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
