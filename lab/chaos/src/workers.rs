//! The workers: most do their work. Some crash, hang, respond late or twice, or die without notice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::World;
use super::api::Answer;
use super::ledger::{Kind, Life};
use super::node::HEALTH_TIMEOUT;
use turnwise_testkit::Random;

/// The types of the jobs that they run.
pub(super) const TYPES: [&str; 3] = ["mail", "report", "backup"];

/// The interval of heartbeats, and the pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(300);
/// How long a request for jobs waits on the server, in ms.
const WAIT_MS: u64 = 3_000;
/// How long the worker waits for its response.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a silent worker sends nothing. It is removed meanwhile.
const SILENCE: Duration = Duration::from_secs(7);
/// The longest time by which a run hangs, in ms.
const HANG_MS: u64 = 6_000;
/// The shortest and the longest life of a worker, in ms.
const LIFE_MS: (u64, u64) = (4_000, 40_000);

/// How a worker ends.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// Like `kill -9`: it sends nothing more.
    Dies,
    /// It pauses for a while, and then continues as if nothing had happened: its requests are late.
    Silent,
    /// It gives back its jobs, and leaves.
    Leaves,
}

/// Starts the workers.
pub(super) fn start(world: &Arc<World>) -> Vec<JoinHandle<()>> {
    let mut seeds = Random::new(world.options.seed ^ 0x303c);
    (0..world.options.workers)
        .map(|number| tokio::spawn(work(Arc::clone(world), number, Random::new(seeds.bits()))))
        .collect()
}

/// Runs one worker after the other.
async fn work(world: Arc<World>, number: usize, mut random: Random) {
    let mut killed = world.kill_workers.subscribe();
    while !world.workers_stop.is_cancelled() {
        let calm = world.stop.is_cancelled();
        let member = Member {
            world: Arc::clone(&world),
            number,
            job_type: TYPES[number % TYPES.len()],
            node: usize::try_from(random.below(2)).expect("small"),
            id: String::new(),
            slots: 1 + random.below(8),
            life: Arc::default(),
            gate: watch::Sender::new(true),
            gone: CancellationToken::new(),
            calm,
        };
        let fate = match random.below(4) {
            _ if calm => Fate::Leaves,
            0 => Fate::Leaves,
            1 => Fate::Silent,
            _ => Fate::Dies,
        };
        let span = Duration::from_millis(LIFE_MS.0 + random.below(LIFE_MS.1 - LIFE_MS.0));
        let until = async {
            let (stop, over) = if calm {
                (&world.workers_stop, Duration::MAX)
            } else {
                // In the end, correct workers replace all others.
                (&world.stop, span)
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(over) => {}
                () = chosen(&mut killed, number) => return Fate::Dies,
            }
            fate
        };
        let seed = random.bits();
        member.live(Random::new(seed), until).await;
    }
}

/// Waits until workers are killed, including this one.
async fn chosen(killed: &mut watch::Receiver<usize>, number: usize) {
    while killed.changed().await.is_ok() {
        if number % 3 == *killed.borrow_and_update() % 3 {
            return;
        }
    }
    std::future::pending().await
}

struct Member {
    world: Arc<World>,
    number: usize,
    job_type: &'static str,
    /// The node that it asks first.
    node: usize,
    id: String,
    slots: u64,
    life: Arc<Life>,
    /// Closed while the worker is silent.
    gate: watch::Sender<bool>,
    /// Cancelled when the server no longer knows the worker.
    gone: CancellationToken,
    calm: bool,
}

