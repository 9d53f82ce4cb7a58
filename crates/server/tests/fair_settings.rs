//! Settings of fair share and rotation: changed while the server runs, rejected with a description of valid values, and
//! persistent.

use crate::common::{Answer, Cluster, TestServer};
use serde_json::{Value, json};
use turnwise_queue::Keyspace;
use turnwise_testkit::encode_segment;

const CONFIG: &str = "/_node/_local/_config";

async fn set(server: &TestServer, name: &str, value: &str) -> Answer {
    server.put(&format!("{CONFIG}/{name}"), &json!(value)).await
}

async fn get(server: &TestServer, name: &str) -> Value {
    server.get(&format!("{CONFIG}/{name}")).await.body
}

/// A tenant's entry in a section.
fn entry(section: &str, tenant: &str) -> String {
    format!("{section}/{}", encode_segment(tenant))
}

#[tokio::test]
async fn each_setting_changes_at_run_time_refuses_invalid_values_and_persists() {
    let of_file = "max_churn = 3\n[replicator.shares]\nx/_replicator = 4\n";
    let server = TestServer::start_with(of_file).await;
    let whole = |range: &str| format!("expected a whole number from {range}");
    // The name, the previous value, a new one, an invalid one, and the description of valid values.
    let cases = [
        ("replicator/interval", "60000", "2000", "99", whole("100 to 86400000")),
        ("replicator/interval", "2000", "1000", "86400001", whole("100 to 86400000")),
        ("replicator/interval", "1000", "100", "1.5", whole("100 to 86400000")),
        ("replicator/max_churn", "3", "0", "10001", whole("0 to 10000")),
        ("replicator/max_churn", "0", "30", "-1", whole("0 to 10000")),
        ("replicator/startup_jitter", "5000", "0", "600001", whole("0 to 600000")),
        ("replicator/idle_turn", "10000", "500", "99", whole("100 to 31536000000")),
        ("replicator/fairness", "virtual_time", "rfc", "fifo", "expected virtual_time or rfc".into()),
        ("replicator/fairness", "rfc", "virtual_time", "", "expected virtual_time or rfc".into()),
        ("replicator/fairness", "virtual_time", "rfc", "RFC", "expected virtual_time or rfc".into()),
        ("replicator/usage_coeff", "0.5", "0", "1", "expected a number from 0 to 0.999".into()),
        ("replicator/usage_coeff", "0", "0.25", "-0.1", "expected a number from 0 to 0.999".into()),
        ("replicator/priority_coeff", "0.98", "0.75", "0", "expected a number from 0.001 to 1".into()),
        ("replicator/priority_coeff", "0.75", "1", "NaN", "expected a number from 0.001 to 1".into()),
        // By default they are `interval`, at least a second.
        ("replicator/usage_interval", "1000", "2000", "999", whole("1000 to 86400000")),
        ("replicator/priority_interval", "1000", "3000", "86400001", whole("1000 to 86400000")),
        ("replicator/charge_interval", "1000", "86400000", "", whole("1000 to 86400000")),
        ("replicator.shares/x%2F_replicator", "4", "1000", "1001", whole("1 to 1000")),
        ("replicator.shares/x%2F_replicator", "1000", "1", "0", whole("1 to 1000")),
        ("shares/tenant%20one", "", "200", "20.5", whole("1 to 1000")),
        ("shares/tenant%20one", "200", "300", "many", whole("1 to 1000")),
    ];
    for (name, before, value, wrong, right) in &cases {
        let changed = set(&server, name, value).await;
        assert_eq!((changed.status, changed.body), (200, json!(before)), "{name}");
        assert_eq!(get(&server, name).await, *value);
        let refused = set(&server, name, wrong).await;
        assert_eq!(refused.error(), (400, "bad_request"), "{name} = {wrong}");
        assert!(refused.body["reason"].as_str().unwrap().ends_with(right), "{}", refused.body);
        assert_eq!(get(&server, name).await, *value, "the old value stays");
    }
    let server = server.restart(of_file).await;
    let last: std::collections::BTreeMap<_, _> =
        cases.iter().map(|(name, _, value, ..)| (*name, *value)).collect();
    for (name, value) in &last {
        assert_eq!(get(&server, name).await, *value, "{name} after a restart");
    }
    for (name, value) in last {
        let left = server.delete(&format!("{CONFIG}/{name}")).await;
        assert_eq!((left.status, left.body), (200, json!(value)), "{name}");
    }
    // The value of the file, or the default.
    assert_eq!(get(&server, "replicator/max_churn").await, "3");
    assert_eq!(get(&server, "replicator/interval").await, "60000");
    assert_eq!(get(&server, "replicator.shares").await, json!({"x/_replicator": "4"}));
    assert_eq!(get(&server, "shares").await, json!({}));
}

