//! npm clients for CouchDB that do not know turnwise: nano and PouchDB, unmodified (`peers/nano.mjs`,
//! `peers/pouchdb.mjs`).

use tokio::process::Command;
use turnwise_testkit::{Dataset, Peer, peers_folder};

use crate::server::{Home, PATIENCE};

/// Runs one of the scripts against a new server, with a source of ten documents.
async fn drive(script: &str) {
    let peer = Peer::start().await;
    let source = peer.create("source").await;
    Dataset::plain(10).load(&source).await;
    let home = Home::new("connection_timeout = 30000");
    let server = home.serve().await;
    let run = Command::new("node")
        .arg(peers_folder().join(script))
        .args([server.url(), source.url(), peer.url()])
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, run).await.expect("the script does not end").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{wrong}\nafter:\n{said}");
    assert!(said.lines().count() > 5, "it did nothing: {said}");
}

#[tokio::test]
async fn nano_steers_replications() {
    drive("nano.mjs").await;
}

#[tokio::test]
async fn pouchdb_uses_the_replicator_database() {
    drive("pouchdb.mjs").await;
}
