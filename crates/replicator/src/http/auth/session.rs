//! A login that is good for many requests: `POST /_session` at the server's root, and its cookie from then on.
//!
//! **Model.** A [`Session`] is one login at one server, shared by all requests of all jobs that log in there in the same way. It
//! has a cookie, or must get one, or knows that the server has no sessions. Each cookie has a number; a request remembers
//! which one it went with, so that its answer is judged by that one and not by what has come since.
//!
//! **Rules** (those of CouchDB's replicator, where not said otherwise):
//! - A cookie is renewed before it ends: after nine tenths of its `Max-Age`, or after `session_refresh_interval_sec` where there is none.
//!   One request does it, the others go on with the old cookie; they would be anonymous after its end, which some
//!   databases permit, so then they wait.
//! - A cookie that comes with an answer is the new one.
//! - After a 401 or 403 the request is repeated once: at once if its cookie has been renewed meanwhile, otherwise after a new login. A
//!   login less than five seconds old has not ended; the answer means what it says.
//! - A login that wants basic authentication itself (401 with `WWW-Authenticate`) gets it.
//! - 404 means that there are no sessions here. Here, so does every other answer that is neither a cookie nor a refusal nor a
//!   passing failure: a proxy's own page, 405, 501. This is remembered for ten minutes.
//! - 401 and 403 are refusals: the password is wrong, or the account locked. Falling back would only try the same password again.
//!
//! A failed login is told to all who waited for it, and a refused one for five seconds to everybody: a thousand jobs with a
//! wrong password are one request then.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderValue, SET_COOKIE, WWW_AUTHENTICATE};
use tokio::time::Instant;

use super::basic;
use crate::endpoint::{Credentials, Endpoint};
use crate::error::Fault;
use crate::http::Proxy;
use crate::secret::{Scrubber, Secret};

/// The cookie's name.
const COOKIE: &str = "AuthSession";
/// A login this young has not ended, whatever an answer says. CouchDB's `session_min_update_interval`.
const YOUNG: Duration = Duration::from_secs(5);
/// A cookie is renewed when it has lived nine tenths of its life.
const RENEWED_AT_TENTHS: u32 = 9;
/// No `Max-Age` counts for more, whatever a server says.
const LONGEST_AGE_SECONDS: u64 = 365 * 24 * 3600;
/// For how long a server without sessions is not asked for one.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Logins that are kept at most. A job that comes with one more has a session of its own.
const MAX_SESSIONS: usize = 4_096;
/// A cookie shorter than this is not looked for in texts: it would garble them, and keeps no secret.
const MIN_HIDDEN_BYTES: usize = 8;

/// What tells one login from another.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// `http://host:port`.
    origin: String,
    user: String,
    password: Secret,
    /// A gateway may know its users by these.
    headers: Vec<(String, Secret)>,
    /// Some servers bind a session to the address that it was opened from.
    proxy: Option<Proxy>,
}

impl Key {
    fn new(endpoint: &Endpoint, credentials: &Credentials) -> Self {
        Self {
            origin: endpoint.url().origin().ascii_serialization(),
            user: credentials.user.clone(),
            password: credentials.password.clone(),
            headers: endpoint.headers().to_vec(),
            proxy: endpoint.proxy().cloned(),
        }
    }
}

/// All logins of a process.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<Key, Arc<Session>>>);

impl Sessions {
    /// The session of everybody who logs in at `endpoint`'s server with these credentials.
    pub fn of(
        &self,
        endpoint: &Endpoint,
        credentials: &Credentials,
        refresh_interval: Duration,
    ) -> Arc<Session> {
        let key = Key::new(endpoint, credentials);
        let mut sessions = self.0.lock().expect("nobody panics with it");
        if let Some(session) = sessions.get(&key) {
            session.state().refresh_interval = refresh_interval;
            return Arc::clone(session);
        }
        if sessions.len() >= MAX_SESSIONS {
            // Only the table holds them: no job will miss more than one request.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        let session = Arc::new(Session::new(credentials, refresh_interval));
        if sessions.len() < MAX_SESSIONS {
            sessions.insert(key, Arc::clone(&session));
        }
        session
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.0.lock().expect("nobody panics with it").len())
    }
}

/// A request to `/_session`.
pub(crate) struct Login {
    /// A form. It holds the password.
    pub body: Bytes,
    /// Only for servers that want it.
    pub authorization: Option<HeaderValue>,
}

/// The type of a login's body.
pub(crate) const LOGIN_TYPE: &str = "application/x-www-form-urlencoded";

/// The answer to it.
pub(crate) struct LoginAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The status in words, where it is no success.
    pub fault: Option<Fault>,
}

