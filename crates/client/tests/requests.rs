//! Requests whose answers are lost, late or wrong.

use std::time::Duration;

use crate::common::Fake;
use serde_json::{Value, json};
use turnwise_client::{
    AddJob, Added, Client, Error, IfExists, JobUpdate, ListJobs, LogUpdate, NewJob, State,
};

fn added(request: &Value, added: &str) -> Value {
    json!({ "type": "mail", "id": request["id"], "added": added })
}

fn job(id: &str, state: &str) -> Value {
    json!({ "type": "mail", "id": id, "state": state, "tenant": "default", "added_us": 1, "changed_us": 1, "attempts": 0,
        "cancel_requested": false, "summary": {}, "history": [], "of a newer server": true })
}

#[tokio::test]
async fn a_job_whose_answer_is_lost_is_added_once() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let adding = tokio::spawn(async move { client.add("mail", AddJob::default()).await });
    let first = fake.next().await;
    assert_eq!((first.method.as_str(), first.path.as_str()), ("POST", "/v1/jobs/mail"));
    let id = first.body["id"].clone();
    assert_eq!(id.as_str().unwrap().len(), 32);
    first.lose();
    let second = fake.next().await;
    assert_eq!(second.body["id"], id, "another id would be another job");
    let answer = added(&second.body, "exists");
    second.answer(200, &answer);
    let done = adding.await.unwrap().unwrap();
    assert_eq!((json!(done.id), done.added), (id, Added::Queued), "it was this very call that added it");

    // A job with an id that the caller chose may have existed before.
    let client = fake.client();
    let new = AddJob { id: Some("a/b".into()), ..AddJob::default() };
    let adding = tokio::spawn(async move { client.add("mail", new).await });
    fake.next().await.lose();
    let second = fake.next().await;
    let answer = added(&second.body, "exists");
    second.answer(200, &answer);
    assert_eq!(adding.await.unwrap().unwrap().added, Added::Exists);
}

#[tokio::test]
async fn a_request_that_could_run_a_job_twice_is_not_repeated() {
    let mut fake = Fake::start().await;
    let new = AddJob { id: Some("a".into()), if_exists: IfExists::Again, ..AddJob::default() };
    for lost in [true, false] {
        let (client, new) = (fake.client(), new.clone());
        let adding = tokio::spawn(async move { client.add("mail", new).await });
        // The request certainly had no effect, so the client repeats it.
        fake.next().await.refuse(503, "service_unavailable");
        let second = fake.next().await;
        if lost {
            second.lose()
        } else {
            second.refuse(503, "unknown_outcome")
        };
        adding.await.unwrap().unwrap_err();
        assert!(fake.is_idle());
    }
    let client = fake.client();
    let many = vec![NewJob::new("mail", AddJob::default()), NewJob::new("mail", new)];
    let adding = tokio::spawn(async move { client.add_many(many).await });
    fake.next().await.lose();
    adding.await.unwrap().unwrap_err();
    assert!(fake.is_idle());
}

#[tokio::test]
async fn a_refusal_is_returned_and_not_retried() {
    let mut fake = Fake::start().await;
    for (status, code) in [(400, "bad_request"), (404, "not_found"), (413, "too_large")] {
        let client = fake.client();
        let asking = tokio::spawn(async move { client.get("mail", "a b/c").await });
        let request = fake.next().await;
        assert_eq!(request.path, "/v1/jobs/mail/a%20b%2Fc");
        request.refuse(status, code);
        let error = asking.await.unwrap().unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert_eq!(error.to_string(), format!("{code}: because (do otherwise)"));
        assert!(fake.is_idle());
    }
}

#[tokio::test]
async fn an_internal_error_of_the_server_is_not_final_where_a_repetition_is_harmless() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let asking = tokio::spawn(async move { client.get("mail", "a").await });
    fake.next().await.refuse(500, "internal_server_error");
    fake.next().await.answer(200, &job("a", "completed"));
    assert_eq!(asking.await.unwrap().unwrap().id, "a");

    // It may have fired.
    let client = fake.client();
    let firing = tokio::spawn(async move { client.fire_schedule("nightly").await });
    fake.next().await.refuse(500, "internal_server_error");
    assert_eq!(firing.await.unwrap().unwrap_err().code(), Some("internal_server_error"));
    assert!(fake.is_idle());
}

