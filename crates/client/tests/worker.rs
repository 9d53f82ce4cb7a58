//! The loop of an external worker, against a fake server whose answers the test chooses.

use std::time::Duration;

use crate::common::{Fake, PATIENCE, Request};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use turnwise_client::protocol::WantedLock;
use turnwise_client::{Client, LockMode, Outcome, Result, Run, WorkerOptions, work};

/// A worker whose handler does what the job's options say.
struct Worker {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<()>>,
    started: mpsc::UnboundedReceiver<String>,
    dropped: mpsc::UnboundedReceiver<String>,
}

/// Sends the job's id when its run is over, however it ends.
struct Running(String, mpsc::UnboundedSender<String>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

impl Worker {
    fn start(fake: &Fake, slots: usize) -> Worker {
        Worker::start_with(fake.client(), slots)
    }

    fn start_with(client: Client, slots: usize) -> Worker {
        let stop = CancellationToken::new();
        let (starts, started) = mpsc::unbounded_channel();
        let (drops, dropped) = mpsc::unbounded_channel();
        let handler = move |run: Run| {
            let (id, drops) = (run.job.id.clone(), drops.clone());
            starts.send(id.clone()).unwrap();
            async move {
                let _running = Running(id, drops);
                let options: Value = serde_json::from_str(run.job.options.get()).unwrap();
                match options.as_str().unwrap() {
                    "complete" => Outcome::completed(&json!({ "attempt": run.job.attempt })),
                    "large" => Outcome::completed(&"x".repeat(9_000_000)),
                    "deep" => {
                        let json = format!("{}{}", "[".repeat(120), "]".repeat(120));
                        let json = RawValue::from_string(json).unwrap();
                        // The report would make the server refuse any end.
                        run.report(&json);
                        Outcome::Completed(json)
                    }
                    "fail" => Outcome::Failed("never".into()),
                    "panic" => panic!("the roof is on fire"),
                    "report" => {
                        run.report(&json!({ "n": 1 }));
                        run.stop.cancelled().await;
                        Outcome::Stopped
                    }
                    "lock" => {
                        let (level, name, mode) =
                            ("node".to_owned(), Some("n1".to_owned()), LockMode::Exclusive);
                        if let Err(error) = run.lock(&[WantedLock { level, name, mode, units: 1 }]).await {
                            return error.into();
                        }
                        run.unlock("node", Some("n1")).await.unwrap();
                        Outcome::completed(&1)
                    }
                    "hang" => std::future::pending().await,
                    _ => {
                        run.stop.cancelled().await;
                        Outcome::Stopped
                    }
                }
            }
        };
        let options = WorkerOptions {
            slots,
            name: Some("test".into()),
            accept_wait: Duration::from_secs(5),
            report_interval: Duration::from_millis(1),
            stop_grace: Duration::from_millis(100),
            ..WorkerOptions::new("mail")
        };
        let stopped = stop.clone();
        let task = tokio::spawn(async move { work(&client, options, handler, stopped).await });
        Worker { stop, task, started, dropped }
    }

    async fn started(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.started.recv()).await.expect("nothing starts").unwrap()
    }

    async fn dropped(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.dropped.recv()).await.expect("nothing ends").unwrap()
    }

    async fn ended(self) -> Result<()> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the worker does not end").unwrap()
    }
}

async fn register(fake: &mut Fake, id: &str, ping_interval_ms: u64) {
    let request = fake.expect("/v1/workers/mail").await;
    let slots = request.body["slots"].clone();
    assert_eq!(request.body, json!({ "name": "test", "slots": slots }));
    let answer =
        json!({ "worker": id, "ping_interval_ms": ping_interval_ms, "health_timeout_ms": 3_600_000 });
    request.answer(201, &answer);
}

fn give(request: Request, jobs: &[(&str, u64, &str)]) {
    acknowledge(request, &json!([]), jobs);
}

/// The ends in a request: they have a request of their own, or come with a request for jobs.
fn ends(request: &Request) -> Option<&Value> {
    match request.path.rsplit('/').next() {
        Some("end") => Some(&request.body),
        Some("accept") => request.body.get("ends"),
        _ => None,
    }
}

