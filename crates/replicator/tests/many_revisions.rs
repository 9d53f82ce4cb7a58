//! Documents with a thousand conflicts, long histories and long ids; revisions that are missing when they are requested.

use std::time::Duration;

use crate::common::attached::{Attached, wants};
use crate::common::{context, request, run};
use serde_json::{Value, json};
use turnwise_replicator::{Error, Report, replicate};
use turnwise_testkit::{Asked, Fake, Reply};

/// The longest request line that servers and proxies accept, without its method and version.
const URL_BYTES: usize = 8_000;

fn leaf(id: &str, nth: usize) -> Value {
    let hash = format!("{nth:032x}");
    json!({"_id": id, "_rev": format!("2-{hash}"), "_revisions": {"start": 2, "ids": [hash, "root"]}})
}

fn longest(asked: &[Asked]) -> usize {
    asked.iter().map(|asked| asked.target.len()).max().unwrap()
}

#[tokio::test]
async fn a_thousand_conflicts_arrive_and_no_url_is_too_long() {
    for (id, use_bulk_get) in
        [("c".to_owned(), true), ("c".to_owned(), false), ("\u{e9}/".repeat(300), false)]
    {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.put((0..1_000).map(|nth| leaf(&id, nth)));
        let report = run(&source.url(), &target.url(), json!({"use_bulk_get": use_bulk_get})).await.unwrap();
        assert_eq!((report.stats.docs_written, target.leaves()), (1_000, 1_000));
        assert!(longest(&source.requests()) < URL_BYTES, "{}", longest(&source.requests()));
        // In parts, and in no more of them than necessary.
        let parts = source.count(|asked| asked.parameter("open_revs").is_some());
        assert!(if use_bulk_get { parts == 0 } else { (5..40).contains(&parts) }, "{parts}");
    }
}

#[tokio::test]
async fn of_many_ancestors_as_many_are_named_as_the_url_has_room_for() {
    for id in ["c".to_owned(), "\u{e9}".repeat(900)] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        target.put((0..500).map(|nth| leaf(&id, nth)));
        for nth in 0..20 {
            Attached::of(40_000).put(&source, &id, &format!("1-{nth:032x}"));
        }
        let report = run(&source.url(), &target.url(), json!({})).await.unwrap();
        assert_eq!(report.stats.docs_written, 20);
        let asked: Vec<Asked> =
            source.requests().into_iter().filter(|asked| asked.parameter("atts_since").is_some()).collect();
        assert_eq!(asked.len(), 20);
        assert!((4_000 / 2..URL_BYTES).contains(&longest(&asked)), "{}", longest(&asked));
    }
}

#[tokio::test]
async fn a_history_of_a_thousand_generations_arrives_whole() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    let ids: Vec<String> = (0..1_000).map(|nth| format!("{nth:032x}")).collect();
    let rev = format!("5000-{}", ids[0]);
    source.put([json!({"_id": "old", "_rev": rev, "_revisions": {"start": 5_000, "ids": ids}})]);
    let (tell, told) = std::sync::mpsc::channel();
    target.rule(move |asked| {
        if asked.path == "/_bulk_docs" {
            let ids = asked.json()["docs"][0]["_revisions"]["ids"].as_array().map(Vec::len);
            tell.send(ids).unwrap();
        }
        None
    });
    run(&source.url(), &target.url(), json!({})).await.unwrap();
    assert_eq!(told.recv().unwrap(), Some(1_000));
    assert_eq!(target.revisions("old"), [rev]);
}

/// A run that requests missing revisions again immediately.
async fn impatient(source: &Fake, target: &Fake) -> Result<Report, Error> {
    let mut replication = request(&source.url(), &target.url(), json!({}));
    replication.settings.missing_doc_retry = Duration::from_millis(5);
    replicate(&replication, &context()).await
}

#[tokio::test]
async fn a_revision_that_is_not_there_is_asked_for_once_more() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 5, 10);
    // Like a cluster whose nodes do not agree yet.
    let mut absent = 2;
    source.rule(move |asked| {
        let missing = json!({"id": "d000003", "docs": [{"error": {"id": "d000003", "error": "not_found"}}]});
        let asks_all = asked.path == "/_bulk_get";
        let asks_it = asked.parameter("open_revs").is_some() && asked.path == "/d000003";
        if !(asks_all || asks_it) || absent == 0 {
            return None;
        }
        absent -= 1;
        Some(if asks_all {
            Reply::json(200, &json!({"results": [missing]}))
        } else {
            Reply::json(200, &json!([{"missing": "1-a"}]))
        })
    });
    let report = impatient(&source, &target).await.unwrap();
    assert_eq!((report.stats.docs_written, target.leaves()), (5, 5));
    assert_eq!(source.count(|asked| asked.parameter("open_revs").is_some() && asked.path == "/d000003"), 2);
}

#[tokio::test]
async fn a_revision_that_stays_away_is_an_error_until_there_is_a_later_one() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 5, 10);
    source.lose("d000003");
    for _ in 0..2 {
        let error = impatient(&source, &target).await.unwrap_err();
        assert!(!error.is_terminal());
        let error = error.to_string();
        assert!(error.contains("\"d000003\"") && error.contains("the source does not have it"), "{error}");
    }
    source.put([json!({"_id": "d000003", "_rev": "2-b", "_revisions": {"start": 2, "ids": ["b", "a"]}})]);
    impatient(&source, &target).await.unwrap();
    assert_eq!(target.revisions("d000003"), ["2-b"]);
    assert_eq!(target.leaves(), 5);
}

#[tokio::test]
async fn a_revision_with_attachments_that_is_not_there_is_asked_for_once_more() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    Attached::of(1 << 20).put(&source, "large", "1-l");
    let mut absent = 1;
    source.rule(move |asked| {
        let part =
            "--M\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{\"missing\":\"1-l\"}\r\n--M--";
        let now = wants(asked, "large", "1-l") && std::mem::take(&mut absent) == 1;
        let steps = [turnwise_testkit::Step::Send(part.into())];
        now.then(|| Reply::steps(200, steps).content_type("multipart/mixed; boundary=\"M\""))
    });
    let report = impatient(&source, &target).await.unwrap();
    assert_eq!((report.stats.docs_written, target.leaves()), (1, 1));
}
