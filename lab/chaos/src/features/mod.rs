//! Schedules, unique keys, groups, rates, and graphs whose jobs hand on their results, under all faults.
//!
//! The jobs have types and tenants of their own, and [`hands`] run them. Each part notes what was acknowledged. What the server did is read from
//! its events, in the order of its transactions ([`log`]), so a check of that order has no tolerance and needs no clock. When all jobs have ended,
//! each part compares what is there with what must be there.

mod graphs;
mod groups;
mod hands;
mod log;
mod rates;
mod schedules;
mod unique;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::World;
use super::api::Answer;
use log::Log;
use turnwise_testkit::Random;

/// The type of most jobs, and of those of the rate.
const TYPE: &str = "feature";
const RATED: &str = "rated";
/// A tenant whose jobs are paused sometimes, and one whose jobs are not.
const TENANT: &str = "feature-1";
const OTHER_TENANT: &str = "feature";
/// The identity of the clients, which has gateways between it and the nodes.
const IDENTITY: usize = 7;
/// The pause before a request is repeated, and between two looks at something.
const AGAIN: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_secs(2);
/// No clock that jumps makes a job due that waits for so long.
const NEVER_MS: u64 = 90 * 86_400_000;
/// A run that is shorter need not have had everything.
const ENOUGH: Duration = Duration::from_secs(60);

/// What clients and workers share.
struct Features {
    world: Arc<World>,
    notes: Mutex<Notes>,
    log: Mutex<Log>,
    /// All jobs have ended, so no event follows.
    over: CancellationToken,
}

#[derive(Default)]
struct Notes {
    runs: u64,
    /// The numbers of the runs that have told their job's completion, by the job's id.
    told: HashMap<String, HashSet<u64>>,
    /// The jobs of graphs that fail no more.
    healed: HashSet<String>,
    /// The callback jobs that were run, by group and what for.
    called: HashMap<(String, String), String>,
}

/// The tasks of this part: those that end with the test, and the workers.
#[derive(Default)]
pub(super) struct Tasks {
    pub parts: Vec<JoinHandle<()>>,
    pub hands: Vec<JoinHandle<()>>,
}

/// Starts everything.
pub(super) fn start(world: &Arc<World>) -> Tasks {
    let features = Arc::new(Features {
        world: Arc::clone(world),
        notes: Mutex::default(),
        log: Mutex::default(),
        over: CancellationToken::new(),
    });
    let hands = hands::start(&features);
    Tasks { parts: vec![tokio::spawn(run(features))], hands }
}

/// Makes traffic until the clients stop, and judges it when all faults are over.
async fn run(features: Arc<Features>) {
    let since = begin(&features).await;
    let following = tokio::spawn(follow(Arc::clone(&features), since));
    let mut seeds = Random::new(features.world.options.seed ^ 0xfea7);
    let (schedules, (), groups, rated, graphs) = tokio::join!(
        schedules::run(&features, Random::new(seeds.bits())),
        unique::run(&features, Random::new(seeds.bits())),
        groups::run(&features, Random::new(seeds.bits())),
        rates::run(&features, Random::new(seeds.bits())),
        graphs::run(&features, Random::new(seeds.bits())),
    );
    features.world.healed.cancelled().await;
    drain(&features).await;
    let mut random = Random::new(seeds.bits());
    unique::judge(&features, &mut random).await;
    drain(&features).await;
    features.over.cancel();
    following.await.expect("the reader of events does not panic");
    let jobs = features.listed(TYPE).await;
    schedules::judge(&features, &schedules, &jobs).await;
    groups::judge(&features, &groups, &jobs).await;
    rates::judge(&features, rated).await;
    graphs::judge(&features, &graphs, &jobs).await;
    println!("features: {} jobs of type {TYPE}; {}", jobs.len(), features.log().text());
}

/// Makes the nodes record events. Returns where they begin.
async fn begin(features: &Features) -> String {
    loop {
        if let Some(page) = features.world.api.get("/v1/events?limit=1").await
            && let Some(next) = page["next"].as_str()
        {
            return next.to_owned();
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads all events of the jobs, and checks each.
async fn follow(features: Arc<Features>, mut since: String) {
    let world = &features.world;
    loop {
        let is_last = features.over.is_cancelled();
        let path = format!("/v1/events?type={TYPE},{RATED}&limit=1000&since={since}");
        let page = match world.api_any(Method::GET, &path).await {
            Answer::Got(StatusCode::OK, page) => page,
            Answer::Got(status, answer) => {
                return world.ledger.finding(format!("events since {since}: {status} {answer}"));
            }
            _ => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        for event in page["events"].as_array().into_iter().flatten() {
            let broken = features.log().take(event);
            for (kind, text) in broken {
                world.ledger.repeated(kind, &text);
            }
        }
        since = page["next"].as_str().unwrap_or_default().to_owned();
        match (page["more"].as_bool(), is_last) {
            (Some(true), _) => {}
            (_, true) => return,
            (_, false) => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Waits until all jobs have ended.
async fn drain(features: &Features) {
    let (mut least, mut since) = (usize::MAX, Instant::now());
    loop {
        let mut open = Vec::new();
        for job_type in [TYPE, RATED] {
            let jobs = features.listed(job_type).await;
            open.extend(jobs.into_values().filter(|job| !is_ended(job)));
        }
        if open.is_empty() {
            return;
        }
        if open.len() < least {
            (least, since) = (open.len(), Instant::now());
        }
        if since.elapsed() > Duration::from_secs(features.world.options.settle_seconds) {
            let text = format!("{} of them do not end, as {}", open.len(), open[0]);
            return features.broken("jobs of features do not end", &text);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn is_ended(job: &Value) -> bool {
    ["completed", "failed", "cancelled"].iter().any(|state| job["state"] == *state)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Features {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("no holder of this lock panics")
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no holder of this lock panics")
    }

    fn is_over(&self) -> bool {
        self.world.stop.is_cancelled()
    }

    /// Whether the test was long enough for everything to happen.
    fn is_long(&self) -> bool {
        self.world.options.seconds > ENOUGH.as_secs()
    }

    fn count(&self, what: &str) {
        self.world.counts.add(what, 1);
    }

    fn broken(&self, kind: &str, text: &str) {
        self.world.ledger.repeated(kind, text);
    }

    /// Waits, until the clients stop at the longest.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = self.world.stop.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Sends a request until it is answered, through the gateways, which lose answers.
    async fn ask(
        &self,
        random: &mut Random,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (StatusCode, Value) {
        loop {
            let api = self.world.identities.client(IDENTITY);
            match self.world.ask_some(api, random, method.clone(), path, body).await {
                Answer::Got(status, answer) => return (status, answer),
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// The same for a request that must succeed. `Null` if it is refused, which is a violation.
    async fn done(&self, random: &mut Random, method: Method, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.ask(random, method.clone(), path, body).await;
        if status.is_success() {
            return answer;
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        self.broken(
            "a request of a feature was refused",
            &format!("{method} {path} {body}: {status} {answer}"),
        );
        Value::Null
    }

    /// All jobs of a type, by id.
    async fn listed(&self, job_type: &str) -> BTreeMap<String, Value> {
        let (mut jobs, mut after) = (BTreeMap::new(), String::new());
        loop {
            let path = format!("/v1/jobs?type={job_type}&order=id&limit=1000{after}");
            let Some(page) = self.world.api.get(&path).await else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            for job in page["jobs"].as_array().into_iter().flatten() {
                jobs.insert(text(&job["id"]).to_owned(), job.clone());
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return jobs,
            }
        }
    }
}
