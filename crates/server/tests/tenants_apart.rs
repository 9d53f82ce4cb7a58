//! Two tenants on one server: neither learns anything about the other.

use serde_json::{Value, json};

use crate::common::{As, TestServer, until};

/// A part of everything that belongs to the other tenant.
const SECRET: &str = "bravo7f3";
/// The same length, and nothing has it.
const NOTHING: &str = "nothing7";

/// A server with jobs, locks, databases and errors of both tenants, each named after its tenant.
struct World {
    server: TestServer,
    admin: String,
    client: String,
}

impl World {
    async fn new() -> World {
        let server = TestServer::start_with("[command]\nenabled = true\nallow_root = true\n").await;
        let admin = server.close().await;
        let as_admin = server.with(&admin);
        let client = as_admin.token(&["client:acme,acme/*"]).await;
        // From now on events are recorded.
        assert_eq!(as_admin.get("/v1/events?limit=1").await.status, 200);
        let worker = as_admin.post("/v1/workers/t", &json!({"slots": 6, "name": SECRET})).await.body;
        let worker = format!("/v1/workers/t/{}", worker["worker"].as_str().unwrap());
        for tenant in [SECRET, "acme"] {
            fill(&as_admin, tenant, &worker).await;
        }
        World { server, admin, client }
    }

    fn client(&self) -> As<'_> {
        self.server.with(&self.client)
    }
}

async fn ok(caller: &As<'_>, method: &str, path: &str, body: &Value) -> Value {
    let answer = caller.send(method, path, Some(body)).await;
    assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.body);
    answer.body
}

/// Waits until a bulk operation has ended.
async fn until_done(caller: &As<'_>, path: &str) -> Value {
    let look = async || ok(caller, "GET", path, &Value::Null).await;
    until(&format!("{path} has ended"), look, |bulk| bulk["state"] != "running").await
}

async fn fill(admin: &As<'_>, tenant: &str, worker: &str) {
    let add = async |id: &str, more: Value| {
        let mut job = json!({"id": format!("{tenant}-{id}"), "tenant": tenant, "summary": {"for": tenant}, "user": tenant, "tags": ["shared", tenant]});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ok(admin, "POST", "/v1/jobs/t", &job).await;
    };
    let hot = json!({"node": {"exclusive": ["hot", tenant]}});
    add("holds", json!({"locks": hot})).await;
    add("crash", json!({})).await;
    add("fails", json!({})).await;
    let wanted = json!({"received": 0, "limit": 3, "wait_ms": 0});
    // The second tenant's first job finds the lock taken.
    let accepted = ok(admin, "POST", &format!("{worker}/accept"), &wanted).await;
    for job in accepted["jobs"].as_array().unwrap() {
        let (id, claim) = (job["id"].as_str().unwrap(), &job["claim"]);
        let path = format!("{worker}/jobs/{id}");
        if id.ends_with("crash") {
            let body = json!({"claim": claim, "reason": format!("error of {tenant}"), "retry": true});
            ok(admin, "POST", &format!("{path}/fail"), &body).await;
        } else if id.ends_with("fails") {
            let body = json!({"claim": claim, "reason": format!("error of {tenant}")});
            ok(admin, "POST", &format!("{path}/fail"), &body).await;
        } else {
            ok(admin, "POST", &format!("{path}/update"), &json!({"claim": claim, "info": {"at": tenant}}))
                .await;
        }
    }
    add("waits", json!({"locks": hot})).await;
    add("later", json!({"delay_ms": 3_600_000})).await;
    add("after", json!({"after": [{"id": format!("{tenant}-waits")}]})).await;
    add("limited", json!({"reason": [format!("concurrency:1:{tenant}")]})).await;
    let bulk = json!({"action": "run_now", "where": format!("tenant = {tenant} and id = none")});
    ok(admin, "PUT", &format!("/v1/bulk/{tenant}"), &bulk).await;
    let webhook = json!({
        "url": format!("http://127.0.0.1:1/{tenant}"), "secret": "0123456789abcdef", "tenant": tenant, "enabled": false
    });
    ok(admin, "PUT", &format!("/v1/webhooks/{tenant}"), &webhook).await;
    let schedule = json!({"when": {"every_ms": 86_400_000}, "note": tenant, "job": {"type": "t", "tenant": tenant, "tags": [tenant]}});
    ok(admin, "PUT", &format!("/v1/schedules/{tenant}"), &schedule).await;
    ok(admin, "POST", "/v1/groups", &json!({"name": tenant, "tenant": tenant})).await;
    add("grouped", json!({"delay_ms": 3_600_000, "group": tenant})).await;
    ok(admin, "PUT", &format!("/{tenant}/_replicator"), &Value::Null).await;
    let doc = json!({
        "source": format!("http://127.0.0.1:1/{tenant}"), "target": format!("http://127.0.0.1:1/{tenant}-copy"),
        "continuous": true
    });
    ok(admin, "PUT", &format!("/{tenant}/_replicator/{tenant}-doc"), &doc).await;
    ok(admin, "PUT", &format!("/{tenant}/_replicator/_local/{tenant}"), &json!({"x": tenant})).await;
}

