//! Requests to any node that responds, and what is known about their outcome.

use std::time::Duration;

use reqwest::{Client, Method, StatusCode, header};
use serde_json::Value;

use turnwise_testkit::client;

/// The time limit of a request, unless it waits for jobs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// The status and the body.
    Got(StatusCode, Value),
    /// The request changed nothing: no node accepted it, or the node's store did not respond.
    NotDone,
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

/// A client for all nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Api {
    client: Client,
    urls: Vec<String>,
}

impl Api {
    pub fn new(urls: Vec<String>) -> Self {
        Api { client: client(), urls }
    }

    pub fn urls(&self) -> &[String] {
        &self.urls
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
        let request = self.client.request(method, url).timeout(limit);
        let request = match body {
            Some(body) => request.json(body),
            None => request.header(header::CONTENT_TYPE, "application/json"),
        };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Answer::NotDone,
            Err(_) => return Answer::Unknown,
        };
        let status = response.status();
        let Ok(text) = response.text().await else { return Answer::Unknown };
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        match (status, body["error"].as_str()) {
            (StatusCode::SERVICE_UNAVAILABLE, Some("service_unavailable")) => Answer::NotDone,
            (status, _) if status.is_server_error() => Answer::Unknown,
            _ => Answer::Got(status, body),
        }
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
