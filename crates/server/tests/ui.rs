//! The pages under `/ui/`: their headers, the login, and who sees what.

use reqwest::StatusCode;
use serde_json::json;

use crate::common::{PATIENCE, TestServer};

/// A page: its status, its headers, its HTML.
struct Page {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    html: String,
}

impl Page {
    async fn of(request: reqwest::RequestBuilder) -> Page {
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        Page { status, headers, html: answer.text().await.unwrap() }
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The cookie that it sets, as a browser sends it.
    fn cookie(&self) -> String {
        self.header("set-cookie").split(';').next().unwrap_or_default().to_owned()
    }
}

impl TestServer {
    async fn page(&self, path: &str) -> Page {
        Page::of(self.ask("GET", path)).await
    }

    /// A request that follows no redirect.
    fn ask(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        // It has installed the provider of TLS.
        assert!(self.url.starts_with("http://"));
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        client.request(method, format!("{}{path}", self.url)).timeout(PATIENCE)
    }

    /// Sends a form as a page of this server does.
    fn form(&self, path: &str, fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let body: String = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.ask("POST", path).header("origin", &self.url);
        request.header("content-type", "application/x-www-form-urlencoded").body(body)
    }

    /// Logs a user in, and returns the cookie.
    async fn log_in(&self, name: &str, password: &str) -> String {
        let page = Page::of(self.form("/ui/login", &[("name", name), ("password", password)])).await;
        assert_eq!(page.status, 303, "{}", page.html);
        page.cookie()
    }
}

fn assert_secured(page: &Page) {
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; "), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
}

#[tokio::test]
async fn every_page_has_the_policy_and_is_not_stored() {
    let server = TestServer::start().await;
    for (path, status) in
        [("/ui/", 200), ("/ui/help", 200), ("/ui/nothing", 404), ("/ui/static/app.css", 404)]
    {
        let page = server.page(path).await;
        assert_eq!(page.status, status, "{path}");
        assert_secured(&page);
        assert_eq!(page.header("cache-control"), "no-store", "{path}");
        assert!(page.html.starts_with("<!DOCTYPE html>"), "{path}");
        for inline in ["<style", "style=", "onclick", "javascript:", "<script>"] {
            assert!(!page.html.contains(inline), "{path} has {inline}");
        }
    }
    server.server.shutdown().await;
}

#[tokio::test]
async fn the_paths_of_couchdbs_pages_lead_to_these() {
    let server = TestServer::start().await;
    for path in ["/_utils", "/_utils/", "/ui"] {
        let page = server.page(path).await;
        assert_eq!((page.status.as_u16(), page.header("location")), (303, "/ui/"), "{path}");
    }
    server.server.shutdown().await;
}

#[tokio::test]
async fn files_are_kept_for_ever_under_the_hash_of_their_contents() {
    let server = TestServer::start().await;
    let html = server.page("/ui/").await.html;
    for (extension, kind) in [(".css", "text/css"), (".js", "text/javascript"), (".svg", "image/svg+xml")] {
        let mut paths = html.split('"').filter(|text| text.starts_with("/ui/static/"));
        let path = paths.find(|path| path.ends_with(extension)).unwrap();
        let file = server.page(path).await;
        assert_eq!(file.status, 200, "{path}");
        assert!(file.header("content-type").starts_with(kind), "{path}");
        assert_eq!(file.header("cache-control"), "public, max-age=31536000, immutable");
        assert_secured(&file);
    }
    server.server.shutdown().await;
}

#[tokio::test]
async fn forms_of_other_sites_are_refused() {
    let server = TestServer::start().await;
    let form = |origin: Option<&str>| {
        let request = server.ask("POST", "/ui/logout");
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        match origin {
            Some(origin) => request.header("origin", origin),
            None => request,
        }
    };
    for origin in [None, Some("null"), Some("https://evil.example"), Some("http://localhost:1")] {
        let page = Page::of(form(origin)).await;
        assert_eq!(page.status, 403, "{origin:?}");
        assert!(page.html.contains("does not come from a page of this server"), "{}", page.html);
        assert_secured(&page);
    }
    let across = form(Some(&server.url)).header("sec-fetch-site", "cross-site");
    assert_eq!(Page::of(across).await.status, 403);
    assert_eq!(Page::of(form(Some(&server.url))).await.status, 303);
    // What is no form is no form of a page, wherever it comes from.
    let json = server.ask("POST", "/ui/login").header("origin", &server.url);
    let json = Page::of(json.header("content-type", "application/json").body("{}")).await;
    assert_eq!(json.status, 400);
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_closed_store_asks_for_a_login_and_returns_to_the_page() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let user = json!({ "name": "jan", "password": "eleven words", "scopes": ["read:acme"] });
    assert_eq!(server.with(&admin).post("/v1/users", &user).await.status, 201);

    let page = server.page("/ui/?a=1&b=%2F").await;
    assert_eq!(
        (page.status.as_u16(), page.header("location")),
        (303, "/ui/login?then=%2Fui%2F%3Fa%3D1%26b%3D%252F")
    );
    let page = server.page("/ui/login?then=%2Fui%2Fhelp").await;
    assert!(page.html.contains("name=\"then\" value=\"/ui/help\""), "{}", page.html);

    let wrong = Page::of(server.form("/ui/login", &[("name", "<b>jan"), ("password", "x")])).await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.html.contains("Name or password is incorrect."), "{}", wrong.html);
    assert!(wrong.html.contains("value=\"&lt;b&gt;jan\""), "{}", wrong.html);
    assert_eq!(wrong.cookie(), "");

