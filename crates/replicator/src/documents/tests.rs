//! Tests of databases and documents, write by write.

#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use serde_json::{Map, Value, json};
use turnwise_queue::Keyspace;
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Limits, Store, runtime};

use super::read::{self, Stretch};
use super::write::Slot;
use super::*;

/// A store with the database `_replicator`.
pub(crate) struct World {
    pub store: Store,
    pub keys: Keyspace,
    pub clock: Arc<runtime::Manual>,
    _folder: tempfile::TempDir,
}

pub(crate) const DB: &str = names::REPLICATOR;

impl World {
    pub async fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let clock = runtime::Manual::new(1_000_000, 1);
        let runtime: Arc<dyn turnwise_store::Runtime> = clock.clone();
        let options = Options { durable: false, runtime: runtime.clone(), ..Options::default() };
        let engine = Embedded::open_with(folder.path().join("store"), options).unwrap();
        let world = World {
            store: Store::new(engine, runtime).with_limits(Limits::SMALL),
            keys: Keyspace::default(),
            clock,
            _folder: folder,
        };
        world.create(DB).await.unwrap();
        world
    }

    pub async fn create(&self, db: &str) -> Result<()> {
        let keys = &self.keys;
        self.store.transact(|tx| async move { databases::create(&tx, keys, db, 7).await }).await
    }

    pub async fn put(
        &self,
        id: &str,
        rev: Option<&Revision>,
        deleted: bool,
        body: Value,
    ) -> Result<Revision> {
        let (keys, body) = (&self.keys, body.as_object().unwrap());
        let write = self.store.transact(|tx| async move {
            let mut slot = Slot::open(DocTx { tx: &tx, keys, db: DB, id }, rev).await?;
            slot.write(deleted, body)
        });
        Ok(write.await?.rev)
    }

    pub async fn get(&self, id: &str, rev: Option<&Revision>) -> Result<Document> {
        let tx = self.store.begin().await.unwrap();
        read::get(&tx, &self.keys, DB, id, rev).await
    }

    pub async fn ids(&self, stretch: &Stretch, page: usize) -> Vec<String> {
        let tx = self.store.begin().await.unwrap();
        let (mut ids, mut next) = (Vec::new(), None);
        loop {
            let found = read::page(&tx, &self.keys, DB, stretch, next, page).await.unwrap();
            ids.extend(found.heads.into_iter().map(|head| head.id));
            next = found.next;
            if next.is_none() {
                return ids;
            }
        }
    }

    pub async fn changes(
        &self,
        since: i64,
        descending: bool,
        page: usize,
    ) -> Vec<(i64, String, Revision, bool)> {
        let tx = self.store.begin().await.unwrap();
        let (mut all, mut since) = (Vec::new(), since);
        loop {
            let found = changes::page(&tx, &self.keys, DB, since, descending, page).await.unwrap();
            since = found.last;
            all.extend(
                found.changes.into_iter().map(|head| (head.sequence, head.id, head.rev, head.deleted)),
            );
            if !found.more {
                return all;
            }
        }
    }

    pub async fn counters(&self) -> Counters {
        let tx = self.store.begin().await.unwrap();
        databases::info(&tx, &self.keys, DB).await.unwrap().1
    }
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[tokio::test]
async fn a_document_comes_back_as_it_was_written() {
    let world = World::new().await;
    let long = "é".repeat(150_000);
    let body = json!({"source": "x", "z": 1, "a": [1.5, null, {"deep": long}]});
    let rev = world.put("doc", None, false, body.clone()).await.unwrap();
    assert_eq!(rev.generation, 1);
    let document = world.get("doc", None).await.unwrap();
    assert_eq!(Value::Object(document.body.clone()), body);
    // The order of the members is kept as well.
    assert_eq!(document.body.keys().collect::<Vec<_>>(), ["source", "z", "a"]);
    assert_eq!(document.head.rev, rev);
    let shorter = world.put("doc", Some(&rev), false, json!({})).await.unwrap();
    assert_eq!(world.get("doc", Some(&shorter)).await.unwrap().body, Map::new());
}

