//! The clients: they add jobs of every kind, and later cancel, repeat and change them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::api::Answer;
use super::ledger::{Entry, Kind};
use super::workers::TYPES;
use super::{Engine, World};
use turnwise_testkit::Random;

/// Clients wait while this many jobs have not ended, so that all jobs can end in time.
const MAX_OPEN: usize = 3_000;
/// The highest number of jobs in one request.
const MAX_BATCH: u64 = 40;
/// The average number of jobs in a request: seven of ten requests add jobs, and a quarter of those add many.
const MEAN_JOBS: f64 = 0.7 * (0.75 + 0.25 * MAX_BATCH as f64 / 2.0);
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// The largest size of a job's options, in bytes. Only a few jobs have large options.
const BIG_BYTES: u64 = 2 << 20;
/// Larger requests may exceed one transaction of etcd or FoundationDB, in bytes.
const BIG_REQUEST_BYTES: usize = 1_000_000;
/// The number of recent jobs that a client keeps. New jobs may depend on these, and the client may cancel them or add them again.
const RECENT: usize = 200;
/// Half of all choices are among this many newest jobs, because most others have ended.
const NEWEST: u64 = 8;
/// One in this many requests follows immediately after the previous one, while that one's jobs are new.
const AT_ONCE: u64 = 3;

/// Starts the clients.
pub(super) fn start(world: &Arc<World>) -> Vec<JoinHandle<()>> {
    let mut seeds = Random::new(world.options.seed ^ 0xc11e);
    let clients = 0..world.options.clients;
    clients
        .map(|number| {
            let world = Arc::clone(world);
            let random = Random::new(seeds.bits());
            let client = Client { world, number, random, recent: Vec::new(), added: 0 };
            tokio::spawn(client.run())
        })
        .collect()
}

struct Client {
    world: Arc<World>,
    number: usize,
    random: Random,
    /// Type and id.
    recent: Vec<(String, String)>,
    added: u64,
}

impl Client {
    async fn run(mut self) {
        let each = self.world.options.clients as f64 * MEAN_JOBS / self.world.options.jobs_per_second;
        let each = each * AT_ONCE as f64 / (AT_ONCE - 1) as f64;
        let mean_ms = (each * 1_000.0) as u64;
        loop {
            let at_once = self.random.below(AT_ONCE) == 0;
            let pause_ms = if at_once { 0 } else { self.random.below(2 * mean_ms.max(1)) };
            let pause = Duration::from_millis(pause_ms);
            tokio::select! {
                () = self.world.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            if self.world.ledger.open_count() >= MAX_OPEN {
                continue;
            }
            match self.random.below(100) {
                0..70 => self.add().await,
                70..80 => self.cancel().await,
                80..88 => self.add_again().await,
                88..94 => self.retry().await,
                _ => {
                    let priority = json!({ "priority": self.random.below(40) as i64 - 20 });
                    self.change("priority", Method::PUT, Some(priority)).await;
                }
            }
        }
    }

    /// Sends a request with this client's identity.
    async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let api = self.world.identities.client(self.number);
        self.world.ask_some(api, &mut self.random, method, path, body).await
    }

    fn recent(&mut self) -> Option<(String, String)> {
        let count = self.recent.len() as u64;
        let among = if self.random.below(2) == 0 { count.min(NEWEST) } else { count };
        let from_end = 1 + self.random.below(among.max(1));
        let index = usize::try_from(count.checked_sub(from_end)?).expect("an index");
        self.recent.get(index).cloned()
    }

