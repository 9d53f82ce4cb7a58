//! Gateways that refuse what a replication does not need: it is done without, and remembered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::attached::{self, Attached};
use crate::common::{context, request};
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use turnwise_replicator::{Context, Error, Report, replicate};
use turnwise_testkit::{Asked, Fake, Reply, Step};

async fn run(source: &Fake, target: &Fake, context: &Context, fields: Value) -> Result<Report, Error> {
    replicate(&request(&source.url(), &target.url(), fields), context).await
}

fn page() -> Reply {
    Reply::steps(200, [Step::Send("<html>Sign in</html>".into())]).content_type("text/html")
}

/// All the ways in which a gateway refuses, by name.
fn refusal(name: &str) -> Reply {
    match name {
        "a page" => page(),
        "closed" => Reply::steps(200, [Step::Break]),
        status => Reply::error(status.parse().unwrap(), "refused"),
    }
}

const REFUSALS: [&str; 23] = [
    "301", "302", "307", "400", "401", "403", "404", "405", "406", "411", "413", "414", "415", "417", "422",
    "451", "500", "501", "502", "503", "504", "a page", "closed",
];

/// Copies from a source that refuses some requests, twice with the same client. The first copy is complete in spite of it, and the
/// second one does not ask for it again.
async fn is_done_without(
    name: &'static str,
    documents: usize,
    fill: impl Fn(&Fake),
    refuses: impl Fn(&Asked) -> bool + Copy + Send + 'static,
) {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    fill(&source);
    source.rule(move |asked| refuses(asked).then(|| refusal(name)));
    let context = context();
    let report = run(&source, &target, &context, json!({"worker_processes": 1})).await;
    let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!((target.leaves(), report.stats.doc_write_failures), (documents, 0), "{name}");
    let refused = source.count(refuses);
    assert!((1..=4).contains(&refused), "{name}: {refused} attempts");
    source.clear();
    let other = Fake::start().await;
    run(&source, &other, &context, json!({})).await.unwrap_or_else(|error| panic!("{name}, again: {error}"));
    assert_eq!((other.leaves(), source.count(refuses)), (documents, 0), "{name}: it is remembered");
}

/// Documents that do not come with the feed.
fn second_revisions(source: &Fake) {
    source.put((0..40).map(|n| json!({"_id": format!("d{n:06}"), "_rev": "2-b"})));
}

#[tokio::test]
async fn without_bulk_get_documents_are_read_one_by_one_however_it_is_refused() {
    for name in REFUSALS {
        is_done_without(name, 40, second_revisions, |asked| asked.path == "/_bulk_get").await;
    }
}

#[tokio::test]
async fn a_feed_is_read_without_the_parameters_that_a_gateway_refuses() {
    let fill = |source: &Fake| source.fill("d", 40, 10);
    for name in REFUSALS.into_iter().filter(|name| *name != "closed") {
        is_done_without(name, 40, fill, |asked| {
            asked.path == "/_changes" && asked.parameter("include_docs").is_some()
        })
        .await;
        is_done_without(name, 40, fill, |asked| {
            asked.path == "/_changes" && asked.parameter("seq_interval").is_some()
        })
        .await;
    }
}

#[tokio::test]
async fn a_parameter_that_is_refused_does_not_cost_bulk_get() {
    for name in ["400", "403", "422"] {
        is_done_without(name, 40, second_revisions, |asked| {
            asked.path != "/_changes" && asked.parameter("att_encoding_info").is_some()
        })
        .await;
    }
}

#[tokio::test]
async fn small_attachments_come_in_another_way_however_a_gateway_refuses_the_first() {
    let fill = |source: &Fake| attached::small(source, "small", "a");
    for name in REFUSALS {
        is_done_without(name, 1, fill, |asked| {
            asked.path == "/_bulk_get" && asked.parameter("attachments") == Some("true")
        })
        .await;
    }
}

#[tokio::test]
async fn without_multipart_each_attachment_is_read_by_itself() {
    let fill = |source: &Fake| {
        Attached::of(1 << 20).put(source, "large", "1-l");
        source.rule(|asked| {
            let content = vec![b'x'; 1 << 20];
            (asked.path == "/large/a").then(|| Reply::steps(200, [Step::Send(content.into())]))
        });
    };
    let multipart = |asked: &Asked| {
        asked.headers.iter().any(|(name, value)| name == "accept" && value == "multipart/mixed")
    };
    for name in ["403", "406", "415", "500", "502", "a page"] {
        is_done_without(name, 1, fill, multipart).await;
    }
}

#[tokio::test]
async fn a_source_that_is_throttled_or_down_has_refused_nothing() {
    for (status, everything) in [("429", false), ("503", true)] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        second_revisions(&source);
        let mut begun = false;
        source.rule(move |asked| {
            begun |= asked.path == "/_bulk_get";
            let refused = if everything { begun } else { asked.path == "/_bulk_get" };
            refused.then(|| refusal(status))
        });
        let context = context();
        let error = run(&source, &target, &context, json!({})).await.unwrap_err();
        assert_eq!(error.status().map(|status| status.to_string()).as_deref(), Some(status));
        assert!(error.to_string().contains("/_bulk_get"), "{error}");
        source.well();
        source.clear();
        run(&source, &target, &context, json!({})).await.unwrap();
        assert_eq!(target.leaves(), 40);
        assert!(source.count(|asked| asked.path == "/_bulk_get") > 0, "{status} is not remembered");
    }
}

#[tokio::test]
async fn documents_are_read_concurrently_within_the_bound_of_connections() {
    const CONNECTIONS: usize = 5;
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    second_revisions(&source);
    // Each response comes when as many requests are open as there are connections.
    let barrier = Arc::new(Barrier::new(CONNECTIONS));
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&most);
    source.rule(move |asked| {
        asked.parameter("open_revs")?;
        counted.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let (barrier, open, id) = (Arc::clone(&barrier), Arc::clone(&open), asked.path[1..].to_owned());
        let answer = async move {
            barrier.wait().await;
            open.fetch_sub(1, Ordering::Relaxed);
            let revisions = json!({"start": 2, "ids": ["b", "a"]});
            let doc = json!([{"ok": {"_id": id, "_rev": "2-b", "_revisions": revisions}}]);
            Step::Send(doc.to_string().into())
        };
        Some(Reply::stream(200, stream::once(answer).boxed()))
    });
    let fields = json!({"use_bulk_get": false, "http_connections": CONNECTIONS, "connection_timeout": 5_000});
    run(&source, &target, &context(), fields).await.unwrap();
    assert_eq!((target.leaves(), most.load(Ordering::Relaxed)), (40, CONNECTIONS));
}
