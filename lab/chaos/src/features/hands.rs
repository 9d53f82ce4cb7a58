//! The workers of these jobs. Some die without notice, and some of their runs crash or never end.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};

use super::{AGAIN, Features, RATED, TYPE, text};
use crate::api::Answer;
use turnwise_testkit::Random;

/// The types of the workers: one each.
const HANDS: [&str; 5] = [TYPE, TYPE, TYPE, RATED, RATED];
/// The number of slots of each worker.
const SLOTS: usize = 8;
/// The interval of heartbeats.
const PING: Duration = Duration::from_secs(1);
/// How long a request for jobs waits on the server, in ms, and how long the worker waits for its response.
const WAIT_MS: u64 = 3_000;
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(8);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest and the longest life of a worker, in ms.
const LIFE_MS: (u64, u64) = (8_000, 60_000);
/// One in this many runs never reports its end.
const LOST: u64 = 80;
/// The size of a large result: it is not handed on with the claim.
const LARGE: usize = 70 << 10;

pub(super) fn start(features: &Arc<Features>) -> Vec<JoinHandle<()>> {
    let mut seeds = Random::new(features.world.options.seed ^ 0x4a4d);
    let hand = |(number, job_type)| {
        tokio::spawn(work(Arc::clone(features), number, job_type, Random::new(seeds.bits())))
    };
    HANDS.into_iter().enumerate().map(hand).collect()
}

/// Runs one worker after the other.
async fn work(features: Arc<Features>, number: usize, job_type: &'static str, mut random: Random) {
    let world = Arc::clone(&features.world);
    let mut killed = world.kill_workers.subscribe();
    while !world.workers_stop.is_cancelled() {
        let is_calm = features.is_over();
        let body = json!({ "slots": SLOTS, "name": "chaos features" });
        let path = format!("/v1/workers/{job_type}");
        let api = world.identities.worker(number);
        let answer = world.ask_some(api, &mut random, Method::POST, &path, Some(&body)).await;
        let Some(answer) = answer.success() else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let hand = Arc::new(Hand {
            features: Arc::clone(&features),
            number,
            path: format!("{path}/{}", text(&answer["worker"])),
            node: usize::try_from(random.below(2)).expect("small"),
            is_calm,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&hand).ping());
        tasks.spawn(Arc::clone(&hand).accept(Random::new(random.bits())));
        let stop = if is_calm { &world.workers_stop } else { &world.stop };
        let span = Duration::from_millis(LIFE_MS.0 + random.below(LIFE_MS.1 - LIFE_MS.0));
        let is_killed = tokio::select! {
            () = stop.cancelled() => false,
            () = tokio::time::sleep(span), if !is_calm => random.below(2) == 0,
            _ = killed.changed() => true,
            // The server does not know the worker any more.
            _ = tasks.join_next() => true,
        };
        // Without a word to the server, like `kill -9`.
        tasks.shutdown().await;
        if !is_killed {
            let _ = hand.ask("/leave", &json!({})).await;
        }
    }
}

struct Hand {
    features: Arc<Features>,
    number: usize,
    path: String,
    node: usize,
    is_calm: bool,
}

impl Hand {
    async fn ask(&self, path: &str, body: &Value) -> Answer {
        let limit = if path == "/accept" { ACCEPT_TIMEOUT } else { ANSWER_TIMEOUT };
        let world = &self.features.world;
        let node = if world.is_up(self.node) { self.node } else { self.node + 1 };
        let path = format!("{}{path}", self.path);
        world.identities.worker(self.number).ask_within(limit, node, Method::POST, &path, Some(body)).await
    }

    async fn ping(self: Arc<Self>) {
        loop {
            tokio::time::sleep(PING).await;
            if let Answer::Got(StatusCode::GONE, _) = self.ask("/ping", &json!({})).await {
                return;
            }
        }
    }

