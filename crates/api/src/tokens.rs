//! Users and tokens as rows, and as clients see them.

use turnwise_identity::{Error, Scopes, Secret, Token, User};
use turnwise_protocol as api;

/// A token as a request describes it.
///
/// # Errors
/// It would never expire, or too late.
pub fn new_token(
    new: &api::NewToken,
    scopes: Scopes,
    now_us: i64,
    by: Option<String>,
) -> Result<(Token, Secret), Error> {
    let expires_us = match new.expires_in_s {
        None => None,
        Some(seconds) if (1..=api::MAX_EXPIRY_S).contains(&seconds) => {
            Some(now_us.saturating_add_unsigned(seconds * 1_000_000))
        }
        Some(_) => {
            let problem = format!("must be from 1 to {} (ten years)", api::MAX_EXPIRY_S);
            return Err(Error::Invalid { field: "expires_in_s", problem });
        }
    };
    Token::new(scopes, new.note.clone(), now_us, expires_us, by)
}

/// A user, in the form of the API.
pub fn shown_user(user: User) -> api::User {
    api::User { name: user.name, scopes: user.scopes.texts(), created_us: user.created_us }
}

/// A token, in the form of the API.
pub fn shown_token(token: Token, last_used_us: Option<i64>) -> api::Token {
    let scopes = token.scopes.texts();
    let Token { id, note, created_us, created_by, expires_us, .. } = token;
    api::Token { id, scopes, note, created_us, created_by, expires_us, last_used_us }
}

/// A token with its text.
pub fn made_token(token: Token, secret: &Secret) -> api::MadeToken {
    api::MadeToken { text: secret.reveal(), about: shown_token(token, None) }
}
