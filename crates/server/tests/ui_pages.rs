//! The pages under `/ui/` beside jobs: replications, locks, workers, filters, settings, identities, and the audit log.

use serde_json::{Value, json};
use turnwise_testkit::canary;

use crate::common::{TestServer, until};

mod jobs;

/// A person with a token who looks at pages and sends their forms.
struct Person<'a> {
    server: &'a TestServer,
    token: Option<String>,
}

impl Person<'_> {
    async fn send(&self, request: reqwest::RequestBuilder) -> (u16, String) {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let html = answer.text().await.unwrap();
        canary::assert_none("a page", &html);
        assert!(!html.contains("hunter2"), "{html}");
        (status, html)
    }

    async fn see(&self, path: &str) -> (u16, String) {
        self.send(self.server.request("GET", path)).await
    }

    /// The page at this path, which must exist.
    async fn page(&self, path: &str) -> String {
        let (status, html) = self.see(path).await;
        assert_eq!(status, 200, "{path}: {html}");
        html
    }

    /// Sends a form, and follows the answer to its page.
    async fn form(&self, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
        let body: String = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.server.request("POST", path).header("origin", &self.server.url);
        self.send(request.header("content-type", "application/x-www-form-urlencoded").body(body)).await
    }

    /// The same for a form that is accepted.
    async fn done(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let (status, html) = self.form(path, fields).await;
        assert_eq!(status, 200, "{path}: {html}");
        html
    }
}

fn everyone(server: &TestServer) -> Person<'_> {
    Person { server, token: None }
}

fn path(path: &str, fields: &[(&str, &str)]) -> String {
    format!("{path}?{}", url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish())
}

/// Looks at a page until it contains a text.
async fn until_shown(person: &Person<'_>, path: &str, text: &str) -> String {
    let what = format!("{path} contains {text}");
    until(&what, async || person.page(path).await, |html| html.contains(text)).await
}

/// A replication that crashes: nothing listens there.
fn crashing() -> Value {
    json!({ "source": "http://u:hunter2@127.0.0.1:1/a", "target": "http://127.0.0.1:1/b", "continuous": true })
}

#[tokio::test]
async fn tenants_see_their_own_replications_and_nothing_is_markup() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    assert_eq!(server.with(&admin).put("/acme%2f_replicator", &Value::Null).await.status, 201);
    let hostile = "%3Cb%3E%22%26x";
    assert_eq!(server.with(&admin).put(&format!("/_replicator/{hostile}"), &crashing()).await.status, 201);
    assert_eq!(server.with(&admin).put("/acme%2f_replicator/theirs", &crashing()).await.status, 201);
    let jan = server.with(&admin).token(&["client:acme/_replicator"]).await;
    let reader = server.with(&admin).token(&["read:acme/_replicator"]).await;
    let admin = Person { server: &server, token: Some(admin) };
    let jan = Person { server: &server, token: Some(jan) };
    let reader = Person { server: &server, token: Some(reader) };

    let all = until_shown(&admin, "/ui/replications", "crashing").await;
    assert!(all.contains("&lt;b&gt;&quot;&amp;x") && !all.contains("<b>"), "{all}");
    assert!(all.contains("theirs") && all.contains("http://127.0.0.1:1/a/"), "{all}");
    let own = jan.page("/ui/replications").await;
    assert!(own.contains("theirs") && !own.contains("&quot;&amp;x"), "{own}");
    assert!(own.contains("Add a replication"), "{own}");

    let others = path("/ui/replication", &[("db", "_replicator"), ("doc", "<b>\"&x")]);
    assert_eq!(jan.see(&others).await.0, 404);
    let page = admin.page(&others).await;
    assert!(page.contains("Delete the document") && !page.contains("<b>"), "{page}");
    let fields = [("db", "_replicator"), ("doc", "<b>\"&x"), ("action", "remove"), ("confirmed", "1")];
    assert_eq!(jan.form("/ui/replication", &fields).await.0, 404);

    // Who may only read sees no buttons, and cannot do what they do.
    let theirs = path("/ui/replication", &[("db", "acme/_replicator"), ("doc", "theirs")]);
    let page = reader.page(&theirs).await;
    assert!(!page.contains("Delete the document"), "{page}");
    let fields = [("db", "acme/_replicator"), ("doc", "theirs"), ("action", "remove"), ("confirmed", "1")];
    assert_eq!(reader.form("/ui/replication", &fields).await.0, 403);
    assert_eq!(reader.see("/ui/replications/new").await.0, 403);
    assert_eq!(jan.page(&theirs).await.matches("Delete the document").count(), 1);

    // Search, states and order.
    let found = admin.page("/ui/replications?q=THEIRS&sort=updated").await;
    assert!(found.contains("theirs") && !found.contains("&quot;&amp;x"), "{found}");
    assert!(admin.page("/ui/replications?state=completed").await.contains("No replication matches"));
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_replication_is_retried_and_deleted() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    server.put_ok("/_replicator/r", &crashing()).await;
    let page = until_shown(&me, "/ui/replication?db=_replicator&doc=r", "Next try").await;
    assert!(page.contains("Retry now") && page.contains("127.0.0.1:1"), "{page}");
    let fields = [("db", "_replicator"), ("doc", "r"), ("action", "retry")];
    assert!(me.done("/ui/replication", &fields).await.contains("as soon as it has a slot"));

    let rev = server.get("/_replicator/r").await.body["_rev"].as_str().unwrap().to_owned();
    let remove = [("db", "_replicator"), ("doc", "r"), ("rev", rev.as_str()), ("action", "remove")];
    let question = me.done("/ui/replication", &remove).await;
    assert!(question.contains("Delete this document?"), "{question}");
    assert_eq!(server.get("/_replicator/r").await.status, 200);
    let confirmed = [remove.as_slice(), &[("confirmed", "1")]].concat();
    assert!(me.done("/ui/replication", &confirmed).await.contains("Removed."));
    assert_eq!(server.get("/_replicator/r").await.status, 404);
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_replication_that_has_failed_runs_again_with_its_password() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    let mut failed = crashing();
    failed["_replication_state"] = json!("failed");
    server.put_ok("/_replicator/r", &failed).await;
    let page = me.page("/ui/replication?db=_replicator&doc=r").await;
    assert!(page.contains("Run again") && page.contains("*****"), "{page}");
    me.done("/ui/replication", &[("db", "_replicator"), ("doc", "r"), ("action", "again")]).await;
    let state = server.until("r", &["crashing", "running", "pending"]).await;
    assert_eq!(state["doc_id"], "r");
    server.server.shutdown().await;
}

