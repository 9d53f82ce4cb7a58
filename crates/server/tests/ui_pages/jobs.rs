//! The page of a job with what its runs leave, the tasks of workers, and the form that adds a job.

use serde_json::{Value, json};

use super::{Person, everyone, path, until_shown};
use crate::common::TestServer;
use crate::common::worker::ExternalWorker;

/// What must be text wherever a worker or a client writes it.
const HOSTILE: &str = "<script>alert(1)</script>";
const ESCAPED: &str = "&lt;script&gt;alert(1)&lt;/script&gt;";

#[tokio::test]
async fn the_page_of_a_job_has_its_options_errors_attempts_log_and_result() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert_eq!(server.put("/v1/types/t", &json!({ "secrets": ["/token"] })).await.status, 200);
    let options =
        json!({ "token": "hunter2", "n": 12_345_678_901_234_567_i64, "html": HOSTILE, "a": [1, {}] });
    let add = async |id: &str| {
        let job = json!({ "id": id, "task": HOSTILE, "options": options, "max_attempts": 2, "backoff": { "fixed_ms": 1 } });
        assert_eq!(server.post("/v1/jobs/t", &job).await.status, 201);
    };
    let mut worker = ExternalWorker::register(&server, "t", 9).await;
    add("fails").await;
    for n in 1..=2 {
        let claim = worker.next(1).await[0]["claim"].clone();
        let log = json!([{ "message": HOSTILE, "level": "warn", "at_us": 1_700_000_000_012_345_i64, "fields": { "x": HOSTILE, "n": 7 } }]);
        let trace = format!("  File \"/srv/mail.py\", line {n}, in send\n    {HOSTILE}");
        let fail = json!({ "claim": claim, "reason": format!("{HOSTILE} of {n}\nlines"), "class": HOSTILE, "trace": trace, "log": log });
        assert_eq!(worker.call("jobs/fails/fail", fail).await.status, 200);
    }
    let page = me.page("/ui/job?type=t&id=fails").await;
    assert!(!page.contains(HOSTILE), "{page}");
    for text in [
        // The task, as a link to its jobs.
        &format!(
            " / <a href=\"/ui/jobs?type=t&amp;where=task+%3D+%22%3Cscript%3Ealert%281%29%3C%2Fscript%3E%22\"><bdi>{ESCAPED}</bdi>"
        ),
        // The latest error in full, and the earlier one folded.
        &format!("<strong class=\"bad\"><bdi>{ESCAPED}</bdi></strong> <span class=\"quiet\">in attempt 2, "),
        &format!("<p class=\"message\"><bdi>{ESCAPED} of 2\nlines</bdi></p>"),
        &format!("line 2, in send\n    {ESCAPED}</bdi></pre>"),
        &format!("<summary>Attempt 1: <bdi>{ESCAPED}</bdi>"),
        // The options as they were written.
        &format!(
            "{{\n  &quot;token&quot;: &quot;*****&quot;,\n  &quot;n&quot;: 12345678901234567,\n  &quot;html&quot;: &quot;{ESCAPED}&quot;,\n  &quot;a&quot;: [\n    1,\n    {{}}\n  ]\n}}"
        ),
        "<span class=\"step crashed\">crashed</span>",
        "<span class=\"step failed\">failed</span>",
        // The log.
        &format!(
            "<span class=\"level\">warn</span><span class=\"said\"><bdi>{ESCAPED}</bdi> <code class=\"more\"><bdi>{{&quot;x&quot;:&quot;{ESCAPED}&quot;,&quot;n&quot;:7}}</bdi></code>"
        ),
        "2023-11-14T22:13:20.012Z",
        "/v1/jobs/t/fails/logs?limit=1000",
        "Run again with changes",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("data-follow"), "{page}");

    // A job that runs: its lines follow, and of many the last ones are shown.
    add("runs").await;
    let claim = worker.next(1).await[0]["claim"].clone();
    let page = me.page("/ui/job?type=t&id=runs").await;
    assert!(page.contains("data-follow=\"/v1/jobs/t/runs/logs?follow=true\" data-next=\"0\""), "{page}");
    let log: Vec<Value> = (0..120).map(|n| json!({ "message": format!("line {n}.") })).collect();
    for _ in 0..10 {
        worker.call("jobs/runs/update", json!({ "claim": claim, "log": log })).await;
    }
    let page = me.page("/ui/job?type=t&id=runs").await;
    assert!(page.contains("lines were dropped") && page.contains("data-next=\"1200\""), "{page}");
    assert_eq!(page.matches("class=\"entry info\"").count(), 100);
    assert!(
        page.contains("data-k=\"1100\"") && page.contains("line 20.") && !page.contains("line 19."),
        "{page}"
    );
    let finish = json!({ "claim": claim, "data": "AAAA", "media_type": "image/png" });
    assert_eq!(worker.call("jobs/runs/finish", finish).await.status, 200);
    let page = me.page("/ui/job?type=t&id=runs").await;
    assert!(page.contains("<bdi>image/png</bdi>, 3 bytes"), "{page}");
    assert!(page.contains("href=\"/v1/jobs/t/runs/result\" download"), "{page}");
    let list = me.page("/ui/jobs?type=t").await;
    assert!(list.contains(&format!("<bdi>{ESCAPED}</bdi>")) && !list.contains(HOSTILE), "{list}");

    // Large options are a link; who may only look gets none.
    server.post("/v1/jobs/t", &json!({ "id": "large", "options": { "x": "y".repeat(70_000) } })).await;
    assert!(me.page("/ui/job?type=t&id=large").await.contains("href=\"/v1/jobs/t/large/options\""));
    let admin = server.close().await;
    let reader = Person { server: &server, token: Some(server.with(&admin).token(&["read:*"]).await) };
    let page = reader.page("/ui/job?type=t&id=fails").await;
    assert!(page.contains("shown to those who may change the job"), "{page}");
    assert!(!page.contains("12345678901234567") && !page.contains("Run again"), "{page}");
    server.server.shutdown().await;
}