#[tokio::test]
async fn a_foreign_answer_differs_from_an_unreachable_server() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let asking = tokio::spawn(async move { client.types().await });
    fake.next().await.raw(502, "text/html", "<h1>Bad Gateway</h1>");
    fake.next().await.raw(200, "text/html", "<h1>Welcome to nginx!</h1>");
    let error = asking.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Foreign { status: 200, .. }), "{error}");
    let client = fake.client();
    let asking = tokio::spawn(async move { client.types().await });
    fake.next().await.raw(404, "text/plain", "nothing\x1b[31m here");
    let text = asking.await.unwrap().unwrap_err().to_string();
    assert!(text.contains("404") && text.contains("nothing[31m here") && text.contains("URL"), "{text}");

    let away =
        Client::new("http://me:hunter2@127.0.0.1:1/base").unwrap().retry_for(Duration::from_millis(300));
    let error = away.types().await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { maybe_sent: false, .. }), "{error:?}");
    assert!(!format!("{error} {error:?} {away:?}").contains("hunter2"));
    for url in ["nowhere", "ftp://x", "http://x/?a=b", ""] {
        assert!(matches!(Client::new(url), Err(Error::Invalid(_))), "{url}");
    }
}

#[tokio::test]
async fn a_repeated_removal_that_finds_no_job_succeeds() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let removing = tokio::spawn(async move { client.remove("mail", "a").await });
    fake.next().await.lose();
    fake.next().await.refuse(404, "not_found");
    assert!(removing.await.unwrap().unwrap());
    let client = fake.client();
    let removing = tokio::spawn(async move { client.remove("mail", "a").await });
    fake.next().await.refuse(404, "not_found");
    assert!(removing.await.unwrap().unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_list_continues_to_the_last_page_across_empty_pages() {
    let mut fake = Fake::start().await;
    let which = ListJobs {
        state: Some(State::Failed),
        tenant: Some("a&b".into()),
        tag: Some("eu".into()),
        page: Some(2),
        ..ListJobs::default()
    };
    let mut pages = fake.client().list(which);
    let reading = tokio::spawn(async move {
        let mut ids = Vec::new();
        while let Some(page) = pages.next().await.unwrap() {
            ids.extend(page.into_iter().map(|job| job.id));
        }
        ids
    });
    let first = fake.next().await;
    assert_eq!(first.path, "/v1/jobs?state=failed&tenant=a%26b&tag=eu&limit=2");
    first.answer(200, &json!({ "jobs": [], "next": "mail/x y" }));
    let second = fake.next().await;
    assert_eq!(second.path, "/v1/jobs?state=failed&tenant=a%26b&tag=eu&limit=2&after=mail%2Fx+y");
    second.answer(200, &json!({ "jobs": [job("a", "failed"), job("b", "failed")] }));
    assert_eq!(reading.await.unwrap(), ["a", "b"]);
    assert!(fake.is_idle());
}

#[tokio::test]
async fn waiting_continues_across_short_answers_and_restarts() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let waiting = tokio::spawn(async move { client.wait("mail", "a", None).await });
    fake.next().await.answer(200, &json!({ "finished": false, "job": job("a", "running") }));
    fake.next().await.lose();
    fake.next().await.refuse(503, "service_unavailable");
    fake.next().await.answer(200, &json!({ "finished": true, "job": job("a", "completed") }));
    assert_eq!(waiting.await.unwrap().unwrap().job.state, State::Completed);

    let client = fake.client();
    let waiting = tokio::spawn(async move { client.wait("mail", "a", Some(Duration::ZERO)).await });
    let request = fake.next().await;
    assert_eq!(request.path, "/v1/jobs/mail/a/wait?timeout_ms=0");
    request.answer(200, &json!({ "finished": false, "job": job("a", "running") }));
    assert!(!waiting.await.unwrap().unwrap().finished);
}

