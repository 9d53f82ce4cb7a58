//! Tasks with types, steps, and heartbeats beside handlers that block, against a fake server.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::{Fake, PATIENCE};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use turnwise_client::protocol::TaskTerms;
use turnwise_client::{
    AddJob, CancellationToken, Client, Error, Outcome, Result, Run, Task, TaskError, Worker, WorkerOptions,
    work,
};

#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    to: String,
}

const SEND: Task<Mail, String> = Task::new("mail", "send");
const CLEAN: Task<(), u32> = Task::new("mail", "clean");

async fn send(run: Run, mail: Mail) -> Result<String, TaskError> {
    match mail.to.as_str() {
        "nobody" => Err(TaskError::failed("nobody is no one")),
        "later" => Err(TaskError::snoozed(Duration::from_secs(60))),
        "busy" => Err(TaskError::retry_after("busy", Duration::from_secs(7))),
        "number" => Ok(mail.to.parse::<u8>()?.to_string()),
        "card" => {
            run.report(&json!({ "at": "charge" }));
            let receipt: u32 = run.step("charge", async { Ok::<_, TaskError>(7) }).await?;
            let _: u32 = run.step("known", async { Err(TaskError::failed("it runs again")) }).await?;
            Ok(receipt.to_string())
        }
        to => Ok(format!("sent to {to}")),
    }
}

fn worker() -> Worker {
    let options =
        WorkerOptions { slots: 2, report_interval: Duration::from_secs(3600), ..WorkerOptions::new("mail") };
    Worker::new(options)
        .task(SEND, send)
        .task(CLEAN, async |_, ()| Ok(3))
        .terms(SEND, TaskTerms { max_attempts: Some(3), ..TaskTerms::default() })
        .schedule(CLEAN, "30 2 * * * Europe/Berlin".into(), &())
}

/// Starts the worker, and answers until its first request for jobs.
async fn registered(fake: &mut Fake) -> tokio::task::JoinHandle<Result<()>> {
    let client = fake.client();
    let working = tokio::spawn(async move { worker().run(&client, CancellationToken::new()).await });
    let schedule = fake.next().await;
    assert_eq!((schedule.method.as_str(), schedule.path.as_str()), ("PUT", "/v1/schedules/mail.clean"));
    assert_eq!(schedule.body["when"], json!({ "cron": "30 2 * * *", "zone": "Europe/Berlin" }));
    assert_eq!(
        (&schedule.body["job"]["type"], &schedule.body["job"]["task"]),
        (&json!("mail"), &json!("clean"))
    );
    assert_eq!(schedule.body["job"].get("options"), None);
    schedule.refuse(500, "internal_server_error");
    fake.next().await.answer(200, &json!({}));
    let register = fake.expect("/v1/workers/mail").await;
    assert_eq!(register.body["tasks"], json!(["clean", "send"]));
    assert_eq!(register.body["task_terms"], json!({ "send": { "max_attempts": 3 } }));
    register
        .answer(201, &json!({ "worker": "w", "ping_interval_ms": HOUR_MS, "health_timeout_ms": HOUR_MS }));
    working
}

const HOUR_MS: u64 = 3_600_000;

fn job(claim: u64, task: &str, options: Value, info: Option<Value>) -> Value {
    let mut job = json!({ "id": format!("j{claim}"), "claim": claim, "tenant": "t", "attempt": 1, "task": task, "options": options, "summary": {} });
    if let Some(info) = info {
        job["info"] = info;
    }
    job
}

/// Gives the worker one job, and returns the end that it sends.
async fn end_of(fake: &mut Fake, job: Value) -> Value {
    let claim = job["claim"].clone();
    fake.expect("/accept").await.answer(200, &json!({ "jobs": [job] }));
    loop {
        let request = fake.next().await;
        match request.path.rsplit('/').next() {
            Some("update") => request.answer(200, &json!({ "answer": "continue" })),
            Some("end") => {
                let end = request.body.clone();
                request.answer(200, &json!({ "ended": [{ "claim": claim, "state": "completed" }] }));
                return end;
            }
            Some("accept") => {
                let Some(end) = request.body.get("ends").cloned() else {
                    request.answer(200, &json!({ "jobs": [] }));
                    continue;
                };
                request
                    .answer(200, &json!({ "ended": [{ "claim": claim, "state": "completed" }], "jobs": [] }));
                return end;
            }
            _ => request.answer(200, &json!({ "cancel": [] })),
        }
    }
}

#[tokio::test]
async fn what_a_task_returns_is_the_end_of_its_job() {
    let mut fake = Fake::start().await;
    let _working = registered(&mut fake).await;
    let to = |to: &str| json!({ "to": to });
    let end = end_of(&mut fake, job(1, "send", to("a"), None)).await;
    assert_eq!(end["finish"][0]["result"], "sent to a");
    let end = end_of(&mut fake, job(2, "clean", json!({}), None)).await;
    assert_eq!(end["finish"][0]["result"], 3);
    let end = end_of(&mut fake, job(3, "send", to("nobody"), None)).await;
    assert_eq!(
        (&end["fail"][0]["reason"], &end["fail"][0]["retry"]),
        (&json!("nobody is no one"), &json!(false))
    );
    let end = end_of(&mut fake, job(4, "send", json!({ "from": "a" }), None)).await;
    assert_eq!((&end["fail"][0]["class"], &end["fail"][0]["retry"]), (&json!("BadOptions"), &json!(false)));
    let end = end_of(&mut fake, job(5, "send", to("number"), None)).await;
    assert_eq!(end["fail"][0]["retry"], true);
    assert_eq!(end["fail"][0]["class"], "core::num::error::ParseIntError");
    let end = end_of(&mut fake, job(6, "send", to("later"), None)).await;
    assert_eq!(end["snooze"][0]["for_ms"], 60_000);
    let end = end_of(&mut fake, job(7, "send", to("busy"), None)).await;
    assert_eq!(end["fail"][0]["retry_after_ms"], 7_000);
}