#[tokio::test]
async fn the_form_keeps_what_is_right_and_tells_what_is_wrong() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    let new = "/ui/replications/new";
    assert!(me.page(new).await.contains("name=\"source_password\""));
    let good = [
        ("db", "new/_replicator"),
        ("id", "<i>o'rders"),
        ("source", "http://u:hunter2@127.0.0.1:1/a"),
        ("target", "http://127.0.0.1:1/b"),
        ("target_user", "jan"),
        ("target_password", "hunter2-target"),
        ("continuous", "1"),
        ("selection", "selector"),
        ("selector", "{\"type\": \"invoice\"}"),
    ];
    let with = |name: &'static str, value: &'static str| {
        let mut fields: Vec<(&str, &str)> = good.into_iter().filter(|(of, _)| *of != name).collect();
        fields.push((name, value));
        fields
    };
    for (fields, status, text) in [
        (with("source", "ftp://127.0.0.1:1/a"), 400, "Source"),
        (with("selector", "{\"type\""), 400, "Is not JSON"),
        (with("selector", "[]"), 400, "Must be a JSON object"),
        (good.to_vec(), 404, "Database does not exist."),
        (with("db", "orders"), 404, "holds replicator databases only"),
    ] {
        let (got, html) = me.form(new, &fields).await;
        assert!(matches!(got, 400 | 403 | 404), "{got} for {text} ({status})");
        assert!(html.contains(text), "{text}: {html}");
        assert!(html.contains("role=\"alert\"") && html.contains("Type it again"), "{html}");
        assert!(
            html.contains("value=\"&lt;i&gt;o'rders\"") && html.contains("http://127.0.0.1:1/b"),
            "{html}"
        );
    }
    let (_, html) = me.form(new, &with("target", "http://127.0.0.1:1/b,")).await;
    assert!(html.contains("http://u@127.0.0.1:1/a"), "the name stays, the password does not: {html}");

    let created = [good.as_slice(), &[("create_database", "1")]].concat();
    let html = me.done(new, &created).await;
    assert!(html.contains("Added.") && html.contains("&lt;i&gt;o'rders"), "{html}");
    let stored = server.get("/new%2f_replicator/%3Ci%3Eo'rders").await.body;
    assert_eq!(stored["selector"], json!({ "type": "invoice" }));
    assert_eq!((&stored["continuous"], &stored["create_target"]), (&json!(true), &Value::Null));
    assert_eq!(stored["target"]["auth"]["basic"]["username"], "jan");
    // The same again is a conflict, which names the field.
    let (status, html) = me.form(new, &good).await;
    assert!(status == 409 && html.contains("A document with this id exists"), "{html}");
    let ids = [("source", "http://127.0.0.1:1/a"), ("target", "http://127.0.0.1:1/b"), ("id", "ids")];
    let ids = [ids.as_slice(), &[("selection", "ids"), ("doc_ids", "a+b\r\n\r\n 50%25 \r\n")]].concat();
    me.done(new, &ids).await;
    assert_eq!(server.get("/_replicator/ids").await.body["doc_ids"], json!(["a%2Bb", "50%2525"]));
    server.server.shutdown().await;
}

