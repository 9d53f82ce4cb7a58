//! `/v1/webhooks`: events that are sent to a target with real sockets.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use ring::hmac;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::common::{As, Cluster, On, PATIENCE, TestServer, until};

/// Marked, so that every answer and the log are searched for it.
const SECRET: &str = "hunter2-signs-the-deliveries";
/// Retries follow at once.
const FAST: &str = "[jobs]\nbackoff_base_ms = 10\n";

/// A delivery that arrived.
#[derive(Debug, Clone)]
struct Received {
    headers: HeaderMap,
    body: Bytes,
}

impl Received {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
    }

    /// `id event` of each event.
    fn steps(&self) -> Vec<String> {
        let body = self.json();
        let events = body["events"].as_array().unwrap().iter();
        events.map(|event| ["id", "event"].map(|name| event[name].as_str().unwrap()).join(" ")).collect()
    }

    fn assert_signed(&self) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        let signed = [self.header("x-turnwise-timestamp").as_bytes(), b".", &self.body[..]].concat();
        let mac = hmac::sign(&key, &signed);
        let hex: String = mac.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(self.header("x-turnwise-signature"), format!("sha256={hex}"));
        assert_eq!(self.header("x-turnwise-delivery"), self.json()["delivery"].as_str().unwrap());
    }
}

/// A target that records what it receives.
struct Receiver {
    port: u16,
    received: watch::Sender<Vec<Received>>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
}

type Answer = (u16, String);

impl Receiver {
    async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (received, answers) = (watch::Sender::new(Vec::new()), Arc::<Mutex<VecDeque<Answer>>>::default());
        let state = (received.clone(), answers.clone());
        let router = Router::new().fallback(take).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Receiver { port, received, answers }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hooks", self.port)
    }

    /// A URL with a secret, which every answer is searched for.
    fn secret_url(&self) -> String {
        format!("{}?key=hunter2", self.url())
    }

    /// The next answers, before 200 to all others.
    fn answers(&self, answers: &[(u16, &str)]) {
        let answers = answers.iter().map(|(status, body)| (*status, (*body).to_owned()));
        self.answers.lock().unwrap().extend(answers);
    }

    /// Waits until what has arrived is good.
    async fn until(&self, good: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let mut received = self.received.subscribe();
        let reached = tokio::time::timeout(PATIENCE, received.wait_for(|received| good(received))).await;
        match reached {
            Ok(received) => received.unwrap().clone(),
            Err(_) => panic!("only this has arrived: {:?}", self.steps()),
        }
    }

    /// All events that have arrived, without repeated deliveries.
    fn steps(&self) -> Vec<String> {
        steps(&self.received.borrow())
    }

    /// Waits for these events in this order.
    async fn until_steps(&self, expected: &[String]) {
        self.until(|received| steps(received).len() >= expected.len()).await;
        assert_eq!(self.steps(), expected);
    }
}

fn steps(received: &[Received]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let once = received.iter().filter(|one| seen.insert(one.header("x-turnwise-delivery").to_owned()));
    once.flat_map(Received::steps).collect()
}

type Shared = (watch::Sender<Vec<Received>>, Arc<Mutex<VecDeque<Answer>>>);

async fn take(State((received, answers)): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let (status, text) = answers.lock().unwrap().pop_front().unwrap_or((200, String::new()));
    let text = text.replace("SECRET", SECRET);
    received.send_modify(|received| received.push(Received { headers, body }));
    (StatusCode::from_u16(status).unwrap(), [(header::LOCATION, "/elsewhere")], text).into_response()
}

async fn put(caller: &As<'_>, id: &str, receiver: &Receiver, more: Value) -> Value {
    let mut webhook = json!({"url": receiver.url(), "secret": SECRET});
    webhook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let put = caller.put(&format!("/v1/webhooks/{id}"), &webhook).await;
    assert_eq!(put.status, 200, "{}", put.body);
    put.body
}

/// The webhook, once it is as wanted.
async fn webhook_is(caller: &As<'_>, id: &str, good: impl Fn(&Value) -> bool) -> Value {
    let look = async || {
        let webhook = caller.get(&format!("/v1/webhooks/{id}")).await;
        assert_eq!(webhook.status, 200, "{}", webhook.body);
        webhook.body
    };
    until(&format!("the webhook {id} is as wanted"), look, good).await
}

async fn add(caller: &As<'_>, job_type: &str, id: &str, tenant: &str) {
    let job = json!({"id": id, "tenant": tenant});
    let added = caller.post(&format!("/v1/jobs/{job_type}"), &job).await;
    assert_eq!(added.status, 201, "{}", added.body);
}

