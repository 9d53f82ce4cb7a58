//! `/v1/users`, `/v1/tokens` and `/v1/me`: who may use the server.

use axum::http::StatusCode;
use serde::Deserialize;
use turnwise_identity::{MAX_NAME_BYTES, Password, Scopes, identities};
use turnwise_protocol::{
    ChangedIdentity, MadeToken, Me, NewToken, NewUser, Nothing, SetPassword, SetScopes, Tokens, User, Users,
    codes,
};
use turnwise_store::Transaction;
use turnwise_web::access::{Caller, Who};
use utoipa::IntoParams;

use super::app::App;
use super::body::{Json, NoBody};
use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown, path_with_name};
use super::list::{check_limit, default_limit};
use super::responses::{BadBody, Common};
use super::tokens::{made_token, new_token, shown_token, shown_user};

path_with_name! {
    /// `/{name}`
    UserPath(|name: &str| check_length("name", name)):
    /// The user's name, percent-encoded.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^:\u0000-\u001f\u007f-\u009f]+$")]
    name
}

path_with_name! {
    /// `/{id}`
    TokenPath(|id: &str| check_length("id", id)):
    /// The token's id.
    #[param(min_length = 12, max_length = 12, pattern = r"^[0-9a-f]{12}$")]
    id
}

fn check_length(what: &str, text: &str) -> Result<()> {
    if text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let reason = format!("{what}: must have at most {MAX_NAME_BYTES} bytes, and no control characters");
    Err(V1Error::bad(reason, "correct the path"))
}

/// The parameters of a listing of users or tokens.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageParams {
    /// Maximum number of rows in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: usize,
    /// The `next` of the previous page.
    #[param(nullable = false, max_length = 128, pattern = r"^[^\u0000-\u001f\u007f-\u009f]*$")]
    pub after: Option<String>,
}

impl PageParams {
    fn check(&self) -> Result<()> {
        check_limit(self.limit)?;
        self.after.as_deref().map_or(Ok(()), |after| check_length("after", after))
    }
}

/// What the sender may do
///
/// The identity that sends the request, and its scopes.
#[utoipa::path(
    get, path = "/me", tag = "identities", operation_id = "get_me",
    responses((status = 200, body = Me, description = "The sender of this request."), Common),
)]
pub(super) async fn get_me(Call { caller, .. }: Call) -> Result<Shown<Me>> {
    let open = *caller.who() == Who::Everyone;
    Ok(Shown(Me { open, identity: caller.name(), scopes: caller.scopes().texts() }))
}

/// Add a user
///
/// A user is a person or a CouchDB client, with a password. The first user or token of a store ends the time in which
/// everyone may do everything, on all nodes.
#[utoipa::path(
    post, path = "/users", tag = "identities", operation_id = "add_user", request_body = NewUser,
    responses(
        (status = 201, body = User, description = "The user was added."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: the user exists."),
        BadBody, Common,
    ),
)]
pub(super) async fn add_user(call: Call, Json(new): Json<NewUser>) -> Result<(StatusCode, Shown<User>)> {
    Ok((StatusCode::CREATED, Shown(make_user(&call.app, &call.caller, new).await?)))
}

/// Adds a user.
pub async fn make_user(
    app: &App,
    caller: &Caller,
    NewUser { name, password, scopes }: NewUser,
) -> Result<User> {
    let scopes = Scopes::parse(&scopes)?;
    check_first(caller, &scopes)?;
    let password = app.identities.hash(Password::new(password)?).await?;
    let user = turnwise_identity::User::new(&name, password, scopes, app.now_us())?;
    let new = &user;
    change(app, caller, |tx| async move { identities::add_user(&tx, &app.keys, new).await }).await?;
    tracing::info!(by = caller.name(), user = name, scopes = ?user.scopes.texts(), "a user was added");
    Ok(shown_user(user))
}

/// Changes identities, and applies the change on this node before the response.
async fn change<T, F>(app: &App, caller: &Caller, change: impl Fn(Transaction) -> F) -> Result<T>
where
    F: Future<Output = turnwise_identity::Result<T>>,
{
    let change = &change;
    let changed = app.store.transact(|tx| async move {
        check_open(&tx, app, caller).await?;
        Ok::<_, V1Error>(change(tx).await?)
    });
    let changed = changed.await?;
    app.identities.changed().await;
    Ok(changed)
}

/// Everyone may change identities only while there is none. Another request may have added the first one since this request
/// was let in.
async fn check_open(tx: &Transaction, app: &App, caller: &Caller) -> Result<()> {
    if *caller.who() != Who::Everyone || identities::session_key(tx, &app.keys).await?.is_none() {
        return Ok(());
    }
    Err(V1Error::unauthorized(
        "by now the store has identities, so this request needs one",
        "send the password of a user or a token",
    ))
}

