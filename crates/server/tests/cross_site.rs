//! Requests that a page of another site can make a browser send: they change nothing, and reveal nothing.

use crate::common::{Cluster, TestServer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use turnwise_queue::{Keyspace, jobs};
use turnwise_replicator::doc_processor::{Origin, new_job};
use turnwise_replicator::{Defaults, JOB_TYPE, Replication};
use turnwise_testkit::Peer;

/// Sends raw bytes, and returns the response's status and body.
async fn raw(server: &TestServer, request: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(server.server.listen()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.to_ascii_lowercase().contains("\r\nserver: turnwise/"), "{head}");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

async fn get(server: &TestServer, path: &str, headers: &str) -> (u16, Value) {
    raw(server, &format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")).await
}

#[tokio::test]
async fn a_host_name_that_can_be_rebound_is_refused() {
    let server = TestServer::start_with("[listener]\nnames = Jobs.Example, turnwise\n").await;
    let port = server.server.listen().port();
    for path in ["/", "/_up", "/_all_dbs", "/v1/jobs", "/v1/openapi.json", "/nothing"] {
        for host in [
            "evil.example",
            &format!("evil.example:{port}"),
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ] {
            let (status, body) = get(&server, path, &format!("Host: {host}\r\n")).await;
            assert_eq!(
                (status, &body["error"]),
                (421, &json!("misdirected_request")),
                "{path} {host}: {body}"
            );
            assert!(body.to_string().contains("[listener] names"), "{body}");
            assert_eq!(body["hint"].is_string(), path.starts_with("/v1/"), "{body}");
        }
    }
    for host in [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "jobs.example",
        "JOBS.example.",
        "turnwise",
    ] {
        for host in [host.to_owned(), format!("{host}:{port}"), format!("{host}:80")] {
            assert_eq!(get(&server, "/_up", &format!("Host: {host}\r\n")).await.0, 200, "{host}");
        }
    }
    // As to a proxy: the host in the request line is checked, too.
    assert_eq!(get(&server, "http://evil.example/_up", "Host: localhost\r\n").await.0, 421);
    assert_eq!(get(&server, "http://localhost/_up", "Host: evil.example\r\n").await.0, 421);
    assert_eq!(get(&server, "http://localhost/_up", "Host: localhost\r\n").await.0, 200);
}

#[tokio::test]
async fn a_request_names_one_host() {
    let server = TestServer::start().await;
    for headers in [
        "",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: localhost\r\nhost: evil.example\r\n",
        "Host:\r\n",
        "Host: localhost, evil.example\r\n",
        "Host: u@localhost\r\n",
        "Host: localhost:x\r\n",
    ] {
        let (status, body) = get(&server, "/", headers).await;
        assert_eq!((status, &body["error"]), (400, &json!("bad_request")), "{headers}: {body}");
    }
    // Monitors of load balancers use HTTP/1.0 without a host. They only read.
    let old = async |method: &str, headers: &str| {
        raw(&server, &format!("{method} /_up HTTP/1.0\r\n{headers}\r\n")).await.0
    };
    assert_eq!((old("GET", "").await, old("HEAD", "").await), (200, 200));
    assert_eq!(
        (old("GET", "Host: localhost\r\n").await, old("GET", "Host: evil.example\r\n").await),
        (200, 421)
    );
    assert_eq!(old("DELETE", "").await, 400);
}

#[tokio::test]
async fn a_form_of_another_site_cancels_no_job() {
    let server = TestServer::start().await;
    assert_eq!(server.post("/v1/jobs/t", &json!({"id": "a"})).await.status, 201);
    assert_eq!(server.put("/_replicator/d", &crate::common::failed(1)).await.status, 201);
    for kind in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
    ] {
        for path in [
            "/v1/jobs/t/a/cancel",
            "/v1/jobs/t/a/retry",
            "/v1/jobs/t",
            "/v1/workers/t",
            "/_replicate",
            "/_replicator",
            "/_replicator/_bulk_docs",
            "/_replicator/_changes",
            "/_replicator/_ensure_full_commit",
            "/nothing",
        ] {
            for body in ["", "{}", "a=b"] {
                let request = server.request("POST", path).body(body);
                let request = if kind.is_empty() { request } else { request.header("content-type", kind) };
                let answer = server.send(request).await;
                assert_eq!(answer.error(), (415, "bad_content_type"), "{path} {kind} {body}");
            }
        }
    }
    // If no route accepts the request, its error is not about the content type.
    for (path, status) in [("/v1/nodes", 405), ("/v1/openapi.json", 405), ("/v1/nothing", 404)] {
        assert_eq!(server.send(server.request("POST", path)).await.status, status, "{path}");
    }
    assert_eq!(server.get("/v1/jobs/t/a").await.body["state"], "pending");
    // An empty body and an empty object are accepted; anything else is an error.
    let cancel = "/v1/jobs/t/a/cancel";
    assert_eq!(server.post(cancel, &json!({"x": 1})).await.error(), (400, "bad_request"));
    assert_eq!(server.post_empty("/v1/jobs/t/a/retry").await.status, 200);
    assert_eq!(server.post(cancel, &json!({})).await.body, json!({"state": "cancelled"}));
    // Forms cannot send PUT and DELETE, and scripts need a preflight request first. So curl may declare any content
    // type, as with CouchDB.
    let put =
        server.request("PUT", "/_replicator/e").header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(server.send(put.body(crate::common::failed(2).to_string())).await.status, 201);
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let server = TestServer::start().await;
    let own = server.url.clone();
    let body = crate::common::failed(1).to_string();
    for (n, origin) in
        ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", "file://", ""]
            .into_iter()
            .enumerate()
    {
        for (method, path) in [
            ("PUT", format!("/_replicator/d{n}")),
            ("POST", "/_replicator".to_owned()),
            ("POST", "/v1/jobs/t".to_owned()),
            ("DELETE", "/_replicator".to_owned()),
            ("PUT", "/_node/_local/_config/replicator/max_jobs".to_owned()),
        ] {
            let request = server
                .request(method, &path)
                .header("content-type", "application/json")
                .header("origin", origin);
            let answer = server.send(request.body(body.clone())).await;
            assert_eq!(answer.error(), (403, "forbidden"), "{method} {path} {origin}");
        }
        // A page of another site may send the request, but its browser does not let it read the response, which grants
        // no permission.
        let answer = server.send(server.request("GET", "/_all_dbs").header("origin", origin)).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, ""));
    }
    assert_eq!(server.get("/_replicator").await.body["doc_count"], 0);
    let two = server
        .request("PUT", "/_replicator/two")
        .header("origin", &own)
        .header("origin", "http://evil.example");
    assert_eq!(server.send(two.body(body.clone())).await.status, 403);
    let request = server.request("PUT", "/_replicator/own").header("origin", &own);
    assert_eq!(server.send(request.body(body)).await.status, 201);
}

