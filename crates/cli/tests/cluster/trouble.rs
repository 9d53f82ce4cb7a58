//! A store that fails under a running node: the node reports it, answers in time, and later continues with nothing lost.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use turnwise_testkit::{EtcdCluster, Link};

use crate::server::{Home, Server};

/// The limit for an answer to a request that cannot be served. Far less than the timeout of a client: the store's own limits
/// bound the answer, and a busy machine adds to that.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const T: &str = "work";
const CONFIG: &str =
    "[workers]\nhealth_interval = 1\nhealth_timeout = 4\n[command]\nenabled = true\nallow_root = true\n";

async fn add(server: &Server, ids: std::ops::Range<usize>) {
    let job = |n: usize| json!({ "type": T, "id": n.to_string(), "options": { "n": n } });
    server.post("/v1/jobs", &json!({ "jobs": ids.map(job).collect::<Vec<_>>() })).await;
}

/// What the node reports about its store: `None` while the store works.
async fn trouble(server: &Server) -> Option<Value> {
    let (status, body) = server.request(Method::GET, "/_up", None).await;
    match status {
        StatusCode::OK => None,
        StatusCode::SERVICE_UNAVAILABLE => Some(body),
        other => panic!("/_up: {other} {body}"),
    }
}

/// Waits until `/_up` reports a problem of the store with one of these words.
async fn until_trouble(server: &Server, words: &[&str]) {
    let started = Instant::now();
    loop {
        let told = trouble(server).await.map(|told| told.to_string());
        if told.as_ref().is_some_and(|told| words.iter().any(|word| told.contains(word))) {
            return;
        }
        assert!(started.elapsed() < crate::server::PATIENCE, "/_up says {told:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_fine(server: &Server) {
    server.until("/_up", |answer| answer["status"] == "ok").await;
}

/// Checks that a write is refused in time, and that the answer states when to retry.
async fn a_write_is_refused(server: &Server) {
    let started = Instant::now();
    let answer = turnwise_testkit::client()
        .post(format!("{}/v1/jobs/nobody-works-on-these", server.url()))
        .json(&json!({}))
        .timeout(crate::server::PATIENCE)
        .send();
    let answer = answer.await.unwrap();
    assert!(started.elapsed() < ANSWER_WITHIN, "it took {:?}", started.elapsed());
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    let body: Value = answer.json().await.unwrap();
    assert!(body["reason"].is_string(), "{body}");
}

/// How often the log has this message.
fn said(home: &Home, words: &str) -> usize {
    home.log().lines().filter(|line| line.contains(words)).count()
}

/// Runs an external worker until `count` ends of jobs are acknowledged, despite all faults.
async fn work(url: String, count: usize) {
    let client = turnwise_client::Client::new(&url).unwrap();
    let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let stop = tokio_util::sync::CancellationToken::new();
    let options = turnwise_client::WorkerOptions { slots: 4, ..turnwise_client::WorkerOptions::new(T) };
    let handler = move |run: turnwise_client::Run| {
        let _ = sender.send(run.job.id);
        async { turnwise_client::Outcome::completed(&json!({})) }
    };
    let working = tokio::spawn({
        let (client, stop) = (client.clone(), stop.clone());
        async move { turnwise_client::work(&client, options, handler, stop).await }
    });
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < count {
        seen.insert(ended.recv().await.unwrap());
    }
    stop.cancel();
    working.await.unwrap().unwrap();
}

/// Checks that every job has completed, once.
async fn all_ended_once(server: &Server, count: usize) {
    let ended = |page: &Value| {
        let jobs = page["jobs"].as_array().unwrap();
        jobs.len() == count && jobs.iter().all(|job| job["state"] == "completed")
    };
    let page = server.until(&format!("/v1/jobs?type={T}&limit=1000"), ended).await;
    for job in page["jobs"].as_array().unwrap() {
        let count =
            |kind| job["history"].as_array().unwrap().iter().filter(|event| event["type"] == kind).count();
        assert_eq!((count("added"), count("completed")), (1, 1), "{job}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_is_reported_and_nothing_is_lost() {
    let Some(cluster) = EtcdCluster::options().members(1).quota_bytes(16 << 20).start().await else { return };
    let home = Home::on(&cluster.url("p"), CONFIG);
    let server = home.serve().await;
    until_fine(&server).await;
    add(&server, 0..20).await;
    // Another client of etcd fills it.
    let value = "x".repeat(1 << 20);
    let mut keys = 0;
    while cluster.try_put(&format!("other/{keys}"), &value).await.is_ok() {
        keys += 1;
        assert!(keys < 100, "there was room for sixteen");
    }
    until_trouble(&server, &["NOSPACE"]).await;
    a_write_is_refused(&server).await;
    // Reads still work.
    assert_eq!(server.get(&format!("/v1/jobs/{T}/7")).await["state"], "pending");
    assert!(trouble(&server).await.is_some(), "a read made the node forget that it cannot write");
    let working = tokio::spawn(work(server.url().to_owned(), 20));

    for key in 0..keys {
        cluster.delete(&format!("other/{key}")).await;
    }
    cluster.make_room().await;
    until_fine(&server).await;
    working.await.unwrap();
    add(&server, 20..25).await;
    work(server.url().to_owned(), 5).await;
    all_ended_once(&server, 25).await;
    // Once for each time that the store failed. A busy disk may add one, but retries must not.
    let (fails, works) = (said(&home, "the store fails"), said(&home, "the store works again"));
    assert!(fails == works && (1..=3).contains(&fails), "{fails}, {works}: {}", home.log());
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_quorum_is_reported_and_nothing_is_lost() {
    let Some(cluster) = EtcdCluster::start().await else { return };
    let home = Home::on(&cluster.url("p"), CONFIG);
    let server = home.serve().await;
    add(&server, 0..20).await;
    let working = tokio::spawn(work(server.url().to_owned(), 20));
    cluster.kill(0).await;
    cluster.kill(1).await;
    until_trouble(&server, &["etcd"]).await;
    a_write_is_refused(&server).await;
    tokio::join!(cluster.restart(0), cluster.restart(1));
    until_fine(&server).await;
    working.await.unwrap();
    add(&server, 20..25).await;
    work(server.url().to_owned(), 5).await;
    all_ended_once(&server, 25).await;
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_its_store_reports_it_while_other_nodes_continue() {
    let Some(cluster) = EtcdCluster::shared().await else { return };
    let mut links = Vec::new();
    for endpoint in cluster.endpoints() {
        links.push(Link::before(&endpoint).await);
    }
    let addresses: Vec<String> = links.iter().map(Link::address).collect();
    let (far, near) =
        (Home::on(&cluster.url_at(&addresses, "cut"), CONFIG), Home::on(&cluster.url("cut"), CONFIG));
    let (cut, server) = (far.serve().await, near.serve().await);
    add(&cut, 0..20).await;
    // First each node's worker is registered. The worker of a node without its store is removed after the health timeout.
    let commands = |count: usize| move |answer: &Value| answer["workers"].as_array().unwrap().len() == count;
    server.until("/v1/workers?type=command", commands(2)).await;
    links.iter().for_each(Link::cut);
    until_trouble(&cut, &["etcd"]).await;
    a_write_is_refused(&cut).await;
    server.until("/v1/workers?type=command", commands(1)).await;
    until_fine(&server).await;
    work(server.url().to_owned(), 20).await;

    links.iter().for_each(Link::restore);
    until_fine(&cut).await;
    cut.until("/v1/workers?type=command", commands(2)).await;
    add(&cut, 20..25).await;
    work(cut.url().to_owned(), 5).await;
    all_ended_once(&server, 25).await;
    assert!(cut.terminate().await.success());
    assert!(server.terminate().await.success());
}
