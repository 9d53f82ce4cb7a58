//! `turnwise replicate`, and replications among `turnwise jobs`.

use std::process::Output;

use serde_json::json;
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};

use crate::server::{Home, turnwise};

async fn run(args: &[&str]) -> Output {
    crate::server::clean(turnwise().args(args).output().await.unwrap())
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn the_command_copies_the_standard_data_set_and_then_finds_nothing_to_do() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    let loaded = Dataset::standard().load(&source).await;
    let target = b.db("target");
    let output = run(&["replicate", source.url(), target.url(), "--create-target"]).await;
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains(&format!("{} documents written", loaded.leaves)), "{output:?}");
    let summary = compare(&source, &target).await.expect("source and target must agree");
    assert_eq!(summary.leaves, loaded.leaves);

    let output = run(&["replicate", source.url(), target.url(), "--create-target"]).await;
    assert!(output.status.success() && stdout(&output).contains("Nothing to copy"), "{output:?}");
}

#[tokio::test]
async fn only_the_documents_that_were_asked_for_are_copied() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    for (id, kind) in [("one", "x"), ("two", "y"), ("three", "x")] {
        source.put(id, &json!({ "kind": kind })).await;
    }
    let second = source.get("/_changes?limit=2").await["last_seq"].clone();
    let second = second.as_str().map_or_else(|| second.to_string(), str::to_owned);
    let cases: [(&str, &[&str], u64); 3] = [
        ("ids", &["--doc-ids", "one,two"], 2),
        ("selector", &["--selector", r#"{"kind":"x"}"#], 2),
        ("since", &["--since", &second], 1),
    ];
    for (name, args, count) in cases {
        let target = b.create(name).await;
        let output = run(&[&["replicate", source.url(), target.url()], args].concat()).await;
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(target.doc_count().await, count, "{name}");
    }
}

#[tokio::test]
async fn exit_codes_distinguish_failures_from_wrong_usage() {
    let wrong: [&[&str]; 7] = [
        &["replicate"],
        &["replicate", "not-a-url", "http://127.0.0.1:1/b"],
        &["replicate", "http://127.0.0.1:1/a", "http://127.0.0.1:1/b", "--config", "/no/such.ini"],
        &["replicate", "http://127.0.0.1:1/a", "http://127.0.0.1:1/b", "--selector", "{"],
        &["replicate", "http://127.0.0.1:1/a", "http://127.0.0.1:1/b", "--doc-ids", "a", "--selector", "{}"],
        &["jobs", "list", "--server", "nowhere"],
        &["no-such-command"],
    ];
    for args in wrong {
        let output = run(args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(!stderr(&output).is_empty());
    }
    let output = run(&[
        "replicate",
        "http://127.0.0.1:1/a",
        "http://127.0.0.1:1/b",
        "--option",
        "retries_per_request=0",
    ])
    .await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("source") && stderr(&output).contains("no connection"), "{output:?}");
    let output = run(&["jobs", "list", "--server", "http://127.0.0.1:1"]).await;
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(stderr(&output).contains("is `turnwise serve` running there?"), "{output:?}");
}

#[tokio::test]
async fn the_peers_error_message_reaches_the_user() {
    let peer = Peer::start().await;
    let target = peer.create("target").await;
    let output = run(&["replicate", peer.db("missing").url(), target.url()]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("404 not_found"), "{output:?}");
}

#[tokio::test]
async fn an_interrupted_replication_resumes_where_it_stopped() {
    let (a, b) = Peer::pair().await;
    let (source, target) = (a.create("source").await, b.create("target").await);
    Dataset::plain(2_000).load(&source).await;
    let proxy = FaultProxy::start(&a).await;
    proxy.set(Fault::Slow { bytes_per_second: 100_000 }).await;
    let url = proxy.through(&source);
    let args = ["replicate", &url, target.url(), "--option", "worker_batch_size=100"];
    let targets = FaultProxy::start(&b).await;
    let slow_args = ["replicate", &url, &targets.through(&target), "--option", "worker_batch_size=100"];
    let child = turnwise()
        .args(slow_args)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    targets.wait_for(|request| request.path.contains("_bulk_docs") && request.answered).await;
    let pid = child.id().unwrap().to_string();
    assert!(tokio::process::Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    let output = crate::server::clean(child.wait_with_output().await.unwrap());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("run the same command again"), "{output:?}");

    proxy.set(Fault::None).await;
    let output = run(&args).await;
    assert!(output.status.success(), "{output:?}");
    compare(&source, &target).await.expect("source and target must agree");
}

#[tokio::test]
async fn replications_are_jobs_like_others() {
    let (a, b) = Peer::pair().await;
    let (source, target) = (a.create("source").await, b.create("target").await);
    let home = Home::new("");
    let server = home.serve().await;
    let at = ["--server", server.url()];
    let output = run(&[&["jobs", "list"], &at[..]].concat()).await;
    assert_eq!(stdout(&output).trim(), "No jobs.");

    let body = json!({ "source": source.url(), "target": target.url(), "continuous": true });
    let id = server.post("/_replicate", &body).await["_local_id"].as_str().unwrap().to_owned();
    server.until("/_active_tasks", |tasks| tasks[0]["replication_id"] == id.as_str()).await;
    let output = run(&[&["jobs", "list", "--type", "replication"], &at[..]].concat()).await;
    let text = stdout(&output);
    assert!(text.contains(&id) && text.contains("running") && text.contains("STATE"), "{text}");
    let output = run(&[&["jobs", "show", "replication", &id], &at[..]].concat()).await;
    let job: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(job["id"], id.as_str());
    let output = run(&[&["jobs", "remove", "replication", &id], &at[..]].concat()).await;
    assert!(output.status.success(), "{output:?}");
    server.until("/_scheduler/jobs", |jobs| jobs["total_rows"] == 0).await;
    let output = run(&[&["jobs", "cancel", "replication", &id], &at[..]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("there is no job"), "{output:?}");
}
