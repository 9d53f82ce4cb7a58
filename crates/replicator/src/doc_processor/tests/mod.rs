//! Tests of documents and their jobs, edge by edge.

#![allow(clippy::unwrap_used)]

mod ended;
mod filter_checks;
mod invariants;
mod resolve;
mod write;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use turnwise_queue::check::{Finding, Invariant, Row as Key};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::{Claim, Context, Job, State, jobs, workers};
use turnwise_store::{Isolation, RangeRead, Runtime};

use super::*;
use crate::check::{
    DocumentKey, DocumentRows, check_database, check_document, check_documents_job, document_of, unreadable,
};
use crate::documents::databases::Database;
use crate::documents::tests::World as Documents;
use crate::documents::{Counters, Document, Revision};

pub(crate) use crate::documents::tests::DB;

/// A replicator database and a worker, without the worker's loop.
pub(super) struct World {
    pub documents: Documents,
    pub settings: Settings,
    claims: std::sync::atomic::AtomicU64,
}

const WORKER: &str = "worker";

impl World {
    pub async fn new() -> World {
        let documents = Documents::new().await;
        let settings = Settings { server_uuid: "uuid".into(), defaults: Defaults::default() };
        let world = World { documents, settings, claims: Default::default() };
        let row = workers::Worker::new(WORKER, "n", 0, 9);
        let (keys, row) = (world.keys(), &row);
        world
            .store()
            .transact(|tx| async move { workers::register(&tx, keys, JOB_TYPE, row) })
            .await
            .unwrap();
        world
    }

    pub fn store(&self) -> &Store {
        &self.documents.store
    }

    pub fn keys(&self) -> &Keyspace {
        &self.documents.keys
    }

    /// All rows of the store.
    pub async fn rows(&self) -> Vec<turnwise_store::KeyValue> {
        let tx = self.store().begin().await.unwrap();
        let (begin, end) = (bytes::Bytes::new(), bytes::Bytes::from_static(b"\xff"));
        let read = RangeRead { begin, end, limit: 100_000, reverse: false };
        tx.range_with(read, Isolation::Snapshot).await.unwrap()
    }