/// What a request should carry.
#[derive(Debug)]
pub(super) enum Pass {
    /// The cookie, and its number.
    Cookie(HeaderValue, u64),
    /// The server has no sessions.
    None,
}

/// One login at one server.
pub(crate) struct Session {
    credentials: Credentials,
    state: Mutex<State>,
    /// Whoever logs in holds it.
    logging_in: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "Session(cookie {} of {:?}, {:?})", state.number, self.credentials.user, state.standing)
    }
}

/// What is known of a login.
struct State {
    standing: Standing,
    /// The number of the latest cookie.
    number: u64,
    /// The cookie before: answers to requests that went with it still come.
    earlier: Option<Secret>,
    /// Whether the login itself needs basic authentication.
    basic: bool,
    refresh_interval: Duration,
    /// Logins that have been answered.
    logins: u64,
    /// How the last of them failed, if it did, and until when nobody need ask again.
    failed: Option<(Fault, Instant)>,
}

#[derive(Debug)]
enum Standing {
    /// Nobody has asked yet, or the cookie has ended.
    LoggedOut,
    Cookie(Cookie),
    /// The server has no sessions; known since then.
    NoSessions(Instant),
}

#[derive(Debug)]
struct Cookie {
    value: Secret,
    /// When the login was made that it goes back to. A cookie that came with an answer is younger, and proves nothing of the login.
    since: Instant,
    /// When it is to be renewed.
    renew: Instant,
    /// When it may have ended.
    end: Instant,
}

/// What a request does about its cookie.
#[derive(Debug)]
enum Step {
    Go(Pass),
    /// Go with this one, and have it renewed meanwhile.
    GoAndRenew(Pass),
    LogIn,
}

/// What an answer to a login means.
#[derive(Debug)]
enum Verdict {
    Cookie(Secret, Option<Duration>),
    NoSessions,
    /// Once more, with basic authentication.
    WantsBasic,
    /// The login is wrong.
    Refused(Fault),
    /// It may go well in a moment.
    Failed(Fault),
}

impl State {
    fn step(&self, now: Instant) -> Step {
        match &self.standing {
            Standing::Cookie(cookie) if now < cookie.end => {
                let pass = Pass::Cookie(header(&cookie.value), self.number);
                if now < cookie.renew { Step::Go(pass) } else { Step::GoAndRenew(pass) }
            }
            Standing::NoSessions(since) if now < *since + REMEMBERED => Step::Go(Pass::None),
            _ => Step::LogIn,
        }
    }

    /// A cookie has come. The same one again is no news.
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

    /// A request with cookie `number` was answered 401 or 403. Whether it is worth repeating.
    fn refused(&mut self, number: u64, now: Instant) -> bool {
        if self.number > number {
            return true;
        }
        match &mut self.standing {
            Standing::Cookie(cookie) if now < cookie.since + YOUNG => {
                // It may have ended all the same, so somebody shall see before long.
                cookie.renew = cookie.renew.min(cookie.since + YOUNG);
                false
            }
            Standing::Cookie(cookie) => {
                cookie.end = now;
                true
            }
            Standing::LoggedOut | Standing::NoSessions(_) => true,
        }
    }

    /// The cookie was not renewed; that is tried again a little later.
    fn postpone(&mut self, now: Instant) {
        if let Standing::Cookie(cookie) = &mut self.standing {
            cookie.renew = now + YOUNG;
        }
    }