fn added<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    ids.into_iter().map(|id| format!("{id} added")).collect()
}

#[tokio::test]
async fn events_are_signed_and_in_order_and_those_of_deliveries_are_not_sent() {
    let (server, receiver) = (TestServer::start().await, Receiver::start().await);
    let caller = server.nobody();
    let shown = put(&caller, "all", &receiver, json!({})).await;
    assert_eq!((&shown["enabled"], &shown["job_tenant"]), (&json!(true), &json!("_operators")), "{shown}");
    let mails = Receiver::start().await;
    let filter = json!({"types": ["mail"], "events": ["added"]});
    put(&caller, "mails", &mails, filter).await;
    add(&caller, "mail", "a", "acme").await;
    add(&caller, "other", "b", "acme").await;
    caller.post("/v1/jobs/mail/a/cancel", &json!({})).await;
    add(&caller, "mail", "c", "acme").await;
    let all = ["a added", "b added", "a cancelled", "c added"].map(str::to_owned);
    receiver.until_steps(&all).await;
    mails.until_steps(&added(["a", "c"])).await;
    for received in receiver.received.borrow().iter().chain(mails.received.borrow().iter()) {
        received.assert_signed();
        assert_eq!(received.header("content-type"), "application/json");
    }
    let first = receiver.received.borrow()[0].json();
    assert_eq!(first["webhook"], "all");
    assert_eq!(first["events"][0]["tenant"], "acme", "{first}");
    let shown = webhook_is(&caller, "all", |webhook| webhook["behind"]["events"] == 0).await;
    assert_eq!((&shown["delivered"], &shown["gaps"]), (&json!(4), &json!(0)), "{shown}");
    assert!(shown["last_success_us"].is_i64() && shown.get("last_error").is_none(), "{shown}");
    // The job is one like others, and it is the only one of the webhook.
    let job = server.poll("/v1/jobs/webhook/all", |job| job["state"] == "completed").await;
    assert_eq!(job["summary"], json!({"url": format!("http://127.0.0.1:{}", receiver.port)}), "{job}");
    // What its deliveries did is known to readers of events, and was not sent.
    let page = caller.get("/v1/events?since=oldest&type=webhook&limit=1000").await.body;
    assert!(page["events"].as_array().unwrap().len() >= 3, "{page}");
    assert_eq!(receiver.steps(), all);
    let listed = caller.get("/v1/webhooks").await.body;
    let ids: Vec<_> = listed["webhooks"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, ["all", "mails"]);
    // Nothing comes after the end.
    assert_eq!(caller.delete("/v1/webhooks/mails").await.body, json!({"removed": true}));
    assert_eq!(caller.delete("/v1/webhooks/mails").await.error(), (404, "not_found"));
    add(&caller, "mail", "d", "acme").await;
    receiver.until(|received| steps(received).contains(&"d added".to_owned())).await;
    assert_eq!(mails.steps(), added(["a", "c"]));
    assert_eq!(caller.get("/v1/jobs/webhook/mails").await.status, 404);
}

#[tokio::test]
async fn a_delivery_that_failed_is_sent_again_and_nothing_of_the_secret_is_told() {
    let (server, receiver) = (TestServer::start_with(FAST).await, Receiver::start().await);
    let caller = server.nobody();
    receiver.answers(&[(500, "SECRET is wrong for /hooks?key=hunter2"), (302, ""), (503, "")]);
    // Its URL has a secret as well, which only GET tells. So it is not asked for.
    let webhook = json!({"url": receiver.secret_url(), "secret": SECRET});
    let request = server.request("PUT", "/v1/webhooks/w").header("content-type", "application/json");
    assert_eq!(request.body(webhook.to_string()).send().await.unwrap().status(), 200);
    add(&caller, "t", "a", "acme").await;
    receiver.until(|received| !received.is_empty()).await;
    // The attempts that follow are the same delivery, although there is more by now.
    add(&caller, "t", "b", "acme").await;
    receiver.until_steps(&added(["a", "b"])).await;
    let all = receiver.received.borrow().clone();
    let names: Vec<&str> = all.iter().map(|one| one.header("x-turnwise-delivery")).collect();
    assert!(names[..4].iter().all(|name| *name == names[0]), "{names:?}");
    assert!(all[..4].iter().all(|one| one.body == all[0].body));
    all.iter().for_each(Received::assert_signed);
    // The history of the job tells what went wrong; each answer is searched for the secret.
    let job = server.poll("/v1/jobs/webhook/w", |job| job["state"] == "completed").await;
    let history = job["history"].to_string();
    for expected in ["500 Internal Server Error", "302 Found", "redirects are not followed", "503"] {
        assert!(history.contains(expected), "{expected}: {history}");
    }
    // Nor is it in the store's options of the job, or in what its events tell.
    caller.get("/v1/events?since=oldest&limit=1000").await;
    caller.get("/v1/jobs?type=webhook").await;
    caller.get("/_active_tasks").await;
}