/// Every route that reads, with `name` in each place of a foreign name.
fn reads(name: &str) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/v1/me",
        "/v1/jobs",
        "/v1/jobs?type=t",
        "/v1/jobs?state=pending",
        "/v1/jobs?state=failed",
        "/v1/jobs?order=newest",
        "/v1/jobs?tag=shared",
        "/v1/jobs?tag=shared&order=id",
        "/v1/matching?where=tag+%3D+shared",
        "/v1/jobs?where=tag+in+(shared,+other)+and+state+%3D+pending",
        "/v1/jobs?order=oldest&limit=3",
        "/v1/failures",
        "/v1/failures?type=t",
        "/v1/history",
        "/v1/events?since=oldest&limit=1000",
        "/v1/webhooks",
        "/v1/schedules",
        "/v1/schedules?limit=1",
        "/v1/groups",
        "/v1/groups?limit=1",
        "/v1/counts",
        "/v1/counts?by=tenant",
        "/v1/counts?type=t&by=tenant",
        "/v1/tenants",
        "/v1/tenants?order=deficit",
        "/v1/tenants?type=t",
        "/v1/queue",
        "/v1/queue?type=t",
        "/v1/locks",
        "/v1/locks?level=node&name=hot",
        "/v1/indexes",
        "/v1/openapi.json",
        "/v1/matching",
        "/v1/matching?where=type+%3D+t&action=cancel",
        "/v1/jobs?where=age+%3E%3D+0s",
        "/v1/bulk",
        "/",
        "/_up",
        "/_all_dbs",
        "/_active_tasks",
        "/_scheduler/jobs",
        "/_scheduler/docs",
        "/_session",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.push(format!("/v1/jobs?tenant={name}"));
    paths.push(format!("/v1/jobs?tenant={name}&order=id"));
    paths.push(format!("/v1/jobs?state=failed&reason_class=error+of+{name}"));
    paths.push(format!("/v1/jobs?tag={name}"));
    paths.push(format!("/v1/jobs?where=tag+~+{name}"));
    paths.push(format!("/v1/matching?where=tag+%3D+{name}"));
    paths.push(format!("/v1/failures?tenant={name}"));
    paths.push(format!("/v1/locks?level=node&name={name}"));
    paths.push(format!("/v1/jobs?where=tenant+%3D+{name}"));
    paths.push(format!("/v1/matching?where=tenant+%3D+{name}&action=retry"));
    paths.push(format!("/v1/bulk/{name}"));
    paths.push(format!("/v1/webhooks/{name}"));
    paths.push(format!("/v1/schedules?tenant={name}"));
    paths.push(format!("/v1/schedules/{name}"));
    paths.push(format!("/v1/groups?tenant={name}"));
    paths.push(format!("/v1/groups?parent={name}&state=open"));
    paths.push(format!("/v1/groups/{name}/{name}"));
    paths.push(format!("/v1/groups/{name}/{name}/why"));
    paths.push(format!("/v1/jobs?where=group+%3D+{name}"));
    paths.push(format!("/v1/schedules/{name}/preview"));
    for id in ["holds", "crash", "fails", "waits", "later", "after", "limited"] {
        let job = format!("/v1/jobs/t/{name}-{id}");
        paths.extend([
            job.clone(),
            format!("{job}/why"),
            format!("{job}/wait?timeout_ms=0"),
            format!("{job}/events"),
        ]);
    }
    let db = format!("/{name}/_replicator");
    for part in [
        "",
        "/_all_docs",
        "/_all_docs?include_docs=true",
        "/_changes",
        "/_security",
        "/_local/x",
        "/_design/x",
        &format!("/{name}-doc"),
        &format!("/{name}-doc?open_revs=all"),
        &format!("/_local/{name}"),
        "/a/file",
    ] {
        paths.push(format!("{db}{part}"));
    }
    paths.extend([
        format!("/_scheduler/docs{db}"),
        format!("/_scheduler/docs{db}/{name}-doc"),
        format!("/v1/documents/{name}%2F_replicator/{name}-doc/why"),
    ]);
    paths
}

