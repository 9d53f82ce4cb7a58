//! Readers that take longer than the lifetime of a transaction.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::HeaderMap;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use turnwise_config::{Config, Shared};
use turnwise_indexer::jobs::Indexing;
use turnwise_metrics::Metrics;
use turnwise_outbound::{Client, PeerSettings};
use turnwise_queue::{Claim, Context, Keyspace, Worker, claims, jobs, workers};
use turnwise_replicator::doc_processor::Settings;
use turnwise_replicator::{Defaults, JOB_TYPE};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Runtime, Store, runtime};
use turnwise_web::access::Identities;
use turnwise_worker::{External, Live};

use super::*;

const PEER: Peer =
    Peer { address: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), tls: false, names: None };

const DB: &str = "_replicator";
/// Longer than the lifetime of a transaction.
const LONG: Duration = Duration::from_secs(60);
/// Longer than any step here takes on a machine that is busy compiling.
const PATIENCE: Duration = Duration::from_secs(60);
/// All of them fit one page, and exceed what the server sends ahead of a slow reader.
const DOCS: usize = 150;

/// The state that requests need, with a clock that the test moves.
struct World {
    app: App,
    clock: Arc<runtime::Manual>,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let clock = runtime::Manual::new(1_000_000, 1);
        let runtime: Arc<dyn Runtime> = clock.clone();
        let options = Options { durable: false, runtime: runtime.clone(), ..Options::default() };
        let engine = Embedded::open_with(folder.path().join("store"), options).unwrap();
        let (store, keys) = (Store::new(engine, runtime), Keyspace::default());
        let identities = Identities::new(store.clone(), keys.clone(), Client::new().unwrap());
        let config: Live<Arc<Config>> = Arc::new(Config::default()).into();
        let client = Client::new().unwrap();
        let external = External::new(store.clone(), keys.clone(), Default::default());
        let indexing = Indexing::new(Default::default(), &PeerSettings::default(), &client);
        let shared = Shared::new(store.clone(), keys.clone(), Config::default());
        let web = Arc::new(turnwise_web::Shared {
            store,
            keys,
            node: "node".into(),
            stop: CancellationToken::new(),
            config,
            external,
            catalogue: Arc::default(),
            demand: Default::default(),
            identities,
            jwt: None,
            audit: None,
            pace: Default::default(),
            names: Names::new("127.0.0.1:7984".parse().unwrap(), "", &[]),
            body_room: Default::default(),
            refused_page: |_, _| unreachable!("nothing asks for a page"),
        });
        let metrics = Metrics::new(web.clone(), client.clone(), indexing, Default::default(), PATTERNS);
        let app = Arc::new(AppState {
            web,
            settings: Settings { server_uuid: "uuid".into(), defaults: Defaults::default() }.into(),
            client,
            shared,
            upstream: None,
            metrics: Arc::new(metrics),
            spans: Default::default(),
            turns: Default::default(),
        });
        let world = World { app, clock, _folder: folder };
        world.call("PUT", Part::Itself, "", Value::Null).await;
        world.fill("a").await;
        world
    }

    async fn call(&self, method: &str, part: Part, query: &str, body: Value) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let call = Call {
            method,
            params: Params::new(Some(query)),
            headers,
            caller: Caller::everyone(),
            peer: PEER,
        };
        let answer = database(&self.app, &call, Body::from(body.to_string()), DB, part).await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        answer
    }

    /// Writes as many documents as fit one page, some MB in total.
    async fn fill(&self, prefix: &str) {
        let doc = |n| json!({"_id": id(prefix, n), "_replication_state": "failed", "x": "x".repeat(11_000)});
        let docs: Vec<Value> = (0..DOCS).map(doc).collect();
        self.call("POST", Part::BulkDocs, "", json!({ "docs": docs })).await;
    }

    /// Lets a worker claim every job, so that its report is read, too.
    async fn start_jobs(&self) {
        let (keys, row) = (&self.app.keys, &Worker::new("w", "n", 0, 1_000));
        let started = self.app.store.transact(|tx| async move {
            workers::register(&tx, keys, JOB_TYPE, row)?;
            let all = jobs::list(&tx, keys, JOB_TYPE, None, 1_000).await?;
            for (job, number) in all.iter().zip(0..) {
                let claim = Claim { worker: row.id.clone(), number };
                claims::claim(Context::new(&tx, keys, JOB_TYPE, 1_000_000, 20), &job.id, &claim).await?;
            }
            Ok::<_, turnwise_queue::Error>(())
        });
        started.await.unwrap();
    }
}

fn id(prefix: &str, n: usize) -> String {
    format!("{prefix}{n:03}")
}

fn ids(prefix: &str) -> Vec<String> {
    (0..DOCS).map(|n| id(prefix, n)).collect()
}

/// A reader that has read the first rows, and has paused.
struct Reader {
    body: BodyDataStream,
    text: Vec<u8>,
}

