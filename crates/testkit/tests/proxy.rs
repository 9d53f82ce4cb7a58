//! Each fault appears to a client as if the peer had it, and ends on request.

use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use turnwise_testkit::{Database, Dataset, Fault, FaultProxy, Peer, client, compare};

/// The time after which a connection counts as silent. It is longer than the pauses of a busy machine.
const SILENCE: Duration = Duration::from_secs(5);

struct Stage {
    _peer: Peer,
    direct: Database,
    proxy: FaultProxy,
    /// The same database through the proxy.
    proxied: Database,
}

/// A peer, a database with one document `x`, and a proxy in front of the peer.
async fn stage() -> Stage {
    let peer = Peer::pair().await.0;
    let proxy = FaultProxy::start(&peer).await;
    let direct = peer.create("db").await;
    direct.put("x", &json!({ "text": "a".repeat(500) })).await;
    let proxied = Database::at(proxy.through(&direct));
    Stage { _peer: peer, direct, proxy, proxied }
}

impl Stage {
    async fn get(&self, path: &str) -> reqwest::Result<Response> {
        client().get(format!("{}{path}", self.proxied.url())).send().await
    }
}

/// Reads a body, and returns its bytes and how it ends: `Ok(true)` at its end, `Ok(false)` in silence, `Err` with an error.
async fn read(answer: Response) -> (Vec<u8>, reqwest::Result<bool>) {
    let mut pieces = answer.bytes_stream();
    let mut bytes = Vec::new();
    loop {
        match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(Some(Ok(piece))) => bytes.extend_from_slice(&piece),
            Ok(Some(Err(error))) => return (bytes, Err(error)),
            Ok(None) => return (bytes, Ok(true)),
            Err(_) => return (bytes, Ok(false)),
        }
    }
}

#[tokio::test]
async fn without_a_fault_everything_passes_unchanged() {
    let peers = Peer::pair().await;
    let (from, to) = (peers.0.create("from").await, peers.1.create("to").await);
    let proxy = FaultProxy::start(&peers.1).await;
    let proxied = Database::at(proxy.through(&to));
    let dataset = Dataset::small();
    dataset.load(&from).await;
    dataset.load(&proxied).await;
    compare(&from, &proxied).await.unwrap();

    let large = proxy.requests().into_iter().max_by_key(|request| request.body_bytes).unwrap();
    assert_eq!((large.method.as_str(), large.status), ("PUT", Some(201)));
    assert!(large.body_bytes > 256 << 10 && large.body.len() == 256 << 10);
    assert!(large.header("content-type").unwrap().starts_with("multipart/related"));
    assert!(proxy.count(|request| request.path.ends_with("/_bulk_get?revs=true")) >= 2);
    assert!(proxy.requests().iter().all(|request| request.answered && request.fault.is_none()));
    assert!(proxy.connections() < proxy.requests().len(), "connections are kept alive");
}

