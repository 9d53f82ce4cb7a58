//! The cluster's members, and calls to them: connections, deadlines, fail-over, tokens.
//!
//! All calls of a process go to one member until it fails, and then to the next one. Deadlines detect members that do not answer.
//! They are independent of the connection, because a stopped member keeps its connections open. A read that failed is repeated at
//! another member. A commit is repeated only if it was certainly not done.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::Stream;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::api::{
    self, AlarmResponse, AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse, WatchRequest, WatchResponse, path,
};
use super::failure::{FULL, Failure, Refusal, innermost};
use crate::sync::Mutex;
use crate::{Error, EtcdUrl, Result};

const CONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// How long a member may take for a read before the read goes to another one.
const READ_DEADLINE: Duration = Duration::from_secs(2);
/// How long a commit may take before its outcome is unknown.
const COMMIT_DEADLINE: Duration = Duration::from_secs(5);
/// How long authentication may take: it costs a member a tenth of a second, on purpose.
const AUTHENTICATE_DEADLINE: Duration = Duration::from_secs(3);
/// How often an idle connection is tested. etcd closes connections of clients that do it more often than every 5 s.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_DEADLINE: Duration = Duration::from_secs(3);
/// How many bytes a member may send before this process has read them. `h2` reserves half of it for small frames, 256 bytes each.
/// If more of them wait to be read, it closes the connection, with all commits under way. This is enough for 250,000 responses
/// and events at a time. With the protocol's default window of 64 kB it would be a hundred.
const CONNECTION_WINDOW_BYTES: u32 = 128 << 20;
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// Largest response. Pages have a fraction of this size.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// Rounds over all members before a read gives up.
const ROUNDS: usize = 2;
/// etcd's name for the header that carries a token.
const TOKEN_HEADER: &str = "token";
/// Makes a member that has lost its leader return an error instead of waiting for a leader.
const LEADER_HEADER: &str = "hasleader";

pub(super) struct Members {
    members: Vec<Member>,
    current: AtomicUsize,
    credentials: Option<Credentials>,
    /// Whether a commit was refused because etcd is full, and none has succeeded since.
    full: AtomicBool,
}

struct Member {
    endpoint: String,
    channel: Channel,
}

struct Credentials {
    user: String,
    password: String,
    token: Mutex<Token>,
    /// Held while a new token is fetched, so that it is fetched once.
    renewing: tokio::sync::Mutex<()>,
}

/// A token, which replaces user and password.
#[derive(Clone, Default)]
struct Token {
    /// `None` before the first, and if etcd requires none.
    value: Option<MetadataValue<Ascii>>,
    generation: u64,
}

impl Credentials {
    fn token(&self) -> Token {
        self.token.lock().clone()
    }
}

fn unusable(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Unavailable(format!("{what}: {error}"))
}

fn pem(path: &std::path::Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| unusable(&format!("cannot read {}", path.display()), error))
}

fn tls(url: &EtcdUrl) -> Result<ClientTlsConfig> {
    let tls = match &url.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem(ca)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(match (&url.cert, &url.key) {
        (Some(cert), Some(key)) => tls.identity(Identity::from_pem(pem(cert)?, pem(key)?)),
        _ => tls,
    })
}

impl Members {
    /// The members that a URL names. `first` selects the member for the first calls. Connections are opened on demand.
    pub(super) fn new(url: &EtcdUrl, first: u64) -> Result<Self> {
        let tls = if url.tls { Some(tls(url)?) } else { None };
        let scheme = if url.tls { "https" } else { "http" };
        let member = |endpoint: &String| {
            let unusable = |error: tonic::transport::Error| {
                unusable(&format!("cannot use the etcd member {endpoint}"), innermost(&error))
            };
            let mut address = Endpoint::from_shared(format!("{scheme}://{endpoint}"))
                .map_err(unusable)?
                .connect_timeout(CONNECT_DEADLINE)
                .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
                .keep_alive_timeout(KEEP_ALIVE_DEADLINE)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
            if let Some(tls) = &tls {
                address = address.tls_config(tls.clone()).map_err(unusable)?;
            }
            Ok(Member { endpoint: endpoint.clone(), channel: address.connect_lazy() })
        };
        let members = url.endpoints.iter().map(member).collect::<Result<Vec<_>>>()?;
        let first = usize::try_from(first % members.len() as u64).unwrap_or_default();
        let credentials = url.user.clone().map(|(user, password)| Credentials {
            user,
            password,
            token: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
        });
        Ok(Members { members, current: AtomicUsize::new(first), credentials, full: AtomicBool::default() })
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.credentials.as_ref().map(|credentials| credentials.user.as_str())
    }

