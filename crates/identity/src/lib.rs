//! Who may do what: users and tokens as rows, and the scopes of each.
//!
//! ```text
//!   a password ──▶ Argon2id ──▶ ("users", name)   ┐
//!   a token    ──▶ SHA-256  ──▶ ("tokens", id)    ├──▶ Scopes ──▶ what a request may do
//!   a session  ──▶ HMAC with ("session_key")      ┘
//! ```
//!
//! Servers share these rows, and learn of changes through `("identities_vs")`. This crate reads no clock and opens no
//! connection. `docs/design/identities-and-secrets.md` explains the design, and `docs/security.md` what it protects against.

mod error;
pub mod identities;
mod password;
mod pattern;
mod scope;
pub mod session;
mod token;
mod user;

pub use error::{Error, Result};
pub use password::{MAX_PASSWORD_BYTES, Password, PasswordHash};
pub use pattern::Patterns;
pub use scope::{MAX_SCOPE_BYTES, MAX_SCOPES, OPERATORS_TENANT, Scope, Scopes};
pub use token::{Secret, Token};
pub use user::User;

/// Longest name of a user, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest note of a token, in bytes.
pub const MAX_NOTE_BYTES: usize = 200;
