//! Requests that `/v1` rejects, each with a status, a code, a reason and a hint.

use crate::common::{Answer, TestServer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn assert_error(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.error(), (status, code), "{}", answer.body);
    for member in ["reason", "hint"] {
        assert!(!answer.body[member].as_str().unwrap().is_empty(), "{}", answer.body);
    }
}

#[tokio::test]
async fn bodies_that_are_not_what_they_must_be() {
    let server = TestServer::start().await;
    let deep = format!(r#"{{"options": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let name = |bytes: usize| "n".repeat(bytes);
    let cases: Vec<(String, &str)> = vec![
        ("".into(), "bad_json"),
        ("{".into(), "bad_json"),
        ("{}x".into(), "bad_json"),
        ("\u{feff}{}".into(), "bad_json"),
        ("{'id': 1}".into(), "bad_json"),
        (r#"{"id": "\ud800"}"#.into(), "bad_json"),
        (r#"{"options": 1e999}"#.into(), "bad_json"),
        (deep, "bad_json"),
        ("null".into(), "bad_request"),
        ("[]".into(), "bad_request"),
        ("\"a\"".into(), "bad_request"),
        (r#"{"ID": "a"}"#.into(), "bad_request"),
        (r#"{"type": "t"}"#.into(), "bad_request"),
        (r#"{"id": 1}"#.into(), "bad_request"),
        (r#"{"id": ""}"#.into(), "bad_request"),
        (r#"{"id": "."}"#.into(), "bad_request"),
        (r#"{"id": "a\u0000b"}"#.into(), "bad_request"),
        (r#"{"id": "a\u001bb"}"#.into(), "bad_request"),
        (json!({"id": name(513)}).to_string(), "bad_request"),
        (json!({"tenant": name(513)}).to_string(), "bad_request"),
        (json!({"user": name(513)}).to_string(), "bad_request"),
        (json!({"tenant": "\n"}).to_string(), "bad_request"),
        (json!({"summary": "text"}).to_string(), "bad_request"),
        (json!({"summary": {"x": name(13_000)}}).to_string(), "bad_request"),
        (json!({"options": name((4 << 20) + 1)}).to_string(), "bad_request"),
        (json!({"delay_ms": -1}).to_string(), "bad_request"),
        (json!({"delay_ms": 1.5}).to_string(), "bad_request"),
        (json!({"delay_ms": "1"}).to_string(), "bad_request"),
        (json!({"delay_ms": u64::MAX}).to_string(), "bad_request"),
        (r#"{"delay_ms": 99999999999999999999999999}"#.into(), "bad_request"),
        (json!({"not_before_us": -1}).to_string(), "bad_request"),
        (json!({"not_before_us": i64::MAX}).to_string(), "bad_request"),
        (json!({"max_attempts": 1_000_001}).to_string(), "bad_request"),
        (json!({"max_attempts": u64::MAX}).to_string(), "bad_request"),
        (json!({"if_exists": "replace"}).to_string(), "bad_request"),
        (json!({"if_exists": {"keep": null}}).to_string(), "bad_request"),
        (r#"{"id": "a", "id": "b"}"#.into(), "bad_request"),
    ];
    for (body, code) in cases {
        let request = server.request("POST", "/v1/jobs/t").header("content-type", "application/json");
        let answer = server.send(request.body(body.clone())).await;
        assert_eq!(answer.error(), (400, code), "{body:.100}: {}", answer.body);
        assert_error(&answer, 400, code);
        assert!(answer.body.to_string().len() < 2_000);
    }
    let request = server.request("POST", "/v1/jobs/t").header("content-type", "application/json");
    assert_error(&server.send(request.body(&b"{\"id\": \"\xff\"}"[..])).await, 400, "bad_json");
    assert_eq!(server.get("/v1/types").await.body, json!({"types": []}));
}

#[tokio::test]
async fn bodies_that_are_not_declared_as_json() {
    let server = TestServer::start().await;
    for kind in
        ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/json5"]
    {
        let mut request = server.request("POST", "/v1/jobs/t").body("{}");
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        assert_error(&server.send(request).await, 415, "bad_content_type");
    }
    let request =
        server.request("POST", "/v1/jobs/t").header("content-type", "Application/JSON; charset=utf-8");
    assert_eq!(server.send(request.body("{}")).await.status, 201);
}

#[tokio::test]
async fn names_in_paths_and_queries() {
    let server = TestServer::start().await;
    let long = format!("/v1/jobs/t/{}", "x".repeat(513));
    for path in [
        "/v1/jobs//a",
        "/v1/jobs/%00/a",
        "/v1/jobs/t/%00",
        "/v1/jobs/t/a%0Ab",
        "/v1/jobs/t/%ff",
        "/v1/jobs/%ff/a",
        "/v1/jobs/a%20b/a",
        &format!("/v1/jobs/{}/a", "t".repeat(65)),
        &long,
        "/v1/jobs?limit=0",
        "/v1/jobs?limit=1001",
        "/v1/jobs?limit=-1",
        "/v1/jobs?limit=",
        "/v1/jobs?limit=99999999999999999999999",
        "/v1/jobs?limit=1&limit=2",
        "/v1/jobs?state=ended",
        "/v1/jobs?type=",
        "/v1/jobs?type=a%2Fb",
        "/v1/jobs?tenant=%00",
        "/v1/jobs?tenant=%ff",
        "/v1/jobs?type=a&after=b%2Fx&tenant=%00",
        "/v1/jobs?after=x",
        "/v1/jobs?after=t%2F%00",
        "/v1/jobs?colour=red",
        "/v1/jobs/t/a/wait?timeout_ms=-1",
        "/v1/jobs/t/a/wait?timeout_ms=1e3",
    ] {
        assert_error(&server.get(path).await, 400, "bad_request");
    }
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there() {
    let server = TestServer::start().await;
    for path in ["/v1", "/v1/", "/v1/x", "/v1/jobs/", "/v1/jobs/t/a/b", "/v1/jobs/t/a/wait/"] {
        for method in ["GET", "POST", "DELETE"] {
            assert_error(&server.bare(method, path).await, 404, "not_found");
        }
    }
    for (method, path, allowed) in [
        ("PUT", "/v1/jobs", "GET,HEAD,POST"),
        ("DELETE", "/v1/jobs", "GET,HEAD,POST"),
        ("GET", "/v1/jobs/t", "POST"),
        ("POST", "/v1/jobs/t/a", "DELETE,GET,HEAD,PATCH"),
        ("PUT", "/v1/jobs/t/a", "DELETE,GET,HEAD,PATCH"),
        ("BREW", "/v1/jobs/t/a", "DELETE,GET,HEAD,PATCH"),
        ("GET", "/v1/jobs/t/a/cancel", "POST"),
        ("POST", "/v1/jobs/t/a/wait", "GET,HEAD"),
        ("POST", "/v1/openapi.json", "GET,HEAD"),
    ] {
        let answer = server.bare(method, path).await;
        assert_error(&answer, 405, "method_not_allowed");
        let mut allow: Vec<&str> = answer.header("allow").split(',').collect();
        allow.sort_unstable();
        assert_eq!(allow.join(","), allowed, "{method} {path}");
    }
    let head = server.send(server.request("HEAD", "/v1/jobs")).await;
    assert_eq!((head.status, head.body), (200, Value::Null));
    // CouchDB's paths are unchanged.
    assert_eq!(server.get("/v2").await.error(), (404, "not_found"));
    assert_eq!(server.get("/").await.body["couchdb"], "Welcome");
}

/// Sends a head and then pieces, and reads the response's head. Also returns how many pieces it could send.
async fn exchange(server: &TestServer, head: &str, piece: &[u8], pieces: usize) -> (String, usize) {
    let stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let (head, piece) = (head.to_owned(), piece.to_owned());
    let sending = tokio::spawn(async move {
        to.write_all(head.as_bytes()).await.unwrap();
        for sent in 0..pieces {
            if to.write_all(&piece).await.is_err() {
                return (to, sent);
            }
        }
        (to, pieces)
    });
    let mut answer = vec![0; 4_096];
    let n = tokio::time::timeout(crate::common::PATIENCE, from.read(&mut answer)).await.unwrap().unwrap();
    let (_to, sent) = sending.await.unwrap();
    (String::from_utf8_lossy(&answer[..n]).into_owned(), sent)
}

#[tokio::test]
async fn a_long_url_and_a_large_head_are_refused_without_a_body() {
    let server = TestServer::start().await;
    let url = |bytes: usize| format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "u".repeat(bytes - 1));
    let headers = |count: usize| {
        let others: String = (1..count).map(|n| format!("h{n}: v\r\n")).collect();
        format!("GET /v1/me HTTP/1.1\r\nhost: localhost\r\n{others}\r\n")
    };
    for (head, status) in [(url(65_535), 414), (headers(101), 431)] {
        let (answer, _) = exchange(&server, &head, b"", 0).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(answer.contains("\r\ncontent-length: 0\r\n"), "{answer}");
    }
    for (head, status) in [(url(65_534), 404), (headers(100), 200)] {
        let (answer, _) = exchange(&server, &head, b"", 0).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

#[tokio::test]
async fn unfinished_heads_of_one_address_have_a_bound_and_the_newest_stay() {
    let server = TestServer::start().await;
    let head = format!("GET /v1/me HTTP/1.1\r\nhost: localhost\r\nx: {}", "a".repeat(250_000));
    let mut connections = Vec::new();
    for _ in 0..100 {
        let mut connection = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
        let small = b"GET /_up HTTP/1.1\r\nhost: localhost\r\n\r\n";
        connection.write_all(small).await.unwrap();
        assert!(connection.read(&mut [0; 4_096]).await.unwrap() > 0);
        connection.write_all(head.as_bytes()).await.unwrap();
        connections.push(connection);
    }
    // 16 MiB have place for 71 of them.
    let mut closed = Vec::new();
    for connection in &mut connections[..25] {
        let end =
            tokio::time::timeout(crate::common::PATIENCE, connection.read(&mut [0; 4_096])).await.unwrap();
        closed.push(!matches!(end, Ok(1..)));
    }
    assert!(closed.iter().all(|closed| *closed), "{closed:?}");
    for connection in &mut connections[60..] {
        connection.write_all(b"\r\n\r\n").await.unwrap();
        let mut answer = [0; 4_096];
        let bytes = connection.read(&mut answer).await.unwrap();
        assert!(
            answer[..bytes].starts_with(b"HTTP/1.1 200 "),
            "{}",
            String::from_utf8_lossy(&answer[..bytes])
        );
    }
}

#[tokio::test]
async fn a_body_of_100_mb_is_refused_by_its_declared_length_before_it_is_sent() {
    let server = TestServer::start().await;
    let head = "POST /v1/jobs/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 104857600\r\n\r\n";
    let (answer, _) = exchange(&server, head, b"", 0).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains(r#""error":"too_large""#), "{answer}");
}

#[tokio::test]
async fn a_client_that_sends_100_mb_before_reading_still_gets_the_error() {
    let server = TestServer::start().await;
    let megabyte = vec![b' '; 1 << 20];
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 104857600\r\n\r\n";
    let (answer, sent) = exchange(&server, head, &megabyte, 100).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(sent, 100);
    // In chunks, without a declared length.
    let mut chunk = b"100000\r\n".to_vec();
    chunk.extend_from_slice(&megabyte);
    chunk.extend_from_slice(b"\r\n");
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let (answer, _) = exchange(&server, head, &chunk, 100).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    // A plain client, on a path that accepts no body.
    let request = server.request("GET", "/v1/nothing").body(vec![b' '; 100 << 20]);
    assert_error(&server.send(request).await, 404, "not_found");
}

#[tokio::test]
async fn slow_large_bodies_do_not_delay_small_ones() {
    let server = TestServer::start().await;
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 8000000\r\n\r\n{\"jobs\": [";
    let mut senders = Vec::new();
    for _ in 0..60 {
        let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        senders.push(stream);
    }
    assert_eq!(server.post("/v1/jobs/t", &json!({"options": "x".repeat(60_000)})).await.status, 201);
    // When these connections close, their memory is free again.
    drop(senders);
    assert_eq!(server.post("/v1/jobs/t", &json!({"options": "x".repeat(1 << 20)})).await.status, 201);
}

#[tokio::test]
async fn every_error_of_a_batch_names_its_job() {
    let server = TestServer::start().await;
    let nowhere = json!([{"type": "mail", "id": "nowhere"}]);
    for (wrong, says) in [
        (
            json!({"type": "mail", "id": "b", "after": nowhere}),
            "jobs[1].after: [0]: there is no job `nowhere`",
        ),
        (json!({"type": "mail", "id": "b", "after": nowhere, "if_exists": "again"}), "jobs[1].after: [0]: "),
        (json!({"type": "mail", "id": "b", "max_attempts": 1_000_001}), "jobs[1].max_attempts: "),
    ] {
        let jobs = json!({"jobs": [{"type": "mail", "id": "a"}, wrong]});
        let answer = server.post("/v1/jobs", &jobs).await;
        assert_error(&answer, 400, "bad_request");
        assert!(answer.body["reason"].as_str().unwrap().starts_with(says), "{}", answer.body);
        assert_eq!(server.get("/v1/jobs/mail/a").await.status, 404, "none is added");
    }
    let one = server.post("/v1/jobs/mail", &json!({"after": nowhere})).await;
    assert!(one.body["reason"].as_str().unwrap().starts_with("after: [0]: "), "{}", one.body);

    // What is wrong may be no member.
    server.post("/v1/jobs/mail", &json!({"id": "c", "tenant": "eva"})).await;
    let admin = server.close().await;
    let token = server.with(&admin).token(&["client:jan"]).await;
    let jan = server.with(&token);
    let jobs = json!({"jobs": [{"type": "mail", "id": "a"}, {"type": "mail", "id": "c"}]});
    let taken = jan.post("/v1/jobs", &jobs).await;
    assert_eq!(taken.body["reason"], "jobs[1]: the id `c` is taken", "{}", taken.body);
}
