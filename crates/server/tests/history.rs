//! `/v1/history`.

use serde_json::{Value, json};

use crate::common::worker::ExternalWorker;
use crate::common::{TestServer, until};

/// A sample is taken every 10 s, so this waits for one.
#[tokio::test]
async fn what_workers_did_is_in_the_history_also_after_a_restart() {
    let server = TestServer::start().await;
    for n in 0..5 {
        let added = server.post("/v1/jobs/mail", &json!({"id": n.to_string(), "tenant": "acme"})).await;
        assert_eq!(added.status, 201);
    }
    let mut worker = ExternalWorker::register(&server, "mail", 2).await;
    assert_eq!(worker.next(2).await.len(), 2);
    let has_work = |history: &Value| {
        let points = history["points"].as_array().unwrap();
        points.iter().any(|point| point["types"]["mail"]["claims"] == 2)
            && points.iter().any(|point| point["types"]["mail"]["tenants"]["acme"]["received"] == 2.0)
    };
    let look = async || {
        worker.ping().await;
        server.get("/v1/history").await.body
    };
    let history = until("the history has the work", look, has_work).await;
    assert_eq!(history["step_s"], 10);
    let point = history["points"].as_array().unwrap().last().unwrap();
    let mail = &point["types"]["mail"];
    assert_eq!(mail["jobs"], json!({"pending": 3.0, "running": 2.0}), "{history}");
    assert_eq!((&mail["slots"], &mail["tenants"]["acme"]["waiting"]), (&json!(2.0), &json!(3.0)));
    assert_eq!(mail["tenants"]["acme"]["entitled"], 2.0);
    let server = server.restart("").await;
    assert!(has_work(&server.get("/v1/history?type=mail").await.body));
    assert_eq!(server.get("/v1/history?type=other").await.body["points"][0]["types"], json!({}));
    // Longer ones have longer steps; nothing is merged yet.
    assert_eq!(
        server.get("/v1/history?step=1h").await.body,
        json!({
            "step_s": 3600, "points": [], "wait_bounds_us": history["wait_bounds_us"]
        })
    );
    assert_eq!(server.get("/v1/history?step=2h").await.status, 400);
    assert_eq!(server.get("/v1/history?from_us=-5&to_us=99999999999999999").await.status, 200);
}
