//! Identities: what each scope may do on every route, tokens, users and sessions, on one node and on several.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwise_server::offline::Identities;
use turnwise_server::{Config, Server, ServerConfig, StartError, StoreUrl};

use crate::common::{Answer, As, Cluster, TestServer, until};

/// What a route needs, as its path and method suggest: the table in the code is compared with this rule.
fn needed(method: &str, path: &str) -> &'static str {
    let reads = method == "GET" || method == "HEAD";
    let operators = ["/v1/workers", "/v1/nodes", "/v1/store", "/v1/types"];
    match path {
        "/" | "/_up" | "/_uuids" | "/v1/openapi.json" | "/_session" => "nothing",
        "/v1/me" => "identity",
        "/_membership" | "/_node/_local/_config" => "operator",
        "/_replicate" => "write",
        "/_node/_local/_prometheus" | "/_node/_local/_stats" | "/_node/_local/_system" => "metrics",
        _ if path.starts_with("/v1/users") || path.starts_with("/v1/tokens") => "admin",
        _ if ["/v1/fleets", "/v1/nodes", "/v1/type"].iter().any(|prefix| path.starts_with(prefix)) => {
            "operator"
        }
        _ if path.starts_with("/v1/workers") && method == "PUT" => "operator",
        _ if path.starts_with("/v1/webhooks") => "write",
        // Who only looks at a job does not see its options.
        _ if path.starts_with("/v1/jobs/") && path.ends_with("/options") => "write",
        _ if path.starts_with("/v1/filters") || reads && operators.contains(&path) => "operator",
        _ if path.starts_with("/v1/workers") => "worker",
        "/acme/_replicator/_all_docs"
        | "/acme/_replicator/_changes"
        | "/acme/_replicator/_bulk_get"
        | "/acme/_replicator/_revs_diff"
        | "/acme/_replicator/_ensure_full_commit"
        | "/v1/schedule_preview" => "read",
        _ if reads => "read",
        _ => "write",
    }
}

/// Whether an identity with this scope has a right.
fn has(scope: &str, right: &str) -> bool {
    match scope {
        "admin" => true,
        "operator" => right != "admin",
        _ if right == "nothing" || right == "identity" => true,
        "client:acme,acme/*" => right == "read" || right == "write",
        "read:acme,acme/*" => right == "read",
        "worker:t" => right == "worker",
        "metrics" => right == "metrics",
        _ => false,
    }
}

/// Every route of `/v1`, from the router's own description, and every target of CouchDB's API.
async fn routes(server: &TestServer) -> Vec<(String, String)> {
    let description = server.get("/v1/openapi.json").await.body;
    let mut routes: Vec<(String, String)> = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let path = path
            .replace("{type}", "t")
            .replace("{id}", "a")
            .replace("{worker}", "000643d1a2b3c4d5-9f3a1c5e7b2d4860")
            .replace("{db}", "acme%2F_replicator")
            .replace("{filter}", "f")
            .replace("{bulk}", "b")
            .replace("{webhook}", "w")
            .replace("{name}", "jan")
            .replace("{schedule}", "s")
            .replace("{tenant}", "acme")
            .replace("{group}", "g")
            .replace("{input}", "rows")
            .replace("{node}", "n");
        assert!(!path.contains('{'), "{path}");
        routes
            .extend(methods.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())));
    }
    assert!(routes.len() > 40, "{}", routes.len());
    for (methods, paths) in [
        (
            "GET HEAD",
            "/ /_up /_uuids /v1/openapi.json /_all_dbs /_active_tasks /_scheduler/jobs /_scheduler/docs",
        ),
        (
            "GET",
            "/_session /_membership /_node/_local/_config /_scheduler/jobs/a /_scheduler/docs/acme/_replicator",
        ),
        ("GET", "/_node/_local/_stats /_node/_local/_system"),
        ("POST", "/_replicate /acme/_replicator /acme/_replicator/_bulk_docs /acme/_replicator/_all_docs"),
        (
            "POST",
            "/acme/_replicator/_bulk_get /acme/_replicator/_revs_diff /acme/_replicator/_ensure_full_commit",
        ),
        ("GET PUT DELETE", "/acme/_replicator/d /acme/_replicator/_local/x /acme/_replicator/_design/x"),
        ("GET PUT", "/acme/_replicator"),
        ("GET", "/acme/_replicator/_changes /acme/_replicator/_security /acme/_replicator/d/file"),
    ] {
        for path in paths.split(' ') {
            routes.extend(methods.split(' ').map(|method| (method.to_owned(), path.to_owned())));
        }
    }
    routes
}