impl Member {
    async fn live(mut self, mut random: Random, fate: impl Future<Output = Fate>) {
        let body = json!({ "slots": self.slots, "name": format!("chaos {}", self.job_type) });
        let path = format!("/v1/workers/{}", self.job_type);
        let sent = Instant::now();
        let api = self.world.identities.worker(self.number);
        let answer = self.world.ask_some(api, &mut random, Method::POST, &path, Some(&body)).await;
        let Some(answer) = answer.success() else { return tokio::time::sleep(AGAIN).await };
        self.id = answer["worker"].as_str().unwrap_or_default().to_owned();
        self.life.is_heard(Some(sent));
        let member = Arc::new(self);
        // The tasks end with the worker.
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&member).ping());
        tasks.spawn(Arc::clone(&member).accept(Random::new(random.bits())));
        let fate = tokio::select! {
            fate = fate => fate,
            () = member.gone.cancelled() => Fate::Dies,
        };
        member.world.counts.add(&format!("workers: {fate:?}"), 1);
        match fate {
            Fate::Dies => {}
            Fate::Silent => {
                member.gate.send_replace(false);
                tokio::time::sleep(SILENCE).await;
                member.gate.send_replace(true);
                // Time for late requests, all of which the server must refuse.
                tokio::time::sleep(AGAIN * 4).await;
            }
            Fate::Leaves => {
                tasks.shutdown().await;
                member.life.is_heard(None);
                let _ = member.ask(Duration::from_secs(5), "/leave", &json!({})).await;
            }
        }
        tasks.shutdown().await;
    }

    /// Sends a request of this worker, when it is not silent.
    async fn ask(&self, limit: Duration, path: &str, body: &Value) -> Answer {
        // The sender is a part of `self`, so this cannot fail.
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
        let path = format!("/v1/workers/{}/{}{path}", self.job_type, self.id);
        let node = if self.world.is_up(self.node) { self.node } else { self.node + 1 };
        let api = self.world.identities.worker(self.number);
        let answer = api.ask_within(limit, node, Method::POST, &path, Some(body)).await;
        // Else workers that are alive are removed, and their runs are lost, because their identity asks for too many jobs.
        if matches!(answer, Answer::Limited) && !path.ends_with("/accept") && !path.ends_with("/leave") {
            self.world.ledger.repeated("a worker's report was refused for the limit of its identity", &path);
        }
        answer
    }

    fn is_gone(&self, answer: &Answer) -> bool {
        let gone = matches!(answer, Answer::Got(status, _) if *status == StatusCode::GONE);
        if gone {
            self.gone.cancel();
            if let Some(ago) = self.life.heard_within(HEALTH_TIMEOUT / 2) {
                let text = format!("{}, whose ping of {ago:?} ago was answered", self.id);
                self.world.ledger.repeated("a worker was removed that was alive", &text);
            }
        }
        gone
    }

    async fn ping(self: Arc<Self>) {
        loop {
            tokio::time::sleep(AGAIN).await;
            let _ = self.gate.subscribe().wait_for(|open| *open).await;
            let sent = Instant::now();
            let answer = self.ask(HEALTH_TIMEOUT, "/ping", &json!({})).await;
            if self.is_gone(&answer) {
                return;
            }
            if answer.success().is_some() {
                self.life.is_heard(Some(sent));
            }
        }
    }

    async fn accept(self: Arc<Self>, mut random: Random) {
        let mut received = 0;
        let mut runs = JoinSet::new();
        loop {
            while runs.try_join_next().is_some() {}
            if runs.len() as u64 >= self.slots {
                runs.join_next().await;
                continue;
            }
            let sent = Instant::now();
            let body =
                json!({ "received": received, "limit": self.slots - runs.len() as u64, "wait_ms": WAIT_MS });
            let answer = self.ask(ACCEPT_TIMEOUT, "/accept", &body).await;
            if self.is_gone(&answer) {
                // The runs' requests are late from now on.
                return while runs.join_next().await.is_some() {};
            }
            let Some(answer) = answer.success() else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            for job in answer["jobs"].as_array().into_iter().flatten() {
                let claim = job["claim"].as_u64().unwrap_or_default();
                if claim <= received {
                    continue;
                }
                received = claim;
                let key = format!("{}/{}", self.job_type, job["id"].as_str().unwrap_or_default());
                let name = format!("{}#{claim}", self.id);
                let number = self.world.ledger.accepted(&key, &name, &self.life, sent);
                let run = Run { member: Arc::clone(&self), key, claim, number, job: job.clone() };
                runs.spawn(run.run(Random::new(random.bits())));
            }
        }
    }
}

/// One run of a job.
struct Run {
    member: Arc<Member>,
    key: String,
    claim: u64,
    number: u64,
    job: Value,
}

