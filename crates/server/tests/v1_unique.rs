//! Jobs of which only one may exist at a time for a key.

use serde_json::{Value, json};
use turnwise_testkit::canary;

use crate::common::worker::ExternalWorker;
use crate::common::{Answer, As, TestServer, until};

async fn add(server: &TestServer, id: &str, unique: Value, more: Value) -> Answer {
    let mut job = json!({ "id": id, "unique": unique });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/jobs/t", &job).await
}

#[tokio::test]
async fn the_answer_says_which_job_was_found_and_why() {
    let server = TestServer::start().await;
    let key = |mode: &str, on_conflict: &str| json!({"mode": mode, "key": "k", "on_conflict": on_conflict});
    let first = add(&server, "a", key("until_end", "keep"), json!({"options": {"n": 1}})).await;
    assert_eq!(
        (first.status, &first.body["added"], &first.body["found"]),
        (201, &json!("queued"), &Value::Null)
    );
    let job = server.get("/v1/jobs/t/a").await.body;
    let stated = json!({"mode": "until_end", "key": "k", "within": "type", "on_conflict": "keep"});
    assert_eq!((&job["unique"], &job["unique_held"]), (&stated, &json!(true)));

    let kept = add(&server, "b", key("while_waiting", "keep"), json!({})).await;
    let found =
        json!({"type": "t", "id": "a", "added": "found", "found": {"mode": "until_end", "did": "kept"}});
    assert_eq!((kept.status, kept.body), (200, found.clone()));
    assert_eq!(server.get("/v1/jobs/t/b").await.status, 404);
    let repeated = add(&server, "a", key("until_end", "keep"), json!({})).await;
    assert_eq!((repeated.status, &repeated.body["added"]), (200, &json!("exists")));

    let rejected = add(&server, "b", key("until_end", "reject"), json!({})).await;
    assert_eq!(rejected.error(), (409, "conflict"));
    assert_eq!(rejected.body["reason"], "unique: job `a` of type `t` has this key");
    // All of a request, or none of it.
    let jobs =
        json!({"jobs": [{"type": "t", "id": "x"}, {"type": "t", "unique": key("until_end", "reject")}]});
    let rejected = server.post("/v1/jobs", &jobs).await;
    assert_eq!(rejected.error(), (409, "conflict"));
    assert!(rejected.body["reason"].as_str().unwrap().starts_with("jobs[1]"), "{}", rejected.body);
    assert_eq!(server.get("/v1/jobs/t/x").await.status, 404);

    let replaced =
        add(&server, "b", key("until_end", "replace"), json!({"options": {"n": 2}, "delay_ms": 60_000}))
            .await;
    assert_eq!((&replaced.body["id"], &replaced.body["found"]["did"]), (&json!("a"), &json!("replaced")));
    let job = server.get("/v1/jobs/t/a").await.body;
    assert_eq!((&job["options"], &job["state"]), (&json!({"n": 2}), &json!("delayed")));
    add(&server, "b", key("until_end", "replace"), json!({"options": {"n": 3}})).await;
    let worker = ExternalWorker::register(&server, "t", 1).await;
    let run = worker.take(0).await;
    assert_eq!((&run["id"], &run["options"]), (&json!("a"), &json!({"n": 3})));
    let again = add(&server, "b", key("until_end", "after"), json!({"options": {"n": 4}})).await;
    assert_eq!((again.status, &again.body["found"]["did"]), (200, &json!("runs_again")));
}

#[tokio::test]
async fn two_jobs_of_a_request_may_have_one_key() {
    let server = TestServer::start().await;
    let job = |id: &str, shop: u64| json!({"type": "t", "id": id, "options": {"shop": shop, "by": id}, "unique": {"mode": "while_waiting", "of": ["/shop"]}});
    let added = server.post("/v1/jobs", &json!({"jobs": [job("a", 1), job("b", 2), job("c", 1)]})).await;
    let ids: Vec<_> =
        added.body["jobs"].as_array().unwrap().iter().map(|job| (&job["id"], &job["added"])).collect();
    let (queued, found) = (json!("queued"), json!("found"));
    assert_eq!(ids, [(&json!("a"), &queued), (&json!("b"), &queued), (&json!("a"), &found)]);
    // What is found adds nothing.
    let count = server.get("/v1/counts?type=t").await.body;
    assert!(count.to_string().contains("\"pending\":2"), "{count}");
}