#[tokio::test]
async fn events_that_follow_one_another_soon_need_one_run() {
    let (server, receiver) = (TestServer::start().await, Receiver::start().await);
    let caller = server.nobody();
    put(&caller, "w", &receiver, json!({"events": ["added"]})).await;
    let ids: Vec<String> = (0..5).map(|n| format!("a{n}")).collect();
    for (n, id) in ids.iter().enumerate() {
        add(&caller, "t", id, "acme").await;
        receiver.until_steps(&added(ids[..=n].iter().map(String::as_str))).await;
    }
    server.poll("/v1/jobs/webhook/w", |job| job["state"] == "completed").await;
    let page = caller.get("/v1/events?since=oldest&type=webhook&limit=1000").await.body;
    let added = page["events"].as_array().unwrap().iter().filter(|event| event["event"] == "added").count();
    // The first one may be for the webhook itself.
    assert!((1..=2).contains(&added), "{page}");
}

#[tokio::test]
async fn a_delivery_that_failed_is_sent_again_although_its_job_was_cancelled() {
    let slow = "[jobs]\nbackoff_base_ms = 3600000\n";
    let (server, receiver) = (TestServer::start_with(slow).await, Receiver::start().await);
    receiver.answers(&[(500, "")]);
    put(&server.nobody(), "w", &receiver, json!({"events": ["added"]})).await;
    add(&server.nobody(), "t", "a", "acme").await;
    server.poll("/v1/jobs/webhook/w", |job| job["state"] == "crashing").await;
    assert_eq!(server.post("/v1/jobs/webhook/w/cancel", &json!({})).await.status, 200);
    assert_eq!(server.get("/v1/jobs/webhook/w").await.body["state"], "cancelled");
    // Nothing else happens that the webhook wants.
    receiver.until(|received| received.len() == 2).await;
    webhook_is(&server.nobody(), "w", |webhook| webhook["behind"]["events"] == 0).await;
}

/// A target that accepts connections and never answers.
async fn silent() -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let hold = async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            held.push(connection);
        }
    };
    (url, tokio::spawn(hold))
}

#[tokio::test]
async fn silent_targets_delay_no_other_webhook() {
    let rules = format!("{FAST}[egress]\nallow = 127.0.0.1/32\n");
    let (server, receiver) = (TestServer::start_with(&rules).await, Receiver::start().await);
    let admin = server.close().await;
    let caller = server.with(&admin);
    let mut tokens = Vec::new();
    for n in 0..5 {
        tokens.push(caller.token(&[&format!("client:t{n}")]).await);
    }
    // As many as a tenant may have, of several tenants, each at a host of its own or at the same one.
    let (same, _holds) = silent().await;
    let mut silent_hosts = Vec::new();
    for n in 0..100 {
        let url = match n % 2 {
            0 => same.clone(),
            _ => {
                silent_hosts.push(silent().await);
                silent_hosts.last().unwrap().0.clone()
            }
        };
        let webhook = json!({"url": url, "secret": SECRET, "types": ["t"]});
        let tenant = server.with(&tokens[n % 5]);
        assert_eq!(tenant.put(&format!("/v1/webhooks/s{n}"), &webhook).await.status, 200);
    }
    // One of a tenant of its own, and one of a tenant with twenty silent ones but for one.
    put(&caller, "well", &receiver, json!({"types": ["t"]})).await;
    assert_eq!(caller.delete("/v1/webhooks/s0").await.status, 200);
    let own = Receiver::start().await;
    put(&server.with(&tokens[0]), "own", &own, json!({"types": ["t"]})).await;
    for tenant in ["t0", "t1", "t2", "t3", "t4"] {
        add(&caller, "t", &format!("first-{tenant}"), tenant).await;
    }
    // All of them are under way, and no one has answered.
    let running = |found: &Value| found["counts"][0]["jobs"]["running"].as_u64().unwrap_or(0) >= 99;
    caller.poll("/v1/counts?type=webhook", running).await;
    let begun = std::time::Instant::now();
    for n in 0..5 {
        add(&caller, "t", &n.to_string(), "t0").await;
    }
    let of_others = ["first-t1", "first-t2", "first-t3", "first-t4"];
    let own_events = ["0", "1", "2", "3", "4"];
    receiver.until_steps(&added(["first-t0"].into_iter().chain(of_others).chain(own_events))).await;
    own.until_steps(&added(["first-t0"].into_iter().chain(own_events))).await;
    // Before the first of the silent ones has timed out.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_waiting_delivery_that_is_cancelled_or_removed_is_made_nevertheless() {
    let (server, receiver) = (TestServer::start_with(FAST).await, Receiver::start().await);
    let caller = server.nobody();
    // Filters are for the jobs of clients. A drain does not keep a delivery, and none is rejected.
    let drain = json!({"action": "pause", "when": ""});
    assert_eq!(caller.put("/v1/filters/drain", &drain).await.status, 200);
    let reject = json!({"action": "reject", "when": "type = webhook", "priority": -1});
    assert_eq!(caller.put("/v1/filters/none", &reject).await.status, 200);
    put(&caller, "w", &receiver, json!({"events": ["added"]})).await;
    add(&caller, "t", "a", "acme").await;
    receiver.until_steps(&added(["a"])).await;
    // A worker in quiet mode starts nothing, so the next delivery waits.
    let node = server.name();
    let quiet = async |mode: &str| {
        let path = format!("/v1/nodes/{}", node.replace('@', "%40").replace(':', "%3A"));
        let set = caller.put(&path, &json!({ "mode": mode })).await;
        assert_eq!(set.status, 200, "{}", set.body);
    };
    for (id, end) in [("b", "cancel"), ("c", "remove")] {
        // Its run waits a little for further events.
        server.poll("/v1/jobs/webhook/w", |job| job["state"] == "completed").await;
        quiet("quiet").await;
        add(&caller, "t", id, "acme").await;
        server.poll("/v1/jobs/webhook/w", |job| job["state"] == "pending").await;
        let ended = match end {
            "cancel" => caller.post("/v1/jobs/webhook/w/cancel", &json!({})).await,
            _ => caller.delete("/v1/jobs/webhook/w").await,
        };
        assert_eq!(ended.status, 200, "{}", ended.body);
        quiet("active").await;
        // Nothing else happens that the webhook wants.
        receiver.until(|received| steps(received).last() == added([id]).last()).await;
    }
    assert_eq!(receiver.steps(), added(["a", "b", "c"]));
}