    /// What a login has brought. `true`: it is to be tried once more.
    fn logged_in(&mut self, verdict: Verdict, now: Instant) -> Result<bool, Fault> {
        self.logins += 1;
        match verdict {
            Verdict::Cookie(value, max_age) => {
                // Also if it is the same one, it lives anew.
                let before = std::mem::replace(&mut self.standing, Standing::LoggedOut);
                if let Standing::Cookie(cookie) = before {
                    self.earlier = Some(cookie.value);
                }
                self.renew(value, max_age, now);
                Ok(false)
            }
            Verdict::NoSessions => {
                self.standing = Standing::NoSessions(now);
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
    fn new(credentials: &Credentials, refresh_interval: Duration) -> Self {
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
            state: Mutex::new(state),
            logging_in: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// What the next request should carry; logs in first, if it must, by `send`.
    ///
    /// # Errors
    /// What `send` answers, or what the server says of the login.
    pub(super) async fn pass<F>(&self, send: impl Fn(Login) -> F) -> Result<Pass, Fault>
    where
        F: Future<Output = Result<LoginAnswer, Fault>>,
    {
        let (step, logins) = {
            let state = self.state();
            (state.step(Instant::now()), state.logins)
        };
        match step {
            Step::Go(pass) => return Ok(pass),
            Step::GoAndRenew(pass) => {
                let Ok(_only_one) = self.logging_in.try_lock() else { return Ok(pass) };
                if self.state().logins != logins {
                    return Ok(pass);
                }
                // The old one is good for a while.
                if let Err(fault) = self.log_in(&send).await {
                    tracing::warn!("a session was not renewed: {fault}");
                    self.state().postpone(Instant::now());
                    return Ok(pass);
                }
            }
            Step::LogIn => {
                let _only_one = self.logging_in.lock().await;
                {
                    let state = self.state();
                    if let Step::Go(pass) | Step::GoAndRenew(pass) = state.step(Instant::now()) {
                        return Ok(pass);
                    }
                    if let Some((fault, until)) = &state.failed
                        && (state.logins != logins || Instant::now() < *until)
                    {
                        return Err(fault.clone());
                    }
                }
                self.log_in(&send).await?;
            }
        }
        match self.state().step(Instant::now()) {
            Step::Go(pass) | Step::GoAndRenew(pass) => Ok(pass),
            Step::LogIn => Err(Fault::Unexpected("a session that ends at once".to_owned())),
        }
    }

    async fn log_in<F>(&self, send: &impl Fn(Login) -> F) -> Result<(), Fault>
    where
        F: Future<Output = Result<LoginAnswer, Fault>>,
    {
        loop {
            let basic = self.state().basic;
            let body = url::form_urlencoded::Serializer::new(String::new())
                .append_pair("name", &self.credentials.user)
                .append_pair("password", self.credentials.password.reveal())
                .finish();
            let authorization = basic.then(|| basic::authorization(&self.credentials));
            let verdict = match send(Login { body: body.into(), authorization }).await {
                Ok(answer) => judge(answer, basic),
                Err(fault) => Verdict::Failed(fault),
            };
            if !self.state().logged_in(verdict, Instant::now())? {
                return Ok(());
            }
        }
    }

    /// Looks at the answer to a request that went with cookie `number`. Whether the request is worth repeating.
    pub(super) fn answered(&self, number: u64, status: StatusCode, headers: &HeaderMap) -> bool {
        let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if !refused && !headers.contains_key(SET_COOKIE) {
            return false;
        }
        let mut state = self.state();
        if refused {
            return state.refused(number, Instant::now());
        }
        // That of an older request may be older than ours.
        if number == state.number
            && let Some((value, max_age)) = cookie(headers)
        {
            state.renew(value, max_age, Instant::now());
        }
        false
    }

    /// A request with cookie `number` was cut off: a server may do so that does not know the cookie any more, and will not read a
    /// long body for that. The next request renews it.
    pub(super) fn broke_off(&self, number: u64) {
        let (mut state, now) = (self.state(), Instant::now());
        if state.number == number
            && let Standing::Cookie(cookie) = &mut state.standing
            && now >= cookie.since + YOUNG
        {
            cookie.renew = cookie.renew.min(now);
        }
    }

    /// Makes the login older than it is.
    #[cfg(test)]
    pub(in crate::http) fn age(&self, by: Duration) {
        if let Standing::Cookie(cookie) = &mut self.state().standing {
            for moment in [&mut cookie.since, &mut cookie.renew, &mut cookie.end] {
                *moment -= by;
            }
        }
    }

    /// `text` without the cookies.
    pub(super) fn hide(&self, text: String) -> String {
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

fn judge(LoginAnswer { status, headers, fault }: LoginAnswer, was_basic: bool) -> Verdict {
    let fault = || fault.unwrap_or_else(|| Fault::Unexpected(format!("a login was answered {status}")));
    match status {
        status if status.is_success() => match cookie(&headers) {
            Some((value, max_age)) => Verdict::Cookie(value, max_age),
            None => Verdict::NoSessions,
        },
        StatusCode::UNAUTHORIZED if headers.contains_key(WWW_AUTHENTICATE) && !was_basic => {
            Verdict::WantsBasic
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Verdict::Refused(fault()),
        StatusCode::NOT_IMPLEMENTED => Verdict::NoSessions,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Verdict::Failed(fault()),
        status if status.is_server_error() => Verdict::Failed(fault()),
        _ => Verdict::NoSessions,
    }
}

fn header(value: &Secret) -> HeaderValue {
    let text = format!("{COOKIE}={}", value.reveal());
    let mut header = HeaderValue::from_str(&text).expect("it came in a header");
    header.set_sensitive(true);
    header
}

/// The session's cookie among those that are set, and its `Max-Age`. An empty one ends a session.
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
