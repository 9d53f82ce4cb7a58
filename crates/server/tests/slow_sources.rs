//! Sources that hold slots: each way to be slow ends the run with its reason, and another tenant's replication gets the slot.

use std::time::Duration;

use crate::common::TestServer;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};
use turnwise_testkit::{Fake, Reply, Step};

/// Slots, and slow sources.
const SLOTS: usize = 8;
/// An interval is three times `connection_timeout`: 1.2 s, for runs 1.5 s. An honest replication moves as much at once.
const MINIMUM: &str =
    "max_jobs = 8\nconnection_timeout = 400\nminimum_progress = 4000\nprogress_interval = 1000\n";
/// Above the interval, so that the minimum ends all that it can end.
const MAXIMUM: &str = "[timeouts]\nreplication = 6\n";
/// More often than `connection_timeout`, so that no source is silent.
const PAUSE: Duration = Duration::from_millis(100);
const ROW: &str = "{\"results\":[\n";

/// A way to be slow.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slow {
    /// The feed sends heartbeats, and never a row.
    Heartbeats,
    /// The same behind a filter, which may have to search.
    Search,
    /// The feed sends a complete row now and then.
    Rows,
    /// The feed sends a row byte by byte.
    RowBytes,
    /// A document comes byte by byte.
    DocumentBytes,
    /// An attachment comes byte by byte.
    AttachmentBytes,
    /// Each document comes after a pause, in a response of its own.
    Late,
    /// It never answers.
    Mute,
    /// The same, for a client that allows a day of silence.
    Patient,
}

const ALL: [Slow; SLOTS] = [
    Slow::Heartbeats,
    Slow::Search,
    Slow::Rows,
    Slow::RowBytes,
    Slow::DocumentBytes,
    Slow::AttachmentBytes,
    Slow::Late,
    Slow::Mute,
];

impl Slow {
    async fn start(self) -> Fake {
        let source = Fake::start().await;
        // Not of the first generation, because such documents would come with the feed.
        let stub = json!({"content_type": "text/plain", "length": 1 << 20, "digest": "md5-x", "revpos": 1, "stub": true});
        let attachments = if self == Slow::AttachmentBytes { json!({"a": stub}) } else { json!({}) };
        source.put((0..200).map(
            |n| json!({"_id": format!("d{n}"), "_rev": "2-b", "pass": true, "_attachments": attachments}),
        ));
        source.rule(move |asked| match self {
            Slow::Mute | Slow::Patient => Some(Reply::steps(200, [Step::Hang])),
            Slow::Heartbeats | Slow::Search if asked.path == "/_changes" => Some(drips(ROW, PAUSE, || "\n".into())),
            Slow::RowBytes if asked.path == "/_changes" => {
                Some(drips(&format!("{ROW}{{\"seq\":\""), PAUSE, || "x".into()))
            }
            Slow::Rows if asked.path == "/_changes" => {
                let mut row = 0;
                Some(drips(ROW, 3 * PAUSE, move || {
                    let comma = if row == 0 { "" } else { "," };
                    row += 1;
                    format!("{comma}\n{{\"seq\":\"{row}-incarnation0\",\"id\":\"d{}\",\"changes\":[{{\"rev\":\"2-b\"}}]}}", row - 1)
                }))
            }
            Slow::DocumentBytes if asked.path == "/_bulk_get" => {
                Some(drips("{\"results\":[{\"id\":\"", PAUSE, || "x".into()))
            }
            Slow::AttachmentBytes if asked.headers.contains(&("accept".into(), "multipart/mixed".into())) => {
                let doc = json!({"_id": asked.path.trim_start_matches('/'), "_rev": "2-b", "_revisions": {"start": 2, "ids": ["b"]},
                    "_attachments": {"a": {"content_type": "text/plain", "length": 1 << 20, "follows": true}}});
                let head = format!(
                    "--M\r\nContent-Type: multipart/related; boundary=\"R\"\r\n\r\n--R\r\nContent-Type: application/json\r\n\r\n{doc}\
                     \r\n--R\r\nContent-Disposition: attachment; filename=\"a\"\r\nContent-Length: 1048576\r\n\r\n"
                );
                Some(drips(&head, PAUSE, || "x".into()).content_type("multipart/mixed; boundary=\"M\""))
            }
            _ => None,
        });
        if self == Slow::Late {
            source.delay(|asked| asked.path.starts_with("/d").then_some(3 * PAUSE));
        }
        source
    }