    let right = [("name", "jan"), ("password", "eleven words"), ("then", "/ui/help")];
    let page = Page::of(server.form("/ui/login", &right)).await;
    assert_eq!((page.status.as_u16(), page.header("location")), (303, "/ui/help"));
    let elsewhere = [("name", "jan"), ("password", "eleven words"), ("then", "//evil.example/ui/")];
    assert_eq!(Page::of(server.form("/ui/login", &elsewhere)).await.header("location"), "/ui/");

    let cookie = server.log_in("jan", "eleven words").await;
    let page = Page::of(server.ask("GET", "/ui/").header("cookie", &cookie)).await;
    assert_eq!(page.status, 200);
    assert!(page.html.contains("jan") && page.html.contains("Log out"), "{}", page.html);
    let out = Page::of(server.form("/ui/logout", &[]).header("cookie", &cookie)).await;
    assert_eq!((out.status.as_u16(), out.cookie().as_str()), (303, "AuthSession="));
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_token_logs_in_to_the_pages_until_it_is_rotated() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let made = server.with(&admin).post("/v1/tokens", &json!({ "scopes": ["read:acme"] })).await;
    let [token, id] = ["token", "id"].map(|name| made.body[name].as_str().unwrap().to_owned());
    let cookie = server.log_in("", &token).await;
    assert!(!cookie.contains(&token), "the cookie is a session, and not the token");
    let page = async || Page::of(server.ask("GET", "/ui/jobs").header("cookie", &cookie)).await;
    let shown = page().await;
    assert!(shown.status == 200 && shown.html.contains("Log out"), "{}", shown.html);
    // It has the scopes of the token: these are not for it.
    assert_eq!(Page::of(server.ask("GET", "/ui/identities").header("cookie", &cookie)).await.status, 403);
    assert_eq!(server.with(&admin).post(&format!("/v1/tokens/{id}/rotate"), &json!({})).await.status, 200);
    assert_eq!(page().await.status, 303, "the session ends with the secret");
    // A token that is not valid, in either field, is not repeated.
    for fields in
        [[("name", token.as_str()), ("password", "x")], [("name", "jan"), ("password", token.as_str())]]
    {
        let wrong = Page::of(server.form("/ui/login", &fields)).await;
        assert!(wrong.status == 401 && !wrong.html.contains(&token), "{}", wrong.html);
    }
    server.server.shutdown().await;
}

#[tokio::test]
async fn who_may_read_nothing_sees_a_page_that_says_so() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let user = json!({ "name": "robot", "password": "eleven words", "scopes": ["worker:mail"] });
    assert_eq!(server.with(&admin).post("/v1/users", &user).await.status, 201);
    let cookie = server.log_in("robot", "eleven words").await;
    let page = Page::of(server.ask("GET", "/ui/").header("cookie", &cookie)).await;
    assert_eq!(page.status, 403);
    assert!(page.html.contains("Not allowed") && page.html.contains("read:TENANTS"), "{}", page.html);
    assert!(page.html.contains("Log out"), "{}", page.html);
    server.server.shutdown().await;
}

/// Text that would break a page that does not escape it.
const HOSTILE: &str = "\"><script>alert(1)</script>'&\u{202e}";

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

