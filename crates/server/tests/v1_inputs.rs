//! Results that are handed on: inputs of jobs, whole graphs in one request, and retries of a graph from one job.

use serde_json::{Value, json};
use turnwise_store::{Limits, StoreUrl};

use crate::common::worker::ExternalWorker;
use crate::common::{As, TestServer};

async fn add(server: &TestServer, job_type: &str, job: Value) -> Value {
    let added = server.post(&format!("/v1/jobs/{job_type}"), &job).await;
    assert_eq!(added.status, 201, "{}", added.body);
    added.body
}

async fn page(server: &TestServer, path: &str) -> String {
    server.request("GET", path).send().await.unwrap().text().await.unwrap()
}

async fn finish(server: &TestServer, job_type: &str, result: Value) {
    ExternalWorker::register(server, job_type, 1).await.run("finish", json!({ "result": result })).await;
}

#[tokio::test]
async fn a_worker_gets_small_results_with_the_job_and_fetches_large_ones() {
    let server = TestServer::start().await;
    let large = json!("x".repeat(70_000));
    for (id, result) in [("small", json!([1, 2])), ("large", large.clone())] {
        add(&server, "extract", json!({ "id": id })).await;
        finish(&server, "extract", result).await;
    }
    add(&server, "image", json!({ "id": "a/b" })).await;
    let data = json!({ "data": "AQI=", "media_type": "image/png" });
    ExternalWorker::register(&server, "image", 1).await.run("finish", data).await;
    let inputs = json!({ "rows": { "job": "extract/small" }, "all": { "job": "extract/large" }, "pic": { "job": "image/a/b" } });
    let added = add(&server, "load", json!({ "id": "l 1", "inputs": inputs })).await;
    assert_eq!(added["added"], "queued");
    assert_eq!(server.get("/v1/jobs/load/l%201").await.body["inputs"], inputs);

    let worker = ExternalWorker::register(&server, "load", 1).await;
    let job = worker.take(0).await;
    let given = &job["inputs"];
    assert_eq!(given["rows"], json!({ "job": "extract/small", "state": "completed", "result": [1, 2] }));
    assert_eq!(given["all"]["bytes"], 70_002);
    assert_eq!(
        (&given["all"]["media_type"], &given["all"]["result"]),
        (&json!("application/json"), &Value::Null)
    );
    assert_eq!((&given["pic"]["media_type"], &given["pic"]["bytes"]), (&json!("image/png"), &json!(2)));
    let url = given["all"]["url"].as_str().unwrap();
    assert_eq!(server.get(url).await.body, large);
    // A response that was lost is sent again with them.
    assert_eq!(worker.take(0).await["inputs"], *given);
    worker.call("jobs/l%201/finish", json!({ "claim": job["claim"] })).await;
    assert_eq!(server.get(url).await.error(), (409, "halt"));
}

#[tokio::test]
async fn a_worker_reads_the_inputs_of_its_jobs_and_nothing_else() {
    let server = TestServer::start().await;
    let admin = server.close().await;
    let token = async |scopes: &[&str]| server.with(&admin).token(scopes).await;
    let (acme, beta) = (token(&["client:acme"]).await, token(&["client:beta"]).await);
    let (worker, stranger) = (token(&["worker:*"]).await, token(&["worker:*"]).await);
    let acme = server.with(&acme);
    assert_eq!(acme.post("/v1/jobs/extract", &json!({ "id": "e" })).await.status, 201);
    let run = async |who: &As<'_>, job_type: &str| {
        let registered = who.post(&format!("/v1/workers/{job_type}"), &json!({ "slots": 1 })).await.body;
        let path = format!("/v1/workers/{job_type}/{}", registered["worker"].as_str().unwrap());
        let accepted = who.post(&format!("{path}/accept"), &json!({ "received": 0 })).await.body;
        (path, accepted["jobs"][0].clone())
    };
    let worker = server.with(&worker);
    let (path, job) = run(&worker, "extract").await;
    let end = json!({ "claim": job["claim"], "result": "y".repeat(70_000) });
    assert_eq!(worker.post(&format!("{path}/jobs/e/finish"), &end).await.status, 200);
    // Another tenant learns nothing of it.
    let wants = json!({ "id": "b", "inputs": { "rows": { "job": "extract/e" } } });
    let refused = server.with(&beta).post("/v1/jobs/load", &wants).await;
    assert_eq!(refused.error(), (400, "bad_request"));
    assert!(refused.body["reason"].as_str().unwrap().contains("there is no job `e`"), "{}", refused.body);
    // Not even for one who may see both.
    let both = json!({ "id": "b", "tenant": "beta", "inputs": { "rows": { "job": "extract/e" } } });
    let refused = server.with(&admin).post("/v1/jobs/load", &both).await;
    assert!(refused.body["reason"].as_str().unwrap().contains("of another tenant"), "{}", refused.body);

    assert_eq!(acme.post("/v1/jobs/load", &wants).await.status, 201);
    let (path, job) = run(&worker, "load").await;
    let url = job["inputs"]["rows"]["url"].as_str().unwrap();
    assert!(url.starts_with(&path), "{url}");
    assert_eq!(worker.get(url).await.status, 200);
    assert_eq!(worker.get("/v1/jobs/extract/e/result").await.status, 403);
    assert_eq!(worker.get(&url.replace("/inputs/rows", "/inputs/other")).await.status, 404);
    let stale = url.replace(&format!("claim={}", job["claim"]), "claim=900");
    assert_eq!(worker.get(&stale).await.error(), (409, "halt"));
    for stranger in [server.with(&stranger), acme] {
        assert!(stranger.get(url).await.status >= 400, "{url}");
    }
}