#[tokio::test]
async fn no_read_tells_about_another_tenant() {
    let world = World::new().await;
    let client = world.client();
    let mut own = 0;
    for (foreign, unknown) in reads(SECRET).into_iter().zip(reads(NOTHING)) {
        let (answer, nothing) = (client.get(&foreign).await, client.get(&unknown).await);
        // What a request names may be repeated: the same as for a name that nothing has.
        let repeated = nothing.body.to_string().replace(NOTHING, SECRET);
        if foreign.contains(SECRET) {
            assert_eq!((answer.status, answer.body.to_string()), (nothing.status, repeated), "{foreign}");
        } else {
            assert!(!answer.body.to_string().contains(SECRET), "{foreign}: {}", answer.body);
            own += usize::from(answer.body.to_string().contains("acme"));
        }
    }
    assert!(own > 8, "it sees its own jobs in {own} answers");
    // The ids of replications of the other tenant.
    let admin = world.server.with(&world.admin);
    let jobs = admin.get("/_scheduler/jobs").await.body;
    let foreign =
        jobs["jobs"].as_array().unwrap().iter().find(|job| job.to_string().contains(SECRET)).unwrap();
    let id = foreign["id"].as_str().unwrap().replace('+', "%2B");
    for path in [
        format!("/_scheduler/jobs/{id}"),
        format!("/v1/jobs/replication/{id}"),
        format!("/v1/jobs/replication/{id}/why"),
    ] {
        let answer = client.get(&path).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
        assert!(!answer.body.to_string().contains(SECRET), "{path}: {}", answer.body);
    }
    assert_eq!(client.get("/_scheduler/jobs").await.body["total_rows"], 1, "counts do not tell");
    assert_eq!(client.get("/_scheduler/docs").await.body["total_rows"], 1);
}

#[tokio::test]
async fn why_a_job_waits_does_not_say_who_else_is_there() {
    let world = World::new().await;
    let client = world.client();
    for id in ["holds", "crash", "fails", "waits", "later", "after", "limited"] {
        let why = client.get(&format!("/v1/jobs/t/acme-{id}/why")).await;
        assert_eq!(why.status, 200, "{}", why.body);
        let text = why.body.to_string();
        assert!(!text.contains(SECRET), "{id}: {text}");
        assert!(why.body.get("before").is_none() && why.body.get("capacity").is_none(), "{text}");
        let place = &why.body["place"];
        assert_eq!(place["overall"], place["in_tenant"], "{text}");
    }
    let why = client.get("/v1/jobs/t/acme-waits/why").await.body;
    assert!(why["sentence"].as_str().unwrap().contains("another tenant's job holds it"), "{why}");
    let by = &why["locks"]["by"][0];
    assert_eq!((by.get("id"), by.get("tenant"), &by["lock"]["level"]), (None, None, &json!("node")), "{why}");
    // An operator sees who it is.
    let admin = world.server.with(&world.admin);
    let why = admin.get("/v1/jobs/t/acme-waits/why").await.body;
    assert_eq!(why["locks"]["by"][0]["tenant"], SECRET, "{why}");
}