#[tokio::test]
async fn hostile_texts_are_escaped_everywhere() {
    let server = TestServer::start().await;
    let job = json!({
        "id": HOSTILE, "tenant": HOSTILE, "user": HOSTILE, "reason": [HOSTILE], "delay_ms": 3_600_000,
        "summary": { HOSTILE: HOSTILE }, "options": { "password": HOSTILE },
    });
    assert_eq!(server.post("/v1/jobs/mail", &job).await.status, 201);
    let job = json!({ "id": "x".repeat(500), "tenant": "y".repeat(200), "delay_ms": 1_000_000 });
    assert_eq!(server.post("/v1/jobs/mail", &job).await.status, 201);
    let filter =
        json!({ "action": "pause", "when": "type = none", "note": HOSTILE.trim_end_matches('\u{202e}') });
    assert_eq!(server.put("/v1/filters/%3Cscript%3E", &filter).await.status, 200);
    let of_job = format!("/ui/job?type=mail&id={}", encoded(HOSTILE));
    let search = format!("/ui/jobs?q={0}&tenant={0}", encoded(HOSTILE));
    let login = format!("/ui/login?then={}", encoded(HOSTILE));
    for path in [
        "/ui/",
        "/ui/jobs",
        "/ui/jobs?view=queue",
        "/ui/tenants",
        &of_job,
        &search,
        &login,
        "/ui/%3Cscript%3E",
    ] {
        let html = server.page(path).await.html;
        // The one script of a page is its file.
        assert_eq!(
            html.matches("<script").count(),
            html.matches("<script src=\"/ui/static/").count(),
            "{path}: {html}"
        );
    }
    let page = server.page(&of_job).await;
    assert_eq!(page.status, 200);
    assert!(page.html.contains("<bdi>&quot;&gt;&lt;script&gt;alert(1)"), "{}", page.html);
    server.server.shutdown().await;
}

#[tokio::test]
async fn the_first_page_leads_to_the_reason_of_a_job() {
    let server = TestServer::start().await;
    assert_eq!(server.post("/v1/jobs/mail", &json!({ "id": "one" })).await.status, 201);
    let first = server.page("/ui/").await.html;
    assert!(
        first.contains("No worker for") && first.contains("/ui/jobs?view=queue&amp;type=mail"),
        "{first}"
    );
    let list = server.page("/ui/jobs?view=queue&type=mail").await.html;
    assert!(list.contains("no worker") && list.contains("/ui/job?type=mail&amp;id=one"), "{list}");
    let job = server.page("/ui/job?type=mail&id=one").await.html;
    let why = server.get("/v1/jobs/mail/one/why").await.body["sentence"].as_str().unwrap().to_owned();
    let shown = job.replace("<bdi class=\"name\">", "`").replace("</bdi>", "`");
    assert!(shown.contains(&why), "{why}: {shown}");
    server.server.shutdown().await;
}

