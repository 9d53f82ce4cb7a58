//! The HTTP client that all replications of a process share, and one request on it.
//!
//! A [`Client`] owns the connections; a [`Peer`] is one side of one replication on top of it: base URL, headers, time
//! limits, and the words for what goes wrong. [`Peer::send`] is one attempt; [`Retries`] says when an operation is tried
//! again, from its request to the last byte of its answer, because answers break in the middle, too.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, PeerError, Side, shorten};
use crate::secret::{Scrubber, Secret};
use crate::spec::Replication;
use crate::upload::{Progress, Upload};

/// The first pause before a request is repeated; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause, also when `Retry-After` asks for more: beyond it the job's own backoff is the better place.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// An idle connection is closed after this long; CouchDB's `connection_close_interval`.
const IDLE_CONNECTION: Duration = Duration::from_secs(90);
/// How much of an error's body is read.
const ERROR_BODY_BYTES: usize = 64 * 1024;

/// The connections of a process, kept alive and shared by all its replications. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    inner: reqwest::Client,
}

impl Client {
    /// A client with an empty pool.
    ///
    /// # Errors
    /// [`Error::Local`] if the system's TLS roots cannot be read.
    pub fn new() -> Result<Self, Error> {
        // An error means that another part of the process has installed a provider; that one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let inner = reqwest::Client::builder()
            .user_agent(concat!("turnwise/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(IDLE_CONNECTION)
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .map_err(|error| Error::Local(format!("the HTTP client cannot start: {}", causes(&error))))?;
        Ok(Self { inner })
    }

    /// The plain HTTP client inside, for requests that belong to no replication.
    pub fn http(&self) -> &reqwest::Client {
        &self.inner
    }
}

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
            client: client.inner.clone(),
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
        Retries { peer: self, both_sides: false, attempt: 0 }
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

/// Counts the attempts of one operation, and waits between them.
pub(crate) struct Retries<'a> {
    peer: &'a Peer,
    both_sides: bool,
    attempt: u32,
}

impl Retries<'_> {
    /// Waits for the moment of the next attempt after `error`.
    ///
    /// # Errors
    /// `error` itself, if another attempt is not worth while, or not this peer's, or was the last.
    pub async fn pause(&mut self, error: Error) -> Result<(), Error> {
        // The other side's requests have had their own attempts, unless both are one operation.
        let ours = self.both_sides || matches!(&error, Error::Peer(error) if error.side == self.peer.0.side);
        if self.attempt >= self.peer.0.retries || !ours || !error.is_passing() {
            return Err(error);
        }
        let pause = FIRST_PAUSE * 2u32.saturating_pow(self.attempt);
        let pause = pause.max(error.retry_after().unwrap_or_default()).min(LONGEST_PAUSE);
        self.attempt += 1;
        tracing::debug!(%error, attempt = self.attempt, pause_ms = pause.as_millis() as u64, "repeating a request");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// For an operation on both peers at once.
    pub fn of_both_sides(mut self) -> Self {
        self.both_sides = true;
        self
    }

    /// Something has been achieved: the count begins anew.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
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

/// Where a request went; knows how to word what goes wrong there.
#[derive(Clone)]
pub(crate) struct Place {
    peer: Peer,
    method: Method,
    path: String,
}

impl Place {
    pub fn fault(&self, fault: Fault) -> Error {
        let inner = &*self.peer.0;
        let clean = |text: &str| shorten(&inner.scrubber.scrub(text));
        let fault = match fault {
            Fault::Unreachable(cause) => Fault::Unreachable(clean(&cause)),
            Fault::BrokeOff(cause) => Fault::BrokeOff(clean(&cause)),
            Fault::Malformed(cause) => Fault::Malformed(clean(&cause)),
            Fault::Unexpected(cause) => Fault::Unexpected(clean(&cause)),
            Fault::Status { status, error, reason, retry_after } => {
                Fault::Status { status, error: clean(&error), reason: clean(&reason), retry_after }
            }
            Fault::Silent(after) => Fault::Silent(after),
        };
        let path = self.path.split('?').next().unwrap_or_default();
        Error::Peer(Box::new(PeerError {
            side: inner.side,
            method: self.method.to_string(),
            url: format!("{}{path}", inner.shown),
            fault,
        }))
    }

    fn transport(&self, error: &reqwest::Error) -> Error {
        let cause = causes(error);
        if error.is_connect() || error.is_builder() {
            self.fault(Fault::Unreachable(cause))
        } else {
            self.fault(Fault::BrokeOff(cause))
        }
    }
}

/// What the error's innermost causes say; never the URL, which reqwest puts into its own words.
fn causes(error: &reqwest::Error) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut cause = error.source();
    while let Some(inner) = cause {
        words.push(inner.to_string());
        cause = inner.source();
    }
    // The outer layers only name themselves ("client error (Connect)"); the last two tell what happened.
    words.dedup();
    let tell = words.len().saturating_sub(2);
    if words.is_empty() { "the request could not be sent".to_owned() } else { words[tell..].join(": ") }
}

/// An answer whose head has come and whose body has not.
pub(crate) struct Answer {
    place: Place,
    response: reqwest::Response,
    /// Kept as long as the connection is in use.
    _permit: Option<OwnedSemaphorePermit>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: Option<String>,
    #[serde(default)]
    reason: serde_json::Value,
}

impl Answer {
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Words an error about this answer.
    pub fn fault(&self, fault: Fault) -> Error {
        self.place.fault(fault)
    }

    pub fn malformed(&self, cause: impl std::fmt::Display) -> Error {
        self.fault(Fault::Malformed(cause.to_string()))
    }

    /// The next piece of the body; `None` at its proper end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let timeout = self.place.peer.0.timeout;
        match tokio::time::timeout(timeout, self.response.chunk()).await {
            Err(_) => Err(self.fault(Fault::Silent(timeout))),
            Ok(Err(error)) => Err(self.fault(Fault::BrokeOff(causes(&error)))),
            Ok(Ok(chunk)) => Ok(chunk),
        }
    }

    /// The whole body, if it has at most `limit_bytes`.
    pub async fn bytes(&mut self, limit_bytes: usize) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > limit_bytes {
                return Err(
                    self.fault(Fault::Unexpected(format!("an answer of more than {limit_bytes} bytes")))
                );
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The whole body as JSON.
    pub async fn json<T: DeserializeOwned>(mut self, limit_bytes: usize) -> Result<T, Error> {
        let body = self.bytes(limit_bytes).await?;
        serde_json::from_slice(&body)
            .map_err(|cause| self.malformed(format!("{cause} in {}", beginning(&body))))
    }

    async fn into_error(mut self, status: StatusCode) -> Error {
        let retry_after =
            self.header(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let mut body = Vec::new();
        // The status says enough, should the body break off.
        while let Ok(Some(chunk)) = self.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > ERROR_BODY_BYTES {
                break;
            }
        }
        let name = status.canonical_reason().unwrap_or("error").to_lowercase().replace(' ', "_");
        let (error, reason) = match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error, reason }) => {
                let reason = match reason {
                    serde_json::Value::Null => String::new(),
                    serde_json::Value::String(text) => text,
                    other => other.to_string(),
                };
                (error.unwrap_or(name), reason)
            }
            Err(_) => (name, String::from_utf8_lossy(&body).into_owned()),
        };
        self.fault(Fault::Status { status: status.as_u16(), error, reason, retry_after })
    }
}

/// The first words of a body, for an error message.
pub(crate) fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
    format!("`{text}`")
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
