//! `/v1/events`: what happens to all jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::worker::ExternalWorker;
use crate::common::{As, Cluster, PATIENCE, TestServer, until};
use serde_json::{Value, json};

/// A stream of events, read as a browser does.
struct Stream {
    answer: reqwest::Response,
    text: String,
    /// The position after the latest event.
    last: String,
}

impl Stream {
    async fn open(caller: &As<'_>, query: &str) -> Stream {
        let mut request = caller.server.request("GET", &format!("/v1/events{query}"));
        if !caller.authorization.is_empty() {
            request = request.header("authorization", &caller.authorization);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut stream = Stream { answer, text: String::new(), last: String::new() };
        let (name, opened) = stream.next().await.unwrap();
        assert_eq!((name.as_str(), &opened["since"]), ("open", &json!(stream.last)));
        stream
    }

    /// Name and data of the next event; `None` once the stream has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = event.lines();
                    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
                };
                if let Some(id) = field("id") {
                    self.last = id;
                }
                let event =
                    field("event").map(|name| (name, serde_json::from_str(&field("data").unwrap()).unwrap()));
                self.text = rest.to_owned();
                if event.is_some() {
                    return event;
                }
                continue;
            }
            let chunk = tokio::time::timeout(PATIENCE, self.answer.chunk()).await.unwrap().unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event of a job: `id event state`.
    async fn step(&mut self) -> String {
        let (name, event) = self.next().await.unwrap();
        assert_eq!((name.as_str(), &event["seq"]), ("job", &json!(self.last)), "{event}");
        step(&event)
    }
}

fn step(event: &Value) -> String {
    ["id", "event", "state"].map(|name| event[name].as_str().unwrap()).join(" ")
}

/// This many events after a position, and the next position.
async fn pages(caller: &As<'_>, mut since: String, more: &str, count: usize) -> (Vec<Value>, String) {
    let mut events = Vec::new();
    while events.len() < count {
        let page = caller.get(&format!("/v1/events?since={since}&wait_ms=20000{more}")).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let found = page.body["events"].as_array().unwrap();
        assert!(!found.is_empty(), "{} of {count} events", events.len());
        events.extend(found.iter().cloned());
        since = percent(page.body["next"].as_str().unwrap());
    }
    (events, since)
}

fn percent(text: &str) -> String {
    text.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
}

async fn now(caller: &As<'_>) -> String {
    let page = caller.get("/v1/events?wait_ms=0").await;
    assert_eq!((page.status, &page.body["events"]), (200, &json!([])), "{}", page.body);
    percent(page.body["next"].as_str().unwrap())
}

