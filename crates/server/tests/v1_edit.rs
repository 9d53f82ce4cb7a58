//! `PATCH /v1/jobs/{type}/{id}`, hold and release.

use serde_json::{Value, json};

use crate::common::worker::ExternalWorker;
use crate::common::{Answer, As, TestServer};

const JOB: &str = "/v1/jobs/t/a";

async fn patch(server: &TestServer, if_match: Option<&str>, body: &Value) -> Answer {
    let mut request = server.request("PATCH", JOB).json(body);
    if let Some(tag) = if_match {
        request = request.header("if-match", tag);
    }
    server.send(request).await
}

async fn edit(caller: &As<'_>, path: &str, body: &Value) -> Answer {
    caller.send("PATCH", path, Some(body)).await
}

#[tokio::test]
async fn an_edit_changes_what_it_names_and_null_puts_a_member_back() {
    let server = TestServer::start().await;
    let job = json!({"id": "a", "tenant": "acme", "task": "send", "options": {"to": "jan", "n": 1}, "summary": {"to": "jan"},
        "timeout_ms": 5_000, "max_attempts": 3, "priority": 4});
    server.post("/v1/jobs/t", &job).await;
    let changes = json!({"options": {"to": "eva"}, "timeout_ms": null, "max_attempts": 9, "backoff": {"fixed_ms": 1_000}, "jitter": false});
    let changed = patch(&server, None, &changes).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let job = server.get(JOB).await;
    assert_eq!(job.body, changed.body);
    let (tag, job) = (job.header("etag").to_owned(), job.body);
    assert_eq!(tag, format!("\"{}\"", job["version"].as_str().unwrap()));
    assert_eq!(job["options"], json!({"to": "eva"}), "options are replaced as a whole");
    assert_eq!(
        (&job["summary"], &job["priority"], &job["task"]),
        (&json!({"to": "jan"}), &json!(4), &json!("send"))
    );
    assert_eq!((&job["timeout_ms"], &job["max_attempts"]), (&Value::Null, &json!(9)));
    assert_eq!((&job["backoff"], &job["jitter"]), (&json!({"fixed_ms": 1_000}), &json!(false)));
    assert_eq!(job["history"][0]["type"], "edited");
    assert_eq!(job["history"][0]["reason"], "options, max_attempts, backoff, jitter, timeout_ms");
    assert_eq!((&job["state"], &job["changed_us"]), (&json!("pending"), &job["added_us"]));

    let nulls = json!({"options": null, "summary": null, "priority": null, "max_attempts": null, "backoff": null, "jitter": null});
    let job = patch(&server, None, &nulls).await.body;
    assert_eq!((&job["options"], &job["summary"], &job["priority"]), (&json!({}), &json!({}), &json!(0)));
    assert_eq!(
        (&job["max_attempts"], &job["backoff"], &job["jitter"]),
        (&json!(20), &Value::Null, &Value::Null)
    );

    let later = patch(&server, None, &json!({"delay_ms": 3_600_000})).await.body;
    assert_eq!(later["state"], "delayed");
    assert_eq!(patch(&server, None, &json!({"not_before_us": null})).await.body["state"], "pending");
}

#[tokio::test]
async fn an_edit_of_a_stale_version_changes_nothing() {
    let server = TestServer::start().await;
    server.post("/v1/jobs/t", &json!({"id": "a"})).await;
    let first = server.get(JOB).await.header("etag").to_owned();
    assert_eq!(server.get(JOB).await.header("etag"), first, "reading changes nothing");
    let change = json!({"summary": {"n": 1}});
    let second = patch(&server, Some(&first), &change).await.header("etag").to_owned();
    let before = server.get(JOB).await.body;
    for stale in [first.clone(), "\"x\"".to_owned(), second.replace('"', ""), String::new()] {
        let refused = patch(&server, Some(&stale), &json!({"summary": {"n": 2}})).await;
        assert_eq!(refused.error(), (412, "stale"), "{stale}: {}", refused.body);
    }
    assert_eq!(server.get(JOB).await.body, before);
    for current in [format!("{first}, {second}"), "*".to_owned()] {
        assert_eq!(patch(&server, Some(&current), &change).await.status, 200, "{current}");
    }
    // As a gateway that compresses answers passes them on.
    let weak = format!("W/{}", server.get(JOB).await.header("etag"));
    assert_eq!(patch(&server, Some(&weak), &change).await.status, 200);
    let third = server.get(JOB).await.header("etag").to_owned();
    server.put(&format!("{JOB}/priority"), &json!({"priority": 3})).await;
    assert_eq!(patch(&server, Some(&third), &change).await.status, 412, "any change counts");
}

