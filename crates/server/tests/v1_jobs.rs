//! `/v1` for clients: add, list, get, wait, cancel, remove.

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;
use serde_json::{Value, json};

#[tokio::test]
async fn a_job_is_added_once_however_often_it_is_asked_for() {
    let server = TestServer::start().await;
    server.hide("mail", &["/password"]).await;
    let body = json!({"id": "a/b ü", "tenant": "acme", "user": "jan", "options": {"password": "hunter2"},
        "summary": {"to": "x"}, "max_attempts": 3});
    let added = server.post("/v1/jobs/mail", &body).await;
    assert_eq!(
        (added.status, &added.body),
        (201, &json!({"type": "mail", "id": "a/b ü", "added": "queued"}))
    );
    let again = server.post("/v1/jobs/mail", &body).await;
    assert_eq!((again.status, &again.body["added"]), (200, &json!("exists")));
    let job = server.get("/v1/jobs/mail/a%2Fb%20%C3%BC").await;
    assert_eq!(job.status, 200);
    assert!(!job.body.to_string().contains("hunter2"));
    let job = job.body;
    let expected = json!({"type": "mail", "id": "a/b ü", "state": "pending", "tenant": "acme", "user": "jan",
        "priority": 0, "attempts": 0, "max_attempts": 3, "snoozes": 0, "cancel_requested": false, "summary": {"to": "x"}, "options": {"password": "*****"},
        "added_us": job["added_us"], "version": job["version"],
        "changed_us": job["changed_us"], "history": [{"at_us": job["added_us"], "type": "added"}]});
    assert_eq!(job, expected);
}

#[tokio::test]
async fn a_job_without_an_id_gets_one_and_without_anything_is_a_job() {
    let server = TestServer::start().await;
    let (one, two) =
        (server.post("/v1/jobs/t", &json!({})).await, server.post("/v1/jobs/t", &json!({})).await);
    assert_eq!((one.status, two.status), (201, 201));
    assert_ne!(one.body["id"], two.body["id"]);
    let job = server.get(&format!("/v1/jobs/t/{}", one.body["id"].as_str().unwrap())).await.body;
    assert_eq!((&job["tenant"], &job["summary"]), (&json!("default"), &json!({})));
}

#[tokio::test]
async fn a_job_for_later_waits_for_its_time() {
    let server = TestServer::start().await;
    let added = server.post("/v1/jobs/t", &json!({"id": "a", "delay_ms": 3_600_000})).await;
    assert_eq!((added.status, &added.body["added"]), (201, &json!("delayed")));
    let job = server.get("/v1/jobs/t/a").await.body;
    assert_eq!(job["state"], "delayed");
    let delay = job["not_before_us"].as_i64().unwrap() - job["added_us"].as_i64().unwrap();
    assert_eq!(delay, 3_600_000_000);
    let at_us = job["added_us"].as_i64().unwrap() + 7_200_000_000_i64;
    let body = json!({"id": "a", "not_before_us": at_us, "if_exists": "again"});
    assert_eq!(server.post("/v1/jobs/t", &body).await.body["added"], "delayed");
    assert_eq!(server.get("/v1/jobs/t/a").await.body["not_before_us"], at_us);
    let body = json!({"id": "c", "not_before_us": at_us, "delay_ms": 1});
    assert_eq!(server.post("/v1/jobs/t", &body).await.status, 201);
    assert_eq!(server.get("/v1/jobs/t/c").await.body["not_before_us"], at_us);
    let past = server.post("/v1/jobs/t", &json!({"id": "b", "not_before_us": 0})).await;
    assert_eq!((past.status, &past.body["added"]), (201, &json!("queued")));
}

