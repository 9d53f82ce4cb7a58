//! The content of a fake database, and its responses.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde_json::{Map, Value, json};

use super::{Asked, Reply, Shared, Step};

/// The creation time of the first incarnation, in seconds, in CouchDB's form.
const FIRST_CREATED: u64 = 1_795_000_000;

/// The number of rows that a feed sends together.
const ROWS_AT_ONCE: usize = 1_000;

#[derive(Debug)]
pub(super) struct Database {
    /// `instance_start_time`.
    pub started: String,
    /// How often the database has been recreated. It is a part of the sequences.
    incarnation: u64,
    pub local: BTreeMap<String, Value>,
    docs: BTreeMap<String, Doc>,
    /// The documents by the sequence of their last change.
    by_seq: BTreeMap<u64, String>,
    update_seq: u64,
}

#[derive(Debug, Default)]
struct Doc {
    seq: u64,
    /// Full documents, one for each leaf.
    leaves: Vec<Value>,
    /// All revisions that it has had.
    known: HashSet<String>,
    /// Whether the document is gone, although its rows remain.
    lost: bool,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            started: FIRST_CREATED.to_string(),
            incarnation: 0,
            local: BTreeMap::new(),
            docs: BTreeMap::new(),
            by_seq: BTreeMap::new(),
            update_seq: 0,
        }
    }
}

impl Database {
    pub fn put(&mut self, mut doc: Value) {
        let id = doc["_id"].as_str().expect("a document has an id").to_owned();
        if doc.get("_rev").is_none() {
            doc["_rev"] = json!("1-a");
        }
        let rev = doc["_rev"].as_str().expect("a revision is text").to_owned();
        let generation: u64 = rev
            .split('-')
            .next()
            .and_then(|number| number.parse().ok())
            .expect("a revision has a generation");
        if doc.get("_revisions").is_none() {
            let hash = rev.split_once('-').map_or("", |(_, hash)| hash);
            doc["_revisions"] = json!({ "start": generation, "ids": [hash] });
        }
        let ancestors: Vec<String> = doc["_revisions"]["ids"]
            .as_array()
            .into_iter()
            .flatten()
            .zip((1..=generation).rev())
            .map(|(hash, generation)| format!("{generation}-{}", hash.as_str().unwrap_or_default()))
            .collect();
        let stored = self.docs.entry(id.clone()).or_default();
        if stored.known.contains(&rev) {
            return;
        }
        self.update_seq += 1;
        let seq = self.update_seq;
        stored.known.extend(ancestors.iter().cloned());
        stored.known.insert(rev);
        stored.lost = false;
        stored.leaves.retain(|leaf| !ancestors.iter().any(|ancestor| leaf["_rev"] == **ancestor));
        stored.leaves.push(doc);
        self.by_seq.remove(&stored.seq);
        stored.seq = seq;
        self.by_seq.insert(seq, id);
    }

    pub fn create_anew(&mut self) {
        let incarnation = self.incarnation + 1;
        *self = Self { incarnation, started: (FIRST_CREATED + incarnation).to_string(), ..Self::default() };
    }

    pub fn lose(&mut self, id: &str) {
        self.docs.get_mut(id).expect("a document that is there").lost = true;
    }

    pub fn leaves(&self) -> usize {
        self.docs.values().map(|doc| doc.leaves.len()).sum()
    }

    pub fn revisions(&self, id: &str) -> Vec<String> {
        let leaves = self.docs.get(id).into_iter().flat_map(|doc| &doc.leaves);
        leaves.filter_map(|leaf| leaf["_rev"].as_str()).map(str::to_owned).collect()
    }

    fn seq(&self, number: u64) -> String {
        format!("{number}-incarnation{}", self.incarnation)
    }