/// The next request, which must have these ends. Answers pings that come before it.
async fn expect_ends(fake: &mut Fake, expected: &Value) -> Request {
    loop {
        let request = fake.next().await;
        if !request.path.ends_with("/ping") {
            assert_eq!(ends(&request), Some(expected), "{request:?}");
            return request;
        }
        request.answer(200, &json!({ "cancel": [] }));
    }
}

fn recorded(claim: u64, state: &str) -> Value {
    json!([{ "claim": claim, "state": state }])
}

fn refused(claim: u64, code: &str) -> Value {
    json!([{ "claim": claim, "error": { "error": code, "reason": "", "hint": "" } }])
}

/// Answers a request with ends, and with these jobs if it is one for jobs.
fn acknowledge(request: Request, ended: &Value, jobs: &[(&str, u64, &str)]) {
    let jobs: Vec<Value> = jobs
        .iter()
        .map(|(id, claim, options)| {
            json!({ "id": id, "claim": claim, "tenant": "t", "attempt": 1, "options": options, "summary": {} })
        })
        .collect();
    request.answer(200, &json!({ "ended": ended, "jobs": jobs }));
}

const HOUR_MS: u64 = 3_600_000;

#[tokio::test]
async fn requests_for_jobs_that_a_gateway_cuts_become_shorter_and_have_no_pauses_between() {
    let mut fake = Fake::start().await;
    let worker = Worker::start(&fake, 2);
    register(&mut fake, "w", HOUR_MS).await;
    let mut wait = 5_000;
    for held_ms in [900, 300] {
        let request = fake.expect("/w/accept").await;
        assert_eq!(request.body["wait_ms"], wait);
        tokio::time::sleep(Duration::from_millis(held_ms)).await;
        request.raw(504, "text/html", "<h1>Gateway Time-out</h1>");
        let next = fake.expect("/w/accept").await;
        wait = next.body["wait_ms"].as_u64().unwrap();
        assert!(wait >= held_ms / 2 && wait < held_ms, "{wait} after {held_ms}");
        // Too soon for a gateway's timeout: nothing is learnt from it.
        next.lose();
    }
    drop(worker);
}

#[tokio::test]
async fn lost_answers_neither_lose_nor_repeat_a_job() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 2);
    fake.expect("/v1/workers/mail").await.lose();
    register(&mut fake, "w", HOUR_MS).await;
    let first = fake.expect("/w/accept").await;
    assert_eq!(first.body, json!({ "received": 0, "limit": 2, "wait_ms": 5_000 }));
    first.lose();
    let second = fake.expect("/w/accept").await;
    assert_eq!(second.body["received"], 0, "nothing has come");
    // Even if the server sends a claim twice, the worker runs it once.
    give(second, &[("a b", 4, "complete"), ("a b", 4, "complete")]);
    assert_eq!(worker.started().await, "a b");
    let mut sent = 0;
    while sent < 3 {
        let request = fake.next().await;
        if let Some(ends) = ends(&request) {
            sent += 1;
            let end = json!({ "id": "a b", "claim": 4, "result": { "attempt": 1 } });
            assert_eq!(*ends, json!({ "finish": [end] }));
            match sent {
                1 => request.lose(),
                2 => request.refuse(503, "unknown_outcome"),
                _ => acknowledge(request, &recorded(4, "completed"), &[]),
            }
        } else if request.path.ends_with("/accept") {
            assert_eq!(request.body["received"], 4);
            give(request, &[]);
        } else {
            request.answer(200, &json!({ "cancel": [] }));
        }
    }
    worker.stop.cancel();
    loop {
        let request = fake.next().await;
        if request.path.ends_with("/leave") {
            request.answer(200, &json!({ "left": true }));
            break;
        }
        assert_eq!(ends(&request), None, "the end was acknowledged already");
        request.answer(200, &json!({ "jobs": [], "cancel": [] }));
    }
    worker.ended().await.unwrap();
}

