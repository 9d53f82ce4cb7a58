//! The parts of CouchDB that turnwise needs of an upstream, in memory. Its own replicator is off, another server can
//! replace it, and its user can write first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use turnwise_testkit::canary::COOKIE;

/// Requests without this login are rejected.
pub const LOGIN: &str = "admin:xCanary7Qz-pa55word";
/// The same login in a request's header.
const LOGIN_HEADER: &str = "Basic YWRtaW46eENhbmFyeTdRei1wYTU1d29yZA==";
/// Largest body that is read, in bytes.
const BODY_BYTES: usize = 10 << 20;

#[derive(Default)]
struct Doc {
    rev: u64,
    seq: u64,
    deleted: bool,
    body: Map<String, Value>,
}

#[derive(Default)]
struct Db {
    created: u64,
    seq: u64,
    docs: BTreeMap<String, Doc>,
}

#[derive(Default)]
struct Data {
    /// Increases with every server that replaces this one.
    epoch: u64,
    created: u64,
    dbs: BTreeMap<String, Db>,
    /// The changes of databases.
    updates: Vec<String>,
    /// Whether `_db_updates` is available.
    tells_updates: bool,
    /// A document that is written before the next request of `_bulk_docs`.
    quicker: Option<(String, Value)>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Couch {
    data: Arc<Mutex<Data>>,
    changed: watch::Sender<u64>,
    pub address: SocketAddr,
}

impl Couch {
    pub async fn start() -> Couch {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let couch = Couch {
            data: Arc::default(),
            changed: watch::Sender::new(0),
            address: listener.local_addr().unwrap(),
        };
        couch.data().tells_updates = true;
        couch.create("_replicator");
        couch.create("_users");
        let app = Router::new().fallback(answer).with_state(couch.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        couch
    }

    /// The URL with the login.
    pub fn url(&self) -> String {
        format!("http://{LOGIN}@{}", self.address)
    }

    pub fn uuid(&self) -> String {
        format!("{:032x}", self.data().epoch + 0xc0c0)
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap()
    }

    fn tell(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }

    pub fn create(&self, db: &str) {
        let mut data = self.data();
        data.created += 1;
        let created = 1_700_000_000 + data.created;
        data.dbs.insert(db.to_owned(), Db { created, ..Db::default() });
        data.updates.push(db.to_owned());
        drop(data);
        self.tell();
    }

    pub fn delete(&self, db: &str) {
        let mut data = self.data();
        data.dbs.remove(db).unwrap();
        data.updates.push(db.to_owned());
        drop(data);
        self.tell();
    }

    /// Replaces this server by another one without documents.
    pub fn replace(&self) {
        let mut data = self.data();
        data.epoch += 1;
        data.dbs.clear();
        data.updates.clear();
        drop(data);
        self.create("_replicator");
    }

    pub fn without_updates(&self) {
        self.data().tells_updates = false;
    }

    /// A user writes this document into `_replicator` immediately before the next state is written there.
    pub fn be_quicker(&self, id: &str, doc: Value) {
        self.data().quicker = Some((id.to_owned(), doc));
    }

    /// Writes a document's next revision, whatever its current one is.
    pub fn put(&self, db: &str, id: &str, doc: Value) {
        let mut data = self.data();
        put(data.dbs.get_mut(db).unwrap(), id, doc.as_object().unwrap().clone());
        drop(data);
        self.tell();
    }

    pub fn remove(&self, db: &str, id: &str) {
        self.put(db, id, json!({ "_deleted": true }));
    }

    pub fn doc(&self, db: &str, id: &str) -> Value {
        let data = self.data();
        let doc = &data.dbs[db].docs[id];
        let mut shown = doc.body.clone();
        shown.insert("_rev".into(), rev(doc.rev).into());
        Value::Object(shown)
    }

    /// Waits until a document is good.
    pub async fn until(&self, db: &str, id: &str, good: impl Fn(&Value) -> bool) -> Value {
        let mut changes = self.changed.subscribe();
        let wait = async {
            loop {
                changes.borrow_and_update();
                let doc = self.doc(db, id);
                if good(&doc) {
                    return doc;
                }
                changes.changed().await.unwrap();
            }
        };
        let found = tokio::time::timeout(crate::common::PATIENCE, wait).await;
        found.unwrap_or_else(|_| panic!("{db}/{id} never came to what was waited for: {}", self.doc(db, id)))
    }

    /// Waits until a document has a state.
    pub async fn state(&self, db: &str, id: &str, state: &str) -> Value {
        self.until(db, id, |doc| doc["_replication_state"] == state).await
    }
}

fn rev(generation: u64) -> String {
    format!("{generation}-{generation:032x}")
}

fn put(db: &mut Db, id: &str, mut body: Map<String, Value>) -> u64 {
    db.seq += 1;
    let deleted = body.shift_remove("_deleted").is_some();
    body.insert("_id".into(), id.into());
    body.shift_remove("_rev");
    let doc = db.docs.entry(id.to_owned()).or_default();
    *doc = Doc { rev: doc.rev + 1, seq: db.seq, deleted, body };
    doc.rev
}

async fn answer(State(couch): State<Couch>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let opens_session = (&parts.method, parts.uri.path()) == (&Method::POST, "/_session");
    if !has_login(&parts.headers) && !opens_session {
        return error(StatusCode::UNAUTHORIZED, "unauthorized");
    }
    let path = parts.uri.path().trim_matches('/').to_owned();
    let query: BTreeMap<String, String> =
        url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let body = axum::body::to_bytes(body, BODY_BYTES).await.unwrap();
    if opens_session {
        let (_, password) = LOGIN.split_once(':').unwrap();
        if !String::from_utf8_lossy(&body).contains(password) {
            return error(StatusCode::UNAUTHORIZED, "unauthorized");
        }
        let cookie = format!("AuthSession={COOKIE}; Version=1; Path=/; HttpOnly");
        return ([("set-cookie", cookie)], json!({"ok": true}).to_string()).into_response();
    }
    let segments: Vec<String> = path
        .split('/')
        .map(|segment| percent_encoding::percent_decode_str(segment).decode_utf8().unwrap().into_owned())
        .collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match (&parts.method, &segments[..]) {
        (&Method::GET, [""]) => {
            json_of(&json!({"couchdb": "Welcome", "version": "3.5.0", "uuid": couch.uuid()}))
        }
        (&Method::GET, ["_session"]) => json_of(&json!({"userCtx": {"name": "admin", "roles": ["_admin"]}})),
        (&Method::GET, ["_all_dbs"]) => {
            let from = query.get("startkey").map(|key| serde_json::from_str::<String>(key).unwrap());
            let limit = query["limit"].parse().unwrap();
            let data = couch.data();
            let names = data.dbs.keys().filter(|name| from.as_ref().is_none_or(|from| *name >= from));
            json_of(&json!(names.take(limit).collect::<Vec<_>>()))
        }
        (&Method::GET, ["_db_updates"]) if couch.data().tells_updates => {
            let epoch = couch.data().epoch;
            let at = couch.data().updates.len();
            feed(couch, at, move |data, at| {
                let rows = (data.epoch == epoch).then(|| data.updates.get(*at..).unwrap_or_default())?;
                *at = data.updates.len();
                Some(
                    rows.iter().map(|name| json!({"db_name": name, "type": "updated", "seq": "1"})).collect(),
                )
            })
        }
        (&Method::GET, [db]) => match couch.data().dbs.get(*db) {
            Some(found) => json_of(&json!({"db_name": db, "instance_start_time": found.created.to_string()})),
            None => error(StatusCode::NOT_FOUND, "not_found"),
        },
        (&Method::GET, [db, "_changes"]) => {
            let since = query["since"].parse().unwrap();
            let Some(created) = couch.data().dbs.get(*db).map(|db| db.created) else {
                return error(StatusCode::NOT_FOUND, "not_found");
            };
            assert_eq!((query["feed"].as_str(), query["include_docs"].as_str()), ("continuous", "true"));
            let db = (*db).to_owned();
            feed(couch, since, move |data, since| {
                let db = data.dbs.get(&db).filter(|db| db.created == created)?;
                let mut docs: Vec<(&String, &Doc)> =
                    db.docs.iter().filter(|(_, doc)| doc.seq > *since as u64).collect();
                docs.sort_by_key(|(_, doc)| doc.seq);
                *since = db.seq as usize;
                let row = |(id, doc): &(&String, &Doc)| {
                    let mut body = doc.body.clone();
                    body.insert("_rev".into(), rev(doc.rev).into());
                    let mut row =
                        json!({"seq": doc.seq, "id": id, "changes": [{"rev": rev(doc.rev)}], "doc": body});
                    if doc.deleted {
                        row["deleted"] = true.into();
                    }
                    row
                };
                Some(docs.iter().map(row).collect())
            })
        }
        (&Method::POST, [db, "_all_docs"]) => {
            let keys: Value = serde_json::from_slice(&body).unwrap();
            let data = couch.data();
            let docs = &data.dbs[*db].docs;
            let row = |key: &Value| match docs.get(key.as_str().unwrap()).filter(|doc| !doc.deleted) {
                Some(doc) => {
                    let mut body = doc.body.clone();
                    body.insert("_rev".into(), rev(doc.rev).into());
                    json!({"id": key, "key": key, "value": {"rev": rev(doc.rev)}, "doc": body})
                }
                None => json!({"key": key, "error": "not_found"}),
            };
            let rows: Vec<Value> = keys["keys"].as_array().unwrap().iter().map(row).collect();
            json_of(&json!({"total_rows": docs.len(), "offset": 0, "rows": rows}))
        }
        (&Method::POST, [db, "_bulk_docs"]) => {
            let docs: Value = serde_json::from_slice(&body).unwrap();
            let mut data = couch.data();
            if let Some((id, doc)) = data.quicker.take() {
                put(data.dbs.get_mut(*db).unwrap(), &id, doc.as_object().unwrap().clone());
            }
            let db = data.dbs.get_mut(*db).unwrap();
            let mut write = |doc: &Value| {
                let id = doc["_id"].as_str().unwrap();
                if doc["_rev"] != rev(db.docs[id].rev) {
                    return json!({"id": id, "error": "conflict", "reason": "Document update conflict."});
                }
                let written = put(db, id, doc.as_object().unwrap().clone());
                json!({"ok": true, "id": id, "rev": rev(written)})
            };
            let outcomes: Vec<Value> = docs["docs"].as_array().unwrap().iter().map(&mut write).collect();
            drop(data);
            couch.tell();
            json_of(&json!(outcomes))
        }
        _ => error(StatusCode::NOT_FOUND, "not_found"),
    }
}

fn has_login(headers: &HeaderMap) -> bool {
    let cookie = headers.get("cookie").and_then(|value| value.to_str().ok());
    headers.get("authorization").is_some_and(|value| value == LOGIN_HEADER)
        || cookie.is_some_and(|cookie| cookie.contains(COOKIE))
}

/// An endless feed: the rows that `rows` finds after each change, until `rows` ends it.
fn feed(
    couch: Couch,
    at: usize,
    rows: impl Fn(&Data, &mut usize) -> Option<Vec<Value>> + Send + 'static,
) -> Response {
    let changes = couch.changed.subscribe();
    let lines = stream::unfold(
        (couch, changes, at, rows, true),
        |(couch, mut changes, mut at, rows, first)| async move {
            if !first && changes.changed().await.is_err() {
                return None;
            }
            changes.borrow_and_update();
            let found = rows(&couch.data(), &mut at)?;
            // An initial heartbeat, so that the head of the response is sent.
            let text: String =
                std::iter::once("\n".to_owned()).chain(found.iter().map(|row| format!("{row}\n"))).collect();
            Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), (couch, changes, at, rows, false)))
        },
    );
    Body::from_stream(lines).into_response()
}

fn json_of(value: &Value) -> Response {
    ([("content-type", "application/json")], value.to_string()).into_response()
}

fn error(status: StatusCode, error: &str) -> Response {
    (status, json!({"error": error, "reason": "no"}).to_string()).into_response()
}