#[tokio::test]
async fn nothing_of_another_tenant_can_be_changed() {
    let world = World::new().await;
    let (client, admin) = (world.client(), world.server.with(&world.admin));
    let everything = async || {
        let mut all = Vec::new();
        for path in ["/v1/jobs?limit=1000", &format!("/{SECRET}/_replicator/_all_docs?include_docs=true")] {
            all.push(admin.get(path).await.body);
        }
        // Running jobs report, and crashed ones are retried: neither is a change by the client.
        for job in all[0]["jobs"].as_array_mut().unwrap() {
            job.as_object_mut()
                .unwrap()
                .retain(|name, _| ["id", "type", "tenant", "priority", "summary"].contains(&name.as_str()));
        }
        all
    };
    let before = everything().await;
    for id in ["holds", "crash", "fails", "waits", "later", "after", "limited"] {
        let job = format!("/v1/jobs/t/{SECRET}-{id}");
        for (method, path, body) in [
            ("POST", format!("{job}/cancel"), json!({})),
            ("POST", format!("{job}/retry"), json!({})),
            ("PUT", format!("{job}/priority"), json!({"priority": -20})),
            ("PATCH", job.clone(), json!({"priority": -20})),
            ("POST", format!("{job}/hold"), json!({})),
            ("POST", format!("{job}/release"), json!({})),
            ("DELETE", job.clone(), json!({})),
        ] {
            let answer = client.send(method, &path, Some(&body)).await;
            assert_eq!(answer.error(), (404, "not_found"), "{method} {path}: {}", answer.body);
        }
        // Its id is taken, and nothing more is said.
        for if_exists in ["keep", "again"] {
            let add = json!({"id": format!("{SECRET}-{id}"), "if_exists": if_exists, "tenant": "acme"});
            let answer = client.post("/v1/jobs/t", &add).await;
            assert_eq!(answer.error(), (409, "conflict"), "{id}: {}", answer.body);
        }
        // A job that waited for it would learn when it ends.
        let after = |id: &str| json!({"tenant": "acme", "after": [{"id": id}]});
        let foreign = client.post("/v1/jobs/t", &after(&format!("{SECRET}-{id}"))).await;
        let unknown = client.post("/v1/jobs/t", &after(&format!("{NOTHING}-{id}"))).await;
        assert_eq!(foreign.status, 400, "{}", foreign.body);
        assert_eq!(foreign.body.to_string(), unknown.body.to_string().replace(NOTHING, SECRET));
    }
    for tenant in [SECRET, "default", "other"] {
        let answer = client.post("/v1/jobs/t", &json!({"tenant": tenant})).await;
        assert_eq!(answer.error(), (403, "forbidden"), "{}", answer.body);
    }
    assert_eq!(
        client.post("/v1/jobs/t", &json!({})).await.error(),
        (403, "forbidden"),
        "it has several tenants"
    );
    for (n, action) in ["cancel", "remove", "retry", "run_now", "hold", "release"].into_iter().enumerate() {
        let path = format!("/v1/bulk/own-{n}");
        let bulk = json!({"action": action, "where": format!("tenant = {SECRET} or id ~ {SECRET}")});
        ok(&client, "PUT", &path, &bulk).await;
        let done = until_done(&client, &path).await;
        assert_eq!((&done["state"], &done["matched"]), (&json!("done"), &json!(0)), "{done}");
        let own = client.get("/v1/matching").await.body;
        assert_eq!(done["looked_at"], own["looked_at"], "other jobs do not count");
    }
    assert_eq!(client.delete(&format!("/v1/bulk/{SECRET}")).await.status, 404);
    let webhook = json!({"url": "http://127.0.0.1:1/", "secret": "0123456789abcdef", "tenant": "acme"});
    let path = format!("/v1/webhooks/{SECRET}");
    assert_eq!(client.put(&path, &webhook).await.error(), (409, "conflict"));
    assert_eq!(client.delete(&path).await.error(), (404, "not_found"));
    let path = format!("/v1/schedules/{SECRET}");
    let schedule = json!({"when": {"every_ms": 86_400_000}, "job": {"type": "t", "tenant": "acme"}});
    assert_eq!(client.put(&path, &schedule).await.error(), (409, "conflict"));
    assert_eq!(client.delete(&path).await.error(), (404, "not_found"));
    for what in ["pause", "resume", "fire", "backfill"] {
        let body = if what == "backfill" { json!({"from_us": 0, "to_us": 1}) } else { json!({}) };
        let answer = client.post(&format!("{path}/{what}"), &body).await;
        assert_eq!(answer.error(), (404, "not_found"), "{what}: {}", answer.body);
    }
    // Its id is taken, and nothing more is said.
    let taken =
        client.put(&format!("/v1/bulk/{SECRET}"), &json!({"action": "cancel", "where": "id = a"})).await;
    assert_eq!(taken.error(), (409, "conflict"), "{}", taken.body);
    let db = format!("/{SECRET}/_replicator");
    for (method, path, body) in [
        ("PUT", format!("{db}/new"), json!({"source": "http://s/a", "target": "http://t/b"})),
        ("PUT", format!("{db}/{SECRET}-doc"), json!({"source": "http://s/a", "target": "http://t/b"})),
        ("DELETE", format!("{db}/{SECRET}-doc?rev=1-a"), json!({})),
        ("POST", format!("{db}/_bulk_docs"), json!({"docs": []})),
        ("POST", format!("{db}/_all_docs"), json!({"keys": []})),
        ("POST", format!("{db}/_bulk_get"), json!({"docs": []})),
        ("POST", format!("{db}/_revs_diff"), json!({})),
        ("POST", format!("{db}/_changes"), json!({})),
        ("PUT", format!("{db}/_local/x"), json!({})),
        ("PUT", format!("{db}/_design/x"), json!({})),
    ] {
        let foreign = client.send(method, &path, Some(&body)).await;
        let unknown = client.send(method, &path.replace(SECRET, NOTHING), Some(&body)).await;
        assert_eq!(foreign.status, 404, "{method} {path}: {}", foreign.body);
        assert_eq!(foreign.body, unknown.body, "{method} {path}");
    }
    for method in ["PUT", "POST", "DELETE"] {
        let answer = client.send(method, &db, Some(&json!({}))).await;
        assert_eq!(answer.error(), (403, "forbidden"), "{}", answer.body);
        let unknown = client.send(method, &db.replace(SECRET, NOTHING), Some(&json!({}))).await;
        assert_eq!(unknown.body.to_string().replace(NOTHING, SECRET), answer.body.to_string());
    }
    assert_eq!(everything().await, before);
    // Programs need a scope of their own.
    let command = json!({"tenant": "acme", "options": {"argv": ["true"]}});
    assert_eq!(client.post("/v1/jobs/command", &command).await.error(), (403, "forbidden"));
    let with_command = admin.token(&["client:acme", "command"]).await;
    assert_eq!(world.server.with(&with_command).post("/v1/jobs/command", &command).await.status, 201);
}