fn graph() -> Value {
    json!([
        { "type": "load", "name": "load", "id": "l", "inputs": { "rows": { "name": "extract" } }, "after": [{ "name": "check" }] },
        { "type": "check", "name": "check", "after": [{ "name": "extract" }] },
        { "type": "extract", "name": "extract" },
    ])
}

#[tokio::test]
async fn a_whole_graph_is_added_by_names_in_any_order_or_not_at_all() {
    let server = TestServer::start().await;
    let added = server.post("/v1/jobs", &json!({ "whole": true, "jobs": graph() })).await;
    assert_eq!(added.status, 200, "{}", added.body);
    let jobs = added.body["jobs"].as_array().unwrap();
    let of: Vec<_> =
        jobs.iter().map(|job| (job["type"].as_str().unwrap(), job["added"].as_str().unwrap())).collect();
    assert_eq!(of, [("load", "blocked"), ("check", "blocked"), ("extract", "queued")]);
    assert_eq!(server.get("/v1/jobs/load/l").await.body["waits_for"], 2);
    finish(&server, "extract", json!({ "n": 1 })).await;
    finish(&server, "check", json!(true)).await;
    let job = ExternalWorker::register(&server, "load", 1).await.next(1).await.remove(0);
    assert_eq!(job["inputs"]["rows"]["result"], json!({ "n": 1 }));

    let refused = async |change: &dyn Fn(&mut Value), about: &str| {
        let mut body = json!({ "whole": true, "jobs": graph() });
        body["jobs"][0]["id"] = json!("new");
        change(&mut body);
        let refused = server.post("/v1/jobs", &body).await;
        assert!(refused.status >= 400, "{}", refused.body);
        assert!(refused.body["reason"].as_str().unwrap().contains(about), "{about}: {}", refused.body);
        assert_eq!(server.get("/v1/jobs/load/new").await.status, 404);
    };
    refused(&|body| body["whole"] = json!(false), "only a request with `whole`").await;
    refused(&|body| body["jobs"][1]["name"] = json!("extract"), "the same name").await;
    refused(&|body| body["jobs"][1]["name"] = json!("a b"), "jobs[1].name").await;
    refused(&|body| body["jobs"][1]["after"][0]["name"] = json!("nothing"), "no job of the request").await;
    refused(&|body| body["jobs"][2]["after"] = json!([{ "name": "load" }]), "waits for itself").await;
    refused(&|body| body["jobs"][1]["type"] = json!("replication"), "cannot be added here").await;
    refused(&|body| body["jobs"][0]["inputs"]["rows"] = json!({ "job": "extract" }), "inputs.rows").await;
    refused(&|body| body["jobs"][0]["inputs"]["rows"]["job"] = json!("extract/e"), "a name and a job").await;
    let unique = json!({ "mode": "until_end", "key": "k" });
    add(&server, "extract", json!({ "id": "holder", "unique": unique })).await;
    refused(&|body| body["jobs"][2]["unique"] = unique.clone(), "no job was added").await;
}

#[tokio::test]
async fn a_graph_that_does_not_fit_into_one_transaction_is_refused_with_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::embedded(folder.path().join("data"));
    let runtime = std::sync::Arc::new(turnwise_store::runtime::System);
    let store = turnwise_store::open(&url, runtime).await.unwrap().with_limits(Limits::SMALL);
    let server = TestServer::start_on(&store, "").await;
    let chain = |n: usize| -> Vec<Value> {
        let job = |n: usize| match n {
            0 => json!({ "type": "t", "id": "j0", "name": "j0" }),
            n => {
                json!({ "type": "t", "id": format!("j{n}"), "name": format!("j{n}"), "after": [{ "name": format!("j{}", n - 1) }] })
            }
        };
        (0..n).map(job).collect()
    };
    let refused = server.post("/v1/jobs", &json!({ "whole": true, "jobs": chain(300) })).await;
    assert_eq!(refused.error(), (413, "too_large"));
    assert!(refused.body["reason"].as_str().unwrap().contains("at most 480 rows"), "{}", refused.body);
    assert_eq!(server.get("/v1/jobs/t/j0").await.status, 404);
    let added = server.post("/v1/jobs", &json!({ "whole": true, "jobs": chain(12) })).await;
    assert_eq!(added.status, 200, "{}", added.body);
    assert_eq!(server.get("/v1/jobs/t/j11").await.body["state"], "blocked");
}