/// The server returns the jobs of a lost answer again, however many slots the worker has free by its own count.
#[tokio::test]
async fn an_end_is_sent_although_more_jobs_run_than_there_are_slots() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 1);
    register(&mut fake, "w", HOUR_MS).await;
    give(fake.expect("/accept").await, &[("a", 1, "stop"), ("b", 2, "complete")]);
    worker.started().await;
    worker.started().await;
    let finish = json!({ "finish": [{ "id": "b", "claim": 2, "result": { "attempt": 1 } }] });
    expect_ends(&mut fake, &finish).await.lose();
    acknowledge(expect_ends(&mut fake, &finish).await, &recorded(2, "completed"), &[]);
    drop(worker);
}

#[tokio::test]
async fn every_outcome_is_reported_as_it_is() {
    let mut fake = Fake::start().await;
    let worker = Worker::start(&fake, 1);
    register(&mut fake, "w", HOUR_MS).await;
    let cases = [
        ("fail", json!({ "id": "a", "claim": 1, "reason": "never", "retry": false })),
        (
            "panic",
            json!({ "id": "a", "claim": 2, "reason": "the handler panicked: the roof is on fire", "retry": true }),
        ),
        (
            "large",
            json!({ "id": "a", "claim": 3, "reason": "its result has 9000002 bytes; at most 8388608 are allowed", "retry": false }),
        ),
        (
            "deep",
            json!({ "id": "a", "claim": 4, "retry": false, "reason": "its result of 240 bytes is JSON that the server does not take: nested deeper than 100 at line 1 column 97" }),
        ),
    ];
    let mut request = fake.expect("/accept").await;
    let mut ended = json!([]);
    for (claim, (options, end)) in (1..).zip(cases) {
        acknowledge(request, &ended, &[("a", claim, options)]);
        // Its only slot is free once the server has recorded the end, so the request for jobs carries it.
        request = fake.expect("/accept").await;
        assert_eq!((&request.body["limit"], ends(&request)), (&json!(1), Some(&json!({ "fail": [end] }))));
        ended = recorded(claim, "failed");
    }
    // An end that the server refuses is replaced, once.
    acknowledge(request, &ended, &[("a", 9, "complete")]);
    let finish = json!({ "finish": [{ "id": "a", "claim": 9, "result": { "attempt": 1 } }] });
    acknowledge(expect_ends(&mut fake, &finish).await, &refused(9, "too_large"), &[]);
    let request = fake.expect("/accept").await;
    let end = &request.body["ends"]["fail"][0];
    assert_eq!((&end["claim"], &end["retry"]), (&json!(9), &json!(false)));
    acknowledge(request, &recorded(9, "failed"), &[]);
    assert_eq!(ends(&fake.expect("/accept").await), None);
    drop(worker);
}

#[tokio::test]
async fn an_end_that_the_server_refuses_does_not_affect_the_ends_sent_with_it() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 3);
    register(&mut fake, "w", HOUR_MS).await;
    give(fake.expect("/accept").await, &[("a", 1, "stop"), ("b", 2, "stop"), ("c", 3, "stop")]);
    for _ in 0..3 {
        worker.started().await;
    }
    worker.stop.cancel();
    let (mut states, mut together) = (Vec::new(), 0);
    while states.len() < 3 {
        let request = fake.expect("/end").await;
        let ended = request.body["release"].as_array().unwrap().clone();
        match ended.as_slice() {
            [end] if end["claim"] == 2 => {
                states.push("refused");
                request.refuse(413, "too_large");
            }
            [end] => {
                states.push("released");
                let ended = recorded(end["claim"].as_u64().unwrap(), "pending");
                acknowledge(request, &ended, &[]);
            }
            _ => {
                together += ended.len();
                request.refuse(413, "too_large");
            }
        }
    }
    assert!(together >= 2, "no request had several ends");
    states.sort_unstable();
    assert_eq!(states, ["refused", "released", "released"]);
    let failed = fake.expect("/end").await;
    assert_eq!(failed.body["fail"][0]["claim"], 2);
    acknowledge(failed, &recorded(2, "failed"), &[]);
    fake.expect("/leave").await.answer(200, &json!({ "left": true }));
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn an_end_that_the_server_cannot_record_now_is_sent_again() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 1);
    register(&mut fake, "w", HOUR_MS).await;
    give(fake.expect("/accept").await, &[("a", 1, "complete")]);
    worker.started().await;
    let finish = json!({ "finish": [{ "id": "a", "claim": 1, "result": { "attempt": 1 } }] });
    for code in ["internal_server_error", "service_unavailable", "unknown_outcome"] {
        acknowledge(expect_ends(&mut fake, &finish).await, &refused(1, code), &[]);
    }
    expect_ends(&mut fake, &finish).await.refuse(500, "internal_server_error");
    acknowledge(expect_ends(&mut fake, &finish).await, &recorded(1, "completed"), &[]);
}

