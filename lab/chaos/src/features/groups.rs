//! Groups: closed with their jobs, open, in each other, and arrays. Each ends with exact numbers, and calls back exactly once.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{AGAIN, Features, NEVER_MS, TENANT, TYPE, text};
use turnwise_testkit::Random;

/// How many jobs of an array run at a time.
pub(super) const AT_ONCE: usize = 3;
/// The mean time between two groups.
const EACH_MS: u64 = 9_000;
/// A group ends within this time after its last job.
const ENDS: u32 = 150;

/// How many jobs of a group end in which way.
#[derive(Default)]
pub(super) struct Expected {
    completed: u64,
    failed: u64,
    cancelled: u64,
}

pub(super) type Groups = BTreeMap<String, Expected>;

impl Expected {
    fn state(&self) -> &'static str {
        match (self.failed, self.cancelled) {
            (0, 0) => "completed",
            (0, _) => "cancelled",
            _ => "failed",
        }
    }

    fn note(&mut self, state: &str) {
        match state {
            "completed" => self.completed += 1,
            "failed" => self.failed += 1,
            _ => self.cancelled += 1,
        }
    }

    /// What the group calls back for.
    fn callbacks(&self) -> Vec<&'static str> {
        let mut on = vec!["complete"];
        on.extend((self.failed == 0 && self.cancelled == 0).then_some("success"));
        on.extend((self.failed > 0).then_some("first_failure"));
        on
    }
}

/// A group with all callbacks.
fn group(name: &str, parent: Option<&str>) -> Value {
    let callback = |on: &str| json!({ "type": TYPE, "options": { "do": "done", "group": name, "on": on } });
    let mut group = json!({ "name": name, "tenant": TENANT });
    for on in ["complete", "success", "first_failure"] {
        group[format!("on_{on}")] = callback(on);
    }
    if let Some(parent) = parent {
        group["parent"] = json!(parent);
    }
    group
}

/// Jobs of a group, which end as expected. Half of the groups have no failures.
fn members(random: &mut Random, name: &str, from: u64, expected: &mut Expected) -> Vec<Value> {
    let (fails, count) = (random.below(2) == 0, 2 + random.below(5));
    let member = |number: u64| {
        let ends = match random.below(6) {
            0 if fails => "fail",
            1 => "flaky",
            _ => "done",
        };
        expected.note(if ends == "fail" { "failed" } else { "completed" });
        let options = json!({ "do": ends, "work_ms": random.below(400) });
        json!({ "type": TYPE, "id": format!("{name}-{number}"), "tenant": TENANT, "group": name, "options": options })
    };
    (from..from + count).map(member).collect()
}

/// Adds groups of each form in turn, until the clients stop.
pub(super) async fn run(features: &Features, mut random: Random) -> Groups {
    let (mut groups, mut number) = (Groups::new(), 0);
    while !features.is_over() {
        let name = format!("g{number}");
        let added = match number % 4 {
            0 => closed(features, &mut random, &name, None).await,
            1 => open(features, &mut random, &name).await,
            2 => nested(features, &mut random, &name, &mut groups).await,
            _ => array(features, &mut random, &name).await,
        };
        groups.insert(name, added);
        number += 1;
        features.pause(Duration::from_millis(random.below(2 * EACH_MS))).await;
    }
    groups
}

/// A group that one request creates with its jobs.
async fn closed(features: &Features, random: &mut Random, name: &str, parent: Option<&str>) -> Expected {
    let mut expected = Expected::default();
    let jobs = members(random, name, 0, &mut expected);
    let body = json!({ "jobs": jobs, "groups": [group(name, parent)] });
    features.done(random, Method::POST, "/v1/jobs", Some(&body)).await;
    expected
}

/// A group to which several requests add jobs. One job is cancelled.
async fn open(features: &Features, random: &mut Random, name: &str) -> Expected {
    let mut expected = Expected::default();
    features.done(random, Method::POST, "/v1/groups", Some(&group(name, None))).await;
    for from in [0, 10] {
        let jobs = json!({ "jobs": members(random, name, from, &mut expected) });
        features.done(random, Method::POST, "/v1/jobs", Some(&jobs)).await;
    }
    let id = format!("{name}-20");
    let job = json!({ "type": TYPE, "id": id, "tenant": TENANT, "group": name, "delay_ms": NEVER_MS });
    features.done(random, Method::POST, "/v1/jobs", Some(&json!({ "jobs": [job] }))).await;
    let path = format!("/v1/groups/{TENANT}/{name}/close");
    let row = features.done(random, Method::POST, &path, None).await;
    if row["state"] != "closed" {
        features.broken("a group with an open job is not closed", &row.to_string());
    }
    features.done(random, Method::POST, &format!("/v1/jobs/{TYPE}/{id}/cancel"), None).await;
    expected.note("cancelled");
    expected
}