/// What happens to jobs of others does not postpone the heartbeats of a stream, and its position moves on.
#[tokio::test]
async fn a_quiet_tenant_gets_heartbeats_while_others_are_busy() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["client:quiet"]).await;
    let client = server.with(&token);
    let mut stream = Stream::open(&client, "").await;
    let opened = stream.last.clone();
    // Others do something again and again, much more often than a heartbeat is due, until one arrives.
    let mut others = 0;
    let heartbeat = async {
        while stream.last == opened {
            let piece = stream.answer.chunk().await.unwrap().expect("the stream goes on");
            stream.text.push_str(std::str::from_utf8(&piece).unwrap());
            if let Some((_, id)) = stream.text.split_once(":\nid: ") {
                stream.last = id.trim_end().to_owned();
            }
        }
        stream.last
    };
    let busy = async {
        loop {
            let job = json!({"id": others.to_string(), "tenant": "other", "delay_ms": 3_600_000});
            assert_eq!(admin.post("/v1/jobs/t", &job).await.status, 201);
            others += 1;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let position = tokio::select! {
        position = tokio::time::timeout(PATIENCE, heartbeat) => position.expect("a heartbeat arrives"),
        () = busy => unreachable!("it goes on"),
    };
    // The position is after what others did, so nothing of it is looked at again.
    assert!(others > 2, "{others}");
    let page = client.get(&format!("/v1/events?wait_ms=0&since={}", percent(&position))).await;
    assert_eq!((page.status, &page.body["events"]), (200, &json!([])), "{}", page.body);
}

#[tokio::test]
async fn a_stream_has_what_happens_to_all_jobs() {
    let server = TestServer::start_with("[jobs]\nbackoff_base_ms = 1\n").await;
    server.post("/v1/jobs/t", &json!({"id": "before"})).await;
    let worker = ExternalWorker::register(&server, "t", 9).await;
    let mut stream = Stream::open(&server.nobody(), "").await;
    let mut failures = Stream::open(&server.nobody(), "?state=failed,removed&type=t,u").await;
    server.hide("t", &["/password"]).await;
    server.post("/v1/jobs/t", &json!({"id": "a", "options": {"password": "hunter2"}})).await;
    server.post("/v1/jobs/t", &json!({"id": "later", "delay_ms": 3_600_000})).await;
    assert_eq!(stream.step().await, "a added pending");
    assert_eq!(stream.step().await, "later added delayed");
    worker.call("accept", json!({"received": 0, "limit": 2})).await;
    assert_eq!(stream.step().await, "before started running");
    assert_eq!(stream.step().await, "a started running");
    let resumed_at = stream.last.clone();
    worker.call("jobs/before/finish", json!({"claim": 1, "result": 7})).await;
    let failed = json!({"claim": 2, "reason": "no such mailbox", "retry": false});
    worker.call("jobs/a/fail", failed).await;
    server.delete("/v1/jobs/t/a").await;
    server.post("/v1/jobs/t/later/cancel", &json!({})).await;
    let rest =
        ["before completed completed", "a failed failed", "a removed removed", "later cancelled cancelled"];
    for expected in rest {
        assert_eq!(stream.step().await, expected);
    }
    // A filter.
    let (_, event) = failures.next().await.unwrap();
    assert_eq!((step(&event).as_str(), &event["reason"]), ("a failed failed", &json!("no such mailbox")));
    assert_eq!((&event["type"], &event["tenant"]), (&json!("t"), &json!("default")));
    assert_eq!(failures.step().await, "a removed removed");
    // A client that lost its connection.
    let mut resumed = Stream::open(&server.nobody(), &format!("?since={resumed_at}")).await;
    for expected in rest {
        assert_eq!(resumed.step().await, expected);
    }
    // The header, which browsers send, counts more than the parameter of their first request.
    let request = server.request("GET", "/v1/events?since=1&limit=9").header("last-event-id", &resumed_at);
    let page = server.send(request).await.body;
    let steps: Vec<String> = page["events"].as_array().unwrap().iter().map(step).collect();
    assert_eq!(steps, rest);
    assert_eq!(page["next"], json!(resumed.last));
}

#[tokio::test]
async fn events_are_kept_over_restarts_and_have_no_gaps() {
    let server = TestServer::start().await;
    let start = now(&server.nobody()).await;
    let many: Vec<Value> = (0..1_000).map(|n| json!({"type": "t", "id": format!("{n}")})).collect();
    for part in 0..5 {
        let jobs: Vec<Value> = many
            .iter()
            .map(|job| json!({"type": "t", "id": format!("{part}-{}", job["id"].as_str().unwrap())}))
            .collect();
        let added = server.post("/v1/jobs", &json!({"jobs": jobs})).await;
        assert_eq!(added.status, 200, "{}", added.body);
    }
    let (first, middle) = pages(&server.nobody(), start, "&limit=300", 1_500).await;
    let server = server.restart("").await;
    // Recording goes on without a new request.
    let bulk = json!({"action": "cancel", "where": "type = t"});
    server.put("/v1/bulk/all", &bulk).await;
    let (rest, _) = pages(&server.nobody(), middle, "", 8_500).await;
    let all: Vec<Value> = first.into_iter().chain(rest).collect();
    assert_eq!(all.len(), 10_000);
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut last = 0;
    for event in &all {
        let seq: u64 = event["seq"].as_str().unwrap().parse().unwrap();
        assert!(last == 0 || seq == last + 1, "{seq} after {last}");
        last = seq;
        let of_job = seen.entry(event["id"].as_str().unwrap().to_owned()).or_default();
        of_job.push(event["event"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen.len(), 5_000);
    assert!(seen.values().all(|events| events == &["added", "cancelled"]));
}

#[tokio::test]
async fn a_position_whose_events_are_gone_is_refused() {
    let server = TestServer::start_with("[events]\nkeep = 3600\nmax = 100\n").await;
    let start = now(&server.nobody()).await;
    let mut slow = Stream::open(&server.nobody(), "").await;
    // More than what is kept in memory, and than what connections hold.
    for part in 0..24 {
        let (id, tenant) = (|n: usize| format!("{part}-{n}-{}", "x".repeat(490)), "y".repeat(500));
        let jobs: Vec<Value> =
            (0..1_000).map(|n| json!({"type": "t", "id": id(n), "tenant": tenant})).collect();
        let added = server.post("/v1/jobs", &json!({"jobs": jobs})).await;
        assert_eq!(added.status, 200, "{}", added.body);
    }
    let read = async || server.get(&format!("/v1/events?since={start}&limit=1")).await;
    let gone = until("the events are removed", read, |answer| answer.status == 410).await;
    assert_eq!(gone.error(), (410, "events_gone"), "{}", gone.body);
    for since in ["x", "-1", "999999999", "sealed/x"] {
        let answer = server.get(&format!("/v1/events?since={since}&limit=1")).await;
        assert_eq!(answer.error(), (400, "bad_request"), "{since}: {}", answer.body);
    }
    // A stream that nobody has read meanwhile begins where it was, and ends where events are gone.
    let mut events = 0;
    let end = loop {
        let (name, event) = slow.next().await.unwrap();
        if name != "job" {
            break (name, event);
        }
        assert!(event["id"].as_str().unwrap().starts_with(&format!(
            "{}-{}-",
            events / 1_000,
            events % 1_000
        )));
        events += 1;
    };
    assert_eq!((end.0.as_str(), &end.1["error"]), ("gone", &json!("events_gone")), "after {events} events");
    assert!(slow.next().await.is_none());
    assert!((1..24_000).contains(&events), "{events} events");
    for wrong in
        ["?state=sleeping", "?event=", "?limit=0", "?limit=1001", "?wait_ms=60001", "?type=a%20b", "?x=1"]
    {
        let answer = server.get(&format!("/v1/events{wrong}")).await;
        assert_eq!(answer.error(), (400, "bad_request"), "{wrong}: {}", answer.body);
    }
}

#[tokio::test]
async fn an_identity_sees_the_events_of_its_tenants() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["read:acme,acme/*"]).await;
    let client = server.with(&token);
    let start = now(&client).await;
    let operators = now(&admin).await;
    for (id, tenant) in [("a", "acme"), ("b", "bravo"), ("c", "acme/mail"), ("d", "acme")] {
        admin.post("/v1/jobs/t", &json!({"id": id, "tenant": tenant})).await;
    }
    let (events, next) = pages(&client, start.clone(), "&limit=2", 3).await;
    assert_eq!(
        events.iter().map(step).collect::<Vec<_>>(),
        ["a added pending", "c added pending", "d added pending"]
    );
    // Sequence numbers do not tell how much others do.
    assert!(events.iter().all(|event| event["seq"].as_str().unwrap().starts_with("sealed/")), "{events:?}");
    let mut stream = Stream::open(&client, &format!("?since={start}&tenant=acme")).await;
    assert_eq!(
        (stream.step().await.as_str(), stream.step().await.as_str()),
        ("a added pending", "d added pending")
    );
    let foreign = client.get(&format!("/v1/events?since={start}&tenant=bravo&limit=9")).await;
    assert_eq!(foreign.body["events"], json!([]));
    // A position of the one is none of the other.
    assert_eq!(client.get(&format!("/v1/events?since={operators}&limit=1")).await.status, 400);
    assert_eq!(admin.get(&format!("/v1/events?since={next}&limit=1")).await.status, 400);
    assert_eq!(pages(&admin, operators, "", 4).await.0.len(), 4);
    let worker = server.with(&admin.token(&["worker:t"]).await);
    assert_eq!(worker.get("/v1/events?limit=1").await.error(), (403, "forbidden"));
    // One identity cannot take all streams.
    let mut streams = Vec::new();
    for _ in 1..20 {
        streams.push(Stream::open(&client, "").await);
    }
    let refused = client.get("/v1/events?limit=1").await;
    assert_eq!(refused.error(), (429, "too_many_requests"), "{}", refused.body);
    assert_eq!(admin.get("/v1/events?limit=1").await.status, 200);
    drop(streams);
}

#[tokio::test]
async fn all_nodes_record_and_tell_the_same() {
    let cluster = Cluster::start(["", ""]).await;
    let (one, two) = (cluster.at(0).nobody(), cluster.at(1).nobody());
    let mut stream = Stream::open(&one, "").await;
    two.post("/v1/jobs/t", &json!({"id": "a"})).await;
    one.post("/v1/jobs/t", &json!({"id": "b"})).await;
    two.post("/v1/jobs/t/a/cancel", &json!({})).await;
    let steps = ["a added pending", "b added pending", "a cancelled cancelled"];
    for expected in steps {
        assert_eq!(stream.step().await, expected);
    }
    // What one node has told, another continues.
    one.delete("/v1/jobs/t/b").await;
    let (events, _) = pages(&two, stream.last.clone(), "", 1).await;
    assert_eq!(step(&events[0]), "b removed removed");
    // The node that numbers events dies.
    let mut cluster = cluster;
    cluster.kill(0);
    let two = cluster.at(0).nobody();
    two.post("/v1/jobs/t", &json!({"id": "c"})).await;
    let since = percent(events[0]["seq"].as_str().unwrap());
    let (events, _) = pages(&two, since, "", 1).await;
    assert_eq!(step(&events[0]), "c added pending");
}