#[tokio::test]
async fn every_route_is_open_to_its_scopes_alone() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    admin.put("/acme/_replicator", &Value::Null).await;
    let expired = admin.post("/v1/tokens", &json!({"scopes": ["admin"], "expires_in_s": 1})).await.body;
    let revoked = admin.post("/v1/tokens", &json!({"scopes": ["admin"]})).await.body;
    let path = format!("/v1/tokens/{}", revoked["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 200);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let mut callers: Vec<(&str, As<'_>)> = vec![("", server.nobody())];
    for (name, token) in [("expired", expired), ("revoked", revoked)] {
        callers.push((name, server.with(token["token"].as_str().unwrap())));
    }
    for scope in
        ["admin", "operator", "client:acme,acme/*", "read:acme,acme/*", "worker:t", "command", "metrics"]
    {
        let token = admin.token(&[scope]).await;
        callers.push((scope, As { authorization: format!("Bearer {token}"), server: &server }));
    }
    let routes = routes(&server).await;
    for (scope, caller) in &callers {
        for (method, path) in &routes {
            // These would end what the others need.
            if path.starts_with("/v1/tokens/") && *scope == "admin" {
                continue;
            }
            // A stream would not end.
            let page = if path == "/v1/events" { "?limit=1" } else { "" };
            let answer = caller.send(method, &format!("{path}{page}"), Some(&json!({"unknown": 1}))).await;
            let right = needed(method, path);
            let what =
                format!("{method} {path} as {scope:?} needs {right}: {} {}", answer.status, answer.body);
            match *scope {
                "" if right == "nothing" => assert!(answer.status != 401 && answer.status != 403, "{what}"),
                "" | "expired" | "revoked" => assert_eq!(answer.status, 401, "{what}"),
                scope if !has(scope, right) => {
                    assert_eq!(answer.status, 403, "{what}");
                    let told = if method == "HEAD" { String::new() } else { answer.body.to_string() };
                    assert!(method == "HEAD" || told.contains("needs"), "{what}");
                }
                _ => assert!(answer.status != 401 && !is_refused(&answer), "{what}"),
            }
        }
    }
}

/// Whether a right is missing, and not only what the request asks for.
fn is_refused(answer: &Answer) -> bool {
    answer.status == 403 && answer.body.to_string().contains("this identity")
}

#[tokio::test]
async fn a_fresh_server_is_open_until_its_first_identity() {
    let server = TestServer::start().await;
    assert_eq!(server.get("/").await.body["vendor"]["open"], true);
    assert_eq!(server.get("/v1/me").await.body, json!({"open": true, "scopes": ["admin"]}));
    assert_eq!(server.post("/v1/jobs/t", &json!({})).await.status, 201);
    // Credentials that a client sends anyway are ignored.
    assert_eq!(server.with("nonsense").get("/v1/jobs").await.status, 200);
    let refused = server.post("/v1/tokens", &json!({"scopes": ["client:acme"]})).await;
    assert_eq!(refused.error(), (409, "conflict"), "{}", refused.body);
    let admin = server.close().await;
    let refused = server.get("/v1/jobs").await;
    assert_eq!(
        (refused.error(), refused.header("www-authenticate")),
        ((401, "unauthorized"), "Bearer realm=\"turnwise\"")
    );
    assert_eq!(server.get("/_all_dbs").await.error(), (401, "unauthorized"));
    assert_eq!(server.get("/").await.body["vendor"]["open"], false);
    let admin = server.with(&admin);
    let me = admin.get("/v1/me").await.body;
    assert_eq!((&me["open"], &me["scopes"]), (&json!(false), &json!(["admin"])));
    assert!(me["identity"].as_str().unwrap().starts_with("token:"), "{me}");
    // The last administrator stays, also across a restart.
    let tokens = admin.get("/v1/tokens").await.body["tokens"].clone();
    let path = format!("/v1/tokens/{}", tokens[0]["id"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.error(), (409, "conflict"));
    assert!(tokens[0].get("token").is_none() && !tokens.to_string().contains("sha256"), "{tokens}");
    let authorization = admin.authorization.clone();
    let server = server.restart("").await;
    assert_eq!(server.get("/v1/jobs").await.status, 401);
    assert_eq!(As { server: &server, authorization }.get("/v1/jobs").await.status, 200);
}

#[tokio::test]
async fn tokens_are_listed_rotated_and_revoked() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let new = json!({"scopes": ["client:acme"], "note": "ci", "expires_in_s": 3600});
    let made = admin.post("/v1/tokens", &new).await.body;
    let (id, text) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    assert!(text.starts_with(&format!("tw_{id}_")), "{made}");
    let client = server.with(text);
    assert_eq!(client.post("/v1/jobs/t", &json!({"id": "a"})).await.status, 201);
    // The tenant follows from the token.
    assert_eq!(client.get("/v1/jobs/t/a").await.body["tenant"], "acme");
    // As basic authentication, in either place, for clients that know nothing else.
    for (name, password) in [("x", text), (text, "x")] {
        let request = server.request("GET", "/v1/me").basic_auth(name, Some(password));
        assert_eq!(server.send(request).await.body["identity"], format!("token:{id}"));
    }
    let listed = server.with(text).server.nobody();
    assert_eq!(listed.get("/v1/tokens").await.status, 401);
    let used = async || {
        let tokens = admin.get("/v1/tokens").await.body["tokens"].clone();
        tokens.as_array().unwrap().iter().find(|token| token["id"] == id).cloned().unwrap()
    };
    let used = until("its use is recorded", used, |token| !token["last_used_us"].is_null()).await;
    assert_eq!((&used["note"], &used["scopes"]), (&json!("ci"), &json!(["client:acme"])));
    let rotated = admin.post(&format!("/v1/tokens/{id}/rotate"), &json!({})).await.body;
    let second = rotated["token"].as_str().unwrap();
    assert_eq!(client.get("/v1/me").await.status, 401);
    assert_eq!(server.with(second).get("/v1/jobs/t/a").await.status, 200);
    assert_eq!(admin.delete(&format!("/v1/tokens/{id}")).await.status, 200);
    assert_eq!(server.with(second).get("/v1/me").await.status, 401);
    assert_eq!(admin.delete(&format!("/v1/tokens/{id}")).await.error(), (404, "not_found"));
    for wrong in [
        json!({"scopes": []}),
        json!({"scopes": ["root"]}),
        json!({"scopes": ["client:"]}),
        json!({"scopes": ["admin"], "expires_in_s": 0}),
        json!({"scopes": ["admin"], "expires_in_s": 315_360_001}),
        json!({"scopes": ["admin"], "note": "x".repeat(201)}),
        json!({"scopes": ["admin"], "text": "x"}),
    ] {
        assert_eq!(admin.post("/v1/tokens", &wrong).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn wrong_credentials_are_refused_everywhere() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    // Of the last character, 4 bits count: `A` and `E` are different secrets.
    let last = if admin.ends_with('A') { 'E' } else { 'A' };
    let other = format!("{}{last}", &admin[..admin.len() - 1]);
    for authorization in [
        format!("Bearer {other}"),
        "Bearer x".to_owned(),
        "Bearer".to_owned(),
        "Basic x".to_owned(),
        "Digest a".to_owned(),
    ] {
        for path in ["/v1/jobs", "/_all_dbs", "/", "/_up"] {
            let answer = As { server: &server, authorization: authorization.clone() }.get(path).await;
            assert_eq!(answer.error(), (401, "unauthorized"), "{path} {authorization}");
        }
    }
    let twice = server.request("GET", "/v1/me");
    let twice = twice.header("authorization", format!("Bearer {admin}")).header("authorization", "Basic x");
    assert_eq!(server.send(twice).await.status, 401);
}

#[tokio::test]
async fn couchdb_clients_log_in() {
    let server = TestServer::start().await;
    let new = json!({"name": "jan", "password": "correct horse", "scopes": ["admin"]});
    let added = server.post("/v1/users", &new).await;
    assert_eq!(added.status, 201, "{}", added.body);
    assert!(!added.body.to_string().contains("correct"), "{}", added.body);
    let admin = |path: &str| server.request("GET", path).basic_auth("jan", Some("correct horse"));
    assert_eq!(server.send(admin("/_all_dbs")).await.body, json!(["_replicator"]));
    let nobody = server.get("/_session").await.body;
    assert_eq!(nobody["userCtx"], json!({"name": null, "roles": []}));

    let json_login = server.post("/_session", &json!({"name": "jan", "password": "correct horse"})).await;
    assert_eq!(json_login.body, json!({"ok": true, "name": "jan", "roles": ["_admin"]}));
    let form = server
        .request("POST", "/_session")
        .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
        .body("name=jan&password=correct%20horse");
    let form = server.send(form).await;
    assert_eq!(form.status, 200, "{}", form.body);
    let set = form.header("set-cookie").to_owned();
    assert!(
        set.starts_with("AuthSession=") && set.contains("; Max-Age=600; Path=/; HttpOnly; SameSite=Strict"),
        "{set}"
    );
    assert!(!set.contains("Secure"), "there is no TLS: {set}");
    let cookie = set.split(';').next().unwrap().to_owned();
    let with_cookie =
        |method: &str, path: &str| server.request(method, path).header("cookie", format!("a=b; {cookie}"));
    let session = server.send(with_cookie("GET", "/_session")).await.body;
    assert_eq!(session["userCtx"], json!({"name": "jan", "roles": ["_admin"]}));
    assert_eq!(session["info"]["authenticated"], "cookie");
    assert_eq!(server.send(with_cookie("PUT", "/other/_replicator")).await.status, 201);
    // A page of another site has no use of the cookie.
    let foreign = with_cookie("PUT", "/evil/_replicator").header("origin", "http://evil.example");
    assert_eq!(server.send(foreign).await.status, 403);
    let foreign = with_cookie("PUT", "/evil/_replicator").header("sec-fetch-site", "cross-site");
    assert_eq!(server.send(foreign).await.status, 403);
    let logout = server.send(with_cookie("DELETE", "/_session")).await;
    assert!(logout.header("set-cookie").contains("AuthSession=;"), "{}", logout.header("set-cookie"));

    // A session that is not valid any more is none, and its cookie is taken back.
    let changed = server.request("PUT", "/v1/users/jan/password").basic_auth("jan", Some("correct horse"));
    let changed =
        changed.header("content-type", "application/json").body(r#"{"password": "battery staple"}"#);
    assert_eq!(server.send(changed).await.status, 200);
    let over = server.send(with_cookie("GET", "/_session")).await;
    assert_eq!(over.body["userCtx"]["name"], Value::Null);
    assert!(over.header("set-cookie").contains("Max-Age=0"), "{}", over.header("set-cookie"));
    assert_eq!(server.send(with_cookie("GET", "/_all_dbs")).await.status, 401);
    assert_eq!(server.send(admin("/_all_dbs")).await.error(), (401, "unauthorized"));
    for forged in ["x", "amFuOjE6eA", &format!("{}A", &cookie["AuthSession=".len()..])] {
        let request = server.request("GET", "/_all_dbs").header("cookie", format!("AuthSession={forged}"));
        assert_eq!(server.send(request).await.status, 401, "{forged}");
    }
    let login = server.post("/_session", &json!({"name": "jan"})).await;
    assert_eq!(login.error(), (400, "bad_request"));
}

/// What a removed user has begun does not belong to the next user with its name.
#[tokio::test]
async fn a_user_who_is_added_again_owns_nothing_of_the_one_before() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let jan = json!({"name": "jan", "password": "first password", "scopes": ["client:acme", "worker:t"]});
    assert_eq!(admin.post("/v1/users", &jan).await.status, 201);
    let as_jan = |password: &str| {
        use base64::Engine as _;
        let text = base64::prelude::BASE64_STANDARD.encode(format!("jan:{password}"));
        As { server: &server, authorization: format!("Basic {text}") }
    };
    let first = as_jan("first password");
    let webhook = json!({"url": "http://127.0.0.1:1/", "secret": "0123456789abcdef"});
    for (id, enabled) in [("on", true), ("paused", false)] {
        let mut webhook = webhook.clone();
        webhook["enabled"] = json!(enabled);
        let put = first.put(&format!("/v1/webhooks/{id}"), &webhook).await;
        assert_eq!((put.status, &put.body["by"]), (200, &json!("user:jan")), "{}", put.body);
    }
    let cancel = json!({"action": "cancel", "where": "id = none"});
    assert_eq!(first.put("/v1/bulk/op", &cancel).await.status, 201);
    let worker = first.post("/v1/workers/t", &json!({"slots": 1})).await.body;
    let ping = format!("/v1/workers/t/{}/ping", worker["worker"].as_str().unwrap());
    assert_eq!(first.post(&ping, &json!({})).await.status, 200);

    assert_eq!(admin.delete("/v1/users/jan").await.status, 200);
    let again = json!({"name": "jan", "password": "second password", "scopes": ["client:beta", "worker:t"]});
    assert_eq!(admin.post("/v1/users", &again).await.status, 201);
    let second = as_jan("second password");
    assert_eq!(second.post(&ping, &json!({})).await.error(), (410, "expired_worker"));
    assert_eq!(second.get("/v1/bulk/op").await.status, 404);
    for id in ["on", "paused"] {
        assert_eq!(second.get(&format!("/v1/webhooks/{id}")).await.status, 404, "{id}");
    }
    // They end, also one that an operator resumes.
    let resume = json!({"url": webhook["url"], "job_tenant": "acme", "enabled": true});
    assert_eq!(admin.put("/v1/webhooks/paused", &resume).await.status, 200);
    for id in ["on", "paused"] {
        let path = format!("/v1/webhooks/{id}");
        let webhook = admin.poll(&path, |webhook| webhook["enabled"] == false).await;
        let because = webhook["disabled_because"].to_string();
        assert!(because.contains("its identity is gone"), "{because}");
    }
}

#[tokio::test]
async fn the_scopes_of_a_user_are_changed_without_removing_it() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let jan = json!({"name": "jan", "password": "a password", "scopes": ["client:acme"]});
    assert_eq!(admin.post("/v1/users", &jan).await.status, 201);
    use base64::Engine as _;
    let text = base64::prelude::BASE64_STANDARD.encode("jan:a password");
    let caller = As { server: &server, authorization: format!("Basic {text}") };
    let add = async |tenant: &str| caller.post("/v1/jobs/t", &json!({"tenant": tenant})).await.status;
    assert_eq!((add("acme").await, add("beta").await), (201, 403));
    let set = async |name: &str, scopes: Value| {
        admin.put(&format!("/v1/users/{name}/scopes"), &json!({ "scopes": scopes })).await
    };
    let changed = set("jan", json!(["client:beta"])).await;
    assert_eq!((changed.status, &changed.body["scopes"]), (200, &json!(["client:beta"])), "{}", changed.body);
    assert_eq!((add("acme").await, add("beta").await), (403, 201));
    assert_eq!(set("none", json!(["client:beta"])).await.error(), (404, "not_found"));
    assert_eq!(set("jan", json!(["no such"])).await.status, 400);
    assert_eq!(caller.put("/v1/users/jan/scopes", &json!({"scopes": ["admin"]})).await.status, 403);
    // The last administrator stays one.
    assert_eq!(set("jan", json!(["admin"])).await.status, 200);
    let tokens = caller.get("/v1/tokens").await.body;
    let id = tokens["tokens"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(caller.delete(&format!("/v1/tokens/{id}")).await.status, 200);
    let lost = caller.put("/v1/users/jan/scopes", &json!({"scopes": ["client:acme"]})).await;
    assert_eq!(lost.error(), (409, "conflict"), "{}", lost.body);
}

#[tokio::test]
async fn wrong_passwords_make_the_next_attempt_wait() {
    let server = TestServer::start().await;
    let new = json!({"name": "jan", "password": "correct horse", "scopes": ["admin"]});
    assert_eq!(server.post("/v1/users", &new).await.status, 201);
    let attempt = async |password: &str| {
        server.send(server.request("GET", "/_all_dbs").basic_auth("jan", Some(password))).await
    };
    // From here on it is known to be right, and is not hashed again.
    assert_eq!(attempt("correct horse").await.status, 200);
    for _ in 0..6 {
        assert_eq!(attempt("wrong").await.error(), (401, "unauthorized"));
    }
    let refused = attempt("wrong").await;
    assert_eq!(refused.error(), (429, "too_many_requests"));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(attempt("correct horse").await.status, 200, "who knows the password is not locked out");
    // The response does not show whether the name or the password is wrong.
    let unknown = server.request("GET", "/_all_dbs").basic_auth("nobody", Some("wrong"));
    let unknown = server.send(unknown).await;
    assert_eq!(unknown.body, json!({"error": "unauthorized", "reason": "Name or password is incorrect."}));
}

#[tokio::test]
async fn a_change_of_identities_is_in_force_on_every_node_within_a_second() {
    let cluster = Cluster::start(["", ""]).await;
    let (here, there) = (cluster.at(0), cluster.at(1));
    let admin = here.close().await;
    let changed = async |who: As<'_>, wanted: u16| {
        let begun = Instant::now();
        let status = async || who.get("/v1/jobs").await.status;
        until("the change is in force there", status, |status| *status == wanted).await;
        begun.elapsed()
    };
    let mut slowest = changed(there.nobody(), 401).await;
    let client = here.with(&admin).token(&["read:*"]).await;
    slowest = slowest.max(changed(there.with(&client), 200).await);
    let id = client.split('_').nth(1).unwrap();
    assert_eq!(here.with(&admin).delete(&format!("/v1/tokens/{id}")).await.status, 200);
    assert_eq!(here.with(&client).get("/v1/jobs").await.status, 401, "here it is in force at once");
    slowest = slowest.max(changed(there.with(&client), 401).await);
    println!("the slowest change took {slowest:?}");
    // The session of a user is good on both, under one key.
    let new = json!({"name": "jan", "password": "correct horse", "scopes": ["admin"]});
    assert_eq!(here.with(&admin).post("/v1/users", &new).await.status, 201);
    let login = here.post("/_session", &json!({"name": "jan", "password": "correct horse"})).await;
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let session = there.send(there.request("GET", "/_session").header("cookie", cookie)).await;
    assert_eq!(session.body["userCtx"]["name"], "jan");
}

#[tokio::test]
async fn a_worker_is_the_one_of_the_token_that_registered_it() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let tokens = [admin.token(&["worker:t"]).await, admin.token(&["worker:t"]).await];
    let (one, other) = (server.with(&tokens[0]), server.with(&tokens[1]));
    assert_eq!(one.post("/v1/workers/u", &json!({"slots": 1})).await.error(), (403, "forbidden"));
    let registered = one.post("/v1/workers/t", &json!({"slots": 2})).await;
    assert_eq!(registered.status, 201, "{}", registered.body);
    let path = format!("/v1/workers/t/{}", registered.body["worker"].as_str().unwrap());
    let listed = admin.get("/v1/workers?type=t").await.body;
    let id = tokens[0].split('_').nth(1).unwrap();
    assert_eq!(listed["workers"][0]["registered_by"], format!("token:{id}"));
    assert_eq!(admin.post("/v1/jobs/t", &json!({"id": "a"})).await.status, 201);
    let accept = json!({"received": 0, "limit": 1, "wait_ms": 0});
    let stolen = other.post(&format!("{path}/accept"), &accept).await;
    assert_eq!(stolen.error(), (410, "expired_worker"), "{}", stolen.body);
    let accepted = one.post(&format!("{path}/accept"), &accept).await.body;
    let claim = accepted["jobs"][0]["claim"].clone();
    for (request, body) in [
        ("ping", json!({})),
        ("leave", json!({})),
        ("end", json!({"finish": [{"id": "a", "claim": claim}]})),
        ("jobs/a/update", json!({"claim": claim, "info": {}})),
        ("jobs/a/finish", json!({"claim": claim})),
        ("jobs/a/fail", json!({"claim": claim, "reason": "x"})),
        ("jobs/a/release", json!({"claim": claim})),
        ("jobs/a/locks", json!({"claim": claim, "locks": [{"level": "node", "mode": "shared"}]})),
    ] {
        let answer = other.post(&format!("{path}/{request}"), &body).await;
        assert_eq!(answer.error(), (410, "expired_worker"), "{request}: {}", answer.body);
    }
    // The token keeps its workers when it is rotated.
    let rotated = admin.post(&format!("/v1/tokens/{id}/rotate"), &json!({})).await.body;
    let one = server.with(rotated["token"].as_str().unwrap());
    assert_eq!(one.post(&format!("{path}/jobs/a/finish"), &json!({"claim": claim})).await.status, 200);
    assert_eq!(admin.get("/v1/jobs/t/a").await.body["state"], "completed");
}

#[tokio::test]
async fn a_worker_of_some_tenants_gets_their_jobs_alone() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    let token = admin.token(&["worker:t@acme,acme-*"]).await;
    let worker = server.with(&token);
    let registered = worker.post("/v1/workers/t", &json!({"slots": 10})).await.body;
    let path = format!("/v1/workers/t/{}/accept", registered["worker"].as_str().unwrap());
    for (id, tenant) in [("x", "other"), ("a", "acme"), ("y", "other"), ("b", "acme-1")] {
        let locks = json!({"node": {"exclusive": [id]}});
        let job = json!({"id": id, "tenant": tenant, "locks": locks});
        assert_eq!(admin.post("/v1/jobs/t", &job).await.status, 201);
    }
    let (mut ids, mut received) = (Vec::new(), json!(0));
    for _ in 0..3 {
        let wanted = json!({"received": received, "limit": 10, "wait_ms": 200});
        let accepted = worker.post(&path, &wanted).await.body;
        for job in accepted["jobs"].as_array().unwrap() {
            ids.push(job["id"].as_str().unwrap().to_owned());
            received = job["claim"].clone();
        }
    }
    ids.sort();
    assert_eq!(ids, ["a", "b"]);
}