#[tokio::test]
async fn the_value_of_a_step_is_stored_before_the_task_goes_on() {
    let mut fake = Fake::start().await;
    let _working = registered(&mut fake).await;
    let before = json!({ "$steps": { "known": 1 }, "report": "old" });
    let given = job(1, "send", json!({ "to": "card" }), Some(before));
    fake.expect("/accept").await.answer(200, &json!({ "jobs": [given] }));
    let stored = json!({ "$steps": { "charge": 7, "known": 1 }, "report": { "at": "charge" } });
    let mut lost = 0;
    let end = loop {
        let request = fake.next().await;
        match request.path.rsplit('/').next() {
            Some("update") if request.body["info"] == stored && lost < 2 => {
                lost += 1;
                if lost == 1 { request.lose() } else { request.refuse(500, "internal_server_error") }
            }
            Some("update") => request.answer(200, &json!({ "answer": "continue" })),
            Some("end") => break request.body.clone(),
            _ if request.body.get("ends").is_some() => break request.body["ends"].clone(),
            _ => drop(request),
        }
        assert!(lost < 3);
    };
    assert_eq!(lost, 2, "the task did not wait for the step");
    assert_eq!(end["finish"][0]["result"], "7");
    assert_eq!(end["finish"][0]["info"], stored);
}

#[tokio::test]
async fn a_handle_has_the_result_or_the_failure() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let adding = tokio::spawn(async move {
        let tagged = AddJob { tags: Some(vec!["eu".into()]), ..AddJob::default() };
        let handle = SEND.add_with(&client, &Mail { to: "a".into() }, tagged).await?;
        let first = handle.result().await?;
        Ok::<_, Error>((first, handle.result().await.unwrap_err()))
    });
    let request = fake.expect("/v1/jobs/mail").await;
    assert_eq!((&request.body["task"], &request.body["tags"]), (&json!("send"), &json!(["eu"])));
    assert_eq!(request.body["options"], json!({ "to": "a" }));
    request.answer(201, &json!({ "type": "mail", "id": "j", "added": "queued" }));
    let ended = |state: &str, more: Value| {
        let mut job = json!({
            "type": "mail", "id": "j", "state": state, "tenant": "t", "priority": 0, "added_us": 0, "changed_us": 0, "attempts": 1,
            "snoozes": 0, "cancel_requested": false, "summary": {}, "history": [],
        });
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "finished": true, "job": job })
    };
    let wait = |request: &crate::common::Request| assert!(request.path.starts_with("/v1/jobs/mail/j/wait"));
    let request = fake.next().await;
    wait(&request);
    request.answer(200, &ended("completed", json!({ "result": "sent" })));
    let request = fake.next().await;
    wait(&request);
    request.answer(200, &ended("failed", json!({ "reason": "the roof is on fire" })));
    let (result, error) = adding.await.unwrap().unwrap();
    assert_eq!(result, "sent");
    assert_eq!(error.to_string(), "mail/j has failed: the roof is on fire");
}

/// Starts a worker whose handler blocks its only thread. Returns what ends that.
fn start_blocked(url: &str) -> mpsc::Sender<()> {
    let (client, (unblock, blocked)) = (Client::new(url).unwrap(), mpsc::channel::<()>());
    let blocked = std::sync::Mutex::new(blocked);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handler = move |_| {
            let _ = blocked.lock().unwrap().recv();
            std::future::ready(Outcome::completed(&1))
        };
        runtime.block_on(work(&client, WorkerOptions::new("mail"), handler, CancellationToken::new()))
    });
    unblock
}

#[tokio::test]
async fn heartbeats_go_on_while_a_handler_blocks_and_stop_when_it_hangs() {
    for (health_timeout_ms, stops) in [(HOUR_MS, false), (300, true)] {
        let mut fake = Fake::start().await;
        let unblock = start_blocked(&fake.url);
        let intervals =
            json!({ "worker": "w", "ping_interval_ms": 50, "health_timeout_ms": health_timeout_ms });
        fake.expect("/v1/workers/mail").await.answer(201, &intervals);
        let given = job(1, "send", json!({}), None);
        fake.expect("/accept").await.answer(200, &json!({ "jobs": [given] }));
        // Several, for the first ones may have been on their way; or none for far longer than the interval.
        for sent in 0.. {
            assert!(sent < 1_000, "heartbeats go on although the handler hangs");
            match tokio::time::timeout(if stops { Duration::from_secs(2) } else { PATIENCE }, fake.next())
                .await
            {
                Ok(ping) if ping.path.ends_with("/ping") => ping.answer(200, &json!({ "cancel": [] })),
                Ok(other) => panic!("{other:?}"),
                Err(_) if stops => break,
                Err(_) => panic!("no heartbeats"),
            }
            if !stops && sent >= 10 {
                break;
            }
        }
        unblock.send(()).unwrap();
        loop {
            let request = fake.next().await;
            if request.path.ends_with("/end") || request.body.get("ends").is_some() {
                break;
            }
            request.answer(200, &json!({ "cancel": [], "jobs": [] }));
        }
    }
}
