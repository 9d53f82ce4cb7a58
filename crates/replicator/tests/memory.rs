//! How much memory a replication takes, measured in a process that does nothing else.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use common::attached::{Attached, wants};
use common::{SERVER_UUID, request, run};
use futures::future::join_all;
use serde_json::json;
use turnwise_outbound::Client;
use turnwise_replicator::{Context, replicate};
use turnwise_testkit::{Fake, Reply, Step, process};

const SOURCE: &str = "TURNWISE_TEST_SOURCE";
const TARGET: &str = "TURNWISE_TEST_TARGET";

/// The memory of a process without optimisation, and the memory that a run may add. A run adds up to four write buffers
/// in flight, and the pieces in the connections.
const ALLOWED_MB: f64 = 64.0;

/// What the error of each run contains. Without it, they succeed.
const REFUSED: &str = "TURNWISE_TEST_REFUSED";
/// The number of concurrent runs, each into its own database.
const RUNS: &str = "TURNWISE_TEST_RUNS";

#[tokio::test]
#[ignore = "the other tests run it, in a process of its own"]
async fn one_run_between_the_databases_that_the_environment_names() {
    let [source, target] = [SOURCE, TARGET].map(|name| std::env::var(name).unwrap());
    let runs: usize = std::env::var(RUNS).map_or(1, |runs| runs.parse().unwrap());
    // They share what the replications of one process share.
    let client = Client::new().unwrap();
    let run = async |nth: usize| {
        let target = if nth == 0 { target.clone() } else { format!("{target}{nth}") };
        let replication = request(&source, &target, json!({"connection_timeout": 60_000}));
        let ended = replicate(&replication, &Context::new(client.clone(), SERVER_UUID)).await;
        match std::env::var(REFUSED).ok() {
            None => drop(ended.unwrap()),
            Some(reason) => {
                let error = ended.unwrap_err().to_string();
                assert!(error.contains(&reason), "{error}");
            }
        }
    };
    join_all((0..runs).map(run)).await;
}

/// The peak memory of a run, in MB.
async fn peak_mb(source: &Fake, target: &Fake) -> f64 {
    peak_of(source, target, 1, &[]).await
}

/// The peak memory of this many concurrent runs, with these variables in their environment.
async fn peak_of(source: &Fake, target: &Fake, runs: usize, variables: &[(&str, &str)]) -> f64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "one_run_between_the_databases_that_the_environment_names"])
        .env(SOURCE, source.url())
        .env(TARGET, target.url())
        .env(RUNS, runs.to_string())
        .envs(variables.iter().copied());
    let run = tokio::task::spawn_blocking(move || process::run(command)).await.unwrap();
    assert!(run.output.contains("1 passed"), "{}", run.output);
    println!("{} MB at most, in {} s", run.peak_mb, run.seconds);
    run.peak_mb
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attachment_is_never_held_however_large_it_is() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    Attached::of(256 << 20).put(&source, "large", "1-l");
    let peak = peak_mb(&source, &target).await;
    assert_eq!(target.revisions("large"), ["1-l"]);
    let put = target.requests().into_iter().find(|asked| asked.path == "/large").unwrap();
    assert!(put.body_bytes > 256 << 20);
    assert!(peak < ALLOWED_MB, "{peak} MB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_the_number_of_documents() {
    // 20 MB of documents, and 80.
    for documents in [10_000, 40_000] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        source.fill("d", documents, 2_000);
        let peak = peak_mb(&source, &target).await;
        assert_eq!(target.leaves(), documents);
        assert!(peak < ALLOWED_MB, "{documents} documents, {peak} MB");
    }
}

/// Rules of the source with one document of this many bytes.
fn serve_large(source: &Fake, bytes: usize) {
    // Of the second generation, so that none comes with the feed.
    source.put([json!({"_id": "large", "_rev": "2-b", "_revisions": {"start": 2, "ids": ["b", "a"]}})]);
    source.rule(move |asked| {
        // A document that is too large in one way is also requested by itself.
        let (before, after) = match asked.path.as_str() {
            "/_bulk_get" => (r#"{"results":[{"id":"large","docs":["#, "]}]}"),
            "/large" => ("[", "]"),
            _ => return None,
        };
        let head = r#"{"ok":{"_id":"large","_rev":"2-b","_revisions":{"start":2,"ids":["b","a"]},"x":""#;
        let pieces = std::iter::repeat_n(Step::Send(Bytes::from(vec![b'x'; 64 << 10])), bytes >> 16);
        let steps = std::iter::once(Step::Send(format!("{before}{head}").into()));
        let steps = steps.chain(pieces).chain([Step::Send(format!(r#""}}}}{after}"#).into())]);
        Some(Reply::steps(200, steps.collect::<Vec<_>>()))
    });
}

/// Without the limit, each of these would be in memory twice, at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_documents_of_many_replications_wait_for_each_other() {
    const RUNS: usize = 8;
    const BYTES: usize = 48 << 20;
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    serve_large(&source, BYTES);
    target.rule(|asked| (asked.path == "/_bulk_docs").then(|| Reply::json(201, &json!([]))));
    let peak = peak_of(&source, &target, RUNS, &[]).await;
    let whole = target.count(|asked| asked.path == "/_bulk_docs" && asked.body_bytes > BYTES as u64);
    assert_eq!(whole, RUNS);
    // One of them twice, the beginning of another one, and the usual memory of each run.
    assert!(peak < 300.0, "{peak} MB");
}

/// Documents beyond `max_document_size` are not copied, and what has arrived of them takes no more memory than others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_of_250_mb_from_each_of_six_peers_is_refused() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    serve_large(&source, 250 << 20);
    let reason = "a document of more than 67108864 bytes, [replicator] max_document_size";
    let peak = peak_of(&source, &target, 6, &[(REFUSED, reason)]).await;
    assert_eq!(target.count(|asked| asked.path == "/_bulk_docs"), 0);
    assert!(peak < 300.0, "{peak} MB");
}

#[tokio::test]
async fn a_large_attachment_on_a_slow_line_arrives() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    // It takes more than three times as long as the allowed silence, which is long enough for a busy machine.
    let pause = Duration::from_millis(100);
    Attached { bytes: 4 << 20, pause }.put(&source, "slow", "1-s");
    run(&source.url(), &target.url(), json!({"connection_timeout": 2_000})).await.unwrap();
    assert_eq!(target.count(|asked| asked.path == "/slow"), 1);
    assert_eq!(target.revisions("slow"), ["1-s"]);
}

#[tokio::test]
async fn an_upload_that_broke_off_is_made_again_from_its_beginning() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    let large = Attached::of(4 << 20);
    large.put(&source, "large", "1-l");
    // Once the source breaks off in the middle, once the target does not take it.
    let mut breaks = true;
    source.rule(move |asked| {
        let now = wants(asked, "large", "1-l") && std::mem::take(&mut breaks);
        now.then(|| large.whole("large", "1-l").cut(2 << 20))
    });
    let mut fails = true;
    target.rule(move |asked| {
        let now = asked.path == "/large" && asked.body_bytes > 4 << 20 && std::mem::take(&mut fails);
        now.then(|| turnwise_testkit::Reply::error(503, "service_unavailable"))
    });
    let report = run(&source.url(), &target.url(), json!({"retries_per_request": 2})).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (1, 0));
    assert_eq!(target.revisions("large"), ["1-l"]);
    let whole = |asked: &turnwise_testkit::Asked| asked.path == "/large" && asked.body_bytes > 4 << 20;
    assert_eq!((source.count(|asked| wants(asked, "large", "1-l")), target.count(whole)), (3, 2));
}
