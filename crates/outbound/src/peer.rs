//! Requests to a peer: a server, or a database.
//!
//! [`Peer::send`] makes one attempt. [`Retries`] decides when to repeat an operation, from its request to the last byte of its response,
//! because responses may break off.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::answer::{self, Answer, Destination};
use crate::auth::{Auth, AuthPlugin, LOGIN_TYPE, Login, LoginAnswer, Ticket};
use crate::body_limit::BodyLimit;
use crate::compression::{Compression, gzip};
use crate::connector::Route;
use crate::deadline::Deadline;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, PeerError, Side};
use crate::flow::{Excuse, Flow};
use crate::gate::Permit;
use crate::metrics::Metrics;
use crate::optional::{self, Optional};
use crate::pool::{Client, Lease};
use crate::pressure::Pressure;
use crate::request::Request;
use crate::retries::Retries;
use crate::room::{MemoryPermits, Use, WaitingBytes};
use crate::secret::{Scrubber, Secret};
use crate::socket_options::SocketOptions;
use crate::spans;
use crate::text::{beginning, shorten};
use crate::trickle::{self, MinimumProgress, Trickle};
use crate::upload::{Progress, Upload};

/// How a job's requests to its peers are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// The authentication methods, in the order in which they are tried.
    pub auth_plugins: Vec<AuthPlugin>,
    /// When to renew a session whose cookie states no lifetime. CouchDB: 550 s.
    pub session_refresh_interval: Duration,
    /// Requests that a job has open concurrently. CouchDB: 20.
    pub http_connections: usize,
    /// Options of new sockets.
    pub socket_options: SocketOptions,
    /// A request fails after a connection has been silent for this long. CouchDB: 30 s.
    pub connection_timeout: Duration,
    /// Time limit of a request until the end of its response; requests for changes have none. `None`: no limit while
    /// data moves, as in CouchDB.
    pub request_timeout: Option<Duration>,
    /// What a response must bring in each interval.
    pub minimum_progress: MinimumProgress,
    /// The largest document that is read, in bytes, without attachments that are streamed. CouchDB targets accept 8 MB
    /// by default.
    pub max_document_bytes: usize,
    /// Attempts after the first one, per request. CouchDB: 5.
    pub retries_per_request: u32,
    /// The tenant whose job it is, which decides which addresses it may reach. `None`: all that the egress rules allow.
    pub tenant: Option<String>,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            auth_plugins: AuthPlugin::ALL.to_vec(),
            session_refresh_interval: Duration::from_secs(550),
            http_connections: 20,
            socket_options: SocketOptions::default(),
            connection_timeout: Duration::from_secs(30),
            request_timeout: None,
            minimum_progress: MinimumProgress::default(),
            max_document_bytes: 64 << 20,
            retries_per_request: 5,
            tenant: None,
        }
    }
}

/// One side of a job.
#[derive(Clone)]
pub struct Peer(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) side: Side,
    /// The database's URL, and a key of the limiter.
    base: Arc<str>,
    /// The base without secrets, for display.
    pub(crate) shown: String,
    /// The headers of the replication. Usually empty, which allocates nothing.
    headers: HeaderMap,
    pub(crate) settings: PeerSettings,
    /// What all jobs of the process share.
    pub(crate) client: Client,
    transport: Lease,
    auth: Auth,
    /// The URL where sessions are opened, and the limiter's key for logins.
    login_url: Arc<str>,
    connections: Arc<Semaphore>,
    /// The server's places, which all jobs share.
    places: Arc<Semaphore>,
    pressure: Arc<Pressure>,
    /// What the job moves.
    pub(crate) flow: Arc<Flow>,
    compression: Compression,
    /// This peer's key among those that refuse what is not needed.
    refusal_key: u64,
    /// How large a body its server accepts.
    body_limit: Arc<BodyLimit>,
    /// The secrets of both sides, because each side may receive the other's.
    scrubber: Arc<Scrubber>,
}