#[tokio::test]
async fn locks_are_requested_until_they_are_held_or_refused() {
    const LOCKS: &str = "/w/jobs/a%20b/locks";
    let mut fake = Fake::start().await;
    let worker = Worker::start(&fake, 1);
    register(&mut fake, "w", HOUR_MS).await;
    give(fake.expect("/accept").await, &[("a b", 4, "lock")]);
    let lock = json!({ "level": "node", "name": "n1", "mode": "exclusive", "units": 1 });
    let wanted = json!({ "claim": 4, "locks": [lock], "wait_ms": 30_000 });
    fake.expect(LOCKS).await.lose();
    let waiting = json!({ "state": "waiting", "lock": lock, "by": [] });
    fake.expect(LOCKS).await.answer(200, &waiting);
    let asked = fake.expect(LOCKS).await;
    assert_eq!((asked.method.as_str(), &asked.body), ("POST", &wanted));
    asked.answer(200, &json!({ "state": "held" }));
    let back = fake.expect(&format!("{LOCKS}?claim=4&level=node&name=n1")).await;
    assert_eq!(back.method, "DELETE");
    back.answer(200, &json!({ "unlocked": true }));
    let finish = json!({ "finish": [{ "id": "a b", "claim": 4, "result": 1 }] });
    let mut accept = expect_ends(&mut fake, &finish).await;
    let mut ended = recorded(4, "completed");
    for (claim, code, retry) in [(5, "out_of_order", true), (6, "not_declared", false)] {
        acknowledge(accept, &ended, &[("a b", claim, "lock")]);
        fake.expect(LOCKS).await.refuse(409, code);
        accept = fake.expect("/accept").await;
        let end = &accept.body["ends"]["fail"][0];
        assert_eq!((&end["claim"], &end["retry"]), (&json!(claim), &json!(retry)));
        ended = recorded(claim, "failed");
    }
    // A run that must stop no longer waits for a lock.
    acknowledge(accept, &ended, &[("a b", 7, "lock")]);
    let asked = fake.expect(LOCKS).await;
    worker.stop.cancel();
    asked.given_up().await;
    let release = json!({ "release": [{ "id": "a b", "claim": 7 }] });
    acknowledge(expect_ends(&mut fake, &release).await, &recorded(7, "pending"), &[]);
    fake.expect("/leave").await.answer(200, &json!({ "left": true }));
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_job_is_stopped_and_released() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 2);
    register(&mut fake, "w", 50).await;
    give(fake.expect("/accept").await, &[("pinged", 1, "stop"), ("reports", 2, "report")]);
    worker.started().await;
    worker.started().await;
    let request = fake.expect("/jobs/reports/update").await;
    assert_eq!(request.body, json!({ "claim": 2, "info": { "n": 1 } }));
    request.answer(200, &json!({ "answer": "cancel" }));
    let release = json!({ "release": [{ "id": "reports", "claim": 2, "info": { "n": 1 } }] });
    acknowledge(expect_ends(&mut fake, &release).await, &recorded(2, "cancelled"), &[]);
    let accept = fake.expect("/accept").await;
    fake.expect("/ping").await.answer(200, &json!({ "cancel": [1, 77] }));
    // The request for jobs waits on the server, and the end does not wait for it.
    let release = json!({ "release": [{ "id": "pinged", "claim": 1 }] });
    acknowledge(expect_ends(&mut fake, &release).await, &recorded(1, "cancelled"), &[]);
    // The worker aborts a run that does not stop within the grace period.
    give(accept, &[("hangs", 3, "hang")]);
    let _accept = fake.expect("/accept").await;
    fake.expect("/ping").await.answer(200, &json!({ "cancel": [3] }));
    let release = json!({ "release": [{ "id": "hangs", "claim": 3 }] });
    acknowledge(expect_ends(&mut fake, &release).await, &recorded(3, "cancelled"), &[]);
}