#[tokio::test]
async fn shares_are_listed_by_tenant_whatever_its_name() {
    let cluster = Cluster::start(["[replicator.shares]\nb/_replicator = 7\nfile = 8\n", ""]).await;
    let (a, b) = (cluster.at(0), cluster.at(1));
    let names =
        ["_replicator", "a/_replicator", "a/b/_replicator", "A", "x = y ; z", "[section]", "été", "100%"];
    for tenant in names {
        for section in ["replicator.shares", "shares"] {
            let name = entry(section, tenant);
            assert_eq!(get(a, &name).await["reason"], "unknown_config_value", "{tenant}");
            let changed = set(b, &name, "300").await;
            assert_eq!((changed.status, changed.body), (200, json!("")), "{tenant}");
            assert_eq!(get(a, &name).await, "300", "through the other node");
        }
    }
    let listed: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), json!("300"))).collect();
    assert_eq!(get(b, "shares").await, Value::Object(listed.clone()));
    assert_eq!(
        get(b, "replicator.shares").await,
        Value::Object(listed.clone()),
        "a file is its server's own"
    );
    let with_file =
        listed.into_iter().chain([("b/_replicator".into(), json!("7")), ("file".into(), json!("8"))]);
    assert_eq!(get(a, "replicator.shares").await, Value::Object(with_file.collect()));
    assert_eq!(a.get(CONFIG).await.body["shares"]["100%"], "300");
    // A row overrides the file, which applies again without the row.
    let name = entry("replicator.shares", "b/_replicator");
    assert_eq!(set(b, &name, "9").await.body, "");
    assert_eq!((get(a, &name).await, get(b, &name).await), (json!("9"), json!("9")));
    assert_eq!(a.delete(&format!("{CONFIG}/{name}")).await.body, "9");
    assert_eq!(get(a, &name).await, "7");
    for node in &cluster.nodes {
        let again = node.delete(&format!("{CONFIG}/{name}")).await;
        assert_eq!(again.body, json!({"error": "not_found", "reason": "unknown_config_value"}));
    }
    for (tenant, reason) in [
        ("x".repeat(513), "a tenant's name as key: has 513 bytes; at most 512 are allowed"),
        ("a\u{7}".to_owned(), "a tenant's name as key: must not have control characters"),
    ] {
        let refused = set(a, &entry("shares", &tenant), "5").await;
        assert_eq!(refused.error(), (400, "bad_request"));
        assert!(refused.body["reason"].as_str().unwrap().contains(reason), "{}", refused.body);
    }
}

#[tokio::test]
async fn a_section_takes_ten_thousand_tenants_and_not_one_more() {
    let cluster = Cluster::start([""]).await;
    let (node, keys) = (cluster.at(0), &Keyspace::default());
    for batch in 0..10 {
        let added = cluster.store.transact(|tx| async move {
            for n in batch * 1_000..(batch + 1) * 1_000 {
                tx.set(keys.config_entry("shares", &format!("tenant-{n}")), "\"7\"".into())?;
            }
            tx.set_versionstamp(keys.config_versionstamp())
        });
        added.await.unwrap();
    }
    let one_more = set(node, "shares/one-more", "5").await;
    assert_eq!(one_more.error(), (400, "bad_request"));
    let reason = "[shares] one-more: expected at most 10000 tenants: remove one to add another";
    assert_eq!(one_more.body["reason"], reason);
    assert_eq!(set(node, "shares/tenant-5000", "5").await.body, "7", "one of them can change");
    assert_eq!(set(node, "replicator.shares/one-more", "5").await.status, 200, "another section has room");
    assert_eq!(node.delete(&format!("{CONFIG}/shares/tenant-0")).await.body, "7");
    assert_eq!(set(node, "shares/one-more", "5").await.status, 200);
    assert_eq!(get(node, "shares").await.as_object().unwrap().len(), 10_000);
}