#[tokio::test]
async fn locks_show_their_holder_and_link_its_job() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/locks").await.contains("No job holds a lock"));
    let locks = json!({ "node": { "exclusive": ["<u>web&1"] } });
    let added =
        server.post("/v1/jobs/mail", &json!({ "id": "m<1>", "tenant": "acme", "locks": locks })).await;
    assert_eq!(added.status, 201, "{}", added.body);
    let worker = server.post("/v1/workers/mail", &json!({ "slots": 1, "name": "<s>robot" })).await.body;
    let worker = worker["worker"].as_str().unwrap().to_owned();
    let accept = json!({ "received": 0, "limit": 1, "wait_ms": 10_000 });
    let accepted = server.post(&format!("/v1/workers/mail/{worker}/accept"), &accept).await.body;
    assert_eq!(accepted["jobs"][0]["id"], "m<1>", "{accepted}");
    let page = me.page("/ui/locks").await;
    assert!(
        page.contains("&lt;u&gt;web&amp;1") && page.contains("holds it") && page.contains("exclusive"),
        "{page}"
    );
    assert!(page.contains("/ui/job?type=mail&amp;id=m%3C1%3E") && !page.contains("<u>"), "{page}");
    assert!(me.page("/ui/locks?level=instance").await.contains("No job holds such a lock"));

    // The worker is shown with its job, and is removed after a question.
    let page = me.page("/ui/workers?type=mail").await;
    assert!(
        page.contains("&lt;s&gt;robot") && page.contains("1 of 1") && page.contains("m&lt;1&gt;"),
        "{page}"
    );
    assert!(page.contains(&server.name()), "{page}");
    let remove = [("type", "mail"), ("worker", worker.as_str()), ("action", "remove")];
    assert!(me.done("/ui/workers", &remove).await.contains("Remove this worker?"));
    let confirmed = [remove.as_slice(), &[("confirmed", "1")]].concat();
    assert!(me.done("/ui/workers", &confirmed).await.contains("Removed."));
    assert_eq!(server.post(&format!("/v1/workers/mail/{worker}/ping"), &json!({})).await.status, 410);
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_tenant_sees_no_locks_of_others() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let locks = json!({ "node": { "exclusive": ["web1"] } });
    let job = json!({ "id": "secret-job", "tenant": "acme", "locks": locks });
    assert_eq!(server.with(&admin).post("/v1/jobs/mail", &job).await.status, 201);
    let worker = server.with(&admin).post("/v1/workers/mail", &json!({ "slots": 1 })).await.body;
    let accept = json!({ "received": 0, "limit": 1, "wait_ms": 10_000 });
    let accept_path = format!("/v1/workers/mail/{}/accept", worker["worker"].as_str().unwrap());
    assert_eq!(server.with(&admin).post(&accept_path, &accept).await.body["jobs"][0]["id"], "secret-job");
    let other = server.with(&admin).token(&["read:other"]).await;
    let other = Person { server: &server, token: Some(other) };
    let page = other.page("/ui/locks").await;
    assert!(!page.contains("secret-job") && !page.contains("web1"), "{page}");
    let admin = Person { server: &server, token: Some(admin) };
    assert!(admin.page("/ui/locks").await.contains("secret-job"));
    server.server.shutdown().await;
}

#[tokio::test]
async fn filters_are_previewed_before_they_are_saved() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/filters").await.contains("There are no filters"));
    for (id, tenant) in [("a", "acme"), ("b", "acme"), ("c<", "other")] {
        let job = json!({ "id": id, "tenant": tenant, "options": { "size": 7 } });
        assert_eq!(server.post("/v1/jobs/mail", &job).await.status, 201);
    }
    let filter = |when: &'static str, wanted: &'static str| {
        [("id", "<i>night"), ("action", "pause"), ("when", when), ("note", "<i>by jan"), ("do", wanted)]
    };
    for (when, count) in [
        ("tenant = acme", "2 waiting and 0 running"),
        ("options.size = 7 and not id = a", "2 waiting and 0 running"),
        ("", "3 waiting and 0 running"),
        ("type = sms", "0 waiting and 0 running"),
    ] {
        let page = me.done("/ui/filters", &filter(when, "preview")).await;
        assert!(page.contains(count), "{when}: {page}");
        assert!(page.contains("There are no filters") && page.contains("value=\"&lt;i&gt;night\""), "{page}");
    }
    let (status, page) = me.form("/ui/filters", &filter("tenant = ", "save")).await;
    assert!(
        status == 400 && page.contains("role=\"alert\"") && page.contains("value=\"tenant = \""),
        "{page}"
    );
    assert!(me.done("/ui/filters", &filter("tenant = acme", "save")).await.contains("Saved."));

    // A pass of a worker's server applies it.
    let worker = server.post("/v1/workers/mail", &json!({ "slots": 8 })).await.body;
    let accept = json!({ "received": 0, "limit": 8, "wait_ms": 10_000 });
    let accept_path = format!("/v1/workers/mail/{}/accept", worker["worker"].as_str().unwrap());
    assert_eq!(server.post(&accept_path, &accept).await.body["jobs"][0]["id"], "c<");
    let page = until_shown(&me, "/ui/filters", "2 paused").await;
    assert!(page.contains("&lt;i&gt;by jan") && !page.contains("<i>"), "{page}");
    let edit = me.page(&path("/ui/filters", &[("edit", "<i>night")])).await;
    assert!(edit.contains("value=\"tenant = acme\""), "{edit}");

    let remove = [("id", "<i>night"), ("do", "remove")];
    assert!(me.done("/ui/filters", &remove).await.contains("Remove this filter?"));
    assert!(me.page("/ui/filters").await.contains("night"));
    me.done("/ui/filters", &[remove.as_slice(), &[("confirmed", "1")]].concat()).await;
    assert_eq!(server.get("/v1/filters").await.body, json!({ "filters": [] }));
    server.server.shutdown().await;
}

