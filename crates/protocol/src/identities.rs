//! Users and tokens, and what each may do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;

/// Longest time until a token expires, in s: ten years.
pub const MAX_EXPIRY_S: u64 = 315_360_000;

/// A scope, one thing that an identity may do: `admin`, `operator`, `client:TENANTS`, `read:TENANTS`, `worker:TYPES`,
/// `worker:TYPES@TENANTS`, `command` or `metrics`. Names are separated by commas, and `*` stands for any characters. Special
/// characters of names are percent-encoded. At most 500 bytes.
#[derive(ToSchema)]
#[schema(
    max_length = 500,
    example = "client:acme,acme-*",
    // Non-ASCII characters need no encoding. Whether an encoded one is valid UTF-8 cannot be stated here.
    pattern = r"^(admin|operator|command|metrics|(client|read):([^,%\u0000-\u001f\u007f-\u009f]|%[0-7][0-9A-Fa-f])+(,([^,%\u0000-\u001f\u007f-\u009f]|%[0-7][0-9A-Fa-f])+)*|worker:([^,@%\u0000-\u001f\u007f-\u009f]|%[0-7][0-9A-Fa-f])+(,([^,@%\u0000-\u001f\u007f-\u009f]|%[0-7][0-9A-Fa-f])+)*(@([^,%\u0000-\u001f\u007f-\u009f]|%[0-7][0-9A-Fa-f])+(,([^,%\u0000-\u001f\u007f-\u009f]|%[0-7][0-9A-Fa-f])+)*)?)$"
)]
#[expect(dead_code, reason = "it describes the texts in `scopes`, which are plain strings")]
pub struct Scope(String);

/// A request for a new user.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "name": "jan", "password": "correct horse battery", "scopes": ["client:acme,acme-*"]
}))]
pub struct NewUser {
    /// Its name: 1 to 128 bytes, without colons and control characters.
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^:\u0000-\u001f\u007f-\u009f]+$")]
    pub name: String,
    /// Its password: at least 8 characters, at most 1,000 bytes.
    #[schema(min_length = 8, max_length = 1000)]
    pub password: String,
    /// What it may do.
    #[schema(min_items = 1, max_items = 20, value_type = Vec<Scope>)]
    pub scopes: Vec<String>,
}

debug_without_secret!(NewUser { name });

/// A request for another password.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPassword {
    /// The new password: at least 8 characters, at most 1,000 bytes.
    #[schema(min_length = 8, max_length = 1000)]
    pub password: String,
}

debug_without_secret!(SetPassword {});

/// `PUT /v1/users/{name}/scopes`
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetScopes {
    /// What the user may do from now on, instead of what it could do before.
    #[schema(min_items = 1, max_items = 20, value_type = Vec<Scope>)]
    pub scopes: Vec<String>,
}

/// A user, without the password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// When it was made, in µs since the Unix epoch.
    pub created_us: i64,
}

answers! {
    /// A page of users, by name.
    #[derive(PartialEq, Eq)]
    pub struct Users {
        /// The users.
        pub users: Vec<User>,
        /// The `after` of the next page. Missing on the last page.
        pub next: Option<String>,
    }
}

/// A request for a new token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "scopes": ["worker:mail"], "note": "mail workers in Berlin", "expires_in_s": 7_776_000
}))]
pub struct NewToken {
    /// What it may do, as for users.
    #[schema(min_items = 1, max_items = 20, value_type = Vec<Scope>)]
    pub scopes: Vec<String>,
    /// What it is for: up to 200 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 200, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$")]
    pub note: String,
    /// In how many seconds it expires. By default it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::number::optional")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub expires_in_s: Option<u64>,
}

/// A new token, or a token with a new secret. No other response contains its text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// The text to send, as `Authorization: Bearer TEXT`.
    #[serde(rename = "token")]
    pub text: String,
    /// The token.
    #[serde(flatten)]
    pub about: Token,
}

debug_without_secret!(MadeToken { about });

answers! {
    /// A token, without its secret.
    #[derive(PartialEq, Eq)]
    pub struct Token {
        /// Its id, a part of its text.
        pub id: String,
        /// What it may do.
        pub scopes: Vec<String>,
        /// What it is for.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub note: String,
        /// When it was made, in µs since the Unix epoch.
        pub created_us: i64,
        /// Who made it: `user:NAME` or `token:ID`. Missing if it was made without credentials.
        pub created_by: Option<String>,
        /// From when on it is invalid, in µs.
        pub expires_us: Option<i64>,
        /// When it was last used, in µs, to within an hour.
        pub last_used_us: Option<i64>,
    }

    /// A page of tokens, by id.
    #[derive(PartialEq, Eq)]
    pub struct Tokens {
        /// The tokens.
        pub tokens: Vec<Token>,
        /// The `after` of the next page. Missing on the last page.
        pub next: Option<String>,
    }
}

/// A user or a token was changed or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedIdentity {
    /// Always true.
    pub ok: bool,
}

answers! {
    /// The sender of the request.
    #[derive(PartialEq, Eq)]
    pub struct Me {
        /// Whether the server has no identities, so that everyone may do everything.
        pub open: bool,
        /// `user:NAME` or `token:ID`. Missing if the server is open.
        pub identity: Option<String>,
        /// What the sender may do.
        pub scopes: Vec<String>,
    }
}
