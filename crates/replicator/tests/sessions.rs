//! Tests of replications whose cookies expire while they run, between servers that require a login.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use turnwise_testkit::{
    Database, Dataset, Fault, FaultProxy, Peer as Server, PeerOptions, Request, Rule, compare,
};

use turnwise_outbound::{AuthPlugin, Client};
use turnwise_replicator::{Context, Defaults, Replication, replicate};

const PASSWORD: &str = "hunter2";

struct World {
    _servers: [Server; 2],
    from: Database,
    to: Database,
    before_source: FaultProxy,
    before_target: FaultProxy,
    context: Context,
}

impl World {
    async fn new() -> Self {
        let server = || PeerOptions::default().admin("admin", PASSWORD).start();
        let (source, target) = tokio::join!(server(), server());
        let (from, to) = (source.create("from").await, target.create("to").await);
        let (before_source, before_target) =
            tokio::join!(FaultProxy::start(&source), FaultProxy::start(&target));
        let context = Context::new(Client::new().unwrap(), "uuid");
        Self { _servers: [source, target], from, to, before_source, before_target, context }
    }

    fn replication(&self, fields: serde_json::Value) -> Replication {
        let mut body = json!({"source": self.before_source.through(&self.from),
            "target": self.before_target.through(&self.to), "retries_per_request": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap()
    }

    fn proxies(&self) -> [&FaultProxy; 2] {
        [&self.before_source, &self.before_target]
    }

    /// All sessions end at the first request for which `which` returns true.
    fn ends(&self, which: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Rule {
        let (client, over) = (self.context.client.clone(), AtomicBool::new(false));
        Fault::Status(401).when(move |request| {
            let first = !is_login(request) && which(request) && !over.swap(true, Ordering::Relaxed);
            if first {
                // Servers renew their cookies with every response; this one was not renewed for long.
                client.age_sessions(Duration::from_secs(6));
            }
            first
        })
    }
}

fn is_login(request: &Request) -> bool {
    request.path == "/_session"
}

#[tokio::test]
async fn one_login_at_each_server_and_no_password_in_any_other_request() {
    let world = World::new().await;
    Dataset::small().load(&world.from).await;
    let replication = world.replication(json!({}));
    let runs = (0..3).map(|_| replicate(&replication, &world.context));
    futures::future::try_join_all(runs).await.unwrap();
    compare(&world.from, &world.to).await.unwrap();
    for proxy in world.proxies() {
        assert_eq!(proxy.count(is_login), 1);
        assert!(proxy.requests().iter().all(|request| request.header("authorization").is_none()));
        assert!(proxy.count(|request| request.header("cookie").is_some()) > 5);
    }
}

#[tokio::test]
async fn a_cookie_that_ends_is_renewed_and_every_request_goes_on() {
    let world = World::new().await;
    Dataset::small().load(&world.from).await;
    let replication = world.replication(json!({}));
    replicate(&replication, &world.context).await.unwrap();
    world.from.put("late", &json!({})).await;
    world.before_source.set(world.ends(|_| true)).await;
    world.before_target.set(world.ends(|request| request.method == "POST")).await;
    replicate(&replication, &world.context).await.unwrap();
    compare(&world.from, &world.to).await.unwrap();
    assert_eq!(world.proxies().map(|proxy| proxy.count(is_login)), [2, 2]);
}

#[tokio::test]
async fn an_upload_that_cannot_be_sent_again_survives_the_end_of_its_cookie() {
    let world = World::new().await;
    let replication = world.replication(json!({}));
    replicate(&replication, &world.context).await.unwrap();
    let attachment = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, vec![b'x'; 600_000]);
    for id in ["a", "b"] {
        let attachments = json!({"big": {"content_type": "text/plain", "data": attachment}});
        world.from.put(id, &json!({"_attachments": attachments})).await;
    }
    world.before_target.set(world.ends(|request| request.method == "PUT")).await;
    let report = replicate(&replication, &world.context).await.unwrap();
    assert_eq!((report.stats.docs_written, report.stats.doc_write_failures), (2, 0));
    compare(&world.from, &world.to).await.unwrap();
    let refused = |request: &Request| request.method == "PUT" && request.status == Some(401);
    assert_eq!(world.before_target.count(refused), 1);
    assert_eq!(world.before_target.count(is_login), 2);
}

/// A document that is forbidden in its row: only to the anonymous user after the end of a session, or to everyone.
#[tokio::test]
async fn a_forbidden_row_is_written_once_more_after_a_new_login() {
    for to_everyone in [false, true] {
        let world = World::new().await;
        let replication = world.replication(json!({}));
        replicate(&replication, &world.context).await.unwrap();
        for id in ["late", "later"] {
            world.from.put(id, &json!({})).await;
        }
        let (client, was_refused) = (world.context.client.clone(), AtomicBool::new(false));
        let body = r#"[{"id":"late","error":"forbidden","reason":"not to you"}]"#.to_owned();
        let forbidden = Fault::Answer { status: 201, body }.when(move |request| {
            // However long the write takes: the login before it is old when the response comes.
            let refuses = request.path.contains("_bulk_docs")
                && (to_everyone || !was_refused.swap(true, Ordering::Relaxed));
            if refuses {
                client.age_sessions(Duration::from_secs(6));
            }
            refuses
        });
        world.before_target.set(forbidden).await;
        let stats = replicate(&replication, &world.context).await.unwrap().stats;
        let expected = if to_everyone { (1, 1) } else { (2, 0) };
        assert_eq!((stats.docs_written, stats.doc_write_failures), expected);
        let writes = |request: &Request| request.path.contains("_bulk_docs");
        assert_eq!((world.before_target.count(writes), world.before_target.count(is_login)), (2, 2));
    }
}

#[tokio::test]
async fn a_forbidden_upload_is_final_after_one_new_login_however_long_it_takes() {
    let world = World::new().await;
    let replication = world.replication(json!({}));
    replicate(&replication, &world.context).await.unwrap();
    let attachment = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, vec![b'x'; 600_000]);
    let attachments = json!({"big": {"content_type": "text/plain", "data": attachment}});
    world.from.put("a", &json!({"_attachments": attachments})).await;
    let client = world.context.client.clone();
    let body = r#"{"error":"forbidden","reason":"no"}"#.to_owned();
    let uploads = |request: &Request| request.method == "PUT" && !request.path.contains("_local");
    let forbidden = Fault::Answer { status: 403, body }.when(move |request| {
        if uploads(request) {
            client.age_sessions(Duration::from_secs(6));
        }
        uploads(request)
    });
    world.before_target.set(forbidden).await;
    let stats = replicate(&replication, &world.context).await.unwrap().stats;
    assert_eq!((stats.docs_written, stats.doc_write_failures), (0, 1));
    assert_eq!((world.before_target.count(uploads), world.before_target.count(is_login)), (2, 2));
}

#[tokio::test]
async fn a_forbidden_request_fails_after_one_new_login() {
    let world = World::new().await;
    let replication = world.replication(json!({}));
    replicate(&replication, &world.context).await.unwrap();
    world.context.client.age_sessions(Duration::from_secs(6));
    world.before_source.set(Fault::Status(403).when(|request| request.path.starts_with("/from"))).await;
    let error = replicate(&replication, &world.context).await.unwrap_err();
    assert_eq!(error.status(), Some(403), "{error}");
    assert_eq!(world.before_source.count(is_login), 2);
    assert!(!format!("{error} {error:?}").contains(PASSWORD));
}

#[tokio::test]
async fn a_session_of_another_application_is_not_the_databases() {
    let pages = [
        (401, "<html>Log in</html>"),
        (403, "{\"message\":\"Forbidden\"}"),
        (429, ""),
        (500, "oops"),
        (502, "<html>"),
    ];
    for (status, body) in pages {
        let world = World::new().await;
        Dataset::small().load(&world.from).await;
        for proxy in world.proxies() {
            proxy.set(Fault::Answer { status, body: body.to_owned() }.when(is_login)).await;
        }
        replicate(&world.replication(json!({})), &world.context).await.unwrap();
        compare(&world.from, &world.to).await.unwrap();
        for proxy in world.proxies() {
            // A 401 may ask for the password with the login itself, which is the second one.
            let logins = if status == 401 { 2 } else { 1 };
            assert_eq!(proxy.count(is_login), logins, "{status}");
        }
    }
}

#[tokio::test]
async fn a_server_without_sessions_gets_the_password_instead() {
    let world = World::new().await;
    Dataset::small().load(&world.from).await;
    for proxy in world.proxies() {
        proxy.set(Fault::Status(404).when(is_login)).await;
    }
    let replication = world.replication(json!({}));
    replicate(&replication, &world.context).await.unwrap();
    compare(&world.from, &world.to).await.unwrap();
    for proxy in world.proxies() {
        assert_eq!(proxy.count(is_login), 1);
        assert!(proxy.count(|request| request.header("authorization").is_some()) > 2);
    }
    let only = |plugin| {
        let mut defaults = Defaults::default();
        defaults.peers.auth_plugins = vec![plugin];
        defaults
    };
    // If the configuration forbids passwords in each request, that is an error.
    let only_sessions = only(AuthPlugin::Session);
    let body = json!({"source": world.before_source.through(&world.from), "target": world.to.url()});
    let replication = Replication::parse(body.as_object().unwrap(), &only_sessions).unwrap();
    let error = replicate(&replication, &world.context).await.unwrap_err().to_string();
    assert!(error.starts_with("the server has no sessions; add `basic`"), "{error}");
    assert!(error.contains("/_session"), "{error}");
    let basic = only(AuthPlugin::Basic);
    replicate(&Replication::parse(body.as_object().unwrap(), &basic).unwrap(), &world.context).await.unwrap();
    assert_eq!(world.before_source.count(is_login), 1);
}
