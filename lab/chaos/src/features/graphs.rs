//! Graphs that one request adds, all or none of them: three sources, and a job that gets the results of all. Some fail, and are retried from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::{Features, LOOK, TENANT, TYPE, text};
use turnwise_testkit::Random;

/// The first letter of the ids of a graph that fails at first. Those of the others begin with `x`.
pub(super) const HEALING: &str = "h";
/// The mean time between two graphs.
const EACH_MS: u64 = 12_000;
/// A graph that fails does so within this time after the last fault.
const FAILS: Duration = Duration::from_secs(120);

/// Adds graphs until the clients stop. Returns the names of all, and those that may be there.
pub(super) async fn run(features: &Features, mut random: Random) -> Vec<String> {
    let mut graphs = Vec::new();
    while !features.is_over() {
        let heals = random.below(3) == 0;
        let name = format!("{}{}", if heals { HEALING } else { "x" }, graphs.len());
        let large = random.below(4) == 0;
        let body = json!({ "whole": true, "jobs": jobs(&name, heals, large) });
        features.done(&mut random, Method::POST, "/v1/jobs", Some(&body)).await;
        graphs.push(name.clone());
        features.count("graphs");
        if heals {
            heal(features, &mut random, &name).await;
        }
        features.pause(Duration::from_millis(random.below(2 * EACH_MS))).await;
    }
    graphs
}

/// The jobs of a graph. A job is named before it is described.
fn jobs(name: &str, heals: bool, large: bool) -> Vec<Value> {
    let job = |own: &str, options: Value| json!({ "type": TYPE, "name": own, "id": format!("{name}-{own}"), "tenant": TENANT, "options": options });
    let mut load = job("load", json!({ "inputs": ["a", "b", "c"] }));
    load["inputs"] = json!({ "a": { "name": "e0" }, "b": { "name": "e1" }, "c": { "name": "e2" } });
    load["after"] = json!([{ "name": "check" }]);
    let mut check = job("check", json!({ "do": "flaky" }));
    check["after"] = json!([{ "name": "e0" }]);
    let mut report = job("report", json!({ "inputs": ["load"] }));
    report["inputs"] = json!({ "load": { "name": "load" } });
    let ends = if heals { "heal" } else { "done" };
    vec![
        report,
        load,
        check,
        job("e0", json!({ "do": "flaky" })),
        job("e1", json!({ "do": ends })),
        job("e2", json!({ "do": "done", "large": large, "work_ms": 500 })),
    ]
}

/// Waits until a job of the graph has failed, and what needs it was cancelled. Then retries the graph from there.
async fn heal(features: &Features, random: &mut Random, name: &str) {
    let begun = Instant::now();
    loop {
        let job = features.done(random, Method::GET, &format!("/v1/jobs/{TYPE}/{name}-report"), None).await;
        if job["state"] == "cancelled" {
            break;
        }
        if features.world.calm.between(begun, Instant::now(), Duration::ZERO) > FAILS {
            return features.broken("a graph has not failed", &job.to_string());
        }
        tokio::time::sleep(LOOK).await;
    }
    features.notes().healed.insert(format!("{name}-e1"));
    let path = format!("/v1/jobs/{TYPE}/{name}-e1/retry");
    features.done(random, Method::POST, &path, Some(&json!({ "with_dependents": true }))).await;
    features.count("graphs retried");
}

/// Each job of each graph has completed, with a result that one of its runs has told.
pub(super) async fn judge(features: &Features, graphs: &[String], jobs: &BTreeMap<String, Value>) {
    let mut wanted = BTreeSet::new();
    for name in graphs {
        for own in ["e0", "e1", "e2", "check", "load", "report"] {
            let id = format!("{name}-{own}");
            let state = jobs.get(&id).map(|job| text(&job["state"]));
            if state != Some("completed") {
                features.broken("a job of a graph has not completed", &format!("{id} is {state:?}"));
            }
            wanted.insert(id);
        }
        let result = features.world.api.get(&format!("/v1/jobs/{TYPE}/{name}-report/result")).await;
        let run = result.unwrap_or_default()["run"].as_u64();
        let told = features.notes().told.get(&format!("{name}-report")).cloned().unwrap_or_default();
        if !run.is_some_and(|run| told.contains(&run)) {
            features
                .broken("a graph has another result than was told", &format!("{name}: {run:?} of {told:?}"));
        }
    }
    let is_graph = |id: &&String| id.starts_with(HEALING) || id.starts_with('x');
    if let Some(id) = jobs.keys().filter(is_graph).find(|id| !wanted.contains(*id)) {
        features.broken("a job of a graph is there that no client has added", id);
    }
    let handed = features.world.counts.get("results handed on");
    if features.is_long() && handed == 0 {
        features.broken("no result was handed on", &graphs.len().to_string());
    }
    println!("graphs: {} have completed, with {handed} results handed on", graphs.len());
}
