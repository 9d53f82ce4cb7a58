//! Groups and arrays: jobs that end together, and after the last of which the server adds another one.

use serde_json::{Value, json};

use crate::common::worker::ExternalWorker;
use crate::common::{As, TestServer, until};

async fn create(server: &TestServer, group: Value) -> Value {
    let created = server.post("/v1/groups", &group).await;
    assert_eq!(created.status, 201, "{}", created.body);
    created.body
}

/// Waits for the end of a group.
async fn ended(server: &TestServer, name: &str) -> Value {
    server.poll(&format!("/v1/groups/default/{name}"), |group| group["ended_us"].is_i64()).await
}

#[tokio::test]
async fn the_server_adds_the_callback_after_the_last_job() {
    let server = TestServer::start().await;
    let callback = |text: &str| json!({"type": "after", "task": text, "options": {"secret": "s3cr3t"}});
    let group = json!({"name": "g", "on_complete": callback("all"), "on_success": callback("well"), "on_first_failure": callback("alert")});
    let created = create(&server, group.clone()).await;
    assert_eq!((&created["state"], &created["counts"]["total"]), (&json!("open"), &json!(0)));
    assert_eq!(server.post("/v1/groups", &group).await.status, 200, "a repetition");
    let other = server.post("/v1/groups", &json!({"name": "g"})).await;
    assert_eq!(other.error(), (409, "conflict"));
    for id in ["a", "b"] {
        let added = server
            .post("/v1/jobs/t", &json!({"id": id, "group": "g", "tags": ["eu"], "max_attempts": 1}))
            .await;
        assert_eq!(added.status, 201, "{}", added.body);
    }
    let job = server.get("/v1/jobs/t/a").await.body;
    assert_eq!((&job["group"], &job["tags"]), (&json!({"name": "g"}), &json!(["eu"])));
    let listed = server.get("/v1/jobs?where=group+%3D+g").await.body;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 2, "{listed}");

    let mut worker = ExternalWorker::register(&server, "t", 2).await;
    let mut after = ExternalWorker::register(&server, "after", 3).await;
    worker.run("fail", json!({"reason": "broken"})).await;
    // One at once, the other one after the end.
    let alert = after.run("finish", json!({})).await;
    assert_eq!((&alert["task"], &alert["callback"]["on"]), (&json!("alert"), &json!("first_failure")));
    worker.run("finish", json!({})).await;
    let closed = server.post_empty("/v1/groups/default/g/close").await;
    assert_eq!(closed.status, 200, "{}", closed.body);
    let late = server.post("/v1/jobs/t", &json!({"id": "c", "group": "g"})).await;
    assert_eq!(late.error(), (400, "bad_request"));
    assert!(late.body["reason"].as_str().unwrap().contains("is closed"), "{}", late.body);
    let all = after.run("finish", json!({})).await;
    assert_eq!(all["options"], json!({"secret": "s3cr3t"}));
    let counts = &all["callback"]["counts"];
    assert_eq!(
        (&counts["total"], &counts["completed"], &counts["failed"]),
        (&json!(2), &json!(1), &json!(1))
    );
    let group = ended(&server, "g").await;
    assert_eq!((&group["state"], group["called"].as_array().unwrap().len()), (&json!("failed"), 2));
    assert!(!group.to_string().contains("s3cr3t"));
    // A retry counts, and nothing is added for it.
    assert_eq!(server.post_empty("/v1/jobs/t/a/retry").await.status, 200);
    assert_eq!(server.delete("/v1/groups/default/g").await.error(), (409, "conflict"));
    worker.run("finish", json!({})).await;
    let group = server.get("/v1/groups/default/g").await.body;
    assert_eq!((&group["counts"]["completed"], &group["ended_counts"]["completed"]), (&json!(2), &json!(1)));
    assert_eq!(group["retried"], json!(1));
    assert!(after.now().await.is_empty());
    assert_eq!(server.delete("/v1/groups/default/g").await.status, 200);
    assert_eq!(server.get("/v1/groups/default/g").await.error(), (404, "not_found"));
}