#[tokio::test]
async fn a_graph_is_retried_from_the_job_that_failed() {
    let server = TestServer::start().await;
    server.post("/v1/jobs", &json!({ "whole": true, "jobs": graph() })).await;
    let mut worker = ExternalWorker::register(&server, "extract", 1).await;
    let failed = worker.run("fail", json!({ "reason": "no", "retry": false })).await;
    let id = failed["id"].as_str().unwrap();
    assert_eq!(server.get("/v1/jobs/load/l").await.body["state"], "cancelled");
    let shown = page(&server, &format!("/ui/job?type=extract&id={id}")).await;
    assert!(shown.contains("Retry from here"), "{shown}");
    let retry = format!("/v1/jobs/extract/{id}/retry");
    let retried = server.post(&retry, &json!({ "with_dependents": true })).await;
    let expected = json!({ "retried": true, "state": "pending", "dependents": 2, "refused": 0 });
    assert_eq!((retried.status, retried.body), (200, expected));
    let again = server.post(&retry, &json!({ "with_dependents": true })).await;
    assert_eq!((&again.body["dependents"], again.status), (&json!(0), 200));
    assert_eq!(server.get("/v1/jobs/load/l").await.body["waits_for"], 2);
    worker.run("finish", json!({ "result": 5 })).await;
    finish(&server, "check", json!(true)).await;
    let job = ExternalWorker::register(&server, "load", 1).await.next(1).await.remove(0);
    assert_eq!(job["inputs"]["rows"]["result"], 5);
    // Its page shows the job that it comes from, and where the time went.
    let shown = page(&server, "/ui/job?type=load&id=l").await;
    assert!(shown.contains(id) && shown.contains("waited ") && shown.contains("critical"), "{shown}");
}

#[tokio::test]
async fn a_graph_is_retried_as_far_as_it_can_be_and_shows_no_removed_jobs() {
    let server = TestServer::start().await;
    let unique = json!({ "mode": "until_end", "key": "k" });
    let after = |id: &str, on: &str| json!({ "id": id, "after": [{ "id": on }] });
    add(&server, "t", json!({ "id": "first" })).await;
    let mut keyed = after("keyed", "first");
    keyed["unique"] = unique.clone();
    add(&server, "t", keyed).await;
    for (id, on) in [("behind", "keyed"), ("free", "first"), ("gone-by-now", "first")] {
        add(&server, "t", after(id, on)).await;
    }
    let mut worker = ExternalWorker::register(&server, "t", 1).await;
    worker.run("fail", json!({ "reason": "no", "retry": false })).await;
    assert_eq!(server.delete("/v1/jobs/t/gone-by-now").await.status, 200);
    let shown = page(&server, "/ui/job?type=t&id=first").await;
    assert!(shown.contains("behind") && !shown.contains("gone-by-now"), "{shown}");
    add(&server, "t", json!({ "id": "holder", "unique": unique })).await;
    let retried = server.post("/v1/jobs/t/first/retry", &json!({ "with_dependents": true })).await.body;
    assert_eq!((&retried["dependents"], &retried["refused"]), (&json!(1), &json!(1)), "{retried}");
    assert_eq!(server.get("/v1/jobs/t/free").await.body["state"], "blocked");
    assert_eq!(server.get("/v1/jobs/t/behind").await.body["state"], "cancelled");
}

#[tokio::test]
async fn jobs_of_the_server_and_of_schedules_get_no_results() {
    let server = TestServer::start_with("[command]\nenabled = true\nallow_root = true\n").await;
    let wants = json!({ "options": { "argv": ["true"] }, "inputs": { "rows": { "job": "extract/e" } } });
    let refused = server.post("/v1/jobs/command", &wants).await;
    assert!(refused.body["reason"].as_str().unwrap().starts_with("inputs: "), "{}", refused.body);
    let schedule = json!({ "when": { "every_ms": 60_000 }, "job": { "type": "t", "inputs": { "rows": { "job": "extract/e" } } } });
    let refused = server.put("/v1/schedules/s", &schedule).await;
    assert!(refused.body["reason"].as_str().unwrap().starts_with("job.inputs"), "{}", refused.body);
}
