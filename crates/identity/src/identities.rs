//! The transactions on users and tokens.
//!
//! The first identity also writes the key of sessions. From then on every request needs an identity, also after the last one
//! is gone: a mistake must not open a server.

use turnwise_queue::Keyspace;
use turnwise_store::{Error as StoreError, Isolation, RangeRead, Transaction};

use crate::session::SessionKey;
use crate::token::Secret;
use crate::user::check_name;
use crate::{Error, PasswordHash, Result, Scopes, Token, User};

/// The most identities that are read for the last one with the scope `admin`.
const BATCH: usize = 500;

/// The key of sessions; `None` if the store never had an identity, so that every request is allowed.
pub async fn session_key(tx: &Transaction, keys: &Keyspace) -> Result<Option<SessionKey>, StoreError> {
    let Some(value) = tx.get(&keys.session_key()).await? else { return Ok(None) };
    let text: String = decode(&value, "the key of sessions")?;
    Ok(Some(SessionKey::of_text(&text)))
}

/// Adds a user.
///
/// # Errors
/// The user exists.
pub async fn add_user(tx: &Transaction, keys: &Keyspace, user: &User) -> Result<()> {
    let key = keys.user(&user.name);
    if tx.get(&key).await?.is_some() {
        return Err(Error::Exists(user.name.clone()));
    }
    tx.set(key, encode(user))?;
    changed(tx, keys).await
}

/// Sets a user's password, which ends the user's sessions.
///
/// # Errors
/// The user does not exist.
pub async fn set_password(
    tx: &Transaction,
    keys: &Keyspace,
    name: &str,
    password: PasswordHash,
) -> Result<()> {
    check_name(name)?;
    let user = user(tx, keys, name).await?.ok_or_else(|| no_user(name))?;
    tx.set(keys.user(name), encode(&User { password, ..user }))?;
    changed(tx, keys).await
}

/// Sets what a user may do.
///
/// # Errors
/// The user does not exist, or is the last identity with the scope `admin` and would lose it.
pub async fn set_scopes(
    tx: &Transaction,
    keys: &Keyspace,
    name: &str,
    scopes: Scopes,
    now_us: i64,
) -> Result<User> {
    check_name(name)?;
    let user = user(tx, keys, name).await?.ok_or_else(|| no_user(name))?;
    let loses_admin = user.scopes.administer() && !scopes.administer();
    if loses_admin && !is_other_admin(tx, keys, Kind::User, name, now_us).await? {
        return Err(Error::LastAdmin(name.to_owned()));
    }
    let user = User { scopes, ..user };
    tx.set(keys.user(name), encode(&user))?;
    changed(tx, keys).await?;
    Ok(user)
}

/// Removes a user.
///
/// # Errors
/// The user does not exist, or is the last identity with the scope `admin`.
pub async fn remove_user(tx: &Transaction, keys: &Keyspace, name: &str, now_us: i64) -> Result<()> {
    let user = user(tx, keys, name).await?.ok_or_else(|| no_user(name))?;
    if user.scopes.administer() && !is_other_admin(tx, keys, Kind::User, name, now_us).await? {
        return Err(Error::LastAdmin(name.to_owned()));
    }
    tx.clear(keys.user(name))?;
    changed(tx, keys).await
}