#[tokio::test]
async fn the_time_of_a_delivery_is_that_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let url = turnwise_store::StoreUrl::embedded(folder.path().join("data"));
    let store = turnwise_store::open(&url, Arc::new(turnwise_store::runtime::System)).await.unwrap();
    let keys = turnwise_queue::Keyspace::default();
    let first = TestServer::start_on(&store, FAST).await;
    first.server.shutdown().await;
    // A clock that was two hours ahead was set back.
    let ahead_us = store.clock().wanted_us() + 2 * 3_600_000_000;
    let row = &ahead_us.to_string();
    let write = store.transact(|tx| {
        let key = keys.clock();
        async move { tx.set(key, row.clone().into()) }
    });
    write.await.unwrap();
    let (server, receiver) = (TestServer::start_on(&store, FAST).await, Receiver::start().await);
    let caller = server.nobody();
    put(&caller, "w", &receiver, json!({})).await;
    add(&caller, "t", "a", "acme").await;
    let received = receiver.until(|received| !received.is_empty()).await;
    let event = &received[0].json()["events"][0];
    assert!(event["at_us"].as_i64().unwrap() >= ahead_us, "the clock of the store is ahead: {event}");
    let sent: u64 = received[0].header("x-turnwise-timestamp").parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(sent) < 120, "{sent} at {now}");
    received[0].assert_signed();
}