#[tokio::test]
async fn revisions_follow_from_the_history_alone() {
    let (one, other) = (World::new().await, World::new().await);
    let mut revs = Vec::new();
    for world in [&one, &other] {
        let first = world.put("a", None, false, json!({"x": 1})).await.unwrap();
        let second = world.put("a", Some(&first), false, json!({"x": 2})).await.unwrap();
        let gone = world.put("a", Some(&second), true, json!({})).await.unwrap();
        let again = world.put("a", None, false, json!({"x": 1})).await.unwrap();
        revs.push([first, second, gone, again]);
    }
    assert_eq!(revs[0], revs[1]);
    assert_eq!(revs[0].iter().map(|rev| rev.generation).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(revs[0].iter().all(|rev| rev.hash.len() == 32));
    let document = one.get("a", None).await.unwrap();
    let hashes: Vec<String> = revs[0][..3].iter().rev().map(|rev| rev.hash.clone()).collect();
    assert_eq!(document.head.ancestors, hashes);
}

#[tokio::test]
async fn a_write_needs_the_current_revision() {
    let world = World::new().await;
    let first = world.put("a", None, false, json!({"x": 1})).await.unwrap();
    let second = world.put("a", Some(&first), false, json!({"x": 2})).await.unwrap();
    for rev in [None, Some(&first)] {
        assert!(matches!(world.put("a", rev, false, json!({})).await, Err(Error::Conflict)));
        assert!(matches!(world.put("a", rev, true, json!({})).await, Err(Error::Conflict)));
    }
    assert_eq!(world.get("a", None).await.unwrap().head.rev, second);
    assert!(matches!(world.get("a", Some(&first)).await, Err(Error::Missing)));
    let gone = world.put("a", Some(&second), true, json!({})).await.unwrap();
    assert!(matches!(world.get("a", None).await, Err(Error::Deleted)));
    assert!(world.get("a", Some(&gone)).await.unwrap().head.deleted);
    assert!(matches!(world.put("a", Some(&second), false, json!({})).await, Err(Error::Conflict)));
    world.put("a", Some(&gone), false, json!({})).await.unwrap();
}

#[tokio::test]
async fn a_new_document_continues_the_history_that_it_came_with() {
    let world = World::new().await;
    let rev = "7-abc".parse().unwrap();
    assert_eq!(world.put("a", Some(&rev), false, json!({})).await.unwrap().generation, 8);
}

#[tokio::test]
async fn the_largest_generation_that_is_accepted_can_be_read_and_grow() {
    let world = World::new().await;
    let largest: Revision = "4503599627370496-abc".parse().unwrap();
    let rev = world.put("a", Some(&largest), false, json!({})).await.unwrap();
    assert_eq!(rev.generation, largest.generation + 1);
    assert_eq!(world.get("a", None).await.unwrap().head.rev, rev);
    let later = world.put("a", Some(&rev), true, json!({})).await.unwrap();
    assert_eq!(world.get("a", Some(&later)).await.unwrap().head.rev.generation, largest.generation + 2);
    for beyond in ["4503599627370497-abc", "18446744073709551615-abc"] {
        let refused = world.put("b", Some(&beyond.parse().unwrap()), false, json!({})).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    "18446744073709551616-abc".parse::<Revision>().unwrap_err();
}

#[tokio::test]
async fn two_writers_at_once_never_both_win() {
    let world = Arc::new(World::new().await);
    let first = world.put("a", None, false, json!({})).await.unwrap();
    let writers = (0..8).map(|n| {
        let (world, first) = (world.clone(), first.clone());
        tokio::spawn(async move { world.put("a", Some(&first), false, json!({"n": n})).await.is_ok() })
    });
    let mut won = 0;
    for writer in writers.collect::<Vec<_>>() {
        won += usize::from(writer.await.unwrap());
    }
    assert_eq!(won, 1);
    assert_eq!(world.counters().await, Counters { sequence: 2, documents: 1, deleted: 0 });
}

#[tokio::test]
async fn a_document_that_is_too_large_is_refused() {
    let world = World::new().await;
    let fits = "x".repeat(MAX_BODY_BYTES - r#"{"x":""}"#.len());
    let rev = world.put("a", None, false, json!({"x": fits})).await.unwrap();
    let refused = world.put("a", Some(&rev), false, json!({"x": format!("{fits}y")})).await;
    assert!(matches!(refused, Err(Error::TooLarge { size, limit, .. }) if size == limit + 1));
}

#[tokio::test]
async fn a_deleted_database_is_gone_with_its_documents() {
    let world = World::new().await;
    world.put("a", None, false, json!({})).await.unwrap();
    let keys = &world.keys;
    world.store.transact(|tx| async move { databases::hide(&tx, keys, DB).await }).await.unwrap();
    assert!(matches!(world.get("a", None).await, Err(Error::NoDatabase)));
    assert!(matches!(world.put("b", None, false, json!({})).await, Err(Error::NoDatabase)));
    assert!(matches!(world.create(DB).await, Err(Error::DatabaseExists)));
    world.store.transact(|tx| async move { databases::erase(&tx, keys, DB) }).await.unwrap();
    world.create(DB).await.unwrap();
    assert!(matches!(world.get("a", None).await, Err(Error::Missing)));
    assert_eq!(world.counters().await, Counters::default());
}

#[tokio::test]
async fn databases_are_listed_by_name() {
    let world = World::new().await;
    for db in ["b/_replicator", "a/_replicator", "a/b/_replicator"] {
        world.create(db).await.unwrap();
    }
    let tx = world.store.begin().await.unwrap();
    let names = async |after: Option<&str>, limit| {
        let list = databases::list(&tx, &world.keys, after, limit).await.unwrap();
        list.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(None, 10).await, ["_replicator", "a/_replicator", "a/b/_replicator", "b/_replicator"]);
    assert_eq!(names(Some("a/_replicator"), 1).await, ["a/b/_replicator"]);
}

#[test]
fn names_are_replicator_databases_or_refused_with_a_reason() {
    for name in ["_replicator", "a/_replicator", "a1_$()+-/b/_replicator"] {
        assert!(names::check_database(name).is_ok(), "{name}");
    }
    for name in [
        "",
        "_bad",
        "Bad",
        "/_replicator",
        "A/_replicator",
        "1/_replicator",
        "a b/_replicator",
        "_x/_replicator",
    ] {
        assert!(matches!(names::check_database(name), Err(Error::IllegalName(_))), "{name}");
    }
    for name in ["db", "a_replicator", "a/_replicator/b", "_users"] {
        assert!(matches!(names::check_database(name), Err(Error::NotReplicator(_))), "{name}");
    }
    let long = format!("{}/_replicator", "a".repeat(238));
    assert!(matches!(names::check_database(&long), Err(Error::IllegalName(_))));
    assert!(!names::is_replicator(&long));
}

#[test]
fn a_draft_is_read_from_path_and_body() {
    let body = json!({"_id": "a", "_rev": "3-x", "_deleted": true, "_revisions": {"start": 3}, "_attachments": {},
        "_replication_state": "failed", "source": "s"});
    let draft = Draft::parse(Some("a"), map(body.clone()), "new").unwrap();
    assert_eq!((draft.id.as_str(), draft.deleted), ("a", true));
    assert_eq!(draft.rev.unwrap().to_string(), "3-x");
    assert_eq!(Value::Object(draft.body), json!({"_replication_state": "failed", "source": "s"}));
    assert_eq!(Draft::parse(None, map(json!({})), "new").unwrap().id, "new");
    assert_eq!(Draft::parse(None, map(body), "new").unwrap().id, "a");
    for (id, body, said) in [
        (Some("b"), json!({"_id": "a"}), "Document ID must match the ID in the URL"),
        (None, json!({"_id": 5}), "Document id must be a string"),
        (None, json!({"_id": ""}), "Document id must not be empty"),
        (None, json!({"_id": "_x"}), "Only reserved document ids may start with underscore."),
        (None, json!({"_rev": 5}), "Invalid rev format"),
        (None, json!({"_rev": "x"}), "Invalid rev format"),
        (None, json!({"_rev": "0-x"}), "Invalid rev format"),
        (None, json!({"_rev": "1-"}), "Invalid rev format"),
        (None, json!({"_rev": "1-\n"}), "Invalid rev format"),
        (None, json!({"_deleted": "yes"}), "`_deleted` must be true or false"),
        (None, json!({"_foo": 1}), "Bad special document member: _foo"),
        (None, json!({"_attachments": {"a": {}}}), "replication documents have no attachments"),
    ] {
        assert_eq!(Draft::parse(id, map(body.clone()), "new").unwrap_err().to_string(), said, "{body}");
    }
    assert!(Draft::parse(Some(&"x".repeat(1_025)), Map::new(), "").is_err());
}

#[tokio::test]
async fn local_documents_have_revisions_of_their_own_and_no_changes() {
    let world = World::new().await;
    let keys = &world.keys;
    let body = &map(json!({"x": 1}));
    let put = async |rev: Option<&'static str>| {
        world.store.transact(|tx| async move { local::put(&tx, keys, DB, "n", rev, body).await }).await
    };
    assert_eq!(put(None).await.unwrap(), "0-1");
    assert!(matches!(put(None).await, Err(Error::Conflict)));
    assert_eq!(put(Some("0-1")).await.unwrap(), "0-2");
    let tx = world.store.begin().await.unwrap();
    assert_eq!(local::get(&tx, keys, DB, "n").await.unwrap(), local::Local { rev: 2, body: body.clone() });
    assert_eq!(world.counters().await, Counters::default());
    let delete = async |rev: Option<&'static str>| {
        world.store.transact(|tx| async move { local::delete(&tx, keys, DB, "n", rev).await }).await
    };
    assert!(matches!(delete(None).await, Err(Error::Conflict)));
    delete(Some("0-2")).await.unwrap();
    assert!(matches!(delete(Some("0-2")).await, Err(Error::Missing)));
}
