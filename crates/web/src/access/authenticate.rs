//! Credentials: from headers to a [`Caller`].
//!
//! Accepted are, in this order: `Authorization: Bearer`, with a token or a JSON Web Token; `Authorization: Basic`, with a user's name and password or
//! with a token in place of the password; the cookie of a session; and a client certificate that names a user. Credentials that are wrong refuse a request, also
//! where none are needed.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use async_recursion::async_recursion as boxed;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use turnwise_identity::session::{Session, SessionKey};
use turnwise_identity::{Secret, Token, User};
use turnwise_queue::timestamp;
use turnwise_telemetry::ThrottledLog;

use super::audit::{Audited, is_audited};
use super::long_requests::LongRequest;
use super::rights::Right;
use super::{Budget, Caller, How, Identities, rights};
use crate::Web;
use crate::v1_error::V1Error;

/// The name of the cookie, as in CouchDB.
const COOKIE: &str = "AuthSession";
/// How long a session lasts without a request, as in CouchDB.
const SESSION: Duration = Duration::from_secs(600);
/// A request gets a new cookie when its session is older than this part of the longest time.
const RENEWED_AFTER: u64 = SESSION.as_secs() / 10;
/// A session may be this much ahead of this node's clock, because another node has started it.
const MAX_CLOCK_DIFFERENCE_S: u64 = 60;

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// The DNS names of its certificate, which the listener has verified.
    pub names: Option<Arc<[String]>>,
}

impl Peer {
    /// The other end of a request's connection.
    pub fn of(request: &Request) -> Peer {
        let unknown = || Peer { address: Ipv4Addr::UNSPECIFIED.into(), tls: false, names: None };
        request.extensions().get::<Peer>().cloned().unwrap_or_else(unknown)
    }

