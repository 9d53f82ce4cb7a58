//! Logins that last for many requests: `POST /_session` at the server's root, and its cookie from then on.
//!
//! **Model.** A [`Session`] is one login at one server. All requests of all jobs with the same login share it. It has a
//! cookie, or must get one, or has learned that the server has no sessions. Each cookie has a number. A request keeps
//! the number of its cookie, so that its response is checked against that cookie and not against a later one.
//!
//! **Rules** (as in CouchDB's replicator, unless stated otherwise):
//! - A cookie is renewed before it expires: after nine tenths of its `Max-Age`, or without one after
//!   `session_refresh_interval_sec`. One request renews it, and the others continue with the old cookie. After its end
//!   they wait, because they would be anonymous, which some databases permit.
//! - A cookie that comes with a response replaces the current one.
//! - After a 401 or 403, the request is repeated once: immediately if its cookie has been renewed meanwhile, otherwise
//!   after a new login. A login less than five seconds old is taken as valid, and the response as final.
//! - A login request that itself requires basic authentication (401 with `WWW-Authenticate`) gets it.
//! - 404 means that the server has no sessions. Unlike in CouchDB, so does every other response that is neither a
//!   cookie, nor a rejection, nor a temporary failure: a proxy's own page, 405, 501. This is remembered for ten
//!   minutes.
//! - 401 and 403 reject the login: the password is wrong, or the account locked. A fallback would only try the same
//!   password again.
//! - `/_session` at the root of a host may belong to another application than the database. So a rejection or a failure (401, 403, 408,
//!   429, 5xx) counts only if it has the form of CouchDB's errors. A rejection counts only if the database is not under a path, where
//!   another CouchDB may have the root. Otherwise requests fall back to basic authentication, for a minute. The same applies to a cookie
//!   that a database under a path does not accept. Without a fallback, all of these are failures of the login.
//!
//! All requests that wait for a login receive its failure. A rejected login is reported to all further requests for
//! five seconds, so that a thousand jobs with a wrong password make one request.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderValue, SET_COOKIE, WWW_AUTHENTICATE};
use tokio::time::Instant;

use crate::endpoint::{Credentials, Endpoint};
use crate::error::Fault;
use crate::proxy::Proxy;
use crate::secret::{Scrubber, Secret};

/// The cookie's name.
const COOKIE: &str = "AuthSession";
/// A login this recent is taken as valid, whatever a response states. CouchDB's `session_min_update_interval`.
const YOUNG: Duration = Duration::from_secs(5);
/// A cookie is renewed after nine tenths of its lifetime.
const RENEWED_AT_TENTHS: u32 = 9;
/// The upper limit of `Max-Age`, whatever a server sends.
const LONGEST_AGE_SECONDS: u64 = 365 * 24 * 3600;
/// How long a server without sessions is not asked for one.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The same if its response leaves it open whether it has sessions.
const REMEMBERED_IN_DOUBT: Duration = Duration::from_secs(60);
/// The most logins that are kept. A job with a further login has a session of its own.
const MAX_SESSIONS: usize = 4_096;
/// A shorter cookie is not removed from texts: the removal would garble them, and a short cookie protects nothing.
const MIN_HIDDEN_BYTES: usize = 8;

/// What identifies a login.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    /// `http://host:port`.
    origin: String,
    /// Whether the database is not at the root of its server, as in `http://host/path/db`.
    under_path: bool,
    credentials: Credentials,
    /// A gateway may identify its users by these.
    headers: Vec<(String, Secret)>,
    /// Some servers bind a session to the client's address.
    proxy: Option<Proxy>,
}

/// All logins of a process.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<Key, Arc<Session>>>);

impl Sessions {
    /// The session that all requests with these credentials to `endpoint`'s server share.
    pub fn of(
        &self,
        endpoint: &Endpoint,
        credentials: &Credentials,
        refresh_interval: Duration,
    ) -> Arc<Session> {
        let key = Key {
            origin: endpoint.url().origin().ascii_serialization(),
            under_path: endpoint.is_under_path(),
            credentials: credentials.clone(),
            headers: endpoint.headers().to_vec(),
            proxy: endpoint.proxy().cloned(),
        };
        let mut sessions = self.0.lock().expect("no thread panics while it holds this lock");
        if let Some(session) = sessions.get(&key) {
            session.state().refresh_interval = refresh_interval;
            return Arc::clone(session);
        }
        if sessions.len() >= MAX_SESSIONS {
            // Only the table holds these sessions, so a later job needs at most one more request.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        let session = Arc::new(Session::new(credentials, refresh_interval, key.under_path));
        if sessions.len() < MAX_SESSIONS {
            sessions.insert(key, Arc::clone(&session));
        }
        session
    }

    /// Makes all logins look older, for tests.
    pub fn age(&self, by: Duration) {
        let sessions = self.0.lock().expect("no thread panics while it holds this lock");
        sessions.values().for_each(|session| session.age(by));
    }
}

/// A request to `/_session`.
pub(crate) struct Login {
    /// The form, which contains the password.
    pub body: Bytes,
    /// Only for servers that require it.
    pub authorization: Option<HeaderValue>,
}

/// The type of a login's body.
pub(crate) const LOGIN_TYPE: &str = "application/x-www-form-urlencoded";

/// The response to a login.
pub(crate) struct LoginAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The error that belongs to the status, unless the status is a success.
    pub fault: Option<Fault>,
}

