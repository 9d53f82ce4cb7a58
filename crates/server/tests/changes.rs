//! The changes feed, in each of its modes.

use crate::common::{PATIENCE, TestServer, failed};
use serde_json::{Value, json};

/// A feed that is read line by line.
struct Lines {
    answer: reqwest::Response,
    rest: String,
}

impl Lines {
    async fn open(server: &TestServer, query: &str) -> Lines {
        let answer = server.request("GET", &format!("/_replicator/_changes?{query}")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        Lines { answer, rest: String::new() }
    }

    /// The next line; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        let read = async {
            loop {
                if let Some((line, rest)) = self.rest.split_once('\n') {
                    let (line, rest) = (line.to_owned(), rest.to_owned());
                    self.rest = rest;
                    return Some(line);
                }
                match self.answer.chunk().await.unwrap() {
                    Some(chunk) => self.rest.push_str(std::str::from_utf8(&chunk).unwrap()),
                    None => return None,
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the feed is silent")
    }

    async fn json(&mut self) -> Value {
        serde_json::from_str(&self.next().await.unwrap()).unwrap()
    }
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn changes_list_each_document_once_in_the_order_of_its_last_write() {
    let server = TestServer::start().await;
    let a = server.put_ok("/_replicator/a", &failed(1)).await;
    let b = server.put_ok("/_replicator/b", &failed(1)).await;
    let a = server.put_ok(&format!("/_replicator/a?rev={a}"), &failed(2)).await;
    let gone = server.delete(&format!("/_replicator/b?rev={b}")).await.body["rev"].clone();
    let all = server.get("/_replicator/_changes").await.body;
    let rows = json!([{"seq": "3", "id": "a", "changes": [{"rev": a}]},
        {"seq": "4", "id": "b", "changes": [{"rev": gone}], "deleted": true}]);
    assert_eq!(all, json!({"results": rows, "last_seq": "4", "pending": 0}));
    let first = server.get("/_replicator/_changes?limit=1&include_docs=true").await.body;
    assert_eq!((ids(&first), &first["last_seq"], &first["pending"]), (vec!["a"], &json!("3"), &json!(1)));
    assert_eq!(first["results"][0]["doc"]["source"], "http://s/2");
    assert_eq!(ids(&server.get("/_replicator/_changes?since=3").await.body), ["b"]);
    assert_eq!(ids(&server.get("/_replicator/_changes?since=%223-x%22").await.body), ["b"]);
    assert_eq!(ids(&server.get("/_replicator/_changes?descending=true").await.body), ["b", "a"]);
    let now = server.get("/_replicator/_changes?since=now").await.body;
    assert_eq!(now, json!({"results": [], "last_seq": "4", "pending": 0}));
    let future = server.get("/_replicator/_changes?since=99").await.body;
    assert_eq!(future["last_seq"], "4");
}

#[tokio::test]
async fn feeds_are_filtered_by_ids_and_never_by_a_function() {
    let server = TestServer::start().await;
    for id in ["a", "b", "_design/d"] {
        server.put_ok(&format!("/_replicator/{id}"), &failed(1)).await;
    }
    let posted =
        server.post("/_replicator/_changes?filter=_doc_ids", &json!({"doc_ids": ["b", "c"]})).await.body;
    assert_eq!((ids(&posted), &posted["last_seq"]), (vec!["b"], &json!("3")));
    let asked = server.get("/_replicator/_changes?filter=_doc_ids&doc_ids=%5B%22a%22%5D").await.body;
    assert_eq!(ids(&asked), ["a"]);
    assert_eq!(ids(&server.get("/_replicator/_changes?filter=_design").await.body), ["_design/d"]);
    for query in
        ["filter=x/y", "filter=_selector", "filter=_doc_ids", "feed=x", "since=x", "since=-1", "heartbeat=0"]
    {
        let answer = server.get(&format!("/_replicator/_changes?{query}")).await;
        assert_eq!(answer.error(), (400, "bad_request"), "{query}");
    }
}

#[tokio::test]
async fn a_longpoll_waits_for_the_first_change() {
    let server = TestServer::start().await;
    let mut feed = Lines::open(&server, "feed=longpoll&since=now").await;
    assert_eq!(feed.next().await.unwrap(), "{\"results\":[");
    let rev = server.put_ok("/_replicator/a", &failed(1)).await;
    assert_eq!(feed.json().await, json!({"seq": "1", "id": "a", "changes": [{"rev": rev}]}));
    let mut rest = String::new();
    while let Some(line) = feed.next().await {
        rest.push_str(&line);
    }
    assert_eq!(rest, "],\"last_seq\":\"1\",\"pending\":0}");
    let late = server.get("/_replicator/_changes?feed=longpoll&since=now&timeout=1").await.body;
    assert_eq!(late, json!({"results": [], "last_seq": "1", "pending": 0}));
}

#[tokio::test]
async fn a_continuous_feed_ends_at_its_limit_or_its_timeout() {
    let server = TestServer::start().await;
    server.put_ok("/_replicator/a", &failed(1)).await;
    let mut feed = Lines::open(&server, "feed=continuous&heartbeat=10&limit=3").await;
    assert_eq!(feed.json().await["id"], "a");
    assert_eq!(feed.next().await.unwrap(), "", "a heartbeat");
    server.put_ok("/_replicator/b", &failed(1)).await;
    server.put_ok("/_replicator/c", &failed(1)).await;
    let mut told = Vec::new();
    while let Some(line) = feed.next().await {
        if !line.is_empty() {
            told.push(serde_json::from_str::<Value>(&line).unwrap());
        }
    }
    assert_eq!((&told[0]["id"], &told[1]["id"]), (&json!("b"), &json!("c")));
    assert_eq!(told[2], json!({"last_seq": "3", "pending": 0}));
    let mut idle = Lines::open(&server, "feed=continuous&since=now&timeout=1").await;
    assert_eq!(idle.json().await, json!({"last_seq": "3", "pending": 0}));
    assert_eq!(idle.next().await, None);
}

#[tokio::test]
async fn feeds_end_with_their_database_and_with_the_server() {
    let server = TestServer::start().await;
    let mut feed = Lines::open(&server, "feed=continuous&heartbeat=true").await;
    assert_eq!(server.delete("/_replicator").await.status, 200);
    assert_eq!(feed.json().await["last_seq"], "0");
    assert_eq!(feed.next().await, None);
    assert_eq!(server.put("/_replicator", &json!({})).await.status, 201);
    let mut feed = Lines::open(&server, "feed=continuous&heartbeat=true").await;
    // A feed that delayed the shutdown would be cut off, without a last line.
    let (_, end) = tokio::join!(server.server.shutdown(), feed.json());
    assert_eq!(end["last_seq"], "0");
    assert_eq!(feed.next().await, None);
}
