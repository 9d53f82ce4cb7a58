//! Unique keys of each mode: no two jobs have one at a time, and in the end each key is free.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{AGAIN, Features, OTHER_TENANT, TYPE, text};
use turnwise_testkit::Random;

/// The first letters of the ids. Then come the letter of the mode, the number of the key, and that of the job.
pub(super) const PREFIX: &str = "u-";
/// The length of a period.
pub(super) const PERIOD_MS: i64 = 20_000;
/// After a crash the clock of a node may continue some seconds before what it was.
pub(super) const CLOCKS_US: i64 = 10_000_000;
/// The number of keys of each mode, and the modes.
const KEYS: u64 = 3;
const MODES: [(char, &str); 3] = [('w', "while_waiting"), ('e', "until_end"), ('p', "period")];
/// The mean time between two adds.
const EACH_MS: u64 = 1_200;
/// How long the record of a job is kept: its key must not stay behind.
const KEEP_MS: u64 = 20_000;
/// In the end, each key is free within this time.
const FREE: Duration = Duration::from_secs(90);

/// The key and the mode of a job, by its id.
pub(super) fn key_of(id: &str) -> (&str, char) {
    let key = id.rsplit_once('-').map_or(id, |(key, _)| key);
    (key, key.chars().nth(PREFIX.len()).unwrap_or_default())
}

fn job(random: &mut Random, (letter, mode): (char, &str), key: u64, number: u64) -> Value {
    let which = |random: &mut Random, of: &[&'static str]| {
        of[usize::try_from(random.below(of.len() as u64)).expect("an index")]
    };
    let id = format!("{PREFIX}{letter}{key}-{number}");
    let on_conflict = which(random, &["keep", "replace", "reject", "after"]);
    // The scope is a part of the key.
    let within = if key == 0 { "tenant" } else { "type" };
    let mut unique = json!({ "mode": mode, "of": ["/key"], "within": within, "on_conflict": on_conflict });
    if letter == 'p' {
        unique["period_ms"] = json!(PERIOD_MS);
    }
    let ends = which(random, &["done", "done", "flaky", "fail"]);
    let options = json!({ "key": format!("{letter}{key}"), "do": ends, "work_ms": random.below(3_000) });
    let mut job =
        json!({ "type": TYPE, "id": id, "tenant": OTHER_TENANT, "unique": unique, "options": options });
    if random.below(2) == 0 {
        job["keep_ms"] = json!(KEEP_MS);
    }
    if random.below(4) == 0 {
        job["delay_ms"] = json!(random.below(4_000));
    }
    job
}

/// Adds jobs, cancels and removes some, and looks at all holders, until the clients stop.
pub(super) async fn run(features: &Features, mut random: Random) {
    let mut number = 0;
    while !features.is_over() {
        features.pause(Duration::from_millis(random.below(2 * EACH_MS))).await;
        number += 1;
        let mode = MODES[usize::try_from(random.below(3)).expect("an index")];
        let key = random.below(KEYS);
        let job = job(&mut random, mode, key, number);
        let id = text(&job["id"]).to_owned();
        let (status, answer) =
            features.ask(&mut random, Method::POST, "/v1/jobs", Some(&json!({ "jobs": [job] }))).await;
        match (status, text(&answer["jobs"][0]["added"])) {
            (StatusCode::CONFLICT, _) if job["unique"]["on_conflict"] == "reject" => {
                features.count("unique: refused");
            }
            (status, "found") if status.is_success() => {
                features.count("unique: found");
                let found = &answer["jobs"][0];
                let (key, letter) = key_of(text(&found["id"]));
                let wanted = MODES.iter().find(|(of, _)| *of == letter).map(|(_, mode)| *mode);
                if key != key_of(&id).0 || found["found"]["mode"].as_str() != wanted {
                    features.broken("a job found another key", &format!("{id}: {answer}"));
                }
            }
            (status, _) if status.is_success() => {
                features.count("unique: added");
                // The key of a period would be free, if the job is removed.
                let change = if mode.0 == 'p' { 1 + random.below(9) } else { random.below(10) };
                let path = format!("/v1/jobs/{TYPE}/{id}");
                match change {
                    0 => drop(features.ask(&mut random, Method::DELETE, &path, None).await),
                    1 => drop(features.ask(&mut random, Method::POST, &format!("{path}/cancel"), None).await),
                    _ => {}
                }
            }
            _ => features.broken("a job with a key was refused", &format!("{job}: {status} {answer}")),
        }
        if number % 4 == 0 {
            look(features, &mut random).await;
        }
    }
}

/// Looks at the holders of all keys at one moment: a page is of one moment.
async fn look(features: &Features, random: &mut Random) {
    let mut holders: HashMap<String, String> = HashMap::new();
    for state in ["pending", "delayed", "running", "crashing", "limited"] {
        let path = format!("/v1/jobs?type={TYPE}&tenant={OTHER_TENANT}&state={state}&limit=1000");
        let (status, page) = features.ask(random, Method::GET, &path, None).await;
        if !status.is_success() {
            features.broken("no list of jobs with keys", &format!("{status} {page}"));
        }
        // Between two pages, a job may go from one state to another, and another one may get its key.
        holders.clear();
        for job in page["jobs"].as_array().into_iter().flatten().filter(|job| job["unique_held"] == true) {
            let id = text(&job["id"]);
            let other = holders.insert(key_of(id).0.to_owned(), id.to_owned());
            if let Some(other) = other {
                features
                    .broken("two jobs show that they have one key", &format!("{id} and {other}, {state}"));
            }
            features.count("unique: holders seen");
        }
    }
}

/// All jobs have ended: each key is free, for a period at its end.
pub(super) async fn judge(features: &Features, random: &mut Random) {
    let begun = Instant::now();
    for mode in MODES {
        for key in 0..KEYS {
            let mut job = job(random, mode, key, 1_000_000_000);
            job["unique"]["on_conflict"] = json!("keep");
            let body = json!({ "jobs": [job] });
            loop {
                let answer = features.done(random, Method::POST, "/v1/jobs", Some(&body)).await;
                match text(&answer["jobs"][0]["added"]) {
                    // The answer to an earlier request was lost.
                    "queued" | "delayed" | "exists" => break,
                    _ if begun.elapsed() < FREE && mode.0 == 'p' => tokio::time::sleep(AGAIN * 5).await,
                    _ => {
                        let text = format!("{}{key}: {answer}", mode.1);
                        features.broken("a unique key is not free when all jobs have ended", &text);
                        break;
                    }
                }
            }
        }
    }
    let found = features.world.counts.get("unique: found");
    if features.is_long() && (found == 0 || features.log().count("jobs with a key") == 0) {
        features.broken("no job was found by its key", &found.to_string());
    }
}
