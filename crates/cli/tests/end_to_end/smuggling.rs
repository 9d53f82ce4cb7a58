//! No field of a replication makes a peer see other requests than turnwise meant to send. The peer is Node's own HTTP server:
//! what its parser finds on the connections counts.

use std::process::Stdio;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use turnwise_testkit::peers_folder;

use crate::server::{Home, PATIENCE, Server, clean, turnwise};

/// Headers that say where a message goes or where it ends, that belong to a connection, or that change what is answered; each
/// with a value that would do harm.
const FRAMING: [(&str, &str); 22] = [
    ("Host", "other.example"),
    ("Content-Length", "500"),
    ("Content-Length", "0"),
    ("Transfer-Encoding", "chunked"),
    ("Transfer-Encoding", "identity"),
    ("Connection", "close, X-A"),
    ("Connection", "Upgrade"),
    ("Keep-Alive", "timeout=1"),
    ("Upgrade", "h2c"),
    ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
    ("TE", "trailers"),
    ("Trailer", "Content-Length"),
    ("Expect", "100-continue"),
    ("Expect", "another"),
    ("Proxy-Connection", "close"),
    ("Proxy-Authorization", "Basic YTpi"),
    ("Proxy-Authenticate", "Basic"),
    ("Content-Encoding", "gzip"),
    ("Content-Range", "bytes 0-1/2"),
    ("Accept-Encoding", "gzip"),
    ("Range", "bytes=0-0"),
    ("If-None-Match", "*"),
];

/// A line that would begin a second request.
const SECOND: &str = "1\r\n\r\nDELETE /db/ HTTP/1.1\r\nHost: h\r\n\r\n";

struct Counting {
    _node: Child,
    url: String,
    client: reqwest::Client,
}