    /// The member that receives the calls.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Moves to the member after `failed`, unless another call has already moved on.
    pub(super) fn turn_from(&self, failed: usize, why: &Failure) {
        let next = (failed + 1) % self.members.len();
        let turned = self.current.compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
        if turned.is_ok() && next != failed {
            let (from, to) = (&self.members[failed].endpoint, &self.members[next].endpoint);
            tracing::info!(from, to, ?why, "etcd: another member is asked");
        }
    }

    /// The rows of a range, and the member that has answered. They are read at the newest revision, or at the revision that the
    /// request names. The answering member has seen that revision. A request for a revision goes to `member` first, which then
    /// need not ask the other members.
    pub(super) async fn range(
        &self,
        mut request: RangeRequest,
        member: Option<usize>,
    ) -> Result<(RangeResponse, usize)> {
        request.serializable = member.is_some() && request.revision > 0;
        let mut member = member.unwrap_or_else(|| self.current());
        let mut failures = Vec::new();
        for _ in 0..self.members.len() * ROUNDS {
            let failure = match self.call(member, path::RANGE, request.clone(), READ_DEADLINE).await {
                Ok(response) => return Ok((response, member)),
                Err(failure) => failure,
            };
            let behind = matches!(failure, Failure::Refused(Refusal::Future, _)) && request.serializable;
            request.serializable = false;
            if behind {
                continue;
            }
            if !failure.is_of_member() {
                return Err(failure.into_error(self.user()));
            }
            self.turn_from(member, &failure);
            failures.push((member, failure));
            member = (member + 1) % self.members.len();
        }
        Err(self.combined(failures))
    }

    /// Several ranges in one call to `member`, without retries. An error applies to the call, not to each range. If they are
    /// `pinned`, all of them name revisions that the member has seen.
    pub(super) async fn ranges(
        &self,
        mut requests: Vec<RangeRequest>,
        pinned: bool,
        member: usize,
    ) -> Result<Vec<RangeResponse>, Failure> {
        let count = requests.len();
        for request in &mut requests {
            request.serializable = pinned;
        }
        let read = |request| RequestOp { request: Some(api::Request::Range(request)) };
        let txn = TxnRequest { success: requests.into_iter().map(read).collect(), ..TxnRequest::default() };
        let answer: TxnResponse = self.call(member, path::TXN, txn, READ_DEADLINE).await?;
        let header = answer.header;
        let responses = answer.responses.into_iter().map_while(|answer| match answer.response {
            Some(api::Response::Range(range)) => Some(RangeResponse { header: header.clone(), ..range }),
            _ => None,
        });
        let responses: Vec<_> = responses.collect();
        if responses.len() != count {
            return Err(Failure::Lost("etcd has answered something else than was asked".into()));
        }
        Ok(responses)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Combines many errors into one: the answer of the member that was asked last, or that none can be reached.
    fn combined(&self, failures: Vec<(usize, Failure)>) -> Error {
        let said = failures.iter().rev().find(|(_, failure)| matches!(failure, Failure::Refused(..)));
        if let Some((_, failure)) = said {
            return failure.clone().into_error(self.user());
        }
        let mut whys = Vec::new();
        for (member, failure) in failures.iter().rev().take(self.members.len()).rev() {
            if let Failure::Unsent(why) | Failure::Lost(why) = failure {
                whys.push(format!("{} ({why})", self.members[*member].endpoint));
            }
        }
        Error::Unavailable(format!("no etcd member answers: {}", whys.join(", ")))
    }

    /// A transaction that writes. It is sent once, and again only if it was certainly not done.
    ///
    /// The transaction that fills etcd's quota may be refused although it was done, so its outcome is unknown. From then on, each
    /// commit first asks etcd whether it is still full. If it is, nothing is sent, and nothing was written.
    pub(super) async fn commit(&self, request: TxnRequest) -> Result<TxnResponse> {
        if self.full.load(Ordering::Relaxed) {
            if self.is_full().await {
                return Err(Error::Unavailable(FULL.into()));
            }
            self.full.store(false, Ordering::Relaxed);
        }
        let mut failures = Vec::new();
        for _ in 0..self.members.len() {
            let member = self.current();
            let failure = match self.call(member, path::TXN, request.clone(), COMMIT_DEADLINE).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let may_repeat = failure.wrote_nothing();
            if matches!(failure, Failure::Refused(Refusal::Full, _)) {
                self.full.store(true, Ordering::Relaxed);
            }
            if failure.is_of_member() {
                self.turn_from(member, &failure);
            }
            if !may_repeat || !failure.is_of_member() {
                return Err(failure.into_commit_error(self.user()));
            }
            failures.push((member, failure));
        }
        Err(self.combined(failures))
    }

    /// Whether etcd refuses writes because it is full; `false` if that is unknown.
    async fn is_full(&self) -> bool {
        // A request without an action asks for all alarms.
        let alarms: Result<AlarmResponse, _> =
            self.call(self.current(), path::ALARM, (), READ_DEADLINE).await;
        alarms.is_ok_and(|answer| answer.alarms.iter().any(|alarm| alarm.alarm == 1))
    }

    /// One call to one member. If the token has expired, this fetches a new one and repeats the call, which is safe because
    /// nothing was done.
    pub(super) async fn call<Q, A>(
        &self,
        member: usize,
        path: &'static str,
        message: Q,
        deadline: Duration,
    ) -> Result<A, Failure>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let token = self.token(member).await?;
        let again = self.credentials.is_some().then(|| message.clone());
        let first = self.attempt(member, path, message, &token, deadline).await;
        let Some(again) = again.filter(|_| matches!(first, Err(Failure::Refused(Refusal::Token, _)))) else {
            return first;
        };
        let token = self.renewed(member, token.generation).await?;
        self.attempt(member, path, again, &token, deadline).await
    }

