//! Compares replication ids with those of a real CouchDB for the same requests: some hundred random ones, from a fixed seed.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::stream::{self, StreamExt};
use http::Method;
use serde_json::{Map, Value, json};
use turnwise_replicator::{Defaults, Replication, replication_id};
use turnwise_testkit::{CouchDb, Random};

const SEED: u64 = 17;
const REQUESTS: usize = 400;
/// Concurrent requests.
const AT_ONCE: usize = 8;

const FILTER: &str = " function(doc, req) {\n  return doc.kind == req.query.kind;\n}";
const FILTER_OF_A_LINE: &str = "  function(doc) { return true }  ";

/// Random requests from a seed.
struct Requests {
    random: Random,
    /// A database with filter functions.
    source: String,
}

impl Requests {
    fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.random.below(of.len() as u64) as usize]
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    /// A concatenation of a few random pieces.
    fn text(&mut self, pieces: &[&str], at_least: u64) -> String {
        let count = at_least + self.random.below(4);
        (0..count).map(|_| *self.one_of(pieces)).collect()
    }

    /// A user's name or password as it may appear in a URL.
    fn userinfo(&mut self, at_least: u64) -> String {
        let pieces = [
            "a", "Bob", "%40", "%3A", "%2f", "%2F", "%C3%A9", "%41", "+", "-", "_", ".", "~", "!", "$", "*",
            "%25",
        ];
        self.text(&pieces, at_least)
    }

    fn url(&mut self) -> String {
        let scheme = self.one_of(&["http", "https"]);
        let login = match self.random.below(5) {
            0 | 1 => String::new(),
            2 => format!("{}@", self.userinfo(1)),
            _ => format!("{}:{}@", self.userinfo(1), self.userinfo(0)),
        };
        let host = self.one_of(&[
            "h",
            "HOST",
            "Db.Example.ORG",
            "127.0.0.1",
            "127.1",
            "[::1]",
            "[FE80::A]",
            "h_x",
            "h.",
            "xn--bcher-kva.example",
        ]);
        let port = self
            .one_of(&["", "", ":80", ":443", ":5984", ":6984", ":1", ":65535", ":080", ":05984", ":0443"]);
        let path = self.text(
            &[
                "/db", "/a%2Fb", "/a%2fb", "/DB", "/a+b", "/a%20b", "/x/y", "/a;b=c", "/a:b", "/a@b",
                "/a%2525", "/_r",
            ],
            1,
        );
        let dots = self.one_of(&["", "", "", "/./db", "/x/../db", "//db", "/."]);
        let end = self.one_of(&["", "", "/", "//"]);
        format!("{scheme}://{login}{host}{port}{path}{dots}{end}")
    }

    fn headers(&mut self) -> Value {
        let mut headers = Map::new();
        for _ in 0..self.random.below(4) {
            let name = *self.one_of(&[
                "X-A",
                "x-a",
                "X-Longer-Name",
                "Cookie",
                "a",
                "Accept",
                "accept",
                "User-Agent",
                "Z",
            ]);
            let value =
                *self.one_of(&["1", "application/json", "CouchDB-Replicator/3.5.0", "a, b; c=\"d\"", ""]);
            headers.insert(name.into(), value.into());
        }
        if self.one_in(3) {
            let name = *self.one_of(&["Authorization", "authorization", "AUTHORIZATION"]);
            let login =
                BASE64_STANDARD.encode(*self.one_of(&["u:p", "u%40x:p", "u@x:p:q", ":p", "u:", "nothing"]));
            let value = match self.random.below(5) {
                0 => "Bearer abc.def".to_owned(),
                1 => format!("basic {login}"),
                2 => "Basic !!".to_owned(),
                _ => format!("Basic {login}"),
            };
            headers.insert(name.into(), value.into());
        }
        headers.into()
    }

    fn endpoint(&mut self, is_source: bool, real: bool) -> Value {
        let url = if is_source && real { self.source.clone() } else { self.url() };
        if self.one_in(2) {
            return url.into();
        }
        let mut endpoint = json!({ "url": url });
        if self.one_in(2) {
            endpoint["headers"] = self.headers();
        }
        // The login of a real source must stay the administrator's.
        if self.one_in(3) && !(is_source && real) {
            let user = *self.one_of(&["u", "u@x", "u%40x", "\u{e9}", "a:b", ""]);
            endpoint["auth"] = json!({"basic": {"username": user, "password": "p%40"}});
        }
        endpoint
    }

    fn request(&mut self) -> Value {
        let filtered = self.one_in(6);
        let mut request = json!({
            "source": self.endpoint(true, filtered), "target": self.endpoint(false, false), "continuous": true,
        });
        let more = match self.random.below(6) {
            _ if filtered => {
                let name = *self.one_of(&["app/kind", "app/line"]);
                json!({ "filter": name, "query_params": self.query_params() })
            }
            0 => json!({ "doc_ids": self.doc_ids() }),
            1 => json!({ "selector": self.selector() }),
            2 => {
                let name = *self.one_of(&["_design", "_view", "_doc_ids"]);
                let mut params = self.query_params();
                if name == "_view" {
                    params["view"] = json!("app/view");
                }
                json!({ "filter": name, "query_params": params })
            }
            _ => json!({}),
        };
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        for (name, value) in [
            ("create_target", json!(true)),
            ("create_target", json!(false)),
            ("create_target_params", json!({"q": 1})),
            ("winning_revs_only", json!(true)),
            ("winning_revs_only", json!(false)),
            ("since_seq", json!("0")),
            ("since_seq", json!(5)),
            ("since_seq", json!("7-g1AAA")),
            ("use_checkpoints", json!(false)),
            ("use_bulk_get", json!(false)),
            ("worker_batch_size", json!(7)),
            ("http_connections", json!("3")),
            ("checkpoint_interval", json!(4000)),
            // Long enough for a busy machine: CouchDB reads the filter within it, and one that passes closes the
            // connection under the requests beside it.
            ("connection_timeout", json!(90_000)),
            ("source_proxy", json!("http://u:p@127.0.0.1:1")),
            ("socket_options", json!("[{nodelay, false}]")),
            ("comment", json!({"of": "the user"})),
        ] {
            // A request to a real source must reach it.
            if self.one_in(8) && !(filtered && name == "source_proxy") {
                request[name] = value;
            }
        }
        request
    }

    fn doc_ids(&mut self) -> Value {
        let count = 1 + self.random.below(4);
        let ids = ["a", "B", "a", "x%2Fy", "x/y", "a b", "a%20b", "\u{e9}", "%C3%A9", "_design/d", "10", "9"];
        (0..count).map(|_| *self.one_of(&ids)).collect()
    }

    fn query_params(&mut self) -> Value {
        let values = [
            json!("x"),
            json!(1),
            json!(-5),
            json!(1.5),
            json!(true),
            json!(null),
            json!([1, "a", 300]),
            json!({"z": 1, "a": {"b": []}}),
            json!("\u{e9}"),
            json!(5_000_000_000_u64),
        ];
        let mut params = Map::new();
        for _ in 0..self.random.below(4) {
            let name = *self.one_of(&["kind", "z", "a", "view", "\u{e9}"]);
            params.insert(name.into(), self.one_of(&values).clone());
        }
        params.into()
    }

    fn selector(&mut self) -> Value {
        self.one_of(&[
            json!({"type": "x"}),
            json!({"type": "x", "n": {"$gt": 3}}),
            json!({"n": {"$gt": 3}, "type": "x"}),
            json!({"a": {"b": {"c": 1}}}),
            json!({"a.b": 1, "c": {"$exists": true}}),
            json!({"$or": [{"a": 1}, {"b": {"$in": [1, "x", null]}}]}),
            json!({"$not": {"a": 1}}),
            json!({"$and": [{"a": {"$gte": 1.5}}, {"a": {"$lt": 10}}]}),
            json!({"$nor": [{"a": 1}, {"b": 2}]}),
            json!({"l": {"$elemMatch": {"x": 1, "y": {"$ne": 2}}}}),
            json!({"l": {"$all": ["a", "b"]}, "t": {"$type": "string"}}),
            json!({"t": {"$regex": "^a.*"}}),
            json!({"n": {"$mod": [4, 1]}}),
            json!({"a": {"$not": {"$eq": 1}}}),
            json!({"a": {}}),
            json!({}),
        ])
        .clone()
    }
}