#[tokio::test]
async fn the_log_has_each_request() {
    let stage = stage().await;
    stage.proxied.post("/_revs_diff", &json!({ "x": ["1-a"] })).await;
    let request = stage.proxy.wait_for(|request| request.path.ends_with("/_revs_diff")).await;
    assert_eq!((request.method.as_str(), request.text().as_str()), ("POST", r#"{"x":["1-a"]}"#));
    assert_eq!((request.body_bytes, request.header("content-type")), (13, Some("application/json")));
    stage.proxy.clear();
    assert!(stage.proxy.requests().is_empty());
}

#[tokio::test]
async fn a_continuous_feed_streams_through() {
    let stage = stage().await;
    let feed = stage.get("/_changes?feed=continuous&since=0&heartbeat=100").await.unwrap();
    let mut pieces = feed.bytes_stream();
    let first = pieces.next().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("\"x\""));
    stage.direct.put("y", &json!({})).await;
    let mut rest = Vec::new();
    while !String::from_utf8_lossy(&rest).contains("\"y\"") {
        rest.extend_from_slice(&pieces.next().await.unwrap().unwrap());
    }
    assert!(!stage.proxy.requests()[0].answered);
}

#[tokio::test]
async fn down_refuses_connections_until_it_is_up_again_on_the_same_port() {
    let stage = stage().await;
    let feed = stage.get("/_changes?feed=continuous&heartbeat=100").await.unwrap();
    stage.proxy.set(Fault::Down).await;
    assert!(stage.get("/x").await.unwrap_err().is_connect());
    assert!(!matches!(read(feed).await, (_, Ok(false))), "open connections end");
    stage.proxy.set(Fault::None).await;
    assert_eq!(stage.get("/x").await.unwrap().status(), 200);
    // Again, to check that the proxy can bind a port that it already holds.
    stage.proxy.set(Fault::Down).await;
    stage.proxy.set(Fault::Down).await;
    assert!(stage.get("/x").await.unwrap_err().is_connect());
    stage.proxy.set(Fault::None).await;
    assert_eq!(stage.get("/x").await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_truncated_response_ends_properly_and_too_early() {
    let stage = stage().await;
    stage.proxy.set(Fault::Truncated { after: 100 }).await;
    let (bytes, end) = read(stage.get("/x").await.unwrap()).await;
    assert_eq!(bytes.len(), 100);
    let error = format!("{:?}", end.unwrap_err());
    assert!(!error.contains("ConnectionReset"), "{error}");

    stage.proxy.set(Fault::Truncated { after: u64::MAX }).await;
    let (bytes, end) = read(stage.get("/x").await.unwrap()).await;
    assert!(bytes.len() > 500 && end.is_err(), "the last byte is missing");
}

#[tokio::test]
async fn a_reset_comes_before_the_answer_or_within_it() {
    let stage = stage().await;
    stage.proxy.set(Fault::Reset { after: 0 }).await;
    let error = stage.get("/x").await.unwrap_err();
    assert!(format!("{error:?}").contains("ConnectionReset"), "{error:?}");

    stage.proxy.set(Fault::Reset { after: 100 }).await;
    let answer = stage.get("/x").await.unwrap();
    let (bytes, end) = read(answer).await;
    assert_eq!(bytes.len(), 100);
    assert!(format!("{end:?}").contains("ConnectionReset"), "{end:?}");

    // The limit exceeds the response's length, but its last byte is still missing.
    stage.proxy.set(Fault::Reset { after: 1 << 20 }).await;
    let (bytes, end) = read(stage.get("/x").await.unwrap()).await;
    assert!(end.is_err() && bytes.ends_with(b"}"), "{end:?}");
}

#[tokio::test]
async fn a_hang_keeps_the_connection_and_sends_nothing_more() {
    let stage = stage().await;
    stage.proxy.set(Fault::HangMidBody { after: 20 }).await;
    let (bytes, end) = read(stage.get("/x").await.unwrap()).await;
    assert_eq!((bytes.len(), end.unwrap()), (20, false));
    stage.proxy.set(Fault::None).await;
    assert!(read(stage.get("/x").await.unwrap()).await.1.unwrap());
}

#[tokio::test]
async fn statuses_come_with_couchdbs_error_text() {
    let stage = stage().await;
    for (status, error) in [
        (401, "unauthorized"),
        (404, "not_found"),
        (429, "too_many_requests"),
        (500, "internal_server_error"),
    ] {
        stage.proxy.set(Fault::Status(status)).await;
        let body = json!({ "docs": [{ "_id": "z" }] });
        let (seen, answer) = stage.proxied.request(Method::POST, "/_bulk_docs", Some(&body)).await;
        assert_eq!((seen.as_u16(), &answer["error"]), (status, &json!(error)));
        assert!(answer["reason"].is_string());
    }
    assert_eq!(stage.direct.doc("z").await, None, "the peer saw nothing");
    assert_eq!(stage.proxy.count(|request| request.body_bytes > 0 && request.fault.is_some()), 4);

    stage.proxy.set(Fault::Answer { status: 403, body: "own words".to_owned() }).await;
    let answer = stage.get("/x").await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (403, "own words"));
}

#[tokio::test]
async fn invalid_json_is_a_whole_answer_that_cannot_be_parsed() {
    let stage = stage().await;
    stage.proxy.set(Fault::InvalidJson).await;
    let answer = stage.get("/_changes").await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["content-type"].to_str().unwrap()),
        (200, "application/json")
    );
    let text = answer.text().await.unwrap();
    assert!(serde_json::from_str::<Value>(&text).is_err(), "{text}");
}

#[tokio::test]
async fn multipart_is_whole_or_truncated() {
    let stage = stage().await;
    let attachment = json!({ "a": { "content_type": "text/plain", "data": "aGVsbG8=" } });
    let rev = stage.direct.put("y", &json!({ "_attachments": attachment })).await;
    let path = format!("/y?revs=true&open_revs=[%22{rev}%22,%221-aa%22]");

    stage.proxy.set(Fault::Multipart).await;
    let answer = stage.get(&path).await.unwrap();
    let content_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let boundary = content_type.strip_prefix("multipart/mixed; boundary=\"").unwrap().trim_end_matches('"');
    let whole = answer.text().await.unwrap();
    assert!(whole.ends_with(&format!("--{boundary}--")) && whole.contains("\r\n\r\nhello\r\n--"), "{whole}");
    let other = stage.get("/x").await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(other["_id"], "x", "other requests pass");

    stage.proxy.set(Fault::TruncatedMultipart).await;
    let (part, end) = read(stage.get(&path).await.unwrap()).await;
    assert!(end.unwrap(), "the framing is complete");
    assert!(whole.as_bytes().starts_with(&part) && part.len() < whole.len() * 3 / 4);
}

