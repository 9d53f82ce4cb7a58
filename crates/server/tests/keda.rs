//! The scaler for KEDA, with a client of gRPC over a socket.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::Code;
use turnwise_testkit::{KedaClient, free_ports};

use crate::common::TestServer;

async fn start(more: &str) -> (TestServer, u16) {
    let port = free_ports(1)[0];
    let file = format!("[keda]\nadditional_port = true\nport = {port}\n{more}");
    (TestServer::start_with(&file).await, port)
}

async fn add(server: &TestServer, count: usize) {
    let jobs: Vec<Value> = (0..count).map(|n| json!({ "type": "t", "id": format!("{n}") })).collect();
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
}

#[tokio::test]
async fn a_burst_wants_slots_until_it_is_worked_off_and_a_stream_tells_both() {
    let (server, port) = start("").await;
    let mut keda = KedaClient::connect(port, &[("type", "t"), ("slots", "5"), ("drainTarget", "2")]).await;
    assert_eq!(keda.target().await.unwrap(), 5);
    assert_eq!((keda.active().await.unwrap(), keda.wanted().await.unwrap()), (false, 0));
    let mut stream = keda.stream().await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Some(false));
    let begun = Instant::now();
    add(&server, 100).await;
    assert_eq!(stream.next().await.unwrap(), Some(true));
    // At KEDA's next poll it would be 10 s or 30 s later.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // Nothing is known of the jobs: a second each.
    assert_eq!((keda.active().await.unwrap(), keda.wanted().await.unwrap()), (true, 50));
    // The other scaler of KEDA reads the same.
    let demand = server.get("/v1/types/t/demand?drain_target_ms=2000").await.body;
    assert_eq!(demand["wanted_slots"], 50, "{demand}");

    let worker = server.post("/v1/workers/t", &json!({ "slots": 50 })).await.body;
    let path = format!("/v1/workers/t/{}", worker["worker"].as_str().unwrap());
    let mut received = 0;
    let mut left = 100;
    while left > 0 {
        let accept = json!({ "received": received, "limit": 50, "wait_ms": 1_000 });
        let accepted = server.post(&format!("{path}/accept"), &accept).await.body;
        let ends: Vec<Value> = accepted["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| {
                received = received.max(job["claim"].as_u64().unwrap());
                json!({ "id": job["id"], "claim": job["claim"] })
            })
            .collect();
        left -= ends.len();
        let value = keda.wanted().await.unwrap();
        assert!((1..=100).contains(&value), "{value} slots for 100 jobs, {left} of them pending");
        assert!(keda.active().await.unwrap());
        let ended = server.post(&format!("{path}/end"), &json!({ "finish": ends })).await;
        assert_eq!(ended.status, 200, "{}", ended.body);
    }
    assert_eq!(stream.next().await.unwrap(), Some(false));
    assert_eq!((keda.active().await.unwrap(), keda.wanted().await.unwrap()), (false, 0));
    // A server that stops ends the stream: KEDA opens another one.
    let (ended, ()) = tokio::join!(stream.next(), server.server.shutdown());
    assert_eq!(ended.unwrap(), None);
}

#[tokio::test]
async fn wrong_metadata_is_refused_and_says_what_is_right() {
    let (_server, port) = start("[workers]\ndrain_target = 10\n").await;
    for (metadata, part) in [
        (&[][..], "`type` is missing"),
        (&[("type", "a b")], "no name of a type"),
        (&[("type", "t"), ("slots", "0")], "`slots` must be a whole number from 1 to 100000"),
        (&[("type", "t"), ("slots", "many")], "`slots` must be"),
        (&[("type", "t"), ("drainTarget", "60s")], "`drainTarget` must be whole seconds from 1 to 86400"),
    ] {
        let mut keda = KedaClient::connect(port, metadata).await;
        for status in [keda.active().await.unwrap_err(), keda.wanted().await.unwrap_err()] {
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(part), "{}", status.message());
        }
        if metadata.len() < 2 || metadata[1].0 == "slots" {
            assert_eq!(keda.target().await.unwrap_err().code(), Code::InvalidArgument);
        }
        let mut stream = keda.stream().await.unwrap();
        assert_eq!(stream.next().await.unwrap_err().code(), Code::InvalidArgument);
    }
    let mut keda = KedaClient::connect(port, &[("type", "t"), ("scalerAddress", "turnwise:1")]).await;
    assert_eq!(keda.target().await.unwrap(), 1);
    let other = keda.call("/externalscaler.ExternalScaler/StreamMetricSpec").await;
    assert_eq!(other.unwrap_err().code(), Code::Unimplemented, "KEDA then reads the specification once");
    // The port speaks gRPC alone.
    assert!(reqwest::get(format!("http://127.0.0.1:{port}/v1/types/t/demand")).await.is_err());
}

#[tokio::test]
async fn a_sender_needs_the_right_to_read_the_metrics() {
    let (server, port) = start("").await;
    let admin = server.close().await;
    let mut keda = KedaClient::connect(port, &[("type", "t")]).await;
    assert_eq!(keda.active().await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(keda.target().await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(keda.stream().await.err().unwrap().code(), Code::Unauthenticated);
    keda.metadata.insert("token".to_owned(), "tw_not\n".to_owned());
    let refused = keda.wanted().await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(!refused.message().contains("tw_"), "{}", refused.message());
    let client = server.with(&admin).token(&["client:*"]).await;
    keda.metadata.insert("token".to_owned(), client);
    assert_eq!(keda.wanted().await.unwrap_err().code(), Code::PermissionDenied);

    let made = server.with(&admin).post("/v1/tokens", &json!({ "scopes": ["metrics"] })).await.body;
    let (token, id) = (made["token"].as_str().unwrap(), made["id"].as_str().unwrap());
    keda.metadata.remove("token");
    keda.authorization = Some(format!("Bearer {token}"));
    assert!(!keda.active().await.unwrap());
    // KEDA puts the variable's value into the metadata, and sends no header.
    keda.authorization = None;
    keda.metadata.insert("tokenFromEnv".to_owned(), token.to_owned());
    assert_eq!(keda.wanted().await.unwrap(), 0);
    let mut stream = keda.stream().await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Some(false));
    assert_eq!(server.with(&admin).delete(&format!("/v1/tokens/{id}")).await.status, 200);
    assert_eq!(
        stream.next().await.unwrap_err().code(),
        Code::Unauthenticated,
        "a revoked token ends a stream"
    );
}

#[tokio::test]
async fn the_port_has_the_certificate_of_the_listener() {
    let folder = tempfile::tempdir().unwrap();
    let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, authority.cert.pem()).unwrap();
    std::fs::write(&key, authority.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let listener = format!("[listener]\ncertificate = {}\nkey = {}\n", certificate.display(), key.display());
    let (_server, port) = start(&listener).await;
    let mut keda = KedaClient::connect_tls(port, &authority.cert.pem(), &[("type", "t")]).await.unwrap();
    assert_eq!(keda.wanted().await.unwrap(), 0);
    let plain = KedaClient::try_connect(port, &[("type", "t")]).await;
    let refused = match plain {
        Ok(mut plain) => plain.active().await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "without TLS there is no answer");
}