#[tokio::test]
async fn workers_are_listed_with_the_tasks_that_they_know() {
    let server = TestServer::start().await;
    let body = json!({ "slots": 4, "tasks": ["send", HOSTILE], "task_slots": { "send": 2 } });
    let worker = server.post("/v1/workers/t", &body).await.body["worker"].clone();
    let page = everyone(&server).page("/ui/workers").await;
    assert!(page.contains(ESCAPED) && !page.contains(HOSTILE), "{page}");
    assert!(page.contains("<bdi>send</bdi></span><span class=\"quiet\"> (at most 2)</span>"), "{page}");
    server.post("/v1/jobs/t", &json!({ "id": "a", "task": "other" })).await;
    let queue = everyone(&server).page("/ui/jobs?view=queue&type=t").await;
    assert!(queue.contains("<bdi>other</bdi>"), "{queue}");
    // Once a pass has looked at it, it waits outside of the queue, and no concurrency limit is the cause.
    let accept = format!("/v1/workers/t/{}/accept", worker.as_str().unwrap());
    server.post(&accept, &json!({ "received": 0, "limit": 1, "wait_ms": 1_000 })).await;
    let me = everyone(&server);
    let page = until_shown(&me, "/ui/job?type=t&id=a", "waits for a worker that takes its task").await;
    assert!(page.contains("No worker knows its task") && !page.contains("Concurrency limit"), "{page}");
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_job_is_added_with_a_form_and_a_mistake_keeps_what_was_typed() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    assert!(me.page("/ui/jobs?type=mail").await.contains("href=\"/ui/jobs/new?type=mail\""));
    let new = me.page("/ui/jobs/new?type=mail").await;
    assert!(new.contains("name=\"type\" value=\"mail\""), "{new}");
    let made = new.split("name=\"made\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();

    let typed = "{\r\n  \"to\": \"</textarea><script>alert(1)</script>\"\r\n  \"n\": 1\r\n}";
    let mut fields = vec![
        ("type", "mail"),
        ("task", "send"),
        ("options", typed),
        ("priority", "-3"),
        ("made", &made),
        ("tags", "us, eu us"),
    ];
    let (status, page) = me.form("/ui/jobs/new", &fields).await;
    assert_eq!(status, 400, "{page}");
    assert!(page.contains("Not JSON in line 3, column 3: expected"), "{page}");
    assert!(page.contains("&lt;/textarea&gt;&lt;script&gt;alert(1)") && !page.contains(HOSTILE), "{page}");
    assert!(
        page.contains("value=\"send\"") && page.contains("value=\"-3\"") && page.contains(&made),
        "{page}"
    );
    fields[2].1 = "{\"n\": 1.50, \"big\": 12345678901234567890}";
    for (name, wrong, told) in [
        ("priority", "99", "Must be from -20 (first) to 19"),
        ("priority", "first", "Must be a whole number"),
        ("delay_s", "999999999999", "Must be from 0 to 315360000 (ten years)"),
        ("max_attempts", "1000001", "Must be from 0 to 1000000"),
        ("tenant", "a\u{1}b", "control characters"),
        ("tags", "eu a*b", "May have letters"),
    ] {
        let others = fields.iter().filter(|(of, _)| *of != name).copied();
        let (status, page) =
            me.form("/ui/jobs/new", &others.chain([(name, wrong)]).collect::<Vec<_>>()).await;
        assert_eq!(status, 400, "{name}: {page}");
        assert!(page.contains(told) && page.contains("Nothing was added"), "{told}: {page}");
    }
    // Sending it twice adds one job.
    for _ in 0..2 {
        let page = me.done("/ui/jobs/new", &fields).await;
        assert!(page.contains("Added."), "{page}");
        assert!(page.contains("<a href=\"/ui/jobs?type=mail&amp;tag=eu\"><bdi>eu</bdi></a>"), "{page}");
    }
    let jobs = server.get("/v1/jobs?type=mail").await.body;
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1), "{jobs}");
    let job = server.get(&format!("/v1/jobs/mail/{made}")).await.body;
    assert_eq!((&job["task"], &job["priority"]), (&json!("send"), &json!(-3)), "{job}");
    assert_eq!(job["tags"], json!(["eu", "us"]));
    let options = server.request("GET", &format!("/v1/jobs/mail/{made}/options")).send().await.unwrap();
    assert_eq!(options.text().await.unwrap().trim_end(), "{\"n\":1.50,\"big\":12345678901234567890}");
    // An id that exists, and a type that belongs to the server.
    let (status, page) = me.form("/ui/jobs/new", &[("type", "mail"), ("id", &made)]).await;
    assert!(status == 400 && page.contains("exists, and nothing was added"), "{page}");
    assert_eq!(me.form("/ui/jobs/new", &[("type", "replication")]).await.0, 403);

    let admin = server.close().await;
    let person = async |scope: &str| Person {
        server: &server,
        token: Some(server.with(&admin).token(&[scope]).await),
    };
    let reader = person("read:acme").await;
    assert_eq!(reader.see("/ui/jobs/new").await.0, 403);
    assert_eq!(reader.form("/ui/jobs/new", &[("type", "mail")]).await.0, 403);
    assert!(!reader.page("/ui/jobs").await.contains("/ui/jobs/new"));
    let client = person("client:acme").await;
    assert_eq!(client.form("/ui/jobs/new", &[("type", "mail"), ("tenant", "beta")]).await.0, 403);
    assert!(client.done("/ui/jobs/new", &[("type", "mail"), ("id", "own")]).await.contains("acme"));
    server.server.shutdown().await;
}

