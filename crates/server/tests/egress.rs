//! Which addresses the replications of tenants may reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use turnwise_testkit::Peer;

use crate::common::{As, TestServer};

/// A server on loopback that counts the connections that reach it.
struct Internal {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Internal {
    async fn start() -> Internal {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, connections) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let counted = connections.clone();
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counted.fetch_add(1, SeqCst);
            }
        });
        Internal { port, connections }
    }
}

async fn reason(caller: &As<'_>, replication: &Value) -> String {
    let answer = caller.post("/_replicate", replication).await;
    assert!(answer.status >= 400, "{}", answer.body);
    answer.body["reason"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn tenants_reach_no_internal_address_in_any_form() {
    let internal = Internal::start().await;
    let port = internal.port;
    let peer = Peer::start().await;
    let target = peer.create("target").await;
    let rules = format!(
        "connect_to = public.example:80:127.0.0.1:{port}\n[egress]\nallow = 127.0.0.1/32:{}\n",
        url_port(target.url())
    );
    let server = TestServer::start_with(&rules).await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["client:acme"]).await;
    let client = server.with(&token);
    let hosts = [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "0",
        "[::]",
        "LOCALHOST",
        "169.254.169.254",
    ];
    let mut sources: Vec<Value> =
        hosts.iter().map(|host| json!(format!("http://{host}:{port}/secret"))).collect();
    sources.push(json!("http://public.example/secret"));
    // It may be reached, so that every refusal is about the source.
    let target = target.url();
    for source in &sources {
        let told = reason(&client, &json!({"source": source, "target": target})).await;
        assert!(told.contains("[egress]"), "{source}: {told}");
        // The host that `connect_to` has chosen is the operator's.
        let is_redirected = source.as_str().unwrap().contains("public.example");
        assert!(!(is_redirected && told.contains("127.0.0.1")), "{source}: {told}");
    }
    // Through proxies: that of the tenant is internal itself.
    for proxy in ["http://127.0.0.1", "socks5://2130706433", "http://localhost"] {
        let replication = json!({"source": "http://203.0.113.9/a", "target": target, "source_proxy": format!("{proxy}:{port}")});
        let told = reason(&client, &replication).await;
        assert!(told.contains("[egress]"), "{proxy}: {told}");
    }
    // Also where the code of a filter is read, before there is a job.
    let filtered = json!({"source": sources[0], "target": target, "filter": "d/f"});
    let told = reason(&client, &filtered).await;
    assert!(told.contains("[egress]"), "{told}");
    // The server itself, under each of its addresses.
    let own = json!({"source": format!("{}/acme/_replicator", server.url), "target": target});
    assert!(reason(&client, &own).await.contains("[egress]"));
    // A document of the tenant, which its database starts.
    let database = admin.token(&["client:acme/*"]).await;
    let database = server.with(&database);
    assert_eq!(database.put("/acme/_replicator", &Value::Null).await.status, 201);
    let doc = json!({"source": sources[0], "target": target});
    assert_eq!(database.put("/acme/_replicator/d", &doc).await.status, 201);
    let path = "/_scheduler/docs/acme/_replicator/d";
    let status = admin.poll(path, |status| status["state"] == "crashing").await;
    let why = status["info"]["error"].to_string();
    assert!(why.contains("[egress]"), "{why}");
    assert_eq!(internal.connections.load(SeqCst), 0, "something was connected to");
}

#[tokio::test]
async fn operators_and_exceptions_reach_what_tenants_do_not() {
    let peer = Peer::start().await;
    let source = peer.create("source").await;
    source.put("d", &json!({})).await;
    let port = url_port(source.url());
    let replication =
        |name: &str| json!({"source": source.url(), "target": peer.db(name).url(), "create_target": true});
    let server = TestServer::start().await;
    // Without identities, nothing is kept from anyone.
    assert_eq!(server.post("/_replicate", &replication("open")).await.status, 200);
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["client:acme"]).await;
    assert!(reason(&server.with(&token), &replication("tenant")).await.contains("[egress]"));
    assert_eq!(admin.post("/_replicate", &replication("operator")).await.status, 200);
    let doc = replication("main");
    assert_eq!(admin.put("/_replicator/d", &doc).await.status, 201);
    admin.poll("/_scheduler/docs/_replicator/d", |status| status["state"] == "completed").await;

    let rules = format!("[egress]\nallow = 127.0.0.0/8:{port}\n");
    let server = TestServer::start_with(&rules).await;
    let admin = server.close().await;
    let token = server.with(&admin).token(&["client:acme"]).await;
    let allowed = server.with(&token).post("/_replicate", &replication("allowed")).await;
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    // An allowed proxy is no way to what is not allowed.
    let internal = Internal::start().await;
    let target = peer.create("behind").await;
    let behind = json!({
        "source": format!("http://localhost:{}/a", internal.port), "target": target.url(),
        "source_proxy": format!("http://127.0.0.1:{port}")
    });
    let told = reason(&server.with(&token), &behind).await;
    assert!(told.contains("[egress]"), "{told}");
    assert_eq!(internal.connections.load(SeqCst), 0);

    let server = TestServer::start_with("[egress]\ndeny = localhost,127.0.0.0/8\n").await;
    let told = reason(&server.nobody(), &replication("denied")).await;
    assert!(told.contains("[egress]"), "what is denied is denied to all: {told}");
}

fn url_port(url: &str) -> u16 {
    let rest = url.split_once("://").unwrap().1;
    let address = rest.split('/').next().unwrap();
    address.rsplit(':').next().unwrap().parse().unwrap()
}
