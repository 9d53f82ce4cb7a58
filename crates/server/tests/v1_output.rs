//! What the runs of a job leave: results, errors with traces, lines of log, and the options that they were given.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;

async fn job(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/v1/jobs/t/{id}")).await.body
}

async fn add(server: &TestServer, body: Value) {
    let added = server.post("/v1/jobs/t", &body).await;
    assert_eq!(added.status, 201, "{}", added.body);
}

#[tokio::test]
async fn a_result_is_read_as_it_was_sent_and_lists_do_not_carry_it() {
    let server = TestServer::start_with("[jobs]\nmax_result_bytes = 300000\n").await;
    let worker = ExternalWorker::register(&server, "t", 9).await;
    for id in ["small", "large", "bytes", "page", "over", "none"] {
        add(&server, json!({ "id": id })).await;
    }
    let claims: Vec<Value> = worker.accept(0, 9).await.iter().map(|job| job["claim"].clone()).collect();
    let none = server.get("/v1/jobs/t/small/result").await;
    assert_eq!(none.error(), (404, "not_found"), "{}", none.body);
    let large = json!({ "rows": vec!["é".repeat(100); 1_000] });
    let over = json!("x".repeat(300_000));
    let end = json!({ "finish": [
        { "id": "small", "claim": claims[0], "result": { "n": 1.50 } },
        { "id": "large", "claim": claims[1], "result": large },
        { "id": "bytes", "claim": claims[2], "data": "AP8H", "media_type": "image/png" },
        { "id": "page", "claim": claims[3], "data": "PHNjcmlwdD4=", "media_type": "text/html" },
        { "id": "over", "claim": claims[4], "result": over },
        { "id": "none", "claim": claims[5] },
    ] });
    let ended = worker.call("end", end).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    assert_eq!(ended.body["ended"][4]["state"], "failed");
    let reason = "its result has 300002 bytes; at most 300000 are allowed";
    assert_eq!(job(&server, "over").await["reason"], reason);

    assert_eq!(server.get("/v1/jobs/t/large/result").await.body, large);
    let shown = job(&server, "large").await;
    assert_eq!(
        (&shown["result"], shown["result_bytes"].as_u64()),
        (&Value::Null, Some(large.to_string().len() as u64))
    );
    assert_eq!(job(&server, "small").await["result"], json!({ "n": 1.5 }));
    let listed = server.get("/v1/jobs?type=t").await.body;
    assert!(listed["jobs"].as_array().unwrap().iter().all(|job| job["result"].is_null()), "{listed}");

    assert_eq!(server.get("/v1/jobs/t/none/result").await.body, Value::Null);
    assert_eq!(server.get("/v1/jobs/t/over/result").await.status, 404);

    let bytes = server.request("GET", "/v1/jobs/t/bytes/result").send().await.unwrap();
    assert_eq!(bytes.headers()["content-type"], "image/png");
    assert_eq!(bytes.bytes().await.unwrap().as_ref(), [0, 255, 7]);
    // What a worker sends as a page is run by no browser.
    let page = server.request("GET", "/v1/jobs/t/page/result").send().await.unwrap();
    assert_eq!(page.headers()["content-disposition"], "attachment");
    assert!(page.headers()["content-security-policy"].to_str().unwrap().starts_with("sandbox"));

    for (wrong, says) in [
        (json!({ "claim": 1, "data": "%" }), "is not base64"),
        (json!({ "claim": 1, "data": "AA==", "result": 1 }), "beside `result`"),
        (json!({ "claim": 1, "media_type": "image/png" }), "without `data`"),
        (json!({ "claim": 1, "data": "AA==", "media_type": "image" }), "must be a media type"),
    ] {
        let refused = worker.call("jobs/small/finish", wrong).await;
        assert!(
            refused.status == 400 && refused.body["reason"].as_str().unwrap().contains(says),
            "{}",
            refused.body
        );
    }
}