impl Counting {
    async fn start() -> Self {
        let mut node = Command::new("node")
            .arg(peers_folder().join("count.mjs"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        let port = line.strip_prefix("listening ").unwrap();
        let url = format!("http://127.0.0.1:{port}");
        Counting { _node: node, url, client: turnwise_testkit::client() }
    }

    /// The requests since the last call: methods and paths, without what the id of a replication decides. Logins are left out:
    /// whether there is one depends on the replications before.
    async fn seen(&self) -> Vec<String> {
        let answer = self.client.get(format!("{}/_seen", self.url)).send().await.unwrap();
        let seen: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        let line = |request: &Value| {
            let (method, url) = (request["method"].as_str().unwrap(), request["url"].as_str().unwrap());
            let path = url.split('?').next().unwrap();
            let path = path.split_once("/_local/").map_or(path, |(before, _)| before);
            format!("{method} {path}")
        };
        let mut lines: Vec<String> = seen.as_array().unwrap().iter().map(line).collect();
        lines.retain(|line| line != "POST /_session");
        lines.sort();
        lines
    }
}

/// The same text in lower and upper case, and with characters around it that parsers may skip.
fn spellings(name: &str) -> Vec<String> {
    let mut spelled = vec![name.to_owned(), name.to_lowercase(), name.to_uppercase()];
    for (before, after) in [("", " "), (" ", ""), ("", "\t"), ("\t", ""), ("", "\0"), ("", ":"), ("\r\n", "")]
    {
        spelled.push(format!("{before}{name}{after}"));
    }
    spelled
}

/// Requests a replication on every route that accepts one. None of them may accept it.
async fn refused(server: &Server, what: &str, body: &Value) {
    for (method, path, body) in [
        (Method::PUT, "/_replicator/bad", body.clone()),
        (Method::POST, "/_replicator", body.clone()),
        (Method::POST, "/_replicate", body.clone()),
        (Method::POST, "/v1/jobs/replication", json!({ "options": body })),
        (Method::POST, "/v1/jobs", json!({ "jobs": [{ "type": "replication", "options": body }] })),
        (Method::POST, "/_replicator/_bulk_docs", json!({ "docs": [body] })),
    ] {
        let (status, answer) = server.request(method.clone(), path, Some(&body)).await;
        assert!(status.is_client_error(), "{what}: {method} {path}: {status} {answer}");
    }
}

#[tokio::test]
async fn no_field_of_a_replication_changes_how_many_requests_a_peer_sees() {
    let node = Counting::start().await;
    let home = Home::new("");
    let server = home.serve().await;
    let url = |name: &str| format!("{}/{name}", node.url);
    let replicate = async |body: Value| {
        let (status, answer) = server.request(Method::POST, "/_replicate", Some(&body)).await;
        assert_eq!(status, 200, "{body}: {answer}");
        node.seen().await
    };
    let plain = || json!({ "source": url("a"), "target": url("b") });
    let meant = replicate(plain()).await;
    assert!(meant.len() > 4 && meant.iter().any(|line| line.ends_with("/_changes")), "{meant:?}");
    let harmless = json!({ "url": url("a"), "headers": { "X-A": "1", "via": "1.1 x", "Cookie": "a=b" } });
    assert_eq!(replicate(json!({ "source": harmless, "target": url("b") })).await, meant);

    // Headers that frame a message.
    for (name, value) in FRAMING {
        for name in spellings(name) {
            let (what, endpoint) =
                (format!("{name:?}"), json!({ "url": url("a"), "headers": { name: value } }));
            refused(&server, &what, &json!({ "source": endpoint, "target": url("b") })).await;
            refused(&server, &what, &json!({ "source": url("a"), "target": endpoint })).await;
        }
    }
    // Ends of lines in names and values.
    for end in ["\r\n", "\n", "\r", "\0", "\u{85}\n", " \r\n ", "\u{b}\r", "\r\n\t"] {
        for (name, value) in [
            ("X-A".to_owned(), format!("1{end}Content-Length: 500")),
            (format!("X-A: 1{end}Content-Length"), "500".to_owned()),
            ("X-A".to_owned(), format!("1{end}")),
            ("Authorization".to_owned(), format!("Bearer 1{end}Content-Length: 500")),
            ("Cookie".to_owned(), format!("a=b{end}{SECOND}")),
        ] {
            let what = format!("{name:?} {value:?}");
            let endpoint = json!({ "url": url("a"), "headers": { name: value } });
            refused(&server, &what, &json!({ "source": endpoint, "target": url("b") })).await;
        }
    }
    assert_eq!(node.seen().await, Vec::<String>::new(), "a refused replication sent something");
    assert_eq!(replicate(plain()).await, meant);

    // What is sent in a place where every byte has a form. Nothing of it may begin a line.
    let login = json!({ "url": url("a"), "auth": { "basic": { "username": SECOND, "password": SECOND } } });
    let escaped = |name: &str| {
        let text: String = SECOND.bytes().map(|byte| format!("%{byte:02x}")).collect();
        node.url.replace("://", &format!("://{text}:{text}@")) + "/" + name
    };
    assert_eq!(replicate(json!({ "source": login, "target": url("b") })).await, meant);
    assert_eq!(replicate(json!({ "source": escaped("a"), "target": escaped("b") })).await, meant);
    let with = |more: Value| {
        let mut body = plain();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for field in [
        |text: &str| json!({ "since_seq": text }),
        |text: &str| json!({ "doc_ids": [text, "b"] }),
        |text: &str| json!({ "selector": { text: text } }),
        |text: &str| json!({ "filter": "_view", "query_params": { text: text, "view": "a/b" } }),
    ] {
        let body = with(field(SECOND));
        assert_eq!(replicate(body.clone()).await, replicate(with(field("a"))).await, "{body}");
    }
    for name in ["a%0d%0aHost:%20x", "a\r\nHost: x", "a%20HTTP/1.1%0d%0a%0d%0aDELETE%20/b"] {
        let seen = replicate(json!({ "source": url(name), "target": url("b") })).await;
        assert!(seen.len() == meant.len() && !seen.iter().any(|line| line.starts_with("DELETE")), "{seen:?}");
    }

    // The command has no field for headers, and the same path for all others.
    for (more, code) in [
        (vec![], 0),
        (vec![format!("--option=since_seq={}", json!(SECOND))], 0),
        (vec![format!("--option=headers={}", json!({ "Content-Length": "500" }))], 0),
        (vec![format!("--option=source={}", json!({ "url": url("a"), "headers": { "Host": "x" } }))], 2),
        (vec![format!("--option=proxy={}", json!(format!("http://h{SECOND}")))], 2),
    ] {
        let mut command = turnwise();
        command.arg("replicate").args([url("a"), url("b")]).args(&more).stdin(Stdio::null());
        let ended = clean(command.output().await.unwrap());
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code), "{more:?}: {text}");
        assert_eq!(node.seen().await, if code == 0 { meant.clone() } else { Vec::new() }, "{more:?}: {text}");
    }
    assert_eq!(replicate(plain()).await, meant);
    assert!(server.terminate().await.success());
}