#[tokio::test]
async fn no_event_is_missed_and_none_comes_twice_over_a_restart() {
    let (server, receiver) = (TestServer::start_with(FAST).await, Receiver::start().await);
    put(&server.nobody(), "w", &receiver, json!({"events": ["added"], "types": ["t"]})).await;
    let ids: Vec<String> = (0..1_000).map(|n| format!("{n:04}")).collect();
    let many = async |server: &TestServer, ids: &[String]| {
        let jobs: Vec<Value> = ids.iter().map(|id| json!({"type": "t", "id": id})).collect();
        let answer = server.post("/v1/jobs", &json!({"jobs": jobs})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    many(&server, &ids[..400]).await;
    receiver.until(|received| !received.is_empty()).await;
    let server = server.restart(FAST).await;
    many(&server, &ids[400..]).await;
    let expected = added(ids.iter().map(String::as_str));
    receiver.until(|received| steps(received).last() == expected.last()).await;
    // A delivery whose outcome was unknown at the shutdown may have come again, with more events.
    let mut seen = BTreeSet::new();
    let steps: Vec<String> = receiver.steps().into_iter().filter(|step| seen.insert(step.clone())).collect();
    assert_eq!(steps, expected);
    assert!(receiver.received.borrow().iter().all(|one| one.steps().len() <= 100));
}

#[tokio::test]
async fn a_target_that_wants_no_more_disables_its_webhook() {
    let (server, receiver) = (TestServer::start_with(FAST).await, Receiver::start().await);
    let caller = server.nobody();
    receiver.answers(&[(410, "moved away")]);
    put(&caller, "w", &receiver, json!({"types": ["t"]})).await;
    add(&caller, "t", "a", "acme").await;
    let webhook = webhook_is(&caller, "w", |webhook| webhook["enabled"] == false).await;
    let because = webhook["disabled_because"].as_str().unwrap();
    assert!(because.contains("410 Gone: moved away"), "{because}");
    assert_eq!(webhook["last_error"]["reason"], "410 Gone: moved away");
    assert_eq!(webhook["behind"]["events"], 1, "{webhook}");
    add(&caller, "t", "b", "acme").await;
    webhook_is(&caller, "w", |webhook| webhook["behind"]["events"] == 2).await;
    // It goes on where it was.
    let again = json!({"url": receiver.url(), "types": ["t"], "enabled": true});
    let resumed = caller.put("/v1/webhooks/w", &again).await;
    assert_eq!((resumed.status, resumed.body.get("disabled_because")), (200, None), "{}", resumed.body);
    receiver.until(|received| received.len() > 1 && steps(received).ends_with(&added(["b"]))).await;
    // In one delivery, or in two if the first repeats the one that was refused.
    let mut seen = BTreeSet::new();
    let steps: Vec<String> = receiver.steps().into_iter().filter(|step| seen.insert(step.clone())).collect();
    assert_eq!(steps, added(["a", "b"]));
    receiver.received.borrow().last().unwrap().assert_signed();
    // A client pauses it.
    let paused = json!({"url": receiver.url(), "types": ["t"], "enabled": false});
    assert_eq!(caller.put("/v1/webhooks/w", &paused).await.body["enabled"], false);
    add(&caller, "t", "c", "acme").await;
    let webhook = webhook_is(&caller, "w", |webhook| webhook["behind"]["events"] == 1).await;
    assert!(webhook.get("disabled_because").is_none(), "{webhook}");
    assert_ne!(receiver.steps().last().unwrap(), "c added");
}

#[tokio::test]
async fn a_tenants_webhook_reaches_no_internal_address_and_an_operators_does() {
    let (server, receiver) = (TestServer::start_with(FAST).await, Receiver::start().await);
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["client:acme"]).await;
    let client = server.with(&token);
    put(&client, "tenant", &receiver, json!({})).await;
    add(&client, "t", "a", "acme").await;
    let webhook = webhook_is(&client, "tenant", |webhook| webhook.get("last_error").is_some()).await;
    let reason = webhook["last_error"]["reason"].as_str().unwrap();
    assert!(reason.contains("[egress]"), "{reason}");
    assert_eq!(webhook["job_tenant"], "acme");
    assert!(receiver.steps().is_empty());
    put(&admin, "operator", &receiver, json!({"types": ["t"]})).await;
    add(&admin, "t", "b", "bravo").await;
    receiver.until_steps(&added(["b"])).await;
    let seq = receiver.received.borrow()[0].json()["events"][0]["seq"].clone();
    assert!(seq.as_str().unwrap().parse::<u64>().is_ok(), "{seq}");
    let delivery = receiver.received.borrow()[0].json()["delivery"].clone();
    assert_eq!(delivery, format!("operator/{0}-{0}", seq.as_str().unwrap()));
}

#[tokio::test]
async fn a_tenant_has_a_number_of_webhooks_and_operators_have_all() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let client = admin.token(&["client:acme"]).await;
    let client = server.with(&client);
    let webhook = json!({"url": "http://127.0.0.1:1/", "secret": SECRET, "enabled": false});
    for n in 0..20 {
        assert_eq!(client.put(&format!("/v1/webhooks/c{n}"), &webhook).await.status, 200);
        assert_eq!(admin.put(&format!("/v1/webhooks/o{n}"), &webhook).await.status, 200);
    }
    let more = client.put("/v1/webhooks/more", &webhook).await;
    assert_eq!(more.status, 400, "{}", more.body);
    assert!(more.body["reason"].as_str().unwrap().contains("20 webhooks"), "{}", more.body);
    assert_eq!(admin.put("/v1/webhooks/more", &webhook).await.status, 200);
}