#[tokio::test]
async fn webhooks_are_added_paused_and_removed() {
    const SECRET: &str = "hunter2-signs-the-deliveries";
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/webhooks").await.contains("There are no webhooks"));
    let webhook = |secret: &'static str, event: &'static str| {
        [
            ("id", "chat"),
            ("url", "http://127.0.0.1:9/hooks/T0KEN"),
            ("secret", secret),
            ("types", "mail, print"),
            ("event", event),
            ("event", "cancelled"),
            ("do", "save"),
        ]
    };
    let (status, page) = me.form("/ui/webhooks", &webhook("", "failed")).await;
    assert!(status == 400 && page.contains("A new webhook needs a secret"), "{page}");
    let (status, page) = me.form("/ui/webhooks", &webhook(SECRET, "exploded")).await;
    assert!(status == 400 && !page.contains(SECRET) && page.contains("value=\"mail, print\""), "{page}");
    let page = me.done("/ui/webhooks", &webhook(SECRET, "failed")).await;
    // The path of a URL may be a secret, too.
    assert!(
        page.contains("Saved.") && page.contains("http://127.0.0.1:9/") && !page.contains("T0KEN"),
        "{page}"
    );
    let row = server.get("/v1/webhooks/chat").await.body;
    assert_eq!([&row["types"], &row["events"]], [&json!(["mail", "print"]), &json!(["failed", "cancelled"])]);

    for (wanted, said, enabled) in [("pause", "delivers nothing", false), ("resume", "It delivers.", true)] {
        let page = me.done("/ui/webhooks", &[("id", "chat"), ("do", wanted)]).await;
        assert!(page.contains(said), "{page}");
        let now = server.get("/v1/webhooks/chat").await.body;
        assert_eq!([&now["enabled"], &now["types"]], [&json!(enabled), &row["types"]]);
    }
    // A delivery that fails is shown with its reason.
    server.post("/v1/jobs/mail", &json!({ "id": "a", "max_attempts": 1 })).await;
    server.post("/v1/jobs/mail/a/cancel", &json!({})).await;
    let page = until_shown(&me, "/ui/webhooks", "Last error").await;
    assert!(!page.contains("T0KEN") && !page.contains(SECRET), "{page}");
    let edit = me.page("/ui/webhooks?edit=chat").await;
    assert!(edit.contains("T0KEN") && !edit.contains(SECRET), "only the form has the whole URL: {edit}");

    let remove = [("id", "chat"), ("do", "remove")];
    assert!(me.done("/ui/webhooks", &remove).await.contains("Remove this webhook?"));
    me.done("/ui/webhooks", &[remove.as_slice(), &[("confirmed", "1")]].concat()).await;
    assert_eq!(server.get("/v1/webhooks").await.body, json!({ "webhooks": [] }));
    server.server.shutdown().await;
}

#[tokio::test]
async fn schedules_are_previewed_added_paused_fired_and_removed() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/schedules").await.contains("There are no schedules here."));
    let schedule = |cron: &'static str, wanted: &'static str| {
        [
            ("name", "<i>night"),
            ("type", "mail"),
            ("cron", cron),
            ("zone", "Europe/Berlin"),
            ("options", "{\"to\": \"jan\"}"),
            ("note", "a & b"),
            ("do", wanted),
        ]
    };
    let (status, page) = me.form("/ui/schedules", &schedule("61 * * * *", "preview")).await;
    assert!(
        status == 400 && page.contains("value=\"61 * * * *\"") && page.contains("role=\"alert\""),
        "{page}"
    );
    // On one of these days, the clocks are set forward.
    let page = me.done("/ui/schedules", &schedule("0 30 2 25-31 3 * 2031", "preview")).await;
    assert!(page.contains("the clocks skip its time"), "{page}");
    let page = me.done("/ui/schedules", &schedule("0 30 2 25-31 3 * 2031", "save")).await;
    assert!(page.contains("Saved.") && page.contains("It has not fired yet."), "{page}");
    assert!(page.contains("&lt;i&gt;night") && !page.contains("<i>night"), "{page}");
    let shown = server.get("/v1/schedules/%3Ci%3Enight").await.body;
    assert_eq!([&shown["job"]["options"], &shown["note"]], [&json!({"to": "jan"}), &json!("a & b")]);

    // Dates, jitter, and when it pauses have the bounds of the API.
    let dates = |dates: &'static str, jitter: &'static str, pause: &'static str| {
        [
            ("name", "dates"),
            ("type", "mail"),
            ("dates", dates),
            ("jitter_s", jitter),
            ("pause_after", pause),
            ("do", "save"),
        ]
    };
    let two = "2031-12-24T08:00:00Z\r\n2031-12-24T10:00:00+01:00\r\n";
    for (wrong, said) in [
        (dates("tomorrow", "", ""), "is not a time like 2026-12-24T08:00:00Z"),
        (dates("2001-01-01T00:00:00Z", "", ""), "role=\"alert\""),
        (dates(two, "86401", ""), "Must be from 0 to 86400000 (a day)"),
        (dates(two, "60", "1001"), "Must be from 1 to 1000"),
    ] {
        let (status, page) = me.form("/ui/schedules", &wrong).await;
        assert!(status == 400 && page.contains(said), "{said}: {page}");
    }
    let page = me.done("/ui/schedules", &dates(two, "60", "3")).await;
    assert!(page.contains("2 dates") && page.contains("Pauses after failures in a row"), "{page}");
    let shown = server.get("/v1/schedules/dates").await.body;
    assert_eq!(
        (&shown["when"]["dates_us"], &shown["jitter_ms"], &shown["pause_after"]),
        (&json!([1_955_865_600_000_000_i64, 1_955_869_200_000_000_i64]), &json!(60_000), &json!(3)),
        "{shown}"
    );
    assert_eq!(server.delete("/v1/schedules/dates").await.status, 200);

    let act =
        async |wanted: &'static str| me.done("/ui/schedules", &[("name", "<i>night"), ("do", wanted)]).await;
    assert!(act("pause").await.contains("paused"));
    assert!(act("resume").await.contains("It fires from now on."));
    assert!(act("fire").await.contains("A job was added."));
    let jobs = server.get("/v1/jobs?type=mail").await.body;
    let id = jobs["jobs"][0]["id"].as_str().unwrap();
    assert!(me.page(&path("/ui/job", &[("type", "mail"), ("id", id)])).await.contains("/ui/schedule?name="));
    assert!(act("remove").await.contains("Remove this schedule?"));
    me.done("/ui/schedules", &[("name", "<i>night"), ("do", "remove"), ("confirmed", "1")]).await;
    assert_eq!(server.get("/v1/schedules").await.body, json!({ "schedules": [] }));
    server.server.shutdown().await;
}