#[tokio::test]
async fn what_cannot_be_edited_says_why() {
    let server = TestServer::start().await;
    server.hide("t", &["/token"]).await;
    server.post("/v1/jobs/t", &json!({"id": "a", "options": {"token": "hunter2"}})).await;
    for name in
        ["type", "id", "tenant", "user", "task", "tags", "after", "locks", "reason", "unique", "if_exists"]
    {
        let refused = patch(&server, None, &json!({name: "x"})).await;
        assert_eq!(refused.error(), (400, "bad_request"));
        assert_eq!(refused.body["reason"], format!("{name}: cannot be changed"));
    }
    for (body, about) in [
        (json!({}), "nothing"),
        (json!({"unknown": 1}), "unknown"),
        (json!({"priority": 20}), "priority"),
        (json!({"summary": "text"}), "summary"),
        (json!({"max_attempts": 1_000_001}), "max_attempts"),
        (json!({"timeout_ms": 0}), "timeout_ms"),
        (json!({"backoff": {"list_ms": []}}), "backoff"),
        (json!({"delay_ms": 315_360_000_001_u64}), "delay_ms"),
        (json!({"not_before_us": -1}), "not_before_us"),
        // What was shown in place of a secret would become the secret.
        (json!({"options": {"token": "*****"}}), "options"),
    ] {
        let refused = patch(&server, None, &body).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{body}");
        assert!(refused.body["reason"].as_str().unwrap().contains(about), "{body}: {}", refused.body);
    }
    let large = json!({"options": "x".repeat(5 << 20)});
    assert_eq!(patch(&server, None, &large).await.status, 413);
    assert_eq!(server.get(JOB).await.body["history"].as_array().unwrap().len(), 1, "nothing has changed");

    let worker = ExternalWorker::register(&server, "t", 1).await;
    let taken = worker.take(0).await;
    let change = json!({"summary": {"n": 1}});
    let refused = patch(&server, None, &change).await;
    assert_eq!(refused.error(), (409, "conflict"));
    assert_eq!(refused.body["reason"], "the job cannot be changed: it runs");
    assert_eq!(server.post_empty(&format!("{JOB}/hold")).await.error(), (409, "conflict"));
    worker.call("jobs/a/finish", json!({"claim": taken["claim"]})).await;
    let refused = patch(&server, None, &change).await;
    assert_eq!(refused.error(), (409, "conflict"));
    assert_eq!(refused.body["reason"], "the job cannot be changed: it has ended");

    let replication =
        json!({"source": "http://127.0.0.1:1/a", "target": "http://127.0.0.1:1/b", "continuous": true});
    let started = server.post("/_replicate", &replication).await.body;
    let id = started["_local_id"].as_str().unwrap().replace('+', "%2B");
    let path = format!("/v1/jobs/replication/{id}");
    for request in [
        server.request("PATCH", &path).json(&change),
        server.request("POST", &format!("{path}/hold")).json(&json!({})),
    ] {
        let refused = server.send(request).await;
        assert_eq!(refused.error(), (403, "forbidden"), "{}", refused.body);
        assert!(refused.body["hint"].as_str().unwrap().contains("_replicator"), "{}", refused.body);
    }
    assert_eq!(
        server.put("/v1/filters/client", &json!({"action": "pause", "when": "type = t"})).await.error(),
        (400, "bad_request")
    );
}

