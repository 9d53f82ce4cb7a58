//! Requests and answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::servers::{Server, Servers};
use crate::waits::{Waits, is_cut};
use crate::{Error, Result};

/// How long the client repeats requests unless the caller sets another time.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// The timeout of a request, beyond the time that it waits on the server: far more than a healthy server needs.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The shorter timeout while there is another server to ask.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The client closes a connection that was idle for this long.
const IDLE_CONNECTION: Duration = Duration::from_secs(60);
/// The largest answer that the client reads, in bytes: a batch of jobs for a worker, with the largest options.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// How much of an answer that is not understood appears in the error, in characters.
const SHOWN_CHARS: usize = 200;
/// The cause of an error, if an answer is incomplete.
const CUT_OFF: &str = "the answer ends early";
/// The characters that are not escaped in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A client of a turnwise server, or of several on one store. Cheap to clone; clones share their connections and the
/// current server.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    pub(crate) servers: Arc<Servers>,
    pub(crate) waits: Arc<Waits>,
    retry_for: Duration,
    /// `Bearer TOKEN`; a header value that is never printed.
    authorization: Option<HeaderValue>,
}

/// Without passwords.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.all().map(|server| server.shown()).collect();
        f.debug_struct("Client").field("servers", &servers).finish_non_exhaustive()
    }
}

/// A request that can be repeated.
#[derive(Clone)]
pub(crate) struct Request {
    pub method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Bytes>,
    /// The version of what it changes.
    if_match: Option<String>,
    /// How long the request waits on the server, as a long poll.
    pub wait: Duration,
    /// The parameter that states the wait in ms. Without one, the body states it.
    wait_parameter: Option<&'static str>,
    /// How long an answer may take beyond that.
    pub timeout: Duration,
}

impl Request {
    /// A request to `/v1/` followed by these path segments.
    pub fn new(method: Method, segments: &[&str]) -> Request {
        let path = segments.iter().map(|segment| format!("/{}", utf8_percent_encode(segment, SEGMENT)));
        let path = std::iter::once("/v1".to_owned()).chain(path).collect();
        let (wait, wait_parameter) = (Duration::ZERO, None);
        let (query, body, if_match) = (Vec::new(), None, None);
        Request { method, path, query, body, if_match, wait, wait_parameter, timeout: ANSWER_TIMEOUT }
    }

    pub fn query(mut self, name: &'static str, value: Option<impl ToString>) -> Request {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    pub fn json(mut self, body: &impl Serialize) -> Result<Request> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Invalid(format!("not JSON: {error}")))?;
        self.body = Some(body.into());
        Ok(self)
    }

    /// Lets the request change only this version.
    pub fn if_match(mut self, version: Option<&str>) -> Request {
        self.if_match = version.map(|version| format!("\"{version}\""));
        self
    }

    /// Sets how long the request waits on the server, as its body states it ([`Waits::longest`]).
    pub fn waiting(mut self, wait: Duration) -> Request {
        self.wait = wait;
        self
    }

    /// Sets the longest wait on the server. Each attempt states in this parameter how long it waits.
    pub fn waiting_up_to(self, wait: Duration, parameter: &'static str) -> Request {
        Request { wait_parameter: Some(parameter), ..self.waiting(wait) }
    }
}

impl Client {
    /// Creates a client of the server at this URL, for example `http://127.0.0.1:7984`; or of several servers on one
    /// store, with commas between their URLs. The client asks the first server, and fails over to the next when that
    /// one does not answer, or cannot. This function sends nothing yet.
    ///
    /// # Errors
    /// A URL is invalid, or no HTTP client can be created on this machine.
    pub fn new(url: &str) -> Result<Client> {
        let servers = Arc::new(Servers::parse(url)?);
        let http = connections()?;
        Ok(Client { http, servers, waits: Arc::default(), retry_for: RETRY_FOR, authorization: None })
    }

    /// The same client with connections of its own, for another runtime: connections live on the one that has opened them.
    pub(crate) fn with_own_connections(&self) -> Result<Client> {
        Ok(Client { http: connections()?, ..self.clone() })
    }

