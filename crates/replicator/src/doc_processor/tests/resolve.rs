//! Tests of documents with a filter function.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::*;

/// Longer than any step here takes on a machine that is busy compiling.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Responses per filter name: code, or an error; no response while the name is missing.
#[derive(Default)]
pub(super) struct Sources {
    answers: Mutex<HashMap<String, Result<String, String>>>,
    pub(super) asked: Mutex<Vec<String>>,
    pub(super) changed: Notify,
}

#[async_trait]
impl FilterCode for Sources {
    async fn fetch(&self, replication: &Replication) -> Result<Option<String>, String> {
        let Some(crate::Filter::Function { name, .. }) = &replication.filter else { panic!("no filter") };
        self.asked.lock().unwrap().push(name.clone());
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            let answer = self.answers.lock().unwrap().get(name).cloned();
            if let Some(answer) = answer {
                return answer.map(Some);
            }
            changed.await;
        }
    }
}

impl Sources {
    pub(super) fn answer(&self, name: &str, answer: Result<&str, &str>) {
        let answer = answer.map(str::to_owned).map_err(str::to_owned);
        self.answers.lock().unwrap().insert(name.to_owned(), answer);
        self.changed.notify_waiters();
    }

    /// From now on, requests get no response.
    pub(super) fn answers_no_more(&self, name: &str) {
        self.answers.lock().unwrap().remove(name);
    }