    async fn attempt<Q, A>(
        &self,
        member: usize,
        path: &'static str,
        message: Q,
        token: &Token,
        deadline: Duration,
    ) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = self.grpc(member);
        let request = with_headers(Request::new(message), token);
        let answer = async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(request, PathAndQuery::from_static(path), codec).await
        };
        within(deadline, answer).await
    }

    pub(super) async fn watch(
        &self,
        member: usize,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        let token = self.token(member).await?;
        let mut grpc = self.grpc(member);
        let request = with_headers(Request::new(requests), &token);
        let answer = async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            grpc.streaming(request, PathAndQuery::from_static(path::WATCH), codec).await
        };
        within(READ_DEADLINE, answer).await
    }

    /// Drops the token, so that the next call fetches a new one.
    pub(super) fn forget_token(&self) {
        if let Some(credentials) = &self.credentials {
            credentials.token.lock().value = None;
        }
    }

    fn grpc(&self, member: usize) -> Grpc<Channel> {
        Grpc::new(self.members[member].channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    async fn token(&self, member: usize) -> Result<Token, Failure> {
        let Some(credentials) = &self.credentials else { return Ok(Token::default()) };
        let token = credentials.token();
        if token.value.is_some() { Ok(token) } else { self.renewed(member, token.generation).await }
    }

    /// A token that is newer than `generation`.
    async fn renewed(&self, member: usize, generation: u64) -> Result<Token, Failure> {
        let Some(credentials) = &self.credentials else { return Ok(Token::default()) };
        let _turn = credentials.renewing.lock().await;
        let newest = credentials.token();
        if newest.generation != generation {
            return Ok(newest);
        }
        let message =
            AuthenticateRequest { name: credentials.user.clone(), password: credentials.password.clone() };
        let no_token = Token::default();
        let answer: Result<AuthenticateResponse, _> =
            self.attempt(member, path::AUTHENTICATE, message, &no_token, AUTHENTICATE_DEADLINE).await;
        let value = match answer {
            Ok(answer) => MetadataValue::try_from(answer.token).ok(),
            Err(Failure::Refused(_, text)) if text.contains("authentication is not enabled") => None,
            // The password is wrong, or a member does not answer. The actual call was not sent yet.
            Err(failure) if failure.wrote_nothing() => return Err(failure),
            Err(failure) => return Err(Failure::Unsent(format!("authentication: {}", failure.into_text()))),
        };
        let token = Token { value, generation: generation + 1 };
        *credentials.token.lock() = token.clone();
        Ok(token)
    }
}

/// The answer to a call, which is lost after the deadline.
async fn within<A>(
    deadline: Duration,
    answer: impl Future<Output = Result<tonic::Response<A>, Status>>,
) -> Result<A, Failure> {
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(Failure::from_status(&status)),
        Err(_) => Err(Failure::Lost(format!("no answer within {} s", deadline.as_secs()))),
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))
}

fn with_headers<T>(mut request: Request<T>, token: &Token) -> Request<T> {
    let headers = request.metadata_mut();
    headers.insert(LEADER_HEADER, MetadataValue::from_static("true"));
    if let Some(token) = &token.value {
        headers.insert(TOKEN_HEADER, token.clone());
    }
    request
}