#[tokio::test]
async fn an_error_is_shown_with_its_trace_and_counted_by_its_class_and_place() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 9).await;
    let trace = |line: u32| {
        format!(
            "Traceback (most recent call last):\n  File \"/srv/mail.py\", line {line}, in send\n    smtp.send()\nValueError"
        )
    };
    // From then on, events are recorded.
    assert_eq!(server.get("/v1/events?limit=1").await.status, 200);
    for n in 0..3 {
        add(&server, json!({ "id": format!("j{n}"), "task": "mail", "max_attempts": 1 })).await;
    }
    let jobs = worker.accept(0, 9).await;
    for (n, accepted) in jobs.iter().enumerate() {
        let fail = json!({ "claim": accepted["claim"], "reason": format!("user {n} has\nno address"), "class": "ValueError", "trace": trace(30 + n as u32) });
        let path = format!("jobs/{}/fail", accepted["id"].as_str().unwrap());
        assert_eq!(worker.call(&path, fail).await.body, json!({ "state": "failed" }));
    }
    let shown = job(&server, "j1").await;
    assert_eq!(shown["reason"], "ValueError: user 1 has no address");
    let error = &shown["errors"][0];
    assert_eq!(
        (&error["class"], &error["message"]),
        (&json!("ValueError"), &json!("user 1 has\nno address"))
    );
    assert!(error["trace"].as_str().unwrap().contains("line 31, in send"), "{error}");
    let failures = server.get("/v1/failures?type=t").await.body;
    let class = &failures["failures"][0];
    assert_eq!(
        (&class["reason_class"], &class["jobs"]),
        (&json!("ValueError in send (mail.py)"), &json!(3)),
        "{failures}"
    );
    let listed = server.get("/v1/jobs?reason_class=ValueError%20in%20send%20(mail.py)").await.body;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 3, "{listed}");
    assert!(listed["jobs"][0]["errors"].is_null(), "a list carries no traces");
    let events = server.get("/v1/events?since=oldest&limit=100&event=failed&wait_ms=10000").await.body;
    let event = &events["events"][0];
    assert_eq!(
        (&event["task"], &event["class"], &event["reason"]),
        (&json!("mail"), &json!("ValueError in send (mail.py)"), &json!("ValueError: user 0 has no address")),
        "{events}"
    );
    let listed =
        server.get("/v1/jobs?where=reason_class%20=%20'ValueError%20in%20send%20(mail.py)'").await.body;
    assert_eq!(listed["jobs"].as_array().map(Vec::len), Some(3), "{listed}");
}

#[tokio::test]
async fn lines_are_read_in_pages_and_followed_to_the_end() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    add(&server, json!({ "id": "a" })).await;
    let claim = worker.take(0).await["claim"].clone();
    let followed = server.request("GET", "/v1/jobs/t/a/logs?follow=true").send().await.unwrap();
    assert_eq!(followed.headers()["content-type"], "text/event-stream");
    let report = json!({ "claim": claim, "log": [
        { "message": "begins", "at_us": 7 },
        { "message": "slow", "level": "warn", "fields": { "seconds": 12 } },
    ] });
    assert_eq!(worker.call("jobs/a/update", report).await.body, json!({ "answer": "continue" }));
    let info = worker.call("jobs/a/update", json!({ "claim": claim, "info": 5 })).await;
    assert_eq!(info.status, 200);
    worker.call("jobs/a/update", json!({ "claim": claim, "log": [{ "message": "third" }] })).await;
    assert_eq!(job(&server, "a").await["info"], 5, "a report of lines only replaces no progress");
    let page = server.get("/v1/jobs/t/a/logs?from=1&limit=1").await.body;
    let line = &page["lines"][0];
    assert_eq!(
        (&line["number"], &line["level"], &line["fields"]["seconds"]),
        (&json!(1), &json!("warn"), &json!(12))
    );
    assert_eq!((&page["first"], &page["next"]), (&json!(0), &json!(2)));
    let finish = json!({ "claim": claim, "log": [{ "message": "ends", "level": "error" }] });
    assert_eq!(worker.call("jobs/a/finish", finish).await.body, json!({ "state": "completed" }));
    let text = tokio::time::timeout(Duration::from_secs(30), followed.text()).await.unwrap().unwrap();
    let messages: Vec<&str> = text.lines().filter(|line| line.starts_with("id: ")).collect();
    assert_eq!(messages, ["id: 0", "id: 1", "id: 2", "id: 3"], "{text}");
    assert!(text.contains("event: end") && text.find("\"ends\"") < text.find("event: end"), "{text}");
    let rest = server.request("GET", "/v1/jobs/t/a/logs?follow=true").header("Last-Event-ID", "2").send();
    let rest = rest.await.unwrap().text().await.unwrap();
    assert!(rest.contains("id: 3") && !rest.contains("id: 2"), "{rest}");
    for (wrong, says) in [
        (json!({ "claim": claim, "log": [{ "message": "x", "fields": [] }] }), "must be an object"),
        (json!({ "claim": claim, "log": vec![json!({ "message": "x" }); 1_001] }), "at most 1000"),
        (json!({ "claim": claim, "log": [{ "message": "x", "level": "loud" }] }), "expected `debug`"),
    ] {
        let refused = worker.call("jobs/a/update", wrong).await;
        assert!(
            refused.status == 400 && refused.body["reason"].as_str().unwrap().contains(says),
            "{}",
            refused.body
        );
    }
}

