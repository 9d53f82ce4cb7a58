//! npm clients for CouchDB that do not know turnwise: nano and PouchDB, unmodified (`peers/nano.mjs`,
//! `peers/pouchdb.mjs`).

use serde_json::json;
use tokio::process::Command;
use turnwise_testkit::{Dataset, Peer, peers_folder};

use crate::server::{Home, PATIENCE};

/// How a script proves who it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Login {
    /// The server is open.
    Nothing,
    /// With a password in each request.
    Basic,
    /// With a session.
    Session,
}

/// Runs one of the scripts against a new server, with a source of ten documents.
async fn drive(script: &str, login: Login) {
    drive_from(None, script, login).await;
}

/// The same, as a page of another origin if there is one: the script then keeps a browser's rules.
async fn drive_from(page: Option<&str>, script: &str, login: Login) {
    let peer = Peer::start().await;
    let source = peer.create("source").await;
    Dataset::plain(10).load(&source).await;
    let cors = page.map_or(String::new(), |page| {
        format!("[chttpd]\nenable_cors = true\n[cors]\norigins = {page}\ncredentials = true\n")
    });
    let home = Home::new(&format!("connection_timeout = 30000\n[egress]\nallow = 127.0.0.1\n{cors}"));
    let server = home.serve().await;
    let mut command = Command::new("node");
    command.arg(peers_folder().join(script)).kill_on_drop(true);
    if let Some(page) = page {
        command.env("TURNWISE_PAGE", page);
    }
    let mut url = server.url().to_owned();
    if login != Login::Nothing {
        for (name, scope) in [("admin", "admin"), ("jan", "client:*")] {
            let user = json!({"name": name, "password": "correct-horse", "scopes": [scope]});
            let request =
                server.client().post(format!("{url}/v1/users")).basic_auth("admin", Some("correct-horse"));
            let added =
                request.header("content-type", "application/json").body(user.to_string()).send().await;
            assert_eq!(added.unwrap().status(), 201);
        }
        command.env("TURNWISE_USER", "jan");
    }
    match login {
        Login::Nothing => {}
        Login::Basic => url = url.replace("http://", "http://jan:correct-horse@"),
        Login::Session => drop(command.env("TURNWISE_LOGIN", "jan:correct-horse")),
    }
    let run = command.args([&url, source.url(), peer.url()]).output();
    let output = tokio::time::timeout(PATIENCE, run).await.expect("the script does not end").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{wrong}\nafter:\n{said}");
    assert!(said.lines().count() > 5, "it did nothing: {said}");
}

#[tokio::test]
async fn nano_steers_replications() {
    drive("nano.mjs", Login::Nothing).await;
}

#[tokio::test]
async fn nano_logs_in() {
    drive("nano.mjs", Login::Basic).await;
    drive("nano.mjs", Login::Session).await;
}

#[tokio::test]
async fn pouchdb_uses_the_replicator_database() {
    drive("pouchdb.mjs", Login::Nothing).await;
}

#[tokio::test]
async fn pouchdb_logs_in() {
    drive("pouchdb.mjs", Login::Basic).await;
    drive("pouchdb.mjs", Login::Session).await;
}

#[tokio::test]
async fn pouchdb_works_in_a_page_of_a_configured_origin() {
    drive_from(Some("https://app.example"), "pouchdb.mjs", Login::Basic).await;
}