#[tokio::test]
async fn headers_that_frame_a_request_are_refused_and_old_jobs_with_them_fail() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    let peer = Peer::start().await;
    let (from, to) = (peer.create("from").await, peer.create("to").await);
    from.put("d", &json!({})).await;
    let names =
        ["Content-Length", "transfer-encoding", "Connection", "HOST", "Expect", "Upgrade", "TE", "Trailer"];
    for name in names {
        let framed = json!({"source": {"url": from.url(), "headers": {name: "5"}}, "target": to.url()});
        let documents = json!({"docs": [framed]});
        // The status that CouchDB uses for an invalid document, and for an invalid request.
        for (answer, expected) in [
            (server.put("/_replicator/a", &framed).await, (403, "forbidden")),
            (server.post("/_replicate", &framed).await, (400, "bad_request")),
            (server.post("/_replicator/_bulk_docs", &documents).await, (403, "forbidden")),
        ] {
            assert_eq!(answer.error(), expected, "{name}: {}", answer.body);
            assert!(
                answer.body["reason"].as_str().unwrap().contains(&format!("source.headers.{name}")),
                "{}",
                answer.body
            );
        }
    }
    // Added by a server without this check.
    let plain = json!({"source": {"url": from.url()}, "target": to.url(), "retries_per_request": 0});
    let mut framed = plain.clone();
    framed["source"]["headers"] = json!({"Content-Length": "500"});
    let replication = Replication::parse(plain.as_object().unwrap(), &Defaults::default()).unwrap();
    let old = new_job(&replication, "old", Origin::Request, framed.as_object().unwrap(), 0).unwrap();
    cluster
        .store
        .transact(|tx| {
            let old = &old;
            async move { jobs::add(&tx, &Keyspace::default(), old, 0).await }
        })
        .await
        .unwrap();
    let ended = server.get(&format!("/v1/jobs/{JOB_TYPE}/old/wait")).await.body;
    assert_eq!(ended["job"]["state"], "failed", "{ended}");
    assert!(ended["job"]["history"][0].to_string().contains("source.headers.Content-Length"), "{ended}");
    // Another tenant's replication with the same server uses the same connection pool.
    let other = json!({"source": from.url(), "target": to.url()});
    assert_eq!(server.post("/_replicate", &other).await.status, 200);
}
