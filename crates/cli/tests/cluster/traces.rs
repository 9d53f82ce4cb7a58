//! One trace spans the adding of a job, a run whose node is killed, and the next run on another node.

use serde_json::{Value, json};
use turnwise_testkit::canary::TOKEN;
use turnwise_testkit::{Collected, Collector};

use crate::node::Node;
use crate::shared_store::SharedStore;

/// The trace of the client that adds the job.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";

fn attribute<'a>(span: &'a Collected, name: &str) -> &'a Value {
    span.attributes.get(name).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_trace_spans_adding_a_job_a_killed_node_and_the_run_elsewhere() {
    let Some(store) = SharedStore::etcd().await else { return };
    let collector = Collector::start().await;
    let config = format!(
        "[workers]\nhealth_interval = 0.25\nhealth_timeout = 2\n[jobs]\nbackoff_base_ms = 100\n\
         [command]\nenabled = true\nallow_root = true\n[otel]\nendpoint = {}\nheaders = api-key={TOKEN}\n",
        collector.url()
    );
    let nodes = [Node::start(&store.url(), &config).await, Node::start(&store.url(), &config).await];
    let job = json!({
        "id": "one", "tenant": "acme",
        "options": {"argv": ["sh", "-c", "[ $TURNWISE_ATTEMPT = 1 ] && exec sleep 1000; echo $TRACEPARENT"]},
    });
    let added = nodes[0]
        .server()
        .client()
        .post(format!("{}/v1/jobs/command", nodes[0].url()))
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{TRACE}-{CLIENT_SPAN}-01"))
        .body(job.to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(added.status(), 201);

    let path = "/v1/jobs/command/one";
    let running = nodes[0].server().until(path, |job| job["state"] == "running").await;
    let dead_worker = running["worker"].as_str().unwrap().to_owned();
    // The span of adding it must be on its way before its node is killed.
    collector.until(|spans| spans.iter().any(|span| span.name == "add command")).await;
    let mut own_of_first = nodes[0].own_workers("command", &nodes[0]).await;
    own_of_first.retain(|worker| *worker == dead_worker);
    let (killed, survivor) = if own_of_first.is_empty() { (1, 0) } else { (0, 1) };
    nodes[killed].kill().await;
    let done = nodes[survivor].server().until(path, |job| job["state"] == "completed").await;
    let seen_by_command = done["result"]["stdout"].as_str().unwrap().trim_end().to_owned();

    let is_run = |span: &&Collected| span.name == "run command";
    let spans = collector.until(|spans| spans.iter().filter(is_run).count() == 2).await;
    assert!(
        spans.iter().all(|span| span.trace_id == TRACE && span.api_key.as_deref() == Some(TOKEN)),
        "{spans:#?}"
    );
    let add = spans.iter().find(|span| span.name == "add command").unwrap();
    assert_eq!((add.kind, &*add.parent, &add.error), (4, CLIENT_SPAN, &None), "{add:#?}");
    assert!(add.instance.ends_with(nodes[0].server().address()), "{add:#?}");
    let run = |attempt: i64| {
        let found =
            spans.iter().filter(is_run).find(|span| *attribute(span, "turnwise.attempt") == json!(attempt));
        found.unwrap_or_else(|| panic!("no attempt {attempt}: {spans:#?}"))
    };
    let (lost, completed) = (run(1), run(2));
    for run in [lost, completed] {
        assert_eq!((run.kind, &run.parent), (5, &add.span_id), "{run:#?}");
        assert!(run.instance.ends_with(nodes[survivor].server().address()), "{run:#?}");
        let expected = ["command", "one", "acme", "turnwise"];
        let names = ["turnwise.job.type", "messaging.message.id", "turnwise.tenant", "messaging.system"];
        assert_eq!(names.map(|name| attribute(run, name).as_str().unwrap()), expected);
    }
    assert_eq!(attribute(lost, "turnwise.worker"), dead_worker.as_str());
    assert_eq!(attribute(lost, "turnwise.outcome"), "lost");
    assert_eq!(lost.error.as_deref(), Some(&*format!("its worker {dead_worker} was lost")));
    assert_eq!((attribute(completed, "turnwise.outcome"), &completed.error), (&json!("completed"), &None));
    assert_ne!(attribute(completed, "turnwise.worker"), dead_worker.as_str());
    assert!(
        lost.nanos.start() < lost.nanos.end() && lost.nanos.end() <= completed.nanos.start(),
        "{spans:#?}"
    );
    // The command has the context of its own run.
    assert_eq!(seen_by_command, format!("00-{TRACE}-{}-01", completed.span_id));
    let below: Vec<&Collected> = spans.iter().filter(|span| span.parent == completed.span_id).collect();
    assert!(below.iter().any(|span| span.name == "transaction: end" && span.kind == 1), "{spans:#?}");
}
