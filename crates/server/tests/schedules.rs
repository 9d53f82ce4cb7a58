//! `/v1/schedules`: jobs that the server adds again and again.

use serde_json::{Value, json};
use turnwise_testkit::canary;

use crate::common::worker::ExternalWorker;
use crate::common::{As, TestServer, until};

/// Marked, so that every answer and the log are searched for it.
const SECRET: &str = canary::TOKEN;
/// Noon of the day before Berlin's clocks are set forward in 2027, in µs.
const BEFORE_SPRING_US: i64 = 1_806_148_800_000_000;
/// Noon of the day before they are set back.
const BEFORE_AUTUMN_US: i64 = 1_824_897_600_000_000;
const DAY_US: i64 = 86_400_000_000;

/// A schedule of jobs of type `t`, which fires every day, with these members.
fn daily(more: Value) -> Value {
    with(json!({"when": {"every_ms": 86_400_000}, "job": {"type": "t"}}), more)
}

/// The same, each second.
fn secondly(more: Value) -> Value {
    with(json!({"when": {"every_ms": 1_000}, "job": {"type": "t"}}), more)
}

fn with(mut schedule: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("{more}") };
    schedule.as_object_mut().unwrap().extend(more);
    schedule
}

async fn put(server: &TestServer, name: &str, schedule: &Value) -> Value {
    let put = server.put(&format!("/v1/schedules/{name}"), schedule).await;
    assert!([200, 201].contains(&put.status), "{}", put.body);
    put.body
}

async fn jobs(server: &TestServer) -> usize {
    server.get("/v1/jobs?type=t").await.body["jobs"].as_array().unwrap().len()
}

#[tokio::test]
async fn each_fire_adds_a_job_that_knows_its_time_and_the_last_success() {
    let server = TestServer::start().await;
    let schedule = secondly(json!({"overlap": "allow", "note": "a test"}));
    let new = server.put("/v1/schedules/often", &schedule).await;
    assert_eq!(
        (new.status, &new.body["state"], &new.body["note"]),
        (201, &json!("active"), &json!("a test"))
    );
    assert_eq!(server.put("/v1/schedules/often", &schedule).await.status, 200);

    let mut worker = ExternalWorker::register(&server, "t", 1).await;
    let job = worker.run("finish", json!({"result": {"upto": 7}})).await;
    let (id, from) = (job["id"].as_str().unwrap(), &job["schedule"]);
    assert_eq!((&from["name"], from.get("last_success")), (&json!("often"), None), "{job}");
    let at_us = from["scheduled_at_us"].as_i64().unwrap();
    assert_eq!(at_us % 1_000_000, 0);
    assert!(from["fired_at_us"].as_i64().unwrap() >= at_us, "{job}");
    assert!(id.starts_with("often@20") && id.ends_with('Z'), "{id}");
    let shown = server.get(&format!("/v1/jobs/t/{id}")).await.body;
    assert_eq!(shown["schedule"]["scheduled_at_us"], at_us, "{shown}");

    let next = worker.run("finish", json!({"result": {"upto": 8}})).await;
    assert_eq!(next["schedule"]["last_success"], json!({"id": id, "result": {"upto": 7}}), "{next}");
    assert!(next["schedule"]["scheduled_at_us"].as_i64().unwrap() > at_us);

    let paused = server.post_empty("/v1/schedules/often/pause").await.body;
    assert_eq!((&paused["state"], paused.get("next")), (&json!("paused"), None), "{paused}");
    let fire = &paused["fires"][0];
    assert_eq!((&fire["outcome"], fire["job"].is_string()), (&json!("added"), true), "{paused}");
    let before = jobs(&server).await;
    let fired = server.post_empty("/v1/schedules/often/fire").await.body;
    assert!(fired["job"].as_str().unwrap().starts_with("often@"), "{fired}");
    assert_eq!(jobs(&server).await, before + 1, "while it is paused, a fire by hand alone adds a job");
    assert_eq!(server.post_empty("/v1/schedules/often/resume").await.body["state"], "active");
    assert_eq!(server.delete("/v1/schedules/often").await.body, json!({"removed": true}));
    assert_eq!(server.get("/v1/schedules/often").await.error(), (404, "not_found"));
    assert!(jobs(&server).await > before, "its jobs stay");
}

