//! `/v1/filters`: filters hold jobs back, cancel them or accept them, and jobs report the filter.

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;
use serde_json::{Value, json};

async fn add(server: &TestServer, job: Value) {
    let added = server.post("/v1/jobs/mail", &job).await;
    assert_eq!(added.status, 201, "{}", added.body);
}

async fn job(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/v1/jobs/mail/{id}")).await.body
}

#[tokio::test]
async fn a_paused_job_waits_and_a_rejected_one_is_cancelled() {
    let server = TestServer::start().await;
    for n in 0..120 {
        add(&server, json!({ "id": format!("p{n}"), "options": { "to": "x@example.org", "n": n } })).await;
    }
    add(&server, json!({ "id": "bad", "options": { "host": { "name": "a.test" } } })).await;
    add(&server, json!({ "id": "urgent", "reason": ["by hand"], "options": { "to": "y@example.org" } }))
        .await;
    add(&server, json!({ "id": "good" })).await;
    for (name, filter) in [
        ("moving", json!({ "action": "pause", "when": "options.to ~ '@example[.]org$'", "priority": 5 })),
        ("hosts", json!({ "action": "reject", "when": "options.host.name ~ '[.]test$'", "note": "a test" })),
        ("by hand", json!({ "action": "accept", "when": "reason = 'by hand'", "priority": -1 })),
    ] {
        let put = server.put(&format!("/v1/filters/{}", name.replace(' ', "%20")), &filter).await;
        assert_eq!((put.status, &put.body["id"]), (200, &json!(name)), "{}", put.body);
    }
    let listed = server.get("/v1/filters").await.body;
    let names: Vec<&str> =
        listed["filters"].as_array().unwrap().iter().map(|filter| filter["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["by hand", "hosts", "moving"]);

    let mut worker = ExternalWorker::register(&server, "mail", 100).await;
    let mut given = worker.now_ids().await;
    given.sort_unstable();
    assert_eq!(given, ["good", "urgent"], "whatever stands before them");
    let paused = job(&server, "p7").await;
    assert_eq!((&paused["state"], &paused["paused_by"]), (&json!("paused"), &json!("moving")));
    let listed = server.get("/v1/jobs?type=mail&state=paused&limit=1000").await.body;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 120);
    assert_eq!(server.get("/v1/jobs?type=mail&state=delayed").await.body["jobs"], json!([]));
    let queue = server.get("/v1/queue?type=mail").await.body;
    assert_eq!(queue["types"][0]["jobs"]["paused"], 120);
    assert_eq!(queue["types"][0]["jobs"]["delayed"], 0);
    let rows: Vec<&Value> =
        queue["jobs"].as_array().unwrap().iter().filter(|job| job["id"] == "p0").collect();
    assert_eq!((&rows[0]["state"], &rows[0]["paused_by"]), (&json!("paused"), &json!("moving")));
    // The filter would pause it again immediately.
    let retried = server.post("/v1/jobs/mail/p7/retry", &json!({})).await.body;
    assert_eq!(retried, json!({ "retried": false, "state": "paused" }));
    let why = server.get("/v1/jobs/mail/p7/why").await.body;
    assert_eq!(why["reason"], "paused");
    assert!(why["sentence"].as_str().unwrap().contains("`moving`"), "{why}");
    let rejected = job(&server, "bad").await;
    assert_eq!(rejected["state"], "cancelled");
    assert_eq!(rejected["reason"], "filter `hosts` rejects it: a test");

    assert_eq!(server.delete("/v1/filters/moving").await.status, 200);
    assert_eq!(server.delete("/v1/filters/moving").await.status, 404);
    let last = "/v1/jobs/mail/p119";
    server.poll(last, |job| job["state"] == "pending").await;
    let mut given = Vec::new();
    while given.len() < 98 {
        let more = worker.now_ids().await;
        assert!(!more.is_empty(), "{} were given", given.len());
        given.extend(more);
    }
    assert_eq!(given[..3], ["p0", "p1", "p2"], "each stands where it stood");
}

#[tokio::test]
async fn a_drained_server_starts_nothing_until_the_filter_goes() {
    let server = TestServer::start().await;
    let put = server.put("/v1/filters/drain", &json!({ "action": "pause", "priority": -1000 })).await;
    assert_eq!(put.status, 200, "{}", put.body);
    add(&server, json!({ "id": "a" })).await;
    let mut worker = ExternalWorker::register(&server, "mail", 100).await;
    assert!(worker.now_ids().await.is_empty());
    assert_eq!(job(&server, "a").await["paused_by"], "drain");
    assert_eq!(server.delete("/v1/filters/drain").await.status, 200);
    server.poll("/v1/jobs/mail/a", |job| job["state"] == "pending").await;
    assert_eq!(worker.now_ids().await, ["a"]);
}

#[tokio::test]
async fn no_more_limited_jobs_are_given_out_than_may_run() {
    let server = TestServer::start().await;
    let put = server
        .put("/v1/filters/few", &json!({ "action": "concurrency", "limit": 2, "when": "id ~ '^f'" }))
        .await;
    assert_eq!((put.status, &put.body["limit"]), (200, &json!(2)), "{}", put.body);
    for id in ["f1", "f2", "f3"] {
        add(&server, json!({ "id": id })).await;
    }
    for id in ["n1", "n2"] {
        add(&server, json!({ "id": id, "reason": ["by hand", "concurrency:1:pink bunny"] })).await;
    }
    add(&server, json!({ "id": "other" })).await;
    let mut worker = ExternalWorker::register(&server, "mail", 100).await;
    let mut given = Vec::new();
    while given.len() < 4 {
        let more = worker.now_ids().await;
        assert!(!more.is_empty(), "{given:?}");
        given.extend(more);
    }
    given.sort_unstable();
    assert_eq!(given, ["f1", "f2", "n1", "other"]);
    assert_eq!(worker.now_ids().await, [""; 0]);
    for (id, limited, sentence) in [
        (
            "f3",
            json!({ "by": "filter", "name": "few", "limit": 2 }),
            "2 of 2 jobs that filter `few` limits run.",
        ),
        (
            "n2",
            json!({ "by": "reason", "name": "pink bunny", "limit": 1 }),
            "1 of 1 job of the bucket `pink bunny` runs.",
        ),
    ] {
        let held_back = job(&server, id).await;
        assert_eq!((&held_back["state"], &held_back["limited"]), (&json!("limited"), &limited));
        assert_eq!(held_back.get("not_before_us"), None);
        let why = server.get(&format!("/v1/jobs/mail/{id}/why")).await.body;
        assert_eq!((&why["reason"], &why["sentence"]), (&json!("concurrency_limited"), &json!(sentence)));
        assert_eq!((&why["limited"]["running"], why.get("not_before_us")), (&limited["limit"], None));
    }
    let ended = worker.end("n1", "finish", json!({ "result": 1 })).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    assert_eq!(worker.now_ids().await, ["n2"]);
    // Running jobs count against a new filter, and a raised limit releases the other jobs.
    server.put("/v1/filters/few", &json!({ "action": "concurrency", "limit": 3, "when": "id ~ '^f'" })).await;
    server.poll("/v1/jobs/mail/f3", |job| job["state"] == "pending").await;
    assert_eq!(worker.now_ids().await, ["f3"]);
    for wrong in ["concurrency:0:a", "concurrency:x:a", "concurrency:7", "concurrency:7:"] {
        let refused = server.post("/v1/jobs/mail", &json!({ "reason": [wrong] })).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        let reason = refused.body["reason"].as_str().unwrap();
        assert!(reason.starts_with(&format!("reason: `{wrong}` is no limit: ")), "{reason}");
    }
}

#[tokio::test]
async fn a_rate_limits_the_starts_of_each_value_and_a_handler_can_close_it() {
    let server = TestServer::start().await;
    let rate = json!({ "at_most": 2, "per_ms": 3_600_000, "key": "options.customer" });
    let put = server.put("/v1/filters/mails", &json!({ "action": "rate", "rate": rate })).await;
    assert_eq!((put.status, &put.body["rate"]["per_ms"]), (200, &json!(3_600_000)), "{}", put.body);
    for (id, customer) in [("a1", "acme"), ("a2", "acme"), ("a3", "acme"), ("b1", "beta"), ("b2", "beta")] {
        add(&server, json!({ "id": id, "options": { "customer": customer } })).await;
    }
    let mut worker = ExternalWorker::register(&server, "mail", 100).await;
    let mut given = worker.next_ids(100).await;
    while given.len() < 4 {
        given.extend(worker.next_ids(100).await);
    }
    given.sort_unstable();
    assert_eq!(given, ["a1", "a2", "b1", "b2"]);
    let limited = server.poll("/v1/jobs/mail/a3", |job| job["state"] == "limited").await;
    assert_eq!(limited["limited"], json!({ "by": "rate", "name": "mails", "key": "acme", "limit": 2 }));
    let why = server.get("/v1/jobs/mail/a3/why").await.body;
    let next_us = why["limited"]["next_us"].as_i64().unwrap();
    assert_eq!(
        (&why["reason"], &why["expected"]["at_us"]),
        (&json!("rate_limited"), &json!(next_us)),
        "{why}"
    );
    let sentence = why["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("By the rate `mails` for `acme`, at most 2 jobs start in any "),
        "{sentence}"
    );
    // With a higher rate, the third one starts; a handler that was refused closes the rate of its customer.
    let rate = json!({ "at_most": 3, "per_ms": 3_600_000, "key": "options.customer" });
    server.put("/v1/filters/mails", &json!({ "action": "rate", "rate": rate })).await;
    server.poll("/v1/jobs/mail/a3", |job| job["state"] == "pending").await;
    let updated = worker.end("b1", "update", json!({ "rate_pause_ms": 3_600_000 })).await;
    assert_eq!(updated.status, 200, "{}", updated.body);
    add(&server, json!({ "id": "b3", "options": { "customer": "beta" } })).await;
    assert_eq!(worker.next_ids(100).await, ["a3"]);
    server.poll("/v1/jobs/mail/b3", |job| job["state"] == "limited").await;
    let pause = "/v1/filters/mails/pause";
    let refused = server.post(pause, &json!({ "for_ms": 0 })).await;
    assert_eq!((refused.status, &refused.body["error"]), (409, &json!("conflict")), "{}", refused.body);
    let paused = server.post(pause, &json!({ "for_ms": 0, "key": "beta" })).await;
    assert_eq!(paused.status, 200, "{}", paused.body);
    assert_eq!(worker.next_ids(100).await, ["b3"], "the pause has ended");
    assert_eq!(server.post("/v1/filters/none/pause", &json!({ "for_ms": 1 })).await.status, 404);
}

#[tokio::test]
async fn a_filter_that_cannot_be_read_is_refused_with_the_place() {
    let server = TestServer::start().await;
    for (filter, problem) in [
        (json!({ "action": "pause", "when": "type mail" }), "when: column 6: expected one of ="),
        (json!({ "action": "pause", "when": "type ~ '('" }), "when: column 8: not a regular expression"),
        (json!({ "action": "pause", "priority": 5000 }), "priority: must be from -1000 to 1000"),
        (
            json!({ "action": "stop" }),
            "action: expected `accept`, `pause`, `reject`, `continue`, `concurrency` or `rate`",
        ),
        (json!({ "action": "concurrency" }), "limit: is missing"),
        (
            json!({ "action": "concurrency", "limit": 0 }),
            "limit: must be from 1 to 1000; a filter with `pause`",
        ),
        (json!({ "action": "concurrency", "limit": 1001 }), "limit: must be from 1 to 1000"),
        (json!({ "action": "pause", "limit": 1 }), "limit: belongs to `concurrency`"),
        (json!({ "action": "rate" }), "rate: is missing"),
        (
            json!({ "action": "rate", "rate": { "at_most": 0, "per_ms": 1000 } }),
            "rate: at_most must be from 1",
        ),
        (json!({ "action": "rate", "rate": { "at_most": 1, "per_ms": 1 } }), "rate: per_ms must be from 100"),
        (json!({ "action": "pause", "rate": { "at_most": 1, "per_ms": 1000 } }), "rate: belongs to `rate`"),
        (json!({ "action": "pause", "watermark_us": -1 }), "watermark_us: must be from 0"),
        (json!({ "action": "pause", "if": "x" }), "unknown field `if`"),
    ] {
        let refused = server.put("/v1/filters/f", &filter).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body["reason"].as_str().unwrap().contains(problem), "{}", refused.body);
    }
    assert_eq!(server.get("/v1/filters").await.body, json!({ "filters": [] }));
    assert_eq!(server.get("/v1/filters/f").await.status, 404);
}