    /// Sends this token with each request. Otherwise the name and password in the server's URL are sent, if there are any.
    ///
    /// # Errors
    /// The text has characters that no token has.
    pub fn with_token(mut self, token: &str) -> Result<Client> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| Error::Invalid("it has characters that no token has".to_owned()))?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// Repeats requests for this long (10 s otherwise), and at least until every server was asked once. The time for which a request
    /// waits on the server, as it was meant to, does not count.
    #[must_use]
    pub fn retry_for(mut self, retry_for: Duration) -> Client {
        self.retry_for = retry_for;
        self
    }

    /// The URL of the current server, without a password.
    pub fn server(&self) -> String {
        self.servers.current().shown()
    }

    /// The pauses between attempts: none until every server was asked once.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::after(self.servers.len() - 1)
    }

    /// Sends a request, and repeats it if that is harmless, until there is an answer or the time for retries is over.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: &Request, repeat: Repeat) -> Result<T> {
        self.call_knowing(request, repeat).await.0
    }

    /// Reads what is at this path.
    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        self.call(&Request::new(Method::GET, path), Repeat::Harmless).await
    }

    /// Puts a body to this path, which is idempotent.
    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T> {
        self.call(&Request::new(Method::PUT, path).json(body)?, Repeat::Harmless).await
    }

    /// Like [`Client::call`]; also returns whether an attempt before the last may have taken effect.
    pub(crate) async fn call_knowing<T: DeserializeOwned>(
        &self,
        request: &Request,
        repeat: Repeat,
    ) -> (Result<T>, bool) {
        self.call_reading(request, repeat, understand).await
    }

    /// Like [`Client::call_knowing`], with a function that reads the answer.
    pub(crate) async fn call_reading<T>(
        &self,
        request: &Request,
        repeat: Repeat,
        reader: Reader<T>,
    ) -> (Result<T>, bool) {
        let mut spent = Duration::ZERO;
        let mut backoff = self.backoff();
        let mut worked = false;
        let mut impatient = request.clone();
        impatient.timeout = request.timeout.min(FAILOVER_TIMEOUT);
        loop {
            let others = backoff.attempts() + 1 < self.servers.len();
            let request = if others && repeat == Repeat::Harmless { &impatient } else { request };
            let (wait, asked) = (self.wait_of(request), Instant::now());
            let error = match self.once_waiting(request, wait, reader).await {
                Ok(answer) => return (Ok(answer), worked),
                Err(error) => error,
            };
            let took = asked.elapsed();
            let harmless = match repeat {
                Repeat::Harmless => true,
                Repeat::IfUnsent => !error.may_have_worked(),
            };
            let pause = if is_cut(wait, took, &error) { Duration::ZERO } else { backoff.next() };
            spent += took.saturating_sub(wait) + pause;
            let late = !others && spent > self.retry_for;
            if !error.may_pass() || !harmless || late {
                return (Err(error), worked);
            }
            worked |= error.may_have_worked();
            tracing::debug!(%error, "asking again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a request once. If the server does not answer, cannot, or has an internal error, the next request goes to
    /// another server.
    pub(crate) async fn once<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        self.once_waiting(request, self.wait_of(request), understand).await
    }

    /// How long an attempt waits on the server.
    fn wait_of(&self, request: &Request) -> Duration {
        match request.wait_parameter {
            Some(_) => self.waits.longest(request.wait),
            None => request.wait,
        }
    }

    async fn once_waiting<T>(&self, request: &Request, wait: Duration, reader: Reader<T>) -> Result<T> {
        let server = self.servers.current();
        let asked = Instant::now();
        let answered = self.exchange(server, request, wait).await;
        let answered = answered.and_then(|answer| reader(server, answer));
        self.waits.learn(wait, asked.elapsed(), answered.as_ref().err());
        if answered.as_ref().is_err_and(Error::may_pass) {
            self.servers.leave(server);
        }
        answered
    }

    /// Sends a request and reads its answer, within the request's time. Boxed, so that it is compiled once, and not for each
    /// type of answer.
    fn exchange<'a>(
        &'a self,
        server: Server<'a>,
        request: &'a Request,
        wait: Duration,
    ) -> BoxFuture<'a, Result<Answer>> {
        Box::pin(async move {
            let timeout = wait.saturating_add(request.timeout);
            let answer = tokio::time::timeout(timeout, async {
                let answer = self.send(server, request, wait, &[]).await?;
                let status = answer.status();
                let media_type =
                    answer.headers().get(CONTENT_TYPE).and_then(|media_type| media_type.to_str().ok());
                let media_type = media_type.unwrap_or_default().to_owned();
                Ok(Answer { status, media_type, body: read(server, answer).await? })
            });
            answer.await.unwrap_or_else(|_| Err(lost(server, &format!("it takes longer than {timeout:?}"))))
        })
    }

    /// Sends a request, and returns when the headers of the answer have arrived.
    pub(crate) async fn send(
        &self,
        server: Server<'_>,
        request: &Request,
        wait: Duration,
        headers: &[(&str, &str)],
    ) -> Result<Response> {
        let mut url = server.url.clone();
        url.set_path(&format!("{}{}", server.url.path().trim_end_matches('/'), request.path));
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        if let Some(parameter) = request.wait_parameter {
            url.query_pairs_mut().append_pair(parameter, &wait.as_millis().to_string());
        }
        if self.authorization.is_some() {
            // reqwest would send a second header with them.
            let _ = url.set_username("");
            let _ = url.set_password(None);
        }
        let mut sent = self.http.request(request.method.clone(), url);
        if let Some(authorization) = &self.authorization {
            sent = sent.header(AUTHORIZATION, authorization.clone());
        }
        for (name, value) in headers {
            sent = sent.header(*name, *value);
        }
        if let Some(version) = &request.if_match {
            sent = sent.header("if-match", version);
        }
        // The server refuses a POST that is not declared as JSON, even without a body, because a form on another site
        // could send one.
        if request.body.is_some() || request.method == Method::POST {
            sent = sent.header("content-type", "application/json");
        }
        if let Some(body) = &request.body {
            sent = sent.body(body.clone());
        }
        sent.send().await.map_err(|error| no_answer(server, error))
    }
}

