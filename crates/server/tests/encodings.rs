//! Compressed bodies of requests, at every kind of route.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::common::{Answer, TestServer};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

async fn send(server: &TestServer, (method, path, kind): Route, encoding: &str, body: Vec<u8>) -> Answer {
    let request = server.request(method, path).header("content-type", kind).header("origin", &server.url);
    server.send(request.header("content-encoding", encoding).body(body)).await
}

type Route = (&'static str, &'static str, &'static str);

/// Requests with bodies, one for each way in which bodies are read, and their statuses.
const REQUESTS: [(Route, &str, u16); 11] = [
    (("POST", "/v1/jobs/mail", JSON), r#"{"id": "a"}"#, 201),
    (("POST", "/v1/jobs", JSON), r#"{"jobs": [{"type": "mail", "id": "b"}]}"#, 200),
    (("POST", "/v1/jobs/mail/a/cancel", JSON), "{}", 200),
    (
        ("PUT", "/_replicator/d", JSON),
        r#"{"source": "http://127.0.0.1:1/a", "target": "http://127.0.0.1:1/b"}"#,
        201,
    ),
    (("POST", "/_replicator/_bulk_docs", JSON), r#"{"docs": [{"_id": "_design/x"}]}"#, 201),
    (("POST", "/_replicator/_all_docs", JSON), r#"{"keys": ["d"]}"#, 200),
    (("POST", "/_replicator/_changes?filter=_doc_ids", JSON), r#"{"doc_ids": ["d"]}"#, 200),
    (("PUT", "/_replicator/_local/x", JSON), r#"{"a": 1}"#, 201),
    (("POST", "/_replicate", JSON), r#"{"replication_id": "none", "cancel": true}"#, 404),
    (("POST", "/_session", JSON), r#"{"name": "jan", "password": "wrong"}"#, 401),
    (("POST", "/_session", FORM), "name=jan&password=wrong", 401),
];

#[tokio::test]
async fn gzip_is_read_everywhere_and_other_encodings_are_refused() {
    for encoding in ["gzip", "identity"] {
        let server = TestServer::start().await;
        for (route, body, status) in REQUESTS {
            let wrong = send(&server, route, "deflate", body.as_bytes().to_vec()).await;
            assert_eq!(wrong.error(), (415, "bad_content_type"), "{route:?}: {}", wrong.body);
            assert_eq!(wrong.header("accept-encoding"), "gzip, identity");
            // It does not make a body that is refused half read: the next request uses the same connection.
            let plain = send(&server, route, "gzip", body.as_bytes().to_vec()).await;
            let reason = plain.body["reason"].as_str().unwrap();
            assert!(plain.status == 400 && reason.contains("not complete gzip"), "{route:?}: {}", plain.body);
            let body = if encoding == "gzip" { gzip(body.as_bytes()) } else { body.as_bytes().to_vec() };
            let answer = send(&server, route, encoding, body).await;
            assert_eq!(answer.status, status, "{encoding} {route:?}: {}", answer.body);
        }
        let mut form = server.request("POST", "/ui/login").header("origin", &server.url);
        form = form.header("content-type", FORM).header("content-encoding", "br");
        assert_eq!(form.body("name=jan").send().await.unwrap().status(), 415);
    }
}

#[tokio::test]
async fn limits_hold_for_what_a_body_decompresses_to() {
    let server = TestServer::start().await;
    let jobs = ("POST", "/v1/jobs", JSON);
    let docs = ("POST", "/_replicator/_bulk_docs", JSON);
    for (route, bytes) in [(jobs, 9 << 20), (docs, 17 << 20), (docs, 200 << 20)] {
        let bomb = gzip(&vec![b' '; bytes]);
        assert!(bomb.len() < 300_000);
        let answer = send(&server, route, "gzip", bomb).await;
        assert_eq!(answer.error(), (413, "too_large"), "{route:?}: {}", answer.body);
    }
    // One that is large and within the limits, and whose last piece decides.
    let many: Vec<_> = (0..1_000)
        .map(|n| json!({"type": "mail", "id": format!("{n}"), "options": "x".repeat(5_000)}))
        .collect();
    let body = json!({ "jobs": many }).to_string().into_bytes();
    let compressed = gzip(&body);
    let cut = send(&server, jobs, "gzip", compressed[..compressed.len() - 3].to_vec()).await;
    assert_eq!(cut.status, 400, "{}", cut.body);
    let added = send(&server, jobs, "gzip", compressed).await;
    assert_eq!((added.status, added.body["jobs"].as_array().unwrap().len()), (200, 1_000));
}