#[tokio::test]
async fn a_run_that_loses_its_claim_ends_without_a_report() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 1);
    register(&mut fake, "w", HOUR_MS).await;
    give(fake.expect("/accept").await, &[("a", 1, "report")]);
    fake.expect("/jobs/a/update").await.refuse(409, "halt");
    assert_eq!(worker.dropped().await, "a");
    // The slot is free, so the worker requests another job.
    give(fake.expect("/accept").await, &[("b", 2, "complete")]);
    let finish = json!({ "finish": [{ "id": "b", "claim": 2, "result": { "attempt": 1 } }] });
    acknowledge(expect_ends(&mut fake, &finish).await, &refused(2, "halt"), &[]);
    assert_eq!(ends(&fake.expect("/accept").await), None);
}

#[tokio::test]
async fn an_expired_worker_stops_everything_and_registers_again() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 3);
    register(&mut fake, "w1", 50).await;
    give(fake.expect("/accept").await, &[("a", 1, "hang"), ("b", 2, "stop")]);
    worker.started().await;
    worker.started().await;
    let accept = fake.expect("/w1/accept").await;
    fake.expect("/w1/ping").await.refuse(410, "expired_worker");
    let mut gone = [worker.dropped().await, worker.dropped().await];
    gone.sort();
    assert_eq!(gone, ["a", "b"]);
    accept.given_up().await;
    // The worker sends nothing under the old id; otherwise `expect` would fail.
    register(&mut fake, "w2", HOUR_MS).await;
    let request = fake.expect("/w2/accept").await;
    assert_eq!(request.body["received"], 0);
    // The worker also learns of its expiry from the answer to a run's end, or to a request for jobs.
    give(request, &[("c", 1, "complete"), ("d", 2, "hang")]);
    let accept = loop {
        let request = fake.next().await;
        match request.path.as_str() {
            path if path.ends_with("/accept") => break request,
            path if path.ends_with("/end") => request.refuse(410, "expired_worker"),
            _ => request.answer(200, &json!({ "cancel": [] })),
        }
    };
    drop(accept);
    let again = loop {
        let request = fake.next().await;
        match request.path.as_str() {
            "/v1/workers/mail" => break request,
            _ if ends(&request).is_some() => request.refuse(410, "expired_worker"),
            _ => request.answer(200, &json!({ "cancel": [], "jobs": [] })),
        }
    };
    again.answer(201, &json!({ "worker": "w3", "ping_interval_ms": HOUR_MS, "health_timeout_ms": HOUR_MS }));
    fake.expect("/w3/accept").await.refuse(410, "expired_worker");
    register(&mut fake, "w4", HOUR_MS).await;
}