/// What a request must carry: a cookie, which has a number. `None`: the password, because the server has no sessions.
pub(crate) type Pass = Option<(HeaderValue, u64)>;

/// One login at one server.
pub(crate) struct Session {
    credentials: Credentials,
    /// The server's `/_session` may be another server's.
    under_path: bool,
    state: Mutex<State>,
    /// Held during a login.
    logging_in: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "Session(cookie {} of {:?}, {:?})", state.number, self.credentials.user, state.standing)
    }
}

/// The state of a login.
struct State {
    standing: Standing,
    /// The number of the latest cookie.
    number: u64,
    /// The previous cookie: requests that carried it may still get responses.
    earlier: Option<Secret>,
    /// Whether the login request itself needs basic authentication.
    basic: bool,
    refresh_interval: Duration,
    /// Number of logins that got a response.
    logins: u64,
    /// The failure of the last login, if it failed, and the time until which it is not repeated.
    failed: Option<(Fault, Instant)>,
}

#[derive(Debug)]
enum Standing {
    /// No login has been made, or the cookie has expired.
    LoggedOut,
    Cookie(Cookie),
    /// The server has no sessions, as far as is known until this time.
    NoSessions(Instant),
    /// The same, because of a response that may be another application's.
    InDoubt(Instant),
}

#[derive(Debug)]
struct Cookie {
    value: Secret,
    /// The time of the login. A cookie that came with a response is younger, which does not prove that the login is still valid.
    since: Instant,
    /// When to renew it.
    renew: Instant,
    /// When it may have expired.
    end: Instant,
}

/// What a request does about its cookie.
#[derive(Debug)]
enum Step {
    Go(Pass),
    /// Use this cookie, and renew it meanwhile.
    GoAndRenew(Pass),
    LogIn,
}

/// The meaning of a response to a login.
#[derive(Debug)]
enum Verdict {
    Cookie(Secret, Option<Duration>),
    NoSessions,
    /// The login must be repeated with basic authentication.
    WantsBasic,
    /// The login is rejected, or fails, perhaps by another application.
    InDoubt(Fault),
    /// The login is rejected.
    Refused(Fault),
    /// The login may succeed later.
    Failed(Fault),
}

impl State {
    /// `falls_back`: the request can do without a session.
    fn step(&self, falls_back: bool, now: Instant) -> Step {
        match &self.standing {
            Standing::Cookie(cookie) if now < cookie.end => {
                let pass = Some((header(&cookie.value), self.number));
                if now < cookie.renew { Step::Go(pass) } else { Step::GoAndRenew(pass) }
            }
            Standing::NoSessions(until) if now < *until => Step::Go(None),
            Standing::InDoubt(until) if falls_back && now < *until => Step::Go(None),
            _ => Step::LogIn,
        }
    }

    /// Records a new cookie. The same cookie again changes nothing.
    fn renew(&mut self, value: Secret, max_age: Option<Duration>, now: Instant) {
        let (earlier, since) = match &self.standing {
            Standing::Cookie(cookie) if cookie.value == value => return,
            Standing::Cookie(cookie) => (Some(cookie.value.clone()), cookie.since),
            _ => (None, now),
        };
        self.earlier = earlier.or(self.earlier.take());
        self.number += 1;
        self.failed = None;
        let life = max_age.unwrap_or(self.refresh_interval * 10 / RENEWED_AT_TENTHS);
        let renew = now + life * RENEWED_AT_TENTHS / 10;
        self.standing = Standing::Cookie(Cookie { value, since, renew, end: now + life });
    }

    /// A request with cookie `number` got 401 or 403. Returns whether to repeat it.
    fn refused(&mut self, number: u64, now: Instant) -> bool {
        if self.number > number {
            return true;
        }
        match &mut self.standing {
            Standing::Cookie(cookie) if now < cookie.since + YOUNG => {
                // The login may still have expired, so it is checked soon.
                cookie.renew = cookie.renew.min(cookie.since + YOUNG);
                false
            }
            Standing::Cookie(cookie) => {
                cookie.end = now;
                true
            }
            Standing::LoggedOut | Standing::NoSessions(_) | Standing::InDoubt(_) => true,
        }
    }

