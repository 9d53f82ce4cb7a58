//! The data that are copied: the source databases of each work, and the check that a copy is complete.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use turnwise_testkit::{Database, Dataset, Peer, Random, compare};

use crate::cost::Amount;
use crate::options::{Kind, Options};

/// The number of attachments per document.
const ATTACHMENTS: usize = 3;
const ATTACHMENT_BYTES: usize = 32 * 1000;
/// The number of documents with attachments in one `_bulk_docs`: 5 MB.
const BATCH: usize = 40;

/// Databases to copy.
pub struct Work {
    pub kind: Kind,
    pub sources: Vec<Database>,
    /// The number of documents in each database.
    documents: usize,
}

impl Work {
    /// Creates and fills the sources.
    pub async fn load(kind: Kind, options: &Options, source: &Peer) -> Self {
        let (databases, documents) = match kind {
            Kind::Documents | Kind::Again => {
                (1, options.documents.unwrap_or(if options.source.is_some() { 100_000 } else { 20_000 }))
            }
            Kind::Attachments => (1, options.documents.unwrap_or(2_000)),
            Kind::Databases => (options.databases, options.documents.unwrap_or(50)),
        };
        let mut sources = Vec::with_capacity(databases);
        for nth in 0..databases {
            let database = source.create(&format!("bench-source-{nth}")).await;
            match kind {
                Kind::Attachments => load_attachments(&database, documents).await,
                Kind::Documents | Kind::Databases | Kind::Again => {
                    Dataset::plain(documents).seeded(nth as u64 + 1).load(&database).await;
                }
            }
            sources.push(database);
        }
        Self { kind, sources, documents }
    }

    pub fn describe(&self) -> String {
        match self.kind {
            Kind::Documents => format!("{} documents of 500 bytes, random ids", self.documents),
            Kind::Again => format!("{} documents that the target has already", self.documents),
            Kind::Attachments => {
                format!("{} documents of {ATTACHMENTS} × {ATTACHMENT_BYTES} bytes", self.documents)
            }
            Kind::Databases => format!("{} databases of {} documents", self.sources.len(), self.documents),
        }
    }

    pub fn amount(&self) -> Amount {
        let documents = (self.sources.len() * self.documents) as f64;
        match self.kind {
            Kind::Documents | Kind::Again => Amount { units: documents, name: "documents" },
            Kind::Attachments => {
                let bytes = documents * (ATTACHMENTS * ATTACHMENT_BYTES) as f64;
                Amount { units: bytes / 1e6, name: "MB" }
            }
            Kind::Databases => Amount { units: self.sources.len() as f64, name: "databases" },
        }
    }

    /// Panics unless `targets` equal the sources: leaf by leaf and byte by byte, or (`quick`) in the number of documents.
    pub async fn check(&self, targets: &[Database], quick: bool, by: &str) {
        for (from, to) in self.sources.iter().zip(targets) {
            if quick {
                let counts = (from.doc_count().await, to.doc_count().await);
                assert_eq!(counts.0, counts.1, "{by} did not copy all of {}", from.name());
            } else if let Err(differences) = compare(from, to).await {
                panic!("{by} left {} differences; the first: {}", differences.len(), differences[0]);
            }
        }
    }
}

async fn load_attachments(database: &Database, documents: usize) {
    let mut random = Random::new(1);
    let mut docs = Vec::with_capacity(BATCH);
    for nth in 0..documents {
        docs.push(document(&mut random));
        if docs.len() == BATCH || nth + 1 == documents {
            database.put_revisions(&std::mem::take(&mut docs)).await;
        }
    }
}

fn document(random: &mut Random) -> Value {
    let (id, rev) = (random.hex32(), random.hex32());
    let mut doc = json!({ "_id": id, "_rev": format!("1-{rev}"), "_attachments": {} });
    for nth in 0..ATTACHMENTS {
        let data = STANDARD.encode(random.bytes(ATTACHMENT_BYTES));
        doc["_attachments"][format!("{nth}.bin")] =
            json!({ "content_type": "application/octet-stream", "data": data });
    }
    doc
}