#[tokio::test]
async fn an_overlapping_fire_is_skipped_and_shown_and_failures_pause() {
    let server = TestServer::start().await;
    put(&server, "often", &secondly(json!({"pause_after": 1}))).await;
    let skips = |schedule: &Value| {
        schedule["fires"].as_array().unwrap().iter().any(|fire| fire["outcome"] == "skipped")
    };
    let schedule = server.poll("/v1/schedules/often", skips).await;
    assert_eq!(jobs(&server).await, 1, "{schedule}");
    let mut worker = ExternalWorker::register(&server, "t", 1).await;
    worker.run("fail", json!({"reason": "no", "retry": false})).await;
    let paused = server.poll("/v1/schedules/often", |schedule| schedule["state"] == "paused").await;
    assert_eq!((&paused["paused_by"], &paused["failures"]), (&json!("failures"), &json!(1)), "{paused}");
    let scrape = async || server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    let is_counted = |text: &String| text.contains("turnwise_schedules{state=\"paused\"} 1\n");
    let metrics = until("the schedule is counted as paused", scrape, is_counted).await;
    for sample in ["turnwise_schedules_late 0\n", "turnwise_schedule_fires_total{outcome=\"added\"} 1\n"] {
        assert!(metrics.contains(sample), "no {sample} in {metrics}");
    }
}