impl Run {
    async fn run(self, mut random: Random) {
        let options = &self.job["options"];
        let (pad, bytes) = (options["pad"].as_str().unwrap_or_default(), options["bytes"].as_u64());
        let world = &self.member.world;
        if bytes != Some(pad.len() as u64) {
            world.ledger.finding(format!("{} came with other options: {bytes:?} bytes", self.key));
        }
        world.counts.add("runs", 1);
        let work_ms = options["work_ms"].as_u64().unwrap_or_default();
        let wild = !self.member.calm;
        let work_ms = work_ms + if wild && random.below(30) == 0 { random.below(HANG_MS) } else { 0 };
        tokio::time::sleep(Duration::from_millis(work_ms / 2)).await;
        if work_ms > 50 {
            let sent = Instant::now();
            let body = json!({ "claim": self.claim, "info": { "half": true } });
            if let Some(answer) = self.ask("update", &body).await.success() {
                world.ledger.took(self.number, sent, None, &answer);
                if answer["answer"] == "cancel" && random.below(2) == 0 {
                    return self.end("release", json!({ "claim": self.claim }), None, &mut random).await;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(work_ms / 2)).await;
        if wild && random.below(60) == 0 {
            // The run never reports its end. Only the worker's removal ends it.
            return std::future::pending().await;
        }
        let attempt = self.job["attempt"].as_u64().unwrap_or_default();
        let crashes = options["crashes"].as_u64().unwrap_or_default();
        let kind = [Kind::Done, Kind::Failing, Kind::Crashing, Kind::Flaky]
            .into_iter()
            .find(|kind| options["kind"] == format!("{kind:?}"));
        let claim = self.claim;
        match kind {
            Some(Kind::Failing) => {
                let body = json!({ "claim": claim, "reason": "as it should", "retry": false });
                self.end("fail", body, Some("failed"), &mut random).await;
            }
            Some(Kind::Crashing) => {
                let last = self.job["max_attempts"].as_u64().is_some_and(|max| attempt >= max);
                let body = json!({ "claim": claim, "reason": "as it should" });
                self.end("fail", body, last.then_some("failed"), &mut random).await;
            }
            Some(Kind::Flaky) if attempt <= crashes => {
                let body = json!({ "claim": claim, "reason": "this time" });
                self.end("fail", body, None, &mut random).await;
            }
            _ => {
                let body = json!({ "claim": claim, "result": { "run": self.number } });
                self.end("finish", body, Some("completed"), &mut random).await;
            }
        }
    }

    async fn ask(&self, what: &str, body: &Value) -> Answer {
        let id = self.job["id"].as_str().unwrap_or_default();
        self.member.ask(Duration::from_secs(10), &format!("/jobs/{id}/{what}"), body).await
    }

    /// Reports the end of the run until a response arrives, and sometimes once more. `last` is the job's final state, if
    /// this run ends the job.
    async fn end(&self, what: &str, body: Value, last: Option<&str>, random: &mut Random) {
        let ledger = &self.member.world.ledger;
        // A silent worker's report is late: it is sent when the worker continues.
        let _ = self.member.gate.subscribe().wait_for(|open| *open).await;
        ledger.ending(self.number, last.unwrap_or(what), last.is_some());
        let mut twice = random.below(15) == 0;
        loop {
            match self.ask(what, &body).await {
                Answer::Got(StatusCode::OK, answer) => {
                    ledger.took(self.number, Instant::now(), Some(last.unwrap_or(what)), &answer);
                    if !std::mem::take(&mut twice) {
                        break;
                    }
                }
                Answer::Got(status, answer) => {
                    let refused = [StatusCode::CONFLICT, StatusCode::GONE].contains(&status);
                    if !refused {
                        let text = format!("{what} of {} was answered {status}: {answer}", self.key);
                        ledger.repeated("the end of a run was refused", &text);
                    }
                    self.member.world.counts.add("late answers refused", 1);
                    break;
                }
                Answer::NotDone | Answer::Limited | Answer::Unknown => tokio::time::sleep(AGAIN).await,
            }
        }
        ledger.forget(self.number);
    }
}