    /// The number of a sequence. A sequence of another incarnation counts as the beginning, as in CouchDB.
    fn after(&self, since: Option<&str>) -> u64 {
        let since = since.unwrap_or("0");
        match since.split_once('-') {
            Some((number, incarnation)) if incarnation == format!("incarnation{}", self.incarnation) => {
                number.parse().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// The rows after `since` that pass, among at most `limit` rows, and the sequence of the last row read.
    fn rows(&self, since: u64, limit: usize, passes: impl Fn(&str, &Doc) -> bool) -> (Vec<Value>, u64) {
        let mut last = since;
        let mut rows = Vec::new();
        for (&seq, id) in self.by_seq.range(since + 1..).take(limit) {
            last = seq;
            let doc = &self.docs[id];
            if passes(id, doc) {
                let changes: Vec<Value> =
                    doc.leaves.iter().map(|leaf| json!({ "rev": leaf["_rev"] })).collect();
                rows.push(json!({ "seq": self.seq(seq), "id": id, "changes": changes }));
            }
        }
        (rows, last)
    }

    fn missing(&self, id: &str, revs: &Value) -> Option<Value> {
        let known = self.docs.get(id);
        let missing: Vec<&Value> = revs
            .as_array()
            .into_iter()
            .flatten()
            .filter(|rev| !known.is_some_and(|doc| doc.known.contains(rev.as_str().unwrap_or_default())))
            .collect();
        if missing.is_empty() {
            return None;
        }
        let mut entry = json!({ "missing": missing });
        if known.is_some() {
            entry["possible_ancestors"] = json!(self.revisions(id));
        }
        Some(entry)
    }

    fn revision(&self, id: &str, rev: &str) -> Value {
        let doc = self.docs.get(id).filter(|doc| !doc.lost);
        match doc.and_then(|doc| doc.leaves.iter().find(|leaf| leaf["_rev"] == *rev)) {
            Some(leaf) => json!({ "ok": leaf }),
            None => json!({ "missing": rev }),
        }
    }
}

/// CouchDB's response to a request.
pub(super) fn answer(shared: &Arc<Shared>, asked: &Asked) -> Reply {
    let path = asked.path.as_str();
    match (asked.method.as_str(), path) {
        ("GET", "") => {
            let database = shared.database();
            let info = json!({
                "db_name": "db", "instance_start_time": database.started,
                "update_seq": database.seq(database.update_seq), "doc_count": database.docs.len(),
            });
            Reply::json(200, &info)
        }
        (_, "/_changes") => changes(shared, asked),
        ("POST", "/_revs_diff") => {
            let database = shared.database();
            let asked = asked.json();
            let missing: Map<String, Value> = asked
                .as_object()
                .into_iter()
                .flatten()
                .filter_map(|(id, revs)| Some((id.clone(), database.missing(id, revs)?)))
                .collect();
            Reply::json(200, &Value::Object(missing))
        }
        ("POST", "/_bulk_get") => bulk_get(shared, asked),
        ("POST", "/_ensure_full_commit") => {
            let started = &shared.database().started;
            Reply::json(201, &json!({ "ok": true, "instance_start_time": started }))
        }
        ("POST", "/_bulk_docs") => {
            {
                let mut database = shared.database();
                for doc in asked.json()["docs"].as_array().into_iter().flatten() {
                    database.put(doc.clone());
                }
            }
            shared.changed.send_replace(());
            Reply::json(201, &json!([]))
        }
        (method, path) if path.starts_with("/_local/") => local(shared, method, path, asked),
        ("PUT", path) => put(shared, path, asked),
        ("GET", path) => {
            let id = decoded(path);
            let database = shared.database();
            match asked.parameter("open_revs").map(serde_json::from_str::<Vec<String>>) {
                Some(Ok(revs)) => {
                    let revs: Vec<Value> = revs.iter().map(|rev| database.revision(&id, rev)).collect();
                    Reply::json(200, &Value::Array(revs))
                }
                _ => match database.docs.get(&id).and_then(|doc| doc.leaves.last()) {
                    Some(doc) => Reply::json(200, doc),
                    None => Reply::error(404, "not_found"),
                },
            }
        }
        _ => Reply::error(405, "method_not_allowed"),
    }
}

fn decoded(path: &str) -> String {
    let url =
        reqwest::Url::parse(&format!("http://fake/?{}", path.trim_start_matches('/').replace('+', "%2B")));
    let url = url.expect("a path makes a URL");
    url.query_pairs().next().map(|(id, _)| id.into_owned()).unwrap_or_default()
}

fn local(shared: &Shared, method: &str, path: &str, asked: &Asked) -> Reply {
    let mut database = shared.database();
    match method {
        "GET" => match database.local.get(path) {
            Some(doc) => Reply::json(200, doc),
            None => Reply::error(404, "not_found"),
        },
        _ => {
            let mut doc = asked.json();
            // There are no conflicts: the new revision follows the one that the request names.
            let rev = doc["_rev"].as_str().and_then(|rev| rev.strip_prefix("0-")?.parse::<u64>().ok());
            doc["_rev"] = json!(format!("0-{}", rev.unwrap_or(0) + 1));
            let answer = json!({ "ok": true, "id": doc["_id"], "rev": doc["_rev"] });
            database.local.insert(path.to_owned(), doc);
            Reply::json(201, &answer)
        }
    }
}

/// Writes one document, with or without attachments, but does not keep the attachments.
fn put(shared: &Shared, path: &str, asked: &Asked) -> Reply {
    let body = &asked.body;
    let doc =
        if asked.headers.iter().any(|(name, value)| name == "content-type" && value.contains("multipart")) {
            // The document begins after the first empty line, and ends before the next delimiter.
            let start = find(body, b"\r\n\r\n").map_or(0, |at| at + 4);
            let end = find(&body[start..], b"\r\n--").map_or(body.len(), |at| start + at);
            serde_json::from_slice::<Value>(&body[start..end])
        } else {
            serde_json::from_slice(body)
        };
    let Ok(mut doc) = doc else { return Reply::error(400, "bad_request") };
    doc["_id"] = json!(decoded(path));
    let answer = json!({ "ok": true, "id": doc["_id"], "rev": doc["_rev"] });
    shared.database().put(doc);
    shared.changed.send_replace(());
    Reply::json(201, &answer)
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn bulk_get(shared: &Shared, asked: &Asked) -> Reply {
    let database = shared.database();
    let mut steps = vec![Step::Send(Bytes::from_static(b"{\"results\":["))];
    for (nth, wanted) in asked.json()["docs"].as_array().into_iter().flatten().enumerate() {
        let (id, rev) =
            (wanted["id"].as_str().unwrap_or_default(), wanted["rev"].as_str().unwrap_or_default());
        let mut found = database.revision(id, rev);
        if found.get("ok").is_none() {
            found = json!({ "error": { "id": id, "rev": rev, "error": "not_found", "reason": "missing" } });
        }
        let comma = if nth == 0 { "" } else { "," };
        let row = json!({ "id": id, "docs": [found] });
        steps.push(Step::Send(format!("{comma}{row}").into()));
    }
    steps.push(Step::Send(Bytes::from_static(b"]}")));
    Reply::steps(200, steps)
}

fn changes(shared: &Arc<Shared>, asked: &Asked) -> Reply {
    let since = shared.database().after(asked.parameter("since"));
    let doc_ids: Option<HashSet<String>> = asked.json()["doc_ids"]
        .as_array()
        .map(|ids| ids.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    let filtered = asked.parameter("filter").is_some();
    let passes = move |id: &str, doc: &Doc| match &doc_ids {
        Some(ids) => ids.contains(id),
        None => !filtered || doc.leaves.iter().any(|leaf| leaf["pass"] == true),
    };
    if asked.parameter("feed") == Some("continuous") {
        return continuous(shared, asked, since, passes);
    }
    let database = shared.database();
    if asked.parameter("limit") == Some("0") {
        let pending = database.by_seq.range(since + 1..).count();
        return Reply::json(
            200,
            &json!({ "results": [], "last_seq": database.seq(since), "pending": pending }),
        );
    }
    let (rows, last) = database.rows(since, usize::MAX, passes);
    let mut steps = vec![Step::Send(Bytes::from_static(b"{\"results\":[\n"))];
    for (nth, rows) in rows.chunks(ROWS_AT_ONCE).enumerate() {
        let rows: Vec<String> = rows.iter().map(Value::to_string).collect();
        let comma = if nth == 0 { "" } else { ",\n" };
        steps.push(Step::Send(format!("{comma}{}", rows.join(",\n")).into()));
    }
    let end = format!("\n],\n\"last_seq\":\"{}\",\"pending\":0}}\n", database.seq(last));
    steps.push(Step::Send(end.into()));
    Reply::steps(200, steps)
}

/// Sends rows while there are any, and otherwise heartbeats, forever.
fn continuous(
    shared: &Arc<Shared>,
    asked: &Asked,
    since: u64,
    passes: impl Fn(&str, &Doc) -> bool + Send + 'static,
) -> Reply {
    let heartbeat: u64 = asked.parameter("heartbeat").and_then(|text| text.parse().ok()).unwrap_or(60_000);
    let mut changed = shared.changed.subscribe();
    changed.mark_changed();
    let incarnation = shared.database().incarnation;
    let state = (Arc::clone(shared), since, passes, changed);
    let steps = stream::unfold(state, move |(shared, mut since, passes, mut changed)| async move {
        loop {
            let (rows, last) = {
                let database = shared.database();
                if database.incarnation == incarnation {
                    database.rows(since, ROWS_AT_ONCE, &passes)
                } else {
                    // The incarnation that the feed followed is gone.
                    return None;
                }
            };
            let more = last > since;
            since = last;
            if !rows.is_empty() {
                let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
                return Some((Step::Send(lines.into()), (shared, since, passes, changed)));
            }
            if more {
                continue;
            }
            let pause = Duration::from_millis(heartbeat);
            if tokio::time::timeout(pause, changed.changed()).await.is_err() {
                return Some((Step::Send(Bytes::from_static(b"\n")), (shared, since, passes, changed)));
            }
        }
    });
    Reply::stream(200, steps.boxed())
}
