//! `/v1/jobs/{type}/{id}/events`: the steps of a job as they happen.

use crate::common::worker::ExternalWorker;
use crate::common::{PATIENCE, TestServer};
use serde_json::{Value, json};

/// A stream of events, read as a browser does.
struct Stream {
    answer: reqwest::Response,
    text: String,
}

#[derive(Debug)]
struct Event {
    name: String,
    id: Option<String>,
    data: Value,
}

impl Stream {
    async fn open(server: &TestServer, id: &str, last: Option<&str>) -> Stream {
        let mut request = server.request("GET", &format!("/v1/jobs/t/{id}/events"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Stream { answer, text: String::new() }
    }

    /// The next event; `None` once the stream has ended.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = event.lines();
                    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
                };
                let event = field("event").map(|name| {
                    let data = serde_json::from_str(&field("data").unwrap()).unwrap();
                    Event { name, id: field("id"), data }
                });
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

    async fn state(&mut self) -> (String, Value) {
        let event = self.next().await.unwrap();
        assert_eq!(event.name, "state", "{event:?}");
        (event.id.unwrap(), event.data)
    }
}

#[tokio::test]
async fn a_stream_has_every_step_of_a_job_and_ends_with_it() {
    let server = TestServer::start().await;
    let worker = ExternalWorker::register(&server, "t", 9).await;
    server.hide("t", &["/password"]).await;
    server.post("/v1/jobs/t", &json!({"id": "a", "options": {"password": "hunter2"}})).await;
    let mut stream = Stream::open(&server, "a", None).await;
    let (_, added) = stream.state().await;
    assert_eq!((&added["type"], &added["state"]), (&json!("added"), &json!("pending")));
    worker.call("accept", json!({"received": 0})).await;
    let (started_id, started) = stream.state().await;
    assert_eq!((&started["type"], &started["state"]), (&json!("started"), &json!("running")));
    // A report is passed on as it was written, on one line.
    let pretty = serde_json::to_string_pretty(&json!({"done": [1, "a\nb"]})).unwrap();
    let body = format!("{{\"claim\": 1, \"info\": {pretty}}}");
    let update = server
        .request("POST", &format!("{}/jobs/a/update", worker.path))
        .header("content-type", "application/json");
    assert_eq!(server.send(update.body(body)).await.status, 200);
    let progress = stream.next().await.unwrap();
    assert_eq!((progress.name.as_str(), &progress.id), ("progress", &None));
    assert_eq!(progress.data, json!({"info": {"done": [1, "a\nb"]}}));
    worker.call("jobs/a/finish", json!({"claim": 1, "result": 7})).await;
    let (_, completed) = stream.state().await;
    assert_eq!((&completed["type"], &completed["state"]), (&json!("completed"), &json!("completed")));
    let end = stream.next().await.unwrap();
    assert_eq!((end.name.as_str(), &end.data["result"]), ("end", &json!(7)));
    assert!(!end.data.to_string().contains("hunter2"));
    assert!(stream.next().await.is_none());

    // A client that missed the last part receives that part.
    let mut resumed = Stream::open(&server, "a", Some(&started_id)).await;
    assert_eq!(resumed.state().await.1["type"], "completed");
    assert_eq!(resumed.next().await.unwrap().name, "end");
    assert!(resumed.next().await.is_none());
    // An id that is not from this stream is ignored.
    for id in ["", "0", "x:0", "5:0:0", "\u{e9}"] {
        assert_eq!(Stream::open(&server, "a", Some(id)).await.state().await.1["type"], "added", "{id}");
    }
    // A client that has received the end gets a status that stops its reconnects.
    let request =
        server.request("GET", "/v1/jobs/t/a/events").header("last-event-id", end.id.clone().unwrap());
    assert_eq!(server.send(request).await.status, 204);
    // Until something happens again.
    server.post("/v1/jobs/t", &json!({"id": "a", "if_exists": "again"})).await;
    let mut again = Stream::open(&server, "a", end.id.as_deref()).await;
    assert_eq!(again.state().await.1["type"], "added");
}

#[tokio::test]
async fn a_broken_stream_resumes_where_it_was() {
    let server = TestServer::start_with("[jobs]\nbackoff_base_ms = 1\n").await;
    let worker = ExternalWorker::register(&server, "t", 9).await;
    server.post("/v1/jobs/t", &json!({"id": "a"})).await;
    let mut stream = Stream::open(&server, "a", None).await;
    let (mut last, _) = stream.state().await;
    drop(stream);
    // Two attempts without a listener, and then one event at a time, each over a new connection.
    for claim in 1..=2 {
        let accept = json!({"received": claim - 1, "wait_ms": 60_000});
        assert_eq!(worker.call("accept", accept).await.body["jobs"][0]["claim"], claim);
        worker.call("jobs/a/fail", json!({"claim": claim, "reason": format!("no {claim}")})).await;
    }
    let mut told = Vec::new();
    for _ in 0..4 {
        let (id, event) = Stream::open(&server, "a", Some(&last)).await.state().await;
        told.push(format!("{} {}", event["type"].as_str().unwrap(), event["reason"].as_str().unwrap_or("-")));
        last = id;
    }
    assert_eq!(told, ["started -", "crashed no 1", "started -", "crashed no 2"]);
}

#[tokio::test]
async fn a_stream_ends_when_its_job_is_removed() {
    let server = TestServer::start().await;
    server.post("/v1/jobs/t", &json!({"id": "a"})).await;
    let mut stream = Stream::open(&server, "a", None).await;
    stream.state().await;
    server.delete("/v1/jobs/t/a").await;
    let removed = stream.next().await.unwrap();
    assert_eq!((removed.name.as_str(), removed.data), ("removed", json!({"removed": true})));
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_stream_ends_when_the_server_stops_and_goes_on_when_it_is_back() {
    let server = TestServer::start().await;
    server.post("/v1/jobs/t", &json!({"id": "a"})).await;
    let mut stream = Stream::open(&server, "a", None).await;
    let (last, _) = stream.state().await;
    let server = server.restart("").await;
    // A stream that delayed the shutdown would have been cut off, which is an error.
    assert!(stream.next().await.is_none());
    let mut stream = Stream::open(&server, "a", Some(&last)).await;
    server.post_empty("/v1/jobs/t/a/cancel").await;
    assert_eq!(stream.state().await.1["type"], "cancelled");
    assert_eq!(stream.next().await.unwrap().name, "end");
}
