//! The locks that external workers take while their jobs run, as predictions for later jobs.

use crate::common::TestServer;
use serde_json::{Value, json};

const CATALOGUE: &str = "
[jobs.t]
operation = 'do'
learn = ['instance']

[jobs.t.operations.move]
instance.exclusive = ['{instance}']
node.exclusive = ['{nodes}']
network.shared = 'unknown'
";

async fn add(server: &TestServer, id: &str, instance: &str) {
    let job = json!({"id": id, "options": {"do": "move", "instance": instance, "password": "hunter2"}});
    let added = server.post("/v1/jobs/t", &job).await;
    assert_eq!(added.status, 201, "{}", added.body);
}

async fn why(server: &TestServer, id: &str) -> Value {
    let why = server.get(&format!("/v1/jobs/t/{id}/why")).await;
    assert_eq!(why.status, 200, "{}", why.body);
    why.body["locks"].clone()
}

fn unknown(likely: Option<(&str, usize)>) -> Value {
    let prediction = |locks: Value, runs: usize| {
        let confidence = [0.0, 0.27, 0.42, 0.53][runs];
        json!({"locks": locks, "confidence": confidence, "alike": runs, "runs": runs, "option": "instance", "value": "web1"})
    };
    let mut node = json!({"level": "node", "mode": "exclusive", "because": "its option \"nodes\" is missing", "option": "nodes", "line": 8});
    let mut network = json!({"level": "network", "mode": "shared",
        "because": "the catalogue says that it is known only when the job runs", "line": 9});
    if let Some((name, runs)) = likely {
        node["likely"] =
            prediction(json!([{"level": "node", "name": name, "mode": "exclusive", "units": 1}]), runs);
        network["likely"] = prediction(json!([]), runs);
    }
    json!([network, node])
}

/// With confidences rounded to two digits.
fn rounded(mut unknown: Value) -> Value {
    for one in unknown.as_array_mut().unwrap() {
        if let Some(confidence) = one.pointer_mut("/likely/confidence") {
            *confidence = json!((confidence.as_f64().unwrap() * 100.0).round() / 100.0);
        }
    }
    unknown
}

#[tokio::test]
async fn why_shows_unknown_locks_and_after_some_runs_a_prediction_that_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("catalogue.toml");
    std::fs::write(&file, CATALOGUE).unwrap();
    let config = format!("[queue]\ncatalogue = {}\n", file.display());
    let server = TestServer::start_with(&config).await;
    let worker = server.post("/v1/workers/t", &json!({"slots": 3, "name": "w"})).await.body["worker"].clone();
    let path = format!("/v1/workers/t/{}", worker.as_str().unwrap());
    for n in 0..3_u64 {
        let id = format!("teaches {n}");
        add(&server, &id, "web1").await;
        assert_eq!(rounded(why(&server, &id).await["unknown"].clone()), unknown(None));
        let accept = json!({"received": n, "limit": 1, "wait_ms": 60_000});
        let accepted = server.post(&format!("{path}/accept"), &accept).await.body;
        assert_eq!(accepted["jobs"][0]["id"], *id, "{accepted}");
        let claim = accepted["jobs"][0]["claim"].clone();
        let run = format!("{path}/jobs/{}", id.replace(' ', "%20"));
        let lock = json!({"claim": claim, "locks": [{"level": "node", "name": "n3", "mode": "exclusive"}]});
        assert_eq!(server.post(&format!("{run}/locks"), &lock).await.body["state"], "held");
        assert_eq!(server.post(&format!("{run}/finish"), &json!({"claim": claim})).await.status, 200);
    }
    add(&server, "waits", "web1").await;
    add(&server, "other", "web2").await;
    let stated =
        json!({"id": "stated", "options": {"instance": "web1"}, "locks": {"node": {"exclusive": "unknown"}}});
    assert_eq!(server.post("/v1/jobs/t", &stated).await.status, 201);
    let look = async |server: &TestServer| {
        let waits = why(server, "waits").await;
        assert_eq!(rounded(waits["unknown"].clone()), unknown(Some(("n3", 3))));
        let weight = |locks: &Value, level: &str| {
            let levels = locks["weight"]["levels"].as_array().unwrap();
            levels.iter().find(|at| at["level"] == level).map(|at| at["weight"].clone())
        };
        assert_eq!((weight(&waits, "node"), weight(&waits, "network")), (Some(json!(0.5)), Some(json!(0.0))));
        let other = why(server, "other").await;
        assert_eq!(rounded(other["unknown"].clone()), unknown(None));
        assert_eq!(weight(&other, "network"), Some(json!(0.3)));
        let told = why(server, "stated").await["unknown"].clone();
        assert_eq!(told[0]["because"], "the job's declaration stated this when the job was added", "{told}");
        assert_eq!((told[0].get("line"), told[0].get("likely")), (None, None), "it is of no operation");
    };
    look(&server).await;
    let server = server.restart(&config).await;
    look(&server).await;
}