#[tokio::test]
async fn events_resume_after_a_lost_connection() {
    let mut fake = Fake::start().await;
    let mut events = fake.client().events("mail", "a").unwrap();
    let reading = tokio::spawn(async move {
        let mut updates = Vec::new();
        while let Some(update) = events.next().await.unwrap() {
            updates.push(match update {
                JobUpdate::State(event) => format!("{:?}", event.state),
                JobUpdate::Progress(info) => info.get().to_owned(),
                JobUpdate::End(job) => format!("end {:?}", job.state),
                JobUpdate::Removed => "removed".to_owned(),
            });
        }
        updates
    });
    let state = |kind: &str, state: &str| json!({ "at_us": 5, "type": kind, "state": state }).to_string();
    let first = fake.next().await;
    assert_eq!((first.path.as_str(), first.headers.get("last-event-id")), ("/v1/jobs/mail/a/events", None));
    let added = state("added", "pending");
    first.raw(
        200,
        "text/event-stream",
        &format!("retry: 1\n\nevent: state\nid: 5:0\ndata: {added}\n\nevent: sta"),
    );
    let second = fake.next().await;
    assert_eq!(second.headers["last-event-id"], "5:0");
    second.refuse(503, "service_unavailable");
    let third = fake.next().await;
    assert_eq!(third.headers["last-event-id"], "5:0");
    let (started, end) = (state("started", "running"), job("a", "completed"));
    let text = format!(
        "event: state\nid: 5:1\ndata: {started}\n\n:\n\nevent: progress\ndata: {{\"info\": [1]}}\n\nevent: news\n\
         data: x\n\nevent: end\nid: 5:1-end\ndata: {end}\n\n"
    );
    third.raw(200, "text/event-stream", &text);
    assert_eq!(reading.await.unwrap(), ["Pending", "Running", "[1]", "end Completed"]);
    assert!(fake.is_idle());

    let mut events = fake.client().events("mail", "a").unwrap();
    let reading = tokio::spawn(async move { events.next().await });
    fake.next().await.refuse(404, "not_found");
    assert!(reading.await.unwrap().unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_request_fails_over_to_the_next_server() {
    let mut fake = Fake::start().await;
    // No server listens at the first URL. The time for retries is zero, but the client still asks every server.
    let both = format!("http://127.0.0.1:1,{}", fake.url);
    let client = Client::new(&both).unwrap().retry_for(Duration::ZERO);
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.types().await }
    });
    fake.next().await.answer(200, &json!({ "types": ["mail"] }));
    assert_eq!(asking.await.unwrap().unwrap(), ["mail"]);
    assert_eq!(client.server(), fake.url, "it stays with the one that answers");

    let (mut one, mut two) = (Fake::start().await, Fake::start().await);
    let client = || Client::new(&format!("{},{}", one.url, two.url)).unwrap();
    let (stopping, again) = (client(), client());
    let asking = tokio::spawn(async move { stopping.get("mail", "a").await });
    one.next().await.refuse(503, "service_unavailable");
    two.next().await.refuse(404, "not_found");
    assert!(asking.await.unwrap().unwrap_err().is_not_found(), "a refusal is an answer");

    // A request that may have taken effect is not repeated at another server.
    let new = AddJob { id: Some("a".into()), if_exists: IfExists::Again, ..AddJob::default() };
    let adding = tokio::spawn(async move { again.add("mail", new).await });
    one.next().await.lose();
    adding.await.unwrap().unwrap_err();
    assert!(one.is_idle() && two.is_idle());
}