#[tokio::test]
async fn a_slow_response_arrives_at_its_pace() {
    let stage = stage().await;
    stage.proxy.set(Fault::Slow { bytes_per_second: 2_000 }).await;
    let start = Instant::now();
    let (bytes, end) = read(stage.get("/x").await.unwrap()).await;
    assert!(end.unwrap() && bytes.len() > 500);
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[tokio::test]
async fn rules_apply_to_some_requests_and_to_a_number_of_them() {
    let stage = stage().await;
    let status = async |path: &str| stage.get(path).await.unwrap().status().as_u16();
    stage.proxy.set(Fault::Status(500).when(|request| request.path.ends_with("/x")).times(2)).await;
    stage.proxy.add(Fault::Status(429).when(|request| request.path.contains("_changes")));
    assert_eq!(status("/_all_docs").await, 200);
    assert_eq!([status("/x").await, status("/x").await, status("/x").await], [500, 500, 200]);
    assert_eq!([status("/_changes").await, status("/_changes").await], [429, 429]);
    stage.proxy.set(Fault::None).await;
    assert_eq!(status("/_changes").await, 200);
}

#[tokio::test]
async fn credentials_go_through() {
    let peer = Peer::options().admin("admin", turnwise_testkit::canary::PASSWORD).start().await;
    let proxy = FaultProxy::start(&peer).await;
    let database = peer.create("db").await;
    let proxied = Database::at(proxy.through(&database));
    assert_eq!(proxied.doc_count().await, 0);
    assert!(proxy.requests()[0].header("authorization").unwrap().starts_with("Basic "));
}

#[tokio::test]
async fn a_gateway_refuses_loses_and_gives_up() {
    let stage = stage().await;
    let page = |answer: Response, status: u16| async move {
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["content-type"], "text/html");
        assert!(answer.text().await.unwrap().contains("<html>"));
    };
    stage.proxy.set(Fault::Page(403)).await;
    page(stage.get("/x").await.unwrap(), 403).await;

    stage.proxy.set(Fault::Lost { status: 502 }).await;
    let put = client().put(format!("{}/lost", stage.proxied.url())).json(&json!({ "n": 1 }));
    page(put.send().await.unwrap(), 502).await;
    assert!(stage.direct.doc("lost").await.is_some(), "only the response is lost");

    stage.proxy.set(Fault::BodyRefused { lingers: true }).await;
    let put =
        client().put(format!("{}/large", stage.proxied.url())).json(&json!({ "text": "a".repeat(3 << 20) }));
    page(put.send().await.unwrap(), 413).await;
    assert!(stage.direct.doc("large").await.is_none());

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let before_silence = FaultProxy::before(&format!("http://{}", silent.local_addr().unwrap())).await;
    before_silence.set(Fault::Impatient { after_ms: 200 }).await;
    page(client().get(before_silence.url()).send().await.unwrap(), 504).await;

    stage.proxy.set(Fault::Impatient { after_ms: 200 }).await;
    let (bytes, end) = read(stage.get("/_changes?feed=continuous&heartbeat=60000").await.unwrap()).await;
    assert!(!bytes.is_empty() && end.is_err(), "{end:?}");
}

#[tokio::test]
async fn a_gateway_compresses_what_clients_accept_compressed() {
    let stage = stage().await;
    stage.proxy.set(Fault::Gzip).await;
    let plain = stage.direct.get("/x").await;
    assert_eq!(stage.proxied.get("/x").await, plain, "a client that does not ask for it gets none");
    let url = format!("{}/x", stage.proxied.url());
    let answer = client().get(url).header("accept-encoding", "gzip").send().await.unwrap();
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert!(answer.headers()["etag"].to_str().unwrap().starts_with("W/"));
    let bytes = answer.bytes().await.unwrap();
    assert!(bytes.len() < 300, "{}", bytes.len());
    let decoded: Value = serde_json::from_reader(flate2::read::GzDecoder::new(&bytes[..])).unwrap();
    assert_eq!(decoded, plain);
}