#[tokio::test]
async fn the_job_of_an_operators_webhook_is_for_operators_alone() {
    let slow = "[jobs]\nbackoff_base_ms = 3600000\n";
    let (server, receiver) = (TestServer::start_with(slow).await, Receiver::start().await);
    let admin = server.close().await;
    let admin = server.with(&admin);
    let client = admin.token(&["client:*,default,_operators", "read:*"]).await;
    let client = server.with(&client);
    receiver.answers(&[(500, "secret path")]);
    let filter = json!({"types": ["t"], "tenant": "default"});
    assert_eq!(put(&admin, "w", &receiver, filter).await["job_tenant"], "_operators");
    add(&client, "t", "a", "default").await;
    let path = "/v1/jobs/webhook/w";
    // The failure is noted before the run has ended.
    admin.poll(path, |job| job["state"] == "crashing").await;
    // To a client there is no such job, whatever tenants it names.
    for hidden in [path, "/v1/jobs/webhook/w/why", "/v1/jobs/webhook/w/wait?timeout_ms=0"] {
        assert_eq!(client.get(hidden).await.error(), (404, "not_found"), "{hidden}");
    }
    for action in ["cancel", "retry"] {
        assert_eq!(client.post(&format!("{path}/{action}"), &json!({})).await.error(), (404, "not_found"));
    }
    assert_eq!(
        client.put(&format!("{path}/priority"), &json!({"priority": 3})).await.error(),
        (404, "not_found")
    );
    assert_eq!(client.delete(path).await.error(), (404, "not_found"));
    for list in [
        "/v1/jobs?type=webhook",
        "/v1/jobs?order=newest",
        "/v1/failures",
        "/v1/tenants",
        "/v1/counts?by=tenant",
    ] {
        let listed = client.get(list).await.body.to_string();
        assert!(!listed.contains("_operators") && !listed.contains("webhook"), "{list}: {listed}");
    }
    let all = json!({"where": "age >= 0s", "action": "remove"});
    assert_eq!(client.put("/v1/bulk/b", &all).await.status, 201);
    server_is_done(&client, "b").await;
    assert_eq!(admin.get(path).await.body["state"], "crashing");
    // A webhook that becomes an operator's takes its job with it.
    let of_client = json!({"job_tenant": "default", "enabled": false});
    put(&client, "other", &receiver, of_client).await;
    assert_eq!(
        put(&client, "other", &receiver, json!({"job_tenant": "default"})).await["job_tenant"],
        "default"
    );
    assert_eq!(client.get("/v1/jobs/webhook/other").await.status, 200);
    assert_eq!(
        put(&admin, "other", &receiver, json!({"job_tenant": "default"})).await["job_tenant"],
        "_operators"
    );
    let read = async || client.get("/v1/jobs/webhook/other").await.status;
    until("the job is the operator's", read, |status| *status == 404).await;
}

async fn server_is_done(caller: &As<'_>, bulk: &str) {
    caller.poll(&format!("/v1/bulk/{bulk}"), |bulk| bulk["state"] != "running").await;
}

#[tokio::test]
async fn an_identity_gets_the_events_of_its_tenants_until_it_is_revoked() {
    let receiver = Receiver::start().await;
    let rules = format!("{FAST}[egress]\nallow = 127.0.0.1/32:{}\n", receiver.port);
    let server = TestServer::start_with(&rules).await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let made = admin.post("/v1/tokens", &json!({"scopes": ["client:acme"]})).await.body;
    let client = server.with(made["token"].as_str().unwrap());
    put(&client, "w", &receiver, json!({})).await;
    for (id, tenant) in [("a", "acme"), ("b", "bravo"), ("c", "acme")] {
        add(&admin, "t", id, tenant).await;
    }
    receiver.until_steps(&added(["a", "c"])).await;
    let first = receiver.received.borrow()[0].json();
    assert!(first["events"][0]["seq"].as_str().unwrap().starts_with("sealed/"), "{first}");
    assert!(first["delivery"].as_str().unwrap().len() > 30, "its name tells no numbers: {first}");
    // Others do not see it, and do not write it.
    let other = admin.token(&["client:bravo"]).await;
    let other = server.with(&other);
    assert_eq!(other.get("/v1/webhooks").await.body, json!({"webhooks": []}));
    assert_eq!(other.get("/v1/webhooks/w").await.error(), (404, "not_found"));
    assert_eq!(other.delete("/v1/webhooks/w").await.error(), (404, "not_found"));
    let webhook = json!({"url": receiver.url(), "secret": SECRET});
    assert_eq!(other.put("/v1/webhooks/w", &webhook).await.error(), (409, "conflict"));
    let reader = admin.token(&["read:acme"]).await;
    assert_eq!(server.with(&reader).get("/v1/webhooks").await.error(), (403, "forbidden"));
    let foreign = json!({"url": receiver.url(), "secret": SECRET, "tenant": "acme"});
    assert_eq!(other.put("/v1/webhooks/x", &foreign).await.error(), (403, "forbidden"));
    // An operator pauses it, and it stays what it is: it does not see more afterwards.
    for enabled in [false, true] {
        let paused = json!({"url": receiver.url(), "enabled": enabled});
        let answer = admin.put("/v1/webhooks/w", &paused).await;
        assert_eq!((answer.status, &answer.body["enabled"]), (200, &json!(enabled)), "{}", answer.body);
    }
    let moved = json!({"url": format!("{}/elsewhere", receiver.url())});
    assert_eq!(admin.put("/v1/webhooks/w", &moved).await.error(), (403, "forbidden"));
    add(&admin, "t", "d", "bravo").await;
    add(&admin, "t", "e", "acme").await;
    receiver.until_steps(&added(["a", "c", "e"])).await;
    let id = made["id"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("/v1/tokens/{id}")).await.status, 200);
    add(&admin, "t", "f", "acme").await;
    let webhook = webhook_is(&admin, "w", |webhook| webhook["enabled"] == false).await;
    assert!(webhook["disabled_because"].as_str().unwrap().contains("identity is gone"), "{webhook}");
    assert_eq!(receiver.steps(), added(["a", "c", "e"]));
}