#[tokio::test]
async fn jobs_are_changed_after_a_confirmation_where_it_destroys() {
    let server = TestServer::start().await;
    for id in ["one", "two/three"] {
        let job = json!({ "id": id, "delay_ms": 3_600_000 });
        assert_eq!(server.post("/v1/jobs/mail", &job).await.status, 201);
    }
    let act = async |fields: &[(&str, &str)]| Page::of(server.form("/ui/jobs/act", fields)).await;
    let state = async |id: &str| server.get(&format!("/v1/jobs/mail/{id}")).await.body["state"].clone();

    let done = act(&[("action", "retry"), ("job", "mail/one"), ("back", "/ui/jobs?type=mail")]).await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, "/ui/jobs?type=mail&did=retry.1"));
    assert_eq!(state("one").await, "pending");
    let done = act(&[("action", "priority"), ("priority", "-7"), ("job", "mail/one")]).await;
    assert_eq!(done.header("location"), "/ui/jobs?did=priority.1");
    assert_eq!(server.get("/v1/jobs/mail/one").await.body["priority"], -7);

    let both = [("action", "cancel"), ("job", "mail/one"), ("job", "mail/two/three")];
    let asked = act(&both).await;
    assert_eq!(asked.status, 200);
    assert!(
        asked.html.contains("Cancel 2 jobs?") && asked.html.contains("name=\"confirmed\""),
        "{}",
        asked.html
    );
    assert_eq!(state("one").await, "pending");
    let done = act(&[&both[..], &[("confirmed", "1")]].concat()).await;
    assert_eq!(done.header("location"), "/ui/jobs?did=cancel.2");
    assert_eq!((state("one").await, state("two%2Fthree").await), (json!("cancelled"), json!("cancelled")));
    assert!(server.page("/ui/jobs?did=cancel.2").await.html.contains("Cancelled, or being stopped: 2 jobs."));

    // The page says of each job what failed.
    let removed = [("action", "remove"), ("job", "mail/one"), ("job", "mail/gone"), ("confirmed", "1")];
    let told = act(&removed).await;
    assert_eq!(told.status, 200);
    assert!(
        told.html.contains("Not done for 1 job") && told.html.contains("There is no job `gone`"),
        "{}",
        told.html
    );
    assert_eq!(server.get("/v1/jobs/mail/one").await.status, 404);

    for (fields, says) in [
        (&[("action", "cancel")][..], "No job is selected"),
        (&[("action", "burn"), ("job", "mail/one")], "this value is unknown"),
        (&[("action", "retry"), ("job", "mail")], "must be the `next`"),
        (&[("action", "priority"), ("priority", "high"), ("job", "mail/two/three")], "whole number"),
    ] {
        let page = act(fields).await;
        assert_eq!(page.status, 400, "{fields:?}");
        assert!(page.html.to_lowercase().contains(&says.to_lowercase()), "{says}: {}", page.html);
    }
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_user_of_a_tenant_sees_and_changes_its_own_jobs_only() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let admin = server.with(&admin);
    for (tenant, id) in [("acme", "of-acme"), ("secretive", "of-others")] {
        let job = json!({ "id": id, "tenant": tenant, "delay_ms": 3_600_000 });
        assert_eq!(admin.post("/v1/jobs/mail", &job).await.status, 201);
        let job = json!({ "id": format!("{id}-now"), "tenant": tenant });
        assert_eq!(admin.post("/v1/jobs/mail", &job).await.status, 201);
    }
    assert_eq!(admin.post("/v1/jobs/undisclosed", &json!({ "tenant": "secretive" })).await.status, 201);
    for (name, scope) in [("writer", "client:acme"), ("reader", "read:acme")] {
        let user = json!({ "name": name, "password": "eleven words", "scopes": [scope] });
        assert_eq!(admin.post("/v1/users", &user).await.status, 201);
    }
    for name in ["reader", "writer"] {
        let cookie = server.log_in(name, "eleven words").await;
        let page = async |path: &str| Page::of(server.ask("GET", path).header("cookie", &cookie)).await;
        for path in ["/ui/", "/ui/jobs", "/ui/jobs?view=queue", "/ui/tenants"] {
            let page = page(path).await;
            assert_eq!(page.status, 200, "{path}");
            for other in ["secretive", "of-others", "undisclosed"] {
                assert!(!page.html.contains(other), "{path} tells {other}: {}", page.html);
            }
        }
        assert!(page("/ui/jobs").await.html.contains("of-acme"));
        for search in ["/ui/jobs?q=of-others", "/ui/jobs?q=of-others&type=mail"] {
            assert!(page(search).await.html.contains("No job matches."), "{search}");
        }
        assert_eq!(page("/ui/job?type=mail&id=of-acme").await.status, 200);
        let others = page("/ui/job?type=mail&id=of-others").await;
        let none = page("/ui/job?type=mail&id=of-nobody").await;
        assert_eq!((others.status.as_u16(), none.status.as_u16()), (404, 404));
        assert_eq!(others.html.replace("of-others", "of-nobody"), none.html);

        let act = async |id: &str| {
            let fields = [("action", "remove"), ("job", id), ("confirmed", "1")];
            Page::of(server.form("/ui/jobs/act", &fields).header("cookie", &cookie)).await
        };
        let shares = [("type", "mail"), ("tenant", "acme"), ("shares", "900")];
        let shares = Page::of(server.form("/ui/tenants/shares", &shares).header("cookie", &cookie)).await;
        assert_eq!(shares.status, 403);
        match name {
            "reader" => assert_eq!(act("mail/of-acme").await.status, 403),
            _ => {
                assert!(act("mail/of-others").await.html.contains("There is no job"));
                assert_eq!(act("mail/of-acme").await.status, 303);
            }
        }
        let has_buttons = page("/ui/jobs").await.html.contains("name=\"action\"");
        assert_eq!(has_buttons, name == "writer");
    }
    assert_eq!(admin.get("/v1/jobs/mail/of-others").await.status, 200);
    assert_eq!(Page::of(server.form("/ui/jobs/act", &[("action", "retry")])).await.status, 401);
    server.server.shutdown().await;
}

#[tokio::test]
async fn shares_are_set_and_returned_to_the_default() {
    let server = TestServer::start().await;
    let set = async |fields: &[(&str, &str)]| Page::of(server.form("/ui/tenants/shares", fields)).await;
    let of = [("type", "mail"), ("tenant", "acme"), ("back", "/ui/tenants?type=mail")];
    let done = set(&[&of[..], &[("shares", "250")]].concat()).await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, "/ui/tenants?type=mail"));
    let value = server.get("/_node/_local/_config/shares/acme").await;
    assert_eq!(value.body, "250");
    assert_eq!(set(&[&of[..], &[("shares", "many")]].concat()).await.status, 400);
    // A second time, there is nothing to remove.
    for _ in 0..2 {
        assert_eq!(set(&[&of[..], &[("to", "default")]].concat()).await.status, 303);
    }
    assert_eq!(server.get("/_node/_local/_config/shares/acme").await.status, 404);
    server.server.shutdown().await;
}