#[tokio::test]
async fn settings_are_changed_where_the_api_changes_them() {
    let server = TestServer::start_with("max_jobs = 77\n[upstream]\n").await;
    let me = everyone(&server);
    let page = me.page("/ui/settings?set=1").await;
    assert!(
        page.contains("value=\"77\"") && page.contains("the file") && !page.contains("max_churn"),
        "{page}"
    );
    let set = |key: &'static str, value: &'static str| {
        [("section", "replicator"), ("key", key), ("value", value), ("action", "set")]
    };
    assert!(me.done("/ui/settings", &set("max_jobs", "78")).await.contains("Saved."));
    assert_eq!(server.get("/_node/_local/_config/replicator/max_jobs").await.body, "78");
    let page = me.page("/ui/settings?q=max_jobs").await;
    assert!(page.contains("the store") && page.contains("replications that run at the same time"), "{page}");

    let (status, page) = me.form("/ui/settings", &set("max_jobs", "<b>many")).await;
    assert!(status == 400 && page.contains("value=\"&lt;b&gt;many\"") && page.contains("expected"), "{page}");
    let (status, page) = me.form("/ui/settings", &set("cert_file", "/x")).await;
    assert!(status == 400 && page.contains("cannot be changed here"), "{page}");
    let (status, page) = me.form("/ui/settings", &set("nothing", "1")).await;
    assert!(status == 400 && page.contains("role=\"alert\""), "{page}");

    let unset = [("section", "replicator"), ("key", "max_jobs"), ("action", "unset")];
    assert!(me.done("/ui/settings", &unset).await.contains("applies again"));
    assert_eq!(server.get("/_node/_local/_config/replicator/max_jobs").await.body, "77");
    let share = [("section", "shares"), ("key", "<b>acme"), ("value", "200"), ("action", "set")];
    let page = me.done("/ui/settings", &share).await;
    assert!(page.contains("&lt;b&gt;acme") && !page.contains("<b>"), "{page}");
    server.server.shutdown().await;
}