#[tokio::test]
async fn events_that_are_gone_are_a_gap_and_not_the_end() {
    let (server, receiver) =
        (TestServer::start_with(&format!("{FAST}[events]\nmax = 100\n")).await, Receiver::start().await);
    let caller = server.nobody();
    let webhook = json!({"url": receiver.url(), "types": ["t"]});
    put(&caller, "w", &receiver, webhook.clone()).await;
    // Another one keeps the recording on.
    put(&caller, "other", &Receiver::start().await, json!({"url": "http://127.0.0.1:1/", "types": ["none"]}))
        .await;
    let mut paused = webhook.clone();
    paused["enabled"] = json!(false);
    assert_eq!(caller.put("/v1/webhooks/w", &paused).await.status, 200);
    let start = caller.get("/v1/events?limit=1").await.body["next"].as_str().unwrap().to_owned();
    for part in 0..4 {
        let jobs: Vec<Value> = (0..500).map(|n| json!({"type": "u", "id": format!("{part}-{n}")})).collect();
        assert_eq!(caller.post("/v1/jobs", &json!({"jobs": jobs})).await.status, 200);
    }
    // Events are removed every 10 s.
    let read = async || caller.get(&format!("/v1/events?since={start}&limit=1")).await.status;
    until("the events are removed", read, |status| *status == 410).await;
    assert_eq!(caller.put("/v1/webhooks/w", &webhook).await.status, 200);
    add(&caller, "t", "a", "acme").await;
    receiver.until_steps(&added(["a"])).await;
    let webhook = webhook_is(&caller, "w", |webhook| webhook["behind"]["events"] == 0).await;
    assert_eq!(webhook["gaps"], 1, "{webhook}");
    assert!(webhook["last_gap_us"].is_i64(), "{webhook}");
}

#[tokio::test]
async fn two_nodes_deliver_each_event_in_order_and_one_goes_on_alone() {
    nodes_deliver_and_die(On::Embedded).await;
}

#[tokio::test]
async fn nodes_on_etcd_deliver_each_event_in_order_and_one_goes_on_alone() {
    nodes_deliver_and_die(On::Etcd).await;
}

#[tokio::test]
async fn nodes_on_foundationdb_deliver_each_event_in_order_and_one_goes_on_alone() {
    nodes_deliver_and_die(On::Foundationdb).await;
}

