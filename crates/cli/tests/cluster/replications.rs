//! A hundred continuous replications, and a check that they have copied everything.

use serde_json::json;
use turnwise_testkit::{Database, Peer, compare};

use crate::node::Node;
use crate::server::PATIENCE;

/// The number of source databases, and of replications that follow each.
const SOURCES: usize = 10;
const FOLLOWERS: usize = 10;

/// Sources that get documents from time to time, each copied to several targets.
pub struct Replications {
    _peers: (Peer, Peer),
    sources: Vec<Database>,
    targets: Vec<Database>,
    documents: usize,
}

impl Replications {
    /// Creates databases and replication documents, at each node in turn.
    pub async fn start(nodes: &[Node]) -> Self {
        let (a, b) = Peer::pair().await;
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        for n in 0..SOURCES {
            sources.push(a.create(&format!("source-{n}")).await);
        }
        for n in 0..SOURCES * FOLLOWERS {
            let target = b.create(&format!("target-{n}")).await;
            let source = &sources[n / FOLLOWERS];
            let document = json!({ "source": source.url(), "target": target.url(), "continuous": true });
            let node = &nodes[n % nodes.len()];
            node.server().put(&format!("/_replicator/follow-{n}"), &document).await;
            targets.push(target);
        }
        Replications { _peers: (a, b), sources, targets, documents: 0 }
    }

    /// Adds one document to each source.
    pub async fn add_documents(&mut self) {
        for source in &self.sources {
            source.put(&format!("document-{}", self.documents), &json!({ "n": self.documents })).await;
        }
        self.documents += 1;
    }

    /// Waits until every target has every document, and compares the documents.
    pub async fn until_copied(&self) {
        let started = tokio::time::Instant::now();
        let expected = self.documents as u64;
        for (n, target) in self.targets.iter().enumerate() {
            while target.doc_count().await < expected {
                assert!(started.elapsed() < PATIENCE, "target-{n} lacks documents");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            let source = &self.sources[n / FOLLOWERS];
            compare(source, target).await.unwrap_or_else(|differences| panic!("target-{n}: {differences:?}"));
        }
    }
}