    /// The database does not accept cookie `number`, which is a new one: the cookie may be another server's.
    fn not_here(&mut self, number: u64, now: Instant) {
        if self.number == number && matches!(self.standing, Standing::Cookie(_)) {
            tracing::info!(
                "requests carry the password, because the database does not accept the session of its host"
            );
            self.standing = Standing::InDoubt(now + REMEMBERED_IN_DOUBT);
        }
    }

    /// The cookie was not renewed; schedules the next attempt for a little later.
    fn postpone(&mut self, now: Instant) {
        if let Standing::Cookie(cookie) = &mut self.standing {
            cookie.renew = now + YOUNG;
        }
    }

    /// Records the result of a login. `true`: the login must be repeated.
    fn logged_in(&mut self, verdict: Verdict, now: Instant) -> Result<bool, Fault> {
        self.logins += 1;
        match verdict {
            Verdict::Cookie(value, max_age) => {
                // Even the same cookie has a new lifetime.
                let before = std::mem::replace(&mut self.standing, Standing::LoggedOut);
                if let Standing::Cookie(cookie) = before {
                    self.earlier = Some(cookie.value);
                }
                self.renew(value, max_age, now);
                Ok(false)
            }
            Verdict::NoSessions => {
                self.standing = Standing::NoSessions(now + REMEMBERED);
                self.failed = None;
                Ok(false)
            }
            Verdict::InDoubt(fault) => {
                tracing::info!("requests carry the password, because a login has failed: {fault}");
                self.standing = Standing::InDoubt(now + REMEMBERED_IN_DOUBT);
                self.failed = None;
                Ok(false)
            }
            Verdict::WantsBasic => {
                self.basic = true;
                Ok(true)
            }
            Verdict::Refused(fault) => {
                self.failed = Some((fault.clone(), now + YOUNG));
                Err(fault)
            }
            Verdict::Failed(fault) => {
                self.failed = Some((fault.clone(), now));
                Err(fault)
            }
        }
    }
}

