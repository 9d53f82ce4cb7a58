//! Compares the shape of every response with CouchDB's. `golden/couchdb-3.5.0.json` has the responses of a real CouchDB
//! 3.5.0 to a series of requests. The test makes the same requests in the same order. Each response must have the same
//! status, the same members with the same types, and for errors the same words, except for [`DIFFERENCES`].

use std::collections::BTreeSet;

use crate::common::TestServer;
use serde_json::{Map, Value};
use turnwise_testkit::Peer;

/// Intended differences. `*` stands for all requests.
const DIFFERENCES: &[(&str, &str)] = &[
    // There are no logins, so no user owns a document.
    ("*", "$.owner: missing"),
    ("*", "$.rows[].doc.owner: missing"),
    ("*", "$.results[].docs[].ok.owner: missing"),
    // turnwise shows the id in documents that have ended, as older releases of CouchDB did.
    ("*", "$._replication_id: added"),
    ("*", "$.rows[].doc._replication_id: added"),
    // turnwise shows source and target even before the replication id is known.
    ("*", "$.docs[].source: added"),
    ("*", "$.docs[].target: added"),
    ("replicate_missing", "$.reason: other words"),
    ("changes_feed", "$.reason: other words"),
    ("root", "$.git_sha: missing"),
    ("root", "$.vendor.open: added"),
    ("root", "$.vendor.version: added"),
];

/// Sequences are opaque: a string here may be a number there.
const OPAQUE: [&str; 7] = [
    "source_last_seq",
    "start_last_seq",
    "end_last_seq",
    "recorded_seq",
    "checkpointed_source_seq",
    "source_seq",
    "through_seq",
];

#[tokio::test]
async fn answers_have_couchdbs_shapes() {
    let golden: Map<String, Value> = serde_json::from_str(include_str!("golden/couchdb-3.5.0.json")).unwrap();
    let peer = Peer::start().await;
    peer.create("tw_src").await.put("a", &serde_json::json!({"x": 1})).await;
    let server = TestServer::start_with("checkpoint_interval = 500\n").await;
    let mut found = BTreeSet::new();
    for (name, recorded) in &golden {
        if name == "db" {
            // At this point the recording waited until all documents had reached these states.
            server.until("d1", &["completed"]).await;
            server.until("crash", &["crashing"]).await;
            server.until("nofilter", &["error"]).await;
            server.poll("/_active_tasks", |tasks| tasks[0]["docs_written"] == 1).await;
        }
        let (method, path) = recorded["request"].as_str().unwrap().split_once(' ').unwrap();
        let mut path = path.to_owned();
        if let Some((document, _)) = path.clone().split_once("?rev=").filter(|_| method == "DELETE") {
            let rev = server.get(document).await.body["_rev"].as_str().unwrap().to_owned();
            path = format!("{document}?rev={rev}");
        }
        let mut request = server.request(method, &path);
        if let Some(sent) = recorded.get("sent") {
            let sent = sent.to_string().replace("http://admin:secret@peer:5984", peer.url());
            request = request.header("content-type", "application/json").body(sent);
        }
        let answer = server.send(request).await;
        let mut differences = BTreeSet::new();
        if u64::from(answer.status) != recorded["status"].as_u64().unwrap() {
            differences.insert(format!(
                "$: status {} and not {}: {}",
                answer.status, recorded["status"], answer.body
            ));
        }
        compare("$", &recorded["body"], &answer.body, &mut differences);
        found.extend(differences.into_iter().map(|difference| (name.clone(), difference)));
    }
    let known = |name: &str, difference: &str| {
        DIFFERENCES.iter().any(|(at, known)| (*at == "*" || *at == name) && difference.starts_with(known))
    };
    let unknown: Vec<_> = found.iter().filter(|(name, difference)| !known(name, difference)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    for (at, known) in DIFFERENCES {
        let used = found
            .iter()
            .any(|(name, difference)| (*at == "*" || at == name) && difference.starts_with(known));
        assert!(used, "no longer a difference: {at} {known}");
    }
}

/// Compares shapes; words only in errors.
fn compare(at: &str, couchdb: &Value, turnwise: &Value, differences: &mut BTreeSet<String>) {
    match (couchdb, turnwise) {
        // A value may be unknown on one side and known on the other.
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(couchdb), Value::Object(turnwise)) => {
            for (name, value) in couchdb {
                let is_error = at == "$" && couchdb.contains_key("error");
                let at = format!("{at}.{name}");
                match turnwise.get(name) {
                    None => {
                        differences.insert(format!("{at}: missing"));
                    }
                    Some(_) if OPAQUE.contains(&name.as_str()) => {}
                    Some(found) => {
                        if is_error && value.is_string() && value != found {
                            differences.insert(format!("{at}: other words: {found} and not {value}"));
                        }
                        compare(&at, value, found, differences);
                    }
                }
            }
            for name in turnwise.keys().filter(|name| !couchdb.contains_key(*name)) {
                differences.insert(format!("{at}.{name}: added"));
            }
        }
        (Value::Array(couchdb), Value::Array(turnwise)) => {
            if turnwise.is_empty() != couchdb.is_empty() {
                differences.insert(format!("{at}: {} elements and not {}", turnwise.len(), couchdb.len()));
            }
            for element in turnwise {
                // Elements with an id are compared with the same id, others with the most similar element.
                let candidates = couchdb.iter().map(|candidate| {
                    let mut differences = BTreeSet::new();
                    compare(&format!("{at}[]"), candidate, element, &mut differences);
                    (!same_name(candidate, element), differences)
                });
                if let Some((_, best)) =
                    candidates.min_by_key(|(other, differences)| (*other, differences.len()))
                {
                    differences.extend(best);
                }
            }
        }
        _ => {
            if std::mem::discriminant(couchdb) != std::mem::discriminant(turnwise) {
                differences.insert(format!("{at}: {turnwise} is of another type than {couchdb}"));
            }
        }
    }
}

fn same_name(a: &Value, b: &Value) -> bool {
    ["doc_id", "id", "type"].iter().all(|name| a.get(name) == b.get(name))
}