#[tokio::test]
async fn a_job_that_waits_is_edited_and_held_on_its_page() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    let job = json!({ "id": "a", "options": { "n": 1 }, "priority": 4, "delay_ms": 3_600_000 });
    assert_eq!(server.post("/v1/jobs/t", &job).await.status, 201);
    let page = me.page("/ui/job?type=t&id=a").await;
    assert!(page.contains("Edit…") && page.contains(">Hold<"), "{page}");
    let page = me.page("/ui/jobs/new?edit=1&type=t&id=a").await;
    assert!(page.contains("&quot;n&quot;: 1") && !page.contains("name=\"tenant\""), "{page}");
    let version = server.get("/v1/jobs/t/a").await.body["version"].as_str().unwrap().to_owned();
    assert!(page.contains(&format!("name=\"version\" value=\"{version}\"")), "{page}");
    let fields = |options| {
        [
            ("edit", "1"),
            ("type", "t"),
            ("id", "a"),
            ("version", version.as_str()),
            ("priority", "4"),
            ("options", options),
        ]
    };
    let (status, page) = me.form("/ui/jobs/new", &fields("{\"n\": ")).await;
    assert!(status == 400 && page.contains("Nothing was changed."), "{page}");
    assert!(me.done("/ui/jobs/new", &fields("{\"n\": 2}")).await.contains("Changed."));
    let changed = server.get("/v1/jobs/t/a").await.body;
    assert_eq!(
        (&changed["options"], &changed["history"][0]["reason"]),
        (&json!({ "n": 2 }), &json!("options"))
    );
    let (status, page) = me.form("/ui/jobs/new", &fields("{\"n\": 3}")).await;
    assert!(status == 412 && page.contains("The job has changed since"), "{page}");

    let at = page_cursor(&me.page("/ui/job?type=t&id=a").await);
    let back = "/ui/job?type=t&id=a";
    let page = me.done("/ui/jobs/hold", &[("job", &at), ("back", back), ("do", "hold")]).await;
    assert!(page.contains("An operator holds it.") && page.contains(">Release<"), "{page}");
    me.done("/ui/jobs/hold", &[("job", &at), ("back", back), ("do", "release")]).await;
    assert_eq!(server.get("/v1/jobs/t/a").await.body["state"], "delayed");
}