#[tokio::test]
async fn any_number_of_types_is_listed_page_by_page() {
    let server = TestServer::start().await;
    let names: Vec<String> = (0..1_003).map(|n| format!("t{n:04}")).collect();
    for some in names.chunks(1_000) {
        let jobs: Vec<Value> = some.iter().map(|name| json!({"type": name, "id": "a"})).collect();
        assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    }
    let all_pages = async |path: &str, of: &dyn Fn(&Value) -> Vec<String>| {
        let (mut all, mut next, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = server.get(&format!("{path}{next}")).await.body;
            all.extend(of(&page));
            pages += 1;
            let Some(place) = page["next"].as_str() else { return (all, pages) };
            next = format!("&after={place}");
        }
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let types = |page: &Value| page["types"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(all_pages("/v1/types?", &types).await, (names.clone(), 2));
    let queued =
        |page: &Value| page["jobs"].as_array().unwrap().iter().map(|job| text(&job["type"])).collect();
    assert_eq!(all_pages("/v1/queue?limit=1", &queued).await, (names, 11));
    for (order, partial) in [("name", json!(null)), ("deficit", json!(true))] {
        assert_eq!(server.get(&format!("/v1/tenants?order={order}")).await.body["partial"], partial);
    }
    assert_eq!(server.get("/v1/types?after=a%20b").await.error(), (400, "bad_request"));
}

#[tokio::test]
async fn many_jobs_are_added_together_or_not_at_all() {
    let server = TestServer::start().await;
    let jobs: Vec<Value> =
        (0..1_000).map(|n| json!({"type": format!("t{}", n % 3), "id": format!("{n:04}")})).collect();
    let added = server.post("/v1/jobs", &json!({"jobs": jobs})).await;
    assert_eq!(added.status, 200, "{}", added.body);
    let rows = added.body["jobs"].as_array().unwrap();
    assert_eq!(rows.len(), 1_000);
    assert_eq!(rows[7], json!({"type": "t1", "id": "0007", "added": "queued"}));
    assert_eq!(server.get("/v1/types").await.body, json!({"types": ["t0", "t1", "t2"]}));

    // The jobs of a tenant are queued in the order of the request, whatever their ids are.
    let jobs: Vec<Value> = (0..100).map(|n| json!({"type": "o", "id": format!("{}", 999 - n)})).collect();
    server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    let queue = server.get("/v1/queue?type=o&limit=200").await.body;
    let ids: Vec<&str> =
        queue["jobs"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..100).map(|n| format!("{}", 999 - n)).collect();
    assert_eq!(ids, expected);

    let twice = json!({"jobs": [{"type": "u", "id": "x"}, {"type": "u", "id": "x"}, {"type": "u", "id": "x", "if_exists": "again"}]});
    let added = server.post("/v1/jobs", &twice).await.body;
    let did: Vec<&str> =
        added["jobs"].as_array().unwrap().iter().map(|row| row["added"].as_str().unwrap()).collect();
    assert_eq!(did, ["queued", "exists", "already_waiting"]);

    let one_bad = json!({"jobs": [{"type": "v"}, {"type": "v", "tenant": ""}]});
    let refused = server.post("/v1/jobs", &one_bad).await;
    assert_eq!(refused.error(), (400, "bad_request"));
    assert!(refused.body["reason"].as_str().unwrap().starts_with("jobs[1].tenant: "), "{}", refused.body);
    assert_eq!(server.get("/v1/types").await.body["types"], json!(["o", "t0", "t1", "t2", "u"]));
    for jobs in [json!([]), json!(vec![json!({"type": "t"}); 1_001])] {
        assert_eq!(server.post("/v1/jobs", &json!({"jobs": jobs})).await.error(), (400, "bad_request"));
    }
}

#[tokio::test]
async fn pages_go_through_all_jobs_once() {
    let server = TestServer::start().await;
    let jobs: Vec<Value> = (0..250)
        .map(
            |n| json!({"type": (["a", "b"][n % 2]), "id": format!("{n:03}/"), "tenant": format!("t{}", n % 5)}),
        )
        .collect();
    server.post("/v1/jobs", &json!({"jobs": jobs})).await;
    for n in (0..250).step_by(10) {
        let path = format!("/v1/jobs/{}/{n:03}%2F/cancel", ["a", "b"][n % 2]);
        assert_eq!(server.post_empty(&path).await.body, json!({"state": "cancelled"}));
    }
    for (filter, expected) in [
        ("", 250),
        ("&type=a", 125),
        ("&tenant=t3", 50),
        ("&state=cancelled", 25),
        ("&state=pending&type=b&tenant=t1", 25),
        ("&state=running", 0),
        ("&type=none", 0),
    ] {
        for limit in [1_000, 100, 7] {
            let (mut seen, mut after) = (Vec::new(), String::new());
            loop {
                let page = server.get(&format!("/v1/jobs?order=id&limit={limit}{filter}{after}")).await;
                assert_eq!(page.status, 200, "{}", page.body);
                let jobs = page.body["jobs"].as_array().unwrap().clone();
                assert!(jobs.len() <= limit);
                seen.extend(jobs.iter().map(|job| (job["type"].to_string(), job["id"].to_string())));
                match page.body["next"].as_str() {
                    Some(next) => {
                        let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
                        after = format!("&after={next}");
                    }
                    None => break,
                }
            }
            assert!(seen.is_sorted(), "{filter}");
            seen.dedup();
            assert_eq!(seen.len(), expected, "{filter} {limit}");
        }
    }
    for (after, expected) in [("a%2F100", 100), ("b%2F2", 25), ("c%2F", 0)] {
        let page = server.get(&format!("/v1/jobs?type=b&after={after}")).await.body;
        assert_eq!(page["jobs"].as_array().unwrap().len(), expected, "{after}");
    }
}

#[tokio::test]
async fn a_page_looks_at_a_bounded_number_of_jobs() {
    let server = TestServer::start().await;
    for batch in 0..3 {
        let jobs: Vec<Value> = (0..1_000)
            .map(|n| json!({"type": "t", "id": format!("{batch}{n:03}"), "tenant": if batch == 2 { "last" } else { "x" }}))
            .collect();
        assert_eq!(server.post("/v1/jobs", &json!({"jobs": jobs})).await.status, 200);
    }
    let first = server.get("/v1/jobs?tenant=last&order=id").await.body;
    assert_eq!((&first["jobs"], &first["next"]), (&json!([]), &json!("t/1999")));
    let next = server.get("/v1/jobs?tenant=last&order=id&after=t/1999").await.body;
    assert_eq!((next["jobs"].as_array().unwrap().len(), &next["next"]), (100, &json!("t/2099")));
}

#[tokio::test]
async fn a_waiting_job_is_cancelled_or_removed_at_once() {
    let server = TestServer::start().await;
    for id in ["a", "b"] {
        server.post("/v1/jobs/t", &json!({"id": id})).await;
    }
    for _ in 0..2 {
        let cancelled = server.post_empty("/v1/jobs/t/a/cancel").await;
        assert_eq!((cancelled.status, cancelled.body), (200, json!({"state": "cancelled"})));
    }
    assert_eq!(server.get("/v1/jobs/t/a").await.body["history"][0]["type"], "cancelled");
    let removed = server.delete("/v1/jobs/t/b").await;
    assert_eq!((removed.status, removed.body), (200, json!({"removed": true})));
    for (method, path) in
        [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/wait"), ("GET", "/events")]
    {
        let gone = server.bare(method, &format!("/v1/jobs/t/b{path}")).await;
        assert_eq!(gone.error(), (404, "not_found"), "{method} {path}");
        assert!(gone.body["hint"].as_str().unwrap().contains("retention"));
    }
    // A job that has ended can be added again.
    assert_eq!(server.post("/v1/jobs/t", &json!({"id": "a"})).await.body["added"], "exists");
    let again = server.post("/v1/jobs/t", &json!({"id": "a", "if_exists": "again"})).await;
    assert_eq!((again.status, &again.body["added"]), (201, &json!("queued")));
}

#[tokio::test]
async fn waiting_ends_with_the_job_or_with_the_time() {
    let server = TestServer::start().await;
    server.post("/v1/jobs/t", &json!({"id": "a"})).await;
    let early = server.get("/v1/jobs/t/a/wait?timeout_ms=0").await;
    assert_eq!(
        (early.status, &early.body["finished"], &early.body["job"]["state"]),
        (200, &json!(false), &json!("pending"))
    );
    let timed_out = server.get("/v1/jobs/t/a/wait?timeout_ms=50").await;
    assert_eq!(timed_out.body["finished"], false);
    let waiting = tokio::spawn(server.request("GET", "/v1/jobs/t/a/wait").send());
    server.post_empty("/v1/jobs/t/a/cancel").await;
    let ended: Value = serde_json::from_str(&waiting.await.unwrap().unwrap().text().await.unwrap()).unwrap();
    assert_eq!((&ended["finished"], &ended["job"]["state"]), (&json!(true), &json!("cancelled")));
    assert_eq!(server.get("/v1/jobs/t/a/wait?timeout_ms=300001").await.error(), (400, "bad_request"));
}

#[tokio::test]
async fn a_waiting_client_gets_an_answer_when_the_job_is_removed_or_the_server_stops() {
    let server = TestServer::start().await;
    for id in ["a", "b"] {
        server.post("/v1/jobs/t", &json!({"id": id})).await;
    }
    let wait = |id: &str| tokio::spawn(server.request("GET", &format!("/v1/jobs/t/{id}/wait")).send());
    let (removed, stopped) = (wait("a"), wait("b"));
    server.delete("/v1/jobs/t/a").await;
    assert_eq!(removed.await.unwrap().unwrap().status(), 404);
    // The waiting request has begun before the shutdown.
    assert_eq!(server.get("/v1/jobs/t/b/wait?timeout_ms=50").await.status, 200);
    server.server.shutdown().await;
    // A request that delayed the shutdown would have been cut off, without a response.
    let answer = stopped.await.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.text().await.unwrap().contains("service_unavailable"));
}

#[tokio::test]
async fn replications_are_shown_and_belong_to_couchdbs_api() {
    let server = TestServer::start_with("backoff_base_ms = 3600000\n").await;
    let nowhere = "http://127.0.0.1:1/db";
    let started =
        server.post("/_replicate", &json!({"source": nowhere, "target": nowhere, "continuous": true})).await;
    let id = started.body["_local_id"].as_str().unwrap().replace('+', "%2B");
    server
        .put_ok(
            "/_replicator/d",
            &json!({"source": format!("{nowhere}2"), "target": nowhere, "continuous": true}),
        )
        .await;
    let listed =
        server.poll("/v1/jobs?type=replication", |page| page["jobs"].as_array().unwrap().len() == 2).await;
    let of_document =
        listed["jobs"].as_array().unwrap().iter().find(|job| job["summary"]["doc_id"] == "d").unwrap();
    let path = format!("/v1/jobs/replication/{}", of_document["id"].as_str().unwrap().replace('+', "%2B"));
    for (method, path) in [("POST", format!("{path}/cancel")), ("DELETE", path)] {
        let refused = server.bare(method, &path).await;
        assert_eq!(refused.error(), (403, "forbidden"), "{}", refused.body);
        assert!(refused.body["reason"].as_str().unwrap().contains("document `d`"));
    }
    let cancelled = server.post_empty(&format!("/v1/jobs/replication/{id}/cancel")).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    for job_type in ["replication", "command"] {
        assert_eq!(
            server.post(&format!("/v1/jobs/{job_type}"), &json!({})).await.error(),
            (403, "forbidden")
        );
    }
}

#[tokio::test]
async fn a_job_that_ended_is_kept_for_as_long_as_it_is_configured() {
    let server = TestServer::start_with("[jobs]\nretention = 0.5\n").await;
    for id in ["ended", "waits"] {
        server.post("/v1/jobs/t", &json!({"id": id})).await;
    }
    assert_eq!(server.post_empty("/v1/jobs/t/ended/cancel").await.body["state"], "cancelled");
    server.poll("/v1/jobs/t/ended", |answer| answer["error"] == "not_found").await;
    assert_eq!(server.get("/v1/jobs/t/waits").await.status, 200);
}

#[tokio::test]
async fn a_request_waits_no_longer_than_it_is_configured() {
    let server = TestServer::start_with("[jobs]\nmax_wait = 0.05\n").await;
    server.post("/v1/jobs/t", &json!({"id": "a"})).await;
    let answer = server.get("/v1/jobs/t/a/wait?timeout_ms=300000").await;
    assert_eq!((answer.status, &answer.body["finished"]), (200, &json!(false)));
    let worker =
        server.post("/v1/workers/u", &json!({"slots": 1})).await.body["worker"].as_str().unwrap().to_owned();
    let body = json!({"received": 0, "wait_ms": 300_000});
    assert_eq!(server.post(&format!("/v1/workers/u/{worker}/accept"), &body).await.body, json!({"jobs": []}));
}

#[tokio::test]
async fn a_jobs_priority_is_shown_and_can_be_changed() {
    let server = TestServer::start().await;
    for (id, priority) in [("a", None), ("b", Some(-5)), ("c", Some(19))] {
        let mut job = json!({ "id": id });
        if let Some(priority) = priority {
            job["priority"] = json!(priority);
        }
        assert_eq!(server.post("/v1/jobs/mail", &job).await.status, 201);
    }
    for (id, priority) in [("a", 0), ("b", -5), ("c", 19)] {
        assert_eq!(server.get(&format!("/v1/jobs/mail/{id}")).await.body["priority"], priority);
        assert_eq!(server.get(&format!("/v1/jobs/mail/{id}/why")).await.body["priority"], priority);
    }
    let set = server.put("/v1/jobs/mail/c/priority", &json!({ "priority": -20 })).await;
    assert_eq!((set.status, &set.body), (200, &json!({ "changed": true, "state": "pending" })));
    let mut worker = ExternalWorker::register(&server, "mail", 9).await;
    assert_eq!(worker.now_ids().await, ["c", "b", "a"]);
    let set = server.put("/v1/jobs/mail/a/priority", &json!({ "priority": 1 })).await;
    assert_eq!(set.body, json!({ "changed": true, "state": "running" }));
    server.post("/v1/jobs/mail", &json!({ "id": "d" })).await;
    server.post("/v1/jobs/mail/d/cancel", &json!({})).await;
    let set = server.put("/v1/jobs/mail/d/priority", &json!({ "priority": 1 })).await;
    assert_eq!(set.body, json!({ "changed": false, "state": "cancelled" }));
    for wrong in
        [json!({ "priority": 20 }), json!({ "priority": -21 }), json!({}), json!({ "priority": "high" })]
    {
        let refused = server.put("/v1/jobs/mail/a/priority", &wrong).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    let refused = server.post("/v1/jobs/mail", &json!({ "priority": 20 })).await;
    assert_eq!(refused.body["reason"], "priority: must be from -20 (first) to 19 (last)");
    assert_eq!(server.put("/v1/jobs/mail/nobody/priority", &json!({ "priority": 1 })).await.status, 404);
}

#[tokio::test]
async fn a_failed_or_cancelled_job_runs_again_with_its_original_values() {
    let server = TestServer::start().await;
    let added = json!({"id": "a", "tenant": "acme", "user": "jan", "options": {"to": "x"}, "priority": -4,
        "max_attempts": 1, "locks": {"node": {"exclusive": ["n1"]}}, "reason": ["concurrency:7:net"]});
    server.post("/v1/jobs/t", &added).await;
    for id in ["b", "c"] {
        server
            .post("/v1/jobs/t", &json!({"id": id, "tenant": if id == "b" { "acme" } else { "other" }}))
            .await;
    }
    let mut worker = ExternalWorker::register(&server, "t", 100).await;
    let first = worker.now().await;
    assert_eq!(first.len(), 3);
    for job in &first {
        let failing = json!({ "reason": "no such mailbox", "retry": false });
        let failed = worker.end(job["id"].as_str().unwrap(), "fail", failing).await;
        assert_eq!(failed.body["state"], "failed", "{}", failed.body);
    }
    let retried = server.post("/v1/jobs/t/a/retry", &json!({})).await;
    assert_eq!((retried.status, retried.body), (200, json!({"retried": true, "state": "pending"})));
    let job = server.get("/v1/jobs/t/a").await.body;
    assert_eq!((&job["tenant"], &job["priority"], &job["attempts"]), (&json!("acme"), &json!(-4), &json!(0)));
    let b = server.post("/v1/jobs/t/b/retry", &json!({})).await;
    assert_eq!((b.status, b.body), (200, json!({"retried": true, "state": "pending"})));
    assert_eq!(server.get("/v1/jobs/t/c").await.body["state"], "failed");
    let again = worker.now().await;
    let a = again.iter().find(|job| job["id"] == "a").unwrap();
    assert_eq!(a["options"], json!({"to": "x"}));
    let locks = server.get("/v1/locks").await.body;
    assert!(locks.to_string().contains("n1"), "{locks}");
    // Running and completed jobs are not retried.
    let runs = server.post("/v1/jobs/t/a/retry", &json!({})).await.body;
    assert_eq!(runs, json!({"retried": false, "state": "running"}));
    worker.end("a", "finish", json!({})).await;
    let ended = server.post("/v1/jobs/t/a/retry", &json!({})).await.body;
    assert_eq!(ended, json!({"retried": false, "state": "completed"}));
    server.post("/v1/jobs/u", &json!({"id": "x"})).await;
    server.post("/v1/jobs/u/x/cancel", &json!({})).await;
    server.post("/v1/jobs/u/x/retry", &json!({})).await;
    assert_eq!(server.get("/v1/jobs/u/x").await.body["state"], "pending");
}

#[tokio::test]
async fn a_job_that_is_added_again_keeps_the_members_that_the_request_omits() {
    let server = TestServer::start().await;
    let added = json!({"id": "a", "tenant": "acme", "user": "jan", "options": {"to": "x"}, "summary": {"s": 1},
        "max_attempts": 4, "timeout_ms": 3_600_000, "heartbeat_timeout_ms": 1_800_000,
        "locks": {"node": {"exclusive": ["n1"]}}, "reason": ["concurrency:7:net"], "priority": 3});
    server.post("/v1/jobs/t", &added).await;
    let shown = async || {
        let job = server.get("/v1/jobs/t/a").await.body;
        let kept = "tenant user summary max_attempts timeout_ms heartbeat_timeout_ms reasons priority";
        kept.split(' ').map(|member| job[member].clone()).collect::<Vec<_>>()
    };
    let before = shown().await;
    let again = server.post("/v1/jobs/t", &json!({"id": "a", "if_exists": "again"})).await;
    assert_eq!(again.body["added"], "already_waiting", "{}", again.body);
    assert_eq!(shown().await, before);
    assert!(before.iter().all(|member| !member.is_null()), "{before:?}");
    let mut worker = ExternalWorker::register(&server, "t", 100).await;
    let job = worker.now().await.remove(0);
    assert_eq!((&job["options"], &job["id"]), (&json!({"to": "x"}), &json!("a")));
    // The job is running: its next run gets the same values, except for the new ones.
    let next = json!({"id": "a", "options": {"to": "y"}, "if_exists": "again"});
    assert_eq!(server.post("/v1/jobs/t", &next).await.body["added"], "runs_again");
    worker.end("a", "finish", json!({})).await;
    assert_eq!(shown().await, before);
    let job = worker.now().await.remove(0);
    assert_eq!(job["options"], json!({"to": "y"}));
    let locks = server.get("/v1/locks").await.body;
    assert!(locks.to_string().contains("n1"), "{locks}");
    // A new job gets the defaults.
    let new = server.post("/v1/jobs/t", &json!({"id": "b", "if_exists": "again"})).await;
    assert_eq!((new.status, &new.body["added"]), (201, &json!("queued")));
}