/// The first identity must be able to add others: nobody else could.
fn check_first(caller: &Caller, scopes: &Scopes) -> Result<()> {
    if *caller.who() != Who::Everyone || scopes.administer() {
        return Ok(());
    }
    Err(V1Error::conflict(
        codes::CONFLICT,
        "the first identity needs the scope `admin`: nobody could add others",
        "add a user or a token with the scope `admin` first",
    ))
}

/// List users
///
/// Sorted by name.
#[utoipa::path(
    get, path = "/users", tag = "identities", operation_id = "list_users", params(PageParams),
    responses((status = 200, body = Users, description = "A page of users."), Common),
)]
pub(super) async fn list_users(
    Call { app, .. }: Call,
    Params(page): Params<PageParams>,
) -> Result<Shown<Users>> {
    users(&app, page).await.map(Shown)
}

/// A page of users.
pub async fn users(app: &App, page: PageParams) -> Result<Users> {
    page.check()?;
    let tx = app.store.begin().await?;
    let mut users = identities::users(&tx, &app.keys, page.after.as_deref(), page.limit + 1).await?;
    let more = users.len() > page.limit;
    users.truncate(page.limit);
    let next = users.last().filter(|_| more).map(|user| user.name.clone());
    Ok(Users { users: users.into_iter().map(shown_user).collect(), next })
}

/// Change a password
///
/// Ends all sessions of the user.
#[utoipa::path(
    put, path = "/users/{name}/password", tag = "identities", operation_id = "set_password", params(UserPath),
    request_body = SetPassword,
    responses(
        (status = 200, body = ChangedIdentity, description = "The user has the new password."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: the user does not exist."),
        BadBody, Common,
    ),
)]
pub(super) async fn set_password(
    Call { app, caller, path }: Call<UserPath>,
    Json(SetPassword { password }): Json<SetPassword>,
) -> Result<Shown<ChangedIdentity>> {
    change_password(&app, &caller, &path.name, password).await.map(Shown)
}

/// Changes a user's password.
pub async fn change_password(
    app: &App,
    caller: &Caller,
    name: &str,
    password: String,
) -> Result<ChangedIdentity> {
    let hash = &app.identities.hash(Password::new(password)?).await?;
    change(
        app,
        caller,
        |tx| async move { identities::set_password(&tx, &app.keys, name, hash.clone()).await },
    )
    .await?;
    tracing::info!(by = caller.name(), user = name, "a password was changed");
    Ok(ChangedIdentity { ok: true })
}

/// Change scopes
///
/// The user keeps its password, its sessions and what belongs to it. What it has begun (webhooks, bulk operations, feeds) goes on with the new scopes.
#[utoipa::path(
    put, path = "/users/{name}/scopes", tag = "identities", operation_id = "set_scopes", params(UserPath),
    request_body = SetScopes,
    responses(
        (status = 200, body = User, description = "The user has the new scopes."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: the user does not exist."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`conflict`: it is the last identity with the scope `admin`."),
        BadBody, Common,
    ),
)]
pub(super) async fn set_scopes(
    Call { app, caller, path }: Call<UserPath>,
    Json(SetScopes { scopes }): Json<SetScopes>,
) -> Result<Shown<User>> {
    change_scopes(&app, &caller, &path.name, &scopes).await.map(Shown)
}

/// Changes a user's scopes.
pub async fn change_scopes(app: &App, caller: &Caller, name: &str, scopes: &[String]) -> Result<User> {
    let (scopes, now_us) = (&Scopes::parse(scopes)?, app.now_us());
    let changed = change(app, caller, |tx| async move {
        identities::set_scopes(&tx, &app.keys, name, scopes.clone(), now_us).await
    })
    .await?;
    tracing::info!(by = caller.name(), user = name, scopes = ?changed.scopes.texts(), "the scopes of a user were changed");
    Ok(shown_user(changed))
}

/// Remove a user
#[utoipa::path(
    delete, path = "/users/{name}", tag = "identities", operation_id = "remove_user", params(UserPath),
    responses(
        (status = 200, body = ChangedIdentity, description = "The user was removed."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: the user does not exist."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`conflict`: it is the last identity with the scope `admin`."),
        Common,
    ),
)]
pub(super) async fn remove_user(call: Call<UserPath>) -> Result<Shown<ChangedIdentity>> {
    drop_user(&call.app, &call.caller, &call.path.name).await.map(Shown)
}

/// Removes a user.
pub async fn drop_user(app: &App, caller: &Caller, name: &str) -> Result<ChangedIdentity> {
    let now_us = app.now_us();
    change(app, caller, |tx| async move { identities::remove_user(&tx, &app.keys, name, now_us).await })
        .await?;
    tracing::info!(by = caller.name(), user = name, "a user was removed");
    Ok(ChangedIdentity { ok: true })
}

