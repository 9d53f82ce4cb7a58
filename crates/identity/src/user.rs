//! Users: people, and CouchDB clients, with a name and a password.

use serde::{Deserialize, Serialize};

use crate::token::random_hex;
use crate::{Error, MAX_NAME_BYTES, PasswordHash, Result, Scopes};

/// The length of [`User::uid`], before it is written with two digits for each byte.
const UID_BYTES: usize = 8;

/// A user.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct User {
    /// Its name. In the key, not in the value.
    #[serde(skip)]
    pub name: String,
    /// An id that no other user has, also none of the same name: what a user leaves behind is not that of the next one with its name.
    #[serde(default)]
    pub uid: String,
    /// The hash of its password.
    pub password: PasswordHash,
    /// What it may do.
    pub scopes: Scopes,
    /// When it was made, in µs.
    pub created_us: i64,
}

impl User {
    /// A user.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(name: &str, password: PasswordHash, scopes: Scopes, created_us: i64) -> Result<User> {
        check_name(name)?;
        Ok(User { name: name.to_owned(), uid: random_hex::<UID_BYTES>(), password, scopes, created_us })
    }
}

/// Checks the name of a user. Basic authentication ends it at the first colon.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
    if fits && !name.contains(|char: char| char == ':' || char.is_control()) {
        return Ok(());
    }
    let problem = format!("must have 1 to {MAX_NAME_BYTES} bytes, without colons and control characters");
    Err(Error::invalid("name", problem))
}