/// One user.
pub async fn user(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<Option<User>, StoreError> {
    match tx.get(&keys.user(name)).await? {
        Some(value) => Ok(Some(read_user(name, &value)?)),
        None => Ok(None),
    }
}

/// Up to `limit` users by name, after this one.
pub async fn users(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<User>, StoreError> {
    let (mut begin, end) = keys.users();
    if let Some(after) = after {
        begin = turnwise_store::key::successor(&keys.user(after));
    }
    let rows = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    rows.iter().map(|(key, value)| read_user(&name_of(keys, key)?, value)).collect()
}

/// Adds a token.
pub async fn add_token(tx: &Transaction, keys: &Keyspace, token: &Token) -> Result<()> {
    tx.set(keys.token(&token.id), encode(token))?;
    changed(tx, keys).await
}

/// Gives a token a new secret. The old one is invalid from then on.
///
/// # Errors
/// The token does not exist.
pub async fn rotate_token(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<(Token, Secret)> {
    let (token, secret) = token(tx, keys, id).await?.ok_or_else(|| no_token(id))?.rotated();
    tx.set(keys.token(id), encode(&token))?;
    changed(tx, keys).await?;
    Ok((token, secret))
}

/// Removes a token.
///
/// # Errors
/// The token does not exist, or is the last identity with the scope `admin`.
pub async fn revoke_token(tx: &Transaction, keys: &Keyspace, id: &str, now_us: i64) -> Result<()> {
    let token = token(tx, keys, id).await?.ok_or_else(|| no_token(id))?;
    let is_admin = token.scopes.administer() && !token.is_expired(now_us);
    if is_admin && !is_other_admin(tx, keys, Kind::Token, id, now_us).await? {
        return Err(Error::LastAdmin(id.to_owned()));
    }
    tx.clear(keys.token(id))?;
    tx.clear(keys.token_use(id))?;
    changed(tx, keys).await
}

/// One token.
pub async fn token(tx: &Transaction, keys: &Keyspace, id: &str) -> Result<Option<Token>, StoreError> {
    match tx.get(&keys.token(id)).await? {
        Some(value) => Ok(Some(read_token(id, &value)?)),
        None => Ok(None),
    }
}

/// Up to `limit` tokens by id, after this one, each with the time of its last use in µs.
pub async fn tokens(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(Token, Option<i64>)>, StoreError> {
    let (mut begin, end) = keys.tokens();
    if let Some(after) = after {
        begin = turnwise_store::key::successor(&keys.token(after));
    }
    let rows = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    let mut tokens = Vec::with_capacity(rows.len());
    for (key, value) in rows.iter() {
        let id = name_of(keys, key)?;
        let used = tx.get_with(&keys.token_use(&id), Isolation::Snapshot).await?;
        let used_us = used.map(|used| decode(&used, "a token's last use")).transpose()?;
        tokens.push((read_token(&id, value)?, used_us));
    }
    Ok(tokens)
}

/// Records when a token was used, unless it was revoked meanwhile.
pub async fn used(tx: &Transaction, keys: &Keyspace, id: &str, now_us: i64) -> Result<(), StoreError> {
    if tx.get(&keys.token(id)).await?.is_some() {
        tx.set(keys.token_use(id), encode(&now_us))?;
    }
    Ok(())
}

/// Every change ends here: it wakes all servers, and the first one ends the time in which everyone may do everything.
async fn changed(tx: &Transaction, keys: &Keyspace) -> Result<()> {
    if tx.get(&keys.session_key()).await?.is_none() {
        tx.set(keys.session_key(), encode(&SessionKey::new_text()))?;
    }
    Ok(tx.set_versionstamp(keys.identities_versionstamp())?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    User,
    Token,
}

/// Whether another identity than this one has the scope `admin`.
async fn is_other_admin(
    tx: &Transaction,
    keys: &Keyspace,
    kind: Kind,
    name: &str,
    now_us: i64,
) -> Result<bool> {
    // Every change writes this row, so of two removals that count on each other's identity, one conflicts.
    tx.get(&keys.identities_versionstamp()).await?;
    let mut after: Option<String> = None;
    loop {
        let page = users(tx, keys, after.as_deref(), BATCH).await?;
        if page.iter().any(|user| user.scopes.administer() && (kind != Kind::User || user.name != name)) {
            return Ok(true);
        }
        match page.into_iter().nth(BATCH - 1) {
            Some(last) => after = Some(last.name),
            None => break,
        }
    }
    let mut after: Option<String> = None;
    loop {
        let page = tokens(tx, keys, after.as_deref(), BATCH).await?;
        let is_admin = |token: &Token| token.scopes.administer() && !token.is_expired(now_us);
        if page.iter().any(|(token, _)| is_admin(token) && (kind != Kind::Token || token.id != name)) {
            return Ok(true);
        }
        match page.into_iter().nth(BATCH - 1) {
            Some((last, _)) => after = Some(last.id),
            None => return Ok(false),
        }
    }
}

fn no_user(name: &str) -> Error {
    Error::NotFound { what: "user", name: name.to_owned() }
}

fn no_token(id: &str) -> Error {
    Error::NotFound { what: "token", name: id.to_owned() }
}

fn name_of(keys: &Keyspace, key: &[u8]) -> Result<String, StoreError> {
    keys.parse_identity(key)
}

fn read_user(name: &str, value: &[u8]) -> Result<User, StoreError> {
    let mut user: User = decode(value, "a user")?;
    name.clone_into(&mut user.name);
    Ok(user)
}

fn read_token(id: &str, value: &[u8]) -> Result<Token, StoreError> {
    let mut token: Token = decode(value, "a token")?;
    id.clone_into(&mut token.id);
    Ok(token)
}

fn encode<T: serde::Serialize>(value: &T) -> bytes::Bytes {
    serde_json::to_vec(value).expect("rows are plain data with string keys").into()
}

/// The error does not contain the value, which may be a hash.
fn decode<T: serde::de::DeserializeOwned>(value: &[u8], what: &str) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|_| StoreError::Corrupt(format!("{what} cannot be read")))
}
