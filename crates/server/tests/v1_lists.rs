//! `GET /v1/jobs` by time, `GET /v1/failures`, and the page of jobs.

use serde_json::{Value, json};

use crate::common::TestServer;

fn ids(page: &Value) -> Vec<&str> {
    page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect()
}

async fn html(server: &TestServer, path: &str) -> String {
    server.request("GET", path).send().await.unwrap().text().await.unwrap()
}

/// Six jobs of two tenants that have ended: two completed, four failed for two kinds of reasons; and one that waits.
async fn filled() -> TestServer {
    let server = TestServer::start().await;
    let worker = server.post("/v1/workers/mail", &json!({"slots": 1})).await.body;
    let worker = format!("/v1/workers/mail/{}", worker["worker"].as_str().unwrap());
    let mut received = 0;
    for (id, tenant, reason) in [
        ("c", "acme", None),
        ("a", "acme", Some("timeout after 12345 ms")),
        ("e", "beta", Some("timeout after 99999 ms")),
        ("b", "beta", None),
        ("f", "beta", Some("HTTP 503")),
        ("d", "acme", Some("timeout after 5000 ms")),
    ] {
        server.post("/v1/jobs/mail", &json!({"id": id, "tenant": tenant})).await;
        let accept = json!({"received": received, "limit": 1, "wait_ms": 10_000});
        let accepted = server.post(&format!("{worker}/accept"), &accept).await.body;
        received = accepted["jobs"][0]["claim"].as_u64().unwrap();
        let (how, body) = match reason {
            Some(reason) => ("fail", json!({"claim": received, "reason": reason, "retry": false})),
            None => ("finish", json!({"claim": received})),
        };
        let ended = server.post(&format!("{worker}/jobs/{id}/{how}"), &body).await;
        assert_eq!(ended.status, 200, "{}", ended.body);
    }
    server.post("/v1/jobs/mail", &json!({"id": "w", "tenant": "acme"})).await;
    server
}

