//! The writers: one for each database on each side.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::World;
use super::gateway::ATTACHMENT_MAX_BYTES;
use turnwise_testkit::{Database, Random, encode_segment};

/// The number of documents that both sides write repeatedly. It is small, so that writes often conflict.
const POOL: u64 = 60;

/// The most documents in one `_bulk_docs`, and their largest size in bytes. Together, they often exceed a proxy's limit.
const BURST_DOCUMENTS: u64 = 100;
const BURST_DOCUMENT_BYTES: u64 = 4_000;
/// The same for one in five of them where gateways limit bodies. A proxy's limit exceeds each document.
const LARGE_DOCUMENT_BYTES: u64 = 40_000;

/// The largest size of an inline attachment, in bytes. A document has at most three of them.
const SMALL_ATTACHMENT_BYTES: u64 = 10_000;

/// The smallest size of an attachment with its own request, in bytes.
const LARGE_ATTACHMENT_MIN_BYTES: u64 = 300_000;

/// How long a database has no writes: longer than turnwise waits before it parks its jobs.
const QUIET_SECONDS: u64 = 16;

/// Longer than any request to a running server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Acknowledged revisions, by database.
#[derive(Default)]
pub(super) struct Acknowledged(pub HashMap<usize, Vec<(String, String)>>);

impl Acknowledged {
    pub fn add(&mut self, (database, mut revisions): (usize, Vec<(String, String)>)) {
        self.0.entry(database).or_default().append(&mut revisions);
    }
}

/// A writer's task, which returns the number of its database and the acknowledged revisions.
type Writing = JoinHandle<(usize, Vec<(String, String)>)>;

/// Starts the writers.
pub(super) fn start(world: &Arc<World>) -> Vec<Writing> {
    let mut seeds = Random::new(world.options.seed ^ 0x3217e);
    let mut writing = Vec::new();
    for side in &world.sides {
        for (number, database) in side.databases.iter().enumerate() {
            let writer = Writer {
                world: Arc::clone(world),
                side: side.name,
                number,
                database: database.clone(),
                random: Random::new(seeds.bits()),
                acknowledged: Vec::new(),
            };
            writing.push(tokio::spawn(async move { (number, writer.run().await) }));
        }
    }
    writing
}

struct Writer {
    world: Arc<World>,
    side: &'static str,
    number: usize,
    database: Database,
    random: Random,
    acknowledged: Vec<(String, String)>,
}

/// The response to a request, if there is one.
type Answer = Option<(StatusCode, Value)>;

