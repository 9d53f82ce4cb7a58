//! Changes of users and tokens in a store that no server serves to the caller.

use std::sync::Arc;

use turnwise_api::tokens::{made_token, new_token, shown_token, shown_user};
pub use turnwise_identity::Error;
use turnwise_identity::{Password, Scopes, User, identities};
use turnwise_protocol as api;
use turnwise_queue::Keyspace;
use turnwise_store::{Seal, Store, StoreUrl, runtime};

use crate::start::{self, StartError};

/// The most rows of a page.
const PAGE: usize = 500;

/// The users and tokens of a store. Every process that may write to the store may change them. An [`Error`] of a method is that of the
/// store, or states why a change is not possible.
pub struct Identities {
    store: Store,
    keys: Keyspace,
}

impl Identities {
    /// Opens a store; creates it if it is missing.
    ///
    /// # Errors
    /// The store cannot be opened, is not turnwise's, or is used by another release.
    pub async fn open(url: &StoreUrl, seal: &Seal) -> Result<Identities, StartError> {
        let opened = start::open(url, Arc::new(runtime::System), seal).await?;
        let keys = Keyspace::default();
        opened.asked(start::claim_store(&opened, &keys)).await?;
        Ok(Identities { store: opened.store, keys })
    }

    fn now_us(&self) -> i64 {
        self.store.runtime().now_us()
    }

    /// The first identity must be able to add others.
    async fn check_first(&self, scopes: &Scopes) -> Result<(), Error> {
        let tx = self.store.begin().await?;
        match scopes.administer() || identities::session_key(&tx, &self.keys).await?.is_some() {
            true => Ok(()),
            false => {
                let problem = "the first identity needs the scope `admin`: nobody could add others";
                Err(Error::Invalid { field: "scopes", problem: problem.to_owned() })
            }
        }
    }

    /// Adds a user.
    pub async fn add_user(&self, new: &api::NewUser) -> Result<(), Error> {
        let scopes = Scopes::parse(&new.scopes)?;
        self.check_first(&scopes).await?;
        let password = Password::new(new.password.clone())?.hash();
        let user = &User::new(&new.name, password, scopes, self.now_us())?;
        self.store.transact(|tx| async move { identities::add_user(&tx, &self.keys, user).await }).await
    }

    /// All users.
    pub async fn users(&self) -> Result<Vec<api::User>, Error> {
        let tx = self.store.begin().await?;
        let mut all: Vec<api::User> = Vec::new();
        loop {
            let after = all.last().map(|user| user.name.clone());
            let page = identities::users(&tx, &self.keys, after.as_deref(), PAGE).await?;
            let exhausted = page.len() < PAGE;
            all.extend(page.into_iter().map(shown_user));
            if exhausted {
                return Ok(all);
            }
        }
    }

    /// Changes a password.
    pub async fn set_password(&self, name: &str, password: String) -> Result<(), Error> {
        let hash = &Password::new(password)?.hash();
        let set = self.store.transact(|tx| async move {
            identities::set_password(&tx, &self.keys, name, hash.clone()).await
        });
        set.await
    }

    /// Sets what a user may do.
    pub async fn set_scopes(&self, name: &str, scopes: &[String]) -> Result<(), Error> {
        let (scopes, now_us) = (&Scopes::parse(scopes)?, self.now_us());
        let set = self.store.transact(|tx| async move {
            identities::set_scopes(&tx, &self.keys, name, scopes.clone(), now_us).await
        });
        set.await.map(drop)
    }

    /// Removes a user.
    pub async fn remove_user(&self, name: &str) -> Result<(), Error> {
        let now_us = self.now_us();
        let removed = self
            .store
            .transact(|tx| async move { identities::remove_user(&tx, &self.keys, name, now_us).await });
        removed.await
    }

    /// Adds a token.
    pub async fn add_token(&self, new: &api::NewToken) -> Result<api::MadeToken, Error> {
        let scopes = Scopes::parse(&new.scopes)?;
        self.check_first(&scopes).await?;
        let (token, secret) = new_token(new, scopes, self.now_us(), None)?;
        let row = &token;
        self.store.transact(|tx| async move { identities::add_token(&tx, &self.keys, row).await }).await?;
        Ok(made_token(token, &secret))
    }

    /// All tokens.
    pub async fn tokens(&self) -> Result<Vec<api::Token>, Error> {
        let tx = self.store.begin().await?;
        let mut all: Vec<api::Token> = Vec::new();
        loop {
            let after = all.last().map(|token| token.id.clone());
            let page = identities::tokens(&tx, &self.keys, after.as_deref(), PAGE).await?;
            let exhausted = page.len() < PAGE;
            all.extend(page.into_iter().map(|(token, used_us)| shown_token(token, used_us)));
            if exhausted {
                return Ok(all);
            }
        }
    }

    /// Gives a token a new secret.
    pub async fn rotate_token(&self, id: &str) -> Result<api::MadeToken, Error> {
        let rotated =
            self.store.transact(|tx| async move { identities::rotate_token(&tx, &self.keys, id).await });
        let (token, secret) = rotated.await?;
        Ok(made_token(token, &secret))
    }

    /// Revokes a token.
    pub async fn revoke_token(&self, id: &str) -> Result<(), Error> {
        let now_us = self.now_us();
        let revoked = self
            .store
            .transact(|tx| async move { identities::revoke_token(&tx, &self.keys, id, now_us).await });
        revoked.await
    }
}