    /// Adds one job or many. In most cases, repeats the request until it is acknowledged.
    async fn add(&mut self) {
        let count = if self.random.below(4) == 0 { 1 + self.random.below(MAX_BATCH) } else { 1 };
        let (mut jobs, mut entries) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (job, key, entry) = self.job();
            jobs.push(job);
            entries.push((key, entry));
        }
        let keys: Vec<String> = entries.iter().map(|(key, _)| key.clone()).collect();
        let body = json!({ "jobs": jobs });
        let big = body.to_string().len() > BIG_REQUEST_BYTES;
        let is_whole = match self.world.options.engine {
            Engine::Embedded => true,
            Engine::Foundationdb(_) => !big,
            Engine::Etcd => false,
        };
        let batch = self.world.batches.fetch_add(1, Ordering::Relaxed);
        let size = if is_whole { jobs.len() } else { 0 };
        entries.iter_mut().for_each(|(_, entry)| entry.batch = (batch, size));
        self.world.ledger.adding(entries);
        let patient = self.random.below(4) > 0;
        loop {
            match self.ask(Method::POST, "/v1/jobs", Some(&body)).await {
                Answer::Got(status, _) if status.is_success() => break,
                // A transaction of etcd is smaller than a request may be. This is documented, and allowed only for large
                // requests.
                Answer::Got(StatusCode::PAYLOAD_TOO_LARGE, _)
                    if self.world.options.engine == Engine::Etcd && (jobs.len() > 1 || big) =>
                {
                    self.world.counts.add("requests too large for etcd", 1);
                    return self.give_up(&keys);
                }
                Answer::Got(status, answer) if status.is_client_error() => {
                    self.world.ledger.repeated("jobs were refused", &format!("{keys:?}: {answer}"));
                    return self.give_up(&keys);
                }
                _ if !patient => {
                    self.world.counts.add("adds of unknown outcome", 1);
                    return self.give_up(&keys);
                }
                _ => {
                    self.world.counts.add("requests repeated", 1);
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
        self.world.counts.add("jobs acknowledged", count);
        for key in keys {
            self.world.ledger.change(&key, |entry| entry.acknowledged = true);
            let (job_type, id) = key.split_once('/').expect("a type and an id");
            self.recent.push((job_type.to_owned(), id.to_owned()));
        }
        let excess = self.recent.len().saturating_sub(RECENT);
        self.recent.drain(..excess);
    }

    fn give_up(&self, keys: &[String]) {
        for key in keys {
            self.world.ledger.change(key, |entry| entry.given_up = Some(Instant::now()));
        }
    }

    /// A random job, as one of many users would add it.
    fn job(&mut self) -> (Value, String, Entry) {
        self.added += 1;
        let random = &mut self.random;
        let id = format!("{}-{}", self.number, self.added);
        let kind = match random.below(100) {
            0..60 => Kind::Done,
            60..70 => Kind::Failing,
            70..78 => Kind::Crashing,
            78..88 => Kind::Flaky,
            88..97 => Kind::Process,
            _ => Kind::FailingProcess,
        };
        let is_process = matches!(kind, Kind::Process | Kind::FailingProcess);
        let job_type = match (is_process, random.below(3)) {
            (true, 0) => "command",
            (true, _) => "exec",
            (false, _) => TYPES[usize::try_from(random.below(TYPES.len() as u64)).expect("an index")],
        };
        let key = format!("{job_type}/{id}");
        let mut entry = Entry::new(kind, &key);
        // Some tenants have many jobs, most have few.
        let tenants = self.world.options.tenants;
        let tenant = random.below(1 + random.clone().below(tenants));
        let mut job = json!({ "type": job_type, "id": id, "tenant": format!("tenant-{tenant}") });
        let pad_bytes = match random.below(200) {
            0 => random.below(BIG_BYTES),
            1..20 => random.below(20_000),
            _ => random.below(200),
        };
        let pad = random.text(usize::try_from(pad_bytes).expect("a few MB"));
        job["options"] = match job_type {
            "command" => {
                let code = if kind == Kind::Process { 0 } else { 65 };
                json!({ "argv": ["sh", "-c", format!("sleep 0.{}; exit {code}", random.below(10))] })
            }
            "exec" => json!({ "code": if kind == Kind::Process { 0 } else { 65 }, "pad": pad }),
            _ => {
                let work_ms = if random.below(20) == 0 { random.below(8_000) } else { random.below(200) };
                json!({ "kind": format!("{kind:?}"), "work_ms": work_ms, "bytes": pad.len(), "pad": pad })
            }
        };
        match kind {
            Kind::Crashing => job["max_attempts"] = json!(1 + random.below(3)),
            Kind::Flaky => job["options"]["crashes"] = json!(1 + random.below(2)),
            _ => {}
        }
        if random.below(8) == 0 {
            job["delay_ms"] = json!(random.below(4_000));
        }
        if random.below(6) == 0 {
            job["priority"] = json!(random.below(40) as i64 - 20);
        }
        if random.below(8) == 0 {
            let instance = format!("web{}", random.below(20));
            job["locks"] = json!({ "instance": { "exclusive": [instance] }, "node": { "shared": ["n1"] } });
            // Resource names of a level are common to all job types.
            entry.exclusive.push(format!("instance {instance}"));
        }
        if random.below(10) == 0 {
            let bucket = random.below(5);
            let limit = 2 + bucket;
            job["reason"] = json!([format!("concurrency:{limit}:bucket-{bucket}")]);
            entry.limit = Some((format!("bucket-{bucket}"), usize::try_from(limit).expect("small")));
        }
        if random.below(6) == 0 {
            let count = if random.below(10) == 0 { 100 } else { 1 + random.below(4) };
            let mut after = Vec::new();
            for _ in 0..count {
                let Some((job_type, id)) = self.recent() else { break };
                let before = format!("{job_type}/{id}");
                if entry.after.iter().all(|(other, _)| *other != before) {
                    let cancels = self.random.below(2) == 0;
                    let otherwise = if cancels { "cancel" } else { "free" };
                    after.push(json!({ "type": job_type, "id": id, "otherwise": otherwise }));
                    entry.after.push((before, cancels));
                }
            }
            job["after"] = json!(after);
        }
        (job, key, entry)
    }

    /// Cancels a job in any state.
    async fn cancel(&mut self) {
        let Some((job_type, id)) = self.recent() else { return };
        let key = format!("{job_type}/{id}");
        self.world.ledger.change(&key, |entry| entry.cancel_tried = true);
        let path = format!("/v1/jobs/{job_type}/{id}/cancel");
        let answer = self.ask(Method::POST, &path, None).await;
        if let Some(answer) = answer.success()
            && answer["state"] == "cancelled"
        {
            self.world.counts.add("jobs cancelled", 1);
            self.world.ledger.change(&key, |entry| entry.cancelled = Some(Instant::now()));
        }
    }

    /// Adds a job again with the same kind, whether it has ended or not.
    async fn add_again(&mut self) {
        let Some((job_type, id)) = self.recent() else { return };
        if !TYPES.contains(&job_type.as_str()) {
            return;
        }
        let key = format!("{job_type}/{id}");
        let Some(kind) = self.world.ledger.change(&key, |entry| {
            entry.again += 1;
            entry.adding_again += 1;
            // The job may lock other resources from now on, or none.
            (entry.exclusive, entry.limit) = (vec![key.clone()], None);
            entry.kind
        }) else {
            return;
        };
        self.world.ledger.reopen(&key);
        let mut job = json!({ "type": job_type, "id": id, "if_exists": "again" });
        job["options"] =
            json!({ "kind": format!("{kind:?}"), "work_ms": self.random.below(100), "bytes": 0 });
        if kind == Kind::Crashing {
            job["max_attempts"] = json!(2);
        }
        let body = json!({ "jobs": [job] });
        let answer = self.ask(Method::POST, "/v1/jobs", Some(&body)).await;
        self.added_again(&key, &answer);
        if answer.success().is_some() {
            self.world.counts.add("jobs added again", 1);
        }
    }

    /// Retries a job. If it has failed or was cancelled, it runs again.
    async fn retry(&mut self) {
        let Some((job_type, id)) = self.recent() else { return };
        let key = format!("{job_type}/{id}");
        let again = |entry: &mut Entry| {
            entry.again += 1;
            entry.adding_again += 1;
        };
        if self.world.ledger.change(&key, again).is_none() {
            return;
        }
        self.world.ledger.reopen(&key);
        let path = format!("/v1/jobs/{job_type}/{id}/retry");
        let answer = self.ask(Method::POST, &path, None).await;
        self.added_again(&key, &answer);
    }

    /// Notes that a request that adds a job again has done so, or has changed nothing. One without an answer may do it later.
    fn added_again(&self, key: &str, answer: &Answer) {
        if !matches!(answer, Answer::Unknown) {
            self.world.ledger.change(key, |entry| entry.adding_again -= 1);
        }
    }

    /// Makes a change that must not affect how the job ends.
    async fn change(&mut self, what: &str, method: Method, body: Option<Value>) {
        let Some((job_type, id)) = self.recent() else { return };
        let path = format!("/v1/jobs/{job_type}/{id}/{what}");
        let _ = self.ask(method, &path, body.as_ref()).await;
    }
}