impl Session {
    fn new(credentials: &Credentials, refresh_interval: Duration, under_path: bool) -> Self {
        let state = State {
            standing: Standing::LoggedOut,
            number: 0,
            earlier: None,
            basic: false,
            refresh_interval,
            logins: 0,
            failed: None,
        };
        Self {
            credentials: credentials.clone(),
            under_path,
            state: Mutex::new(state),
            logging_in: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    /// What the next request must carry. If necessary, logs in first by `send`. `falls_back`: the request can do without a session.
    ///
    /// # Errors
    /// The errors of `send`, or the server's rejection of the login.
    pub(crate) async fn pass<F>(&self, falls_back: bool, send: impl Fn(Login) -> F) -> Result<Pass, Fault>
    where
        F: Future<Output = Result<LoginAnswer, Fault>>,
    {
        let (step, logins) = {
            let state = self.state();
            (state.step(falls_back, Instant::now()), state.logins)
        };
        match step {
            Step::Go(pass) => return Ok(pass),
            Step::GoAndRenew(pass) => {
                let Ok(_only_one) = self.logging_in.try_lock() else { return Ok(pass) };
                if self.state().logins != logins {
                    return Ok(pass);
                }
                // The old cookie is still valid for a while.
                if let Err(fault) = self.log_in(falls_back, &send).await {
                    tracing::warn!("a session was not renewed: {fault}");
                    self.state().postpone(Instant::now());
                    return Ok(pass);
                }
            }
            Step::LogIn => {
                let _only_one = self.logging_in.lock().await;
                {
                    let state = self.state();
                    if let Step::Go(pass) | Step::GoAndRenew(pass) = state.step(falls_back, Instant::now()) {
                        return Ok(pass);
                    }
                    if let Some((fault, until)) = &state.failed
                        && (state.logins != logins || Instant::now() < *until)
                    {
                        return Err(fault.clone());
                    }
                }
                self.log_in(falls_back, &send).await?;
            }
        }
        match self.state().step(falls_back, Instant::now()) {
            Step::Go(pass) | Step::GoAndRenew(pass) => Ok(pass),
            Step::LogIn => Err(Fault::Unexpected("a session that ends at once".to_owned())),
        }
    }

    async fn log_in<F>(&self, falls_back: bool, send: &impl Fn(Login) -> F) -> Result<(), Fault>
    where
        F: Future<Output = Result<LoginAnswer, Fault>>,
    {
        loop {
            let basic = self.state().basic;
            let body = url::form_urlencoded::Serializer::new(String::new())
                .append_pair("name", &self.credentials.user)
                .append_pair("password", self.credentials.password.reveal())
                .finish();
            let authorization = basic.then(|| self.credentials.authorization());
            let verdict = match send(Login { body: body.into(), authorization }).await {
                Ok(answer) => judge(answer, basic, self.under_path, falls_back),
                Err(fault) => Verdict::Failed(fault),
            };
            if !self.state().logged_in(verdict, Instant::now())? {
                return Ok(());
            }
        }
    }

    /// Checks the response to a request with cookie `number`. Returns whether to repeat the request. `falls_back` is as in
    /// [`Session::pass`].
    pub(crate) fn answered(
        &self,
        number: u64,
        falls_back: bool,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> bool {
        let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if !refused && !headers.contains_key(SET_COOKIE) {
            return false;
        }
        let mut state = self.state();
        if refused {
            let (again, now) = (state.refused(number, Instant::now()), Instant::now());
            if !again && falls_back && self.under_path && status == StatusCode::UNAUTHORIZED {
                state.not_here(number, now);
                return true;
            }
            return again;
        }
        // The cookie of an older request may be older than the current one.
        if number == state.number
            && let Some((value, max_age)) = cookie(headers)
        {
            state.renew(value, max_age, Instant::now());
        }
        false
    }

    /// A request with cookie `number` was cut off. A server that does not accept the cookie any more may do so, because
    /// it does not read a long body. The next request renews the cookie.
    pub(crate) fn broke_off(&self, number: u64) {
        let (mut state, now) = (self.state(), Instant::now());
        if state.number == number
            && let Standing::Cookie(cookie) = &mut state.standing
            && now >= cookie.since + YOUNG
        {
            cookie.renew = cookie.renew.min(now);
        }
    }

    /// Makes the login look older.
    fn age(&self, by: Duration) {
        if let Standing::Cookie(cookie) = &mut self.state().standing {
            for moment in [&mut cookie.since, &mut cookie.renew, &mut cookie.end] {
                *moment -= by;
            }
        }
    }

    /// `text` without the session's cookies.
    pub(crate) fn hide(&self, text: String) -> String {
        let state = self.state();
        let current = match &state.standing {
            Standing::Cookie(cookie) => Some(&cookie.value),
            _ => None,
        };
        let mut scrubber = Scrubber::default();
        for secret in current.into_iter().chain(&state.earlier) {
            if secret.reveal().len() >= MIN_HIDDEN_BYTES {
                scrubber.add(None, secret);
            }
        }
        scrubber.scrub(&text)
    }
}

/// `falls_back`: the request can do without a session.
fn judge(
    LoginAnswer { status, headers, fault }: LoginAnswer,
    was_basic: bool,
    under_path: bool,
    falls_back: bool,
) -> Verdict {
    let is_couchdbs = matches!(fault, Some(Fault::Status { of_couchdb: true, .. }));
    let fault = || fault.unwrap_or_else(|| Fault::Unexpected(format!("a login was answered {status}")));
    match status {
        status if status.is_success() => match cookie(&headers) {
            Some((value, max_age)) => Verdict::Cookie(value, max_age),
            None => Verdict::NoSessions,
        },
        StatusCode::UNAUTHORIZED if headers.contains_key(WWW_AUTHENTICATE) && !was_basic => {
            Verdict::WantsBasic
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            match falls_back && (!is_couchdbs || under_path) {
                true => Verdict::InDoubt(fault()),
                false => Verdict::Refused(fault()),
            }
        }
        StatusCode::NOT_IMPLEMENTED => Verdict::NoSessions,
        status if status.is_server_error() || matches!(status.as_u16(), 408 | 429) => {
            if falls_back && !is_couchdbs { Verdict::InDoubt(fault()) } else { Verdict::Failed(fault()) }
        }
        _ => Verdict::NoSessions,
    }
}

fn header(value: &Secret) -> HeaderValue {
    let text = format!("{COOKIE}={}", value.reveal());
    let mut header = HeaderValue::from_str(&text).expect("it came in a header");
    header.set_sensitive(true);
    header
}

/// The session's cookie in the `Set-Cookie` headers, and its `Max-Age`. An empty cookie ends a session.
fn cookie(headers: &HeaderMap) -> Option<(Secret, Option<Duration>)> {
    headers.get_all(SET_COOKIE).iter().filter_map(|set| set.to_str().ok()).find_map(|set| {
        let mut parts = set.split(';').map(|part| part.split_once('=').unwrap_or((part, "")));
        let (name, value) = parts.next()?;
        let value = value.trim().trim_matches('"');
        if !name.trim().eq_ignore_ascii_case(COOKIE) || value.is_empty() {
            return None;
        }
        let mut ages = parts.filter(|(name, _)| name.trim().eq_ignore_ascii_case("max-age"));
        let max_age = ages.next().and_then(|(_, age)| age.trim().parse::<u64>().ok());
        let max_age = max_age.map(|seconds| Duration::from_secs(seconds.min(LONGEST_AGE_SECONDS)));
        Some((Secret::new(value), max_age))
    })
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