#[tokio::test]
async fn a_worker_that_stops_gives_back_what_runs_and_leaves() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 2);
    register(&mut fake, "w", HOUR_MS).await;
    give(fake.expect("/accept").await, &[("a", 1, "stop")]);
    worker.started().await;
    let accept = fake.expect("/accept").await;
    worker.stop.cancel();
    accept.given_up().await;
    // Jobs that were on their way are given back at once, and not when the worker leaves.
    let again = fake.expect("/accept").await;
    assert_eq!(again.body, json!({ "received": 1, "limit": 1, "wait_ms": 0 }));
    give(again, &[("b", 2, "complete"), ("c", 3, "complete")]);
    let undelivered = json!({ "release": [{ "id": "b", "claim": 2 }, { "id": "c", "claim": 3 }] });
    acknowledge(expect_ends(&mut fake, &undelivered).await, &json!([]), &[]);
    let again = fake.expect("/accept").await;
    assert_eq!(again.body["received"], 3);
    give(again, &[]);
    let release = json!({ "release": [{ "id": "a", "claim": 1 }] });
    expect_ends(&mut fake, &release).await.lose();
    acknowledge(expect_ends(&mut fake, &release).await, &recorded(1, "pending"), &[]);
    fake.expect("/leave").await.answer(200, &json!({ "left": true }));
    worker.ended().await.unwrap();

    // A worker that was never registered ends without `leave`, whether the server answers or not.
    let worker = Worker::start(&fake, 1);
    let request = fake.expect("/v1/workers/mail").await;
    worker.stop.cancel();
    request.given_up().await;
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_refused_registration_ends_the_worker_and_later_faults_are_retried() {
    let mut fake = Fake::start().await;
    let worker = Worker::start(&fake, 1);
    fake.expect("/v1/workers/mail").await.refuse(403, "forbidden");
    assert_eq!(worker.ended().await.unwrap_err().code(), Some("forbidden"));
    assert!(Worker::start(&fake, 0).ended().await.is_err());

    // A registered worker retries after faults of the server, and of a proxy in front of it.
    let worker = Worker::start(&fake, 1);
    register(&mut fake, "w", HOUR_MS).await;
    fake.expect("/accept").await.raw(500, "text/html", "<h1>Oops</h1>");
    fake.expect("/accept").await.refuse(500, "internal_server_error");
    fake.expect("/accept").await.refuse(409, "superseded");
    give(fake.expect("/accept").await, &[("a", 1, "complete")]);
    let finish = json!({ "finish": [{ "id": "a", "claim": 1, "result": { "attempt": 1 } }] });
    expect_ends(&mut fake, &finish).await.raw(200, "text/html", "<h1>Login</h1>");
    expect_ends(&mut fake, &finish).await.refuse(500, "internal_server_error");
    acknowledge(expect_ends(&mut fake, &finish).await, &recorded(1, "completed"), &[]);
    fake.expect("/accept").await;
    drop(worker);
}

#[tokio::test]
async fn a_fault_during_a_second_registration_is_retried() {
    let mut fake = Fake::start().await;
    let worker = Worker::start(&fake, 1);
    fake.expect("/v1/workers/mail").await.refuse(500, "internal_server_error");
    register(&mut fake, "w1", HOUR_MS).await;
    fake.expect("/w1/accept").await.refuse(410, "expired_worker");
    fake.expect("/v1/workers/mail").await.refuse(500, "internal_server_error");
    fake.expect("/v1/workers/mail").await.raw(500, "text/html", "<h1>Oops</h1>");
    register(&mut fake, "w2", HOUR_MS).await;
    fake.expect("/w2/accept").await;
    drop(worker);

    // Before the first registration, such an answer may mean that the URL is not turnwise's.
    let worker = Worker::start(&fake, 1);
    fake.expect("/v1/workers/mail").await.raw(500, "text/html", "<h1>Oops</h1>");
    worker.ended().await.unwrap_err();
}

#[tokio::test]
async fn a_worker_fails_over_and_keeps_its_id() {
    let (mut one, mut two) = (Fake::start().await, Fake::start().await);
    let client = Client::new(&format!("{},{}", one.url, two.url)).unwrap();
    let mut worker = Worker::start_with(client, 2);
    register(&mut one, "w", HOUR_MS).await;
    give(one.expect("/w/accept").await, &[("a", 7, "complete")]);
    worker.started().await;
    let mut accept = None;
    let finish = loop {
        let request = one.next().await;
        match request.path.as_str() {
            _ if ends(&request).is_some() => break request,
            path if path.ends_with("/accept") => accept = Some(request),
            _ => request.answer(200, &json!({ "cancel": [] })),
        }
    };
    // The first server disappears when it has received the end of the run, and perhaps while the worker requests jobs.
    finish.lose();
    let (mut ended, mut given) = (false, false);
    while !(ended && given) {
        let request = two.next().await;
        let what = request.path.strip_prefix("/v1/workers/mail/w/").unwrap().to_owned();
        let mut results = json!([]);
        if let Some(ends) = ends(&request) {
            let end = json!({ "id": "a", "claim": 7, "result": { "attempt": 1 } });
            assert_eq!(*ends, json!({ "finish": [end] }));
            results = recorded(7, "completed");
            ended = true;
        }
        match what.as_str() {
            "accept" => {
                assert_eq!(request.body["received"], if given { 8 } else { 7 });
                if let Some(accept) = accept.take() {
                    accept.given_up().await;
                }
                let jobs = if given { [].as_slice() } else { &[("b", 8, "hang")] };
                acknowledge(request, &results, jobs);
                given = true;
            }
            "end" => acknowledge(request, &results, &[]),
            "ping" => request.answer(200, &json!({ "cancel": [] })),
            path => panic!("unexpected: {path}"),
        }
    }
    assert_eq!(worker.started().await, "b");
    // The worker leaves a server that hangs as soon as a ping fails, although a request for jobs may take long.
    drop((one, two));
    let (mut one, mut two) = (Fake::start().await, Fake::start().await);
    let client = Client::new(&format!("{},{}", one.url, two.url)).unwrap();
    let _worker = Worker::start_with(client, 1);
    register(&mut one, "w", 50).await;
    let (mut accept, mut ping) = (None, None);
    while accept.is_none() || ping.is_none() {
        let request = one.next().await;
        let place = if request.path.ends_with("/ping") { &mut ping } else { &mut accept };
        *place = Some(request);
    }
    two.expect("/w/accept").await;
    accept.unwrap().given_up().await;
}