#[tokio::test]
async fn options_are_shown_without_what_their_type_hides_and_hidden_ones_answer_no_condition() {
    let server = TestServer::start().await;
    let terms = json!({ "final_errors": ["ValidationError"], "secrets": ["/token", "/smtp/password"] });
    let put = server.put("/v1/types/t", &terms).await;
    assert_eq!((put.status, &put.body["terms"]), (200, &terms));
    let options = json!({ "to": "jan", "n": 12_345_678_901_234_567_i64, "token": "hunter2", "smtp": { "password": "hunter2", "host": "h" } });
    add(&server, json!({ "id": "a", "options": options })).await;
    let shown = job(&server, "a").await["options"].clone();
    let expected = json!({ "to": "jan", "n": 12_345_678_901_234_567_i64, "token": "*****", "smtp": { "password": "*****", "host": "h" } });
    assert_eq!(shown, expected);
    assert_eq!(server.get("/v1/jobs/t/a/options").await.body, expected);
    let count = async |condition: &str| {
        let query: String = url::form_urlencoded::byte_serialize(condition.as_bytes()).collect();
        let list = server.get(&format!("/v1/jobs?where={query}")).await.body;
        list["jobs"].as_array().unwrap_or_else(|| panic!("{list}")).len()
    };
    assert_eq!(count("options.to = jan").await, 1);
    for oracle in ["options.token = hunter2", "options.token ~ '^h'", "options.smtp.password = hunter2"] {
        assert_eq!(count(oracle).await, 0, "{oracle}");
    }
    // Its worker gets them.
    let worker = ExternalWorker::register(&server, "t", 1).await;
    assert_eq!(worker.take(0).await["options"], options);
    assert_eq!(server.put("/v1/types/t", &json!({ "secrets": ["/"] })).await.status, 200);
    assert_eq!(job(&server, "a").await["options"], "*****");
    let refused = server.put("/v1/types/t", &json!({ "secrets": ["token"] })).await;
    assert_eq!(refused.error(), (400, "bad_request"), "{}", refused.body);
    // A job's own page and answer stay small.
    add(&server, json!({ "id": "b", "options": { "x": "y".repeat(70_000) } })).await;
    assert!(job(&server, "b").await["options"].as_str() == Some("*****"));
    assert_eq!(server.put("/v1/types/t", &json!({})).await.status, 200);
    assert!(job(&server, "b").await["options"].is_null());
    assert_eq!(server.get("/v1/jobs/t/b/options").await.body["x"].as_str().map(str::len), Some(70_000));
}

