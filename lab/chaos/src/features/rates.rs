//! A rate: no window holds more starts than it allows. A run that is lost with its worker has started.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Features, LOOK, OTHER_TENANT, RATED, text};
use turnwise_testkit::Random;

/// The rate: so many starts in any period of this length.
pub(super) const AT_MOST: usize = 5;
pub(super) const PER_MS: i64 = 4_000;
/// The mean time between two requests, and the most jobs of one: fewer than the rate allows, in bursts that exceed it.
const EACH_MS: u64 = 10_000;
const MOST: u64 = 14;

/// Adds jobs of the rate until the clients stop. Returns how many.
pub(super) async fn run(features: &Features, mut random: Random) -> usize {
    let rate = json!({ "at_most": AT_MOST, "per_ms": PER_MS });
    let filter =
        json!({ "action": "rate", "when": format!("type = {RATED}"), "rate": rate, "priority": -10 });
    while features
        .world
        .ask_some(&features.world.api, &mut random, Method::PUT, "/v1/filters/features", Some(&filter))
        .await
        .success()
        .is_none()
    {
        features.pause(LOOK).await;
    }
    let mut number = 0;
    while !features.is_over() {
        let count = 1 + random.below(MOST);
        let mut job = || {
            number += 1;
            let ends = if random.below(6) == 0 { "flaky" } else { "done" };
            let options = json!({ "do": ends, "work_ms": random.below(500) });
            json!({ "type": RATED, "id": format!("r-{number}"), "tenant": OTHER_TENANT, "options": options })
        };
        let jobs: Vec<Value> = (0..count).map(|_| job()).collect();
        features.done(&mut random, Method::POST, "/v1/jobs", Some(&json!({ "jobs": jobs }))).await;
        features.pause(Duration::from_millis(random.below(2 * EACH_MS))).await;
    }
    number
}

/// Checks that all jobs have started and completed, and that the rate was in force.
pub(super) async fn judge(features: &Features, added: usize) {
    let jobs = features.listed(RATED).await;
    let completed = jobs.values().filter(|job| text(&job["state"]) == "completed").count();
    if completed != added {
        features.broken("jobs of a rate are not there", &format!("{completed} of {added} have completed"));
    }
    let (starts, full) = {
        let log = features.log();
        (log.count("starts under the rate"), log.count("full windows"))
    };
    if (starts as usize) < added || features.is_long() && full == 0 {
        let text = format!("{starts} starts of {added} jobs, {full} times in a full window");
        features.broken("a rate was not used", &text);
    }
    println!("rates: {starts} starts of {added} jobs, {full} of them filled a window");
}
