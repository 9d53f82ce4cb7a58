//! Peers that are never silent and never finish: a byte now and then must not hold a job forever.

use std::time::Duration;

use crate::common::{context, request};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Value, json};
use turnwise_outbound::MinimumProgress;
use turnwise_replicator::{Error, Report, replicate};
use turnwise_testkit::{Fake, Reply, Step};

/// Far longer than any step here takes: without the minimum, these runs would not end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two bytes.
const PAUSE: Duration = Duration::from_millis(10);
/// An interval is three of these, 1.5 s, in which at most 150 bytes arrive.
const SILENCE: Duration = Duration::from_millis(500);
const LEAST: MinimumProgress = MinimumProgress { bytes: 600, interval: Duration::from_millis(150) };

/// Some text, and then single bytes without end.
fn drops(begin: &str, byte: &'static [u8]) -> Reply {
    let begin = stream::iter([Step::Send(Bytes::copy_from_slice(begin.as_bytes()))]);
    let drops = stream::repeat_with(move || [Step::Pause(PAUSE), Step::Send(Bytes::from_static(byte))]);
    let steps: BoxStream<'static, Step> = begin.chain(drops.flat_map(stream::iter)).boxed();
    Reply::stream(200, steps)
}

async fn run(source: &Fake, target: &Fake, fields: Value) -> Result<Report, Error> {
    let mut replication = request(&source.url(), &target.url(), fields);
    (replication.settings.peers.connection_timeout, replication.settings.peers.minimum_progress) =
        (SILENCE, LEAST);
    let context = context();
    let run = replicate(&replication, &context);
    tokio::time::timeout(PATIENCE, run).await.expect("it goes on for ever")
}

#[tokio::test]
async fn an_answer_that_comes_byte_by_byte_ends_the_run_with_the_reason() {
    const ROW: &str =
        "{\"results\":[\n{\"seq\":\"1-x\",\"id\":\"a\",\"changes\":[{\"rev\":\"1-a\"}]},\n{\"seq\":\"2-";
    for (side, path, begin, byte) in [
        ("source", "/_changes", ROW, &b"x"[..]),
        // White space within a row is no heartbeat.
        ("source", "/_changes", "{\"results\":[\n{\"seq\": ", b" "),
        // Neither are bytes after the rows.
        ("source", "/_changes", "{\"results\":[\n],\n\"last_seq\":\"", b"x"),
        ("source", "", "{\"db_name\":\"", b"x"),
        ("source", "/_bulk_get", "{\"results\":[{\"id\":\"", b"x"),
        ("source", "/d0", "[{\"ok\":{\"_id\":\"", b"x"),
        ("target", "/_revs_diff", "{", b" "),
        ("target", "/_bulk_docs", "[", b" "),
    ] {
        let (source, target) = tokio::join!(Fake::start(), Fake::start());
        // Not of the first generation, because such documents would come with the feed.
        source.put((0..20).map(|n| json!({"_id": format!("d{n}"), "_rev": "2-b"})));
        // A database that is not empty is asked what it lacks.
        target.put([json!({"_id": "there"})]);
        let sick = if side == "source" { &source } else { &target };
        sick.rule(move |asked| (asked.path == path).then(|| drops(begin, byte)));
        let error = run(&source, &target, json!({"use_bulk_get": path != "/d0"})).await.unwrap_err();
        assert!(!error.is_terminal());
        let said = error.to_string();
        assert!(said.contains(&format!("({side} ")) && said.contains(path), "{path}: {said}");
        assert!(said.contains("too slow: ") && said.contains("minimum_progress is 600"), "{path}: {said}");
    }
}

#[tokio::test]
async fn a_filter_may_search_for_longer_than_any_interval() {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.put((0..3).map(|n| json!({"_id": format!("d{n}"), "pass": true})));
    source.rule(|asked| {
        if asked.path != "/_changes" || asked.parameter("limit").is_some() {
            return None;
        }
        // Two hundred heartbeats before each row: two seconds without data, four times.
        let quiet = || (0..200).flat_map(|_| [Step::Pause(PAUSE), Step::Send(Bytes::from_static(b"\n"))]);
        let row = |n: usize| {
            let comma = if n == 0 { "{\"results\":[" } else { "," };
            let row = json!({"seq": n + 1, "id": format!("d{n}"), "changes": [{"rev": "1-a"}]});
            Step::Send(format!("{comma}\n{row}").into())
        };
        let rows = (0..3).flat_map(move |n| quiet().chain([row(n)])).collect::<Vec<_>>();
        let end = Step::Send(Bytes::from_static(b"\n],\n\"last_seq\":3,\"pending\":0}\n"));
        Some(Reply::steps(200, rows.into_iter().chain(quiet().collect::<Vec<_>>()).chain([end])))
    });
    let report = run(&source, &target, json!({"selector": {"pass": true}})).await.unwrap();
    assert_eq!(report.stats.docs_written, 3);
}
