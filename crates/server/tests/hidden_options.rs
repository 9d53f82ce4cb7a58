//! Members of options that a type hides: only the worker of the job sees them, and no condition finds out what they are.

use axum::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;
use turnwise_testkit::canary;

use crate::common::worker::ExternalWorker;
use crate::common::{As, PATIENCE, TestServer, until};

/// Marked, so that every answer and the log are searched for it ([`TestServer::send`]).
const SECRET: &str = canary::TOKEN;

const SECRETS: [&str; 3] = ["/token", "/smtp/password", "/list/*/key"];

fn options(secret: &str) -> Value {
    json!({ "to": "jan", "token": secret, "smtp": { "host": "h", "password": [secret] },
        "list": [{ "n": 1, "key": secret }, { "key": { "deep": secret } }] })
}

fn shown() -> Value {
    json!({ "to": "jan", "token": "*****", "smtp": { "host": "h", "password": "*****" },
        "list": [{ "n": 1, "key": "*****" }, { "key": "*****" }] })
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// A text that is no JSON: a page, a stream, metrics.
async fn text(caller: &As<'_>, path: &str) -> (u16, String) {
    let request = caller.server.request("GET", path).header("authorization", &caller.authorization);
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), format!("{:?}", answer.headers()));
    let text = answer.text().await.unwrap();
    canary::assert_none(path, &headers);
    canary::assert_none(path, &text);
    (status, text)
}

/// A target of webhooks, and what it has received.
async fn receiver() -> (String, watch::Receiver<Vec<String>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (sender, received) = watch::channel(Vec::new());
    let take = async move |body: Bytes| {
        sender.send_modify(|all| all.push(String::from_utf8_lossy(&body).into_owned()));
    };
    let router = axum::Router::new().fallback(take);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

/// Every route that shows something of jobs.
async fn look(caller: &As<'_>) {
    for path in [
        "/v1/jobs?type=t",
        "/v1/jobs?order=newest",
        "/v1/jobs?type=t&order=id",
        "/v1/jobs?where=options.to+%3D+jan",
        "/v1/jobs?where=options.token+!%3D+x",
        "/v1/matching?where=options.to+%3D+jan&action=cancel",
        "/v1/jobs/t/a",
        "/v1/jobs/t/a/options",
        "/v1/jobs/t/a/result",
        "/v1/jobs/t/a/logs",
        "/v1/jobs/t/a/wait?timeout_ms=0",
        "/v1/jobs/t/a/why",
        "/v1/events?since=oldest&limit=1000",
        "/v1/failures",
        "/v1/queue?type=t",
        "/v1/workers",
        "/v1/webhooks",
        "/v1/schedules",
        "/v1/locks",
        "/v1/history",
        "/v1/bulk",
        "/v1/type_terms",
        "/v1/types/t",
        "/v1/types/t/demand",
        "/_active_tasks",
        "/_scheduler/jobs",
    ] {
        caller.get(path).await;
    }
    for page in [
        "/ui/job?type=t&id=a",
        "/ui/jobs?type=t",
        "/ui/jobs?where=options.to+%3D+jan",
        "/ui/bulk",
        "/ui/filters",
        "/metrics",
    ] {
        text(caller, page).await;
    }
}

/// Who looks at a job of the tenant `acme` and the type `t`.
struct Callers<'a> {
    admin: As<'a>,
    operator: As<'a>,
    client: As<'a>,
    reader: As<'a>,
    /// A client of another tenant.
    other: As<'a>,
    /// A worker of another type.
    stranger: As<'a>,
    worker: As<'a>,
}