    async fn accept(self: Arc<Self>, mut random: Random) {
        let mut received = 0;
        let mut runs = JoinSet::new();
        loop {
            while runs.try_join_next().is_some() {}
            if runs.len() >= SLOTS {
                runs.join_next().await;
                continue;
            }
            let body = json!({ "received": received, "limit": SLOTS - runs.len(), "wait_ms": WAIT_MS });
            match self.ask("/accept", &body).await {
                Answer::Got(StatusCode::GONE, _) => return,
                Answer::Got(status, answer) if status.is_success() => {
                    for job in answer["jobs"].as_array().into_iter().flatten() {
                        let claim = job["claim"].as_u64().unwrap_or_default();
                        if claim > received {
                            received = claim;
                            runs.spawn(Arc::clone(&self).run(job.clone(), claim, Random::new(random.bits())));
                        }
                    }
                }
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    async fn run(self: Arc<Self>, job: Value, claim: u64, mut random: Random) {
        let (features, id) = (&self.features, text(&job["id"]));
        features.count("runs of features");
        self.check(&job, id).await;
        let options = &job["options"];
        tokio::time::sleep(Duration::from_millis(options["work_ms"].as_u64().unwrap_or_default())).await;
        if !self.is_calm && random.below(LOST) == 0 {
            return std::future::pending().await;
        }
        let crash = json!({ "claim": claim, "reason": "this time" });
        let failure = json!({ "claim": claim, "reason": "as it should", "retry": false });
        let is_healed = || features.notes().healed.contains(id);
        let (what, body) = match text(&options["do"]) {
            "flaky" if job["attempt"] == 1 => ("fail", crash),
            "fail" => ("fail", failure),
            "heal" if !is_healed() => ("fail", failure),
            _ => ("finish", json!({ "claim": claim, "result": self.result(id, options) })),
        };
        loop {
            match self.ask(&format!("/jobs/{id}/{what}"), &body).await {
                Answer::Got(status, answer) => {
                    let refused = [StatusCode::CONFLICT, StatusCode::GONE].contains(&status);
                    if !status.is_success() && !refused {
                        let text = format!("{what} of {id}: {status} {answer}");
                        features.broken("the end of a run of a feature was refused", &text);
                    }
                    return;
                }
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// The result of a run, which is noted.
    fn result(&self, id: &str, options: &Value) -> Value {
        let mut notes = self.features.notes();
        notes.runs += 1;
        let run = notes.runs;
        notes.told.entry(id.to_owned()).or_default().insert(run);
        let pad = if options["large"] == true { "x".repeat(LARGE) } else { String::new() };
        json!({ "run": run, "pad": pad })
    }

    /// Checks what the worker got with the job.
    async fn check(&self, job: &Value, id: &str) {
        let features = &self.features;
        if let Some(wanted) = job["options"]["inputs"].as_array() {
            let given = job["inputs"].as_object().map_or(0, serde_json::Map::len);
            if given != wanted.len() {
                features.broken("a job got other inputs than it wants", &job.to_string());
            }
        }
        for (name, input) in job["inputs"].as_object().into_iter().flatten() {
            self.check_input(id, name, input).await;
        }
        if let Some(schedule) = job["schedule"].as_object() {
            let own = format!("{}@", text(&schedule["name"]));
            let last = schedule.get("last_success").unwrap_or(&Value::Null);
            let told = features.notes().told.get(text(&last["id"])).cloned().unwrap_or_default();
            let is_told = last["result"]["run"].as_u64().is_some_and(|run| told.contains(&run));
            if !id.starts_with(&own) || !last.is_null() && !is_told {
                features.broken("a job of a schedule got what is not true", &job.to_string());
            }
        }
        if let Some(callback) = job["callback"].as_object() {
            let (group, on) = (text(&callback["group"]), text(&callback["on"]));
            if job["options"]["group"] != group || job["options"]["on"] != on {
                features.broken("a callback was handed to a worker that is another one's", &job.to_string());
            }
            let key = (group.to_owned(), on.to_owned());
            let other = features.notes().called.insert(key, id.to_owned()).filter(|other| other != id);
            if let Some(other) = other {
                features.broken("a group called back twice", &format!("{group} on {on}: {other} and {id}"));
            }
        }
    }

    /// A result that was handed on is one that a run of its job has told.
    async fn check_input(&self, id: &str, name: &str, input: &Value) {
        let features = &self.features;
        let source = text(&input["job"]).split_once('/').map_or("", |(_, id)| id);
        let run = match input["url"].as_str() {
            None => input["result"]["run"].as_u64(),
            Some(url) => {
                let api = features.world.identities.worker(self.number);
                let answer = api.ask_within(ANSWER_TIMEOUT, self.node, Method::GET, url, None).await;
                // The claim may be over, or the node down.
                let Some(result) = answer.success() else { return };
                features.count("large results handed on");
                result["run"].as_u64()
            }
        };
        let is_told = {
            let notes = features.notes();
            let told = notes.told.get(source);
            run.is_some_and(|run| told.is_some_and(|told| told.contains(&run)))
        };
        if input["state"] != "completed" || !is_told {
            features.broken("a job got a result that no run has told", &format!("{id}, {name}: {input}"));
        }
        features.count("results handed on");
    }
}