#[tokio::test]
async fn users_and_tokens_are_added_rotated_and_removed() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/identities").await.contains("everyone who reaches this server may do everything"));
    let user = [("name", "<b>jan"), ("password", "eleven hunter3"), ("scopes", "read:acme")];
    let (status, page) = me.form("/ui/identities/users", &user).await;
    assert!(status == 409 && page.contains("The first identity needs the scope"), "{page}");
    assert!(page.contains("value=\"&lt;b&gt;jan\"") && !page.contains("hunter3"), "{page}");

    let admin = server.close().await;
    let me = Person { server: &server, token: Some(admin.clone()) };
    assert!(me.done("/ui/identities/users", &user).await.contains("&lt;b&gt;jan"));
    let token = [("note", "<b>robot"), ("scopes", "read:acme worker:mail"), ("days", "3")];
    let page = me.done("/ui/identities/tokens", &token).await;
    let text = |page: &str| {
        page.split_once("<pre class=\"secret\" tabindex=\"0\">")
            .unwrap()
            .1
            .split('<')
            .next()
            .unwrap()
            .to_owned()
    };
    let first = text(&page);
    assert_eq!(server.with(&first).get("/v1/me").await.body["scopes"], json!(["read:acme", "worker:mail"]));
    let list = me.page("/ui/identities").await;
    assert!(list.contains("&lt;b&gt;robot") && !list.contains(&first) && !list.contains("<b>"), "{list}");

    let id = server.with(&first).get("/v1/me").await.body["identity"].as_str().unwrap().to_owned();
    let id = id.strip_prefix("token:").unwrap();
    let rotate = [("token", id), ("do", "rotate")];
    assert!(me.done("/ui/identities/act", &rotate).await.contains("Rotate this token?"));
    assert_eq!(server.with(&first).get("/v1/me").await.status, 200);
    let second =
        text(&me.done("/ui/identities/act", &[rotate.as_slice(), &[("confirmed", "1")]].concat()).await);
    assert_eq!(server.with(&first).get("/v1/me").await.status, 401);
    assert_eq!(server.with(&second).get("/v1/me").await.status, 200);
    me.done("/ui/identities/act", &[("token", id), ("do", "revoke"), ("confirmed", "1")]).await;
    assert_eq!(server.with(&second).get("/v1/me").await.status, 401);

    let password = [("user", "<b>jan"), ("do", "password"), ("confirmed", "1")];
    let (status, page) =
        me.form("/ui/identities/act", &[password.as_slice(), &[("password", "short")]].concat()).await;
    assert!(status == 400 && page.contains("role=\"alert\"") && page.contains("&lt;b&gt;jan"), "{page}");
    me.done("/ui/identities/act", &[password.as_slice(), &[("password", "another one 3")]].concat()).await;
    let scopes = [("user", "<b>jan"), ("do", "scopes"), ("scopes", "read:acme")];
    let asked = me.done("/ui/identities/act", &scopes).await;
    assert!(asked.contains("Change the scopes") && asked.contains(r#"value="read:acme""#), "{asked}");
    let wrong = [("user", "<b>jan"), ("do", "scopes"), ("confirmed", "1"), ("scopes", "reed:acme")];
    let (status, page) = me.form("/ui/identities/act", &wrong).await;
    assert!(status == 400 && page.contains("is no scope") && page.contains(r#"value="reed:acme""#), "{page}");
    let changed =
        [("user", "<b>jan"), ("do", "scopes"), ("confirmed", "1"), ("scopes", "read:acme worker:mail")];
    assert!(me.done("/ui/identities/act", &changed).await.contains("<bdi>worker:mail</bdi>"));
    assert_eq!(
        server.with(&admin).get("/v1/users").await.body["users"][0]["scopes"],
        json!(["read:acme", "worker:mail"])
    );
    me.done("/ui/identities/act", &[("user", "<b>jan"), ("do", "remove"), ("confirmed", "1")]).await;
    assert_eq!(server.with(&admin).get("/v1/users").await.body["users"], json!([]));
    server.server.shutdown().await;
}

#[tokio::test]
async fn the_audit_log_is_shown_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let server = TestServer::start_with(&format!("[audit]\nfile = {}\n", file.display())).await;
    let me = everyone(&server);
    server.post("/v1/jobs/mail", &json!({ "id": "a" })).await;
    server.post("/v1/jobs/s%3Cb%3E", &json!({ "id": "b" })).await;
    let page = me.page("/ui/audit").await;
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    assert!(place("/v1/jobs/s%3Cb%3E") < place("/v1/jobs/mail"), "{page}");
    let page = me.page("/ui/audit?q=jobs%2Fmail").await;
    assert!(page.contains("/v1/jobs/mail<") && !page.contains("s%3Cb"), "{page}");
    server.server.shutdown().await;

    let server = TestServer::start().await;
    assert!(everyone(&server).page("/ui/audit").await.contains("keeps no audit log"));
    server.server.shutdown().await;
}

#[tokio::test]
async fn pages_of_operators_and_administrators_are_for_them_alone() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let operator = server.with(&admin).token(&["operator"]).await;
    let client = server.with(&admin).token(&["client:acme"]).await;
    let operator = Person { server: &server, token: Some(operator) };
    let client = Person { server: &server, token: Some(client) };
    for path in ["/ui/workers", "/ui/filters", "/ui/settings"] {
        assert_eq!(operator.see(path).await.0, 200, "{path}");
        assert_eq!(client.see(path).await.0, 403, "{path}");
        assert_eq!(client.form(path, &[]).await.0, 403, "{path}");
    }
    for path in ["/ui/identities", "/ui/audit"] {
        assert_eq!(operator.see(path).await.0, 403, "{path}");
        assert_eq!(client.see(path).await.0, 403, "{path}");
    }
    for path in ["/ui/identities/users", "/ui/identities/tokens", "/ui/identities/act"] {
        assert_eq!(operator.form(path, &[]).await.0, 403, "{path}");
    }
    let page = client.page("/ui/replications").await;
    assert!(page.contains("href=\"/ui/locks\"") && !page.contains("href=\"/ui/settings\""), "{page}");
    assert!(!page.contains("href=\"/ui/identities\"") && !page.contains("href=\"/ui/workers\""), "{page}");
    server.server.shutdown().await;
}

#[tokio::test]
async fn forms_of_other_sites_change_nothing() {
    let server = TestServer::start().await;
    for path in [
        "/ui/jobs/new",
        "/ui/replications/new",
        "/ui/replication",
        "/ui/workers",
        "/ui/filters",
        "/ui/webhooks",
        "/ui/schedules",
        "/ui/groups",
        "/ui/settings",
        "/ui/identities/users",
        "/ui/identities/tokens",
        "/ui/identities/act",
    ] {
        for origin in [None, Some("null"), Some("https://evil.example")] {
            let request = server.request("POST", path);
            let request = request.header("content-type", "application/x-www-form-urlencoded");
            let request = match origin {
                Some(origin) => request.header("origin", origin),
                None => request,
            };
            let fields = "name=a&password=eleven+words&scopes=admin&do=save&id=x&action=set&section=replicator&key=max_jobs&value=1";
            assert_eq!(request.body(fields).send().await.unwrap().status(), 403, "{path} {origin:?}");
        }
    }
    assert_eq!(server.get("/v1/users").await.body["users"], json!([]));
    assert_eq!(server.get("/v1/filters").await.body["filters"], json!([]));
    assert_eq!(server.get("/_node/_local/_config/replicator/max_jobs").await.body, "500");
    server.server.shutdown().await;
}

#[tokio::test]
async fn groups_show_how_far_they_are_and_are_changed_as_one() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/groups").await.contains("There are no groups here."));
    let group = json!({ "name": "g", "on_complete": { "type": "after", "options": { "secret": "s3cr3t" } } });
    assert_eq!(server.post("/v1/groups", &group).await.status, 201);
    assert_eq!(server.post("/v1/groups", &json!({ "name": "part", "parent": "g" })).await.status, 201);
    for id in ["<i>a", "<i>b"] {
        let added = server.post("/v1/jobs/t", &json!({ "id": id, "group": "g" })).await;
        assert_eq!(added.status, 201, "{}", added.body);
    }
    let list = me.page("/ui/groups?state=open&tenant=default").await;
    assert!(
        list.contains("/ui/group?tenant=default&amp;name=g") && list.contains("<progress max=\"3\""),
        "{list}"
    );
    assert!(me.page("/ui/groups?state=closed").await.contains("There are no groups here."));
    let inside = me.page("/ui/groups?parent=g").await;
    assert!(inside.contains("name=part") && !inside.contains("name=g\""), "{inside}");

    let here = path("/ui/group", &[("tenant", "default"), ("name", "g")]);
    let page = me.page(&here).await;
    assert!(
        page.contains("not added yet") && page.contains("name=part") && !page.contains("s3cr3t"),
        "{page}"
    );
    assert!(page.contains("value=\"hold\"") && !page.contains("Retry the failed ones"), "{page}");
    let why = me.page(&format!("{here}&why=1")).await;
    assert!(why.contains("no worker") && why.contains("&lt;i&gt;") && !why.contains("<i>"), "{why}");
    let ask =
        [("where", "group = \"g\" and tenant = \"default\""), ("action", "hold"), ("back", here.as_str())];
    assert!(me.page(&path("/ui/bulk/ask", &ask)).await.contains("Hold: 2 jobs?"));
    let job = me.page(&path("/ui/job", &[("type", "t"), ("id", "<i>b")])).await;
    assert!(job.contains("/ui/group?tenant=default&amp;name=g"), "{job}");

    let fields = |wanted: &'static str| [("tenant", "default"), ("name", "part"), ("do", wanted)];
    assert!(me.done("/ui/groups", &fields("close")).await.contains("It is closed"));
    server.poll("/v1/groups/default/part", |group| group["ended_us"].is_i64()).await;
    assert!(me.done("/ui/groups", &fields("remove")).await.contains("Remove this group?"));
    me.done("/ui/groups", &[fields("remove").as_slice(), &[("confirmed", "1")]].concat()).await;
    assert_eq!(server.get("/v1/groups/default/part").await.status, 404);
    server.server.shutdown().await;
}

