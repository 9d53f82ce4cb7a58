//! The description of `/v1`: the committed one, the served one, and its completeness.

use crate::common::TestServer;
use serde_json::Value;

#[test]
fn the_committed_description_is_the_codes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == turnwise_server::openapi(),
        "docs/openapi.json is not what the code says: cargo run -p turnwise-server --example openapi > docs/openapi.json"
    );
}

#[tokio::test]
async fn the_served_description_is_the_same() {
    let server = TestServer::start().await;
    let answer = server.get("/v1/openapi.json").await;
    let committed: Value = serde_json::from_str(&turnwise_server::openapi()).unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    assert_eq!(answer.body, committed);
    assert_eq!(answer.body["openapi"], "3.1.0");
}

#[test]
fn every_operation_lists_its_errors_and_every_member_is_described() {
    let description: Value = serde_json::from_str(&turnwise_server::openapi()).unwrap();
    let mut operations = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations += 1;
            let responses = operation["responses"].as_object().unwrap();
            for status in ["400", "414", "421", "431", "500", "503"] {
                assert!(responses.contains_key(status), "{method} {path}: {status}");
            }
            assert_eq!(
                operation.get("requestBody").is_some(),
                ["408", "413", "415"].iter().all(|status| responses.contains_key(*status)),
                "{method} {path}"
            );
            assert!(
                operation["summary"].is_string() && operation["operationId"].is_string(),
                "{method} {path}"
            );
        }
    }
    assert!(operations >= 9, "{operations}");
    for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
        assert!(schema["description"].is_string() || schema["oneOf"].is_array(), "{name}");
        for (member, schema) in schema["properties"].as_object().into_iter().flatten() {
            let own = schema["description"].is_string();
            assert!(own || schema["oneOf"][0]["description"].is_string(), "{name}.{member}");
        }
    }
}
