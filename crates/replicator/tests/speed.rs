//! The work that a replication omits to be faster, between two real servers: each time, the result is the same.

use crate::common::{context, copy, request, run, spawn, stop, until};
use serde_json::{Value, json};
use turnwise_testkit::{Database, Dataset, Fake, Fault, FaultProxy, Peer, compare};

/// Creates `count` documents whose only revision is the first one.
async fn fill(database: &Database, prefix: &str, count: usize) {
    let doc = |nth: usize| json!({ "_id": format!("{prefix}{nth:04}"), "_rev": "1-a", "n": nth });
    let docs: Vec<Value> = (0..count).map(doc).collect();
    database.put_revisions(&docs).await;
}

/// The number of requests for a feed: all of them, and those with documents.
fn feeds(proxy: &FaultProxy) -> (usize, usize) {
    let all = proxy.count(|request| request.path.contains("_changes?feed"));
    let with_docs = proxy.count(|request| {
        request.path.contains("_changes?feed") && request.path.contains("include_docs=true")
    });
    (all, with_docs)
}

/// The ids in requests to `_bulk_get`.
fn asked_for(proxy: &FaultProxy) -> Vec<String> {
    let requests = proxy.requests();
    let bulk_gets = requests.iter().filter(|request| request.path.contains("/_bulk_get?revs=true&latest"));
    let docs = bulk_gets.flat_map(|request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        body["docs"].as_array().unwrap().clone()
    });
    let mut ids: Vec<String> = docs.map(|doc| doc["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids.dedup();
    ids
}

#[tokio::test]
async fn an_empty_target_gets_first_revisions_from_the_feed_unasked() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    fill(&from, "plain", 30).await;
    let attachment = json!({ "content_type": "x/y", "data": "QUJD" });
    from.put_revisions(&[
        json!({ "_id": "attachment", "_rev": "1-a", "_attachments": { "a": attachment } }),
        json!({ "_id": "conflict", "_rev": "1-a" }),
        json!({ "_id": "conflict", "_rev": "1-b" }),
        json!({ "_id": "deleted", "_rev": "1-a", "_deleted": true }),
        json!({ "_id": "second", "_rev": "2-b", "_revisions": { "start": 2, "ids": ["b", "a"] } }),
        json!({ "_id": "conflict-of-a-deletion", "_rev": "1-a" }),
        json!({ "_id": "conflict-of-a-deletion", "_rev": "2-c", "_deleted": true, "_revisions": { "start": 2, "ids": ["c", "b"] } }),
    ])
    .await;
    let (asked, told) = (FaultProxy::start(&source).await, FaultProxy::start(&target).await);
    let report = run(&asked.through(&from), &told.through(&to), json!({})).await.unwrap();
    compare(&from, &to).await.unwrap();
    assert_eq!(report.stats.docs_written, 37);
    assert_eq!(report.stats.docs_read, 37);
    assert_eq!(feeds(&asked), (1, 1));
    // Documents beyond a first revision were requested; of the document with an attachment, only the attachment.
    assert_eq!(asked_for(&asked), ["conflict", "conflict-of-a-deletion", "deleted", "second"]);
    assert_eq!(told.count(|request| request.path.contains("_revs_diff")), 0);
    let again = run(&asked.through(&from), &told.through(&to), json!({})).await.unwrap();
    assert!(again.no_changes);
}

#[tokio::test]
async fn winners_of_the_first_generation_come_with_the_feed_too() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    fill(&from, "plain", 3).await;
    from.put_revisions(&["1-a", "1-b"].map(|rev| json!({ "_id": "conflict", "_rev": rev, "of": rev }))).await;
    let asked = FaultProxy::start(&source).await;
    run(&asked.through(&from), to.url(), json!({ "winning_revs_only": true })).await.unwrap();
    assert_eq!(asked.count(|request| request.path.contains("_bulk_get")), 0);
    let winner = to.get("/conflict?conflicts=true").await;
    assert_eq!(
        (&winner["_rev"], &winner["of"], &winner["_conflicts"]),
        (&json!("1-b"), &json!("1-b"), &Value::Null)
    );
    assert_eq!(to.doc_count().await, 4);
}