/// The position of the job of a page, as its forms name it.
fn page_cursor(page: &str) -> String {
    let (_, rest) = page.split_once("name=\"job\" value=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_job_runs_again_with_changes_and_keeps_hidden_options() {
    let server = TestServer::start().await;
    let me = everyone(&server);
    let options = json!({ "token": "hunter2", "to": "jan" });
    let job = json!({ "id": "<a>", "task": "send", "tenant": "acme", "options": options, "priority": 4, "delay_ms": 3_600_000 });
    assert_eq!(server.post("/v1/jobs/t", &job).await.status, 201);
    let form = path("/ui/jobs/new", &[("again", "1"), ("type", "t"), ("id", "<a>")]);
    let (status, page) = me.see(&form).await;
    assert!(status == 400 && page.contains("The job has not ended."), "{page}");
    let at = "/v1/jobs/t/%3Ca%3E";
    server.post_empty(&format!("{at}/cancel")).await;
    assert_eq!(server.put("/v1/types/t", &json!({ "secrets": ["/token"] })).await.status, 200);
    let page = me.page(&form).await;
    assert!(page.contains("name=\"id\" value=\"&lt;a&gt;\"") && page.contains("some are hidden"), "{page}");
    assert!(
        page.contains("value=\"send\"") && page.contains("value=\"acme\"") && !page.contains("*****"),
        "{page}"
    );
    let fields = [
        ("again", "1"),
        ("type", "t"),
        ("id", "<a>"),
        ("task", "other"),
        ("tenant", "acme"),
        ("priority", "4"),
    ];
    let page = me.done("/ui/jobs/new", &fields).await;
    assert!(page.contains("It is pending with these values.") && page.contains("<bdi>other</bdi>"), "{page}");
    let worker = ExternalWorker::register(&server, "t", 1).await;
    let taken = worker.take(0).await;
    assert_eq!((&taken["options"], &taken["task"]), (&options, &json!("other")), "{taken}");
    let finish = json!({ "claim": taken["claim"] });
    assert_eq!(worker.call("jobs/%3Ca%3E/finish", finish).await.status, 200);

    // Without hidden members, the options are there to change.
    assert_eq!(server.put("/v1/types/t", &json!({ "secrets": ["/nothing"] })).await.status, 200);
    server
        .post(
            "/v1/jobs/t",
            &json!({ "id": "<a>", "if_exists": "again", "options": { "n": 1 }, "delay_ms": 60_000 }),
        )
        .await;
    server.post_empty(&format!("{at}/cancel")).await;
    assert!(me.page(&form).await.contains("{\n  &quot;n&quot;: 1\n}</textarea>"));
    let changed = [("again", "1"), ("type", "t"), ("id", "<a>"), ("options", "{\"n\": 2}")];
    assert!(me.done("/ui/jobs/new", &changed).await.contains("&quot;n&quot;: 2"));
    let admin = server.close().await;
    let others = Person { server: &server, token: Some(server.with(&admin).token(&["client:beta"]).await) };
    assert_eq!(others.see(&form).await.0, 404);
    assert_eq!(others.form("/ui/jobs/new", &changed).await.0, 404);
    let token = server.with(&admin).token(&["client:beta", "read:acme"]).await;
    let reader = Person { server: &server, token: Some(token) };
    assert_eq!(reader.form("/ui/jobs/new", &changed).await.0, 403);
    server.server.shutdown().await;
}
