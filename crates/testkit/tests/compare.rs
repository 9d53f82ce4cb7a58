//! A comparison distinguishes equal databases from all others.

use serde_json::{Value, json};
use turnwise_testkit::{Database, Dataset, Difference, Fault, FaultProxy, Peer, compare, compare_some};

/// The differences between two databases that hold different versions of one document.
async fn differences_between(source: Value, target: Value) -> Vec<Difference> {
    let (left, right) = Peer::pair().await;
    let (from, to) = (left.create("from").await, right.create("to").await);
    from.put_revisions(source.as_array().unwrap()).await;
    to.put_revisions(target.as_array().unwrap()).await;
    compare(&from, &to).await.expect_err("the databases differ")
}

fn leaf(rev: &str, ids: &[&str], extra: Value) -> Value {
    let mut doc = json!({ "_id": "x", "_rev": rev, "_revisions": { "start": ids.len(), "ids": ids } });
    for (name, value) in extra.as_object().unwrap() {
        doc[name] = value.clone();
    }
    doc
}

fn attachment(data: &str) -> Value {
    json!({ "_attachments": { "a": { "content_type": "application/octet-stream", "data": data } } })
}

#[tokio::test]
async fn databases_loaded_from_one_dataset_are_equal() {
    let (left, right) = Peer::pair().await;
    let (from, to) = (left.create("from").await, right.create("to").await);
    let dataset = Dataset::small();
    let loaded = dataset.load(&from).await;
    assert_eq!(loaded, dataset.load(&to).await);
    assert_eq!(from.doc_count().await, loaded.live_documents as u64);

    let summary = compare(&from, &to).await.unwrap();
    assert_eq!((summary.documents, summary.leaves), (loaded.documents, loaded.leaves));
    assert_eq!(
        (summary.attachments, summary.attachment_bytes),
        (loaded.attachments, loaded.attachment_bytes)
    );
    assert_eq!((loaded.documents, summary.deleted_leaves, loaded.attachments), (300, 30, 12));
}

#[tokio::test]
async fn the_standard_dataset_loads_and_equals_itself() {
    let (peer, _) = Peer::pair().await;
    let database = peer.create("standard").await;
    let loaded = Dataset::standard().load(&database).await;
    assert_eq!((loaded.documents, loaded.attachments), (10_000, 50));
    assert!(loaded.attachment_bytes > 40 << 20, "{loaded:?}");
    let summary = compare(&database, &database).await.unwrap();
    assert_eq!((summary.leaves, summary.attachments), (loaded.leaves, 50));
}

#[tokio::test]
async fn a_missing_and_an_extra_leaf_are_reported() {
    let other = leaf("2-bb", &["bb", "aa"], json!({}));
    let differences = differences_between(
        json!([leaf("2-cc", &["cc", "aa"], json!({})), other]),
        json!([leaf("3-dd", &["dd", "ee", "ff"], json!({})), other]),
    );
    let (id, rev) = ("x".to_owned(), "2-cc".to_owned());
    let missing = Difference::MissingLeaf { id: id.clone(), rev };
    let extra = Difference::ExtraLeaf { id, rev: "3-dd".to_owned() };
    assert_eq!(differences.await, [missing, extra]);
}

#[tokio::test]
async fn a_changed_body_is_reported() {
    let differences = differences_between(
        json!([leaf("1-aa", &["aa"], json!({ "v": [1, null] }))]),
        json!([leaf("1-aa", &["aa"], json!({ "v": [1] }))]),
    );
    assert_eq!(differences.await, [Difference::Body { id: "x".to_owned(), rev: "1-aa".to_owned() }]);
}

#[tokio::test]
async fn a_differing_history_is_reported() {
    let differences = differences_between(
        json!([leaf("3-cc", &["cc", "bb", "aa"], json!({}))]),
        json!([leaf("3-cc", &["cc", "bb"], json!({ "_revisions": { "start": 3, "ids": ["cc", "bb"] } }))]),
    )
    .await;
    assert!(
        matches!(&differences[..], [Difference::History { source, .. }] if source.contains("aa")),
        "{differences:?}"
    );
}

#[tokio::test]
async fn a_deletion_on_one_side_is_reported() {
    let differences = differences_between(
        json!([leaf("2-bb", &["bb", "aa"], json!({ "_deleted": true }))]),
        json!([leaf("2-bb", &["bb", "aa"], json!({}))]),
    );
    let (id, rev) = ("x".to_owned(), "2-bb".to_owned());
    assert_eq!(differences.await, [Difference::Deleted { id, rev, source: true }]);
}

#[tokio::test]
async fn a_missing_attachment_is_reported() {
    let differences = differences_between(
        json!([leaf("1-aa", &["aa"], attachment("AAEC"))]),
        json!([leaf("1-aa", &["aa"], json!({}))]),
    );
    let (id, rev, name) = ("x".to_owned(), "1-aa".to_owned(), "a".to_owned());
    let what = "missing".to_owned();
    assert_eq!(differences.await, [Difference::Attachment { id, rev, name, what }]);
}

#[tokio::test]
async fn a_changed_attachment_is_reported() {
    let differences = differences_between(
        json!([leaf("1-aa", &["aa"], attachment("AAEC"))]),
        json!([leaf("1-aa", &["aa"], attachment("AAED"))]),
    )
    .await;
    assert!(
        matches!(&differences[..], [Difference::Attachment { what, .. }] if what.contains("digest")),
        "{differences:?}"
    );
}

#[tokio::test]
async fn the_bytes_of_an_attachment_are_compared_whatever_its_digest() {
    let (peer, _) = Peer::pair().await;
    let database = peer.create("db").await;
    database.put_revisions(&[leaf("1-aa", &["aa"], attachment("AAEC"))]).await;
    let proxy = FaultProxy::start(&peer).await;
    let proxied = Database::at(proxy.through(&database));
    assert_eq!(compare(&database, &proxied).await.unwrap().attachment_bytes, 3);

    let other_bytes = Fault::Answer { status: 200, body: "abc".to_owned() };
    for (fault, reason) in [(other_bytes, "other bytes"), (Fault::Status(404), "cannot be read")] {
        proxy.set(fault.when(|request| request.path.contains("/x/a?rev="))).await;
        let differences = compare(&database, &proxied).await.expect_err("the bytes differ");
        assert!(
            matches!(&differences[..], [Difference::Attachment { what, .. }] if what.contains(reason)),
            "{differences:?}"
        );
    }
}

#[tokio::test]
async fn some_documents_can_be_compared_alone() {
    let (left, right) = Peer::pair().await;
    let (from, to) = (left.create("from").await, right.create("to").await);
    for database in [&from, &to] {
        database.put("wanted", &json!({ "v": 1 })).await;
    }
    from.put("other", &json!({})).await;
    assert!(compare(&from, &to).await.is_err());
    assert_eq!(compare_some(&from, &to, |id| id == "wanted").await.unwrap().documents, 1);
    let whole: Database = to.clone();
    assert!(compare_some(&from, &whole, |id| id == "other").await.is_err());
}