async fn read(server: Server<'_>, mut answer: Response) -> Result<Bytes> {
    let mut body = BytesMut::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| no_answer(server, error))? {
        if body.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(foreign(server, answer.status(), format!("more than {MAX_ANSWER_BYTES} bytes")));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

/// A complete answer.
pub(crate) struct Answer {
    pub status: StatusCode,
    /// Empty if it states none.
    pub media_type: String,
    pub body: Bytes,
}

/// Reads an answer, which may be a refusal.
pub(crate) type Reader<T> = fn(Server<'_>, Answer) -> Result<T>;

/// The reader of answers in JSON.
fn understand<T: DeserializeOwned>(server: Server<'_>, answer: Answer) -> Result<T> {
    let Answer { status, body, .. } = answer.successful(server)?;
    json(server, status, &body)
}

impl Answer {
    /// The answer, unless it is a refusal.
    pub fn successful(self, server: Server<'_>) -> Result<Answer> {
        if self.status.is_success() { Ok(self) } else { Err(refusal(server, self.status, &self.body)) }
    }
}

/// Parses the body of an answer.
pub(crate) fn json<T: DeserializeOwned>(server: Server<'_>, status: StatusCode, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| match is_cut_off(&error, body) {
        true => lost(server, CUT_OFF),
        false => foreign(server, status, place(&error)),
    })
}

/// Whether a body ends in the middle of its JSON. HTTP does not show this if the end of the connection ends the body.
fn is_cut_off(error: &serde_json::Error, body: &[u8]) -> bool {
    error.is_eof() && !body.trim_ascii().is_empty()
}

/// The error that an answer contains.
fn refusal(server: Server<'_>, status: StatusCode, body: &[u8]) -> Error {
    match (serde_json::from_slice(body), status.as_u16()) {
        (Ok(error), 408 | 429 | 503) => Error::Unavailable(error),
        (Ok(error), _) => Error::Refused(error),
        (Err(error), _) if is_cut_off(&error, body) => lost(server, CUT_OFF),
        // The answer of a proxy that cannot reach the server now, or does not wait for its answer.
        (Err(_), 408 | 429 | 502..=504) => {
            lost(server, &format!("{status} from a proxy in front of the server"))
        }
        (Err(_), _) => {
            let text = String::from_utf8_lossy(body);
            let shown: String = text.chars().filter(|char| !char.is_control()).take(SHOWN_CHARS).collect();
            foreign(server, status, format!("`{shown}`"))
        }
    }
}

/// The error of an answer whose body is not read yet.
pub(crate) async fn refused(server: Server<'_>, answer: Response) -> Error {
    let status = answer.status();
    match tokio::time::timeout(ANSWER_TIMEOUT, read(server, answer)).await {
        Ok(Ok(body)) => refusal(server, status, &body),
        Ok(Err(error)) => error,
        Err(_) => refusal(server, status, b""),
    }
}

pub(crate) fn foreign(server: Server<'_>, status: StatusCode, problem: String) -> Error {
    Error::Foreign { server: server.shown(), status: status.as_u16(), problem }
}

/// The error of a request whose answer is lost.
pub(crate) fn lost(server: Server<'_>, cause: &str) -> Error {
    Error::NoAnswer { server: server.shown(), cause: cause.to_owned(), maybe_sent: true }
}

pub(crate) fn no_answer(server: Server<'_>, error: reqwest::Error) -> Error {
    let maybe_sent = !error.is_connect() && !error.is_builder();
    Error::NoAnswer { server: server.shown(), cause: causes(&error.without_url()), maybe_sent }
}

/// Whether the client may repeat a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Always: the request is idempotent.
    Harmless,
    /// Only while it certainly did not take effect.
    IfUnsent,
}

fn connections() -> Result<reqwest::Client> {
    // An error means that another part of the process has installed a provider; that one works as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Without TLS roots on this machine, `https` servers cannot be trusted, but `http` still works.
    let built = builder().build().or_else(|_| builder().tls_certs_only([]).build());
    built.map_err(|error| Error::Invalid(format!("no HTTP client: {}", causes(&error))))
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("turnwise-client/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_CONNECTION)
        .tcp_nodelay(true)
        .no_proxy()
}

/// Where JSON is not as expected. The JSON itself is left out: it may be a part of a job's options.
pub(crate) fn place(error: &serde_json::Error) -> String {
    let what = if error.is_data() { "other JSON" } else { "no JSON" };
    format!("{what} at line {}, column {}", error.line(), error.column())
}

/// An error with all its causes.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.ends_with(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}