    /// Waits until the filter has been requested `times` times.
    pub(super) async fn asked(&self, name: &str, times: usize) {
        let asked = async {
            loop {
                let changed = self.changed.notified();
                if self.asked.lock().unwrap().iter().filter(|asked| *asked == name).count() >= times {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.expect(name);
    }
}

pub(super) struct Running {
    pub(super) world: World,
    pub(super) sources: Arc<Sources>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(super) async fn new() -> Running {
        Self::of(World::new().await, Arc::default())
    }

    pub(super) fn of(world: World, sources: Arc<Sources>) -> Running {
        let stop = CancellationToken::new();
        let task = tokio::spawn(processor(&world, &sources).run(stop.clone()));
        Running { world, sources, stop, task }
    }

    pub(super) async fn stop(self) -> (World, Arc<Sources>) {
        self.stop.cancel();
        self.task.await.unwrap();
        (self.world, self.sources)
    }

    /// Waits until a document's state is `state`.
    pub(super) async fn until(&self, id: &str, state: &str) {
        let key = self.world.keys().replication(DB, id);
        let reached = async {
            loop {
                let tx = self.world.store().begin().await.unwrap();
                let seen = tx.get(&key).await.unwrap();
                if self.world.state(id).await == state {
                    return;
                }
                self.world.store().watch(key.clone(), seen).await.unwrap().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect(state);
    }
}

pub(super) fn processor(world: &World, sources: &Arc<Sources>) -> DocProcessor {
    DocProcessor {
        store: world.store().clone(),
        keys: world.keys().clone(),
        settings: world.settings.clone().into(),
        filters: sources.clone(),
    }
}

pub(super) fn filtered(name: &str) -> Value {
    with(doc("s"), json!({"filter": name}))
}

#[tokio::test]
async fn a_filter_is_fetched_before_the_job_is_added() {
    let running = Running::new().await;
    running.sources.answer("d/f", Ok("function(doc) { return true }"));
    running.world.put("a", filtered("d/f")).await.unwrap();
    running.until("a", "pending").await;
    let job = running.world.job().await;
    let object = filtered("d/f").as_object().unwrap().clone();
    let replication = Replication::parse(&object, &Defaults::default()).unwrap();
    let id = replication_id::full(&replication, "uuid", Some("function(doc) { return true }")).to_string();
    assert_eq!(job.id, id);
    running.stop().await;
}

#[tokio::test]
async fn a_source_that_does_not_respond_is_retried_later() {
    let running = Running::new().await;
    running.sources.answer("d/f", Err("source is down"));
    running.world.put("a", filtered("d/f")).await.unwrap();
    running.until("a", "error").await;
    let status = running.world.status("a").await.unwrap();
    assert_eq!((&status["error_count"], &status["info"]), (&json!(1), &json!({"error": "source is down"})));
    assert_eq!(status["id"], json!(null));
    let clock = running.world.documents.clock.clone();
    clock.wait_for_sleeper(Duration::from_secs(32)).await;
    clock.advance(Duration::from_secs(32));
    running.sources.asked("d/f", 2).await;
    while running.world.status("a").await.unwrap()["error_count"] != json!(2) {
        tokio::task::yield_now().await;
    }
    running.sources.answer("d/f", Ok("f"));
    clock.wait_for_sleeper(Duration::from_secs(64)).await;
    clock.advance(Duration::from_secs(64));
    running.until("a", "pending").await;
    running.stop().await;
}

#[tokio::test]
async fn documents_in_error_are_retried_on_request() {
    let running = Running::new().await;
    running.sources.answer("d/f", Err("source is down"));
    for id in ["a", "b"] {
        running.world.put(id, with(filtered("d/f"), doc(id))).await.unwrap();
        running.until(id, "error").await;
    }
    let retry = async |db: &str| {
        let (store, keys) = (running.world.store(), running.world.keys());
        retry_errors(store, keys, |of| of == db, 100).await.unwrap()
    };
    assert_eq!(retry("other/_replicator").await, 0);
    running.sources.answer("d/f", Ok("f"));
    // The clock is not advanced.
    assert_eq!(retry(DB).await, 2);
    running.until("a", "pending").await;
    running.until("b", "pending").await;
    assert_eq!(retry(DB).await, 0);
    running.stop().await;
}

#[tokio::test]
async fn a_source_that_hangs_times_out_and_delays_no_other_document() {
    let running = Running::new().await;
    for n in 0..5 {
        running.world.put(&format!("hangs{n}"), filtered(&format!("hangs/{n}"))).await.unwrap();
        running.sources.asked(&format!("hangs/{n}"), 1).await;
    }
    running.sources.answer("d/f", Ok("f"));
    running.world.put("a", filtered("d/f")).await.unwrap();
    running.until("a", "pending").await;
    assert_eq!(running.world.state("hangs0").await, "initializing");
    running.world.documents.clock.wait_for_sleeper(Duration::from_secs(60)).await;
    running.world.documents.clock.advance(Duration::from_secs(60));
    running.until("hangs4", "error").await;
    running.stop().await;
}

#[tokio::test]
async fn a_document_that_changed_meanwhile_does_not_get_the_old_job() {
    let running = Running::new().await;
    running.world.put("a", filtered("old/f")).await.unwrap();
    running.world.put("b", filtered("old/g")).await.unwrap();
    running.sources.asked("old/f", 1).await;
    running.sources.asked("old/g", 1).await;
    running.world.documents.clock.advance(Duration::from_millis(1));
    // The responses to the first requests are still pending.
    running.world.put("a", filtered("new/f")).await.unwrap();
    running.world.delete("b").await;
    running.sources.asked("new/f", 1).await;
    running.sources.answer("old/f", Ok("f"));
    running.sources.answer("old/g", Ok("g"));
    // When a later request is answered and its job added, the old responses have arrived as well.
    for n in 0..20 {
        running.sources.answer(&format!("later/{n}"), Ok("f"));
        running
            .world
            .put(&format!("later{n}"), with(filtered(&format!("later/{n}")), doc(&format!("l{n}"))))
            .await
            .unwrap();
        running.until(&format!("later{n}"), "pending").await;
    }
    assert_eq!(running.world.state("a").await, "initializing");
    assert_eq!(running.world.status("b").await, None);
    let (world, _) = running.stop().await;
    assert_eq!(world.jobs().await.len(), 20);
}

#[tokio::test]
async fn an_answer_about_an_earlier_revision_is_discarded() {
    let running = Running::new().await;
    running.world.put("a", filtered("old/f")).await.unwrap();
    running.sources.asked("old/f", 1).await;
    // In the same microsecond: the entry in the index of unresolved documents is identical.
    running.world.put("a", filtered("new/f")).await.unwrap();
    running.sources.answer("old/f", Ok("old"));
    running.sources.asked("new/f", 1).await;
    assert!(running.world.jobs().await.is_empty());
    running.sources.answer("new/f", Ok("new"));
    running.until("a", "pending").await;
    assert_eq!(running.world.options(&running.world.job().await).await["filter"], "new/f");
    running.stop().await;
}

#[tokio::test]
async fn work_that_a_crash_interrupted_is_resumed() {
    let world = World::new().await;
    world.put("a", filtered("d/f")).await.unwrap();
    world.documents.create("x/_replicator").await.unwrap();
    world.put_in("x/_replicator", "b", doc("b")).await.unwrap();
    let keys = world.keys();
    // The deletion stopped after its first transaction.
    let hide = world.store().transact(|tx| async move { databases::hide(&tx, keys, "x/_replicator").await });
    hide.await.unwrap();
    let sources = Arc::<Sources>::default();
    sources.answer("d/f", Ok("f"));
    let running = Running::of(world, sources);
    running.until("a", "pending").await;
    let (world, _) = running.stop().await;
    assert_eq!(Summary::of(&world.job().await).unwrap().document(), Some((DB, "a")));
    world.documents.create("x/_replicator").await.unwrap();
}

#[tokio::test]
async fn a_deletion_that_stopped_halfway_is_finished_without_a_restart() {
    let world = World::new().await;
    world.documents.create("x/_replicator").await.unwrap();
    world.put_in("x/_replicator", "b", doc("b")).await.unwrap();
    let running = Running::of(world, Arc::default());
    // At its start, it found nothing to finish.
    running.sources.answer("d/f", Ok("f"));
    running.world.put("a", filtered("d/f")).await.unwrap();
    running.until("a", "pending").await;
    let clock = running.world.documents.clock.clone();
    let keys = running.world.keys();
    let row = keys.database("x/_replicator");
    let hide = running.world.store().transact(|tx| async move {
        databases::hide(&tx, keys, "x/_replicator").await?;
        Ok::<_, Error>(tx.get(&keys.database("x/_replicator")).await?)
    });
    let hidden = hide.await.unwrap();
    let mut gone = running.world.store().watch(row, hidden).await.unwrap();
    let finished = async {
        loop {
            clock.advance(Duration::from_secs(60));
            // It may not have reached its sleep yet.
            if tokio::time::timeout(Duration::from_millis(100), &mut gone).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, finished).await.expect("the deletion is never finished");
    assert_eq!(Summary::of(&running.world.job().await).unwrap().document(), Some((DB, "a")));
    running.world.documents.create("x/_replicator").await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn a_filtered_document_that_could_never_have_a_job_is_refused() {
    let world = World::new().await;
    let named = json!({"filter": "d/f", "user_ctx": {"name": "n".repeat(600)}});
    let long = json!({"filter": "d/f", "source": format!("http://s/{}", "x".repeat(5_000))});
    for (fields, field) in [(named, "user_ctx.name: "), (long, "source: ")] {
        let refused = world.put("a", with(doc("s"), fields)).await;
        let Err(Error::Invalid(reason) | Error::Refused(reason)) = refused else { panic!("{refused:?}") };
        assert!(reason.starts_with(field), "{reason}");
    }
    assert_eq!(world.status("a").await, None);
}

#[tokio::test]
async fn a_waiting_document_that_can_have_no_job_any_more_fails_for_good() {
    let world = World::new().await;
    world.put("a", filtered("d/f")).await.unwrap();
    // As if it had been accepted with a longer name.
    let named = with(filtered("d/f"), json!({"user_ctx": {"name": "n".repeat(600)}}));
    let (keys, named) = (world.keys(), named.as_object().unwrap());
    let accepted = world.store().transact(|tx| async move {
        let doc = DocTx { tx: &tx, keys, db: DB, id: "a" };
        let written = Slot::open_current(doc).await?.write(false, named)?;
        let row = doc.row().await?.unwrap();
        doc.write_row(&Row { rev: written.rev, ..row })?;
        Ok::<_, Error>(())
    });
    accepted.await.unwrap();
    let sources = Arc::<Sources>::default();
    sources.answer("d/f", Ok("f"));
    let running = Running::of(world, sources);
    running.until("a", "failed").await;
    let body = body(&running.world.get("a").await);
    assert_eq!(body["_replication_state"], "failed");
    let reason = body["_replication_state_reason"].as_str().unwrap();
    assert!(reason.starts_with("user_ctx.name: "), "{reason}");
    let (world, _) = running.stop().await;
    let (begin, end) = world.keys().unresolved();
    let tx = world.store().begin().await.unwrap();
    assert!(tx.range(&(begin, end), 1).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_entry_of_a_database_being_deleted_is_read_once() {
    let world = World::new().await;
    world.put("a", filtered("d/f")).await.unwrap();
    let keys = world.keys();
    let hide = world.store().transact(|tx| async move { databases::hide(&tx, keys, DB).await });
    hide.await.unwrap();
    let processor = DocProcessor {
        store: world.store().clone(),
        keys: keys.clone(),
        settings: world.settings.clone().into(),
        filters: Arc::<Sources>::default(),
    };
    let none = HashSet::new();
    let (due, _, _) = processor.look(&none).await.unwrap();
    assert_eq!(due.len(), 1);
    processor.resolve(&due[0]).await;
    let (due, _, _) = processor.look(&none).await.unwrap();
    assert!(due.is_empty(), "{due:?}");
}

#[tokio::test]
async fn a_document_waits_for_the_end_of_a_request_with_its_id() {
    let running = Running::new().await;
    let body = doc("s").as_object().unwrap().clone();
    let replication = Replication::parse(&body, &Defaults::default()).unwrap();
    let id = replication_id::full(&replication, "uuid", None).to_string();
    let new = &new_job(&replication, &id, Origin::Request, &body, 0).unwrap();
    let keys = running.world.keys();
    running.world.store().transact(|tx| async move { jobs::add(&tx, keys, new, 0).await }).await.unwrap();
    running.world.put("a", doc("s")).await.unwrap();
    assert_eq!(running.world.state("a").await, "error");
    let reason = running.world.status("a").await.unwrap()["info"]["error"].to_string();
    assert!(reason.contains("already running as a transient replication"), "{reason}");
    let claim = running.world.start(&id).await;
    running.world.end(&id, &claim, completed(), None).await;
    let clock = running.world.documents.clock.clone();
    clock.wait_for_sleeper(Duration::from_secs(32)).await;
    clock.advance(Duration::from_secs(32));
    running.until("a", "pending").await;
    running.stop().await;
}

#[tokio::test]
async fn nodes_divide_the_waiting_documents_and_ask_each_source_once() {
    const DOCUMENTS: usize = 100;
    let world = World::new().await;
    for n in 0..DOCUMENTS {
        let body = with(filtered(&format!("d/{n}")), doc(&format!("s{n}")));
        world.put(&n.to_string(), body).await.unwrap();
    }
    // Each node has its own sources, which record the requests.
    let others: [Arc<Sources>; 2] = Default::default();
    let sources = Arc::<Sources>::default();
    for n in 0..DOCUMENTS {
        for sources in others.iter().chain([&sources]) {
            sources.answer(&format!("d/{n}"), Ok("f"));
        }
    }
    let stop = CancellationToken::new();
    let tasks: Vec<_> =
        others.iter().map(|sources| tokio::spawn(processor(&world, sources).run(stop.clone()))).collect();
    let running = Running::of(world, sources.clone());
    for n in 0..DOCUMENTS {
        running.until(&n.to_string(), "pending").await;
    }
    stop.cancel();
    for task in tasks {
        task.await.unwrap();
    }
    running.stop().await;
    let asked: Vec<Vec<String>> =
        others.iter().chain([&sources]).map(|sources| sources.asked.lock().unwrap().clone()).collect();
    let mut all = asked.concat();
    all.sort();
    all.dedup();
    assert_eq!((all.len(), asked.concat().len()), (DOCUMENTS, DOCUMENTS), "each one, and once");
    assert!(
        asked.iter().all(|asked| !asked.is_empty()),
        "{:?}",
        asked.iter().map(Vec::len).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn another_node_repeats_the_requests_of_a_dead_one() {
    let world = World::new().await;
    let dead = Arc::<Sources>::default();
    dead.answer("d/g", Ok("g"));
    let task = tokio::spawn(processor(&world, &dead).run(CancellationToken::new()));
    world.put("a", filtered("d/f")).await.unwrap();
    dead.asked("d/f", 1).await;
    let sources = Arc::<Sources>::default();
    sources.answer("d/f", Ok("f"));
    sources.answer("d/g", Ok("g"));
    let running = Running::of(world, sources);
    let clock = running.world.documents.clock.clone();
    running.world.put("b", with(filtered("d/g"), doc("other"))).await.unwrap();
    running.until("b", "pending").await;
    assert_eq!(running.world.state("a").await, "initializing");
    assert!(!running.sources.asked.lock().unwrap().contains(&"d/f".to_owned()), "it is the other node's");
    task.abort();
    let _ = task.await;
    clock.wait_for_sleeper(Duration::from_secs(90)).await;
    clock.advance(Duration::from_secs(91));
    running.until("a", "pending").await;
    assert_eq!(running.sources.asked.lock().unwrap().last().unwrap(), "d/f");
    running.stop().await;
}
