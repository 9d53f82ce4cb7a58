//! Bulk operations and counts over HTTP.

use futures::FutureExt as _;
use serde_json::{Value, json};
use turnwise_queue::bulk::{self, Action, NewOperation};
use turnwise_queue::{Keyspace, NewJob, jobs};
use turnwise_store::Store;

use crate::common::{Cluster, TestServer};

async fn add(server: &TestServer, jobs: Vec<Value>) {
    let added = server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    assert_eq!(added.status, 200, "{}", added.body);
}

/// Mail of the tenants `acme` and `beta`, in turn.
async fn add_mail(server: &TestServer, jobs: usize) {
    let job = |n: usize| {
        let tenant = if n.is_multiple_of(2) { "acme" } else { "beta" };
        json!({"type": "mail", "id": format!("m{n:04}"), "tenant": tenant, "options": {"to": format!("{n}@example.org")}})
    };
    add(server, (0..jobs).map(job).collect()).await;
}

/// A bulk operation when it has ended.
async fn done(server: &TestServer, id: &str) -> Value {
    server.poll(&format!("/v1/bulk/{id}"), |bulk| bulk["state"] != "running").await
}

async fn matched(server: &TestServer, condition: &str) -> Value {
    let condition: String = condition.replace(' ', "+").replace('=', "%3D").replace('>', "%3E");
    server.get(&format!("/v1/matching?where={condition}")).await.body["matched"].clone()
}

