//! Sessions: a cookie that proves a login for a while, on every node, without a row of its own.
//!
//! A session is `base64url(NAME ":" TIME ":" SIGNATURE)`, with the time of its start in s, in hexadecimal. The signature is
//! an HMAC-SHA256 under the store's session key. It covers the hash of the user's password, so a new password ends all
//! sessions of the user. A session of a token has the name `token:ID` and covers the hash of its secret; names of users have no
//! colon.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

use crate::token::random;
use crate::{Token, User};

/// Longest text of a session, in bytes.
const MAX_BYTES: usize = 1_000;

/// What the names of sessions of tokens begin with.
const OF_TOKEN: &str = "token:";

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
        self.session(&user.name, user.password.secret_text(), now_s)
    }

    /// The same for a person who has a token, and no password.
    pub fn start_with_token(&self, token: &Token, now_s: u64) -> String {
        self.session(&format!("{OF_TOKEN}{}", token.id), token.secret_text(), now_s)
    }

    fn session(&self, name: &str, secret: &str, now_s: u64) -> String {
        let signature = hmac::sign(&self.0, &signed(name, secret, now_s));
        BASE64.encode(format!("{name}:{now_s:x}:{}", BASE64.encode(signature)))
    }

    /// A text that only servers with this key can read, and that any of them can. For positions in lists, which name rows.
    pub fn seal(&self, text: &str) -> String {
        let nonce: [u8; NONCE_LEN] = random();
        let mut sealed = text.as_bytes().to_vec();
        let sealing = self.cipher().seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::empty(),
            &mut sealed,
        );
        sealing.expect("the text is far below the limit of the cipher");
        BASE64.encode([&nonce[..], &sealed].concat())
    }

    /// A text from [`SessionKey::seal`]; `None` for any other one.
    pub fn open(&self, sealed: &str) -> Option<String> {
        let mut text = BASE64.decode(sealed).ok()?;
        let sealed = text.split_off(text.len().min(NONCE_LEN));
        let (nonce, mut text) = (Nonce::try_assume_unique_for_key(&text).ok()?, sealed);
        let opened = self.cipher().open_in_place(nonce, Aad::empty(), &mut text).ok()?.to_vec();
        String::from_utf8(opened).ok()
    }

    fn cipher(&self) -> LessSafeKey {
        let key = hmac::sign(&self.0, b"turnwise positions");
        let key =
            UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("an HMAC-SHA256 has the length of the key");
        LessSafeKey::new(key)
    }

    /// Whether the session is this user's, and was started by a server with this key.
    pub fn verifies(&self, session: &Session, user: &User) -> bool {
        session.name == user.name && self.signed(session, user.password.secret_text())
    }

    /// The same for a session of a token.
    pub fn verifies_token(&self, session: &Session, token: &Token) -> bool {
        session.token_id() == Some(token.id.as_str()) && self.signed(session, token.secret_text())
    }

    fn signed(&self, session: &Session, secret: &str) -> bool {
        let signed = signed(&session.name, secret, session.started_s);
        hmac::verify(&self.0, &signed, &session.signature).is_ok()
    }
}

fn signed(name: &str, secret: &str, started_s: u64) -> Vec<u8> {
    format!("{name}:{started_s:x}:{secret}").into_bytes()
}

/// A session that a client sent, not verified.
pub struct Session {
    /// The user's name, or `token:ID`.
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
        let mut parts = text.rsplitn(3, ':');
        let (signature, started, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Session {
            name: name.to_owned(),
            started_s: u64::from_str_radix(started, 16).ok()?,
            signature: BASE64.decode(signature).ok()?,
        })
    }

    /// The token's id, if it is a session of a token.
    pub fn token_id(&self) -> Option<&str> {
        self.name.strip_prefix(OF_TOKEN)
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
    fn a_sealed_text_is_read_with_its_key_alone() {
        let (key, other) = (SessionKey::of_text("a"), SessionKey::of_text("b"));
        let sealed = key.seal("mail/a job of another tenant");
        assert_eq!(key.open(&sealed).as_deref(), Some("mail/a job of another tenant"));
        assert_ne!(key.seal("mail/a job of another tenant"), sealed);
        assert_eq!((other.open(&sealed), key.open(""), key.open("mail/a")), (None, None, None));
        assert!(key.open(&sealed[..sealed.len() - 2]).is_none());
    }

    #[test]
    fn a_session_of_a_token_ends_with_its_secret_and_is_no_users() {
        let key = SessionKey::of_text("a");
        let token = || Token::new(Scopes::all(), String::new(), 0, None, None).unwrap().0;
        let (one, other) = (token(), token());
        let session = Session::parse(&key.start_with_token(&one, 1_000)).unwrap();
        assert_eq!((session.token_id(), session.started_s), (Some(one.id.as_str()), 1_000));
        assert!(key.verifies_token(&session, &one) && !key.verifies_token(&session, &other));
        assert!(!key.verifies_token(&session, &one.clone().rotated().0));
        assert!(!key.verifies(&session, &user("jan", "password1")));
        let of_user = Session::parse(&key.start(&user("jan", "password1"), 1_000)).unwrap();
        assert!(of_user.token_id().is_none() && !key.verifies_token(&of_user, &one));
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
