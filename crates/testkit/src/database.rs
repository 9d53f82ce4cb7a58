//! One database on one peer, and the requests that tests send to it.

use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use rustls::crypto::ring;
use serde_json::Value;

/// A database's address, with the requests that a test needs to fill and read it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    url: String,
    client: Client,
}

impl Database {
    /// The database at `url` (`http://[user:password@]host:port/name`), which need not exist.
    pub fn at(url: impl Into<String>) -> Self {
        let url = url.into().trim_end_matches('/').to_owned();
        Self { url, client: client() }
    }

    /// The database's full URL, including credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The client whose connections these requests share.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The database's last path segment, percent-encoded as in its URL.
    pub fn name(&self) -> &str {
        self.url.rsplit('/').next().expect("a database's URL has a path")
    }

    /// The description of the server that holds the database: its response to `GET /`.
    pub async fn server_greeting(&self) -> Value {
        let (server, _) = self.url.rsplit_once('/').expect("a database's URL has a path");
        Self::at(server).get("/").await
    }

    /// Sends one request. Returns the status and the JSON response (`Null` if the response is not JSON).
    ///
    /// `path` starts with a slash and is sent as it is; see [`encode_segment`].
    ///
    /// # Panics
    /// If the peer cannot be reached, or the connection breaks.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let mut request = self.client.request(method.clone(), format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
        let status = answer.status();
        let body = answer.bytes().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn expect(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.request(method.clone(), path, body).await;
        assert!(status.is_success(), "{method} {path} answered {status} {answer}");
        answer
    }

    /// Creates the database. Panics if it exists.
    pub async fn create(&self) {
        self.expect(Method::PUT, "", None).await;
    }

    /// Deletes the database, which need not exist.
    pub async fn delete(&self) {
        let (status, answer) = self.request(Method::DELETE, "", None).await;
        assert!(status.is_success() || status == StatusCode::NOT_FOUND, "DELETE answered {status} {answer}");
    }

    /// `GET path`, which must succeed.
    pub async fn get(&self, path: &str) -> Value {
        self.expect(Method::GET, path, None).await
    }

    /// `POST path`, which must succeed.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        self.expect(Method::POST, path, Some(body)).await
    }

    /// Writes a document under its unencoded id (with its `_rev`, if it is an update), and returns its new revision.
    pub async fn put(&self, id: &str, body: &Value) -> String {
        let answer = self.expect(Method::PUT, &format!("/{}", encode_segment(id)), Some(body)).await;
        answer["rev"].as_str().unwrap_or_else(|| panic!("no rev in {answer}")).to_owned()
    }

    /// A document by its unencoded id, or `None` if it does not exist.
    pub async fn doc(&self, id: &str) -> Option<Value> {
        let (status, answer) = self.request(Method::GET, &format!("/{}", encode_segment(id)), None).await;
        match status {
            StatusCode::NOT_FOUND => None,
            _ if status.is_success() => Some(answer),
            _ => panic!("GET {id} answered {status} {answer}"),
        }
    }

    /// Writes revisions exactly as they are given (`_rev` and `_revisions`): `_bulk_docs` with `new_edits: false`.
    pub async fn put_revisions(&self, docs: &[Value]) {
        let body = serde_json::json!({ "new_edits": false, "docs": docs });
        let answer = self.post("/_bulk_docs", &body).await;
        assert_eq!(answer, serde_json::json!([]), "_bulk_docs refused some of the revisions");
    }

    /// How many documents have a winner that is not deleted.
    pub async fn doc_count(&self) -> u64 {
        let info = self.get("").await;
        info["doc_count"].as_u64().unwrap_or_else(|| panic!("no doc_count in {info}"))
    }
}

/// How long an unused connection is kept. Node.js servers close theirs after 5 s, and a request that is sent at that moment
/// is lost.
const IDLE_CONNECTION: Duration = Duration::from_secs(1);

/// A client for tests, without timeouts, so that only a test's own limit ends a request.
pub fn client() -> Client {
    // The workspace builds reqwest without a TLS provider, and a client without an installed provider panics. Another crate
    // under test may have installed one already, which is fine.
    let _ = ring::default_provider().install_default();
    Client::builder().pool_idle_timeout(IDLE_CONNECTION).build().expect("nothing here depends on the machine")
}

/// Percent-encodes a document id or attachment name as one path segment: all characters except RFC 3986's unreserved ones.
/// The slash of `_design/` and `_local/` stays, because CouchDB redirects a request in which it is encoded.
pub fn encode_segment(text: &str) -> String {
    let (prefix, rest) = match text.split_once('/') {
        Some((special @ ("_design" | "_local"), rest)) => (format!("{special}/"), rest),
        _ => (String::new(), text),
    };
    rest.bytes().fold(prefix, |mut encoded, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_one_path_segment() {
        assert_eq!(encode_segment("a/b +é"), "a%2Fb%20%2B%C3%A9");
        assert_eq!(encode_segment("_design/x/y"), "_design/x%2Fy");
    }
}