#[tokio::test]
async fn a_worker_gets_jobs_of_its_tasks_and_others_hide_none_of_them() {
    let server = TestServer::start().await;
    let register = async |body: Value| {
        let registered = server.post("/v1/workers/t", &body).await;
        assert_eq!(registered.status, 201, "{}", registered.body);
        registered.body["worker"].as_str().unwrap().to_owned()
    };
    let accept = async |worker: &str, received: u64, wait_ms: u64| {
        let body = json!({ "received": received, "limit": 9, "wait_ms": wait_ms });
        let accepted = server.post(&format!("/v1/workers/t/{worker}/accept"), &body).await.body;
        let jobs = accepted["jobs"].as_array().unwrap_or_else(|| panic!("{accepted}")).clone();
        jobs.iter()
            .map(|job| (job["task"].as_str().unwrap().to_owned(), job["claim"].as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    // More jobs than a pass reads, of tasks that the worker does not know, and one behind them that it knows.
    let jobs: Vec<Value> = (0..700)
        .map(|n| json!({ "type": "t", "id": format!("new{n:03}"), "task": "made_tomorrow" }))
        .collect();
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    for (id, task) in
        [("th1", "thumbnail"), ("th2", "thumbnail"), ("th3", "thumbnail"), ("send", "send_welcome")]
    {
        add(&server, json!({ "id": id, "task": task })).await;
    }
    let tasks =
        json!({ "slots": 4, "tasks": ["send_welcome", "thumbnail"], "task_slots": { "thumbnail": 2 } });
    let worker = register(tasks.clone()).await;
    let mut got = Vec::new();
    while got.len() < 3 {
        let received = got.last().map_or(0, |(_, claim)| *claim);
        got.extend(accept(&worker, received, 5_000).await);
    }
    let of = |task: &str| got.iter().filter(|(of, _)| of == task).count();
    assert_eq!((of("thumbnail"), of("send_welcome")), (2, 1), "{got:?}");
    let why = server.get("/v1/jobs/t/new000/why").await.body;
    assert_eq!(why["reason"], "no_worker_for_task");
    let sentence = why["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("No worker knows its task `made_tomorrow`") && sentence.contains("`thumbnail`"),
        "{sentence}"
    );
    let why = server.get("/v1/jobs/t/th3/why").await.body;
    assert_eq!((&why["reason"], &why["state"]), (&json!("task_limited"), &json!("limited")), "{why}");
    let shown = server.get("/v1/workers?type=t").await.body;
    assert_eq!(shown["workers"][0]["tasks"], json!({ "send_welcome": 0, "thumbnail": 2 }));

    // A waiting request is answered when one of the two ends.
    let last = got.last().unwrap().1;
    let ended = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let claim = got.iter().find(|(task, _)| task == "thumbnail").unwrap().1;
        let path = format!("/v1/workers/t/{worker}/jobs/th1/finish");
        assert_eq!(server.post(&path, &json!({ "claim": claim })).await.status, 200);
    };
    let (next, ()) = tokio::join!(accept(&worker, last, 20_000), ended);
    assert_eq!(next.iter().map(|(task, _)| task.as_str()).collect::<Vec<_>>(), ["thumbnail"]);

    // The deploy goes on: a worker that knows the new task gets its jobs, in their order.
    let newer = register(json!({ "slots": 3, "tasks": ["made_tomorrow"] })).await;
    let got = accept(&newer, 0, 5_000).await;
    assert!(!got.is_empty() && got.iter().all(|(task, _)| task == "made_tomorrow"), "{got:?}");
    assert_eq!(job(&server, "new000").await["state"], "running");
    let listed = server.get("/v1/jobs?where=task%20=%20thumbnail").await.body;
    assert_eq!(listed["jobs"].as_array().map(Vec::len), Some(3), "{listed}");
    for wrong in [
        json!({ "slots": 1, "tasks": [] }),
        json!({ "slots": 1, "task_slots": { "x": 1 } }),
        json!({ "slots": 1, "tasks": ["x"], "task_slots": { "y": 1 } }),
        json!({ "slots": 1, "tasks": ["x"], "task_slots": { "x": 0 } }),
    ] {
        assert_eq!(server.post("/v1/workers/t", &wrong).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_job_that_no_worker_takes_reserves_no_lock() {
    let server = TestServer::start_with("[queue]\ntick = 0.1\naging_ticks = 0\n").await;
    let body = json!({ "slots": 3, "tasks": ["known"] });
    let worker = server.post("/v1/workers/t", &body).await.body["worker"].as_str().unwrap().to_owned();
    let accept = async |received: u64| {
        let body = json!({ "received": received, "limit": 1, "wait_ms": 5_000 });
        server.post(&format!("/v1/workers/t/{worker}/accept"), &body).await.body
    };
    let locks = |mode: &str| json!({ "instance": { mode: ["i"] } });
    add(&server, json!({ "id": "reads", "task": "known", "locks": locks("shared") })).await;
    assert_eq!(accept(0).await["jobs"][0]["id"], "reads");
    add(&server, json!({ "id": "writes", "task": "unknown", "locks": locks("exclusive") })).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    add(&server, json!({ "id": "reads too", "task": "known", "locks": locks("shared") })).await;
    let accepted = accept(1).await;
    assert_eq!(accepted["jobs"][0]["id"], "reads too", "{accepted}");
    assert_eq!(server.get("/v1/jobs/t/writes/why").await.body["reason"], "no_worker_for_task");
}