#[tokio::test]
async fn a_reader_changes_nothing() {
    let world = World::new().await;
    let admin = world.server.with(&world.admin);
    // It may change another tenant's jobs, so that only the tenant decides.
    let reader = admin.token(&["read:acme,acme/*", "client:mine"]).await;
    let reader = world.server.with(&reader);
    assert_eq!(reader.get("/v1/jobs/t/acme-waits").await.status, 200);
    for (method, path, body) in [
        ("POST", "/v1/jobs/t/acme-waits/cancel", json!({})),
        ("POST", "/v1/jobs/t/acme-waits/retry", json!({})),
        ("PUT", "/v1/jobs/t/acme-waits/priority", json!({"priority": 1})),
        ("PATCH", "/v1/jobs/t/acme-waits", json!({"priority": 1})),
        ("POST", "/v1/jobs/t/acme-waits/hold", json!({})),
        ("POST", "/v1/jobs/t/acme-waits/release", json!({})),
        ("DELETE", "/v1/jobs/t/acme-waits", json!({})),
        ("POST", "/v1/jobs/t", json!({"id": "acme-waits", "if_exists": "again"})),
        ("PUT", "/acme/_replicator/x", json!({"source": "http://s/a", "target": "http://t/b"})),
        ("DELETE", "/acme/_replicator", json!({})),
    ] {
        let answer = reader.send(method, path, Some(&body)).await;
        assert_eq!(answer.error(), (403, "forbidden"), "{method} {path}: {}", answer.body);
    }
    assert_eq!(reader.get("/acme/_replicator/_all_docs").await.body["total_rows"], 1);
    let bulk = json!({"action": "cancel", "where": "tenant = acme"});
    ok(&reader, "PUT", "/v1/bulk/r", &bulk).await;
    let done = until_done(&reader, "/v1/bulk/r").await;
    assert_eq!(done["changed"], 0, "{done}");
    assert_eq!(done["refused"][0]["reason"], "this identity may not change its tenant's jobs");
    assert_eq!(done["refused"].as_array().unwrap().len(), 1, "{done}");
    // A condition on options would tell what they are.
    let hidden = json!({"id": "hidden", "tenant": "acme", "options": {"to": "x"}});
    ok(&admin, "POST", "/v1/jobs/t", &hidden).await;
    for (caller, matched) in [(&reader, 0), (&admin, 1)] {
        assert_eq!(caller.get("/v1/matching?where=options.to+%3D+x").await.body["matched"], matched);
        let listed = caller.get("/v1/jobs?where=options.to+%3D+x").await.body;
        assert_eq!(listed["jobs"].as_array().unwrap().len(), matched);
    }
    // Without naming a tenant, its jobs are those of the one that it may change.
    assert_eq!(reader.post("/v1/jobs/t", &json!({"id": "m"})).await.status, 201);
    assert_eq!(reader.get("/v1/jobs/t/m").await.body["tenant"], "mine");
}

