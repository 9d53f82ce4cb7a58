//! A node that cannot use its store does not start: it exits with code 1, and one line states what to do.

use turnwise_queue::Keyspace;
use turnwise_testkit::{EtcdCluster, Link, free_ports};

use crate::server::{Home, PATIENCE, turnwise};

/// Runs `serve` until it exits. Returns its message, which must be one line.
async fn refused(store: &str) -> String {
    let mut command = turnwise();
    command
        .args(["serve", "--insecure-no-auth", "--listen", "127.0.0.1:0"])
        .env("TURNWISE_STORE", store)
        .kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await.expect("it does not give up");
    let ended = crate::server::clean(ended.unwrap());
    let text = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.starts_with("turnwise: cannot start: ") && !text.contains("hunter2"), "{text}");
    text
}

/// Asserts that a text contains all of these words.
#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[tokio::test]
async fn a_missing_cluster_is_named() {
    let address = format!("127.0.0.1:{}", free_ports(1)[0]);
    let text = refused(&format!("etcd://user:hunter2@{address}/p")).await;
    says(&text, &[&format!("etcd://{address}/p")]);
}

#[tokio::test]
async fn a_start_gives_up_on_a_cluster_that_does_not_answer() {
    let link = Link::before("127.0.0.1:1").await;
    link.cut();
    let text = refused(&format!("etcd://user:hunter2@{}/p", link.address())).await;
    says(&text, &[&link.address()]);
}

#[tokio::test]
async fn a_rejected_user_is_named_with_the_reason() {
    let options = EtcdCluster::options().members(1).user("root", "hunter2right");
    let Some(cluster) = options.start().await else { return };
    cluster.add_user("alice", "hunter2", "hers/").await;
    let address = &cluster.endpoints()[0];
    says(&refused(&format!("etcd://root:hunter2wrong@{address}/p")).await, &["root", "password"]);
    says(&refused(&format!("etcd://{address}/p")).await, &["user", "password"]);
    says(&refused(&format!("etcd://alice:hunter2@{address}/his")).await, &["alice", "permission"]);

    let home = Home::on(&format!("etcd://alice:hunter2@{address}/hers"), "");
    let server = home.serve().await;
    server.post("/v1/jobs/mail", &serde_json::json!({ "id": "one" })).await;
    assert!(server.terminate().await.success());
    assert!(!home.log().contains("hunter2"), "the password is in the log");
    assert!(cluster.count("hers/").await > 0);
}

#[tokio::test]
async fn a_cluster_with_tls_is_used_with_its_certificates() {
    let Some(cluster) = EtcdCluster::options().members(1).tls().start().await else { return };
    let server = Home::on(&cluster.url("p"), "").serve().await;
    server.post("/v1/jobs/mail", &serde_json::json!({ "id": "one" })).await;
    assert!(server.terminate().await.success());

    let address = &cluster.endpoints()[0];
    refused(&format!("etcd://{address}/p")).await;
    let text = refused(&format!("etcds://{address}/p")).await;
    says(&text, &["certificate"]);
    let text = refused(&format!("etcds://{address}/p?ca=/no/such/file")).await;
    says(&text, &["/no/such/file"]);
}

#[tokio::test]
async fn rows_of_another_program_are_left_alone() {
    let Some(cluster) = EtcdCluster::shared().await else { return };
    cluster.put("foreign/registry/pods", "1").await;
    says(&refused(&cluster.url("foreign")).await, &["/foreign", "registry/pods", "prefix"]);
    assert_eq!((cluster.count("foreign/").await, cluster.count("foreign").await), (1, 1));

    // A prefix next to the foreign one is free.
    cluster.put("foreigner", "1").await;
    let server = Home::on(&cluster.url("foreign2"), "").serve().await;
    assert!(server.terminate().await.success());
    assert_eq!(cluster.get("foreigner").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_store_in_another_releases_format_is_refused() {
    // A cluster of its own, because the test compares the cluster's revision, which every write moves.
    let Some(cluster) = EtcdCluster::options().members(1).start().await else { return };
    let url = cluster.url("format");
    let server = Home::on(&url, "").serve().await;
    assert!(server.terminate().await.success());
    let key = String::from_utf8(Keyspace::default().format().to_vec()).unwrap();
    let key = format!("format/{key}");
    let version = cluster.get(&key).await.expect("a store has a format");
    for (other, expected) in [("4711", "4711"), ("\"what?\"", "what?")] {
        cluster.put(&key, other).await;
        let before = cluster.revision().await;
        says(&refused(&url).await, &["format", expected, "release"]);
        assert_eq!(cluster.revision().await, before, "what could not be understood was written to");
    }
    cluster.put(&key, &version).await;
    assert!(Home::on(&url, "").serve().await.terminate().await.success());
}