    /// The fields of a replication from it. The client chooses them, too.
    fn fields(self) -> Value {
        match self {
            Slow::Search => json!({"selector": {"pass": true}}),
            Slow::AttachmentBytes => json!({"use_bulk_get": false}),
            Slow::Late => json!({
                "use_bulk_get": false, "worker_batch_size": 1, "worker_processes": 1, "http_connections": 1,
            }),
            Slow::Patient => json!({"connection_timeout": 86_400_000}),
            _ => json!({}),
        }
    }

    /// Whether the run ended with its reason.
    fn is_why(self, said: &str) -> bool {
        let silence = said.contains("timed out: no data for 400 ms");
        let minimum = said.contains("[replicator] minimum_progress is 4000");
        match self {
            Slow::Search => said.contains("ran for longer than its timeout of 6s"),
            Slow::Mute => silence,
            // What comes byte by byte also leaves the request to the target without data.
            Slow::AttachmentBytes => silence || minimum,
            _ => minimum,
        }
    }
}

/// Some text, and then a little now and then without end.
fn drips(begin: &str, pause: Duration, mut next: impl FnMut() -> String + Send + 'static) -> Reply {
    let begin = stream::iter([Step::Send(Bytes::copy_from_slice(begin.as_bytes()))]);
    let drips = stream::repeat_with(move || [Step::Pause(pause), Step::Send(next().into())]);
    Reply::stream(200, begin.chain(drips.flat_map(stream::iter)).boxed())
}

/// Fills all slots with replications from slow sources. Returns the sources and targets, which end with this value.
async fn fill(server: &TestServer, slow: [Slow; SLOTS]) -> Vec<Fake> {
    let mut peers = Vec::new();
    for (n, slow) in slow.into_iter().enumerate() {
        let (source, target) = tokio::join!(slow.start(), Fake::start());
        let mut doc = slow.fields();
        (doc["source"], doc["target"]) = (json!(source.url()), json!(target.url()));
        server.put_ok(&format!("/_replicator/{n}"), &doc).await;
        // Its run has begun, and may have ended.
        source.wait_for(1, |_| true).await;
        peers.extend([source, target]);
    }
    peers
}

/// A replication of another tenant completes.
async fn completes(server: &TestServer) {
    let (source, target) = tokio::join!(Fake::start(), Fake::start());
    source.fill("d", 100, 100);
    assert_eq!(server.put("/honest/_replicator", &Value::Null).await.status, 201);
    // The machine may be slow.
    let doc = json!({"source": source.url(), "target": target.url(), "connection_timeout": 30_000});
    server.put_ok("/honest/_replicator/d", &doc).await;
    let path = "/_scheduler/docs/honest/_replicator/d";
    let status = server.poll(path, |status| status["state"] == "completed").await;
    assert_eq!(status["info"]["docs_written"], 100, "{status}");
}

#[tokio::test]
async fn each_way_to_be_slow_ends_the_run_with_its_reason() {
    let server = TestServer::start_with(&format!("{MINIMUM}{MAXIMUM}")).await;
    let _peers = fill(&server, ALL).await;
    completes(&server).await;
    for (n, slow) in ALL.into_iter().enumerate() {
        let status = server.until(&n.to_string(), &["crashing"]).await;
        let error = status["info"]["error"].as_str().unwrap();
        assert!(slow.is_why(error), "{slow:?}: {error}");
        let id = status["id"].as_str().unwrap().replace('+', "%2B");
        let why = server.get(&format!("/v1/jobs/replication/{id}/why")).await.body;
        assert_eq!(why["reason"], "backoff", "{why}");
        assert!(slow.is_why(why["sentence"].as_str().unwrap()), "{slow:?}: {why}");
    }
}

#[tokio::test]
async fn slow_sources_on_all_slots_do_not_keep_another_tenant_waiting() {
    // Without a maximum run time. A source that is silent for as long as its client allows ends after the longest interval.
    for slow in [Slow::Heartbeats, Slow::Rows, Slow::Late, Slow::Patient] {
        let server = TestServer::start_with(MINIMUM).await;
        let _peers = fill(&server, [slow; SLOTS]).await;
        let waiting = std::time::Instant::now();
        completes(&server).await;
        println!("{slow:?}: the other tenant waited {:?}", waiting.elapsed());
    }
}