/// Add a token
///
/// A token is for a program. Only this response contains its text: the server keeps a hash.
#[utoipa::path(
    post, path = "/tokens", tag = "identities", operation_id = "add_token", request_body = NewToken,
    responses(
        (status = 201, body = MadeToken, description = "The token was added."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`conflict`: the first identity needs the scope `admin`."),
        BadBody, Common,
    ),
)]
pub(super) async fn add_token(
    call: Call,
    Json(new): Json<NewToken>,
) -> Result<(StatusCode, Shown<MadeToken>)> {
    Ok((StatusCode::CREATED, Shown(make_token(&call.app, &call.caller, &new).await?)))
}

/// Adds a token.
pub async fn make_token(app: &App, caller: &Caller, new: &NewToken) -> Result<MadeToken> {
    let scopes = Scopes::parse(&new.scopes)?;
    check_first(caller, &scopes)?;
    let (token, secret) = new_token(new, scopes, app.now_us(), caller.name())?;
    let new = &token;
    let added = app.store.transact(|tx| async move {
        // An earlier attempt, whose outcome was unknown, may have added the token.
        if identities::token(&tx, &app.keys, &new.id).await?.is_none() {
            check_open(&tx, app, caller).await?;
        }
        Ok::<_, V1Error>(identities::add_token(&tx, &app.keys, new).await?)
    });
    added.await?;
    app.identities.changed().await;
    tracing::info!(by = caller.name(), token = token.id, scopes = ?token.scopes.texts(), "a token was added");
    Ok(made_token(token, &secret))
}

/// List tokens
///
/// Sorted by id, also those that have expired.
#[utoipa::path(
    get, path = "/tokens", tag = "identities", operation_id = "list_tokens", params(PageParams),
    responses((status = 200, body = Tokens, description = "A page of tokens."), Common),
)]
pub(super) async fn list_tokens(
    Call { app, .. }: Call,
    Params(page): Params<PageParams>,
) -> Result<Shown<Tokens>> {
    tokens(&app, page).await.map(Shown)
}

/// A page of tokens.
pub async fn tokens(app: &App, page: PageParams) -> Result<Tokens> {
    page.check()?;
    let tx = app.store.begin().await?;
    let mut tokens = identities::tokens(&tx, &app.keys, page.after.as_deref(), page.limit + 1).await?;
    let more = tokens.len() > page.limit;
    tokens.truncate(page.limit);
    let next = tokens.last().filter(|_| more).map(|(token, _)| token.id.clone());
    let tokens = tokens.into_iter().map(|(token, used_us)| shown_token(token, used_us)).collect();
    Ok(Tokens { tokens, next })
}

/// Rotate a token
///
/// The token gets a new secret, and keeps its id and its scopes. The old text is invalid from then on, on all nodes within
/// a second. Workers that registered with it remain its workers.
#[utoipa::path(
    post, path = "/tokens/{id}/rotate", tag = "identities", operation_id = "rotate_token", params(TokenPath),
    request_body = Nothing,
    responses(
        (status = 200, body = MadeToken, description = "The token with its new text."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: the token does not exist."),
        BadBody, Common,
    ),
)]
pub(super) async fn rotate_token(call: Call<TokenPath>, _: NoBody) -> Result<Shown<MadeToken>> {
    renew_token(&call.app, &call.caller, &call.path.id).await.map(Shown)
}

/// Gives a token a new secret.
pub async fn renew_token(app: &App, caller: &Caller, id: &str) -> Result<MadeToken> {
    let rotate = |tx: Transaction| async move { identities::rotate_token(&tx, &app.keys, id).await };
    let (token, secret) = change(app, caller, rotate).await?;
    tracing::info!(by = caller.name(), token = id, "a token was rotated");
    Ok(made_token(token, &secret))
}

/// Revoke a token
///
/// It is refused from then on, on all nodes within a second.
#[utoipa::path(
    delete, path = "/tokens/{id}", tag = "identities", operation_id = "revoke_token", params(TokenPath),
    responses(
        (status = 200, body = ChangedIdentity, description = "The token was revoked."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: the token does not exist."),
        (status = 409, body = turnwise_protocol::Error,
            description = "`conflict`: it is the last identity with the scope `admin`."),
        Common,
    ),
)]
pub(super) async fn revoke_token(call: Call<TokenPath>) -> Result<Shown<ChangedIdentity>> {
    drop_token(&call.app, &call.caller, &call.path.id).await.map(Shown)
}

/// Revokes a token.
pub async fn drop_token(app: &App, caller: &Caller, id: &str) -> Result<ChangedIdentity> {
    let now_us = app.now_us();
    change(app, caller, |tx| async move { identities::revoke_token(&tx, &app.keys, id, now_us).await })
        .await?;
    tracing::info!(by = caller.name(), token = id, "a token was revoked");
    Ok(ChangedIdentity { ok: true })
}
