//! `/v1/counts`, and counts in other answers.

use serde_json::{Value, json};

use crate::common::TestServer;

async fn count(server: &TestServer, query: &str) -> Value {
    server.get(&format!("/v1/counts{query}")).await.body
}

async fn add(server: &TestServer, job_type: &str, job: Value) {
    let added = server.post(&format!("/v1/jobs/{job_type}"), &job).await;
    assert_eq!(added.status, 201, "{:?}", added.body);
}

/// The numbers that are not 0.
fn numbers(counted: &Value) -> Value {
    let numbers = counted["jobs"].as_object().unwrap().iter().filter(|(_, jobs)| **jobs != json!(0));
    Value::Object(numbers.map(|(state, jobs)| (state.clone(), jobs.clone())).collect())
}

#[tokio::test]
async fn jobs_count_in_the_state_that_they_are_in() {
    let server = TestServer::start().await;
    assert_eq!(count(&server, "").await, json!({"counts": []}));
    for n in 0..3 {
        add(&server, "mail", json!({"id": n.to_string(), "tenant": "acme"})).await;
    }
    add(&server, "mail", json!({"id": "later", "tenant": "acme", "delay_ms": 3_600_000})).await;
    add(&server, "mail", json!({"id": "after", "tenant": "beta", "after": [{"type": "mail", "id": "0"}]}))
        .await;
    add(&server, "print", json!({"id": "0", "tenant": "beta"})).await;
    server.post("/v1/jobs/mail/2/cancel", &json!({})).await;
    let by_type = count(&server, "").await;
    let rows: Vec<Value> = by_type["counts"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(
        rows,
        [json!({"pending": 2, "delayed": 1, "blocked": 1, "cancelled": 1}), json!({"pending": 1})]
    );
    let by_tenant = count(&server, "?by=tenant&type=mail").await;
    let of = |n: usize| (by_tenant["counts"][n]["tenant"].clone(), numbers(&by_tenant["counts"][n]));
    assert_eq!(of(0), (json!("acme"), json!({"pending": 2, "delayed": 1, "cancelled": 1})));
    assert_eq!(of(1), (json!("beta"), json!({"blocked": 1})));
    let of_beta = count(&server, "?by=tenant&tenant=beta").await;
    assert_eq!(of_beta["counts"].as_array().unwrap().len(), 2);
    // The same in other answers.
    let tenants = server.get("/v1/tenants?type=mail").await.body;
    assert_eq!(
        numbers(&tenants["types"][0]),
        json!({"pending": 2, "delayed": 1, "blocked": 1, "cancelled": 1})
    );
    assert_eq!(tenants["tenants"][0]["pending"], 2);
    // What is removed counts no longer.
    assert_eq!(server.delete("/v1/jobs/print/0").await.status, 200);
    assert_eq!(count(&server, "?type=print").await, json!({"counts": []}));
}

#[tokio::test]
async fn pages_continue_where_they_ended() {
    let server = TestServer::start().await;
    for n in 0..7 {
        add(&server, if n < 4 { "a" } else { "b" }, json!({"tenant": format!("t{n}")})).await;
    }
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = count(&server, &format!("?by=tenant&limit=2{after}")).await;
        found.extend(page["counts"].as_array().unwrap().iter().map(|row| row["tenant"].clone()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]);
    let first = count(&server, "?limit=1").await;
    assert_eq!(first["counts"][0]["jobs"]["pending"], 4);
    let second = count(&server, &format!("?limit=1&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!(
        (&second["counts"][0]["type"], &second["counts"][0]["jobs"]["pending"]),
        (&json!("b"), &json!(3))
    );
    assert_eq!(second["next"], Value::Null);
}