#[tokio::test]
async fn conditions_compare_text_as_text_and_whole_numbers_exactly() {
    let server = TestServer::start().await;
    let ids = ["1234567890123456789", "1234567890123456700", "0e12", "0e99", "7", "007", "7.0"];
    add(&server, ids.iter().map(|id| json!({"type": "t", "id": id, "tenant": id})).collect()).await;
    let job = |id: &str, n: &str| {
        let text = format!(r#"{{"type": "n", "id": "{id}", "options": {{"n": {n}}}}}"#);
        serde_json::value::RawValue::from_string(text).unwrap()
    };
    let jobs = [
        job("a", "9007199254740992"),
        job("b", "9007199254740993"),
        job("c", "123456789012345678901234567890"),
    ];
    let body =
        format!(r#"{{"jobs": [{}]}}"#, jobs.iter().map(|job| job.get()).collect::<Vec<_>>().join(", "));
    let request = server.request("POST", "/v1/jobs").header("content-type", "application/json").body(body);
    assert_eq!(server.send(request).await.status, 200);
    let cases = [
        ("type = t and id = 1234567890123456789", vec!["1234567890123456789"]),
        ("id in (0e12, 7)", vec!["0e12", "7"]),
        ("type = t and tenant = 007", vec!["007"]),
        ("type = n and options.n = 9007199254740993", vec!["b"]),
        ("type = n and options.n > 9007199254740992", vec!["b", "c"]),
        ("type = n and options.n = 123456789012345678901234567890", vec!["c"]),
    ];
    for (condition, expected) in &cases {
        let encoded: String = url::form_urlencoded::byte_serialize(condition.as_bytes()).collect();
        for order in ["id", "newest"] {
            let page = server.get(&format!("/v1/jobs?limit=100&order={order}&where={encoded}")).await.body;
            let mut found: Vec<&str> =
                page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
            found.sort_unstable();
            assert_eq!(&found, expected, "{condition} {order}");
        }
        let matching = server.get(&format!("/v1/matching?where={encoded}")).await.body;
        assert_eq!(matching["matched"], expected.len(), "{condition}");
    }
    // As a filter, and as a bulk operation.
    let pause = json!({"action": "pause", "when": "tenant = 007"});
    assert_eq!(server.put("/v1/filters/f", &pause).await.status, 200);
    let registered = server.post("/v1/workers/t", &json!({"slots": 10})).await.body;
    let accept = format!("/v1/workers/t/{}/accept", registered["worker"].as_str().unwrap());
    let accepted = server.post(&accept, &json!({"received": 0, "limit": 10, "wait_ms": 10_000})).await.body;
    assert_eq!(accepted["jobs"].as_array().unwrap().len(), ids.len() - 1, "{accepted}");
    let remove = json!({"action": "remove", "where": "type = n and options.n = 9007199254740992"});
    assert_eq!(server.put("/v1/bulk/op", &remove).await.status, 201);
    assert_eq!(done(&server, "op").await["changed"], 1);
    assert_eq!(server.get("/v1/jobs/n/b").await.status, 200);
}

/// A client chooses patterns and texts. Whatever they cost, the server answers others meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_do_not_keep_the_server_from_answering() {
    let server = TestServer::start().await;
    let text = "a".repeat(16 << 10);
    let jobs: Vec<Value> = (0..40)
        .map(|n| json!({"type": "t", "id": n.to_string(), "options": {"x": text}, "delay_ms": 60_000}))
        .collect();
    for some in jobs.chunks(10) {
        add(&server, some.to_vec()).await;
    }
    let refused = server.get("/v1/jobs?where=options.x+~+'(a%3F){6000}b'").await;
    assert_eq!(refused.error(), (400, "bad_request"), "{}", refused.body);
    assert!(refused.body["reason"].as_str().unwrap().contains("too large together"), "{}", refused.body);
    // The most expensive one that is permitted, for each job, by several requests at the same time.
    let mut largest = String::new();
    for n in (10..1_000).step_by(10) {
        let pattern = format!("options.x+~+'(a%3F){{{n}}}b'");
        if server.get(&format!("/v1/matching?where=id+%3D+none+and+{pattern}")).await.status != 200 {
            break;
        }
        largest = pattern;
    }
    assert!(!largest.is_empty());
    let path = format!("/v1/jobs?order=id&limit=1&where={largest}");
    let mut searching = futures::future::join_all((0..6).map(|_| server.get(&path))).boxed();
    let mut slowest = std::time::Duration::ZERO;
    let mut pages = None;
    while pages.is_none() {
        let begun = std::time::Instant::now();
        let up = tokio::time::timeout(crate::common::PATIENCE, server.get("/v1/me"));
        assert_eq!(up.await.expect("it answers").status, 200);
        slowest = slowest.max(begun.elapsed());
        pages = tokio::time::timeout(std::time::Duration::from_millis(20), &mut searching).await.ok();
    }
    // Each page ends after a bounded number of jobs, and the next one goes on there.
    for page in pages.unwrap() {
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(page.body["looked_at"].as_u64().unwrap() > 0, "{}", page.body);
    }
    assert!(slowest < std::time::Duration::from_secs(10), "{slowest:?}");
}

/// A text that is too long for a pattern passes no filter, and is in no selection.
#[tokio::test]
async fn a_text_that_is_too_long_to_be_searched_passes_no_filter() {
    let server = TestServer::start().await;
    for (id, text) in [("short", "fine".to_owned()), ("long", format!("{}forbidden", "x".repeat(16 << 10)))] {
        let added = server.post("/v1/jobs/t", &json!({"id": id, "options": {"x": text}})).await;
        assert_eq!(added.status, 201, "{}", added.body);
    }
    let reject = json!({"action": "reject", "when": "options.x ~ forbidden"});
    assert_eq!(server.put("/v1/filters/f", &reject).await.status, 200);
    let registered = server.post("/v1/workers/t", &json!({"slots": 10})).await.body;
    let accept = format!("/v1/workers/t/{}/accept", registered["worker"].as_str().unwrap());
    let accepted = server.post(&accept, &json!({"received": 0, "limit": 10, "wait_ms": 10_000})).await.body;
    assert_eq!(accepted["jobs"].as_array().unwrap().len(), 1, "{accepted}");
    assert_eq!(accepted["jobs"][0]["id"], "short");
    assert_eq!(server.poll("/v1/jobs/t/long", |job| job["state"] == "cancelled").await["state"], "cancelled");
    assert_eq!(matched(&server, "options.x ~ forbidden").await, 0);
    assert_eq!(matched(&server, "options.x !~ forbidden").await, 1);
}

#[tokio::test]
async fn all_jobs_that_meet_a_condition_are_cancelled() {
    let server = TestServer::start().await;
    add_mail(&server, 700).await;
    add(&server, vec![json!({"type": "sms", "id": "s", "tenant": "acme"})]).await;
    let cancel = json!({"action": "cancel", "where": "type = mail and tenant = acme and state = pending"});
    let created = server.put("/v1/bulk/op", &cancel).await;
    assert_eq!((created.status, &created.body["where"]), (201, &cancel["where"]), "{}", created.body);
    assert_eq!(server.put("/v1/bulk/op", &cancel).await.status, 200, "repeating it has no effect");
    let other = json!({"action": "remove", "where": "type = mail"});
    assert_eq!(server.put("/v1/bulk/op", &other).await.error(), (409, "conflict"));

    let bulk = done(&server, "op").await;
    assert_eq!(bulk["state"], "done", "{bulk}");
    assert_eq!([&bulk["looked_at"], &bulk["matched"], &bulk["changed"]], [350, 350, 350], "{bulk}");
    assert_eq!((&created.body["about"], &bulk["about"]), (&json!(350), &json!(350)), "counted when it began");
    assert_eq!(matched(&server, "state = cancelled").await, 350);
    assert_eq!(matched(&server, "state = pending").await, 351);
    assert_eq!(server.get("/v1/bulk").await.body["bulk"], json!([bulk]));
    // What has ended stays as it is.
    assert_eq!(server.delete("/v1/bulk/op").await.body, bulk);

    let retry = json!({"action": "retry", "where": "state = cancelled and id < m0100"});
    assert_eq!(server.put("/v1/bulk/retry", &retry).await.status, 201);
    assert_eq!(done(&server, "retry").await["changed"], 50);
    let urgent =
        json!({"action": "priority", "priority": -3, "where": "options.to ~ '^9.@' and tenant = beta"});
    assert_eq!(server.put("/v1/bulk/urgent", &urgent).await.status, 201);
    let bulk = done(&server, "urgent").await;
    assert_eq!((&bulk["changed"], &bulk["priority"]), (&json!(5), &json!(-3)), "{bulk}");
    assert_eq!(matched(&server, "priority = -3").await, 5);
    let remove = json!({"action": "remove", "where": "state = cancelled"});
    assert_eq!(server.put("/v1/bulk/remove", &remove).await.status, 201);
    assert_eq!(done(&server, "remove").await["changed"], 300);
    assert_eq!(matched(&server, "type = mail").await, 400);
    let page = server.get("/v1/bulk?limit=2").await.body;
    assert_eq!((page["bulk"].as_array().unwrap().len(), &page["next"]), (2, &json!("remove")));
    assert_eq!(server.get("/v1/bulk?after=remove").await.body["bulk"][0]["id"], "retry");
}

#[tokio::test]
async fn a_count_changes_nothing_and_tells_what_would_change() {
    let server = TestServer::start().await;
    add_mail(&server, 60).await;
    add(&server, vec![json!({"type": "mail", "id": "later", "tenant": "acme", "delay_ms": 3_600_000})]).await;
    let counted = server.get("/v1/matching?where=tenant+%3D+acme&action=run_now").await.body;
    assert_eq!(counted["complete"], true, "{counted}");
    assert_eq!([&counted["looked_at"], &counted["matched"], &counted["changes"]], [61, 31, 1], "{counted}");
    assert_eq!(counted["refused"], json!([{"reason": "it is pending", "jobs": 30}]));
    let example = json!({"type": "mail", "id": "later", "tenant": "acme", "state": "delayed"});
    assert_eq!(counted["examples"], json!([example]));
    let counted = server.get("/v1/matching").await.body;
    assert_eq!((&counted["matched"], counted.get("changes")), (&json!(61), None));
    assert_eq!(counted["examples"].as_array().unwrap().len(), 20);
    assert_eq!(matched(&server, "state = pending").await, 60, "nothing was changed");
}

#[tokio::test]
async fn jobs_are_listed_by_condition() {
    let server = TestServer::start().await;
    add_mail(&server, 50).await;
    add(&server, vec![json!({"type": "sms", "id": "s", "reason": ["nightly"]})]).await;
    let ids = async |query: &str| {
        let page = server.get(&format!("/v1/jobs?{query}")).await.body;
        let ids: Vec<String> = page["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_str().unwrap().to_owned())
            .collect();
        (ids.join(" "), page["looked_at"].clone(), page["next"].clone())
    };
    let nightly = ids("where=reason+%3D+nightly").await;
    assert_eq!(nightly, ("s".to_owned(), json!(51), Value::Null));
    let typed = ids("where=type+%3D+mail+and+id+in+(m0007,+m0009)&limit=1&order=id").await;
    assert_eq!(typed, ("m0007".to_owned(), json!(8), json!("mail/m0007")));
    assert_eq!(
        ids("where=type+%3D+mail+and+id+in+(m0007,+m0009)&order=id&after=mail/m0007").await.0,
        "m0009"
    );
    assert_eq!(ids("type=sms&where=tenant+%3D+default").await.0, "s");
    assert_eq!(ids("type=mail").await.1, Value::Null);
}

#[tokio::test]
async fn mistakes_are_told_with_their_position() {
    let server = TestServer::start().await;
    for (body, reason) in [
        (json!({"action": "cancel", "where": "state = fail"}), "where: column 9: expected a state"),
        (json!({"action": "cancel", "where": "  "}), "where: must not be empty"),
        (json!({"action": "priority", "where": "id = a"}), "priority: is missing"),
        (json!({"action": "priority", "priority": 20, "where": "id = a"}), "priority: must be from -20"),
        (json!({"action": "cancel", "priority": 1, "where": "id = a"}), "priority: belongs to the action"),
        (json!({"action": "pause", "where": "id = a"}), "expected `retry`"),
    ] {
        let refused = server.put("/v1/bulk/x", &body).await;
        assert_eq!(refused.error(), (400, "bad_request"));
        let text = refused.body["reason"].as_str().unwrap();
        assert!(text.contains(reason), "{text}");
    }
    for path in ["/v1/matching?where=colour+%3D+red", "/v1/jobs?where=colour+%3D+red"] {
        let refused = server.get(path).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{}", refused.body);
        assert!(refused.body["reason"].as_str().unwrap().contains("where: column 1: expected id"));
    }
    assert_eq!(server.get("/v1/bulk/x").await.error(), (404, "not_found"));
    assert_eq!(server.delete("/v1/bulk/x").await.error(), (404, "not_found"));
    assert_eq!(server.get(&format!("/v1/bulk/{}", "x".repeat(129))).await.status, 400);
}

#[tokio::test]
async fn the_replication_of_a_document_is_not_cancelled() {
    let server = TestServer::start().await;
    let doc = json!({"source": "http://127.0.0.1:1/a", "target": "http://127.0.0.1:1/b", "continuous": true});
    server.put_ok("/_replicator/doc", &doc).await;
    server.poll("/v1/jobs?type=replication", |page| page["jobs"].as_array().unwrap().len() == 1).await;
    let cancel = json!({"action": "cancel", "where": "type = replication"});
    assert_eq!(server.put("/v1/bulk/op", &cancel).await.status, 201);
    let bulk = done(&server, "op").await;
    let refused = json!([{"reason": "its document must be deleted instead", "jobs": 1}]);
    assert_eq!((&bulk["changed"], &bulk["refused"]), (&json!(0), &refused));
    // Its options have passwords.
    assert_eq!(matched(&server, "options.source.url ~ http").await, 0);
}

/// An operation of an identity that another node has begun.
async fn begin(store: &Store, id: &str, node: &str, by: Option<&str>) {
    let new = &NewOperation {
        id: id.to_owned(),
        action: Action::Cancel,
        condition: "type = mail".to_owned(),
        by: by.map(str::to_owned),
        scopes: vec!["client:acme".to_owned()],
        node: node.to_owned(),
        by_operator: true,
    };
    let keys = &Keyspace::default();
    store
        .transact(|tx| async move { bulk::create(&tx, keys, new, 1_000_000_000_000_000).await })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_node_takes_over_the_operation_of_one_that_is_gone() {
    let cluster = Cluster::start([""]).await;
    let (server, keys) = (cluster.at(0), &Keyspace::default());
    for id in ["a", "b"] {
        let options = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
        let new = &NewJob::new("mail", id, options).with(|spec| spec.tenant = "acme".to_owned());
        cluster.store.transact(|tx| async move { jobs::add(&tx, keys, new, 5).await }).await.unwrap();
    }
    begin(&cluster.store, "op", "turnwise@gone", None).await;
    let bulk = done(server, "op").await;
    assert_eq!((&bulk["state"], &bulk["changed"]), (&json!("done"), &json!(2)), "{bulk}");
}

#[tokio::test]
async fn an_operation_ends_with_its_identity() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    let admin = server.close().await;
    let admin = server.with(&admin);
    // One of a token that was revoked, one of a store that was open then, and one of another issuer's subject.
    for (id, by) in [("token", Some("token:000000000000")), ("open", None), ("jwt", Some("jwt:jan"))] {
        begin(&cluster.store, id, &server.name(), by).await;
    }
    for (id, state, reason) in [
        ("token", "failed", json!("its identity is gone, or has expired")),
        ("open", "failed", json!("its identity is gone, or has expired")),
        ("jwt", "done", Value::Null),
    ] {
        let path = format!("/v1/bulk/{id}");
        let bulk = admin.poll(&path, |bulk| bulk["state"] != "running").await;
        assert_eq!((&bulk["state"], &bulk["reason"]), (&json!(state), &reason), "{bulk}");
    }
    // Each identity has a few at a time, and sees its own.
    let token = admin.token(&["client:acme"]).await;
    let client = server.with(&token);
    assert_eq!(client.get("/v1/bulk").await.body, json!({"bulk": []}));
    assert_eq!(admin.get("/v1/bulk").await.body["bulk"].as_array().unwrap().len(), 3);
    assert_eq!(client.get("/v1/bulk/jwt").await.status, 404);
}
