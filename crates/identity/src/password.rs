//! Passwords: Argon2id, with the parameters that OWASP recommends (19 MiB, two passes).

use std::fmt;

use argon2::password_hash::{PasswordHash as Parsed, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use serde::{Deserialize, Serialize};

use crate::token::{random, random_hex};
use crate::{Error, Result};

/// Shortest password, in characters.
const MIN_PASSWORD_CHARACTERS: usize = 8;
/// Longest password, in bytes.
pub const MAX_PASSWORD_BYTES: usize = 1_000;

/// A password. It is never printed.
#[derive(Clone)]
pub struct Password(String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("*****")
    }
}

impl Password {
    /// A password that a user may have.
    ///
    /// # Errors
    /// It is too short or too long.
    pub fn new(text: String) -> Result<Password> {
        if text.chars().count() >= MIN_PASSWORD_CHARACTERS && text.len() <= MAX_PASSWORD_BYTES {
            return Ok(Password(text));
        }
        let problem = format!(
            "must have at least {MIN_PASSWORD_CHARACTERS} characters and at most {MAX_PASSWORD_BYTES} bytes"
        );
        Err(Error::invalid("password", problem))
    }

    /// A random password that nobody knows.
    pub fn unknown() -> Password {
        Password(random_hex::<16>())
    }

    /// Hashes it with a new salt. This takes a few ten ms of CPU, and 19 MiB.
    pub fn hash(&self) -> PasswordHash {
        let salt = SaltString::encode_b64(&random::<16>()).expect("16 bytes are a valid salt");
        let hash = argon2().hash_password(self.0.as_bytes(), &salt).expect("the parameters are valid");
        PasswordHash(hash.to_string())
    }
}

fn argon2() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT)
}

/// The hash of a password, as a PHC string.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PasswordHash(String);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("*****")
    }
}

impl PasswordHash {
    /// Whether this is the hash of a password. This takes as long as [`Password::hash`].
    pub fn verifies(&self, password: &str) -> bool {
        let Ok(hash) = Parsed::new(&self.0) else { return false };
        password.len() <= MAX_PASSWORD_BYTES && argon2().verify_password(password.as_bytes(), &hash).is_ok()
    }

    /// The text of the hash. No response and no log may contain it.
    pub fn secret_text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_password_verifies_and_no_debug_output_shows_it() {
        let password = Password::new("correct horse".to_owned()).unwrap();
        let hash = password.hash();
        assert!(hash.verifies("correct horse") && !hash.verifies("correct horsf") && !hash.verifies(""));
        assert!(hash.secret_text().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", hash.secret_text());
        assert_ne!(password.hash(), hash, "each hash has its own salt");
        assert_eq!(format!("{password:?} {hash:?}"), "***** *****");
        assert!(!PasswordHash("nonsense".to_owned()).verifies("nonsense"));
        assert!(Password::new("short".to_owned()).is_err());
        assert!(Password::new("überlang".to_owned()).is_ok() && Password::new("€€€".to_owned()).is_err());
        assert!(Password::new("x".repeat(MAX_PASSWORD_BYTES + 1)).is_err());
    }
}
