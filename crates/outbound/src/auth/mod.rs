//! Authentication of requests: the authentication plugins.
//!
//! `[replicator] auth_plugins` lists them in the order in which they are tried. A session's cookie comes first
//! ([`session`]), because a server checks it at a fraction of a password's cost. The password in every request comes
//! second. Without credentials, requests are anonymous. An [`Auth`] belongs to one peer: it adds what a
//! request needs, and checks each response.

mod session;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};

use crate::endpoint::Endpoint;
use crate::error::Fault;

pub(crate) use session::{LOGIN_TYPE, Login, LoginAnswer, Session, Sessions};

/// A way to authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthPlugin {
    /// `POST /_session` once, and its cookie in every request.
    Session,
    /// The password in every request.
    Basic,
}

impl AuthPlugin {
    /// All plugins, in the default order.
    pub const ALL: [Self; 2] = [Self::Session, Self::Basic];
}

impl fmt::Display for AuthPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "session",
            Self::Basic => "basic",
        })
    }
}

impl FromStr for AuthPlugin {
    type Err = String;

    /// Accepts turnwise's short names, and those in CouchDB's configuration.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim();
        match name.strip_prefix("couch_replicator_auth_").unwrap_or(name) {
            "session" => Ok(Self::Session),
            "basic" | "noop" => Ok(Self::Basic),
            _ => Err(format!("`{name}` is no authentication plugin; there are session and basic")),
        }
    }
}

/// How one peer's requests authenticate. Without anything, there are no credentials, or the user has set a header.
pub(crate) struct Auth {
    session: Option<Arc<Session>>,
    /// The password: for every request, or, with a session, if the server has no sessions. The configuration may forbid the latter.
    authorization: Option<HeaderValue>,
}

/// The number of the cookie that a request carried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ticket(Option<u64>);

impl Auth {
    /// Uses the first of `plugins` that supports `endpoint`.
    pub fn new(
        endpoint: &Endpoint,
        plugins: &[AuthPlugin],
        refresh_interval: Duration,
        sessions: &Sessions,
    ) -> Self {
        let Some(credentials) = endpoint.credentials() else {
            return Self { session: None, authorization: None };
        };
        let (session, with_password) = match plugins {
            [AuthPlugin::Session, rest @ ..] => (
                Some(sessions.of(endpoint, credentials, refresh_interval)),
                rest.contains(&AuthPlugin::Basic),
            ),
            _ => (None, true),
        };
        Self { session, authorization: with_password.then(|| credentials.authorization()) }
    }

    /// Adds what a request needs to its headers. If there is no session, opens one by `send`.
    ///
    /// # Errors
    /// The reason why there is no session; the error belongs to the request to `/_session`.
    pub async fn apply<F>(&self, headers: &mut HeaderMap, send: impl Fn(Login) -> F) -> Result<Ticket, Fault>
    where
        F: Future<Output = Result<LoginAnswer, Fault>>,
    {
        let pass = match &self.session {
            Some(session) => session.pass(self.authorization.is_some(), send).await?,
            None => None,
        };
        match (pass, &self.authorization) {
            (Some((cookie, number)), _) => {
                put_cookie(headers, cookie);
                return Ok(Ticket(Some(number)));
            }
            (None, Some(authorization)) => drop(headers.insert(AUTHORIZATION, authorization.clone())),
            (None, None) if self.session.is_some() => {
                return Err(Fault::Unexpected(
                    "the server has no sessions; add `basic` to [replicator] auth_plugins".to_owned(),
                ));
            }
            (None, None) => {}
        }
        Ok(Ticket(None))
    }

    /// Checks a response. `true`: the request may succeed if it is repeated with the current result of [`Auth::apply`].
    pub fn answered(&self, Ticket(number): Ticket, status: StatusCode, headers: &HeaderMap) -> bool {
        self.session.as_ref().zip(number).is_some_and(|(session, number)| {
            session.answered(number, self.authorization.is_some(), status, headers)
        })
    }

    /// Records that a request got no response, because the connection broke.
    pub fn broke_off(&self, Ticket(number): Ticket) {
        if let (Some(session), Some(number)) = (&self.session, number) {
            session.broke_off(number);
        }
    }

    /// `text` without the session's cookies.
    pub fn hide(&self, text: String) -> String {
        match &self.session {
            Some(session) => session.hide(text),
            None => text,
        }
    }
}

/// Appends the cookie to one that the user has set, if there is one.
fn put_cookie(headers: &mut HeaderMap, cookie: HeaderValue) {
    let together = headers.get(COOKIE).and_then(|given| {
        let mut both =
            HeaderValue::from_bytes(&[given.as_bytes(), b"; ", cookie.as_bytes()].concat()).ok()?;
        both.set_sensitive(true);
        Some(both)
    });
    headers.insert(COOKIE, together.unwrap_or(cookie));
}