#[tokio::test]
async fn a_run_that_hangs_is_aborted_when_its_time_is_over() {
    for (member, why) in [
        ("timeout_ms", "it ran for longer than its timeout of 20ms"),
        ("heartbeat_timeout_ms", "it reported nothing for its heartbeat_timeout of 20ms"),
    ] {
        let mut fake = Fake::start().await;
        let _worker = Worker::start(&fake, 1);
        register(&mut fake, "w", HOUR_MS).await;
        let mut job =
            json!({ "id": "a", "claim": 1, "tenant": "t", "attempt": 1, "options": "hang", "summary": {} });
        job[member] = json!(20);
        fake.expect("/w/accept").await.answer(200, &json!({ "jobs": [job] }));
        let fail = json!({ "fail": [{ "id": "a", "claim": 1, "reason": why, "retry": true }] });
        acknowledge(expect_ends(&mut fake, &fail).await, &recorded(1, "crashing"), &[]);
    }
}

#[tokio::test]
async fn a_worker_that_drains_finishes_its_job_takes_no_more_and_leaves() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 2);
    register(&mut fake, "w", 50).await;
    give(fake.expect("/accept").await, &[("a", 1, "stop")]);
    worker.started().await;
    let accept = fake.expect("/accept").await;
    fake.expect("/ping").await.answer(200, &json!({ "cancel": [], "mode": "drain" }));
    // The request that waits for jobs is given up, and none is on its way.
    accept.given_up().await;
    let again = fake.expect("/accept").await;
    assert_eq!(again.body["wait_ms"], 0);
    give(again, &[]);
    fake.expect("/ping").await.answer(200, &json!({ "cancel": [1], "mode": "drain" }));
    let release = json!({ "release": [{ "id": "a", "claim": 1 }] });
    acknowledge(expect_ends(&mut fake, &release).await, &recorded(1, "cancelled"), &[]);
    fake.expect("/leave").await.answer(200, &json!({ "left": true }));
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_worker_learns_from_a_response_with_jobs_that_it_drains() {
    let mut fake = Fake::start().await;
    let mut worker = Worker::start(&fake, 2);
    register(&mut fake, "w", HOUR_MS).await;
    fake.expect("/accept").await.answer(200, &json!({ "jobs": [], "mode": "quiet" }));
    let job =
        json!({ "id": "a", "claim": 1, "tenant": "t", "attempt": 1, "options": "complete", "summary": null });
    fake.expect("/accept").await.answer(200, &json!({ "jobs": [job], "mode": "drain" }));
    worker.started().await;
    let finish = json!({ "finish": [{ "id": "a", "claim": 1, "result": { "attempt": 1 } }] });
    let end = fake.expect("/end").await;
    assert_eq!(ends(&end), Some(&finish));
    acknowledge(end, &recorded(1, "completed"), &[]);
    fake.expect("/leave").await.answer(200, &json!({ "left": true }));
    worker.ended().await.unwrap();
}
