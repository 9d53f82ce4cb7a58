//! Requests about users and tokens.

use reqwest::Method;
use turnwise_protocol::{
    ChangedIdentity, MadeToken, Me, NewToken, NewUser, SetPassword, SetScopes, Token, Tokens, User, Users,
};

use crate::client::{Repeat, Request};
use crate::jobs::Pages;
use crate::{Client, Result};

impl Client {
    /// The identity that this client sends, and what it may do.
    ///
    /// # Errors
    /// The identity is refused, or the server does not answer.
    pub async fn me(&self) -> Result<Me> {
        self.read(&["me"]).await
    }

    /// Adds a user.
    ///
    /// # Errors
    /// The user exists, the server refuses the request, or does not answer.
    pub async fn add_user(&self, user: &NewUser) -> Result<User> {
        self.call(&Request::new(Method::POST, &["users"]).json(user)?, Repeat::IfUnsent).await
    }

    /// All users, by name.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn users(&self) -> Result<Vec<User>> {
        let request = Request::new(Method::GET, &["users"]);
        Pages::new(self, request, |page: Users| (page.users, page.next)).all().await
    }

    /// Changes a user's password, which ends the user's sessions.
    ///
    /// # Errors
    /// There is no such user, the server refuses the request, or does not answer.
    pub async fn set_password(&self, name: &str, password: String) -> Result<()> {
        let body = SetPassword { password };
        self.put::<ChangedIdentity>(&["users", name, "password"], &body).await.map(drop)
    }

    /// Sets what a user may do, instead of what it could do before.
    ///
    /// # Errors
    /// There is no such user, it is the last administrator, the server refuses the request, or does not answer.
    pub async fn set_scopes(&self, name: &str, scopes: Vec<String>) -> Result<User> {
        self.put(&["users", name, "scopes"], &SetScopes { scopes }).await
    }

    /// Removes a user.
    ///
    /// # Errors
    /// There is no such user, the server refuses the request, or does not answer.
    pub async fn remove_user(&self, name: &str) -> Result<()> {
        let request = Request::new(Method::DELETE, &["users", name]);
        self.call::<ChangedIdentity>(&request, Repeat::IfUnsent).await.map(drop)
    }

    /// Adds a token. Only this answer has its text.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer. In the second case, there may be a token whose text nobody knows:
    /// revoke it.
    pub async fn add_token(&self, token: &NewToken) -> Result<MadeToken> {
        self.call(&Request::new(Method::POST, &["tokens"]).json(token)?, Repeat::IfUnsent).await
    }

    /// All tokens, by id.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn tokens(&self) -> Result<Vec<Token>> {
        let request = Request::new(Method::GET, &["tokens"]);
        Pages::new(self, request, |page: Tokens| (page.tokens, page.next)).all().await
    }

    /// Gives a token a new secret. The old text is invalid from then on.
    ///
    /// # Errors
    /// There is no such token, the server refuses the request, or does not answer.
    pub async fn rotate_token(&self, id: &str) -> Result<MadeToken> {
        self.call(&Request::new(Method::POST, &["tokens", id, "rotate"]), Repeat::Harmless).await
    }

    /// Revokes a token.
    ///
    /// # Errors
    /// There is no such token, the server refuses the request, or does not answer.
    pub async fn revoke_token(&self, id: &str) -> Result<()> {
        let request = Request::new(Method::DELETE, &["tokens", id]);
        self.call::<ChangedIdentity>(&request, Repeat::IfUnsent).await.map(drop)
    }
}