impl Inner {
    fn new(
        side: Side,
        endpoint: &Endpoint,
        settings: &PeerSettings,
        client: &Client,
        (pressure, flow): (Arc<Pressure>, Arc<Flow>),
        scrubber: Arc<Scrubber>,
    ) -> Self {
        let mut login_url = endpoint.url().clone();
        login_url.set_path("/_session");
        let shared = &client.0;
        let refusal_key = shared.refusals.key(endpoint);
        let PeerSettings { auth_plugins, session_refresh_interval, .. } = settings;
        Inner {
            side,
            auth: Auth::new(endpoint, auth_plugins, *session_refresh_interval, &shared.sessions),
            login_url: login_url.as_str().into(),
            base: endpoint.url().as_str().into(),
            shown: endpoint.redacted_url(),
            headers: headers(endpoint),
            transport: client.transport(&Route {
                proxy: endpoint.proxy().cloned(),
                socket_options: settings.socket_options,
                external: client.is_external(settings.tenant.as_deref()),
            }),
            connections: Arc::new(Semaphore::new(settings.http_connections)),
            places: shared.gates.of(endpoint.url(), side),
            pressure,
            flow,
            compression: Compression::default(),
            refusal_key,
            body_limit: shared.body_limits.of(refusal_key),
            scrubber,
            settings: settings.clone(),
            client: client.clone(),
        }
    }
}

impl Peer {
    /// One side of a job. `scrubber` has the secrets of both sides, because each side may receive the other's.
    pub fn new(
        side: Side,
        endpoint: &Endpoint,
        settings: &PeerSettings,
        scrubber: Arc<Scrubber>,
        client: &Client,
    ) -> Self {
        Self(Arc::new(Inner::new(side, endpoint, settings, client, Default::default(), scrubber)))
    }

    /// The other side of the same job. If one side is throttled, the job reduces its load on both.
    pub fn beside(&self, side: Side, endpoint: &Endpoint, settings: &PeerSettings, client: &Client) -> Self {
        let shared = (Arc::clone(&self.0.pressure), Arc::clone(&self.0.flow));
        let scrubber = Arc::clone(&self.0.scrubber);
        Self(Arc::new(Inner::new(side, endpoint, settings, client, shared, scrubber)))
    }

    /// The silence after which a request fails.
    pub fn timeout(&self) -> Duration {
        self.0.settings.connection_timeout
    }