#[tokio::test]
async fn an_add_makes_an_array_of_which_few_run_at_once() {
    let server = TestServer::start().await;
    let request = json!({
        "jobs": [{"type": "t", "id": "film", "count": 5, "at_once": 2, "options": {"of": 7}}],
        "groups": [{"name": "film", "on_success": {"type": "after"}}],
    });
    let added = server.post("/v1/jobs", &request).await;
    assert_eq!(added.status, 200, "{}", added.body);
    let ids: Vec<&str> =
        added.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["film.0", "film.1", "film.2", "film.3", "film.4"]);
    let again = server.post("/v1/jobs", &request).await;
    assert!(again.body["jobs"].as_array().unwrap().iter().all(|job| job["added"] == "exists"));
    let group = server.get("/v1/groups/default/film").await.body;
    assert_eq!(
        (&group["state"], &group["at_once"], &group["counts"]["open"]),
        (&json!("closed"), &json!(2), &json!(5))
    );
    let mut worker = ExternalWorker::register(&server, "t", 5).await;
    let first = worker.next(5).await;
    assert_eq!(first.len(), 2);
    assert_eq!(
        (&first[0]["group"], &first[1]["group"]["index"]),
        (&json!({"name": "film", "index": 0}), &json!(1))
    );
    for job in &first {
        worker.end(job["id"].as_str().unwrap(), "finish", json!({})).await;
    }
    for _ in 0..3 {
        worker.run("finish", json!({})).await;
    }
    assert_eq!(ended(&server, "film").await["state"], "completed");
    let after = server.poll("/v1/jobs?type=after", |list| list["jobs"].as_array().unwrap().len() == 1).await;
    assert_eq!(after["jobs"][0]["callback"]["group"], "film");
}

#[tokio::test]
async fn a_group_is_cancelled_as_one_and_ends_in_its_parent() {
    let server = TestServer::start().await;
    create(&server, json!({"name": "all"})).await;
    let jobs: Vec<Value> =
        (0..3).map(|n| json!({"type": "t", "id": format!("j{n}"), "group": "part"})).collect();
    let request = json!({"jobs": jobs, "groups": [{"name": "part", "parent": "all"}]});
    assert_eq!(server.post("/v1/jobs", &request).await.status, 200);
    server.post_empty("/v1/groups/default/all/close").await;
    let bulk = json!({"action": "cancel", "where": "group = part"});
    assert!(server.put("/v1/bulk/stop", &bulk).await.status < 300);
    assert_eq!(ended(&server, "part").await["state"], "cancelled");
    let all = ended(&server, "all").await;
    assert_eq!((&all["counts"]["cancelled"], &all["counts"]["total"]), (&json!(1), &json!(1)));
    let listed = server.get("/v1/groups?limit=1").await.body;
    assert_eq!(listed["groups"][0]["name"], "all");
    let next = listed["next"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/groups?after={next}")).await.body["groups"][0]["name"], "part");
    for (query, name) in
        [("parent=all", "part"), ("state=cancelled&parent=all", "part"), ("tenant=default", "all")]
    {
        assert_eq!(
            server.get(&format!("/v1/groups?{query}")).await.body["groups"][0]["name"],
            name,
            "{query}"
        );
    }
    assert_eq!(server.get("/v1/groups?state=open").await.body["groups"], json!([]));
    assert_eq!(server.get("/v1/groups?state=gone").await.error(), (400, "bad_request"));
}

#[tokio::test]
async fn a_group_is_held_and_released_as_one() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let client = server.with(&admin.token(&["client:default"]).await);
    assert_eq!(client.post("/v1/groups", &json!({"name": "g"})).await.status, 201);
    for (id, group) in [("a", Some("g")), ("b", Some("g")), ("other", None)] {
        let added = client.post("/v1/jobs/t", &json!({"id": id, "group": group})).await;
        assert_eq!(added.status, 201, "{}", added.body);
    }
    let done = async |by: &As<'_>, id: &str, action: &str| {
        let put = json!({"action": action, "where": "group = g and tenant = default"});
        assert_eq!(by.put(&format!("/v1/bulk/{id}"), &put).await.status, 201);
        by.poll(&format!("/v1/bulk/{id}"), |bulk| bulk["state"] == "done").await
    };
    let held = done(&client, "hold", "hold").await;
    assert_eq!((&held["action"], &held["changed"]), (&json!("hold"), &json!(2)), "{held}");
    let job = client.get("/v1/jobs/t/a").await.body;
    assert_eq!((&job["state"], &job["paused_by"]), (&json!("paused"), &json!("client")));
    let counted = client.get("/v1/matching?where=group+%3D+g&action=hold").await.body;
    assert_eq!(counted["refused"], json!([{"reason": "it is held", "jobs": 2}]), "{counted}");
    // What an operator holds, a client does not release.
    assert_eq!(done(&admin, "operator", "hold").await["changed"], 2);
    let refused = done(&client, "release", "release").await;
    assert_eq!(refused["refused"], json!([{"reason": "an operator holds it", "jobs": 2}]));
    assert_eq!(done(&admin, "released", "release").await["changed"], 2);
    assert_eq!(client.get("/v1/jobs/t/a").await.body["state"], "pending");
}

