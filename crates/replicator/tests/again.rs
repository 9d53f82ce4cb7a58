//! Runs without a checkpoint to a target that has nearly everything, between databases of a real CouchDB.

use crate::common::run;
use serde_json::{Value, json};
use turnwise_testkit::{CouchDb, Database, Fault, FaultProxy, Request, compare};

/// A target with this many documents is read instead of being asked.
const DOCUMENTS: usize = 21_000;
/// The number of documents in one write.
const BATCH: usize = 3_000;

async fn fill(databases: [&Database; 2], count: usize) {
    let doc = |nth: usize| json!({ "_id": format!("d{:04x}-{nth}", nth * 40_503 % 65_536), "_rev": "1-a" });
    let docs: Vec<Value> = (0..count).map(doc).collect();
    for docs in docs.chunks(BATCH) {
        futures::future::join_all(databases.map(|database| database.put_revisions(docs))).await;
    }
}

fn revision(id: &str, ids: &[&str], deleted: bool) -> Value {
    let rev = format!("{}-{}", ids.len(), ids[0]);
    json!({ "_id": id, "_rev": rev, "_revisions": { "start": ids.len(), "ids": ids }, "_deleted": deleted })
}

/// The documents in requests to `_revs_diff`.
fn asked_about(proxy: &FaultProxy) -> Vec<String> {
    let requests = proxy.requests();
    let questions = requests.iter().filter(|request| request.path.contains("_revs_diff"));
    questions
        .flat_map(|request| {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            body.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        })
        .collect()
}

fn is_feed(request: &Request) -> bool {
    request.path.contains("_changes?feed=")
}

#[tokio::test]
async fn a_target_that_has_nearly_everything_is_read_and_asked_only_about_the_rest() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let peer = couchdb.peer();
    let (from, to) = (peer.create("again-from").await, peer.create("again-to").await);
    fill([&from, &to], DOCUMENTS).await;
    // The last changes of the source, of documents that the target has in another form, or not at all.
    let first = [revision("conflict", &["a"], false), revision("deleted", &["a"], false)];
    from.put_revisions(&first).await;
    to.put_revisions(&first).await;
    let both = [revision("same-conflict", &["b", "x"], false), revision("same-conflict", &["b", "y"], false)];
    from.put_revisions(&both).await;
    to.put_revisions(&both).await;
    from.put_revisions(&[
        revision("conflict", &["b"], false),
        revision("deleted", &["c", "a"], true),
        revision("missing", &["a"], false),
        revision("quoted \"id\" é", &["a"], false),
        revision("older", &["a"], false),
    ])
    .await;
    to.put_revisions(&[revision("older", &["b", "a"], false), revision("another", &["a"], false)]).await;
    let (asked, told) = (FaultProxy::start(&peer).await, FaultProxy::start(&peer).await);
    let fields = json!({ "use_checkpoints": false });
    let report = run(&asked.through(&from), &told.through(&to), fields.clone()).await.unwrap();
    assert_eq!(report.stats.docs_written, 4);
    assert_eq!(report.stats.revisions_checked, DOCUMENTS as u64 + 8);
    for id in ["conflict", "deleted", "missing", "quoted \"id\" é"] {
        let path =
            format!("/{}?open_revs=all", id.replace('"', "%22").replace(' ', "%20").replace('é', "%C3%A9"));
        assert_eq!(
            from.get(&path).await.as_array().map(Vec::len),
            to.get(&path).await.as_array().map(Vec::len)
        );
    }
    assert_eq!(told.count(is_feed), 1, "the target's feed is read once");
    let questions = asked_about(&told);
    assert!(questions.len() < 16_000, "asked about {} documents", questions.len());
    for id in ["conflict", "deleted", "missing", "quoted \"id\" é", "older"] {
        assert!(questions.iter().any(|asked| asked == id), "{id} was not asked about");
    }
    assert!(!questions.iter().any(|asked| asked == "same-conflict"));
    // The target's feed cannot be read: all is asked about.
    told.clear();
    told.set(Fault::Status(403).when(is_feed)).await;
    from.put_revisions(&[revision("later", &["a"], false)]).await;
    let report = run(&asked.through(&from), &told.through(&to), fields.clone()).await.unwrap();
    assert_eq!((report.stats.docs_written, asked_about(&told).len()), (1, DOCUMENTS + 7));
    // It begins and never ends.
    told.clear();
    told.set(Fault::HangMidBody { after: 1_000 }.when(is_feed)).await;
    let fields = json!({ "use_checkpoints": false, "connection_timeout": 4_000 });
    let report = run(&asked.through(&from), &told.through(&to), fields).await.unwrap();
    assert_eq!((report.stats.docs_written, asked_about(&told).len()), (0, DOCUMENTS + 7));
}

#[tokio::test]
async fn a_feed_with_a_sequence_in_each_20th_row_continues_where_it_broke_off() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let peer = couchdb.peer();
    let (from, to) = (peer.create("broken-from").await, peer.create("broken-to").await);
    fill([&from, &from], 5_000).await;
    let asked = FaultProxy::start(&peer).await;
    asked.set(Fault::Truncated { after: 300_000 }.when(is_feed).times(1)).await;
    let fields = json!({ "worker_batch_size": 130, "retries_per_request": 2 });
    let report = run(&asked.through(&from), to.url(), fields.clone()).await.unwrap();
    compare(&from, &to).await.unwrap();
    let read_again = report.stats.revisions_checked - 5_000;
    assert!(read_again < 20, "{read_again} rows were read again");
    let feeds: Vec<bool> = asked
        .requests()
        .iter()
        .filter(|request| is_feed(request))
        .map(|request| request.path.contains("seq_interval"))
        .collect();
    assert!(feeds.len() >= 2 && feeds[0] && !feeds[feeds.len() - 1], "{feeds:?}");
    assert!(run(&asked.through(&from), to.url(), fields).await.unwrap().no_changes);
}