impl Reader {
    /// When this returns, the buffers are full, and the writer waits for its reader.
    async fn new(answer: Response) -> Reader {
        let mut reader = Reader { body: answer.into_body().into_data_stream(), text: Vec::new() };
        while reader.text.len() < 11_000 {
            assert!(reader.read().await, "the answer is over already");
        }
        reader
    }

    async fn read(&mut self) -> bool {
        let piece = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("nothing comes");
        match piece {
            None => false,
            Some(piece) => {
                self.text.extend_from_slice(&piece.expect("the answer broke off"));
                true
            }
        }
    }

    async fn rest(mut self) -> Value {
        while self.read().await {}
        serde_json::from_slice(&self.text).unwrap()
    }
}

fn sent(answer: &Value, rows: &str) -> Vec<String> {
    answer[rows].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_slow_reader_gets_all_documents() {
    let world = World::new().await;
    for (descending, mut expected) in [(false, ids("a")), (true, ids("a").into_iter().rev().collect())] {
        let query = format!("include_docs=true&skip=2&limit=140&descending={descending}");
        let mut reader = Reader::new(world.call("GET", Part::AllDocs, &query, Value::Null).await).await;
        world.clock.advance(LONG);
        assert!(reader.read().await);
        let answer = reader.rest().await;
        expected.drain(..2);
        expected.truncate(140);
        assert_eq!(sent(&answer, "rows"), expected);
        assert_eq!(answer["rows"][139]["doc"]["_id"], expected[139]);
    }
}

#[tokio::test]
async fn a_slow_reader_gets_the_documents_that_it_names() {
    let world = World::new().await;
    let keys = json!({ "keys": ids("a") });
    let answer = world.call("POST", Part::AllDocs, "include_docs=true", keys).await;
    let reader = Reader::new(answer).await;
    world.clock.advance(LONG);
    assert_eq!(sent(&reader.rest().await, "rows"), ids("a"));
    let wanted: Vec<Value> = ids("a").into_iter().map(|id| json!({ "id": id })).collect();
    let reader = Reader::new(world.call("POST", Part::BulkGet, "", json!({ "docs": wanted })).await).await;
    world.clock.advance(LONG);
    let answer = reader.rest().await;
    assert_eq!(sent(&answer, "results"), ids("a"));
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|row| row["docs"][0]["ok"]["_id"] == row["id"]), "a document got lost");
}

#[tokio::test]
async fn a_slow_reader_gets_all_changes() {
    let world = World::new().await;
    let reader = Reader::new(world.call("GET", Part::Changes, "include_docs=true", Value::Null).await).await;
    world.clock.advance(LONG);
    let answer = reader.rest().await;
    assert_eq!(sent(&answer, "results"), ids("a"));
    assert_eq!((&answer["last_seq"], &answer["pending"]), (&json!("150"), &json!(0)));
    let query = "include_docs=true&descending=true&limit=149";
    let reader = Reader::new(world.call("GET", Part::Changes, query, Value::Null).await).await;
    world.clock.advance(LONG);
    let expected: Vec<String> = ids("a").into_iter().rev().take(149).collect();
    assert_eq!(sent(&reader.rest().await, "results"), expected);
}

#[tokio::test]
async fn a_slow_reader_gets_all_jobs() {
    let world = World::new().await;
    let source = |n| format!("http://s/{n:0>500}");
    let doc = |n| json!({"_id": id("j", n), "source": source(n), "target": "http://t/db"});
    let docs: Vec<Value> = (0..600).map(doc).collect();
    world.call("POST", Part::BulkDocs, "", json!({ "docs": docs })).await;
    world.start_jobs().await;
    let params = Params::new(Some("limit=590&skip=5"));
    let call = Call {
        method: Method::GET,
        params,
        headers: HeaderMap::new(),
        caller: Caller::everyone(),
        peer: PEER,
    };
    let reader = Reader::new(scheduler::jobs(&world.app, &call).await.unwrap()).await;
    world.clock.advance(LONG);
    let answer = reader.rest().await;
    assert_eq!((&answer["total_rows"], &answer["offset"]), (&json!(600), &json!(5)));
    let told = sent(&answer, "jobs");
    assert!(told.is_sorted_by(|one, next| one < next), "a job occurs twice");
    assert_eq!(told.len(), 590);
}

#[tokio::test]
async fn a_feed_ends_where_its_database_was_created_anew() {
    let world = World::new().await;
    let reader = Reader::new(world.call("GET", Part::Changes, "include_docs=true", Value::Null).await).await;
    world.clock.advance(LONG);
    world.call("DELETE", Part::Itself, "", Value::Null).await;
    world.call("PUT", Part::Itself, "", Value::Null).await;
    world.fill("b").await;
    let answer = reader.rest().await;
    let told = sent(&answer, "results");
    assert!(!told.is_empty() && told.len() < DOCS, "{}", told.len());
    assert_eq!(told, ids("a")[..told.len()], "changes of another database, or none of the first");
    assert_eq!((&answer["last_seq"], &answer["pending"]), (&json!(told.len().to_string()), &json!(0)));
}
