//! Pages of other origins: what the configured ones may do, and that all others may do nothing.

use crate::common::{Answer, TestServer, until};
use serde_json::json;
use std::collections::BTreeMap;
use turnwise_testkit::{CouchDb, client};

const CONFIGURED: &str =
    "[chttpd]\nenable_cors = true\n[cors]\norigins = https://app.example, capacitor://localhost\n";
const APP: &str = "https://app.example";
const STRANGER: &str = "https://evil.example";

/// The headers of a page's request.
type Headers<'a> = &'a [(&'a str, &'a str)];

async fn ask(server: &TestServer, method: &str, path: &str, headers: Headers<'_>) -> Answer {
    let request = headers
        .iter()
        .fold(server.request(method, path), |request, (name, value)| request.header(*name, *value));
    server.send(request).await
}

fn allowed_origin(answer: &Answer) -> Option<&str> {
    answer.headers.get("access-control-allow-origin").map(|origin| origin.to_str().unwrap())
}

#[tokio::test]
async fn without_configuration_no_page_is_permitted_anything() {
    // Origins without `enable_cors` have no effect, either.
    for origins in [None, Some("\"https://app.example\"")] {
        let server = TestServer::start().await;
        if let Some(origins) = origins {
            let set = server.request("PUT", "/_node/_local/_config/cors/origins").body(origins);
            assert_eq!(server.send(set).await.status, 200);
        }
        for (method, path, more) in [
            ("OPTIONS", "/_replicator/a", ("access-control-request-method", "PUT")),
            ("OPTIONS", "/v1/jobs/t", ("access-control-request-method", "POST")),
            ("GET", "/", ("accept", "application/json")),
            ("DELETE", "/_replicator/a", ("accept", "application/json")),
        ] {
            let answer = ask(&server, method, path, &[("origin", APP), more]).await;
            assert_eq!(answer.status == 200, method == "GET", "{method} {path}: {}", answer.body);
            assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("access-control-")));
            assert_eq!(answer.header("vary"), "", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_preflight_passes_without_credentials_where_the_store_is_closed() {
    let server = TestServer::start_with(CONFIGURED).await;
    let admin = server.close().await;
    for path in ["/_replicator/a", "/v1/jobs/t", "/_session", "/nothing"] {
        let preflight = [
            ("origin", APP),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "Content-Type,authorization"),
        ];
        let answer = ask(&server, "OPTIONS", path, &preflight).await;
        assert_eq!((answer.status, allowed_origin(&answer)), (204, Some(APP)), "{path}");
        assert_eq!(answer.header("access-control-allow-headers"), "Content-Type,authorization");
        assert!(answer.header("access-control-allow-methods").contains("PUT"));
        assert_eq!((answer.header("access-control-max-age"), answer.header("vary")), ("600", "Origin"));
        assert_eq!(answer.header("access-control-allow-credentials"), "");
        // The request itself needs them. The page may read that.
        let answer = ask(&server, "GET", path, &[("origin", APP)]).await;
        assert_eq!(
            (answer.status >= 400, allowed_origin(&answer)),
            (path != "/_session", Some(APP)),
            "{path}"
        );
    }
    let not_permitted: [Headers<'_>; 6] = [
        &[("origin", STRANGER), ("access-control-request-method", "PUT")],
        &[("origin", "https://app.example:8443"), ("access-control-request-method", "PUT")],
        &[("origin", "http://app.example"), ("access-control-request-method", "PUT")],
        &[("origin", APP), ("origin", APP), ("access-control-request-method", "PUT")],
        &[("origin", APP), ("access-control-request-method", "PATCH")],
        &[
            ("origin", APP),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-evil"),
        ],
    ];
    for headers in not_permitted {
        let answer = ask(&server, "OPTIONS", "/_replicator/a", headers).await;
        assert!(answer.status >= 400, "{headers:?}");
        assert_eq!(answer.header("access-control-allow-methods"), "", "{headers:?}");
    }
    // With credentials, a page of this origin changes something.
    let token = format!("Bearer {admin}");
    let body = crate::common::failed(1).to_string();
    for (origin, status) in [(APP, 201), ("capacitor://localhost", 201), (STRANGER, 403), ("null", 403)] {
        let path = format!("/_replicator/{}", origin.len());
        let request = server.request("PUT", &path).header("authorization", &token).header("origin", origin);
        let request =
            request.header("sec-fetch-site", "cross-site").header("content-type", "application/json");
        let answer = server.send(request.body(body.clone())).await;
        assert_eq!(answer.status, status, "{origin}: {}", answer.body);
        assert_eq!(allowed_origin(&answer), (status == 201).then_some(origin));
        assert_eq!(answer.header("vary"), "Origin");
    }
    // A cache must not give this response to a page.
    assert_eq!(server.get("/").await.header("vary"), "Origin");
}

#[tokio::test]
async fn a_configured_origin_changes_no_other_rule_for_browsers() {
    let server = TestServer::start_with(CONFIGURED).await;
    let rebound = [("origin", APP), ("host", "evil.example"), ("access-control-request-method", "PUT")];
    for method in ["OPTIONS", "GET", "DELETE"] {
        let answer = ask(&server, method, "/_replicator/a", &rebound).await;
        assert_eq!((answer.status, allowed_origin(&answer)), (421, None), "{method}");
    }
    let form = [("origin", APP), ("content-type", "text/plain")];
    assert_eq!(ask(&server, "POST", "/v1/jobs/t", &form).await.error(), (415, "bad_content_type"));
    // A browser names the origin of each request that may change something.
    let hidden = [("sec-fetch-site", "cross-site")];
    assert_eq!(ask(&server, "DELETE", "/_replicator/a", &hidden).await.error(), (403, "forbidden"));
    let two = [("origin", APP), ("origin", STRANGER)];
    assert_eq!(ask(&server, "DELETE", "/_replicator/a", &two).await.error(), (403, "forbidden"));
}

#[tokio::test]
async fn cookies_are_for_origins_with_a_name_and_settings_change_at_run_time() {
    let server = TestServer::start_with(CONFIGURED).await;
    let credentials = async |origin: &str| {
        let answer = ask(&server, "GET", "/", &[("origin", origin)]).await;
        let allowed = answer.header("access-control-allow-credentials") == "true";
        (allowed_origin(&answer) == Some(origin)).then_some(allowed)
    };
    // A node applies a setting soon after it is written.
    let set = async |key: &str, value: &str, expected: (Option<bool>, Option<bool>)| {
        let path = format!("/_node/_local/_config/cors/{key}");
        let answer = server.send(server.request("PUT", &path).body(json!(value).to_string())).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let both = async || (credentials(APP).await, credentials(STRANGER).await);
        until("the setting is applied", both, |both| *both == expected).await;
    };
    let login = async |origin: &str| {
        let form = [("origin", origin), ("content-type", "application/x-www-form-urlencoded")];
        ask(&server, "POST", "/_session", &form).await.status
    };
    assert_eq!((credentials(APP).await, credentials(STRANGER).await), (Some(false), None));
    assert_eq!((login(APP).await, login(STRANGER).await), (403, 403));
    set("credentials", "true", (Some(true), None)).await;
    // The form has no password, and is read.
    assert_eq!((login(APP).await, login(STRANGER).await), (400, 403));
    set("origins", "https://app.example, *", (Some(true), Some(false))).await;
    assert_eq!(credentials("null").await, Some(false));
    assert_eq!((login(APP).await, login(STRANGER).await), (400, 403));
    let answer = ask(&server, "DELETE", "/_replicator/a?rev=1-a", &[("origin", STRANGER)]).await;
    assert_eq!(answer.status, 404, "{}", answer.body);
    set("origins", STRANGER, (None, Some(true))).await;
}

#[tokio::test]
async fn the_headers_are_those_of_couchdb() {
    let Some(couchdb) = CouchDb::start().await else { return };
    let server = TestServer::start_with(CONFIGURED).await;
    let config = |key: &str| format!("/_node/_local/_config/{key}");
    let put = reqwest::Method::PUT;
    for (key, value) in [("chttpd/enable_cors", "true"), ("cors/origins", "https://app.example")] {
        assert_eq!(couchdb.request(put.clone(), &config(key), Some(&json!(value))).await.0, 200);
    }
    let wanted = "access-control-request-method";
    let headers = "access-control-request-headers";
    let requests: [(&str, &str, Headers<'_>); 14] = [
        ("GET", "/", &[]),
        ("GET", "/", &[("origin", APP)]),
        ("GET", "/", &[("origin", STRANGER)]),
        ("GET", "/", &[("origin", "https://App.example")]),
        ("GET", "/_all_dbs", &[("origin", APP)]),
        ("GET", "/_replicator/nothing", &[("origin", APP)]),
        ("OPTIONS", "/", &[("origin", APP)]),
        ("OPTIONS", "/_replicator/a", &[("origin", APP), (wanted, "PUT")]),
        (
            "OPTIONS",
            "/_replicator/a",
            &[("origin", APP), (wanted, "PUT"), (headers, "Content-Type, if-match")],
        ),
        ("OPTIONS", "/_replicator/a", &[("origin", APP), (wanted, "PUT"), (headers, "")]),
        ("OPTIONS", "/_replicator/a", &[("origin", APP), (wanted, "PUT"), (headers, "accept,x-else")]),
        ("OPTIONS", "/_replicator/a", &[("origin", APP), (wanted, "PATCH")]),
        ("OPTIONS", "/_replicator/a", &[("origin", APP), (wanted, "put")]),
        ("OPTIONS", "/_replicator/a", &[("origin", STRANGER), (wanted, "PUT")]),
    ];
    for credentials in ["false", "true"] {
        let answer =
            couchdb.request(put.clone(), &config("cors/credentials"), Some(&json!(credentials))).await;
        assert_eq!(answer.0, 200);
        let own = server.request("PUT", &config("cors/credentials")).body(json!(credentials).to_string());
        assert_eq!(server.send(own).await.status, 200);
        for (method, path, headers) in requests {
            let mut answers = Vec::new();
            for url in [couchdb.url(), &server.url] {
                let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
                let mut request = client().request(method, format!("{url}{path}"));
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
                let answer = request.send().await.unwrap();
                let cors: BTreeMap<String, String> = answer
                    .headers()
                    .iter()
                    .filter(|(name, _)| name.as_str().starts_with("access-control-"))
                    .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                    .collect();
                answers.push((answer.status().as_u16(), cors));
            }
            assert_eq!(answers[1], answers[0], "{method} {path} {headers:?}");
        }
    }
}