#[tokio::test]
async fn events_resume_at_the_next_server() {
    let (mut one, mut two) = (Fake::start().await, Fake::start().await);
    let mut events = Client::new(&format!("{},{}", one.url, two.url)).unwrap().events("mail", "a").unwrap();
    let reading = tokio::spawn(async move {
        let mut updates = 0;
        while events.next().await.unwrap().is_some() {
            updates += 1;
        }
        updates
    });
    let added = json!({ "at_us": 5, "type": "added", "state": "pending" });
    let text = format!("retry: 1\n\nevent: state\nid: 5:0\ndata: {added}\n\n");
    one.next().await.raw(200, "text/event-stream", &text);
    let second = two.next().await;
    assert_eq!(second.headers["last-event-id"], "5:0");
    let end = job("a", "completed");
    second.raw(200, "text/event-stream", &format!("event: end\nid: 5:0-end\ndata: {end}\n\n"));
    assert_eq!(reading.await.unwrap(), 2);
    assert!(one.is_idle());
}

#[tokio::test]
async fn the_time_that_a_request_waits_is_no_time_of_retries() {
    let mut fake = Fake::start().await;
    let gateway_timeout = Duration::from_millis(300);
    let client = fake.client().retry_for(Duration::ZERO);
    let (events, waiting) = (client.clone(), client.clone());
    let asking = tokio::spawn(async move { waiting.wait("mail", "a", None).await });
    let first = fake.next().await;
    assert_eq!(first.path, "/v1/jobs/mail/a/wait?timeout_ms=25000");
    tokio::time::sleep(gateway_timeout).await;
    first.raw(504, "text/html", "<h1>Gateway Time-out</h1>");
    // The next wait is over before the gateway cuts it.
    let second = fake.next().await;
    let wait = Duration::from_millis(second.path.rsplit_once('=').unwrap().1.parse().unwrap());
    assert!(wait >= gateway_timeout / 2 && wait < Duration::from_secs(10), "{wait:?}");
    second.answer(200, &json!({ "finished": true, "job": job("a", "completed") }));
    assert!(asking.await.unwrap().unwrap().finished);

    // All requests of the client know it now. Without an answer, the time for retries is over at once.
    let asking = tokio::spawn(async move {
        events.events_of_jobs(&turnwise_client::EventsOfJobs::default(), Duration::from_secs(25)).await
    });
    let request = fake.next().await;
    assert_eq!(request.path, format!("/v1/events?wait_ms={}", wait.as_millis()));
    tokio::time::sleep(wait * 2).await;
    request.raw(504, "text/html", "");
    assert!(matches!(asking.await.unwrap(), Err(Error::NoAnswer { .. })));
    assert!(fake.is_idle());
}

#[tokio::test]
async fn an_answer_that_is_cut_and_a_408_are_no_answers() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let asking = tokio::spawn(async move { client.types().await });
    fake.next().await.raw(408, "text/html", "<h1>Request Time-out</h1>");
    fake.next().await.refuse(408, "timeout");
    // Its length is right: the gateway has not noticed that the server's connection ended.
    fake.next().await.raw(200, "application/json", "{\"types\": [\"ma");
    fake.next().await.raw(404, "application/json", "{\"error\": \"not_fo");
    fake.next().await.answer(200, &json!({ "types": ["mail"] }));
    assert_eq!(asking.await.unwrap().unwrap(), ["mail"]);
}

#[tokio::test]
async fn the_end_of_a_job_is_seen_where_no_stream_passes() {
    let mut fake = Fake::start().await;
    let mut events = fake.client().events("mail", "a").unwrap();
    let reading = tokio::spawn(async move { events.next().await });
    for look in ["running", "completed"] {
        for _ in 0..3 {
            let request = fake.next().await;
            assert_eq!(request.path, "/v1/jobs/mail/a/events");
            request.raw(504, "text/html", "");
        }
        let request = fake.next().await;
        assert_eq!(request.path, "/v1/jobs/mail/a");
        request.answer(200, &job("a", look));
    }
    let update = reading.await.unwrap().unwrap().unwrap();
    assert!(matches!(update, JobUpdate::End(job) if job.state == State::Completed));
}