#[tokio::test]
async fn replications_on_request_belong_to_the_tenant_of_the_sender() {
    let world = World::new().await;
    let admin = world.server.with(&world.admin);
    let (one, other) = (admin.token(&["client:one"]).await, admin.token(&["client:two"]).await);
    let (one, other) = (world.server.with(&one), world.server.with(&other));
    let request =
        json!({"source": "http://127.0.0.1:1/a", "target": "http://127.0.0.1:1/b", "continuous": true});
    let started = one.post("/_replicate", &request).await;
    assert_eq!(started.status, 202, "{}", started.body);
    let id = started.body["_local_id"].as_str().unwrap();
    let path = format!("/v1/jobs/replication/{}", id.replace('+', "%2B"));
    assert_eq!(one.get(&path).await.body["tenant"], "one");
    assert_eq!(other.get(&path).await.status, 404);
    // The same replication of another tenant is not joined, and not stopped.
    let same = other.post("/_replicate", &request).await;
    assert_eq!(same.error(), (409, "conflict"), "{}", same.body);
    let cancel = other.post("/_replicate", &json!({"cancel": true, "replication_id": id})).await;
    assert_eq!(cancel.error(), (404, "not_found"), "{}", cancel.body);
    // Who may read it may join it, and not change it.
    let reader = admin.token(&["read:one", "client:two"]).await;
    let reader = world.server.with(&reader);
    assert_eq!(reader.post("/_replicate", &request).await.status, 202);
    for options in [json!({"worker_processes": 1}), json!({"http_connections": 3})] {
        let mut changed = request.clone();
        changed.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let refused = reader.post("/_replicate", &changed).await;
        assert_eq!(refused.error(), (409, "conflict"), "{}", refused.body);
    }
    assert_eq!(one.get(&path).await.body["tenant"], "one");
    // A name in the request is no proof of anything.
    let mut posing = request.clone();
    posing["source"] = json!("http://127.0.0.1:1/c");
    posing["user_ctx"] = json!({"name": "one", "roles": []});
    let posed = other.post("/_replicate", &posing).await;
    let path =
        format!("/v1/jobs/replication/{}", posed.body["_local_id"].as_str().unwrap().replace('+', "%2B"));
    assert_eq!(other.get(&path).await.body["tenant"], "two");
    assert_eq!(one.post("/_replicate", &json!({"cancel": true, "replication_id": id})).await.status, 200);
}