#[tokio::test]
async fn an_action_on_all_that_match_states_their_number_and_shows_its_progress() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    let jobs: Vec<Value> = (0..30)
        .map(|n| json!({ "type": "mail", "id": format!("m{n}"), "tenant": if n % 3 == 0 { "acme" } else { "beta" }, "delay_ms": 3_600_000 }))
        .collect();
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    let list = me.page("/ui/jobs?type=mail&tenant=acme").await;
    assert!(
        list.contains("For all that match")
            && list.contains(r#"type = &quot;mail&quot; and tenant = &quot;acme&quot;"#),
        "{list}"
    );
    let wanted = r#"type = "mail" and tenant = "acme""#;
    let ask =
        path("/ui/bulk/ask", &[("where", wanted), ("action", "cancel"), ("back", "/ui/jobs?type=mail")]);
    let question = me.page(&ask).await;
    assert!(question.contains("Cancel: 10 jobs?") && question.contains("Some of them"), "{question}");
    assert_eq!(server.get("/v1/bulk").await.body["bulk"], json!([]));
    let id = question.split("name=\"id\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let begin =
        [("where", wanted), ("action", "cancel"), ("id", id), ("of", "10"), ("back", "/ui/jobs?type=mail")];
    // Sending it twice begins one operation.
    for _ in 0..2 {
        assert!(me.done("/ui/bulk", &begin).await.contains("All jobs with"));
    }
    let ended = server.poll(&format!("/v1/bulk/{id}"), |bulk| bulk["state"] == "done").await;
    assert_eq!(ended["changed"], 10);
    let page = me.page(&path("/ui/bulk", &[("id", id), ("back", "/ui/jobs?type=mail")])).await;
    assert!(page.contains("Changed 10 jobs.") && page.contains("Back to the jobs"), "{page}");
    assert!(me.page("/ui/bulk").await.contains("Cancel"));
    assert_eq!(
        server.get("/v1/counts?type=mail&tenant=acme").await.body["counts"][0]["jobs"]["cancelled"],
        10
    );
    // Priority has a number, and nothing is asked without a condition.
    let priority =
        path("/ui/bulk/ask", &[("where", "type = mail"), ("action", "priority"), ("priority", "7")]);
    assert!(me.page(&priority).await.contains("Set priority 7 of 20 jobs?"));
    for wrong in [
        &[("action", "cancel")][..],
        &[("where", "type = mail")],
        &[("where", "type ="), ("action", "cancel")],
    ] {
        assert_eq!(me.see(&path("/ui/bulk/ask", wrong)).await.0, 400, "{wrong:?}");
    }
    let stop = [("id", id), ("action", "stop")];
    assert!(me.done("/ui/bulk", &stop).await.contains("done"));

    // Others see neither the operation nor the jobs.
    let admin = server.close().await;
    let token = server.with(&admin).token(&["client:beta"]).await;
    let beta = Person { server: &server, token: Some(token) };
    assert_eq!(beta.see(&path("/ui/bulk", &[("id", id)])).await.0, 404);
    assert!(beta.page(&ask).await.contains("Cancel: 0 jobs?"));
    let reader = Person { server: &server, token: Some(server.with(&admin).token(&["read:beta"]).await) };
    assert_eq!(reader.see(&ask).await.0, 403);
    assert!(!reader.page("/ui/jobs").await.contains("For all that match"));
    server.server.shutdown().await;
}

#[tokio::test]
async fn workers_and_nodes_are_quieted_drained_and_resumed() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    let worker = server.post("/v1/workers/mail", &json!({ "slots": 1 })).await.body["worker"].clone();
    let worker = worker.as_str().unwrap();
    server.post("/v1/jobs/mail", &json!({ "id": "a" })).await;
    let act = |action| [("type", "mail"), ("worker", worker), ("action", action)];
    let page = me.done("/ui/workers", &act("quiet")).await;
    assert!(
        page.contains("It takes no new jobs until") && page.contains("quiet: takes no new jobs"),
        "{page}"
    );
    assert!(me.page("/ui/job?type=mail&id=a").await.contains("all workers for it are quiet"));
    assert!(me.page("/ui/").await.contains("All workers are quiet"));
    assert!(me.done("/ui/workers", &act("active")).await.contains("It takes new jobs again."));
    assert!(me.done("/ui/workers", &act("drain")).await.contains("Drain this?"));
    let confirmed = [act("drain").as_slice(), &[("confirmed", "1")]].concat();
    assert!(me.done("/ui/workers", &confirmed).await.contains("drained: runs nothing more"));
    let node = server.name();
    let act = |action| [("node", node.as_str()), ("action", action)];
    assert!(me.done("/ui/workers", &act("quiet")).await.contains("its workers take no new jobs"));
    assert!(!me.done("/ui/workers", &act("active")).await.contains("its workers take no new jobs"));
    assert_eq!(me.form("/ui/workers", &[("node", "none"), ("action", "quiet")]).await.0, 404);
    assert_eq!(me.form("/ui/workers", &act("remove")).await.0, 400);
    let admin = server.close().await;
    let client = Person { server: &server, token: Some(server.with(&admin).token(&["client:*"]).await) };
    assert_eq!(client.form("/ui/workers", &act("quiet")).await.0, 403);
    server.server.shutdown().await;
}

