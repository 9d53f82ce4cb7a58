//! Jobs whose addition was acknowledged exist after `kill -9`, however many additions were in flight.

use std::collections::BTreeSet;

use futures::future::join_all;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::server::{Home, Server};

const ROUNDS: usize = 20;
/// The number of additions that are acknowledged in a round before the server is killed.
const ADDS: u32 = 10_000;
/// The number of clients that add one job per request, and of clients that add many.
const SINGLE_CLIENTS: usize = 32;
const BATCH_CLIENTS: usize = 4;
const BATCH: usize = 100;

/// The status and body of the answer; `None` if the server is gone before the answer is complete.
async fn try_post(http: &Client, url: &str, body: &Value) -> Option<(StatusCode, Value)> {
    let request = http.post(url).header("content-type", "application/json").body(body.to_string());
    let answer = request.send().await.ok()?;
    let status = answer.status();
    Some((status, serde_json::from_str(&answer.text().await.ok()?).ok()?))
}

/// Adds jobs of a round until the server is gone; returns the ids that it acknowledged.
async fn add_until_killed(
    server: &Server,
    round: usize,
    client: usize,
    acknowledged: &Semaphore,
) -> Vec<String> {
    let http = turnwise_testkit::client();
    let many = client >= SINGLE_CLIENTS;
    let mut mine = Vec::new();
    for request in 0.. {
        let ids: Vec<String> =
            (0..if many { BATCH } else { 1 }).map(|n| format!("{client}-{request}-{n}")).collect();
        let job_type = format!("round-{round}");
        let (path, body) = if many {
            let jobs: Vec<Value> = ids.iter().map(|id| json!({ "type": job_type, "id": id })).collect();
            ("/v1/jobs".to_owned(), json!({ "jobs": jobs }))
        } else {
            (format!("/v1/jobs/{job_type}"), json!({ "id": ids[0] }))
        };
        match try_post(&http, &format!("{}{path}", server.url()), &body).await {
            Some((status, answer)) => {
                assert!(status.is_success(), "{status} {answer}");
                acknowledged.add_permits(ids.len());
                mine.extend(ids);
            }
            None => break,
        }
    }
    mine
}

/// The ids of all jobs of a type.
async fn ids(server: &Server, job_type: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/v1/jobs?type={job_type}&limit=1000{after}")).await;
        for job in page["jobs"].as_array().unwrap() {
            assert_eq!(job["state"], "pending");
            ids.insert(job["id"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return ids,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_jobs_are_there_after_kill_9() {
    let home = Home::new("");
    for round in 0..ROUNDS {
        let server = home.serve().await;
        let acknowledged = Semaphore::new(0);
        let clients = (0..SINGLE_CLIENTS + BATCH_CLIENTS)
            .map(|client| add_until_killed(&server, round, client, &acknowledged));
        let kill = async {
            let _enough = acknowledged.acquire_many(ADDS).await.unwrap();
            server.kill_now().await;
        };
        let (kept, ()) = tokio::join!(join_all(clients), kill);
        let kept: BTreeSet<String> = kept.into_iter().flatten().collect();
        assert!(kept.len() >= ADDS as usize);

        let server = home.serve().await;
        let found = ids(&server, &format!("round-{round}")).await;
        let lost: Vec<&String> = kept.difference(&found).take(5).collect();
        assert!(
            lost.is_empty(),
            "round {round}: of {} acknowledged jobs some are gone: {lost:?}",
            kept.len()
        );
        server.kill().await;
    }
}
