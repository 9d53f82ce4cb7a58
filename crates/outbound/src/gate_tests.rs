//! Tests that requests which wait do not block others.
#![allow(clippy::unwrap_used)]

use futures::future;
use serde_json::json;
use turnwise_testkit::Fake;

use super::*;
use crate::gate::REQUESTS_PER_SERVER;

#[tokio::test]
async fn a_throttled_database_keeps_no_place_from_its_servers_other_databases() {
    let fake = Fake::start().await;
    let client = Client::new().unwrap();
    let source_of = |url: String| {
        let endpoint = Endpoint::parse("source", &json!(url), &["http".to_owned()]).unwrap();
        let settings = PeerSettings {
            auth_plugins: Vec::new(),
            session_refresh_interval: Duration::from_secs(600),
            http_connections: 2 * REQUESTS_PER_SERVER,
            socket_options: SocketOptions::default(),
            connection_timeout: Duration::from_secs(30),
            request_timeout: None,
            minimum_progress: MinimumProgress::default(),
            max_document_bytes: 1 << 20,
            retries_per_request: 0,
            tenant: None,
        };
        Peer::new(Side::Source, &endpoint, &settings, Arc::default(), &client)
    };
    let (throttled, other) = (source_of(fake.url()), source_of(fake.url().replace("/db", "/other")));
    // The server's `Retry-After`: nothing is sent for half a minute.
    let (status, retry_after) =
        (StatusCode::TOO_MANY_REQUESTS, Some(crate::rate_limiter::LONGEST_RETRY_AFTER));
    let limiter = &client.0.limiter;
    limiter.answered(&Method::GET, &throttled.0.base, status, retry_after, limiter.now_ms());
    let (info, asked) = (Request::get(""), Request::get("_local/x"));
    let waiting = future::join_all((0..2 * REQUESTS_PER_SERVER).map(|_| throttled.send(&asked)));
    let answered = tokio::select! {
        // First, so that all of them wait before the other request is sent.
        biased;
        _ = waiting => panic!("those that were to wait have been sent"),
        answered = tokio::time::timeout(Duration::from_secs(20), other.send(&info)) => answered,
    };
    assert!(answered.expect("it waits for those that wait").is_ok());
    assert_eq!(fake.requests().len(), 1);
}