/// Jobs of three tenants are added at two nodes. One dies, then the other one, and a third one goes on. So the node that numbers events and the
/// one that delivers die in any case.
async fn nodes_deliver_and_die(on: On) {
    let config = format!("{FAST}[workers]\nhealth_interval = 0.2\nhealth_timeout = 4\n");
    let Some(mut cluster) = Cluster::start_at(on, [&*config, &*config]).await else { return };
    const TENANTS: [&str; 3] = ["acme", "bravo", "cargo"];
    // One receiver for all tenants, and one for each.
    let mut receivers = Vec::new();
    for tenant in [None, Some(TENANTS[0]), Some(TENANTS[1]), Some(TENANTS[2])] {
        let receiver = Receiver::start().await;
        let filter = tenant.map_or(json!({}), |tenant| json!({ "tenant": tenant }));
        let mut more = json!({"types": ["t"]});
        more.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
        let id = tenant.unwrap_or("all");
        put(&cluster.at(receivers.len() % 2).nobody(), id, &receiver, more).await;
        receivers.push((id, receiver));
    }
    let ids: Vec<String> = (0..60).map(|n| format!("{n:02}")).collect();
    let tenant = |n: usize| TENANTS[n % 3];
    let of = |receiver: &str, ids: &[String]| {
        let wanted = |n: &usize| receiver == "all" || tenant(*n) == receiver;
        let wanted: Vec<usize> = (0..ids.len()).filter(wanted).collect();
        added(wanted.iter().map(|n| ids[*n].as_str()))
    };
    for (n, id) in ids[..30].iter().enumerate() {
        add(&cluster.at(n % 2).nobody(), "t", id, tenant(n)).await;
    }
    for (name, receiver) in &receivers {
        let expected = of(name, &ids[..30]);
        receiver.until_steps(&expected).await;
        // The position moves after the answer of the target.
        webhook_is(&cluster.at(0).nobody(), name, |webhook| webhook["delivered"] == expected.len()).await;
        receiver.received.borrow().iter().for_each(Received::assert_signed);
    }
    let listed = cluster.get("/v1/webhooks").await;
    assert_eq!(listed["webhooks"].as_array().unwrap().len(), receivers.len(), "{listed}");
    for deaths in 1..=2 {
        cluster.kill(0);
        if deaths == 2 {
            // Nobody is left but the next one.
            cluster.join(&config).await;
        }
        let survivor = cluster.at(0).nobody();
        let done = 15 + 15 * deaths;
        for (n, id) in ids.iter().enumerate().skip(done).take(15) {
            add(&survivor, "t", id, tenant(n)).await;
        }
        for (name, receiver) in &receivers {
            let expected = of(name, &ids[..done + 15]);
            receiver.until(|received| steps(received).last() == expected.last()).await;
            // A delivery whose position was not moved before its node died comes again, with more events and so as another one.
            let mut seen = BTreeSet::new();
            let steps: Vec<String> =
                receiver.steps().into_iter().filter(|step| seen.insert(step.clone())).collect();
            assert_eq!(steps, expected, "{name} after {deaths}");
        }
    }
    let survivor = cluster.at(0);
    for (name, receiver) in &receivers {
        let webhook = webhook_is(&survivor.nobody(), name, |webhook| webhook["behind"]["events"] == 0).await;
        assert_eq!(
            (&webhook["delivered"], &webhook["gaps"]),
            (&json!(of(name, &ids).len()), &json!(0)),
            "{webhook}"
        );
        receiver.received.borrow().iter().for_each(Received::assert_signed);
    }
    // Streams tell the same in the same order.
    let page = survivor.get("/v1/events?since=oldest&type=t&limit=1000").await.body;
    let events = page["events"].as_array().unwrap().iter();
    let told: Vec<String> =
        events.map(|event| ["id", "event"].map(|name| event[name].as_str().unwrap()).join(" ")).collect();
    assert_eq!(told, of("all", &ids));
}

#[tokio::test]
async fn what_cannot_be_delivered_to_is_refused() {
    let server = TestServer::start().await;
    let right = json!({"url": "http://127.0.0.1:1/", "secret": SECRET, "enabled": false});
    let with = |name: &str, value: Value| {
        let mut webhook = right.clone();
        webhook[name] = value;
        webhook
    };
    for wrong in [
        with("url", json!("ftp://h/")),
        with("url", json!("http://user:pass@h/")),
        with("url", json!("/hooks")),
        with("url", json!(format!("http://h/{}", "x".repeat(2_000)))),
        with("secret", json!("x".repeat(15))),
        with("secret", json!("x".repeat(257))),
        with("secret", Value::Null),
        with("types", json!(["a b"])),
        with("states", json!(["sleeping"])),
        with("events", json!(["exploded"])),
        with("events", json!(vec!["added"; 101])),
        with("tenant", json!("a\nb")),
        with("more", json!(1)),
    ] {
        let answer = server.put("/v1/webhooks/w", &wrong).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
    assert_eq!(server.put("/v1/webhooks/a%20b", &right).await.status, 400);
    assert_eq!(server.get("/v1/webhooks").await.body, json!({"webhooks": []}));
    assert_eq!(server.put("/v1/webhooks/w", &with("job_tenant", json!("acme"))).await.status, 400);
    // The server runs these jobs itself.
    let added = server.post("/v1/jobs/webhook", &json!({"id": "w"})).await;
    assert_eq!(added.error(), (403, "forbidden"));
    assert_eq!(server.post("/v1/workers/webhook", &json!({"slots": 1})).await.error(), (403, "forbidden"));
}