    /// Lets everything happen that does not wait for time. The store's committer is a separate thread, so yielding to
    /// other tasks does not wait for it. But it commits in the order of arrival. After each of these commits, all
    /// earlier ones are complete, and the tasks that waited for them have run.
    pub async fn settle(&self) {
        for _ in 0..8 {
            let tx = self.store().begin().await.unwrap();
            tx.clear("nothing".into()).unwrap();
            tx.commit().await.unwrap();
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
    }

    pub fn now_us(&self) -> i64 {
        self.documents.clock.now_us()
    }

    /// Writes a document with its current revision.
    pub async fn put(&self, id: &str, body: Value) -> Result<Written> {
        self.put_in(DB, id, body).await
    }

    pub async fn put_in(&self, db: &str, id: &str, body: Value) -> Result<Written> {
        let tx = self.store().begin().await.unwrap();
        let head = documents::read::by_key(&tx, self.keys(), db, id).await.unwrap();
        let rev = head.filter(|head| !head.deleted).map(|head| head.rev);
        self.put_as(db, id, rev, body).await
    }

    pub async fn put_as(&self, db: &str, id: &str, rev: Option<Revision>, body: Value) -> Result<Written> {
        let body = body.as_object().unwrap().clone();
        let draft = &Draft { id: id.into(), rev, deleted: false, body };
        let (keys, settings, now_us) = (self.keys(), &self.settings, self.now_us());
        self.store().transact(|tx| async move { write(&tx, keys, settings, db, draft, now_us).await }).await
    }

    pub async fn delete(&self, id: &str) {
        let rev = self.get(id).await.head.rev;
        let (keys, rev) = (self.keys(), &rev);
        let deleted = self.store().transact(|tx| async move { delete(&tx, keys, DB, id, Some(rev)).await });
        deleted.await.unwrap();
    }

    pub async fn get(&self, id: &str) -> Document {
        self.documents.get(id, None).await.unwrap()
    }

    pub async fn jobs(&self) -> Vec<Job> {
        let tx = self.store().begin().await.unwrap();
        jobs::list(&tx, self.keys(), JOB_TYPE, None, 1_000).await.unwrap()
    }

    /// The only job.
    pub async fn job(&self) -> Job {
        let mut jobs = self.jobs().await;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    pub async fn options(&self, job: &Job) -> Value {
        let tx = self.store().begin().await.unwrap();
        let options = jobs::options(&tx, self.keys(), job).await.unwrap();
        serde_json::from_str(options.get()).unwrap()
    }

    pub async fn status(&self, id: &str) -> Option<Value> {
        let tx = self.store().begin().await.unwrap();
        let status = status(&tx, self.keys(), &mut Nodes::default(), DB, id, 9).await.unwrap();
        status.map(|status| serde_json::to_value(status).unwrap())
    }

    pub async fn state(&self, id: &str) -> String {
        self.status(id).await.unwrap()["state"].as_str().unwrap().to_owned()
    }

    /// Claims a job, as a worker does.
    pub async fn start(&self, id: &str) -> Claim {
        let number = self.claims.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let claim = Claim { worker: WORKER.into(), number };
        let (keys, by, now_us) = (self.keys(), &claim, self.now_us());
        let claimed = self
            .store()
            .transact(|tx| async move {
                claims::claim(Context::new(&tx, keys, JOB_TYPE, now_us, 20), id, by).await
            })
            .await;
        assert!(claimed.unwrap().is_some(), "{id} is not pending");
        claim
    }

    /// Ends a run, as a worker does with the replication handler.
    pub async fn end(&self, id: &str, claim: &Claim, ending: Ending, info: Option<Value>) {
        let info = info.map(|info| serde_json::value::to_raw_value(&info).unwrap());
        let (keys, now_us, ending, info) = (self.keys(), self.now_us(), &ending, info.as_deref());
        let ended = self.store().transact(|tx| async move {
            match claims::end(Context::new(&tx, keys, JOB_TYPE, now_us, 20), id, claim, ending, info, None)
                .await?
            {
                claims::Ended::Recorded(Some(job)) => job_ended(&tx, keys, &job, now_us).await,
                _ => Ok(()),
            }
        });
        ended.await.unwrap();
    }
}

pub(super) fn completed() -> Ending {
    Ending::completed(RawValue::from_string(r#"{"ok":true}"#.into()).unwrap())
}

/// A document whose source has the host name `source`.
pub(super) fn doc(source: &str) -> Value {
    json!({ "source": format!("http://u:hunter2@{source}/db"), "target": "http://t/db" })
}

pub(super) fn with(mut body: Value, more: Value) -> Value {
    let more: Map<String, Value> = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

pub(super) fn body(document: &Document) -> Value {
    Value::Object(document.body.clone())
}

pub(super) fn is_final(job: &Job) -> bool {
    matches!(job.state(), State::Completed | State::Failed | State::Cancelled)
}

/// Checks every `_replicator` database of a store, given all of its rows.
pub(super) fn check_rows(keys: &Keyspace, rows: &[(Bytes, Bytes)]) -> Vec<Finding> {
    let mut documents: BTreeMap<DocumentKey, DocumentRows> = BTreeMap::new();
    let mut databases: BTreeMap<String, (Option<Database>, Option<Counters>, Counters)> = BTreeMap::new();
    let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
    let mut findings = Vec::new();
    for (key, value) in rows {
        let Some(row) = Key::parse(keys, key) else { continue };
        if let Some(problem) = unreadable(&row, value) {
            findings.push(Finding::new(Invariant::Readable, key, problem));
            continue;
        }
        let document = match &row {
            Key::Database(db) => {
                databases.entry(db.clone()).or_default().0 = serde_json::from_slice(value).ok();
                continue;
            }
            Key::Sequence(db) => {
                databases.entry(db.clone()).or_default().1 = serde_json::from_slice(value).ok();
                continue;
            }
            Key::Job(job) => {
                let read = turnwise_queue::check::read_record(job, value).ok();
                jobs.extend(read.filter(|job| job.job_type == JOB_TYPE).map(|job| (job.id.clone(), job)));
                continue;
            }
            Key::Change(db, _) => (db.clone(), serde_json::from_slice(value).unwrap_or_default()),
            Key::Document(db, id)
            | Key::Body(db, id, _)
            | Key::Replication(db, id)
            | Key::Unresolved(_, db, id)
            | Key::FilterCheck(_, db, id) => (db.clone(), id.clone()),
            _ => continue,
        };
        let rows = documents.entry(document.clone()).or_default();
        rows.add(&row, key, value);
        let tally = &mut databases.entry(document.0).or_default().2;
        if let (Key::Document(..), Some(head)) = (&row, &rows.head) {
            tally.count(head);
        }
    }
    for (key, rows) in &documents {
        let database = databases.get(&key.0).and_then(|(database, ..)| database.as_ref());
        let job = rows.replication.as_ref().and_then(|row| jobs.get(row.job.as_ref()?));
        findings.extend(check_document(keys, key, rows, database, job));
    }
    for job in jobs.values() {
        let rows = document_of(job).and_then(|key| documents.get(&key));
        findings.extend(check_documents_job(keys, job, rows.and_then(|rows| rows.replication.as_ref())));
    }
    for (db, (database, counters, tally)) in &databases {
        findings.extend(check_database(keys, db, database.as_ref(), counters.as_ref(), tally));
    }
    findings
}