impl Writer {
    async fn run(mut self) -> Vec<(String, String)> {
        let options = &self.world.options;
        let writers = 2.0 * options.databases as f64;
        let mean_ms = (1_000.0 * writers / options.writes_per_second) as u64;
        loop {
            let pause = Duration::from_millis(self.random.below(2 * mean_ms.max(1)));
            tokio::select! {
                () = self.world.stop.cancelled() => return self.acknowledged,
                () = tokio::time::sleep(pause) => {}
            }
            if self.is_quiet() {
                continue;
            }
            let done = self.write().await;
            let counts = &self.world.counts;
            let count = if done.is_some() { &counts.written } else { &counts.unwritten };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this database currently has no writes. On both sides, each third of the databases has none in turn, so that
    /// jobs without changes are parked and later woken.
    fn is_quiet(&self) -> bool {
        let phase = self.world.begun.elapsed().as_secs() / QUIET_SECONDS;
        (usize::try_from(phase).unwrap_or_default() + self.number).is_multiple_of(3)
    }

    /// Makes one random change. `None` if it failed, because the server is down or another writer was first.
    async fn write(&mut self) -> Option<()> {
        let id = format!("{}", self.random.below(POOL));
        match self.random.below(1_000) {
            0..300 => self.add().await,
            300..600 => self.update(&id).await,
            600..700 => self.delete(&id).await,
            700..850 => self.branch(&id).await,
            850..900 => self.resolve(&id).await,
            900..960 => self.attach_small(&id).await,
            960..970 => self.attach_large(&id).await,
            _ => self.burst().await,
        }
    }

    fn body(&mut self, bytes: u64) -> Value {
        let length = usize::try_from(self.random.below(bytes)).expect("a few bytes");
        json!({ "side": self.side, "number": self.random.below(1 << 40), "text": self.random.text(length) })
    }

    async fn add(&mut self) -> Option<()> {
        let (id, body) = (self.random.hex32(), self.body(2_000));
        self.put(&id, &body).await
    }

    async fn update(&mut self, id: &str) -> Option<()> {
        let mut body = self.body(2_000);
        if let Some(stored) = self.read(id, "").await? {
            for field in ["_rev", "_attachments"] {
                if let Some(value) = stored.get(field) {
                    body[field] = value.clone();
                }
            }
        }
        self.put(id, &body).await
    }

    async fn delete(&mut self, id: &str) -> Option<()> {
        let stored = self.read(id, "").await??;
        self.delete_revision(id, stored["_rev"].as_str()?).await
    }

    /// Adds a branch beside the winner, as a replication from another server does.
    async fn branch(&mut self, id: &str) -> Option<()> {
        let stored = self.read(id, "?revs=true").await??;
        let mut ids = stored["_revisions"]["ids"].as_array()?.clone();
        let start = stored["_revisions"]["start"].as_u64()?;
        let back = 1 + self.random.below(3).min(ids.len() as u64 - 1);
        ids.drain(..usize::try_from(back).expect("a few generations"));
        let hash = self.random.hex32();
        ids.insert(0, json!(hash));
        let generation = start - back + 1;
        let mut body = self.body(1_000);
        let rev = format!("{generation}-{hash}");
        body["_id"] = json!(id);
        body["_rev"] = json!(rev);
        body["_revisions"] = json!({ "start": generation, "ids": ids });
        if self.random.below(8) == 0 {
            body = json!({ "_id": id, "_rev": rev, "_revisions": body["_revisions"], "_deleted": true });
        }
        let request = json!({ "new_edits": false, "docs": [body] });
        let (_, answer) =
            self.request(Method::POST, "/_bulk_docs", Some(&request)).await.filter(succeeded)?;
        if answer == json!([]) {
            self.acknowledged.push((id.to_owned(), rev));
        }
        Some(())
    }

    /// Deletes one of the losing branches.
    async fn resolve(&mut self, id: &str) -> Option<()> {
        let stored = self.read(id, "?conflicts=true").await??;
        let Some(rev) = stored["_conflicts"].get(0).and_then(Value::as_str) else { return Some(()) };
        self.delete_revision(id, rev).await
    }

    async fn attach_small(&mut self, id: &str) -> Option<()> {
        let bytes = usize::try_from(self.random.below(SMALL_ATTACHMENT_BYTES)).expect("a small number");
        let (name, kind) = [
            ("ä b.txt", "text/plain"),
            ("b.bin", "application/octet-stream"),
            ("c/d.json", "application/json"),
        ][usize::try_from(self.random.below(3)).expect("an index")];
        let bytes = if kind == "text/plain" {
            self.random.text(bytes).into_bytes()
        } else {
            self.random.bytes(bytes)
        };
        let mut body = self.body(500);
        if let Some(stored) = self.read(id, "").await? {
            body["_rev"] = stored["_rev"].clone();
            if let Some(stubs) = stored.get("_attachments") {
                body["_attachments"] = stubs.clone();
            }
        }
        body["_attachments"][name] = json!({ "content_type": kind, "data": STANDARD.encode(bytes) });
        self.put(id, &body).await
    }

    async fn attach_large(&mut self, id: &str) -> Option<()> {
        let rev =
            self.read(id, "").await?.and_then(|stored| Some(format!("?rev={}", stored["_rev"].as_str()?)));
        let options = &self.world.options;
        let most = options.attachment_max_bytes;
        let most = if options.gateways { most.min(ATTACHMENT_MAX_BYTES) } else { most } as u64;
        let bytes = LARGE_ATTACHMENT_MIN_BYTES + self.random.below(most - LARGE_ATTACHMENT_MIN_BYTES);
        let bytes = usize::try_from(bytes).expect("it is in memory");
        let (name, kind, bytes) = match self.random.below(2) {
            0 => ("large.txt", "text/plain", self.random.text(bytes).into_bytes()),
            _ => ("large.bin", "application/octet-stream", self.random.bytes(bytes)),
        };
        let url = format!("{}/{}/{name}{}", self.database.url(), encode_segment(id), rev.unwrap_or_default());
        let request = self.database.client().put(url).header("content-type", kind).body(bytes);
        let answer = request
            .timeout(ANSWER_TIMEOUT)
            .send()
            .await
            .ok()
            .filter(|answer| answer.status().is_success())?;
        self.acknowledge(&answer.json().await.ok()?);
        Some(())
    }

    async fn burst(&mut self) -> Option<()> {
        let count = 1 + self.random.below(BURST_DOCUMENTS);
        let large = self.world.options.gateways && self.random.below(5) == 0;
        let bytes = if large { LARGE_DOCUMENT_BYTES } else { BURST_DOCUMENT_BYTES };
        let docs: Vec<Value> = (0..count)
            .map(|_| {
                let mut doc = self.body(bytes);
                doc["_id"] = json!(self.random.hex32());
                doc
            })
            .collect();
        let request = json!({ "docs": docs });
        let (_, answer) =
            self.request(Method::POST, "/_bulk_docs", Some(&request)).await.filter(succeeded)?;
        answer.as_array()?.iter().for_each(|row| self.acknowledge(row));
        Some(())
    }

    /// A document's winner. `Some(None)` if the document does not exist.
    async fn read(&self, id: &str, query: &str) -> Option<Option<Value>> {
        let path = format!("/{}{query}", encode_segment(id));
        match self.request(Method::GET, &path, None).await? {
            (StatusCode::NOT_FOUND, _) => Some(None),
            (status, doc) if status.is_success() => Some(Some(doc)),
            _ => None,
        }
    }

    async fn put(&mut self, id: &str, body: &Value) -> Option<()> {
        let path = format!("/{}", encode_segment(id));
        let (_, answer) = self.request(Method::PUT, &path, Some(body)).await.filter(succeeded)?;
        self.acknowledge(&answer);
        Some(())
    }

    async fn delete_revision(&mut self, id: &str, rev: &str) -> Option<()> {
        let path = format!("/{}?rev={rev}", encode_segment(id));
        let (_, answer) = self.request(Method::DELETE, &path, None).await.filter(succeeded)?;
        self.acknowledge(&answer);
        Some(())
    }

    /// Notes a revision that the server reports as written.
    fn acknowledge(&mut self, answer: &Value) {
        if let (Some(id), Some(rev)) = (answer["id"].as_str(), answer["rev"].as_str()) {
            self.acknowledged.push((id.to_owned(), rev.to_owned()));
        }
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let url = format!("{}{path}", self.database.url());
        let mut request = self.database.client().request(method, url).timeout(ANSWER_TIMEOUT);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status();
        Some((status, answer.json().await.ok()?))
    }
}

fn succeeded((status, _): &(StatusCode, Value)) -> bool {
    status.is_success()
}
