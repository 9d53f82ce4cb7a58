//! Peers that are reached through proxies.

use serde_json::json;
use turnwise_outbound::{Client, Connections, Tls};
use turnwise_replicator::{Context, Defaults, Replication, replicate};
use turnwise_testkit::{Dataset, Peer, compare};

use super::certificates::Authority;
use super::proxy::{Speaks, TestProxy};
use super::server::{Manner, Server};
use super::{client, job, run};

const LOGIN: &str = "ann:hunter2 of %";
/// The same in a URL.
const USERINFO: &str = "ann:hunter2%20of%20%25";

fn trusting(authority: &Authority) -> Client {
    let tls = Tls { trusted_certificates_file: Some(authority.file("ca.pem")), ..Tls::default() };
    client(Connections { tls, ..Connections::default() })
}

/// `host:port` of a URL.
fn server_of(url: &str) -> &str {
    let rest = url.split_once("://").unwrap().1;
    let authority = rest.split('/').next().unwrap();
    authority.rsplit('@').next().unwrap()
}

#[tokio::test]
async fn a_replication_by_two_proxies_copies_everything() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::small().load(&from).await;
    let http = TestProxy::start(Speaks::Http, Some(LOGIN)).await;
    let socks = TestProxy::start(Speaks::Socks5, Some(LOGIN)).await;
    let body = json!({"source": from.url(), "target": to.url(),
        "source_proxy": format!("http://{USERINFO}@{}", http.address),
        "target_proxy": format!("socks5://{USERINFO}@{}", socks.address)});
    let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
    let context = Context::new(Client::new().unwrap(), "0123456789abcdef0123456789abcdef");
    replicate(&replication, &context).await.unwrap();
    compare(&from, &to).await.unwrap();
    let of_source = format!(" http://{}/", server_of(from.url()));
    assert!(http.asked().iter().all(|asked| asked.contains(&of_source)), "{:?}", http.asked());
    assert!(http.asked().len() > 3);
    let of_target = format!("SOCKS {}", server_of(to.url()));
    assert!(!socks.asked().is_empty() && socks.asked().iter().all(|asked| *asked == of_target));
}

#[tokio::test]
async fn an_https_peer_is_reached_through_each_kind_of_proxy() {
    let authority = Authority::new(0);
    let tls = Some(authority.server("127.0.0.1", false));
    let server = Server::with(Manner { tls, ..Manner::default() }).await;
    let client = trusting(&authority);
    let under_tls = Speaks::Https(authority.server("127.0.0.1", false));
    for (speaks, scheme, verb) in [
        (Speaks::Http, "http", "CONNECT"),
        (under_tls, "https", "CONNECT"),
        (Speaks::Socks5, "socks5", "SOCKS"),
    ] {
        let proxy = TestProxy::start(speaks, Some(LOGIN)).await;
        let url = format!("{scheme}://{USERINFO}@{}", proxy.address);
        for _ in 0..2 {
            run(&client, &server.url("https"), json!({"proxy": url})).await.unwrap();
        }
        // The second went over the first one's connection.
        assert_eq!(proxy.asked(), [format!("{verb} {}", server.address)]);
    }
    assert_eq!(server.count().accepted, 3);
    assert!(server.heads().iter().all(|head| head.starts_with("GET /db/") && !head.contains("proxy")));
}

#[tokio::test]
async fn an_http_peer_is_reached_through_an_https_proxy() {
    let authority = Authority::new(0);
    let server = Server::start().await;
    let proxy = TestProxy::start(Speaks::Https(authority.server("127.0.0.1", false)), None).await;
    let fields = json!({"source_proxy": format!("https://{}", proxy.address)});
    run(&trusting(&authority), &server.url("http"), fields.clone()).await.unwrap();
    assert_eq!(proxy.asked(), [format!("GET {}/_design/d", server.url("http"))]);
    let error = run(&Client::new().unwrap(), &server.url("http"), fields).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_wrong_login_is_reported_without_its_password() {
    let server = Server::start().await;
    let client = Client::new().unwrap();
    for (speaks, scheme) in [(Speaks::Http, "http"), (Speaks::Socks5, "socks5")] {
        let proxy = TestProxy::start(speaks, Some(LOGIN)).await;
        for userinfo in ["ann:hunter3@", ""] {
            let url = format!("{scheme}://{userinfo}{}", proxy.address);
            for peer in [server.url("http"), server.url("https")] {
                let error = run(&client, &peer, json!({"proxy": url})).await.unwrap_err().to_string();
                assert!(!error.contains("hunter"), "{error}");
                let tells =
                    ["407", "proxy authorization required", "credentials not accepted", "authentication"];
                assert!(tells.iter().any(|tell| error.contains(tell)), "{error}");
            }
        }
        assert!(proxy.asked().iter().all(|asked| asked == "refused"));
    }
    assert_eq!(server.count().accepted, 0);
}

#[tokio::test]
async fn a_proxy_that_is_gone_is_an_error_of_the_connection() {
    let server = Server::start().await;
    let fields = json!({"proxy": "socks5://ann:hunter2@127.0.0.1:1"});
    let error = run(&Client::new().unwrap(), &server.url("http"), fields).await.unwrap_err().to_string();
    assert!(error.contains("no connection") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_debug_print_of_a_replication_shows_no_proxys_password() {
    let job = job("http://a/db", json!({"proxy": "http://ann:hunter2@p"}));
    assert!(!format!("{job:?}").contains("hunter2"));
}