/// A group with two groups in it, and a job.
async fn nested(features: &Features, random: &mut Random, name: &str, groups: &mut Groups) -> Expected {
    let mut expected = Expected::default();
    features.done(random, Method::POST, "/v1/groups", Some(&group(name, None))).await;
    for part in ["a", "b"] {
        let child = format!("{name}{part}");
        let added = closed(features, random, &child, Some(name)).await;
        expected.note(added.state());
        groups.insert(child, added);
    }
    let job = json!({ "type": TYPE, "id": format!("{name}-0"), "tenant": TENANT, "group": name });
    features.done(random, Method::POST, "/v1/jobs", Some(&json!({ "jobs": [job] }))).await;
    expected.note("completed");
    features.done(random, Method::POST, &format!("/v1/groups/{TENANT}/{name}/close"), None).await;
    expected
}

/// An array: all of its jobs complete.
async fn array(features: &Features, random: &mut Random, name: &str) -> Expected {
    let completed = 4 + random.below(8);
    let options = json!({ "do": "done", "work_ms": 300 });
    let job = json!({
        "type": TYPE, "id": name, "tenant": TENANT, "count": completed, "at_once": AT_ONCE, "options": options,
    });
    let body = json!({ "jobs": [job], "groups": [group(name, None)] });
    features.done(random, Method::POST, "/v1/jobs", Some(&body)).await;
    Expected { completed, ..Expected::default() }
}

/// Checks the end and the callbacks of each group.
pub(super) async fn judge(features: &Features, groups: &Groups, jobs: &BTreeMap<String, Value>) {
    let mut random = Random::new(1);
    let mut called: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (id, job) in jobs.iter().filter(|(_, job)| job["callback"].is_object()) {
        let callback = (text(&job["callback"]["group"]), text(&job["callback"]["on"]));
        called.entry(callback).or_default().push(id);
    }
    let mut count = 0;
    for (name, expected) in groups {
        let row = ended(features, &mut random, name).await;
        let numbers = |counts: &Value| {
            ["total", "open", "completed", "failed", "cancelled", "removed"]
                .map(|what| counts[what].as_u64().unwrap_or(u64::MAX))
        };
        let Expected { completed, failed, cancelled } = *expected;
        let total = completed + failed + cancelled;
        let right = [total, 0, completed, failed, cancelled, 0];
        if numbers(&row["counts"]) != right || row["state"] != expected.state() {
            let text = format!("{name} must be {} with {right:?}: {row}", expected.state());
            features.broken("a group has not ended as its jobs have", &text);
        }
        let mut told: Vec<_> =
            row["called"].as_array().into_iter().flatten().map(|called| text(&called["on"])).collect();
        let mut wanted = expected.callbacks();
        told.sort_unstable();
        wanted.sort_unstable();
        if told != wanted {
            features.broken("a group has not called back as it must", &format!("{wanted:?}: {row}"));
        }
        for on in wanted {
            let ids = called.remove(&(name.as_str(), on)).unwrap_or_default();
            let was_run = features.notes().called.contains_key(&(name.clone(), on.to_owned()));
            if ids.len() != 1 || !was_run {
                let text = format!("{name} on {on}: {ids:?}, and a worker had one: {was_run}");
                features.broken("a group has not called back once", &text);
            }
            count += ids.len();
        }
    }
    if let Some((group, ids)) = called.first_key_value() {
        features.broken("a group called back for what has not happened", &format!("{group:?}: {ids:?}"));
    }
    println!("groups: {} ended and called back {count} times", groups.len());
}

/// The row of a group when it has ended.
async fn ended(features: &Features, random: &mut Random, name: &str) -> Value {
    let mut row = Value::Null;
    for _ in 0..ENDS {
        row = features.done(random, Method::GET, &format!("/v1/groups/{TENANT}/{name}"), None).await;
        if !row["ended_us"].is_null() || row.is_null() {
            break;
        }
        tokio::time::sleep(AGAIN).await;
    }
    row
}