#[tokio::test]
async fn a_retry_and_an_edit_do_not_take_the_key_of_another_job() {
    let server = TestServer::start().await;
    let unique = json!({"mode": "until_end", "of": ["/shop"]});
    add(&server, "a", unique.clone(), json!({"options": {"shop": 1}})).await;
    server.post("/v1/jobs/t/a/cancel", &json!({})).await;
    add(&server, "b", unique.clone(), json!({"options": {"shop": 1}})).await;
    let refused = server.post("/v1/jobs/t/a/retry", &json!({})).await;
    assert_eq!(refused.error(), (409, "conflict"));
    assert_eq!(refused.body["reason"], "job `b` of type `t` has the unique key of this job");
    let retry = json!({"action": "retry", "where": "type = t and state = cancelled"});
    server.put("/v1/bulk/retry", &retry).await;
    let bulk = until(
        "the operation is done",
        async || server.get("/v1/bulk/retry").await.body,
        |bulk| bulk["state"] == "done",
    );
    assert!(bulk.await.to_string().contains("another job has its unique key"));
    add(&server, "c", unique, json!({"options": {"shop": 2}})).await;
    let edit = async |shop: u64| {
        let body = json!({"options": {"shop": shop}});
        server.send(server.request("PATCH", "/v1/jobs/t/c").json(&body)).await
    };
    assert_eq!(edit(1).await.error(), (409, "conflict"));
    assert_eq!(edit(3).await.status, 200);
    let fixed = server.send(server.request("PATCH", "/v1/jobs/t/c").json(&json!({"unique": null}))).await;
    assert_eq!((fixed.status, &fixed.body["reason"]), (400, &json!("unique: cannot be changed")));
}

#[tokio::test]
async fn what_makes_no_key_says_why() {
    let server = TestServer::start().await;
    for (unique, about) in [
        (json!({}), "mode"),
        (json!({"mode": "forever"}), "while_waiting"),
        (json!({"mode": "period"}), "unique.period_ms"),
        (json!({"mode": "period", "period_ms": 0}), "unique"),
        (json!({"mode": "period", "period_ms": 2_678_400_001_u64}), "unique"),
        (json!({"mode": "until_end", "period_ms": 1}), "unique.period_ms"),
        (json!({"mode": "until_end", "key": "k", "of": ["/a"]}), "unique.of"),
        (json!({"mode": "until_end", "key": ""}), "unique.key"),
        (json!({"mode": "until_end", "key": "x".repeat(257)}), "unique.key"),
        (json!({"mode": "until_end", "of": ["a"]}), "unique.of"),
        (
            json!({"mode": "until_end", "of": ["/a", "/a", "/a", "/a", "/a", "/a", "/a", "/a", "/a"]}),
            "unique",
        ),
        (json!({"mode": "until_end", "within": "all"}), "tenant"),
        (json!({"mode": "until_end", "on_conflict": "wait"}), "replace"),
    ] {
        let refused = add(&server, "a", unique.clone(), json!({})).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{unique}");
        assert!(refused.body["reason"].as_str().unwrap().contains(about), "{unique}: {}", refused.body);
    }
    server.post("/v1/jobs/t", &json!({"id": "first"})).await;
    let replace = json!({"mode": "until_end", "on_conflict": "replace"});
    assert_eq!(
        add(&server, "a", replace, json!({"after": [{"id": "first"}]})).await.error(),
        (400, "bad_request")
    );
}

#[tokio::test]
async fn a_tenant_neither_blocks_nor_finds_another_one_and_what_is_found_is_not_counted() {
    let server = TestServer::start_with("[limits]\nwaiting_jobs = 1\n").await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let tokens = [admin.token(&["client:acme"]).await, admin.token(&["client:beta"]).await];
    let [acme, beta] = [0, 1].map(|n| server.with(&tokens[n]));
    for within in ["type", "task", "tenant"] {
        let job = json!({"task": "send", "unique": {"mode": "period", "period_ms": 600_000, "key": "k", "within": within}});
        let add = async |client: &As<'_>| client.post(&format!("/v1/jobs/{within}"), &job).await;
        let (own, other) = (add(&acme).await, add(&beta).await);
        assert_eq!((own.status, other.status), (201, 201), "{within}: {} {}", own.body, other.body);
        // The tenant has all the jobs that it may have: a job that is found is none more.
        for (client, first) in [(&acme, &own), (&beta, &other)] {
            let found = add(client).await;
            assert_eq!((found.status, &found.body["id"]), (200, &first.body["id"]), "{}", found.body);
            assert!(found.body["found"]["until_us"].is_i64());
        }
    }
}

#[tokio::test]
async fn a_key_of_hidden_options_shows_nothing_of_them() {
    let server = TestServer::start().await;
    server.hide("t", &["/token"]).await;
    let secret = canary::TOKEN;
    let unique = json!({"mode": "until_end", "of": ["/token"]});
    // Every answer is searched for the secret.
    add(&server, "a", unique.clone(), json!({"options": {"token": secret}})).await;
    let found = add(&server, "b", unique.clone(), json!({"options": {"token": secret}})).await;
    assert_eq!(found.body["added"], "found");
    let job = server.get("/v1/jobs/t/a").await.body;
    assert_eq!((&job["unique"]["of"], &job["options"]), (&json!(["/token"]), &json!({"token": "*****"})));
    assert!(!job.to_string().contains("hash"), "{job}");
    assert_eq!(add(&server, "c", unique, json!({"options": {"token": "other"}})).await.status, 201);
}