impl<'a> Callers<'a> {
    async fn new(server: &'a TestServer) -> Callers<'a> {
        let admin = server.with(&server.close().await);
        let with = async |scope: &str| server.with(&admin.token(&[scope]).await);
        Callers {
            operator: with("operator").await,
            client: with("client:acme").await,
            reader: with("read:acme").await,
            other: with("client:beta").await,
            stranger: with("worker:u").await,
            worker: with("worker:t").await,
            admin,
        }
    }

    /// Every one of them looks at everything.
    async fn look(&self) {
        let Callers { admin, operator, client, reader, other, stranger, worker } = self;
        for caller in [admin, operator, client, reader, other, stranger, worker] {
            look(caller).await;
        }
    }
}

/// Registers a worker with one slot, and returns its path.
async fn register(caller: &As<'_>, job_type: &str) -> String {
    let registered = caller.post(&format!("/v1/workers/{job_type}"), &json!({ "slots": 1 })).await;
    assert_eq!(registered.status, 201, "{}", registered.body);
    format!("/v1/workers/{job_type}/{}", registered.body["worker"].as_str().unwrap())
}

/// The next job of a worker after a claim.
async fn accept(caller: &As<'_>, worker: &str, received: u64) -> Value {
    let wanted = json!({ "received": received, "limit": 1, "wait_ms": 10_000 });
    caller.post(&format!("{worker}/accept"), &wanted).await.body["jobs"][0].clone()
}

#[tokio::test]
async fn those_who_may_change_a_job_see_its_options_without_the_hidden_ones() {
    let server = TestServer::start().await;
    let callers = Callers::new(&server).await;
    let Callers { admin, operator, client, reader, other, stranger, .. } = &callers;
    for caller in [client, reader, stranger] {
        for (method, body) in [("PUT", Some(json!({}))), ("DELETE", None)] {
            let refused = caller.send(method, "/v1/types/t", body.as_ref()).await;
            assert_eq!(refused.error(), (403, "forbidden"), "{method}: {}", refused.body);
        }
    }
    operator.hide("t", &SECRETS).await;
    let add = json!({ "id": "a", "options": options(SECRET), "summary": { "for": "jan" } });
    assert_eq!(client.post("/v1/jobs/t", &add).await.status, 201);
    callers.look().await;
    for caller in [admin, operator, client] {
        assert_eq!(caller.get("/v1/jobs/t/a").await.body["options"], shown());
        assert_eq!(caller.get("/v1/jobs/t/a/options").await.body, shown());
        let (status, page) = text(caller, "/ui/job?type=t&id=a").await;
        assert!(status == 200 && page.contains("*****") && page.contains("jan"), "{page}");
    }
    assert!(reader.get("/v1/jobs/t/a").await.body["options"].is_null());
    assert_eq!(reader.get("/v1/jobs/t/a/options").await.error(), (403, "forbidden"));
    assert!(!text(reader, "/ui/job?type=t&id=a").await.1.contains("*****"));
    assert_eq!(other.get("/v1/jobs/t/a/options").await.error(), (404, "not_found"));
    assert_eq!(stranger.get("/v1/jobs/t/a/options").await.error(), (403, "forbidden"));
    for wrong in [
        json!({ "id": "x", "options": options(SECRET), "delay_ms": SECRET }),
        json!({ "id": "x", "options": options(SECRET), "unknown": 1 }),
        json!({ "id": "x", "options": options(SECRET), "tenant": "beta" }),
        json!({ "id": "a", "options": options(SECRET), "if_exists": SECRET }),
        json!({ "jobs": [{ "type": "t", "options": options(SECRET), "priority": 99 }] }),
        json!([SECRET]),
    ] {
        for path in ["/v1/jobs/t", "/v1/jobs"] {
            let refused = client.post(path, &wrong).await;
            assert!((400..500).contains(&refused.status), "{path}: {}", refused.body);
        }
    }
    let cut = format!("{{\"options\": {}, \"token\": \"{SECRET}", options(SECRET));
    let request = server.request("POST", "/v1/jobs/t").header("authorization", &client.authorization);
    let request = request.header("content-type", "application/json").body(cut);
    assert_eq!(server.send(request).await.status, 400);
    // An operator who states other secrets, or none, shows the options.
    operator.hide("t", &["/list"]).await;
    assert_eq!(operator.put("/v1/types/t", &json!({})).await.status, 200);
    let raw = server.request("GET", "/v1/jobs/t/a/options").header("authorization", &client.authorization);
    assert_eq!(raw.send().await.unwrap().json::<Value>().await.unwrap(), options(SECRET));
}

/// Also after the type hides more while the job runs, and after it is added again with other options.
#[tokio::test]
async fn only_the_worker_of_a_job_sees_its_hidden_options() {
    let server = TestServer::start().await;
    let callers = Callers::new(&server).await;
    let Callers { admin, operator, client, reader, stranger, worker, .. } = &callers;
    operator.hide("t", &SECRETS).await;
    assert_eq!(admin.get("/v1/events?limit=1").await.status, 200);
    let (url, received) = receiver().await;
    let webhook = json!({ "url": url, "secret": "0123456789abcdef" });
    assert_eq!(admin.put("/v1/webhooks/w", &webhook).await.status, 200);
    assert_eq!(
        client.post("/v1/jobs/t", &json!({ "id": "a", "options": options(SECRET) })).await.status,
        201
    );

    let add = json!({ "id": "edited", "options": { "to": "jan" }, "delay_ms": 3_600_000 });
    assert_eq!(client.post("/v1/jobs/t", &add).await.status, 201);
    let edited = json!({ "options": options(SECRET), "summary": { "for": "jan" } });
    let edit = async |body: &Value| client.send("PATCH", "/v1/jobs/t/edited", Some(body)).await;
    let job = edit(&edited).await.body;
    assert_eq!(job["options"], shown(), "{job}");
    assert!(
        job["history"][0]["reason"].as_str().unwrap().starts_with("options, summary; by token:"),
        "{job}"
    );
    for wrong in [
        json!({ "options": options(SECRET), "priority": SECRET }),
        json!({ "options": options(SECRET), "tenant": SECRET }),
        json!({ "options": shown() }),
    ] {
        assert_eq!(edit(&wrong).await.status, 400);
    }
    for path in [
        "/v1/jobs/t/edited",
        "/v1/jobs/t/edited/options",
        "/v1/jobs/t/edited/why",
        "/ui/job?type=t&id=edited",
    ] {
        text(client, path).await;
    }

    let (own, strange) = (register(worker, "t").await, register(stranger, "u").await);
    let none = json!({ "received": 0, "limit": 1, "wait_ms": 0 });
    assert_eq!(stranger.post(&format!("{own}/accept"), &none).await.status, 403);
    assert_eq!(stranger.post(&format!("{strange}/accept"), &none).await.body["jobs"], json!([]));
    let given = accept(worker, &own, 0).await;
    assert_eq!(given["options"], options(SECRET));
    operator.hide("t", &["/"]).await;
    assert_eq!(client.get("/v1/jobs/t/a").await.body["options"], "*****");
    assert_eq!(client.get("/v1/jobs/t/a/options").await.body, "*****");
    let again = json!({ "id": "a", "options": options(canary::PASSWORD), "if_exists": "again" });
    assert_eq!(client.post("/v1/jobs/t", &again).await.status, 200);
    let report = json!({ "claim": given["claim"], "info": 1, "log": [{ "message": "begins" }] });
    assert_eq!(worker.post(&format!("{own}/jobs/a/update"), &report).await.status, 200);
    callers.look().await;
    let finish = json!({ "claim": given["claim"], "result": { "sent": 1 } });
    assert_eq!(worker.post(&format!("{own}/jobs/a/finish"), &finish).await.status, 200);
    let given = accept(worker, &own, given["claim"].as_u64().unwrap()).await;
    assert_eq!(given["options"], options(canary::PASSWORD));
    let fail =
        json!({ "claim": given["claim"], "reason": "no", "retry": false, "class": "E", "trace": "at x" });
    assert_eq!(worker.post(&format!("{own}/jobs/a/fail"), &fail).await.status, 200);
    callers.look().await;
    // Streams of the job end with it.
    for path in ["/v1/jobs/t/a/events", "/v1/jobs/t/a/logs?follow=true"] {
        for caller in [admin, client, reader] {
            let (status, stream) = text(caller, path).await;
            assert!(status == 200 && stream.contains("event: end"), "{path}: {stream}");
        }
    }
    let stream = server.request("GET", "/v1/events?since=oldest");
    let mut stream = stream.header("authorization", &client.authorization).send().await.unwrap();
    let mut events = String::new();
    while !events.contains("\"failed\"") {
        let chunk = tokio::time::timeout(PATIENCE, stream.chunk()).await.unwrap().unwrap().unwrap();
        events.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    canary::assert_none("a stream", &events);
    assert!(events.contains("\"edited\",") && events.contains("options, summary; by token:"), "{events}");
    let all = async || received.borrow().concat();
    let all = until("the webhook has the failure", all, |all| all.contains("\"failed\"")).await;
    canary::assert_none("a webhook", &all);
    canary::assert_log_clean();
}

/// Two jobs that differ in what is hidden, and one that has nothing of it: everything is done to all of them, or to none.
#[tokio::test]
async fn no_condition_tells_what_a_hidden_option_is() {
    let server = TestServer::start().await;
    assert_eq!(
        server.put("/v1/types/t", &json!({ "secrets": ["/token", "/a/*/c", "/o"] })).await.status,
        200
    );
    for (id, options) in [
        ("x", json!({ "to": "jan", "token": "alpha", "a": { "b": { "c": 7 } }, "o": { "p": true } })),
        ("y", json!({ "to": "jan", "token": null, "a": { "b": { "c": "seven" } }, "o": "p" })),
        ("z", json!({ "to": "jan" })),
    ] {
        assert_eq!(server.post("/v1/jobs/t", &json!({ "id": id, "options": options })).await.status, 201);
    }
    let comparisons = [
        "options.token = alpha",
        "options.token != alpha",
        "options.token != beta",
        "options.token = '*****'",
        "options.token != '*****'",
        "options.token < b",
        "options.token >= a",
        "options.token ~ '^a'",
        "options.token !~ '^a'",
        "options.token = null",
        "options.token in (alpha, beta)",
        "options.token in ('*****')",
        "options.a.b.c = 7",
        "options.a.b.c > 6",
        "options.a.b.c != 7",
        "options.a.b.c.d != 7",
        "options.o.p = true",
        "options.o != p",
    ];
    let conditions = comparisons.iter().flat_map(|one| {
        [
            one.to_string(),
            format!("not {one}"),
            format!("not (not {one})"),
            format!("options.to = jan and {one}"),
            format!("{one} or not {one}"),
        ]
    });
    for condition in conditions {
        let query = encoded(&condition);
        for order in ["id", "newest", "oldest"] {
            let listed = server.get(&format!("/v1/jobs?type=t&order={order}&where={query}")).await.body;
            assert_eq!(listed["jobs"], json!([]), "{condition}");
        }
        for action in ["", "&action=cancel", "&action=remove"] {
            let counted = server.get(&format!("/v1/matching?where={query}{action}")).await.body;
            assert_eq!((&counted["matched"], &counted["examples"]), (&json!(0), &json!([])), "{condition}");
        }
        let form = [("id", "f"), ("action", "pause"), ("when", condition.as_str()), ("do", "preview")];
        let body: String = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let request = server.request("POST", "/ui/filters").header("origin", &server.url);
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        let page = request.send().await.unwrap().text().await.unwrap();
        assert!(page.contains("0 waiting and 0 running"), "{condition}: {page}");
    }
    for (n, condition) in comparisons.iter().enumerate() {
        let bulk = json!({ "action": "priority", "priority": 5, "where": format!("not {condition}") });
        assert_eq!(server.put(&format!("/v1/bulk/b{n}"), &bulk).await.status, 201, "{condition}");
        let done = server.poll(&format!("/v1/bulk/b{n}"), |bulk| bulk["state"] != "running").await;
        assert_eq!((&done["state"], &done["matched"]), (&json!("done"), &json!(0)), "{condition}");
        for (not, action) in [("", "reject"), ("not ", "pause")] {
            let filter = json!({ "action": action, "when": format!("{not}{condition}") });
            assert_eq!(server.put(&format!("/v1/filters/{action}{n}"), &filter).await.status, 200);
        }
    }
    // No filter holds one of them back, and what is shown is found.
    let found = server
        .get(&format!("/v1/matching?where={}", encoded("options.to = jan or options.token = alpha")))
        .await
        .body;
    assert_eq!(found["matched"], 3, "{found}");
    let mut worker = ExternalWorker::register(&server, "t", 9).await;
    let mut ids = worker.next_ids(9).await;
    ids.sort_unstable();
    assert_eq!(ids, ["x", "y", "z"]);
    // Once the type hides less, the same conditions are answered: a rejected job has failed.
    assert_eq!(server.put("/v1/types/t", &json!({})).await.status, 200);
    let found = server.get(&format!("/v1/matching?where={}", encoded("options.token = alpha"))).await.body;
    assert_eq!(found["matched"], 1, "{found}");
}

/// Options of the server's own types are shown to no one, so conditions do not test them either.
#[tokio::test]
async fn conditions_do_not_test_the_options_of_commands() {
    let server =
        TestServer::start_with("[command]\nenabled = true\nallow_root = true\nenv = PASSWORD\n").await;
    let options = json!({ "argv": ["true"], "env": { "PASSWORD": SECRET }, "stdin": SECRET });
    let add = json!({ "id": "c", "options": options, "delay_ms": 3_600_000 });
    assert_eq!(server.post("/v1/jobs/command", &add).await.status, 201);
    // A type's terms hide these whatever they are.
    assert_eq!(server.put("/v1/types/command", &json!({ "secrets": [] })).await.status, 200);
    for condition in [
        "options.stdin ~ '^h'",
        "options.stdin != x",
        "not options.env.PASSWORD = x",
        "options.env.PASSWORD ~ h",
    ] {
        let found = server.get(&format!("/v1/matching?where={}", encoded(condition))).await.body;
        assert_eq!(found["matched"], 0, "{condition}: {found}");
        let filter = json!({ "action": "reject", "when": condition });
        assert_eq!(server.put("/v1/filters/f", &filter).await.status, 200);
    }
    assert!(server.get("/v1/jobs/command/c").await.body["options"].is_null());
    assert_eq!(server.get("/v1/jobs/command/c/options").await.error(), (403, "forbidden"));
}

#[tokio::test]
async fn options_of_any_shape_and_size_are_shown_without_their_hidden_members() {
    let server = TestServer::start().await;
    let deepest = "/x".repeat(98);
    let pointers = ["/token", "/list/*/key", "/a~1b/c~0d", "/*/deep", "/0/token", deepest.as_str()];
    assert_eq!(server.put("/v1/types/t", &json!({ "secrets": pointers })).await.status, 200);
    let deep = format!("{}\"{SECRET}\"{}", r#"{"x":"#.repeat(98), "}".repeat(98));
    let deep_shown = format!("{}\"*****\"{}", r#"{"x":"#.repeat(98), "}".repeat(98));
    let secret = |text: &str| text.replace("SECRET", SECRET);
    for (n, (options, expected)) in [
        (
            secret(r#"{"token":"SECRET","n":1.0,"token":["SECRET"]}"#),
            r#"{"token":"*****","n":1.0,"token":"*****"}"#,
        ),
        (secret(r#"{"tok\u0065n":"SECRET"}"#), r#"{"tok\u0065n":"*****"}"#),
        (
            secret(r#"{"a/b":{"c~d":"SECRET","c":1},"q":{"deep":"SECRET"}}"#),
            r#"{"a/b":{"c~d":"*****","c":1},"q":{"deep":"*****"}}"#,
        ),
        (
            secret(r#"[{"token":"SECRET"},{"deep":{"k":"SECRET"}}]"#),
            r#"[{"token":"*****"},{"deep":"*****"}]"#,
        ),
        (r#"{"list":{"k":{"key":5}},"to":"x"}"#.to_owned(), r#"{"list":{"k":{"key":"*****"}},"to":"x"}"#),
        (r#""a text""#.to_owned(), r#""a text""#),
        (deep, deep_shown.as_str()),
    ]
    .into_iter()
    .enumerate()
    {
        let body = format!(r#"{{"id":"{n}","options":{options}}}"#);
        let request =
            server.request("POST", "/v1/jobs/t").header("content-type", "application/json").body(body);
        assert_eq!(server.send(request).await.status, 201, "{n}");
        let raw = server.request("GET", &format!("/v1/jobs/t/{n}/options")).send().await.unwrap();
        assert_eq!(raw.text().await.unwrap().trim_end(), expected);
        let job =
            server.request("GET", &format!("/v1/jobs/t/{n}")).send().await.unwrap().text().await.unwrap();
        assert!(job.contains(expected), "{job}");
    }
    // The largest options: a job's own answer leaves them out, and a list reads none.
    let element = format!(r#"{{"key":"{SECRET}","n":1}}"#);
    let many = (4 << 20) / (element.len() + 1) - 1;
    let options = format!(r#"{{"list":[{}]}}"#, vec![element; many].join(","));
    for n in 0..10 {
        let body = format!(r#"{{"id":"large{n}","options":{options}}}"#);
        let request =
            server.request("POST", "/v1/jobs/t").header("content-type", "application/json").body(body);
        assert_eq!(server.send(request).await.status, 201);
    }
    assert!(server.get("/v1/jobs/t/large1").await.body["options"].is_null());
    let shown = server.get("/v1/jobs/t/large1/options").await.body;
    let list = shown["list"].as_array().unwrap();
    assert!(list.len() == many && list.iter().all(|element| *element == json!({ "key": "*****", "n": 1 })));
    let listed = server.get("/v1/jobs?type=t&limit=100").await.body;
    assert!(listed["jobs"].as_array().unwrap().iter().all(|job| job["options"].is_null()), "{listed}");
    for wrong in ["/a~", "/a~2b", "token", ""] {
        let refused = server.put("/v1/types/t", &json!({ "secrets": [wrong] })).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{wrong}: {}", refused.body);
    }
}

#[tokio::test]
async fn filters_decide_again_when_a_type_hides_other_options() {
    let server = TestServer::start().await;
    let pause = json!({ "action": "pause", "when": "options.to = jan" });
    assert_eq!(server.put("/v1/filters/f", &pause).await.status, 200);
    assert_eq!(
        server.post("/v1/jobs/t", &json!({ "id": "a", "options": { "to": "jan" } })).await.status,
        201
    );
    let mut worker = ExternalWorker::register(&server, "t", 9).await;
    assert_eq!(worker.now_ids().await, Vec::<String>::new());
    server.poll("/v1/jobs/t/a", |job| job["state"] == "paused").await;
    server.hide("t", &["/to"]).await;
    assert_eq!(worker.next_ids(9).await, ["a"]);
}