#[tokio::test]
async fn a_target_that_holds_something_is_asked_and_documents_come_once_they_are_missing() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    fill(&from, "a", 200).await;
    copy(&from, &to).await;
    let (asked, told) = (FaultProxy::start(&source).await, FaultProxy::start(&target).await);
    fill(&from, "b", 1_000).await;
    let fields = json!({ "worker_batch_size": 100, "worker_processes": 1, "use_checkpoints": false });
    run(&asked.through(&from), &told.through(&to), fields).await.unwrap();
    compare(&from, &to).await.unwrap();
    // The first feed begins with documents that the target has, and continues with those that it lacks.
    assert_eq!(feeds(&asked), (2, 1));
    assert_eq!(told.count(|request| request.path.contains("_revs_diff")), 12);
    let by_bulk_get = asked_for(&asked).len();
    assert!((400..1_000).contains(&by_bulk_get), "{by_bulk_get}");
}

#[tokio::test]
async fn documents_come_no_more_once_they_are_of_no_use() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    fill(&from, "first", 200).await;
    let second = |nth: usize| json!({ "_id": format!("second{nth}"), "_rev": "2-b", "_revisions": { "start": 2, "ids": ["b", "a"] } });
    from.put_revisions(&(0..800).map(second).collect::<Vec<_>>()).await;
    let asked = FaultProxy::start(&source).await;
    let fields = json!({ "worker_batch_size": 100, "worker_processes": 1 });
    run(&asked.through(&from), to.url(), fields).await.unwrap();
    compare(&from, &to).await.unwrap();
    assert_eq!(feeds(&asked), (2, 1));
}

#[tokio::test]
async fn small_attachments_come_as_multipart_in_many_batches() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let loaded =
        Dataset { attachments: 60, attachment_max_bytes: 200_000, ..Dataset::plain(60) }.load(&from).await;
    let proxy = FaultProxy::start(&source).await;
    if source.is_pouchdb() {
        // CouchDB returns this by itself. One response breaks off.
        let inside = |request: &turnwise_testkit::Request| request.path.contains("attachments=true");
        proxy.set(Fault::TruncatedMultipart.when(inside).times(1)).await;
        proxy.add(Fault::Multipart);
    }
    run(&proxy.through(&from), to.url(), json!({ "retries_per_request": 2 })).await.unwrap();
    let summary = compare(&from, &to).await.unwrap();
    assert_eq!(summary.attachments, loaded.attachments);
    let inside =
        |request: &turnwise_testkit::Request| request.path.contains("_bulk_get?revs=true&attachments=true");
    assert!(
        proxy.count(|request| inside(request) && request.header("accept") == Some("multipart/mixed")) > 1
    );
    assert_eq!(
        proxy.count(|request| inside(request) && request.header("accept") == Some("application/json")),
        0
    );
}

#[tokio::test]
async fn a_source_whose_multipart_is_of_no_use_is_asked_for_json() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let attachment = json!({ "content_type": "x/y", "data": "QUJD" });
    from.put_revisions(&[json!({ "_id": "a", "_rev": "1-a", "_attachments": { "a": attachment } })]).await;
    let proxy = FaultProxy::start(&source).await;
    let multipart = |request: &turnwise_testkit::Request| {
        request.path.contains("attachments=true") && request.header("accept") == Some("multipart/mixed")
    };
    proxy.set(Fault::Status(406).when(multipart)).await;
    run(&proxy.through(&from), to.url(), json!({})).await.unwrap();
    compare(&from, &to).await.unwrap();
    assert_eq!(proxy.count(|request| request.path.contains("attachments=true")), 2);
}