#[tokio::test]
async fn the_fires_of_a_tenant_that_has_all_its_waiting_jobs_add_none_and_are_shown() {
    let server = TestServer::start_with("[limits]\nwaiting_jobs = 2\n").await;
    put(&server, "often", &secondly(json!({"overlap": "allow"}))).await;
    let is_full =
        |schedule: &Value| schedule["fires"].as_array().unwrap().iter().any(|fire| fire["outcome"] == "full");
    let schedule = server.poll("/v1/schedules/often", is_full).await;
    let full = schedule["fires"].as_array().unwrap().iter().find(|fire| fire["outcome"] == "full").unwrap();
    assert!(full.get("job").is_none(), "{schedule}");
    assert_eq!((jobs(&server).await, &schedule["failures"]), (2, &json!(0)));
    let text = async |path: &str| server.request("GET", path).send().await.unwrap().text().await.unwrap();
    assert!(text("/ui/schedule?name=often").await.contains("its tenant has as many waiting jobs as it may"));
    let metrics = text("/metrics").await;
    let count =
        metrics.lines().find(|line| line.starts_with("turnwise_schedule_fires_total{outcome=\"full\"}"));
    assert!(count.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
    // What a client asks for is refused as a whole.
    let admin = server.close().await;
    let admin = server.with(&admin);
    let tenant = schedule["tenant"].as_str().unwrap();
    let client = admin.token(&[&format!("client:{tenant}")]).await;
    let now_us = full["at_us"].as_i64().unwrap();
    let backfill = json!({"from_us": now_us - 9_000_000, "to_us": now_us - 5_000_000});
    for (action, body) in [("fire", json!({})), ("backfill", backfill)] {
        let refused = server.with(&client).post(&format!("/v1/schedules/often/{action}"), &body).await;
        assert_eq!(refused.error(), (429, "too_many_requests"), "{action}: {}", refused.body);
        assert!(
            refused.body["reason"].as_str().unwrap().contains("may have 2 waiting jobs"),
            "{}",
            refused.body
        );
    }
    // There is room again once they run.
    let worker = admin.post("/v1/workers/t", &json!({"slots": 2})).await.body;
    let accept = format!("/v1/workers/t/{}/accept", worker["worker"].as_str().unwrap());
    admin.post(&accept, &json!({"received": 0, "limit": 2, "wait_ms": 10_000})).await;
    let latest = async || admin.get("/v1/schedules/often").await.body["fires"][0]["outcome"].clone();
    until("a fire adds a job again", latest, |outcome| *outcome == "added").await;
}

#[tokio::test]
async fn what_is_wrong_with_a_schedule_is_said_where_it_is_stated() {
    let server = TestServer::start().await;
    for (more, about) in [
        (json!({"when": {}}), "when"),
        (json!({"when": {"cron": "* * * * *", "every_ms": 1_000}}), "when"),
        (json!({"when": {"cron": "61 * * * *"}}), "when.cron"),
        (json!({"when": {"cron": "* * * * *", "zone": "Europe/Atlantis"}}), "when.zone"),
        (json!({"when": {"every_ms": 1_000, "zone": "UTC"}}), "when.zone"),
        (json!({"when": {"every_ms": 999}}), "when.every_ms"),
        (json!({"when": {"every_ms": 1_000, "offset_ms": 1_000}}), "when.offset_ms"),
        (json!({"when": {"cron": "0 0 30 2 *"}}), "when"),
        (json!({"when": {"dates_us": [0]}}), "when"),
        (json!({"jitter_ms": 86_400_001}), "jitter_ms"),
        (json!({"most_missed": 3}), "most_missed"),
        (json!({"missed": "all", "most_missed": 101}), "most_missed"),
        (json!({"missed": "all"}), "missed"),
        (json!({"pause_after": 0}), "pause_after"),
        (json!({"note": "x".repeat(501)}), "note"),
        (json!({"job": {"type": "t", "id": "a"}}), "job.id"),
        (json!({"job": {"type": "t", "delay_ms": 1}}), "job.delay_ms"),
        (json!({"job": {"type": "t", "after": [{"id": "a"}]}}), "job.after"),
        (json!({"job": {"type": "t", "priority": 20}}), "job.priority"),
        (
            json!({"job": {"type": "replication", "options": {"target": "http://127.0.0.1:1/b"}}}),
            "job.options",
        ),
        (
            json!({"job": {"type": "replication", "options": {"source": "http://127.0.0.1:1/a", "target": "http://127.0.0.1:1/b", "continuous": true}}}),
            "job.options.continuous",
        ),
    ] {
        let refused = server.put("/v1/schedules/a", &daily(more.clone())).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{more}: {}", refused.body);
        let reason = refused.body["reason"].as_str().unwrap();
        assert_eq!(reason.split(':').next(), Some(about), "{more}: {reason}");
    }
    for job_type in ["webhook", "indexing", "command"] {
        let refused = server.put("/v1/schedules/a", &daily(json!({"job": {"type": job_type}}))).await;
        assert_eq!(refused.error(), (403, "forbidden"), "{}", refused.body);
    }
    assert_eq!(server.put("/v1/schedules/a@b", &daily(json!({}))).await.error(), (400, "bad_request"));
    assert_eq!(server.get("/v1/schedules").await.body, json!({"schedules": []}));
}

#[tokio::test]
async fn previews_mark_the_fires_that_a_change_of_clocks_moves() {
    let server = TestServer::start().await;
    let preview = async |cron: &str, after_us: i64| {
        let body = json!({"when": {"cron": cron, "zone": "Europe/Berlin"}, "count": 3, "after_us": after_us});
        let preview = server.post("/v1/schedule_preview", &body).await;
        assert_eq!(preview.status, 200, "{}", preview.body);
        let fires = preview.body["fires"].as_array().unwrap().clone();
        fires
            .into_iter()
            .map(|fire| (fire["local"].as_str().unwrap().to_owned(), fire["moved"].clone()))
            .collect::<Vec<_>>()
    };
    let fire = |local: &str, moved: Value| (local.to_owned(), moved);
    assert_eq!(
        preview("30 2 * * *", BEFORE_SPRING_US).await,
        [
            fire("2027-03-28T03:00:00+02:00", json!("skipped")),
            fire("2027-03-29T02:30:00+02:00", Value::Null),
            fire("2027-03-30T02:30:00+02:00", Value::Null),
        ]
    );
    assert_eq!(
        preview("30 2 * * *", BEFORE_AUTUMN_US).await,
        [
            fire("2027-10-31T02:30:00+02:00", json!("twice")),
            fire("2027-11-01T02:30:00+01:00", Value::Null),
            fire("2027-11-02T02:30:00+01:00", Value::Null),
        ]
    );
    put(&server, "nightly", &daily(json!({"when": {"cron": "30 2 * * *", "zone": "Europe/Berlin"}}))).await;
    let stored =
        server.get(&format!("/v1/schedules/nightly/preview?count=1&after_us={BEFORE_SPRING_US}")).await.body;
    assert_eq!(stored["fires"][0]["moved"], "skipped", "{stored}");
}

#[tokio::test]
async fn what_a_schedule_shows_can_be_written_again_and_a_taken_unique_key_is_told() {
    let server = TestServer::start().await;
    let unique = json!({"mode": "until_end", "key": "k"});
    let locks = json!({"big_lock": true});
    let stated = daily(json!({"job": {"type": "t", "unique": unique, "locks": locks}}));
    let shown = put(&server, "a", &stated).await;
    assert_eq!(shown["job"]["locks"], locks, "{shown}");
    assert_eq!(shown["job"]["unique"]["key"], "k", "{shown}");
    let again = json!({"when": shown["when"], "job": shown["job"]});
    assert_eq!(put(&server, "a", &again).await, shown, "nothing is lost, and nothing has changed");
    let first = server.post_empty("/v1/schedules/a/fire").await.body;
    assert_eq!(first["outcome"], "added", "{first}");
    let second = server.post_empty("/v1/schedules/a/fire").await.body;
    assert_eq!((&second["outcome"], &second["job"]), (&json!("found"), &first["job"]), "{second}");
    let schedule = server.get("/v1/schedules/a").await.body;
    assert_eq!((&schedule["fires"][0]["outcome"], jobs(&server).await), (&json!("found"), 1), "{schedule}");
}

#[tokio::test]
async fn a_backfill_adds_the_job_of_each_fire_once() {
    let server = TestServer::start().await;
    let schedule = put(&server, "daily", &daily(json!({"overlap": "allow"}))).await;
    let next_us = schedule["next"]["at_us"].as_i64().unwrap();
    let backfill = async |dry_run: bool| {
        let body = json!({"from_us": next_us - 4 * DAY_US, "to_us": next_us - DAY_US, "dry_run": dry_run});
        let done = server.post("/v1/schedules/daily/backfill", &body).await.body;
        (done["fires"].as_array().map(Vec::len), done["added"].as_u64())
    };
    assert_eq!(backfill(true).await, (Some(3), Some(0)));
    assert_eq!(jobs(&server).await, 0, "a schedule that is new makes no fire of the past");
    assert_eq!(backfill(false).await, (Some(3), Some(3)));
    assert_eq!(backfill(false).await, (Some(3), Some(0)));
    assert_eq!(jobs(&server).await, 3);
    let all = server.get("/v1/schedules/daily").await.body;
    assert_eq!(all["next"]["at_us"], next_us, "its next fire stays as it is");
    let ahead = json!({"from_us": next_us - DAY_US, "to_us": next_us + DAY_US});
    assert_eq!(server.post("/v1/schedules/daily/backfill", &ahead).await.error(), (400, "bad_request"));
}

#[tokio::test]
async fn hidden_options_reach_only_the_worker_and_are_kept() {
    let server = TestServer::start().await;
    server.hide("t", &["/token"]).await;
    let schedule = daily(json!({"job": {"type": "t", "options": {"token": SECRET, "to": "jan"}}}));
    let shown = put(&server, "a", &schedule).await;
    assert_eq!(shown["job"]["options"], json!({"token": "*****", "to": "jan"}));
    let same = daily(json!({"job": {"type": "t", "options": {"token": "*****"}}}));
    assert_eq!(server.put("/v1/schedules/a", &same).await.error(), (400, "bad_request"));
    let kept = put(&server, "a", &daily(json!({"note": "changed"}))).await;
    assert_eq!(kept["job"]["options"], json!({"token": "*****", "to": "jan"}));
    assert!(server.get("/v1/schedules").await.body["schedules"][0]["job"].get("options").is_none());
    server.post_empty("/v1/schedules/a/fire").await;
    let job = ExternalWorker::register(&server, "t", 1).await.take(0).await;
    assert_eq!(job["options"], json!({"token": SECRET, "to": "jan"}));
}

#[tokio::test]
async fn a_schedule_belongs_to_its_tenant_and_an_operators_pause_to_operators() {
    let server = TestServer::start_with("[limits]\nschedules = 2\n").await;
    let admin = server.close().await;
    let admin: As<'_> = server.with(&admin);
    let (acme, reader, other) = (
        admin.token(&["client:acme"]).await,
        admin.token(&["read:acme"]).await,
        admin.token(&["client:other"]).await,
    );
    let (acme, reader, other) = (server.with(&acme), server.with(&reader), server.with(&other));
    let created = acme.put("/v1/schedules/a", &daily(json!({}))).await;
    assert_eq!((created.status, &created.body["tenant"]), (201, &json!("acme")), "{}", created.body);
    assert_eq!(reader.get("/v1/schedules/a").await.status, 200);
    assert_eq!(
        reader.send("POST", "/v1/schedules/a/fire", Some(&json!({}))).await.error(),
        (403, "forbidden")
    );
    assert_eq!(
        other.put("/v1/schedules/a", &daily(json!({}))).await.error(),
        (409, "conflict"),
        "the name is taken"
    );
    let foreign = daily(json!({"job": {"type": "t", "tenant": "acme"}}));
    assert_eq!(other.put("/v1/schedules/b", &foreign).await.error(), (403, "forbidden"));

    assert_eq!(admin.post("/v1/schedules/a/pause", &json!({})).await.body["paused_by"], "operator");
    let past = json!({"from_us": 0, "to_us": 1});
    for (action, body) in [("resume", json!({})), ("fire", json!({})), ("backfill", past)] {
        let refused = acme.post(&format!("/v1/schedules/a/{action}"), &body).await;
        assert_eq!(refused.error(), (403, "forbidden"), "{action}");
    }
    assert_eq!(acme.send("DELETE", "/v1/schedules/a", None).await.error(), (403, "forbidden"));
    assert_eq!(
        acme.put("/v1/schedules/a", &daily(json!({"paused": false}))).await.error(),
        (403, "forbidden")
    );
    assert_eq!(
        acme.put("/v1/schedules/a", &daily(json!({}))).await.body["state"],
        "paused",
        "it stays paused"
    );
    assert_eq!(admin.post("/v1/schedules/a/resume", &json!({})).await.body["state"], "active");

    assert_eq!(acme.put("/v1/schedules/c", &daily(json!({}))).await.status, 201);
    assert_eq!(acme.put("/v1/schedules/d", &daily(json!({}))).await.status, 429, "a tenant has its part");
    assert_eq!(other.put("/v1/schedules/d", &daily(json!({}))).await.status, 201);
    let page = acme.get("/v1/schedules?limit=1").await.body;
    assert_eq!(
        (&page["schedules"][0]["name"], page["schedules"].as_array().unwrap().len()),
        (&json!("a"), 1),
        "{page}"
    );
    let after: String =
        url::form_urlencoded::byte_serialize(page["next"].as_str().unwrap().as_bytes()).collect();
    let last = acme.get(&format!("/v1/schedules?limit=1&after={after}")).await.body;
    assert_eq!(
        (&last["schedules"][0]["name"], last["schedules"].as_array().unwrap().len()),
        (&json!("c"), 1),
        "{last}"
    );
}

#[tokio::test]
async fn a_replication_is_scheduled_as_replicate_takes_it() {
    let server = TestServer::start().await;
    let options =
        json!({"source": format!("http://jan:{SECRET}@127.0.0.1:1/a"), "target": "http://127.0.0.1:1/b"});
    let schedule = daily(json!({"job": {"type": "replication", "options": options, "tenant": "acme"}}));
    let shown = put(&server, "copy", &schedule).await;
    assert_eq!((&shown["tenant"], &shown["job"]["max_attempts"]), (&json!("acme"), &json!(10)), "{shown}");
    assert!(shown["job"].get("options").is_none(), "{shown}");
    let id = server.post_empty("/v1/schedules/copy/fire").await.body["job"].as_str().unwrap().to_owned();
    let job = server.get(&format!("/v1/jobs/replication/{id}")).await.body;
    assert_eq!(
        (&job["tenant"], &job["summary"]["target"]),
        (&json!("acme"), &json!("http://127.0.0.1:1/b/")),
        "{job}"
    );
    let crashes =
        |job: &Value| job["history"].as_array().unwrap().iter().any(|event| event["type"] == "crashed");
    server.poll(&format!("/v1/jobs/replication/{id}"), crashes).await;
}