#[tokio::test]
async fn a_group_says_what_its_jobs_wait_for() {
    let server = TestServer::start().await;
    create(&server, json!({"name": "g"})).await;
    let empty = server.get("/v1/groups/default/g/why").await.body;
    assert!(empty["sentence"].as_str().unwrap().contains("ends when it is closed"), "{empty}");
    create(&server, json!({"name": "part", "parent": "g"})).await;
    let mut jobs: Vec<Value> =
        (0..30).map(|n| json!({"type": "t", "id": format!("j{n}"), "group": "g"})).collect();
    jobs.push(json!({"type": "t", "id": "later", "group": "g", "delay_ms": 3_600_000}));
    jobs.push(json!({"type": "other", "id": "after", "group": "g", "after": [{"type": "t", "id": "later"}]}));
    jobs.push(json!({"type": "t", "id": "of no group"}));
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    server.post_empty("/v1/groups/default/g/close").await;
    let why = server.get("/v1/groups/default/g/why").await.body;
    assert_eq!(
        (&why["open"], &why["state"], &why["groups"]),
        (&json!(33), &json!("closed"), &json!(["part"]))
    );
    // Not all of the pending ones are looked at.
    assert_eq!((&why["looked_at"], &why["complete"]), (&json!(22), &json!(false)));
    let reasons: Vec<(&str, u64)> = why["reasons"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["reason"].as_str().unwrap(), of["jobs"].as_u64().unwrap()))
        .collect();
    assert_eq!(reasons[0], ("no_worker", 20));
    assert!(reasons.contains(&("not_before", 1)) && reasons.contains(&("after_others", 1)), "{reasons:?}");
    let held = server.put("/v1/bulk/hold", &json!({"action": "hold", "where": "group = g"})).await;
    assert_eq!(held.status, 201);
    server.poll("/v1/bulk/hold", |bulk| bulk["state"] == "done").await;
    let why = server.get("/v1/groups/default/g/why").await.body;
    assert_eq!((&why["reasons"][0]["reason"], &why["reasons"][0]["jobs"]), (&json!("paused"), &json!(20)));
    let scrape = async || server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    let metrics = until("the groups are counted", scrape, |text| text.contains("turnwise_groups 2\n")).await;
    assert!(metrics.contains("turnwise_oldest_due_group_age_seconds 0\n"), "{metrics}");
    assert_eq!(server.get("/v1/groups/default/none/why").await.error(), (404, "not_found"));
}