#[tokio::test]
async fn lists_have_the_newest_first_and_continue_where_a_page_ended() {
    let server = filled().await;
    let list = async |query: &str| server.get(&format!("/v1/jobs?{query}")).await.body;
    assert_eq!(ids(&list("order=newest").await), ["w", "d", "f", "b", "e", "a", "c"]);
    assert_eq!(ids(&list("order=oldest").await), ["c", "a", "e", "b", "f", "d", "w"]);
    assert_eq!(ids(&list("").await), ["a", "b", "c", "d", "e", "f", "w"]);
    assert_eq!(ids(&list("state=failed").await), ["d", "f", "e", "a"]);
    assert_eq!(ids(&list("state=failed&order=id").await), ["a", "d", "e", "f"]);
    assert_eq!(ids(&list("state=failed&tenant=acme").await), ["d", "a"]);
    assert_eq!(ids(&list("tenant=beta&order=oldest").await), ["e", "b", "f"]);
    assert_eq!(ids(&list("where=state+in+(failed,+pending)+and+tenant+%3D+acme").await), ["w", "d", "a"]);
    let of_class = list("reason_class=timeout+after+N+ms").await;
    assert_eq!(ids(&of_class), ["d", "e", "a"]);
    // A whole reason selects its class, and a condition can name it.
    assert_eq!(ids(&list("reason_class=timeout+after+77777+ms&tenant=beta").await), ["e"]);
    assert_eq!(ids(&list("where=reason_class+%3D+%22HTTP+503%22").await), ["f"]);
    let mut found = Vec::new();
    let mut after = String::new();
    for _ in 0..10 {
        let page = list(&format!("state=failed&limit=1{after}")).await;
        found.extend(ids(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => {
                let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
                after = format!("&after={next}");
            }
            None => break,
        }
    }
    assert_eq!(found, ["d", "f", "e", "a"]);
    let other = server.get(&format!("/v1/jobs?state=failed&order=oldest{after}")).await;
    assert_eq!(other.error(), (400, "bad_request"), "{}", other.body);
}

#[tokio::test]
async fn a_retried_job_is_no_longer_among_the_failed() {
    let server = filled().await;
    assert_eq!(server.post_empty("/v1/jobs/mail/e/retry").await.status, 200);
    let failed = server.get("/v1/jobs?state=failed").await.body;
    assert_eq!(ids(&failed), ["d", "f", "a"]);
    let pending = server.get("/v1/jobs?state=pending").await.body;
    assert_eq!(ids(&pending), ["e", "w"]);
    let bulk =
        json!({"action": "remove", "where": "state = failed and reason_class = \"timeout after N ms\""});
    assert_eq!(server.put("/v1/bulk/x", &bulk).await.status, 201);
    server.poll("/v1/bulk/x", |bulk| bulk["state"] == "done").await;
    assert_eq!(ids(&server.get("/v1/jobs?state=failed").await.body), ["f"]);
}

#[tokio::test]
async fn failures_are_counted_by_reason_and_lead_to_their_jobs() {
    let server = filled().await;
    let all = server.get("/v1/failures").await.body;
    let class = |n: usize| (all["failures"][n]["reason_class"].clone(), all["failures"][n]["jobs"].clone());
    assert_eq!(
        (class(0), class(1)),
        ((json!("timeout after N ms"), json!(3)), (json!("HTTP 503"), json!(1)))
    );
    let latest = &all["failures"][0];
    assert_eq!((&latest["id"], &latest["reason"]), (&json!("d"), &json!("timeout after 5000 ms")));
    assert_eq!((&all["looked_at"], &all["complete"]), (&json!(4), &json!(true)));
    let of_beta = server.get("/v1/failures?tenant=beta&type=mail").await.body;
    assert_eq!((&of_beta["looked_at"], of_beta["failures"].as_array().unwrap().len()), (&json!(2), 2));
    assert_eq!(server.get("/v1/failures?type=none").await.body["failures"], json!([]));
    assert_eq!(server.get("/v1/failures?colour=red").await.error(), (400, "bad_request"));
    // Those of a task are counted by themselves.
    assert!(all["failures"][0].get("task").is_none(), "{all}");
    let worker = server.post("/v1/workers/tasks", &json!({"slots": 3})).await.body;
    let worker = format!("/v1/workers/tasks/{}", worker["worker"].as_str().unwrap());
    for (id, task) in [("x", "send"), ("y", "receive"), ("z", "send")] {
        server.post("/v1/jobs/tasks", &json!({"id": id, "task": task})).await;
    }
    let accept = json!({"received": 0, "limit": 3, "wait_ms": 10_000});
    let accepted = server.post(&format!("{worker}/accept"), &accept).await.body;
    for job in accepted["jobs"].as_array().unwrap() {
        let body = json!({"claim": job["claim"], "reason": "HTTP 503", "retry": false});
        let path = format!("{worker}/jobs/{}/fail", job["id"].as_str().unwrap());
        assert_eq!(server.post(&path, &body).await.status, 200);
    }
    let by_task = server.get("/v1/failures?type=tasks").await.body;
    let of = |n: usize| [&by_task["failures"][n]["task"], &by_task["failures"][n]["jobs"]];
    assert_eq!((of(0), of(1)), ([&json!("send"), &json!(2)], [&json!("receive"), &json!(1)]));
    assert_eq!(by_task["failures"].as_array().unwrap().len(), 2);
    assert_eq!(by_task["failures"][0]["reason_class"], "HTTP 503");
    let receive = server.get("/v1/failures?task=receive").await.body;
    assert_eq!((&receive["looked_at"], &receive["failures"][0]["id"]), (&json!(1), &json!("y")), "{receive}");
    assert_eq!(server.get("/v1/failures?task=").await.error(), (400, "bad_request"));
    let page = html(&server, "/ui/jobs?state=failed").await;
    assert!(page.contains("Failures by reason") && page.contains("timeout after N ms"), "{page}");
    let list = html(&server, "/ui/jobs?state=failed&class=HTTP+503&order=oldest").await;
    assert!(list.contains("id=f\"") && !list.contains("id=d\""), "{list}");
    let by_condition = html(&server, "/ui/jobs?where=tenant+%3D+beta+and+state+%3D+completed").await;
    assert!(by_condition.contains("id=b\"") && !by_condition.contains("id=c\""), "{by_condition}");
}

#[tokio::test]
async fn jobs_are_found_by_their_tags() {
    let server = TestServer::start().await;
    let since = server.get("/v1/events?wait_ms=0").await.body["next"].as_str().unwrap().to_owned();
    let tagged = |id: &str, tags: Value| json!({"type": "mail", "id": id, "tags": tags});
    let added = json!({"jobs": [
        tagged("a", json!(["nightly", "eu", "nightly"])),
        tagged("b", json!(["us"])),
        tagged("c", json!([])),
        {"type": "sms", "id": "d", "tags": ["eu", "us"], "delay_ms": 3_600_000},
    ]});
    assert_eq!(server.post("/v1/jobs", &added).await.status, 200);
    let job = server.get("/v1/jobs/mail/a").await.body;
    assert_eq!(job["tags"], json!(["eu", "nightly"]), "sorted, each once");
    assert_eq!(server.get("/v1/jobs/mail/c").await.body.get("tags"), None);
    let list = async |query: &str| server.get(&format!("/v1/jobs?{query}")).await.body;
    let by_tag = list("tag=eu").await;
    assert_eq!((ids(&by_tag), &by_tag["jobs"][1]["tags"]), (vec!["d", "a"], &job["tags"]));
    for (query, expected) in [
        ("tag=eu&order=id", "a d"),
        ("tag=eu&type=mail", "a"),
        ("tag=us&state=delayed", "d"),
        ("tag=us&where=tag+%3D+eu", "d"),
        ("tag=none", ""),
        ("where=tag+in+(eu,us)", "d b a"),
        ("where=tag+%3D+eu+and+tag+%3D+nightly", "a"),
        ("where=tag+!%3D+eu", "c b"),
        ("where=tag+~+%27^n%27&tenant=default", "a"),
    ] {
        assert_eq!(ids(&list(query).await).join(" "), expected, "{query}");
    }
    let events = server.get(&format!("/v1/events?wait_ms=20000&since={since}")).await.body;
    assert_eq!(events["events"][0]["tags"], json!(["eu", "nightly"]), "{events}");
    assert_eq!(events["events"][2].get("tags"), None);

    // A job that is added again keeps its tags, or has those of the request.
    for (more, expected) in [
        (json!({}), json!(["us"])),
        (json!({"tags": ["eu", "b"]}), json!(["b", "eu"])),
        (json!({"tags": []}), Value::Null),
    ] {
        let mut again = json!({"id": "b", "if_exists": "again"});
        again.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/jobs/mail", &again).await;
        assert_eq!(server.get("/v1/jobs/mail/b").await.body["tags"], expected);
    }
    assert_eq!(ids(&list("tag=us").await), ["d"]);

    let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    for (wrong, told) in [
        (json!(many), "tags: at most 16"),
        (json!(["x".repeat(65)]), "tags: has 65 bytes; at most 64"),
        (json!(["a b"]), "tags: may have letters"),
        (json!([""]), "tags: must not be empty"),
    ] {
        let refused = server.post("/v1/jobs/mail", &json!({"tags": wrong})).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{}", refused.body);
        assert!(refused.body["reason"].as_str().unwrap().contains(told), "{}", refused.body);
    }
    assert_eq!(server.get("/v1/jobs?tag=a+b").await.error(), (400, "bad_request"));

    // A change of many finds each job once.
    let cancel = json!({"action": "cancel", "where": "tag in (eu, us, nightly)"});
    assert_eq!(server.put("/v1/bulk/tags", &cancel).await.body["about"], 4, "a row for each tag");
    let done = server.poll("/v1/bulk/tags", |bulk| bulk["state"] != "running").await;
    assert_eq!([&done["looked_at"], &done["matched"], &done["changed"]], [2, 2, 2], "{done}");
    let page = html(&server, "/ui/jobs?tag=eu").await;
    assert!(
        page.contains("name=\"tag\" value=\"eu\"") && page.contains("id=d") && !page.contains("id=c"),
        "{page}"
    );
}
