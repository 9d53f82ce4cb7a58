//! Requests to the two peers of a replication.
//!
//! A [`Client`] owns the connections; a [`Peer`] is one side of one replication on top of it: base URL, headers, time
//! limits, and the words for what goes wrong. [`Peer::send`] is one attempt; [`Retries`] says when an operation is tried
//! again, from its request to the last byte of its answer, because answers break in the middle, too.

mod answer;
mod client;
mod retries;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Side, shorten};
use crate::secret::{Scrubber, Secret};
use crate::spec::Replication;
use crate::upload::{Progress, Upload};

pub(crate) use answer::{Answer, beginning};
use answer::{Place, causes};
pub use client::Client;
pub(crate) use retries::Retries;

/// A request that can be sent again: its body is at hand, or there is none.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: Method,
    /// Relative to the database, percent-encoded, with the query.
    path: String,
    body: Option<Bytes>,
    accept: &'static str,
    /// Does not count against `http_connections`.
    uncounted: bool,
}

impl Request {
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: None, accept: "application/json", uncounted: false }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub fn post(path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self::new(Method::POST, path).json(body)
    }

    pub fn json(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// For a request that stays open for ever, or one on which a counted one depends.
    pub fn uncounted(mut self) -> Self {
        self.uncounted = true;
        self
    }
}

/// One side of one replication.
#[derive(Clone)]
pub(crate) struct Peer(Arc<Inner>);

struct Inner {
    side: Side,
    base: String,
    /// The base as it may be shown.
    shown: String,
    headers: HeaderMap,
    client: reqwest::Client,
    timeout: Duration,
    retries: u32,
    connections: Arc<Semaphore>,
    scrubber: Scrubber,
}

impl Peer {
    pub fn new(side: Side, replication: &Replication, client: &Client) -> Self {
        let endpoint = match side {
            Side::Source => &replication.source,
            Side::Target => &replication.target,
        };
        let mut scrubber = Scrubber::default();
        replication.source.add_secrets(&mut scrubber);
        replication.target.add_secrets(&mut scrubber);
        Self(Arc::new(Inner {
            side,
            base: endpoint.url().to_string(),
            shown: endpoint.redacted_url(),
            headers: headers(endpoint),
            client: client.http().clone(),
            timeout: replication.connection_timeout,
            retries: replication.retries_per_request,
            connections: Arc::new(Semaphore::new(replication.http_connections)),
            scrubber,
        }))
    }

    /// Silence on a connection after which a request has failed.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// The attempts of one operation, from its request to the last byte of its answer.
    pub fn retries(&self) -> Retries<'_> {
        Retries::new(self)
    }

    /// A text of this peer's as it may be shown: short, and without secrets.
    pub fn clean(&self, text: &str) -> String {
        shorten(&self.0.scrubber.scrub(text))
    }

    /// Words an error about a request that has been answered.
    pub fn fault(&self, method: Method, path: &str, fault: Fault) -> Error {
        Place { peer: self.clone(), method, path: path.to_owned() }.fault(fault)
    }

    /// Sends `request` once and waits for the head of its answer. Every status but 2xx is an error.
    pub async fn send(&self, request: &Request) -> Result<Answer, Error> {
        let upload = request.body.clone().map(|body| Upload::from_bytes(body, "application/json"));
        let permit = if request.uncounted { None } else { Some(self.connection().await) };
        self.exchange(request.method.clone(), &request.path, request.accept, upload, permit).await
    }

    /// Sends a body that exists only once, such as a stream of attachments.
    pub async fn send_upload(&self, method: Method, path: &str, upload: Upload) -> Result<Answer, Error> {
        let permit = self.connection().await;
        self.exchange(method, path, "application/json", Some(upload), Some(permit)).await
    }

    /// Sends `request` and reads its whole answer, with retries.
    pub async fn json<T: DeserializeOwned>(&self, request: &Request, limit_bytes: usize) -> Result<T, Error> {
        let mut retries = self.retries();
        loop {
            let done = match self.send(request).await {
                Ok(answer) => answer.json(limit_bytes).await,
                Err(error) => Err(error),
            };
            match done {
                Ok(done) => return Ok(done),
                Err(error) => retries.pause(error).await?,
            }
        }
    }

    async fn connection(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.0.connections).acquire_owned().await.expect("never closed")
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        upload: Option<Upload>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Answer, Error> {
        let place = Place { peer: self.clone(), method: method.clone(), path: path.to_owned() };
        if has_dot_segment(path) {
            return Err(place.fault(Fault::Unexpected(DOT_SEGMENT.to_owned())));
        }
        let mut builder = self.0.client.request(method, format!("{}{path}", self.0.base));
        builder = builder.headers(self.0.headers.clone()).header(http::header::ACCEPT, accept);
        let mut progress = None;
        if let Some(upload) = upload {
            progress = Some(upload.progress());
            builder = builder.header(CONTENT_TYPE, upload.content_type()).body(reqwest::Body::wrap(upload));
        }
        let response = watched(self.0.timeout, progress.as_deref(), builder.send()).await;
        let response = match response {
            None => return Err(place.fault(Fault::Silent(self.0.timeout))),
            Some(Err(error)) => return Err(place.transport(&error)),
            Some(Ok(response)) => response,
        };
        let answer = Answer { place, response, _permit: permit };
        match answer.response.status() {
            status if status.is_success() => Ok(answer),
            status => Err(answer.into_error(status).await),
        }
    }
}

/// Why a request is not sent that would not reach the database.
const DOT_SEGMENT: &str = "a document or an attachment called `.` or `..` cannot be named in a URL";

/// Whether a path would leave its database: URLs resolve the segments `.` and `..`, however they are encoded, and ids
/// are chosen by whoever may write to the source.
fn has_dot_segment(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Waits for `future` as long as `progress` moves at least once in `timeout`. `None`: it did not.
async fn watched<T>(
    timeout: Duration,
    progress: Option<&Progress>,
    future: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(future);
    let mut seen = 0;
    loop {
        if let Ok(done) = tokio::time::timeout(timeout, &mut future).await {
            return Some(done);
        }
        let now = progress.map_or(0, Progress::bytes);
        if now == seen {
            return None;
        }
        seen = now;
    }
}

fn headers(endpoint: &Endpoint) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in endpoint.headers() {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("checked when it was parsed");
        headers.append(name, sensitive(value));
    }
    if let Some(credentials) = endpoint.credentials() {
        use base64::Engine as _;
        let login = format!("{}:{}", credentials.user, credentials.password.reveal());
        let value = format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(login));
        headers.insert(AUTHORIZATION, sensitive(&Secret::new(value)));
    }
    headers
}

fn sensitive(value: &Secret) -> HeaderValue {
    let mut value = HeaderValue::from_str(value.reveal()).expect("checked when it was parsed");
    value.set_sensitive(true);
    value
}
