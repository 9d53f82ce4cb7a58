//! Sessions: a cookie that proves a login for a while, on every node, without a row of its own.
//!
//! A session is `base64url(NAME ":" TIME ":" SIGNATURE)`, with the time of its start in s, in hexadecimal. The signature is
//! an HMAC-SHA256 under the store's session key. It covers the hash of the user's password, so a new password ends all
//! sessions of the user.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::hmac;

use crate::User;
use crate::token::random;

/// Longest text of a session, in bytes.
const MAX_BYTES: usize = 1_000;

/// The key that signs the sessions of all nodes.
#[derive(Clone)]
pub struct SessionKey(hmac::Key);

impl SessionKey {
    /// A new key, in the form in which the store keeps it.
    pub(crate) fn new_text() -> String {
        BASE64.encode(random::<32>())
    }

    /// The key in this text.
    pub fn of_text(text: &str) -> SessionKey {
        SessionKey(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))
    }

    /// The text of a session that starts now.
    pub fn start(&self, user: &User, now_s: u64) -> String {
        let signature = hmac::sign(&self.0, &signed(user, now_s));
        let text = format!("{}:{now_s:x}:{}", user.name, BASE64.encode(signature));
        BASE64.encode(text)
    }

    /// Whether the session is this user's, and was started by a server with this key.
    pub fn verifies(&self, session: &Session, user: &User) -> bool {
        session.name == user.name
            && hmac::verify(&self.0, &signed(user, session.started_s), &session.signature).is_ok()
    }
}

fn signed(user: &User, started_s: u64) -> Vec<u8> {
    format!("{}:{started_s:x}:{}", user.name, user.password.secret_text()).into_bytes()
}

/// A session that a client sent, not verified.
pub struct Session {
    /// The user's name.
    pub name: String,
    /// When the session started, in s since the Unix epoch.
    pub started_s: u64,
    signature: Vec<u8>,
}

impl Session {
    /// Parses the text of a session; `None` if it does not have this form.
    pub fn parse(text: &str) -> Option<Session> {
        let text = Some(text).filter(|text| text.len() <= MAX_BYTES)?;
        let text = String::from_utf8(BASE64.decode(text).ok()?).ok()?;
        let mut parts = text.split(':');
        let (name, started, signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        Some(Session {
            name: name.to_owned(),
            started_s: u64::from_str_radix(started, 16).ok()?,
            signature: BASE64.decode(signature).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Password, Scopes};

    fn user(name: &str, password: &str) -> User {
        let hash = Password::new(password.to_owned()).unwrap().hash();
        User::new(name, hash, Scopes::all(), 0).unwrap()
    }

    #[test]
    fn a_session_is_one_users_with_one_password_and_one_key() {
        let (key, other_key) = (SessionKey::of_text("a"), SessionKey::of_text("b"));
        let (jan, other) = (user("jan", "password1"), user("anna", "password1"));
        let text = key.start(&jan, 1_000);
        let session = Session::parse(&text).unwrap();
        assert_eq!((session.name.as_str(), session.started_s), ("jan", 1_000));
        assert!(key.verifies(&session, &jan));
        assert!(!other_key.verifies(&session, &jan) && !key.verifies(&session, &other));
        assert!(!key.verifies(&session, &user("jan", "password2")));
        let later = Session { started_s: 2_000, ..Session::parse(&text).unwrap() };
        assert!(!key.verifies(&later, &jan));
        for wrong in
            ["", "jan", &BASE64.encode("jan:1"), &BASE64.encode("jan:x:y"), &"a".repeat(MAX_BYTES + 1)]
        {
            assert!(Session::parse(wrong).is_none(), "{wrong}");
        }
    }
}