    /// The attempts of one operation, from its request to the last byte of its response.
    pub fn retries(&self) -> Retries<'_> {
        Retries::new(self)
    }

    /// A text of this peer for display: short, and without secrets.
    pub fn clean(&self, text: &str) -> String {
        shorten(&self.0.auth.hide(self.0.scrubber.scrub(&beginning(text.as_bytes()))))
    }

    /// Whether to use `option`: the peer has not refused it recently.
    pub fn may_use(&self, option: Optional) -> bool {
        !self.0.client.0.refusals.knows(self.0.refusal_key, option, Instant::now())
    }

    /// Notes that the peer refuses `option`: it failed with `error`, and the request without it succeeded.
    pub fn refuses(&self, option: Optional, error: &Error) {
        if self.0.client.0.refusals.add(self.0.refusal_key, option, Instant::now()) {
            let minutes = optional::REMEMBERED.as_secs() / 60;
            tracing::info!(%error, "the {} refuses {option}; it is left out for {minutes} minutes", self.0.side);
        }
    }

    /// How large the body of a request may be.
    pub fn body_limit(&self) -> &BodyLimit {
        &self.0.body_limit
    }

    /// Documents were rejected as those of a user without rights, in the response to a request with this login. Whether the session may
    /// have ended, so that the request was anonymous: another attempt gets a new login.
    pub fn may_be_logged_out(&self, ticket: Ticket) -> bool {
        self.0.auth.answered(ticket, StatusCode::FORBIDDEN, &HeaderMap::new())
    }

    /// How much of a limit the job uses: less than all of it while one of its servers is throttled.
    pub fn reduced(&self, room: usize) -> usize {
        self.0.pressure.reduced(room)
    }

    /// Counts the bytes of a batch of documents.
    pub fn waiting_bytes(&self) -> WaitingBytes {
        WaitingBytes::new(&self.0.client.0.room)
    }

    /// The largest document that is copied.
    pub fn max_document_bytes(&self) -> usize {
        self.0.settings.max_document_bytes
    }

    /// Returns when the job, with both of its sides, moves less than the minimum; never if there is none.
    pub async fn too_slow(&self) -> Error {
        let least = trickle::least(self.0.settings.minimum_progress, self.timeout());
        match least.bytes {
            0 => std::future::pending().await,
            _ => self.0.flow.too_slow(least).await,
        }
    }

    /// The job moves nothing that its peers owe, until the value is dropped.
    pub fn excuse(&self) -> Excuse {
        self.0.flow.excuse()
    }

    /// Adds the context of a request to a fault.
    pub fn fault(&self, method: Method, path: &str, fault: Fault) -> Error {
        Destination { peer: self.clone(), method, path: path.to_owned() }.fault(fault)
    }

    /// Sends `request` once and waits for the head of its response. Every status except 2xx is an error.
    ///
    /// Boxed, as is [`send_upload`](Self::send_upload), so that it is compiled once, and not in each crate that awaits it.
    pub fn send<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(spans::of_request(&request.method, &request.path, self.compressed(request)))
    }

    /// Sends `request` with its body compressed, if that is worth it and the server accepts it.
    async fn compressed(&self, request: &Request) -> Result<Answer, Error> {
        let timeout = request.silence.unwrap_or(self.timeout());
        let compression = &self.0.compression;
        let gzipped = match &request.body {
            Some(body) if compression.is_worth(body.len()) && self.may_use(Optional::CompressedBodies) => {
                gzip(body.clone()).await
            }
            _ => None,
        };
        let Some(body) = gzipped else { return self.as_it_is(request, timeout).await };
        let upload = Upload::from_bytes(body, "application/json").encoded("gzip");
        let answer = self.send_once(request, Some(upload), timeout).await;
        if !compression.may_be_refused(&answer) {
            return answer.inspect(|_| compression.accepted());
        }
        // The connection of a page is free for the next attempt.
        let page = |answer: Answer| answer.malformed("a page");
        let refusal = answer.map_or_else(|error| error, page);
        let answer = self.as_it_is(request, timeout).await;
        // A body that is too large has passed what rejected the compressed one.
        if answer.as_ref().map_or_else(|error| error.status() == Some(413), |_| true) {
            self.refuses(Optional::CompressedBodies, &refusal);
        }
        answer
    }

    async fn as_it_is(&self, request: &Request, timeout: Duration) -> Result<Answer, Error> {
        let upload = request.body.clone().map(|body| Upload::from_bytes(body, "application/json"));
        let progress = upload.as_ref().map(Upload::progress);
        let answer = self.send_once(request, upload, timeout).await;
        if let (Some(progress), Ok(_)) = (progress, &answer) {
            self.0.compression.measured(progress.bytes(), progress.took());
        }
        answer
    }

    async fn send_once(
        &self,
        request: &Request,
        upload: Option<Upload>,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let permit = if request.uncounted { None } else { Some(self.connection().await) };
        let answer = self.exchange(&request.method, &request.path, request.accept, upload, permit, timeout);
        let answer = answer.await;
        self.count(&answer, request.feed);
        let mut answer = answer?;
        if request.feed {
            answer.reads = Use::Feed;
            answer.rest(true);
        }
        Ok(answer)
    }

    /// Sends a body that cannot be repeated, such as a stream of attachments.
    pub fn send_upload<'a>(
        &'a self,
        method: Method,
        path: &'a str,
        upload: Upload,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let permit = Some(self.connection().await);
            let answer =
                self.exchange(&method, path, "application/json", Some(upload), permit, self.timeout());
            let answer = spans::of_request(&method, path, answer).await;
            self.count(&answer, false);
            answer
        })
    }

    fn count<T>(&self, answer: &Result<T, Error>, feed: bool) {
        let Metrics { responses, response_failures, feeds, feed_failures, .. } = &*self.0.client.0.metrics;
        let counter = match (feed, answer) {
            (false, Ok(_)) => responses,
            (false, Err(_)) => response_failures,
            (true, Ok(_)) => feeds,
            (true, Err(_)) => feed_failures,
        };
        counter.add(1);
    }

    /// Sends `request` and reads its whole response, with retries.
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

    /// One of the job's own connections. The server's place follows later ([`dispatch`](Self::dispatch)). A request
    /// that waits for its connection or for the limiter thus holds no place that another job could use.
    async fn connection(&self) -> Permit {
        let Inner { side, settings, connections, pressure, .. } = &*self.0;
        let weight = pressure.weight(*side, settings.http_connections);
        let own = Arc::clone(connections).acquire_many_owned(weight).await.expect("never closed");
        Permit { _connection: own, place: None }
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        accept: &'static str,
        mut upload: Option<Upload>,
        mut permit: Option<Permit>,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let destination =
            || Destination { peer: self.clone(), method: method.clone(), path: path.to_owned() };
        if has_dot_segment(path) {
            return Err(destination().fault(Fault::Unexpected(DOT_SEGMENT.to_owned())));
        }
        let url = format!("{}{path}", self.0.base);
        let mut renewed = upload.as_ref().is_some_and(|upload| upload.follows_login);
        loop {
            let mut headers = self.0.headers.clone();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            let ticket = self.0.auth.apply(&mut headers, |login| self.log_in(login));
            let ticket = ticket.await.map_err(|fault| self.login_fault(fault))?;
            let again = upload.as_ref().map(Upload::again);
            let (base, counted) = (&self.0.base, permit.as_mut());
            let sent = Self::dispatch(destination(), base, &url, headers, upload, counted, timeout).await;
            let mut answer = sent.inspect_err(|_| self.0.auth.broke_off(ticket))?;
            let status = answer.response.status();
            if !renewed && self.0.auth.answered(ticket, status, answer.response.headers()) {
                renewed = true;
                upload = match again {
                    None => None,
                    Some(Some(again)) => Some(again),
                    // The sender of the stream must start again.
                    Some(None) => return Err(answer.fault(Fault::LoggedOut)),
                };
                continue;
            }
            (answer.ticket, answer._permit) = (ticket, permit);
            return if status.is_success() { Ok(answer) } else { Err(answer.into_error(status).await) };
        }
    }

    /// Sends one request and waits for the head of its response. It waits first for the limiter and, if it is
    /// `counted`, for a place at the server.
    async fn dispatch(
        destination: Destination,
        limited: &Arc<str>,
        url: &str,
        headers: HeaderMap,
        upload: Option<Upload>,
        counted: Option<&mut Permit>,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let peer = destination.peer.clone();
        let Inner { side, settings, client, pressure, flow, places, transport, .. } = &*peer.0;
        let limiter = &client.0.limiter;
        let mut builder = http::Request::builder().method(destination.method.clone()).uri(url);
        if let Some(map) = builder.headers_mut() {
            *map = headers;
            map.entry(USER_AGENT).or_insert(HeaderValue::from_static(OWN_NAME));
        }
        let described = upload.as_ref().map(|upload| (upload.content_type.clone(), upload.encoding));
        let progress = upload.as_ref().map(Upload::progress);
        let wrong = |cause: http::Error| {
            destination.fault(Fault::Unexpected(format!("the request is invalid: {cause}")))
        };
        let mut body = upload.unwrap_or_default();
        body.flow = Some(Arc::clone(flow));
        let mut request = builder.body(body).map_err(wrong)?;
        if let Some((content_type, encoding)) = described {
            // Replaces the replication's own headers, because only this function knows what it sends.
            let content_type = HeaderValue::try_from(content_type).map_err(|cause| wrong(cause.into()))?;
            request.headers_mut().insert(CONTENT_TYPE, content_type);
            if let Some(encoding) = encoding {
                request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
            }
        }
        limiter.wait(&destination.method, limited).await;
        if let Some(permit) = counted {
            // Returns the place of the previous attempt first.
            permit.place = None;
            let place = flow.excused(Arc::clone(places).acquire_owned()).await;
            permit.place = Some(place.expect("never closed"));
        }
        client.0.metrics.requests.add(1);
        let deadline = Deadline::of(&destination.path, settings.request_timeout);
        let sent = deadline.before(watched(timeout, progress.as_deref(), transport.0.send(request))).await;
        let response = match sent.map_err(|fault| destination.fault(fault))? {
            None => return Err(destination.fault(Fault::Silent(timeout))),
            Some(Err(error)) => return Err(destination.transport(&error)),
            Some(Ok(response)) => response,
        };
        let (status, retry_after) = (response.status(), answer::retry_after(response.headers()));
        limiter.answered(&destination.method, limited, status, retry_after, limiter.now_ms());
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                pressure.refused(*side, Instant::now());
            }
            status if status.is_server_error() => {}
            _ => pressure.served(*side, Instant::now()),
        }
        Ok(Answer {
            destination,
            response,
            timeout,
            deadline,
            trickle: Trickle::new(settings.minimum_progress, timeout, false),
            reads: Use::of(*side),
            places: MemoryPermits::default(),
            ticket: Ticket::default(),
            _permit: None,
        })
    }

    /// Opens a session.
    async fn log_in(&self, Login { body, authorization }: Login) -> Result<LoginAnswer, Fault> {
        let destination = Destination { peer: self.clone(), method: Method::POST, path: String::new() };
        let mut headers = self.0.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        let (url, upload) = (&self.0.login_url, Some(Upload::from_bytes(body, LOGIN_TYPE)));
        let sent = Self::dispatch(destination, url, url, headers, upload, None, self.timeout()).await;
        let mut answer = Answer { reads: Use::Responses, ..sent.map_err(fault_of)? };
        let (status, headers) = (answer.response.status(), answer.response.headers().clone());
        let fault = if status.is_success() {
            // Only the head matters, but the connection is free for the next request only after the body has been read.
            let _ = answer.bytes(LOGIN_BYTES).await;
            None
        } else {
            Some(fault_of(answer.into_bare_error(status).await))
        };
        Ok(LoginAnswer { status, headers, fault })
    }

    fn login_fault(&self, fault: Fault) -> Error {
        let root =
            self.0.shown.match_indices('/').nth(2).map_or(&*self.0.shown, |(at, _)| &self.0.shown[..at]);
        Error::Peer(Box::new(PeerError {
            side: self.0.side,
            method: Method::POST.to_string(),
            url: format!("{root}/_session"),
            fault,
        }))
    }
}

/// The fault in an error about a peer.
fn fault_of(error: Error) -> Fault {
    match error {
        Error::Peer(error) => error.fault,
        other => Fault::Unexpected(other.to_string()),
    }
}

/// The `User-Agent`, unless the replication's headers set another one.
pub(crate) const OWN_NAME: &str = concat!("turnwise/", env!("CARGO_PKG_VERSION"));

/// The most bytes that are read of the response to a login.
const LOGIN_BYTES: usize = 64 * 1024;

/// The error of a request that is not sent, because it would not reach the database.
const DOT_SEGMENT: &str = "a path with a segment `.` or `..`";

/// Whether a path would leave its database. Paths of documents have these segments encoded (by the replicator), so
/// none is sent by mistake.
fn has_dot_segment(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Waits for `future` as long as `progress` advances at least once per `timeout`. `None`: it did not.
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
    headers
}

fn sensitive(value: &Secret) -> HeaderValue {
    let mut value = HeaderValue::from_str(value.reveal()).expect("checked when it was parsed");
    value.set_sensitive(true);
    value
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod gate_tests;