#[tokio::test]
async fn random_requests_have_the_ids_that_couchdb_gives_them() {
    // Its own server, because the setting below would keep the replications of other tests from starting.
    let Some(couchdb) = CouchDb::start().await else { return };
    let couchdb = &couchdb;
    let peer = couchdb.peer();
    let source = peer.create("ids").await;
    source.put("_design/app", &json!({"filters": {"kind": FILTER, "line": FILTER_OF_A_LINE}})).await;
    // None of the replications may run, because most of these servers do not exist.
    let none = json!("0");
    let (status, _) =
        couchdb.request(Method::PUT, "/_node/_local/_config/replicator/max_jobs", Some(&none)).await;
    assert_eq!(status, 200);
    let (_, welcome) = couchdb.request(Method::GET, "/", None).await;
    let uuid = welcome["uuid"].as_str().unwrap();
    let mut requests = Requests { random: Random::new(SEED), source: source.url().to_owned() };
    let requests: Vec<Value> = (0..REQUESTS).map(|_| requests.request()).collect();
    let compared = stream::iter(&requests).map(|request| async move {
        let (status, answer) = couchdb.request(Method::POST, "/_replicate", Some(request)).await;
        let Some(theirs) = answer["_local_id"].as_str() else {
            return Err(format!("{request}: {status} {answer} there"));
        };
        let cancel = json!({"cancel": true, "id": theirs});
        couchdb.request(Method::POST, "/_replicate", Some(&cancel)).await;
        let replication = match Replication::parse(request.as_object().unwrap(), &Defaults::default()) {
            Ok(replication) => replication,
            Err(error) => return Err(format!("{request}: {error} here")),
        };
        let code = match request["filter"].as_str() {
            Some("app/kind") => Some(FILTER),
            Some("app/line") => Some(FILTER_OF_A_LINE),
            _ => None,
        };
        let ours = replication_id::full(&replication, uuid, code).to_string();
        (ours == theirs).then_some(()).ok_or_else(|| format!("{request}: {theirs} there, {ours} here"))
    });
    let different: Vec<String> =
        compared.buffer_unordered(AT_ONCE).filter_map(|compared| async { compared.err() }).collect().await;
    assert!(different.is_empty(), "{} of {REQUESTS} differ: {different:#?}", different.len());
}