#[tokio::test]
async fn a_worker_of_some_tenants_waits_although_others_have_jobs() {
    let cluster = Cluster::start([""]).await;
    let server = cluster.at(0);
    let admin = server.close().await;
    let admin = server.with(&admin);
    let register = async |token: &str, slots: u64| {
        let registered = server.with(token).post("/v1/workers/t", &json!({ "slots": slots })).await.body;
        format!("/v1/workers/t/{}/accept", registered["worker"].as_str().unwrap())
    };
    let all = admin.token(&["worker:t"]).await;
    let some = admin.token(&["worker:t@acme"]).await;
    let (all_path, some_path) = (register(&all, 1).await, register(&some, 10).await);
    // Its one job is blocked by a run, and another tenant has more jobs that could start than a scan finds.
    let job = |id: &str, tenant: &str, lock: &str| json!({"type": "t", "id": id, "tenant": tenant, "locks": {"node": {"exclusive": [lock]}}});
    assert_eq!(admin.post("/v1/jobs", &json!({"jobs": [job("first", "acme", "n")]})).await.status, 200);
    let taken =
        server.with(&all).post(&all_path, &json!({"received": 0, "limit": 1, "wait_ms": 1000})).await.body;
    assert_eq!(taken["jobs"][0]["id"], "first");
    let others = (0..300).map(|n| job(&format!("o{n}"), "other", &format!("l{n}")));
    let jobs: Vec<_> = std::iter::once(job("blocked", "acme", "n")).chain(others).collect();
    assert_eq!(admin.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    let worker = server.with(&some);
    let before = cluster.store.counters();
    let nothing = worker.post(&some_path, &json!({"received": 0, "limit": 1, "wait_ms": 3000})).await.body;
    assert_eq!(nothing["jobs"], json!([]));
    let made = cluster.store.counters().since(&before).transactions;
    assert!(made < 100, "{made} transactions in 3 s without anything to do");
}

#[tokio::test]
async fn an_open_server_is_refused_where_strangers_could_use_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::embedded(folder.path().join("data"));
    let config = |listen: &str, text: &str, insecure_no_auth| ServerConfig {
        store: url.clone(),
        listen: listen.parse().unwrap(),
        name: None,
        advertise: None,
        config: Config::parse("test.ini", text).unwrap().0,
        guard: None,
        insecure_no_auth,
        seal: turnwise_server::seal(None).unwrap(),
    };
    let commands = "[command]\nenabled = true\nallow_root = true\n";
    for (listen, text, why) in [
        ("0.0.0.0:0", "", "other machines can reach"),
        ("127.0.0.1:0", commands, "[command] enabled lets requests run programs"),
    ] {
        let Err(error) = Server::start(config(listen, text, false)).await else { panic!("it starts: {why}") };
        let told = error.to_string();
        assert!(matches!(error, StartError::Usage(_)) && told.contains(why), "{told}");
        assert!(told.contains("turnwise tokens add --scope admin --store embedded:"), "{told}");
        Server::start(config(listen, text, true)).await.unwrap().shutdown().await;
    }
    Server::start(config("127.0.0.1:0", "", false)).await.unwrap().shutdown().await;
    // The first identity is added to the store itself, also where there is none yet.
    let identities = Identities::open(&url, &turnwise_server::seal(None).unwrap()).await.unwrap();
    let new = |scope: &str| turnwise_client::protocol::NewToken {
        scopes: vec![scope.to_owned()],
        ..Default::default()
    };
    assert!(identities.add_token(&new("client:acme")).await.is_err(), "nobody could add others");
    let token = identities.add_token(&new("admin")).await.unwrap();
    drop(identities);
    let server = Server::start(config("0.0.0.0:0", commands, false)).await.unwrap();
    let path = format!("http://127.0.0.1:{}/v1/me", server.listen().port());
    let client = turnwise_testkit::client();
    assert_eq!(client.get(&path).send().await.unwrap().status(), 401);
    assert_eq!(client.get(&path).bearer_auth(&token.text).send().await.unwrap().status(), 200);
    server.shutdown().await;
}

#[tokio::test]
async fn a_second_node_needs_identities() {
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::embedded(folder.path().join("data"));
    let store =
        turnwise_store::open(&url, std::sync::Arc::new(turnwise_store::runtime::System)).await.unwrap();
    let config = |insecure_no_auth| ServerConfig {
        store: url.clone(),
        listen: "127.0.0.1:0".parse().unwrap(),
        name: None,
        advertise: None,
        config: Config::default(),
        guard: None,
        insecure_no_auth,
        seal: turnwise_server::seal(None).unwrap(),
    };
    let first = Server::start_on(store.clone(), config(false)).await.unwrap();
    let Err(error) = Server::start_on(store.clone(), config(false)).await else { panic!("it starts") };
    assert!(error.to_string().contains("another node uses the same store"), "{error}");
    let second = Server::start_on(store.clone(), config(true)).await.unwrap();
    second.shutdown().await;
    first.shutdown().await;
}
