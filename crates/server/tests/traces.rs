//! Traces: what is sampled, what external workers get, and the requests of replications.

use std::time::Duration;

use serde_json::{Value, json};
use turnwise_testkit::{Collected, Collector, Dataset, Peer, free_ports};

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CLIENT_SPAN}-{flags}")
}

/// Sends JSON with a `traceparent`.
async fn send(server: &TestServer, method: &str, path: &str, body: &Value, sent: Option<&str>) -> Value {
    let mut request = server.request(method, path).header("content-type", "application/json");
    if let Some(sent) = sent {
        request = request.header("traceparent", sent);
    }
    let answer = server.send(request.body(body.to_string())).await;
    assert!(answer.status < 300, "{}", answer.body);
    answer.body
}

fn named<'a>(spans: &'a [Collected], name: &str) -> Vec<&'a Collected> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[tokio::test]
async fn runs_of_an_external_worker_are_spans_below_the_one_that_added_the_job() {
    let collector = Collector::start().await;
    let otel =
        format!("\n[jobs]\nbackoff_base_ms = 1\n[otel]\nendpoint = {}\nsample_ratio = 0", collector.url());
    let server = TestServer::start_with(&otel).await;
    // Neither of these is sampled: by the settings, and by the client.
    send(&server, "POST", "/v1/jobs/t", &json!({"id": "settings"}), None).await;
    send(&server, "POST", "/v1/jobs/t", &json!({"id": "client"}), Some(&traceparent("00"))).await;
    let jobs = json!({"jobs": [{"type": "t", "id": "traced"}, {"type": "t", "id": "other"}]});
    send(&server, "POST", "/v1/jobs", &jobs, Some(&traceparent("01"))).await;
    // It exists already, so nothing is added.
    send(&server, "POST", "/v1/jobs/t", &json!({"id": "traced"}), Some(&traceparent("01"))).await;

    let mut worker = ExternalWorker::register(&server, "t", 10).await;
    for id in ["settings", "client"] {
        let job = worker.run("finish", json!({"result": 1})).await;
        assert_eq!((job["id"].as_str(), job.get("traceparent")), (Some(id), None), "{job}");
    }
    let first = worker.run("fail", json!({"reason": "no network"})).await;
    assert_eq!(first["id"], "traced");
    let other = worker.run("finish", json!({"result": 1})).await;
    assert_eq!(other["id"], "other");
    let second = worker.run("finish", json!({"result": 1})).await;
    assert_eq!((&second["id"], &second["attempt"]), (&json!("traced"), &json!(2)));

    let spans = collector.until(|spans| named(spans, "run t").len() == 3).await;
    assert_eq!(spans.len(), 5, "{spans:#?}");
    assert!(spans.iter().all(|span| span.trace_id == TRACE), "{spans:#?}");
    let adds = named(&spans, "add t");
    assert!(adds.len() == 2 && adds.iter().all(|add| add.parent == CLIENT_SPAN), "{spans:#?}");
    let add = adds.iter().find(|add| add.attributes["messaging.message.id"] == "traced").unwrap();
    for (job, attempt, error) in [(&first, 1, Some("no network")), (&second, 2, None)] {
        let of_attempt = |run: &&&Collected| {
            run.parent == add.span_id && run.attributes["turnwise.attempt"] == json!(attempt)
        };
        let runs = named(&spans, "run t");
        let run = runs.iter().find(of_attempt).unwrap_or_else(|| panic!("{spans:#?}"));
        assert_eq!(run.error.as_deref(), error);
        assert_eq!(run.attributes["turnwise.worker"], worker.id.as_str());
        assert_eq!(job["traceparent"], format!("00-{TRACE}-{}-01", run.span_id));
    }
    server.server.shutdown().await;
}

#[tokio::test]
async fn without_an_exporter_workers_get_the_context_of_the_client() {
    let server = TestServer::start().await;
    send(&server, "POST", "/v1/jobs/t", &json!({"id": "plain"}), None).await;
    send(&server, "POST", "/v1/jobs/t", &json!({"id": "wrong"}), Some("00-hello-world-01")).await;
    send(&server, "POST", "/v1/jobs/t", &json!({"id": "traced"}), Some(&traceparent("01"))).await;
    let mut worker = ExternalWorker::register(&server, "t", 10).await;
    for expected in [None, None, Some(traceparent("01"))] {
        let job = worker.run("finish", json!({"result": 1})).await;
        assert_eq!(job.get("traceparent").and_then(Value::as_str), expected.as_deref(), "{job}");
    }
}

#[tokio::test]
async fn the_requests_of_a_replication_are_spans_below_its_run() {
    let collector = Collector::start().await;
    let server = TestServer::start_with(&format!("\n[otel]\nendpoint = {}", collector.url())).await;
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    Dataset::small().load(&source).await;
    for (id, sent) in [("a", Some(traceparent("01"))), ("b", None)] {
        let target = b.create(&format!("target-{id}")).await;
        let document = json!({"source": source.url(), "target": target.url()});
        send(&server, "PUT", &format!("/_replicator/{id}"), &document, sent.as_deref()).await;
    }
    // A peer that is slow may let a run crash, and another run follows.
    let is_done = |run: &&Collected| run.attributes["turnwise.outcome"].as_str() == Some("completed");
    let spans = collector
        .until(|spans| named(spans, "run replication").iter().filter(|run| is_done(run)).count() == 2)
        .await;
    for run in named(&spans, "run replication").into_iter().filter(is_done) {
        assert_eq!(run.error, None);
        let add = named(&spans, "add replication").into_iter().find(|add| add.span_id == run.parent).unwrap();
        assert_eq!(add.trace_id, run.trace_id);
        let is_sent = add.trace_id == TRACE;
        assert_eq!(add.parent, if is_sent { CLIENT_SPAN } else { "" });
        let below: Vec<&Collected> = spans.iter().filter(|span| span.parent == run.span_id).collect();
        for name in ["GET _changes", "transaction: end"] {
            assert!(below.iter().any(|span| span.name == name), "{name}: {below:#?}");
        }
        let writes = |span: &&Collected| span.name == "POST _bulk_docs" && span.trace_id == run.trace_id;
        assert!(spans.iter().any(|span| writes(&span)), "{spans:#?}");
        let left_out = run.attributes.get("turnwise.spans_left_out").and_then(Value::as_i64).unwrap_or(0);
        assert!(below.len() <= 128 && (left_out == 0 || below.len() == 128), "{}", below.len());
    }
    let runs: Vec<_> = named(&spans, "run replication").into_iter().filter(is_done).collect();
    assert!(runs[0].trace_id != runs[1].trace_id && runs.iter().any(|run| run.trace_id == TRACE));
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_collector_that_does_not_answer_stops_nothing() {
    let otel = format!("\n[otel]\nendpoint = http://127.0.0.1:{}", free_ports(1)[0]);
    let server = TestServer::start_with(&otel).await;
    let mut worker = ExternalWorker::register(&server, "t", 10).await;
    for n in 0..20 {
        send(&server, "POST", "/v1/jobs/t", &json!({"id": format!("{n}")}), None).await;
        assert!(worker.run("finish", json!({"result": n})).await["traceparent"].is_string());
    }
    // Neither does it keep the server from stopping, beyond what the last export may take.
    let stopped = tokio::time::timeout(Duration::from_secs(9), server.server.shutdown()).await;
    assert!(stopped.is_ok());
}