#[tokio::test]
async fn what_a_request_states_of_groups_is_checked() {
    let server = TestServer::start().await;
    for (path, body, part) in [
        ("/v1/groups", json!({"name": "a/b"}), "name"),
        ("/v1/groups", json!({"name": "g", "at_once": 0}), "at_once"),
        ("/v1/groups", json!({"name": "g", "parent": "none"}), "parent"),
        ("/v1/groups", json!({"name": "g", "on_complete": {"type": "t", "id": "x"}}), "on_complete.id"),
        ("/v1/groups", json!({"name": "g", "on_complete": {"type": "webhook"}}), "on_complete.type"),
        ("/v1/jobs/t", json!({"group": "none"}), "there is no group"),
        ("/v1/jobs/t", json!({"tags": ["group:g"]}), "tags"),
        ("/v1/jobs/t", json!({"count": 3}), "count"),
        ("/v1/jobs", json!({"jobs": [{"type": "t", "count": 10_001}]}), "count"),
        ("/v1/jobs", json!({"jobs": [{"type": "t", "at_once": 1}]}), "at_once"),
        ("/v1/jobs", json!({"jobs": [{"type": "t", "count": 2, "unique": {"mode": "until_end"}}]}), "unique"),
        ("/v1/jobs", json!({"jobs": [{"type": "t", "id": "a b", "count": 2}]}), "id"),
        (
            "/v1/jobs",
            json!({"jobs": [{"type": "t", "count": 10_000, "summary": {"text": "x".repeat(900)}}]}),
            "8 MB",
        ),
    ] {
        let refused = server.post(path, &body).await;
        assert!((400..500).contains(&refused.status), "{body}: {}", refused.body);
        assert!(refused.body["reason"].as_str().unwrap().contains(part), "{body}: {}", refused.body);
    }
    assert_eq!(server.get("/v1/counts").await.body["counts"], json!([]), "nothing was added");
}

#[tokio::test]
async fn a_group_belongs_to_a_tenant() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let (acme, other) = (admin.token(&["client:acme"]).await, admin.token(&["client:other"]).await);
    let (acme, other) = (server.with(&acme), server.with(&other));
    assert_eq!(acme.post("/v1/groups", &json!({"name": "g"})).await.status, 201);
    assert_eq!(other.get("/v1/groups/acme/g").await.error(), (404, "not_found"));
    assert_eq!(other.post("/v1/groups/acme/g/close", &json!({})).await.error(), (404, "not_found"));
    assert_eq!(other.delete("/v1/groups/acme/g").await.error(), (404, "not_found"));
    assert_eq!(
        other.post("/v1/groups", &json!({"name": "g", "tenant": "acme"})).await.error(),
        (403, "forbidden")
    );
    // The same name is another group.
    assert_eq!(other.post("/v1/groups", &json!({"name": "g"})).await.status, 201);
    assert_eq!(other.post("/v1/jobs/t", &json!({"group": "g"})).await.status, 201);
    assert_eq!(acme.get("/v1/groups/acme/g").await.body["counts"]["total"], 0);
    // One that is stated for an array is that of the array, whichever of them names the tenant.
    let array = json!({
        "jobs": [{"type": "t", "id": "film", "count": 2, "tenant": "acme"}],
        "groups": [{"name": "film", "on_success": {"type": "after"}}],
    });
    assert_eq!(acme.post("/v1/jobs", &array).await.status, 200);
    assert_eq!(acme.get("/v1/groups/acme/film").await.body["callbacks"], json!(["success"]));
    assert_eq!(acme.get("/v1/groups").await.body["groups"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_array_that_a_tenant_may_not_have_leaves_no_group() {
    let server = TestServer::start_with("[limits]\nwaiting_jobs = 3\n").await;
    let admin = server.close().await;
    let token = server.with(&admin).token(&["client:acme"]).await;
    let client = server.with(&token);
    let array = |count: u32| json!({"jobs": [{"type": "t", "id": "film", "count": count}]});
    assert_eq!(client.post("/v1/jobs", &array(4)).await.error(), (429, "too_many_requests"));
    assert_eq!(client.get("/v1/groups/acme/film").await.status, 404);
    assert_eq!(client.post("/v1/jobs", &array(3)).await.status, 200);
    // A repetition adds nothing.
    assert_eq!(client.post("/v1/jobs", &array(3)).await.status, 200);
    // Nor may it have the jobs that a group adds for it.
    let group = |job_type: &str| json!({"name": job_type, "open": false, "on_complete": {"type": job_type}});
    assert_eq!(client.post("/v1/groups", &group("t")).await.error(), (429, "too_many_requests"));
    assert_eq!(client.get("/v1/groups/acme/t").await.status, 404);
    assert_eq!(client.post("/v1/groups", &group("other")).await.status, 201);
    assert_eq!(client.post("/v1/groups", &group("other")).await.status, 200);
}
