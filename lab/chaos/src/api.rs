//! Requests to any node that responds, and what is known about their outcome.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use serde_json::Value;

use turnwise_testkit::client;

/// The time limit of a request, unless it waits for jobs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// One in this many bodies is compressed.
const COMPRESSED: u64 = 8;

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// The status and the body.
    Got(StatusCode, Value),
    /// The request changed nothing: no node accepted it, or the node's store did not respond.
    NotDone,
    /// The request changed nothing: its identity sends too many.
    Limited,
    /// The request was sent, but whether it changed anything is unknown.
    Unknown,
}

impl Answer {
    /// The body of a success.
    pub fn success(self) -> Option<Value> {
        match self {
            Answer::Got(status, body) if status.is_success() => Some(body),
            _ => None,
        }
    }
}

/// A client for all nodes, with one identity. Cheap to clone.
#[derive(Clone)]
pub(super) struct Api {
    client: Client,
    urls: Vec<String>,
    token: Option<String>,
    /// The number of bodies so far, if some of them are compressed.
    bodies: Option<Arc<AtomicU64>>,
}

impl Api {
    pub fn new(urls: Vec<String>) -> Self {
        Api { client: client(), urls, token: None, bodies: None }
    }

    /// The same, with another identity.
    pub fn of(&self, token: &str) -> Self {
        Api { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same, which compresses some bodies.
    pub fn compressing(self) -> Self {
        Api { bodies: Some(Arc::default()), ..self }
    }

    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    pub fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// Sends one request to the node with this number.
    pub async fn ask(&self, node: usize, method: Method, path: &str, body: Option<&Value>) -> Answer {
        self.ask_within(ANSWER_TIMEOUT, node, method, path, body).await
    }

    /// The same, with its own time limit.
    pub async fn ask_within(
        &self,
        limit: Duration,
        node: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let url = format!("{}{path}", self.urls[node % self.urls.len()]);
        let mut request = self.client.request(method, url).timeout(limit);
        request = request.header(header::CONTENT_TYPE, "application/json");
        request = request.header(header::ACCEPT_ENCODING, "gzip");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = self.with_body(request, body);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Answer::NotDone,
            Err(_) => return Answer::Unknown,
        };
        let status = response.status();
        let Some(text) = text(response).await else { return Answer::Unknown };
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        match (status, body["error"].as_str()) {
            (StatusCode::SERVICE_UNAVAILABLE, Some("service_unavailable")) => Answer::NotDone,
            (StatusCode::TOO_MANY_REQUESTS, _) => Answer::Limited,
            // A gateway's: the node may have got the request.
            (StatusCode::REQUEST_TIMEOUT, _) => Answer::Unknown,
            (status, _) if status.is_server_error() => Answer::Unknown,
            _ => Answer::Got(status, body),
        }
    }

    fn with_body(&self, request: RequestBuilder, body: &Value) -> RequestBuilder {
        let text = body.to_string().into_bytes();
        let number = self.bodies.as_ref().map(|bodies| bodies.fetch_add(1, Ordering::Relaxed));
        if number.is_none_or(|number| number % COMPRESSED != 0) {
            return request.body(text);
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&text).expect("memory can be written");
        let compressed = encoder.finish().expect("memory can be written");
        request.header(header::CONTENT_ENCODING, "gzip").body(compressed)
    }

    /// Sends a GET to each node in turn, until one succeeds.
    pub async fn get(&self, path: &str) -> Option<Value> {
        for node in 0..self.urls.len() {
            if let Some(body) = self.ask(node, Method::GET, path, None).await.success() {
                return Some(body);
            }
        }
        None
    }
}

/// The whole body as text, or `None` if it broke off.
async fn text(response: Response) -> Option<String> {
    let is_gzip = response.headers().get(header::CONTENT_ENCODING).is_some_and(|name| name == "gzip");
    let bytes = response.bytes().await.ok()?;
    if !is_gzip {
        return Some(String::from_utf8_lossy(&bytes).into_owned());
    }
    let mut text = String::new();
    GzDecoder::new(&bytes[..]).read_to_string(&mut text).ok()?;
    Some(text)
}