#[tokio::test]
async fn dependencies_are_drawn_without_those_of_other_tenants() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    let add = async |id: &str, tenant: &str, after: &[&str]| {
        let after: Vec<Value> = after.iter().map(|id| json!({ "type": "t", "id": id })).collect();
        let added = server.post("/v1/jobs/t", &json!({ "id": id, "tenant": tenant, "after": after })).await;
        assert_eq!(added.status, 201, "{}", added.body);
    };
    add("first", "acme", &[]).await;
    add("secret-1", "beta", &[]).await;
    add("<middle>", "acme", &["first", "secret-1"]).await;
    add("last", "acme", &["<middle>", "first"]).await;
    add("alone", "acme", &[]).await;
    let page = me.page("/ui/job?type=t&id=%3Cmiddle%3E").await;
    for text in [
        "<svg class=\"graph\"",
        "first",
        "secret-1",
        "last",
        "It waits for 2 jobs, and 1 job waits for it",
        "waits for other jobs",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("<middle>"), "{page}");
    assert!(!me.page("/ui/job?type=t&id=alone").await.contains("svg class=\"graph\""));
    let admin = server.close().await;
    let acme = Person { server: &server, token: Some(server.with(&admin).token(&["client:acme"]).await) };
    let page = acme.page("/ui/job?type=t&id=%3Cmiddle%3E").await;
    assert!(
        page.contains("It waits for 1 job, and 1 job waits for it") && !page.contains("secret-1"),
        "{page}"
    );
    server.server.shutdown().await;
}

#[tokio::test]
async fn other_shares_are_simulated_before_they_are_saved() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/tenants/shares?type=mail").await.contains("nothing to divide"));
    server.post("/v1/workers/mail", &json!({ "slots": 4 })).await;
    let jobs: Vec<Value> = (0..600)
        .map(|n| json!({ "type": "mail", "id": format!("m{n}"), "tenant": if n % 2 == 0 { "acme" } else { "beta" } }))
        .collect();
    assert_eq!(server.post("/v1/jobs", &json!({ "jobs": jobs })).await.status, 200);
    assert!(me.page("/ui/tenants").await.contains("/ui/tenants/shares?type=mail"));
    let now = me.page("/ui/tenants/shares?type=mail").await;
    assert!(now.contains("50.0 %") && now.contains(">2.0<") && !now.contains("Save the shares"), "{now}");
    let tried = "/ui/tenants/shares?type=mail&shares:acme=300&shares:beta=100";
    let then = me.page(tried).await;
    assert!(then.contains("with the new shares") && then.contains("Save the shares of 1 tenant"), "{then}");
    let shares = async || server.get("/_node/_local/_config/shares").await.body;
    assert_eq!(shares().await, json!({}));
    for wrong in ["0", "1001", "many"] {
        assert_eq!(
            me.see(&format!("/ui/tenants/shares?type=mail&shares:acme={wrong}")).await.0,
            400,
            "{wrong}"
        );
    }
    let save = [("type", "mail"), ("shares:acme", "300")];
    assert!(me.done("/ui/tenants/shares/save", &save).await.contains("Saved."));
    assert_eq!(shares().await, json!({ "acme": "300" }));
    let admin = server.close().await;
    let client = Person { server: &server, token: Some(server.with(&admin).token(&["client:*"]).await) };
    assert_eq!(client.see(tried).await.0, 403);
    assert_eq!(client.form("/ui/tenants/shares/save", &save).await.0, 403);
    server.server.shutdown().await;
}