/// The text of a log's update, for comparisons.
fn shown(update: LogUpdate) -> String {
    match update {
        LogUpdate::Line(line) => format!("{} {}", line.number, line.message),
        LogUpdate::End(job) => format!("end {:?}", job.state),
        LogUpdate::Removed => "removed".to_owned(),
    }
}

fn line(number: u64) -> serde_json::Value {
    json!({ "number": number, "at_us": 5, "level": "info", "message": format!("line {number}") })
}

#[tokio::test]
async fn a_log_resumes_after_a_lost_connection() {
    let mut fake = Fake::start().await;
    let mut lines = fake.client().follow_log("mail", "a", 7).unwrap();
    let reading = tokio::spawn(async move {
        let mut updates = Vec::new();
        while let Some(update) = lines.next().await.unwrap() {
            updates.push(shown(update));
        }
        updates
    });
    let first = fake.next().await;
    assert_eq!(first.path, "/v1/jobs/mail/a/logs?from=7&follow=true");
    assert_eq!(first.headers.get("last-event-id"), None);
    let text = format!("retry: 1\n\nevent: line\nid: 7\ndata: {}\n\nevent: line\nid: 8\n", line(7));
    first.raw(200, "text/event-stream", &text);
    let second = fake.next().await;
    assert_eq!(second.headers["last-event-id"], "7", "the event with the id 8 was not complete");
    let (next, end) = (line(8), job("a", "completed"));
    let text = format!("event: line\nid: 8\ndata: {next}\n\n:\n\nevent: end\ndata: {end}\n\n");
    second.raw(200, "text/event-stream", &text);
    assert_eq!(reading.await.unwrap(), ["7 line 7", "8 line 8", "end Completed"]);
    assert!(fake.is_idle());
}

#[tokio::test]
async fn a_log_is_read_in_pages_where_no_stream_passes() {
    let mut fake = Fake::start().await;
    let mut lines = fake.client().follow_log("mail", "a", 0).unwrap();
    let reading = tokio::spawn(async move {
        let mut updates = Vec::new();
        while let Some(update) = lines.next().await.unwrap() {
            updates.push(shown(update));
        }
        updates
    });
    let page = |lines: &[u64]| {
        let next = lines.last().map_or(3, |last| last + 1);
        json!({ "lines": lines.iter().map(|number| line(*number)).collect::<Vec<_>>(), "first": 0, "next": next })
    };
    let pages = [("running", &[(0, [0, 1].as_slice())][..]), ("completed", &[(2, [2].as_slice()), (3, &[])])];
    for (state, pages) in pages {
        for _ in 0..3 {
            fake.expect("/v1/jobs/mail/a/logs?from=0&follow=true").await.raw(504, "text/html", "");
        }
        fake.expect("/v1/jobs/mail/a").await.answer(200, &job("a", state));
        for (from, numbers) in pages {
            let request = fake.next().await;
            assert_eq!(request.path, format!("/v1/jobs/mail/a/logs?from={from}&limit=1000"));
            request.answer(200, &page(numbers));
        }
    }
    assert_eq!(reading.await.unwrap(), ["0 line 0", "1 line 1", "2 line 2", "end Completed"]);
}

#[tokio::test]
async fn a_result_has_its_media_type_and_one_that_is_cut_is_requested_again() {
    let mut fake = Fake::start().await;
    let client = fake.client();
    let asking =
        tokio::spawn(async move { (client.result("mail", "a").await, client.result("mail", "b").await) });
    fake.expect("/v1/jobs/mail/a/result").await.raw(200, "application/json", "[1, 2");
    fake.expect("/v1/jobs/mail/a/result").await.raw(200, "application/json", "[1, 2]");
    fake.expect("/v1/jobs/mail/b/result").await.raw(200, "text/csv", "a,b");
    let (one, two) = asking.await.unwrap();
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.media_type.as_str(), &one.bytes[..]), ("application/json", &b"[1, 2]"[..]));
    assert_eq!((two.media_type.as_str(), &two.bytes[..]), ("text/csv", &b"a,b"[..]));
}
