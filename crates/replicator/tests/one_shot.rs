//! One-shot replications between two real servers.

use crate::common::{copy, run};
use serde_json::json;
use turnwise_testkit::{Dataset, FaultProxy, Peer, compare, compare_some};

#[tokio::test]
async fn every_leaf_is_copied_and_a_second_run_has_nothing_to_do() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let loaded = Dataset { attachments: 0, ..Dataset::small() }.load(&from).await;

    let report = copy(&from, &to).await;
    let summary = compare(&from, &to).await.unwrap();
    assert_eq!(summary.leaves, loaded.leaves);
    assert_eq!(report.stats.docs_written, loaded.leaves as u64);
    assert_eq!(report.stats.changes_pending, Some(0));
    assert!(!report.no_changes && report.history.len() == 1);

    let again = copy(&from, &to).await;
    assert!(again.no_changes);
    assert_eq!(again.session_id, report.session_id);
    assert_eq!(again.source_last_seq, report.source_last_seq);
}

#[tokio::test]
async fn a_later_run_reads_only_what_is_new() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::plain(100).load(&from).await;
    copy(&from, &to).await;
    from.put("new", &json!({"v": 1})).await;

    let proxy = FaultProxy::start(&source).await;
    // Through the proxy, the source has another URL and so another id; the first run under it compares everything once.
    let through = proxy.through(&from);
    run(&through, to.url(), json!({})).await.unwrap();
    from.put("newer", &json!({"v": 2})).await;
    proxy.clear();
    let report = run(&through, to.url(), json!({})).await.unwrap();
    assert_eq!((report.stats.revisions_checked, report.stats.docs_written), (1, 1));
    assert_eq!(report.history.len(), 2);
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn a_target_is_created_and_may_exist() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.db("fresh"));
    from.put("a", &json!({})).await;
    for _ in 0..2 {
        run(from.url(), to.url(), json!({"create_target": true})).await.unwrap();
    }
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn a_target_that_was_created_anew_gets_everything_again() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::plain(50).load(&from).await;
    copy(&from, &to).await;
    to.delete().await;
    to.create().await;
    assert_eq!(copy(&from, &to).await.stats.docs_written, 50);
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn doc_ids_selector_and_filter_choose_what_is_copied() {
    let (source, target) = Peer::pair().await;
    let from = source.create("from").await;
    for n in 0..20 {
        from.put(&format!("doc{n}"), &json!({"n": n, "kind": if n % 2 == 0 { "even" } else { "odd" }})).await;
    }
    let filter = "function(doc, req) { return doc.kind === req.query.kind; }";
    from.put("_design/f", &json!({"filters": {"kind": filter}})).await;

    let even: Vec<String> = (0..20).step_by(2).map(|n| format!("doc{n}")).collect();
    let cases = [
        ("by_ids", json!({"doc_ids": ["doc3", "doc7", "doc3"]}), vec!["doc3".to_owned(), "doc7".to_owned()]),
        (
            "by_selector",
            json!({"selector": {"n": {"$gte": 18}}}),
            vec!["doc18".to_owned(), "doc19".to_owned()],
        ),
        ("by_filter", json!({"filter": "f/kind", "query_params": {"kind": "even"}}), even),
    ];
    for (name, fields, expected) in cases {
        let to = target.create(name).await;
        let report = run(from.url(), to.url(), fields).await.unwrap();
        assert_eq!(report.stats.docs_written, expected.len() as u64, "{name}");
        compare_some(&from, &to, |id| expected.iter().any(|other| other == id)).await.unwrap();
    }
}

#[tokio::test]
async fn without_bulk_get_documents_are_read_one_by_one() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset { attachments: 0, ..Dataset::small() }.load(&from).await;
    let report = run(from.url(), to.url(), json!({"use_bulk_get": false})).await.unwrap();
    assert_eq!(report.stats.bulk_get_attempts, 0);
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn since_seq_leaves_out_what_came_before() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put("old", &json!({})).await;
    let seq = from.get("/_changes").await["last_seq"].clone();
    from.put("new", &json!({})).await;
    let report = run(from.url(), to.url(), json!({"since_seq": seq})).await.unwrap();
    assert_eq!(report.stats.docs_written, 1);
    assert!(to.doc("old").await.is_none() && to.doc("new").await.is_some());
}

#[tokio::test]
async fn without_checkpoints_nothing_is_remembered() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put("a", &json!({})).await;
    let proxy = FaultProxy::start(&target).await;
    for _ in 0..2 {
        let report = run(from.url(), &proxy.through(&to), json!({"use_checkpoints": false})).await.unwrap();
        assert_eq!(report.stats.revisions_checked, 1);
    }
    assert_eq!(proxy.count(|request| request.path.contains("_local/")), 0);
}

#[tokio::test]
async fn winning_revisions_alone_leave_conflicts_behind() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let leaf =
        |rev: &str| json!({"_id": "a", "_rev": format!("1-{rev}"), "_revisions": {"start": 1, "ids": [rev]}});
    from.post("/_bulk_docs", &json!({"new_edits": false, "docs": [leaf("a"), leaf("b"), leaf("c")]})).await;
    let report = run(from.url(), to.url(), json!({"winning_revs_only": true})).await.unwrap();
    assert_eq!(report.stats.docs_written, 1);
    assert_eq!(to.doc("a").await.unwrap()["_rev"], "1-c");
}

#[tokio::test]
async fn headers_and_the_targets_parameters_go_along() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.db("to"));
    from.put("a", &json!({})).await;
    let (before_source, before_target) = tokio::join!(FaultProxy::start(&source), FaultProxy::start(&target));
    let source = json!({"url": before_source.through(&from), "headers": {"X-Tenant": "seven"}});
    let fields = json!({"source": source, "create_target": true, "create_target_params": {"q": 1, "n": "1"}});
    run("http://unused/db", &before_target.through(&to), fields).await.unwrap();
    let requests = before_source.requests();
    assert!(
        !requests.is_empty() && requests.iter().all(|request| request.header("x-tenant") == Some("seven"))
    );
    assert_eq!(
        before_target.count(|request| request.method == "PUT" && request.path.ends_with("/?q=1&n=1")),
        1
    );
}

#[tokio::test]
async fn a_missing_database_is_named_in_the_error() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.db("missing"));
    let error = run(from.url(), to.url(), json!({})).await.unwrap_err();
    assert!(!error.is_terminal());
    let text = error.to_string();
    assert!(
        text.starts_with("404 not_found") && text.contains("(target GET http") && text.ends_with("missing/)"),
        "{text}"
    );
}
