//! Peers with faults: each fault gives a clear reason, the job backs off, and it continues when the peer works again.

use serde_json::json;
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, Rule, compare};

use crate::server::{Home, Server};

struct Case {
    name: &'static str,
    /// The fault of the source.
    fault: Rule,
    /// What the reason must contain.
    says: &'static str,
}

fn cases() -> Vec<Case> {
    let case = |name, fault: Rule, says| Case { name, fault, says };
    vec![
        case("down", Fault::Down.into(), "no connection"),
        case("reset", Fault::Reset { after: 100 }.into(), "broke off"),
        case("reset-at-once", Fault::Reset { after: 0 }.into(), "broke off"),
        case("hang", Fault::HangMidBody { after: 100 }.into(), "timed out"),
        case("401", Fault::Status(401).into(), "401 unauthorized: Name or password is incorrect."),
        case("404", Fault::Status(404).into(), "404 not_found: Database does not exist."),
        case("429", Fault::Status(429).into(), "429 too_many_requests: Too many requests. Slow down."),
        case(
            "500",
            Fault::Status(500).into(),
            "500 internal_server_error: The fault proxy was told to fail.",
        ),
        case("invalid-json", Fault::InvalidJson.into(), "cannot be understood"),
    ]
}

#[tokio::test]
async fn every_fault_of_a_source_gives_its_reason_and_passes() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    Dataset::small().load(&source).await;
    let home = Home::new("");
    let server = home.serve().await;
    let all = cases().into_iter().map(|case| survives(case, &server, &a, &b, &source));
    futures::future::join_all(all).await;
}

/// Waits until a replication crashes with this text in its reason. Its first crash may have another reason, because on
/// a busy machine any request may time out.
async fn until_it_says(server: &Server, name: &str, says: &str) -> serde_json::Value {
    let path = format!("/_scheduler/docs/_replicator/{name}");
    let is_so = |doc: &serde_json::Value| {
        let reason = doc["info"]["error"].as_str().unwrap_or_default();
        doc["state"] == "crashing" && reason.contains(says)
    };
    server.until(&path, is_so).await
}

async fn survives(case: Case, server: &Server, a: &Peer, b: &Peer, source: &turnwise_testkit::Database) {
    let Case { name, fault, says } = case;
    let proxy = FaultProxy::start(a).await;
    proxy.set(fault).await;
    let target = b.create(&format!("target-{name}")).await;
    let doc = json!({ "source": proxy.through(source), "target": target.url() });
    server.put(&format!("/_replicator/{name}"), &doc).await;

    let crashing = until_it_says(server, name, says).await;
    let reason = crashing["info"]["error"].as_str().unwrap();
    assert!(reason.contains("source"), "{name} does not say which peer: {reason}");
    assert!(crashing["error_count"].as_u64().unwrap() >= 1, "{name}: {crashing}");

    proxy.set(Fault::None).await;
    server.until_state(name, "completed").await;
    compare(source, &target).await.unwrap_or_else(|differences| panic!("{name}: {differences:?}"));
}

#[tokio::test]
async fn a_target_that_fails_while_it_is_written_to_gets_everything_in_the_end() {
    let (a, b) = Peer::pair().await;
    let source = a.create("source").await;
    Dataset::small().load(&source).await;
    let server = Home::new("").serve().await;
    let writes =
        |request: &turnwise_testkit::Request| request.path.contains("_bulk_docs") || request.method == "PUT";
    for (name, fault) in [
        ("target-500", Fault::Status(500).when(writes)),
        ("target-reset", Fault::Reset { after: 0 }.when(writes)),
        ("target-json", Fault::InvalidJson.when(writes)),
    ] {
        let proxy = FaultProxy::start(&b).await;
        proxy.set(fault).await;
        let target = b.create(name).await;
        let doc = json!({ "source": source.url(), "target": proxy.through(&target) });
        server.put(&format!("/_replicator/{name}"), &doc).await;
        until_it_says(&server, name, "target").await;
        proxy.set(Fault::None).await;
        server.until_state(name, "completed").await;
        compare(&source, &target).await.unwrap_or_else(|differences| panic!("{name}: {differences:?}"));
    }
}