/// Forwards bytes to the server at `url`, and limits the rate of those in requests.
async fn slow_link(url: &str, bytes_per_second: u64) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = url.rsplit('@').next().unwrap().trim_start_matches("http://").to_owned();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    // Small, so that the sender notices the limit.
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(64).unwrap();
    let slow = listener.local_addr().unwrap().to_string();
    let url = url.replace(&address, &slow);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = tokio::net::TcpStream::connect(&address).await.unwrap();
            let ((mut from, mut back), (mut answers, mut to)) = (near.into_split(), far.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
            tokio::spawn(async move {
                let mut piece = vec![0; 8 * 1024];
                while let Ok(length @ 1..) = from.read(&mut piece).await {
                    if to.write_all(&piece[..length]).await.is_err() {
                        break;
                    }
                    // A slow link needs real time.
                    let micros = length as u64 * 1_000_000 / bytes_per_second;
                    tokio::time::sleep(std::time::Duration::from_micros(micros)).await;
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn bodies_are_compressed_on_a_slow_link_and_only_while_the_target_takes_them() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    let text = "compressible ".repeat(1_600);
    let doc = |nth: usize| json!({ "_id": format!("{nth:04}"), "_rev": "1-a", "text": text });
    // Four batches of slightly more than a megabyte.
    for first in [0, 104] {
        from.put_revisions(&(first..first + 104).map(doc).collect::<Vec<_>>()).await;
    }
    // How a peer, or a gateway before it, rejects compressed bodies.
    let refusals = [
        None,
        Some(Fault::Status(415)),
        Some(Fault::Status(403)),
        Some(Fault::Status(500)),
        Some(Fault::Status(411)),
        Some(Fault::Status(302)),
        Some(Fault::Reset { after: 0 }),
    ];
    let copies = refusals.into_iter().enumerate().map(async |(nth, refusal)| {
        let to = target.create(&format!("to{nth}")).await;
        let told = FaultProxy::start(&target).await;
        let compressed = |request: &turnwise_testkit::Request| request.header("content-encoding").is_some();
        let refuses = refusal.is_some();
        if let Some(refusal) = refusal {
            told.set(refusal.when(compressed)).await;
        }
        let slow = slow_link(told.url(), 1_000_000).await;
        let fields =
            json!({ "worker_processes": 1, "worker_batch_size": 52, "socket_options": "[{sndbuf, 65536}]" });
        run(from.url(), &format!("{slow}/{}", to.name()), fields).await.unwrap();
        compare(&from, &to).await.unwrap();
        let writes = |request: &turnwise_testkit::Request| request.path.contains("_bulk_docs");
        let counted = (told.count(writes), told.count(|request| writes(request) && compressed(request)));
        // The first batch is more than the first limit of a body.
        assert_eq!(counted, if refuses { (6, 1) } else { (5, 1) }, "{nth}");
    });
    // Three slow bodies are needed before compression starts.
    futures::future::join_all(copies).await;
}

#[tokio::test]
async fn a_document_that_changes_is_asked_about_although_the_target_was_empty() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    let asks = |asked: &turnwise_testkit::Asked| asked.path == "/_revs_diff";
    source.put([json!({"_id": "a"}), json!({"_id": "b"})]);
    let context = context();
    let running = spawn(request(&source.url(), &target.url(), json!({"continuous": true})), &context);
    until(&context, |stats| stats.docs_written == 2).await;
    assert_eq!(target.count(asks), 0);
    let revisions = json!({"start": 2, "ids": ["b", "a"]});
    source.put([json!({"_id": "a", "_rev": "2-b", "_revisions": revisions})]);
    until(&context, |stats| stats.docs_written == 3).await;
    assert_eq!(target.count(asks), 1, "so that its ancestors, and their attachments, are known");
    source.put([json!({"_id": "c"})]);
    until(&context, |stats| stats.docs_written == 4).await;
    assert_eq!(target.count(asks), 1);
    stop(&context, running).await;
}
