//! `/v1/fleets`: supervisors of workers report what they do.

use serde_json::{Value, json};

use crate::common::TestServer;

fn report(expires_ms: u64, why: &str) -> Value {
    let mail = json!({
        "type": "mail", "slots": 4, "min": 0, "max": 20, "target": 5, "running": 4, "stopping": 1, "failures": 0, "why": why
    });
    json!({ "host": "web-1", "version": "0.1.0", "started_us": 17, "expires_ms": expires_ms, "types": [mail] })
}

#[tokio::test]
async fn a_fleet_is_listed_until_it_leaves_or_reports_nothing_more() {
    let server = TestServer::start().await;
    assert_eq!(server.get("/v1/fleets").await.body, json!({ "fleets": [] }));
    for why in ["first", "5 slots < 20"] {
        let put = server.put("/v1/fleets/a", &report(3_600_000, why)).await;
        assert_eq!((put.status, &put.body["types"][0]["why"]), (200, &json!(why)));
    }
    assert_eq!(server.put("/v1/fleets/b", &report(1, "short")).await.status, 200);
    // It has expired, and another report removes it.
    let one = |fleets: &Value| fleets["fleets"].as_array().unwrap().len() == 1;
    let fleets = server.poll("/v1/fleets", one).await;
    let fleet = &fleets["fleets"][0];
    assert_eq!(
        (&fleet["name"], &fleet["host"], &fleet["started_us"]),
        (&json!("a"), &json!("web-1"), &json!(17))
    );
    assert_eq!(fleet["types"], report(1, "5 slots < 20")["types"]);
    assert!(fleet["seen_us"].as_i64().unwrap() > 0);
    let page = server.request("GET", "/ui/workers").send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Fleets") && page.contains("5 slots &lt; 20"), "{page}");

    let server = server.restart("").await;
    assert_eq!(server.get("/v1/fleets").await.body["fleets"], fleets["fleets"]);
    for removed in [true, false] {
        assert_eq!(server.delete("/v1/fleets/a").await.body, json!({ "removed": removed }));
    }
    assert_eq!(server.get("/v1/fleets").await.body, json!({ "fleets": [] }));
}

#[tokio::test]
async fn reports_have_bounds() {
    let server = TestServer::start().await;
    let with = |member: &str, value: Value| {
        let mut report = report(1_000, "");
        report[member] = value;
        report
    };
    let mut bad_type = report(1_000, "");
    bad_type["types"][0]["type"] = json!("a b");
    let many: Vec<Value> = vec![report(1, "")["types"][0].clone(); 101];
    for (body, said) in [
        (with("expires_ms", json!(0)), "expires_ms: must be from 1 to 3600000"),
        (with("expires_ms", json!(3_600_001)), "expires_ms: must be from 1 to 3600000"),
        (with("host", json!("h".repeat(301))), "host: at most 300 bytes"),
        (with("host", json!("a\nb")), "host: at most 300 bytes, without control characters"),
        (report(1_000, &"w".repeat(301)), "why: at most 300 bytes"),
        (with("types", json!(many)), "types: must be from 0 to 100"),
        (bad_type, "type: may have letters"),
        (with("other", json!(1)), "other"),
    ] {
        let answer = server.put("/v1/fleets/a", &body).await;
        assert_eq!(answer.status, 400, "{said}");
        assert!(answer.body["reason"].as_str().unwrap().contains(said), "{said}: {}", answer.body);
    }
    let long = format!("/v1/fleets/{}", "n".repeat(65));
    assert_eq!(server.put(&long, &report(1_000, "")).await.status, 400);
    for n in 0..100 {
        assert_eq!(server.put(&format!("/v1/fleets/{n}"), &report(600_000, "")).await.status, 200);
    }
    let refused = server.put("/v1/fleets/more", &report(600_000, "")).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body["reason"].as_str().unwrap().contains("there are 100 fleets"), "{}", refused.body);
    assert_eq!(server.put("/v1/fleets/99", &report(600_000, "")).await.status, 200, "it is there already");
}