    /// The scheme of URLs at which it reaches this server.
    pub fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// Sets the [`Caller`] of a request, or refuses it.
#[boxed]
pub async fn authenticate(State(web): State<Web>, request: Request, next: Next) -> Response {
    let peer = Peer::of(&request);
    let audited = web.audit.as_ref().filter(|_| is_audited(request.method(), request.uri().path()));
    if audited.is_some_and(|audit| !audit.is_ready()) {
        return web.refuse(&request, no_audit());
    }
    let mut audited = audited.map(|audit| {
        // People compare it with the logs of other programs.
        let at = timestamp(web.store.runtime().machine_us());
        Audited::new(audit.clone(), at, peer.address, request.method(), request.uri().path())
    });
    let mut response = handle(&web, &peer, request, next, audited.as_mut()).await;
    if let Some(mut audited) = audited {
        if let Some(LoggedIn(who)) = response.extensions_mut().remove() {
            audited.logged_in(who);
        }
        audited.ended(response.status());
    }
    if web.names.is_https() {
        secure_cookies(&mut response);
    }
    response
}

/// In a response: who has logged in with the request.
#[derive(Clone)]
pub struct LoggedIn(pub Option<String>);

/// Browsers reach this server by https, through a proxy: its cookie is not for connections without TLS.
fn secure_cookies(response: &mut Response) {
    for (name, value) in response.headers_mut() {
        if *name != header::SET_COOKIE {
            continue;
        }
        let Ok(cookie) = value.to_str() else { continue };
        if !cookie.ends_with(SECURE) {
            *value = HeaderValue::try_from(format!("{cookie}{SECURE}")).expect("a cookie and ASCII");
        }
    }
}

/// Keeps a cookie from connections without TLS.
const SECURE: &str = "; Secure";

async fn handle(
    web: &Web,
    peer: &Peer,
    mut request: Request,
    next: Next,
    audited: Option<&mut Audited>,
) -> Response {
    let identified = identify(web, request.headers(), peer, now_s(web)).await;
    if let Some(audited) = audited {
        audited.sent_by(identified.as_ref().ok().map(|identified| &identified.caller));
    }
    let allowed = identified.and_then(|identified| {
        let route = request.extensions().get::<MatchedPath>();
        // The requests of workers are charged where it is known whose worker it is.
        let is_of_worker = route.is_some_and(|route| rights::is_of_worker(request.method(), route.as_str()));
        if !is_of_worker || Right::Work.check(&identified.caller).is_err() {
            check_pace(web, &identified.caller)?;
        }
        // Handlers of CouchDB's API check their right themselves, because one route serves all of it.
        let right = route.map(|route| rights::v1(request.method(), route.as_str()));
        right.map_or(Ok(()), |right| right.check(&identified.caller)).map(|()| identified)
    });
    match allowed {
        Ok(Identified { caller, renewed }) => {
            // A change is not interrupted: it may have been made, and its response may be the only copy of a new token.
            let reads = !is_audited(request.method(), request.uri().path());
            let long = reads.then(|| LongRequest::new(web, &request, peer, &caller));
            request.extensions_mut().insert(caller);
            let mut response = match long {
                Some(long) => long.run(next.run(request)).await,
                None => next.run(request).await,
            };
            // A handler that has set the cookie itself knows better.
            if let Some(cookie) = renewed.filter(|_| !response.headers().contains_key(header::SET_COOKIE)) {
                response.headers_mut().insert(header::SET_COOKIE, cookie);
            }
            response
        }
        Err(error) => web.refuse(&request, error),
    }
}

/// Whether an identity has sent no more requests than it may.
fn check_pace(web: &Web, caller: &Caller) -> Result<(), V1Error> {
    let per_second = web.config.get().limits.requests_per_second;
    if per_second == 0 || caller.operates() {
        return Ok(());
    }
    let Some(identity) = caller.owner() else { return Ok(()) };
    web.pace.admit(Budget::Identity(identity), per_second, Instant::now()).map_err(|wait| {
        let hint = "send fewer, or send many jobs in one request; the header Retry-After has the time in s";
        V1Error::too_many("this identity sends too many requests", hint).retry_after(wait)
    })
}

fn no_audit() -> V1Error {
    let reason = "the audit log cannot be written, so nothing may be changed";
    let mut error = V1Error::unavailable(reason, "try again later; the server's log has the reason");
    error.retry_after_s = Some(10);
    error
}

pub(super) fn now_s(web: &Web) -> u64 {
    u64::try_from(web.now_us() / 1_000_000).unwrap_or_default()
}

pub(super) struct Identified {
    pub caller: Caller,
    /// A new cookie for the session.
    renewed: Option<HeaderValue>,
}

pub(super) async fn identify(
    web: &Web,
    headers: &HeaderMap,
    peer: &Peer,
    now_s: u64,
) -> Result<Identified, V1Error> {
    let identities = &web.identities;
    let Some(key) = identities.session_key().await? else {
        return Ok(Identified { caller: Caller::everyone(), renewed: None });
    };
    let plain = |caller| Ok(Identified { caller, renewed: None });
    match credentials(headers)? {
        Credentials::None => plain(match user_of(identities, peer).await? {
            Some(user) => Caller::user(&user, How::Certificate),
            None => Caller::nobody(),
        }),
        Credentials::Token(secret) => {
            let token = check_token(identities, &secret).await?;
            plain(Caller::token(&token.id, token.scopes.clone()))
        }
        Credentials::Jwt(token) => {
            let caller = web.jwt.as_ref().and_then(|jwt| jwt.caller(&token));
            plain(caller.ok_or_else(|| {
                let hint = "get a new one from the service that makes them";
                V1Error::unauthorized("this is no valid token", hint)
            })?)
        }
        Credentials::Password { name, password } => {
            let user = check_password(identities, peer, &name, &password).await?;
            plain(Caller::user(&user, How::Default))
        }
        Credentials::Session(text) => {
            // A browser sends an old cookie until the server replaces it. So an expired session is no error: it is none.
            let over = || Ok(Identified { caller: Caller::nobody(), renewed: Some(expired_cookie(peer)) });
            let Some(session) = Session::parse(&text) else { return over() };
            let age_s = now_s.saturating_sub(session.started_s);
            if age_s >= SESSION.as_secs() || session.started_s > now_s + MAX_CLOCK_DIFFERENCE_S {
                return over();
            }
            let started = match session.token_id() {
                Some(id) => {
                    let token = identities.token_by_id(id).await?;
                    let token = token.filter(|token| key.verifies_token(&session, token));
                    token.map(|token| with_token(&key, &token, now_s))
                }
                None => {
                    let user = identities.user(&session.name).await?;
                    let user = user.filter(|user| key.verifies(&session, user));
                    user.map(|user| with_password(&key, &user, now_s))
                }
            };
            let Some((caller, session)) = started else { return over() };
            let renewed = (age_s >= RENEWED_AFTER).then(|| cookie(&session, now_s, peer));
            Ok(Identified { caller, renewed })
        }
    }
}

/// The user whom the peer's certificate names.
async fn user_of(identities: &Identities, peer: &Peer) -> Result<Option<Arc<User>>, V1Error> {
    for name in peer.names.iter().flat_map(|names| names.iter()) {
        if let Some(user) = identities.user(name).await? {
            return Ok(Some(user));
        }
    }
    Ok(None)
}

/// A new session for the user with this password, or for the token that was sent as the name or the password: the caller, and
/// the cookie.
#[boxed]
pub async fn login(
    web: &Web,
    peer: &Peer,
    name: &str,
    password: &str,
) -> Result<(Caller, HeaderValue), V1Error> {
    let key = web.identities.session_key().await?.ok_or_else(wrong_password)?;
    let now_s = now_s(web);
    let (caller, session) = match Secret::parse(password).or_else(|| Secret::parse(name)) {
        Some(secret) => {
            let token = check_token(&web.identities, &secret).await?;
            with_token(&key, &token, now_s)
        }
        None => {
            let user = check_password(&web.identities, peer, name, password).await?;
            with_password(&key, &user, now_s)
        }
    };
    Ok((caller, cookie(&session, now_s, peer)))
}

/// The sender with a token, and the text of a session that starts now.
fn with_token(key: &SessionKey, token: &Token, now_s: u64) -> (Caller, String) {
    (Caller::token(&token.id, token.scopes.clone()), key.start_with_token(token, now_s))
}

/// The same for a user.
fn with_password(key: &SessionKey, user: &User, now_s: u64) -> (Caller, String) {
    (Caller::user(user, How::Cookie), key.start(user, now_s))
}

async fn check_token(identities: &Identities, secret: &Secret) -> Result<Arc<Token>, V1Error> {
    let token = identities.token(secret).await?;
    token.ok_or_else(|| {
        let hint = "turnwise tokens add makes a new one";
        V1Error::unauthorized("this token is unknown, revoked or expired", hint)
    })
}

/// With the reason of CouchDB.
fn wrong_password() -> V1Error {
    V1Error::unauthorized("Name or password is incorrect.", "correct the name or the password")
}

async fn check_password(
    identities: &Identities,
    peer: &Peer,
    name: &str,
    password: &str,
) -> Result<Arc<User>, V1Error> {
    match identities.check_password(peer.address, name, password).await? {
        Some(user) => Ok(user),
        None => {
            static LINES: ThrottledLog = ThrottledLog::new();
            if let Some(left_out) = LINES.line() {
                tracing::info!(address = %peer.address, left_out, "a login with a wrong name or password");
            }
            Err(wrong_password())
        }
    }
}

enum Credentials {
    None,
    Token(Secret),
    Jwt(String),
    Password { name: String, password: String },
    Session(String),
}

fn credentials(headers: &HeaderMap) -> Result<Credentials, V1Error> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = given.next() else {
        return Ok(session(headers).map_or(Credentials::None, Credentials::Session));
    };
    let hint = "send Authorization: Bearer with a token, or Basic with a name and a password";
    let bad = || V1Error::unauthorized("the header Authorization cannot be read", hint);
    if given.next().is_some() {
        return Err(V1Error::unauthorized("the header Authorization is given twice", hint));
    }
    let (scheme, value) = value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or_else(bad)?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        let token = Secret::parse(value).map(Credentials::Token);
        return Ok(token.unwrap_or_else(|| Credentials::Jwt(value.to_owned())));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(bad());
    }
    let text = BASE64_STANDARD.decode(value).or_else(|_| BASE64_STANDARD_NO_PAD.decode(value));
    let text = text.ok().and_then(|text| String::from_utf8(text).ok()).ok_or_else(bad)?;
    let (name, password) = text.split_once(':').ok_or_else(bad)?;
    // Clients that know only names and passwords send a token in place of one of them.
    Ok(match Secret::parse(password).or_else(|| Secret::parse(name)) {
        Some(secret) => Credentials::Token(secret),
        None => Credentials::Password { name: name.to_owned(), password: password.to_owned() },
    })
}

fn session(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut cookies =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.split_once('='));
    let (_, value) = cookies.find(|(name, _)| name.trim() == COOKIE)?;
    Some(value.trim().trim_matches('"').to_owned()).filter(|value| !value.is_empty())
}

fn cookie(session: &str, now_s: u64, peer: &Peer) -> HeaderValue {
    set_cookie(session, SESSION, Duration::from_secs(now_s), peer)
}

/// The cookie that ends a session in the browser.
pub fn expired_cookie(peer: &Peer) -> HeaderValue {
    set_cookie("", Duration::ZERO, Duration::ZERO, peer)
}

/// A cookie with both forms of its end: `nano` reads `Expires` only. `now` is the time since the Unix epoch.
fn set_cookie(value: &str, age: Duration, now: Duration, peer: &Peer) -> HeaderValue {
    let secure = if peer.tls { SECURE } else { "" };
    let (expires, age_s) = (httpdate::fmt_http_date(UNIX_EPOCH + now + age), age.as_secs());
    let text = format!(
        "{COOKIE}={value}; Version=1; Expires={expires}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Strict{secure}"
    );
    HeaderValue::try_from(text).expect("the value is base64")
}