#[tokio::test]
async fn a_client_holds_its_own_jobs_and_an_operator_all() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let with = async |scope: &str| server.with(&admin.token(&[scope]).await);
    let (operator, client, reader) =
        (with("operator").await, with("client:acme").await, with("read:acme").await);
    assert_eq!(client.post("/v1/jobs/t", &json!({"id": "a"})).await.status, 201);
    let post = async |caller: &As<'_>, what: &str| caller.post(&format!("{JOB}/{what}"), &json!({})).await;
    for what in ["hold", "release"] {
        assert_eq!(post(&reader, what).await.error(), (403, "forbidden"));
    }
    assert_eq!(edit(&reader, JOB, &json!({"priority": 1})).await.error(), (403, "forbidden"));

    let held = post(&client, "hold").await;
    assert_eq!(held.body, json!({"state": "paused", "paused_by": "client"}));
    let why = client.get(&format!("{JOB}/why")).await.body;
    assert!(why["sentence"].as_str().unwrap().contains("turnwise jobs release"), "{why}");
    assert_eq!(post(&client, "retry").await.body["retried"], json!(false));
    assert_eq!(post(&operator, "release").await.body, json!({"state": "pending"}));
    assert_eq!(post(&operator, "hold").await.body["paused_by"], "operator");
    assert_eq!(post(&client, "hold").await.body["paused_by"], "operator");
    let refused = post(&client, "release").await;
    assert_eq!(refused.error(), (403, "forbidden"), "{}", refused.body);
    // Neither an edit nor adding it again releases it.
    assert_eq!(
        edit(&client, JOB, &json!({"delay_ms": 0, "priority": 5})).await.body["paused_by"],
        "operator"
    );
    assert_eq!(client.post("/v1/jobs/t", &json!({"id": "b", "delay_ms": 3_600_000})).await.status, 201);
    let again = json!({"id": "a", "if_exists": "again"});
    assert_eq!(client.post("/v1/jobs/t", &again).await.status, 200);
    let job = client.get(JOB).await.body;
    assert_eq!(
        (&job["state"], &job["paused_by"], &job["priority"]),
        (&json!("paused"), &json!("operator"), &json!(5))
    );
    let mut steps = job["history"].as_array().unwrap().iter().map(|step| &step["type"]);
    assert!(steps.next().unwrap() == "edited" && steps.next().unwrap() == "held", "{job}");
    let by = job["history"][0]["reason"].as_str().unwrap();
    assert!(by.starts_with("priority, delay_ms; by token:"), "{by}");
    // Nor do dependencies, nor an end.
    let after = json!({"id": "a", "if_exists": "again", "after": [{"id": "b"}]});
    assert_eq!(client.post("/v1/jobs/t", &after).await.status, 201);
    let blocked = client.get(JOB).await.body;
    assert_eq!((&blocked["state"], &blocked["paused_by"]), (&json!("blocked"), &json!("operator")));
    assert_eq!(post(&client, "release").await.error(), (403, "forbidden"));
    assert_eq!(post(&client, "cancel").await.body["state"], "cancelled");
    assert_eq!(post(&client, "retry").await.body["state"], "paused");
    assert_eq!(post(&client, "release").await.error(), (403, "forbidden"));

    let worker = admin.post("/v1/workers/t", &json!({"slots": 1})).await.body;
    let path = format!("/v1/workers/t/{}/accept", worker["worker"].as_str().unwrap());
    let accept = async |wait_ms: u64| {
        admin.post(&path, &json!({"received": 0, "limit": 1, "wait_ms": wait_ms})).await.body["jobs"].clone()
    };
    assert_eq!(accept(0).await, json!([]));
    assert_eq!(post(&operator, "release").await.body["state"], "pending");
    assert_eq!(accept(10_000).await[0]["id"], "a");
}