#[tokio::test]
async fn a_client_gains_nothing_by_inventing_names() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let (greedy, fair) = (admin.token(&["client:greedy"]).await, admin.token(&["client:fair"]).await);
    let (greedy, fair) = (server.with(&greedy), server.with(&fair));
    for n in 0..20 {
        let job = json!({"tenant": format!("greedy-{n}")});
        assert_eq!(greedy.post("/v1/jobs/t", &job).await.error(), (403, "forbidden"));
        // The name of a user is no tenant.
        for _ in 0..5 {
            assert_eq!(greedy.post("/v1/jobs/t", &json!({"user": format!("greedy-{n}")})).await.status, 201);
        }
    }
    for _ in 0..100 {
        assert_eq!(fair.post("/v1/jobs/t", &json!({})).await.status, 201);
    }
    let worker = admin.post("/v1/workers/t", &json!({"slots": 100})).await.body;
    let path = format!("/v1/workers/t/{}", worker["worker"].as_str().unwrap());
    // All slots are free at first, so that both tenants get as many of them.
    let (mut received, mut of_greedy, mut all) = (json!(0), 0, 0);
    while all < 100 {
        let wanted = json!({"received": received, "limit": 50, "wait_ms": 10_000});
        let accepted = admin.post(&format!("{path}/accept"), &wanted).await.body;
        for job in accepted["jobs"].as_array().unwrap() {
            all += 1;
            of_greedy += usize::from(job["tenant"] == "greedy");
            received = job["claim"].clone();
        }
    }
    // Twenty tenants beside one would have had 95.
    assert!((48..=52).contains(&of_greedy), "{of_greedy} of 100 slots");
}

#[tokio::test]
async fn a_position_in_a_list_does_not_name_what_is_there() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["client:acme"]).await;
    let client = server.with(&token);
    // More jobs of another tenant than a request reads, between two own ones.
    for (id, tenant) in [("a", "acme"), ("z", "acme")] {
        ok(&admin, "POST", "/v1/jobs/t", &json!({"id": id, "tenant": tenant})).await;
    }
    for batch in 0..3 {
        let jobs: Vec<Value> = (0..1_000)
            .map(|n| json!({"type": "t", "id": format!("{SECRET}-{batch}-{n}"), "tenant": SECRET}))
            .collect();
        ok(&admin, "POST", "/v1/jobs", &json!({"jobs": jobs})).await;
    }
    // The length of a position would tell that of a name.
    let mut lengths = std::collections::BTreeSet::new();
    for (path, method) in [
        ("/v1/jobs?limit=1000", "GET"),
        ("/v1/jobs?limit=1", "GET"),
        ("/v1/jobs?limit=1&order=oldest", "GET"),
    ] {
        let (mut found, mut after, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let answer = client.send(method, &format!("{path}{after}"), Some(&json!({}))).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let text = answer.body.to_string();
            assert!(!text.contains(SECRET), "{text}");
            pages += 1;
            let jobs = answer.body["jobs"].as_array().cloned().unwrap_or_default();
            found.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            match answer.body["next"].as_str() {
                Some(next) => {
                    lengths.insert(next.len());
                    after = format!("&after={}", next.replace('/', "%2F"));
                }
                None => break,
            }
        }
        assert!(pages > 1, "{path}");
        assert!(method == "POST" || found == ["a", "z"], "{path}: {found:?}");
    }
    assert_eq!(lengths.len(), 1, "{lengths:?}");
    // A position that the client has made up would show where other jobs are.
    let made_up = client.get(&format!("/v1/jobs?after=t%2F{SECRET}")).await;
    assert_eq!(made_up.error(), (400, "bad_request"), "{}", made_up.body);
}
