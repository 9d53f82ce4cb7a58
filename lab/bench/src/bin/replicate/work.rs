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
const MEGABYTE: usize = 1_000_000;
const HUGE: usize = 100 * MEGABYTE;
/// A selector or a filter matches one of so many documents.
const ONE_OF: usize = 20;
/// The number of small documents in one `_bulk_docs`.
const SMALL_BATCH: usize = 1_000;
/// The design document with the filter function.
const FILTER: &str = "function (doc) { return doc.kind === 0; }";

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
            Kind::Documents | Kind::Again | Kind::Selector | Kind::Filter => {
                (1, options.documents.unwrap_or(if options.source.is_some() { 100_000 } else { 20_000 }))
            }
            Kind::Attachments => (1, options.documents.unwrap_or(2_000)),
            Kind::Databases => (options.databases, options.documents.unwrap_or(50)),
            Kind::Megabytes => (1, options.documents.unwrap_or(200)),
            Kind::Huge => (1, options.documents.unwrap_or(4)),
        };
        let mut sources = Vec::with_capacity(databases);
        for nth in 0..databases {
            let database = source.create(&format!("bench-source-{nth}")).await;
            match kind {
                Kind::Attachments => load_attachments(&database, documents).await,
                Kind::Documents | Kind::Databases | Kind::Again => {
                    Dataset::plain(documents).seeded(nth as u64 + 1).load(&database).await;
                }
                Kind::Megabytes => load_large(&database, documents, MEGABYTE).await,
                Kind::Huge => load_large(&database, documents, HUGE).await,
                Kind::Selector | Kind::Filter => load_kinds(&database, documents).await,
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
            Kind::Megabytes => format!("{} documents of 1 MB", self.documents),
            Kind::Huge => format!("{} documents of 100 MB", self.documents),
            Kind::Selector => {
                format!("{} documents, of which a selector matches one of {ONE_OF}", self.documents)
            }
            Kind::Filter => {
                format!("{} documents, of which a filter function accepts one of {ONE_OF}", self.documents)
            }
        }
    }

    /// The fields of the replication beside source and target.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        match self.kind {
            Kind::Selector => vec![("selector", json!({ "kind": 0 }))],
            Kind::Filter => vec![("filter", json!("bench/zero"))],
            _ => Vec::new(),
        }
    }

    pub fn amount(&self) -> Amount {
        let documents = (self.sources.len() * self.documents) as f64;
        match self.kind {
            Kind::Documents | Kind::Again | Kind::Selector | Kind::Filter => {
                Amount { units: documents, name: "documents" }
            }
            Kind::Megabytes => Amount { units: documents, name: "MB" },
            Kind::Huge => Amount { units: documents * 100.0, name: "MB" },
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
            if matches!(self.kind, Kind::Selector | Kind::Filter) {
                assert!(of_kind_zero(from).await == all(to).await, "{by} copied the wrong documents");
            } else if quick {
                let counts = (from.doc_count().await, to.doc_count().await);
                assert_eq!(counts.0, counts.1, "{by} did not copy all of {}", from.name());
            } else if let Err(differences) = compare(from, to).await {
                panic!("{by} left {} differences; the first: {}", differences.len(), differences[0]);
            }
        }
    }
}

/// The documents that a filtered replication copies, as they are in the source.
async fn of_kind_zero(source: &Database) -> Vec<Value> {
    let mut rows = all(source).await;
    rows.retain(|doc| doc["kind"] == 0);
    rows
}

/// All documents, by id.
async fn all(database: &Database) -> Vec<Value> {
    let mut answer = database.get("/_all_docs?include_docs=true").await;
    let rows = answer["rows"].as_array_mut().expect("_all_docs answers with rows");
    rows.iter_mut().map(|row| row["doc"].take()).collect()
}

/// Documents with one attachment of random bytes each.
async fn load_large(database: &Database, documents: usize, bytes: usize) {
    let mut random = Random::new(1);
    for _ in 0..documents {
        let url = format!("{}/{}/data.bin", database.url(), random.hex32());
        let request = database.client().put(url).header("content-type", "application/octet-stream");
        let answer = request.body(random.bytes(bytes)).send().await.expect("the source server answers");
        assert!(answer.status().is_success(), "an attachment was refused: {}", answer.status());
    }
}

/// Documents of 500 bytes in equal numbers of [`ONE_OF`] kinds, and a filter function that accepts the first kind.
async fn load_kinds(database: &Database, documents: usize) {
    let design = json!({ "kind": -1, "filters": { "zero": FILTER } });
    database.put("_design/bench", &design).await;
    let mut random = Random::new(1);
    let mut docs = Vec::with_capacity(SMALL_BATCH);
    for nth in 0..documents {
        let (id, rev) = (random.hex32(), random.hex32());
        let text = random.text(400);
        docs.push(json!({ "_id": id, "_rev": format!("1-{rev}"), "kind": nth % ONE_OF, "text": text }));
        if docs.len() == SMALL_BATCH || nth + 1 == documents {
            database.put_revisions(&std::mem::take(&mut docs)).await;
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
