//! Tokens: random secrets for programs.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::{Error, MAX_NOTE_BYTES, Result, Scopes};

/// The beginning of every token, by which scanners find tokens in files.
const PREFIX: &str = "tw_";
/// Random bytes of an id.
const ID_BYTES: usize = 6;
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system has random bytes");
    bytes
}

/// The same as text: two hexadecimal digits for each byte.
pub(crate) fn random_hex<const N: usize>() -> String {
    random::<N>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text of a token, `tw_ID_SECRET`. It is shown once, and never stored.
#[derive(Clone)]
pub struct Secret {
    id: String,
    secret: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_*****", self.id)
    }
}

impl Secret {
    /// A new secret for a token; a new id, too, if none is given.
    pub(crate) fn new(id: Option<&str>) -> Secret {
        let id = id.map_or_else(random_hex::<ID_BYTES>, str::to_owned);
        Secret { id, secret: BASE64.encode(random::<SECRET_BYTES>()) }
    }

    /// Parses the text of a token; `None` if it does not have this form.
    pub fn parse(text: &str) -> Option<Secret> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_id =
            id.len() == 2 * ID_BYTES && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_secret = BASE64.decode(secret).is_ok_and(|bytes| bytes.len() == SECRET_BYTES);
        (is_id && is_secret).then(|| Secret { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// The token's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The whole text, for the one response that shows it.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }

    fn sha256(&self) -> String {
        BASE64.encode(digest(&SHA256, self.secret.as_bytes()))
    }
}

/// A token, without its secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct Token {
    /// Its id: the part between the underscores. In the key, not in the value.
    #[serde(skip)]
    pub id: String,
    /// SHA-256 of its secret. The secret is random, so a slow hash would add nothing.
    sha256: String,
    /// What it may do.
    pub scopes: Scopes,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When it was made, in µs.
    pub created_us: i64,
    /// From when on it is invalid, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_us: Option<i64>,
    /// Who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).field("scopes", &self.scopes).finish_non_exhaustive()
    }
}

impl Token {
    /// A new token, and its text.
    ///
    /// # Errors
    /// The note is too long.
    pub fn new(
        scopes: Scopes,
        note: String,
        created_us: i64,
        expires_us: Option<i64>,
        created_by: Option<String>,
    ) -> Result<(Token, Secret)> {
        if note.len() > MAX_NOTE_BYTES || note.chars().any(char::is_control) {
            let problem = format!("must have at most {MAX_NOTE_BYTES} bytes, and no control characters");
            return Err(Error::invalid("note", problem));
        }
        let secret = Secret::new(None);
        let (id, sha256) = (secret.id.clone(), secret.sha256());
        Ok((Token { id, sha256, scopes, note, created_us, expires_us, created_by }, secret))
    }

    /// The same token with a new secret.
    pub(crate) fn rotated(self) -> (Token, Secret) {
        let secret = Secret::new(Some(&self.id));
        (Token { sha256: secret.sha256(), ..self }, secret)
    }

    /// Whether the secret is this token's. The time that this takes does not depend on the secret.
    pub fn verifies(&self, secret: &Secret) -> bool {
        self.id == secret.id && self.sha256.as_bytes().ct_eq(secret.sha256().as_bytes()).into()
    }

    /// What sessions of this token are signed with, so that a rotation ends them.
    pub(crate) fn secret_text(&self) -> &str {
        &self.sha256
    }

    /// Whether it is invalid at this time.
    pub fn is_expired(&self, now_us: i64) -> bool {
        self.expires_us.is_some_and(|expires_us| expires_us <= now_us)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_its_own_text_is_a_tokens() {
        let new = || Token::new(Scopes::all(), "ci".to_owned(), 0, Some(10), None).unwrap();
        let (token, secret) = new();
        let text = secret.reveal();
        assert_eq!(text.len(), 3 + 12 + 1 + 43);
        assert!(token.verifies(&Secret::parse(&text).unwrap()));
        assert!(!token.verifies(&new().1));
        let (rotated, other) = token.clone().rotated();
        assert!(rotated.verifies(&other) && !rotated.verifies(&secret) && rotated.id == token.id);
        assert!(!token.is_expired(9) && token.is_expired(10));
        for shown in [format!("{secret:?}"), format!("{token:?}")] {
            assert!(!shown.contains(&secret.secret) && !shown.contains(&token.sha256), "{shown}");
        }
        for wrong in
            ["", "tw_", "tw__", "tw_abc_def", &text[1..], &text[..text.len() - 1], &text.to_uppercase()]
        {
            assert!(Secret::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_note_has_a_bound() {
        let new = |note: &str| Token::new(Scopes::all(), note.to_owned(), 0, None, None);
        assert!(new(&"x".repeat(MAX_NOTE_BYTES)).is_ok());
        assert!(new(&"x".repeat(MAX_NOTE_BYTES + 1)).is_err() && new("a\nb").is_err());
    }
}
