//! A tenant at its limit of waiting jobs: what was added already may be added once more, single or in a batch, because a client that got no
//! answer can do nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::World;
use super::api::{Answer, Api};
use super::identity::token;
use turnwise_testkit::Random;

/// The type of the jobs, which nobody runs, and their tenant.
const TYPE: &str = "full";
/// `[limits] waiting_jobs`: more than other tenants ever have.
pub(super) const WAITING_JOBS: usize = 400;
/// The number of jobs in a request.
const BATCH: usize = 25;
/// The number of repetitions at the limit, and the pause after them.
const REPEATED: usize = 10;
const PAUSE: Duration = Duration::from_secs(5);
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// An answer is there within this time, outside of faults.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fills the tenant, repeats, and empties it, until the end.
pub(super) async fn run(world: Arc<World>) {
    let token = match token(&world.api, &[&format!("client:{TYPE}")]).await {
        Ok(token) => token,
        Err(problem) => return world.ledger.finding(problem),
    };
    let api = world.identities.client(0).of(&token);
    let mut random = Random::new(world.options.seed ^ 0xf011);
    let mut number = 0;
    while !world.stop.is_cancelled() {
        number += 1;
        let mut added: Vec<Value> = Vec::new();
        // A batch more than what may wait.
        for batch in 0..=WAITING_JOBS / BATCH {
            let jobs: Vec<Value> = (0..BATCH).map(|n| job(&format!("{number}-{batch}-{n}"))).collect();
            match add(&world, &api, &mut random, &jobs).await {
                Some(true) => added.extend(jobs),
                Some(false) => break,
                None => return,
            }
        }
        if added.len() > WAITING_JOBS && world.nodes.len() == 1 {
            let text = format!("{} of {WAITING_JOBS}", added.len());
            world.ledger.repeated("more jobs wait than a tenant may have", &text);
        }
        for _ in 0..REPEATED {
            let from = usize::try_from(random.below((1 + added.len().saturating_sub(BATCH)) as u64))
                .expect("an index");
            let count = if random.below(2) == 0 { 1 } else { BATCH };
            let Some(jobs) = added.get(from..from + count) else { continue };
            if add(&world, &api, &mut random, jobs).await == Some(false) {
                let text = format!("{count} jobs from {} on", jobs[0]["id"]);
                world
                    .ledger
                    .repeated("jobs that are there were refused for the limit of waiting jobs", &text);
            }
        }
        world.counts.add("tenants filled to their limit", 1);
        empty(&world, &mut random, number).await;
        tokio::time::sleep(PAUSE).await;
    }
}

fn job(id: &str) -> Value {
    json!({ "type": TYPE, "id": id, "tenant": TYPE })
}

/// Adds jobs until there is an answer. `Some(false)` if the limit refused them, `None` if the test ends.
async fn add(world: &World, api: &Api, random: &mut Random, jobs: &[Value]) -> Option<bool> {
    let (body, begun) = (json!({ "jobs": jobs }), Instant::now());
    loop {
        let node = usize::try_from(random.below(world.nodes.len() as u64)).expect("small");
        match api.ask(node, Method::POST, "/v1/jobs", Some(&body)).await {
            Answer::Got(status, _) if status.is_success() => return Some(true),
            Answer::Limited => return Some(false),
            Answer::Got(status, answer) => {
                world.ledger.repeated("jobs of a full tenant were refused", &format!("{status} {answer}"));
                return Some(true);
            }
            _ if world.stop.is_cancelled() => return None,
            _ if world.calm.between(begun, Instant::now(), Duration::ZERO) > PATIENCE => {
                world.ledger.repeated("jobs of a full tenant were not added in time", &body.to_string());
                return None;
            }
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Removes all jobs of the tenant.
async fn empty(world: &World, random: &mut Random, number: u64) {
    let path = format!("/v1/bulk/empty-{number}");
    let body = json!({ "action": "remove", "where": format!("type = {TYPE} and tenant = {TYPE}") });
    let mut method = Method::PUT;
    loop {
        let body = (method == Method::PUT).then_some(&body);
        let row = world.ask_some(&world.api, random, method.clone(), &path, body).await;
        if let Answer::Got(_, row) = row {
            method = Method::GET;
            if row["state"] != "running" {
                return;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}
