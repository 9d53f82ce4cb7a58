//! The transactions on users and tokens, on an embedded store.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use turnwise_identity::session::Session;
use turnwise_identity::{Error, Password, Scopes, Token, User, identities};
use turnwise_queue::Keyspace;
use turnwise_store::{Store, StoreUrl, runtime};

async fn store(folder: &tempfile::TempDir) -> Store {
    let url = StoreUrl::embedded(folder.path().join("data"));
    turnwise_store::open(&url, Arc::new(runtime::System)).await.unwrap()
}

fn user(name: &str, scope: &str) -> User {
    let hash = Password::new("a password".to_owned()).unwrap().hash();
    User::new(name, hash, Scopes::parse(&[scope]).unwrap(), 1).unwrap()
}

async fn add(store: &Store, user: &User) -> Result<(), Error> {
    let keys = &Keyspace::default();
    store.transact(|tx| async move { identities::add_user(&tx, keys, user).await }).await
}

async fn remove(store: &Store, name: &str) -> Result<(), Error> {
    let keys = &Keyspace::default();
    store.transact(|tx| async move { identities::remove_user(&tx, keys, name, 5).await }).await
}

async fn add_token(store: &Store, token: &Token) {
    let keys = &Keyspace::default();
    store.transact(|tx| async move { identities::add_token(&tx, keys, token).await }).await.unwrap();
}

async fn revoke(store: &Store, id: &str) -> Result<(), Error> {
    let keys = &Keyspace::default();
    store.transact(|tx| async move { identities::revoke_token(&tx, keys, id, 5).await }).await
}

fn token(scope: &str, expires_us: Option<i64>) -> Token {
    Token::new(Scopes::parse(&[scope]).unwrap(), "note".to_owned(), 1, expires_us, None).unwrap().0
}

#[tokio::test]
async fn the_first_identity_closes_the_store_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let (store, keys) = (store(&folder).await, Keyspace::default());
    assert!(identities::session_key(&store.begin().await.unwrap(), &keys).await.unwrap().is_none());
    let client = user("jan", "client:acme");
    add(&store, &client).await.unwrap();
    assert!(matches!(add(&store, &client).await, Err(Error::Exists(name)) if name == "jan"));
    let key = identities::session_key(&store.begin().await.unwrap(), &keys).await.unwrap().unwrap();
    remove(&store, "jan").await.unwrap();
    assert!(matches!(remove(&store, "jan").await, Err(Error::NotFound { what: "user", .. })));
    add(&store, &client).await.unwrap();
    let same = identities::session_key(&store.begin().await.unwrap(), &keys).await.unwrap().unwrap();
    let session = Session::parse(&key.start(&client, 7)).unwrap();
    assert!(same.verifies(&session, &client), "the key is written once");
}

#[tokio::test]
async fn the_last_administrator_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder).await;
    let last = |result: Result<(), Error>| matches!(result, Err(Error::LastAdmin(_)));
    add(&store, &user("jan", "admin")).await.unwrap();
    add(&store, &user("anna", "operator")).await.unwrap();
    let (expired, valid) = (token("admin", Some(5)), token("admin", Some(6)));
    add_token(&store, &expired).await;
    assert!(last(remove(&store, "jan").await), "an expired token does not count");
    add_token(&store, &valid).await;
    remove(&store, "jan").await.unwrap();
    assert!(last(revoke(&store, &valid.id).await));
    revoke(&store, &expired.id).await.unwrap();
    remove(&store, "anna").await.unwrap();
}

#[tokio::test]
async fn two_administrators_cannot_remove_each_other_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder).await;
    for _ in 0..20 {
        for name in ["jan", "anna"] {
            let _ = add(&store, &user(name, "admin")).await;
        }
        let (one, other) = tokio::join!(remove(&store, "jan"), remove(&store, "anna"));
        assert_ne!(one.is_ok(), other.is_ok(), "{one:?}, {other:?}");
    }
}

#[tokio::test]
async fn lists_have_pages_and_the_last_use() {
    let folder = tempfile::tempdir().unwrap();
    let (store, keys) = (store(&folder).await, &Keyspace::default());
    for n in 0..5 {
        add(&store, &user(&format!("user {n}"), "client:a")).await.unwrap();
    }
    let tx = store.begin().await.unwrap();
    let page = identities::users(&tx, keys, Some("user 1"), 2).await.unwrap();
    assert_eq!(page.iter().map(|user| user.name.as_str()).collect::<Vec<_>>(), ["user 2", "user 3"]);

    let token = token("client:a", None);
    add_token(&store, &token).await;
    let id = token.id.as_str();
    let used = |at_us| store.transact(move |tx| async move { identities::used(&tx, keys, id, at_us).await });
    used(7).await.unwrap();
    let tx = store.begin().await.unwrap();
    let listed = identities::tokens(&tx, keys, None, 10).await.unwrap();
    assert_eq!(
        listed.iter().map(|(token, used_us)| (token.id.as_str(), *used_us)).collect::<Vec<_>>(),
        [(id, Some(7))]
    );
    revoke(&store, id).await.unwrap();
    // A server that has not heard of the revocation yet.
    used(8).await.unwrap();
    let tx = store.begin().await.unwrap();
    assert!(tx.get(&keys.token_use(id)).await.unwrap().is_none());
    assert!(identities::token(&tx, keys, id).await.unwrap().is_none());
}

#[tokio::test]
async fn rotation_keeps_the_id_and_changes_the_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (store, keys) = (store(&folder).await, &Keyspace::default());
    let (token, first) = Token::new(Scopes::all(), String::new(), 1, None, Some("jan".to_owned())).unwrap();
    add_token(&store, &token).await;
    let id = token.id.as_str();
    let rotated = store.transact(|tx| async move { identities::rotate_token(&tx, keys, id).await });
    let (_, second) = rotated.await.unwrap();
    let stored = identities::token(&store.begin().await.unwrap(), keys, id).await.unwrap().unwrap();
    assert!(stored.verifies(&second) && !stored.verifies(&first));
    assert_eq!((stored.id.as_str(), stored.created_by.as_deref()), (id, Some("jan")));
    let hash = Password::new("another one".to_owned()).unwrap().hash();
    let unknown = store.transact(|tx| {
        let hash = hash.clone();
        async move { identities::set_password(&tx, keys, "nobody", hash).await }
    });
    assert!(matches!(unknown.await, Err(Error::NotFound { what: "user", .. })));
}
